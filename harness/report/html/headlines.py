"""The few sentences that a reader should leave with: those of the comparison, and what the loop waits for most."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.findings import exposed_finding, findings, overlap_finding
from harness.compare.step_times import uneven_sentence
from harness.compare.sync_tables import sweep_points
from harness.compare.verdicts import Judgement, verdict_sentence
from harness.report.data import ReportData

LEARNED = ("final_reward", "ranking", "divergence", "signal", "target")


def headlines(material: ReportData, judgements: Sequence[Judgement] = ()) -> list[str]:
    """Return verdicts, what was learned, what dominates the loop, what overlap could gain, whether lag hurt, and KL."""
    found = findings(material.experiment)
    if sweep_points(material.experiment):
        return [finding.text for finding in found]
    parts = [
        *(verdict_sentence(item) for item in judgements if item.primary.blocks > 1 and item.primary.ratio is not None),
        *(finding.text for finding in found if finding.name in LEARNED),
        *(finding.text for finding in found if finding.name in ("cores", "steady")),
        *(uneven_sentence(variant, only_hidden=True) for variant in material.experiment.variants),
        exposed_finding(material.experiment),
        overlap_finding(material.experiment),
        *(finding.text for finding in found if finding.name in ("lag", "kl")),
    ]
    return [text for text in parts if text]
