"""Probe profiles: what ships, how they are found, and what an error says."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.probes.load import PROFILES, load_profile

SHIPPED = ["full", "light", "nsight", "off", "pyspy"]


def error_of(folder: Path, text: str) -> str:
    """Return what is said about a profile file ``mine.yaml`` with this text."""
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        load_profile(folder / "mine.yaml")
    return str(raised.value).replace(str(folder), "")


def test_five_profiles_ship_and_each_says_what_it_measures() -> None:
    shipped = [file.stem for file in PROFILES.files() if file.stem in SHIPPED]
    assert shipped == SHIPPED
    assert all(load_profile(name).description.endswith(".") for name in shipped)


def test_what_each_of_them_measures() -> None:
    off, light = load_profile("off"), load_profile("light")
    assert (off.name, off.nvtx, off.sampler_hz, off.device_time) == ("off", False, 0.0, False)
    assert (off.torch_profiler, off.pyspy, off.nsight, off.windows) == (None, None, None, {})
    assert (light.nvtx, light.sampler_hz, light.windows) == (True, 5.0, {})
    for name, steps in (("full", {3}), ("nsight", {3, 4}), ("pyspy", {3, 4, 5})):
        windows = load_profile(name).windows.values()
        assert {step for window in windows for step in window.numbers} == steps, name


def test_the_current_folders_profile_hides_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/light.yaml").write_text("sampler_hz: 2\n")
    monkeypatch.chdir(tmp_path)
    assert load_profile("light").sampler_hz == 2.0
    assert load_profile("off").sampler_hz == 0.0


def test_a_name_that_is_nearly_right_and_a_path_that_is_not_there(tmp_path: Path) -> None:
    for name, said in (
        ("ligth", "'ligth'(.|\n)*did you mean light"),
        (tmp_path / "light.yaml", "no such file"),
        (tmp_path / "profiles" / "light.yaml", "no such folder"),
    ):
        with pytest.raises(UserError, match=said):
            load_profile(name)


@pytest.mark.parametrize(
    ("text", "what", "line", "fix"),
    [
        ("nvtx: true\nnvtxx: true\n", "unknown key `nvtxx`", 2, "did you mean `nvtx`?"),
        ("pyspy: {hertz: 1}\n", "`pyspy.hertz`", 1, "valid here: lanes, first_step"),
        ("pyspy: {rate: 1}\n", "`pyspy.rate`", 1, "`pyspy.rate_hz`"),
        ("sampler_hz: 40\n", "`sampler_hz` is 40, must be at most 20.0", 1, "Samples a second"),
        ("sampler_hz: .inf\n", "`sampler_hz` is inf", 1, "Samples"),
        ("nvtx: yes\n", "`nvtx` is text 'yes'", 1, "write true or false"),
        ("pyspy:\n  lanes: learner\n", "expected a list", 2, "lanes: [learner]"),
        ("pyspy:\n  lanes: ['']\n", "`pyspy.lanes[0]` is text ''", 2, "Lanes by name"),
        ("pyspy: {format: speedscop}\n", "`pyspy.format` is text 'speedscop'", 1, "`speedscope`"),
        ("nsight: {}\ntorch_profiler: {}\n", "only one of them can listen to the GPU", 2, "leave one of them out"),
        ("- nvtx\n", "is a mapping", "", "write `sampler_hz: 5`"),
        ("", "is a mapping", "", "write `sampler_hz: 5`"),
        ("nvtx: [true\n", "YAML syntax error", 2, "check the indentation"),
        ("nvtx: true\nnvtx: false\n", "`nvtx` is written twice", 2, "keep one of them"),
    ],
)
def test_what_is_wrong_where_and_what_to_write(tmp_path: Path, text: str, what: str, line: Any, fix: str) -> None:
    said = error_of(tmp_path, text)
    assert what in said
    assert ("/mine.yaml" + (f", line {line}" if line else "")) in said.partition("where:")[2]
    assert fix in said.partition("fix:")[2]


def test_one_error_names_every_problem(tmp_path: Path) -> None:
    said = error_of(tmp_path, "nvtx: 1\nsampler_hz: -1\npyspy: {rate_hz: 0}\n")
    assert said.startswith("3 problems in /mine.yaml")
    assert "`sampler_hz` is -1, must be at least 0" in said
    assert "`pyspy.rate_hz` is 0, must be at least 1" in said
