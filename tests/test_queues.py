"""Queues: order, blocking, closing, cancelling, deadlines, batches, types; many threads, Ctrl-C, forks.

Waiting is made certain by tickets and by calls that run in threads: `Call.waiting` asks the core's lines, never the clock.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from functools import partial
from typing import Any

import concurrently
import ml_dtypes
import numpy as np
import pytest
from concurrently import LIMIT, exit_code_of_child
from hypothesis import given
from hypothesis import strategies as st

import dsl
from dsl.errors import (
    AbortedError,
    CancelledError,
    ConfigError,
    DeadlineError,
    DslError,
    OutOfRangeError,
    ShapeError,
    TypeRuleError,
)
from dsl.runtime.tickets import Take


def ints(capacity: int = -1, *values: int, name: str | None = None) -> dsl.FIFOQueue:
    """Return a queue of integers, with some in it."""
    queue = dsl.FIFOQueue(capacity, np.int64, (), name=name)
    queue.enqueue_many(np.array(values, np.int64))
    return queue


def shuffling(capacity: int = -1, least: int = 0, seed: int | None = 0) -> dsl.RandomShuffleQueue:
    return dsl.RandomShuffleQueue(capacity, least, np.int64, (), seed=seed)


def drained(queue: Any) -> list[int]:
    """Return what is left in a closed queue."""
    return [int(x) for x in queue]


class Told(list[tuple[DslError | None, Any]]):
    """A callback that writes down what it is told."""

    def __call__(self, error: DslError | None, value: Any) -> None:
        self.append((error, value))


class Call(concurrently.Call):
    """A call in a thread of its own."""

    def waiting(self, queue: Any, takes: int = 0, puts: int = 0) -> Call:
        """Return once that many attempts wait in the lines of a queue."""
        core, end = queue._core, time.monotonic() + LIMIT
        while (len(core._takes), len(core._puts)) != (takes, puts):
            assert time.monotonic() < end
            os.sched_yield()
        return self


# --- Order and blocking --------------------------------------------------------------------------


def test_elements_come_out_in_order() -> None:
    queue = ints(10)
    for k in range(3):
        queue.enqueue(k)
    assert queue.size() == 3
    assert [queue.dequeue() for _ in range(3)] == [0, 1, 2]
    assert queue.size() == 0


def test_a_full_queue_lets_one_in_for_each_that_leaves() -> None:
    queue = ints(1, 5)
    put = Call(queue.enqueue, 6).waiting(queue, puts=1)
    assert queue.dequeue() == 5
    put.result()
    assert queue.dequeue() == 6


def test_an_empty_queue_keeps_its_consumer_waiting() -> None:
    queue = ints()
    taken = Call(queue.dequeue).waiting(queue, takes=1)
    queue.enqueue(7)
    assert taken.result() == 7


def test_attempts_are_served_in_the_order_they_came() -> None:
    queue = ints()
    told = [Told() for _ in range(4)]
    for listener in told:
        queue.try_dequeue_async(listener)
    queue.enqueue_many([10, 11, 12])
    assert told == [[(None, 10)], [(None, 11)], [(None, 12)], []]


def test_a_late_put_does_not_overtake_those_that_wait_for_room() -> None:
    queue = ints(2, 0)
    queue.try_enqueue_many_async([1, 2, 3])
    queue.try_enqueue_async(4)
    assert [queue.dequeue() for _ in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("capacity", [-1, None])
def test_a_queue_without_limit(capacity: int | None) -> None:
    queue = dsl.FIFOQueue(capacity, np.int64, ())
    queue.enqueue_many(np.arange(100_000))
    assert queue.capacity == -1
    assert queue.size() == 100_000


def test_enqueue_many_goes_in_element_by_element() -> None:
    queue = ints(3)
    put = queue.try_enqueue_many_async(np.arange(5))
    assert not put.done
    assert queue.size() == 3
    assert queue.dequeue() == 0
    assert not put.done
    assert queue.dequeue() == 1
    assert put.done
    assert queue.dequeue_many(3).tolist() == [2, 3, 4]


def test_an_empty_batch_completes_at_once_even_when_full_or_closed() -> None:
    queue = ints(1, 1)
    queue.enqueue_many(np.empty(0, np.int64))
    assert queue.try_enqueue_many_async([]).result(0) is None
    queue.close()
    queue.enqueue_many([])


# --- Batches -------------------------------------------------------------------------------------


def test_a_batch_may_be_larger_than_the_capacity() -> None:
    queue = ints(2)
    taken = Call(queue.dequeue_many, 10).waiting(queue, takes=1)
    queue.enqueue_many(np.arange(10), timeout=LIMIT)
    assert taken.result().tolist() == list(range(10))


def test_nothing_is_an_empty_batch_at_once_open_or_closed() -> None:
    queue = ints(3)
    for _ in range(2):
        assert queue.dequeue_many(0).shape == queue.dequeue_up_to(0).shape == (0,)
        assert queue.try_dequeue_many_async(0).result(0).dtype == np.int64
        queue.close(cancel_pending_enqueues=True)


def test_a_batch_that_falls_short_goes_back_to_the_front() -> None:
    queue = ints(-1, 1, 2, 3)
    told = Told()
    queue.try_dequeue_many_async(5, told)
    assert queue.size() == 0
    queue.close()
    ((error, value),) = told
    assert isinstance(error, OutOfRangeError)
    assert value is None
    assert drained(queue) == [1, 2, 3]


def test_what_is_left_of_a_closed_queue_is_a_smaller_batch() -> None:
    queue = ints(-1, 1, 2, 3)
    taken = Call(queue.dequeue_up_to, 5).waiting(queue, takes=1)
    queue.close()
    assert taken.result().tolist() == [1, 2, 3]
    with pytest.raises(
        OutOfRangeError, match="dequeue_up_to asked for 5; FIFOQueue is closed and holds 0"
    ):
        queue.dequeue_up_to(5)


def test_up_to_waits_for_a_whole_batch_while_the_queue_is_open() -> None:
    queue = ints(-1, 1, 2)
    taken = queue.try_dequeue_many_async(3, up_to=True)
    assert not taken.done
    queue.enqueue(3)
    assert taken.result(0).tolist() == [1, 2, 3]


def test_two_batches_that_compete_are_filled_one_after_the_other() -> None:
    queue = ints()
    first, second = queue.try_dequeue_many_async(3), queue.try_dequeue_many_async(2)
    for k in range(4):
        queue.enqueue(k)
    assert first.result(0).tolist() == [0, 1, 2]
    assert not second.done
    queue.enqueue(4)
    assert second.result(0).tolist() == [3, 4]


def test_a_batch_that_falls_short_leaves_its_elements_to_the_next() -> None:
    queue = ints(-1, 1, 2)
    large, small = queue.try_dequeue_many_async(3), queue.try_dequeue_many_async(2)
    queue.close()
    with pytest.raises(OutOfRangeError):
        large.result(0)
    assert small.result(0).tolist() == [1, 2]


def test_batches_need_shapes() -> None:
    queue = dsl.FIFOQueue(3, [np.int64, np.float32], [(), None])
    with pytest.raises(
        ShapeError, match="needs the shape of every component, and component 1"
    ) as caught:
        queue.dequeue_many(2)
    assert "shapes" in caught.value.remedy
    with pytest.raises(ConfigError, match="n must be"):
        ints().dequeue_many(-1)


# --- Closing -------------------------------------------------------------------------------------


def test_a_closed_queue_takes_nothing_and_gives_what_it_has() -> None:
    queue = ints(-1, 1)
    queue.close()
    assert queue.is_closed()
    with pytest.raises(CancelledError, match="enqueue: FIFOQueue is closed"):
        queue.enqueue(2)
    with pytest.raises(CancelledError, match="enqueue_many: FIFOQueue is closed"):
        queue.enqueue_many([2])
    assert queue.dequeue() == 1
    with pytest.raises(
        OutOfRangeError, match="dequeue asked for 1; FIFOQueue is closed and holds 0"
    ):
        queue.dequeue()


def test_closing_with_a_blocked_producer_lets_it_finish_first() -> None:
    queue = ints(1, 1)
    put = Call(queue.enqueue_many, [2, 3]).waiting(queue, puts=1)
    closed = Told()
    queue.try_close_async(callback=closed)
    assert not queue.is_closed()
    with pytest.raises(CancelledError):
        queue.enqueue(4)  # at once: it could only fail
    assert [queue.dequeue() for _ in range(2)] == [1, 2]
    put.result()
    assert closed == [(None, None)]
    assert queue.is_closed()
    assert drained(queue) == [3]


def test_closing_with_a_blocked_consumer_ends_its_wait() -> None:
    queue = ints()
    taken = Call(queue.dequeue).waiting(queue, takes=1)
    queue.close()
    with pytest.raises(OutOfRangeError):
        taken.result()


def test_closing_with_both_blocked() -> None:
    queue = ints(2)
    batch = Call(queue.dequeue_many, 5).waiting(queue, takes=1)
    queue.enqueue_many([0, 1, 2])  # the batch holds them
    later = Call(queue.dequeue).waiting(queue, takes=2)
    queue.close()
    with pytest.raises(OutOfRangeError):
        batch.result()
    assert later.result() == 0
    assert drained(queue) == [1, 2]


def test_closing_and_cancelling_ends_the_waits_of_producers_now() -> None:
    queue = ints(2, 1)
    many, one = Told(), Told()
    queue.try_enqueue_many_async([2, 3, 4], many)
    queue.try_enqueue_async(5, one)
    queue.close(cancel_pending_enqueues=True)
    assert isinstance(many[0][0], CancelledError)
    assert many[0][0].completed == 1
    assert "1 of 3 went in" in str(many[0][0])
    assert isinstance(one[0][0], CancelledError)
    assert drained(queue) == [1, 2]


def test_consumers_are_not_cancelled_if_enough_is_left() -> None:
    queue = ints(-1, 1, 2, 3)
    queue.close(cancel_pending_enqueues=True)
    assert queue.dequeue_many(2).tolist() == [1, 2]
    assert queue.dequeue() == 3


def test_a_second_close_is_aborted() -> None:
    queue = ints(1, 1)
    queue.try_enqueue_async(2)
    queue.close()
    with pytest.raises(AbortedError, match="close: FIFOQueue is already closed"):
        queue.close()  # the first still waits behind an element
    assert queue.dequeue() == 1
    with pytest.raises(AbortedError):
        queue.close()
    told = Told()
    queue.try_close_async(callback=told)
    assert isinstance(told[0][0], AbortedError)


def test_cancelling_overrides_a_close_that_waits() -> None:
    queue = ints(1, 1)
    put, closed = queue.try_enqueue_async(2), queue.try_close_async()
    assert not closed.cancel()
    queue.close(cancel_pending_enqueues=True)
    queue.close(cancel_pending_enqueues=True)
    assert closed.result(0) is None
    with pytest.raises(CancelledError):
        put.result(0)
    assert drained(queue) == [1]


# --- Cancelling and deadlines --------------------------------------------------------------------


def test_one_of_two_waiters_is_cancelled() -> None:
    queue = ints()
    first, second = Told(), Told()
    ticket = queue.try_dequeue_async(first)
    queue.try_dequeue_async(second)
    assert ticket.cancel()
    assert not ticket.cancel()
    assert isinstance(first[0][0], CancelledError)
    queue.enqueue(1)
    assert second == [(None, 1)]
    assert len(first) == 1


def test_a_cancelled_producer_lets_the_next_try() -> None:
    queue = ints(1, 1)
    taken = queue.try_dequeue_many_async(3)
    queue.enqueue_many([2])
    assert taken.cancel()
    assert queue.size() == 2  # over its capacity: nothing is lost
    blocked, after = queue.try_enqueue_async(3), queue.try_enqueue_async(4)
    assert blocked.cancel()
    assert queue.dequeue_many(2).tolist() == [1, 2]
    assert after.result(0) is None
    assert queue.dequeue() == 4


def test_cancelling_a_batch_gives_its_elements_to_the_next() -> None:
    queue = ints(-1, 1, 2)
    batch, single = queue.try_dequeue_many_async(3), queue.try_dequeue_async()
    assert batch.cancel()
    assert single.result(0) == 1
    assert queue.dequeue() == 2


def test_cancelling_what_is_done_changes_nothing() -> None:
    queue = ints(-1, 1)
    ticket = queue.try_dequeue_async()
    assert not ticket.cancel()
    assert ticket.result() == 1


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_deadline_loses_nothing(timeout: float) -> None:
    queue = ints(3, 1, 2, name="numbers")
    with pytest.raises(
        DeadlineError,
        match=r"dequeue_many waited for .* s; FIFOQueue 'numbers' is open and holds 2 of 3",
    ):
        queue.dequeue_many(5, timeout=timeout)
    with pytest.raises(TimeoutError) as caught:
        queue.enqueue_many([3, 4, 5], timeout=timeout)
    assert isinstance(caught.value, DeadlineError)
    assert caught.value.completed == 1
    assert "1 of 3 went in" in str(caught.value)
    with pytest.raises(DeadlineError, match="enqueue waited"):
        queue.enqueue(9, timeout=timeout)
    assert queue.dequeue_up_to(3).tolist() == [1, 2, 3]
    with pytest.raises(DeadlineError, match="dequeue waited"):
        queue.dequeue(timeout=timeout)
    queue.enqueue(6)
    assert queue.dequeue(timeout=timeout) == 6


def test_an_error_leaves_no_cycle_behind() -> None:
    queue = ints()
    ticket = queue.try_dequeue_async()
    gc.collect()
    gc.disable()
    try:
        for call in (partial(queue.dequeue, timeout=0), partial(ticket.result, timeout=0)):
            try:
                call()
            except DeadlineError as error:
                alive = weakref.ref(error)
            assert alive() is None
    finally:
        gc.enable()


def test_a_ticket_outlives_an_impatient_wait() -> None:
    queue = ints()
    ticket = queue.try_dequeue_async()
    with pytest.raises(DeadlineError):
        ticket.result(timeout=0.001)
    queue.enqueue(1)
    assert ticket.result(timeout=0) == 1


def test_several_threads_wait_for_one_ticket() -> None:
    queue = ints()
    ticket = queue.try_dequeue_async()
    calls = [Call(ticket.result) for _ in range(3)]
    queue.enqueue(1)
    assert [call.result() for call in calls] == [1, 1, 1]


# --- Callbacks -----------------------------------------------------------------------------------


def test_callbacks_run_outside_the_lock() -> None:
    queue = ints()
    seen: list[Any] = []
    queue.try_dequeue_async(lambda error, value: seen.append((int(value), queue.size())))
    queue.enqueue(1)
    assert seen == [(1, 0)]


def test_a_callback_that_asks_for_the_next_element_needs_no_stack() -> None:
    queue, seen = ints(-1, *range(5000)), []

    def next_one(error: DslError | None, value: Any) -> None:
        if error is None:
            seen.append(int(value))
            queue.try_dequeue_async(next_one)

    queue.try_dequeue_async(next_one)
    queue.close()
    assert seen == list(range(5000))


def test_what_a_callback_raises_is_shown_and_hurts_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, shown, told = ints(), [], Told()
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: shown.append(str(error)))
    queue.try_dequeue_async(lambda error, value: [][0])
    queue.try_dequeue_async(told)
    queue.enqueue_many([1, 2])
    assert shown == ["list index out of range"]
    assert told == [(None, 2)]


# --- Shuffling -----------------------------------------------------------------------------------


def test_some_elements_stay_until_a_shuffling_queue_is_closed() -> None:
    queue = shuffling(10, least=3)
    queue.enqueue_many(np.arange(5))
    taken = queue.dequeue_many(2).tolist()
    with pytest.raises(DeadlineError, match="holds 3 of 10, 3 of which stay until it is closed"):
        queue.dequeue(timeout=0)
    waiting = queue.try_dequeue_many_async(3)
    queue.close()
    assert sorted(taken + waiting.result(0).tolist()) == list(range(5))


def test_a_shuffled_batch_that_falls_short_is_put_back() -> None:
    queue = shuffling(10, least=1)
    queue.enqueue_many([1, 2, 3])
    taken = queue.try_dequeue_many_async(4)
    assert queue.size() == 1
    queue.close()
    with pytest.raises(OutOfRangeError):
        taken.result(0)
    assert sorted(drained(queue)) == [1, 2, 3]


def test_a_seed_decides_the_order() -> None:
    def order(seed: int | None) -> list[int]:
        queue = shuffling(seed=seed)
        queue.enqueue_many(np.arange(50))
        found = queue.dequeue_many(20).tolist()
        return found + [int(queue.dequeue()) for _ in range(30)]

    assert order(1) == order(1) != order(2)
    assert order(None) != order(None)
    assert sorted(order(3)) == list(range(50))


def test_every_order_is_as_likely_as_any_other() -> None:
    queue, seen = shuffling(seed=5), Counter()
    for _ in range(6000):
        queue.enqueue_many([0, 1, 2])
        seen[tuple(queue.dequeue_many(3).tolist())] += 1
    assert len(seen) == 6
    assert all(abs(count - 1000) < 150 for count in seen.values())  # 5 standard deviations


def test_a_shuffling_queue_that_could_never_give_anything_is_refused() -> None:
    with pytest.raises(ConfigError, match="less than the capacity, got 5"):
        shuffling(5, least=5)


# --- Padding -------------------------------------------------------------------------------------


def test_elements_are_padded_to_the_largest_of_a_batch() -> None:
    queue = dsl.PaddingFIFOQueue(10, [np.int32, np.float64], [(None,), (2, None)])
    for n in (1, 3, 2):
        queue.enqueue((np.arange(1, n + 1, dtype=np.int32), np.ones((2, n))))
    numbers, squares = queue.dequeue_many(2)
    assert numbers.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert squares.shape == (2, 2, 3)
    assert squares[0].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert queue.dequeue()[0].tolist() == [1, 2]
    assert queue.dequeue_many(0)[1].shape == (0, 2, 0)


def test_padded_elements_fit_their_known_sizes() -> None:
    queue = dsl.PaddingFIFOQueue(10, np.float64, (2, None), name="p")
    with pytest.raises(
        ShapeError, match=r"the element of PaddingFIFOQueue 'p' is f64\[2, \?\], got f64\[3, 1\]"
    ):
        queue.enqueue(np.ones((3, 1)))
    with pytest.raises(ShapeError, match="number of axes"):
        dsl.PaddingFIFOQueue(10, np.float64, None)
    with pytest.raises(ShapeError, match="not known") as caught:
        dsl.FIFOQueue(10, np.float64, (2, None))
    assert "PaddingFIFOQueue" in caught.value.remedy


def test_a_padded_batch_that_falls_short_goes_back_to_the_front() -> None:
    queue = dsl.PaddingFIFOQueue(10, np.int64, (None,))
    queue.enqueue([1])
    queue.enqueue([2, 3])
    taken = queue.try_dequeue_many_async(3)
    queue.close()
    with pytest.raises(OutOfRangeError):
        taken.result(0)
    assert [x.tolist() for x in queue] == [[1], [2, 3]]


# --- Priorities ----------------------------------------------------------------------------------


def test_the_smallest_priority_comes_first_and_equals_in_order() -> None:
    queue = dsl.PriorityQueue(10, np.float64, ())
    queue.enqueue_many(([2, 1, 2, 1], [0.0, 1.0, 2.0, 3.0]))
    queue.enqueue((0, 4.0))
    priorities, values = queue.dequeue_many(5)
    assert priorities.tolist() == [0, 1, 1, 2, 2]
    assert values.tolist() == [4, 1, 3, 0, 2]


def test_what_is_put_back_comes_before_its_equals() -> None:
    queue = dsl.PriorityQueue(-1, np.int64, ())
    queue.enqueue_many(([1, 1, 1], [0, 1, 2]))
    assert queue.try_dequeue_many_async(5).cancel()
    queue.enqueue((1, 3))
    assert queue.try_dequeue_many_async(5).cancel()
    assert queue.dequeue_many(4)[1].tolist() == [0, 1, 2, 3]


def test_a_priority_has_a_name_if_the_others_do() -> None:
    queue = dsl.PriorityQueue(10, {"x": np.float32}, {"x": (2,)})
    queue.enqueue({"priority": 3, "x": np.zeros(2, np.float32)})
    assert queue.dequeue()["priority"] == 3
    listed = dsl.PriorityQueue(10, [np.float32], names=["x"])
    listed.enqueue({"priority": -1, "x": np.zeros(2, np.float32)})
    assert listed.names == ("priority", "x")


# --- Elements ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.int8, np.uint64, np.float16, ml_dtypes.bfloat16, np.float32, np.complex128],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3), (400,)])
@pytest.mark.parametrize(
    "make", [dsl.FIFOQueue, lambda *a: dsl.RandomShuffleQueue(a[0], 0, *a[1:])]
)
def test_arrays_keep_dtype_shape_and_values(make: Any, shape: tuple[int, ...], dtype: Any) -> None:
    queue = make(10, dtype, shape)
    batch = (np.arange(3 * np.prod(shape, dtype=int)) % 2).reshape(3, *shape).astype(dtype)
    queue.enqueue_many(np.asfortranarray(batch))
    queue.enqueue(np.array(batch[0], order="F"))
    found = queue.dequeue_many(3)
    assert (found.dtype, found.shape) == (np.dtype(dtype), batch.shape)
    assert found.flags.writeable
    if make is dsl.FIFOQueue:
        np.testing.assert_array_equal(found, batch)
    last = queue.dequeue()
    assert (last.dtype, last.shape) == (np.dtype(dtype), shape)
    assert isinstance(last, np.generic if shape == () else np.ndarray)


def test_elements_are_copied_when_they_go_in() -> None:
    queue = dsl.FIFOQueue(10, np.float64, (2,))
    x, batch = np.zeros(2), np.zeros((2, 2))
    queue.enqueue(x)
    queue.enqueue_many(batch)
    x[:] = batch[:] = 1
    assert queue.dequeue_many(3).sum() == 0


def test_a_shuffled_row_does_not_keep_its_batch_alive() -> None:
    queue = dsl.RandomShuffleQueue(10, 0, np.float64, (2,))
    queue.enqueue_many(np.zeros((5, 2)))
    assert queue.dequeue().base is None


@pytest.mark.parametrize(
    ("dtypes", "shapes", "names", "element"),
    [
        ([np.int64, np.float64], [(), (2,)], None, (1, [2.0, 3.0])),
        ([np.int64, np.float64], [(), (2,)], ["k", "v"], {"k": 1, "v": [2.0, 3.0]}),
        ({"k": np.int64, "v": np.float64}, {"k": (), "v": (2,)}, None, {"k": 1, "v": [2.0, 3.0]}),
        ([np.float64], [2], None, ([2.0, 3.0],)),
    ],
)
def test_elements_of_several_components(dtypes: Any, shapes: Any, names: Any, element: Any) -> None:
    queue = dsl.FIFOQueue(10, dtypes, shapes, names)
    queue.enqueue(element)
    queue.enqueue(element)
    batch, single = queue.dequeue_many(1), None
    queue.enqueue_many(batch)
    single = queue.dequeue()
    assert type(single) is type(batch) is type(element)
    for got in (single, queue.try_dequeue_async().result(0)):
        parts = got.values() if isinstance(got, dict) else got
        wanted = element.values() if isinstance(element, dict) else element
        assert [np.asarray(p).tolist() for p in parts] == list(wanted)


def test_strings_and_objects() -> None:
    queue = dsl.FIFOQueue(10, [str, object])
    queue.enqueue(("a.csv", [1, 2]))
    queue.enqueue_many((["b", "c"], [[3], None]))
    names, things = queue.dequeue_many(3)
    assert names.tolist() == ["a.csv", "b", "c"]
    assert things.tolist() == [[1, 2], [3], None]
    with pytest.raises(TypeRuleError, match=r"component 0 of FIFOQueue is str\[\], got int"):
        queue.enqueue((1, None))


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [
        (np.float32, 1, np.float32(1)), (np.float32, 1.5, np.float32(1.5)), (np.uint8, 255, np.uint8(255)),
        (np.complex64, 2.0, np.complex64(2)), (np.int64, True, np.int64(1)), (np.bool_, True, np.True_),
        (np.float64, np.array(2.5), np.float64(2.5)), (np.float64, np.array(2.5, ">f8"), np.float64(2.5)),
    ],
)  # fmt: skip
def test_python_numbers_become_numpy_scalars(dtype: Any, value: Any, kept: Any) -> None:
    queue = dsl.FIFOQueue(2, dtype, ())
    queue.enqueue(value)
    found = queue.dequeue()
    assert type(found) is type(kept)
    assert found == kept


@pytest.mark.parametrize(
    ("element", "error", "says"),
    [
        ((np.zeros(3), 1), TypeRuleError, r"component 'x' of FIFOQueue 'q' is f32\[3\], got f64\[3\]"),
        (([0.0] * 4, 1), ShapeError, r"component 'x' of FIFOQueue 'q' is f32\[3\], got f32\[4\]"),
        (([0.0] * 3, 1.5), TypeRuleError, r"component 'n' of FIFOQueue 'q' is u8\[\], got f64\[\]"),
        (([0.0] * 3, 256), TypeRuleError, r"component 'n' of FIFOQueue 'q' is u8\[\]: .*256 out of bounds"),
        (([[0.0], [0.0, 1.0]], 1), ShapeError, "component 'x' of FIFOQueue 'q' is .* got what is no array"),
        ((["a", "b", "c"], 1), TypeRuleError, r"component 'x' of FIFOQueue 'q' is f32\[3\], got str\[3\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    element: Any, error: type[DslError], says: str
) -> None:
    queue = dsl.FIFOQueue(3, [np.float32, np.uint8], [(3,), ()], ["x", "n"], name="q")
    with pytest.raises(error, match=says):
        queue.enqueue(dict(zip("xn", element)))
    assert queue.size() == 0


def test_elements_of_the_wrong_structure_are_refused() -> None:
    queue = dsl.FIFOQueue(3, {"x": np.float32, "y": np.float32})
    with pytest.raises(
        TypeRuleError, match=r"an element is a dict .* missing \['y'\], not expected \['z'\]"
    ):
        queue.enqueue({"x": 1, "z": 2})
    with pytest.raises(TypeRuleError, match=r"an element is a dict .* got tuple"):
        queue.enqueue((1, 2))
    pairs = dsl.FIFOQueue(3, [np.float32, np.float32])
    with pytest.raises(TypeRuleError, match=r"a tuple of 2 components .* got tuple of 3"):
        pairs.enqueue((1, 2, 3))
    with pytest.raises(TypeRuleError, match=r"a tuple of 2 components .* got int"):
        pairs.enqueue(1)
    with pytest.raises(
        ShapeError,
        match="differ in length: component 0 of FIFOQueue has 1, component 1 of FIFOQueue has 2",
    ):
        pairs.enqueue_many(([1], [1, 2]))
    with pytest.raises(ShapeError, match=r"is f64\[\], and enqueue_many got f64\[\]") as caught:
        dsl.FIFOQueue(3, np.float64, ()).enqueue_many(1.0)
    assert "batch" in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"capacity": 0}, ConfigError, "capacity must be 1 or more"),
        ({"capacity": 1.5}, ConfigError, "capacity must be"),
        ({"dtypes": "M8[s]"}, TypeRuleError, "the element cannot be datetime64"),
        ({"names": ["a"]}, ConfigError, "names need a list of dtypes"),
        (
            {"dtypes": [float, float], "names": ["a", "a"]},
            ConfigError,
            "2 dtypes, 2 shapes, 1 names",
        ),
        ({"dtypes": [float], "shapes": [(), ()]}, ConfigError, "1 dtypes, 2 shapes, 1 names"),
        ({"dtypes": []}, ConfigError, "at least one"),
        ({"shapes": (-1,)}, ConfigError, r"the shape of the element must be sizes"),
        ({"dtypes": str, "shapes": (2,)}, ConfigError, r"has shape \(\)"),
    ],
)
def test_arguments_of_a_queue_are_checked(options: Any, error: type[DslError], says: str) -> None:
    with pytest.raises(error, match=says):
        dsl.FIFOQueue(**({"capacity": 3, "dtypes": float} | options))


def test_a_queue_says_what_it_is() -> None:
    queue = dsl.FIFOQueue(5, {"x": np.float32, "n": np.int64}, {"x": (2,)}, name="pairs")
    assert repr(queue) == "<FIFOQueue 'pairs' is open and holds 0 of 5 (x: f32[2], n: i64[...])>"
    assert queue.dtypes == (np.float32, np.int64)
    assert (queue.shapes, queue.names, queue.name) == (((2,), None), ("x", "n"), "pairs")


# --- As an iterator and a context manager --------------------------------------------------------


def test_iteration_ends_when_the_queue_is_closed_and_empty() -> None:
    queue = ints(2)
    found = Call(drained, queue)
    with queue:
        for k in range(20):
            queue.enqueue(k)
    assert found.result() == list(range(20))


def test_leaving_by_an_exception_cancels_what_waits() -> None:
    queue = ints(1, 1)
    put = Call(queue.enqueue, 2).waiting(queue, puts=1)
    with pytest.raises(KeyError), queue:
        raise KeyError
    with pytest.raises(CancelledError):
        put.result()
    assert drained(queue) == [1]


def test_leaving_a_queue_that_is_closed_is_fine() -> None:
    with ints() as queue:
        queue.close()
    assert queue.is_closed()


# --- Any calls in any order ----------------------------------------------------------------------

CALLS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5)),
    st.tuples(st.just("take"), st.integers(0, 5)),
    st.tuples(st.just("take up to"), st.integers(0, 5)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["close", "close now"]), st.just(0)),
)


class Ledger:
    """A queue, the tickets of all calls, and what came out, in order."""

    def __init__(self, capacity: int) -> None:
        self.queue, self.tickets, self.out, self.offered = ints(capacity), [], [], 0

    def call(self, kind: str, count: int) -> None:
        if kind == "put":
            batch = np.arange(self.offered, self.offered + count)
            self.offered += count
            self.tickets.append((self.queue.try_enqueue_many_async(batch), batch))
        elif kind.startswith("take"):
            up_to = kind.endswith("to")
            self.tickets.append(
                (self.queue.try_dequeue_many_async(count, self.note, up_to=up_to), None)
            )
        elif kind == "cancel" and self.tickets:
            self.tickets[count % len(self.tickets)][0].cancel()
        elif kind.startswith("close"):
            self.queue.try_close_async(kind.endswith("now"))

    def note(self, error: DslError | None, value: Any) -> None:
        self.out += [] if error else value.tolist()

    def check(self) -> None:
        """Nothing is lost, doubled or out of order; whoever waits has a reason."""
        core = self.queue._core
        put = [x for t, batch in self.tickets if batch is not None for x in batch[: t.moved()]]
        gathered = [int(x) for ticket in core._takes for x in ticket.items]
        assert put == self.out + gathered + [int(x) for x in core.store.items]
        assert not core._takes or (not core.closed and not core.store.items)
        assert not core._puts or (not core.closed and len(core.store.items) >= core.capacity)
        assert all(t.done or t in core._puts or t in core._takes for t, _ in self.tickets)


@given(st.integers(1, 4), st.lists(CALLS, max_size=40))
def test_nothing_is_lost_and_nobody_waits_without_reason(capacity: int, calls: Any) -> None:
    ledger = Ledger(capacity)
    for kind, count in calls:
        ledger.call(kind, count)
        ledger.check()


# --- Many threads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "queue",
    [ints(7), shuffling(50, least=5, seed=None), dsl.PriorityQueue(9, np.int64, ())],
    ids=["fifo", "shuffle", "priority"],
)
def test_sixteen_threads_lose_and_duplicate_nothing(queue: Any) -> None:
    count, pairs = 6000, isinstance(queue, dsl.PriorityQueue)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        producers = [Call(produce, queue, k * count, count, pairs) for k in range(8)]
        consumers = [Call(consume, queue, k, pairs) for k in range(8)]
        for call in producers:
            call.result()
        queue.close()
        found = [x for call in consumers for x in call.result()]
    finally:
        sys.setswitchinterval(interval)
    assert sorted(found) == list(range(8 * count))
    assert queue.size() == 0


def produce(queue: Any, first: int, count: int, pairs: bool) -> None:
    """Enqueue numbers, by ones and by many, some with a deadline and some by tickets that are withdrawn."""
    at, end, k = first, first + count, 0
    wrapped = (lambda x: (x, x)) if pairs else (lambda x: x)
    while at < end:
        k += 1
        part = np.arange(at, min(at + 1 + k % 9, end))
        try:
            if k % 3:
                queue.enqueue_many(wrapped(part), timeout=0.0005 if k % 2 else None)
                at += len(part)
            elif k % 2 or not queue.try_enqueue_async(wrapped(at)).cancel():
                if k % 2:
                    queue.enqueue(wrapped(at))
                at += 1
        except DeadlineError as error:
            at += error.completed


def consume(queue: Any, seed: int, pairs: bool) -> list[int]:
    """Dequeue until the end, in several ways."""
    found: list[int] = []
    values = lambda got: np.atleast_1d(got[1] if pairs else got).tolist()
    for k in range(seed, 10**9):
        try:
            if k % 4 == 0:
                found += values(queue.dequeue(timeout=0.0005))
            elif k % 4 == 1:
                found += values(queue.dequeue_up_to(1 + k % 11))
            elif k % 4 == 2:
                found += values(queue.dequeue_many(1 + k % 3, timeout=0.0005))
            elif not (ticket := queue.try_dequeue_async()).cancel():
                found += values(ticket.result())
        except DeadlineError:
            continue
        except OutOfRangeError:
            if queue.size() == 0 and k % 4 == 1:
                return found
    return found


def test_order_is_kept_between_two_threads() -> None:
    queue = ints(3)
    with_deadlines = Call(produce, queue, 0, 2000, False)
    found = [int(queue.dequeue(timeout=LIMIT)) for _ in range(2000)]
    with_deadlines.result()
    assert found == list(range(2000))


# --- Interrupts, collection, forks ---------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys, threading, dsl, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
queue = dsl.FIFOQueue(2, np.int64, ())
queue.enqueue(1)

def interrupt():
    while not queue._core._takes:
        os.sched_yield()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    queue.dequeue_many(3)
except KeyboardInterrupt:
    print("interrupted", queue.size(), queue.dequeue(), len(queue._core._takes))
"""


