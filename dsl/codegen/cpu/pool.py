"""The thread pool of compiled programs: `dsl_parallel`, which runs a loop in chunks, and how many threads it may use.

A job is the function, its environment and its extent in the words `job`, `environment`, `extent`; the word `ticket`
publishes it: a serial number, the number of chunks and the next chunk that nobody claimed, in one word, so that a claim
is one compare-and-exchange and a thread that comes late finds nothing left of an old job. The caller claims chunks too,
and waits only for chunks that others have begun. So a worker that sleeps or lost its CPU delays nobody.

One job runs at a time. A caller that finds the pool busy (another Python thread, or a chunk that starts a loop of its
own) runs its whole loop itself. Idle workers spin for some microseconds and then sleep. They are made when first needed,
block every signal, never hold the GIL, and end before `fork` and when the interpreter exits.

Long work has several chunks for each thread: one whose CPU also has other things to do takes fewer of them. (Threads of
OpenBLAS spin for a tenth of a second after each product of NumPy's. With a chunk a thread, everything took twice as long
meanwhile.) Chunks depend only on the extent, the grain and the number of threads. Results must not depend on chunks; that is the
business of whoever makes the loops.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from dsl.codegen.cpu import cgroups, words
from dsl.codegen.cpu.words import MAX_THREADS, NULL
from dsl.codegen.llvm import Function, Module, Value
from dsl.config import config

__all__ = ["apply_limit", "available", "count", "emit", "limit_blas", "threads"]

SPIN: Final = 50_000
"""Nanoseconds that an idle worker, and a caller that waits for the last chunk, spin before they sleep."""

_ALIGNED = 1024

CHUNKS, CHUNK = 4, 4
"""How many chunks a thread has of long work, and how many grains are in each of them at least."""


def emit(module: Module) -> None:
    """Add the pool's functions."""
    _emit_thread(module)
    _emit_clock(module)
    _emit_limit(module)
    _emit_claim(module)
    _emit_chunk(module)
    _emit_sleep(module)
    _emit_worker(module)
    _emit_spawn(module)
    _emit_wait(module)
    _emit_parallel(module)
    _emit_reset(module)
    _emit_stop(module)


# --- What a thread knows -------------------------------------------------------------------------

THREAD_CONTEXT, THREAD_LIMIT, THREAD_DEADLINE = 0, 8, 16
"""Byte offsets in the record that `dsl_thread()` returns: running context, thread limit or 0, when to poll next."""


def _emit_thread(module: Module) -> None:
    """`ptr dsl_thread()`: the record of the calling thread, or null when there is no memory for one."""
    f = module.function("dsl_thread", "ptr", [])
    record = f.call("ptr", "pthread_getspecific", words.get(f, "key"))
    with f.if_(f.compare("eq", record, NULL), unlikely=True):
        made = f.call("ptr", "calloc", f.as_value(1, "i64"), f.as_value(64, "i64"))
        f.call("i32", "pthread_setspecific", words.get(f, "key"), made)
        f.ret(made)
    f.ret(record)


def _emit_clock(module: Module) -> None:
    """`i64 dsl_clock(i32 id)`: nanoseconds of one of the system's clocks."""
    f = module.function("dsl_clock", "i64", [("i32", "id")])
    space = f.alloca(16)
    f.call("i32", "clock_gettime", f.params[0], space)
    seconds, rest = f.load("i64", space), words.field(f, space, 8)
    f.ret(f.add(f.mul(seconds, 1_000_000_000), rest))


def _now(f: Function) -> Value:
    return f.call("i64", "dsl_clock", f.as_value(_MONOTONIC, "i32"))


_MONOTONIC = 1 if sys.platform == "linux" else 6


def _emit_limit(module: Module) -> None:
    """`i64 dsl_threads()`: how many threads a loop of the calling thread may use; and what sets that thread's own limit."""
    f = module.function("dsl_threads", "i64", [])
    with f.if_(f.compare("ne", words.load(f, "thread_limits"), 0)):
        own = words.field(f, f.call("ptr", "dsl_thread"), THREAD_LIMIT)
        with f.if_(f.compare("ne", own, 0)):
            f.ret(own)
    f.ret(words.load(f, "limit"))

    f = module.function("dsl_limit_thread", "void", [("i64", "count")], attributes=words.RARE)
    f.store(f.params[0], f.gep(f.call("ptr", "dsl_thread"), THREAD_LIMIT))
    words.store(f, "thread_limits", 1)
    f.ret()


# --- Claiming and running chunks -----------------------------------------------------------------


def _left(f: Function, ticket: Value) -> Value:
    """Return whether a ticket has chunks that nobody claimed."""
    claimed, chunks = _parts(f, ticket)
    return f.compare("ult", claimed, chunks)


