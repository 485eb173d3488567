"""The GPU probe on scripted devices: values, reasons, visible devices, processes of others."""

import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.probes.nvml import Driver, GpuProbe, gpu_limits, list_gpus, open_gpu_probe
from harness.probes.reading import Reading, Unknown
from harness.results.counters import GPU_COUNTERS, explain
from tests.stand_ins import fake_nvml
from tests.stand_ins.fake_nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    FakeDevice,
    FakeNvml,
    Memory,
    NVMLError,
    Process,
)

GIB, SECOND = 2**30, 1_000_000_000


def test_limits_of_a_gpu_are_what_the_driver_enforces_and_one_that_it_does_not_tell_is_unknown() -> None:
    device = FakeDevice(script={"power_limit": [500_400], "default_power_limit": [700_000]})
    usual = {"max_sm_clock_mhz": 1980, "max_memory_clock_mhz": 2619, "default_power_limit_w": 700}
    assert gpu_limits(FakeNvml([device]), device) == usual | {"driver": "580.95.05", "power_limit_w": 500}
    silent = {"power_limit": [NVMLError(NO_PERMISSION)], "max_clocks": [NVMLError(NOT_SUPPORTED)]}
    device = FakeDevice(script=silent)
    unknown = dict.fromkeys(("driver", "max_sm_clock_mhz", "max_memory_clock_mhz", "power_limit_w"))
    assert gpu_limits(FakeNvml([device], driver=NVMLError(FUNCTION_NOT_FOUND)), device) == usual | unknown


def probe(*devices: FakeDevice, **options: Any) -> GpuProbe:
    return GpuProbe(FakeNvml(devices), **options)


def read(device: FakeDevice, now_ns: int = 0) -> Reading:
    return probe(device).read(now_ns, [])[0]


def processes(proc: Path, parents: dict[int, int]) -> Path:
    """Make a /proc with these processes, each a child of the second."""
    for pid, parent in parents.items():
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0 -1")
    return proc


def test_every_counter_in_its_unit() -> None:
    device = FakeDevice(script={"utilisation": [87], "power": [312_500], "energy": [9_000_250], "clock": [1755]})
    reading = read(device)
    assert reading.source == "gpu0"
    assert reading.missing == {}
    assert reading.values == {
        "utilisation": 0.87,
        "memory_used_bytes": 10 * GIB,
        "sm_clock_mhz": 1755,
        "temperature_c": 40,
        "power_w": 312.5,  # NVML gives mW
        "energy_j": 9000.25,  # and mJ
        "throttled": 0,
        "processes": 0,
        "other_processes": 0,
        "other_memory_bytes": 0,
    }
    assert set(reading.values) == set(GPU_COUNTERS)
    assert json.loads(json.dumps(reading.values))["energy_j"] == 9000.25


COUNTERS = {"utilisation": "utilisation", "memory": "memory_used_bytes", "clock": "sm_clock_mhz"}
COUNTERS |= {"temperature": "temperature_c", "power": "power_w", "energy": "energy_j", "reasons": "throttled"}
REASONS = {NOT_SUPPORTED: "not_supported", NO_PERMISSION: "no_permission", GPU_IS_LOST: "lost", 999: "nvml_error_999"}


@pytest.mark.parametrize("code", REASONS)
def test_one_counter_that_fails_is_null_with_its_reason_and_the_others_stay(code: int) -> None:
    for script, name in COUNTERS.items():
        reading = read(FakeDevice(script={script: [NVMLError(code)]}))
        assert reading.missing == {name: REASONS[code]}
        assert [other for other, value in reading.values.items() if value is None] == [name]


def test_a_gpu_that_gets_lost_comes_back_and_a_counter_that_wraps_around_is_passed_on() -> None:
    gpu = probe(FakeDevice(script={"energy": [2**32 - 1, NVMLError(GPU_IS_LOST), 5]}))
    values = [gpu.read(at_ns, [])[0].values["energy_j"] for at_ns in range(3)]
    assert values == [(2**32 - 1) / 1000, None, 0.005]


def test_a_device_whose_handle_cannot_be_had_is_all_null_and_the_next_one_is_read() -> None:
    gone = FakeDevice(unreachable=NVMLError(GPU_IS_LOST))
    first, second = probe(gone, FakeDevice(uuid="GPU-1")).read(0, [])
    assert first.values == dict.fromkeys(GPU_COUNTERS)
    assert first.missing == dict.fromkeys(GPU_COUNTERS, "lost")
    assert (second.source, second.missing) == ("gpu1", {})


