"""What runs came from, and where they differ: as a caution, or as a reason for which their times are not compared.

Every run of both sides is looked at, not the first ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.compare.experiment import Experiment, Member
from harness.compare.numbers import listed, plural, some
from harness.core.experiment import EXPERIMENT_SETTINGS
from harness.results import Manifest
from harness.results.manifest import COMPUTE_NOTHING, MADE_OF, PROMPT_TEMPLATE, VALIDATION_PROMPTS
from harness.results.reader import flat_settings

DIFFERENCES = ("machine", "versions", "threads", "commit", "simulation")
SETTINGS = "settings"
"""What ``--allow-difference`` calls all settings at once; one of them goes by its dotted key."""
UNKNOWN, NONE, TOOK_PLACE = "unknown", "none", "took place"
MOST_NAMED = 5
THREADS = ("model.threads", "placement.generator.threads", "placement.scorer.threads", "placement.learner.threads")
"""Settings of threads."""
DIFFER_IN = "they differ in "
"""Begins the reason of ``why_not_comparable`` that is of the environment."""
_INPUT_KEYS = {name: f"inputs.{name}" for name in MADE_OF} | {PROMPT_TEMPLATE: "task.prompt.sha256"}
_BESIDE = {
    "machine": "Seconds depend on the machine.",
    "simulation": "A difference between simulated and real runs may be an error of the simulation.",
    VALIDATION_PROMPTS: "Rewards on unlike validation prompts cannot be compared.",
}
"""What a caution adds where runs differ in this."""
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

    The GPU's driver, limits of power and clocks are part of the machine. What was not recorded is unlike what was.
    """
    versions = sorted(f"{name} {version}" for name, version in manifest.versions.items() if version)
    return {
        "machine": str(manifest.machine.get("fingerprint") or UNKNOWN),
        "versions": ", ".join(versions),
        "threads": UNKNOWN if manifest.threads is None else plural(manifest.threads, "thread"),
        "commit": manifest.commit or UNKNOWN,
        "simulation": manifest.simulated or TOOK_PLACE,
    }


def machine_facts(manifest: Manifest, with_limits: bool = True) -> list[str]:
    """Name processor, cores, memory and GPUs of a run's machine; ``with_limits`` also driver, power and clocks of GPUs,
    where the run took place."""
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


def unlike(members: Sequence[Member], said: Collection[str] = ()) -> list[str]:
    """Say in one sentence where runs differ in machine, versions, code and inputs; empty where they do not.

    An operating system that some have not recorded is no difference.

    Args:
        said: what is left out of it.
    """
    columns = _environments([member.manifest for member in members])
    columns = {name: values for name, values in columns.items() if name not in said}
    systems = [_system(member.manifest.machine.get("os")) for member in members]
    columns |= {} if UNKNOWN in systems else {"operating system": systems}
    columns |= {name: [_input(member.manifest, name) for member in members] for name in recorded_by_all(members)}
    differing = _differing(columns)
    if not differing:
        return []
    beside = [sentence for name, sentence in _BESIDE.items() if name in differing]
    return [" ".join([f"The runs differ in {listed([*differing.values()])}.", *beside])]


def _environments(manifests: Sequence[Manifest]) -> dict[str, list[str]]:
    """Return what to show of each run for each of ``DIFFERENCES``: of machines and versions only what is unlike.

    A program that was recorded has packages and code of its own: beside runs of the harness' loop, those are compared
    that both have.
    """
    is_program = [manifest.outcome.get("recorded") is not None for manifest in manifests]
    if any(is_program) and not all(is_program):
        shared = set.intersection(*({*manifest.versions} for manifest in manifests))
        manifests = [
            replace(each, commit=None, versions={name: each.versions[name] for name in sorted(shared)})
            for each in manifests
        ]
    known = [environment_values(manifest) for manifest in manifests]
    columns = {name: [values[name] for values in known] for name in DIFFERENCES}
    columns["commit"] = [commit[:7] for commit in columns["commit"]]
    if len({*columns["versions"]}) > 1:
        columns["versions"] = _what_is_unlike([versions.split(", ") for versions in columns["versions"]])
    if len({*columns["machine"]}) > 1:
        named = zip(manifests, columns["machine"], strict=True)
        columns["machine"] = _what_is_unlike([[*machine_facts(each), f"fingerprint {value}"] for each, value in named])
    return columns


