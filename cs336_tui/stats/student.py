"""Quantiles of Student's t distribution. Pure Python: the user interface must not load scipy for them."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

LEVEL = 0.95
"""Of every confidence interval, unless another is asked for."""
_MANY_DF = 1e4


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The `p` quantile of Student's t distribution with `df` degrees of freedom, a whole number or not.

    Newton's method on the upper tail, from the normal quantile; that lies below the root of a falling, convex
    function, so that the steps never overshoot. The tail is I_x(df/2, 1/2) / 2 at x = df / (df + t²) (Abramowitz and
    Stegun 26.7.1). From 10,000 degrees of freedom on: the expansion in 1/df of A&S 26.7.5. Exact to 10 digits or so.

    Raises ValueError for `p` outside of 0 to 1 or `df` not above 0.
    """
    if not (0 < p < 1 and df > 0):
        raise ValueError(f"t quantile of p {p}, df {df}: expected 0 < p < 1 and df > 0")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    z = NormalDist().inv_cdf(p)
    if df >= _MANY_DF:
        return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    t = z
    for _ in range(100):
        tail = _incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t)) / 2
        step = (tail - (1 - p)) / (scale * (1 + t * t / df) ** (-(df + 1) / 2))
        t += step
        if abs(step) <= 1e-13 * t:
            break
    return t


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function I_x(a, b), with y = 1 - x given so that it loses no digits.

    By its continued fraction where that converges fast, else from the other tail.
    """
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_fraction(b, a, y, x)
    return _beta_fraction(a, b, x, y)


def _beta_fraction(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b) by the continued fraction DLMF 8.17.22, by Lentz's method."""
    log_front = a * math.log(x) + b * math.log(y) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) / a * fraction
