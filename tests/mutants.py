"""Would a test notice? Changes to the harness that are drawn, not chosen, and what the default tests say to each.

    python -m tests.mutants draw --count 60 --seed 0          # the list: room, place, operator, before and after
    python -m tests.mutants run --count 60 --seed 0 --out mutants.jsonl     # goes on where it was stopped

Rooms get mutants in proportion to their lines of code; in a room a line is drawn, and on it one of the ten operators
that apply. A mutant is killed by the first test that fails: tests of files that name its module come first, then those
of its room, then those of files that name its room. It survives if none of them fails; whether it changes anything
anybody could see is then read by a person, and noted in the list as equivalent with the reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("__init__.py", "__main__.py")
LIMIT_S = 1500.0
"""Of one run of pytest; a mutant that hangs is killed by it."""
_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_SIGNS = {ast.Add: "-", ast.Sub: "+"}
_FACTORS = {ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "sorted": "list"}


@dataclass(frozen=True)
class Mutant:
    """One change: the text of ``line`` (from 1) of ``file`` before and after."""

    number: int
    room: str
    file: str
    line: int
    operator: str
    before: str
    after: str


class _Changes(ast.NodeVisitor):
    """Every change that fits on one line: (line, operator, first column, last column, text)."""

    def __init__(self, text: str) -> None:
        self.lines, self.found = text.splitlines(), list[tuple[int, str, int, int, str]]()

    def _add(self, operator: str, first: ast.AST, last: ast.AST, text: str, *, between: bool = False) -> None:
        """Replace from the start of ``first`` to the end of ``last``; or what lies between the two."""
        start, end = _span(first), _span(last)
        if start[0] == end[2]:
            columns = (start[3], end[1]) if between else (start[1], end[3])
            self.found.append((start[0], operator, *columns, text))

    def _source(self, node: ast.AST) -> str:
        line, first, _, last = _span(node)
        return self.lines[line - 1].encode()[first:last].decode()

    def visit_Compare(self, node: ast.Compare) -> None:
        self._add("comparison", node.left, node.comparators[0], f" {_COMPARISONS[type(node.ops[0])]} ", between=True)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        for operator, table in (("sign", _SIGNS), ("factor", _FACTORS)):
            if type(node.op) in table and not isinstance(node.left, ast.Constant | ast.JoinedStr):
                self._add(operator, node.left, node.right, f" {table[type(node.op)]} ", between=True)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        self._add("connective", node.values[0], node.values[1], other, between=True)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, node, str(not node.value))
        elif isinstance(node.value, int):
            self._add("bound", node, node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._add("constant", node, node, repr(node.value * 2 or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        plain = [each for each in node.args if not isinstance(each, ast.Starred)]
        if len(plain) == len(node.args) >= 2:
            one, two = node.args[:2]
            if _span(one)[0] == _span(two)[2]:
                self._add("swapped arguments", one, two, f"{self._source(two)}, {self._source(one)}")
        if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            self._add("function", node.func, node.func, _NAMES[node.func.id])
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._add("condition", node.test, node.test, f"not ({self._source(node.test)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add("condition", node.test, node.test, f"not ({self._source(node.test)})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._add("removed statement", node, node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("removed statement", node, node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add("result", node.value, node.value, "None")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:  # not what stands in the annotation
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in (*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(each)

    visit_AsyncFunctionDef = visit_FunctionDef


def _span(node: ast.AST) -> tuple[int, int, int, int]:
    """First line and column, last line and column, in bytes."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def draw(count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants of today's harness; equal for equal code and seed."""
    places: dict[str, list[tuple[Path, int, list[tuple[str, str]]]]] = {}
    for path in sorted((ROOT / "harness").rglob("*.py")):
        if path.name not in SKIPPED:
            room = path.relative_to(ROOT / "harness").parts[0].removesuffix(".py")
            places.setdefault(room, []).extend(_places(path))
    rng, drawn = random.Random(seed), list[Mutant]()
    rooms, sizes = list(places), [len(lines) for lines in places.values()]
    while len(drawn) < count:
        (room,) = rng.choices(rooms, sizes)
        path, line, changes = rng.choice(places[room])
        if not changes or any((each.file, each.line) == (str(path.relative_to(ROOT)), line) for each in drawn):
            continue
        operator = rng.choice(sorted({name for name, _ in changes}))
        after = rng.choice([text for name, text in changes if name == operator])
        before = path.read_text(encoding="utf-8").splitlines()[line - 1]
        drawn.append(Mutant(len(drawn), room, str(path.relative_to(ROOT)), line, operator, before, after))
    return drawn


