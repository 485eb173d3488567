"""The supervised training itself: a copying initialisation, next-token loss on the responses, stopping on reward.

What is taught is a curriculum's matter (see ``curriculum``); nothing here knows a task.
"""

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

from harness.core.errors import Interrupted, RunStopped
from harness.core.types import SamplingParams
from harness.engines.native import NativeEngine
from harness.learner.warm_start.curriculum import Curriculum, Example, Lesson, Recipe, stream_seed, training_precision
from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLayer, DecoderLM
from harness.models.shared_prompt import response_log_probs

EMBEDDING_GAIN = 4.0
COPY_GAIN = 2.0
NUM_EXAMPLES = 8
Listener = Callable[[int, float, float | None], None]
"""Called after each step with its number, the loss, and the reward where one was measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sampled responses to held-out prompts: mean reward, mean tokens, and (prompt, response) examples."""

    reward: float
    response_tokens: float
    examples: tuple[tuple[str, str], ...]


class Batch(NamedTuple):
    """Examples as right-padded token ids: P prompts, and B rows of which each follows one of them.

    ``trained_mask_BT`` marks the tokens that are trained on: those of the responses.
    """

    prompt_ids_PL: Tensor
    prompt_lengths_P: Tensor
    row_ids_BT: Tensor
    row_mask_BT: Tensor
    prompt_index_B: Tensor
    trained_mask_BT: Tensor


@torch.no_grad()
def initialize_as_copier(model: DecoderLM, seed: int) -> None:
    """Let attention begin by copying: each head writes what it reads, so that words of the prompt become likelier.

    Value projections get orthonormal rows V and the output projection their transpose, shared evenly by the query heads
    of one key/value head. From the usual start, where the two are unrelated, the model first has to find this by
    itself, and stays at reward 0 several times as long. The embeddings are made larger, so that what is copied stands
    out beside what the other layers write; an output matrix of its own begins as a copy of them.
    """
    model.initialize(seed)
    config = model.config
    generator = torch.Generator().manual_seed(stream_seed("copier", seed))
    model.model.embed_tokens.weight.mul_(EMBEDDING_GAIN)
    if not config.tie_word_embeddings:
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    for layer in model.model.layers:
        assert isinstance(layer, DecoderLayer)
        square = torch.empty(config.hidden_size, config.hidden_size)
        values = nn.init.orthogonal_(square, generator=generator)[: config.key_size]
        per_head = values.view(config.num_key_value_heads, 1, config.head_dim, config.hidden_size)
        for_queries = per_head.expand(-1, config.queries_per_key, -1, -1).reshape(config.query_size, -1)
        layer.self_attn.v_proj.weight.copy_(values)
        layer.self_attn.o_proj.weight.copy_(for_queries.T * (COPY_GAIN / config.queries_per_key))


