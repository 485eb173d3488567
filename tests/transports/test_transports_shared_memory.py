"""Weights in memory of the host: who may map it, what is found when it is not what was asked for, what is left."""

from __future__ import annotations

import dataclasses
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.core.errors import RunStopped, UserError
from harness.transports.protocol import TransportOptions
from harness.transports.shared_memory import SharedMemoryReceiver, SharedMemorySender


@pytest.fixture
def ends():
    sender, receiver = SharedMemorySender(TransportOptions()), SharedMemoryReceiver(TransportOptions())
    yield sender, receiver
    receiver.close()
    sender.close()


def weights_of(version):
    return {"a": torch.full((3, 5), float(version)), "b": torch.full((7,), version, dtype=torch.bfloat16)}


def in_use():
    """Descriptors and mappings of segments in this process."""
    gc.collect()
    descriptors = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:weights" in line for line in descriptors), sum("memfd:weights" in line for line in mapped)


def with_address(weight_handle, **changes):
    return dataclasses.replace(weight_handle, payload=dataclasses.replace(weight_handle.payload, **changes))


def test_received_weights_are_the_published_memory_itself(ends):
    sender, receiver = ends
    weight_handle = sender.publish_weights(weights_of(1), 1, frozenset())
    received = receiver.receive(weight_handle)
    sender.published(1)["a"][2, 4] = 99.0
    assert received["a"][2].tolist() == [1, 1, 1, 1, 99]
    assert received["b"].tolist() == [1] * 7


def test_each_segment_is_mapped_once_and_closing_both_ends_leaves_nothing(ends):
    sender, receiver = ends
    for version in range(6):
        receiver.receive(sender.publish_weights(weights_of(version), version, frozenset({version - 1})))
    # two segments, each mapped by the sender and by the receiver; a mapping keeps a descriptor of its own (Python's
    # mmap duplicates it), and the sender has the one that others open
    assert in_use() == (2 * 3, 2 * 2)
    receiver.close()
    sender.close()
    assert in_use() == (0, 0)


def test_segments_of_another_size_are_unmapped(ends):
    sender, receiver = ends
    receiver.receive(sender.publish_weights(weights_of(0), 0, frozenset()))
    received = receiver.receive(sender.publish_weights({"a": torch.ones(1000)}, 1, frozenset()))
    assert received["a"].sum().item() == 1000
    assert in_use() == (3, 2)


ANOTHER_LEARNER = """
import pickle, sys, torch
from harness.transports.protocol import TransportOptions
from harness.transports.shared_memory import SharedMemorySender
sender = SharedMemorySender(TransportOptions())
weights = {"a": torch.full((3, 5), 2.0), "b": torch.full((7,), 2, dtype=torch.bfloat16)}
pickle.dump(sender.publish_weights(weights, 1, frozenset()), sys.stdout.buffer)
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.slow
def test_segments_of_a_learner_that_died_are_unmapped(ends):
    sender, receiver = ends
    receiver.receive(sender.publish_weights(weights_of(1), 1, frozenset()))
    before = in_use()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ANOTHER_LEARNER], stdin=pipe, stdout=pipe) as learner:
        weight_handle = pickle.load(learner.stdout)
        assert receiver.receive(weight_handle)["b"].tolist() == [2] * 7
        learner.communicate()
    assert in_use() == before  # of the two Learners, the receiver maps the segment of the second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nonce": bytes(16)}, "the shared memory of version 4 holds memory of something else"),
        # a: 60 bytes; b starts at 64, ends at 78; 64 bytes of header before them
        ({"num_bytes": 1000}, "the Learner's shared memory has 142 bytes instead of 1000"),
        ({"pid": 2**22 + 1}, "the Learner's shared memory cannot be opened: .*No such file"),  # above any process's
    ],
)
def test_an_address_that_means_something_else_now_is_found(ends, changes, message):
    sender, receiver = ends
    old = sender.publish_weights(weights_of(4), 4, frozenset())
    with pytest.raises(RunStopped, match=message):
        receiver.receive(with_address(old, **changes))
    sender.publish_weights(weights_of(5), 5, frozenset())
    with pytest.raises(RunStopped, match="the shared memory of version 4 holds version 5"):
        receiver.receive(old)


def test_another_host_is_refused_with_a_way_out(ends):
    sender, receiver = ends
    weight_handle = with_address(sender.publish_weights(weights_of(4), 4, frozenset()), host="elsewhere")
    with pytest.raises(UserError) as refused:
        receiver.receive(weight_handle)
    assert refused.value.where == "transport.type"
    assert refused.value.fix == "set transport.type to nixl or object_store_numpy"
    assert "nonce" not in repr(weight_handle)  # what proves whose the memory is stays out of messages


def test_a_segment_cannot_shrink_under_its_readers(ends):
    sender, _ = ends
    weight_handle = sender.publish_weights(weights_of(0), 0, frozenset())
    with pytest.raises(PermissionError):
        os.ftruncate(weight_handle.payload.descriptor, 0)
