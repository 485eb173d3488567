"""The figures of a run, each by its name: what stands in the columns of ``Experiment.runs``.

A figure that a run does not have is None. Names of metrics stand behind ``mean/``: the value combined over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from harness.compare.numbers import Format, count, number, percent, reward
from harness.compare.signal import divergence, signal
from harness.core.intervals import total
from harness.core.trace import Span, Stage, in_order, stage_named
from harness.results.frames import Numbers, RunTable
from harness.results.occupancy import LaneAccount, Occupancy, loop_window, part_spans
from harness.results.rows import LedgerFigures, lane_kind, part_of

UNATTRIBUTED = "unattributed"
TRAIN_REWARD = "reward/total"
TIMING, EXPOSED, TOTAL, RAN = "timing_s/", "exposed_s/", "total_s/", "steps/"
"""Begin the names of the columns of stages: seconds a measured step, of these what the loop waited for, seconds of the
whole loop, and measured steps in which it ran."""
FEWEST_LOOKS = 5
"""Evaluations before the one that reached the target from which on it says when that was."""


class Figure(NamedTuple):
    """A column that people read: its name in the frame and in JSON, label with unit, and form.

    Without ``in_table`` it is for programs only; with ``metric`` it is that metric combined over all steps.
    """

    key: str
    label: str
    form: Format
    in_table: bool = True
    metric: str | None = None


# ---- what spans say


@dataclass(frozen=True, slots=True)
class BlockedTime:
    """How the lag bound held the Generators back.

    ``batches`` of ``bound_batches`` that the bound applied to, before which at least one Generator waited for newer
    weights; the seconds of these waits are a mean over the Generators.
    """

    batches: int
    bound_batches: int
    seconds: float


def blocked_time(spans: Sequence[Span], max_lag: int, steps: int) -> BlockedTime:
    """Return how often and how long ``max_lag`` held the Generators back.

    Batch b needs policy version b - max_lag at least, so the first ``max_lag + 1`` batches wait for no training step.
    Waits after the last batch (``step`` is the number of steps then) are not the bound's.
    """
    waits: dict[str, list[Span]] = {span.lane: [] for span in spans if lane_kind(span.lane) == "generator"}
    for span in spans:
        if span.stage is Stage.WAIT_FOR_WEIGHTS and span.lane in waits and max_lag < span.step < steps:
            waits[span.lane] += [span] if span.end_ns > span.start_ns else []
    by_lane = [total((span.start_ns, span.end_ns) for span in own) for own in waits.values()]
    batches = {span.step for own in waits.values() for span in own}
    return BlockedTime(len(batches), max(0, steps - max_lag - 1), sum(by_lane) / max(1, len(waits)) / 1e9)


def stages_of(table: RunTable, times: SpanTimes | None) -> dict[Stage, Numbers]:
    """Return the seconds of each stage and wait that ran, step by step, added over lanes: those of the spans where they
    are known, else those of the rows."""
    stages = table.stages_s if times is None else times.by_step_s
    return {stage: seconds for stage, seconds in stages.items() if seconds.any()}


@dataclass(frozen=True)
class SpanTimes:
    """The spans of a run, summed up; numbers of time are those of the measured window.

    Attributes:
        window: start and end of the loop in nanoseconds of the spans' clock.
        lanes: where the time of each lane went.
        parts: the same of each part, where a Learner of several ranks is one.
        by_step_s: seconds of each stage and wait in every step, added over parts; shape [steps] each.
        exposed: nanoseconds that the loop waited for, by stage and of ``unattributed``; None without a Learner's span.
        worked_s, busy_s, together_s: seconds that parts worked, added up; with one at work; with two or more.
        blocked: how the lag bound held Generators back; None at lag 0 and under ``drop``.
    """

    window: tuple[int, int]
    lanes: dict[str, LaneAccount]
    parts: dict[str, LaneAccount]
    by_step_s: dict[Stage, Numbers]
    exposed: dict[str, int] | None
    worked_s: float
    busy_s: float
    together_s: float
    blocked: BlockedTime | None


def span_times(table: RunTable) -> SpanTimes | None:
    """Sum up the spans of a run; None where none were kept.

    Raises:
        UserError: the spans or the scenario of the run are damaged.
    """
    spans = table.run.spans()
    if not spans:
        return None
    max_lag = table.run.setting("max_lag")
    is_held_back = isinstance(max_lag, int) and max_lag > 0 and table.run.setting("lag_control") != "drop"
    tail = table.run.tail
    loop = loop_window(spans, tail.elapsed_s if tail else None)
    windows = step_windows(table, loop[0])
    measured = table.is_measured.tolist() if windows else [True]
    by_lane = by_part = Occupancy.of(spans, windows or [loop])
    if any(span.lane != part_of(span.lane) for span in spans):
        by_part = Occupancy.of(part_spans(spans), windows or [loop])
    parts = by_part.within(measured)
    exposure, overlap = parts.exposed() if windows else None, parts.overlap()
    exposed = None
    if exposure is not None:
        exposed = {stage.value: ns for stage, ns in exposure.stages_ns.items()} | {UNATTRIBUTED: exposure.nobody_ns}
    by_step = dict(zip(by_part.table.stages, by_part.by_window().T, strict=True)) if windows else {}
    return SpanTimes(
        window=loop,
        lanes=(parts if by_part is by_lane else by_lane.within(measured)).accounts(),
        parts=parts.accounts(),
        by_step_s=by_step,
        exposed=exposed,
        worked_s=overlap.worked_s,
        busy_s=overlap.busy_s,
        together_s=overlap.together_s,
        blocked=blocked_time(spans, max_lag, len(table)) if is_held_back else None,
    )


def step_windows(table: RunTable, loop_start_ns: int) -> list[tuple[int, int]]:
    """Return (start, end) of each step in nanoseconds of the run's clock; the last one with the evaluation after it."""
    ends_s = table.steps["elapsed_s"]
    starts_s = ends_s - table.steps["wall_s"]
    if table.closing is not None:
        ends_s = np.append(ends_s[:-1], table.closing.elapsed_s)
    return [
        (loop_start_ns + round(start * 1e9), loop_start_ns + round(end * 1e9))
        for start, end in zip(starts_s.tolist(), ends_s.tolist(), strict=True)
    ]


