"""The manifest of a run: what ran, with which code, on what kind of machine, and how it ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Any, Required, TypedDict

import msgspec
from msgspec import Meta

from harness.results.anonymous import Scrubber, change_strings
from harness.results.jsonl import Free, check_schema, decode_json
from harness.results.rows import MOST_SECONDS, SCHEMA_VERSION, Whole

SCHEMA = "harness.manifest"
STATUSES = ("running", "completed", "interrupted", "failed")

TRAIN_PROMPTS, VALIDATION_PROMPTS, PROMPT_TEMPLATE = "train_prompts", "validation_prompts", "prompt_template"
TOKENIZER, CHAT_TEMPLATE, MODEL_CONFIG, START_WEIGHTS = "tokenizer", "chat_template", "model_config", "start_weights"
MADE_OF = TRAIN_PROMPTS, VALIDATION_PROMPTS, PROMPT_TEMPLATE, TOKENIZER, CHAT_TEMPLATE, MODEL_CONFIG, START_WEIGHTS
"""Names of inputs; the user's own files go by the settings that name them."""
CHAT_DATE = "chat_date"
"""The date that a chat template has written into the prompts, where it writes one."""
COMPUTE_NOTHING = "trackers", "profile"
"""Begin the names of inputs that no figure of a policy depends on."""
_Number = Annotated[float, Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]


# what is read of ``machine`` and ``outcome``, which are free in form else
_Machine = msgspec.defstruct("_Machine", [("cores", Whole | None, None), ("missing", dict[str, Any] | None, None)])
_Imported = msgspec.defstruct("_Imported", [("steps_per_row", Whole | None, None)])
_Outcome = msgspec.defstruct("_Outcome", [("replaced", dict[str, Whole], {}), ("imported", _Imported, None)])


class Input(TypedDict, total=False):
    """Something that a run is made of, with the SHA-256 of its content; None where there is no file."""

    sha256: Required[str | None]
    name: str | None
    rows: Whole
    text: str


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A run that goes on from a checkpoint, from there to where it ends or is stopped again.

    Attributes:
        start_step: training steps that were done.
        elapsed_s: of the loop before it.
        startup_s: of its own start, which is in no other figure.
        ranks: of the Learner; None in older runs.
        was: settings by dotted key that are others from here on, with their former values.
        failed: why the run had failed before it.
        cause: ``resumed`` by its user; ``learner died`` where the release before restarted it in the same process.
        thrown_away: rollouts that were sampled after the checkpoint; None where the process that knew has ended.
    """

    start_step: Whole
    started_at: str
    elapsed_s: _Number
    startup_s: _Number
    commit: str | None = None
    dirty: bool | None = None
    ranks: Whole | None = None
    was: dict[str, Free] = field(default_factory=dict)
    failed: str | None = None
    cause: str = "resumed"
    thrown_away: Whole | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One run's facts; older runs lack some. Names no host, no user and no absolute path. Times are UTC, ISO 8601.

    Attributes:
        point: the sweep's values of this run by dotted key, ``seed`` among them.
        experiment: when the command started that made this run and its siblings: ``YYYYmmdd-HHMMSS``.
        status: one of ``STATUSES``.
        startup_s: from the start of the run to the start of its loop.
        interleaving: how the arms of the experiment took turns: by ``step``, by ``run``, or None for a single run.
        position: of the run in the order of the scenario, in which arms are shown.
        block: number of the block, in which every arm runs once.
        profile: name of the probe profile.
        machine: from ``harness.probes.provenance.machine_facts``.
        dirty: whether tracked files differed from ``commit``; None where there is no repository.
        parameters: number of the policy's parameters.
        end_tokens: the tokens that end a response, by id with their texts.
        inputs: what the run is made of and is no setting: ``MADE_OF``, and the user's own files by the setting that
            names each.
        segments: where the run went on from a checkpoint, in order.
        simulated: name of the machine profile by which the run was simulated; None in a run that took place.
        outcome: figures of the finished run, free in form.
    """

    scenario: str
    experiment: str
    started_at: str
    arm: str | None = None
    point: dict[str, Free] = field(default_factory=dict)
    status: str = "running"
    error: str | None = None
    finished_at: str | None = None
    duration_s: _Number | None = None
    startup_s: _Number | None = None
    seed: Whole = 0
    interleaving: str | None = None
    position: Whole | None = None
    block: Whole | None = None
    profile: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    machine: dict[str, Free] = field(default_factory=dict)
    threads: Whole | None = None
    commit: str | None = None
    dirty: bool | None = None
    parameters: Whole | None = None
    end_tokens: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    simulated: str | None = None
    outcome: dict[str, Free] = field(default_factory=dict)

    @property
    def newest_start(self) -> tuple[float, str]:
        """Seconds of the loop before the run was last started, and when that was."""
        starts = [(0.0, self.started_at), *((each.elapsed_s, each.started_at) for each in self.segments)]
        return starts[-1]

    def to_json(self, scrubber: Scrubber) -> dict[str, Any]:
        """Return the JSON object, free of names and absolute paths."""
        saved = asdict(self)
        saved["point"] = change_strings(self.point, scrubber.paths)
        saved |= {key: change_strings(saved[key], scrubber.text) for key in ("error", "outcome", "inputs")}
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION} | saved

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Read a manifest file's content, that of older ones too.

        Raises:
            ValueError, RecursionError: it is no manifest, or a field is missing or of the wrong type.
            UserError: it is of an unknown version.
        """
        check_schema(content, SCHEMA, where)
        data: dict[str, Any] = decode_json(content, dict[str, Any])
        json.dumps(data, ensure_ascii=False).encode()  # no half of a surrogate pair, which cannot be printed
        template = {PROMPT_TEMPLATE: data["prompt_template"]} if data.get("prompt_template") else {}
        data = {"experiment": data.get("campaign"), "inputs": {**data.get("functions", {}), **template}} | data
        manifest = msgspec.convert(data, cls)
        msgspec.convert(manifest.machine, _Machine)
        msgspec.convert(manifest.outcome, _Outcome)
        if datetime.fromisoformat(manifest.started_at).tzinfo is None:
            raise ValueError(f"started_at {manifest.started_at!r} has no time zone")
        if manifest.status not in STATUSES:
            raise ValueError(f"unknown status {manifest.status!r}; one of {', '.join(STATUSES)}")
        return manifest
