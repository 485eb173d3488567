"""Policies on disk: Hugging Face folders, safetensors only, read and written."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
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
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_FLOATS = ("F64", "F32", "F16", "BF16")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_BUFFERS = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias)$")
"""Tensors that older versions of transformers saved beside the weights."""
_MASKS = re.compile(r"\.(attn|attention)\.bias$")
"""Those of GPT-2 and its kin, where they have four dimensions."""
_OF_THE_SOURCE = ("quantization_config", "auto_map", "_name_or_path", "transformers_version")
"""What a ``config.json`` says of the files it came with, which saved ones are not."""
_CAPPED_ATTENTION = re.compile("^attn.*soft_?cap")
"""Settings of attention that only transformers' reference implementation heeds."""
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
            tensors = {
                name: tensor.detach().cpu().contiguous() for name, tensor in (weights or model.state_dict()).items()
            }
            save_file(tensors, staging / _WEIGHTS, metadata={"format": "pt"})
            ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
            dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
            _write_object(staging / CONFIG, {**model.config.to_hf(**ends), "dtype": dtype})
            _write_object(staging / GENERATION, {**ends, "do_sample": True})
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
    where, generation, reads_weights = str(folder / CONFIG), _read_generation(folder), str(device) != "meta"
    check_sizes(config, where)
    try:
        shape = ModelConfig.from_hf(config, where)
    except UnsupportedModel:  # transformers may
        shape = None
    stored = _stored_weights(folder)
    tokenizer = _load_tokenizer(folder, config)
    if shape is None:
        model, config = _load_with_transformers(folder, config, dtype, stored)
        model = model.to(device if reads_weights else "cpu").eval()
    else:
        if shape.tie_word_embeddings:
            shape = replace(shape, tie_word_embeddings=_is_tied(stored))
        model = decoder_without_weights(shape, dtype)
    FOLDER_DEFAULTS[model] = FolderDefaults(config, generation)
    if not end_tokens(model, tokenizer):  # its responses would never end
        what = "neither the tokenizer nor a config names an end-of-sequence token that the model knows"
        raise UserError(what, str(folder), "set eos_token in tokenizer_config.json")
    if shape is not None:
        _require_fitting(stored, model, folder)
        if reads_weights:
            for key, weight in model.to_empty(device=device).state_dict().items():
                tensor = _read(stored[key].file, key)
                _require_finite(key, tensor, stored[key].file)
                weight.copy_(tensor)
    return model, tokenizer


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a policy alone. Arguments and errors are those of ``load_policy``."""
    return _load_tokenizer(*_open(name))


def stored_tensors(name: str | Path) -> dict[str, Tensor]:
    """Return the weights of a policy as its files hold them, mapped and not read."""
    return {key: _read(stored.file, key) for key, stored in _stored_weights(_find_folder(name)).items()}


def weight_files_state(name: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Return path, bytes and time of the last change, in ns, of each file of a policy's weights."""
    files = [(path.resolve(), path.stat()) for path in _weight_files(_find_folder(name))]
    return tuple((str(path), state.st_size, state.st_mtime_ns) for path, state in files)


def stored_config(name: str | Path) -> dict[str, Any]:
    """Return what a policy's ``config.json`` and ``generation_config.json`` say, but for who wrote them and where."""
    folder = _find_folder(name)
    configs = {"model": _read_config(folder), "generation": _read_generation(folder) or {}}
    writers = ("_name_or_path", "transformers_version", "_from_model_config")
    return {part: {key: config[key] for key in config if key not in writers} for part, config in configs.items()}


def _write_defaults(model: nn.Module, defaults: FolderDefaults, folder: Path) -> None:
    """Give a folder that a model was saved into what the one that it came from says of generation.

    A model of transformers gets the whole config: transformers 5 would write it in words of its own, which
    transformers 4 passes over without an error: other positions, other sizes.
    """
    source, config = defaults.config, _read_object(folder / CONFIG)
    if isinstance(model, DecoderLM):
        config = {name: value for name, value in config.items() if name not in SPECIAL_IDS}
        config |= {name: source[name] for name in SPECIAL_IDS if name in source}
    else:
        types = [key for key in ("dtype", "torch_dtype") if key in source] or ["dtype"]
        version = {"transformers_version": config["transformers_version"]}
        config = {**source, **dict.fromkeys(types, config["dtype"]), **version}
    _write_object(folder / CONFIG, config)
    if defaults.generation is None:
        (folder / GENERATION).unlink(missing_ok=True)
    else:
        _write_object(folder / GENERATION, defaults.generation)


