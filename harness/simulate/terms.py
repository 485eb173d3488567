"""What a stage's time depends on, counted: the same functions count for the fit and for the prediction.

Each returns units by term, such as ``{"call": 1, "decode_step": 31}``; a machine profile has the seconds of a unit.
Decoding is bound by weights that are read for every step of a batch, and by work for every row in it; a pass of the
Learner by the tokens that go through the layers. A GFLOP is 10^9 operations, a multiplication and an addition being
two; a GB is 10^9 bytes.

Which function counts which stage of a profile:

    stage                                       counted by
    ------------------------------------------  -----------------------------------------------
    generate (and a Generator's evaluate)       generate_terms
    score (and a Scorer's evaluate), record     batch_terms
    prepare_batch                               batch_terms
    old_logprobs, reference_logprobs            pass_terms
    update                                      update_terms
    weight_publish, _transfer, _load, _verify   sync_terms
    checkpoint                                  sync_terms
    call (one way)                              call_terms
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from harness.models.shape import Shape

Terms = dict[str, float]
Group = tuple[int, Sequence[int]]
"""Tokens of a prompt, and of each response to it."""

BFLOAT16_BYTES, FLOAT32_BYTES = 2, 4
LAYER_TENSORS = 9
"""Weights of one layer by name: four of attention, three of the MLP, two norms."""


def generate_terms(shape: Shape, groups: Sequence[Group], max_batch: int) -> Terms:
    """Count what sampling asks of the harness' own engine: prompts once a group, then a step for each further token.

    Whole groups are decoded together, as many as ``max_batch`` holds, one batch after the other. A row that ends costs
    nothing from the next step on, so the longest row of each batch decides how many steps there are. A response of n
    tokens takes n - 1 of them.

    Args:
        shape: of the model.
        groups: what is sampled.
        max_batch: most rows decoded together.
    """
    sizes = _sizes_of(shape)
    prompts = positions = rows = steps = row_steps = context = 0
    for batch in _batches(groups, max_batch):
        prompts += len(batch)
        steps += max([length for _, lengths in batch for length in lengths]) - 1
        for prompt, lengths in batch:
            further = sum(lengths) - len(lengths)
            positions += prompt
            rows += len(lengths)
            row_steps += further
            context += further * prompt + sum([(length - 1) * length // 2 for length in lengths])
    return {
        "call": 1,
        "response": rows,
        "prompt_gflop": sizes.forward_gflop(positions, prompts),
        "decode_step": steps,
        "decode_layer": steps * sizes.num_layers,
        "weight_gb": steps * sizes.parameters * BFLOAT16_BYTES / 1e9,
        "row_layer": row_steps * sizes.num_layers,
        "row_gflop": row_steps * sizes.token_gflop,
        "context_gb": context * sizes.key_values_per_token * FLOAT32_BYTES / 1e9,
    }


class _Sizes(NamedTuple):
    """What the terms ask of a shape, worked out once.

    ``layers`` and ``output`` are the weights of all layers and of the output matrix, ``token_gflop`` the products of
    one position whose logits are made.
    """

    num_layers: int
    layers: int
    output: int
    parameters: int
    key_values_per_token: int
    token_gflop: float

    def forward_gflop(self, positions: float, scored: float) -> float:
        """Return the products of one pass: every position through the layers, logits for the scored ones."""
        return 2 * (positions * self.layers + scored * self.output) / 1e9


@lru_cache(maxsize=64)
def _sizes_of(shape: Shape) -> _Sizes:
    layers, output = shape.num_layers * shape.layer_parameters, shape.embedding_parameters
    sizes = _Sizes(shape.num_layers, layers, output, shape.num_parameters, shape.key_values_per_token, 0.0)
    return sizes._replace(token_gflop=sizes.forward_gflop(1, 1))


def pass_terms(shape: Shape, groups: Sequence[Group], microbatch: int, passes: int = 1) -> Terms:
    """Count passes over a rollout batch without gradients: the old or the reference log-probs.

    The harness' own model packs tokens: a prompt goes through the layers once for its group in each microbatch, a
    response without its last token; attention alone pads, to the longest prompt and response.

    Args:
        shape: of the model.
        groups: that are passed over.
        microbatch: most responses in one forward pass.
        passes: over the batch; 2 where ``loss.kl.monitor`` asks for the drift from the previous policy as well.
    """
    sizes = _sizes_of(shape)
    names = ("microbatch", "position_layer", "position_gflop", "pair_gb", "logit_gb")
    terms = {"call": 1.0} | dict.fromkeys(names, 0.0)
    for prompts, responses in _microbatches(groups, microbatch):
        positions, scored = sum(prompts) + sum(responses) - len(responses), sum(responses)
        keys = max(prompts) + max(responses) - 1
        pairs = shape.num_heads * (len(prompts) * max(prompts) ** 2 + len(responses) * (max(responses) - 1) * keys)
        terms["microbatch"] += 1
        terms["position_layer"] += positions * shape.num_layers
        terms["position_gflop"] += sizes.forward_gflop(positions, scored)
        terms["pair_gb"] += pairs * shape.num_layers * FLOAT32_BYTES / 1e9
        terms["logit_gb"] += scored * shape.vocab_size * FLOAT32_BYTES / 1e9
    return {name: units if name == "call" else passes * units for name, units in terms.items()}


def update_terms(shape: Shape, groups: Sequence[Group], microbatch: int, epochs: int, minibatches: int) -> Terms:
    """Count ``epochs`` passes with gradients, and an optimizer step for each minibatch of each pass."""
    optimizer_steps = epochs * minibatches
    return pass_terms(shape, groups, microbatch, epochs) | {
        "optimizer_step": optimizer_steps,
        "parameter_gb": optimizer_steps * shape.num_parameters * FLOAT32_BYTES / 1e9,
    }


def batch_terms(groups: Sequence[Group]) -> Terms:
    """Count what goes by rollouts and tokens: scoring, making a batch, recording."""
    responses = sum([len(lengths) for _, lengths in groups])
    tokens = sum([sum(lengths) for _, lengths in groups])
    return {"call": 1, "group": len(groups), "response": responses, "token": tokens}


def sync_terms(num_bytes: float, tensors: int, receivers: int = 1, *, first: bool = False) -> Terms:
    """Count what a part of a weight sync moves.

    Args:
        num_bytes, tensors: of the weights.
        receivers: Generators that load them at the same time.
        first: whether it is the run's first sync, which sets connections up and touches fresh memory.
    """
    gb = num_bytes / 1e9
    terms = {"call": 1, "tensor": tensors, "gb": gb, "further_gb": (receivers - 1) * gb}
    return terms | {"first": int(first), "first_gb": gb if first else 0.0}


def call_terms(groups: Sequence[Group] = ()) -> Terms:
    """Count one way of a call to an actor: rollouts travel as a handle for each group and a few numbers for each.

    Args:
        groups: that are sent along; none where the call carries no rollouts.
    """
    return {"call": 1, "group": len(groups), "response": sum([len(lengths) for _, lengths in groups])}


def weight_bytes(shape: Shape) -> int:
    """Return the bytes of a weight sync: the Learner's weights are float32."""
    return shape.num_parameters * FLOAT32_BYTES


