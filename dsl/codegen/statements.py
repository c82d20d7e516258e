"""What a plan consists of: kernels, whose roots are computed stage by stage, and single nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dsl.codegen.elements import Elements
from dsl.codegen.expressions import Affine, Expression, Pool, Var, walk
from dsl.codegen.within import Within
from dsl.ir.graph import Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import Shape

__all__ = ["Kernel", "Plan", "Root", "Single", "Stage", "Statement", "is_checked", "reads_of"]


@dataclass(eq=False)
class Root:
    """A value that a kernel computes: a map over the kernel's points or a reduction of one."""

    node: Node
    value: Value
    expression: Expression
    index: tuple[Affine, ...]  # where the element for the current point is stored
    reduce: bool = False
    stage: int = 0


@dataclass(eq=False)
class Stage:
    """Roots computed in one sweep: over whole rows, or once per row."""

    per_row: bool
    roots: list[Root] = field(default_factory=list)


@dataclass(eq=False)
class Kernel:
    """Loops over `variables`; the axes in `inner` are swept for each point of the others, stage by stage."""

    variables: tuple[Var, ...]
    pool: Pool
    elements: Elements
    inner: frozenset[int] | None = None
    stages: list[Stage] = field(default_factory=list)
    reads: dict[Value, None] = field(default_factory=dict)  # in order
    position: int = 0
    plain: bool = False  # whether it has so few points that vectors are not worth it

    @property
    def space(self) -> Shape:
        return tuple(var.extent for var in self.variables)

    @property
    def roots(self) -> Iterator[Root]:
        for stage in self.stages:
            yield from stage.roots

    @property
    def writes(self) -> list[Value]:
        return [root.value for root in self.roots]


@dataclass(eq=False)
class Single:
    """One node by itself."""

    node: Node
    kind: str  # scalar, check, alias, spread, room, update, pieces, library, control
    reads: dict[Value, None] = field(default_factory=dict)  # in order
    position: int = 0
    written: Value | None = None  # by an update

    @property
    def writes(self) -> list[Value]:
        return [v for v in self.node.outputs if self.kind != "check"]


Statement = Kernel | Single


@dataclass
class Plan:
    """Statements in the order in which they run, which values are materialised, and what is part of which update."""

    statements: list[Statement]
    materialised: set[Value]
    within: dict[Node, Within]


def reads_of(expression: Expression) -> Iterable[Expression]:
    """Return the loads and registers in an expression, each once."""
    return (e for e in walk(expression) if e.kind in ("load", "register"))


def is_checked(e: Expression) -> bool:
    """Tell whether computing an expression may fail: an index, or an op that checks its operands."""
    if e.kind != "op" or e.node is None:
        return e.kind == "checked"
    return e.node.op.has(Trait.CHECKED) and (e.dtype.kind == "i" or e.node.op.raised is not None)
