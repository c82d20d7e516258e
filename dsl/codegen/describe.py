"""The kernels stage as text: what each statement of a program computes, over which points, and where it goes.

Values are named as in the text of the optimised graph. A kernel shows its loops (`for`), the axes that are swept for
each point of the others (`sweep`), and one line per root: what it loads, computes and stores.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsl.codegen.expressions import Affine, Expression
from dsl.codegen.plan import Kernel, Root, Single, Statement
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir

__all__ = ["Names", "describe"]

_DEEP = 40  # parts of an expression that are shown


class Names:
    """Names of the values of one graph, as its text has them."""

    def __init__(self, graph: ir.Graph) -> None:
        self.known: dict[ir.Value, str] = {}
        for k, param in enumerate(graph.params):
            hint = str(param.node.attrs.get("name", f"a{k}"))
            taken = f"%{hint}" in self.known.values()
            self.known[param] = f"%{hint}_{k}" if taken else f"%{hint}"
        number = 0
        for node in graph.nodes:
            for value in node.outputs:
                self.known[value] = f"%{number}"
                number += 1

    def __call__(self, value: ir.Value | None) -> str:
        return self.known.get(value, "%?") if value is not None else "%?"


def describe(statement: Statement, names: Names, memory: dict[ir.Value, str]) -> Iterator[str]:
    """Yield the lines of one statement; `memory` tells where arrays are."""
    if isinstance(statement, Single):
        yield _single(statement, names, memory)
    else:
        yield from _kernel(statement, names, memory)


def _single(statement: Single, names: Names, memory: dict[ir.Value, str]) -> str:
    node = statement.node
    left = ", ".join(map(names, node.outputs)) if statement.kind != "check" else "check"
    right = f"{node.op.name}({', '.join(map(names, node.inputs))})"
    where = "".join(f" -> {memory[v]}" for v in node.outputs if v in memory)
    return f"{left} = {right}  [{statement.kind}]{where}" if left != "check" else f"check {right}"


def _kernel(kernel: Kernel, names: Names, memory: dict[ir.Value, str]) -> Iterator[str]:
    inner = kernel.inner or frozenset()
    outer = [v for k, v in enumerate(kernel.variables) if k not in inner]
    swept = [v for k, v in enumerate(kernel.variables) if k in inner]
    yield "kernel for " + (", ".join(f"{v} < {v.extent}" for v in outer) or "one point") + ":"
    for stage in kernel.stages:
        loops = (
            ""
            if stage.per_row or not swept
            else "sweep " + ", ".join(f"{v} < {v.extent}" for v in swept) + ": "
        )
        for root in stage.roots:
            yield f"  {loops}{_root(root, names, memory)}"


def _root(root: Root, names: Names, memory: dict[ir.Value, str]) -> str:
    place = f"[{', '.join(map(_index, root.index))}]" if root.index else ""
    right = _expression(root.expression, names, [_DEEP])
    if root.reduce:
        right = f"{root.node.op.name}({right})"
    where = memory.get(root.value, "registers")
    if isinstance(root.value, StandIn):  # part of the statement above
        return f"{place} = {right}"
    return f"{names(root.value)}{place} = {right} -> {where}"


def _index(a: Affine) -> str:
    parts = [f"{v}" if s == 1 else f"{s}*{v}" for v, s in a.terms]
    parts += ["?" for _ in a.extra]
    if not parts or not (isinstance(a.offset, int) and a.offset == 0):
        parts.append(str(a.offset))
    return " + ".join(parts).replace("+ -", "- ")


def _expression(e: Expression, names: Names, left: list[int]) -> str:
    left[0] -= 1
    if left[0] < 0:
        return "…"
    if e.kind == "load":
        return f"{names(e.value)}[{', '.join(map(_index, e.index))}]"
    if e.kind == "register":
        return names(e.value)
    if e.kind == "const":
        return str(e.constant)
    if e.kind == "index":
        return _index(e.index[0])
    args = ", ".join(_expression(a, names, left) for a in e.args)
    if e.kind == "op" and e.node is not None:
        return f"{e.node.op.name}({args})"
    if e.kind == "inside":
        return f"0 <= {_index(e.index[0])} < {e.constant[1]}"
    return f"{e.kind}({args})"
