"""Sizes of arguments: how often a function is compiled, what `.explain()` says, and that symbolic sizes change no meaning."""

from __future__ import annotations

import copy
import functools
import linecache
import operator
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import test_numpy_functions as tables
import test_programs as programs
from hypothesis import given, settings
from hypothesis import strategies as st
from plainly import check_as_plain

import dsl
from dsl.config import config
from dsl.frontend.scopes import Storage, Trace, tracing
from dsl.frontend.sizes import Pattern
from dsl.frontend.traced import Kind, Traced, read
from dsl.frontend.tracing import trace_call
from dsl.ir.dims import Symbol
from dsl.ir.interpret import interpret
from dsl.ir.types import TensorType


def numbers(*shape: int) -> np.ndarray:
    return np.arange(1.0, 1 + functools.reduce(operator.mul, shape, 1)).reshape(shape)


def entries(f: Any) -> int:
    return f.cache_info().entries


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def add(x, y):
    return x + y


def from_source(expression: str, parameters: str = "x") -> Callable[..., Any]:
    """A function that returns an expression, with source text that dsl can convert."""
    text, file = f"def f({parameters}):\n    return {expression}\n", f"<{expression}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made: dict[str, Any] = {"np": np}
    exec(compile(text, file, "exec"), made)
    return made["f"]


# -- patterns --------------------------------------------------------------------------------------


def test_a_pattern_is_what_calls_have_in_common() -> None:
    pattern = Pattern.fixed((3, 4, 4)).widened((5, 4, 4)).widened((6, 7, 7))
    assert str(pattern) == "Pattern(n, m, m)"
    assert pattern.admits((3, 4, 4))
    assert pattern.admits((9, 2, 2))
    assert not pattern.admits((9, 2, 3))


def test_sizes_that_were_equal_by_chance_part_once() -> None:
    pattern = Pattern.fixed((3, 3)).widened((4, 4))
    assert list(pattern.splits((5, 6))) == [(0, 1)]
    assert not list(pattern.splits((5, 5)))
    assert str(pattern.widened((5, 6))) == "Pattern(n, m)"


def test_symbols_are_at_least_two() -> None:
    for pattern in (Pattern.open((0, 1, 2, 2)), Pattern.equal((0, 1, 2, 2))):
        assert pattern.dims[:2] == (0, 1)
        assert not any(isinstance(dim, int) for dim in pattern.dims[2:])


# -- how often a function is compiled --------------------------------------------------------------


def test_twenty_sizes_compile_twice() -> None:
    f = dsl.jit(softmax)
    for n in range(2, 22):
        np.testing.assert_allclose(f(numbers(n, 2 * n + 1)), softmax(numbers(n, 2 * n + 1)))
    assert f.cache_info() == (18, 2, 2)


def test_sizes_zero_and_one_are_compiled_for_themselves() -> None:
    f = dsl.jit(lambda x: x.sum() * 2)
    for n in range(20):
        assert f(numbers(n)) == numbers(n).sum() * 2
    assert entries(f) == 4
    assert "f64[0], now f64[1]: sizes 0 and 1 are compiled for themselves" in f.explain()


def test_each_dtype_and_rank_compiles_twice() -> None:
    f = dsl.jit(softmax)
    for n in range(2, 9):
        for x in (numbers(n), numbers(n).astype(np.float32), numbers(n, n + 1)):
            np.testing.assert_allclose(f(x), softmax(x), rtol=1e-6)
    assert entries(f) == 6


def test_a_dim_that_never_changes_stays_a_number() -> None:
    f = dsl.jit(softmax)
    for n in (4, 6, 8):
        f(numbers(n, 5, 3))
    text = f.ir(numbers(9, 5, 3))
    assert "%x: f64[n, 5, 3]" in text
    assert "n >= 2" in text
    assert entries(f) == 2


def test_dims_that_change_one_after_another_are_a_bounded_number_of_compiles() -> None:
    f = dsl.jit(lambda *xs: sum(x.sum() for x in xs))
    sizes = [2] * 6
    for turn in range(12):
        sizes[turn % 6] += 1 + turn
        arrays = [numbers(*sizes[k : k + 2]) for k in (0, 2, 4)]
        np.testing.assert_allclose(f(*arrays), sum(a.sum() for a in arrays))
    assert entries(f) == 4  # these sizes, two steps, then all sizes are left open


def test_equal_sizes_share_a_symbol_until_they_differ() -> None:
    f = dsl.jit(lambda x, y: x.sum() + y.sum())
    for n in (3, 4, 5):
        f(numbers(n), numbers(n))
    assert "%x: f64[n], %y: f64[n]" in f.ir(numbers(6), numbers(6))
    assert f(numbers(6), numbers(7)) == numbers(6).sum() + numbers(7).sum()
    assert "%x: f64[n], %y: f64[m]" in f.ir(numbers(8), numbers(9))
    assert entries(f) == 3
    assert "the first dim of x and the first dim of y were equal, now 6 and 7" in f.explain()


