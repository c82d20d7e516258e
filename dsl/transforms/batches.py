"""`vmap`: a function of one item as a function of many, along an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from dsl.autodiff.batching import batch, batch_one_by_one
from dsl.autodiff.region import Region, inline
from dsl.compile import Compiled
from dsl.errors import AliasError, ShapeError, UnsupportedError
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import Kind, fresh
from dsl.frontend.trees import flatten, unflatten
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder, UnknownSizeError
from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Value
from dsl.ir.ops.rules import differ
from dsl.ir.types import TensorType
from dsl.transforms.inner import Inner, Leaf, Stand, compiled, is_number, trace_inner, with_contents

__all__ = ["REFUSALS", "batched_by", "for_all", "vmap"]

Axes = Any  # an int, None, or a tree of them that is a prefix of the arguments' or results'


def vmap(fn: Any, in_axes: Axes = 0, out_axes: Axes = 0) -> Compiled[Any, Any]:
    """Return `fn` applied to every item along an axis of its arguments, as one computation on whole arrays.

    `in_axes` says which axis: an int for all arguments, or a tuple with an int, a tree of ints, or None for an argument that
    all items share. `out_axes` says where the axis is in the results. Control flow may differ from item to item. Keyword
    arguments are taken along axis 0. What the function does that depends on no item, such as printing a constant or taking
    from a queue, happens once, for all items.

    >>> import numpy as np
    >>> vmap(np.dot, in_axes=(0, None))(np.eye(2), np.array([3.0, 4.0]))
    array([3., 4.])
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return _batched(fn, args, kwargs, in_axes, out_axes)

    key = ("vmap", _hashable(in_axes), _hashable(out_axes))
    return compiled(fn, (vmap, in_axes, out_axes), run, as_called=True, key=key)


def _hashable(axes: Axes) -> Any:
    leaves, structure = flatten(axes if axes is not None else "none")
    return (tuple(leaves), structure)


def _batched(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Axes, out_axes: Axes
) -> Any:
    args, kwargs = _with_contents(args, in_axes), with_contents(kwargs)
    axes = _in_axes(args, kwargs, in_axes)
    size: list[DimLike] = []

    def item(number: int, leaf: Leaf) -> Stand:
        assert isinstance(leaf.type, TensorType)
        axis = axes[number]
        if axis is None:
            return Stand(leaf.type, leaf.kind)
        rest = _without(leaf, axis, size)
        return Stand(rest, Kind.ARRAY if rest.shape else Kind.SCALAR)

    inner = trace_inner(fn, args, kwargs, stands=item)
    if not size:
        raise ShapeError(
            "vmap: no argument has an axis to map over",
            location=here(),
            remedy="give one an axis in in_axes",
        )
    scope = current_scope()
    a = Algebra(scope)
    flags = [axis is not None for axis in axes] + [False] * len(inner.captured)
    values = [
        leaf.value if axis is None else a.moved(leaf.value, axis % len(leaf.value.shape), 0)
        for leaf, axis in zip(inner.leaves, axes, strict=True)
    ]
    found, batched = for_all(inner.graph, scope, [*values, *inner.captured], flags, size[0])
    _put_back(inner, found, batched)
    return _results(a, inner, found, batched, size[0], out_axes)


def _with_contents(args: tuple[Any, ...], in_axes: Axes) -> tuple[Any, ...]:
    """Return arguments, those that are mapped over with what variables hold in the place of variables."""
    shared = (
        [k for k, axis in enumerate(in_axes) if axis is None]
        if isinstance(in_axes, (tuple, list))
        else []
    )
    return tuple(arg if k in shared else with_contents(arg) for k, arg in enumerate(args))


def for_all(
    graph: Graph, builder: Builder, args: Sequence[Value], batched: Sequence[bool], size: DimLike
) -> tuple[list[Value], list[bool]]:
    """Run a graph for all items at once or, where that cannot be, for one after the other."""
    try:
        whole, given, flags = batched_by(batch, graph, builder, args, batched, size)
    except REFUSALS as reason:
        try:
            whole, given, flags = batched_by(batch_one_by_one, graph, builder, args, batched, size)
        except REFUSALS:
            raise reason from None
    return inline(builder, whole, given), flags


REFUSALS = (UnsupportedError, UnknownSizeError)


def batched_by(
    way: Any,
    graph: Graph,
    builder: Builder,
    args: Sequence[Value],
    batched: Sequence[bool],
    size: DimLike,
) -> tuple[Graph, list[Value], list[bool]]:
    """Batch in a region of its own first, so that an attempt which fails leaves nothing behind; return it to be inlined."""
    region = Region(graph.name, builder)
    params = [region.param(value.type) for value in args]
    found, flags = way(graph, region, params, batched, size)
    return region.graph(params, found), [*args, *region.captured], flags


