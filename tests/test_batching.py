"""Batching: what a graph gives for a batch is what it gives for each item.

First every op of the registry, on its samples, batched over some of its operands; then control flow, effects and symbolic
sizes, with graphs written here. Each batched graph must pass the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs

import dsl
from dsl.autodiff.batching import batch, batch_one_by_one
from dsl.autodiff.batching_rules.table import RULES, rule_of
from dsl.codegen.cpu.native import ParamKind, compile_graph
from dsl.errors import UnsupportedError
from dsl.ir import ops as _registers_the_ops  # noqa: F401
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.graph import Graph, Value
from dsl.ir.interpret import interpret
from dsl.ir.location import Location
from dsl.ir.registry import OPS, Op, Sample, Trait
from dsl.ir.types import BOOL, BY_NAME, I64, TensorType, scalar
from dsl.ir.verify import verify

F64 = BY_NAME["f64"]
Arrays = Sequence[np.ndarray]


# -- the comparison -----------------------------------------------------------------------------------------------


def type_of(x: np.ndarray) -> TensorType:
    return TensorType(x.dtype, x.shape)


def batched_graph(
    graph: Graph, types: Sequence[TensorType], batched: Sequence[bool], size: DimLike
) -> tuple[Graph, list[bool]]:
    """Return a graph for a whole batch, and which of its results are batched."""
    builder = Builder("batched")
    results, flags = batch(graph, builder, [builder.param(t) for t in types], batched, size)
    found = builder.finish(results)
    verify(found)
    return found, flags


def run_batched(graph: Graph, args: Arrays, batched: Sequence[bool], size: int) -> list[np.ndarray]:
    """Return what a batched graph gives, a result that all items share once for each."""
    found, flags = batched_graph(graph, [type_of(x) for x in args], batched, size)
    outputs = interpret(found, args)
    for value, array in zip(found.results, outputs, strict=True):
        assert value.tensor.is_static() is False or value.shape == array.shape
    return [
        y if on else np.broadcast_to(y, (size, *y.shape))
        for y, on in zip(outputs, flags, strict=True)
    ]


def run_items(graph: Graph, args: Arrays, batched: Sequence[bool], size: int) -> list[np.ndarray]:
    rows = [
        interpret(graph, [x[k] if on else x for x, on in zip(args, batched)]) for k in range(size)
    ]
    return [np.stack(column) for column in zip(*rows)]


def check(
    graph: Graph, args: Arrays, batched: Sequence[bool], size: int = 3, ulps: float = 0.0
) -> list[np.ndarray]:
    """Compare a batch with its items; return the results."""
    args = [np.asarray(x) for x in args]
    found = run_batched(graph, args, batched, size)
    for got, wanted in zip(found, run_items(graph, args, batched, size)):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if ulps and wanted.dtype.kind in "fc":
            eps = ulps * np.finfo(wanted.dtype).eps
            scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
            np.testing.assert_allclose(got, wanted, rtol=eps, atol=eps * scale)
        else:
            np.testing.assert_array_equal(got, wanted)
    return found


# -- every op -----------------------------------------------------------------------------------------------------

NOT_SWEPT = {
    **dict.fromkeys(("param", "const"), "have no inputs"),
    **dict.fromkeys(("cond", "while", "scan"), "control flow: below"),
    **dict.fromkeys(
        ("identity", "stop_gradient", "dim_size", "print", "assert", "keep"),
        "have no samples: below",
    ),
    **dict.fromkeys(
        ("switch", "merge", "loop_merge", "enter", "exit", "next_iteration", "loop_cond"),
        "the flat spelling, which is raised before",
    ),
    **dict.fromkeys(
        ("recording_while", "recording_scan", "checkpoint", "custom_vjp", "custom_jvp"),
        "control flow: below",
    ),
}
UNSWEPT_TRAITS = {Trait.DYNAMIC, Trait.EFFECT}  # effects: below, and test_parallel.py
SWEPT = [op for op in OPS.values() if op.name not in NOT_SWEPT and not op.traits & UNSWEPT_TRAITS]
SHOWN = tuple(BY_NAME[name] for name in ("f32", "f64", "c128", "i64", "bool"))
LAPACK = {
    "cholesky", "lu", "qr", "svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "inv", "det", "slogdet", "solve",
    "triangular_solve",
}  # fmt: skip
ITEMS, MOST = 3, 64
ULPS = 8.0  # NumPy adds in another order along other axes, and its vector loops round differently


def samples_of(op: Op) -> list[Sample]:
    """Return the samples of a few dtypes that run; of very many, some."""
    samples = list(op.samples(np.random.default_rng(7)))
    shown = [s for s in samples if not s.inputs or s.inputs[0].dtype in SHOWN] or samples
    return [s for s in shown[:: 1 + len(shown) // MOST] if runs(op, s.inputs, s.attrs)]


def runs(op: Op, inputs: Arrays, attrs: Any) -> bool:
    try:
        with np.errstate(all="ignore"):
            op.numpy(*inputs, **attrs)
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return False
    return True


def variants(op: Op, sample: Sample, k: int) -> np.ndarray:
    """Return a batch of operands like one of a sample, with each of which the op runs."""
    x = sample.inputs[k]
    changed = (np.asarray(change(x)).astype(x.dtype) for change in changes(op, x))
    given = [(*sample.inputs[:k], y, *sample.inputs[k + 1 :]) for y in (x, *changed)]
    valid = [inputs[k] for inputs in given if runs(op, inputs, sample.attrs)]
    return np.stack([valid[n % len(valid)] for n in range(ITEMS)])


def changes(op: Op, x: np.ndarray) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Scaling keeps matrices what they are; indices stay in range when they are moved, or nearly the same."""
    if x.ndim and op.name not in LAPACK:
        return [lambda x: np.roll(x, 1), np.flip]
    if x.dtype.kind in "iu":
        return [lambda x, n=n: x + np.asarray(n).astype(x.dtype) for n in (1, -1, -2)]
    return [np.logical_not] if x.dtype == BOOL else [lambda x: 2 * x, lambda x: 3 * x]


