"""How long the rollouts of a simulated run are: pinned as the engines pin them, or drawn from recorded groups.

The tokens of an order depend on its own seed and on what was recorded, and on nothing else: two scenarios with the same
seed have the same rollouts, whatever else differs between them. With one Generator more, though, rollouts have other
lengths, since each order draws its own; where that would be noise, ``PairedLengths`` draws a batch whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.core.errors import UserError
from harness.core.seeds import derive_seed
from harness.core.types import Purpose, WorkItem
from harness.engines.rng import pinned_lengths
from harness.scenario.schema import Scenario
from harness.simulate.features import Group
from harness.simulate.machine import Lengths, MachineProfile
from harness.tasks.rows import read_rows

Rows = npt.NDArray[np.int64]

PACED_TOKENS = 8
"""Tokens of a paced engine's response, the end of sequence included, where the cap allows it."""
UNKNOWN_PROMPT = 16
"""Tokens of a prompt where the profile has none recorded."""
NEIGHBOURS = 32
"""Recorded groups that an order draws from, where it is known how trained the policies behind them were: those nearest
to its own. Responses change their length as a policy learns."""
HAZARD_WINDOW = 0.25
"""Share of the recorded cap, below it, over which the hazard of ending is taken that goes on beyond it."""


class LengthSource(Protocol):
    """Says how long what an order asks for is."""

    def groups(self, item: WorkItem) -> tuple[Group, ...]:
        """Return the tokens of each group's prompt and of its responses, for the prompts of the order."""

    @property
    def said(self) -> tuple[str, ...]:
        """What had to be assumed, in sentences."""


def length_source(
    scenario: Scenario, machine: MachineProfile, model: str, *, allow: Collection[str] = ()
) -> LengthSource:
    """Return where the lengths of a scenario come from.

    Args:
        scenario: one run.
        machine: the profile, with recorded lengths.
        model: name by which the profile may know the model.
        allow: ``task``: lengths of another task may stand in.

    Raises:
        UserError: the lengths are not pinned, and none were recorded of this task.
    """
    by_purpose = {purpose: _recorded(scenario, machine, model, purpose) for purpose in Purpose}
    if scenario.engine.type == "paced":
        shortest = max(PACED_TOKENS, scenario.sampling.min_tokens + 1)
        tokens = min(shortest, scenario.sampling.max_tokens)
        return PinnedLengths((tokens, tokens), by_purpose)
    if scenario.sampling.pinned_lengths is not None:
        return PinnedLengths(scenario.sampling.pinned_lengths, by_purpose)
    if by_purpose[Purpose.TRAIN] is None and "task" in allow and machine.lengths:
        by_purpose = dict.fromkeys(Purpose, machine.lengths[0])
    if _begins_untrained(scenario):
        by_purpose = {purpose: _endless(found, model) for purpose, found in by_purpose.items()}
    return RecordedLengths(scenario, machine, model, by_purpose)


def _begins_untrained(scenario: Scenario) -> bool:
    return scenario.model.type == "preset" and not scenario.model.warm_start


def _endless(recorded: Lengths | None, model: str) -> Lengths | None:
    """Return lengths of a policy that has learnt nothing: it ends at one token in a thousand, so at the cap.

    Those of the model itself stand, if any were recorded.
    """
    if recorded is None or recorded.model == model:
        return recorded
    first = tuple((1,) * len(group) for group in recorded.groups)
    return recorded.model_copy(update={"model": model, "cap": 1, "groups": first, "trained": ()})


def _recorded(scenario: Scenario, machine: MachineProfile, model: str, purpose: Purpose) -> Lengths | None:
    """Return the recorded lengths that fit best: of this task, of this model, for this purpose."""
    fitting = [found for found in machine.lengths if found.task in (scenario.task.type, "*")]

    def distance(found: Lengths) -> tuple[bool, bool, bool, bool, bool]:
        return (
            found.task == "*",
            found.model not in (model, "*"),
            found.model == "*",
            found.purpose != purpose.value,
            found.cap < scenario.sampling.max_tokens,
        )

    return min(fitting, key=distance, default=None)


