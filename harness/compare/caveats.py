"""What runs came from, and what keeps their figures from being compared plainly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from harness.compare.experiments import FEWEST_SEEDS, Experiment
from harness.compare.figures import RunFigures
from harness.compare.numbers import listed, plural
from harness.results import Manifest
from harness.results.manifest import COMPUTE_NOTHING, VALIDATION_PROMPTS
from harness.results.reader import flat_settings

DIFFERENCES = ("machine", "versions", "threads", "commit", "simulation")
UNKNOWN, NOT_INSTALLED = "unknown", "none"
BUT_ON_GPU = "compute on a GPU, and differ in CPU threads alone"


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
        return ", ".join([*self.profile_in_words, self.machine_in_words, *self.threads_in_words, *versions])

    @property
    def profile_in_words(self) -> list[str]:
        """The machine profile of simulated runs; nothing for others."""
        return [] if self.simulated is None else [f"simulated by the profile {self.simulated}"]

    @property
    def machine_in_words(self) -> str:
        """Facts and fingerprint of the machine."""
        return f"{self.facts} (machine {self.machine})"

    @property
    def threads_in_words(self) -> list[str]:
        """The thread count; nothing where it is not known."""
        return [] if self.threads is None else [plural(self.threads, "thread")]


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one environment.

    Attributes:
        letter: its short name in tables: A, B and so on in the order of the experiments.
        runs: how many runs belong to it.
        differs: what sets it apart from the other groups, in words; empty for a single group.
        on_gpu: whether all of them compute on a GPU.
    """

    letter: str
    environment: Environment
    runs: int
    differs: str
    on_gpu: bool = False


def environment(manifest: Manifest) -> Environment:
    """Return the environment of a run."""
    machine = manifest.machine
    facts = [str(machine.get("cpu") or "unknown CPU")]
    if machine.get("cores"):
        facts.append(plural(machine["cores"], "core"))
    if machine.get("memory_gib"):
        facts.append(f"{machine['memory_gib']} GiB")
    return Environment(
        machine=str(machine.get("fingerprint") or UNKNOWN),
        versions=tuple(sorted((name, str(version)) for name, version in manifest.versions.items() if version)),
        threads=manifest.threads,
        facts=", ".join([*facts, *_gpu_words(machine.get("gpus"), recorded=manifest.simulated is None)]),
        simulated=manifest.simulated,
    )


def groups(experiments: Iterable[Experiment]) -> list[Group]:
    """Return the groups of the experiments' runs, in the order in which the experiments show them."""
    members: dict[Environment, list[RunFigures]] = {}
    for experiment in experiments:
        for run in experiment.runs:
            members.setdefault(environment(run.manifest), []).append(run)
    return [
        Group(group_letter(index), item, len(runs), _what_differs(item, list(members)), all(map(on_gpu, runs)))
        for index, (item, runs) in enumerate(members.items())
    ]


def letters_of(experiment: Experiment, every: Sequence[Group]) -> str:
    """Return the letters of the groups that an experiment's runs belong to, such as ``A`` or ``A+B``."""
    present = {environment(run.manifest) for run in experiment.runs}
    return "+".join(group.letter for group in every if group.environment in present)


def legend(every: Sequence[Group]) -> tuple[str, ...]:
    """Say what sets each group apart, one sentence for each; nothing where there is one group only."""
    if len(every) < 2:
        return ()
    sentences = [f"In {group.letter} ({plural(group.runs, 'run')}): {group.differs}." for group in every]
    alike: dict[tuple[bool, Environment], list[str]] = {}
    for group in every:
        known = replace(group.environment, threads=None) if group.on_gpu else group.environment
        alike.setdefault((group.on_gpu, known), []).append(group.letter)
    if len(alike) > 1:
        sentences.append("Seconds of one of these groups cannot be compared with those of another.")
    same = [listed(letters) for letters in alike.values() if len(letters) > 1]
    return (*sentences, *(f"{letters} {BUT_ON_GPU}: their seconds can be compared." for letters in same))


