"""What was written down of a run, checked after each event: what must always hold, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from harness.core.errors import HarnessError
from harness.core.trace import Stage
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.loop import LoopState, RolloutCounts
from harness.loop.replay import ReplayBuffer
from tests.faults.schedule import LEARNER, Fault, FaultKind, Schedule
from tests.faults.shards import Shards

MOST_EVENTS = 20_000
"""A run of at most 10 steps that has more never ends; the longest of the first 10,000 schedules has a tenth of it."""

INVARIANTS = {
    "lag at start": "a Generator starts a batch at most max_lag versions behind the Learner",
    "lag at first use": "a rollout is at most max_lag versions old when it is first consumed; replayed, max_age",
    "uses": "a rollout is trained on once where nothing is replayed, and never twice in one step",
    "one answer": "each order is generated once and scored once, and what is trained on is what was scored",
    "sampled again": "groups without spread are, up to the bound, each place with the prompt and seed of its attempt",
    "none lost": "every generated rollout is in one column of the ledger, counted by us as by the loop",
    "steps in order": "each step is made once, in order, of the right shards",
    "versions": "the Learner's version and that of each Generator's batches only grow, and are what was published",
    "draws": "each step draws from the replay buffer what a second buffer draws, which nobody has killed",
    "capacity": "the replay buffer holds at most its capacity, and what entered is there or was evicted",
    "weights there": "versions that are newest, being loaded or being evaluated can be read",
    "weights held": "a Generator holds the weights that it says it holds, unless a fault made it lie",
    "in flight": "rollouts in flight and in the queue are what the loop says, and none is left at the end",
    "evaluations": "each version that is due is evaluated with exactly its weights and told once, in order",
    "time": "each lane accounts for all of its time: a span begins where the one before ended, and lanes end together",
    "replaced": "each death is told once",
    "no idling": "when the clock advances, nobody waits for rollouts, a batch, weights or room that is available",
    "no deadlock": "while anyone waits, something can still happen",
    "it ends": f"a run has at most {MOST_EVENTS} events",
    "right end": "a run ends early exactly where a fault must end it, and says so",
}


class Broken(HarnessError):
    """An invariant, a key of ``INVARIANTS``, does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


Name = tuple[int, int, int]
"""A training group: (batch, prompt, attempt). No prompt is ordered twice in one attempt."""

OF_PARTS = {
    *("claims", "claimed", "pinned", "waits", "generating", "scoring", "last_order", "lane_ends"),
    *("deaths", "replaced", "readable", "at_update"),
}
"""What the books know of parts that are alive; those who go on begin without it."""
LIES_ABOUT_WEIGHTS = (FaultKind.LOST_WEIGHTS, FaultKind.SECOND_LOAD)


class Event(NamedTuple):
    """Something happened, ``time_s`` virtual seconds into the run; ``step`` and ``version`` are -1 if none."""

    time_s: float
    lane: str
    what: str
    step: int = -1
    version: int = -1
    detail: str = ""


@dataclass
class AtUpdate:
    """What there was when an update began: rollouts in flight and waiting, and what is trained on."""

    time_s: float
    in_flight: int
    waiting: int
    groups: tuple[RolloutGroup, ...]
    begun: int = 0  # rollouts whose generation was heard of later, but at the same instant


