"""What is measured: around the spans of a run's parts, and beside the run.

May import results and what stands below them; NVML in ``nvml`` alone. Start with ``profile`` (what can be asked for),
``tracers`` (around each stage) and ``run_probes`` (beside one run): ``session`` and ``sampler`` are the process that
reads counters, ``host``, ``nvml`` and ``memory`` where they come from.
"""
