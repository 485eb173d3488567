"""Collating groups into tensors and cutting rows out of them, on data made by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from harness.core.types import Completion, GroupData, Prompt
from harness.grpo.batch import collate

PAD = 9


def group(prompt_ids, *responses):
    """Return a group; the log-prob of token t is -t / 10."""
    completions = tuple(
        Completion(np.array(ids, dtype=np.int64), -np.array(ids, dtype=np.float32) / 10, "text", "stop")
        for ids in responses
    )
    return GroupData(Prompt("prompt", "truth"), np.array(prompt_ids, dtype=np.int64), completions)


def batch_by_hand():
    """Two prompts of 3 and 1 tokens with 2 and 3 responses, one of them empty."""
    groups = [group([1, 2, 3], [4, 5], [6]), group([7], [1, 2, 3, 4], [], [5])]
    advantages = torch.tensor([0.5, -0.5, 1.0, 0.0, -1.0])
    return collate(groups, [(1.0, 0.0), (2.0, 1.0, 0.0)], PAD, advantages)


def test_collate_by_hand():
    batch = batch_by_hand()
    assert batch.prompt_ids_PL.tolist() == [[1, 2, 3], [7, PAD, PAD]]
    assert batch.prompt_lengths_P.tolist() == [3, 1]
    assert batch.prompt_index_B.tolist() == [0, 0, 1, 1, 1]
    assert batch.response_ids_BT.tolist() == [
        [4, 5, PAD, PAD],
        [6, PAD, PAD, PAD],
        [1, 2, 3, 4],
        [PAD, PAD, PAD, PAD],
        [5, PAD, PAD, PAD],
    ]
    assert batch.response_mask_BT.int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0] * 4, [1, 0, 0, 0]]
    assert batch.engine_log_probs_BT[0].tolist() == pytest.approx([-0.4, -0.5, 0.0, 0.0])
    assert batch.engine_log_probs_BT[3].tolist() == [0.0] * 4
    assert batch.rewards_B.tolist() == [1.0, 0.0, 2.0, 1.0, 0.0]
    assert batch.advantages_B1.tolist() == [[0.5], [-0.5], [1.0], [0.0], [-1.0]]
    assert batch.num_rollouts == 5
    types = {field.name: getattr(getattr(batch, field.name), "dtype", None) for field in fields(batch)}
    assert types == {
        **dict.fromkeys(("prompt_ids_PL", "prompt_lengths_P", "response_ids_BT", "prompt_index_B"), torch.int64),
        "response_mask_BT": torch.bool,
        **dict.fromkeys(("engine_log_probs_BT", "rewards_B", "advantages_B1"), torch.float32),
        **dict.fromkeys(("old_log_probs_BT", "reference_log_probs_BT"), None),
    }


def by_row(batch):
    """What each row holds, without padding."""
    rows = []
    for row, place in enumerate(batch.prompt_index_B):
        prompt = batch.prompt_ids_PL[place, : batch.prompt_lengths_P[place]].tolist()
        mask = batch.response_mask_BT[row]
        tokens = (
            batch.response_ids_BT,
            batch.engine_log_probs_BT,
            batch.old_log_probs_BT,
            batch.reference_log_probs_BT,
        )
        numbers = batch.rewards_B[row].item(), batch.advantages_B1[row].item()
        rows.append((prompt, [tensor[row][mask].tolist() for tensor in tokens], numbers))
    return rows


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True))
def test_rows_come_in_the_order_asked_for_with_the_prompts_they_need_and_both_widths_trimmed(rows):
    batch, numbered = batch_by_hand(), torch.arange(20.0).reshape(5, 4)
    batch = replace(batch, old_log_probs_BT=numbered, reference_log_probs_BT=-numbered)
    whole = by_row(batch)
    cut = batch.rows(rows)
    assert by_row(cut) == by_row(batch.rows(torch.tensor(rows))) == [whole[row] for row in rows]
    prompts = {tuple(whole[row][0]) for row in rows}
    assert cut.prompt_ids_PL.shape == (len(prompts), max(map(len, prompts)))
    widest = max(1, *(len(whole[row][1][0]) for row in rows), 0)  # only empty responses keep one column
    assert {getattr(cut, field.name).shape for field in fields(cut) if field.name.endswith("_BT")} == {
        (len(rows), widest)
    }


def test_to_moves_every_tensor():
    batch = replace(batch_by_hand(), old_log_probs_BT=torch.zeros(5, 4)).to("meta")
    devices = {f.name: getattr(batch, f.name) for f in fields(batch)}
    assert devices.pop("reference_log_probs_BT") is None
    assert {tensor.device.type for tensor in devices.values()} == {"meta"}
    assert batch.old_log_probs_BT.shape == (5, 4)


def test_all_responses_empty():
    batch = collate([group([1], [], [])], [(0.0, 0.0)], PAD, torch.zeros(2))
    assert batch.response_ids_BT.tolist() == [[PAD], [PAD]]
    assert int(batch.response_mask_BT.sum()) == 0


UNEVEN = Completion(np.array([1, 2]), np.zeros(1, dtype=np.float32), "text", "stop")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: collate([], [], PAD, torch.zeros(0)), "0 groups hold no rollout"),
        (lambda: collate([group([1], [2], [3])], [(1.0,)], PAD, torch.zeros(2)), r"\[2\] rollouts but \[1\] rewards"),
        (lambda: collate([group([1], [2])], [(1.0,)], PAD, torch.zeros(3)), r"1 rollouts but advantages \(3,\)"),
        (
            lambda: collate([GroupData(Prompt("p", "t"), np.array([1]), (UNEVEN,))], [(1.0,)], PAD, torch.zeros(1)),
            "rollout 0 has 2 tokens and 1 log-probs",
        ),
        (lambda: batch_by_hand().rows([]), "no row"),
        (
            lambda: replace(batch_by_hand(), old_log_probs_BT=torch.zeros(5, 3)),
            r"old_log_probs_BT has shape \(5, 3\), expected \(5, 4\)",
        ),
    ],
)
def test_bad_input_is_refused(ask, message):
    with pytest.raises(UserError, match=message):
        ask()