@dataclass
class Books:
    """The books of one run."""

    schedule: Schedule  # says what is to happen
    now: Callable[[], float]  # the virtual clock, in seconds
    events: list[Event] = field(default_factory=list)
    broken: Broken | None = None  # the first invariant that did not hold
    ticks: int = 0
    happened: list[tuple[Fault, str]] = field(default_factory=list)
    ledger: RolloutCounts | None = None
    # versions
    version: int = 0  # of the Learner
    published: list[int] = field(default_factory=list)
    readable: set[int] = field(default_factory=set)  # the Learner's own set
    claims: dict[str, int] = field(default_factory=dict)  # lane -> version that its part says it holds
    claimed: dict[str, int] = field(default_factory=dict)  # the same when its last order began
    started: dict[str, int] = field(default_factory=dict)  # lane -> version of the last batch that it started
    pinned: dict[str, set[int]] = field(default_factory=dict)  # lane -> versions being loaded or evaluated there
    owned_up: int = 0  # answers of older weights than the part said it held
    # waiting
    start_s: float = 0.0  # when those who are alive began
    last_s: float = 0.0  # time of the last event
    waits: dict[str, tuple[Stage, int]] = field(default_factory=dict)  # lane -> what it waits for, for which step
    generating: set[str] = field(default_factory=set)  # lanes that work on a training order
    scoring: set[str] = field(default_factory=set)  # Scorers that have taken an order
    unscored: int = 0  # orders that no Scorer has taken
    begun: int = 0  # places of batches whose orders were begun
    # rollouts
    orders: dict[Name, WorkItem] = field(default_factory=dict)  # begun, by (batch, shard, attempt)
    last_order: dict[str, int] = field(default_factory=dict)  # lane -> number in the stream of what it began last
    generated: dict[Name, RolloutGroup] = field(default_factory=dict)
    scored: dict[Name, RolloutGroup] = field(default_factory=dict)
    failed: set[Name] = field(default_factory=set)
    discarded: set[Name] = field(default_factory=set)
    consumed: set[Name] = field(default_factory=set)
    uses: Counter[Name] = field(default_factory=Counter)
    failed_evaluations: int = 0  # groups
    in_flight: int = 0
    # steps
    at_update: AtUpdate | None = None
    steps: int = 0
    fresh: list[tuple[RolloutGroup, ...]] = field(default_factory=list)  # by step
    evaluated: list[int] = field(default_factory=list)
    deaths: set[tuple[str, int]] = field(default_factory=set)
    replaced: Counter[str] = field(default_factory=Counter)
    lane_ends: dict[str, int] = field(default_factory=dict)
    resumed_at: int = 0  # version that was published first by those who are alive

    def __post_init__(self) -> None:
        self.shards = Shards(self.schedule)
        self.draws = self._new_draws()

    def _new_draws(self) -> ReplayBuffer | None:
        """A buffer of our own, where the loop's may come from a checkpoint."""
        replay = self.schedule.replay
        return ReplayBuffer(replay, self.schedule.seed) if replay.capacity else None

    # ---- everything killed

    def copy(self) -> Books:
        """Return the books as they are, without what is known of the parts; only the list of events stays one."""
        copied, new = copy(self), Books(self.schedule, self.now)
        for name, value in vars(self).items():
            if name in OF_PARTS:
                setattr(copied, name, getattr(new, name))
            elif isinstance(value, list | dict | set) and value is not self.events and value is not self.happened:
                setattr(copied, name, copy(value))
        return copied

    def go_on(self, state: LoopState) -> Books:
        """Return the books of those who go on from a checkpoint, in the history of the policy that survives.

        Args:
            state: what they got; of it we only take which of two equal objects is used from now on, and, where the
                loop hears of an answer a moment after us, whether it had.
        """
        books = self.copy()
        books.draws = books._new_draws()
        for step, groups in enumerate(books.fresh if books.draws is not None else ()):
            books.draw(step, groups)
        books.published, books.resumed_at = list(range(self.version)), self.version
        pending = {(item.step, item.shard, item.attempt) for item in state.pending}
        for key, item in self.orders.items():
            late = self.schedule.lag_control == "in_flight" and key in pending
            if names_of(item)[0] not in books.generated or (late and not books._is_scored(item)):
                del books.orders[key]
                for name in names_of(item):
                    books.generated.pop(name, None)
        for group in _groups_of(state):
            if books.scored.get(named(group)) == group:
                books.scored[named(group)] = group
        books.shards = Shards(self.schedule)
        for item in books.orders.values():
            books.shards.begins(item)
            if books._is_scored(item):
                books.shards.scored(item, [books.scored[name] for name in names_of(item) if name in books.scored])
        unscored = [item for item in books.orders.values() if not books._is_scored(item)]
        books.unscored = len(unscored)
        books.in_flight = sum(len(item.prompt_ids) * item.group_size for item in unscored)
        books.begun = sum(len(item.prompt_ids) for item in books.orders.values() if not item.attempt)
        return books

    def _is_scored(self, item: WorkItem) -> bool:
        name = names_of(item)[0]
        return name in self.scored or name in self.failed

    def draw(self, step: int, fresh: tuple[RolloutGroup, ...]) -> list[tuple[Name, int]]:
        """Return what a step draws, with its uses, from a buffer that was in no checkpoint."""
        assert self.draws is not None
        self.draws.add(fresh, step)
        return [(named(item.group), item.uses) for item in self.draws.sample(step)]

    # ---- writing down

    def tick(self) -> None:
        """The event loop has called something: even a run in which nothing is written down has to end."""
        self.ticks += 1
        if self.ticks > 20 * MOST_EVENTS:
            self.break_off("it ends", f"{self.ticks} callbacks and no end")

    def note(self, lane: str, what: str, step: int = -1, version: int = -1, detail: str = "") -> None:
        """Write an event down and check what must always hold."""
        now = self.now()
        if now > self.last_s:
            check_idle(self)
            self.last_s = now
        self.events.append(Event(now, lane, what, step, version, detail))
        if len(self.events) > MOST_EVENTS:
            self.break_off("it ends", f"{len(self.events)} events and no end")
        if len(self.published) > self.resumed_at:
            self.require_readable(self.published[-1])
        for versions in self.pinned.values():
            for pinned in versions:
                self.require_readable(pinned)

    def require(self, holds: bool, invariant: str, message: str) -> None:
        """Raise ``Broken`` if an invariant does not hold."""
        if not holds:
            self.break_off(invariant, message)

    def break_off(self, invariant: str, message: str) -> NoReturn:
        """End the run, since an invariant does not hold; the first one is kept."""
        error = Broken(invariant, message)
        self.broken = self.broken or error
        raise error

    def require_readable(self, version: int) -> None:
        if version not in self.readable:
            self.break_off("weights there", f"version {version} is gone; {sorted(self.readable)} can be read")

    def fault(self, fault: Fault, how: str) -> None:
        self.happened.append((fault, how))
        self.note(fault.lane, f"FAULT {fault.kind}", detail=f"{fault.call} {fault.number}: {how}".strip(": "))

    def has(self, *kinds: FaultKind, lane: str | None = None) -> bool:
        return any(fault.kind in kinds and lane in (None, fault.lane) for fault, _ in self.happened)

    def died(self, lane: str, incarnation: int) -> None:
        """A call on this lane heard of a death."""
        self.deaths.add((lane, incarnation))
        self.claims[lane] = -1
        self.note(lane, "dead part replaced", detail=f"part {incarnation} stands there")

    # ---- weights

    def load_begins(self, lane: str, version: int) -> None:
        self.require(version in self.published, "versions", f"{lane} is to load version {version}, never published")
        # A load that waited out a death went to the new part, and the loop may hear of the death after it.
        died = any(dead == lane for dead, _ in self.deaths)
        again = died or version != self.claims.get(lane)
        self.require(again, "versions", f"{lane} is to load version {version} once more")
        self.pinned.setdefault(lane, set()).add(version)
        self.note(lane, "load begins", version=version)

    def load_ends(self, lane: str, version: int) -> None:
        self.claims[lane] = version
        self.note(lane, "load ends", version=version)

    def unpin(self, lane: str, version: int) -> None:
        """The load or evaluation is over, however it ended."""
        self.pinned.get(lane, set()).discard(version)

    def publish_begins(self, version: int, still_needed: frozenset[int]) -> None:
        """The Learner is to publish; what others are reading must stay."""
        due = len(self.published)
        self.require(version == due == self.version, "versions", f"version {version} is published, due is {due}")
        for lane, versions in self.pinned.items():
            self.require(versions <= still_needed, "weights there", f"{lane} needs {versions} of {set(still_needed)}")
        self.note(LEARNER, "publish begins", version=version)

    def publish_ends(self, weight_handle: WeightHandle) -> None:
        if weight_handle.version == len(self.published):
            self.published.append(weight_handle.version)
        self.note(LEARNER, "publish ends", version=weight_handle.version)

    # ---- generating and scoring

    def generate_begins(self, lane: str, item: WorkItem, truth: int) -> None:
        """A Generator starts an order; ``truth`` is the version that it really holds."""
        claim = self.claims.get(lane, -1)
        honest = claim == truth or self.has(*LIES_ABOUT_WEIGHTS, lane=lane)
        self.require(honest, "weights held", f"{lane} holds {truth} and says {claim}")
        if item.purpose is Purpose.EVALUATE:
            self.require(claim == item.step, "evaluations", f"{lane} evaluates version {item.step} and holds {claim}")
            self.pinned.setdefault(lane, set()).add(item.step)
        else:
            self._train_order_begins(lane, item, claim)
        self.claimed[lane] = claim
        what = "evaluation begins" if item.purpose is Purpose.EVALUATE else "generate begins"
        self.note(lane, what, item.step, claim, detail=f"shard {item.shard}")

    def _train_order_begins(self, lane: str, item: WorkItem, claim: int) -> None:
        lag, bound = self.version - claim, self.schedule.max_lag
        told = (
            f"{lane} starts batch {item.step} with version {claim}, the Learner is at {self.version}: {bound} at most"
        )
        self.require(0 <= lag <= bound, "lag at start", told)
        last = self.started.get(lane, -1)
        self.require(claim >= last, "versions", f"{lane} starts with version {claim}, after {last}")
        self.started[lane] = claim
        self.generating.add(lane)
        if not item.attempt:
            self.last_order[lane] = item.step * self.schedule.generators + item.shard
        key = item.step, item.shard, item.attempt
        self.require(self.orders.get(key, item) == item, "one answer", f"{lane} starts another order {key}: {item}")
        if key not in self.orders:
            self.orders[key] = item
            wrong = self.shards.begins(item)
            self.require(not wrong, "sampled again", f"{lane}: {wrong}")
            rollouts = len(item.prompt_ids) * item.group_size
            self.begun += 0 if item.attempt else len(item.prompt_ids)
            self.in_flight += rollouts
            if self.at_update is not None and self.at_update.time_s == self.now():
                self.at_update.begun += rollouts

    def generate_ends(self, lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> None:
        """A Generator has answered. What is no answer to the order is not written down: the loop has to refuse it."""
        self.generating.discard(lane)
        self.note(lane, "generate ends", item.step, self.claims.get(lane, -1), f"shard {item.shard}")
        self.unscored += 1
        self.owned_up += any(group.min_version < self.claimed[lane] for group in groups)
        if item.purpose is Purpose.EVALUATE or [named(group) for group in groups] != names_of(item):
            return
        for group in groups:
            self.require(named(group) not in self.generated, "one answer", f"{lane} generates {named(group)} again")
            self.generated[named(group)] = group

    def score_begins(self, lane: str, item: WorkItem, version: int) -> None:
        """A Scorer has taken an order; again, if it died over it."""
        if lane not in self.scoring:
            self.unscored -= 1
        self.scoring.add(lane)
        self.note(lane, "score begins", item.step, version, f"shard {item.shard}")

    def score_ends(self, lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...], scored: ScoredBatch) -> None:
        """A Scorer has answered; see ``generate_ends``."""
        self.scoring.discard(lane)
        self.note(lane, "score ends", item.step, groups[0].min_version, f"shard {item.shard}")
        whole = scored.item == item and len(scored.groups) + scored.failed_groups == len(groups)
        if item.purpose is Purpose.EVALUATE or not whole:
            return
        self.in_flight -= len(item.prompt_ids) * item.group_size
        kept = {named(group): group for group in scored.groups}
        for group in groups:
            name = named(group)
            again = name in self.scored or name in self.failed
            self.require(
                name in self.generated and not again, "one answer", f"{lane} scores {name} again, or too early"
            )
        self.scored |= kept
        self.failed |= {named(group) for group in groups} - set(kept)
        self.discarded |= {named(group) for group in self.shards.scored(item, scored.groups)}

    # ---- training

    def update_begins(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        due = self.version, self.steps
        self.require((step, step) == due, "steps in order", f"step {step} at version and step {due}")
        names = [named(group) for group in groups]
        self.require(len(set(names)) == len(names), "uses", f"step {step} trains on one rollout twice: {names}")
        for name, group in zip(names, groups, strict=True):
            self._check_use(step, name, group)
        self.at_update = AtUpdate(self.now(), self.in_flight, self._waiting(), groups)
        self.note(LEARNER, "update begins", step, self.version, _shown(names))

    def _check_use(self, step: int, name: Name, group: RolloutGroup) -> None:
        replay, age = self.schedule.replay, self.version - group.min_version
        bound = self.schedule.max_lag if replay.max_age is None else replay.max_age
        self.require(self.scored.get(name) is group, "one answer", f"step {step} trains on {name}, which nobody scored")
        self.require(0 <= age <= bound, "lag at first use", f"step {step} trains on {name}: age {age}, at most {bound}")
        self.uses[name] += 1
        again = self.uses[name] > 1 and not replay.capacity
        self.require(not again, "uses", f"step {step} trains on {name} for time {self.uses[name]}, at most 1")

    def _waiting(self) -> int:
        """Rollouts that are scored, not consumed, and not too old."""
        return sum(
            len(group.lengths)
            for name, group in self.scored.items()
            if name not in self.consumed and name not in self.discarded and not self.is_dropped(group)
        )

    def is_dropped(self, group: RolloutGroup) -> bool:
        """Whether a group that stays and was not consumed is too old by now."""
        return self.schedule.lag_control == "drop" and self.shards.is_dropped(group, self.version)

    def update_ends(self, result: UpdateResult) -> None:
        self.require(result.version == self.version + 1, "versions", f"{result.version} after {self.version}")
        self.version = result.version
        self.note(LEARNER, "update ends", self.version - 1, self.version)

    # ---- time

    def wait_begins(self, lane: str, stage: Stage, step: int) -> None:
        self.waits[lane] = stage, step

    def span_ended(self, lane: str, stage: Stage, start_ns: int, end_ns: int, cut: bool) -> None:
        """A stage or wait of a lane has ended, or was cut off by a death or the end of the run.

        Where weights are loaded while a Generator generates, spans overlap.
        """
        overlap = self.schedule.lag_control == "in_flight" and lane in self.schedule.generator_lanes
        before = self.lane_ends.get(lane, 0)
        self.lane_ends[lane] = end_ns
        if stage.is_wait:
            self.waits.pop(lane, None)
        if cut:  # whoever is cut off must not raise another error; the next span tells whether time is missing
            self.events.append(Event(self.now(), lane, f"{stage} cut off", detail=f"{(end_ns - start_ns) / 1e9:g} s"))
            return
        self.require(overlap or start_ns == before, "time", f"{lane}: {before} ns, and {stage} begins at {start_ns}")
        self.note(lane, f"{stage} took", detail=f"{(end_ns - start_ns) / 1e9:g} s")


def named(group: RolloutGroup) -> Name:
    return group.step, group.prompt_id, group.attempt


def names_of(item: WorkItem) -> list[Name]:
    return [(item.step, prompt_id, item.attempt) for prompt_id in item.prompt_ids]


def _groups_of(state: LoopState) -> list[RolloutGroup]:
    groups = [group for part in state.waiting for group in part.groups]
    groups += [group for shard in state.open_shards for group in shard.kept.values()]
    return groups + [entry.group for entry in (state.replay.entries if state.replay else ())]


def _shown(names: list[Name]) -> str:
    return " ".join(f"{step}/{prompt}/{attempt}" if attempt else f"{step}/{prompt}" for step, prompt, attempt in names)


def check_idle(books: Books) -> None:
    """Check that no lane waits for something that is there."""
    for lane, (stage, step) in books.waits.items():
        if stage in IS_THERE and IS_THERE[stage](books, step):
            books.break_off("no idling", f"{lane} is in {stage} for step {step} at {books.last_s:g} s for nothing")


def _rollouts_are_there(books: Books, step: int) -> bool:
    """Under ``in_flight``, what was generated is handed on when the load beside it is over."""
    return books.unscored > 0 and books.schedule.lag_control != "in_flight"


def _batch_is_there(books: Books, step: int) -> bool:
    """Whether the Learner waits for a batch of which all is scored; or, after it, for what has been loaded and told."""
    schedule = books.schedule
    if step < books.version or step == schedule.steps:
        return _weights_are_used(books)
    if schedule.lag_control == "drop":
        return False
    return books.shards.is_settled(step)


def _weights_are_used(books: Books) -> bool:
    """Whether the evaluations that are due are told and, before the last step, all Generators hold the newest weights.

    That is what the Learner waits for at lag 0 after each step, and the evaluations at every lag at the end.
    """
    due = sum(version <= books.version for version in books.schedule.evaluated)
    held = [books.claims.get(lane, -1) for lane in books.schedule.generator_lanes]
    return len(books.evaluated) == due and (books.version == books.schedule.steps or min(held) == books.version)


def _weights_are_there(books: Books, step: int) -> bool:
    """Whether weights are there that a Generator may start a batch with; at lag 0 it may wait for an evaluation."""
    schedule = books.schedule
    if schedule.lag_control == "drop" or schedule.max_lag == 0:
        return False
    if _is_to_be_sampled_again(books):
        return True
    if step == schedule.steps:
        return False
    return len(books.published) > books.resumed_at and books.published[-1] >= step - schedule.max_lag


def _is_to_be_sampled_again(books: Books) -> bool:
    """Whether groups are to be, even if every Generator that loads weights has an order already.

    Under ``drop`` one that has an order may wait for newer weights; after a resume all wait for the first ones.
    """
    if len(books.published) == books.resumed_at:
        return False
    idle = Stage.WAIT_FOR_ROOM if books.schedule.lag_control == "drop" else Stage.WAIT_FOR_WEIGHTS
    lanes = [lane for lane in books.schedule.generator_lanes if lane not in books.generating]
    loading = sum(books.waits.get(lane, (None, 0))[0] is not idle for lane in lanes)
    return books.version < books.schedule.steps and books.shards.due() > loading


def _room_is_there(books: Books, step: int) -> bool:
    """Whether another batch could be ordered, even if every Generator that may hold an order not begun holds one.

    One that loads weights may; so may one that samples groups again before its first order. After a resume a Generator
    has its order before the first weights are there, and what is to be sampled again goes first.
    """
    schedule = books.schedule
    holding = sum(
        lane not in books.last_order
        if lane in books.generating
        else books.waits.get(lane, (None, 0))[0] is not Stage.WAIT_FOR_ROOM
        for lane in schedule.generator_lanes
    )
    shard = -(-schedule.prompts // schedule.generators)  # groups of the largest one
    gone = len(books.consumed) + len(books.failed)
    staying = {name: group for name, group in books.scored.items() if name not in books.discarded}
    gone += sum(name not in books.consumed and books.is_dropped(group) for name, group in staying.items())
    if _is_to_be_sampled_again(books):
        return True
    return books.begun - gone + holding * shard < schedule.plan.room * schedule.prompts


IS_THERE: dict[Stage, Callable[[Books, int], bool]] = {
    Stage.WAIT_FOR_ROLLOUTS: _rollouts_are_there,
    Stage.WAIT_FOR_BATCH: _batch_is_there,
    Stage.WAIT_FOR_WEIGHTS: _weights_are_there,
    Stage.WAIT_FOR_ROOM: _room_is_there,
}
