"""NVTX ranges: which, in which order, however a span ends; on a recording domain, and on the real library."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.core.trace import HookedTracer, NullTracer, RecordingTracer, Span, SpanContext, Stage
from harness.probes.nvtx_ranges import NvtxSpans
from harness.record.nvtx_ranges import category, open_domain
from tests.stand_ins.fake_nvtx import FakeDomain

# A tool that listens, by the interface of nvToolsExt.h (NVTX 3, https://github.com/NVIDIA/NVTX). It takes the table of
# module 5 (core2) and fills these slots: 2 RangeStartEx, 3 RangeEnd, 8 NameCategoryA, 10 RegisterStringA,
# 12 DomainCreateA.
LISTENER = r"""
#include <stdint.h>
#include <stdio.h>
typedef struct { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color; int32_t payload_type,
  reserved; union { uint64_t u; int64_t i; } payload; int32_t message_type; const void* message; } Attributes;
typedef struct { size_t size; int (*table)(int module, void*** slots, unsigned* count); } Callbacks;
static uint64_t next = 1;
static void* domain(const char* name) { fprintf(stderr, "domain %s\n", name); return (void*)8; }
static void* text(void* d, const char* s) { return (void*)s; }
static void category(void* d, uint32_t id, const char* s) { fprintf(stderr, "category %u %s\n", id, s); }
static uint64_t start(void* d, const Attributes* a) {
  fprintf(stderr, "start %d %s category %u payload %d:%d\n", (int)next, (const char*)a->message, a->category,
    a->payload_type, (int)a->payload.i);
  return next++; }
static void end(void* d, uint64_t id) { fprintf(stderr, "end %d\n", (int)id); }
int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const Callbacks* callbacks = export_table(1); void** slots; unsigned count;
  if (!callbacks || !callbacks->table(5, &slots, &count) || count < 13) return 0;
  *(void**)slots[2] = start; *(void**)slots[3] = end; *(void**)slots[8] = category; *(void**)slots[10] = text;
  *(void**)slots[12] = domain; return 1; }
"""
# One that knows the payload extension and cannot set it up, as Nsight Systems 2022.4: NVTX then says that no domain of
# its is enabled.
OLDER = LISTENER + "int InitializeInjectionNvtxExtension(void* module) { return 0; }\n"
USE = """
from harness.probes.nvtx_ranges import NvtxSpans
from harness.record.nvtx_ranges import open_domain
from harness.core.trace import HookedTracer, NullTracer, Stage
domain, reason = open_domain()
print(reason)
tracer = HookedTracer(NullTracer(), NvtxSpans(domain))
with tracer.span("learner", Stage.UPDATE, 3):
    with tracer.span("learner", Stage.WAIT_FOR_BATCH, 4):
        pass
