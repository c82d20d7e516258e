"""Nodes of a `GraphDef` in the making, and the emitter that tables of ops write them with.

A `NodeDef` refers to others by object and gets its name last, when all are known. An `Emitter` makes the nodes that stand
for one node of the IR; all of them wait for what that one waits for. TensorFlow runs a node without inputs in the outermost
frame, so inside a loop such nodes (constants: axes, shapes) wait for the first input of the IR's node too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from dsl.ir.dims import Dim, DimLike, symbols_of
from dsl.ir.graph import Literal, Node
from dsl.ir.types import BOOL, BY_NAME, I64, TensorType, ValueType
from dsl.summary.proto import DATA_TYPES, Message

__all__ = ["Emitter", "NodeDef", "Ref", "Shape", "Symbolic", "attr_value", "dtype_of", "shape_of"]


class Special(str):
    """A dtype that arrays of numbers do not have."""


STRING, RESOURCE = Special("string"), Special("resource")
DType = np.dtype | Special
_NAMES = {
    "bool": "DT_BOOL", "i8": "DT_INT8", "i16": "DT_INT16", "i32": "DT_INT32", "i64": "DT_INT64",
    "u8": "DT_UINT8", "u16": "DT_UINT16", "u32": "DT_UINT32", "u64": "DT_UINT64", "f16": "DT_HALF",
    "bf16": "DT_BFLOAT16", "f32": "DT_FLOAT", "f64": "DT_DOUBLE", "c64": "DT_COMPLEX64", "c128": "DT_COMPLEX128",
}  # fmt: skip
_NUMBERS: dict[DType, int] = {BY_NAME[short]: DATA_TYPES[name] for short, name in _NAMES.items()}
_NUMBERS |= {STRING: DATA_TYPES["DT_STRING"], RESOURCE: DATA_TYPES["DT_RESOURCE"]}


@dataclass(eq=False)
class NodeDef:
    """One node: `inputs` are outputs of others, `controls` what it waits for besides."""

    op: str
    inputs: list[Ref]
    controls: list[NodeDef]
    attrs: dict[str, Any]
    name: str = ""
    device: str = ""


@dataclass(frozen=True, eq=False)
class Ref:
    """Output `index` of a node."""

    node: NodeDef
    dtype: DType
    index: int = 0

    @property
    def kind(self) -> str:
        """The kind of number: one of NumPy's `b`, `i`, `u`, `f`, `c`; bfloat16 is `f`."""
        if isinstance(self.dtype, Special):
            return "O"
        return "f" if self.dtype == BY_NAME["bf16"] else self.dtype.kind

    def __str__(self) -> str:
        return f"{self.node.name}:{self.index}" if self.index else self.node.name


class Shape(tuple[int, ...]):
    """A shape as an attribute; -1 is a size that is not known."""


def dtype_of(type: ValueType) -> DType:
    """Return the dtype of a tensor; handles are resources."""
    return type.dtype if isinstance(type, TensorType) else RESOURCE


def shape_of(type: ValueType) -> Shape:
    """Return a shape with -1 for symbolic dims."""
    dims = type.shape if isinstance(type, TensorType) else ()
    return Shape(dim if isinstance(dim, int) else -1 for dim in dims)


# -- attributes ----------------------------------------------------------------------------------------------------


def attr_value(value: Any) -> Message:
    """Return an attribute as the message `AttrValue`; what has no form of its own is a string."""
    if isinstance(value, list | tuple) and not isinstance(value, Shape):
        return {"list": _list(value)}
    field, content = _attr(value)
    return {field: content}


def _attr(value: Any) -> tuple[str, Any]:
    if isinstance(value, bool | np.bool_):
        return "b", bool(value)
    if isinstance(value, int | np.integer):
        return "i", int(value)
    if isinstance(value, float | np.floating):
        return "f", float(value)
    if isinstance(value, np.dtype | Special):
        return "type", _NUMBERS[value]
    if isinstance(value, Shape):
        return "shape", {"dim": [{"size": size} for size in value]}
    if isinstance(value, Literal):
        return "tensor", _tensor(value.array)
    return "s", value if isinstance(value, bytes) else str(value).encode()


