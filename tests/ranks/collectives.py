"""Every collective on every dtype and some shapes, against NumPy on all ranks' data; then in compiled functions."""

from __future__ import annotations

import threading
import time

import ml_dtypes
import numpy as np

import dsl
from dsl import parallel
from dsl.mpi import waiting

RANK, SIZE = parallel.rank(), parallel.size()
DTYPES = (
    "bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", ml_dtypes.bfloat16, "f4", "f8", "c8", "c16",
)  # fmt: skip
SHAPES = ((), (3,), (0,), (2, 3), (4, 0, 2))
REDUCTIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def data(rank: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(rank)
    numbers = rng.integers(0, 4, shape)
    return np.asarray(numbers).astype(dtype)


def reduced(how: str, arrays: list[np.ndarray]) -> np.ndarray:
    total = arrays[0]
    for array in arrays[1:]:
        total = REDUCTIONS[how](total, array)
    return total


def check(found: object, expected: np.ndarray, what: str) -> None:
    got = np.asarray(found)
    assert got.dtype == expected.dtype, (what, got.dtype, expected.dtype)
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    np.testing.assert_array_equal(got, expected, what)


def takes(how: str, dtype: np.dtype) -> bool:
    if how in ("max", "min"):
        return dtype.kind != "c"
    return dtype.kind != "b"


def sweep_reductions(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    own = [data(r, dtype, shape) for r in range(SIZE)]
    rows = [data(r, dtype, (SIZE, *shape)) for r in range(SIZE)]
    for how in REDUCTIONS:
        if not takes(how, dtype):
            continue
        what, root, total = f"{how} {dtype} {shape}", SIZE - 1, reduced(how, own)
        check(parallel.allreduce(own[RANK], how), total, what)
        expected = total if root == RANK else np.zeros_like(total)
        check(parallel.reduce(own[RANK], how, root), expected, what)
        check(parallel.reduce_scatter(rows[RANK], how), reduced(how, rows)[RANK], what)


def sweep_moves(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    own = [data(r, dtype, shape) for r in range(SIZE)]
    rows = [data(r, dtype, (SIZE, *shape)) for r in range(SIZE)]
    what, root = f"{dtype} {shape}", SIZE // 2
    stack = np.stack(own)
    check(parallel.broadcast(own[RANK], root), own[root], what)
    check(parallel.allgather(own[RANK]), stack, what)
    expected = stack if root == RANK else np.zeros_like(stack)
    check(parallel.gather(own[RANK], root), expected, what)
    check(parallel.scatter(rows[RANK], root), rows[root][RANK], what)
    check(parallel.alltoall(rows[RANK]), np.stack([rows[r][RANK] for r in range(SIZE)]), what)
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    check(parallel.sendrecv(own[RANK], after, before), own[before], what)


def layouts() -> None:
    """Arrays that are not contiguous, in reverse, in Fortran's order, broadcast; and large ones."""
    base = np.arange(24.0).reshape(4, 6) + RANK
    views = [
        base[::2, 1::2],
        base[::-1],
        base.T,
        np.asfortranarray(base),
        np.broadcast_to(base[0], (3, 6)),
    ]
    for view in views:
        everybody = np.stack([view - RANK + r for r in range(SIZE)])
        check(parallel.allreduce(view), everybody.sum(0), "layout")
        check(parallel.allgather(view), everybody, "layout")
    large = np.full((300, 1000), 1.0 + RANK)
    check(parallel.allreduce(large), np.full((300, 1000), SIZE * (SIZE + 1) / 2), "large")
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    check(parallel.sendrecv(large.T, after, before), np.full((1000, 300), 1.0 + before), "large")
    kept = np.array([1.0, 2.0])
    parallel.allreduce(kept)
    check(kept, np.array([1.0, 2.0]), "the operand stays")


def numbers() -> None:
    """Bools are counted, means of integers are floats, NaNs stay."""
    assert parallel.allreduce(True) == SIZE
    assert parallel.allreduce(np.array([RANK == 0]), "max")[0]
    assert parallel.allreduce(RANK, "mean") == (SIZE - 1) / 2
    assert np.isnan(parallel.allreduce(np.nan if RANK == 0 else 1.0, "max"))
    assert np.isnan(
        parallel.allreduce(np.float32(np.nan) if RANK == SIZE - 1 else np.float32(1), "min")
    )
    tree = parallel.allreduce({"a": 1.0, "b": (np.ones(2), np.float32(2))})
    assert tree["a"] == SIZE
    assert tree["b"][1] == 2 * SIZE
    half = parallel.allreduce(np.full(3, 60_000, np.float16), "mean")  # the sum is no float16
    check(half, np.full(3, 60_000, np.float16), "mean of float16")


def messages() -> None:
    """Rank 0 sends to each, small and large; tags keep messages apart."""
    for count in (0, 3, 100_000):
        if RANK == 0:
            for dest in range(1, SIZE):
                parallel.send(np.full(count, dest, np.float32), dest, tag=2)
                parallel.send(np.full(count, -dest, np.float32), dest, tag=1)
        else:
            first = parallel.recv(np.empty(count, np.float32), 0, tag=1)
            second = parallel.recv(np.empty(count, np.float32), 0, tag=2)
            check(first, np.full(count, -RANK, np.float32), "tag 1")
            check(second, np.full(count, RANK, np.float32), "tag 2")
    edges = parallel.sendrecv(
        np.full(2, RANK), RANK + 1 if RANK + 1 < SIZE else None, RANK - 1 if RANK else None
    )
    check(edges, np.full(2, max(0, RANK - 1)), "a row of ranks with ends")


def from_threads() -> None:
    """Threads with tags of their own get on without one another, and those that share one have each message once."""
    if SIZE == 1:
        return
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    found: dict[object, object] = {}

    def exchange(tag: int) -> None:
        rows = [
            parallel.sendrecv(np.full((1, 20_000)[k % 2], 100.0 * k + tag + RANK), after, before, tag)[0]
            for k in range(30)
        ]  # fmt: skip
        found[tag] = [row - 100.0 * k - tag for k, row in enumerate(rows)]

    def share(name: str) -> None:
        found[name] = [int(parallel.recv(np.int64(0), before, tag=9)) for _ in range(20)]

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(4)]
    threads += [threading.Thread(target=share, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for k in range(40):
        parallel.send(k, after, tag=9)
    assert parallel.allreduce(1) == SIZE  # a collective does not wait for them either
    for thread in threads:
        thread.join()
    assert all(found[tag] == [before] * 30 for tag in range(4)), found
    assert sorted(found["a"] + found["b"]) == list(range(40)), found


def a_message_that_comes_late() -> None:
    """A rank is not stuck while one of its threads waits and another works."""
    before, waiting.GRACE = waiting.GRACE, 0.1
    found: list[object] = []

    def listen() -> None:
        found.append(parallel.recv(np.zeros(2), 1, tag=7))

    if RANK == 0 and SIZE > 1:
        listener = threading.Thread(target=listen)
        listener.start()
        time.sleep(1.0)
    parallel.barrier()
    if RANK == 1:
        parallel.send(np.ones(2), 0, tag=7)
    if RANK == 0 and SIZE > 1:
        listener.join()
        check(found[0], np.ones(2), "a late message")
    waiting.GRACE = before


# -- in compiled functions -----------------------------------------------------------------------------------------------


def large_messages() -> None:
    """Some sizes again and again, in no order, all sent before any is received: each finds its own."""
    sizes = np.random.default_rng(0).choice([20_000, 20_001, 70_000, 300_000], 40)
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    if SIZE == 1:
        return
    for name in ("f4", ml_dtypes.bfloat16):
        for k, size in enumerate(sizes):
            request = np.full(size, (k + RANK) % 100, name)
            check(
                parallel.sendrecv(request, after, before, tag=k % 3),
                np.full(size, (k + before) % 100, name), f"{size} elements",
            )  # fmt: skip
        if RANK < 2:
            other = 1 - RANK
            for k, size in enumerate(sizes[:8]):
                if RANK == 0:
                    parallel.send(np.full(size, k, name), other, tag=k % 2)
            for k, size in sorted(enumerate(sizes[:8]), key=lambda pair: pair[0] % 2):
                if RANK == 1:
                    got = parallel.recv(np.empty(size, name), other, tag=k % 2)
                    check(got, np.full(size, k, name), "out of order")


@dsl.jit
def all_of_them(x):
    rows = np.stack([x * (k + 1) for k in range(SIZE)])
    return (
        parallel.allreduce(x), parallel.reduce(x, "max", 0), parallel.broadcast(x, 0), parallel.gather(x, 0),
        parallel.allgather(x), parallel.scatter(rows, 0), parallel.reduce_scatter(rows), parallel.alltoall(rows),
        parallel.sendrecv(x, (RANK + 1) % SIZE, (RANK - 1) % SIZE),
    )  # fmt: skip


@dsl.jit
def in_a_loop(x, n):
    for i in range(n):
        x = parallel.allreduce(x, "mean") + i
    return x


@dsl.jit
def in_a_branch(x, flag):
    if flag:
        y = parallel.allreduce(x)
    else:
        y = parallel.allreduce(x, "max") * 2
    return y


@dsl.jit
def until_all_agree(x):
    trips = 0
    while parallel.allreduce(x.max(), "max") > 1.0:
        x = x / 2
        trips += 1
    return x, trips


@dsl.jit
def ping(x):
    if RANK == 0 and SIZE > 1:
        parallel.send(x, 1)
    if RANK == 1:
        x = parallel.recv(x, 0)
    return x


def in_programs() -> None:
    x = np.arange(4.0) + RANK
    own = [np.arange(4.0) + r for r in range(SIZE)]
    found = all_of_them(x)
    eager = all_of_them._fn(x)
    for a, b in zip(found, eager, strict=True):
        check(a, np.asarray(b), "compiled and at once")
    check(found[0], sum(own), "allreduce")
    mean = np.mean(own, axis=0)
    np.testing.assert_allclose(in_a_loop(x, 4), mean + 6)
    check(in_a_branch(x, True), sum(own), "branch")
    check(in_a_branch(x, False), own[-1] * 2, "branch")
    halved, trips = until_all_agree(x)
    assert trips == int(np.ceil(np.log2(max(own[-1]))))
    assert halved.max() <= 1
    check(ping(x), own[0] if RANK == 1 else x, "send and recv")
    for size in (3, 5, 7):  # the second size makes it symbolic
        y = np.arange(float(size)) + RANK
        check(
            all_of_them(y)[4], np.stack([np.arange(float(size)) + r for r in range(SIZE)]), "size"
        )
    with dsl.config.override(backend="interpreter"):
        check(dsl.jit(lambda x: parallel.allreduce(x))(x), sum(own), "interpreter")


def in_a_graph() -> None:
    graph = dsl.Graph()
    with graph:
        x = dsl.placeholder(np.float64, (3,))
        total = parallel.allreduce(x)
        second = parallel.allgather(total * 2)
        (dx,) = dsl.gradients((total**2).sum(), [x])
        waits = parallel.barrier()
    own = np.arange(3.0) + RANK
    everybody = sum(np.arange(3.0) + r for r in range(SIZE))
    with dsl.Session(graph) as session:
        found = session.run([second, dx], {x: own})
        check(found[0], np.stack([everybody * 2] * SIZE), "graph")
        check(found[1], 2 * everybody * SIZE, "gradient in a graph")
        check(session.run(total, {x: own}), everybody, "graph")
        session.run(waits)


def in_vmap() -> None:
    x = np.arange(6.0).reshape(2, 3) * (RANK + 1)
    rows = np.arange(6.0 * SIZE).reshape(2, SIZE, 3) + RANK
    pairs = [
        (parallel.allreduce, x), (parallel.allgather, x), (parallel.gather, x), (parallel.broadcast, x),
        (parallel.scatter, rows), (parallel.reduce_scatter, rows), (parallel.alltoall, rows),
        (lambda v: parallel.sendrecv(v, (RANK + 1) % SIZE, (RANK - 1) % SIZE), x),
    ]  # fmt: skip
    for function, argument in pairs:
        one_by_one = np.stack([function(item) for item in argument])
        check(dsl.vmap(function)(argument), one_by_one, "vmap")
    if SIZE > 1:

        def relay(v):
            if RANK == 0:
                parallel.send(v, 1)
            return parallel.recv(v, 0) if RANK == 1 else v

        check(
            dsl.vmap(relay)(x), np.arange(6.0).reshape(2, 3) if RANK == 1 else x, "vmap of messages"
        )
    text = dsl.vmap(lambda v: parallel.allreduce(np.sin(v))).ir(x)
    assert text.count("all_reduce") == (SIZE > 1), text


for name in DTYPES:
    for shape in SHAPES:
        sweep_moves(np.dtype(name), shape)
        sweep_reductions(np.dtype(name), shape)
layouts()
numbers()
messages()
large_messages()
from_threads()
a_message_that_comes_late()
in_programs()
in_a_graph()
in_vmap()
parallel.barrier()
print("well", RANK)
