"""The warm start: its parts by numbers, the whole by contents, and the cache.

Most tests use a recipe that ends after four steps: the machinery is the same, only the policy is no good.
"""

import io
import itertools
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from harness.core.cache_folder import default_cache_folder
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.learner.warm_start import WarmStartReport, content_key, initial_policy, shown_progress, warm_start_policy
from harness.learner.warm_start.cache import read_entry, write_entry
from harness.learner.warm_start.lessons import RECIPES, lessons_of, trained_keyword_counts
from harness.learner.warm_start.training import (
    COPY_GAIN,
    AveragedPolicy,
    encode_batch,
    initialize_as_copier,
    response_loss,
)
from harness.models.config import ModelConfig, preset_shape
from harness.models.decoder import DecoderLM
from harness.tasks.arithmetic import ArithmeticTask
from harness.tasks.grammar import Demonstration, demonstrations
from harness.tasks.keywords import KeywordTask
from harness.tasks.maths.prompts import prompt_template
from harness.tasks.words import WORDS

SMALLEST = ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    max_position_embeddings=32,
)
BRIEF = replace(
    RECIPES["tiny"],
    taught_reward=0.0,
    start_reward=1.0,
    evaluate_from=2,
    evaluate_every=(2, 2),
    evaluation_prompts=8,
    batch_size=4,
    max_tokens=8,
)


def start(folder: Path, seed: int = 0, **options):
    return warm_start_policy("tiny", seed, **{"progress": False, "cache_dir": folder, "recipe": BRIEF, **options})


def same_weights(one: DecoderLM, other: DecoderLM) -> bool:
    weights, others = one.state_dict(), other.state_dict()
    return list(weights) == list(others) and all(torch.equal(weights[name], others[name]) for name in weights)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def tokenizer():
    return lessons_of("tiny").train_tokenizer()


def test_tokenizer_gives_nearly_every_word_one_token(tokenizer) -> None:
    assert len(tokenizer) == 1280
    assert sum(len(tokenizer.encode(f" {word}")) == 1 for word in WORDS) >= 390
    assert tokenizer.decode(tokenizer.encode("The red apple.")) == "The red apple."


def test_presets_have_the_tokenizers_vocabulary() -> None:
    sizes = {preset: preset_shape(preset).vocab_size for preset in RECIPES}
    assert sizes == {"tiny": 1280, "small": 1280, "course": 1280, "maths": 1024}
    # a layer: 2 * 256 * (256 + 128) attention + 3 * 256 * 768 SwiGLU + 2 * 256 norms = 786,944; four of them,
    # embeddings 1280 * 256 = 327,680, and the last norm's 256
    assert preset_shape("small").num_parameters == 3_475_712


def test_demonstrations_have_at_least_the_asked_number_of_keywords() -> None:
    assert trained_keyword_counts(2) == (2, 3, 4)
    assert trained_keyword_counts(6) == (2, 3, 4, 5, 6)


def test_more_keywords_lower_what_is_asked() -> None:
    recipe = replace(BRIEF, taught_reward=0.5)
    assert [lessons_of("tiny", recipe, count).taught_reward for count in (2, 3, 4)] == [0.5, 0.25, 0.125]


def test_batch_is_prompts_and_responses_with_an_end(tokenizer) -> None:
    examples = [Demonstration("Write a", "The red apple.", 0), Demonstration("Write", "The.", 0)]
    batch = encode_batch(tokenizer, examples)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert batch.prompt_ids_PL.tolist() == [tokenizer.encode("Write a"), [*tokenizer.encode("Write"), pad]]
    assert batch.prompt_lengths_P.tolist() == [2, 1]
    assert batch.prompt_index_B.tolist() == [0, 1]
    long, short = tokenizer.encode("The red apple."), tokenizer.encode("The.")
    assert (len(long), len(short)) == (4, 2)
    assert batch.row_ids_BT.tolist() == [[*long, eos], [*short, eos, pad, pad]]
    assert batch.row_mask_BT.tolist() == [[True] * 5, [True, True, True, False, False]]
    assert torch.equal(batch.trained_mask_BT, batch.row_mask_BT)


