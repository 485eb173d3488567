"""Inputs that are more than the bytes of one file: command lines, links, pipes, folders that do not fit together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from harness.cli import main
from harness.core.errors import UserError
from harness.models.config import PRESETS, SIZES, ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer
from harness.scenario.load import load_scenario
from harness.tasks.jsonl import JsonlTask
from harness.tasks.rows import Fields, read_prompts
from tests.hostile.outcome import Silent
from tests.hostile.targets import SOUND_RUN, check_usable, copy_of_sound_run, quietly, read_everything

Act = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """An input: ``act`` gives it to its reader, in an empty folder.

    Attributes:
        must_refuse: it cannot mean anything.
        limit_s: CPU seconds that it may take.
    """

    name: str
    act: Act
    must_refuse: bool = True
    limit_s: float = 10.0


# ---- scenarios and flags


def _text(text: str | bytes, *overrides: str) -> Act:
    """A scenario file, with what ``--set`` says."""

    def act(folder: Path) -> None:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        (folder / "s.yaml").write_bytes(data)
        check_usable(load_scenario(folder / "s.yaml", overrides), folder)

    return act


def _set(*overrides: str) -> Act:
    def act(folder: Path) -> None:
        check_usable(load_scenario("quickstart", overrides), folder)

    return act


def _named(name: str) -> Act:
    def act(folder: Path) -> None:
        load_scenario(name)

    return act


def _at(make: Callable[[Path], object]) -> Act:
    """A scenario's path at which something else is."""

    def act(folder: Path) -> None:
        make(folder / "s.yaml")
        load_scenario(folder / "s.yaml")

    return act


def _chain(length: int) -> Act:
    def act(folder: Path) -> None:
        for number in range(length):
            (folder / f"s{number}.yaml").write_text(f"extends: s{number + 1}\n")
        (folder / f"s{length}.yaml").write_text("steps: 1\n")
        load_scenario(folder / "s0.yaml")

    return act


def _laughs(levels: int) -> str:
    return "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, levels))


def _numbers(count: int) -> str:
    return ", ".join(map(str, range(count)))


