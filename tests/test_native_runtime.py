"""The native runtime: what entries accept, return and own; the allocator; the thread pool; signals and callbacks."""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from concurrently import Call, exit_code_of_child, in_threads
from numpy._core.multiarray import get_handler_name
from numpy.lib.stride_tricks import as_strided

from dsl.codegen.cpu import cgroups, entry, jit, memory, pool, runtime
from dsl.codegen.cpu.entry import (
    Argument,
    ArrayParam,
    ArrayResult,
    Constant,
    Earlier,
    EntrySpec,
    NumberParam,
    NumberResult,
    SameParam,
    ScalarResult,
    StaticParam,
    View,
)
from dsl.codegen.llvm import Function, Module, Value
from dsl.config import config
from dsl.errors import ConfigError, InternalError
from dsl.ir.dims import Symbol, dim_max, dim_min

F4, F8, I8 = np.dtype("f4"), np.dtype("f8"), np.dtype("i8")
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(c) for c in "?bhilBHILefdFD"] + [BF16]


# --- Programs ------------------------------------------------------------------------------------


@functools.cache
def runtime_code() -> jit.Code:
    return runtime.ensure_loaded()


def compiled(
    build: Callable[[Function, Value, Value], None], *extra: Callable[[Module], None]
) -> jit.Code:
    """Return the code of one program, built by `build(f, frame, context)`."""
    runtime_code()
    module = Module("test")
    for part in extra:
        part(module)
    f = module.function("program", "i64", [("ptr", "frame"), ("ptr", "context")])
    build(f, *f.params)
    return jit.load(module.text())


def made(build: Callable[[Function, Value, Value], None], spec: EntrySpec, *extra: Any) -> Any:
    """Return an entry for a program."""
    code = compiled(build, *extra)
    spec = EntrySpec(**{**_fields(spec), "keep": code})
    return entry.make_entry(code.address("program"), spec)


