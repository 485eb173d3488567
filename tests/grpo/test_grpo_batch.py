"""Collating groups into tensors and cutting rows out of them, on data made by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from harness.core.errors import UserError
from harness.core.types import Completion, GroupData, Prompt
from harness.grpo.batch import RolloutBatch, collate

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
    assert (batch.num_rollouts, len(batch.prompt_ids_PL), int(batch.response_mask_BT.sum())) == (
        5,
        2,
        8,
    )  # 2 + 1 + 4 + 0 + 1
    assert (batch.old_log_probs_BT, batch.reference_log_probs_BT) == (None, None)


def test_dtypes():
    batch = batch_by_hand()
    types = {name: getattr(batch, name).dtype for name in [f.name for f in fields(batch)[:8]]}
    assert types == {
        "prompt_ids_PL": torch.int64,
        "prompt_lengths_P": torch.int64,
        "response_ids_BT": torch.int64,
        "response_mask_BT": torch.bool,
        "prompt_index_B": torch.int64,
        "engine_log_probs_BT": torch.float32,
        "rewards_B": torch.float32,
        "advantages_B1": torch.float32,
    }


def test_rows_keep_only_the_prompts_they_need_and_trim_both_widths():
    cut = batch_by_hand().rows([4, 3])
    assert cut.prompt_ids_PL.tolist() == [[7]]
    assert cut.prompt_lengths_P.tolist() == [1]
    assert cut.prompt_index_B.tolist() == [0, 0]
    assert cut.response_ids_BT.tolist() == [[5], [PAD]]
    assert cut.response_mask_BT.tolist() == [[True], [False]]
    assert cut.engine_log_probs_BT.tolist() == [pytest.approx([-0.5]), [0.0]]
    assert cut.rewards_B.tolist() == [0.0, 1.0]
    assert cut.advantages_B1.tolist() == [[-1.0], [0.0]]


def test_rows_come_in_the_order_asked_for_across_prompts():
    cut = batch_by_hand().rows(torch.tensor([4, 0, 1]))
    assert cut.prompt_ids_PL.tolist() == [[1, 2, 3], [7, PAD, PAD]]
    assert cut.prompt_index_B.tolist() == [1, 0, 0]
    assert cut.response_ids_BT.tolist() == [[5, PAD], [4, 5], [6, PAD]]


def test_rows_of_only_empty_responses_keep_one_column():
    cut = batch_by_hand().rows([3])
    assert cut.response_ids_BT.tolist() == [[PAD]]
    assert int(cut.response_mask_BT.sum()) == 0


def test_rows_take_the_optional_log_probs_along():
    batch = batch_by_hand()
    numbered = torch.arange(20.0).reshape(5, 4)
    cut = replace(batch, old_log_probs_BT=numbered, reference_log_probs_BT=-numbered).rows([1, 0])
    assert cut.old_log_probs_BT.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert cut.reference_log_probs_BT.tolist() == [[-4.0, -5.0], [-0.0, -1.0]]


def test_every_token_is_in_exactly_one_part_of_a_split():
    batch = batch_by_hand()
    parts = [batch.rows(rows) for rows in ([0, 3], [1], [2, 4])]
    assert [int(part.response_mask_BT.sum()) for part in parts] == [2, 1, 5]
    tokens = sorted(token for part in parts for token in part.response_ids_BT[part.response_mask_BT].tolist())
    assert tokens == sorted(batch.response_ids_BT[batch.response_mask_BT].tolist())


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


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="0 groups hold no rollout"):
        collate([], [], PAD, torch.zeros(0))
    with pytest.raises(UserError, match=r"the groups have \[2\] rollouts but \[1\] rewards"):
        collate([group([1], [2], [3])], [(1.0,)], PAD, torch.zeros(2))
    with pytest.raises(UserError, match=r"2 rollouts but advantages \(3,\)"):
        collate([group([1], [2], [3])], [(1.0, 0.0)], PAD, torch.zeros(3))
    uneven = Completion(np.array([1, 2]), np.zeros(1, dtype=np.float32), "text", "stop")
    with pytest.raises(UserError, match="rollout 0 has 2 tokens and 1 log-probs"):
        collate([GroupData(Prompt("p", "t"), np.array([1]), (uneven,))], [(1.0,)], PAD, torch.zeros(1))
    with pytest.raises(UserError, match="asked for no row"):
        batch_by_hand().rows([])
    with pytest.raises(UserError, match=r"old_log_probs_BT has shape \(5, 3\), expected \(5, 4\)"):
        replace(batch_by_hand(), old_log_probs_BT=torch.zeros(5, 3))


def test_the_fields_in_order():
    assert [field.name for field in fields(RolloutBatch)] == [
        "prompt_ids_PL",
        "prompt_lengths_P",
        "response_ids_BT",
        "response_mask_BT",
        "prompt_index_B",
        "engine_log_probs_BT",
        "rewards_B",
        "advantages_B1",
        "old_log_probs_BT",
        "reference_log_probs_BT",
    ]
