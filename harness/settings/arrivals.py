"""The order in which an asynchronous run's rollouts arrive."""

from __future__ import annotations

from harness.settings.base import NonEmptyText, Section


class ArrivalSettings(Section):
    """The order in which things arrive, on which an asynchronous run depends."""

    record: bool = False
    """Write it into the run's folder."""
    repeat: NonEmptyText | None = None
    """Folder of a run that recorded it: everything arrives in that order; null: nothing is repeated."""

    @property
    def used(self) -> str | None:
        """The key of what is asked for; None if nothing is."""
        return "arrivals.repeat" if self.repeat is not None else "arrivals.record" if self.record else None