class AveragedPolicy:
    """An exponential average of a model's weights (Polyak and Juditsky 1992), steadier than the weights themselves.

    After n updates the decay is n / (n + 10), at most ``decay``, so that the first weights are soon forgotten.
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


class WarmStartTraining:
    """One warm start, from an initialised model to the averaged policy.

    Args:
        model: trained in place; its own weights are not the result.
        tokenizer: the curriculum's.
        recipe: how to train.
        seed: of the examples and evaluations.
        curriculum: what to teach.
        listener: called after each step.
        should_stop: polled before each step.
    """

    def __init__(
        self,
        model: DecoderLM,
        tokenizer: PreTrainedTokenizerBase,
        recipe: Recipe,
        seed: int,
        curriculum: Curriculum,
        listener: Listener,
        should_stop: Callable[[], bool],
    ) -> None:
        self.average = AveragedPolicy(model, recipe.average_decay)
        self.steps = 0
        self._model, self._tokenizer, self._recipe, self._seed = model, tokenizer, recipe, seed
        self._curriculum = curriculum
        self._listener, self._should_stop = listener, should_stop
        self._evaluator = Evaluator(model.config, tokenizer, recipe, seed, curriculum, should_stop)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0
        )

    def run(self) -> Evaluation:
        """Teach all lessons; return the last evaluation of the averaged policy.

        Raises:
            RunStopped: a lesson did not reach its reward in the recipe's ``max_steps``, or the loss is not finite.
            Interrupted: ``should_stop`` said so.
        """
        return [self._teach(lesson) for lesson in self._curriculum.lessons(self._recipe, self._seed)][-1]

    def _teach(self, lesson: Lesson) -> Evaluation:
        """Train on the lesson's examples until an evaluation's reward is as wanted."""
        last = math.nan
        while self.steps < self._recipe.max_steps:
            if self._should_stop():
                raise Interrupted(f"the warm start was stopped after {self.steps} steps; nothing of it is kept")
            self.steps += 1
            loss = self._step(self._encode(list(itertools.islice(lesson.examples, self._recipe.batch_size))))
            is_due = self.steps >= self._recipe.evaluate_from and self.steps % lesson.every == 0
            evaluation = self._evaluator.evaluate(self.average.model, self.steps) if is_due else None
            self._listener(self.steps, loss, evaluation.reward if evaluation else None)
            if evaluation and lesson.is_reached(evaluation.reward):
                return evaluation
            last = evaluation.reward if evaluation else last
        raise RunStopped(
            f"the warm start (seed {self._seed}) made {self.steps} steps and its validation reward is {last:.3f}; "
            f"{lesson.wanted} is needed. Set model.warm_start_seed to another number{self._curriculum.or_else}"
        )

    def _encode(self, examples: Sequence[Example]) -> Batch:
        return encode_batch(self._tokenizer, examples, share_beginning=self._recipe.share_beginning)

    def _step(self, batch: Batch) -> float:
        recipe = self._recipe
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, self.steps / recipe.warmup_steps)
        loss = response_loss(self._model, batch, training_precision(recipe))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), recipe.max_grad_norm)
        self._optimizer.step()
        self.average.update(self._model)
        if not math.isfinite(loss.item()):
            raise RunStopped(f"the warm start's loss is {loss.item()} at step {self.steps} (seed {self._seed})")
        return loss.item()


def response_loss(model: DecoderLM, batch: Batch, precision: torch.dtype = torch.float32) -> Tensor:
    """Mean of -log p over the response tokens of the batch; the prompt's tokens are not trained on."""
    *rows, trained_mask_BT = batch
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        log_probs_BT, _ = response_log_probs(model, *rows)
    return -log_probs_BT.masked_fill(~trained_mask_BT, 0.0).sum() / trained_mask_BT.sum()


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], *, share_beginning: bool = False
) -> Batch:
    """Return the examples as token ids; each response ends with the end-of-sequence token.

    Args:
        tokenizer: gives the ids.
        examples: prompts with their responses.
        share_beginning: compute the tokens with which all prompts begin once, and take the rest of each prompt into
            its row. The loss is the same; it is quicker where prompts are long and alike.
    """
    prompts = [tokenizer.encode(example.prompt) for example in examples]
    responses = [[*tokenizer.encode(example.response), tokenizer.eos_token_id] for example in examples]
    index_B = torch.arange(len(prompts))
    if share_beginning:
        shared = _common_beginning(prompts)
        rests, prompts, index_B = [prompt[shared:] for prompt in prompts], [prompts[0][:shared]], 0 * index_B
    else:
        rests = [[] for _ in prompts]
    rows = [rest + response for rest, response in zip(rests, responses, strict=True)]
    row_ids_BT = _padded(rows, tokenizer.pad_token_id)
    steps_T = torch.arange(row_ids_BT.shape[1])
    row_mask_BT = steps_T < torch.tensor([len(row) for row in rows])[:, None]
    return Batch(
        prompt_ids_PL=_padded(prompts, tokenizer.pad_token_id),
        prompt_lengths_P=torch.tensor([len(prompt) for prompt in prompts]),
        row_ids_BT=row_ids_BT,
        row_mask_BT=row_mask_BT,
        prompt_index_B=index_B,
        trained_mask_BT=row_mask_BT & (steps_T >= torch.tensor([len(rest) for rest in rests])[:, None]),
    )


def _common_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Return with how many equal tokens all prompts begin, at least one of each left out."""
    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def _padded(rows: Sequence[Sequence[int]], pad_token_id: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad_token_id)


class Evaluator:
    """Samples one response to each held-out prompt at temperature 1; its random stream is its own."""

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: PreTrainedTokenizerBase,
        recipe: Recipe,
        seed: int,
        curriculum: Curriculum,
        should_stop: Callable[[], bool],
    ) -> None:
        self._task = curriculum.task(recipe.evaluation_prompts)
        self._prompt_ids = [tokenizer.encode(prompt.text) for prompt in self._task.validation_prompts]
        self._engine = NativeEngine(config, tokenizer, should_stop=should_stop)
        self._sampling = SamplingParams(temperature=1.0, max_tokens=recipe.max_tokens, stop=curriculum.stop)
        self._seed = seed

    def evaluate(self, model: DecoderLM, step: int) -> Evaluation:
        """Return the mean reward of the model's responses; ``step`` chooses the random stream."""
        self._engine.load_weights(model.state_dict())
        seed = stream_seed("evaluation", self._seed, step)
        responses = [group[0] for group in self._engine.generate(self._prompt_ids, 1, self._sampling, seed)]
        pairs = list(zip(self._task.validation_prompts, responses, strict=True))
        rewards = [self._task.reward(response.text, prompt.ground_truth)["reward"] for prompt, response in pairs]
        return Evaluation(
            reward=sum(rewards) / len(rewards),
            response_tokens=sum(len(response.token_ids) for response in responses) / len(responses),
            examples=tuple((prompt.text, response.text) for prompt, response in pairs[:NUM_EXAMPLES]),
        )
