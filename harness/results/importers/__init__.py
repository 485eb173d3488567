"""Metric logs of other trainers (verl, TRL, open-instruct), read into run folders."""

from harness.results.importers.command import CROSSWALKS, Imported, import_run

__all__ = ["CROSSWALKS", "Imported", "import_run"]
