"""What is asked of SGLang and what is made of its answers, without SGLang; with it: ``make test-sglang``.

``Recorded`` stands in the place of SGLang's ``Engine``: it notes what it is called with and returns answers of the form
that SGLang documents. It samples nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.core.errors import Diverged, Interrupted, RunStopped, UserError
from harness.core.types import SamplingParams
from harness.engines.serving import ResponseRow, response_rows
from harness.engines.sglang import (
    SglangEngine,
    check_sglang_usable,
    engine_options,
    row_options,
    scored_tokens,
    take_answer,
)
from harness.engines.stop_strings import StopStrings
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["the cat sat on the mat, the dog on the log. " * 3], 280)
MODEL = DecoderLM(dataclasses.replace(PRESETS["tiny"], vocab_size=len(TOKENIZER), max_position_embeddings=64))
LOOP = asyncio.new_event_loop()


@pytest.fixture(autouse=True, scope="module")
def closed_loop() -> Iterator[None]:
    """SGLang's engine brings an event loop of its own; the one that stands for it is closed at the end."""
    yield
    LOOP.close()


def params_of(sampling, seed):
    stops = StopStrings(TOKENIZER, sampling.stop, ends=(1, 7))
    return [row_options(row, sampling) for row in response_rows([[5], [6], [7]], 1, sampling, seed, None, stops)]


def answer(tokens: list[int], finish: str = "length", log_prob: float = -0.5, **meta: Any) -> dict[str, Any]:
    """An answer as SGLang gives it: (log-probability, token, text or None) for each sampled token."""
    entries = [(log_prob, token, None) for token in tokens]
    return {"text": "", "meta_info": {"finish_reason": {"type": finish}, "output_token_logprobs": entries, **meta}}


class Recorded:
    """See the module's docstring."""

    def __init__(self, answers: Sequence[dict[str, Any]] = (), hangs: bool = False, takes: Any = (True, "ok")) -> None:
        self.loop, self.calls = LOOP, list[tuple[str, dict[str, Any]]]()
        self._answers, self._hangs, self._takes = list(answers), hangs, takes
        self._aborted = asyncio.Event()
        self.tokenizer_manager = SimpleNamespace(abort_request=self._abort)
        self.begin_weight_update = lambda: self._note("begin_weight_update")
        self.end_weight_update = lambda: self._note("end_weight_update")

    def _note(self, call: str, **arguments: Any) -> Any:
        self.calls.append((call, arguments))
        return True, "ok"

    def _abort(self, abort_all: bool) -> None:
        self._note("abort_request", abort_all=abort_all)
        self._aborted.set()

    async def async_generate(self, **request: Any) -> list[dict[str, Any]]:
        self._note("async_generate", **request)
        if self._hangs:
            await self._aborted.wait()
        return [self._answers.pop(0) for _ in request["input_ids"]]

    def generate(self, **request: Any) -> list[dict[str, Any]]:
        self._note("generate", **request)
        return [self._answers.pop(0) for _ in request["input_ids"]]

    def update_weights_from_tensor(self, named_tensors: list[tuple[str, torch.Tensor]], flush_cache: bool) -> Any:
        self._note("update_weights_from_tensor", names=[name for name, _ in named_tensors], flush_cache=flush_cache)
        return self._takes


def engine(recorded: Recorded, **options: Any) -> SglangEngine:
    return SglangEngine(recorded, MODEL, TOKENIZER, device="cpu", **options)


def test_without_sglang_or_with_raw_log_probs_by_environment_it_is_refused() -> None:
    with pytest.raises(UserError, match="SGLANG_RETURN_ORIGINAL_LOGPROB is set"):
        check_sglang_usable({"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"})
    if find_spec("sglang") is None:
        with pytest.raises(UserError, match="not installed") as refused:
            check_sglang_usable({})
        assert "docs/sglang.md" in (refused.value.fix or "")


def test_options_ask_for_seeds_that_count_and_for_a_kernel_that_takes_float32() -> None:
    settings = SimpleNamespace(precision="float32", max_batch=32, memory_fraction=0.3)
    options = engine_options(Path("policy"), settings, "cuda")
    sizes = {"dtype": "float32", "max_running_requests": 32, "mem_fraction_static": 0.3}
    seeds = {"enable_deterministic_inference": True, "random_seed": 0, "attention_backend": "triton"}
    assert options == {"model_path": "policy", "device": "cuda", "log_level": "error", **sizes, **seeds}
    narrow = SimpleNamespace(**{**vars(settings), "precision": "bfloat16"})
    assert "attention_backend" not in engine_options(Path("policy"), narrow, "cuda")
    on_cpu = engine_options(Path("policy"), settings, "cpu")
    assert "enable_deterministic_inference" not in on_cpu
    assert (on_cpu["attention_backend"], on_cpu["sampling_backend"]) == ("torch_native", "pytorch")


def test_each_row_has_a_seed_of_its_own() -> None:
    """Stop strings that are ignored at first, or beside pinned lengths, are found by the harness alone."""
    params = params_of(SamplingParams(temperature=0.7, max_tokens=9, min_tokens=1, stop=("</a>",)), 3)
    assert [(own["temperature"], own["max_new_tokens"], own["min_new_tokens"]) for own in params] == [(0.7, 9, 1)] * 3
    assert [own["stop"] for own in params] == [["</a>"]] * 3
    seeds = [own["sampling_seed"] for own in params]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [own["sampling_seed"] for own in params_of(SamplingParams(max_tokens=9), 3)]
    pinned = params_of(SamplingParams(max_tokens=9, pinned_lengths=(3, 7), stop=("x",)), 0)
    assert all(own["min_new_tokens"] == own["max_new_tokens"] and 3 <= own["max_new_tokens"] <= 7 for own in pinned)
    assert all("stop" not in own for own in [*pinned, *params_of(SamplingParams(min_tokens=2, stop=("x",)), 0)])


