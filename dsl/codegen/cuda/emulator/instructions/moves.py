"""mov, cvta, isspacep, call, and the instructions that do nothing here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.blocks import LIBM
from dsl.codegen.cuda.emulator.chunk import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter, size_of_kind
from dsl.codegen.cuda.emulator.groups import Group
from dsl.codegen.cuda.emulator.syntax import (
    FunctionName,
    Instruction,
    Register,
    Variable,
    Vector,
    type_bytes,
)  # fmt: skip

__all__ = ["EMIT", "as_bytes", "from_bytes"]

Array = np.ndarray[Any, Any]
Emit = Callable[[Emitter, Instruction], None]


def _move(e: Emitter, i: Instruction) -> None:
    target, source = i.operands
    if isinstance(target, Vector):
        _unpack(e, i, target)
    elif isinstance(source, Vector):
        _pack(e, i, source)
    elif isinstance(source, Register) and isinstance(target, Register):
        if type_bytes(source.type) != type_bytes(target.type):
            e.unsupported("registers of different sizes")
        e.alias(target, source)
    else:
        kind = KINDS[i.type]
        home = e.program.home(target) if isinstance(target, Register) else kind
        if home != kind and "b1" not in (home, kind) and size_of_kind(home) == size_of_kind(kind):
            kind = home if not _is_symbol(source) else kind
        e.write(target, kind, e.read(source, kind))


def _is_symbol(operand: object) -> bool:
    return isinstance(operand, Variable)


def _unpack(e: Emitter, i: Instruction, target: Vector) -> None:
    total = type_bytes(i.type)
    each = total // len(target.items)
    x = e.read(i.operands[1], f"u{total}")
    parts = e.let(f"{e.bind(_split, 'split')}({x}, u{each})")
    for k, item in enumerate(target.items):
        if item is not None:
            e.write(item, f"u{each}", f"{parts}[{k}]")


def _split(x: Array, dtype: Any) -> Array:
    """The pieces of a register, lowest first, as rows."""
    pieces: Array = np.ascontiguousarray(x).view(dtype).reshape(x.shape[0], -1)
    return np.ascontiguousarray(pieces.T)


def _pack(e: Emitter, i: Instruction, source: Vector) -> None:
    total = type_bytes(i.type)
    each = total // len(source.items)
    parts = ", ".join(e.read(item, f"u{each}") for item in source.items)
    e.write(i.operands[0], f"u{total}", f"{e.bind(_join, 'join')}(u{total}, {parts})")


def _join(dtype: Any, *parts: Array) -> Array:
    n = max(part.shape[0] for part in parts)
    whole: Array = np.empty((n, len(parts)), parts[0].dtype)
    for k, part in enumerate(parts):
        whole[:, k] = part
    joined: Array = whole.view(dtype)
    return joined.reshape(-1)


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0}


def _space(i: Instruction) -> str:
    for modifier in i.modifiers:
        if modifier.split("::")[0] in _WINDOWS:
            return modifier.split("::")[0]
    return ""


def _address(e: Emitter, i: Instruction) -> None:
    """cvta: generic addresses of shared and local memory lie in windows."""
    window = _WINDOWS[_space(i)]
    kind = KINDS[i.type]
    x = e.read(i.operands[1], kind)
    if window:
        x = f"{x} {'-' if 'to' in i.modifiers else '+'} {e.const(window, kind)}"
    e.write(i.operands[0], kind, x)


def _is_space(e: Emitter, i: Instruction) -> None:
    space = _space(i)
    x = e.read(i.operands[1], "u8")
    top = e.let(f"{x} >> {e.const(40, 'u8')}")
    test = {"shared": SHARED_WINDOW >> 40, "local": LOCAL_WINDOW >> 40, "param": PARAM_WINDOW >> 40}
    if space in test:
        e.write(i.operands[0], "b1", f"{top} == {e.const(test[space], 'u8')}")
    else:
        name = e.bind(_is_global, "is_global")
        e.write(i.operands[0], "b1", f"{name}(G, {x}, {space!r})")


def _is_global(group: Group, address: Array, space: str) -> Array:
    return np.array([group.memory.at(int(a)).space == space for a in address])


def as_bytes(x: Array) -> Array:
    """A value as lanes by bytes."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(x.shape[0], -1)


