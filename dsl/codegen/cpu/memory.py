"""The allocator of compiled programs: `dsl_alloc` and `dsl_free`, and NumPy arrays that own such blocks.

Why not malloc: the pages of a large block that malloc returns to the system fault again when it is next allocated, which
costs more than the arithmetic of a simple program. Here a block that is freed waits in the list of its size class for
the next of that class, up to a cap; beyond it the block freed longest ago goes. Classes are 64 bytes apart up to 512,
then four to a doubling. Small blocks wait in such lists too, up to 256 KB a class.

A block starts with a header that ends where the data begins; data is aligned to 64 bytes:

| before the data | word |
| --- | --- |
| 64 | address that the system gave |
| 56 | size class |
| 48 | bytes of data that fit |
| 40, 32 | next and previous block in the class list |
| 24, 16 | next younger and next older waiting block |
| 8 | 1 in use, 2 waiting |

One spin lock guards the lists; it is held for some ten instructions and never while memory is asked of the system. No
function here needs the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from dsl.codegen.cpu import cgroups, words
from dsl.codegen.cpu.words import CLASSES, NULL, field
from dsl.codegen.llvm import Function, Module, Operand, Value

__all__ = ["Stats", "cache_cap", "emit", "handler_capsule", "largest", "release_cached", "stats"]

_HEADER = 64
_LARGE = 64 << 10
_HUGE = 4 << 20
_PAGE, _HUGE_PAGE = 4 << 10, 2 << 20
_MAPPING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_USE_HUGE_PAGES = 14  # MADV_HUGEPAGE
_SMALL_CAP = 256 << 10
_BASE, _CLASS, _ROOM, _NEXT, _PREVIOUS, _YOUNGER, _OLDER, _MARK = range(-64, 0, 8)
_IN_USE, _WAITING = 1, 2


def emit(module: Module) -> None:
    """Add the allocator's functions."""
    _emit_alloc(module)
    _emit_fresh(module)
    _emit_system(module)
    _emit_free(module)
    _emit_detach(module)
    _emit_release(module)
    _emit_reset(module)
    _emit_handler(module)


# --- Allocating ----------------------------------------------------------------------------------


def _emit_alloc(module: Module) -> None:
    """`ptr dsl_alloc(i64 bytes)`: a block of at least that many bytes, or null."""
    f = module.function("dsl_alloc", "ptr", [("i64", "bytes")])
    (size,) = f.params
    with f.if_(f.compare("ugt", size, words.get(f, "largest")), unlikely=True):
        f.ret(NULL)
    kind, room = _size_class(f, size)
    words.acquire(f, "memory_lock")
    head = _list(f, kind)
    block = f.load("ptr", head)
    with f.if_(f.compare("ne", block, NULL)):
        f.call("void", "dsl_detach", block)
        f.store(f.as_value(_IN_USE, "i64"), f.gep(block, _MARK))
        _count_in_use(f, room, 1)
        words.release(f, "memory_lock")
        f.ret(block)
    words.release(f, "memory_lock")
    f.ret(f.call("ptr", "dsl_fresh", size, kind, room))


def _size_class(f: Function, size: Value) -> tuple[Value, Value]:
    """Return the size class of a size, and the bytes of its blocks."""
    units = f.binary("lshr", f.binary("add", size, _HEADER - 1), 6)
    top = _value(f.maximum(f.binary("sub", units, 1), 0))  # its upper three bits choose the class
    zeros = f.call("i64", "llvm.ctlz.i64", f.binary("or", top, 1), Value("true", "i1"))
    log = f.binary("sub", 63, zeros)
    shift = f.maximum(f.binary("sub", log, 2), 0)
    step = f.binary("lshr", top, shift)
    linear = f.compare("ult", top, 8)
    geometric = f.binary("add", f.binary("shl", log, 2), f.binary("add", step, 8 - 12 - 4))
    kind = f.select(linear, top, geometric)
    shift = f.select(linear, 0, shift)
    step = f.binary("lshr", top, shift)
    room = f.binary("shl", f.binary("shl", f.binary("add", step, 1), shift), 6)
    return kind, room


