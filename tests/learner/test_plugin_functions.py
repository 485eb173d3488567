"""A user's own loss and advantage: how they are called, what they may return, and what is said of those that cannot."""

import math
import sys
from pathlib import Path

import pytest
import torch

from harness.core.errors import UserError
from harness.core.plugins import plugin_digest
from harness.grpo.aggregate import loss_denominator
from harness.grpo.loss import surrogate_loss
from harness.grpo.tokens import TokenBatch
from harness.learner.plugins import PluginAdvantage, PluginLoss
from harness.settings.loss import LossSettings

EXAMPLE = "docs.examples.own_loss.losses"
CISPO, RLOO = f"{EXAMPLE}:cispo", f"{EXAMPLE}:leave_one_out"
ARGUMENTS = {"log_probs", "old_log_probs", "engine_log_probs", "reference_log_probs", "response_mask"}
ARGUMENTS |= {"advantages", "rewards", "cliprange", "cliprange_high"}
HEAD = "import math\nimport sys\nimport torch\n\n\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module into the current folder and return its name; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(body: str) -> str:
        names.append(f"own_functions_of_test_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(HEAD + body)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


def given(rows: int = 3, width: int = 4, seed: int = 0):
    """Tensors of a ``TokenBatch`` on a random batch, NaN in masked places."""
    random = torch.Generator().manual_seed(seed)
    mask = torch.arange(width) < torch.tensor([4, 2, 0][:rows])[:, None]
    old, current, engine = (-torch.rand(rows, width, generator=random) for _ in range(3))
    advantages = torch.randn(rows, 1, generator=random)
    tensors = {
        "old_log_probs": torch.where(mask, 3 * old, math.nan),
        "engine_log_probs": torch.where(mask, engine, math.nan),
        "advantages": advantages,
        "raw_rewards": advantages + 1,
    }
    return torch.where(mask, current, math.nan).requires_grad_(), mask, tensors


def loss_of(options: LossSettings, own: PluginLoss):
    log_probs, mask, tensors = given()
    tokens = TokenBatch(log_probs, mask, **tensors)
    loss, _ = surrogate_loss(tokens, loss_denominator(mask).token_weights(mask), options, own)
    loss.backward()
    return loss, log_probs.grad


def test_the_advantages_of_the_docs_are_rloo_and_one_that_takes_lengths():
    none = {"lengths": torch.ones(2, 3), "truncated": torch.zeros(2, 3)}
    found = PluginAdvantage(RLOO, 3)(rewards=torch.tensor([[0.0, 1.0, 1.0], [3.0, 0.0, 0.0]]), **none)
    assert found.tolist() == [[-1.0, 0.5, 0.5], [3.0, -1.5, -1.5]]
    lengths = {"lengths": torch.tensor([[10, 5]]), "truncated": torch.tensor([[True, False]])}
    found = PluginAdvantage(f"{EXAMPLE}:shorter_is_better", 2)(rewards=torch.tensor([[1.0, 1.0]]), **lengths)
    assert found[0].tolist() == pytest.approx([-0.475, 0.475])  # 0 and 1 - 0.1 * 5 / 10, less their mean


def test_masked_places_are_zero_and_only_the_log_probs_carry_a_gradient(module):
    name = module(
        "seen = []\ndef own(**given):\n    seen.append(given)\n    return -given['log_probs'] * given['advantages']\n"
    )
    loss_of(LossSettings(type="own"), PluginLoss(f"{name}:own"))
    arguments = sys.modules[name].seen[-1]
    assert arguments.keys() == ARGUMENTS
    _, mask, _ = given()
    assert torch.equal(arguments["response_mask"], mask)
    for key in ("log_probs", "old_log_probs", "engine_log_probs"):
        assert arguments[key][~mask].tolist() == [0.0] * int((~mask).sum())
    tensors = {key: value for key, value in arguments.items() if isinstance(value, torch.Tensor)}
    assert [key for key, value in tensors.items() if value.requires_grad] == ["log_probs"]
    assert (arguments["cliprange"], arguments["cliprange_high"], arguments["reference_log_probs"]) == (0.2, 0.2, None)


def test_masks_keep_what_a_user_does_at_masked_places_out_of_the_loss(module):
    name = module("def own(log_probs, response_mask):\n    return torch.where(response_mask, -log_probs, torch.inf)\n")
    loss, gradient = loss_of(LossSettings(type="own"), PluginLoss(f"{name}:own"))
    _, mask, _ = given()
    assert math.isfinite(loss.item())
    assert gradient[~mask].tolist() == [0.0] * int((~mask).sum())


LOSS, OF_OWN, IN_FILE = "loss.function", "{name}:own", "{name}.py:7"
ASKED = "def own(log_probs, old_log_probs, advantages, response_mask)"
BAD_LOSSES = {  # what is said, where, and of the fix
    "def own(log_probs):\n    return 1.0\n": ("returned float; expected a tensor (2, 3)", OF_OWN, "docs/losses.md"),
    "def own(log_probs):\n    return log_probs.mean()\n": ("a tensor (); expected a tensor (2, 3)", OF_OWN, ""),
    "def own(log_probs):\n    return log_probs.detach()\n": ("without gradient", OF_OWN, "log_probs"),
    "def own(log_probs):\n    raise KeyError(1)\n": ("KeyError: 1, called with log_probs (2, 3)", IN_FILE, ""),
    "def own(log_probs):\n    sys.exit(0)\n": ("SystemExit: 0", IN_FILE, ""),
    "def own(log_probs, advantage):\n    return -log_probs * advantage\n": ("'advantage'", LOSS, ASKED),
    "def own(log_probs, /):\n    return -log_probs\n": ("'log_probs'", LOSS, ASKED),
    "def own(log_probs):\n    return (-log_probs).sqrt()\n": ("at 2 of 6 tokens", OF_OWN, "torch.where"),
    "def own(log_probs):\n    return -log_probs, {'size': log_probs.sum()}\n": ("'size': a tensor ()", OF_OWN, ""),
    "def own(log_probs):\n    return -log_probs, {'a/b': log_probs}\n": ("a figure named 'a/b'", OF_OWN, ""),
    "def own(log_probs):\n    return -log_probs, log_probs\n": ("Tensor; expected a dict of figures", OF_OWN, ""),
    "own = 3\n": ("own is of type int", LOSS, ASKED),
    "def cispo_loss(log_probs):\n    return -log_probs\n": ("has no 'own'", LOSS, "define own in {name}"),
    "def own(log_probs:\n": ("SyntaxError", "{name}.py:6", "import {name}"),
}


def assert_refused(make, name: str, what: str, where: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        make(f"{name}:own" if name.startswith("own_functions") else name)
    error = refused.value
    assert what in error.what
    assert error.where == where.format(name=name)
    assert fix.format(name=name) in (error.fix or "")


BAD_ADVANTAGES = {
    "def own(rewards):\n    return rewards.mean(dim=1)\n": ("a tensor (2,); expected a tensor (2, 4)", OF_OWN, ""),
    "def own(rewards):\n    return rewards / 0\n": ("[[nan, inf, inf, inf]", OF_OWN, "finite"),
    "def own(reward):\n    return reward\n": ("'reward'", "advantage.function", "def own(rewards)"),
    "def own(rewards):\n    raise ValueError(2)\n": ("ValueError: 2, called with rewards (2, 4)", IN_FILE, ""),
}


@pytest.mark.parametrize("bad", BAD_LOSSES | BAD_ADVANTAGES)
def test_a_function_that_cannot_be_used_is_refused(module, bad):
    if bad in BAD_LOSSES:
        assert_refused(PluginLoss, module(bad), *BAD_LOSSES[bad])
    else:
        assert_refused(lambda path: PluginAdvantage(path, 4), module(bad), *BAD_ADVANTAGES[bad])


def test_a_name_that_leads_nowhere_is_refused_with_the_nearest_one():
    for path, what, fix in (
        ("losses.py", "'losses.py' does not name a function", CISPO),
        ("losses", "'losses' does not name a function", CISPO),
        ("no_such_module_of_test:own", "no such module", "the folder that holds no_such_module_of_test"),
        (f"{EXAMPLE}:cisp0", "has no 'cisp0'", f"did you mean {CISPO}?"),
    ):
        assert_refused(PluginLoss, path, what, LOSS, fix)


def test_a_module_is_recorded_by_the_hash_of_its_file(module, tmp_path):
    name = module("def own(log_probs):\n    return -log_probs\n")
    before = plugin_digest(f"{name}:own")
    assert before is not None
    assert len(before) == 64
    (tmp_path / f"{name}.py").write_text(HEAD + "def own(log_probs):\n    return -2 * log_probs\n")
    assert plugin_digest(f"{name}:own") != before
    assert plugin_digest("no_such_module_of_test:own") is None
