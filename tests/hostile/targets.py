"""The readers of files that others may have written: each takes the bytes of one file, in a folder of its own."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness.compare.experiment import member_of
from harness.core import checkpoints
from harness.core.errors import UserError
from harness.evaluate.record import read_evaluation
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.storage import load_policy, save_policy
from harness.models.tokenizer import train_tokenizer
from harness.report.trace.tracks import run_tracks
from harness.results import load_run
from harness.results.counters import read_counters
from harness.results.experiment_plan import read_plan
from harness.results.frames import table_of
from harness.results.import_command import write_experiment
from harness.results.importers.convert import convert
from harness.results.importers.logs import read_log
from harness.results.importers.trainers import CROSSWALKS
from harness.results.reader import parse_settings
from harness.run.memory.check import memory_table
from harness.run.memory.shape import read_shape
from harness.scenario.axes import expand
from harness.scenario.lanes import all_lanes
from harness.scenario.load import load_scenario, resolved_yaml
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.scenario.tree import parse_yaml
from harness.simulate.machine import load_machine
from harness.tasks.maths.reward import question_only_reward_fn, r1_zero_reward_fn
from harness.tasks.maths.symbolic import AnswerGrader
from harness.tasks.rows import Fields, read_prompts
from tests.hostile.documents import IMPOSSIBLE
from tests.hostile.outcome import Silent

ROOT = Path(__file__).parents[2]
SOUND_RUN = ROOT / "results/reference/sync_k1-vs-sync_k2/20261125-205319/sync_k1,block=0"
TRL_LOG = ROOT / "tests/data/importers/trl_1.16_trainer_state.json"
ROW_FILES = ("steps.jsonl", "spans.jsonl", "counters.jsonl")
NOT_OURS = ("400 digits", "5000 digits", "nested 100000 deep")
"""What none of our writers writes; texts of rows may hold anything."""
Document = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        read: takes the bytes and an empty folder.
        documents: sound JSON objects, at whose places values are put.
        sound: sound files, to be damaged anywhere.
        limit_s: CPU seconds that one file may take.
        impossible: values that must be refused at every place of the documents.
    """

    read: Callable[[bytes, Path], None]
    documents: Mapping[str, Document]
    sound: tuple[bytes, ...]
    limit_s: float = 10.0
    impossible: tuple[str, ...] = ()

    @property
    def drawn_from(self) -> tuple[bytes, ...]:
        """Sound files, those of the documents among them."""
        return (*self.sound, *(json.dumps(document).encode() for document in self.documents.values()))


