"""What follows from a scenario: computed, never set."""

from __future__ import annotations

from harness.core.errors import UserError
from harness.scenario.schema import Scenario
from harness.settings.learner import Held, MeshShape, OffloadSettings, ZeroStage
from harness.settings.placement import PartSettings
from harness.settings.replay import ReplaySettings


def no_gpu_error(where: str = "placement.device: cuda") -> UserError:
    """Return the error for a scenario that asks for a GPU on a machine without one."""
    return UserError(
        "the scenario asks for a GPU (`placement.device` is cuda), and PyTorch finds none on this machine",
        where,
        "set placement.device to cpu, or to auto, which takes a GPU only where there is one; "
        "on a GPU machine check that nvidia-smi works and that PyTorch is not the CPU build",
    )


def resolved_replay(scenario: Scenario) -> ReplaySettings:
    """Return the replay buffer's settings with the numbers that null stands for."""
    numbers = {"max_age": scenario.replay_max_age, "sample_groups": scenario.replay_sample_groups}
    return scenario.replay.model_copy(update=numbers)


def mesh_shape(scenario: Scenario) -> MeshShape:
    """Return the mesh of the Learner's ranks. The rules see to it that all ranks are in it."""
    ranks, settings = scenario.placement.learner.ranks, scenario.learner
    tensor = settings.mesh.tensor
    if settings.sharding == "ddp":
        return MeshShape(ranks // tensor, 1, tensor)
    replicate = settings.mesh.replicate or 1
    return MeshShape(replicate, ranks // (replicate * tensor), tensor)


def offloaded(scenario: Scenario) -> frozenset[Held]:
    """Return what leaves the Learner's device between phases."""
    settings = scenario.learner.offload or OffloadSettings()
    kinds: dict[Held, bool] = {
        "weights": settings.weights,
        "reference": settings.weights,
        "gradients": settings.gradients,
        "optimizer": settings.optimizer,
    }
    return frozenset(kind for kind, leaves in kinds.items() if leaves)


def microbatches(scenario: Scenario) -> int:
    """Return the microbatches of each rank in what it is given at once: an optimizer step, or a part that streams."""
    return -(-scenario.gradient_accumulation_steps // _parts(scenario))


def given_at_once(scenario: Scenario) -> int:
    """Return the most responses of an optimizer step, or of a part that streams."""
    if scenario.learner.stream is None:
        return scenario.train_batch_size
    return -(-scenario.prompts_per_batch // _parts(scenario)) * scenario.group_size


def _parts(scenario: Scenario) -> int:
    return 1 if scenario.learner.stream is None else scenario.placement.generator.count


def zero_stage(scenario: Scenario) -> ZeroStage:
    """Return what DeepSpeed cuts over the ranks."""
    return scenario.learner.zero_stage or 2


def in_shards(scenario: Scenario) -> bool:
    """Return whether the weights leave several ranks in pieces."""
    return scenario.placement.learner.ranks > 1 and scenario.learner.publish == "shards"


def places_of_colocated(scenario: Scenario) -> int:
    """Return how many places colocated parts share: one, or where ranks compute on GPUs one for each."""
    learner, device = scenario.placement.learner, scenario.placement.device
    return learner.ranks if scenario.uses_ray and learner.gpus and device != "cpu" else 1


def workers_of(scenario: Scenario) -> int:
    """Return the workers that the engine's model is cut over; 1 where an engine has no others."""
    return getattr(scenario.engine, "tensor_parallel", 1)


def on_one_thread(scenario: Scenario) -> bool:
    """Return whether all parts take turns on one thread of one process; see ``harness.run.inprocess``."""
    return scenario.placement.colocated and not scenario.uses_ray


def threads_on(cores: int, scenario: Scenario, part: PartSettings) -> int:
    """Return the CPU threads of a part on a machine with so many cores.

    As asked for, else the CPUs of its actor, else its share of the cores.
    """
    asked = part.threads or scenario.model.threads
    if asked or scenario.uses_ray:
        return asked or max(1, int(part.cpus))
    return cores if scenario.placement.colocated else max(1, cores // 2)