def _parts(f: Function, ticket: Value) -> tuple[Value, Value]:
    claimed = f.binary("and", ticket, 0xFFFF)
    return claimed, f.binary("and", f.binary("lshr", ticket, 16), 0xFFFF)


def _emit_claim(module: Module) -> None:
    """The number of a chunk that is now the caller's to run, or -1."""
    f = module.function("dsl_claim", "i64", [], internal=True)
    ticket = f.variable("i64", words.load(f, "ticket"))
    with f.while_(lambda: _left(f, ticket.get())):
        seen = ticket.get()
        with f.if_(words.compare_exchange(f, "ticket", seen, f.binary("add", seen, 1))):
            f.ret(_parts(f, seen)[0])
        ticket.set(words.load(f, "ticket"))
    f.ret(-1)


def _emit_chunk(module: Module) -> None:
    """Run a claimed chunk, and report it. The job's words hold still until the last chunk is reported."""
    f = module.function("dsl_chunk", "void", [("i64", "chunk")], internal=True)
    (chunk,) = f.params
    first, last = _border(f, chunk), _border(f, f.binary("add", chunk, 1))
    job, environment = words.get(f, "job", "ptr"), words.get(f, "environment", "ptr")
    f.call_pointer("void", job, environment, first, last)
    before = words.add(f, "remaining", -1)
    awaited = f.both(f.compare("eq", before, 1), f.compare("ne", words.load(f, "waiting"), 0))
    with f.if_(awaited, unlikely=True), _locked(f):
        _condition(f, "broadcast", "done")
    f.ret()


def _border(f: Function, chunk: Value) -> Value:
    """Return where a chunk starts, which for long chunks is a multiple of 64."""
    extent, chunks = words.get(f, "extent"), words.get(f, "chunks")
    even = f.binary("udiv", f.binary("mul", extent, chunk), chunks)
    rounded = f.binary("and", even, words.get(f, "rounding"))
    return f.select(f.compare("eq", chunk, chunks), extent, rounded)


@contextlib.contextmanager
def _locked(f: Function) -> Generator[None]:
    f.call("i32", "pthread_mutex_lock", words.address(f, "mutex"))
    yield
    f.call("i32", "pthread_mutex_unlock", words.address(f, "mutex"))


def _condition(f: Function, verb: str, name: str) -> None:
    rest = [words.address(f, "mutex")] if verb == "wait" else []
    f.call("i32", f"pthread_cond_{verb}", words.address(f, name), *rest)


# --- Workers -------------------------------------------------------------------------------------


def _emit_worker(module: Module) -> None:
    """What a worker does: claim, run, spin, sleep."""
    f = module.function("dsl_worker", "ptr", [("ptr", "nothing")], internal=True)
    spins, since = f.variable("i64", 0), f.variable("i64", _now(f))

    def work(chunk: Value) -> None:
        f.call("void", "dsl_chunk", chunk)
        since.set(_now(f))

    def idle() -> None:
        words.pause(f)
        spins.set(f.binary("add", spins.get(), 1))
        with f.if_(f.compare("eq", f.binary("and", spins.get(), 15), 0)):
            late = f.compare("sgt", f.binary("sub", _now(f), since.get()), SPIN)
            with f.if_(late):
                f.call("void", "dsl_sleep")
                since.set(_now(f))

    with f.while_(lambda: f.compare("eq", words.load(f, "stop"), 0)):
        chunk = f.call("i64", "dsl_claim")
        f.if_else(f.compare("sge", chunk, 0), lambda: work(chunk), idle)
    f.ret(NULL)


def _emit_sleep(module: Module) -> None:
    """Sleep until woken. Then it is time to spin again, even if the job is over: more often follow than not.

    A publisher stores the ticket, then reads `sleepers`; a worker counts itself, then reads the ticket: one sees the
    other.
    """
    f = module.function("dsl_sleep", "void", [], internal=True, attributes=words.RARE)

    with _locked(f):
        words.add(f, "sleepers", 1)
        nothing = f.invert(_left(f, words.load(f, "ticket")))
        with f.if_(f.both(nothing, f.compare("eq", words.load(f, "stop"), 0))):
            _condition(f, "wait", "wake")
        words.add(f, "sleepers", -1)
    f.ret()


def _emit_spawn(module: Module) -> None:
    """Make workers until there are `wanted`, or the system refuses; the caller has the pool."""
    f = module.function(
        "dsl_spawn", "void", [("i64", "wanted")], internal=True, attributes=words.RARE
    )
    every, old = f.alloca(128), f.alloca(128)
    mask = f.as_value(int(signal.SIG_SETMASK), "i32")
    f.call("i32", "sigfillset", every)
    f.call("i32", "pthread_sigmask", mask, every, old)
    failed = f.variable("i32", 0)

    def wanted() -> Value:
        fewer = f.compare("slt", words.load(f, "workers"), f.params[0])
        return f.both(fewer, f.compare("eq", failed.get(), 0))

    with f.while_(wanted):
        count = words.load(f, "workers")
        handle = f.gep(words.address(f, "handles"), count, "i64")
        worker = Value("@dsl_worker", "ptr")
        failed.set(f.call("i32", "pthread_create", handle, NULL, worker, NULL))
        with f.if_(f.compare("eq", failed.get(), 0)):
            words.store(f, "workers", f.binary("add", count, 1))
    f.call("i32", "pthread_sigmask", mask, old, NULL)
    f.ret()


