"""Fourier transforms of many lanes at once: each number of a transform is a vector, of the same place in neighbouring lanes.

The algorithm is Stockham's: passes of radix 4, 2, 3 and 5 between two memories, which leave the result in order. Real and imaginary
parts lie apart, a vector of each. Lengths have no other prime factors than 2, 3 and 5. What a lane gets does not depend on its neighbours.
Real lanes of even length are transformed as complex ones of half of it. Twiddle factors are taken from the first octant of the circle,
so that they are exact where they can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.library.lanes import copy_bytes
from dsl.codegen.library.routines import call_routine, inner_function, routine
from dsl.codegen.library.vectors import compare, constant, select, splat, vector
from dsl.codegen.llvm import Function, Module, Operand, Value, Variable
from dsl.codegen.vector_unit import register_bytes
from dsl.ir.types import BY_NAME

__all__ = ["LONGEST", "group_of", "is_smooth", "smooth", "space_of", "table_bytes"]

LONGEST = 1 << 14
"""The length up to which the memories of a group of lanes stay in the caches."""

Pair = tuple[Value, Value]  # the real and imaginary parts of a number in each lane
_RADICES = (4, 2, 3, 5)
_FALSE = Value("false", "i1")
_EIGHT = 8  # factors that are computed at a time


def group_of(dtype: np.dtype) -> int:
    """Return how many lanes of a complex dtype are transformed together."""
    return max(4, register_bytes() * 2 // dtype.itemsize)


def space_of(fn: Function, dtype: np.dtype, n: Operand) -> Value:
    """Return the bytes of memory that a group needs: three times its numbers."""
    return fn.as_value(fn.mul(n, 3 * group_of(dtype) * dtype.itemsize), "i64")


def smooth(n: int) -> bool:
    """Tell whether a length has no other prime factors than 2, 3 and 5, and is not too long for the caches."""
    return 1 < n <= LONGEST and 60 ** n.bit_length() % n == 0


def is_smooth(fn: Function, n: Value) -> Value:
    """Return the same of a length that is known when the program runs."""
    left = fn.variable("i64", fn.as_value(fn.maximum(n, 1), "i64"))
    for factor in (2, 3, 5):
        with fn.while_(partial(_divides, fn, left, factor)):
            left.set(fn.binary("udiv", left.get(), factor))
    suits = fn.both(fn.compare("sgt", n, 1), fn.compare("sle", n, LONGEST))
    return fn.both(suits, fn.compare("eq", left.get(), 1))


def _divides(fn: Function, number: Variable, factor: int) -> Value:
    return fn.compare("eq", fn.binary("urem", number.get(), factor), 0)


# -- twiddle factors ----------------------------------------------------------------------------------------------


def table_bytes(fn: Function, dtype: np.dtype, n: Operand) -> Operand:
    """Return the memory of a table, which is written by whole vectors."""
    return fn.mul(fn.add(n, _EIGHT), dtype.itemsize)


@routine("fft_table")
def _build_table(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`table(y, n)` writes exp(-2 pi i k / n) for k < n, eight at a time."""
    f = module.function(symbol, "void", [("ptr", "y"), ("i64", "n")])
    y, n = f.params
    whole, wide = vector("i64", _EIGHT), vector("double", _EIGHT)
    numbers = Value("<" + ", ".join(f"i64 {k}" for k in range(_EIGHT)) + ">", whole)
    one, lengths = constant(1, whole), splat(f, n, whole)
    with f.loop(0, n, _EIGHT) as k:
        place = f.binary("shl", f.binary("add", splat(f, k, whole), numbers), constant(3, whole))
        octant, rest = f.binary("udiv", place, lengths), f.binary("urem", place, lengths)
        odd = compare(f, "eq", f.binary("and", octant, one), one)
        near = select(f, odd, f.binary("sub", lengths, rest), rest)
        above, below = (f.convert("uitofp", number, wide) for number in (near, lengths))
        angle = f.binary("fmul", f.binary("fdiv", above, below), constant(math.pi / 4, wide))
        cosine, sine = (
            f.call(wide, f"dsl_math_{name}_x{_EIGHT}_f64", angle) for name in ("cos", "sin")
        )
        bit = f.binary("and", f.binary("add", octant, one), constant(2, whole))
        turned = compare(f, "ne", bit, constant(0, whole))
        re, im = select(f, turned, sine, cosine), select(f, turned, cosine, sine)
        left = compare(f, "ult", f.binary("sub", octant, constant(2, whole)), constant(4, whole))
        lower = compare(f, "ult", octant, constant(4, whole))  # the sign of a forward transform
        z = tuple(
            select(f, negative, f.fneg(part), part) for negative, part in ((left, re), (lower, im))
        )
        _write_factors(f, dtype, z, f.gep(y, f.mul(k, dtype.itemsize)))
    f.ret()


