"""The warm start: its parts by numbers, the whole by contents, and the cache.

Most tests use a recipe that ends after four steps: the machinery is the same, only the policy is no good.
"""

import io
import itertools
import json
import shutil
from collections.abc import Callable
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

SMALLEST = ModelConfig(16, 8, 8, 1, 4, 2, 2, 32)
SHORT = {"taught_reward": 0.0, "start_reward": 1.0, "evaluate_from": 2, "evaluate_every": (2, 2)}
SHORT |= {"evaluation_prompts": 8, "batch_size": 4, "max_tokens": 8}
BRIEF = replace(RECIPES["tiny"], **SHORT)


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
    sizes = {preset: preset_shape(preset).vocab_size for preset in RECIPES}
    assert sizes == {"tiny": 1280, "small": 1280, "course": 1280, "maths": 1024}
    # a layer: 2 * 256 * (256 + 128) attention + 3 * 256 * 768 SwiGLU + 2 * 256 norms = 786,944; four of them,
    # embeddings 1280 * 256 = 327,680, and the last norm's 256
    assert preset_shape("small").num_parameters == 3_475_712


def test_demonstrations_have_at_least_the_asked_number_of_keywords_and_more_lower_what_is_asked() -> None:
    assert [trained_keyword_counts(asked) for asked in (2, 6)] == [(2, 3, 4), (2, 3, 4, 5, 6)]
    recipe = replace(BRIEF, taught_reward=0.5)
    assert [lessons_of("tiny", recipe, count).taught_reward for count in (2, 3, 4)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("equal", [False, True], ids=["four prompts", "equal prompts, which keep a token each"])
def test_loss_is_the_mean_over_response_tokens_only_also_with_a_shared_beginning(tokenizer, equal: bool) -> None:
    """With its end; and prompts that begin alike have that beginning once."""
    model = DecoderLM(preset_shape("tiny"), seed=3)
    examples = (
        [Demonstration("Write a", "The.", 0)] * 2 if equal else list(itertools.islice(demonstrations(0, (2, 3)), 4))
    )
    losses = []
    for example in examples:  # one row at a time, from the logits of a plain forward pass
        prompt = tokenizer.encode(example.prompt)
        ids = torch.tensor([*prompt, *tokenizer.encode(example.response), tokenizer.eos_token_id])
        log_probs_TV = model(ids[None, :-1]).logits[0].log_softmax(-1)
        losses += [-log_probs_TV[t - 1, ids[t]].item() for t in range(len(prompt), len(ids))]
    for share, prompts in ((False, len(examples)), (True, 1)):
        batch = encode_batch(tokenizer, examples, share_beginning=share)
        assert len(batch.prompt_ids_PL) == prompts
        assert response_loss(model, batch).item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    if equal:
        assert batch.prompt_ids_PL.tolist() == [tokenizer.encode("Write")]  # " a" is left to the rows


def test_copier_writes_what_it_reads() -> None:
    """And an output matrix of its own begins as a copy of the embeddings."""
    model = DecoderLM(replace(SMALLEST, tie_word_embeddings=False), seed=None)
    initialize_as_copier(model, 0)
    attention = model.model.layers[0].self_attn
    values_4x8 = attention.v_proj.weight
    assert torch.allclose(values_4x8 @ values_4x8.T, torch.eye(4), atol=1e-6)  # 2 key/value heads of 2, orthonormal
    # 4 query heads, two to a key/value head: what head h reads is rows 2 * (h // 2) and the next of the values
    read_8x8 = torch.cat([values_4x8[0:2], values_4x8[0:2], values_4x8[2:4], values_4x8[2:4]])
    copied_8x8 = attention.o_proj.weight @ read_8x8
    assert torch.allclose(copied_8x8, COPY_GAIN * values_4x8.T @ values_4x8, atol=1e-6)
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    model.lm_head.weight.data.zero_()
    assert model.model.embed_tokens.weight.abs().sum() > 0  # a copy, not the same


def test_copier_prefers_the_prompts_words_from_the_start(tokenizer) -> None:
    def advantage(of: DecoderLM) -> float:
        """Mean log-prob of the prompt's keywords as the first token less that of all the words of the list."""
        single = [ids[0] for word in WORDS if len(ids := tokenizer.encode(f" {word}")) == 1]
        gaps = []
        for prompt in KeywordTask(2, 32, 1).train_prompts:
            asked = [tokenizer.encode(f" {word}")[0] for word in prompt.ground_truth.split(", ")]
            log_probs_V = of(torch.tensor([tokenizer.encode(prompt.text)])).logits[0, -1].log_softmax(-1)
            gaps.append((log_probs_V[asked].mean() - log_probs_V[single].mean()).item())
        return sum(gaps) / len(gaps)

    assert advantage(initial_policy("tiny", 0)[0]) > 0.3  # e^0.3 = 1.35 times as likely as another word
    assert abs(advantage(DecoderLM(preset_shape("tiny"), seed=0))) < 0.1


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
    again, tokenizer_again, report_again = start(
        tmp_path / "b", should_stop=lambda: True
    )  # training would be interrupted
    assert same_weights(one, again)
    assert tokenizer_again.get_vocab() == tokenizer.get_vocab()
    assert report_again == replace(other_report, from_cache=True)
    (entry,) = (tmp_path / "b").iterdir()
    stored = (entry / "step_0" / "report.json").read_text()
    assert set(json.loads(stored)) == {field.name for field in fields(WarmStartReport)}
    assert not [place for place in (tmp_path, Path.home()) if str(place) in stored]


def test_anything_that_matters_has_another_entry(tmp_path: Path) -> None:
    start(tmp_path)
    lessons = lessons_of("tiny", BRIEF)
    key = content_key("tiny", BRIEF, 0, lessons)
    assert entries(tmp_path) == [f"warm-start-tiny-{key}"]
    faster = replace(BRIEF, learning_rate=1e-3)
    others = [
        ("tiny", BRIEF, 1, lessons),
        ("tiny", BRIEF, 0, lessons_of("tiny", BRIEF, 3)),
        ("tiny", faster, 0, lessons),
    ]
    assert len({key, content_key("tiny", BRIEF, 0, lessons), *(content_key(*other) for other in others)}) == 4


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated weights": lambda folder: cut(folder / "model.safetensors"),
    "half a manifest": lambda folder: cut(folder / "manifest.json"),
    "the same size, one value gone": lambda folder: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\0"
    ),
}


