"""Probe profiles: what ships, where they are found, and their own rules; they are read as scenarios are."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.probes.load import PROFILES, load_profile

SHIPPED = ["full", "light", "nsight", "off", "pyspy"]


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


@pytest.mark.parametrize(
    ("text", "what", "line", "fix"),
    [
        ("nvtx: true\nnvtxx: true\n", "unknown key `nvtxx`", 2, "did you mean `nvtx`?"),
        ("pyspy: {hertz: 1}\n", "`pyspy.hertz`", 1, "valid here: lanes, first_step"),
        ("sampler_hz: 40\n", "`sampler_hz` is 40, must be at most 20.0", 1, "Samples a second"),
        ("pyspy:\n  lanes: ['']\n", "`pyspy.lanes[0]` is text ''", 2, "Lanes by name"),
        ("nsight: {}\ntorch_profiler: {}\n", "only one of them can listen to the GPU", 2, "leave one of them out"),
        ("sampler_hz: 0\nown: ['a.b:C']\n", "`own` names 1 probes", 2, "set sampler_hz"),
        ("", "is a mapping", "", "write `sampler_hz: 5`"),
    ],
)
def test_what_is_wrong_where_and_what_to_write(tmp_path: Path, text: str, what: str, line: Any, fix: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as raised:
        load_profile(tmp_path / "mine.yaml")
    said = str(raised.value).replace(str(tmp_path), "")
    assert what in said
    assert ("/mine.yaml" + (f", line {line}" if line else "")) in said.partition("where:")[2]
    assert fix in said.partition("fix:")[2]
