"""Values between lanes of a warp (or block): shuffles, votes, matches, reductions.

All take the group of lanes that execute together and return one element for each lane, or one for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.groups import Group

__all__ = ["active", "block_reduce", "elect", "match", "present", "reduce", "shuffle", "vote"]

Array = np.ndarray[Any, Any]


def present(group: Group, chosen: Array | None = None) -> Array:
    """Per warp of the chunk, one bit for each lane of the group (where `chosen`)."""
    geometry = group.chunk.geometry
    if group.full and chosen is None:
        return geometry.warp_members
    lanes = group.lanes if chosen is None else group.lanes[group.spread(chosen)]
    bits = np.ldexp(1.0, geometry.thread[lanes] % 32)
    total = np.bincount(geometry.warp_of[lanes], weights=bits, minlength=geometry.warps)
    return total.astype(np.uint64).astype(np.uint32)


def _warps(group: Group) -> Array:
    return group.of_lanes(group.chunk.geometry.warp_of)


def shuffle(
    group: Group, line: int, mode: str, value: Array, b: Array, c: Array
) -> tuple[Array, Array]:
    """shfl.sync: the values of other lanes, and where the source lane was in range."""
    constant = b.shape[0] == c.shape[0] == 1
    key = (mode, int(b[0]), int(c[0])) if constant and group.full else None
    found = group.chunk.shuffles.get(key) if key is not None else None
    if found is None:
        found = _sources(group, line, mode, b, c)
        if key is not None:
            group.chunk.shuffles[key] = found
    if group.counters is not None:
        group.counters.shuffles += group.n
    positions, valid = found
    return (value if value.shape[0] == 1 else value.take(positions)), valid


def _sources(group: Group, line: int, mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """The position in the group of each lane's source, as the PTX manual computes it."""
    geometry = group.chunk.geometry
    lane = group.of_lanes(geometry.thread) % 32
    b, c = b.astype(np.int64) & 31, c.astype(np.int64)
    limit, segment = c & 31, c >> 8 & 31
    low = lane & segment
    high = low | (limit & ~segment)
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~segment)}[mode]
    valid: Array = source >= high if mode == "up" else source <= high
    absolute = group.lanes + np.where(valid, source - lane, 0)
    positions = np.searchsorted(group.lanes, absolute)
    there = group.lanes.take(np.minimum(positions, group.n - 1)) == absolute
    same = geometry.warp_of.take(np.minimum(absolute, geometry.lanes - 1)) == _warps(group)
    bad = ~(there & same)
    if bad.any():
        first = int(bad.argmax())
        what = f"shfl.sync reads lane {int(source[first])}, which does not take part"
        group.chunk.fail(line, what, int(group.lanes[first]))
    return positions, group.spread(valid)


def vote(group: Group, mode: str, predicate: Array, mask: Array) -> Array:
    """vote.sync over the lanes of each lane's mask."""
    if group.counters is not None:
        group.counters.votes += group.n
    bits: Array = present(group, group.spread(predicate))[_warps(group)] & mask
    if mode == "ballot":
        return bits
    result: Array
    if mode == "any":
        result = bits != 0
    else:
        result = bits == mask if mode == "all" else (bits == mask) | (bits == 0)
    return result


def _table(group: Group, value: Array) -> tuple[Array, Array]:
    """Values as warps by 32, and the row of each lane."""
    geometry = group.chunk.geometry
    table = np.zeros((geometry.warps, 32), value.dtype)
    warps = _warps(group)
    table[warps, group.of_lanes(geometry.thread) % 32] = value
    return table, warps


def _members(mask: Array) -> Array:
    """Lanes by 32: which lanes a mask names."""
    bits: Array = mask[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return bits.astype(bool)


def match(group: Group, mode: str, value: Array, mask: Array) -> tuple[Array, Array]:
    """match.any: the lanes with the same value. match.all: the mask if all agree, else 0."""
    table, warps = _table(group, value)
    equal = (table[warps] == group.spread(value)[:, None]) & _members(group.spread(mask))
    bits = (equal.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
    if mode == "any":
        return bits, np.ones(1, bool)
    agree = bits == mask
    return np.where(agree, bits, np.uint32(0)), agree


_REDUCE: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def reduce(group: Group, name: str, value: Array, mask: Array, nan: bool = False) -> Array:
    """redux.sync; lanes outside the mask count as the lane's own value, or nothing for add and xor."""
    table, warps = _table(group, value)
    member = _members(group.spread(mask))
    own = group.spread(value)[:, None]
    blank = np.zeros(1, value.dtype) if name in ("add", "xor") else own
    rows = np.where(member, table[warps], blank)
    function = _REDUCE[name]
    if value.dtype.kind == "f" and not nan:
        function = np.fmin if name == "min" else np.fmax
    result: Array = function.reduce(rows, axis=1, dtype=value.dtype)
    return result


def active(group: Group) -> Array:
    """activemask: the lanes that are here just now."""
    return present(group)[_warps(group)]


def elect(group: Group, mask: Array) -> tuple[Array, Array]:
    """elect.sync: the lowest lane of the mask."""
    whole = group.spread(mask)
    lowest = np.log2((whole & -whole.astype(np.int64)).astype(np.float64)).astype(np.uint32)
    return lowest, group.special("laneid") == lowest


def block_reduce(group: Group, mode: str, predicate: Array) -> Array:
    """bar.red over all threads of each block."""
    geometry = group.chunk.geometry
    blocks = group.of_lanes(geometry.block_of)
    count = np.bincount(blocks, weights=group.spread(predicate), minlength=geometry.blocks)[blocks]
    if mode == "popc":
        return count.astype(np.uint32)
    result: Array = count == geometry.threads if mode == "and" else count > 0
    return result
