"""The scenario: its sections, what follows from them, and the rules that bind them.

A value that follows from others is a property, never a setting.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.core.experiment import MOST_BLOCKS
from harness.settings.base import (
    BY_COLON,
    OF_HARNESS,
    OF_PLUGIN,
    AtLeast0,
    AtLeast1,
    FolderName,
    NonEmptyText,
    PluginName,
    Seed,
    Settings,
)
from harness.settings.checkpoint import CheckpointSettings
from harness.settings.command import Command
from harness.settings.engine import EngineSettings, NativeEngineSettings
from harness.settings.faults import FaultSettings
from harness.settings.learner import LearnerSettings
from harness.settings.loss import AdvantageSettings, LossSettings
from harness.settings.model import ModelSettings, PresetModelSettings
from harness.settings.optimizer import OptimizerSettings
from harness.settings.placement import PartSettings, PlacementSettings
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from harness.settings.sampling import EvaluationSettings, SamplingSettings
from harness.settings.task import KeywordsTaskSettings, TaskSettings
from harness.settings.transport import (
    ActorTransportSettings,
    InProcessTransportSettings,
    TransportSettings,
    TransportSweepSettings,
)

MOST_AXES, MOST_CHANGES = 20, 200
"""Of a sweep; and keys that an arm changes, which are about all there are."""
AxisValues = Annotated[list[Any], Field(min_length=1)]
ArmChanges = Annotated[dict[str, Any], Field(max_length=MOST_CHANGES)]
Tracker = Annotated[
    Annotated[Literal["jsonl", "tensorboard", "wandb", "mlflow"], OF_HARNESS] | Annotated[PluginName, OF_PLUGIN],
    BY_COLON,
]
EndpointName = Literal["seconds_per_step", "weight_sync_seconds", "reward_at_rollouts"]


class Scenario(Settings):
    """One experiment: everything that decides what a run does."""

    __slots__ = ("_variants",)  # those that `expand` made: no part of its value, so not compared, copied or sent along

    name: FolderName = "unnamed"
    """Name of the results folder; the file's name if left out."""
    description: str = ""
    """What is compared and why; the first line is shown in lists."""
    seed: Seed = 0
    """Seed of prompt order and sampling."""
    task: TaskSettings = KeywordsTaskSettings()
    """Prompts and their reward."""
    model: ModelSettings = PresetModelSettings()
    """The policy that is trained."""
    engine: EngineSettings = NativeEngineSettings()
    """What samples the rollouts."""
    sampling: SamplingSettings = SamplingSettings()
    """How responses are sampled."""
    steps: AtLeast1 = 60
    """Training steps, each of which consumes one rollout batch."""
    rollout_batch_size: AtLeast1 = 64
    """Responses in one rollout batch."""
    group_size: AtLeast1 = 8
    """Responses to each prompt."""
    epochs_per_batch: AtLeast1 = 1
    """k: passes over each rollout batch."""
    minibatches_per_epoch: AtLeast1 = 1
    """Parts into which a pass is split, one optimizer step each."""
    shuffle_minibatches: bool = True
    """Assign the groups to these parts at random in each pass; false: the same consecutive responses every time."""
    gradient_accumulation_steps: AtLeast1 = 1
    """Parts into which an optimizer step is split to save memory; the result is the same."""
    allow_uncorrected: bool = False
    """Allow a loss without off-policy correction on off-policy data."""
    loss: LossSettings = LossSettings()
    """The policy-gradient loss."""
    advantage: AdvantageSettings = AdvantageSettings()
    """How rewards become advantages."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer."""
    learner: LearnerSettings = LearnerSettings()
    """How the Learner uses its ranks."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Validation on held-out prompts."""
    max_lag: AtLeast0 = 0
    """Policy versions by which a Generator may be behind the Learner; 0 is synchronous."""
    lag_control: Literal["wait", "drop", "in_flight"] = "wait"
    """At max_lag: Generators wait, what is too old is dropped, or weights are swapped between two tokens."""
    replay: ReplaySettings = ReplaySettings()
    """Training on rollouts more than once."""
    dynamic_sampling: DynamicSamplingSettings = DynamicSamplingSettings()
    """Sampling groups again whose rewards are all equal."""
    max_failed_batches: AtLeast0 = 0
    """Rollout batches in a row without any reward (the reward function failed for every group) that do not end the run;
    their training steps leave the policy as it is."""
    placement: PlacementSettings = PlacementSettings()
    """Where the parts run."""
    transport: TransportSettings = InProcessTransportSettings()
    """How weights move from the Learner to the Generators; any type but `in_process` runs the parts as Ray actors."""
    command: Command = ()
    """A program that is run and recorded in place of the harness' own loop, word by word; `{seed}` in a word is the
    run's seed, `{scenario}` the file of its settings. Other settings bind it only as far as it reads them there."""
    faults: FaultSettings = FaultSettings()
    """What to do when a part dies or hangs, and faults for tests."""
    transport_sweep: TransportSweepSettings | None = None
    """Measure weight syncs instead of training; most other settings then have no effect."""
    reward_target: float = 0.5
    """The comparison prints the seconds until this validation reward was reached."""
    save_policy: bool = True
    """Save the trained policy as a Hugging Face folder."""
    save_policy_every: AtLeast1 | None = None
    """Training steps between two saved policies, each a folder `policies/step_N`; null saves none."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints from which a stopped or killed run continues; training steps kept for `recompute`."""
    endpoint: EndpointName = "seconds_per_step"
    """Primary endpoint: seconds of a step or of a weight sync, or validation reward at equal rollouts."""
    blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)] = 1
    """Blocks: in each one every arm runs once, with seed, seed + 1 and so on; a verdict needs 6."""
    stop_at_half_width: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Stop once the endpoint's interval for every arm is within this (0.01: 1%) of its middle."""
    interleaving: Literal["auto", "step", "run"] = "auto"
    """How arms take turns: by training step, or run after run; `auto` takes steps where all arms have max_lag 0 and
    make no checkpoints."""
    profile: NonEmptyText = "light"
    """Probes beside the stage spans: a profile in profiles/ (off, light, full, nsight, pyspy), or a YAML file."""
    trackers: tuple[Tracker, ...] = ("jsonl", "tensorboard")
    """Trackers that also get each step's metrics; your own as `package.module:Name`."""
    question: str = ""
    """What it answers: `list` shows scenarios by their questions."""
    minutes: AtLeast1 | None = None
    """About how long all its runs take on two CPU cores, for `list`; null: not known."""
    arms: dict[FolderName, ArmChanges] = Field(default_factory=dict)
    """Variants compared in one run: for each name, the dotted keys it changes."""
    sweep: Annotated[dict[str, AxisValues], Field(max_length=MOST_AXES)] = Field(default_factory=dict)
    """Axes: for each dotted key, its values; every combination is run."""

    @property
    def prompts_per_batch(self) -> int:
        """Groups in one rollout batch."""
        return self.rollout_batch_size // self.group_size

    @property
    def train_batch_size(self) -> int:
        """Responses that one optimizer step trains on."""
        return self.rollout_batch_size // self.minibatches_per_epoch

    @property
    def microbatch_size(self) -> int:
        """Responses in one forward and backward pass."""
        return self.train_batch_size // self.gradient_accumulation_steps

    @property
    def optimizer_steps_per_batch(self) -> int:
        """Optimizer steps in one training step."""
        return self.epochs_per_batch * self.minibatches_per_epoch

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self.steps * self.optimizer_steps_per_batch

    @property
    def warmup_optimizer_steps(self) -> int:
        """Optimizer steps of the learning rate's warm-up."""
        share = round(self.optimizer.warmup_ratio * self.num_optimizer_steps, 9)  # 0.07 * 100 is 7.000000000000001
        return self.optimizer.warmup_steps or math.ceil(share)

    @property
    def is_synchronous(self) -> bool:
        """Whether every rollout is sampled by the policy that its training step starts with, but for replay."""
        return self.max_lag == 0

    @property
    def on_policy(self) -> bool:
        """Whether every gradient is taken at the policy that sampled the data."""
        return self.optimizer_steps_per_batch == 1 and not self.behaviour_is_older

    @property
    def behaviour_is_older(self) -> bool:
        """Whether rollouts may come from an older policy than the one a training step starts with."""
        return not self.is_synchronous or self.replay.capacity > 0

    @property
    def uses_ray(self) -> bool:
        """Whether the parts run as Ray actors."""
        return self.transport.type != "in_process"

    @property
    def verifies_weights(self) -> bool:
        """Whether both ends of a weight sync take a checksum."""
        return isinstance(self.transport, ActorTransportSettings) and self.transport.verify

    def device_of(self, part: PartSettings, has_gpu: bool) -> Literal["cpu", "cuda"]:
        """Return where a part computes: the one rule of real runs, the memory plan and the simulator.

        An actor computes on a GPU only if it reserves one, or a share of one; parts of one process take the GPU that
        the process sees.

        Args:
            part: one of ``placement``'s.
            has_gpu: whether there is a GPU for the run. ``placement.device: cuda`` asks for one either way.
        """
        in_actors = self.uses_ray or self.transport_sweep is not None
        if self.placement.device == "cpu" or (in_actors and part.gpus == 0):
            return "cpu"
        return "cuda" if has_gpu or self.placement.device == "cuda" else "cpu"

    def uses_gpu(self, has_gpu: bool) -> bool:
        """Whether Learner or Generator compute on a GPU; see ``device_of``."""
        parts = self.placement.learner, self.placement.generator
        return any(self.device_of(part, has_gpu) == "cuda" for part in parts)

    @property
    def travel_dtype(self) -> str:
        """The type in which weights leave the Learner: that in which they are trained, or the engine's."""
        if getattr(self.transport, "dtype", "trained") == "engine":
            return str(getattr(self.engine, "precision", ""))
        return str(getattr(self.model, "dtype", "float32"))

    @property
    def replay_sample_groups(self) -> int:
        """Groups that a training step takes from the replay buffer."""
        return self.replay.sample_groups or self.prompts_per_batch

    @property
    def replay_max_age(self) -> int:
        """Versions after which a replayed group is thrown away."""
        if self.replay.max_age is not None:
            return self.replay.max_age
        return self.max_lag + -(-self.replay.capacity // max(1, self.prompts_per_batch))

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether the Learner computes the old log-probs in a stage of their own."""
        return self.loss.needs_old_log_probs(self.behaviour_is_older, self.optimizer_steps_per_batch)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.loss.needs_reference

    @property
    def banned_eos_tokens(self) -> int:
        """First tokens of a response from whose distribution the Learner leaves out the end tokens."""
        sampling = self.sampling
        if not self.loss.ban_eos:
            return 0
        return sampling.min_tokens if sampling.pinned_lengths is None else sampling.max_tokens

    @property
    def loss_constant(self) -> int:
        """Divisor of ``aggregation: constant``, in tokens."""
        return self.loss.constant or self.sampling.max_tokens

    @property
    def num_evaluations(self) -> int:
        """Validations in a run: before the first step, every ``evaluation.every`` steps, after the last."""
        return 1 + -(-self.steps // self.evaluation.every)

    @property
    def num_rollouts(self) -> int:
        """Responses sampled in a run, for training and validation together, those of dynamic sampling left out."""
        return self.steps * self.rollout_batch_size + self.num_evaluations * self.evaluation.prompts


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors."""
    schema = Scenario.model_json_schema()
    extends = {"type": "string", "description": "Scenario that this one starts from: a name, or a path from this file."}
    properties = {"extends": extends, **schema.pop("properties")}
    about = "Arms that come beside those of the scenario that this one starts from; `arms` would replace them."
    properties["arms+"] = properties["arms"] | {"description": about}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "properties": properties}