def test_ctrl_c_ends_a_wait_and_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "interrupted 1 1 0\n"


class Interrupting:
    """A queue's lock, of which every holder is interrupted by a finalizer that stops the queue."""

    def __init__(self, core: Any) -> None:
        self._core, self._lock = core, core._lock
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._core.stop()
        assert not self._core.closed
        self._lock.release()


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.enqueue(1),
        lambda queue: queue.enqueue_many([1, 2]),
        lambda queue: queue.dequeue(),
        lambda queue: queue.dequeue_many(1),
        lambda queue: queue.try_dequeue_async(),
        lambda queue: queue._core.gate(queue._core._takes[0]),
        lambda queue: queue._core.withdraw(Take(queue._core, "dequeue", 1), Exception),
        lambda queue: queue._core._give_back(Take(queue._core, "dequeue", 1)),
    ],
    ids=[
        "enqueue",
        "enqueue_many",
        "dequeue",
        "dequeue_many",
        "async",
        "gate",
        "withdraw",
        "give_back",
    ],
)
def test_a_queue_may_be_stopped_by_whoever_interrupts_the_holder_of_its_lock(call: Any) -> None:
    queue = ints(9, 1)
    if "_takes" in call.__code__.co_names:
        queue.try_dequeue_many_async(5)
    queue._core._lock = Interrupting(queue._core)
    call(queue)
    assert queue.is_closed()


