"""Frames for the charts, made from runs under ``results/reference`` with pandas alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from harness.report.charts import Panel
from harness.results.frames import Results, load_results

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
NAN = float("nan")
REWARD = (
    Panel("Reward over training steps", "validation reward", levels={"target 0.5": 0.5}),
    Panel(
        "Reward over seconds", "validation reward", "seconds of the loop", "seconds", y_of="Reward over training steps"
    ),
    Panel("Response length", "tokens per response"),
)
TRAINING = (
    Panel("reward/total", "mean of the fresh rollouts"),
    Panel("loss", "mean over optimizer steps"),
    Panel("zero_variance_fraction", "share with equal rewards", scale="zero"),
    Panel("response_length", "tokens per response"),
)
STABILITY = (
    Panel("grad_norm", "L2 norm", scale="wide"),
    Panel("clip_fraction", "share of response tokens", scale="zero"),
)
KL = tuple(
    Panel(f"kl/{pair}_{kind}", unit)
    for pair in ("reference", "previous")
    for kind, unit in (("k3", "nats per token"), ("k1_sum", "nats per response"))
)  # fmt: skip


@cache
def results(name: str) -> Results:
    """Read one experiment of the reference runs."""
    return load_results(REFERENCE / name)


def reward_frame(results: Results) -> pd.DataFrame:
    """Return validation reward over steps and seconds, and response length."""
    table = results.evaluations
    columns = {"seed": table["run"], "arm": table["arm"]}
    parts = [
        table.assign(**columns, x=table[x], value=table[metric], panel=panel.title)
        for panel, x, metric in zip(
            REWARD,
            ("step", "elapsed_s", "step"),
            ("validation/reward",) * 2 + ("validation/response_length",),
            strict=True,
        )
    ]
    return pd.concat(parts)[["arm", "seed", "x", "value", "panel"]].dropna(subset="value")


def metric_frame(results: Results, panels: tuple[Panel, ...]) -> pd.DataFrame:
    """Return metrics of the training steps whose names are the panels' titles."""
    known = [panel.title for panel in panels if panel.title in results.steps]
    long = results.steps.melt(["arm", "run", "step"], known, "panel", "value")
    return long.rename(columns={"run": "seed", "step": "x"}).dropna(subset="value")


def stage_frame(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return seconds per step of each stage over lanes, and the seconds of a step with the ends over runs."""
    steps = results.steps
    timed = [column for column in steps if column.startswith("timing_s/") and "wait_" not in column]
    mean = (
        steps.groupby("arm", sort=False)[timed].mean().reset_index().melt("arm", var_name="part", value_name="seconds")
    )
    frame = mean.dropna().assign(row="busy", part=mean["part"].str.removeprefix("timing_s/"))
    wall = (
        steps.groupby(["arm", "run"], sort=False)["wall_s"]
        .mean()
        .groupby("arm", sort=False)
        .agg(["mean", "min", "max"])
    )
    ends = pd.DataFrame(
        {"arm": wall.index, "row": "busy", "text": [f"{mean:.2f} s" for mean in wall["mean"]],
         "low": wall["min"].to_numpy(), "high": wall["max"].to_numpy(), "mark": wall["mean"].to_numpy()}
    )  # fmt: skip
    return frame[frame["seconds"] > 0], ends


def lane_frame(results: Results) -> pd.DataFrame:
    """Return shares of each lane's seconds by stage."""
    spans = results.spans.assign(seconds=results.spans["end_s"] - results.spans["start_s"])
    parts = spans.groupby(["arm", "lane", "stage"], sort=False)["seconds"].sum().reset_index()
    whole = parts.groupby(["arm", "lane"])["seconds"].transform("sum")
    return parts.assign(seconds=100 * parts["seconds"] / whole).rename(columns={"lane": "row", "stage": "part"})


def timeline_frames(results: Results, steps: range) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return spans, version changes and windows of some training steps of each arm's first run."""
    rows = results.steps[results.steps["run"].isin(results.steps.groupby("arm", sort=False)["run"].first())]
    rows = rows[rows["step"].isin(steps)]
    spans, changes, windows = [], [], []
    for arm, own in rows.groupby("arm", sort=False):
        number = int(own["run"].iloc[0])
        all_spans = results.spans[results.spans["run"] == number]
        origin = all_spans.loc[all_spans["stage"] != "startup", "start_s"].min()
        start, end = own["elapsed_s"].iloc[0] - own["wall_s"].iloc[0], own["elapsed_s"].iloc[-1]
        cut = all_spans.assign(
            start_s=(all_spans["start_s"] - origin - start).clip(0, end - start),
            end_s=(all_spans["end_s"] - origin - start).clip(0, end - start),
        )
        spans.append(cut[cut["end_s"] > cut["start_s"]][["arm", "lane", "stage", "start_s", "end_s", "step"]])
        changes += [
            (arm, change.lane, change.elapsed_s - start, change.version)
            for change in results.runs[number].version_changes
            if start <= change.elapsed_s <= end
        ]
        windows.append((arm, end - start, f"training steps {steps[0]} to {steps[-1]} in {end - start:.2f} s"))
    return (
        pd.concat(spans),
        pd.DataFrame(changes, columns=["arm", "lane", "at_s", "version"]),
        pd.DataFrame(windows, columns=["arm", "seconds", "text"]),
    )


def lag_frame(results: Results) -> pd.DataFrame:
    """Return the rollouts trained on by their lag."""
    rows = [
        (run.manifest.arm, lag, count) for run in results.runs for row in run.steps for lag, count in row.lags.items()
    ]
    return (
        pd.DataFrame(rows, columns=["arm", "lag", "rollouts"]).groupby(["arm", "lag"], sort=False).sum().reset_index()
    )


def size_frames(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return median, 10th and 90th percentile of a sweep's syncs by transport and size, and those of a plain copy."""
    rows = results.syncs[results.syncs["repeat"] > 0]
    kinds = "receivers: " + rows["receivers"].astype(str) + ", tensors: " + rows["tensors"].astype(str)
    rows = rows.assign(panel=kinds, megabytes=rows["num_bytes"] / 1e6, ms=1e3 * rows["total_s"], arm=rows["transport"])
    points = rows.groupby(["panel", "arm", "megabytes"], sort=False)["ms"].quantile([0.1, 0.5, 0.9]).unstack()
    copies = (1e3 * rows.groupby(["panel", "megabytes"])["plain_copy_s"].median()).rename("ms")
    return points.set_axis(["low_ms", "ms", "high_ms"], axis=1).reset_index(), copies.reset_index()
