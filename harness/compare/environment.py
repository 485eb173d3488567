"""What runs came from: machine, versions, threads and code, and where runs differ in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase

from harness.compare.experiment import Experiment, Member
from harness.compare.numbers import listed, plural
from harness.results import Manifest
from harness.results.manifest import COMPUTE_NOTHING, VALIDATION_PROMPTS
from harness.results.reader import flat_settings

DIFFERENCES = ("machine", "versions", "threads", "commit", "simulation")
UNKNOWN, NOT_INSTALLED = "unknown", "none"
_LIMITS = {
    "driver": "driver {}",
    "power_limit_w": "power limit {} W",
    "max_sm_clock_mhz": "SM clock up to {} MHz",
    "max_memory_clock_mhz": "memory clock up to {} MHz",
    "application_sm_clock_mhz": "SM clock set to {} MHz",
    "application_memory_clock_mhz": "memory clock set to {} MHz",
}


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
        profile = [] if self.simulated is None else [self.profile_in_words]
        threads = [] if self.threads is None else [self.threads_in_words]
        return ", ".join([*profile, self.machine_in_words, *threads, *(" ".join(pair) for pair in self.versions)])

    @property
    def profile_in_words(self) -> str:
        """The machine profile of simulated runs."""
        return "not simulated" if self.simulated is None else f"simulated by the profile {self.simulated}"

    @property
    def machine_in_words(self) -> str:
        """Facts and fingerprint of the machine."""
        return f"{self.facts} (machine {self.machine})"

    @property
    def threads_in_words(self) -> str:
        """The thread count."""
        return "unknown thread count" if self.threads is None else plural(self.threads, "thread")


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
    members: dict[Environment, list[Member]] = {}
    for experiment in experiments:
        for member in experiment.members:
            members.setdefault(environment(member.manifest), []).append(member)
    return [
        Group(group_letter(index), item, len(runs), _what_differs(item, list(members)), all(map(on_gpu, runs)))
        for index, (item, runs) in enumerate(members.items())
    ]


def letters_of(experiment: Experiment, every: Sequence[Group]) -> str:
    """Return the letters of the groups that an experiment's runs belong to, such as ``A`` or ``A+B``."""
    present = {environment(member.manifest) for member in experiment.members}
    return "+".join(group.letter for group in every if group.environment in present)


def legend(every: Sequence[Group]) -> tuple[str, ...]:
    """Say what sets each group apart, one sentence for each; nothing where there is one group only."""
    if len(every) < 2:
        return ()
    sentences = [f"{group.letter} ({plural(group.runs, 'run')}): {group.differs}." for group in every]
    alike: dict[tuple[bool, Environment], list[str]] = {}
    for group in every:
        known = replace(group.environment, threads=None) if group.on_gpu else group.environment
        alike.setdefault((group.on_gpu, known), []).append(group.letter)
    if len(alike) > 1:
        sentences.append("Compare seconds within one of these groups only.")
    same = [listed(letters) for letters in alike.values() if len(letters) > 1]
    return (
        *sentences,
        *(f"{each} compute on a GPU, and differ in CPU threads alone: compare their seconds freely." for each in same),
    )


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
        words.append(item.profile_in_words)
    if len({other.machine for other in every}) > 1:
        words.append(item.machine_in_words)
    if len({other.threads for other in every}) > 1:
        words.append(item.threads_in_words)
    mine, versions = dict(item.versions), [dict(other.versions) for other in every]
    for name in sorted({name for known in versions for name in known}):
        if len({known.get(name) for known in versions}) > 1:
            words.append(f"{name} {mine[name]}" if name in mine else f"no {name}")
    return ", ".join(words)


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


def _gpus(gpus: object) -> list[dict[str, object]]:
    """Return what is known of each GPU; older runs know names only."""
    return [gpu if isinstance(gpu, dict) else {"name": gpu} for gpu in gpus] if isinstance(gpus, list) else []


