"""The parts that sleep instead of computing. None of these tests sleeps: a clock of their own goes forward instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import Completion, GroupData, Prompt, RolloutGroup, SamplingParams
from harness.engines.paced import SLICE_S, PacedEngine, PacedTokenizer
from harness.learner import TrainerOptions
from harness.learner.paced import PacedTrainer, made_up_weights
from harness.run.workers import LearnerWorker
from harness.transports.checksum import checksum
from harness.transports.in_process import InProcessTransport

PROMPTS = [[5], [6], [7], [8]]
SAMPLING = SamplingParams(max_tokens=32)


class Clock:
    """Seconds that pass only while someone sleeps, each time a little longer than was asked for."""

    def __init__(self, late_s=0.0):
        self.now_s, self.late_s = 100.0, late_s

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds + self.late_s


class Polls:
    """A stop signal that counts its polls, acts at some of them, and may stop at one."""

    def __init__(self, acts=None, stop_at=None):
        self.acts, self.stop_at, self.count = acts or {}, stop_at, -1

    def __call__(self):
        self.count += 1
        self.acts.get(self.count, lambda: None)()
        return self.count == self.stop_at


def paced(clock, generate_s=0.5, spread=0.0, prompts_per_batch=4, should_stop=None, version=0):
    engine = PacedEngine(generate_s, spread, prompts_per_batch, should_stop=should_stop, sleep=clock.sleep, clock=clock)
    engine.load_weights({"w": torch.zeros(1)}, version)
    return engine


def options(**fields):
    return TrainerOptions(group_size=2, **fields)


# The engine


def test_a_call_takes_its_share_of_a_batch_and_slices_that_take_too_long_do_not_add_up():
    for prompts, late_s, seconds in ((4, 0, 0.5), (1, 0, 0.125), (12, 0, 1.5), (0, 0, 0.0), (4, 0.003, 0.503)):
        clock = Clock(late_s)
        groups = paced(clock).generate([[5]] * prompts, 2, SAMPLING, 0)
        assert len(groups) == prompts
        assert clock.now_s - 100 == pytest.approx(seconds)  # the last slice alone is late


def test_the_spread_is_even_and_drawn_from_the_seed():
    engine = paced(Clock(), spread=0.2)
    seconds = [engine.seconds(4, seed) for seed in range(400)]
    assert 0.4 <= min(seconds) < 0.41 < 0.59 < max(seconds) <= 0.6
    # even in [0.4, 0.6]: standard deviation 0.2 / sqrt(12) = 0.058, of the mean of 400 0.0029; five of them
    assert abs(sum(seconds) / 400 - 0.5) < 0.0145
    assert [engine.seconds(4, seed) for seed in range(400)] == seconds
    assert engine.seconds(2, 7) == pytest.approx(seconds[7] / 2)


def test_a_stop_signal_ends_the_sleep():
    clock, polls = Clock(), Polls(stop_at=3)
    with pytest.raises(Interrupted, match=r"after 3 of 50 parts of 0\.5 s"):
        paced(clock, should_stop=polls).generate(PROMPTS, 2, SAMPLING, 0)
    assert clock.now_s - 100 == pytest.approx(3 * SLICE_S)


def test_responses_are_made_up_and_cut_and_held_back_as_asked():
    (group, other), again = (paced(Clock()).generate([[5], [5]], 2, SAMPLING, seed=3) for _ in range(2))
    for completion in (*group, *other):
        assert len(completion.token_ids) == 8
        assert completion.token_ids[-1] == PacedTokenizer.eos_token_id
        assert completion.log_probs.tolist() == [0.0] * 8
        assert (completion.text, completion.finish_reason, completion.versions) == ("", "stop", None)
    assert [c.token_ids.tolist() for c in again[0]] == [c.token_ids.tolist() for c in group]
    assert len({tuple(c.token_ids.tolist()) for c in (*group, *other)}) == 4
    asked = (SAMPLING, SamplingParams(max_tokens=5), SamplingParams(min_tokens=10, max_tokens=32))
    (whole,), (short,), (long,) = (paced(Clock()).generate([[5]], 1, sampling, 0)[0] for sampling in asked)
    assert (short.token_ids.tolist(), short.finish_reason) == (whole.token_ids[:5].tolist(), "length")
    assert (len(long.token_ids), long.finish_reason) == (11, "stop")


def test_loading_copies_into_the_same_tensors_each_time():
    engine = PacedEngine(0.0, 0.0, 1)
    source = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]], requires_grad=True)}
    engine.load_weights(source)
    places = {name: own.data_ptr() for name, own in engine.weights.items()}
    source["a"].zero_()
    assert {name: own.tolist() for name, own in engine.weights.items()} == {"a": [1.0, 2.0], "b": [[3.0]]}
    engine.load_weights({"b": torch.tensor([[6.0]]), "a": torch.tensor([4.0, 5.0])}, version=1)
    assert {name: own.tolist() for name, own in engine.weights.items()} == {"a": [4.0, 5.0], "b": [[6.0]]}
    assert {name: own.data_ptr() for name, own in engine.weights.items()} == places


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({}, "there are none"),
        ({"v": torch.zeros(1)}, "w is missing; v is unknown"),
        ({"w": torch.ones(2)}, r"w has shape \(2,\), must be \(1,\)"),
    ],
)
def test_a_bad_load_is_refused_and_the_old_weights_and_version_stay(weights, problem):
    def load():
        with pytest.raises(ValueError, match=problem):
            engine.load_weights(weights, version=1)

    engine = paced(Clock(), should_stop=Polls({20: load}))
    assert engine.generate([[5]], 1, SAMPLING, 0)[0][0].versions is None
    assert engine.weights["w"].tolist() == [0.0]
    with pytest.raises(RunStopped, match="before any weights"):
        PacedEngine(0.0, 0.0, 1).generate([[5]], 1, SAMPLING, 0)


def test_loads_during_the_sleep_show_in_the_versions_by_their_share_of_the_time():
    def load(version):
        return lambda: engine.load_weights({"w": torch.ones(1)}, version)

    # 50 slices of 10 ms, one poll before each. Token t of 8 is of the weights in place after t / 8 of 0.5 s:
    # version 4 comes after 0.2 s, 3.2 tokens: token 4 is its first; version 5 after 0.4 s, 6.4 tokens: token 7.
    # Version 6 comes at 0.45 s, behind the last token, which is sampled after 7 / 8 of 0.5 s = 0.4375 s.
    engine = paced(Clock(), should_stop=Polls({20: load(4), 40: load(5), 45: load(6)}), version=3)
    groups = engine.generate(PROMPTS, 2, SAMPLING, 0)
    told = [completion.versions.tolist() for group in groups for completion in group]
    assert told == [[3, 3, 3, 3, 4, 4, 4, 5]] * 8
    assert groups[0][0].versions.dtype == "int64"
    assert engine.generate([[5]], 1, SAMPLING, 0)[0][0].versions is None


def test_the_tokenizer_has_a_token_for_each_byte():
    tokenizer = PacedTokenizer()
    assert tokenizer.encode("a\u00e9") == [2 + 0x61, 2 + 0xC3, 2 + 0xA9]
    assert tokenizer.decode([0, *tokenizer.encode("a\u00e9"), 300, 1], skip_special_tokens=True) == "a\u00e9"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (0, 1, 2 + 256 + 1000)


# The trainer


def test_the_weights_have_the_size_and_number_asked_for():
    # 0.01 MB = 10,000 bytes = 2500 values; 2500 // 3 = 833, and the last tensor has 833 + 1
    weights = made_up_weights(megabytes=0.01, tensors=3)
    sizes = {f"layer.00{number}.weight": (size,) for number, size in enumerate((833, 833, 834))}
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == sizes
    assert sum(tensor.numel() * tensor.element_size() for tensor in weights.values()) == 10_000
    assert checksum(weights) == checksum(made_up_weights(0.01, 3))
    with pytest.raises(UserError, match=r"model\.megabytes 1e-05 is 2 float32 values, fewer than the 3") as error:
        made_up_weights(megabytes=1e-5, tensors=3)
    assert "model.tensors to at most 2" in error.value.fix


def test_a_step_changes_one_value_of_every_4096_bytes_of_every_tensor():
    """The weights are live, and no two versions have the same checksum."""
    trainer = PacedTrainer(0.0, 0.024, 2, options())  # 6000 values: 3000 each
    weights, checksums = trainer.weights(), set()
    for step in range(3):
        before = {name: tensor.clone() for name, tensor in weights.items()}
        checksums.add(checksum(before))
        trainer.train(step, ())
        for name, tensor in weights.items():
            assert (tensor != before[name]).nonzero().flatten().tolist() == [0, 1024, 2048]
            assert tensor[::1024].tolist() == [step + 1] * 3
    assert len({*checksums, checksum(weights)}) == 4


def test_parts_of_a_batch_have_their_share_of_the_sleep_and_the_weights_change_once():
    clock = Clock()
    tracer = RecordingTracer(lambda: round(clock() * 1e9))
    trainer = PacedTrainer(0.8, 0.01, 1, options(), groups=4, sleep=clock.sleep)
    learner = LearnerWorker(trainer, InProcessTransport(snapshot=True), tracer=tracer)
    first, last = rollouts_of(1), rollouts_of(3)
    for step, rest in enumerate((last, ())):
        learner.accumulate(step, first if rest else (*first, *last))
        changed = trainer.weights()["layer.000.weight"][0]
        assert changed < 1 if step == 0 else changed == 1  # at first it is random, from 0 to 1
        result = learner.update(step, rest)
        assert (result.version, result.optimizer_steps, result.metrics) == (step + 1, 1, {})
    spans = [(span.stage, span.step, round((span.end_ns - span.start_ns) / 1e9, 9)) for span in tracer.drain()]
    prepare, update = Stage.PREPARE_BATCH, Stage.UPDATE
    assert spans[:4] == [(prepare, 0, 0), (update, 0, 0.2), (prepare, 0, 0), (update, 0, 0.6)]
    assert spans[4:] == [(prepare, 1, 0), (update, 1, 0.8), (update, 1, 0)]
    assert trainer.weights()["layer.000.weight"][0] == 2
    twice = PacedTrainer(0.8, 0.01, 1, options(epochs_per_batch=2), groups=4, sleep=clock.sleep)
    before = clock()
    twice.train(0, twice.prepare(last))
    assert clock() - before == pytest.approx(2 * 0.8)  # for each epoch


def rollouts_of(num_groups: int):
    completion = Completion(np.array([1, 2]), np.zeros(2, dtype=np.float32), "", "stop")
    data = GroupData(Prompt("ab", "b"), np.array([3, 4]), (completion,))
    return tuple(RolloutGroup(number, 0, 0, 0, (2,), data, (1.0,)) for number in range(num_groups))
