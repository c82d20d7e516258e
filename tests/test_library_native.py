"""The native library: sorts, scans, searches, linear algebra, transforms and random bits against the reference.

Each op is compiled alone, by a stand-in for the program emitter, and run on the registry's samples in several layouts,
on special values, on empty arrays, and on arrays large enough for every path of its routine.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from test_op_sweep import (
    check_equal,
    layouts,
    one_node,
    outcome,
    samples_of,
    special_values,
    tensor_types,
    tolerance_of,
)

import dsl
from dsl.codegen import library
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.cpu import jit, pool, runtime
from dsl.codegen.library.special import SPECIAL, special
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.graph import Node
from dsl.ir.ops.linalg import NOT_UNIQUE
from dsl.ir.registry import OPS, Op, Sample
from dsl.ir.types import BFLOAT16, BY_NAME, DTYPES, TensorType

pytest.importorskip("llvmlite")

EXACT_INTS = [BY_NAME[name] for name in ("bool", "i8", "u16", "i32", "u64")]


# -- a stand-in for the program emitter ----------------------------------------------------------------------------


class Stage:
    """Memory that a compiled op asks for while it runs."""

    def __init__(self) -> None:
        self.scratch: list[np.ndarray] = []
        self.results: dict[int, np.ndarray] = {}
        self.dtypes: list[np.dtype] = []
        self.copy = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(self._scratch)
        self.make = ctypes.CFUNCTYPE(
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
        )(self._result)
        jit.define("test_scratch", ctypes.cast(self.copy, ctypes.c_void_p).value or 0)
        jit.define("test_result", ctypes.cast(self.make, ctypes.c_void_p).value or 0)

    def _scratch(self, size: int) -> int:
        found = np.full(size + 64, 0xA5, np.uint8)
        self.scratch.append(found)
        return int(found.ctypes.data) + -int(found.ctypes.data) % 64

    def _result(self, k: int, rank: int, dims: Any) -> int:
        self.results[k] = np.empty([dims[i] for i in range(rank)], self.dtypes[k])
        return int(self.results[k].ctypes.data)


@functools.cache
def stage() -> Stage:
    runtime.ensure_loaded()
    return Stage()


class OneCall:
    """The `Call` of a function that runs one op; sizes are read when it runs, or are constants."""

    def __init__(
        self, node: Node, shapes: list[tuple[int, ...]] | None, in_order: list[bool]
    ) -> None:
        self.node, self.static, self.in_order = node, shapes is not None, in_order
        self.module = Module("one")
        self.fn: Function = self.module.function("entry", "void", [("ptr", "slots")])
        self.errors: list[str] = []
        self.slot = 1  # the first is for errors
        self.inputs = [
            self._operand(value.tensor, None if shapes is None else shapes[k])
            for k, value in enumerate(node.inputs)
        ]
        self.outputs = [self._operand(value.tensor, None, result=True) for value in node.outputs]

    def _next(self, type: str = "i64") -> Value:
        self.slot += 1
        return self.fn.load(type, self.fn.gep(self.fn.params[0], 8 * (self.slot - 1)))

    def _operand(self, type: TensorType, shape: Sequence[int] | None, result: bool = False) -> Any:
        pointer = self._next("ptr")
        dims: list[Operand] = [self._next() for _ in type.shape]
        strides = tuple(self._next() for _ in type.shape)
        if not type.rank and not result:
            return load_scalar(self.fn, type.dtype, pointer)
        return Array(type.dtype, pointer, tuple(dims if shape is None else shape), strides)

    def output(self, k: int = 0, dims: Sequence[Operand] | None = None) -> Array:
        if dims is None:
            return self.outputs[k]
        space = self.fn.alloca(8 * len(dims))
        for place, dim in enumerate(dims):
            self.fn.store(self.fn.as_value(dim, "i64"), self.fn.gep(space, 8 * place))
        numbers = [self.fn.as_value(number, "i64") for number in (k, len(dims))]
        pointer = self.fn.call("ptr", "test_result", *numbers, space)
        return Array(self.node.outputs[k].dtype, pointer, tuple(dims), _c_strides(self.fn, dims))

    def set_output(self, k: int, scalar: Scalar) -> None:
        store_scalar(self.fn, self.node.outputs[k].dtype, scalar, self.outputs[k].pointer)

    def size(self, dim: DimLike) -> Operand:
        assert isinstance(dim, int)
        return dim

    def scratch(self, bytes: Operand) -> Value:
        return self.fn.call("ptr", "test_scratch", self.fn.as_value(bytes, "i64"))

    def contiguous(self, k: int) -> Array:
        x = self.inputs[k]
        assert isinstance(x, Array)
        strides = _c_strides(self.fn, x.dims)
        if self.in_order[k]:
            return Array(x.dtype, x.pointer, x.dims, strides)
        size: Operand = x.dtype.itemsize
        for dim in x.dims:
            size = self.fn.mul(size, dim)
        copy = Array(x.dtype, self.scratch(size), x.dims, strides)
        self._copy(x, copy, ())
        return copy

    def _copy(self, x: Array, y: Array, index: tuple[Operand, ...]) -> None:
        if len(index) < len(x.dims):
            with self.fn.loop(0, x.dims[len(index)]) as i:
                self._copy(x, y, (*index, i))
            return
        found = load_scalar(self.fn, x.dtype, x.address(self.fn, index))
        store_scalar(self.fn, x.dtype, found, y.address(self.fn, index))

    def fail(self, condition: Value, kind: str, *payload: Operand) -> None:
        self.errors.append(kind)
        with self.fn.if_(condition, unlikely=True):
            self.fn.store(Value(str(len(self.errors)), "i64"), self.fn.params[0])
            self.fn.ret()


def _c_strides(fn: Function, dims: Sequence[Operand]) -> tuple[Operand, ...]:
    strides: list[Operand] = [1]
    for dim in list(dims)[:0:-1]:
        strides.append(fn.mul(strides[-1], dim))
    return tuple(strides[::-1]) if dims else ()


class Compiled:
    def __init__(
        self, node: Node, shapes: list[tuple[int, ...]] | None, in_order: list[bool]
    ) -> None:
        call = OneCall(node, shapes, in_order)
        library.LOWERINGS[node.op.name](call)
        call.fn.ret()
        text = call.module.text()
        library.provide(text)
        self.errors, self.node = call.errors, node
        self.code = jit.load(text, level=0)
        self.entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.code.address("entry"))

    def __call__(
        self, inputs: Sequence[np.ndarray], expected: Sequence[TensorType]
    ) -> list[np.ndarray]:
        where = stage()
        where.results, where.dtypes, where.scratch = {}, [t.dtype for t in expected], []
        static = [all(isinstance(d, int) for d in t.shape) for t in expected]
        outputs = [np.empty(t.shape if ok else 0, t.dtype) for t, ok in zip(expected, static)]  # type: ignore[arg-type]
        slots = [0]
        for x in [*inputs, *outputs]:
            shape = x.shape
            slots += [x.ctypes.data, *shape, *(s // x.itemsize for s in x.strides)]
        words = np.array(slots, np.int64)
        self.entry(words.ctypes.data)
        if words[0]:
            raise raised(self.errors[words[0] - 1])
        return [where.results[k] if not ok else outputs[k] for k, ok in enumerate(static)]


def raised(kind: str) -> Exception:
    name, _, message = kind.partition(":")
    return {"linalg": np.linalg.LinAlgError, "value": ValueError, "index": IndexError}[name](
        message
    )


_COMPILED: dict[Any, Compiled] = {}


def in_c_order(x: np.ndarray) -> bool:
    return bool(x.flags.c_contiguous)


def run(op: Op, inputs: Sequence[np.ndarray], attrs: Any, static: bool = False) -> Any:
    """Run an op natively and return its results, or None if it has no native form."""
    stage()
    inputs = [np.asarray(x) for x in inputs]
    node = one_node(op, tensor_types(tuple(inputs)), attrs).results[0].node
    if not library.supported(node):
        return None
    key = (op.name, repr(attrs), tuple((x.dtype, x.ndim, in_c_order(x)) for x in inputs),
           tuple(x.shape for x in inputs) if static else None)  # fmt: skip
    if key not in _COMPILED:
        shapes = [x.shape for x in inputs] if static else None
        _COMPILED[key] = Compiled(node, shapes, [in_c_order(x) for x in inputs])
    return _COMPILED[key](inputs, [value.tensor for value in node.outputs])


def check(
    op: Op, inputs: Sequence[np.ndarray], attrs: Any, tolerance: float = 0.0, static: bool = False
) -> None:
    with np.errstate(all="ignore"):
        expected = outcome(lambda: op.numpy(*inputs, **attrs))
        if isinstance(expected, list):
            before = [x.tobytes() for x in inputs]
            got = outcome(lambda: run(op, inputs, attrs, static))
            assert [x.tobytes() for x in inputs] == before, "wrote into an operand"
        else:
            got = outcome(lambda: run(op, inputs, attrs, static))
        if op.name in NOT_UNIQUE and isinstance(expected, list):
            check_factors(got, expected)
        else:
            check_equal(op, got, expected, tolerance)


def check_factors(got: Any, expected: Any) -> None:
    """Compare closely enough to tell right from wrong: the signs are those of the same LAPACK."""
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


NATIVE = [OPS[name] for name in library.LOWERINGS]
every_op = pytest.mark.parametrize("op", NATIVE, ids=lambda op: op.name)


@every_op
def test_samples_in_every_layout(op: Op) -> None:
    for sample in samples_of(op):
        for inputs in chosen_layouts(op, sample):
            check(op, inputs, sample.attrs, tolerance_of(op, sample))


def chosen_layouts(op: Op, sample: Sample) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield fewer layouts of factorisations, which have many samples and copy what is not in C order."""
    every = layouts(op, sample.inputs)
    few = "linalg" in op.numpy.__module__ and op.name != "matmul"
    return islice(every, 2 if sample.inputs[0].dtype == np.float64 else 1) if few else every