# ---- figures


def figures_of(table: RunTable, times: SpanTimes | None = None) -> dict[str, Any]:
    """Return the figures of a run; ``times`` are those of its spans, None where they were not kept, or not read."""
    diverged = divergence(table)
    figures = _identity(table) | _seconds(table, times) | _rewards(table, diverged is not None)
    figures |= {f"mean/{name}": column.combined for name, column in table.metrics.items()}
    figures |= {each.key: figures.get(f"mean/{each.metric}") for each in FIGURES if each.metric is not None}
    figures |= _learning(table) | _ledger(table.run.ledger, bool(figures["replay_capacity"])) | _memory(table)
    figures |= {"divergence": diverged, "diverged_step": None if diverged is None else diverged.step}
    return figures | {"signal": signal(table)}


def _identity(table: RunTable) -> dict[str, Any]:
    run, about = table.run, table.run.manifest
    lag, capacity = _whole(run.setting("max_lag")), _whole(run.setting("replay.capacity"))
    return {
        "seed": about.seed,
        "block": about.block,
        "status": run.status,
        "started_at": about.started_at,
        "simulated": about.simulated,
        "is_imported": about.outcome.get("imported") is not None,
        "steps": len(table) * _row_steps(table),
        "planned_steps": _whole(run.setting("steps")),
        "optimizer_steps": int(table.steps["optimizer_steps"].sum()) or None,
        "startup_s": about.startup_s,
        "max_lag": lag,
        "replay_capacity": capacity,
        "is_off_policy": bool(lag or capacity),
        "replaced": sum(run.replaced.values()) or None,
    }


