"""`dsl.jit`: arguments and results, what is compiled anew and why, looking inside, and living with the rest of Python."""

from __future__ import annotations

import cmath
import collections
import dataclasses
import enum
import functools
import gc
import inspect
import linecache
import math
import os
import pickle
import random
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from plainly import check_as_plain

import dsl
from dsl.config import config
from dsl.errors import UnsupportedError
from dsl.frontend import convert, scopes
from dsl.ir.parser import parse

WEIGHTS = np.arange(3.0)
FACTOR = 2.0
TABLE: dict[str, Any] = {"w": np.ones(3), "k": 2}


def line(n: int = 3) -> np.ndarray:
    return np.arange(1.0, n + 1)


def add_weights(x):
    return x + WEIGHTS


def times_factor(x):
    return FACTOR * x


def from_table(x):
    return x * TABLE["w"] * TABLE["k"]


def helper(x):
    return x + 1


def calls_helper(x):
    return helper(x)


@dsl.jit
def squared(x):
    """Square."""
    return x * x


@dsl.jit
def sum_of_squares(x):
    if x[0] > 0:
        return squared(x).sum()
    return 0.0


# -- static arguments ------------------------------------------------------------------------------


def test_static_arguments_are_python_values() -> None:
    @dsl.jit(static_argnames=("how", "n"))
    def reduce(x, how, n=1):
        return {"sum": np.sum, "max": np.max}[how](x) * [1, 10, 100][n]

    assert reduce(line(), "sum") == 60
    assert reduce(line(), how="max", n=2) == 300
    assert reduce(line(), "sum", 1) == 60
    assert reduce.cache_info() == (1, 2, 2)


def test_one_static_name_may_be_a_string() -> None:
    @dsl.jit(static_argnames="n")
    def zeros(n):
        return np.zeros([n] * n)

    assert zeros(2).shape == (2, 2)
    assert zeros(n=3).shape == (3, 3, 3)


def test_static_values_of_other_types_are_compiled_anew() -> None:
    f = dsl.jit(lambda x, k: x * k, static_argnames="k")
    assert f(1, 2).__class__ is int
    assert f(1, 2.0).__class__ is float
    assert f(1, True) == 1


@pytest.mark.parametrize(
    "values", [(0.0, -0.0), ((1,), (1.0,), (True,), (1 + 0j,), (np.float32(1),)), ((0.0,), (-0.0,))]
)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x]], ids=["plain", "in a list"])
def test_static_values_that_are_equal_but_of_other_types_or_bits_are_told_apart(
    values: tuple[Any, ...], wrap: Any
) -> None:
    def multiply(x, k):
        x = x[0] if isinstance(x, list) else x
        return x * (k[0] if isinstance(k, tuple) else k)

    f = dsl.jit(multiply, static_argnames="k")
    for k in (*values, *values):
        expected = multiply(np.ones(2, np.int64), k)
        found = f(wrap(np.ones(2, np.int64)), k)
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


def test_equal_static_values_of_the_same_types_and_bits_are_compiled_once() -> None:
    f = dsl.jit(lambda x, k: x * k[1], static_argnames="k")
    assert [f(1.0, (float("nan"), float(text))) for text in ("2", "2.0", "2")] == [2.0, 2.0, 2.0]
    assert f.cache_info().entries == 1


@pytest.mark.parametrize("values", [(0.0, -0.0), (1, 1.0, True), ((1,), (1.0,)), ((0.0,), (-0.0,))])
def test_globals_that_are_replaced_by_equal_ones_of_other_types_or_bits_are_seen(
    values: tuple[Any, ...],
) -> None:
    factor: Any = None

    def multiply(x):
        return x * (factor[0] if isinstance(factor, tuple) else factor)

    f = dsl.jit(multiply)
    for value in (*values, *values):
        factor = value
        expected, found = multiply(np.ones(2, np.int64)), f(np.ones(2, np.int64))
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Metres(float):
    """A number with a name."""

    unit = "m"


def test_numbers_of_derived_classes_are_values() -> None:
    def scaled(x, level, length):
        assert length.unit == "m"
        return (x[:level] if level is Level.LOW else -x) * level * length, level.name

    f = dsl.jit(scaled)
    for level, length in ((Level.LOW, 2.0), (Level.HIGH, 2.0), (Level.LOW, 3.0), (Level.LOW, 2.0)):
        expected = scaled(line(), level, Metres(length))
        found = f(line(), level, Metres(length))
        assert np.array_equal(found[0], expected[0])
        assert found[1] == expected[1]
    assert f.cache_info().entries == 3


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numpy_integers_whose_values_are_needed_are_values(kind: Any) -> None:
    def parts(x, axis, n):
        return x.sum(axis=axis), np.linspace(0, 1, n), np.split(x, n), np.tile(x, n)

    f = dsl.jit(parts)
    for axis, n in ((0, 2), (1, 2), (1, 1), (0, 2)):
        expected, found = parts(np.ones((2, 3)), axis, n), f(np.ones((2, 3)), kind(axis), kind(n))
        assert all(map(np.array_equal, flat(found), flat(expected)))