def test_dynamic_true_is_symbolic_from_the_first_call_on() -> None:
    f = dsl.jit(dynamic=True)(softmax)
    for n in range(2, 9):
        np.testing.assert_allclose(f(numbers(n, n + 1)), softmax(numbers(n, n + 1)))
    assert entries(f) == 1
    assert "first call; all sizes but 0 and 1 are symbolic" in f.explain()


def test_dynamic_false_compiles_for_each_shape() -> None:
    f = dsl.jit(dynamic=False)(softmax)
    for n in range(2, 9):
        f(numbers(n))
    assert entries(f) == 7


def test_strides_do_not_compile_again() -> None:
    f = dsl.jit(softmax)
    big = np.random.default_rng(0).normal(size=(60, 60))
    for k in range(2, 12):
        for x in (big[::k, ::3], big[3 : 5 + k, 1 : 4 + k].T, big[::-1, k : 2 * k + 5]):
            np.testing.assert_allclose(f(x), softmax(x))
    assert entries(f) == 2


def test_other_strides_of_one_shape_compile_once_more() -> None:
    f = dsl.jit(lambda x: x * 2)
    for k in range(2, 8):
        np.testing.assert_array_equal(f(numbers(40)[::k][:4]), numbers(40)[::k][:4] * 2)
    assert entries(f) == 2
    assert "other strides of x: they are open from now on" in f.explain()


def test_a_value_outside_that_changes_keeps_sizes_symbolic(monkeypatch: Any) -> None:
    f = dsl.jit(scaled)
    for n in (3, 4, 5):
        f(numbers(n))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    for n in (6, 7, 3):
        np.testing.assert_array_equal(f(numbers(n)), 3 * numbers(n))
    assert entries(f) == 3


FACTOR = 2.0


def scaled(x):
    return FACTOR * x


def test_static_and_python_numbers_beside_symbolic_sizes() -> None:
    f = dsl.jit(lambda x, k, axis: (x * k).sum(axis=axis), static_argnames="axis")
    for n in range(2, 8):
        for axis in (0, 1):
            x = numbers(n, n + 2)
            np.testing.assert_array_equal(f(x, n, axis), (x * n).sum(axis=axis))
    assert entries(f) == 4


def test_the_same_array_twice() -> None:
    f = dsl.jit(lambda x, y: (x.__setitem__(0, 7.0), y + 1)[1])
    for n in range(2, 8):
        x = numbers(n)
        assert f(x, x)[0] == 8.0
        assert x[0] == 7.0
    assert entries(f) == 2


# -- what it says ----------------------------------------------------------------------------------


def test_explain_names_the_argument_and_the_dims() -> None:
    f = dsl.jit(lambda x, y: x.sum() + y.sum())
    f(numbers(3, 4), numbers(2))
    f(numbers(5, 4), numbers(2))
    f(numbers(5, 6), numbers(7))
    lines = f.explain().splitlines()
    assert lines[2].endswith(
        "argument x was f64[3, 4], now f64[5, 4]: its first dim is symbolic from now on"
    )
    assert lines[3].endswith(
        "argument x was f64[n, 4], now f64[5, 6]: its second dim is symbolic from now on; "
        "argument y was f64[2], now f64[7]: its first dim is symbolic from now on"
    )


def test_the_log_names_the_argument(capsys: Any) -> None:
    f = dsl.jit(softmax)
    with config.override(logs="compile"):
        f(numbers(3))
        f(numbers(4))
    logged = capsys.readouterr().err
    assert "[dsl.compile] softmax: argument x was f64[3], now f64[4]: its first dim" in logged


# -- where tracing needs a size --------------------------------------------------------------------


def test_code_that_needs_a_size_is_compiled_for_each_shape() -> None:
    def f(x):
        return np.array([x[: k + 1].sum() for k in range(len(x))])

    compiled = dsl.jit(f)
    for n in (3, 4, 5, 3):
        np.testing.assert_array_equal(compiled(numbers(n)), f(numbers(n)))
    assert compiled.cache_info() == (1, 3, 3)
    assert "these sizes alone, since tracing needs them: this range has a length" in (
        compiled.explain()
    )


def test_what_was_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def counted(*args: Any, **options: Any) -> Any:
        traced.append(args)
        return trace_call(*args, **options)

    def f(x):
        return [v * 2 for v in x]

    monkeypatch.setattr("dsl.compile.trace_call", counted)
    compiled = dsl.jit(f)
    for n in (3, 4, 5, 6):
        compiled(numbers(n))
    assert len(traced) == 5  # with a symbolic size once


