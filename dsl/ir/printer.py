"""Graphs as text.

In: a graph. Out: its canonical text, which `dsl.ir.parser` reads back; docs/reading-the-ir.md explains the grammar.
Names depend on the graph alone: params keep their name, other values are numbered in the order of `Graph.nodes`,
nodes without outputs are labelled `!0`, `!1`, ..., and symbols are named by their hint in order of first
appearance. The terms of a dim are ordered by these names, so the text does not show in which order symbols were
made.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any

import numpy as np

from dsl.ir.dims import Atom, Dim, DimLike, lower_bound, symbols_of
from dsl.ir.graph import Graph, Literal, Node, Value
from dsl.ir.literals import encode, number_text
from dsl.ir.types import BFLOAT16, BY_NAME, DTYPES, HandleType, TensorType, ValueType, dtype_name

__all__ = ["WORDS", "node_lines", "print_graph"]

# Words that mean something else where a symbol may stand.
WORDS = frozenset(
    {"true", "false", "None", "nan", "inf", "max", "min", "mod", "base64", "opaque", *BY_NAME}
)


def print_graph(graph: Graph, *, locations: bool = False) -> str:
    """Return the canonical text of a graph, with each node's source line as a comment if `locations`.

    >>> from dsl.ir.build import Builder
    >>> b = Builder("twice")
    >>> x = b.param(TensorType(BY_NAME["f64"], (3,)), "x")
    >>> print(print_graph(b.finish([b.emit("identity", x)])))
    graph @twice(%x: f64[3]) -> (f64[3]) {
      %0 = identity(%x) : f64[3]
      return %0
    }
    """
    text = _Text(locations)
    lines = text.graph(graph, "")
    return "graph " + text.with_bounds(lines[0], graph.name) + "\n" + "\n".join(lines[1:])


def node_lines(graph: Graph) -> dict[Node, str]:
    """Map each node of a graph and its regions to its line of text, without the regions it owns."""
    text = _Text(False)
    text.graph(graph, "")
    return text.heads


class _Names:
    """Names of the values and nodes of one graph; back edges refer forward, so all are named before any is printed."""

    def __init__(self, graph: Graph) -> None:
        self._values: dict[Value, str] = {}
        self._labels: dict[Node, str] = {}
        taken: dict[str, int] = {}
        for param in graph.params:
            hint = str(param.node.attrs.get("name", "a"))
            self._values[param] = "%" + _unique(_identifier(hint), taken)
        numbers = itertools.count()
        for node in graph.nodes:
            if not node.types:
                self._labels[node] = f"!{len(self._labels)}"
            for value in node.outputs:
                self._values[value] = f"%{next(numbers)}"

    def value(self, value: Value) -> str:
        return self._values.get(value, "%<foreign>")

    def list(self, values: Iterable[Value]) -> str:
        return ", ".join([self._values.get(value, "%<foreign>") for value in values])

    def node(self, node: Node) -> str:
        """How control edges name a node."""
        return self.value(node.outputs[0]) if node.types else self._labels.get(node, "!<foreign>")

    def left(self, node: Node) -> str:
        """The left side of a node's line."""
        return self.list(node.outputs) if node.types else self.node(node)

    def after(self, nodes: Iterable[Node]) -> str:
        listing = ", ".join([self.node(node) for node in nodes])
        return f" after {listing}" if listing else ""


