"""Weights through files."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from harness.core.errors import RunStopped, UserError
from harness.transports.disk import DiskReceiver, DiskSender
from harness.transports.protocol import TransportOptions


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_of_versions_that_are_not_needed_and_of_a_closed_sender_are_removed_and_no_others(tmp_path):
    folder = tmp_path / "new" / "weights"
    sender = DiskSender(TransportOptions(folder=str(folder)))
    (folder / "mine.txt").write_text("keep")
    for version in range(4):
        sender.publish_weights({"w": torch.full((2,), float(version))}, version, frozenset({version - 1, version - 2}))
    assert files(folder) == ["mine.txt", *(f"weights-{version}.safetensors" for version in (1, 2, 3))]
    sender.close()
    assert files(folder) == ["mine.txt"]


def test_a_file_is_plain_safetensors(tmp_path):
    weights = {"tied": torch.ones(2, requires_grad=True), "turned": torch.arange(6.0).view(2, 3).T}
    weights["again"] = weights["tied"]
    sender = DiskSender(TransportOptions(folder=str(tmp_path)))
    sender.publish_weights(weights, 3, frozenset())
    stored = load_file(tmp_path / "weights-3.safetensors")
    assert {name: tensor.tolist() for name, tensor in stored.items()} == {
        "tied": [1, 1],
        "again": [1, 1],
        "turned": [[0, 3], [1, 4], [2, 5]],
    }


def test_a_file_is_renamed_into_its_place_so_that_nobody_reads_half_of_it(tmp_path):
    (tmp_path / "weights-0.safetensors").write_text("left by an earlier run")
    open_elsewhere = tmp_path / "the same file"
    open_elsewhere.hardlink_to(tmp_path / "weights-0.safetensors")
    DiskSender(TransportOptions(folder=str(tmp_path))).publish_weights({"w": torch.ones(2)}, 0, frozenset())
    assert open_elsewhere.read_text() == "left by an earlier run"  # another file has its name now
    assert files(tmp_path) == ["the same file", "weights-0.safetensors"]


def test_a_missing_file_stops_the_run(tmp_path):
    sender = DiskSender(TransportOptions(folder=str(tmp_path)))
    old = sender.publish_weights({"w": torch.ones(2)}, 0, frozenset())
    sender.publish_weights({"w": torch.ones(2)}, 1, frozenset())
    with pytest.raises(RunStopped, match=r"the weights of version 0 are not on disk: no file .*weights-0\.safetensors"):
        DiskReceiver(TransportOptions()).receive(old)


def test_a_disk_or_folder_that_cannot_be_written_is_named_and_leaves_no_half_file(tmp_path):
    sender = DiskSender(TransportOptions(folder=str(tmp_path / "weights")))
    (tmp_path / "weights").rmdir()
    with pytest.raises(UserError, match="cannot write weights to disk") as refused:
        sender.publish_weights({"w": torch.ones(2)}, 0, frozenset())
    assert refused.value.where == str(tmp_path / "weights" / "weights-0.safetensors")
    assert files(tmp_path) == []
    (tmp_path / "weights-0.safetensors").mkdir()
    with pytest.raises(UserError, match="cannot write weights to disk"):  # written, and cannot have its name
        DiskSender(TransportOptions(folder=str(tmp_path))).publish_weights({"w": torch.ones(2)}, 0, frozenset())
    assert files(tmp_path) == ["weights-0.safetensors"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as refused:
        DiskSender(TransportOptions(folder=str(tmp_path / "file" / "below")))
    assert refused.value.where == "transport.folder"