def _fields(spec: EntrySpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def word(f: Function, base: Value, index: int, type: str = "i64") -> Value:
    return f.load(type, f.gep(base, 8 * index))


def put(f: Function, base: Value, index: int, value: Value | int) -> None:
    f.store(f.as_value(value, "i64"), f.gep(base, 8 * index))


def nothing(f: Function, frame: Value, context: Value) -> None:
    f.ret(0)


def dump(count: int) -> Callable[[Function, Value, Value], None]:
    """A program whose one result is an int64 array of the frame's first words."""

    def build(f: Function, frame: Value, context: Value) -> None:
        block = f.call("ptr", "dsl_alloc", f.as_value(8 * count, "i64"))
        f.call("ptr", "memcpy", block, frame, f.as_value(8 * count, "i64"))
        f.store(block, f.gep(frame, 8 * count))
        put(f, frame, count + 1, count)
        f.ret(0)

    return build


def dumper(*params: entry.Param) -> Any:
    """Return an entry that gives the words of its parameters."""
    spec = EntrySpec(params, [ArrayResult(I8, 1)])
    return made(dump(spec.result_words[0]), spec)


def copy(f: Function, frame: Value, context: Value) -> None:
    """One contiguous 1-d array in, its copy out; the itemsize is the last dim's stride."""
    size = f.binary("mul", word(f, frame, 1), word(f, frame, 2))
    block = f.call("ptr", "dsl_alloc", size)
    f.call("ptr", "memcpy", block, word(f, frame, 0, "ptr"), size)
    f.store(block, f.gep(frame, 24))
    put(f, frame, 4, word(f, frame, 1))
    f.ret(0)


def copier(dtype: np.dtype, **options: Any) -> Any:
    return made(copy, EntrySpec([ArrayParam(dtype, ("n",))], [ArrayResult(dtype, 1)], **options))


def echo(words: int) -> Callable[[Function, Value, Value], None]:
    """A program that copies words of its parameters to its results, which follow them."""

    def build(f: Function, frame: Value, context: Value) -> None:
        for index in range(words):
            put(f, frame, words + index, word(f, frame, index))
        f.ret(0)

    return build


# --- Arrays as arguments -------------------------------------------------------------------------


def test_the_frame_has_address_dims_and_strides() -> None:
    f = dumper(ArrayParam(F4, ("m", "n"), "any"), ArrayParam(F8, (3,)))
    x, y = np.zeros((6, 8), F4)[::-2, ::3], np.zeros(3)
    words = f(x, y)
    assert words.tolist() == [x.ctypes.data, 3, 3, -64, 12, y.ctypes.data, 3, 8]


def test_a_spec_tells_where_parameters_and_results_start() -> None:
    params = [ArrayParam(F4, (2, 3)), NumberParam("int"), StaticParam(None), ArrayParam(F4, ())]
    results = [
        ArrayResult(F4, 2),
        Argument(0),
        ScalarResult(F4),
        ArrayResult(F4, 0),
        Constant(None),
    ]
    spec = EntrySpec(params, results, "tuple")
    assert spec.param_words == [0, 5, 7, 7]
    assert spec.result_words == [8, 11, 11, 13, 15]
    assert spec.frame_words == 15


class Sub(np.ndarray[Any, Any]):
    pass


BASE = np.arange(24, dtype=F4).reshape(4, 6)


@pytest.mark.parametrize(
    "argument",
    [
        BASE.astype(F8),
        BASE.astype(">f4"),
        BASE[0],
        BASE.reshape(2, 2, 6),
        BASE.T,
        BASE[:, ::2],
        BASE[:, 1:].copy(),
        BASE[::-1],
        BASE.view(Sub),
        np.ma.masked_array(BASE),
        BASE.tolist(),
        None,
        1.0,
        np.zeros((4, 6), [("x", F4)]),
        np.zeros(4 * 6 * 4 + 1, np.uint8)[1:].view(F4).reshape(4, 6),
    ],
    ids=[
        "dtype", "byte order", "rank 1", "rank 3", "transposed", "strided", "shape", "reversed", "subclass", "masked",
        "list", "None", "float", "record", "unaligned",
    ],
)  # fmt: skip
def test_an_array_that_does_not_fit_is_declined(argument: object) -> None:
    f = dumper(ArrayParam(F4, (4, 6)))
    assert f(BASE) is not NotImplemented
    assert f(argument) is NotImplemented


def test_a_memory_map_is_declined(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", F4, "w+", shape=(4, 6))
    assert dumper(ArrayParam(F4, (4, 6)))(mapped) is NotImplemented


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_only_the_dtype_asked_for_is_accepted(dtype: np.dtype, other: np.dtype) -> None:
    accepted = copier(dtype)(np.ones(3, other)) is not NotImplemented
    assert accepted == (dtype == other)


def test_the_number_of_arguments_must_fit() -> None:
    f = dumper(ArrayParam(F4, (4, 6)))
    assert f() is NotImplemented
    assert f(BASE, BASE) is NotImplemented
    assert f(x=BASE) is NotImplemented


def test_a_symbol_takes_extents_from_two_and_the_same_everywhere() -> None:
    f = dumper(ArrayParam(F4, ("n", "m")), ArrayParam(F4, ("m", 5)))
    fits = lambda a, b: f(np.zeros(a, F4), np.zeros(b, F4)) is not NotImplemented
    assert fits((7, 3), (3, 5))
    assert fits((2, 2), (2, 5))
    assert not fits((7, 3), (4, 5))
    assert not fits((1, 3), (3, 5))
    assert not fits((0, 3), (3, 5))
    assert not fits((7, 1), (1, 5))
    assert not fits((7, 3), (3, 6))


def test_any_hashable_is_a_symbol_and_numpy_integers_are_numbers() -> None:
    f = dumper(ArrayParam(F4, (("a", 1), np.int64(3))), ArrayParam(F4, (("a", 1),)))
    assert f(np.zeros((4, 3), F4), np.zeros(4, F4)) is not NotImplemented
    assert f(np.zeros((4, 2), F4), np.zeros(4, F4)) is NotImplemented


def test_strides_of_length_one_and_empty_arrays_do_not_matter() -> None:
    odd = as_strided(np.zeros(64, F4), (1, 4), (100, 4))
    empty = as_strided(np.zeros(64, F4), (0, 4), (100, 40))
    for strides in ("contiguous", "any", (16, 4)):
        assert dumper(ArrayParam(F4, (1, 4), strides))(odd) is not NotImplemented
        assert dumper(ArrayParam(F4, (0, 4), strides))(empty) is not NotImplemented


def test_exact_strides() -> None:
    f = dumper(ArrayParam(F4, ("n", "m"), (48, 8)))
    wide = np.zeros((6, 12), F4)
    assert f(wide[:, ::2]) is not NotImplemented
    assert f(wide[:, :6]) is NotImplemented
    assert f(wide[::2, ::2]) is NotImplemented
    assert f(wide[:, ::-2]) is NotImplemented


def test_any_strides_are_whole_elements() -> None:
    f = dumper(ArrayParam(F4, ("n",), "any"))
    records = np.zeros(5, [("a", F4), ("b", np.int16)])
    packed = np.zeros(5, [("a", F4), ("b", F8)])
    assert f(records["a"]) is NotImplemented
    assert f(packed["a"]) is not NotImplemented
    assert f(np.zeros(9, F4)[::-3]) is not NotImplemented
    assert f(np.broadcast_to(np.zeros(1, F4), 4)) is not NotImplemented


def test_an_array_of_rank_0() -> None:
    f = dumper(ArrayParam(F4, ()))
    x = np.array(2.5, F4)
    assert f(x).tolist() == [x.ctypes.data]
    assert f(x[None]) is NotImplemented
    assert f(x[()]) is NotImplemented


def test_a_written_array_is_writeable() -> None:
    x = np.zeros(4, F4)
    x.flags.writeable = False
    assert dumper(ArrayParam(F4, (4,)))(x) is not NotImplemented
    assert dumper(ArrayParam(F4, (4,), written=True))(x) is NotImplemented


def test_a_written_array_has_each_element_once() -> None:
    f = dumper(ArrayParam(F4, ("n",), "any", written=True))
    x = as_strided(np.zeros(1, F4), (4,), (0,))
    assert f(x) is NotImplemented
    for strides in ("any", (4, 4)):
        f = dumper(ArrayParam(F4, ("n", "m"), strides, written=True))
        assert f(as_strided(np.zeros(9, F4), (4, 4), (4, 4))) is NotImplemented
    f = dumper(ArrayParam(F4, ("n", "m"), "any", written=True))
    for whole in (np.zeros((6, 8), F4), np.zeros((6, 8), F4).T):
        assert f(whole[::-2, ::3]) is not NotImplemented


@pytest.mark.parametrize("order", [0, 1])
def test_a_written_array_shares_no_memory_with_others(order: int) -> None:
    params = [ArrayParam(F4, ("n",), "any", written=True), ArrayParam(F4, ("m",), "any")]
    f = dumper(*params[:: 1 - 2 * order])
    call = lambda a, b: f(*(a, b)[:: 1 - 2 * order]) is not NotImplemented
    x = np.zeros(12, F4)
    assert call(x[:4], x[4:])
    assert call(x[4:], x[:4])
    assert call(x[3::-1], x[4:])
    assert not call(x[:5], x[4:])
    assert not call(x[4:], x[:5])
    assert not call(x[4::-1], x[4:])
    assert not call(x[8::-2], x[:2])
    assert not call(x[::2], x[1::2])  # ranges overlap, though elements do not: the slow way decides


def test_arrays_that_are_only_read_may_share_memory() -> None:
    x = np.zeros(12, F4)
    f = dumper(ArrayParam(F4, ("n",)), ArrayParam(F4, ("m",)))
    assert f(x[:8], x[4:]) is not NotImplemented


def test_empty_arrays_share_no_memory() -> None:
    x = np.zeros(12, F4)
    f = dumper(ArrayParam(F4, (12,), written=True), ArrayParam(F4, (0,)))
    assert f(x, x[4:4]) is not NotImplemented


def test_the_same_object_twice_is_declined_unless_asked_for() -> None:
    x, y = np.zeros(4, F4), np.zeros(4, F4)
    apart = dumper(ArrayParam(F4, (4,)), ArrayParam(F4, (4,)))
    same = dumper(ArrayParam(F4, (4,)), ArrayParam(F4, (4,), same_as=0))
    written = dumper(ArrayParam(F4, (4,), written=True), ArrayParam(F4, (4,), same_as=0))
    assert apart(x, y) is not NotImplemented
    assert apart(x, x) is NotImplemented
    for f in (same, written):
        assert f(x, x) is not NotImplemented
        assert f(x, y) is NotImplemented


def test_slow_declines_everything() -> None:
    f = dumper(ArrayParam(F4, (4, 6)))
    entry.SLOW.value += 1
    try:
        assert f(BASE) is NotImplemented
    finally:
        entry.SLOW.value -= 1
    assert f(BASE) is not NotImplemented


# --- Numbers and objects as arguments ------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, -1, 2**63 - 1, -(2**63), 2**31, -(2**31)])
def test_python_integers(number: int) -> None:
    assert dumper(NumberParam("int"))(number)[0] == number


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30, True, 1.0, np.int64(1), "1", None])
def test_what_is_not_an_integer_of_64_bits_is_declined(value: object) -> None:
    assert dumper(NumberParam("int"))(value) is NotImplemented


