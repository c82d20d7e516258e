"""Every op of the registry, on its samples in several layouts and on special values.

For each case: the type rule predicts dtype and shape of what the op computes, the inputs stay as they were, and a
graph of that one node gives what `op_references` gives, errors included. For each op: the rule takes no dtype that the
samples do not show, and works with symbolic sizes. An op without samples is named in `TESTED_ELSEWHERE`.

Native code is compared with the interpreter: several cases are nodes of one graph, which is compiled once. By default
it takes some samples of each op; `DSL_FULL_SWEEP=1 pytest tests/test_op_sweep.py` takes them all, for minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_references import reference

from dsl.codegen.cpu.native import ParamKind, compile_graph
from dsl.errors import DslError, ShapeError, TypeRuleError
from dsl.ir import ops as _registers_the_ops  # noqa: F401
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, Symbol
from dsl.ir.graph import Graph
from dsl.ir.interpret import interpret
from dsl.ir.registry import OPS, Op, Sample, Trait
from dsl.ir.types import BFLOAT16, DTYPES, TensorType, bind_shape

# Control flow, its flat spelling and constants run in every test of the executors; effects have test_op_rules.py,
# variables and queues test_queues.py and test_session.py, and collectives test_parallel.py.
TESTED_ELSEWHERE = {
    "param", "const", "identity", "stop_gradient", "dim_size", "cond", "while", "scan",
    "recording_while", "recording_scan", "checkpoint", "custom_vjp", "custom_jvp",
    "switch", "merge", "loop_merge", "enter", "exit", "next_iteration", "loop_cond",
    "print", "assert",
}  # fmt: skip
SWEPT = [op for op in OPS.values() if op.name not in TESTED_ELSEWHERE and not op.has(Trait.EFFECT)]
# How many operands hold data; those after them are indices or sizes and keep their values.
DATA_OPERANDS = {
    "gather": 1, "scatter": 2, "dynamic_slice": 1, "update_dynamic_slice": 2, "broadcast_dim": 0,
    "nth_element": 1,
}  # fmt: skip
# Where +0.0 and -0.0 count as equal: which of them is larger, or comes first, is open.
ZEROS_ALIKE = {
    "max", "min", "cummax", "cummin", "maximum", "minimum", "fmax", "fmin", "sort", "scatter",
    "nth_element",
}  # fmt: skip
KNOWN_ERRORS = (ValueError, IndexError)

every_op = pytest.mark.parametrize("op", SWEPT, ids=lambda op: op.name)


def samples_of(op: Op) -> list[Sample]:
    return list(op.samples(np.random.default_rng(7)))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


# -- layouts and special values ----------------------------------------------------------------------------------


def strided(x: np.ndarray) -> np.ndarray:
    out = np.zeros([2 * n for n in x.shape], x.dtype)[(..., *[slice(None, None, 2)] * x.ndim)]
    out[...] = x
    return out


def reversed_(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.flip(np.array(np.flip(x))))


def zero_strides(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape) if x.size else x


def layouts(op: Op, inputs: tuple[np.ndarray, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the operands in layouts that hold as many elements: they are legal wherever the sample is."""
    yield inputs
    yield tuple(map(strided, inputs))
    yield tuple(map(reversed_, inputs))
    yield tuple(np.array(x, order="F") for x in inputs)
    if reference(op.name) is not None:  # a constant matrix is singular
        yield tuple(map(zero_strides, inputs))


