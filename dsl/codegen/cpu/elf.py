"""Loads object code of x86-64 Linux into this process without LLVM.

In: the bytes of a relocatable ELF object, compiled as position-independent code of the small model, and a function
that gives the address of a name. Out: an `Image` whose `symbols` are the addresses of what the object defines. Code is
mapped readable and executable, constants readable, variables readable and writable, until the image is collected.

Why not LLVM's own linkers: with the object at hand, mapping it takes well under a millisecond, whereas loading LLVM into
the process takes 40. What an object may hold is little: seven relocation types and sections of four kinds. The rest
(thread-local variables, constructors, common symbols) raises `UnsupportedError` and is for LLVM's linker.

A call reaches names in other libraries through a stub here, which jumps to the address in a table slot, since they may
be more than the 2 GiB away that a call instruction spans. References: ELF-64 object file format; System V psABI for
x86-64, section 4.4.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["Image", "UnsupportedError", "link", "process_address", "runs_here"]

_FILE = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_RELOCATABLE, _X86_64 = 1, 62

_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001
_WRITE, _ALLOC, _EXECUTE, _THREAD_LOCAL = 0x1, 0x2, 0x4, 0x400
_UNDEFINED, _ABSOLUTE, _FIRST_RESERVED = 0, 0xFFF1, 0xFF00
_LOCAL = 0

_STUB = struct.Struct("<2sixx")  # jmp *slot(%rip)
_SLOT = struct.Struct("<Q")


class UnsupportedError(Exception):
    """An object that holds what this loader does not know; the text says what."""


class Image:
    """Object code in memory: addresses by name, valid while this object lives."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols


def runs_here() -> bool:
    """Return whether objects for this process are ones that `link` takes."""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 2**32


def link(content: bytes, resolve: Callable[[str], int]) -> Image:
    """Map an object into memory and return its addresses; `resolve` is asked once for each name it lacks."""
    parsed = _parse(content)
    plan = _lay_out(parsed)
    base = _map(plan.size)
    try:
        image = Image(_fill(parsed, plan, base, resolve))
    except BaseException:
        _c().munmap(base, plan.size)
        raise
    # Not at exit: threads may still be running this code then, and the process gives the memory back anyway.
    weakref.finalize(image, _c().munmap, base, plan.size).atexit = False
    return image


# --- Reading -------------------------------------------------------------------------------------


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    binding: int
    section: int
    value: int


class _Object(NamedTuple):
    content: bytes
    sections: list[_Section]
    symbols: list[_Symbol]


def _parse(content: bytes) -> _Object:
    magic, kind, machine, *_, at, _, _, _, _, entry_size, count, _ = _FILE.unpack_from(content)
    if not magic.startswith(_MAGIC) or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise UnsupportedError("not a relocatable object of x86-64")
    sections = [_Section(*_SECTION.unpack_from(content, at + i * entry_size)) for i in range(count)]
    return _Object(content, sections, _symbols(content, sections))


def _symbols(content: bytes, sections: list[_Section]) -> list[_Symbol]:
    tables = [section for section in sections if section.kind == _SYMTAB]
    if len(tables) != 1:
        raise UnsupportedError(f"{len(tables)} symbol tables")
    names = sections[tables[0].link].offset
    found = []
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(_bytes_of(content, tables[0])):
        start = names + name
        text = content[start : content.index(b"\0", start)].decode()
        found.append(_Symbol(text, info >> 4, section, value))
    return found


def _bytes_of(content: bytes, section: _Section) -> bytes:
    return content[section.offset : section.offset + section.size]


# --- Laying out ----------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """Where things go, as offsets from the start of the mapping."""

    starts: dict[int, int]  # of each section that is loaded
    slots: int  # one for each symbol: its address
    stubs: int  # one for each symbol: a jump to the address in its slot
    code: int  # end of the constants, start of the code
    variables: int  # end of the code, start of the variables
    filled: int  # from here on there are zeros, which the mapping has to begin with
    size: int


def _lay_out(parsed: _Object) -> _Plan:
    """Place constants, code and variables, each on pages of its own since their protection differs."""
    starts: dict[int, int] = {}
    count = len(parsed.symbols)
    slots = _place(parsed, 0, 0, starts)
    code = _round_up(slots + count * _SLOT.size, mmap.PAGESIZE)
    stubs = _round_up(_place(parsed, _EXECUTE, code, starts), _STUB.size)
    variables = _round_up(stubs + count * _STUB.size, mmap.PAGESIZE)
    size = _round_up(_place(parsed, _WRITE, variables, starts), mmap.PAGESIZE)
    kinds, sizes = [s.kind for s in parsed.sections], [s.size for s in parsed.sections]
    ends = [start + sizes[i] for i, start in starts.items() if kinds[i] == _PROGBITS]
    return _Plan(starts, slots, stubs, code, variables, max([variables, *ends]), size)