@every_op
def test_samples_of_constant_size(op: Op) -> None:
    for sample in samples_of(op):
        if sample.inputs[0].dtype in (np.float32, np.int64, np.complex128):
            check(op, sample.inputs, sample.attrs, tolerance_of(op, sample), static=True)


# -- order, search, running values: every path of every dtype -----------------------------------------------------

ALONG_AXIS: list[tuple[str, dict[str, Any]]] = [
    ("sort", {"descending": False, "stable": True}),
    ("sort", {"descending": True, "stable": False}),
    ("argsort", {"stable": True}),
    ("argmax", {}), ("argmin", {}), ("cumsum", {}), ("cumprod", {}), ("cummax", {}), ("cummin", {}),
]  # fmt: skip
along_axis = pytest.mark.parametrize(
    ("name", "attrs"), ALONG_AXIS, ids=[f"{name}-{len(attrs)}" for name, attrs in ALONG_AXIS]
)


def numbers(rng: np.random.Generator, dtype: np.dtype, shape: Any, kind: str) -> np.ndarray:
    """Return data of a kind: `few` distinct values, `many`, or `odd` ones (NaNs, infinities, zeros of both signs)."""
    if kind == "odd":
        return rng.choice(special_values(dtype), shape)
    if kind == "few":
        return rng.integers(0, 5, shape).astype(dtype)
    if dtype.kind in "biu":
        info = np.iinfo("u1" if dtype.kind == "b" else dtype)
        found = rng.integers(info.min, info.max, shape, info.dtype, endpoint=True)
        return np.asarray(found % 2 == 1 if dtype.kind == "b" else found)
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape)
    return (
        (values + 1j * rng.normal(size=shape)).astype(dtype)
        if dtype.kind == "c"
        else values.astype(dtype)
    )


