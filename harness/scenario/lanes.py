"""The lanes of a run: one for each part that takes time of its own, each rank of the Learner among them."""

from __future__ import annotations

from harness.scenario.schema import Scenario


def lanes_of(kind: str, scenario: Scenario) -> list[str]:
    """Return the lane names of the Generators or Scorers: ``generator``, or ``generator0``, ``generator1`` ..."""
    return numbered_lanes(kind, getattr(scenario.placement, kind).count)


def rank_lanes(scenario: Scenario) -> list[str]:
    """Return the lanes of the Learner's ranks: ``learner/0``, ``learner/1`` ..., or ``learner`` of one process."""
    ranks = scenario.placement.learner.ranks
    return [f"learner/{rank}" for rank in range(ranks)] if ranks > 1 else ["learner"]


def lane_groups(scenario: Scenario) -> dict[str, list[str]]:
    """Return the lanes of each part that has several, by its name; see ``RecordingTracer``."""
    lanes = rank_lanes(scenario)
    return {"learner": lanes} if len(lanes) > 1 else {}


def publisher_lane(learner_lane: str) -> str:
    """Return the lane of weights that leave a Learner, or a rank of one, while it trains."""
    return learner_lane.replace("learner", "publisher")


def writer_lane(learner_lane: str) -> str:
    """Return the lane that writes asynchronous checkpoints beside a Learner, or a rank of one, which trains on."""
    return learner_lane.replace("learner", "checkpoint_writer")


def all_lanes(scenario: Scenario) -> tuple[str, ...]:
    """Return the names of all lanes of a run."""
    return (*lanes_of("generator", scenario), *lanes_of("scorer", scenario), *rank_lanes(scenario))


def numbered_lanes(kind: str, count: int) -> list[str]:
    """Return the lane names of so many equal parts."""
    return [kind] if count == 1 else [f"{kind}{index}" for index in range(count)]
