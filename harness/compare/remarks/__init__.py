"""What an experiment says, each thing once: a table of rules, in the order in which they are said.

A rule is silent where it has nothing worth saying. A number that stands in a table beside it is no remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.compare.experiment import Experiment
from harness.compare.judging import Judgement
from harness.compare.remarks import answer, lag_and_syncs, learning, provenance, time

Kind = Literal["answer", "finding", "caution"]
MOST_SENTENCES = 6
"""Of one rule; of more, such as one for each point of a sweep, their number is given."""
Section = Literal["answer", "time", "learning", "off_policy", "syncs", "machine", "cautions"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is said.

    Attributes:
        key: of its rule; the second sentence of a rule is ``key/2``, and so on.
    """

    key: str
    text: str
    kind: Kind
    section: Section


@dataclass(frozen=True, slots=True)
class Rule:
    """When something is said, and where.

    Attributes:
        write: gives the sentences; none where there is nothing to say.
    """

    key: str
    section: Section
    write: Callable[[Experiment, Sequence[Judgement]], Iterable[str]]
    kind: Kind = "finding"


RULES = (
    Rule("fairest", "answer", answer.fairest, "answer"),
    Rule("answer", "answer", answer.answer, "answer"),
    Rule("noise_floor", "answer", answer.noise_floor),
    Rule("diverged", "answer", answer.diverged, "caution"),
    Rule("no_signal", "answer", learning.no_signal, "caution"),
    Rule("failed_groups", "answer", learning.failed_groups, "caution"),
    Rule("bottleneck", "time", time.bottleneck),
    Rule("stages", "time", time.stages),
    Rule("overlap", "time", time.overlap),
    Rule("idle_cores", "time", time.idle_cores, "caution"),
    Rule("drift", "time", time.drift, "caution"),
    Rule("slow_steps", "time", time.slow_steps, "caution"),
    Rule("stragglers", "time", time.stragglers),
    Rule("checkpoints", "time", time.checkpoints),
    Rule("rewards", "learning", answer.rewards),
    Rule("reward_steps", "learning", answer.reward_steps, "caution"),
    Rule("target", "learning", answer.target),
    Rule("length", "learning", learning.length, "caution"),
    Rule("kl", "learning", learning.kl),
    Rule("stability", "learning", learning.stability, "caution"),
    Rule("importance", "learning", learning.importance),
    Rule("dynamic_sampling", "learning", learning.dynamic_sampling),
    Rule("lag_bound", "off_policy", lag_and_syncs.lag_bound),
    Rule("dropped", "off_policy", lag_and_syncs.dropped),
    Rule("replay", "off_policy", lag_and_syncs.replay),
    Rule("syncs", "syncs", lag_and_syncs.syncs),
    Rule("sweep", "syncs", lag_and_syncs.sweep),
    Rule("polling", "syncs", lag_and_syncs.polling, "caution"),
    Rule("contention", "machine", provenance.machine, "caution"),
    Rule("shared_gpu", "machine", lag_and_syncs.shared_gpu, "caution"),
    Rule("simulated", "cautions", provenance.simulated, "caution"),
    Rule("unfinished", "cautions", provenance.unfinished, "caution"),
    Rule("asleep", "cautions", provenance.asleep, "caution"),
    Rule("missing", "cautions", provenance.missing, "caution"),
    Rule("unknown_seconds", "cautions", provenance.unknown_seconds, "caution"),
    Rule("damaged", "cautions", provenance.damaged, "caution"),
    Rule("unequal_work", "cautions", provenance.unequal_work, "caution"),
    Rule("verdicts", "cautions", provenance.verdict_cautions, "caution"),
    Rule("unlike", "cautions", provenance.unlike_runs, "caution"),
    Rule("turns", "cautions", provenance.turns, "caution"),
    Rule("not_repeated", "cautions", provenance.not_repeated, "caution"),
)


def remarks_of(experiment: Experiment, judged: Sequence[Judgement]) -> list[Remark]:
    """Return everything that an experiment says, in the order of ``RULES``.

    Args:
        judged: verdicts on its arms.

    Raises:
        UserError: spans or counters of a run are damaged.
    """
    every = []
    for rule in RULES:
        texts = list(rule.write(experiment, judged))
        if len(texts) > MOST_SENTENCES + 1:
            texts[MOST_SENTENCES:] = [f"{len(texts) - MOST_SENTENCES} more like these."]
        keys = [rule.key, *(f"{rule.key}/{place}" for place in range(2, len(texts) + 1))]
        every += [Remark(key, text, rule.kind, rule.section) for key, text in zip(keys, texts, strict=False)]
    return every
