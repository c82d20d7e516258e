"""Scalar expressions over loop variables: what a kernel computes for one point of its iteration space.

An `Affine` is an index: whole multiples of loop variables, plus a size, plus whole multiples of expressions that are
known only when the program runs (the start of a dynamic slice, an element of an index array). An `Expression` is a node
of a DAG: a load from a materialised value at affine indices, a register, a constant, an index used as a number, or an
op applied to other expressions. Expressions of one kernel are interned, so equal means identical.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.ir.dims import DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64

__all__ = ["Affine", "Expression", "Pool", "Var", "given", "identity_index", "walk"]


class Var:
    """A loop variable, from 0 to `extent`."""

    __slots__ = ("extent", "name")

    def __init__(self, extent: DimLike, name: str = "i") -> None:
        self.extent, self.name = extent, name

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Affine:
    """`sum(scale * var) + offset + sum(scale * expression)`."""

    terms: tuple[tuple[Var, int], ...] = ()
    offset: DimLike = 0
    extra: tuple[tuple[Expression, int], ...] = ()

    def scaled(self, factor: int) -> Affine:
        if factor == 1:
            return self
        if factor == 0:
            return Affine()
        return Affine(
            tuple((var, scale * factor) for var, scale in self.terms),
            self.offset * factor,
            tuple((item, scale * factor) for item, scale in self.extra),
        )

    def plus(self, other: Affine | DimLike) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.terms, self.offset + other, self.extra)
        return Affine(
            _merged(self.terms + other.terms),
            self.offset + other.offset,
            _merged(self.extra + other.extra),
        )

    @property
    def vars(self) -> frozenset[Var]:
        found = {var for var, _ in self.terms}
        for item, _ in self.extra:
            found |= item.vars
        return frozenset(found)


def _merged(terms: tuple[tuple[Any, int], ...]) -> tuple[tuple[Any, int], ...]:
    sums: dict[Any, int] = {}
    for item, scale in terms:
        sums[item] = sums.get(item, 0) + scale
    return tuple((item, scale) for item, scale in sums.items() if scale)


def identity_index(variables: Iterable[Var]) -> tuple[Affine, ...]:
    """Return the index that is the loop variables themselves."""
    return tuple(Affine(((var, 1),)) for var in variables)


@dataclass(frozen=True, eq=False)
class Expression:
    """A node of the DAG; `kind` is load, register, const, index, op or select."""

    kind: str
    dtype: np.dtype
    args: tuple[Expression, ...] = ()
    value: Value | None = None  # what a load reads, what a register holds
    index: tuple[Affine, ...] = ()
    node: Node | None = None  # the op applied, and which of its outputs
    output: int = 0
    constant: Any = None
    vars: frozenset[Var] = field(default_factory=frozenset)


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all that it is computed from, each once."""
    pending, seen = [expression], set()
    while pending:
        e = pending.pop()
        if e in seen:
            continue
        seen.add(e)
        yield e
        pending.extend(e.args)
        for affine in e.index:
            pending.extend(item for item, _ in affine.extra)


def given(number: Any, source: Value | None = None, wraps: bool = False) -> Affine:
    """A number in a register as an index; `source` is what it was made from, `wraps` whether it may count from the end."""
    made = Expression("given", I64, value=source, output=int(wraps), constant=number)
    return Affine((), 0, ((made, 1),))


class Pool:
    """Makes expressions, each once."""

    def __init__(self) -> None:
        self._made: dict[Any, Expression] = {}

    def _intern(self, key: Any, make: Any) -> Expression:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found

    def load(self, value: Value, index: tuple[Affine, ...]) -> Expression:
        """An element of a materialised array."""
        seen = frozenset().union(*(i.vars for i in index)) if index else frozenset()
        return self._intern(
            ("load", value, index),
            lambda: Expression("load", value.dtype, value=value, index=index, vars=seen),
        )

    def register(self, value: Value) -> Expression:
        """A rank-0 value."""
        return self._intern(
            ("register", value), lambda: Expression("register", value.dtype, value=value)
        )

    def const(self, number: Any) -> Expression:
        """A constant; compared by its bits."""
        array = np.asarray(number)
        return self._intern(
            ("const", array.dtype, array.tobytes()),
            lambda: Expression("const", array.dtype, constant=array[()]),
        )

    def index(self, affine: Affine) -> Expression:
        """An index as an int64."""
        return self._intern(
            ("index", affine),
            lambda: Expression("index", I64, index=(affine,), vars=affine.vars),
        )

    def apply(self, node: Node, output: int, args: tuple[Expression, ...]) -> Expression:
        """An op's output for these elements of its operands."""
        seen = frozenset().union(*(a.vars for a in args)) if args else frozenset()
        key = ("op", node.op.name, output, args, _attrs_key(node), node.types[output])
        dtype = node.outputs[output].dtype
        return self._intern(
            key, lambda: Expression("op", dtype, args, node=node, output=output, vars=seen)
        )

    def inside(self, index: Affine, low: DimLike, high: DimLike) -> Expression:
        """Whether low <= index < high."""
        return self._intern(
            ("inside", index, low, high),
            lambda: Expression(
                "inside", np.dtype(bool), index=(index,), constant=(low, high), vars=index.vars
            ),
        )

    def select(self, condition: Expression, yes: Expression, no: Expression) -> Expression:
        """One of two, both of which are computed."""
        seen = condition.vars | yes.vars | no.vars
        return self._intern(
            ("select", condition, yes, no),
            lambda: Expression("select", yes.dtype, (condition, yes, no), vars=seen),
        )

    def guarded(self, index: Affine, inside: Expression) -> Affine:
        """An index that is replaced by 0 where `inside` is false, so that a load there is harmless."""
        made = self._intern(
            ("guarded", index, inside),
            lambda: Expression(
                "guarded", I64, (inside,), index=(index,), vars=index.vars | inside.vars
            ),
        )
        return Affine((), 0, ((made, 1),))

    def checked(self, index: Expression, size: DimLike, node: Node, axis: int) -> Expression:
        """An index array's element made a proper index: counted from the end if negative, 0 and an error if outside."""
        return self._intern(
            ("checked", index, size, node, axis),
            lambda: Expression(
                "checked", I64, (index,), node=node, output=axis, constant=size, vars=index.vars
            ),
        )


def _attrs_key(node: Node) -> Any:
    return tuple(sorted((name, repr(value)) for name, value in node.attrs.items()))
