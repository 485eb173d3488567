"""Probe profiles: what ships, how they are found, and what an error says."""

from pathlib import Path

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


def test_off_measures_nothing() -> None:
    off = load_profile("off")
    assert (off.name, off.nvtx, off.sampler_hz, off.device_time) == ("off", False, 0.0, False)
    assert (off.torch_profiler, off.pyspy, off.nsight, off.windows) == (None, None, None, {})


def test_light_marks_ranges_and_samples_five_times_a_second_and_spoils_no_step() -> None:
    light = load_profile("light")
    assert (light.nvtx, light.sampler_hz, light.windows) == (True, 5.0, {})


@pytest.mark.parametrize(("name", "steps"), [("full", {3}), ("nsight", {3, 4}), ("pyspy", {3, 4, 5})])
def test_profiled_steps_of_the_heavier_ones(name: str, steps: set[int]) -> None:
    windows = load_profile(name).windows.values()
    assert {step for window in windows for step in window.numbers} == steps


def test_the_current_folders_profile_hides_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/light.yaml").write_text("sampler_hz: 2\n")
    monkeypatch.chdir(tmp_path)
    assert load_profile("light").sampler_hz == 2.0
    assert load_profile("off").sampler_hz == 0.0


def test_a_name_that_is_nearly_right() -> None:
    with pytest.raises(UserError) as raised:
        load_profile("ligth")
    assert raised.value.what == "no probe profile called 'ligth'"
    assert raised.value.fix == "did you mean light?"


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_profile(tmp_path / "light.yaml")
    with pytest.raises(UserError, match="no such folder"):
        load_profile(tmp_path / "profiles" / "light.yaml")


@pytest.mark.parametrize(
    ("text", "what", "where", "fix"),
    [
        ("nvtx: true\nnvtxx: true\n", "unknown key `nvtxx`", "/mine.yaml, line 2", "did you mean `nvtx`?"),
        ("pyspy: {hertz: 1}\n", "unknown key `pyspy.hertz`", "/mine.yaml, line 1", "valid here: lanes, first_step"),
        ("pyspy: {rate: 1}\n", "unknown key `pyspy.rate`", "/mine.yaml, line 1", "`pyspy.rate_hz`"),
        ("sampler_hz: 40\n", "`sampler_hz` is 40, must be at most 20.0", "/mine.yaml, line 1", "Samples a second"),
        ("sampler_hz: .inf\n", "`sampler_hz` is inf, expected a finite number", "/mine.yaml, line 1", "Samples"),
        ("nvtx: yes\n", "`nvtx` is text 'yes', expected true or false", "/mine.yaml, line 1", "write true or false"),
        ("pyspy:\n  lanes: learner\n", "expected a list", "/mine.yaml, line 2", "put it in brackets: lanes: [learner]"),
        (
            "pyspy:\n  lanes: ['']\n",
            "`pyspy.lanes[0]` is text '': must have at least 1 character",
            "/mine.yaml, line 2",
            "Lanes by name",
        ),
        ("pyspy: {format: speedscop}\n", "`pyspy.format` is text 'speedscop'", "line 1", "did you mean `speedscope`?"),
        (
            "nsight: {}\ntorch_profiler: {}\n",
            "only one of them can listen to the GPU",
            "line 2",
            "leave one of them out",
        ),
        ("- nvtx\n", "a probe profile is a mapping", "/mine.yaml", "write `sampler_hz: 5`"),
        ("", "a probe profile is a mapping", "/mine.yaml", "write `sampler_hz: 5`"),
        ("nvtx: [true\n", "YAML syntax error", "line 2", "check the indentation"),
        ("nvtx: true\nnvtx: false\n", "`nvtx` is written twice", "line 2", "keep one of them"),
    ],
)
def test_what_is_wrong_where_and_what_to_write(tmp_path: Path, text: str, what: str, where: str, fix: str) -> None:
    said = error_of(tmp_path, text)
    assert what in said
    assert where in said.partition("where:")[2]
    assert fix in said.partition("fix:")[2]


def test_one_error_names_every_problem(tmp_path: Path) -> None:
    said = error_of(tmp_path, "nvtx: 1\nsampler_hz: -1\npyspy: {rate_hz: 0}\n")
    assert said.startswith("3 problems in /mine.yaml")
    assert "`sampler_hz` is -1, must be at least 0" in said
    assert "`pyspy.rate_hz` is 0, must be at least 1" in said
