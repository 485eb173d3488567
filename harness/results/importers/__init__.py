"""Metric logs of other trainers (verl, TRL, open-instruct), read into run folders."""
