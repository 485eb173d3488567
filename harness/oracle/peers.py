"""Calls the loss and the advantages that a trainer's package ships: ``python -I peers.py NAME STEP ANSWER``.

It runs in that trainer's environment and imports nothing of this project. STEP is the safetensors file of
``harness.oracle.step``; ANSWER is written as JSON (``docs/oracle.md``), so that whatever the trainer prints does no
harm. What has no counterpart in the trainer is answered with the reason.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import textwrap
import typing
import warnings
from collections import defaultdict
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

NO_CLIP = 1e9
"""Bound of the dual clip where a trainer always has one and the step has none."""
Options = dict[str, Any]
Answer = dict[str, Any]


class NoCounterpart(Exception):
    """The trainer has nothing that computes what the step asks for."""


class Step:
    """What STEP holds: tensors of the loss (B, T), of the rollouts (N,), and the options of both."""

    def __init__(self, path: str) -> None:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["step"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.loss: Options = header["loss"]
        self.advantage: Options = header["advantage"]
        self.log_probs, self.old = tensors["log_probs"].double(), tensors["old_log_probs"].double()
        self.mask_bool = tensors["mask"].bool()
        self.mask = self.mask_bool.double()
        self.rewards, self.group = tensors["rewards"].float(), tensors["group"]
        self.advantages_BT = tensors["advantages"].double()[tensors["rows"]][:, None].expand_as(self.mask)

    @property
    def low_high(self) -> tuple[float, float]:
        return self.loss["clip_low"], self.loss["clip_high"]

    def named(self, aggregations: dict[str, Any]) -> Any:
        """Return the trainer's word for the step's aggregation."""
        if self.loss["aggregation"] not in aggregations:
            raise NoCounterpart(f"aggregation {self.loss['aggregation']}")
        return aggregations[self.loss["aggregation"]]

    @property
    def group_size(self) -> int:
        """Return G, where groups stand one after the other and are equally large."""
        sizes = torch.unique_consecutive(self.group, return_counts=True)[1]
        if len(set(sizes.tolist())) != 1:
            raise NoCounterpart("groups of unequal sizes")
        return int(sizes[0])

    def scale(self, words: dict[str, Any]) -> Any:
        """Return the trainer's word for what advantages are divided by: ``group``, ``none`` or ``batch``."""
        if self.advantage["scale"] not in words:
            raise NoCounterpart(f"advantages scaled by {self.advantage['scale']}")
        return words[self.advantage["scale"]]


Loss = Callable[[Step, Tensor, Options], Tensor]


