"""What every weight transport must do, between real Ray actors: one Learner, two Generators, and one that comes late.

The transports of GPUs are not here: a machine without one cannot run them (`test_transports_catalogue.py` has what is
refused). One Ray session serves the whole module.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import ray
import torch

from harness.core.errors import RunStopped
from harness.run.actors.session import process_environment
from harness.transports.catalogue import TRANSPORTS
from harness.transports.checksum import checksum, verify
from harness.transports.collective import end_group, make_group, remake_group
from harness.transports.protocol import TransportOptions

VARIANTS = {
    "object_store": ("object_store", {}),
    "object_store_numpy": ("object_store_numpy", {}),
    "nixl": ("nixl", {}),
    "nixl one by one": ("nixl", {"flatten": False}),
    "nixl into fresh memory": ("nixl", {"preallocate": False}),
    "gloo": ("gloo", {}),
    "gloo one by one": ("gloo", {"flatten": False}),
    "broadcast": ("broadcast", {}),
    "disk": ("disk", {}),
    "shared_memory": ("shared_memory", {}),
}
REUSING = ("nixl", "nixl one by one", "gloo", "gloo one by one", "broadcast", "shared_memory")
NUM_SMALL = 120
ENVIRONMENT = process_environment(threads=1, interface="lo")


def weights_of(version):
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


def differing(loaded, version):
    """Names whose tensors are not exactly those of the version."""
    wanted = weights_of(version)
    return sorted(loaded.keys() ^ wanted.keys()) + [
        name
        for name, tensor in wanted.items()
        if name in loaded and (loaded[name].dtype != tensor.dtype or not torch.equal(loaded[name], tensor))
    ]


def open_memfds():
    """Anonymous files that this process has open or mapped."""
    descriptors = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:weights" in line for line in [*descriptors, *mapped])


@ray.remote(enable_tensor_transport=True)
class Learner:
    """Publishes the weights of a version, and trains on at once: the live weights change after every publish."""

    def __init__(self):
        self.senders = {}
        self.live = {name: tensor.clone() for name, tensor in weights_of(0).items()}
        self.live["transposed"] = torch.empty(8, 6).T
        self.live["head"] = self.live["embedding"]

    def open(self, variant):
        name, fields = VARIANTS[variant]
        self.senders[variant] = TRANSPORTS[name].sender(TransportOptions(**fields))
        return self.senders[variant].notes

    def publish(self, variant, version, still_needed=(), damage=False):
        sender = self.senders[variant]
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

    def outgoing(self, variant, version):
        return self.senders[variant].outgoing(version)

    def place_of(self, variant, version):
        return self.senders[variant].published(version)["big"].data_ptr()

    def is_held(self, variant, version):
        try:
            return len(self.senders[variant].published(version)) > 0
        except ValueError:
            return False

    def files(self, variant):
        (note,) = self.senders[variant].notes
        folder = Path(note.split()[-1])
        return folder, sorted(file.name for file in folder.iterdir())

    def close(self, variant):
        self.senders.pop(variant).close()
        return open_memfds()


@ray.remote(enable_tensor_transport=True)
class Generator:
    """Receives, and says which tensors are not what they should be."""

    def __init__(self):
        self.receivers = {}

    def receive(self, variant, weight_handle, arrived=None):
        if variant not in self.receivers:
            name, fields = VARIANTS[variant]
            self.receivers[variant] = TRANSPORTS[name].receiver(TransportOptions(**fields))
        loaded = self.receivers[variant].receive(weight_handle, arrived)
        verify(loaded, weight_handle.checksum, weight_handle.version, "generator_1")
        return differing(loaded, weight_handle.version)

    def close(self, variant):
        self.receivers.pop(variant).close()
        return open_memfds()


class Crew:
    """The actors, and the way a driver moves weight_handles between them."""

    def __init__(self):
        self.learner = self.start(Learner)
        self.generators = [self.start(Generator) for _ in range(3)]
        make_group([self.learner, *self.generators], "gloo")

    @staticmethod
    def start(actor):
        return actor.options(num_cpus=0, runtime_env={"env_vars": ENVIRONMENT}).remote()

    def replace(self, number):
        """Kill a Generator and start another in its place; the group is made anew."""
        ray.kill(self.generators[number])
        self.generators[number] = self.start(Generator)
        remake_group([self.learner, *self.generators], "gloo")

    def publish(self, variant, version, still_needed=(), damage=False):
        return ray.get(self.learner.publish.remote(variant, version, still_needed, damage))

    def receive(self, variant, weight_handle, generators=(0, 1)):
        """What each of these Generators finds wrong with the weight_handle's weights."""
        kind = TRANSPORTS[VARIANTS[variant][0]]
        arrived = []
        if kind.two_sided:
            send = self.learner.outgoing.options(tensor_transport=kind.tensor_transport)
            arrived = [send.remote(variant, weight_handle.version)]
        return ray.get([self.generators[i].receive.remote(variant, weight_handle, *arrived) for i in generators])


