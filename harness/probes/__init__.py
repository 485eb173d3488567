"""What is measured: around the spans of a run's parts, and beside the run.

May import results and what stands below them; NVML in ``nvml`` alone. Start with ``profile`` (what can be asked for),
``tracers`` (around each stage) and ``run_probes`` (beside one run): ``sampler_process`` starts the ``sampler``, which
reads counters; ``host``, ``nvml`` and ``memory`` are where they come from.
"""
