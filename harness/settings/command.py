"""An arm that is a program: its command, and the words in it that each run fills in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.settings.base import NonEmptyText

SCENARIO_FILE, SEED = "{scenario}", "{seed}"
"""In the words of a command: the file of the run's settings, and the run's seed."""
Command = Annotated[tuple[NonEmptyText, ...], Field(max_length=1000)]
