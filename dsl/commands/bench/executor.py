"""`python -m dsl bench executor`: how many steps, firings, trips and elements a second graphs and sessions do.

Each line is the best of several tries, as many as two seconds allow, dsl first; TensorFlow does the same beside it, in its
graph mode, when it is installed, and numba the loop in machine code. Targets are rates of dsl; a missed one is no failure.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import dsl
from dsl.commands.bench.case import size_name
from dsl.commands.progress import progress

__all__ = ["RATES", "Rate", "run_rates"]

Work = Callable[[], object]
Make = Callable[[int], Work]
"""Takes a size and returns the work of that many units."""

CHAIN = 1000  # ops of the chain
ENOUGH = 2.0  # seconds after which no other try of one way begins


@dataclass(frozen=True)
class Rate:
    """One line: `make(size)` returns work of `size` units; the peers' do the same."""

    name: str
    unit: str
    size: int
    tiny: int
    make: Make
    at_least: float | None = None
    peers: dict[str, Callable[[], Make | None]] = field(default_factory=dict)


def run_rates(mode: str, file: Path | None) -> int:
    """Measure all lines and print them; write them to a file if asked to."""
    tries = {"quick": 1, "short": 5, "full": 15}[mode]
    found = [
        _measured(rate, tries, quick=mode == "quick") for rate in progress(RATES, "benchmarks")
    ]
    print("\n".join(_table(found)))
    if file:
        file.write_text(json.dumps({"mode": mode, "rates": found}, indent=1), encoding="utf-8")
    return 0


def _measured(rate: Rate, tries: int, *, quick: bool) -> dict[str, Any]:
    size = rate.tiny if quick else rate.size
    rates = {"dsl": _best(rate.make(size), size, tries)}
    for name, look_up in rate.peers.items():
        make = look_up()
        if make is not None:
            rates[name] = _best(make(size), size, tries)
    return {"name": rate.name, "unit": rate.unit, "at_least": rate.at_least, "rates": rates}


def _best(work: Work, size: int, tries: int) -> float:
    work()  # compiles
    end = time.perf_counter() + ENOUGH
    best = _seconds(work)
    for _ in range(tries - 1):
        if time.perf_counter() > end:
            break
        best = min(best, _seconds(work))
    return size / best


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in found:
        ours, goal = row["rates"]["dsl"], row["at_least"]
        line = f"{row['name']:<44} {ours:>13,.0f} {row['unit']}/s"
        for peer, rate in row["rates"].items():
            if peer != "dsl":
                line += f"   {peer} {rate:,.0f}"
        if goal is not None:
            line += f"   target {goal:,.0f}: {'met' if ours >= goal else 'missed'}"
        yield line


def _repeated(call: Callable[..., object], *args: Any) -> Make:
    def make(size: int) -> Work:
        def work() -> None:
            for _ in range(size):
                call(*args)

        return work

    return make


# --- Steps ---------------------------------------------------------------------------------------------------------------


def _null_step(size: int) -> Work:
    with dsl.Graph() as graph:
        nothing = dsl.group(name="nothing")
    return _repeated(dsl.Session(graph).make_callable(nothing))(size)


def _one_feed(size: int) -> Work:
    with dsl.Graph() as graph:
        x = dsl.placeholder(np.float32, (), name="x")
        y = x + np.float32(1)
    session, feeds = dsl.Session(graph), {x: np.array(1, np.float32)}
    return _repeated(session.run, y, feeds)(size)


def _shared_step(size: int) -> Work:
    with dsl.Graph() as graph:
        bump = dsl.Variable(0).assign_add(1)
    return _repeated(dsl.Session(graph).make_callable(bump))(size)


# --- Tokens ---------------------------------------------------------------------------------------------------------------


