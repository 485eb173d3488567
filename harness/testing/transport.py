"""What every weight transport must do, between real Ray actors: a Learner, two Generators, and one that comes late."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import pytest
import ray
import torch
from pydantic import TypeAdapter
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.types import WeightHandle
from harness.run.actors.session import process_environment
from harness.settings.transport import TransportSettings
from harness.transports.broadcast import CALLS
from harness.transports.catalogue import transport_kind
from harness.transports.checksum import checksum, verify
from harness.transports.collective import end_group, make_group, remake_group
from harness.transports.protocol import TransportOptions, WeightReceiver, WeightSender

NUM_SMALL = 120


def weights_of(version: int) -> dict[str, Tensor]:
    """Weights that differ in every version: several dtypes, odd and empty shapes, a transposed and a tied one."""
    random = torch.Generator().manual_seed(version)
    weights = {
        "embedding": torch.randn(37, 11, generator=random),
        "half": torch.randn(5, 3, 7, generator=random).to(torch.bfloat16),
        "scale": torch.randn((), generator=random),
        "nothing": torch.empty(0, 4),
        "transposed": torch.randn(8, 6, generator=random).T,
        "counts": torch.randint(0, 1000, (3,), generator=random),
        "big": torch.randn(250_000, generator=random),
    }
    weights |= {f"layer.{i}.norm": torch.randn(1 + i % 5, generator=random) for i in range(NUM_SMALL)}
    return weights | {"head": weights["embedding"]}


def differing(loaded: Mapping[str, Tensor], version: int) -> list[str]:
    """Return the names whose tensors are not exactly those of the version."""
    wanted = weights_of(version)
    return sorted(loaded.keys() ^ wanted.keys()) + [
        name
        for name, tensor in wanted.items()
        if name in loaded and (loaded[name].dtype != tensor.dtype or not torch.equal(loaded[name], tensor))
    ]


def options_of(name: str, fields: Mapping[str, Any]) -> TransportOptions:
    """Return what a sender and its receivers are made from, given a section ``transport`` of this type."""
    settings: Any = TypeAdapter(TransportSettings).validate_python({"type": name, **fields})
    return TransportOptions(settings, fields.get("folder"))


def open_files() -> list[str]:
    """Return the paths that this process has open or mapped into its memory, anonymous files among them."""
    descriptors = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return descriptors + [line.split(maxsplit=5)[-1].strip() for line in maps]


class LearnerEnd:
    """Publishes the weights of a version, and trains on at once: the live weights change after every publish."""

    files = staticmethod(open_files)

    def __init__(self) -> None:
        self.senders: dict[str, WeightSender] = {}
        self.live = {name: tensor.clone() for name, tensor in weights_of(0).items()}
        self.live["transposed"] = torch.empty(8, 6).T
        self.live["head"] = self.live["embedding"]

    def open(self, key: str, name: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """Make the sender; return its notes."""
        self.senders[key] = transport_kind(name).sender(options_of(name, fields))
        return self.senders[key].notes

    def publish(self, key: str, version: int, still_needed: Collection[int], damage: bool) -> WeightHandle:
        """Publish the version, with the checksum of the right weights; ``damage`` changes one bit of them before."""
        sender = self.senders[key]
        for name, tensor in weights_of(version).items():
            self.live[name].copy_(tensor)
        right = checksum(self.live)
        if damage:
            self.live["half"].view(torch.uint8)[4, 2, 13] ^= 1
        weight_handle = sender.publish_weights(self.live, version, frozenset(still_needed))
        assert damage or checksum(sender.published(version)) == right
        for tensor in self.live.values():
            tensor.zero_()
        return dataclasses.replace(weight_handle, checksum=right)

    def outgoing(self, key: str, version: int) -> list[Tensor]:
        """Return what Ray moves, of a two-sided transport."""
        return self.senders[key].outgoing(version)

    def place_of(self, key: str, version: int) -> int | None:
        """Return where in memory the published copy lies; None where the version can no longer be read."""
        try:
            return self.senders[key].published(version)["big"].data_ptr()
        except ValueError:
            return None

    def close(self, key: str) -> None:
        """End the sender."""
        self.senders.pop(key).close()


class GeneratorEnd:
    """Receives, and says which tensors are not what they should be."""

    files = staticmethod(open_files)

    def __init__(self) -> None:
        self.receivers: dict[str, WeightReceiver] = {}

    def receive(
        self, key: str, name: str, fields: Mapping[str, Any], weight_handle: WeightHandle, arrived: Any = None
    ) -> list[str]:
        """Receive the weights; return the names of those that differ."""
        if key not in self.receivers:
            self.receivers[key] = transport_kind(name).receiver(options_of(name, fields))
        loaded = self.receivers[key].receive(weight_handle, arrived)
        verify(loaded, weight_handle.checksum or "", weight_handle.version, "generator_1")
        return differing(loaded, weight_handle.version)

    def close(self, key: str) -> None:
        """End the receiver; one that took another's place has none."""
        if key in self.receivers:
            self.receivers.pop(key).close()


class Crew:
    """The actors, and the way a driver moves weight handles between them."""

    def __init__(self) -> None:
        self.learner: Any = self.start(LearnerEnd)
        self.generators: list[Any] = [self.start(GeneratorEnd) for _ in range(3)]
        make_group([self.learner, *self.generators], "gloo")

    @staticmethod
    def start(end: type) -> Any:
        """Start an actor."""
        environment = {"env_vars": process_environment(threads=1, interface="lo")}
        remote: Any = ray.remote  # whose annotations lack the option
        made = remote(enable_tensor_transport=True, concurrency_groups={CALLS: 2})(end)
        return made.options(num_cpus=0, runtime_env=environment).remote()

    def replace(self, number: int) -> None:
        """Kill a Generator and start another in its place; the group is made anew."""
        ray.kill(self.generators[number])
        self.generators[number] = self.start(GeneratorEnd)
        remake_group([self.learner, *self.generators], "gloo")


