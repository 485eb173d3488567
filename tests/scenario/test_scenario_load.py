"""Scenario files: looked up, extended, overridden, and refused with every problem in one message."""

import os
import pickle
from pathlib import Path
from typing import get_args

import pytest

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.settings.loss import LossType
from harness.settings.model import FolderModelSettings, PresetModelSettings
from harness.settings.task import JsonlTaskSettings
from harness.settings.transport import TransportName
from tests.messages import facts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "scenarios").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "scenarios"


def refused(path, *overrides):
    with pytest.raises(UserError) as caught:
        load_scenario(path, overrides)
    return caught.value


def load_text(folder, text, *overrides):
    (folder / "s.yaml").write_text(text)
    return load_scenario("s", overrides)


def refused_text(folder, text, *overrides):
    (folder / "s.yaml").write_text(text)
    return refused("s", *overrides)


def test_where_a_scenario_is_looked_up(folder, tmp_path):
    """In the current folder's scenarios, then in the project's own; a path is taken as it is."""
    (folder / "sync_k1.yaml").write_text("steps: 3\n")
    scenario = load_scenario("sync_k1")
    assert (scenario.name, scenario.steps) == ("sync_k1", 3)
    assert load_scenario("sync_k4").epochs_per_batch == 4
    (tmp_path / "mine.yml").write_text("steps: 5\n")
    assert load_scenario("mine.yml").steps == load_scenario(tmp_path / "mine.yml").steps == 5
    (folder / "-my run(2).yaml").write_text("steps: 1\n")
    assert load_scenario("scenarios/-my run(2).yaml").name == "my-run-2-"


def test_left_out_settings_have_the_documented_defaults(folder):
    scenario = load_text(folder, "steps: 60\n")
    assert scenario == Scenario(name="s")
    assert scenario.model == PresetModelSettings(preset="small")
    assert (scenario.optimizer.betas, scenario.sampling.stop, scenario.loss.kl.estimator) == ((0.9, 0.95), (), "k3")


def test_blocks_that_are_empty_mean_their_defaults(folder):
    text = "steps: 60\nloss:\n  kl:\nmodel:\ntransport:\nsampling:\narms:\nsweep:\n"
    assert load_text(folder, text) == Scenario(name="s")


def test_a_missing_name_lists_the_nearest_ones_or_the_first_few(folder):
    (folder / "async_one.yaml").write_text("steps: 1\n")
    error = refused("asinc_one")
    assert error.what == "no scenario called 'asinc_one'"
    assert error.fix.startswith("did you mean async_one?")
    assert "scenarios" in error.where
    known = sorted({"async_one", *(path.stem for path in (Path(__file__).parents[2] / "scenarios").glob("*.yaml"))})
    assert f"there are {', '.join(known[:8])}, ... (" in refused("zzzzzz").fix


def test_a_folder_and_an_empty_name_are_no_scenario(folder):
    assert refused(str(folder)).what == f"{folder.relative_to(Path.cwd())} is a folder, not a scenario file"
    assert refused("").what == "the name of the scenario is empty"
    (folder / "quickstart").mkdir()
    assert load_scenario("quickstart").name == "quickstart"  # a scenario of that name wins


@pytest.mark.parametrize(("parent", "which"), [("scenarios", "file"), ("nowhere", "folder")])
def test_a_missing_file_says_whether_the_folder_is_there(folder, parent, which):
    error = refused(f"{parent}/quikstart.yaml")
    assert error.what == f"no scenario file {parent}/quikstart.yaml (no such {which})"
    assert error.fix.startswith("did you mean quickstart or quickstart_seeds?")


def test_what_is_no_text_far_too_large_or_no_file_is_refused_at_once(folder):
    path = folder / "s.yaml"
    path.write_bytes(b"steps: 3 # \xff\n")
    assert (facts(refused("s").what), refused("s").where) == ("8 11 0", "scenarios/s.yaml")
    with path.open("wb") as stream:
        stream.truncate(2**40)
    assert facts(refused("s").what) == "1,099,511,627,776 262,144"
    path.unlink()
    os.mkfifo(path)
    assert refused("s").what == "cannot read the file: it is no regular file"
    assert refused(path).what.endswith("(no such file)")