def _without(leaf: Leaf, axis: int, size: list[DimLike]) -> TensorType:
    type = leaf.type
    assert isinstance(type, TensorType)
    if not -type.rank <= axis < type.rank:
        raise ShapeError(
            f"vmap: {leaf.path} is {type}, which has no axis {axis}", location=here(),
            remedy="pass None in in_axes for arguments that all items share",
        )  # fmt: skip
    axis %= type.rank
    if size and differ(size[0], type.shape[axis]):
        raise ShapeError(
            f"vmap: {leaf.path} has {type.shape[axis]} items along axis {axis}, others have {size[0]}", location=here(),
            remedy="map over axes of one size",
        )  # fmt: skip
    size.append(type.shape[axis])
    return type.with_shape(type.shape[:axis] + type.shape[axis + 1 :])


def _in_axes(args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Axes) -> list[int | None]:
    """Return the axis of each numeric leaf."""
    given = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
    if len(given) != len(args):
        raise ShapeError(
            f"vmap: in_axes has {len(given)} entries, the function was called with {len(args)} arguments", location=here(),
            remedy="give one for each positional argument",
        )  # fmt: skip
    found: list[int | None] = []
    for axis, arg in zip((*given, *(0 for _ in kwargs)), (*args, *kwargs.values()), strict=True):
        _spread(axis, arg, found)
    return found


def _spread(axes: Axes, tree: Any, found: list[int | None]) -> None:
    """Give every numeric leaf of a tree the axis that a prefix of the tree says."""
    if axes is None or isinstance(axes, int):
        leaves = [leaf for leaf in flatten(tree)[0] if is_number(leaf)]
        found.extend(axes for _ in leaves)
        return
    for part, child in _side_by_side(axes, tree, "the axes", "an argument"):
        _spread(part, child, found)


def _side_by_side(axes: Axes, tree: Any, name: str, what: str) -> Iterator[tuple[Any, Any]]:
    """Yield each part of a tree of axes with what it is for."""
    parts, children = _children(axes), _children(tree)
    if children is None or parts is None or parts.keys() != children.keys():
        raise ShapeError(
            f"vmap: {name} {axes!r} do not fit {what}",
            location=here(),
            remedy=f"use a tree like the {what.split()[-1]}",
        )
    yield from ((parts[key], child) for key, child in children.items())


def _children(tree: Any) -> dict[Any, Any] | None:
    """Return what a container holds by key, position or field; None of what is none."""
    if isinstance(tree, dict):
        return tree
    if dataclasses.is_dataclass(tree):
        return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return dict(enumerate(tree)) if isinstance(tree, (tuple, list)) else None


def _put_back(inner: Inner, found: Sequence[Value], batched: Sequence[bool]) -> None:
    for _, k in inner.written:
        if batched[k]:
            raise AliasError(
                "a function under vmap writes an item's values into an array that all items share", location=here(),
                remedy="return the values instead of writing them",
            )  # fmt: skip
    inner.put_back(found)


def _results(
    a: Algebra,
    inner: Inner,
    found: Sequence[Value],
    batched: Sequence[bool],
    size: DimLike,
    out_axes: Axes,
) -> Any:
    template = unflatten(inner.structure, list(range(len(inner.places))))
    axes: list[int | None] = [0] * len(inner.places)
    _assign(out_axes, template, axes)
    made: list[Any] = []
    for k, (place, other) in enumerate(zip(inner.places, inner.results, strict=True)):
        made.append(
            other
            if place is None
            else fresh(_placed(a, found[place], batched[place], size, axes[k]))
        )
    return unflatten(inner.structure, made)


def _assign(axes: Axes, template: Any, found: list[int | None]) -> None:
    if axes is None or isinstance(axes, int):
        for k in flatten(template)[0]:
            found[k] = axes
        return
    for part, child in _side_by_side(axes, template, "out_axes", "the result"):
        _assign(part, child, found)


def _placed(a: Algebra, value: Value, batched: bool, size: DimLike, axis: int | None) -> Value:
    if axis is None:
        if batched:
            raise ShapeError("vmap: out_axes is None for a result that differs from item to item", location=here(),
                             remedy="give it an axis")  # fmt: skip
        return value
    whole = value if batched else a.to_shape(value, (size, *value.shape))
    if not -len(whole.shape) <= axis < len(whole.shape):
        raise ShapeError(
            f"vmap: out_axes is {axis} for a result that has {len(whole.shape)} axes with the new one",
            location=here(), remedy="count axes from 0",
        )  # fmt: skip
    return a.moved(whole, 0, axis % len(whole.shape))