def _row_steps(table: RunTable) -> int:
    """How many training steps a row stands for: several in some logs of other trainers."""
    imported = table.run.manifest.outcome.get("imported")
    return int(imported.get("steps_per_row") or 1) if isinstance(imported, dict) else 1


def _seconds(table: RunTable, times: SpanTimes | None) -> dict[str, Any]:
    run, measured, tail = table.run, table.is_measured, table.run.tail
    wall_s, steps = table.wall_s[measured], table.steps["step"][measured]
    loop_s = tail.elapsed_s if tail is not None else table.steps["elapsed_s"][-1] if len(table) else 0.0
    figures: dict[str, Any] = {
        "loop_s": float(loop_s),
        "measured_steps": len(steps) * _row_steps(table),
        "warmup_steps": int(np.sum((table.steps["is_warmup"] == 1) & (table.steps["is_profiled"] == 0))),
        "profiled_steps": int(table.steps["is_profiled"].sum()),
        "is_steady": run.warm_up.steady,
        "slow_start": run.warm_up.slow_start,
        "tokens_per_s": tokens_per_second(table),
    }
    stages = stages_of(table, times)
    rest = {} if tail is None or table.closing is not None else tail.stages_s
    for stage in in_order([*stages, *map(stage_named, rest)]):
        seconds = stages.get(stage, np.zeros(len(table)))
        figures[TOTAL + stage] = float(seconds.sum()) + rest.get(stage.value, 0.0)
        figures[TIMING + stage] = float(seconds[measured].mean()) if len(steps) else 0.0
        figures[RAN + stage] = int(np.sum(seconds[measured] > 0))
    busy = [stage for stage in stages if not stage.is_wait]
    figures["stages_s"] = sum(figures[TIMING + stage] for stage in busy)
    if len(steps):
        low, middle, high = np.percentile(wall_s, (10, 50, 90))
        figures |= {"first_measured": int(steps[0]), "last_measured": int(steps[-1])}
        figures |= {"step_s": float(wall_s.mean()) or None, "median_step_s": float(middle)}
        figures |= {"step_s_p10": float(low), "step_s_p90": float(high)}
    if times is not None:
        figures |= _of_spans(times, len(steps))
    return figures


def _of_spans(times: SpanTimes, steps: int) -> dict[str, Any]:
    figures: dict[str, Any] = {EXPOSED + name: ns / 1e9 / max(1, steps) for name, ns in (times.exposed or {}).items()}
    for kind in ("generator", "scorer", "learner"):
        lanes = [account for lane, account in times.lanes.items() if lane_kind(lane) == kind]
        if lanes:
            figures[f"idle_{kind}"] = fmean(account.share(account.waiting_ns) for account in lanes)
    figures |= {"worked_s": times.worked_s, "busy_s": times.busy_s, "together_s": times.together_s}
    if times.blocked is not None:
        figures["held_back_s"] = times.blocked.seconds
    return figures


def tokens_per_second(table: RunTable) -> float | None:
    """Return the response tokens of fresh rollouts per second of the measured window; None where not known.

    Where a log has no tokens of a step but its throughput, that is taken as a mean over the seconds.
    """
    measured, wall_s = table.is_measured, table.wall_s
    tokens, rate = table.metrics.get("response_tokens"), table.metrics.get("perf/throughput_total")
    if tokens is not None and (tokens.counts[measured] > 0).all():
        seconds = float(wall_s[measured].sum())
        return float(tokens.values[measured].sum()) / seconds if seconds > 0 else None
    if rate is None:
        return None
    known = measured & rate.is_finite
    seconds = float(wall_s[known].sum())
    return float(rate.values[known] @ wall_s[known]) / seconds if seconds > 0 else None


