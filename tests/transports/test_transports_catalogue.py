"""The table of transports, their options, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch

from harness.core.errors import RunStopped, UserError
from harness.settings.transport import TransportName
from harness.transports.catalogue import TRANSPORTS, transport_kind
from harness.transports.collective import CollectiveReceiver, CollectiveSender
from harness.transports.in_process import InProcessTransport
from harness.transports.protocol import TransportOptions

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")


def names(field):
    return {kind.name for kind in TRANSPORTS.values() if getattr(kind, field)}


def test_every_transport_of_the_schema_is_in_the_table():
    assert tuple(TRANSPORTS) == get_args(TransportName)


def test_what_each_transport_asks_for():
    assert names("tensor_transport") == {"nixl", "gloo", "nccl", "cuda_ipc"}
    assert names("two_sided") == {"gloo", "nccl"}
    assert names("needs_gpu") == {"nccl", "cuda_ipc"}
    assert {kind.package for kind in TRANSPORTS.values()} == {None, "nixl", "cupy"}
    assert names("package") == {"nixl", "nccl"}
    assert names("own_memory") == {"object_store", "nixl", "gloo", "nccl", "broadcast"}


def test_an_unknown_name_and_a_missing_package_are_refused():
    kind = dataclasses.replace(TRANSPORTS["nixl"], package="nixl_of_tomorrow")
    for ask in (kind.check_usable, lambda: kind.sender(TransportOptions())):
        with pytest.raises(UserError, match="the package nixl_of_tomorrow is not installed"):
            ask()
    # Ray's NCCL groups are CuPy's: without it, make_group would fail when all actors are built
    with pytest.raises(UserError, match="cupy_of_tomorrow is not installed") as refused:
        dataclasses.replace(TRANSPORTS["nccl"], package="cupy_of_tomorrow").check_usable()
    assert "make install PARTS=nccl;" in refused.value.fix
    with pytest.raises(UserError, match="pigeon"):
        transport_kind("pigeon")


@without_gpu
@pytest.mark.parametrize("name", ["nccl", "cuda_ipc"])
def test_transports_of_gpu_memory_are_refused_without_a_gpu(name):
    kind = dataclasses.replace(TRANSPORTS[name], package=None)
    kind.check_usable()  # the driver may be on a machine without one
    for make in (kind.sender, kind.receiver):
        with pytest.raises(UserError, match=f"transport.type is {name}, which moves GPU memory, and torch finds no"):
            make(TransportOptions())


def test_a_two_sided_receiver_names_what_arrived_and_needs_it():
    options = TransportOptions()
    sender, receiver = CollectiveSender(options), CollectiveReceiver(options)
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3], dtype=torch.bfloat16)}
    weight_handle = sender.publish_weights(weights, 5, frozenset())
    arrived = [tensor.clone() for tensor in sender.outgoing(5)]
    assert len(arrived) == 1
    received = receiver.receive(weight_handle, arrived)
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in received.items()} == {
        "a": (torch.float32, [1, 2]),
        "b": (torch.bfloat16, [3]),
    }
    with pytest.raises(RunStopped, match="no tensors arrived with the weight_handle of version 5"):
        receiver.receive(weight_handle)


@pytest.mark.parametrize(("snapshot", "received"), [(True, [1, 1]), (False, [0, 0])])
def test_in_process_weights_are_handed_over_as_a_copy_or_as_they_are(snapshot, received):
    transport, live = InProcessTransport(snapshot), {"w": torch.ones(2, requires_grad=True)}
    weight_handle = transport.publish_weights(live, 0, frozenset())
    live["w"].detach().zero_()
    assert not transport.receive(weight_handle)["w"].requires_grad
    assert transport.receive(weight_handle)["w"].tolist() == transport.published(0)["w"].tolist() == received
    assert transport.outgoing(0) == []


def test_in_process_versions_that_are_not_needed_are_let_go():
    transport = InProcessTransport(snapshot=True)
    for version in range(3):
        transport.publish_weights({"w": torch.ones(1)}, version, frozenset({version - 1}))
    with pytest.raises(ValueError, match=r"version 0 is not held; versions \[1, 2\] are"):
        transport.published(0)
    transport.close()
    with pytest.raises(ValueError, match=r"version 2 is not held; versions \[\] are"):
        transport.published(2)
