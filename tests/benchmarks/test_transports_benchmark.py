"""From publish to the receiver's own tensors: the `small` preset (14 MB, 38 tensors), one receiver.

`python -m harness run transport_sweep` compares all transports over many sizes between real actors; these are the
parts of them that can be timed alone.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from harness.core.types import WeightHandle
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.flat_layout import copy_weights
from harness.transports.catalogue import TRANSPORTS
from harness.transports.checksum import checksum
from harness.transports.protocol import TransportOptions

Weights = Mapping[str, torch.Tensor]
GROUP = "weights, publish to own tensors"


@pytest.fixture(scope="module")
def weights() -> Weights:
    return dict(DecoderLM(PRESETS["small"]).state_dict())


def bytes_of(weights: Weights) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize("transport", ["shared_memory", "disk"])
def test_weights_within_one_process(
    benchmark: BenchmarkFixture, weights: Weights, transport: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = TransportOptions(folder=str(tmp_path_factory.mktemp("weights")))
    sender, receiver = TRANSPORTS[transport].sender(options), TRANSPORTS[transport].receiver(options)
    own, versions = {name: torch.empty_like(tensor) for name, tensor in weights.items()}, itertools.count()

    def sync() -> None:
        copy_weights(receiver.receive(sender.publish_weights(weights, next(versions), frozenset())), own)

    benchmark.extra_info |= {"bytes": bytes_of(weights), "tensors": len(weights)}
    benchmark.pedantic(sync, rounds=20, warmup_rounds=2)
    receiver.close()
    sender.close()
    assert checksum(own) == checksum(weights)


@pytest.mark.benchmark(group=GROUP)
def test_a_plain_copy(benchmark: BenchmarkFixture, weights: Weights) -> None:
    """The bound of the others."""
    own = {name: torch.empty_like(tensor) for name, tensor in weights.items()}
    benchmark.extra_info |= {"bytes": bytes_of(weights), "tensors": len(weights)}
    benchmark.pedantic(copy_weights, (weights, own), rounds=20, warmup_rounds=2)
    assert checksum(own) == checksum(weights)


@pytest.mark.benchmark(group="weight checksums")
def test_checksum(benchmark: BenchmarkFixture, weights: Weights) -> None:
    benchmark.extra_info |= {"bytes": bytes_of(weights)}
    assert benchmark(checksum, weights) == checksum(weights)


@pytest.mark.slow
@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize("transport", ["object_store", "object_store_numpy", "shared_memory"])
def test_weights_to_a_ray_actor(
    benchmark: BenchmarkFixture, weights: Weights, transport: str, receive: Callable[[str, WeightHandle], str]
) -> None:
    sender, versions = TRANSPORTS[transport].sender(TransportOptions()), itertools.count()

    def sync() -> str:
        return receive(transport, sender.publish_weights(weights, next(versions), frozenset()))

    benchmark.extra_info |= {"bytes": bytes_of(weights), "tensors": len(weights)}
    arrived = benchmark.pedantic(sync, rounds=20, warmup_rounds=2)
    sender.close()
    assert arrived == "loaded"


@pytest.fixture(scope="module")
def receive() -> Iterator[Callable[[str, WeightHandle], str]]:
    """Start an actor; return what hands it a weight_handle and waits until the weights are in its own tensors."""
    import ray

    from harness.run.actors import quiet_ray
    from harness.run.actors.session import process_environment

    @ray.remote
    class Generator:
        def __init__(self) -> None:
            self.receivers: dict[str, object] = {}
            self.own: dict[str, torch.Tensor] = {}

        def receive(self, transport: str, weight_handle: WeightHandle) -> str:
            if transport not in self.receivers:
                self.receivers[transport] = TRANSPORTS[transport].receiver(TransportOptions())
            loaded = self.receivers[transport].receive(weight_handle)  # type: ignore[attr-defined]
            self.own = self.own or {name: torch.empty_like(tensor) for name, tensor in loaded.items()}
            copy_weights(loaded, self.own)
            return "loaded"

    quiet_ray()
    folder = tempfile.mkdtemp(prefix="gh-", dir="/tmp")  # short: Ray makes sockets in it, whose paths are bounded
    settings = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 200 << 20}
    environment = {"env_vars": process_environment(threads=1, interface="lo")}
    ray.init(address="local", num_cpus=2, _temp_dir=folder, runtime_env=environment, **settings)
    actor = Generator.remote()
    yield lambda transport, weight_handle: ray.get(actor.receive.remote(transport, weight_handle))
    ray.shutdown()
    shutil.rmtree(folder)