@along_axis
def test_every_dtype_along_an_axis(name: str, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    for dtype in DTYPES:
        for kind in ("few", "many", "odd"):
            tolerance = 16.0 if name == "cumprod" and dtype.kind == "c" else 0.0
            for shape, axis in (((1,), 0), ((130,), 0), ((5, 70), 1), ((2, 66, 3), 1)):
                x = numbers(rng, dtype, shape, kind)
                check(OPS[name], (x,), {**attrs, "axis": axis}, tolerance)


@along_axis
def test_long_rows(name: str, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    for dtype in DTYPES:
        tolerance = 1e4 if name == "cumprod" and dtype.kind == "c" else 0.0
        for kind in ("few", "many"):
            x = numbers(rng, dtype, 140_003, kind)
            if name == "cumprod" and dtype.kind == "c":
                x = np.exp(1j * np.arange(140_003)).astype(dtype)
            check(OPS[name], (x,), {**attrs, "axis": 0}, tolerance)


@along_axis
def test_many_columns(name: str, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    for dtype in (np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.uint8)):
        x = numbers(rng, dtype, (2, 9, 2100), "many")
        check(OPS[name], (x,), {**attrs, "axis": 1})


@along_axis
def test_no_elements(name: str, attrs: dict[str, Any]) -> None:
    for shape, axis in (((0,), 0), ((0, 3), 0), ((0, 3), 1), ((3, 0), 1), ((2, 0, 3), 1)):
        check(OPS[name], (np.zeros(shape, np.float32),), {**attrs, "axis": axis})


def test_argsort_of_keys_that_differ_only_in_their_last_bits() -> None:
    rng = np.random.default_rng(8)
    close = np.float64(1.0).view(np.int64) + rng.integers(0, 1000, 5000)
    x = close.view(np.float64)
    x[[7, 70]] = -1e300, np.nan  # so that keys must be cut
    check(OPS["argsort"], (x,), {"axis": 0, "stable": True})
    spread = rng.integers(-(2**63), 2**63 - 1, 3000)
    check(
        OPS["argsort"],
        (np.repeat(spread, 3) + rng.integers(0, 3, 9000),),
        {"axis": 0, "stable": True},
    )


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", "i4", "f4", "f8"])
def test_an_extreme_at_any_place(dtype: str) -> None:
    """In whole vectors, in the one that overlaps the last of them, twice, and nowhere."""
    for n in (1, 7, 16, 65, 130, 300):
        x = np.ones((n + 1, n), dtype)
        x[np.arange(n), np.arange(n)] = 0
        x[: n // 2, -1] = 0
        for name, rows in (("argmin", x), ("argmax", 1 - x.astype("i1"))):
            check(OPS[name], (rows.astype(dtype),), {"axis": 1})
            check(OPS[name], (rows[n // 2].astype(dtype),), {"axis": 0})


def test_elements_by_their_places() -> None:
    rng = np.random.default_rng(21)
    shapes = [
        ((1,), 0),
        ((130,), 0),
        ((5, 70), 1),
        ((2, 266, 3), 1),
        ((5000,), 0),
        ((140_003,), 0),
        ((0, 3), 0),
    ]
    for dtype in DTYPES:
        for kind in ("few", "many", "odd"):
            for shape, axis in shapes:
                n = shape[axis]
                places = np.array([n // 2 - 1, n // 2, 0, n - 1, n // 10, -3, n + 5])
                check(
                    OPS["nth_element"], (numbers(rng, dtype, shape, kind), places), {"axis": axis}
                )


def test_elements_by_their_places_where_a_sample_misleads() -> None:
    n = 100_000
    hard = [np.arange(n), np.arange(n)[::-1].copy(), np.arange(n) % 7, np.where(np.arange(n) % 1000 == 0, 5, 0),
            np.full(n, 3), np.r_[np.zeros(n - 1, int), 1], np.r_[np.arange(n // 2), np.arange(n // 2)[::-1]]]  # fmt: skip
    every = np.arange(0, n, n // 50)
    for x in hard:
        for dtype in (np.float64, np.int32, np.uint16):
            check(OPS["nth_element"], (x.astype(dtype), every), {"axis": 0})


def test_many_places_at_once() -> None:
    x = np.random.default_rng(22).normal(size=5000)
    check(OPS["nth_element"], (x, np.arange(0, 5000, 3)), {"axis": 0})


def test_nonzero_of_many_elements() -> None:
    rng = np.random.default_rng(9)
    for dtype in DTYPES:
        for share in (0.0, 0.02, 0.5, 1.0):
            x = (rng.random(1000) < share).astype(dtype)
            check(OPS["nonzero"], (x,), {})
            check(OPS["nonzero"], (x.reshape(10, 5, 20),), {})
        check(OPS["nonzero"], (numbers(rng, dtype, 200, "odd"),), {})
    for share in (0.02, 0.5, 1.0):  # several pieces
        check(OPS["nonzero"], (rng.random((3, 33_011)) < share,), {})


@pytest.mark.parametrize("shapes", [((65, 40), (40, 33)), ((130, 64), (64,)), ((64,), (64, 130)), ((2000,), (2000,)),
                                    ((3, 20, 30), (30, 8)), ((2, 1, 20, 30), (3, 30, 1))], ids=str)  # fmt: skip
def test_larger_products(shapes: Any) -> None:
    rng = np.random.default_rng(10)
    for dtype in DTYPES:
        low, high = (0, 2) if dtype.kind in "bu" else (-2, 3)
        inputs = tuple(rng.integers(low, high, shape).astype(dtype) for shape in shapes)
        for given in layouts(OPS["matmul"], inputs):
            check(OPS["matmul"], given, {}, 16)


def test_products_of_sizes_that_do_not_fit() -> None:
    n, k = Symbol("n", 2), Symbol("k", 2)
    types = (TensorType(np.dtype(np.float32), (3, n)), TensorType(np.dtype(np.float32), (k, 3)))
    node = one_node(OPS["matmul"], types, {}).results[0].node
    stage()
    compiled = Compiled(node, None, [True, True])
    outputs = [TensorType(np.dtype(np.float32), (3, 3))]
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        compiled([np.ones((3, 4), np.float32), np.ones((5, 3), np.float32)], outputs)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side: str) -> None:
    rng = np.random.default_rng(12)
    for dtype in DTYPES:
        for kind in ("few", "many", "odd"):
            for n in (0, 1, 2, 37):
                a = OPS["sort"].numpy(numbers(rng, dtype, n, kind), axis=0, stable=True)
                for shape in ((), (19,), (3, 4)):
                    check(
                        OPS["searchsorted"],
                        (a, np.asarray(numbers(rng, dtype, shape, kind))),
                        {"side": side},
                    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_of_values_in_order(side: str) -> None:
    """Most belong near where the one before does; ends, steps back and NaNs among them do not."""
    rng = np.random.default_rng(21)
    for dtype in DTYPES:
        for kind, n in (("few", 90), ("many", 65), ("odd", 300)):
            a = OPS["sort"].numpy(numbers(rng, dtype, n, kind), axis=0, stable=True)
            v = OPS["sort"].numpy(numbers(rng, dtype, 500, kind), axis=0, stable=True)
            for given in (v, v[::-1].copy(), np.concatenate([v[250:], v[:250]])):
                check(OPS["searchsorted"], (a, given), {"side": side})


def test_unique() -> None:
    rng = np.random.default_rng(13)
    for dtype in DTYPES:
        for kind in ("few", "many", "odd"):
            for n in (0, 1, 300):
                check(OPS["unique"], (numbers(rng, dtype, n, kind),), {})


def test_random_bits_of_many_elements() -> None:
    rng = np.random.default_rng(14)
    key = rng.integers(0, 2**32, (2, 2), np.uint32)
    for name in ("u8", "u16", "u32", "u64"):
        for shape in ((1,), (16,), (4097,), (10, 1001)):
            check(OPS["random_bits"], (key[0],), {"shape": shape, "dtype": BY_NAME[name]})
            check(OPS["random_bits"], (key,), {"shape": shape, "dtype": BY_NAME[name]})
    check(OPS["fold_in"], (key[:, np.newaxis], np.arange(-5, 100)), {})


def transforms(x: np.ndarray) -> Iterator[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]]:
    """Yield transforms of floats, along both axes."""
    if x.dtype.kind == "f":
        z = x.astype(f"c{2 * x.dtype.itemsize}")
        for axis, n in enumerate(x.shape):
            yield "rfft", (x,), {"axis": axis, "n": n}
            yield "fft", (z,), {"axis": axis, "n": n, "inverse": False}


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8"])
def test_the_number_of_threads_does_not_show(dtype: str) -> None:
    rng = np.random.default_rng(17)
    stage()
    x = rng.choice(special_values(np.dtype(dtype)), 150_000)
    wide = numbers(rng, np.dtype(dtype), (300, 700), "many")
    cases: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
        *((name, (x,), {**attrs, "axis": 0}) for name, attrs in ALONG_AXIS),
        *((name, (wide,), {**attrs, "axis": 1}) for name, attrs in ALONG_AXIS),
        ("nonzero", (x != x[0],), {}),
        *transforms(wide),
        ("matmul", (wide, wide[0]), {}),
        ("matmul", (wide[:, 0].copy(), wide), {}),
    ]
    for name, inputs, attrs in cases:
        found = []
        for count in (1, 2, 4):
            with pool.threads(count):
                found.append([y.tobytes() for y in run(OPS[name], inputs, attrs)])
        assert found[0] == found[1] == found[2], name


# -- linear algebra and transforms ----------------------------------------------------------------------------------

SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
NOT_FINITE = np.array([[np.nan, 1.0], [1.0, np.inf]])


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_matrices_that_cannot_be_handled(dtype: str) -> None:
    one = np.eye(2).astype(dtype)
    for bad in (SINGULAR.astype(dtype), NOT_FINITE.astype(dtype), -one):
        for x in (bad, np.stack([one, bad, one])):
            for name in ("inv", "det", "slogdet", "eig", "eigvals", "svdvals"):
                check(OPS[name], (x,), {})
            check(OPS["cholesky"], (x,), {"upper": False})
            check(OPS["eigh"], (x,), {"lower": True})
            check(OPS["svd"], (x,), {"full_matrices": True})
            check(OPS["solve"], (x, one), {})
            check(OPS["qr"], (x,), {"mode": "reduced"})


def test_singular_triangles() -> None:
    a = np.array([[1.0, 0.0], [1.0, 0.0]])
    for unit in (False, True):
        attrs = {"lower": True, "transpose": False, "unit": unit}
        check(OPS["triangular_solve"], (a, np.ones((2, 1))), attrs)
        check(OPS["triangular_solve"], (np.stack([np.eye(2), a]), np.ones((2, 3))), attrs)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("m", [0, 1, 7, 33, 192, 193])
def test_triangles_of_few_rows_and_of_many(m: int, dtype: str) -> None:
    rng = np.random.default_rng(m)
    a = (rng.normal(size=(m, m)) / max(m, 1) + 2 * np.eye(m)).astype(dtype)
    for n, choice in zip((0, 1, 3, 16, 17, 40, 64, 129), range(8)):
        b = rng.normal(size=(m, n)).astype(dtype)
        attrs = {
            "lower": choice in (1, 4, 5, 7),
            "transpose": choice in (2, 4, 6, 7),
            "unit": choice in (3, 5, 6, 7),
        }
        check(OPS["triangular_solve"], (a, b), attrs, 1e4)


def test_an_earlier_invalid_operation_is_no_error() -> None:
    with np.errstate(invalid="ignore"):
        np.divide(np.zeros(9), np.zeros(9))
    check(OPS["inv"], (np.eye(3),), {})


def test_larger_matrices() -> None:
    rng = np.random.default_rng(15)
    x = rng.normal(size=(3, 40, 40)) + 10 * np.eye(40)
    for name in ("inv", "det", "slogdet", "lu"):
        check(OPS[name], (x,), {}, 1e4)
    check(OPS["solve"], (x, rng.normal(size=(40, 7))), {}, 1e4)
    attrs = {"lower": False, "transpose": True, "unit": False}
    check(OPS["triangular_solve"], (x[0], rng.normal(size=(2, 40, 7))), attrs, 1e4)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_longer_transforms(name: str) -> None:
    """NumPy's own loops have NumPy's bits; lanes that are transformed by vectors, of lengths with small factors, have not."""
    rng = np.random.default_rng(16)
    for n in (1, 2, 30, 90, 405, 999, 1000, 1024, 1026):
        for shape, axis in (((40, n), 1), ((n, 40), 0), ((2, n, 20), 1)):
            size = n // 2 + 1 if name == "irfft" else n
            full = tuple(size if k == axis else d for k, d in enumerate(shape))
            x = rng.normal(size=full)
            given = x if name == "rfft" else x + 1j * rng.normal(size=full)
            attrs = {"axis": axis, "n": n} | ({"inverse": True} if name == "fft" else {})
            check(OPS[name], (given,), attrs, 0.0 if n in (1, 999, 1026) else 8.0)


# -- special functions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SPECIAL))
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "bfloat16"])
def test_special_functions(name: str, dtype: str) -> None:
    kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    module = Module("special")
    f = module.function("entry", "void", [("ptr", "x"), ("ptr", "y")])
    found = load_scalar(f, kind, f.params[0])
    assert isinstance(found, Value)
    store_scalar(f, kind, special(f, name, kind, found), f.params[1])
    f.ret()
    stage()
    library.provide(module.text())
    code = jit.load(module.text(), level=1)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("entry"))
    for number in (0.3, -0.7, 2.5, 0.0, np.nan, np.inf):
        x, y = np.array([number]).astype(kind), np.zeros(1, kind)
        entry(x.ctypes.data, y.ctypes.data)
        with np.errstate(all="ignore"):
            expected = np.asarray(OPS[name].numpy(x))
            np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint64", "int64"])
def test_order_of_many_integers_that_are_near_each_other(dtype: str) -> None:
    rng = np.random.default_rng(7)
    order = dsl.jit(lambda x: np.argsort(x, kind="stable"))
    groups = dsl.jit(
        lambda x: np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    )
    info = np.iinfo(dtype)
    for low, high in (
        (0, 100),
        (info.min, info.min + 100),
        (info.max - 4095, info.max),
        (0, 4096),
        (0, 4097),
    ):
        if not info.min <= low <= high <= info.max:
            continue
        for n in (4095, 4096, 9001):
            x = rng.integers(low, high, n, dtype=dtype, endpoint=True)
            np.testing.assert_array_equal(order(x), np.argsort(x, kind="stable"))
            want = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
            for a, b in zip(groups(x), want, strict=True):
                np.testing.assert_array_equal(a, b)
    table = rng.integers(0, 9, (3, 5000)).astype(dtype)
    np.testing.assert_array_equal(order(table), np.argsort(table, kind="stable"))
