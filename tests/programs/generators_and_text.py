"""Generators, formatted text, ufunc methods and `np.vectorize`."""

import cmath
import itertools
import math
from contextlib import contextmanager

import numpy as np


def chunks(v, n):
    for i in range(0, len(v), n):
        yield v[i : i + n]


def chunk_sums(x):
    largest = sum(c.max() for c in chunks(x, 3))
    return [c.sum() for c in chunks(x, 2)], largest, list(chunks(x, 4))


def neighbour_products(x):
    def pairs(v):
        for i in range(len(v) - 1):
            yield v[i], v[i + 1]

    total = 0.0
    for a, b in pairs(x):
        total += a * b
    return total


def fibonacci():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b


def fibonacci_weights(x):
    total = 0
    for k, f in enumerate(fibonacci()):
        if k >= 6:
            break
        total = total + f * x[k]
    return total, list(itertools.islice(fibonacci(), 4)), [v for v, _ in zip(fibonacci(), x)]


def generator_sees_writes(x):
    def three():
        for i in range(3):
            yield x[i]

    for v in three():
        x[2] = x[2] + v
    return x.sum()


def running_mean(x):
    def mean():
        total, n = 0.0, 0
        v = yield
        while True:
            total, n = total + v, n + 1
            v = yield total / n

    m = mean()
    next(m)
    return [m.send(v) for v in x]


def scaled_inside(x):
    @contextmanager
    def scale(k):
        x[0] = 100
        yield k * 2
        x[0] = -1

    with scale(3) as s:
        y = x * s
    return y


def balanced_order(x):
    def tree(v):
        if len(v) == 0:
            return
        m = len(v) // 2
        yield from tree(v[:m])
        yield v[m]
        yield from tree(v[m + 1 :])

    return list(tree(x))


class Doubled:
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        for v in self.x:
            yield v * 2


def iterated_twice(x):
    total = 0
    for v in Doubled(x):
        total += v
    return total, max(Doubled(x)), list(Doubled(x))


def percent_formats(x):
    print("%d %s %.2e" % (3, x.shape, x[0]), x.dtype, sep="-", end="!\n")
    print("%5.1f|%-8.3f|%+d|%05d|%x|%%" % (x[0], x[1], int(x[2] * 100), 7, 255))
    print("%(a).3f %(b)s" % {"a": x[0], "b": "q"}, "%d items" % x[0], "%s and %r" % (x[1], x[2]))
    for i in range(len(x)):
        print("%2d: %8.4f" % (i, x[i]))


def format_methods(x):
    print("{:>10.4f}".format(x[1]), "{0} {1:.2f} {0}".format("a", x[0]), format(x[0], ".3f"))
    print("{v[1]:.3f} {n}".format(v=x, n=3), "{:{w}.{p}f}".format(x[0], w=9, p=3))
    print(", ".join(f"{v:.2f}" for v in x), ", ".join([str(v) for v in x[:2]]) + "!")


def always_raises(x):
    if x[0] > 100:
        raise KeyError("large")
    raise ValueError("value {:.3f} of {}".format(x[0], len(x)))


def folds(x):
    rows = np.logaddexp.reduce(x, axis=1, keepdims=True), np.fmin.reduce(x, axis=1)
    whole = np.hypot.reduce(x, axis=None), np.fmax.reduce(x, axis=(0, 1))
    started = np.subtract.reduce(x, axis=0, initial=3.0), np.divide.reduce(x, axis=1)
    return rows, whole, started, np.remainder.reduce(x[0]), np.maximum.reduceat(x[0], [0, 2, 1])


def integer_folds(x):
    return (
        np.gcd.reduce(x), np.lcm.reduce(x), np.subtract.reduce(x), np.divide.reduce(x), np.logical_xor.reduce(x > 3),
        np.floor_divide.reduce(x), np.gcd.reduce(x[:0]), np.left_shift.reduce(x[:3]), np.bitwise_xor.accumulate(x),
    )  # fmt: skip


def accumulations(x):
    return (
        np.subtract.accumulate(x, axis=1), np.divide.accumulate(x), np.logical_and.accumulate(x > 0),
        np.fmax.accumulate(x, axis=1), np.logaddexp.accumulate(x), np.power.accumulate(abs(x[0])),
    )  # fmt: skip


def changes_at(n, i, v):
    a, b, c = np.ones(n), np.zeros(n, int), np.arange(n) * 1.0
    d, e = np.zeros((n, 2)), np.zeros(n, bool)
    np.divide.at(a, i, v)
    np.bitwise_or.at(b, i, 1 << np.arange(len(i)))
    np.negative.at(c, i)
    np.add.at(d, (i, 0), v)
    np.logical_or.at(e, i, True)
    np.fmax.at(c, i, v)
    return a, b, c, d, e


@np.vectorize
def collatz(n):
    k = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        k += 1
    return k


def vectorized(x, n):
    def step(a, b):
        if a > b:
            return a - b
        return a + b

    table = np.vectorize(step)(x[:, None], x)
    return (
        table,
        np.vectorize(step, otypes=[np.float32])(x, 0.5),
        collatz(n),
        np.vectorize(lambda v: (v, v * 2))(x),
    )


def python_math(x, z):
    return (
        math.isclose(x[0], x[0] + 1e-12), math.isclose(x[0], x[1]), math.dist(x[:2], x[2:4]), math.prod(x), math.fsum(x),
        cmath.sqrt(z[0]), cmath.exp(z[1]), cmath.phase(z[0]), np.fromiter((v * 2 for v in x), float),
    )  # fmt: skip


def vector(rng):
    return (rng.normal(size=6),)


def matrix(rng):
    return (rng.normal(size=(3, 4)),)


PROGRAMS = [
    *((f, vector) for f in (chunk_sums, neighbour_products, fibonacci_weights, generator_sees_writes, running_mean)),
    *((f, vector) for f in (scaled_inside, balanced_order, iterated_twice, percent_formats, format_methods, always_raises)),
    (folds, matrix),
    (accumulations, matrix),
    (integer_folds, lambda rng: (rng.integers(1, 20, 6),)),
    (changes_at, lambda rng: (5, rng.integers(0, 5, 7), rng.random(7) + 1)),
    (vectorized, lambda rng: (rng.normal(size=4), rng.integers(1, 30, 6))),
    (python_math, lambda rng: (rng.normal(size=6), rng.normal(size=2) + 1j * rng.normal(size=2))),
]  # fmt: skip
