"""prime-rl's ``rl.toml``, or that of its trainer or orchestrator alone, by its published source: not checked by its
code. Lines are of ``trainer.py`` in ``packages/prime-rl-configs/src/prime_rl/configs``, where no other is named."""

from __future__ import annotations

from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, same

LOSS, OPTIM, SCHEDULE, SAMPLING = (
    "trainer.loss.",
    "trainer.optim.",
    "trainer.scheduler.",
    "orchestrator.train.sampling.",
)
UNCLIPPED = {"loss.type": "unclipped", "loss.aggregation": "token_mean"}
"""loss.py 134 and 404: the ratio to the engine's log-probs, and a mean over the tokens of all workers."""


def _tokens(v: Theirs) -> Ours:
    most = v[f"{SAMPLING}max_completion_tokens"]
    if most is None:
        longest = {"sampling.max_tokens": v["orchestrator.seq_len"]}
        raise NoCounterpart("a response may fill the context; orchestrator.seq_len is taken", longest)
    return {"sampling.max_tokens": most}


def _schedule(v: Theirs) -> Ours:
    kind, least, rate = v[f"{SCHEDULE}type"], v[f"{SCHEDULE}min_lr"], v[f"{OPTIM}lr"]
    if kind == "constant":
        return {"optimizer.schedule": "constant"}
    made = {"optimizer.schedule": kind, "optimizer.warmup_steps": v[f"{SCHEDULE}warmup_steps"]}
    if least and rate:
        made["optimizer.min_learning_rate_ratio"] = min(1.0, least / rate)
    decay, steps = v[f"{SCHEDULE}decay_steps"], v["max_steps"]
    if kind == "linear" and decay == 0:
        return {"optimizer.schedule": "constant", "optimizer.warmup_steps": v[f"{SCHEDULE}warmup_steps"]}
    if kind == "linear" and decay + v[f"{SCHEDULE}warmup_steps"] != steps:
        raise NoCounterpart("it falls over the last decay_steps; here from the end of the warm-up", made)
    return made


def _schedule_back(s: Ours) -> Theirs:
    kind, warmup = s["optimizer.schedule"], s["optimizer.warmup_steps"]
    least = s["optimizer.min_learning_rate_ratio"] * s["optimizer.learning_rate"]
    if kind == "constant":
        return {f"{SCHEDULE}type": "linear", f"{SCHEDULE}warmup_steps": warmup, f"{SCHEDULE}decay_steps": 0} if warmup \
            else {f"{SCHEDULE}type": "constant"}  # fmt: skip
    decay = {f"{SCHEDULE}decay_steps": s["steps"] - warmup} if kind == "linear" else {}
    return {f"{SCHEDULE}type": kind, f"{SCHEDULE}warmup_steps": warmup, f"{SCHEDULE}min_lr": least, **decay}


def _lag(v: Theirs) -> Ours:
    lag = v["orchestrator.max_off_policy_steps"]  # orchestrator.py: what is older is dropped
    if lag == 0:
        raise NoCounterpart("the ratio divides by the engine's log-probs here only with lag", {"max_lag": 0})
    return {"max_lag": lag, "lag_control": "in_flight", "placement.colocated": False}


def _steps(v: Theirs) -> Ours:
    if not v["max_steps"]:
        raise NoCounterpart("it trains until it is ended; `steps` is left at its default")
    return {"steps": v["max_steps"]}


