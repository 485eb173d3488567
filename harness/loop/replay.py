"""The replay buffer: scored groups that may be trained on again, with ageing and a sampling rule.

One rollout batch enters per training step, then the step's groups are drawn from what is held:

    add      the batch enters, groups above ``max_age`` leave, then the oldest entries until ``capacity`` is kept
    sample   groups above ``max_age`` leave, up to ``sample_groups`` are drawn without replacement, and stay

A group's age is the policy version at hand minus the group's ``min_version``, the version of its oldest token; order of
entry and age are two things, since a group that took long may enter late. The buffer holds handles and metadata and
looks into no data. Once a group has left, the buffer refers to it no more, so that dropping the draw frees the data.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core.rewards import rewards_differ
from harness.core.seeds import derive_seed
from harness.core.types import RolloutGroup
from harness.settings.replay import ReplaySettings

REWARD_FLOOR = 0.1
"""What ``reward_weights`` gives the group with the lowest mean reward, in units of reward."""
SIGNAL_FLOOR = 1e-9
"""What ``signal_weights`` gives a group of equal rewards: it is drawn where there is nothing else."""


@dataclass(frozen=True, slots=True)
class ReplayDraw:
    """A group as drawn: how often it was drawn so far, this time included, and its age in policy versions."""

    group: RolloutGroup
    uses: int
    age: int


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """Running totals, in groups; a snapshot that later steps do not change.

    What entered is held or was evicted for one cause: ``added == len(buffer) + evicted``.

    Attributes:
        added: entered.
        taken: drawn, each draw counted.
        distinct_taken: drawn at least once.
        evicted_full: left because newer entries needed the room.
        evicted_age: left because they were older than ``max_age``.
        evicted_unused: of those evicted, the ones never drawn.
    """

    added: int = 0
    taken: int = 0
    distinct_taken: int = 0
    evicted_full: int = 0
    evicted_age: int = 0
    evicted_unused: int = 0

    @property
    def evicted(self) -> int:
        """Evictions of every cause."""
        return self.evicted_full + self.evicted_age

    def plus(self, **more: int) -> ReplayStats:
        """Return the totals with so many more in these columns."""
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in the buffer, the number of the batch that it entered with, and how often it was drawn."""

    group: RolloutGroup
    batch: int
    uses: int = 0


@dataclass(frozen=True, slots=True)
class ReplayState:
    """A replay buffer at one moment. Its draws need no random state: they depend on the seed and the version.

    Attributes:
        entries: what is held, in order of entry.
        batches: that entered so far.
        version: of the last ``add`` or ``sample``.
        stats: running totals.
    """

    entries: tuple[StoredGroup, ...] = ()
    batches: int = 0
    version: int = 0
    stats: ReplayStats = ReplayStats()


class ReplayBuffer:
    """Holds scored groups between training steps.

    Args:
        settings: what is kept and drawn; ``max_age`` and ``sample_groups`` are numbers, not null.
        seed: root of the draws' random streams.
        state: to go on from. What has no room any more, or is too old by now, leaves as ever.

    Attributes:
        max_age: in policy versions; an older group is evicted, never drawn.
        stats: running totals since the buffer was made.
    """

    def __init__(self, settings: ReplaySettings, seed: int, state: ReplayState | None = None) -> None:
        assert settings.max_age is not None
        assert settings.sample_groups is not None
        self.settings, self.seed = settings, seed
        self.max_age, self._sample_groups = settings.max_age, settings.sample_groups
        state = state or ReplayState()
        self.stats, self._batches, self._version = state.stats, state.batches, state.version
        self._entries = list(state.entries)  # in order of entry

    def __len__(self) -> int:
        """Groups held."""
        return len(self._entries)

    @property
    def state(self) -> ReplayState:
        """What another buffer goes on from as this one would."""
        return ReplayState(tuple(self._entries), self._batches, self._version, self.stats)

    def add(self, groups: Sequence[RolloutGroup], version: int) -> None:
        """Let one fresh rollout batch enter; then what is too old leaves, then what there is no room for.

        A group already above ``max_age`` leaves at once, and so do the first groups of a batch larger than
        ``capacity``; both are counted. Either the whole batch enters or, with an error, none of it.

        Args:
            groups: whole and scored; may be empty, where every group of a batch failed.
            version: the Learner's policy version.

        Raises:
            ValueError: a group is empty, not scored, newer than ``version`` or there already; or ``version`` is below
                that of an earlier call.
        """
        self._check_forward(version)
        seen = {id(_handle(entry.group)) for entry in self._entries}
        for group in groups:
            _check_whole(group, version)
            if id(_handle(group)) in seen:  # data is opaque, so identity tells, not equality
                raise ValueError(f"{_named(group)} is in the replay buffer already, or twice in its batch")
            seen.add(id(_handle(group)))
        self._version, self._batches = version, self._batches + 1
        self._entries += [StoredGroup(group, self._batches) for group in groups]
        self.stats = self.stats.plus(added=len(groups))
        self._evict_aged()
        self._keep(self._entries[-self.settings.capacity :], "evicted_full")

    def sample(self, version: int) -> tuple[ReplayDraw, ...]:
        """Draw one training step's groups without replacement: ``sample_groups`` of them, or all if fewer are held.

        ``newest`` takes what entered last, and of one batch its first groups. ``uniform`` gives every held group the
        same probability. ``reward_weighted`` and ``signal_weighted`` draw one after another, each time with
        probability proportional to ``reward_weights`` or ``signal_weights`` among the groups still left.

        The draw depends on the seed, the version and the groups held in their order, and on nothing else: a second
        draw at one version from the same groups is the same.

        Returns:
            The groups drawn, oldest entry first; empty if none is held.

        Raises:
            ValueError: ``version`` is below that of an earlier call.
        """
        self._check_forward(version)
        self._version = version
        self._evict_aged()
        ranks = self._ranks()
        taken = []
        for index in sorted(sorted(range(len(ranks)), key=ranks.__getitem__)[: self._sample_groups]):
            entry = self._entries[index]
            self._entries[index] = replace(entry, uses=entry.uses + 1)
            taken.append(ReplayDraw(entry.group, entry.uses + 1, version - entry.group.min_version))
        self.stats = self.stats.plus(taken=len(taken), distinct_taken=sum(item.uses == 1 for item in taken))
        return tuple(taken)

    def _ranks(self) -> Sequence[float]:
        """A number for each entry; the lowest are drawn."""
        rng = random.Random(derive_seed(self.seed, "replay", self._version))
        rewards = [entry.group.rewards or () for entry in self._entries]
        match self.settings.sampling:
            case "newest":
                return [-entry.batch for entry in self._entries]
            case "uniform":
                return _waiting_times([1.0] * len(self._entries), rng)
            case "reward_weighted":
                return _waiting_times(reward_weights([math.fsum(group) / len(group) for group in rewards]), rng)
            case "signal_weighted":
                return _waiting_times(signal_weights(rewards), rng)

    def _evict_aged(self) -> None:
        oldest = self._version - self.max_age
        self._keep([entry for entry in self._entries if entry.group.min_version >= oldest], "evicted_age")

    def _keep(self, staying: list[StoredGroup], cause: str) -> None:
        """Hold only these entries from now on; count the others, and the unused among them."""
        unused = sum(entry.uses == 0 for entry in self._entries) - sum(entry.uses == 0 for entry in staying)
        self.stats = self.stats.plus(**{cause: len(self._entries) - len(staying)}, evicted_unused=unused)
        self._entries = staying

    def _check_forward(self, version: int) -> None:
        if version < self._version:
            raise ValueError(f"policy version {version} after {self._version}: the replay buffer only moves forward")


