"""Emits scalar expressions: loads, registers, constants and ops, each once per loop level.

An `Evaluator` knows where the loop variables stand and which expressions have been computed in the loops around, so
that what does not depend on an inner loop is computed outside it. Where values live is the `Host`'s business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.arrays import Array, Scalar, load_scalar, register_type
from dsl.codegen.expressions import Affine, Expression, Var
from dsl.codegen.llvm import Function, Operand, Value, float_constant
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import BFLOAT16, I64

__all__ = ["Evaluator", "Host", "literal", "select_scalar", "unchecked", "wrap_index"]


class Host(Protocol):
    """What an evaluator asks the program about."""

    def register(self, value: ir.Value) -> Scalar: ...

    def array(self, value: ir.Value) -> Array: ...

    def dim(self, dim: DimLike) -> Operand: ...

    def function_of(self, node: ir.Node) -> str:
        """Return the name by which `elementwise` has what computes a node."""

    @property
    def checks(self) -> bool: ...


def literal(number: Any, dtype: np.dtype) -> Scalar:
    """Return a constant of a dtype."""
    array = np.asarray(number, dtype)
    if dtype.kind == "c":
        part = register_type(dtype)
        return float_constant(float(array.real), part), float_constant(float(array.imag), part)
    if dtype == BFLOAT16 or dtype.kind in "iu":
        return Value(
            str(int(array.view(np.uint16) if dtype == BFLOAT16 else array)), register_type(dtype)
        )
    if dtype.kind == "b":
        return Value("true" if array else "false", "i1")
    if np.isnan(array):
        return _nan(array, dtype)
    return float_constant(float(array), register_type(dtype))


def _nan(array: np.ndarray, dtype: np.dtype) -> Value:
    """A NaN with its payload."""
    if dtype.itemsize == 2:
        return Value(f"0xH{int(array.view(np.uint16)):04X}", "half")
    wide = array.astype(np.float64)
    return Value(f"0x{int(wide.view(np.uint64)):016X}", register_type(dtype))


def select_scalar(fn: Function, condition: Value, a: Scalar, b: Scalar) -> Scalar:
    """Choose between two scalars of one dtype."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return fn.select(condition, a[0], b[0]), fn.select(condition, a[1], b[1])
    assert isinstance(a, Value)
    assert isinstance(b, Value)
    return fn.select(condition, a, b)


def wrap_index(fn: Function, index: Value, dtype: np.dtype, size: Operand) -> tuple[Value, Value]:
    """Return an index counted from the end if negative, and whether it is outside."""
    wide = fn.convert("sext" if dtype.kind == "i" else "zext", index, "i64")
    if dtype.kind == "i":
        wide = fn.select(fn.compare("slt", wide, 0), fn.binary("add", wide, size), wide)
    return wide, fn.compare("uge", wide, size)


def unchecked(bad: Value, e: Expression, number: Value) -> None:
    """For an evaluator whose indices have been checked before."""