def subsets(count: int) -> Iterator[tuple[bool, ...]]:
    """Yield which operands are batched: each alone, several, and all."""
    for chosen in range(1, count + 1):
        for places in combinations(range(count), chosen):
            if count <= 3 or chosen in (1, count):
                yield tuple(k in places for k in range(count))


def one_node(op: Op, types: Sequence[TensorType], attrs: Any) -> Graph:
    builder = Builder()
    return builder.finish(builder.node(op, map(builder.param, types), attrs).outputs)


@pytest.mark.parametrize("op", SWEPT, ids=lambda op: op.name)
def test_every_op(op: Op) -> None:
    samples = samples_of(op)
    assert samples
    for sample in samples:
        graph = one_node(op, [type_of(x) for x in sample.inputs], sample.attrs)
        for batched in subsets(len(sample.inputs)):
            args = [
                variants(op, sample, k) if on else x
                for k, (x, on) in enumerate(zip(sample.inputs, batched))
            ]
            check(graph, args, batched, ITEMS, max(sample.tolerance, ULPS))


OWN = tuple(OPS.values())
"""Without those that tests in other files register, as kernels of users are."""


def test_an_op_that_is_not_swept_is_tested_below() -> None:
    missing = [op for op in OWN if not samples_of(op) and op.name not in NOT_SWEPT]
    assert not [op.name for op in missing if not op.has(Trait.EFFECT)]


def test_rules_are_of_ops_and_control_flow_has_them() -> None:
    rule_of(OPS["add"])
    assert not set(RULES) - set(OPS)
    assert not {op.name for op in OPS.values() if op.has(Trait.CONTROL)} - set(RULES)


def test_kernels_of_users() -> None:
    """Those of numbers are elementwise; those of arrays run for one item after the other."""
    pytest.importorskip("numba")

    def half(x):  # type: ignore[no-untyped-def]
        return x / 2

    def total(x, y, z):  # type: ignore[no-untyped-def]
        for k in range(len(x)):
            z[k] = x[: k + 1].sum() + y

    for kernel, types in (
        (dsl.kernel(half), [ROW]),
        (dsl.kernel(out=lambda x, y: x)(total), [ROW, FLOAT]),
    ):
        op = kernel._definition._kernel(kernel._definition.source()).op(tuple(types))
        graph = one_node(op, types, {})
        for batched in subsets(len(types)):
            args = [
                rng.normal(size=(3, *t.shape) if on else t.shape) for t, on in zip(types, batched)
            ]
            check(graph, args, batched)


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.has(Trait.DYNAMIC)])
def test_sizes_that_depend_on_data_are_refused(name: str) -> None:
    builder = Builder()
    builder.loc = Location("user.py", 7)
    x = builder.param(TensorType(I64, (4,)))
    graph = builder.finish(builder.node(name, (x,), {}).outputs)
    with pytest.raises(
        UnsupportedError, match=f"`{name}` cannot be batched(.|\\n)*user.py(.|\\n)*Fix: use a mask"
    ):
        batched_graph(graph, [TensorType(I64, (3, 4))], [True], 3)


# -- graphs by hand -----------------------------------------------------------------------------------------------


def graph_of(name: str, types: Sequence[TensorType], fn: Callable[..., Any]) -> Graph:
    """Return the graph of `fn(a, *params)`."""
    builder = Builder(name)
    found = fn(Algebra(builder), *map(builder.param, types))
    return builder.finish(found if isinstance(found, (tuple, list)) else [found])


def cond(
    a: Algebra, pred: Value, yes: Callable[..., Any], no: Callable[..., Any], *operands: Value
) -> tuple[Value, ...]:
    types = [x.tensor for x in operands]
    regions = [graph_of("yes", types, yes), graph_of("no", types, no)]
    results = [v.type for v in regions[0].results]
    return a.builder.node("cond", (pred, *operands), {}, regions=regions, types=results).outputs


def while_(a: Algebra, test: Callable[..., Any], body: Callable[..., Any], *inputs: Value, carried: int, op: str = "while",
           types: Sequence[TensorType] = ()) -> tuple[Value, ...]:  # fmt: skip
    takes = [x.tensor for x in inputs]
    regions = [graph_of("test", takes, test), graph_of("body", takes, body)]
    return a.builder.node(
        op, inputs, {"carried": carried}, regions=regions, types=[*takes[:carried], *types]
    ).outputs


def scan(a: Algebra, trips: Value, body: Callable[..., Any], *inputs: Value, carried: int, op: str = "scan",
         types: Sequence[TensorType] = ()) -> tuple[Value, ...]:  # fmt: skip
    takes = [scalar(I64), *(x.tensor for x in inputs)]
    return a.builder.node(
        op, (trips, *inputs), {"carried": carried}, regions=[graph_of("body", takes, body)],
        types=[*takes[1 : 1 + carried], *types],
    ).outputs  # fmt: skip