def _rewards(table: RunTable, has_diverged: bool) -> dict[str, Any]:
    run, evaluated = table.run, table.rewards
    target = None if run.manifest.simulated else _real(run.setting("reward_target"))  # a simulated run has no rewards
    figures: dict[str, Any] = {"reward_target": target}
    trained = table.series(TRAIN_REWARD)[1]
    if len(trained):
        figures["reward_train"] = float(trained[-max(1, len(trained) // 10) :].mean())
    if not len(evaluated):
        return figures
    best = int(evaluated.reward.argmax())
    for name, place in (("first", 0), ("best", best), ("last", len(evaluated) - 1)):
        length = float(evaluated.length[place])
        figures |= {f"reward_{name}": float(evaluated.reward[place]), f"reward_{name}_step": int(evaluated.step[place])}
        figures[f"length_{name}"] = length if np.isfinite(length) else None
    figures["prompts"] = int(evaluated.prompts[-1])
    if run.status == "completed" or has_diverged:
        figures["reward_final"] = figures["reward_last"]
    if target is not None and (reached := np.flatnonzero(evaluated.reward >= target)).size:
        place = int(reached[0])
        step = int(evaluated.step[place])
        within = step - (int(evaluated.step[place - 1]) if place else 0)
        figures |= {"seconds_to_target": float(evaluated.elapsed_s[place]), "target_step": step}
        figures["target_within"] = within if within and place < FEWEST_LOOKS else None
    return figures


def _learning(table: RunTable) -> dict[str, Any]:
    figures: dict[str, Any] = {
        name: table.metrics[name].last
        for policy in ("reference", "previous")
        for estimator in KL_ESTIMATORS
        if (name := f"kl/{policy}_{estimator}") in table.metrics
    }
    steps, norms = table.series("grad_norm")
    if len(norms):
        bound, peak = _real(table.run.setting("optimizer.max_grad_norm")), int(norms.argmax())
        figures |= {"grad_norm": float(np.median(norms)), "grad_norm_p95": float(np.percentile(norms, 95))}
        figures |= {"grad_norm_peak": float(norms[peak]), "grad_norm_peak_step": int(steps[peak])}
        figures["scaled_down"] = None if bound is None else float(np.mean(norms > bound))
    ages = table.metrics.get("replay/age_mean")
    if ages is not None and len(table):
        figures["replay_drawn"] = float(ages.counts.sum()) / len(table)
    return figures


LEDGER = ("generated", "failed", "discarded", "dropped", "trained", "trained_again", "unused")


def _ledger(ledger: LedgerFigures | None, has_buffer: bool) -> dict[str, Any]:
    if ledger is None:
        return {}
    figures: dict[str, Any] = {}
    for name in LEDGER:
        part = getattr(ledger, name)
        figures |= {f"{name}_rollouts": part.rollouts, f"{name}_tokens": part.tokens}
        figures |= {f"{name}_share": ledger.share(part), f"{name}_length": part.mean_length}
    if has_buffer and ledger.trained.rollouts:
        figures["replay_uses"] = 1 + ledger.trained_again.rollouts / ledger.trained.rollouts
    return figures


def _memory(table: RunTable) -> dict[str, Any]:
    figures, memory = {}, table.run.manifest.outcome.get("memory")
    for where in ("gpu", "main"):
        part = memory.get(where) if isinstance(memory, dict) else None
        for key in ("planned", "peak"):
            value = _real(part.get(f"{key}_bytes")) if isinstance(part, dict) else None
            figures[f"{where}_memory_{key}_gib"] = None if value is None else value / 2**30
    return figures


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


KL_ESTIMATORS = {"k3": "k3 per token", "k1": "k1 per token", "k1_sum": "k1 per response"}


OUTCOME = (
    Figure("reward_first", "validation reward, first", reward),
    Figure("reward_best", "validation reward, best", reward),
    Figure("reward_best_step", "  at step", count),
    Figure("reward_last", "validation reward, last", reward),
    Figure("length_first", "response length, first, tokens", number),
    Figure("length_last", "response length, last, tokens", number),
    Figure("seconds_to_target", "seconds to the reward target", number),
    Figure("target_step", "  at step", count),
    Figure("reward_train", "training reward, last tenth of the steps", reward),
    Figure("length_train", "response length in training, tokens", number, metric="response_length"),
    Figure("clip_fraction", "clip fraction, mean", number, metric="clip_fraction"),
    Figure("grad_norm", "gradient norm, median", number),
    Figure("grad_norm_p95", "gradient norm, 95th percentile", number),
    Figure("scaled_down", "steps with a gradient scaled down", percent),
    Figure("diverged_step", "diverged at step", count),
    *(
        Figure(f"kl/{policy}_{name}", f"KL to the {policy} policy, {words}, last step", number, name != "k1")
        for policy in ("reference", "previous")
        for name, words in KL_ESTIMATORS.items()
    ),
    *(Figure(f"idle_{kind}", f"idle, {kind.capitalize()}", percent) for kind in ("generator", "scorer", "learner")),
    Figure("engine_mismatch_max", "engine mismatch, largest log-prob gap", number, metric="engine_mismatch/max"),
    Figure("failed_groups", "groups without a reward", count, metric="score/failed_groups"),
    Figure("replaced", "parts replaced", count),
    Figure("step_s", "seconds per step", number, in_table=False),
    Figure("median_step_s", "median of single steps, seconds", number, in_table=False),
    Figure("steps", "training steps", count),
    Figure("optimizer_steps", "optimizer steps", count),
    Figure("tokens_per_s", "generated tokens per second", number),
    Figure(
        "processed_tokens_per_s", "tokens per second, prompts included", number, metric="perf/processed_tokens_per_s"
    ),
    Figure("startup_s", "start-up, seconds", number),
    Figure("loop_s", "loop, seconds", number),
    *(
        Figure(f"{where}_memory_{key}_gib", f"{name} memory, {key}, GiB", number)
        for where, name in (("gpu", "GPU"), ("main", "main"))
        for key in ("planned", "peak")
    ),
)
OFF_POLICY = (
    Figure("lag_mean", "lag, mean, versions", number, metric="off_policy/mean"),
    Figure("lag_max", "lag, highest, versions", count, metric="off_policy/max"),
    Figure("lag_token_mean", "lag of a token, mean, versions", number, metric="off_policy/token_mean"),
    Figure("held_back_s", "held back by the lag bound, seconds", number),
    Figure("dropped_share", "dropped, share of generated rollouts", percent),
    Figure("generated_length", "length of a generated rollout, tokens", number),
    Figure("dropped_length", "length of a dropped rollout, tokens", number),
    Figure("trained_length", "length of a trained rollout, tokens", number),
    Figure("unused_share", "never trained on, share of generated rollouts", percent),
)
REPLAY = (
    Figure("replay_size", "groups held, mean", number, metric="replay/size"),
    Figure("replay_drawn", "groups drawn for a step, mean", number),
    Figure("replay_uses", "uses of a group that was drawn, mean", number),
    Figure("replay_uses_max", "uses of a group, highest", count, metric="replay/uses_max"),
    Figure("replay_age", "age of a group when drawn, mean, versions", number, metric="replay/age_mean"),
    Figure("replay_age_max", "age of a group when drawn, highest, versions", count, metric="replay/age_max"),
    Figure("replay_evicted_full", "groups that made room for newer ones", count, metric="replay/evicted_full"),
    Figure("replay_evicted_age", "groups that became too old", count, metric="replay/evicted_age"),
    Figure("replay_unused", "groups that left and were never drawn", count, metric="replay/evicted_unused"),
)
FIGURES = (*OUTCOME, *OFF_POLICY, *REPLAY)
