"""What a run is made of and is no setting: prompts, templates, tokenizer, start weights and plugins.

One record has a SHA-256 of each, see ``Manifest``. It is taken when a run begins and stands in its manifest and its
checkpoints; a resume takes it again, before anything large is loaded, and is refused where something is another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import UserError
from harness.core.protocols import Task
from harness.core.types import Prompt
from harness.results.anonymous import Scrubber
from harness.results.manifest import (
    CHAT_DATE,
    CHAT_TEMPLATE,
    COMPUTE_NOTHING,
    MODEL_CONFIG,
    PROMPT_TEMPLATE,
    START_WEIGHTS,
    TOKENIZER,
    TRAIN_PROMPTS,
    VALIDATION_PROMPTS,
    Input,
    Manifest,
)
from harness.results.reader import read_manifest
from harness.results.writer import MANIFEST, POLICIES
from harness.run.plugins import plugin_digests
from harness.scenario.schema import Scenario
from harness.settings.model import FolderModelSettings, PresetModelSettings
from harness.settings.task import ArithmeticTaskSettings, MathsTaskSettings
from harness.tasks.arithmetic import PROMPT
from harness.tasks.make import make_task
from harness.tasks.maths.prompts import prompt_template

if TYPE_CHECKING:
    from harness.run.policy import Policy

Inputs = dict[str, Input]
PATHS = "task.train", "task.validation", "task.prompt", "model.path"
"""Settings that only say where inputs are: they may be others where the inputs are the same."""
FREE = *COMPUTE_NOTHING, CHAT_DATE
"""Inputs that may be others: trackers and probes compute nothing of the policy, and a resumed run has its own date."""
UNKNOWN = "it was begun before inputs were recorded, so that its data and model could not be compared with those of now"


def named_inputs(scenario: Scenario) -> Inputs:
    """Return what a scenario names by files that are small: the plugins, and the prompt template of maths."""
    inputs: Inputs = {}
    task = scenario.task
    if isinstance(task, MathsTaskSettings | ArithmeticTaskSettings):
        with suppress(UserError):  # a run that failed for want of that file has none
            template = prompt_template(task.prompt if isinstance(task, MathsTaskSettings) else PROMPT)
            name = Scrubber.of_this_process().paths(template.name)
            inputs[PROMPT_TEMPLATE] = {"name": name, "sha256": template.sha256, "text": template.text}
    for key, function in plugin_digests(scenario).items():
        inputs[key] = {"name": function["name"], "sha256": function["sha256"]}
    return inputs


def inputs_of(scenario: Scenario, task: Task, policy: Policy) -> Inputs:
    """Return the inputs of a run that begins.

    Args:
        scenario: of the run.
        task: its prompts, as loaded.
        policy: as training begins with it; on ``meta`` without weights, whose files are then looked at.

    Raises:
        UserError: a file of the model cannot be read.
    """
    inputs = _without_weights(scenario, task, policy.tokenizer)
    if isinstance(scenario.model, FolderModelSettings):
        return inputs | _of_folder(scenario.model.path)
    weights = policy.model.state_dict() if isinstance(scenario.model, PresetModelSettings) and policy.model else {}
    if weights and not any(tensor.is_meta for tensor in weights.values()):
        from harness.transports.checksum import checksum

        inputs[START_WEIGHTS] = {"sha256": _sha256(checksum({name: each.cpu() for name, each in weights.items()}))}
    return inputs


class InputsNow:
    """What runs of one command that begin now would have; what several of them share is read once."""

    def __init__(self) -> None:
        self._known: dict[str, Inputs] = {}

    def of(self, scenario: Scenario) -> Inputs:
        """Return the inputs of one, as far as they can be had without loading a model.

        The tokenizer and the weights of presets are left out: settings decide what they are.

        Raises:
            UserError: the task cannot be made, or a file of the model cannot be read.
        """
        key = scenario.task.model_dump_json() + scenario.model.model_dump_json()
        if key not in self._known:
            task, tokenizer, of_folder = make_task(scenario.task), None, Inputs()
            if isinstance(scenario.model, FolderModelSettings):
                from harness.models.storage import load_tokenizer

                tokenizer, of_folder = load_tokenizer(scenario.model.path), _of_folder(scenario.model.path)
            self._known[key] = _without_weights(scenario, task, tokenizer) | of_folder
        return self._known[key] | named_inputs(scenario)


def is_whole(recorded: Mapping[str, Input]) -> bool:
    """Whether a run has recorded its inputs: runs of before that have their functions and prompt templates alone."""
    return TRAIN_PROMPTS in recorded


def check_inputs(
    recorded: Mapping[str, Input], now: InputsNow, scenario: Scenario, folder: Path, anew: str = "start a new run"
) -> None:
    """Refuse to go on with a run whose inputs are others now.

    Args:
        recorded: as the run or its checkpoint has them; what it lacks is not compared.
        now: has those of now.
        scenario: with which it goes on.
        folder: of the run.
        anew: how to begin without what there is.

    Raises:
        UserError: naming what differs, with both digests, and of prompts with both numbers of rows; or the inputs of
            now cannot be read.
    """
    found = now.of(scenario) if is_whole(recorded) else named_inputs(scenario)
    differing = [
        name
        for name, was in recorded.items()
        if name in found and not name.startswith(FREE) and was["sha256"] not in (None, found[name]["sha256"])
    ]
    if differing:
        told = "; ".join(f"{_described(name, recorded[name], found[name])}" for name in differing)
        raise UserError(f"the run began with other inputs: {told}", str(folder), _fix(folder, anew))


def _fix(folder: Path, anew: str) -> str:
    kept = kept_policies(folder)[-1:]
    learnt = [
        f"; one that begins with what was learnt: --set model.type=folder --set model.path={folder / each}"
        for each in kept
    ]
    return "".join([f"restore them as they were, or {anew}", *learnt])


def kept_policies(run: Path) -> tuple[str, ...]:
    """Return the policies that were kept on the way, oldest first, as they are called in the folder of a run."""
    found = (run / POLICIES).glob("step_*")
    return tuple(str(path.relative_to(run)) for path in sorted(found, key=lambda path: int(path.name.split("_")[1])))


def _described(name: str, was: Input, now: Input) -> str:
    rows = [f" ({each['rows']} rows)" if "rows" in each else "" for each in (was, now)]
    of = f", {now['name']}" if now.get("name") else ""
    return f"{name}{of}, whose SHA-256 was {was['sha256']}{rows[0]} and is now {now['sha256']}{rows[1]}"


def date_of(records: Iterable[Mapping[str, Input]]) -> date | None:
    """Return the date that the chat templates of a run have written, of the first of these that has recorded one."""
    return next((date.fromisoformat(str(each[CHAT_DATE]["name"])) for each in records if CHAT_DATE in each), None)


def date_of_run(manifest: Manifest) -> date:
    """Return the date that the chat template of a run writes: the one recorded, else that of its start."""
    return date_of([manifest.inputs]) or datetime.fromisoformat(manifest.started_at).date()


def date_of_runs(experiment: Path | None) -> date | None:
    """Return the date that the runs of an experiment have written, so that those to come write it too."""
    records = list[Mapping[str, Input]]()
    for path in sorted(experiment.glob(f"*/{MANIFEST}")) if experiment is not None else ():
        with suppress(UserError):
            records.append(read_manifest(path.parent).inputs)
    return date_of(records)


def _without_weights(scenario: Scenario, task: Task, tokenizer: Any) -> Inputs:
    inputs: Inputs = {
        TRAIN_PROMPTS: _of_prompts(task.train_prompts),
        VALIDATION_PROMPTS: _of_prompts(task.validation_prompts),
    }
    if tokenizer is not None:
        from harness.models.chat import asks_date, template_digest, today
        from harness.models.tokenizer import tokenizer_digest

        inputs[TOKENIZER] = {"sha256": tokenizer_digest(tokenizer)}
        if getattr(scenario.task, "chat_template", False):
            task_settings: Any = scenario.task
            written = template_digest(tokenizer, task_settings.system_prompt, task_settings.chat_template_kwargs)
            inputs[CHAT_TEMPLATE] = {"sha256": written}
            if asks_date(tokenizer):
                inputs[CHAT_DATE] = {"name": today().isoformat(), "sha256": _sha256(today().isoformat())}
    return inputs | named_inputs(scenario)


def _of_prompts(prompts: Sequence[Prompt]) -> Input:
    """Digest prompts in their order: what is asked, the right answer, and the row that reward functions see."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(_as_json([prompt.asked, prompt.ground_truth, prompt.row]).encode() + b"\n")
    return {"sha256": digest.hexdigest(), "rows": len(prompts)}


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, default=_plain)
    except (TypeError, ValueError):  # a dict with keys that JSON does not know, or that cannot be ordered
        return json.dumps(value, default=_plain, skipkeys=True)


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON does not know: the type's name where nothing better is known."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # of NumPy or torch
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return type(value).__qualname__


def _of_folder(path: str) -> Inputs:
    from harness.models.storage import stored_config, weight_files_state

    return {
        MODEL_CONFIG: {"sha256": _sha256(_as_json(stored_config(path)))},
        START_WEIGHTS: {"sha256": _of_weights(path, weight_files_state(path))},
    }


@cache
def _of_weights(path: str, state: tuple[tuple[str, int, int], ...]) -> str:
    """Read the weights once: about as fast as the disk gives them. How they are cut into files is no part of it."""
    from harness.models.storage import stored_tensors
    from harness.transports.checksum import checksum

    return _sha256(checksum(stored_tensors(path)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
