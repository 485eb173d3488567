"""Weight syncs alone: every transport with every size, in turns, between real actors that compute nothing.

plan         which syncs are timed, in which order
processes    the actors: one Learner and some Generators that hold an end of every transport
measure      times them
command      what ``run`` does with a scenario that has a ``transport_sweep``
"""

from harness.run.transport_sweep.command import run_transport_sweep

__all__ = ["run_transport_sweep"]
