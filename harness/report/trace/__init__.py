"""Run folders as traces for ui.perfetto.dev: every lane, wait, version, metric and counter on one scale of time.

``python -m harness trace RUN_OR_EXPERIMENT`` writes one; ``docs/traces.md`` says what one sees in it.
"""
