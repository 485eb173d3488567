"""The files of an evaluation: written batch by batch, taken up again where a kill left them.

    evaluation.json    settings, versions, machine; at the end the results
    responses.jsonl    a line for each prompt, in order
    batches.jsonl      a line for each batch, written when all of its prompts' lines are on disk

A batch counts once its line stands in ``batches.jsonl`` and all its prompts in ``responses.jsonl``. Whatever lies
behind the last batch that counts, a line cut in the middle included, is dropped and done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.file_locks import holding
from harness.results.jsonl import read_json
from harness.results.writer import AppendOnly, writing
from harness.tasks.rewards import PARTS

EVALUATION, RESPONSES, BATCHES = "evaluation.json", "responses.jsonl", "batches.jsonl"
SCHEMA, SCHEMA_VERSION = "harness.evaluation", 1
_OTHER_FOLDER = "give another folder with --out"


class EvaluationSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that decides which responses are sampled and how they are graded.

    ``model`` is a name without folders; what it is follows from three checksums (``weights``, ``config``,
    ``tokenizer``), and what was asked and through what from those of data, prompt and chat template. ``batch`` is among
    them, since rounding depends on what is computed together. What has a default came later, and is left out of the
    file where it is that, as in the records of before.
    """

    model: str
    weights: str
    config: str
    tokenizer: str
    data: str
    data_sha256: str | None
    prompts: int
    task: str
    reward: str | None
    prompt: str | None
    engine: str
    precision: str
    device: str
    temperature: float
    top_p: float
    min_tokens: int
    max_tokens: int
    stop: tuple[str, ...]
    samples: int
    seed: int
    batch: int
    prompt_sha256: str | None
    chat_template_sha256: str | None
    system_prompt: str | None
    chat_date: str | None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt_field: str | None = None
    answer_field: str | None = None
    end_tokens: dict[str, str] | None = None
    skip_special_tokens: bool | None = None

    @property
    def in_file(self) -> dict[str, Any]:
        """As ``evaluation.json`` has them."""
        return json.loads(json.dumps(msgspec.to_builtins(self)))  # type: ignore[no-any-return]

    @property
    def batches(self) -> list[range]:
        """The prompt ids of each batch."""
        return [range(first, min(first + self.batch, self.prompts)) for first in range(0, self.prompts, self.batch)]

    @property
    def digest(self) -> str:
        """16 hex digits that differ where any setting does; but for the date, which is kept from the start on."""
        dateless = {key: value for key, value in self.in_file.items() if key != "chat_date"}
        return hashlib.sha256(json.dumps(dateless, sort_keys=True).encode()).hexdigest()[:16]


