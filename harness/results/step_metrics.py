"""The metrics of a training step, from what the loop tells of it and from its spans: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics, WeightHandle, combine_metrics
from harness.loop import StepReport
from harness.loop.observer import count
from harness.loop.replay import ReplayStats
from harness.results import lane_kind
from harness.results.occupancy import LaneAccount


def step_metrics(facts: StepReport, wall_s: float) -> Metrics:
    """Return the metrics of a training step; each is of the same rollouts and seconds whatever the lag.

    ``reward/*``, ``response_length`` and ``truncated_fraction`` are of all rollouts sampled for its batch,
    ``response_tokens`` and ``perf/throughput_total`` of the batch, the others of the groups trained on. So is
    ``zero_variance_fraction``, the share of groups of several rollouts whose rewards are all equal.

    Args:
        facts: what the loop tells of the step.
        wall_s: seconds since the step before, evaluations included.
    """
    metrics = combine_metrics([part.metrics for part in facts.scored]) | facts.result.metrics
    graded = [group for group in facts.groups if group.rewards is not None and len(group.rewards) > 1]
    if graded:
        equal = sum(not group.has_spread for group in graded)
        metrics["zero_variance_fraction"] = Metric(equal / len(graded), count=len(graded))
    failed, tokens = sum(part.failed_groups for part in facts.scored), count(facts.fresh).tokens
    metrics |= _sampling_metrics(facts, failed) | lag_metrics(facts) | {"response_tokens": Metric(tokens, "sum")}
    if wall_s > 0:
        metrics["perf/throughput_total"] = Metric(tokens / wall_s)
    if failed:
        metrics["score/failed_groups"] = Metric(failed, "sum")
    if failed and not facts.fresh:
        metrics["score/failed_batches"] = Metric(1, "sum")
    return metrics


def _sampling_metrics(facts: StepReport, failed: int) -> Metrics:
    """Return what dynamic sampling did for the fresh batch: every generated group is kept, discarded or failed.

    ``sampling/attempts`` counts how often a place was sampled, the first time included: the most of any place.
    """
    if all(part.discarded is None for part in facts.scored):
        return {}
    discarded = [group for part in facts.scored for group in part.discarded or ()]
    tried = [group.attempt + 1 for group in (*facts.fresh, *discarded)]
    attempts = {"sampling/attempts": Metric(max(tried), "max", len(tried))} if tried else {}
    return attempts | {
        "sampling/generated_groups": Metric(len(facts.fresh) + len(discarded) + failed, "sum"),
        "sampling/kept_groups": Metric(len(facts.fresh), "sum"),
        "sampling/discarded_groups": Metric(len(discarded), "sum"),
        "sampling/discarded_tokens": Metric(count(discarded).tokens, "sum"),
    }


def trained_lags(facts: StepReport) -> Counter[int]:
    """Return lag -> rollouts trained on: the step's policy version minus that of a rollout's oldest token."""
    lags: Counter[int] = Counter()
    for group in facts.groups:
        lags[facts.step - group.min_version] += len(group.lengths)
    return lags


def lag_metrics(facts: StepReport) -> Metrics:
    """Return how old the trained rollouts were, what was dropped, and what was on its way when the step began."""
    lags = trained_lags(facts)
    rollouts = lags.total()
    metrics = {
        "off_policy/dropped": Metric(facts.dropped.rollouts, "sum"),
        "off_policy/in_flight": Metric(facts.in_flight),
        "off_policy/in_queue": Metric(facts.in_queue),
    }
    if rollouts:  # none, where no group of a batch had a reward
        mean = sum(lag * number for lag, number in lags.items()) / rollouts
        metrics["off_policy/mean"] = Metric(mean, count=rollouts)
        metrics["off_policy/max"] = Metric(max(lags), "max", rollouts)
    if facts.dropped.mean_length is not None:
        metrics["off_policy/dropped_length"] = Metric(facts.dropped.mean_length, count=facts.dropped.rollouts)
    if any(group.mean_version is not None for group in facts.groups):
        tokens = count(facts.groups).tokens
        lag = sum((facts.step - group.token_version) * group.num_tokens for group in facts.groups) / tokens
        metrics["off_policy/token_mean"] = Metric(lag, count=tokens)
    return metrics


def sync_metrics(weight_handle: WeightHandle, spans: Sequence[Span]) -> Metrics:
    """Return what the weight syncs among the spans moved and took; nothing where there are no bytes to move.

    A stage's seconds are those of one sync: the mean over the Learner's syncs plus the mean over the Generators'. A
    stage may come in two pieces (the arrival before the call, and what the receiver does with it), which add up. The
    bandwidth is bytes over publish, transfer and load; verification is left out of it.
    """
    if weight_handle.num_bytes == 0:
        return {}
    metrics = {"sync/bytes": Metric(weight_handle.num_bytes), "sync/tensors": Metric(weight_handle.num_tensors)}
    moving_s = 0.0
    for name in ("publish", "transfer", "load", "verify"):
        stage, by_sync = Stage(f"weight_{name}"), Counter[tuple[str, int]]()
        for span in spans:
            if span.stage is stage:
                by_sync[span.lane, span.version] += span.end_ns - span.start_ns
        by_kind: dict[str, list[int]] = {}
        for (lane, _), nanoseconds in by_sync.items():
            by_kind.setdefault(lane_kind(lane), []).append(nanoseconds)
        if by_kind:
            seconds = sum(sum(times) / len(times) for times in by_kind.values()) / 1e9
            metrics[f"sync/{name}_s"] = Metric(seconds, count=max(map(len, by_kind.values())))
            moving_s += seconds if name != "verify" else 0.0
    if {"sync/publish_s", "sync/load_s"} <= metrics.keys() and moving_s > 0:
        metrics["sync/bandwidth_gb_s"] = Metric(weight_handle.num_bytes / moving_s / 1e9)
    return metrics


def replay_metrics(facts: StepReport, replay: tuple[ReplayStats, int], earlier: ReplayStats) -> Metrics:
    """Return what became of the replay buffer's groups since its ``earlier`` totals, and the age of what was taken."""
    stats, size = replay
    causes = ("evicted_full", "evicted_age", "evicted_unused")
    metrics = {f"replay/{name}": Metric(getattr(stats, name) - getattr(earlier, name), "sum") for name in causes}
    metrics |= {"replay/size": Metric(size), "trained_tokens": Metric(count(facts.groups).tokens, "sum")}
    for name, values in (("age", [it.age for it in facts.taken]), ("uses", [it.uses for it in facts.taken])):
        if values:
            metrics[f"replay/{name}_mean"] = Metric(sum(values) / len(values), count=len(values))
            metrics[f"replay/{name}_max"] = Metric(max(values), "max", len(values))
    return metrics


def idle_ratios(lanes: Iterable[str], accounts: Mapping[str, LaneAccount]) -> Metrics:
    """Return the share of a step that lanes of each kind waited, as a mean over these and all that have an account."""
    shares = {lane: account.share(account.waiting_ns) for lane, account in accounts.items()}
    names = dict.fromkeys((*lanes, *shares))
    return combine_metrics([{f"idle_ratio/{lane_kind(lane)}": Metric(shares.get(lane, 0.0))} for lane in names])
