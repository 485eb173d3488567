"""The picture: what each lane did before and after a change, one above the other on one scale of seconds."""

from __future__ import annotations

from pathlib import Path

from harness.compare.numbers import change, number
from harness.core.errors import UserError
from harness.report.style import label, picture_style, save
from harness.report.timeline import Excerpt, choose_steps, draw_excerpts, excerpt_of
from harness.simulate.whatif.effects import Answer, Outcome
from harness.simulate.whatif.table import changed_to


def draw_picture(answer: Answer, path: Path) -> Path:
    """Draw the picture of an answer into a PNG file; one of that name is replaced.

    Raises:
        UserError: it cannot be written.
    """
    shown = {"as it was (simulated)": _excerpt(answer.before)}
    step = f"a step takes {number(answer.before.step_s)} s"
    if not answer.change.is_none:
        shown[f"{changed_to(answer)} (simulated)"] = _excerpt(answer.after)
        step += f", then {number(answer.after.step_s)} s ({change(answer.ratio)})"
    heading = f"{label(answer.run.manifest.scenario)}, simulated: {step}"
    try:
        with picture_style():
            return save(draw_excerpts(shown, heading), path)
    except OSError as error:
        what = f"cannot write the picture {str(path)!r}: {error.strerror or error}"
        raise UserError(what, str(path), "name another file with -o FILE.png") from error


def _excerpt(outcome: Outcome) -> Excerpt:
    replayed = outcome.replayed
    return excerpt_of(replayed.spans, choose_steps(replayed.rows), replayed.changes)
