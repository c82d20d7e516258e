"""Derivatives through loops whose arrays change their size from trip to trip: they grow, shrink, and go with the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_autodiff import check_modes_and_orders, differences, dot

import dsl
import dsl.codegen.cpu.native
from dsl.autodiff.recording import spell_out
from dsl.config import config
from dsl.ir.interpret import interpret
from dsl.ir.text import parse
from dsl.ir.verify import verify


@pytest.fixture(params=("native", "interpreter"))
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.override(backend=request.param):
        yield request.param


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly() -> Iterator[None]:
    """Leave out LLVM's optimisations, which are not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dsl.codegen.cpu.native, "LEVEL", 0)
        yield


# -- programs -----------------------------------------------------------------------------------------------------


def shrinks(v):
    """A tree of options: each level has one value less. How many the first has is not known while tracing."""
    v = v[v > 0.0]
    while v.size > 1:
        v = 1.1 * np.sin(v[1:]) * np.exp(0.3 * v[:-1])
    return v[0]


def shrinks_by_count(v):
    for _ in range(v.size - 1):
        v = np.cos(v[1:]) * v[:-1]
    return v[0]


def grows(x):
    v = np.array([x, 0.5 * x])
    for _ in range(4):
        v = np.concatenate((np.sin(v), v[:1] * v[-1:]))
    return np.sum(v * v)


def grows_by_the_trip_number(x):
    """Nothing but the number of a trip decides how long its array is."""
    total = 0.0
    for i in range(4):
        w = np.sin(x * np.arange(i + 1.0))
        for _ in range(2):
            w = np.exp(-w) * w
        total = total + np.sum(w * np.cos(w))
    return total


def grows_while_small(x):
    v = np.array([x])
    while np.sum(v * v) < 3.0:
        v = np.concatenate((v, np.cos(v[-1:]) * x))
    return np.sum(v**3)


def doubles_in_two_dimensions(x):
    m = np.outer(x, x)
    for _ in range(2):
        m = np.concatenate((np.tanh(m), m * m), axis=1)
    return np.sum(m * np.sin(m))


def grows_in_both_dimensions(x):
    m = np.outer(x, x)
    for _ in range(2):
        wide = np.concatenate((m, np.sin(m)), axis=1)
        m = np.concatenate((wide, wide[:1] * wide[-1:]), axis=0)
    return np.sum(m * m)


def goes_with_the_data(x):
    total = 0.0
    while x.size > 0:
        x = 0.9 * np.sin(x[x > 0.25])
        total = total + np.sum(x**3)
    return total


def indices_go_with_the_data(x):
    """What is kept are integers too: where the values came from."""
    places, left = np.arange(x.size), x * 1.0
    out = np.zeros(x.size)
    for i in range(6):
        left = left * left + 0.5 * x[places]
        done = np.abs(left) > 1.0
        out[places[done]] = left[done] * (i + 1.0)
        places, left = places[~done], left[~done]
    return np.sum(out * out)


def grows_or_shrinks(x):
    v = np.array([x, 1.0 + x])
    for i in range(5):
        v = np.concatenate((v, np.sin(v))) if i % 2 == 0 else np.exp(0.1 * v[1:])
    return np.sum(v**3)


def nested(x):
    """The inner loop makes shorter what the outer one has made longer."""
    v, total = np.array([x, 1.0 + x]), 0.0
    for i in range(3):
        w = v
        for _ in range(i + 1):
            w = np.sin(w[:-1]) * w[1:]
        total = total + np.sum(w)
        v = np.concatenate((v, np.cos(v[:1] + total)))
    return total + np.sum(v * v)


def a_list_that_grows(x):
    items = [x]
    for _ in range(4):
        items.append(np.sin(items[-1]) * items[0])
    return np.prod(np.array(items))


def complex_numbers(x):
    z = np.array([x + 1j * x * x])
    for _ in range(3):
        z = np.concatenate((z * z, np.exp(1j * z)))
    return np.sum(np.abs(z))


def never_runs(x):
    v = np.array([x, 2.0 * x])
    for _ in range(np.array(0)):
        v = np.concatenate((v, np.exp(v[:1])))
    return np.sum(v * v)


def broadcast_by_the_first_trip(x):
    """Each trip makes an array of a size that is known, out of one that may have another."""
    v = x[:1]
    for i in range(3):
        v = v * x + np.sin(x[i])
    return np.sum(v * v)


def chebyshev_series(x):
    return np.sum(np.polynomial.chebyshev.chebval(np.sin(x), x * x))


def of_the_size_of_another(x):
    v, w = x[:2], x[1:]
    for _ in range(3):
        v, w = x * np.sum(v), np.cos(v)
    return np.sum(v) + np.sum(w * w)


def settles_at_a_size(x):
    v = x[-1:]
    while np.sum(v) < 4.0:
        v = np.exp(v[0] * x)
    return np.sum(v)


SOME = np.array([0.7, 0.4, 0.9, 0.3, 0.6])
CASES: list[tuple[Any, Any]] = [
    (shrinks, SOME),
    (shrinks_by_count, SOME),
    (grows, 0.7),
    (grows_by_the_trip_number, 0.3),
    (grows_while_small, 0.8),
    (doubles_in_two_dimensions, SOME[:2]),
    (grows_in_both_dimensions, SOME[:2]),
    (goes_with_the_data, SOME),
    (indices_go_with_the_data, SOME),
    (grows_or_shrinks, 0.5),
    (nested, 0.6),
    (a_list_that_grows, 0.9),
    (complex_numbers, 0.3),
    (never_runs, 0.4),
    (broadcast_by_the_first_trip, SOME),
    (chebyshev_series, SOME),
    (of_the_size_of_another, SOME),
    (settles_at_a_size, SOME),
]


