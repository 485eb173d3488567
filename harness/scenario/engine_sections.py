"""The kinds of engine a scenario may name, and what may be written about each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.scenario.sections import AtLeast1, NotNegative, Precision, Section


class NativeEngineSettings(Section):
    """The project's own sampling engine."""

    type: Literal["native"] = "native"
    """The project's own engine."""
    precision: Precision = "float32"
    """Sampling arithmetic."""
    max_batch: AtLeast1 = 256
    """How many responses are decoded together at most."""


class FakeEngineSettings(Section):
    """An engine that makes up tokens at once, for tests."""

    type: Literal["fake"] = "fake"
    """The engine of the tests."""


class PacedEngineSettings(Section):
    """An engine that sleeps instead of sampling; goes with `model.type: paced`."""

    type: Literal["paced"] = "paced"
    """Sleeps instead of sampling; the weights it loads are copied into its own tensors."""
    generate_s: NotNegative = 0.5
    """Seconds of one batch; several Generators share it out."""
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How far the seconds of one batch may differ from that, as a fraction; drawn from the seed."""
