"""Spans of anybody's trainer, written into a run folder: the standard library and nothing else.

    from harness import record

    with record.run("results/mine", arm="lr 1e-6"):
        for step in range(steps):
            record.step(step)
            with record.span("generate", tokens=4096):
                ...
            record.count(rollouts=64, tokens=4096)
            record.metrics({"reward": 0.4})

Outside of ``run`` every call does nothing, so that they may stay in the code. Threads and processes are lanes, on one
clock; a process that is started inside records by itself. A killed program loses the spans that are open, nothing else.
``python -m harness compare``, ``report`` and ``trace`` read the folder as they read any run.
"""

from harness.record.recording import Recording, RecordingError, count, lane, metrics, run, span, step

__all__ = ["Recording", "RecordingError", "count", "lane", "metrics", "run", "span", "step"]