@pytest.mark.parametrize("name", ["x" * 256, "x" * 5000 + ".yaml", "x/" * 2500 + "y.yaml", "~nobody/x.yaml"])
def test_names_that_no_file_can_have_are_not_found(folder, name):
    assert refused(name).what.startswith(("no scenario called", "no scenario file"))
    assert refused_text(folder, f"extends: {name}\n").what.startswith("`extends`: no scenario")


def test_a_key_that_looks_like_another_is_told_apart(folder):
    error = refused_text(folder, "st\u0435ps: 3\n")
    assert "U+0435 CYRILLIC SMALL LETTER IE at character 3" in error.what
    assert "`steps`" in error.fix
    assert "U+FF11" in refused_text(folder, "steps: \uff11\uff10\n").what


def test_of_many_problems_the_first_are_told(folder):
    said = refused_text(folder, "".join(f"stepz_{n}: 1\n" for n in range(500))).what
    assert said.splitlines()[0] == "500 problems in scenarios/s.yaml, the first 20 of them"
    assert said.count("unknown key") == 20


def test_of_many_runs_the_first_wrong_ones_are_told(folder):
    said = refused_text(folder, f"group_size: 7\nsweep:\n  seed: [{', '.join(map(str, range(300)))}]\n").what
    assert said.startswith("in each of the first 20 of 300 runs: group_size 7 does not divide")


def test_scenarios_extend_each_other_in_a_short_row(folder):
    for number in range(30):
        (folder / f"s{number}.yaml").write_text(f"extends: s{number + 1}\n")
    error = refused("s0")
    assert (facts(error.what), error.where) == ("20", "scenarios/s20.yaml, line 1")
    (folder / "s20.yaml").write_text("steps: 7\n")
    assert load_scenario("s0").steps == 7


@pytest.mark.parametrize(
    ("text", "overrides", "what"),
    [
        ("", (".".join("a" * 2000) + "=1",), "has 2000 parts, must have at most 32"),
        (f"arms: {{a: {{{'.'.join('a' * 33)}: 1}}}}\n", (), "has 33 parts, must have at most 32"),
        ("", ("steps=3",) * 1001, "--set is given 1,001 times, must be at most 1,000"),
        ("sweep: {" + ", ".join(f"a{n}: [1]" for n in range(21)) + "}\n", (), "has 21 items, must have at most 20"),
        (
            "arms: {a: {" + ", ".join(f"a{n}: 1" for n in range(201)) + "}}\n",
            (),
            "has 201 items, must have at most 200",
        ),
        ("steps: 1000000001\n", (), "is 1000000001, must be at most 1000000000"),
        ("placement: {generator: {count: 4097}}\n", (), "is 4097, must be at most 4096"),
        ("faults: {stall_after_s: 1e7}\n", (), "is 10000000.0, must be at most 1000000.0"),
        ("sampling: {temperature: 1e-40}\n", (), "is 1e-40, must be at least 1e-30"),
        ("task: {type: arithmetic, train_prompts: 20001}\nmodel: {preset: maths}\n", (), "must be at most 20000"),
    ],
)
def test_counts_and_sizes_have_bounds(folder, text, overrides, what):
    assert what in refused_text(folder, text or "steps: 3\n", *overrides).what


def test_every_stage_of_a_step_can_be_delayed_and_no_wait(folder):
    stages = [stage for stage in Stage if not stage.is_wait and stage is not Stage.STARTUP]
    scenario = load_text(folder, "faults:\n  delays: {" + ", ".join(f"{stage}: 0.5" for stage in stages) + "}\n")
    assert scenario.faults.delays == dict.fromkeys(stages, 0.5)
    for stage in (Stage.STARTUP, Stage.WAIT_FOR_BATCH):
        assert facts(refused_text(folder, f"faults: {{delays: {{{stage}: 0.5}}}}\n").what) == f"faults.delays.{stage}"


def test_a_byte_order_mark_is_no_part_of_the_first_key(folder):
    (folder / "s.yaml").write_bytes(b"\xef\xbb\xbfsteps: 3\n")
    assert load_scenario("s").steps == 3


