"""Other people's published figures, predicted with the real loop on the virtual clock.

    python -m tests.holdout.external        # or make holdout TIER=external
    python -m tests.holdout.external -o docs/measured/external_forecasts.md

``external.yaml`` has the figures, their sources, and what each forecast starts from.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BeforeValidator, Field

from harness.core.atomic_files import whole_file
from harness.scenario.load import check_data
from harness.scenario.schema import Scenario
from harness.settings.base import Section
from harness.simulate.calibrate.least_squares import fit_costs
from harness.simulate.forecast import closed_form, predicted
from harness.simulate.machine import Device, MachineProfile, StageCost
from harness.simulate.metrics import RunMetrics

HERE = Path(__file__).parent
PRESET, LAYERS = "maths", 3
"""A model that stands in where the engine's curve is fitted: its layers are only a unit of the fit."""
DECODED = 1000
"""Tokens that each request decodes where the simulated engine is measured."""
STEPS = 200
FREE = ("score", "prepare_batch", "weight_transfer", "weight_verify", "call", "record", "startup")
LEARNER = ("old_logprobs", "reference_logprobs")
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)


def arithmetic(text: object) -> object:
    """Return the number that sums and products such as ``35.87 / 20`` come to; anything but text as it is.

    Raises:
        ValueError: the text is not arithmetic.
    """
    if not isinstance(text, str):
        return text
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise ValueError(f"{text!r} is no arithmetic") from None
    if not all(isinstance(node, _ARITHMETIC) for node in ast.walk(tree)):
        raise ValueError(f"{text!r} is more than arithmetic")
    return eval(compile(tree, "external.yaml", "eval"), {"__builtins__": {}})


Number = Annotated[float, BeforeValidator(arithmetic)]


class Formula(Section):
    """Tokens a second of an engine with c requests: ``most_tokens_s * c / (c + half)``."""

    most_tokens_s: float
    half: float

    def tokens_s(self, running: float) -> float:
        """Return the tokens a second with so many requests."""
        return self.most_tokens_s * running / (running + self.half)


class Arms(Section):
    """Published training arms: at which concurrency, and how far off the formula's batch time was; both as ranges."""

    running: tuple[int, int]
    formula_off: tuple[float, float]


class Serving(Section):
    """A published serving curve."""

    running: tuple[float, ...]
    tokens_s: tuple[float, ...]
    formula: Formula
    arms: Arms


class Published(Section):
    """What a simulated run starts from: seconds, or rows on engines of the serving curve."""

    generate_s: Number = 0.0
    update_s: Number
    sync_s: Number = 0.0
    max_lag: int = 1
    minibatches: int = 1
    engines: int = 0
    rows: int = 256
    lengths: tuple[int, int] = (1, 1)

    @property
    def sync_on_generator(self) -> bool:
        """Whether the weight sync is on the Generator's lane."""
        return self.max_lag > 0 and self.generate_s > self.update_s


class Figure(Section):
    """A published figure and where its prediction comes from.

    Attributes:
        minus: run whose figure is taken away.
        why: it is predicted again, where the first prediction had a mistake of the examiner's in it.
    """

    what: str
    source: str
    run: str
    take: Literal["step", "wait", "idle"]
    minus: str | None = None
    times: float = 1.0
    published: Number
    why: str = ""


class External(Section):
    """The file ``external.yaml``."""

    sources: dict[str, str]
    serving: Serving
    runs: dict[str, Published]
    figures: tuple[Figure, ...]
    corrected: tuple[Figure, ...] = ()
    not_predicted: dict[str, str] = Field(default_factory=dict)


def load() -> External:
    """Read ``external.yaml``."""
    data = yaml.safe_load((HERE / "external.yaml").read_text(encoding="utf-8"))
    return External.model_validate_json(json.dumps(data))


def fit(serving: Serving) -> dict[str, float]:
    """Return seconds of a decode step, and of a row of it in a layer, fitted to the curve as ``calibrate`` fits spans.

    A step of c rows takes c / tokens_s; with a and b for a step and for a row, tokens_s = c / (a + b c).
    """
    rows_N = np.array(serving.running)
    units_NK = np.stack([np.ones_like(rows_N), rows_N], axis=1)
    found = fit_costs(units_NK, rows_N / np.array(serving.tokens_s), np.arange(len(rows_N)))
    step_s, row_s = found.seconds.tolist()
    return {"decode_step": step_s, "row_layer": row_s / LAYERS}


