"""What an experiment says, each thing once: a table of rules, in the order in which they are said.

A rule is silent where it has nothing worth saying. A number that stands in a table beside it is no remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.compare.experiment import Experiment
from harness.compare.judging import Judgement
from harness.compare.remarks import answer, fairness, learning, provenance, syncs, time
from harness.compare.steadiness import steadiness_notes

MOST_SENTENCES = 6
"""Of one rule; of more, such as one for each point of a sweep, their number is given."""
Section = Literal["answer", "next", "verdicts", "time", "learning", "syncs", "machine", "cautions"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is said.

    Attributes:
        key: of its rule; the second sentence of a rule is ``key/2``, and so on.
        section: where; ``next`` is what to type next.
        command: to be typed, below the text.
    """

    key: str
    text: str
    section: Section
    command: str = ""

    @property
    def kind(self) -> Literal["answer", "finding", "caution"]:
        """How it is shown."""
        return "answer" if self.section == "answer" else "caution" if self.section == "cautions" else "finding"


Write = Callable[[Experiment, Sequence[Judgement]], Iterable[str | tuple[str, str]]]

RULES: tuple[tuple[str, Section, Write], ...] = (
    ("unequal", "answer", fairness.unequal),
    ("fairest", "answer", answer.fairest),
    ("answer", "answer", answer.answer),
    ("equal_work", "answer", fairness.equal_work),
    ("not_repeated", "next", provenance.not_repeated),
    ("noise_floor", "verdicts", answer.noise_floor),
    ("bottleneck", "time", time.bottleneck),
    ("stages", "time", time.stages),
    ("overlap", "time", time.overlap),
    ("stragglers", "time", time.stragglers),
    ("checkpoints", "time", time.checkpoints),
    ("rewards", "learning", answer.rewards),
    ("target", "learning", answer.target),
    ("kl", "learning", learning.kl),
    ("importance", "learning", learning.importance),
    ("sweep", "syncs", syncs.sweep),
    # whether the numbers may be compared at all comes first: the short form has room for two cautions
    ("diverged", "cautions", answer.diverged),
    ("no_signal", "cautions", learning.no_signal),
    ("failed_groups", "cautions", learning.failed_groups),
    ("simulated", "cautions", provenance.simulated),
    ("asleep", "cautions", provenance.asleep),
    ("missing", "cautions", provenance.missing),
    ("unknown_seconds", "cautions", provenance.unknown_seconds),
    ("damaged", "cautions", provenance.damaged),
    ("unfinished", "cautions", provenance.unfinished),
    ("of_logs", "cautions", provenance.of_logs),
    ("reward_steps", "cautions", answer.reward_steps),
    ("length", "cautions", learning.length),
    ("verdicts", "cautions", provenance.verdict_cautions),
    ("unlike", "cautions", provenance.unlike_runs),
    ("turns", "cautions", provenance.turns),
    ("idle_cores", "cautions", time.idle_cores),
    ("stability", "cautions", learning.stability),
    ("slow_steps", "cautions", time.slow_steps),
    ("contention", "cautions", provenance.contention_of_arms),
    ("drift", "cautions", lambda experiment, judged: steadiness_notes(experiment, [*experiment.arms])),
)
"""Of each rule its key, its section, and what gives its sentences: none where there is nothing to say. One with
something to type is a pair of the two."""


def remarks_of(experiment: Experiment, judged: Sequence[Judgement]) -> list[Remark]:
    """Return everything that an experiment says, in the order of ``RULES``.

    Args:
        judged: verdicts on its arms.

    Raises:
        UserError: spans or counters of a run are damaged.
    """
    every = []
    for key, section, write in RULES:
        texts = list(write(experiment, judged))
        if len(texts) > MOST_SENTENCES + 1:
            texts[MOST_SENTENCES:] = [f"{len(texts) - MOST_SENTENCES} more like these."]
        for place, sentence in enumerate(texts, 1):
            text, command = (sentence, "") if isinstance(sentence, str) else sentence
            every.append(Remark(f"{key}/{place}" if place > 1 else key, text, section, command))
    return every