@pytest.mark.parametrize(
    ("text", "said", "advised"),
    [  # those that come first are in tests/messages.txt
        ("loss:\n  kl:\n    coeficient: 1.0\n", "loss.kl.coeficient", "loss.kl.coefficient"),
        ("advantage: {zzz: 1}\n", "advantage.zzz", ""),
        ("loss.type: grpo_clip\n", "loss.type", "loss:"),
        ("steps: true\n", "steps", "60"),
        ("steps: 6.5\n", "steps 6.5", "60"),
        ("steps: '6'\n", "steps 6", "6"),
        ("steps: [6]\n", "steps 6", "60"),
        ("name:\n", "name", ""),
        ("name: 7\n", "name 7", "7"),
        ("name: a/b\n", "name", ""),
        ("seed: -1\n", "seed 1 0", "0"),
        ("seed: 4294967296\n", "seed 4294967296 4294967295", "0"),
        ("optimizer: {learning_rate: 1e-4x}\n", "optimizer.learning_rate 1 4", "1 05"),
        ("optimizer: {betas: 0.9}\n", "optimizer.betas 0.9", "0.9"),
        ("optimizer:\n  betas: [0.9, 1.0]\n", "optimizer.betas[1] 1.0 1.0", ""),
        ("optimizer:\n  betas: [0.9]\n", "optimizer.betas 1", ""),
        ("optimizer:\n  betas: [0, 0, 0]\n", "optimizer.betas 0 0 0 3 2", ""),
        ("sampling: {temperature: 0}\n", "sampling.temperature 0 1 30", "0 1.0"),
        ("sampling: {top_p: .nan}\n", "sampling.top_p", "1 1.0"),
        ("sampling: {stop: [a, '']}\n", "sampling.stop[1] 1", ""),
        ("save_policy: off\n", "save_policy", ""),
        ("loss: 3\n", "loss 3 key: value", "loss.type=VALUE"),
        ("loss: {dual_clip: 1}\n", "loss.dual_clip 1 1.0", ""),
        ("model: {type: preset, preset: big}\n", "model.preset", ""),
        ("engine: {type: natve}\n", "engine.type", "native"),
        (
            "engine: {type: vllm, memory_fracton: 0.5}\n",
            "engine.memory_fracton",
            "engine.memory_fraction engine.type: sglang",
        ),
        ("engine: native\n", "engine key: value", "engine.type=native engine: {type: native}"),
        ("transport: {type: nixle}\n", "transport.type", "nixl"),
        (
            "transport: {verify: false}\n",
            "transport.verify",
            f"transport.type: {', '.join(get_args(TransportName))}, package.module:Name in_process",
        ),
        (
            "transport: {type: gloo, progress_thread_delay_us: 5}\n",
            "transport.progress_thread_delay_us",
            "transport.type: nixl gloo",
        ),
        (
            "transport: {progress_thread_delay: 5, type: nixl}\n",
            "transport.progress_thread_delay",
            "transport.progress_thread_delay_us",
        ),
        ("placement: {generator: {cont: 2}}\n", "placement.generator.cont", "placement.generator.count"),
        ("placement: {generator: {count: 0}}\n", "placement.generator.count 0 1", "1"),
        ("replay: {capacity: 8, sampling: random}\n", "replay.sampling", ""),
        ("lag_control: waits\n", "lag_control", "wait"),
        (
            "transport_sweep: {transport: [nixl]}\n",
            "transport_sweep.transport",
            "transport_sweep.transports transport_sweep.tensors",
        ),
        ("transport_sweep: {megabytes: 10}\n", "transport_sweep.megabytes 10", "10"),
        ("model: {type: folder}\n", "model.path", "model.path"),
        ("task: {type: jsonl, train: a, reward: f}\n", "task.reward package.module:name", "package.module:function"),
        ("arms: {'a b': {}}\n", "arms.a b", ""),
        ("arms: {k1: 3}\n", "arms.k1 3 key: value", ""),
        ("trackers: [jsonll]\n", "trackers[0]", "jsonl"),
        ("faults: {delays: {updat: 1}}\n", "faults.delays.updat", "update"),
        ("sweep: {seed: 3}\n", "sweep.seed 3", "3"),
        ("sweep: {seed: []}\n", "sweep.seed 0 1", ""),
    ],
)
def test_one_problem_is_told_with_value_bound_place_and_fix(folder, text, said, advised):
    error = refused_text(folder, text)
    assert (facts(error.what), facts(error.fix)) == (said, advised)
    assert error.where.startswith(f"scenarios/s.yaml, line {text.count(chr(10))}")


