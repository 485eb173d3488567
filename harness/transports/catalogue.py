"""The one table from a transport's name to how it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from types import MappingProxyType

import torch

from harness.core.errors import UserError
from harness.core.extras import EXTRA_OF, how_to_install
from harness.core.plugins import PluginKind, check_methods, load_plugin
from harness.transports.broadcast import CALLS, BroadcastReceiver, BroadcastSender
from harness.transports.collective import CollectiveReceiver, CollectiveSender
from harness.transports.cuda_ipc import CudaIpcReceiver, CudaIpcSender
from harness.transports.disk import DiskReceiver, DiskSender
from harness.transports.nixl import NixlReceiver, NixlSender
from harness.transports.object_store import ObjectStoreNumpySender, ObjectStoreReceiver, ObjectStoreSender
from harness.transports.protocol import TransportOptions, WeightReceiver, WeightSender
from harness.transports.shared_memory import SharedMemoryReceiver, SharedMemorySender


@dataclass(frozen=True, slots=True)
class TransportKind:
    """How one transport is made, and what it asks of the actors that hold it.

    Attributes:
        name: as in ``transport.type``.
        sender_type: makes a sender.
        receiver_type: makes a receiver.
        tensor_transport: its name in Ray Direct Transport; both actors need ``enable_tensor_transport=True``. None: it
            uses none.
        two_sided: the Generator is handed what an actor method of the Learner returned (``WeightSender.outgoing``), and
            all of them form one collective group; a transfer is over before the Generator's method starts.
        package: one that the default installation may lack.
        needs_gpu: moves GPU memory only.
        own_memory: what arrives lies in memory of the receiver's own, so that an engine could use it where it is.
        calls: a concurrency group, which both actors need: in it their ends are called by each other.
    """

    name: str
    sender_type: Callable[[TransportOptions], WeightSender] = field(repr=False)
    receiver_type: Callable[[TransportOptions], WeightReceiver] = field(repr=False)
    tensor_transport: str | None = None
    two_sided: bool = False
    package: str | None = None
    needs_gpu: bool = False
    own_memory: bool = False
    calls: str | None = None

    def check_usable(self) -> None:
        """Check what can be known before there are actors.

        Raises:
            UserError: a package is not installed.
        """
        if self.package is not None and find_spec(self.package) is None:
            part = EXTRA_OF.get(self.package, self.name)
            on = f"on Linux{' with an NVIDIA driver' if self.needs_gpu else ''}"
            raise UserError(
                f"transport.type is {self.name}, and the package {self.package} is not installed",
                "transport.type",
                f"{on}: {how_to_install(part)}; or set transport.type to object_store_numpy",
            )

    def sender(self, options: TransportOptions) -> WeightSender:
        """Make the Learner's end, inside its actor; errors as of ``check_here``, or a folder cannot be made."""
        self.check_here()
        return self.sender_type(options)

    def receiver(self, options: TransportOptions) -> WeightReceiver:
        """Make a Generator's end, inside its actor; errors as of ``check_here``."""
        self.check_here()
        return self.receiver_type(options)

    def check_here(self) -> None:
        """Check that it can be used on this machine.

        Raises:
            UserError: a package is not installed, or it needs a GPU and there is none.
        """
        self.check_usable()
        if self.needs_gpu and not torch.cuda.is_available():
            raise UserError(
                f"transport.type is {self.name}, which moves GPU memory, and torch finds no CUDA device",
                "transport.type",
                "set transport.type to nixl or object_store_numpy, or placement.device to cuda on a machine with a GPU",
            )


_KINDS = (
    TransportKind("object_store", ObjectStoreSender, ObjectStoreReceiver, own_memory=True),
    TransportKind("object_store_numpy", ObjectStoreNumpySender, ObjectStoreReceiver),
    TransportKind("nixl", NixlSender, NixlReceiver, tensor_transport="nixl", own_memory=True, package="nixl"),
    TransportKind(
        "gloo", CollectiveSender, CollectiveReceiver, tensor_transport="gloo", two_sided=True, own_memory=True
    ),
    TransportKind(
        "nccl",
        CollectiveSender,
        CollectiveReceiver,
        tensor_transport="nccl",
        two_sided=True,
        package="cupy",  # Ray's NCCL groups are CuPy's; without it Ray knows no NCCL, and says so late
        needs_gpu=True,
        own_memory=True,
    ),
    TransportKind("broadcast", BroadcastSender, BroadcastReceiver, own_memory=True, calls=CALLS),
    TransportKind("cuda_ipc", CudaIpcSender, CudaIpcReceiver, tensor_transport="cuda_ipc", needs_gpu=True),
    TransportKind("disk", DiskSender, DiskReceiver),
    TransportKind("shared_memory", SharedMemorySender, SharedMemoryReceiver),
)

TRANSPORTS: Mapping[str, TransportKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
TRANSPORT_PLUGIN = PluginKind(
    "transport",
    "transport.type",
    ": a harness.transports.catalogue.TransportKind",
    "docs.examples.own_parts.parts:FILES",
    protocol=TransportKind,
)


def transport_kind(name: str) -> TransportKind:
    """Return the transport of this name, or the plugin where it is ``package.module:NAME``.

    Raises:
        UserError: there is none; or the plugin cannot be imported, or is none.
    """
    if ":" in name:
        return _plugin_transport(name)
    if name not in TRANSPORTS:
        raise UserError(f"there is no transport {name}", "transport.type", f"one of {', '.join(TRANSPORTS)}")
    return TRANSPORTS[name]


def _plugin_transport(path: str) -> TransportKind:
    kind = load_plugin(path, TRANSPORT_PLUGIN)
    if not isinstance(kind, TransportKind):
        raise UserError(
            f"the transport {path} is of type {type(kind).__name__}, not a TransportKind",
            TRANSPORT_PLUGIN.setting,
            f'define {path.partition(":")[2]} = TransportKind("its name", MySender, MyReceiver), '
            "from harness.transports.catalogue",
        )
    for made, protocol in ((kind.sender_type, WeightSender), (kind.receiver_type, WeightReceiver)):
        if isinstance(made, type):
            check_methods(made, protocol, f"{path} ({made.__name__})", TRANSPORT_PLUGIN)
    return replace(kind, name=path)
