"""What the simulator knows of a machine: the cost of every stage, its uncertainty, and the range in which it holds.

A machine profile is a YAML file in ``profiles/machines/``, written by ``python -m harness calibrate`` or, for machines
that nobody here has, made from data sheets and tagged as such.

Seconds of a stage = (sum over its features of coefficient x units) x (factor of the model, where it was measured).
What a feature counts is said in ``harness.simulate.features``, when a cost holds in ``harness.simulate.cost_model``.

These seconds are means. A spread s of logarithms is that of a factor with the mean 1, exp(s z - s^2 / 2) with z
standard normal, so that drawing it changes no mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.named_files import NamedFiles
from harness.scenario.keys import Path as KeyPath
from harness.scenario.load import load_checked
from harness.scenario.problems import Problem, broken, dotted
from harness.settings.base import AtLeast0, AtLeast1, NonEmptyText, NotNegative, Positive, Section

Origin = Literal["measured", "datasheet"]
OCCASION_LOG_SD = 0.2
"""Spread of the speeds of one machine, and of what a fit misses, from one occasion to the next, where calibration has
too few occasions to tell it. Half an hour later it was 0.05; two virtual machines of one fingerprint were 0.3 apart."""


class Correction(Section):
    """How a model that was measured differs from what the features say of its size.

    Attributes:
        factor: on the seconds.
        log_sd: standard error of the factor's logarithm.
    """

    factor: Positive = 1.0
    log_sd: NotNegative = 0.0


class StageCost(Section):
    """The cost of one stage under given circumstances.

    Attributes:
        stage: a stage's name; ``call`` is a call to a part, one way, ``record`` the harness's own bookkeeping after a
            training step. A Generator evaluates at the cost of ``generate``, a Scorer at that of ``score``. Collectives
            and ``exchange`` are those of a Learner's ranks, see ``harness.simulate.ranks``; profiles from before there
            were any have none, and refuse several ranks.
        where: circumstances that must agree; see ``harness.simulate.cost_model``. One that is not named may be any.
        seconds: of one unit of each feature.
        covariance: of these coefficients, in their order; empty where they are not measured.
        models: corrections by model name.
        unseen_log_sd: spread of the corrections over models: what a model that is not among them may be off by.
        step_log_sd: spread of the logarithm of single spans around the prediction, within a run.
        step_correlation: of that between one training step and the next, 0 to 1.
        run_log_sd: spread from run to run, the same for all spans of a run.
        ranges: smallest and largest units of each feature for which the cost holds: those that were fitted, and a
            quarter beyond.
        spans: fitted.
    """

    stage: NonEmptyText
    where: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, NotNegative]
    covariance: tuple[tuple[float, ...], ...] = ()
    models: dict[str, Correction] = Field(default_factory=dict)
    unseen_log_sd: NotNegative = 0.0
    step_log_sd: NotNegative = 0.0
    step_correlation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    run_log_sd: NotNegative = 0.0
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    spans: AtLeast0 = 0

    def holds_under(self, cost_key: Mapping[str, str]) -> bool:
        """Whether every circumstance that the cost names is as it says."""
        return all(cost_key.get(key) == value for key, value in self.where.items())

    def seconds_of(self, units: Mapping[str, float], model: str = "") -> float:
        """Return the mean seconds of so many units, for a model by its name; features without a cost are free."""
        factor = self.models[model].factor if model in self.models else 1.0
        return factor * sum(seconds * units.get(feature, 0.0) for feature, seconds in self.seconds.items())


class Contention(Section):
    """What parts that work at the same time cost each other on shared cores.

    With n others at work, a part runs at 1 / (1 + slowdown x n) of its speed, and where all of them want more threads
    than there are cores, at cores / threads of that.

    Attributes:
        cores: of the machine.
        slowdown: for each other part at work.
        slowdown_sd: its standard error.
    """

    cores: AtLeast1
    slowdown: NotNegative = 0.0
    slowdown_sd: NotNegative = 0.0


class Lengths(Section):
    """Tokens of prompts and responses, as sampled.

    Attributes:
        task, model: of the runs they are from; ``*`` stands for any.
        purpose: ``train`` or ``evaluate``.
        cap: ``sampling.max_tokens`` of those runs: a response as long was cut off.
        prompts: tokens of each group's prompt.
        groups: tokens of each response, by group.
        trained: optimizer steps behind the policy that sampled each group, in rising order; empty where not known.
    """

    task: NonEmptyText
    model: NonEmptyText
    purpose: Literal["train", "evaluate"] = "train"
    cap: AtLeast1
    prompts: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    trained: tuple[AtLeast0, ...] = ()


class Device(Section):
    """A machine's processor, as measured facts or as its data sheet has it.

    Attributes:
        name: CPU or GPU model.
        fingerprint: of the machine the profile was measured on; see ``harness.probes.provenance``.
        gpus: of one machine; 0 on a machine without. Ranks fill one machine after the other.
        flops: operations a second in bfloat16.
        memory_gb_s: memory bandwidth, in units of 10^9 bytes a second.
        memory_gib: of one GPU, or of the machine.
        link_gb_s: bandwidth between two GPUs of a machine, in one direction.
        network_gb_s: bandwidth of one GPU to those of other machines, in one direction.
    """

    name: NonEmptyText
    fingerprint: str | None = None
    gpus: AtLeast0 = 0
    flops: Positive | None = None
    memory_gb_s: Positive | None = None
    memory_gib: Positive | None = None
    link_gb_s: Positive | None = None
    network_gb_s: Positive | None = None


class MachineProfile(Section):
    """All that is known of a machine.

    Attributes:
        name: of the file.
        description: what it is, in a line.
        origin: ``measured``, or taken from a ``datasheet`` and never measured.
        made: date, ``YYYY-MM-DD``.
        device: the processor.
        versions: of the packages that the measured runs used.
        sources: runs it was fitted to, or web addresses of data sheets; never empty.
        notes: what was assumed or carried over, in sentences.
        occasion_log_sd: spread of the logarithm of the machine's speed from one occasion to the next, the same for all
            stages; 0 where the speed is known, as from a run of the day, or the profile is of no machine that there is.
        run_correlation: of the run effects (see ``StageCost.run_log_sd``) of two stages in the same run.
        contention: on shared cores; None where every part has a device of its own.
        startup_s: seconds from the start of a run to that of its loop, in one process and with Ray actors, where known.
        stages: costs.
        lengths: as sampled.
    """

    name: NonEmptyText
    description: str = ""
    origin: Origin = "measured"
    made: NonEmptyText
    device: Device
    versions: dict[str, str] = Field(default_factory=dict)
    sources: tuple[NonEmptyText, ...]
    notes: tuple[NonEmptyText, ...] = ()
    occasion_log_sd: NotNegative = 0.0
    run_correlation: Annotated[float, Field(ge=0, lt=1)] = 0.5
    contention: Contention | None = None
    startup_s: dict[Literal["in_process", "actors"], NotNegative] = Field(default_factory=dict)
    stages: tuple[StageCost, ...]
    lengths: tuple[Lengths, ...] = ()

    @property
    def has_gpu(self) -> bool:
        """Whether the machine has a GPU."""
        return self.device.gpus > 0

    @property
    def speed_is_known(self) -> bool:
        """Whether seconds are those of a machine at a known speed; else they change from one occasion to the next."""
        return self.occasion_log_sd == 0

    def is_of(self, fingerprint: object) -> bool:
        """Whether it was measured on the machine of this fingerprint."""
        return self.origin == "measured" and self.device.fingerprint == fingerprint

    def cost_of(self, stage: str, cost_key: Mapping[str, str]) -> StageCost | None:
        """Return the cost of a stage that holds under these circumstances, the one that names most of them."""
        fitting = [cost for cost in self.stages if cost.stage == stage and cost.holds_under(cost_key)]
        return max(fitting, key=lambda cost: len(cost.where), default=None)


FOLDER = "profiles/machines"
MACHINES = NamedFiles(
    "machine profile", FOLDER, "name: my-machine", "(`python -m harness calibrate --name NAME` makes one)"
)
WIDTH = 120
"""Characters of a line in a written profile."""
DIGITS = 6
"""Significant digits of its figures."""


def known_machines() -> list[str]:
    """Return the names of all profiles, sorted."""
    return [path.stem for path in MACHINES.files()]


def load_machine(name_or_path: str | Path) -> MachineProfile:
    """Load a machine profile and check it.

    Args:
        name_or_path: a YAML file, or the name of one in ``profiles/machines``.

    Raises:
        UserError: there is none of that name (the nearest ones are named), it is not YAML, or it says something wrong;
            one error names every problem.
    """
    return load_checked(MACHINES, name_or_path, MachineProfile, _broken_rules)


def measured_on(name: str, fingerprint: object) -> MachineProfile | None:
    """Return the profile of this name if it was measured on the machine of this fingerprint.

    A profile is long, and most are of other machines: only one in whose text the machine stands is read in full.
    """
    if not fingerprint or str(fingerprint) not in MACHINES.find(name).read_text(encoding="utf-8", errors="replace"):
        return None
    profile = load_machine(name)
    return profile if profile.is_of(fingerprint) else None


def save_machine(profile: MachineProfile, path: Path) -> None:
    """Write a profile, whole or not at all; its folder is made where it is missing.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write(profile_yaml(profile).encode())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", str(path), "give a file you may write: -o FILE"
        ) from None


