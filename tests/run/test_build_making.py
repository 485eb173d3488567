"""What is refused before any part is made."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.errors import UserError
from harness.models.config import PRESETS
from harness.models.decoder import DecoderLM
from harness.models.layers import attention_kernels
from harness.models.make_folder import make_folder
from harness.models.storage import save_policy
from harness.models.tokenizer import train_tokenizer
from harness.run.actors.parts import ActorParts
from harness.run.factory import PartsFactory
from harness.run.parts import never
from harness.run.policy import Policy, ResponseEnds, make_policy, response_ends
from harness.run.prompts import check_fits, fitting_task, prompt_encoder, start_notes
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.tasks.make import make_task

ROOT = Path(__file__).parents[2]
MATHS = ROOT / "tests" / "data" / "maths" / "gsm8k_sample.jsonl"
PROMPTS = ROOT / "docs" / "examples" / "own_task" / "prompts.jsonl"
NO_TRACER: Any = None  # nothing is measured


class Letters:
    """One token for each letter of a prompt."""

    def encode(self, text: str, **options: object) -> list[int]:
        return [ord(letter) for letter in text]


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    make_folder("tiny-qwen2", folder, layers=1, vocab_size=512, chat=True)
    return folder


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ChatML base model: tokenizer and configs name one token, the template ends turns with another."""
    tokenizer = train_tokenizer(["a red apple"], 260)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "</answer>"]})
    tokenizer.chat_template = CHATML
    folder = tmp_path_factory.mktemp("models") / "base"
    save_policy(DecoderLM(replace(PRESETS["tiny"], vocab_size=len(tokenizer))), tokenizer, folder)
    return folder


def ends_of(folder: Path, *settings: str) -> ResponseEnds:
    overrides = [f"task={{type: jsonl, train: {PROMPTS}, reward: x:y}}", f"model={{type: folder, path: {folder}}}"]
    scenario = load_scenario("quickstart", [*overrides, *settings])
    return response_ends(make_policy(scenario, "meta", never), scenario.sampling.stop)


def test_a_chats_turns_end_where_its_template_ends_them(base_folder: Path) -> None:
    eos, turn, answer = 1, "<|im_end|>", "</answer>"
    chat, raw = ends_of(base_folder, "task.chat_template=true"), ends_of(base_folder)
    assert list(chat.texts.values()) == ["<|eos|>", turn]
    assert (raw.ids, raw.texts) == ((eos,), {"1": "<|eos|>"})
    assert turn in raw.line  # which says what to do where prompts are chats
    named = ends_of(base_folder, f"sampling.stop=['{turn}', '{answer}', '.']")
    assert list(named.texts.values()) == ["<|eos|>", turn, answer]
    assert named.ids[:2] == chat.ids
    with pytest.raises(UserError, match="never found"):
        ends_of(base_folder, f"sampling.stop=['{turn}{turn}']")


def test_tokens_that_the_model_has_no_row_for_end_nothing(tmp_path: Path) -> None:
    """Fails where the Learner's ban looks for their logits; engines never draw one."""
    tokenizer = train_tokenizer(["a red apple"], 260)
    known = len(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "</answer>"]})
    tokenizer.chat_template = CHATML
    save_policy(DecoderLM(replace(PRESETS["tiny"], vocab_size=known)), tokenizer, tmp_path / "model")
    ends = ends_of(tmp_path / "model", "task.chat_template=true", "sampling.stop=['</answer>']")
    assert (ends.ids, ends.texts) == ((1,), {"1": "<|eos|>"})


@pytest.mark.parametrize(
    ("of_model", "of_engine", "refused"),
    [
        (512, None, None),
        (None, None, None),
        (512, 400, None),
        (512, 64, r"engine\.context of 64, [^$]*, or raise engine\.context$"),
        (None, 64, r"engine\.context of 64"),
        (60, 64, "the model's context of 60"),
    ],
)
def test_prompts_must_fit_the_smaller_context(of_model: int | None, of_engine: int | None, refused: str | None) -> None:
    settings = ["engine.type=vllm", "sampling.max_tokens=32"]
    settings += [] if of_engine is None else [f"engine.context={of_engine}"]
    scenario = load_scenario("quickstart", settings)
    with nullcontext() if refused is None else pytest.raises(UserError, match=refused):
        check_fits(scenario, make_task(scenario.task), Policy(None, Letters(), of_model))


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_package_that_one_arm_lacks_is_told_before_another_arm_runs() -> None:
    arms = {variant.name: variant.scenario for variant in expand(load_scenario("rdt_nccl"))}
    factory = PartsFactory([[scenario] for scenario in arms.values()])
    with pytest.raises(UserError, match=r"transport\.type is nccl, and the package cupy is not installed"):
        factory(arms["object_store"], NO_TRACER, never)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_gpu_that_is_not_there_is_told_before_ray_starts() -> None:
    arms = {variant.name: variant.scenario for variant in expand(load_scenario("rdt_nccl"))}
    with pytest.raises(UserError, match="the scenario asks for a GPU"):
        ActorParts(arms["object_store"], NO_TRACER, never, lambda scenario: pytest.fail("Ray was asked for"))


