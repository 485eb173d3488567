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

_OF_ERRNO = {
    errno.ENOENT: "not_found",
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
    errno.ESRCH: "gone",
    errno.EOPNOTSUPP: "not_supported",
}


class Unknown(Exception):
    """A value that cannot be read; the argument is the reason's code."""

    @property
    def reason(self) -> str:
        return str(self.args[0])


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
        except Unknown as error:
            self.lacks(names, error.reason)
        except OSError as error:
            self.lacks(names, _OF_ERRNO.get(error.errno or 0, f"errno_{error.errno}"))
        except (ValueError, LookupError):
            self.lacks(names, "unreadable")


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
            values = dict(self._probe.read())
        except Exception as error:  # whatever the user's code raises: the other probes go on
            reading.lacks(self._names or ("read",), described(error)[:200])
            return reading
        self._names = tuple(values)
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                reading.values[name] = value
            else:
                reading.lacks((name,), f"it is no finite number but {str(value)[:100]}")
        return reading
