"""Sources run ahead of their consumer, in threads: workers fill queues, an assembler shuffles and batches.

In: streams of items. Out: an iterator. Every stream has a worker with a queue of its own, which are visited in turn
(`ordered`), or all share one queue, first come, first served. If there is a buffer to shuffle or a batch to stack, a further
thread does that:

    stream -> worker -> queue -.
    stream -> worker -> queue -+-> assembler -> queue -> consumer

A single stream with a function to apply has a reader and workers that share its items:

    stream -> reader -> queue -> workers -> queue -> ...

where, if `ordered`, the reader puts a promise of each result into the second queue, which keeps the order.

What raises in a thread travels through the queues as an item, and is raised in the consumer, in its place, with its own
traceback. No thread refers to the iterator; when the iterator is closed or collected, its queues are closed, and every
thread ends at its next step.
"""

from __future__ import annotations

import os
import threading
import weakref
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dsl import events
from dsl.errors import CancelledError, OutOfRangeError, UnsupportedError
from dsl.runtime.core import Core
from dsl.runtime.stores import Fifo, Shuffle

__all__ = ["Assembly", "Running", "Stream", "start"]

Stream = Callable[[], Iterable[Any]]


# --- What happens to items -----------------------------------------------------------------------


@dataclass(frozen=True)
class Assembly:
    """Shuffling within a buffer of `shuffle` items, and batching: `stack` makes a batch of a list of items."""

    batch: int | None = None
    shuffle: int | None = None
    seed: str | None = None
    drop_last: bool = False
    stack: Callable[[list[Any]], Any] = list

    def is_idle(self) -> bool:
        return self.batch is None and self.shuffle is None

    def apply(self, items: Iterator[Any]) -> Iterator[Any]:
        if self.shuffle is not None:
            items = _shuffled(items, Shuffle(0, self.seed), self.shuffle)
        return items if self.batch is None else self._batches(items, self.batch)

    def _batches(self, items: Iterator[Any], size: int) -> Iterator[Any]:
        held: list[Any] = []
        for item in items:
            held.append(item)
            if len(held) == size:
                yield self.stack(held)
                held = []
        if held and not self.drop_last:
            yield self.stack(held)


def _shuffled(items: Iterator[Any], buffer: Shuffle, size: int) -> Iterator[Any]:
    """Yield a random one of `size` items each time one comes, then the rest."""
    for item in items:
        buffer.push(item)
        if len(buffer.items) >= size:
            yield buffer.pop()
    while buffer.items:
        yield buffer.pop()


class _Failure:
    """What a thread raised, on its way to the consumer."""

    def __init__(self, error: BaseException, where: str = "") -> None:
        self._error: BaseException | None = error
        if where and not hasattr(error, "__notes__"):
            error.add_note(f"raised in {where} of dsl.input_pipeline")

    def taken(self) -> BaseException:
        """Return the error, and let go of it: a frame of its traceback refers to this object."""
        error, self._error = self._error, None
        return error or CancelledError("the input pipeline was stopped")


class _Promise:
    """A result that some worker is to make."""

    def __init__(self, item: Any) -> None:
        self._value, self._gate = item, allocate_lock()
        self._gate.acquire()

    def fulfil(self, function: Callable[[Any], Any], where: str) -> None:
        try:
            self._value = function(self._value)
        except BaseException as error:
            self._value = _Failure(error, where)
        self._gate.release()

    def wait(self) -> Any:
        with events.span("wait", "input pipeline"):
            self._gate.acquire()
        return self._value


# --- Between queues ------------------------------------------------------------------------------


def _fill(queue: Core, stream: Stream, where: str) -> None:
    """Put all items of a stream into a queue, and then what it raised, if anything."""
    try:
        _put_all(queue, stream)
    except BaseException as error:
        if queue.stopped:
            return  # nobody wants to know
        _put_last(queue, _Failure(error, where))


def _put_last(queue: Core, item: Any) -> None:
    try:
        queue.put(item)
    except CancelledError:
        return


def _put_all(queue: Core, stream: Stream) -> None:
    for item in stream():
        queue.put(item)


def _drain(queue: Core) -> Iterator[Any]:
    """Yield the items of a queue until it is closed and empty, or stopped."""
    while not queue.stopped:
        try:
            item = queue.take()
        except OutOfRangeError:
            return
        yield item


def _in_turn(queues: Sequence[Core]) -> Iterator[Any]:
    """Yield one item of each queue in turn until all have ended; raise what a thread raised."""
    live = [_drain(queue) for queue in queues]
    while live:
        for items in tuple(live):
            for item in items:
                yield _kept(item)
                break
            else:
                live.remove(items)


def _kept(item: Any) -> Any:
    """Return the item that was promised, or raise."""
    if isinstance(item, _Promise):
        item = item.wait()
    if isinstance(item, _Failure):
        raise item.taken()
    return item


def _promised(stream: Stream, work: Core) -> Iterator[_Promise]:
    """Give each item to the workers, and yield a promise of its result."""
    for item in stream():
        promise = _Promise(item)
        work.put(promise)
        yield promise