def test_a_trace_that_is_given_up_leaves_lists_outside_as_they_were() -> None:
    shapes = []

    def f(x):
        shapes.append(x.shape)
        return [v * 2 for v in x]

    compiled = dsl.jit(f)
    for n in (3, 4, 5, 6):
        compiled(numbers(n))
    assert shapes == [(3,), (4,), (5,), (6,)]


def test_a_call_that_fails_leaves_nothing_behind() -> None:
    f = dsl.jit(add)
    f(numbers(3), numbers(3))
    with pytest.raises(ValueError, match="broadcast"):
        f(numbers(5), numbers(4))
    f(numbers(6), numbers(6))
    assert "%x: f64[n], %y: f64[n]" in f.ir(numbers(7), numbers(7))
    assert entries(f) == 2


def halves(x: Any) -> Any:
    return x[::2] + x[1::2]


def printed_halves(x: Any) -> Any:
    print("halves")
    return x[::2] + x[1::2]


@pytest.mark.parametrize("function", [halves, printed_halves])
def test_sizes_that_are_equal_but_for_tiny_arrays(function, capfd) -> None:
    """Of 3 elements, two broadcast with one; of 5, three do not with two."""
    compiled = dsl.jit(function)
    for n in (10, 12, 4, 3, 2, 100):
        np.testing.assert_array_equal(compiled(numbers(n)), halves(numbers(n)))
    with pytest.raises(ValueError, match=r"broadcast together with shapes \(3,\) \(2,\)"):
        compiled(numbers(5))
    np.testing.assert_array_equal(compiled(numbers(3)), halves(numbers(3)))
    assert capfd.readouterr().out.count("halves") == 8 * (function is printed_halves)


def test_sizes_that_are_equal_but_for_tiny_arrays_are_fused() -> None:
    compiled = dsl.jit(lambda x: (x[::2, ::2] + x[1::2, ::2]) - x[::2, 1::2], dynamic=True)
    assert "broadcast" not in compiled.ir(numbers(8, 8)).replace("could not be broadcast", "")


def twice_as_large(x: Any) -> Any:
    n, m = x.shape
    return np.broadcast_to(x[:, None, :, None], (n, 2, m, 2)).reshape(2 * n, 2 * m)


def test_a_reshape_that_copies_a_repeated_view_is_made_by_the_program() -> None:
    compiled = dsl.jit(twice_as_large, dynamic=True)
    for shape in ((2, 2), (3, 5)):
        got = compiled(numbers(*shape))
        np.testing.assert_array_equal(got, twice_as_large(numbers(*shape)))
        assert got.flags.writeable
    assert "broadcast_to" in compiled.ir(numbers(3, 5))


# -- errors ----------------------------------------------------------------------------------------


def test_shapes_that_do_not_fit_raise_as_in_numpy() -> None:
    f = dsl.jit(add)
    for n in (3, 4, 5):
        f(numbers(n), numbers(n))
    with pytest.raises(ValueError, match=r"together with shapes \(3,\) \(4,\)") as caught:
        f(numbers(3), numbers(4))
    assert "return x + y" in str(caught.value)


def test_sizes_found_out_at_run_time_raise_as_in_numpy() -> None:
    def f(x, y):
        return x[1:] + y

    compiled = dsl.jit(f)
    for n in (4, 6, 9):
        compiled(numbers(n), numbers(n - 1))
    with pytest.raises(ValueError, match=r"together with shapes \(4,\) \(7,\)") as caught:
        compiled(numbers(5), numbers(7))
    assert "return x[1:] + y" in str(caught.value)


MISFITS: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("x @ y", ((3, 4), (4, 2)), ((3, 5), (4, 2))),
    ("np.concatenate([x, y])", ((3, 4), (2, 4)), ((3, 5), (2, 4))),
    ("x.reshape(2, -1)", ((4,),), ((5,),)),
    ("x[5]", ((7,),), ((4,),)),
    ("x[-4]", ((7,),), ((3,),)),
    ("x[y > 0]", ((4,), (4,)), ((4,), (3,))),
    ("(lambda a, b: a + b)(*x)", ((2,),), ((3,),)),
    ("np.linalg.solve(x + 9 * np.eye(x.shape[0]), y)", ((3, 3), (3,)), ((3, 3), (4,))),
    ("np.linalg.inv(x + 9 * np.eye(x.shape[0]))", ((3, 3),), ((3, 4),)),
    ("np.tensordot(x, y)", ((2, 3), (2, 3)), ((2, 3), (3, 2))),
    ("np.einsum('ii', x)", ((3, 3),), ((3, 4),)),
    ("np.einsum('ij,ij', x, y)", ((3, 4), (3, 4)), ((3, 4), (4, 3))),
    ("np.einsum('ij,jk', x, y)", ((3, 4), (4, 2)), ((3, 5), (4, 2))),
    ("np.interp(x, x, y)", ((4,), (4,)), ((4,), (5,))),
    ("np.repeat(x, (y * 0 + 1).astype(int))", ((4,), (4,)), ((4,), (5,))),
    ("np.stack([x, y])", ((4,), (4,)), ((4,), (5,))),
    ("np.split(x, 2)", ((4,),), ((5,),)),
    ("np.max(x[2:])", ((4,),), ((2,),)),
    ("np.where(x > 1, x, y)", ((4,), (4,)), ((4,), (5,))),
    ("np.dot(x, y)", ((4,), (4,)), ((4,), (5,))),
]


