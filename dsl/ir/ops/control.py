"""Params, constants, structured control flow and its flat spelling.

Structured: `cond(pred, *operands)` runs one of its two regions on the operands. `while(*carried, *invariants)` runs its
second region, which returns the next carried values, as long as its first returns true; both regions take all inputs.
`scan(trips, *carried, *invariants)` is the counted loop: its region takes the trip number, from 0, before the others.
The attribute `carried` counts the carried values. A loop that makes no trip returns its inputs. What autodiff makes of
loops keeps values of every trip: the bodies of `recording_while` and `recording_scan` return, after the carried values,
others that come out stacked along a new first axis or, if the result's type has no axis more, joined along their first,
the size of which may then change from trip to trip. `checkpoint` runs its region. `custom_vjp` and `custom_jvp` run their
first; the others are the user's derivative. With `n` the attribute `operands`, the number of operands that are arguments,
the second region of `custom_vjp` takes all operands and returns results and residuals; its third takes the operands after
the first n, the residuals and the cotangents of the results, and returns the cotangents of the first n, which `given`
numbers. The second region of `custom_jvp` takes all operands and the tangents of the first n.

Flat: tokens with tags, as in the papers. `switch(data, pred)` sends data to output 0 when pred is false and to output 1
when it is true; the other output is dead. `merge` passes on its live input. `enter`, `exit` and `next_iteration` move
tokens between frames and iterations; `loop_merge(first, back)` reads `first` in iteration 0 and `back` in later ones.
Any other op with a dead input is dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsl.errors import InternalError, TypeRuleError
from dsl.ir.registry import Trait, op
from dsl.ir.types import BOOL, I64, TensorType, scalar


def _structural(*args: Any, **attrs: Any) -> Any:
    raise InternalError("this op has no meaning outside its graph")


def _given(inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
    raise InternalError("the type of this op is given, not derived")


def _same(inputs: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> TensorType:
    return inputs[0]


def _const_type(inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> TensorType:
    array = attrs["value"].array
    return TensorType(array.dtype, array.shape)


def _predicate(inputs: tuple[TensorType, ...], attrs: Mapping[str, Any]) -> TensorType:
    if inputs[0] != scalar(BOOL):
        raise TypeRuleError(f"a predicate must be bool[], got {inputs[0]}")
    return inputs[0]


def _switch_type(
    inputs: tuple[TensorType, ...], attrs: Mapping[str, Any]
) -> tuple[TensorType, TensorType]:
    _predicate((inputs[1],), attrs)
    return inputs[0], inputs[0]


PURE, FLAT, CONTROL = Trait.PURE, Trait.FLAT, Trait.CONTROL

op("param", "-> x", doc="A parameter of the graph.", type=_given, numpy=_structural, traits=())
op("const", "-> x", doc="A constant array.", type=_const_type, numpy=lambda value: value.array)
op("identity", "x -> y", doc="Its input.", type=_same, numpy=lambda x: x)
op(
    "stop_gradient",
    "x -> y",
    doc="Its input, through which no derivative flows.",
    type=_same,
    numpy=lambda x: x,
)
op("dim_size", "x -> n", doc="The size of one axis, as int64.", type=lambda i, a: scalar(I64),
   numpy=lambda x, axis: np.int64(x.shape[axis]))  # fmt: skip

op("cond", "pred, *operands -> *results", doc="Run the first region if `pred` is true, else the second.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip
op("while", "*carried, *invariants -> *carried", doc="Run the second region while the first returns true.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip
op("scan", "trips, *carried, *invariants -> *carried", doc="Run the region `trips` times; it is told the trip number.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip

op("recording_while", "*carried, *invariants -> *carried, *stacks",
   doc="A `while` whose body returns more values; they are stacked over the trips, or joined.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip
op("recording_scan", "trips, *carried, *invariants -> *carried, *stacks",
   doc="A `scan` whose body returns more values; they are stacked over the trips, or joined.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip
op("checkpoint", "*operands -> *results", doc="Run the region; derivatives compute it again instead of keeping its values.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip

op("custom_vjp", "*operands -> *results",
   doc="Run the first region; the second, which returns residuals too, and the third are its vjp.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip
op("custom_jvp", "*operands -> *results", doc="Run the first region; the second computes results and their tangents.",
   type=_given, numpy=_structural, traits={PURE, CONTROL})  # fmt: skip

op("switch", "x, pred -> no, yes", doc="Send `x` to output 1 if `pred` is true, else to output 0.",
   type=_switch_type, numpy=_structural, traits={FLAT})  # fmt: skip
op("merge", "*xs -> y", doc="The one live input.", type=_same, numpy=_structural, traits={FLAT})
op("loop_merge", "first -> y", doc="The first input in iteration 0, the back edge in later ones.",
   type=_same, numpy=_structural, traits={FLAT})  # fmt: skip
op("enter", "x -> y", doc="Move a token into iteration 0 of a frame; `invariant` ones into every iteration.",
   type=_same, numpy=_structural, traits={FLAT})  # fmt: skip
op(
    "exit",
    "x -> y",
    doc="Move a token out of a frame.",
    type=_same,
    numpy=_structural,
    traits={FLAT},
)
op(
    "next_iteration",
    "x -> y",
    doc="Move a token to the next iteration.",
    type=_same,
    numpy=_structural,
    traits={FLAT},
)
op(
    "loop_cond",
    "pred -> pred",
    doc="The one predicate of a loop.",
    type=_predicate,
    numpy=_structural,
    traits={FLAT},
)
