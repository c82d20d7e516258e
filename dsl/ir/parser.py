"""Text to graphs: a recursive descent over the grammar of docs/reading-the-ir.md.

In: the text of one graph. Out: the graph, with the types as written (the verifier compares them with the ops'
rules), equal pure nodes made one, and each node located at its line. One symbol is made per name; regions share
those of the outermost graph, while values are scoped to their own graph. Malformed text raises `ParseError`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from dsl.ir.dims import Dim, Symbol
from dsl.ir.graph import Attrs, Graph, Node, Value
from dsl.ir.location import Location
from dsl.ir.reader import Raw, Reader
from dsl.ir.registry import OPS, Op, Trait, get_op
from dsl.ir.tokens import Source, Token
from dsl.ir.types import BY_NAME, TensorType, ValueType

__all__ = ["parse"]


def parse(text: str, name: str = "<ir>") -> Graph:
    """Read one graph; `name` is the file that locations speak of.

    >>> g = parse("graph @half(%n: i64[]) -> (i64[]) { %r = identity(%n) : i64[] return %r }")
    >>> [node.op.name for node in g.nodes]
    ['identity']
    """
    get_op("param")  # registers the built-in ops
    return _Parser(Source(text, name)).outermost()


@dataclass
class _Scope:
    """The names of one graph while it is read."""

    values: dict[str, Value] = field(default_factory=dict)
    labels: dict[str, Node] = field(default_factory=dict)
    interned: dict[Any, Node] = field(default_factory=dict)
    back: list[tuple[Node, Token]] = field(default_factory=list)
    effects: list[tuple[Node, Token]] = field(default_factory=list)


@dataclass
class _Line:
    """The parts of one node's line."""

    names: list[Token]
    op: Token
    operands: list[Token]
    dims: dict[Dim, Token]
    attrs: dict[str, Any]
    controls: list[Node] = field(default_factory=list)
    types: list[ValueType] = field(default_factory=list)
    regions: list[Graph] = field(default_factory=list)


