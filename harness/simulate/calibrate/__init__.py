"""Learns what the stages of a training step cost on a machine, from the spans of recorded runs."""
