"""Linear algebra, signal and image processing, physics and finance."""

import math

import numpy as np

G = 9.81
CX = np.array([0, 1, 0, -1, 0, 1, -1, -1, 1])
CY = np.array([0, 0, 1, 0, -1, 1, 1, -1, -1])
WEIGHTS = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
OPPOSITE = [0, 3, 4, 1, 2, 7, 8, 5, 6]


def size(rng, low=5, high=9):
    return int(rng.integers(low, high))


def lu_pivot(A):
    A = A.astype(float)
    n = A.shape[0]
    piv = np.arange(n)
    sign = 1
    for k in range(n - 1):
        p = k + np.argmax(np.abs(A[k:, k]))
        if A[p, k] == 0:
            raise np.linalg.LinAlgError("singular")
        if p != k:
            A[[k, p]] = A[[p, k]]
            piv[[k, p]] = piv[[p, k]]
            sign = -sign
        A[k + 1 :, k] /= A[k, k]
        A[k + 1 :, k + 1 :] -= np.outer(A[k + 1 :, k], A[k, k + 1 :])
    return A, piv, sign * np.prod(np.diag(A))


def lu_pivot_args(rng):
    n = size(rng, 3, 6)
    a = rng.integers(-5, 6, (n, n))
    if rng.random() < 0.4:
        a[:, 0] = 0
    return (a,)


def householder_qr(A):
    m, n = A.shape
    Q = np.eye(m)
    R = A.copy()
    for k in range(min(m - 1, n)):
        x = R[k:, k]
        alpha = -np.copysign(np.linalg.norm(x), x[0])
        v = x.copy()
        v[0] -= alpha
        nv = np.linalg.norm(v)
        if nv < 1e-14:
            continue
        v /= nv
        R[k:, k:] -= 2.0 * np.outer(v, v @ R[k:, k:])
        Q[:, k:] -= 2.0 * np.outer(Q[:, k:] @ v, v)
    return Q, np.triu(R)


def qr_args(rng):
    return (rng.random((size(rng, 6, 9), size(rng, 3, 6))),)


def svd_power(A, k=1, iters=30):
    m, n = A.shape
    U, S, Vt = np.zeros((m, k)), np.zeros(k), np.zeros((k, n))
    residual = A.copy()
    for i in range(k):
        v = np.ones(n) / math.sqrt(n)
        for _ in range(iters):
            v = residual.T @ (residual @ v)
            v /= np.linalg.norm(v)
        u = residual @ v
        S[i] = np.linalg.norm(u)
        U[:, i] = u / S[i]
        Vt[i] = v
        residual -= S[i] * np.outer(U[:, i], v)
    return U, S, Vt


def svd_args(rng):
    return rng.random((size(rng), size(rng))), 2


def thomas(a, b, c, d):
    n = len(d)
    cp, dp, x = np.empty(n), np.empty(n), np.empty(n)
    cp[0], dp[0] = c[0] / b[0], d[0] / b[0]
    for i in range(1, n):
        m = b[i] - a[i] * cp[i - 1]
        cp[i] = c[i] / m if i < n - 1 else 0.0
        dp[i] = (d[i] - a[i] * dp[i - 1]) / m
    x[-1] = dp[-1]
    for i in reversed(range(n - 1)):
        x[i] = dp[i] - cp[i] * x[i + 1]
    return x


def thomas_args(rng):
    n = size(rng)
    return rng.random(n), rng.random(n) + 3, rng.random(n), rng.random(n)


def natural_spline(x, y, xq):
    n = len(x) - 1
    h = np.diff(x)
    A = np.zeros((n + 1, n + 1))
    rhs = np.zeros(n + 1)
    A[0, 0] = A[n, n] = 1
    for i in range(1, n):
        A[i, i - 1 : i + 2] = h[i - 1], 2 * (h[i - 1] + h[i]), h[i]
        rhs[i] = 3 * ((y[i + 1] - y[i]) / h[i] - (y[i] - y[i - 1]) / h[i - 1])
    c = np.linalg.solve(A, rhs)
    b = (y[1:] - y[:-1]) / h - h * (2 * c[:-1] + c[1:]) / 3
    d = (c[1:] - c[:-1]) / (3 * h)
    k = np.clip(np.searchsorted(x, xq, side="right") - 1, 0, n - 1)
    t = xq - x[k]
    return y[k] + t * (b[k] + t * (c[k] + t * d[k]))


