"""Turns LLVM IR as text into machine code linked into this process, through the disk cache.

In: the text of a module. Out: a `Code`, which gives the addresses of the functions the module defines and keeps them
valid while it lives. Externals are found by name when code is linked: those given to `define`, then those of the
process (C library, libm, threads). So stored objects hold no addresses, and work in every process.

What holds:
- The same text is linked once per process while its code is in use, and compiled once per machine while its object is
  in the disk cache.
- A process that finds everything in the cache never loads LLVM (on x86-64 Linux; elsewhere LLVM is the linker).
- One lock surrounds compiling and linking. `Code.address` takes no lock.
- Malformed IR raises InternalError with the lines around the mistake. It is verified before LLVM's passes see it: they
  crash the process instead.

>>> code = load("define i64 @twice(i64 %x) {\\n  %y = shl i64 %x, 1\\n  ret i64 %y\\n}")
>>> import ctypes
>>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("twice"))(21)
42
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dsl.codegen.cpu import cache, elf
from dsl.config import did_you_mean
from dsl.errors import InternalError

__all__ = [
    "AS_WRITTEN",
    "BRANCHES",
    "NO_GATHERS",
    "SPLIT",
    "STRAIGHT",
    "UNROLL",
    "CacheStats",
    "Code",
    "assembly",
    "define",
    "defines",
    "key",
    "link_object",
    "load",
    "machine_and_compiler",
    "optimized_text",
    "stats",
]

PHASES = ("start", "parse", "optimize", "codegen", "link")
"""What `Code.times` tells apart; `start` is loading LLVM itself, once per process."""

_SETTINGS = "5"
"""Names the way this file uses LLVM. Change it with anything below that changes the code made from the same text."""

_SWITCHES = {
    "no-vectorize": "loop_vectorization",
    "no-slp": "slp_vectorization",
    "no-interleave": "loop_interleaving",
    "no-unroll": "loop_unrolling",
}
"""Flags that switch a part of LLVM's pipeline off, with llvmlite's names of those parts. All are on otherwise."""

NO_GATHERS = "no-gathers"
"""The flag for code that reads memory in steps that are known: element by element where the CPU's instruction for scattered
ones is slow."""

AS_WRITTEN = "as-written"
"""The flag for text whose loops are written as they should run. It gets few of LLVM's passes: for the library of matrix
products they take 15 ms instead of 100 to 170, and its code is as fast."""

BRANCHES = "branches"
"""The flag for code that waits for memory: a guess at a comparison lets it read on before that is known."""

STRAIGHT = "straight"
"""The flag for such text of kernels alone, without branches or loops of the program's own: to combine instructions before code is
generated, which combines them itself, took a twentieth of the time and changed nothing. Loops over numbers gain by it."""

UNROLL = "unroll"
"""The flag for such text with a loop that gains by several trips in one: what cuts numbers off to some bits is then done once, and
a search for the best takes no more than to compare."""

SPLIT = "split"
"""The flag for code with loops that ask in each trip for what stays: LLVM makes a loop for each answer, at its level 3 alone."""


class _Image(Protocol):
    @property
    def symbols(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, eq=False)
class Code:
    """Machine code linked into this process; its addresses are valid while this object lives.

    `times` has the seconds spent in each of `PHASES`; phases that a cache hit skipped are 0.
    """

    times: dict[str, float]
    from_cache: bool
    _image: _Image

    def address(self, symbol: str) -> int:
        """Return the address of a function or global variable that the module defines and does not hide."""
        try:
            return self._image.symbols[symbol]
        except KeyError:
            known = did_you_mean(symbol, self._image.symbols)
        raise InternalError(f"compiled code defines no {symbol!r}{known}")


class CacheStats(NamedTuple):
    """What `load` did in this process, and what happened on disk."""

    llvm_compiles: int
    memory_hits: int
    disk_hits: int
    disk_misses: int
    disk_errors: int
    evictions: int


_lock = threading.RLock()
_live: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
_defined: dict[str, int] = {}
_linked: set[str] = set()  # externals of the code so far
_compiles = 0
_memory_hits = 0

if hasattr(os, "register_at_fork"):
    # A child must not inherit a lock, or LLVM in the middle of something, from a thread that it does not have.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def load(
    text: str, *, level: int = 3, flags: tuple[str, ...] = (), link: tuple[str, ...] = (),
    take: Callable[[bytes], None] | None = None,
) -> Code:  # fmt: skip
    """Return the code of a module: linked already, or made from an object on disk, or compiled and stored.

    `level` is that of clang's -O. A flag is one of `no-vectorize`, `no-slp`, `no-interleave`, `no-unroll`,
    `as-written`, `no-gathers` and `branches`, or a CPU feature with its sign, as in `-avx512f`. `link` holds other modules that
    become part of this one before it is optimised: what it declares and they define can be inlined. With `take`, objects are not
    sought or stored under the text: `take` gets the one that is compiled, to keep it under what the text follows from.
    """
    global _memory_hits
    _check(level, flags)
    key = _key(text, level, flags, link)
    code = _live.get(key)  # without the lock: not to wait for another thread's compile
    if code is None:
        with _lock:
            code = _live.get(key)
            if code is None:
                code = _live[key] = _load(key, text, level, flags, link, take)
                return code
    _memory_hits += 1
    return code


def key(
    text: str, *, level: int = 3, flags: tuple[str, ...] = (), link: tuple[str, ...] = ()
) -> str:
    """Return what `link_object` knows the code by that `load` makes of the same arguments."""
    return _key(text, level, flags, link)


def link_object(key: str, content: bytes) -> Code | None:
    """Return the code that has a key: linked already, or now from its object; None if that takes LLVM."""
    global _memory_hits
    code = _live.get(key)
    if code is None:
        with _lock:
            code = _live.get(key)
            if code is None:
                return _link_new(key, content)
    _memory_hits += 1
    return code


def _link_new(key: str, content: bytes) -> Code | None:
    if not elf.runs_here():
        return None
    times = dict.fromkeys(PHASES, 0.0)
    try:
        with _timed(times, "link"):
            image = elf.link(content, _resolve)
    except elf.UnsupportedError:
        return None
    cache.store().count(found=True)
    code = _live[key] = Code(times, True, image)
    return code


def define(symbol: str, address: int) -> None:
    """Let code that is loaded from now on call or read `address` by the name `symbol`.

    The name wins over one of the process. Code loaded earlier keeps what it was linked with. Whoever owns the address
    keeps it valid: code does not keep alive what it calls.
    """
    with _lock:
        if symbol in _linked and _defined.get(symbol) != address:
            _live.clear()  # the same text is to be linked anew
        _defined[symbol] = address


def defines(symbol: str) -> bool:
    """Return whether `define` has given a name an address."""
    return symbol in _defined


def optimized_text(text: str, level: int = 3, *, link: tuple[str, ...] = ()) -> str:
    """Return a module as text after LLVM's passes."""
    with _lock, _optimized(text, level, link=link) as module:
        return str(module)