def test_all_problems_of_a_file_are_in_one_message(folder):
    error = refused_text(folder, "stepps: 3\nsteps: 0\nsteps: 1\nloss:\n  type: x\n", "group_size=a")
    assert str(error).splitlines() == [
        "5 problems in scenarios/s.yaml",
        "  1. `steps` is written twice (first: scenarios/s.yaml, line 2)",
        "     where: scenarios/s.yaml, line 3",
        "     fix:   keep one of them",
        "  2. `steps` is 0, must be at least 1",
        "     where: scenarios/s.yaml, line 2",
        "     fix:   steps: Training steps, each of which consumes one rollout batch. (default: 60)",
        "  3. `group_size` is text 'a', expected a whole number",
        "     where: --set group_size=a",
        "     fix:   group_size: Responses to each prompt. (default: 8)",
        "  4. `loss.type` is text 'x', which is none of its values",
        "     where: scenarios/s.yaml, line 5",
        f"     fix:   valid: {', '.join(get_args(LossType))}",
        "  5. unknown key `stepps`",
        "     where: scenarios/s.yaml, line 1",
        "     fix:   did you mean `steps`?",
    ]


def test_a_key_in_another_section_is_sent_to_its_own(folder):
    assert refused_text(folder, "learner: {steps: 3}\n").fix == "did you mean `steps`?"


def test_overrides_are_laid_over_the_file_in_order(folder):
    scenario = load_text(
        folder,
        "loss: {cliprange: 0.3}\nsteps: 9\n",
        "steps=4",
        "loss.kl.coefficient=1e-5",
        "steps=5",
        "sampling.stop=['</a>', b]",
        "description='a: b'",
        "optimizer.learning_rate=1",
        "name=other",
    )
    assert (scenario.steps, scenario.loss.cliprange, scenario.loss.kl.coefficient) == (5, 0.3, 1e-5)
    assert (scenario.sampling.stop, scenario.name) == (("</a>", "b"), "other")
    assert scenario.optimizer.learning_rate == 1.0
    assert isinstance(scenario.optimizer.learning_rate, float)


def test_another_type_drops_the_keys_that_only_the_old_type_has(folder):
    text = "model: {type: preset, preset: tiny, warm_start: false, precision: bfloat16}\n"
    scenario = load_text(folder, text, "model.type=folder", "model.path=some/folder")
    assert scenario.model == FolderModelSettings(path="some/folder", precision="bfloat16")


RANGE_OF_TOKENS = "loss: {type: grpo_clip, cliprange: 0.2, cliprange_high: 0.3}\n"


@pytest.mark.parametrize(
    ("overrides", "ranges"),
    [
        ((), (0.2, 0.3)),
        (("loss.ratio_level=sequence",), (3e-4, 4e-4)),
        (("loss.type=cispo",), (1.0, 4.0)),
        (("loss.type=cispo", "loss.ratio_level=sequence"), (1.0, 4.0)),
        (("loss={type: cispo}",), (1.0, 4.0)),
        (("loss.type=own", "loss.function=losses:mine"), (0.2, 0.3)),  # is handed what there is
        (("loss.type=grpo_clip", "loss.ratio_level=token"), (0.2, 0.3)),  # what it was
        (("loss.ratio_level=sequence", "loss.cliprange=0.001"), (1e-3, 1e-3)),
        (("loss.cliprange=0.001", "loss.ratio_level=sequence"), (1e-3, 1e-3)),  # what is set beside it stays
        (("loss={ratio_level: sequence, cliprange_high: 0.002}",), (3e-4, 2e-3)),
        (("loss.type=cispo", "loss.cliprange=0.5"), (0.5, 0.5)),
    ],
)
def test_a_range_for_ratios_of_another_kind_is_not_inherited(folder, overrides, ranges):
    """GSPO's and CISPO's own are those of arXiv:2507.18071 and of TRL; tests/grpo has them with their source."""
    loss = load_text(folder, RANGE_OF_TOKENS, *overrides).loss
    assert loss.clip_range == ranges