def spline_args(rng):
    n = size(rng)
    return np.sort(rng.random(n)), rng.random(n), rng.random(size(rng))


def dct2(x):
    n = len(x)
    out = np.zeros(n)
    for k in range(n):
        s = 0.0
        for i in range(n):
            s += x[i] * math.cos(math.pi / n * (i + 0.5) * k)
        out[k] = s * (math.sqrt(1 / n) if k == 0 else math.sqrt(2 / n))
    return out


def dct_args(rng):
    return (rng.random(size(rng)),)


def fft_recursive(x):
    n = x.shape[0]
    if n % 2 > 0:
        return x.astype(complex)
    if n <= 2:
        return np.array([x[0] + x[1], x[0] - x[1]], dtype=complex)
    even = fft_recursive(x[::2])
    odd = fft_recursive(x[1::2])
    factor = np.exp(-2j * np.pi * np.arange(n) / n)
    return np.concatenate([even + factor[: n // 2] * odd, even + factor[n // 2 :] * odd])


def fft_args(rng):
    return (rng.random(2 ** size(rng, 2, 5)),)


def convolve_full(a, b):
    out = np.zeros(len(a) + len(b) - 1, dtype=np.result_type(a, b))
    for i, ai in enumerate(a):
        out[i : i + len(b)] += ai * b
    return out


def convolve_args(rng):
    return rng.integers(-3, 4, size(rng)).astype(np.int16), rng.random(size(rng)).astype("f4")


def sobel(img, threshold=None):
    kx = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=np.float32)
    ky = kx.T
    p = np.pad(img.astype(np.float32), 1, mode="edge")
    h, w = img.shape
    gx = np.zeros((h, w), np.float32)
    gy = np.zeros_like(gx)
    for i in range(3):
        for j in range(3):
            gx += kx[i, j] * p[i : i + h, j : j + w]
            gy += ky[i, j] * p[i : i + h, j : j + w]
    mag = np.hypot(gx, gy)
    mag *= 255.0 / mag.max()
    return mag.astype(np.uint8) if threshold is None else mag > threshold


def image_args(rng):
    return (rng.integers(0, 256, (size(rng), size(rng))).astype(np.uint8),)


def sobel_threshold_args(rng):
    return (*image_args(rng), 100.0)


def median_filter(img, radius=1):
    out = np.empty_like(img)
    h, w = img.shape
    for y in range(h):
        for x in range(w):
            window = img[
                max(0, y - radius) : min(h, y + radius + 1),
                max(0, x - radius) : min(w, x + radius + 1),
            ]
            flat = np.sort(window, axis=None)
            out[y, x] = flat[flat.size // 2]
    return out


def equalise(img):
    hist = np.bincount(img.ravel(), minlength=256)
    cdf = hist.cumsum()
    cdf_min = cdf[cdf > 0][0]
    lut = np.round((cdf - cdf_min) * 255.0 / (img.size - cdf_min)).clip(0, 255).astype(np.uint8)
    return lut[img]


def histogram_loops(img, bins=16):
    hist = [0] * bins
    counts = np.zeros(bins, np.int64)
    for px in img.flat:
        counts[px * bins // 256] += 1
    for i, c in enumerate(counts):
        hist[i] = c / img.size
    return np.array(hist)


def trace_sphere(width, height, centre, radius, light):
    image = np.zeros((height, width, 3))
    light = light / np.linalg.norm(light)
    for j in range(height):
        for i in range(width):
            d = np.array([(i - width / 2) / width, (j - height / 2) / height, 1.0])
            d /= np.sqrt(d @ d)
            oc = -centre
            b = 2 * np.dot(oc, d)
            c = np.dot(oc, oc) - radius**2
            disc = b * b - 4 * c
            if disc < 0:
                continue
            t = (-b - disc**0.5) / 2
            if t <= 0:
                continue
            normal = (t * d - centre) / radius
            shade = max(0.0, float(normal @ light))
            image[j, i] = 0.1 + 0.9 * shade
    return image


def sphere_args(rng):
    return size(rng), size(rng), np.array([0.0, 0.1, 3.0]), 1.0, rng.normal(size=3)


def monte_carlo_pi(u):
    inside = 0
    for x, y in u:
        if x * x + y * y <= 1.0:
            inside += 1
    return 4 * inside / len(u)


def pi_args(rng):
    return (rng.random((size(rng, 10, 30), 2)),)


def percolates(grid):
    n, m = grid.shape
    full = np.zeros_like(grid)
    full[0] = grid[0]
    changed = True
    sweeps = 0
    while changed:
        changed = False
        sweeps += 1
        for i in range(n):
            for j in range(m):
                if grid[i, j] and not full[i, j]:
                    if (
                        (i > 0 and full[i - 1, j])
                        or (i < n - 1 and full[i + 1, j])
                        or (j > 0 and full[i, j - 1])
                        or (j < m - 1 and full[i, j + 1])
                    ):
                        full[i, j] = True
                        changed = True
    return full[-1].any(), full, sweeps


def percolates_args(rng):
    return (rng.random((size(rng), size(rng))) < 0.65,)


def sandpile(grid):
    topples = 0
    while (unstable := grid >= 4).any():
        n = unstable.astype(grid.dtype)
        grid -= 4 * n
        grid[1:] += n[:-1]
        grid[:-1] += n[1:]
        grid[:, 1:] += n[:, :-1]
        grid[:, :-1] += n[:, 1:]
        topples += int(n.sum())
    return topples


def sandpile_args(rng):
    return (rng.integers(0, 9, (size(rng), size(rng))),)


def ising(spins, uniforms, beta):
    L = spins.shape[0]
    mags = np.empty(len(uniforms))
    for step, (a, b, r) in enumerate(uniforms):
        i, j = int(a * L), int(b * L)
        s = spins[i, j]
        nb = spins[(i + 1) % L, j] + spins[i - 1, j] + spins[i, (j + 1) % L] + spins[i, j - 1]
        dE = 2 * s * nb
        if dE <= 0 or r < np.exp(-beta * dE):
            spins[i, j] = -s
        mags[step] = spins.mean()
    return mags


def ising_args(rng):
    n = size(rng)
    return rng.choice(np.array([-1, 1], np.int8), (n, n)), rng.random((20, 3)), 0.4


def lbm(f, steps, tau, solid):
    for _ in range(steps):
        for i, (cx, cy) in enumerate(zip(CX, CY)):
            f[i] = np.roll(f[i], (cy, cx), axis=(0, 1))
        bounced = f[OPPOSITE][:, solid]
        rho = f.sum(axis=0)
        ux = np.tensordot(CX, f, axes=1) / rho
        uy = np.einsum("i,ijk->jk", CY, f) / rho
        feq = np.empty_like(f)
        usq = 1.5 * (ux**2 + uy**2)
        for i in range(9):
            cu = 3 * (CX[i] * ux + CY[i] * uy)
            feq[i] = rho * WEIGHTS[i] * (1 + cu + 0.5 * cu**2 - usq)
        f += -(1.0 / tau) * (f - feq)
        f[:, solid] = bounced
    return rho, ux, uy


def lbm_args(rng):
    h, w = size(rng), size(rng)
    return rng.random((9, h, w)) + 1, size(rng, 2, 4), 0.8, rng.random((h, w)) < 0.2


def sph_step(pos, vel, h=0.3, k=1.0, rho0=1.0, dt=0.01):
    n = len(pos)
    rho = np.zeros(n)
    for i in range(n):
        for j in range(n):
            r = np.linalg.norm(pos[i] - pos[j])
            if r < h:
                rho[i] += (1 - (r / h) ** 2) ** 3
    p = k * (rho - rho0)
    acc = np.zeros_like(pos)
    acc[:, 1] -= G
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            d = pos[i] - pos[j]
            r = math.sqrt(d[0] ** 2 + d[1] ** 2)
            if 0 < r < h:
                acc[i] += (p[i] + p[j]) / (2 * rho[j]) * (1 - r / h) ** 2 * d / r
    vel += dt * acc
    pos += dt * vel
    return rho


def sph_args(rng):
    n = size(rng)
    return rng.random((n, 2)), np.zeros((n, 2))


def norm_cdf(x):
    k = 1.0 / (1.0 + 0.2316419 * np.abs(x))
    poly = k * (
        0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429)))
    )
    v = 1.0 - np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * poly
    return np.where(x >= 0, v, 1.0 - v)


def black_scholes(S, K, T, r=0.02, sigma=0.3, kind="call"):
    sqrt_t = np.sqrt(T)
    d1 = (np.log(S / K) + (r + 0.5 * sigma**2) * T) / (sigma * sqrt_t)
    d2 = d1 - sigma * sqrt_t
    if kind == "call":
        return S * norm_cdf(d1) - K * np.exp(-r * T) * norm_cdf(d2)
    elif kind == "put":
        return K * np.exp(-r * T) * norm_cdf(-d2) - S * norm_cdf(-d1)
    raise ValueError(f"unknown kind {kind!r}")


def black_scholes_args(rng):
    n = size(rng)
    kind = ("call", "put", "both")[int(rng.integers(3))]
    return rng.random(n) * 100 + 1, rng.random(n) * 100 + 1, rng.random(n), 0.02, 0.3, kind


def binomial_tree(S0, K, T, r, sigma, n, american=False, put=True):
    dt = T / n
    u = math.exp(sigma * math.sqrt(dt))
    d = 1 / u
    q = (math.exp(r * dt) - d) / (u - d)
    disc = math.exp(-r * dt)
    payoff = (lambda s: np.maximum(K - s, 0.0)) if put else (lambda s: np.maximum(s - K, 0.0))
    prices = S0 * d ** np.arange(n, -1, -1) * u ** np.arange(0, n + 1)
    v = payoff(prices)
    for i in range(n - 1, -1, -1):
        v = disc * (q * v[1 : i + 2] + (1 - q) * v[0 : i + 1])
        if american:
            s = S0 * d ** np.arange(i, -1, -1) * u ** np.arange(0, i + 1)
            v = np.maximum(v, payoff(s))
    return v[0]


def binomial_args(rng):
    return 100.0, 90.0 + rng.random() * 20, 1.0, 0.03, 0.2, size(rng), bool(rng.integers(2))


def value_at_risk(returns, weights, alpha=0.05):
    portfolio = returns @ weights
    var = -np.quantile(portfolio, alpha)
    tail = portfolio[portfolio <= -var]
    es = -tail.mean() if tail.size else var
    drawdown = 0.0
    peak = wealth = 1.0
    for r in portfolio:
        wealth *= 1 + r
        peak = max(peak, wealth)
        drawdown = max(drawdown, 1 - wealth / peak)
    return {"var": var, "es": es, "max_drawdown": drawdown}


def var_args(rng):
    n, m = size(rng, 30, 60), size(rng)
    return rng.normal(size=(n, m)) * 0.02, np.full(m, 1 / m)


def moving_averages(x, window=3, alpha=0.3, kind="sma"):
    match kind:
        case "sma":
            c = np.cumsum(np.insert(x, 0, 0.0))
            return (c[window:] - c[:-window]) / window
        case "ema":
            out = np.empty_like(x)
            out[0] = x[0]
            for i in range(1, len(x)):
                out[i] = alpha * x[i] + (1 - alpha) * out[i - 1]
            return out
        case _:
            raise ValueError(kind)


def averages_args(rng):
    return rng.random(size(rng)), 3, 0.3, ["sma", "ema", "wma"][int(rng.integers(3))]


PROGRAMS = [
    (lu_pivot, lu_pivot_args),
    (householder_qr, qr_args),
    (svd_power, svd_args),
    (thomas, thomas_args),
    (natural_spline, spline_args),
    (dct2, dct_args),
    (fft_recursive, fft_args),
    (convolve_full, convolve_args),
    (sobel, image_args),
    (sobel, sobel_threshold_args),
    (median_filter, image_args),
    (equalise, image_args),
    (histogram_loops, image_args),
    (trace_sphere, sphere_args),
    (monte_carlo_pi, pi_args),
    (percolates, percolates_args),
    (sandpile, sandpile_args),
    (ising, ising_args),
    (lbm, lbm_args),
    (sph_step, sph_args),
    (black_scholes, black_scholes_args),
    (binomial_tree, binomial_args),
    (value_at_risk, var_args),
    (moving_averages, averages_args),
]