def assembly(
    text: str, level: int = 3, *, flags: tuple[str, ...] = (), link: tuple[str, ...] = ()
) -> str:
    """Return the assembly language of a module, from the same code generator that `load` uses."""
    with _lock, _optimized(text, level, flags, link=link) as module, _our_way(flags):
        return str(_machine(level, flags).emit_assembly(module))


def stats() -> CacheStats:
    """Return the counts since the process started."""
    disk = cache.totals()
    return CacheStats(_compiles, _memory_hits, disk.hits, disk.misses, disk.errors, disk.evictions)


def _load(
    key: str, text: str, level: int, flags: tuple[str, ...], link: tuple[str, ...],
    take: Callable[[bytes], None] | None,
) -> Code:  # fmt: skip
    global _compiles
    times = dict.fromkeys(PHASES, 0.0)
    store = cache.store()
    if take is not None:
        store.count(found=False)
    content = found = store.get(key) if take is None else None
    if content is None:
        content = _compile(text, level, flags, times, link)
        _compiles += 1
        if take is None:
            store.put(key, content)
        else:
            take(content)
    with _timed(times, "link"):
        image = _link(content, text)
    return Code(times, found is not None, image)


def _check(level: int, flags: tuple[str, ...]) -> None:
    if level not in (0, 1, 2, 3):
        raise InternalError(f"optimisation level {level!r}: expected 0, 1, 2 or 3")
    named = [*_SWITCHES, AS_WRITTEN, NO_GATHERS, BRANCHES, SPLIT, STRAIGHT, UNROLL]
    for flag in flags:
        if flag not in named and not re.fullmatch(r"[+-][\w.-]+", flag):
            raise InternalError(
                f"flag {flag!r}: expected a CPU feature with its sign, or one of {', '.join(named)}"
            )