@pytest.mark.parametrize(("code", "good", "bad"), MISFITS)
@pytest.mark.parametrize("widest", [False, True])
def test_what_numpy_refuses_is_refused(
    code: str, good: Any, bad: Any, widest: bool, monkeypatch: Any
) -> None:
    if widest:
        monkeypatch.setattr(Pattern, "equal", Pattern.open)
    plain = from_source(code, "x, y" if len(good) == 2 else "x")
    compiled = dsl.jit(plain, dynamic=True)
    programs.check_same(
        compiled(*(numbers(*s) for s in good)), plain(*(numbers(*s) for s in good)), ""
    )
    with pytest.raises(Exception) as expected:
        plain(*(numbers(*s) for s in bad))
    with pytest.raises(programs.public_type(expected.value)):
        compiled(*(numbers(*s) for s in bad))


def test_unpacking_checks_the_size_at_run_time() -> None:
    def f(points):
        x, y = points.T
        return x + y

    compiled = dsl.jit(f, dynamic=True)
    np.testing.assert_array_equal(compiled(numbers(5, 2)), f(numbers(5, 2)))
    with pytest.raises(ValueError, match=r"too many values to unpack \(expected 2\)"):
        compiled(numbers(5, 3))


def test_a_graph_for_many_sizes_that_assumes_too_much_gives_way() -> None:
    """`np.convolve` swaps its operands if the second is longer, which the graph for many sizes cannot."""
    f = dsl.jit(lambda x, y: np.convolve(x, y, mode="valid"))
    for n, m in ((9, 3), (8, 4), (2, 5), (2, 5)):
        x, y = numbers(n), numbers(m)
        np.testing.assert_allclose(f(x, y), np.convolve(x, y, mode="valid"))


# -- meaning ---------------------------------------------------------------------------------------

VIEWS = """
x    x.T    x[1:]    x[0]    x[-1]    x[:, 1]    x[::2]    x[::-1]    x[:-1, 1:]    x[1:, ::2].T    x[..., 0]    x[2:]    x[:3]
x[:0:-1]    x[-1::-1]    x[::-2, ::-1]    x[1:-1]    x[0, 1:]    x[-2]    x[x.shape[0] - 1]    x[x.shape[0] // 2]    x.ravel()
x[: x.shape[0] // 2]    x[len(x) // 2 :]    x[: x.shape[0] - 1]    x[: x.shape[0] - 3]    x[: min(x.shape), : min(x.shape)]
x.reshape(-1)    x.T.reshape(-1)    x[:, :-1].reshape(-1)    x[:1].reshape(-1)    x.reshape(-1, 1)    x.reshape(x.shape[::-1])
x.T[1:].ravel()    x[:, 0].ravel()    x.ravel(order='F')    x.T.ravel(order='F')
x.flatten()    x.swapaxes(0, 1)    x.real    x.view(np.int64)    np.diagonal(x)    np.broadcast_to(x, (3, *x.shape))
np.squeeze(x)    np.squeeze(x[:1])    np.squeeze(x[1:])    np.split(x, [1])[0]    np.flip(x)    np.rot90(x)    x[::max(x.shape) // 2]
np.einsum('ij->ji', x)    np.moveaxis(x, 0, 1)    x.T.reshape(-1, order='F')    x + 0    (x[0], x[1])    x[x[0] > 2] if 0 else x
"""


@pytest.mark.parametrize(
    "code", [c.strip() for c in VIEWS.replace("\n", "    ").split("    ") if c]
)
def test_results_share_memory_as_in_numpy(code: str) -> None:
    plain = from_source(code)
    compiled = dsl.jit(plain, dynamic=True)
    for shape in ((4, 6), (5, 3), (2, 2), (7, 4), (3, 2)):
        x, y = numbers(*shape), numbers(*shape)
        want, got = plain(x), compiled(y)
        programs.check_same(got, want, code)
        for w, g in zip(*(v if isinstance(v, tuple) else (v,) for v in (want, got)), strict=True):
            assert np.shares_memory(w, x) == np.shares_memory(g, y), shape
            assert w.flags.writeable == g.flags.writeable


