"""Both ends of a weight sync with its stages: publish and its checksum; transfer, load and verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from harness.protocols import Engine
from harness.trace import Stage, Tracer
from harness.transports.fingerprint import fingerprint, verify
from harness.transports.protocol import WeightReceiver, WeightSender
from harness.types import WeightTicket


class WeightPublisher:
    """The Learner's end.

    Args:
        sender: takes the weights.
        tracer: records the stages.
        verify: give each ticket the checksum of what was published.
        lane: name of the lane.
    """

    def __init__(self, sender: WeightSender, tracer: Tracer, verify: bool, lane: str) -> None:
        self.sender, self.tracer, self.verify, self.lane = sender, tracer, verify, lane

    def publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightTicket:
        """Publish these weights; see ``WeightSender.publish``."""
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            ticket = self.sender.publish(weights, version, still_needed)
        if not self.verify:
            return ticket
        with self.tracer.span(self.lane, Stage.WEIGHT_VERIFY, version, version):
            return replace(ticket, checksum=fingerprint(self.sender.published(version)))


class WeightLoader:
    """A Generator's end.

    Args:
        receiver: fetches the weights.
        engine: loads them.
        tracer: records the stages.
        lane: name of the lane.

    Attributes:
        version: of the weights loaded last; -1 before.
    """

    def __init__(self, receiver: WeightReceiver, engine: Engine, tracer: Tracer, lane: str) -> None:
        self.receiver, self.engine, self.tracer, self.lane = receiver, engine, tracer, lane
        self.version = -1

    def load(self, ticket: WeightTicket, arrived: list[Tensor] | None = None) -> None:
        """Receive published weights, load them into the engine, and compare their checksum with the published one.

        The checksum is taken last, over the tensors that the engine has just loaded from: it also notices memory that
        changed in the middle of the load.

        Args:
            ticket: from the Learner.
            arrived: the tensors themselves, where the transport has sent them along.

        Raises:
            RunStopped: the checksum differs, or the weights are not there.
        """
        version = ticket.version
        with self.tracer.span(self.lane, Stage.WEIGHT_TRANSFER, version, version):
            weights = self.receiver.receive(ticket, arrived)
        with self.tracer.span(self.lane, Stage.WEIGHT_LOAD, version, version):
            self.engine.load_weights(weights, version)
        if ticket.checksum is not None:
            with self.tracer.span(self.lane, Stage.WEIGHT_VERIFY, version, version):
                verify(weights, ticket.checksum, version, self.lane)
        self.version = version
