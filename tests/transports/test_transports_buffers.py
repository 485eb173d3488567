"""Buffers for published versions: many tensors in one, reused when nobody needs the version, and never sooner."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch

from harness.models.flat_layout import BucketLayout, Entry, copy_weights
from harness.transports.buffers import BufferPool, CopiedWeights

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
    assert BucketLayout.of(WEIGHTS).payload_bytes == 12 + 80 + 0 + 8 + 24 + 3  # without the gaps
    assert pickle.loads(pickle.dumps(BucketLayout.of(WEIGHTS))) == BucketLayout.of(WEIGHTS)


def test_views_are_the_buffer_itself():
    layout = BucketLayout.of(WEIGHTS)
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    views = layout.views(buffer)
    copy_weights(WEIGHTS | {"a": WEIGHTS["a"].clone().requires_grad_()}, views)
    assert not views["a"].requires_grad
    for name, tensor in WEIGHTS.items():
        assert views[name].dtype == tensor.dtype
        assert torch.equal(views[name], tensor)
    assert {view.untyped_storage().data_ptr() for view in views.values()} == {buffer.data_ptr()}
    buffer[192] = 9
    assert views["scalar"].item() == 9


def test_no_weights_are_refused():
    with pytest.raises(ValueError, match="no weights to publish"):
        BucketLayout.of({})


class Shelf:
    """A buffer that keeps a diary of what happens to all buffers."""

    def __init__(self, number, diary, layout):
        self.number, self.diary, self.layout, self.views = number, diary, layout, {}
        diary.append(f"make {number}")

    def fill(self, weights, version):
        self.diary.append(f"fill {self.number} with {version}")

    def close(self):
        self.diary.append(f"close {self.number}")


def shelves(**options):
    diary, numbers = [], itertools.count()
    return BufferPool(lambda weights, layout: Shelf(next(numbers), diary, layout), **options), diary


SMALL, LARGE = {"w": torch.zeros(2)}, {"w": torch.zeros(3)}


def test_a_buffer_is_reused_once_its_version_is_not_needed():
    pool, diary = shelves()
    pool.put(SMALL, 0, frozenset())
    pool.put(SMALL, 1, frozenset({0}))
    pool.put(SMALL, 2, frozenset({1}))
    pool.put(SMALL, 3, frozenset({1, 2}))
    pool.put(SMALL, 4, frozenset({3}))
    assert diary == [
        *("make 0", "fill 0 with 0"),
        *("make 1", "fill 1 with 1"),
        "fill 0 with 2",
        *("make 2", "fill 2 with 3"),
        "fill 0 with 4",  # the buffers of 1 and 2 are free; the one freed last is the warmest
    ]
    assert len(pool) == 3


def test_buffers_made_at_first_are_filled_at_once():
    pool, diary = shelves(at_first=3)
    pool.put(SMALL, 0, frozenset())
    pool.put(SMALL, 1, frozenset({0}))
    pool.put(SMALL, 2, frozenset({0, 1}))
    assert diary == [
        *("make 0", "fill 0 with 0", "make 1", "fill 1 with 0", "make 2", "fill 2 with 0"),
        "fill 2 with 1",
        "fill 1 with 2",
    ]


def test_buffers_of_another_layout_of_a_version_given_up_and_of_a_closed_pool_are_closed():
    pool, diary = shelves()
    pool.put(SMALL, 0, frozenset())
    pool.put(SMALL, 1, frozenset({0}))
    diary.clear()
    pool.put(LARGE, 2, frozenset({1}))
    assert diary == ["close 0", "make 2", "fill 2 with 2"]
    assert len(pool) == 2
    pool.drop(2)  # it will never be complete, and takes its buffer along
    pool.put(LARGE, 2, frozenset({1}))
    assert diary[3:] == ["close 2", "make 3", "fill 3 with 2"]
    assert [version in pool for version in (0, 1, 2)] == [False, True, True]
    with pytest.raises(ValueError, match=r"version 0 is not held; versions \[1, 2\] are"):
        pool[0]
    with pytest.raises(ValueError, match="version 2 is published already"):
        pool.put(LARGE, 2, frozenset())
    pool.put(LARGE, 3, frozenset({2}))
    pool.put(LARGE, 4, frozenset())
    diary.clear()
    pool.close()
    assert sorted(diary) == ["close 3", "close 4"]  # one is held, one is free
    assert len(pool) == 0


def test_a_copy_moves_as_one_buffer():
    weights = {"a": torch.tensor([[1.0], [2.0]]), "none": torch.empty(0), "b": torch.tensor([3.0, 4.0])}
    copied = CopiedWeights(weights, BucketLayout.of(weights))
    copied.fill(weights, 0)
    weights["a"].zero_()
    # flat: a takes bytes 0 to 8, b starts at 64 and takes 8
    assert tuple(copied.tensor.shape) == (72,)
    assert {name: tensor.tolist() for name, tensor in copied.views.items()} == {
        "a": [[1.0], [2.0]],
        "none": [],
        "b": [3.0, 4.0],
    }