def test_batch_with_a_shared_beginning_has_the_rest_of_each_prompt_in_its_row(tokenizer) -> None:
    examples = [Demonstration("Write a dog", "The.", 0), Demonstration("Write a cat.", "A red.", 0)]
    batch = encode_batch(tokenizer, examples, share_beginning=True)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert batch.prompt_ids_PL.tolist() == [tokenizer.encode("Write a")]
    assert (batch.prompt_lengths_P.tolist(), batch.prompt_index_B.tolist()) == ([2], [0, 0])
    dog, the, cat, red = (tokenizer.encode(text) for text in (" dog", "The.", " cat.", "A red."))
    assert [len(part) for part in (dog, the, cat, red)] == [1, 2, 2, 3]
    assert batch.row_ids_BT.tolist() == [[*dog, *the, eos, pad, pad], [*cat, *red, eos]]
    assert batch.row_mask_BT.tolist() == [[True] * 4 + [False] * 2, [True] * 6]
    assert batch.trained_mask_BT.tolist() == [[False, True, True, True, False, False], [False] * 2 + [True] * 4]


def test_equal_prompts_keep_a_token_each(tokenizer) -> None:
    batch = encode_batch(tokenizer, [Demonstration("Write a", "The.", 0)] * 2, share_beginning=True)
    assert batch.prompt_ids_PL.tolist() == [tokenizer.encode("Write")]  # " a" is left to the rows
    assert batch.row_ids_BT[:, 0].tolist() == tokenizer.encode(" a") * 2


def test_sharing_the_beginning_leaves_the_loss_as_it_is(tokenizer) -> None:
    model = DecoderLM(preset_shape("tiny"), seed=3)
    examples = list(itertools.islice(demonstrations(0, (2, 3)), 4))
    apart, shared = (encode_batch(tokenizer, examples, share_beginning=share) for share in (False, True))
    assert (len(apart.prompt_ids_PL), len(shared.prompt_ids_PL)) == (4, 1)
    assert response_loss(model, shared).item() == pytest.approx(response_loss(model, apart).item(), rel=1e-6)


def test_loss_is_the_mean_over_response_tokens_only(tokenizer) -> None:
    model = DecoderLM(preset_shape("tiny"), seed=3)
    examples = list(itertools.islice(demonstrations(0, (2,)), 3))
    losses = []
    for example in examples:  # one row at a time, from the logits of a plain forward pass
        prompt = tokenizer.encode(example.prompt)
        ids = torch.tensor([*prompt, *tokenizer.encode(example.response), tokenizer.eos_token_id])
        log_probs_TV = model(ids[None, :-1]).logits[0].log_softmax(-1)
        losses += [-log_probs_TV[t - 1, ids[t]].item() for t in range(len(prompt), len(ids))]
    expected = sum(losses) / len(losses)
    assert response_loss(model, encode_batch(tokenizer, examples)).item() == pytest.approx(expected, rel=1e-5)


def test_copier_writes_what_it_reads() -> None:
    model = DecoderLM(SMALLEST, seed=None)
    initialize_as_copier(model, 0)
    attention = model.model.layers[0].self_attn
    values_4x8 = attention.v_proj.weight
    assert torch.allclose(values_4x8 @ values_4x8.T, torch.eye(4), atol=1e-6)  # 2 key/value heads of 2, orthonormal
    # 4 query heads, two to a key/value head: what head h reads is rows 2 * (h // 2) and the next of the values
    read_8x8 = torch.cat([values_4x8[0:2], values_4x8[0:2], values_4x8[2:4], values_4x8[2:4]])
    copied_8x8 = attention.o_proj.weight @ read_8x8
    assert torch.allclose(copied_8x8, COPY_GAIN * values_4x8.T @ values_4x8, atol=1e-6)


def test_an_output_matrix_of_its_own_begins_as_a_copy_of_the_embeddings() -> None:
    model = DecoderLM(replace(SMALLEST, tie_word_embeddings=False), seed=None)
    initialize_as_copier(model, 0)
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    model.lm_head.weight.data.zero_()
    assert model.model.embed_tokens.weight.abs().sum() > 0  # a copy, not the same


