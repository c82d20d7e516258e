"""Emits a planned kernel: finds memory for what it computes, and cares for spaces that are or may be empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsl.codegen.accesses import reads_only_at, start_value
from dsl.codegen.arrays import Array, Scalar, store_scalar
from dsl.codegen.evaluate import literal
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.llvm import Operand, Value, Variable, read
from dsl.codegen.memory import Placed
from dsl.codegen.plan import Kernel, Root
from dsl.codegen.report import ErrorSite
from dsl.errors import InternalError
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.types import Shape

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_kernel"]


def emit_kernel(region: Region, kernel: Kernel) -> None:
    fn = region.fn
    empty = [k for k, d in enumerate(kernel.space) if isinstance(d, int) and d == 0]
    stores: dict[ir.Value, Array] = {}
    for root in kernel.roots:
        if not root.value.shape or not is_external(region, root.value, kernel):
            continue
        placed = reuse(region, kernel, root) or region.new_place(root.value)
        region.bind(root.value, placed)
        stores[root.value] = placed.array
    check_empty(region, kernel)
    if empty:
        empty_kernel(region, kernel, stores)
        return
    symbolic = [d for d in kernel.space if not isinstance(d, int)]
    if symbolic and may_be_empty(region, kernel):
        guarded_kernel(region, kernel, stores, symbolic)
        return
    KernelEmitter(region, kernel, stores).emit()
    _ = fn


def is_external(region: Region, value: ir.Value, kernel: Kernel) -> bool:
    return (
        value in region.graph.results
        or region.last.get(value, -1) >= len(region.readers)
        or any(reader is not kernel for reader in region.readers.get(value, ()))
    )


def may_be_empty(region: Region, kernel: Kernel) -> bool:
    return any((lower_bound(d) or 0) < 1 for d in kernel.space)


def guarded_kernel(
    region: Region, kernel: Kernel, stores: dict[ir.Value, Array], symbolic: Sequence[DimLike]
) -> None:
    """A kernel whose space may turn out empty: its reductions then give what they start from."""
    fn = region.fn
    outputs: dict[ir.Value, tuple[Variable, ...]] = {}
    for root in kernel.roots:
        if not root.value.shape:
            outputs[root.value] = region.scalar_variables(root.value.dtype)
    total: Operand = 1
    for dim in symbolic:
        total = fn.mul(total, region.dim(dim))

    def full() -> None:
        KernelEmitter(region, kernel, stores).emit()
        region.assign(outputs, {v: region.registers[v] for v in outputs})

    def nothing() -> None:
        empty_kernel(region, kernel, stores)
        region.assign(outputs, {v: region.registers[v] for v in outputs})

    saved = dict(region.registers)
    fn.if_else(fn.compare("ne", total, 0), full, nothing)
    region.registers = saved
    for value, variables in outputs.items():
        region.registers[value] = read(variables)


def check_empty(region: Region, kernel: Kernel) -> None:
    """`max` and `min` of nothing are errors."""
    for root in kernel.roots:
        if not root.reduce or root.node.op.name not in ("max", "min"):
            continue
        size: Operand = 1
        for k in root.node.attrs["axes"]:
            size = region.fn.mul(size, region.dim(root.node.inputs[0].shape[k]))
        if isinstance(size, int) and size > 0:
            continue
        bad = Value("true", "i1") if isinstance(size, int) else region.fn.compare("eq", size, 0)
        region.program.fail(region.fn, bad, ErrorSite("empty", root.node))


def empty_kernel(region: Region, kernel: Kernel, stores: dict[ir.Value, Array]) -> None:
    """Nothing to sweep: reductions give what they start from, and what depends on them is computed from that."""
    for root in kernel.roots:
        if not root.reduce:
            if kernel_size(region, root.value) == 0:
                continue
            raise InternalError("a kernel without points computes something")
        dtype = root.value.dtype
        start = literal(start_value(root.node.op.name, dtype), dtype)
        if not root.value.shape:
            region.registers[root.value] = start
        elif root.value in stores:
            fill(region, stores[root.value], root.value.shape, start)


def kernel_size(region: Region, value: ir.Value) -> Any:
    total: DimLike = 1
    for d in value.shape:
        total = total * d
    return total if isinstance(total, int) else 0


def fill(region: Region, target: Array, shape: Shape, scalar: Scalar) -> None:
    def body(index: tuple[Operand, ...]) -> None:
        store_scalar(region.fn, target.dtype, scalar, target.address(region.fn, index))

    region.loops(shape, body)


def reuse(region: Region, kernel: Kernel, root: Root) -> Placed | None:
    """Return the memory of an operand that dies here and is read just where the root is written."""
    if root.reduce or region.vacant_home(root.value) is not None:
        return None
    nodes = kernel.space
    if root.value.shape != nodes or root.stage != len(kernel.stages) - 1:
        return None
    home = region.wanted.get(root.value)
    for value in sorted(
        kernel.reads, key=lambda v: v not in region.placed or region.placed[v].slot is not home
    ):
        placed = region.placed.get(value)
        if (
            placed is None
            or not region.may_overwrite(value)
            or (not placed.contiguous and placed.slot.kind != "param")
        ):
            continue
        if value.shape != root.value.shape or value.dtype.itemsize != root.value.dtype.itemsize:
            continue
        if not placed.contiguous and value.dtype != root.value.dtype:
            continue
        bases = {v for v, p in region.placed.items() if p.slot is placed.slot}
        if reads_only_at(kernel, bases, root):
            if placed.contiguous:
                found = region.in_slot(placed.slot, root.value)
            else:
                found = Placed(placed.slot, placed.array, False)
            region.program.report.in_place.append((root.node.op.name, root.node.loc))
            return found
    return None
