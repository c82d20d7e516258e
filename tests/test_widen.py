"""Loops over vectors, written out: each elementwise op gives the same bits as in a loop over elements, each sum nearly so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from test_elementwise_native import ELEMENTWISE, cases, operands, outputs_of, place, repeated, run
from test_op_sweep import bits

import dsl
from dsl.codegen import elementwise, widen
from dsl.codegen.arrays import load_scalar, store_scalar
from dsl.codegen.cpu import jit, native
from dsl.codegen.library import routines
from dsl.codegen.llvm import Function, Module, Value
from dsl.ir.registry import Op, Sample
from dsl.ir.types import DTYPES

# Ops of some dtypes whose loops must not be left to LLVM.
WIDENED = {
    "add": {"f32_f32", "f64_f64", "i8_i8", "i64_i64", "u16_u16"}, "multiply": {"f32_f32", "i32_i32"},
    "less": {"f32_f32", "i64_i64", "u8_u8"}, "maximum": {"f64_f64", "i32_i32"}, "exp": {"f32", "f64"},
    "where": {"bool_f32_f32"}, "sqrt": {"f32"}, "logical_and": {"bool_bool"}, "power": {"f64_f64"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def emit_loop(module: Module, name: str, op: Op, sample: Sample, lanes: int) -> bool:
    """Add a loop over contiguous operands, by vectors if there are `lanes`, the last one masked; tell whether it could be."""
    inputs, (_, outputs) = [x.dtype for x in sample.inputs], outputs_of(op, sample)
    pointers = [("ptr noalias", f"a{k}") for k in range(len(inputs) + len(outputs))]
    fn = module.function(name, "void", [*pointers, ("ptr noalias", "flag"), ("i64", "n")])
    *arrays, _, count = fn.params
    fn.lanes = ()
    counter = fn.name_value("i64")
    with fn.recorded() as lines:
        emit_point(fn, op, sample, (inputs, outputs), arrays, counter)
    body = widen.read(lines, counter.text) if lanes else None
    if body is not None:
        whole = fn.masked(count, -lanes)
        emit_wide(fn, body.widened(lanes), lanes, 0, whole)
        emit_wide(fn, body.widened(lanes, count.text), lanes, whole, count)
    else:
        with fn.loop(0, count, counter=counter):
            fn.replay(lines)
    fn.ret()
    return body is not None


def emit_point(
    fn: Function, op: Op, sample: Sample, dtypes: tuple[list[np.dtype], list[np.dtype]],
    arrays: Sequence[Value], at: Value,
) -> None:  # fmt: skip
    inputs, outputs = dtypes
    places = [place(fn, dtype, array, at) for dtype, array in zip([*inputs, *outputs], arrays)]
    args = [load_scalar(fn, dtype, address) for dtype, address in zip(inputs, places)]
    never = lambda *_: None
    found = elementwise.emit(fn, op.name, sample.attrs, inputs, outputs, args, never)
    for dtype, value, address in zip(outputs, found, places[len(inputs) :]):
        store_scalar(fn, dtype, value, address)


def emit_wide(fn: Function, wide: widen.Widened, lanes: int, start: Any, stop: Any) -> None:
    for name, (result, params) in wide.calls.items():
        fn.module.declare(name, result, params)
    fn.replay(wide.before)
    with fn.loop(start, stop, lanes, counter=Value(wide.counter, "i64", fn)):
        fn.replay(wide.body)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_vectors_have_the_bits_of_elements(op: Op) -> None:
    module, chosen = Module(op.name), dict(cases(op))
    widened = {
        name: [n for n in (16,) if emit_loop(module, f"{name}_{n}", op, sample, n)]
        for name, sample in chosen.items()
    }
    for name, sample in chosen.items():
        emit_loop(module, f"{name}_0", op, sample, 0)
    text = module.text()
    routines.provide(text)
    code = jit.load(text, level=0)  # where LLVM has mistakes of its own with masks
    for name, sample in chosen.items():
        _, outputs = outputs_of(op, sample)
        inputs = [repeated(x) for x in operands(op, sample)]
        expected, _ = run(code, f"{name}_0", inputs, outputs)
        for lanes in widened[name]:
            got, _ = run(code, f"{name}_{lanes}", inputs, outputs)
            for a, b in zip(got, expected):
                assert (bits(op, a) == bits(op, b)).all(), f"{name}, {lanes} lanes"
    assert WIDENED.get(op.name, set()) <= {name for name, found in widened.items() if found}


REDUCTIONS = ("sum", "max", "min", "any", "all")


@pytest.mark.parametrize("count", [15, 16, 64, 200, 1027])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_any_length_are_reduced(dtype: Any, count: int) -> None:
    """Beside NumPy: whole vectors, what remains of them, NaN at any place."""
    rng = np.random.default_rng(count)
    x = rng.integers(0, 3, (3, count)) if dtype.kind in "iub" else rng.normal(size=(3, count)) + 1
    x = x.astype(dtype)

    def reduce_all(x: np.ndarray) -> Any:
        return tuple(getattr(x * x, name)(axis=1) for name in REDUCTIONS)

    with dsl.config.override(backend="interpreter"):
        expected = dsl.jit(reduce_all)(x)
    for got, wanted in zip(dsl.jit(reduce_all)(x), expected):
        assert got.dtype == wanted.dtype
        rough = 2e-2 if dtype.itemsize <= 2 else 1e-5
        np.testing.assert_allclose(got.astype(complex), wanted.astype(complex), rtol=rough)


@pytest.mark.parametrize("count", [15, 63, 65, 300, 4100])
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "f2", "f4", "f8"])
def test_truths_are_counted(dtype: str, count: int) -> None:
    """Alone, beside sums of their size, and where what remains is masked."""
    x = np.random.default_rng(count).integers(0, 2, (3, count)).astype(dtype)

    def counts(x: np.ndarray) -> Any:
        rows = np.count_nonzero(x, axis=1)
        return np.count_nonzero(x), rows, (x == 0).sum(axis=1), x.max(axis=1), (x != 0).sum()

    for got, wanted in zip(dsl.jit(counts)(x), counts(x)):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("place", [0, 7, 63, 64, 130, 199])
def test_nan_is_found_in_every_lane(place: int) -> None:
    x = np.zeros((2, 200), np.float32)
    x[1, place] = np.nan
    found = dsl.jit(lambda x: (np.max(x + 1, axis=1), np.min(x - 1, axis=1)))(x)
    np.testing.assert_array_equal(found, [[1, np.nan], [-1, np.nan]])


@pytest.mark.parametrize("length", [2, 3, 8, 16, 17])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_short_rows(dtype: str, length: int) -> None:
    """All pairs of points: vectors go along the points, with what is done to each sum, for sizes known or not."""
    rng = np.random.default_rng(length)

    def pairs(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
        apart = x[:, None, :] - y[None, :, :]
        far = np.abs(apart).max(axis=2)
        return np.sqrt((apart * apart).sum(axis=2)) + z, far, (apart < 3).all(axis=-1)

    compiled = dsl.jit(pairs)
    for n, m in ((9, 16), (20, 131), (8, 64), (3, 5), (40, 17), (11, 300)):
        shapes = (n, length), (2 * m, length), (n, m)
        x, y, z = ((9 * rng.random(shape)).astype(dtype) for shape in shapes)
        for got, wanted in zip(compiled(x, y[::2], z), pairs(x, y[::2], z)):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_rows_that_are_turned_round_are_workspace() -> None:
    """They are planned, checked for memory and reported like any other array of the program."""
    compiled = dsl.jit(lambda x, y: ((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2))
    args = np.ones((20, 3)), np.ones((100, 3))
    assert "rows turned round" in str(compiled.lower(*args).memory_report())


def test_what_is_left_to_llvm() -> None:
    """Addresses that depend on data, other strides, sums in a given order, branches, unknown calls."""
    head = [
        "  %p = getelementptr inbounds float, ptr %a, i64 %i",
        "  %x = load float, ptr %p, align 4",
    ]
    store = "  store float %y, ptr %p, align 4"
    assert widen.read([*head, "  %y = fmul float %x, %x", store], "%i") is not None
    for lines in (
        [
            "  %j = mul nsw i64 %i, 2",
            head[0].replace("%i", "%j"),
            head[1],
            store.replace("%y", "%x"),
        ],
        ["  %j = mul nsw i64 %i, %n", head[0].replace("%i", "%j"), head[1]],
        [*head, "  %k = fptosi float %x to i64", head[0].replace("%p", "%q").replace("%i", "%k")],
        [
            *head,
            "  %s = load float, ptr %sum",
            "  %y = fadd float %s, %x",
            "  store float %y, ptr %sum",
        ],
        [*head, "  %y = call float @cosf(float %x)", store],
        [*head, "  br label %next", "next:", store.replace("%y", "%x")],
        [*head, "  store float %x, ptr %fixed, align 4"],
        ["  %x = load float, ptr %fixed, align 4", "  %c = fadd float %x, %x"],
    ):
        assert widen.read(lines, "%i") is None, lines


def test_programs_of_plain_kernels_are_compiled_as_written() -> None:
    def softmax(x: np.ndarray) -> Any:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    text = dsl.jit(softmax).ir(np.ones((4, 100)), stage="llvm")
    assert re.search(r"call <\d+ x double> @llvm.fma.v\d+f64", text)
    assert "dsl_math_exp" not in text


def test_programs_that_are_very_long_are_compiled_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def steps(x: np.ndarray, n: int) -> Any:
        while n > 0:
            x, n = x @ x / 4 + np.sin(x[::2].sum()), n - 1
        return x.argmax(), np.sort(x, axis=0), x

    used = []
    load = jit.load

    def noted(text: str, **how: Any) -> Any:
        if "@dsl_program(" in text:
            used.append(jit.AS_WRITTEN in how["flags"])
        return load(text, **how)

    monkeypatch.setattr(jit, "load", noted)
    x = np.linspace(0, 1, 9).reshape(3, 3)
    for most in (10, 10**6):
        monkeypatch.setattr(native, "MOST_LINES", most)
        with dsl.config.override(cache_dir="off"):
            got = dsl.jit(steps)(x, 3)
        for one, other in zip(got, steps(x, 3)):
            np.testing.assert_allclose(one, other)
    assert used == [True, False]


def layers(x: np.ndarray, weights: list[np.ndarray]) -> Any:
    for w in weights:
        centred = x - x.mean(axis=1, keepdims=True)
        x = np.tanh(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 0.1) @ w)
    return x


@pytest.mark.parametrize("size", [5, 300])
def test_equal_kernels_of_long_programs_are_one_function(size: int) -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.random((size, 6)), [rng.random((6, 6)) for _ in range(40)]
    np.testing.assert_allclose(dsl.jit(layers)(x, weights), layers(x, weights), rtol=1e-9)
    text = dsl.jit(layers).ir(x, weights, stage="llvm")
    assert 1 <= text.count("define internal void @kernel") <= 10


def test_functions_are_called_where_some_of_them_are_long() -> None:
    def both(x: np.ndarray) -> Any:
        return np.exp(x) + np.log1p(x)

    text = dsl.jit(both).ir(np.ones(1000), stage="llvm")
    for name in ("exp", "log1p"):
        assert re.search(rf"call <\d+ x double> @dsl_math_{name}_x\d+_f64", text)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ["exp", "exp2", "tanh", "arcsin", "arctan", "hypot"])
def test_functions_have_the_same_bits_in_loops_and_called(name: str, dtype: str) -> None:
    function = getattr(np, name)
    x = np.concatenate(
        [np.linspace(-120, 120, 10_007), [np.nan, np.inf, -np.inf, -0.0, 1e-42]]
    ).astype(dtype)
    args = (x, x[::-1].copy()) if name == "hypot" else (x,)

    @dsl.jit
    def by_itself(*args: Any) -> Any:
        return function(*args)

    @dsl.jit
    def beside_a_long_one(*args: Any) -> Any:
        return function(*args), np.log1p(args[0] * args[0])

    with np.errstate(all="ignore"):
        found, expected = by_itself(*args), beside_a_long_one(*args)[0]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def capped(x: np.ndarray) -> Any:
    e = np.exp(x / 4)
    return (e * 20).astype(np.int8).sum(), np.where(e > 2, -np.inf, e).max()


def largest(x: np.ndarray) -> Any:
    return np.exp(x).max()


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("function", [capped, largest])
def test_llvm_prints_nothing_about_loops(function: Any, dtype: str, capfd: Any) -> None:
    dsl.jit(function).ir(np.ones(100, dtype), stage="asm")
    assert not capfd.readouterr().err


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_loops_that_skip_nan_are_compiled(dtype: str) -> None:
    """LLVM's vectoriser must not meet what makes it abort."""

    def extremes(x: np.ndarray) -> Any:
        low = high = x[0]
        for k in range(1, len(x)):
            low, high = np.fmin(low, x[k]), np.fmax(high, x[k])
        return low, high, np.fmax.reduce(x)

    x = np.linspace(-2, 3, 33).astype(dtype)
    x[[0, 7, 32]] = np.nan
    assert dsl.jit(extremes)(x) == extremes(x)


