"""Symbolic dimensions: integer expressions over named sizes that are known only when the program runs.

A dim of a shape is an `int` or a `Dim`. A `Dim` is a sum of integer multiples of products of atoms; an atom is a
`Symbol` or an opaque `floordiv`, `mod`, `max` or `min` of two dims. The sum is kept in normal form, so two dims that
are equal as polynomials are equal objects, and an expression without symbols is always a plain `int`.

>>> n = Symbol("n")
>>> (n + 1) * 2 - n - n
2
>>> str((n - 2) // 2 + 1)
'(n - 2)//2 + 1'
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Union

__all__ = [
    "Atom",
    "Dim",
    "DimLike",
    "Symbol",
    "dim_max",
    "dim_min",
    "evaluate",
    "lower_bound",
    "substitute",
    "symbols_of",
    "where_not_zero",
]

DimLike = Union[int, "Dim"]
_serial = itertools.count()


@dataclass(frozen=True, eq=False)
class Atom:
    """An opaque factor: `kind` applied to two dims."""

    kind: str
    lhs: DimLike
    rhs: DimLike

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, DimLike, DimLike]:
        return (self.kind, self.lhs, self.rhs)

    def __str__(self) -> str:
        if self.kind in ("max", "min"):
            return f"{self.kind}({self.lhs}, {self.rhs})"
        sign = "//" if self.kind == "floordiv" else "%"
        return f"{_wrap(self.lhs)}{sign}{_wrap(self.rhs)}"


def _wrap(dim: DimLike) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


@dataclass(frozen=True, eq=False)
class _Name:
    """The identity of a symbol: equal only to itself."""

    hint: str
    minimum: int
    serial: int = field(default_factory=lambda: next(_serial))

    def __str__(self) -> str:
        return self.hint


Factor = _Name | Atom
Terms = tuple[tuple[tuple[Factor, ...], int], ...]


def _order(factor: Factor) -> tuple[int, int, str]:
    return (0, factor.serial, "") if isinstance(factor, _Name) else (1, 0, str(factor))


class Dim:
    """A dim with at least one symbol. Immutable; compares by normal form."""

    # Sizes made from sizes, level by level, hold one another: what would be found anew through all levels is kept.
    __slots__ = ("_bound", "_hash", "_symbols", "_text", "terms")
    terms: Terms

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None
        self._symbols: tuple[Dim, ...] | None = None
        self._bound: tuple[int | None] | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: DimLike) -> DimLike:
        return _sum(_terms(self), _terms(other))

    __radd__ = __add__

    def __neg__(self) -> DimLike:
        return self * -1

    def __sub__(self, other: DimLike) -> DimLike:
        return self + other * -1

    def __rsub__(self, other: DimLike) -> DimLike:
        return self * -1 + other

    def __mul__(self, other: DimLike) -> DimLike:
        return _product(_terms(self), _terms(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> DimLike:
        return _divide(self, other)

    def __rfloordiv__(self, other: DimLike) -> DimLike:
        return _divide(other, self)

    def __mod__(self, other: DimLike) -> DimLike:
        return (
            self - _divide(self, other) * other
            if _divides(self, other)
            else _atom("mod", self, other)
        )

    def __rmod__(self, other: DimLike) -> DimLike:
        return _atom("mod", other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the size {self} is known only at run time")

    def __str__(self) -> str:
        if self._text is None:
            parts = [_term_text(factors, scale) for factors, scale in self.terms]
            self._text = reduce(
                lambda text, part: f"{text} - {part[1:]}" if part[0] == "-" else f"{text} + {part}",
                parts,
            )
        return self._text

    __repr__ = __str__


def _term_text(factors: tuple[Factor, ...], scale: int) -> str:
    if not factors:
        return str(scale)
    product = "*".join(map(str, factors))
    return product if scale == 1 else f"-{product}" if scale == -1 else f"{scale}*{product}"


def Symbol(hint: str, minimum: int = 0) -> Dim:
    """Return a fresh size, different from all others, known to be at least `minimum`."""
    return Dim((((_Name(hint, minimum),), 1),))


def _terms(dim: DimLike) -> Terms:
    if isinstance(dim, Dim):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _build(sums: Mapping[tuple[Factor, ...], int]) -> DimLike:
    kept = {factors: scale for factors, scale in sums.items() if scale}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    ordered = sorted(
        kept.items(), key=lambda item: (not item[0], -len(item[0]), [_order(f) for f in item[0]])
    )
    return Dim(tuple(ordered))


def _sum(*groups: Terms) -> DimLike:
    sums: dict[tuple[Factor, ...], int] = {}
    for factors, scale in itertools.chain(*groups):
        sums[factors] = sums.get(factors, 0) + scale
    return _build(sums)


def _product(lhs: Terms, rhs: Terms) -> DimLike:
    sums: dict[tuple[Factor, ...], int] = {}
    for (a, m), (b, n) in itertools.product(lhs, rhs):
        factors = tuple(sorted(a + b, key=_order))
        sums[factors] = sums.get(factors, 0) + m * n
    return _build(sums)


def _atom(kind: str, lhs: DimLike, rhs: DimLike) -> DimLike:
    if isinstance(lhs, int) and isinstance(rhs, int):
        return _FOLD[kind](lhs, rhs)
    return Dim((((Atom(kind, lhs, rhs),), 1),))


_FOLD: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def _divides(lhs: DimLike, rhs: DimLike) -> bool:
    return isinstance(rhs, int) and rhs != 0 and all(scale % rhs == 0 for _, scale in _terms(lhs))


def _divide(lhs: DimLike, rhs: DimLike) -> DimLike:
    if isinstance(rhs, int) and _divides(lhs, rhs):
        return _build({factors: scale // rhs for factors, scale in _terms(lhs)})
    quotient = _cancel(lhs, rhs)
    return _atom("floordiv", lhs, rhs) if quotient is None else quotient


def _cancel(lhs: DimLike, rhs: DimLike) -> DimLike | None:
    """Divide a sum of products by a single product that is a factor of each, or return None."""
    if not isinstance(rhs, Dim) or len(rhs.terms) != 1:
        return None
    factors, scale = rhs.terms[0]
    sums = {}
    for own, own_scale in _terms(lhs):
        left = list(own)
        if own_scale % scale or any(f not in left or left.remove(f) for f in factors):  # type: ignore[func-returns-value]
            return None
        sums[tuple(left)] = own_scale // scale
    return _build(sums)


def lower_bound(dim: DimLike) -> int | None:
    """Return a number that `dim` is never below, or None when none is known."""
    if isinstance(dim, int):
        return dim
    if dim._bound is None:
        dim._bound = (_sum_bound(dim),)
    return dim._bound[0]


def _sum_bound(dim: Dim) -> int | None:
    """Add up the terms' bounds; of `n - 2*(n//2)`, where a quotient is subtracted, what it is a part of is taken instead."""
    whole = _without_quotients(dim)
    if whole != dim:
        return lower_bound(whole)
    total = 0
    for factors, scale in dim.terms:
        bounds = [_factor_bound(f) for f in factors]
        if not factors:
            total += scale
        elif scale < 0 or any(b is None or b < 0 for b in bounds):
            return None
        else:
            total += scale * reduce(lambda a, b: a * (b or 0), bounds, 1)
    return total


