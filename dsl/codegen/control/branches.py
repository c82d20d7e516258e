"""Emits `cond`.

Every array result has one home, a slot that both sides leave it in: the memory of an operand that a side passes on or updates
in place, if that operand dies there, else a slot of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsl.codegen.control.passing import Memory, home_of, is_integer, lend, settled
from dsl.codegen.control.records import rare_side
from dsl.codegen.llvm import Value, Variable, read
from dsl.codegen.memory import Placed, Slot, nbytes
from dsl.codegen.ranges import Ranges
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.facts import is_array

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_cond"]


def emit_cond(region: Region, node: ir.Node) -> None:
    fn = region.fn
    operands = node.inputs[1:]
    given = [lend(region, v) for v in operands]
    scalars = {v: region.scalar_variables(v.dtype) for v in node.outputs if not v.shape}
    homes = _homes(region, node, operands)
    sizes = _varying(region, node)
    predicate = region.register(node.inputs[0])
    assert isinstance(predicate, Value)
    before = Memory(region)

    def side(graph: ir.Graph) -> Any:
        def emit() -> None:
            before.restore()
            inner = _enter(region, graph, given)
            _tell(region, inner, graph.params, operands)
            inner.ranges.facts = _facts_if(region, node.inputs[0], graph is node.regions[0])
            for k, value in enumerate(node.outputs):
                home = homes.get(value)
                if home is not None:
                    inner.want(graph.results[k], home)
            inner.run()
            _leave(region, inner, node, graph, homes, scalars, sizes)

        return emit

    then, otherwise = map(side, node.regions)
    fn.if_else(predicate, then, otherwise, rare_side(region.loop, node))
    before.restore()
    for value in operands:
        if is_array(value) and region.dies(value):
            region.drop(value)
    for value, variables in scalars.items():
        region.registers[value] = read(variables)
    for value, home in homes.items():
        _bind_result(region, value, home, sizes)


def _enter(region: Region, graph: ir.Graph, given: list[Any]) -> Region:
    """Start a branch: an operand that dies with it may be overwritten by the last param that stands for it."""
    inner = region.inner(graph)
    operands = _operands(region)
    for param, value in zip(graph.params, given, strict=True):
        if not isinstance(value, Placed):
            inner.registers[param] = value
            continue
        inner.bind_symbols(param.shape, value.array.dims)
        inner.placed[param] = value
    for param, value in zip(graph.params, given, strict=True):
        if isinstance(value, Placed):
            outer = {v for v in value.slot.users if v in operands and region.dies(v)}
            if value.slot.users and value.slot.users <= outer:
                value.slot.users = {param}
            else:
                value.slot.users.add(param)
    return inner


def _operands(region: Region) -> set[ir.Value]:
    """The values that the current statement reads."""
    return {v for v, k in region.last.items() if k == region.now}


def _tell(
    region: Region, inner: Region, params: Sequence[ir.Value], operands: Sequence[ir.Value]
) -> None:
    """Let a region know what is known about the integers it is given."""
    inner.ranges = Ranges(region.ranges)
    for param, operand in zip(params, operands, strict=True):
        if is_integer(operand):
            inner.ranges.forms[param] = region.ranges.form(operand)


def _facts_if(region: Region, predicate: ir.Value, holds: bool) -> Any:
    """The facts that hold on one side of a branch."""
    side = Ranges(region.ranges)
    side.forms = region.ranges.forms
    side.assume_condition(predicate, holds)
    return side.facts


def _homes(region: Region, node: ir.Node, operands: tuple[ir.Value, ...]) -> dict[ir.Value, Slot]:
    """Choose the slot in which each array result is left."""
    homes: dict[ir.Value, Slot] = {}
    for k, value in enumerate(node.outputs):
        if not is_array(value):
            continue
        slot = None
        for graph in node.regions:
            place = home_of(graph, graph.results[k])
            if place is None:
                continue
            operand = operands[place]
            placed = region.placed.get(operand)
            if (
                placed is not None and placed.contiguous and _fits(placed.slot, operand, value)
                and region.may_overwrite(operand) and placed.slot not in homes.values()
            ):  # fmt: skip
                slot = placed.slot
                break
        homes[value] = slot or _fresh(region, value)
    return homes


def _fits(slot: Slot, operand: ir.Value, value: ir.Value) -> bool:
    """Tell whether a result may be where an operand is: they are alike, or have rows that are alike in memory that grows."""
    if operand.type == value.type:
        return True
    alike = operand.dtype == value.dtype and operand.shape[1:] == value.shape[1:]
    return slot.kind == "dynamic" and alike and len(operand.shape) == len(value.shape)


def _fresh(region: Region, value: ir.Value) -> Slot:
    size = nbytes(value.shape, value.dtype.itemsize)
    try:
        known = set(symbols_of(size)) <= set(region.symbols)
    except TypeError:
        known = False
    if known or isinstance(size, int):
        return region.program.allocate(size, region, f"result of {value.node.op.name}")
    return region.program.dynamic(1, f"result of {value.node.op.name}")


def _varying(region: Region, node: ir.Node) -> dict[tuple[ir.Value, int], Variable]:
    """Variables for the dims of results that are known only when a side has run."""
    made: dict[tuple[ir.Value, int], Variable] = {}
    for value in node.outputs:
        if is_array(value):
            for axis, dim in enumerate(value.shape):
                if isinstance(dim, Dim) and not set(symbols_of(dim)) <= set(region.symbols):
                    made[value, axis] = region.fn.variable("i64")
    return made


def _leave(
    outer: Region, inner: Region, node: ir.Node, graph: ir.Graph, homes: dict[ir.Value, Slot],
    scalars: dict[ir.Value, tuple[Variable, ...]], sizes: dict[tuple[ir.Value, int], Variable],
) -> None:  # fmt: skip
    """Put a side's results where the code after it expects them."""
    results = dict(zip(node.outputs, graph.results, strict=True))
    outer.assign(scalars, {v: inner.register(results[v]) for v in scalars})
    moves = []
    for (
        home
    ) in homes.values():  # what is saved on the way must not go to where something else belongs
        inner.program.take(home)
    for value, home in homes.items():
        result = results[value]
        source = settled(inner, result)
        for (owner, axis), variable in sizes.items():
            if owner is value:
                variable.set(inner.dim(result.shape[axis]))
        if source.slot is home and source.contiguous:
            continue
        if home.kind == "dynamic":
            inner.program.ensure(home, inner.dim(nbytes(result.shape, result.dtype.itemsize)))
        moves.append((source, inner.in_slot(home, result), result))
    inner.copy_together(moves)


def _bind_result(
    region: Region, value: ir.Value, home: Slot, sizes: dict[tuple[ir.Value, int], Variable]
) -> None:
    for (owner, axis), variable in sizes.items():
        dim = value.shape[axis] if owner is value else None
        if owner is value and isinstance(dim, Dim) and symbols_of(dim) == [dim]:
            region.symbols[dim] = variable.get()
    region.program.take(home)
    region.bind(value, region.in_slot(home, value))
