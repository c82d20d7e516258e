"""Summary statistics, regression, resampling with given indices and hypothesis tests."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class RunningStats:
    """Count, mean and sum of squared deviations."""

    count: int
    mean: float
    m2: float


def welford(x):
    """Mean and sample variance in one pass by Welford's update."""
    n = 0
    mean = 0.0
    m2 = 0.0
    for v in x:
        n += 1
        delta = v - mean
        mean += delta / n
        m2 += delta * (v - mean)
    if n < 2:
        return mean, float("nan")
    return mean, m2 / (n - 1)


def welford_merge(a, b):
    """Combine two running statistics into a new dataclass."""
    n = a.count + b.count
    d = b.mean - a.mean
    return RunningStats(n, a.mean + d * b.count / n, a.m2 + b.m2 + d * d * a.count * b.count / n)


def welford_update_rows(stats, rows):
    """Feed rows of values into a mutable dataclass."""
    for row in rows:
        for v in row:
            stats.count += 1
            d = v - stats.mean
            stats.mean += d / stats.count
            stats.m2 += d * (v - stats.mean)


def kahan_sum(x):
    """Compensated sum."""
    total = 0.0
    c = 0.0
    for v in x:
        y = v - c
        t = total + y
        c = (t - total) - y
        total = t
    return total


def covariance_matrix(x):
    """Sample covariance by centred matrix product."""
    n = x.shape[0]
    centred = x - x.mean(axis=0)
    return centred.T @ centred / (n - 1)


def covariance_loops(x):
    """Sample covariance by loops over the upper triangle."""
    n, d = x.shape
    means = [x[:, j].mean() for j in range(d)]
    cov = np.zeros((d, d))
    for i in range(d):
        for j in range(i, d):
            s = 0.0
            for k in range(n):
                s += (x[k, i] - means[i]) * (x[k, j] - means[j])
            cov[i, j] = cov[j, i] = s / (n - 1)
    return cov


def pearson(x, y):
    """Pearson correlation; nan for constant input."""
    xd, yd = x - x.mean(), y - y.mean()
    denom = np.sqrt((xd**2).sum() * (yd**2).sum())
    return np.nan if denom == 0 else (xd * yd).sum() / denom


def linear_regression(x, y):
    """Least-squares line with its R squared, as a dict."""
    if len(x) != len(y):
        raise ValueError("x and y must have the same length")
    xm, ym = x.mean(), y.mean()
    slope = np.sum((x - xm) * (y - ym)) / np.sum((x - xm) ** 2)
    intercept = ym - slope * xm
    resid = y - (slope * x + intercept)
    r2 = 1 - np.sum(resid**2) / np.sum((y - ym) ** 2)
    return {"slope": slope, "intercept": intercept, "r2": r2}


def polynomial_fit(x, y, degree):
    """Polynomial coefficients by normal equations and fitted values by Horner's rule."""
    v = np.vander(x, degree + 1)
    coef = np.linalg.solve(v.T @ v, v.T @ y)
    fit = np.zeros_like(x)
    for c in coef:
        fit = fit * x + c
    return coef, fit


def ridge_path(x, y, lambdas):
    """Ridge coefficients for several penalties, one column each."""
    d = x.shape[1]
    out = np.empty((d, len(lambdas)))
    xtx, xty = x.T @ x, x.T @ y
    for i, lam in enumerate(lambdas):
        out[:, i] = np.linalg.solve(xtx + lam * np.eye(d), xty)
    return out


def lasso_coordinate_descent(x, y, lam, sweeps):
    """Lasso by cyclic coordinate descent with soft thresholding."""
    n, d = x.shape
    w = np.zeros(d)
    r = y.copy()
    norms = (x**2).sum(axis=0)
    for _ in range(sweeps):
        for j in range(d):
            rho = x[:, j] @ r + norms[j] * w[j]
            new = math.copysign(max(abs(rho) - lam, 0.0), rho) / norms[j]
            if new != w[j]:
                r -= (new - w[j]) * x[:, j]
                w[j] = new
    return w, np.count_nonzero(w)


def bootstrap_mean(x, indices):
    """Bootstrap means and a percentile interval from given resample indices."""
    means = np.empty(len(indices))
    for b in range(len(indices)):
        means[b] = x[indices[b]].mean()
    return means, (np.percentile(means, 2.5), np.percentile(means, 97.5))


def permutation_test(x, y, permutations):
    """Two-sided permutation p-value of a difference of means."""
    pooled = np.concatenate((x, y))
    n = len(x)
    observed = abs(x.mean() - y.mean())
    hits = 0
    for p in permutations:
        s = pooled[p]
        if abs(s[:n].mean() - s[n:].mean()) >= observed:
            hits += 1
    return (hits + 1) / (len(permutations) + 1)


