"""Variables: what they keep, every way to write one, program order, atomic writes, gradients, claims.

The same writes are made eagerly, in compiled functions and in graphs, and must leave what NumPy leaves.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from concurrently import LIMIT, exit_code_of_child, in_threads

import dsl
from dsl.errors import (
    AliasError,
    DslError,
    GradientError,
    NonConcreteError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)
from dsl.runtime.claims import Claim, Claimable

BACKENDS = ("native", "interpreter")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with dsl.config.override(backend=request.param):
        yield request.param


# --- What a variable is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.int8, np.uint16, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.complex128],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 1, 3)])
def test_dtype_and_shape_stay(dtype: Any, shape: tuple[int, ...]) -> None:
    variable = dsl.Variable(np.zeros(shape, dtype))
    variable.assign(np.ones(shape, dtype))
    assert (variable.dtype, variable.shape) == (np.dtype(dtype), shape)
    assert (variable.ndim, variable.size) == (len(shape), int(np.prod(shape)))
    assert (variable.value == np.ones(shape, dtype)).all()


def test_what_it_starts_with_is_copied_to_c_order() -> None:
    start = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    variable = dsl.Variable(start)
    start[...] = 0
    assert variable.value.flags.c_contiguous
    assert variable.value.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not np.shares_memory(dsl.Variable(variable).value, variable.value)
    assert dsl.Variable(1, dtype=np.float32).dtype == np.float32


def test_numpy_sees_its_memory_without_a_copy() -> None:
    variable = dsl.Variable(np.zeros(3))
    seen = np.asarray(variable)
    assert np.shares_memory(seen, variable.value)
    variable.assign([1.0, 2.0, 3.0])
    assert seen.tolist() == [1, 2, 3]
    dsl.jit(lambda: variable.assign_add(1.0))()
    assert seen.tolist() == [2, 3, 4]
    with dsl.Graph() as graph:
        done = variable.assign_sub(2.0)
    dsl.Session(graph).run(done)
    assert seen.tolist() == [0, 1, 2]
    assert not np.shares_memory(variable.read(), seen)
    assert not np.shares_memory(variable.numpy(), seen)
    assert not np.shares_memory(np.array(variable), seen)
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        np.asarray(variable, dtype=np.float32, copy=False)


def test_names_text_and_numbers() -> None:
    assert (
        repr(dsl.Variable(np.ones((2, 3), np.float32), name="w"))
        == "<dsl.Variable 'w' float32[2, 3]>"
    )
    assert dsl.Variable(0).name != dsl.Variable(0).name
    number = dsl.Variable(3)
    assert (int(number), float(number), bool(number), complex(number)) == (3, 3.0, True, 3 + 0j)
    assert "abcd"[number] == "d"
    assert f"{dsl.Variable(1.5):.3f}" == "1.500"
    assert f"{number}" == repr(number)
    assert {number: "as a key"}[number] == "as a key"
    with pytest.raises(TypeError, match="unsized"):
        len(number)
    with pytest.raises(AttributeError, match="'Variable' object has no attribute 'nothing'"):
        _ = number.nothing


def test_pickling_and_copying_make_another_variable() -> None:
    variable = dsl.Variable(np.arange(3, dtype=np.float32), name="w", trainable=False)
    for other in (
        pickle.loads(pickle.dumps(variable)),
        copy.copy(variable),
        copy.deepcopy(variable),
    ):
        assert (other.name, other.trainable, other.dtype) == ("w", False, np.float32)
        other.assign(0.0)
        assert variable.value.tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", ["text", object(), np.array(["2020-01-01"], "M8[D]")])
def test_what_is_no_array_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedError, match="cannot be traced"):
        dsl.Variable(value)


def test_making_one_in_a_compiled_function_is_refused_with_the_fix() -> None:
    @dsl.jit
    def count(x: Any) -> Any:
        total = dsl.Variable(0.0)
        return total + x

    with pytest.raises(UnsupportedError) as caught:
        count(1.0)
    assert "made inside a compiled function" in str(caught.value)
    assert "total = dsl.Variable(0.0)" in str(caught.value)
    assert "make it outside the function" in caught.value.remedy


def test_a_variable_of_a_graph_starts_with_numbers() -> None:
    with dsl.Graph():
        x = dsl.placeholder(np.float64)
        with pytest.raises(UnsupportedError, match="starts with numbers"):
            dsl.Variable(x * 2)


# --- Writing ------------------------------------------------------------------------------------------------------------

Write = Callable[[Any], Any]
WRITES: dict[str, tuple[Write, Write]] = {
    "assign": (lambda v: v.assign([7.0, 8.0, 9.0]), lambda a: np.copyto(a, [7.0, 8.0, 9.0])),
    "assign a number": (lambda v: v.assign(4), lambda a: a.fill(4)),
    "assign_add": (lambda v: v.assign_add([1, 2, 3]), lambda a: a.__iadd__([1, 2, 3])),
    "assign_sub": (lambda v: v.assign_sub(0.5), lambda a: a.__isub__(0.5)),
    "scatter_update": (
        lambda v: v.scatter_update([0, 2, 0], [5.0, 6.0, 7.0]),
        lambda a: a.__setitem__([0, 2], [7.0, 6.0]),
    ),
    "scatter_add": (
        lambda v: v.scatter_add([1, 1, 0], [1.0, 2.0, 3.0]),
        lambda a: np.add.at(a, [1, 1, 0], [1.0, 2.0, 3.0]),
    ),
    "scatter_sub": (
        lambda v: v.scatter_sub(np.array([2, 2]), 1.0),
        lambda a: np.subtract.at(a, [2, 2], 1.0),
    ),
    "scatter from the end": (lambda v: v.scatter_add([-1], [1.0]), lambda a: a.__setitem__(-1, a[-1] + 1)),
    "scatter nothing": (lambda v: v.scatter_add([], []), lambda a: None),
    "scatter one": (lambda v: v.scatter_update(1, 3.0), lambda a: a.__setitem__(1, 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("how", ["eager", "jit", "graph"])
def test_every_write_leaves_what_numpy_leaves(
    write: tuple[Write, Write], how: str, backend: str
) -> None:
    variable, array = dsl.Variable(np.arange(3.0)), np.arange(3.0)
    act, reference = write
    reference(array)
    if how == "eager":
        assert act(variable) is variable
    elif how == "jit":
        assert dsl.jit(lambda: act(variable))().tolist() == array.tolist()
    else:
        with dsl.Graph() as graph:
            done = act(variable)
        assert variable.value.tolist() == [0, 1, 2]
        assert dsl.Session(graph).run(done).tolist() == array.tolist()
    assert variable.value.tolist() == array.tolist()


def test_rows_are_rows_of_any_rank(backend: str) -> None:
    rows = dsl.Variable(np.zeros((4, 2)))
    indices, updates = np.array([[0, 1], [1, 3]]), np.arange(8.0).reshape(2, 2, 2)
    expected = np.zeros((4, 2))
    np.add.at(expected, indices, updates)
    rows.scatter_add(indices, updates)
    dsl.jit(lambda: rows.scatter_add(indices, updates))()
    with dsl.Graph() as graph:
        done = rows.scatter_add(indices, updates)
    dsl.Session(graph).run(done)
    assert (rows.value == 3 * expected).all()


@pytest.mark.parametrize("jit", [False, True])
def test_indices_and_augmented_assignments_write_in_place(jit: bool, backend: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.w = dsl.Variable(np.arange(4.0))

        def step(self) -> None:
            self.w[1:3] = 7.0
            self.w[0] += 1.0
            self.w += 1.0
            self.w -= np.full(4, 2.0)
            self.w *= 2.0
            self.w /= 4.0
            self.w **= 2
            self.w //= 3
            self.w %= 3

    model, array = Model(), np.arange(4.0)
    memory = model.w
    (dsl.jit(model.step) if jit else model.step)()
    plain = Model()
    plain.w = array  # type: ignore[assignment]
    plain.step()
    assert model.w is memory
    assert model.w.value.tolist() == plain.w.tolist()


def test_what_is_assigned_may_be_the_variable_itself() -> None:
    variable = dsl.Variable(np.arange(4.0))
    variable.assign(variable[::-1])
    assert variable.value.tolist() == [3, 2, 1, 0]
    variable.assign_add(variable)
    assert variable.value.tolist() == [6, 4, 2, 0]
    other = dsl.Variable(np.zeros(4))
    other.assign(variable)
    assert other.value.tolist() == [6, 4, 2, 0]


def test_a_graph_makes_nodes_and_has_no_index_assignment() -> None:
    with dsl.Graph():
        variable = dsl.Variable(np.zeros(3))
        with pytest.raises(UnsupportedError, match="index of a variable in a graph"):
            variable[0] = 1.0
        with pytest.raises(UnsupportedError, match="augmented assignment") as caught:
            variable += 1.0
    assert "assign_add" in caught.value.remedy


# --- Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["eager", "jit", "graph"])
@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda v: v.assign(np.zeros(4, np.int64)), ShapeError,
         r"a value of shape \(4,\) cannot be assigned to <dsl.Variable 'w' int64\[3\]>"),
        (lambda v: v.assign(np.zeros((2, 3), np.int64)), ShapeError, r"a value of shape \(2, 3\)"),
        (lambda v: v.assign(1.5), TypeRuleError, "assign: a value of dtype float does not fit <dsl.Variable 'w' int64"),
        (lambda v: v.assign_add(np.ones(3)), TypeRuleError, "a value of dtype float64 does not fit"),
        (lambda v: v.scatter_update([0], [1.5]), TypeRuleError, "scatter: a value of dtype float64 does not fit"),
        (lambda v: v.scatter_add([0, 1], [1, 2, 3]), ShapeError,
         r"a value of shape \(3,\) cannot be assigned to rows of shape \(2,\) of <dsl.Variable 'w'"),
        (lambda v: v.scatter_add([0.0], [1]), TypeRuleError, "indices must be integers, got float64"),
        (lambda v: v.scatter_add([True, False, True], [1, 2, 3]), TypeRuleError, "indices must be integers, got bool"),
    ],
)  # fmt: skip
def test_a_wrong_write_is_refused_at_its_line(
    how: str, write: Write, error: type[DslError], message: str
) -> None:
    variable = dsl.Variable(np.arange(3), name="w")
    within = dsl.Graph() if how == "graph" else contextlib.nullcontext()
    act = dsl.jit(lambda: write(variable)) if how == "jit" else lambda: write(variable)
    with within, pytest.raises(error, match=message) as caught:
        act()
    assert caught.value.location is not None
    assert "test_variables.py" in str(caught.value)
    assert variable.value.tolist() == [0, 1, 2]


def test_a_scalar_has_no_rows() -> None:
    with pytest.raises(ShapeError, match="has no rows") as caught:
        dsl.Variable(1.0).scatter_add([0], [1.0])
    assert caught.value.remedy == "use `assign`"


def test_out_of_range_rows_change_nothing(backend: str) -> None:
    variable = dsl.Variable(np.ones(3))

    def write() -> None:
        variable.assign_add(1.0)
        variable.scatter_add(np.array([0, 9]), [1.0, 1.0])

    with pytest.raises(IndexError, match="9"):
        variable.scatter_add([0, 9], 1.0)
    assert variable.value.tolist() == [1, 1, 1]
    with pytest.raises(IndexError, match="9"):
        dsl.jit(write)()
    assert variable.value.tolist() == [1, 1, 1]
    with dsl.Graph() as graph:
        done = dsl.group(variable.assign_add(1.0), variable.scatter_add([0, 9], 1.0))
    with dsl.Session(graph) as session:
        with pytest.raises(IndexError, match="9"):
            session.run(done)
        assert variable.value.tolist() == [1, 1, 1]
        assert session.run(variable).tolist() == [1, 1, 1]


def test_numpy_cannot_write_into_one() -> None:
    variable = dsl.Variable(np.ones(3))
    with pytest.raises(UnsupportedError, match="`out=` cannot be a variable"):
        np.add(variable, 1, out=variable)


# --- As an operand ---------------------------------------------------------------------------------------------------------

USES: dict[str, Write] = {
    **{u.__name__: u for u in (np.sin, np.exp, np.negative, np.isfinite, np.floor, np.square)},
    **{u.__name__: lambda v, u=u: u(v, 2.0) for u in (np.add, np.maximum, np.power, np.arctan2, np.less)},
    "reflected ufunc": lambda v: np.subtract(2.0, v),
    "ufunc reduce": lambda v: np.add.reduce(v),
    "ufunc outer": lambda v: np.multiply.outer(v, v),
    "operators": lambda v: -((v + 1) * (2 - v) / (v + 3) // 1 % 5) ** 2 + abs(v) - (+v),
    "comparisons": lambda v: (v < 2) | (v >= 3) & (v != 1) ^ (v == 2) | ~(v <= 1) | (v > 4),
    "reflected": lambda v: 2.0 + v - (3.0 * v) / (1.0 + v) ** 2,
    "matmul": lambda v: v @ v + np.ones(4) @ v + v @ np.eye(4) @ v,
    "array and variable": lambda v: np.ones(4) * v - np.ones((2, 4)) / (v + 1),
    "concatenate": lambda v: np.concatenate([v, v * 2, np.zeros(1)]),
    "stack": lambda v: np.stack([v, v], axis=1),
    "where": lambda v: np.where(v > 1, v, 0.0),
    "dot": lambda v: np.dot(v, v) + np.sum(v) + np.mean(v, keepdims=True),
    "norm": lambda v: np.linalg.norm(v),
    "methods": lambda v: v.sum() + v.reshape(2, 2).T.max(axis=0) + v.astype(np.float32).mean(),
    "indexing": lambda v: v[1] + v[-1] + v[1:3].sum() + v[::-1] + v[[0, 1]].sum() + v[v > 1].sum(),
    "index by variable": lambda v: np.arange(10.0)[v.astype(np.int64)],
    "iteration": lambda v: [x * 2 for x in v],
    "unpacking": lambda v: (lambda a, b, c, d: a - b + c * d)(*v),
    "divmod": lambda v: divmod(v, 2.0)[0] + divmod(7.0, v + 1)[1],
    "attributes": lambda v: np.zeros(v.shape, v.dtype) + v.ndim + v.size + len(v),
    "value": lambda v: v.value * 2,
    "read": lambda v: v.read() * 2,
    "asarray": lambda v: np.asarray(v) + np.array(v),
    "dsl.numpy": lambda v: dsl.numpy.tanh(v),
    "einsum": lambda v: np.einsum("i,j->ij", v, v),
    "clip": lambda v: np.clip(v, 1.0, 2.0),
    "sort": lambda v: np.sort(-v),
}  # fmt: skip


def as_user(result: Any) -> Any:
    return [np.asarray(x) for x in result] if isinstance(result, list) else np.asarray(result)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("how", ["eager", "jit"])
def test_a_variable_is_used_as_an_array_is(use: Write, how: str) -> None:
    class Plain(np.ndarray):
        """An array with the methods of a variable."""

        value = property(lambda self: np.asarray(self))

        def read(self) -> np.ndarray:
            return np.array(self)

    array = np.arange(4.0)
    expected = as_user(use(array.view(Plain)))
    variable = dsl.Variable(array)
    found = as_user(use(variable) if how == "eager" else dsl.jit(lambda: use(variable))())
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    "name", [k for k in USES if k not in ("index by variable", "attributes", "asarray")]
)
def test_in_a_graph_it_is_a_tensor(name: str) -> None:
    with dsl.Graph() as graph:
        variable = dsl.Variable(np.arange(4.0))
        result = USES[name](variable)
    expected = USES[name](dsl.Variable(np.arange(4.0)))
    np.testing.assert_allclose(dsl.Session(graph).run(result), expected, rtol=1e-12)


def test_a_graph_does_not_take_the_present_contents_for_a_constant() -> None:
    with dsl.Graph():
        variable = dsl.Variable(np.arange(4.0))
        with pytest.raises(NonConcreteError, match="known only when a session runs the graph"):
            np.asarray(variable)


# --- In compiled functions ------------------------------------------------------------------------------------------------


def test_reads_and_writes_are_in_program_order(backend: str) -> None:
    v = dsl.Variable(1.0)

    @dsl.jit
    def f(x: Any) -> Any:
        before = v.read()
        v.assign(x)
        between = v * 1.0
        v.assign_add(before)
        return before, between, v.read(), v.assign_sub(1.0)

    assert [float(x) for x in f(10.0)] == [1.0, 10.0, 11.0, 10.0]
    assert [float(x) for x in f(5.0)] == [10.0, 5.0, 15.0, 14.0]
    assert v.value == 14.0


def test_writes_in_branches_and_loops(backend: str) -> None:
    count, table = dsl.Variable(0), dsl.Variable(np.zeros(4))

    def f(n: Any) -> Any:
        for i in range(n):
            if i % 2 == 0:
                count.assign_add(1)
            else:
                count.assign_sub(3)
            table.scatter_add([i % 4], [1.0])
            table[0] = table[0] * 2
        while count < 100:
            count.assign_add(10)
            if count > 50:
                break
        return count * 1

    results = [int(dsl.jit(f)(n)) for n in (5, 0, 7)]
    state = count.numpy(), table.numpy()
    count.assign(0)
    table.assign(0.0)
    assert results == [int(f(n)) for n in (5, 0, 7)]
    assert state[0] == count.value
    assert state[1].tolist() == table.value.tolist()


def test_two_variables_change_places(backend: str) -> None:
    for shape in ((), (3,), (100,)):
        a, b = dsl.Variable(np.ones(shape)), dsl.Variable(np.zeros(shape))

        @dsl.jit
        def swap(a: Any = a, b: Any = b) -> None:
            held = a.read()
            a.assign(b)
            b.assign(held)

        swap()
        assert (a.value.sum(), b.value.sum()) == (0, np.ones(shape).sum())


def test_a_variable_may_be_an_argument_an_attribute_or_in_a_list() -> None:
    class Layer:
        def __init__(self, start: float) -> None:
            self.w = dsl.Variable(start)

        @dsl.jit
        def __call__(self, x: Any) -> Any:
            self.w.assign_add(x)
            return self.w * 2

    one, two = Layer(1.0), Layer(2.0)
    assert (one(1.0), two(1.0), one(0.0)) == (4.0, 6.0, 4.0)
    one.w = dsl.Variable(10.0)
    assert one(0.0) == 20.0

    @dsl.jit
    def bump(v: Any, tree: Any) -> Any:
        v.assign_add(1.0)
        return v + tree["w"][0]

    assert bump(one.w, {"w": [two.w]}) == 14.0
    assert bump(two.w, {"w": [one.w]}) == 4.0 + 11.0
    held = [dsl.Variable(k * 1.0) for k in range(3)]

    @dsl.jit
    def total() -> Any:
        for v in held:
            v.assign_add(1.0)
        return sum(held)

    assert (total(), total()) == (6.0, 9.0)


def test_what_a_function_returns_of_one() -> None:
    v = dsl.Variable(np.ones(3))
    assert dsl.jit(lambda: v)() is v
    assert np.shares_memory(dsl.jit(lambda: v.value)(), v.value)
    assert not np.shares_memory(dsl.jit(lambda: v.read())(), v.value)
    assert not np.shares_memory(dsl.jit(lambda: v.assign_add(1.0))(), v.value)


def test_updates_in_place_are_in_place() -> None:
    v = dsl.Variable(np.zeros(1000))

    @dsl.jit
    def step(x: Any) -> None:
        v.assign_add(x)
        v.scatter_add([0, 1], 1.0)

    step(np.ones(1000))
    assert v.value[:3].tolist() == [2, 2, 1]
    report = str(step.lower(np.ones(1000)).memory_report())
    assert "  scatter  " in report.partition("in place:")[2]


def test_vmap_reads_and_does_not_write_one() -> None:
    v = dsl.Variable(2.0)
    assert dsl.vmap(lambda x: x * v)(np.arange(3.0)).tolist() == [0, 2, 4]
    with pytest.raises(AliasError, match="vmap"):
        dsl.vmap(lambda x: v.assign_add(x))(np.arange(3.0))


def test_without_compiling_the_meaning_is_the_same() -> None:
    v = dsl.Variable(1.0)

    @dsl.jit
    def f(x: Any) -> Any:
        v.assign_add(x)
        return v * 2

    with dsl.config.override(disable_jit=True):
        assert f(2.0) == 6.0
    assert f(1.0) == 8.0


# --- Gradients -------------------------------------------------------------------------------------------------------------


def test_grad_of_a_function_that_reads_variables(backend: str) -> None:
    w = dsl.Variable(np.array([1.0, 2.0]))

    def loss(x: Any) -> Any:
        return (w * x * x).sum()

    slope = dsl.grad(loss)
    assert slope(np.array([3.0, 4.0])).tolist() == [6, 16]
    w.assign(0.5)
    assert slope(np.array([3.0, 4.0])).tolist() == [3, 4]
    assert dsl.jit(slope)(np.array([3.0, 4.0])).tolist() == [3, 4]


def test_grad_of_a_function_that_writes_one_writes_it_once(backend: str) -> None:
    w = dsl.Variable(2.0)

    def loss(x: Any) -> Any:
        w.assign_add(1.0)
        return w * x * x

    assert dsl.grad(loss)(3.0) == 18.0
    assert w.value == 3.0
    assert dsl.jit(dsl.value_and_grad(loss))(3.0) == (36.0, 24.0)
    assert w.value == 4.0


def test_gradients_with_respect_to_variables_in_a_function(backend: str) -> None:
    w, b, unused = dsl.Variable(np.array([1.0, 2.0])), dsl.Variable(0.5), dsl.Variable(np.ones(3))

    @dsl.jit
    def train(x: Any) -> Any:
        loss = ((w * x + b) ** 2).sum()
        grads = dsl.gradients(loss, [w, b, unused, x])
        w.assign_sub(0.1 * grads[0])
        return loss, grads

    x = np.array([1.0, -1.0])
    loss, (dw, db, nothing, dx) = train(x)
    r = np.array([1.0, 2.0]) * x + 0.5
    np.testing.assert_allclose(loss, (r**2).sum())
    np.testing.assert_allclose(dw, 2 * r * x)
    np.testing.assert_allclose(db, 2 * r.sum())
    np.testing.assert_allclose(dx, 2 * r * [1.0, 2.0])
    assert nothing.tolist() == [0, 0, 0]
    np.testing.assert_allclose(w.value, [1.0, 2.0] - 0.1 * dw)


def test_gradients_are_of_what_was_read_not_of_what_came_later(backend: str) -> None:
    w = dsl.Variable(3.0)

    @dsl.jit
    def f() -> Any:
        loss = w * w
        w.assign(0.0)
        (of_loss,) = dsl.gradients(loss, [w])
        w.assign(5.0)
        both = loss + w * w
        (of_both,) = dsl.gradients(both, [w])
        return of_loss, of_both

    assert f() == (6.0, 16.0)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_gradients_through_loops(trips: int, backend: str) -> None:
    w = dsl.Variable(1.5)

    @dsl.jit
    def f(n: Any) -> Any:
        y = 1.0
        for _ in range(n):
            y = y * w
        return dsl.gradients(y, [w])[0]

    @dsl.jit
    def inside(n: Any) -> Any:
        total = 0.0
        for _ in range(n):
            total = total + dsl.gradients(w * w, [w])[0]
            w.assign_add(1.0)
        return total

    np.testing.assert_allclose(f(trips), trips * 1.5 ** (trips - 1) if trips else 0.0)
    np.testing.assert_allclose(inside(trips), sum(2 * (1.5 + k) for k in range(trips)))


def test_gradients_with_respect_to_variables_in_a_graph(backend: str) -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(np.float64, (2,), name="x")
        n = dsl.placeholder(np.int64, name="n")
        w, unused = dsl.Variable(np.array([1.0, 2.0])), dsl.Variable(np.ones(3))
        y = dsl.fori_loop(0, n, lambda i, y: y * w, x)
        dw, zeros, dx = dsl.gradients(y.sum(), [w, unused, x])
    with dsl.Session(graph) as session:
        found = session.run([dw, zeros, dx], {x: [3.0, 4.0], n: 3})
        np.testing.assert_allclose(found[0], 3 * np.array([3.0, 4.0]) * [1.0, 4.0])
        assert found[1].tolist() == [0, 0, 0]
        np.testing.assert_allclose(found[2], [1.0, 8.0])
        assert session.run(dw, {x: [3.0, 4.0], n: 0}).tolist() == [0, 0]


def test_what_gradients_refuse() -> None:
    w, count = dsl.Variable(1.0), dsl.Variable(1)
    with pytest.raises(UnsupportedError, match="of tensors in a graph or in a compiled function"):
        dsl.gradients(1.0, [w])
    with dsl.Graph():
        with pytest.raises(GradientError, match="xs must be floating-point or complex"):
            dsl.gradients(w * count, [count])
        with pytest.raises(GradientError, match="1 ys and 2 grad_ys"):
            dsl.gradients(w * 2, [w], [1.0, 2.0])
        with pytest.raises(GradientError, match=r"a grad_y of f64\[3\] for a y of f64\[\]"):
            dsl.gradients(w * 2, [w], [np.ones(3)])
        n = dsl.placeholder(np.int64)
        y = dsl.fori_loop(0, n, lambda i, y: y * w.assign_add(1.0), w * 1.0)
        with pytest.raises(GradientError, match="cannot be differentiated here"):
            dsl.gradients(y, [w])


# --- Checkpoints -----------------------------------------------------------------------------------------------------------


def test_saved_and_restored_in_place(tmp_path: Path) -> None:
    w, b = dsl.Variable(np.arange(3.0), name="w"), dsl.Variable(np.float32(2.0), name="b")
    path = tmp_path / "model.safetensors"
    dsl.save(path, {"w": w, "b": b})
    memory = w.value
    w.assign(0.0)
    b.assign(0.0)
    tree = dsl.restore(path, {"w": w, "b": b})
    assert tree["w"] is w
    assert (w.value.tolist(), float(b)) == ([0, 1, 2], 2.0)
    assert w.value is memory
    assert dsl.restore(path)["w"].tolist() == [0, 1, 2]
    with pytest.raises(DslError, match="wrong shape"):
        dsl.restore(path, {"w": dsl.Variable(np.zeros(4)), "b": b})


# --- Threads ----------------------------------------------------------------------------------------------------------------

TIMES = 200


@pytest.mark.parametrize("how", ["eager", "jit", "session", "callable", "mixed"])
def test_no_update_is_lost(how: str, backend: str) -> None:
    total, rows = dsl.Variable(np.zeros(64)), dsl.Variable(np.zeros((4, 2)))

    def eager(k: int) -> None:
        total.assign_add(1.0)
        rows.scatter_add([k % 4], 1.0)

    @dsl.jit
    def compiled(k: Any) -> None:
        total.assign(total + 1.0)
        rows.scatter_add(np.array([k % 4]), 1.0)

    with dsl.Graph() as graph:
        k = dsl.placeholder(np.int64)
        done = dsl.group(total.assign(total + 1.0), rows.scatter_add((k % 4).reshape(1), 1.0))
    session = dsl.Session(graph)
    step = session.make_callable(done, [k])
    ways: dict[str, Callable[[int], object]] = {
        "eager": eager, "jit": compiled, "session": lambda n: session.run(done, {k: n}), "callable": step,
    }  # fmt: skip
    chosen = list(ways.values()) if how == "mixed" else [ways[how]]

    def work(thread: int) -> None:
        for n in range(TIMES):
            chosen[(thread + n) % len(chosen)](n)

    in_threads(8, work)
    assert total.value.tolist() == [8 * TIMES] * 64
    assert rows.value.tolist() == [[2 * TIMES] * 2] * 4


def test_no_reader_sees_a_part_of_a_write(backend: str) -> None:
    v = dsl.Variable(np.zeros(20_000))
    with dsl.Graph() as graph:
        spread = v.read().max() - v.read().min()
        bump = v.assign_add(1.0)
    session, over = dsl.Session(graph), threading.Event()
    compiled = dsl.jit(lambda: v.max() - v.min())
    assert session.run(spread) == compiled() == 0

    def work(k: int) -> None:
        if k == 0:
            for _ in range(100):
                v.assign_add(1.0)
                session.run(bump)
            over.set()
        while not over.is_set():
            copied = v.read()
            assert copied.min() == copied.max()
            assert session.run(spread) == 0
            assert compiled() == 0

    in_threads(3, work)


def test_a_snapshot_does_not_change_while_the_variable_does() -> None:
    v = dsl.Variable(np.zeros(3))
    with dsl.Graph() as graph:
        first = v.read()
        later = v.assign_add(1.0)
        pair = np.stack([first, later])
    with dsl.Session(graph) as session:
        held = session.run(v)
        assert session.run(pair).tolist() == [[0, 0, 0], [1, 1, 1]]
        assert held.tolist() == [0, 0, 0]
        held[...] = 9
        assert v.value.tolist() == [1, 1, 1]


# --- Claims -----------------------------------------------------------------------------------------------------------------


def waiting(count: int) -> None:
    """Return once that many claims wait."""
    from dsl.runtime import claims

    end = time.monotonic() + LIMIT
    while len(claims._turns.waiting) != count:
        assert time.monotonic() < end
        time.sleep(0.001)


def taking(claim: Claim, log: list[str], name: str) -> threading.Thread:
    def take() -> None:
        with claim:
            log.append(name)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread


def test_readers_share_and_a_writer_is_alone() -> None:
    x, log = Claimable(), []
    read, write = Claim([x]), Claim([], [x])
    with read, read:
        writer = taking(write, log, "writer")
        waiting(1)
        assert not log
    writer.join(LIMIT)
    assert log == ["writer"]


def test_a_writer_that_waits_is_not_overtaken_by_readers() -> None:
    x, log = Claimable(), []
    with Claim([x]):
        writer = taking(Claim([], [x]), log, "writer")
        waiting(1)
        reader = taking(Claim([x]), log, "reader")
        waiting(2)
        assert not log
    writer.join(LIMIT)
    reader.join(LIMIT)
    assert log == ["writer", "reader"]


def test_claims_that_have_nothing_in_common_do_not_wait() -> None:
    x, y, log = Claimable(), Claimable(), []
    with Claim([], [x]):
        blocked = taking(Claim([x], [y]), log, "blocked")
        waiting(1)
        z = Claimable()
        free = taking(Claim([], [z]), log, "free")
        free.join(LIMIT)
        assert log == ["free"]
    blocked.join(LIMIT)


def test_claims_of_several_in_any_order_do_not_deadlock() -> None:
    items = [Claimable() for _ in range(4)]
    counts = [0] * 4

    def work(k: int) -> None:
        claim = Claim([items[(k + 2) % 4]], [items[k % 4], items[(k + 1) % 4]])
        for _ in range(300):
            with claim:
                for n in (k % 4, (k + 1) % 4):
                    counts[n] += 1

    in_threads(8, work)
    assert counts == [8 * 300 * 2 // 4] * 4


def test_a_claim_is_given_back_when_its_code_raises() -> None:
    x = Claimable()
    with pytest.raises(ZeroDivisionError), Claim([], [x]):
        _ = 1 / 0
    with Claim([], [x]):
        assert x.written
    assert (x.readers, x.written) == (0, False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_not_kept_waiting_by_threads_that_it_does_not_have() -> None:
    v, held, release = dsl.Variable(np.ones(3)), threading.Event(), threading.Event()

    def hold() -> None:
        with Claim([], [v]):
            held.set()
            release.wait(LIMIT)

    def add_twice() -> bool:
        signal.alarm(int(LIMIT))  # a child that hangs is killed, and the test fails
        v.assign_add(1.0)
        v.assign_add(1.0)
        return v.read().tolist() == [3, 3, 3]

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(LIMIT)
    code = exit_code_of_child(add_twice)
    release.set()
    thread.join(LIMIT)
    assert code == 0
    assert v.read().tolist() == [1, 1, 1]


# -- in transforms ---------------------------------------------------------------------------------------------------


def _square(x: Any) -> Any:
    return (x * x).sum()


@dsl.custom_vjp
def _with_vjp(x: Any) -> Any:
    return _square(x)


_with_vjp.defvjp(lambda x: (_square(x), x), lambda x, g: (2.0 * g * x,))


@dsl.custom_jvp
def _with_jvp(x: Any) -> Any:
    return _square(x)


_with_jvp.defjvp(lambda p, t: (_square(p[0]), 2.0 * (p[0] * t[0]).sum()))

DOUBLES: dict[str, Callable[[Any], Any]] = {  # each is twice what the variable holds
    "grad": lambda v: dsl.grad(_square)(v),
    "value_and_grad": lambda v: dsl.value_and_grad(lambda p: _square(p["w"]))({"w": v})[1]["w"],
    "vjp": lambda v: dsl.vjp(_square, v)[1](1.0)[0],
    "jvp": lambda v: dsl.jvp(lambda x: x * x, (v,), (np.ones(3),))[1],
    "a tangent": lambda v: dsl.jvp(lambda x: 2.0 * x, (np.ones(3),), (v,))[1],
    "jacrev": lambda v: dsl.jacrev(lambda x: x * x)(v).sum(0),
    "hessian": lambda v: dsl.hessian(lambda x: (x**3).sum())(v).sum(0) / 3.0,
    "vmap": lambda v: dsl.vmap(lambda x: 2.0 * x)(v),
    "vmap of what reads it": lambda v: dsl.vmap(lambda x: x * v)(np.full(2, 2.0))[0],
    "custom_vjp": lambda v: dsl.grad(_with_vjp)(v),
    "custom_jvp": lambda v: dsl.grad(_with_jvp)(v),
    "checkpoint": lambda v: dsl.checkpoint(lambda x: 2.0 * x)(v),
}


@pytest.mark.parametrize("double", DOUBLES.values(), ids=DOUBLES)
def test_a_variable_as_an_argument_of_a_transform_is_what_it_holds(double: Any) -> None:
    v = dsl.Variable(np.ones(3))
    with dsl.Graph() as graph:
        made = double(v)
    session, compiled = dsl.Session(graph), dsl.jit(lambda: double(v))
    for value in (1.0, 3.0):
        v.assign(value)
        for found in (double(v), compiled(), session.run(made)):
            np.testing.assert_allclose(found, np.full(3, 2.0 * value))


LOSSES: dict[str, Callable[[Any], Any]] = {  # each is the sum of the squares
    "an argument of checkpoint": lambda v: dsl.checkpoint(_square)(v),
    "read in checkpoint": lambda v: dsl.checkpoint(lambda x: x * _square(v))(1.0),
    "read in a loop in checkpoint": lambda v: dsl.checkpoint(
        lambda x: dsl.fori_loop(0, 2, lambda i, s: s + x * _square(v), 0.0)
    )(0.5),
    "custom_vjp": _with_vjp,
    "custom_jvp": _with_jvp,
    "read in vmap": lambda v: dsl.vmap(lambda x: x * _square(v))(np.array([0.25, 0.75])).sum(),
    "read in grad": lambda v: dsl.grad(lambda x: x * _square(v))(1.0),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_derivatives_reach_variables_through_transforms(loss: Any) -> None:
    v = dsl.Variable(np.array([1.0, 2.0]))
    with dsl.Graph() as graph:
        value = loss(v)
        slopes = dsl.gradients(value, [v])
        train = dsl.optim.SGD(0.25).minimize(value)

    @dsl.jit
    def compiled() -> Any:
        value = loss(v)
        return value, dsl.gradients(value, [v])[0]

    for found in (dsl.Session(graph).run((value, slopes[0])), compiled()):
        assert found[0] == 5.0
        assert found[1].tolist() == [2.0, 4.0]
    dsl.Session(graph).run(train)
    assert v.value.tolist() == [0.5, 1.0]


def test_no_derivative_goes_through_stop_gradient_of_a_variable() -> None:
    v = dsl.Variable(3.0)
    with dsl.Graph() as graph:
        slopes = dsl.gradients(v * dsl.stop_gradient(v), [v])
    assert dsl.Session(graph).run(slopes) == [3.0]
    assert dsl.jit(lambda: dsl.gradients(v * dsl.stop_gradient(v), [v])[0])() == 3.0
