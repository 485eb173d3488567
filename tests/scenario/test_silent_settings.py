"""A small part of the search for settings that another one makes void; the whole is a tool of its own."""

import pytest

from harness.scenario.keys import choices_of
from harness.scenario.schema import Scenario
from tests.silent_settings import NUMBERS, SMALL, alternatives, changed, is_known, keys, search, valid


def test_every_setting_of_training_is_moved() -> None:
    assert [key for key in keys() if key not in NUMBERS and not choices_of(key, Scenario)] == []
    assert set(NUMBERS) - set(keys()) == set()


def test_an_alternative_is_another_value() -> None:
    base = valid(SMALL)
    assert base is not None
    assert list(alternatives("loss.ratio_level", base)) == [{"loss.ratio_level": "sequence"}]
    assert list(alternatives("epochs_per_batch", base)) == [{"epochs_per_batch": 1}, {"epochs_per_batch": 3}]  # it is 2
    assert changed({"loss": {"type": "naive"}}, {"loss.kl.coefficient": 1.0}) == {
        "loss": {"type": "naive", "kl": {"coefficient": 1.0}}
    }


def test_no_pair_of_these_is_silent_without_a_reason() -> None:
    silent, asked = search(("a KL penalty",), "loss.kl.coefficient", "loss.aggregation")
    assert asked >= 4
    assert [pair for pair in silent if not is_known(pair)] == []


def test_a_void_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rules away: CISPO has no second clip, which is the first loss's alone."""
    monkeypatch.setattr("tests.silent_settings.broken_rules", lambda scenario: [])
    silent, _ = search(("two passes",), "loss.dual_clip", "loss.type")
    assert ("loss.dual_clip", "{'loss.type': 'cispo'}") in {(pair.setting, pair.other) for pair in silent}
    assert not any(map(is_known, silent))
