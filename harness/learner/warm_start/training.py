"""The supervised training itself: a copying initialisation, next-token loss on the responses, stopping on reward.

What is taught stands in ``lessons``; nothing here knows a task.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from harness.core.errors import Interrupted, RunStopped
from harness.core.types import SamplingParams
from harness.engines.native import NativeEngine
from harness.learner.warm_start.lessons import Example, Lessons, Recipe, stream_seed
from harness.models.decoder import DecoderLayer, DecoderLM
from harness.models.policy import policy_log_probs

EMBEDDING_GAIN = 4.0
COPY_GAIN = 2.0
NUM_EXAMPLES = 8
Listener = Callable[[int, float, float | None, str], None]
"""Called after each step with its number, the loss, the reward where one was measured, and which one is wanted."""


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
        tokenizer: the lessons'.
        lessons, recipe: what to teach, and how.
        seed: of the examples and evaluations.
        listener: called after each step.
        should_stop: polled before each step and each sampled token.
    """

    def __init__(
        self,
        model: DecoderLM,
        tokenizer: PreTrainedTokenizerBase,
        lessons: Lessons,
        recipe: Recipe,
        seed: int,
        listener: Listener,
        should_stop: Callable[[], bool],
    ) -> None:
        self.average, self.steps = AveragedPolicy(model, recipe.average_decay), 0
        self._model, self._tokenizer, self._lessons, self._recipe, self._seed = model, tokenizer, lessons, recipe, seed
        self._listener, self._should_stop = listener, should_stop
        self._task = lessons.task(recipe.evaluation_prompts)
        self._engine = NativeEngine(model.config, tokenizer, should_stop=should_stop)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0
        )

    def run(self) -> Evaluation:
        """Teach all lessons; return the last evaluation of the averaged policy.

        Raises:
            RunStopped: a reward was not reached in the recipe's ``max_steps``, or the loss is not finite.
            Interrupted: ``should_stop`` said so.
        """
        taught, start = self._lessons.taught_reward, self._recipe.start_reward
        right, careless = self._lessons.right(self._seed), self._lessons.careless(self._seed)
        often, oftener = self._recipe.evaluate_every
        self._teach(right, often, lambda reward: reward >= taught, f"at least {taught:.3f}")
        return self._teach(careless, oftener, lambda reward: reward <= start, f"at most {start:.3f}")

    def _teach(
        self, examples: Iterator[Example], every: int, is_good_enough: Callable[[float], bool], wanted: str
    ) -> Evaluation:
        last = math.nan
        while self.steps < self._recipe.max_steps:
            if self._should_stop():
                raise Interrupted(f"the warm start was stopped after {self.steps} steps; nothing of it is kept")
            self.steps += 1
            loss = self._step(list(itertools.islice(examples, self._recipe.batch_size)))
            is_due = self.steps >= self._recipe.evaluate_from and self.steps % every == 0
            evaluation = self._evaluate() if is_due else None
            self._listener(self.steps, loss, evaluation.reward if evaluation else None, wanted)
            if evaluation and is_good_enough(evaluation.reward):
                return evaluation
            last = evaluation.reward if evaluation else last
        raise RunStopped(
            f"the warm start (seed {self._seed}) made {self.steps} steps and its validation reward is {last:.3f}; "
            f"{wanted} is needed. {self._lessons.or_else}"
        )

    def _step(self, examples: Sequence[Example]) -> float:
        recipe = self._recipe
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, self.steps / recipe.warmup_steps)
        batch = encode_batch(self._tokenizer, examples, share_beginning=recipe.share_beginning)
        loss = response_loss(self._model, batch, recipe.dtype)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), recipe.max_grad_norm)
        self._optimizer.step()
        self.average.update(self._model)
        if not math.isfinite(loss.item()):
            raise RunStopped(f"the warm start's loss is {loss.item()} at step {self.steps} (seed {self._seed})")
        return loss.item()

    def _evaluate(self) -> Evaluation:
        """Sample one response of the averaged policy to each held-out prompt, at temperature 1."""
        self._engine.load_weights(self.average.model.state_dict())
        prompts = self._task.validation_prompts
        sampling = SamplingParams(temperature=1.0, max_tokens=self._recipe.max_tokens, stop=self._lessons.stop)
        seed = stream_seed("evaluation", self._seed, self.steps)
        groups = self._engine.generate([self._tokenizer.encode(one.text) for one in prompts], 1, sampling, seed)
        pairs = [(prompt, response) for prompt, (response,) in zip(prompts, groups, strict=True)]
        rewards = [self._task.reward(response.text, prompt.ground_truth)["reward"] for prompt, response in pairs]
        return Evaluation(
            reward=sum(rewards) / len(rewards),
            response_tokens=sum(len(response.token_ids) for _, response in pairs) / len(pairs),
            examples=tuple((prompt.text, response.text) for prompt, response in pairs[:NUM_EXAMPLES]),
        )


def response_loss(model: DecoderLM, batch: Batch, precision: torch.dtype = torch.float32) -> Tensor:
    """Mean of -log p over the response tokens of the batch; the prompt's tokens are not trained on."""
    *rows, trained_mask_BT = batch
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        log_probs_BT, _ = policy_log_probs(model, *rows)
    return -log_probs_BT.masked_fill(~trained_mask_BT, 0.0).sum() / trained_mask_BT.sum()


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], *, share_beginning: bool = False
) -> Batch:
    """Return the examples as token ids; each response ends with the end-of-sequence token.

    With ``share_beginning`` the tokens with which all prompts begin are computed once, and the rest of each prompt is
    taken into its row. The loss is the same; it is quicker where prompts are long and alike.
    """

    def pad(rows: Sequence[Sequence[int]]) -> Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=tokenizer.pad_token_id)

    prompts = [tokenizer.encode(example.prompt) for example in examples]
    responses = [[*tokenizer.encode(example.response), tokenizer.eos_token_id] for example in examples]
    index_B = torch.arange(len(prompts))
    if share_beginning:
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)  # at least one token of each is left out
        shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
        rests, prompts, index_B = [prompt[shared:] for prompt in prompts], [prompts[0][:shared]], 0 * index_B
    else:
        rests = [[] for _ in prompts]
    rows = [rest + response for rest, response in zip(rests, responses, strict=True)]
    row_ids_BT = pad(rows)
    steps_T = torch.arange(row_ids_BT.shape[1])
    row_mask_BT = steps_T < torch.tensor([len(row) for row in rows])[:, None]
    return Batch(
        prompt_ids_PL=pad(prompts),
        prompt_lengths_P=torch.tensor([len(prompt) for prompt in prompts]),
        row_ids_BT=row_ids_BT,
        row_mask_BT=row_mask_BT,
        prompt_index_B=index_B,
        trained_mask_BT=row_mask_BT & (steps_T >= torch.tensor([len(rest) for rest in rests])[:, None]),
    )
