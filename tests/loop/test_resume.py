"""A toy run that is killed and goes on from its files makes the same batches, bit for bit; which files are refused."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from harness.core.errors import HarnessError, UserError
from harness.core.seeds import derive_seed
from harness.core.types import (
    Completion,
    GroupData,
    Metric,
    Prompt,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
)
from harness.loop import LoopPlan, Observer, run_loop
from harness.loop.plan import prompt_schedule
from harness.loop.state import LoopState, with_data
from harness.loop.state_files import FILES, decode, encode, read_files, write_files
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from harness.simulate.clock import run_virtual
from tests.stand_ins.checked_loop import CheckedLoop

PLAN = LoopPlan(
    steps=20,
    group_size=2,
    max_lag=0,
    evaluate_every=3,
    batch_prompts=prompt_schedule(30, 4, 5),
    validation_prompts=(0, 1),
    seed=5,
    checkpoint_every=1,
)

STATE, TOKENS = FILES[LoopState]


class Killed(HarnessError):
    """Everything died."""


@dataclass
class Toy(Observer):
    """A policy that is the hash of everything it was trained on; whoever samples with it depends on every bit.

    ``batches`` is the policy after each step, ``told`` what was said of evaluated versions.
    """

    policy: str = "untrained"
    batches: list[str] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)
    lane = "learner"

    async def update(self, step, groups):
        digest = hashlib.sha256(self.policy.encode())
        for group in groups:
            for completion in group.data.completions:
                digest.update(completion.token_ids.tobytes() + completion.log_probs.tobytes())
            digest.update(repr((group.prompt_id, group.step, group.attempt, group.rewards)).encode())
        await asyncio.sleep(2)
        self.policy = digest.hexdigest()
        self.batches.append(self.policy)
        return UpdateResult(step + 1, 1, {})

    async def publish_weights(self, version, still_needed):
        await asyncio.sleep(1)
        return WeightHandle(version, 0, 0, payload=self.policy)

    async def save_policy(self, version, *, last):
        return None

    def on_evaluation(self, version, scored):
        self.told.append((version, repr([group.rewards for group in scored.groups])))


class ToyGenerator:
    def __init__(self, lane):
        self.lane, self.held = lane, None

    async def load_weights(self, weight_handle):
        self.held = weight_handle
        return {}

    async def generate(self, item):
        held = self.held
        await asyncio.sleep(derive_seed(item.seed, self.lane) % 7)
        return self.sampled(item, held)

    def sampled(self, item, held):
        groups = []
        for place, prompt_id in zip(item.places, item.prompt_ids, strict=True):
            rng = np.random.default_rng(derive_seed(item.seed, place, held.payload))
            rows = [rng.integers(0, 50, rng.integers(1, 6)) for _ in range(item.group_size)]
            completions = tuple(
                Completion(row, rng.normal(size=len(row)).astype(np.float32), f"{row}", "stop") for row in rows
            )
            data = GroupData(Prompt(f"prompt {prompt_id}", "?"), np.arange(3), completions)
            lengths = tuple(map(len, rows))
            groups.append(
                RolloutGroup(prompt_id, item.step, held.version, held.version, lengths, data, attempt=item.attempt)
            )
        return tuple(groups)


class ToyScorer:
    def __init__(self, lane):
        self.lane = lane

    async def score(self, item, groups):
        await asyncio.sleep(derive_seed(item.step, item.shard) % 3)
        scored = tuple(
            replace(group, rewards=tuple(float(each.token_ids[0] % 2) for each in group.data.completions))
            for group in groups
        )
        return ScoredBatch(item, scored, {"reward": Metric(0.1, count=2)})


@dataclass
class Folders:
    """A folder for each checkpoint, whole when the call returns."""

    root: object
    toy: Toy

    async def save(self, state):
        folder = self.root / f"step_{state.version:03}"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():  # of somebody who was killed after it
            old.unlink()
        await asyncio.sleep(1)
        write_files(state, folder)
        (folder / "toy.json").write_text(json.dumps([self.toy.policy, self.toy.batches, self.toy.told]))

    def newest(self):
        """Return the toy and the state of the newest whole one; new ones where there is none."""
        whole = sorted(path.parent for path in self.root.glob("*/toy.json"))
        if not whole:
            return Toy(), None
        policy, batches, told = json.loads((whole[-1] / "toy.json").read_text())
        return Toy(policy, batches, [(version, said) for version, said in told]), read_files(whole[-1], LoopState)


def run_toy(plan, folder, kills=(), generators=2):
    """Run to the end, through these deaths of everything (after so many callbacks); return the toy and its starts."""
    starts, left = [], list(kills)
    while True:
        toy, state = Folders(folder, Toy()).newest()
        starts.append(0 if state is None else state.version)
        callbacks, kill = 0, left.pop(0) if left else None

        def count(kill=kill):
            nonlocal callbacks
            callbacks += 1
            if callbacks == kill:
                raise Killed

        async def main(tracer, toy=toy, state=state):
            lanes = [f"generator{number}" for number in range(generators)]
            parts = [ToyGenerator(lane) for lane in lanes], [ToyScorer("scorer0"), ToyScorer("scorer1")]
            await run_loop(*parts, toy, plan, tracer, toy, resume=state, checkpoints=Folders(folder, toy))

        try:
            run_virtual(main, CheckedLoop(count))
        except Killed:
            continue
        return toy, starts


PLANS = {
    "plain": PLAN,
    "replay": replace(PLAN, replay=ReplaySettings(capacity=12, max_age=5, sampling="uniform", sample_groups=4)),
    "weighted replay, dynamic sampling": replace(
        PLAN,
        replay=ReplaySettings(capacity=9, max_age=5, sampling="reward_weighted", sample_groups=3),
        dynamic_sampling=DynamicSamplingSettings(attempts=2),
        num_prompts=30,
        checkpoint_every=3,
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_killed_run_makes_the_batches_of_one_that_was_not(plan, tmp_path):
    (tmp_path / "whole").mkdir()
    whole, _ = run_toy(plan, tmp_path / "whole")
    assert len(set(whole.batches)) == 20
    assert [version for version, _ in whole.told] == [0, 3, 6, 9, 12, 15, 18, 20]
    for seed in range(4):
        kills = [100 + derive_seed("kill", seed, number) % 500 for number in range(3)]
        folder = tmp_path / f"killed{seed}"
        folder.mkdir()
        toy, starts = run_toy(plan, folder, kills)
        assert any(starts), f"{kills} leave no checkpoint to go on from"
        assert toy == whole, f"kills {kills}, went on from {starts}"


def test_a_longer_run_goes_on_from_the_end_of_a_shorter_one(tmp_path):
    plan = replace(PLAN, validation_prompts=())
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    run_toy(replace(plan, steps=8), tmp_path / "short")
    toy, starts = run_toy(plan, tmp_path / "short")
    assert starts == [8]
    assert toy == run_toy(plan, tmp_path / "long")[0]


# ---- what is refused


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The state of a run with orders under way, scored groups that wait, a buffer and an open shard."""
    folder = tmp_path_factory.mktemp("state")
    plan = replace(PLANS["weighted replay, dynamic sampling"], steps=6, max_lag=2, lag_control="drop")
    run_toy(plan, folder, [200, 200])
    states = [read_files(path, LoopState) for path in sorted(folder.iterdir())]
    return plan, max(states, key=lambda state: len(state.waiting) + len(state.pending))