def _place(parsed: _Object, access: int, at: int, starts: dict[int, int]) -> int:
    """Give a start to each section of one kind of access, from `at` on, zeros last; return the next multiple of 8."""
    for index, section in sorted(enumerate(parsed.sections), key=lambda s: s[1].kind == _NOBITS):
        if not section.flags & _ALLOC or section.kind == _UNWIND:
            continue
        if section.kind not in (_PROGBITS, _NOBITS) or section.flags & _THREAD_LOCAL:
            raise UnsupportedError(
                f"section of type {section.kind:#x} with flags {section.flags:#x}"
            )
        if section.align > mmap.PAGESIZE:
            raise UnsupportedError(f"alignment to {section.align} bytes")
        if section.flags & (_WRITE | _EXECUTE) == access:
            starts[index] = _round_up(at, section.align or 1)
            at = starts[index] + section.size
    return _round_up(at, 8)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# --- Filling -------------------------------------------------------------------------------------


def _fill(parsed: _Object, plan: _Plan, base: int, resolve: Callable[[str], int]) -> dict[str, int]:
    """Write sections, slots and stubs at `base`, relocate, protect; return the addresses of global names."""
    memory = bytearray(plan.filled)
    for index, start in plan.starts.items():
        section = parsed.sections[index]
        if section.kind == _PROGBITS:
            memory[start : start + section.size] = _bytes_of(parsed.content, section)
    addresses = _addresses(parsed.symbols, plan, base, resolve)
    for i, address in enumerate(addresses):
        slot, stub = plan.slots + i * _SLOT.size, plan.stubs + i * _STUB.size
        _SLOT.pack_into(memory, slot, address)
        _STUB.pack_into(memory, stub, b"\xff\x25", slot - stub - 6)
    for section in parsed.sections:
        if section.kind == _RELA and section.info in plan.starts:
            _relocate(memory, parsed, section, addresses, plan, base)
    ctypes.memmove(base, bytes(memory), plan.filled)
    _protect(base, plan.code, mmap.PROT_READ)
    _protect(base + plan.code, plan.variables - plan.code, mmap.PROT_READ | mmap.PROT_EXEC)
    return {
        symbol.name: address
        for symbol, address in zip(parsed.symbols, addresses)
        if symbol.binding != _LOCAL and symbol.section != _UNDEFINED
    }


def _addresses(
    symbols: list[_Symbol], plan: _Plan, base: int, resolve: Callable[[str], int]
) -> list[int]:
    """Return the address of each symbol; 0 for those that no loaded code can mean, as files and unwind tables."""
    found = []
    for symbol in symbols:
        if symbol.section == _UNDEFINED:
            found.append(resolve(symbol.name) if symbol.name else 0)
        elif symbol.section in plan.starts:
            found.append(base + plan.starts[symbol.section] + symbol.value)
        elif symbol.section < _FIRST_RESERVED:
            found.append(0)
        elif symbol.section == _ABSOLUTE:
            found.append(symbol.value)
        else:
            raise UnsupportedError(f"symbol {symbol.name!r} of section {symbol.section:#x}")
    return found


def _relocate(
    memory: bytearray,
    parsed: _Object,
    table: _Section,
    addresses: list[int],
    plan: _Plan,
    base: int,
) -> None:
    """Apply the relocations of one section. The letters are those of the psABI.

    S: address of the symbol; A: addend; P: address of the place; G: of the symbol's slot; L: of its stub.
    """
    start = plan.starts[table.info]
    for offset, kind, index, A in _RELOCATION.iter_unpack(_bytes_of(parsed.content, table)):
        S, P = addresses[index], base + start + offset
        G, L = base + plan.slots + 8 * index, base + plan.stubs + 8 * index
        match kind:
            case 2:  # PC32
                form, value = "<i", S + A - P
            case 4:  # PLT32: a call; one within the image needs no stub
                within = 0 <= S - base < plan.size
                form, value = "<i", (S if within else L) + A - P
            case 9 | 41 | 42:  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
                form, value = "<i", G + A - P
            case 1:  # 64
                form, value = "<Q", (S + A) % 2**64
            case 24:  # PC64
                form, value = "<q", S + A - P
            case _:
                raise UnsupportedError(f"relocation of type {kind}")
        if form == "<i" and not -(2**31) <= value < 2**31:
            raise UnsupportedError(f"{parsed.symbols[index].name!r} is out of reach")
        struct.pack_into(form, memory, start + offset, value)


# --- Memory and names of the process -------------------------------------------------------------


@functools.cache
def _c() -> ctypes.CDLL:
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = ctypes.c_void_p
    c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    c.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    c.dlsym.restype = ctypes.c_void_p
    c.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return c


def _map(size: int) -> int:
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _c().mmap(None, size, access, kind, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise MemoryError(f"no memory for {size} bytes of code: {os.strerror(ctypes.get_errno())}")
    return int(address)


def _protect(address: int, size: int, access: int) -> None:
    if size and _c().mprotect(address, size, access):
        reason = os.strerror(ctypes.get_errno())
        raise PermissionError(f"the system refuses memory for compiled code: {reason}")


def process_address(name: str) -> int | None:
    """Return the address of a name in the C library, libm, libgcc or what else the process has loaded globally."""
    for library in (None, "libm.so.6", "libgcc_s.so.1"):
        if (handle := _library(library)) is not None and (
            address := _c().dlsym(handle, name.encode())
        ):
            return int(address)
    return None


@functools.cache
def _library(name: str | None) -> int | None:
    try:
        return ctypes.CDLL(name)._handle
    except OSError:
        return None