def test_a_file_and_an_arm_inherit_no_range_for_another_ratio_either(folder):
    (folder / "base.yaml").write_text(RANGE_OF_TOKENS)
    child = (
        "extends: base\nloss: {ratio_level: sequence}\narms:\n  gspo: {}\n  wide: {loss.cliprange: 0.002}\n"
        "  tokens: {loss.ratio_level: token}\n  cispo: {loss.cliprange: 0.9, loss.type: cispo}\n"
    )
    ranges = {
        variant.arm: (variant.scenario.loss.cliprange, variant.scenario.loss.cliprange_high)
        for variant in expand(load_text(folder, child))
    }
    assert ranges == {
        "gspo": (None, None), "wide": (0.002, None), "tokens": (None, None), "cispo": (0.9, None)
    }  # fmt: skip


def test_bounds_of_other_weights_are_not_inherited(folder):
    text = "loss: {importance: {mode: icepop, cap: 3.0, floor: 0.4}}\n"
    importance = load_text(folder, text, "loss.importance.mode=tis").loss.importance
    assert (importance.cap, importance.floor) == (None, None)


def test_a_type_is_needed_where_it_changes_only_and_misspelt_keys_are_refused_all_the_same(folder):
    assert load_text(folder, "steps: 1\n", "model.preset=tiny").model == PresetModelSettings(preset="tiny")
    error = refused_text(folder, "model: {preset: tiny, presett: tiny}\n", "model.type=folder", "model.path=x")
    assert error.what == "unknown key `model.presett`"


def test_null_puts_a_block_back_to_its_defaults(folder):
    scenario = load_text(folder, "loss: {cliprange: 0.3}\narms: {a: {seed: 1}}\n", "loss=null", "arms=null")
    assert scenario == Scenario(name="s")


@pytest.mark.parametrize(
    ("override", "said", "advised"),
    [
        ("stepps=3", "stepps", "steps"),
        ("step=3", "step", "steps sweep"),
        ("max_age=3", "max_age", "max_lag replay.max_age"),
        ("cliprange=0.3", "cliprange", "loss.cliprange"),
        ("optimiser.learning_rate=1", "optimiser", "optimizer"),
        ("loss.clip_range=1", "loss.clip_range", "loss.cliprange loss.cliprange_high"),
        ("lr=1", "lr", "optimizer.learning_rate"),
        ("steps.x=1", "steps 1", "60"),
        ("group_size=0", "group_size 0 1", "8"),
        ("steps", "", "1 4"),
        ("=3", "3", "1 4"),
        ("loss..type=x", "", "1 4"),
        ("description=a: b", "description", ""),
        ("extends=sync_k", "extends", ""),
    ],
)
def test_a_wrong_override_is_refused_alike(folder, override, said, advised):
    error = refused_text(folder, "loss: {cliprange: 0.3}\n", override)
    assert (facts(error.what), facts(error.fix)) == (said, advised)
    assert error.where in (f"--set {override}", None)


def test_a_syntax_error_in_an_override_names_the_override(folder):
    error = refused_text(folder, "steps: 1\n", "sampling.stop=[a")
    assert "YAML syntax error" in error.what
    assert error.where == "--set sampling.stop=[a, line 1, column 3"


def test_arms_and_sweep_can_be_overridden(folder):
    scenario = load_text(
        folder, "arms: {k1: {epochs_per_batch: 1}}\n", "arms.k2.epochs_per_batch=2", "sweep.loss.cliprange=[0.1, 0.2]"
    )
    assert scenario.arms == {"k1": {"epochs_per_batch": 1}, "k2": {"epochs_per_batch": 2}}
    assert scenario.sweep == {"loss.cliprange": [0.1, 0.2]}


