"""The table of how ops of the IR are said in TensorFlow's, and how to enter something in it.

An entry takes an emitter and the refs of a node's inputs, and returns refs of its outputs, or None where TensorFlow has
nothing of the same meaning for these dtypes or attributes; then, and for ops that are not in the table, the graph gets an
op `Dsl...`. What a mapped op may do otherwise in TensorFlow: whole numbers divided by zero raise, an index out of range
raises another error, and of several writes to one place another may win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsl.ir.types import I64
from dsl.summary.nodes import Emitter, Ref, dtype_of

__all__ = ["EMITTERS", "Emit", "Found", "emits", "no_equivalent", "width"]

Found = Ref | Sequence[Ref] | None
Emit = Callable[..., Found]
EMITTERS: dict[str, Emit] = {}


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Enter a function in the table."""

    def enter(function: Emit) -> Emit:
        EMITTERS.update(dict.fromkeys(names, function))
        return function

    return enter


def width(x: Ref) -> int:
    """Return the bytes of an element."""
    return x.dtype.itemsize if isinstance(x.dtype, np.dtype) else 0


def no_equivalent(t: Emitter, attrs: Mapping[str, Any]) -> Sequence[Ref]:
    """Make an op of dsl's own, with the attributes it has in the IR and the dtypes of inputs and outputs."""
    outputs = [dtype_of(type) for type in t.node.types]
    types = {"Tin": [ref.dtype for ref in t.inputs], "Tout": outputs}
    name = "".join(word.capitalize() for word in t.node.op.name.replace(".", "_").split("_"))
    made = t(f"Dsl{name}", *t.inputs, gives=I64, **types | dict(attrs))
    made.node.attrs.pop("T", None)
    return t.outputs(made, *outputs)
