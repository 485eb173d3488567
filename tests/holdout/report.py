"""An examination as tables and as a page: functions of the saved document alone."""

from __future__ import annotations

from harness.core.errors import UserError
from harness.report.document import Table
from harness.report.markdown import markdown_table
from tests.holdout.summary import SMALL, ArmScore, ChangeScore, Compared, Document, TierScore, lag_distance, mean_lag
from tests.holdout.verdicts import falls_short, outside_by, percent, ranking_verdict

BEGIN, END = "<!-- begin: made by make holdout -->", "<!-- end -->"
"""Between these two lines of a page stands what ``in_page`` puts there."""
NOTHING = "-"
CAVEATS = (
    "Errors are against the mean of an arm's repeats; intervals are those of a single run.",
    "Stages are scored where they make up 5% of the measured step or more. Repeats of an arm, and stages of a run, "
    "share what the machine did and what was predicted: counts inside intervals are of fewer things than they seem.",
    "No fitted training run has a transport of the tier `transport`: what these cost comes from isolated weight syncs, "
    "with nothing else at work. The arms of the tier `size` are fitted without any run of their own model.",
)


def tables(document: Document) -> list[Table]:
    """Return every table, the tiers first."""
    made = (tier_table, arm_table, stage_table, idle_table, change_table)
    return [make(document) for make in made]


def as_markdown(document: Document) -> str:
    """Return the examination as a Markdown page."""
    parts = [
        "# The simulator's hold-out examination",
        f"Made by `make holdout`, from recorded runs on the machine {document.machine}; the plan is "
        f"`tests/holdout/plan.yaml` of {document.chosen}. {document.draws} draws for each forecast, "
        f"seed {document.seed}.",
        verdict(document),
        ranking_verdict(document),
        *map(markdown_table, tables(document)),
        "**Caveats**",
        "\n".join(f"- {note}" for note in CAVEATS),
    ]
    return "\n\n".join(parts) + "\n"