def scenario_cases() -> Iterator[Case]:
    """Yield scenarios and flags that cannot be run, and a few at a bound that can."""
    many_keys = "\n".join(f"key_{n}: 1" for n in range(20_000))
    texts: dict[str, str | bytes] = {
        "20,000 unknown keys": many_keys,
        "3,000 unknown keys": "\n".join(f"stepz_{n}: 1" for n in range(3000)),
        "20,000 keys written twice": "steps: 1\n" * 20_000,
        "an axis of 10^6 values": f"sweep:\n  seed: [{_numbers(10**6)}]\n",
        "an axis of 50,000 values": f"sweep:\n  seed: [{_numbers(50_000)}]\n",
        "10^6 points": f"sweep:\n  seed: [{_numbers(1000)}]\n  steps: [{', '.join(map(str, range(1, 1001)))}]\n",
        "10,000 points that break a rule": f"group_size: 7\nsweep:\n  seed: [{_numbers(10_000)}]\n",
        "10,000 points of an unknown key": f"sweep:\n  sed: [{_numbers(10_000)}]\n",
        "5,000 axes": "sweep:\n" + "".join(f"  a{n}: [1]\n" for n in range(5000)),
        "3,000 arms of an unknown key": "arms:\n" + "".join(f"  a{n}: {{stepz: 1}}\n" for n in range(3000)),
        "an arm of 5,000 keys": "arms:\n  a:\n" + "".join(f"    k{n}: 1\n" for n in range(5000)),
        "an arm's key of 2,000 parts": f"arms: {{a: {{{'.'.join('a' * 2000)}: 1}}}}\n",
        "an axis of 2,000 parts": f"sweep: {{{'.'.join('a' * 2000)}: [1, 2]}}\n",
        "an axis of nested values": "sweep: {sampling: [" + "{a: " * 500 + "1" + "}" * 500 + "]}\n",
        "nine levels of ten aliases": _laughs(10),
        "a list in itself": "a: &x [*x]\n",
        "20,000 flow levels": "a: " + "[" * 20_000 + "]" * 20_000,
        "2,000 block levels": "".join(f"{' ' * n}a:\n" for n in range(2000)),
        "a hexadecimal of 5,000 digits": "steps: 0x" + "f" * 5000,
        "a number of 5,000 digits": "steps: " + "9" * 5000,
        "steps 10**4000": "steps: 1" + "0" * 4000,
        "steps 10**30": "steps: 1" + "0" * 30,
        "steps -10**30": "steps: -1" + "0" * 30,
        "10**12 generators": "placement: {generator: {count: 1000000000000}}\ntransport: {type: disk}\n",
        "10**12 ranks": "placement: {learner: {ranks: 1000000000000}}\ntransport: {type: disk}\n",
        "stop strings with a null byte": 'sampling: {stop: ["a\\0b"]}\n',
        "a null byte in task.train": 'task: {type: jsonl, train: "a\\0b", reward: "a:b"}\n',
        "a null byte in profile": 'profile: "a\\0b"\n',
        "a null byte in extends": 'extends: "a\\0b"\n',
        "a null byte in a key": '"ste\\0ps": 1\n',
        "half a pair in description": 'description: "\\ud800"\n',
        "half a pair in a key": '"\\ud800": 1\n',
        "a raw null byte": "steps: 1\x00\n",
        "a raw half of a pair": b"description: \xed\xa0\x80\n",
        "noise": bytes(range(256)) * 40,
        "a Cyrillic letter in a key": "st\u0435ps: 3\n",
        "a Cyrillic letter in a value": "loss: {type: n\u0430ive}\n",
        "digits of another script": "steps: \uff11\uff10\n",
        "latin-1": "description: é\n".encode("latin-1"),
        "UTF-16": "steps: 3\n".encode("utf-16"),
        "nothing": b"",
        "5 MiB": b"#" * (5 << 20),
        "4 MiB of comment": b"#" * (4 << 20),
        "4 MiB of text": b"description: " + b"x" * ((4 << 20) - 20),
        "4 MiB of brackets": b"[" * (4 << 20),
        "a merge of itself": "a: &a {<<: *a}\n",
        "two documents": "steps: 1\n---\nsteps: 2\n",
        "another version of YAML": "%YAML 9.9\n---\nsteps: 1\n",
        "a Python object": "a: !!python/object/apply:os.system [id]\n",
        "a key that is a list": "? [a, b]\n: 1\n",
        "tabs": "loss:\n\ttype: naive\n",
        "a name of 5,000 characters": "name: " + "x" * 5000,
        "an arm of 5,000 characters": f"arms: {{{'x' * 5000}: {{steps: 1}}}}\n",
        "extends of 5,000 characters": "extends: " + "x" * 5000,
        "extends a path of 5,000 characters": "extends: " + "x/" * 2500 + "y.yaml",
        "extends itself": "extends: s\n",
        "extends a list": "extends: [a]\n",
        "seconds of 1e300": "faults: {stall_after_s: 1e300}\n",
        "a temperature of 1e-300": "sampling: {temperature: 1e-300}\n",
        "more prompts than there are": "task: {train_prompts: 1000000000}\n",
        "a batch of 10**9": "rollout_batch_size: 1000000000\ngroup_size: 1000000000000\n",
    }
    for name, text in texts.items():
        yield Case(name, _text(text), limit_s=1.0)
    yield Case("10,000 points", _text(f"sweep:\n  seed: [{_numbers(10_000)}]\n"), False, 20.0)
    yield Case("10,000 seeds in blocks", _text("blocks: 1000\n"), False, 20.0)
    usable = "a name of 255 bytes: the file is there"
    yield Case(usable, _at_name("x" * 250 + ".yaml"), False, 1.0)
    flags: dict[str, tuple[str, ...]] = {
        "2,000 parts": (".".join("a" * 2000) + "=1",),
        "2,000 parts below arms": ("arms." + ".".join("a" * 2000) + "=1",),
        "20,000 levels": ("a=" + "[" * 20_000 + "]" * 20_000,),
        "no sign": ("steps",),
        "no key": ("=3",),
        "an empty part": ("loss..type=naive",),
        "dots alone": ("...=1",),
        "extends": ("extends=sync_k1",),
        "bytes that are no UTF-8": (os.fsdecode(b"description=\xff"),),
        "a key that is no UTF-8": (os.fsdecode(b"\xff=1"),),
        "laughs": ("a=" + _laughs(10),),
        "a Cyrillic key": ("st\u0435ps=3",),
        "100,000 values": ("sweep.seed=[" + _numbers(100_000)[:120_000] + "]",),
        "5,000 flags": tuple(f"key_{n}=1" for n in range(5000)),
        "20,000 times the same": ("steps=3",) * 20_000,
        "a value of 130,000 characters": ("description=" + "x" * 130_000 + "\x00",),
        "0x of 5,000": ("steps=0x" + "f" * 5000,),
    }
    for name, overrides in flags.items():
        yield Case(f"--set: {name}", _set(*overrides), limit_s=1.0)
    for name in ("x" * 256, "x" * 5000, "x" * 300 + ".yaml", "x/" * 2500 + "y.yaml", "a\0b.yaml", "a\0b", "\udcff", ""):
        yield Case(f"a scenario called {name[:6]!r}... of {len(name)}", _named(name), limit_s=1.0)
    for name in ("/dev/zero.yaml", "/dev/null", "/", "..", "~nobody/x.yaml", "scenarios"):
        yield Case(f"a scenario called {name!r}", _named(name), limit_s=1.0)
    yield Case("a pipe", _at(os.mkfifo), limit_s=1.0)
    yield Case("a folder", _at(Path.mkdir), limit_s=1.0)
    yield Case("a device", _at(lambda path: path.symlink_to("/dev/zero")), limit_s=1.0)
    yield Case("a link to itself", _at(lambda path: path.symlink_to(path)), limit_s=1.0)
    yield Case("1,500 scenarios that extend each other", _chain(1500), limit_s=1.0)
    yield Case("3 scenarios that extend each other", _chain(3), False, 1.0)
    for command in ("run", "validate", "simulate", "sweep", "bench"):
        yield Case(f"{command} of a name of 5,000", _command(command, "x" * 5000))
        yield Case(f"{command} of a null byte", _command(command, "a\0b.yaml"))
    yield Case("compare of a name of 5,000", _command("compare", "x" * 5000))
    yield Case("compare of a null byte", _command("compare", "a\0b"))
    yield Case("report of a name of 5,000", _command("report", "x" * 5000))
    yield Case("trace of a name of 5,000", _command("trace", "x" * 5000))
    yield Case("import of a name of 5,000", _command("import", "trl", "x" * 5000))
    yield Case("whatif of a name of 5,000", _command("whatif", "x" * 5000))
    yield Case("evaluate of a name of 5,000", _command("evaluate", "--model", "m", "--data", "x" * 5000))
    yield Case("run into a name of 5,000", _command("run", "quickstart", "--out", "x" * 5000))


