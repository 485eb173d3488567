"""README and docs as tests read them: their pages, the commands that they show, their links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "results" / "README.md",
    ROOT / "profiles" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
OURS = ("make ", "python -m harness", "python3 -m harness", "grpo-harness ", "$ ", "pytest --benchmark")
ARRAY = re.compile(r"^ *([A-Z]+)=\((.*?)\)$", flags=re.DOTALL | re.MULTILINE)
"""Words that several command lines share, as bash writes them."""
_ENDS = frozenset(("&&", "||", ";", "|", "&"))


@dataclass(frozen=True)
class Shown:
    """A command that a page shows.

    Attributes:
        page: from the repository's root.
        line: in the page, counted from 1.
        words: as a shell splits it, without variables in front and redirections behind.
        whole: whether it stands in a block to be typed; else in a sentence, where it may be a part of one.
    """

    page: str
    line: int
    words: tuple[str, ...]
    whole: bool

    @property
    def harness(self) -> tuple[str, ...] | None:
        """The arguments, where it is one of the harness's own commands; else None."""
        words = self.words
        if words[:1] == ("grpo-harness",):
            return words[1:]
        if words[:3] in (("python", "-m", "harness"), ("python", "-m", "harness.compare")):
            return (*("compare",) * words[2].endswith(".compare"), *words[3:])
        return None

    def __str__(self) -> str:
        """Return its place and what is typed."""
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def shown_commands() -> list[Shown]:
    """Return every command of every page but the changelog, which has those of older versions, in their order."""
    return [command for page in PAGES if page.name != "CHANGELOG.md" for command in _commands(page)]


def _commands(page: Path) -> Iterator[Shown]:
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start(3)) + 1
        if block[2] in ("bash", "sh", "console", "text", ""):
            yield from _typed(name, block[3], first, every_line=block[2] in ("bash", "sh"))
    rest = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    yield from _typed(
        name, "\n".join(line[4:] if line.startswith("    ") else "" for line in rest.split("\n")), 1, False
    )
    for span in SPAN.finditer(rest):
        words = " ".join(span[1].split())
        if words.startswith(OURS) and not rest[rest.rfind("\n", 0, span.start()) + 1 :].startswith("    "):
            for each in _split(words):
                yield Shown(name, rest.count("\n", 0, span.start()) + 1, each, False)


def _typed(name: str, text: str, first: int, every_line: bool) -> Iterator[Shown]:
    for array in ARRAY.finditer(text):
        text = text.replace(array[0], "\n" * array[0].count("\n")).replace(
            f'"${{{array[1]}[@]}}"', " ".join(array[2].split())
        )
    lines, here = text.split("\n"), ""
    for number, line in enumerate(lines, start=first):
        here += line.strip()
        if here.endswith("\\") or here.count("'") % 2:
            here = here.removesuffix("\\") + " "
            continue
        if every_line or here.startswith(OURS):
            for each in _split(here.removeprefix("$ ")):
                yield Shown(name, number, each, True)
        here = ""


def _split(typed: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a line: without comment, redirections and variables, each program by its usual name."""
    lexer = shlex.shlex(typed, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    words = list(lexer)
    comment = next((number for number, word in enumerate(words) if word.startswith("#")), len(words))
    for word in [*words[:comment], ";"]:
        if word not in _ENDS:
            found.append(word)
            continue
        redirected = next((number for number, each in enumerate(found) if set(each) <= {"<", ">"}), len(found))
        found = found[:redirected]
        while found and re.fullmatch(r"[A-Z_]+=.*|do", found[0]):
            found.pop(0)
        if found:
            yield (re.sub(r"^(\.venv/bin/)?python3?$", "python", found[0]), *found[1:])
        found = []


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield every link of a page to a file or heading, as its path and its anchor; either may be empty."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(SPAN.sub(lambda span: "x" * len(span[0]), text)):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the repository's viewer and the site make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "]", heading).lower()).replace(" ", "-")
        taken = sum(1 for each in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each))
        found.add(f"{slug}-{taken}" if taken else slug)
    return found


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of one language of a page of docs."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [block[3] for block in FENCE.finditer(text) if block[2] == language]
