"""One run on its way: its folder, recorder, probes and metric streams, and what its manifest says of how it ended."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from harness.core.atomic_files import sync, whole_file
from harness.core.checkpoints import steps_in
from harness.core.errors import Diverged, Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer
from harness.models.chat import today
from harness.models.flops import Utilisation, peak_flops
from harness.probes.clock import PausableClock
from harness.probes.load import load_profile
from harness.probes.machine_speed import SpeedProbe
from harness.probes.memory import Peak, main_memory_peak, own_peak, with_children
from harness.probes.provenance import code_state, machine_facts, package_versions
from harness.probes.run_probes import RunProbes
from harness.record.recording import RecordingError, begin_folder
from harness.results import Manifest, RunFolder
from harness.results.anonymous import Scrubber, safe_name
from harness.results.experiment_plan import EXPERIMENT, ExperimentPlan, PlannedRun, held, write_plan
from harness.results.manifest import Input, Segment
from harness.results.recorder import RowListener, RunRecorder, StepListener
from harness.results.segments import cut_back, taken
from harness.results.trackers import Streams, open_streams
from harness.results.writer import KEPT_STEPS, PROFILES, SCENARIO, begin_experiment, timestamp, utc_now, writing
from harness.run.earlier_runs import recorded_text
from harness.run.inputs import date_of_runs, kept_policies, named_inputs
from harness.run.interrupts import holding_interrupts
from harness.run.memory.check import memory_line, memory_table, planned_bytes, planned_of_lanes
from harness.run.memory.shape import shape_for
from harness.run.parts import RunningParts
from harness.run.points import Resume
from harness.scenario.axes import Variant
from harness.scenario.load import resolved_yaml
from harness.scenario.schema import Scenario
from harness.settings.command import SCENARIO_FILE


@dataclass(frozen=True, slots=True)
class Arm:
    """What a run needs before it has a folder: its clock stands still while another arm has its turn.

    ``speed`` times the machine between the run's steps, where something does.
    """

    variant: Variant
    clock: PausableClock
    tracer: RecordingTracer
    parts: RunningParts
    speed: SpeedProbe | None = None
    resume: Resume | None = None

    @property
    def label(self) -> str:
        return run_label(self.variant)


def run_label(variant: Variant) -> str:
    """Return what a run is called beside the others of its command."""
    return variant.name or variant.scenario.name


class RunSession:
    """One run with a folder, finished exactly once.

    Attributes:
        beside: the runs whose parts are alive at the same time, this one among them.
        memory: what they have held at most when this one ended, as it stands in the manifest.
    """

    def __init__(
        self,
        arm: Arm,
        *,
        folder: RunFolder,
        recorder: RunRecorder,
        probes: RunProbes,
        streams: Streams,
        beside: Sequence[RunSession],
        has_gpu: bool,
        durable: bool,
    ) -> None:
        self.arm, self.folder, self.recorder, self.probes, self._streams = arm, folder, recorder, probes, streams
        self.beside, self._has_gpu, self._durable = beside, has_gpu, durable
        self.memory: dict[str, Any] = {}
        self._finished = False

    def log_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.folder.log(line)

    def finish(self, error: BaseException | None = None) -> None:
        """Write how the run ended. What was flushed before stays readable; a second call does nothing.

        Args:
            error: what ended it, which a disk that is full as well does not hide; None where it made all its steps.

        Raises:
            UserError: the folder cannot be written, where there was no other error.
        """
        with holding_interrupts():  # else the manifest says "running" for good
            if self._finished:
                return
            self._finished = True
            if error is None:
                self._write_end("completed")
                return
            with suppress(UserError):
                if isinstance(error, KeyboardInterrupt | asyncio.CancelledError | Interrupted):
                    self._write_end("interrupted")
                else:
                    at = getattr(error, "step", None)
                    diverged = {"step": self.recorder.steps_done if at is None else at}
                    more = {"diverged": diverged} if isinstance(error, Diverged) else {}
                    self._write_end("failed", str(error), more)

    def _write_end(self, status: str, error: str | None = None, more: Mapping[str, Any] = MappingProxyType({})) -> None:
        try:
            outcome = self._last_figures()
        except UserError as full:
            self.folder.finish("failed" if status == "completed" else status, error or str(full), dict(more))
            raise
        self.folder.finish(status, error, {**outcome, **more})
        if self._durable:
            sync_to_disk(self.folder.folder)

    def _last_figures(self) -> dict[str, Any]:
        self._streams.close()  # what they have to say goes into the log
        with suppress(RunStopped):  # what py-spy lacks was said, or is no news after another error
            self.probes.close()
        self.recorder.write_spans()
        self.recorder.drain_probes()
        self.memory = self._held_memory()
        if self.memory:
            self.folder.log(memory_line(self.memory))
        if self._durable:
            self.folder.flush()
            sync_to_disk(self.folder.folder)
        outcome = self.recorder.outcome()
        outcome |= {"memory": self.memory} if self.memory else {}
        outcome |= {"policies": list(kept)} if (kept := kept_policies(self.folder.folder)) else {}
        if self.arm.parts.learner_on_gpu:
            from harness.models.layers import attention_kernels

            outcome["attention_kernels"] = attention_kernels()
        else:
            from harness.models.matmul import known_choice

            if (choice := known_choice()) is not None:
                outcome["matmul"] = choice
        return outcome

    def _held_memory(self) -> dict[str, Any]:
        """Return what the runs side by side have held at most so far, beside what was planned; see ``memory.check``.

        ``lanes`` are those of this one. Empty where main memory cannot be read.
        """
        pids, on_gpus = {os.getpid()}, dict[int, Peak]()
        for session in self.beside:
            pids |= set(session.arm.parts.processes().values())
            for pid, peak in session.probes.device_peaks.items():
                on_gpus[pid] = peak.or_higher(on_gpus.get(pid, peak))
        main = main_memory_peak(with_children(pids)) if self.beside else None
        if main is None:
            return {}
        found: dict[str, dict[str, Any]] = {"main": {"peak_bytes": main.num_bytes, "processes": main.processes}}
        if on_gpus:
            allocated, reserved = (sum(sizes) for sizes in zip(*on_gpus.values(), strict=True))
            found["gpu"] = {"peak_bytes": allocated, "reserved_bytes": reserved, "processes": len(on_gpus)}
        planned = planned_bytes([session.arm.variant.scenario for session in self.beside], self._has_gpu)
        for memory, num_bytes in planned.items():
            if memory in found:
                found[memory]["planned_bytes"] = num_bytes
        own = planned_of_lanes(self.arm.variant.scenario, self._has_gpu)
        for lane, pid in self.arm.parts.processes().items():
            peaks = {"main": own_peak(pid), "gpu": on_gpus[pid].allocated if pid in on_gpus else None}
            for memory, peak_bytes in peaks.items():
                if memory in found and peak_bytes is not None:
                    figures = {"peak_bytes": peak_bytes}
                    if (memory, lane) in own:
                        figures["planned_bytes"] = own[memory, lane]
                    found[memory].setdefault("lanes", {})[lane] = figures
        return found


class Experiment:
    """The folder of one command. It is named and made when the first run is about to start.

    Args:
        out: the results folder.
        scenario_name: names the folder in it.
        folder: of an experiment that exists already, which the runs join or go on in; None begins a new one.
        durable: have the disk take a run's files before its manifest says how it ended, and that too, so that a power
            cut leaves no run that says it is complete and is not.
        planned: every run that the command sets out to make; written into the folder when it is made.
        whole: the scenario of several runs, with which they go on; written into the folder when it is made, which is
            then kept from other commands until ``close``.
        whole_file: the name of that file.
        echo: called with a run's name and each line of its log.

    Attributes:
        folder: None until it is made.
        today: the date that chat templates write in all runs that begin.
    """

    def __init__(
        self,
        out: Path,
        scenario_name: str,
        folder: Path | None = None,
        durable: bool = False,
        planned: Sequence[Variant] = (),
        whole: Scenario | None = None,
        whole_file: str = SCENARIO,
        echo: Callable[[str, str], None] | None = None,
    ) -> None:
        self.folder = folder
        self.today = date_of_runs(folder) or today()
        self._out, self._scenario_name, self._durable = out, scenario_name, durable
        self._echo, self._whole, self._whole_file, self._hold = echo, whole, whole_file, ExitStack()
        self._plan = _plan_of(planned)
        self._code, self._machine, self._versions = code_state(), machine_facts(), package_versions()

    def close(self) -> None:
        self._hold.close()

    @property
    def home(self) -> Path:
        return self._out / safe_name(self._scenario_name) if self.folder is None else self.folder.parent

    @property
    def fingerprint(self) -> str:
        return str(self._machine["fingerprint"])

    @property
    def has_gpu(self) -> bool:
        """Whether this machine has a GPU for a run; see ``preflight.free_memory``."""
        return bool(self._machine["gpus"]) or torch.cuda.is_available()

    def end_after(self, blocks: int) -> None:
        """Write down that so many blocks were enough by the experiment's own rule."""
        if self.folder is not None:
            write_plan(self.folder, replace(self._plan, enough_after=blocks))

    def open_run(
        self,
        arm: Arm,
        *,
        interleaving: str | None = None,
        row_listeners: Sequence[RowListener] = (),
        pass_turn: StepListener = lambda step: None,
        beside: Sequence[RunSession] = (),
    ) -> RunSession:
        """Make a run's folder with its manifest and resolved scenario, and what records the run there.

        Args:
            row_listeners: hear of each row, before the metric streams do.
            pass_turn: called when a training step is complete, recorded and seen by the probes.
            beside: takes the runs whose parts are alive at the same time, before any of them ends.

        Raises:
            UserError: the folder cannot be made, or a metric stream not be opened.
        """
        scenario, parts, profile = arm.variant.scenario, arm.parts, load_profile(arm.variant.scenario.profile)
        startup_s = arm.tracer.clock_ns() / 1e9
        resume = arm.resume
        if resume is not None:
            folder = self._reopen_folder(resume, arm.variant, startup_s, parts.inputs)
        else:
            folder = self.open_folder(
                arm.variant,
                startup_s,
                parts.inputs,
                interleaving=interleaving,
                threads=parts.threads,
                parameters=parts.num_parameters,
                end_tokens=dict(parts.end_tokens),
            )
        try:
            at = None if resume is None else resume.checkpoint.step
            streams = open_streams(scenario.trackers, folder.folder, arm.label, note=folder.log, goes_on_from=at)
            elsewhere, profiles = parts.sample_elsewhere(profile.sampler_hz), folder.folder / PROFILES
            probes = RunProbes(
                profile, arm.clock, parts.processes, parts.drain_device_figures, profiles, elsewhere, arm.speed
            )
        except Exception as error:
            folder.finish("failed", str(error))
            raise
        gpus = self._machine["gpus"] or ()
        recorder = RunRecorder(
            folder,
            arm.tracer,
            profiled=profile.touched_steps(scenario.max_lag),
            probes=probes.report,
            utilisation=utilisation_of(scenario, gpus if parts.learner_on_gpu else ()),
            row_listeners=[*row_listeners, streams.on_row],
            step_listeners=[probes.after_step, pass_turn, probes.before_next_step],
        )
        session = RunSession(
            arm,
            folder=folder,
            recorder=recorder,
            probes=probes,
            streams=streams,
            beside=beside,
            has_gpu=self.has_gpu,
            durable=self._durable,
        )
        session.log_lines(memory_table(scenario, self.has_gpu))
        return session

    def open_folder(
        self, variant: Variant, startup_s: float = 0.0, inputs: Mapping[str, Input] = MappingProxyType({}), **facts: Any
    ) -> RunFolder:
        """Make a run's folder with its manifest and resolved scenario; ``facts`` are further fields of ``Manifest``.

        Raises:
            UserError: the folder cannot be made.
        """
        folder, experiment = self._make_folder(variant)
        try:
            if self._plan.runs and not (experiment / EXPERIMENT).exists():
                self._begin(experiment)
            manifest = Manifest(
                scenario=self._scenario_name,
                experiment=experiment.name,
                started_at=timestamp(utc_now()),
                arm=variant.arm,
                point=variant.point,
                position=variant.position,
                startup_s=round(startup_s, 6),
                seed=variant.scenario.seed,
                block=variant.block,
                profile=variant.scenario.profile,
                versions=dict(self._versions),
                machine=self._machine,
                commit=self._code.commit,
                dirty=self._code.dirty,
                inputs={**named_inputs(variant.scenario), **inputs},
                **facts,
            )
            folder.write_manifest(manifest)
            folder.write_scenario(resolved_yaml(variant.scenario))
        except UserError:  # there is nothing to tell of a run that could not begin
            folder.discard()
            self.folder = self.folder if experiment.exists() else None
            raise
        return folder

    def begin_recording(self, variant: Variant) -> Path:
        """Begin the recording of an arm that is a program, and return its folder.

        The settings are written beside it where the program is started with the file of them.

        Raises:
            UserError: the folder cannot be made.
        """
        made, experiment = self._make_folder(variant)
        made.discard()
        try:
            begin_folder(
                made.folder.absolute(),
                variant.scenario.command,
                scenario=self._scenario_name,
                experiment=experiment.name,
                arm=variant.arm,
                point=variant.point,
                block=variant.block,
                position=variant.position,
                seed=variant.scenario.seed,
                machine=self._machine,
            )
            if self._plan.runs and not (experiment / EXPERIMENT).exists():
                self._begin(experiment)
            if any(SCENARIO_FILE in word for word in variant.scenario.command):
                made.write_scenario(resolved_yaml(variant.scenario))
        except RecordingError as error:
            raise UserError(str(error), str(made.folder), "choose another folder with --out DIR") from error
        return made.folder.absolute()

    def _reopen_folder(
        self, resume: Resume, variant: Variant, startup_s: float, inputs: Mapping[str, Input] = MappingProxyType({})
    ) -> RunFolder:
        echo = None if self._echo is None else partial(self._echo, run_label(variant))
        with taken(resume.folder):
            cut_back(resume.folder, resume.recorded.sizes)
            for step in steps_in(kept := resume.folder / KEPT_STEPS):
                if step >= resume.checkpoint.step:  # of a history that is made anew
                    shutil.rmtree(kept / f"step_{step}")
            folder = RunFolder.go_on(resume.folder, resume.manifest, echo)
        segment = Segment(
            start_step=resume.checkpoint.step,
            started_at=timestamp(utc_now()),
            elapsed_s=round(resume.recorded.elapsed_s, 6),
            startup_s=round(startup_s, 6),
            commit=self._code.commit,
            dirty=self._code.dirty,
            ranks=variant.scenario.placement.learner.ranks,
            was=dict(resume.was),
            failed=resume.manifest.error,
            cause="resumed",
        )
        former = replace(resume.manifest, status="running", error=None, finished_at=None, duration_s=None, outcome={})
        folder.write_manifest(replace(former, segments=(*former.segments, segment), inputs={**inputs, **resume.inputs}))
        folder.write_scenario(resolved_yaml(variant.scenario))
        return folder

    def record_failure(self, variant: Variant, error: BaseException, resume: Resume | None = None) -> None:
        """Make the folder of a run that could not even start, or go on from there, which says why.

        Raises:
            UserError: the folder cannot be made.
        """
        folder = self.open_folder(variant) if resume is None else self._reopen_folder(resume, variant, 0.0)
        folder.finish("failed", str(error))

    def _make_folder(self, variant: Variant) -> tuple[RunFolder, Path]:
        echo = None if self._echo is None else partial(self._echo, run_label(variant))
        name = variant.name or None
        if self.folder is not None:
            home = self.folder
            return RunFolder.create(home.parent.parent, home.parent.name, home.name, name, echo=echo), home
        folder, experiment = begin_experiment(self._out, self._scenario_name, name, echo)
        self.folder = self.home / experiment
        return folder, self.folder

    def _begin(self, experiment: Path) -> None:
        """Write what the experiment is about, and keep other commands out of it."""
        if self._whole is not None:
            with writing(experiment), whole_file(experiment / self._whole_file) as stream:
                stream.write(recorded_text(self._whole).encode())
            self._hold.enter_context(held(experiment / self._whole_file))
        write_plan(experiment, self._plan)
        if self._durable:
            sync_to_disk(experiment)