def _at_name(name: str) -> Act:
    def act(folder: Path) -> None:
        (folder / name).write_text("steps: 1\n")
        load_scenario(folder / name)

    return act


def _command(*arguments: str) -> Act:
    """A command line that must end with exit code 2 and without a traceback."""

    def act(folder: Path) -> None:
        code, said = quietly(lambda: main(list(arguments)))
        if "Traceback" in said:
            raise RuntimeError(said[-2000:])
        if code == 2:
            raise UserError(said.strip()[:1000] or "nothing was said")
        raise Silent(f"exit code {code}: {said[-500:]}")

    return act


# ---- run folders

RUN_FILES = tuple(sorted({path.name for path in SOUND_RUN.iterdir()} - {"log.txt"}))  # which is for people alone


def _damaged(file: str, damage: Callable[[Path], object]) -> Act:
    def act(folder: Path) -> None:
        run = copy_of_sound_run(folder)
        damage(run / file)
        read_everything(run)

    return act


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def _written(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def run_folder_cases() -> Iterator[Case]:
    """Yield damage to each file of a run's folder as a whole."""
    odd: dict[str, Callable[[Path], None]] = {
        "a pipe": _instead(os.mkfifo),
        "a folder": _instead(Path.mkdir),
        "a device": _instead(lambda path: path.symlink_to("/dev/zero")),
        "a link to itself": _instead(lambda path: path.symlink_to(path)),
    }
    for file in RUN_FILES:
        for name, damage in odd.items():
            yield Case(f"{file} is {name}", _damaged(file, damage))
        yield Case(f"{file} is missing", _damaged(file, Path.unlink), False)
        yield Case(f"{file} is empty", _damaged(file, _written(lambda data: b"")), False)
        yield Case(f"half of {file}", _damaged(file, _written(lambda data: data[: len(data) // 2])), False)
        yield Case(f"{file} of another program", _damaged(file, _written(lambda data: bytes(range(256)) * 64)), False)
        yield Case(f"{file} is no UTF-8", _damaged(file, _written(lambda data: data.replace(b"e", b"\xff"))), False)
    for file in ("manifest.json", "steps.jsonl", "spans.jsonl", "counters.jsonl"):
        later = _written(
            lambda data: data.replace(b'schema_version":1', b'schema_version":99').replace(
                b'schema_version": 1', b'schema_version": 99'
            )
        )
        yield Case(f"{file} of a later version", _damaged(file, later))
    for file in ("steps.jsonl", "spans.jsonl", "counters.jsonl"):
        yield Case(f"{file} of two runs", _damaged(file, _written(lambda data: data * 2)))
        yield Case(f"{file} without its header", _damaged(file, _written(lambda data: data.split(b"\n", 1)[1])))
    body = _written(lambda data: data + data.split(b"\n", 1)[1])
    yield Case("the steps of two runs under one header", _damaged("steps.jsonl", body))
    yield Case("steps in reverse", _damaged("steps.jsonl", _written(_reversed)))
    yield Case("a step twice", _damaged("steps.jsonl", _written(_twice)))
    yield Case("a line of 20 MB", _damaged("steps.jsonl", _written(_long_line)), False)
    yield Case("a line of 20 MB in spans", _damaged("spans.jsonl", _written(_long_line)), False)


def _reversed(data: bytes) -> bytes:
    head, *rows = data.splitlines(keepends=True)
    return head + b"".join(reversed(rows))


def _twice(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"kind":"step"' in line)
    return b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]])


def _long_line(data: bytes) -> bytes:
    return data + b'{"kind":"step","x":"' + b"x" * 20_000_000 + b'"}\n'


# ---- models


@cache
def _tokenizer() -> object:
    return train_tokenizer(["a red apple"], 260)


def _shape(**changes: object) -> ModelConfig:
    from dataclasses import replace

    base = replace(PRESETS["tiny"], vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    return replace(base, head_dim=8, **changes)  # type: ignore[arg-type]


def _model(damage: Callable[[Path], object]) -> Act:
    def act(folder: Path) -> None:
        save_policy(DecoderLM(_shape()), _tokenizer(), folder / "m")  # type: ignore[arg-type]
        damage(folder / "m")
        load_policy(folder / "m")

    return act


def _config(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def _file(name: str, data: str | bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return damage


def _index(text: str) -> Callable[[Path], None]:
    """Weights of another name, and an index that says which."""

    def damage(folder: Path) -> None:
        os.rename(folder / "model.safetensors", folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(text)

    return damage


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


_DEEP = "[" * 100_000 + "]" * 100_000
_GATE, _NORM = "model.layers.1.mlp.gate_proj.weight", "model.norm.weight"
_WRONG_SIZES: tuple[Any, ...] = (-1, 0, 10**6, 10**12, 10**400, 1.5, "x", None, True, [], float("nan"))


def model_cases() -> Iterator[Case]:
    """Yield model folders that cannot be loaded as they are."""
    yield Case("a sound model", _model(lambda folder: None), False)
    for size in SIZES:
        for value in _WRONG_SIZES:
            shown = "10**400" if isinstance(value, int) and value > 10**12 else value
            absent = value is None and size in ("num_key_value_heads", "head_dim")
            larger = value == 10**6 and size == "max_position_embeddings"  # RoPE has no table: it may be
            absent = absent or (size in ("num_key_value_heads", "head_dim") and value in (0, []))
            refuse = not absent and not larger
            yield Case(f"{size} is {shown}", _model(_config(**{size: value})), refuse)
    others: dict[str, Any] = {
        "model_type": "gpt_none",
        "rope_parameters": "x",
        "rms_norm_eps": "x",
        "rope_theta": -1.0,
        "hidden_act": "none",
        "quantization_config": {"quant_method": "bitsandbytes"},
        "tie_word_embeddings": "x",
        "torch_dtype": "complex128",
        "architectures": 3,
        "transformers_version": [],
    }
    for name, value in others.items():
        yield Case(f"{name} is {value!r}", _model(_config(**{name: value})), False)
    for name, text in {
        "empty": "",
        "a list": "[]",
        "a number": "3",
        "text": "xx",
        "nested": _DEEP,
        "no UTF-8": "\udcff",
        "NaN": "NaN",
        "10**400": "1" + "0" * 400,
        "{}": "{}",
        "a map that is none": '{"weight_map": []}',
        "a map of numbers": '{"weight_map": {"a": 3}}',
        "an empty map": '{"weight_map": {}}',
        "a map outside": '{"weight_map": {"a": "../../../etc/passwd"}}',
        "an absolute map": '{"weight_map": {"a": "/etc/passwd"}}',
        "a map of no file": '{"weight_map": {"a": "x.safetensors"}}',
        "a null byte": '{"weight_map": {"a": "x\\u0000"}}',
        "a long name": json.dumps({"weight_map": {"a": "x" * 5000}}),
        "half a pair": '{"weight_map": {"a": "\\ud800"}}',
    }.items():
        data = text.encode("utf-8", "surrogateescape")
        yield Case(f"an index: {name}", _model(_index(text) if "\udcff" not in text else _index("\x80")))
        if name not in ("{}", "empty") and "weight_map" not in text:
            yield Case(f"config.json: {name}", _model(_file("config.json", data)))
            yield Case(f"tokenizer.json: {name}", _model(_file("tokenizer.json", data)))
            yield Case(f"tokenizer_config.json: {name}", _model(_file("tokenizer_config.json", data)), name != "{}")
    broken: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "a NaN": lambda weights: weights[_GATE].view(-1).__setitem__(3, torch.nan),
        "an infinity": lambda weights: weights[_NORM].__setitem__(0, -torch.inf),
        "whole numbers": lambda weights: weights.__setitem__(_GATE, weights[_GATE].to(torch.int32)),
        "truths": lambda weights: weights.__setitem__(_GATE, weights[_GATE] > 0),
        "a missing one": lambda weights: weights.pop(_GATE),
        "another shape": lambda weights: weights.__setitem__(_GATE, weights[_GATE][:, :-1].contiguous()),
        "one row": lambda weights: weights.__setitem__(_GATE, weights[_GATE].reshape(-1)),
        "no number at all": lambda weights: weights.__setitem__(_GATE, torch.zeros(0)),
        "one layer more": lambda weights: weights.__setitem__(
            "model.layers.2.mlp.gate_proj.weight", weights[_GATE].clone()
        ),
        "a bias more": lambda weights: weights.__setitem__("model.layers.0.mlp.gate_proj.bias", torch.zeros(64)),
    }
    for name, change in broken.items():
        yield Case(f"weights with {name}", _model(_weights(change)))
        yield Case(f"weights with {name}, by transformers", _model(_both(_weights(change), _DYNAMIC)))
    yield Case("by transformers", _model(_DYNAMIC), False)
    header = (10**15).to_bytes(8, "little")
    for name, data in {"empty": b"", "cut off": b"\x10", "a header of 10**15 bytes": header + b"{}"}.items():
        yield Case(f"weights: {name}", _model(_file("model.safetensors", data)))
    tensors = {"x": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}
    yield Case("weights of 2**80 numbers", _model(_file("model.safetensors", _safetensors(tensors))))
    for name in ("config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json"):
        yield Case(f"{name} is a pipe", _model(_pipe(name)))
        yield Case(f"{name} is a device", _model(_device(name)))
    yield Case("pickles alone", _model(_pickled))
    yield Case("a pickle called safetensors", _model(_file("model.safetensors", b"\x80\x04N.")))
    yield Case("code of its own", _model(_config(model_type="own", auto_map={"AutoConfig": "own.C"})))
    code = '{"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["own.T", null]}}'
    yield Case("a tokenizer with code of its own", _model(_file("tokenizer_config.json", code)))
    for path in ("x" * 5000, "/" + "x" * 300, "x/" * 2500, "a\0b", "~nobody/m", "", "\udcff", "a b/c d", "../" * 2000):
        yield Case(f"a model called {path[:6]!r}... of {len(path)}", _ignoring(load_policy, path))


def _ignoring(read: Callable[..., object], *arguments: str) -> Act:
    """Call a reader that needs no folder."""

    def act(folder: Path) -> None:
        read(*arguments)

    return act


_DYNAMIC = _config(
    rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    rope_scaling={"rope_type": "dynamic", "factor": 2.0},
)
"""What the own model cannot run and transformers can."""


def _both(one: Callable[[Path], object], other: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        one(folder)
        other(folder)

    return damage


def _safetensors(tensors: object) -> bytes:
    header = json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + np.zeros(1, np.float32).tobytes()


def _pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        _make_room(folder, name)
        os.mkfifo(folder / name)

    return damage


def _device(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        _make_room(folder, name)
        (folder / name).symlink_to("/dev/zero")

    return damage


def _make_room(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if name.endswith("index.json"):
        os.rename(folder / "model.safetensors", folder / "model-1.safetensors")


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")


# ---- rows of data


USABLE_ROWS = (
    "a null byte",
    "half a pair in a field",
    "NaN in a field",
    "1e999 in a field",
    "a list for an answer",
    "null for an answer",
    "the same prompt",
)
"""Odd, and passed on as they are."""


def _rows(data: bytes) -> Act:
    def act(folder: Path) -> None:
        (folder / "p.jsonl").write_bytes(data)
        read_prompts(folder / "p.jsonl", Fields(with_rows=True))

    return act


def row_cases() -> Iterator[Case]:
    """Yield JSONL files of prompts with a wrong row, and files that are none."""
    sound = b'{"prompt": "p", "answer": "a"}\n'
    lines: dict[str, bytes] = {
        "a list": b'["q", "a"]',
        "text": b'"q"',
        "null": b"null",
        "a number": b"3",
        "true": b"true",
        "NaN": b"NaN",
        "half a row": b'{"prompt": "q"',
        "two rows in a line": b'{"prompt": "q", "answer": "a"} {"prompt": "r"}',
        "no field": b"{}",
        "no answer": b'{"prompt": "q"}',
        "a number for a prompt": b'{"prompt": 1, "answer": "a"}',
        "a list for an answer": b'{"prompt": "q", "answer": ["a"]}',
        "null for an answer": b'{"prompt": "q", "answer": null}',
        "an empty prompt": b'{"prompt": "  ", "answer": "a"}',
        "the same prompt": sound.strip(),
        "a field twice": b'{"prompt": "q", "prompt": "r", "answer": "a"}',
        "nested": _DEEP.encode(),
        "nested in a field": b'{"prompt": "q", "answer": "a", "x": ' + _DEEP.encode() + b"}",
        "5,000 digits": b'{"prompt": "q", "answer": "a", "x": ' + b"9" * 5000 + b"}",
        "half a pair": b'{"prompt": "\\ud800", "answer": "a"}',
        "no UTF-8": b'{"prompt": "\xff", "answer": "a"}',
        "UTF-16": '{"prompt": "q", "answer": "a"}'.encode("utf-16"),
        "noise": bytes(range(256)),
        "a null byte": b'{"prompt": "q\\u0000", "answer": "a"}',
        "half a pair in a field": b'{"prompt": "q", "answer": "a", "x": "\\ud800"}',
        "a comma at the end": b'{"prompt": "q", "answer": "a",}',
        "single quotes": b"{'prompt': 'q', 'answer': 'a'}",
        "NaN in a field": b'{"prompt": "q", "answer": "a", "x": NaN}',
        "1e999 in a field": b'{"prompt": "q", "answer": "a", "x": 1e999}',
    }
    for name, line in lines.items():
        yield Case(f"a row: {name}", _rows(sound + line + b"\n"), name not in USABLE_ROWS)
    yield Case("no row", _rows(b""))
    yield Case("blank rows", _rows(b"\n \n"))
    yield Case("a row of 20 MB", _rows(sound + b'{"prompt": "' + b"x" * 20_000_000 + b'", "answer": "a"}'), False)
    odd: dict[str, Callable[[Path], object]] = {"a pipe": os.mkfifo, "a folder": Path.mkdir}
    for name, make in odd.items():
        yield Case(f"prompts from {name}", _rows_at(make))
    yield Case("prompts from a device", _rows_at(lambda path: path.symlink_to("/dev/zero")))
    for path in ("x" * 5000, "a\0b", "~nobody/x", "", "x/" * 2500):
        yield Case(f"prompts from {path[:6]!r}... of {len(path)}", _ignoring(read_prompts, path))
    for reward in (
        "nothing",
        "os:",
        ":x",
        "os.path:join",
        "no_such:fn",
        "a" * 5000 + ":b",
        "os:name",
        "..:x",
        "a\0b:c",
    ):
        yield Case(f"a reward called {reward[:10]!r}", _task(reward))


def _rows_at(make: Callable[[Path], object]) -> Act:
    """Prompts from a path at which something else is."""

    def act(folder: Path) -> None:
        make(folder / "p.jsonl")
        read_prompts(folder / "p.jsonl")

    return act


def _task(reward: str) -> Act:
    def act(folder: Path) -> None:
        (folder / "p.jsonl").write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "q", "answer": "a"}\n')
        JsonlTask(folder / "p.jsonl", reward)

    return act


# ---- what is valid can be run

_SHORTEST = """
task: {type: sorting}
model: {type: sorting}
steps: 1
rollout_batch_size: 8
group_size: 4
evaluation: {prompts: 3, examples: 1}
trackers: [jsonl]
save_policy: false
profile: "off"
"""
AT_THEIR_BOUNDS = (
    "seed=4294967295",
    "description='\u0130\u202e\U0001f600'",
    "reward_target=-1e30",
    "evaluation.every=1000000000",
    "optimizer.learning_rate=0",
    "optimizer.learning_rate=1e30",
    "optimizer.weight_decay=1e30",
    "optimizer.max_grad_norm=1e-30",
    "optimizer.max_grad_norm=1e30",
    "optimizer.warmup_steps=1000000000",
    "sampling.temperature=1e-30",
    "sampling.temperature=1e30",
    "sampling.top_p=1e-300",
    "advantage.eps=1e-30",
    "advantage.eps=1e30",
    "loss.kl.coefficient=1e30",
    "loss.entropy_coefficient=1e30",
    "loss.cliprange_high=1e30",
    "loss.dual_clip=1e30",
    "loss.cliprange=0",
    "faults.stall_after_s=1000000",
    "faults.stall_after_s=1e-9",
    "faults.max_replacements=1000000000",
    "checkpoint={every: 1000000000, keep: 1000000000}",
    "replay={capacity: 1000000000, max_age: 1000000000}",
    "placement.generator.cpus=1e30",
)


def valid_run_cases() -> Iterator[Case]:
    """Yield runs of one training step with a setting at its bound: each ends, and its folder can be read."""
    for override in AT_THEIR_BOUNDS:
        yield Case(override, _run(override), False, 20.0)


def _run(override: str) -> Act:
    def act(folder: Path) -> None:
        (folder / "s.yaml").write_text(_SHORTEST)
        check_usable(load_scenario(folder / "s.yaml", [override]), folder)
        command = ["run", str(folder / "s.yaml"), "--set", override, "--out", str(folder / "out"), "--quiet"]
        code, said = quietly(lambda: main(command))
        if "Traceback" in said:
            raise RuntimeError(said[-2000:])
        for manifest in (folder / "out").rglob("manifest.json"):
            read_everything(manifest.parent)
        if code:
            raise UserError(said.strip()[:1000] or f"exit code {code}")

    return act


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "scenarios and flags, crafted": scenario_cases,
    "run folders, crafted": run_folder_cases,
    "models, crafted": model_cases,
    "prompts and rewards, crafted": row_cases,
    "runs at the bounds of what is valid, crafted": valid_run_cases,
}
