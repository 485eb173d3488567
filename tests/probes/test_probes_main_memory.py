"""Peak main memory of processes, on a folder that stands for /proc, and on this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.probes.memory import MainMemory, forget_own_peak, main_memory_peak, with_children

MIB = 2**20


def process(proc: Path, pid: int, program: str, peak: int, files: int, shared: int = 0) -> None:
    """A process that held so many MiB at most, of which so many are pages of files and of shared memory."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "exe").symlink_to(program)
    sizes = {"VmHWM": peak, "VmRSS": peak - 1, "RssFile": files, "RssShmem": shared}
    lines = ["Name:\tpython", *(f"{name}:\t{size * 1024} kB" for name, size in sizes.items()), "Threads:\t7"]
    (folder / "status").write_text("\n".join(lines))


def test_what_processes_share_counts_once(tmp_path: Path) -> None:
    process(tmp_path, 1, "/bin/python", 500, 200)
    process(tmp_path, 2, "/bin/python", 700, 240, 30)
    process(tmp_path, 3, "/bin/python", 300, 100, 40)
    process(tmp_path, 4, "/bin/raylet", 50, 20)
    own = 300 + 430 + 160 + 30
    assert main_memory_peak([1, 2, 3, 4], tmp_path) == MainMemory((own + 240 + 20 + 40) * MIB, 4)
    assert main_memory_peak([2], tmp_path) == MainMemory(700 * MIB, 1)


def test_processes_that_have_ended_are_left_out(tmp_path: Path) -> None:
    process(tmp_path, 1, "/bin/python", 500, 200)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "exe").symlink_to("/bin/python")
    (tmp_path / "2" / "status").write_text("Name:\tpython\nState:\tZ (zombie)\n")
    assert main_memory_peak([1, 2, 3], tmp_path) == MainMemory(500 * MIB, 1)
    assert main_memory_peak([2, 3], tmp_path) is None


SPIKE = """
from harness.probes.memory import forget_own_peak, main_memory_peak
import os
bytearray(300 << 20)
before = main_memory_peak([os.getpid()]).num_bytes
forget_own_peak()
print(before, main_memory_peak([os.getpid()]).num_bytes)
"""


def test_a_spike_between_two_readings_is_seen_and_can_be_forgotten() -> None:
    done = subprocess.run([sys.executable, "-c", SPIKE], capture_output=True, text=True, check=True, timeout=60)
    before, after = map(int, done.stdout.split())
    assert before > 300 * MIB
    assert after < before - 200 * MIB


def test_children_belong_to_their_parents() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert with_children([os.getpid()]) >= {os.getpid(), child.pid}
        assert with_children([child.pid]) == {child.pid}
        child.communicate(b"\n", timeout=60)
    assert with_children([child.pid]) == {child.pid}


def test_where_marks_cannot_begin_anew_nothing_happens(tmp_path: Path) -> None:
    forget_own_peak(tmp_path / "none")
