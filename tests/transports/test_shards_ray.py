"""Two ranks of a Learner as Ray actors, FSDP2 between them, and a Generator that puts their parts together."""

from __future__ import annotations

from datetime import timedelta

import pytest
import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from harness.core.errors import RunStopped
from harness.run.actors.session import process_environment
from harness.transports.catalogue import TRANSPORTS
from harness.transports.checksum import verify
from harness.transports.protocol import TransportOptions
from harness.transports.sharded import rank_sender, shard_receiver, shard_sender
from harness.transports.shards import agree, shards_of

RANKS = 2
WITHOUT_GROUP = [n for n, kind in TRANSPORTS.items() if not (kind.needs_gpu or kind.two_sided or kind.calls)]
"""Those whose ends need no process group with the Generators: the actors here are in none."""
ENVIRONMENT = process_environment(threads=1, interface="lo")


def model() -> nn.Module:
    """Rank 1 holds nothing of the last layer, and no rank the same rows as the other."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 1000), nn.Linear(1000, 1).to(torch.bfloat16))


@ray.remote(enable_tensor_transport=True)
class Rank:
    def __init__(self, rank, rendezvous):
        limit = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS, timeout=limit)
        sharded = model()
        for layer in sharded:
            fully_shard(layer)
        self.weights, self.rank, self.senders = dict(sharded.named_parameters()), rank, {}
        self.plan = agree(self.weights)[rank]

    def begin(self, transport, version, still_needed):
        return self.sender(transport).begin(version, still_needed, self.weights)

    def write(self, transport, draft, damage):
        sender = self.sender(transport)
        with torch.no_grad():
            for tensor in self.weights.values():
                tensor.fill_(draft.version)
        shards = shards_of(self.weights, self.plan)
        part = sender.add_checksum(draft, sender.write(draft, shards, self.rank))
        return part.with_checksum([shard.tensor + damage for shard in shards]) if damage else part

    def finish(self, transport, draft, parts):
        return self.sender(transport).finish(draft, parts)

    def sender(self, transport):
        if transport not in self.senders:
            self.senders[transport] = rank_sender(transport, TransportOptions(), self.rank)
        return shard_sender(self.senders[transport])

    def close(self, transport):
        self.senders.pop(transport).close()


@ray.remote(enable_tensor_transport=True)
class Generator:
    def __init__(self):
        self.receivers = {}

    def receive(self, transport, handle):
        if transport not in self.receivers:
            self.receivers[transport] = shard_receiver(transport, TransportOptions())
        received = self.receivers[transport].receive(handle)
        verify(received, handle.checksum, handle.version, "generator0")
        place = next(iter(received.values())).data_ptr()
        return place, {
            name: (tensor.shape, tensor.dtype, tensor.unique().tolist()) for name, tensor in received.items()
        }

    def close(self, transport):
        self.receivers.pop(transport).close()


class Crew:
    def __init__(self, folder):
        options = {"num_cpus": 0, "runtime_env": {"env_vars": ENVIRONMENT}}
        self.ranks = [Rank.options(**options).remote(rank, f"{folder}/rendezvous") for rank in range(RANKS)]
        self.generator = Generator.options(**options).remote()

    def publish(self, transport, version, still_needed=frozenset(), damage=0):
        draft = ray.get(self.ranks[0].begin.remote(transport, version, still_needed))
        parts = ray.get(
            [rank.write.remote(transport, draft, damage * number) for number, rank in enumerate(self.ranks)]
        )
        return ray.get(self.ranks[0].finish.remote(transport, draft, parts))


@pytest.fixture(scope="module")
def crew(session, tmp_path_factory):
    return Crew(tmp_path_factory.mktemp("crew"))


@pytest.mark.parametrize(
    "transport", [pytest.param(name, marks=() if name == "nixl" else pytest.mark.slow) for name in WITHOUT_GROUP]
)
def test_parts_of_two_actors_arrive_whole(crew, transport):
    wanted = {name: (w.shape, w.dtype) for name, w in model().named_parameters()}
    places, old = set(), None
    for version in range(4):
        handle = crew.publish(transport, version, frozenset({version - 1}))
        for read in [handle] if old is None else [handle, old]:  # the one before stays readable while it is needed
            place, received = ray.get(crew.generator.receive.remote(transport, read))
            assert received == {name: (*kind, [read.version]) for name, kind in wanted.items()}
            places.add(place)
        old = handle
    assert len(places) == (2 if transport == "shared_memory" else 1)
    damaged = crew.publish(transport, 9, damage=1)
    with pytest.raises(RunStopped, match="generator0 received from rank 1 of the Learner are not the published ones"):
        ray.get(crew.generator.receive.remote(transport, damaged))
    ray.get([crew.generator.close.remote(transport), *(rank.close.remote(transport) for rank in crew.ranks)])
