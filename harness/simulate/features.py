"""What a stage's time depends on, counted: the same functions count for the fit and for the prediction.

Each returns units by feature, such as ``{"call": 1, "decode_step": 31}``; a machine profile has the seconds of a unit.
Decoding is bound by weights that are read for every step of a batch, and by work for every row in it; a pass of the
Learner by the tokens that go through the layers. A GFLOP is 10^9 operations, a multiplication and an addition being
two; a GB is 10^9 bytes.

Which function counts which stage of a profile:

    stage                                       counted by
    ------------------------------------------  -----------------------------------------------
    generate (and a Generator's evaluate)       generate_features
    score (and a Scorer's evaluate), record     batch_features
    prepare_batch                               batch_features
    old_logprobs, reference_logprobs            pass_features
    update                                      update_features
    weight_publish, _transfer, _load, _verify   sync_features
    save_policy                                 sync_features
    checkpoint, checkpoint_write                checkpoint_features
    call (one way)                              call_features

From a scenario to the work of its stages: which of them there are, and what each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

from harness.core.trace import Stage
from harness.core.types import RolloutGroup
from harness.models.config import ModelConfig
from harness.run.memory.learner import state_bytes
from harness.run.memory.shape import shape_for
from harness.scenario.derived import in_shards, microbatches
from harness.scenario.schema import Scenario

Features = dict[str, float]
Group = tuple[int, Sequence[int]]
"""Tokens of a prompt, and of each response to it."""
Microbatch = tuple[Sequence[int], Sequence[int]]
"""Tokens of its prompts, each once, and of its responses."""

BFLOAT16_BYTES, FLOAT32_BYTES = 2, 4
LAYER_TENSORS = 9
"""Weights of one layer by name: four of attention, three of the MLP, two norms."""


def generate_features(shape: ModelConfig, groups: Sequence[Group], max_batch: int) -> Features:
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
    """What the features ask of a shape, worked out once.

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
def _sizes_of(shape: ModelConfig) -> _Sizes:
    layers, output = shape.num_hidden_layers * shape.layer_parameters, shape.embedding_parameters
    sizes = _Sizes(shape.num_hidden_layers, layers, output, shape.num_parameters, shape.key_values_per_token, 0.0)
    return sizes._replace(token_gflop=sizes.forward_gflop(1, 1))


def pass_features(shape: ModelConfig, groups: Sequence[Group], microbatch: int, passes: int = 1) -> Features:
    """Count passes over a rollout batch without gradients: the old or the reference log-probs.

    The harness' own model packs tokens: a prompt goes through the layers once for its group in each microbatch, a
    response without its last token; attention alone pads, to the longest prompt and response.

    Args:
        shape: of the model.
        groups: that are passed over.
        microbatch: most responses in one forward pass.
        passes: over the batch; 2 where ``loss.kl.monitor`` asks for the drift from the previous policy as well.
    """
    features = microbatch_features(shape, _microbatches(groups, microbatch))
    return {"call": 1.0} | {name: passes * units for name, units in features.items()}


def microbatch_features(shape: ModelConfig, microbatches: Iterable[Microbatch]) -> Features:
    """Count one pass over given microbatches; see ``pass_features``."""
    sizes = _sizes_of(shape)
    features = dict.fromkeys(("microbatch", "position_layer", "position_gflop", "pair_gb", "logit_gb"), 0.0)
    for prompts, responses in microbatches:
        positions, scored = sum(prompts) + sum(responses) - len(responses), sum(responses)
        keys = max(prompts) + max(responses) - 1
        pairs = shape.num_attention_heads * (
            len(prompts) * max(prompts) ** 2 + len(responses) * (max(responses) - 1) * keys
        )
        features["microbatch"] += 1
        features["position_layer"] += positions * shape.num_hidden_layers
        features["position_gflop"] += sizes.forward_gflop(positions, scored)
        features["pair_gb"] += pairs * shape.num_hidden_layers * FLOAT32_BYTES / 1e9
        features["logit_gb"] += scored * shape.vocab_size * FLOAT32_BYTES / 1e9
    return features


def update_features(
    shape: ModelConfig, groups: Sequence[Group], microbatch: int, epochs: int, minibatches: int
) -> Features:
    """Count ``epochs`` passes with gradients, and an optimizer step for each minibatch of each pass."""
    optimizer_steps = epochs * minibatches
    return pass_features(shape, groups, microbatch, epochs) | {
        "optimizer_step": optimizer_steps,
        "parameter_gb": optimizer_steps * shape.num_parameters * FLOAT32_BYTES / 1e9,
    }


def batch_features(groups: Sequence[Group]) -> Features:
    """Count what goes by rollouts and tokens: scoring, making a batch, recording."""
    responses = sum([len(lengths) for _, lengths in groups])
    tokens = sum([sum(lengths) for _, lengths in groups])
    return {"call": 1, "group": len(groups), "response": responses, "token": tokens}


