"""Prompt and response lengths as they were sampled, by task, model and purpose: what a simulation draws from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter

from harness.results import Run
from harness.results.rows import ShardRow
from harness.results.writer import SCENARIO
from harness.scenario import Scenario, load_scenario
from harness.simulate.circumstances import model_name
from harness.simulate.machine import Lengths
from harness.simulate.terms import Group

MOST_RESPONSES = {"train": 2048, "evaluate": 512}
"""Responses that a profile keeps of one task and model, by purpose."""

Sampled = tuple[int, Group]
"""Optimizer steps behind the policy that sampled a group, and the group."""


def recorded_lengths(runs: Sequence[Run]) -> Iterator[Lengths]:
    """Yield the lengths of the runs in which they were not pinned, from the least trained policy to the most trained.

    Policies that learn change how long their responses are, so it is kept how far each had come.
    """
    found: dict[tuple[str, str, str, int], list[Sampled]] = defaultdict(list)
    for run in runs:
        scenario = load_scenario(run.folder / SCENARIO)
        if scenario.sampling.pinned_lengths is None:
            for purpose, sampled in _of_run(run, scenario):
                found[scenario.task.type, model_name(scenario), purpose, scenario.sampling.max_tokens].append(sampled)
    for (task, model, purpose, cap), groups in sorted(found.items()):
        kept = _evenly(sorted(groups, key=itemgetter(0)), MOST_RESPONSES[purpose])
        yield Lengths(
            task=task,
            model=model,
            purpose="train" if purpose == "train" else "evaluate",
            cap=cap,
            prompts=tuple(prompt for _, (prompt, _) in kept),
            groups=tuple(tuple(lengths) for _, (_, lengths) in kept),
            trained=tuple(trained for trained, _ in kept),
        )


def _of_run(run: Run, scenario: Scenario) -> Iterator[tuple[str, Sampled]]:
    """Yield purpose and group of every group whose prompt is known."""
    for row in run.groups():
        if isinstance(row, ShardRow):
            for prompt, lengths, (oldest, _) in zip(row.prompt_tokens, row.lengths, row.versions, strict=True):
                if prompt is not None and lengths:
                    yield row.purpose, (oldest * scenario.optimizer_steps_per_batch, (prompt, lengths))


def _evenly(groups: Sequence[Sampled], responses: int) -> list[Sampled]:
    """Return as many groups as make so many responses, evenly spaced over what there is."""
    each = max(len(lengths) for _, (_, lengths) in groups)
    count = max(1, min(len(groups), responses // each))
    return [groups[place * len(groups) // count] for place in range(count)]
