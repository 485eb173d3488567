"""What runs came from: machine, versions, threads and code, and where runs differ in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

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


def environment_values(manifest: Manifest) -> dict[str, str]:
    """Return what a run has of each of ``DIFFERENCES``; equal texts are alike.

    The GPU's driver, limits of power and clocks are part of the machine. A thread count that was not recorded is
    unlike one that was.
    """
    versions = sorted(f"{name} {version}" for name, version in manifest.versions.items() if version)
    return {
        "machine": str(manifest.machine.get("fingerprint") or UNKNOWN),
        "versions": ", ".join(versions),
        "threads": UNKNOWN if manifest.threads is None else plural(manifest.threads, "thread"),
        "commit": manifest.commit or UNKNOWN,
        "simulation": manifest.simulated or "took place",
    }


def machine_facts(manifest: Manifest, with_limits: bool = True) -> list[str]:
    """Name processor, cores, memory and GPUs of a run's machine.

    Args:
        with_limits: also driver, power and clocks of GPUs, where the run took place; older runs know no driver.
    """
    machine, gpus = manifest.machine, manifest.machine.get("gpus")
    facts = [str(machine.get("cpu") or "unknown CPU")]
    facts += [plural(machine["cores"], "core")] if machine.get("cores") else []
    facts += [f"{machine['memory_gib']} GiB"] if machine.get("memory_gib") else []
    known = [gpu if isinstance(gpu, dict) else {"name": gpu} for gpu in gpus] if isinstance(gpus, list) else []
    if known:
        facts.append(f"{len(known)} x {' and '.join(sorted({str(gpu.get('name')) for gpu in known}))}")
    for key, form in _LIMITS.items() if known and with_limits and manifest.simulated is None else ():
        values = {str(gpu.get(key) or UNKNOWN) for gpu in known}
        if values != {UNKNOWN} or key == "driver":
            facts.append(form.format(" and ".join(sorted(values))))
    return facts


def origin(experiment: Experiment) -> str:
    """Describe machine, versions and code of the first run in one line."""
    manifest = experiment.members[0].manifest
    if experiment.members[0].figures["is_imported"]:
        return str(manifest.machine.get("missing", {}).get("cpu") or "imported from another trainer's log")
    parts = [f"SIMULATED by the machine profile {experiment.simulated}"] if experiment.simulated else []
    facts = machine_facts(manifest, with_limits=False)
    if manifest.threads and len({member.manifest.threads for member in experiment.members}) == 1:
        facts.insert(2 if manifest.machine.get("cores") else 1, plural(manifest.threads, "thread"))
    parts += [*facts, *([] if manifest.machine.get("gpus") else ["no GPU seen"])]
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
    machines = dict.fromkeys(str(manifest.machine.get("fingerprint", UNKNOWN)) for manifest in manifests)
    if len(machines) > 1:
        kinds = f"{len(machines)} kinds of machine ({', '.join(machines)})"
        sentences.append(f"The runs come from {kinds}, on which seconds depend.")
    systems = [_system(manifest.machine.get("os")) for manifest in manifests if manifest.simulated is None]
    known = dict.fromkeys(name for name in systems if name != UNKNOWN)
    sentences += _differ("operating systems", known)
    if known and UNKNOWN in systems:
        unknown = plural(systems.count(UNKNOWN), "run")
        sentences.append(f"The operating system of {unknown} is unknown; of the others it is {', '.join(known)}.")
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.versions):
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
    distinct = dict.fromkeys(values)
    return [f"The {what} differ: {', '.join(distinct)}."] if len(distinct) > 1 else []


def _system(os: object) -> str:
    """Name an operating system; runs of before it was written have none."""
    if not isinstance(os, dict):
        return UNKNOWN
    return f"{os.get('distribution') or os.get('system')} (kernel {os.get('kernel')})"