def test_few_columns_that_are_summed_over_many_rows_are_turned_round() -> None:
    """Forces between all pairs of points: three coordinates, read in long steps."""

    def forces(points: Any, weights: Any) -> Any:
        apart = points[None, :, :] - points[:, None, :]
        return (apart * weights[:, :, None]).sum(axis=1), (apart * apart).max(axis=1)

    rng = np.random.default_rng(0)
    f = dsl.jit(forces)
    for count in (2, 9, 16, 33, 200):
        points, weights = rng.random((count, 3)), rng.random((count, count))
        for given in (points, rng.random((3, count)).T, rng.random((2 * count, 6))[::2, ::-2]):
            for got, want in zip(f(given, weights), forces(given, weights), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert "rows turned round" in str(f.lower(points, weights).memory_report())


@pytest.mark.parametrize("function", [np.exp, np.exp2])
def test_functions_of_floats_beside_doubles_fill_half_a_register(function: Any) -> None:
    x = np.linspace(-3, 3, 301, dtype=np.float32)
    y = np.linspace(1, 2, 301)
    alone = dsl.jit(lambda x: function(x))(x)
    beside = dsl.jit(lambda x, y: function(x) * y)(x, y)
    np.testing.assert_array_equal(beside, alone * y)


@pytest.mark.parametrize("target", ["i1", "u1", "i2", "i4"])
@pytest.mark.parametrize("source", ["i2", "i4", "i8"])
def test_one_narrower_element_in_the_last_vector_is_written_alone(source: str, target: str) -> None:
    """For a mask of one lane LLVM writes the wide element, over its neighbours."""

    def program(x, y):
        y[: len(x)] = x

    for size in (17, 33, 65):
        y = np.full(80, 7).astype(target)
        dsl.jit(program)(np.full(size, -1).astype(source), y)
        assert (y[size:] == 7).all()
