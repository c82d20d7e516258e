"""Lowers a structured graph to the steps of a program on a GPU, and emits its kernels into one module.

The plan is the CPU's (`dsl.codegen.plan`): the same kernels, updates, library calls and control flow, in the same order. A
kernel becomes a launch, or two; what has no form for the device yet is called on the host, and noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from dsl.codegen import elementwise
from dsl.codegen.accesses import reads_only_at, walk
from dsl.codegen.cuda import library
from dsl.codegen.cuda.frame import Frame, Wrong
from dsl.codegen.cuda.grid import Geometry, GridEmitter, needs_memory
from dsl.codegen.cuda.modes import Modes
from dsl.codegen.cuda.scalars import ScalarKernel, is_scalar_control
from dsl.codegen.cuda.scatter import emit_scatter
from dsl.codegen.cuda.source import Layouts, Source, new_module
from dsl.codegen.cuda.steps import (
    Alias,
    Body,
    Check,
    Cond,
    HostCall,
    HostScalar,
    Launch,
    Loop,
    Made,
    Spread,
    Step,
    Update,
)  # fmt: skip
from dsl.codegen.elements import Elements, splat
from dsl.codegen.expressions import Affine, Expression, Pool, Var, identity_index
from dsl.codegen.llvm import Module
from dsl.codegen.plan import Kernel, Root, Single, Stage, Statement, plan, reads_of
from dsl.codegen.region import is_expensive, is_native
from dsl.codegen.standins import StandIn
from dsl.ir.dims import Dim, DimLike, lower_bound, symbols_of
from dsl.ir.facts import is_array
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.types import Shape, TensorType, size_of

__all__ = ["Lowering", "is_array", "is_on_device"]


def is_on_device(node: Node) -> bool:
    """Tell whether a node can be part of a kernel on a GPU."""
    tensors = [v.type for v in node.inputs if isinstance(v.type, TensorType)]
    return is_native(node) and not elementwise.needs_cpu(node.op.name, [t.dtype for t in tensors])


class Lowering:
    """Lowers one graph and its regions."""

    def __init__(self, graph: Graph, on_host: Sequence[bool], strided: Sequence[bool]) -> None:
        self.module: Module = new_module(graph.name)
        self.modes = Modes(graph, on_host, library.supported)
        self.strided = {p for p, s in zip(graph.params, strided, strict=True) if s}
        self.layouts = Layouts(self.modes, self.strided.__contains__)
        self.kernels: dict[str, tuple[Geometry, str]] = {}  # by name, with what it does
        self.fallbacks: list[tuple[str, Any]] = []
        # Arrays with their axes in another order, not copied: the array, and the order.
        self.turned: dict[Value, tuple[Value, tuple[int, ...]]] = {}
        self.body = _Region(self, graph).lower()

    def source(self, stem: str) -> Source:
        return Source(self.module, f"{stem}_{len(self.kernels)}", self.layouts)

    def done(self, source: Source, geometry: Geometry, what: str) -> Launch:
        """Return the launch of a kernel that is finished."""
        self.kernels[source.name] = geometry, what
        return Launch(source.name, tuple(source.arguments), geometry)


class _Region:
    """Lowers one graph to a body."""

    def __init__(self, lowering: Lowering, graph: Graph) -> None:
        self.lowering, self.graph = lowering, graph
        self.body = Body(graph.params, graph.results)
        for node in graph.nodes:
            operands = node.inputs[len(node.inputs) - len(node.dims) :]
            for symbol, operand in zip(node.dims, operands, strict=True):
                self.body.sources.setdefault(symbol, operand)
        bare = (d for p in graph.params if is_array(p) for d in p.shape if isinstance(d, Dim))
        self.body.own = frozenset([*(d for d in bare if symbols_of(d) == [d]), *self.body.sources])
        self.last: dict[Value, int] = {}
        self.steps: list[Step] = []
        self.dying: list[list[Value]] = []
        self.pending: list[Node] = []  # ops on numbers of the device, not emitted yet
        self.settled: set[Value] = (
            set()
        )  # put into memory beyond the plan, for those that need it there

    def lower(self) -> Body:
        made = plan(self.graph, supported=is_on_device, expensive=is_expensive)
        self.materialised = made.materialised
        for k, statement in enumerate(made.statements):
            for value in self.reads(statement):
                self.last[value] = k
        for value in (*self.graph.results, *self.body.sources.values()):
            self.last[value] = len(made.statements)  # who asks for a size may come late
        self.readers = _readers(made.statements)
        for k, statement in enumerate(made.statements):
            self.now = k
            if not (isinstance(statement, Single) and self.is_device_scalar(statement)):
                self.flush()
            self.statement(statement)
            dead = [
                v for v in dict.fromkeys([*self.reads(statement), *statement.writes])
                if self.last.get(v, -1) <= k
            ]  # fmt: skip
            if self.pending:
                self.waiting.extend(dead)
            elif dead:
                self.emit(_Nothing(), dead)
        self.flush()
        self.results()
        self.body.steps = [(s, tuple(d)) for s, d in zip(self.steps, self.dying, strict=True)]
        self.body.unused = tuple(p for p in self.graph.params if p not in self.last)
        return self.body

    def reads(self, statement: Statement) -> list[Value]:
        """What a statement reads, with the operands that give sizes."""
        nodes = (
            [statement.node] if isinstance(statement, Single) else [r.node for r in statement.roots]
        )
        found = dict(statement.reads)
        if isinstance(statement, Single):
            found.update(dict.fromkeys(statement.node.inputs))
        for node in nodes:
            found.update(dict.fromkeys(node.inputs[len(node.inputs) - len(node.dims) :]))
        return list(found)

    waiting: list[Value]

    def emit(self, step: Step, dying: Sequence[Value] = ()) -> None:
        if isinstance(step, _Nothing) and self.steps:
            self.dying[-1].extend(dying)
            return
        self.steps.append(step)
        self.dying.append(list(dying))

    def flush(self) -> None:
        """Emit the ops on the device's numbers that are waiting, as one kernel."""
        if not self.pending:
            return
        nodes, self.pending = self.pending, []
        source = self.lowering.source("scalars")
        kernel = ScalarKernel(source, nodes, self.in_memory)
        launch = self.lowering.done(source, kernel.emit(), ", ".join(n.op.name for n in nodes))
        self.emit(
            Made(tuple(kernel.outputs), [launch], looked_into=kernel.looked_into()), self.waiting
        )
        self.waiting = []

    def is_device_scalar(self, statement: Single) -> bool:
        node = statement.node
        if node.op.name == "assert":
            return not self.lowering.modes(node.inputs[0])
        if statement.kind == "control" and is_scalar_control(node):
            return not all(map(self.lowering.modes, node.outputs)) or node.op.name != "cond"
        if statement.kind != "scalar":
            return False
        return not all(self.lowering.modes(v) for v in node.outputs)

    # -- statements --------------------------------------------------------------------------------------------------

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, Kernel):
            self.kernel(statement)
            return
        node = statement.node
        if self.is_device_scalar(statement):
            if statement.kind == "control":
                self.flush()
                self.settle_all(node)
            if not self.pending:
                self.waiting = []
            self.pending.append(node)
            return
        getattr(self, f"_{statement.kind}")(node)

    def kernel(self, kernel: Kernel) -> None:
        stored = [
            root.value for root in kernel.roots
            if self.is_external(root.value, kernel) or needs_memory(kernel, root)
        ]  # fmt: skip
        launches, scratch = self.launches(kernel, stored)
        reuse = {}
        for root in kernel.roots:
            if root.value in stored:
                reuse[root.value] = tuple(self.reusable(kernel, root))
        positive = tuple(
            size_of(tuple(root.node.inputs[0].shape[k] for k in root.node.attrs["axes"]))
            for root in kernel.roots
            if root.reduce and root.node.op.name in ("max", "min")
        )
        positive = tuple(n for n in positive if not isinstance(n, int) or n == 0)
        sizes = looked_into(root.expression for root in kernel.roots)
        self.emit(Made(tuple(stored), launches, reuse, scratch, positive, sizes, kernel.space))

    def launches(
        self, kernel: Kernel, stored: Sequence[Value]
    ) -> tuple[list[Launch], tuple[Value, ...]]:
        """Emit a kernel and, if it cuts rows into chunks, the one that unites the parts."""
        if any(isinstance(d, int) and d == 0 for d in kernel.space) and not kernel.inner:
            return [], ()
        what = ", ".join(dict.fromkeys(root.node.op.name for root in kernel.roots))
        source = self.lowering.source("rows" if kernel.inner else "map")
        emitter = GridEmitter(source, kernel, {v: source.place(v) for v in stored})
        chunks = emitter.chunks() if kernel.inner else None
        if chunks is None:
            return [self.lowering.done(source, emitter.emit_grid(), what)], ()
        rows = size_of(tuple(kernel.space[k] for k in emitter.kept))
        parts = {
            root.value: StandIn(None, TensorType(root.value.dtype, (rows * chunks,)))
            for root in kernel.roots
            if root.reduce
        }
        launches = [self.lowering.done(source, emitter.emit_grid(dict(parts)), what)]
        for root in kernel.roots:
            if root.reduce and root.value in stored:
                launches.append(self.unite(root, parts[root.value], rows, chunks))
        return launches, tuple(parts.values())

    def unite(self, root: Root, parts: Value, rows: DimLike, chunks: DimLike) -> Launch:
        """Emit the kernel that reduces the partial results of each row."""
        source = self.lowering.source("unite")
        pool = Pool()
        row, chunk = Var(rows, "row"), Var(chunks, "chunk")
        flat = StandIn(None, TensorType(root.value.dtype, (rows, chunks)))
        elements = Elements(pool, lambda v: True)
        place = source.place(root.value)
        load = pool.load(flat, identity_index((row, chunk)))
        made = Kernel((row, chunk), pool, elements, inner=frozenset((1,)))
        target = StandIn(None, TensorType(root.value.dtype, (rows,)))
        united = Root(root.node, target, load, (Affine(((row, 1),)),), reduce=True)
        made.stages = [Stage(False, [united])]
        from dsl.codegen.arrays import Array

        source.alias(flat, parts)
        flat_place = Array(place.dtype, place.pointer, (source.dim(rows),), (1,))
        emitter = GridEmitter(source, made, {target: flat_place})
        emitter.may_cut = False
        return self.lowering.done(source, emitter.emit_grid(), f"unite {root.node.op.name}")

    def is_external(self, value: Value, kernel: Kernel) -> bool:
        return (
            value in self.graph.results
            or any(reader is not kernel for reader in self.readers.get(value, ()))
        )  # fmt: skip

    def reusable(self, kernel: Kernel, root: Root) -> list[Value]:
        """Return operands that die here and are read just where the root is written."""
        if root.reduce or root.value.shape != kernel.space or root.stage != len(kernel.stages) - 1:
            return []
        return [
            v for v in kernel.reads
            if is_array(v) and self.last.get(v, -1) <= self.now and v.shape == root.value.shape
            and v.dtype.itemsize == root.value.dtype.itemsize and reads_only_at(kernel, [v], root)
        ]  # fmt: skip

    def in_memory(self, value: Value) -> bool:
        return value in self.materialised or value.node.op.name in ("const", "param")

    def map_to(
        self, value: Value, target: Value, space: Shape,
        offset: Callable[[tuple[Affine, ...], Elements], tuple[Affine, ...]], what: str,
        shift: Sequence[DimLike] = (),
    ) -> list[Launch]:  # fmt: skip
        """Emit a kernel that computes `value` over `space`, from `shift` on, and stores it at `offset` of the index."""
        if any(isinstance(d, int) and d <= 0 for d in space):
            return []
        source = self.lowering.source("map")
        variables = tuple(Var(d, f"i{k}") for k, d in enumerate(space))
        pool = Pool()
        elements = Elements(pool, self.in_memory)
        index = identity_index(variables)
        from_ = tuple(i.plus(s) for i, s in zip(index, shift, strict=True)) if shift else index
        expression = elements.at(value, from_ if value.shape else ())
        stand_in = StandIn(value)
        kernel = Kernel(variables, pool, elements)
        root = Root(value.node, stand_in, expression, offset(index, elements))
        kernel.stages = [Stage(False, [root])]
        emitter = GridEmitter(source, kernel, {stand_in: source.place(target)})
        return [self.lowering.done(source, emitter.emit_grid(), what)]

    def settle(self, value: Value) -> None:
        """Put a value into memory that so far is only an expression: for control flow, and calls."""
        if not is_array(value) or self.in_memory(value) or value in self.settled:
            return
        launches = self.map_to(
            value, value, value.shape, lambda i, _: i, f"copy of {value.node.op.name}"
        )
        e = Elements(Pool(), self.in_memory).at(value, identity_index(Var(d) for d in value.shape))
        self.emit(Made((value,), launches, looked_into=looked_into([e]), space=value.shape))
        self.settled.add(value)
        self.last.setdefault(value, self.now)

    def settle_all(self, node: Node) -> None:
        for value in node.inputs:
            self.settle(value)

    # -- singles -----------------------------------------------------------------------------------------------------

    def _scalar(self, node: Node) -> None:
        self.emit(HostScalar(node))

    def _alias(self, node: Node) -> None:
        self.settle_all(node)
        self.emit(Alias(node))

    def _spread(self, node: Node) -> None:
        self.settle_all(node)
        self.lowering.strided.add(node.outputs[0])
        self.emit(Spread(node))

    def _check(self, node: Node) -> None:
        self.emit(Check(partial(_CHECKS[node.op.name], node)))

    def _library(self, node: Node) -> None:
        if node.op.name == "assert":
            self.emit(Check(lambda frame: bool(frame.number(node.inputs[0]))))
            return
        if node.op.name == "keep":
            self.settle_all(node)
            return
        if library.supported(node):
            for value in node.inputs:
                if not (node.op.name in library.TAKES_TURNED and self.is_turned(value)):
                    self.settle(value)
            self.emit(library.lower(self.lowering, node))
            return
        self.settle_all(node)
        self.lowering.fallbacks.append((node.op.name, node.loc))
        self.emit(HostCall(node))

    def is_turned(self, value: Value) -> bool:
        """Note a value that is an array in memory with its axes in another order."""
        node = value.node
        if node.op.name != "transpose" or value in self.materialised:
            return False
        if not is_array(value) or not self.in_memory(node.inputs[0]):
            return False
        self.lowering.turned[value] = node.inputs[0], tuple(node.attrs["axes"])
        return True

    def _control(self, node: Node) -> None:
        self.settle_all(node)
        bodies = [_Region(self.lowering, region).lower() for region in node.regions]
        skip = {"cond": 1, "scan": 1, "while": 0}[node.op.name]
        dying = tuple(
            dict.fromkeys(v for v in node.inputs[skip:] if self.last.get(v, -1) <= self.now)
        )
        if node.op.name == "cond":
            self.emit(Cond(node, (bodies[0], bodies[1]), dying))
        elif node.op.name == "scan":
            self.emit(Loop(node, None, bodies[0], dying))
        else:
            self.emit(Loop(node, bodies[0], bodies[1], dying))

    def _pieces(self, node: Node) -> None:
        (value,) = node.outputs
        self.emit(Made((value,), list(self.pieces(node, value, {}))))

    def pieces(self, node: Node, target: Value, at: dict[int, DimLike]) -> list[Launch]:
        """Emit kernels that write the parts of an array into the box of a target that begins at `at`."""
        if node.op.name == "concatenate":
            axis, launches = node.attrs["axis"], []
            start = at.get(axis, 0)
            for x in node.data_inputs:
                launches += self.piece(x, target, {**at, axis: start})
                start = start + x.shape[axis]
            return launches
        x, filler = node.inputs[:2]
        low = dict(enumerate(node.attrs["low"]))
        launches = self.surround(node.outputs[0], filler, target, low, x.shape, at)
        return launches + self.piece(x, target, {k: at.get(k, 0) + low[k] for k in low})

    def piece(self, x: Value, target: Value, at: dict[int, DimLike]) -> list[Launch]:
        if x.node.op.name in ("concatenate", "pad") and not self.in_memory(x):
            return self.pieces(x.node, target, at)
        return self.map_to(x, target, x.shape, partial(_moved, at), "part")

    def surround(
        self, whole: Value, filler: Value, target: Value, low: dict[int, DimLike], size: Shape,
        at: dict[int, DimLike],
    ) -> list[Launch]:  # fmt: skip
        """Emit kernels that store `filler` everywhere outside a box of `whole`."""
        done: dict[int, tuple[DimLike, DimLike]] = {}
        launches: list[Launch] = []
        for axis in range(len(whole.shape)):
            end = low[axis] + size[axis]
            for start, count in ((0, low[axis]), (end, whole.shape[axis] - end)):
                space = [done[k][1] if k in done else d for k, d in enumerate(whole.shape)]
                space[axis] = count
                shift = [done[k][0] if k in done else 0 for k in range(len(space))]
                shift[axis] = start
                place = {k: at.get(k, 0) + shift[k] for k in range(len(space))}
                launches += self.map_to(
                    filler, target, tuple(space), partial(_moved, place), "border", shift
                )
            done[axis] = (low[axis], size[axis])
        return launches

    # -- updates -----------------------------------------------------------------------------------------------------

    def _update(self, node: Node) -> None:
        x = node.inputs[0]
        (value,) = node.outputs
        if not is_array(x):
            self.emit(HostCall(node))
            return
        if node.op.name == "scatter":
            launches, scratch = emit_scatter(self, node)
            check: Callable[[Frame], None] = partial(_check_scatter, node)
        else:
            launches, scratch = self.slice_update(node), ()
            check = partial(_check_update, node)
        fill: list[Launch] = []
        if not self.in_memory(x) or splat(x) is not None:
            fill = self.map_to(x, value, x.shape, lambda i, _: i, "old value")
            fill = fill or [_EMPTY]
        dies = self.last.get(x, -1) <= self.now and not self.reads_again(node)
        self.emit(Update(node, launches, dies, fill, scratch, check))

    def reads_again(self, node: Node) -> bool:
        """Tell whether what is written is computed from the array that is written."""
        x, *others = node.inputs
        for v in others:
            if not is_array(v):
                continue
            if v is x:
                return True
            if self.in_memory(v):
                continue
            e = Elements(Pool(), self.in_memory).at(v, identity_index(Var(d) for d in v.shape))
            if any(read.value is x for read in reads_of(e)):
                return True
        return False

    def slice_update(self, node: Node) -> list[Launch]:
        (value,) = node.outputs
        v = node.inputs[1]
        if node.op.name == "update_slice":
            start, step = node.attrs["start"], node.attrs["step"]

            def box(index: tuple[Affine, ...], elements: Elements) -> tuple[Affine, ...]:
                return tuple(
                    i.scaled(s).plus(a) for i, a, s in zip(index, start, step, strict=True)
                )

            return self.map_to(v, value, v.shape, box, node.op.name)
        axis, step = node.attrs["axis"], node.attrs.get("step", 1)

        def moved(index: tuple[Affine, ...], elements: Elements) -> tuple[Affine, ...]:
            first = Affine((), 0, ((elements.at(node.inputs[2], ()), 1),))
            return index[:axis] + (index[axis].scaled(step).plus(first),) + index[axis + 1 :]

        return self.map_to(v, value, v.shape, moved, node.op.name)

    # -- results -----------------------------------------------------------------------------------------------------

    def results(self) -> None:
        """Put results into memory that are constants of one number."""
        self.now = len(self.readers) + 1
        for value in self.graph.results:
            self.settle(value)


