"""Stored baselines: a name for an arm, and the occasions on which it was measured.

An *occasion* is one experiment. What a machine does between two evenings is in none of the blocks of either, so a
baseline says how far occasions of the same thing lie apart, and grows by one whenever it is recorded again.

``baselines.json`` lies beside the experiments: by name the ``arm``, and of each occasion the experiment's folder
(``occasions``, oldest first; ``campaign`` is the newest, all that older versions know).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from math import exp, inf, log, log1p, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from harness.compare.block_values import log_step_seconds
from harness.compare.comparability import why_not_comparable
from harness.compare.completeness import gap_sentence, gaps
from harness.compare.experiments import Experiment, Variant, gather, is_called
from harness.compare.numbers import number, plural
from harness.compare.stats.intervals import t_quantile
from harness.compare.tables import Table
from harness.compare.verdicts import Baseline, variant_named
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results import DamagedRun
from harness.results.jsonl import read_json

FILE = "baselines.json"
SCHEMA, SCHEMA_VERSION = "harness.baselines", 1
CHANGES = (0.05, 0.10, 0.15)
"""Changes of which a list says how many occasions show them."""
MOST_OCCASIONS = 99
CLOSE_S = 3600
"""Occasions within so many seconds say little of what another day brings."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the file says of a baseline: its arm, and the folder of each occasion's experiment, oldest first."""

    arm: str
    occasions: tuple[str, ...]


def read_baselines(results: Path) -> dict[str, Entry]:
    """Return the baselines stored beside the results by name; none where there is no file.

    Raises:
        UserError: the file is damaged or of an unknown version.
    """
    path = results / FILE
    if not path.exists():
        return {}
    data = read_json(path, dict[str, Any])
    saved = data.get("baselines") if data.get("schema_version") == SCHEMA_VERSION else None
    entries = {name: _entry(entry) for name, entry in saved.items()} if isinstance(saved, dict) else None
    known = {name: entry for name, entry in (entries or {}).items() if entry is not None}
    if entries is None or len(known) < len(entries):
        raise UserError(f"{str(path)!r} is no list of baselines of version {SCHEMA_VERSION}", str(path), "remove it")
    return known


def _entry(saved: object) -> Entry | None:
    """Read one entry; None where it is none. One with an experiment and no occasions was its only one."""
    if not isinstance(saved, dict) or not all(isinstance(saved.get(key), str) for key in ("campaign", "arm")):
        return None
    occasions = saved.get("occasions", [saved["campaign"]])
    if not isinstance(occasions, list) or not occasions or not all(isinstance(item, str) for item in occasions):
        return None
    return Entry(saved["arm"], tuple(occasions))