class Response(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One graded response.

    ``log_prob`` is the sum over its tokens; ``rewards`` has the parts ``reward``, ``format_reward`` and
    ``answer_reward``, and is None where grading failed, with the reason in ``failure``.
    """

    text: str
    tokens: int
    finish_reason: str
    log_prob: float
    rewards: dict[str, float] | None
    failure: str | None = None


class PromptRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The responses to one prompt."""

    prompt_id: int
    prompt_tokens: int
    responses: tuple[Response, ...]


class BatchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one batch took; seconds on the wall clock."""

    batch: int
    prompts: int
    tokens: int
    generate_s: float
    grade_s: float


Row = TypeVar("Row", PromptRow, BatchRow)


class Record:
    """An evaluation's folder, opened to be continued; one process at a time.

    Args:
        folder: made if it is missing.
        facts: what else ``evaluation.json`` says, such as versions. An evaluation that is continued keeps those of
            its start.

    Attributes:
        due: the prompt ids of each batch.
        rows: of the batches that count, by prompt.
        batches: the batches that count.
        dropped: lines that were dropped, whole or cut.
        changed_facts: names of the facts that were others when the evaluation began.

    Raises:
        UserError: the folder holds an evaluation with other settings (named) or something else, another process is
            writing to it, or it cannot be written.
    """

    def __init__(self, folder: Path, settings: EvaluationSettings, facts: Mapping[str, Any]) -> None:
        self.folder, self.settings, self._facts = folder, settings, facts
        self.due = settings.batches
        self.rows: list[PromptRow] = []
        self.batches: list[BatchRow] = []
        self.changed_facts: tuple[str, ...] = ()
        with writing(folder), ExitStack() as opened:
            folder.mkdir(parents=True, exist_ok=True)
            if not opened.enter_context(holding(folder)):  # itself, so that nothing in it is looked at before
                what = "another process is writing this evaluation"
                raise UserError(what, str(folder), "wait for it, or give another folder with --out")
            self._check_settings()
            self._responses, self._batches = (
                opened.enter_context(closing(AppendOnly(folder / name, go_on=True))) for name in (RESPONSES, BATCHES)
            )
            self.dropped = self._take_up()
            self._opened = opened.pop_all()

    @property
    def is_complete(self) -> bool:
        return len(self.batches) == len(self.due)

    def append(self, rows: Sequence[PromptRow], batch: BatchRow) -> None:
        """Write a batch: its prompts first, and when they are on disk its own line.

        Raises:
            UserError: it cannot be written.
        """
        with writing(self.folder):
            for file, lines in ((self._responses, rows), (self._batches, [batch])):
                texts = [json.dumps(msgspec.to_builtins(line), allow_nan=False) + "\n" for line in lines]
                file.write("".join(texts).encode())
                os.fsync(file.file.fileno())
        self.rows += rows
        self.batches.append(batch)

    def close(self) -> None:
        """Close the files and let another process have the folder."""
        self._opened.close()

    def _check_settings(self) -> None:
        """Compare with the settings in the folder; write them where there are none."""
        if not (self.folder / EVALUATION).exists():
            for name in (RESPONSES, BATCHES):
                if (self.folder / name).exists():
                    what = f"the folder holds {name} but no {EVALUATION}, so nobody knows what it belongs to"
                    raise UserError(what, str(self.folder), _OTHER_FOLDER)
            self.write_results("incomplete", None)
            return
        before = read_evaluation(self.folder)
        if changes := differing(before["settings"], self.settings.in_file):
            what = f"the folder holds an evaluation with other settings: {'; '.join(changes)}"
            fix = "give the same settings again, or another folder with --out"
            raise UserError(what, str(self.folder), fix)
        facts = json.loads(json.dumps(self._facts))
        self.changed_facts = tuple(key for key, value in facts.items() if before.get(key) != value)
        self._facts = {key: before.get(key) for key in facts}

    def _take_up(self) -> int:
        """Read the batches that count, and cut both files behind them; return how many lines were dropped."""
        responses, batches = (BytesIO((self.folder / name).read_bytes()).readlines() for name in (RESPONSES, BATCHES))
        for number, (ids, line) in enumerate(zip(self.due, batches, strict=False)):
            batch = _parsed(line, BatchRow)
            rows = [_parsed(line, PromptRow) for line in responses[ids.start : ids.stop]]
            whole = [row for row, due in zip(rows, ids, strict=False) if row is not None and self._is_due(row, due)]
            if batch is None or batch.batch != number or len(whole) < len(ids):
                break
            self.rows += whole
            self.batches.append(batch)
        for file, lines, kept in ((self._responses, responses, self.rows), (self._batches, batches, self.batches)):
            file.size = sum(map(len, lines[: len(kept)]))
            file.file.truncate(file.size)
        return len(responses) - len(self.rows) + len(batches) - len(self.batches)

    def _is_due(self, row: PromptRow, prompt_id: int) -> bool:
        graded = all(not each.rewards or set(each.rewards) == set(PARTS) for each in row.responses)
        return row.prompt_id == prompt_id and len(row.responses) == self.settings.samples and graded

    def write_results(self, status: str, results: Mapping[str, Any] | None) -> None:
        """Write ``evaluation.json``: ``complete`` with the results, or ``incomplete`` without.

        Raises:
            UserError: it cannot be written.
        """
        content = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "settings_hash": self.settings.digest,
            "settings": self.settings.in_file,
            **self._facts,
            "results": results,
        }
        with writing(self.folder), whole_file(self.folder / EVALUATION) as stream:
            stream.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")


def _parsed(line: bytes, kind: type[Row]) -> Row | None:
    """The row of a line; None where the line has no end or is damaged."""
    try:  # Python reads half of a surrogate pair, which it may have written; a NaN becomes a text, which no number is
        return msgspec.convert(json.loads(line, parse_constant=str), kind) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that differs: ``temperature (1.0 there, 0.5 now)``."""
    texts = {key: [json.dumps(side.get(key)) for side in (before, now)] for key in dict.fromkeys([*now, *before])}
    short = {key: [text if len(text) <= 60 else text[:57] + "..." for text in both] for key, both in texts.items()}
    return [
        f"{key} ({there} there, {here} now)" for key, (there, here) in short.items() if texts[key][0] != texts[key][1]
    ]


def read_evaluation(folder: Path) -> dict[str, Any]:
    """Return the content of an evaluation's ``evaluation.json``.

    Raises:
        UserError: it cannot be read, or is no evaluation of this version.
    """
    path = folder / EVALUATION
    content: dict[str, Any] = read_json(path, dict[str, Any])
    version = content.get("schema_version")
    what = f"the evaluation has schema version {version}; this harness reads {SCHEMA_VERSION}"
    if content.get("schema") != SCHEMA or not isinstance(content.get("settings"), dict):
        what = "the file is no evaluation of the harness"
    elif version == SCHEMA_VERSION:
        return content
    raise UserError(what, str(path), _OTHER_FOLDER)


def date_of(folder: Path) -> date | None:
    """Return the date that the prompts of an evaluation have; None where they have none, or there is none yet.

    Raises:
        UserError: see ``read_evaluation``.
    """
    known = read_evaluation(folder)["settings"].get("chat_date") if (folder / EVALUATION).exists() else None
    try:
        return None if known is None else date.fromisoformat(known)
    except (TypeError, ValueError) as error:
        raise UserError(f"chat_date is no date: {error}", str(folder / EVALUATION), _OTHER_FOLDER) from error
