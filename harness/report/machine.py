"""What the runs ran on and used: processes, GPUs, energy; code, settings, and how to run them again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.compare.experiment import Experiment, Member
from harness.compare.numbers import NOTHING, count, number, percent
from harness.compare.remarks import Remark
from harness.compare.resources import (
    GpuFigures,
    energy_account,
    gpu_figures,
    process_figures,
    sampling_cpu_s,
)
from harness.core.intervals import Interval
from harness.core.named_files import VERSUS
from harness.core.trace import Span
from harness.report import charts
from harness.report.charts import Panel
from harness.report.document import Chart, Command, Item, Section, Table
from harness.results import Manifest
from harness.results.counters import CounterRow, explain, sources, stretches
from harness.results.occupancy import loop_window
from harness.results.reader import flat_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ARMS = 6
"""With curves."""
_GIB = 2**30
_LONGEST = 120


@dataclass(frozen=True)
class Counted:
    """The counters of one run of an arm, its spans, and the window of its loop in nanoseconds."""

    arm: str
    rows: Sequence[CounterRow]
    spans: list[Span]
    window: Interval


def counted_runs(experiment: Experiment) -> list[Counted]:
    """Return of each arm the first run that has counters and spans."""
    counted = dict[str, Counted]()
    for arm, member in zip(experiment.labels, experiment.members, strict=True):
        rows = member.kept.counters if arm not in counted else ()
        spans = member.run.spans() if rows else []
        if spans:
            tail = member.run.tail
            counted[arm] = Counted(arm, rows, spans, loop_window(spans, tail.elapsed_s if tail else None))
    return list(counted.values())


def machine_section(experiment: Experiment) -> Section | None:
    """Return the section; None where no run has counters. Of several runs, the first that has some is shown."""
    counted = counted_runs(experiment)
    if not counted:
        return None
    items = (_processes(counted), _cores_chart(experiment, counted), *_gpus(counted), _energy(counted))
    return Section("machine", "Resources", tuple(item for item in items if item is not None), folded=True)


def _processes(counted: Sequence[Counted]) -> Table:
    rows = []
    for item in counted:
        for process in process_figures(item.rows, item.window):
            memory = None if process.peak_rss_bytes is None else process.peak_rss_bytes / _GIB
            threads = NOTHING if process.peak_threads is None else count(process.peak_threads)
            cells = (_cell(value) for value in (process.cpu_s, process.cores, memory))
            rows.append((item.arm, process.source, *cells, threads))
        sampler = sampling_cpu_s(item.rows, item.window)
        share = None if sampler is None else sampler * 1e9 / max(1, item.window[1] - item.window[0])
        own = f"{_cell(sampler)} ({percent(share)} of a core)" if share is not None else NOTHING
        rows.append((item.arm, "the sampler itself", own, *(NOTHING,) * 3))
    header = ("arm", "process", "CPU, s", "cores, mean", "peak memory, GiB", "peak threads")
    notes = ("From samples taken during the loop; what happened between two samples is not seen.",)
    return Table("What processes used", header, tuple(rows), notes, 2)


def _cell(value: float | None) -> str:
    return NOTHING if value is None else number(value)


def _cores_chart(experiment: Experiment, counted: Sequence[Counted]) -> Chart | None:
    """The cores that each process kept busy over the seconds of the loop, a panel for each arm."""
    rows = [
        (source, 0, x, cores, item.arm)
        for item in counted[:MOST_ARMS]
        for source in sources(item.rows)
        for x, cores in _cores(item, source)
    ]
    if not rows:
        return None
    arms = dict.fromkeys(arm for *_, arm in rows)
    panels = [Panel(arm, "cores", charts.SECONDS, "zero") for arm in arms]

    def draw() -> Figure:
        import pandas as pd

        frame = pd.DataFrame(rows, columns=["arm", "seed", "x", "value", "panel"])
        return charts.curves(frame, panels, title=f"{experiment.title}: cores kept busy")

    says = "CPU time of each process over the time between two samples; of the first run of each arm."
    return Chart("cores", "Cores kept busy", says, draw)


def _cores(item: Counted, source: str) -> list[tuple[float, float]]:
    """Return (seconds of the loop, cores) in the middle of each pair of samples inside the loop."""
    low, high = item.window
    return [
        (((start + end) / 2 - low) / 1e9, (used - before) / (end - start) * 1e9)
        for stretch in stretches(item.rows, source, "cpu_s")
        for (start, before), (end, used) in pairwise(stretch)
        if low <= start < end <= high
    ]


def _gpus(counted: Sequence[Counted]) -> list[Item | None]:
    """Return what each GPU did, or why nothing is known of one."""
    rows, reasons = [], dict[str, list[str]]()
    for item in counted:
        gpus, reason = gpu_figures(item.rows, item.window)
        rows += [(item.arm, *_gpu_cells(gpu)) for gpu in gpus]
        if reason is not None:
            reasons.setdefault(reason, []).append(item.arm)
    said = [
        Remark("no_gpu", f"No GPU numbers of {', '.join(arms)}: {explain(reason)}.", "finding", "machine")
        for reason, arms in reasons.items()
    ]
    header = ("arm", "GPU", "utilisation, mean", "peak memory, GiB", "power, W", "energy, J", "clock held down")
    return [Table("GPUs", header, tuple(rows), words=2) if rows else None, *said]


def _gpu_cells(gpu: GpuFigures) -> tuple[str, ...]:
    memory = None if gpu.peak_memory_bytes is None else gpu.peak_memory_bytes / _GIB
    used, held = (NOTHING if value is None else percent(value) for value in (gpu.mean_utilisation, gpu.throttled_share))
    return gpu.source, used, _cell(memory), _cell(gpu.mean_power_w), _cell(gpu.energy_j), held


def _energy(counted: Sequence[Counted]) -> Table | None:
    """Return where each GPU's energy went by stage, where its counter tells."""
    rows = []
    for item in counted:
        gpus = [gpu.source for gpu in gpu_figures(item.rows, item.window)[0]]
        for source in gpus if len(gpus) == 1 else ():  # of several, it is not known which process works on which
            account, _ = energy_account(item.rows, item.spans, source, item.window)
            if account is None:
                continue
            for stage, part in account.stages.items():
                joules = part.reason or "" if part.joules is None else number(part.joules)
                rows.append((item.arm, source, stage.value, joules, number(part.seconds)))
            rows.append((item.arm, source, "stages that cannot be told apart", number(account.untold_j), ""))
            rows.append((item.arm, source, "unattributed", number(account.rest_j), ""))
    header = ("arm", "GPU", "stage", "energy, J", "seconds")
    return Table("Energy by stage", header, tuple(rows), words=3) if rows else None