@pytest.fixture(scope="module")
def whole_entry(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DecoderLM]:
    """A cache with an entry, and the policy in it."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, start(folder, threads=1)[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_trained_again_with_a_warning(
    damage: str, whole_entry: tuple[Path, DecoderLM], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(whole_entry[0], cache)
    (entry,) = cache.iterdir()
    DAMAGES[damage](entry / "step_0")
    with pytest.warns(UserWarning, match=f"{entry.name} is damaged"):
        again, _, report_again = start(cache, threads=1)
    assert same_weights(whole_entry[1], again)
    assert report_again.from_cache is False
    assert entries(cache) == [entry.name]
    assert start(cache)[2].from_cache is True


def test_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="the warm start cannot be kept"):
        _, _, report = start(tmp_path / "file" / "cache")
    assert report.steps == 4


def test_the_first_to_finish_an_entry_wins(tmp_path: Path, tokenizer) -> None:
    config, entry = preset_shape("tiny"), tmp_path / "entry"
    for seed, by in ((1, "first"), (2, "second")):
        write_entry(entry, DecoderLM(config, seed=seed), tokenizer, {"by": by})
    kept = read_entry(entry)
    assert kept is not None
    assert kept[2] == {"by": "first"}
    assert same_weights(kept[0], DecoderLM(config, seed=1))
    assert entries(tmp_path) == ["entry"]


def test_goal_out_of_reach_and_a_stop_keep_nothing(tmp_path: Path) -> None:
    hopeless, polls = replace(BRIEF, taught_reward=1.0, max_steps=3), itertools.count()
    with pytest.raises(RunStopped, match=r"3 steps and its validation reward is 0\.000; at least 1\.000"):
        start(tmp_path, recipe=hopeless)
    with pytest.raises(Interrupted, match="after 1 steps"):
        start(tmp_path, should_stop=lambda: next(polls) >= 1)
    assert list(tmp_path.glob("*")) == []


def test_unknown_presets_and_keyword_counts_out_of_bounds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'huge'.* tiny, small, course, maths"):
        warm_start_policy("huge", 0, progress=False, cache_dir=tmp_path)
    for count in (1, 9):
        with pytest.raises(UserError, match=f"keywords_per_prompt is {count}; it must be 2 to 8"):
            start(tmp_path, keywords_per_prompt=count)


def test_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / "grpo-harness"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # by the XDG rules a relative path is to be ignored
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_folder() == tmp_path / "home" / ".cache" / "grpo-harness"


def test_progress_off_a_terminal_is_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, report = start(tmp_path, progress=True)
    first, second = capsys.readouterr().err.replace("\n", " ").split("warm start of tiny (0.6M parameters): ")[1:]
    assert "trained first, once" in first
    assert second.strip() == f"validation reward {report.reward:.2f}"


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_on_a_terminal_shows_step_loss_and_reward_and_quiet_nothing(quiet: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=200, force_terminal=True)
    with shown_progress("tiny", lessons_of("tiny"), console, quiet=quiet) as show:
        for step, reward in enumerate((0.125, 0.5, None), start=1):
            show(step, 5.5, reward, "at most 0.400")
    text = shown.getvalue()
    assert text == "" if quiet else "step 3, loss 5.50, validation reward 0.50, to at most 0.400" in text


@pytest.mark.slow
def test_tiny_starts_where_grpo_can_learn(tmp_path: Path) -> None:
    model, tokenizer, report = warm_start_policy("tiny", 0, progress=False, cache_dir=tmp_path, threads=1)
    assert 0.15 <= report.reward <= 0.35  # 256 prompts: standard error 0.03
    assert 8 <= report.response_tokens <= 16
    prompts = {prompt.text for prompt in KeywordTask(2, 1, 256).validation_prompts}
    assert {prompt for prompt, _ in report.examples} <= prompts
    assert all(len(response.split()) >= 3 for _, response in report.examples)
    assert (model.config, len(tokenizer)) == (preset_shape("tiny"), 1280)


def test_maths_is_taught_arithmetic_and_measured_by_it(tmp_path: Path) -> None:
    how = {"progress": False, "cache_dir": tmp_path, "recipe": replace(RECIPES["maths"], **SHORT)}
    model, tokenizer, report = warm_start_policy("maths", 0, threads=1, **how)
    again, _, report_again = warm_start_policy("maths", 0, keywords_per_prompt=5, **how)  # which it has none of
    assert same_weights(model, again)
    assert report_again == replace(report, from_cache=True)
    # two lessons, each ended by its first evaluation
    assert (report.preset, report.steps, report.reward) == ("maths", 4, 0.0)
    prompts = {prompt.text for prompt in ArithmeticTask(1, 8).validation_prompts}
    assert {prompt for prompt, _ in report.examples} == prompts
    assert (model.config, len(tokenizer)) == (preset_shape("maths"), 1024)
    assert model.config.max_position_embeddings >= 1024


@pytest.fixture(scope="module")
def maths_tokenizer():
    return lessons_of("maths").train_tokenizer()


def test_maths_tokenizer_gives_every_digit_a_token_of_its_own_and_encodes_any_text(maths_tokenizer) -> None:
    tokens = maths_tokenizer.convert_ids_to_tokens(maths_tokenizer.encode("17+46=63 </answer>"))
    assert tokens == ["1", "7", "+", "4", "6", "=", "6", "3", "\u0120</", "answer", ">"]  # U+0120 stands for a space
    assert all(sum(character.isdigit() for character in token) < 2 for token in maths_tokenizer.get_vocab())
    for text in ("", "What is 1,234.5 + 6?", "x² ≤ ½, naïve 中文 🙂\n\t\x00", "<|eos|> 007"):
        assert maths_tokenizer.decode(maths_tokenizer.encode(text), skip_special_tokens=True) == text


def test_r1_zero_prompt_and_a_long_question_leave_room_for_a_response(maths_tokenizer) -> None:
    arithmetic = ArithmeticTask(1, 32).validation_prompts
    assert max(len(maths_tokenizer.encode(prompt.text)) for prompt in arithmetic) <= 100
    # the longest question of GSM8K's test set has 848 characters; made of words the tokenizer knows little of
    question = "Veronica's unpredictable juggling academy buys 37 zithers for $1,250 every fortnight. " * 10
    prompt = prompt_template("r1_zero").render(question)
    assert len(maths_tokenizer.encode(prompt)) + 256 <= 1024
