"""A file appears whole, or the one that was there stays."""

from pathlib import Path

import pytest

from harness.core.atomic_files import move_whole, whole_file


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with whole_file(path) as stream:
        stream.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]


def test_a_failure_leaves_what_was_there_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def write_half() -> None:
        with whole_file(path) as stream:
            stream.write(b"half")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_half()
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("page.html", "before")]


def test_a_folder_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "no" / "page.html"):
        pass


def test_a_file_that_is_moved_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    draft, target = tmp_path / "drafts" / "trace", tmp_path / "trace"
    draft.write_text("new")
    target.write_text("old")
    move_whole(draft, target)
    assert (target.read_text(), draft.exists()) == ("new", False)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["drafts", "trace"]
