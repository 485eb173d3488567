"""The books of a command's runs: where their folders are, how they begin, and what they say about how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from harness.build import Parts
from harness.errors import Interrupted, RunStopped, UserError
from harness.provenance import code_state, machine_facts, package_versions
from harness.recorder import Row, RunRecorder
from harness.results import Manifest, RunFolder, campaign_name
from harness.results.anonymous import safe_name
from harness.results.writer import timestamp, utc_now
from harness.scenario import Variant, resolved_yaml
from harness.trace import RecordingTracer
from harness.trackers.streams import Streams

ATTEMPTS = 100


class Books:
    """One run's folder, recorder and metric streams, closed exactly once.

    Attributes:
        streams: metrics for other programs; none until they are opened.
    """

    def __init__(self, folder: RunFolder, recorder: RunRecorder) -> None:
        self.folder, self.recorder = folder, recorder
        self.streams = Streams({}, folder.log)
        self._closed = False

    def log_lines(self, lines: Sequence[str]) -> None:
        """Add lines to the run's log."""
        for line in lines:
            self.folder.log(line)

    def complete(self) -> None:
        """The run has made all its steps, and its recorder knows."""
        self._close("completed", None)

    def close_after(self, error: BaseException) -> None:
        """The run ended by this error; what was flushed stays readable. Nothing happens if it was closed before.

        A disk that is full as well does not hide the error.
        """
        if self._closed:
            return
        interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | Interrupted)
        with suppress(UserError):
            if interrupted:
                self._close("interrupted", None)
            else:
                self._close("failed", str(error))

    def _close(self, status: str, error: str | None) -> None:
        self._closed = True
        self.streams.close()  # what they have to say goes into the log
        with suppress(RunStopped):  # what py-spy lacks was said, or is no news after another error
            self.recorder.probes.close()
        self.recorder.write_spans()
        self.recorder.drain_probes()
        self.folder.finish(status, error, self.recorder.outcome())


class Campaign:
    """The folder of one command. It is named and made when the first run is about to start.

    Attributes:
        folder: the folder; None until then.
        sentinel: speed of the machine before the block that runs next; see ``harness.sentinel``. None without blocks.
    """

    def __init__(self, out: Path, scenario_name: str) -> None:
        self._out, self._scenario_name = out, scenario_name
        self._name: str | None = None
        self.sentinel: dict[str, float] | None = None
        self._code, self._machine, self._versions = code_state(), machine_facts(), package_versions()

    @property
    def folder(self) -> Path | None:
        """Where the campaign's runs are."""
        return self._folder_called(self._name) if self._name else None

    def _folder_called(self, name: str) -> Path:
        return self._out / safe_name(self._scenario_name) / name

    def open_books(
        self,
        variant: Variant,
        tracer: RecordingTracer,
        parts: Parts,
        interleaving: str | None,
        on_row: Callable[[Row, float], None],
        profiled: frozenset[int] = frozenset(),
    ) -> Books:
        """Make a run's folder with its manifest and resolved scenario.

        Raises:
            UserError: the folder cannot be made.
        """
        startup_s = tracer.clock_ns() / 1e9
        folder = self.open_folder(variant, startup_s, interleaving, parts.threads, parts.num_parameters)
        return Books(folder, RunRecorder(folder, tracer, parts.plan.max_lag == 0, on_row, profiled))

    def open_folder(
        self,
        variant: Variant,
        startup_s: float,
        interleaving: str | None,
        threads: int | None,
        parameters: int | None,
    ) -> RunFolder:
        """Make a run's folder with its manifest and resolved scenario; for what the arguments mean see ``Manifest``.

        Raises:
            UserError: the folder cannot be made.
        """
        folder = self._make_folder(variant.name or None)
        assert self._name is not None
        folder.write_manifest(
            Manifest(
                scenario=self._scenario_name,
                campaign=self._name,
                started_at=timestamp(utc_now()),
                arm=variant.arm,
                point=variant.point,
                position=variant.position,
                startup_s=round(startup_s, 6),
                seed=variant.scenario.seed,
                interleaving=interleaving,
                block=variant.block,
                sentinel=self.sentinel,
                profile=variant.scenario.profile,
                versions=dict(self._versions),
                machine=self._machine,
                threads=threads,
                commit=self._code.commit,
                dirty=self._code.dirty,
                parameters=parameters,
            )
        )
        folder.write_scenario(resolved_yaml(variant.scenario))
        return folder

    def _make_folder(self, variant_name: str | None) -> RunFolder:
        if self._name is not None:
            return RunFolder.create(self._out, self._scenario_name, self._name, variant_name)
        for _ in range(ATTEMPTS):  # another command may take the name first
            name = campaign_name(self._out, self._scenario_name, utc_now())
            try:
                folder = RunFolder.create(self._out, self._scenario_name, name, variant_name)
            except UserError as error:
                if isinstance(error.__cause__, FileExistsError) and self._folder_called(name).is_dir():
                    continue
                raise
            self._name = name
            return folder
        raise UserError(f"no free folder name below {self._out} in {ATTEMPTS} attempts", str(self._out))