def test_what_waits_is_cancelled_by_a_late_stop() -> None:
    queue = ints(1, 1)
    put = Call(queue.enqueue, 2).waiting(queue, puts=1)
    with queue._core._lock:
        queue._core.stop()
        assert not queue.is_closed()
    with pytest.raises(CancelledError):
        queue.enqueue(3)  # the next to come does it
    assert drained(queue) == [1]
    with pytest.raises(CancelledError):
        put.result()


def test_a_queue_is_collected_with_those_that_wait() -> None:
    queue = ints()
    alive = weakref.ref(queue)
    queue.try_dequeue_async(partial(print, queue))
    del queue
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_has_the_elements_and_none_of_the_waits() -> None:
    queue = ints(-1, 1, 2)
    blocked = Call(queue.dequeue_many, 3).waiting(queue, takes=1)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, bytes([int(queue.dequeue(timeout=5)), int(queue.dequeue(timeout=5))]))
        os._exit(0)
    assert os.read(reader, 2) == bytes([1, 2])
    assert os.waitpid(child, 0)[1] == 0
    queue.enqueue(3)
    assert blocked.result().tolist() == [1, 2, 3]
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_amid_traffic_find_whole_queues() -> None:
    queue, stop = ints(50), threading.Event()

    def churn() -> None:
        while not stop.is_set():
            queue.enqueue_many([1, 2, 3])
            queue.dequeue_many(3)

    def child() -> bool:
        signal.alarm(10)
        queue.enqueue(9, timeout=5)
        return queue.size() % 3 == 1

    calls = [Call(churn) for _ in range(2)]
    for _ in range(10):
        assert exit_code_of_child(child) == 0
    stop.set()
    for call in calls:
        call.result()
