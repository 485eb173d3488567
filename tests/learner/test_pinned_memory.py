"""Page-locked memory: as much as is asked for, unlocked when it goes, and an error where the host refuses."""

from __future__ import annotations

import gc

import pytest

from harness.core.errors import RunStopped
from harness.learner.pinned_memory import pinned_memory


class Cudart:
    """``torch.cuda.cudart()`` without a device; ``answer`` is what locking returns."""

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.locked = answer, dict[int, int]()

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if self.answer == 0:
            self.locked[address] = num_bytes
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_memory_is_locked_to_the_byte_and_unlocked_when_it_goes() -> None:
    cudart = Cudart()
    memory = pinned_memory(1_000_001, cudart)
    assert cudart.locked == {memory.data_ptr(): 1_000_001}
    del memory
    gc.collect()
    assert cudart.locked == {}


def test_a_host_that_refuses_ends_the_run_with_the_bytes() -> None:
    with pytest.raises(RunStopped, match="1,000 bytes"):
        pinned_memory(1_000, Cudart(answer=2))
