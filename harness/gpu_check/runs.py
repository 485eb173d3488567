"""Whole runs through the harness' own commands: small ones on both devices, a large model, transports, vLLM, nsys."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

from harness.compare.resources import gpu_figures
from harness.gpu_check.device import HAS_GPU
from harness.gpu_check.report import Report, require
from harness.probes.load import load_profile
from harness.probes.nsight import nsys_arguments
from harness.results import Run, find_runs
from harness.results.counters import read_counters

FLOAT32 = ("model.precision=float32", "engine.precision=float32")
"""So that rewards of both devices can be compared; few CPUs have fast bfloat16."""
FEW = (*FLOAT32, "blocks=1", "steps=5", "evaluation.every=5", "evaluation.prompts=16", "save_policy=false")
TINY = (*FEW, "model.preset=tiny")
UNTAUGHT = (*TINY, "model.warm_start=false")
ON_GPU = ("placement.device=cuda", "placement.generator.gpus=0.125", "placement.learner.gpus=0.125")


def call(line: list[str]) -> str:
    """Run a command line and return its output, which is printed too.

    Raises:
        RuntimeError: it failed; with the error that it told, or its last lines.
    """
    print(f"$ {shlex.join(line)}", flush=True)
    said: list[str] = []
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
            said.append(text)
    if process.returncode:
        first = next((at for at, text in enumerate(said) if text.startswith(("error:", "stopped:"))), len(said) - 3)
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(''.join(said[max(first, 0) :]).split())}")
    return "".join(said)


def harness(*arguments: str, settings: tuple[str, ...] = ()) -> list[str]:
    """Return a command line of the harness with these settings, for this Python."""
    changes = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "harness", *arguments, *changes]


def run(report: Report, scenario: str, folder: str, *settings: str) -> Path:
    """Run a scenario; return its results folder, which is ``folder`` in the phase's."""
    out = report.folder / folder
    shutil.rmtree(out, ignore_errors=True)
    call(harness("run", scenario, "--quiet", "--out", str(out), settings=settings))
    return out


def run_arms(report: Report, scenario: str, folder: str, *settings: str) -> dict[str, dict[str, Any]]:
    """Run a scenario; note and return what ``compare`` says of each of its arms."""
    out = run(report, scenario, folder, *settings)
    line = harness("compare", str(out), "--json")
    (experiment,) = json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)["campaigns"]
    arms = {variant["name"]: _figures(variant["runs"][0]) for variant in experiment["variants"]}
    for name, figures in arms.items():
        report.note(f"{folder}: {name}", figures)
    return arms


def _figures(run: dict[str, Any]) -> dict[str, Any]:
    kept = {name: run["figures"][name] for name in ("reward_first", "reward_last", "tokens_per_s", "startup_s")}
    stages_s = {name: stage["mean_s"] for name, stage in run["stages"].items()}
    sync_s = fmean(run["sync"]["whole_s"]) if run["sync"] and run["sync"]["whole_s"] else None
    return {"step_s": run["step"]["mean_s"], **kept, "stages_s": stages_s, "sync_s": sync_s}


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g} s"


def scenarios(report: Report) -> None:
    """Small scenarios on both devices, each in one process: seconds of a step and rewards side by side."""
    told = []
    size = (*FEW, "steps=12", "evaluation.every=12", "evaluation.prompts=64") if HAS_GPU else TINY
    for scenario in ("quickstart", "sync_k2", "async_lag1"):
        for device in ("cpu", "cuda") if HAS_GPU else ("cpu",):
            place = [f"placement.device={device}", "transport.type=in_process"]
            if scenario == "async_lag1":  # its other synchronous arms differ in threads, or are actors
                place.append("arms={sync: {placement.colocated: true}, lag1: {max_lag: 1}}")
            with report.part(f"{scenario} on {device}"):
                for arm, figures in run_arms(report, scenario, f"{scenario} on {device}", *size, *place).items():
                    told.append(f"{arm} {device} {_seconds(figures['step_s'])}, reward {figures['reward_last']:.2f}")
    report.headline = "; ".join(told)


def model(report: Report) -> None:
    """The model of ``big`` and ``profile``: 1.5 billion random weights, or few on a CPU."""
    folder, shape = str(report.model_folder), "qwen2.5-math-1.5b" if HAS_GPU else "tiny-qwen2"
    shutil.rmtree(folder, ignore_errors=True)
    report.note("made", call([sys.executable, "-m", "harness.models.make_folder", "--shape", shape, "-o", folder]))


