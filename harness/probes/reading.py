"""What a probe reads: a value, or why there is none. Never 0 for what is not known.

``harness.results.counters.explain`` puts the reasons in words.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

NOT_SUPPORTED = "not_supported"
NO_PERMISSION = "no_permission"
NOT_FOUND = "not_found"
LOST = "lost"
RESET_REQUIRED = "reset_required"
VERSION_MISMATCH = "version_mismatch"
NO_DRIVER = "no_driver"
NOT_INSTALLED = "not_installed"
TIMEOUT = "timeout"
GONE = "gone"
UNREADABLE = "unreadable"
OTHER_NAMESPACE = "other_pid_namespace"

_OF_ERRNO = {
    errno.ENOENT: NOT_FOUND,
    errno.EACCES: NO_PERMISSION,
    errno.EPERM: NO_PERMISSION,
    errno.ESRCH: GONE,
    errno.EOPNOTSUPP: NOT_SUPPORTED,
}


class Unknown(Exception):
    """A value that cannot be read; the argument is the reason's code."""

    @property
    def reason(self) -> str:
        """The code."""
        return str(self.args[0])


def reason_of(error: Exception) -> str:
    """Return the code of what went wrong while a file of the kernel's was read."""
    if isinstance(error, Unknown):
        return error.reason
    if isinstance(error, OSError):
        return _OF_ERRNO.get(error.errno or 0, f"errno_{error.errno}")
    return UNREADABLE


@dataclass(slots=True)
class Reading:
    """One reading of one source; ``values`` and ``missing`` as in ``harness.results.counters.CounterRow``."""

    source: str
    values: dict[str, float | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def lacks(self, names: Mapping[str, object] | tuple[str, ...], reason: str) -> None:
        """Note that these could not be read."""
        for name in names:
            self.values[name] = None
            self.missing[name] = reason

    def take(self, names: tuple[str, ...], read: Callable[[], tuple[float, ...]]) -> None:
        """Read the values of these names, in order; all are missing where that fails."""
        try:
            self.values.update(zip(names, read(), strict=True))
        except (OSError, ValueError, LookupError, Unknown) as error:
            self.lacks(names, reason_of(error))
