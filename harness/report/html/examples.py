"""Rollouts before and after training. Their text is generated, so it is shown and never obeyed."""

from __future__ import annotations

from harness.report.html.markup import Markup, element, join, lines
from harness.report.html.material import Material
from harness.report.html.parts import details, note, section
from harness.results import RolloutRow

LONGEST_TEXT = 2000  # characters


def examples_section(material: Material, anchor: str) -> Markup | None:
    """Return the section, the first variant's pairs in view and the others' to open; None where none were kept."""
    shown = list[Markup]()
    known = {name: pairs for name, pairs in material.examples.items() if pairs}
    for name, pairs in known.items():
        exchanges = [_exchange(before, after) for before, after in pairs]
        title = f"{name}: {len(pairs)} prompts before and after"
        shown.append(details(title, *exchanges) if shown else join(exchanges))
    if not shown:
        return None
    first = next(iter(known))
    said = note(f"Validation prompts whose reward changed come first; those of {first} are in view. Text as generated.")
    return section(anchor, "Example rollouts", said, *shown)


def _exchange(before: RolloutRow, after: RolloutRow) -> Markup:
    parts = [element("p", "Prompt"), element("pre", lines(before.prompt, LONGEST_TEXT))]
    for when, item in (("Before", before), ("After", after)):
        facts = f"{when}: version {item.version}, reward {item.reward:g}, {item.num_tokens} tokens"
        parts += [element("p", facts), element("pre", lines(item.response, LONGEST_TEXT))]
    return element("div", parts, class_="exchange")