def test_arms_of_a_child_replace_those_it_extends_or_come_beside_them(folder):
    (folder / "base.yaml").write_text("arms: {k1: {}, k4: {epochs_per_batch: 4, loss.cliprange: 0.3}}\n")
    own = load_text(folder, "extends: base\narms: {k2: {epochs_per_batch: 2}}\n")
    assert own.arms == {"k2": {"epochs_per_batch": 2}}
    more = load_text(folder, "extends: base\narms+: {k2: {epochs_per_batch: 2}, k4: {epochs_per_batch: 3}}\n")
    assert more.arms == {
        "k1": {}, "k4": {"epochs_per_batch": 3, "loss.cliprange": 0.3}, "k2": {"epochs_per_batch": 2}
    }  # fmt: skip
    assert load_text(folder, "extends: base\nsteps: 3\n").arms.keys() == {"k1", "k4"}
    assert load_text(folder, "extends: base\n", "arms={k2: {epochs_per_batch: 2}}").arms.keys() == {"k2"}
    assert load_text(folder, "extends: base\n", "arms.k2.epochs_per_batch=2").arms.keys() == {"k1", "k4", "k2"}
    wrong = refused_text(folder, "extends: base\narms+: {k2: {stepz: 2}}\n")
    assert (wrong.where, wrong.what) == ("scenarios/s.yaml, line 2", "in `k2`: unknown key `stepz`")


def test_extends_merges_blocks_but_not_name_and_description(folder):
    (folder / "base.yaml").write_text(
        "name: b\ndescription: of b\nsteps: 7\nloss: {cliprange: 0.3, kl: {monitor: true}}\n"
    )
    (folder / "middle.yaml").write_text("extends: base\nloss: {kl: {coefficient: 0.5}}\n")
    scenario = load_text(folder, "extends: middle.yaml\nsteps: 8\n")
    assert (scenario.name, scenario.description, scenario.steps) == ("s", "", 8)
    assert (scenario.loss.cliprange, scenario.loss.kl.monitor, scenario.loss.kl.coefficient) == (0.3, True, 0.5)


def test_extends_finds_files_beside_it_and_the_projects_own(folder, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "own.yaml").write_text("extends: sync_k8\n")
    (tmp_path / "deep" / "child.yaml").write_text("extends: own\nsteps: 2\n")
    scenario = load_scenario("deep/child.yaml")
    assert (scenario.epochs_per_batch, scenario.steps) == (8, 2)


def test_an_error_in_an_extended_file_names_that_file(folder):
    (folder / "base.yaml").write_text("\n\nsteps: 0\n")
    assert refused_text(folder, "extends: base\n").where == "scenarios/base.yaml, line 3"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("extends: a\n", "scenarios extend each other: a -> b -> a", "scenarios/b.yaml, line 2"),
        ("extends: s\n", "scenarios extend each other: s -> s", "scenarios/s.yaml, line 1"),
        ("extends: sync_q\n", "`extends`: no scenario called 'sync_q'", "scenarios/s.yaml, line 1"),
        ("extends: [a, b]\n", "`extends` is ['a', 'b'], expected one name or path", "scenarios/s.yaml, line 1"),
    ],
)
def test_a_circle_and_a_wrong_extends_are_refused_at_their_line(folder, text, what, where):
    (folder / "a.yaml").write_text("extends: b\n")
    (folder / "b.yaml").write_text("steps: 1\nextends: a\n")
    error = refused("a") if text == "extends: a\n" else refused_text(folder, text)
    assert (error.what, error.where) == (what, where)


def test_a_jsonl_task_is_read(folder):
    scenario = load_text(folder, "task: {type: jsonl, train: t.jsonl, reward: 'my.rewards:exact'}\n")
    assert scenario.task == JsonlTaskSettings(train="t.jsonl", reward="my.rewards:exact")
    assert scenario.task.validation_fraction == 0.1


def test_an_error_pickles_with_everything_in_it(folder):
    error = refused_text(folder, "stepps: 3\n")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
