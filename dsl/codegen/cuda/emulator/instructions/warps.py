"""Instructions in which lanes of a warp exchange values, and barriers.

The scheduler has made sure that every lane of the member mask is there before the block runs, so what is left is
arithmetic on lane numbers. Barriers themselves are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.cuda.emulator import exchange
from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter
from dsl.codegen.cuda.emulator.syntax import Immediate, Instruction, Pair, Register

__all__ = ["EMIT"]

Emit = Callable[[Emitter, Instruction], None]


def _shuffle(e: Emitter, i: Instruction) -> None:
    if "sync" not in i.modifiers:
        e.unsupported("only with .sync")
    mode = next(m for m in i.modifiers if m in ("up", "down", "bfly", "idx"))
    target = i.operands[0]
    first = target.first if isinstance(target, Pair) else target
    kind = e.program.home(first) if isinstance(first, Register) else "u4"
    value, b, c = (
        e.read(i.operands[1], kind),
        e.read(i.operands[2], "u4"),
        e.read(i.operands[3], "u4"),
    )
    name = e.bind(exchange.shuffle, "shuffle")
    both = e.let(f"{name}(G, {i.line}, {mode!r}, {value}, {b}, {c})")
    e.write(first, kind, f"{both}[0]")
    if isinstance(target, Pair):
        e.write(target.second, "b1", f"{both}[1]")


def _vote(e: Emitter, i: Instruction) -> None:
    if "sync" not in i.modifiers:
        e.unsupported("only with .sync")
    mode = next(m for m in i.modifiers if m in ("all", "any", "uni", "ballot"))
    p, mask = e.predicate(i.operands[1]), e.read(i.operands[2], "u4")
    kind = "u4" if mode == "ballot" else "b1"
    e.write(i.operands[0], kind, f"{e.bind(exchange.vote, 'vote')}(G, {mode!r}, {p}, {mask})")


def _match(e: Emitter, i: Instruction) -> None:
    mode = "any" if "any" in i.modifiers else "all"
    value, mask = e.read(i.operands[1], KINDS[i.type]), e.read(i.operands[2], "u4")
    both = e.let(f"{e.bind(exchange.match, 'match')}(G, {mode!r}, {value}, {mask})")
    target = i.operands[0]
    e.write(target.first if isinstance(target, Pair) else target, "u4", f"{both}[0]")
    if isinstance(target, Pair):
        e.write(target.second, "b1", f"{both}[1]")


def _reduce(e: Emitter, i: Instruction) -> None:
    name = next(m for m in i.modifiers if m in ("add", "min", "max", "and", "or", "xor"))
    kind = KINDS[i.type]
    value, mask = e.read(i.operands[1], kind), e.read(i.operands[2], "u4")
    if "abs" in i.modifiers:
        value = e.let(f"abs({value})")
    nan = "NaN" in i.modifiers
    e.write(i.operands[0], kind, f"{e.bind(exchange.reduce, 'redux')}(G, {name!r}, {value}, {mask}, {nan})")  # fmt: skip


def _active(e: Emitter, i: Instruction) -> None:
    e.write(i.operands[0], "u4", f"{e.bind(exchange.active, 'active')}(G)")


def _elect(e: Emitter, i: Instruction) -> None:
    mask = e.read(i.operands[1], "u4")
    both = e.let(f"{e.bind(exchange.elect, 'elect')}(G, {mask})")
    target = i.operands[0]
    if not isinstance(target, Pair):
        e.unsupported("expected two destinations")
    e.write(target.first, "u4", f"{both}[0]")
    e.write(target.second, "b1", f"{both}[1]")


def _barrier(e: Emitter, i: Instruction) -> None:
    if "warp" in i.modifiers:
        return
    if "sync" in i.modifiers:
        if len(i.operands) > 1 and not isinstance(i.operands[1], Immediate):
            e.unsupported("only an immediate thread count")
        return
    if "red" not in i.modifiers:
        e.unsupported("only sync and red")
    mode = next(m for m in i.modifiers if m in ("popc", "and", "or"))
    p = e.predicate(i.operands[-1])
    kind = "u4" if mode == "popc" else "b1"
    e.write(i.operands[0], kind, f"{e.bind(exchange.block_reduce, 'block_red')}(G, {mode!r}, {p})")


EMIT: dict[str, Emit] = {
    "shfl": _shuffle, "vote": _vote, "match": _match, "redux": _reduce, "activemask": _active, "elect": _elect,
    "bar": _barrier, "barrier": _barrier,
}  # fmt: skip
