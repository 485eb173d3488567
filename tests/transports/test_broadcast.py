"""The transport ``broadcast`` between actors: receivers that die, hang, refuse, come late and come back."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
import torch
from torch.distributed import is_initialized

from harness.core.errors import RunStopped
from harness.run.actors.session import process_environment
from harness.transports import broadcast
from harness.transports.broadcast import CALLS, BroadcastReceiver, BroadcastSender
from harness.transports.checksum import verify
from harness.transports.protocol import TransportOptions
from harness.transports.sharded import shard_receiver, shard_sender
from harness.transports.shards import Shard, TensorSlice

WHOLE = torch.arange(24.0).reshape(6, 4)


def weights_of(version):
    return {
        "w": torch.arange(12.0).reshape(3, 4) + version,
        "half": torch.full((5,), version, dtype=torch.bfloat16),
        "none": torch.empty(0, 2),
    }


class Learner:
    def open(self, timeout_s, buffers):
        broadcast.TIMEOUT_S = timeout_s
        self.sender = BroadcastSender(TransportOptions(buffers_at_start=buffers))
        self.before = is_initialized()

    def publish(self, version, needed=()):
        return self.sender.publish_weights(weights_of(version), version, frozenset(needed))

    def members(self):
        return [member.lane for member in self.sender.members]

    def groups_made(self):
        assert is_initialized() is self.before  # torch's default group is left alone
        return self.sender.groups_made

    def close(self):
        self.sender.close()

    def write(self, version, rank):
        """Publish this rank's rows of 6."""
        live = WHOLE + 100 * version
        at, size = ((0, 2), (2, 4))[rank]
        block = TensorSlice("w", torch.float32, (6, 4), (at, 0), (size, 4))
        sender = shard_sender(self.sender)
        draft = sender.begin(version, frozenset(), {"w": live})
        return draft, sender.add_checksum(draft, sender.write(draft, [Shard(block, block.of(live))], rank))

    def finish(self, draft, parts):
        return shard_sender(self.sender).finish(draft, parts)


class Generator:
    def open(self, lane, timeout_s, buffers):
        broadcast.TIMEOUT_S = timeout_s
        self.receiver = BroadcastReceiver(TransportOptions(who=lane, buffers_at_start=buffers))
        self.go_on, self.whole = threading.Event(), None

    def receive(self, handle):
        """Return where the weights lie, once they are found to be right."""
        loaded, wanted = self.receiver.receive(handle), weights_of(handle.version)
        assert list(loaded) == list(wanted)
        for name, tensor in wanted.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name], tensor)
        return loaded["w"].data_ptr()

    def held(self):
        return sorted(self.receiver._held)

    def close(self):
        self.go_on.set()
        self.receiver.close()

    def wait(self):
        """Have the next broadcasts wait until ``release``."""
        prepare = self.receiver._prepare
        self.receiver._prepare = lambda *given: (self.go_on.wait(20), prepare(*given))[1]

    def release(self):
        self.go_on.set()

    def die_in_broadcast(self):
        """End the process when the group is made and the tensors are about to move."""

        class Dying(broadcast._Group):
            def broadcast(self, tensor):
                os.kill(os.getpid(), signal.SIGKILL)

        broadcast._Group = Dying

    def refuse(self):
        """Have no memory for a version."""

        def no_memory(*given):
            raise MemoryError("none left")

        self.receiver._prepare = no_memory

    def assemble(self, handle):
        if self.whole is None:
            self.whole = shard_receiver("broadcast", TransportOptions(who="generator"))
        loaded = self.whole.receive(handle)
        verify(loaded, handle.checksum, handle.version, "generator")
        assert torch.equal(loaded["w"], WHOLE + 100 * handle.version)


class Actor:
    """An actor, whose methods are called and waited for; tests use it one after the other."""

    def __init__(self, end):
        options = {"env_vars": process_environment(threads=1, interface="lo")}
        remote = ray.remote(concurrency_groups={CALLS: 3, "test": 1})(end)
        self.handle, self.is_dead = remote.options(num_cpus=0, runtime_env=options).remote(), False

    def __getattr__(self, name):
        return lambda *given: ray.get(self.start(name, *given))

    def start(self, name, *given):
        group = "test" if name in ("release", "held") else None
        return getattr(self.handle, name).options(concurrency_group=group).remote(*given)

    def kill(self):
        ray.kill(self.handle)
        self.is_dead = True


@pytest.fixture(scope="module")
def idle(session):
    return {Learner: [], Generator: []}


@pytest.fixture
def crew(idle):
    """Opens a sender and receivers, in actors that other tests have used or in new ones."""
    opened = []

    def take(end, *given):
        actor = idle[end].pop() if idle[end] else Actor(end)
        opened.append((end, actor, actor.start("open", *given)))
        return actor

    def open_all(receivers, timeout_s=20.0, buffers=1):
        learner = take(Learner, timeout_s, buffers)
        generators = [take(Generator, f"generator{i}", timeout_s, buffers) for i in range(receivers)]
        ray.get([opening for _, _, opening in opened])
        return learner, generators

    yield open_all
    for end, actor, _ in opened:
        if not actor.is_dead:
            actor.close()
            idle[end].append(actor)


def test_one_broadcast_brings_a_version_to_all_and_receivers_load_it_when_they_are_ready(crew):
    learner, generators = crew(2)
    first = learner.publish(0)
    for generator in generators:
        generator.receive(first)
    assert learner.groups_made() == 2  # each joined by itself
    handles = [learner.publish(v, {v - 1, v - 2} & set(range(v))) for v in (1, 2, 3)]
    assert learner.groups_made() == 3  # one for both, used for all three
    assert [generator.held() for generator in generators] == [[1, 2, 3], [1, 2, 3]]  # before anyone asked
    for handle in reversed(handles):
        generators[0].receive(handle)
    generators[1].receive(handles[0])