def _write_factors(f: Function, dtype: np.dtype, z: tuple[Value, ...], place: Value) -> None:
    """Store factors in the precision of a dtype."""
    kind = vector(_real(dtype), _EIGHT)
    re, im = (part if part.type == kind else f.convert("fptrunc", part, kind) for part in z)
    both = _picked(f, re, [k // 2 + _EIGHT * (k % 2) for k in range(2 * _EIGHT)], im)
    f.store(both, place, align=dtype.itemsize // 2)


def _real(dtype: np.dtype) -> str:
    return register_type(np.dtype(f"f{dtype.itemsize // 2}"))


# -- a group of lanes ---------------------------------------------------------------------------------------------


class Group:
    """A group of lanes: where it is and will be, and the memories between."""

    def __init__(self, f: Function, dtype: np.dtype) -> None:
        self.f, self.dtype, self.half = f, dtype, dtype.itemsize // 2
        self.source, self.target = f.params[:3], f.params[3:6]  # pointer, step and lane
        self.n, self.count, self.table, self.space = f.params[6:10]
        self.line = group_of(dtype) * dtype.itemsize  # bytes of a number in all lanes
        size = f.mul(self.n, self.line)
        self.one, self.other = f.gep(self.space, size), f.gep(self.space, f.mul(size, 2))
        self.whole = f.compare("eq", self.count, group_of(dtype))

    def collected(self, size: int, rows: Operand) -> Callable[[Value], Value]:
        """Bring lanes of elements of a size together, unless they are; return what tells where a row is."""
        f, (x, step, lane), line = self.f, self.source, group_of(self.dtype) * size
        place, pitch = f.variable("ptr", x), f.variable("i64", step)
        near = f.both(f.compare("eq", lane, size), self.whole)
        with f.if_(f.invert(near)):
            self.collect(size, rows, self.space)
            place.set(self.space)
            pitch.set(f.as_value(line, "i64"))
        return lambda j: f.gep(place.get(), f.mul(j, pitch.get()))

    def collect(self, size: int, rows: Operand, space: Value) -> None:
        """Copy the lanes that are there; the others are zero."""
        f, (x, step, lane), line = self.f, self.source, group_of(self.dtype) * size
        count = f.as_value(rows, "i64")
        with f.if_(f.invert(self.whole)):
            args = space, Value("0", "i8"), f.as_value(f.mul(count, line), "i64"), _FALSE
            f.call("void", "llvm.memset.p0.i64", *args)

        def row_by_row() -> None:
            with f.loop(0, count) as j:
                to, here = f.gep(space, f.mul(j, line)), f.gep(x, f.mul(j, step))
                copy_bytes(f, to, here, f.mul(self.count, size))

        def turned() -> None:
            call_routine(f, "turn", _words(size), x, lane, space, line, count, self.count)

        f.if_else(f.compare("eq", lane, size), row_by_row, turned)

    def spreading(self, size: int, rows: Operand, write: Callable[[Callable[[Value], Value]], None]) -> None:  # fmt: skip
        """Write rows of elements of a size to where lanes belong; `write` is given what tells where a row goes."""
        f, (y, step, lane), line = self.f, self.target, group_of(self.dtype) * size
        place, pitch = f.variable("ptr", y), f.variable("i64", step)
        near = f.compare("eq", lane, size)
        far = f.invert(f.both(near, self.whole))
        with f.if_(far):
            place.set(self.space)
            pitch.set(f.as_value(line, "i64"))
        write(lambda j: f.gep(place.get(), f.mul(j, pitch.get())))
        count = f.as_value(rows, "i64")

        def row_by_row() -> None:
            with f.loop(0, count) as j:
                to, here = f.gep(y, f.mul(j, step)), f.gep(self.space, f.mul(j, line))
                copy_bytes(f, to, here, f.mul(self.count, size))

        def turned() -> None:
            call_routine(f, "turn", _words(size), self.space, line, y, lane, self.count, count)

        with f.if_(far):
            f.if_else(near, row_by_row, turned)

    def number(self, memory: Value, k: Operand) -> Value:
        """Return where a number is in a memory."""
        return self.f.gep(memory, self.f.mul(k, self.line))

    def twiddle(self, k: Operand) -> Pair:
        return _twiddle(self.f, self.dtype, self.f.gep(self.table, self.f.mul(k, 2 * self.half)))


def _words(size: int) -> np.dtype:
    """Return the dtype that stands for all of a size, where elements are only moved."""
    return BY_NAME[{4: "u32", 8: "u64", 16: "c128"}[size]]


def _start(module: Module, symbol: str, dtype: np.dtype) -> tuple[Group, dict[int, str]]:
    """Start a routine `transform(x, x_step, x_lane, y, y_step, y_lane, n, count, table, space)` of a group of lanes.

    Steps go along the transform and from lane to lane, in bytes; `count` lanes are there.
    """
    names = [("ptr", "x"), ("i64", "x_step"), ("i64", "x_lane"), ("ptr", "y"), ("i64", "y_step"), ("i64", "y_lane"),
             ("i64", "n"), ("i64", "count"), ("ptr", "table"), ("ptr", "space")]  # fmt: skip
    passes = {radix: _pass(module, dtype, radix) for radix in _RADICES}
    return Group(module.function(symbol, "void", names), dtype), passes


def _build_complex(inverse: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """The inverse transform is a forward one of numbers with exchanged parts."""
    group, passes = _start(module, symbol, dtype)
    f, n, order = group.f, group.n, _exchanged if inverse else _same
    row = group.collected(dtype.itemsize, n)
    with f.loop(0, n) as j:
        _put(f, dtype, order(_apart(f, dtype, row(j))), group.number(group.one, j))
    last = _transform(group, passes, n, 1)

    def write(place: Callable[[Value], Value]) -> None:
        with f.loop(0, n) as j:
            found = _take(f, dtype, group.number(last, j))
            _together(f, dtype, order(found), place(j))

    group.spreading(dtype.itemsize, n, write)
    f.ret()


def _build_of_real(module: Module, symbol: str, dtype: np.dtype) -> None:
    """A transform of half the length, of numbers whose parts are two real ones each; then what the two halves have is put together."""
    group, passes = _start(module, symbol, dtype)
    f, h = group.f, group.f.binary("lshr", group.n, 1)
    _real_lines(group)
    last = _transform(group, passes, h, 2)

    def write(place: Callable[[Value], Value]) -> None:
        re, im = _take(f, dtype, last)
        zero = constant(0.0, re.type)
        _together(f, dtype, (_add(f, re, im), zero), place(f.as_value(0, "i64")))
        _together(f, dtype, (_subtract(f, re, im), zero), place(h))
        with f.loop(1, h) as k:
            one = _take(f, dtype, group.number(last, k))
            even, odd = _halves(f, one, _take(f, dtype, group.number(last, f.sub(h, k))))
            turned = _product(f, odd, group.twiddle(k))
            found = _less_turned(f, even, turned)[0]
            _together(f, dtype, _scaled(f, found, 0.5), place(k))

    group.spreading(dtype.itemsize, f.add(h, 1), write)
    f.ret()


def _real_lines(group: Group) -> None:
    """Bring real lanes together: two rows of them are one number."""
    f, (x, step, lane), half = group.f, group.source, group.line // 2

    def copied() -> None:
        with f.loop(0, group.n) as j:
            found = f.load(_wide(group.dtype), f.gep(x, f.mul(j, step)), align=group.half)
            f.store(found, f.gep(group.one, f.mul(j, half)), align=half)

    near = f.both(f.compare("eq", lane, group.half), group.whole)
    f.if_else(near, copied, lambda: group.collect(group.half, group.n, group.one))


def _build_to_real(module: Module, symbol: str, dtype: np.dtype) -> None:
    """The other way round. The imaginary parts of the first and the last number are not looked at."""
    group, passes = _start(module, symbol, dtype)
    f, h = group.f, group.f.binary("lshr", group.n, 1)
    row = group.collected(dtype.itemsize, f.add(h, 1))
    first, end = (_apart(f, dtype, row(k))[0] for k in (f.as_value(0, "i64"), h))
    _put(f, dtype, (_subtract(f, first, end), _add(f, first, end)), group.one)
    with f.loop(1, h) as k:
        one = _apart(f, dtype, row(k))
        even, odd = _halves(f, one, _apart(f, dtype, row(f.binary("sub", h, k))))
        re, im = group.twiddle(k)
        turned = _product(f, odd, (re, f.fneg(im)))
        found = _less_turned(f, even, turned)[1]
        _put(f, dtype, _exchanged(found), group.number(group.one, k))
    last = _transform(group, passes, h, 2)

    def write(place: Callable[[Value], Value]) -> None:
        with f.loop(0, h) as j:
            second, first = _take(f, dtype, group.number(last, j))
            twice = f.binary("shl", j, 1)
            f.store(first, place(twice), align=group.half)
            f.store(second, place(f.binary("or", twice, 1)), align=group.half)

    group.spreading(group.half, group.n, write)
    f.ret()


routine("fft_lanes")(partial(_build_complex, False))
routine("ifft_lanes")(partial(_build_complex, True))
routine("rfft_lanes")(_build_of_real)
routine("irfft_lanes")(_build_to_real)


def _same(z: Pair) -> Pair:
    return z


def _exchanged(z: Pair) -> Pair:
    return z[1], z[0]


def _halves(f: Function, a: Pair, b: Pair) -> tuple[Pair, Pair]:
    """Return a plus and a minus the conjugate of b."""
    even = _add(f, a[0], b[0]), _subtract(f, a[1], b[1])
    return even, (_subtract(f, a[0], b[0]), _add(f, a[1], b[1]))


def _wide(dtype: np.dtype) -> str:
    return vector(_real(dtype), group_of(dtype))


def _take(f: Function, dtype: np.dtype, place: Value) -> Pair:
    wide, half = _wide(dtype), group_of(dtype) * dtype.itemsize // 2
    return f.load(wide, place, align=64), f.load(wide, f.gep(place, half), align=half)


def _put(f: Function, dtype: np.dtype, z: Pair, place: Value) -> None:
    half = group_of(dtype) * dtype.itemsize // 2
    f.store(z[0], place, align=64)
    f.store(z[1], f.gep(place, half), align=half)


def _apart(f: Function, dtype: np.dtype, place: Value) -> Pair:
    """Load complex numbers, and part them."""
    count = group_of(dtype)
    both = f.load(vector(_real(dtype), 2 * count), place, align=dtype.itemsize // 2)
    re, im = (_picked(f, both, range(k, 2 * count, 2)) for k in (0, 1))
    return re, im


def _together(f: Function, dtype: np.dtype, z: Pair, place: Value) -> None:
    """Store complex numbers of both parts."""
    count = group_of(dtype)
    both = _picked(f, z[0], [k // 2 + count * (k % 2) for k in range(2 * count)], z[1])
    f.store(both, place, align=dtype.itemsize // 2)


def _picked(f: Function, a: Value, places: Sequence[int], b: Value | None = None) -> Value:
    """Return the elements at some places of a vector, or of two, one behind the other."""
    a, b = f.use(a), f.use(b or a)
    kind = a.type[1:-1].split(" x ")[1]
    mask = ", ".join(f"i32 {place}" for place in places)
    text = f"shufflevector {a.type} {a.text}, {b.type} {b.text}, <{len(places)} x i32> <{mask}>"
    return f.define(vector(kind, len(places)), text)


def _transform(group: Group, passes: dict[int, str], n: Value, each: int) -> Value:
    """Emit pass after pass, with every so many of the factors; return the memory that has the result."""
    f = group.f
    here, there = (f.variable("ptr", memory) for memory in (group.one, group.other))
    left, stride = f.variable("i64", n), f.variable("i64", 1)
    for radix, name in passes.items():
        with f.while_(partial(_divides, f, left, radix)):
            rest, step = f.binary("udiv", left.get(), radix), f.binary("mul", stride.get(), each)
            args = here.get(), there.get(), rest, stride.get(), group.table, step
            f.call("void", name, *args)
            _swap(here, there)
            left.set(rest)
            stride.set(f.binary("mul", stride.get(), radix))
    return here.get()


def _swap(a: Variable, b: Variable) -> None:
    before = a.get()
    a.set(b.get())
    b.set(before)


# -- passes -------------------------------------------------------------------------------------------------------


def _pass(module: Module, dtype: np.dtype, radix: int) -> str:
    """Define `pass(x, y, m, s, table, t)`: butterflies of numbers that are m * s apart, of which s follow each other.

    Their factors are t apart in the table.
    """
    params = [
        ("ptr", "x"),
        ("ptr", "y"),
        ("i64", "m"),
        ("i64", "s"),
        ("ptr", "table"),
        ("i64", "t"),
    ]
    f = inner_function(module, f"radix{radix}", "void", params)
    x, y, m, s, table, t = f.params
    line = group_of(dtype) * dtype.itemsize
    apart, stride = f.mul(f.mul(m, s), line), f.mul(s, line)

    def butterflies(p: Operand, twiddles: Sequence[Pair]) -> None:
        source, target = f.gep(x, f.mul(p, stride)), f.gep(y, f.mul(p, f.mul(stride, radix)))
        with f.loop(0, s) as q:
            near, to = f.gep(source, f.mul(q, line)), f.gep(target, f.mul(q, line))
            numbers = [_take(f, dtype, f.gep(near, f.mul(apart, k))) for k in range(radix)]
            for k, z in enumerate(_BUTTERFLIES[radix](f, numbers)):
                turned = z if not k or not twiddles else _product(f, z, twiddles[k - 1])
                _put(f, dtype, turned, f.gep(to, f.mul(stride, k)))

    butterflies(0, ())
    with f.loop(1, m) as p:
        place = f.mul(p, f.mul(t, dtype.itemsize))
        butterflies(p, [_twiddle(f, dtype, f.gep(table, f.mul(place, k))) for k in range(1, radix)])
    f.ret()
    return f.name


def _twiddle(f: Function, dtype: np.dtype, place: Value) -> Pair:
    kind, half = _real(dtype), dtype.itemsize // 2
    parts = f.load(kind, place, align=half), f.load(kind, f.gep(place, half), align=half)
    re, im = (splat(f, part, _wide(dtype)) for part in parts)
    return re, im


def _add(f: Function, a: Value, b: Value) -> Value:
    return f.binary("fadd contract", a, b)


def _subtract(f: Function, a: Value, b: Value) -> Value:
    return f.binary("fsub contract", a, b)


def _multiply(f: Function, a: Value, b: Value | float) -> Value:
    return f.binary("fmul contract", a, b if isinstance(b, Value) else constant(b, a.type))


def _product(f: Function, z: Pair, w: Pair) -> Pair:
    re = _subtract(f, _multiply(f, z[0], w[0]), _multiply(f, z[1], w[1]))
    return re, _add(f, _multiply(f, z[0], w[1]), _multiply(f, z[1], w[0]))


def _sum(f: Function, a: Pair, b: Pair) -> Pair:
    return _add(f, a[0], b[0]), _add(f, a[1], b[1])


def _difference(f: Function, a: Pair, b: Pair) -> Pair:
    return _subtract(f, a[0], b[0]), _subtract(f, a[1], b[1])


def _scaled(f: Function, a: Pair, factor: float) -> Pair:
    return _multiply(f, a[0], factor), _multiply(f, a[1], factor)


def _less_turned(f: Function, a: Pair, b: Pair) -> tuple[Pair, Pair]:
    """Return a - i b and a + i b."""
    minus = _add(f, a[0], b[1]), _subtract(f, a[1], b[0])
    return minus, (_subtract(f, a[0], b[1]), _add(f, a[1], b[0]))


def _two(f: Function, z: Sequence[Pair]) -> list[Pair]:
    return [_sum(f, *z), _difference(f, *z)]


def _four(f: Function, z: Sequence[Pair]) -> list[Pair]:
    (even, twice), (odd, other) = _two(f, z[::2]), _two(f, z[1::2])
    minus, plus = _less_turned(f, twice, other)
    return [_sum(f, even, odd), minus, _difference(f, even, odd), plus]


def _three(f: Function, z: Sequence[Pair]) -> list[Pair]:
    total, apart = _two(f, z[1:])
    middle = _sum(f, z[0], _scaled(f, total, -0.5))
    minus, plus = _less_turned(f, middle, _scaled(f, apart, math.sqrt(0.75)))
    return [_sum(f, z[0], total), minus, plus]


def _five(f: Function, z: Sequence[Pair]) -> list[Pair]:
    (near, near_apart), (far, far_apart) = _two(f, (z[1], z[4])), _two(f, (z[2], z[3]))
    found: list[Pair] = [_sum(f, z[0], _sum(f, near, far))]
    last: list[Pair] = []
    for a, b, c, d in ((1, 2, 1, 2), (2, 1, 2, -1)):
        cosines = [math.cos(2 * math.pi * k / 5) for k in (a, b)]
        sines = [math.copysign(math.sin(2 * math.pi * abs(k) / 5), k) for k in (c, d)]
        along = _sum(f, _scaled(f, near, cosines[0]), _scaled(f, far, cosines[1]))
        across = _sum(f, _scaled(f, near_apart, sines[0]), _scaled(f, far_apart, sines[1]))
        minus, plus = _less_turned(f, _sum(f, z[0], along), across)
        found.append(minus)
        last.insert(0, plus)
    return found + last


_BUTTERFLIES: dict[int, Callable[[Function, Sequence[Pair]], list[Pair]]] = {
    2: _two, 3: _three, 4: _four, 5: _five,
}  # fmt: skip
