"""Policies on disk: Hugging Face folders, safetensors only, read and written."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.core.errors import UserError
from harness.core.regular_files import read_regular
from harness.models.config import MOST_CONFIG_BYTES, ModelConfig, UnsupportedModel, check_sizes
from harness.models.decoder import DecoderLM, decoder_without_weights
from harness.models.ends import CONFIG, FOLDER_DEFAULTS, GENERATION, SPECIAL_IDS, FolderDefaults, end_tokens
from harness.models.matmul import use_fast_products

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_HUB_NAME_PARTS = 2
_FLOATS = ("F64", "F32", "F16", "BF16")
_NOT_STORED = "rotary_emb.inv_freq"
"""Ends the names of tensors that older folders hold beside the weights."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_OF_THE_SOURCE = ("quantization_config", "auto_map", "_name_or_path", "transformers_version")
"""What a ``config.json`` says of the files it came with, which saved ones are not."""
_CAPPED_ATTENTION = re.compile("^attn.*soft_?cap")
"""Settings of attention that only transformers' reference implementation heeds."""
_TOKENIZER_CONFIG = "tokenizer_config.json"
_OF_TRANSFORMERS_5 = ("backend", "is_local", "local_files_only")


def save_policy(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a folder that ``transformers`` loads with ``AutoModelForCausalLM`` and ``AutoTokenizer``.

    Files are written beside the folder first. A folder that was not there appears when all are complete, in one move;
    into one that was they are moved, so that a reader never sees half a file. Weight files of an earlier save are
    removed, other files in the folder stay. A policy that came from a folder ends, begins, pads and samples as it did
    there: the ids in ``config.json`` and all of ``generation_config.json`` are that folder's.

    Args:
        model: a ``DecoderLM``, saved as the family it is of, or a model of transformers.
        tokenizer: its tokenizer.
        folder: made with its parents where it is missing.
        weights: all weights by name, of a model that is cut over ranks; None: they are the model's own.

    Raises:
        UserError: the folder cannot be written, or the disk is full; what an earlier save left in it stays.
    """
    with _staged(Path(folder)) as staging:
        if isinstance(model, DecoderLM):
            _write_decoder(model, tokenizer, staging, weights or model.state_dict())
        else:
            model.save_pretrained(staging, state_dict=None if weights is None else dict(weights))  # type: ignore[operator]
        if model in FOLDER_DEFAULTS:
            _write_defaults(model, FOLDER_DEFAULTS[model], staging)
        _write_tokenizer(tokenizer, staging)


def load_policy(
    name: str | Path, device: str | torch.device = "cpu", *, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Load a policy and its tokenizer.

    Args:
        name: a Hugging Face folder, or a model's name on the Hugging Face hub (``owner/model``).
        device: where the weights go. With ``meta`` none are read, but for a model that transformers runs: that one is
            then on the CPU.
        dtype: their type, whatever the files hold.

    Returns:
        A ``DecoderLM`` where the folder holds a Llama, Mistral or Qwen that it can run, else the model as transformers
        builds it, in evaluation mode; and the tokenizer as the folder has it.

    Raises:
        UserError: no such folder or hub model, no config, no safetensors weights, weights or a tokenizer that do not
            fit the config, or code in the folder that would have to run.
    """
    folder, config = _open(name)
    check_sizes(config, str(folder / CONFIG))
    try:
        shape = ModelConfig.from_hf(config, str(folder / CONFIG))
    except UnsupportedModel:  # transformers may
        shape = None
    _require_safetensors(folder)
    stored = _stored_weights(folder)
    tokenizer = _load_tokenizer(folder, config)
    generation, without_weights = _read_generation(folder), str(device) == "meta"
    if shape is None:
        model, said = _load_with_transformers(folder, config, dtype, stored)
        model = model.to("cpu" if without_weights else device).eval()
        return _with_defaults(model, FolderDefaults(said, generation), tokenizer, folder), tokenizer
    if shape.tie_word_embeddings:
        shape = dataclasses.replace(shape, tie_word_embeddings=_is_tied(stored))
    empty = decoder_without_weights(shape, dtype)
    _with_defaults(empty, FolderDefaults(config, generation), tokenizer, folder)
    _require_fitting(stored, empty)
    if without_weights:
        return empty, tokenizer
    for key, weight in empty.to_empty(device=device).state_dict().items():
        tensor = _read(stored[key].file, key)
        _require_finite(key, tensor, stored[key].file)
        weight.copy_(tensor)
    return empty, tokenizer


def _with_defaults(
    model: nn.Module, defaults: FolderDefaults, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> nn.Module:
    """Note what a model's folder says of generation; refuse one whose responses would never end."""
    FOLDER_DEFAULTS[model] = defaults
    if not end_tokens(model, tokenizer):
        what = "neither the tokenizer nor a config names an end-of-sequence token that the model knows"
        raise UserError(what, str(folder), "set eos_token in tokenizer_config.json")
    return model


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a policy alone. Arguments and errors are those of ``load_policy``."""
    return _load_tokenizer(*_open(name))


def stored_tensors(name: str | Path) -> dict[str, Tensor]:
    """Return the weights of a policy as its files hold them, mapped and not read."""
    folder = _find_folder(name)
    _require_safetensors(folder)
    return {key: _read(found.file, key) for key, found in _stored_weights(folder).items()}


def weight_files_state(name: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Return path, bytes and time of the last change, in ns, of each file of a policy's weights."""
    files = [(path.resolve(), path.stat()) for path in _weight_files(_find_folder(name))]
    return tuple((str(path), found.st_size, found.st_mtime_ns) for path, found in files)


def stored_config(name: str | Path) -> dict[str, Any]:
    """Return what a policy's ``config.json`` and ``generation_config.json`` say, but for who wrote them and where."""
    folder = _find_folder(name)
    told = {"model": _read_config(folder), "generation": _read_generation(folder) or {}}
    writers = ("_name_or_path", "transformers_version", "_from_model_config")
    return {part: {key: value for key, value in values.items() if key not in writers} for part, values in told.items()}


def _write_decoder(
    model: DecoderLM, tokenizer: PreTrainedTokenizerBase, folder: Path, weights: Mapping[str, Tensor]
) -> None:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = model.config.to_hf(**ends)
    config["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
    _write_object(folder / CONFIG, config)
    _write_object(folder / GENERATION, {**ends, "do_sample": True})


def _write_defaults(model: nn.Module, defaults: FolderDefaults, folder: Path) -> None:
    """Give a folder that a model was saved into what the one that it came from says of generation.

    A model of transformers gets the whole config: transformers 5 would write it in words of its own, which
    transformers 4 passes over without an error: other positions, other sizes.
    """
    came_with, config = defaults.config, _read_object(folder / CONFIG)
    if isinstance(model, DecoderLM):
        config = {name: value for name, value in config.items() if name not in SPECIAL_IDS or name in came_with}
        config |= {name: came_with[name] for name in SPECIAL_IDS if name in came_with}
    else:
        types = [key for key in ("dtype", "torch_dtype") if key in came_with] or ["dtype"]
        own = dict.fromkeys(types, config["dtype"]) | {"transformers_version": config["transformers_version"]}
        config = {**came_with, **own}
    _write_object(folder / CONFIG, config)
    if defaults.generation is None:
        (folder / GENERATION).unlink(missing_ok=True)
    else:
        _write_object(folder / GENERATION, defaults.generation)


def _write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer in the words of transformers 4, which 5 reads too."""
    tokenizer.save_pretrained(folder)
    path = folder / _TOKENIZER_CONFIG
    if not path.exists():  # of a task's own
        return
    config = {name: value for name, value in _read_object(path).items() if name not in _OF_TRANSFORMERS_5}
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    _write_object(path, config)


def _write_object(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A fresh folder beside ``folder``, which becomes it or gives it its files at the end; removed after an error."""
    staging = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        yield staging
        if not folder.exists():
            os.replace(staging, folder)
            return
        written = {file.name for file in staging.iterdir()}
        for name in sorted(written):
            os.replace(staging / name, folder / name)
        for stale in folder.glob("model*.safetensors*"):
            if stale.name not in written:
                stale.unlink()
    except Exception as error:
        # a full disk is an OSError to Python, a SafetensorError to safetensors, a bare Exception to tokenizers
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot save the policy: {reason}", str(folder), "free space on that disk, or choose another folder"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _open(name: str | Path) -> tuple[Path, dict[str, Any]]:
    """The folder and its config; no pipe or device stands where transformers would read a file to its end."""
    folder = _find_folder(name)
    for path in (path for pattern in _WANTED for path in folder.glob(pattern)):
        if path.exists() and not path.is_file():
            what = f"{path.name} is no regular file"
            raise UserError(what, str(path), "save the model again, or leave that file out")
    return folder, _read_config(folder)


def _find_folder(name: str | Path) -> Path:
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):  # Path's raises where a name is too long
        return folder
    text = str(name)
    if os.path.exists(folder):
        raise UserError(f"{text} is a file, must be a folder", "model.path", "give the folder that holds config.json")
    if text.startswith((".", "/", "~")) or len(text.split("/")) > _HUB_NAME_PARTS:
        raise UserError(
            f"no model folder {text}",
            "model.path",
            "check the path; a folder with random weights, to try things with, is made by\n"
            f"         python -m harness.models.make_folder --shape qwen2.5-math-1.5b --layers 2 --vocab 512 -o {text}",
        )
    try:
        return Path(snapshot_download(text, allow_patterns=_WANTED))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise UserError(
            f"no folder {text}, and the Hugging Face hub did not give a model of that name ({_first_line(error)})",
            "model.path",
            "check the name and the network, or give the path of a downloaded folder",
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _damaged(what: str, where: Path | str) -> UserError:
    return UserError(what, str(where), "save the model again")


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise UserError("no config.json in the model folder", str(folder), "give a Hugging Face model folder")
    return _read_object(folder / CONFIG)


def _read_generation(folder: Path) -> dict[str, Any] | None:
    path = folder / GENERATION
    return _read_object(path) if path.is_file() else None


def _read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file of the folder holds."""
    try:
        value = json.loads(read_regular(path, MOST_CONFIG_BYTES))
    except OSError as error:
        raise _damaged(f"cannot read {path.name}: {error.strerror}", path) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(f"{path.name} is not JSON: {error}", path) from error
    if not isinstance(value, dict):
        raise _damaged(f"{path.name} holds no object", path)
    return value


def _require_safetensors(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"only pickled weights ({pickles[0]}), which are refused: loading a pickle can run any code",
            str(folder),
            "save the model with safetensors (save_pretrained of a recent transformers does)",
        )
    raise UserError(
        "no weights in the model folder: config.json but no *.safetensors", str(folder), "save or download the weights"
    )


def _load_tokenizer(folder: Path, config: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer  # here, since it takes a second of every process that imports it

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers and tokenizers raise whatever a damaged file leads to
        _refuse_own_code(folder, error)
        raise UserError(
            f"no usable tokenizer in the model folder ({type(error).__name__})",
            str(folder),
            "save the tokenizer into the same folder (tokenizer.save_pretrained)",
        ) from error
    added, vocab_size = tokenizer.added_tokens_decoder, config.get("vocab_size")
    # added tokens alone may stand beyond the vocabulary: Gemma 3's for images, one for padding in many folders
    size = 1 + max((place for place in tokenizer.get_vocab().values() if place not in added), default=-1)
    if isinstance(vocab_size, int) and size > vocab_size:
        raise UserError(
            f"the tokenizer has {size} tokens, the model's vocab_size is {vocab_size}",
            str(folder),
            "save model and tokenizer that belong together",
        )
    return tokenizer


def _refuse_own_code(folder: Path, error: Exception) -> None:
    """Say it plainly where transformers refused to run code of the folder; other errors are the caller's.

    Without ``trust_remote_code=False`` transformers would ask on the terminal, and run it when someone types y.
    """
    if "trust_remote_code" in str(error):
        raise UserError(
            "the model folder wants to run code of its own (auto_map in its JSON files), which is never done",
            str(folder),
            "give a model whose classes transformers has itself",
        ) from error


class _Stored(NamedTuple):
    """A tensor, as the header of its file says it; ``kind`` is safetensors' name of its type."""

    file: Path
    shape: tuple[int, ...]
    kind: str


def _weight_files(folder: Path) -> list[Path]:
    """The one file, or those an index names, or all there are."""
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    index = folder / _INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = _read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise _damaged(f"{_INDEX} has no weight_map from tensors to files", index)
    files = [folder / name for name in sorted(set(names.values()))]
    for file in files:
        if not os.path.isfile(file) or file.parent != folder or file.suffix != ".safetensors":
            what = f"{_INDEX} names {file.name[:60]!r}, which is no safetensors file of this folder"
            raise UserError(what, str(index), "save or download the weights again")
    return files


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise _damaged(f"cannot read {path.name}: {error}", path.parent) from error


def _stored_weights(folder: Path) -> dict[str, _Stored]:
    """What the files of weights hold, from their headers alone."""
    stored: dict[str, _Stored] = {}
    for path in _weight_files(folder):
        with _opened(path) as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
            stored |= {name: _Stored(path, tuple(part.get_shape()), part.get_dtype()) for name, part in headers.items()}
    return stored


def _read(path: Path, name: str) -> Tensor:
    """A stored weight. Its file is mapped for this one alone, so that the memory of those before is given back."""
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor


def _is_tied(stored: Mapping[str, _Stored]) -> bool:
    """Whether the files have one table for tokens and logits, as their config says; two that differ stay two.

    So does transformers decide it.
    """
    if not {_HEAD, _EMBEDDING} <= stored.keys():
        return True
    is_same = torch.equal(*(_read(stored[name].file, name) for name in (_HEAD, _EMBEDDING)))
    if not is_same:
        _warn_of_other_head(stored[_HEAD].file)
    return is_same


def _warn_of_other_head(where: Path) -> None:
    warnings.warn(
        f"config.json ties the output matrix to the embeddings, and {where} holds another one, which is taken",
        stacklevel=4,
    )


def _require_fitting(stored: Mapping[str, _Stored], model: nn.Module) -> None:
    """Refuse weights that are not those which the config asks for: each of them, of its shape, and no others."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    folder = next(iter(stored.values())).file.parent if stored else ""
    for name, shape in expected.items():
        if name not in stored:
            raise _damaged(f"the weights lack {name} {shape}", folder)
        if stored[name].shape != shape:
            raise _damaged(f"{name} is {stored[name].shape}, config.json asks for {shape}", stored[name].file)
        _require_floats(name, stored[name])
    known = {*expected, _HEAD}  # which are the embeddings once more
    if spare := [name for name in stored if name not in known and not name.endswith(_NOT_STORED)]:
        raise _no_place_for(spare, stored[spare[0]].file)


def _no_place_for(names: Sequence[str], where: Path) -> UserError:
    what = f"the weights hold {len(names)} tensors that config.json has no place for, {min(names)} among them"
    return UserError(what, str(where), "give the config.json of these weights")


def _is_mask(name: str, tensor: _Stored | None) -> bool:
    """Whether a tensor is a buffer that older versions of transformers saved with the weights of GPT-2 and its kin."""
    if name.endswith((".masked_bias", ".rotary_emb.inv_freq")):
        return True
    return name.endswith((".attn.bias", ".attention.bias")) and tensor is not None and len(tensor.shape) == 4


def _require_floats(name: str, tensor: _Stored) -> None:
    if tensor.kind not in _FLOATS:
        what = f"{name} is of type {tensor.kind}, must be one of {', '.join(_FLOATS)}"
        raise UserError(what, str(tensor.file), "save the model with weights that are not quantised")


def _require_finite(name: str, tensor: Tensor, file: Path) -> None:
    """Refuse a tensor with a NaN or an infinity; a finite sum of all saves looking at each."""
    if tensor.sum(dtype=torch.float32).isfinite() or tensor.isfinite().all():
        return
    count = int((~tensor.isfinite()).sum())
    what = f"{name} has {count} of {tensor.numel()} numbers that are NaN or infinite"
    raise UserError(what, str(file), "save the model again, from before it diverged")


def _load_with_transformers(
    folder: Path, config: Mapping[str, Any], dtype: torch.dtype, stored: Mapping[str, _Stored]
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model, and what the ``config.json`` of a folder that it is saved into has to say."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            generation_config=GenerationConfig(),  # the folder's is kept as it is, also where it is not valid
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except Exception as error:  # transformers raises whatever a damaged file leads to
        _refuse_own_code(folder, error)
        what = f"transformers cannot load the model: {_first_line(error)}"
        raise UserError(what, str(folder), "check the folder") from error
    model: Any = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise _damaged(f"the weights lack {len(missing)} tensors, {missing[0]} among them", folder)
    if unknown := [name for name in loaded[1]["unexpected_keys"] if not _is_mask(name, stored.get(name))]:
        raise _no_place_for(unknown, folder)
    for name, parameter in model.named_parameters():
        if name in stored and parameter.is_floating_point():
            _require_floats(name, stored[name])
        _require_finite(name, parameter.detach(), stored[name].file if name in stored else folder)
    use_fast_products(model)
    of_text: Any = model.config.get_text_config()
    if any(value and _CAPPED_ATTENTION.search(name) for name, value in vars(of_text).items()):
        model.set_attn_implementation("eager")
    kept = {name: value for name, value in config.items() if name not in _OF_THE_SOURCE}
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if of_text.tie_word_embeddings and head is not None and head.weight is not embeddings.weight:
        _warn_of_other_head(folder)
        of_text.tie_word_embeddings = kept["tie_word_embeddings"] = False
    return model, kept
