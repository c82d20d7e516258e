"""What a call returns, as the records of an entry: new arrays and numbers, arguments, constants, and views of those.

In: where the leaves of a result come from (`Source`), and what the entry takes. Out: a record for each output of the
graph, in the order of the frame, and one for each leaf in the order in which the user gets them; None if a leaf is
nothing that a record can tell, such as a reshape that is a copy or a view depending on strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dsl.codegen.cpu import entry
from dsl.frontend.roles import Role
from dsl.frontend.strides import contiguous, is_contiguous, offset, unknown, viewed
from dsl.frontend.traced import Kind
from dsl.frontend.tracing import Source, TracedFunction
from dsl.frontend.views import Bitcast, Broadcasted, Part, Raveled, Reshaped, View
from dsl.ir.dims import Atom, Dim, DimLike, lower_bound, symbols_of
from dsl.ir.graph import Graph
from dsl.ir.types import Shape, size_of

__all__ = ["NUMBERS", "is_whole", "records"]

NUMBERS = {"int64": "int", "float64": "float", "complex128": "complex", "bool": "bool"}

Base = entry.Argument | entry.Earlier


LEAVES = (None, type(None))
"""The types of structures for which an entry makes one object: None is not a leaf of a tree, but is one."""


def is_whole(traced: TracedFunction) -> bool:
    """Tell whether what a call does is to return one object that an entry makes, or a tuple of such."""
    structure = traced.result[0]
    plain = all(child.type in LEAVES for child in structure.children)
    alone = not traced.containers and not traced.attributes and not has_roles(traced.result[1])
    return alone and (structure.type in LEAVES or (structure.type is tuple and plain))


def has_roles(sources: Sequence[Source]) -> bool:
    """Tell whether objects that play roles are among what a call returns."""
    return any(type(source.value) is Role for source in sources)


def records(
    traced: TracedFunction, graph: Graph, needed: list[int], params: Sequence[entry.Param], at: Sequence[int]
) -> tuple[list[entry.Result], int] | None:  # fmt: skip
    """Return the records of a call's results, and how many of them, at the front, the user does not get.

    `needed` are the outputs in the frame, and `at` says which argument of the entry each param of the graph is.
    """
    sources = _objects(traced)
    made = [_made(k, sources, graph) for k in needed]
    if any(record is None for record in made):
        return None
    plain = all(s.kind == "output" and not s.views for s in sources)
    if plain and [s.index for s in sources] == needed:
        return made, 0  # type: ignore[return-value]
    shown = [_Shown(graph, needed, params, at)(source) for source in sources]
    return None if any(record is None for record in shown) else ([*made, *shown], len(made))  # type: ignore[list-item]


def _objects(traced: TracedFunction) -> list[Source]:
    """Return where each object comes from that the entry is to return."""
    structure, sources = traced.result
    if not is_whole(traced):
        return traced.sources
    left = iter(sources)
    parts = structure.children if structure.type is tuple else (structure,)
    return [Source("static") if part.type is type(None) else next(left) for part in parts]


def _made(k: int, sources: list[Source], graph: Graph) -> entry.Result | None:
    """Return the record of an output: what all leaves that come from it say that it is."""
    kinds = {s.as_kind for s in sources if s.kind == "output" and s.index == k}
    type = graph.results[k].tensor
    if kinds == {Kind.ARRAY}:
        return entry.ArrayResult(type.dtype, type.rank)
    if kinds == {Kind.SCALAR}:
        return entry.ScalarResult(type.dtype)
    name = NUMBERS.get(type.dtype.name) if kinds == {Kind.PYTHON} else None
    return entry.NumberResult(name) if name is not None else None  # type: ignore[arg-type]


class _Shown:
    """Makes the record of a leaf; None if there is none for it."""

    def __init__(
        self, graph: Graph, needed: list[int], params: Sequence[entry.Param], at: Sequence[int]
    ) -> None:
        self.graph, self.needed, self.params, self.at = graph, needed, params, at
        self.places = dict(self._dims())

    def _dims(self) -> Iterator[tuple[Dim, entry.Place]]:
        """Yield where the frame has the size that a symbol stands for."""
        for j, k in enumerate(self.needed):
            for axis, dim in enumerate(self.graph.results[k].shape):
                if isinstance(dim, Dim):
                    yield dim, ("result", j, 1 + axis)
        for i, param in enumerate(self.params):
            dims = param.dims if isinstance(param, entry.ArrayParam) else ()
            for axis, size in enumerate(dims):
                if isinstance(size, Dim):
                    yield size, ("param", i, 1 + axis)

    def __call__(self, source: Source) -> entry.Result | None:
        if source.kind == "static":
            return entry.Constant(source.value)
        if source.numbers:
            return None
        if source.kind == "output":
            type = self.graph.results[source.index].tensor
            base: Base = entry.Earlier(self.needed.index(source.index))
            strides = contiguous(type.shape, type.dtype.itemsize)
        elif source.kind == "input":
            type, base = (
                self.graph.params[source.index].tensor,
                entry.Argument(self.at[source.index]),
            )
            strides = self._strides(base.index, type.shape, type.dtype.itemsize)
        else:
            return None
        return (
            self.seen(base, type.dtype, type.shape, strides, source.views) if source.views else base
        )

    def _strides(self, index: int, shape: Shape, itemsize: int) -> Shape:
        """Return the strides of an argument; those that only the call knows are words of the frame too."""
        kind = getattr(self.params[index], "strides", "any")
        if kind == "contiguous":
            return contiguous(shape, itemsize)
        if kind != "any":
            return tuple(kind)
        found = unknown(shape)
        for axis, stride in enumerate(found):
            self.places[stride] = ("param", index, 1 + len(shape) + axis)  # type: ignore[index]
        return found

    def seen(
        self, base: Base, dtype: Any, shape: Shape, strides: Shape, views: tuple[View, ...]
    ) -> entry.View | None:
        """Return the record of an array that is seen through views, one after the other."""
        start: DimLike = 0
        writeable = True
        for view in views:
            found = _through(view, dtype, shape, strides)
            if found is None:
                return None
            by, dtype, shape, strides, own = found
            start, writeable = start + by, writeable and own
        numbers = (start, *shape, *strides)
        if not all(map(self._is_known, numbers)):
            return None
        places = tuple((symbol, self.places[symbol]) for symbol in symbols_of(*numbers))
        return entry.View(base, dtype, start, shape, strides, places, writeable)

    def _is_known(self, dim: DimLike) -> bool:
        """Tell whether a size can be computed from the frame, and never by a division by 0."""
        if not isinstance(dim, Dim):
            return True
        atoms = [f for factors, _ in dim.terms for f in factors if isinstance(f, Atom)]
        safe = all(a.kind in ("max", "min") or (lower_bound(a.rhs) or 0) > 0 for a in atoms)
        inner = all(self._is_known(part) for a in atoms for part in (a.lhs, a.rhs))
        return safe and inner and all(symbol in self.places for symbol in symbols_of(dim))


Lie = tuple[DimLike, Any, Shape, Shape, bool]
"""How a view lies in an array: offset in bytes, dtype, dims, strides, and whether it may be written."""


def _through(view: View, dtype: Any, shape: Shape, strides: Shape) -> Lie | None:
    """Return how the view of an array lies in it; None if only the call can tell, or NumPy makes a copy."""
    if isinstance(view, Raveled) and not is_contiguous(shape, strides, dtype.itemsize):
        return None
    if isinstance(view, Reshaped) and size_of(view.shape) != size_of(shape):
        return None  # the elements may not fill that shape, which is an error
    by, found = offset(shape, strides, view, dtype.itemsize), viewed(shape, strides, view)
    if by is None or found is None:
        return _tried(view, dtype, shape, strides)
    if isinstance(view, Part):
        return (by, np.empty(0, dtype).real.dtype, *found, True) if dtype.kind == "c" else None
    seen_as = np.dtype(view.dtype) if isinstance(view, Bitcast) else dtype
    writeable = not isinstance(view, Broadcasted) and getattr(view, "writeable", True)
    return by, seen_as, *found, writeable


def _tried(view: View, dtype: Any, shape: Shape, strides: Shape) -> Lie | None:
    """Let NumPy make a view of an array that only says how it lies."""
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        return None
    array: Any = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)  # type: ignore[arg-type]
    found = view.of(array)
    if found is None or not np.may_share_memory(found, array):
        return None
    by = found.ctypes.data - array.ctypes.data
    return by, found.dtype, found.shape, found.strides, found.flags.writeable
