"""Option pricing, Monte Carlo with given normals, portfolios and technical indicators."""

import math

import numpy as np


def erf_poly(x):
    """Error function by the Abramowitz-Stegun polynomial."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    coefs = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    poly = 0.0
    for c in coefs:
        poly = poly * t + c
    return np.sign(x) * (1.0 - poly * t * np.exp(-x * x))


def norm_cdf(x):
    """Standard normal distribution function."""
    return 0.5 * (1.0 + erf_poly(x / np.sqrt(2.0)))


def black_scholes(s, k, t, r, sigma, is_call):
    """Black-Scholes prices for arrays of contracts."""
    d1 = (np.log(s / k) + (r + 0.5 * sigma**2) * t) / (sigma * np.sqrt(t))
    d2 = d1 - sigma * np.sqrt(t)
    disc = np.exp(-r * t)
    call = s * norm_cdf(d1) - k * disc * norm_cdf(d2)
    return np.where(is_call, call, call - s + k * disc)


def black_scholes_greeks(s, k, t, r, sigma):
    """Scalar call price and greeks in a dict."""
    d1 = (math.log(s / k) + (r + sigma * sigma / 2) * t) / (sigma * math.sqrt(t))
    d2 = d1 - sigma * math.sqrt(t)

    def cdf(x):
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    pdf = math.exp(-0.5 * d1 * d1) / math.sqrt(2 * math.pi)
    return {
        "price": s * cdf(d1) - k * math.exp(-r * t) * cdf(d2),
        "delta": cdf(d1),
        "gamma": pdf / (s * sigma * math.sqrt(t)),
        "vega": s * pdf * math.sqrt(t),
    }


def implied_volatility(price, s, k, t, r):
    """Implied volatility by bisection; ValueError when not bracketed."""
    lo, hi = 1e-4, 5.0

    def excess(vol):
        return black_scholes_greeks(s, k, t, r, vol)["price"] - price

    if excess(lo) * excess(hi) > 0:
        raise ValueError("price not attainable")
    while hi - lo > 1e-6:
        mid = 0.5 * (lo + hi)
        if excess(mid) > 0:
            hi = mid
        else:
            lo = mid
    return 0.5 * (lo + hi)


def binomial_tree(s, k, t, r, sigma, n, american):
    """Put price on a Cox-Ross-Rubinstein tree with slices per level."""
    dt = t / n
    u = np.exp(sigma * np.sqrt(dt))
    d = 1 / u
    p = (np.exp(r * dt) - d) / (u - d)
    disc = np.exp(-r * dt)
    j = np.arange(n + 1)
    prices = s * u**j * d ** (n - j)
    values = np.maximum(k - prices, 0.0)
    for level in range(n - 1, -1, -1):
        values = disc * (p * values[1:] + (1 - p) * values[:-1])
        if american:
            prices = prices[: level + 1] * u
            values = np.maximum(values, k - prices)
    return values[0]


def binomial_tree_loops(s, k, r, sigma, t, n):
    """European call on a binomial tree by two loops over one array."""
    dt = t / n
    u = math.exp(sigma * math.sqrt(dt))
    d = 1.0 / u
    q = (math.exp(r * dt) - d) / (u - d)
    v = np.zeros(n + 1)
    for i in range(n + 1):
        v[i] = max(s * u**i * d ** (n - i) - k, 0.0)
    for step in range(n, 0, -1):
        for i in range(step):
            v[i] = math.exp(-r * dt) * (q * v[i + 1] + (1 - q) * v[i])
    return float(v[0])


def monte_carlo_european(s, k, t, r, sigma, z):
    """European call value and standard error from given normals, with antithetics."""
    z = np.concatenate([z, -z])
    st = s * np.exp((r - 0.5 * sigma**2) * t + sigma * np.sqrt(t) * z)
    pay = np.exp(-r * t) * np.maximum(st - k, 0)
    return pay.mean(), pay.std(ddof=1) / np.sqrt(len(pay))


def monte_carlo_barrier(s0, k, barrier, r, sigma, dt, z):
    """Down-and-out call along given paths with a knocked-out mask."""
    paths, steps = z.shape
    s = np.full(paths, s0, dtype=float)
    alive = np.ones(paths, dtype=bool)
    for t in range(steps):
        s *= np.exp((r - 0.5 * sigma * sigma) * dt + sigma * np.sqrt(dt) * z[:, t])
        alive &= s > barrier
    pay = np.where(alive, np.maximum(s - k, 0), 0)
    return np.exp(-r * dt * steps) * pay.mean(), int(alive.sum())


def asian_option_loops(s0, k, r, sigma, dt, z):
    """Arithmetic Asian call by scalar path loops."""
    total = 0.0
    drift = (r - 0.5 * sigma**2) * dt
    vol = sigma * math.sqrt(dt)
    for i in range(z.shape[0]):
        s = s0
        acc = 0.0
        for j in range(z.shape[1]):
            s *= math.exp(drift + vol * z[i, j])
            acc += s
        avg = acc / z.shape[1]
        if avg > k:
            total += avg - k
    return math.exp(-r * dt * z.shape[1]) * total / z.shape[0]


def longstaff_schwartz(paths, k, r, dt):
    """American put by regression on simulated paths."""
    cash = np.maximum(k - paths[:, -1], 0)
    disc = np.exp(-r * dt)
    for t in range(paths.shape[1] - 2, 0, -1):
        cash *= disc
        s = paths[:, t]
        itm = s < k
        if itm.sum() < 4:
            continue
        basis = np.stack([np.ones(itm.sum()), s[itm], s[itm] ** 2], axis=1)
        beta = np.linalg.solve(basis.T @ basis, basis.T @ cash[itm])
        exercise = k - s[itm]
        cash[itm] = np.where(exercise > basis @ beta, exercise, cash[itm])
    return disc * cash.mean()


def crank_nicolson_call(k, r, sigma, t, s_max, m, n):
    """European call by Crank-Nicolson with a tridiagonal sweep each step."""
    dt = t / n
    j = np.arange(1, m)
    a = 0.25 * dt * (sigma**2 * j**2 - r * j)
    b = -0.5 * dt * (sigma**2 * j**2 + r)
    c = 0.25 * dt * (sigma**2 * j**2 + r * j)
    s = np.linspace(0, s_max, m + 1)
    v = np.maximum(s - k, 0)
    for step in range(n):
        d = a * v[:-2] + (1 + b) * v[1:-1] + c * v[2:]
        top = s_max - k * np.exp(-r * (step + 1) * dt)
        d[-1] += c[-1] * top
        cp = np.zeros(m - 1)
        cp[0] = -c[0] / (1 - b[0])
        d[0] /= 1 - b[0]
        for i in range(1, m - 1):
            w = (1 - b[i]) + a[i] * cp[i - 1]
            cp[i] = -c[i] / w
            d[i] = (d[i] + a[i] * d[i - 1]) / w
        v[m - 1] = d[-1]
        for i in range(m - 2, 0, -1):
            v[i] = d[i - 1] - cp[i - 1] * v[i + 1]
        v[0], v[m] = 0.0, top
    return s, v


def yield_to_maturity(price, face, coupon, years):
    """Bond yield by Newton's method with the derivative accumulated in the loop."""
    y = 0.05
    for _ in range(50):
        pv = dpv = 0.0
        for t in range(1, years + 1):
            cash = coupon * face + (face if t == years else 0)
            pv += cash / (1 + y) ** t
            dpv -= t * cash / (1 + y) ** (t + 1)
        step = (pv - price) / dpv
        y -= step
        if abs(step) < 1e-12:
            break
    return y


