"""Where a result comes from, without saying whose machine it was."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import harness
from harness.core.machine import fingerprint
from harness.probes.nvml import gpu_limits
from harness.probes.provenance import CodeState, code_state, machine_facts, package_versions
from tests.stand_ins.fake_nvml import FakeDevice, FakeNvml


def _machine(folder: Path, memory_kib: int, limit: str) -> dict[str, object]:
    (folder / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus  3000 @ 2.0GHz\nprocessor\t: 1\n")
    (folder / "meminfo").write_text(f"MemTotal:       {memory_kib} kB\nMemFree:        5 kB\n")
    (folder / "memory.max").write_text(limit)
    return machine_facts(proc=folder, cgroup=folder)


def test_machine_facts_come_from_the_system(tmp_path: Path) -> None:
    facts = _machine(tmp_path, 24 * 1024 * 1024 - 300_000, "max\n")  # 23.71 GiB
    assert facts["cpu"] == "Abacus 3000 @ 2.0GHz"
    assert facts["memory_gib"] == 24
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert re.fullmatch("[0-9a-f]{12}", str(facts["fingerprint"]))
    assert _machine(tmp_path, 24 * 1024 * 1024, f"{4 * 2**30}\n")["memory_gib"] == 4  # a limit counts


def test_what_cannot_be_found_is_null_with_a_reason(tmp_path: Path) -> None:
    facts = machine_facts(proc=tmp_path / "none", cgroup=tmp_path / "none")
    assert facts["memory_gib"] is None
    assert facts["missing"]["memory_gib"] == "no /proc/meminfo"
    assert (facts["gpus"] is None) == ("gpus" in facts["missing"])


def test_the_fingerprint_tells_kinds_of_machine_apart_and_no_more() -> None:
    facts = {"cpu": "Abacus", "cores": 2, "memory_gib": 24, "gpus": None}
    same = {"gpus": None, "memory_gib": 24, "cores": 2, "cpu": "Abacus"}
    assert fingerprint(facts) == fingerprint(same)
    assert fingerprint(facts) != fingerprint(facts | {"cores": 4})


def test_driver_and_limits_of_a_gpu_are_part_of_the_fingerprint() -> None:
    gpu = {"name": "H100", "memory_gib": 80} | gpu_limits(FakeNvml(), FakeDevice())
    changes = ({"driver": "570.86.15"}, {"power_limit_w": 500}, {"max_sm_clock_mhz": 1755}, {"max_memory_clock_mhz": 1})
    facts = {"cpu": "Abacus", "cores": 2, "memory_gib": 24}
    prints = {fingerprint(facts | {"gpus": [gpu | change]}) for change in ({}, *changes)}
    assert len(prints) == 1 + len(changes)


def test_clocks_that_somebody_has_set_are_part_of_the_fingerprint_where_the_driver_tells_them() -> None:
    device = FakeDevice(script={"application_clocks": [{1: 1410, 2: 2619}]})
    limits = gpu_limits(FakeNvml(), device)
    assert (limits["application_sm_clock_mhz"], limits["application_memory_clock_mhz"]) == (1410, 2619)
    assert fingerprint({"gpus": [limits]}) != fingerprint({"gpus": [limits | {"application_sm_clock_mhz": 1980}]})
    assert "application_sm_clock_mhz" not in gpu_limits(FakeNvml(), FakeDevice())  # this one does not tell


def test_a_machine_without_a_gpu_keeps_the_fingerprint_of_older_runs() -> None:
    """That of the reference runs and of profiles/machines/cpu-2-cores.yaml; the system is recorded beside it."""
    facts = {"cpu": "AMD EPYC", "cores": 2, "memory_gib": 24, "gpus": None}
    assert fingerprint(facts) == "fd71f050e3b1"
    machine = machine_facts()
    assert fingerprint({key: machine[key] for key in facts}) == machine["fingerprint"]


def test_facts_of_this_machine_have_its_system_and_name_neither_host_nor_user() -> None:
    facts = machine_facts()
    assert facts["os"] == {
        "system": platform.system(),
        "kernel": os.uname().release,
        "distribution": platform.freedesktop_os_release()["PRETTY_NAME"],
    }
    names = {os.uname().nodename, getpass.getuser(), str(Path.home())} - {"localhost"}
    assert not [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", json.dumps(facts))]


def test_versions_of_packages_that_are_there() -> None:
    versions = package_versions(("torch", "no-such-package"))
    assert sorted(versions) == ["harness", "python", "torch"]
    assert versions["harness"] == harness.__version__
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert package_versions(("no-such-package",)).keys() == {"python", "harness"}


def _git(folder: Path, *arguments: str) -> str:
    names = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=os.environ | names, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_commit_and_dirt_of_a_repository(tmp_path: Path) -> None:
    assert code_state(tmp_path) == CodeState(None, None)
    _git(tmp_path, "init", "-q")
    assert code_state(tmp_path) == CodeState(None, None)  # no commit yet
    (tmp_path / "code.py").write_text("a = 1\n")
    _git(tmp_path, "add", "code.py")
    _git(tmp_path, "commit", "-q", "-m", "first")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("not tracked")
    assert code_state(tmp_path) == CodeState(commit, False)
    (tmp_path / "code.py").write_text("a = 2\n")
    assert code_state(tmp_path) == CodeState(commit, True)