def test_without_a_driver_there_is_one_reason() -> None:
    for code, reason in (
        (LIBRARY_NOT_FOUND, "no_driver"),
        (DRIVER_NOT_LOADED, "no_driver"),
        (VERSION_MISMATCH, "version_mismatch"),
        (NO_PERMISSION, "no_permission"),
    ):
        with pytest.raises(Unknown) as raised:
            GpuProbe(FakeNvml(init=NVMLError(code)))
        assert raised.value.reason == reason
        assert explain(reason) != reason


def test_the_real_library_agrees_with_the_fake_on_a_machine_without_a_driver() -> None:
    pynvml: Any = importlib.import_module("pynvml")
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")
    with pytest.raises(Unknown) as raised:
        open_gpu_probe()
    assert raised.value.reason == "no_driver"


def test_the_fake_has_only_what_the_real_library_has() -> None:
    pynvml: Any = importlib.import_module("pynvml")
    names = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU) == (FakeNvml.NVML_CLOCK_SM, 0)
    names = ["NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND"]
    for name in (*names, "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT"):
        assert getattr(fake_nvml, name) == getattr(pynvml, f"NVML_ERROR_{name}")
    assert pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH == VERSION_MISMATCH


def test_throttle_reasons_by_name_and_back_to_0_once_they_have_been_seen() -> None:
    # bits of nvmlClocksEventReasons: 0x1 idle, 0x4 software power cap, 0x40 hardware thermal slowdown
    gpu = probe(FakeDevice(script={"reasons": [0x1, 0x4 | 0x40, 0x4, 0x0]}))
    seen = []
    for at_ns in range(4):
        values = gpu.read(at_ns, [])[0].values
        seen.append({name: value for name, value in values.items() if name.startswith("thrott")})
    assert seen == [
        {"throttled": 0},
        {"throttled": 2, "throttle/hw_thermal": 1.0, "throttle/sw_power_cap": 1.0},
        {"throttled": 1, "throttle/hw_thermal": 0.0, "throttle/sw_power_cap": 1.0},
        {"throttled": 0, "throttle/hw_thermal": 0.0, "throttle/sw_power_cap": 0.0},
    ]


def test_an_older_driver_has_the_reasons_under_their_former_name() -> None:
    values = read(FakeDevice(script={"reasons": [NVMLError(FUNCTION_NOT_FOUND), 0x8]})).values
    assert (values["throttled"], values["throttle/hw_slowdown"]) == (1, 1.0)


DEVICES = ("GPU-aa11", "GPU-bb22", "GPU-bb33")


