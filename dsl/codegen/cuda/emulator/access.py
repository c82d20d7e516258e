"""Loads, stores and atomics as ufuncs over lanes, with bounds, alignment and race checks inside the loop.

Every access takes (address, offset, lane, region) and goes through a *region*: a row of 64-bit cells that says where
a piece of device memory lies in the host and what is known about it (the constants below). A refused access writes
its reason into the region's ERROR cell, touches nothing and goes on; the caller looks at the cell afterwards.

Checked regions (shared memory) carry a shadow with two records for each granule: its last write and its last
reads. A record is `when << 24 | who`, where `when` is the region's CLOCK, which ticks at every barrier and warp
synchronisation, and `who` the lane; bit 63 marks an atomic, bit 23 "several lanes of this lane's warp", and all ones
in the low 24 bits "several warps". An earlier access is ordered before lane L's when it was made by L, or before L's
block last met at a barrier, or by L's warp before that warp last synchronised. A write record of 0 is memory never
written, of all ones memory between variables.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from dsl.codegen.cuda.emulator.ufuncs import LLVM_TYPES, build

__all__ = [
    "BLOCK_SINCE", "CLOCK", "ERROR", "HOST", "LANE", "MISPLACED", "OFFSETS", "OTHER", "OUTSIDE", "PLACE", "RACE",
    "READS", "REGION_CELLS", "SHIFT", "SIZE", "START", "UNWRITTEN", "WARPS", "WARP_SINCE", "WRITES", "atomic",
    "load", "store", "verify",
]  # fmt: skip

# Cells of a region.
START, SIZE, HOST, ERROR, OFFSETS, WRITES, READS, BLOCK_SINCE, WARP_SINCE, WARPS, CLOCK, SHIFT, OTHER, LANE, PLACE = range(15)  # fmt: skip
REGION_CELLS = 15

# What stands in ERROR: outside or unaligned; read before any write; a race; between variables.
MISPLACED, UNWRITTEN, RACE, OUTSIDE = 1, 2, 3, 4

_HELPERS = f"""
define internal ptr @cell(ptr %region, i64 %i) alwaysinline {{
  %p = getelementptr i64, ptr %region, i64 %i
  ret ptr %p
}}
define internal i64 @table(ptr %region, i64 %i, i64 %k) alwaysinline {{
  %c = call ptr @cell(ptr %region, i64 %i)
  %t = load ptr, ptr %c
  %p = getelementptr i64, ptr %t, i64 %k
  %v = load i64, ptr %p
  ret i64 %v
}}
define internal void @refuse(ptr %region, i64 %reason, i64 %other, i64 %lane, i64 %place) {{
  %e = call ptr @cell(ptr %region, i64 {ERROR})
  %old = load i64, ptr %e
  %first = icmp eq i64 %old, 0
  br i1 %first, label %note, label %done
note:
  store i64 %reason, ptr %e
  %o = call ptr @cell(ptr %region, i64 {OTHER})
  store i64 %other, ptr %o
  %l = call ptr @cell(ptr %region, i64 {LANE})
  store i64 %lane, ptr %l
  %p = call ptr @cell(ptr %region, i64 {PLACE})
  store i64 %place, ptr %p
  br label %done
done:
  ret void
}}
define internal i64 @locate(ptr %region, i64 %address, i64 %lane, i64 %bytes) alwaysinline {{
  %start = load i64, ptr %region
  %sizep = call ptr @cell(ptr %region, i64 {SIZE})
  %size = load i64, ptr %sizep
  %off = sub i64 %address, %start
  %inside = icmp ult i64 %off, %size
  %room = sub i64 %size, %off
  %fits = icmp uge i64 %room, %bytes
  %mask = sub i64 %bytes, 1
  %low = and i64 %address, %mask
  %aligned = icmp eq i64 %low, 0
  %ok1 = and i1 %inside, %fits
  %ok = and i1 %ok1, %aligned
  br i1 %ok, label %good, label %bad
good:
  %lane_off = call i64 @table(ptr %region, i64 {OFFSETS}, i64 %lane)
  %place = add i64 %off, %lane_off
  ret i64 %place
bad:
  call void @refuse(ptr %region, i64 {MISPLACED}, i64 0, i64 %lane, i64 %off)
  ret i64 -1
}}
define internal ptr @host(ptr %region, i64 %place) alwaysinline {{
  %hp = call ptr @cell(ptr %region, i64 {HOST})
  %h = load ptr, ptr %hp
  %p = getelementptr i8, ptr %h, i64 %place
  ret ptr %p
}}
"""

# Of the checks of a read and of a write: the granules %first to %last, and what follows after granule %g.
_GRANULES = f"""  %shp = call ptr @cell(ptr %region, i64 {SHIFT})
  %sh = load i64, ptr %shp
  %first = lshr i64 %place, %sh
  %end = add i64 %place, %bytes
  %end1 = sub i64 %end, 1
  %last = lshr i64 %end1, %sh
  %stamp = call i64 @stamp(ptr %region)"""
_NEXT_OR_END = f"""  %g1 = add i64 %g, 1
  %more = icmp ule i64 %g1, %last
  br i1 %more, label %loop, label %fine
