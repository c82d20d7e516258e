"""Emits scatters: every element of an array goes to a place that index arrays name.

Where no two elements can go to one place, each thread stores one. Sums and integer extrema are made by atomic instructions.
For the other modes and dtypes a thread goes through the indices in order, for one element of the part that an index stands
for. Of several assignments to one place the last holds: first each place learns who that is, then they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.steps import Launch
from dsl.codegen.elements import Elements, gathered_index
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Affine, Expression, Pool, Var, identity_index
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import I64, TensorType, is_float, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import _Region

__all__ = ["emit_scatter"]

_REDUCTION = {"add": "sum", "multiply": "prod", "min": "min", "max": "max"}


def emit_scatter(region: _Region, node: ir.Node) -> tuple[list[Launch], tuple[ir.Value, ...]]:
    """Return the launches of a scatter, and the memory they need meanwhile."""
    x, _, *indices = node.inputs
    mode, rank = node.attrs["mode"], max((len(i.shape) for i in indices), default=0)
    if rank == 0:
        return [_Scatter(region, node).emit("alone")], ()
    if mode == "update":
        winners = StandIn(None, TensorType(I64, x.shape))
        first = _Scatter(region, node, winners)
        return [first.clear(), first.emit("vote"), _Scatter(region, node, winners).emit("win")], (
            winners,
        )
    if _is_atomic(mode, x.dtype):
        return [_Scatter(region, node).emit("atomic")], ()
    return [_Scatter(region, node).emit("serial")], ()


def _is_atomic(mode: str, dtype: np.dtype) -> bool:
    whole = dtype.kind in "iu" and dtype.itemsize in (4, 8)
    if mode == "add":
        return whole or (is_float(dtype) and dtype.itemsize in (4, 8))
    return whole and mode in ("min", "max")


class _Scatter:
    def __init__(self, region: _Region, node: ir.Node, winners: ir.Value | None = None) -> None:
        self.region, self.node, self.winners = region, node, winners
        self.x, self.v, *self.indices = node.inputs
        self.rank = max((len(i.shape) for i in self.indices), default=0)

    def clear(self) -> Launch:
        """Emit the kernel after which nobody has won a place."""
        assert self.winners is not None
        source = self.region.lowering.source("clear")
        place, fn = source.place(self.winners), source.fn
        total = size_of(self.winners.shape)
        at = fn.add(fn.mul(source.index("ctaid.x"), BLOCK), source.index("tid.x"))
        with fn.if_(fn.compare("slt", at, source.dim(total))):
            flat = Array(I64, place.pointer, (0,), (1,))
            fn.store(Value("-1", "i64"), flat.address(fn, (at,)), align=8)
        source.finish(BLOCK)
        geometry = Geometry((ceil_div(total, BLOCK), 1), BLOCK)
        return self.region.lowering.done(source, geometry, "clear")

    def emit(self, how: str) -> Launch:
        source = self.source = self.region.lowering.source("scatter")
        fn = self.fn = source.fn
        (value,) = self.node.outputs
        self.target = source.place(value)
        if self.winners is not None:
            self.places = source.place(self.winners)
        self.variables = tuple(Var(d, f"i{k}") for k, d in enumerate(self.v.shape))
        index = identity_index(self.variables)
        elements = Elements(Pool(), self.region.in_memory)
        self.index = gathered_index(elements, self.node, self.x, self.indices, index)
        self.expression = elements.at(self.v, index if self.v.shape else ())
        self.bad = fn.variable("i1")
        self.bad.set(Value("false", "i1"))
        serial = how == "serial"
        space = self.v.shape[self.rank :] if serial else self.v.shape
        total = size_of(space)
        at = fn.as_value(
            fn.add(fn.mul(source.index("ctaid.x"), BLOCK), source.index("tid.x")), "i64"
        )
        with fn.if_(fn.compare("slt", at, source.dim(total))):
            points = _unflatten(source, space, at)
            if serial:
                self._each(self.v.shape[: self.rank], points, ())
            else:
                self._place(how, points, at)
        with fn.if_(self.bad.get(), unlikely=True):
            fn.store(Value("1", "i64"), source.flag())
        source.finish(BLOCK)
        geometry = Geometry((ceil_div(total, BLOCK), 1), BLOCK)
        return self.region.lowering.done(
            source, geometry, f"scatter {self.node.attrs['mode']} {how}"
        )

    def _each(
        self, dims: Sequence[DimLike], rest: Sequence[Operand], points: tuple[Operand, ...]
    ) -> None:
        """Go through the indices in order."""
        if len(points) == len(dims):
            self._place("alone", [*points, *rest], 0)
            return
        with self.fn.loop(0, self.source.dim(dims[len(points)])) as at:
            self._each(dims, rest, (*points, at))

    def _place(self, how: str, points: Sequence[Operand], number: Operand) -> None:
        fn = self.fn
        evaluator = Evaluator(
            fn, self.source, dict(zip(self.variables, points, strict=True)), [{}], self._note
        )
        if how == "vote":
            address = evaluator.address(self.places, self.index)
            fn.emit(
                f"atomicrmw max ptr {address.text}, i64 {fn.as_value(number, 'i64').text} monotonic"
            )
            return
        address = evaluator.address(self.target, self.index)
        if how == "win":
            winner = fn.load("i64", evaluator.address(self.places, self.index), align=8)
            value = evaluator.value(self.expression)
            with fn.if_(fn.compare("eq", winner, number)):
                store_scalar(fn, self.x.dtype, value, address)
            return
        value = evaluator.value(self.expression)
        if how == "atomic":
            self._atomic(address, value)
            return
        mode = self.node.attrs["mode"]
        if mode != "update":
            old = load_scalar(fn, self.x.dtype, address)
            value = elementwise.combine(
                fn, _REDUCTION[mode], self.x.dtype, old, value, reassociate=False
            )
        store_scalar(fn, self.x.dtype, value, address)

    def _atomic(self, address: Value, value: Scalar) -> None:
        mode, dtype = self.node.attrs["mode"], self.x.dtype
        assert isinstance(value, Value)
        if mode == "add":
            op = "fadd" if is_float(dtype) else "add"
        else:
            op = ("u" if dtype.kind == "u" else "") + mode
        self.fn.emit(f"atomicrmw {op} ptr {address.text}, {value.type} {value.text} monotonic")

    def _note(self, bad: Value, e: Expression, number: Value) -> None:
        self.bad.set(self.fn.either(self.bad.get(), bad))


def _unflatten(source: Source, space: Sequence[DimLike], at: Operand) -> list[Operand]:
    """Return the point of a space that a thread's number stands for."""
    fn, points = source.fn, []
    for k, extent in enumerate(reversed(space)):
        if k == len(space) - 1:
            points.append(at)
            break
        size = source.dim(extent)
        points.append(fn.binary("urem", at, size))
        at = fn.binary("udiv", at, size)
    return list(reversed(points))


_: Any = Affine
