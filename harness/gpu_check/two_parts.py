"""What two parts on one device are to each other: weights that another process reads, decoding beside training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.multiprocessing as mp

from harness.engines.decode import CachedDecoder
from harness.gpu_check.device import DTYPE, HAS_GPU, timed_ms
from harness.gpu_check.report import Report, Skipped
from harness.gpu_check.speed import decoder_of, microbatch, random_model, started, train
from harness.models.flat_layout import BucketLayout
from harness.transports.buffers import CopiedWeights
from harness.transports.checksum import checksum

LAYERS = 28


def _reader(pipe: Any, layout: BucketLayout) -> None:
    """The other process: the checksum of the weights that it is handed, and a copy in the engine's type."""
    views = layout.views(pipe.recv())
    first_ms, again_ms = (timed_ms(lambda: pipe.send(checksum(views))) for _ in range(2))
    load_ms = timed_ms(lambda: {name: view.to(DTYPE) for name, view in views.items()})
    pipe.send({"checksum, first, ms": first_ms, "checksum, ms": again_ms, "load, ms": load_ms})
    pipe.recv()


def pair(report: Report) -> None:
    """Weights that another process reads in place: on a GPU by CUDA IPC, on a CPU by shared memory; no Ray."""
    weights = {name: weight.detach() for name, weight in random_model(LAYERS).named_parameters()}
    layout = BucketLayout.of(weights)
    copied = CopiedWeights(weights, layout)
    first_ms = timed_ms(lambda: copied.fill(weights, 0))
    publish_ms = timed_ms(lambda: copied.fill(weights, 1), calls=3)
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_reader, args=(there, layout))
    process.start()
    there.close()  # the reader's end alone: its death ends a wait
    try:
        here.send(copied.tensor)
        wrong = sum(here.recv() != checksum(copied.views) for _ in range(2))
        figures = here.recv()
        here.send("done")
    except EOFError:
        raise RuntimeError("the reading process ended before it answered") from None
    finally:
        process.join(30)
        process.kill()
    report.check("checksums that differ between two processes", wrong, 0)
    report.note("weights", {"bytes": layout.num_bytes, "publish, first, ms": first_ms, "publish, ms": publish_ms})
    report.note("in the other process", figures)
    report.headline = f"{layout.num_bytes / 1e9:.3g} GB: publish {publish_ms:.3g} ms, load {figures['load, ms']:.3g} ms"


def overlap(report: Report) -> None:
    """Decoding beside training in one process, a thread and a CUDA stream each, with and without stream priority."""
    if not HAS_GPU:
        raise Skipped("no GPU: there is no stream to share")
    model, batch = random_model(LAYERS), microbatch(2, 256)
    with torch.inference_mode():
        decoder = decoder_of(model)
        tokens = started(decoder, 64)
        decoder.step(tokens)
        report.note("decode alone, ms", timed_ms(lambda: decoder.step(tokens), calls=20))
    train(model, batch)
    report.note("train alone, ms", timed_ms(lambda: train(model, batch), calls=3))
    told = []
    for priority in (0, -1):
        decode_ms, train_ms = _side_by_side(decoder, tokens, lambda: train(model, batch), priority)
        report.note(f"side by side, priority {priority}", {"decode, ms": decode_ms, "train, ms": train_ms})
        told.append(f"priority {priority}: token {decode_ms:.3g} ms, microbatch {train_ms:.3g} ms")
    report.headline = "; ".join(told)


def _side_by_side(
    decoder: CachedDecoder, tokens: torch.Tensor, learn: Callable[[], None], priority: int
) -> tuple[float, float]:
    """Median milliseconds of a decoded token, whose stream has the priority, and of a training pass meanwhile."""
    stop, passes, steps = threading.Event(), list[float](), list[float]()

    def on_stream(stream: torch.cuda.Stream, work: Callable[[], object]) -> float:
        with torch.cuda.stream(stream):
            start = time.perf_counter()
            work()
            stream.synchronize()
        return (time.perf_counter() - start) * 1e3

    def learner() -> None:
        stream = torch.cuda.Stream()
        while not stop.is_set():
            passes.append(on_stream(stream, learn))

    thread = threading.Thread(target=learner)
    thread.start()
    try:
        stream = torch.cuda.Stream(priority=priority)
        time.sleep(1.0)  # until it trains at its pace
        with torch.inference_mode():
            steps += [on_stream(stream, lambda: decoder.step(tokens)) for _ in range(30)]
    finally:
        stop.set()
        thread.join()
    return median(steps), median(passes)
