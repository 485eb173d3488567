"""The metrics of a training step, from what the loop tells of it and from its spans: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics, WeightHandle, combine_metrics
from harness.loop import StepReport
from harness.loop.observer import count
from harness.results import lane_kind
from harness.results.occupancy import LaneAccount

SYNC_STAGES = {
    "publish": Stage.WEIGHT_PUBLISH,
    "transfer": Stage.WEIGHT_TRANSFER,
    "load": Stage.WEIGHT_LOAD,
    "verify": Stage.WEIGHT_VERIFY,
}


def step_metrics(facts: StepReport, wall_s: float) -> Metrics:
    """Return the metrics of a training step; each is of the same rollouts and seconds whatever the lag.

    ``reward/*``, ``response_length`` and ``truncated_fraction`` are of all rollouts sampled for its batch,
    ``response_tokens`` and ``perf/throughput_total`` of the batch, the others of the groups trained on.

    Args:
        facts: what the loop tells of the step.
        wall_s: seconds since the step before, evaluations included.
    """
    metrics = combine_metrics([part.metrics for part in facts.scored]) | facts.result.metrics
    metrics |= signal_metrics(facts) | sampling_metrics(facts) | lag_metrics(facts)
    tokens = count(facts.fresh).tokens
    metrics["response_tokens"] = Metric(tokens, "sum")
    if wall_s > 0:
        metrics["perf/throughput_total"] = Metric(tokens / wall_s)
    failed = sum(part.failed_groups for part in facts.scored)
    if failed:
        metrics["score/failed_groups"] = Metric(failed, "sum")
    if failed and not facts.fresh:
        metrics["score/failed_batches"] = Metric(1, "sum")
    return metrics


def signal_metrics(facts: StepReport) -> Metrics:
    """Return the share of the groups trained on whose rewards are all equal: they tell no rollout from another.

    Groups of a single rollout do not count, and neither do those without rewards, as in a simulated run.
    """
    groups = [group for group in facts.groups if group.rewards is not None and len(group.rewards) > 1]
    if not groups:
        return {}
    equal = sum(not group.has_spread for group in groups)
    return {"zero_variance_fraction": Metric(equal / len(groups), count=len(groups))}


def sampling_metrics(facts: StepReport) -> Metrics:
    """Return what dynamic sampling did for the fresh batch; nothing in a run without it.

    Every generated group is kept, discarded or failed. ``sampling/attempts`` counts how often a place was sampled, the
    first time included: the most of any place.
    """
    discarded = [group for part in facts.scored for group in part.discarded or ()]
    if all(part.discarded is None for part in facts.scored):
        return {}
    failed = sum(part.failed_groups for part in facts.scored)
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
        metrics |= {
            "off_policy/mean": Metric(mean, count=rollouts),
            "off_policy/max": Metric(max(lags), "max", rollouts),
        }
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
    for name, stage in SYNC_STAGES.items():
        by_sync: dict[tuple[str, int], int] = {}
        for span in spans:
            if span.stage is stage:
                key = span.lane, span.version
                by_sync[key] = by_sync.get(key, 0) + span.end_ns - span.start_ns
        by_kind: dict[str, list[int]] = {}
        for (lane, _), nanoseconds in by_sync.items():
            by_kind.setdefault(lane_kind(lane), []).append(nanoseconds)
        if by_kind:
            seconds = sum(sum(times) / len(times) for times in by_kind.values()) / 1e9
            metrics[f"sync/{name}_s"] = Metric(seconds, count=max(map(len, by_kind.values())))
    moving = [
        metrics[f"sync/{name}_s"].value for name in ("publish", "transfer", "load") if f"sync/{name}_s" in metrics
    ]
    if {"sync/publish_s", "sync/load_s"} <= metrics.keys() and sum(moving) > 0:
        metrics["sync/bandwidth_gb_s"] = Metric(weight_handle.num_bytes / sum(moving) / 1e9)
    return metrics


def idle_ratios(lanes: Iterable[str], accounts: Mapping[str, LaneAccount]) -> Metrics:
    """Return the share of a step that lanes of each kind waited, as a mean over the lanes of that kind.

    Args:
        lanes: all of them, those without a span too.
        accounts: of the step, by lane.
    """
    shares = {lane: account.share(account.waiting_ns) for lane, account in accounts.items()}
    names = dict.fromkeys((*lanes, *shares))
    return combine_metrics([{f"idle_ratio/{lane_kind(lane)}": Metric(shares.get(lane, 0.0))} for lane in names])