@pytest.mark.parametrize(
    "task",
    [
        {"type": "keywords", "train_prompts": 4, "validation_prompts": 2},
        {"type": "maths", "train": str(MATHS), "prompt": "question_only"},
        {"type": "jsonl", "train": str(PROMPTS), "reward": "docs.examples.own_task.reward:score"},
    ],
    ids=lambda task: str(task["type"]),
)
def test_a_training_task_asks_through_the_chat_template(chat_folder: Path, task: dict[str, Any]) -> None:
    """A whole run samples what is encoded so (test_inputs.py)."""
    model = {"type": "folder", "path": str(chat_folder)}
    chat = {"chat_template": True, "system_prompt": "Be brief."}
    trial, plain = (Scenario.model_validate({"task": each, "model": model}) for each in (task | chat, task))
    policy, asked = make_policy(trial, "cpu", never), make_task(trial.task).train_prompts[1].text
    said = policy.tokenizer.decode(prompt_encoder(trial, policy)(asked))
    assert said == f"[system] Be brief.\n[user] {asked}\n[assistant] "
    assert list(prompt_encoder(plain, policy)(asked)) == policy.tokenizer.encode(asked)


def test_where_a_gpu_may_compute_attention_never_takes_cudnns_kernel() -> None:
    others, before = {"flash", "mem_efficient", "math"}, torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for device, kernels in (("cpu", {*others, "cudnn"}), ("auto", others)):
            torch.backends.cuda.enable_cudnn_sdp(True)
            make_policy(load_scenario("quickstart", [f"placement.device={device}", "model.preset=tiny"]), "cpu", never)
            assert set(attention_kernels()) == kernels, device
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def of_rows(folder: Path, prompts: list[str], *settings: str) -> Scenario:
    """Return a scenario with a file of these prompts."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "a"}) + "\n" for prompt in prompts))
    task = [f"task={{type: jsonl, train: {path}, reward: 'docs.examples.own_task.reward:score'}}"]
    return load_scenario("quickstart", [*task, "sampling.max_tokens=8", *settings])


def test_overlong_prompts_are_told_by_their_lines_or_left_out_and_counted(tmp_path: Path) -> None:
    prompts = [f"{number:02d}" + "x" * (30 if number in (3, 7) else 0) for number in range(10)]
    policy = Policy(None, Letters(), 20)
    refusing = of_rows(tmp_path, prompts)
    with pytest.raises(UserError) as caught:
        check_fits(refusing, make_task(refusing.task), policy)
    assert caught.value.what.startswith("2 of 10 prompts do not fit the model's context of 20")
    assert {"rows.jsonl, line 4", "rows.jsonl, line 8"} == set(re.findall(r"rows.jsonl, line \d+", caught.value.what))
    assert "has 32 tokens; with 8 response tokens that is 40" in caught.value.what
    assert "sampling.max_tokens" not in str(caught.value.fix)
    leaving_out = of_rows(tmp_path, prompts, "task.filter_overlong_prompts=true", "task.validation_fraction=0.4")
    task = fitting_task(leaving_out, make_task(leaving_out.task), policy)
    check_fits(leaving_out, task, policy)
    assert len(task.train_prompts) + len(task.validation_prompts) == 8
    assert [note.split()[0] for note in start_notes(leaving_out, task, policy)] == ["2", "evaluation.prompts"]


def test_what_is_odd_about_the_prompts_is_said_when_a_run_begins(tmp_path: Path) -> None:
    class AddsStart(Letters):
        bos_token, bos_token_id = "<", ord("<")

        def encode(self, text: str, **options: object) -> list[int]:
            return super().encode(f"<{text}")

    trial = of_rows(tmp_path, ["<a", "<b", "c", "d", "d"], "evaluation.prompts=256")
    policy = Policy(None, AddsStart(), None)
    repeated, held_out, start = start_notes(trial, make_task(trial.task), policy)
    assert "1 row repeats" in repeated
    assert "evaluation.prompts is 256, and 1 are held out" in held_out
    assert "2 prompts begin with <" in start
    encode = prompt_encoder(trial, policy)
    assert [list(encode(text)) for text in ("<a", "a", "<<a")] == [[60, 97]] * 3
