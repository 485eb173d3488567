"""What vLLM is told of its process, its GPU's memory and its sleep: without vLLM and without a GPU."""

import json
import math
import os
import pickle
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.types import SamplingParams
from harness.engines.vllm import VllmEngine, classes_as_they_were, meeting_place, reason_of, workers_meet
from harness.engines.vllm_options import (
    ALONE,
    MOST_CACHE_BYTES,
    WORKSPACE_BYTES,
    Cache,
    Neighbours,
    check_vllm_installed,
    context_of,
    environment,
    gpu_share,
    vllm_options,
)
from harness.engines.vllm_worker import in_memory_file, put_file
from harness.models.config import PRESETS, sizes_from_hf
from harness.models.decoder import DecoderLM
from harness.models.published import PUBLIC_SHAPES
from harness.run.actors.parts import environment_of
from harness.run.memory.check import full_table
from harness.run.memory.fit import FreeMemory, shortages
from harness.run.memory.generator import CUDA_BYTES, beside_vllm, generator_amounts
from harness.run.memory.plan import make_plan
from harness.scenario.load import load_scenario
from harness.settings.engine import VllmEngineSettings
from tests.messages import facts

GIB = 2**30
QWEN = sizes_from_hf(PUBLIC_SHAPES["qwen2.5-math-1.5b"])
H200, CARD_80, CARD_24 = 143_771 * 2**20, 80 * GIB, 24 * GIB
LEARNER = 24_800_000_000  # 1,543,714,304 weights at 16 bytes: float32 weights, gradients and Adam's two averages
WEIGHTS = 2 * 1_543_714_304  # of the engine, in bfloat16
OF_TOKEN = 28_672  # 2 x 28 layers x 2 key heads x 128 channels x 2 bytes
OF_ROW = 4096 * OF_TOKEN


def qwen_cache(max_batch=64, asked_gib=None):
    return Cache(OF_TOKEN, 4096, max_batch, asked_gib)


def starts(options, free, total):
    """Whether vLLM's ``request_memory`` lets it start."""
    return free >= math.ceil(total * options["gpu_memory_utilization"])


def options_of(settings, device, sleeps=False, model=None):
    return vllm_options(
        model or DecoderLM(PRESETS["tiny"]), settings, 256, device, sleeps, gpu_memory=(20 * GIB, CARD_24)
    )


# The process


def test_torch_compiles_on_gpus_whatever_the_user_has_set_and_not_on_cpus(monkeypatch) -> None:
    """Read at each ``torch.compile``, so it holds in a process that has imported torch under another value."""
    for device, compiles in (("cpu", False), ("cuda", True), ("cpu", False)):
        for name, value in environment(device).items():
            monkeypatch.setenv(name, value)
        assert hasattr(torch.compile(lambda x: x, backend="eager"), "aot_compile") is compiles


