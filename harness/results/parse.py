"""Build typed rows from JSON objects. A bad row raises KeyError (a field is missing) or ValueError (a wrong value)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from harness.core.trace import Span, Stage
from harness.results.rows import (
    MOST_SECONDS,
    MOST_WHOLE,
    BatchRow,
    EvaluationRow,
    RolloutRow,
    ShardRow,
    StepRow,
    TailRow,
    VersionChange,
)
from harness.results.syncs import SyncRow

_STAGES = {stage.value: stage for stage in Stage}
_OBJECT, _NUMBER, _INTEGER, _TEXT = frozenset({dict}), frozenset({float, int}), frozenset({int}), frozenset({str})
_AS_MANY_FIELDS = frozenset({len(Span._fields)})


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name!r} is {value!r}; it must be a number")
    return float(value)


def _seconds(value: Any, name: str) -> float:
    seconds = _number(value, name)
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{name!r} is {seconds!r}; it must be from 0 to {MOST_SECONDS:g}")
    return seconds


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name!r} is {value!r}; it must be a whole number")
    if not -MOST_WHOLE <= value <= MOST_WHOLE:
        raise ValueError(f"{name!r} is {value!r:.24}; it must be a number of 64 bits")
    return value


def _step(row: dict[str, Any]) -> StepRow:
    return StepRow(
        step=_whole(row["step"], "step"),
        version=_whole(row["version"], "version"),
        wall_s=_seconds(row["wall_s"], "wall_s"),
        elapsed_s=_seconds(row["elapsed_s"], "elapsed_s"),
        optimizer_steps=_whole(row["optimizer_steps"], "optimizer_steps"),
        lanes=_lanes(row["lanes"]),
        stages_s=_stages_s(row["stages_s"], "stages_s"),
        metrics=_metrics(row["metrics"]),
        versions=_versions(row.get("versions", {})),
        version_changes=_version_changes(row),
        lags={_whole(int(lag), "lags"): _whole(rollouts, "lags") for lag, rollouts in row.get("lags", {}).items()},
        warmup=row.get("warmup") is True,
        profiled=row.get("profiled") is True,
    )


def _evaluation(row: dict[str, Any]) -> EvaluationRow:
    version, step = _whole(row["version"], "version"), _whole(row["step"], "step")
    return EvaluationRow(version, step, _seconds(row["elapsed_s"], "elapsed_s"), _metrics(row["metrics"]))


def _tail(row: dict[str, Any]) -> TailRow:
    wall_s, elapsed_s = _seconds(row["wall_s"], "wall_s"), _seconds(row["elapsed_s"], "elapsed_s")
    lanes, stages_s = _lanes(row["lanes"]), _stages_s(row["stages_s"], "stages_s")
    return TailRow(wall_s, elapsed_s, lanes, stages_s, _version_changes(row))


def _versions(value: Any) -> dict[str, int]:
    return {lane: _whole(version, f"versions/{lane}") for lane, version in value.items()}


def _version_changes(row: dict[str, Any]) -> tuple[VersionChange, ...]:
    """Read the changes of a row; there are none in rows of before they were written."""
    changes = [
        VersionChange(_seconds(elapsed_s, "version_changes"), str(lane), _whole(version, "version_changes"))
        for elapsed_s, lane, version in row.get("version_changes", ())
    ]
    return tuple(changes)


def _rollout(row: dict[str, Any]) -> RolloutRow:
    texts = {name: str(row[name]) for name in ("purpose", "prompt", "response", "ground_truth", "finish_reason")}
    version, num_tokens = _whole(row["version"], "version"), _whole(row["num_tokens"], "num_tokens")
    return RolloutRow(**texts, version=version, num_tokens=num_tokens, reward=_number(row["reward"], "reward"))


def _span(row: dict[str, Any]) -> Span:
    stage = _STAGES.get(row["stage"])
    if stage is None:
        raise ValueError(f"unknown stage {row['stage']!r}")
    start_ns, end_ns, step, version = row["start_ns"], row["end_ns"], row["step"], row["version"]
    if not (start_ns.__class__ is end_ns.__class__ is step.__class__ is version.__class__ is int):
        numbers = (start_ns, end_ns, step, version)
        raise ValueError(f"times, step and version are {numbers!r}; they must be whole numbers")
    for number in (start_ns, end_ns, step, version):
        _whole(number, "times, step or version")
    return Span(str(row["lane"]), stage, start_ns, end_ns, step, version)


def spans_at_once(rows: Sequence[dict[str, Any]]) -> list[Span] | None:
    """Build all spans at once, much faster than one by one; None where that would not do, as with any odd row."""
    if not _are(rows, _AS_MANY_FIELDS, of=len):
        return None
    try:
        lanes, names, *numbers = (list(map(itemgetter(field), rows)) for field in Span._fields)
    except KeyError:
        return None
    if not (_are(lanes, _TEXT) and _are(names, _TEXT) and _are(chain(*numbers), _INTEGER)):
        return None
    if rows and (min(map(min, numbers)) < -MOST_WHOLE or max(map(max, numbers)) > MOST_WHOLE):
        return None
    stages = list(map(_STAGES.get, names))
    if None in stages:
        return None
    return list(map(Span._make, zip(lanes, stages, *numbers, strict=True)))


def _objects(value: Any, name: str) -> dict[str, dict[str, float]]:
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is {value!r:.60}; it must be an object")
    items = value.values()
    if _are(items, _OBJECT) and _are(chain.from_iterable(map(dict.values, items)), _NUMBER):
        return value
    for key, item in value.items():
        _numbers(item, f"{name}/{key}")
    return value


def _numbers(value: Any, name: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is {value!r:.60}; it must be an object")
    if _are(value.values(), _NUMBER):
        return value
    for key, item in value.items():
        if item.__class__ is not float and item.__class__ is not int:
            raise ValueError(f"'{name}/{key}' is {item!r:.60}; it must be a number")
    return value


def _lanes(value: Any) -> dict[str, dict[str, float]]:
    lanes = _objects(value, "lanes")
    for lane, stages in lanes.items():
        _stages_s(stages, f"lanes/{lane}")
    return lanes


def _stages_s(value: Any, name: str) -> dict[str, float]:
    stages = _numbers(value, name)
    if not all(0 <= seconds <= MOST_SECONDS for seconds in stages.values()):
        raise ValueError(f"{name!r} is {stages!r:.60}; seconds must be from 0 to {MOST_SECONDS:g}")
    return stages


def _metrics(value: Any) -> dict[str, dict[str, float]]:
    metrics = _objects(value, "metrics")
    for name, stored in metrics.items():
        if not math.isfinite(stored.get("count", 1)):
            raise ValueError(f"'metrics/{name}/count' is {stored['count']!r}; it must be a number")
    return metrics


def _are(values: Iterable[Any], kinds: frozenset[Any], of: Callable[[Any], Any] = type) -> bool:
    """Whether each value is exactly of one of the kinds; without a loop of ours, since a run has millions of values."""
    return kinds.issuperset(map(of, values))


def _shard(row: dict[str, Any]) -> ShardRow:
    groups = len(row["prompt_ids"])
    for name in ("prompt_tokens", "versions", "lengths", "rewards"):
        if len(row[name]) != groups:
            raise ValueError(f"{name!r} has {len(row[name])} items for {groups} groups")
    return ShardRow(
        purpose=str(row["purpose"]),
        step=_whole(row["step"], "step"),
        shard=_whole(row["shard"], "shard"),
        prompt_ids=_wholes(row["prompt_ids"], "prompt_ids"),
        prompt_tokens=tuple(None if n is None else _whole(n, "prompt_tokens") for n in row["prompt_tokens"]),
        versions=tuple(_pair(versions, "versions") for versions in row["versions"]),
        lengths=tuple(_wholes(lengths, "lengths") for lengths in row["lengths"]),
        rewards=tuple(tuple(_number(reward, "rewards") for reward in rewards) for rewards in row["rewards"]),
        failed_groups=_whole(row["failed_groups"], "failed_groups"),
    )


def _batch(row: dict[str, Any]) -> BatchRow:
    return BatchRow(_whole(row["step"], "step"), tuple(_pair(group, "groups") for group in row["groups"]))


def _wholes(values: Any, name: str) -> tuple[int, ...]:
    return tuple(_whole(value, name) for value in values)


def _pair(values: Any, name: str) -> tuple[int, int]:
    first, second = _wholes(values, name)
    return first, second


def _sync(row: dict[str, Any]) -> SyncRow:
    return SyncRow(
        str(row["transport"]),
        *(_whole(row[name], name) for name in ("num_bytes", "tensors", "receivers", "repeat")),
        *(_seconds(row[name], name) for name in SyncRow.__slots__[5:]),
    )


STEP_MAKERS: Mapping[str | None, Callable[[dict[str, Any]], StepRow | EvaluationRow | TailRow | SyncRow]] = {
    "step": _step,
    "evaluation": _evaluation,
    "tail": _tail,
    "sync": _sync,
}
ROLLOUT_MAKERS: Mapping[str | None, Callable[[dict[str, Any]], RolloutRow]] = {"rollout": _rollout}
SPAN_MAKERS: Mapping[str | None, Callable[[dict[str, Any]], Span]] = {None: _span}
GROUP_MAKERS: Mapping[str | None, Callable[[dict[str, Any]], ShardRow | BatchRow]] = {"shard": _shard, "batch": _batch}