def machine(decode: Mapping[str, float], publish_s: float = 0.0, load_s: float = 0.0) -> MachineProfile:
    """Return the profile of a machine on which generation and weight syncs alone take time."""
    costs = {"generate": decode, "weight_publish": {"call": publish_s}, "weight_load": {"call": load_s}}
    costs |= {stage: {} for stage in (*FREE, *LEARNER, "update")}
    stages = tuple(StageCost(stage=stage, seconds=dict(seconds)) for stage, seconds in costs.items())
    device = Device(name="published figures")
    return MachineProfile(name="published", made="2026-11-27", device=device, sources=("external.yaml",), stages=stages)


def scenario(run: Published) -> Scenario:
    """Return the run's scenario: sleeps of the published seconds, or an engine with the fitted curve."""
    data: dict[str, Any] = {
        "name": "external",
        "placement": {"colocated": False, "generator": {"count": max(1, run.engines)}},
        "transport": {"type": "object_store"},
        "steps": STEPS,
        "evaluation": {"every": 10 * STEPS, "prompts": 1, "examples": 0},
        "save_policy": False,
        "max_lag": run.max_lag,
        "minibatches_per_epoch": run.minibatches,
        "rollout_batch_size": run.rows,
    }
    if not run.engines:
        model, engine = {"type": "paced", "update_s": run.update_s}, {"type": "paced", "generate_s": run.generate_s}
        return check_data(data | {"model": model, "engine": engine}, "external.yaml")
    model = {"type": "preset", "preset": PRESET, "warm_start": False}
    group = next(size for size in (4, 3, 2, run.rows) if run.rows % size == 0)
    sampling = {"max_tokens": run.lengths[1], "pinned_lengths": run.lengths}
    engine = {"type": "native", "max_batch": run.rows}
    ours = {"model": model, "engine": engine, "group_size": group, "sampling": sampling}
    return check_data(data | ours, "external.yaml")


@dataclass(frozen=True)
class Predicted:
    """What the simulator and plain addition say of a run, a step."""

    simulated: RunMetrics
    closed_s: float
    learner_s: float

    def figure(self, take: str) -> tuple[float, float]:
        """Return what the simulator says, and what plain addition does."""
        step_s, wait_s = self.simulated.step_s, self.closed_s - self.learner_s
        if take == "step":
            return step_s, self.closed_s
        if take == "wait":
            return self.simulated.stages_s.get("wait_for_batch", 0.0), wait_s
        return self.simulated.idle["learner"], wait_s / self.closed_s


def predict(run: Published, decode: Mapping[str, float]) -> Predicted:
    """Simulate one run without noise, which nobody published, and without the evaluation at its end."""
    publish_s, load_s = (0.0, run.sync_s) if run.sync_on_generator else (run.sync_s, 0.0)
    settings, profile = scenario(run), machine(decode, publish_s, load_s)
    measures, _ = predicted(settings, profile, None, paired=True)
    return Predicted(measures, closed_form(settings, profile), run.update_s + publish_s)


def simulated_tokens_s(decode: Mapping[str, float], running: int) -> float:
    """Return the tokens a second that the simulated engine decodes with so many requests at once."""
    rows = Published(engines=1, rows=running, lengths=(DECODED + 1, DECODED + 1), update_s=0, max_lag=0)
    few = scenario(rows).model_copy(update={"steps": 5})  # every batch is alike
    return running * DECODED / predicted(few, machine(decode), None, paired=True)[0].stages_s["generate"]


Row = tuple[str, ...]


def serving_rows(data: External, decode: Mapping[str, float]) -> Iterator[Row]:
    """Yield a row for each fitted point, and for either end of the range in which the arms ran."""
    serving = data.serving
    for running, told in zip(serving.running, serving.tokens_s, strict=True):
        ours, theirs = simulated_tokens_s(decode, int(running)), serving.formula.tokens_s(running)
        yield f"{running:g} requests, tokens/s (fitted)", f"{told:,.0f}", *_off(ours, told), *_off(theirs, told)
    low, high = serving.arms.formula_off
    for running in serving.arms.running:
        slower = serving.formula.tokens_s(running) / simulated_tokens_s(decode, running)
        times = [tuple(100 * (1 + off) * factor for off in (low, high)) for factor in (slower, 1.0)]
        cells = [cell for ends in times for cell in (_range(ends, "{:.0f}"), _range(ends, "{:+.1f}%", 100))]
        yield f"4 arms, batch time (measured: 100), if at {running} requests", "100", *cells