fine:
  ret i1 1
fail_unwritten:
  call void @refuse(ptr %region, i64 {UNWRITTEN}, i64 0, i64 %lane, i64 %place)
  ret i1 0
fail_outside:
  call void @refuse(ptr %region, i64 {OUTSIDE}, i64 0, i64 %lane, i64 %place)
  ret i1 0
fail_race:
  call void @refuse(ptr %region, i64 {RACE}, i64 %w, i64 %lane, i64 %place)
  ret i1 0"""

_SHADOW = f"""
define internal i1 @same_warp(ptr %region, i64 %x, i64 %y) alwaysinline {{
  %a = call i64 @table(ptr %region, i64 {WARPS}, i64 %x)
  %b = call i64 @table(ptr %region, i64 {WARPS}, i64 %y)
  %s = icmp eq i64 %a, %b
  ret i1 %s
}}
define internal i1 @ordered(ptr %region, i64 %lane, i64 %record) {{
  %stripped = and i64 %record, 9223372036854775807
  %when = lshr i64 %stripped, 24
  %who = and i64 %record, 16777215
  %since = call i64 @table(ptr %region, i64 {BLOCK_SINCE}, i64 %lane)
  %before = icmp ult i64 %when, %since
  %self = icmp eq i64 %who, %lane
  %early = or i1 %before, %self
  br i1 %early, label %yes, label %maybe
yes:
  ret i1 1
maybe:
  %many = icmp eq i64 %who, 16777215
  br i1 %many, label %no, label %one
no:
  ret i1 0
one:
  %other = and i64 %who, 8388607
  %same = call i1 @same_warp(ptr %region, i64 %other, i64 %lane)
  %wsince = call i64 @table(ptr %region, i64 {WARP_SINCE}, i64 %lane)
  %wbefore = icmp ult i64 %when, %wsince
  %ok = and i1 %same, %wbefore
  ret i1 %ok
}}
define internal i64 @merged_reader(ptr %region, i64 %lane, i64 %record) {{
  %when = lshr i64 %record, 24
  %who = and i64 %record, 16777215
  %ordered = call i1 @ordered(ptr %region, i64 %lane, i64 %record)
  br i1 %ordered, label %alone, label %together
alone:
  ret i64 %lane
together:
  %many = icmp eq i64 %who, 16777215
  br i1 %many, label %all, label %one
all:
  ret i64 16777215
one:
  %other = and i64 %who, 8388607
  %same = call i1 @same_warp(ptr %region, i64 %other, i64 %lane)
  %warp = or i64 %lane, 8388608
  %r = select i1 %same, i64 %warp, i64 16777215
  ret i64 %r
}}
define internal i64 @stamp(ptr %region) alwaysinline {{
  %cp = call ptr @cell(ptr %region, i64 {CLOCK})
  %c = load i64, ptr %cp
  %s = shl i64 %c, 24
  ret i64 %s
}}
define internal ptr @record(ptr %region, i64 %i, i64 %g) alwaysinline {{
  %tp = call ptr @cell(ptr %region, i64 %i)
  %t = load ptr, ptr %tp
  %p = getelementptr i64, ptr %t, i64 %g
  ret ptr %p
}}
define internal i1 @check_read(ptr %region, i64 %lane, i64 %place, i64 %bytes, i1 %strong) {{
entry:
{_GRANULES}
  br label %loop
loop:
  %g = phi i64 [%first, %entry], [%g1, %next]
  %wp = call ptr @record(ptr %region, i64 {WRITES}, i64 %g)
  %w = load i64, ptr %wp
  %unwritten = icmp eq i64 %w, 0
  br i1 %unwritten, label %fail_unwritten, label %a
a:
  %outside = icmp eq i64 %w, -1
  br i1 %outside, label %fail_outside, label %b
b:
  br i1 %strong, label %next, label %c
c:
  %ordered = call i1 @ordered(ptr %region, i64 %lane, i64 %w)
  br i1 %ordered, label %note, label %fail_race
note:
  %rp = call ptr @record(ptr %region, i64 {READS}, i64 %g)
  %r = load i64, ptr %rp
  %who = call i64 @merged_reader(ptr %region, i64 %lane, i64 %r)
  %new = or i64 %stamp, %who
  store i64 %new, ptr %rp
  br label %next
next:
{_NEXT_OR_END}
}}
define internal i1 @check_write(ptr %region, i64 %lane, i64 %place, i64 %bytes, i1 %same, i1 %strong, i1 %reads) {{
entry:
{_GRANULES}
  %plain = or i64 %stamp, %lane
  %flagged = or i64 %plain, -9223372036854775808
  %new = select i1 %strong, i64 %flagged, i64 %plain
  br label %loop
loop:
  %g = phi i64 [%first, %entry], [%g1, %note]
  %wp = call ptr @record(ptr %region, i64 {WRITES}, i64 %g)
  %w = load i64, ptr %wp
  %outside = icmp eq i64 %w, -1
  br i1 %outside, label %fail_outside, label %a
a:
  %unwritten = icmp eq i64 %w, 0
  %rmw = and i1 %unwritten, %reads
  br i1 %rmw, label %fail_unwritten, label %b
b:
  %ordered = call i1 @ordered(ptr %region, i64 %lane, i64 %w)
  %was_atomic = icmp slt i64 %w, 0
  %both = and i1 %was_atomic, %strong
  %harmless = or i1 %same, %both
  %ok = or i1 %ordered, %harmless
  br i1 %ok, label %c, label %fail_race
c:
  %rp = call ptr @record(ptr %region, i64 {READS}, i64 %g)
  %r = load i64, ptr %rp
  %read_ok = call i1 @ordered(ptr %region, i64 %lane, i64 %r)
  br i1 %read_ok, label %note, label %fail_read
note:
  store i64 %new, ptr %wp
{_NEXT_OR_END}
fail_read:
  call void @refuse(ptr %region, i64 {RACE}, i64 %r, i64 %lane, i64 %place)
  ret i1 0
}}
"""


def _bytes(kind: str) -> int:
    return np.dtype(kind).itemsize


def _guard(kind: str, width: int, check: str) -> str:
    """Up to the label `go`, where %place is valid and the shadow agrees; refused lanes go to `no`."""
    total = _bytes(kind) * width
    lines = [
        "%region = inttoptr i64 %d to ptr",
        "%address = add i64 %a, %b",
        f"%place = call i64 @locate(ptr %region, i64 %address, i64 %c, i64 {total})",
        "%bad = icmp eq i64 %place, -1",
        f"br i1 %bad, label %no, label %{'check' if check else 'go'}",
    ]
    if check:
        lines += ["check:", check, "br i1 %allowed, label %go, label %no"]
    return "\n".join(lines)


def _declarations(checked: bool) -> str:
    return _HELPERS + (_SHADOW if checked else "")


@cache
def load(kind: str, width: int = 1, checked: bool = False, strong: bool = False) -> np.ufunc:
    """`load(address, offset, lane, region) -> value, ...` of `width` elements."""
    total, t = _bytes(kind) * width, LLVM_TYPES[kind]
    check = (
        f"%allowed = call i1 @check_read(ptr %region, i64 %c, i64 %place, i64 {total}, i1 {int(strong)})"
        if checked
        else ""
    )
    body = [_guard(kind, width, check), "go:", "%p = call ptr @host(ptr %region, i64 %place)"]
    struct = t if width == 1 else "{" + ", ".join([t] * width) + "}"
    aggregate = "poison"
    for i in range(width):
        body += [f"%p{i} = getelementptr {t}, ptr %p, i64 {i}", f"%v{i} = load {t}, ptr %p{i}, align 1"]  # fmt: skip
        if width > 1:
            body.append(f"%g{i} = insertvalue {struct} {aggregate}, {t} %v{i}, {i}")
            aggregate = f"%g{i}"
    body += [
        f"ret {struct} {aggregate if width > 1 else '%v0'}",
        "no:",
        f"ret {struct} zeroinitializer",
    ]
    outputs = " ".join([kind] * width)
    return build(
        f"load_{kind}_{width}", f"u8 u8 i8 u8 -> {outputs}", "\n".join(body), _declarations(checked)
    )


@cache
def store(kind: str, width: int = 1, checked: bool = False, strong: bool = False) -> np.ufunc:
    """`store(address, offset, lane, region, value, ...) -> done`."""
    total, t = _bytes(kind) * width, LLVM_TYPES[kind]
    bits = f"i{8 * _bytes(kind)}"
    check = ""
    if checked:
        lines, same = ["%q = call ptr @host(ptr %region, i64 %place)"], "true"
        for i in range(width):
            name = f"%{chr(101 + i)}"
            lines += [
                f"%q{i} = getelementptr {t}, ptr %q, i64 {i}",
                f"%old{i} = load {bits}, ptr %q{i}, align 1",
                f"%new{i} = bitcast {t} {name} to {bits}",
                f"%eq{i} = icmp eq {bits} %old{i}, %new{i}",
                f"%same{i} = and i1 %eq{i}, {same}",
            ]
            same = f"%same{i}"
        lines.append(
            f"%allowed = call i1 @check_write(ptr %region, i64 %c, i64 %place, i64 {total}, i1 {same}, "
            f"i1 {int(strong)}, i1 0)"
        )
        check = "\n".join(lines)
    body = [_guard(kind, width, check), "go:", "%p = call ptr @host(ptr %region, i64 %place)"]
    for i in range(width):
        body += [
            f"%p{i} = getelementptr {t}, ptr %p, i64 {i}",
            f"store {t} %{chr(101 + i)}, ptr %p{i}, align 1",
        ]
    body += ["ret i8 1", "no:", "ret i8 0"]
    inputs = " ".join([kind] * width)
    return build(
        f"store_{kind}_{width}",
        f"u8 u8 i8 u8 {inputs} -> u1",
        "\n".join(body),
        _declarations(checked),
    )


@cache
def verify(kind: str, width: int = 1) -> np.ufunc:
    """`verify(address, offset, lane, region, value, ...)`: RACE unless memory still holds what was just stored."""
    t = LLVM_TYPES[kind]
    body = [_guard(kind, width, ""), "go:", "%p = call ptr @host(ptr %region, i64 %place)"]
    same = "true"
    for i in range(width):
        body += [
            f"%p{i} = getelementptr {t}, ptr %p, i64 {i}",
            f"%v{i} = load {t}, ptr %p{i}, align 1",
            f"%eq{i} = icmp eq {t} %v{i}, %{chr(101 + i)}",
            f"%same{i} = and i1 %eq{i}, {same}",
        ]
        same = f"%same{i}"
    body += [
        f"br i1 {same}, label %fine, label %lost",
        "lost:",
        f"call void @refuse(ptr %region, i64 {RACE}, i64 0, i64 0, i64 %place)",
        "br label %no",
        "fine:",
        "ret i8 1",
        "no:",
        "ret i8 0",
    ]
    inputs = " ".join([kind] * width)
    return build(
        f"verify_{kind}_{width}",
        f"u8 u8 i8 u8 {inputs} -> u1",
        "\n".join(body),
        _declarations(False),
    )


# What an atomic stores, from %old and the operand %e; min and max of floats take the number when one is NaN.
_UPDATES = {
    "add": "%new = add {t} %old, %e",
    "fadd": "%new = fadd {t} %old, %e",
    "and": "%new = and {t} %old, %e",
    "or": "%new = or {t} %old, %e",
    "xor": "%new = xor {t} %old, %e",
    "exch": "%new = or {t} %e, 0",
    "smin": "%lt = icmp slt {t} %old, %e\n%new = select i1 %lt, {t} %old, {t} %e",
    "smax": "%lt = icmp sgt {t} %old, %e\n%new = select i1 %lt, {t} %old, {t} %e",
    "umin": "%lt = icmp ult {t} %old, %e\n%new = select i1 %lt, {t} %old, {t} %e",
    "umax": "%lt = icmp ugt {t} %old, %e\n%new = select i1 %lt, {t} %old, {t} %e",
    "inc": "%ge = icmp uge {t} %old, %e\n%up = add {t} %old, 1\n%new = select i1 %ge, {t} 0, {t} %up",
    "dec": "%z = icmp eq {t} %old, 0\n%gt = icmp ugt {t} %old, %e\n%w = or i1 %z, %gt\n"
    "%dn = sub {t} %old, 1\n%new = select i1 %w, {t} %e, {t} %dn",
    "cas": "%eq = icmp eq {t} %old, %e\n%new = select i1 %eq, {t} %f, {t} %old",
}


@cache
def atomic(operation: str, kind: str, checked: bool = False) -> np.ufunc:
    """`atomic(address, offset, lane, region, operand[, new]) -> old`, one lane after the other."""
    total, t = _bytes(kind), LLVM_TYPES[kind]
    check = (
        f"%allowed = call i1 @check_write(ptr %region, i64 %c, i64 %place, i64 {total}, i1 0, i1 1, i1 1)"
        if checked
        else ""
    )
    body = [
        _guard(kind, 1, check),
        "go:",
        "%p = call ptr @host(ptr %region, i64 %place)",
        f"%old = load {t}, ptr %p, align 1",
        _UPDATES[operation].format(t=t),
        f"store {t} %new, ptr %p, align 1",
        f"ret {t} %old",
        "no:",
        f"ret {t} zeroinitializer",
    ]
    inputs = f"{kind} {kind}" if operation == "cas" else kind
    return build(
        f"atomic_{operation}_{kind}",
        f"u8 u8 i8 u8 {inputs} -> {kind}",
        "\n".join(body),
        _declarations(checked),
    )
