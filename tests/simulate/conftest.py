"""Machine profiles and runs that are made by hand, for every test of the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.core.trace import Span, Stage, stage_named
from harness.results import Manifest, RunFolder, Scrubber, ShardRow, StepRow, TailRow
from harness.run.memory.shape import shape_for
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel
from harness.simulate.features import (
    Group,
    Workload,
    batch_features,
    generate_features,
    sync_features,
    update_features,
    weight_bytes,
    weight_tensors,
)
from harness.simulate.machine import Device, MachineProfile, StageCost
from harness.simulate.ranks import COLLECTIVES, RankCosts
from harness.simulate.timeline import ASSUMED_SLOWDOWN

ABACUS = Path(__file__).parents[1] / "stand_ins" / "abacus.yaml"
ONE_LAG = ABACUS.with_name("one_lag.yaml")
MS = 1_000_000
MACHINE = {"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "ray": "2.60.0"}


def cost(stage: str, where: dict[str, str] | None = None, **seconds: float) -> StageCost:
    return StageCost(stage=stage, where=where or {}, seconds=seconds)


def made(*stages: StageCost, device: Device | None = None, **told: Any) -> MachineProfile:
    """Return a profile of these stages, made by hand."""
    usual = {"name": "by hand", "made": "2026-11-21", "sources": ("by hand",)}
    return MachineProfile(**(usual | told), device=device or Device(name="made up"), stages=stages)


Rows = Iterable[tuple[str, str, float, float, int]]
"""Lane, stage, start and end in milliseconds, step."""
WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> Iterator[WriteRun]:
    """Write a run with these spans, and these rows beside those of its steps; return its folder."""
    with ExitStack() as opened:

        def write(
            spans: Rows | Sequence[Span],
            rows: Sequence[Any] = (),
            settings: str = "",
            steps: Sequence[dict[str, Any]] = ({},),
            root: Path = tmp_path / "results",
            status: str = "completed",
            **manifest: Any,
        ) -> Path:
            scrubber = Scrubber(home="/home/ann", cwd="/home/ann/harness", host="annbox", user="ann")
            name = f"run{len(list(root.glob('made/*/*')))}"
            run = opened.enter_context(RunFolder.create(root, "made", "20261121-120000", name, scrubber=scrubber))
            if settings:
                run.write_scenario(settings)
            told = {"arm": name, "machine": MACHINE, "versions": VERSIONS, "started_at": "2026-11-21T12:00:00.000Z"}
            run.write_manifest(Manifest(**{"scenario": "made", "experiment": "20261121-120000"} | told | manifest))
            run.append_spans(
                each
                if isinstance(each, Span)
                else Span(each[0], stage_named(each[1]), round(each[2] * MS), round(each[3] * MS), each[4], each[4])
                for each in spans
            )
            run.append(*rows)
            for step, more in enumerate(steps):
                row = {"step": step, "version": step + 1, "wall_s": 0.2, "elapsed_s": 0.2 * (step + 1), "lanes": {}}
                run.append(StepRow(**{"optimizer_steps": 1, "metrics": {}} | row | more))
            run.append(TailRow(wall_s=0.0, elapsed_s=0.2 * len(steps), lanes={}))
            run.finish(status, None, {})
            return run.folder

        yield write


def shard(step: int, lengths: Sequence[tuple[int, ...]], prompt_tokens: Sequence[int], number: int = 0) -> ShardRow:
    """Return the row of a batch's groups, of which nobody was rewarded."""
    return ShardRow(
        purpose="train",
        step=step,
        shard=number,
        prompt_ids=tuple(range(len(lengths))),
        prompt_tokens=tuple(prompt_tokens),
        versions=((step, step),) * len(lengths),
        lengths=tuple(lengths),
        rewards=tuple((0.0,) * len(each) for each in lengths),
    )


GENERATE = {"prompt_gflop": 0.007, "decode_layer": 0.0003, "weight_gb": 0.07, "row_layer": 1e-5, "row_gflop": 0.006}
UPDATE = {"parameter_gb": 1.3, "position_gflop": 0.016, "position_layer": 1.5e-5, "pair_gb": 4.0}
SYNC = {"call": 0.001, "gb": 0.1}
EXCHANGES = {"ddp": {"collective_s": 1.5, "unit": 0.0}, "fsdp2": {"collective_s": 0.8, "unit": 0.002}}
SCORE = {"call": 0.0001, "response": 5e-6}
ARMS = (("tiny", 64, 8), ("tiny", 128, 8), ("small", 16, 4), ("small", 64, 8), ("course", 16, 4), ("course", 32, 8))
"""Preset, rollouts of a batch, group size."""
STEPS = 8