def _list(values: Sequence[Any]) -> Message:
    """Return a list of one kind; mixed ones become strings."""
    found = [_attr(value) for value in values]
    fields = {field for field, _ in found}
    if len(fields) > 1:
        return {"s": [str(value).encode() for value in values]}
    return {field: [content for _, content in found] for field in fields}


def _tensor(array: np.ndarray) -> Message:
    shape = {"dim": [{"size": size} for size in array.shape]}
    if array.dtype.kind == "O":
        texts = [str(item).encode() for item in array.ravel()]
        return {"dtype": _NUMBERS[STRING], "tensor_shape": shape, "string_val": texts}
    content = array.tobytes()
    return {"dtype": _NUMBERS[array.dtype], "tensor_shape": shape, "tensor_content": content}


# Attribute -> the input whose dtype it is. An op that is not here has `T` from its first input.
_TYPES: dict[str, dict[str, int]] = {
    "Const": {}, "Placeholder": {}, "LoopCond": {}, "LogicalAnd": {}, "LogicalOr": {}, "LogicalNot": {}, "PrintV2": {},
    "Assert": {}, "StringFormat": {}, "NoOp": {}, "Cast": {"SrcT": 0}, "SelectV2": {"T": 1}, "ConcatV2": {"T": 0, "Tidx": -1},
    "Fill": {"index_type": 0, "T": 1}, "Range": {"Tidx": 0}, "Reshape": {"T": 0, "Tshape": 1}, "ExpandDims": {"T": 0, "Tdim": 1},
    "Transpose": {"T": 0, "Tperm": 1}, "PadV2": {"T": 0, "Tpaddings": 1}, "GatherNd": {"Tparams": 0, "Tindices": 1},
    "GatherV2": {"Tparams": 0, "Tindices": 1, "Taxis": 2}, "Slice": {"T": 0, "Index": 1},
    "StridedSlice": {"T": 0, "Index": 1}, "TensorStridedSliceUpdate": {"T": 0, "Index": 1},
    "RFFT": {"Treal": 0}, "IRFFT": {"Tcomplex": 0}, "FFT": {"Tcomplex": 0}, "IFFT": {"Tcomplex": 0},
    "Any": {"Tidx": 1}, "All": {"Tidx": 1},
    **{op: {"T": 0, "Tidx": 1} for op in ("Sum", "Prod", "Max", "Min", "ArgMax", "ArgMin", "Cumsum", "Cumprod", "BroadcastTo",
                                          "ReverseV2")},
    **{f"TensorScatter{mode}": {"T": 0, "Tindices": 1} for mode in ("Update", "Add", "Min", "Max")},
}  # fmt: skip
_COUNTED = {"Merge": 0, "Pack": 0, "ConcatV2": 1}  # have `N`: the number of inputs without so many
_TRUTHS = frozenset({
    "Any", "All", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalNot",
    "IsFinite", "IsInf", "IsNan",
})  # fmt: skip