def from_bytes(x: Array, offset: int, dtype: Any) -> Array:
    """The value at an offset of lanes by bytes."""
    part: Array = np.ascontiguousarray(x[:, offset : offset + dtype.itemsize])
    value: Array = part.view(dtype)
    return value.reshape(-1)


def _call(e: Emitter, i: Instruction) -> None:
    """Copy the arguments; the block's exit goes to the callee. What it returns is read where it left it."""
    name = next(o.name for o in i.operands if isinstance(o, FunctionName))
    lists = [o for o in i.operands if isinstance(o, Vector)]
    place = next(k for k, o in enumerate(i.operands) if isinstance(o, FunctionName))
    arguments = next((o for k, o in enumerate(i.operands) if k > place and o in lists), Vector(()))
    function = e.program.source.functions.get(name)
    if name == "vprintf":
        _print(e, i, i.operands[0])
        return
    if name in LIBM:
        _libm(e, name, i.operands[0], arguments)
        return
    if function is None or function.body is None:
        fail = e.bind(_unknown, "unknown")
        e.line(f"{fail}(G, {i.line}, {name!r})")
        return
    if len(arguments.items) != len(function.params):
        e.unsupported(f"{name} takes {len(function.params)} arguments")
    for formal, actual in zip(function.params, arguments.items):
        _pass(e, e.program.params[formal], actual)
    results = lists[0].items if lists and i.operands[0] is lists[0] and place > 0 else ()
    for formal, actual in zip(function.returns, results):
        if isinstance(actual, Variable):
            e.program.params[actual] = e.program.params[formal]


def _pass(e: Emitter, formal: Register, actual: object) -> None:
    kind = e.program.home(formal)
    if not isinstance(actual, Variable) or actual not in e.program.params:
        e.unsupported("arguments must be .param variables")
    source = e.program.params[actual]
    have = e.program.home(source)
    if have == kind:
        e.alias(formal, source)
    elif kind == "bytes":
        e.define(formal, kind, e.let(f"{e.bind(as_bytes, 'as_bytes')}({e.register(source, have)})"))
    else:
        value = e.register(source, "bytes")
        e.define(formal, kind, e.let(f"{e.bind(from_bytes, 'from_bytes')}({value}, 0, {kind})"))


def _libm(e: Emitter, name: str, result: object, arguments: Vector) -> None:
    assert isinstance(result, Vector)
    assert isinstance(result.items[0], Variable)
    kind = "f4" if name.endswith("f") else "f8"
    function = e.bind(partial(_host, getattr(np, LIBM[name]), kind), f"libm_{name}")
    args = ", ".join(
        e.register(e.program.params[actual], e.program.home(e.program.params[actual]))
        for actual in arguments.items
        if isinstance(actual, Variable)
    )
    register = e.program.params[result.items[0]]
    e.define(register, e.program.home(register), e.let(f"{function}({args})"))


def _host(function: Callable[..., Array], kind: str, *args: Array) -> Array:
    """Call a function of the host on lanes, whatever type their bits are held as."""
    with np.errstate(all="ignore"):
        found = function(*(np.ascontiguousarray(a).view(kind).reshape(-1) for a in args))
    return np.asarray(found, kind).view(args[0].dtype).reshape(args[0].shape)


def _unknown(group: Group, line: int, name: str) -> None:
    group.chunk.fail(line, f"call of {name}, which is only declared", int(group.lanes[0]))


def _print(e: Emitter, i: Instruction, result: object) -> None:
    """vprintf: nothing is printed; the result is 0."""
    if isinstance(result, Vector) and isinstance(result.items[0], Variable):
        register = e.program.params[result.items[0]]
        e.define(register, e.program.home(register), e.const(0, e.program.home(register)))


def _nothing(e: Emitter, i: Instruction) -> None:
    """Fences, prefetches and hints: the emulator has no caches and keeps program order."""


def _trap(e: Emitter, i: Instruction) -> None:
    e.line(f"{e.bind(_trapped, 'trapped')}(G, {i.line})")


def _trapped(group: Group, line: int) -> None:
    group.chunk.fail(line, "trap", int(group.lanes[0]))


_NOTHING = (
    "membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "applypriority", "discard", "pmevent",
    "setmaxnreg", "brkpt",
)  # fmt: skip

EMIT: dict[str, Emit] = {
    "mov": _move, "cvta": _address, "isspacep": _is_space, "call": _call, "trap": _trap,
    **dict.fromkeys(_NOTHING, _nothing),
}  # fmt: skip
