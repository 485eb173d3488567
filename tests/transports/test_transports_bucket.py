"""Many tensors in one flat buffer."""

from __future__ import annotations

import pickle

import pytest
import torch

from harness.transports.bucket import BucketLayout, Entry, copy_weights

WEIGHTS = {
    "a": torch.arange(3, dtype=torch.float32),  # 12 bytes
    "b": torch.arange(40, dtype=torch.bfloat16).view(5, 8),  # 80 bytes
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(7, dtype=torch.int64),  # 8 bytes
    "turned": torch.arange(6.0).view(2, 3).T,  # 24 bytes
    "flag": torch.tensor([True, False, True]),  # 3 bytes
}


def test_every_tensor_starts_on_a_multiple_of_64_bytes():
    # a ends at 12; b starts at 64, ends at 144; empty at 192; scalar at 192, ends at 200; turned at 256, ends at 280;
    # flag at 320, ends at 323
    assert BucketLayout.of(WEIGHTS) == BucketLayout(
        (
            Entry("a", torch.float32, (3,), 0, 12),
            Entry("b", torch.bfloat16, (5, 8), 64, 80),
            Entry("empty", torch.float32, (0, 4), 192, 0),
            Entry("scalar", torch.int64, (), 192, 8),
            Entry("turned", torch.float32, (3, 2), 256, 24),
            Entry("flag", torch.bool, (3,), 320, 3),
        ),
        323,
    )


def test_payload_is_the_tensors_without_the_gaps():
    assert BucketLayout.of(WEIGHTS).payload_bytes == 12 + 80 + 0 + 8 + 24 + 3


def test_views_are_the_buffer_itself():
    layout = BucketLayout.of(WEIGHTS)
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    views = layout.views(buffer)
    copy_weights(WEIGHTS, views)
    for name, tensor in WEIGHTS.items():
        assert views[name].dtype == tensor.dtype
        assert torch.equal(views[name], tensor)
    assert {view.untyped_storage().data_ptr() for view in views.values()} == {buffer.data_ptr()}
    buffer[192] = 9
    assert views["scalar"].item() == 9


def test_parameters_are_copied_without_their_gradients():
    weights = {"w": torch.ones(2, requires_grad=True)}
    target = {"w": torch.zeros(2)}
    copy_weights(weights, target)
    assert not target["w"].requires_grad
    assert target["w"].tolist() == [1, 1]


def test_a_layout_crosses_processes():
    layout = BucketLayout.of(WEIGHTS)
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_no_weights_are_refused():
    with pytest.raises(ValueError, match="no weights to publish"):
        BucketLayout.of({})
