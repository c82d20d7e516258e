"""Checks of single nodes: where operands come from, their number, attributes, sizes and types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from dsl.ir.build import attr_symbols
from dsl.ir.checks.facts import Facts, Finding
from dsl.ir.checks.matching import bind, symbols_in, types_text
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.graph import Literal, Node, Value
from dsl.ir.registry import PLACEMENT, Op, Trait, given_type
from dsl.ir.types import DTYPES, I64, TensorType, ValueType, scalar

# -- edges -----------------------------------------------------------------------------------------------------


def closed(facts: Facts) -> Iterator[Finding]:
    """Nodes are found by following edges, so a foreign value shows as a param that is not this graph's."""
    for node in facts.nodes:
        for value in node.inputs:
            if fault := _foreign(value, facts):
                yield node, fault
        for before in node.controls:
            if before.op.name == "param" and before not in facts.own_params:
                yield node, "a control edge comes from a param of another graph"
    for value in (*facts.graph.results, *facts.graph.back.values()):
        if fault := _foreign(value, facts):
            yield value.node, fault


def _foreign(value: Value, facts: Facts) -> str:
    node = value.node
    if node.op.name == "param" and node not in facts.own_params:
        return f"it reads {node.attrs.get('name', 'a param')}, a param of another graph"
    if value.index >= len(node.outputs) or node.outputs[value.index] is not value:
        return f"it reads a value that {node.op.name} does not have"
    return ""


def params(facts: Facts) -> Iterator[Finding]:
    seen: set[Value] = set()
    for value in facts.graph.params:
        if value.node.op.name != "param":
            yield value.node, f"the op is {value.node.op.name}"
        elif value in seen:
            yield value.node, f"{value.node.attrs.get('name')} stands twice"
        seen.add(value)


def acyclic(facts: Facts) -> Iterator[Finding]:
    """`Graph.nodes` lists producers first, which no order can do for a cycle."""
    done = set(facts.own_params)
    for node in facts.nodes:
        sources = [value.node for value in node.inputs] + list(node.controls)
        if any(source in facts.members and source not in done for source in sources):
            yield node, "it needs what it makes"
        done.add(node)


# -- numbers of operands and results ----------------------------------------------------------------------------


def arity(facts: Facts) -> Iterator[Finding]:
    for node in facts.nodes:
        left, right = _counts(node.op)
        if len(node.dims) > len(node.inputs):
            yield node, f"{len(node.dims)} sizes for {len(node.inputs)} operands"
        elif not left(len(node.data_inputs)):
            yield (
                node,
                f"{node.op.name} is `{node.op.signature}`, got {len(node.data_inputs)} operands",
            )
        elif not right(len(node.types)):
            yield node, f"{node.op.name} is `{node.op.signature}`, got {len(node.types)} results"


@cache
def _counts(op: Op) -> tuple[Callable[[int], bool], Callable[[int], bool]]:
    left, _, right = op.signature.partition("->")
    return _count(left), _count(right)


def _count(names: str) -> Callable[[int], bool]:
    listed = [name for name in names.replace(" ", "").split(",") if name]
    least = sum(not name.startswith("*") for name in listed)
    open_ended = least < len(listed)
    return lambda count: count >= least if open_ended else count == least


# -- attributes -------------------------------------------------------------------------------------------------

Kinds = tuple[type, ...]
_INT, _TUPLE, _DTYPE = (int, np.integer, Dim), (tuple,), (np.dtype,)

# How the NumPy meaning of an op annotates or names an attribute -> what it may be.
_BY_ANNOTATION: dict[str, Kinds] = {
    "int": _INT, "bool": (bool,), "str": (str,), "np.dtype": _DTYPE, "tuple[int, ...]": _TUPLE, "Ints": _TUPLE,
}  # fmt: skip
_BY_NAME: dict[str, Kinds] = {
    "axis": _INT, "axes": _TUPLE, "shape": _TUPLE, "dtype": _DTYPE, "size": _INT,
}  # fmt: skip

# Control flow has no NumPy meaning that would tell; passes may add attributes of their own to it.
_CONTROL: dict[str, dict[str, Kinds]] = {
    "while": {"carried": (int,)}, "scan": {"carried": (int,)}, "recording_while": {"carried": (int,)},
    "recording_scan": {"carried": (int,)}, "enter": {"frame": (str,)}, "send": {"key": (str,)}, "recv": {"key": (str,)},
}  # fmt: skip
_OPTIONAL: dict[str, Kinds] = {"invariant": (bool,), "parallel_iterations": (int,)}


def attributes(facts: Facts) -> Iterator[Finding]:
    for node in facts.nodes:
        if node.attrs or _required(node.op):
            yield from ((node, fault) for fault in _attribute_faults(node))