NUMBER, FLOAT, FLAG = scalar(I64), scalar(F64), scalar(BOOL)
ROW = TensorType(F64, (4,))
rng = np.random.default_rng(5)


def ops_in(graph: Graph) -> set[str]:
    return {node.op.name for node in graph.walk()}


def test_identities_and_sizes() -> None:
    graph = graph_of(
        "f", [ROW], lambda a, x: (a.identity(x), a.stop_gradient(x), a.dim_size(x, axis=0))
    )
    check(graph, [rng.normal(size=(3, 4))], [True])
    assert batched_graph(graph, [TensorType(F64, (3, 4))], [True], 3)[1] == [True, True, False]


def test_what_items_share_is_computed_once() -> None:
    graph = graph_of("f", [ROW, ROW], lambda a, x, w: (a.add(x, a.exp(w)), a.exp(w)))
    found, flags = batched_graph(graph, [TensorType(F64, (3, 4)), ROW], [True, False], 3)
    assert flags == [True, False]
    assert next(n for n in found.nodes if n.op.name == "exp").output.shape == (4,)


# -- branches -----------------------------------------------------------------------------------------------------


def branching(yes: Callable[..., Any], no: Callable[..., Any]) -> Graph:
    return graph_of("f", [FLAG, ROW, ROW], lambda a, p, x, y: cond(a, p, yes, no, x, y))


ONE_SIDED = branching(lambda a, x, y: (a.add(x, 1.0), y), lambda a, x, y: (y, y))
FLAGS = np.array([True, False, True])
X, Y = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))


@pytest.mark.parametrize("pred", [True, False])
@pytest.mark.parametrize("batched", [(True, False), (False, True), (True, True)])
def test_items_that_go_the_same_way(pred: bool, batched: tuple[bool, bool]) -> None:
    args = [np.array(pred), X if batched[0] else X[0], Y if batched[1] else Y[0]]
    check(ONE_SIDED, args, [False, *batched])


@pytest.mark.parametrize("batched", [(False, False), (True, False), (False, True), (True, True)])
def test_items_that_go_different_ways(batched: tuple[bool, bool]) -> None:
    args = [FLAGS, X if batched[0] else X[0], Y if batched[1] else Y[0]]
    check(ONE_SIDED, args, [True, *batched])


def test_a_result_that_does_not_depend_on_the_way_is_not_batched() -> None:
    found, flags = batched_graph(
        ONE_SIDED, [TensorType(BOOL, (3,)), ROW, ROW], [True, False, False], 3
    )
    assert flags == [True, False]
    assert "cond" not in ops_in(found)


def test_a_branch_that_may_raise_runs_only_for_its_items() -> None:
    def element(a: Algebra, x: Value, k: Value) -> Value:
        return a.reshaped(a.dynamic_slice(x, k, axis=0, size=1), ())

    graph = graph_of(
        "f",
        [FLAG, ROW, NUMBER],
        lambda a, p, x, k: cond(a, p, element, lambda a, x, k: a.sum(x, axes=(0,)), x, k),
    )
    check(graph, [FLAGS, X, np.array([3, 99, 0])], [True, True, True])
    check(graph, [FLAGS, X[0], np.array([3, 99, 0])], [True, False, True])
    with pytest.raises(IndexError, match="99"):
        run_batched(graph, [~FLAGS, X, np.array([3, 99, 0])], [True, True, True], 3)


