"""The words that the parts of the native runtime share: where each is, and how code reads and changes it.

The runtime has one block of memory of its own, `@dsl_memory`, zero at first. Each word has a name here; Python sees the
same words through `view`. Words that threads fight over stand in cache lines of their own.

Orderings are sequentially consistent unless a comment says why less is enough: no word is hot enough to gain from less.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = [
    "NULL", "OBJECTS", "PLACES", "SIZE", "acquire", "add", "address", "compare_exchange", "emit", "field", "get",
    "load", "pause", "put", "release", "store", "store_fence", "view",
]  # fmt: skip

NULL: Final = Value("null", "ptr")

OBJECTS: Final = (
    "not_implemented", "none", "true", "array_type", "new_array", "new_scalar", "set_base", "memory_handler", "slow",
    "watch", "cache_cap", "largest",
)  # fmt: skip
"""What `dsl_init` receives, in this order: addresses of Python objects, NumPy functions, `entry.SLOW` and
`watch.look`; two caps."""

RARE: Final = "nounwind noinline optnone cold"
"""Attributes of functions off the fast path: not worth LLVM's time, which is half of the runtime's otherwise."""

CLASSES: Final = 160
"""Size classes of the allocator."""

MAX_THREADS: Final = 1024

_LINE = 64


def _lay_out(*lines: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return the byte offset of each name, given groups of (name -> words) that start on a cache line each."""
    places, place = {}, 0
    for line in lines:
        for name, count in line.items():
            places[name] = place
            place += 8 * count
        place = -(-place // _LINE) * _LINE
    return places, place


PLACES, SIZE = _lay_out(
    {"main_thread": 1, "watched": 1, "key": 1, **dict.fromkeys(OBJECTS, 1)},
    # allocator
    dict.fromkeys(["memory_lock", "in_use", "cached", "blocks", "serial", "oldest", "newest"], 1),
    {"free_lists": CLASSES, "free_counts": CLASSES},
    # pool: what is claimed, what is left, who runs it
    {"ticket": 1},
    {"remaining": 1, "waiting": 1},
    {"busy": 1, "limit": 1, "thread_limits": 1, "workers": 1, "stop": 1},
    {"sleepers": 1},
    {"job": 1, "environment": 1, "extent": 1, "chunks": 1, "rounding": 1},
    {"mutex": 16},
    {"wake": 16},
    {"done": 16},
    {"handles": MAX_THREADS},
)


def emit(module: Module) -> None:
    """Add the memory, `dsl_memory()` that returns its address, and `dsl_init(words)` that fills in `OBJECTS`."""
    module.include(
        "dsl_words", f"@dsl_words = internal global [{SIZE} x i8] zeroinitializer, align 64"
    )
    f = module.function("dsl_memory", "ptr", [], attributes=RARE)
    f.ret(Value("@dsl_words", "ptr"))
    f = module.function("dsl_init", "void", [("ptr", "words")], attributes=RARE)
    for index, name in enumerate(OBJECTS):
        f.store(field(f, f.params[0], 8 * index), address(f, name))
    f.ret()


def view(memory: int, name: str) -> ctypes.c_int64:
    """Return a word of the runtime, live, given the address of its memory."""
    return ctypes.c_int64.from_address(memory + PLACES[name])


# --- Plain access --------------------------------------------------------------------------------


def address(f: Function, name: str) -> Value:
    """Return the address of a word."""
    return f.gep(Value("@dsl_words", "ptr"), PLACES[name])


def get(f: Function, name: str, type: str = "i64") -> Value:
    """Load a word."""
    return f.load(type, address(f, name))


def put(f: Function, name: str, value: Operand) -> None:
    """Store a word."""
    f.store(f.as_value(value, "i64"), address(f, name))


def field(f: Function, base: Value, offset: Operand, type: str = "i64") -> Value:
    """Load what is `offset` bytes after an address."""
    return f.load(type, f.gep(base, offset))


# --- Atomic access -------------------------------------------------------------------------------


def load(f: Function, name: str) -> Value:
    return f.define("i64", f"load atomic i64, ptr {address(f, name).text} seq_cst, align 8")


def store(f: Function, name: str, value: Operand) -> None:
    text = f.as_value(value, "i64").text
    f.emit(f"store atomic i64 {text}, ptr {address(f, name).text} seq_cst, align 8")


def add(f: Function, name: str, amount: int) -> Value:
    """Add to a word and return what it was."""
    return f.define("i64", f"atomicrmw add ptr {address(f, name).text}, i64 {amount} seq_cst")


def compare_exchange(f: Function, name: str, old: Operand, new: Operand) -> Value:
    """Store `new` if the word is `old`; return whether it was."""
    was, to = f.as_value(old, "i64").text, f.as_value(new, "i64").text
    place = address(f, name).text
    pair = f.define("pair", f"cmpxchg ptr {place}, i64 {was}, i64 {to} seq_cst seq_cst")
    return f.define("i1", f"extractvalue {{i64, i1}} {pair.text}, 1")


def acquire(f: Function, name: str) -> None:
    """Take a spin lock. Whoever holds it does so for nanoseconds, or has lost its CPU: then yielding helps."""
    place = address(f, name).text
    tries = f.variable("i64", 0)

    def taken() -> Value:
        return f.compare("ne", f.define("i64", f"atomicrmw xchg ptr {place}, i64 1 acquire"), 0)

    with f.while_(taken):
        pause(f)
        tries.set(f.binary("add", tries.get(), 1))
        with f.if_(f.compare("eq", f.binary("and", tries.get(), 31), 0)):
            f.call("i32", "sched_yield")


def release(f: Function, name: str) -> None:
    """Give a spin lock back."""
    f.emit(f"store atomic i64 0, ptr {address(f, name).text} release, align 8")


def pause(f: Function) -> None:
    """Tell the CPU that this is a spinning loop."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        f.call("void", "llvm.x86.sse2.pause")
    elif machine in ("aarch64", "arm64"):
        f.call("void", "llvm.aarch64.hint", f.as_value(1, "i32"))


def store_fence(f: Function) -> None:
    """Order stores that went past the caches before later ones."""
    if platform.machine() in ("x86_64", "AMD64"):
        f.call("void", "llvm.x86.sse.sfence")
    else:
        f.emit("fence seq_cst")