def test_copier_prefers_the_prompts_words_from_the_start(tokenizer) -> None:
    model, _ = initial_policy("tiny", 0)
    plain = DecoderLM(preset_shape("tiny"), seed=0)

    def advantage(of: DecoderLM) -> float:
        """Mean log-prob of the prompt's keywords as the first token less that of all the words of the list."""
        single = [ids[0] for word in WORDS if len(ids := tokenizer.encode(f" {word}")) == 1]
        gaps = []
        for prompt in KeywordTask(2, 32, 1).train_prompts:
            asked = [tokenizer.encode(f" {word}")[0] for word in prompt.ground_truth.split(", ")]
            log_probs_V = of(torch.tensor([tokenizer.encode(prompt.text)])).logits[0, -1].log_softmax(-1)
            gaps.append((log_probs_V[asked].mean() - log_probs_V[single].mean()).item())
        return sum(gaps) / len(gaps)

    assert advantage(model) > 0.3  # e^0.3 = 1.35 times as likely as another word
    assert abs(advantage(plain)) < 0.1


def test_initialisation_depends_on_the_seed_only() -> None:
    (one, _), (same, _), (other, _) = initial_policy("tiny", 5), initial_policy("tiny", 5), initial_policy("tiny", 6)
    assert same_weights(one, same)
    assert not same_weights(one, other)


def test_average_of_weights_by_hand() -> None:
    model = DecoderLM(SMALLEST, seed=None)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    average = AveragedPolicy(model, decay=0.15)
    norm = model.model.norm.weight
    with torch.no_grad():
        norm.fill_(1.0)
    average.update(model)
    assert average.model.model.norm.weight[0].item() == pytest.approx(1 - 1 / 11)  # decay 1 / (1 + 10) of the old 0
    with torch.no_grad():
        norm.fill_(0.0)
    average.update(model)  # decay 2 / 12 is above the bound of 0.15
    assert average.model.model.norm.weight[0].item() == pytest.approx(0.15 * 10 / 11)


def test_warm_start_is_deterministic_and_leaves_no_trace(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    one, tokenizer, report = start(tmp_path / "a", threads=1)
    other, _, other_report = start(tmp_path / "b", threads=1)
    third, _, _ = start(tmp_path / "a", seed=1, threads=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert same_weights(one, other)
    assert not same_weights(one, third)
    assert replace(report, seconds=0, cpu_seconds=0) == replace(other_report, seconds=0, cpu_seconds=0)
    assert (report.preset, report.seed, report.steps, report.threads, report.from_cache) == ("tiny", 0, 4, 1, False)
    assert (report.parameters, report.precision, len(report.examples)) == (557_696, "float32", 8)
    assert len(tokenizer) == 1280


def test_second_call_comes_from_the_cache(tmp_path: Path) -> None:
    model, tokenizer, report = start(tmp_path)
    again, tokenizer_again, report_again = start(tmp_path, should_stop=lambda: True)  # training would be interrupted
    assert same_weights(model, again)
    assert tokenizer_again.get_vocab() == tokenizer.get_vocab()
    assert report_again == replace(report, from_cache=True)
    assert len(entries(tmp_path)) == 1


def test_anything_that_matters_has_another_entry(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path, seed=1)
    start(tmp_path, keywords_per_prompt=3)
    start(tmp_path, recipe=replace(BRIEF, learning_rate=1e-3))
    assert len(entries(tmp_path)) == 4
    key = content_key("tiny", BRIEF, 0, lessons_of("tiny", BRIEF))
    assert key == content_key("tiny", BRIEF, 0, lessons_of("tiny", BRIEF))
    assert f"warm-start-tiny-{key}" in entries(tmp_path)


@pytest.mark.parametrize("damage", ["truncated weights", "no tokenizer", "no manifest", "half a manifest", "no number"])
def test_damaged_entry_is_trained_again_with_a_warning(tmp_path: Path, damage: str) -> None:
    model, _, _ = start(tmp_path, threads=1)
    (entry,) = tmp_path.iterdir()
    weights, manifest = entry / "step_0" / "model.safetensors", entry / "step_0" / "manifest.json"
    if damage == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "no tokenizer":
        (entry / "step_0" / "tokenizer.json").unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:100])
    else:
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")  # the same size, one value gone
    with pytest.warns(UserWarning, match=f"the cached warm start {entry.name} is damaged .* it is trained again"):
        again, _, report_again = start(tmp_path, threads=1)
    assert same_weights(model, again)
    assert report_again.from_cache is False
    assert entries(tmp_path) == [entry.name]
    assert start(tmp_path)[2].from_cache is True