def _attribute_faults(node: Node) -> Iterator[str]:
    for name in _required(node.op).keys() - node.attrs.keys():
        yield f"{node.op.name} needs the attribute {name}"
    known = _attributes(node.op)
    for name, attr in node.attrs.items():
        if name in PLACEMENT:
            continue
        if known is not None and name not in known:
            yield f"{node.op.name} has no attribute {name}"
        elif not _is_kind(attr, _kinds(node.op, name)):
            yield f"attribute {name} is a {type(attr).__name__}"
        elif name == "parallel_iterations" and attr < 1:
            yield f"attribute {name} is {attr}, not at least 1"


def _is_kind(attr: Any, kinds: Kinds) -> bool:
    return not kinds or (isinstance(attr, kinds) and (bool in kinds or not isinstance(attr, bool)))


def _kinds(op: Op, name: str) -> Kinds:
    if op.name == "const":
        return (Literal,)
    return (_attributes(op) or {**_OPTIONAL, **_required(op)}).get(name, ())


@cache
def _required(op: Op) -> Mapping[str, Kinds]:
    if op.has(Trait.CONTROL) or op.has(Trait.FLAT):
        return _CONTROL.get(op.name, {})
    return {p.name: _kinds_of(p) for p in _parameters(op) or () if p.default is p.empty}


@cache
def _attributes(op: Op) -> Mapping[str, Kinds] | None:
    """The attributes of an op and what each may be, or None when any will do."""
    found = _parameters(op)
    return None if found is None else {p.name: _kinds_of(p) for p in found}


@cache
def _parameters(op: Op) -> list[inspect.Parameter] | None:
    """What the NumPy meaning takes besides arrays."""
    if isinstance(op.numpy, np.ufunc):
        return []
    try:
        found = list(inspect.signature(op.numpy).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    arrays = [name for name in op.signature.partition("->")[0].split(",") if name.strip()]
    fixed = sum(not name.strip().startswith("*") for name in arrays)
    spread = any(p.kind is p.VAR_POSITIONAL for p in found[:fixed])
    rest = found if spread else found[fixed:]
    return [p for p in rest if p.kind is not p.VAR_POSITIONAL]


def _kinds_of(parameter: inspect.Parameter) -> Kinds:
    annotation = str(parameter.annotation)
    return _BY_ANNOTATION.get(annotation) or _BY_NAME.get(parameter.name, ())


# -- types ------------------------------------------------------------------------------------------------------


def supported(facts: Facts) -> Iterator[Finding]:
    for node in (*(value.node for value in facts.graph.params), *facts.nodes):
        for type in node.types:
            if isinstance(type, TensorType) and (fault := _type_fault(type)):
                yield node, fault


def _type_fault(type: TensorType) -> str:
    if type.dtype not in DTYPES:
        return f"dtype {type.dtype}"
    if any(isinstance(dim, int) and dim < 0 for dim in type.shape):
        return f"negative size in {type}"
    return ""


def sizes_given(facts: Facts) -> Iterator[Finding]:
    for node in facts.sound():
        wanted = attr_symbols(node.attrs) if node.attrs else []
        if not wanted:
            continue
        given = {*node.dims, *_bare_symbols(node.data_inputs)}
        missing = [symbol for symbol in wanted if symbol not in given]
        if missing:
            yield node, f"nothing gives the size {', '.join(map(str, missing))}"


def _bare_symbols(values: tuple[Value, ...]) -> Iterator[Dim]:
    for value in values:
        if isinstance(value.type, TensorType):
            for dim in value.type.shape:
                if isinstance(dim, Dim) and symbols_of(dim) == [dim]:
                    yield dim


def sizes_are_scalars(facts: Facts) -> Iterator[Finding]:
    for node in facts.sound():
        for symbol, value in zip(node.dims, node.inputs[len(node.data_inputs) :]):
            if symbols_of(symbol) != [symbol]:
                yield node, f"{symbol} is not a symbol"
            elif value.type != scalar(I64):
                yield node, f"the size of {symbol} is {value.type}"


# A merge may widen what it gets, and structured control flow has rules of its own.
_OWN_TYPE_RULES = {"merge", "loop_merge"}


def types_follow(facts: Facts) -> Iterator[Finding]:
    for node in facts.sound():
        if node.op.has(Trait.CONTROL) or node.op.name in _OWN_TYPE_RULES | {"param"}:
            continue
        if node.op.type is given_type:
            continue
        inputs = tuple([value.type for value in node.data_inputs])
        try:
            found = node.op.type(inputs, node.attrs)
        except Exception as error:  # a rule may trip over anything in a broken graph
            yield node, getattr(error, "message", f"{type(error).__name__}: {error}")
            continue
        wanted = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if wanted != node.types and not _renamed(wanted, node, inputs):
            yield node, f"the rule of {node.op.name} gives {types_text(wanted)}"


def _renamed(wanted: tuple[Any, ...], node: Node, inputs: tuple[ValueType, ...]) -> bool:
    """Tell whether the types differ only in the names of symbols that no input or attribute has."""
    fixed = symbols_in(inputs) | set(attr_symbols(node.attrs))
    there, back = bind(wanted, node.types, fixed), bind(node.types, wanted, fixed)
    return there is not None and back is not None
