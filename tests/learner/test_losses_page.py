"""docs/losses.md shows the example as it is and leaves no setting of losses, advantages and the optimizer out."""

from pathlib import Path

import yaml

from harness.grpo.advantages import DELTAS
from harness.grpo.policy_gradient import LOSSES
from harness.learner.plugins import ADVANTAGE, LOSS
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.settings.loss import AdvantageSettings, Delta, ImportanceSettings, KlSettings, LossSettings, LossType
from harness.settings.optimizer import OptimizerSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
FOLDER = ROOT / "docs" / "examples" / "own_loss"


def choices(annotation: object) -> set[str]:
    """The texts of a Literal, or of a union of them."""
    found: set[str] = set()
    for argument in getattr(annotation, "__args__", ()):
        found |= {argument} if isinstance(argument, str) else choices(argument)
    return found


def test_the_page_shows_the_functions_as_they_are() -> None:
    shown = PAGE.split("```python\n")[1].split("```")[0]
    _, _, code = (FOLDER / "losses.py").read_text(encoding="utf-8").partition('"""\n\n')
    assert shown == code


def test_the_page_names_every_setting_type_and_argument() -> None:
    sections = (LossSettings, AdvantageSettings, KlSettings, ImportanceSettings, OptimizerSettings)
    names = {name for section in sections for name in section.model_fields}
    names |= choices(LossType) | choices(Delta) | set(LOSS.arguments) | set(ADVANTAGE.arguments)
    words = set("".join(letter if letter.isalnum() or letter in "_-" else " " for letter in PAGE).split())
    assert sorted(names - words) == []


def test_settings_and_maths_know_the_same_losses_and_deltas() -> None:
    assert (choices(LossType), choices(Delta)) == ({*LOSSES, "own"}, {*DELTAS, "own"})


def test_the_example_of_the_page_is_the_scenarios_own_arm() -> None:
    built_in, own = (variant.scenario for variant in expand(load_scenario(FOLDER / "own_loss.yaml")))
    shown = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])
    for section, settings in shown.items():
        for key, value in settings.items():
            assert getattr(getattr(own, section), key) == value
    assert (built_in.loss.type, built_in.advantage.delta) == ("cispo", "leave_one_out_rewards")
