"""Both ends of a weight sync with its stages: publish and its checksum; transfer, load and verification.

A checksum proves what arrived. That the engine also took it over is proven by what it then says: the Learner publishes
its log-probabilities of a few sampled tokens with the weights, and the engine has to agree with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.protocols import Engine, ScoringEngine
from harness.core.trace import Stage, Tracer
from harness.core.types import LogProbProbe, Metric, Metrics, WeightHandle
from harness.transports.fingerprint import fingerprint, verify
from harness.transports.protocol import WeightReceiver, WeightSender


class WeightPublisher:
    """The Learner's end.

    Args:
        sender: takes the weights.
        tracer: records the stages.
        verify: give each weight_handle the checksum of what was published.
        lane: name of the lane.
    """

    def __init__(self, sender: WeightSender, tracer: Tracer, verify: bool, lane: str) -> None:
        self.sender, self.tracer, self.verify, self.lane = sender, tracer, verify, lane

    def publish(self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Publish these weights; see ``WeightSender.publish``."""
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            weight_handle = self.sender.publish(weights, version, still_needed)
        if not self.verify:
            return weight_handle
        with self.tracer.span(self.lane, Stage.WEIGHT_VERIFY, version, version):
            return replace(weight_handle, checksum=fingerprint(self.sender.published(version)))


class WeightLoader:
    """A Generator's end.

    Args:
        receiver: fetches the weights.
        engine: loads them.
        tracer: records the stages.
        lane: name of the lane.
        mismatch_bound: largest gap between the engine's and the Learner's log-probabilities of the weight_handle's
            probe.

    Attributes:
        version: of the weights loaded last; -1 before.
    """

    def __init__(
        self,
        receiver: WeightReceiver,
        engine: Engine,
        tracer: Tracer,
        lane: str,
        mismatch_bound: float | None = None,
    ) -> None:
        self.receiver, self.engine, self.tracer, self.lane = receiver, engine, tracer, lane
        self.mismatch_bound = mismatch_bound
        self.version = -1

    def load(self, weight_handle: WeightHandle, arrived: list[Tensor] | None = None) -> Metrics:
        """Receive published weights, load them into the engine, and verify what arrived and what the engine holds.

        The checksum is taken after the load, over the tensors that the engine has just loaded from: it also notices
        memory that changed in the middle of the load. Then the engine scores the weight_handle's probe.

        Args:
            weight_handle: from the Learner.
            arrived: the tensors themselves, where the transport has sent them along.

        Returns:
            ``engine_mismatch/max`` and ``engine_mismatch/mean``, where the weight_handle has a probe and there is a
            bound.

        Raises:
            RunStopped: the checksum differs, the weights are not there, or the engine disagrees with the Learner.
        """
        version = weight_handle.version
        with self.tracer.span(self.lane, Stage.WEIGHT_TRANSFER, version, version):
            weights = self.receiver.receive(weight_handle, arrived)
        with self.tracer.span(self.lane, Stage.WEIGHT_LOAD, version, version):
            self.engine.load_weights(weights, version)
        if weight_handle.checksum is not None:
            with self.tracer.span(self.lane, Stage.WEIGHT_VERIFY, version, version):
                verify(weights, weight_handle.checksum, version, self.lane)
        measured: Metrics = {}
        if weight_handle.probe is not None and self.mismatch_bound is not None:
            with self.tracer.span(self.lane, Stage.WEIGHT_VERIFY, version, version):
                measured = self._compare(weight_handle.probe, self.mismatch_bound, version)
        self.version = version
        return measured

    def _compare(self, probe: LogProbProbe, bound: float, version: int) -> Metrics:
        """Compare the engine's log-probabilities with the Learner's.

        Raises:
            RunStopped: a gap is above the bound, or not a number.
        """
        engine = cast(ScoringEngine, self.engine)
        said = engine.score([row.tolist() for row in probe.prompts], [row.tolist() for row in probe.responses])
        gaps = [np.abs(ours - theirs) for ours, theirs in zip(said, probe.log_probs, strict=True)]
        flat = np.concatenate(gaps)
        largest, mean = float(flat.max()), float(flat.mean())
        if not largest <= bound:  # nor where it is not a number
            row = int(np.argmax([np.nan_to_num(gap, nan=np.inf).max() for gap in gaps]))
            place = int(np.nan_to_num(gaps[row], nan=np.inf).argmax())
            raise RunStopped(
                f"{self.lane} does not hold the Learner's weights: after loading policy version {version} its engine "
                f"gives token {probe.responses[row][place]} (place {place} of rollout {row}) a log-probability of "
                f"{said[row][place]:.6g}, the Learner {probe.log_probs[row][place]:.6g}; that gap of "
                f"{gaps[row][place]:.3g} is above the mismatch_bound of {bound:g} "
                f"(mean of {flat.size} tokens: {mean:.3g})"
            )
        return {
            "engine_mismatch/max": Metric(largest, "max", flat.size),
            "engine_mismatch/mean": Metric(mean, count=flat.size),
        }