def _of_the_model(report: Report) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Return its longest response, settings of a run of it, and those for responses of natural lengths.

    A phase runs in the folder beside the model, and names it from there: a manifest keeps no other path.
    """
    if not report.model_folder.exists():
        model(report)
    longest = 256 if HAS_GPU else 16
    place = () if HAS_GPU else ("placement.device=cpu", *FLOAT32)
    settings = (f"model.path=./{report.model_folder.name}", f"sampling.max_tokens={longest}", *place)
    return longest, settings, ("sampling.min_tokens=0", f"sampling.pinned_lengths=[{longest // 4},{longest}]")


def big(report: Report) -> None:
    """``qwen_1_5b`` with random weights, or its tiny sister on a CPU: a few steps of each way to use a GPU.

    Responses of one length are what plans are made for; those of natural lengths bring ever new shapes.
    """
    longest, settings, natural = _of_the_model(report)
    settings += ("steps=6", "evaluation.every=6", "evaluation.prompts=8", "profile=light")
    variants: dict[str, tuple[str, ...]] = {
        "as shipped": (f"sampling.min_tokens={longest}",),
        "natural lengths": natural,
        "one version ahead": (*natural, "placement.colocated=false", "max_lag=1"),
        "traced": ("sampling.min_tokens=16", "sampling.max_tokens=16", "profile=full"),
    }
    if HAS_GPU and not report.lean:
        variants["checkpointing"] = ("model.gradient_checkpointing=true", "gradient_accumulation_steps=8")
    told = []
    for label, more in variants.items():
        with report.part(label):
            ((_, figures),) = run_arms(report, "qwen_1_5b", label, *settings, *more).items()
            ((measured,), _) = find_runs(report.folder / label)
            held = measured.manifest.outcome["memory"]["gpu" if HAS_GPU else "main"]
            sizes = {name: held[f"{name}_bytes"] / 2**30 for name in ("planned", "peak")}
            report.note(f"{label}: memory, GiB", sizes)
            report.note(f"{label}: energy, J", _energy_j(measured))
            told.append(f"{label}: {_seconds(figures['step_s'])}, peak {sizes['peak']:.3g} GiB")
    with report.part("trace"):
        _traced_kernels(report, report.folder / "traced")
    report.headline = "; ".join(told)


def profile(report: Report) -> None:
    """A profile of this machine for the simulator, from short runs of batches and lengths of several sizes."""
    longest, settings, natural = _of_the_model(report)
    arms = {
        "whole": {},
        "few": {"rollout_batch_size": 16, "sampling.pinned_lengths": [longest // 8, longest // 2]},
        "many": {"rollout_batch_size": 128, "sampling.pinned_lengths": [longest // 8, longest // 4]},
        "twice": {"rollout_batch_size": 32, "epochs_per_batch": 2, "sampling.pinned_lengths": [2, longest // 2]},
    }
    settings += (*natural, "steps=7", "evaluation=null", "interleaving=run", f"arms={json.dumps(arms)}")
    runs, written = run(report, "qwen_1_5b", "runs", *settings), report.file.with_name("profile.yaml")
    call(harness("calibrate", "--name", "measured", "--from", str(runs), "-o", str(written), "--force", "--quiet"))
    stages = yaml.safe_load(written.read_text(encoding="utf-8"))["stages"]
    report.note("stages", sorted({stage["stage"] for stage in stages}))
    report.headline = f"{written.name}: costs of {len(stages)} stages"


def _energy_j(measured: Run) -> float | str:
    """Joules of the whole run, by the board's counter."""
    spans = measured.spans()
    window = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    gpus, reason = gpu_figures(read_counters(measured.folder), window)
    return gpus[0].energy_j or "not counted" if gpus else str(reason)


def _traced_kernels(report: Report, folder: Path) -> None:
    """What a trace of torch.profiler holds: kernels on a GPU, and the seconds of the longest."""
    (trace,) = folder.rglob("*.pt.trace.json.gz")
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    counts, seconds = Counter(event.get("cat", "other") for event in events), defaultdict[str, float](float)
    for event in events:
        if event.get("cat") == "kernel":
            seconds[event["name"][:100]] += event["dur"] / 1e6
    report.note("events of a trace", dict(counts))
    report.note("longest kernels, s", dict(sorted(seconds.items(), key=lambda item: -item[1])[:20]))
    report.note("bytes of the trace", trace.stat().st_size)
    if HAS_GPU and not counts["kernel"]:
        report.fail("the trace holds no kernels")


