"""From publish to the receiver's own tensors: the `small` preset (14 MB, 38 tensors), one receiver.

`python -m harness run transport_sweep` compares all transports over many sizes between real actors; these are the
parts of them that can be timed alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

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