def flat(parts: Any) -> list[Any]:
    return [item for part in parts for item in (part if isinstance(part, list) else [part])]


def test_items_of_bytes_and_strings_are_values() -> None:
    f = dsl.jit(lambda x, text: x + (text[0] if isinstance(text, bytes) else len(text[0])))
    assert [f(1.0, text) for text in (b"a", b"b", "cd", b"a")] == [98.0, 99.0, 2.0, 98.0]


def test_dicts_in_another_order_are_another_structure() -> None:
    def digits(numbers):
        total = 0
        for _, number in numbers.items():
            total = 10 * total + number
        return total

    f, names = dsl.jit(digits), dsl.jit(lambda **numbers: [*numbers])
    for _ in range(2):
        assert f({"b": 1, "a": 2}) == f({"a": 1, "b": 2}) == 12
        assert names(b=1, a=2) == ["b", "a"]
        assert names(a=1, b=2) == ["a", "b"]


@pytest.mark.parametrize("function", [math.fsum, cmath.sqrt, cmath.phase, lambda x: range(x)[0]])
def test_no_array_becomes_a_number(function: Any) -> None:
    f = dsl.jit(lambda x: function(x))
    for _ in range(2):
        with pytest.raises(TypeError):
            f(np.ones((1, 1), int))


def test_python_numbers_are_inputs() -> None:
    f = dsl.jit(lambda x, k: x * k)
    assert [f(2.0, k) for k in range(4)] == [0.0, 2.0, 4.0, 6.0]
    assert f.cache_info().entries == 1


def test_numbers_that_make_shapes_are_taken_as_values() -> None:
    f = dsl.jit(lambda n: np.ones(n).sum())
    assert [f(3), f(4), f(3)] == [3.0, 4.0, 3.0]


def test_bools_strings_and_none_are_values() -> None:
    def f(x, flag, name, nothing):
        return (x if flag else -x), name + "!", nothing

    check_as_plain(f, line(), True, "a", None)
    check_as_plain(f, line(), False, "b", None)


def test_keyword_positional_and_variadic_arguments() -> None:
    def f(a, /, b, *rest, c, d=4.0, **more):
        return a, b, rest, c * d, more

    check_as_plain(f, 1.0, line(), 2, line(2), c=3.0, e=line(1))
    check_as_plain(f, 1.0, b=line(), c=3.0)


# -- trees -----------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Particle:
    position: Any
    mass: float
    name: str = "p"


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


