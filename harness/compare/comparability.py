"""Whether two sets of runs may be set against each other: every run of both sides is looked at, not the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.compare.environment import (
    DIFFERENCES,
    NOT_INSTALLED,
    environment_values,
    machine_facts,
    on_gpu,
    recorded_by_all,
)
from harness.compare.experiment import Member
from harness.compare.numbers import listed, plural, some
from harness.compare.stats import Effect, Verdict
from harness.core.experiment import EXPERIMENT_SETTINGS
from harness.results import Manifest
from harness.results.manifest import MADE_OF, PROMPT_TEMPLATE
from harness.results.reader import flat_settings

SETTINGS = "settings"
"""What ``--allow-difference`` calls all settings at once; one of them goes by its dotted key."""
MOST_NAMED = 5
UNLIKE_IS_MEANT = ("commit",)
"""Two versions of the code are what a comparison may be about."""
_THREADS = ("model.threads", "placement.generator.threads", "placement.scorer.threads", "placement.learner.threads")
_INPUT_KEYS = {name: f"inputs.{name}" for name in MADE_OF} | {PROMPT_TEMPLATE: "task.prompt.sha256"}
_NOT_SAVED = "not recorded"


def why_not_comparable(
    before: Sequence[Member], after: Sequence[Member], allowed: Sequence[str], one_command: bool
) -> list[str]:
    """Return the reasons for which the times of two arms cannot be set against each other; none where they can.

    Args:
        before, after: every run of the two.
        allowed: what may differ all the same: one of ``DIFFERENCES``, ``SETTINGS``, or a setting's dotted key.
        one_command: whether they are arms of one experiment, which differ in settings on purpose. Other thread counts
            then give no reason where the arms set them; nor do they where all runs compute on a GPU.
    """
    accepted = {*allowed, *UNLIKE_IS_MEANT}
    if all(map(on_gpu, [*before, *after])) or (one_command and threads_are_set(before, after)):
        accepted.add("threads")
    reasons = unlike_environments([*before, *after], accepted)
    if not one_command:
        reasons += unlike_settings(before, after, allowed)
    return [*reasons, *duplicates(before), *duplicates(after)]


def unlike_environments(runs: Sequence[Member], accepted: set[str]) -> list[str]:
    """Say in which of ``DIFFERENCES`` the runs differ, with each value and how many runs have it.

    Runs without a step have no time to compare and are passed over.
    """
    manifests = [run.manifest for run in runs if run.steps]
    known = [environment_values(manifest) for manifest in manifests]
    unlike = []
    for name in DIFFERENCES:
        if name not in accepted and len({values[name] for values in known}) > 1:
            counts = Counter(_shown_values(name, manifests)).most_common(MOST_NAMED)
            told = "; ".join(f"{value}: {plural(count, 'run')}" for value, count in counts)
            unlike.append(f"{name} ({told})")
    return [f"they differ in {listed(unlike)}"] if unlike else []


def _shown_values(name: str, manifests: Sequence[Manifest]) -> list[str]:
    """Return for each run what to show of one of ``DIFFERENCES``: of machines and versions only what is unlike."""
    values = [environment_values(manifest)[name] for manifest in manifests]
    if name == "versions":
        return _what_is_unlike([value.split(", ") for value in values])
    if name == "machine":
        facts = [machine_facts(manifest) for manifest in manifests]
        return _what_is_unlike([[*own, f"fingerprint {value}"] for own, value in zip(facts, values, strict=True)])
    return values


def _what_is_unlike(facts: Sequence[Sequence[str]]) -> list[str]:
    """Return of each run the facts that not all runs share."""
    alike = set(facts[0]).intersection(*facts)
    return [", ".join(fact for fact in own if fact not in alike) or NOT_INSTALLED for own in facts]


def threads_are_set(before: Sequence[Member], after: Sequence[Member]) -> bool:
    """Whether the two arms' own settings ask for unlike threads, and each arm's runs are alike."""
    asked = [{key: flat_settings(run.settings).get(key) for key in _THREADS} for run in (before[0], after[0])]
    used = [{run.manifest.threads for run in runs if run.steps} for runs in (before, after)]
    return asked[0] != asked[1] and max(map(len, used)) == 1


def unlike_threads(before: Sequence[Member], after: Sequence[Member], allowed: Sequence[str]) -> str | None:
    """Say with how many threads two arms ran where they differ, for a gate to refuse; None where that is allowed, or
    all runs compute on a GPU."""
    counts = sorted({run.manifest.threads for run in (*before, *after) if run.manifest.threads is not None})
    if len(counts) < 2 or "threads" in allowed or all(map(on_gpu, [*before, *after])):
        return None
    return f"they ran with {listed([str(count) for count in counts])} threads; --allow-difference threads accepts that"


def unlike_settings(before: Sequence[Member], after: Sequence[Member], allowed: Sequence[str]) -> list[str]:
    """Name settings that are not the same in every run of both, with the values; at most ``MOST_NAMED`` of them.

    What not every run has recorded is unlike. ``EXPERIMENT_SETTINGS`` is not looked at.
    """
    runs = [*before, *after]
    if SETTINGS in allowed:
        return []
    if unknown := sum(not run.settings for run in runs):
        return [f"the settings of {plural(unknown, 'run')} were not recorded"]
    tables = compared_settings(runs)
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: dict.fromkeys(str(table.get(key, _NOT_SAVED)) for table in tables) for key in keys}
    unlike = [
        f"{key} ({', '.join(own)})" for key, own in values.items() if len(own) > 1 and not is_allowed(key, allowed)
    ]
    return [f"their settings differ: {listed(some(unlike, MOST_NAMED))}"] if unlike else []


def is_allowed(key: str, allowed: Sequence[str]) -> bool:
    """Whether a setting may differ: it is named, or a section that it is in."""
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def compared_settings(runs: Sequence[Member]) -> list[dict[str, Any]]:
    """Return for each run by dotted key the settings that have to be alike, how the arms took turns in fact, and the
    digests of its inputs where every run has recorded them. The user's own code is what a comparison may be about.

    ``model.threads: null`` means as many as the machine gives: where all parts share one process and every run has
    recorded how many threads that were, ``environment_values`` compares those in place of the setting. Where all runs
    compute on a GPU, no setting of threads has to be alike.
    """
    flat = [flat_settings(run.settings) for run in runs]
    in_process = all(settings.get("transport.type") == "in_process" for settings in flat)
    recorded = in_process and all(run.manifest.threads is not None for run in runs)
    left_out = _THREADS if recorded or all(map(on_gpu, runs)) else ()
    shared = {PROMPT_TEMPLATE, *recorded_by_all(runs)} & {*MADE_OF}
    tables = []
    for run, settings in zip(runs, flat, strict=True):
        kept = {key: value for key, value in settings.items() if key.split(".")[0] not in EXPERIMENT_SETTINGS}
        kept["interleaving"] = run.manifest.interleaving or "run"
        inputs = {name: each["sha256"] for name, each in run.manifest.inputs.items() if name in shared}
        kept |= {_INPUT_KEYS[name]: str(digest)[:12] for name, digest in inputs.items()}
        tables.append({key: value for key, value in kept.items() if key not in left_out})
    return tables


def duplicates(runs: Sequence[Member]) -> list[str]:
    """Name runs of one arm that claim the same block and seed: which of them counts cannot be told."""
    places: dict[tuple[str, int | None, int], list[Member]] = {}
    for run in runs:
        places.setdefault((run.manifest.experiment, run.manifest.block, run.manifest.seed), []).append(run)
    twice = [
        f"{listed(some([repr(str(run.folder)) for run in claimed], 3))} are the same run "
        f"({'' if block is None else f'block {block}, '}seed {seed})"
        for (_, block, seed), claimed in places.items()
        if len(claimed) > 1
    ]
    return some(twice, 1)


def as_far_as_they_got(effect: Effect, before: Sequence[Member], after: Sequence[Member]) -> Effect:
    """Take back what runs that did not get to their end cannot show.

    That the steps before a run died are alike does not make it ``equivalent``; and where no run of a side got to its
    end, what lies between the two is not known: there is no interval.
    """
    dead = [runs for runs in (before, after) if not any(run.is_completed for run in runs)]
    unfinished = [run for run in (*before, *after) if not run.is_completed]
    if effect.verdict is Verdict.NOT_COMPARABLE or not unfinished:
        return effect
    if effect.verdict is Verdict.DIFFERENT and not dead:
        return effect
    of = len(before) + len(after)
    reason = f"{len(unfinished)} of {of} runs did not finish"
    more = f"; {effect.reason}" if effect.reason and effect.verdict is Verdict.INCONCLUSIVE else ""
    left = replace(effect, verdict=Verdict.INCONCLUSIVE, reason=reason + more, p=None, p_adjusted=None)
    return replace(left, low=None, high=None, minimum_effect=None) if dead else left
