"""What belongs to an experiment and not to one of its runs.

Those who read scenarios and those who compare runs both need it; the latter load no pydantic.
"""

from __future__ import annotations

OF_THE_LIST = "question", "minutes"
"""Top-level keys of a scenario that `list` shows, and no run uses."""
NAMING = "name", "description", *OF_THE_LIST
"""Those that say what a scenario is called and for."""
EXPERIMENT_SETTINGS = (
    *NAMING, "seed", "arms", "sweep", "endpoint", "blocks", "interleaving", "stop_at_half_width",
)  # fmt: skip
"""Top-level keys of a scenario that say which runs there are, and not what one of them does."""
FEWEST_TO_STOP = 10
"""Blocks before which no experiment stops early."""
USUAL_BLOCKS = 10
"""Of what is compared and asks for no number: enough for a verdict on a stage, too."""
MOST_BLOCKS = 1000
"""As many as a scenario may ask for."""
