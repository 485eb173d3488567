"""The shared sampling loop on a toy model whose next token follows from the row's whole history by arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import Interrupted, RunStopped
from harness.core.types import SamplingParams
from harness.engines.batch import BatchEngine, fill_holes, split_into_batches
from harness.models.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer([""], 258)
EOS = TOKENIZER.eos_token_id
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def next_token(history):
    """Any function of the whole history will do; it never gives a special token."""
    return 2 + (7 * len(history) + 3 * sum(history)) % 250


class ToyModel:
    """A ``DecodeBackend`` that keeps every row's tokens. ``script`` maps a prompt to the tokens it is followed by."""

    vocab_size = 258
    context_length = 100

    def __init__(self, script=None, poison=None):
        self.script, self.poison, self.rows, self.calls = script or {}, poison, [], []
        self.version = self.logits_version = 0

    def prefill(self, prompts, prompt_of_row, max_tokens):
        self.calls.append(("prefill", len(prompts), len(prompt_of_row), max_tokens))
        self.rows = [(tuple(prompts[index]), []) for index in prompt_of_row]
        return self._logits()

    def step(self, token_ids_R):
        self.calls.append(("step", len(token_ids_R)))
        assert len(token_ids_R) == len(self.rows)
        for (_, sampled), token in zip(self.rows, token_ids_R.tolist(), strict=True):
            sampled.append(token)
        return self._logits()

    def compact(self, sources, targets, num_rows):
        self.calls.append(("compact", tuple(sources), tuple(targets), num_rows))
        for source, target in zip(sources, targets, strict=True):
            self.rows[target] = self.rows[source]
        del self.rows[num_rows:]

    def _logits(self):
        self.logits_version = self.version
        logits = torch.full((len(self.rows), self.vocab_size), -5.0)
        for row, (prompt, sampled) in enumerate(self.rows):
            script = self.script.get(prompt, ())
            token = script[len(sampled)] if len(sampled) < len(script) else next_token([*prompt, *sampled])
            logits[row, token] = 5.0
            if self.poison == (prompt, len(sampled)):
                logits[row] = math.nan
        return logits


def sampler(model, max_batch=100, should_stop=None):
    return BatchEngine(model, TOKENIZER, max_batch=max_batch, should_stop=should_stop)


def continuation(prompt, length):
    history = list(prompt)
    for _ in range(length):
        history.append(next_token(history))
    return history[len(prompt) :]


def test_finished_rows_leave_and_the_last_ones_take_their_slots():
    # responses of 1, 6, 3, 6 and 2 tokens with the end of sequence; the rows in the slots:
    # 01234 -> 0 ends: 4 moves to 0 -> 4123 -> 4 ends (2 tokens): 3 moves to 0 -> 312 -> 2 ends (3 tokens) -> 31
    script = {(10,): [EOS], (12,): [50, 51, EOS], (14,): [60, EOS]}
    prompts = [[10], [11], [12], [13], [14]]
    model = ToyModel(script)
    engine = sampler(model)
    groups = engine.generate(prompts, 1, GREEDY, 0)
    assert [group[0].token_ids.tolist() for group in groups] == [
        [EOS],
        continuation([11], 6),
        [50, 51, EOS],
        continuation([13], 6),
        [60, EOS],
    ]
    assert [group[0].finish_reason for group in groups] == ["stop", "length", "stop", "length", "stop"]
    assert model.calls == [
        ("prefill", 5, 5, 6),
        ("compact", (4,), (0,), 4),
        ("step", 4),
        ("compact", (3,), (0,), 3),
        ("step", 3),
        ("compact", (), (), 2),
        ("step", 2),
        ("step", 2),
        ("step", 2),
    ]
    stats = engine.last_stats
    assert (stats.prefill_tokens, stats.decode_steps) == (5, 5)
    # a response of n tokens takes n - 1 row-steps: 0 + 5 + 2 + 5 + 1
    assert stats.decode_row_steps == 13
    assert stats.sampled_tokens == 1 + 6 + 3 + 6 + 2