class _Text:
    """The text of one outermost graph; holds what its regions share, the names of symbols."""

    def __init__(self, locations: bool) -> None:
        self.heads: dict[Node, str] = {}
        self._locations = locations
        self._symbols: dict[Dim, str] = {}
        self._taken = dict.fromkeys(WORDS, 0)
        self._dims: dict[Dim, str] = {}
        self._types: dict[ValueType, str] = {}

    # -- graphs and nodes --------------------------------------------------------------------------------------

    def graph(self, graph: Graph, indent: str) -> list[str]:
        names = _Names(graph)
        params = ", ".join([f"{names.value(p)}: {self.type(p.type)}" for p in graph.params])
        results = ", ".join([self.type(value.type) for value in graph.results])
        lines = [f"{indent}@{_global(graph.name)}({params}) -> ({results}) {{"]
        for node in graph.nodes:
            self._node(node, graph, names, indent + "  ", lines)
        results = names.list(graph.results)
        last = "return" + (f" {results}" if results else "") + names.after(graph.effects)
        return [*lines, f"{indent}  {last}", indent + "}"]

    def with_bounds(self, header: str, name: str) -> str:
        """Add to a graph's name the symbols that are known to be more than 0."""
        bounds = sorted((text, lower_bound(symbol)) for symbol, text in self._symbols.items())
        listing = ", ".join(f"{text} >= {bound}" for text, bound in bounds if bound)
        at = len("@" + _global(name))
        return f"{header[:at]}[{listing}]{header[at:]}" if listing else header

    def _node(self, node: Node, graph: Graph, names: _Names, indent: str, lines: list[str]) -> None:
        head = self._head(node, graph, names)
        self.heads[node] = head
        where = _location(node) if self._locations else ""
        lines.append(f"{indent}{head}{' {' if node.regions else ''}{where}")
        if node.regions:
            for region in node.regions:
                lines.extend(self.graph(region, indent + "  "))
            lines.append(indent + "}")

    def _head(self, node: Node, graph: Graph, names: _Names) -> str:
        head = f"{names.left(node)} = {node.op.name}({self._operands(node, graph, names)})"
        if node.attrs:
            head += f" {{{self._attrs(node)}}}"
        if node.controls:
            head += names.after(node.controls)
        if node.types:
            head += " : " + ", ".join([self.type(type) for type in node.types])
        return head

    def _operands(self, node: Node, graph: Graph, names: _Names) -> str:
        if node.dims:
            sizes = zip(node.dims, node.inputs[len(node.data_inputs) :])
            listing = ", ".join(f"{self.dim(dim)}={names.value(value)}" for dim, value in sizes)
            return f"{names.list(node.data_inputs)}; {listing}".lstrip()
        if node in graph.back:
            return names.list((*node.inputs, graph.back[node]))
        return names.list(node.inputs)

    # -- attributes --------------------------------------------------------------------------------------------

    def _attrs(self, node: Node) -> str:
        if node.op.name == "const" and len(node.types) == 1:
            rest = [
                self._attr(key, node.attrs[key]) for key in sorted(node.attrs) if key != "value"
            ]
            return ", ".join(
                [*rest, f"value={self._constant(node.attrs.get('value'), node.types[0])}"]
            )
        return ", ".join([self._attr(key, node.attrs[key]) for key in sorted(node.attrs)])

    def _constant(self, attr: Any, type: ValueType) -> str:
        if isinstance(attr, Literal) and _type_of(attr) == type:
            return encode(attr.array)
        return self.attr(attr)

    def _attr(self, key: str, attr: Any) -> str:
        return key if attr is True else f"{key}={self.attr(attr)}"

    def attr(self, attr: Any) -> str:
        """Return the text of an attribute."""
        if isinstance(attr, (bool, np.bool_)):
            return "true" if attr else "false"
        for kind, spell in _SPELLINGS:
            if isinstance(attr, kind):
                return spell(self, attr)
        return f"opaque{json.dumps(getattr(attr, '__qualname__', repr(attr)))}"

    def _tuple(self, attr: tuple[Any, ...]) -> str:
        items = ", ".join([self.attr(item) for item in attr])
        return f"({items},)" if len(attr) == 1 else f"({items})"

    def _literal(self, attr: Literal) -> str:
        return f"{self.type(_type_of(attr))}:{encode(attr.array)}"

    # -- types and dims ----------------------------------------------------------------------------------------

    def type(self, type: ValueType) -> str:
        """Return the text of a type."""
        text = self._types.get(type)
        if text is None:
            text = self._types[type] = self._type(type)
        return text

    def _type(self, type: ValueType) -> str:
        if isinstance(type, HandleType):
            return str(type)
        return f"{_dtype(type.dtype)}[{', '.join([self.dim(dim) for dim in type.shape])}]"

    def dim(self, dim: DimLike) -> str:
        """Return the text of a dim, naming the symbols that are new."""
        if not isinstance(dim, Dim):
            return str(dim)
        if dim not in self._dims:
            for symbol in symbols_of(dim):
                if symbol not in self._symbols:
                    self._symbols[symbol] = _unique(_identifier(str(symbol)), self._taken)
            self._dims[dim] = self._sum(dim)
        return self._dims[dim]

    def _sum(self, dim: Dim) -> str:
        terms = [(self._factors(factors), scale) for factors, scale in dim.terms]
        terms.sort(key=lambda term: (not term[0], -len(term[0]), term[0]))
        text = _term(*terms[0])
        for factors, scale in terms[1:]:
            text += f" - {_term(factors, -scale)}" if scale < 0 else f" + {_term(factors, scale)}"
        return text

    def _factors(self, factors: tuple[Any, ...]) -> list[str]:
        names = [self._symbols[Dim((((f,), 1),))] for f in factors if not isinstance(f, Atom)]
        return sorted(names) + sorted(self._atom(f) for f in factors if isinstance(f, Atom))

    def _atom(self, atom: Atom) -> str:
        lhs, rhs = self.dim(atom.lhs), self.dim(atom.rhs)
        if atom.kind == "floordiv":
            return f"{_operand(lhs)}//{_operand(rhs)}"
        return f"{atom.kind}({lhs}, {rhs})"