def _without_quotients(dim: Dim) -> DimLike:
    """Return something that is at most `dim`: `-4*(n//2)` is at least `-2*n`."""
    found: DimLike = dim
    for factors, scale in dim.terms:
        quotient = _quotient(factors)
        if quotient is not None and scale < 0 and scale % quotient[1] == 0:
            dividend, divisor = quotient
            found = found - Dim(((factors, scale),)) + dividend * (scale // divisor)
    return found


def _quotient(factors: tuple[Factor, ...]) -> tuple[DimLike, int] | None:
    """Return the dividend and the divisor of a quotient by a known number above 0."""
    atom = factors[0] if len(factors) == 1 else None
    if not isinstance(atom, Atom) or atom.kind != "floordiv":
        return None
    return (atom.lhs, atom.rhs) if isinstance(atom.rhs, int) and atom.rhs > 0 else None


def _factor_bound(factor: Factor) -> int | None:
    if isinstance(factor, _Name):
        return factor.minimum
    low, other = lower_bound(factor.lhs), lower_bound(factor.rhs)
    if factor.kind == "max":
        return max((b for b in (low, other) if b is not None), default=None)
    if factor.kind == "min":
        return None if low is None or other is None else min(low, other)
    if low is None or low < 0 or (other or 0) <= 0:
        return None
    return low // factor.rhs if factor.kind == "floordiv" and isinstance(factor.rhs, int) else 0


def _extremum(kind: str, lhs: DimLike, rhs: DimLike) -> DimLike:
    for small, large in ((lhs, rhs), (rhs, lhs)):
        gap = _gap(small, large)
        if gap is not None and gap >= 0:
            return large if kind == "max" else small
    for one, other in ((lhs, rhs), (rhs, lhs)):
        found = _absorbed(kind, one, other)
        if found is not None:
            return found
    return _atom(kind, lhs, rhs)


def _gap(small: DimLike, large: DimLike) -> int | None:
    """Return a bound of the difference of two dims, or, of quotients by the same number, of their dividends."""
    one, other = _as_quotient(small), _as_quotient(large)
    if one is not None and other is not None and one[1] == other[1]:
        return lower_bound(other[0] - one[0])
    return lower_bound(large - small)


def _as_quotient(dim: DimLike) -> tuple[DimLike, int] | None:
    terms = _terms(dim)
    return _quotient(terms[0][0]) if len(terms) == 1 and terms[0][1] == 1 else None


def _absorbed(kind: str, lhs: DimLike, rhs: DimLike) -> DimLike | None:
    """`max(max(a, b) + c, d)` is `max(a + c, d)` if `b + c` is surely not above d; likewise for `min`."""
    for factors, scale in _terms(lhs):
        inner = factors[0] if len(factors) == 1 and scale == 1 else None
        if not isinstance(inner, Atom) or inner.kind != kind:
            continue
        rest = lhs - Dim(((factors, 1),))
        for kept, lost in ((inner.lhs, inner.rhs), (inner.rhs, inner.lhs)):
            above = rhs - (lost + rest)
            gap = lower_bound(above if kind == "max" else -above)
            if gap is not None and gap >= 0:
                return _extremum(kind, kept + rest, rhs)
    return None


def dim_max(lhs: DimLike, rhs: DimLike) -> DimLike:
    """The larger of two dims, simplified where their order is known."""
    return _extremum("max", lhs, rhs)


def dim_min(lhs: DimLike, rhs: DimLike) -> DimLike:
    """The smaller of two dims, simplified where their order is known."""
    return _extremum("min", lhs, rhs)


def where_not_zero(dim: DimLike) -> DimLike:
    """Return what a dim is wherever it is not 0: `max(n - 19, 0)` is `n - 19` there, `(max(n - 19, 0) + 1)//2` is `(n - 18)//2`."""
    return _where_at_least(dim, 1)


def _where_at_least(dim: DimLike, least: int) -> DimLike:
    """Return what a dim is wherever it is at least some number: what a `max` has below that is no choice there."""
    (factors, scale), *others = _terms(dim) or (((), 0),)
    rest = _build(dict(others))
    one = len(factors) == 1 and scale == 1
    if not one or not isinstance(factors[0], Atom) or isinstance(rest, Dim):
        return dim
    atom, needed = factors[0], least - rest
    if atom.kind == "max":
        for kept, lost in ((atom.lhs, atom.rhs), (atom.rhs, atom.lhs)):
            if isinstance(lost, int) and lost < needed:
                return _where_at_least(kept, needed) + rest
    quotient = _quotient(factors)
    if quotient is None:
        return dim
    dividend, divisor = quotient
    return _divide(_where_at_least(dividend, needed * divisor), divisor) + rest


def symbols_of(*dims: DimLike) -> list[Dim]:
    """Return the symbols in `dims`, each once, in order of first appearance."""
    return list(dict.fromkeys(s for dim in dims if isinstance(dim, Dim) for s in _symbols(dim)))


def _symbols(dim: Dim) -> tuple[Dim, ...]:
    if dim._symbols is None:
        found: dict[Dim, None] = {}
        for factor in itertools.chain.from_iterable(factors for factors, _ in dim.terms):
            inner = (
                [Dim((((factor,), 1),))]
                if isinstance(factor, _Name)
                else symbols_of(factor.lhs, factor.rhs)
            )
            found.update(dict.fromkeys(inner))
        dim._symbols = tuple(found)
    return dim._symbols


def substitute(dim: DimLike, values: Mapping[Dim, DimLike]) -> DimLike:
    """Replace symbols by ints or other dims; symbols without a value stay."""
    if isinstance(dim, int):
        return dim
    parts: list[DimLike] = []
    for factors, scale in dim.terms:
        parts.append(reduce(lambda a, b: a * b, (_replace(f, values) for f in factors), scale))  # type: ignore[arg-type,return-value]
    return reduce(lambda a, b: a + b, parts)


def _replace(factor: Factor, values: Mapping[Dim, DimLike]) -> DimLike:
    if isinstance(factor, _Name):
        symbol = Dim((((factor,), 1),))
        return values.get(symbol, symbol)
    lhs, rhs = substitute(factor.lhs, values), substitute(factor.rhs, values)
    if factor.kind == "floordiv":
        return lhs // rhs
    if factor.kind == "mod":
        return lhs % rhs
    return _extremum(factor.kind, lhs, rhs)


def evaluate(dim: DimLike, values: Mapping[Dim, int]) -> int:
    """Return `dim` as an int; every symbol in it must have a value."""
    result = substitute(dim, values)
    if not isinstance(result, int):
        raise KeyError(f"no value for {', '.join(map(str, symbols_of(result)))}")
    return result
