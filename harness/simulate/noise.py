"""One possible truth: what a machine profile leaves open, drawn from seeds by name.

Equal names give equal draws whatever else is drawn, so that two scenarios under the same seed differ only by what
differs between them (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.core.seeds import derive_seed

_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Draw:
    """Which of the possible truths, under which root seed.

    Truths come in pairs, 1 and 2, 3 and 4 and so on, that err by as much in opposite directions, so that their middle
    does not depend on which of them were drawn (antithetic variates: Hammersley and Morton 1956).
    """

    number: int
    seed: int = 0

    def stream(self, *name: str) -> np.random.Generator:
        """Return the random stream of this name, of this truth alone."""
        return np.random.default_rng(derive_seed(self.seed, "draw", self.number, *name))

    def normal(self, *name: str) -> float:
        """Return a standard normal number of this name."""
        return float(self.normals(1, *name)[0])

    def normals(self, count: int, *name: str) -> npt.NDArray[np.float64]:
        """Return so many standard normal numbers of this name, (count,); the other one of the pair has the opposite."""
        rng = np.random.default_rng(derive_seed(self.seed, "pair", (self.number + 1) // 2, *name))
        sign = 1.0 if self.number % 2 else -1.0
        drawn: npt.NDArray[np.float64] = sign * rng.standard_normal(count)
        return drawn

    def at_least_0(self, mean: float, sd: float, *name: str) -> float:
        """Return a normal number, 0 where it would be below."""
        return max(0.0, mean + sd * self.normal(*name))

    def factor(self, log_sd: float, *name: str) -> float:
        """Return a log-normal factor with mean 1."""
        return mean_one(log_sd, self.normal(*name)) if log_sd > 0 else 1.0

    def coefficients(self, means: Sequence[float], covariance: Sequence[Sequence[float]], *name: str) -> list[float]:
        """Return coefficients drawn from N(means, covariance), those below 0 set to 0.

        Args:
            means: one for each coefficient.
            covariance: of them; empty where nothing is known of it.
            name: of the stream.

        Raises:
            ValueError: the covariance is of another size than the means.
        """
        if not covariance:
            return list(means)
        matrix = np.array(covariance, dtype=np.float64)
        if matrix.shape != (len(means), len(means)):
            raise ValueError(f"a covariance of shape {matrix.shape} does not go with {len(means)} coefficients")
        drawn = np.array(means) + _root(matrix) @ self.normals(len(means), *name)
        return [max(0.0, float(value)) for value in drawn]


def mean_one(log_sd: float, z: float) -> float:
    """Return exp(s z - s^2 / 2): a factor with mean 1 where z is standard normal."""
    return math.exp(log_sd * z - log_sd * log_sd / 2)


def run_factor(draw: Draw, log_sd: float, correlation: float, *name: str) -> float:
    """Return what all spans of a cost share in one run: partly of the machine, partly of the cost alone.

    Args:
        draw: which truth.
        log_sd: spread from run to run.
        correlation: of the logarithms of two costs in the same run, 0 to 1.
        name: of the cost.
    """
    if log_sd == 0:
        return 1.0
    z = math.sqrt(correlation) * draw.normal("run") + math.sqrt(1 - correlation) * draw.normal("run", *name)
    return mean_one(log_sd, z)


class StepNoise:
    """The factor of each span after the other: log-normal with mean 1, an AR(1) process in logs.

    x_0 = z_0 and x_t = r x_(t-1) + sqrt(1 - r^2) z_t with z standard normal; the factor is exp(s x_t - s^2 / 2).

    Args:
        draw: which truth.
        log_sd: s.
        correlation: r, from 0 to below 1.
        name: of the stream.
    """

    def __init__(self, draw: Draw, log_sd: float, correlation: float, *name: str) -> None:
        self._log_sd, self._correlation = log_sd, correlation
        self._innovation = math.sqrt(1 - correlation * correlation)
        self._rng = draw.stream("step", *name) if log_sd > 0 else None
        self._ready: list[float] = []
        self._last: float | None = None

    def next(self) -> float:
        """Return the factor of the next span."""
        if self._rng is None:
            return 1.0
        if not self._ready:
            self._ready = self._rng.standard_normal(_CHUNK).tolist()[::-1]
        z = self._ready.pop()
        self._last = z if self._last is None else self._correlation * self._last + self._innovation * z
        return mean_one(self._log_sd, self._last)


def _root(covariance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a matrix R with R R^T = covariance; eigenvalues that rounding made negative count as 0."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root: npt.NDArray[np.float64] = vectors * np.sqrt(np.clip(values, 0, None))
    return root