def group_letter(index: int) -> str:
    """Return A to Z, then AA, AB and so on."""
    letters = ""
    index += 1
    while index:
        index, place = divmod(index - 1, len(ascii_uppercase))
        letters = ascii_uppercase[place] + letters
    return letters


def _what_differs(item: Environment, every: Sequence[Environment]) -> str:
    """Name the machine, threads and package versions of a group where not all groups share them."""
    words = []
    if len({other.simulated for other in every}) > 1:
        words += item.profile_in_words or ["not simulated"]
    if len({other.machine for other in every}) > 1:
        words.append(item.machine_in_words)
    if len({other.threads for other in every}) > 1:
        words += item.threads_in_words or ["unknown thread count"]
    mine, versions = dict(item.versions), [dict(other.versions) for other in every]
    for name in sorted({name for known in versions for name in known}):
        if len({known.get(name, NOT_INSTALLED) for known in versions}) > 1:
            installed = mine.get(name, NOT_INSTALLED) != NOT_INSTALLED
            words.append(f"{name} {mine[name]}" if installed else f"no {name}")
    return ", ".join(words)


_LIMITS = {
    "driver": "driver {}",
    "power_limit_w": "power limit {} W",
    "max_sm_clock_mhz": "SM clock up to {} MHz",
    "max_memory_clock_mhz": "memory clock up to {} MHz",
    "application_sm_clock_mhz": "SM clock set to {} MHz",
    "application_memory_clock_mhz": "memory clock set to {} MHz",
}


def _gpu_words(gpus: object, recorded: bool) -> list[str]:
    """Name GPUs and, where those of a machine were ``recorded``, driver and limits; older runs know no driver."""
    known = _gpus(gpus)
    if not known:
        return []
    words = [f"{len(known)} x {' and '.join(sorted({str(gpu.get('name')) for gpu in known}))}"]
    for key, form in _LIMITS.items() if recorded else ():
        values = {str(gpu.get(key) or UNKNOWN) for gpu in known}
        if values != {UNKNOWN} or key == "driver":
            words.append(form.format(" and ".join(sorted(values))))
    return words


def caveats(experiment: Experiment) -> list[str]:
    """Return sentences on unfinished runs, turns, unlike machines and versions, shared GPUs, and what is no verdict."""
    if any(run.timed_syncs for run in experiment.runs):
        sweep = "Transports took turns within each repeat, sizes came one after the other. Figures, not a verdict."
        return [*_unfinished(experiment), *unlike(experiment.runs), sweep]
    return [
        *_simulated(experiment),
        *_unfinished(experiment),
        *unlike(experiment.runs),
        *_turns(experiment),
        *_shared_gpu(experiment),
        *_polling(experiment),
        *_no_verdict(experiment),
    ]


def unlike(runs: Sequence[RunFigures]) -> list[str]:
    """Say where some runs were simulated and others took place, and where they differ in machine, versions or code."""
    manifests = [run.manifest for run in runs]
    sentences = []
    simulated = sum(manifest.simulated is not None for manifest in manifests)
    if 0 < simulated < len(runs):
        sentences.append(
            f"{plural(simulated, 'run')} of {len(runs)} were simulated and the others are real: a difference between "
            "the two may be an error of the simulation."
        )
    machines = _distinct(str(manifest.machine.get("fingerprint", UNKNOWN)) for manifest in manifests)
    if len(machines) > 1:
        kinds = f"{len(machines)} kinds of machine ({', '.join(machines)})"
        sentences.append(f"The runs come from {kinds}: seconds cannot be compared.")
    systems = [_system(manifest.machine.get("os")) for manifest in manifests if manifest.simulated is None]
    known = _distinct(name for name in systems if name != UNKNOWN)
    sentences += _differ("operating systems", known)
    if known and UNKNOWN in systems:
        unknown = plural(systems.count(UNKNOWN), "run")
        sentences.append(f"The operating system of {unknown} is unknown; of the others it is {', '.join(known)}.")
    for name in _distinct(name for manifest in manifests for name in manifest.versions):
        versions = [str(manifest.versions.get(name) or NOT_INSTALLED) for manifest in manifests]
        sentences += _differ(f"versions of {name}", versions)
    threads = _differ("thread counts", (str(item.threads) for item in manifests if item.threads is not None))
    beside = (
        " All runs compute on a GPU, so that this is no reason not to compare them." if all(map(on_gpu, runs)) else ""
    )
    sentences += [text + beside for text in threads]
    sentences += _unlike_inputs(runs)
    return sentences + _differ("commits", ((item.commit or "none")[:7] for item in manifests))


