"""Rules that tie several settings together. Each is refused with its name, the numbers and what to write instead."""

from __future__ import annotations

from collections.abc import Callable

from harness.core.errors import UserError
from harness.scenario.distributed_rules import DISTRIBUTED_RULES
from harness.scenario.loss_rules import LOSS_RULES
from harness.scenario.model_sections import PresetModelSettings
from harness.scenario.problems import Problem, dotted_paths
from harness.scenario.schema import Scenario
from harness.scenario.task_sections import ArithmeticTaskSettings, KeywordsTaskSettings

Rule = Callable[[Scenario], Problem | None]


def broken_rules(scenario: Scenario) -> list[Problem]:
    """Return a problem for each rule that the scenario breaks."""
    problems = [(rule.__name__, rule(scenario)) for rule in RULES]
    return [_named(name, problem) for name, problem in problems if problem is not None]


def no_gpu_error(where: str = "placement.device: cuda") -> UserError:
    """Return the error for a scenario that asks for a GPU on a machine without one."""
    return UserError(
        "the scenario asks for a GPU (`placement.device` is cuda), and PyTorch finds none on this machine",
        where,
        "set placement.device to cpu, or to auto, which takes a GPU only where there is one; "
        "on a GPU machine check that nvidia-smi works and that PyTorch is not the CPU build",
    )


def whole_groups(scenario: Scenario) -> Problem | None:
    """A rollout batch consists of whole groups."""
    return _must_divide(
        ("group_size", scenario.group_size), ("rollout_batch_size", scenario.rollout_batch_size), "rollout_batch_size"
    )


def whole_minibatches(scenario: Scenario) -> Problem | None:
    """A pass over the rollout batch splits into equal minibatches."""
    return _must_divide(
        ("minibatches_per_epoch", scenario.minibatches_per_epoch),
        ("rollout_batch_size", scenario.rollout_batch_size),
        "rollout_batch_size",
    )


def whole_microbatches(scenario: Scenario) -> Problem | None:
    """A train batch splits into equal microbatches."""
    return _must_divide(
        ("gradient_accumulation_steps", scenario.gradient_accumulation_steps),
        ("train batch", scenario.train_batch_size),
        "rollout_batch_size",
    )


def train_batch_holds_a_group(scenario: Scenario) -> Problem | None:
    """An optimizer step trains on a group at least."""
    train_batch, group = scenario.train_batch_size, scenario.group_size
    if train_batch >= group or scenario.rollout_batch_size < group:
        return None
    what = (
        f"the train batch has {train_batch} rollouts (rollout_batch_size {scenario.rollout_batch_size} / "
        f"minibatches_per_epoch {scenario.minibatches_per_epoch}), must be at least group_size {group}"
    )
    fix = f"set minibatches_per_epoch to at most {max(1, scenario.rollout_batch_size // group)}"
    return Problem(what, fix, dotted_paths("minibatches_per_epoch", "group_size", "rollout_batch_size"))


def colocated_parts_take_turns(scenario: Scenario) -> Problem | None:
    """Colocated parts never work at the same time, so they cannot lag."""
    if not scenario.placement.colocated or scenario.max_lag == 0:
        return None
    what = f"max_lag is {scenario.max_lag}, must be 0 with placement.colocated true"
    fix = "set max_lag to 0, or placement.colocated to false"
    return Problem(what, fix, dotted_paths("max_lag", "placement.colocated"))


def token_bounds(scenario: Scenario) -> Problem | None:
    """A response can be long enough."""
    low, high = scenario.sampling.min_tokens, scenario.sampling.max_tokens
    if low <= high:
        return None
    what = f"sampling.min_tokens is {low}, must be at most sampling.max_tokens {high}"
    fix = f"set sampling.min_tokens to at most {high}, or sampling.max_tokens to at least {low}"
    return Problem(what, fix, dotted_paths("sampling.min_tokens", "sampling.max_tokens"))