def test_buffers_are_used_again(crew):
    learner, (generator,) = crew(1, buffers=2)
    generator.receive(learner.publish(0))
    places = {generator.receive(learner.publish(version, {version - 1})) for version in range(1, 6)}
    assert (len(places), generator.held()) == (2, [4, 5])


def test_one_that_joins_late_is_sent_what_it_asks_for_unless_it_is_gone_and_is_in_the_next_broadcast(crew):
    learner, (first, late) = crew(2)
    old = learner.publish(0)
    first.receive(old)
    new = learner.publish(1, {0})
    late.receive(old)
    late.receive(new)
    learner.publish(2)
    assert (first.held(), late.held()) == ([2], [2])
    with pytest.raises(RunStopped, match="version 0 is not held by the Learner any more"):
        late.receive(old)


def test_the_group_goes_on_without_one_that_left_or_died_and_takes_another_in(crew):
    learner, (stays, leaves, dies, comes) = crew(4)
    handle = learner.publish(0)
    for generator in (stays, leaves, dies):
        generator.receive(handle)
    learner.publish(1)
    leaves.close()
    dies.kill()
    comes.receive(learner.publish(2))
    learner.publish(3)
    assert (stays.held(), comes.held()) == ([3], [3])
    assert learner.members() == ["generator0", "generator3"]


def test_ending_a_group_wakes_what_waits_in_it(monkeypatch):
    """Gloo itself lets a rank that closes its own connections wait for the whole time limit."""
    monkeypatch.setattr(broadcast, "TIMEOUT_S", 60.0)
    cpu, store, begun = torch.device("cpu"), torch.distributed.HashStore(), threading.Event()

    def begin(group):
        begun.set()
        return group.allreduce([torch.zeros(1)])

    with ThreadPoolExecutor() as pool:
        waits, _ = pool.map(lambda rank: broadcast._Group(store, "g", rank, 2, cpu, "lo"), (0, 1))
        waiting = pool.submit(waits._run, begin, cpu)
        begun.wait(30)
        time.sleep(0.2)  # where it has not come to wait by then, it is told all the same
        waits.end()
        with pytest.raises(RuntimeError, match="the group was ended"):
            waiting.result(timeout=30)


def test_one_that_refuses_is_left_out(crew):
    learner, (well, refuses) = crew(2)
    handle = learner.publish(0)
    well.receive(handle)
    refuses.receive(handle)
    refuses.refuse()
    handle = learner.publish(1)
    assert (well.held(), learner.members()) == ([1], ["generator0"])
    with pytest.raises(RunStopped, match="version 1 was not broadcast to generator1"):
        refuses.receive(handle)


def test_one_that_does_not_answer_holds_nobody_up_for_longer_than_the_timeout_and_may_come_back(crew):
    """The one that hangs would answer after 20 s, and be a member still: the timeout of 3 s ends before.

    The others wait for it and get the version in the next group.
    """
    learner, (well, stuck, late) = crew(3, timeout_s=3.0)
    handle = learner.publish(0)
    for generator in (well, stuck, late):
        generator.receive(handle)
    stuck.wait()
    published = [learner.publish(version, {0, 1}) for version in (1, 2)]
    assert (well.held(), late.held()) == ([0, 1, 2], [0, 1, 2])
    assert learner.members() == ["generator0", "generator2"]
    well.receive(published[1])
    stuck.release()
    stuck.receive(published[1])
    assert stuck.held() in ([0, 2], [2])
    assert sorted(learner.members()) == ["generator0", "generator1", "generator2"]


def test_a_member_lost_in_the_middle_of_a_broadcast_costs_the_others_one_more(crew):
    """The broadcast breaks off once: the member that is still there gets the version in a new group."""
    learner, (stays, dies) = crew(2)
    handle = learner.publish(0)
    stays.receive(handle)
    dies.receive(handle)
    dies.die_in_broadcast()
    dies.is_dead = True
    handle = learner.publish(1)
    assert stays.held() == [1]
    stays.receive(handle)
    assert learner.members() == ["generator0"]


@pytest.mark.parametrize("end", ["closed", "dead"])
def test_without_the_learner_there_is_one_line(crew, end):
    learner, (generator,) = crew(1)
    handle = learner.publish(0)
    if end == "closed":
        learner.close()
    else:
        learner.kill()
    with pytest.raises(RunStopped, match=r"the Learner that broadcasts the weights cannot be reached: .+"):
        generator.receive(handle)


def test_a_new_learner_in_place_of_a_dead_one_is_joined(crew):
    learner, (generator,) = crew(1)
    generator.receive(learner.publish(0))
    learner.kill()
    learner, _ = crew(0)
    for version in (0, 1):
        generator.receive(learner.publish(version))
    assert generator.held() == [1]


def test_two_ranks_broadcast_their_pieces_to_two_generators(crew):
    """Each rank has a group with all Generators, which put the pieces together; the ranks do not wait in turn."""
    ranks, generators = [crew(0)[0], crew(0)[0]], crew(2)[1]
    for version in range(4):
        written = ray.get([actor.start("write", version, rank) for rank, actor in enumerate(ranks)])
        handle = ranks[0].finish(written[0][0], [part for _, part in written])
        ray.get([generator.start("assemble", handle) for generator in generators])
    assert [rank.groups_made() for rank in ranks] == [3, 3]
