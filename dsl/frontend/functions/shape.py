"""Shapes and views of arrays: reshaping, permuting, broadcasting.

Where NumPy returns a view, so does the traced function.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsl.errors import NonConcreteError, ShapeError, TypeRuleError
from dsl.frontend import traced as handles
from dsl.frontend.functions.arguments import (
    array_of,
    dims_of,
    drop_view,
    is_symbolic,
    normal_axes,
    normal_axis,
    number,
    shape_of_new,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import Scope, here
from dsl.frontend.traced import (
    Kind,
    Traced,
    as_shape,
    lift,
    read,
    transpose_view,
)
from dsl.frontend.ufuncs import _common_shape
from dsl.frontend.views import Broadcasted, read_only
from dsl.ir.dims import DimLike, dim_max, dim_min, lower_bound, symbols_of
from dsl.ir.graph import Value
from dsl.ir.types import I64, Shape, size_of
from dsl.ir.types import broadcast_shapes as static_broadcast

Array = Any


# -- shapes as numbers ---------------------------------------------------------------------------------------------


@implements("shape")
def shape(a: Any) -> Any:
    """Return the shape; a size known only at run time is a traced int."""
    return lift(a).shape


@implements("ndim")
def ndim(a: Any) -> int:
    """Return the number of axes."""
    return lift(a).ndim


@implements("size")
def size(a: Any, axis: Any = None) -> Any:
    """Return the number of elements, of all or of some axes."""
    x = lift(a)
    axes = normal_axes(axis, x.ndim)
    return number(size_of(tuple(dims_of(x)[k] for k in axes)))


@implements("iterable")
def iterable(y: Any) -> bool:
    """Tell whether an object can be iterated over."""
    return bool(y.ndim) if isinstance(y, Traced) else bool(np.iterable(y))


# -- views ---------------------------------------------------------------------------------------------------------


@implements("reshape")
def reshape(
    a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None
) -> Any:
    """Return the same elements in another shape, as a view if possible."""
    wanted = newshape if shape is None else shape
    if wanted is None:
        raise TypeRuleError(
            "reshape() missing 1 required positional argument: 'shape'", location=here()
        )
    x = array_of(a)
    wanted = tuple(wanted) if isinstance(wanted, np.ndarray) and wanted.ndim else wanted
    result = handles.reshape(x, wanted, order)
    return result.copy() if copy else result


@implements("ravel")
def ravel(a: Any, order: str = "C") -> Any:
    """Return the elements in one dimension, as a view if possible."""
    return handles.ravel(array_of(a), order)


@implements("transpose", "permute_dims")
def transpose(a: Any, axes: Any = None) -> Any:
    """Return a view with permuted axes."""
    x: Any = lift(a)
    if axes is None:
        return x.T
    order = list(axes)
    if len(order) != x.ndim:
        raise ShapeError("axes don't match array", location=here())
    found = tuple(normal_axis(k, x.ndim) for k in order)
    if len(set(found)) != len(found):
        raise ShapeError("repeated axis in transpose", location=here())
    return transpose_view(x, found)


@implements("matrix_transpose")
def matrix_transpose(x: Any, /) -> Any:
    """Return a view with the last two axes swapped."""
    x = array_of(x)
    if x.ndim < 2:
        text = f"Input array must be at least 2-dimensional, but it is {x.ndim}"
        raise ShapeError(text, location=here())
    return x.mT


@implements("swapaxes")
def swapaxes(a: Any, axis1: Any, axis2: Any) -> Any:
    """Return a view with two axes swapped."""
    x = array_of(a)
    order = list(range(x.ndim))
    one, two = normal_axis(axis1, x.ndim, "axis1"), normal_axis(axis2, x.ndim, "axis2")
    order[one], order[two] = two, one
    return transpose_view(x, tuple(order))


def _axis_list(axis: Any, rank: int, prefix: str) -> list[int]:
    items = axis if isinstance(axis, (tuple, list)) else (axis,)
    found = [normal_axis(k, rank, prefix) for k in items]
    if len(set(found)) != len(found):
        raise ShapeError(f"repeated axis in `{prefix}` argument", location=here())
    return found


@implements("moveaxis")
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Return a view with axes moved to new places."""
    x = array_of(a)
    origins = _axis_list(source, x.ndim, "source")
    targets = _axis_list(destination, x.ndim, "destination")
    if len(origins) != len(targets):
        text = "`source` and `destination` arguments must have the same number of elements"
        raise ShapeError(text, location=here())
    order = [k for k in range(x.ndim) if k not in origins]
    for target, origin in sorted(zip(targets, origins, strict=True)):
        order.insert(target, origin)
    return transpose_view(x, tuple(order))


@implements("rollaxis")
def rollaxis(a: Any, axis: Any, start: Any = 0) -> Any:
    """Return a view with one axis moved before another."""
    x = array_of(a)
    position = normal_axis(axis, x.ndim)
    place = operator.index(start) + (x.ndim if operator.index(start) < 0 else 0)
    if not 0 <= place <= x.ndim:
        text = f"'start' arg requires {-x.ndim} <= start < {x.ndim + 1}, but {start} was passed in"
        raise np.exceptions.AxisError(text)
    order = [k for k in range(x.ndim) if k != position]
    order.insert(place - 1 if position < place else place, position)
    return transpose_view(x, tuple(order))