@pytest.mark.parametrize(("function", "x"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_both_modes_and_orders(function: Any, x: Any, backend: str) -> None:
    check_modes_and_orders(function, x)


@pytest.mark.parametrize("policy", ["nothing", "states"])
@pytest.mark.parametrize(
    "function", [shrinks, shrinks_by_count, goes_with_the_data, broadcast_by_the_first_trip]
)
def test_checkpoint(function: Any, policy: str) -> None:
    kept = dsl.checkpoint(function, policy=policy)
    np.testing.assert_allclose(dsl.grad(kept)(SOME), dsl.grad(function)(SOME), rtol=1e-13)
    bend = dsl.hessian(function)(SOME)
    np.testing.assert_allclose(dsl.hessian(kept)(SOME), bend, rtol=1e-11, atol=1e-13)


def test_checkpoint_keeps_some_states_only() -> None:
    slope = dsl.grad(dsl.checkpoint(shrinks_by_count))
    traced = slope.lower(SOME).text("traced", locations=False)
    assert traced.count("= recording_scan(") == 2  # over segments, and over the trips of one
    assert traced.count("= checkpoint(") == 2  # forward, and again going back


@pytest.mark.parametrize(
    "function", [shrinks_by_count, goes_with_the_data, broadcast_by_the_first_trip]
)
def test_vmap(function: Any) -> None:
    rows = np.stack([SOME, SOME[::-1], 1.1 * SOME])
    expected = np.stack([dsl.grad(function)(row) for row in rows])
    np.testing.assert_allclose(dsl.vmap(dsl.grad(function))(rows), expected, rtol=1e-13)
    total = dsl.grad(lambda m: np.sum(dsl.vmap(function)(m)))
    np.testing.assert_allclose(total(rows), expected, rtol=1e-13)


def test_gradient_of_a_batch_of_gradients() -> None:
    def length(m):
        return np.sum(dsl.vmap(dsl.grad(shrinks_by_count))(m) ** 2)

    rows = np.stack([SOME, SOME[::-1]])
    v = np.cos(np.arange(10.0)).reshape(2, 5)
    slope = differences(dsl.jit(length), rows, v)
    np.testing.assert_allclose(dot(dsl.grad(length)(rows), v), slope, rtol=1e-6)


def test_third_order() -> None:
    second, third = dsl.grad(dsl.grad(grows)), dsl.grad(dsl.grad(dsl.grad(grows)))
    np.testing.assert_allclose(third(0.7), differences(second, 0.7, 1.0), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 40, 150])
def test_any_number_of_trips_and_sizes(size: int, backend: str) -> None:
    """What is kept of 149 trips, 11175 numbers, outgrows its first room several times."""

    def halved(v):
        for _ in range(v.size - 1):
            v = 0.5 * (v[1:] + v[:-1]) + 0.1 * np.sin(v[1:]) ** 2
        return v[0]

    x, v = np.cos(np.arange(float(size))), np.sin(1.0 + np.arange(float(size)))
    slope = differences(halved, x, v)
    np.testing.assert_allclose(dot(dsl.grad(halved)(x), v), slope, rtol=1e-6)


def test_a_trip_that_needs_more_than_twice_the_room(backend: str) -> None:
    def leaps(x):
        v = np.array([x])
        for i in range(3):
            v = np.sin(v[:1]) * np.ones(v.size * 20 + i)
        return np.sum(v * v)

    np.testing.assert_allclose(dsl.grad(leaps)(0.7), differences(leaps, 0.7, 1.0), rtol=1e-6)


def test_arrays_without_elements(backend: str) -> None:
    def empties(x):
        v, total = np.array([x, x * x]), 0.0
        for _ in range(4):
            v = np.sin(v[1:])
            total = total + np.sum(v * v)
        return total

    np.testing.assert_allclose(dsl.grad(empties)(0.7), differences(empties, 0.7, 1.0), rtol=1e-6)


def test_no_trips_that_are_known_while_tracing() -> None:
    def none(x, n):
        for _ in range(n):
            x = np.exp(x) * x
        return x * x

    assert dsl.jvp(lambda x: dsl.grad(none)(x, 0), (0.4,), (1.0,)) == (0.8, 2.0)


# -- recorded loops -----------------------------------------------------------------------------------------------

JOINED = """
graph @joined(%n: i64[], %x: f64[3]) -> (f64[3], f64[total], i64[n]) {
  %0, %1, %2 = recording_scan(%n, %x) {carried=1} : f64[3], f64[total], i64[n] {
    @body(%trip: i64[], %x: f64[3]) -> (f64[3], f64[trip], i64[]) {
      %0 = sin(%x) : f64[3]
      %1 = iota(; trip=%trip) {dtype=f64, size=trip} : f64[trip]
      %2 = sum(%x) {axes=(0,)} : f64[]
      %3 = multiply(%1, %2) : f64[trip]
      return %0, %3, %trip
    }
  }
  return %0, %1, %2
}
"""


@pytest.mark.parametrize("trips", [0, 1, 4, 30])
def test_joined_values_when_interpreted_and_spelled_out(trips: int) -> None:
    graph = parse(JOINED)
    verify(graph)
    args = [np.int64(trips), np.array([0.1, 0.2, 0.3])]
    last, joined, numbers = interpret(graph, args)
    assert joined.shape == (trips * (trips - 1) // 2,)
    np.testing.assert_array_equal(numbers, np.arange(trips))
    spelled = spell_out(graph)
    verify(spelled)
    assert "recording" not in spelled.text
    for mine, other in zip((last, joined, numbers), interpret(spelled, args), strict=True):
        np.testing.assert_array_equal(mine, other)
