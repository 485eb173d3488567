"""The transport ``broadcast`` in one process: a sender and receivers, each of which is a member of its own."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
import torch
from torch.distributed import is_initialized

from harness.core.errors import RunStopped
from harness.transports import broadcast
from harness.transports.broadcast import BroadcastReceiver, BroadcastSender
from harness.transports.checksum import verify
from harness.transports.protocol import TransportOptions
from harness.transports.sharded import shard_receiver, shard_sender
from harness.transports.shards import Shard, TensorSlice

OPTIONS = TransportOptions(timeout_s=20.0)


def weights_of(version):
    return {
        "w": torch.arange(12.0).reshape(3, 4) + version,
        "half": torch.full((5,), version, dtype=torch.bfloat16),
        "none": torch.empty(0, 2),
    }


def same(loaded, version):
    wanted = weights_of(version)
    return list(loaded) == list(wanted) and all(
        loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor) for name, tensor in wanted.items()
    )


@pytest.fixture
def crew():
    """Opens a sender and receivers, and closes them."""
    with ExitStack() as stack:

        def open_all(receivers, options=OPTIONS):
            sender = stack.enter_context(closing(BroadcastSender(options)))
            return sender, [
                stack.enter_context(closing(BroadcastReceiver(replace(options, who=f"generator{i}"))))
                for i in range(receivers)
            ]

        yield open_all


def held(receiver):
    return sorted(receiver._held)


def test_one_broadcast_brings_a_version_to_all_and_receivers_load_it_when_they_are_ready(crew):
    before = is_initialized()
    sender, receivers = crew(2)
    first = sender.publish_weights(weights_of(0), 0, frozenset())
    assert all(same(receiver.receive(first), 0) for receiver in receivers)
    assert sender._groups_made == 2  # each joined by itself
    handles = [sender.publish_weights(weights_of(v), v, frozenset({v - 1, v - 2} & set(range(v)))) for v in (1, 2, 3)]
    assert sender._groups_made == 3  # one for both, used for all three
    assert [held(receiver) for receiver in receivers] == [[1, 2, 3], [1, 2, 3]]  # before anyone asked
    for handle in reversed(handles):
        assert same(receivers[0].receive(handle), handle.version)
    assert same(receivers[1].receive(handles[0]), 1)
    assert is_initialized() is before


def test_buffers_are_used_again(crew):
    sender, (receiver,) = crew(1, replace(OPTIONS, buffers_at_start=2))
    receiver.receive(sender.publish_weights(weights_of(0), 0, frozenset()))
    places = set()
    for version in range(1, 6):
        handle = sender.publish_weights(weights_of(version), version, frozenset({version - 1}))
        places.add(receiver.receive(handle)["w"].data_ptr())
    assert (len(places), held(receiver)) == (2, [4, 5])


def test_one_that_joins_late_is_sent_what_it_asks_for_and_is_in_the_next_broadcast(crew):
    sender, (first, late) = crew(2)
    old = sender.publish_weights(weights_of(0), 0, frozenset())
    assert same(first.receive(old), 0)
    new = sender.publish_weights(weights_of(1), 1, frozenset({0}))
    assert same(late.receive(old), 0)
    assert same(late.receive(new), 1)
    sender.publish_weights(weights_of(2), 2, frozenset())
    assert (held(first), held(late)) == ([2], [2])


def test_a_version_that_is_gone_is_refused(crew):
    sender, (first, late) = crew(2)
    old = sender.publish_weights(weights_of(0), 0, frozenset())
    first.receive(old)
    sender.publish_weights(weights_of(1), 1, frozenset())
    with pytest.raises(RunStopped, match="version 0 is not held by the Learner any more"):
        late.receive(old)


def test_the_group_goes_on_without_one_that_left_and_takes_another_in(crew):
    sender, (stays, leaves, comes) = crew(3)
    handle = sender.publish_weights(weights_of(0), 0, frozenset())
    stays.receive(handle)
    leaves.receive(handle)
    sender.publish_weights(weights_of(1), 1, frozenset())
    leaves.close()
    handle = sender.publish_weights(weights_of(2), 2, frozenset())
    assert same(comes.receive(handle), 2)
    sender.publish_weights(weights_of(3), 3, frozenset())
    assert (held(stays), held(comes)) == ([3], [3])


def test_one_that_does_not_answer_holds_the_learner_up_for_no_longer_than_the_timeout_and_may_come_back(
    crew, monkeypatch
):
    sender, (well, stuck) = crew(2, TransportOptions(timeout_s=3.0))
    handle = sender.publish_weights(weights_of(0), 0, frozenset())
    well.receive(handle)
    stuck.receive(handle)
    go_on = threading.Event()
    room_for = stuck._room_for
    monkeypatch.setattr(stuck, "_room_for", lambda order: (go_on.wait(60), room_for(order))[1])
    began = time.monotonic()
    handles = [sender.publish_weights(weights_of(version), version, frozenset({0, 1})) for version in (1, 2)]
    assert 3.0 <= time.monotonic() - began < 20
    assert [member.name for member in sender._members] == ["generator0"]
    assert same(well.receive(handles[1]), 2)
    go_on.set()
    assert same(stuck.receive(handles[1]), 2)
    assert held(stuck) in ([0, 2], [2])
    assert len(sender._members) == 2


def test_a_member_lost_in_the_middle_of_a_broadcast_costs_the_others_one_more(crew, monkeypatch):
    """The broadcast breaks off once: the member that is still there gets the version in a new group."""
    sender, (stays, dies) = crew(2)
    handle = sender.publish_weights(weights_of(0), 0, frozenset())
    stays.receive(handle)
    dies.receive(handle)
    enter = dies._enter

    def die(*order):
        group = enter(*order)
        broadcast._hang_up(dies._link.fileno())
        group.end()
        raise EOFError

    monkeypatch.setattr(dies, "_enter", die)
    began = time.monotonic()
    handle = sender.publish_weights(weights_of(1), 1, frozenset())
    assert time.monotonic() - began < OPTIONS.timeout_s / 2
    assert held(stays) == [1]
    assert same(stays.receive(handle), 1)
    assert [member.name for member in sender._members] == ["generator0"]


def test_without_the_learner_there_is_one_line(crew):
    sender, (receiver,) = crew(1)
    handle = sender.publish_weights(weights_of(0), 0, frozenset())
    sender.close()
    with pytest.raises(RunStopped, match="the Learner that broadcasts the weights cannot be reached"):
        receiver.receive(handle)


def test_a_stranger_is_not_let_in(crew):
    sender, (receiver,) = crew(1)
    handle = sender.publish_weights(weights_of(0), 0, frozenset())
    stranger = replace(handle, payload=replace(handle.payload, key=b"another"))
    with pytest.raises(RunStopped, match="cannot be reached"):
        receiver.receive(stranger)
    assert same(receiver.receive(handle), 0)


def test_two_ranks_broadcast_their_pieces_to_two_generators():
    """Each rank has a group with all Generators, which put the pieces together."""
    whole = torch.arange(24.0).reshape(6, 4)
    blocks = [TensorSlice("w", torch.float32, (6, 4), (at, 0), (size, 4)) for at, size in ((0, 2), (2, 4))]
    with ExitStack() as stack:
        senders = [stack.enter_context(closing(shard_sender("broadcast", OPTIONS, rank))) for rank in range(2)]
        receivers = [stack.enter_context(closing(shard_receiver("broadcast", OPTIONS))) for _ in range(2)]
        for version in range(3):
            live = whole + 100 * version
            draft = senders[0].begin(version, frozenset(), {"w": live})
            parts = [
                sender.add_checksum(draft, sender.write(draft, [Shard(block, block.of(live))]))
                for sender, block in zip(senders, blocks, strict=True)
            ]
            handle = senders[0].finish(draft, parts)
            for receiver in receivers:
                loaded = receiver.receive(handle)
                verify(loaded, handle.checksum, version, "generator")
                assert torch.equal(loaded["w"], live)