class _Parser(Reader):
    """Reads graphs and nodes."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.scope = _Scope()

    # -- graphs ------------------------------------------------------------------------------------------------

    def outermost(self) -> Graph:
        if not self.accept_word("graph"):
            self.expected("'graph'")
        graph = self.graph()
        if self.kind != "end":
            self.expected("the end of the text")
        return graph

    def graph(self) -> Graph:
        outer, self.scope = self.scope, _Scope()
        self.expect("@", "'@' and the graph's name")
        name = self.graph_name()
        if self.accept("["):
            self.separated(self.bound, "]")
        params = self.params()
        self.expect("->")
        self.expect("(")
        types = self.separated(self.type, ")")
        self.expect("{")
        graph = self.body(name, params, types)
        self.scope = outer
        return graph

    def graph_name(self) -> str:
        if self.kind == "string":
            return self.string()
        parts = [self.expect("name", "the graph's name")[1]]
        while self.accept("."):
            parts.append(self.next()[1])
        return ".".join(parts)

    def bound(self) -> None:
        """A symbol and what it is at least: `n >= 2`."""
        token = self.expect("name", "the name of a size")
        self.expect(">=")
        minimum = self.expect("number", "a number")
        if token[1] in self.symbols:
            self.fail(f"the size {token[1]} is bounded after its first use, or twice", token)
        self.symbols[token[1]] = Symbol(token[1], int(minimum[1]))

    def params(self) -> tuple[Value, ...]:
        self.expect("(")
        found = self.separated(self.param, ")")
        return tuple(found)

    def param(self) -> Value:
        token = self.expect("value", "a parameter such as %x")
        self.expect(":")
        attrs = {"name": token[1][1:]}
        made = Node(get_op("param"), (), attrs, (self.type(),), loc=self.location(token))
        self.define(token, made.output)
        return made.output

    def body(self, name: str, params: tuple[Value, ...], types: list[ValueType]) -> Graph:
        while not self.is_word("return"):
            if self.kind in ("}", "end"):
                self.fail(f"graph @{name} has no return")
            self.node()
        token = self.next()
        results = self.several(self.operand_value) if self.kind == "value" else []
        effects = self.after()
        self.expect("}", "'}' after the return")
        self.check_results(token, [value.type for value in results], types)
        graph = Graph(name, params, tuple(results), tuple(effects), self.back_edges())
        self.check_effects(graph)
        return graph

    def check_results(self, token: Token, got: list[ValueType], declared: list[ValueType]) -> None:
        if len(got) != len(declared):
            self.fail(f"the header declares {len(declared)} results, got {len(got)}", token)
        for number, (type, other) in enumerate(zip(got, declared, strict=True)):
            if type != other:
                self.fail(f"the header declares result {number} as {other}, got {type}", token)

    def back_edges(self) -> dict[Node, Value]:
        return {node: self.lookup(token) for node, token in self.scope.back}

    def check_effects(self, graph: Graph) -> None:
        reached = set(graph.nodes) if self.scope.effects else set()
        for node, token in self.scope.effects:
            if node not in reached:
                name = token[1] if token[0] != "name" else "its label"
                self.fail(
                    f"nothing needs the effect {node.op.name}; add 'after {name}' to the return",
                    token,
                )

    # -- nodes -------------------------------------------------------------------------------------------------

    def node(self) -> None:
        line = self.line()
        op = self.op(line.op)
        inputs = [self.lookup(token) for token in self.forward_inputs(line)]
        inputs += [self.lookup(token) for token in line.dims.values()]
        self.check_arity(line)
        self.type_constant(line)
        made = self.intern(op, tuple(inputs), line)
        self.note(made, line)

    def line(self) -> _Line:
        names = self.names()
        op = self.expect("name", "the name of an op")
        self.op(op)
        line = _Line(names, op, *self.operands(), self.attrs(op[1] == "const"))
        line.controls = self.after()
        if self.accept(":"):
            line.types = self.several(self.type)
        if self.kind == "{":
            line.regions = self.regions()
        return line

    def names(self) -> list[Token]:
        """The left side of a line: values, a label, or nothing."""
        if self.kind == "name":
            return []
        if self.kind == "label":
            found = [self.next()]
        else:
            found = self.several(lambda: self.expect("value", "a node or 'return'"))
        self.expect("=")
        return found

    def op(self, token: Token) -> Op:
        record = OPS.get(token[1])
        if record is None or token[1] == "param":
            near = difflib.get_close_matches(token[1], OPS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.fail(f"unknown op {token[1]}{hint}", token)
        return record

    def operands(self) -> tuple[list[Token], dict[Dim, Token]]:
        self.expect("(")
        values: list[Token] = []
        if self.kind == "value":
            values = self.several(lambda: self.expect("value", "a value such as %x"))
        dims = dict(self.several(self.size)) if self.accept(";") else {}
        self.expect(")", "',' or ')'")
        return values, dims

    def size(self) -> tuple[Dim, Token]:
        """The size of a symbol: `n=%3`."""
        symbol = self.symbol(self.expect("name", "the name of a size")[1])
        self.expect("=")
        return symbol, self.expect("value", "a value such as %x")

    def forward_inputs(self, line: _Line) -> list[Token]:
        """The operands without the back edge, whose value is defined later."""
        return line.operands[:1] if line.op[1] == "loop_merge" else line.operands

    def after(self) -> list[Node]:
        return self.several(self.control) if self.accept_word("after") else []

    def control(self) -> Node:
        if self.kind == "value":
            return self.lookup(self.next()).node
        token = self.expect("label", "a value or a label such as !0")
        if token[1] not in self.scope.labels:
            self.fail(f"{token[1]} is not defined before this line", token)
        return self.scope.labels[token[1]]

    def regions(self) -> list[Graph]:
        self.expect("{")
        found: list[Graph] = []
        while not self.accept("}"):
            found.append(self.graph())
        return found

    def check_arity(self, line: _Line) -> None:
        values = [token for token in line.names if token[0] == "value"]
        if len(values) != len(line.types):
            self.fail(
                f"{len(values)} names for {len(line.types)} results", (line.names or [line.op])[0]
            )

    def type_constant(self, line: _Line) -> None:
        raw = line.attrs.get("value")
        if not isinstance(raw, Raw):
            return
        (type,) = line.types if len(line.types) == 1 else (None,)
        if not isinstance(type, TensorType):
            self.fail("a constant has one result, a tensor", line.op)
        line.attrs["value"] = self.literal(raw, type, line.op)

    def intern(self, op: Op, inputs: tuple[Value, ...], line: _Line) -> Node:
        """Make a node, or find the equal pure one."""
        types, controls, dims = tuple(line.types), tuple(line.controls), tuple(line.dims)
        key: Any = None
        if op.has(Trait.PURE) and not line.regions:
            key = (op.name, inputs, _attrs_key(line.attrs), types, controls, dims)
            if key in self.scope.interned:
                return self.scope.interned[key]
        where = self.location(line.op)
        made = Node(op, inputs, line.attrs, types, tuple(line.regions), controls, dims, where)
        if key is not None:
            self.scope.interned[key] = made
        return made

    def note(self, node: Node, line: _Line) -> None:
        """Enter a node and its outputs into the scope."""
        if line.names and line.names[0][0] == "label":
            self.define_label(line.names[0], node)
        else:
            for token, value in zip(line.names, node.outputs, strict=True):
                self.define(token, value)
        if line.op[1] == "loop_merge":
            self.scope.back += [(node, token) for token in line.operands[1:]]
        if node.op.has(Trait.EFFECT) or any(region.effects for region in node.regions):
            self.scope.effects.append((node, (line.names or [line.op])[0]))

    def define(self, token: Token, value: Value) -> None:
        if token[1] in self.scope.values:
            self.fail(f"{token[1]} is defined twice", token)
        self.scope.values[token[1]] = value

    def define_label(self, token: Token, node: Node) -> None:
        if token[1] in self.scope.labels:
            self.fail(f"{token[1]} is defined twice", token)
        self.scope.labels[token[1]] = node

    def lookup(self, token: Token) -> Value:
        value = self.scope.values.get(token[1])
        if value is None:
            self.fail(f"{token[1]} is not defined before this line", token)
        return value

    def operand_value(self) -> Value:
        return self.lookup(self.expect("value", "a value such as %x"))

    def location(self, token: Token) -> Location:
        return Location(self.source.name, self.source.line(token[2]))

    def attrs(self, constant: bool) -> dict[str, Any]:
        if self.kind != "{" or self.tokens[self.at + 1][0] == "@":
            return {}
        self.next()
        found: dict[str, Any] = {}
        self.separated(lambda: self.attr(found, constant), "}")
        return found

    def attr(self, found: dict[str, Any], constant: bool) -> None:
        token = self.expect("name", "the name of an attribute")
        if token[1] in found:
            self.fail(f"attribute {token[1]} is given twice", token)
        if self.accept("="):
            raw = constant and token[1] == "value"
            found[token[1]] = self.constant() if raw else self.expression()
        else:
            found[token[1]] = Raw(True) if constant else True

    def constant(self) -> Any:
        """The value of a `const`: typed by the node unless it says its own type."""
        if self.tokens[self.at][1] in BY_NAME:
            return self.typed(self.next())
        return Raw(self.raw())


def _attrs_key(attrs: Attrs) -> tuple[tuple[str, Any], ...]:
    return tuple([(name, _key(attrs[name])) for name in sorted(attrs)])


def _key(attr: Any) -> Any:
    """A key that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    if isinstance(attr, tuple):
        return tuple([_key(item) for item in attr])
    return (type(attr), repr(attr)) if isinstance(attr, (float, complex)) else (type(attr), attr)
