"""What keeps the figures of an experiment from being compared plainly, and what they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.compare.experiments import Experiment
from harness.compare.figures import RunFigures
from harness.compare.pairs import FEWEST_SEEDS

_UNKNOWN = "unknown"


def cautions(experiment: Experiment) -> list[str]:
    """Return sentences on unfinished runs, turns, unlike machines and versions, shared GPUs, and what is no verdict."""
    if any(run.timed_syncs for run in experiment.runs):
        return [*_unfinished(experiment), *unlike(experiment.runs), _SWEEP]
    return [
        *_simulated(experiment),
        *_unfinished(experiment),
        *unlike(experiment.runs),
        *_turns(experiment),
        *_shared_gpu(experiment),
        *_polling(experiment),
        *_no_verdict(experiment),
    ]


_SWEEP = "Transports took turns within each repeat, sizes came one after the other. Figures, not a verdict."


def unlike(runs: Sequence[RunFigures]) -> list[str]:
    """Say where some runs were simulated and others took place, and where they differ in machine, versions or code."""
    said = []
    simulated = sum(run.manifest.simulated is not None for run in runs)
    if 0 < simulated < len(runs):
        said.append(
            f"{_count(simulated, 'run')} of {len(runs)} were simulated and the others took place: a difference between "
            "the two may be an error of the simulation."
        )
    machines = _values(str(run.manifest.machine.get("fingerprint", _UNKNOWN)) for run in runs)
    if len(machines) > 1:
        said.append(
            f"The runs come from {len(machines)} kinds of machine ({', '.join(machines)}): seconds do not compare."
        )
    systems = [_system(run.manifest.machine.get("os")) for run in runs if run.manifest.simulated is None]
    known = _values(name for name in systems if name != _UNKNOWN)
    if len(known) > 1:
        said.append(f"The operating systems differ: {', '.join(known)}.")
    if known and _UNKNOWN in systems:
        unknown = _count(systems.count(_UNKNOWN), "run")
        said.append(f"The operating system of {unknown} is unknown; of the others it is {', '.join(known)}.")
    packages = _values(name for run in runs for name in run.manifest.versions)
    for name in packages:
        versions = _values(str(run.manifest.versions.get(name) or "none") for run in runs)
        if len(versions) > 1:
            said.append(f"The versions of {name} differ: {', '.join(versions)}.")
    threads = _values(str(run.manifest.threads) for run in runs if run.manifest.threads is not None)
    if len(threads) > 1:
        said.append(f"The thread counts differ: {', '.join(threads)}.")
    commits = _values((run.manifest.commit or "none")[:7] for run in runs)
    if len(commits) > 1:
        said.append(f"The commits differ: {', '.join(commits)}.")
    return said


def _system(found: object) -> str:
    """Name an operating system; runs of before it was written have none."""
    if not isinstance(found, dict):
        return _UNKNOWN
    return f"{found.get('distribution') or found.get('system')} (kernel {found.get('kernel')})"


def origin(experiment: Experiment) -> str:
    """Describe machine, versions and code of the first run in one line."""
    manifest = experiment.runs[0].manifest
    machine = manifest.machine
    if experiment.runs[0].is_imported:
        return str(machine.get("missing", {}).get("cpu") or "imported from another trainer's log")
    parts = [f"SIMULATED by the machine profile {experiment.simulated}"] if experiment.simulated else []
    parts.append(str(machine.get("cpu") or "unknown CPU"))
    if machine.get("cores"):
        parts.append(_count(int(machine["cores"]), "core"))
    if manifest.threads:
        parts.append(_count(manifest.threads, "thread"))
    if machine.get("memory_gib"):
        parts.append(f"{machine['memory_gib']} GiB")
    parts.append(_gpus(machine.get("gpus")))
    parts += [f"{name} {manifest.versions[name]}" for name in ("torch", "python") if manifest.versions.get(name)]
    if manifest.commit:
        parts.append(f"commit {manifest.commit[:7]}" + (" with uncommitted changes" if manifest.dirty else ""))
    return ", ".join(parts)


def _gpus(gpus: object) -> str:
    if not isinstance(gpus, list) or not gpus:
        return "no GPU seen"
    names = _values(str(gpu.get("name")) if isinstance(gpu, dict) else str(gpu) for gpu in gpus)
    return f"{len(gpus)} x {', '.join(names)}"


def _simulated(experiment: Experiment) -> list[str]:
    """Say that the runs never took place, and what is not known of them for that."""
    if experiment.simulated is None:
        return []
    said = [
        f"These runs never took place: their seconds are what the machine profile {experiment.simulated} predicts. "
        "Rewards, losses and gradients are not simulated."
    ]
    by_hand = [run.manifest.machine.get("origin") for run in experiment.runs]
    if "datasheet" in by_hand:
        said.append(f"The machine profile {experiment.simulated} is taken from data sheets and was not measured.")
    leaving = _values(
        text for run in experiment.runs for text in _texts(run.manifest.outcome.get("extrapolating")) if text
    )
    return said + [f"EXTRAPOLATING: {text}" for text in leaving]


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _unfinished(experiment: Experiment) -> list[str]:
    said = []
    for variant in experiment.variants:
        for run in variant.runs:
            if run.status != "completed":
                seed = f", seed {run.manifest.seed}" if len(variant.runs) > 1 else ""
                reason = f": {run.manifest.error}" if run.manifest.error else ""
                said.append(f"{variant.name}{seed}: {run.status} after {_count(run.steps, 'step')}{reason}")
    return said


def _turns(experiment: Experiment) -> list[str]:
    if len(experiment.runs) == 1 or experiment.simulated:
        return []
    ways = {run.manifest.interleaving for run in experiment.runs}
    if ways != {"step"} and any(run.manifest.block is not None for run in experiment.runs):
        return ["The arms of a block ran one after the other, in mirrored order from block to block."]
    if ways != {"step"}:
        return ["The runs ran one after the other, so drift of the machine shows as a difference between them."]
    if any(run.manifest.point != experiment.runs[0].manifest.point for run in experiment.runs):
        return ["The arms took turns step by step; the points of the sweep ran one after the other."]
    return ["The arms took turns step by step, so a slow spell of the machine hit all of them alike."]


def _shared_gpu(experiment: Experiment) -> list[str]:
    """Say whose parts worked side by side on one GPU, which no GPU has run yet."""
    names = [variant.name for variant in experiment.variants if any(map(_shares_gpu, variant.runs))]
    if not names:
        return []
    whose = f"{', '.join(names)}: " if len(names) < len(experiment.variants) else ""
    return [
        f"{whose}Generator and Learner share one GPU in one process, each on a CUDA stream of its own; no GPU has yet "
        "confirmed that their times are apart."
    ]


def _shares_gpu(run: RunFigures) -> bool:
    """Whether the parts of a run had threads of their own in one process, and computed on its GPU."""
    sections = [run.settings.get(name) for name in ("placement", "transport", "model")]
    placement, transport, model = (section if isinstance(section, Mapping) else {} for section in sections)
    manifest, device = run.manifest, placement.get("device")
    has_gpu = bool(manifest.machine.get("gpus")) and not str(manifest.versions.get("torch")).endswith("+cpu")
    return (
        manifest.simulated is None
        and transport.get("type") == "in_process"
        and placement.get("colocated") is False
        and model.get("type") != "paced"
        and (device == "cuda" or (device == "auto" and has_gpu))
    )


def _polling(experiment: Experiment) -> list[str]:
    """Say what NIXL's progress thread costs beside the syncs themselves."""
    pauses = {
        variant.name: run.sync.polling_pause_us
        for variant in experiment.variants
        for run in variant.runs
        if run.sync is not None and run.sync.polling_pause_us is not None
    }
    busy = [name for name, pause in pauses.items() if pause == 0]
    if busy:
        return [
            f"{', '.join(busy)}: NIXL's progress threads poll without a pause, which keeps about a core busy for each "
            "actor that sends or receives, syncing or not (transport.progress_thread_delay_us is 0)."
        ]
    if pauses:
        longest = max(pause for pause in pauses.values() if pause is not None)
        return [f"NIXL's progress threads pause {longest} us between polls; its own default of 0 keeps cores busy."]
    return []


def _no_verdict(experiment: Experiment) -> list[str]:
    """Say why there is no verdict; where arms share several blocks or seeds, the verdict speaks for itself."""
    most = max(len(variant.runs) for variant in experiment.variants)
    if most == 1:
        return ["One block and one seed: figures, not a verdict."]
    if len(experiment.variants) == 1:
        return [f"Up to {most} runs of one variant, and nothing to set it against: figures, not a verdict."]
    if most >= FEWEST_SEEDS:
        return ["Intervals of rewards are each for one pair of variants and assume normal differences."]
    return []


def _values(items: Iterable[str]) -> list[str]:
    """Return the distinct values in the order of their first appearance."""
    return list(dict.fromkeys(items))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
