"""Many Python styles around plain NumPy."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

LUT = np.arange(10) ** 2
SCALE = 3


def size(rng, low=5, high=9):
    return int(rng.integers(low, high))


class Stats(NamedTuple):
    mean: float
    var: float
    count: int = 0


def welford(x):
    s = Stats(0.0, 0.0)
    for v in x:
        n = s.count + 1
        delta = v - s.mean
        mean = s.mean + delta / n
        s = Stats(mean, s.var + delta * (v - mean), n)
    return s._replace(var=s.var / max(s.count - 1, 1))


@dataclass(frozen=True)
class Grid:
    u: np.ndarray
    h: float
    t: float = 0.0

    @property
    def lap(self):
        out = np.zeros_like(self.u)
        out[1:-1] = (self.u[2:] - 2 * self.u[1:-1] + self.u[:-2]) / self.h**2
        return out

    def step(self, dt):
        return replace(self, u=self.u + dt * self.lap, t=self.t + dt)


def diffuse(grid, n, dt=1e-3):
    for _ in range(n):
        grid = grid.step(dt)
    return grid


class Adam:
    def __init__(self, n, lr=0.1):
        self.m, self.v, self.t, self.lr = np.zeros(n), np.zeros(n), 0, lr

    def __call__(self, w, g, b1=0.9, b2=0.999):
        self.t += 1
        self.m[:] = b1 * self.m + (1 - b1) * g
        self.v *= b2
        self.v += (1 - b2) * g**2
        mhat = self.m / (1 - b1**self.t)
        vhat = self.v / (1 - b2**self.t)
        w -= self.lr * mhat / (np.sqrt(vhat) + 1e-8)
        return w


def fit(opt, w, X, y):
    losses = []
    for _ in range(4):
        r = X @ w - y
        losses.append(0.5 * r @ r)
        opt(w, X.T @ r)
    return losses


def fit_args(rng):
    n = size(rng)
    return Adam(n), rng.random(n), rng.random((10, n)), rng.random(10)


def dict_state(state, n):
    state["history"] = np.zeros(n)
    for i in range(n):
        state["x"] += state["v"] * 0.1
        state["v"] = state["v"] * 0.9
        state["history"][i] = state["x"].sum()
    return {k: v for k, v in state.items() if k != "v"}


def counter_closure(x):
    total = 0.0

    def add(v):
        nonlocal total
        total += v
        return total

    out = np.empty(len(x))
    for i in range(len(x)):
        out[i] = add(x[i])
    return out, total


def views(a):
    top, bottom = a[: len(a) // 2], a[len(a) // 2 :]
    t = a.T
    t[0] = -1
    diag = np.einsum("ii->i", a[: a.shape[1], :])
    diag[:] = 9
    flat = a.reshape(-1)
    flat[::3] += 100
    np.negative(bottom, out=bottom)
    top[...], rev = top[::-1].copy(), a[::-1, ::-1]
    rev[0, 0] = 5
    return rev[..., :2]


def views_args(rng):
    m = size(rng, 3, 5)
    return (rng.integers(0, 50, (m + size(rng, 0, 3), m)),)


def int_wrap(a, b):
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        c = a + b
        d = a // b
        e = a % b
        f = a / b
        g = a * 2
        h = -a
        q = a >> 1
        r = a**2
        s = np.divmod(a, np.int16(-7))
    return c, d, e, f, g, h, q, r, s


def int_wrap_args(rng):
    n = size(rng)
    return rng.integers(-128, 128, n).astype(np.int8), rng.integers(-3, 4, n).astype(np.int8)


def raise_on_divide(a, b):
    out = np.zeros_like(a)
    with np.errstate(divide="raise"):
        for i in range(len(a)):
            out[i] = a[i] / b[i]
        a[:] = out
    return a


def raise_args(rng):
    n = size(rng)
    return rng.random(n) + 1, rng.integers(0, 4, n).astype(float)


def validate(x, y=None, *, axis=-1, mode="sum"):
    if x.ndim != 2:
        raise TypeError(f"expected a matrix, got {x.ndim} dimensions")
    if y is not None and x.shape != y.shape:
        raise ValueError("shapes differ: {} and {}".format(x.shape, y.shape))
    assert mode in {"sum", "prod"}, mode
    z = x if y is None else x * y
    return getattr(z, mode)(axis=axis)


def validate_args(rng):
    k = int(rng.integers(3))
    x = rng.random((3, size(rng)))
    return (x, [None, x + 1, x[:2]][k])


def report(x, verbose=True):
    best = -np.inf
    for i, v in enumerate(x):
        if v > best:
            best = v
            if verbose:
                print("new best", i, v)
    print(f"final {best:.3f}", end="!\n")
    return best


def collatz(limit):
    lengths = np.zeros(limit, dtype=np.int32)
    for n in range(1, limit):
        k, steps = n, 0
        while k != 1:
            k = k // 2 if k % 2 == 0 else 3 * k + 1
            steps += 1
        lengths[n] = steps
    return lengths, int(np.argmax(lengths))


def merge_sort(a):
    n = len(a)
    if n < 2:
        return a
    left, right = merge_sort(a[: n // 2]), merge_sort(a[n // 2 :])
    out = np.empty_like(a)
    i = j = 0
    for k in range(n):
        if j >= len(right) or (i < len(left) and left[i] <= right[j]):
            out[k] = left[i]
            i += 1
        else:
            out[k] = right[j]
            j += 1
    return out


def quicksort(a):
    stack = np.zeros((len(a) + 1, 2), int)
    stack[0] = 0, len(a) - 1
    sp = 1
    while sp:
        sp -= 1
        lo, hi = stack[sp]
        if lo >= hi:
            continue
        pivot = a[(lo + hi) // 2]
        i, j = lo, hi
        while i <= j:
            while a[i] < pivot:
                i += 1
            while a[j] > pivot:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i, j = i + 1, j - 1
        stack[sp : sp + 2] = (lo, j), (i, hi)
        sp += 2


def quick_args(rng):
    return (rng.integers(0, 30, size(rng, 5, 15)),)


def binary_search(a, targets):
    out = np.full(targets.shape, -1)
    for k, t in np.ndenumerate(targets):
        lo, hi = 0, len(a) - 1
        while lo <= hi:
            mid = (lo + hi) >> 1
            if a[mid] == t:
                out[k] = mid
                break
            elif a[mid] < t:
                lo = mid + 1
            else:
                hi = mid - 1
    return out


def bsearch_args(rng):
    return np.unique(rng.integers(0, 30, 15)), rng.integers(0, 30, (2, size(rng)))


def complex_roots(coef, iters=40):
    n = len(coef) - 1
    roots = (0.4 + 0.9j) ** np.arange(n)
    for _ in range(iters):
        old = roots.copy()
        for i in range(n):
            num = np.polyval(coef, roots[i])
            den = np.prod([roots[i] - roots[j] for j in range(n) if j != i])
            roots[i] -= num / den
        if np.allclose(old, roots, atol=1e-12):
            break
    return roots.real.round(6), np.abs(roots.imag).max() < 10


def roots_args(rng):
    return (np.concatenate(([1.0], rng.normal(size=size(rng, 2, 5)))),)


def julia(width, c=-0.4 + 0.6j, maxit=20):
    img = np.zeros((width, width), dtype=np.uint8)
    for y in range(width):
        for x in range(width):
            z = complex(3 * x / width - 1.5, 2 * y / width - 1)
            n = 0
            while abs(z) <= 2 and n < maxit:
                z = z * z + c
                n += 1
            img[y, x] = n
    return img


def game_of_lookup(idx, scale=SCALE):
    out = []
    for row in idx:
        out.append(LUT[row] * scale)
    return np.stack(out), [int(r.max()) for r in out]


def spiral(n):
    a = np.zeros((n, n), dtype=np.uint16)
    r = c = 0
    dr, dc = 0, 1
    for k in range(1, n * n + 1):
        a[r, c] = k
        nr, nc = r + dr, c + dc
        if not (0 <= nr < n and 0 <= nc < n) or a[nr, nc]:
            dr, dc = dc, -dr
        r += dr
        c += dc
    return a


def golden_section(data, lo=-2.0, hi=2.0, tol=1e-6):
    phi = (np.sqrt(5) - 1) / 2
    cost = lambda m: np.abs(data - m).sum() + 0.1 * m**2
    a, b = hi - phi * (hi - lo), lo + phi * (hi - lo)
    fa, fb = cost(a), cost(b)
    evals = 2
    while hi - lo > tol:
        if fa < fb:
            hi, b, fb = b, a, fa
            a = hi - phi * (hi - lo)
            fa = cost(a)
        else:
            lo, a, fa = a, b, fb
            b = lo + phi * (hi - lo)
            fb = cost(b)
        evals += 1
    return (lo + hi) / 2, evals


def masked_fill(a, mode="mean"):
    bad = np.isnan(a)
    fillers = {"mean": np.nanmean, "max": np.nanmax, "zero": lambda v, axis: np.zeros(v.shape[1])}
    fill = fillers[mode](a, axis=0)
    a[bad] = np.broadcast_to(fill, a.shape)[bad]
    rows, cols = np.where(bad)
    return rows, cols, a.min(initial=0.0, where=~bad)


def masked_args(rng):
    a = rng.random((size(rng), 3))
    a[rng.random(a.shape) < 0.3] = np.nan
    a[0] = 1
    return a, ["mean", "max", "zero"][int(rng.integers(3))]


def try_cholesky(a):
    try:
        return np.linalg.cholesky(a), True
    except np.linalg.LinAlgError:
        return None, False


def chol_args(rng):
    n = size(rng, 2, 4)
    b = rng.random((n, n))
    return (b @ b.T + n * np.eye(n),)


def half_precision(x):
    acc = np.float16(0)
    for v in x:
        acc += v * np.float16(0.1)
    y = x * 2 + 1.5
    y[x > 1] = 65504 * 2.0
    return acc, y, x.sum(), x.mean(dtype=np.float32)


def outer_table(n, m):
    a, b = np.arange(n), np.arange(m, dtype=np.uint8)
    t = np.minimum.outer(a, b)
    u = np.add.reduceat(a, [0, n // 2])
    w = np.zeros(4, int)
    np.add.at(w, a % 4, a)
    return t, u, w, np.multiply.accumulate(b[1:4])


def transpose_blocks(a, block=2):
    n = a.shape[0]
    for i in range(0, n, block):
        for j in range(i, n, block):
            p = a[i : i + block, j : j + block]
            q = a[j : j + block, i : i + block]
            tmp = p.T.copy()
            p[...] = q.T
            q[...] = tmp
    return a is not None


def square_args(rng):
    n = 2 * size(rng, 2, 5)
    return (np.asfortranarray(rng.random((n, n))),)


def gen_sum(x, thresholds=(0.2, 0.5)):
    counts = tuple(sum(1 for v in x if v > t) for t in thresholds)
    return counts, any(v > 0.9 for v in x), all(v >= 0 for v in x), sorted(x)[:2], max(x, key=abs)


def string_flags(x, *ops, **options):
    for op in ops:
        if op == "sort":
            x.sort()
        elif op.startswith("scale"):
            x *= options.get("factor", 2)
        elif op == "reverse":
            x[:] = x[::-1].copy()
        else:
            raise KeyError(op)
    return x.sum(**{k: v for k, v in options.items() if k == "axis"})


def flags_args(rng):
    ops = [("sort", "scale2"), ("reverse", "sort"), ("reverse", "flip")][int(rng.integers(3))]
    return (rng.random(size(rng)), *ops)


def swap_buffers(a, b, n):
    for _ in range(n):
        b[1:-1] = (a[:-2] + a[2:]) / 2
        a, b = b, a
    a[0] = -1
    return float(b.sum())


def swap_args(rng):
    n = size(rng)
    return rng.random(n), rng.random(n), size(rng, 1, 5)


PROGRAMS = [
    (welford, lambda rng: (rng.random(size(rng)),)),
    (diffuse, lambda rng: (Grid(rng.random(size(rng)), 0.1), size(rng, 2, 5))),
    (fit, fit_args),
    (dict_state, lambda rng: ({"x": rng.random(3), "v": rng.random(3)}, size(rng))),
    (counter_closure, lambda rng: (rng.random(size(rng)),)),
    (views, views_args),
    (int_wrap, int_wrap_args),
    (raise_on_divide, raise_args),
    (validate, validate_args),
    (report, lambda rng: (rng.random(size(rng)), bool(rng.integers(2)))),
    (collatz, lambda rng: (size(rng, 8, 14),)),
    (merge_sort, lambda rng: (rng.random(size(rng)),)),
    (quicksort, quick_args),
    (binary_search, bsearch_args),
    (complex_roots, roots_args),
    (julia, lambda rng: (size(rng),)),
    (game_of_lookup, lambda rng: (rng.integers(0, 10, (size(rng), 3)),)),
    (spiral, lambda rng: (size(rng, 3, 6),)),
    (golden_section, lambda rng: (rng.normal(size=size(rng)),)),
    (masked_fill, masked_args),
    (try_cholesky, chol_args),
    (half_precision, lambda rng: (rng.normal(size=size(rng)).astype(np.float16),)),
    (outer_table, lambda rng: (size(rng), size(rng))),
    (transpose_blocks, square_args),
    (gen_sum, lambda rng: (rng.random(size(rng)),)),
    (string_flags, flags_args),
    (swap_buffers, swap_args),
]
