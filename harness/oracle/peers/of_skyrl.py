"""SkyRL: ``_forward_backward_micro`` of its policy worker, on a stand-in for the worker and on advantages that its
trainer's ``_normalize_advantages`` scales; its advantage estimators."""

from __future__ import annotations

import typing
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from .common import NO_CLIP, Advantages, Because, NoCounterpart, Options, Peer, Step, named
from .of_verl import FLOAT32, only, outcome, scaled, whitened

REDUCTIONS = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "sequence_sum": "seq_mean_token_sum_norm",
    "prompt_mean": "prompt_mean",
    "constant": "seq_mean_token_sum_norm",
}
KINDS = {("grpo_clip", "token"): "regular", ("grpo_clip", "sequence"): "gspo", ("cispo", "token"): "cispo"}
CORRECTION = "off_policy_correction."


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``AlgorithmConfig``."""
    if (loss["type"], loss["ratio_level"]) not in KINDS:
        raise NoCounterpart(f"{loss['type']} with a ratio of level {loss['ratio_level']}")
    kind = KINDS[loss["type"], loss["ratio_level"]]
    if loss["dual_clip"] and kind == "gspo":
        raise NoCounterpart("a dual clip with gspo")
    made: Options = {"policy_loss_type": "dual_clip" if loss["dual_clip"] and kind == "regular" else kind}
    if loss["dual_clip"]:
        made |= {"clip_ratio_c": loss["dual_clip"]}
    low, high = ("cispo.cispo_eps_clip_low", "cispo.cispo_eps_clip_high") if kind == "cispo" else CLIP
    made |= {low: loss["clip_low"], high: loss["clip_high"]}
    made |= {"loss_reduction": named(loss["aggregation"], REDUCTIONS, "aggregation")}
    if made["loss_reduction"] == "seq_mean_token_sum_norm":
        made |= {"max_seq_len": loss["constant"] if loss["aggregation"] == "constant" else 1}
    kl = loss["kl"]
    made |= {"use_kl_loss": kl["coefficient"] > 0}
    if kl["coefficient"] > 0:
        if kl["weighted_by_ratio"]:
            raise NoCounterpart("a KL in the loss weighted by the ratio")
        made |= {"kl_loss_coef": kl["coefficient"], "kl_estimator_type": kl["estimator"]}
    if loss["entropy_coefficient"] > 0:
        made |= {"use_entropy_loss": True, "entropy_loss_coef": loss["entropy_coefficient"]}
    return made | {f"{CORRECTION}{name}": value for name, value in _correction(loss["importance"]).items()}


def _correction(importance: Options) -> Options:
    mode, level = importance["mode"], importance["level"]
    low, high = importance["floor"] or 0.0, importance["cap"] or NO_CLIP
    if mode == "off":
        return {}
    made = {"tis_ratio_type": level, f"{level}_tis_ratio_clip_high": high if mode == "tis" else NO_CLIP}
    if mode == "seq-mask-tis":
        return made | {"sequence_mask_metric": "geometric", "geo_mask_low": low, "geo_mask_high": high}
    if mode == "icepop" and level == "sequence":
        return made | {"sequence_mask_metric": "product", "product_mask_low": low, "product_mask_high": high}
    if mode == "icepop":
        return made | {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}
    return made


def load() -> Peer:
    """Import SkyRL."""
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # its configuration on Python 3.11
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase
    from skyrl.train.config import AlgorithmConfig
    from skyrl.train.trainer import RayPPOTrainer, compute_prompt_boundaries

    def config_of(options: Options) -> Any:
        config = AlgorithmConfig()
        for name, value in options.items():
            section, _, last = name.rpartition(".")
            setattr(getattr(config, section) if section else config, last, value)
        return config

    def normalized(
        advantages: Tensor, mask: Tensor, config: Any, minibatches: list[tuple[int, int]], groups: Tensor
    ) -> Tensor:
        algorithm = SimpleNamespace(algorithm=config, micro_train_batch_size_per_gpu=1)
        trainer = SimpleNamespace(cfg=SimpleNamespace(trainer=algorithm))
        batch = TrainingInputBatch({"advantages": advantages.clone(), "response_mask": mask, "loss_mask": mask})
        prompts = compute_prompt_boundaries([str(group) for group in groups.tolist()])
        made: Tensor = RayPPOTrainer._normalize_advantages(trainer, batch, minibatches, prompts)["advantages"]
        return made

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        """Go through microbatches as ``forward_backward`` in ``skyrl/backends/skyrl_train/workers/worker.py:785`` does:
        each has its share of the rank's rows as weight, and is added; FSDP averages ranks.
        """
        if step.packed:
            raise NoCounterpart("packed rows in the loss: it takes padded ones")
        config = config_of(options | {"use_kl_loss": options["use_kl_loss"] and step.reference is not None})
        rows, width = step.mask.shape
        advantages_BT = normalized(step.advantages_BT, step.mask, config, [(0, rows)], step.group_B)
        entropy = torch.zeros_like(log_probs) if step.entropy is None else step.entropy
        losses: list[Tensor] = []

        def part(rows: slice) -> None:
            def of_rows(tensor: Tensor | None) -> Tensor | None:
                return None if tensor is None else tensor[rows]

            output = {"entropy": torch.nn.functional.pad(entropy[rows], (0, 1))}
            model = _Model(train=lambda: None, output=(log_probs[rows], output))
            worker = SimpleNamespace(
                model=model, cfg=SimpleNamespace(algorithm=config), mesh_rank=SimpleNamespace(dp_size=step.ranks),
                policy_loss_fn=ppo_utils.PolicyLossRegistry.get(config.policy_loss_type), optimizer=None,
                scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
                strategy=SimpleNamespace(backward=lambda loss, *more: losses.append(loss)),
            )  # fmt: skip
            experience = SimpleNamespace(
                to_device=lambda device: None, sequences=None, attention_mask=None, pixel_values=None,
                image_grid_thw=None, num_actions=width, action_log_probs=step.old[rows], loss_mask=step.mask[rows],
                base_action_log_probs=of_rows(step.reference), advantages=advantages_BT[rows],
                action_mask=step.mask[rows], rollout_logprobs=of_rows(step.engine),
            )  # fmt: skip
            PolicyWorkerBase._forward_backward_micro(worker, experience, 1 / step.microbatches)

        with patch.object(torch.cuda, "current_device", lambda: "cpu"):
            for rank in step.parts():
                for microbatch in rank:
                    part(microbatch)
        summed: Tensor = sum(losses) / step.ranks
        return summed

    def batch_normalized(rewards: Tensor, mask: Tensor, index: Any, **options: Any) -> tuple[Tensor]:
        """Rows are padded to the longest one; what is normalised is scaled by 1, by minibatches of one row and a
        constant of 1."""
        width = int(mask.sum(dim=0).nonzero().max()) + 1
        rewards, mask = rewards[:, :width], mask[:, :width]
        made = ppo_utils.compute_grpo_outcome_advantage(rewards, mask, index, grpo_norm_by_std=False)[0]
        alone = {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 1}
        rows = [(row, row + 1) for row in range(len(mask))]
        return (normalized(made, mask, config_of(options | alone), rows, torch.from_numpy(index)),)

    def grpo(step: Step) -> Options:
        made = scaled(step)
        return {"grpo_norm_by_std": made["norm_adv_by_std_in_grpo"], "epsilon": made["epsilon"]}

    def z_scores(step: Step) -> Options:
        return whitened(step) | {"grpo_norm_by_std": False, "advantage_batch_normalize": True}

    usual = AlgorithmConfig()
    return Peer(
        loss=loss,
        defaults={name: getattr(usual, name) for name in DEFAULTS},
        advantages=(
            Advantages("advantages, grpo", grpo, outcome(ppo_utils.compute_grpo_outcome_advantage)),
            Advantages(
                "advantages, rloo", only("leave_one_out_rewards"), outcome(ppo_utils.compute_rloo_outcome_advantage)
            ),
            Advantages("advantages, grpo and advantage_batch_normalize", z_scores, outcome(batch_normalized)),
        ),
        entry=PolicyWorkerBase._forward_backward_micro,
        because=BECAUSE,
    )


class _Model(SimpleNamespace):
    """Returns its ``output``."""

    def __call__(self, *all: Any, **more: Any) -> Any:
        return self.output


CLIP = "eps_clip_low", "eps_clip_high"
DEFAULTS = (
    "loss_reduction", *CLIP, "policy_loss_type", "use_kl_loss", "kl_loss_coef", "kl_estimator_type", "use_entropy_loss",
)  # fmt: skip
"""Of these the KL is left out where the step has no log-probs of a reference."""

_WORKER = "skyrl.backends.skyrl_train.workers.worker"
_KL = "the KL is averaged over each response and then over responses, whatever loss_reduction says"
_MEAN = "kl_loss = masked_mean(kl_loss, loss_mask, dim=-1).mean()"
BECAUSE = (
    Because("KL k1", _KL, _WORKER, _MEAN),
    Because("KL k2", _KL, _WORKER, _MEAN),
    Because("KL k3", f"{_KL}; and the estimate is cut at 10, where it has no gradient", _WORKER, _MEAN),
    Because("equal rewards", FLOAT32, "skyrl.backends.skyrl_train.utils.ppo_utils", "/ (id2std[index[i]] + epsilon)"),
    Because(
        "whitened over the batch",
        "the deviation is that of all tokens, but the mean counts padding too, so that it depends on the longest "
        "response (NovaSky-AI/SkyRL issue 1305)",
        "skyrl.train.trainer",
        "mean = advantages.mean()",
        is_defect=True,
    ),
)