def jackknife_variance(x):
    """Jackknife estimates of the standard deviation and their variance."""
    n = len(x)
    est = np.array([np.delete(x, i).std() for i in range(n)])
    return est, (n - 1) / n * np.sum((est - est.mean()) ** 2)


def percentile_linear(x, q):
    """Percentile by sorting and linear interpolation, for a scalar q."""
    if not 0 <= q <= 100:
        raise ValueError("Percentiles must be in the range [0, 100]")
    s = np.sort(x)
    pos = (len(s) - 1) * q / 100
    lo = math.floor(pos)
    hi = math.ceil(pos)
    return s[lo] + (s[hi] - s[lo]) * (pos - lo)


def five_numbers(x):
    """Five-number summary as a tuple of floats with Python floats."""
    return tuple(float(v) for v in np.percentile(x, [0, 25, 50, 75, 100]))


def median_absolute_deviation(x):
    """Robust z-scores and outlier mask."""
    med = np.median(x)
    mad = np.median(np.abs(x - med))
    if mad == 0:
        return np.zeros(len(x)), np.zeros(len(x), dtype=bool)
    z = 0.6745 * (x - med) / mad
    return z, np.abs(z) > 3.5


def trimmed_mean(x, fraction):
    """Mean after cutting a fraction from both tails."""
    k = int(fraction * len(x))
    s = np.sort(x)
    return s[k : len(s) - k].mean()


def winsorize(x, lo_q, hi_q):
    """Clamp the tails of an array in place at two quantiles; returns the number changed."""
    lo, hi = np.quantile(x, [lo_q, hi_q])
    low, high = x < lo, x > hi
    x[low] = lo
    x[high] = hi
    return int(low.sum() + high.sum())


def standardize(x):
    """Column z-scores, leaving constant columns at zero."""
    mu = x.mean(axis=0)
    sd = x.std(axis=0)
    safe = np.where(sd == 0, 1, sd)
    return (x - mu) / safe


def t_test(a, b):
    """Welch's t statistic and degrees of freedom."""
    va, vb = a.var(ddof=1) / a.size, b.var(ddof=1) / b.size
    t = (a.mean() - b.mean()) / np.sqrt(va + vb)
    dof = (va + vb) ** 2 / (va**2 / (a.size - 1) + vb**2 / (b.size - 1))
    return t, dof


def chi_square(table):
    """Chi-square statistic of a contingency table with expected counts."""
    total = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    return ((table - expected) ** 2 / expected).sum(), expected


def kolmogorov_smirnov(a, b):
    """Two-sample Kolmogorov-Smirnov statistic."""
    both = np.sort(np.concatenate([a, b]))
    fa = np.searchsorted(np.sort(a), both, side="right") / len(a)
    fb = np.searchsorted(np.sort(b), both, side="right") / len(b)
    return np.abs(fa - fb).max()


def spearman_kendall(x, y):
    """Spearman and Kendall rank correlations without tie correction."""
    rx = np.argsort(np.argsort(x))
    ry = np.argsort(np.argsort(y))
    n = len(x)
    spearman = 1 - 6 * np.sum((rx - ry) ** 2) / (n * (n * n - 1))
    concordant = 0
    for i in range(n - 1):
        concordant += int(np.sum(np.sign(x[i + 1 :] - x[i]) * np.sign(y[i + 1 :] - y[i])))
    return spearman, 2 * concordant / (n * (n - 1))


def group_means(values, groups, n_groups):
    """Group means and counts by a loop with nan for empty groups."""
    sums = np.zeros(n_groups)
    counts = np.zeros(n_groups, dtype=np.int64)
    for v, g in zip(values, groups):
        sums[g] += v
        counts[g] += 1
    means = np.full(n_groups, np.nan)
    ok = counts > 0
    means[ok] = sums[ok] / counts[ok]
    return means, counts


def kernel_density(x, grid, bandwidth):
    """Gaussian kernel density estimate on a grid."""
    u = (grid[:, None] - x[None, :]) / bandwidth
    return np.exp(-0.5 * u**2).sum(axis=1) / (len(x) * bandwidth * np.sqrt(2 * np.pi))


def metropolis_chain(start, steps, uniforms, scale):
    """Metropolis chain for a bimodal target with given proposals; returns samples and rate."""

    def log_density(v):
        return np.logaddexp(-0.5 * (v - 2) ** 2, -0.5 * (v + 2) ** 2)

    x = start
    accepted = 0
    samples = np.empty(len(steps))
    for i in range(len(steps)):
        y = x + scale * steps[i]
        if np.log(uniforms[i]) < log_density(y) - log_density(x):
            x = y
            accepted += 1
        samples[i] = x
    return samples, accepted / len(steps)