def sync_features(num_bytes: float, tensors: int, receivers: int = 1, *, first: bool = False) -> Features:
    """Count what a part of a weight sync moves.

    Args:
        num_bytes, tensors: of the weights.
        receivers: Generators that load them at the same time.
        first: whether it is the run's first sync, which sets connections up and touches fresh memory.
    """
    gb = num_bytes / 1e9
    features = {"call": 1, "tensor": tensors, "gb": gb, "further_gb": (receivers - 1) * gb}
    return features | {"first": int(first), "first_gb": gb if first else 0.0}


def checkpoint_features(num_bytes: float) -> Features:
    """Count a checkpoint of what a Learner has learnt."""
    return {"call": 1, "gb": num_bytes / 1e9}


def call_features(groups: Sequence[Group] = ()) -> Features:
    """Count one way of a call to an actor: rollouts travel as a handle for each group and a few numbers for each.

    Args:
        groups: that are sent along; none where the call carries no rollouts.
    """
    return {"call": 1, "group": len(groups), "response": sum([len(lengths) for _, lengths in groups])}


def weight_bytes(shape: ModelConfig) -> int:
    """Return the bytes of a weight sync: the Learner's weights are float32."""
    return shape.num_parameters * FLOAT32_BYTES


def weight_tensors(shape: ModelConfig) -> int:
    """Return how many tensors the weights are: those of each layer, the embedding table, the last norm, the output."""
    layer = LAYER_TENSORS + (3 if shape.attention_bias else 0) + (2 if shape.head_norms else 0)
    return shape.num_hidden_layers * layer + (2 if shape.tie_word_embeddings else 3)


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


def _microbatches(groups: Sequence[Group], microbatch: int) -> Iterator[Microbatch]:
    """Prompt tokens, each prompt once, and response tokens of each microbatch."""
    rows = [(index, length) for index, (_, lengths) in enumerate(groups) for length in lengths]
    for start in range(0, len(rows), microbatch):
        part = rows[start : start + microbatch]
        present = dict.fromkeys([index for index, _ in part])
        yield [groups[index][0] for index in present], [length for _, length in part]


TWO_SIDED = ("gloo", "nccl")
"""Transports that move the weights on the way to the call that loads them."""
_CONTINUOUS = ("vllm", "sglang")
"""Engines that give the place of a finished response to the next one at once."""