def _chain(size: int) -> Work:
    """One firing is one op; fusion is told to leave them alone."""
    from dsl.executor import Executor
    from dsl.ir.build import Builder
    from dsl.ir.types import scalar

    builder = Builder("chain")
    x = y = builder.param(scalar(np.dtype(np.float64)), "x")
    for _ in range(CHAIN):
        y = builder.emit("add", y, x)
    executor = Executor(builder.finish([y]), cluster=False)
    return _repeated(executor.run, [np.float64(1.0)])(max(1, size // CHAIN))


def _while_graph() -> Any:
    with dsl.Graph() as graph:
        n = dsl.placeholder(np.int64, (), name="n")
        _, y = dsl.while_loop(
            lambda i, y: i < n, lambda i, y: (i + 1, y * 0.999 + 0.5), (n * 0, n * 0.0)
        )
    return graph, n, y


def _while_by_tokens(size: int) -> Work:
    from dsl.executor import Executor
    from dsl.passes.lower_control import lower_control
    from dsl.session.cut import cut

    graph, n, y = _while_graph()
    step = cut(graph, [graph.value_of(n)], [graph.value_of(y)], []).graph
    executor = Executor(lower_control(step))
    return lambda: executor.run([np.int64(size)])


def _while_natively(size: int) -> Work:
    graph, n, y = _while_graph()
    step, trips = dsl.Session(graph).make_callable(y, [n]), np.array(size)
    return lambda: step(trips)


def _while_in_numba() -> Make | None:
    if importlib.util.find_spec("numba") is None:
        return None
    numba: Any = importlib.import_module("numba")

    @numba.njit  # type: ignore[untyped-decorator]
    def loop(n: int) -> float:
        i, y = 0, 0.0
        while i < n:
            i, y = i + 1, y * 0.999 + 0.5
        return y

    return lambda size: lambda: loop(size)


# --- Queues ----------------------------------------------------------------------------------------------------------------

_BATCH = 100


def _queue(many: bool) -> Make:
    """Elements from one Python thread to another, one by one or in batches."""

    def make(size: int) -> Work:
        queue = dsl.FIFOQueue(10 * _BATCH, np.float64, ())
        batch, times = np.zeros(_BATCH), size // _BATCH if many else size

        def put() -> None:
            for _ in range(times):
                queue.enqueue_many(batch) if many else queue.enqueue(0.0)

        def work() -> None:
            thread = threading.Thread(target=put)
            thread.start()
            for _ in range(times):
                queue.dequeue_many(_BATCH) if many else queue.dequeue()
            thread.join()

        return work

    return make


def _queue_step(size: int) -> Work:
    """Steps of a graph that take an element and add it to a variable."""
    queue = dsl.FIFOQueue(size, np.float64, ())
    with dsl.Graph() as graph:
        step = dsl.Variable(0.0).assign_add(queue.dequeue())
    run = dsl.Session(graph).make_callable(step)

    def work() -> None:
        queue.enqueue_many(np.zeros(size))
        for _ in range(size):
            run()

    return work


# --- TensorFlow ---------------------------------------------------------------------------------------------------------------


def _tensorflow() -> Any:
    """Return TensorFlow's graph mode, or None if it is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    tensorflow: Any = importlib.import_module("tensorflow")
    return tensorflow.compat.v1


def _in_tensorflow(build: Callable[[Any], Make]) -> Callable[[], Make | None]:
    def look_up() -> Make | None:
        tf = _tensorflow()
        if tf is None:
            return None
        with tf.Graph().as_default():
            return build(tf)

    return look_up


def _tf_null_step(tf: Any) -> Make:
    return _repeated(tf.Session().make_callable(tf.no_op()))


def _tf_one_feed(tf: Any) -> Make:
    x = tf.placeholder(tf.float32, ())
    y = x + 1.0
    return _repeated(tf.Session().run, y, {x: np.array(1, np.float32)})


def _tf_shared_step(tf: Any) -> Make:
    count = tf.get_variable("count", initializer=0, use_resource=True)
    bump, session = count.assign_add(1), tf.Session()
    session.run(count.initializer)
    return _repeated(session.make_callable(bump))


def _tf_plain_session(tf: Any) -> Any:
    """A session whose optimiser leaves ops alone."""
    off = tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)
    config = tf.ConfigProto(graph_options=tf.GraphOptions(optimizer_options=off))
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.Session(config=config)


def _tf_chain(tf: Any) -> Make:
    x = tf.placeholder(tf.float64, ())
    y = x
    for _ in range(CHAIN):
        y = y + x
    step = _tf_plain_session(tf).make_callable(y.op, [x])
    return lambda size: _repeated(step, 1.0)(max(1, size // CHAIN))


def _tf_while(tf: Any) -> Make:
    tf.disable_control_flow_v2()
    n = tf.placeholder(tf.int64, ())
    start = (tf.constant(0, tf.int64), tf.constant(0.0, tf.float64))
    _, y = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 0.999 + 0.5), start)
    step = _tf_plain_session(tf).make_callable(y, [n])
    return lambda size: lambda: step(size)


RATES = (
    Rate("null step, make_callable", "steps", 50_000, 100, _null_step, 200_000,
         {"tensorflow": _in_tensorflow(_tf_null_step)}),
    Rate("Session.run, one feed, one fetch", "steps", 10_000, 100, _one_feed, 30_000,
         {"tensorflow": _in_tensorflow(_tf_one_feed)}),
    Rate("step that writes a variable, make_callable", "steps", 20_000, 100, _shared_step, None,
         {"tensorflow": _in_tensorflow(_tf_shared_step)}),
    Rate(f"token executor, chain of {CHAIN} scalar ops", "firings", 1_000_000, CHAIN, _chain, 2_000_000,
         {"tensorflow": _in_tensorflow(_tf_chain)}),
    Rate("scalar while, token executor", "trips", 50_000, 100, _while_by_tokens, 250_000,
         {"tensorflow": _in_tensorflow(_tf_while)}),
    Rate(f"scalar while, native, {size_name(20_000_000)} trips", "trips", 20_000_000, 1000, _while_natively, None,
         {"numba": _while_in_numba}),
    Rate("queue between two threads, by many", "elements", 400_000, 1000, _queue(many=True), 500_000),
    Rate("queue between two threads, one by one", "elements", 100_000, 100, _queue(many=False)),
    Rate("step that dequeues and writes a variable", "steps", 10_000, 100, _queue_step),
)  # fmt: skip
"""The lines, in their order."""