def internal_rate_of_return(flows, lo=-0.9, hi=1.0):
    """Internal rate of return by bisection of the net present value."""
    t = np.arange(len(flows))
    for _ in range(60):
        mid = (lo + hi) / 2
        if np.sum(flows / (1 + mid) ** t) > 0:
            lo = mid
        else:
            hi = mid
    return mid


def amortization(principal, rate, months):
    """Loan schedule with columns interest, principal paid and balance."""
    payment = principal * rate / (1 - (1 + rate) ** -months)
    table = np.zeros((months, 3))
    balance = principal
    for m in range(months):
        interest = balance * rate
        balance -= payment - interest
        table[m] = interest, payment - interest, balance
    return payment, table


def max_drawdown(prices):
    """Largest relative fall from a running peak and where it happened."""
    peak = np.maximum.accumulate(prices)
    dd = (peak - prices) / peak
    trough = int(np.argmax(dd))
    start = int(np.argmax(prices[: trough + 1]))
    return dd[trough], start, trough


def rsi(prices, period):
    """Relative strength index with Wilder smoothing; NaN before the first value."""
    delta = np.diff(prices)
    gain = np.where(delta > 0, delta, 0.0)
    loss = np.where(delta < 0, -delta, 0.0)
    out = np.full(len(prices), np.nan)
    g, ls = gain[:period].mean(), loss[:period].mean()
    for i in range(period, len(prices)):
        if i > period:
            g = (g * (period - 1) + gain[i - 1]) / period
            ls = (ls * (period - 1) + loss[i - 1]) / period
        out[i] = 100.0 if ls == 0 else 100 - 100 / (1 + g / ls)
    return out


def crossover_backtest(prices, fast, slow):
    """Moving-average crossover position and final equity."""

    def sma(w):
        out = np.full(prices.shape, np.nan)
        c = np.cumsum(prices)
        out[w - 1 :] = c[w - 1 :]
        out[w:] -= c[:-w]
        return out / w

    position = (sma(fast) > sma(slow)).astype(int)
    returns = prices[1:] / prices[:-1] - 1
    equity = np.cumprod(1 + position[:-1] * returns)
    trades = np.abs(np.diff(position)).sum()
    return position, equity[-1], trades