def _emit_fresh(module: Module) -> None:
    """A block from the system, or null. Large ones start at varying places in a page: else they share cache sets."""
    params = [("i64", "bytes"), ("i64", "kind"), ("i64", "room")]
    f = module.function("dsl_fresh", "ptr", params, internal=True, attributes=words.RARE)
    size, kind, room = f.params
    base = f.variable("ptr")
    base.set(f.call("ptr", "dsl_obtain", room))
    with f.if_(f.compare("eq", base.get(), NULL)):
        f.call("void", "dsl_release_cached")
        base.set(f.call("ptr", "dsl_obtain", room))
        with f.if_(f.compare("eq", base.get(), NULL)):
            f.ret(NULL)
    start, colour = f.variable("ptr"), f.variable("i64", 0)
    start.set(base.get())
    with f.if_(f.compare("uge", room, _LARGE)):
        serial = words.add(f, "serial", 1)
        colour.set(f.binary("shl", f.binary("and", serial, 7), 9))
    with f.if_(f.compare("uge", room, _HUGE)):
        start.set(_next_huge_page(f, base.get()))
        _advise(f, start.get(), f.binary("add", size, f.add(colour.get(), _HEADER)))
    block = f.gep(start.get(), f.add(colour.get(), _HEADER))
    for place, value in ((_CLASS, kind), (_ROOM, room), (_MARK, f.as_value(_IN_USE, "i64"))):
        f.store(value, f.gep(block, place))
    f.store(base.get(), f.gep(block, _BASE))
    words.acquire(f, "memory_lock")
    _count_in_use(f, room, 1)
    words.release(f, "memory_lock")
    f.ret(block)


def _emit_system(module: Module) -> None:
    """Memory for a block with so much room, from the system and back to it; the largest ones are mappings."""
    f = module.function(
        "dsl_obtain", "ptr", [("i64", "room")], internal=True, attributes=words.RARE
    )
    (room,) = f.params
    with f.if_(f.compare("uge", room, _HUGE)):
        whole = f.binary("add", room, _HUGE_PAGE + _PAGE)
        protection, kind, file = (f.as_value(n, "i32") for n in (3, _MAPPING, -1))
        start = f.as_value(0, "i64")
        mapped = f.call("ptr", "mmap", NULL, whole, protection, kind, file, start)
        refused = f.compare("eq", f.convert("ptrtoint", mapped, "i64"), -1)
        f.ret(f.select(refused, NULL, mapped))
    space = f.alloca(8)
    whole = f.binary("add", room, _PAGE)
    whole = f.select(f.compare("uge", room, _LARGE), whole, f.binary("add", room, _HEADER))
    failed = f.call("i32", "posix_memalign", space, f.as_value(64, "i64"), whole)
    with f.if_(f.compare("ne", failed, 0)):
        f.ret(NULL)
    f.ret(f.load("ptr", space))

    params = [("ptr", "base"), ("i64", "room")]
    f = module.function("dsl_give_back", "void", params, internal=True, attributes=words.RARE)
    base, room = f.params
    with f.if_(f.compare("uge", room, _HUGE)):
        f.call("i32", "munmap", base, f.binary("add", room, _HUGE_PAGE + _PAGE))
        f.ret()
    f.call("void", "free", base)
    f.ret()


def _next_huge_page(f: Function, address: Value) -> Value:
    whole = f.binary("add", f.convert("ptrtoint", address, "i64"), _HUGE_PAGE - 1)
    return f.convert("inttoptr", f.binary("and", whole, -_HUGE_PAGE), "ptr")


def _advise(f: Function, start: Value, used: Value) -> None:
    """Ask for huge pages, as NumPy does; not for the last, which the data may fill only in part."""
    if sys.platform == "linux":
        length = f.binary("and", used, -_HUGE_PAGE)
        f.call("i32", "madvise", start, length, f.as_value(_USE_HUGE_PAGES, "i32"))


def _list(f: Function, kind: Value, name: str = "free_lists") -> Value:
    return f.gep(words.address(f, name), kind, "i64")


def _count_in_use(f: Function, room: Value, sign: int) -> None:
    for name, amount in (("in_use", room), ("blocks", f.as_value(1, "i64"))):
        words.put(f, name, f.binary("add" if sign > 0 else "sub", words.get(f, name), amount))


# --- Freeing -------------------------------------------------------------------------------------


def _emit_free(module: Module) -> None:
    """`void dsl_free(ptr)`: gives a block back; null is nothing, a block that is not in use aborts the process."""
    f = module.function("dsl_free", "void", [("ptr", "block")])
    (block,) = f.params
    with f.if_(f.compare("eq", block, NULL)):
        f.ret()
    with f.if_(f.compare("ne", field(f, block, _MARK), _IN_USE), unlikely=True):
        f.call("void", "abort")
    kind, room = field(f, block, _CLASS), field(f, block, _ROOM)
    words.acquire(f, "memory_lock")
    _count_in_use(f, room, -1)
    large = f.compare("uge", room, _LARGE)
    cached = f.binary("add", words.get(f, "cached"), room)
    waiting = f.load("i64", _list(f, kind, "free_counts"))
    full = f.select(
        large,
        f.compare("ugt", room, words.get(f, "cache_cap")),
        f.compare("uge", f.binary("mul", waiting, room), _SMALL_CAP),
    )
    with f.if_(full, unlikely=True):
        f.store(f.as_value(0, "i64"), f.gep(block, _MARK))
        words.release(f, "memory_lock")
        f.call("void", "dsl_give_back", field(f, block, _BASE, "ptr"), room)
        f.ret()
    f.store(f.as_value(_WAITING, "i64"), f.gep(block, _MARK))
    words.put(f, "cached", cached)
    f.store(f.binary("add", waiting, 1), _list(f, kind, "free_counts"))
    _attach(f, block, kind)
    with f.if_(large):
        _attach_youngest(f, block)
        over = f.compare("ugt", words.get(f, "cached"), words.get(f, "cache_cap"))
        with f.if_(over, unlikely=True):
            f.call("void", "dsl_evict")
            f.ret()
    words.release(f, "memory_lock")
    f.ret()
    _emit_evict(module)


