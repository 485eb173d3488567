"""Where the parts run and what each may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.settings.base import NonEmptyText, NotNegative, Parts, Settings


class PartSettings(Settings):
    """What one part may use."""

    cpus: NotNegative = 1.0
    """CPUs that Ray reserves for it."""
    gpus: NotNegative = 0.0
    """GPUs that Ray reserves for it; a fraction shares one."""
    threads: Parts | None = None
    """Its CPU threads; null takes model.threads, or else its CPUs."""


class LearnerPartSettings(PartSettings):
    """What each rank of the Learner may use."""

    ranks: Parts = 1
    """Processes that train together, see `learner`; cpus, gpus and threads are those of each."""
    per_node: Annotated[tuple[Parts, ...], Field(min_length=1)] | None = None
    """Ranks on each node, in order, such as [4, 2]; null leaves it to Ray."""


class ReplicatedPartSettings(PartSettings):
    """What each of several equal parts may use."""

    count: Parts = 1
    """How many of them."""


class ScorerSettings(ReplicatedPartSettings):
    """What each Scorer may use."""

    cpus: NotNegative = 0.0
    """CPUs that Ray reserves for it; 0, since most reward functions are light."""


class PlacementSettings(Settings):
    """Where the parts run: in this process with `transport.type: in_process`, else as Ray actors."""

    colocated: bool = True
    """Generator and Learner take turns on the same cores or device."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    generator: ReplicatedPartSettings = ReplicatedPartSettings()
    """The Generators."""
    scorer: ScorerSettings = ScorerSettings()
    """The Scorers."""
    learner: LearnerPartSettings = LearnerPartSettings()
    """The Learner."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places the parts on the nodes of a cluster."""
    address: NonEmptyText = "local"
    """`local` starts Ray on this machine; `auto` or HOST:PORT joins a cluster that is running."""
    interface: NonEmptyText = "lo"
    """Network interface of the sockets that the harness opens (UCX, gloo); `lo`: this machine only."""
