"""Which weight syncs are timed, in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.seeds import derive_seed
from harness.run.interleaving import alternating_order
from harness.scenario import TransportSweepSettings


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one part of the sweep."""

    megabytes: float
    tensors: int


@dataclass(frozen=True, slots=True)
class Sync:
    """One sync to make. ``repeat`` 0 is not counted: it sets connections up and touches fresh memory."""

    transport: str
    receivers: int
    repeat: int


def weights_of(settings: TransportSweepSettings) -> list[Weights]:
    """Return the sizes and tensor counts of the sweep, small ones first."""
    return [Weights(*pair) for pair in itertools.product(sorted(settings.megabytes), sorted(settings.tensors))]


def syncs_of(settings: TransportSweepSettings, seed: int) -> Iterator[Sync]:
    """Yield the syncs of one part: in each repeat every transport once, in an order drawn anew.

    Each second repeat runs the last order backwards; see ``alternating_order``.
    """
    for receivers in sorted(settings.receivers):
        repeats = [settings.repeats + 1] * len(settings.transports)
        drawn_from = derive_seed(seed, "transport_sweep", receivers)
        for index, repeat in alternating_order(len(repeats), repeats, drawn_from):
            yield Sync(settings.transports[index], receivers, repeat)
