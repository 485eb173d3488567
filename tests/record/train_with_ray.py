"""A program of Ray that knows nothing of being recorded but for its spans: an actor trains, another one generates."""

# mypy: disable-error-code="attr-defined"

import asyncio
import os
import tempfile
import time

import ray

from harness import record


@ray.remote
class Rollouts:
    """Works in the main thread of its process."""

    def generate(self) -> int:
        """Sleep for 30 ms."""
        with record.span("generate"):
            time.sleep(0.03)
        return os.getpid()


@ray.remote
class Judge:
    """Works in an event loop."""

    async def score(self) -> int:
        """Sleep for 10 ms."""
        with record.span("score"):
            await asyncio.sleep(0.01)
        return os.getpid()


@ray.remote
class Task:
    """The loop, in an actor too as it is in verl."""

    def run(self) -> None:
        """Take three steps."""
        from harness.record.timers import begin_step

        rollouts, judge = Rollouts.remote(), Judge.remote()
        ray.get([rollouts.generate.remote(), judge.score.remote()])  # before the first step: the actors are there
        for number in range(3):
            with begin_step(number):
                with record.span("wait_for_rollouts"):
                    ray.get(rollouts.generate.remote())
                ray.get(judge.score.remote())
                with record.span("update"):
                    time.sleep(0.02)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        ray.init(address="local", num_cpus=3, include_dashboard=False, _temp_dir=folder)
        ray.get(Task.remote().run.remote())
        ray.shutdown()
