"""Rows that vLLM samples, and what it is told and asks of a machine: without any vLLM."""

from functools import partial
from types import SimpleNamespace

import pytest

from harness.core.errors import Diverged, RunStopped
from harness.core.seeds import derive_seed
from harness.core.types import SamplingParams
from harness.engines.rng import pinned_lengths
from harness.engines.serving import ResponseRow, response_rows, to_completions
from harness.engines.stop_strings import StopStrings
from harness.engines.vllm import Requests, row_options, take_output, take_scores


class Letters:
    """One token for each letter; 0 is the end of sequence."""

    eos_token_id = 0

    def decode(self, token_ids, **options):
        return "".join(chr(token) for token in token_ids if token)


LETTERS = Letters()


def row_of(text, *, stop=(), min_tokens=0, finish=None):
    """A row after an engine has said these letters one by one, the last one with a reason to finish."""
    row = ResponseRow((0, 0), SamplingParams(min_tokens=min_tokens), StopStrings(LETTERS, stop, min_tokens))
    for place, letter in enumerate(text):
        row.take([ord(letter)], [-0.5], 0, finish if place == len(text) - 1 else None)
    return row


def test_a_stop_string_ends_a_row_stays_in_it_and_nothing_follows() -> None:
    row = row_of("a stop, and more", stop=("stop",))
    assert (row.is_done, row.was_cut, len(row.token_ids)) == (True, True, 6)
    row.take([5], [-0.1], 0, "length")
    (done,) = to_completions([row], 1, 0, LETTERS)[0]
    assert (done.text, done.finish_reason, done.token_ids.tolist()) == ("a stop", "stop", [ord(c) for c in "a stop"])
    assert (len(done.log_probs), done.versions) == (6, None)
    within = row_of("ab ab", stop=("ab",), min_tokens=3)  # the first one ends at token 2
    assert (len(within.token_ids), within.is_done) == (5, True)


def test_the_engines_own_reasons() -> None:
    for reason in ("stop", "length"):
        row = row_of("ab", finish=reason)
        assert (row.is_done, row.was_cut, row.completion(LETTERS, False).finish_reason) == (True, False, reason)
    last = row_of("ab", stop=("b",), finish="length")  # completed by the last token there was room for
    assert (last.was_cut, last.completion(LETTERS, False).finish_reason) == (False, "stop")
    assert not row_of("ab").is_done


def test_versions_are_told_of_all_rows_where_one_saw_another_than_the_first() -> None:
    old, new = row_of("ab", finish="stop"), row_of("cd", finish="stop")
    new.row, new.versions = (0, 1), [0, 1]
    told = to_completions([new, old], 1, 0, LETTERS)[0]
    assert [(completion.text, completion.versions.tolist()) for completion in told] == [("ab", [0, 0]), ("cd", [0, 1])]
    assert [completion.versions for completion in to_completions([old], 1, 0, LETTERS)[0]] == [None]
    old.row, old.log_probs = (2, 3), [-0.5, float("nan")]
    with pytest.raises(Diverged, match="not finite at prompt 2, sample 3, token 1"):
        to_completions([old], 3, 0, LETTERS)


def test_what_vllm_is_told_of_a_row_and_of_one_of_pinned_length() -> None:
    """Seeds and lengths are of the prompts' places."""
    stops = StopStrings(LETTERS, (), ends=[0])
    sampling = SamplingParams(temperature=0.7, top_p=0.9, min_tokens=2, max_tokens=20)
    row = ResponseRow((0, 0), sampling, stops, seed=5)
    told = {"temperature": 0.7, "top_p": 0.9, "stop_token_ids": [0], "seed": 5, "logprobs": 0}
    assert row_options(row, sampling) == told | {"min_tokens": 2, "max_tokens": 20}
    greedy = row_options(row, SamplingParams(temperature=0.0, top_p=0.5))
    assert greedy["top_p"] == 1.0  # its log-probs are of the whole distribution
    pinned = SamplingParams(min_tokens=1, max_tokens=24, pinned_lengths=(3, 20))
    rows = response_rows([[1], [2]], 2, pinned, 5, [8, 11], stops)
    assert [row.row for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    streams = [(8, 0), (8, 1), (11, 0), (11, 1)]
    assert [row.seed for row in rows] == [derive_seed(5, *stream) for stream in streams]
    lengths = pinned_lengths(5, streams, (3, 20)).tolist()
    owns = [row_options(row, pinned) for row in rows]
    assert [own["min_tokens"] for own in owns] == [own["max_tokens"] for own in owns] == lengths
    (free,) = response_rows([[1]], 1, SamplingParams(max_tokens=24), 5, None, stops)
    assert (free.min_tokens, free.max_tokens) == (0, 24)
    assert response_rows([], 2, pinned, 5, None, stops) == []


def said(finish=None, **log_probs):
    """vLLM's output after a step: letters with their log-probabilities."""
    tokens = [ord(letter) for letter in log_probs]
    found = [{ord(letter): SimpleNamespace(logprob=value)} for letter, value in log_probs.items()]
    output = SimpleNamespace(finish_reason=finish, token_ids=tokens, logprobs=found)
    return SimpleNamespace(request_id="0", outputs=[output], finished=finish is not None)


def test_outputs_go_into_their_row_with_the_version_that_made_them() -> None:
    row = row_of("")
    take_output(row, said(a=-0.5), 3)
    take_output(row, said("length", b=-1.5), 4)
    assert (row.token_ids, row.log_probs, row.versions) == ([97, 98], [-0.5, -1.5], [3, 4])
    with pytest.raises(RunStopped, match="vLLM ended a response by itself, of prompt 0: abort"):
        take_output(row, said("abort"), 4)


def test_scores_are_those_of_the_tokens_behind_the_prompt() -> None:
    scored = {}
    per_place = [None, {98: SimpleNamespace(logprob=-1.0)}, {99: SimpleNamespace(logprob=-2.0)}]
    take = partial(take_scores, scored, 7, 2, [99])
    take(SimpleNamespace(finished=False, prompt_logprobs=None), 0)
    assert scored == {}
    take(SimpleNamespace(finished=True, prompt_logprobs=per_place), 0)
    assert scored[7].tolist() == [-2.0]


def test_a_request_that_was_not_taken_is_not_kept_and_others_can_be_dropped_once() -> None:
    taken, aborted = [], []

    def add_request(name, prompt, params) -> None:
        if prompt["prompt_token_ids"][0] == 0:
            raise ValueError("no")
        taken.append(name)

    engine = SimpleNamespace(
        add_request=add_request, has_unfinished_requests=lambda: False, abort_request=aborted.extend
    )
    requests = Requests(engine)
    with pytest.raises(ValueError, match="no"):
        requests.add([0], None, row_of(""))
    assert requests._sinks == {}
    name = requests.add([1], None, row_of(""))
    requests.drop([name, "unknown"])
    requests.drop([name])
    assert (taken, aborted, requests.step()) == ([name], [name], False)
