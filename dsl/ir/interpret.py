"""The reference interpreter: says what a structured graph means, one NumPy call per node.

Rank-0 results are arrays of rank 0. Inputs are never written. Effects happen in order of the control edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.errors import DslError, InternalError, UnsupportedError
from dsl.ir.build import attr_symbols
from dsl.ir.communicator import at_location
from dsl.ir.dims import Dim, DimLike, substitute
from dsl.ir.environment import Environment
from dsl.ir.graph import Attrs, Graph, Node, Value
from dsl.ir.registry import PLACEMENT, Trait
from dsl.ir.types import TensorType, bind_shape

__all__ = ["apply_node", "interpret"]


def interpret(
    graph: Graph, args: Sequence[Any], environment: Environment | None = None
) -> list[Any]:
    """Run a structured graph and return its results; what waits, waits here."""
    if len(args) != len(graph.params):
        raise InternalError(
            f"graph {graph.name} takes {len(graph.params)} arguments, got {len(args)}"
        )
    values: dict[Value, Any] = dict(zip(graph.params, map(np.asarray, args), strict=True))
    last_use = _last_uses(graph)
    for node in graph.nodes:
        inputs = [values[value] for value in node.inputs]
        for value in last_use.get(node, ()):
            del values[value]
        values.update(zip(node.outputs, apply_node(node, inputs, environment), strict=True))
    return [values[value] for value in graph.results]


def _last_uses(graph: Graph) -> dict[Node, list[Value]]:
    """Map each node to the values that nothing after it reads, so that their memory can go."""
    kept, seen = set(graph.results), set()
    last: dict[Node, list[Value]] = {}
    for node in reversed(graph.nodes):
        for value in node.inputs:
            if value not in kept and value not in seen:
                seen.add(value)
                last.setdefault(node, []).append(value)
    return last


def apply_node(
    node: Node, inputs: Sequence[Any], environment: Environment | None = None
) -> list[Any]:
    """Run one node on arrays and return its outputs."""
    if node.regions:
        return _STRUCTURED[node.op.name](node, inputs, environment)
    attrs, data = node.attrs, inputs
    if "device" in attrs or "colocate" in attrs:
        attrs = {name: attr for name, attr in attrs.items() if name not in PLACEMENT}
    if node.dims or attr_symbols(attrs):
        attrs = _resolve_attrs(node, attrs, inputs)
        data = inputs[: len(inputs) - len(node.dims)]
    found: Any
    try:
        with np.errstate(all="ignore"):
            if node.op.act is not None or node.op.begin is not None:
                found = _act(node, attrs, data, environment)
            elif node.op.has(Trait.COLLECTIVE):
                with at_location(node.loc):
                    found = node.op.numpy(*data, **attrs)
            else:
                found = node.op.numpy(*data, **attrs)
    except DslError as error:
        error.location = error.location or node.loc
        raise
    except Exception as error:
        if node.loc is not None:
            error.add_note(node.loc.excerpt())
        raise
    outputs = found if isinstance(found, tuple) else (found,)
    return [_typed(array, type) for array, type in zip(outputs, node.types, strict=True)]


def _typed(array: Any, type: Any) -> Any:
    if not isinstance(type, TensorType):
        return array
    result = np.asarray(array)
    if result.dtype != type.dtype:
        raise InternalError(f"a kernel returned {result.dtype} where the type says {type}")
    return result


def _act(
    node: Node, attrs: Attrs, inputs: Sequence[Any], environment: Environment | None
) -> tuple[Any, ...]:
    if environment is None:
        raise UnsupportedError(
            f"`{node.op.name}` touches something outside the graph, which is not there",
            remedy="run the graph in a `dsl.Session`, or pass an environment",
        )
    if node.op.act is not None:
        return tuple(node.op.act(environment, attrs, inputs))
    assert node.op.begin is not None
    return tuple(environment.wait(node.op.begin, attrs, inputs))


def _resolve_attrs(node: Node, attrs: Attrs, inputs: Sequence[Any]) -> Attrs:
    sizes = node_sizes(node, inputs)
    return {name: _resolve(attr, sizes) for name, attr in attrs.items()}


def node_sizes(node: Node, inputs: Sequence[Any]) -> dict[Dim, int]:
    """Return the size of every symbol that a node's inputs give."""
    sizes: dict[Dim, int] = {}
    for symbol, array in zip(node.dims, inputs[len(inputs) - len(node.dims) :], strict=True):
        sizes[symbol] = int(array)
    for value, array in zip(node.data_inputs, inputs, strict=False):
        if isinstance(value.type, TensorType):
            bind_shape(value.type.shape, array.shape, sizes)
    return sizes