def test_only_a_cpu_is_told_what_is_for_cpus_and_an_actor_gets_the_environment_of_its_device() -> None:
    cpu, cuda = environment("cpu"), environment("cuda")
    assert cpu.items() - cuda.items() == {("VLLM_CPU_OMP_THREADS_BIND", "nobind"), ("TORCHDYNAMO_DISABLE", "1")}
    assert cuda.items() - cpu.items() == {("TORCHDYNAMO_DISABLE", "0")}
    assert cuda["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    scenario = load_scenario("vllm_sync")
    for device, wanted in (("cpu", cpu), ("cuda", cuda)):
        found = environment_of(scenario, "generator", 3, device)
        assert found.items() >= {**wanted, "OMP_NUM_THREADS": "3"}.items()
        assert "TORCHDYNAMO_DISABLE" not in environment_of(scenario, "learner", 3, device)


def test_on_a_gpu_it_compiles_and_takes_graphs_on_a_cpu_it_does_neither() -> None:
    settings = VllmEngineSettings(max_batch=4)
    cuda, cpu = (options_of(settings, device, sleeps=True) for device in ("cuda", "cpu"))
    assert (cuda["enforce_eager"], cuda["enable_chunked_prefill"], cuda["enable_sleep_mode"]) == (False, True, True)
    assert (cpu["enforce_eager"], cpu["enable_chunked_prefill"]) == (True, False)
    assert {"enable_sleep_mode", "gpu_memory_utilization"} & cpu.keys() == set()
    assert "enable_sleep_mode" not in options_of(settings, "cuda")
    share = settings.model_copy(update={"gpu_memory_utilization": 0.5})
    with pytest.raises(UserError):  # of a GPU, on a CPU
        options_of(share, "cpu")
    told = options_of(share, "cuda")
    assert told["gpu_memory_utilization"] == 0.5
    assert "kv_cache_memory_bytes" not in told


# Memory


def test_memory_for_keys_and_values() -> None:
    """4 layers x 2 x 4 heads x 32 channels x 4 bytes = 4096 bytes a token; 250 tokens fill 8 blocks of 32."""
    cache = Cache(4096, 250, 56)  # and 8 spare rows: 64, and one more
    assert cache.num_bytes(MOST_CACHE_BYTES) == cache.num_bytes(None) == 65 * 256 * 4096
    assert cache.num_bytes(10 * 2**20) == 10 * 2**20
    assert replace(cache, context=4096).num_bytes(10 * 2**20) == 4096 * 4096  # one row has room all the same
    assert replace(cache, asked_gib=0.01).num_bytes(None) == round(0.01 * GIB)  # what the scenario says wins
    assert replace(cache, asked_gib=100).num_bytes(0) == 65 * 256 * 4096
    assert replace(cache, context=None).num_bytes(123) == 123


def test_it_asks_for_what_it_needs_and_what_others_will_take_stays_their_own() -> None:
    """A Learner's, before it has taken its memory and afterwards; and the policy that the process itself has loaded,
    in float32: vLLM starts from it, and then the weights that arrive lie in its place."""
    options = gpu_share(qwen_cache(), WEIGHTS, Neighbours(LEARNER), H200 - LEARNER, H200)
    assert options["kv_cache_memory_bytes"] == 73 * OF_ROW  # 8.0 GiB: all rows of full length
    assert options["gpu_memory_utilization"] == pytest.approx((WEIGHTS + WORKSPACE_BYTES + 73 * OF_ROW) / H200)
    for taken in (0, LEARNER):
        options = gpu_share(qwen_cache(1024), WEIGHTS, Neighbours(LEARNER), CARD_80 - taken, CARD_80)
        assert options["kv_cache_memory_bytes"] == (CARD_80 - LEARNER - WEIGHTS - WORKSPACE_BYTES) // 2
    policy = 2 * WEIGHTS
    free = CARD_24 - policy - CUDA_BYTES
    options = gpu_share(qwen_cache(1024), WEIGHTS, Neighbours(policy + CUDA_BYTES), free, CARD_24)
    assert options["kv_cache_memory_bytes"] == (free - WEIGHTS - WORKSPACE_BYTES) // 2
    assert starts(options, free, CARD_24)


def test_two_generators_on_one_card_take_the_same() -> None:
    both, free = Neighbours(2 * CUDA_BYTES, engines=2), CARD_80 - 2 * CUDA_BYTES
    first = gpu_share(qwen_cache(1024), WEIGHTS, both, free, CARD_80)
    taken = WEIGHTS + WORKSPACE_BYTES + first["kv_cache_memory_bytes"]
    assert taken < free // 2
    assert gpu_share(qwen_cache(1024), WEIGHTS, both, free - taken, CARD_80) == first
    assert starts(first, free - taken, CARD_80)


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    """Needed, weights, keys and values, work; left, free of all, and what the plan gives to others.

    A size that the scenario names is taken to the last byte.
    """
    free = WEIGHTS + WORKSPACE_BYTES + 3 * GIB
    options = gpu_share(qwen_cache(asked_gib=3), WEIGHTS, ALONE, free, CARD_24)
    assert options["kv_cache_memory_bytes"] == 3 * GIB
    assert starts(options, free, CARD_24)
    with pytest.raises(UserError):
        gpu_share(qwen_cache(asked_gib=3), WEIGHTS, ALONE, free - 1, CARD_24)
    policy = 2 * WEIGHTS
    with pytest.raises(UserError) as refused:
        gpu_share(qwen_cache(), WEIGHTS, Neighbours(LEARNER + CUDA_BYTES), CARD_24 - policy - CUDA_BYTES, CARD_24)
    assert facts(refused.value.what) == "5.0 2.9 0.1 2.0 0.4 24.0 17.7 23.6"
    asked = qwen_cache(max_batch=1024, asked_gib=20)
    with pytest.raises(UserError, match=r"24\.9 GiB .* for 2 vLLMs"):
        gpu_share(asked, WEIGHTS, Neighbours(engines=2), CARD_24, CARD_24)
    for share, free, advised in (
        (0.85, CARD_24 // 2, "0.5"),  # half of the card is free: at most 0.5
        (0.1, CARD_24, "0.21"),  # weights 2.88 GiB + workspace 2 GiB + a row 0.11 GiB = 4.98 of 24 GiB: 0.2077
    ):
        with pytest.raises(UserError) as refused:
            gpu_share(replace(qwen_cache(), asked_share=share), WEIGHTS, ALONE, free, CARD_24)
        assert refused.value.where == "engine.gpu_memory_utilization"
        assert facts(refused.value.fix) == advised


# Engine and memory plan


def test_the_memory_plan_says_what_the_engine_takes() -> None:
    """Of the same model, once from its shape and once from the model itself."""
    for preset in ("tiny", "course"):
        config = PRESETS[preset]
        changes = [f"model.preset={preset}", "model.warm_start=false", "engine.max_batch=40"]
        scenario = load_scenario("vllm_sync", changes)
        context = config.max_position_embeddings
        with torch.device("meta"):
            model = DecoderLM(config, seed=None)
        for device in ("cpu", "cuda"):
            told = vllm_options(model, scenario.engine, context, device, False, gpu_memory=(H200, H200))
            _, of_engine, _ = generator_amounts(scenario, config, 48, device == "cuda")
            amounts = {amount.name: amount.num_bytes + amount.more for amount in of_engine}
            assert told["kv_cache_memory_bytes"] == amounts["key/value cache"]
            if device == "cuda":
                needed = sum(amounts[name] for name in ("engine weights", "vLLM's workspace", "key/value cache"))
                assert told["gpu_memory_utilization"] == pytest.approx(needed / H200)


def test_the_config_of_transformers_counts_the_same() -> None:
    config = AutoConfig.for_model(**PUBLIC_SHAPES["qwen2.5-math-1.5b"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    settings = VllmEngineSettings(precision="bfloat16", max_batch=64)
    told = vllm_options(model, settings, 4096, "cuda", False, gpu_memory=(H200, H200))
    assert told == told | gpu_share(qwen_cache(), WEIGHTS, ALONE, H200, H200)


def trial(tmp_path, *settings):
    (tmp_path / "config.json").write_text(json.dumps(PUBLIC_SHAPES["qwen2.5-math-1.5b"]))
    model = f"model={{type: folder, path: {tmp_path}, precision: bfloat16}}"
    return load_scenario("vllm_sync", [model, "engine.precision=bfloat16", *settings])


def on_gpu(generator, learner, **others):
    parts = f"generator: {{{generator}}}, learner: {{gpus: {learner}}}"
    return f"placement={{device: cuda, {parts}" + "".join(f", {key}: {value}" for key, value in others.items()) + "}"


def test_who_shares_the_gpu_follows_from_the_placement(tmp_path) -> None:
    for placement, learner, engines in (
        (on_gpu("gpus: 1", 1, colocated="false"), False, 1),
        (on_gpu("gpus: 1, count: 2", 1, colocated="true"), True, 2),
        (on_gpu("gpus: 0.5, count: 3", 1, colocated="false"), False, 2),
        (on_gpu("gpus: 0.25, count: 2", 0.5, colocated="false"), True, 2),
        (on_gpu("gpus: 0.5", 0.75, colocated="false"), False, 1),
    ):
        scenario = trial(tmp_path, placement)
        plan = make_plan(scenario, QWEN, has_gpu=True)
        of_learner = sum(amount.num_bytes for amount in plan.processes[0].amounts)
        received = {amount.name: amount.num_bytes for amount in plan.processes[1].amounts}["received weights"]
        expected = engines * (received + CUDA_BYTES) + (of_learner if learner else 0)
        assert beside_vllm(scenario, QWEN) == Neighbours(expected, engines), placement
        assert beside_vllm(scenario, None) == Neighbours(0, engines)
    on_cpu = trial(tmp_path, "placement={device: auto, colocated: false, generator: {gpus: 1}, learner: {gpus: 0}}")
    assert beside_vllm(on_cpu, QWEN) == Neighbours(2 * WEIGHTS + CUDA_BYTES, 1)  # the float32 weights that arrive
    in_process = beside_vllm(trial(tmp_path, "transport.type=in_process", "placement.device=cuda"), QWEN)
    assert in_process.num_bytes > 16 * 1_543_714_304 + CUDA_BYTES  # the Learner is always beside it
    assert in_process.engines == 1


def test_the_plan_tells_the_cache_that_must_be_and_the_one_that_may_be_or_the_share_of_a_known_gpu(tmp_path) -> None:
    """With a share of 0.5: half of 80 GiB and the CUDA context, and the float32 weights that arrive."""
    plan = make_plan(trial(tmp_path, on_gpu("gpus: 1", 1)), QWEN, has_gpu=True)
    (generator,) = [process for process in plan.processes if process.name == "generator"]
    assert generator.more == 72 * OF_ROW
    assert generator.peak == CUDA_BYTES + WEIGHTS + 2 * WEIGHTS + OF_ROW + WORKSPACE_BYTES
    (line,) = [line for line in full_table(plan) if "key/value cache" in line]
    assert " ".join(line.split()) == "key/value cache 0.11 GiB and up to 7.9 GiB more where free"
    scenario = trial(tmp_path, on_gpu("gpus: 1", 1, colocated="false"), "engine.gpu_memory_utilization=0.5")
    plan = make_plan(scenario, QWEN, has_gpu=True)
    learner, generator = plan.processes[:2]
    half = CARD_80 // 2 + CUDA_BYTES + 2 * WEIGHTS
    assert generator.keeps(None, None) == generator.peak == 3 * WEIGHTS + CUDA_BYTES + WORKSPACE_BYTES + OF_ROW
    assert generator.keeps(None, CARD_80) == half
    assert not shortages([plan], FreeMemory(64 * GIB, (learner.peak, half), (CARD_80, CARD_80)))
    (short,) = shortages([plan], FreeMemory(64 * GIB, (learner.peak, half - 1), (CARD_80, CARD_80)))
    assert (short.memory, short.needed) == ("GPU 1", half)


# Sleep


class Scripted:
    """In the place of vLLM's ``LLM``: writes down when it wakes up and falls asleep."""

    def __init__(self, takes=True) -> None:
        self.said, self.asleep, self.takes = [], False, takes
        self.llm_engine = SimpleNamespace(
            is_sleeping=lambda: self.asleep,
            reset_prefix_cache=lambda reset_running_requests: True,
            has_unfinished_requests=lambda: False,
            abort_request=lambda names: None,
        )
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 8, max_model_len=64)
        self.wake_up = lambda: self.turn("wake_up", False)
        self.sleep = lambda level: self.turn(f"sleep {level}", True)

    def turn(self, said, asleep) -> None:
        self.said.append(said)
        self.asleep = asleep

    def apply_model(self, function):
        assert not self.asleep
        self.said.append("load")
        return [[] if self.takes else ["a matrix"]]


MODEL = torch.nn.Linear(1, 1)
LETTERS = SimpleNamespace(eos_token_id=0)


def engine_of(llm, **options):
    return VllmEngine(llm, MODEL, LETTERS, sleeps=True, **options)


def load(engine, version=1):
    engine.load_weights(dict(MODEL.named_parameters()), version)


def generate(engine, prompts=()):
    return engine.generate(prompts, 1, SamplingParams(max_tokens=4), seed=0)


def test_it_is_woken_once_for_a_load_and_what_is_generated_from_it() -> None:
    llm = Scripted()
    engine = engine_of(llm)
    for version in (1, 2, 3):
        load(engine, version)
        engine.score([], [])  # the proof of the sync
        generate(engine)
    assert llm.said == ["load", "sleep 1", *["wake_up", "load", "sleep 1"] * 2]  # awake when it has started
    llm.said.clear()
    generate(engine)  # an evaluation before the batch wakes it once more
    engine.score([], [])  # found asleep, left asleep
    assert llm.said == ["wake_up", "sleep 1"] * 2
    awake = Scripted()
    never = VllmEngine(awake, MODEL, LETTERS)
    load(never)
    generate(never)
    assert awake.said == ["load"]  # one that does not sleep is never told to


def test_after_an_error_it_sleeps_where_it_slept_before() -> None:
    stopped = Scripted()
    engine = engine_of(stopped, should_stop=lambda: True)
    load(engine)
    with pytest.raises(Interrupted):
        generate(engine, [[1]])
    assert stopped.said == ["load", "sleep 1"]
    with pytest.raises(ValueError, match="weight"):
        engine.load_weights({}, 2)  # refused before anything moves
    stopped.takes = False
    with pytest.raises(RunStopped):
        load(engine, 2)
    assert stopped.said[2:] == ["wake_up", "load", "sleep 1"]
    stopped.takes = True
    load(engine, 2)
    assert stopped.said[5:] == ["wake_up", "load"]


def test_a_load_in_the_middle_of_a_call_leaves_a_busy_engine_awake() -> None:
    llm = Scripted()
    engine = engine_of(llm, should_stop=lambda: load(engine, 2) or True)
    load(engine)
    with pytest.raises(Interrupted):
        generate(engine, [[1]])
    assert (llm.said, engine.version) == (["load", "load", "sleep 1"], 2)


# Workers


class Worker(torch.nn.Module):
    """In the place of a model of vLLM's in a worker: takes some of what it is given, whole."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.loaded = names, {}
        for name in ("weight", "bias"):
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(1)))

    def load_weights(self, weights):
        self.loaded = {name: tensor.clone() for name, tensor in weights if name in self.names}
        return set(self.loaded)


def served_by(*workers):
    """A vLLM of these workers, which functions reach as they reach other processes: pickled."""
    llm = Scripted()
    llm.apply_model = lambda function: [pickle.loads(pickle.dumps(function))(worker) for worker in workers]
    return llm


def test_every_worker_reads_whole_tensors_from_a_file_that_is_gone_afterwards() -> None:
    """Of any type and layout: pieces of one buffer, rows of a transposed matrix."""
    flat = torch.arange(12, dtype=torch.bfloat16)
    worker = Worker("a", "b")
    with in_memory_file({"a": flat[:6].view(2, 3), "b": flat[6:].view(2, 3).t()}) as file:
        assert put_file(worker, file) == ["bias", "weight"]
    assert not os.path.exists(file.path)
    found = {name: tensor.tolist() for name, tensor in worker.loaded.items()}
    assert found == {"a": [[0, 1, 2], [3, 4, 5]], "b": [[6, 9], [7, 10], [8, 11]]}
    assert worker.loaded["b"].dtype == torch.bfloat16


class Keeps(torch.nn.Linear):
    """In the place of a model of vLLM's that keeps a matrix in an order of its own, or as it comes."""

    def __init__(self, order):
        super().__init__(2, 3, bias=False)
        self.weight.data = MATRIX.weight.detach()[order].clone()

    def load_weights(self, weights):
        for _, tensor in weights:
            self.weight.copy_(tensor)
        return {"weight"}


MATRIX = torch.nn.Linear(2, 3, bias=False)


def test_weights_that_are_kept_in_another_order_are_refused() -> None:
    def engine_with(order):
        llm, kept = Scripted(), Keeps(order)
        llm.apply_model = lambda function: [function(kept)]
        return VllmEngine(llm, MATRIX, LETTERS)

    engine_with([0, 1, 2]).require_replaceable(MATRIX)
    engine = engine_with([1, 0, 2])
    engine.close = lambda: None
    with pytest.raises(UserError, match="vLLM keeps weight in an order of its own") as refused:
        engine.require_replaceable(MATRIX)
    assert refused.value.fix == "set engine.type to native"


def test_classes_that_vllm_changes_make_models_again() -> None:
    class Family(torch.nn.Module):
        def forward(self, x):
            return x + 1

    policy = Family()
    make = Family.__init__
    with classes_as_they_were(torch.nn.Sequential(policy)):

        def needs_its_config(self) -> None:
            raise AssertionError("Current vLLM config is not set")

        def asks_whether_it_is_compiled(self, x):
            return self.forward(x) if self.do_not_compile else None

        Family.__init__, Family.__call__ = needs_its_config, asks_whether_it_is_compiled
    assert Family.__init__ is make
    assert policy(1) == Family()(1) == 2


def test_the_context_is_the_scenarios_else_the_models_and_never_more_than_that_or_than_a_window() -> None:
    """Of Cohere2 vLLM makes the window wider."""
    silent, plain = SimpleNamespace(), SimpleNamespace(max_position_embeddings=64)
    windowed = SimpleNamespace(model_type="cohere2", sliding_window=8, max_position_embeddings=512)
    other = SimpleNamespace(model_type="mistral", sliding_window=8)
    for config, asked, expected in (
        (plain, None, 64), (silent, None, None), (plain, 40, 40), (silent, 40, 40),
        (windowed, 8, 8), (windowed, 4, 4), (other, 9, 9),
    ):  # fmt: skip
        assert context_of(VllmEngineSettings(context=asked), config) == expected
    for config, asked, most in ((plain, 65, 64), (windowed, None, 8), (windowed, 9, 8)):
        with pytest.raises(UserError) as error:
            context_of(VllmEngineSettings(context=asked), config)
        assert f"at most {most}" in str(error.value)


def test_where_vllm_is_missing_the_error_says_how_to_get_it_and_of_its_own_the_first_line_is_told() -> None:
    with pytest.raises(UserError, match=r"engine\.type is vllm") as refused:
        check_vllm_installed(find=lambda name: None)
    assert "engine.type to native" in str(refused.value.fix)
    check_vllm_installed(find=lambda name: object())
    counted = "1 validation error for ModelConfig\n  Value error, the length is too large"
    told = [reason_of(ValueError(text)) for text in (counted, "\n one\ntwo", "")]
    assert told == ["Value error, the length is too large", "one", "ValueError"]


def test_weights_that_one_worker_leaves_out_stop_the_run() -> None:
    workers = Worker("weight", "bias"), Worker("weight", "bias")
    engine = VllmEngine(served_by(*workers), MODEL, LETTERS, workers=2)
    load(engine, version=1)
    assert engine.version == 1
    for worker in workers:
        assert torch.equal(worker.loaded["weight"], MODEL.weight.data)
    workers[1].names = ("weight",)
    with pytest.raises(RunStopped, match="bias"):
        load(engine, version=2)
    assert engine.version == 1


def test_workers_are_told_how_many_they_are_and_share_weights_and_cache() -> None:
    settings = VllmEngineSettings(max_batch=4)
    two = settings.model_copy(update={"tensor_parallel": 2})
    for device in ("cpu", "cuda"):
        alone, shared = options_of(settings, device), options_of(two, device)
        assert shared["kv_cache_memory_bytes"] == alone["kv_cache_memory_bytes"] // 2
        assert (shared["tensor_parallel_size"], shared["distributed_executor_backend"]) == (2, "mp")
        assert "tensor_parallel_size" not in alone
    told = options_of(two.model_copy(update={"kv_cache_gib": 0.001}), "cpu")
    assert told["kv_cache_memory_bytes"] == round(0.0005 * GIB)


def test_files_and_sockets_of_a_start_are_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before, threads = tempfile.gettempdir(), torch.get_num_threads()
    with workers_meet(2):
        assert tempfile.gettempdir() == str(meeting_place())
        assert os.environ["OMP_NUM_THREADS"] == str(max(1, threads // 2))
        tempfile.mkstemp()
    assert (tempfile.gettempdir(), os.environ["OMP_NUM_THREADS"]) == (before, "7")
    assert not meeting_place().exists()
    with workers_meet(1):
        assert not meeting_place().exists()
