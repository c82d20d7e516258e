"""Lists that grow, closures with state, classes and arrays that are chosen, as programs use them."""

from collections import namedtuple
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, reduce

import numpy as np


def hull_list(p):
    order = np.lexsort((p[:, 1], p[:, 0]))

    def chain(idx):
        h = []
        for i in idx:
            while len(h) >= 2:
                o, a = (p[h[-2]], p[h[-1]])
                if (a[0] - o[0]) * (p[i, 1] - o[1]) - (a[1] - o[1]) * (p[i, 0] - o[0]) > 0:
                    break
                h.pop()
            h.append(i)
        return h

    lower = chain(order)
    upper = chain(order[::-1])
    return np.array(lower[:-1] + upper[:-1])


def spgemm(A, B):

    def csr(M):
        r, c = np.nonzero(M)
        ptr = np.zeros(M.shape[0] + 1, dtype=np.int64)
        np.add.at(ptr, r + 1, 1)
        return (np.cumsum(ptr), c, M[r, c])

    pa, ca, va = csr(A)
    pb, cb, vb = csr(B)
    n = A.shape[0]
    acc = np.zeros(B.shape[1], va.dtype)
    mark = np.full(B.shape[1], -1)
    cols = []
    vals = []
    ptr = np.zeros(n + 1, int)
    for i in range(n):
        row = []
        for t in range(pa[i], pa[i + 1]):
            k = ca[t]
            for s in range(pb[k], pb[k + 1]):
                j = cb[s]
                if mark[j] != i:
                    mark[j] = i
                    acc[j] = 0
                    row.append(j)
                acc[j] += va[t] * vb[s]
        for j in row:
            cols.append(j)
            vals.append(acc[j])
        ptr[i + 1] = len(cols)
    return (ptr, np.array(cols), np.array(vals))


DS = namedtuple("DS", "parent size")


def percolation_clusters(pts, radius):
    ds = DS(np.arange(len(pts)), np.ones(len(pts), np.int32))

    def find(i):
        while ds.parent[i] != i:
            ds.parent[i] = ds.parent[ds.parent[i]]
            i = ds.parent[i]
        return i

    for i in range(len(pts)):
        for j in range(i):
            if np.hypot(*pts[i] - pts[j]) < radius:
                a, b = (find(i), find(j))
                if a != b:
                    if ds.size[a] < ds.size[b]:
                        a, b = (b, a)
                    ds.parent[b] = a
                    ds.size[a] += ds.size[b]
    return (ds, np.unique([find(i) for i in range(len(pts))]))


def life_period(board):
    hashes = np.zeros(41, np.uint64)
    weights = np.arange(1, board.size + 1, dtype=np.uint64).reshape(board.shape) * np.uint64(
        11400714819323198485
    )
    for t in range(40):
        hashes[t] = (board * weights).sum()
        hit = np.flatnonzero(hashes[:t] == hashes[t])
        if hit.size:
            return (t, t - hit[-1], board)
        p = np.pad(board.astype(np.uint8), 1, mode="wrap")
        nb = sum(
            (
                p[i : i + board.shape[0], j : j + board.shape[1]]
                for i in range(3)
                for j in range(3)
                if (i, j) != (1, 1)
            )
        )
        board = (nb == 3) | board & (nb == 2)
    return (-1, -1, board)


class Poly:
    def __init__(self, *c):
        self.c = np.asarray(c, float)

    def __call__(self, x):
        return reduce(lambda acc, a: acc * x + a, self.c[::-1], 0.0)

    def __add__(self, o):
        n = max(len(self.c), len(o.c))
        c = np.zeros(n)
        c[: len(self.c)] += self.c
        c[: len(o.c)] += o.c
        return Poly(*c)

    def __mul__(self, o):
        return Poly(*np.convolve(self.c, o.c))

    def __getitem__(self, k):
        return self.c[k]

    def __len__(self):
        return len(self.c)

    def __iter__(self):
        return iter(self.c)

    def __eq__(self, o):
        return len(self) == len(o) and bool((self.c == o.c).all())

    @property
    def deriv(self):
        return Poly(*self.c[1:] * np.arange(1, len(self.c)))


def polynomials(a, b):
    p, q = (Poly(*a), Poly(*b))
    r = p * q + p
    return (r(0.5), r.deriv(0.5), len(r), r[-1], p == p, p == q, sum((c * c for c in r)))


def closures_state(x):

    def make(k):
        total = 0.0

        def add(v):
            nonlocal total
            total = total * k + v
            return total

        return add

    f, g = (make(0.5), make(-1.0))
    for v in x:
        if v > 0:
            f(v)
        else:
            g(v)
    return (f(0.0), g(0.0))