WRITES = [
    "x.reshape(-1)", "x.T.reshape(-1)", "x[1:].reshape(-1)", "x[:, 1:].reshape(-1)", "x.T[1:].ravel()", "x.T", "x[::2]",
    "x[-1]", "x[1]", "x[x.shape[0] // 2]", "x[:, ::-1]", "x[: x.shape[0] // 2]", "x[2:]", "np.einsum('ii->i', x)", "x[: len(x) - 3]",
]  # fmt: skip


@pytest.mark.parametrize("code", WRITES)
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_writes_reach_the_argument_as_in_numpy(code: str, order: str) -> None:
    def plain(x):
        y = view(x)
        y += 10
        y[0] = -1
        return y.sum() + x.sum()

    view = from_source(code)
    compiled = dsl.jit(plain)
    for n in (4, 5, 2, 3, 6):
        x, z = (laid_out(numbers(n, n), order) for _ in range(2))
        expected, found = programs.outcome(plain, (x,)), programs.outcome(compiled, (z,))
        assert found[0] == expected[0]
        if found[0] == "returned":
            assert found[1] == expected[1]
            np.testing.assert_array_equal(z, x)


def laid_out(x: np.ndarray, order: str) -> np.ndarray:
    if order != "strided":
        return x.copy(order=order)  # type: ignore[call-overload]
    wide = np.zeros((x.shape[0], 2 * x.shape[1]))
    wide[:, ::2] = x
    return wide[:, ::2]


PYTHON = [
    "x.shape", "len(x)", "[0] * len(x)", "(1, 2) * x.shape[0]", "x.shape[0] ** -1", "2 ** -x.shape[0]", "x.shape == (4, 6)",
    "x.shape != x.T.shape", "x.shape[0] in (3, 4)", "max(x.shape)", "min(3, x.shape[0])", "x.size // 2", "x.nbytes", "x.ndim",
    "str(x.shape)", "f'{x.shape} {x.shape[0]:3d}'", "'%d' % x.shape[0]", "'{}'.format(x.shape)", "repr(x.shape[0])",
    "isinstance(x.shape[0], int)", "x.shape[0] > 1", "x.shape[0] == 1 or x.shape[1] == 1", "divmod(x.size, 7)", "range(len(x))[-1]",
    "x.shape[0] / 2", "sorted(x.shape)", "x.shape[::-1]", "np.zeros(x.shape).shape", "np.arange(len(x) - 3)", "sum(x.shape)",
    "{x.shape: 1}", "x.shape[0] if len(x) > 4 else 'short'", "[k for k in range(x.shape[1])]", "np.prod(x.shape)", "x.flags.c_contiguous",
    "x.strides", "(x.shape[0] * x.itemsize).bit_length()", "np.full(len(x), len(x)).dtype", "np.float32(1) * len(x)",
]  # fmt: skip


@pytest.mark.parametrize("code", PYTHON)
def test_sizes_are_python_numbers(code: str) -> None:
    plain = from_source(code)
    compiled = dsl.jit(plain, dynamic=True)
    for shape in ((4, 6), (5, 3), (2, 2), (7, 4)):
        programs.check_same(compiled(numbers(*shape)), plain(numbers(*shape)), code)


def test_sizes_are_printed_and_raised_as_numbers(capsys: Any) -> None:
    def f(x):
        print("shape", x.shape, len(x))
        if x.shape[0] > 4:
            raise ValueError(f"too long: {x.shape}, {len(x)}")
        return x

    compiled = dsl.jit(f, dynamic=True)
    compiled(numbers(3, 2))
    assert capsys.readouterr().out == "shape (3, 2) 3\n"
    with pytest.raises(ValueError, match=r"too long: \(6, 2\), 6"):
        compiled(numbers(6, 2))


def take(x, i):
    return (2 * x)[i]


def positive(x):
    if x.min() < 2:
        raise ValueError(f"too small: {x.min()}")
    return x


@pytest.mark.parametrize(("fn", "more"), [(take, (50,)), (positive, ())])
def test_errors_that_data_causes_compile_once_whatever_the_sizes(fn: Any, more: Any) -> None:
    f = dsl.jit(fn)
    for n in range(2, 22):
        with pytest.raises((IndexError, ValueError)) as expected:
            fn(numbers(n), *more)
        with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
            f(numbers(n), *more)
    assert entries(f) == 3  # the first sizes, all sizes, and those of the first error


def test_errors_that_sizes_cause_are_told_apart_from_those_of_data() -> None:
    def f(x, taps, i):
        return np.convolve(x, taps, "valid")[i]

    compiled = dsl.jit(f)
    for n, m, i in (
        (30, 20, 1),
        (40, 25, 99),
        (20, 30, 99),
        (20, 30, 1),
        (21, 40, 2),
        (50, 25, 99),
    ):
        kinds = []
        for each in (f, compiled):
            try:
                kinds.append(each(numbers(n), numbers(m), i))
            except IndexError as error:
                kinds.append(str(error))
        assert type(kinds[0]) is type(kinds[1])
        assert kinds[0] == pytest.approx(kinds[1])