def recorded_by_all(runs: Sequence[RunFigures]) -> list[str]:
    """Return the names of the inputs that every run has recorded, but for those of trackers and probes."""
    names = [name for name in (runs[0].manifest.inputs if runs else ()) if not name.startswith(COMPUTE_NOTHING)]
    return [name for name in names if all(name in run.manifest.inputs for run in runs)]


def _unlike_inputs(runs: Sequence[RunFigures]) -> list[str]:
    """Name the inputs that are not the same in all runs, with the runs of which arms have which; and say where
    validation rewards are of different prompts."""
    told = {}
    for name in recorded_by_all(runs):
        whose: dict[str, Counter[str]] = {}
        for run in runs:
            arm = run.manifest.arm or run.manifest.experiment
            whose.setdefault(_input_in_words(run.manifest, name), Counter())[arm] += 1
        if len(whose) > 1:
            values = (f"{words} in {plural(arms.total(), 'run')} of {listed([*arms])}" for words, arms in whose.items())
            told[name] = f"{name} ({'; '.join(values)})"
    sentences = [f"The runs differ in what they are made of: {', '.join(told.values())}."] if told else []
    if VALIDATION_PROMPTS in told:
        sentences.append("The validation prompts differ: rewards on them cannot be compared.")
    return sentences


def _input_in_words(manifest: Manifest, name: str) -> str:
    found = manifest.inputs[name]
    rows = f"{found['rows']} rows, " if "rows" in found else ""
    called = f"{found['name']}, " if found.get("name") else ""
    return f"{called}{rows}SHA-256 {str(found['sha256'])[:12]}"


def _differ(what: str, values: Iterable[str]) -> list[str]:
    distinct = _distinct(values)
    return [f"The {what} differ: {', '.join(distinct)}."] if len(distinct) > 1 else []


def _system(os: object) -> str:
    """Name an operating system; runs of before it was written have none."""
    if not isinstance(os, dict):
        return UNKNOWN
    return f"{os.get('distribution') or os.get('system')} (kernel {os.get('kernel')})"


def origin(experiment: Experiment) -> str:
    """Describe machine, versions and code of the first run in one line."""
    manifest = experiment.runs[0].manifest
    machine = manifest.machine
    if experiment.runs[0].is_imported:
        return str(machine.get("missing", {}).get("cpu") or "imported from another trainer's log")
    parts = [f"SIMULATED by the machine profile {experiment.simulated}"] if experiment.simulated else []
    parts.append(str(machine.get("cpu") or "unknown CPU"))
    if machine.get("cores"):
        parts.append(plural(int(machine["cores"]), "core"))
    threads = {run.manifest.threads for run in experiment.runs}
    if manifest.threads and len(threads) == 1:
        parts.append(plural(manifest.threads, "thread"))
    if machine.get("memory_gib"):
        parts.append(f"{machine['memory_gib']} GiB")
    gpus = _gpus(machine.get("gpus"))
    names = _distinct(str(gpu.get("name")) for gpu in gpus)
    parts.append(f"{len(gpus)} x {', '.join(names)}" if gpus else "no GPU seen")
    parts += [f"{name} {manifest.versions[name]}" for name in ("torch", "python") if manifest.versions.get(name)]
    if manifest.commit:
        parts.append(f"commit {manifest.commit[:7]}" + (" with uncommitted changes" if manifest.dirty else ""))
    return ", ".join(parts)