@implements("squeeze")
def squeeze(a: Any, axis: Any = None) -> Any:
    """Return a view without axes of size 1."""
    x: Any = lift(a)
    if x.kind is Kind.SCALAR and axis is None:
        return x
    dims = dims_of(x)
    if axis is None:
        gone = tuple(k for k, d in enumerate(dims) if _is_one(d))
    else:
        gone = normal_axes(axis, x.ndim) if x.ndim or axis not in (0, -1) else ()
    if any(isinstance(dims[k], int) and dims[k] != 1 for k in gone):
        text = "cannot select an axis to squeeze out which has size not equal to one"
        raise ShapeError(text, location=here())
    return drop_view(x, tuple(d for k, d in enumerate(dims) if k not in gone))


def _is_one(dim: DimLike) -> bool:
    """Tell whether a size is 1. Of sizes that depend on data, it is not; of those of arguments, it must be known."""
    of_arguments = all((lower_bound(symbol) or 0) > 1 for symbol in symbols_of(dim))
    if (lower_bound(dim) or 0) > 1 or isinstance(dim, int) or not of_arguments:
        return dim == 1
    raise NonConcreteError(
        f"squeeze needs to know whether the size {dim} is 1, which is known only when the compiled function runs",
        location=here(),
        remedy="name the axes: `np.squeeze(x, axis=0)`",
    )


@implements("expand_dims")
def expand_dims(a: Any, axis: Any) -> Any:
    """Return a view with new axes of size 1."""
    x = array_of(a)
    places = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = x.ndim + len(places)
    new = normal_axes(tuple(places), rank)
    left = iter(dims_of(x))
    return drop_view(x, tuple(1 if k in new else next(left) for k in range(rank)))


def at_least(x: Array, rank: int) -> Array:
    dims = lifted(dims_of(x), rank)
    return x if len(dims) == x.ndim else drop_view(x, dims)


def lifted(dims: Shape, rank: int) -> Shape:
    """Return a shape of at least so many axes, where those of size 1 that are missing are put as `np.atleast_3d` does."""
    if len(dims) >= rank:
        return dims
    if rank < 3 or len(dims) == 0:
        return (1,) * (rank - len(dims)) + dims
    return (1, *dims, 1) if len(dims) == 1 else (*dims, 1)


def _atleast(rank: int) -> Any:
    def atleast(*arys: Any) -> Any:
        found = tuple(at_least(array_of(a), rank) for a in arys)
        return found[0] if len(found) == 1 else found

    atleast.__doc__ = f"Return views with at least {rank} axes."
    return implements(f"atleast_{rank}d")(atleast)


atleast_1d, atleast_2d, atleast_3d = map(_atleast, (1, 2, 3))


@dataclass(frozen=True)
class Diagonal:
    """The diagonal of the last two axes; read-only, as in NumPy."""

    offset: int

    def get(self, b: Scope, base: Value) -> Value:
        *rest, rows, columns = base.shape
        start = self.offset if self.offset >= 0 else -self.offset * columns
        free = (rows, columns - self.offset) if self.offset >= 0 else (rows + self.offset, columns)
        count = dim_max(dim_min(*free), 0)
        if is_symbolic(columns):
            return self._gather(b, base, count)
        flat = b.emit("reshape", base, shape=(*rest, rows * columns))
        zeros, ones = (0,) * len(rest), (1,) * len(rest)
        return b.emit(
            "slice", flat, start=(*zeros, start), size=(*rest, count), step=(*ones, columns + 1)
        )

    def _gather(self, b: Scope, base: Value, count: DimLike) -> Value:
        index = b.emit("iota", size=count, dtype=I64)
        shift = b.constant(abs(self.offset), I64)
        moved = b.emit("add", index, shift)
        pair = (index, moved) if self.offset >= 0 else (moved, index)
        rank = len(base.shape)
        found = b.emit("gather", base, *pair, axes=(rank - 2, rank - 1))
        return b.emit("transpose", found, axes=(*range(1, rank - 1), 0))

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        raise read_only()

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return array.diagonal(self.offset, -2, -1)


@implements("diagonal")
def diagonal(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any:
    """Return a diagonal, as a read-only view."""
    x = array_of(a)
    if x.ndim < 2:
        raise ShapeError("diag requires an array of at least two dimensions", location=here())
    one, two = normal_axis(axis1, x.ndim, "axis1"), normal_axis(axis2, x.ndim, "axis2")
    if one == two:
        raise ShapeError("axis1 and axis2 cannot be the same", location=here())
    rest = tuple(k for k in range(x.ndim) if k not in (one, two))
    return transpose_view(x, (*rest, one, two))._view(Diagonal(int(offset)))


# -- broadcasting --------------------------------------------------------------------------------------------------


@implements("broadcast_to")
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """Return a read-only view of an array repeated to a shape."""
    x = array_of(array)
    words = "all elements of broadcast shape must be non-negative"
    target = shape_of_new(shape, words) if shape != () else ()
    view = x._view(Broadcasted(target))
    _ = read(view)  # raises NumPy's error now rather than at the first use
    return view


@implements("broadcast_arrays")
def broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    """Return arrays repeated to their common shape."""
    arrays = [array_of(a) for a in args]
    target = _shape_of(*map(dims_of, arrays))
    return tuple(x if dims_of(x) == target else x._view(Broadcasted(target)) for x in arrays)


def _shape_of(*shapes: Shape) -> Shape:
    if not any(is_symbolic(*dims) for dims in shapes):
        try:
            np.broadcast_shapes(*shapes)  # type: ignore[arg-type]
        except ValueError as error:
            raise ShapeError(str(error), location=here()) from None
        return static_broadcast(*shapes)
    return _common_shape(list(shapes))


@implements("broadcast_shapes")
def broadcast_shapes(*args: Any) -> Any:
    """Return the shape that shapes broadcast to."""
    found = _shape_of(*(as_shape(s) if s != () else () for s in args))
    return tuple(map(number, found))
