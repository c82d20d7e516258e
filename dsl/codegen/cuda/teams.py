"""How threads work on a row together: who they are, and how they unite what each has found.

A team is the threads that sweep one row of a kernel. Along a row that is contiguous in memory they are neighbours, so that
what they read is contiguous too, and unite by shuffles; across rows whose neighbours are contiguous, neighbours belong to
different teams, and unite through shared memory. Either way the order depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.held import Holding
from dsl.codegen.cuda.source import Source
from dsl.codegen.llvm import Value
from dsl.ir.dims import DimLike

__all__ = ["WARP", "Team", "most_memory", "power_of_two", "shuffled", "unite"]

WARP = 32
_MOST_WARPS = 32  # of a block
_ALL = Value("-1", "i32")

Combine = Callable[[Scalar, Scalar], Scalar]


@dataclass(frozen=True)
class Team:
    """How many threads share a row, how many rows a block has, and how a thread goes through its row.

    A thread takes `vector` neighbouring points at a time. With `steps`, it makes so many steps and keeps all it has read;
    without, it goes on until the row ends. With `chunk`, a row is cut into pieces of that length, each for a block. With
    `trips`, a block takes so many times its rows, one after another; `holding` is what it keeps for all of them.
    """

    threads: int
    rows: int
    along: bool  # whether the threads of a team are neighbours
    vector: int = 1
    steps: int | None = None
    chunk: DimLike | None = None
    trips: DimLike = 1
    holding: Holding | None = None

    @property
    def block(self) -> int:
        return self.threads * self.rows


def power_of_two(number: int) -> int:
    """Return the least power of two that is not less than a number."""
    return 1 << max(0, number - 1).bit_length()


def most_memory(team: Team, dtypes: Iterable[np.dtype]) -> int:
    """Return the bytes of shared memory that `unite` takes at most, whatever the number of rows along which teams go."""
    share = max(1, min(team.threads, WARP // team.rows))
    places = _MOST_WARPS if team.along else team.block // share
    return sum(-(-places * dtype.itemsize // 16) * 16 for dtype in dtypes)


def unite(
    source: Source, team: Team, member: Value, slot: Value,
    items: Sequence[tuple[np.dtype, Scalar, Combine]],
) -> list[Scalar]:  # fmt: skip
    """Combine what the threads of each team have; all of them get the result. Every thread of the block must come here."""
    if team.threads == 1 or not items:
        return [scalar for _, scalar, _ in items]
    if not team.along:
        return _through_memory(source, team, member, slot, items)
    found = [
        _butterfly(source, scalar, min(WARP, team.threads), combine) for _, scalar, combine in items
    ]
    if team.threads <= WARP:
        return found
    fn, warps = source.fn, team.threads // WARP
    lane, warp = fn.binary("and", member, WARP - 1), fn.binary("lshr", member, 5)
    places = [source.shared(team.rows * warps * dtype.itemsize) for dtype, _, _ in items]
    first = fn.mul(slot, warps)
    with fn.if_(fn.compare("eq", lane, 0)):
        for (dtype, _, _), scalar, place in zip(items, found, places, strict=True):
            store_scalar(
                fn, dtype, scalar, fn.gep(place, fn.mul(fn.add(first, warp), dtype.itemsize))
            )
    source.barrier()
    which = fn.add(first, fn.binary("and", lane, warps - 1))
    united = []
    for (dtype, _, combine), place in zip(items, places, strict=True):
        mine = load_scalar(fn, dtype, fn.gep(place, fn.mul(which, dtype.itemsize)))
        united.append(_butterfly(source, mine, warps, combine))
    return united


def _through_memory(
    source: Source, team: Team, member: Value, slot: Value,
    items: Sequence[tuple[np.dtype, Scalar, Combine]],
) -> list[Scalar]:  # fmt: skip
    """Let every thread read what its team has, in order; what is in one warp is united before."""
    fn = source.fn
    share = max(1, min(team.threads, WARP // team.rows))  # threads of a team that are in one warp
    found = [scalar for _, scalar, _ in items]
    distance = team.rows * share // 2
    while distance >= team.rows:
        found = [
            combine(scalar, shuffled(source, "bfly", scalar, distance))
            for scalar, (_, _, combine) in zip(found, items, strict=True)
        ]
        distance //= 2
    count = team.threads // share
    if count == 1:
        return found
    places = [source.shared(count * team.rows * dtype.itemsize) for dtype, _, _ in items]
    mine = fn.add(fn.mul(fn.binary("udiv", member, share), team.rows), slot)
    for (dtype, _, _), scalar, place in zip(items, found, places, strict=True):
        address = fn.gep(place, fn.mul(mine, dtype.itemsize))
        if share == 1:
            store_scalar(fn, dtype, scalar, address)
            continue
        with fn.if_(fn.compare("eq", fn.binary("and", member, share - 1), 0)):
            store_scalar(fn, dtype, scalar, address)
    source.barrier()
    united = []
    for (dtype, _, combine), place in zip(items, places, strict=True):
        total: Scalar | None = None
        for k in range(count):
            at = fn.mul(fn.add(slot, k * team.rows), dtype.itemsize)
            one = load_scalar(fn, dtype, fn.gep(place, at))
            total = one if total is None else combine(total, one)
        assert total is not None
        united.append(total)
    return united


def _butterfly(source: Source, scalar: Scalar, width: int, combine: Combine) -> Scalar:
    """Combine over as many neighbouring lanes: each lane exchanges with the one whose number differs in one bit."""
    distance = width // 2
    while distance:
        scalar = combine(scalar, shuffled(source, "bfly", scalar, distance))
        distance //= 2
    return scalar


def shuffled(source: Source, mode: str, scalar: Scalar, distance: int, clamp: int = 31) -> Scalar:
    """Return what another lane of the warp has; see PTX's `shfl.sync`."""
    if isinstance(scalar, tuple):
        real, imag = (_shuffle(source, mode, part, distance, clamp) for part in scalar)
        return real, imag
    return _shuffle(source, mode, scalar, distance, clamp)


def _shuffle(source: Source, mode: str, value: Value, distance: int, clamp: int) -> Value:
    fn, type = source.fn, value.type
    if type in ("double", "i64"):
        wide = fn.convert("bitcast", value, "i64")
        low = fn.convert("trunc", wide, "i32")
        high = fn.convert("trunc", fn.binary("lshr", wide, 32), "i32")
        low, high = (_word(source, mode, part, distance, clamp) for part in (low, high))
        both = fn.binary(
            "or",
            fn.convert("zext", low, "i64"),
            fn.binary("shl", fn.convert("zext", high, "i64"), 32),
        )
        return fn.convert("bitcast", both, type)
    if type == "float":
        return fn.convert(
            "bitcast",
            _word(source, mode, fn.convert("bitcast", value, "i32"), distance, clamp),
            type,
        )
    if type == "i32":
        return _word(source, mode, value, distance, clamp)
    bits = fn.convert("bitcast", value, "i16") if type == "half" else value
    found = _word(source, mode, fn.convert("zext", bits, "i32"), distance, clamp)
    narrow = fn.convert("trunc", found, bits.type)
    return fn.convert("bitcast", narrow, type) if type == "half" else narrow


def _word(source: Source, mode: str, value: Value, distance: int, clamp: int) -> Value:
    name = f"llvm.nvvm.shfl.sync.{mode}.i32"
    source.module.declare(name, "i32", ["i32"] * 4, "convergent nocallback nounwind")
    return source.fn.call(
        "i32", name, _ALL, value, Value(str(distance), "i32"), Value(str(clamp), "i32")
    )