def pinned_lengths_fit(scenario: Scenario) -> Problem | None:
    """Pinned lengths are a range of tokens that fits into a response, of an engine that samples."""
    pinned, most = scenario.sampling.pinned_lengths, scenario.sampling.max_tokens
    if pinned is None:
        return None
    shown = f"sampling.pinned_lengths is {list(pinned)}"
    if scenario.engine.type == "paced":
        what = f"{shown} with engine.type paced, whose responses all have one length"
        return Problem(what, "leave it out", dotted_paths("sampling.pinned_lengths", "engine.type"))
    if pinned[0] <= pinned[1] <= most:
        return None
    what = f"{shown}, must rise and end at most at sampling.max_tokens {most}"
    fix = f"write for example pinned_lengths: [{min(4, most)}, {most}]"
    return Problem(what, fix, dotted_paths("sampling.pinned_lengths", "sampling.max_tokens"))


def arms_that_take_steps(scenario: Scenario) -> Problem | None:
    """Arms take turns by step only where nothing of them goes on in the background."""
    if scenario.interleaving != "step" or scenario.max_lag == 0:
        return None
    what = f"interleaving is step with max_lag {scenario.max_lag}: lagged parts work on while another arm has its turn"
    fix = "set interleaving to run, or max_lag to 0"
    return Problem(what, fix, dotted_paths("interleaving", "max_lag"))


def whole_distribution(scenario: Scenario) -> Problem | None:
    """Ratios and KL compare log-probs of one kind, and the Learner's are always of the whole distribution."""
    top_p, lag, monitor = scenario.sampling.top_p, scenario.max_lag, scenario.loss.kl.monitor
    capacity, mode = scenario.replay.capacity, scenario.loss.importance.mode
    causes = [("max_lag", f"max_lag {lag}", "max_lag to 0")] if lag > 0 else []
    causes += [("replay.capacity", f"replay.capacity {capacity}", "replay.capacity to 0")] if capacity > 0 else []
    weights = "loss.importance.mode"
    causes += [(weights, f"{weights} {mode}", f"{weights} to off")] if mode != "off" else []
    causes += [("loss.kl.monitor", "loss.kl.monitor true", "loss.kl.monitor to false")] if monitor else []
    if top_p == 1 or not causes:
        return None
    keys, given, ways_out = zip(*causes, strict=True)
    what = (
        f"sampling.top_p is {top_p}, must be 1 with {' and '.join(given)}: the engine samples from the truncated "
        "distribution, the Learner's log-probs are of the whole one, so ratios and KL would be wrong"
    )
    fix = f"set sampling.top_p to 1, or {' and '.join(ways_out)}"
    return Problem(what, fix, dotted_paths("sampling.top_p", *keys))


def enough_validation_prompts(scenario: Scenario) -> Problem | None:
    """Validation uses each held-out prompt once at most."""
    task = scenario.task
    if not isinstance(task, KeywordsTaskSettings | ArithmeticTaskSettings) or getattr(task, "validation", None):
        return None
    wanted, present = scenario.evaluation.prompts, task.validation_prompts
    if wanted <= present:
        return None
    what = f"evaluation.prompts is {wanted}, must be at most task.validation_prompts {present}"
    fix = f"set evaluation.prompts to at most {present}, or task.validation_prompts to at least {wanted}"
    return Problem(what, fix, dotted_paths("evaluation.prompts", "task.validation_prompts"))


def keyword_files_come_together(scenario: Scenario) -> Problem | None:
    """The keyword task reads both of its files or none, and with files it draws no prompts."""
    task = scenario.task
    if not isinstance(task, KeywordsTaskSettings):
        return None
    if (task.train is None) != (task.validation is None):
        given, missing = ("train", "validation") if task.validation is None else ("validation", "train")
        what = f"task.{given} names a file and task.{missing} is null; the keyword task reads both or none"
        return Problem(what, f"set task.{missing} too", dotted_paths(f"task.{given}", f"task.{missing}"))
    if task.train is None:
        return None
    for name in ("train_prompts", "validation_prompts", "seed"):
        value, default = getattr(task, name), KeywordsTaskSettings.model_fields[name].default
        if value != default:
            what = f"task.{name} is {value}, and with task.train all prompts come from the files"
            return Problem(what, f"leave task.{name} out", dotted_paths(f"task.{name}", "task.train"))
    return None


