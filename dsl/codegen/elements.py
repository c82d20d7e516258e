"""How an element of each op's result comes from elements of its operands: the rules by which kernels fuse.

`Elements.at(value, index)` returns the expression of one element of a value. A materialised value is loaded, a rank-0
value is a register, and every other one is expanded: views change the index, elementwise ops apply to elements of
their operands. A value whose node has no rule here, or whose index would not stay affine (some reshapes), must be
materialised by whoever plans the kernels; `is_lazy` says which nodes have a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsl.codegen.counting import steps
from dsl.codegen.expressions import Affine, Expression, Pool, walk
from dsl.errors import InternalError
from dsl.ir.dims import DimLike, lower_bound, where_not_zero
from dsl.ir.graph import Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import I64, TensorType

__all__ = ["Elements", "broadcasts", "is_lazy", "joins", "reshaped_index", "splat"]

Index = tuple[Affine, ...]


class Elements:
    """Expands values of one kernel, stopping at those that `materialised` accepts."""

    def __init__(self, pool: Pool, materialised: Callable[[Value], bool]) -> None:
        self.pool, self.materialised = pool, materialised
        self._known: dict[tuple[Value, Index], Expression] = {}

    def at(self, value: Value, index: Index) -> Expression:
        """Return the expression of one element."""
        key = (value, index)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._expand(value, index)
        return found

    def expand_root(self, value: Value, index: Index, root: Value) -> Expression:
        """As `at`, but the root itself, though materialised, is expanded."""
        if value is not root:
            return self.at(value, index)
        accept = self.materialised
        self.materialised = lambda v: v is not root and accept(v)
        try:
            return self._expand(value, index)
        finally:
            self.materialised = accept

    def _expand(self, value: Value, index: Index) -> Expression:
        if not value.shape:
            return self._scalar(value)
        constant = splat(value)
        if constant is not None:
            return self.pool.const(constant)
        if self.materialised(value):
            return self.pool.load(value, index)
        node = value.node
        rule = _RULES.get(node.op.name) if node.op.name not in _REDUCES else _RULES["identity"]
        if rule is not None:
            return rule(self, node, index)
        if node.op.has(Trait.ELEMENTWISE):
            args = tuple(self.at(x, _broadcast(index, value.shape, x.shape)) for x in node.inputs)
            return self.pool.apply(node, value.index, args)
        raise InternalError(f"no element rule for {node.op.name}")

    def _scalar(self, value: Value) -> Expression:
        if value.node.op.name == "const":
            return self.pool.const(value.node.attrs["value"].array)
        return self.pool.register(value)


def splat(value: Value) -> np.generic | None:
    """Return the one number that a constant array consists of, or None."""
    if value.node.op.name != "const":
        return None
    array = value.node.attrs["value"].array
    if not array.size or (
        array.size > 1 and array.tobytes() != array.ravel()[:1].tobytes() * array.size
    ):
        return None
    found: np.generic = array.ravel()[0]
    return found


def _broadcast(index: Index, shape: Sequence[DimLike], own: Sequence[DimLike]) -> Index:
    """Return the index into an operand of shape `own` for an index into the result."""
    tail = index[len(index) - len(own) :]
    return tuple(
        Affine() if _is_one(dim) and not _is_one(wide) else i
        for i, dim, wide in zip(tail, own, shape[len(shape) - len(own) :])
    )


def _is_one(dim: DimLike) -> bool:
    return isinstance(dim, int) and dim == 1


def broadcasts(node: Node) -> bool:
    """Tell whether it is certain how a node's operands broadcast: each dim is 1 or the result's."""
    out = node.outputs[0].shape if node.op.name != "broadcast_to" else node.attrs["shape"]
    return all(
        _is_one(dim) or dim == wide
        for x in node.data_inputs
        if isinstance(x.type, TensorType)
        for dim, wide in zip(x.shape, out[len(out) - len(x.shape) :])
    )


# -- views ------------------------------------------------------------------------------------------------------------


def _broadcast_to(e: Elements, node: Node, index: Index) -> Expression:
    x = node.inputs[0]
    return e.at(x, _broadcast(index, node.outputs[0].shape, x.shape))


def _transpose(e: Elements, node: Node, index: Index) -> Expression:
    places: list[Affine] = [Affine()] * len(index)
    for k, axis in enumerate(node.attrs["axes"]):
        places[axis] = index[k]
    return e.at(node.inputs[0], tuple(places))


def _slice(e: Elements, node: Node, index: Index) -> Expression:
    start, step = node.attrs["start"], node.attrs["step"]
    return e.at(node.inputs[0], tuple(i.scaled(s).plus(a) for i, a, s in zip(index, start, step)))


def _reshape(e: Elements, node: Node, index: Index) -> Expression:
    x = node.inputs[0]
    place = reshaped_index(index, node.outputs[0].shape, x.shape)
    if place is None:
        raise InternalError(f"reshape {x.type} to {node.outputs[0].type} is not affine")
    return e.at(x, place)


def reshaped_index(index: Index, shape: Sequence[DimLike], own: Sequence[DimLike]) -> Index | None:
    """Return the index into an array of shape `own` for one into its reshaped form, or None if it is not affine."""
    places: list[Affine] = [Affine()] * len(own)
    a, b = len(own), len(shape)
    while a or b:
        a, b, low, high = _next_group(own, shape, a, b)
        wide = [k for k in range(a, low) if not _is_one(own[k])]
        if len(wide) > 1:
            return None
        total = Affine()
        scale: DimLike = 1
        for k in reversed(range(b, high)):
            if _is_one(shape[k]):
                continue
            if not isinstance(scale, int):
                return None
            total = total.plus(index[k].scaled(scale))
            scale = scale * shape[k]
        if wide:
            places[wide[0]] = total
    return tuple(places)


def _next_group(
    own: Sequence[DimLike], shape: Sequence[DimLike], a: int, b: int
) -> tuple[int, int, int, int]:
    """Take dims from the right of both shapes until their products agree; returns the new and the old ends."""
    low, high = a, b
    mine: DimLike = 1
    other: DimLike = 1
    while True:
        if mine == other and (a < low or b < high):
            return a, b, low, high
        if a == 0 and b == 0:
            return a, b, low, high
        if b == 0 or (a and _behind(mine, other)):
            a -= 1
            mine = mine * own[a]
        else:
            b -= 1
            other = other * shape[b]


def _behind(mine: DimLike, other: DimLike) -> bool:
    if isinstance(mine, int) and isinstance(other, int):
        return mine <= other
    return len(str(mine)) <= len(str(other))


def _dynamic_slice(e: Elements, node: Node, index: Index) -> Expression:
    x, start = node.inputs[:2]
    axis, step = node.attrs["axis"], node.attrs.get("step", 1)
    moved = index[axis].scaled(step).plus(Affine((), 0, ((e.at(start, ()), 1),)))
    return e.at(x, index[:axis] + (moved,) + index[axis + 1 :])


def _full(e: Elements, node: Node, index: Index) -> Expression:
    return e.at(node.inputs[0], ())


def _iota(e: Elements, node: Node, index: Index) -> Expression:
    return e.pool.apply(node, 0, (e.pool.index(index[0]),))


# -- gather -----------------------------------------------------------------------------------------------------------


def gathered_index(
    e: Elements, node: Node, x: Value, indices: Sequence[Value], index: Index
) -> Index:
    """Return the index into `x` that index arrays give for an element of gather's result or scatter's operand."""
    axes = node.attrs["axes"]
    rank = max((len(i.shape) for i in indices), default=0)
    together = _index_shape(indices, rank)
    places: list[Affine] = []
    rest = iter(index[rank:])
    for axis in range(len(x.shape)):
        if axis not in axes:
            places.append(next(rest))
            continue
        source = indices[axes.index(axis)]
        element = e.at(source, _broadcast(index[:rank], together, source.shape))
        places.append(Affine((), 0, ((e.pool.checked(element, x.shape[axis], node, axis), 1),)))
    return tuple(places)


def _index_shape(indices: Sequence[Value], rank: int) -> tuple[DimLike, ...]:
    from dsl.ir.types import broadcast_shapes

    return broadcast_shapes(*(i.shape for i in indices)) if rank else ()


def _gather(e: Elements, node: Node, index: Index) -> Expression:
    x, *indices = node.inputs
    given = gathered_index(e, node, x, indices, index)
    places = tuple(map(_counted, given, x.shape))
    found = e.at(x, places)
    if e.materialised(x) and splat(x) is None:
        return found
    return _with_checks(e, found, places, x.shape)


def _counted(place: Affine, dim: DimLike) -> Affine:
    """Return the place that loop variables and constants alone tell, if it surely is in the axis, as a place like any other."""
    item = place.extra[0][0] if place.extra else None
    if item is None or item.kind != "checked" or item.args[0].dtype != I64:
        return place
    found = _as_affine(item.args[0])
    if found is None or found.extra or not _is_within(found, dim):
        return place
    return found


def _as_affine(e: Expression) -> Affine | None:
    """Return sums of loop variables and whole numbers as an index, else None."""
    if e.kind == "index":
        return e.index[0]
    if e.kind == "const" and e.dtype == I64:
        return Affine((), int(e.constant))
    if e.kind == "load" and e.dtype == I64:
        return _progression(e)
    if e.kind != "op" or e.node is None or e.dtype != I64:
        return None
    parts = [_as_affine(arg) for arg in e.args]
    name = e.node.op.name
    if any(part is None for part in parts) or name not in ("iota", "add", "subtract"):
        return None
    first, *rest = (part for part in parts if part is not None)
    for part in rest:
        first = first.plus(part if name == "add" else part.scaled(-1))
    return first


def _progression(e: Expression) -> Affine | None:
    """Return an element of a constant whose numbers are evenly spaced along each axis as an index, else None."""
    assert e.value is not None
    if e.value.node.op.name != "const":
        return None
    numbers = e.value.node.attrs["value"].array
    distances = steps(numbers)
    if distances is None:
        return None
    found = Affine((), int(numbers.flat[0]))
    for place, step in zip(e.index, distances, strict=True):
        found = found.plus(place.scaled(step))
    return found


def _is_within(place: Affine, dim: DimLike) -> bool:
    """Tell whether a place is in an axis for all values of the loop variables, if there are any."""
    low = high = place.offset
    for var, scale in place.terms:
        reach = (where_not_zero(var.extent) - 1) * scale
        low, high = (low, high + reach) if scale > 0 else (low + reach, high)
    least, room = lower_bound(low), lower_bound(dim - 1 - high)
    return least is not None and least >= 0 and room is not None and room >= 0


def _with_checks(
    e: Elements, found: Expression, places: Index, shape: Sequence[DimLike]
) -> Expression:
    """Have the indices checked also where the element is the same at every place, so that none of them is in it."""
    inside = set(walk(found))
    for place, dim in zip(places, shape, strict=True):
        lost = [item for item, _ in place.extra if item.kind == "checked" and item not in inside]
        if lost:
            found = e.pool.select(e.pool.inside(place, 0, dim), found, found)
    return found


# -- pieces: both sides are computed, the one that does not apply at a harmless place -------------------------------------


def _pad(e: Elements, node: Node, index: Index) -> Expression:
    x, value = node.inputs[:2]
    inner = tuple(
        i.plus(-low if isinstance(low, int) else low * -1)
        for i, low in zip(index, node.attrs["low"])
    )
    result = e.at(value, ())
    tests = [
        e.pool.inside(i, 0, dim)
        for i, dim, low, high in zip(inner, x.shape, node.attrs["low"], node.attrs["high"])
        if not (low == 0 and high == 0)
    ]
    guarded = list(inner)
    k = 0
    for axis, (low, high) in enumerate(zip(node.attrs["low"], node.attrs["high"])):
        if not (low == 0 and high == 0):
            guarded[axis] = e.pool.guarded(inner[axis], tests[k])
            k += 1
    found = e.at(x, tuple(guarded))
    for test in tests:
        found = e.pool.select(test, found, result)
    return found


def _concatenate(e: Elements, node: Node, index: Index) -> Expression:
    axis, low = node.attrs["axis"], 0
    result: Expression | None = None
    starts = []
    for x in node.inputs:
        starts.append(low)
        low = low + x.shape[axis]  # type: ignore[assignment]
    for x, start in reversed(list(zip(node.inputs, starts))):
        if isinstance(x.shape[axis], int) and x.shape[axis] == 0:
            continue
        inner = index[axis].plus(start * -1)
        test = e.pool.inside(inner, 0, x.shape[axis])
        place = index[:axis] + (e.pool.guarded(inner, test),) + index[axis + 1 :]
        found = e.at(x, place)
        result = found if result is None else e.pool.select(test, found, result)
    if result is None:
        raise InternalError("concatenate of nothing has no elements")
    return result


def joins(node: Node) -> bool:
    """Tell whether it is certain that the joined arrays have the same dims beside the axis."""
    axis, first = node.attrs["axis"], node.inputs[0].shape
    return all(x.shape[k] == d for x in node.data_inputs for k, d in enumerate(first) if k != axis)


def _indices_fit(node: Node) -> bool:
    """Tell whether it is certain how the index arrays broadcast."""
    indices = node.inputs[1:]
    out = node.outputs[0].shape
    rank = max((len(i.shape) for i in indices), default=0)
    return all(
        _is_one(d) or d == wide
        for i in indices
        for d, wide in zip(i.shape, out[rank - len(i.shape) : rank])
    )


_RULES: dict[str, Callable[[Elements, Node, Index], Expression]] = {
    "broadcast_to": _broadcast_to,
    "transpose": _transpose,
    "slice": _slice,
    "reshape": _reshape,
    "dynamic_slice": _dynamic_slice,
    "full": _full,
    "iota": _iota,
    "gather": _gather,
    "pad": _pad,
    "concatenate": _concatenate,
    "identity": lambda e, node, index: e.at(node.inputs[0], index),
}


_REDUCES = frozenset(
    ["sum", "prod", "max", "min", "any", "all", "reduce_and", "reduce_or", "reduce_xor"]
)


def is_lazy(node: Node) -> bool:
    """Tell whether an element of a node's result can be had from elements of its operands."""
    name = node.op.name
    if name == "reshape":
        probe = tuple(Affine() for _ in node.outputs[0].shape)
        return reshaped_index(probe, node.outputs[0].shape, node.inputs[0].shape) is not None
    if name == "concatenate" and not joins(node):
        return False
    if name in _REDUCES:
        return not node.attrs["axes"]  # over no axis it is its operand
    if name == "gather" and not _indices_fit(node):
        return False
    if name in ("pad", "concatenate"):
        return all(not isinstance(d, int) or d > 0 for x in node.data_inputs for d in x.shape)
    if name in _RULES:
        return broadcasts(node) if name == "broadcast_to" else True
    return node.op.has(Trait.ELEMENTWISE) and broadcasts(node)
