"""Prompts through a chat template: the very token ids of ``apply_chat_template``, and what has none is refused."""

from __future__ import annotations

from datetime import date

import pytest
from tokenizers.processors import TemplateProcessing

from harness.core.errors import UserError
from harness.models.chat import added_start, asks_date, chat_encoder, on_date, template_digest, text_encoder
from harness.models.tokenizer import EOS_TOKEN, train_tokenizer

TEMPLATE = (
    "{% for turn in messages %}[{{ turn.role }} says {{ turn.content }}]{% endfor %}"
    "{% if add_generation_prompt %}[model says{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + TEMPLATE


@pytest.fixture
def tokenizer():
    return train_tokenizer(["user says red apple, model says"], 300)


def test_no_start_of_sequence_is_doubled(tokenizer) -> None:
    """A tokenizer that puts a token in front of every text, and a template that writes the same one."""
    start = adds_start(tokenizer).bos_token_id
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE
    turns = [{"role": "user", "content": "red apple"}]
    written = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    token_ids = chat_encoder(tokenizer)("red apple")
    assert token_ids.count(start) == 1
    assert tokenizer.encode(written).count(start) == 2  # what encoding the text again would have made of it
    assert token_ids == tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    for template in (tokenizer.chat_template, TEMPLATE):  # nor is one that a turn begins with
        tokenizer.chat_template = template
        encode = chat_encoder(tokenizer)
        assert encode(f"{EOS_TOKEN}{EOS_TOKEN}red") == encode("red") == encode((("user", f"{EOS_TOKEN}red"),))


def test_a_tokenizer_without_a_template_or_with_one_that_refuses_or_drops_a_system_turn(tokenizer) -> None:
    with pytest.raises(UserError) as caught:
        chat_encoder(tokenizer)
    assert caught.value.where == "task.chat_template"
    tokenizer.chat_template = NO_SYSTEM
    assert chat_encoder(tokenizer)("red") == tokenizer.encode("[user says red][model says")
    for template, what in (
        (NO_SYSTEM, "no system turn"),
        ("{{ messages[-1].content }}", "drops the turn of the system"),
    ):
        tokenizer.chat_template = template
        with pytest.raises(UserError, match=what) as caught:
            chat_encoder(tokenizer, "Be brief.")
        assert caught.value.where == "task.system_prompt"


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
    refused = [digest("{{ raise_exception('" + why + "') }}") for why in ("no", "not so")]  # in words of a version
    assert refused[0] == refused[1]
    assert digest("{% if messages | length > 2 %}again {% endif %}" + TEMPLATE) != digest(TEMPLATE)


def adds_start(tokenizer):
    """Have a tokenizer put its start-of-sequence token in front of every text, as Llama's do."""
    tokenizer.bos_token = EOS_TOKEN  # any token there is; its name does not matter
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{EOS_TOKEN} $A", special_tokens=[(EOS_TOKEN, tokenizer.bos_token_id)]
    )
    tokenizer.split_special_tokens = False
    return tokenizer


def test_a_text_gets_one_start_of_sequence_where_the_tokenizer_adds_it(tokenizer) -> None:
    tokenizer.split_special_tokens = False
    text = "red apple" + EOS_TOKEN + "red"
    alone = tokenizer.encode(text)
    tokenizer.bos_token = EOS_TOKEN
    assert added_start(tokenizer) is None
    for in_front in (0, 1, 3):
        assert text_encoder(tokenizer)(EOS_TOKEN * in_front + text) == [tokenizer.bos_token_id] * in_front + alone
    start = adds_start(tokenizer).bos_token_id
    assert added_start(tokenizer) == start
    for in_front in (0, 1, 3):
        assert text_encoder(tokenizer)(EOS_TOKEN * in_front + text) == [start, *alone]
    assert text_encoder(tokenizer)("") == [start]


def test_turns_are_asked_as_they_are_and_a_text_as_its_users(tokenizer) -> None:
    tokenizer.chat_template = TEMPLATE
    encode = chat_encoder(tokenizer)
    assert tokenizer.decode(encode("red apple")) == "[user says red apple][model says"
    assert all(type(token_id) is int for token_id in encode("red apple"))
    with_system = chat_encoder(tokenizer, "Be brief.")("red apple")
    assert tokenizer.decode(with_system) == "[system says Be brief.][user says red apple][model says"
    turns = (("system", "Be brief."), ("user", "red"), ("assistant", "apple"), ("user", "says"))
    chat = [{"role": role, "content": content} for role, content in turns]
    assert encode(turns) == tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    with pytest.raises(UserError, match="turns of a chat"):
        text_encoder(tokenizer)(turns)


def test_arguments_reach_the_template_and_one_that_it_lacks_is_refused(tokenizer) -> None:
    tokenizer.chat_template = TEMPLATE + "{% if enable_thinking is false %} red{% endif %}"
    off, on = (chat_encoder(tokenizer, arguments={"enable_thinking": value})("red") for value in (False, True))
    assert tokenizer.decode(off) == "[user says red][model says red"
    assert on == chat_encoder(tokenizer)("red")
    with pytest.raises(UserError, match="no argument 'enable_thinkin'") as caught:
        chat_encoder(tokenizer, arguments={"enable_thinkin": False})
    assert caught.value.where == "task.chat_template_kwargs"


def test_a_template_that_takes_contents_in_parts_gets_them(tokenizer) -> None:
    turns = (("system", "Be brief."), ("user", "red"))
    for whole in ("{% for part in turn.content %}{{ part.text }}{% endfor %}", "{{ turn.content[0]['text'] }}"):
        tokenizer.chat_template = TEMPLATE.replace("{{ turn.content }}", whole)
        assert tokenizer.decode(chat_encoder(tokenizer)(turns)) == "[system says Be brief.][user says red][model says"


LAST_TWO = "{% for turn in messages[-2:] %}{{ turn.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "asked", "what"),
    [
        ("[model says", "red", "drops the question"),
        ("{{ messages[0].role }}", "red", "drops the question"),
        ("{{ messages[0].content }}", (("user", "a"), ("user", "b")), "drops the question"),
        ("{{ messages[0].content | length }}", "red", "drops the question"),
        (LAST_TWO, (("system", "a"), ("user", "b"), ("user", "c")), "drops the turn of the system"),
        ("{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}" + TEMPLATE,
         (("user", "a"), ("user", "b")), "a chat of user, user: one turn"),
        ("{{ messages[0].content + 1 }}", "red", "cannot write a chat"),
        ("{{ nothing.there }}", "red", "cannot write a chat"),
        ("{% if %}", "red", "cannot write a chat"),
    ],
)  # fmt: skip
def test_a_template_that_drops_a_part_or_has_errors_is_one_error(tokenizer, template: str, asked, what: str) -> None:
    tokenizer.chat_template = template
    with pytest.raises(UserError) as caught:
        chat_encoder(tokenizer)(asked)
    assert what in caught.value.what
    assert caught.value.where == "task.chat_template"
