"""Contract tests for your own parts: what every task, engine, transport, tracker and policy must do, as test classes.

Subclass one in a test module, say how your part is made, and run pytest. The harness's own parts pass the same tests.
May import everything but the command line. Each class needs pytest, and what its part needs; start with ``task``, the
shortest.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.testing.engine import EngineContract, ModelEngineContract
    from harness.testing.policy import PolicyContract
    from harness.testing.task import TaskContract
    from harness.testing.tracker import TrackerContract
    from harness.testing.transport import TransportContract

__all__ = [
    "EngineContract",
    "ModelEngineContract",
    "PolicyContract",
    "TaskContract",
    "TrackerContract",
    "TransportContract",
]
_HOME = {"ModelEngineContract": "engine"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'harness.testing' has no attribute {name!r}")
    if find_spec("pytest") is None:
        raise UserError(
            f"harness.testing.{name} is a class of tests, and pytest is not installed", fix="install pytest"
        )
    import pytest

    module = f"harness.testing.{_HOME.get(name) or name.removesuffix('Contract').lower()}"
    pytest.register_assert_rewrite(module)  # so that a failed assertion shows its values
    return getattr(import_module(module), name)