def _attach(f: Function, block: Value, kind: Value) -> None:
    """Put a block at the head of its class list."""
    head = _list(f, kind)
    following = f.load("ptr", head)
    f.store(following, f.gep(block, _NEXT))
    f.store(NULL, f.gep(block, _PREVIOUS))
    with f.if_(f.compare("ne", following, NULL)):
        f.store(block, f.gep(following, _PREVIOUS))
    f.store(block, head)


def _attach_youngest(f: Function, block: Value) -> None:
    """Put a large block at the young end of the list by age."""
    newest = words.get(f, "newest", "ptr")
    f.store(newest, f.gep(block, _OLDER))
    f.store(NULL, f.gep(block, _YOUNGER))
    f.if_else(
        f.compare("ne", newest, NULL),
        lambda: f.store(block, f.gep(newest, _YOUNGER)),
        lambda: f.store(block, words.address(f, "oldest")),
    )
    f.store(block, words.address(f, "newest"))


def _emit_detach(module: Module) -> None:
    """Take a waiting block out of the lists; the lock is held."""
    f = module.function("dsl_detach", "void", [("ptr", "block")], internal=True)
    (block,) = f.params
    kind, room = field(f, block, _CLASS), field(f, block, _ROOM)
    count = _list(f, kind, "free_counts")
    f.store(f.binary("sub", f.load("i64", count), 1), count)
    words.put(f, "cached", f.binary("sub", words.get(f, "cached"), room))
    _unlink(f, block, _NEXT, _PREVIOUS, _list(f, kind), None)
    with f.if_(f.compare("uge", room, _LARGE)):
        _unlink(f, block, _YOUNGER, _OLDER, words.address(f, "oldest"), words.address(f, "newest"))
    f.ret()


def _unlink(
    f: Function, block: Value, next: int, previous: int, head: Value, tail: Value | None
) -> None:
    """Take a block out of a list with links in both directions."""
    after, before = field(f, block, next, "ptr"), field(f, block, previous, "ptr")
    f.if_else(
        f.compare("ne", before, NULL),
        lambda: f.store(after, f.gep(before, next)),
        lambda: f.store(after, head),
    )

    def end() -> None:
        if tail is not None:
            f.store(before, tail)

    f.if_else(f.compare("ne", after, NULL), lambda: f.store(before, f.gep(after, previous)), end)


def _emit_evict(module: Module) -> None:
    """Give the blocks that waited longest to the system until the cap holds; takes over the lock."""
    f = module.function("dsl_evict", "void", [], internal=True, attributes=words.RARE)

    def over() -> Value:
        return f.both(
            f.compare("ugt", words.get(f, "cached"), words.get(f, "cache_cap")),
            f.compare("ne", words.get(f, "oldest", "ptr"), NULL),
        )

    with f.while_(over):
        _give_to_system(f, words.get(f, "oldest", "ptr"))
    words.release(f, "memory_lock")
    f.ret()


def _give_to_system(f: Function, block: Value) -> None:
    """Free a waiting block, without holding the lock meanwhile."""
    room = field(f, block, _ROOM)
    f.call("void", "dsl_detach", block)
    words.release(f, "memory_lock")
    f.call("void", "dsl_give_back", field(f, block, _BASE, "ptr"), room)
    words.acquire(f, "memory_lock")


def _emit_release(module: Module) -> None:
    """`void dsl_release_cached()`: gives every waiting block to the system."""
    f = module.function("dsl_release_cached", "void", [], attributes=words.RARE)
    words.acquire(f, "memory_lock")
    with f.loop(0, CLASSES) as kind:
        head = _list(f, kind)
        with f.while_(lambda: f.compare("ne", f.load("ptr", head), NULL)):
            _give_to_system(f, f.load("ptr", head))
    words.release(f, "memory_lock")
    f.ret()


