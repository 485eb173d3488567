"""``python -m harness list``: show the scenarios there are."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from harness.core.errors import UserError
from harness.core.terminal_text import plain_lines

if TYPE_CHECKING:
    from rich.table import Table

    from harness.scenario import Scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> int:
    """Print a table of them; return 2 if one does not load."""
    from rich.console import Console

    from harness.scenario import SCENARIOS, load_scenario

    table, broken = _table(), []
    for path in SCENARIOS.files():
        try:
            table.add_row(path.stem, *_row(load_scenario(path)))
        except UserError as error:
            broken.append(f"error: {path} does not load\n{error}")
    if not table.row_count and not broken:
        folders = " and ".join(str(folder) for folder in SCENARIOS.folders())
        raise UserError("there are no scenarios", folders, "write one: scenarios/NAME.yaml")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if broken:
        print(plain_lines("\n".join(broken)), file=sys.stderr, flush=True)
    return 2 if broken else 0


def _table() -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("what it does")
    for name in ("k", "lag", "arms"):
        table.add_column(name)
    table.add_column("rollouts", justify="right", no_wrap=True)
    return table


def _row(scenario: Scenario) -> list[str]:
    from rich.markup import escape

    from harness.scenario import expand

    variants = [variant.scenario for variant in expand(scenario)]
    passes = sorted({variant.epochs_per_batch for variant in variants})
    lags = sorted({variant.max_lag for variant in variants})
    first_line = scenario.description.strip().split("\n")[0]
    if scenario.transport_sweep is not None:
        return [escape(first_line), "-", "-", ", ".join(scenario.transport_sweep.transports), "-"]
    return [
        escape(first_line),
        ", ".join(map(str, passes)),
        ", ".join(map(str, lags)),
        ", ".join(scenario.arms),
        f"{sum(variant.num_rollouts for variant in variants):,}",
    ]
