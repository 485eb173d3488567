"""Weights that leave while the next step trains: what is copied, when they may change, and who hears of errors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import WeightHandle
from harness.learner import PolicyTrainer
from harness.learner.ranks import FsdpRanks
from harness.learner.trainer import plan_training_step
from harness.models.decoder import DecoderLM, decoder_without_weights
from harness.run.overlapped_publish import OverlappedPublish
from harness.run.rank_worker import LearnerRank
from harness.run.workers import LearnerWorker
from harness.settings.learner import MeshShape
from harness.transports.in_process import InProcessTransport
from harness.transports.protocol import TransportOptions
from harness.transports.sharded import shard_receiver
from harness.transports.shared_memory import SharedMemorySender
from tests.learner.tiny_training import CONFIG, OPTIONS, groups
from tests.rank_pool import RankPool

PATIENCE_S = 60.0


class WatchedPublish(OverlappedPublish):
    """Says when its wait begins."""

    def __init__(self, timeout_s: float, waiting: threading.Event) -> None:
        super().__init__(timeout_s)
        self.waiting = waiting

    def wait_until_copied(self, version: int) -> None:
        self.waiting.set()
        super().wait_until_copied(version)


class LateTransport(InProcessTransport):
    """Copies weights only when the training step beside it has its gradient and waits."""

    def __init__(self, waiting: threading.Event, fails: bool = False) -> None:
        super().__init__(snapshot=True)
        self._waiting, self._fails = waiting, fails

    def publish_weights(
        self, weights: Mapping[str, Tensor], version: int, still_needed: frozenset[int] = frozenset()
    ) -> WeightHandle:
        if version:
            assert self._waiting.wait(PATIENCE_S)
            self._waiting.clear()
        if version and self._fails:
            raise RunStopped("the disk is full")
        return super().publish_weights(weights, version, still_needed)


def copied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def learner(transport: InProcessTransport, tracer: RecordingTracer | None = None, **options: Any) -> LearnerWorker:
    trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, OPTIONS)
    return LearnerWorker(trainer, transport, tracer=tracer or RecordingTracer(lambda: 0), **options)


def test_each_version_is_copied_whole_though_the_next_step_has_its_gradient() -> None:
    waiting, tracer = threading.Event(), RecordingTracer(iter(range(10**6)).__next__)
    transport, alone = LateTransport(waiting), learner(InProcessTransport(snapshot=True))
    worker = learner(transport, tracer, verify=True, overlapped=WatchedPublish(PATIENCE_S, waiting))
    worker.publish_weights(0, frozenset())
    worker.update(0, groups(seed=0))
    alone.update(0, groups(seed=0))
    with ThreadPoolExecutor(1) as publisher:
        for version in (1, 2, 3):
            wanted = copied(alone.trainer.weights())
            waiting.clear()
            publishing = publisher.submit(worker.publish_weights, version, frozenset())
            worker.update(version, groups(seed=version))
            assert publishing.result(PATIENCE_S).version == version
            published = transport.published(version)
            assert all(torch.equal(published[name], tensor) for name, tensor in wanted.items())
            alone.update(version, groups(seed=version))
            now = alone.trainer.weights()
            assert all(torch.equal(tensor, now[name]) for name, tensor in worker.trainer.weights().items())
            assert not all(torch.equal(published[name], tensor) for name, tensor in now.items())
    spans = tracer.drain()
    assert {span.lane for span in spans if span.stage is Stage.WEIGHT_PUBLISH} == {"publisher"}
    waits = [(span.lane, span.step) for span in spans if span.stage is Stage.WAIT_FOR_WEIGHTS]
    assert waits == [("learner", 1), ("learner", 2), ("learner", 3)]


def test_a_copy_that_fails_or_never_comes_ends_the_training_step_that_waits_for_it() -> None:
    waiting = threading.Event()
    worker = learner(LateTransport(waiting, fails=True), overlapped=WatchedPublish(PATIENCE_S, waiting))
    worker.publish_weights(0, frozenset())
    worker.update(0, groups())
    before = copied(worker.trainer.weights())
    waiting.clear()
    with ThreadPoolExecutor(1) as publisher:
        publishing = publisher.submit(worker.publish_weights, 1, frozenset())
        with pytest.raises(RunStopped) as raised:
            worker.update(1, groups())
        assert publishing.exception(PATIENCE_S) is raised.value
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.trainer.weights().items())
    late = learner(InProcessTransport(snapshot=True), overlapped=OverlappedPublish(timeout_s=0.01))
    with pytest.raises(RunStopped, match=r"version 0 .*0\.01 s"):
        late.update(0, groups())


def published_by_ranks(rank: int) -> list[dict[str, Tensor]]:
    """Publish beside the next training step on FSDP2 ranks; rank 0 returns what a Generator would load.

    At each step the copying begins when the optimizer step waits for it, after a forward and a backward pass in which
    FSDP2 had gathered the weights.
    """
    import torch.distributed as dist

    waiting = threading.Event()

    class Group:
        rank = dist.get_rank()

        def agree(self, what: str, mine: str) -> None: ...

    ranks = FsdpRanks("fsdp2", MeshShape(shard=2), device="cpu")
    model = DecoderLM(CONFIG, seed=1) if rank == 0 else decoder_without_weights(CONFIG)
    trainer, options = PolicyTrainer(model, 0, OPTIONS, ranks=ranks), TransportOptions()
    sender = SharedMemorySender(options)
    worker = LearnerRank(
        trainer,
        sender,
        tracer=RecordingTracer(lambda: 0),
        group=Group(),  # type: ignore[arg-type]
        publish="shards",
        verify=True,
        overlapped=WatchedPublish(PATIENCE_S, waiting),
    )
    receiver = shard_receiver("shared_memory", options)
    found: list[dict[str, Tensor]] = []

    def publish(version: int) -> None:
        """Do what the driver has the ranks do; they meet on a group of their own."""
        drafts = [worker.begin_publish(version, frozenset()) if rank == 0 else None]
        dist.broadcast_object_list(drafts, 0, group=driver)
        if version:
            assert waiting.wait(PATIENCE_S)
            waiting.clear()
        assert drafts[0] is not None
        written: list[object] = [None, None]
        dist.all_gather_object(written, worker.write_shards(drafts[0], None), group=driver)
        if rank == 0:
            handle = worker.finish_publish(drafts[0], written)  # type: ignore[arg-type]
            found.append(copied(receiver.receive(handle)))
        dist.barrier(group=driver)

    driver = dist.new_group(backend="gloo")
    publish(0)
    with ThreadPoolExecutor(1) as publisher:
        for step in range(3):
            made = groups(seed=step)
            waiting.clear()
            publishing = publisher.submit(publish, step) if step else None
            worker.update_together(
                step, made, plan_training_step(step, made, trainer.options, trainer.ranks.data_ranks)
            )
            if publishing is not None:
                publishing.result(PATIENCE_S)
    receiver.close()
    sender.close()
    return found


def test_ranks_copy_their_pieces_of_one_version(rank_pool: RankPool) -> None:
    alone = learner(InProcessTransport(snapshot=True))
    wanted = [copied(alone.trainer.weights())]
    for step in range(2):
        alone.update(step, groups(seed=step))
        wanted.append(copied(alone.trainer.weights()))
    found, _ = rank_pool.run(2, published_by_ranks)
    assert len(found) == 3
    for published, expected in zip(found, wanted, strict=True):
        assert published.keys() == expected.keys()
        moved = [(published[name] - tensor).abs().max().item() for name, tensor in expected.items()]
        assert max(moved) < 1e-4  # one optimizer step moves a weight by up to 1e-2