_SPELLINGS: tuple[tuple[Any, Callable[[_Text, Any], str]], ...] = (
    ((int, np.integer), lambda text, attr: str(int(attr))),
    (str, lambda text, attr: json.dumps(attr)),
    (tuple, _Text._tuple),
    (type(None), lambda text, attr: "None"),
    ((float, np.floating, BFLOAT16.type), lambda text, attr: repr(float(attr))),
    ((complex, np.complexfloating), lambda text, attr: number_text(np.complex128(attr))),
    (np.dtype, lambda text, attr: _dtype(attr)),
    (Dim, _Text.dim),
    (Literal, _Text._literal),
    ((TensorType, HandleType), _Text.type),
)


def _term(factors: list[str], scale: int) -> str:
    if not factors:
        return str(scale)
    if len(factors) == 1 and scale == 1:
        return factors[0]
    product = "*".join(f"({f})" if _is_quotient(f) else f for f in factors)
    return product if scale == 1 else f"-{product}" if scale == -1 else f"{scale}*{product}"


def _is_quotient(factor: str) -> bool:
    return "//" in factor and not factor.startswith(("max(", "min(", "mod("))


def _operand(text: str) -> str:
    return text if text.isalnum() or text.isidentifier() else f"({text})"


def _dtype(dtype: np.dtype) -> str:
    """The short name; dumps of broken graphs show the dtypes that have none."""
    return dtype_name(dtype) if dtype in DTYPES else f"<{dtype}>"


def _type_of(literal: Literal) -> TensorType:
    return TensorType(literal.array.dtype, literal.array.shape)


def _identifier(hint: str) -> str:
    if hint.isascii() and hint.isidentifier():
        return hint
    cleaned = re.sub(r"\W", "_", hint, flags=re.ASCII)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def _unique(hint: str, taken: dict[str, int]) -> str:
    """Return `hint`, numbered if it is taken, and take it; `taken` counts the names made from each hint."""
    name = hint
    while name in taken:
        taken[hint] += 1
        name = f"{hint}_{taken[hint]}"
    taken[name] = 0
    return name


def _global(name: str) -> str:
    if name.isascii() and name.isidentifier():
        return name
    return name if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name, re.ASCII) else json.dumps(name)


def _location(node: Node) -> str:
    if node.loc is None:
        return ""
    source = node.loc.source().strip()
    place = f"{PurePath(node.loc.file).name}:{node.loc.line}"
    return f"  # {place}: {source}" if source else f"  # {place}"