def trl(step: Step) -> Answer:
    """``GRPOTrainer._compute_loss`` on a stand-in for the trainer; of the advantages the statement that it ships."""
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    usual = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        rows, width = step.mask.shape
        high = options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"]
        args = SimpleNamespace(delta=options["delta"], use_bias_correction_kl=False, steps_per_generation=1)
        whole = SimpleNamespace(
            num_processes=1, gather=lambda tensor: tensor.reshape(-1), reduce=lambda tensor, **more: tensor
        )
        trainer = SimpleNamespace(
            args=args, accelerator=whole, model=SimpleNamespace(training=True), aux_loss_enabled=False,
            top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token", beta=0.0,
            epsilon_low=options["epsilon"], epsilon_high=high, loss_type=options["loss_type"], use_vllm=False,
            vllm_importance_sampling_correction=False, current_gradient_accumulation_steps=1,
            max_completion_length=options.get("max_completion_length", width), _entropy_bonus_enabled=False,
            use_adaptive_entropy=False, _metrics=defaultdict(lambda: defaultdict(list)),
            _get_per_token_logps_and_entropies=lambda *all, **more: (log_probs, torch.zeros_like(log_probs), None),
        )  # fmt: skip
        prompts, completions = torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, width, dtype=torch.long)
        inputs = {
            "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": completions,
            "completion_mask": step.mask, "advantages": step.advantages_BT[:, 0], "old_per_token_logps": step.old,
            "num_items_in_batch": step.mask.sum(),
        }  # fmt: skip
        made: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
        return made

    def matched() -> Options:
        low, high = step.low_high
        kind = step.named({"token_mean": "dapo", "sequence_mean": "grpo", "constant": "dr_grpo"})
        own = {"loss_type": kind, "epsilon": low, "epsilon_high": high, "delta": step.loss["dual_clip"]}
        return own | ({"max_completion_length": step.loss["constant"]} if kind == "dr_grpo" else {})

    def advantages(options: Options) -> Tensor:
        source = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions)))
        shipped = next(
            node
            for node in ast.walk(source)
            if isinstance(node, ast.If) and "multi_objective_aggregation" in ast.dump(node.test)
        )
        trainer = SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1), **options
        )
        names: Options = {
            "self": trainer, "torch": torch, "nanstd": grpo_trainer.nanstd, "device": "cpu",
            "rewards_per_func": step.rewards[:, None], "num_generations": step.group_size,
            "unscorable_mask": torch.zeros(len(step.rewards), dtype=torch.bool),
        }  # fmt: skip
        exec(compile(ast.Module([shipped], []), inspect.getfile(GRPOTrainer), "exec"), names)
        made: Tensor = names["advantages"]
        return made

    defaults = {name: usual[name] for name in ("loss_type", "epsilon", "epsilon_high", "delta")}
    same = {"group": "group", "none": "none", "batch": "batch"}
    return {
        "losses": _losses(step, loss, matched, lambda: defaults),
        "advantages": [_advantages(lambda: {"scale_rewards": step.scale(same)}, advantages)],
    }