def _keep_promises(work: Core, function: Callable[[Any], Any], where: str) -> None:
    """Make results. Once the work is stopped the rest are made void, for somebody may be waiting."""
    while True:
        try:
            promise = work.take()
        except OutOfRangeError:
            return
        promise.fulfil(_void if work.stopped else function, where)


def _void(item: Any) -> _Failure:
    return _Failure(CancelledError("the input pipeline was stopped"))


# --- Wiring --------------------------------------------------------------------------------------


@dataclass
class _Plan:
    """The queues of a pipeline, and its threads before they are started."""

    ahead: int  # how many items each thread may be ahead
    queues: list[Core] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def queue(self, capacity: int) -> Core:
        made = Core(Fifo(), capacity, f"queue {len(self.queues)} of an input pipeline")
        self.queues.append(made)
        return made

    def fill(self, queue: Core, streams: Sequence[Stream], where: str) -> None:
        """Fill a queue from all streams at once, and close it behind the last."""
        left = _Countdown(len(streams), queue.close)
        for stream in streams:
            self.thread(where, partial(_fill, queue, stream, where), left)

    def thread(self, where: str, work: Callable[[], None], after: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                after()

        self.threads.append(threading.Thread(target=run, name=f"dsl input: {where}", daemon=True))


class _Countdown:
    """Do something when called for the last of `count` times."""

    def __init__(self, count: int, action: Callable[[], Any]) -> None:
        self._left, self._action, self._lock = count, action, allocate_lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._action()


def start(
    streams: Sequence[Stream], function: Callable[[Any], Any] | None, workers: int, prefetch: int,
    ordered: bool, assembly: Assembly,
) -> Running:  # fmt: skip
    """Start the threads of a pipeline and return the iterator over its results."""
    plan = _Plan(max(prefetch, assembly.batch or 1))
    if function is not None and len(streams) == 1:
        ends = [_share(plan, streams[0], function, workers, ordered)]
    else:
        mapped = [s if function is None else _mapped(s, function) for s in streams]
        ends = _spread(plan, mapped, ordered)
    if not assembly.is_idle():
        sources, output = ends, plan.queue(prefetch)
        plan.fill(output, [lambda: assembly.apply(_in_turn(sources))], "the assembler")
        ends = [output]
    return Running(plan.queues, ends, plan.threads)


def _spread(plan: _Plan, streams: Sequence[Stream], ordered: bool) -> list[Core]:
    """Give each stream a worker, and a queue of its own or one for all."""
    if not ordered:
        queue = plan.queue(plan.ahead)
        plan.fill(queue, streams, "a worker")
        return [queue]
    ends = [plan.queue(plan.ahead) for _ in streams]
    for k, (queue, stream) in enumerate(zip(ends, streams)):
        plan.fill(queue, [stream], f"worker {k}")
    return ends


def _share(
    plan: _Plan, stream: Stream, function: Callable[[Any], Any], workers: int, ordered: bool
) -> Core:
    """Read one stream in one thread and apply a function to its items in others."""
    work, results = plan.queue(plan.ahead), plan.queue(plan.ahead)
    if not ordered:
        plan.fill(work, [stream], "the reader")
        plan.fill(
            results, [_mapped(lambda: map(_kept, _drain(work)), function)] * workers, "a worker"
        )
        return results
    promises = lambda: _promised(stream, work)
    both_closed = lambda: (work.close(), results.close())
    plan.thread("the reader", partial(_fill, results, promises, "the reader"), both_closed)
    for k in range(workers):
        where = f"worker {k}"
        plan.thread(where, partial(_keep_promises, work, function, where), lambda: None)
    return results


def _mapped(stream: Stream, function: Callable[[Any], Any]) -> Stream:
    def results() -> Iterator[Any]:
        for item in stream():
            yield function(item)

    return results


# --- The consumer's side -------------------------------------------------------------------------


class Running:
    """An iterator over what the threads make. Use it in a `with`, or drop it, to stop them early."""

    def __init__(
        self, queues: list[Core], ends: list[Core], threads: list[threading.Thread]
    ) -> None:
        self.threads = tuple(threads)
        self._items, self._process, self._turn = _in_turn(ends), os.getpid(), threading.Lock()
        self._stop = weakref.finalize(self, _stop, queues)
        for thread in threads:
            thread.start()

    def __iter__(self) -> Running:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise UnsupportedError(
                "the threads of an input pipeline stay in the process that started them",
                remedy="iterate over the pipeline anew in the child process",
            )
        with self._turn:
            if not self._stop.alive:
                raise StopIteration
            return self._advance()

    def _advance(self) -> Any:
        try:
            return next(self._items)
        except BaseException:  # the end, an error of a worker, Ctrl-C
            self._stop()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Stop the threads and wait until they have ended, or for `timeout` seconds each.

        A thread ends when its source gives the next item: nothing can interrupt a source.
        """
        self._stop()
        for thread in self.threads:
            thread.join(timeout)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _stop(queues: list[Core]) -> None:
    """Close all queues; safe in a finalizer. No thread is to take the end of another for an error: mark all first."""
    for queue in queues:
        queue.stopped = True
    for queue in queues:
        queue.stop()
