"""``doctor``: what is here is told with its version, what is not with what brings it."""

from __future__ import annotations

import json
from importlib.metadata import version

from harness.cli import COMMANDS, DOORS, main
from harness.run.commands.doctor import PACKAGES, look


def test_every_command_is_behind_one_door(capsys):
    assert sorted(name for names in DOORS.values() for name in names) == sorted(COMMANDS)
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert [door for door in DOORS if f"{door}:" in said] == [*DOORS]


def test_what_is_missing_is_told_with_what_brings_it(capsys):
    found = {each.name: each for each in look(lambda package: None if package in ("ray", "vllm") else package)}
    assert set(PACKAGES) <= set(found)
    assert (found["ray"].missing, found["vllm"].missing) == ("not installed", "not installed")
    assert "install" in found["ray"].fix
    assert (found["torch"].state, found["torch"].missing) == (version("torch"), "")
    assert main(["doctor", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == [each.name for each in look()]
    assert all(bool(each["missing"]) != bool(each["state"]) for each in listed)