@dataclass
class Evaluator:
    """Emits expressions into `fn` with the loop variables at `points`."""

    fn: Function
    host: Host
    points: dict[Var, Operand]
    scopes: list[dict[Any, Any]]
    on_bad: Callable[[Value, Expression, Value], None]  # condition, expression, offending number
    metadata: str = ""
    fetch: Callable[[Expression], Scalar | None] = lambda e: (
        None
    )  # values this kernel itself computes
    shifts: dict[Var, int] = field(
        default_factory=dict
    )  # how much further than its point a variable is

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is computed inside is forgotten afterwards: the code there does not dominate what follows."""
        self.scopes.append({})
        yield
        self.scopes.pop()

    def known(self, key: Any) -> Any:
        for scope in self.scopes:
            if key in scope:
                return scope[key]
        return None

    def value(self, e: Expression) -> Scalar:
        """Return the value of an expression at the current points."""
        found = self.known(e)
        if found is None:
            found = self._emit(e)
            self.scopes[-1][e] = found
        return found  # type: ignore[no-any-return]

    def compute(self, e: Expression) -> None:
        """Emit an expression for what happens on the way."""
        self.value(e)

    def _emit(self, e: Expression) -> Scalar:
        emit: Callable[[Expression], Scalar] = getattr(self, f"_{e.kind}")
        return emit(e)

    def affine(self, a: Affine) -> Operand:
        """Return an index as a number."""
        return self.fn.add(self._unshifted(a), self._shift(a))

    def _shift(self, a: Affine) -> int:
        return sum(scale * self.shifts[var] for var, scale in a.terms if var in self.shifts)

    def _unshifted(self, a: Affine) -> Operand:
        fn, total = self.fn, self.host.dim(a.offset)
        for var, scale in a.terms:
            total = fn.add(total, fn.mul(self.points[var], scale))
        self.fn.module.gathers |= bool(a.extra)
        for item, scale in a.extra:
            number = self.value(item)
            assert isinstance(number, Value)
            total = fn.add(total, fn.mul(number, scale))
        return total

    # -- by kind ---------------------------------------------------------------------------------------------------

    def _const(self, e: Expression) -> Scalar:
        return literal(e.constant, e.dtype)

    def _register(self, e: Expression) -> Scalar:
        assert e.value is not None
        return self.host.register(e.value)

    def _load(self, e: Expression) -> Scalar:
        found = self.fetch(e)
        if found is not None:
            return found
        assert e.value is not None
        array = self.host.array(e.value)
        return load_scalar(self.fn, e.dtype, self.address(array, e.index), self.metadata)

    def address(self, array: Array, index: tuple[Affine, ...]) -> Value:
        """Return the address of an element: constant parts are added last, so that neighbours share the rest."""
        fn = self.fn
        moving: Operand = 0
        fixed: Operand = 0
        for a, stride in zip(index, array.strides, strict=True):
            if isinstance(a.offset, int) and isinstance(stride, int):
                fixed = fn.add(fixed, (a.offset + self._shift(a)) * stride)
                index_here = self._unshifted(Affine(a.terms, 0, a.extra))
            else:
                index_here = self.affine(a)
            moving = fn.add(moving, fn.mul(index_here, stride))
        return Array(array.dtype, array.pointer, (0,), (1,)).address(fn, (fn.add(moving, fixed),))

    def _given(self, e: Expression) -> Scalar:
        found: Value = e.constant
        return found

    def _index(self, e: Expression) -> Scalar:
        return self.fn.as_value(self.affine(e.index[0]), "i64")

    def _inside(self, e: Expression) -> Scalar:
        low, high = e.constant
        place = self.fn.as_value(self.affine(e.index[0]), "i64")
        if low == 0:
            return self.fn.compare("ult", place, self.host.dim(high))
        above = self.fn.compare("sge", place, self.host.dim(low))
        return self.fn.both(above, self.fn.compare("slt", place, self.host.dim(high)))

    def _guarded(self, e: Expression) -> Scalar:
        inside = self.value(e.args[0])
        assert isinstance(inside, Value)
        return self.fn.select(inside, self.affine(e.index[0]), 0)

    def _select(self, e: Expression) -> Scalar:
        condition, yes, no = (self.value(a) for a in e.args)
        assert isinstance(condition, Value)
        return select_scalar(self.fn, condition, yes, no)

    def _checked(self, e: Expression) -> Scalar:
        given = self.value(e.args[0])
        assert isinstance(given, Value)
        wrapped, bad = wrap_index(self.fn, given, e.args[0].dtype, self.host.dim(e.constant))
        if not self.host.checks:
            return wrapped
        self.on_bad(bad, e, given)
        return self.fn.select(bad, 0, wrapped)

    def _op(self, e: Expression) -> Scalar:
        node = e.node
        assert node is not None
        key = (node.op.name, e.args, node.types, "all")
        found = self.known(key)
        if found is None:
            found = self._apply(e, node)
            self.scopes[-1][key] = found
        return found[e.output]  # type: ignore[no-any-return]

    def _apply(self, e: Expression, node: ir.Node) -> tuple[Scalar, ...]:
        args = [self.value(a) for a in e.args]
        outputs = [v.dtype for v in node.outputs]
        if node.op.name == "iota":
            attrs = {"dtype": outputs[0]}
            return elementwise.emit(self.fn, "cast", attrs, [I64], outputs, args, self._ignore)
        inputs = [a.dtype for a in e.args]

        def check(bad: Value, kind: str, number: Value = Value("0", "i64")) -> None:  # noqa: B008
            self.on_bad(bad, e, number)

        return elementwise.emit(
            self.fn, self.host.function_of(node), node.attrs, inputs, outputs, args, check,
            scalar=not e.vars,
        )  # fmt: skip

    @staticmethod
    def _ignore(bad: Value, kind: str) -> None:
        return None