def weight_tensors(shape: Shape) -> int:
    """Return how many tensors the weights are: those of each layer, the embedding table, the last norm, the output."""
    layer = LAYER_TENSORS + (3 if shape.attention_bias else 0) + (2 if shape.head_norms else 0)
    return shape.num_layers * layer + (2 if shape.tied else 3)


def _batches(groups: Sequence[Group], max_batch: int) -> Iterator[Sequence[Group]]:
    """The groups of each batch, as ``harness.engines.batch.split_into_batches`` cuts them."""
    samples = max([len(lengths) for _, lengths in groups])
    if samples > max_batch:
        for prompt, lengths in groups:
            for start in range(0, len(lengths), max_batch):
                yield [(prompt, lengths[start : start + max_batch])]
        return
    together = max_batch // samples
    for start in range(0, len(groups), together):
        yield groups[start : start + together]


def _microbatches(groups: Sequence[Group], microbatch: int) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt tokens, each prompt once, and response tokens of each microbatch."""
    rows = [(index, length) for index, (_, lengths) in enumerate(groups) for length in lengths]
    for start in range(0, len(rows), microbatch):
        part = rows[start : start + microbatch]
        present = dict.fromkeys([index for index, _ in part])
        yield [groups[index][0] for index in present], [length for _, length in part]
