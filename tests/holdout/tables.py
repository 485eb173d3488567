"""An examination as tables and sentences: functions of the saved document alone."""

from __future__ import annotations

from harness.compare.tables import Table
from harness.core.errors import UserError
from harness.report.text import markdown_table
from tests.holdout.document import BASELINES, SMALL, ArmScore, ChangeScore, Chosen, Compared, Document, TierScore
from tests.holdout.judging import falls_short, percent, ranking_finding, tier_findings
from tests.holdout.scores import lag_distance, mean_lag

COMMAND = "python -m harness holdout"
BEGIN, END = "<!-- begin: made by python -m harness holdout -->", "<!-- end -->"
"""Between these two lines of a page stands what ``--page`` writes."""
NOTHING = "-"


def tables(document: Document) -> list[Table]:
    """Return every table, the tiers first."""
    found = [tier_table(document), arm_table(document), stage_table(document), idle_table(document)]
    if document.changes:
        found.append(change_table(document))
    if document.choices:
        found.append(choice_table(document))
    return found


def findings(document: Document) -> list[str]:
    """Return what holds and what falls short, a sentence each."""
    sentences = [sentence for tier in document.tiers for sentence in tier_findings(document, tier)]
    return [*sentences, ranking_finding(document), *map(_change_sentence, document.changes)]


def as_markdown(document: Document) -> str:
    """Return the examination as a Markdown page."""
    parts = [
        "# The simulator's hold-out examination",
        f"Made by `{COMMAND}`, from recorded runs on the machine {document.machine}; the plan is "
        f"`profiles/holdout.yaml` of {document.chosen}. {document.draws} draws for each forecast, "
        f"seed {document.seed}.",
        verdict(document),
        *map(markdown_table, tables(document)),
        "**What the figures say**",
        "\n".join(f"- {sentence}" for sentence in findings(document)),
        "**Mind**",
        "\n".join(f"- {note}" for note in document.notes),
    ]
    return "\n\n".join(parts) + "\n"


def in_page(page: str, document: Document) -> str:
    """Return the page with the tiers, the what-if and what falls short between its two marks.

    Raises:
        UserError: it has no such marks.
    """
    head, tail = around(page)
    shown = [tier_table(document), *([change_table(document)] if document.changes else [])]
    parts = [*map(markdown_table, shown), verdict(document), ranking_finding(document)]
    return f"{head}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{tail}"