def reward_weights(mean_rewards: Sequence[float]) -> list[float]:
    """Return the sampling weights w_i = r_i - min_j r_j + ``REWARD_FLOOR`` of groups with mean rewards r.

    Every weight is positive, so every group can be drawn, and equal rewards have equal weights. The same constant added
    to every reward changes nothing. The unit does count, on purpose: mean rewards that differ by a rounding error are
    drawn alike, and with rewards from 0 to 1 no group is more than 11 times as likely as another in one draw.

    It prefers what the policy does well. A group that it always solves has the highest weight and no gradient, since
    all its advantages are 0: ``signal_weights`` prefers what can be learned from.
    """
    lowest = min(mean_rewards, default=0.0)
    return [reward - lowest + REWARD_FLOOR for reward in mean_rewards]


def signal_weights(rewards: Sequence[Sequence[float]]) -> list[float]:
    """Return the sampling weights w_g = mean_i |r_gi - mean_j r_gj| + ``SIGNAL_FLOOR`` of groups with rewards r.

    The mean size of a group's advantages before any normalisation; 2 p (1 - p) where a share p of the rewards is 1 and
    the others are 0. A group of equal rewards (see ``rewards_differ``) has no gradient: its w_g is ``SIGNAL_FLOOR``, so
    that it is drawn where no other is left.
    """

    def spread(group: Sequence[float]) -> float:
        mean = math.fsum(group) / len(group)
        return math.fsum(abs(reward - mean) for reward in group) / len(group)

    return [(spread(group) if rewards_differ(min(group), max(group)) else 0.0) + SIGNAL_FLOOR for group in rewards]


def _waiting_times(weights: Sequence[float], rng: random.Random) -> list[float]:
    """Return -log(u_i) / w_i with u_i uniform in (0, 1]; the m smallest are a weighted sample without replacement.

    Algorithm A of Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006), which takes the m
    largest keys u_i^(1/w_i): the same order, without underflow.
    """
    return [-math.log(1.0 - rng.random()) / weight for weight in weights]


def _handle(group: RolloutGroup) -> object:
    """What stands for a group: its data, or the group itself where there is none (in a simulated run)."""
    return group if group.data is None else group.data


def _named(group: RolloutGroup) -> str:
    return f"the group of prompt {group.prompt_id}, step {group.step},"


def _check_whole(group: RolloutGroup, version: int) -> None:
    """Raise ValueError unless all rollouts are there, scored, and of a policy version that exists."""
    if group.rewards is None:
        raise ValueError(f"{_named(group)} has no rewards: a group enters the replay buffer when it is scored")
    if not group.lengths or len(group.rewards) != len(group.lengths):
        raise ValueError(
            f"{_named(group)} has {len(group.rewards)} rewards for {len(group.lengths)} rollouts, "
            "must have one for each of at least 1"
        )
    if not all(map(math.isfinite, group.rewards)):
        raise ValueError(f"{_named(group)} has the rewards {group.rewards}: all must be finite numbers")
    if group.max_version > version:
        raise ValueError(
            f"{_named(group)} is of policy version {group.max_version}, newer than the Learner's {version}"
        )