def targets() -> dict[str, Target]:
    """Return every reader by its name."""
    machine = (ROOT / "profiles/machines/h100-sxm.yaml").read_text(encoding="utf-8")
    return {
        "scenario": Target(read_scenario, _scenarios(), tuple(_shipped()), 1.0, tuple(IMPOSSIBLE)),
        "set": Target(read_setting, {}, (b"steps=3", b"sampling={stop: [a]}", b"sweep.seed=[1, 2]"), 1.0),
        "machine": Target(
            _file("m.yaml", load_machine), {"machine": parse_yaml(machine, "m.yaml")}, (machine.encode(),)
        ),
        **{name: target for file in ROW_FILES for name, target in _row_targets(file)},
        "manifest.json": _run_target("manifest.json", _json("manifest.json")),
        "scenario.resolved.yaml": _run_target("scenario.resolved.yaml", {}),
        "rollouts.jsonl": _added_target("rollouts.jsonl", _ROLLOUT),
        "groups.jsonl": _added_target("groups.jsonl", _SHARD, _DISCARDED, _BATCH),
        "experiment.json": Target(
            _inside("experiment.json", read_plan), {"plan": _PLAN}, (json.dumps(_PLAN).encode(),)
        ),
        "prompts": Target(_file("p.jsonl", _prompts), {"row": _PROMPT}, (json.dumps(_PROMPT).encode(),)),
        "trainer_state.json": Target(_file("log.json", import_log), {"log": _trl()}, (TRL_LOG.read_bytes(),)),
        "verl.jsonl": Target(_file("log.jsonl", import_log), {"row": _VERL}, (json.dumps(_VERL).encode(),)),
        "events": Target(_file("events.out.tfevents.1", read_log), {}, (_event_file(),)),
        "checkpoint manifest": Target(read_checkpoint, {"manifest": _CHECKPOINT}, (json.dumps(_CHECKPOINT).encode(),)),
        "evaluation.json": Target(_inside("evaluation.json", read_evaluation), {"facts": _EVALUATION}, ()),
        "config.json": Target(_inside("config.json", _shape), {"config": _CONFIG}, ()),
        **{name: Target(_model(file), found, sound) for name, file, found, sound in _models()},
        "grader": Target(grade, {}, (rb"</think> <answer> \frac{1}{2} </answer>", rb"\boxed{x^2+1}"), 20.0),
    }


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    """Return what reads the bytes as a file of this name."""

    def reads(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        read(folder / name)

    return reads


def _inside(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    """Return what reads the folder with a file of this name."""

    def reads(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        read(folder)

    return reads


# ---- scenarios


def read_scenario(data: bytes, folder: Path) -> None:
    """Load a scenario file, and do with it what a run does before it starts."""
    (folder / "s.yaml").write_bytes(data)
    check_usable(load_scenario(folder / "s.yaml"), folder)


def read_setting(data: bytes, folder: Path) -> None:
    """Load a sound scenario with a ``--set``, as bytes of a command line."""
    check_usable(load_scenario("quickstart", [os.fsdecode(data)]), folder)


def check_usable(scenario: Scenario, folder: Path) -> None:
    """Check that what was called valid can be planned, written down and read back.

    Raises:
        Silent: it cannot.
    """
    for variant in expand(scenario)[:2]:
        text = resolved_yaml(variant.scenario)
        try:
            settings = parse_settings(text)
        except ValueError as error:
            raise Silent(f"it is valid, and the readers of results refuse it: {error}") from error
        if settings.get("steps") != variant.scenario.steps:
            raise Silent(f"it is valid, and reads back as {settings}")
        (folder / "again.yaml").write_text(text, encoding="utf-8")
        if load_scenario(folder / "again.yaml") != variant.scenario:
            raise Silent("it is valid, and loads again as another one")
        if len(variant.name.encode()) > 255:
            raise Silent(f"it is valid, and its folder's name has {len(variant.name.encode())} bytes")
        if variant.scenario.transport_sweep is None:
            loop_plan(variant.scenario, 10**6, 10**6)
        all_lanes(variant.scenario)
        memory_table(variant.scenario, has_gpu=False)


def _scenarios() -> dict[str, Document]:
    """Return scenarios that have, together, every section of every type."""
    changes: dict[str, Document] = {
        "usual": {},
        "folder": {
            "task": {"type": "jsonl", "train": "p.jsonl", "reward": [{"function": "a:b", "name": "c"}]},
            "model": {"type": "folder", "path": "m"},
            "engine": {"type": "vllm", "context": 64, "kv_cache_gib": 1.0},
            "transport": {"type": "broadcast"},
        },
        "maths": {
            "task": {"type": "maths", "train": "p.jsonl"},
            "model": {"preset": "maths"},
            "transport": {"type": "nixl"},
            "loss": {"importance": {"mode": "tis"}},
        },
        "sweep": {
            "model": {"type": "paced"},
            "engine": {"type": "paced"},
            "transport_sweep": {"transports": ["disk"], "megabytes": [1.0]},
        },
        "arms": {"arms": {"a": {"steps": 1}, "b": {"loss.type": "naive"}}, "sweep": {"seed": [0, 1]}},
    }
    seen: set[str] = set()
    found = {}
    for name, change in changes.items():
        scenario = Scenario.model_validate({"name": "s", **change})
        whole = scenario.model_dump(mode="json")
        kept = {key: value for key, value in whole.items() if name == "usual" or key in change}
        seen |= kept.keys()
        found[name] = kept
    return found


def _shipped() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "scenarios").glob("*.yaml"))]


# ---- run folders


def read_everything(folder: Path) -> None:
    """Read a run's folder as compare, report and trace do, but for their text.

    Raises:
        UserError: a file of it is damaged.
    """
    run = load_run(folder)
    _ = run.settings, run.ledger, run.replaced, run.version_changes
    run.rollouts(), run.groups(), run.discarded(), read_counters(folder)
    table = table_of(run)
    member_of(table)
    run_tracks(table)