def _plan_of(variants: Sequence[Variant]) -> ExperimentPlan:
    paths = Scrubber.of_this_process().paths  # as ``RunFolder.create`` names them
    names = [safe_name(paths(variant.name)) if variant.name else "" for variant in variants]
    runs = [PlannedRun(name, item.label, item.block) for name, item in zip(names, variants, strict=True)]
    return ExperimentPlan(tuple(runs))


def sync_to_disk(folder: Path) -> None:
    """Return when the disk has taken a folder, all files below it, and their names."""
    for home, _, names in os.walk(folder):
        for path in (*(Path(home, name) for name in names), Path(home)):
            with suppress(OSError):  # a file system that cannot, or a draft that is gone already
                sync(path)
    with suppress(OSError):
        sync(folder.parent)


def utilisation_of(scenario: Scenario, gpus: Sequence[Mapping[str, Any]]) -> Utilisation:
    """Return what turns this run's steps into ``perf/mfu``; it gives none where shape or peak is not known.

    Args:
        scenario: the resolved scenario.
        gpus: those that the Learner may compute on, with their ``name``; none where it computes on a CPU. GPUs of
            several peaks give no metric: which of them is the Learner's is not known.
    """
    model: Any = scenario.model
    narrow = {model.precision, getattr(model, "dtype", "float32")} - {"float32"}
    peaks = {peak_flops(gpu["name"], min(narrow, default="float32")) for gpu in gpus}
    peak = peaks.pop() if len(peaks) == 1 else None
    shape = None if peak is None else shape_for(scenario)[0]
    return Utilisation(shape, (peak or 0.0) * scenario.placement.learner.ranks, scenario.epochs_per_batch)
