"""What runs came from, and what keeps their figures from being compared plainly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from harness.compare.experiments import FEWEST_SEEDS, Experiment
from harness.compare.figures import RunFigures
from harness.results import Manifest

DIFFERENCES = ("machine", "versions", "threads", "commit", "simulation")
UNKNOWN, NOT_INSTALLED = "unknown", "none"


@dataclass(frozen=True, slots=True)
class Environment:
    """What a run's seconds depend on beside its scenario. Equal ones belong together; it can be a dict's key.

    Attributes:
        machine: fingerprint of the kind of machine.
        versions: (package, version) in order of the names.
        threads: None in runs of before it was written.
        facts: processor, cores, memory, GPUs and their driver and limits in words; they follow from the machine.
        simulated: name of the machine profile by which the runs were simulated; None where they took place.
    """

    machine: str
    versions: tuple[tuple[str, str], ...]
    threads: int | None
    facts: str
    simulated: str | None = None

    @property
    def label(self) -> str:
        """Everything in one line for people."""
        versions = (" ".join(pair) for pair in self.versions)
        return ", ".join([*_simulated_words(self), _machine_words(self), *_threads_words(self), *versions])


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one environment.

    Attributes:
        letter: its short name in tables: A, B and so on in the order of the experiments.
        runs: how many runs belong to it.
        differs: what sets it apart from the other groups, in words; empty for a single group.
    """

    letter: str
    environment: Environment
    runs: int
    differs: str


def environment(manifest: Manifest) -> Environment:
    """Return the environment of a run."""
    machine = manifest.machine
    facts = [str(machine.get("cpu") or "unknown CPU")]
    if machine.get("cores"):
        facts.append(f"{machine['cores']} cores" if machine["cores"] != 1 else "1 core")
    if machine.get("memory_gib"):
        facts.append(f"{machine['memory_gib']} GiB")
    return Environment(
        machine=str(machine.get("fingerprint") or UNKNOWN),
        versions=tuple(sorted((name, str(version)) for name, version in manifest.versions.items() if version)),
        threads=manifest.threads,
        facts=", ".join([*facts, *_gpu_words(machine.get("gpus"), recorded=manifest.simulated is None)]),
        simulated=manifest.simulated,
    )


def differences(one: Manifest, other: Manifest) -> tuple[str, ...]:
    """Return in which of ``DIFFERENCES`` two runs differ, in that order.

    A package that only one of them has makes versions differ; a thread count or a commit that one of them does not
    know differs from nothing.
    """
    a, b = environment(one), environment(other)
    found = {
        "machine": a.machine != b.machine,
        "versions": dict(a.versions) != dict(b.versions),
        "threads": None not in (a.threads, b.threads) and a.threads != b.threads,
        "commit": None not in (one.commit, other.commit) and one.commit != other.commit,
        "simulation": one.simulated != other.simulated,
    }
    return tuple(name for name in DIFFERENCES if found[name])


def groups(experiments: Iterable[Experiment]) -> list[Group]:
    """Return the groups of the experiments' runs, in the order in which the experiments show them."""
    counts: dict[Environment, int] = {}
    for experiment in experiments:
        for run in experiment.runs:
            found = environment(run.manifest)
            counts[found] = counts.get(found, 0) + 1
    every = list(counts)
    return [
        Group(group_letter(index), found, counts[found], _what_differs(found, every))
        for index, found in enumerate(every)
    ]


def letters_of(experiment: Experiment, found: Sequence[Group]) -> str:
    """Return the letters of the groups that an experiment's runs belong to, such as ``A`` or ``A+B``."""
    present = {environment(run.manifest) for run in experiment.runs}
    return "+".join(group.letter for group in found if group.environment in present)


def legend(found: Sequence[Group]) -> tuple[str, ...]:
    """Say what sets each group apart, one sentence for each; nothing where there is one group only."""
    if len(found) < 2:
        return ()
    sentences = [f"In {group.letter} ({_runs(group.runs)}): {group.differs}." for group in found]
    return (*sentences, "Seconds of one of these groups are no measure for those of another.")


def group_letter(index: int) -> str:
    """Return A to Z, then AA, AB and so on."""
    letters = ""
    index += 1
    while index:
        index, place = divmod(index - 1, len(ascii_uppercase))
        letters = ascii_uppercase[place] + letters
    return letters


def _what_differs(found: Environment, every: Sequence[Environment]) -> str:
    """Name the machine, threads and package versions of a group where not all groups share them."""
    words = []
    if len({item.simulated for item in every}) > 1:
        words += _simulated_words(found) or ["not simulated"]
    if len({item.machine for item in every}) > 1:
        words.append(_machine_words(found))
    if len({item.threads for item in every}) > 1:
        words += _threads_words(found) or ["unknown thread count"]
    mine, all_versions = dict(found.versions), [dict(item.versions) for item in every]
    names = sorted({name for versions in all_versions for name in versions})
    unlike = [name for name in names if len({versions.get(name, NOT_INSTALLED) for versions in all_versions}) > 1]
    said = [f"no {name}" if mine.get(name) in (None, NOT_INSTALLED) else f"{name} {mine[name]}" for name in unlike]
    return ", ".join([*words, *said])


def _simulated_words(found: Environment) -> list[str]:
    return [] if found.simulated is None else [f"simulated by the profile {found.simulated}"]


def _machine_words(found: Environment) -> str:
    return f"{found.facts} (machine {found.machine})"


def _threads_words(found: Environment) -> list[str]:
    if found.threads is None:
        return []
    return ["1 thread" if found.threads == 1 else f"{found.threads} threads"]


_LIMITS = {
    "driver": "driver {}",
    "power_limit_w": "power limit {} W",
    "max_sm_clock_mhz": "SM clock up to {} MHz",
    "max_memory_clock_mhz": "memory clock up to {} MHz",
}


def _gpu_words(gpus: object, recorded: bool) -> list[str]:
    """Name GPUs and, where those of a machine were ``recorded``, driver and limits; older runs know no driver."""
    if not isinstance(gpus, list) or not gpus:
        return []
    known = [gpu if isinstance(gpu, dict) else {"name": gpu} for gpu in gpus]
    names = {str(gpu.get("name")) for gpu in known}
    words = [f"{len(known)} x {' and '.join(sorted(names))}"]
    for key, form in _LIMITS.items() if recorded else ():
        values = {str(gpu.get(key) or UNKNOWN) for gpu in known}
        if values != {UNKNOWN} or key == "driver":
            words.append(form.format(" and ".join(sorted(values))))
    return words


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


UNKNOWN = "unknown"


def caveats(experiment: Experiment) -> list[str]:
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
    machines = _values(str(run.manifest.machine.get("fingerprint", UNKNOWN)) for run in runs)
    if len(machines) > 1:
        said.append(
            f"The runs come from {len(machines)} kinds of machine ({', '.join(machines)}): seconds do not compare."
        )
    systems = [_system(run.manifest.machine.get("os")) for run in runs if run.manifest.simulated is None]
    known = _values(name for name in systems if name != UNKNOWN)
    if len(known) > 1:
        said.append(f"The operating systems differ: {', '.join(known)}.")
    if known and UNKNOWN in systems:
        unknown = _count(systems.count(UNKNOWN), "run")
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
        return UNKNOWN
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
