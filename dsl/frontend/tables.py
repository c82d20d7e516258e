"""Tables as lists of lists: `t[i][j] = x` in a loop over i changes a list that the index tells, which only unrolling can follow.

A loop of many trips that does so is refused before it is traced: what a large table holds takes seconds to look at.
"""

from __future__ import annotations

import ast
from typing import Any

from dsl.config import config
from dsl.errors import AliasError
from dsl.frontend.scopes import here

__all__ = ["refuse_tables", "tables_changed"]

_LARGE = 512


def tables_changed(loop: ast.For) -> list[str]:
    """Return what a loop assigns in the form `t[i][j]`, where `t` is a variable and `i` one that the loop counts by."""
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    found = [ast.unparse(node) for node in _stored(loop.body) if _is_in_table(node, names)]
    return list(dict.fromkeys(found))


def _stored(nodes: list[Any]) -> list[ast.Subscript]:
    """Return the items that statements assign, apart from those under a flag, which may be false."""
    found = []
    for node in nodes:
        if isinstance(node, ast.If) and isinstance(
            node.test, (ast.Name, ast.Attribute, ast.Constant)
        ):
            continue
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.append(node)
        found += _stored(list(ast.iter_child_nodes(node)))
    return found


def _is_in_table(node: ast.Subscript, names: set[str]) -> bool:
    row = node.value
    if not (isinstance(row, ast.Subscript) and isinstance(row.value, ast.Name)):
        return False
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(row.slice))


def refuse_tables(changed: tuple[str, ...], variables: dict[str, Any], trips: Any) -> None:
    """Refuse a loop that is too long to be unrolled and changes items of large tables."""
    limit = config.unroll_limit
    if isinstance(trips, int) and trips <= limit:
        return
    for target in changed:
        name = target.partition("[")[0]
        table = variables.get(name)
        if (
            type(table) is list
            and table
            and type(table[0]) is list
            and len(table) * len(table[0]) > _LARGE
        ):
            length = (
                f"of {trips} trips" if isinstance(trips, int) else "whose length the data decides"
            )
            raise AliasError(
                f"this loop assigns `{target}`, an item of a list in the list `{name}`, and which list that is depends on the trip",
                location=here(),
                remedy=f"use an array: `{name} = np.zeros(({len(table)}, {len(table[0])}))` and `{_as_array(target)} = ...`; "
                f"a loop {length} is not unrolled (DSL_UNROLL_LIMIT={limit})",
            )  # fmt: skip


def _as_array(target: str) -> str:
    """Return `t[i][j]` as `t[i, j]`."""
    node: Any = ast.parse(target, mode="eval").body
    return f"{ast.unparse(node.value.value)}[{ast.unparse(node.value.slice)}, {ast.unparse(node.slice)}]"
