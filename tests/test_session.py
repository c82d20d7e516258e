"""Graphs and sessions: feeds, fetches, pruning, order of effects, partial runs, cancelling, mistakes, introductory programs, threads.

What waits is tested with both backends: the compiled token executor and its oracle.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from concurrently import LIMIT, SECONDS, Call

import dsl
from dsl.errors import (
    CancelledError,
    DeadlineError,
    DslError,
    FeedError,
    GradientError,
    LeakError,
    NonConcreteError,
    OutOfRangeError,
    ParseError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    VerifyError,
)

F8, I8 = np.float64, np.int64


@pytest.fixture(params=["native", "interpreter"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with dsl.config.override(backend=request.param):
        yield request.param


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def waits(queue: Any, takes: int = 0, puts: int = 0) -> None:
    """Return once that many attempts wait in the lines of a queue."""
    until(lambda: (len(queue._core._takes), len(queue._core._puts)) == (takes, puts))


# --- Feeds and fetches -----------------------------------------------------------------------------------------------------


def test_any_structure_of_fetches() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, name="x")
        y, z = x + 1, x * 2
        done = dsl.group(dsl.Variable(0.0).assign(x), name="done")
    with dsl.Session(graph) as session:
        assert session.run(y, {x: 1.0}) == 2.0
        assert session.run([y, z, y], {x: 1.0}) == [2.0, 2.0, 2.0]
        assert session.run({"a": (y, [z]), "b": done}, {x: 3.0}) == {"a": (4.0, [6.0]), "b": None}
        assert session.run(done, {x: 1.0}) is None
        assert session.run("done", {"x": 1.0}) is None
        assert session.run(y, {"x:0": 1.0}) == 2.0


def test_results_are_numpy_arrays_of_their_own() -> None:
    constant = np.arange(100.0)
    with dsl.Graph() as graph:
        x = dsl.placeholder(np.float32, (None,), name="x")
        number, same = x.sum(), dsl.numpy.asarray(constant) * 1
        held = dsl.numpy.asarray(constant)
    with dsl.Session(graph) as session:
        assert type(session.run(number, {x: [1, 2]})) is np.float32
        first = session.run([same, held])
        first[0][:] = first[1][:] = -1
        assert session.run(same)[1] == session.run(held)[1] == 1.0
    constant[:] = 0
    assert (
        dsl.Session(graph).run(held)[1] == 1.0
    )  # a graph keeps the numbers that it was built with


@pytest.mark.parametrize("rows", [5, 2, 1, 0])
def test_a_size_that_is_not_known_may_be_any(rows: int, backend: str) -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (None, 3), name="x")
        y = dsl.placeholder(F8, (None,), name="y")
        outputs = [
            x.sum(axis=0),
            x * 2 + 1,
            x.sum(),
            (x.T * y).sum(axis=0),
            np.concatenate([x, x]).sum(1),
        ]
    a, b = np.arange(rows * 3.0).reshape(rows, 3), np.arange(rows * 1.0)
    expected = [
        a.sum(axis=0),
        a * 2 + 1,
        a.sum(),
        (a.T * b).sum(axis=0),
        np.concatenate([a, a]).sum(1),
    ]
    for found, wanted in zip(dsl.Session(graph).run(outputs, {x: a, y: b}), expected, strict=True):
        np.testing.assert_allclose(found, wanted)
        assert found.shape == np.shape(wanted)


def test_what_a_feed_may_be() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(np.float32, (2,), name="x")
        y = x * 1
    w = dsl.Variable(np.array([1.0, 2.0], np.float32))
    strided = np.arange(4, dtype=np.float32)[::2]
    frozen = np.array([1, 2], np.float32)
    frozen.flags.writeable = False
    swapped = np.array([1, 2], ">f4")
    with dsl.Session(graph) as session:
        for given in (
            [1, 2],
            (1.0, 2.0),
            np.array([1, 2]),
            np.array([1.0, 2.0]),
            w,
            frozen,
            swapped,
            [True, 2],
        ):
            assert session.run(y, {x: given}).tolist() == [1, 2]
        assert session.run(y, {x: strided}).tolist() == [0, 2]
        assert (
            session.run(y, {x: np.arange(8, dtype=np.float32).reshape(4, 2).T[0][:2]}).dtype
            == np.float32
        )


def test_one_array_for_two_feeds_and_the_memory_of_a_variable() -> None:
    with dsl.Graph() as graph:
        x, y = dsl.placeholder(F8, (3,)), dsl.placeholder(F8, (3,))
        w = dsl.Variable(np.ones(3))
        total, changed = x + 2 * y, w.assign_add(x)
    array = np.arange(3.0)
    with dsl.Session(graph) as session:
        assert session.run(total, {x: array, y: array}).tolist() == [0, 3, 6]
        assert session.make_callable(total, [x, y])(array, array).tolist() == [0, 3, 6]
        assert session.run(changed, {x: w.value}).tolist() == [2, 2, 2]
        assert session.run(changed, {x: w}).tolist() == [4, 4, 4]


def test_any_tensor_can_be_fed() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, name="x")
        y = x * 2
        z = y + 1
    with dsl.Session(graph) as session:
        assert session.run(z, {x: 1.0}) == 3.0
        assert session.run(z, {y: 10.0}) == 11.0  # and x need not be fed
        assert session.run(z, {y: 10.0, x: 5.0}) == 11.0


@pytest.mark.parametrize("devices", [1, 2])
def test_what_is_fed_can_be_fetched(devices: int, backend: str) -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (None,), name="x")
        y = x + 1.0
        passed, changed = dsl.fori_loop(0, 3, lambda i, c: (c[0], c[1] * 2.0), (x, y))
    array = np.ones(2)
    with dsl.Session(graph, devices=devices) as session:
        found = session.run([passed, changed, x, y], {x: array})
        assert [f.tolist() for f in found] == [[1, 1], [16, 16], [1, 1], [2, 2]]
        found[0][:] = 7.0
        assert array.tolist() == [1, 1]
        assert session.make_callable([y, changed], [y])([3.0])[0].tolist() == [3.0]


def test_one_of_several_outputs_can_be_fed() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (2, 2))
        q, r = np.linalg.qr(x)
        both = q.sum() + r.sum()
    with dsl.Session(graph) as session:
        eye = np.eye(2)
        whole = session.run(both, {x: eye})
        fed = session.run(both, {x: eye, r: np.full((2, 2), 10.0)})
        assert fed == pytest.approx(whole - np.linalg.qr(eye)[1].sum() + 40.0)


def test_the_order_of_feeds_and_fetches_makes_no_new_step() -> None:
    with dsl.Graph() as graph:
        x, y, z = (dsl.placeholder(F8, name=name) for name in "xyz")
        a, b = x - 2 * y, y - 3 * z
    with dsl.Session(graph) as session:
        values = {x: 1.0, y: 10.0, z: 100.0}
        for order in itertools.permutations(values):
            feeds = {key: values[key] for key in order}
            assert session.run([a, b], feeds) == [-19.0, -290.0]
            assert session.run((b, a), feeds) == (-290.0, -19.0)
            assert session.make_callable({"a": a, "b": b}, order)(*feeds.values())["a"] == -19.0
        assert session.misses == 1
        assert session.run(a, values) == -19.0
        assert session.misses == 2
        assert session.explain().splitlines() == [
            "graph: 2 steps",
            "  fed with x, y, z: one native program, 6 nodes",
            "  fed with x, y, z: one native program, 3 nodes",
        ]


def test_a_callable_takes_the_feeds_in_order() -> None:
    with dsl.Graph() as graph:
        x, y = dsl.placeholder(F8, (2,), name="x"), dsl.placeholder(F8, name="y")
        z, w = x * y, dsl.Variable(1.0)
    with dsl.Session(graph) as session:
        step = session.make_callable([z, w], [x, y])
        assert step([1, 2], 3.0)[0].tolist() == [3, 6]
        w.assign(5.0)
        assert step(np.array([1.0, 2.0]), 3)[1] == 5.0
        with pytest.raises(FeedError, match=r"this step takes 2 feeds \(x, y\), got 1"):
            step([1, 2])
        with pytest.raises(FeedError, match="'x' takes an array of dtype float64 and shape"):
            step([1, 2, 3], 1.0)
        assert session.make_callable(w)() == 5.0
    with pytest.raises(CancelledError, match="the session is closed"):
        step([1, 2], 3.0)


def test_a_session_may_be_used_while_the_graph_is_built() -> None:
    with dsl.Graph() as graph, dsl.Session(graph) as session:
        w = dsl.Variable(np.ones(3))
        y = w * 2
        assert session.run(y).tolist() == [2, 2, 2]
        z = y + w.assign_add(1.0)
        assert session.run(z).tolist() == [4, 4, 4]
        assert type(session.run(w)) is np.ndarray
    with graph:
        more = z.sum()
    assert dsl.Session(graph).run(more) == 21.0


# --- Pruning and order -------------------------------------------------------------------------------------------------------


def test_what_is_not_asked_for_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    @dsl.jit
    def show(x: Any) -> Any:
        print("x is", x)
        return x

    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, name="x")
        w = dsl.Variable(0.0)
        shown, written, plain = show(x), w.assign_add(x), x + 1
        failing = np.linalg.inv(x * np.zeros((2, 2)))
    with dsl.Session(graph) as session:
        assert session.run(plain, {x: 1.0}) == 2.0
        assert capsys.readouterr().out == ""
        assert w.value == 0.0
        assert session.run(shown, {x: 1.0}) == 1.0
        assert capsys.readouterr().out == "x is 1.0\n"
        assert session.run(written, {x: 1.0}) == w.value == 1.0
        with pytest.raises(np.linalg.LinAlgError):
            session.run(failing, {x: 1.0})
        assert session.run(plain, {x: 2.0}) == 3.0


def test_effects_happen_in_the_order_in_which_they_were_written(backend: str) -> None:
    with dsl.Graph() as graph:
        w = dsl.Variable(1.0)
        x = dsl.placeholder(F8, name="x")
        before, a, between, b, after = w.read(), w.assign(x), w.read(), w.assign_add(1.0), w.read()
    with dsl.Session(graph) as session:
        assert session.run([after, b, between, a, before], {x: 5.0}) == [6, 6, 5, 5, 1]
        assert session.run([after, before]) == [6.0, 6.0]
        assert session.run([after, b]) == [7.0, 7.0]
        assert session.run([w, a], {x: 2.0}) == [
            2.0,
            2.0,
        ]  # a variable is fetched as it is afterwards


def test_control_dependencies_order_and_pull_in(backend: str) -> None:
    with dsl.Graph() as graph:
        w, log = dsl.Variable(1.0, name="w"), dsl.Variable(np.zeros(2), name="log")
        x = dsl.placeholder(F8)
        bump = w.assign_add(x)
        with dsl.control_dependencies([bump]):
            y = w * 10.0
            with dsl.control_dependencies([log.scatter_add([0], 1.0)]):
                z = x * 1.0
        outside = x * 2.0
        with dsl.control_dependencies([dsl.group(bump, name="both")]):
            made_before = outside + 0.0
    with dsl.Session(graph) as session:
        assert session.run(outside, {x: 1.0}) == 2.0
        assert w.value == 1.0
        assert session.run(y, {x: 1.0}) == 20.0
        assert session.run(z, {x: 5.0}) == 5.0
        assert (w.value, log.value.tolist()) == (7.0, [1, 0])
        assert session.run(made_before, {x: 1.0}) == 2.0
        assert w.value == 8.0
    with pytest.raises(UnsupportedError, match="expected a tensor or an operation"), graph:
        dsl.control_dependencies([3.0]).__enter__()


def test_no_control_dependencies_inside_of_some(backend: str) -> None:
    with dsl.Graph() as graph:
        w = dsl.Variable(0.0)
        with dsl.control_dependencies([w.assign_add(1.0)]):
            with dsl.control_dependencies(None):
                free = w.read()
            bound = w.read()
    with dsl.Session(graph) as session:
        assert session.run(free) == 0.0
        assert session.run(bound) == 1.0


def test_branches_and_loops_do_what_is_in_them_when_it_is_their_turn(backend: str) -> None:
    with dsl.Graph() as graph:
        w = dsl.Variable(1.0)
        p, n = dsl.placeholder(np.bool_, name="p"), dsl.placeholder(I8, name="n")
        chosen = dsl.cond(p, lambda: w.assign_add(1.0), lambda: w.assign_sub(10.0))
        total = dsl.fori_loop(0, n, lambda i, t: t + w.assign_add(1.0), chosen)
        count, last = dsl.while_loop(
            lambda i, t: t < 100.0, lambda i, t: (i + 1, t * 2.0), (0, total * total + 1.0)
        )
    with dsl.Session(graph) as session:
        assert session.run([chosen, total], {p: True, n: 2}) == [2.0, 2.0 + 3.0 + 4.0]
        assert session.run([count, last], {p: False, n: 1}) == [0, 122.0]
        assert w.value == -5.0


def test_a_compiled_function_in_a_graph_is_a_whole(backend: str) -> None:
    w = dsl.Variable(1.0)

    @dsl.jit
    def step(x: Any) -> Any:
        if x > 0:
            w.assign_add(x)
        return w * 2, x

    @dsl.jit
    def reset() -> None:
        w.assign(0.0)

    with dsl.Graph() as graph:
        x = dsl.placeholder(F8)
        doubled, same = step(x)
        again = reset()
    with dsl.Session(graph) as session:
        assert session.run(doubled, {x: 2.0}) == 6.0
        assert session.run(same, {x: 1.0}) == 1.0
        assert w.value == 4.0
        assert session.run(doubled, {x: -1.0}) == 8.0
        assert session.run(again) is None
        assert w.value == 0.0


# --- Mistakes --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Iterator[dict[str, Any]]:
    """A graph with one of each, and a session of it."""
    with dsl.Graph("model") as graph:
        x = dsl.placeholder(np.float32, (None, 2), name="x")
        n, flag = dsl.placeholder(np.int32, name="n"), dsl.placeholder(np.bool_, name="flag")
        byte = dsl.placeholder(np.uint8, name="byte")
        y, m, not_flag, more = x * 2, n + 1, ~flag, byte + 1
        v = dsl.Variable(1.0, name="v")
        op = dsl.group(v.assign_add(1.0), name="op")
    with dsl.Graph("other"):
        foreign = dsl.placeholder(F8, name="foreign") + 1
    with dsl.Session(graph) as session:
        yield {**locals(), "run": session.run}


BAD_FEEDS: dict[str, tuple[str, Any, str]] = {
    "shape": ("y x", np.zeros((3, 3), np.float32),
              r"'x' takes an array of dtype float32 and shape \(None, 2\), and is fed with an array of shape \(3, 3\)"),
    "rank": ("y x", np.zeros(2, np.float32), r"is fed with an array of shape \(2,\)"),
    "dtype": ("y x", np.zeros((1, 2), complex), "is fed with an array of dtype complex128"),
    "complex numbers": ("y x", [[1j, 2]], "is fed with complex numbers"),
    "text": ("y x", "abc", "is fed with an array of dtype <U3"),
    "None": ("y x", None, "is fed with an array of dtype object"),
    "ragged": ("y x", [[1, 2], [3]], "is fed with what is no array"),
    "float for int": ("m n", 1.5, r"'n' takes an array of dtype int32 and shape \(\), and is fed with floating-point numbers"),
    "floats for int": ("m n", np.array(2.0), "is fed with an array of dtype float64"),
    "too large": ("m n", 2**40, "is fed with numbers beyond the range of that dtype"),
    "too large by far": ("m n", 10**30, "is fed with an array of dtype object"),
    "too large array": ("m n", np.array(2**40), "is fed with numbers beyond the range of that dtype"),
    "negative for unsigned": ("more byte", -1, "is fed with numbers beyond the range"),
    "signed for unsigned": ("more byte", np.int64(3), "is fed with an array of dtype int64"),
    "number for bool": ("not_flag flag", 5, "is fed with whole numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("names", "given", "message"), BAD_FEEDS.values(), ids=BAD_FEEDS)
def test_a_wrong_feed_is_refused(
    made: dict[str, Any], names: str, given: Any, message: str
) -> None:
    fetch, feed = (made[name] for name in names.split())
    with pytest.raises(FeedError, match=message) as caught:
        made["run"](fetch, {feed: given})
    assert "convert what is fed" in caught.value.remedy
    assert made["run"](made["m"], {made["n"]: 1}) == 2


BAD_RUNS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unfed": (lambda g: g["run"](g["y"]), r"the placeholder 'x' \(f32\[x_0, 2\]\) is needed and is not fed"),
    "one unfed": (lambda g: g["run"]([g["y"], g["m"]], {g["x"]: [[1, 2]]}), "the placeholder 'n' .* is not fed"),
    "of another graph": (lambda g: g["run"](g["foreign"]), "cannot fetch .*: <dsl.Graph 'model': .*> does not hold it"),
    "fed of another graph": (lambda g: g["run"](g["y"], {g["foreign"]: 1.0}), "cannot feed .* does not hold it"),
    "an array": (lambda g: g["run"](np.zeros(3)), r"cannot fetch array\(\[0., 0., 0.\]\): it is not a tensor"),
    "a number": (lambda g: g["run"](3), "cannot fetch 3: it is not a tensor of the graph"),
    "an unknown name": (lambda g: g["run"]("z"), r"no tensor named 'z' \(named ones: byte, flag, n, op, x\)"),
    "nothing": (lambda g: g["run"]([]), "a step must fetch something"),
    "None": (lambda g: g["run"](None), "a step must fetch something"),
    "fed twice": (lambda g: g["run"](g["y"], {g["x"]: [[1, 2]], "x": [[1, 2]]}), "'x' is fed twice"),
    "a variable fed": (lambda g: g["run"](g["y"], {g["v"]: 1.0}), "<dsl.Variable 'v' .*> cannot be fed"),
    "an operation fed": (lambda g: g["run"](g["y"], {g["op"]: 1.0}), "<dsl.Operation 'op'> cannot be fed"),
    "fed with a tensor": (lambda g: g["run"](g["y"], {g["x"]: g["y"]}), "'x' is fed with a tensor of a graph"),
    "a number as a key": (lambda g: g["run"](g["y"], {3: 1.0}), "cannot feed 3: it is not a tensor of the graph"),
    "a list of feeds": (lambda g: g["run"](g["y"], [g["x"]]), "feeds are a dict from tensors to arrays"),
    "no graph": (lambda g: dsl.Session(3), "a session runs a `dsl.Graph`, got 3"),
}  # fmt: skip


@pytest.mark.parametrize(("act", "message"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_a_wrong_run_is_refused_and_the_session_stays_usable(
    made: dict[str, Any], act: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(FeedError, match=message):
        act(made)
    assert made["run"](made["y"], {made["x"]: [[1, 2]]}).tolist() == [[2, 4]]


def test_an_unfed_placeholder_is_shown_where_it_was_made(made: dict[str, Any]) -> None:
    with pytest.raises(FeedError) as caught:
        made["run"](made["y"])
    assert 'x = dsl.placeholder(np.float32, (None, 2), name="x")' in str(caught.value)
    assert caught.value.remedy == "add it to the feeds: {x: array}"


def test_sizes_that_depend_on_each_other() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (None,), name="x")
        y = x * 2
        z = (y + x).sum()
    with dsl.Session(graph) as session:
        with pytest.raises(FeedError, match="beside the other feeds"):
            session.run(z, {x: np.zeros(3), y: np.zeros(4)})
        assert session.run(z, {x: np.zeros(3), y: np.ones(3)}) == 3.0
        with graph:
            other = dsl.placeholder(F8, (None,), name="other")
            total = (x + other).sum()
        with pytest.raises(ValueError, match="broadcast"):
            session.run(total, {x: np.zeros(3), other: np.zeros(4)})
        assert session.run(total, {x: np.ones(3), other: np.ones(3)}) == 6.0


def test_a_branch_is_not_fetched_from_outside() -> None:
    inner: list[Any] = []
    with dsl.Graph() as graph:
        p = dsl.placeholder(np.bool_)

        def then() -> Any:
            inner.append(dsl.numpy.where(p, 1.0, 2.0))
            return inner[0] * 2

        y = dsl.cond(p, then, lambda: 0.0)
    with dsl.Session(graph) as session:
        with pytest.raises(FeedError, match=r"cannot fetch .* does not hold it") as caught:
            session.run(inner[0], {p: True})
        assert "outside of branches and loops" in caught.value.remedy
        assert session.run(y, {p: True}) == 2.0


def test_placeholders_and_tensors_have_their_place() -> None:
    with pytest.raises(
        UnsupportedError, match="a placeholder is part of a graph, and none is being built"
    ):
        dsl.placeholder(F8)
    with pytest.raises(UnsupportedError, match="a group of operations is part of a graph"):
        dsl.group()
    with dsl.Graph():
        x = dsl.placeholder(F8, (3,), name="x")
        assert dsl.placeholder(F8, 3).shape == (3,)
        for shape, message in [((-1,), "got -1"), ((1.5,), "got 1.5"), (None, "number of axes")]:
            with pytest.raises(ShapeError, match=message):
                dsl.placeholder(F8, shape)
        with pytest.raises(UnsupportedError, match="dtype <U3 cannot be traced"):
            dsl.placeholder("U3")
        with pytest.raises(
            NonConcreteError, match="known only when a session runs the graph"
        ) as caught:
            bool(x.sum() > 0)
        assert "dsl.cond" in caught.value.remedy
        with pytest.raises(UnsupportedError, match="a placeholder inside a branch or loop"):
            dsl.cond(x[0] > 0, lambda: dsl.placeholder(F8), lambda: 0.0)
    with pytest.raises(
        LeakError, match="a tensor of a graph is used outside of `with graph:`"
    ) as caught:
        _ = x + 1
    assert "session.run" in caught.value.remedy


def test_a_closed_session_refuses(made: dict[str, Any]) -> None:
    made["session"].close()
    with pytest.raises(CancelledError, match="the session is closed"):
        made["run"](made["op"])
    with pytest.raises(CancelledError, match="the session is closed"):
        made["session"].partial_run_setup([made["y"]], [made["x"]])


# --- Graphs that were written by hand ------------------------------------------------------------------------------------------

POWER = """
graph @power(%x: f64[], %n: i64[]) -> (f64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %start = const() {value=1.0} : f64[]
  %i0 = enter(%zero) {frame="loop"} : i64[]
  %y0 = enter(%start) {frame="loop"} : f64[]
  %step = enter(%one) {frame="loop", invariant} : i64[]
  %trips = enter(%n) {frame="loop", invariant} : i64[]
  %base = enter(%x) {frame="loop", invariant} : f64[]
  %i = loop_merge(%i0, %inext) : i64[]
  %y = loop_merge(%y0, %ynext) : f64[]
  %p = less(%i, %trips) : bool[]
  %c = loop_cond(%p) : bool[]
  %iout, %iin = switch(%i, %c) : i64[], i64[]
  %yout, %yin = switch(%y, %c) : f64[], f64[]
  %i2 = add(%iin, %step) : i64[]
  %y2 = multiply(%yin, %base) : f64[]
  %inext = next_iteration(%i2) : i64[]
  %ynext = next_iteration(%y2) : f64[]
  %r = exit(%yout) : f64[]
  return %r
}
"""
SIDES = """
graph @sides(%x: f64[], %p: bool[]) -> (f64[], f64[]) {
  %f, %t = switch(%x, %p) : f64[], f64[]
  return %f, %t
}
"""


def test_a_flat_loop_runs_and_differentiates(backend: str) -> None:
    graph = dsl.Graph.of(dsl.ir.parse(POWER))
    with graph:
        (slope,) = dsl.gradients(graph.results[0], [graph.tensor("x")])
    with dsl.Session(graph) as session:
        for n, expected in ((4, [81.0, 108.0]), (1, [3.0, 1.0]), (0, [1.0, 0.0])):
            assert session.run([graph.results[0], slope], {"x": 3.0, "n": n}) == expected
        assert "one native program" in session.explain()


def test_a_dead_fetch_is_an_error_and_not_a_wait(backend: str) -> None:
    with dsl.Session(dsl.ir.parse(SIDES), timeout=LIMIT) as session:
        no, yes = session.graph.results
        assert session.run(yes, {"x": 1.0, "p": True}) == 1.0
        with pytest.raises(DslError, match="dead: it lies in a branch that was not taken"):
            session.run(no, {"x": 1.0, "p": True})
        assert session.run(no, {"x": 1.0, "p": False}) == 1.0


def test_what_has_no_structured_form_is_not_differentiated_or_run_in_parts() -> None:
    graph = dsl.Graph.of(dsl.ir.parse(SIDES))
    with graph, pytest.raises(GradientError, match="the graph has no structured form"):
        dsl.gradients(graph.results[0], [graph.tensor("x")])
    x, p = graph.tensor("x"), graph.tensor("p")
    with pytest.raises(UnsupportedError, match="a partial run of a graph in the flat form"):
        dsl.Session(graph).partial_run_setup([graph.results[0]], [x, p])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  %c = loop_cond(%p) : bool[]\n", "", "is not defined|rule 23"),
        ("  %ynext = next_iteration(%y2) : f64[]\n", "  %ynext = identity(%y2) : f64[]\n", "rule 24: A `loop_merge` joins"),
        ('%trips = enter(%n) {frame="loop", invariant}', "%trips = identity(%n)", "rule 20: All inputs and control edges"),
        ("%yout, %yin = switch(%y, %c)", "%yin, %yout = switch(%y, %c)", "rule 26: An `exit` reads output 0"),
        ("return %r", "return %nothing", "%nothing is not defined"),
        ("multiply(%yin, %base) : f64[]", "multiply(%yin, %base) : i64[]", "f64"),
    ],
)  # fmt: skip
def test_an_ill_formed_loop_is_refused(old: str, new: str, message: str) -> None:
    assert old in POWER
    with pytest.raises((ParseError, VerifyError), match=message):
        dsl.Session(dsl.ir.parse(POWER.replace(old, new)))


VARIABLE = """
graph @step(%x: f64[3]) -> (f64[3]) {
  %w = read_variable() {variable="w"} : f64[3]
  %y = multiply(%w, %x) : f64[3]
  %z = update_variable(%y) {how="set", variable="w"} : f64[3]
  return %z
}
"""


def test_variables_of_a_graph_that_was_written_by_hand(backend: str) -> None:
    graph = dsl.Graph.of(dsl.ir.parse(VARIABLE))
    with dsl.Session(graph) as session:
        with pytest.raises(DslError, match="the graph uses 'w', and there is no such variable"):
            session.run(graph.results[0], {"x": np.ones(3)})
        w = dsl.Variable(np.arange(3.0), name="w")
        graph.adopt(w)
        assert (
            session.run(graph.results[0], {"x": [2, 2, 2]}).tolist()
            == w.value.tolist()
            == [0, 2, 4]
        )
    wrong = dsl.Graph.of(dsl.ir.parse(VARIABLE))
    wrong.adopt(dsl.Variable(np.ones(2), name="w"))
    with pytest.raises(
        TypeRuleError, match=r"takes the variable 'w' for f64\[3\], and it is f64\[2\]"
    ):
        dsl.Session(wrong).run(wrong.results[0], {"x": np.ones(3)})


# --- Partial runs --------------------------------------------------------------------------------------------------------------


def test_a_step_in_parts(backend: str) -> None:
    with dsl.Graph() as graph:
        a, b, c = (dsl.placeholder(F8, name=name) for name in "abc")
        w = dsl.Variable(0.0)
        r1 = a + b
        r2 = r1 * c
        done = dsl.group(w.assign_add(r1), name="done")
    with dsl.Session(graph, timeout=LIMIT) as session:
        handle = session.partial_run_setup([r1, r2, done], [a, b, c])
        first = session.partial_run(handle, r1, {a: 1.0, b: 2.0})
        assert first == 3.0
        assert session.partial_run(handle, done) is None
        assert w.value == 3.0
        assert session.partial_run(handle, {"r2": r2}, {c: first * 10}) == {"r2": 90.0}
        assert w.value == 3.0  # computed once
        until(lambda: not handle.thread.is_alive())


def test_the_rules_of_partial_runs() -> None:
    with dsl.Graph() as graph:
        a, b, c = (dsl.placeholder(F8, name=name) for name in "abc")
        r1 = a + b
        r2 = np.sin(r1) * c
        r3 = a * 5.0
    with dsl.Session(graph, timeout=LIMIT) as session, dsl.Session(graph) as other:
        handle = session.partial_run_setup([r1, r2], [a, b, c])
        run = session.partial_run
        with pytest.raises(FeedError, match="'add' depends on 'b', which has not been fed yet"):
            run(handle, r1, {a: 1.0})
        with pytest.raises(
            FeedError, match="'multiply' is not among the fetches of this partial run"
        ):
            run(handle, r3, {a: 1.0})
        with pytest.raises(FeedError, match="'a' takes an array of dtype float64"):
            run(handle, r1, {a: np.zeros(3), b: 1.0})
        assert run(handle, r1, {a: 1.0, b: 2.0}) == 3.0
        with pytest.raises(FeedError, match="'a' has been fed in this partial run"):
            run(handle, r2, {a: 1.0, c: 1.0})
        with pytest.raises(FeedError, match="'add' has been fetched in this partial run"):
            run(handle, r1)
        with pytest.raises(FeedError, match="is no partial run of this session"):
            other.partial_run(handle, r2, {c: 1.0})
        with pytest.raises(FeedError, match="3 is no partial run of this session"):
            run(3, r2, {c: 1.0})
        assert run(handle, r2, {c: 2.0}) == 2 * np.sin(3.0)
        for fetches, feeds, message in [
            ([r2], [a, b], "the placeholder 'c' .* is not fed"), ([r1], [a, a, b], "'a' is fed twice"),
            ([r1], [r1], "'add' is fed and fetched"), ([], [a], "must fetch something"),
        ]:  # fmt: skip
            with pytest.raises(FeedError, match=message):
                session.partial_run_setup(fetches, feeds)


def test_an_error_ends_a_partial_run() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (2, 2), name="x")
        y = dsl.placeholder(F8, name="y")
        inverse = np.linalg.inv(x)
        late = inverse.sum() * y
    with dsl.Session(graph, timeout=LIMIT) as session:
        handle = session.partial_run_setup([inverse, late], [x, y])
        with pytest.raises(np.linalg.LinAlgError):
            session.partial_run(handle, inverse, {x: np.zeros((2, 2))})
        with pytest.raises(np.linalg.LinAlgError):
            session.partial_run(handle, late, {y: 1.0})
        handle = session.partial_run_setup([inverse], [x])
        assert session.partial_run(handle, inverse, {x: np.eye(2)}).tolist() == np.eye(2).tolist()


# --- What waits -----------------------------------------------------------------------------------------------------------------


def numbers(*values: float, capacity: int = 100, name: str = "numbers") -> dsl.FIFOQueue:
    queue = dsl.FIFOQueue(capacity, F8, (), name=name)
    queue.enqueue_many(np.array(values))
    return queue


def test_every_queue_operation_in_a_graph(backend: str) -> None:
    queue = dsl.FIFOQueue(4, F8, (), name="queue")
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, name="x")
        put, put_many = queue.enqueue(x), queue.enqueue_many(np.arange(3.0))
        size, one, two = queue.size(), queue.dequeue(), queue.dequeue_many(2)
        rest, close = queue.dequeue_up_to(10), queue.close()
    with dsl.Session(graph, timeout=LIMIT) as session:
        assert session.run(put, {x: 7.0}) is None
        assert session.run(put_many) is None
        assert session.run(size) == 4
        assert session.run(one) == 7.0
        assert session.run(two).tolist() == [0, 1]
        assert session.run(close) is None
        assert session.run(rest).tolist() == [2]
        with pytest.raises(OutOfRangeError, match="closed"):
            session.run(one)
        with pytest.raises(CancelledError, match="closed"):
            session.run(put, {x: 1.0})
        assert session.run(size) == 0
        with (
            graph,
            pytest.raises(
                ShapeError, match=r"the element of FIFOQueue 'queue' is f64\[\], got f64\[3\]"
            ),
        ):
            queue.enqueue(np.zeros(3))
        with graph, pytest.raises(UnsupportedError, match="a `timeout` of a queue operation"):
            queue.dequeue(timeout=1.0)


def test_other_queues_in_graphs(backend: str) -> None:
    pairs = dsl.FIFOQueue(10, {"x": F8, "n": I8}, {"x": (2,), "n": ()})
    padded, ordered = dsl.PaddingFIFOQueue(10, I8, (None,)), dsl.PriorityQueue(10, F8, ())
    with dsl.Graph() as graph:
        a = dsl.placeholder(F8, (2,), name="a")
        put, taken = pairs.enqueue({"x": a, "n": 3}), pairs.dequeue()
        total = taken["x"].sum() * taken["n"]
        sentences = padded.dequeue_many(2)
        _, least = ordered.dequeue()
    with dsl.Session(graph, timeout=LIMIT) as session:
        session.run(put, {a: [1.0, 2.0]})
        assert session.run(total) == 9.0
        padded.enqueue([1, 2, 3])
        padded.enqueue([4])
        assert session.run(sentences).tolist() == [[1, 2, 3], [4, 0, 0]]
        ordered.enqueue((5, 50.0))
        ordered.enqueue((1, 10.0))
        assert session.run(least) == 10.0


def test_a_step_waits_for_another_thread(backend: str) -> None:
    queue = numbers()
    with dsl.Graph() as graph:
        w = dsl.Variable(1.0)
        y = queue.dequeue() * 2 + w
    with dsl.Session(graph) as session:
        step = Call(session.run, y)
        waits(queue, takes=1)
        w.assign(10.0)  # nobody holds the variable while the step waits
        queue.enqueue(3.0)
        assert step.result() in (7.0, 16.0)
        assert "token by token" in session.explain()


def test_what_happens_around_a_wait_happens_once(backend: str) -> None:
    queue = numbers()
    with dsl.Graph() as graph:
        w, v = dsl.Variable(0.0), dsl.Variable(0.0)
        count = w.assign_add(1.0)
        put = queue.enqueue(count)
        other = v.assign_add(5.0)
        taken = queue.dequeue()
        late = v.assign_add(taken)
    with dsl.Session(graph, timeout=LIMIT) as session:
        assert session.run([put, other, count]) == [None, 5.0, 1.0]
        assert session.run([late, taken]) == [6.0, 1.0]
        assert session.run([put, other, late, count]) == [None, 11.0, 13.0, 2.0]
        assert (w.value, v.value, queue.size()) == (2.0, 13.0, 0)


def test_what_follows_a_wait_reads_and_writes_as_one(backend: str) -> None:
    """Trainers that share variables and a queue lose no update, though each reads, computes and assigns."""
    queue = dsl.FIFOQueue(100, F8, (4,), name="steps")
    with dsl.Graph() as graph:
        w = dsl.Variable(np.zeros(4))
        x = queue.dequeue()
        step = w.assign(w + x)
        loss = ((w - x) ** 2).sum() * 0.0
        train = dsl.optim.SGD(1.0).minimize((w * x).sum() + loss)
    with dsl.Session(graph, timeout=LIMIT) as session:
        work = [
            Call(lambda k=k: [session.run((step, train)[k % 2]) for _ in range(50)])
            for k in range(4)
        ]
        for _ in range(200):
            queue.enqueue(np.ones(4))
        for call in work:
            call.result()
        assert w.value.tolist() == [0.0] * 4  # 100 steps up and 100 steps down


def test_cancelling_one_of_two_steps_leaves_the_other(backend: str) -> None:
    queue = numbers()
    with dsl.Graph() as graph:
        y = queue.dequeue() + 1
    one, two = dsl.Session(graph), dsl.Session(graph)
    first = Call(one.run, y)
    waits(queue, takes=1)
    second = Call(two.run, y)
    waits(queue, takes=2)
    one.close()
    with pytest.raises(CancelledError):
        first.result()
    waits(queue, takes=1)
    queue.enqueue(4.0)
    assert second.result() == 5.0
    assert queue.size() == 0


def test_closing_a_session_cancels_all_that_waits(backend: str) -> None:
    full, empty = numbers(1.0, capacity=1), numbers()
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, name="x")
        taken, put = empty.dequeue(), full.enqueue(x)
        late = x + taken
    session = dsl.Session(graph)
    calls = [
        Call(session.run, taken),
        Call(session.run, put, {x: 1.0}),
        Call(session.make_callable(late, [x]), 1.0),
    ]
    waits(empty, takes=2)
    waits(full, puts=1)
    handle = session.partial_run_setup([late], [x])
    calls.append(Call(session.partial_run, handle, late, {x: 1.0}))
    waits(empty, takes=3)
    session.close()
    for call in calls:
        with pytest.raises(CancelledError):
            call.result()
    waits(empty)
    waits(full)
    assert full.dequeue() == 1.0


def test_a_deadline_leaves_queue_and_session_usable(backend: str) -> None:
    queue = numbers(1.0)
    with dsl.Graph() as graph:
        pair = queue.dequeue_many(2)
    with dsl.Session(graph, timeout=0.05) as session:
        with pytest.raises(DeadlineError, match="waits for dequeue_many"):
            session.run(pair)
        queue.enqueue(2.0)
        assert session.run(pair).tolist() == [1, 2]
        with pytest.raises(DeadlineError, match=r"0\.01 s"):
            session.run(pair, timeout=0.01)


@pytest.mark.parametrize("places", [(), ("cpu:1",), ("cpu:0", "cpu:1")])
def test_a_step_that_loops_ends_at_its_deadline_or_when_it_is_cancelled(
    places: tuple[str, ...],
) -> None:
    def body(x: Any) -> Any:
        for place in places:
            with dsl.device(place):
                x = x + 1
        return x if places else x + 1

    with dsl.Graph() as graph:
        total = dsl.Variable(0)
        n = dsl.placeholder(I8, name="n")
        write = total.assign(dsl.while_loop(lambda x: x >= 0, body, n + total))
    session = dsl.Session(graph, devices=2 if places else 1)
    assert session.run(write, {n: -2}) == -2
    for run in (session.run, Call(session.run, write, {n: 9}, timeout=0.2).result):
        with pytest.raises(DeadlineError, match=r"the step is not done after 0\.2 s"):
            run() if run != session.run else run(write, {n: 9}, timeout=0.2)
    assert session.run(write, {n: 0}) == -2
    call = Call(session.run, write, {n: 9})
    time.sleep(0.1)
    session.close()
    with pytest.raises(CancelledError):
        call.result()
    assert total.value == -2


def test_a_callable_of_a_session_with_a_deadline_has_it() -> None:
    with dsl.Graph() as graph:
        n = dsl.placeholder(I8, name="n")
        last = dsl.while_loop(lambda x: x >= 0, lambda x: x + 1, n)
    with dsl.Session(graph, timeout=0.2) as session:
        call = session.make_callable(last, [n])
        with pytest.raises(DeadlineError):
            call(0)
        assert call(-3) == -3


def test_an_error_beside_something_that_waits_ends_the_step(backend: str) -> None:
    queue = numbers()
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (2, 2), name="x")
        both = queue.dequeue() + np.linalg.inv(x).sum()
    with dsl.Session(graph, timeout=LIMIT) as session:
        with pytest.raises(np.linalg.LinAlgError):
            session.run(both, {x: np.zeros((2, 2))})
        waits(queue)
        queue.enqueue(1.0)
        assert session.run(both, {x: np.eye(2)}) == 3.0


def test_waiting_in_branches_and_loops(backend: str) -> None:
    queue = numbers(1.0, 2.0, 3.0, 4.0)
    with dsl.Graph() as graph:
        p, n = dsl.placeholder(np.bool_), dsl.placeholder(I8)
        maybe = dsl.cond(p, lambda: queue.dequeue(), lambda: -1.0)
        total = dsl.fori_loop(0, n, lambda i, t: t + queue.dequeue() * 10.0, 0.0 * maybe)
    with dsl.Session(graph, timeout=LIMIT) as session:
        assert session.run(maybe, {p: False}) == -1.0
        assert session.run(maybe, {p: True}) == 1.0
        assert session.run(total, {p: False, n: 3}) == 90.0
        assert queue.size() == 0


def test_checkpoints_are_operations_too(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "model.safetensors"
    with dsl.Graph() as graph:
        w = dsl.Variable(np.arange(3.0), name="w")
        save, restore = dsl.save(path, {"w": w}), dsl.restore(path, {"w": w})
        clear = w.assign(0.0)
    with dsl.Session(graph) as session:
        session.run(save)
        session.run(clear)
        assert w.value.tolist() == [0, 0, 0]
        session.run(restore)
        assert w.value.tolist() == [0, 1, 2]
        assert dsl.restore(path)["w"].tolist() == [0, 1, 2]


# --- Introductory programs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [dsl.optim.SGD(0.1), dsl.optim.Momentum(0.02, 0.9), dsl.optim.Adagrad(0.5), dsl.optim.RMSProp(0.005), dsl.optim.Adam(0.1)],
    ids=lambda optimizer: type(optimizer).__name__,
)  # fmt: skip
def test_linear_regression_with_placeholders_and_an_optimizer(optimizer: Any) -> None:
    rng = np.random.default_rng(0)
    x_data = rng.random(100).astype(np.float32)
    y_data = x_data * 0.1 + 0.3
    graph = dsl.Graph()
    with graph:
        x = dsl.placeholder(np.float32, (None,), name="x")
        y_ = dsl.placeholder(np.float32, (None,), name="y_")
        W = dsl.Variable(rng.uniform(-1.0, 1.0, 1).astype(np.float32), name="W")
        b = dsl.Variable(np.zeros(1, np.float32), name="b")
        y = W * x + b
        loss = np.mean(np.square(y - y_))
        train = optimizer.minimize(loss)
    with dsl.Session(graph) as sess:
        for _ in range(400):
            sess.run(train, feed_dict={x: x_data, y_: y_data})
        assert sess.run(loss, {x: x_data, y_: y_data}) < 1e-3
        np.testing.assert_allclose([sess.run(W)[0], b.value[0]], [0.1, 0.3], atol=0.1)


def test_relu_in_a_step_loop() -> None:
    """The first program of the TensorFlow white paper."""
    rng = np.random.default_rng(0)
    with dsl.Graph() as graph:
        b = dsl.Variable(np.zeros((100, 1)))
        W = dsl.Variable(rng.uniform(-1, 1, (100, 784)))
        x = dsl.placeholder(F8, (784, None), name="x")
        relu = dsl.nn.relu(np.matmul(W, x) + b)
        C = relu.sum()
    with dsl.Session(graph) as s:
        for step in range(10):
            given = rng.random((784, 1 + step % 3))
            result = s.run(C, feed_dict={x: given})
            np.testing.assert_allclose(result, np.maximum(W.value @ given + b.value, 0).sum())
        assert s.misses == 1


def test_an_rnn_loop_learns() -> None:
    rng = np.random.default_rng(0)
    with dsl.Graph() as graph:
        inputs = dsl.placeholder(F8, (None, None, 1), name="inputs")  # time, batch, features
        targets = dsl.placeholder(F8, (None,), name="targets")
        hidden = 8
        Wx = dsl.Variable(rng.normal(size=(1, hidden)) * 0.5)
        Wh = dsl.Variable(np.eye(hidden) * 0.9)
        Wo = dsl.Variable(rng.normal(size=hidden) * 0.5)

        def cell(h: Any, x: Any) -> Any:
            h = np.tanh(x @ Wx + h @ Wh)
            return h, h

        start = np.tanh(inputs[0] @ Wx) * 0.0
        last, _ = dsl.scan(cell, start, inputs)
        loss = np.mean((last @ Wo - targets) ** 2)
        train = dsl.optim.Adam(0.02).minimize(loss)
    data = rng.uniform(-1, 1, (6, 32, 1))
    feeds = {inputs: data, targets: data.mean(axis=(0, 2))}
    with dsl.Session(graph) as session:
        before = session.run(loss, feeds)
        for _ in range(150):
            session.run(train, feeds)
        assert session.run(loss, feeds) < 0.05 * before
        short = {inputs: data[:3, :5], targets: np.zeros(5)}
        assert np.isfinite(session.run(loss, short))


def test_a_queue_fed_trainer(backend: str) -> None:
    """A producer thread enqueues examples by a graph of its own; the trainer stops when the queue is closed and empty."""
    queue = dsl.RandomShuffleQueue(64, 16, [F8, F8], [(2,), ()], seed=0)
    with dsl.Graph() as producing:
        example = dsl.placeholder(F8, (2,), name="example")
        enqueue, close = queue.enqueue((example, example @ np.array([1.0, -2.0]))), queue.close()
    with dsl.Graph() as training:
        x, y = queue.dequeue_many(8)
        w = dsl.Variable(np.zeros(2), name="w")
        loss = np.mean((x @ w - y) ** 2)
        train = dsl.optim.SGD(0.2).minimize(loss)

    def produce() -> None:
        rng = np.random.default_rng(0)
        with dsl.Session(producing, timeout=LIMIT) as session:
            for _ in range(640):
                session.run(enqueue, {example: rng.normal(size=2)})
            session.run(close)

    producer, losses = Call(produce), []
    with dsl.Session(training, timeout=LIMIT) as session, contextlib.suppress(OutOfRangeError):
        while True:
            losses.append(session.run([loss, train])[0])
    producer.result()
    assert len(losses) == 640 // 8
    np.testing.assert_allclose(w.value, [1.0, -2.0], atol=1e-3)
    assert losses[-1] < 1e-3 * losses[0]


def test_minimize_says_what_it_cannot_do() -> None:
    with dsl.Graph():
        x = dsl.placeholder(F8, (3,), name="x")
        w = dsl.Variable(np.zeros(3))
        with pytest.raises(GradientError, match="the loss must be one number"):
            dsl.optim.SGD(0.1).minimize(w * x)
        with pytest.raises(GradientError, match="the loss depends on no trainable variable"):
            dsl.optim.SGD(0.1).minimize(x.sum())


def test_only_the_chosen_variables_are_trained() -> None:
    with dsl.Graph() as graph:
        a, b = dsl.Variable(1.0, name="a"), dsl.Variable(1.0, name="b")
        fixed = dsl.Variable(1.0, trainable=False)
        loss = (a + b + fixed) ** 2
        only_b = dsl.optim.SGD(0.1).minimize(loss, variables=[b])
        both = dsl.optim.SGD(0.1).minimize(loss)
    with dsl.Session(graph) as session:
        session.run(only_b)
        assert (a.value, fixed.value) == (1.0, 1.0)
        assert b.value == pytest.approx(0.4)
        session.run(both)
        assert (a.value < 1.0, b.value < 0.4, fixed.value) == (True, True, 1.0)
        assert [v.name for v in graph.variables][:2] == ["a", "b"]


# --- Threads ----------------------------------------------------------------------------------------------------------------------


def test_threads_that_ask_for_the_same_step_at_once_make_one() -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, (None,), name="x")
        w = dsl.Variable(0.0)
        y = np.sin(x).sum() + 0.0 * w.assign_add(1.0)
    session, start = dsl.Session(graph), threading.Barrier(8)

    def work(k: int) -> None:
        start.wait(LIMIT)
        for n in range(20):
            given = np.full(1 + (k + n) % 3, 0.5)
            np.testing.assert_allclose(session.run(y, {x: given}), np.sin(given).sum())

    for call in [Call(work, k) for k in range(8)]:
        call.result()
    assert session.misses == 1
    assert w.value == 160


def test_sixteen_threads_on_one_graph(backend: str) -> None:
    """Every kind of step at once, for DSL_THREADS_SECONDS: no update is lost, nothing hangs, memory is steady."""
    work, done = dsl.FIFOQueue(32, I8, (), name="work"), dsl.FIFOQueue(1000, I8, (), name="done")
    with dsl.Graph() as graph:
        total, rows = dsl.Variable(np.zeros(8)), dsl.Variable(np.zeros((4, 2)))
        steps = dsl.Variable(0, name="steps")
        k = dsl.placeholder(I8, name="k")
        put = work.enqueue(k)
        item = work.dequeue()
        change = [
            total.assign_add(1.0),
            rows.scatter_add((item % 4).reshape(1), 1.0),
            steps.assign_add(1),
        ]
        with dsl.control_dependencies(change):
            finish = done.enqueue(item)
        direct = dsl.group(total.assign(total + 1.0), steps.assign_add(1))
        spread = total.read().max() - total.read().min()
        size = work.size()
    session = dsl.Session(graph, timeout=LIMIT)
    quick, end = session.make_callable(direct), time.monotonic() + SECONDS
    counts = dict.fromkeys(("put", "taken", "direct"), 0)
    lock, memory = threading.Lock(), []

    def count(kind: str, n: int) -> None:
        with lock:
            counts[kind] += n

    def producer(k_: int) -> None:
        n = 0
        while time.monotonic() < end:
            session.run(put, {k: n})
            n += 1
        count("put", n)

    def consumer(_: int) -> None:
        n = 0
        while time.monotonic() < end:
            session.run(finish)
            done.dequeue(timeout=LIMIT)
            n += 1
        count("taken", n)

    def stepper(_: int) -> None:
        n = 0
        while time.monotonic() < end:
            quick()
            session.run(direct)
            n += 2
        count("direct", n)

    def watcher(_: int) -> None:
        while time.monotonic() < end:
            assert session.run(spread) == 0
            assert 0 <= session.run(size) <= 32
            time.sleep(0.005)

    def feeder() -> None:
        """Let those who wait at the end go on."""
        until(lambda: time.monotonic() >= end)
        while any(call.is_alive() for call in calls):
            if not work.size():
                work.enqueue(0)
                count("put", 1)
            elif work.size() >= 32:
                work.dequeue()
                count("put", -1)
            time.sleep(0.001)

    tracemalloc.start()
    try:
        roles = [producer] * 4 + [consumer] * 4 + [stepper] * 6 + [watcher] * 2
        calls = [Call(role, n) for n, role in enumerate(roles)]
        until(lambda: time.monotonic() >= end - 0.75 * SECONDS)
        gc.collect()
        memory.append(tracemalloc.get_traced_memory()[0])
        until(lambda: time.monotonic() >= end - 0.1 * SECONDS)
        gc.collect()
        memory.append(tracemalloc.get_traced_memory()[0])
        waker = Call(feeder)
        for call in calls:
            call.result()
        waker.result()
    finally:
        tracemalloc.stop()
    assert counts["put"] - counts["taken"] == work.size()
    assert min(counts.values()) > 0
    assert total.value.tolist() == [counts["taken"] + counts["direct"]] * 8
    assert rows.value.sum() == 2 * counts["taken"]
    assert steps.value == counts["taken"] + counts["direct"]
    assert memory[1] - memory[0] < 2_000_000


# -- parts of steps that are one program -------------------------------------------------------------------------------


def test_a_wait_does_not_hold_up_what_another_wait_depends_on(backend: str) -> None:
    first, second, third = (numbers(name=f"q{k}") for k in range(3))
    with dsl.Graph() as graph:
        put = second.enqueue(first.dequeue() + 1)
        answer = third.dequeue() * 2
    first.enqueue(1.0)
    thread = threading.Thread(target=lambda: third.enqueue(second.dequeue() * 10))
    thread.start()
    with dsl.Session(graph, timeout=20) as session:
        assert session.run([answer, put]) == [40.0, None]
    thread.join()


def test_reading_and_assigning_is_one_thing_on_each_of_two_devices(backend: str) -> None:
    with dsl.Graph() as graph:
        steps = []
        for index in range(2):
            with dsl.device(f"cpu:{index}"):
                variable = dsl.Variable(0.0, name=f"v{index}")
                steps.append(variable.assign(variable + 1))
        both = dsl.group(*steps)
    with dsl.Session(graph, devices=2, timeout=60) as session:
        call = session.make_callable(both)
        threads = [threading.Thread(target=lambda: [call() for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [float(v.value) for v in graph.variables] == [200.0, 200.0]


# -- derivatives on several devices -----------------------------------------------------------------------------------


def _over_devices(x: Any, n: Any, place: Callable[[str], Any]) -> Any:
    def branch(i: Any, v: Any) -> Any:
        with place("cpu:1"):
            w = np.sin(v)
        return dsl.cond(i % 2 == 0, lambda: w * x, lambda: w + v)

    def outer(i: Any, v: Any) -> Any:
        with place("cpu:0"):
            v = v * 1.5
        return dsl.fori_loop(0, i % 3, branch, v)

    return dsl.while_loop(
        lambda c: (c[0] < n) & (np.abs(c[1]) < 50.0),
        lambda c: (c[0] + 1, outer(c[0], c[1])),
        (0, x),
    )[1]


def test_gradients_with_respect_to_a_tensor_and_to_what_it_was_computed_from() -> None:
    """Each is the whole derivative, whatever else is asked for."""
    with dsl.Graph() as graph:
        x, n = dsl.placeholder(F8, (3,), name="x"), dsl.placeholder(I8, name="n")
        v = dsl.Variable(np.arange(3.0))
        hidden = np.tanh(x * v)
        y = dsl.fori_loop(0, n, lambda i, a: a * hidden + v, x)
        loss = (y * hidden).sum()
        sources = [x, v, hidden, y, loss]
        together = dsl.gradients(loss, sources)
        alone = [dsl.gradients(loss, [source])[0] for source in sources]
    with dsl.Session(graph) as session:
        for k in (0, 2):
            fed = {x: np.array([0.1, 0.2, 0.3]), n: k}
            for one, other in zip(*session.run([together, alone], fed), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12)


def test_derivatives_of_loops_over_devices_are_those_of_one_device(backend: str) -> None:
    found = []
    for devices in (1, 2):
        place = dsl.device if devices == 2 else lambda name: contextlib.nullcontext()
        with dsl.Graph() as graph:
            x, n = dsl.placeholder(F8, name="x"), dsl.placeholder(I8, name="n")
            y = _over_devices(x, n, place)
            (slope,) = dsl.gradients(y, [x])
        with dsl.Session(graph, devices=devices, timeout=LIMIT) as session:
            found.append([session.run([y, slope], {x: 0.7, n: k}) for k in (0, 1, 3, 6)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    assert found[1][0] == [0.7, 1.0]


@pytest.mark.parametrize("keep", [lambda f: f, dsl.checkpoint], ids=["kept", "checkpoint"])
def test_an_rnn_trains_on_two_devices_and_in_parts(keep: Callable[[Any], Any]) -> None:
    @keep
    def unrolled(w: Any, xs: Any) -> Any:
        return dsl.scan(lambda h, x: (np.tanh(w * h + x),) * 2, 0.0, xs)[0]

    weights = []
    for devices in (1, 2):
        with dsl.Graph() as graph:
            xs = dsl.placeholder(F8, (None,), name="xs")
            w = dsl.Variable(0.5, name="w")
            with dsl.device("cpu:1") if devices == 2 else contextlib.nullcontext():
                loss = (unrolled(w, xs) - 0.3) ** 2
            train = dsl.optim.Adam(0.05).minimize(loss)
        with dsl.Session(graph, devices=devices, timeout=LIMIT) as session:
            for _ in range(5):
                session.run(train, {xs: [0.1, -0.2, 0.3]})
            handle = session.partial_run_setup([loss, train], [xs])
            session.partial_run(handle, loss, {xs: [0.1, -0.2, 0.3]})
            session.partial_run(handle, train)
        weights.append(float(w.value))
    assert weights[0] == pytest.approx(weights[1], rel=1e-12)
    assert weights[0] != 0.5


def test_what_another_device_waits_for_happens_once(backend: str) -> None:
    with dsl.Graph() as graph:
        x = dsl.placeholder(F8, name="x")
        with dsl.device("cpu:1"):
            first = dsl.Variable(0.0, name="first")
            one = first.assign_add(x)
        with dsl.control_dependencies([one]), dsl.device("cpu:0"):
            second = dsl.Variable(0.0, name="second")
            two = second.assign_add(1.0)
        with dsl.control_dependencies([two]), dsl.device("cpu:1"):
            last = first.assign_add(100.0)
    with dsl.Session(graph, devices=2, timeout=LIMIT) as session:
        assert session.run(last, {x: 5.0}) == 105.0
        assert session.run(two, {x: 5.0}) == 2.0
    assert (first.value, second.value) == (110.0, 2.0)


def test_a_check_of_an_index_does_not_stand_in_the_way_of_a_derivative(backend: str) -> None:
    with dsl.Graph() as graph:
        x, p = dsl.placeholder(F8, (None,), name="x"), dsl.placeholder(np.bool_, name="p")
        product = lambda: x[0] * x[1]
        made = [
            dsl.cond(p, product, lambda: 0.0),
            dsl.fori_loop(0, 1, lambda i, total: total + product(), 0.0),
            dsl.checkpoint(lambda x: x[0] * x[1])(x),
        ]
        slopes = [dsl.gradients(y, [x])[0] for y in made]
    with dsl.Session(graph) as session:
        for slope in slopes:
            assert session.run(slope, {x: [2.0, 3.0], p: True}).tolist() == [3.0, 2.0]
            with pytest.raises(IndexError, match="index 1 is out of bounds"):
                session.run(slope, {x: [2.0], p: True})


# -- loops over sizes that may be 0 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_a_scan_over_a_placeholder_takes_any_number_of_rows(rows: int, backend: str) -> None:
    f: Callable[[Any, Any], Any] = lambda carry, x: (carry + x.sum(), (carry * x, x > 1))
    count = dsl.Variable(0)

    def counted(x: Any) -> Any:
        count.assign_add(1)
        return x.sum()

    with dsl.Graph() as graph:
        xs = dsl.placeholder(np.float32, (None, 2), name="xs")
        forward, back = dsl.scan(f, 0, xs), dsl.scan(f, 0, xs, reverse=True)
        total, sums = dsl.fold(lambda c, x: c + x.sum(), xs, 1.0), dsl.map(counted, xs)
        (slope,) = dsl.gradients(total, [xs])
    given = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    with dsl.Session(graph) as session:
        found = session.run([forward, back, total, slope], {xs: given})
        assert session.run(sums, {xs: given}).shape == (rows,)
    assert count.value == rows
    expected = [dsl.scan(f, 0, given), dsl.scan(f, 0, given, reverse=True)]
    for one, other in zip(found[:2], expected, strict=True):
        assert one[0] == other[0]
        for a, b in zip(one[1], other[1], strict=True):
            assert (a.dtype, a.tolist()) == (b.dtype, b.tolist())
    assert found[2] == 1.0 + given.sum()
    assert found[3].tolist() == np.ones((rows, 2)).tolist()


LARGE = np.ones(100)


def scaled_by_large(x):
    return (x * LARGE).sum()


def test_functions_that_a_graph_calls_read_arrays_outside_as_they_are_at_the_call() -> None:
    """Also under transforms and in verbs; a graph holds copies."""
    small = np.ones(3)

    def scaled(x):
        return (x * small).sum()

    compiled = dsl.jit(scaled)
    with dsl.Graph() as graph:
        x = dsl.placeholder(np.float64, (3,))
        fetches = [compiled(x), dsl.grad(scaled)(x), dsl.vmap(lambda v: v * small.sum())(x)]
        fetches.append(dsl.fori_loop(0, 2, lambda i, c: c + small, x))
        y = dsl.placeholder(np.float64, (100,))
        large = [dsl.grad(scaled_by_large)(y)]
        small[:] = 5.0
        LARGE[:] = 7.0
        fetches.append(compiled(x))
        large.append(y * LARGE)
    LARGE[:] = 1.0
    given = np.arange(3.0)
    with dsl.Session(graph) as session:
        found = session.run(fetches, {x: given})
        for got, wanted in zip(found, (3.0, np.ones(3), 3 * given, given + 2, 15.0), strict=True):
            np.testing.assert_array_equal(got, wanted)
        first, second = session.run(large, {y: np.ones(100)})
    assert (first == 1.0).all()
    assert (second == 7.0).all()


def test_a_function_that_writes_an_array_outside_is_refused_in_a_graph() -> None:
    held = np.ones(3)

    @dsl.jit
    def write(x):
        held[0] = x[0]
        return held.sum()

    with dsl.Graph(), pytest.raises(UnsupportedError, match="writes into an array from outside"):
        write(dsl.placeholder(np.float64, (3,)))
    assert held[0] == 1.0
