"""Plans a region: which values are materialised, which nodes share a kernel, and in which order statements run.

In goes a structured graph; out comes a list of statements. A `Kernel` computes one or more values in loops over one
iteration space; everything cheap between its roots and the values it loads is expanded inside it (`elements`). A
`Single` is one node by itself: a rank-0 op, an update, a library call, control flow.

Rules of fusion:
- A value is materialised if it is a result, if something other than a kernel reads it, or if it has several readers and
  is not cheap. Transcendentals, divisions and reductions are never computed twice.
- A root joins the kernel of what it reads, or of another root that reads the same array, if their iteration spaces are
  equal. Reductions over the same axes and what depends on them share a kernel too: its outer loops run over the kept
  axes, and inside, stage by stage, each row is swept while it is in cache (softmax is three sweeps over one row).
- Statements that only read an array come before one that overwrites it, so that the update needs no copy.
- An update of a part that is only put back is no statement, but part of the update that puts it back (`within`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dsl.codegen.aside import parts_read_later
from dsl.codegen.counting import moves
from dsl.codegen.elements import Elements, is_lazy, joins, splat
from dsl.codegen.expressions import Affine, Expression, Pool, Var, identity_index, walk
from dsl.codegen.order import in_order
from dsl.codegen.overwritten import is_overwritten
from dsl.codegen.statements import (
    Kernel,
    Plan,
    Root,
    Single,
    Stage,
    Statement,
    is_checked,
    reads_of,
)
from dsl.codegen.within import UPDATES, updates_within
from dsl.ir.dims import lower_bound, symbols_of
from dsl.ir.facts import is_array
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import Shape, TensorType, size_of

__all__ = [
    "REDUCTIONS",
    "UPDATES",
    "Kernel",
    "Plan",
    "Root",
    "Single",
    "Stage",
    "Statement",
    "is_checked",
    "plan",
    "reads_of",
]

REDUCTIONS = frozenset(
    ["sum", "prod", "max", "min", "any", "all", "reduce_and", "reduce_or", "reduce_xor"]
)
_VIEWS = frozenset(("broadcast_to", "transpose", "slice", "reshape", "dynamic_slice", "identity"))
_FREE = _VIEWS | {"full", "iota", "real", "imag", "positive", "bitcast"}
_JOINS = frozenset(("concatenate", "pad"))
_COPIES = _JOINS | {"gather"}
_EVEN = frozenset(("iota", "add", "subtract", "multiply", "negative", "broadcast_to"))
_CHEAP = 4  # ops that may be computed again for another reader
_LARGEST = 120  # ops in one expression; more only slows LLVM down
_ROW_BYTES = 1 << 20  # a row that is swept several times should stay in the cache
_COLUMN_BYTES = 1 << 16  # a panel has some hundred columns
_FEW_ROWS = 16


class _Planner:
    def __init__(
        self,
        graph: Graph,
        supported: Callable[[Node], bool],
        expensive: Callable[[Node], bool],
        within: bool,
        rooms: bool,
    ) -> None:
        self.graph, self.supported, self.expensive = graph, supported, expensive
        self.rooms = rooms
        self.uses = graph.uses()
        self.within = updates_within(graph, self.uses) if within else {}
        self.inside = {node for w in self.within.values() for node in (w.node, *w.moves)}
        self.results = set(graph.results)
        self.kinds = {node: self.kind_of(node) for node in graph.nodes}
        self.materialised: set[Value] = {p for p in graph.params if is_array(p)}
        self.cost: dict[Value, tuple[int, bool]] = {}
        self.statements: list[Statement] = []
        self.producer: dict[Value, Statement] = {}
        self.sized: dict[Value, dict[Value, None]] = {}  # what gives the sizes of values

    # -- what each node is -----------------------------------------------------------------------------------------

    def kind_of(self, node: Node) -> str:
        """Return const, control, scalar, lazy, reduce, update, inside, alias, pieces or library."""
        name = node.op.name
        if node in self.inside:
            return "inside"
        if name == "const":
            return "const"
        if node.regions:
            return "control"
        if name in UPDATES:
            return "update"
        if not all(_is_tensor(v) for v in node.outputs) or not node.outputs:
            return "library"
        if all(not v.shape for v in node.outputs) and name not in REDUCTIONS:
            return self.scalar_kind(node)
        if not self.supported(node):
            return "library"
        if name in REDUCTIONS and not node.inputs[0].shape:
            return "scalar"
        if name in REDUCTIONS:
            return "reduce" if node.attrs["axes"] else "lazy" if is_lazy(node) else "library"
        if name == "reshape" and not is_lazy(node):
            return "alias"
        if name == "broadcast_to" and not is_lazy(node):
            return "spread"
        if name == "concatenate" and joins(node):
            return "lazy" if is_lazy(node) else "pieces"
        return "lazy" if is_lazy(node) else "library"

    def scalar_kind(self, node: Node) -> str:
        name = node.op.name
        if name == "reshape" or name == "slice":
            return "scalar"
        if name in ("dim_size", "gather"):
            return "scalar"
        if any(_is_tensor(v) and v.shape for v in node.inputs) or not self.supported(node):
            return "library"
        return "scalar"

    # -- which values are materialised -----------------------------------------------------------------------------

    def choose(self) -> None:
        for node in self.graph.nodes:
            kind = self.kinds[node]
            if kind == "lazy":
                for value in node.outputs:
                    self.weigh(value)
            else:
                for value in node.outputs:
                    if is_array(value) and splat(value) is None and kind != "inside":
                        self.materialised.add(value)
                    self.cost[value] = (0, False)

    def keep_aside(self) -> None:
        """Materialise what would otherwise be read from an array that has been overwritten."""
        parts = parts_read_later(
            self.graph,
            self.uses,
            lambda node: self.kinds[node] == "update",
            lambda v: self.kinds[v.node] == "lazy" and is_array(v) and v not in self.materialised,
        )
        self.materialised.update(list(parts))

    def weigh(self, value: Value) -> None:
        node = value.node
        inputs = [self.cost.get(x, (0, False)) for x in node.inputs if x not in self.materialised]
        ops = sum(cost for cost, _ in inputs) + (
            node.op.name not in _FREE and not self.only_moves(node)
        )
        dear = self.expensive(node) or any(d for _, d in inputs)
        self.cost[value] = (ops, dear)
        if self.must_materialise(value, ops, dear):
            self.materialised.add(value)
            self.cost[value] = (0, False)

    def must_materialise(self, value: Value, ops: int, dear: bool) -> bool:
        if value in self.results or ops > _LARGEST:
            return True
        readers = [r for r in self.uses.get(value, ()) if not self.only_updates(r, value)]
        if any(self.needs_memory(value, reader) for reader in readers):
            return True
        copies = value.node.op.name in _COPIES and not self.only_moves(value.node)
        if copies and len(readers) > 1 and not _is_pick(value.node):
            return True
        if value.node.op.name in _JOINS and any(r.op.name in _JOINS for r in readers):
            return False  # parts of parts are written where they belong
        if value.node.op.name in ("pad", "concatenate") and any(
            self.kinds[r] == "lazy" and r.op.has(Trait.VIEW) for r in readers
        ):
            return True
        several = len(readers) > 1 or any(self.multiplied(reader, value) for reader in readers)
        return several and (dear or ops > _CHEAP)

    def only_updates(self, reader: Node, value: Value) -> bool:
        """Tell whether a value is the part that an update replaces some of where it is, and is not looked at."""
        return reader in self.inside and value not in reader.inputs[1:]

    def multiplied(self, reader: Node, value: Value) -> bool:
        """Tell whether a reader needs each element of `value` several times: by index, or broadcast to more elements."""
        if reader.op.name in ("gather", "scatter"):
            return True
        if self.kinds[reader] != "lazy":
            return False
        out = reader.outputs[0]
        own = (1,) * (len(out.shape) - len(value.shape)) + tuple(value.shape)
        wider = reader.op.has(Trait.ELEMENTWISE) or reader.op.name == "broadcast_to"
        if wider and any(a == 1 and b != 1 for a, b in zip(own, out.shape)):
            return True
        if reader.op.name not in _VIEWS or out in self.materialised:
            return False
        return any(self.multiplied(further, out) for further in self.uses.get(out, []))

    def needs_memory(self, value: Value, reader: Node) -> bool:
        kind = self.kinds[reader]
        if kind in ("control", "library", "alias"):
            return not self.is_view(value) or kind == "alias"
        if kind == "spread":
            return True
        if kind in ("update", "inside"):
            if reader.op.name == "update_slice":
                return False
            replaced = kind == "update" and reader.inputs[0] is value
            is_index = value in reader.inputs[2:] and bool(value.shape)
            return replaced or (is_index and not self.is_line(reader, value))
        if kind == "scalar":
            return not self.is_part(value)
        if reader.op.name == "gather":
            return reader.inputs[0] is value and not self.is_window(value)
        return False

    def is_line(self, reader: Node, value: Value) -> bool:
        """Tell whether an index goes on in even steps: it is sooner computed than read, and its ends tell whether it fits."""
        alone = len(reader.inputs) == 3 and len(value.shape) == 1
        return alone and value.dtype == np.int64 and self.is_even(value)

    def is_even(self, value: Value) -> bool:
        """Tell whether an array of one axis is its places times a number plus a number."""
        node = value.node
        if not is_array(value):
            return True
        lazy = self.kinds.get(node) == "lazy" and value not in self.materialised
        if not lazy or node.op.name not in _EVEN:
            return False
        bent = node.op.name == "multiply" and all(map(is_array, node.inputs))
        return not bent and all(map(self.is_even, node.inputs))

    def is_view(self, value: Value) -> bool:
        """Tell whether a value only rearranges a materialised one."""
        while value not in self.materialised:
            if value.node.op.name not in _VIEWS or self.kinds.get(value.node) != "lazy":
                return False
            value = value.node.inputs[0]
        return True

    def is_part(self, value: Value) -> bool:
        """Tell whether a value only rearranges rows or other parts of a materialised one, at places that are numbers."""
        while not self.is_view(value):
            lazy = self.kinds.get(value.node) == "lazy" and value not in self.materialised
            if not lazy or not (value.node.op.name in _VIEWS or _is_pick(value.node)):
                return False
            value = value.node.inputs[0]
        return True

    def is_window(self, value: Value) -> bool:
        """Tell whether a value only rearranges a materialised one, at places that counting tells."""
        while not self.is_view(value):
            node = value.node
            known = self.kinds.get(node) == "lazy" and value not in self.materialised
            if not known or not (node.op.name in _VIEWS or self.only_moves(node)):
                return False
            value = node.inputs[0]
        return True

    def only_moves(self, node: Node) -> bool:
        """Tell whether a node reads at places that are counted when it is read, as views do."""
        indices = [i for i in node.data_inputs[1:] if i.node.op.name != "const"]
        return moves(node) and not any(index in self.materialised for index in indices)

    # -- statements ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        for node in self.graph.nodes:
            kind = self.kinds[node]
            if kind in ("const", "inside"):
                continue
            if kind == "lazy":
                self.lazy(node)
            elif kind == "reduce":
                self.place(node, node.outputs[0])
            else:
                if kind == "alias" and needs_check(node):
                    self.single(node, "check")
                self.single(node, kind)

    def lazy(self, node: Node) -> None:
        if needs_check(node):
            self.single(node, "check")
        for value in node.outputs:
            if value in self.materialised:
                if node.op.name in ("concatenate", "pad"):
                    self.single(node, "pieces")
                elif self.is_room(value):
                    self.single(node, "room")
                else:
                    self.place(node, value)

    def is_room(self, value: Value) -> bool:
        """Tell whether an array need not be filled, as a loop overwrites it."""
        full = self.rooms and value.node.op.name == "full" and value not in self.results
        return full and is_overwritten(value, self.uses.get(value, ()))

    def single(self, node: Node, kind: str) -> None:
        made = Single(node, kind, position=len(self.statements))
        if kind == "update":
            made.written = self.written(node)
        for value in self.read_by(node, kind):
            self.collect(value, made.reads)
        if kind == "check":
            self.collect_sizes(node.inputs[0], made.reads)
        self.add(made)

    def read_by(self, node: Node, kind: str) -> Sequence[Value]:
        """Return the operands whose elements a statement reads; views are kept for their checks, which come before."""
        if kind == "check":
            return node.inputs[1:]
        if node.op.name == "keep":
            return [v for v in node.inputs if v in self.materialised or not is_array(v)]
        return node.inputs

    def written(self, node: Node) -> Value:
        """Return what an update writes, into its array or into a part of it."""
        while node in self.within:
            node = self.within[node].node
        return node.inputs[1]

    def collect_sizes(self, value: Value, into: dict[Value, None]) -> None:
        """Add what must have run for the size of `value` to be known."""
        found: dict[Value, None] = {}
        self.collect(value, found)
        for v in found:
            if v.node.regions or v.node.op.has(Trait.DYNAMIC):
                into[v] = None
            elif v not in self.sized and is_array(v) and symbols_of(*v.shape):
                # Its sizes are those of what it is computed from: of keys, say, if it is their order.
                self.sized[v] = {}
                for operand in v.node.inputs:
                    self.collect_sizes(operand, self.sized[v])
            into.update(self.sized.get(v, {}))

    def add(self, statement: Statement) -> None:
        self.statements.append(statement)
        for value in statement.writes:
            self.producer[value] = statement

    def collect(self, value: Value, into: dict[Value, None]) -> None:
        """Add the materialised values, registers included, that an expansion of `value` reads."""
        pending, seen = [value], set()
        while pending:
            value = pending.pop()
            if value in seen or (value.node.op.name == "const" and value not in self.materialised):
                continue
            seen.add(value)
            if value in self.materialised or not is_array(value) or value.node.op.name == "param":
                into[value] = None
            else:
                pending.extend(value.node.inputs)

    def place(self, node: Node, value: Value) -> None:
        """Put a root into a kernel that it fits, or into one of its own."""
        reads: dict[Value, None] = {}
        for x in node.inputs:
            self.collect(x, reads)
        reduce = self.kinds[node] == "reduce"
        space = node.inputs[0].shape if reduce else value.shape
        for kernel in self.candidates(reads, reduce):
            if self.join(kernel, node, value, space, reads, reduce):
                return
        kernel = self.new_kernel(space)
        self.add(kernel)
        self.join(kernel, node, value, space, reads, reduce)

    def candidates(self, reads: dict[Value, None], reduce: bool) -> Iterator[Kernel]:
        """Kernels that produce what is read, then those that read the same arrays, latest first."""
        latest = max((self.position(v) for v in reads if v in self.producer), default=-1)
        producers = {id(self.producer[v]) for v in reads if v in self.producer}
        arrays = {v for v in reads if is_array(v)}
        for statement in reversed(self.statements[-24:]):
            if not isinstance(statement, Kernel) or statement.position < latest:
                continue
            if id(statement) in producers or arrays & statement.reads.keys():
                yield statement

    def position(self, value: Value) -> int:
        return self.producer[value].position

    def new_kernel(self, space: Shape) -> Kernel:
        pool = Pool()
        variables = tuple(Var(extent, f"i{k}") for k, extent in enumerate(space))
        elements = Elements(pool, self.materialised.__contains__)
        return Kernel(variables, pool, elements, position=len(self.statements))

    def join(
        self,
        kernel: Kernel,
        node: Node,
        value: Value,
        space: Shape,
        reads: dict[Value, None],
        reduce: bool,
    ) -> bool:
        index = self.index_for(kernel, value, space, reduce)
        if index is None:
            return False
        axes = frozenset(node.attrs["axes"]) if reduce else None
        inner = axes if kernel.inner is None else kernel.inner
        if reduce and kernel.inner is not None and kernel.inner != axes:
            return False
        per_row = not reduce and value.shape != kernel.space
        if per_row and any((lower_bound(kernel.space[k]) or 0) < 1 for k in inner or ()):
            return False  # a row without points has a result, though there is nothing to sweep
        source = node.inputs[0] if reduce else value
        points = identity_index(kernel.variables) if reduce else index
        expression = kernel.elements.expand_root(source, points, value)
        stage = self.stage_for(kernel, expression, inner, per_row)
        if stage is None or _checks_own_results(kernel, expression):
            return False
        if stage > 0 and not _rows_fit(kernel.space, inner or frozenset(), value.dtype.itemsize):
            return False
        while stage < len(kernel.stages) and kernel.stages[stage].per_row != per_row:
            stage += 1
        if stage == len(kernel.stages):
            if stage > 0 and not _rows_fit(
                kernel.space, inner or frozenset(), value.dtype.itemsize
            ):
                return False
            kernel.stages.append(Stage(per_row))
        kernel.inner = inner
        root = Root(node, value, expression, index, reduce, stage)
        kernel.stages[stage].roots.append(root)
        own = set(kernel.writes)
        kernel.reads.update({v: None for v in reads if v not in own})
        self.producer[value] = kernel
        return True

    def index_for(
        self, kernel: Kernel, value: Value, space: Shape, reduce: bool
    ) -> tuple[Affine, ...] | None:
        """Return where a root of this space is stored for the kernel's current point, or None if it does not fit."""
        points = identity_index(kernel.variables)
        if reduce:
            axes = value.node.attrs["axes"]
            if space != kernel.space:
                return None
            return tuple(p for k, p in enumerate(points) if k not in axes)
        if space == kernel.space:
            return points
        inner = kernel.inner
        if not inner or not any(root.reduce for root in kernel.roots):
            return None
        kept = [k for k in range(len(points)) if k not in inner]
        if tuple(kernel.space[k] for k in kept) == tuple(space):
            return tuple(points[k] for k in kept)
        if len(space) == len(points) and all(
            space[k] == (1 if k in inner else kernel.space[k]) for k in range(len(space))
        ):
            return tuple(Affine() if k in inner else p for k, p in enumerate(points))
        return None

    def stage_for(
        self, kernel: Kernel, expression: Expression, inner: frozenset[int] | None, per_row: bool
    ) -> int | None:
        """Return the first stage in which an expression can be computed, or None if it cannot be in this kernel."""
        roots = {root.value: root for root in kernel.roots}
        first = 0
        kept = [k for k in range(len(kernel.variables)) if k not in (inner or ())]
        for load in reads_of(expression):
            root = roots.get(load.value)  # type: ignore[arg-type]
            if root is None:
                continue
            if load.kind == "register":
                return None
            row = kernel.stages[root.stage].per_row
            if load.index == root.index and not root.reduce and row == per_row:
                first = max(first, root.stage)
                continue
            if not self.same_row(kernel, root, load, kept):
                return None
            if not root.reduce and not row and not inner:
                return None
            first = max(first, root.stage + 1)
        if per_row:
            first = max([first] + [root.stage + 1 for root in kernel.roots if root.reduce])
        return first

    @staticmethod
    def same_row(kernel: Kernel, root: Root, load: Expression, kept: list[int]) -> bool:
        """Tell whether a load stays within the row that the kernel is at."""
        wanted = {kernel.variables[k] for k in kept}
        for own, used in zip(root.index, load.index, strict=True):
            if any(var in wanted for var, _ in own.terms) and own != used:
                return False
        return True


