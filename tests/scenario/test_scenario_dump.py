"""The resolved scenario: complete, equal when loaded again, and hashed by what it says."""

import json
from pathlib import Path

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.scenario.axes import expand
from harness.scenario.keys import choices_of, dotted_keys
from harness.scenario.load import load_scenario, resolved_yaml, scenario_hash
from harness.scenario.schema import Scenario, json_schema
from harness.scenario.tree import parse_yaml

MANY = {
    "name": "many",
    "description": "first line\nsecond: line # no comment",
    "task": {"type": "jsonl", "train": "1e5", "validation": "no", "reward": "a.b:c"},
    "model": {"type": "folder", "path": "off", "precision": "bfloat16"},
    "sampling": {"stop": ["</answer>", "\n\n", "0o17", "null", "1:30"]},
    "optimizer": {"learning_rate": 1e-5, "betas": [0.5, 0.999]},
    "loss": {"kl": {"coefficient": 1e-20}},
    "arms": {"a": {"loss.type": "no_baseline"}, "1e5": {"sampling.stop": ["1e5"]}},
    "sweep": {"seed": [0, 1], "optimizer.learning_rate": [1e-5, 1]},
}


def loaded_again(scenario, folder):
    path = folder / "again.yaml"
    path.write_text(resolved_yaml(scenario), encoding="utf-8")
    return load_scenario(path)


def test_loading_the_resolved_yaml_gives_an_equal_scenario(tmp_path):
    scenario = Scenario.model_validate(MANY)
    again = loaded_again(scenario, tmp_path)
    assert again == scenario
    assert [variant.scenario for variant in expand(again)] == [variant.scenario for variant in expand(scenario)]
    assert scenario_hash(again) == scenario_hash(scenario)


def test_other_yaml_readers_see_the_same_values():
    scenario = Scenario.model_validate(MANY)
    assert Scenario.model_validate(yaml.safe_load(resolved_yaml(scenario))) == scenario


@settings(max_examples=100, deadline=None, derandomize=True)
@example("a\x85b\u2028c\r\n\t \ufeff", 1e-5, 0)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.floats(0, 1e9), st.integers(0, 2**32 - 1))
def test_any_text_and_number_survives(text, number, seed):
    scenario = Scenario.model_validate(
        {
            "description": text,
            "seed": seed,
            "optimizer": {"learning_rate": number},
            "sampling": {"stop": [text or "x"]},
            "arms": {"a": {"description": text, "optimizer.weight_decay": number}},
        }
    )
    assert Scenario.model_validate(parse_yaml(resolved_yaml(scenario), "here")) == scenario


def test_every_setting_is_written_out():
    data = yaml.safe_load(resolved_yaml(Scenario()))
    assert data["optimizer"] == {
        "learning_rate": 1e-5,
        "betas": [0.9, 0.95],
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "warmup_steps": 0,
        "warmup_ratio": 0.0,
        "schedule": "constant",
        "min_learning_rate_ratio": 0.0,
    }
    assert next(iter(data["model"])) == "type"
    assert set(Scenario.model_fields) - set(data) == {"arms", "sweep"}
    assert "extends" not in data


def test_the_hash_depends_on_what_is_run_only():
    base = Scenario(name="a", description="x")
    assert len(scenario_hash(base)) == 12
    assert scenario_hash(base) == scenario_hash(Scenario(name="b", description="y"))
    assert scenario_hash(base) == scenario_hash(Scenario(name="a", steps=60))
    assert scenario_hash(base) != scenario_hash(Scenario(name="a", steps=61))


def test_the_json_schema_describes_every_setting():
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert list(schema["properties"])[:4] == ["extends", "name", "description", "seed"]
    assert set(schema["properties"]) == {"extends", "arms+", *Scenario.model_fields}
    blocks = [schema, *schema["$defs"].values()]
    described = {f"#/$defs/{name}" for name, block in schema["$defs"].items() if block.get("description")}
    values = [(key, value) for block in blocks for key, value in block["properties"].items()]
    assert [key for key, value in values if not value.get("description") and value.get("$ref") not in described] == []
    assert schema["properties"]["steps"]["minimum"] == 1
    assert schema["$defs"]["LossSettings"]["properties"]["type"]["enum"] == choices_of("loss.type", Scenario)
    assert json.loads(json.dumps(schema)) == schema


def test_dotted_keys_cover_both_kinds_of_a_block():
    keys = list(dotted_keys(Scenario))
    assert {"model.preset", "model.path", "loss.kl.reclone_every", "task.reward", "optimizer", "seed"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_scenarios_that_earlier_releases_recorded_still_load():
    recorded = sorted(Path("tests/data").rglob("scenario.resolved.yaml"))
    recorded += sorted(Path("results/reference").rglob("scenario.resolved.yaml"))
    of_each_experiment = {path.parents[1]: path for path in recorded}
    assert len(of_each_experiment) >= 10
    for path in of_each_experiment.values():
        assert load_scenario(path).loss.importance.mode == "off"
