"""Input pipelines: order, shards, shuffling, batches, errors, stopping early without leaving threads behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsl
from dsl.errors import ConfigError, ShapeError, TypeRuleError, UnsupportedError

LIMIT = 20.0  # seconds; only a failing test waits so long


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Every thread of a pipeline ends with its test."""
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("dsl input"):
            thread.join(LIMIT)
            assert not thread.is_alive(), thread.name


def numbers(first: int = 0, count: int = 10) -> Iterator[int]:
    yield from range(first, first + count)


def forever() -> Iterator[int]:
    k = 0
    while True:
        yield k
        k += 1


def failing(count: int) -> Iterator[int]:
    yield from range(count)
    raise ValueError("no more")


class Pair(NamedTuple):
    x: Any
    y: Any


# --- Order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 4, 100])
@pytest.mark.parametrize(
    "source",
    [numbers, range(10), list(range(10)), np.arange(10)],
    ids=["function", "range", "list", "array"],
)
def test_items_come_in_order(source: Any, prefetch: int) -> None:
    assert list(dsl.input_pipeline(source, prefetch=prefetch)) == list(range(10))


def test_a_generator_is_read_once() -> None:
    pipeline = dsl.input_pipeline(numbers())
    assert list(pipeline) == list(range(10))
    with pytest.raises(UnsupportedError, match="gives its items once") as caught:
        iter(pipeline)
    assert "generator function" in caught.value.remedy


def test_each_iteration_is_an_epoch() -> None:
    pipeline = dsl.input_pipeline(numbers)
    assert list(pipeline) == list(pipeline) == list(range(10))


def test_shards_take_turns() -> None:
    shards = [partial(numbers, 10 * k, n) for k, n in enumerate([3, 1, 2, 2])]
    assert list(dsl.input_pipeline(shards, workers=4)) == [0, 10, 20, 30, 1, 21, 31, 2]
    assert list(dsl.input_pipeline(shards, workers=2)) == [0, 10, 1, 30, 2, 31, 20, 21]
    assert list(dsl.input_pipeline(shards, workers=1)) == [0, 1, 2, 10, 20, 21, 30, 31]
    assert list(dsl.input_pipeline([numbers(0, 2), numbers(5, 2)])) == [0, 5, 1, 6]


def test_shards_without_order_give_all_items() -> None:
    shards = [partial(numbers, 100 * k, 50) for k in range(5)]
    found = list(dsl.input_pipeline(shards, workers=3, ordered=False, map=lambda x: x))
    assert sorted(found) == sorted(x for shard in shards for x in shard())


def test_shards_are_read_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def shard(k: int) -> Iterator[int]:
        meeting.wait(LIMIT)
        yield k

    assert list(dsl.input_pipeline([partial(shard, k) for k in range(3)], workers=3)) == [0, 1, 2]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_function_is_applied_by_several_workers_at_once(ordered: bool) -> None:
    meeting = threading.Barrier(3)

    def double(x: int) -> int:
        meeting.wait(LIMIT)
        return 2 * x

    found = list(dsl.input_pipeline(numbers(0, 9), workers=3, map=double, ordered=ordered))
    assert sorted(found) == list(range(0, 18, 2))
    assert found == sorted(found) or not ordered


def test_results_keep_their_order_whoever_is_first() -> None:
    later = threading.Event()

    def slow_first(x: int) -> int:
        if x == 0:
            assert later.wait(LIMIT)
        later.set()
        return x

    assert list(dsl.input_pipeline(range(6), workers=2, map=slow_first)) == list(range(6))


def test_a_queue_is_a_source() -> None:
    queue = dsl.FIFOQueue(-1, np.int64, ())
    queue.enqueue_many(np.arange(6))
    queue.close()
    assert [b.tolist() for b in dsl.input_pipeline(queue, batch=4)] == [[0, 1, 2, 3], [4, 5]]


def test_workers_are_ahead_of_their_consumer_by_no_more_than_asked() -> None:
    made, four = [], threading.Event()

    def source() -> Iterator[int]:
        for k in range(100):
            made.append(k)
            if k == 4:
                four.set()
            yield k

    items = iter(dsl.input_pipeline(source, prefetch=4))
    assert four.wait(LIMIT)  # four lie in the queue, and the fifth waits for room
    assert len(made) == 5
    assert next(items) == 0
    items.close()


# --- Shuffling and batches -----------------------------------------------------------------------