@contextmanager
def _timed(times: dict[str, float], phase: str) -> Generator[None]:
    start = time.perf_counter()
    yield
    times[phase] += time.perf_counter() - start


# --- Keys ----------------------------------------------------------------------------------------


def _key(text: str, level: int, flags: tuple[str, ...], link: tuple[str, ...] = ()) -> str:
    machine = machine_and_compiler()
    return cache.digest("object", _SETTINGS, *machine, str(level), *flags, text, *link)


@functools.cache
def machine_and_compiler() -> tuple[str, ...]:
    """Return what the code made from a text depends on besides."""
    # The lock keeps a fork from falling into the import: the child would wait for the import's own lock for ever.
    with _lock:
        return (_host(), *_llvm_build())


def _llvm_build() -> tuple[str, str]:
    """Return llvmlite's version and the size of its library, which tells builds with another LLVM apart.

    LLVM's own version is only to be had by loading it.
    """
    import llvmlite

    folder = os.path.join(os.path.dirname(llvmlite.__file__), "binding")
    names = sorted(n for n in os.listdir(folder) if n.endswith((".so", ".dylib", ".dll")))
    sizes = [os.path.getsize(os.path.join(folder, name)) for name in names]
    return llvmlite.__version__, " ".join(map(str, sizes))


def _host() -> str:
    """Return a text that is equal for CPUs that LLVM makes the same code for."""
    return _cpu_of_linux() or " ".join(_cpu())


def _cpu_of_linux() -> str:
    """Return the CPU's model and features as the kernel tells them, or nothing if it does not.

    The kernel's release is part of it: an old one passes features over that are new to it.
    """
    if not elf.runs_here():
        return ""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(1 << 14).partition(b"\n\n")[0]  # not the other CPUs: that takes long
    except OSError:
        return ""
    wanted = (b"vendor_id", b"cpu family", b"model", b"stepping", b"flags")
    lines = [line.decode() for line in first.splitlines() if line.startswith(wanted)]
    complete = any(line.startswith("flags") for line in lines)
    return "\n".join([os.uname().release, *lines]) if complete else ""


# --- LLVM ----------------------------------------------------------------------------------------


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def _cpu() -> tuple[str, str]:
    """Return LLVM's name for this CPU, and its features."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        # LLVM shuns 512-bit vectors since the CPUs of 2017 slowed down for them; those of today gain.
        features["prefer-256-bit"] = False
    return llvm.get_host_cpu_name(), features.flatten()


@functools.cache
def _machine(level: int, flags: tuple[str, ...]) -> Any:
    """Return the target machine for this CPU, which optimises and emits. Position-independent code of the small
    model is what `elf` links, and is shorter than the large model, llvmlite's default."""
    name, features = _cpu()
    asked = [flag for flag in flags if flag[0] in "+-"]
    if NO_GATHERS in flags and name.startswith(
        "znver"
    ):  # there a gather takes as long as eight loads
        asked.append("+prefer-no-gather")
    features = ",".join([features, *asked])
    target = _llvm().Target.from_default_triple()
    return target.create_target_machine(
        cpu=name, features=features, opt=level, reloc="pic", codemodel="small"
    )


def _compile(
    text: str,
    level: int,
    flags: tuple[str, ...],
    times: dict[str, float],
    link: tuple[str, ...] = (),
) -> bytes:
    with (
        _optimized(text, level, flags, times, link) as module,
        _timed(times, "codegen"),
        _our_way(flags),
    ):
        content: bytes = _machine(level, flags).emit_object(module)
    return content


