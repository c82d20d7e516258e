"""Graphs that users build: `with graph:` NumPy's functions on tensors make nodes instead of running.

A tensor of a graph is a traced array; placeholders, variables and queues are where it meets the outside. Effects (writes of
variables, queue operations, prints) happen when a step asks for them, in the order in which they were written.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import (
    DeviceError,
    DslError,
    FeedError,
    NonConcreteError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)
from dsl.frontend import scopes
from dsl.frontend.scopes import Scope, Storage, Trace, calls_on, current_scope, current_trace, here
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, cast, fresh, lift, read, supported_dtype
from dsl.frontend.trees import flatten, unflatten
from dsl.ir.devices import DeviceName
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.facts import has_effect
from dsl.ir.graph import Attrs, Node, Value
from dsl.ir.graph import Graph as Dataflow
from dsl.ir.registry import Op
from dsl.ir.types import I64, TensorType
from dsl.ir.verify import verify
from dsl.logs import log
from dsl.passes.raise_control import raise_control
from dsl.passes.thread_state import hoist_reads

__all__ = [
    "Graph", "Operation", "colocate_with", "control_dependencies", "device", "group", "node_of", "placeholder",
]  # fmt: skip

_SMALL = 64  # elements of an array that become part of the program rather than an input of it
_serial = itertools.count(1)


class Operation:
    """Something that a step does and that has no value: `session.run(operation)` does it and returns None.

    >>> import dsl
    >>> queue = dsl.FIFOQueue(3, np.int64, ())
    >>> with Graph() as graph:
    ...     put = queue.enqueue(7)
    >>> dsl.Session(graph).run(put), int(queue.dequeue())
    (None, 7)
    """

    def __init__(self, graph: Graph, nodes: tuple[Node, ...], name: str) -> None:
        self.graph, self.nodes, self.name = graph, nodes, name

    def __repr__(self) -> str:
        return f"<dsl.Operation {self.name!r}>"


class _Root(Scope):
    """The outermost scope of a graph. Effects are ordered when a step is cut out, so that they do not pull one another in."""

    is_graph = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.order: dict[Node, int] = {}  # when each node was made
        self.waits: list[tuple[Node, ...]] = []  # of `control_dependencies`, outermost first

    def node(self, op: Op | str, inputs: Iterable[Value], attrs: Attrs, **options: Any) -> Node:
        regions = tuple(options.get("regions", ()))
        given, name = tuple(inputs), op if isinstance(op, str) else op.name
        if regions:
            options["regions"], variables = hoist_reads(name, regions)
            given += tuple(self._read(name, type) for name, type in variables.items())
        if self.waits and name != "const":  # constants are wherever they are read
            before = (*options.get("controls", ()), *itertools.chain.from_iterable(self.waits))
            options["controls"] = tuple(dict.fromkeys(before))
        made = super().node(op, given, attrs, **options)
        self.order.setdefault(made, len(self.order))
        return made

    def _read(self, variable: str, type: Any) -> Value:
        return self.node("read_variable", (), {"variable": variable}, types=(type,)).output

    def _chain(self, resources: Iterable[str]) -> tuple[Node, ...]:
        return ()


class _Copied(Storage):
    """A copy of an array from outside, which a graph holds."""

    __slots__ = ()

    def set(self, value: Value) -> None:
        raise UnsupportedError(
            "a graph writes into an array from outside, of which it holds a copy",
            location=here(),
            remedy="use a `dsl.Variable`, or return what is written",
        )


class _Building(Trace):
    """What is under way while a graph is built."""

    is_graph = True

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name, _Root(graph.name))
        self.graph = graph
        self._copies: dict[int, tuple[np.ndarray, np.ndarray, Storage]] = {}
        self._reads: dict[Any, Traced] = {}
        self._writes: dict[str, int] = {}

    # -- arrays -----------------------------------------------------------------------------------------------------

    def embedded(self, array: np.ndarray) -> Traced | None:
        """Keep a copy of a large array beside the graph."""
        return None if array.size <= _SMALL else self.as_it_is(array)

    def as_it_is(self, array: np.ndarray) -> Traced:
        """Return the handle of a copy of an array, the same for all uses before the array changes."""
        known = self._copies.get(id(array))
        if known is None or known[1].tobytes() != array.tobytes():
            copy = np.array(array, dtype=supported_dtype(array.dtype), order="C")
            known = self._copies[id(array)] = (array, copy, self._held(copy))
        return Traced(known[2])

    def _held(self, array: np.ndarray) -> Storage:
        if array.size <= _SMALL:
            return _Copied(self.root.constant(array), self.root)
        value = self.root.param(TensorType(array.dtype, array.shape), "constant")
        self.graph.bound[value] = array
        return _Copied(value, self.root)

    # -- functions ----------------------------------------------------------------------------------------------------

    def whole(self, call: Callable[[], Any]) -> Any:
        """Call a function whose effects happen when one of its results is asked for; without results, return an operation."""
        root = self.graph.root
        before = len(root.order)
        result = call()
        made = itertools.islice(root.order, before, None)
        effects = tuple(n for n in made if has_effect(n) and n.op.name != "read_variable")
        if not effects or current_scope() is not root:
            return result
        leaves, structure = flatten(result)
        if not leaves:
            return group(Operation(self.graph, effects, "call"), name="call")
        after = [_after(leaf, effects) if isinstance(leaf, Traced) else leaf for leaf in leaves]
        return after[0] if structure.type is None else unflatten(structure, after)

    # -- variables ----------------------------------------------------------------------------------------------------

    def read_variable(self, variable: Any) -> Traced:
        """Return a variable's contents; one node does for all reads between two writes."""
        name, scope = self.adopt(variable), current_scope()
        waits = tuple(self.graph.root.waits)
        key = (scope, name, self._writes.get(name, 0), waits)
        if key not in self._reads:
            type = TensorType(variable.dtype, variable.shape)
            node = scope.node("read_variable", (), {"variable": name}, types=(type,))
            self._reads[key] = fresh(node.output)
        return Traced(self._reads[key].storage)

    def write_variable(self, variable: Any, how: str, value: Any) -> Traced:
        """Make the node that writes a variable; its value is the variable's afterwards."""
        name, scope = self.adopt(variable), current_scope()
        spread = lift(_FUNCTIONS["broadcast_to"](_converted(value, variable.dtype), variable.shape))
        attrs = {"variable": name, "how": how}
        self._writes[name] = self._writes.get(name, 0) + 1
        return fresh(scope.node("update_variable", (read(spread),), attrs).output)

    def scatter_variable(self, variable: Any, how: str, indices: Any, updates: Any) -> Traced:
        """Make the node that writes rows of a variable."""
        name, scope = self.adopt(variable), current_scope()
        places = lift(indices)
        if places.dtype.kind not in "iu":
            raise TypeRuleError(f"indices must be integers, not {places.dtype}", location=here())
        rows = _converted(updates, variable.dtype)
        rows = _FUNCTIONS["broadcast_to"](rows, (*places.shape, *variable.shape[1:]))
        type = TensorType(variable.dtype, variable.shape)
        self._writes[name] = self._writes.get(name, 0) + 1
        inputs = (cast(read(places), I64), read(lift(rows)))
        attrs = {"variable": name, "how": how}
        return fresh(scope.node("scatter_variable", inputs, attrs, types=(type,)).output)


