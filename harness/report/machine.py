"""What the runs ran on and used: processes, GPUs; code, settings, and how to run them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from harness.compare.experiment import Experiment, Member
from harness.compare.numbers import NOTHING, count, number, percent
from harness.compare.remarks import Remark
from harness.compare.remarks.provenance import Counted, counted_runs
from harness.compare.resources import GpuFigures, gpu_figures, process_figures, sampling_cpu_s
from harness.core.experiment import NAMING
from harness.core.named_files import SCENARIOS, VERSUS
from harness.report.document import Item, Section, Table
from harness.results import Manifest
from harness.results.counters import explain
from harness.results.reader import flat_settings

_GIB = 2**30
_LONGEST = 120


def machine_section(experiment: Experiment) -> Section:
    """Return what the first run of each arm that has counters used."""
    counted = [*counted_runs(experiment)]
    items = (_processes(counted), *_gpus(counted)) if counted else ()
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


def _gpus(counted: Sequence[Counted]) -> list[Item | None]:
    """Return what each GPU did, or why nothing is known of one."""
    rows, reasons = [], dict[str, list[str]]()
    for item in counted:
        gpus, reason = gpu_figures(item.rows, item.window)
        rows += [(item.arm, *_gpu_cells(gpu)) for gpu in gpus]
        if reason is not None:
            reasons.setdefault(reason, []).append(item.arm)
    said = [
        Remark("no_gpu", f"No GPU numbers of {', '.join(arms)}: {explain(reason)}.", "machine")
        for reason, arms in reasons.items()
    ]
    header = ("arm", "GPU", "utilisation, mean", "peak memory, GiB", "power, W", "energy, J", "clock held down")
    return [Table("GPUs", header, tuple(rows), words=2) if rows else None, *said]


def _gpu_cells(gpu: GpuFigures) -> tuple[str, ...]:
    memory = None if gpu.peak_memory_bytes is None else gpu.peak_memory_bytes / _GIB
    used, held = (NOTHING if value is None else percent(value) for value in (gpu.mean_utilisation, gpu.throttled_share))
    return gpu.source, used, _cell(memory), _cell(gpu.mean_power_w), _cell(gpu.energy_j), held


def provenance_section(experiment: Experiment) -> Section:
    """Return runs, machine, versions and settings, and how to make such an experiment again."""
    items: list[Item] = [*_again(experiment.members[0].manifest), _runs(experiment), _machine(experiment.members)]
    settings = _settings(experiment)
    return Section("provenance", "Provenance", (*items, *([settings] if settings.rows else [])), folded=True)


def _again(manifest: Manifest) -> list[Remark]:
    """Say which command makes such an experiment; nothing for a run of another trainer."""
    if "imported" in manifest.outcome:
        return []
    if VERSUS in manifest.scenario:
        text = "The command bench made these runs; the settings of each are in its folder."
        return [Remark("again", text, "machine")]
    name = shlex.quote(SCENARIOS.typed(manifest.scenario))
    command = f"python -m harness run {name}"
    if manifest.simulated is not None:
        command = f"python -m harness simulate {name} --machine {manifest.simulated}"
    commands = [*([f"git checkout {manifest.commit}"] if manifest.commit else []), command]
    dirty = " (tracked files differed from the commit when these runs were made)" if manifest.dirty else ""
    texts = (f"To run it again{dirty}:", "")
    return [Remark("again", text, "machine", line) for text, line in zip(texts, commands, strict=False)]


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
    keys = dict.fromkeys(key for own in columns.values() for key in own if key not in (*NAMING, "seed"))
    values = {key: {arm: _written(own.get(key)) for arm, own in columns.items()} for key in keys}
    same = {key: next(iter(own.values())) for key, own in values.items() if len({*own.values()}) == 1}
    differing = {key: ", ".join(map(": ".join, own.items())) for key, own in values.items() if key not in same}
    notes = ("Settings that differ between the arms come first; of several runs, those of the first.",)
    return Table("Resolved settings", ("setting", "value"), tuple({**differing, **same}.items()), notes, words=2)


def _written(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