def test_what_is_read_is_what_was_written(state):
    _, state = state
    assert state.pending
    assert state.replay.entries
    again = decode(*encode(state), LoopState)
    assert all(item.purpose is Purpose.TRAIN for item in again.pending)  # evaluations are made anew
    assert with_data(again, lambda data: None) == with_data(state, lambda data: None)
    assert encode(again) == encode(state)


def test_another_plan_is_refused(state):
    plan, state = state
    state.check(plan, shards=2)
    changes = {
        "seed": {"seed": 6},
        "group_size": {"group_size": 3},
        "lag_control": {"lag_control": "wait"},
        "replay": {"replay": ReplaySettings()},
        "steps": {"steps": state.version - 1},
        "sampled again": {"dynamic_sampling": DynamicSamplingSettings()},
        "shard": {"batch_prompts": lambda step: (26, 27, 28, 29)},
    }
    for named, change in changes.items():
        with pytest.raises(UserError, match=named):
            state.check(replace(plan, **change), shards=2)
    with pytest.raises(UserError, match=r"2 and is 3"):
        state.check(plan, shards=3)
    state.check(replace(plan, steps=state.version), shards=2)


def test_a_file_that_is_damaged_or_of_another_format_is_refused(state):
    document, arrays = encode(state[1])
    raw = json.loads(document)
    unsaid = {key: value for key, value in raw.items() if key != "format"}  # as format 1 was
    orders = [{key: value for key, value in item.items() if key != "step"} for item in raw["pending"]]
    documents = [raw | {"pending": orders}, raw | {"version": "3"}, raw | {"format": 3}, unsaid]
    damaged = [(json.dumps(each).encode(), arrays) for each in documents]
    for cut in (0, 5, 100, -1):
        damaged += [(document[:cut], arrays), (document, arrays[:cut])]
    for files in damaged:
        with pytest.raises(UserError, match=STATE):
            decode(*files, LoopState)


def test_files_are_never_overwritten_and_a_missing_one_is_named(state, tmp_path):
    write_files(state[1], tmp_path)
    with pytest.raises(FileExistsError):
        write_files(state[1], tmp_path)
    (tmp_path / TOKENS).unlink()
    with pytest.raises(UserError, match=TOKENS):
        read_files(tmp_path, LoopState)