class Mode(IntEnum):
    ADD = 0
    MUL = 1
    NEG = 2


def enum_ops(codes):
    acc = 1
    for c in codes:
        k = c % 3
        if k == Mode.ADD:
            acc += c
        elif k == Mode.MUL:
            acc = acc * c % 1009
        elif k == Mode.NEG:
            acc = -acc
    return acc


class Box:
    def __init__(self, x):
        self.x = x

    @cached_property
    def total(self):
        s = 0.0
        for v in self.x:
            if v > 0:
                s += v
        return s

    @property
    def scaler(self):
        if self.x[0] > 0:
            k = 2.0
        else:
            k = 3.0
        return lambda v: k * v

    @staticmethod
    def st(v):
        return v + 1 if v > 0 else v - 1

    @classmethod
    def cl(cls, v):
        return cls(v * 2).x.sum()


def cached_props(x):
    b = Box(x)
    return (b.total + b.total, b.scaler(2.0), b.st(x[0]), Box.st(x[1]), b.cl(x), Box.cl(x))


def int_methods(a):
    n = int(a.sum())
    f = float(n) / 2
    return (
        n.bit_length(),
        n.bit_count(),
        (-n).bit_length(),
        f.is_integer(),
        n.real,
        n.imag,
        n.conjugate(),
        n.numerator,
        n.denominator,
        f.real,
        f.conjugate(),
    )


def nonlocal_arrays(x):
    best = np.zeros_like(x)
    count = 0

    def consider(v, i):
        nonlocal best, count
        if v > 0:
            best = best * 0.5 + v
            count += 1
        elif v < -1:
            best[i] = v

    for i in range(len(x)):
        if i % 2 == 0:
            consider(x[i], i)
    return (best, count)


def nonlocal_unset(x):

    def outer():
        val = None

        def setv(v):
            nonlocal val
            val = v

        def get():
            return val

        return (setv, get)

    s, g = outer()
    for v in x:
        if v > 0.3:
            s(v)
    r = g()
    return -1.0 if r is None else r


def rk_class(x):

    class Osc:
        def __init__(self, w):
            self.w = w
            self.evals = 0

        def __call__(self, t, y):
            self.evals += 1
            return np.array([y[1], -(self.w**2) * y[0]])

    def rk4(f, t, y, h):
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    o = Osc(x[0])
    y = x[1:3]
    for i in range(6):
        y = rk4(o, 0.1 * i, y, 0.1)
    return (y, o.evals)


def decorators(x):

    def twice(f):

        def g(*a, **k):
            return f(f(*a, **k))

        return g

    @twice
    def step(v):
        return v * 0.5 if v.sum() > 0 else v + 1

    return step(x)


def methods_bound(x):
    out = []
    push = out.append
    for v in x:
        if v > 0:
            push(v)
    s = x.sum
    mx = x.max
    return (
        len(out),
        s(),
        mx(),
        list(map(np.abs, x[:2])),
        [f(x) for f in (np.min, np.max, np.mean)],
    )


def sort_objects(x):
    pts = [(v, i) for i, v in enumerate(x[:5])]
    pts.sort(key=lambda p: -p[0])
    top = pts[:2]
    order = sorted(range(5), key=lambda i: (x[i] > 0, abs(x[i])))
    return (top, order, min(pts)[1])


@dataclass
class Buf:
    front: np.ndarray
    back: np.ndarray
    n: int = 0

    def swap(self):
        self.front, self.back = (self.back, self.front)
        self.n += 1

    def step(self):
        self.back[1:-1] = 0.5 * (self.front[2:] + self.front[:-2])
        self.swap()


def double_buffer(x, k):
    b = Buf(x.copy(), np.zeros_like(x))
    for _ in range(k):
        b.step()
    return (b.front, b.back, b.n)


def list_of_arrays(x):
    rows = [x * k for k in range(3)]
    rows[1][0] = 99
    for r in rows:
        r -= 1
    if x[0] > 0:
        rows[2] = rows[0]
    rows[2][1] = -5
    rows[0], rows[1] = (rows[1], rows[0])
    return rows


def dict_of_arrays(x):
    st = {"a": x.copy(), "b": np.zeros_like(x), "t": 0}
    for i in range(4):
        st["b"] += st["a"] * 0.5
        if st["b"].max() > 1:
            st["a"], st["b"] = (st["b"], st["a"])
        st["t"] += 1
    return st


def helper_mutates(x):

    def inc(a, k):
        a[k] += 1
        return a

    def twice(a):
        inc(a, 0)
        inc(a[1:], 0)
        inc(a[::-1], 0)

    for i in range(3):
        if x[i] > 0:
            twice(x)
        else:
            inc(x, i)
    return inc(x, 1) is x