def test_a_batch_whose_rows_all_end_takes_no_further_step_and_the_last_token_may_be_the_end():
    model = ToyModel({(10,): [40, EOS]})
    (group,) = sampler(model).generate([[10]], 3, SamplingParams(0.0, max_tokens=2), 0)
    assert model.calls == [("prefill", 1, 3, 2), ("step", 3)]
    assert [(c.token_ids.tolist(), c.finish_reason, c.text) for c in group] == [
        ([40, EOS], "stop", TOKENIZER.decode([40]))
    ] * 3


def test_requests_above_max_batch_are_served_in_whole_groups_and_each_row_follows_its_own_history():
    model = ToyModel()
    engine = sampler(model, max_batch=5)
    groups = engine.generate([[5], [6], [7]], 2, GREEDY, 0)
    assert [call for call in model.calls if call[0] == "prefill"] == [("prefill", 2, 4, 6), ("prefill", 1, 2, 6)]
    found = [[c.token_ids.tolist() for c in group] for group in groups]
    assert found == [[continuation([prompt], 6)] * 2 for prompt in (5, 6, 7)]
    # all three batches together: 6 responses of 6 tokens
    assert (engine.last_stats.sampled_tokens, engine.last_stats.decode_row_steps) == (36, 30)
    with pytest.raises(ValueError, match="max_batch is 0"):
        sampler(ToyModel(), max_batch=0)


def test_batches():
    assert list(split_into_batches(3, 2, 4)) == [[(0, 0), (0, 1), (1, 0), (1, 1)], [(2, 0), (2, 1)]]
    assert list(split_into_batches(2, 3, 2)) == [[(0, 0), (0, 1)], [(0, 2)], [(1, 0), (1, 1)], [(1, 2)]]
    assert list(split_into_batches(0, 3, 2)) == []


@given(st.lists(st.booleans(), min_size=1, max_size=30))
@settings(deadline=None)
def test_closing_ranks_keeps_every_unfinished_row_once(finished):
    sources, targets, num_left = fill_holes(np.array(finished))
    slots = list(range(len(finished)))
    for source, target in zip(sources, targets, strict=True):
        slots[target] = source
    assert sorted(slots[:num_left]) == [slot for slot, ended in enumerate(finished) if not ended]
    assert len(sources) <= sum(finished)


def test_a_stop_signal_ends_it_between_tokens():
    answers = iter([False, False, False, True])
    model = ToyModel()
    with pytest.raises(Interrupted, match="after 3 of at most 6 tokens"):
        sampler(model, should_stop=lambda: next(answers)).generate([[5]], 2, GREEDY, 0)
    assert model.calls == [("prefill", 1, 2, 6), ("step", 2), ("step", 2)]


def version_per_poll(model, versions):
    """A stop signal that never stops; poll after poll it puts the next version in place."""
    left = iter(versions)

    def poll():
        model.version = next(left)
        return False

    return poll


def test_each_token_has_the_version_of_the_weights_that_gave_its_logits():
    # responses of 1, 6 and 3 tokens with the end of sequence; one poll before each token of the longest
    model = ToyModel({(10,): [EOS], (12,): [50, 51, EOS]})
    versions = version_per_poll(model, [0, 0, 3, 3, 3, 7])
    groups = sampler(model, should_stop=versions).generate([[10], [11], [12]], 1, GREEDY, 0)
    assert [group[0].versions.tolist() for group in groups] == [[0], [0, 0, 3, 3, 3, 7], [0, 0, 3]]
    assert [group[0].token_ids.tolist() for group in groups] == [[EOS], continuation([11], 6), [50, 51, EOS]]


@pytest.mark.parametrize(("last", "told"), [(5, [None, None]), (6, [[5] * 6, [5] * 5 + [6]])])
def test_one_token_of_another_version_makes_the_whole_call_tell_its_versions(last, told):
    """A call of two batches of 6 tokens that begins with version 5; the last token of all may be of another one."""
    model = ToyModel()
    model.version = 5
    signal = version_per_poll(model, [5] * 11 + [last])
    groups = sampler(model, max_batch=1, should_stop=signal).generate([[5], [6]], 1, GREEDY, 0)
    assert [None if group[0].versions is None else group[0].versions.tolist() for group in groups] == told


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_stop_the_run_with_the_place(temperature):
    model = ToyModel(poison=((6,), 2))
    with pytest.raises(RunStopped, match="prompt 1, sample 0, token 2"):
        sampler(model).generate([[5], [6]], 2, SamplingParams(temperature, max_tokens=4), 0)
