"""What the parameters and the results of a program are, and the records of them that an entry reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Literal, TypeGuard

import numpy as np

from dsl.codegen.cpu import entry_layout as layout
from dsl.ir.dims import Atom, Dim, DimLike, lower_bound
from dsl.ir.sameness import Exact
from dsl.ir.types import Shape

DType = np.dtype[Any]
Number = Literal["int", "float", "complex", "bool"]
Place = tuple[Literal["param", "result"], int, int]
"""A word of the frame: of which parameter or result, and which of its words."""

_ALIGNED, _WRITEABLE, _C_CONTIGUOUS = 0x100, 0x400, 0x1

_NUMBERS: Final[
    dict[str, tuple[type, int, int, int]]
] = {  # type, kind of parameter, bytes, kind of result
    "int": (int, layout.INT, 8, layout.NEW_INT),
    "float": (float, layout.VALUE, 8, layout.NEW_FLOAT),
    "complex": (complex, layout.VALUE, 16, layout.NEW_COMPLEX),
    "bool": (bool, layout.BOOL, 8, layout.NEW_BOOL),
}


class _Part:
    """What a parameter or a result is; compares by class and fields.

    Not a dataclass: to make nine of those took 6 ms of every first call, a seventh of it with code from disk.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


# --- Parameters ----------------------------------------------------------------------------------


class ArrayParam(_Part):
    """An aligned ndarray, of no subclass.

    A dim is a number, or the name of a symbol: any extent from 2 up, the same wherever the symbol stands; a `Dim` says
    itself whether it may be 0 or 1. `strides` are "contiguous" in C order, "any" whole numbers of elements, or exact
    bytes. A `written` array is writeable and shares no memory with other arguments. Arguments are different objects,
    except for one that is to be the `same_as` an earlier one.
    """

    def __init__(
        self,
        dtype: DType,
        dims: tuple[int | Hashable, ...],
        strides: Literal["contiguous", "any"] | tuple[int, ...] = "contiguous",
        written: bool = False,
        same_as: int | None = None,
    ) -> None:
        self.dtype, self.dims, self.strides = dtype, dims, strides
        self.written, self.same_as = written, same_as

    @property
    def words(self) -> int:
        return 1 + 2 * len(self.dims)

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        modes = {"contiguous": layout.CONTIGUOUS, "any": layout.ANY}
        mode = modes[self.strides] if isinstance(self.strides, str) else layout.EXACT
        flags = _ALIGNED | _WRITEABLE * self.written | _C_CONTIGUOUS * (mode == layout.CONTIGUOUS)
        root = index if self.same_as is None else self.same_as
        dims = [_code(d, symbols) for d in self.dims]
        strides = list(self.strides) if mode == layout.EXACT else [0] * len(dims)
        return _record(
            layout.PARAM, self.words, [*dims, *strides], kind=layout.ARRAY, type=id(np.ndarray),
            descr=id(_canonical(self.dtype)), array_flags=flags, rank=len(dims), strides=mode,
            itemsize=self.dtype.itemsize, written=int(self.written), root=root,
        )  # fmt: skip


class NumberParam(_Part):
    """A Python number of exactly that type (an int must fit 64 bits), or a NumPy scalar of a dtype."""

    words = 2

    def __init__(self, type: Number | DType) -> None:
        self.type = type

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        if isinstance(self.type, np.dtype):
            kind, size, python = layout.VALUE, self.type.itemsize, self.type.type
        else:
            python, kind, size, _ = _NUMBERS[self.type]
        return _record(layout.PARAM, self.words, kind=kind, type=id(python), itemsize=size)


class StaticParam(_Part):
    """This very object or, of a plain immutable one, any of the same type and bits."""

    words = 0

    def __init__(self, object: object) -> None:
        self.object = object
        self.alike = object if type(object) in (int, str, bytes) else Exact(object)

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        if not _is_plain(self.object):
            return _record(layout.PARAM, self.words, kind=layout.STATIC, type=id(self.object))
        kind, value, root = id(type(self.object)), id(self.object), id(self.alike)
        return _record(
            layout.PARAM, self.words, kind=layout.EQUAL, type=kind, descr=value, root=root
        )


class SameParam(_Part):
    """The same array as the argument of that number, which comes before."""

    words = 0

    def __init__(self, argument: int) -> None:
        self.argument = argument

    def record(self, index: int, symbols: dict[Hashable, int]) -> list[int]:
        return _record(
            layout.PARAM, self.words, kind=layout.SAME, type=id(np.ndarray), root=self.argument
        )


Param = ArrayParam | NumberParam | StaticParam | SameParam


# --- Results -------------------------------------------------------------------------------------


class ArrayResult(_Part):
    """A new array, contiguous in C order."""

    def __init__(self, dtype: DType, rank: int) -> None:
        self.dtype, self.rank = dtype, rank

    @property
    def words(self) -> int:
        return 1 + self.rank if self.rank else 2

    def record(self, word: Callable[[Place], int]) -> list[int]:
        descr = id(_canonical(self.dtype))
        return _record(
            layout.RESULT, self.words, kind=layout.NEW_ARRAY, object=descr, rank=self.rank
        )