def needs_check(node: Node) -> bool:
    """Tell whether symbolic sizes or run-time bounds leave something to check when the program runs."""
    if node.op.name == "dynamic_slice":
        return True
    if node.op.name == "reshape":
        return size_of(node.inputs[0].shape) != size_of(node.outputs[0].shape)
    if node.op.name == "slice":
        sizes = (*node.inputs[0].shape, *node.attrs["start"], *node.attrs["size"])
        return not all(isinstance(d, int) for d in sizes)
    return False


def _is_pick(node: Node) -> bool:
    """Tell whether a node is a row or another part of an array at places that are numbers."""
    return node.op.name == "gather" and not any(index.shape for index in node.inputs[1:])


def _checks_own_results(kernel: Kernel, expression: Expression) -> bool:
    """Tell whether a check depends on reductions of the kernel itself, so that it could not be repeated without them."""
    if not any(root.reduce for root in kernel.roots):
        return False
    own = {root.value for root in kernel.roots}
    return any(is_checked(e) and any(r.value in own for r in reads_of(e)) for e in walk(expression))


def _rows_fit(space: Shape, inner: frozenset[int], itemsize: int) -> bool:
    rows, size = 1, itemsize
    for k, dim in enumerate(space):
        if not isinstance(dim, int):
            continue
        if k in inner:
            size *= dim
        else:
            rows *= dim
    static_rows = all(isinstance(d, int) for k, d in enumerate(space) if k not in inner)
    kept = [k for k in range(len(space)) if k not in inner]
    if not kept or (static_rows and rows < _FEW_ROWS):
        return False
    return size <= (_ROW_BYTES if (len(space) - 1) in inner else _COLUMN_BYTES)


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def plan(
    graph: Graph,
    *,
    supported: Callable[[Node], bool],
    expensive: Callable[[Node], bool],
    within: bool = False,
    rooms: bool = False,
) -> Plan:
    """Plan a region; `supported` tells which nodes can be emitted as scalar code, `expensive` which never to repeat.

    `within` lets updates of parts be part of the updates that put them back, `rooms` leaves arrays unfilled that loops overwrite.
    """
    planner = _Planner(graph, supported, expensive, within, rooms)
    planner.choose()
    planner.keep_aside()
    planner.build()
    statements = in_order(graph, planner.statements, planner.producer)
    return Plan(statements, planner.materialised, planner.within)
