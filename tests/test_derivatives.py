"""Derivatives of every op of the registry, in both modes and to second order.

The sweep takes each op that has rules at points inside its domain, or on its samples. Then facts about ties, zeros and
duplicates. Linear algebra has `test_derivatives_linalg.py`, functions at points where they are easily NaN have
`test_special_gradients.py`, and control flow has tests of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from derivative_checks import (
    backward,
    check,
    directions,
    forward,
    gradient,
    has_tangent,
    one_node,
    types_of,
)

from dsl.ir import derivatives as _gives_the_rules  # noqa: F401
from dsl.ir import ops as _registers_the_ops  # noqa: F401
from dsl.ir.derivative import DERIVATIVES
from dsl.ir.dims import Dim, Symbol
from dsl.ir.interpret import interpret
from dsl.ir.registry import OPS, Op, Sample, Trait
from dsl.ir.types import DTYPES, TensorType, is_inexact

OWN = frozenset(OPS)  # before any test makes a kernel, which is an op too
F32, F64, C128 = (np.dtype(t) for t in (np.float32, np.float64, np.complex128))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def test_every_op_says_what_its_derivative_is() -> None:
    assert set(DERIVATIVES) == OWN
    for name, rule in DERIVATIVES.items():
        assert (rule.vjp is None) == (rule.jvp is None) == bool(rule.reason), name


# -- the sweep ----------------------------------------------------------------------------------------------------

LINALG = {
    "cholesky", "lu", "qr", "svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "solve", "inv", "det", "slogdet",
    "triangular_solve", "cumprod",
}  # fmt: skip
SWEPT = [
    OPS[name]
    for name, rule in DERIVATIVES.items()
    if rule.vjp and name not in LINALG | {"identity"} and not OPS[name].has(Trait.EFFECT)
]
POSITIVE, INNER, STEPS = (0.3, 2.5), (-0.8, 0.8), ((2.3, 2.7), (0.95, 1.05))
# Where operands are drawn from, each from its own interval where there are two: away from kinks, jumps and poles.
DOMAINS: dict[str, Any] = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "cbrt", "power", "float_power", "divide", "reciprocal", "arctan2"), POSITIVE),
    **dict.fromkeys(("gamma", "lgamma", "digamma", "polygamma"), (0.5, 3)),
    **dict.fromkeys(("arcsin", "arccos", "arctanh", "erfinv", "tan"), INNER),
    **dict.fromkeys(("remainder", "fmod", "divmod"), STEPS),
    "arccosh": (1.2, 3), "log1p": (-0.6, 2), "modf": (0.1, 0.9), "frexp": (0.55, 0.95),
}  # fmt: skip
SHAPES = [((2, 3), (3,), (2, 1)), ((), (1, 3), (2, 3)), ((), (), ()), ((0, 3), (3,), (1, 1))]

every_op = pytest.mark.parametrize("op", SWEPT, ids=lambda op: op.name)


def is_pointwise(op: Op) -> bool:
    return op.has(Trait.ELEMENTWISE) or op.name == "polygamma"


def samples_of(op: Op, *dtypes: np.dtype) -> Iterator[Sample]:
    """Yield the samples whose floats are of these dtypes; one of a kind for elementwise ops."""
    seen = set()
    for sample in op.samples(np.random.default_rng(3)):
        given = [x.dtype for x in sample.inputs if is_inexact(x.dtype)]
        given += [d for d in sample.attrs.values() if isinstance(d, np.dtype)]
        kind = (tuple(given), str(sample.attrs))
        if given and set(given) <= set(dtypes) and not (is_pointwise(op) and kind in seen):
            seen.add(kind)
            yield sample


def drawn(op: Op, sample: Sample, shapes: Any) -> tuple[np.ndarray, ...]:
    """Draw operands inside the domain; complex ones on both sides of the real axis, where branches are cut."""
    rng, domain = np.random.default_rng(4), DOMAINS.get(op.name, (-2, 2))
    found = []
    for k, (x, shape) in enumerate(zip(sample.inputs, shapes)):
        low, high = domain[k] if isinstance(domain[0], tuple) else domain
        v = rng.uniform(low, high, shape)
        if x.dtype.kind == "c":
            v = rng.uniform(-2, 2, shape) + 1j * rng.uniform(0.1, 0.8, shape) * rng.choice(
                [-1, 1], shape
            )
        found.append(np.asarray(v).astype(x.dtype) if has_tangent(x) else np.resize(x, shape))
    return tuple(found)


def operands(op: Op, sample: Sample) -> list[tuple[np.ndarray, ...]]:
    if op.name == "unique":  # what are twice the same are two after a step
        return [(np.unique(sample.inputs[0])[::-1],)]
    return [drawn(op, sample, shapes) for shapes in SHAPES] if is_pointwise(op) else [sample.inputs]


@every_op
def test_both_modes_to_second_order(op: Op) -> None:
    samples = [*samples_of(op, F64, C128)]
    assert samples
    for sample in samples:
        for k, args in enumerate(operands(op, sample)):
            check(one_node(op, types_of(args), sample.attrs), args, order=2 if k == 0 else 1)


@every_op
def test_sizes_that_are_not_known(op: Op) -> None:
    sizes: dict[int, Dim] = {}
    symbolic = lambda n: sizes.setdefault(n, Symbol(f"n{n}", 2)) if n >= 2 else n
    for sample in [*samples_of(op, F64)][:2]:
        args = operands(op, sample)[0]
        types = [TensorType(x.dtype, tuple(map(symbolic, x.shape))) for x in args]
        check(one_node(op, types, sample.attrs), args, order=1)


@every_op
def test_single_precision_is_close_to_double(op: Op) -> None:
    for sample in samples_of(op, F32):
        args, attrs = operands(op, sample)[0], dict(sample.attrs)
        single = one_node(op, types_of(args), attrs)
        wide = [x.astype(F64) if x.dtype == F32 else x for x in args]
        double = one_node(
            op, types_of(wide), {**attrs, "dtype": F64} if "dtype" in attrs else attrs
        )
        for mode in (forward, backward):
            given = args if mode is forward else interpret(single, args)
            ts = directions(np.random.default_rng(5), given)
            more = [t.astype(F64) if t.dtype == F32 else t.astype(C128) for t in ts]
            expected = interpret(mode(double), [*wide, *more])
            for x, y in zip(interpret(mode(single), [*args, *ts]), expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


@every_op
def test_graphs_of_every_precision_are_well_typed(op: Op) -> None:
    for sample in samples_of(op, *filter(is_inexact, DTYPES)):
        graph = one_node(op, types_of(sample.inputs), sample.attrs)
        for mode in (forward, backward):
            backward(mode(graph))


# -- ties, zeros, duplicates --------------------------------------------------------------------------------------


def floats(*x: Any) -> np.ndarray:
    return np.array(x, float)


AT = np.array([0, 0, 1, -3])
ZEROS = [floats(5, 2, 3, 4), floats(0, 2, 3, 4), floats(0, 2, 0, 0), np.array([0, 1j, 2, 0])]


@pytest.mark.parametrize("x", ZEROS, ids=["none", "one", "several", "complex"])
def test_products_with_zeros_to_third_order(x: np.ndarray) -> None:
    square = x.reshape(2, 2)
    check(one_node("prod", types_of([square]), {"axes": (0, 1)}), [square], order=3)
    for base in (floats(2, 0, 5), floats(0, 1, 2)):
        args = (base.astype(x.dtype), x, AT)
        check(one_node("scatter", types_of(args), {"axes": (0,), "mode": "multiply"}), args)


FACTS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Any]] = {
    "the largest share": ("max", ([[2, 2, 1], [0, 0, 0]],), {"axes": (1,)}, [[[0.5, 0.5, 0], [2 / 3] * 3]]),
    "the smallest share": ("min", ([2.0, 1, 1],), {"axes": (0,)}, [[0, 0.5, 0.5]]),
    "the first of running maxima": ("cummax", ([1.0, 1, 0, 2],), {"axis": 0}, [[6, 0, 0, 4]]),
    "the first of running minima": ("cummin", ([1.0, 1, 2, 0],), {"axis": 0}, [[6, 0, 0, 4]]),
    "equal elements keep their order": ("sort", ([1.0, 1, 0],), {"axis": 0, "stable": True}, [[2, 3, 1]]),
    "and do so descending": ("sort", ([1.0, 1, 2],), {"axis": 0, "stable": True, "descending": True}, [[2, 3, 1]]),
    "the first of equal ones is unique": ("unique", ([1.0, 1, 0],), {}, [[2, 0, 1]]),
    "gathered twice": ("gather", ([5.0, 6, 7], [0, 0, -1]), {"axes": (0,)}, [[3, 0, 3]]),
    "the last writer wins": ("scatter", ([5.0, 6, 7], [1.0, 2, 3, 4], AT), {"axes": (0,), "mode": "update"},
                             [[0, 0, 3], [0, 0, 2, 1]]),
    "writers add": ("scatter", ([5.0, 6, 7], [1.0, 2, 3, 4], AT), {"axes": (0,), "mode": "add"},
                    [[1, 2, 3], [1, 1, 2, 1]]),
    "the largest written share": ("scatter", ([4.0, 6, 7], [4.0, 2, 6, 4], AT), {"axes": (0,), "mode": "max"},
                                  [[1 / 3, 1, 3], [1 / 3, 0, 1, 1 / 3]]),
    "the smallest written share": ("scatter", ([4.0, 6, 7], [2.0, 2, 9, 4], AT), {"axes": (0,), "mode": "min"},
                                   [[0, 2, 3], [0.5, 0.5, 0, 0]]),
    "a step takes its value": ("heaviside", ([0.0, 1, 0], [3.0, 4, 5]), {}, [[0, 0, 0], [1, 0, 3]]),
    "a sign turns": ("sign", ([3 + 4j, 0, 1],), {}, [[0.128 + 0.096j, 0, 0]]),
}  # fmt: skip


@pytest.mark.parametrize("fact", FACTS)
def test_ties_and_duplicates(fact: str) -> None:
    name, inputs, attrs, expected = FACTS[fact]
    args = [np.array(x, float) if np.ndim(x) == 2 else np.asarray(x) for x in inputs]
    (result,) = interpret(one_node(name, types_of(args), attrs), args)
    weights = np.arange(1, result.size + 1).reshape(result.shape).astype(result.dtype)
    for found, wanted in zip(gradient(name, args, weights, **attrs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-15)