def origin(experiment: Experiment) -> str:
    """Describe machine, versions and code of the first run in one line."""
    manifest = experiment.members[0].manifest
    machine = manifest.machine
    if experiment.members[0].figures["is_imported"]:
        return str(machine.get("missing", {}).get("cpu") or "imported from another trainer's log")
    parts = [f"SIMULATED by the machine profile {experiment.simulated}"] if experiment.simulated else []
    parts.append(str(machine.get("cpu") or "unknown CPU"))
    if machine.get("cores"):
        parts.append(plural(int(machine["cores"]), "core"))
    if manifest.threads and len({member.manifest.threads for member in experiment.members}) == 1:
        parts.append(plural(manifest.threads, "thread"))
    if machine.get("memory_gib"):
        parts.append(f"{machine['memory_gib']} GiB")
    gpus = _gpus(machine.get("gpus"))
    names = dict.fromkeys(str(gpu.get("name")) for gpu in gpus)
    parts.append(f"{len(gpus)} x {', '.join(names)}" if gpus else "no GPU seen")
    parts += [f"{name} {manifest.versions[name]}" for name in ("torch", "python") if manifest.versions.get(name)]
    if manifest.commit:
        parts.append(f"commit {manifest.commit[:7]}" + (" with uncommitted changes" if manifest.dirty else ""))
    return ", ".join(parts)


def on_gpu(member: Member) -> bool:
    """Whether Generator and Learner of a run both computed on a GPU, by its settings; see ``Scenario.device_of``."""
    settings, manifest = flat_settings(member.settings), member.manifest
    device = settings.get("placement.device")
    has_gpu = bool(manifest.machine.get("gpus")) and not str(manifest.versions.get("torch")).endswith("+cpu")
    reserved = [settings.get(f"placement.{part}.gpus") for part in ("generator", "learner")]
    return (
        manifest.simulated is None
        and (settings.get("transport.type") == "in_process" or all(reserved))
        and settings.get("model.type") != "paced"
        and (device == "cuda" or (device == "auto" and has_gpu))
    )


def recorded_by_all(members: Sequence[Member]) -> list[str]:
    """Return the names of the inputs that every run has recorded, but for those of trackers and probes."""
    names = [name for name in (members[0].manifest.inputs if members else ()) if not name.startswith(COMPUTE_NOTHING)]
    return [name for name in names if all(name in member.manifest.inputs for member in members)]


def unlike(members: Sequence[Member]) -> list[str]:
    """Say where some runs were simulated and others took place, and where they differ in machine, versions or code."""
    manifests = [member.manifest for member in members]
    sentences = []
    simulated = sum(manifest.simulated is not None for manifest in manifests)
    if 0 < simulated < len(members):
        sentences.append(
            f"{plural(simulated, 'run')} of {len(members)} were simulated and the others are real: a difference "
            "between the two may be an error of the simulation."
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
    beside = " All runs compute on a GPU, so their seconds can be compared all the same." * all(map(on_gpu, members))
    sentences += [text + beside for text in threads]
    sentences += _unlike_inputs(members)
    return sentences + _differ("commits", ((item.commit or "none")[:7] for item in manifests))


def _unlike_inputs(members: Sequence[Member]) -> list[str]:
    """Name the inputs that are not the same in all runs, with the runs of which arms have which; and say where
    validation rewards are of different prompts."""
    told = {}
    for name in recorded_by_all(members):
        whose: dict[str, Counter[str]] = {}
        for member in members:
            arm = member.manifest.arm or member.manifest.experiment
            whose.setdefault(_input_in_words(member.manifest, name), Counter())[arm] += 1
        if len(whose) > 1:
            values = (f"{words} in {plural(arms.total(), 'run')} of {listed([*arms])}" for words, arms in whose.items())
            told[name] = f"{name} ({'; '.join(values)})"
    sentences = [f"The runs differ in their inputs: {', '.join(told.values())}."] if told else []
    if VALIDATION_PROMPTS in told:
        sentences.append("The validation prompts differ: rewards on them cannot be compared.")
    return sentences


def _input_in_words(manifest: Manifest, name: str) -> str:
    known = manifest.inputs[name]
    rows = f"{known['rows']} rows, " if "rows" in known else ""
    called = f"{known['name']}, " if known.get("name") else ""
    return f"{called}{rows}SHA-256 {str(known['sha256'])[:12]}"


def _differ(what: str, values: Iterable[str]) -> list[str]:
    distinct = _distinct(values)
    return [f"The {what} differ: {', '.join(distinct)}."] if len(distinct) > 1 else []


def _system(os: object) -> str:
    """Name an operating system; runs of before it was written have none."""
    if not isinstance(os, dict):
        return UNKNOWN
    return f"{os.get('distribution') or os.get('system')} (kernel {os.get('kernel')})"


def _distinct(items: Iterable[str]) -> list[str]:
    """Return the distinct values in the order of their first appearance."""
    return list(dict.fromkeys(items))