def test_a_seed_decides_the_order_of_every_epoch() -> None:
    def epochs(seed: int | None) -> list[list[int]]:
        shards = [partial(numbers, 20 * k, 20) for k in range(4)]
        pipeline = dsl.input_pipeline(shards, workers=3, shuffle=16, seed=seed)
        return [list(pipeline), list(pipeline)]

    first, second = epochs(7)
    assert [first, second] == epochs(7)
    assert sorted(first) == sorted(second) == list(range(80))
    assert first != second
    assert epochs(8)[0] != first
    assert epochs(None) != epochs(None)


def test_an_item_leaves_the_buffer_only_when_the_buffer_is_full() -> None:
    found = list(dsl.input_pipeline(range(100), shuffle=10, seed=0))
    assert all(x <= place + 9 for place, x in enumerate(found))
    assert list(dsl.input_pipeline(range(5), shuffle=1)) == list(range(5))


def test_batches_are_stacked_leaf_by_leaf() -> None:
    def source() -> Iterator[Any]:
        for k in range(5):
            yield {"x": np.full(3, k, np.float32), "more": Pair(k, (k > 2, None))}

    first, second, last = dsl.input_pipeline(source, batch=2)
    assert first["x"].dtype == np.float32
    assert first["x"].tolist() == [[0] * 3, [1] * 3]
    assert isinstance(second["more"], Pair)
    assert second["more"].x.tolist() == [2, 3]
    assert second["more"].y[0].tolist() == [False, True]
    assert last["x"].shape == (1, 3)


def test_the_last_batch_may_be_dropped() -> None:
    assert [len(b) for b in dsl.input_pipeline(range(7), batch=3)] == [3, 3, 1]
    assert [len(b) for b in dsl.input_pipeline(range(7), batch=3, drop_last=True)] == [3, 3]
    assert list(dsl.input_pipeline([], batch=3)) == []


