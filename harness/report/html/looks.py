"""Colours, hatches and markers of the page: CSS rules made from the table of colours that the pictures use too.

Every stage, wait, variant and verdict has a class; geometry stands in SVG attributes. So the page needs no ``style``
attribute, and its security policy can refuse all of them.
"""

from __future__ import annotations

from harness.core.trace import Stage
from harness.report.html.markup import Markup, element, join
from harness.report.style import STAGE_COLOURS

# Stages whose colour would vanish on a dark ground get a lighter one there.
_DARK_STAGES = {
    Stage.GENERATE: "#3C9BD6",
    Stage.WEIGHT_PUBLISH: "#2E8B6C",
    Stage.WEIGHT_TRANSFER: "#12B98C",
    Stage.UPDATE: "#E4702A",
    Stage.CHECKPOINT: "#9A9A9A",
    Stage.PREPARE_BATCH: "#D9B870",
    Stage.OLD_LOGPROBS: "#D8CE4A",
}
# Okabe and Ito's colours, darkened to a contrast of at least 3 with white; the second list is for a dark ground.
_VARIANTS = (
    "#0072B2", "#C94F00", "#00805E", "#A8457F", "#946800", "#5D5D5D", "#6B4FBB", "#7C4A21", "#1B7F9E", "#6D7A00",
)  # fmt: skip
_DARK_VARIANTS = (
    "#56B4E9", "#F58A45", "#2FCB9F", "#E59AC6", "#E6B03A", "#B8B8B8", "#B09CF2", "#CF9A6C", "#6CCBE6", "#C3CF4A",
)  # fmt: skip
_MARKERS = (
    "M0-4A4 4 0 1 0 0 4A4 4 0 1 0 0-4Z",  # circle
    "M-3.5-3.5H3.5V3.5H-3.5Z",  # square
    "M0-4.8L4.8 0L0 4.8L-4.8 0Z",  # diamond
    "M0-4.6L4.4 3.4H-4.4Z",  # triangle
    "M0 4.6L4.4-3.4H-4.4Z",  # triangle on its tip
    "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",  # plus
    "M0-4.8L4.6-1.5L2.8 3.9H-2.8L-4.6-1.5Z",  # pentagon
    "M0-5L1.5-1.6L5-1.2L2.3 1.2L3.1 4.8L0 2.9L-3.1 4.8L-2.3 1.2L-5-1.2L-1.5-1.6Z",  # star
)


def stage_class(stage: Stage) -> str:
    """Return the class of a stage's bars; all waits share one."""
    return "wait" if stage.is_wait else f"st-{stage.value}"


def variant_class(index: int) -> str:
    """Return the class of a variant's lines; the colours begin again after the tenth."""
    return f"v{index % len(_VARIANTS)}"


def marker_id(index: int) -> str:
    """Return the id of a variant's marker."""
    return f"m{index % len(_MARKERS)}"


def colour_rules() -> str:
    """Return the CSS variables and classes of stages and variants, for a light and a dark ground."""
    light = "".join(f"--st-{stage.value}:{colour};" for stage, colour in STAGE_COLOURS.items())
    light += "".join(f"--v{index}:{colour};" for index, colour in enumerate(_VARIANTS))
    dark = "".join(f"--st-{stage.value}:{colour};" for stage, colour in _DARK_STAGES.items())
    dark += "".join(f"--v{index}:{colour};" for index, colour in enumerate(_DARK_VARIANTS))
    rules = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    rules += "".join(f".st-{stage.value}{{fill:var(--st-{stage.value})}}" for stage in STAGE_COLOURS)
    rules += "".join(f".v{index}{{--c:var(--v{index})}}" for index in range(len(_VARIANTS)))
    return rules + f".st-{Stage.WEIGHT_VERIFY.value}{{fill:url(#hatch-verify)}}"


def definitions() -> Markup:
    """Return the invisible drawing that holds markers and hatches for the whole page."""
    markers = [element("path", id=f"m{index}", d=path) for index, path in enumerate(_MARKERS)]
    version = element("path", id="version-mark", d="M-4-4H4L0 3Z")
    wait = _hatch("hatch-wait", "wait-ground", "wait-line", "M-1 7L7-1M-1 1L1-1M5 7L7 5")
    verify = _hatch("hatch-verify", "verify-ground", "verify-line", "M0 0L6 6M6 0L0 6")
    return element(
        "svg",
        element("defs", markers, version, wait, verify),
        width=0,
        height=0,
        class_="definitions",
        aria_hidden="true",
    )


def _hatch(name: str, ground: str, line: str, path: str) -> Markup:
    inside = join(element("rect", width=6, height=6, class_=ground), element("path", d=path, class_=line))
    return element("pattern", inside, id=name, width=6, height=6, patternUnits="userSpaceOnUse")