def seconds_of(costs: dict[str, float], units: dict[str, float]) -> float:
    return sum(seconds * units[feature] for feature, seconds in costs.items())


class Planted:
    """Writes runs whose stages cost what is planted, a little longer or shorter where there is noise."""

    def __init__(self, write: WriteRun, root: Path) -> None:
        self.root, self._write, self._count = root, write, 0

    def write(
        self,
        preset: str = "small",
        rollouts: int = 64,
        group_size: int = 8,
        *,
        noise: float = 0.0,
        steps: int = STEPS,
        groups: bool = True,
        settings: str = "",
        sharding: str = "none",
        stream: str = "null",
        **told: Any,
    ) -> Path:
        """Write one run below ``root``; return its folder."""
        self._count += 1
        settings = (
            f"name: calibration\nmodel: {{preset: {preset}, threads: 1, precision: bfloat16}}\n"
            f"engine: {{type: native, precision: bfloat16}}\nrollout_batch_size: {rollouts}\ngroup_size: {group_size}\n"
            f"transport: {{type: shared_memory}}\nlearner: {{sharding: {sharding}, stream: {stream}}}\n"
            f"placement: {{colocated: false, learner: {{ranks: {1 if sharding == 'none' else 2}}}, "
            f"generator: {{count: {1 if stream == 'null' else 2}}}}}\n{settings}"
        )
        (self.root.parent / "scenario.yaml").write_text(settings)
        scenario = load_scenario(self.root.parent / "scenario.yaml")
        rng = random.Random(self._count)
        spans, shards = list[Span](), list[ShardRow]()
        for step in range(steps):
            lengths = [tuple(rng.randint(8, 32) for _ in range(group_size)) for _ in range(rollouts // group_size)]
            now_ns = spans[-1].end_ns if spans else 0
            spans += _spans(scenario, [(12, each) for each in lengths], step, now_ns, rng, noise)
            shards.append(shard(step, lengths, (12,) * len(lengths)))
        warm = [{"warmup": step < 2} for step in range(steps)]
        named = {"arm": f"{preset}_{rollouts}_{self._count}"} | told
        return self._write(spans, shards if groups else (), settings, warm, root=self.root, **named)

    def write_all(self, noise: float = 0.0) -> None:
        """Write every arm twice."""
        for preset, rollouts, group_size in (*ARMS, *ARMS):
            self.write(preset, rollouts, group_size, noise=noise)


@pytest.fixture
def planted(write_run: WriteRun, tmp_path: Path) -> Planted:
    """Writes runs of planted costs below ``tmp_path/results``."""
    return Planted(write_run, tmp_path / "results")


def _spans(
    scenario: Scenario, groups: list[Group], step: int, start_ns: int, rng: random.Random, noise: float
) -> list[Span]:
    shape = shape_for(scenario)[0]
    assert shape is not None
    sync = sync_features(weight_bytes(shape), weight_tensors(shape))
    update_s = seconds_of(UPDATE, update_features(shape, groups, scenario.microbatch_size, 1, 1))
    if scenario.placement.learner.ranks > 1:
        update_s = _of_ranks(scenario, step, groups)
    stages = (
        ("learner", Stage.WEIGHT_PUBLISH, seconds_of(SYNC, sync)),
        ("generator", Stage.WEIGHT_TRANSFER, seconds_of(SYNC, sync)),
        ("generator", Stage.GENERATE, seconds_of(GENERATE, generate_features(shape, groups, 256))),
        ("scorer", Stage.SCORE, seconds_of(SCORE, batch_features(groups))),
        ("learner", Stage.UPDATE, update_s),
    )
    spans = []
    for lane, stage, seconds in stages:
        end_ns = start_ns + round(1e9 * seconds * (1 + noise * rng.gauss(0, 1)))
        spans.append(Span(lane, stage, start_ns, end_ns, step, step))
        start_ns = end_ns
    return spans


def _of_ranks(scenario: Scenario, step: int, groups: list[Group]) -> float:
    """Return what an update of ranks takes with planted collectives and exchanges, beside each other."""
    profile = made(cost("update", **UPDATE), *(cost(name, hop=0.0005, gb=1.0) for name in COLLECTIVES))
    shared = RankCosts("learner", CostModel(scenario, profile), Workload(scenario), profile).shared(
        Stage.UPDATE, step, groups
    )
    ((mode, features),) = shared.exchanged.items()
    return (1 + ASSUMED_SLOWDOWN) * (shared.pace_s + seconds_of(EXCHANGES[mode], features))
