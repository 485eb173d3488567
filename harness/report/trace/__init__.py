"""Run folders as traces for ui.perfetto.dev: every lane, wait, version, metric and counter on one scale of time.

``python -m harness.report.trace RUN_OR_CAMPAIGN`` writes one; ``docs/traces.md`` says what one sees in it.
"""
