"""The actors of a transport sweep: one end of every transport around the same tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from harness.core.trace import Tracer
from harness.core.types import WeightHandle
from harness.engines.paced import PacedEngine
from harness.learner.paced import made_up_weights, stamp
from harness.run.actors.processes import PartProcess, Reply
from harness.run.weight_sync import WeightLoader, WeightPublisher
from harness.transports.catalogue import transport_kind
from harness.transports.options import TransportOptions

COPY_BYTES = 256_000_000


class SweepLearner:
    """One set of weights with a sender of each transport in front.

    Args:
        weights: by name.
        publishers: by transport.
    """

    def __init__(self, weights: dict[str, torch.Tensor], publishers: dict[str, WeightPublisher]) -> None:
        self.weights, self.publishers = weights, publishers

    def close(self) -> None:
        """Close every sender."""
        for publisher in self.publishers.values():
            publisher.sender.close()


class SweepGenerator:
    """One engine with a receiver of each transport in front, on one device."""

    def __init__(self, loaders: dict[str, WeightLoader], device: str) -> None:
        self.loaders, self.device = loaders, device

    def close(self) -> None:
        """Close every receiver."""
        for loader in self.loaders.values():
            loader.receiver.close()


class SweepLearnerProcess(PartProcess):
    """Changes its weights without training, and publishes them by any transport."""

    _worker: SweepLearner

    def publish(self, transport: str, version: int) -> Reply:
        """Change the weights and publish them; nothing published before is needed any more."""
        learner = self._worker
        stamp(learner.weights, version)
        return self._reply(learner.publishers[transport].publish(learner.weights, version, frozenset()))

    def outgoing(self, transport: str, version: int) -> list[torch.Tensor]:
        """Return published tensors, for transports that send them along."""
        return self._worker.publishers[transport].sender.outgoing(version)


class SweepGeneratorProcess(PartProcess):
    """Loads weights that came by any transport into the same tensors of its own."""

    _worker: SweepGenerator

    def load(self, transport: str, weight_handle: WeightHandle) -> Reply:
        """Fetch and load."""
        self._worker.loaders[transport].load(weight_handle)
        return self._reply(None)

    def load_arrived(
        self, transport: str, weight_handle: WeightHandle, called_ns: int, arrived: list[torch.Tensor]
    ) -> Reply:
        """Load what was sent along with this call, which the driver made at ``called_ns``."""
        loader = self._worker.loaders[transport]
        self._record_arrival(loader.lane, weight_handle.version, called_ns)
        loader.load(weight_handle, arrived)
        return self._reply(None)

    def plain_copy_s(self, num_bytes: int) -> float:
        """Return the seconds of one copy of so many bytes in warm memory: no transport with a copy can be faster.

        Large amounts are copied in pieces of ``COPY_BYTES``, which is far above the caches, to save memory. On a GPU it
        is a copy within its memory.
        """
        size = min(num_bytes, COPY_BYTES)
        if self._copied is None or self._copied[0].numel() != size:
            ones = torch.ones(size, dtype=torch.uint8, device=self._worker.device)
            self._copied = (ones, ones.clone())
        source, target = self._copied
        start_ns = time.perf_counter_ns()
        for begin in range(0, num_bytes, size):
            target[: num_bytes - begin].copy_(source[: num_bytes - begin])
        if target.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - start_ns) / 1e9

    _copied: tuple[torch.Tensor, torch.Tensor] | None = None


def make_sweep_learner(
    transports: Sequence[str], megabytes: float, tensors: int, folder: str, device: str, tracer: Tracer
) -> SweepLearner:
    """Return weights of this size on the device and a sender of each transport; files go into the folder."""
    options = TransportOptions(folder=folder, device=device)
    return SweepLearner(
        {name: tensor.to(device) for name, tensor in made_up_weights(megabytes, tensors).items()},
        {
            name: WeightPublisher(transport_kind(name).sender(options), tracer, verify=True, lane="learner")
            for name in transports
        },
    )


def make_sweep_generator(transports: Sequence[str], lane: str, device: str, tracer: Tracer) -> SweepGenerator:
    """Return an engine and a receiver of each transport."""
    engine, options = PacedEngine(0.0, 0.0, 1, device=device), TransportOptions(device=device)
    loaders = {name: WeightLoader(transport_kind(name).receiver(options), engine, tracer, lane) for name in transports}
    return SweepGenerator(loaders, device)