def _write(results: Path, entries: dict[str, Entry]) -> None:
    saved = {
        name: {"campaign": entry.occasions[-1], "arm": entry.arm, "occasions": list(entry.occasions)}
        for name, entry in sorted(entries.items())
    }
    data = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "baselines": saved}
    try:
        with whole_file(results / FILE) as stream:
            stream.write((json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        problem = f"cannot write {str(results / FILE)!r}: {error.strerror or error}"
        raise UserError(problem, str(results / FILE)) from error


def load_baseline(results: Path, name: str) -> Baseline:
    """Read the runs of every occasion of a stored baseline.

    Raises:
        UserError: there is no such name; or an occasion is gone, lacks the arm, or is not whole.
    """
    entry = read_baselines(results).get(name)
    if entry is None:
        raise unknown_baseline(results, name)
    occasions = [whole_occasion(results / place, entry.arm) for place in entry.occasions]
    occasions.sort(key=lambda occasion: occasion.started_at)
    newest = occasions[-1]
    return Baseline(newest, variant_named(newest, entry.arm), tuple(occasions[:-1]))


def unknown_baseline(results: Path, name: str, arms: Collection[str] = ()) -> UserError:
    """Return the error of a name that is no stored baseline's and none of the ``arms``, with the names there are."""
    known = ", ".join(sorted(read_baselines(results))) or "none yet"
    arm = f"an arm of the newest experiment ({', '.join(arms)}), or " if arms else ""
    fix = f"name {arm}one of the baselines of {results / FILE} ({known})"
    return UserError(f"there is no baseline and no arm called {name!r}", "--baseline", fix)


def whole_occasion(folder: Path, arm: str) -> Experiment:
    """Read an experiment that is an occasion of a baseline.

    Raises:
        UserError: it is not one experiment; or runs of the arm are damaged, missing, or did not get to their end.
    """
    try:
        experiments, damaged = gather([folder])
    except UserError as error:
        fix = "python -m harness baseline remove takes the baseline away; then record it anew"
        raise UserError(f"the occasion {str(folder)!r} cannot be read: {error.what}", error.where, fix) from error
    if len(experiments) > 1:
        raise UserError(f"{str(folder)!r} holds {len(experiments)} experiments", str(folder), "name one of them")
    for name in dict.fromkeys([arm, *(variant.name for variant in experiments[0].variants)]):
        check_whole(experiments[0], name, damaged)
    return experiments[0]


def check_whole(experiment: Experiment, arm: str, damaged: Sequence[DamagedRun]) -> None:
    """Refuse an occasion of which runs of the arm are damaged, missing, or did not get to their end.

    Raises:
        UserError: naming them; or the experiment has no such arm.
    """
    variant, where = variant_named(experiment, arm), str(experiment.folder)
    found = [gap for gap in gaps(experiment, damaged).runs if is_called(gap.variant.replace(",", ", "), arm)]
    if found:
        raise UserError(f"{where!r} is no whole occasion: {gap_sentence(found)}", where, "measure it again")
    unfinished = [run.folder.name for run in variant.runs if not run.is_completed]
    if unfinished:
        what = f"{where!r} is no whole occasion: {plural(len(unfinished), 'run')} of {arm} did not finish"
        raise UserError(f"{what} ({', '.join(unfinished[:5])})", where, "measure it again")


def add_occasion(
    results: Path, name: str, experiment: Experiment, arm: str | None = None, damaged: Sequence[DamagedRun] = ()
) -> int:
    """Add an experiment's arm to a stored baseline, or begin one.

    Args:
        results: the results folder that holds the experiment.
        name: of the baseline.
        experiment: in that folder.
        arm: None takes the baseline's, and its first one for a new baseline.
        damaged: runs that could not be read.

    Returns:
        how many occasions the baseline has now.

    Raises:
        UserError: the experiment lies elsewhere, has no such arm, is not whole, is an occasion of it already, or is
            unlike the others in settings, machine or versions; or the file cannot be read or written.
    """
    entries = read_baselines(results)
    entry = entries.get(name)
    variant = variant_named(experiment, arm if arm is not None or entry is None else entry.arm)
    place = _place_in(results, experiment.folder)
    check_whole(experiment, variant.name, damaged)
    if entry is not None:
        if not is_called(entry.arm, variant.name):
            what = f"the baseline {name!r} is of the arm {entry.arm!r}, and not of {variant.name!r}"
            raise UserError(what, "--arm", f"give it another name, or python -m harness baseline remove {name}")
        if place in entry.occasions:
            raise UserError(f"{place} is an occasion of the baseline {name!r} already", "baseline", "run it anew")
        _check_alike(load_baseline(results, name), name, experiment, variant)
    occasions = (*(entry.occasions if entry else ()), place)
    _write(results, entries | {name: Entry(variant.name, occasions)})
    return len(occasions)


def _place_in(results: Path, folder: Path) -> str:
    try:
        return folder.resolve().relative_to(results.resolve()).as_posix()
    except ValueError:
        what = f"the experiment {str(folder)!r} is not in {str(results)!r}"
        raise UserError(what, "--out", "name the results folder that holds it") from None


def _check_alike(stored: Baseline, name: str, experiment: Experiment, variant: Variant) -> None:
    """Refuse an occasion that is unlike those there are: their spread would say nothing of the machine's."""
    reasons = []
    if experiment.scenario != stored.experiment.scenario:
        reasons.append(f"they are runs of the scenarios {stored.experiment.scenario} and {experiment.scenario}")
    reasons += why_not_comparable(stored.runs_of(variant.name), variant.runs, (), one_command=False)
    if reasons:
        what = f"{experiment.scenario}/{experiment.name} is no occasion of the baseline {name!r}: {'; '.join(reasons)}"
        raise UserError(what, "baseline", f"give it another name, or python -m harness baseline remove {name}")


def remove_baseline(results: Path, name: str) -> int:
    """Forget a baseline; its experiments stay. Return how many occasions it had.

    Raises:
        UserError: there is none of that name.
    """
    entries = read_baselines(results)
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none yet"
        raise UserError(f"there is no baseline called {name!r}", str(results / FILE), f"there are: {known}")
    gone = entries.pop(name)
    _write(results, entries)
    return len(gone.occasions)


@dataclass(frozen=True, slots=True)
class Occasions:
    """What the occasions of a baseline say.

    Attributes:
        started_at: of each, oldest first.
        seconds_per_step: of each, the geometric mean over its blocks of the mean seconds of a measured step.
        commits: of the code that they ran, each once.
    """

    started_at: tuple[str, ...]
    seconds_per_step: tuple[float, ...]
    commits: tuple[str, ...]

    @property
    def mean_s(self) -> float:
        """Geometric mean of the occasions' seconds per step."""
        return exp(fmean(map(log, self.seconds_per_step)))

    @property
    def spread(self) -> float | None:
        """Standard deviation between occasions in log units, about the relative one; None for a single occasion."""
        return stdev(map(log, self.seconds_per_step)) if len(self.seconds_per_step) > 1 else None

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first to the start of the last."""
        first, last = datetime.fromisoformat(self.started_at[0]), datetime.fromisoformat(self.started_at[-1])
        return (last - first).total_seconds()


def occasions_of(baseline: Baseline) -> Occasions:
    """Return what the occasions of a baseline say.

    Raises:
        UserError: an occasion has no measured step.
    """
    seconds = [_seconds_per_step(variant) for variant in baseline.variants_of(baseline.variant.name)]
    runs = baseline.runs_of(baseline.variant.name)
    return Occasions(
        tuple(occasion.started_at for occasion in baseline.occasions),
        tuple(seconds),
        tuple(dict.fromkeys(run.manifest.commit or "unknown" for run in runs)),
    )


def _seconds_per_step(variant: Variant) -> float:
    logs = log_step_seconds(variant)
    if not logs:
        raise UserError(f"no step of {variant.name} was measured", fix="run more steps than the first two")
    return exp(fmean(logs))


def occasions_needed(change: float, spread: float) -> float:
    """Return how many recorded occasions let a change leave the interval of one new occasion; infinite where none do.

    The interval of log(new / baseline) reaches t_{K-1}(.975) * sd * sqrt(1 + 1 / K) to either side, for K occasions
    recorded and a standard deviation sd between occasions.

    Args:
        change: relative, such as 0.15.
        spread: sd, in log units, such as 0.02.
    """
    for occasions in range(2, MOST_OCCASIONS + 1):
        if t_quantile(0.975, occasions - 1) * spread * sqrt(1 + 1 / occasions) < log1p(change):
            return occasions
    return inf


def baselines_table(results: Path) -> Table:
    """Return a line for each stored baseline: what it rests on, and what can be seen against it.

    Raises:
        UserError: the file is damaged. A baseline whose runs cannot be read has a line that says so.
    """
    header = ("baseline", "arm", "occasions", "from", "to", "s per step", "sd between", "5%", "10%", "15%")
    rows, notes = (
        [],
        ["5%, 10%, 15%: how many occasions have to be recorded before one new one can show such a change."],
    )
    for name, entry in read_baselines(results).items():
        try:
            found = occasions_of(load_baseline(results, name))
        except UserError as error:
            rows.append((name, entry.arm, str(len(entry.occasions)), *["-"] * 7))
            notes.append(f"{name}: {error.what}")
            continue
        rows.append((name, entry.arm, *_row(found)))
        notes += [f"{name}: {caution}" for caution in baseline_cautions(found)]
    return Table("Stored baselines", header, tuple(rows), tuple(notes))


def baseline_figures(results: Path) -> dict[str, Any]:
    """Return the stored baselines by name as plain values; one whose runs cannot be read has a ``problem``.

    Raises:
        UserError: the file is damaged.
    """
    figures = dict[str, Any]()
    for name, entry in read_baselines(results).items():
        figures[name] = {"arm": entry.arm, "occasions": list(entry.occasions)}
        try:
            found = occasions_of(load_baseline(results, name))
        except UserError as error:
            figures[name]["problem"] = error.what
        else:
            figures[name] |= asdict(found) | {"mean_s": found.mean_s, "spread": found.spread}
    return figures


def _row(found: Occasions) -> tuple[str, ...]:
    first, last = (found.started_at[place][:16].replace("T", " ") for place in (0, -1))
    head = (str(len(found.started_at)), first, last, number(found.mean_s))
    if found.spread is None:
        return (*head, *["-"] * (1 + len(CHANGES)))
    needed = [occasions_needed(change, found.spread) for change in CHANGES]
    return (*head, f"{100 * found.spread:.2f}%", *("never" if count == inf else f"{count:.0f}" for count in needed))


def baseline_cautions(found: Occasions) -> list[str]:
    """Say what keeps the spread of the occasions from being that of another day."""
    cautions = []
    if len(found.started_at) == 1:
        cautions.append(
            "one occasion says nothing of how far occasions lie apart: verdicts against it stay inconclusive"
        )
    elif found.span_s < CLOSE_S:
        minutes = plural(round(found.span_s / 60), "minute")
        cautions.append(
            f"all occasions began within {minutes}, which says less of another day than occasions hours or days apart"
        )
    if len(found.commits) > 1:
        cautions.append(
            f"its occasions ran {len(found.commits)} commits, so what differs between those is in its spread"
        )
    return cautions