def looked_into(expressions: Iterable[Expression]) -> tuple[DimLike, ...]:
    """Return the sizes that index arrays look into: there is no right index if one of them is 0."""
    sizes = [e.constant for x in expressions for e in walk(x) if e.kind == "checked"]
    return tuple(n for n in dict.fromkeys(sizes) if (lower_bound(n) or 0) < 1)


class _Nothing:
    def run(self, frame: Frame) -> None:
        pass


_EMPTY: Any = _Nothing()


def _readers(statements: Sequence[Statement]) -> dict[Value, list[Statement]]:
    found: dict[Value, list[Statement]] = {}
    for statement in statements:
        for value in statement.reads:
            found.setdefault(value, []).append(statement)
    return found


def _moved(
    at: dict[int, DimLike], index: tuple[Affine, ...], elements: Elements
) -> tuple[Affine, ...]:
    return tuple(i.plus(at.get(k, 0)) for k, i in enumerate(index))


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_reshape(node: Node, frame: Frame) -> bool:
    return frame.size(size_of(node.inputs[0].shape)) == frame.size(size_of(node.outputs[0].shape))


def _check_slice(node: Node, frame: Frame) -> bool:
    attrs = node.attrs
    return _fits(frame, node.inputs[0].shape, attrs["start"], attrs["size"], attrs["step"])