def nan_summary(x):
    """nan-aware summaries of columns as a dict of arrays."""
    return {
        "mean": np.nanmean(x, axis=0),
        "max": np.nanmax(x, axis=0),
        "missing": np.isnan(x).sum(axis=0),
    }


def fill_forward(x):
    """Carry the last valid value forward in place; returns how many were filled."""
    last = np.nan
    filled = 0
    for i in range(len(x)):
        if np.isnan(x[i]):
            if not math.isnan(last):
                x[i] = last
                filled += 1
        else:
            last = x[i]
    return filled


def report(x, digits):
    """Print a short summary and return whether the spread is finite."""
    spread = x.max() - x.min()
    print("n", len(x))
    print("spread", round(float(spread), digits))
    return bool(np.isfinite(spread))


def gappy(rng, *shape):
    """Random values with a quarter missing."""
    return np.where(rng.random(shape) < 0.25, np.nan, rng.random(shape))


PROGRAMS = [
    (welford, lambda rng: (rng.standard_normal(200),)),
    (welford, lambda rng: (rng.integers(0, 50, 50),)),
    (welford, lambda rng: (np.array([3.0]),)),
    (welford_merge, lambda rng: (RunningStats(10, 1.5, 4.0), RunningStats(6, 2.0, 3.0))),
    (welford_update_rows, lambda rng: (RunningStats(0, 0.0, 0.0), rng.random((8, 10)))),
    (kahan_sum, lambda rng: (rng.random(300) * 1e6,)),
    (kahan_sum, lambda rng: (rng.random(100, np.float32),)),
    (covariance_matrix, lambda rng: (rng.standard_normal((50, 5)),)),
    (covariance_matrix, lambda rng: (rng.integers(0, 9, (20, 3)),)),
    (covariance_loops, lambda rng: (rng.standard_normal((40, 4)),)),
    (pearson, lambda rng: (rng.random(60), rng.random(60))),
    (pearson, lambda rng: (np.ones(10), rng.random(10))),
    (pearson, lambda rng: (rng.random(60), rng.random(61))),
    (linear_regression, lambda rng: (np.arange(40.0), rng.random(40) + np.arange(40))),
    (linear_regression, lambda rng: (np.arange(40.0), rng.random(39))),
    (polynomial_fit, lambda rng: (np.linspace(-1, 1, 40), rng.random(40), 3)),
    (ridge_path, lambda rng: (rng.random((30, 4)), rng.random(30), [0.1, 1.0, 10.0])),
    (
        lasso_coordinate_descent,
        lambda rng: (rng.standard_normal((40, 6)), rng.standard_normal(40), 5.0, 8),
    ),
    (bootstrap_mean, lambda rng: (rng.random(40), rng.integers(0, 40, (30, 40)))),
    (bootstrap_mean, lambda rng: (rng.random(40), rng.integers(0, 60, (30, 40)))),
    (
        permutation_test,
        lambda rng: (
            rng.random(12),
            rng.random(15) + 0.2,
            np.array([rng.permutation(27) for _ in range(25)]),
        ),
    ),
    (jackknife_variance, lambda rng: (rng.random(25),)),
    (percentile_linear, lambda rng: (rng.random(55), 37.5)),
    (percentile_linear, lambda rng: (rng.random(55), 120)),
    (five_numbers, lambda rng: (rng.standard_normal(70),)),
    (median_absolute_deviation, lambda rng: (rng.standard_cauchy(60),)),
    (median_absolute_deviation, lambda rng: (np.ones(9),)),
    (trimmed_mean, lambda rng: (rng.standard_cauchy(60), 0.1)),
    (winsorize, lambda rng: (rng.standard_normal(60), 0.05, 0.95)),
    (standardize, lambda rng: (np.column_stack([rng.random(20), np.ones(20), rng.random(20)]),)),
    (standardize, lambda rng: (rng.random((20, 3), np.float32),)),
    (t_test, lambda rng: (rng.random(20), rng.random(30))),
    (chi_square, lambda rng: (rng.integers(5, 50, (3, 4)),)),
    (kolmogorov_smirnov, lambda rng: (rng.random(30), rng.standard_normal(40))),
    (spearman_kendall, lambda rng: (rng.random(30), rng.random(30))),
    (group_means, lambda rng: (rng.random(60), rng.integers(0, 6, 60), 8)),
    (group_means, lambda rng: (rng.random(60), rng.integers(0, 9, 60), 5)),
    (kernel_density, lambda rng: (rng.random(40), np.linspace(-0.5, 1.5, 50), 0.1)),
    (metropolis_chain, lambda rng: (0.0, rng.standard_normal(100), rng.random(100), 1.5)),
    (nan_summary, lambda rng: (gappy(rng, 30, 4),)),
    (fill_forward, lambda rng: (gappy(rng, 60),)),
    (report, lambda rng: (rng.random(20), 3)),
]
