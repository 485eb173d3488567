"""The table of a run's memory: for each process its parts, their bytes and when they are held; and its sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.models.config import ModelConfig
from harness.scenario.schema import Scenario

Device = Literal["cpu", "cuda"]
Phase = Literal["startup", "sampling", "loading", "reference_logprobs", "gradients", "optimizer_step", "publish"]
"""``startup`` ends when the parts are ready. The Learner's phases are those of ``harness.settings.learner.Phase`` which
decide: what it does in the others takes no more."""
SAMPLING: tuple[Phase, ...] = ("sampling", "loading")
TRAINING: tuple[Phase, ...] = ("reference_logprobs", "gradients", "optimizer_step", "publish")
RUNNING = SAMPLING + TRAINING
ALWAYS: tuple[Phase, ...] = ("startup", *RUNNING)
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
FILE_BYTES = {"learner": 80 * 2**20, "generator": 40 * 2**20, "scorer": 4 * 2**20}
"""Of the libraries of a process of a run with actors, what is pages of files, which other processes map too."""
CACHE = "key/value cache"
OF_VLLM = ("engine weights", CACHE, "vLLM's workspace")
"""What a vLLM's share of a GPU is for."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes of one part of a process, and the phases in which it is held.

    ``more`` bytes are taken beyond those where there is room for them. ``shared`` ones lie in memory that other
    processes map too; one of them has the amount.
    """

    name: str
    num_bytes: int
    phases: tuple[Phase, ...] = RUNNING
    more: int = 0
    shared: bool = False


def present(amounts: Iterable[Amount]) -> tuple[Amount, ...]:
    return tuple(amount for amount in amounts if amount.num_bytes or amount.more)


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What one process of a run holds on one device.

    Attributes:
        name: the part, or ``run`` for all parts in one process.
        overlapping: whether the Generator samples while the Learner trains, so that their phases add up.
        gives_back: whether it leaves what it does not hold in a phase to others; else its allocator keeps its peak.
        count: how many such processes there are.
        gpus: share of a GPU that one reserves; 0 on a GPU takes the first, as all runs of one process do.
        vllm_share: of its GPU's whole memory that a vLLM in it is told to take; None where it is told none.
        lanes: whose processes these are.
    """

    name: str
    device: Device
    amounts: tuple[Amount, ...]
    overlapping: bool = False
    gives_back: bool = False
    count: int = 1
    gpus: float = 0.0
    vllm_share: float | None = None
    lanes: tuple[str, ...] = ()

    def at(self, phase: Phase) -> int:
        return sum(amount.num_bytes for amount in self.amounts if phase in amount.phases)

    @property
    def peak(self) -> int:
        """Most bytes that one such process has to hold at a time."""
        if not self.overlapping:
            return max(map(self.at, ALWAYS))
        both = sum(amount.num_bytes for amount in self.amounts if set(RUNNING) <= set(amount.phases))
        return max(map(self.at, SAMPLING)) + max(map(self.at, TRAINING)) - both

    @property
    def own_peak(self) -> int:
        """What of its peak no other process maps."""
        shared = sum(amount.num_bytes for amount in self.amounts if amount.shared)
        return self.peak - shared - FILE_BYTES.get(self.kind, 0)

    @property
    def more(self) -> int:
        """Bytes that one such process takes beyond its peak where there is room for them."""
        return sum(amount.more for amount in self.amounts)

    @property
    def kind(self) -> str:
        return self.name.partition(",")[0]

    @property
    def once(self) -> tuple[Amount, ...]:
        """What it has in main memory of which runs side by side have one: the libraries of one process, or Ray."""
        one_for_all = self.device == "cpu" and self.name in ("run", "host of the GPU", "ray and driver")
        return tuple(amount for amount in self.amounts if one_for_all and amount.phases == ALWAYS)

    def keeps(self, phase: Phase | None, gpu_size: int | None) -> int:
        """Bytes that one keeps from others in a phase (None: at its peak), on a GPU of this size (None: not known).

        A vLLM that is told to takes all of its share of the GPU.
        """
        holds_cache = (
            not self.gives_back
            or phase is None
            or any(amount.name == CACHE and phase in amount.phases for amount in self.amounts)
        )
        beyond = 0
        if self.vllm_share is not None and gpu_size is not None and holds_cache:
            of_vllm = sum(amount.num_bytes for amount in self.amounts if amount.name in OF_VLLM)
            beyond = max(0, round(self.vllm_share * gpu_size) - of_vllm)
        return (self.at(phase) if self.gives_back and phase else self.peak) + beyond


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run holds, process by process; ``prompt_tokens`` of the longest prompt are assumed."""

    scenario: Scenario
    shape: ModelConfig
    prompt_tokens: int
    processes: tuple[ProcessPlan, ...]

    def on(self, device: Device) -> list[ProcessPlan]:
        """Return the plan of each process on a device, as often as there are such processes."""
        return [process for process in self.processes for _ in range(process.count) if process.device == device]

    def at_once(self, processes: Sequence[ProcessPlan], gpu_size: int | None = None) -> int:
        """Return the most bytes that processes of this plan hold together in one memory, a GPU of this size.

        Without lag, Generators and Learner take turns wherever they are: the largest phase decides.
        """
        phases: tuple[Phase | None, ...] = ALWAYS if self.scenario.is_synchronous else (None,)
        return max(sum(process.keeps(phase, gpu_size) for process in processes) for phase in phases)

    def total(self, device: Device) -> int:
        return self.at_once(self.on(device))
