"""What an evaluation's result depends on, and its files: written batch by batch, taken up again where a kill left them.

    evaluation.json    settings, versions, machine; at the end the results
    responses.jsonl    a line for each prompt, in order
    batches.jsonl      a line for each batch, written when all of its prompts' lines are on disk

A batch counts once its line stands in ``batches.jsonl`` and all its prompts in ``responses.jsonl``. Whatever lies
behind the last batch that counts, a line cut in the middle included, is dropped and done again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.file_locks import holding
from harness.core.types import SamplingParams
from harness.results.jsonl import read_json
from harness.tasks.rewards import PARTS


@dataclass(frozen=True)
class Settings:
    """Everything that decides which responses are sampled and how they are graded.

    Attributes:
        model: name without folders; what it is follows from the three checksums.
        weights: checksum of the model's weights.
        config: checksum of the model's shape.
        tokenizer: checksum of the tokenizer.
        data: file name, or the name of a built-in set.
        data_sha256: of the file; None for a built-in set.
        prompts: how many prompts are asked.
        task: how answers are graded.
        reward: the user's own reward function, or how a maths answer is found; None: as the task says.
        prompt: the template's name, or that of the user's file; None where rows hold whole prompts.
        prompt_sha256: of its text.
        chat_template_sha256: of the text of the tokenizer's template, through which was asked; None where it was not.
        system_prompt: the chat's turn in front of each prompt.
        chat_date: the date that the chat template has written into the prompts, where it writes today's.
        chat_template_kwargs: arguments of the template; None where none were given.
        prompt_field, answer_field: keys of the rows; None: the usual ones.
        end_tokens: the tokens that end a response, by id with their texts; None in records of before it was written.
        skip_special_tokens: False where they stay in the texts that are graded; None: they are left out.
        batch: prompts of one batch. It is among the settings, since rounding depends on what is computed together.
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
    prompt_sha256: str | None = None
    chat_template_sha256: str | None = None
    system_prompt: str | None = None
    chat_date: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    prompt_field: str | None = None
    answer_field: str | None = None
    end_tokens: Mapping[str, str] | None = None
    skip_special_tokens: bool | None = None

    @property
    def sampling(self) -> SamplingParams:
        """The part that engines take."""
        return SamplingParams(self.temperature, self.top_p, self.min_tokens, self.max_tokens, self.stop)

    @property
    def batches(self) -> list[range]:
        """The prompt ids of each batch."""
        return [range(first, min(first + self.batch, self.prompts)) for first in range(0, self.prompts, self.batch)]

    @property
    def digest(self) -> str:
        """16 hex digits that differ where any setting differs; but for the date, which is kept from the start on."""
        told = {key: value for key, value in self.as_dict().items() if key != "chat_date"}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        added = ("chat_template_kwargs", "prompt_field", "answer_field", "end_tokens", "skip_special_tokens")
        content = asdict(self) | {"stop": list(self.stop)}
        return {key: value for key, value in content.items() if key not in added or value is not None}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each setting that differs: ``temperature (1.0 there, 0.5 now)``."""
    keys = [*now, *(key for key in before if key not in now)]
    return [
        f"{key} ({_shown(before.get(key))} there, {_shown(now.get(key))} now)"
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


EVALUATION, RESPONSES, BATCHES = "evaluation.json", "responses.jsonl", "batches.jsonl"
SCHEMA, SCHEMA_VERSION = "harness.evaluation", 1


@dataclass(frozen=True, slots=True)
class Response:
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

    @property
    def is_truncated(self) -> bool:
        """Whether the token limit ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class PromptRow:
    """The responses to one prompt."""

    prompt_id: int
    prompt_tokens: int
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """What one batch took; seconds on the wall clock."""

    batch: int
    prompts: int
    tokens: int
    generate_s: float
    grade_s: float


