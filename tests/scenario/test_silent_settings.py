"""A small part of the search for settings that another one makes void; the whole is a tool of its own."""

import pytest

from tests.silent_settings import (
    NOT_TRIED,
    NUMBERS,
    SMALL,
    alternatives,
    changed,
    is_known,
    search,
    valid,
    without_place,
)


def test_every_setting_is_moved_or_says_why_not():
    assert without_place() == []


def test_an_alternative_is_another_value():
    base = valid(SMALL)
    assert base is not None
    assert list(alternatives("loss.ratio_level", base)) == [{"loss.ratio_level": "sequence"}]
    assert list(alternatives("max_lag", base)) == [{"max_lag": 2}]  # it is 0
    assert changed({"loss": {"type": "naive"}}, {"loss.kl.coefficient": 1.0}) == {
        "loss": {"type": "naive", "kl": {"coefficient": 1.0}}
    }
    assert all(NUMBERS.values())
    assert all(NOT_TRIED.values())


@pytest.mark.parametrize(
    ("only", "under", "fewest"),
    [("replay.max_age", "replay.sampling", 1), ("placement.learner.cpus", "placement.generator", 2)],
)
def test_no_pair_of_these_is_silent_without_a_reason(only: str, under: str, fewest: int):
    """Of settings that are cheap to ask about."""
    silent, alive, asked = search(("replay and lag on actors",), only, under)
    assert asked >= fewest
    assert alive
    assert [pair for pair in silent if is_known(pair) is None] == []


def test_a_void_setting_is_found(monkeypatch: pytest.MonkeyPatch):
    """With the rules away: where only the newest groups are drawn, nothing is replayed, however old it may become."""
    monkeypatch.setattr("tests.silent_settings.broken_rules", lambda scenario: [])
    silent, _, asked = search(("replay and lag on actors",), "replay.max_age", "replay.sampling")
    assert asked == 3
    assert [(pair.setting, pair.other) for pair in silent] == [("replay.max_age", "{'replay.sampling': 'newest'}")]