class PinnedLengths:
    """Lengths as ``sampling.pinned_lengths`` has every engine draw them.

    Args:
        bounds: shortest and longest.
        recorded: for the tokens of the prompts.
    """

    def __init__(self, bounds: tuple[int, int], recorded: dict[Purpose, Lengths | None]) -> None:
        self._bounds = bounds
        self._prompts = {purpose: _Prompts(found) for purpose, found in recorded.items()}

    def groups(self, item: WorkItem) -> tuple[Group, ...]:
        size, prompts = item.group_size, self._prompts[item.purpose].of(item)
        shortest, longest = self._bounds
        if shortest == longest:
            return tuple((prompt, (shortest,) * size) for prompt in prompts)
        rows = [(place, sample) for place in item.places for sample in range(size)]
        drawn = pinned_lengths(item.seed, rows, self._bounds).tolist()
        return tuple((prompt, tuple(drawn[index * size : (index + 1) * size])) for index, prompt in enumerate(prompts))

    @property
    def said(self) -> tuple[str, ...]:
        unknown = any(prompts.unknown for prompts in self._prompts.values())
        return (f"no prompts of this task were recorded: they count {UNKNOWN_PROMPT} tokens each",) if unknown else ()


class RecordedLengths:
    """Groups drawn from recorded ones.

    A prompt of an order gets one recorded group, with its prompt; its responses are drawn from that group without
    replacement, and with it beyond as many as the group has. A response longer than ``cap`` is cut there. One that was
    itself cut at a lower recorded cap goes on: at each further token it ends with the hazard recorded just below that
    cap.

    Args:
        scenario: one run; its ``sampling.max_tokens`` is the cap.
        machine: the profile.
        model: name by which the profile may know the model.
        recorded: by purpose.

    Raises:
        UserError: there is none for training.
    """

    def __init__(
        self, scenario: Scenario, machine: MachineProfile, model: str, recorded: dict[Purpose, Lengths | None]
    ) -> None:
        self._task, self._model, cap = scenario.task.type, model, scenario.sampling.max_tokens
        self._said: dict[str, None] = {}
        self._pools: dict[Purpose, _Pool] = {}
        each_step = scenario.optimizer_steps_per_batch
        for purpose, found in recorded.items():
            if found is None or not any(found.groups):
                raise _no_lengths(scenario, machine)
            self._pools[purpose] = _Pool(found, cap, each_step)
            self._note(found, cap, purpose)

    def groups(self, item: WorkItem) -> tuple[Group, ...]:
        return self._pools[item.purpose].groups(item)

    @property
    def said(self) -> tuple[str, ...]:
        return tuple(self._said)

    def _note(self, found: Lengths, cap: int, purpose: Purpose) -> None:
        if cap > found.cap == 1:
            self._said[f"lengths: {self._model} begins untrained, and its responses go on to the cap"] = None
        elif cap > found.cap:
            self._said[
                f"lengths: sampling.max_tokens {cap} is above the recorded {found.cap}; responses that were cut go on "
                "with the recorded hazard of ending"
            ] = None
        if found.task not in (self._task, "*"):
            self._said[f"lengths: those of the task {found.task} stand in for {self._task}"] = None
        if found.model not in (self._model, "*"):
            self._said[f"lengths: those of the model {found.model} stand in for {self._model}"] = None
        if purpose is Purpose.TRAIN and found.purpose != purpose.value:
            self._said["lengths: those of evaluations stand in for training"] = None


