"""Algebraic simplification: replace an expression by a cheaper one that is equal bit for bit.

The rules are data, in `dsl.passes.rules`, one line each. They are applied bottom-up, to a fixpoint, in one walk. No
rule changes a NaN, an infinity, the sign of a zero, a dtype or a shape, so x + 0.0 stays (it turns -0.0 into 0.0) while
x - 0.0 goes. In flat graphs only rules that read the same values on both sides apply: a dead token must stay dead.

    %0 = const() {value=1.0} : f64[]
    %1 = multiply(%x, %0) : f64[n]            ->     %0 = subtract(%x, %y) : f64[n]
    %2 = negative(%y) : f64[n]
    %3 = add(%1, %2) : f64[n]
"""

from __future__ import annotations

from dsl.ir.graph import Graph
from dsl.ir.patterns import apply_rules
from dsl.ir.rewrite import rebuild
from dsl.passes.rules import ALGEBRA

__all__ = ["simplify"]

_rewrite = apply_rules(ALGEBRA)


def simplify(graph: Graph) -> Graph:
    """Return the graph with the rules of algebra applied."""
    return rebuild(graph, _rewrite)