def _what_is_unlike(facts: Sequence[Sequence[str]]) -> list[str]:
    """Return of each run the facts that not all runs share."""
    alike = set(facts[0]).intersection(*facts)
    return [", ".join(fact for fact in own if fact not in alike) or NONE for own in facts]


def _differing(columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Name what is not the same in all runs, with each value and how many runs have it."""
    differing = {}
    for name, values in columns.items():
        counts = [f"{value}: {plural(count, 'run')}" for value, count in Counter(values).most_common(MOST_NAMED)]
        if len(counts) > 1:
            differing[name] = f"{name} ({'; '.join(counts)})"
    return differing


def _input(manifest: Manifest, name: str) -> str:
    known = manifest.inputs[name]
    rows = f"{known['rows']} rows, " if "rows" in known else ""
    called = f"{known['name']}, " if known.get("name") else ""
    return f"{called}{rows}SHA-256 {str(known['sha256'])[:12]}"


def _system(os: object) -> str:
    """Name an operating system; runs of before it was written have none."""
    return (
        f"{os.get('distribution') or os.get('system')} (kernel {os.get('kernel')})" if isinstance(os, dict) else UNKNOWN
    )


# ---- whether two sets of runs may be set against each other


def why_not_comparable(
    before: Sequence[Member], after: Sequence[Member], allowed: Sequence[str], one_command: bool
) -> list[str]:
    """Return the reasons for which the times of two arms cannot be set against each other; none where they can.

    Args:
        before, after: every run of the two; those without a step have no time, and their environment does not count.
        allowed: what may differ all the same: one of ``DIFFERENCES``, ``SETTINGS``, or a setting's dotted key.
        one_command: whether they are arms of one experiment, which differ in settings on purpose. Other thread counts
            then give no reason where the arms set them; nor do they where all runs compute on a GPU.
    """
    runs = [*before, *after]
    accepted = {*allowed, "commit"}  # two versions of the code are what a comparison may be about
    if has_free_threads(before, after, one_command):
        accepted.add("threads")
    columns = _environments([run.manifest for run in runs if run.steps])
    unlike = _differing({name: values for name, values in columns.items() if name not in accepted})
    reasons = [f"{DIFFER_IN}{listed([*unlike.values()])}"] if unlike else []
    if not one_command and SETTINGS not in allowed:
        reasons += _unlike_settings(runs, allowed)
    return [*reasons, *_duplicates(before), *_duplicates(after)]


def environment_sides(before: Sequence[Member], after: Sequence[Member]) -> dict[str, tuple[str, str]]:
    """Return of each of ``DIFFERENCES`` that is not the same on both sides what either has."""
    sides = [[run.manifest for run in runs if run.steps] for runs in (before, after)]
    if not all(sides):
        return {}
    columns = _environments([*sides[0], *sides[1]])
    values = {name: [dict.fromkeys(own[: len(sides[0])]), dict.fromkeys(own[len(sides[0]) :])]
              for name, own in columns.items()}  # fmt: skip
    return {
        name: ("; ".join(mine), "; ".join(theirs)) for name, (mine, theirs) in values.items() if {*mine} != {*theirs}
    }


def has_free_threads(before: Sequence[Member], after: Sequence[Member], one_command: bool) -> bool:
    """Whether threads may differ: two arms of one experiment ask for them, or all runs compute on a GPU."""
    return all(map(on_gpu, [*before, *after])) or (one_command and _set_threads(before, after))


def _set_threads(before: Sequence[Member], after: Sequence[Member]) -> bool:
    """Whether the two arms' own settings ask for unlike threads, and each arm's runs are alike."""
    asked = [{key: flat_settings(run.settings).get(key) for key in THREADS} for run in (before[0], after[0])]
    used = [{run.manifest.threads for run in runs if run.steps} for runs in (before, after)]
    return asked[0] != asked[1] and max(map(len, used)) == 1


def unlike_threads(before: Sequence[Member], after: Sequence[Member], allowed: Sequence[str]) -> str | None:
    """Say with how many threads two arms ran where they differ, for a gate to refuse; None where that is allowed, or
    all runs compute on a GPU."""
    counts = sorted({run.manifest.threads for run in (*before, *after) if run.manifest.threads is not None})
    if len(counts) < 2 or "threads" in allowed or all(map(on_gpu, [*before, *after])):
        return None
    return f"they ran with {listed([str(count) for count in counts])} threads; --allow-difference threads accepts that"


def is_allowed(key: str, allowed: Sequence[str]) -> bool:
    """Whether a setting may differ: it is named, or a section that it is in."""
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def _unlike_settings(runs: Sequence[Member], allowed: Sequence[str]) -> list[str]:
    """Name settings that are not the same in every run, with the values; what one has not recorded is unlike."""
    if all(run.manifest.outcome.get("recorded") is not None for run in runs):
        return []  # programs, whose settings are their own
    if unknown := sum(not run.settings for run in runs):
        return [f"the settings of {plural(unknown, 'run')} were not recorded; --allow-difference settings accepts that"]
    tables = _compared_settings(runs)
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: dict.fromkeys(str(table.get(key, "not recorded")) for table in tables) for key in keys}
    unlike = [
        f"{key} ({', '.join(own)})" for key, own in values.items() if len(own) > 1 and not is_allowed(key, allowed)
    ]
    return [f"their settings differ: {listed(some(unlike, MOST_NAMED))}"] if unlike else []


def _compared_settings(runs: Sequence[Member]) -> list[dict[str, Any]]:
    """Return for each run by dotted key the settings that have to be alike, how the arms took turns in fact, and the
    digests of its inputs where every run has recorded them. The user's own code is what a comparison may be about.

    ``model.threads: null`` means as many as the machine gives: where all parts share one process and every run has
    recorded how many threads that were, ``environment_values`` compares those in place of the setting. Where all runs
    compute on a GPU, no setting of threads has to be alike.
    """
    flat = [flat_settings(run.settings) for run in runs]
    in_process = all(settings.get("transport.type") == "in_process" for settings in flat)
    recorded = in_process and all(run.manifest.threads is not None for run in runs)
    left_out = THREADS if recorded or all(map(on_gpu, runs)) else ()
    shared = {PROMPT_TEMPLATE, *recorded_by_all(runs)} & {*MADE_OF}
    tables = []
    for run, settings in zip(runs, flat, strict=True):
        own = {key: value for key, value in settings.items() if key.split(".")[0] not in EXPERIMENT_SETTINGS}
        own["interleaving"] = run.manifest.interleaving or "run"
        inputs = {name: each["sha256"] for name, each in run.manifest.inputs.items() if name in shared}
        own |= {_INPUT_KEYS[name]: str(digest)[:12] for name, digest in inputs.items()}
        tables.append({key: value for key, value in own.items() if key not in left_out})
    return tables


def _duplicates(runs: Sequence[Member]) -> list[str]:
    """Name runs of one arm that claim the same block and seed: which of them counts cannot be told."""
    places: dict[tuple[str, int | None, int], list[str]] = {}
    for run in runs:
        about = run.manifest
        places.setdefault((about.experiment, about.block, about.seed), []).append(repr(str(run.folder)))
    twice = [
        f"{listed(some(own, 3))} are the same run ({'' if block is None else f'block {block}, '}seed {seed})"
        for (_, block, seed), own in places.items()
        if len(own) > 1
    ]
    return some(twice, 1)
