"""An examination as tables, as a page and as a picture: functions of the saved document alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UserError
from harness.report.canvas import Look, arm_looks, label, picture_style, save
from harness.report.document import Table
from harness.report.markdown import markdown_table
from tests.holdout.summary import (
    BASELINES,
    SMALL,
    ArmScore,
    ChangeScore,
    Compared,
    Document,
    TierScore,
    lag_distance,
    mean_lag,
)
from tests.holdout.verdicts import falls_short, outside_by, percent, ranking_verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGIN, END = "<!-- begin: made by make holdout -->", "<!-- end -->"
"""Between these two lines of a page stands what ``in_page`` puts there."""
NOTHING = "-"
BANDS = (15, 10, 5)
ROW_INCHES = 0.32
Looks = dict[str, Look]


def tables(document: Document) -> list[Table]:
    """Return every table, the tiers first."""
    found = [tier_table(document), arm_table(document), stage_table(document), idle_table(document)]
    found += [change_table(document)] if document.changes else []
    found += [choice_table(document)] if document.choices else []
    return found


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
        "\n".join(f"- {note}" for note in document.notes),
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
    shown = [tier_table(document), *([change_table(document)] if document.changes else [])]
    parts = [*map(markdown_table, shown), verdict(document), ranking_verdict(document)]
    return f"{head}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{tail}"


def verdict(document: Document) -> str:
    """Return in a line whether every bound holds."""
    missed = falls_short(document)
    return f"**What falls short of its bound: {'; '.join(missed)}.**" if missed else "**Every bound holds.**"


def tier_table(document: Document) -> Table:
    """Return a row for each tier: its errors, against their bounds and against the baselines."""
    header = ("tier", "arms", "step time off by", "bound", "noise floor", "worst stage", "step in 90%", "stages in 90%")
    low, high = document.coverage_bounds
    notes = (
        "Off by: the median over the arms of |predicted / measured - 1|. Worst stage: the same for the stage in which "
        f"it is largest, among those that make up {percent(SMALL, 0)} of the step; its bound is "
        f"{percent(document.stage_bound, 0)}. Noise floor: what a perfect predictor would show, from the repeats. In "
        f"90%: measured values inside the interval predicted for them, {percent(low, 0)} to {percent(high, 0)} wanted. "
        "An asterisk marks what misses its bound, and a baseline that is nearer to the truth than the simulator.",
        *(f"{name}: {what}." for name, what in BASELINES.items()),
    )
    title = "Tiers: the simulator against its bounds and its baselines"
    rows = tuple(_tier_row(document, tier) for tier in document.tiers)
    return Table(title, (*header, *BASELINES), rows, notes, words=2)


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
        *(percent(tier.baselines.get(name)) + _mark(name in tier.winners) for name in BASELINES),
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


def choice_table(document: Document) -> Table:
    """Return what it costs to follow the simulator."""
    header = ("question", "its pick", "the best", "regret", "wrong pairs", "mean cost", "worst cost")
    rows = tuple(
        (
            choice.question,
            choice.picked,
            choice.best,
            percent(choice.regret),
            f"{choice.wrong} of {choice.pairs}",
            percent(choice.mean_cost, 2),
            percent(choice.worst_cost),
        )
        for choice in document.choices
    )
    notes = (
        f"Among the {len(document.choices[0].arms)} arms of one model. Regret: measured value of the pick over that of "
        "the best, minus 1. Wrong pairs: of all pairs of arms, those in which the one with the better prediction is "
        "the worse one; the costs are the regret of a pair, 0 where it is right.",
    )
    return Table("Choices: what it costs to follow the simulator", header, rows, notes, words=3)


def save_picture(document: Document, path: Path) -> Path:
    """Draw each arm's predicted step time against the measured one, and what stages are off by, into a PNG file."""
    from matplotlib.figure import Figure

    with picture_style():
        figure = Figure(figsize=(14, 2.4 + ROW_INCHES * len(document.arms)), layout="constrained")
        steps, stages = figure.subplots(1, 2, width_ratios=(1.25, 1))
        looks = arm_looks([tier.name for tier in document.tiers])
        _draw_steps(steps, document, looks)
        _draw_stages(stages, document, looks)
        return save(figure, path)


def _draw_steps(axes: Axes, document: Document, looks: Looks) -> None:
    """Draw a row for each arm: its prediction with the interval, and its repeats, against their mean."""
    for shade, band in enumerate(BANDS):
        axes.axvspan(-band, band, color=str(0.95 - 0.045 * shade), linewidth=0, zorder=1)
    axes.axvline(0, color="black", linewidth=0.8, zorder=2)
    names = {
        tier.name: f"{label(tier.name)}: off by {percent(tier.error)} in the median (bound {percent(tier.bound, 0)})"
        for tier in document.tiers
    }
    for row, arm in enumerate(document.arms):
        look = looks[arm.tier]
        low, value, high = (_off(arm, seconds) for seconds in (arm.step.low, arm.step.value, arm.step.high))
        axes.plot([low, high], [row, row], color=look["color"], linewidth=2, zorder=3)
        name = names.pop(arm.tier, None)  # once in the legend
        axes.plot([value], [row], **look, markersize=7, label=name, linestyle="none", zorder=5)
    repeats = [(_off(arm, value), row) for row, arm in enumerate(document.arms) for value in arm.step.repeats]
    axes.plot(*zip(*repeats, strict=True), "|", color="black", markersize=9, label="measured repeats", zorder=4)
    labels = [f"{label(arm.arm)}: {arm.step.value:.3f} s for {arm.step.measured:.3f} s" for arm in document.arms]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("step time against the mean of its repeats, %; grey: within 5, 10 and 15%")
    axes.set_title("Held-out runs: predicted step time, with 90% interval")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.09), ncols=2, fontsize=9)


def _off(arm: ArmScore, seconds: float) -> float:
    return 100 * (seconds / arm.step.measured - 1)


def _draw_stages(axes: Axes, document: Document, looks: Looks) -> None:
    stages = list(dict.fromkeys(stage for arm in document.arms for stage in arm.large_stages))
    bound = 100 * document.stage_bound
    axes.axvspan(-bound, bound, color="0.9", linewidth=0, zorder=1)
    axes.axvline(0, color="black", linewidth=0.8, zorder=2)
    tiers = [tier.name for tier in document.tiers]
    for arm in document.arms:
        look = looks[arm.tier]
        shift = 0.6 * ((tiers.index(arm.tier) + 0.5) / len(tiers) - 0.5)
        for stage in arm.large_stages:
            error, row = 100 * arm.stages[stage].error, stages.index(stage) + shift
            axes.plot(error, row, **look, markersize=6, alpha=0.8, zorder=3)
    axes.set_yticks(range(len(stages)), stages)
    axes.set_ylim(len(stages) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"predicted against measured, %; grey: within {percent(document.stage_bound, 0)}")
    axes.set_title("Stages of 5% of a step or more, by arm")
