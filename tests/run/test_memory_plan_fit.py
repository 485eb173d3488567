"""Whether plans fit, and what is said where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.models.config import ModelConfig, sizes_from_hf
from harness.models.published import PUBLIC_SHAPES
from harness.run.memory.check import check_memory, memory_table
from harness.run.memory.fit import (
    FreeMemory,
    Shortage,
    amounts_by_name,
    free_main_memory,
    gib,
    require_fit,
    shortages,
)
from harness.run.memory.generator import CUDA_BYTES
from harness.run.memory.learner import COMPILED_BYTES
from harness.run.memory.plan import PROCESS_BYTES, make_plan, object_store_bytes, stored_weights
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

GIB = 2**30
OWN_QWEN = PUBLIC_SHAPES["qwen2.5-math-1.5b"]
QWEN = OWN_QWEN | {"use_sliding_window": True, "sliding_window": 4096}
"""The same with a window, which transformers runs over padded rows."""
WEIGHTS = 1_543_714_304
LONG = """
model: {type: folder, path: FOLDER}
engine: {precision: bfloat16, max_batch: 64}
sampling: {max_tokens: 1024}
rollout_batch_size: 64
evaluation: {prompts: 16}
"""


def scenario(tmp_path: Path, text: str) -> Scenario:
    folder = tmp_path / "qwen"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN))
    path = tmp_path / "trial.yaml"
    path.write_text(text.replace("FOLDER", str(folder)))
    return load_scenario(path)


def qwen() -> ModelConfig:
    shape = sizes_from_hf(QWEN)
    assert shape is not None
    return shape


def sizes(process: Any) -> dict[str, int]:
    return {amount.name: amount.num_bytes for amount in process.amounts}


def test_a_run_of_the_public_model_by_hand(tmp_path: Path) -> None:
    (run,) = make_plan(scenario(tmp_path, LONG), qwen()).processes
    rows, tokens = 64, 48 + 1024  # keyword prompts are taken to have 48 tokens
    assert sizes(run) == {
        "Python and its libraries": PROCESS_BYTES,
        "policy": 4 * WEIGHTS,
        "optimizer": 2 * 4 * WEIGHTS,
        "gradients": 4 * WEIGHTS,
        "activations": 28 * rows * (tokens - 1) * 204_800,
        "one layer's way back": rows * (tokens - 1) * 204_800,  # 14.0 GB, more than 441 x 151936 x 4 x 4 of logits
        "engine weights": 2 * WEIGHTS,
        "key/value cache": rows * tokens * 14_336 * 2,
        "sampling logits": rows * 151936 * 4 * 4,
        "compiled products": COMPILED_BYTES["learner"],  # the engine's weights are bfloat16
    }
    always = ("policy", "optimizer", "engine weights", "key/value cache", "compiled products")
    held = sum(sizes(run)[name] for name in always)
    update = sum(sizes(run)[name] for name in ("gradients", "activations", "one layer's way back"))
    assert run.peak == PROCESS_BYTES + held + update


def test_the_public_model_on_the_own_code_by_hand(tmp_path: Path) -> None:
    shape = sizes_from_hf(OWN_QWEN)
    assert shape is not None
    (run,) = make_plan(scenario(tmp_path, LONG), shape).processes
    prompts, rows, queries, keys = 8, 64, 1023, 48 + 1023
    packed = prompts * 48 + rows * queries  # 65,856 tokens, each prompt once
    layer = packed * (2 * 4 * 1536 + 4 * (2 * 1536 + 1536 + 4 * 8960)) + 4 * rows * 2 * 1536 * (queries + keys)
    assert sizes(run)["activations"] == 28 * layer
    assert sizes(run)["engine weights"] == 2 * (WEIGHTS + 151_936 * 1536)  # the head has the last norm's gain in it
    assert sizes(run)["key/value cache"] == rows * 1072 * 14_336 * 4
    (half,) = make_plan(
        scenario(tmp_path, LONG.replace("max_batch: 64", "max_batch: 64, kv_cache: bfloat16")), shape
    ).processes
    assert sizes(half)["key/value cache"] == rows * 1072 * 14_336 * 2


def test_kl_monitoring_keeps_two_policies_more(tmp_path: Path) -> None:
    (run,) = make_plan(scenario(tmp_path, LONG + "loss: {kl: {monitor: true}}\n"), qwen()).processes
    assert sizes(run)["reference and previous policy"] == 2 * 4 * WEIGHTS


def test_a_polyak_average_of_bfloat16_weights_is_one_float32_copy_more(tmp_path: Path) -> None:
    polyak = "loss: {kl: {coefficient: 0.1, reference: polyak, alpha: 0.1}}\n"
    for dtype, width, average in (("bfloat16", 2, 4 * WEIGHTS), ("float32", 4, None)):
        text = LONG.replace("folder,", f"folder, dtype: {dtype},") + polyak
        (run,) = make_plan(scenario(tmp_path, text), qwen()).processes
        assert sizes(run)["reference and previous policy"] == width * WEIGHTS
        assert sizes(run).get("float32 average of the reference policy") == average


def test_bfloat16_weights_halve_what_training_holds(tmp_path: Path) -> None:
    (run,) = make_plan(scenario(tmp_path, LONG.replace("folder,", "folder, dtype: bfloat16,")), qwen()).processes
    assert (sizes(run)["policy"], sizes(run)["optimizer"]) == (2 * WEIGHTS, 4 * WEIGHTS)


def test_autocast_keeps_a_narrow_copy_of_the_weights(tmp_path: Path) -> None:
    text = LONG.replace("folder,", "folder, precision: bfloat16,")
    (run,) = make_plan(scenario(tmp_path, text), qwen()).processes
    assert sizes(run)["activations"] == 28 * 64 * 1071 * 123_904 + 2 * WEIGHTS


def test_parts_that_overlap_add_up(tmp_path: Path) -> None:
    text = LONG + "max_lag: 1\nplacement: {colocated: false}\n"
    (run,) = make_plan(scenario(tmp_path, text), qwen()).processes
    assert run.overlapping
    assert run.peak == sum(sizes(run).values())
    assert sizes(run)["published weights"] == 2 * 4 * WEIGHTS


def test_weights_that_travel_in_the_engines_type_are_planned_so_with_the_copy_that_is_made_first(
    tmp_path: Path,
) -> None:
    """The engine of ``LONG`` is in bfloat16."""
    text = LONG + "transport: {type: nixl, dtype: engine}\n"
    plan = make_plan(scenario(tmp_path, text), qwen())
    learner = next(sizes(process) for process in plan.processes if process.name == "learner")
    assert (learner["published weights"], learner["weights in the engine's type"]) == (2 * 2 * WEIGHTS, 2 * WEIGHTS)
    generator = next(sizes(process) for process in plan.processes if process.name == "generator")
    assert generator["received weights"] == 2 * WEIGHTS


def test_actors_have_a_process_each(tmp_path: Path) -> None:
    text = LONG + "transport: {type: shared_memory}\nplacement: {generator: {count: 2}}\n"
    plan = make_plan(scenario(tmp_path, text), qwen())
    assert [(process.name, process.count) for process in plan.processes] == [
        ("learner", 1),
        ("generator", 2),
        ("scorer", 1),
        ("ray and driver", 1),
    ]
    assert "received weights" not in sizes(plan.processes[1])  # it maps the Learner's
    other = make_plan(scenario(tmp_path, text.replace("shared_memory", "nixl")), qwen())
    assert sizes(other.processes[1])["received weights"] == 4 * WEIGHTS
    assert plan.total("cpu") == sum(process.count * process.peak for process in plan.processes)


def test_the_refusal_says_need_free_largest_part_and_what_changes_it(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        require_fit([make_plan(scenario(tmp_path, LONG), qwen())], FreeMemory(60 * GIB))
    # 28 x 64 x 1071 x 204,800 bytes
    assert "60.0 GiB are free; the largest part is 366.1 GiB for activations" in refused.value.what
    assert refused.value.fix == (
        "raise gradient_accumulation_steps (now 1), or set model.gradient_checkpointing to true, or lower "
        "sampling.max_tokens (now 1024), or take a smaller model or a machine with more memory"
    )


def test_settings_that_cannot_change_further_are_not_named(tmp_path: Path) -> None:
    text = LONG.replace("folder,", "folder, gradient_checkpointing: true,").replace("max_batch: 64", "max_batch: 1")
    with pytest.raises(UserError) as refused:
        require_fit(
            [make_plan(scenario(tmp_path, text + "gradient_accumulation_steps: 64\n"), qwen())], FreeMemory(GIB)
        )
    assert "for optimizer" in refused.value.what
    assert refused.value.fix == ("set model.dtype to bfloat16, or take a smaller model or a machine with more memory")


def test_the_part_is_the_largest_in_the_memory_that_is_short(tmp_path: Path) -> None:
    """Main memory holds the Generator alone: more microbatches would save on the GPU, where there is free."""
    text = LONG.replace("1024", "64") + "gradient_accumulation_steps: 16\n"
    text += "transport: {type: nixl}\nplacement: {learner: {gpus: 1}}\n"
    one = make_plan(scenario(tmp_path, text), qwen(), has_gpu=True)
    with pytest.raises(UserError) as refused:
        require_fit([one], FreeMemory(one.total("cpu") - 2**20, (200 * GIB,)))
    assert "largest part is 5.8 GiB for received weights" in refused.value.what
    assert "gradient_accumulation_steps" not in (refused.value.fix or "")


def test_parts_share_a_gpu_by_what_they_reserve(tmp_path: Path) -> None:
    text = LONG.replace("folder,", "folder, gradient_checkpointing: true,") + (
        "gradient_accumulation_steps: 16\ntransport: {type: nixl}\n"
        "placement: {device: cuda, colocated: false, generator: {gpus: SHARE}, learner: {gpus: SHARE}}\n"
    )
    halves = [make_plan(scenario(tmp_path, text.replace("SHARE", "0.5")), qwen(), has_gpu=True)]
    whole = [make_plan(scenario(tmp_path, text.replace("SHARE", "1")), qwen(), has_gpu=True)]
    (plan,) = halves
    learner, generator = plan.processes[0].peak, plan.processes[1].peak
    assert sizes(plan.processes[0])["CUDA"] == CUDA_BYTES
    fits_each = FreeMemory(64 * GIB, (learner, generator))
    assert not shortages(whole, fits_each)
    (found,) = shortages(halves, fits_each)
    assert (found.memory, found.needed, found.present) == ("GPU 0", learner + generator, learner)
    assert not shortages(halves, FreeMemory(64 * GIB, (learner + generator,)))
    (lost,) = shortages(whole, FreeMemory(64 * GIB, (learner,)))
    assert (lost.memory, lost.present) == ("GPU 1", 0)
    colocated = text.replace("SHARE", "1").replace(
        "colocated: false, ", ""
    )  # Ray gives each a part of one and the same
    (found,) = shortages([make_plan(scenario(tmp_path, colocated), qwen(), has_gpu=True)], fits_each)
    assert (found.memory, found.needed) == ("GPU 0", learner + generator)


def test_arms_side_by_side_add_up_but_for_the_libraries(tmp_path: Path) -> None:
    one = make_plan(scenario(tmp_path, "steps: 2\n"), shape_for_small())
    need = one.total("cpu")
    assert not shortages([one] * 2, FreeMemory(2 * need - PROCESS_BYTES))
    assert shortages([one] * 2, FreeMemory(2 * need - PROCESS_BYTES - 1))


def test_libraries_of_actors_by_hand(tmp_path: Path) -> None:
    mib = 2**20
    text = "engine: {type: vllm}\ntransport: {type: shared_memory}\nplacement: {generator: {count: 2}}\n"
    plan = make_plan(scenario(tmp_path, text), shape_for_small())
    libraries = {process.name: sizes(process)["Python and its libraries"] // mib for process in plan.processes}
    assert libraries == {"learner": 320, "generator": 320 + 288, "scorer": 240, "ray and driver": 368}
    assert amounts_by_name([plan] * 2)["Python and its libraries"] == mib * (2 * (320 + 2 * 608 + 240) + 368)


def test_parts_on_gpus_have_processes_in_main_memory_too(tmp_path: Path) -> None:
    text = "transport: {type: nixl}\nplacement: {device: cuda, generator: {count: 3, gpus: 1}, learner: {gpus: 1}}\n"
    text += "save_policy: false\n"
    plan = make_plan(scenario(tmp_path, text), shape_for_small(), has_gpu=True)
    mib = 2**20
    assert plan.total("cpu") == mib * (4 * (320 + 512) + 240 + 368 + 416)  # with CUDA in each on a GPU


def test_prompts_and_products_of_a_preset_are_planned_as_they_were_measured(tmp_path: Path) -> None:
    """With its own tokenizer a keyword prompt has 13 tokens for two words and 17 for four."""
    for text, tokens in (("steps: 1\n", 13), ("task: {keywords_per_prompt: 4}\n", 17)):
        assert make_plan(scenario(tmp_path, text), shape_for_small()).prompt_tokens == tokens
    both, half = "model: {precision: float32}\n", "model: {precision: bfloat16}\nengine: {precision: bfloat16}\n"
    compiled = [
        sum(
            amount.num_bytes
            for amount in make_plan(scenario(tmp_path, text), shape_for_small(), has_gpu=gpu).processes[0].amounts
            if amount.name == "compiled products"
        )
        for text, gpu in ((both, False), (half, False), (both, True))
    ]
    assert compiled == [180 * 2**20, 0, 0]


def test_main_memory_of_a_run_on_a_gpu_has_cuda_and_the_policy_that_is_saved(tmp_path: Path) -> None:
    """What transformers runs is loaded there first."""
    for shape, loaded in ((qwen(), 4 * WEIGHTS), (sizes_from_hf(OWN_QWEN), 0)):
        assert shape is not None
        _, host = make_plan(scenario(tmp_path, LONG), shape, has_gpu=True).processes
        assert sizes(host).get("model, as transformers loads it", 0) == loaded
        assert sizes(host)["policy, to be saved"] == 4 * WEIGHTS
        assert host.peak == PROCESS_BYTES + GIB // 2 + 4 * WEIGHTS  # one after the other


def test_a_learner_on_a_gpu_and_a_generator_on_a_cpu_are_planned_each_where_it_is(tmp_path: Path) -> None:
    text = LONG + "gradient_accumulation_steps: 64\ntransport: {type: nixl}\nplacement: {learner: {gpus: 1}}\n"
    plan = make_plan(scenario(tmp_path, text), qwen(), has_gpu=True)
    assert {process.name: process.device for process in plan.processes} == {
        "learner": "cuda",
        "generator": "cpu",
        "scorer": "cpu",
        "ray and driver": "cpu",
        "host of the learner": "cpu",
    }
    learner, generator, *others = plan.processes
    assert sizes(learner)["optimizer"] == 2 * 4 * WEIGHTS
    assert sizes(generator)["engine weights"] == 2 * WEIGHTS
    main = generator.peak + sum(process.peak for process in others)
    assert shortages([plan], FreeMemory(main, (learner.peak,))) == []
    assert shortages([plan], FreeMemory(main - 1, (learner.peak,))) == [Shortage("main memory", main, main - 1)]
    on_gpu = Shortage("GPU 0", learner.peak, learner.peak - 1)
    assert shortages([plan], FreeMemory(main, (learner.peak - 1,))) == [on_gpu]
    assert shortages([plan], FreeMemory(main, (None,))) == []  # how much is free there is not known


def test_arms_of_one_process_share_its_first_gpu(tmp_path: Path) -> None:
    text = "placement: {device: cuda}\nsave_policy: false\n"
    one = make_plan(scenario(tmp_path, text), shape_for_small(), has_gpu=True)
    (run, host) = one.processes
    assert not shortages([one, one], FreeMemory(host.peak, (2 * run.peak,)))
    (found,) = shortages([one, one], FreeMemory(host.peak, (2 * run.peak - 1, 80 * GIB)))
    assert (found.memory, found.needed) == ("GPU 0", 2 * run.peak)


def test_arms_that_fit_one_by_one_are_told_to_run_so(tmp_path: Path) -> None:
    one = make_plan(scenario(tmp_path, "transport: {type: shared_memory}\n"), shape_for_small())
    need = one.total("cpu")
    with pytest.raises(UserError) as refused:
        require_fit([one] * 5, FreeMemory(need))
    assert "set interleaving to run" in (refused.value.fix or "")
    assert f"the largest needs about {gib(need)}" in (refused.value.fix or "")
    with pytest.raises(UserError) as refused:
        require_fit([one] * 5, FreeMemory(GIB))
    assert "set interleaving to run" not in (refused.value.fix or "")


def shape_for_small() -> ModelConfig:
    from harness.models.config import PRESETS

    return PRESETS["small"]


def test_the_line_before_a_run(tmp_path: Path) -> None:
    text = LONG.replace("1024", "64") + "gradient_accumulation_steps: 64\n"
    line = check_memory([scenario(tmp_path, text)], FreeMemory(64 * GIB))
    # optimizer 8 x 1,543,714,304 = 12,349,714,432 bytes, policy and gradients half of that
    assert line.startswith("memory plan: about ")
    assert line.endswith("of 64.0 GiB free (largest: optimizer 11.5 GiB, policy 5.8 GiB, gradients 5.8 GiB)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "model: {type: folder, path: Qwen/Qwen2.5-Math-1.5B}\n",
            "Qwen/Qwen2.5-Math-1.5B is not on this machine yet, and the plan reads its config.json",
        ),
        ("extends: transport_sweep\n", "a transport sweep trains no model"),
        ("model: {type: paced}\nengine: {type: paced}\n", "model.type paced has next to no weights"),
    ],
)
def test_what_cannot_be_planned_is_said_and_let_through(tmp_path: Path, text: str, reason: str) -> None:
    assert check_memory([scenario(tmp_path, text)], FreeMemory(1)) == f"memory plan: none, {reason}"


def test_an_unknown_architecture_is_let_through(tmp_path: Path) -> None:
    trial = scenario(tmp_path, LONG)
    (tmp_path / "qwen" / "config.json").write_text('{"model_type": "mamba"}')
    assert "is of no family that the plan knows" in check_memory([trial], FreeMemory(1))


def test_the_table_names_every_amount_and_its_time(tmp_path: Path) -> None:
    lines = memory_table(scenario(tmp_path, LONG), has_gpu=False)
    assert lines[0] == "1,543,714,304 weights, 28 layers; prompts of up to 48 tokens are assumed"
    assert lines[1] == "run (main memory)"
    assert "  optimizer                          11.5 GiB" in lines
    assert "  gradients                           5.8 GiB  while training" in lines
    assert lines[-3].startswith("  at most ")
    assert lines[-2].startswith("together: main memory 4")
    assert lines[-1].startswith(
        "largest part: activations, 366.1 GiB; for less, raise gradient_accumulation_steps (now 1)"
    )


def test_a_cgroup_bounds_what_is_free(tmp_path: Path) -> None:
    free = free_main_memory(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert free_main_memory(tmp_path) == pytest.approx(free, rel=0.5)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 120\nactive_file 30\n")
    assert free_main_memory(tmp_path) == 1000 - 700 + 120 + 30


@pytest.mark.parametrize(
    ("weights", "free", "shared", "expected"),
    [
        (0, 20 * GIB, 12 * GIB, 6 * GIB),  # Ray's 30% of what is available
        (0, 100 * GIB, 10 * GIB, round(9.5 * GIB)),  # stays in /dev/shm
        (0, 100 * GIB, 2**26, 10**10),  # which in a container may be next to nothing: then Ray takes files
        (0, 2**27, GIB, 75 * 2**20),  # Ray refuses less
        (6 * 10**9, 8 * GIB, 16 * GIB, 6 * 10**9 + 2**28),  # 30% would be 2.4 GiB, and the rest would go to a disk
        (10**8, 20 * GIB, 24 * GIB, 6 * GIB),
    ],
)
def test_the_object_store_holds_the_weights_whatever_the_machine_says_it_has(
    weights: int, free: int, shared: int, expected: int
) -> None:
    assert object_store_bytes(weights, free, shared) == expected


def test_weights_that_main_memory_cannot_hold_are_refused() -> None:
    with pytest.raises(UserError, match=r"5\.59 GiB of weights in Ray's object store") as refused:
        object_store_bytes(6 * 10**9, 5 * GIB, 64 * GIB)
    assert "free are 5.00 GiB of main memory" in refused.value.what


def test_a_small_dev_shm_bounds_the_store_only_where_the_weights_fit_into_it() -> None:
    assert object_store_bytes(100 * 2**20, 32 * GIB, GIB // 2) == round(0.95 * GIB / 2)
    assert object_store_bytes(24 * 2**20, 32 * GIB, 2**26) == 10**10  # Ray takes a file, and says so


def test_the_weights_in_the_object_store_are_two_versions_of_those_it_passes(tmp_path: Path) -> None:
    shape = sizes_from_hf(QWEN)
    assert shape is not None
    for text, expected in (
        ("model: {type: folder, path: FOLDER}\ntransport: {type: object_store_numpy}\n", 2 * WEIGHTS * 4),
        ("model: {type: folder, path: FOLDER, dtype: bfloat16}\ntransport: {type: object_store}\n", 2 * WEIGHTS * 2),
        ("model: {type: folder, path: FOLDER}\ntransport: {type: nixl}\n", 0),
    ):
        assert stored_weights(scenario(tmp_path, text), shape) == expected
    sweep = load_scenario("transport_sweep_gpu")
    assert stored_weights(sweep, None) == 2 * 3 * 10**9
