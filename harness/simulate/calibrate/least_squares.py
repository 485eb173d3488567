"""Costs of features from many noisy spans: non-negative, robust, and with runs that are a little faster or slower each.

The model of span i in run r: y_ri = (x_ri b) (1 + u_r + e_ri), b >= 0, with u_r of spread ``run_sd`` and e_ri of spread
``step_sd``. That is a random intercept (Laird and Ware 1982, Biometrics 38:963) in units of the prediction: relative
errors are minimised, so that short spans count as much as long ones, and predictions are means. b and the spreads take
turns until they settle. Spans far off their run (a stall of the machine) are pulled in as in Huber's estimator (1964,
Ann. Math. Statist. 35:73), with a bound wide enough to leave ordinary noise as it is.

Which features a stage is fitted to (``FIT_SHAPES``) was chosen on calibration runs alone: of the physical candidates,
those that predict an arm, and a model, that is left out of the fit best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

SYNC_FEATURES = ("call", "tensor", "gb", "first", "first_gb")


@dataclass(frozen=True, slots=True)
class FitShape:
    """The shape of one fit.

    Attributes:
        stages: whose spans are fitted together, each of which gets the result.
        where: circumstances that make costs of their own.
        features: as ``harness.simulate.features`` counts them.
        scaled_by: a circumstance that changes all features by one factor; where it is another than in most spans, the
            cost is that of most spans times what its own spans are of that.
        only: circumstances of the spans that it is for.
    """

    stages: tuple[str, ...]
    where: tuple[str, ...]
    features: tuple[str, ...]
    scaled_by: str | None = None
    only: tuple[tuple[str, str], ...] = ()


FIT_SHAPES = (
    FitShape(
        ("generate",),
        ("engine", "precision", "threads", "device"),
        ("prompt_gflop", "decode_layer", "weight_gb", "row_layer", "row_gflop"),
        "placement",
    ),
    FitShape(("score",), ("task",), ("call", "group", "response")),
    FitShape(("prepare_batch",), (), ("call", "group", "response", "token")),
    FitShape(
        ("old_logprobs", "reference_logprobs"),
        ("precision", "threads", "device"),
        ("microbatch", "position_gflop", "logit_gb"),
        "placement",
    ),
    FitShape(
        ("update",),
        ("precision", "threads", "device"),
        ("parameter_gb", "position_gflop", "position_layer", "pair_gb"),
        "placement",
    ),
    FitShape(("weight_publish",), ("transport",), SYNC_FEATURES),
    FitShape(("weight_transfer",), ("transport",), SYNC_FEATURES),
    FitShape(("weight_load",), ("engine", "precision"), SYNC_FEATURES),
    FitShape(("weight_verify",), ("part",), SYNC_FEATURES, only=(("part", "generator"),)),
    FitShape(("weight_verify",), ("part", "transport"), SYNC_FEATURES, only=(("part", "learner"),)),
    FitShape(("checkpoint",), ("asynchronous",), ("call", "gb")),
    FitShape(("checkpoint_write",), (), ("call", "gb")),
    FitShape(("save_policy",), (), ("call", "tensor", "gb")),
    FitShape(("call",), ("call", "way", "placement"), ("call", "group", "response")),
    FitShape(("record",), (), ("call", "group", "response", "token")),
)

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

MOST_ROUNDS = 12
SETTLED = 1e-6
"""Relative change of every cost in a round, below which the rounds end."""
HUBER_SD = 3.0
"""Standard deviations beyond which a span weighs less: 0.3% of normal ones are."""
SMALLEST_SD = 1e-4
"""A relative spread below this is taken as this: synthetic data may have none."""
NEGLIGIBLE = 1e-4
"""A feature that is less than this share of every span is left out: it is what rounding leaves."""
FLOOR = 1e-3
"""A prediction counts as no less than this share of the median span, lest a first guess of 0 weigh without bound."""


@dataclass(frozen=True)
class Fit:
    """A fitted cost.

    Attributes:
        seconds: (K,) of one unit of each feature; 0 where a feature explains nothing.
        covariance: (K, K) of them; 0 in the rows and columns of features at 0.
        step_sd: relative spread within a run.
        run_sd: relative spread from run to run.
        step_correlation: of the errors of one span and the next in a run, not below 0.
        residuals: (N,) y / prediction - 1.
    """

    seconds: Array
    covariance: Array
    step_sd: float
    run_sd: float
    step_correlation: float
    residuals: Array


def fit_costs(units_NK: Array, seconds_N: Array, run_N: Labels) -> Fit:
    """Fit the seconds of one unit of each feature.

    Args:
        units_NK: of each span, counted by feature.
        seconds_N: of each span, above 0.
        run_N: number of the run that each span is from, in the order of time within a run.

    Raises:
        ValueError: there is no span, or shapes differ.
    """
    if len(seconds_N) == 0 or units_NK.shape[0] != len(seconds_N) or len(run_N) != len(seconds_N):
        raise ValueError(f"{units_NK.shape[0]} rows of units, {len(seconds_N)} spans, {len(run_N)} run numbers")
    scale_K = np.where(units_NK.max(axis=0) > 0, units_NK.max(axis=0), 1.0)
    scaled_NK = units_NK / scale_K
    b_K = nnls(scaled_NK / seconds_N[:, None], np.ones(len(seconds_N)))[0]
    noise = _Noise(run_N, np.ones(len(seconds_N)), 0.1, 0.1)
    for _ in range(MOST_ROUNDS):
        before_K, before = b_K, noise
        predicted_N = _predicted(scaled_NK, b_K, seconds_N)
        relative = scaled_NK / predicted_N[:, None], (seconds_N / predicted_N)[:, None]
        b_K = nnls(noise.whitened(relative[0]), noise.whitened(relative[1])[:, 0])[0]
        error_N = seconds_N / _predicted(scaled_NK, b_K, seconds_N) - 1
        noise = noise.of(error_N, int((b_K > 0).sum()))
        if np.abs(b_K - before_K).max() <= SETTLED * b_K.max() and abs(noise.step_sd - before.step_sd) <= SETTLED:
            break
    b_K = _without_negligible(scaled_NK, b_K)
    rows_NK = noise.whitened(scaled_NK / _predicted(scaled_NK, b_K, seconds_N)[:, None])
    covariance_KK = covariance_of(rows_NK, b_K) / np.outer(scale_K, scale_K)
    correlation = _lag_1(error_N - noise.run_means(error_N), run_N)
    return Fit(b_K / scale_K, covariance_KK, noise.step_sd, noise.run_sd, correlation, error_N)


def _predicted(units_NK: Array, b_K: Array, seconds_N: Array) -> Array:
    predicted_N: Array = np.maximum(units_NK @ b_K, FLOOR * float(np.median(seconds_N)))
    return predicted_N


def _without_negligible(units_NK: Array, b_K: Array) -> Array:
    """Return the costs without those that are nowhere a notable share of a span."""
    parts_NK = units_NK * b_K
    shares_K = (parts_NK / np.maximum(parts_NK.sum(axis=1, keepdims=True), 1e-300)).max(axis=0)
    return np.where(shares_K >= NEGLIGIBLE, b_K, 0.0)


@dataclass(frozen=True)
class _Noise:
    """How far spans are off their prediction.

    Attributes:
        run_N: run of each span.
        weights_N: 1, or less for a span that is far off its run: then its variance counts as so much larger.
        step_sd, run_sd: relative spreads within and between runs.
    """

    run_N: Labels
    weights_N: Array
    step_sd: float
    run_sd: float

    def whitened(self, values_NK: Array) -> Array:
        """Return rows whose errors are independent and of spread 1, if the spreads are right.

        The errors of a run have the covariance step^2 diag(1/w) + run^2 J. Of rows scaled by sqrt(w) / step, that
        leaves I + c v v' with v = sqrt(w) and c = (run / step)^2. Its inverse root is
        I - (1 - 1 / sqrt(1 + c v'v)) v v' / v'v.
        """
        root_N1 = np.sqrt(self.weights_N)[:, None]
        scaled_NK: Array = values_NK * root_N1 / self.step_sd
        ratio = (self.run_sd / self.step_sd) ** 2
        for run in np.unique(self.run_N):
            of_run = self.run_N == run
            v_n1 = root_N1[of_run]
            length = float((v_n1**2).sum())
            shrink = (1 - 1 / np.sqrt(1 + ratio * length)) / length
            scaled_NK[of_run] -= shrink * v_n1 @ (v_n1.T @ scaled_NK[of_run])
        return scaled_NK

    def run_means(self, error_N: Array) -> Array:
        """Return for each span the weighted mean error of its run."""
        means_N = np.empty_like(error_N)
        for run in np.unique(self.run_N):
            of_run = self.run_N == run
            means_N[of_run] = np.average(error_N[of_run], weights=self.weights_N[of_run])
        return means_N

    def of(self, error_N: Array, features: int) -> _Noise:
        """Return the noise of these errors, by moments; the fitted features take degrees of freedom of the runs."""
        means_N = self.run_means(error_N)
        runs, counts = np.unique(self.run_N, return_counts=True)
        within = float((self.weights_N * (error_N - means_N) ** 2).sum()) / max(1, len(error_N) - len(runs))
        step_sd = max(SMALLEST_SD, within**0.5)
        mean_of_run = np.array([means_N[self.run_N == run][0] for run in runs])
        between = float((mean_of_run**2).sum()) / max(1, len(runs) - min(features, len(runs) - 1))
        run_sd = max(0.0, between - step_sd**2 * float((1 / counts).mean())) ** 0.5
        return _Noise(self.run_N, _huber(error_N - means_N, step_sd), step_sd, run_sd)


def _huber(error_N: Array, step_sd: float) -> Array:
    """Return weights: 1 within ``HUBER_SD`` standard deviations, falling off beyond; the smaller of two estimates of
    that counts, the robust one and the plain one."""
    robust_sd = 1.4826 * float(np.median(np.abs(error_N)))
    bound = HUBER_SD * max(SMALLEST_SD, min(robust_sd, step_sd))
    weights_N: Array = np.minimum(1.0, bound / np.maximum(np.abs(error_N), bound))
    return weights_N


def covariance_of(rows_NK: Array, b_K: Array) -> Array:
    """Return (X'X)^-1 of the whitened rows over the features above 0; a pseudo-inverse where need be."""
    active = np.flatnonzero(b_K > 0)
    covariance_KK = np.zeros((len(b_K), len(b_K)))
    if len(active):
        rows = rows_NK[:, active]
        covariance_KK[np.ix_(active, active)] = np.linalg.pinv(rows.T @ rows, hermitian=True)
    return covariance_KK


def _lag_1(error_N: Array, run_N: Labels) -> float:
    """Return the correlation of successive errors within runs.

    Means that were taken off a run of n make it appear lower by about 1 / n, which is put back.
    """
    products, squares, spans = 0.0, 0.0, []
    for run in np.unique(run_N):
        error_n = error_N[run_N == run]
        if len(error_n) > 2:
            products += float((error_n[1:] * error_n[:-1]).sum()) / (len(error_n) - 1)
            squares += float((error_n**2).sum()) / len(error_n)
            spans.append(len(error_n))
    if squares <= 0:
        return 0.0
    return float(min(0.95, max(0.0, products / squares + 1 / float(np.mean(spans)))))


def active_costs(
    names: Sequence[str], seconds_K: Array, covariance_KK: Array
) -> tuple[dict[str, float], list[list[float]]]:
    """Return the costs above 0 by name, the first one where all are 0, and their covariance."""
    places = np.flatnonzero(seconds_K > 0).tolist() or [0]
    return {names[place]: float(seconds_K[place]) for place in places}, covariance_KK[np.ix_(places, places)].tolist()
