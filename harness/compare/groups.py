"""Which runs were made under the same conditions: the same kind of machine, versions and threads.

Groups are shown side by side; only a verdict across them is refused, unless it is told which difference to allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from harness.compare.experiments import Experiment
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
