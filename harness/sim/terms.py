"""What a stage's time depends on, counted: the same functions count for the fit and for the prediction.

Each returns units by term, such as ``{"call": 1, "decode_step": 31}``; a machine profile has the seconds of a unit.
Decoding is bound by weights that are read for every step of a batch, and by work for every row in it; a pass of the
Learner by padded positions. A GFLOP is 10^9 operations, a multiplication and an addition being two; a GB is 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.memory_plan.shape import Shape

Terms = dict[str, float]
Group = tuple[int, Sequence[int]]
"""Tokens of a prompt, and of each response to it."""

BFLOAT16_BYTES, FLOAT32_BYTES = 2, 4


def generate_terms(shape: Shape, groups: Sequence[Group], max_batch: int) -> Terms:
    """Count what sampling asks of the harness' own engine: prompts once a group, then a step for each further token.

    Rows are served ``max_batch`` at a time, in order; a row that ends costs nothing from the next step on, so the
    longest row of each batch decides how many steps there are. A response of n tokens takes n - 1 of them.

    Args:
        shape: of the model.
        groups: what is sampled.
        max_batch: most rows decoded together.
    """
    rows = [(prompt, length) for prompt, lengths in groups for length in lengths]
    batches = [rows[start : start + max_batch] for start in range(0, len(rows), max_batch)]
    steps = sum(max(length for _, length in batch) - 1 for batch in batches)
    row_steps = sum(length - 1 for _, length in rows)
    context = sum((length - 1) * prompt + (length - 1) * length // 2 for prompt, length in rows)
    prompts = sum(prompt for batch in _prompts_of(groups, max_batch) for prompt in batch)
    token_gflop = forward_gflop(shape, 1, 1)
    return {
        "call": 1,
        "response": len(rows),
        "prompt_gflop": forward_gflop(shape, prompts, len(groups)),
        "decode_step": steps,
        "decode_layer": steps * shape.num_layers,
        "weight_gb": steps * shape.num_parameters * BFLOAT16_BYTES / 1e9,
        "row": row_steps,
        "row_gflop": row_steps * token_gflop,
        "context_gb": context * shape.key_values_per_token * FLOAT32_BYTES / 1e9,
    }


def forward_gflop(shape: Shape, positions: float, scored: float) -> float:
    """Return the products of one pass: every position through the layers, logits for the scored ones."""
    return 2 * (positions * shape.num_layers * shape.layer_parameters + scored * shape.embedding_parameters) / 1e9


def pass_terms(shape: Shape, groups: Sequence[Group], microbatch: int) -> Terms:
    """Count one pass over a rollout batch without gradients: the old or the reference log-probs.

    Responses are padded to the longest of their microbatch, prompts to the longest prompt, each once.
    """
    terms = {"call": 1.0, "microbatch": 0.0, "microbatch_layer": 0.0, "position_gflop": 0.0, "logit_gb": 0.0}
    for prompts, responses in _microbatches(groups, microbatch):
        terms["microbatch"] += 1
        terms["microbatch_layer"] += shape.num_layers
        terms["position_gflop"] += forward_gflop(shape, prompts + responses, responses)
        terms["logit_gb"] += responses * shape.vocab_size * FLOAT32_BYTES / 1e9
    return terms


def update_terms(shape: Shape, groups: Sequence[Group], microbatch: int, epochs: int, minibatches: int) -> Terms:
    """Count ``epochs`` passes with gradients, and an optimizer step for each minibatch of each pass."""
    one_pass = pass_terms(shape, groups, microbatch)
    optimizer_steps = epochs * minibatches
    passes = {name: epochs * units for name, units in one_pass.items() if name != "call"}
    return {
        "call": 1,
        "optimizer_step": optimizer_steps,
        "parameter_gb": optimizer_steps * shape.num_parameters * FLOAT32_BYTES / 1e9,
        **passes,
    }


def batch_terms(groups: Sequence[Group]) -> Terms:
    """Count what goes by rollouts and tokens: scoring, making a batch, recording."""
    responses = sum(len(lengths) for _, lengths in groups)
    return {"call": 1, "response": responses, "token": sum(sum(lengths) for _, lengths in groups)}


def sync_terms(num_bytes: float, tensors: int, receivers: int = 1) -> Terms:
    """Count what a part of a weight sync moves."""
    return {"call": 1, "tensor": tensors, "gb": num_bytes / 1e9, "further_receiver": receivers - 1}


def call_terms() -> Terms:
    """Count a call to an actor and its answer."""
    return {"call": 1}


def _prompts_of(groups: Sequence[Group], max_batch: int) -> Iterator[list[int]]:
    """Prompt tokens of each batch: a group that is cut by the batch size is prefilled in both."""
    rows = [index for index, (_, lengths) in enumerate(groups) for _ in lengths]
    for start in range(0, len(rows), max_batch):
        yield [groups[index][0] for index in sorted(set(rows[start : start + max_batch]))]


def _microbatches(groups: Sequence[Group], microbatch: int) -> Iterator[tuple[int, int]]:
    """Padded prompt positions and padded response positions of each microbatch."""
    rows = [(index, length) for index, (_, lengths) in enumerate(groups) for length in lengths]
    for start in range(0, len(rows), microbatch):
        part = rows[start : start + microbatch]
        prompts = [groups[index][0] for index in {index for index, _ in part}]
        yield len(prompts) * max(prompts), len(part) * max(length for _, length in part)
