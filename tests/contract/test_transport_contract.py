"""Every transport is held to ``harness.testing``; and what only some of them do.

The transports of GPUs are not here: a machine without one cannot run them (`test_transports_catalogue.py` has what is
refused). One Ray session serves them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from harness.testing import TransportContract
from harness.testing.transport import Moved
from harness.transports.catalogue import TRANSPORTS

VARIANTS = tuple(name for name, kind in TRANSPORTS.items() if not kind.needs_gpu)
REUSING = ("nixl", "gloo", "broadcast", "shared_memory")


def anonymous_files(actor):
    """How many memory files of weights an actor has open or mapped."""
    return sum("memfd:weights" in line for line in ray.get(actor.files.remote()))


class TestTransports(TransportContract):
    """Each of them, in the ways that it can be set."""

    @pytest.fixture(scope="class", params=VARIANTS)
    @classmethod
    def moved(cls, request, crew):
        """An opened transport; closing it leaves nothing behind."""
        name = request.param
        moved = Moved(crew, name, {}, key=name)
        if name == "nixl":  # the first sender of a process notes what NIXL says, and no other one
            learner = f"NIXL: Initialized NIXL agent: {crew.learner._actor_id.hex()}"
            assert moved.notes == ("NIXL: Backend UCX was instantiated", learner)
        yield moved
        folder = Path(moved.notes[0].split()[-1]) if name == "disk" else None
        moved.close()
        assert [anonymous_files(actor) for actor in (*crew.generators, crew.learner)] == [0, 0, 0, 0]
        assert folder is None or not folder.exists()

    def test_memory_is_reused(self, moved):
        places = set()
        for version in range(30, 40):
            moved.publish(version, [version - 1])
            places.add(moved.ask("place_of", version))
        if moved.key in REUSING:  # the two of the versions that are needed, and a third from when three were
            assert len(places) <= 3
        if moved.key == "disk":
            names = sorted(file.name for file in Path(moved.notes[0].split()[-1]).iterdir())
            assert names == ["weights-38.safetensors", "weights-39.safetensors"]

    def test_a_generator_that_replaces_a_killed_one_reads_the_same_handles(self, crew):
        """With gloo where nothing was on the way only: one that dies while it receives takes the Learner along."""
        opened = {key: Moved(crew, key, {}, f"{key} again") for key in VARIANTS}
        handles = {key: moved.publish(80) for key, moved in opened.items()}
        right = {key: [[], []] for key in VARIANTS}
        assert {key: moved.receive(handles[key]) for key, moved in opened.items()} == right
        crew.replace(1)
        assert {key: moved.receive(handles[key]) for key, moved in opened.items()} == right
        for moved in opened.values():
            moved.close()