TREES = [
    (line(), 2.0), [line(), [1, 2]], {"a": line(), "b": {"c": 3}}, Point(line(), 1.0), None, (),
    [], {}, Particle(line(), 2.5), Frozen(line()), (None, line(), "text"),
    [Point(1.0, Particle(line(), 1.0)), {"k": (line(),)}],
    collections.OrderedDict(b=line(), a=1.0),
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_go_in_and_come_out(tree: Any) -> None:
    check_as_plain(lambda tree: tree, tree)
    check_as_plain(lambda tree: {"again": [tree, (tree,)]}, tree)


def test_trees_are_made_inside() -> None:
    def f(x):
        particle = Particle(x * 2, 3.0)
        return Point(x, particle.mass), particle, {"k": [x.sum(), None, "text"]}, Frozen(x[0])

    check_as_plain(f, line())


def test_containers_that_are_arguments_are_changed() -> None:
    def f(items, table, particle):
        items.append(items[0] + 1)
        table["new"] = items[0] * 2
        table["old"] += 1
        particle.mass = particle.mass * 2
        particle.position[0] = 7

    check_as_plain(f, [line()], {"old": 1.0}, Particle(line(), 1.0))


# -- captured values -------------------------------------------------------------------------------


def test_contents_of_captured_arrays_are_read_at_each_call(monkeypatch: Any) -> None:
    f = dsl.jit(add_weights)
    monkeypatch.setitem(globals(), "WEIGHTS", np.zeros(3))
    np.testing.assert_array_equal(f(line()), line())
    WEIGHTS[0] = 10
    np.testing.assert_array_equal(f(line()), [11, 2, 3])
    assert f.cache_info().entries == 1


def test_captured_arrays_may_be_rebound(monkeypatch: Any) -> None:
    f = dsl.jit(add_weights)
    f(line())
    monkeypatch.setitem(globals(), "WEIGHTS", np.full(3, 100.0))
    np.testing.assert_array_equal(f(line()), line() + 100)
    assert f.cache_info().entries == 1
    monkeypatch.setitem(globals(), "WEIGHTS", np.arange(3))
    np.testing.assert_array_equal(f(line()), line() + np.arange(3))
    assert f.cache_info().entries == 2
    assert "WEIGHTS" in f.explain()


def test_captured_arrays_are_inputs_not_constants() -> None:
    ir = dsl.jit(add_weights).ir(line())
    assert "%WEIGHTS: f64[3]" in ir


def test_a_captured_number_that_changes_compiles_anew(monkeypatch: Any) -> None:
    f = dsl.jit(times_factor)
    assert f(1.0) == 2.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert f(1.0) == 5.0
    assert "`FACTOR` changed from 2.0 to 5.0" in f.explain()
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert f(1.0) == 2.0
    assert f.cache_info().entries == 2


def test_a_captured_number_that_becomes_an_array(monkeypatch: Any) -> None:
    f = dsl.jit(times_factor)
    assert f(1.0) == 2.0
    monkeypatch.setitem(globals(), "FACTOR", line())
    np.testing.assert_array_equal(f(1.0), line())
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert f(1.0) == 2.0


def test_items_of_captured_containers_are_watched() -> None:
    f = dsl.jit(from_table)
    np.testing.assert_array_equal(f(line()), 2 * line())
    TABLE["k"] = 3
    np.testing.assert_array_equal(f(line()), 3 * line())
    TABLE["w"] = np.zeros(3)
    np.testing.assert_array_equal(f(line()), 0 * line())
    TABLE.update(k=2, w=np.ones(3))


def test_variables_of_enclosing_functions_are_watched() -> None:
    scale, shift = 2.0, line()

    @dsl.jit
    def f(x):
        return scale * x + shift

    np.testing.assert_array_equal(f(line()), 3 * line())
    scale, shift = 3.0, np.zeros(3)
    np.testing.assert_array_equal(f(line()), 3 * line())


def test_a_helper_that_is_defined_again_compiles_anew(monkeypatch: Any) -> None:
    f = dsl.jit(calls_helper)
    assert f(1.0) == 2.0
    monkeypatch.setitem(globals(), "helper", lambda x: x + 100)
    assert f(1.0) == 101.0


def test_a_length_of_a_captured_list_is_watched() -> None:
    layers = [1.0, 2.0]

    @dsl.jit
    def f(x):
        for w in layers:
            x = x * w
        return x + len(layers)

    assert f(1.0) == 4.0
    layers.append(5.0)
    assert f(1.0) == 13.0


def test_arrays_in_a_captured_list_are_read_at_each_call() -> None:
    layers = [line(), np.ones(3)]

    @dsl.jit
    def f(x):
        for w in layers:
            x = x + w
        return x

    np.testing.assert_array_equal(f(line()), 2 * line() + 1)
    layers[1][:] = 0
    np.testing.assert_array_equal(f(line()), 2 * line())
    layers[0] = np.zeros(3)
    np.testing.assert_array_equal(f(line()), line())


def test_objects_in_a_captured_list_are_watched() -> None:
    class Layer:
        scale = 2.0

    layers = [Layer(), Layer()]

    @dsl.jit
    def f(x):
        for layer in layers:
            x = x * layer.scale
        return x

    assert f(1.0) == 4.0
    layers[1].scale = 10.0
    assert f(1.0) == 20.0


def test_nested_captured_containers_are_watched() -> None:
    options = {"step": {"size": 2.0}}
    f = dsl.jit(lambda x: x * options["step"]["size"])
    assert f(1.0) == 2.0
    options["step"]["size"] = 3.0
    assert f(1.0) == 3.0


class Model:
    scale = 10.0

    def __init__(self) -> None:
        self.weights = line()
        self.bias = 1.0
        self.calls = 0

    @dsl.jit
    def __call__(self, x):
        return self.scale * (x * self.weights).sum() + self.bias

    @dsl.jit
    def train(self, x):
        self.weights = self.weights + x
        self.bias += 1.0
        self.calls += 1
        return self.weights.sum()

    @dsl.jit
    def in_place(self, x):
        self.weights[:] += x


def test_methods_see_attributes_that_change() -> None:
    model = Model()
    assert model(line()) == 141.0
    model.bias = 2.0
    assert model(line()) == 142.0
    model.weights = np.zeros(3)
    assert model(line()) == 2.0
    model.weights[0] = 1.0
    assert model(line()) == 12.0
    assert Model()(line()) == 141.0


def test_methods_set_attributes() -> None:
    model = Model()
    assert [model.train(1.0) for _ in range(3)] == [9.0, 12.0, 15.0]
    np.testing.assert_array_equal(model.weights, line() + 3)
    assert (float(model.bias), model.calls) == (4.0, 3)


def test_methods_write_arrays_in_place() -> None:
    model = Model()
    kept = model.weights
    model.in_place(2.0)
    assert model.weights is kept
    np.testing.assert_array_equal(kept, line() + 2)


def test_two_objects_do_not_mix() -> None:
    a, b = Model(), Model()
    a.train(1.0)
    b.train(5.0)
    assert (a.weights.sum(), b.weights.sum()) == (9.0, 21.0)


# -- looking inside --------------------------------------------------------------------------------


def loop(x, n):
    for _ in range(n):
        x = np.sin(x) + 0
    return x


@pytest.mark.parametrize("stage", ["traced", "optimized", "lowered"])
def test_ir_of_a_stage_is_text_that_parses(stage: str) -> None:
    text = dsl.jit(loop).ir(line(), 3, stage=stage)
    assert text.startswith("graph @loop(")
    assert parse(text).name == "loop"
    assert ("= scan(" in text) == (stage != "lowered")
    assert ("next_iteration" in text) == (stage == "lowered")


def test_ir_shows_the_users_lines() -> None:
    assert f"{Path(__file__).name}:" in dsl.jit(loop).ir(line(), 3)


def test_lower_compiles_without_running() -> None:
    def f(x):
        print("ran")
        x[0] = 100

    x = line()
    lowered = dsl.jit(f).lower(x)
    assert x[0] == 1
    assert "print" in lowered.text()
    assert lowered.graph("traced").name == "f"


def test_lower_draws(tmp_path: Path) -> None:
    lowered = dsl.jit(loop).lower(line(), 3)
    assert lowered.dot().startswith("digraph")
    assert "sin" in lowered.dot("optimized")
    picture = lowered.show()
    assert "sin" in picture._repr_html_()
    picture.save(tmp_path / "loop.html")
    assert "sin" in (tmp_path / "loop.html").read_text()


def test_cache_info_counts_calls() -> None:
    f = dsl.jit(lambda x: x + 1)
    assert f.cache_info() == (0, 0, 0)
    f(1.0)
    f(2.0)
    f(line())
    info = f.cache_info()
    assert (info.hits, info.misses, info.entries) == (1, 2, 2)


def test_explain_says_why_each_time() -> None:
    @dsl.jit
    def f(x, y=1.0):
        return x + y

    f(line())
    f(line(4))
    f(line().astype(np.float32))
    f([line(), line()][0], y=line())
    text = f.explain()
    assert text.startswith("f: compiled 4 times")
    assert "1. first call" in text
    assert "argument x was f64[3], now f64[4]" in text
    assert "f32[3]" in text
    assert "argument y was a Python float, now f64[3]" in text


def test_a_failed_call_does_not_count_as_compiled() -> None:
    f = dsl.jit(lambda x, y: x + y)
    with pytest.raises(ValueError, match="broadcast"):
        f(line(3), line(4))
    assert f.cache_info().entries == 0


# -- living with Python ----------------------------------------------------------------------------


def test_attributes_are_those_of_the_function() -> None:
    assert squared.__name__ == "squared"
    assert squared.__doc__ == "Square."
    assert squared.__module__ == __name__
    assert squared.__wrapped__(3) == 9
    assert "squared" in repr(squared)
    assert repr(squared.lower(line())) == "<squared lowered for (f64[3])>"


def test_a_compiled_function_is_pickled_by_its_function() -> None:
    f = dsl.jit(loop, static_argnames="n")
    again = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(again(line(), 2), f(line(), 2))
    assert pickle.loads(pickle.dumps(squared))(3.0) == 9.0


def check_alike(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    for one, other in zip(
        *([x] if type(x) is not tuple else x for x in (found, wanted)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def cubed(x):
    return (x**3).sum()


@pytest.mark.parametrize(
    "transform",
    [
        dsl.grad,
        dsl.value_and_grad,
        dsl.jacfwd,
        dsl.jacrev,
        dsl.hessian,
        dsl.checkpoint,
        functools.partial(dsl.vmap, in_axes=[0]),
        lambda fn: dsl.jit(dsl.grad(fn), dynamic=True),
    ],
)
def test_transformed_functions_are_pickled(transform: Any) -> None:
    f = transform(cubed)
    again = pickle.loads(pickle.dumps(f))
    check_alike(again(line()), f(line()))
    assert pickle.loads(pickle.dumps(f)) is pickle.loads(pickle.dumps(f))


def test_transforms_of_transforms_are_compiled_once() -> None:
    for transform in (
        dsl.hessian,
        lambda f: dsl.vmap(dsl.grad(f)),
        lambda f: dsl.jacfwd(dsl.grad(f)),
    ):
        assert transform(cubed) is transform(cubed)


def test_a_compiled_method_is_pickled_with_its_object() -> None:
    model = Model()
    model.bias = 3.0
    assert pickle.loads(pickle.dumps(model.__call__))(line()) == model(line())


class Fit:
    scale = 2.0

    @dsl.jit
    def loss(self, p, q=1.0):
        return ((self.scale * p - q) ** 2).sum()

    def plain(self, p, q=1.0):
        return ((self.scale * p - q) ** 2).sum()

    @functools.partial(dsl.jit, static_argnames="kind")
    def power(self, p, kind):
        return (p ** len(kind)).sum()


def test_a_compiled_method_is_transformed_as_a_plain_one() -> None:
    fit, x = Fit(), line()
    for transform in (
        dsl.grad,
        dsl.value_and_grad,
        dsl.hessian,
        dsl.jacfwd,
        dsl.checkpoint,
        dsl.jit,
    ):
        check_alike(transform(fit.loss)(x), transform(fit.plain)(x))
        check_alike(transform(fit.loss)(x, q=3.0), transform(fit.plain)(x, q=3.0))
    np.testing.assert_array_equal(dsl.grad(fit.power)(x, "ab"), 2 * x)


def test_a_compiled_method_looks_like_a_bound_one() -> None:
    fit = Fit()
    assert fit.loss == fit.loss
    assert fit.loss != Fit().loss
    assert len({fit.loss, fit.loss}) == 1
    assert fit.loss.__self__ is fit
    assert fit.loss.__func__ is Fit.loss
    assert inspect.signature(fit.loss) == inspect.signature(fit.plain)


def test_options_of_jit_are_added_to_those_of_a_compiled_function() -> None:
    f = dsl.jit(dsl.jit(loop, static_argnames="n"), dynamic=True)
    f(line(), 2)
    assert "dynamic=True" in f.explain()


def test_jit_of_a_compiled_function_is_itself() -> None:
    assert dsl.jit(squared) is squared


def test_compiled_functions_call_compiled_functions() -> None:
    assert sum_of_squares(line()) == 14.0
    assert sum_of_squares(-line()) == 0.0


def test_partial_functions_and_callable_objects() -> None:
    class Adder:
        def __call__(self, x):
            return x + 1 if x > 0 else x

    f = dsl.jit(lambda x: functools.partial(helper)(x) + Adder()(x))
    assert f(2.0) == 6.0
    assert dsl.jit(functools.partial(loop, n=2))(line()).shape == (3,)


def test_recursion_through_the_compiled_name() -> None:
    @dsl.jit(static_argnames="n")
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    assert power(2.0, 5) == 32.0


def test_a_recursion_that_sizes_end_is_soon_given_up_for_symbolic_sizes() -> None:
    levels: list[int] = []

    @dsl.jit
    def total(x):
        levels.append(1)
        if len(x) < 3:
            return x.sum()
        return total(x[::2]) + total(x[1::2])

    assert total(np.ones(4)) == 4
    levels.clear()
    assert total(np.ones(9)) == 9
    assert "calls itself without end" in total.explain()
    assert len(levels) < 40
    assert total(np.ones(17)) == 17


def test_threads_call_one_function() -> None:
    f = dsl.jit(loop)
    want = {n: loop(line(n), n) for n in range(1, 9)}
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for k in range(12):
            n = 1 + (seed + k) % 8
            try:
                np.testing.assert_allclose(f(line(n), n), want[n])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert f.cache_info().entries == 3  # for size 1, for the first other size, for all others


def test_disable_jit_leaves_nothing_out() -> None:
    """What has no plain form is compiled all the same; where nodes would be placed, everything happens here."""

    @dsl.jit
    def f(key, x):
        with dsl.device("/rank:1/cpu:0"):
            y = dsl.nn.softmax(x)
        with dsl.device("cpu:1"):
            return y + dsl.random.normal(dsl.random.fold_in(key, 2), (3,))

    x = np.arange(3.0)
    with dsl.config.override(disable_jit=True):
        found = f(dsl.random.key(1), x)
        training = dsl.parallel.DataParallel(lambda w, x: ((w - x) ** 2).mean(), dsl.optim.SGD(0.5))
        w, state = training.init(np.zeros(2))
        loss, w, state = training.step(w, state, np.ones((4, 2)))
    noise = dsl.random.normal(dsl.random.fold_in(dsl.random.key(1), 2), (3,))
    np.testing.assert_allclose(found, dsl.nn.softmax(x) + noise, rtol=1e-15)
    assert (loss, w.tolist()) == (1.0, [0.5, 0.5])


def test_disable_jit_runs_plain_python() -> None:
    calls = []

    @dsl.jit
    def f(x):
        calls.append(type(x))
        return x

    with config.override(disable_jit=True):
        f(line())
    assert calls == [np.ndarray]
    assert f.cache_info().entries == 0


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": root, **environment},
    )  # fmt: skip


PROGRAM = """
import numpy as np, dsl
@dsl.jit
def f(x):
    return np.sin(x)
f(np.ones(3))
print(f.cache_info().entries)
"""


def test_environment_variables(tmp_path: Path) -> None:
    assert run(PROGRAM, DSL_DISABLE_JIT="1").stdout == "0\n"
    done = run(PROGRAM, DSL_DUMP_IR_TO=str(tmp_path), DSL_LOGS="trace,compile,passes")
    assert done.stdout == "1\n"
    assert "[dsl.trace] f: first call" in done.stderr
    assert "[dsl.compile] f: trace" in done.stderr
    assert "[dsl.passes] f cse" in done.stderr
    dumped = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert dumped[0] == "00_traced.ir"
    assert "sin" in (tmp_path / "f" / "00_traced.ir").read_text()


def test_dumps_and_logs_of_this_process(tmp_path: Path, capsys: Any) -> None:
    with config.override(dump_ir_to=str(tmp_path), logs="trace,capture,guards"):
        dsl.jit(add_weights)(line())
    assert (tmp_path / "add_weights" / "00_traced.ir").exists()
    logged = capsys.readouterr().err
    assert "[dsl.trace] add_weights: first call" in logged
    assert "[dsl.capture] add_weights: the array `WEIGHTS` (24 bytes)" in logged


def test_unrolling_is_logged(capsys: Any) -> None:
    def f(x):
        names = ["a", "bb", "ccc"]
        for i in range(3):
            x = x + len(names[i])
        return x

    with config.override(logs="unroll"):
        assert dsl.jit(f)(1.0) == 7.0
    assert "unrolled 3 times" in capsys.readouterr().err


# -- kinds and dtypes of results -------------------------------------------------------------------


def kinds(x):
    return (
        x[0], x.sum(), x[0] + 1, float(x[0]), int(x[0]), bool(x[0] > 0), x[0] > 0, x[:1],
        np.array(x[0]), len(x), x.shape, x.ndim, 3, 2.5, x.max(), x[0].item(), np.float32(2),
        np.argmax(x), x.mean(), np.sum(x, keepdims=True), x.sum() * 2, np.sqrt(x[0]),
    )  # fmt: skip


def test_results_are_of_the_kinds_that_numpy_gives() -> None:
    x = line()
    got, want = dsl.jit(kinds)(x), kinds(x)
    assert [type(v) for v in got] == [type(v) for v in want]
    check_as_plain(kinds, x)


@pytest.mark.parametrize("value", [1, 2.5, 1j, True, np.float32(1.5), np.int8(3), np.array(2.0)])
def test_numbers_keep_their_kind(value: Any) -> None:
    for f in (lambda v: v, lambda v: v + v, lambda v: v * 2, lambda v: (v, [v])):
        assert type(dsl.jit(f)(value)) is type(f(value))
        check_as_plain(f, value)


def test_code_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "made.py"

    def run_new_function(factor: int) -> Any:
        text = f"def scale(x):\n    if x[0] > 0:\n        return x * {factor}\n    return [v for v in x][0] + x\n"
        file.write_text(text)
        linecache.checkcache(str(file))
        space: dict[str, Any] = {}
        exec(compile(text, str(file), "exec"), space)
        return dsl.jit(space["scale"])(line())

    def known() -> list[int]:
        gc.collect()
        return [len(convert._generated), len(scopes._lines)]

    run_new_function(2)
    before = known()
    for factor in range(3, 7):
        np.testing.assert_array_equal(run_new_function(10**factor), line() * 10**factor)
    assert known() == before


def write_first(x):
    x[0] = 1
    return x[1:]


@pytest.mark.parametrize(
    "function", [lambda x: x + 1, write_first, add_weights, lambda x: [x, x.T]]
)
@pytest.mark.parametrize("make", [line, lambda: line(6)[::2]], ids=["whole", "strided"])
def test_arrays_do_not_outlive_the_calls_they_were_passed_to(function: Any, make: Any) -> None:
    f = dsl.jit(function)
    for _ in range(2):
        x = make()
        gone = weakref.ref(x)
        f(x)
        del x
        gc.collect()
        assert gone() is None


def test_an_array_outside_does_not_outlive_its_replacement() -> None:
    table = line()
    f = dsl.jit(lambda x: x + table)
    f(line())
    gone, table = weakref.ref(table), line() * 2
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(f(line()), line() * 3)


def test_asserts_are_left_out_where_python_leaves_them_out(tmp_path: Path) -> None:
    file = tmp_path / "checked.py"
    file.write_text(
        "import numpy as np, dsl\n"
        "@dsl.jit\n"
        "def checked(x):\n"
        "    assert (total := x.sum()) > 0, 'not positive'\n"
        "    for v in x:\n"
        "        assert v > 0\n"
        "    return x + __debug__\n"
        "print(checked(-np.ones(2)))\n"
    )
    root = str(Path(__file__).parent.parent)
    found = [
        subprocess.run(
            [sys.executable, *options, str(file)], env={**os.environ, "PYTHONPATH": root},
            capture_output=True, text=True, check=False,
        )
        for options in (["-O"], [])
    ]  # fmt: skip
    assert found[0].stdout == "[-1. -1.]\n"
    assert "AssertionError: not positive" in found[1].stderr


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_follow_numpy(dtype: str) -> None:
    x = np.array([1, 0, 1]).astype(dtype)
    check_as_plain(lambda x: (x, x + x, x * 2, x.sum(), x + np.float32(1), x.astype("c8")), x)


def test_bfloat16() -> None:
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    got = dsl.jit(lambda x: (x + x, x * 2, np.maximum(x, 1)))(x)
    for mine, plain in zip(got, (x + x, x * 2, np.maximum(x, 1))):
        assert mine.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(mine.astype(float), plain.astype(float))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (), (1,), (1, 1)])
def test_empty_and_tiny_arrays(shape: tuple[int, ...]) -> None:
    def f(x):
        y = x + 1
        y *= 2
        return x, y, y.sum(), y.sum(axis=None), x.T, x.reshape(-1), np.sort(x.reshape(-1))

    check_as_plain(f, np.ones(shape))


def test_loops_over_empty_arrays() -> None:
    def f(x):
        total = 0.0
        for v in x:
            total += v
        for i in range(len(x)):
            total += x[i]
        return total

    assert dsl.jit(f)(np.zeros(0)) == 0.0


def test_zero_dimensional_arrays_are_written() -> None:
    def f(x):
        x[...] = x + 1
        x[()] += 1
        return x

    x = np.array(1.0)
    assert dsl.jit(f)(x) is x
    assert x == 3.0


def test_functions_without_arguments_or_results() -> None:
    assert dsl.jit(lambda: None)() is None
    assert dsl.jit(lambda: 3)() == 3
    assert dsl.jit(lambda: np.ones(2).sum())() == 2.0


def test_big_python_integers_stay_exact() -> None:
    assert dsl.jit(lambda n: n + 1)(2**70) == 2**70 + 1


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(dsl.errors.DeviceError, match="cannot be compiled for the device 'tpu:0'"):
        dsl.jit(device="tpu:0")


def test_a_scan_over_nothing_returns_the_carry_and_nothing() -> None:
    def total(xs):
        return dsl.scan(lambda carry, x: (carry + x, carry * x), 0.0, xs)

    carry, products = dsl.jit(total)(np.zeros(0))
    assert carry == 0.0
    assert products.shape == (0,)


def test_a_scan_over_nothing_does_nothing() -> None:
    count = dsl.Variable(0)

    def body(carry, x):
        count.assign_add(1)
        return carry, x

    assert dsl.jit(lambda xs: dsl.scan(body, 0.0, xs))(np.zeros(0, np.uint8))[1].dtype == np.uint8
    assert count.value == 0


def test_the_results_of_a_scan_have_the_dtype_that_holds_all_of_them() -> None:
    def running(xs):
        return dsl.scan(lambda total, x: (total + x, total), 0, xs)

    for dtype in (np.float64, np.float32, np.complex64):
        xs = np.full(3, 0.5, dtype)
        for found in (running(xs), dsl.jit(running)(xs)):
            assert found[0] == 1.5
            assert (found[1].dtype, found[1].tolist()) == (dtype, [0.0, 0.5, 1.0])


def last_of_scan(length: Any, xs: Any) -> Any:
    return dsl.scan(lambda c, _: (c, c), 0.0, xs, length=length)


@pytest.mark.parametrize("decorate", [dsl.jit, lambda f: f])
def test_a_scan_over_arrays_of_different_lengths_is_refused(decorate: Any) -> None:
    x = np.ones(4)
    for xs, length, words in (((x, x[:3]), None, "4, 3"), (x, 3, "`length` differ: 4, 3")):
        with pytest.raises(dsl.errors.ShapeError, match=words):
            decorate(functools.partial(last_of_scan, length))(xs)


def test_a_scan_over_a_number_is_refused() -> None:
    with pytest.raises(dsl.errors.ShapeError, match="holds a number, which has no leading axis"):
        dsl.fold(lambda total, x: total + x, 0.0, np.ones(3))


def test_an_array_whose_dtype_only_equals_numpys_own_is_taken() -> None:
    dtype = np.dtype(np.float64).newbyteorder("=")
    assert dtype is not np.dtype(np.float64)
    x = np.arange(6.0).astype(dtype)[::2]
    assert dsl.jit(lambda a: a + 1)(x).tolist() == [1, 3, 5]

    def write(a: np.ndarray) -> None:
        a[0] = 7

    dsl.jit(write)(x)
    assert x[0] == 7


def test_threads_that_all_learn_at_once_that_a_number_must_be_static() -> None:
    f = dsl.jit(lambda x, axis: x.sum(axis))
    found: list[Any] = []
    ready = threading.Barrier(4)

    def work() -> None:
        ready.wait()
        found.append(f(np.ones((2, 3)), 1).tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[3.0, 3.0]] * 4


def test_the_same_array_twice_has_a_program_of_its_own() -> None:
    """A write to one shows in the other."""

    @dsl.jit
    def mixed(a, b, c, k=2):
        return a * k + b - c

    @dsl.jit
    def write(a, b):
        a[0] = 5.0
        return b.sum()

    x, y, z = np.arange(3.0), np.ones(3), np.zeros(3)
    calls = [(x, x, y), (x, y, x), (x, y, y), (x, x, x), (x, y, z)]
    for _ in range(3):
        for a, b, c in calls:
            np.testing.assert_array_equal(mixed(a, b, c), a * 2 + b - c)
    info = mixed.cache_info()
    assert (info.misses, info.hits) == (5, 10)
    for _ in range(2):
        same, other = np.arange(3.0), np.arange(3.0)
        assert write(same, same) == 8.0
        assert write(np.arange(3.0), other) == 3.0


def test_donated_arguments_are_parameters() -> None:
    f = dsl.jit(lambda x, y: x + y, donate="x")
    np.testing.assert_array_equal(f(np.ones(3), np.ones(3)), np.full(3, 2.0))
    with pytest.raises(dsl.DslError, match="donate names z, but `<lambda>` takes x, y"):
        dsl.jit(lambda x, y: x + y, donate=("x", "z"))


def test_tracebacks_leave_out_what_dsl_does() -> None:
    def inner(x):
        return misspelt + x  # type: ignore[name-defined]  # noqa: F821

    def outer(x):
        return inner(x)

    def files(**options: Any) -> list[str]:
        with dsl.config.override(**options), pytest.raises(NameError) as caught:
            dsl.jit(outer)(line())
        return [Path(frame.filename).name for frame in traceback.extract_tb(caught.tb)]

    own = Path(__file__).name
    found = files()
    assert found[-2:] == [own, own]
    assert set(found) == {own, "compile.py"}
    assert "tracing.py" in files(traceback_filtering="off")


def test_arguments_that_do_not_fit_the_signature_name_the_function() -> None:
    @dsl.jit
    def scaled(x, factor):
        return x * factor

    with pytest.raises(TypeError, match=r"scaled\(\) missing a required argument: 'factor'"):
        scaled(line())
    with pytest.raises(TypeError, match=r"scaled\(\) too many positional arguments"):
        scaled(line(), 1.0, 2.0)


def test_what_cannot_be_returned_is_reported_at_the_function() -> None:
    @dsl.jit
    def described(x):
        return f"the sum is {x.sum()}"

    with pytest.raises(UnsupportedError, match="cannot be returned") as caught:
        described(line())
    assert "def described(x):" in str(caught.value)


def test_a_subclass_of_arrays_is_refused_by_the_name_of_the_argument() -> None:
    with pytest.raises(UnsupportedError, match=r"the argument `pair\[1\]` is a MaskedArray"):
        dsl.jit(lambda pair: pair[0])((line(), np.ma.masked_array(line())))


@pytest.mark.parametrize("draw", [random.random, lambda: random.Random(0).random()])
def test_numbers_of_pythons_generator_are_refused(draw: Any) -> None:
    with pytest.raises(UnsupportedError, match="would give the same numbers at every call"):
        dsl.jit(lambda x: x * draw())(line())


def test_eval_sees_only_the_names_that_it_is_given() -> None:
    with pytest.raises(UnsupportedError, match="`eval` does not see the variables"):
        dsl.jit(lambda x: eval("x + 1"))(line())
    got = dsl.jit(lambda x: eval("x + 1", {"x": x}))(line())
    np.testing.assert_array_equal(got, line() + 1)


def test_elements_cannot_be_deleted() -> None:
    def shorten(x):
        del x[0]
        return x

    with pytest.raises(ValueError, match="cannot delete array elements"):
        dsl.jit(shorten)(line())


@pytest.mark.parametrize("other", ["a", b"a", None])
def test_no_element_is_equal_to_a_text_or_to_none(other: Any) -> None:
    for dtype in (float, int, bool, complex):
        x = np.array([0, 1, 2]).astype(dtype)
        f = dsl.jit(lambda x: (x == other, other != x, x[0] == other))
        got, want = f(x), (x == other, other != x, x[0] == other)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
        assert bool(got[2]) == bool(want[2])
