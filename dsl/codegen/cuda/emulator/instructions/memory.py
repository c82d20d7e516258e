"""ld, st, atom, red: a `Site` for each, and parameters, which are registers (of calls) or constants (of kernels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter, size_of_kind
from dsl.codegen.cuda.emulator.instructions import narrow_atomics
from dsl.codegen.cuda.emulator.instructions.moves import as_bytes, from_bytes
from dsl.codegen.cuda.emulator.sites import Site
from dsl.codegen.cuda.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Variable,
    Vector,
    type_bytes,
)  # fmt: skip

__all__ = ["EMIT"]

Array = np.ndarray[Any, Any]
Emit = Callable[[Emitter, Instruction], None]

_SPACES = ("global", "shared", "local", "const", "param")
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")
_WIDTHS = {"v2": 2, "v4": 4, "v8": 8}


def _space(i: Instruction) -> str:
    for modifier in i.modifiers:
        if modifier.split("::")[0] in _SPACES:
            return modifier.split("::")[0]
    return "generic"


def _width(i: Instruction) -> int:
    return next((n for name, n in _WIDTHS.items() if name in i.modifiers), 1)


def _place(e: Emitter, operand: Operand) -> Address:
    if not isinstance(operand, Address):
        e.unsupported("expected an address in brackets")
    return operand


def _base(e: Emitter, address: Address) -> tuple[str, int]:
    """The address operand as 64-bit values, and the constant to add."""
    base = address.base
    if isinstance(base, Register):
        if type_bytes(base.type) == 4:
            return e.let(f"{e.read(base, 'u4')}.astype(u8)"), address.offset
        return e.read(base, "u8"), address.offset
    if isinstance(base, Immediate):
        return e.const(int(base.value), "u8"), address.offset
    return e.program.address(e, base, "u8"), address.offset


def _site(e: Emitter, i: Instruction, address: Address, nbytes: int) -> tuple[Site, str]:
    space = _space(i)
    if space == "param" and isinstance(address.base, Variable) and address.base.space != "param":
        e.unsupported(".param access to another space")
    name, offset = _base(e, address)
    return Site(i, space, nbytes, offset), name


def _load(e: Emitter, i: Instruction) -> None:
    address = _place(e, i.operands[1])
    targets = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    kind = KINDS[i.type]
    if isinstance(address.base, Variable) and address.base in e.program.params:
        _load_argument(e, address.base, address.offset, targets, kind)
        return
    if i.type == "b128":
        e.unsupported()
    first = next((t for t in targets if isinstance(t, Register)), None)
    if first is not None and size_of_kind(e.program.home(first)) == size_of_kind(kind):
        kind = e.program.home(first)
    site, base = _site(e, i, address, size_of_kind(kind) * len(targets))
    function = e.bind(site.loader(kind, len(targets), i.has(*_STRONG)), "ld")
    if len(targets) == 1:
        e.write(targets[0], kind, f"{function}(G, {base})")
        return
    values = e.let(f"{function}(G, {base})")
    for k, target in enumerate(targets):
        if target is not None:
            e.write(target, kind, f"{values}[{k}]")


def _load_argument(
    e: Emitter, variable: Variable, offset: int, targets: tuple[Operand, ...], kind: str
) -> None:
    """ld.param inside a function, or of what a call returned."""
    register = e.program.params[variable]
    home, size = e.program.home(register), size_of_kind(kind)
    if home != "bytes" and size == size_of_kind(home) and len(targets) == 1 and not offset:
        target = targets[0]
        if isinstance(target, Register) and type_bytes(target.type) == size:
            e.alias(target, register)
        else:
            e.write(target, kind, e.register(register, kind))
        return
    whole = e.register(register, home)
    if home != "bytes":
        whole = e.let(f"{e.bind(as_bytes, 'as_bytes')}({whole})")
    for k, target in enumerate(targets):
        if target is not None:
            e.write(
                target,
                kind,
                f"{e.bind(from_bytes, 'from_bytes')}({whole}, {offset + k * size}, {kind})",
            )


def _store(e: Emitter, i: Instruction) -> None:
    address = _place(e, i.operands[0])
    sources = i.operands[1].items if isinstance(i.operands[1], Vector) else (i.operands[1],)
    kind = KINDS[i.type]
    if isinstance(address.base, Variable) and address.base in e.program.params:
        _store_argument(e, address.base, address.offset, sources, kind)
        return
    if i.type == "b128":
        e.unsupported()
    bits = f"u{size_of_kind(kind)}"
    site, base = _site(e, i, address, size_of_kind(kind) * len(sources))
    values = ", ".join(e.read(source, bits) for source in sources)
    function = e.bind(site.storer(bits, len(sources), i.has(*_STRONG)), "st")
    e.line(f"{function}(G, {base}, {values})")


def _store_argument(
    e: Emitter, variable: Variable, offset: int, sources: tuple[Operand, ...], kind: str
) -> None:
    """st.param before a call, or of a result."""
    register = e.program.params[variable]
    home, size = e.program.home(register), size_of_kind(kind)
    if home != "bytes":
        kind = f"u{size_of_kind(home)}" if kind[0] == "i" else kind
        e.define(register, kind, e.let(e.read(sources[0], kind)))
        return
    put = e.bind(_put_bytes, "put_bytes")
    for k, source in enumerate(sources):
        value = e.read(source, kind)
        seen = register in e.defined or register in e.uses
        old = e.versions(register, strict=False)["bytes"] if seen else "None"
        name = e.let(f"{put}({old}, {variable.bytes}, {offset + k * size}, {value})")
        e.define(register, "bytes", name)


def _put_bytes(old: Array | None, total: int, offset: int, value: Array) -> Array:
    n = value.shape[0] if old is None else max(old.shape[0], value.shape[0])
    new = np.zeros((n, total), np.uint8)
    if old is not None:
        new[:] = old
    new[:, offset : offset + value.itemsize] = as_bytes(value)
    return new


_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _atomic(e: Emitter, i: Instruction) -> None:
    returns = i.opcode == "atom"
    target = i.operands[0] if returns else None
    address = _place(e, i.operands[1 if returns else 0])
    values = i.operands[2 if returns else 1 :]
    name = next((m for m in i.modifiers if m in _OPERATIONS), "")
    if not name or i.has(*_WIDTHS) or i.type == "b128":
        e.unsupported()
    kind = KINDS[i.type]
    if i.type in ("f16", "bf16", "f16x2", "bf16x2"):
        bits = f"u{size_of_kind(kind)}"
        site, base = _site(e, i, address, size_of_kind(kind))
        function = e.bind(narrow_atomics.updater(site, name, i.type), "atom")
    elif i.type in ("f32", "f64") and name in ("add", "exch"):
        bits = kind if name == "add" else f"u{kind[1]}"
        site, base = _site(e, i, address, size_of_kind(kind))
        function = e.bind(site.updater("fadd" if name == "add" else name, bits), "atom")
    elif kind[0] in "ui":
        bits = f"u{kind[1]}"
        site, base = _site(e, i, address, size_of_kind(kind))
        prefix = {"min": "s" if kind[0] == "i" else "u", "max": "s" if kind[0] == "i" else "u"}
        function = e.bind(site.updater(prefix.get(name, "") + name, bits), "atom")
    else:
        e.unsupported()
    operands = ", ".join(e.read(value, bits) for value in values)
    call = f"{function}(G, {base}, {operands})"
    if target is None:
        e.line(call)
    else:
        e.write(target, bits, call)


EMIT: dict[str, Emit] = {
    "ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic,
}  # fmt: skip