def copy_of_sound_run(folder: Path) -> Path:
    """Return a new copy of a sound run."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(SOUND_RUN, run)
    return run


def _run_target(name: str, documents: Mapping[str, Document]) -> Target:
    def reads(data: bytes, folder: Path) -> None:
        run = copy_of_sound_run(folder)
        (run / name).write_bytes(data)
        read_everything(run)

    return Target(reads, documents, ((SOUND_RUN / name).read_bytes(),), impossible=(*NOT_OURS, "half a pair"))


def _row_targets(name: str) -> Iterator[tuple[str, Target]]:
    """Yield the file as a whole, and of each kind its first row, in the place of which a damaged one stands."""
    lines = (SOUND_RUN / name).read_bytes().splitlines(keepends=True)
    yield name, _run_target(name, {})
    seen: set[str] = set()
    for number, line in enumerate(lines):
        kind = json.loads(line).get("kind", "row")
        if kind not in seen:
            seen.add(kind)
            yield f"{name} {kind}", _one_row(name, lines, number)


def _one_row(name: str, lines: Sequence[bytes], number: int) -> Target:
    def reads(data: bytes, folder: Path) -> None:
        run = copy_of_sound_run(folder)
        (run / name).write_bytes(b"".join([*lines[:number], data + b"\n", *lines[number + 1 :]]))
        read_everything(run)

    return Target(reads, {"row": json.loads(lines[number])}, (), impossible=NOT_OURS)


def _added_target(name: str, *rows: Document) -> Target:
    """Of a file that the sound run lacks: a header and one row."""
    stem = name.removesuffix(".jsonl")
    header = json.dumps({"kind": "header", "schema": f"harness.{stem}", "schema_version": 1}).encode() + b"\n"

    def reads(data: bytes, folder: Path) -> None:
        run = copy_of_sound_run(folder)
        (run / name).write_bytes(header + data + b"\n")
        read_everything(run)

    return Target(reads, {str(row["kind"]): row for row in rows}, (), impossible=NOT_OURS)


def _json(name: str) -> dict[str, Document]:
    return {"file": json.loads((SOUND_RUN / name).read_bytes())}


_ROLLOUT: Document = {
    "kind": "rollout", "purpose": "train", "version": 1, "prompt": "p", "response": "r", "ground_truth": "g",
    "reward": 1.0, "num_tokens": 3, "finish_reason": "stop", "step": 1, "advantage": 0.5, "log_probs": [-0.1],
}  # fmt: skip
_COLUMNS: Document = {"prompt_ids": [1], "versions": [[0, 1]], "lengths": [[3, 4]], "rewards": [[0.0, 1.0]]}
_SHARD: Document = {
    "kind": "shard", "purpose": "train", "step": 0, "shard": 0, **_COLUMNS, "prompt_tokens": [5], "failed_groups": 0,
}  # fmt: skip
_DISCARDED: Document = {"kind": "discarded", "step": 0, "shard": 0, **_COLUMNS, "attempts": [1]}
_BATCH: Document = {"kind": "batch", "step": 0, "groups": [[0, 1]]}
_PLAN: Document = {
    "schema": "harness.experiment", "schema_version": 1, "enough_after": None,
    "runs": [{"folder": "a", "variant": "a", "block": 0}],
}  # fmt: skip


# ---- what other programs wrote

_PROMPT: Document = {"prompt": "What is 1 + 1?", "answer": "2", "note": {"level": 3}}
_VERL: Document = {"step": 1, "data": {"timing_s/step": 2.0, "critic/rewards/mean": 0.5, "actor/pg_loss": 0.1}}
_EVALUATION: Document = {"schema": "harness.evaluation", "schema_version": 1, "settings": {"model": "m"}, "results": {}}
_CHECKPOINT: Document = {
    "format": 1, "step": 1, "files": {"state": {"bytes": 4, "checksum": "xxh3_128:0"}}, "checksum": "xxh3_128:0",
}  # fmt: skip
_CONFIG: Document = {
    "model_type": "llama", "vocab_size": 260, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def _trl() -> Document:
    """Return TRL's log with two of its records."""
    whole: Document = json.loads(TRL_LOG.read_bytes())
    return {"log_history": whole["log_history"][:2], "global_step": whole.get("global_step", 2)}


