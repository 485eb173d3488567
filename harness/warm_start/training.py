"""The supervised training itself: a copying initialisation, next-token loss on the responses, stopping on reward."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from harness.engines.native import NativeEngine
from harness.errors import Interrupted, RunStopped
from harness.models.decoder import DecoderLM
from harness.models.shared_prompt import response_log_probs
from harness.models.tokenizer import train_tokenizer
from harness.seeds import derive_seed
from harness.tasks.grammar import Demonstration, demonstrations
from harness.tasks.keywords import KeywordTask
from harness.types import SamplingParams
from harness.warm_start.recipe import (
    TOKENIZER_DEMONSTRATIONS,
    VOCABULARY_SIZE,
    Recipe,
    stream_seed,
    trained_keyword_counts,
    training_precision,
)

EMBEDDING_GAIN = 4.0
COPY_GAIN = 2.0
Listener = Callable[[int, float, float | None], None]
"""Called after each step with its number, the loss, and the reward where one was measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sampled responses to held-out prompts: mean reward, mean tokens, and (prompt, response) examples."""

    reward: float
    response_tokens: float
    examples: tuple[tuple[str, str], ...]


class Batch(NamedTuple):
    """Demonstrations as right-padded token ids: one response for each prompt."""

    prompt_ids_BL: Tensor
    prompt_lengths_B: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor


def grammar_tokenizer() -> PreTrainedTokenizerBase:
    """Train the tokenizer on demonstrations of its own; it is the same for every seed."""
    texts = demonstrations(stream_seed("tokenizer", 0), trained_keyword_counts(2))
    pairs = itertools.islice(texts, TOKENIZER_DEMONSTRATIONS)
    return train_tokenizer(itertools.chain.from_iterable((one.prompt, one.response) for one in pairs), VOCABULARY_SIZE)


@torch.no_grad()
def initialize_as_copier(model: DecoderLM, seed: int) -> None:
    """Let attention begin by copying: each head writes what it reads, so that words of the prompt become likelier.

    Value projections get orthonormal rows V and the output projection their transpose, shared evenly by the query heads
    of one key/value head. From the usual start, where the two are unrelated, the model first has to find this by
    itself, and stays at reward 0 several times as long. The embeddings are made larger, so that what is copied stands
    out beside what the other layers write.
    """
    model.initialize(seed)
    config = model.config
    generator = torch.Generator().manual_seed(stream_seed("copier", seed))
    model.model.embed_tokens.weight.mul_(EMBEDDING_GAIN)
    for layer in model.model.layers:
        square = torch.empty(config.hidden_size, config.hidden_size)
        values = nn.init.orthogonal_(square, generator=generator)[: config.key_size]
        per_head = values.view(config.num_key_value_heads, 1, config.head_dim, config.hidden_size)
        for_queries = per_head.expand(-1, config.queries_per_key, -1, -1).reshape(config.query_size, -1)
        layer.self_attn.v_proj.weight.copy_(values)
        layer.self_attn.o_proj.weight.copy_(for_queries.T * (COPY_GAIN / config.queries_per_key))


def train_on_demonstrations(
    model: DecoderLM,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    seed: int,
    keywords_per_prompt: int,
    listener: Listener,
    should_stop: Callable[[], bool],
) -> tuple[int, Evaluation]:
    """Train ``model`` by the recipe; at the end it holds the averaged weights.

    Returns:
        The steps made and the last evaluation.

    Raises:
        RunStopped: a part's reward was not reached in ``max_steps``, or the loss is not finite.
        Interrupted: ``should_stop`` said so.
    """
    average = AveragedPolicy(model, recipe.average_decay)
    evaluate = _evaluator(average.model, tokenizer, recipe, seed, keywords_per_prompt, should_stop)
    counts = trained_keyword_counts(keywords_per_prompt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0)
    parts = (
        (demonstrations(stream_seed("taught", seed), counts), lambda reward: reward >= recipe.taught_reward),
        (
            demonstrations(stream_seed("loose", seed), counts, recipe.loose_rates),
            lambda reward: reward <= recipe.start_reward,
        ),
    )
    model.train()
    step = 0
    for examples, is_done in parts:
        done = False
        while not done:
            if should_stop():
                raise Interrupted(f"the warm start was stopped after {step} steps; nothing of it is kept")
            step += 1
            if step > recipe.max_steps:
                raise RunStopped("cap")
            batch = encode_batch(tokenizer, list(itertools.islice(examples, recipe.batch_size)))
            loss = _train_step(model, optimizer, batch, recipe, step)
            average.update(model)
            if not math.isfinite(loss):
                raise RunStopped(f"the warm start's loss is {loss} at step {step} (seed {seed}); try another seed")
            evaluation = evaluate(step) if step % recipe.evaluate_every == 0 else None
            listener(step, loss, evaluation.reward if evaluation else None)
            done = evaluation is not None and is_done(evaluation.reward)
    model.load_state_dict(average.model.state_dict())
    model.eval().zero_grad(set_to_none=True)
    return step, evaluation


class AveragedPolicy:
    """An exponential average of a model's weights, which is worth several times the steps (Polyak averaging).

    The decay rises with the updates n as n / (n + 10), up to ``decay``: early weights are soon forgotten.
    """

    def __init__(self, model: DecoderLM, decay: float) -> None:
        self.model = copy.deepcopy(model).eval()
        self._decay, self._updates = decay, 0

    @torch.no_grad()
    def update(self, model: DecoderLM) -> None:
        """Take in the weights of one more step."""
        self._updates += 1
        decay = min(self._decay, self._updates / (self._updates + 10))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - decay)


def _train_step(model: DecoderLM, optimizer: torch.optim.Optimizer, batch: Batch, recipe: Recipe, step: int) -> float:
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * min(1.0, step / recipe.warmup_steps)
    precision = training_precision(recipe)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        log_probs_BT, _ = response_log_probs(model, *batch, torch.arange(len(batch.prompt_ids_BL)))
    loss = -log_probs_BT.sum() / batch.response_mask_BT.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
    optimizer.step()
    return loss.item()


def encode_batch(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Demonstration]) -> Batch:
    """Return the examples as token ids; each response ends with the end-of-sequence token."""
    prompts = [tokenizer.encode(example.prompt) for example in examples]
    responses = [[*tokenizer.encode(example.response), tokenizer.eos_token_id] for example in examples]
    response_lengths_B = torch.tensor([len(response) for response in responses])
    response_ids_BT = _padded(responses, tokenizer.pad_token_id)
    return Batch(
        prompt_ids_BL=_padded(prompts, tokenizer.pad_token_id),
        prompt_lengths_B=torch.tensor([len(prompt) for prompt in prompts]),
        response_ids_BT=response_ids_BT,
        response_mask_BT=torch.arange(response_ids_BT.shape[1]) < response_lengths_B[:, None],
    )


def _padded(rows: Sequence[Sequence[int]], pad_token_id: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad_token_id)


def _evaluator(
    model: DecoderLM,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    seed: int,
    keywords_per_prompt: int,
    should_stop: Callable[[], bool],
) -> Callable[[int], Evaluation]:
    """Return the function from a step to its evaluation, sampled at temperature 1 with a random stream of its own."""
    task = KeywordTask(keywords_per_prompt, train_prompts=1, validation_prompts=recipe.evaluation_prompts)
    prompt_ids = [tokenizer.encode(prompt.text) for prompt in task.validation_prompts]
    engine = NativeEngine(model.config, tokenizer, should_stop=should_stop)
    sampling = SamplingParams(temperature=1.0, max_tokens=recipe.max_tokens)

    def evaluate(step: int) -> Evaluation:
        engine.load_weights(model.state_dict())
        groups = engine.generate(prompt_ids, 1, sampling, derive_seed("warm start evaluation", seed, step))
        responses = [group[0] for group in groups]
        rewards = [
            task.reward(response.text, prompt.ground_truth)["reward"]
            for prompt, response in zip(task.validation_prompts, responses, strict=True)
        ]
        tokens = [len(response.token_ids) for response in responses]
        examples = tuple(
            (prompt.text, response.text)
            for prompt, response in zip(task.validation_prompts[:8], responses[:8], strict=True)
        )
        return Evaluation(sum(rewards) / len(rewards), sum(tokens) / len(tokens), examples)

    return evaluate