@contextmanager
def _our_way(flags: tuple[str, ...]) -> Generator[None]:
    """Switch off what LLVM's code generator does for other code than ours. The switches are the process's: they are put back.

    Loop strength reduction looks for other ways to count through arrays: it takes up to two thirds of the time of emitting nested
    loops, and the code is no faster for it; that of an LU factorization is a quarter slower. On x86, conditional moves in loops become
    branches that the CPU is to guess: where data is compared, it guesses wrong half of the time. A binary search in a near cache
    is three times as fast without, an edit distance 1.6 times, a heap sort 1.4 times; one in memory takes half as long again.
    """
    llvm = _llvm()
    others = _x86() and BRANCHES not in flags
    switches = ["-disable-lsr={}", *["-x86-cmov-converter={}"] * others]
    for switch, value in zip(switches, ("true", "false")):
        llvm.set_option("", switch.format(value))
    try:
        yield
    finally:
        for switch, value in zip(switches, ("false", "true")):
            llvm.set_option("", switch.format(value))


def _x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


@contextmanager
def _optimized(
    text: str,
    level: int,
    flags: tuple[str, ...] = (),
    times: dict[str, float] | None = None,
    link: tuple[str, ...] = (),
) -> Generator[Any]:
    """Give the module that LLVM's passes make of a text, until the end of the `with` block."""
    times = dict.fromkeys(PHASES, 0.0) if times is None else times
    with _timed(times, "start"):
        machine = _machine(level, flags)
    with ExitStack() as stack:
        with _timed(times, "parse"):
            module = stack.enter_context(_parsed(text, machine, link))
        with _timed(times, "optimize"):
            _run_passes(module, machine, level, flags)
        yield module


def _run_passes(module: Any, machine: Any, level: int, flags: tuple[str, ...]) -> None:
    llvm, options = _llvm(), _options(level, flags)
    # A builder is for one module: running passes leaves it referring to what it told of them.
    with llvm.create_pass_builder(machine, options) as builder:
        if AS_WRITTEN in flags:
            _few_passes(STRAIGHT in flags, UNROLL in flags).run(module, builder)
            return
        with builder.getModulePassManager() as passes:
            passes.run(module, builder)


@functools.cache
def _options(level: int, flags: tuple[str, ...]) -> Any:
    options = _llvm().create_pipeline_tuning_options(speed_level=3 if SPLIT in flags else level)
    for flag, part in _SWITCHES.items():
        setattr(options, part, flag not in flags)
    return options


@functools.cache
def _few_passes(straight: bool, unroll: bool) -> Any:
    """What is done to text that runs as written: variables become registers, what is computed for nothing goes.

    Numbering values (GVN) and rotating loops besides took a tenth of all of LLVM's time, for half a hundredth fewer instructions.
    """
    passes = _llvm().create_new_module_pass_manager()
    passes.add_sroa_pass()
    if unroll:
        passes.add_loop_unroll_pass()
    if not straight:
        passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes


@contextmanager
def _parsed(text: str, machine: Any, link: tuple[str, ...] = ()) -> Generator[Any]:
    """Give the verified module of a text and those linked to it, in a context of its own: LLVM's global one grows.

    Both are closed here, in order. Left to the garbage collector, as after an error, the context may go first, and
    freeing the module then crashes.
    """
    with ExitStack() as stack:
        context = stack.enter_context(_llvm().create_context())
        module = stack.enter_context(_verified(text, machine, context))
        for other in link:
            module.link_in(_verified(other, machine, context))
        yield module


def _verified(text: str, machine: Any, context: Any) -> Any:
    """Return the module of a text, closed if it is malformed."""
    if "thread_local" in text and (local := re.search(r"^@.*\bthread_local\b", text, re.MULTILINE)):
        # LLVM's linker takes some of these, and the code then crashes.
        raise InternalError(f"thread-local variables cannot be linked at run time: {local[0]}")
    with ExitStack() as stack:
        try:
            module = _llvm().parse_assembly(_for_target(text, machine), context)
            stack.enter_context(module)
            module.verify()
        except RuntimeError as error:
            raise _refusal(text, str(error)) from None
        stack.pop_all()
    return module