def import_log(path: Path) -> None:
    """Import a log as each trainer's that it may be; what one refuses another may take."""
    refused: UserError | None = None
    for trainer in CROSSWALKS:
        try:
            done = convert(read_log(path), trainer, str(path))
            folder = write_experiment({None: done}, path.parent / trainer, trainer)
        except UserError as error:
            refused = error
            continue
        try:
            return read_everything(folder)
        except UserError as error:
            raise Silent(f"it was imported into a run that cannot be read: {error}") from error
    if refused is not None:
        raise refused


def _shape(folder: Path) -> None:
    shape = read_shape(folder)
    if shape is None:
        raise UserError("no shape that a plan knows")
    if not 0 < shape.num_parameters < 2**100 or shape.key_values_per_token <= 0:
        raise Silent(f"a model of {shape}")


_INDEX = "model.safetensors.index.json"


@cache
def _sound_model() -> Path:
    """Return a folder with a model of two small layers that loads."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-model-"))
    atexit.register(shutil.rmtree, folder)
    shape = replace(PRESETS["tiny"], vocab_size=260, hidden_size=32, intermediate_size=64, head_dim=8)
    save_policy(DecoderLM(shape, seed=0), train_tokenizer(["a red apple"], 260), folder)
    return folder


def _models() -> Iterator[tuple[str, str, dict[str, Document], tuple[bytes, ...]]]:
    """Yield what each file of a model's folder is damaged from; weights in several files have an index."""
    folder, index = _sound_model(), {"weight_map": {"model.norm.weight": "model-1.safetensors"}}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors"):
        data = (folder / name).read_bytes()
        yield f"model's {name}", name, {"file": json.loads(data)} if "config" in name else {}, (data,)
    yield "model's index", _INDEX, {"index": index}, ()


def _model(name: str) -> Callable[[bytes, Path], None]:
    def reads(data: bytes, folder: Path) -> None:
        shutil.copytree(_sound_model(), folder / "m")
        (folder / "m" / name).write_bytes(data)
        if name == _INDEX:
            os.rename(folder / "m/model.safetensors", folder / "m/model-1.safetensors")
        load_policy(folder / "m")

    return reads


def _event_file() -> bytes:
    from tests.event_files import encode_scalars, encode_start

    return encode_start(1.0) + encode_scalars({"loss": 0.5}, 1, 2.0) + encode_scalars({"loss": 0.4}, 2, 3.0)


def _prompts(path: Path) -> None:
    for prompt in read_prompts(path, Fields(with_rows=True)).prompts:
        if not isinstance(prompt.text, str) or not isinstance(prompt.ground_truth, str):
            raise Silent(f"a prompt is {prompt}")
        prompt.text.encode()


def read_checkpoint(data: bytes, folder: Path) -> None:
    """Look for the newest checkpoint where the only one has this manifest; one that is whole was made by magic."""
    whole = folder / "checkpoints" / "step_1"
    whole.mkdir(parents=True, exist_ok=True)
    (whole / checkpoints.MANIFEST).write_bytes(data)
    (whole / "state").write_bytes(b"abcd")
    (folder / "checkpoints" / checkpoints.LATEST).write_bytes(data)
    found, refused = checkpoints.newest_whole(folder / "checkpoints")
    if found is not None:
        raise Silent(f"a checkpoint with a wrong checksum was taken: {found}")
    raise UserError(str(refused[-1]))


# ---- the grader


@cache
def _grader() -> AnswerGrader:
    return AnswerGrader(0.5)


def grade(data: bytes, folder: Path) -> None:
    """Grade a response, as bytes that may be no UTF-8."""
    try:
        response = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        response = data.decode("utf-8", "replace")
    for function in (r1_zero_reward_fn, question_only_reward_fn):
        rewards = function(response, "1/2", agree=_grader())
        if not set(rewards.values()) <= {0.0, 1.0}:
            raise Silent(f"the rewards are {rewards}")


def quietly(act: Callable[[], int]) -> tuple[int, str]:
    """Return a command's exit code, and what it printed on standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = act()
    return code, said.getvalue()