def test_what_a_signal_raises_in_a_call_is_not_taken_for_an_error_of_its_sizes() -> None:
    def alarm(signum: int, frame: Any) -> None:
        raise TimeoutError

    def f(x, n):
        for _ in range(n):
            x = np.sin(x) + 1
        return x

    compiled, before = dsl.jit(f), signal.signal(signal.SIGALRM, alarm)
    try:
        compiled(numbers(3), 2)
        compiled.lower(numbers(4), 2)
        with dsl.config.override(debug_nans=True):  # not by the built-in
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(TimeoutError):
                compiled(numbers(1000), 200_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert entries(compiled) == 2


def test_shape_checks_of_equal_sizes_are_decided_while_tracing() -> None:
    def f(x, y):
        if x.shape != y.shape:
            raise ValueError("shapes differ")
        if x.shape[0] == 0:
            return None
        return x + y

    compiled = dsl.jit(f, dynamic=True)
    assert "cond" not in compiled.ir(numbers(3, 4), numbers(3, 4))
    with pytest.raises(ValueError, match="shapes differ"):
        compiled(numbers(3, 4), numbers(3, 5))


def test_library_functions_called_eagerly_see_many_shapes() -> None:
    for n in range(2, 8):
        key = dsl.random.key(n)
        assert dsl.random.permutation(key, numbers(n)).shape == (n,)


# -- NumPy's functions -----------------------------------------------------------------------------

# The graph for many sizes refuses sizes that NumPy takes; such a call is compiled for its sizes.
NARROW = {
    "np.convolve(v, [1, 2, 3], mode='same')",
    "np.correlate(v, [1, 2, 3])",
    "np.array_equiv(x, v)",
}


def traced_for_all_sizes(code: str) -> tuple[Any, list[Any]] | None:
    """Trace a line of the tables with a symbol for each size, or return None where tracing needs a size."""
    trace = Trace("test")
    try:
        with tracing(trace):
            handles = {name: open_handle(trace, name, x) for name, x in tables.named(code).items()}
            found = tables.leaves(eval(code, tables.namespace(handles, tables.Functions())))
            graph = trace.root.finish([read(leaf) for leaf in found if isinstance(leaf, Traced)])
    except Exception:
        return None
    return graph, found


def open_handle(trace: Trace, name: str, array: Any) -> Traced:
    dims = [d if d < 2 else Symbol(f"{name}{k}", 2) for k, d in enumerate(np.shape(array))]
    value = trace.root.param(TensorType(array.dtype, tuple(dims)), name)
    kind = Kind.SCALAR if isinstance(array, np.generic) else Kind.ARRAY
    return Traced(Storage(value, trace.root), kind=kind)


def other_sizes(code: str) -> Iterator[dict[str, Any]]:
    """The arrays of a line with one dim of one array changed, then with all dims of one size changed."""
    arrays = tables.named(code)
    for name, x in arrays.items():
        for axis, size in enumerate(np.shape(x)):
            if size > 1:
                yield {**arrays, name: x.take(np.arange(size + 1), axis, mode="wrap")}
    for size in {s for x in arrays.values() for s in np.shape(x) if s > 1}:
        for new in {2, size + 2} - {size}:
            yield {name: resized(x, size, new) for name, x in arrays.items()}


def resized(x: Any, size: int, new: int) -> Any:
    """Repeat or drop elements of all axes of one size."""
    for axis, found in enumerate(np.shape(x)):
        if found == size:
            x = x.take(np.arange(new), axis, mode="wrap")
    return x


@pytest.mark.parametrize("code", dict.fromkeys(tables._SYMBOLIC + tables.STATIC))
def test_functions_take_other_sizes_than_they_were_traced_for(code: str) -> None:
    made = traced_for_all_sizes(code)
    if made is None:
        return
    graph, found = made
    for arrays in other_sizes(code):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                copies = {name: np.copy(x) if np.ndim(x) else x for name, x in arrays.items()}
                wanted = tables.leaves(eval(code, tables.namespace(copies, np)))
        except Exception:
            with pytest.raises((ValueError, IndexError, TypeError)):
                interpret(graph, list(arrays.values()))
            continue
        if code in NARROW:
            continue
        results = iter(interpret(graph, list(arrays.values())))
        got = [(leaf.kind, next(results)) if isinstance(leaf, Traced) else leaf for leaf in found]
        assert len(got) == len(wanted)
        for w, g in zip(wanted, got, strict=True):
            tables.compare(w, g, 64)


# -- whole programs --------------------------------------------------------------------------------


def variants(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments, then the same with all dims of one size, and numbers equal to it, changed."""
    yield args
    sizes = sorted({s for x in arrays_in(args) for s in x.shape if s > 2})
    for size, new in [(s, s + 1) for s in sizes[:2]] + [(s, 2) for s in sizes[-1:]]:
        yield tuple(changed(arg, size, new) for arg in args)


def arrays_in(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, np.ndarray):
        yield tree
    for item in (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    ):
        yield from arrays_in(item)


def changed(arg: Any, size: int, new: int) -> Any:
    if isinstance(arg, np.ndarray):
        return resized(arg, size, new)
    if type(arg) in (tuple, list):
        return type(arg)(
            changed(item, size, new) if not isinstance(item, int) else item for item in arg
        )
    if type(arg) is dict:
        return {key: changed(item, size, new) for key, item in arg.items()}
    return new if type(arg) is int and arg == size else arg


def check_outcome(one: Any, other: Any, args: tuple[Any, ...], capsys: Any) -> None:
    """Check that two functions return, print and write the same, or raise the same kind of exception."""
    before, after = copy.deepcopy(args), copy.deepcopy(args)
    expected, printed = programs.outcome(one, before), capsys.readouterr().out
    found = programs.outcome(other, after)
    assert found[0] == expected[0], f"{expected[1]!r} but {found[1]!r}"
    if found[0] == "raised":
        assert programs.public_type(found[1]) is programs.public_type(expected[1])
        return
    assert capsys.readouterr().out == printed
    programs.check_same(found[1], expected[1], "result")
    programs.check_same(after, before, "arguments")


@pytest.mark.parametrize(("function", "make"), programs.rows())
def test_programs_mean_the_same_with_symbolic_sizes(
    function: Any, make: Any, monkeypatch: Any, capsys: Any
) -> None:
    """With a symbol for each size, at the sizes of the first call and others."""
    monkeypatch.setattr(Pattern, "equal", Pattern.open)
    wide = dsl.jit(function, dynamic=True)
    with config.override(backend="interpreter"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in variants(programs.arguments(function, make)):
            try:
                check_outcome(function, wide, args, capsys)
            except AssertionError:  # refused, or what the graph for one shape does too
                check_outcome(dsl.jit(function, dynamic=False), wide, args, capsys)
            if "since tracing needs them" in wide.explain():
                return


# -- random shapes ---------------------------------------------------------------------------------


def heat(u, steps):
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return u.sum()


def lu(a):
    n = a.shape[0]
    for k in range(n):
        for i in range(k + 1, n):
            a[i, k] /= a[k, k]
            a[i, k + 1 :] -= a[i, k] * a[k, k + 1 :]
    return a


def running_largest(x):
    best = x[0]
    found = np.empty_like(x)
    for i in range(len(x)):
        if x[i] > best:
            best = x[i]
        found[i] = best
    return found


def masked(x, y):
    y[x > 2] = 0
    return x[y > 3], np.where(x > y, x, -y)


RANDOM: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "softmax": (softmax, ["nm"]),
    "heat": (lambda u: heat(u, 3), ["nm"]),
    "lu": (lu, ["nn"]),
    "sort": (lambda x: (np.sort(x, axis=0), np.argsort(x[0], kind="stable"), np.unique(x)), ["nm"]),
    "concatenate": (lambda x, y: np.concatenate([x, y, x[:1]], axis=0), ["nm", "km"]),
    "reshape": (
        lambda x: (x.reshape(-1)[1:], x.T.reshape(-1), x.reshape(x.shape[0], -1, 1)),
        ["nm"],
    ),
    "masks": (masked, ["n", "n"]),
    "matmul": (lambda x, y: x @ y, ["nm", "mk"]),
    "einsum": (lambda x, y: np.einsum("ij,kj->ik", x, y), ["nm", "km"]),
    "running": (running_largest, ["n"]),
    "windows": (lambda x: x[:-2] + x[1:-1] * x[2:], ["n"]),
    "broadcast": (lambda x, y: x[:, None] * y + x[0], ["n", "m"]),
    "halves": (lambda x: x[: len(x) // 2][::-1].sum() - x[len(x) // 2 :].sum(), ["n"]),
    "pad": (lambda x: np.pad(x, 2).cumsum() + np.ones(len(x) + 4), ["n"]),
    "mismatch": (lambda x, y: x[1:] + y, ["n", "m"]),
}
COMPILED = {name: dsl.jit(function) for name, (function, _) in RANDOM.items()}


@pytest.mark.parametrize("name", RANDOM)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_sizes(name: str, data: st.DataObject) -> None:
    """Against NumPy: sizes come in any order, so that a graph is first made for some and then asked for others."""
    function, shapes = RANDOM[name]
    sizes = {
        letter: data.draw(st.integers(0, 7), letter) for letter in sorted(set("".join(shapes)))
    }
    seed = data.draw(st.integers(0, 99), "seed")
    rng = np.random.default_rng(seed)
    args = tuple(rng.integers(1, 9, [sizes[k] for k in s]).astype(float) for s in shapes)
    plain, mine = copy.deepcopy(args), copy.deepcopy(args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = programs.outcome(function, plain), programs.outcome(COMPILED[name], mine)
    assert found[0] == expected[0], f"{expected[1]!r} but {found[1]!r}"
    if found[0] == "raised":
        assert isinstance(found[1], programs.public_type(expected[1]))
        return
    programs.check_same(found[1], expected[1], "result")
    programs.check_same(mine, plain, "arguments")


@pytest.mark.parametrize("axis", [0, 1, None, (0, 1)])
@pytest.mark.parametrize("shift", [0, 1, -2, 7, -100])
def test_rolls_of_symbolic_sizes_are_two_parts_not_gathers(shift: int, axis: Any) -> None:
    compiled = dsl.jit(lambda x: np.roll(x, shift, axis), dynamic=True)
    for shape in ((3, 4), (2, 5), (7, 7), (100, 3)):
        x = np.arange(np.prod(shape)).reshape(shape)
        np.testing.assert_array_equal(compiled(x), np.roll(x, shift, axis))
        assert "gather" not in compiled.ir(x)
    rolled = dsl.jit(lambda x: np.roll(x[x > 3], 1))
    for size in (3, 5, 9):
        x = np.arange(size)
        np.testing.assert_array_equal(rolled(x), np.roll(x[x > 3], 1))


# --- Python numbers whose values tracing needs ----------------------------------------------------------------------


def test_only_the_number_that_is_needed_is_static() -> None:
    @dsl.jit
    def f(x, times, where, scale):
        for _ in range(times):
            x = x + scale * x.sum(axis=where, keepdims=True)
        return x

    x = np.arange(12.0).reshape(3, 4)
    for times, scale in ((1, 0.5), (3, 0.25), (2, 2.0)):
        want = x
        for _ in range(times):
            want = want + scale * want.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(f(x, times, 1, scale), want)
    assert "compiled 1 times" in f.explain()
    assert "the value of `where` is needed while tracing" in f.explain()
    f(x, 1, 0, 0.5)
    assert "compiled 2 times" in f.explain()


def test_an_axis_is_static_from_the_start() -> None:
    @dsl.jit
    def f(x, axis):
        return x.max(axis=axis)

    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(f(x, 1), x.max(axis=1))
    np.testing.assert_array_equal(f(x, axis=0), x.max(axis=0))
    np.testing.assert_array_equal(f(x, (0, 1)), x.max())
    assert "needed while tracing" not in f.explain()


def test_numbers_in_containers_and_sums_of_numbers() -> None:
    @dsl.jit
    def f(x, options, a, b):
        return np.full(options["size"] + 0, x.sum()) * options["scale"], np.zeros(a + b)

    for options, a, b in (({"size": 2, "scale": 3}, 1, 2), ({"size": 4, "scale": 5}, 2, 2)):
        one, two = f(np.ones(3), options, a, b)
        np.testing.assert_array_equal(one, np.full(options["size"], 3.0) * options["scale"])
        np.testing.assert_array_equal(two, np.zeros(a + b))


def sift(x, y):
    """Two arrays that shrink together; a branch leaves both or neither as they are."""
    while len(x) > 2:
        keep = x * y > (x + y).mean() / 3
        if keep.sum() > 2:
            x, y = x[keep] / 2, y[keep] + 1
        else:
            x, y = x[1:], y[1:]
    return x + y


def test_sizes_that_are_equal_throughout_a_loop_are_one() -> None:
    x, y = np.random.default_rng(1).uniform(1, 2, (2, 50))
    check_as_plain(sift, x, y)
    text = dsl.jit(sift).ir(x, y)
    assert "broadcast_dim" not in text
    assert "assert" not in text


@pytest.mark.parametrize("lag", [0, 1])
def test_sizes_that_come_apart_in_a_later_trip_are_two(lag: int) -> None:
    def apart(x, y, lag):
        total, i = 0.0, 0
        while len(x) > 2:
            z = y[y > 0]
            x, y = x[x > 0][1:], z[1:] if i < 2 else z[1 + lag :]
            total = total + x.sum() * y.sum()
            i += 1
        return total, x + y

    x, y = np.random.default_rng(1).uniform(1, 2, (2, 9))
    if lag == 0:
        check_as_plain(apart, x, y, lag)
        return
    for function in (apart, dsl.jit(apart)):
        with pytest.raises(ValueError, match="could not be broadcast"):
            function(x, y, lag)