def around(page: str) -> tuple[str, str]:
    """Return what of a page stands before and after the place of the table.

    Raises:
        UserError: it has no such marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UserError("the page has no place for the table", None, f"put the lines `{BEGIN}` and `{END}` into it")
    return head, tail


def verdict(document: Document) -> str:
    """Return in a line whether every bound holds."""
    missed = falls_short(document)
    return f"**What falls short of its bound: {'; '.join(missed)}.**" if missed else "**Every bound holds.**"


def tier_table(document: Document) -> Table:
    """Return a row for each tier: its errors, against their bounds and against the baselines."""
    header = ("tier", "arms", "step time off by", "bound", "noise floor", "worst stage", "step in 90%", "stages in 90%")
    rows = [_tier_row(document, tier) for tier in document.tiers]
    notes = (
        "Off by: the median over the arms of |predicted / measured - 1|. Worst stage: the same for the stage in which "
        f"it is largest, among those that make up {percent(SMALL, 0)} of the step; its bound is "
        f"{percent(document.stage_bound, 0)}. Noise floor: what a perfect predictor would show, from the repeats. In "
        f"90%: measured values inside the interval predicted for them, {percent(document.coverage_bounds[0], 0)} to "
        f"{percent(document.coverage_bounds[1], 0)} wanted. An asterisk marks what misses its bound, and a baseline "
        "that is nearer to the truth than the simulator.",
        *(f"{name}: {what}." for name, what in BASELINES.items()),
    )
    return Table(
        "Tiers: the simulator against its bounds and its baselines", (*header, *BASELINES), tuple(rows), notes, 2
    )


def _tier_row(document: Document, tier: TierScore) -> tuple[str, ...]:
    worst = tier.stages[tier.worst_stage]
    low, high = document.coverage_bounds
    covered = [
        f"{counted.inside}/{counted.of}{_mark(not low <= counted.share <= high)}"
        for counted in (tier.coverage, tier.stage_coverage)
    ]
    return (
        tier.name,
        ", ".join(tier.arms),
        f"{percent(tier.error)}{_mark(tier.error > tier.bound)}",
        percent(tier.bound, 0),
        percent(tier.floor),
        f"{tier.worst_stage} {percent(worst)}{_mark(worst > document.stage_bound)}",
        *covered,
        *(f"{percent(tier.baselines.get(name))}{_mark(name in tier.winners)}" for name in BASELINES),
    )


def _mark(missed: bool) -> str:
    return " *" if missed else ""


def arm_table(document: Document) -> Table:
    """Return a row for each arm: step time, lag and waste, predicted and measured."""
    header = ("arm", "tier", "repeats, s", "measured, s", "predicted, s", "error", "lag off by", "mean lag", "waste")
    notes = (
        "Predicted: the median draw with its 90% interval. Lag off by: distance between the two distributions of lag "
        "in versions (Wasserstein's, order 1). Mean lag and waste (share of the rollouts that were generated for "
        "nothing): predicted, then measured.",
        *map(_extrapolating_note, (arm for arm in document.arms if arm.extrapolating)),
    )
    return Table("Arms: seconds of a training step", header, tuple(map(_arm_row, document.arms)), notes, 2)


def _extrapolating_note(arm: ArmScore) -> str:
    """Name the stages of which an arm leaves the fitted range; the saved examination has the sentences."""
    stages = dict.fromkeys(sentence.partition(":")[0].partition(" (")[0] for sentence in arm.extrapolating)
    return f"{arm.arm} ({arm.tier}) leaves the fitted range of {', '.join(stages)}."


def _arm_row(arm: ArmScore) -> tuple[str, ...]:
    step, lags = arm.step, (arm.lags.shares("predicted"), arm.lags.shares("measured"))
    known = all(map(bool, lags))
    return (
        arm.arm,
        arm.tier,
        " ".join(f"{seconds:.3f}" for seconds in step.repeats),
        f"{step.measured:.3f}",
        f"{step.value:.3f} [{step.low:.3f}, {step.high:.3f}]",
        signed(step.error),
        f"{lag_distance(*lags):.2f}" if known else NOTHING,
        " / ".join(f"{mean_lag(shares):.2f}" for shares in lags) if known else NOTHING,
        f"{percent(arm.waste.value)} / {percent(arm.waste.measured)}",
    )


def stage_table(document: Document) -> Table:
    """Return the error of each stage in each arm, with its share of the step."""
    stages = list(dict.fromkeys(stage for arm in document.arms for stage in arm.stages))
    large = [stage for stage in stages if any(stage in arm.large_stages for arm in document.arms)]
    rows = [(arm.arm, arm.tier, *(_stage_cell(arm, stage) for stage in large)) for arm in document.arms]
    small = {
        stage: max((arm.share(stage) for arm in document.arms if stage in arm.stages), default=0.0) for stage in stages
    }
    never = ", ".join(f"{stage} (at most {percent(small[stage])} of a step)" for stage in stages if stage not in large)
    notes = [
        "Error of the stage's seconds in a step, and in brackets its share of the measured step. Shares of lanes that "
        "work at the same time add up to more than the step. A cell in brackets as a whole is below "
        f"{percent(SMALL, 0)} and counts in no bound."
    ]
    if never:
        notes.append(f"Always below: {never}.")
    return Table(
        "Stages: by how much each is off", ("arm", "tier", *large), tuple(rows), tuple(notes), 2, divisible=True
    )


def _stage_cell(arm: ArmScore, stage: str) -> str:
    found = arm.stages.get(stage)
    if found is None or not found.measured:
        return NOTHING
    cell = f"{signed(found.error)} ({percent(arm.share(stage), 0)})"
    return cell if stage in arm.large_stages else f"({cell})"


def idle_table(document: Document) -> Table:
    """Return the share of the time that each kind of lane waits, predicted and measured."""
    kinds = list(dict.fromkeys(kind for arm in document.arms for kind in arm.idle))
    rows = [(arm.arm, arm.tier, *(_idle_cell(arm.idle.get(kind)) for kind in kinds)) for arm in document.arms]
    notes = ("Predicted / measured, and the difference in percentage points.",)
    return Table("Idle: share of the time that a lane waits", ("arm", "tier", *kinds), tuple(rows), notes, 2)


def _idle_cell(found: Compared | None) -> str:
    if found is None:
        return NOTHING
    points = 100 * (found.value - found.measured)
    return f"{percent(found.value)} / {percent(found.measured)} ({points:+.1f})"


def change_table(document: Document) -> Table:
    """Return each change of a recorded run: the ratio of step times that ``whatif`` says, and the measured one."""
    header = ("change", "settings", "predicted ratio", "measured ratio", "off by", "replay off by")
    rows = [_change_row(change) for change in document.changes]
    notes = (
        "Ratios of step times, changed over unchanged. The measured interval is the 95% t-interval over the repeats, "
        "each changed run against the unchanged one of its experiment; the predicted one spans the recorded runs it "
        "was made from. Replay: how far the replay of those runs, as they were, is from their own step time, at most.",
    )
    return Table("What-if: effects predicted from one recorded arm, and measured", header, tuple(rows), notes, 2)


def _change_row(change: ChangeScore) -> tuple[str, ...]:
    return (
        f"{change.start} -> {change.arm}",
        ", ".join(change.settings),
        _ratio(change.predicted, change.predicted_low, change.predicted_high),
        _ratio(change.measured, change.low, change.high),
        signed(change.predicted / change.measured - 1),
        percent(change.replay_error),
    )


def _ratio(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _change_sentence(change: ChangeScore) -> str:
    if change.low is None or change.high is None:
        return f"What-if {change.start} -> {change.arm}: measured too seldom for an interval."
    inside = change.low <= change.predicted <= change.high
    verdict = "lies in" if inside else "LIES OUTSIDE"
    return f"What-if {change.start} -> {change.arm}: the predicted ratio {verdict} the measured 95% interval."


def choice_table(document: Document) -> Table:
    """Return what it costs to follow the simulator."""
    header = ("question", "its pick", "the best", "regret", "wrong pairs", "mean cost", "worst cost")
    compared = len(document.choices[0].arms)
    notes = (
        f"Among the {compared} arms of one model. Regret: measured value of the pick over that of the best, minus 1. "
        "Wrong pairs: of all pairs of arms, those in which the one with the better prediction is the worse one; the "
        "costs are the regret of a pair, 0 where it is right.",
    )
    return Table(
        "Choices: what it costs to follow the simulator", header, tuple(map(_choice_row, document.choices)), notes, 3
    )


def _choice_row(choice: Chosen) -> tuple[str, ...]:
    return (
        choice.question,
        choice.picked,
        choice.best,
        percent(choice.regret),
        f"{choice.wrong} of {choice.pairs}",
        percent(choice.mean_cost, 2),
        percent(choice.worst_cost),
    )


def signed(error: float) -> str:
    """Show an error with its sign."""
    return f"{100 * error:+.1f}%"