def provenance_section(experiment: Experiment) -> Section:
    """Return runs, machine, versions and settings, and how to make such an experiment again."""
    items: list[Item] = [*_again(experiment.members[0].manifest), _runs(experiment), _machine(experiment.members)]
    settings = _settings(experiment)
    return Section("provenance", "Provenance", (*items, *([settings] if settings.rows else [])), folded=True)


def _again(manifest: Manifest) -> list[Item]:
    """Say which command makes such an experiment; nothing for a run of another trainer."""
    if "imported" in manifest.outcome:
        return []
    if VERSUS in manifest.scenario:
        text = "The command bench made these runs; the settings of each are in its folder."
        return [Remark("again", text, "finding", "machine")]
    commands = [f"git checkout {manifest.commit}"] if manifest.commit else []
    if manifest.simulated is None:
        commands.append(f"python -m harness run {manifest.scenario}")
    else:
        commands.append(f"python -m harness simulate {manifest.scenario} --machine {manifest.simulated}")
    dirty = " (tracked files differed from the commit when these runs were made)" if manifest.dirty else ""
    return [Remark("again", f"To run it again{dirty}:", "finding", "machine"), *map(Command, commands)]


def _runs(experiment: Experiment) -> Table:
    rows = [
        (
            *(member.folder.name, str(member.manifest.seed), member.run.status),
            *(member.manifest.started_at[:16].replace("T", " "), _cell(member.manifest.startup_s)),
            *(str(member.steps), number(member.figures["loop_s"])),
        )
        for member in experiment.members
    ]
    header = ("run", "seed", "status", "started", "start-up", "steps", "loop")
    return Table("Runs: start in UTC, start-up and loop in seconds", header, tuple(rows), words=4)


def _machine(members: Sequence[Member]) -> Table:
    facts = dict[str, list[str]]()
    for member in members:
        manifest = member.manifest
        own = [(f"machine.{key}", value) for key, value in flat_settings(manifest.machine).items()]
        own += [(f"version.{name}", version) for name, version in manifest.versions.items() if version]
        own += [("threads", manifest.threads), ("commit", manifest.commit), ("uncommitted changes", manifest.dirty)]
        own += [("policy parameters", manifest.parameters), ("probe profile", manifest.profile)]
        own += [("interleaving", manifest.interleaving), ("simulated by the profile", manifest.simulated)]
        for name, value in own:
            if value is not None:
                facts.setdefault(name, []).append(_written(value))
    rows = tuple((name, " / ".join(dict.fromkeys(values))) for name, values in facts.items())
    return Table("Machine and versions", ("fact", "value"), rows, words=2)


def _settings(experiment: Experiment) -> Table:
    """Return the resolved scenario, the settings in which arms differ first."""
    columns = {arm: flat_settings(members[0].settings) for arm, members in experiment.arms.items()}
    keys = dict.fromkeys(key for own in columns.values() for key in own if key not in ("name", "description", "seed"))
    values = {key: {arm: _written(own.get(key)) for arm, own in columns.items()} for key in keys}
    same = {key: next(iter(own.values())) for key, own in values.items() if len({*own.values()}) == 1}
    differing = {key: ", ".join(map(": ".join, own.items())) for key, own in values.items() if key not in same}
    notes = ("Settings that differ between the arms come first; of several runs, those of the first.",)
    return Table("Resolved settings", ("setting", "value"), tuple({**differing, **same}.items()), notes, words=2)


def _written(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