def test_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="the warm start cannot be kept"):
        _, _, report = start(tmp_path / "file" / "cache")
    assert report.steps == 4


def test_the_first_to_finish_an_entry_wins(tmp_path: Path, tokenizer) -> None:
    config = preset_shape("tiny")
    entry = tmp_path / "entry"
    write_entry(entry, DecoderLM(config, seed=1), tokenizer, {"by": "first"})
    write_entry(entry, DecoderLM(config, seed=2), tokenizer, {"by": "second"})
    kept = read_entry(entry)
    assert kept is not None
    assert kept[2] == {"by": "first"}
    assert same_weights(kept[0], DecoderLM(config, seed=1))
    assert entries(tmp_path) == ["entry"]


@pytest.mark.slow
def test_two_processes_at_once_share_one_entry(tmp_path: Path) -> None:
    program = (
        "import dataclasses, hashlib, json, sys\n"
        "from harness.learner.warm_start.lessons import RECIPES\n"
        "from harness.learner.warm_start import warm_start_policy\n"
        "brief = dataclasses.replace(RECIPES['tiny'], taught_reward=0.0, start_reward=1.0, evaluate_from=2,\n"
        "    evaluate_every=(2, 2), evaluation_prompts=8, batch_size=4, max_tokens=8)\n"
        "model, _, _ = warm_start_policy('tiny', 0, progress=False, cache_dir=sys.argv[1], threads=1, recipe=brief)\n"
        "print(hashlib.sha256(b''.join(w.numpy().tobytes() for w in model.state_dict().values())).hexdigest())\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert digests[0] == digests[1] != ""
    assert len(entries(tmp_path)) == 1
    assert start(tmp_path)[2].from_cache is True


def test_goal_out_of_reach_stops_with_the_numbers(tmp_path: Path) -> None:
    hopeless = replace(BRIEF, taught_reward=1.0, max_steps=3)
    with pytest.raises(
        RunStopped, match=r"\(seed 0\) made 3 steps and its validation reward is 0.000; at least 1.000 is needed"
    ):
        start(tmp_path, recipe=hopeless)
    assert list(tmp_path.glob("*")) == []


def test_should_stop_interrupts_and_keeps_nothing(tmp_path: Path) -> None:
    polls = itertools.count()
    with pytest.raises(Interrupted, match="stopped after 1 steps"):
        start(tmp_path, should_stop=lambda: next(polls) >= 1)
    assert list(tmp_path.glob("*")) == []


def test_unknown_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no preset 'huge'; the presets are tiny, small, course, maths"):
        warm_start_policy("huge", 0, progress=False, cache_dir=tmp_path)


def test_keyword_count_out_of_bounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keywords_per_prompt is 9; it must be 2 to 8"):
        start(tmp_path, keywords_per_prompt=9)


def test_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "grpo-harness"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # by the XDG rules a relative path is to be ignored
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_folder() == tmp_path / "home" / ".cache" / "grpo-harness"


def test_progress_off_a_terminal_is_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, report = start(tmp_path, progress=True)
    first, second = capsys.readouterr().err.replace("\n", " ").split("warm start of tiny (0.6M parameters): ")[1:]
    assert first.startswith("it is trained first, once, and then kept")
    assert second.strip() == f"validation reward {report.reward:.2f}"


def test_progress_on_a_terminal_shows_step_loss_and_reward() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=200, force_terminal=True)
    with shown_progress("tiny", lessons_of("tiny"), console, quiet=False) as show:
        for step, reward in enumerate((0.125, 0.5, None), start=1):
            show(step, 5.5, reward, "at most 0.400")
    assert "step 3, loss 5.50, validation reward 0.50, to at most 0.400" in shown.getvalue()


def test_quiet_progress_shows_nothing() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True)
    with shown_progress("tiny", lessons_of("tiny"), console, quiet=True) as show:
        show(20, 5.5, 0.125, "at least 0.450")
    assert shown.getvalue() == ""