class Record:
    """An evaluation's folder, opened to be continued; one process at a time.

    Args:
        folder: made if it is missing.
        settings: of this evaluation.
        facts: what else ``evaluation.json`` says, such as versions. An evaluation that is continued keeps those of
            its start.

    Attributes:
        rows: of the batches that count, by prompt.
        batches: the batches that count.
        dropped: lines that were dropped, whole or cut.
        changed_facts: names of the facts that were others when the evaluation began.

    Raises:
        UserError: the folder holds an evaluation with other settings (named) or something else, another process is
            writing to it, or it cannot be written.
    """

    def __init__(self, folder: Path, settings: Settings, facts: Mapping[str, Any]) -> None:
        self.folder, self.settings, self._facts = folder, settings, facts
        self.rows: list[PromptRow] = []
        self.batches: list[BatchRow] = []
        self.changed_facts: tuple[str, ...] = ()
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if not opened.enter_context(holding(folder)):  # itself, so that nothing in it is looked at before
                    what = "another process is writing this evaluation"
                    raise UserError(what, str(folder), "wait for it, or give -o FOLDER")
                self._check_settings()
                self._batches_file = opened.enter_context((folder / BATCHES).open("ab"))
                self._responses_file = opened.enter_context((folder / RESPONSES).open("ab"))
                self.dropped = self._take_up()
            except OSError as error:
                raise _cannot_write(folder, error) from error
            self._opened = opened.pop_all()

    @property
    def is_complete(self) -> bool:
        """Whether every batch is done."""
        return len(self.batches) == len(self.settings.batches)

    def append(self, rows: Sequence[PromptRow], batch: BatchRow) -> None:
        """Write a batch: its prompts first, and when they are on disk its own line.

        Raises:
            UserError: it cannot be written.
        """
        try:
            _write(self._responses_file, [_line(asdict(row)) for row in rows])
            _write(self._batches_file, [_line(asdict(batch))])
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        self.rows += rows
        self.batches.append(batch)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the results into ``evaluation.json``.

        Raises:
            UserError: it cannot be written.
        """
        self._write_evaluation("complete", results)

    def close(self) -> None:
        """Close the files and let another process have the folder."""
        self._opened.close()

    def _check_settings(self) -> None:
        """Compare with the settings in the folder; write them where there are none.

        Raises:
            UserError: they differ, or the folder holds something else.
        """
        path = self.folder / EVALUATION
        if not path.exists():
            _refuse_strange_files(self.folder)
            self._write_evaluation("incomplete", None)
            return
        before = read_evaluation(self.folder)
        changes = differing(before["settings"], self.settings.as_dict())
        if changes:
            raise UserError(
                f"the folder holds an evaluation with other settings: {'; '.join(changes)}",
                str(self.folder),
                "give the same settings again, or another folder with -o",
            )
        facts = json.loads(json.dumps(self._facts))
        self.changed_facts = tuple(key for key, value in facts.items() if before.get(key) != value)
        self._facts = {key: before.get(key) for key in facts}

    def _take_up(self) -> int:
        """Read the batches that count, and cut both files behind them; return how many lines were dropped."""
        responses, batches = ((self.folder / name).read_bytes() for name in (RESPONSES, BATCHES))
        row_lines, batch_lines = _whole_lines(responses), _whole_lines(batches)
        for prompt_ids, line in zip(self.settings.batches, batch_lines, strict=False):
            batch = _parse_batch(line, len(self.batches))
            rows = [
                _parse_row(row_line, prompt_id, self.settings.samples)
                for prompt_id, row_line in zip(prompt_ids, row_lines[prompt_ids.start : prompt_ids.stop], strict=False)
            ]
            whole = [row for row in rows if row is not None]
            if batch is None or len(whole) < len(prompt_ids):
                break
            self.rows += whole
            self.batches.append(batch)
        return _cut(self._responses_file, responses, len(self.rows)) + _cut(
            self._batches_file, batches, len(self.batches)
        )

    def _write_evaluation(self, status: str, results: Mapping[str, Any] | None) -> None:
        content = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "settings_hash": self.settings.digest,
            "settings": self.settings.as_dict(),
            **self._facts,
            "results": results,
        }
        try:
            with whole_file(self.folder / EVALUATION) as stream:
                stream.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise _cannot_write(self.folder, error) from error


def read_evaluation(folder: Path) -> dict[str, Any]:
    """Return the content of an evaluation's ``evaluation.json``.

    Raises:
        UserError: it cannot be read, or is no evaluation of this version.
    """
    path = folder / EVALUATION
    content: dict[str, Any] = read_json(path, dict[str, Any])
    if content.get("schema") != SCHEMA or not isinstance(content.get("settings"), dict):
        raise UserError("the file is no evaluation of the harness", str(path), "give another folder with -o")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"the evaluation has schema version {content.get('schema_version')}; this harness reads {SCHEMA_VERSION}",
            str(path),
            "give another folder with -o",
        )
    return content


def date_of(folder: Path) -> date | None:
    """Return the date that the prompts of an evaluation have; None where they have none, or there is none yet.

    Raises:
        UserError: see ``read_evaluation``.
    """
    known = read_evaluation(folder)["settings"].get("chat_date") if (folder / EVALUATION).exists() else None
    try:
        return None if known is None else date.fromisoformat(known)
    except (TypeError, ValueError) as error:
        raise UserError(f"chat_date is no date: {error}", str(folder / EVALUATION), "give -o FOLDER") from error


def _refuse_strange_files(folder: Path) -> None:
    for name in (RESPONSES, BATCHES):
        if (folder / name).exists():
            raise UserError(
                f"the folder holds {name} but no {EVALUATION}, so nobody knows what it belongs to",
                str(folder),
                "give another folder with -o",
            )


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines that have their end."""
    return content.split(b"\n")[:-1]


def _cut(stream: BinaryIO, content: bytes, lines: int) -> int:
    """Cut the file behind so many lines; return how many lines, whole or not, that drops."""
    kept = sum(len(line) + 1 for line in _whole_lines(content)[:lines])
    stream.truncate(kept)
    dropped = content[kept:]
    return dropped.count(b"\n") + (not dropped.endswith(b"\n") and bool(dropped))


def _write(stream: BinaryIO, lines: Sequence[bytes]) -> None:
    stream.write(b"".join(lines))
    stream.flush()
    os.fsync(stream.fileno())


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _parse_batch(line: bytes, number: int) -> BatchRow | None:
    """Return the row, or None if it is damaged or not the one that is due."""
    try:
        row = BatchRow(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return row if row.batch == number and all(map(_is_number, asdict(row).values())) else None


def _parse_row(line: bytes, prompt_id: int, samples: int) -> PromptRow | None:
    """Return the row, or None if it is damaged or not the one that is due."""
    try:
        data = json.loads(line)
        row = PromptRow(
            data["prompt_id"], data["prompt_tokens"], tuple(Response(**response) for response in data["responses"])
        )
    except (ValueError, TypeError, KeyError):
        return None
    due = row.prompt_id == prompt_id and len(row.responses) == samples
    return row if due and all(map(_is_sound, row.responses)) else None


def _is_sound(response: Response) -> bool:
    rewards = {} if response.rewards is None else response.rewards
    if not isinstance(rewards, dict) or (rewards and set(rewards) != set(PARTS)):
        return False
    return isinstance(response.text, str) and all(
        map(_is_number, (response.tokens, response.log_prob, *rewards.values()))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the evaluation: {error.strerror or error}", str(folder), "give -o FOLDER")