def _after(tensor: Traced, effects: tuple[Node, ...]) -> Traced:
    node = current_scope().node("identity", (read(tensor),), {}, controls=effects)
    return fresh(node.output, tensor.kind)


def _converted(value: Any, dtype: np.dtype) -> Traced:
    found = lift(value)
    return found if found.dtype == dtype else fresh(cast(read(found), dtype))


class Graph:
    """A graph under construction, and the variables and queues it uses.

    >>> graph = Graph()
    >>> with graph:
    ...     x = placeholder(np.float64, (None,), name="x")
    ...     y = np.sin(x).sum()
    >>> import dsl
    >>> with dsl.Session(graph) as session:
    ...     float(session.run(y, {x: np.zeros(3)}))
    0.0
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.placeholders: dict[Value, str] = {}
        self.bound: dict[Value, np.ndarray] = {}  # inputs that are constant
        self.written: dict[str, Traced] = {}  # tensors by name
        self.operations: dict[str, Operation] = {}
        self.flat: Dataflow | None = None  # of a hand-written one
        self.lock = threading.RLock()  # around what sessions add to it
        self._trace = _Building(self)

    @staticmethod
    def of(graph: Dataflow) -> Graph:
        """Return a graph that was written by hand or parsed; its params are placeholders, its results `results`."""
        verify(graph)
        graph = _raised(graph)
        made = Graph(graph.name)
        made.flat = graph
        for param in graph.params:
            name = str(param.node.attrs["name"])
            made.placeholders[param] = name
            made.written[name] = Traced(Storage(param, made.root))
        for node in graph.nodes:
            made.root.order.setdefault(node, len(made.root.order))
        return made

    # -- building -----------------------------------------------------------------------------------------------------

    @property
    def root(self) -> _Root:
        """The scope of the graph."""
        assert isinstance(self._trace.root, _Root)
        return self._trace.root

    def __enter__(self) -> Graph:
        if (around := scopes.device_of_calls()) is not None:
            self._trace.devices.append(around)
        scopes.begin(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        scopes.end()
        if scopes.device_of_calls() is not None:
            self._trace.devices.pop()

    @property
    def resources(self) -> dict[str, Any]:
        """The variables and queues by the names that nodes use."""
        return self._trace.resources

    @property
    def places(self) -> dict[str, str]:
        """The devices of variables that have one."""
        return self._trace.places

    def adopt(self, resource: Any) -> str:
        """Return the name under which nodes refer to a variable or queue."""
        return self._trace.adopt(resource)

    @property
    def variables(self) -> list[Any]:
        """The variables that were made in the graph or that it uses, in order."""
        return [r for r in self.resources.values() if hasattr(r, "assign")]

    @property
    def results(self) -> list[Traced]:
        """The results of a graph that was written by hand."""
        if self.flat is None:
            return []
        return [Traced(Storage(value, self.root)) for value in self.flat.results]

    def tensor(self, name: str) -> Any:
        """Return the tensor or operation of a name."""
        found: Any = self.written.get(name.split(":")[0])
        if found is None:
            found = self.operations.get(name)
        if found is None:
            known = ", ".join(sorted([*self.written, *self.operations])) or "none"
            raise FeedError(
                f"the graph has no tensor named {name!r} (named ones: {known})",
                remedy="pass the tensor itself, or give it a name",
            )
        return found

    def value_of(self, tensor: Any) -> Value:
        """Return the value that a tensor of this graph is now."""
        if tensor.views:
            with self:
                return read(tensor)
        value: Value = tensor.storage.value
        return value

    def owns(self, tensor: Any) -> bool:
        """Tell whether a traced array is a tensor of this graph."""
        return isinstance(tensor, Traced) and tensor.storage.scope is self.root

    def ir(self, *fetches: Any) -> str:
        """Return what a step that fetches these computes, as text; all of the graph if nothing is named."""
        return self.part(*fetches).text

    def part(self, *fetches: Any) -> Dataflow:
        """Return what a step that fetches these computes; all of the graph if nothing is named."""
        from dsl.session.cut import cut

        values = [self.value_of(f) for f in fetches if isinstance(f, Traced)]
        targets = [n for f in fetches if isinstance(f, Operation) for n in f.nodes]
        if not fetches:
            made = list(self.root.order)
            read_by = {v.node for node in made for v in node.inputs}
            targets = [node for node in made if node not in read_by and node.op.name != "const"]
            values = [v for node in targets for v in node.outputs]
        return cut(self, list(self.placeholders), values, targets).graph

    def __repr__(self) -> str:
        return f"<dsl.Graph {self.name!r}: {len(self.root.order)} nodes>"


def _raised(graph: Dataflow) -> Dataflow:
    """Return the structured spelling of a graph, which compiles and differentiates, or the flat one if there is none."""
    try:
        return raise_control(graph)
    except DslError as error:
        log("compile", "%s: stays in the flat form: %s", graph.name, error)
        return graph


def the_graph(what: str) -> tuple[Graph, _Building]:
    """Return the graph that is being built, or raise."""
    trace = current_trace()
    if not isinstance(trace, _Building):
        raise UnsupportedError(
            f"{what} is part of a graph, and none is being built",
            location=here(),
            remedy="write it inside `with dsl.Graph():`",
        )
    return trace.graph, trace


def placeholder(
    dtype: Any, shape: int | Sequence[int | None] = (), name: str | None = None
) -> Traced:
    """Return a tensor that every step feeds; a size of None is any.

    >>> import dsl
    >>> with Graph() as graph:
    ...     x = placeholder(np.float64, (None, 2), name="x")
    ...     total = x.sum()
    >>> float(dsl.Session(graph).run(total, {x: [[1, 2], [3, 4]]}))
    10.0
    """
    graph, trace = the_graph("a placeholder")
    label = _unique(graph, name or "placeholder")
    dims = tuple(_dim(n, f"{label}_{axis}") for axis, n in enumerate(_axes(shape)))
    scope = current_scope()
    if scope is not trace.root:
        raise UnsupportedError("a placeholder inside a branch or loop", location=here())
    value = trace.root.param(TensorType(supported_dtype(dtype), dims), label)
    graph.placeholders[value] = label
    made = Traced(Storage(value, trace.root), (), Kind.ARRAY)
    graph.written[label] = made
    return made


def _axes(shape: Any) -> tuple[Any, ...]:
    if shape is None:
        raise ShapeError(
            "the number of axes of a placeholder must be known", location=here(),
            remedy="give a shape, with None for sizes that are not known",
        )  # fmt: skip
    return tuple(shape) if isinstance(shape, Iterable) else (shape,)


def _dim(size: Any, label: str) -> DimLike:
    if size is None:
        return Symbol(label)
    try:
        found = operator.index(size)
    except TypeError:
        found = -1
    if found < 0:
        raise ShapeError(
            f"a size of a placeholder is a whole number or None, got {size!r}", location=here()
        )
    return found


def _unique(graph: Graph, name: str) -> str:
    found, number = name, 1
    while found in graph.written or found in graph.operations:
        found, number = f"{name}_{number}", number + 1
    return found


def node_of(item: Any) -> tuple[Node, ...]:
    """Return the nodes that stand for a tensor or operation where order is concerned."""
    if isinstance(item, Operation):
        return item.nodes
    if isinstance(item, Traced):
        return (read(item).node,)
    if isinstance(item, (list, tuple)):
        return tuple(node for part in item for node in node_of(part))
    raise UnsupportedError(
        f"expected a tensor or an operation of a graph, got {item!r}", location=here()
    )


def group(*items: Any, name: str = "group") -> Operation:
    """Return an operation that does all that the given tensors and operations stand for.

    >>> import dsl
    >>> with Graph() as graph:
    ...     v, w = dsl.Variable(0), dsl.Variable(0)
    ...     both = group(v.assign_add(1), w.assign_add(2))
    >>> dsl.Session(graph).run(both)
    >>> int(v.value), int(w.value)
    (1, 2)
    """
    graph, _ = the_graph("a group of operations")
    made = Operation(graph, tuple(dict.fromkeys(node_of(items))), _unique(graph, name))
    graph.operations[made.name] = made
    return made


@contextmanager
def control_dependencies(items: Iterable[Any] | None) -> Iterator[None]:
    """What is made inside happens after the given tensors and operations. In a compiled function the order is that of the code.

    With None, what is made inside waits for nothing that blocks around this one name.

    >>> import dsl
    >>> with Graph() as graph:
    ...     v = dsl.Variable(1.0)
    ...     with control_dependencies([v.assign(v * 2)]):
    ...         after = v.read()
    >>> float(dsl.Session(graph).run(after))
    2.0
    """
    trace = current_trace()
    if not isinstance(trace, _Building):
        yield
        return
    root, outer = trace.graph.root, trace.graph.root.waits
    nodes = node_of([] if items is None else list(items))
    waits = tuple(n for n in nodes if n.op.name not in ("param", "const"))
    root.waits = [] if items is None else [*outer, waits]
    try:
        yield
    finally:
        root.waits = outer


@contextmanager
def device(name: str | None) -> Iterator[None]:
    """What is made inside runs on a device: `"cpu:1"`, `"/rank:1/cpu:0"`, or a part of such a name.

    In a graph and in compiled functions those are nodes. Outside it is what is called in the block: compiled functions that
    name no device themselves run on `"cuda:0"`, or `"cuda-emulator:0"`, and graphs that are built have their nodes there.

    >>> import dsl
    >>> double = dsl.jit(lambda x: 2 * x)
    >>> with device("cuda-emulator:0"):
    ...     double(np.ones(2))
    array([2., 2.])
    """
    trace = current_trace()
    if trace is None:
        with calls_on(_device_of_calls(name)):
            yield
        return
    if name is not None and not isinstance(name, str):
        raise NonConcreteError(
            "the name of a device depends on a traced value", location=here(),
            remedy="loop with `dsl.unroll(range(n))`, or write the name out",
        )  # fmt: skip
    before = list(trace.devices)
    trace.devices[:] = [] if name is None else [*before, str(DeviceName.parse(name))]
    try:
        yield
    finally:
        trace.devices[:] = before


def _device_of_calls(name: str | None) -> str | None:
    wanted = DeviceName() if name is None else DeviceName.parse(name)
    if config.disable_jit:  # what would be nodes is computed here and now, on every rank
        return None
    if wanted.rank is not None:
        raise UnsupportedError(
            f"`dsl.device({name!r})` places nodes, and none are being made", location=here(),
            remedy="use it in a function under `dsl.jit`, or inside `with graph:`",
        )  # fmt: skip
    if wanted.kind not in (None, "cpu", "cuda", "cuda-emulator"):
        raise DeviceError(
            f"functions cannot be called on the device {name!r}", location=here(),
            remedy="say 'cpu', 'cuda:0' or 'cuda-emulator:0'",
        )  # fmt: skip
    return None if name is None else str(wanted)


@contextmanager
def colocate_with(item: Any) -> Iterator[None]:
    """What is made inside runs where a tensor, variable or operation is.

    >>> import dsl
    >>> with Graph() as graph:
    ...     with device("cpu:1"):
    ...         v = dsl.Variable(1.0)
    ...     with colocate_with(v):
    ...         y = v + 1.0
    >>> float(dsl.Session(graph, devices=2).run(y))
    2.0
    """
    trace = current_trace()
    if trace is None:
        raise UnsupportedError("`dsl.colocate_with` places nodes", location=here())
    trace.groups.append(_group_of(trace, item))
    try:
        yield
    finally:
        trace.groups.pop()


def _group_of(trace: Trace, item: Any) -> str:
    name = getattr(item, "name", None)
    if isinstance(trace, _Building) and id(item) in trace._names:
        return f"resource:{trace.graph.adopt(item)}"
    if isinstance(item, Traced):
        attrs = read(item).node.attrs
        if "colocate" in attrs:
            return str(attrs["colocate"])
        if isinstance(attrs, dict):
            attrs["colocate"] = f"group_{next(_serial)}"
            return str(attrs["colocate"])
    return f"group:{name or id(item)}"
