"""How many small elements a second go from one Python thread to another: `python benchmarks/queues.py`.

Prints, for each kind of traffic, the best of several tries, with `queue.Queue` and `queue.SimpleQueue` beside it. Both threads
share the interpreter's lock, so a figure counts the work of both ends. The first lines are the same work in one thread,
without hand-over.

`--quick` moves a tenth of the elements.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dsl

TARGET = 500_000  # elements a second, by many
TRIES = 5

Work = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the elements")
    count = 40_000 if parser.parse_args().quick else 400_000
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(
        f"dsl {dsl.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {load}\n"
    )
    show_one_thread(count)
    show_two_threads(count)
    show_pipeline(count)


def show(label: str, count: int, run: Work, target: int | None = None) -> None:
    """Time some work that moves `count` elements and print elements a second."""
    rate = count / min(_seconds(run) for _ in range(TRIES))
    goal = (
        "" if target is None else f"   target {target:,}: {'met' if rate >= target else 'missed'}"
    )
    print(f"  {label:<44} {rate:>12,.0f}/s{goal}")


def _seconds(run: Work) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def between(producer: Work, consumer: Work) -> Work:
    """Return the work of running both at once, the producer in a thread."""

    def run() -> None:
        thread = threading.Thread(target=producer)
        thread.start()
        consumer()
        thread.join()

    return run


def repeat(times: int, call: Callable[..., Any], *args: Any) -> Work:
    def run() -> None:
        for _ in range(times):
            call(*args)

    return run


# --- What is measured ----------------------------------------------------------------------------


def show_one_thread(count: int) -> None:
    print("in one thread: in and out")
    fifo, x = dsl.FIFOQueue(-1, np.float64, ()), np.float64(1)
    put, take = repeat(1000, fifo.enqueue, x), repeat(1000, fifo.dequeue)
    show("enqueue, dequeue", count, repeat(count // 1000, lambda: (put(), take())))
    batch = np.ones(1000)
    show(
        "enqueue_many, dequeue_many by 1000", count,
        repeat(count // 1000, lambda: (fifo.enqueue_many(batch), fifo.dequeue_many(1000))),
    )  # fmt: skip


def show_two_threads(count: int) -> None:
    print("\nfrom thread to thread")
    x = np.float64(1)
    fifo = dsl.FIFOQueue(1000, np.float64, ())
    show(
        "enqueue, dequeue",
        count,
        between(repeat(count, fifo.enqueue, x), repeat(count, fifo.dequeue)),
    )
    for name, peer in {
        "queue.Queue": queue.Queue(1000),
        "queue.SimpleQueue": queue.SimpleQueue(),
    }.items():
        show(
            f"{name}, put and get",
            count,
            between(repeat(count, peer.put, x), repeat(count, peer.get)),
        )
    scalars = np.ones(100)
    vectors = np.ones((100, 4), np.float32)
    pairs = dsl.FIFOQueue(5000, [np.float32, np.int64], [(4,), ()])
    show_many("f64[] by 10", dsl.FIFOQueue(5000, np.float64, ()), scalars[:10], count)
    show_many("f64[] by 100", dsl.FIFOQueue(5000, np.float64, ()), scalars, count)
    show_many("f32[4] by 100", dsl.FIFOQueue(5000, np.float32, (4,)), vectors, count)
    show_many("(f32[4], i64[]) by 100", pairs, (vectors, np.arange(100)), count)
    show_many(
        "f64[] by 100, shuffled", dsl.RandomShuffleQueue(5000, 0, np.float64, ()), scalars, count
    )
    ranked = dsl.PriorityQueue(5000, np.float64, ())
    show_many("f64[] by 100, by priority", ranked, (np.arange(100), scalars), count)


def show_many(label: str, between_threads: Any, batch: Any, count: int) -> None:
    """Move batches from thread to thread."""
    size = len(batch[0]) if isinstance(batch, tuple) else len(batch)
    times = count // size
    producer = repeat(times, between_threads.enqueue_many, batch)
    consumer = repeat(times, between_threads.dequeue_many, size)
    show(label, count, between(producer, consumer), TARGET)


def show_pipeline(count: int) -> None:
    print("\nthrough dsl.input_pipeline")
    items = [np.ones(4, np.float32)] * (count // 10)
    plain = dsl.input_pipeline(items, prefetch=64)
    show("f32[4]", len(items), lambda: [None for _ in plain])
    batches = dsl.input_pipeline(items, prefetch=64, batch=100)
    show("f32[4], batches of 100", len(items), lambda: [None for _ in batches])


if __name__ == "__main__":
    main()