def warm_start_suits_the_task(scenario: Scenario) -> Problem | None:
    """A warm-started preset has learnt one kind of text; on the other kind every reward would be 0."""
    model, task = scenario.model, scenario.task.type
    if not isinstance(model, PresetModelSettings) or not model.warm_start or task in ("jsonl", "sorting"):
        return None
    knows, learnt = ("maths", "arithmetic") if model.preset == "maths" else ("keywords", "to use given words")
    if (knows == "maths") == (task in ("maths", "arithmetic")):
        return None
    what = f"the warm start of model.preset {model.preset} teaches {learnt}, and task.type is {task}"
    preset = "small" if knows == "maths" else "maths"
    fix = f"set model.preset to {preset}, or model.warm_start to false"
    return Problem(what, fix, dotted_paths("model.preset", "task.type"))


def examples_are_evaluated(scenario: Scenario) -> Problem | None:
    """Examples are taken from the validation rollouts."""
    wanted, present = scenario.evaluation.examples, scenario.evaluation.prompts
    if wanted <= present:
        return None
    what = f"evaluation.examples is {wanted}, must be at most evaluation.prompts {present}"
    fix = f"set evaluation.examples to at most {present}"
    return Problem(what, fix, dotted_paths("evaluation.examples", "evaluation.prompts"))


def reclone_interval(scenario: Scenario) -> Problem | None:
    """A re-cloned reference has an interval, a frozen one has none."""
    kl = scenario.loss.kl
    paths = dotted_paths("loss.kl.reference", "loss.kl.reclone_every")
    if kl.reference == "reclone" and kl.reclone_every is None:
        return Problem(
            "loss.kl.reference is reclone, and loss.kl.reclone_every is null", "set loss.kl.reclone_every to 10", paths
        )
    if kl.reference == "frozen" and kl.reclone_every is not None:
        what = f"loss.kl.reclone_every is {kl.reclone_every}, must be null with loss.kl.reference frozen"
        return Problem(what, "set loss.kl.reference to reclone, or leave loss.kl.reclone_every out", paths)
    return None


def constant_is_used(scenario: Scenario) -> Problem | None:
    """A divisor that no sum is divided by would be ignored in silence."""
    loss = scenario.loss
    if loss.constant is None or loss.aggregation == "constant":
        return None
    what = f"loss.constant is {loss.constant}, must be null with loss.aggregation {loss.aggregation}"
    fix = "set loss.aggregation to constant, or leave loss.constant out"
    return Problem(what, fix, dotted_paths("loss.constant", "loss.aggregation"))


RULES: tuple[Rule, ...] = (
    whole_groups,
    whole_minibatches,
    whole_microbatches,
    train_batch_holds_a_group,
    *LOSS_RULES,
    colocated_parts_take_turns,
    token_bounds,
    pinned_lengths_fit,
    arms_that_take_steps,
    whole_distribution,
    enough_validation_prompts,
    keyword_files_come_together,
    warm_start_suits_the_task,
    examples_are_evaluated,
    reclone_interval,
    constant_is_used,
    *DISTRIBUTED_RULES,
)


def _must_divide(part: tuple[str, int], whole: tuple[str, int], whole_key: str) -> Problem | None:
    (part_name, size), (whole_name, total) = part, whole
    remainder = total % size
    if remainder == 0:
        return None
    what = f"{part_name} {size} does not divide {whole_name} {total} (remainder {remainder})"
    divisors = [number for number in range(1, min(total, 4096) + 1) if total % number == 0]
    near = sorted(sorted(divisors, key=lambda number: abs(number - size))[:4])
    wholes = [str(number) for number in (total - remainder, total - remainder + size) if number > 0]
    fix = f"set {part_name} to {_any_of([str(number) for number in near])}, or make {whole_name} {_any_of(wholes)}"
    return Problem(what, fix, dotted_paths(part_name, whole_key))


def _any_of(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _named(name: str, problem: Problem) -> Problem:
    return Problem(f"{problem.what} [rule: {name}]", problem.fix, problem.paths, problem.where)