class _Prompts:
    """Tokens of prompts, by recorded ones in turn of their id."""

    def __init__(self, recorded: Lengths | None) -> None:
        self._tokens = recorded.prompts if recorded else ()
        self.unknown = not self._tokens

    def of(self, item: WorkItem) -> list[int]:
        if self.unknown:
            return [UNKNOWN_PROMPT] * len(item.prompt_ids)
        return [self._tokens[prompt_id % len(self._tokens)] for prompt_id in item.prompt_ids]


class _Pool:
    """Recorded groups under a cap, as rows of a matrix; shorter groups are filled up with zeros."""

    def __init__(self, recorded: Lengths, cap: int, each_step: int = 1) -> None:
        self._cap, self._recorded_cap, self._each_step = cap, recorded.cap, each_step
        trained = recorded.trained if any(recorded.trained) else ()
        self._trained_G = np.array([t for t, group in zip(trained, recorded.groups, strict=False) if group])
        prompts = recorded.prompts or (UNKNOWN_PROMPT,) * len(recorded.groups)
        kept = [(prompt, group) for prompt, group in zip(prompts, recorded.groups, strict=True) if group]
        self._prompts_G = np.array([prompt for prompt, _ in kept], dtype=np.int64)
        self._sizes_G = np.array([len(group) for _, group in kept], dtype=np.int64)
        self._smallest = int(self._sizes_G.min())
        self._lengths_GS = np.zeros((len(kept), int(self._sizes_G.max())), dtype=np.int64)
        for row, (_, group) in zip(self._lengths_GS, kept, strict=True):
            row[: len(group)] = group
        whole = self._lengths_GS[self._lengths_GS > 0]
        self._hazard = hazard_below_cap(whole, recorded.cap) if cap > recorded.cap else 0.0

    def groups(self, item: WorkItem) -> tuple[Group, ...]:
        """Draw a recorded group for each prompt of the order, and its responses from that group."""
        rng = np.random.default_rng(derive_seed(item.seed + item.first, "lengths"))
        low, high = self._near(item.step * self._each_step)
        chosen_P = rng.integers(low, high, size=len(item.prompt_ids))
        lengths_PN = self._responses(chosen_P, item.group_size, rng)
        if self._cap > self._recorded_cap:
            lengths_PN = self._continued(lengths_PN, rng)
        rows = np.minimum(lengths_PN, self._cap).tolist()
        return tuple(zip(self._prompts_G[chosen_P].tolist(), map(tuple, rows), strict=True))

    def _near(self, trained: int) -> tuple[int, int]:
        """Return between which places the groups lie that were sampled by policies about as trained."""
        count = len(self._sizes_G)
        if not len(self._trained_G):
            return 0, count
        middle = int(np.searchsorted(self._trained_G, trained))
        low = min(max(0, middle - NEIGHBOURS // 2), max(0, count - NEIGHBOURS))
        return low, min(count, low + NEIGHBOURS)

    def _responses(self, chosen_P: Rows, size: int, rng: np.random.Generator) -> Rows:
        """Return lengths (P, size): each group's own in a random order, and beyond as many as it has, any of them."""
        most, sizes_P1 = self._lengths_GS.shape[1], self._sizes_G[chosen_P][:, None]
        keys_PS = rng.random((len(chosen_P), most))
        keys_PS[np.arange(most) >= sizes_P1] = 2.0  # what fills a group up comes last
        place_N = np.arange(size)
        rows_PN = np.argsort(keys_PS, axis=1)[:, np.minimum(place_N, most - 1)]
        if size > self._smallest:
            again_PN = (rng.random((len(chosen_P), size)) * sizes_P1).astype(np.int64)
            rows_PN = np.where(place_N < sizes_P1, rows_PN, again_PN)
        found: Rows = self._lengths_GS[chosen_P[:, None], rows_PN]
        return found

    def _continued(self, lengths_PN: Rows, rng: np.random.Generator) -> Rows:
        """Let responses that the recorded cap cut go on."""
        if self._hazard > 0:
            further_PN = rng.geometric(self._hazard, size=lengths_PN.shape)
        else:
            further_PN = np.full(lengths_PN.shape, self._cap)
        return np.where(lengths_PN >= self._recorded_cap, lengths_PN + further_PN, lengths_PN)


def hazard_below_cap(lengths: Rows, cap: int) -> float:
    """Return the chance that a response ends at a token, given that it got there, over the last tokens below the cap.

    Ends among these tokens, over the tokens sampled there: the maximum-likelihood estimate of a geometric tail. 0 where
    none ended there.

    Args:
        lengths: tokens of each response.
        cap: at which they were cut; such a response counts as one that did not end.
    """
    first = max(1, cap - max(1, round(HAZARD_WINDOW * cap)))
    reached = lengths[lengths >= first]
    ended = int((reached < cap).sum())
    tokens = int((np.minimum(reached, cap - 1) - first + 1).sum())
    return ended / tokens if tokens > 0 else 0.0


def _no_lengths(scenario: Scenario, machine: MachineProfile) -> UserError:
    has: Sequence[str] = sorted({found.task for found in machine.lengths})
    return UserError(
        f"the profile {machine.name} has recorded no response lengths of the task {scenario.task.type}; it has "
        f"{', '.join(has) or 'none at all'}",
        "machine",
        f"pin them, as sampling.pinned_lengths=[4,{scenario.sampling.max_tokens}] does, or calibrate from runs of it",
    )


KEPT = 16
"""Batches remembered until all their shards are there; more than may be under way at once."""


class PairedLengths:
    """Draws each batch as a whole and gives every shard its part.

    Args:
        source: says how long the rollouts of an order are.
        scenario: one run; its seed, batch and number of Generators count.
    """

    def __init__(self, source: LengthSource, scenario: Scenario) -> None:
        self._source, self._seed = source, scenario.seed
        self._prompts, self._shards = scenario.prompts_per_batch, scenario.placement.generator.count
        self._batches: dict[int, tuple[Group, ...]] = {}

    @property
    def said(self) -> tuple[str, ...]:
        return self._source.said

    def groups(self, item: WorkItem) -> tuple[Group, ...]:
        if item.purpose is not Purpose.TRAIN or self._shards == 1:
            return self._source.groups(replace(item, seed=self._seed_of(item)))
        batch = self._batches.get(item.step)
        if batch is None:
            whole = replace(item, shard=0, first=0, prompt_ids=tuple(range(self._prompts)), seed=self._seed_of(item))
            batch = self._batches[item.step] = self._source.groups(whole)
            self._batches.pop(item.step - KEPT, None)
        first, end = (place * self._prompts // self._shards for place in (item.shard, item.shard + 1))
        return batch[first:end]

    def _seed_of(self, item: WorkItem) -> int:
        return derive_seed(self._seed, "paired", item.purpose.value, item.step)


UNKNOWN_PROMPTS = 4096
"""Training prompts that a simulation takes a data set to have where its files are not here."""


def number_of_prompts(scenario: Scenario) -> tuple[int, int]:
    """Return how many training and validation prompts the task has, without a model.

    Where the task's files are not here, so many that no batch and no evaluation lacks any: what a run costs does not
    depend on which prompts it draws.
    """
    settings: Any = scenario.task
    if settings.type == "sorting":
        return 3, 3
    if settings.type == "arithmetic" or settings.train is None:
        return settings.train_prompts, settings.validation_prompts
    try:
        return _count_rows(settings)
    except UserError:
        return max(UNKNOWN_PROMPTS, scenario.prompts_per_batch), scenario.evaluation.prompts


def _count_rows(settings: Any) -> tuple[int, int]:
    """Count the lines of the task's files; a part of the training file is held out where there is no other."""
    rows = len(read_rows(settings.train))
    if settings.validation is not None:
        return max(1, rows), len(read_rows(settings.validation))
    held_out = math.ceil(rows * settings.validation_fraction)
    return max(1, rows - held_out), held_out
