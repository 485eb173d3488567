"""``python -m harness schema``: print the JSON schema of scenarios, for editors."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> int:
    """Print it; return 0."""
    import json

    from harness.scenario.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0