def verl(step: Step) -> Answer:
    """``compute_policy_loss_vanilla``, ``compute_grpo_outcome_advantage`` and its vectorised sister."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config.actor import ActorConfig

    rows = len(step.mask)
    base = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "ppo_mini_batch_size": rows}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        config, mode = ActorConfig(**base, **options), options["loss_agg_mode"]
        config.global_batch_info.update(dp_size=1, batch_num_tokens=step.mask.sum(), global_batch_size=rows)
        if "loss_scale_factor" in options:
            config.global_batch_info["loss_scale_factor"] = options["loss_scale_factor"]
        made: Tensor = core_algos.compute_policy_loss_vanilla(
            step.old, log_probs, step.advantages_BT, step.mask, mode, config
        )[0]
        return made

    def matched() -> Options:
        low, high = step.low_high
        mode = step.named(VERL_MODES | {"constant": "seq-mean-token-sum-norm"})
        clip = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": step.loss["dual_clip"] or NO_CLIP}
        scale = {"loss_scale_factor": step.loss["constant"]} if step.loss["aggregation"] == "constant" else {}
        return {"loss_agg_mode": mode, **clip, **scale}

    def defaults() -> Options:
        usual = ActorConfig(**base)
        names = "loss_agg_mode", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"
        return {name: getattr(usual, name) for name in names}

    def options_of_advantages() -> Options:
        scaled = step.scale({"group": True, "none": False})
        return {"norm_adv_by_std_in_grpo": scaled, "epsilon": step.advantage["eps"]}

    return {
        "losses": _losses(step, loss, matched, defaults),
        "advantages": [
            _advantages(options_of_advantages, _outcome_advantages(step, function), of=f"advantages, {name}")
            for name, function in (
                ("grpo", core_algos.compute_grpo_outcome_advantage),
                ("grpo_vectorized", core_algos.compute_grpo_vectorized_outcome_advantage),
            )
        ],
    }


def skyrl(step: Step) -> Answer:
    """``ppo_policy_loss`` of advantages with its loss reduction; ``compute_grpo_outcome_advantage``."""
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # its configuration on Python 3.11
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import AlgorithmConfig

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        config = AlgorithmConfig()
        for name, value in options.items():
            setattr(config, name, value)
        rows, width = step.mask.shape
        scaled_BT = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            step.advantages_BT.clone(), step.mask, config.loss_reduction, rows, config.max_seq_len or width
        )
        made: Tensor = ppo_utils.ppo_policy_loss(log_probs, step.old, scaled_BT, config, step.mask, step.old)[0]
        return made

    def matched() -> Options:
        low, high = step.low_high
        words = {"token_mean": "token_mean", "sequence_mean": "sequence_mean", "constant": "seq_mean_token_sum_norm"}
        own = {"loss_reduction": step.named(words), "eps_clip_low": low, "eps_clip_high": high}
        dual = step.loss["dual_clip"]
        own |= {"policy_loss_type": "dual_clip", "clip_ratio_c": dual} if dual else {"policy_loss_type": "regular"}
        return own | ({"max_seq_len": step.loss["constant"]} if step.loss["aggregation"] == "constant" else {})

    def defaults() -> Options:
        usual = AlgorithmConfig()
        names = "loss_reduction", "eps_clip_low", "eps_clip_high", "policy_loss_type"
        return {name: getattr(usual, name) for name in names}

    def options_of_advantages() -> Options:
        return {"grpo_norm_by_std": step.scale({"group": True, "none": False}), "epsilon": step.advantage["eps"]}

    function = _outcome_advantages(step, ppo_utils.compute_grpo_outcome_advantage)
    return {
        "losses": _losses(step, loss, matched, defaults),
        "advantages": [_advantages(options_of_advantages, function)],
    }


def areal(step: Step) -> Answer:
    """``ppo_actor_loss_fn``."""
    Absent("wandb", "swanlab", "trackio")
    from areal.api.cli_args import PPOActorConfig
    from areal.utils.functional.functional import ppo_actor_loss_fn

    usual = {field.name: field.default for field in dataclasses.fields(PPOActorConfig)}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        made: Tensor = ppo_actor_loss_fn(
            log_probs, step.old, step.old, step.advantages_BT, loss_mask=step.mask_bool, **options
        )[0]
        return made

    def matched() -> Options:
        step.named({"token_mean": None})
        low, high = step.low_high
        return {"eps_clip": low, "eps_clip_higher": high, "c_clip": step.loss["dual_clip"]}

    defaults = {name: usual[name] for name in ("eps_clip", "eps_clip_higher", "c_clip")}
    return {"losses": _losses(step, loss, matched, lambda: defaults), "advantages": []}


def openrlhf(step: Step) -> Answer:
    """``PolicyLoss``."""
    Absent("flash_attn", "vllm", "deepspeed", "ring_flash_attn")
    from openrlhf.models.loss import PolicyLoss

    usual = inspect.signature(PolicyLoss.__init__).parameters

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        made: Tensor = PolicyLoss(**options)(
            log_probs, step.old, step.advantages_BT, step.mask, global_batch_size=len(step.mask)
        )[0]
        return made

    def matched() -> Options:
        low, high = step.low_high
        by_token = step.named({"token_mean": True, "sequence_mean": False})
        clip = {"clip_eps_low": low, "clip_eps_high": high, "dual_clip": step.loss["dual_clip"]}
        return {"token_level_loss": by_token, **clip}

    names = "token_level_loss", "clip_eps_low", "clip_eps_high", "dual_clip"
    defaults = {name: usual[name].default for name in names}
    return {"losses": _losses(step, loss, matched, lambda: defaults), "advantages": []}


def trinity(step: Step) -> Answer:
    """``PPOPolicyLossFn``. Its ``seq-mean-token-sum-norm`` does not divide by the number of responses."""
    from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        made: Tensor = PPOPolicyLossFn(**options)(
            logprob=log_probs, old_logprob=step.old, action_mask=step.mask, advantages=step.advantages_BT
        )[0]
        return made

    def matched() -> Options:
        low, high = step.low_high
        clip = {"clip_range_low": low, "clip_range_high": high, "clip_ratio_c": step.loss["dual_clip"] or NO_CLIP}
        return {"loss_agg_mode": step.named(VERL_MODES), **clip}

    def defaults() -> Options:
        usual = PPOPolicyLossFn.default_args()
        return {name: usual[name] for name in ("loss_agg_mode", "clip_range", "clip_ratio_c")}

    return {"losses": _losses(step, loss, matched, defaults), "advantages": []}


def swift(step: Step) -> Answer:
    """``compute_advantages``; its loss is a part of its trainer."""
    from swift.rl_core.advantage import compute_advantages

    def advantages(options: Options) -> Tensor:
        made: Tensor = compute_advantages(step.rewards[:, None], torch.ones(1), step.group_size, **options)[0]
        return made

    same = {"group": "group", "none": "none", "batch": "batch"}
    return {
        "losses": [{"variant": "matched", "absent": "its loss is a part of its trainer"}],
        "advantages": [_advantages(lambda: {"scale_rewards": step.scale(same)}, advantages)],
    }


def tinker(step: Step) -> Answer:
    """``compute_advantages`` of its cookbook, which subtracts the mean; the loss is computed by a remote service."""
    from tinker_cookbook.rl.data_processing import compute_advantages

    def advantages(_: Options) -> Tensor:
        groups = step.rewards.reshape(-1, step.group_size).tolist()
        return torch.cat(compute_advantages([SimpleNamespace(get_total_rewards=lambda r=r: r) for r in groups]))

    return {
        "losses": [{"variant": "matched", "absent": "its loss is computed by a remote service"}],
        "advantages": [_advantages(lambda: step.scale({"none": {}}), advantages)],
    }


VERL_MODES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
}
PEERS: dict[str, tuple[str, Callable[[Step], Answer]]] = {
    "trl": ("trl", trl),
    "verl": ("verl", verl),
    "skyrl": ("skyrl", skyrl),
    "areal": ("areal", areal),
    "openrlhf": ("openrlhf", openrlhf),
    "trinity": ("trinity-rft", trinity),
    "swift": ("ms-swift", swift),
    "tinker": ("tinker-cookbook", tinker),
}
"""Distribution and function of each trainer."""


def _outcome_advantages(step: Step, function: Callable[..., Any]) -> Callable[[Options], Tensor]:
    """Call verl's or SkyRL's function: rewards at the one token of each rollout, groups by number."""
    rewards, index = step.rewards[:, None], step.group.numpy()
    return lambda options: function(rewards.clone(), torch.ones_like(rewards), index, **options)[0][:, 0]


def _losses(step: Step, loss: Loss, matched: Callable[[], Options], usual: Callable[[], Options]) -> list[Answer]:
    """Answer with the step's options in the trainer's words, and with the trainer's own ones."""
    answers: list[Answer] = []
    for variant, options_of in (("matched", matched), ("defaults", usual)):
        try:
            options = options_of()
        except NoCounterpart as error:
            answers.append({"variant": variant, "absent": f"no counterpart of {error}"})
            continue
        log_probs = step.log_probs.clone().requires_grad_(True)
        made = loss(step, log_probs, options)
        (gradient,) = torch.autograd.grad(made, log_probs)
        values = gradient[step.mask_bool].tolist()
        answers.append({"variant": variant, "options": options, "loss": made.item(), "gradient": values})
    return answers


def _advantages(
    options_of: Callable[[], Options], function: Callable[[Options], Tensor], of: str = "advantages"
) -> Answer:
    try:
        options = options_of()
        return {"of": of, "options": options, "values": function(options).double().tolist()}
    except NoCounterpart as error:
        return {"of": of, "absent": f"no counterpart of {error}"}


class Absent(Loader):
    """Finds empty modules in place of packages that a trainer imports and its loss does not need."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, *more: Any) -> ModuleSpec | None:
        """Find modules of the packages, and no others."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has every name: classes, and functions that return nothing."""
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It is empty."""


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else lambda *all, **more: None


def main() -> None:
    """Answer for the trainer that is named."""
    name, path, answer = sys.argv[1:]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    package, ask = PEERS[name]
    made = {"package": package, "version": importlib.metadata.version(package), **ask(Step(path))}
    with open(f"{answer}.part", "w") as file:
        json.dump(made, file)
    os.replace(f"{answer}.part", answer)


if __name__ == "__main__":
    main()