def while_true_return(x):
    lo, hi = (0, len(x) - 1)
    x.sort()
    while True:
        if lo > hi:
            return (-1, lo)
        mid = lo + hi >> 1
        if abs(x[mid]) < 0.1:
            return (mid, x[mid] * 0)
        lo, hi = (mid + 1, hi) if x[mid] < 0 else (lo, mid - 1)


def generator_helpers(a):

    def windows(v, k):
        for i in range(0, len(v) - k + 1, k):
            yield (i, v[i : i + k])

    tot = 0.0
    for row in a:
        for i, w in windows(row, 2):
            tot += w.max() * (i + 1)
    return (tot, [w.sum() for _, w in windows(a[0], 2)], max((abs(v) for r in a for v in r[:2])))


def empties(x):
    e = x[x > 100]
    r = []
    for v in e:
        r.append(v)
    t = 0.0
    for i in range(len(e)):
        t += e[i]
    return (
        e.sum(),
        len(e),
        e.size == 0,
        e.max() if e.size else -1.0,
        t,
        np.sort(e),
        e.mean() if len(e) > 0 else 0.0,
        np.concatenate([e, x]),
        e.reshape(0, 1).shape,
    )


def inplace_sorts(a):
    a[:, 0].sort()
    a[::2].sort(axis=0)
    a.T[1][::-1].sort()
    c = a.copy()
    c.partition(2, axis=1)
    return (c[:, 2], np.argsort(a, axis=None, kind="stable")[:4], a.argsort(axis=0, kind="stable"))


def overlapping_inplace(a):
    v = a[1:]
    w = a[:-1]
    v += w
    a[:, ::-1][:, 1:] -= a[:, 1:]
    a.T[0] *= 2
    d = a.ravel()[:: a.shape[1] + 1]
    a[...] = a.T
    a[::2], a[1::2] = (a[::2] * 2, a[1::2] + 1)
    b = a.reshape(-1)
    b[3:7] = b[1:5]
    return (b[::-2], d)


def layouts(a, b):
    a[0] += b[-1]
    a.T[1] = 2 * a.T[0]
    c = a @ b.T
    b[:, ::-1][1] *= 3
    return (
        c,
        a.sum(0),
        b.ravel(),
        a.ravel(order="F"),
        a.reshape(-1, order="F")[::2],
        np.ascontiguousarray(b.T),
    )


PROGRAMS = [
    (hull_list, lambda rng: (rng.random((6 + 3, 2)),)),
    (
        spgemm,
        lambda rng: (
            (rng.random((6, 6)) < 0.4) * rng.integers(1, 5, (6, 6)),
            (rng.random((6, 6)) < 0.4) * rng.integers(1, 5, (6, 6)),
        ),
    ),
    (percolation_clusters, lambda rng: (rng.random((6, 2)), 0.35)),
    (life_period, lambda rng: (rng.random((6, 6)) < 0.4,)),
    (polynomials, lambda rng: (rng.standard_normal(3), rng.standard_normal(2))),
    (closures_state, lambda rng: (rng.standard_normal(6),)),
    (enum_ops, lambda rng: (rng.integers(0, 20, 6),)),
    (cached_props, lambda rng: (rng.standard_normal(6),)),
    (int_methods, lambda rng: (rng.integers(0, 20, 6),)),
    (nonlocal_arrays, lambda rng: (rng.standard_normal(6),)),
    (nonlocal_unset, lambda rng: (rng.standard_normal(6),)),
    (rk_class, lambda rng: (rng.standard_normal(6),)),
    (decorators, lambda rng: (rng.standard_normal(6),)),
    (methods_bound, lambda rng: (rng.standard_normal(6),)),
    (sort_objects, lambda rng: (rng.standard_normal(6),)),
    (double_buffer, lambda rng: (rng.standard_normal(6), 5)),
    (list_of_arrays, lambda rng: (rng.standard_normal(6),)),
    (dict_of_arrays, lambda rng: (rng.standard_normal(6),)),
    (helper_mutates, lambda rng: (rng.standard_normal(6),)),
    (while_true_return, lambda rng: (rng.standard_normal(6),)),
    (generator_helpers, lambda rng: (rng.standard_normal((3, 6)),)),
    (empties, lambda rng: (rng.standard_normal(6),)),
    (inplace_sorts, lambda rng: (rng.integers(0, 99, size=(6, 6)),)),
    (overlapping_inplace, lambda rng: (rng.integers(0, 9, size=(6, 6)),)),
    (
        layouts,
        lambda rng: (
            np.asfortranarray(rng.standard_normal((6, 6 + 1))),
            rng.standard_normal((2 * 6, 3 * 6 + 3))[::2, ::3],
        ),
    ),
]