def test_a_batch_of_different_shapes_is_refused_by_name() -> None:
    items = [{"x": np.ones(2)}, {"x": np.ones(3)}]
    with pytest.raises(
        ShapeError, match=r"item\['x'\] has different shapes in one batch: \(2,\), \(3,\)"
    ):
        list(dsl.input_pipeline(items, batch=2))
    with pytest.raises(TypeRuleError, match=r"item 0 is dict\(x=\*\), item 1 is dict\(y=\*\)"):
        list(dsl.input_pipeline([{"x": 1}, {"y": 1}], batch=2))


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"map": float}, {"ordered": False}])
def test_an_error_is_raised_in_its_place_with_its_traceback(options: Any) -> None:
    items = iter(dsl.input_pipeline(partial(failing, 3), **options))
    assert [float(np.squeeze(next(items))) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no more") as caught:
        next(items)
    lines = "".join(traceback.format_exception(caught.value))
    assert 'raise ValueError("no more")' in lines
    assert "of dsl.input_pipeline" in lines
    assert list(items) == []


def test_an_error_of_a_function_is_raised_in_its_place() -> None:
    items = iter(dsl.input_pipeline([1, 2, 0, 3], map=lambda x: 6 // x))
    assert [next(items), next(items)] == [6, 3]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_an_error_of_one_shard_stops_the_others() -> None:
    pipeline = dsl.input_pipeline([forever, partial(failing, 2)], workers=2)
    found = []
    with pytest.raises(ValueError, match="no more"):
        found.extend(pipeline)
    assert not any(t.name.startswith("dsl input") for t in alive_after(gc.collect))


def test_a_source_that_cannot_be_opened() -> None:
    def source() -> Iterator[int]:
        return iter(open("/nowhere/at/all"))

    with pytest.raises(FileNotFoundError):
        list(dsl.input_pipeline(source))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"workers": 0}, ConfigError, "workers must be 1 or more, got 0"),
        ({"batch": -1}, ConfigError, "batch must be 1 or more or None, got -1"),
        ({"shuffle": 2.5}, ConfigError, "shuffle must be"),
        ({"prefetch": None}, ConfigError, "prefetch must be"),
        ({"source": 3}, TypeRuleError, "the source is a int"),
    ],
)
def test_arguments_are_checked(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        dsl.input_pipeline(**({"source": range(3)} | options))


# --- Stopping ------------------------------------------------------------------------------------


def alive_after(action: Callable[[], Any]) -> list[threading.Thread]:
    """Return the threads of pipelines that are alive some time after an action."""
    action()
    found = [t for t in threading.enumerate() if t.name.startswith("dsl input")]
    for thread in found:
        thread.join(LIMIT)
    return [t for t in found if t.is_alive()]


def in_a_cycle(options: dict[str, Any]) -> weakref.ref[Any]:
    """Start a pipeline to which only a cycle refers."""
    items = iter(dsl.input_pipeline(**options))
    cycle: list[Any] = [items]
    cycle.append(cycle)
    return weakref.ref(items)


def collect(lost: list[weakref.ref[Any]]) -> None:
    """Collect garbage until nothing is left; a call does nothing while another thread is collecting."""
    end = time.monotonic() + LIMIT
    while any(ref() is not None for ref in lost):
        assert time.monotonic() < end
        gc.collect()


PIPELINES: dict[str, dict[str, Any]] = {
    "plain": {"source": forever},
    "assembled": {"source": forever, "batch": 3, "shuffle": 10},
    "mapped": {"source": forever, "map": abs, "workers": 3},
    "unordered": {"source": forever, "map": abs, "workers": 3, "ordered": False, "batch": 2},
    "shards": {"source": [forever] * 5, "workers": 3},
    "unordered shards": {"source": [forever] * 5, "workers": 3, "ordered": False, "batch": 2},
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_leaving_a_loop_stops_the_threads(kind: str) -> None:
    def leave() -> None:
        for k, _ in enumerate(dsl.input_pipeline(**PIPELINES[kind])):
            if k == 5:
                break

    assert alive_after(leave) == []


@pytest.mark.parametrize("kind", PIPELINES)
def test_an_exception_in_a_loop_stops_the_threads(kind: str) -> None:
    def leave() -> None:
        for _ in dsl.input_pipeline(**PIPELINES[kind]):
            raise KeyError

    with pytest.raises(KeyError) as caught:
        leave()
    assert alive_after(gc.collect) == []
    del caught


@pytest.mark.parametrize("kind", PIPELINES)
def test_collection_and_closing_stop_the_threads(kind: str) -> None:
    lost = in_a_cycle(PIPELINES[kind])
    assert alive_after(lambda: collect([lost])) == []
    with iter(dsl.input_pipeline(**PIPELINES[kind])) as items:
        next(items)
    assert not any(thread.is_alive() for thread in items.threads)
    assert list(items) == []


def test_many_pipelines_are_collected_while_they_run() -> None:
    kinds, interval = list(PIPELINES.values()), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        lost = [in_a_cycle(kinds[k % len(kinds)]) for k in range(60)]
        assert alive_after(lambda: collect(lost)) == []
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("given", [True, False])
def test_a_generator_is_closed_in_the_thread_that_ran_it(given: bool) -> None:
    threads = []

    def source() -> Iterator[int]:
        try:
            yield from forever()
        finally:
            threads.append(threading.current_thread().name)

    made = source()
    items = iter(dsl.input_pipeline(made if given else source, map=abs))
    next(items)
    items.close()
    assert threads == ["dsl input: the reader"]
    del made


def test_closing_ends_the_wait_of_another_thread() -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        gate.wait(LIMIT)

    items = iter(dsl.input_pipeline(source))
    found: list[int] = []
    consumer = threading.Thread(target=lambda: found.extend(items))
    consumer.start()
    while not found:
        os.sched_yield()
    items.close(timeout=0)
    consumer.join(LIMIT)
    assert not consumer.is_alive()
    assert found == [1]
    gate.set()


def test_several_threads_consume_one_pipeline() -> None:
    items = iter(dsl.input_pipeline(range(2000), batch=2))
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: [found.extend(b.tolist()) for b in items]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(found) == list(range(2000))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_starts_a_pipeline_of_its_own() -> None:
    pipeline = dsl.input_pipeline(numbers)
    items = iter(pipeline)
    next(items)
    child = os.fork()
    if not child:
        try:
            next(items)
        except UnsupportedError:
            os._exit(0 if list(pipeline) == list(range(10)) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert list(items) == list(range(1, 10))


LEFT_RUNNING = """
import itertools, dsl
for k in range(3):
    items = iter(dsl.input_pipeline(itertools.count, batch=8, map=abs, workers=3))
    assert next(items)[7] == 7
print("done")
"""


def test_a_program_may_end_while_a_pipeline_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_RUNNING], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


# --- Training ------------------------------------------------------------------------------------


def test_a_pipeline_feeds_a_training_loop() -> None:
    @dsl.jit
    def step(w: Any, x: Any, y: Any) -> Any:
        return w - 0.1 * 2 * ((x @ w - y)[:, None] * x).mean(0)

    def samples() -> Iterator[dict[str, Any]]:
        random = np.random.default_rng(0)
        for _ in range(400):
            x = random.normal(size=2)
            yield {"x": x, "y": x @ np.array([1.0, -2.0])}

    w = np.zeros(2)
    for batch in dsl.input_pipeline(samples, batch=8, shuffle=32, seed=0):
        w = step(w, batch["x"], batch["y"])
    np.testing.assert_allclose(w, [1, -2], atol=1e-2)