def _gpus(gpus: object) -> list[dict[str, object]]:
    """Return what is known of each GPU; older runs know names only."""
    return [gpu if isinstance(gpu, dict) else {"name": gpu} for gpu in gpus] if isinstance(gpus, list) else []


def _simulated(experiment: Experiment) -> list[str]:
    """Say that the runs never took place, and what is not known of them for that."""
    if experiment.simulated is None:
        return []
    sentences = [
        f"These runs are simulated: their seconds are predictions of the machine profile {experiment.simulated}. "
        "Rewards, losses and gradients are not simulated."
    ]
    if any(run.manifest.machine.get("origin") == "datasheet" for run in experiment.runs):
        profile = f"The machine profile {experiment.simulated}"
        sentences.append(f"{profile} is taken from data sheets and was not measured.")
    beyond = [run.manifest.outcome.get("extrapolating") for run in experiment.runs]
    texts = _distinct(str(text) for each in beyond if isinstance(each, list | tuple) for text in each if text)
    return sentences + [f"EXTRAPOLATING: {text}" for text in texts]


def _unfinished(experiment: Experiment) -> list[str]:
    sentences = []
    for variant in experiment.variants:
        for run in variant.runs:
            if not run.is_completed:
                seed = f", seed {run.manifest.seed}" if len(variant.runs) > 1 else ""
                reason = f": {run.manifest.error}" if run.manifest.error else ""
                sentences.append(f"{variant.name}{seed}: {run.status} after {plural(run.steps, 'step')}{reason}")
    return sentences


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
    return ["The arms took turns step by step, so a slow phase of the machine affects all of them."]


def _shared_gpu(experiment: Experiment) -> list[str]:
    """Say whose parts worked side by side on one GPU, and what that cost where it was measured."""
    names = [variant.name for variant in experiment.variants if any(map(_shares_gpu, variant.runs))]
    if not names:
        return []
    whose = f"{', '.join(names)}: " if len(names) < len(experiment.variants) else ""
    return [
        f"{whose}Generator and Learner share one GPU in one process, each on a CUDA stream of its own: they share its "
        "compute, so that each slows the other. On one H100, with weights of 1.5B parameters, a decode step took 8 ms "
        "alone and 12 to 18 ms beside training."
    ]


def _shares_gpu(run: RunFigures) -> bool:
    """Whether the parts of a run had threads of their own in one process, and computed on its GPU."""
    settings = flat_settings(run.settings)
    in_process = settings.get("transport.type") == "in_process"
    return in_process and settings.get("placement.colocated") is False and on_gpu(run)


def on_gpu(run: RunFigures) -> bool:
    """Whether Generator and Learner of a run both computed on a GPU, by its settings; see ``Scenario.device_of``."""
    settings, manifest = flat_settings(run.settings), run.manifest
    device = settings.get("placement.device")
    has_gpu = bool(manifest.machine.get("gpus")) and not str(manifest.versions.get("torch")).endswith("+cpu")
    reserved = [settings.get(f"placement.{part}.gpus") for part in ("generator", "learner")]
    return (
        manifest.simulated is None
        and (settings.get("transport.type") == "in_process" or all(reserved))
        and settings.get("model.type") != "paced"
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
        return [f"Up to {most} runs of one variant, and nothing to compare it with: figures, not a verdict."]
    if most >= FEWEST_SEEDS:
        return ["Intervals of rewards hold for all pairs of variants together, and assume normal differences."]
    return []


def _distinct(items: Iterable[str]) -> list[str]:
    """Return the distinct values in the order of their first appearance."""
    return list(dict.fromkeys(items))