def _for_target(text: str, machine: Any) -> str:
    """Return a text whose target is this machine. Lines keep their numbers, for messages.

    The data layout must be there when LLVM parses: loads and stores without `align` get theirs from it.
    """
    if "target " in text:
        text = re.sub(r'^target (datalayout|triple) = ".*"$', "", text, flags=re.MULTILINE)
    return f"{_target_of(machine)} {text}"


@functools.cache
def _target_of(machine: Any) -> str:
    layout, triple = machine.target_data, machine.triple
    return f'target datalayout = "{layout}" target triple = "{triple}"'


# --- Linking -------------------------------------------------------------------------------------


_REMEDY = "call jit.define(name, address) before jit.load, or load the library with RTLD_GLOBAL"


def _link(content: bytes, text: str) -> _Image:
    if not elf.runs_here():
        return _link_with_llvm(content, text)
    try:
        return elf.link(content, _resolve)
    except elf.UnsupportedError:
        return _link_with_llvm(content, text)


def _resolve(symbol: str) -> int:
    _linked.add(symbol)
    address = _defined.get(symbol) or elf.process_address(symbol)
    if address is None:
        message = f"compiled code refers to {symbol!r}, which is not in this process"
        raise InternalError(message, remedy=_REMEDY)
    return address


_serial = itertools.count()  # LLVM takes no name of a library twice, even when the first is gone


class _Library(NamedTuple):
    """What LLVM's linker made. Dropping the tracker frees the code."""

    symbols: Mapping[str, int]
    tracker: object


def _link_with_llvm(content: bytes, text: str) -> _Image:
    """Link with JITLink, LLVM's newest: 0.3 ms where MCJIT takes 1.8, half its memory, far calls, frees code."""
    engine, names = _engine(), _exports(text)
    builder = _llvm().JITLibraryBuilder().add_object_img(content).add_current_process()
    _linked.update(_defined)
    for symbol, address in _defined.items():
        builder.import_symbol(symbol, address)
    for name in names:
        builder.export_symbol(name)
    try:
        tracker = builder.link(engine, f"dsl.{next(_serial)}")
    except RuntimeError as error:
        raise InternalError(f"LLVM cannot link compiled code: {error}", remedy=_REMEDY) from error
    return _Library({name: tracker[name] for name in names}, tracker)


@functools.cache
def _engine() -> Any:
    return _llvm().create_lljit_compiler(use_jit_link=sys.platform != "win32", suppress_errors=True)


def _exports(text: str) -> list[str]:
    """Return the names of the functions that a module defines for others.

    >>> _exports('define void @f() {\\n}\\ndefine internal void @g() {\\n}\\ndefine i64 @"h"(i64 %x) {\\n}')
    ['f', 'h']
    """
    pattern = r'^define (?!internal |private )[^@\n]*@(?:"([^"\n]+)"|([\w.$-]+))'
    return [quoted or plain for quoted, plain in re.findall(pattern, text, re.MULTILINE)]


# --- Messages ------------------------------------------------------------------------------------


def _refusal(text: str, message: str) -> InternalError:
    lines = text.splitlines()
    line = _guilty_line(lines, message)
    return InternalError(f"LLVM refuses a module: {message.strip()}{_excerpt(lines, line)}")


def _guilty_line(lines: list[str], message: str) -> int | None:
    """Return the number, from 1, of the line that a message names or quotes."""
    if place := re.search(r"^<string>:(\d+):", message, re.MULTILINE):
        return int(place[1])
    plain = [_plain(line) for line in lines]
    quoted = [_plain(line) for line in message.splitlines()[1:]]
    return next((plain.index(line) + 1 for line in quoted if line and line in plain), None)


def _plain(line: str) -> str:
    """Return a line of IR without what LLVM writes differently from others: quotes, spaces, attributes at the end."""
    return re.sub(r'["\s]|,!.*|,align\d+', "", line.partition(";")[0])


def _excerpt(lines: list[str], line: int | None, around: int = 4) -> str:
    if line is None:
        return ""
    first, last = max(line - around, 1), min(line + around, len(lines))
    rows = (f"{'>' if i == line else ' '}{i:6} | {lines[i - 1]}" for i in range(first, last + 1))
    return "\n" + "\n".join(rows)
