"""A checkpoint counts when all of it is on the disk, and a damaged one is refused by name for the one before it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from harness.core.checkpoints import MANIFEST, Checkpoint, begin, commit, newest_whole, write_file
from harness.core.errors import UserError

NAMES = ("learner_rank_0.safetensors", "learner_rank_1.safetensors", "learner.json", "loop.json")


def content(step: int, name: str) -> bytes:
    """A few hundred bytes that belong to this file of this step alone; two files of a step have equal sizes."""
    length = 700 if name.startswith("learner_rank") else 150 + 10 * len(name)
    return random.Random(f"{step} {name}").randbytes(length)


def save(checkpoints: Path, step: int, keep: int = 5) -> Checkpoint:
    draft = begin(checkpoints, step)
    return commit(draft, [write_file(draft, name, [content(step, name)]) for name in NAMES], keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read_and_the_newest_few_stay(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "none") == (None, ())
    for step in (2, 4, 11):
        made = save(tmp_path, step, keep=2)
    found, refused = newest_whole(tmp_path)
    assert (found, refused) == (made, ())
    assert names(tmp_path) == ["latest", "step_11", "step_4"]
    assert names(made.folder) == sorted((*NAMES, MANIFEST))
    for name in NAMES:
        assert (made.folder / name).read_bytes() == content(11, name)
        file = made.files[name]
        digest = f"xxh3_128:{xxhash.xxh3_128_hexdigest(content(11, name))}"
        assert (file.num_bytes, file.checksum) == (len(content(11, name)), digest)


def test_chunks_are_one_file_and_no_file_is_written_twice(tmp_path: Path) -> None:
    whole = random.Random(0).randbytes(20_000_000)  # more than is written at a time
    file = write_file(tmp_path, "a", [whole[:5], memoryview(whole)[5:17_000_000], b"", whole[17_000_000:]])
    assert (tmp_path / "a").read_bytes() == whole
    assert file.checksum == f"xxh3_128:{xxhash.xxh3_128_hexdigest(whole)}"
    with pytest.raises(FileExistsError):
        write_file(tmp_path, "a", [b"x"])


def test_a_commit_wants_the_files_that_were_written(tmp_path: Path) -> None:
    draft = begin(tmp_path, 3)
    written = [write_file(draft, name, [b"abc"]) for name in ("a", "b")]
    (draft / "c").touch()
    with pytest.raises(UserError, match="'c': 0"):
        commit(draft, written, 1)
    (draft / "c").unlink()
    (draft / "b").write_bytes(b"ab")
    with pytest.raises(UserError, match="'b': 2"):
        commit(draft, written, 1)
    assert newest_whole(tmp_path) == (None, ())


def flip(rng: random.Random, one: Path, other: Path) -> list[str]:
    raw = bytearray(one.read_bytes())
    raw[rng.randrange(len(raw))] ^= rng.randrange(1, 256)
    one.write_bytes(raw)
    return [one.name]


def truncate(rng: random.Random, one: Path, other: Path) -> list[str]:
    os.truncate(one, rng.randrange(one.stat().st_size))
    return [one.name]


def swap(rng: random.Random, one: Path, other: Path) -> list[str]:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return [one.name, other.name]


def from_another_checkpoint(rng: random.Random, one: Path, other: Path) -> list[str]:
    shutil.copy(one.parent.with_name("step_4") / one.name, one)
    return [one.name]


def lose(rng: random.Random, one: Path, other: Path) -> list[str]:
    one.unlink()
    return [one.name]


def add(rng: random.Random, one: Path, other: Path) -> list[str]:
    extra = one.with_name(f"{one.name}.bak")
    shutil.copy(one, extra)
    return [extra.name]


DAMAGES = (*[flip] * 3, *[truncate] * 2, swap, from_another_checkpoint, lose, add)


def test_each_of_200_damages_is_refused_by_name_and_the_one_before_is_taken(tmp_path: Path) -> None:
    rng = random.Random(20)
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    before = [save(whole, step) for step in (2, 4, 6)][1]
    files, hit = (*NAMES, MANIFEST), set()
    for number in range(200):
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(whole, damaged)
        damage, (one, other) = DAMAGES[number % len(DAMAGES)], rng.sample(files, 2)
        culprits = damage(rng, damaged / "step_6" / one, damaged / "step_6" / other)
        hit.add((damage, one))
        found, refused = newest_whole(damaged)
        assert found is not None
        assert (found.step, found.files) == (4, before.files), (number, damage)
        assert [each.checkpoint for each in refused] == ["step_6"], (number, damage)
        assert refused[0].file in culprits, (number, damage, str(refused[0]))
    assert len(hit) == len(set(DAMAGES)) * len(files)  # each damage to each file


def test_a_damaged_pointer_is_refused_by_name_and_the_newest_is_taken(tmp_path: Path) -> None:
    rng = random.Random(3)
    for step in (2, 12):
        made = save(tmp_path, step)
    pointer = tmp_path / "latest"
    right = pointer.read_bytes()
    for damage in (flip, truncate, lose) * 20:
        pointer.write_bytes(right)
        damage(rng, pointer, pointer)
        found, refused = newest_whole(tmp_path)
        assert found == made
        assert [(each.checkpoint, each.file) for each in refused] == [("", "latest")]
    pointer.write_bytes(right)
    shutil.rmtree(tmp_path / "step_12")
    found, (refusal,) = newest_whole(tmp_path)
    assert found is not None
    assert (found.step, refusal.file) == (2, "latest")


def test_where_all_are_damaged_each_is_named(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        flip(random.Random(step), save(tmp_path, step).folder / "loop.json", tmp_path)
    found, refused = newest_whole(tmp_path)
    assert found is None
    assert [(each.checkpoint, each.file) for each in refused] == [(f"step_{n}", "loop.json") for n in (3, 2, 1)]


def test_a_history_that_was_left_is_removed_with_the_next_save(tmp_path: Path) -> None:
    """After a resume from step 4, since step 6 is damaged, step 5 counts and step 6 is gone; step 4 is replaced too."""
    for step in (2, 4, 6):
        save(tmp_path, step)
    (tmp_path / "step_6" / "loop.json").unlink()
    (tmp_path / "step_4" / "loop.json").write_bytes(b"")
    save(tmp_path, 4)
    assert names(tmp_path) == ["latest", "step_2", "step_4"]
    found, refused = newest_whole(tmp_path)
    assert found is not None
    assert (found.step, refused) == (4, ())


class Killed(Exception):
    """In place of a kill."""


def test_a_save_that_ends_at_any_of_its_writes_leaves_the_former_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that makes something last is once the last one of its process; ``latest`` decides what counts."""
    calls = {"left": 10**9}
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def counted(*arguments: object, real: Callable[..., object] = real) -> object:
            if calls["left"] == 0:
                raise Killed
            calls["left"] -= 1
            return real(*arguments)

        monkeypatch.setattr(os, name, counted)
    steps = []
    for last in range(50):
        checkpoints = tmp_path / str(last)
        calls["left"] = 10**9
        former = save(checkpoints, 8, keep=2)
        calls["left"] = last
        try:
            save(checkpoints, 9, keep=1)
        except Killed:
            pass
        else:
            break
        calls["left"] = 10**9
        found, refused = newest_whole(checkpoints)
        assert found is not None
        assert refused == ()
        steps.append(found.step)
        assert found.step == 9 or found == former
        assert save(checkpoints, 10, keep=1).step == 10
        assert names(checkpoints) == ["latest", "step_10"]
    # four files, the manifest, two folders, their rename, the pointer: nothing counts until that is renamed
    assert steps == [8] * 10 + [9] * 2