def figure_rows(data: External, figures: Sequence[Figure], decode: Mapping[str, float]) -> Iterator[Row]:
    """Yield a row for each of the figures."""
    of_run = cache(lambda name: predict(data.runs[name], decode))
    for figure in figures:
        ours, closed = of_run(figure.run).figure(figure.take)
        if figure.minus is not None:
            less, closed_less = of_run(figure.minus).figure(figure.take)
            ours, closed = ours - less, closed - closed_less
        told, scale = figure.published, 100 if figure.take == "idle" else figure.times
        told = 100 * told if figure.take == "idle" else told
        unit = " %" if figure.take == "idle" else " s"
        cells = (*_off(scale * ours, told, unit), *_off(scale * closed, told, unit))
        yield figure.what, figure.source, f"`{figure.run}`", f"{told:.4g}{unit}", *cells


def run_rows(data: External) -> Iterator[Row]:
    """Yield what each run starts from."""
    for name, run in data.runs.items():
        lane = "-" if not run.sync_s else "generator" if run.sync_on_generator else "learner"
        generate = (
            f"{run.generate_s:.4g}"
            if not run.engines
            else f"{run.rows} rows, {run.engines} engine{'s' * (run.engines > 1)}"
        )
        yield f"`{name}`", generate, f"{run.update_s:.4g}", f"{run.sync_s:.4g}", lane, str(run.max_lag)


def _off(ours: float, told: float, unit: str = "") -> tuple[str, str]:
    ours = ours if abs(ours) > 1e-9 else 0.0
    written = f"{ours:,.0f}" if abs(ours) >= 10000 else f"{ours:.4g}"
    return written + unit, f"{100 * (ours / told - 1):+.1f}%"


def _range(ends: Sequence[float], form: str, less: float = 0) -> str:
    return " to ".join(form.format(end - less) for end in ends)


def _table(header: str, rows: Iterator[Row]) -> str:
    names = header.split(" | ")
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(data: External) -> str:
    """Return the page: the tables, and what is not predicted."""
    decode = fit(data.serving)
    both = "published | simulator | off by"
    of_runs = f"figure | source | run | {both} | plain addition | off by"
    return "\n\n".join(
        [
            "# Other people's figures, predicted",
            "Written by `python -m tests.holdout.external -o docs/measured/external_forecasts.md` (`make holdout "
            "TIER=external` prints it) from `tests/holdout/external.yaml`, which has every published figure, its "
            "address and the arithmetic on it. The data and the code were committed before the first comparison, by "
            "somebody who had read the figures; no input, setting or fit was changed after it. Off by: predicted / "
            "published - 1. There is no noise in these runs, and no interval, since nobody published any.",
            "## The serving curve and the arms of marin#8955",
            f"Only the seven points are fitted, with the fit of `calibrate`: {1000 * decode['decode_step']:.3f} ms for "
            f"a decode step and {1e6 * LAYERS * decode['row_layer']:.2f} us for each request in it. Each request "
            f"decodes {DECODED} tokens on the simulated engine. The formula and its fit are the published ones.",
            _table(f"figure | {both} | c / (c + c_half) | off by", serving_rows(data, decode)),
            "## Steps, waits and starvation",
            "Plain addition: the sum of the stages, or with a lag the busiest lane; a wait is what that leaves of the "
            "Learner's time. Of several engines it takes the busiest. In the first table as it came (commit 02bdc2c2) "
            "it added them up, as `simulate` did then: 93.58 s, +160.9%, for the generation of the sync arm.",
            _table(of_runs, figure_rows(data, data.figures, decode)),
            "## Corrected after the first comparison",
            "The tables above stay as they came, but for a wait of 7e-14 s, now written as 0. Predicted again, for the "
            "reason given:",
            _table(of_runs, figure_rows(data, data.corrected, decode)),
            "\n".join(f"- {figure.what}: {figure.why}" for figure in data.corrected),
            "## What each run starts from",
            "Seconds of a batch, an update and a weight sync: inputs, all of them published or computed from what is.",
            _table("run | generate | update | sync | on lane | max_lag", run_rows(data)),
            "## Not predicted",
            "\n".join(f"- {what}: {why}" for what, why in data.not_predicted.items()),
            "## Sources",
            "Read as stored copies, in which long comments are cut off.",
            "\n".join(f"- {name}: <{address}>" for name, address in data.sources.items()),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out one command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.holdout.external", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the page here (default: print it)")
    options = parser.parse_args(arguments)
    text = page(load()) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        with whole_file(options.out) as stream:
            stream.write(text.encode())


if __name__ == "__main__":
    main()