def _resolve(attr: Any, sizes: dict[Dim, int]) -> Any:
    if isinstance(attr, Dim):
        found: DimLike = substitute(attr, sizes)
        return found
    if isinstance(attr, tuple):
        return tuple(_resolve(item, sizes) for item in attr)
    return attr


# -- structured control flow -----------------------------------------------------------------------------------


def _cond(node: Node, inputs: Sequence[Any], environment: Environment | None) -> list[Any]:
    then, otherwise = node.regions
    return interpret(then if bool(inputs[0]) else otherwise, inputs[1:], environment)


def _while(node: Node, inputs: Sequence[Any], environment: Environment | None) -> list[Any]:
    test, body = node.regions
    count = node.attrs["carried"]
    carried, invariants = list(inputs[:count]), list(inputs[count:])
    while bool(interpret(test, carried + invariants, environment)[0]):
        carried = interpret(body, carried + invariants, environment)
    return carried


def _scan(node: Node, inputs: Sequence[Any], environment: Environment | None) -> list[Any]:
    (body,) = node.regions
    count = node.attrs["carried"]
    trips, carried, invariants = (
        int(inputs[0]),
        list(inputs[1 : 1 + count]),
        list(inputs[1 + count :]),
    )
    for trip in range(trips):
        carried = interpret(body, [np.int64(trip), *carried, *invariants], environment)
    return carried


def _recording_while(
    node: Node, inputs: Sequence[Any], environment: Environment | None
) -> list[Any]:
    test, body = node.regions
    count = node.attrs["carried"]
    carried, invariants = list(inputs[:count]), list(inputs[count:])
    rows: list[list[Any]] = []
    while bool(interpret(test, carried + invariants, environment)[0]):
        results = interpret(body, carried + invariants, environment)
        carried, row = results[:count], results[count:]
        rows.append(row)
    return carried + _stacked(node, inputs, rows)


def _recording_scan(
    node: Node, inputs: Sequence[Any], environment: Environment | None
) -> list[Any]:
    (body,) = node.regions
    count = node.attrs["carried"]
    carried, invariants = list(inputs[1 : 1 + count]), list(inputs[1 + count :])
    rows: list[list[Any]] = []
    for trip in range(int(inputs[0])):
        results = interpret(body, [np.int64(trip), *carried, *invariants], environment)
        carried, row = results[:count], results[count:]
        rows.append(row)
    return carried + _stacked(node, inputs, rows)


def _stacked(node: Node, inputs: Sequence[Any], rows: list[list[Any]]) -> list[Any]:
    """Stack what the trips recorded; what has no axis more outside than in the body is joined along its first."""
    if rows:
        recorded = node.outputs[node.attrs["carried"] :]
        return [
            (np.concatenate if len(value.shape) == column[0].ndim else np.stack)(column)
            for value, column in zip(recorded, zip(*rows, strict=True), strict=True)
        ]
    sizes = node_sizes(node, inputs)
    return [
        np.zeros(
            (0, *(n if isinstance(n := substitute(d, sizes), int) else 0 for d in type.shape[1:])),
            type.dtype,
        )
        for type in node.types[node.attrs["carried"] :]
        if isinstance(type, TensorType)
    ]


def _call(node: Node, inputs: Sequence[Any], environment: Environment | None) -> list[Any]:
    return interpret(node.regions[0], inputs, environment)


_STRUCTURED = {
    "cond": _cond, "while": _while, "scan": _scan, "recording_while": _recording_while,
    "recording_scan": _recording_scan, "checkpoint": _call, "custom_vjp": _call, "custom_jvp": _call,
}  # fmt: skip
