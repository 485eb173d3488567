"""Runs as traces for ui.perfetto.dev: every process, wait, policy version, metric and counter on one scale of time."""