def test_report_on_disk_names_no_person_or_place(tmp_path: Path) -> None:
    start(tmp_path)
    (entry,) = tmp_path.iterdir()
    stored = json.loads((entry / "step_0" / "report.json").read_text())
    assert set(stored) == {field.name for field in fields(WarmStartReport)}
    assert str(tmp_path) not in json.dumps(stored)
    assert str(Path.home()) not in json.dumps(stored)


@pytest.mark.slow
def test_tiny_starts_where_grpo_can_learn(tmp_path: Path) -> None:
    model, tokenizer, report = warm_start_policy("tiny", 0, progress=False, cache_dir=tmp_path, threads=1)
    assert 0.15 <= report.reward <= 0.35  # 256 prompts: standard error 0.03
    assert 8 <= report.response_tokens <= 16
    prompts = {prompt.text for prompt in KeywordTask(2, 1, 256).validation_prompts}
    assert {prompt for prompt, _ in report.examples} <= prompts
    assert all(len(response.split()) >= 3 for _, response in report.examples)
    assert (model.config, len(tokenizer)) == (preset_shape("tiny"), 1280)


BRIEF_MATHS = replace(
    RECIPES["maths"],
    taught_reward=0.0,
    start_reward=1.0,
    evaluate_from=2,
    evaluate_every=(2, 2),
    evaluation_prompts=8,
    batch_size=4,
    max_tokens=8,
)


def test_maths_is_taught_arithmetic_and_measured_by_it(tmp_path: Path) -> None:
    model, tokenizer, report = start_maths(tmp_path, threads=1)
    other, _, _ = start_maths(tmp_path / "other", threads=1)
    again, _, report_again = start_maths(tmp_path)
    assert same_weights(model, other)
    assert same_weights(model, again)
    assert report_again == replace(report, from_cache=True)
    # two lessons, each ended by its first evaluation
    assert (report.preset, report.steps, report.reward) == ("maths", 4, 0.0)
    prompts = {prompt.text for prompt in ArithmeticTask(1, 8).validation_prompts}
    assert {prompt for prompt, _ in report.examples} == prompts
    assert (model.config, len(tokenizer)) == (preset_shape("maths"), 1024)
    assert model.config.max_position_embeddings >= 1024


def start_maths(folder: Path, **options):
    return warm_start_policy("maths", 0, progress=False, cache_dir=folder, recipe=BRIEF_MATHS, **options)


def test_maths_ignores_the_number_of_keywords(tmp_path: Path) -> None:
    start_maths(tmp_path)
    assert start_maths(tmp_path, keywords_per_prompt=5)[2].from_cache is True


@pytest.fixture(scope="module")
def maths_tokenizer():
    return lessons_of("maths").train_tokenizer()


def test_maths_tokenizer_gives_every_digit_a_token_of_its_own(maths_tokenizer) -> None:
    tokens = maths_tokenizer.convert_ids_to_tokens(maths_tokenizer.encode("17+46=63 </answer>"))
    assert tokens == ["1", "7", "+", "4", "6", "=", "6", "3", "\u0120</", "answer", ">"]  # U+0120 stands for a space
    assert all(sum(character.isdigit() for character in token) < 2 for token in maths_tokenizer.get_vocab())


@pytest.mark.parametrize("text", ["", "What is 1,234.5 + 6?", "x² ≤ ½, naïve 中文 🙂\n\t\x00", "<|eos|> 007"])
def test_maths_tokenizer_encodes_any_text(maths_tokenizer, text: str) -> None:
    assert maths_tokenizer.decode(maths_tokenizer.encode(text), skip_special_tokens=True) == text


def test_r1_zero_prompt_and_a_long_question_leave_room_for_a_response(maths_tokenizer) -> None:
    arithmetic = ArithmeticTask(1, 32).validation_prompts
    assert max(len(maths_tokenizer.encode(prompt.text)) for prompt in arithmetic) <= 100
    # the longest question of GSM8K's test set has 848 characters; made of words the tokenizer knows little of
    question = "Veronica's unpredictable juggling academy buys 37 zithers for $1,250 every fortnight. " * 10
    prompt = prompt_template("r1_zero").render(question)
    assert len(maths_tokenizer.encode(prompt)) + 256 <= 1024
