"""TensorBoard event files made by hand, for the tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping

from harness.results.trackers import event_record


def encode_start(wall_time: float) -> bytes:
    """Return the record that every event file begins with."""
    return event_record(wall_time=wall_time, file_version="brain.Event:2")


def encode_scalars(values: Mapping[str, float], step: int, wall_time: float) -> bytes:
    """Return one record with all values at one step."""
    summary = {"value": [{"tag": tag, "simple_value": value} for tag, value in values.items()]}
    return event_record(wall_time=wall_time, step=step, summary=summary)
