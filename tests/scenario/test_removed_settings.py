"""Settings that the last release had are refused by name, with what to use instead, wherever they are written."""

import pytest

from harness.core.errors import UserError
from harness.scenario.keys import choices_of, dotted_keys
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.settings.removed import INSTEAD

VALUES = {
    "arrivals": {"record": True},
    "faults.dead_rank": {"rank": 1, "step": 2},
    "faults.hung_rank": {"rank": 1, "step": 2},
    "learner.offload.folder": "here",
}
TYPES = {"task.symbolic_timeout_s": "maths", "transport": "nixl"}


def is_offered(entry):
    key, _, value = entry.partition("=")
    return value in choices_of(key, Scenario) if value else key in dotted_keys(Scenario)


ENTRIES = [*(entry for entry in INSTEAD if not is_offered(entry)), "learner.made_up", "engine.type=made_up"]


@pytest.fixture(autouse=True)
def two_that_are_made_up(monkeypatch):
    monkeypatch.setitem(INSTEAD, "learner.made_up", "leave it out")
    monkeypatch.setitem(INSTEAD, "engine.type=made_up", "set engine.type to native")


@pytest.mark.parametrize("place", ["file", "set", "arm", "sweep"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_what_went_is_refused_with_what_to_use_instead(entry, place, tmp_path):
    key, _, value = entry.partition("=")
    setting = value or VALUES.get(key, 2)
    text = {"arm": f"arms: {{a: {{{key}: {setting}}}, b: {{}}}}\n", "sweep": f"sweep: {{{key}: [{setting}]}}\n"}
    *sections, last = key.split(".")
    nested = f"{'{'.join(f'{section}: ' for section in sections)}{'{' if sections else ''}{last}: {setting}"
    file = tmp_path / "s.yaml"
    file.write_text(text.get(place, f"{nested}{'}' * len(sections)}\n" if place == "file" else "steps: 2\n"))
    with pytest.raises(UserError) as refused:
        load_scenario(file, [f"{key}={setting}"] if place == "set" else [])
    assert f"`{entry}` is no longer offered" in refused.value.what
    assert refused.value.fix == INSTEAD[entry]
    assert refused.value.where is not None
    assert ("--set" if place == "set" else "s.yaml, line 1") in refused.value.where
