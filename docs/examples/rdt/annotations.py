"""Where the annotations of Ray Direct Transport go, and what the same call takes without them.

    python docs/examples/rdt/annotations.py --megabytes 100 --repeats 9

A Learner hands a ``state_dict`` to a Generator in six ways, in turns; the time is from the call until the Generator has
copied the weights into its own tensors. Plain Ray: nothing of the harness is used. Needs `nixl` for two of the ways.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import ray
import torch
from ray.experimental import register_nixl_memory
from ray.experimental.collective import create_collective_group
from torch import Tensor


@ray.remote(num_cpus=0)
class Learner:
    """Holds the weights. A method with a ``tensor_transport`` turns ``enable_tensor_transport`` on for the class."""

    def __init__(self, megabytes: float, tensors: int = 10) -> None:
        size = round(megabytes * 1e6 / 4 / tensors)
        self.weights = {f"layer{index}": torch.rand(size) for index in range(tensors)}
        self.kept: Any = None

    def get_weights(self) -> dict[str, Tensor]:
        """Without an annotation: pickled into Ray's object store, tensors and all."""
        return self.weights

    def get_arrays(self) -> dict[str, Any]:
        """The same store without an annotation, given numpy arrays: kept out of the pickle, and mapped, not copied."""
        return {name: tensor.numpy() for name, tensor in self.weights.items()}

    @ray.method(tensor_transport="nixl")
    def get_weights_nixl(self) -> dict[str, Tensor]:
        """The annotated method: tensors stay here, and the receiver reads them."""
        return self.weights

    @ray.method(tensor_transport="gloo")
    def get_weights_gloo(self) -> dict[str, Tensor]:
        """The same for a collective transport: this actor sends, the receiver receives, both in one group."""
        return self.weights

    def offer(self) -> None:
        """Put the weights once, in memory that NIXL knows."""
        for tensor in self.weights.values():
            register_nixl_memory(tensor)
        self.kept = [ray.put(self.weights, _tensor_transport="nixl")]

    def offered(self) -> list[Any]:
        """The reference of what was put: in a list, since Ray would fetch it on the way otherwise."""
        return list(self.kept)


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Generator:
    """Has no annotated method of its own, so the class says that it takes part."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def load(self, arrived: Any) -> float:
        """Copy what arrived into this actor's own tensors; return the sum of the first, to be compared."""
        if isinstance(arrived, list):
            arrived = ray.get(arrived[0])
        if not self.weights:
            self.weights = {name: torch.empty(tuple(tensor.shape)) for name, tensor in arrived.items()}
        for name, tensor in self.weights.items():
            tensor.copy_(torch.as_tensor(arrived[name]))
        return float(self.weights["layer0"].sum())


def ways(learner: Any) -> dict[str, Any]:
    """Return what to call for each way; the last one changes no method, but the call."""
    return {
        "no annotation": lambda: learner.get_weights.remote(),
        "no annotation, numpy arrays": lambda: learner.get_arrays.remote(),
        '@ray.method(tensor_transport="nixl")': lambda: learner.get_weights_nixl.remote(),
        '.options(tensor_transport="nixl")': lambda: learner.get_weights.options(tensor_transport="nixl").remote(),
        'ray.put(_tensor_transport="nixl"), once': lambda: ray.get(learner.offered.remote()),
        '@ray.method(tensor_transport="gloo")': lambda: learner.get_weights_gloo.remote(),
    }


def main() -> None:
    """Time every way in turns and print the medians."""
    parser = argparse.ArgumentParser(description="Time a weight sync with and without the annotations of RDT.")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    learner, generator = Learner.remote(asked.megabytes), Generator.remote()
    create_collective_group([learner, generator], backend="gloo")
    ray.get(learner.offer.remote())
    seconds: dict[str, list[float]] = {}
    arrived: set[float] = set()
    for repeat in range(asked.repeats + 1):
        for name, call in ways(learner).items():
            started = time.perf_counter()
            arrived.add(ray.get(generator.load.remote(call())))
            if repeat:  # the first time connects
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    assert len(arrived) == 1, f"the ways brought different weights: {arrived}"
    print(f"{asked.megabytes:g} MB, median of {asked.repeats} [fastest, slowest], ms")
    for name, found in seconds.items():
        low, middle, high = (1e3 * value for value in (min(found), statistics.median(found), max(found)))
        print(f"  {name:<42} {middle:8.1f} [{low:.1f}, {high:.1f}]")
    ray.shutdown()


if __name__ == "__main__":
    main()