def in_page(page: str, document: Document) -> str:
    """Return the page with the tiers, the what-if and what falls short between its two marks.

    Raises:
        UserError: it has no such marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UserError("the page has no place for the table", None, f"put the lines `{BEGIN}` and `{END}` into it")
    shown = (tier_table(document), change_table(document))
    parts = [*map(markdown_table, shown), verdict(document), ranking_verdict(document)]
    return f"{head}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{tail}"


def verdict(document: Document) -> str:
    """Return in a line whether every bound holds."""
    missed = falls_short(document)
    return f"**What falls short of its bound: {'; '.join(missed)}.**" if missed else "**Every bound holds.**"


def tier_table(document: Document) -> Table:
    """Return a row for each tier: its errors, against their bounds and against plain addition."""
    header = ("tier", "arms", "step time off by", "bound", "noise floor", "worst stage", "step in 90%", "stages in 90%")
    low, high = document.coverage_bounds
    notes = (
        "Off by: the median over the arms of |predicted / measured - 1|. Worst stage: the same for the stage in which "
        f"it is largest, among those that make up {percent(SMALL, 0)} of the step; its bound is "
        f"{percent(document.stage_bound, 0)}. Noise floor: what a perfect predictor would show, from the repeats. In "
        f"90%: measured values inside the interval predicted for them, {percent(low, 0)} to {percent(high, 0)} wanted. "
        "Closed form: the fitted stage costs without contention, their sum, or with a lag the busiest lane's. An "
        "asterisk marks what misses its bound, and a closed form that is nearer to the truth than the simulator.",
    )
    rows = tuple(_tier_row(document, tier) for tier in document.tiers)
    return Table("Tiers: the simulator against its bounds", (*header, "closed form"), rows, notes, words=2)


def _tier_row(document: Document, tier: TierScore) -> tuple[str, ...]:
    worst = tier.stages[tier.worst_stage]
    return (
        tier.name,
        ", ".join(tier.arms),
        percent(tier.error) + _mark(tier.error > tier.bound),
        percent(tier.bound, 0),
        percent(tier.floor),
        f"{tier.worst_stage} {percent(worst)}{_mark(worst > document.stage_bound)}",
        *(
            f"{counted.inside}/{counted.of}{_mark(outside_by(counted, document.coverage_bounds) > 0)}"
            for counted in (tier.coverage, tier.stage_coverage)
        ),
        percent(tier.closed_form) + _mark(tier.closed_form < tier.error),
    )


def _mark(missed: bool) -> str:
    return " *" if missed else ""


def arm_table(document: Document) -> Table:
    """Return a row for each arm: step time, lag and waste, predicted and measured."""
    header = ("arm", "tier", "repeats, s", "measured, s", "predicted, s", "error", "lag off by", "mean lag", "waste")
    notes = [
        "Predicted: the median draw with its 90% interval. Lag off by: distance between the two distributions of lag "
        "in versions (Wasserstein's, order 1). Mean lag and waste (share of the rollouts that were generated for "
        "nothing): predicted, then measured."
    ]
    for arm in document.arms:
        # the saved examination has the whole sentences
        stages = dict.fromkeys(sentence.partition(":")[0].partition(" (")[0] for sentence in arm.extrapolating)
        if stages:
            notes.append(f"{arm.arm} ({arm.tier}) leaves the fitted range of {', '.join(stages)}.")
    rows = tuple(map(_arm_row, document.arms))
    return Table("Arms: seconds of a training step", header, rows, tuple(notes), words=2)


def _arm_row(arm: ArmScore) -> tuple[str, ...]:
    step, lags = arm.step, (arm.lags.predicted, arm.lags.measured)
    known = all(map(bool, lags))
    return (
        arm.arm,
        arm.tier,
        " ".join(f"{seconds:.3f}" for seconds in step.repeats),
        f"{step.measured:.3f}",
        _with_interval(step.value, step.low, step.high),
        _signed(step.error),
        f"{lag_distance(*lags):.2f}" if known else NOTHING,
        " / ".join(f"{mean_lag(shares):.2f}" for shares in lags) if known else NOTHING,
        f"{percent(arm.waste.value)} / {percent(arm.waste.measured)}",
    )


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _signed(error: float) -> str:
    return f"{100 * error:+.1f}%"


def stage_table(document: Document) -> Table:
    """Return the error of each stage in each arm, with its share of the step."""
    stages = list(dict.fromkeys(stage for arm in document.arms for stage in arm.stages))
    large = [stage for stage in stages if any(stage in arm.large_stages for arm in document.arms)]
    notes = [
        "Error of the stage's seconds in a step, and in brackets its share of the measured step. Shares of lanes that "
        "work at the same time add up to more than the step. A cell in brackets as a whole is below "
        f"{percent(SMALL, 0)} and counts in no bound."
    ]
    never = [
        f"{stage} (at most {percent(max(arm.share(stage) for arm in document.arms if stage in arm.stages))} of a step)"
        for stage in stages
        if stage not in large
    ]
    if never:
        notes.append(f"Always below: {', '.join(never)}.")
    rows = tuple((arm.arm, arm.tier, *(_stage_cell(arm, stage) for stage in large)) for arm in document.arms)
    title = "Stages: by how much each is off"
    return Table(title, ("arm", "tier", *large), rows, tuple(notes), words=2)


def _stage_cell(arm: ArmScore, stage: str) -> str:
    found = arm.stages.get(stage)
    if found is None or not found.measured:
        return NOTHING
    cell = f"{_signed(found.error)} ({percent(arm.share(stage), 0)})"
    return cell if stage in arm.large_stages else f"({cell})"


def idle_table(document: Document) -> Table:
    """Return the share of the time that each kind of lane waits, predicted and measured."""
    kinds = list(dict.fromkeys(kind for arm in document.arms for kind in arm.idle))
    rows = tuple((arm.arm, arm.tier, *(_idle_cell(arm.idle.get(kind)) for kind in kinds)) for arm in document.arms)
    notes = ("Predicted / measured, and the difference in percentage points.",)
    return Table("Idle: share of the time that a lane waits", ("arm", "tier", *kinds), rows, notes, words=2)


def _idle_cell(found: Compared | None) -> str:
    if found is None:
        return NOTHING
    points = 100 * (found.value - found.measured)
    return f"{percent(found.value)} / {percent(found.measured)} ({points:+.1f})"


def change_table(document: Document) -> Table:
    """Return each change of a recorded run: the ratio of step times that ``whatif`` says, and the measured one."""
    header = ("change", "settings", "predicted ratio", "measured ratio", "off by", "replay off by")
    notes = (
        "Ratios of step times, changed over unchanged. The measured interval is the 95% t-interval over the repeats, "
        "each changed run against the unchanged one of its experiment; the predicted one spans the recorded runs it "
        "was made from; an asterisk marks a prediction outside of the measured interval. Replay: how far the replay of "
        "those runs, as they were, is from their own step time, at most.",
    )
    title = "What-if: effects predicted from one recorded arm, and measured"
    return Table(title, header, tuple(map(_change_row, document.changes)), notes, words=2)


def _change_row(change: ChangeScore) -> tuple[str, ...]:
    outside = change.low is not None and change.high is not None and not change.low <= change.predicted <= change.high
    return (
        f"{change.start} -> {change.arm}",
        ", ".join(change.settings),
        _with_interval(change.predicted, change.predicted_low, change.predicted_high) + _mark(outside),
        _with_interval(change.measured, change.low, change.high),
        _signed(change.predicted / change.measured - 1),
        percent(change.replay_error),
    )
