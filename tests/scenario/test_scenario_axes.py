"""Arms and sweep: which runs a scenario becomes, in which order, under which names, and what is refused."""

import pickle

import pytest

from harness.core.errors import UserError
from harness.scenario.axes import expand, identical_arms
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.settings.model import FolderModelSettings


def expanded(**settings):
    return expand(Scenario.model_validate({"name": "s", **settings}))


def refused(**settings):
    with pytest.raises(UserError) as caught:
        expanded(**settings)
    return str(caught.value)


def names(**settings):
    return [variant.name for variant in expanded(**settings)]


def test_arms_with_the_same_settings_are_named():
    arms = {"a": {"steps": 3}, "b": {}, "c": {"steps": 3}, "d": {"steps": 60}}
    assert identical_arms(expanded(arms=arms, blocks=2)) == [
        "note: `a`, `c` have the same settings, so what they differ by is noise",
        "note: `b`, `d` have the same settings, so what they differ by is noise",
    ]
    assert identical_arms(expanded(steps=3)) == []
    assert identical_arms(expanded(sweep={"seed": [0, 1]})) == []


def test_a_plain_scenario_is_one_run_without_a_folder_of_its_own():
    (variant,) = expanded(steps=3)
    assert (variant.arm, variant.point, variant.name) == (None, {}, "")
    assert variant.scenario == Scenario(name="s", steps=3)


def test_arms_change_dotted_keys_and_nothing_else():
    k1, k4 = expanded(
        arms={"k1": {}, "k4": {"epochs_per_batch": 4, "loss.kl.coefficient": 0.5}}, loss={"cliprange": 0.3}
    )
    assert (k1.arm, k1.name, k4.arm, k4.name) == ("k1", "k1", "k4", "k4")
    assert k1.scenario == Scenario.model_validate({"name": "s", "loss": {"cliprange": 0.3}})
    assert k4.scenario == Scenario.model_validate(
        {"name": "s", "epochs_per_batch": 4, "loss": {"cliprange": 0.3, "kl": {"coefficient": 0.5}}}
    )


def test_an_arm_may_change_a_whole_block():
    (variant,) = expanded(arms={"a": {"loss": {"kl": {"coefficient": 1}}}}, loss={"cliprange": 0.3})
    assert (variant.scenario.loss.cliprange, variant.scenario.loss.kl.coefficient) == (0.3, 1.0)


def test_a_sweep_is_the_product_of_its_axes_with_the_arms_of_a_point_side_by_side():
    found = expanded(
        arms={"k1": {"epochs_per_batch": 1}, "k2": {"epochs_per_batch": 2}},
        sweep={"seed": [0, 1], "optimizer.learning_rate": [1e-5, 0.001]},
    )
    assert [variant.name for variant in found] == [
        "k1,seed=0,learning_rate=1e-05",
        "k2,seed=0,learning_rate=1e-05",
        "k1,seed=0,learning_rate=0.001",
        "k2,seed=0,learning_rate=0.001",
        "k1,seed=1,learning_rate=1e-05",
        "k2,seed=1,learning_rate=1e-05",
        "k1,seed=1,learning_rate=0.001",
        "k2,seed=1,learning_rate=0.001",
    ]
    assert found[3].point == {"seed": 0, "optimizer.learning_rate": 0.001}
    last = found[7].scenario
    assert (last.seed, last.optimizer.learning_rate, last.epochs_per_batch) == (1, 0.001, 2)
    assert all(variant.scenario.arms == variant.scenario.sweep == {} for variant in found)


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ({"task.seed": [1], "model.threads": [2]}, ["seed=1,threads=2"]),
        ({"seed": [1], "task.seed": [2]}, ["seed=1,task.seed=2"]),
        ({"optimizer.betas": [[0.9, 0.99]]}, ["betas=0.9-0.99"]),
        ({"sampling.stop": [["</a>"], []]}, ["stop=a", "stop=empty"]),
        ({"loss.cliprange_high": [None, 0.28]}, ["cliprange_high=null", "cliprange_high=0.28"]),
        ({"save_policy": [True, False]}, ["save_policy=true", "save_policy=false"]),
        ({"description": ["a/b", "a:b", "A b"]}, ["description=a-b", "description=a-b-2", "description=A-b-3"]),
        ({"loss.kl": [{"coefficient": 0.1}]}, ["kl=coefficient-0.1"]),
    ],
)
def test_folder_names_are_short_safe_and_different(sweep, expected):
    assert names(sweep=sweep) == expected


def test_a_long_folder_name_is_cut_and_stays_unique():
    first, second = names(sweep={"description": ["x" * 200 + "1", "x" * 200 + "2"]})
    assert len(first) == len(second) == 100
    assert first != second


def test_arms_that_differ_in_case_only_get_folders_that_differ_more():
    assert names(arms={"K1": {}, "k1": {}}) == ["K1", "k1-2"]


def test_an_arm_may_repair_a_base_that_breaks_a_rule():
    assert names(group_size=6, arms={"six": {"rollout_batch_size": 60}, "eight": {"group_size": 8}}) == ["six", "eight"]


def test_switching_the_type_keeps_what_both_types_have():
    (variant,) = expanded(
        model={"type": "preset", "preset": "tiny", "precision": "bfloat16"},
        arms={"hub": {"model.type": "folder", "model.path": "x"}},
    )
    assert variant.scenario.model == FolderModelSettings(path="x", precision="bfloat16")


