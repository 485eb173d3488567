"""Parts that share a GPU within one process: which stream waits for which, told by a stand-in for ``torch.cuda``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.trace import RecordingTracer, SpanContext, Stage
from harness.core.types import RolloutGroup
from harness.run.inprocess import InProcessParts, streams_of_their_own
from harness.run.parts import RunningParts
from harness.scenario.schema import Scenario
from harness.transports.in_process import InProcessTransport

SORTING = {
    "task": {"type": "sorting"},
    "model": {"type": "sorting", "threads": 1},
    "rollout_batch_size": 4,
    "group_size": 2,
}


class Cuda:
    """``torch.cuda`` without a device: streams that only tell what they are asked for, one for each part."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.priorities: dict[str, int] = {}
        self._names = iter(("generator", "scorer", "learner"))
        self._default, self._of_thread = Stream("default", self.log), threading.local()

    def Stream(self, priority: int = 0) -> Stream:
        name = next(self._names)
        self.priorities[name] = priority
        return Stream(name, self.log)

    def set_stream(self, stream: Stream) -> None:
        self._of_thread.stream = stream
        self.log.append(f"a thread enters {stream.name}")

    def current_stream(self) -> Stream:
        return getattr(self._of_thread, "stream", self._default)

    def default_stream(self) -> Stream:
        return self._default


class Stream:
    """A stream of ``Cuda``; its events are named by their number."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log, self._events = name, log, 0

    def record_event(self) -> str:
        self._events += 1
        self._log.append(f"{self.name} records {self._events}")
        return f"{self.name} {self._events}"

    def wait_event(self, event: str) -> None:
        self._log.append(f"{self.name} waits for {event}")

    def wait_stream(self, stream: Stream) -> None:
        self._log.append(f"{self.name} waits for {stream.name}")

    def synchronize(self) -> None:
        self._log.append(f"{self.name} is done")


class Story(RecordingTracer):
    """Writes the beginning and the end of each span into a log."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(lambda: 0)
        self._log = log

    @contextmanager
    def _told(self, stage: Stage) -> Iterator[None]:
        self._log.append(f"{stage} {{")
        yield
        self._log.append("}")

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        return self._told(stage)


async def two_steps(parts: RunningParts, lag: int) -> None:
    """Two training steps by hand, so that their order is known: batches of ``lag`` steps ahead are sampled first."""
    (generator,), (scorer,), learner = parts.generators, parts.scorers, parts.learner
    orders, batches = list(parts.plan.train_orders(shards=1)), list[tuple[RolloutGroup, ...]]()
    for version in range(2):
        weight_handle = await learner.publish_weights(version, frozenset({version - 1}))
        await generator.load_weights(weight_handle)
        for item in orders[len(batches) : version + 1 + lag]:
            batches.append((await scorer.score(item, await generator.generate(item))).groups)
        await learner.update(version, batches[version])
    parts.close()


def story_of(device: str, colocated: bool) -> list[str]:
    """What the streams of two training steps are asked for, were the parts on this device."""
    cuda, lag = Cuda(), 0 if colocated else 1
    scenario = Scenario.model_validate(
        {**SORTING, "steps": 2, "max_lag": lag, "placement": {"device": "cpu", "colocated": colocated}}
    )
    parts = InProcessParts(
        scenario, Story(cuda.log), lambda: False, lambda _, together: streams_of_their_own(device, together, cuda)
    )
    asyncio.run(two_steps(parts, lag))
    return cuda.log


def span(stage: str, part: str, *inside: str) -> list[str]:
    """A stage that ends when the part's own stream is done."""
    return [f"{stage} {{", *inside, f"{part} is done", "}"]


def entered(part: str) -> list[str]:
    """A thread's first call: its stream comes behind the making of the parts."""
    return [f"{part} waits for default", f"a thread enters {part}"]


def test_each_parts_stream_waits_for_what_it_needs_and_for_no_other() -> None:
    sampled = span("generate", "generator")
    scored = span("score", "scorer")
    trained = span("prepare_batch", "learner") + span("update", "learner")

    def loaded(version: int) -> list[str]:
        return span("weight_transfer", "generator", f"generator waits for learner {version + 1}") + span(
            "weight_load", "generator"
        )

    assert story_of("cuda", colocated=False) == [
        *entered("learner"),
        *span("weight_publish", "learner", "learner records 1"),
        *entered("generator"),
        *loaded(0),
        *entered("generator"),
        *sampled,
        *entered("scorer"),
        *scored,
        *sampled,  # one step ahead
        *scored,
        *trained,
        *span("weight_publish", "learner", "learner records 2"),
        *loaded(1),
        *trained,
    ]


@pytest.mark.parametrize(("device", "colocated"), [("cpu", False), ("cpu", True), ("cuda", True)])
def test_where_parts_take_turns_or_compute_on_the_cpu_no_stream_is_touched(device: str, colocated: bool) -> None:
    log = story_of(device, colocated)
    assert [line for line in log if line != "}" and not line.endswith("{")] == []
    assert [line for line in log if line.startswith("weight_transfer")] == ["weight_transfer {"] * 2
    cuda = Cuda()
    streams_of_their_own("cuda", False, cuda)
    assert cuda.priorities == {"generator": -1, "scorer": 0, "learner": 0}  # its short kernels go first


def test_the_copys_memory_is_kept_until_the_generators_stream_has_read_it() -> None:
    class OnGpu:
        is_cuda = True

        def detach(self) -> OnGpu:
            return self

        def clone(self) -> OnGpu:
            log.append("learner copies")
            return OnGpu()

        def numel(self) -> int:
            return 3

        def element_size(self) -> int:
            return 4

        def record_stream(self, stream: Any) -> None:
            log.append(f"kept for {stream.name}")

    log: list[str] = []
    streams: Any = SimpleNamespace(learner=Stream("learner", log), generator=Stream("generator", log))
    transport, weights = InProcessTransport(True, streams), {"w": OnGpu()}
    received = transport.receive(transport.publish_weights(weights, 0))  # type: ignore[arg-type]
    assert received["w"] is not weights["w"]
    assert log == ["learner copies", "learner records 1", "generator waits for learner 1", "kept for generator"]


def test_the_streams_that_torch_has_can_be_asked_for_the_same() -> None:
    # torch.cuda.streams: vLLM on CPUs puts a placeholder into torch.cuda
    asked = {"record_event", "wait_event", "wait_stream", "synchronize"}
    assert asked == {name for name in vars(Stream) if not name.startswith("_")} <= set(dir(torch.cuda.streams.Stream))
    assert {"Stream", "set_stream", "current_stream", "default_stream"} <= set(dir(torch.cuda))
    assert callable(torch.Tensor.record_stream)