"""


def events(domain: FakeDomain) -> list[tuple[str, int]]:
    return [(event.kind, event.number) for event in domain.events]


def test_a_range_has_the_stages_name_its_category_and_the_step() -> None:
    domain = FakeDomain()
    tracer = HookedTracer(NullTracer(), NvtxSpans(domain))
    for step in (7, 8):
        with tracer.span("learner", Stage.UPDATE, step, 3):
            pass
    assert domain.events[::2] == [("start", number, "update", "stage/update", number + 6) for number in (1, 2)]
    assert events(domain) == [("start", 1), ("end", 1), ("start", 2), ("end", 2)]
    assert sorted(domain.registered) == sorted(stage.value for stage in Stage)  # once, however many ranges there are


def test_stages_and_waits_have_their_own_categories() -> None:
    assert category(Stage.OLD_LOGPROBS.value) == "stage/old_logprobs"
    assert category(Stage.WAIT_FOR_WEIGHTS.value) == "wait/weights"
    assert len({category(stage.value) for stage in Stage}) == len(Stage)


def test_the_range_encloses_the_span_that_is_recorded() -> None:
    domain, times = FakeDomain(), iter([10, 20])
    log: list[str] = []

    def clock_ns() -> int:
        log.append(f"clock after {len(domain.events)} events")
        return next(times)

    recorder = RecordingTracer(clock_ns)
    with HookedTracer(recorder, NvtxSpans(domain)).span("learner", Stage.UPDATE, 0, 1):
        pass
    assert recorder.drain() == [Span("learner", Stage.UPDATE, 10, 20, 0, 1)]
    assert log == ["clock after 1 events", "clock after 1 events"]


class Broken:
    """A tracer whose spans fail at one end."""

    def __init__(self, end: str) -> None:
        self.end = end

    def span(self, lane: str, stage: Stage, step: int = -1, version: int = -1) -> SpanContext:
        return self

    def __enter__(self) -> None:
        if self.end == "start":
            raise OSError("no start")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        raise OSError("no end")


def test_whatever_fails_leaves_no_range_open() -> None:
    for tracer, error in ((Broken("start"), OSError), (Broken("end"), OSError), (NullTracer(), ZeroDivisionError)):
        domain = FakeDomain()
        with pytest.raises(error), HookedTracer(tracer, NvtxSpans(domain)).span("learner", Stage.UPDATE):
            _ = 1 / (0 if error is ZeroDivisionError else 1)
        assert events(domain) == [("start", 1), ("end", 1)]


def test_of_spans_that_cross_each_ends_its_own_range() -> None:
    """As those of two tasks on one event loop: push and pop would end the wrong one."""
    domain = FakeDomain()
    tracer = HookedTracer(NullTracer(), NvtxSpans(domain))
    first, second = tracer.span("generator", Stage.GENERATE, 4), tracer.span("learner", Stage.WAIT_FOR_BATCH, 5)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert events(domain) == [("start", 1), ("start", 2), ("end", 1), ("end", 2)]


def test_a_span_may_end_in_another_thread_and_threads_do_not_mix_their_steps() -> None:
    domain = FakeDomain()
    tracer = HookedTracer(NullTracer(), NvtxSpans(domain))
    span = tracer.span("generator", Stage.GENERATE, 1)
    span.__enter__()
    both = threading.Barrier(2)

    def work(step: int) -> None:
        for _ in range(200):
            both.wait()
            with tracer.span("learner", Stage.UPDATE, step):
                pass

    threads = [threading.Thread(target=work, args=(step,)) for step in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    span.__exit__(None, None, None)
    steps = [event.payload for event in domain.events if event.kind == "start"]
    assert (steps.count(1), steps.count(2), steps.count(3)) == (1, 200, 200)
    assert events(domain)[-1] == ("end", 1)
    assert len(domain.events) == 2 * 401
    assert len(domain.registered) == 3 * len(Stage)  # attributes of its own for each thread


def test_without_a_tool_or_the_package_there_is_a_reason_and_no_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = pytest.importorskip("nvtx")
    assert open_domain("grpo", {}) == (None, "no tool listens for NVTX ranges in this process")
    with HookedTracer(NullTracer(), NvtxSpans(nvtx.get_domain("grpo"))).span("learner", Stage.UPDATE, 3):
        pass  # the library's stand-in takes our calls
    with monkeypatch.context() as older:
        older.setitem(sys.modules, "nvtx._lib.lib", None)
        domain, reason = open_domain("grpo", {"NVTX_INJECTION64_PATH": "tool.so"})
        assert (domain, (reason or "").startswith("the tool is older than the package nvtx")) == (None, True)
    with monkeypatch.context() as disabled:
        disabled.setattr(nvtx, "enabled", lambda: False)
        assert open_domain() == (None, "NVTX_DISABLE is set")
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert open_domain() == (None, "the package nvtx is not installed")


@pytest.mark.parametrize("listener", [LISTENER, OLDER])
def test_a_tool_that_listens_gets_the_ranges_from_the_real_library(listener: str, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the listener with")
    source, library = tmp_path / "listener.c", tmp_path / "listener.so"
    source.write_text(listener)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    env = os.environ | {"NVTX_INJECTION64_PATH": str(library)}
    done = subprocess.run([sys.executable, "-c", USE], env=env, capture_output=True, text=True, check=True)
    said = done.stderr.splitlines()
    categories = {line.split()[2]: line.split()[1] for line in said if line.startswith("category")}
    assert done.stdout == "None\n"
    assert said[0] == "domain grpo"
    assert set(categories) == {category(stage.value) for stage in Stage}
    assert said[-4:] == [  # payload type 2 is NVTX_PAYLOAD_TYPE_INT64
        f"start 1 update category {categories['stage/update']} payload 2:3",
        f"start 2 wait_for_batch category {categories['wait/batch']} payload 2:4",
        "end 2",
        "end 1",
    ]