def _type_attrs(op: str, inputs: Sequence[Ref]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if inputs:
        own = {name: inputs[at].dtype for name, at in _TYPES.get(op, {"T": 0}).items()}
    return own | ({"N": len(inputs) - _COUNTED[op]} if op in _COUNTED else {})


def _result_dtype(op: str, inputs: Sequence[Ref]) -> DType:
    if op in _TRUTHS:
        return BOOL
    return inputs[_TYPES.get(op, {}).get("T", 0)].dtype


# -- emitting ------------------------------------------------------------------------------------------------------


class Symbolic(Exception):
    """Raised where a size has to be a number and is known only at run time."""


@dataclass(eq=False)
class Emitter:
    """Makes the nodes for one `node` of the IR, whose `inputs` are made already."""

    node: Node
    inputs: list[Ref]
    controls: list[NodeDef]
    in_frame: bool
    made: list[NodeDef] = field(default_factory=list)
    _sizes: dict[Dim, Ref] = field(default_factory=dict)

    def __call__(self, op: str, *inputs: Ref, gives: DType | None = None, **attrs: Any) -> Ref:
        """Add a node and return its first output, which has the dtype of the first input unless told otherwise."""
        controls = self.controls
        if not inputs and not controls and self.in_frame:
            controls = [ref.node for ref in self.inputs[:1]]
        made = NodeDef(op, list(inputs), list(controls), _type_attrs(op, inputs) | attrs)
        self.made.append(made)
        return Ref(made, gives or _result_dtype(op, inputs))

    def outputs(self, first: Ref, *dtypes: DType) -> tuple[Ref, ...]:
        """Return several outputs of a node just made, of these dtypes."""
        return tuple(Ref(first.node, dtype, index) for index, dtype in enumerate(dtypes))

    def const(self, value: Any, dtype: DType = I64) -> Ref:
        """Return a constant."""
        array = np.asarray(value, object if isinstance(dtype, Special) else dtype)
        return self("Const", gives=dtype, dtype=dtype, value=Literal(array))

    def like(self, x: Ref, value: Any) -> Ref:
        """Return a constant of rank 0 and the dtype of `x`."""
        return self.const(value, x.dtype)

    def cast(self, x: Ref, dtype: DType) -> Ref:
        return x if x.dtype == dtype else self("Cast", x, gives=dtype, DstT=dtype, Truncate=False)

    # -- sizes ---------------------------------------------------------------------------------------------------

    def vector(self, items: Iterable[DimLike | Ref]) -> Ref:
        """Return sizes as an int64 vector: a constant if all are numbers."""
        found = list(items)
        if all(isinstance(item, int) for item in found):
            return self.const(np.array(found, np.int64))
        return self("Pack", *(self.size(item) for item in found), axis=0)

    def size(self, dim: DimLike | Ref) -> Ref:
        """Return a size as an int64 of rank 0, computed from the shapes of inputs if it is symbolic."""
        if isinstance(dim, Ref):
            return dim
        if isinstance(dim, int):
            return self.const(dim)
        if dim not in self._sizes:
            self._sizes[dim] = self._symbolic(dim)
        return self._sizes[dim]

    def _symbolic(self, dim: Dim) -> Ref:
        if symbols_of(dim) == [dim]:
            return self._symbol(dim)
        terms = [self._term(factors, scale) for factors, scale in dim.terms]
        return reduce(lambda a, b: self("AddV2", a, b), terms)

    def _term(self, factors: Sequence[Any], scale: int) -> Ref:
        parts = [self._factor(factor) for factor in factors]
        if scale != 1 or not parts:
            parts.append(self.const(scale))
        return reduce(lambda a, b: self("Mul", a, b), parts)

    def _factor(self, factor: Any) -> Ref:
        alone = Dim((((factor,), 1),))
        if symbols_of(alone) == [alone]:
            return self.size(alone)
        ops = {"floordiv": "FloorDiv", "mod": "FloorMod", "max": "Maximum", "min": "Minimum"}
        return self(ops[factor.kind], self.size(factor.lhs), self.size(factor.rhs))

    def _symbol(self, symbol: Dim) -> Ref:
        """Find the size among the inputs that tell sizes, or in the shape of another input."""
        data = self.node.data_inputs
        if symbol in self.node.dims:
            return self.inputs[len(data) + self.node.dims.index(symbol)]
        for value, ref in zip(data, self.inputs):
            if isinstance(value.type, TensorType) and symbol in value.type.shape:
                return self.axis_size(ref, value.type.shape.index(symbol))
        raise Symbolic(f"no input of {self.node.op.name} tells the size {symbol}")

    def axis_size(self, x: Ref, axis: int) -> Ref:
        """Return the size of one axis."""
        shape = self("Shape", x, gives=I64, out_type=I64)
        ends = [self.const([k], BY_NAME["i32"]) for k in (axis, axis + 1, 1)]
        return self("StridedSlice", shape, *ends, **MASKS | {"shrink_axis_mask": 1})


MASKS: dict[str, Any] = dict.fromkeys(
    ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
)