def mean_variance_weights(returns, target):
    """Minimum-variance weights for a target return from the KKT system."""
    mu = returns.mean(axis=0)
    cov = np.cov(returns, rowvar=False)
    n = len(mu)
    kkt = np.zeros((n + 2, n + 2))
    kkt[:n, :n] = 2 * cov
    kkt[:n, n] = kkt[n, :n] = mu
    kkt[:n, n + 1] = kkt[n + 1, :n] = 1
    rhs = np.zeros(n + 2)
    rhs[n], rhs[n + 1] = target, 1
    return np.linalg.solve(kkt, rhs)[:n]


def garch_filter(returns, omega, alpha, beta):
    """GARCH(1, 1) variances and the log-likelihood."""
    var = np.empty_like(returns)
    var[0] = returns.var()
    ll = 0.0
    for t in range(len(returns)):
        if t > 0:
            var[t] = omega + alpha * returns[t - 1] ** 2 + beta * var[t - 1]
        ll -= 0.5 * (np.log(2 * np.pi) + np.log(var[t]) + returns[t] ** 2 / var[t])
    return var, ll


def match_orders(bids, asks):
    """Match sorted [price, quantity] rows, consuming quantities in place; returns the volume."""
    i = j = 0
    volume = 0
    while i < len(bids) and j < len(asks) and bids[i, 0] >= asks[j, 0]:
        q = min(bids[i, 1], asks[j, 1])
        bids[i, 1] -= q
        asks[j, 1] -= q
        volume += q
        if bids[i, 1] == 0:
            i += 1
        if asks[j, 1] == 0:
            j += 1
    return volume


def prices_path(rng, n):
    """Random positive price path."""
    return 100 * np.exp(np.cumsum(rng.standard_normal(n) * 0.02))


PROGRAMS = [
    (
        black_scholes,
        lambda rng: (
            90 + 20 * rng.random(100),
            90 + 20 * rng.random(100),
            0.1 + rng.random(100),
            0.03,
            0.1 + 0.3 * rng.random(100),
            rng.random(100) < 0.5,
        ),
    ),
    (
        black_scholes,
        lambda rng: (
            rng.random(20, np.float32) + 1,
            np.float32(1.2),
            np.float32(0.5),
            0.03,
            0.2,
            True,
        ),
    ),
    (black_scholes_greeks, lambda rng: (100.0, 95.0, 0.5, 0.02, 0.25)),
    (black_scholes_greeks, lambda rng: (100.0, 0.0, 0.5, 0.02, 0.25)),
    (implied_volatility, lambda rng: (8.0, 100.0, 100.0, 1.0, 0.01)),
    (implied_volatility, lambda rng: (200.0, 100.0, 100.0, 1.0, 0.01)),
    (binomial_tree, lambda rng: (100, 105, 1.0, 0.05, 0.2, 50, True)),
    (binomial_tree, lambda rng: (100, 105, 1.0, 0.05, 0.2, 50, False)),
    (binomial_tree_loops, lambda rng: (100, 95, 0.03, 0.2, 1.0, 30)),
    (monte_carlo_european, lambda rng: (100, 105, 1.0, 0.03, 0.2, rng.standard_normal(500))),
    (
        monte_carlo_barrier,
        lambda rng: (100, 100, 90, 0.02, 0.25, 0.05, rng.standard_normal((80, 20))),
    ),
    (
        asian_option_loops,
        lambda rng: (100.0, 100.0, 0.02, 0.3, 0.1, rng.standard_normal((30, 10))),
    ),
    (
        longstaff_schwartz,
        lambda rng: (
            100 * np.exp(np.cumsum(rng.standard_normal((60, 10)) * 0.05, axis=1)),
            102.0,
            0.03,
            0.1,
        ),
    ),
    (crank_nicolson_call, lambda rng: (50.0, 0.05, 0.3, 1.0, 150.0, 30, 10)),
    (yield_to_maturity, lambda rng: (95.0, 100.0, 0.04, 10)),
    (internal_rate_of_return, lambda rng: (np.array([-100.0, 30, 40, 50, 20]),)),
    (amortization, lambda rng: (10000.0, 0.004, 36)),
    (max_drawdown, lambda rng: (prices_path(rng, 200),)),
    (max_drawdown, lambda rng: (np.array([]),)),
    (rsi, lambda rng: (prices_path(rng, 80), 14)),
    (rsi, lambda rng: (np.arange(1.0, 30.0), 14)),
    (crossover_backtest, lambda rng: (prices_path(rng, 120), 5, 20)),
    (mean_variance_weights, lambda rng: (rng.standard_normal((50, 4)) * 0.01, 0.001)),
    (garch_filter, lambda rng: (rng.standard_normal(80) * 0.01, 1e-6, 0.08, 0.9)),
    (
        match_orders,
        lambda rng: (
            np.array([[105, 10], [103, 5], [101, 8], [99, 4]]),
            np.array([[98, 7], [100, 9], [102, 4], [106, 3]]),
        ),
    ),
]