def test_an_arm_keeps_the_range_that_its_sweep_point_sets():
    found = expanded(
        loss={"cliprange": 0.2},
        arms={"ppo": {}, "gspo": {"loss.ratio_level": "sequence"}},
        sweep={"loss.cliprange": [0.001, 0.01]},
    )
    levels = [(variant.scenario.loss.ratio_level, variant.scenario.loss.cliprange) for variant in found]
    assert levels == [("token", 0.001), ("sequence", 0.001), ("token", 0.01), ("sequence", 0.01)]


def test_a_broken_rule_names_the_runs_that_break_it():
    message = refused(arms={"good": {}, "bad": {"group_size": 6}}, sweep={"seed": [0, 1]})
    assert "in `bad,seed=0`, `bad,seed=1`: group_size 6 does not divide rollout_batch_size 64" in message
    assert "good" not in message


def test_many_runs_with_the_same_problem_are_counted_and_not_all_listed():
    message = refused(arms={"good": {}, "bad": {"group_size": 6}}, sweep={"seed": list(range(7))})
    assert "in `bad,seed=0`, `bad,seed=1`, `bad,seed=2`, `bad,seed=3` and 3 more: group_size 6" in message


def test_a_problem_of_every_run_is_told_once():
    message = refused(group_size=6, arms={"a": {}, "b": {}})
    assert message.startswith("in all 2 runs: group_size 6 does not divide rollout_batch_size 64")


def test_every_broken_run_is_reported():
    message = refused(arms={"a": {"group_size": 6}, "b": {"steps": 0}, "c": {"stepps": 1}})
    assert message.startswith("3 problems in scenario s\n")
    assert "in `b`: `steps` is 0, must be at least 1" in message
    assert "in `c`: unknown key `stepps`" in message
    assert "did you mean `steps`?" in message


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"arms": {"a": {"name": "x"}}}, "`name` cannot differ between the runs of one scenario"),
        ({"arms": {"a": {"arms.b.seed": 1}}}, "`arms.b.seed` cannot differ"),
        ({"sweep": {"sweep.seed": [1]}}, "`sweep.seed` cannot differ"),
        ({"sweep": {"extends": ["a"]}}, "`extends` cannot differ"),
        ({"arms": {"Pictures": {}}}, "an arm cannot be called `Pictures`: that folder holds the pictures"),
        ({"sweep": {"seed": [1, 2, 1]}}, "sweep axis `seed` names a value twice: the list [1, 2, 1]"),
        (
            {"arms": {"a": {"seed": 1}}, "sweep": {"seed": [1, 2]}},
            "`seed` is set by arm `a` and by the sweep axis `seed`",
        ),
        (
            {"arms": {"a": {"loss": {"type": "grpo_clip"}}}, "sweep": {"loss.type": ["grpo_clip"]}},
            "`loss.type` is set by arm `a` and by the sweep axis `loss.type`",
        ),
        (
            {"sweep": {"loss": [{"type": "grpo_clip"}], "loss.cliprange": [0.1]}},
            "sweep axes `loss` and `loss.cliprange` set the same thing",
        ),
        # 101 * 100 = 10,100
        ({"sweep": {"seed": list(range(101)), "steps": list(range(100))}}, "make 10100 runs, must be at most 10000"),
    ],
)
def test_axes_that_cannot_be_run_are_refused(settings, what):
    assert what in refused(**settings)


def test_loading_checks_the_arms_and_names_their_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text("arms:\n  k1: {}\n  k6:\n    group_size: 6\nsweep:\n  loss.tpye: [a]\n")
    with pytest.raises(UserError) as caught:
        load_scenario("s.yaml")
    assert str(caught.value) == (
        "in all 2 runs: unknown key `loss.tpye`\n  where: s.yaml, line 6\n  fix:   did you mean `loss.type`?"
    )
    with pytest.raises(UserError) as caught:
        load_scenario("s.yaml", ["sweep=null"])
    assert caught.value.what.startswith("in `k6`: group_size 6 does not divide")
    assert caught.value.where == "group_size: s.yaml, line 4; rollout_batch_size: default value"


def test_expanding_a_loaded_scenario_gives_what_loading_checked(tmp_path):
    (tmp_path / "s.yaml").write_text("arms:\n  a: {}\n  b: {loss.type: no_baseline}\nsweep: {seed: [0, 1]}\n")
    found = expand(load_scenario(tmp_path / "s.yaml"))
    assert [(variant.name, variant.scenario.seed, variant.scenario.loss.type) for variant in found] == [
        ("a,seed=0", 0, "grpo_clip"),
        ("b,seed=0", 0, "no_baseline"),
        ("a,seed=1", 1, "grpo_clip"),
        ("b,seed=1", 1, "no_baseline"),
    ]


def test_the_runs_of_a_scenario_are_made_once_and_are_no_part_of_its_value(tmp_path):
    (tmp_path / "s.yaml").write_text("arms: {a: {}, b: {group_size: 4}}\n")
    scenario = load_scenario(tmp_path / "s.yaml")
    again = load_scenario(tmp_path / "s.yaml")
    assert [id(run.scenario) for run in expand(scenario)] == [id(run.scenario) for run in expand(scenario)]
    assert scenario == again == Scenario.model_validate(scenario.model_dump())
    changed = scenario.model_copy(update={"arms": {}, "steps": 3})
    assert [(run.arm, run.scenario.steps) for run in expand(changed)] == [(None, 3)]
    assert len(pickle.dumps(scenario)) == len(pickle.dumps(scenario.model_copy()))
