"""The op registry: one record per op.

`op(...)` makes a record and registers it. A record holds everything the rest of the system asks about an op: its type
rule, its meaning in NumPy, its traits, and samples for the sweeps. Passes and executors ask traits, never names.

A type rule is `rule(inputs: tuple[TensorType, ...], attrs) -> TensorType | tuple[...]` and raises `ShapeError` or
`TypeRuleError` with a message about the operands; who called it adds the source line. The NumPy meaning is
`numpy(*arrays, **attrs)` with every symbolic dim in `attrs` already an int; it returns an array or, for several
outputs, a tuple. It never writes into its inputs.

Native code of the built-in ops is in tables of the back end. An op from outside brings its own: `emit` for one element
of an ELEMENTWISE op, with its `cost` in nanoseconds and whether it is `portable`, that is, for GPUs too, or `lower` for
the whole of another; and `raised` for the exception that a number from that code means.

An op that touches what is outside the graph, a variable or a queue, has no NumPy meaning but a facet that is given the
`Environment` of the step: `act(environment, attrs, inputs)` returns the outputs, and `begin(environment, attrs, inputs,
done)` starts something that calls `done(error, outputs)` once, perhaps later and from another thread, and returns what
cancels it. `resource` names what it touches; `{...}` in it stands for an attribute.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.errors import InternalError
from dsl.ir.types import ValueType

__all__ = [
    "OPS",
    "PLACEMENT",
    "Op",
    "Sample",
    "Trait",
    "get_op",
    "given_type",
    "op",
    "placement_of",
]


def placement_of(node: Any) -> dict[str, Any]:
    """Return what a node says about where it runs."""
    attrs = node.attrs
    if not attrs or (PLACEMENT[0] not in attrs and PLACEMENT[1] not in attrs):
        return {}
    return {key: attrs[key] for key in PLACEMENT if key in attrs}


PLACEMENT = ("colocate", "device")
"""Attributes that any node may have: where it runs, and the name of the group of nodes that run in one place."""

TypeRule = Callable[[tuple[Any, ...], Mapping[str, Any]], ValueType | Sequence[ValueType]]


class Trait(enum.Enum):
    """What passes may assume of an op."""

    PURE = "same inputs, same outputs, no effect; equal nodes are one node"
    ELEMENTWISE = "works element by element on inputs broadcast together"
    COMMUTATIVE = "its first two inputs may be swapped"
    VIEW = "moves or selects elements of its first input without arithmetic"
    CHECKED = "may raise for some data; never run unless the program would run it"
    INDEXED = "CHECKED for the places that integers tell alone, which code that is traced checks where nothing goes there"
    DYNAMIC = "a dim of its result depends on data, so the type rule makes a fresh symbol"
    EFFECT = "ordered with other effects on the same resource"
    COLLECTIVE = "other ranks take part: repeated wherever its result is computed again, and its derivative always happens"
    BLOCKING = "may wait for other steps or devices; run by an executor that can do something else meanwhile"
    CONTROL = "structured control flow: owns regions"
    FLAT = "part of the flat spelling of control flow: may see dead tokens"
    RANDOM = "a pure function of an explicit key"

    # Enum's own is a Python function, and passes ask for traits a thousand times in a small graph.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Sample:
    """Inputs on which the sweeps try an op: arrays and attributes; `tolerance` in ulps of the result's dtype."""

    inputs: tuple[np.ndarray, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0


@dataclass(frozen=True, eq=False)
class Op:
    """The record of one op. `signature` names inputs and outputs: `"x, y -> z"`, `*xs` for any number."""

    name: str
    signature: str
    doc: str
    type: TypeRule
    numpy: Callable[..., Any]
    traits: frozenset[Trait]
    samples: Callable[[np.random.Generator], Iterable[Sample]]
    resource: str = ""
    act: Callable[..., Any] | None = None
    begin: Callable[..., Any] | None = None
    emit: Callable[..., Any] | None = None
    cost: Callable[[Sequence[np.dtype]], float] | None = None
    portable: Callable[[Sequence[np.dtype]], bool] | None = None
    lower: Callable[[Any], None] | None = None
    raised: Callable[[Any, int], Exception] | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def has(self, trait: Trait) -> bool:
        return trait in self.traits


OPS: dict[str, Op] = {}


def given_type(inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    """The type rule of an op whose results' types nothing in the graph implies: who makes a node gives them."""
    raise InternalError("the type of this op is given, not derived")


def no_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """For ops that the sweeps cannot call alone, such as control flow; they have tests of their own."""
    return ()


def op(
    name: str,
    signature: str,
    *,
    doc: str,
    type: TypeRule,
    numpy: Callable[..., Any],
    traits: Iterable[Trait] = (Trait.PURE,),
    samples: Callable[[np.random.Generator], Iterable[Sample]] = no_samples,
    resource: str = "",
    **facets: Callable[..., Any],
) -> Op:
    """Register an op and return its record; a name is registered once. `facets` are those of its state or native code."""
    if name in OPS:
        raise InternalError(f"op {name} is registered twice")
    traits = frozenset(traits)
    OPS[name] = Op(name, signature, doc, type, numpy, traits, samples, resource, **facets)
    return OPS[name]


def get_op(name: str) -> Op:
    """Return the record of a registered op."""
    import dsl.ir.ops  # noqa: F401 - registers the built-in ops

    return OPS[name]