def test_other_python_numbers() -> None:
    assert dumper(NumberParam("float"))(-2.5).view(F8)[0] == -2.5
    assert dumper(NumberParam("complex"))(1.5 - 2j).view("c16")[0] == 1.5 - 2j
    assert dumper(NumberParam("bool"))(True)[0] == 1
    assert dumper(NumberParam("bool"))(False)[0] == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [("float", 1), ("float", np.float64(1)), ("complex", 1.0), ("complex", np.complex128(1)), ("bool", 1), ("bool", np.True_)],
)  # fmt: skip
def test_a_number_of_another_type_is_declined(kind: Any, value: object) -> None:
    assert dumper(NumberParam(kind))(value) is NotImplemented


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_scalars(dtype: np.dtype) -> None:
    f = dumper(NumberParam(dtype))
    scalar = np.array([3]).astype(dtype)[0]
    assert f(scalar).tobytes()[: dtype.itemsize] == scalar.tobytes()
    assert f(np.array(scalar)) is NotImplemented
    assert f(3) is NotImplemented
    for other in DTYPES:
        if other != dtype:
            assert f(other.type(1)) is NotImplemented


def test_static_objects_are_compared_by_identity_and_plain_ones_by_value() -> None:
    key, held = ("axis", 1000), ["axis"]
    f = dumper(StaticParam(key), NumberParam("int"), StaticParam(None), StaticParam(held))
    assert f(key, 5, None, held)[0] == 5
    assert f(("axis", int("1000")), 5, None, held)[0] == 5
    assert f(("axis", int("1001")), 5, None, held) is NotImplemented
    assert f(["axis", 1000], 5, None, held) is NotImplemented
    assert f(key, 5, None, list(held)) is NotImplemented
    assert dumper(StaticParam(1), NumberParam("int"))(True, 5) is NotImplemented
    assert f(key, 5, 0) is NotImplemented


def test_one_array_for_two_arguments() -> None:
    f = dumper(ArrayParam(F4, (3,)), SameParam(0), NumberParam("int"))
    x, y = np.zeros(3, "f4"), np.zeros(3, "f4")
    found = f(x, x, 5)
    assert (found[0], found[3]) == (x.ctypes.data, 5)  # the frame has one array
    assert f(x, y, 5) is NotImplemented
    assert f(x, 0, 5) is NotImplemented
    assert dumper(ArrayParam(F4, (3,)), ArrayParam(F4, (3,)))(x, x) is NotImplemented


def test_a_static_object_lives_as_long_as_the_entry() -> None:
    class Thing:
        pass

    alive = Thing()
    f = dumper(StaticParam(alive), NumberParam("int"))
    identity = id(alive)
    del alive
    gc.collect()
    thing = ctypes.cast(identity, ctypes.py_object).value
    assert f(thing, 1)[0] == 1


# --- Results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_each_dtype(dtype: np.dtype) -> None:
    x = np.arange(7).astype(dtype)
    y = copier(dtype)(x)
    assert type(y) is np.ndarray
    assert y.dtype is x.dtype
    assert y.tobytes() == x.tobytes()
    assert y.flags.c_contiguous
    assert y.flags.aligned
    assert y.flags.writeable
    assert y.ctypes.data % 64 == 0


