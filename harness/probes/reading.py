"""What a probe reads: a value, or why there is none. Never 0 for what is not known.

``harness.results.counters.explain`` puts the reasons in words. ``PluginReader`` reads a probe plugin.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harness.core.plugins import PluginKind, described, make_plugin

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


class Probe(Protocol):
    """A probe plugin, read beside the run in the sampler's process."""

    def read(self) -> Mapping[str, float]:
        """Return finite values by name. It is called for each sample, and must not take long."""


PROBE_PLUGIN = PluginKind("probe", "own", "() -> Probe", "docs.examples.own_parts.probe:OpenFiles", protocol=Probe)
"""Named in a probe profile, made without arguments."""


class PluginReader:
    """Reads a probe plugin, as a source of its own path.

    Args:
        path: ``package.module:Name``.

    Raises:
        UserError: it cannot be made, or is no probe.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._probe: Probe = make_plugin(path, PROBE_PLUGIN, {}, {})
        self._names: tuple[str, ...] = ()

    def read(self) -> Reading:
        """Read it; where that raises, all values that it had before are missing, with what was raised."""
        reading = Reading(self._path)
        try:
            found = dict(self._probe.read())
        except Exception as error:  # whatever the user's code raises: the other probes go on
            reading.lacks(self._names or ("read",), described(error)[:200])
            return reading
        self._names = tuple(found)
        for name, value in found.items():
            if isinstance(value, int | float) and math.isfinite(value):
                reading.values[name] = value
            else:
                reading.lacks((name,), f"it is no finite number but {str(value)[:100]}")
        return reading