def other_sizes(op: Op, inputs: tuple[np.ndarray, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield empty and rank-0 operands; the type rule may refuse these."""
    if reference(op.name) is None or not inputs:
        return
    rank = max(x.ndim for x in inputs)
    yield tuple(x[:0] if x.ndim == rank > 0 else x for x in inputs)
    if op.has(Trait.ELEMENTWISE):
        yield tuple(x.reshape(-1)[0].reshape(()) for x in inputs)


def special_values(dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, info.min + 1, 0, 1, 2, 7, 100], dtype)
    if dtype.kind == "c":
        part = special_values(np.dtype(f"f{dtype.itemsize // 2}"))[:6]
        return (part[:, np.newaxis] + np.zeros(6, dtype) + imaginary(part, dtype)).reshape(-1)
    tiny, huge = (1e-7, 6e4) if dtype == np.float16 else (1e-38, 3e38)
    return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, tiny, huge]).astype(dtype)


def imaginary(part: np.ndarray, dtype: np.dtype) -> np.ndarray:
    out = np.zeros(len(part), dtype)
    out.imag = part
    return out


def with_specials(op: Op, sample: Sample, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return special operands: all combinations for elementwise ops, else a choice of them in the same shape."""
    if op.has(Trait.ELEMENTWISE):
        values = [special_values(x.dtype) for x in sample.inputs]
        if op.name == "power" and sample.inputs[1].dtype.kind == "i":
            values[1] = values[1][values[1] >= 0]
        return tuple(np.meshgrid(*values, indexing="ij", sparse=True))
    count = DATA_OPERANDS.get(op.name, len(sample.inputs))
    chosen = [rng.choice(special_values(x.dtype), x.shape) for x in sample.inputs[:count]]
    if op.name == "searchsorted":
        chosen[0] = OPS["sort"].numpy(chosen[0], axis=0, stable=True)
    return tuple(np.asarray(x) for x in chosen) + sample.inputs[count:]


# -- one case ----------------------------------------------------------------------------------------------------


def types_of(op: Op, types: tuple[TensorType, ...], attrs: Any) -> tuple[TensorType, ...]:
    found = op.type(types, attrs)
    return (found,) if isinstance(found, TensorType) else tuple(found)  # type: ignore[arg-type]


def tensor_types(inputs: tuple[np.ndarray, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(x.dtype, x.shape) for x in inputs)


def one_node(op: Op, types: tuple[TensorType, ...], attrs: Any) -> Graph:
    builder = Builder()
    return builder.finish(builder.node(op, map(builder.param, types), attrs).outputs)


def outcome(function: Callable[[], Any]) -> list[np.ndarray] | tuple[type, str]:
    """Return the arrays that a call gives, or the error that it raises."""
    try:
        found = function()
    except KNOWN_ERRORS as error:
        kind = ValueError if isinstance(error, ValueError) else IndexError
        return kind, str(error).strip()
    return [np.asarray(x) for x in (found if isinstance(found, (tuple, list)) else (found,))]


def check(op: Op, inputs: tuple[np.ndarray, ...], sample: Sample) -> None:
    before = [x.tobytes() for x in inputs]
    types = types_of(op, tensor_types(inputs), sample.attrs)
    direct = outcome(lambda: op.numpy(*inputs, **sample.attrs))
    got = outcome(lambda: interpret(one_node(op, tensor_types(inputs), sample.attrs), inputs))
    meaning = reference(op.name) or op.numpy
    expected = outcome(lambda: meaning(*inputs, **sample.attrs))
    assert [x.tobytes() for x in inputs] == before, f"{op.name} wrote into an operand"
    check_types(types, direct)
    check_equal(op, got, expected, tolerance_of(op, sample))


def check_types(types: tuple[TensorType, ...], arrays: Any) -> None:
    if isinstance(arrays, tuple):
        return
    assert [t.dtype for t in types] == [x.dtype for x in arrays]
    sizes: dict[Dim, int] = {}
    for type, array in zip(types, arrays, strict=True):
        assert bind_shape(type.shape, array.shape, sizes), f"{type} is not {array.shape}"


def tolerance_of(op: Op, sample: Sample) -> float:
    """Products of complex numbers round differently in NumPy's vector and scalar loops, and when swapped."""
    product = op.name in ("multiply", "prod", "cumprod", "scatter")
    return 8.0 if product and sample.inputs[0].dtype.kind == "c" else sample.tolerance


def check_equal(op: Op, got: Any, expected: Any, tolerance: float) -> None:
    if isinstance(got, tuple) or isinstance(expected, tuple):
        assert got == expected
        return
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if tolerance:
            scale = tolerance * np.finfo(b.dtype).eps if b.dtype.kind in "fc" else 0.0
            np.testing.assert_allclose(a, b, rtol=scale, atol=scale * np.abs(b).max(initial=1.0))
        else:
            np.testing.assert_array_equal(bits(op, a), bits(op, b))


def bits(op: Op, x: np.ndarray) -> np.ndarray:
    """Return what tells values apart: the bits, all NaNs being one."""
    if x.dtype.kind == "c":
        return np.stack([bits(op, x.real), bits(op, x.imag)])
    if x.dtype.kind != "f" and x.dtype != BFLOAT16:
        return x
    plain = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    plain = plain + np.zeros((), x.dtype) if op.name in ZEROS_ALIKE else plain
    return plain.astype(x.dtype).view(f"u{x.dtype.itemsize}")


# -- the sweep ---------------------------------------------------------------------------------------------------


def test_every_op_has_samples_or_tests_of_its_own() -> None:
    missing = [op.name for op in SWEPT if not samples_of(op)]
    assert not missing
    assert not TESTED_ELSEWHERE - set(OPS)


@every_op
def test_samples_in_every_layout(op: Op) -> None:
    for sample in samples_of(op):
        for inputs in layouts(op, sample.inputs):
            check(op, inputs, sample)


def in_other_sizes(op: Op, sample: Sample) -> Iterator[Case]:
    """Yield a sample's operands in the other sizes that its type rule allows."""
    for inputs in other_sizes(op, sample.inputs):
        try:
            types_of(op, tensor_types(inputs), sample.attrs)
        except ShapeError:
            continue
        yield inputs, sample


@every_op
def test_empty_and_rank_0(op: Op) -> None:
    for sample in samples_of(op):
        for inputs, _ in in_other_sizes(op, sample):
            check(op, inputs, sample)


@pytest.mark.parametrize("op", [op for op in SWEPT if reference(op.name)], ids=lambda op: op.name)
def test_special_values(op: Op) -> None:
    rng = np.random.default_rng(11)
    for sample in samples_of(op):
        check(op, with_specials(op, sample, rng), sample)


@every_op
def test_rule_takes_only_dtypes_that_samples_show(op: Op) -> None:
    samples = samples_of(op)
    shortest = min(samples, key=lambda sample: len(sample.inputs))
    for k, given in enumerate(tensor_types(shortest.inputs)):
        shown = {s.inputs[k].dtype for s in samples if len(s.inputs) > k}
        for dtype in set(DTYPES) - shown:
            types = list(tensor_types(shortest.inputs))
            types[k] = given.with_dtype(dtype)
            with pytest.raises(TypeRuleError, match=f"^{op.name}: |unsupported in linalg"):
                op.type(tuple(types), shortest.attrs)


@every_op
def test_symbolic_sizes(op: Op) -> None:
    symbols: dict[int, Dim] = {}

    def symbolic(n: int) -> Any:
        return symbols.setdefault(n, Symbol(f"n{n}", 2)) if n >= 2 else n

    for sample in samples_of(op):
        types = tuple(TensorType(x.dtype, tuple(map(symbolic, x.shape))) for x in sample.inputs)
        try:
            graph = one_node(op, types, sample.attrs)
        except DslError:  # two unknown sizes that need not agree
            types_of(op, tensor_types(sample.inputs), sample.attrs)
            continue
        got = outcome(lambda graph=graph, sample=sample: interpret(graph, sample.inputs))
        expected = outcome(lambda sample=sample: op.numpy(*sample.inputs, **sample.attrs))
        check_equal(op, got, expected, tolerance_of(op, sample))
        check_types(tuple(value.tensor for value in graph.results), got)


# -- native code -------------------------------------------------------------------------------------------------

FULL = bool(os.environ.get("DSL_FULL_SWEEP"))
NODES = 12  # of one graph: LLVM's time grows faster than a function's length
# Real functions that are not NumPy's to the bit: 4 ulps. The rest of the real ops are.
ROUNDED = {
    "power", "float_power", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2", "sin",
    "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "hypot", "cbrt", "erf", "erfc", "erfinv", "gamma", "lgamma", "digamma",
}  # fmt: skip
# Added or multiplied in another order; near their zeros SciPy's own polynomials are no better.
SCALED = {"sum", "prod", "fft", "rfft", "irfft", "triangular_solve", "lgamma", "digamma"}

Case = tuple[tuple[np.ndarray, ...], Sample]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many items, evenly chosen, unless all are wanted."""
    return list(items) if FULL else list(items[:: -(-len(items) // most) or 1])


def special_cases(op: Op) -> Iterator[Case]:
    rng = np.random.default_rng(11)
    for sample in samples_of(op):
        yield from in_other_sizes(op, sample)
        if reference(op.name):
            yield with_specials(op, sample, rng), sample


def interpreted(op: Op, case: Case) -> Any:
    inputs, sample = case
    return outcome(lambda: interpret(one_node(op, tensor_types(inputs), sample.attrs), inputs))


def compile_cases(op: Op, cases: Sequence[Case], strides: str | None) -> Callable[..., list[Any]]:
    """Return a function of the cases' inputs that gives the outputs of each."""
    builder = Builder()
    nodes = [
        builder.node(op, map(builder.param, tensor_types(inputs)), sample.attrs)
        for inputs, sample in cases
    ]
    graph = builder.finish([value for node in nodes for value in node.outputs])
    native = compile_graph(graph, [ParamKind("array", strides) for _ in graph.params])

    def call(several: Sequence[tuple[np.ndarray, ...]]) -> list[Any]:
        found = iter(native([x for inputs in several for x in inputs]))
        return [[next(found) for _ in node.outputs] for node in nodes]

    return call


def check_native(op: Op, cases: Sequence[Case], call: Callable[..., list[Any]]) -> None:
    expected = [interpreted(op, case) for case in cases]
    before = [x.tobytes() for inputs, _ in cases for x in inputs]
    found = call([inputs for inputs, _ in cases])
    assert [x.tobytes() for inputs, _ in cases for x in inputs] == before
    for got, wanted, (_, sample) in zip(found, expected, cases, strict=True):
        for a, b in zip(got, wanted, strict=True):
            check_near(op, a, b, sample)


def check_near(op: Op, a: np.ndarray, b: np.ndarray, sample: Sample) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    scaled = op.name in SCALED or any(x.dtype.kind == "c" for x in sample.inputs)
    if b.dtype.kind in "iub" or not (scaled or op.name in ROUNDED or sample.tolerance):
        check_equal(op, [a], [b], 0.0)
        return
    eps = float(ml_dtypes.finfo(b.dtype).eps)
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    if not (scaled or sample.tolerance):
        np.testing.assert_allclose(a, b, rtol=4 * eps, atol=0)
        return
    eps *= max(16.0, sample.tolerance)
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * finite.max(initial=1.0))


def own(inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return operands that are arrays of their own: a native program takes no array twice."""
    return tuple(np.array(x, order="C") if x.flags.c_contiguous else x for x in inputs)


def by_outcome(op: Op, cases: Iterable[Case]) -> tuple[list[Case], list[Case]]:
    """Return the cases that the interpreter gives results for, and those that it raises for; operands are C-ordered."""
    good: list[Case] = []
    raising: list[Case] = []
    for inputs, sample in cases:
        case = (tuple(np.array(x, order="C") for x in inputs), sample)
        (raising if isinstance(interpreted(op, case), tuple) else good).append(case)
    return good, raising


@every_op
def test_native_code_in_every_layout(op: Op) -> None:
    samples = spread(samples_of(op), 6)
    for k in range(0, len(samples), NODES):
        some = samples[k : k + NODES]
        call = compile_cases(op, [(s.inputs, s) for s in some], "any")
        for several in zip(*(layouts(op, s.inputs) for s in some)):
            cases = [(own(inputs), sample) for inputs, sample in zip(several, some)]
            if not any(isinstance(interpreted(op, case), tuple) for case in cases):
                check_native(op, cases, call)


@every_op
def test_native_code_of_special_values_and_sizes(op: Op) -> None:
    good, raising = by_outcome(op, spread([*special_cases(op)], 6))
    for k in range(0, len(good), NODES):
        some = good[k : k + NODES]
        check_native(op, some, compile_cases(op, some, None))
    for case in spread(raising, 3):
        call = compile_cases(op, [case], None)
        assert outcome(lambda call=call, case=case: call([case[0]])) == interpreted(op, case)


# -- points that the general cases do not reach ------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", [op for op in SWEPT if op.has(Trait.COMMUTATIVE)], ids=lambda op: op.name
)
def test_commutative_ops_commute(op: Op) -> None:
    for sample in samples_of(op):
        x, y = sample.inputs
        check_equal(op, [op.numpy(x, y)], [op.numpy(y, x)], tolerance_of(op, sample))


def test_every_elementwise_ufunc_has_an_op() -> None:
    from dsl.ir.ops.elementwise import UFUNC_OPS

    found = {u for u in vars(np).values() if isinstance(u, np.ufunc) and u.signature is None}
    assert found - set(UFUNC_OPS) == {np.isnat}
    assert all(ufunc.__name__ == op.name for ufunc, op in UFUNC_OPS.items())


@pytest.mark.parametrize("mode", ["update", "add", "multiply", "min", "max"])
def test_scatter_goes_in_c_order_whatever_the_layout(mode: str) -> None:
    rng = np.random.default_rng(3)
    index = np.asfortranarray(rng.integers(-3, 3, (5, 7)))[::-1]
    v, x = np.asfortranarray(rng.normal(size=(5, 7))), np.ones(3)
    inputs = (x, v, index)
    check(OPS["scatter"], inputs, Sample(inputs, {"axes": (0,), "mode": mode}))


def test_gather_looks_into_empty_indices_as_numpy_does() -> None:
    x, none = np.zeros((3, 4)), np.zeros(0, np.int64)
    for index in (np.array([10]), np.array(10)):
        got = outcome(lambda index=index: OPS["gather"].numpy(x, none, index, axes=(0, 1)))
        check_equal(OPS["gather"], got, outcome(lambda index=index: x[none, index]), 0.0)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64])
def test_nan_sorts_last(dtype: Any) -> None:
    x = np.array([np.nan, 2, -np.inf, np.nan, np.inf, 1]).astype(dtype)
    ordered = OPS["sort"].numpy(x, axis=0, stable=False)
    finite = ordered[:4].astype(np.float64).tolist()
    assert all(a < b for a, b in pairwise(finite))
    assert np.isnan(ordered[4:]).all()
    assert OPS["argsort"].numpy(x, axis=0, stable=True).tolist() == [2, 5, 1, 4, 0, 3]
    assert np.isnan(OPS["sort"].numpy(x, axis=0, stable=True, descending=True)[:2]).all()