def _emit_reset(module: Module) -> None:
    """`void dsl_memory_reset()`: in the child after `fork`. If a thread that is gone holds the lock, the lists may be
    in disorder and are forgotten, with the blocks in them."""
    f = module.function("dsl_memory_reset", "void", [], attributes=words.RARE)
    with f.if_(f.compare("ne", words.load(f, "memory_lock"), 0)):
        for name in ("oldest", "newest", "cached"):
            words.put(f, name, 0)
        with f.loop(0, CLASSES) as kind:
            for name in ("free_lists", "free_counts"):
                f.store(f.as_value(0, "i64"), _list(f, kind, name))
        words.release(f, "memory_lock")
    f.ret()


# --- NumPy's memory handler (NEP 49) -------------------------------------------------------------


def _emit_handler(module: Module) -> None:
    """The four functions of a handler; the first argument is a context, not used."""
    f = module.function(
        "dsl_numpy_malloc", "ptr", [("ptr", "context"), ("i64", "bytes")], attributes=words.RARE
    )
    f.ret(f.call("ptr", "dsl_alloc", f.params[1]))
    _emit_calloc(module)
    _emit_realloc(module)
    f = module.function(
        "dsl_numpy_free", "void", [("ptr", "context"), ("ptr", "block"), ("i64", "bytes")]
    )
    f.call("void", "dsl_free", f.params[1])
    f.ret()


def _emit_calloc(module: Module) -> None:
    params = [("ptr", "context"), ("i64", "count"), ("i64", "size")]
    f = module.function("dsl_numpy_calloc", "ptr", params, attributes=words.RARE)
    count, size = f.params[1:]
    kind = "{i64, i1}"
    f.module.declare("llvm.umul.with.overflow.i64", kind, ["i64", "i64"])
    pair = f.define(
        kind, f"call {kind} @llvm.umul.with.overflow.i64(i64 {count.text}, i64 {size.text})"
    )
    bytes = f.define("i64", f"extractvalue {kind} {pair.text}, 0")
    with f.if_(f.define("i1", f"extractvalue {kind} {pair.text}, 1")):
        f.ret(NULL)
    block = f.call("ptr", "dsl_alloc", bytes)
    with f.if_(f.compare("ne", block, NULL)):
        f.call("ptr", "memset", block, f.as_value(0, "i32"), bytes)
    f.ret(block)


def _emit_realloc(module: Module) -> None:
    params = [("ptr", "context"), ("ptr", "block"), ("i64", "bytes")]
    f = module.function("dsl_numpy_realloc", "ptr", params, attributes=words.RARE)
    old, bytes = f.params[1:]
    with f.if_(f.compare("eq", old, NULL)):
        f.ret(f.call("ptr", "dsl_alloc", bytes))
    block = f.call("ptr", "dsl_alloc", bytes)
    with f.if_(f.compare("ne", block, NULL)):
        f.call("ptr", "memcpy", block, old, _value(f.minimum(bytes, field(f, old, _ROOM))))
        f.call("void", "dsl_free", old)
    f.ret(block)


def _value(operand: Operand) -> Value:
    assert isinstance(operand, Value)
    return operand


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler, version 1."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    ]


HANDLER_NAME: Final = "dsl_allocator"


def handler_capsule(symbol: Callable[[str], int]) -> object:
    """Return the capsule that NumPy knows the allocator by; `symbol` gives the addresses of the runtime."""
    functions = [symbol(f"dsl_numpy_{name}") for name in ("malloc", "calloc", "realloc", "free")]
    handler = _Handler(HANDLER_NAME.encode(), 1, None, *functions)
    _kept.append(handler)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(ctypes.addressof(handler), b"mem_handler", None)


_kept: list[object] = []


# --- From Python ---------------------------------------------------------------------------------


class Stats(NamedTuple):
    """What the allocator holds: bytes and blocks in use, and bytes waiting to be used again."""

    in_use: int
    cached: int
    blocks: int


def stats() -> Stats:
    """Return what the allocator holds now."""
    from dsl.codegen.cpu import runtime

    return Stats(*(runtime.word(name).value for name in Stats._fields))


def release_cached() -> None:
    """Give the blocks that wait to be used again back to the system."""
    from dsl.codegen.cpu import runtime

    runtime.function("dsl_release_cached", None)()


def cache_cap() -> int:
    """Return the most bytes that may wait: an eighth of the machine's memory, and no more than 1 GiB."""
    return min(1 << 30, _machine_memory() // 8)


def largest() -> int:
    """Return the bytes above which no block can be had, though the system might promise them.

    A program writes all that it asks for. Four times the machine's memory leaves room for swap.
    """
    return min(1 << 46, 4 * _machine_memory())


@functools.cache
def _machine_memory() -> int:
    """Return the bytes of memory that the process may use."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        whole = 1 << 40
    return int(min(whole, cgroups.memory()))
