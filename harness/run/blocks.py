"""Runs a scenario's blocks; says how long they will take, and how the arms stand until there are enough."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median

from harness.compare.endpoint import effect_in_words
from harness.compare.experiment import Member, experiment_of, read_members
from harness.compare.judging import judgements
from harness.compare.remarks.answer import answer
from harness.compare.stats.verdicts import Effect, enough
from harness.core.errors import UserError
from harness.core.progress import duration
from harness.results import find_run_folders, read_manifest
from harness.results.reader import read_settings
from harness.results.writer import MANIFEST
from harness.results.writer import SCENARIO as RESOLVED
from harness.run.earlier_runs import as_recorded, differing
from harness.run.engine import Engine
from harness.run.interleaving import Group
from harness.run.session import Experiment
from harness.run.standing import TimeLeft
from harness.scenario.axes import Variant


def run_blocks(
    groups: Sequence[Group],
    stop_at: float | None,
    experiment: Experiment,
    engine: Engine,
    say: Callable[[str], None],
) -> list[str]:
    """Run block after block until there are enough; return the verdict on the endpoint for each arm.

    Blocks that an experiment has already, which goes on, are left alone and judged like the others. A block that fails
    for what the user wrote ends it, since the next one would too.

    Args:
        groups: of all blocks, in order.
        stop_at: see ``BlockWatch``.
    """
    blocks = [list(members) for _, members in itertools.groupby(groups, key=lambda group: group.block)]
    watch = BlockWatch(len(blocks), stop_at)
    first = [variant for group in blocks[0] for variant in group.variants]
    times = BlockTimes(len(blocks), earlier_block_seconds(experiment.home, first, experiment.fingerprint))
    if engine.left(blocks[0]):
        say(times.before())
    for block, members in enumerate(blocks):
        started, is_new = time.monotonic(), bool(engine.left(members))
        engine.run(members, times.place())
        if experiment.folder is not None:
            watch.add(experiment.folder)
        times.took(time.monotonic() - started if is_new else None)
        if is_new:
            say(f"{times.done()}{watch.line()}")
        if watch.is_enough:
            if block + 1 < len(blocks):
                experiment.end_after(block + 1)
            break
        if any(isinstance(error, UserError) for _, error in engine.failures):
            break
    return watch.headlines


class BlockWatch:
    """Judges the primary endpoint after each block, from the same files and by the same rules as the comparison does.

    Args:
        blocks: how many are made at most.
        stop_at: no more are made once every arm's interval is within this of its middle; None makes all.

    Attributes:
        standings: (baseline, arm, the endpoint's effect) for every arm but the first, after the last block.
        members: the runs that were read.
        headlines: the verdict on the endpoint for each arm, or how many blocks it would take.
    """

    def __init__(self, blocks: int, stop_at: float | None) -> None:
        self._blocks, self._stop_at, self._done = blocks, stop_at, 0
        self.members, self._seen = list[Member](), set[Path]()
        self.standings: list[tuple[str, str, Effect]] = []
        self.headlines: list[str] = []

    def add(self, folder: Path) -> None:
        """Read the runs of one more block from the experiment's folder, and judge; what cannot be read is left out."""
        unseen = [path for path in find_run_folders(folder) if path not in self._seen]
        new = [path for path in unseen if _block_of(path) in (None, self._done)]  # later ones may be there already
        read = read_members(new, [True] * len(new), [False] * len(new))
        self.members += [member for member in read if isinstance(member, Member)]
        self._seen |= set(new)
        self._done += 1
        if self.members:
            experiment = experiment_of(folder, self.members)
            judged = judgements(experiment)
            self.standings = [(item.base, item.other, item.primary) for item in judged]
            self.headlines = list(answer(experiment, judged)) if judged else []

    @property
    def is_enough(self) -> bool:
        """Whether all blocks are done, or every arm's interval is as narrow as asked for."""
        if self._stop_at is None:
            return self._done >= self._blocks
        return enough([effect for _, _, effect in self.standings], self._done, self._stop_at, self._blocks)

    def line(self) -> str:
        said = [effect_in_words(effect, base, arm) for base, arm, effect in self.standings]
        return f": {'; '.join(said)}" if said else ""


def _block_of(folder: Path) -> int | None:
    with suppress(UserError):
        return read_manifest(folder).block
    return None


class BlockTimes(TimeLeft):
    """How long blocks take, and how long those will that are left, in words; ``earlier_s`` is of one block."""

    def __init__(self, blocks: int, earlier_s: float | None) -> None:
        super().__init__(blocks, earlier_s)
        self._blocks = blocks

    def before(self) -> str:
        if self.earlier_s is None:
            return f"{self._blocks} blocks; how long they take is known after the first"
        return f"{self._plan(self.earlier_s)}, as in an earlier experiment"

    def place(self) -> str:
        left = "" if self.left_s is None else f", {duration(self.left_s)} left"
        return f"block {self._blocks - self.left + 1:g} of {self._blocks}{left}"

    def done(self) -> str:
        done, left_s, pace_s = self._blocks - self.left, self.left_s, self.pace_s
        text = f"block {done:g} of {self._blocks}"
        if left_s is None or pace_s is None or not self.left:
            return text
        if done == 1 and self.earlier_s is None:
            return f"{text} ({self._plan(pace_s)})"
        return f"{text} (about {duration(left_s)} left)"

    def _plan(self, block_s: float) -> str:
        return f"{self._blocks} blocks of about {duration(block_s)}: about {duration(block_s * self._blocks)}"


def earlier_block_seconds(folder: Path, variants: Sequence[Variant], fingerprint: str | None) -> float | None:
    """Return the seconds of a block in the newest experiment that ran the same on the same kind of machine.

    They are the median time between the starts of neighbouring blocks, start-up included. None where there is no such
    experiment of two blocks or more.

    Args:
        folder: of the scenario, with its experiments.
        variants: of one block.
        fingerprint: of this machine; see ``harness.probes.provenance``.
    """
    for experiment in sorted(folder.glob("*/"), reverse=True):
        if not all(_ran_as(experiment / variant.name, variant, fingerprint) for variant in variants):
            continue
        starts = sorted(_block_starts(experiment))
        if len(starts) > 1:
            return median((later - earlier).total_seconds() for earlier, later in itertools.pairwise(starts))
    return None


def _ran_as(folder: Path, variant: Variant, fingerprint: str | None) -> bool:
    """Whether a run's folder is there, of the same settings on the same kind of machine, and was finished."""
    try:
        manifest = read_manifest(folder)
        if manifest.status != "completed" or manifest.machine.get("fingerprint") != fingerprint:
            return False
        return not differing(read_settings(folder / RESOLVED), as_recorded(variant.scenario))
    except UserError:
        return False


def _block_starts(experiment: Path) -> list[datetime]:
    """Return when each block's first run began, as far as the manifests can be read."""
    starts = dict[int, datetime]()
    for path in experiment.glob(f"*/{MANIFEST}"):
        with suppress(UserError, ValueError):
            manifest = read_manifest(path.parent)
            started = datetime.fromisoformat(manifest.started_at)
            if manifest.block is not None:
                starts[manifest.block] = min(started, starts.get(manifest.block, started))
    return list(starts.values())
