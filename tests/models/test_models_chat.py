"""Prompts through a chat template: the very token ids of ``apply_chat_template``, and what has none is refused."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from harness.core.errors import UserError
from harness.models.chat import asks_date, chat_encoder, on_date, template_digest
from harness.models.make_folder import main
from harness.models.storage import load_policy
from harness.models.tokenizer import EOS_TOKEN, train_tokenizer

TEMPLATE = (
    "{% for turn in messages %}[{{ turn.role }} says {{ turn.content }}]{% endfor %}"
    "{% if add_generation_prompt %}[model says{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + TEMPLATE


@pytest.fixture
def tokenizer():
    return train_tokenizer(["user says red apple, model says"], 300)


def test_a_chat_asks_as_its_user_up_to_the_models_turn(tokenizer) -> None:
    tokenizer.chat_template = TEMPLATE
    token_ids = chat_encoder(tokenizer)("red apple")
    assert tokenizer.decode(token_ids) == "[user says red apple][model says"
    assert all(type(token_id) is int for token_id in token_ids)
    with_system = chat_encoder(tokenizer, "Be brief.")("red apple")
    assert tokenizer.decode(with_system) == "[system says Be brief.][user says red apple][model says"


def test_no_start_of_sequence_is_doubled(tokenizer) -> None:
    """A tokenizer that puts a token in front of every text, and a template that writes the same one."""
    tokenizer.bos_token = EOS_TOKEN  # any token there is; its name does not matter
    start = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{EOS_TOKEN} $A", special_tokens=[(EOS_TOKEN, start)]
    )
    tokenizer.split_special_tokens = False
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE
    turns = [{"role": "user", "content": "red apple"}]
    written = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    token_ids = chat_encoder(tokenizer)("red apple")
    assert token_ids.count(start) == 1
    assert tokenizer.encode(written).count(start) == 2  # what encoding the text again would have made of it
    assert token_ids == tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]


def test_a_tokenizer_without_a_template_or_with_one_that_refuses_is_one_clear_error(tokenizer) -> None:
    with pytest.raises(UserError) as caught:
        chat_encoder(tokenizer)
    assert caught.value.where == "task.chat_template"
    tokenizer.chat_template = NO_SYSTEM
    assert chat_encoder(tokenizer)("red") == tokenizer.encode("[user says red][model says")
    with pytest.raises(UserError, match="with a system turn: no system turn") as caught:
        chat_encoder(tokenizer, "Be brief.")
    assert caught.value.where == "task.system_prompt"


def test_a_made_folder_may_have_a_chat_template(tmp_path: Path) -> None:
    made = ["--shape", "tiny-qwen2", "--layers", "1", "--vocab", "512", "--dtype", "float32"]
    assert main([*made, "--chat", "-o", str(tmp_path / "chat")]) == 0
    _, tokenizer = load_policy(tmp_path / "chat")
    assert tokenizer.decode(chat_encoder(tokenizer, "Be brief.")("Why?")) == (
        "[system] Be brief.\n[user] Why?\n[assistant] "
    )
    assert main([*made, "-o", str(tmp_path / "plain")]) == 0
    assert load_policy(tmp_path / "plain")[1].chat_template is None


LLAMA_3_2 = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}"
    "{%- endif %}{%- endif %}Today Date: {{ date_string }} " + TEMPLATE
)
GPT_OSS = "Current date: {{ strftime_now('%Y-%m-%d') }} " + TEMPLATE


@pytest.mark.parametrize(
    ("template", "written"),
    [(LLAMA_3_2, "Today Date: 01 Feb 2003 "), (GPT_OSS, "Current date: 2003-02-01 "), (TEMPLATE, "")],
)
def test_a_template_that_writes_todays_date_writes_that_of_the_run(tokenizer, template: str, written: str) -> None:
    """The encoder keeps the date that it was made on, whenever it is called."""
    tokenizer.chat_template = template
    assert asks_date(tokenizer) == bool(written)
    with on_date(date(2003, 2, 1)):
        encode = chat_encoder(tokenizer)
    with on_date(date(2003, 2, 2)):
        next_day = chat_encoder(tokenizer)
        assert tokenizer.decode(encode("red")) == f"{written}[user says red][model says"
    assert (next_day("red") == encode("red")) == (not written)
    if not written:
        turns = [{"role": "user", "content": "red"}]
        assert encode("red") == tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]


def test_the_digest_of_a_template_is_of_what_it_writes_on_a_fixed_day(tokenizer) -> None:
    """Not of its text: a comment changes nothing, and neither does the day."""

    def digest(template: str, system: str | None = None) -> str:
        tokenizer.chat_template = template
        return template_digest(tokenizer, system)

    with on_date(date(2003, 2, 1)):
        on_one_day = digest(LLAMA_3_2)
    with on_date(date(2003, 2, 2)):
        assert digest(LLAMA_3_2) == on_one_day
    assert digest("{# a comment #}" + TEMPLATE) == digest(TEMPLATE)
    others = [digest(each) for each in (TEMPLATE, LLAMA_3_2, GPT_OSS, NO_SYSTEM, TEMPLATE.replace("says", "said"))]
    assert len({*others, digest(TEMPLATE, "Be kind.")}) == 6
    history = "{% if messages | length > 2 %}again {% endif %}" + TEMPLATE
    assert digest(history) != digest(TEMPLATE)
