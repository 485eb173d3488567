"""How weights move from the Learner to the Generators."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harness.settings.base import (
    BY_COLON,
    BY_TYPE,
    OF_HARNESS,
    OF_PLUGIN,
    AtLeast0,
    AtLeast1,
    NonEmptyText,
    Parts,
    PluginName,
    PluginOptions,
    Positive,
    Settings,
)

TransportName = Literal[
    "object_store", "object_store_numpy", "nixl", "gloo", "nccl", "broadcast", "cuda_ipc", "disk", "shared_memory"
]


class InProcessTransportSettings(Settings):
    """Weights stay in the process."""

    type: Literal["in_process"] = "in_process"
    """No transport: all parts live in one process."""


class ActorTransportSettings(Settings):
    """What every transport between Ray actors has.

    Attributes:
        one_host: whether it works within one host only; each class says so where it begins.
    """

    one_host: ClassVar[bool]
    verify: bool = True
    """Compare a checksum of what the engine loaded from with the published one at each sync; else the run stops."""
    dtype: Literal["trained", "engine"] = "trained"
    """Weights travel in the type in which they are trained, or in engine.precision: half the bytes for bfloat16."""

    def __init_subclass__(cls, *, one_host: bool, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.one_host = one_host


class ObjectStoreTransportSettings(ActorTransportSettings, one_host=False):
    """Ray's object store, given the plain state_dict of torch tensors: what Ray does by default."""

    type: Literal["object_store"] = "object_store"
    """Ray's object store with torch tensors, which Ray copies through its serialiser."""


class ObjectStoreNumpyTransportSettings(ActorTransportSettings, one_host=False):
    """Ray's object store, given numpy arrays, which it stores and maps without further copies."""

    type: Literal["object_store_numpy"] = "object_store_numpy"
    """Ray's object store with numpy arrays: much faster than with torch tensors."""


class NixlTransportSettings(ActorTransportSettings, one_host=False):
    """Ray Direct Transport over NIXL (UCX)."""

    type: Literal["nixl"] = "nixl"
    """Ray Direct Transport over NIXL: one-sided reads, on CPU memory and on GPUs."""
    progress_thread_delay_us: AtLeast0 = 1000
    """Pause of NIXL's progress thread between two polls; 0 polls without a pause and takes a whole core."""


class GlooTransportSettings(ActorTransportSettings, one_host=False):
    """Ray Direct Transport over gloo."""

    type: Literal["gloo"] = "gloo"
    """Ray Direct Transport over gloo: send and receive between CPUs."""


class NcclTransportSettings(ActorTransportSettings, one_host=False):
    """Ray Direct Transport over NCCL."""

    type: Literal["nccl"] = "nccl"
    """Ray Direct Transport over NCCL: send and receive between GPUs."""


class BroadcastTransportSettings(ActorTransportSettings, one_host=False):
    """One broadcast from the Learner to all Generators, in a process group of their own."""

    type: Literal["broadcast"] = "broadcast"
    """One broadcast to all Generators (gloo, or NCCL between GPUs), each of which keeps the versions it may need."""


class CudaIpcTransportSettings(ActorTransportSettings, one_host=True):
    """Ray Direct Transport over CUDA IPC."""

    type: Literal["cuda_ipc"] = "cuda_ipc"
    """Ray Direct Transport over CUDA IPC: actors on one GPU share its memory."""


class DiskTransportSettings(ActorTransportSettings, one_host=False):
    """A safetensors file."""

    type: Literal["disk"] = "disk"
    """A safetensors file for each version."""
    folder: NonEmptyText | None = None
    """Folder of the files; null: a temporary one. Several nodes need one that all of them see."""


class SharedMemoryTransportSettings(ActorTransportSettings, one_host=True):
    """Memory that the processes of one host share."""

    type: Literal["shared_memory"] = "shared_memory"
    """One copy in shared memory, from which every Generator on the host loads."""


class PluginTransportSettings(ActorTransportSettings, one_host=False):
    """A transport of your own, see docs/extending.md."""

    type: PluginName
    """Your `TransportKind` as `package.module:NAME`."""
    options: PluginOptions = Field(default_factory=dict)
    """Passed to its sender and receivers as `options.settings.options`."""


TransportSettings = Annotated[
    Annotated[
        InProcessTransportSettings
        | ObjectStoreTransportSettings
        | ObjectStoreNumpyTransportSettings
        | NixlTransportSettings
        | GlooTransportSettings
        | NcclTransportSettings
        | BroadcastTransportSettings
        | CudaIpcTransportSettings
        | DiskTransportSettings
        | SharedMemoryTransportSettings,
        BY_TYPE,
        OF_HARNESS,
    ]
    | Annotated[PluginTransportSettings, OF_PLUGIN],
    BY_COLON,
]
AnyTransportName = Annotated[Annotated[TransportName, OF_HARNESS] | Annotated[PluginName, OF_PLUGIN], BY_COLON]


class TransportSweepSettings(Settings):
    """Measures weight syncs alone: every transport with every size, in turns, with real actors and no training."""

    transports: Annotated[tuple[AnyTransportName, ...], Field(min_length=1)] = (
        "object_store",
        "object_store_numpy",
        "nixl",
        "gloo",
        "disk",
        "shared_memory",
    )
    """Which transports."""
    megabytes: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0, 10.0, 100.0, 1000.0)
    """Sizes of the weights, in units of 10^6 bytes."""
    tensors: Annotated[tuple[AtLeast1, ...], Field(min_length=1)] = (1,)
    """Numbers of tensors that the weights are split into."""
    receivers: Annotated[tuple[Parts, ...], Field(min_length=1)] = (1,)
    """Numbers of Generators that load the same weights."""
    repeats: Annotated[int, Field(ge=3)] = 9
    """Timed syncs of each kind, in turns; one more before them is not counted."""
