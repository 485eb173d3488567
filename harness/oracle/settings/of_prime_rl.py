"""prime-rl's ``rl.toml``, or that of its trainer or orchestrator alone, by its published source: not checked by its
code. Lines are of ``trainer.py`` in ``packages/prime-rl-configs/src/prime_rl/configs``, where no other is named."""

from __future__ import annotations

from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, model, same, steps

LOSS, OPTIM, SCHEDULE, SAMPLING = (
    "trainer.loss.",
    "trainer.optim.",
    "trainer.scheduler.",
    "orchestrator.train.sampling.",
)
UNCLIPPED = {"loss.type": "unclipped", "loss.aggregation": "token_mean"}
"""loss.py 134 and 404: the ratio to the engine's log-probs, and a mean over the tokens of all workers."""
BETAS = f"{OPTIM}betas1", f"{OPTIM}betas2"


def _tokens(v: Theirs) -> Ours:
    most = v[f"{SAMPLING}max_completion_tokens"]
    if most is None:
        longest = {"sampling.max_tokens": v["orchestrator.seq_len"]}
        raise NoCounterpart("a response may fill the context; orchestrator.seq_len is taken", longest)
    return {"sampling.max_tokens": most}


def _lag(v: Theirs) -> Ours:
    lag = v["orchestrator.max_off_policy_steps"]  # orchestrator.py: what is older is dropped
    if lag == 0:
        raise NoCounterpart("the ratio divides by the engine's log-probs here only with lag", {"max_lag": 0})
    return {"max_lag": lag, "lag_control": "in_flight", "placement.colocated": False}


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
    Row({"orchestrator.max_off_policy_steps": 8}, _lag, lambda s: {"orchestrator.max_off_policy_steps": s["max_lag"]}),
    steps("max_steps"),
    # sampling
    Row({f"{SAMPLING}max_completion_tokens": None, "orchestrator.seq_len": 2048}, _tokens,
        lambda s: {f"{SAMPLING}max_completion_tokens": s["sampling.max_tokens"]}, loss=False),
    same(f"{SAMPLING}temperature", 1.0, "sampling.temperature"),
    # the optimizer
    means(f"{OPTIM}type", "adamw", {"adamw": {}}, loss=False),
    same(f"{OPTIM}lr", 1e-6, "optimizer.learning_rate"),
    same(f"{OPTIM}weight_decay", 0.01, "optimizer.weight_decay"),
    same(f"{OPTIM}max_norm", 1.0, "optimizer.max_grad_norm", off=0),
    Row(dict(zip(BETAS, (0.9, 0.999), strict=True)), lambda v: {"optimizer.betas": [v[key] for key in BETAS]},
        lambda s: dict(zip(BETAS, s["optimizer.betas"], strict=True))),
    means(f"{SCHEDULE}type", "constant", {"constant": {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}},
          {"linear": "see optimizer.schedule", "cosine": "see optimizer.schedule"}, loss=False),
    # the model
    model("model.name", "Qwen/Qwen3-0.6B"),
    Row({}, lambda v: {"model.precision": "bfloat16", "engine.type": "vllm"}),
)  # fmt: skip

BESIDE = """
run.* output_dir clean *log.* *ckpt* *resume* *monitors.* *wandb* *tokenizer.* *weight_broadcast.* deployment.*
slurm.* dry_run *rollout_transport.* inference* *env_vars.* model.vlm.* orchestrator.renderer.* orchestrator.eval.*
orchestrator.concurrency.* orchestrator.train.source.*.env.* orchestrator.train.source.*.name
orchestrator.train.source.*.ratio orchestrator.train.source.*.serve.* orchestrator.model.client.*
orchestrator.num_train_workers orchestrator.tasks_per_minute orchestrator.collect_inference_metrics
orchestrator.env_server_base_port trainer.model.* trainer.data.* trainer.gc* trainer.matmul_precision
trainer.scheduler.* trainer.dist_timeout_seconds trainer.enable_* trainer.metrics_server.* trainer.*_path
"""
PRIME_RL = Table(
    name="prime-rl",
    version="559b44772e47",
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