# --- Callers -------------------------------------------------------------------------------------


def _emit_parallel(module: Module) -> None:
    """`void dsl_parallel(ptr fn, ptr env, i64 n, i64 grain)`: fn(env, first, last) over all of [0, n)."""
    params = [("ptr", "fn"), ("ptr", "env"), ("i64", "n"), ("i64", "grain")]
    f = module.function("dsl_parallel", "void", params)
    job, environment, extent, grain = f.params
    with f.if_(f.compare("sle", extent, 0), unlikely=True):
        f.ret()
    most = f.binary("sdiv", extent, f.maximum(grain, 1))
    threads = f.as_value(f.minimum(most, f.call("i64", "dsl_threads")), "i64")
    alone = f.either(
        f.compare("slt", threads, 2),
        f.compare("ne", f.either(words.load(f, "busy"), words.load(f, "stop")), 0),
    )
    with f.if_(alone):
        f.call_pointer("void", job, environment, f.as_value(0, "i64"), extent)
        f.ret()
    with f.if_(f.invert(words.compare_exchange(f, "busy", 0, 1)), unlikely=True):
        f.call_pointer("void", job, environment, f.as_value(0, "i64"), extent)
        f.ret()
    helpers = f.binary("sub", threads, 1)
    with f.if_(f.compare("slt", words.load(f, "workers"), helpers), unlikely=True):
        f.call("void", "dsl_spawn", helpers)
    each = f.minimum(f.binary("udiv", most, f.mul(threads, CHUNK)), CHUNKS)
    chunks = f.mul(threads, f.maximum(each, 1))
    _publish(f, job, environment, extent, grain, f.as_value(chunks, "i64"), helpers)
    chunk = f.variable("i64", f.call("i64", "dsl_claim"))
    with f.while_(lambda: f.compare("sge", chunk.get(), 0)):
        f.call("void", "dsl_chunk", chunk.get())
        chunk.set(f.call("i64", "dsl_claim"))
    with f.if_(f.compare("ne", words.load(f, "remaining"), 0)):
        f.call("void", "dsl_wait")
    words.store(f, "busy", 0)
    f.ret()


def _publish(
    f: Function,
    job: Value,
    environment: Value,
    extent: Value,
    grain: Value,
    chunks: Value,
    helpers: Value,
) -> None:
    """Let workers claim chunks of a new job, and wake those that are needed."""
    each = f.binary("udiv", extent, chunks)
    enough = f.both(
        f.compare("sge", each, _ALIGNED), f.compare("sge", each, f.binary("add", grain, 64))
    )
    f.store(job, words.address(f, "job"))
    f.store(environment, words.address(f, "environment"))
    words.put(f, "extent", extent)
    words.put(f, "chunks", chunks)
    words.put(f, "rounding", f.select(enough, -64, -1))
    words.store(f, "remaining", chunks)
    serial = f.binary("add", f.binary("lshr", words.load(f, "ticket"), 32), 1)
    ticket = f.binary("or", f.binary("shl", serial, 32), f.binary("shl", chunks, 16))
    words.store(f, "ticket", ticket)
    sleepers = words.load(f, "sleepers")
    with f.if_(f.compare("ne", sleepers, 0)):
        _pass_lock(f)
        f.if_else(
            f.compare("sge", helpers, sleepers),
            lambda: _condition(f, "broadcast", "wake"),
            lambda: _wake(f, helpers),
        )


def _wake(f: Function, count: Value) -> None:
    with f.loop(0, count):
        _condition(f, "signal", "wake")


def _pass_lock(f: Function) -> None:
    """Wait until whoever counted itself as asleep can be woken. Waking with the lock held would make it wait again."""
    with _locked(f):
        pass


def _emit_wait(module: Module) -> None:
    """Wait until every chunk is reported: spinning, then asleep."""
    f = module.function("dsl_wait", "void", [], internal=True, attributes=words.RARE)
    unfinished = lambda: f.compare("ne", words.load(f, "remaining"), 0)
    spins, since = f.variable("i64", 0), _now(f)
    with f.while_(unfinished):
        words.pause(f)
        spins.set(f.binary("add", spins.get(), 1))
        with f.if_(f.compare("eq", f.binary("and", spins.get(), 15), 0)):
            late = f.compare("sgt", f.binary("sub", _now(f), since), SPIN)
            with f.if_(late):
                with _locked(f):
                    words.store(f, "waiting", 1)
                    with f.while_(unfinished):
                        _condition(f, "wait", "done")
                    words.store(f, "waiting", 0)
                f.ret()
    f.ret()