class ScalarResult(_Part):
    """A NumPy scalar."""

    words = 2

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def record(self, word: Callable[[Place], int]) -> list[int]:
        descr = id(_canonical(self.dtype))
        return _record(layout.RESULT, self.words, kind=layout.NEW_SCALAR, object=descr)


class NumberResult(_Part):
    """A Python number: the program stores an int64, a double, two doubles, or a byte that is 0 or 1."""

    words = 2

    def __init__(self, type: Number) -> None:
        self.type = type

    def record(self, word: Callable[[Place], int]) -> list[int]:
        return _record(layout.RESULT, self.words, kind=_NUMBERS[self.type][3])


class Argument(_Part):
    """The argument of that number itself."""

    words = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def record(self, word: Callable[[Place], int]) -> list[int]:
        return _record(layout.RESULT, self.words, kind=layout.ARGUMENT, index=self.index)


class Earlier(_Part):
    """The same object as the result of that number, which comes before."""

    words = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def record(self, word: Callable[[Place], int]) -> list[int]:
        return _record(layout.RESULT, self.words, kind=layout.EARLIER, index=self.index)


class Constant(_Part):
    """This very object, such as None."""

    words = 0

    def __init__(self, object: object) -> None:
        self.object = object

    def record(self, word: Callable[[Place], int]) -> list[int]:
        return _record(layout.RESULT, self.words, kind=layout.CONSTANT, object=id(self.object))


class View(_Part):
    """A view of an argument, or of a result that comes before.

    `offset` and `strides` are in bytes. They and the dims are dims of `ir`, whose symbols `places` tells the frame's
    words of. It is writeable if that array is, unless told otherwise.
    """

    words = 0

    def __init__(
        self, of: Argument | Earlier, dtype: DType, offset: DimLike, dims: Shape, strides: Shape,
        places: tuple[tuple[Dim, Place], ...] = (), writeable: bool = True,
    ) -> None:  # fmt: skip
        self.writeable = writeable
        self.of, self.dtype, self.offset = of, dtype, offset
        self.dims, self.strides, self.places = dims, strides, places

    def record(self, word: Callable[[Place], int]) -> list[int]:
        places = {symbol: word(place) for symbol, place in self.places}
        code = [
            step
            for dim in (self.offset, *self.dims, *self.strides)
            for step in _code_of(dim, places)
        ]
        source = layout.ARGUMENT if isinstance(self.of, Argument) else layout.EARLIER
        return _record(
            layout.RESULT, self.words, [part for step in code for part in step], kind=layout.VIEW,
            object=id(_canonical(self.dtype)), rank=len(self.dims), index=self.of.index, source=source, steps=len(code),
            writeable=_WRITEABLE * self.writeable,
        )  # fmt: skip


Result = ArrayResult | ScalarResult | NumberResult | Argument | Earlier | Constant | View


# --- Records ---


def number_symbols(params: Sequence[Param]) -> dict[Hashable, int]:
    """Number the symbols that stand in dims."""
    arrays = [p for p in params if isinstance(p, ArrayParam)]
    names = dict.fromkeys(d for p in arrays for d in p.dims if not _is_number(d))
    return {name: index for index, name in enumerate(names)}


def _code(dim: Hashable, symbols: dict[Hashable, int]) -> int:
    """A dim as the table has it."""
    if _is_number(dim):
        return int(dim)
    free = isinstance(dim, Dim) and (lower_bound(dim) or 0) < 2
    return -1 - symbols[dim] - layout.FREE * free


def _is_number(dim: Hashable) -> TypeGuard[int]:
    return isinstance(dim, int | np.integer)


def _record(names: tuple[str, ...], size: int, tail: Sequence[int] = (), **given: int) -> list[int]:
    given |= {"words": size, "length": len(names) + len(tail)}
    return [*(given.get(name, 0) for name in names), *tail]


@functools.cache
def _canonical(dtype: DType) -> DType:
    """Return the dtype object that NumPy gives to new arrays of an equal dtype."""
    return np.dtype(dtype.type)


def _is_plain(item: object) -> bool:
    """Tell whether objects that are equal to this one, and of its type, are as good."""
    if type(item) is tuple:
        return all(map(_is_plain, item))
    return type(item) in (int, float, complex, str, bytes)


def _code_of(dim: DimLike, places: Mapping[Dim, int]) -> list[tuple[int, int]]:
    """Return the steps that leave the value of a dim on the stack: (what, operand)."""
    if not isinstance(dim, Dim):
        return [(layout.NUMBER, int(dim))]
    found: list[tuple[int, int]] = []
    for number, (factors, scale) in enumerate(dim.terms):
        parts = [_factor(factor, places) for factor in factors]
        if scale != 1 or not parts:
            parts.append([(layout.NUMBER, scale)])
        found += parts[0]
        for part in parts[1:]:
            found += [*part, (layout.STEPS["multiply"], 0)]
        found += [(layout.STEPS["add"], 0)] * (number > 0)
    return found


def _factor(factor: Any, places: Mapping[Dim, int]) -> list[tuple[int, int]]:
    if not isinstance(factor, Atom):
        return [(layout.WORD, places[Dim((((factor,), 1),))])]
    operands = _code_of(factor.lhs, places) + _code_of(factor.rhs, places)
    return [*operands, (layout.STEPS[factor.kind], 0)]
