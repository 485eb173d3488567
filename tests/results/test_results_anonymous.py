"""Nothing saved names a person, a host or a folder outside the project."""

from __future__ import annotations

import pytest

from harness.results import Scrubber
from harness.results.anonymous import safe_name

ANN = Scrubber(home="/home/ann", cwd="/home/ann/harness", host="annbox.example.org", user="ann")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no such file: /home/ann/harness/scenarios/x.yaml", "no such file: ./scenarios/x.yaml"),
        ("in /home/ann/harness", "in ."),
        ("'/home/ann/models/qwen' has no weights", "'~/models/qwen' has no weights"),
        ("/home/annabel/x is not ann's", "<path>/x is not <user>'s"),
        ('File "/usr/lib/python3.11/asyncio/tasks.py", line 3', 'File "<path>/tasks.py", line 3'),
        ("path=/data/sets/math.jsonl,", "path=<path>/math.jsonl,"),
        ("lost annbox.example.org and annbox", "lost <host> and <host>"),
        ("node (IP: 192.0.2.2, ID: 79e6) at 10.0.0.12:6379.", "node (IP: <address>, ID: 79e6) at <address>:6379."),
        ("127.0.0.1:8265, 0.0.0.0, 1.2.3 and v1.2.3.4 stay", "127.0.0.1:8265, 0.0.0.0, 1.2.3 and v1.2.3.4 stay"),
        ("ann's annual plan", "<user>'s annual plan"),
        ("https://example.org/a/b stays", "https://example.org/a/b stays"),
        ("reward/total at 3 tokens/s, and/or 1/2", "reward/total at 3 tokens/s, and/or 1/2"),
        ("./results/a and ~/x/y stay", "./results/a and ~/x/y stay"),
    ],
)
def test_text_loses_paths_and_names(text: str, expected: str) -> None:
    assert ANN.text(text) == expected


def test_paths_alone_keep_words_that_look_like_the_user() -> None:
    # a scenario must stay the same scenario, whatever its user is called
    assert Scrubber("/home/small", "/work", "box", "small").paths("preset: small\npath: /home/small/m\n") == (
        "preset: small\npath: ~/m\n"
    )


def test_root_and_localhost_name_nobody() -> None:
    scrubber = Scrubber(home="/root", cwd="/", host="localhost", user="root")
    assert (
        scrubber.text("the root of the seeds, at localhost, in /root/x")
        == "the root of the seeds, at localhost, in ~/x"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k4,seed=1", "k4,seed=1"),
        ("task.train=data/my set.jsonl", "task.train=data-my-set.jsonl"),
        ("../..", "..-.."),
        ("..", "_.."),
        ("", "_"),
        ("größe", "gr-e"),
    ],
)
def test_names_become_one_folder_name(name: str, expected: str) -> None:
    assert safe_name(name) == expected