ROWS = (
    # the loss
    means(f"{LOSS}type", "default", {"default": UNCLIPPED}, {  # 461
        "ipo": "no mask by how far a probability moved", "custom": "a function of yours: see `loss.type: own`"}),
    absent(f"{LOSS}dppo_mask_low", 0.2, "tokens whose probability fell by more are masked where A < 0", off=1.0),
    absent(f"{LOSS}dppo_mask_high", 0.2, "tokens whose probability rose by more are masked where A > 0", off=1.0),
    absent(f"{LOSS}adv_tau", 1.0, "advantages are not multiplied"),
    absent(f"{LOSS}kl_tau", 1e-3, "no squared log-ratio to the engine's policy; loss.kl is to a reference", off=0.0),
    means("orchestrator.algo.type", "grpo", {"grpo": {"advantage.delta": "centered_rewards"}}, {  # algo/grpo.py
        "max_rl": "a reward is not divided by its group's mean", "rae": "no baselines of agents",
        "echo": "no cross-entropy beside the loss", "opd": "no distillation", "opsd": "no distillation",
        "sft": "no distillation", "hierarchical_grpo": "groups are those of a prompt"}),
    absent("orchestrator.algo.length_penalty.type", None, "rewards come from `task` as they are"),
    absent("orchestrator.train.filter_zero_advantages", True,
           "tokens without an advantage leave the loss's mean; here they stay in it", off=False),
    absent("trainer.model.lora.rank", None, "no adapters: all weights are trained", loss=False),
    # the step
    same("orchestrator.batch_size", 128, "rollout_batch_size"),  # orchestrator.py, resolve_batching
    absent("orchestrator.token_batch_size", None, "a batch is so many responses"),
    same("orchestrator.group_size", 1, "group_size"),
    Row(theirs={"orchestrator.max_off_policy_steps": 8}, ours=("max_lag", "lag_control"), to=_lag,
        back=lambda s: {"orchestrator.max_off_policy_steps": s["max_lag"]}),
    Row(theirs={"max_steps": None}, ours=("steps",), loss=False, to=_steps, back=lambda s: {"max_steps": s["steps"]}),
    # sampling
    Row(theirs={f"{SAMPLING}max_completion_tokens": None, "orchestrator.seq_len": 2048}, to=_tokens, loss=False,
        ours=("sampling.max_tokens",), back=lambda s: {f"{SAMPLING}max_completion_tokens": s["sampling.max_tokens"]}),
    same(f"{SAMPLING}temperature", 1.0, "sampling.temperature"),
    # the optimizer
    means(f"{OPTIM}type", "adamw", {"adamw": {}}, loss=False),
    same(f"{OPTIM}lr", 1e-6, "optimizer.learning_rate"),
    same(f"{OPTIM}weight_decay", 0.01, "optimizer.weight_decay"),
    same(f"{OPTIM}max_norm", 1.0, "optimizer.max_grad_norm", {0: None}),
    Row(theirs={f"{OPTIM}betas1": 0.9, f"{OPTIM}betas2": 0.999}, ours=("optimizer.betas",),
        to=lambda v: {"optimizer.betas": [v[f"{OPTIM}betas1"], v[f"{OPTIM}betas2"]]},
        back=lambda s: dict(zip((f"{OPTIM}betas1", f"{OPTIM}betas2"), s["optimizer.betas"], strict=True))),
    Row(theirs={f"{SCHEDULE}type": "constant", f"{SCHEDULE}warmup_steps": 10, f"{SCHEDULE}decay_steps": 10,
                f"{SCHEDULE}min_lr": 0.0}, to=_schedule, back=_schedule_back, loss=False,
        ours=("optimizer.schedule", "optimizer.warmup_steps", "optimizer.min_learning_rate_ratio")),
    # the model
    Row(theirs={"model.name": "Qwen/Qwen3-0.6B"}, ours=("model.path",), loss=False,
        to=lambda v: {"model.type": "folder", "model.path": v["model.name"], "engine.type": "vllm"},
        back=lambda s: {"model.name": s["model.path"]} if s["model.path"] else {}),
    Row(theirs={"trainer.model.optimization_dtype": "float32"}, ours=("model.dtype",), loss=False,
        to=lambda v: {"model.dtype": v["trainer.model.optimization_dtype"], "model.precision": "bfloat16"},
        back=lambda s: {"trainer.model.optimization_dtype": s["model.dtype"]} if s["model.path"] else {}),
)  # fmt: skip

BESIDE = """
run.* output_dir clean *log.* *ckpt* *resume* *monitors.* *wandb* *tokenizer.* *weight_broadcast.* deployment.*
slurm.* dry_run *rollout_transport.* inference* *env_vars.* model.vlm.* orchestrator.renderer.* orchestrator.eval.*
orchestrator.concurrency.* orchestrator.train.source.*.env.* orchestrator.train.source.*.name
orchestrator.train.source.*.ratio orchestrator.train.source.*.serve.* orchestrator.model.client.*
orchestrator.num_train_workers orchestrator.tasks_per_minute orchestrator.collect_inference_metrics
orchestrator.env_server_base_port trainer.model.* trainer.data.* trainer.gc* trainer.matmul_precision
trainer.dist_timeout_seconds trainer.enable_* trainer.metrics_server.* trainer.*_path
"""
PRIME_RL = Table(
    name="prime-rl",
    version="559b44772e47",
    checked=False,
    style="toml",
    rows=ROWS,
    sections=("trainer.", "orchestrator."),
    renamed={
        "trainer.model.name": "model.name",
        "orchestrator.model.name": "model.name",
        "trainer.max_steps": "max_steps",
        "orchestrator.max_steps": "max_steps",
        "seq_len": "orchestrator.seq_len",
        "orchestrator.max_async_level": "orchestrator.max_off_policy_steps",
        "max_async_level": "orchestrator.max_off_policy_steps",
        "orchestrator.rollouts_per_example": "orchestrator.group_size",
        "orchestrator.sampling.max_tokens": f"{SAMPLING}max_completion_tokens",
        "orchestrator.sampling.temperature": f"{SAMPLING}temperature",
    },
    assumes=(
        "weights that change between two tokens of a response, and no response older than "
        "max_off_policy_steps, which prime-rl drops",
    ),
    beside=BESIDE,
)