def test_a_branch_with_an_effect_runs_only_for_its_items(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def shout(a: Algebra, x: Value) -> Value:
        a.builder.node("print", (x,), {"template": "{}", "end": ";"})
        return x

    graph = graph_of(
        "f", [FLAG, NUMBER], lambda a, p, x: cond(a, p, shout, lambda a, x: a.negative(x), x)
    )
    found = run_batched(graph, [FLAGS, np.arange(3)], [True, True], 3)
    assert found[0].tolist() == [0, -1, 2]
    assert capsys.readouterr().out == "0;2;"


def test_sizes_that_depend_on_data_may_stay_inside_a_branch() -> None:
    def count(a: Algebra, x: Value) -> Value:
        (index,) = a.builder.node("nonzero", (x,), {}).outputs
        return a.sum(index, axes=(0,))

    graph = graph_of(
        "f",
        [FLAG, ROW],
        lambda a, p, x: cond(a, p, count, lambda a, x: a.builder.constant(-1, I64), x),
    )
    x = rng.integers(0, 2, (3, 4)).astype(float)
    check(graph, [FLAGS, x], [True, True])
    check(graph, [np.array(True), x], [False, True])


# -- loops --------------------------------------------------------------------------------------------------------


def collatz(a: Algebra, n: Value, steps: Value) -> list[Value]:
    even = a.equal(a.remainder(n, 2), 0)
    return [a.where(even, a.floor_divide(n, 2), a.add(a.multiply(n, 3), 1)), a.add(steps, 1)]


def collatz_of(n_type: TensorType) -> Graph:
    def run(a: Algebra, n: Value) -> Any:
        zero = a.builder.constant(0, I64)
        return while_(a, lambda a, n, steps: a.greater(n, 1), collatz, n, zero, carried=2)

    return graph_of("f", [n_type], run)


@pytest.mark.parametrize("n", [[6, 1, 27], [1, 1, 1], [7], [], [0, 3]], ids=str)
def test_items_that_make_different_numbers_of_trips(n: list[int]) -> None:
    found = check(collatz_of(NUMBER), [np.array(n, np.int64)], [True], len(n))
    if n == [6, 1, 27]:
        assert found[1].tolist() == [8, 0, 111]


def powers(a: Algebra, trips: Value, x: Value, w: Value) -> Any:
    """Count up to `trips` by a `while`, multiplying; `w` is never batched by itself."""

    def body(a: Algebra, k: Value, x: Value, w: Value, y: Value, trips: Value) -> list[Value]:
        return [a.add(k, 1), a.multiply(x, y), a.add(w, 1.0), y]

    def test(a: Algebra, k: Value, x: Value, w: Value, y: Value, trips: Value) -> Value:
        return a.less(k, trips)

    return while_(a, test, body, a.builder.constant(0, I64), x, w, a.exp(w), trips, carried=4)


POWERS = graph_of("f", [NUMBER, ROW, ROW], powers)


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("batched", [(True, False), (False, True), (True, True)])
def test_a_while_with_the_same_trips_for_all(trips: int, batched: tuple[bool, bool]) -> None:
    args = [np.array(trips), X if batched[0] else X[0], Y if batched[1] else Y[0]]
    check(POWERS, args, [False, *batched])


def test_what_the_items_of_a_loop_share_stays_shared() -> None:
    rows = TensorType(F64, (3, 4))
    _, flags = batched_graph(POWERS, [NUMBER, rows, ROW], [False, True, False], 3)
    assert flags == [False, True, False, False]
    _, flags = batched_graph(POWERS, [TensorType(I64, (3,)), ROW, ROW], [True, False, False], 3)
    assert flags == [True, True, True, False]


@pytest.mark.parametrize("batched", [(False, False), (True, False), (False, True), (True, True)])
def test_a_while_with_trips_of_each_item(batched: tuple[bool, bool]) -> None:
    args = [np.array([2, 0, 3]), X if batched[0] else X[0], Y if batched[1] else Y[0]]
    check(POWERS, args, [True, *batched])


def test_batches_spread_around_a_loop() -> None:
    """The first carried value becomes batched in the third trip, so to speak."""

    def body(a: Algebra, k: Value, x: Value, y: Value, z: Value) -> list[Value]:
        return [y, z, a.add(z, a.cast(k, dtype=F64))]

    graph = graph_of(
        "f",
        [NUMBER, FLOAT, FLOAT, FLOAT],
        lambda a, n, *carried: scan(a, n, body, *carried, carried=3),
    )
    for trips in (0, 1, 2, 5):
        check(graph, [np.array(trips), 1.0, 2.0, np.arange(3.0)], [False, False, False, True])


def summed(a: Algebra, trips: Value, x: Value, s: Value) -> Any:
    """Add elements of `x` up to an index, which past the end raises."""

    def body(a: Algebra, k: Value, s: Value, x: Value) -> Value:
        return a.add(s, a.reshaped(a.dynamic_slice(x, k, axis=0, size=1), ()))

    return scan(a, trips, body, s, x, carried=1)


SUMMED = graph_of("f", [NUMBER, ROW, FLOAT], summed)


@pytest.mark.parametrize(
    "batched", [(False, True, False), (True, False, False), (True, True, True)]
)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_scan_whose_body_may_raise(batched: tuple[bool, ...], size: int) -> None:
    full = [np.array([4, 0, 2])[:size], X[:size], np.arange(3.0)[:size]]
    shared = [np.array(4), X[0], np.array(0.5)]
    check(SUMMED, [x if on else y for x, y, on in zip(full, shared, batched)], batched, size)


def test_a_while_whose_body_may_raise_ends_each_item_where_it_should() -> None:
    """The index that ends an item's loop is out of range."""

    def body(a: Algebra, k: Value, s: Value, x: Value) -> list[Value]:
        return [a.add(k, 1), a.add(s, a.reshaped(a.dynamic_slice(x, k, axis=0, size=1), ()))]

    def run(a: Algebra, k: Value, x: Value) -> Any:
        zero = a.builder.constant(0.0, F64)
        return while_(a, lambda a, k, s, x: a.less(k, 4), body, k, zero, x, carried=2)

    check(graph_of("f", [NUMBER, ROW], run), [np.array([2, 7, 0]), X], [True, True])


@pytest.mark.parametrize("trips", [[2, 0, 5], [0, 0, 0], [-1, 2, 1], [3], []], ids=str)
def test_a_scan_with_trips_of_each_item(trips: list[int]) -> None:
    def body(a: Algebra, k: Value, x: Value, w: Value) -> Value:
        return a.add(a.multiply(x, 0.5), a.multiply(w, a.cast(k, dtype=F64)))

    graph = graph_of("f", [NUMBER, ROW, ROW], lambda a, n, x, w: scan(a, n, body, x, w, carried=1))
    check(graph, [np.array(trips, np.int64), X[0], Y[0]], [True, False, False], len(trips))
    check(
        graph, [np.array(trips, np.int64), X[: len(trips)], Y[0]], [True, True, False], len(trips)
    )


def nested(a: Algebra, n: Value, x: Value) -> Any:
    """A scan of a while of a branch."""

    def inner(a: Algebra, k: Value, x: Value) -> list[Value]:
        big = a.greater(a.sum(x, axes=(0,)), 0.0)
        (y,) = cond(a, big, lambda a, x: a.multiply(x, 0.5), lambda a, x: a.negative(x), x)
        return [a.subtract(k, 1), a.add(y, a.cast(k, dtype=F64))]

    def outer(a: Algebra, k: Value, x: Value, n: Value) -> Value:
        return while_(a, lambda a, k, x: a.greater(k, 0), inner, a.add(n, k), x, carried=2)[1]

    return scan(a, a.builder.constant(3, I64), outer, x, n, carried=1)


@pytest.mark.parametrize("batched", [(True, False), (False, True), (True, True)])
def test_loops_and_branches_within_each_other(batched: tuple[bool, bool]) -> None:
    args = [np.array([2, 0, 3]) if batched[0] else np.array(2), X if batched[1] else X[0]]
    check(graph_of("f", [NUMBER, ROW], nested), args, batched)


def test_a_loop_may_have_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    def body(a: Algebra, k: Value, x: Value) -> Value:
        a.builder.node("print", (k, x), {"template": "{}:{}", "end": " "})
        return a.add(x, 1)

    graph = graph_of("f", [NUMBER, NUMBER], lambda a, n, x: scan(a, n, body, x, carried=1))
    run_batched(graph, [np.array(2), np.array([10, 20])], [False, True], 2)
    assert capsys.readouterr().out == "0:10 0:20 1:11 1:21 "
    run_batched(graph, [np.array([2, 1]), np.array([10, 20])], [True, True], 2)
    assert capsys.readouterr().out == "0:10 1:11 0:20 "


# -- recording loops, calls ---------------------------------------------------------------------------------------


def recorded(a: Algebra, trips: Value, x: Value, w: Value) -> Any:
    def body(a: Algebra, k: Value, x: Value, w: Value) -> list[Value]:
        y = a.multiply(x, w)
        return [y, y, a.exp(w), k]

    stack = [TensorType(F64, (3, 4)), TensorType(F64, (3, 4)), TensorType(I64, (3,))]
    return scan(a, trips, body, x, w, carried=1, op="recording_scan", types=stack)


@pytest.mark.parametrize("batched", [(True, False), (False, True), (True, True)])
def test_a_recording_scan(batched: tuple[bool, bool]) -> None:
    graph = graph_of("f", [NUMBER, ROW, ROW], recorded)
    args = [np.array(3), X if batched[0] else X[0], Y if batched[1] else Y[0]]
    check(graph, args, [False, *batched])


def counted(a: Algebra, n: Value, x: Value) -> Any:
    def body(a: Algebra, k: Value, x: Value, n: Value) -> list[Value]:
        y = a.sin(x)
        return [a.add(k, 1), y, x]

    zero, stack = a.builder.constant(0, I64), TensorType(F64, (Symbol("trips"), 4))
    return while_(
        a, lambda a, k, x, n: a.less(k, n), body, zero, x, n, carried=2, op="recording_while", types=[stack]
    )  # fmt: skip


@pytest.mark.parametrize("trips", [0, 3])
def test_a_recording_while(trips: int) -> None:
    check(graph_of("f", [NUMBER, ROW], counted), [np.array(trips), X], [False, True])


def test_a_recording_loop_keeps_as_much_for_each_item() -> None:
    for graph in (graph_of("f", [NUMBER, ROW], counted),):
        with pytest.raises(
            UnsupportedError, match="`recording_while` cannot be batched: items would differ"
        ):
            batched_graph(graph, [TensorType(I64, (3,)), ROW], [True, False], 3)


def call(
    a: Algebra, op: str, fns: Sequence[Graph], *operands: Value, **attrs: Any
) -> tuple[Value, ...]:
    types = [v.type for v in fns[0].results]
    return a.builder.node(op, operands, attrs, regions=fns, types=types).outputs


def test_a_checkpoint() -> None:
    region = graph_of("body", [ROW, ROW], lambda a, x, w: (a.sin(a.multiply(x, w)), a.exp(w)))
    graph = graph_of("f", [ROW, ROW], lambda a, x, w: call(a, "checkpoint", [region], x, w))
    check(graph, [X, Y[0]], [True, False])
    found, flags = batched_graph(graph, [TensorType(F64, (3, 4)), ROW], [True, False], 3)
    assert flags == [True, False]
    assert "checkpoint" in ops_in(found)


def test_a_function_with_a_vjp_of_its_own() -> None:
    """The shared operand gets the sum of the cotangents of all items."""
    primal = graph_of("f", [ROW, ROW], lambda a, x, w: a.multiply(x, w))
    forward = graph_of("fwd", [ROW, ROW], lambda a, x, w: (a.multiply(x, w), x, w))
    backward = graph_of("bwd", [ROW] * 3, lambda a, x, w, g: (a.multiply(g, w), a.multiply(g, x)))
    graph = graph_of(
        "f",
        [ROW, ROW],
        lambda a, x, w: call(
            a, "custom_vjp", [primal, forward, backward], x, w, operands=2, given=(0, 1)
        ),
    )
    check(graph, [X, Y[0]], [True, False])
    found, _ = batched_graph(graph, [TensorType(F64, (3, 4)), ROW], [True, False], 3)
    (node,) = found.nodes
    np.testing.assert_array_equal(interpret(node.regions[1], [X, Y[0]])[0], X * Y[0])
    gx, gw = interpret(node.regions[2], [*interpret(node.regions[1], [X, Y[0]])[1:], X + 1])
    np.testing.assert_allclose(gx, (X + 1) * Y[0])
    np.testing.assert_allclose(gw, ((X + 1) * X).sum(0))


def test_a_function_with_a_jvp_of_its_own() -> None:
    primal = graph_of("f", [ROW, ROW], lambda a, x, w: a.multiply(x, w))
    rule = graph_of(
        "rule",
        [ROW] * 4,
        lambda a, x, w, dx, dw: (a.multiply(x, w), a.add(a.multiply(dx, w), a.multiply(x, dw))),
    )
    graph = graph_of(
        "f",
        [ROW, ROW],
        lambda a, x, w: call(a, "custom_jvp", [primal, rule], x, w, operands=2, given=(0, 1)),
    )
    check(graph, [X, Y[0]], [True, False])
    found, _ = batched_graph(graph, [TensorType(F64, (3, 4)), ROW], [True, False], 3)
    _, t = interpret(found.nodes[0].regions[1], [X, Y[0], X + 1, Y[1]])
    np.testing.assert_allclose(t, (X + 1) * Y[0] + X * Y[1])


def test_a_whole_graph_item_by_item() -> None:
    """What cannot be batched can be run so, if its results are of one size."""

    def run(a: Algebra, n: Value, x: Value) -> list[Value]:
        (index,) = a.builder.node("nonzero", (a.greater(x, 0.0),), {}).outputs
        *_, last, stack = counted(a, n, x)
        return [a.sum(index, axes=(0,)), last, a.sum(stack, axes=(0,))]

    graph, builder = graph_of("f", [NUMBER, ROW], run), Builder()
    params = [builder.param(TensorType(I64, (3,))), builder.param(TensorType(F64, (3, 4)))]
    results, flags = batch_one_by_one(graph, builder, params, [True, True], 3)
    found = builder.finish(results)
    verify(found)
    assert flags == [True, True, True]
    args = [np.array([2, 0, 3]), X]
    for got, wanted in zip(
        interpret(found, args), run_items(graph, args, flags[:2], 3), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(
        UnsupportedError, match="`recording_while` cannot be batched: the size of a result"
    ):
        batch_one_by_one(graph_of("f", [NUMBER, ROW], counted), builder, params, [True, True], 3)


def test_item_by_item_computes_once_what_items_share(capsys: pytest.CaptureFixture[str]) -> None:
    def run(a: Algebra, n: Value, x: Value) -> list[Value]:
        a.builder.node("print", (n,), {"template": "n {}", "end": "\n"})
        (index,) = a.builder.node("nonzero", (a.greater(x, 0.0),), {}).outputs
        return [a.sum(index, axes=(0,)), a.multiply(n, n)]

    graph, builder = graph_of("f", [NUMBER, ROW], run), Builder()
    params = [builder.param(NUMBER), builder.param(TensorType(F64, (3, 4)))]
    results, flags = batch_one_by_one(graph, builder, params, [False, True], 3)
    assert flags == [True, False]
    found = builder.finish(results)
    verify(found)
    assert interpret(found, [np.int64(3), X])[1] == 9
    assert capsys.readouterr().out == "n 3\n"


# -- effects ------------------------------------------------------------------------------------------------------


def asserting(a: Algebra, pred: Value, x: Value) -> Value:
    a.builder.node("assert", (pred, x), {"message": "bad {}", "error": "ValueError"})
    return x


def test_an_assertion_tells_of_the_first_item_that_fails() -> None:
    graph = graph_of("f", [FLAG, NUMBER], asserting)
    x = np.array([10, 20, 30])
    for batched in ((True, True), (True, False), (False, True)):
        good = [np.ones(3, bool) if batched[0] else np.True_, x if batched[1] else x[0]]
        check(graph, good, batched)
        bad = [np.array([True, False, False]) if batched[0] else np.False_, good[1]]
        wanted = {(True, True): "bad 20", (True, False): "bad 10", (False, True): "bad 10"}
        with pytest.raises(ValueError, match=wanted[batched]):
            run_batched(graph, bad, batched, 3)


def test_no_item_fails_an_assertion() -> None:
    check(
        graph_of("f", [FLAG, NUMBER], asserting),
        [np.ones(0, bool), np.ones(0, int)],
        [True, True],
        0,
    )


def test_an_op_that_is_kept_raises_for_any_item() -> None:
    def kept(a: Algebra, x: Value) -> Value:
        a.builder.node("keep", (a.inv(x),), {})
        return x

    graph = graph_of("f", [TensorType(F64, (2, 2))], kept)
    check(graph, [np.stack([np.eye(2)] * 3)], [True])
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        run_batched(graph, [np.stack([np.eye(2), np.zeros((2, 2))])], [True], 2)


def test_prints_go_item_by_item_in_program_order(capsys: pytest.CaptureFixture[str]) -> None:
    def run(a: Algebra, x: Value, w: Value) -> Value:
        for values, template in (((x,), "x{}"), ((w,), "w{}"), ((x, w), "{}{}")):
            a.builder.node("print", values, {"template": template, "end": " "})
        return x

    run_batched(
        graph_of("f", [NUMBER, NUMBER], run), [np.array([1, 2]), np.array(7)], [True, False], 2
    )
    assert capsys.readouterr().out == "x1 x2 w7 17 27 "


# -- sizes --------------------------------------------------------------------------------------------------------

N, B = Symbol("n", 1), Symbol("b")


def check_symbolic(
    run: Callable[..., Any], n: int, size: int, batched: Sequence[bool], *types: TensorType
) -> None:
    """Compare a batch of symbolic sizes with its items."""
    graph = graph_of("f", types, run)
    given = [t.with_shape((B, *t.shape)) if on else t for t, on in zip(types, batched)]
    found, flags = batched_graph(graph, given, batched, B)
    shapes = [tuple({N: n, B: size}.get(d, d) for d in t.shape) for t in given]
    args = [
        rng.normal(size=shape) if t.dtype == F64 else rng.integers(0, n, shape)
        for t, shape in zip(given, shapes)
    ]
    outputs = interpret(found, args)
    for got, wanted, on in zip(outputs, run_items(graph, args, batched, size), flags):
        np.testing.assert_allclose(
            got if on else np.broadcast_to(got, wanted.shape), wanted, rtol=1e-12
        )


VECTOR, MATRIX, INDEX = TensorType(F64, (N,)), TensorType(F64, (N, N)), TensorType(I64, (N,))
SYMBOLIC: dict[str, tuple[Callable[..., Any], list[TensorType]]] = {
    "elementwise": (lambda a, x, y: a.add(x, y), [MATRIX, VECTOR]),
    "broadcast": (lambda a, x: a.broadcast_to(x, shape=(3, N)), [VECTOR]),
    "reshape": (lambda a, x: a.reshape(x, shape=(N * N,)), [MATRIX]),
    "matmul": (lambda a, x, y: a.matmul(x, y), [MATRIX, VECTOR]),
    "matmul of matrices": (lambda a, x, y: a.matmul(x, y), [MATRIX, MATRIX]),
    "gather": (lambda a, x, i: a.gather(x, i, axes=(0,)), [MATRIX, INDEX]),
    "scatter": (lambda a, x, i: a.scatter(a.zeros(VECTOR), x, i, axes=(0,), mode="add"), [VECTOR, INDEX]),
    "pad": (lambda a, x, v: a.pad(x, v, low=(1,), high=(N,)), [VECTOR, FLOAT]),
    "iota": (lambda a, x, y: a.add(a.add(y, x), a.iota(size=N, dtype=F64)), [FLOAT, VECTOR]),
    "element": (lambda a, x, i: a.dynamic_slice(x, i, axis=0, size=1), [VECTOR, NUMBER]),
    "size": (lambda a, x: a.multiply(x, a.cast(a.dim_size(x, axis=0), dtype=F64)), [VECTOR]),
    "search": (lambda a, x, y: a.searchsorted(a.sort(x, axis=0, stable=True), y, side="left"), [VECTOR, VECTOR]),
    "places": (lambda a, x, i: a.nth_element(x, i, axis=0), [MATRIX, INDEX]),
    "branch": (
        lambda a, x, y: cond(a, a.less(a.sum(x, axes=(0,)), 0.0), lambda a, x, y: x, lambda a, x, y: a.add(x, y), x, y),
        [VECTOR, VECTOR],
    ),
    "loop": (
        lambda a, i, x: scan(a, i, lambda a, k, x: a.add(x, a.cast(k, dtype=F64)), x, carried=1),
        [NUMBER, VECTOR],
    ),
    "checked loop": (
        lambda a, i, x: scan(a, i, lambda a, k, x: a.add(x, a.dynamic_slice(x, k, axis=0, size=1)), x, carried=1),
        [NUMBER, VECTOR],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SYMBOLIC)
@pytest.mark.parametrize("size", [2, 1])
def test_symbolic_sizes(case: str, size: int) -> None:
    run, types = SYMBOLIC[case]
    for batched in subsets(len(types)):
        check_symbolic(run, 5, size, batched, *types)


def test_a_size_of_each_item_is_refused() -> None:
    def run(a: Algebra, n: Value) -> Value:
        return a.full(a.builder.constant(0.0, F64), shape=(a.builder.as_dim(n),))

    graph = graph_of("f", [NUMBER], run)
    with pytest.raises(
        UnsupportedError, match="`full` cannot be batched: a size in it would differ"
    ):
        batched_graph(graph, [TensorType(I64, (3,))], [True], 3)


def test_a_refusal_names_what_the_user_called() -> None:
    with pytest.raises(
        UnsupportedError, match=r"`full`, which `np.bincount` needs, cannot(.|\n)*test_batching.py"
    ):
        dsl.vmap(lambda x: np.bincount(x, minlength=4))(np.array([[1, 2], [0, 1]]))


def test_a_size_that_items_share_is_data() -> None:
    def run(a: Algebra, n: Value, x: Value) -> Value:
        size = a.builder.as_dim(n)
        return a.sum(a.multiply(a.iota(size=size, dtype=F64), x), axes=(0,))

    graph = graph_of("f", [NUMBER, FLOAT], run)
    check(graph, [np.array(4), np.arange(3.0)], [False, True])


def test_one_graph_twice_in_one_builder() -> None:
    """Symbols are a graph's own: the two copies have different sizes."""

    def run(a: Algebra, n: Value, x: Value) -> Value:
        return a.multiply(a.iota(size=a.builder.as_dim(n), dtype=F64), x)

    graph, builder = graph_of("f", [NUMBER, FLOAT], run), Builder()
    n, m, x = (builder.param(t) for t in (NUMBER, NUMBER, TensorType(F64, (3,))))
    results = [batch(graph, builder, [size, x], [False, True], 3)[0][0] for size in (n, m)]
    found = builder.finish(results)
    verify(found)
    assert [y.shape for y in interpret(found, [2, 5, np.ones(3)])] == [(3, 2), (3, 5)]


def test_regions_get_the_sizes_of_each_copy() -> None:
    """The second copy calls its sizes by other names, in loops that items share too."""

    def run(a: Algebra, n: Value, x: Value) -> Any:
        size = a.builder.as_dim(n) + 1
        zeros = a.full(a.builder.constant(0.0, F64), shape=(size,))
        loop = scan(a, n, lambda a, k, y: a.add(y, 1.0), zeros, carried=1)
        return scan(a, n, lambda a, k, y, x: a.add(y, x), *loop, x, carried=1)

    graph, builder = graph_of("f", [NUMBER, FLOAT], run), Builder()
    n, m, x = (builder.param(t) for t in (NUMBER, NUMBER, TensorType(F64, (3,))))
    results = [batch(graph, builder, [size, x], [False, True], 3)[0][0] for size in (n, m)]
    found = builder.finish(results)
    verify(found)
    for k, y in zip((2, 5), interpret(found, [2, 5, np.arange(3.0)])):
        np.testing.assert_array_equal(y, np.repeat(k + k * np.arange(3.0)[:, None], k + 1, axis=1))


def test_a_value_that_grows_from_trip_to_trip() -> None:
    size = Symbol("k")

    def body(a: Algebra, trip: Value, x: Value) -> Value:
        return a.concatenate(x, x, axis=0)

    grown = graph_of("body", [NUMBER, TensorType(F64, (size,))], body)

    def run(a: Algebra, n: Value, x: Value) -> Any:
        types = [TensorType(F64, (Symbol("d"),))]
        return a.builder.node("scan", (n, x), {"carried": 1}, regions=[grown], types=types).outputs

    graph = graph_of("f", [NUMBER, ROW], run)
    check(graph, [np.array(2), X], [False, True])
    with pytest.raises(
        UnsupportedError, match="`scan` cannot be batched: the size of a value would differ"
    ):
        batched_graph(graph, [TensorType(I64, (3,)), ROW], [True, False], 3)


# -- errors of one item -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [-1, 3])
@pytest.mark.parametrize("op", ["dynamic_slice", "update_dynamic_slice"])
def test_a_box_that_leaves_its_array(op: str, start: int) -> None:
    """An item's box becomes indices, which count from the end; boxes do not."""

    def run(a: Algebra, x: Value, k: Value) -> Value:
        if op == "dynamic_slice":
            return a.dynamic_slice(x, k, axis=0, size=2)
        return a.update_dynamic_slice(x, a.slice(x, start=(0,), size=(2,), step=(1,)), k, axis=0)

    graph = graph_of("f", [ROW, NUMBER], run)
    with pytest.raises(IndexError, match="out of bounds"):
        run_batched(graph, [X, np.array([0, start, 1])], [True, True], 3)


# -- random programs ----------------------------------------------------------------------------------------------


def shifted(x: np.ndarray, k: int) -> np.ndarray:
    return np.logical_xor(x, bool(k % 2)) if x.dtype == BOOL else x + x.dtype.type(k)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.data())
def test_random_programs(drawn: tuple[Graph, list[Any]], data: st.DataObject) -> None:
    graph, args = drawn
    batched = data.draw(st.lists(st.booleans(), min_size=len(args), max_size=len(args)))
    size = B if data.draw(st.booleans()) and any(batched) else 3
    types = [
        p.tensor.with_shape((size, *p.shape)) if on else p.tensor
        for p, on in zip(graph.params, batched)
    ]
    found, flags = batched_graph(graph, types, batched, size)
    given_ = [
        np.stack([shifted(x, k) for k in range(3)]) if on else x for x, on in zip(args, batched)
    ]
    with np.errstate(all="ignore"):
        outputs, items = interpret(found, given_), run_items(graph, given_, batched, 3)
    for got, wanted, on in zip(outputs, items, flags, strict=True):
        np.testing.assert_array_equal(got if on else np.broadcast_to(got, wanted.shape), wanted)


# -- native code --------------------------------------------------------------------------------------------------

NATIVE: dict[str, tuple[Graph, list[np.ndarray], list[bool]]] = {
    "collatz": (collatz_of(NUMBER), [np.array([6, 1, 27])], [True]),
    "checked scan": (SUMMED, [np.array([4, 0, 2]), X, np.arange(3.0)], [True, True, True]),
    "branch": (ONE_SIDED, [FLAGS, X, Y[0]], [True, True, False]),
    "nested": (graph_of("f", [NUMBER, ROW], nested), [np.array([2, 0, 3]), X], [True, True]),
    "assertion": (graph_of("f", [FLAG, NUMBER], asserting), [np.ones(3, bool), np.arange(3)], [True, True]),
}  # fmt: skip


@pytest.mark.parametrize("case", NATIVE)
def test_native_code_of_batches(case: str) -> None:
    graph, args, batched = NATIVE[case]
    found, _ = batched_graph(graph, [type_of(x) for x in args], batched, 3)
    native = compile_graph(found, [ParamKind("array", None) for _ in found.params])
    for got, wanted in zip(native([x.copy() for x in args]), interpret(found, args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-14)
