"""A row of ``steps.jsonl`` as the flat names and numbers that trackers take."""

from __future__ import annotations

from typing import Any

from harness.results.rows import read_metric

STREAMED_KINDS = ("step", "evaluation")
_PLAIN = {"elapsed_s": "elapsed_s", "optimizer_steps": "optimizer_steps", "version": "policy_version"}
_FLAGS = ("warmup", "profiled")


def flat_metrics(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a step or evaluation row by flat name; nothing for rows of other kinds.

    ``timing_s/step`` are the seconds since the previous row, evaluation included, and ``timing_s/<stage>`` those of a
    stage or wait, added over lanes. ``elapsed_s``, ``optimizer_steps`` and ``policy_version`` are the row's; a metric
    keeps its name, with the value of its reduction. ``warmup`` and ``profiled`` are there, as 1, in steps that are no
    part of statistics. NaN and infinities stay.
    """
    if row.get("kind") not in STREAMED_KINDS:
        return {}
    flat = {name: float(row[key]) for key, name in _PLAIN.items() if key in row}
    if "wall_s" in row:
        flat["timing_s/step"] = float(row["wall_s"])
    flat |= {f"timing_s/{stage}": float(seconds) for stage, seconds in row.get("stages_s", {}).items()}
    flat |= {flag: 1.0 for flag in _FLAGS if row.get(flag)}
    stored = row["metrics"]
    for name in stored:
        metric = read_metric(stored, name)
        if metric is not None:
            flat[name] = float(metric.value)
    return flat
