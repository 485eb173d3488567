"""What is examined, and how wrong a prediction may be: a dated file, written before anything was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from harness.core.errors import UserError
from harness.scenario.problems import Problem, as_user_error, dotted, shown
from harness.scenario.sections import Fraction, FromList, NonEmptyText, Section
from harness.scenario.yaml_files import NamedFiles, display, parse_yaml, read_text

PLANS = NamedFiles("plan", "profiles", "fit: calibration")
Names = Annotated[tuple[NonEmptyText, ...], FromList, Field(min_length=1)]


class TierPlan(Section):
    """Arms that are hard to predict for the same reason.

    Attributes:
        what: that reason.
        arms: of the held-out scenario.
        bound: on the median over the arms of the absolute error of step time.
        without: by arm, the model preset whose runs the fit may not see.
    """

    what: NonEmptyText
    arms: Names
    bound: Fraction
    without: dict[str, NonEmptyText] = Field(default_factory=dict)


class Bounds(Section):
    """Bounds that hold for every tier, and for the ranking of all arms."""

    stage: Fraction
    coverage: Annotated[tuple[Fraction, Fraction], FromList]
    kendall_tau: Fraction


class ChangePlan(Section):
    """Which recorded arm is changed, and into which measured arms by which settings."""

    start: Annotated[NonEmptyText, Field(alias="from")]
    changes: dict[str, Names]


class Plan(Section):
    """The examination.

    Attributes:
        chosen: the date.
        fit: scenario whose runs are fitted.
        held_out: scenario whose runs are predicted.
        transport_costs: scenario whose weight syncs, without any training, tell the costs of transports that no fitted
            run has; None where there is none.
        tiers: by name.
        whatif: changes of a recorded run whose effect was measured; None where none was.
    """

    chosen: NonEmptyText
    fit: NonEmptyText
    held_out: NonEmptyText
    transport_costs: NonEmptyText | None = None
    tiers: Annotated[dict[str, TierPlan], Field(min_length=1)]
    bounds: Bounds
    whatif: ChangePlan | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm once, in the order of the tiers."""
        return tuple(dict.fromkeys(arm for tier in self.tiers.values() for arm in tier.arms))


def load_plan(path_or_name: str | Path) -> Plan:
    """Load a plan and check it.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    path = PLANS.find(path_or_name)
    subject = display(path)
    try:
        plan = Plan.model_validate(parse_yaml(read_text(path), subject))
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [
            Problem(f"`{dotted(item['loc'])}` is {shown(item['input'])}: {item['msg']}", "see profiles/holdout.yaml")
            for item in details
        ]
        raise as_user_error(problems, subject) from None
    _check(plan, subject)
    return plan


def _check(plan: Plan, subject: str) -> None:
    """Refuse a plan that fits what it predicts, names an arm that it does not examine, or has nothing to rank."""
    if plan.fit == plan.held_out:
        what = f"`fit` and `held_out` are both {plan.fit!r}: a run that was fitted proves nothing"
        raise UserError(what, subject, "hold out another scenario")
    for name, tier in plan.tiers.items():
        strangers = [arm for arm in tier.without if arm not in tier.arms]
        if strangers:
            what = f"`tiers.{name}.without` names {strangers[0]!r}, which is no arm of that tier"
            raise UserError(what, subject, f"name one of {', '.join(tier.arms)}")
    if len(plan.arms) < 2:
        what = f"the tiers have one arm, {plan.arms[0]!r}, and arms are ranked against each other"
        raise UserError(what, subject, "add another arm")
    changed = (plan.whatif.start, *plan.whatif.changes) if plan.whatif else ()
    for arm in changed:
        if arm not in plan.arms:
            what = f"`whatif` names {arm!r}, which is an arm of no tier"
            raise UserError(what, subject, f"name one of {', '.join(plan.arms)}")