def _check_dynamic_slice(node: Node, frame: Frame) -> bool:
    x, start = node.inputs[:2]
    return _starts_well(node, frame, start, node.outputs[0].shape, x.shape)


def _check_update(node: Node, frame: Frame) -> None:
    x, v = node.inputs[:2]
    if node.op.name == "update_slice":
        fits = _fits(frame, x.shape, node.attrs["start"], v.shape, node.attrs["step"])
    else:
        fits = _starts_well(node, frame, node.inputs[2], v.shape, x.shape)
    if not fits:
        raise Wrong


def _check_scatter(node: Node, frame: Frame) -> None:
    """No index is right for an axis of size 0."""
    x, v = node.inputs[:2]
    if any(frame.size(x.shape[k]) == 0 for k in node.attrs["axes"]) and all(frame.shape(v)):
        raise Wrong


def _starts_well(node: Node, frame: Frame, start: Value, part: Shape, whole: Shape) -> bool:
    axis, step = node.attrs["axis"], node.attrs.get("step", 1)
    first = int(frame.number(start))
    return _fits(frame, (whole[axis],), (first,), (part[axis],), (step,))


def _fits(
    frame: Frame, shape: Shape, start: Sequence[DimLike], size: Shape, step: Sequence[int]
) -> bool:
    """Tell whether a box lies within an array."""
    for dim, first, count, by in zip(shape, start, size, step, strict=True):
        whole, low, number = frame.size(dim), frame.size(first), frame.size(count)
        last = low + (number - 1) * by
        if number > 0 and not (0 <= low < whole and 0 <= last < whole):
            return False
    return True


_CHECKS: dict[str, Callable[[Node, Frame], bool]] = {
    "reshape": _check_reshape,
    "slice": _check_slice,
    "dynamic_slice": _check_dynamic_slice,
}
