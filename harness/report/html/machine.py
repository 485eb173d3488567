"""What the runs ran on and used: processes, GPUs, energy; code, settings, and how to run them again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from harness.compare import numbers
from harness.compare.caveats import origin
from harness.compare.resources import (
    GpuFigures,
    contention,
    energy_account,
    gpu_figures,
    process_figures,
    sampling_cpu_s,
)
from harness.compare.tables import Table
from harness.core.named_files import VERSUS
from harness.report.data import Counted, ReportData
from harness.report.html.charts import Chart, Line, draw_chart
from harness.report.html.learning import thinned
from harness.report.html.markup import Markup, bullets, details, element, figure, note, section, table, variant_legend
from harness.results import Manifest, Run
from harness.results.counters import explain, sources, stretches

MOST_VARIANTS = 6  # with curves
_GIB = 2**30


def resources_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section; None where no run has counters. Of several seeds, the first that has some is shown."""
    counted = report_data.counted
    if not counted:
        return None
    said = [f"{item.name}: {text}" for item in counted for text in contention(item.rows, item.window)]
    return section(
        anchor, "Resources", _processes(counted), _curves(counted), *_gpus(counted), _energy(counted),
        bullets(said, "plain-list"),
    )  # fmt: skip


def _processes(counted: Sequence[Counted]) -> Markup:
    rows = []
    for item in counted:
        for process in process_figures(item.rows, item.window):
            memory = None if process.peak_rss_bytes is None else process.peak_rss_bytes / _GIB
            threads = numbers.NOTHING if process.peak_threads is None else numbers.count(process.peak_threads)
            cells = (process.cpu_s, process.cores, memory)
            rows.append((item.name, process.source, *(_cell(value) for value in cells), threads))
        sampler = sampling_cpu_s(item.rows, item.window)
        share = None if sampler is None else sampler * 1e9 / max(1, item.window[1] - item.window[0])
        own = f"{_cell(sampler)} ({numbers.percent(share)} of a core)" if share is not None else numbers.NOTHING
        rows.append((item.name, "the sampler itself", own, *(numbers.NOTHING,) * 3))
    header = ("variant", "process", "CPU, s", "cores, mean", "peak memory, GiB", "peak threads")
    notes = ("From samples taken during the loop; what happened between two samples is not seen.",)
    return table(Table("Processes", header, tuple(rows), notes, words=2))


def _cell(value: float | None) -> str:
    return numbers.NOTHING if value is None else numbers.number(value)


def _curves(counted: Sequence[Counted]) -> Markup | None:
    """Return the cores that each process kept busy over the seconds of the loop, a panel for each variant."""
    shown = counted[:MOST_VARIANTS]
    names = list(dict.fromkeys(source for item in shown for source in _busy_sources(item)))
    charts = []
    for item in shown:
        drawn = [
            Line(names.index(source), points) for source in _busy_sources(item) if (points := _cores(item, source))
        ]
        says = f"Cores that each process of {item.name} kept busy, from sample to sample."
        charts.append(Chart(item.name, "seconds of the loop", "cores", drawn, says, from_zero=True))
    if not any(chart.lines for chart in charts):
        return None
    panels = element("div", [draw_chart(chart) for chart in charts], class_="panels")
    sentence = "CPU time of each process over the time between two samples; of the first run of each variant."
    return figure("Cores kept busy.", sentence, panels, legend=variant_legend(names))


def _busy_sources(item: Counted) -> list[str]:
    return [
        source for source in sources(item.rows) if any("cpu_s" in r.values for r in item.rows if r.source == source)
    ]


def _cores(item: Counted, source: str) -> list[tuple[float, float]]:
    """Return (seconds of the loop, cores) in the middle of each pair of samples inside the loop."""
    low, high = item.window
    points = [
        ((before[0] + after[0]) / 2, (after[1] - before[1]) / (after[0] - before[0]) * 1e9)
        for stretch in stretches(item.rows, source, "cpu_s")
        for before, after in pairwise(stretch)
        if before[0] >= low and after[0] <= high and after[0] > before[0]
    ]
    return [(x, y) for x, y, _, _ in thinned([((at_ns - low) / 1e9, cores, cores, cores) for at_ns, cores in points])]


def _gpus(counted: Sequence[Counted]) -> list[Markup]:
    """Return what each GPU did, or why nothing is known of one."""
    rows, reasons = [], dict[str, list[str]]()
    for item in counted:
        gpus, reason = gpu_figures(item.rows, item.window)
        rows += [(item.name, *_gpu_cells(gpu)) for gpu in gpus]
        if reason is not None:
            reasons.setdefault(reason, []).append(item.name)
    shown = [note(f"No GPU figures of {', '.join(names)}: {explain(reason)}.") for reason, names in reasons.items()]
    header = ("variant", "GPU", "utilisation, mean", "peak memory, GiB", "power, W", "energy, J", "clock held down")
    return [table(Table("GPUs", header, tuple(rows), words=2)), *shown] if rows else shown


def _gpu_cells(gpu: GpuFigures) -> tuple[str, ...]:
    memory = None if gpu.peak_memory_bytes is None else gpu.peak_memory_bytes / _GIB
    shares = (gpu.mean_utilisation, gpu.throttled_share)
    used, held = (numbers.NOTHING if value is None else numbers.percent(value) for value in shares)
    return gpu.source, used, _cell(memory), _cell(gpu.mean_power_w), _cell(gpu.energy_j), held