def test_answers_become_completions_in_the_order_of_the_rows() -> None:
    """A request larger than the batch is served in turns."""
    end = TOKENIZER.eos_token_id
    recorded = Recorded([answer([5, end], "stop"), answer([7, 8, 9]), answer([10, end], "stop")])
    groups = engine(recorded, max_batch=2).generate([[5, 6], [7], [5]], 1, SamplingParams(max_tokens=3), 0)
    found = [(completion.token_ids.tolist(), completion.finish_reason) for (completion,) in groups]
    assert found == [([5, end], "stop"), ([7, 8, 9], "length"), ([10, end], "stop")]
    first = groups[0][0]
    assert (first.log_probs.tolist(), first.text, first.versions) == ([-0.5, -0.5], TOKENIZER.decode([5]), None)
    requests = [request for name, request in recorded.calls if name == "async_generate"]
    assert [request["input_ids"] for request in requests] == [[[5, 6], [7]], [[5]]]
    assert all(request["return_logprob"] for request in requests)


def test_tokens_behind_a_stop_string_are_cut_off() -> None:
    text = TOKENIZER.encode("cat sat on")
    stop = TOKENIZER.decode(text[:2])[-1]
    sampling = SamplingParams(max_tokens=len(text), stop=(stop,))
    ((completion,),) = engine(Recorded([answer(text)])).generate([[5]], 1, sampling, 0)
    assert completion.text.index(stop) == len(completion.text) - len(stop)
    assert (completion.finish_reason, len(completion.token_ids) < len(text)) == ("stop", True)


def test_what_sglang_gives_up_stops_the_run() -> None:
    row = ResponseRow((3, 0), SamplingParams(), StopStrings(TOKENIZER, ()))
    broken = answer([5])
    broken["meta_info"]["finish_reason"] = {"type": "abort", "message": "out of memory"}
    for given, message in ((broken, "prompt 3 up: out of memory"), (answer([]), "no log-probabilities")):
        with pytest.raises(RunStopped, match=message):
            take_answer(row, given)
    with pytest.raises(Diverged, match="not finite at prompt 0, sample 0, token 0"):
        engine(Recorded([answer([5], log_prob=float("nan"))])).generate([[5]], 1, SamplingParams(max_tokens=1), 0)


def test_bad_requests_and_weights_are_refused_before_sglang_hears_of_them() -> None:
    """Of a cut distribution too, since its log-probs would be of the whole one."""
    recorded = Recorded()
    for prompts, sampling, message in (
        ([[5], []], SamplingParams(), "prompt 1"),
        ([[5]], SamplingParams(top_p=0.9), r"top_p is 0\.9 with engine\.type sglang"),
    ):
        with pytest.raises(UserError, match=message):
            engine(recorded).generate(prompts, 1, sampling, 0)
    with pytest.raises(UserError, match="response 0 of those to score"):
        engine(recorded).score([[]], [[5]])
    weights = dict(MODEL.named_parameters())
    del weights["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight is missing"):
        engine(recorded).load_weights(weights)
    assert recorded.calls == []


def test_a_stop_signal_aborts_what_is_under_way() -> None:
    recorded = Recorded([answer([5])], hangs=True)
    with pytest.raises(Interrupted):
        engine(recorded, should_stop=lambda: True).generate([[5]], 1, SamplingParams(max_tokens=1), 0)
    assert [name for name, _ in recorded.calls] == ["async_generate", "abort_request"]


def test_scores_are_those_of_the_responses_tokens() -> None:
    scored = answer([0], input_token_logprobs=[(None, 6, None), (-1.0, 7, None), (-2.0, 8, None)])
    recorded = Recorded([scored])
    (found,) = engine(recorded).score([[5, 6]], [[7, 8]])
    assert (found.tolist(), found.dtype) == ([-1.0, -2.0], np.float32)
    ((name, request),) = recorded.calls
    assert (name, request["input_ids"], request["logprob_start_len"]) == ("generate", [[5, 6, 7, 8]], [1])
    assert request["sampling_params"]["temperature"] == 1.0


def test_scores_of_other_tokens_and_weights_that_are_not_taken_stop_the_run() -> None:
    for tokens in ([], [(None, 7, None)], [(-1.0, 8, None)]):
        with pytest.raises(RunStopped, match="scored other tokens"):
            scored_tokens(answer([0], input_token_logprobs=tokens), [7])
    for taken, reason in (((False, "shape mismatch"), "shape mismatch"), (False, "no reason")):
        with pytest.raises(RunStopped, match=f"the weights: {reason}"):
            engine(Recorded(takes=taken)).load_weights(dict(MODEL.named_parameters()))


def test_weights_come_by_name_and_what_the_old_ones_cached_is_flushed() -> None:
    recorded, names = Recorded(), [name for name, _ in MODEL.named_parameters()]
    engine(recorded).load_weights(dict(MODEL.named_parameters()), version=1)
    assert recorded.calls == [
        ("begin_weight_update", {}),
        ("update_weights_from_tensor", {"names": names, "flush_cache": True}),
        ("end_weight_update", {}),
    ]