def _places(path: Path) -> Iterator[tuple[Path, int, list[tuple[str, str]]]]:
    """Each line of code of a file, with the changes that it allows."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    changes = _Changes(text)
    changes.visit(tree)
    code = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and not _is_text(node)}
    for line in sorted(code | {each[0] for each in changes.found}):
        before = text.splitlines()[line - 1].encode()
        made = [
            (name, (before[:a] + new.encode() + before[b:]).decode())
            for at, name, a, b, new in changes.found
            if at == line
        ]
        yield path, line, [(name, after) for name, after in made if after != before.decode()]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def tests_of(mutant: Mutant) -> list[list[str]]:
    """Return the files of tests to run, in rounds: that name the module, of its room, that name its room."""
    module = mutant.file.removesuffix(".py").replace("/", ".")
    package, name = module.rsplit(".", 1)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    naming = [
        path for path, text in texts.items() if module in text or (f"from {package} import" in text and name in text)
    ]
    room = [path for path in texts if path.relative_to(ROOT / "tests").parts[0] == mutant.room]
    others = [path for path, text in texts.items() if f"harness.{mutant.room}" in text]
    rounds, seen = [], set[Path]()
    for files in (naming, room, others):
        rounds.append([str(path.relative_to(ROOT)) for path in files if path not in seen])
        seen.update(files)
    return [files for files in rounds if files]


def judge(mutant: Mutant, tree: Path) -> tuple[str, str]:
    """Return ``killed`` with the test, or ``survived`` with how many files were run, in a checkout that is restored."""
    path = tree / mutant.file
    sound = path.read_text(encoding="utf-8")
    lines = sound.splitlines(keepends=True)
    same = [index for index, line in enumerate(lines) if line == mutant.before + "\n"]
    if not same:
        return "gone", "the line is no more"
    lines[min(same, key=lambda index: abs(index + 1 - mutant.line))] = mutant.after + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    typed = [sys.executable, "-m", "pytest", "-x", "-q", "--benchmark-skip", "-m", "not slow", "-p", "no:cacheprovider"]
    count = 0
    try:
        for files in tests_of(mutant):
            count += len(files)
            try:
                done = subprocess.run(
                    [*typed, *files],
                    cwd=tree,
                    env=environment,
                    timeout=LIMIT_S,
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "killed", f"no end within {LIMIT_S:g} s"
            if done.returncode not in (0, 5):  # 5: nothing collected
                said = [text for text in done.stdout.splitlines() if text.startswith(("FAILED", "ERROR"))]
                return "killed", (said or done.stderr.splitlines()[-1:] or ["?"])[0][:160]
        return "survived", f"{count} files of tests"
    finally:
        path.write_text(sound, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out one command line."""
    parser = argparse.ArgumentParser(
        "python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["draw", "run"])
    parser.add_argument("--count", type=int, default=60, help="mutants (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--list", type=Path, metavar="JSONL", help="judge these, made by draw or run, and draw none")
    parser.add_argument(
        "--out", type=Path, default=Path("mutants.jsonl"), help="with the results (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.list is None:
        mutants = draw(options.count, options.seed)
    else:
        rows = [json.loads(line) for line in options.list.read_text(encoding="utf-8").splitlines()]
        mutants = [Mutant(**{key: row[key] for key in Mutant.__dataclass_fields__}) for row in rows]
    if options.command == "draw":
        print("\n".join(json.dumps(asdict(each)) for each in mutants))
        return
    done = (
        {json.loads(line)["number"] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    )
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(tree)], check=True)
        began, todo = time.monotonic(), [each for each in mutants if each.number not in done]
        for place, mutant in enumerate(todo, 1):
            result, by = judge(mutant, tree)
            with options.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({**asdict(mutant), "result": result, "by": by}) + "\n")
            left = (time.monotonic() - began) / place * (len(todo) - place)
            what = f"{mutant.file}:{mutant.line} {mutant.operator}: {result} ({by})"
            print(f"{place} of {len(todo)}, {what}; about {left / 60:.0f} min left", flush=True)


if __name__ == "__main__":
    main()