def ray(report: Report) -> None:
    """Ray actors, and the transports that need nothing but Ray."""
    kinds = ("cuda_ipc", "object_store_numpy", "object_store") if HAS_GPU else ("object_store_numpy",)
    arms = ", ".join(f"{kind}: {{transport: {{type: {kind}}}}}" for kind in kinds)
    _actors(report, "sync_k1", ["ray"], f"arms={{{arms}}}", *(ON_GPU if HAS_GPU else ()))


def nixl(report: Report) -> None:
    """Weights by NIXL against Ray's object store: ``rdt_gpu``, or ``rdt_nixl`` on a CPU."""
    _actors(report, "rdt_gpu" if HAS_GPU else "rdt_nixl", ["ray", "nixl"])


def vllm(report: Report) -> None:
    """vLLM as the engine, a few steps; its log-probs are proven against the Learner's at each."""
    _actors(report, "vllm_sync", ["ray", "vllm"], *(ON_GPU if HAS_GPU else ()))


def _actors(report: Report, scenario: str, modules: list[str], *settings: str) -> None:
    require(modules)
    arms = run_arms(report, scenario, "actors", *UNTAUGHT, *settings)
    told = [f"{name} {_seconds(figures['sync_s'])}" for name, figures in arms.items()]
    report.headline = f"a weight sync: {', '.join(told)}"


def transports(report: Report) -> None:
    """Weight syncs alone, up to 1 GB on a GPU; seconds from publish to loaded."""
    require(["ray"])
    kinds = ["object_store_numpy", "cuda_ipc" if HAS_GPU else "shared_memory", *(["nixl"] if find_spec("nixl") else [])]
    sweep = {"transports": kinds, "megabytes": [100, 1000] if HAS_GPU else [1, 10], "tensors": [20], "receivers": [1]}
    settings = [f"transport_sweep.{key}={json.dumps(value)}" for key, value in (sweep | {"repeats": 5}).items()]
    out = run(report, "transport_sweep_gpu" if HAS_GPU else "transport_sweep", "sweep", *settings)
    seconds = defaultdict[str, list[float]](list)
    for row in (row for found in find_runs(out)[0] for row in found.syncs if row.repeat):
        seconds[f"{row.transport}, {row.num_bytes / 1e6:.0f} MB"].append(row.total_s)
    for name, values in seconds.items():
        report.note(name, median(values))
    report.headline = "; ".join(f"{name} {_seconds(value)}" for name, value in report.figures.items())


def nsys(report: Report) -> None:
    """A short capture of a run in one process, and what its report holds."""
    require(programs=["nsys"])
    window = load_profile("nsight").nsight
    assert window is not None
    shutil.rmtree(report.folder, ignore_errors=True)
    report.folder.mkdir(parents=True)
    out = ("--quiet", "--out", str(report.folder / "runs"))
    line = harness("run", "quickstart", *out, settings=(*UNTAUGHT, "steps=6", "profile=nsight"))
    captured, exported = report.folder / "grpo.nsys-rep", report.folder / "grpo.sqlite"
    call(nsys_arguments(window, line, HAS_GPU, captured.with_suffix("")))
    if not captured.exists():
        wrote = ", ".join(sorted(path.name for path in report.folder.glob("grpo.*"))) or "nothing"
        raise RuntimeError(f"nsys wrote no report but {wrote}")
    call(["nsys", "export", "--type=sqlite", f"--output={exported}", str(captured)])
    report.note("bytes", captured.stat().st_size)
    tables = {"kernels": "CUPTI_ACTIVITY_KIND_KERNEL", "ranges": "NVTX_EVENTS", "OS calls": "OSRT_API"}
    database = sqlite3.connect(exported)
    present = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for name, table in tables.items():
        counted = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if table in present else 0
        report.note(name, counted)
    database.close()
    wanted = "kernels" if HAS_GPU else "ranges"
    if not report.figures[wanted]:
        report.fail(f"the capture holds no {wanted}")
    report.headline = ", ".join(f"{report.figures[name]:,} {name}" for name in tables)