class Moved:
    """A transport that is open between the crew's actors.

    Args:
        name: as in ``transport.type``.
        fields: see ``TransportContract``.
        key: tells several apart that are open at the same time.
    """

    def __init__(self, crew: Crew, name: str, fields: Mapping[str, Any], key: str = "") -> None:
        self.crew, self.name, self.fields, self.key = crew, name, dict(fields), key or name
        self.notes: tuple[str, ...] = self.ask("open", name, self.fields)
        self.used: set[int] = set()

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return what the Learner's end answers; see ``LearnerEnd``."""
        return ray.get(getattr(self.crew.learner, question).remote(self.key, *arguments))

    def publish(self, version: int, still_needed: Collection[int] = (), damage: bool = False) -> WeightHandle:
        """Publish a version's weights."""
        weight_handle: WeightHandle = self.ask("publish", version, tuple(still_needed), damage)
        return weight_handle

    def receive(self, weight_handle: WeightHandle, generators: Collection[int] = (0, 1)) -> list[list[str]]:
        """Return what each of these Generators finds wrong with the weights."""
        kind, arrived = transport_kind(self.name), []
        if kind.two_sided:
            send = self.crew.learner.outgoing.options(tensor_transport=kind.tensor_transport)
            arrived = [send.remote(self.key, weight_handle.version)]
        self.used |= set(generators)
        handles = [self.crew.generators[number] for number in generators]
        wrong: list[list[str]] = ray.get(
            [handle.receive.remote(self.key, self.name, self.fields, weight_handle, *arrived) for handle in handles]
        )
        return wrong

    def close(self) -> None:
        """End the receivers, then the sender."""
        ray.get([self.crew.generators[number].close.remote(self.key) for number in sorted(self.used)])
        self.ask("close")


class TransportContract:
    """Contract of a transport. Say in a subclass which one it is.

    Attributes:
        transport: as in ``transport.type``: ``package.module:NAME``. The actors import it, so it must be importable in
            the folder from which pytest runs.
        fields: of the section ``transport``, such as ``{"options": {...}}``.
    """

    transport: ClassVar[str]
    fields: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def crew(cls) -> Iterator[Crew]:
        """One Ray session for the class, which leaves nothing in shared memory."""

        def shared_files() -> set[str]:  # without the semaphores that other programs come and go with
            return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}

        before = shared_files()
        folder = tempfile.mkdtemp(prefix="gh-", dir="/tmp")  # short: Ray makes sockets in it, whose paths are bounded
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            object_store_memory=100 << 20,
        )
        try:
            yield Crew()
        finally:
            end_group()
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
        assert shared_files() <= before

    @pytest.fixture(scope="class")
    @classmethod
    def moved(cls, crew: Crew) -> Iterator[Moved]:
        """The transport, open; another one in a subclass that takes several."""
        moved = Moved(crew, cls.transport, cls.fields)
        yield moved
        moved.close()

    def test_notes_are_lines(self, moved: Moved) -> None:
        """They go into the run's log."""
        assert isinstance(moved.notes, tuple)
        assert all(isinstance(line, str) for line in moved.notes)

    def test_every_version_arrives_as_it_was_published_and_the_learner_trains_on(self, moved: Moved) -> None:
        """The live weights are zeroed behind each publish."""
        for version in range(4):
            assert moved.receive(moved.publish(version, [version - 1])) == [[], []]

    def test_a_handle_counts_the_bytes_of_the_tensors(self, moved: Moved) -> None:
        """Those that are tied count twice."""
        weight_handle = moved.publish(10)
        small = sum(1 + i % 5 for i in range(NUM_SMALL))
        # embedding and its twin, half (2 bytes), scale, transposed, counts (8 bytes), big, small
        num_bytes = 2 * 4 * 37 * 11 + 2 * 5 * 3 * 7 + 4 + 4 * 8 * 6 + 8 * 3 + 4 * 250_000 + 4 * small
        counts = weight_handle.version, weight_handle.num_bytes, weight_handle.num_tensors
        assert counts == (10, num_bytes, 8 + NUM_SMALL)

    def test_an_old_handle_stays_readable_while_its_version_is_needed(self, moved: Moved) -> None:
        """And no longer."""
        old = moved.publish(20)
        middle = moved.publish(21, [20])
        new = moved.publish(22, [20, 21])
        for weight_handle in (old, new, middle, old):
            assert moved.receive(weight_handle) == [[], []]
        moved.publish(23, [22])
        held = [version for version in (20, 21, 22, 23) if moved.ask("place_of", version) is not None]
        assert held == [22, 23]

    def test_one_wrong_bit_is_found(self, moved: Moved) -> None:
        """What arrives is what was published, bit by bit."""
        damaged = moved.publish(50, damage=True)
        with pytest.raises(RunStopped, match="version 50 that generator_1 received are not the published ones"):
            moved.receive(damaged)

    def test_a_version_is_published_once(self, moved: Moved) -> None:
        """Twice is a mistake of the caller."""
        moved.publish(60)
        with pytest.raises(ValueError, match="version 60 is published already"):
            moved.publish(60, [60])

    def test_a_receiver_may_come_late(self, moved: Moved) -> None:
        """Such as a Generator in the place of one that died."""
        for version in (70, 71, 72):
            weight_handle = moved.publish(version, [version - 1])
        assert moved.receive(weight_handle, generators=[2]) == [[]]