@pytest.mark.parametrize(
    ("visible", "read_uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb22", "GPU-bb33"]),
        ("2,0", ["GPU-bb33", "GPU-aa11"]),
        (" 1 ", ["GPU-bb22"]),
        ("GPU-bb33,GPU-aa11", ["GPU-bb33", "GPU-aa11"]),
        ("GPU-a", ["GPU-aa11"]),  # CUDA takes any prefix that names one device
        ("GPU-bb", []),  # and not one that names two
        ("0,-1,1", ["GPU-aa11"]),  # an entry that names no device ends the list
        ("0,7,1", ["GPU-aa11"]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices_in_cudas_order(visible: str | None, read_uuids: list[str]) -> None:
    devices = [FakeDevice(uuid, script={"clock": [number]}) for number, uuid in enumerate(DEVICES)]
    readings = probe(*devices, visible=visible).read(0, [])
    assert [DEVICES[int(reading.values["sm_clock_mhz"] or 0)] for reading in readings] == read_uuids
    assert [reading.source for reading in readings] == [f"gpu{place}" for place in range(len(read_uuids))]


def test_gpus_are_listed_with_what_is_free_of_those_that_a_run_may_use() -> None:
    small = FakeDevice("GPU-b", "Small", {"memory": [Memory(24 * GIB, 3 * GIB)]})
    nvml = FakeNvml([FakeDevice("GPU-a", "Large"), small])
    large, little = ("Large", 80, 70 * GIB), ("Small", 24, 21 * GIB)
    for visible, expected in ((None, [large, little]), ("0", [large]), ("1", [little]), ("", [])):
        gpus, reason = list_gpus(nvml, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
        assert reason is None
        assert [(gpu["name"], gpu["memory_gib"], gpu["free_bytes"]) for gpu in gpus or []] == expected
    assert nvml.opened == 0


def test_gpus_that_cannot_be_listed_say_why() -> None:
    assert list_gpus(FakeNvml(init=NVMLError(DRIVER_NOT_LOADED)), {}) == (None, "NVML: no NVIDIA driver is loaded")
    lost = FakeNvml([FakeDevice(unreachable=NVMLError(GPU_IS_LOST))])
    assert list_gpus(lost, {}) == (None, "NVML: the GPU has fallen off the bus")
    assert lost.opened == 0
    one_of_two = FakeNvml([FakeDevice(unreachable=NVMLError(GPU_IS_LOST)), FakeDevice("GPU-b", "Small")])
    assert [gpu["name"] for gpu in list_gpus(one_of_two, {})[0] or []] == ["Small"]
    (shared,), _ = list_gpus(FakeNvml([FakeDevice(script={"memory": [NVMLError(NOT_SUPPORTED)]})]), {})
    assert (shared["name"], shared["memory_gib"], shared["free_bytes"]) == ("Fake GPU", None, None)


def test_a_mig_slice_has_memory_and_reasons_for_the_rest() -> None:
    unsupported = [NVMLError(NOT_SUPPORTED)]
    script = {"utilisation": unsupported, "power": [NVMLError(INVALID_ARGUMENT)], "memory": [Memory(GIB, GIB // 2)]}
    nvml = FakeNvml([FakeDevice("GPU-aa")], slices=[FakeDevice("MIG-1", script=script)])
    (reading,) = GpuProbe(nvml, visible="MIG-1").read(0, [])
    assert reading.values["memory_used_bytes"] == GIB // 2
    assert reading.missing == {"utilisation": "not_supported", "power_w": "not_supported"}


def test_processes_of_others_and_what_they_hold(tmp_path: Path) -> None:
    proc = processes(tmp_path, {10: 1, 11: 10, 12: 11, 20: 1, 30: 1})
    listed = [Process(10, GIB), Process(12, GIB), Process(20, 2 * GIB)]
    device = FakeDevice(script={"compute": [listed], "graphics": [[Process(30, 3 * GIB), Process(20, 2 * GIB)]]})
    (reading,) = probe(device, proc=proc).read(0, own_pids=[10])
    values = reading.values
    assert values["processes"] == 4  # 20 is in both lists
    assert values["other_processes"] == 2  # 12 is a grandchild of 10, 20 and 30 are strangers
    assert values["other_memory_bytes"] == 5 * GIB


@pytest.mark.parametrize(
    ("compute", "known", "missing"),
    [
        # not called others where this container cannot see them
        ([Process(4711, GIB)], {"processes": 1}, {"other_processes": "other_pid_namespace"}),
        ([Process(20, None)], {"processes": 1, "other_processes": 1}, {"other_memory_bytes": "not_supported"}),
        (NVMLError(NO_PERMISSION), {}, {"processes": "no_permission", "other_processes": "no_permission"}),
    ],
)
def test_processes_that_the_driver_or_the_container_does_not_tell(
    compute: Any, known: dict[str, int], missing: dict[str, str], tmp_path: Path
) -> None:
    (reading,) = probe(FakeDevice(script={"compute": [compute]}), proc=processes(tmp_path, {20: 1})).read(0, [])
    assert reading.values.items() >= known.items()
    assert reading.missing == {"other_memory_bytes": next(iter(missing.values()))} | missing


def test_processes_are_listed_once_a_second() -> None:
    device = FakeDevice()
    gpu = probe(device)
    with_list = [at_ns for at_ns in range(0, 3 * SECOND, SECOND // 5) if "processes" in gpu.read(at_ns, [])[0].values]
    assert with_list == [0, SECOND, 2 * SECOND]
    assert device.calls["compute"] == 3
    assert device.calls["utilisation"] == 15


def test_the_driver_is_let_go_once_and_also_where_the_devices_cannot_be_counted() -> None:
    nvml = FakeNvml([FakeDevice()], driver="535.104.05", cuda=12020)
    gpu = GpuProbe(nvml)
    assert nvml.opened == 1
    assert gpu.driver() == Driver("535.104.05", "12.2")
    gpu.close()
    gpu.close()
    assert nvml.opened == 0
    uncounted = FakeNvml(count=NVMLError(NO_PERMISSION))
    with pytest.raises(Unknown, match="no_permission"):
        GpuProbe(uncounted)
    assert uncounted.opened == 0