def _write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer in the words of transformers 4, which 5 reads too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
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
        what = f"cannot save the policy: {getattr(error, 'strerror', None) or error}"
        raise UserError(what, str(folder), "free space on that disk, or choose another folder") from error
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
    folder, text = Path(os.path.expanduser(name)), str(name)
    if os.path.isdir(folder):  # Path's raises where a name is too long
        return folder
    if os.path.exists(folder):
        raise UserError(f"{text} is a file, must be a folder", "model.path", "give the folder that holds config.json")
    if text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise UserError(
            f"no model folder {text}",
            "model.path",
            "check the path; a folder with random weights, to try things with, is made by\n"
            f"         python -m harness.models.make_folder --shape qwen2.5-math-1.5b --layers 2 --vocab 512 -o {text}",
        )
    try:
        return Path(snapshot_download(text, allow_patterns=_WANTED))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise UserError(
            f"no folder {text}, and the Hugging Face hub did not give a model of that name ({_first_line(error)})",
            "model.path",
            "check the name and the network, or give the path of a downloaded folder",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _damaged(what: str, where: Path) -> UserError:
    return UserError(what, str(where), "save the model again")


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise UserError("no config.json in the model folder", str(folder), "give a Hugging Face model folder")
    return _read_object(folder / CONFIG)


def _read_generation(folder: Path) -> dict[str, Any] | None:
    return _read_object(folder / GENERATION) if (folder / GENERATION).is_file() else None


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


def _load_tokenizer(folder: Path, config: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer  # here, since it takes a second of every process that imports it

    fix = "save the tokenizer into the same folder (tokenizer.save_pretrained)"
    tokenizer = _from_pretrained(AutoTokenizer, folder, "no usable tokenizer in the model folder", fix)
    added, vocab_size = tokenizer.added_tokens_decoder, config.get("vocab_size")
    # added tokens alone may stand beyond the vocabulary: Gemma 3's for images, one for padding in many folders
    size = 1 + max((place for place in tokenizer.get_vocab().values() if place not in added), default=-1)
    if isinstance(vocab_size, int) and size > vocab_size:
        what = f"the tokenizer has {size} tokens, the model's vocab_size is {vocab_size}"
        raise UserError(what, str(folder), "save model and tokenizer that belong together")
    return tokenizer


def _from_pretrained(auto: Any, folder: Path, failure: str, fix: str, **options: Any) -> Any:
    """What a class of transformers makes of a folder, none of whose code runs.

    Without ``trust_remote_code=False`` transformers would ask on the terminal, and run it when someone types y.
    """
    try:
        return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:  # transformers and tokenizers raise whatever a damaged file leads to
        what = f"{failure}: {_first_line(error)}"
        if "trust_remote_code" in str(error):
            what = "the model folder wants to run code of its own (auto_map in its JSON files), which is never done"
            fix = "give a model whose classes transformers has itself"
        raise UserError(what, str(folder), fix) from error


class _Stored(NamedTuple):
    """A tensor, as the header of its file says it; ``kind`` is safetensors' name of its type."""

    file: Path
    shape: tuple[int, ...]
    kind: str


def _weight_files(folder: Path) -> list[Path]:
    """The one file, or those an index names, or all there are."""
    files, index = sorted(folder.glob("*.safetensors")), folder / _INDEX
    if not files:
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if not pickles:
            what = "no weights in the model folder: config.json but no *.safetensors"
            raise UserError(what, str(folder), "save or download the weights")
        what = f"only pickled weights ({pickles[0]}), which are refused: loading a pickle can run any code"
        fix = "save the model with safetensors (save_pretrained of a recent transformers does)"
        raise UserError(what, str(folder), fix)
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if not index.is_file():
        return files
    names = _read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise _damaged(f"{_INDEX} has no weight_map from tensors to files", index)
    named = [folder / name for name in sorted(set(names.values()))]
    for file in named:
        if file not in files or not os.path.isfile(file):
            what = f"{_INDEX} names {file.name[:60]!r}, which is no safetensors file of this folder"
            raise UserError(what, str(index), "save or download the weights again")
    return named


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


def _require_fitting(stored: Mapping[str, _Stored], model: nn.Module, folder: Path) -> None:
    """Refuse weights that are not those which the config asks for: each of them, of its shape, and no others."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in expected.items():
        if name not in stored:
            raise _damaged(f"the weights lack {name} {shape}", folder)
        if stored[name].shape != shape:
            raise _damaged(f"{name} is {stored[name].shape}, config.json asks for {shape}", stored[name].file)
        _require_floats(name, stored[name])
    # a head that is there all the same is the embeddings once more
    _require_known([name for name in stored if name not in expected and name != _HEAD], stored, folder)


def _require_known(spare: Sequence[str], stored: Mapping[str, _Stored], folder: Path) -> None:
    """Refuse tensors that no part of the model takes, but for those which transformers used to save."""
    unknown = [
        name
        for name in spare
        if not _BUFFERS.search(name) and not (_MASKS.search(name) and name in stored and len(stored[name].shape) == 4)
    ]
    if unknown:
        what = f"the weights hold {len(unknown)} tensors that config.json has no place for, {min(unknown)} among them"
        where = stored[min(unknown)].file if min(unknown) in stored else folder
        raise UserError(what, str(where), "give the config.json of these weights")


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
    folder: Path, config: dict[str, Any], dtype: torch.dtype, stored: Mapping[str, _Stored]
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model, and what the ``config.json`` of a folder that it is saved into has to say."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model, loaded = _from_pretrained(
        AutoModelForCausalLM,
        folder,
        "transformers cannot load the model",
        "check the folder",
        dtype=dtype,
        use_safetensors=True,
        generation_config=GenerationConfig(),  # the folder's is kept as it is, also where it is not valid
        output_loading_info=True,
    )
    if missing := sorted(loaded["missing_keys"]):
        raise _damaged(f"the weights lack {len(missing)} tensors, {missing[0]} among them", folder)
    _require_known(list(loaded["unexpected_keys"]), stored, folder)
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
