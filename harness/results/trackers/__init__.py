"""Metric streams for other programs: JSON lines, TensorBoard, Weights & Biases, MLflow.

``open_streams`` opens those that a scenario asks for; ``Streams.on_row`` takes each row as the recorder writes it.
"""

from harness.results.trackers.streams import (
    DEFAULT_TRACKERS,
    TRACKERS,
    MetricStream,
    Streams,
    check_trackers,
    flat_metrics,
    open_streams,
)

__all__ = [
    "DEFAULT_TRACKERS",
    "TRACKERS",
    "MetricStream",
    "Streams",
    "check_trackers",
    "flat_metrics",
    "open_streams",
]
