"""Native code and threads: the same bits for any number of them, calls from many at once, interrupts, and forks.

`DSL_THREADS_SECONDS=60 pytest tests/test_native_threads.py` lets 8 threads call compiled functions for that long.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from concurrently import SECONDS, in_threads
from test_programs import check_same, narrowest

import dsl
from dsl.codegen.cpu import pool, runtime

SIZE = 1_000_003  # no multiple of a vector, a tile or a chunk

Program = Callable[..., Any]


# -- the same bits for any number of threads ---------------------------------------------------------------------------


def chain(x, y):
    return np.exp(-x * x) * np.tanh(y) + np.sqrt(np.abs(x - y)) / (1 + np.sin(x) ** 2)


def special(x):
    return np.log1p(np.abs(x)), np.cosh(x) - np.arctan2(x, 2.0), np.cbrt(x) ** 3


def complex_chain(x, y):
    z = x + 1j * y
    return np.exp(z) / (2 + z * z), np.abs(z), np.angle(z)


def totals(x):
    return x.sum(), x.mean(), x.std(), x.max(), (x * x).sum(), np.abs(x).min(), x.prod()


def norms(x, y):
    return np.sqrt(np.sum((x - y) ** 2)), np.dot(np.abs(x), np.abs(y)), np.linalg.norm(x)


def along_rows(m):
    return m.sum(axis=1), m.mean(axis=1), m.max(axis=1), m.std(axis=1)


def along_columns(m):
    return m.sum(axis=0), m.mean(axis=0), m.min(axis=0), m.var(axis=0)


def along_the_middle(t):
    return t.sum(axis=1), t.sum(axis=(0, 2)), t.max(axis=(1, 2)), t.sum(axis=0)


def softmax_rows(m):
    e = np.exp(m - m.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_columns(m):
    e = np.exp(m - m.max(axis=0))
    return e / e.sum(axis=0)


def normalise_layers(m):
    return (m - m.mean(axis=1, keepdims=True)) / np.sqrt(m.var(axis=1, keepdims=True) + 1e-5)


def cumulative(x):
    return np.cumsum(x), np.cumsum(np.abs(x))[-1], np.maximum.accumulate(x)


def cumulative_along(m):
    return np.cumsum(m, axis=0), np.cumsum(m, axis=1), np.cumprod(1 + m * 1e-3, axis=0)


def positions(x, m):
    return x.argmax(), x.argmin(), m.argmax(axis=0), m.argmin(axis=1)


def ordered(x):
    return np.sort(x), np.argsort(x, kind="stable")


def ordered_along(m):
    return np.sort(m, axis=0), np.sort(m, axis=1), np.median(m, axis=1)


def products(m):
    return m @ m.T, m.T @ m, m @ m[0]


def transposes(m, t):
    return m.T + 1, np.ascontiguousarray(t.transpose(2, 0, 1)), m[::-1, ::-1].copy()


def joined(x, m):
    return np.concatenate([x, x[::-1]]), np.pad(m, 2), np.roll(m, (3, -5), axis=(0, 1))


def gathered(x, i):
    out = np.zeros(1000)
    np.add.at(out, i % 1000, x)
    return x[i], out, x[x > 0], np.bincount(i % 1000)


def stencil(m, n):
    u = m.copy()
    for _ in range(n):
        u[1:-1, 1:-1] += 0.1 * (
            u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
        )
    return u


def scanned(x, n):
    total, y = 0.0, x
    for k in range(n):
        y = y * 0.9 + np.roll(x, k)
        total += y.sum()
    return y, total


def complex_products(z):
    stack = np.stack([z, z.conj()])
    return z @ z.T, z.conj().T @ z, stack @ stack.mT, z @ z[0], z.real @ z.T


def drawn(n):
    rng = np.random.default_rng(7)
    return rng.random(n), rng.normal(size=n)


def vector(seed: int = 0, size: int = SIZE, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


def matrix(dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(1013, 1009)).astype(dtype)


def block() -> np.ndarray:
    return np.random.default_rng(4).normal(size=(101, 103, 107))


PARALLEL = [
    (chain, lambda: (vector(), vector(1))),
    (chain, lambda: (vector(0, dtype=np.float32), vector(1, dtype=np.float32))),
    (special, lambda: (vector(dtype=np.float32),)),
    (complex_chain, lambda: (vector(), vector(1))),
    (totals, lambda: (vector(),)),
    (totals, lambda: (vector(dtype=np.float32),)),
    (totals, lambda: (vector()[::-3],)),
    (norms, lambda: (vector(), vector(1))),
    (along_rows, lambda: (matrix(),)),
    (along_rows, lambda: (matrix(np.float32).T,)),
    (along_columns, lambda: (matrix(),)),
    (along_columns, lambda: (matrix(np.float32).T,)),
    (along_the_middle, lambda: (block(),)),
    (softmax_rows, lambda: (matrix(np.float32),)),
    (softmax_columns, lambda: (matrix(np.float32),)),
    (normalise_layers, lambda: (matrix(),)),
    (cumulative, lambda: (vector(),)),
    (cumulative_along, lambda: (matrix(),)),
    (positions, lambda: (vector().round(1), matrix().round(1))),
    (ordered, lambda: (vector().round(3),)),
    (ordered_along, lambda: (matrix(),)),
    (products, lambda: (matrix(),)),
    (products, lambda: (matrix(np.float32),)),
    (complex_products, lambda: (matrix()[:200, :300] + 1j * matrix()[200:400, 300:600],)),
    (complex_products, lambda: (matrix(np.complex64)[:101, :64] * np.complex64(1 - 2j),)),
    (transposes, lambda: (matrix(), block())),
    (joined, lambda: (vector(), matrix())),
    (gathered, lambda: (vector(), np.random.default_rng(5).integers(0, SIZE, SIZE))),
    (stencil, lambda: (matrix(), 5)),
    (scanned, lambda: (vector(), 4)),
]


def bits_of(found: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize(("function", "make"), PARALLEL, ids=lambda x: x.__name__)
def test_the_same_bits_for_any_number_of_threads(
    function: Program, make: Callable[[], tuple[Any, ...]]
) -> None:
    args = make()
    compiled = dsl.jit(function)
    found = {}
    for count in (1, 2, 4):
        with pool.threads(count):
            found[count] = compiled(*args)
    assert bits_of(found[1]) == bits_of(found[2]) == bits_of(found[4])
    with np.errstate(all="ignore"):
        check_same(found[2], function(*args), "result", narrowest(args))


@pytest.mark.parametrize("draws", ["random", "normal", "integers"])
def test_the_same_random_numbers_for_any_number_of_threads(draws: str) -> None:
    def draw(key: Any) -> Any:
        if draws == "integers":
            return dsl.random.randint(key, (SIZE,), 0, 1000)
        return getattr(dsl.random, {"random": "uniform"}.get(draws, draws))(key, (SIZE,))

    compiled, key = dsl.jit(draw), dsl.random.key(3)
    found = []
    for count in (1, 2, 4):
        with pool.threads(count):
            found.append(bits_of(compiled(key)))
    assert found[0] == found[1] == found[2]


# -- many threads of Python ----------------------------------------------------------------------------------------------


def call_from_threads(tasks: list[Callable[[], None]], seconds: float) -> None:
    """Call each function over and over in a thread of its own; an error of any of them is raised."""
    stop = time.monotonic() + seconds

    def work(k: int) -> None:
        while time.monotonic() < stop:
            tasks[k]()

    in_threads(len(tasks), work)


def test_calls_of_many_threads_are_counted_while_others_compile() -> None:
    f = dsl.jit(lambda x, k: (x * k).sum())
    kinds = (np.float64, np.float32, np.int64)

    def work(thread: int) -> None:
        for call in range(40):
            x = np.ones(2 + (7 * call + thread) % 50, kinds[(call + thread) % 3])
            assert f(x, 2.0) == 2 * x.size

    in_threads(8, work)
    info = f.cache_info()
    assert (info.hits + info.misses, info.misses) == (8 * 40, info.entries)


def in_place(u, n):
    for k in range(n):
        u[k] = u[k - 1] + 1.0
    return u.sum()


def growing(x, n):
    out = x[:0]
    for k in range(n):
        out = np.concatenate([out, x * k])
    return out


def raising(x, i):
    y = x * 2
    return y[i]


def task_of(
    compiled: Any, plain: Program, make: Callable[[], tuple[Any, ...]]
) -> Callable[[], None]:
    expected = plain(*make())

    def task() -> None:
        check_same(compiled(*make()), expected, plain.__name__, np.float32)

    return task


def failing_task(compiled: Any) -> Callable[[], None]:
    def task() -> None:
        with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 5"):
            compiled(np.arange(5.0), 9)
        assert compiled(np.arange(5.0), 3) == 6.0

    return task


def test_eight_threads_call_the_same_and_different_functions() -> None:
    shared, total = dsl.jit(chain), dsl.jit(totals)
    small = lambda: (vector(0, 1001), vector(1, 1001))
    large = lambda: (vector(0, 200_003), vector(1, 200_003))
    tasks = [
        task_of(shared, chain, small),
        task_of(shared, chain, large),
        task_of(shared, chain, large),
        task_of(total, totals, lambda: (vector(0, 300_007),)),
        task_of(dsl.jit(in_place), in_place, lambda: (np.zeros(1000), 999)),
        task_of(dsl.jit(growing), growing, lambda: (vector(0, 50), 20)),
        task_of(dsl.jit(products), products, lambda: (vector(0, 90_000).reshape(300, 300),)),
        failing_task(dsl.jit(raising)),
    ]
    call_from_threads(tasks, SECONDS)


def test_eight_threads_compile_and_call_one_function() -> None:
    """Each with sizes and dtypes of its own, so that they compile at the same time as others call."""
    compiled = dsl.jit(along_rows)
    tasks = []
    for k in range(8):
        make = lambda k=k: (
            np.random.default_rng(k).normal(size=(k + 2, 7)).astype("f4" if k % 2 else "f8"),
        )
        tasks.append(task_of(compiled, along_rows, make))
    call_from_threads(tasks, min(SECONDS, 1.0))


def test_limits_of_one_thread_do_not_change_the_results_of_others() -> None:
    compiled = dsl.jit(softmax_rows)
    args = (vector(0, 500_000).reshape(1000, 500),)
    expected = bits_of(compiled(*args))

    def limited(count: int) -> Callable[[], None]:
        def task() -> None:
            with pool.threads(count):
                assert bits_of(compiled(*args)) == expected

        return task

    call_from_threads([limited(1), limited(2), limited(3), limited(4)], min(SECONDS, 1.0))


# -- interrupts ------------------------------------------------------------------------------------------------------------

LONG = {
    "while": (
        "def f(x, n):\n    k = 0\n    while k < n:\n        k += 1 + (k % 3 == 7)\n    return k\n",
        "np.ones(3), 10**15",
    ),
    "while of arrays": (
        "def f(x, n):\n    k = 0\n    while k < n:\n        x = np.sin(x) + 1\n        k += 1\n    return x\n",
        "np.ones(2_000_000), 10**9",
    ),
    "for": (
        "def f(x, n):\n    s = 0.0\n    for k in range(n):\n        s = s * 0.5 + x[k % 3]\n    return s\n",
        "np.ones(3), 10**15",
    ),
    "for of arrays": (
        "def f(x, n):\n    for k in range(n):\n        x = np.sin(x) + k\n    return x\n",
        "np.ones(2_000_000), 60_000",
    ),
    "few long trips": (
        "def f(x, n):\n    s = 0.0\n    for k in range(1000):\n        for i in range(n):\n"
        "            s = s * 0.5 + x[i % 3]\n    return s\n",
        "np.ones(3), 10**9",
    ),
    "small arrays": (
        "def f(x, n):\n    for k in range(n):\n        x = x * 0.5 + k\n    return x\n",
        "np.ones(4), 10**12",
    ),
    "writes to an argument": (
        "def f(x, n):\n    for k in range(n):\n        x[1:-1] = 0.3 * (x[:-2] + x[1:-1] + x[2:])\n",
        "np.ones(1_000_000), 10**7",
    ),
    "loops in loops": (
        "def f(x, n):\n    total = 0.0\n    for i in range(n):\n        for j in range(10**5):\n"
        "            total = total * 0.5 + x[j % 3] * i\n    return total\n",
        "np.ones(3), 10**7",
    ),
    "few trips around many": (
        "def f(x, n):\n    total = x.sum()\n    for i in range(100):\n        while total < n:\n            for j in range(i):\n"
        "                total = total + x[j % 3] * 0.0\n    return total\n",
        "np.ones(3), 10.0",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_keyboard_interrupt_ends_a_long_loop(name: str, tmp_path: Path) -> None:
    source, arguments = LONG[name]
    (tmp_path / "long_loop.py").write_text(f"import numpy as np\n\n\n{source}")
    text = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        f"sys.path[:0] = {[str(tmp_path), *sys.path]!r}\n"
        "import numpy as np, dsl\n"
        "from long_loop import f\n"
        "compiled = dsl.jit(f)\n"
        f"args = ({arguments})\n"
        "compiled.lower(*args)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    compiled(*args)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "print(compiled(np.arange(6.0), 2) is not None, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        # Python loses an interrupt that comes while it runs a finaliser, so there may have to be a second one.
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            if select.select([process.stdout], [], [], 3)[0]:
                break
        else:
            pytest.fail("the loop goes on")
        assert process.stdout.readline() == "interrupted\n"
        out, err = process.communicate(timeout=30)
        assert (out.strip() in ("True", "False"), err) == (True, "")
    finally:
        process.kill()
        process.communicate()


# -- which loops are shared ------------------------------------------------------------------------------------------------


def blocks(a: np.ndarray) -> np.ndarray:
    """The largest of each block of 2 x 2: two symbolic axes are swept for each row."""
    return a.reshape(a.shape[0] // 2, 2, a.shape[1] // 2, 2).max(axis=(1, 3))


def neighbours(a: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(a.astype(np.uint8), (3, 3))
    return windows.sum(axis=(2, 3))


def distances(a: np.ndarray) -> np.ndarray:
    return ((a[:, None, :] - a[None, :, :]) ** 2).sum(axis=-1)


def exponentials(a: np.ndarray) -> np.ndarray:
    return np.exp(a[:, ::2])


def turned(a: np.ndarray) -> np.ndarray:
    return np.exp(a.T) + a.T


def jobs_of(compiled: Any, *args: Any) -> int:
    """Return how many loops a call shares among threads."""
    word = runtime.word("ticket")
    with dsl.num_threads(2):
        compiled(*args)
        before = word.value >> 32
        compiled(*args)
    return (word.value >> 32) - before


@pytest.mark.parametrize("program", [blocks, neighbours, distances, turned, softmax_rows])
def test_threads_are_woken_for_much_work_only_whatever_is_symbolic(program: Program) -> None:
    compiled = dsl.jit(program)
    assert [jobs_of(compiled, np.ones((n, n + 2))) for n in (24, 34, 18)] == [0, 0, 0]
    assert jobs_of(compiled, np.ones((600, 800))) > 0


@pytest.mark.parametrize("program", [exponentials, blocks])
def test_a_few_long_rows_of_symbolic_length_are_shared(program: Program) -> None:
    compiled = dsl.jit(program)
    for rows, columns in ((4, 6), (6, 8), (8, 400_000)):
        shared = jobs_of(compiled, np.ones((rows, columns)))
    assert shared > 0


# -- fork ----------------------------------------------------------------------------------------------------------------


def test_compiled_functions_work_after_fork() -> None:
    args = (vector(), vector(1))
    compiled = dsl.jit(chain)
    expected = bits_of(compiled(*args))  # the pool has its threads now
    text = Path(__file__)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path[:0] = {[str(text.parent), *sys.path]!r}\n"
            "import os, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "import dsl\n"
            "from test_native_threads import bits_of, chain, totals, vector\n"
            "args = (vector(), vector(1))\n"
            "compiled = dsl.jit(chain)\n"
            "expected = bits_of(compiled(*args))\n"
            "for _ in range(3):\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        good = bits_of(compiled(*args)) == expected\n"
            "        good = good and dsl.jit(totals)(args[0])[0] is not None\n"
            "        os._exit(0 if good else 1)\n"
            "    assert os.waitpid(child, 0)[1] == 0\n"
            "    assert bits_of(compiled(*args)) == expected\n"
            "print('done')\n",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert bits_of(compiled(*args)) == expected