@pytest.fixture(scope="module")
def crew():
    before = set(os.listdir("/dev/shm"))
    folder = tempfile.mkdtemp(prefix="gh-", dir="/tmp")  # short: Ray makes sockets in it, whose paths are bounded
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
        object_store_memory=100 << 20,
    )
    yield Crew()
    end_group()
    ray.shutdown()
    shutil.rmtree(folder)
    assert set(os.listdir("/dev/shm")) == before


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, crew):
    """An opened transport; closing it leaves nothing behind."""
    notes = ray.get(crew.learner.open.remote(request.param))
    assert all(isinstance(line, str) for line in notes)
    yield request.param
    folder = ray.get(crew.learner.files.remote(request.param))[0] if request.param == "disk" else None
    left_by_generators = ray.get([generator.close.remote(request.param) for generator in crew.generators])
    assert left_by_generators == [0, 0, 0]
    assert ray.get(crew.learner.close.remote(request.param)) == 0
    assert folder is None or not folder.exists()


def test_a_generator_that_replaces_a_killed_one_reads_the_same_tickets(crew):
    """With gloo only where nothing was on the way: a Generator that dies while it receives takes the Learner along."""
    weight_handles = {}
    for name in VARIANTS:
        ray.get(crew.learner.open.remote(name))
        weight_handles[name] = crew.publish(name, 80)
        assert crew.receive(name, weight_handles[name]) == [[], []]
    crew.replace(1)
    assert {name: crew.receive(name, weight_handle) for name, weight_handle in weight_handles.items()} == {
        name: [[], []] for name in VARIANTS
    }
    for name in VARIANTS:
        ray.get([crew.learner.close.remote(name), *(crew.generators[i].close.remote(name) for i in (0, 1))])


def test_the_first_sender_of_a_process_notes_what_nixl_says(crew):
    learner = crew.start(Learner)
    assert ray.get([learner.open.remote(name) for name in ("nixl", "nixl one by one")]) == [
        ("NIXL: Backend UCX was instantiated", f"NIXL: Initialized NIXL agent: {learner._actor_id.hex()}"),
        (),
    ]
    ray.kill(learner)


def test_every_version_arrives_as_it_was_published_and_the_learner_trains_on(crew, variant):
    for version in range(4):
        weight_handle = crew.publish(variant, version, [version - 1])
        assert crew.receive(variant, weight_handle) == [[], []]


def test_a_ticket_counts_the_bytes_of_the_tensors(crew, variant):
    weight_handle = crew.publish(variant, 10)
    small = sum(1 + i % 5 for i in range(NUM_SMALL))
    # embedding and its twin, half (2 bytes), scale, transposed, counts (8 bytes), big, small
    num_bytes = 2 * 4 * 37 * 11 + 2 * 5 * 3 * 7 + 4 + 4 * 8 * 6 + 8 * 3 + 4 * 250_000 + 4 * small
    assert (weight_handle.version, weight_handle.num_bytes, weight_handle.num_tensors) == (10, num_bytes, 8 + NUM_SMALL)


def test_an_old_ticket_stays_readable_while_its_version_is_needed(crew, variant):
    old = crew.publish(variant, 20)
    middle = crew.publish(variant, 21, [20])
    new = crew.publish(variant, 22, [20, 21])
    for weight_handle in (old, new, middle, old):
        assert crew.receive(variant, weight_handle) == [[], []]
    crew.publish(variant, 23, [22])
    held = [ray.get(crew.learner.is_held.remote(variant, version)) for version in (20, 21, 22, 23)]
    assert held == [False, False, True, True]


def test_memory_is_reused(crew, variant):
    places = set()
    for version in range(30, 40):
        crew.publish(variant, version, [version - 1])
        places.add(ray.get(crew.learner.place_of.remote(variant, version)))
    if variant in REUSING:  # the two of the versions that are needed, and a third from when three were
        assert len(places) <= 3
    if variant == "disk":
        names = ray.get(crew.learner.files.remote(variant))[1]
        assert names == ["weights-38.safetensors", "weights-39.safetensors"]


def test_one_wrong_bit_is_found(crew, variant):
    damaged = crew.publish(variant, 50, damage=True)
    with pytest.raises(RunStopped, match="version 50 that generator_1 received are not the published ones"):
        crew.receive(variant, damaged)


def test_a_version_is_published_once(crew, variant):
    crew.publish(variant, 60)
    with pytest.raises(ValueError, match="version 60 is published already"):
        crew.publish(variant, 60, [60])


def test_a_receiver_may_come_late(crew, variant):
    for version in (70, 71, 72):
        weight_handle = crew.publish(variant, version, [version - 1])
    assert crew.receive(variant, weight_handle, generators=[2]) == [[]]
