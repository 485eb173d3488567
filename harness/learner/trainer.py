"""One rollout batch in, one better policy out: the GRPO training step. Torch only; no spans and no loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from harness.core.errors import Diverged, Interrupted, UserError
from harness.core.types import Metric, Metrics, RolloutGroup, combine_metrics
from harness.grpo.advantages import deltas_per_group
from harness.grpo.aggregate import Denominator
from harness.grpo.batch import RolloutBatch, collate
from harness.grpo.kl import kl_tallies
from harness.grpo.loss import OwnLoss, surrogate_loss
from harness.grpo.tally import Tally, mean_tally, to_metrics
from harness.grpo.tokens import TokenBatch
from harness.learner.offload import Offload, movable
from harness.learner.optimizer import Schedule, make_optimizer
from harness.learner.ranks import Ranks
from harness.learner.reference import ReferencePolicy, copy_weights, frozen_copy
from harness.models.decoder import checkpoint_layers
from harness.models.policy import ScoringModel, exact_policy_kl, policy_in
from harness.models.scoring import TokenBan
from harness.scenario.batch_plan import BatchPlan, GroupCost, OptimizerStepPlan, Rows, num_tokens, plan_batch
from harness.settings.learner import Balance
from harness.settings.loss import AdvantageSettings, LossSettings
from harness.settings.optimizer import OptimizerSettings

OF_THE_WHOLE_STEP = (
    "loss",
    "grad_norm",
    "learning_rate",
    "optimizer/zero_gradient_steps",
    "float16/loss_scale",
    "float16/overflows",
)
"""Metrics that every rank knows of the whole optimizer step; the others are of its own rows."""


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """How a rollout batch is trained on: sections of the scenario, and what follows from the rest of it.

    Attributes:
        group_size: rollouts per prompt; a group may hold fewer, never more.
        loss: of type ``no_baseline`` takes the rewards, whatever ``advantage.delta`` is; ``constant`` is a number where
            it is divided by.
        own_loss, own_advantage: the user's, see ``harness.learner.plugins``.
        ban_eos_first: leave the end tokens out of the distributions of so many first tokens of each response, as
            the engine did, so that log-probs are those of the distribution sampled from.
        gradient_accumulation_steps: microbatches of each optimizer step, or of each part of a batch that comes in
            parts; they change memory, not the gradient.
        behaviour_is_engine: true with lag or replay, where the weights that sampled are gone, so that only the engine's
            log-probs speak for the policy that sampled; false where rollouts are of the Learner's current version.
        precision: ``bfloat16`` and ``float16`` train under autocast, with float32 weights; ``float16`` with the loss
            scaled up, so that small gradients do not vanish (Micikevicius et al., arXiv:1710.03740, section 3.2).
        gradient_checkpointing: compute each layer's activations again on the way back, instead of keeping them.
        group_cost: what ``balance: cost`` reckons with.
    """

    group_size: int
    loss: LossSettings = field(default_factory=LossSettings)
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    own_loss: OwnLoss | None = None
    own_advantage: Callable[..., Tensor] | None = None
    ban_eos_first: int = 0
    temperature: float = 1.0
    epochs_per_batch: int = 1
    minibatches_per_epoch: int = 1
    shuffle_minibatches: bool = True
    seed: int = 0
    gradient_accumulation_steps: int = 1
    behaviour_is_engine: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    precision: str = "float32"
    gradient_checkpointing: bool = False
    balance: Balance = "round_robin"
    group_cost: GroupCost = num_tokens

    @property
    def optimizer_steps_per_batch(self) -> int:
        return self.epochs_per_batch * self.minibatches_per_epoch

    @property
    def old_is_engine(self) -> bool:
        return self.loss.old_is_engine(self.behaviour_is_engine)

    @property
    def needs_old_log_probs(self) -> bool:
        return self.loss.needs_old_log_probs(self.behaviour_is_engine, self.optimizer_steps_per_batch)

    @property
    def compares_engine(self) -> bool:
        """Whether the old log-probs are compared with the engine's, for weights, a user's loss or to log the gap."""
        stale = self.behaviour_is_engine and not self.old_is_engine
        return self.loss.importance.mode != "off" or self.own_loss is not None or stale

    @property
    def needs_reference(self) -> bool:
        return self.loss.needs_reference


@dataclass
class PreparedBatch:
    """A rollout batch on its way through the stages of a training step.

    Attributes:
        rollouts: the rows that this rank trains on, of the whole batch in one process.
        numbers: the numbers in the whole batch of these rows, ascending.
        home_B: rows whose figures this rank reports, where another one trains on them in a later pass.
        plan: who trains on what.
        prompt_ids, advantages: of the whole batch.
        own_log_probs_BT: of the policy at the start of the training step, once they are computed.
        drift: the monitored KL figures.
    """

    rollouts: RolloutBatch
    numbers: Rows
    home_B: Tensor
    plan: BatchPlan
    prompt_ids: list[int]
    advantages: list[float]
    own_log_probs_BT: Tensor | None = None
    drift: Metrics = field(default_factory=dict)

    def rows(self, numbers: Rows) -> RolloutBatch:
        """Return the rows with these numbers in the whole batch."""
        if np.array_equal(numbers, self.numbers):
            return self.rollouts
        return self.rollouts.rows(torch.from_numpy(np.searchsorted(self.numbers, numbers)))


@dataclass(frozen=True)
class Accumulated:
    """What the parts of a batch that came so far have added up to, as if they were the whole batch.

    Attributes:
        denominator: of their rows on all ranks.
        loss: divided by that, as is the gradient that parameters have.
        metrics, further: of this rank's rows: those of the optimizer step, and the others.
        prompt_ids: of their groups.
    """

    denominator: Denominator
    loss: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    further: Metrics = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)


class PolicyTrainer:
    """Owns the policy, the optimizer and the reference policy.

    Args:
        model: the policy; trained in place.
        pad_token_id: fills the padded positions.
        options: see ``TrainerOptions``.
        should_stop: asked between microbatches.
        ends: the end tokens, needed for ``options.ban_eos_first``.
        ranks: that share the policy and its batches.
        offload: moves what only some phases use. The caller moves the weights out (``Offload.between_steps``) and has
            the reference back for ``compute_reference_log_probs``.

    What training steps change is public; ``harness.learner.checkpoint`` says what of it is saved.

    Attributes:
        model: the policy; its parameters are, as all others here, cut over the ranks.
        optimizer: with its averages for each parameter.
        reference: the policy that KL is measured against; None where none is.
        previous: the policy one training step ago, where KL to it is monitored.
        loss_scale: of float16.
        last_good: said of the last good training step where a later one diverges.
        optimizer_step_metrics: of each optimizer step of the last training step, in order.

    Raises:
        UserError: the end tokens are to be banned and there are none.
    """

    def __init__(
        self,
        model: nn.Module,
        pad_token_id: int,
        options: TrainerOptions,
        should_stop: Callable[[], bool] = lambda: False,
        ends: Sequence[int] = (),
        ranks: Ranks | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.offload, self.ranks = offload or Offload(), ranks or Ranks()
        self.model, self.options = model, options
        if options.ban_eos_first and not ends:
            raise UserError(
                f"ban_eos_first is {options.ban_eos_first}, and the policy has no end token", where="eos_token_id"
            )
        self._ban = TokenBan(tuple(ends), options.ban_eos_first) if options.ban_eos_first else None
        self._pad_token_id, self._should_stop = pad_token_id, should_stop
        model.eval()  # dropout off: the ratio compares one policy with itself
        # what is cut over ranks cannot be copied; one copy at a time is whole
        self._previous_scoring = self._frozen_copy() if options.loss.kl.monitor else None
        self._reference_scoring = self._frozen_copy() if options.needs_reference else None
        if options.gradient_checkpointing:
            checkpoint_layers(model)
        make = partial(make_optimizer, model, options.optimizer)
        self._scoring, self.optimizer = self.ranks.wrap_trained(ScoringModel(model), make)
        self.previous = None if self._previous_scoring is None else policy_in(self._previous_scoring)
        self.reference: ReferencePolicy | None = None
        if self._reference_scoring is not None:
            self.reference = ReferencePolicy(policy_in(self._reference_scoring), options.loss.kl, self.ranks.held)
        self._device = next(model.parameters()).device
        self.loss_scale = torch.amp.GradScaler(self._device.type, enabled=options.precision == "float16")
        self.last_good = "none, this is the first one"
        self.optimizer_step_metrics: Sequence[Metrics] = ()
        self._accumulated: Accumulated | None = None
        self._watch_memory()

    def _watch_memory(self) -> None:
        """Say what can leave the device."""
        frozen = [policy for policy in (self._previous_scoring, self._reference_scoring) if policy is not None]
        if self.offload.moves("weights"):
            for module in (self.model, *frozen):
                movable(module.parameters())
        self.offload.watch("weights", self.model.parameters)
        for policy in frozen:
            self.offload.watch("reference", policy.parameters)
        if (reference := self.reference) is not None:
            self.offload.watch("reference", lambda: reference.averages.values())
        self.offload.watch("optimizer", self._optimizer_state)
        self.offload.watch("gradients", self.ranks.gradient_buffers, has_contents=False)

    def _optimizer_state(self) -> list[Tensor]:
        """The optimizer's averages; its step counts are numbers that the host reads."""
        state = [value for of_parameter in self.optimizer.state.values() for value in of_parameter.values()]
        return [value for value in state if isinstance(value, Tensor) and value.ndim]

    def _frozen_copy(self) -> nn.Module:
        return self.ranks.wrap_frozen(ScoringModel(frozen_copy(self.model)))

    def prepare(self, groups: Sequence[RolloutGroup], plan: BatchPlan | None = None, step: int = 0) -> PreparedBatch:
        """Turn scored groups, any number of them, into tensors with their advantages.

        Args:
            groups: all groups of the batch; those that only other ranks train on may come without their data.
            plan: who trains on what; None makes it here.
            step: the training step, of a plan made here.

        Raises:
            UserError: there is no group, or one has no rewards or more than ``group_size``.
        """
        truncated_B = _truncated(groups)
        advantages_B = self._advantages(groups, truncated_B)
        if not groups or not len(advantages_B):
            raise UserError(f"{len(groups)} groups hold no rollout, at least one is needed", where="groups")
        plan = plan or plan_training_step(step, groups, self.options, self.ranks.data_ranks)
        here = [group for group in groups if group.data is not None]
        sizes = [len(group.lengths) for group in groups]
        rows_here = np.flatnonzero(np.repeat([group.data is not None for group in groups], sizes))
        numbers = plan.rows_of(self.ranks.data_rank)
        if not len(numbers):
            numbers = rows_here[:1]  # of a rank that trains on none
        given = [group.data for group in here], [group.rewards or () for group in here]
        rollouts = collate(*given, self._pad_token_id, advantages_B[torch.from_numpy(rows_here)])
        if len(numbers) < len(rows_here):
            rollouts = rollouts.rows(torch.from_numpy(np.searchsorted(rows_here, numbers)))
        if self.options.loss.mask_truncated:
            truncated_B = truncated_B[numbers]
            rollouts = replace(rollouts, response_mask_BT=rollouts.response_mask_BT & ~truncated_B[:, None])
        rollouts = rollouts.to(self._device)
        if self.options.old_is_engine:
            rollouts = replace(rollouts, old_log_probs_BT=rollouts.engine_log_probs_BT)
        home_B = torch.from_numpy(np.isin(numbers, plan.rows_of(self.ranks.data_rank, slice(1)))).to(self._device)
        prompt_ids = [group.prompt_id for group in groups]
        return PreparedBatch(rollouts, numbers, home_B, plan, prompt_ids, advantages_B.tolist())

    def advantages(self, batch: PreparedBatch) -> list[float]:
        """Return the advantage of each rollout of the whole batch, group by group."""
        return batch.advantages

    def compute_old_log_probs(self, batch: PreparedBatch) -> None:
        """Fill in the log-probs of the policy before the first optimizer step."""
        self.offload.back("weights")
        batch.own_log_probs_BT = self._no_grad_log_probs(self._scoring, batch)
        if not self.options.old_is_engine:
            batch.rollouts = replace(batch.rollouts, old_log_probs_BT=batch.own_log_probs_BT)

    def compute_reference_log_probs(self, batch: PreparedBatch) -> None:
        """Fill in the log-probs of the reference policy and, when monitored, the drift from it and the previous one.

        Monitored KL(p || q): p is the policy at the start of this training step, whatever the lag, q the reference
        policy (``kl/reference_*``) or the policy one training step ago (``kl/previous_*``). Fresh rollouts were sampled
        by p. With lag or replay an older policy sampled them: the estimates are biased, and ``kl/biased`` is 1.
        ``kl/..._exact`` is what k1 and k3 estimate, at the same tokens, where the model offers it.
        """
        assert self.reference is not None
        assert self._reference_scoring is not None
        self.offload.back("weights")
        self.offload.back("reference")
        reference_BT = self._no_grad_log_probs(self._reference_scoring, batch)
        batch.rollouts = replace(batch.rollouts, reference_log_probs_BT=reference_BT)
        if self._previous_scoring is None or self.previous is None:
            return
        p_BT = batch.own_log_probs_BT
        assert p_BT is not None
        previous_BT = self._no_grad_log_probs(self._previous_scoring, batch)
        home_B = batch.home_B
        mask_BT = batch.rollouts.response_mask_BT[home_B]
        tallies = kl_tallies(p_BT[home_B], reference_BT[home_B], mask_BT, "kl/reference")
        tallies |= kl_tallies(p_BT[home_B], previous_BT[home_B], mask_BT, "kl/previous")
        tallies |= self._exact_kl(batch, self.reference.model, "kl/reference")
        tallies |= self._exact_kl(batch, self.previous, "kl/previous")
        biased = {"kl/biased": Metric(1.0)} if self.options.behaviour_is_engine else {}
        batch.drift = to_metrics(tallies) | biased

    def accumulate(self, step: int, batch: PreparedBatch) -> None:
        """Add the gradient of a part of a batch; ``train`` gets the last part and makes the only optimizer step.

        The loss is a sum over rollouts or tokens, divided by their number, which is known when the last part is there.
        So each part is divided by the number up to then, and what was added before is scaled to it: with n before and
        m now, by n / (n + m). Several ranks exchange the gradient of each part.

        Raises:
            Interrupted: ``should_stop`` said so.
        """
        assert self.options.optimizer_steps_per_batch == 1, "a part of a batch with several optimizer steps"
        assert not self.loss_scale.is_enabled(), "float16 would have to compute parts again that are gone"
        self.offload.back("weights")
        ((part,),) = batch.plan.epochs
        own = self._denominator(part)
        before = self._accumulated or Accumulated(replace(own, num_sequences=0, num_tokens=0, num_prompts=0))
        denominator = own + before.denominator
        share = before.denominator.counted / denominator.counted
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(share)
        loss, metrics = self._gradients(batch, part, denominator, f"training step {step}")
        self._accumulated = Accumulated(
            denominator,
            share * before.loss + loss,
            combine_metrics([before.metrics, metrics]),
            combine_metrics([before.further, self._further(batch)]),
            before.prompt_ids + batch.prompt_ids,
        )

    def train(
        self, step: int, batch: PreparedBatch | None, before_change: Callable[[], None] = lambda: None
    ) -> Metrics:
        """Make every optimizer step of this training step.

        Args:
            step: its number.
            batch: from ``prepare``; after ``accumulate`` the last part of one, None where that has no groups. None
                without a part before: no group had a reward, so there is no optimizer step and no metric.
            before_change: called before each optimizer step, when its gradient is there.

        Raises:
            Diverged: a loss or gradient is not finite; the weights stay those of the last good optimizer step.
            Interrupted: ``should_stop`` said so.
        """
        self.offload.back("weights")
        if self.previous is not None:
            with self.offload.resident("reference"):
                copy_weights(self.model, self.previous, self.ranks.held)
        if self._accumulated is not None and batch is not None:
            self.accumulate(step, batch)
        whole, self._accumulated = self._accumulated, None
        parts, further = list[Metrics](), dict[str, Metric]()
        if whole is not None:
            further |= whole.further
            where = f"training step {step}, prompts {whole.prompt_ids}"
            parts.append(self._optimizer_step(lambda: (whole.loss, whole.metrics), step, step, where, before_change))
        elif batch is not None:
            further |= self._further(batch)
            for epoch, minibatches in enumerate(batch.plan.epochs):
                for index, minibatch in enumerate(minibatches):
                    number = (step * self.options.epochs_per_batch + epoch) * self.options.minibatches_per_epoch + index
                    where = f"training step {step}, epoch {epoch}, minibatch {index}, prompts {batch.prompt_ids}"
                    gradients = partial(self._gradients, batch, minibatch, self._denominator(minibatch), where)
                    parts.append(self._optimizer_step(gradients, number, step, where, before_change))
        self.optimizer_step_metrics = parts
        metrics = combine_metrics(parts) | further
        if self.reference is not None and self.reference.is_due(step):
            with self.offload.resident("reference"):
                self.reference.follow(self.model, step)
        if parts:
            figures = f"loss {metrics['loss'].value:.6g}, grad_norm {metrics['grad_norm'].value:.6g}"
            self.last_good = f"step {step}: {figures}"
        return metrics

    def weights(self) -> Mapping[str, Tensor]:
        """Return the policy's live weights by Hugging Face name; of several ranks, what each one holds of them."""
        self.offload.back("weights")
        return dict(self.model.named_parameters())

    @torch.no_grad()
    def log_probs_of(
        self, prompts: Sequence[npt.NDArray[np.int64]], responses: Sequence[npt.NDArray[np.int64]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the policy's log-probs (T,) of each response behind its prompt, at temperature 1."""
        self.offload.back("weights")
        pad = partial(pad_sequence, batch_first=True, padding_value=self._pad_token_id)
        lengths_P, lengths_B = (torch.tensor([len(row) for row in rows]) for rows in (prompts, responses))
        prompt_ids_PL, response_ids_BT = (pad([torch.from_numpy(row) for row in rows]) for rows in (prompts, responses))
        mask_BT = torch.arange(response_ids_BT.shape[1]) < lengths_B[:, None]
        rows = (prompt_ids_PL, lengths_P, response_ids_BT, mask_BT, torch.arange(len(prompts)))
        with self._autocast():
            log_probs_BT, _ = self._scoring(*(tensor.to(self._device) for tensor in rows))
        scored = log_probs_BT.float().cpu().numpy()
        return [row_T[:length] for row_T, length in zip(scored, lengths_B.tolist(), strict=True)]

    def _advantages(self, groups: Sequence[RolloutGroup], truncated_B: Tensor) -> Tensor:
        rewards = [group.rewards or () for group in groups]
        sizes = {len(of_group) for of_group in rewards}
        if max(sizes, default=0) > self.options.group_size:
            raise UserError(
                f"a group has {max(sizes)} rewards, group_size is {self.options.group_size}", where="groups"
            )
        if self.options.own_advantage is None:
            advantage, loss_type = self.options.advantage, self.options.loss.type
            delta = "rewards" if loss_type == "no_baseline" else advantage.delta_for(loss_type)
            return deltas_per_group(rewards, delta, advantage.eps)
        if len(sizes) != 1:
            raise UserError(f"the groups have {sorted(sizes)} rewards; a user's own advantage takes equal groups")
        rewards_PG = torch.tensor(rewards, dtype=torch.float64)
        lengths_PG = torch.tensor([group.lengths for group in groups])
        truncated_PG = truncated_B.view_as(rewards_PG)
        return self.options.own_advantage(rewards=rewards_PG, lengths=lengths_PG, truncated=truncated_PG).reshape(-1)

    def _exact_kl(self, batch: PreparedBatch, other: nn.Module, prefix: str) -> dict[str, Tally]:
        """Return the mean over response tokens of the KL to another policy; nothing where the model cannot tell."""
        rollouts = batch.rollouts
        rows = rollouts.prompt_ids_PL, rollouts.prompt_lengths_P, rollouts.response_mask_BT, rollouts.prompt_index_B
        kl_BT = exact_policy_kl(self.model, other, *rows, temperature=self.options.temperature)
        if kl_BT is None:
            return {}
        mask_BT = rollouts.response_mask_BT[batch.home_B]
        return {f"{prefix}_exact": mean_tally(kl_BT[batch.home_B], mask_BT)}

    def _further(self, batch: PreparedBatch) -> Metrics:
        """Return the drift, the share of rollouts that the loss can learn from, and where truncated ones are left out
        the share of those without a token."""
        home_B = batch.home_B
        if not home_B.any():
            return batch.drift
        in_loss_B = batch.rollouts.response_mask_BT.any(dim=1)[home_B]
        weighed_B = in_loss_B & (batch.rollouts.advantages_B1[home_B, 0] != 0)
        shares = {"advantage/nonzero_fraction": weighed_B}
        if self.options.loss.mask_truncated:
            shares["loss_mask/truncated_fraction"] = ~in_loss_B
        return batch.drift | {
            name: Metric(float(rows_B.float().mean()), count=len(rows_B)) for name, rows_B in shares.items()
        }

    def _optimizer_step(
        self,
        gradients: Callable[[], tuple[float, Metrics]],
        number: int,
        step: int,
        where: str,
        before_change: Callable[[], None],
    ) -> Metrics:
        """Make the optimizer step of this number, counted from 0 over the whole run.

        ``gradients`` accumulates the gradient and returns what ``_gradients`` does. A gradient that float16 cannot hold
        is computed again with half the loss scale.
        """
        learning_rate = self.options.optimizer.learning_rate * self.options.schedule.share(number)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        loss, metrics = gradients()
        scale, grad_norm, overflows = self.loss_scale.get_scale(), self._gradient_norm(), 0
        while scale > 1 and math.isfinite(loss) and not math.isfinite(grad_norm):
            self.optimizer.zero_grad()
            self.loss_scale.update(scale / 2)
            overflows += 1
            loss, metrics = gradients()
            scale, grad_norm = self.loss_scale.get_scale(), self._gradient_norm()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self.optimizer.zero_grad()
            raise Diverged(
                f"the loss is {loss} and the gradient norm {grad_norm} at {where}; "
                f"the last good training step was {self.last_good}",
                step,
            )
        before_change()
        with self.offload.resident("optimizer"):
            self.loss_scale.step(self.optimizer)
        self.loss_scale.update()
        self.optimizer.zero_grad()
        self.offload.out("gradients")
        metrics |= {
            "loss": Metric(loss),
            "grad_norm": Metric(grad_norm),
            "learning_rate": Metric(learning_rate),
            "optimizer/zero_gradient_steps": Metric(float(grad_norm == 0.0), "sum"),
        }
        if self.loss_scale.is_enabled():
            metrics |= {"float16/loss_scale": Metric(scale), "float16/overflows": Metric(overflows, "sum")}
        return metrics

    def _gradient_norm(self) -> float:
        """Return the norm of the gradient, which is clipped to ``max_grad_norm``."""
        self.loss_scale.unscale_(self.optimizer)
        return self.ranks.clip_gradients(self.model.parameters(), self.options.optimizer.max_grad_norm or math.inf)

    def _denominator(self, minibatch: OptimizerStepPlan) -> Denominator:
        loss = self.options.loss
        sizes = minibatch.num_sequences, minibatch.num_tokens
        return Denominator(loss.aggregation, *sizes, loss.constant, minibatch.num_groups)

    def _gradients(
        self, batch: PreparedBatch, minibatch: OptimizerStepPlan, denominator: Denominator, where: str
    ) -> tuple[float, Metrics]:
        """Accumulate the gradient of a minibatch, times the loss scale; return its loss and its metrics."""
        self.offload.back("gradients")
        parts: list[Metrics] = []
        loss = torch.zeros((), device=self._device)
        microbatches = minibatch.microbatches[self.ranks.data_rank]
        for index, numbers in enumerate(microbatches):
            if self._should_stop():
                raise Interrupted(f"stopped in {where}")
            with self.ranks.accumulating(self._scoring, last=index == len(microbatches) - 1):
                if not len(numbers):
                    self._backward_of_nothing(batch)
                    continue
                micro = batch.rows(numbers)
                group_tokens_B = None
                if denominator.aggregation == "prompt_mean":
                    in_groups = minibatch.group_tokens_P[batch.plan.group_B[numbers]]
                    group_tokens_B = torch.from_numpy(in_groups).to(self._device)
                weights_BT = denominator.token_weights(micro.response_mask_BT, group_tokens_B)
                share, metrics = self._backward(micro, weights_BT)
            loss += share
            parts.append(metrics)
        return float(self.ranks.total(loss)), combine_metrics(parts)

    def _backward_of_nothing(self, batch: PreparedBatch) -> None:
        """Take part in the collectives of a microbatch that other ranks have rows for; the gradient is 0."""
        log_probs_BT, _ = self._log_probs(self._scoring, batch.rollouts.rows([0]), with_entropy=False)
        self.loss_scale.scale(log_probs_BT.sum() * 0.0).backward()

    def _backward(self, micro: RolloutBatch, weights_BT: Tensor) -> tuple[Tensor, Metrics]:
        """Accumulate the gradient of one microbatch; return its share of the loss and its metrics.

        The gap between the old policy and the one that sampled is logged as ``engine_mismatch/kl`` where both have the
        same weights, and as ``off_policy/kl`` with lag or replay.
        """
        log_probs_BT, entropy_BT = self._log_probs(self._scoring, micro, with_entropy=True)
        tokens = TokenBatch(
            log_probs_BT,
            micro.response_mask_BT,
            raw_rewards=micro.rewards_B[:, None],
            advantages=micro.advantages_B1,
            old_log_probs=log_probs_BT.detach() if micro.old_log_probs_BT is None else micro.old_log_probs_BT,
            reference_log_probs=micro.reference_log_probs_BT,
            engine_log_probs=micro.engine_log_probs_BT if self.options.compares_engine else None,
            entropy=entropy_BT,
        )
        loss, tallies = surrogate_loss(tokens, weights_BT, self.options.loss, self.options.own_loss)
        if self.options.behaviour_is_engine and self.options.compares_engine:
            gap = tallies.pop("engine_mismatch/kl")
            if not self.options.old_is_engine:
                tallies["off_policy/kl"] = gap  # the gap is the lag's too
        self.loss_scale.scale(loss * self.ranks.data_ranks).backward()  # their mean is taken of it
        return loss.detach(), to_metrics(tallies)

    @torch.no_grad()
    def _no_grad_log_probs(self, scoring: nn.Module, batch: PreparedBatch) -> Tensor:
        """Log-probs of this rank's rollouts under a policy, one microbatch after the other; 0 where masked."""
        rollouts, several = batch.rollouts, self.ranks.data_ranks > 1
        pieces = self.options.minibatches_per_epoch * self.options.gradient_accumulation_steps
        log_probs_BT = torch.zeros_like(rollouts.engine_log_probs_BT)
        for rows_B in torch.arange(rollouts.num_rollouts, device=self._device).tensor_split(pieces):
            if len(rows_B):
                part_BT, _ = self._log_probs(scoring, rollouts.rows(rows_B), with_entropy=False)
                log_probs_BT[rows_B, : part_BT.shape[1]] = part_BT
            elif several:  # every rank calls its policy equally often
                self._log_probs(scoring, rollouts.rows([0]), with_entropy=False)
        return log_probs_BT

    def _autocast(self) -> torch.autocast:
        narrow = torch.float16 if self.options.precision == "float16" else torch.bfloat16
        return torch.autocast(self._device.type, narrow, enabled=self.options.precision != "float32")

    def _log_probs(
        self, scoring: nn.Module, rollouts: RolloutBatch, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        with self._autocast():
            scored: tuple[Tensor, Tensor | None] = scoring(
                rollouts.prompt_ids_PL,
                rollouts.prompt_lengths_P,
                rollouts.response_ids_BT,
                rollouts.response_mask_BT,
                rollouts.prompt_index_B,
                temperature=self.options.temperature,
                with_entropy=with_entropy,
                entropy_gradient=with_entropy and self.options.loss.entropy_coefficient > 0,
                ban=self._ban,
            )
        return scored


def plan_training_step(
    step: int, groups: Sequence[RolloutGroup], options: TrainerOptions, data_ranks: int
) -> BatchPlan:
    """Plan a training step of so many data-parallel ranks; groups may come without their data."""
    return plan_batch(
        [(group.prompt_length or 0, group.lengths) for group in groups],
        step=step,
        in_loss_B=~_truncated(groups).numpy() if options.loss.mask_truncated else None,
        seed=options.seed,
        epochs=options.epochs_per_batch,
        minibatches=options.minibatches_per_epoch,
        microbatches=options.gradient_accumulation_steps,
        shuffle=options.shuffle_minibatches,
        ranks=data_ranks,
        balance=options.balance,
        cost=options.group_cost,
    )


def _truncated(groups: Sequence[RolloutGroup]) -> Tensor:
    """Whether each rollout was cut at ``max_tokens``, (B,); what a group says itself, where it has no data."""
    truncated = list[bool]()
    for group in groups:
        if group.data is None:
            truncated += group.truncated or (False,) * len(group.lengths)
        else:
            truncated += [completion.finish_reason == "length" for completion in group.data.completions]
    return torch.tensor(truncated, dtype=torch.bool)