# --- Beginning and end ---------------------------------------------------------------------------


def _emit_reset(module: Module) -> None:
    """`dsl_pool_start()`, once a process; `dsl_pool_reset()`, in the child after `fork`: a pool without workers."""
    f = module.function("dsl_pool_start", "void", [], attributes=words.RARE)
    f.call("i32", "pthread_key_create", words.address(f, "key"), Value("@free", "ptr"))
    f.call("void", "dsl_pool_reset")
    f.ret()
    f = module.function("dsl_pool_reset", "void", [], attributes=words.RARE)
    for name in ("ticket", "remaining", "waiting", "busy", "workers", "stop", "sleepers"):
        words.store(f, name, 0)
    f.call("i32", "pthread_mutex_init", words.address(f, "mutex"), NULL)
    for name in ("wake", "done"):
        f.call("i32", "pthread_cond_init", words.address(f, name), NULL)
    f.ret()


def _emit_stop(module: Module) -> None:
    """`void dsl_pool_stop(i64 forever)`: end the workers and wait for them, unless a loop is running."""
    f = module.function("dsl_pool_stop", "void", [("i64", "forever")], attributes=words.RARE)
    with f.if_(f.invert(words.compare_exchange(f, "busy", 0, 1))):
        f.ret()
    words.store(f, "stop", 1)
    with _locked(f):
        _condition(f, "broadcast", "wake")
    with f.loop(0, words.load(f, "workers")) as index:
        handle = f.load("i64", f.gep(words.address(f, "handles"), index, "i64"))
        f.call("i32", "pthread_join", handle, NULL)
    words.store(f, "workers", 0)
    words.store(f, "stop", f.params[0])
    words.store(f, "busy", 0)
    f.ret()


# --- How many threads ----------------------------------------------------------------------------


def count() -> int:
    """Return how many threads the process may use: the option, OMP_NUM_THREADS, or the CPUs it may run on."""
    return min(config.num_threads or _openmp() or available(), MAX_THREADS)


def _openmp() -> int | None:
    """Return OMP_NUM_THREADS, whose first number counts when there are several for nested loops."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None


def available() -> int:
    """Return the CPUs that the process may use by its affinity mask and its control groups' quotas."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cpus = os.cpu_count() or 1
    return max(1, math.ceil(min(cpus, cgroups.cpus())))


@contextlib.contextmanager
def threads(limit: int) -> Generator[None]:
    """Let compiled code that this thread calls use at most `limit` threads until the end of a `with` block."""
    with config.override(num_threads=limit):
        yield


def apply_limit() -> None:
    """Tell the runtime and BLAS how many threads the options allow: this thread, or the process."""
    from dsl.codegen.cpu import runtime

    own = config.is_overridden("num_threads")
    limit_thread = runtime.function("dsl_limit_thread", None, ctypes.c_int64)
    limit_thread(count() if own else 0)
    if not own:
        runtime.word("limit").value = count()
    limit_blas(count())


# --- BLAS ----------------------------------------------------------------------------------------

_BLAS_FUNCTIONS: Final = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)


class _Blas:
    """A BLAS in this process. `most` is how many threads it used before we limited it."""

    def __init__(self, get_threads: Callable[[], int], set_threads: Callable[[int], None]) -> None:
        self.get_threads, self._set_threads = get_threads, set_threads
        self.most = self._ours = get_threads()

    def limit(self, threads: int) -> None:
        now = self.get_threads()
        if now != self._ours:  # someone else's setting, which we do not raise
            self.most = now
        if (wanted := min(threads, self.most)) != now:
            self._set_threads(wanted)
        self._ours = self.get_threads()


def limit_blas(limit: int) -> None:
    """Let each BLAS that is loaded use at most `limit` threads, and no more than it did before.

    The setting is the process's. A BLAS that is loaded later is not affected: call this again.
    """
    for blas in map(_open_blas, _blas_paths(len(sys.modules))):
        if blas is not None:
            blas.limit(limit)


@functools.lru_cache(1)
def _blas_paths(modules: int) -> set[str]:
    """Return the files of each BLAS in this process, looked up again when Python modules were loaded since."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.partition("/")[2] for line in lines if "openblas" in line or "mkl_rt" in line}
    return {f"/{path}" for path in paths}


@functools.cache
def _open_blas(path: str) -> _Blas | None:
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for getter, setter in _BLAS_FUNCTIONS:
        if hasattr(library, getter) and hasattr(library, setter):
            return _Blas(getattr(library, getter), getattr(library, setter))
    return None
