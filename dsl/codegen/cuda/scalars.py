"""Emits ops on numbers of the device as a kernel of one thread, so that nobody waits for them on the host.

Branches and loops of numbers are part of it: their predicates never leave the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsl.codegen import elementwise
from dsl.codegen.arrays import Scalar, register_type, store_scalar
from dsl.codegen.cuda.grid import Geometry
from dsl.codegen.cuda.source import Source
from dsl.codegen.elements import Elements, gathered_index
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Affine, Expression, Pool
from dsl.codegen.llvm import Value, Variable, read
from dsl.codegen.plan import REDUCTIONS
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import TensorType

__all__ = ["ScalarKernel", "is_scalar_control"]

_SAME = frozenset(("identity", "full", "slice", "transpose", "broadcast_to", *REDUCTIONS))


def is_scalar_control(node: ir.Node) -> bool:
    """Tell whether a branch or loop works on numbers alone; it may read elements of arrays that do not change."""
    if node.op.name not in ("cond", "while", "scan") or node.dims:
        return False
    changing = node.inputs[: node.attrs.get("carried", 0) + (node.op.name != "while")]
    if any(not _is_number(v) for v in (*node.outputs, *changing)):
        return False
    if any(not isinstance(v.type, TensorType) for v in node.inputs):
        return False
    return all(_is_scalar_graph(region) for region in node.regions)


def _is_number(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) and not value.shape


def _is_scalar_graph(graph: ir.Graph) -> bool:
    if any(not all(isinstance(d, int) for d in p.tensor.shape) for p in graph.params):
        return False
    return all(_is_scalar_node(node) for node in graph.nodes)


def _is_scalar_node(node: ir.Node) -> bool:
    name = node.op.name
    if name == "const":
        return True
    if node.regions:
        return is_scalar_control(node)
    if node.dims or not all(_is_number(v) for v in node.outputs):
        return False
    if name == "gather":
        x, *indices = node.inputs
        return x.node.op.name in ("param", "const") and all(map(_is_number, indices))
    if not all(map(_is_number, node.inputs)):
        return False
    if name == "assert":
        return len(node.inputs) == 1
    if name in _SAME:
        return True
    dtypes = [v.dtype for v in node.inputs]
    return elementwise.supported(name, dtypes) and not elementwise.needs_cpu(name, dtypes)


class ScalarKernel:
    """Nodes of rank 0, in order; `outputs` are the values that they make."""

    def __init__(
        self, source: Source, nodes: Sequence[ir.Node], in_memory: Callable[[ir.Value], bool]
    ) -> None:
        self.source, self.nodes, self.fn = source, nodes, source.fn
        self.known = source.known
        self.elements = Elements(Pool(), in_memory)
        self.bad = self.fn.variable("i1")
        self.checked = False
        self.outputs = [value for node in nodes for value in node.outputs]

    def emit(self) -> Geometry:
        fn = self.fn
        self.bad.set(Value("false", "i1"))
        places = {value: self.source.place(value) for value in self.outputs}
        for node in self.nodes:
            for value, scalar in zip(node.outputs, self.node(node), strict=True):
                self.known[value] = scalar
                store_scalar(fn, value.dtype, scalar, places[value].pointer)
        if self.checked:
            with fn.if_(self.bad.get(), unlikely=True):
                fn.store(Value("1", "i64"), self.source.flag())
        self.source.finish(1)
        return Geometry((1, 1), 1)

    def looked_into(self) -> tuple[DimLike, ...]:
        """Return the sizes that indices look into."""
        sizes = [
            node.inputs[0].shape[axis]
            for node in self.nodes
            if node.op.name == "gather"
            for axis in node.attrs["axes"]
        ]
        return tuple(n for n in dict.fromkeys(sizes) if not isinstance(n, int) or n == 0)

    def node(self, node: ir.Node) -> Sequence[Scalar]:
        name = node.op.name
        if node.regions:
            return getattr(self, f"_{name}")(node)  # type: ignore[no-any-return]
        if name == "assert":
            condition = self.source.register(node.inputs[0])
            assert isinstance(condition, Value)
            self.note(self.fn.invert(condition))
            return []
        if name == "gather":
            x, *indices = node.inputs
            if not node.attrs["axes"]:
                return [self.source.register(x)]
            return [self.evaluate(self.elements.at(x, self.place(node, x, indices)))]
        if name == "reshape" and node.inputs[0].shape:
            index = tuple(Affine() for _ in node.inputs[0].shape)
            return [self.evaluate(self.elements.at(node.inputs[0], index))]
        if name in _SAME or name == "reshape":
            return [self.source.register(node.inputs[0])]
        args = [self.source.register(v) for v in node.inputs]
        inputs, outputs = [v.dtype for v in node.inputs], [v.dtype for v in node.outputs]

        def check(bad: Value, kind: str, *number: Value) -> None:
            self.note(bad)

        return elementwise.emit(
            self.fn, name, node.attrs, inputs, outputs, args, check, scalar=True
        )

    # -- control flow ------------------------------------------------------------------------------------------------

    def graph(self, graph: ir.Graph, args: Sequence[Any]) -> list[Scalar]:
        """Emit a region; args are numbers, or the arrays that params stand for."""
        for param, arg in zip(graph.params, args, strict=True):
            if param.shape:
                self.source.alias(param, arg)
            else:
                self.known[param] = arg
        for node in graph.nodes:
            if node.op.name != "const":
                self.known.update(zip(node.outputs, self.node(node), strict=True))
        return [self.source.register(value) for value in graph.results]

    def args(self, values: Sequence[ir.Value]) -> list[Any]:
        return [self.source.named(v) if v.shape else self.source.register(v) for v in values]

    def variables(self, values: Sequence[ir.Value]) -> list[tuple[Variable, ...]]:
        return [
            tuple(
                self.fn.variable(register_type(v.dtype)) for _ in range(1 + (v.dtype.kind == "c"))
            )
            for v in values
        ]

    @staticmethod
    def assign(variables: Sequence[tuple[Variable, ...]], scalars: Sequence[Scalar]) -> None:
        for parts, scalar in zip(variables, scalars, strict=True):
            for variable, part in zip(
                parts, scalar if isinstance(scalar, tuple) else (scalar,), strict=True
            ):
                variable.set(part)

    def _cond(self, node: ir.Node) -> Sequence[Scalar]:
        found, args = self.variables(node.outputs), self.args(node.inputs[1:])
        predicate = self.source.register(node.inputs[0])
        assert isinstance(predicate, Value)

        def side(region: ir.Graph) -> Callable[[], None]:
            return lambda: self.assign(found, self.graph(region, args))

        self.fn.if_else(predicate, side(node.regions[0]), side(node.regions[1]))
        return [read(parts) for parts in found]

    def _while(self, node: ir.Node) -> Sequence[Scalar]:
        test, body = node.regions
        count = node.attrs["carried"]
        carried, fixed = self.variables(node.outputs), self.args(node.inputs[count:])
        self.assign(carried, self.args(node.inputs[:count]))

        def again() -> Value:
            (found,) = self.graph(test, [*(read(parts) for parts in carried), *fixed])
            assert isinstance(found, Value)
            return found

        with self.fn.while_(again):
            now = [read(parts) for parts in carried]
            self.assign(carried, self.graph(body, [*now, *fixed]))
        return [read(parts) for parts in carried]

    def _scan(self, node: ir.Node) -> Sequence[Scalar]:
        (body,) = node.regions
        count = node.attrs["carried"]
        trips, *args = self.args(node.inputs)
        carried, fixed = self.variables(node.outputs), args[count:]
        self.assign(carried, args[:count])
        with self.fn.loop(0, trips) as trip:
            now = [read(parts) for parts in carried]
            self.assign(carried, self.graph(body, [trip, *now, *fixed]))
        return [read(parts) for parts in carried]

    # -- elements ----------------------------------------------------------------------------------------------------

    def place(self, node: ir.Node, x: ir.Value, indices: Sequence[ir.Value]) -> tuple[Affine, ...]:
        return gathered_index(self.elements, node, x, indices, ())

    def evaluate(self, e: Expression) -> Scalar:
        def bad(condition: Value, item: Expression, number: Value) -> None:
            self.note(condition)

        return Evaluator(self.fn, self.source, {}, [{}], bad).value(e)

    def note(self, bad: Value) -> None:
        self.checked = True
        self.bad.set(self.fn.either(self.bad.get(), bad))