def test_arrays_of_each_rank() -> None:
    for rank in range(1, 6):
        shape = tuple(range(2, 2 + rank))

        def build(
            f: Function, frame: Value, context: Value, shape: tuple[int, ...] = shape
        ) -> None:
            f.store(f.call("ptr", "dsl_alloc", f.as_value(8 * math.prod(shape), "i64")), frame)
            for axis, dim in enumerate(shape):
                put(f, frame, 1 + axis, dim)
            f.ret(0)

        y = made(build, EntrySpec([], [ArrayResult(F8, rank)]))()
        assert y.shape == shape
        assert y.flags.c_contiguous
        y[...] = 1
        assert y.sum() == math.prod(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalars_and_arrays_of_rank_0(dtype: np.dtype) -> None:
    scalar = np.array([3]).astype(dtype)[0]
    f = made(echo(2), EntrySpec([NumberParam(dtype)], [ScalarResult(dtype)]))
    g = made(echo(2), EntrySpec([NumberParam(dtype)], [ArrayResult(dtype, 0)]))
    assert type(f(scalar)) is dtype.type
    assert f(scalar).tobytes() == scalar.tobytes()
    assert type(g(scalar)) is np.ndarray
    assert g(scalar).shape == ()
    assert g(scalar).tobytes() == scalar.tobytes()
    assert g(scalar).flags.owndata


def test_numpy_truths_are_singletons() -> None:
    f = made(echo(2), EntrySpec([NumberParam(np.dtype(bool))], [ScalarResult(np.dtype(bool))]))
    assert f(np.True_) is np.True_
    assert f(np.False_) is np.False_


@pytest.mark.parametrize(
    ("kind", "value"), [("int", -(2**40)), ("float", 0.1), ("complex", 1 - 2j), ("bool", True), ("bool", False)]
)  # fmt: skip
def test_python_numbers(kind: Any, value: object) -> None:
    result = made(echo(2), EntrySpec([NumberParam(kind)], [NumberResult(kind)]))(value)
    assert type(result) is type(value)
    assert result == value


def test_arguments_constants_and_earlier_results() -> None:
    x, key = np.zeros(3, F4), object()
    results = [ArrayResult(F4, 1), Argument(0), Constant(key), Earlier(0), Constant(None)]
    f = made(copy, EntrySpec([ArrayParam(F4, (3,))], results, "tuple"))
    made_, argument, constant, again, none = f(x)
    assert argument is x
    assert constant is key
    assert again is made_
    assert none is None


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_view_lies_where_the_words_of_the_frame_say(n: int) -> None:
    size = Symbol("n", 2)
    numbers: list[tuple[Any, int]] = [
        (size * size - 3 * size + 1, n * n - 3 * n + 1),
        ((1 - size) // 2, (1 - n) // 2),
        ((1 - size) % 3, (1 - n) % 3),
        (dim_max(size - 4, 4 - size), max(n - 4, 4 - n)),
        (dim_min(size - 4, 4 - size), min(n - 4, 4 - n)),
        ((size * 2) // (size + 1) * 8, n * 2 // (n + 1) * 8),
        (-7, -7),
    ]
    places: Any = ((size, ("param", 0, 1)),)
    for dim, expected in numbers:
        view = View(Argument(0), F4, 0, (1,), (dim,), places)
        f = made(nothing, EntrySpec([ArrayParam(F4, (size,))], [view]))
        assert f(np.zeros(n, F4)).strides == (expected,)


def test_a_view_of_a_hidden_result_keeps_it() -> None:
    x, size = np.arange(5, dtype=F4), Symbol("n", 2)
    back = View(Earlier(0), F4, 4 * size - 4, (size,), (-4,), ((size, ("result", 0, 1)),))
    f = made(copy, EntrySpec([ArrayParam(F4, (size,))], [ArrayResult(F4, 1), back], hidden=1))
    found = f(x)
    np.testing.assert_array_equal(found, x[::-1])
    assert found.base.flags.owndata
    g = made(copy, EntrySpec([ArrayParam(F4, (size,))], [ArrayResult(F4, 1), back], "tuple"))
    whole, turned = g(x)
    assert turned.base is whole


def test_a_view_is_writeable_if_its_array_is() -> None:
    free = View(Argument(0), F4, 4, (2,), (4,))
    fixed = View(Argument(0), F4, 0, (3,), (0,), writeable=False)
    f = made(nothing, EntrySpec([ArrayParam(F4, (3,))], [free, fixed], "tuple"))
    x = np.zeros(3, F4)
    assert [v.flags.writeable for v in f(x)] == [True, False]
    x.flags.writeable = False
    assert [v.flags.writeable for v in f(x)] == [False, False]


def test_a_signature_says_how_arguments_may_be_given() -> None:
    def like(a: int, /, b: int, c: int = 3, *, d: int = 4) -> None: ...

    params = [NumberParam("int")] * 4
    spec = EntrySpec(params, [ArrayResult(I8, 1)], signature=inspect.signature(like))
    f = made(dump(8), spec)
    taken = lambda *args, **kwargs: f(*args, **kwargs)[::2].tolist()
    assert taken(1, 2) == [1, 2, 3, 4]
    assert taken(1, b=5) == [1, 5, 3, 4]
    assert taken(1, 2, 6, d=7) == [1, 2, 6, 7]
    assert taken(1, d=7, c=8, b=9) == [1, 9, 8, 7]
    calls: list[tuple[Any, dict[str, Any]]] = [
        ((1,), {}), ((1, 2, 3, 4), {}), ((1, 2, 3, 4, 5), {}), ((1, 2), {"b": 2}), ((1, 2), {"e": 2}),
        ((), {"a": 1, "b": 2}), ((1, 2), {"d": "x"}), ((1, 2), {"a": 1}),
    ]  # fmt: skip
    for args, kwargs in calls:
        assert f(*args, **kwargs) is NotImplemented
    declined = lambda *args, **kwargs: (args, kwargs)
    g = made(dump(8), EntrySpec(**{**_fields(spec), "declined": declined}))
    assert g(1, 2, e=5) == ((1, 2), {"e": 5})


def test_references_are_counted() -> None:
    x, key = np.zeros(3, F4), object()
    views = [View(of, F4, 4, (2,), (4,)) for of in (Argument(0), Earlier(0))]
    f = made(
        copy,
        EntrySpec(
            [ArrayParam(F4, (3,))],
            [ArrayResult(F4, 1), Argument(0), Constant(key), Earlier(0), *views],
            "tuple",
        ),
    )
    finish = lambda arguments, results: (arguments, results)
    g = made(copy, EntrySpec([ArrayParam(F4, (3,))], [ArrayResult(F4, 1)], finish=finish))
    watched = (x, key, F4, NotImplemented, finish)
    f(x), g(x), f(None)
    before = [sys.getrefcount(item) for item in watched]
    for _ in range(100):
        f(x), g(x), f(None)
    assert [sys.getrefcount(item) for item in watched] == before


def test_tuples() -> None:
    one = made(copy, EntrySpec([ArrayParam(F4, (3,))], [ArrayResult(F4, 1)], "tuple"))
    assert type(one(np.zeros(3, F4))) is tuple
    assert made(nothing, EntrySpec([], [], "tuple"))() == ()
    with pytest.raises(InternalError, match="single result"):
        made(nothing, EntrySpec([], []))


def test_finish_makes_the_value() -> None:
    x = np.arange(3, dtype=F4)
    seen = []

    def finish(arguments: tuple[Any, ...], results: tuple[Any, ...]) -> str:
        seen.append((arguments, results))
        return "made"

    f = made(
        copy, EntrySpec([ArrayParam(F4, (3,))], [ArrayResult(F4, 1), Argument(0)], finish=finish)
    )
    assert f(x) == "made"
    ((arguments, results),) = seen
    assert arguments[0] is x
    assert np.array_equal(results[0], x)
    assert results[1] is x


def test_finish_may_raise() -> None:
    def finish(arguments: object, results: object) -> None:
        raise ValueError("no")

    f = made(copy, EntrySpec([ArrayParam(F4, (3,))], [ArrayResult(F4, 1)], finish=finish))
    before = memory.stats().in_use
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            f(np.zeros(3, F4))
    assert memory.stats().in_use == before


def test_many_parameters_and_results() -> None:
    params = [ArrayParam(I8, ("n",)) for _ in range(60)]
    results = [Argument(i) for i in reversed(range(60))]
    arrays = [np.zeros(4, I8) for _ in params]
    f = made(nothing, EntrySpec(params, results, "tuple"))
    assert all(a is b for a, b in zip(f(*arrays), reversed(arrays)))


def test_a_frame_too_large_for_the_stack_is_refused() -> None:
    with pytest.raises(InternalError, match="words"):
        made(nothing, EntrySpec([NumberParam("int")] * 20_000, [Constant(None)]))


# --- Ownership -----------------------------------------------------------------------------------


def test_a_result_owns_its_memory_and_gives_it_back() -> None:
    f = copier(F8)
    x = np.arange(1000.0)
    before = memory.stats()
    y = f(x)
    assert y.base is None
    assert y.flags.owndata
    assert get_handler_name(y) == "dsl_allocator"
    assert memory.stats().blocks == before.blocks + 1
    view = y[10:]
    del y
    assert view[0] == 10
    del view
    assert memory.stats()[::2] == before[::2]


def test_a_result_can_be_resized() -> None:
    f = copier(F8)
    before = memory.stats().in_use
    y = f(np.arange(10.0))
    y.resize(100_000, refcheck=False)
    assert y[:10].tolist() == list(range(10))
    assert not y[10:].any()
    y.resize(3, refcheck=False)
    assert y.tolist() == [0, 1, 2]
    y.resize(0, refcheck=False)
    y.resize(5, refcheck=False)
    del y
    assert memory.stats().in_use == before


def test_a_result_without_a_handler_leans_on_a_capsule() -> None:
    word = runtime.word("memory_handler")
    handler, f = word.value, copier(F8)
    before = memory.stats().in_use
    word.value = 0
    try:
        y = f(np.arange(10.0))
    finally:
        word.value = handler
    assert y.tolist() == list(range(10))
    assert type(y.base).__name__ == "PyCapsule"
    assert memory.stats().in_use > before
    del y
    assert memory.stats().in_use == before


def test_a_large_result_reuses_the_block_of_the_last() -> None:
    f = copier(F8)
    x = np.arange(1e6)
    place = f(x).ctypes.data
    for _ in range(5):
        y = f(x)
        assert y.ctypes.data == place
        del y


def test_no_leaks_over_many_calls() -> None:
    f = copier(F4)
    arrays = [np.zeros(n, F4) for n in (2, 10, 1000, 100_000, 1_000_000)]
    before = memory.stats()
    for _ in range(200):
        for x in arrays:
            f(x)
    assert memory.stats()[::2] == before[::2]


def test_an_entry_is_collected_with_what_it_refers_to() -> None:
    class Handler:
        def __call__(self, *numbers: int) -> None:
            raise AssertionError

    handler = Handler()
    spec = EntrySpec([], [Constant(None)], on_error=handler)
    f = made(nothing, spec)
    handler.entry = f  # type: ignore[attr-defined]  # a cycle
    gone = weakref.ref(handler)
    del f, spec, handler
    gc.collect()
    assert gone() is None


# --- The allocator -------------------------------------------------------------------------------


def alloc(size: int) -> int:
    return runtime.function("dsl_alloc", ctypes.c_void_p, ctypes.c_int64)(size) or 0


def free(block: int) -> None:
    runtime.function("dsl_free", None, ctypes.c_void_p)(block)


SIZES = sorted({0, 1, *(2**k + d for k in range(3, 24) for d in (-1, 0, 1)), 3 << 20, 5 << 20})


def test_blocks_are_aligned_separate_and_large_enough() -> None:
    blocks = [(alloc(size), size) for size in SIZES for _ in range(2)]
    places = sorted(blocks)
    assert all(block % 64 == 0 and block for block, _ in blocks)
    assert all(a + size + 64 <= b for (a, size), (b, _) in itertools.pairwise(places))
    for block, size in blocks:
        ctypes.memset(block, 0xFF, size)
    for block, _ in blocks:
        free(block)


def test_a_block_is_at_most_a_quarter_larger_than_asked_for() -> None:
    for size in SIZES:
        before = memory.stats().in_use
        block = alloc(size)
        room = memory.stats().in_use - before
        free(block)
        assert size <= room <= max(64, 1.25 * size + 64)


@pytest.mark.parametrize("size", [-1, -(2**63), 2**63 - 1, 2**62, 2**46 + 1, 2**46])
def test_absurd_sizes_give_null(size: int) -> None:
    before = memory.stats()
    assert alloc(size) == 0
    assert memory.stats()[::2] == before[::2]


def test_more_than_the_machine_has_gives_null() -> None:
    assert memory.largest() > 1 << 20
    assert alloc(memory.largest() + 1) == 0


def test_null_may_be_freed() -> None:
    free(0)


def test_cached_blocks_are_capped_and_the_oldest_go_first() -> None:
    cap = runtime.word("cache_cap")
    before = cap.value
    memory.release_cached()
    cap.value = 10 << 20
    try:
        blocks = [alloc(3 << 20) for _ in range(5)]
        for block in blocks:
            free(block)
        assert 6 << 20 <= memory.stats().cached <= 10 << 20
        assert alloc(3 << 20) == blocks[-1]
        free(blocks[-1])
        big = alloc(20 << 20)
        free(big)
        assert memory.stats().cached <= 10 << 20
        free(alloc(8 << 20))
        assert memory.stats().cached <= 10 << 20
    finally:
        cap.value = before
        memory.release_cached()


def test_small_blocks_do_not_pile_up() -> None:
    memory.release_cached()
    blocks = [alloc(1000) for _ in range(5000)]
    for block in blocks:
        free(block)
    assert memory.stats().cached <= 300_000


def test_release_cached() -> None:
    for size in SIZES:
        free(alloc(size))
    assert memory.stats().cached > 0
    memory.release_cached()
    assert memory.stats().cached == 0


def test_freeing_twice_ends_the_process() -> None:
    script = (
        "import ctypes; from dsl.codegen.cpu import runtime;"
        "alloc = runtime.function('dsl_alloc', ctypes.c_void_p, ctypes.c_int64);"
        "free = runtime.function('dsl_free', None, ctypes.c_void_p);"
        "block = alloc(100); free(block); free(block)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGABRT


def test_allocating_from_many_threads() -> None:
    alloc_free_gil = [
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(runtime.address("dsl_alloc")),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(runtime.address("dsl_free")),
    ]
    take, give = alloc_free_gil
    failures = []

    def hammer(seed: int) -> None:
        choose = np.random.default_rng(seed)
        held: list[tuple[int, int]] = []
        for _ in range(1500):
            if held and choose.random() < 0.5:
                block, size = held.pop(int(choose.integers(len(held))))
                if ctypes.string_at(block, 8) != seed.to_bytes(8, "little"):
                    failures.append(block)
                give(block)
            else:
                size = int(2 ** choose.uniform(3, 18))
                block = take(size)
                ctypes.memmove(block, seed.to_bytes(8, "little"), 8)
                held.append((block, size))
        for block, _ in held:
            give(block)

    before = memory.stats()
    in_threads(8, hammer)
    assert not failures
    assert memory.stats()[::2] == before[::2]


# --- Errors --------------------------------------------------------------------------------------


def failing(f: Function, frame: Value, context: Value) -> None:
    """Make a block for the first result, then fail with the int argument as the status."""
    f.store(f.call("ptr", "dsl_alloc", f.as_value(1000, "i64")), f.gep(frame, 16))
    for index in range(7):
        put(f, context, index, 10 + index)
    f.ret(word(f, frame, 0))


def test_a_status_calls_on_error_and_frees_results() -> None:
    seen = []

    def on_error(*numbers: int) -> None:
        seen.append(numbers)
        raise IndexError("out of bounds")

    spec = EntrySpec(
        [NumberParam("int")], [ArrayResult(F4, 1), ArrayResult(F4, 2)], "tuple", on_error=on_error
    )
    f = made(failing, spec)
    before = memory.stats()
    with pytest.raises(IndexError, match="out of bounds"):
        f(-3)
    assert seen == [(-3, 10, 11, 12, 13, 14, 15, 16)]
    assert memory.stats()[::2] == before[::2]


def test_what_on_error_returns_is_returned() -> None:
    spec = EntrySpec([NumberParam("int")], [ArrayResult(F4, 1)], on_error=lambda *_: NotImplemented)
    assert made(failing, spec)(1) is NotImplemented


def test_without_on_error_a_status_is_an_internal_error() -> None:
    f = made(failing, EntrySpec([NumberParam("int")], [ArrayResult(F4, 1)]))
    with pytest.raises(InternalError, match=r"status 5, error 10, payload \(11, "):
        f(5)


def allocating(f: Function, frame: Value, context: Value) -> None:
    """One result of as many bytes as the argument says; status 1 if there is no memory."""
    block = f.call("ptr", "dsl_alloc", word(f, frame, 0))
    with f.if_(f.compare("eq", block, Value("null", "ptr"))):
        f.ret(1)
    f.store(block, f.gep(frame, 16))
    put(f, frame, 3, word(f, frame, 0))
    f.ret(0)


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    def on_error(*numbers: int) -> None:
        raise MemoryError

    spec = EntrySpec([NumberParam("int")], [ArrayResult(np.dtype("u1"), 1)], on_error=on_error)
    f = made(allocating, spec)
    assert f(100).shape == (100,)
    for size in (2**46, 2**60, -1):
        with pytest.raises(MemoryError):
            f(size)


def negative_dim(f: Function, frame: Value, context: Value) -> None:
    for index in (0, 2):
        f.store(f.call("ptr", "dsl_alloc", f.as_value(1000, "i64")), f.gep(frame, 8 * index))
        put(f, frame, index + 1, -5 if index else 5)
    f.ret(0)


def test_a_result_that_cannot_be_made_leaks_nothing() -> None:
    results = [ArrayResult(F4, 1), ArrayResult(F4, 1), ArrayResult(F4, 1)]
    f = made(negative_dim, EntrySpec([], results, "tuple"))
    before = memory.stats()
    with pytest.raises(ValueError, match="negative"):
        f()
    assert memory.stats()[::2] == before[::2]


# --- Calling Python ------------------------------------------------------------------------------


def calling(f: Function, frame: Value, context: Value) -> None:
    """Call Python with id 7 and the address of two words, 20 and 22; return what it made of the first as a result."""
    place = f.alloca(16)
    put(f, place, 0, 20)
    put(f, place, 1, 22)
    status = f.call("i64", "dsl_python", context, f.as_value(7, "i64"), place)
    with f.if_(f.compare("ne", status, 0)):
        f.ret(status)
    put(f, frame, 0, word(f, place, 0))
    f.ret(0)


@pytest.mark.parametrize("release", [False, True])
def test_programs_call_python(release: bool) -> None:
    def callback(number: int, address: int) -> None:
        words = (ctypes.c_int64 * 2).from_address(address)
        words[0] = number * (words[0] + words[1])

    spec = EntrySpec([], [NumberResult("int")], callback=callback, release_gil=release)
    assert made(calling, spec)() == 7 * 42


@pytest.mark.parametrize("release", [False, True])
def test_an_exception_of_a_callback_is_the_calls(release: bool) -> None:
    def callback(number: int, address: int) -> None:
        raise KeyError(number)

    spec = EntrySpec([], [NumberResult("int")], callback=callback, release_gil=release)
    with pytest.raises(KeyError, match="7"):
        made(calling, spec)()


def test_a_callback_returns_a_status() -> None:
    spec = EntrySpec([], [NumberResult("int")], callback=lambda *_: 3, on_error=lambda *n: n[0])
    assert made(calling, spec)() == 3


def test_a_callback_that_returns_nonsense_is_a_type_error() -> None:
    callback: Any = lambda *_: "nonsense"
    with pytest.raises(TypeError):
        made(calling, EntrySpec([], [NumberResult("int")], callback=callback))()


def test_a_program_without_a_callback() -> None:
    with pytest.raises(InternalError, match="callback"):
        made(calling, EntrySpec([], [NumberResult("int")]))()


def test_callbacks_may_call_entries() -> None:
    inner = copier(F8)

    def callback(number: int, address: int) -> None:
        assert inner(np.arange(5.0)).sum() == 10

    spec = EntrySpec([], [NumberResult("int")], callback=callback, release_gil=True)
    assert made(calling, spec)() == 20


# --- Threads -------------------------------------------------------------------------------------


def add_loop(module: Module) -> None:
    """`void body(ptr env, i64 first, i64 last)`: 1 more to each element, and the chunk's start recorded in it."""
    f = module.function("body", "void", [("ptr", "env"), ("i64", "first"), ("i64", "last")])
    env, first, last = f.params
    with f.loop(first, last) as i:
        place = f.gep(env, i, "i64")
        f.store(f.binary("add", f.load("i64", place), 1), place)
    f.ret()


def nested_loop(module: Module) -> None:
    """A body each of whose elements runs a loop over all of the array, of which it adds 1 to one."""
    add_loop(module)
    f = module.function("outer", "void", [("ptr", "env"), ("i64", "first"), ("i64", "last")])
    env, first, last = f.params
    with f.loop(first, last) as i:
        row = f.gep(env, f.binary("mul", i, 100), "i64")
        f.call(
            "void",
            "dsl_parallel",
            Value("@body", "ptr"),
            row,
            *(f.as_value(n, "i64") for n in (100, 1)),
        )
    f.ret()


def starts_loop(module: Module) -> None:
    """A body that stores the extent of the chunk at the chunk's first element."""
    f = module.function("starts", "void", [("ptr", "env"), ("i64", "first"), ("i64", "last")])
    env, first, last = f.params
    f.store(f.binary("sub", last, first), f.gep(env, first, "i64"))
    f.ret()


def held_up_loop(module: Module) -> None:
    """A body that stores 2, but 1 in the first chunk, and there only when all the others are done."""
    f = module.function("held_up", "void", [("ptr", "env"), ("i64", "first"), ("i64", "last")])
    env, first, last = f.params
    held = f.compare("eq", first, 0)

    def others_missing() -> Value:
        place = f.gep(env, others.get(), "i64")
        return f.compare(
            "eq", f.define("i64", f"load atomic i64, ptr {place.text} seq_cst, align 8"), 0
        )

    others = f.variable("i64", last)
    with f.if_(held), f.while_(lambda: f.compare("slt", others.get(), 64)):
        with f.while_(others_missing):
            pass
        others.set(f.binary("add", others.get(), 1))
    with f.loop(first, last) as i:
        f.store(f.select(held, f.as_value(1, "i64"), f.as_value(2, "i64")), f.gep(env, i, "i64"))
    f.ret()


def parallel(body: str) -> Callable[[Function, Value, Value], None]:
    """A program: array, grain -> body over the array in parallel."""

    def build(f: Function, frame: Value, context: Value) -> None:
        count = word(f, frame, 1)
        if body == "outer":
            count = f.binary("sdiv", count, 100)
        f.call(
            "void",
            "dsl_parallel",
            Value(f"@{body}", "ptr"),
            word(f, frame, 0, "ptr"),
            count,
            word(f, frame, 3),
        )
        f.ret(0)

    return build


@functools.cache
def looper(body: str = "body", release: bool = True) -> Any:
    parts = {
        "body": add_loop,
        "outer": nested_loop,
        "starts": starts_loop,
        "held_up": held_up_loop,
    }
    spec = EntrySpec(
        [ArrayParam(I8, ("n",), written=True), NumberParam("int")],
        [Constant(None)],
        release_gil=release,
    )
    return made(parallel(body), spec, parts[body])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_element_is_visited_once(threads: int) -> None:
    f = looper()
    with pool.threads(threads):
        for n in (2, 3, 7, 100, 1023, 4097, 100_003):
            for grain in (-1, 0, 1, 5, 1000):
                x = np.zeros(n, I8)
                for _ in range(5):
                    assert f(x, grain) is None
                assert (x == 5).all()


def chunk_sizes(n: int, grain: int) -> list[int]:
    x = np.zeros(n, I8)
    looper("starts")(x, grain)
    return [int(size) for size in x if size]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_long_work_has_several_chunks_a_thread_and_short_work_one(threads: int) -> None:
    with pool.threads(threads):
        for n, grain in [
            (10, 1),
            (10, 3),
            (10, 6),
            (5000, 1),
            (5000, 1600),
            (5000, 300),
            (5000, 5001),
            (100_000, 33_000),
            (100_000, 5_000),
        ]:
            sizes = chunk_sizes(n, grain)
            assert sum(sizes) == n
            used = max(1, min(threads, n // grain))
            each = max(1, min(pool.CHUNKS, n // grain // (used * pool.CHUNK)))
            assert len(sizes) == (used * each if used > 1 else 1)
            assert min(sizes) >= min(grain, n)
            assert sizes == chunk_sizes(n, grain)


def test_long_chunks_start_at_multiples_of_64() -> None:
    with pool.threads(3):
        assert all(size % 64 == 0 for size in chunk_sizes(100_000, 1)[:-1])


def test_a_thread_that_is_held_up_takes_fewer_chunks() -> None:
    """The other threads do what it does not come to."""
    taken = looper("held_up")
    with pool.threads(2):
        x = np.zeros(64, I8)
        taken(x, 1)
    held, free = int((x == 1).sum()), int((x == 2).sum())
    assert held + free == 64
    assert held == 64 // (2 * pool.CHUNKS)


def test_nested_loops() -> None:
    f = looper("outer")
    with pool.threads(3):
        x = np.zeros(5000, I8)
        f(x, 1)
        assert (x == 1).all()


def test_the_pool_is_entered_from_several_threads() -> None:
    f = looper()

    def work(index: int) -> None:
        x = np.zeros(20_000, I8)
        with pool.threads(1 + index % 4):
            for _ in range(300):
                f(x, 1)
        assert (x == 300).all()

    in_threads(8, work)


def test_hammering_entries_from_threads() -> None:
    add, copy_f4, copy_f8 = looper(), copier(F4, release_gil=True), copier(F8)
    before = memory.stats()
    end = time.monotonic() + 2

    def work(index: int) -> None:
        rng = np.random.default_rng(index)
        with pool.threads(2):
            while time.monotonic() < end:
                n = int(rng.integers(2, 50_000))
                x, y = rng.random(n, np.float32), rng.random(n)
                assert np.array_equal(copy_f4(x), x)
                assert np.array_equal(copy_f8(y), y)
                z = np.zeros(n, I8)
                add(z, 100)
                add(z, 1)
                assert (z == 2).all()
                assert copy_f4(y) is NotImplemented

    in_threads(8, work)
    assert memory.stats()[::2] == before[::2]


def test_the_pool_works_after_fork() -> None:
    f = looper()

    def child() -> bool:
        x = np.zeros(10_000, I8)
        for _ in range(50):
            f(x, 1)
        copied = copier(F8)(np.arange(9.0)).sum() == 36
        return bool((x == 50).all() and copied and runtime.word("workers").value == 2)

    with pool.threads(3):
        f(np.zeros(1000, I8), 1)
        assert exit_code_of_child(child) == 0
        x = np.zeros(1000, I8)
        f(x, 1)
        assert (x == 1).all()


def test_forking_while_other_threads_are_in_the_pool() -> None:
    f, g = looper(), copier(F8, release_gil=True)
    done = threading.Event()

    def busy() -> None:
        x, y = np.zeros(200_000, I8), np.zeros(1000)
        with pool.threads(2):
            while not done.is_set():
                f(x, 1)
                g(y)

    def child() -> bool:
        x = np.zeros(1000, I8)
        with pool.threads(2):
            f(x, 1)
        return bool((x == 1).all() and g(np.ones(10)).sum() == 10)

    thread = Call(busy)
    try:
        for _ in range(10):
            assert exit_code_of_child(child) == 0
    finally:
        done.set()
        thread.join()


EXIT_SCRIPT = """
import atexit, ctypes, sys
import numpy as np

def work():
    x = np.zeros(1000, np.int64)
    run(x.ctypes.data, x.size)
    assert x.all()
    print(runtime.word("workers").value, flush=True)

if sys.argv[1] == "last":
    atexit.register(work)
from dsl.codegen.cpu import jit, pool, runtime
from dsl.codegen.llvm import Module, Value

runtime.ensure_loaded()
module = Module("exit")
f = module.function("body", "void", [("ptr", "env"), ("i64", "first"), ("i64", "last")])
with f.loop(*f.params[1:]) as i:
    f.store(f.as_value(1, "i64"), f.gep(f.params[0], i, "i64"))
f.ret()
f = module.function("run", "void", [("ptr", "env"), ("i64", "n")])
f.call("void", "dsl_parallel", Value("@body", "ptr"), *f.params, f.as_value(1, "i64"))
f.ret()
code = jit.load(module.text())
run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("run"))

if sys.argv[1] == "never":
    atexit._clear()  # the runtime's own goes too: workers are there to the end
if sys.argv[1] != "last":
    atexit.register(work)
with pool.threads(4):
    work()
"""


@pytest.mark.parametrize(("stopped", "workers"), [("first", 3), ("last", 0), ("never", 3)])
def test_the_process_ends_cleanly(stopped: str, workers: int) -> None:
    """A handler at exit may use the pool, whether it runs before or after the pool is stopped."""
    env = {**os.environ, "DSL_NUM_THREADS": "4"}
    command = [sys.executable, "-c", EXIT_SCRIPT, stopped]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["3", str(workers)]


# --- How many threads ----------------------------------------------------------------------------


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DSL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    config.reset()
    yield
    monkeypatch.undo()
    config.reset()


def threads_now() -> int:
    return int(runtime.function("dsl_threads", ctypes.c_int64)())


@pytest.mark.usefixtures("_plain")
def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool.count() == threads_now() == pool.available()
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    config.reset()
    assert pool.count() == threads_now() == 3
    monkeypatch.setenv("DSL_NUM_THREADS", "5")
    config.reset()
    assert pool.count() == threads_now() == 5
    config.update(num_threads=6)
    assert pool.count() == threads_now() == 6
    with pool.threads(2):
        assert pool.count() == threads_now() == 2
        config.update(num_threads=7)
        assert threads_now() == 2
        with config.override(num_threads=1):
            assert threads_now() == 1
        assert threads_now() == 2
    assert threads_now() == 7


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("text", ["", "0", "-1", "x"])
def test_an_openmp_setting_that_is_no_number_is_ignored(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert pool.count() == pool.available()


def test_a_limit_holds_for_its_thread_only() -> None:
    seen = []
    with pool.threads(9):
        in_threads(1, lambda _: seen.append(threads_now()))
        assert threads_now() == 9
    assert seen == [pool.count()]


def test_no_threads_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 or more"), pool.threads(0):
        pass


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="CPU affinity is Linux's")
def test_affinity_limits_threads() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert pool.available() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/"}, math.inf),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, math.inf),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpuacct,cpu:/x",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            math.inf,
        ),
        ({"proc/self/cgroup": "nonsense", "sys/fs/cgroup/cpu.max": "x"}, math.inf),
    ],
)
def test_control_groups_limit_threads(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cgroups.cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, math.inf),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "4096"}, 4096),
        (
            {
                "proc/self/cgroup": "2:memory:/docker/x",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192",
            },
            8192,
        ),
    ],
)
def test_control_groups_limit_memory(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cgroups.memory(tmp_path) == expected


def test_blas_uses_no_more_threads_than_we_may() -> None:
    import scipy.linalg  # noqa: F401  # loads its BLAS

    runtime.ensure_loaded()
    pool.limit_blas(1 << 20)
    found = [blas for blas in map(pool._open_blas, pool._blas_paths(len(sys.modules))) if blas]
    if not found:
        pytest.skip("no OpenBLAS or MKL in this process")
    try:
        with pool.threads(1):
            assert {blas.get_threads() for blas in found} == {1}
        assert all(blas.get_threads() == min(blas.most, pool.count()) for blas in found)
        pool.limit_blas(1 << 20)
        assert all(blas.get_threads() == blas.most for blas in found)
    finally:
        pool.apply_limit()


def test_a_blas_that_a_program_loads_is_held_to_the_threads_we_may_use() -> None:
    code = (
        "import sys, numpy as np, dsl\n"
        "from dsl.codegen.cpu import pool\n"
        "m = np.ones((40, 40), complex)\n"
        "dsl.jit(lambda m: m @ m)(m)\n"
        "found = map(pool._open_blas, pool._blas_paths(len(sys.modules)))\n"
        "assert {blas.get_threads() for blas in found if blas} <= {1}\n"
    )
    one = os.environ | {"DSL_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=one, check=True)


def test_a_lower_setting_of_blas_by_others_is_kept() -> None:
    threads = 4

    def set_threads(count: int) -> None:
        nonlocal threads
        threads = count

    blas = pool._Blas(lambda: threads, set_threads)
    blas.limit(2)
    assert threads == 2
    blas.limit(8)
    assert threads == 4
    threads = 3
    blas.limit(2)
    blas.limit(8)
    assert threads == 3


# --- Signals -------------------------------------------------------------------------------------


def polling(f: Function, frame: Value, context: Value) -> None:
    """Poll until it says stop, or as many times as the argument says; the number of polls is the result."""
    count, stop = f.variable("i64", 0), f.variable("i32", 0)

    def going() -> Value:
        more = f.compare("slt", count.get(), word(f, frame, 0))
        return f.both(more, f.compare("eq", stop.get(), 0))

    with f.while_(going):
        count.set(f.binary("add", count.get(), 1))
        stop.set(f.call("i32", "dsl_poll"))
    put(f, frame, 2, count.get())
    f.ret(f.convert("zext", f.compare("ne", stop.get(), 0), "i64"))


@functools.cache
def poller(release: bool) -> Any:
    return made(
        polling, EntrySpec([NumberParam("int")], [NumberResult("int")], release_gil=release)
    )


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals are the main thread's",
)
@pytest.mark.parametrize("release", [False, True])
def test_a_keyboard_interrupt_ends_a_long_loop(release: bool) -> None:
    f = poller(release)
    assert f(1000) == 1000
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Timers need the GIL to run, so another process sends the signal.
    sender = subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -INT {os.getpid()}"])
    try:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            f(2**62)
        assert time.monotonic() - start < 10
    finally:
        sender.wait()
        signal.signal(signal.SIGINT, before)
    assert f(1000) == 1000


def test_signal_handlers_run_during_a_long_loop() -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are the main thread's")
    seen = []

    def handler(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) == 3:
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(TimeoutError):
            poller(True)(2**62)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 3


def test_polling_in_other_threads_and_without_an_entry() -> None:
    in_threads(2, lambda _: poller(True)(100_000))
    assert runtime.function("dsl_poll", ctypes.c_int)() == 0


def test_other_threads_run_while_a_program_has_released_the_gil() -> None:
    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = len(ticks)
    poller(True)(5_000_000)
    assert len(ticks) > start
    done.set()
    thread.join()


# --- The module ----------------------------------------------------------------------------------


def test_the_text_is_the_same_in_every_process() -> None:
    script = "from dsl.codegen.cpu import runtime; import hashlib; print(hashlib.sha256(runtime.module_text().encode()).hexdigest())"
    texts = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, timeout=60
        ).stdout
        for _ in range(2)
    }
    assert len(texts) == 1


def test_numpy_with_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsl.codegen.cpu.entry_layout.DESCR", 48)
    with pytest.raises(InternalError, match="NumPy"):
        runtime._verify_layouts()