def profile_yaml(profile: MachineProfile) -> str:
    """Return the text of a profile's file: the same profile always gives the same bytes."""
    data = profile.model_dump(mode="json", exclude_defaults=True)
    data = {"name": profile.name, "description": profile.description, "origin": profile.origin} | data
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=WIDTH, allow_unicode=True)
    return _header(profile) + "\n" + text


def rounded(value: float) -> float:
    """Return a number with ``DIGITS`` significant digits: a profile of such numbers reads back as itself."""
    return float(f"{value:.{DIGITS}g}")


def check_versions(profile: MachineProfile, installed: Mapping[str, str]) -> list[str]:
    """Return in words how the versions that a profile was measured with differ from others; none where they agree.

    Args:
        profile: of the machine.
        installed: versions by package; one that is not among them is not compared.
    """
    return [
        f"{package} {version} in {profile.name}, {installed[package]} here"
        for package, version in profile.versions.items()
        if package in installed and installed[package] != version
    ]


class _Dumper(yaml.SafeDumper):
    """Writes plain values without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _header(profile: MachineProfile) -> str:
    if profile.origin == "datasheet":
        return (
            "# Not measured: derived from data sheets (see `sources`) by `python docs/datasheet_profiles.py`.\n"
            "# Predictions from it are rough; docs/calibrating.md says how it is derived.\n"
        )
    return (
        f"# Measured: written by `python -m harness calibrate --name {profile.name}` from the runs in `sources`.\n"
        "# docs/calibrating.md says what this file holds and when not to believe it.\n"
    )


def _broken_rules(profile: MachineProfile) -> list[Problem]:
    """What types cannot say: a covariance is square and as large as its features, a range does not run backwards."""
    problems = []
    for index, cost in enumerate(profile.stages):
        path: KeyPath = ("stages", index)
        size = len(cost.seconds)
        if cost.covariance and [len(row) for row in cost.covariance] != [size] * size:
            what = f"`{dotted((*path, 'covariance'))}` must have {size} rows of {size} numbers, as many as `seconds`"
            problems.append(Problem(what, "leave it out where it is not known", ((*path, "covariance"),)))
        for feature, (low, high) in cost.ranges.items():
            if low > high:
                what = f"`{dotted((*path, 'ranges', feature))}` runs from {low:g} down to {high:g}"
                problems.append(Problem(what, "write the smaller one first", ((*path, "ranges", feature),)))
    for index, lengths in enumerate(profile.lengths):
        for key, values in (("prompts", lengths.prompts), ("trained", lengths.trained)):
            if values and len(values) != len(lengths.groups):
                what = f"`lengths[{index}].{key}` has {len(values)} items, one for each of {len(lengths.groups)} groups"
                problems.append(Problem(what, "leave none out", (("lengths", index, key),)))
    if not profile.sources:
        problems.append(broken("`sources` must not be empty", "name the runs or web addresses", "sources"))
    return problems
