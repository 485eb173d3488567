"""What every tracker must do."""

from __future__ import annotations

import math
from pathlib import Path

from harness.results.trackers import MetricStream


class TrackerContract:
    """Contract of a tracker. Say in a subclass how it is made, and read back what it wrote if that is possible."""

    def make_tracker(self, folder: Path) -> MetricStream:
        """Return the tracker of a run in this folder."""
        raise NotImplementedError

    def logged(self, folder: Path) -> list[tuple[int, str, dict[str, float]]] | None:
        """Return step, kind and finite values of each row that was written; None: it cannot be read back here."""
        return None

    def test_it_takes_every_row_and_can_be_read_once_closed(self, tmp_path: Path) -> None:
        """Rows may have other names than those before, and values that are no numbers."""
        tracker = self.make_tracker(tmp_path)
        tracker.log(0, "step", {"loss": 0.5, "reward/total": 1.0})
        tracker.log(0, "evaluation", {"validation/reward": 0.25})
        tracker.log(1, "step", {"loss": math.nan, "grad_norm": math.inf, "reward/total": 0.0})
        tracker.close()
        logged = self.logged(tmp_path)
        if logged is not None:
            assert [
                (step, kind, {n: v for n, v in values.items() if math.isfinite(v)}) for step, kind, values in logged
            ] == [
                (0, "step", {"loss": 0.5, "reward/total": 1.0}),
                (0, "evaluation", {"validation/reward": 0.25}),
                (1, "step", {"reward/total": 0.0}),
            ]

    def test_a_run_that_goes_on_adds_to_what_is_there(self, tmp_path: Path) -> None:
        """Nothing of the first part is lost."""
        for step in (0, 1):
            tracker = self.make_tracker(tmp_path)
            tracker.log(step, "step", {"loss": 0.5})
            tracker.close()
        logged = self.logged(tmp_path)
        assert logged is None or [step for step, _, _ in logged] == [0, 1]

    def test_a_run_without_a_row_leaves_it_closed(self, tmp_path: Path) -> None:
        """It may have failed before its first step."""
        self.make_tracker(tmp_path).close()