class Workload:
    """What the stages of one scenario do.

    Args:
        scenario: the resolved scenario.
        shape: of the model; None reads it from the scenario, where it can be known without loading anything.

    Attributes:
        shape: of the model; None where it has next to no weights or is not here.
        shape_missing: why the shape is not known.
    """

    def __init__(self, scenario: Scenario, shape: ModelConfig | None = None) -> None:
        self.scenario = scenario
        engine: Any = scenario.engine
        self._max_batch, self._is_continuous = getattr(engine, "max_batch", 256), engine.type in _CONTINUOUS
        self._calls: dict[tuple[int, int], Features] = {}  # there are few, and calls are many
        self._syncs: dict[bool, Features] = {}
        self.shape, self.shape_missing = (shape, "") if shape is not None else shape_for(scenario)

    # ---- which stages there are

    @cached_property
    def has_old_log_probs(self) -> bool:
        """Whether the Learner has the stage ``old_logprobs``."""
        return self.scenario.needs_old_log_probs

    @cached_property
    def has_reference(self) -> bool:
        """Whether the Learner has the stage ``reference_logprobs``."""
        return self.scenario.needs_reference

    @cached_property
    def verifies(self) -> bool:
        """Whether both ends of a weight sync take a checksum."""
        return self.scenario.verifies_weights

    @cached_property
    def proves(self) -> bool:
        """Whether engine and Learner compare log-probs after a weight sync; see ``build.options.mismatch_bound``."""
        settings: Any = self.scenario.engine
        return self._is_continuous or getattr(settings, "mismatch_bound", None) is not None

    @cached_property
    def verifications(self) -> int:
        """Spans of ``weight_verify`` at each end of a weight sync."""
        return int(self.verifies) + int(self.proves)

    @cached_property
    def two_sided(self) -> bool:
        """Whether the weights arrive on the way to the call that loads them."""
        return self.scenario.transport.type in TWO_SIDED

    # ---- what they count

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of one weight sync."""
        settings: Any = self.scenario.model
        if settings.type == "paced":
            megabytes: float = settings.megabytes
            return round(megabytes * 1e6 / FLOAT32_BYTES) * FLOAT32_BYTES
        if self.shape is None:
            return 0
        each = FLOAT32_BYTES if self.scenario.travel_dtype == "float32" else BFLOAT16_BYTES
        return weight_bytes(self.shape) * each // FLOAT32_BYTES

    @cached_property
    def weight_tensors(self) -> int:
        """Tensors of one weight sync."""
        settings: Any = self.scenario.model
        if settings.type == "paced":
            return int(settings.tensors)
        return 1 if self.shape is None else weight_tensors(self.shape)

    def generate(self, groups: Sequence[Group]) -> Features:
        """Count what sampling these groups asks of the engine, for training or validation."""
        if self.shape is None:
            return batch_features(groups)
        features = generate_features(self.shape, groups, self._max_batch)
        if not self._is_continuous:
            return features
        steps = decode_steps([length for _, lengths in groups for length in lengths], self._max_batch)
        weight_gb = steps * self.shape.num_parameters * BFLOAT16_BYTES / 1e9
        return features | {
            "decode_step": steps,
            "decode_layer": steps * self.shape.num_hidden_layers,
            "weight_gb": weight_gb,
        }

    @cached_property
    def training(self) -> dict[Stage, Callable[[Sequence[Group]], Features]]:
        """The stages of a training step in their order, each with what counts its work on a rollout batch."""
        stages: dict[Stage, Callable[[Sequence[Group]], Features]] = {Stage.PREPARE_BATCH: self.batch}
        if self.has_old_log_probs:
            stages[Stage.OLD_LOGPROBS] = self.log_probs
        if self.has_reference:
            stages[Stage.REFERENCE_LOGPROBS] = self.reference_log_probs
        return stages | {Stage.UPDATE: self.update}

    def batch(self, groups: Sequence[Group]) -> Features:
        """Count what goes by rollouts and tokens: scoring, preparing a batch, recording."""
        return batch_features(groups)

    def log_probs(self, groups: Sequence[Group]) -> Features:
        """Count a pass over a batch without gradients."""
        return self._passes(groups, 1)

    def reference_log_probs(self, groups: Sequence[Group]) -> Features:
        """Count the reference policy's pass, and with monitoring that of the previous policy."""
        return self._passes(groups, self.reference_passes)

    @cached_property
    def reference_passes(self) -> int:
        """Passes over a batch behind ``reference_logprobs``."""
        return 2 if self.scenario.loss.kl.monitor else 1

    def _passes(self, groups: Sequence[Group], passes: int) -> Features:
        if self.shape is None:
            return batch_features(groups)
        return pass_features(self.shape, groups, self._microbatch(groups), passes)

    def update(self, groups: Sequence[Group]) -> Features:
        """Count the passes with gradients and the optimizer steps of one training step."""
        if self.shape is None:
            return batch_features(groups)
        scenario = self.scenario
        minibatches = scenario.minibatches_per_epoch
        return update_features(self.shape, groups, self._microbatch(groups), scenario.epochs_per_batch, minibatches)

    def accumulate(self, groups: Sequence[Group]) -> Features:
        """Count the passes with gradients over a part of a batch, behind which there is no optimizer step."""
        features = self.update(groups)
        return features | dict.fromkeys(features.keys() & {"optimizer_step", "parameter_gb"}, 0.0)

    def sync(self, first: bool) -> Features:
        """Count what a part of a weight sync moves."""
        features = self._syncs.get(first)
        if features is None:
            receivers = self.scenario.placement.generator.count
            features = sync_features(self.weight_bytes, self.weight_tensors, receivers, first=first)
            if in_shards(self.scenario):  # each rank sends its pieces to all of them, side by side
                features["further_gb"] /= self.scenario.placement.learner.ranks
            self._syncs[first] = features
        return features

    def sync_stage(self, stage: Stage, part: str, first: bool) -> Features:
        """Count what a stage of a weight sync moves for one process of a part (``learner`` or ``generator``).

        Ranks that publish shards write a piece of each tensor each, and as many pieces reach a Generator.
        """
        features = self.sync(first)
        if not in_shards(self.scenario):
            return features
        ranks = self.scenario.placement.learner.ranks
        if part == "learner":
            return features | {name: features[name] / ranks for name in ("gb", "first_gb")}
        return features if stage is Stage.WEIGHT_LOAD else features | {"tensor": features["tensor"] * ranks}

    def checkpoint(self, copied: bool) -> Features:
        """Count a checkpoint: what a rank copies to memory of its own, or what all of them write to one disk."""
        if self.shape is None:
            return checkpoint_features(0)
        saved = state_bytes(self.scenario, self.shape)
        return checkpoint_features(saved / self.scenario.placement.learner.ranks if copied else saved)

    def call(self, groups: Sequence[Group] = ()) -> Features:
        """Count one way of a call to an actor."""
        key = len(groups), sum([len(lengths) for _, lengths in groups])
        features = self._calls.get(key)
        if features is None:
            features = self._calls[key] = call_features(groups)
        return features

    def _microbatch(self, groups: Sequence[Group]) -> int:
        rows = sum([len(lengths) for _, lengths in groups])
        return max(1, -(-rows // (self.scenario.minibatches_per_epoch * microbatches(self.scenario))))


def decode_steps(lengths: Sequence[int], slots: int) -> int:
    """Return the steps of continuous batching: the place of a response that ends is given to the next one at once.

    A response of n tokens takes n - 1 steps, its first token being the prefill's.

    Args:
        lengths: tokens of each response, in the order in which they are started.
        slots: most responses decoded together.
    """
    ends: list[int] = []
    for length in lengths:
        start = 0 if len(ends) < slots else heappop(ends)
        heappush(ends, start + length - 1)
    return max(ends, default=0)


def sizes_of(groups: Sequence[RolloutGroup]) -> tuple[Group, ...]:
    """Return the tokens of each group's prompt and responses; a prompt that nobody counted has none."""
    return tuple([(group.prompt_length or 0, group.lengths) for group in groups])
