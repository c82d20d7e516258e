"""Where values would go into a sorted vector: binary searches without branches, several side by side.

The searches of a group take the same number of steps, so their loads overlap. If all of a group belong near where the last
value of the group before does, as those of values that are sorted do, they are sought there alone. Real elements are compared
by their keys (see `keys`), complex ones in NumPy's order.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen.arrays import Array, Scalar, load_scalar, memory_type, store_scalar
from dsl.codegen.library.call import Call, product
from dsl.codegen.library.keys import load_key
from dsl.codegen.library.routines import at, call_routine, parallel, routine
from dsl.codegen.library.vectors import compare, mask_bits, splat, toss, vector
from dsl.codegen.llvm import Function, Module, Operand, Value, Variable

__all__ = ["LOWERINGS"]

_TOGETHER = 8
_NEAR = 16  # elements among which a group is sought first
_GRAIN = 1 << 10


def _searchsorted(call: Call) -> None:
    fn, a, side = call.fn, call.contiguous(0), call.node.attrs["side"]
    v = call.inputs[1]
    stem = f"searchsorted_{side}"
    if isinstance(v, Array):
        many, out = call.contiguous(1), call.output()
        count = product(fn, many.dims)
        call_routine(fn, stem, a.dtype, a.pointer, a.dims[0], many.pointer, out.pointer, count)
        return
    space, place = fn.alloca(16), fn.alloca(8)
    store_scalar(fn, a.dtype, v, space)
    call_routine(fn, stem, a.dtype, a.pointer, a.dims[0], space, place, 1)
    call.set_output(0, fn.load("i64", place))


LOWERINGS = {"searchsorted": _searchsorted}


def _build(left: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    """`searchsorted(a, n, v, y, count)`."""
    params = [("ptr", "a"), ("i64", "n"), ("ptr", "v"), ("ptr", "y"), ("i64", "count")]
    f = module.function(symbol, "void", params)
    a, n, v, y, count = f.params
    with parallel(f, count, _GRAIN) as (part, lo, hi):
        several = part.binary("and", part.binary("sub", hi, lo), -_TOGETHER)
        middle = part.binary("add", lo, several)
        last = part.variable("i64", 0)
        for start, stop, size in ((lo, middle, _TOGETHER), (middle, hi, 1)):
            with part.loop(start, stop, size) as i:
                places = [part.add(i, k) for k in range(size)]
                search = Search(part, left, dtype, (a, n), v)
                found = search.run(places, last.get())
                for place, number in zip(places, found):
                    part.store(number, part.gep(y, place, "i64"))
                last.set(found[-1])
    f.ret()


for _side in ("left", "right"):
    routine(f"searchsorted_{_side}")(partial(_build, _side == "left"))


class Search:
    """How many elements of a sorted vector come before each of some values."""

    def __init__(
        self, f: Function, left: bool, dtype: np.dtype, elements: tuple[Value, Value], values: Value
    ) -> None:
        self.f, self.left, self.dtype, (self.a, self.n), self.v = f, left, dtype, elements, values

    def run(self, places: list[Operand], last: Value) -> list[Value]:
        """Search all of the vector, or, if that surely has the places, some elements around where a value was found last, or none."""
        f = self.f
        first, size = f.variable("i64", 0), f.variable("i64", self.n)
        if len(places) == _TOGETHER and self.dtype.kind != "c":
            kind = vector(memory_type(self.dtype), _TOGETHER)
            keys = load_key(f, self.dtype, at(f, self.dtype, self.v, places[0]), kind)
            low = f.maximum(f.minimum(f.sub(last, _NEAR // 4), f.sub(self.n, _NEAR)), 0)
            with f.if_(f.compare("sgt", self.n, 4 * _NEAR)):
                for start, count in ((f.as_value(low, "i64"), _NEAR), (last, 0)):
                    with f.if_(self.all_within(keys, start, count)):
                        first.set(start)
                        size.set(f.as_value(count, "i64"))
        return self.halve(places, first.get(), size)

    def all_within(self, keys: Value, low: Value, count: int) -> Value:
        """Tell whether all values belong between so many elements, or beside."""
        f, high = self.f, self.f.binary("add", low, count)
        before, after = f.maximum(f.sub(low, 1), 0), f.minimum(high, f.sub(self.n, 1))
        above, below = (self.compared(keys, place) for place in (before, after))
        starts, ends = f.compare("eq", low, 0), f.compare("eq", high, self.n)
        every = f.compare("eq", above, -1)
        return f.both(f.either(starts, every), f.either(ends, f.compare("eq", below, 0)))

    def compared(self, keys: Value, place: Operand) -> Value:
        """Return, as bits, before the places of which values an element comes."""
        f = self.f
        own = splat(f, load_key(f, self.dtype, at(f, self.dtype, self.a, place)), keys.type)
        return mask_bits(f, compare(f, "slt" if self.left else "sle", own, keys))

    def goes(self, found: Scalar, value: Scalar) -> Value:
        """Tell whether an element comes before the place of a value."""
        if self.left:
            return _less(self.f, found, value)
        return self.f.invert(_less(self.f, value, found))

    def halve(self, places: list[Operand], first: Value, size: Variable) -> list[Value]:
        """Search some elements from the first one on."""
        f = self.f
        wanted = [_load(f, self.dtype, at(f, self.dtype, self.v, place)) for place in places]
        bases = [f.variable("i64", first) for _ in wanted]

        def skip(base: Operand, distance: Value, value: Scalar, probe: Operand) -> Operand:
            found = _load(f, self.dtype, at(f, self.dtype, self.a, probe))
            return f.add(base, toss(f, self.goes(found, value), distance, 0))

        with f.while_(lambda: f.compare("sgt", size.get(), 1)):
            half = f.binary("lshr", size.get(), 1)
            for base, value in zip(bases, wanted):
                at_half = f.add(base.get(), f.sub(half, 1))
                base.set(skip(base.get(), half, value, at_half))
            size.set(f.sub(size.get(), half))
        with f.if_(f.compare("eq", size.get(), 1)):
            one = f.as_value(1, "i64")
            for base, value in zip(bases, wanted):
                base.set(skip(base.get(), one, value, base.get()))
        return [base.get() for base in bases]


def _load(f: Function, dtype: np.dtype, address: Value) -> Scalar:
    return load_scalar(f, dtype, address) if dtype.kind == "c" else load_key(f, dtype, address)


def _less(f: Function, x: Scalar, y: Scalar) -> Value:
    """Return whether x comes before y: complex numbers by real part, then imaginary part, NaNs last in each."""
    if isinstance(x, tuple):
        assert isinstance(y, tuple)
        return _less_complex(f, x, y)
    assert isinstance(y, Value)
    return f.compare("slt", x, y)


def _less_complex(f: Function, x: tuple[Value, Value], y: tuple[Value, Value]) -> Value:
    """NumPy's order: R + Rj, R + nan j, nan + Rj, nan + nan j."""
    (a, b), (c, d) = x, y
    b_nan, d_nan = f.fcompare("uno", b, b), f.fcompare("uno", d, d)
    both_nan = f.both(f.fcompare("uno", a, a), f.fcompare("uno", c, c))
    less = f.both(f.fcompare("olt", a, c), f.either(f.invert(b_nan), d_nan))
    more = f.both(f.fcompare("ogt", a, c), f.both(d_nan, f.invert(b_nan)))
    below = f.either(f.fcompare("olt", b, d), f.both(d_nan, f.invert(b_nan)))
    level = f.both(f.either(f.fcompare("oeq", a, c), both_nan), below)
    last = f.both(f.fcompare("ord", a, a), f.fcompare("uno", c, c))
    return f.either(f.either(less, more), f.either(level, last))