def _energy(counted: Sequence[Counted]) -> Markup | None:
    """Return where each GPU's energy went by stage, where its counter tells."""
    rows = []
    for item in counted:
        gpus = [gpu.source for gpu in gpu_figures(item.rows, item.window)[0]]
        for source in gpus if len(gpus) == 1 else ():  # of several, it is not known which lane works on which
            account, _ = energy_account(item.rows, item.spans, source, item.window)
            if account is None:
                continue
            for stage, part in account.stages.items():
                joules = part.reason or "" if part.joules is None else numbers.number(part.joules)
                rows.append((item.name, source, stage.value, joules, numbers.number(part.seconds)))
            rows.append((item.name, source, "stages that cannot be told apart", numbers.number(account.untold_j), ""))
            rows.append((item.name, source, "no stage under way", numbers.number(account.rest_j), ""))
    if not rows:
        return None
    header = ("variant", "GPU", "stage", "energy, J", "seconds")
    return details("Show the energy by stage", table(Table("Energy by stage", header, tuple(rows), words=3)))


_LONGEST = 120


def provenance_section(report_data: ReportData, anchor: str) -> Markup | None:
    """Return the section."""
    runs = report_data.curves.all_runs()
    tables = [details(f"Show the {len(runs)} runs", table(_runs(report_data)), class_="printed")]
    tables += [
        details("Show machine and versions", element("div", table(_machine(runs)), class_="wrap"), class_="printed")
    ]
    settings = _settings(report_data)
    if settings.rows:
        tables.append(details("Show the settings", element("div", table(settings), class_="wrap")))
    shown = report_data.experiment
    said = note(f"{origin(shown)}. Experiment {shown.name}, started {shown.started_at}.")
    return section(anchor, "Provenance", said, _again(runs[0].manifest), *tables)


def _again(manifest: Manifest) -> Markup | None:
    """Say which command makes such an experiment; None for a run of another trainer."""
    if "imported" in manifest.outcome:
        return None
    if VERSUS in manifest.scenario:
        return note("The command bench made these runs; the settings of each are in its folder.")
    commands = [f"git checkout {manifest.commit}"] if manifest.commit else []
    if manifest.simulated is None:
        commands.append(f"python -m harness run {manifest.scenario}")
    else:
        commands.append(f"python -m harness simulate {manifest.scenario} --machine {manifest.simulated}")
    said = note("To run it again:")
    if manifest.dirty:
        said = note("To run it again (tracked files differed from the commit when these runs were made):")
    return element("div", said, element("pre", Markup("\n".join(element("code", item) for item in commands))))


def _runs(report_data: ReportData) -> Table:
    header = ("variant", "seed", "block", "status", "started", "start-up, s", "steps", "loop, s", "folder")
    rows = []
    for variant in report_data.experiment.variants:
        for figures, run in zip(variant.runs, report_data.curves.runs[variant.name], strict=True):
            manifest = run.manifest
            startup = numbers.NOTHING if manifest.startup_s is None else numbers.number(manifest.startup_s)
            block = numbers.NOTHING if manifest.block is None else str(manifest.block)
            facts = (str(manifest.seed), block, figures.status, manifest.started_at, startup, str(figures.steps))
            rows.append((variant.name, *facts, numbers.number(figures.loop_s), run.folder.name))
    return Table("Runs", header, tuple(rows), words=9)


def _machine(runs: list[Run]) -> Table:
    facts = dict[str, list[str]]()
    for run in runs:
        manifest = run.manifest
        own = [(f"machine.{key}", value) for key, value in _flat(manifest.machine)]
        own += [(f"version.{name}", version) for name, version in manifest.versions.items() if version]
        own += [("threads", manifest.threads), ("commit", manifest.commit), ("uncommitted changes", manifest.dirty)]
        own += [("policy parameters", manifest.parameters), ("probe profile", manifest.profile)]
        own += [("interleaving", manifest.interleaving), ("simulated by the profile", manifest.simulated)]
        for name, value in own:
            if value is not None:
                facts.setdefault(name, []).append(_written(value))
    rows = tuple((name, " / ".join(dict.fromkeys(values))) for name, values in facts.items())
    return Table("Machine and versions", ("fact", "value"), rows, words=2)


def _settings(report_data: ReportData) -> Table:
    """Return the resolved scenario, the settings in which variants differ first."""
    names = report_data.names
    columns = [dict(_flat(report_data.curves.runs[name][0].settings)) for name in names]
    keys = dict.fromkeys(key for column in columns for key in column if key not in ("name", "description", "seed"))
    same, differing = list[tuple[str, str]](), list[tuple[str, str]]()
    for key in keys:
        values = [_written(column.get(key)) for column in columns]
        if len(set(values)) == 1:
            same.append((key, values[0]))
        else:
            each = ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
            differing.append((key, each))
    notes = ("Settings that differ between the variants come first; of several seeds, those of the first.",)
    return Table("Resolved settings", ("setting", "value"), (*differing, *same), notes, words=2)


def _flat(values: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested mappings; empty ones stay as they are."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _written(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
