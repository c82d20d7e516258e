"""`jacfwd`, `jacrev`, `hessian`: whole Jacobians, all directions as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from dsl.autodiff.batching import batch
from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries
from dsl.autodiff.forward import push
from dsl.autodiff.region import Region, inline, is_dropped, without_effects
from dsl.autodiff.reverse import Reverse
from dsl.compile import Compiled
from dsl.errors import GradientError
from dsl.frontend.accesses import unnoted
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import fresh
from dsl.frontend.trees import unflatten
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Value
from dsl.ir.types import TensorType, is_complex, is_inexact, size_of
from dsl.transforms.batches import REFUSALS, batched_by, for_all
from dsl.transforms.gradients import (
    Argnums,
    check_argnums,
    chosen_leaves,
    tuple_of,
    value_of,
    with_chosen_contents,
)
from dsl.transforms.inner import Inner, compiled, trace_inner

__all__ = ["hessian", "jacfwd", "jacrev"]


def jacfwd(
    fn: Any, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Compiled[Any, Any]:
    """Return a function that computes the Jacobian of `fn` in forward mode, best for few inputs and many outputs.

    For a result of shape `r` and an argument of shape `s` it has the shape `r + s`; trees give trees of those.

    >>> jacfwd(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return _jacobian(fn, argnums, has_aux, holomorphic, _forward, jacfwd)


def jacrev(
    fn: Any, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Compiled[Any, Any]:
    """Return a function that computes the Jacobian of `fn` in reverse mode, best for many inputs and few outputs.

    >>> jacrev(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return _jacobian(fn, argnums, has_aux, holomorphic, _reverse, jacrev)


def hessian(
    fn: Any, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Compiled[Any, Any]:
    """Return a function that computes second derivatives: forward mode over reverse mode.

    >>> hessian(lambda x: (x**3).sum())(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    return jacfwd(jacrev(fn, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def _jacobian(
    fn: Any, argnums: Argnums, has_aux: bool, holomorphic: bool, mode: Any, maker: Any
) -> Compiled[Any, Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        check_argnums(fn, args, argnums)
        args = with_chosen_contents(args, argnums)
        inner = trace_inner(fn, args, kwargs, taken=value_of(has_aux))
        outs = _outs(inner, has_aux, holomorphic or mode is _forward)
        chosen = [chosen_leaves(args, k) for k in tuple_of(argnums)]
        own = [k for first, leaves, _, _ in chosen for k in range(first, first + len(leaves))]
        wrt = list(dict.fromkeys(own))
        _check(inner, wrt, holomorphic)
        blocks, values = mode(inner, outs, wrt)
        inner.put_back(values)
        result = inner.tree(values)
        found = _assembled(inner, outs, chosen, blocks, argnums, has_aux)
        return (found, result[1]) if has_aux else found

    return compiled(fn, (maker, argnums, has_aux, holomorphic), run)


def _outs(inner: Inner, has_aux: bool, takes_complex: bool) -> list[int]:
    structure = inner.structure.children[0] if has_aux else inner.structure
    count = _count(structure)
    places = inner.places[:count]
    for k in places:
        if k is None or not is_inexact(inner.graph.results[k].dtype):
            what = "an object" if k is None else str(inner.graph.results[k].type)
            raise GradientError(f"the function returns {what}, which has no derivative", location=here(),
                                remedy="return floats; further results go into `has_aux`")  # fmt: skip
        if is_complex(inner.graph.results[k].dtype) and not takes_complex:
            raise GradientError(
                "the function returns complex numbers",
                location=here(),
                remedy="say holomorphic=True if it is; of real arguments, take `dsl.jacfwd`",
            )
    return [k for k in places if k is not None]


def _count(structure: Any) -> int:
    return 1 if structure.type is None else sum(map(_count, structure.children))


def _check(inner: Inner, wrt: Sequence[int], holomorphic: bool) -> None:
    for k in wrt:
        leaf = inner.leaves[k]
        if not carries(leaf.value):
            raise GradientError(
                f"{leaf.path} is {leaf.type}: integers have no derivative",
                location=here(),
                remedy="pass floats",
            )
        if is_complex(leaf.value.dtype) and not holomorphic:
            raise GradientError(
                f"{leaf.path} is {leaf.type}",
                location=here(),
                remedy="say holomorphic=True if the function is",
            )


def basis(
    a: Algebra, type: TensorType, start: DimLike = 0, rows: DimLike | None = None
) -> tuple[Value, DimLike]:
    """Return all unit vectors of a shape, stacked along the first axis, and how many there are.

    Given a number of `rows`, there are as many, of which all but those from `start` on are zeros.
    """
    size = size_of(type.shape)
    rows = size if rows is None else rows
    row = a.reshaped(a.iota(size=rows, dtype=np.dtype(np.int64)), (rows, 1))
    place = a.reshaped(a.iota(size=size, dtype=np.dtype(np.int64)), (1, size))
    first = a.values(start)[0] if isinstance(start, int) else a.builder.size(start)
    same = a.equal(row, place if start == 0 else a.add(place, first))
    return a.reshaped(a.as_dtype(same, type.dtype), (rows, *type.shape)), rows


Blocks = dict[tuple[int, int], Value]


@unnoted()
def _forward(inner: Inner, outs: Sequence[int], wrt: Sequence[int]) -> tuple[Blocks, list[Value]]:
    scope = current_scope()
    a, blocks = Algebra(scope), {}
    types = [inner.leaves[k].value.tensor for k in wrt]
    starts = list(accumulate((size_of(type.shape) for type in types), initial=0))
    units = [basis(a, type, start, starts[-1])[0] for type, start in zip(types, starts)]
    found, batched, values = _all_pushed(inner, outs, wrt, units, starts[-1])
    for out, g, on in zip(outs, found, batched):
        shape = values[out].shape
        last = a.moved(g if on else a.to_shape(g, (starts[-1], *shape)), 0, len(shape))
        for k, type, start in zip(wrt, types, starts):
            own = _columns(a, last, start, size_of(type.shape))
            blocks[out, k] = a.reshaped(own, (*shape, *type.shape))
    return blocks, values


def _all_pushed(
    inner: Inner, outs: Sequence[int], wrt: Sequence[int], units: list[Value], size: DimLike
) -> tuple[list[Value], list[bool], list[Value]]:
    """Push the unit vectors of all arguments at once, so that what the function does happens once.

    Where the vectors have to take turns, the function itself runs apart from them.
    """
    scope = current_scope()
    args, flags = [*inner.args, *units], [False] * len(inner.args) + [True] * len(wrt)
    try:
        graph = _pushed(inner.graph, outs, wrt)
        whole, given, on = batched_by(batch, graph, scope, args, flags, size)
        if not any(on[len(outs) :]):
            found = inline(scope, whole, given)
            return found[: len(outs)], on, found[len(outs) :]
    except REFUSALS:
        pass
    _refuse_taking(inner.graph)
    graph = _pushed(without_effects(inner.graph), outs, wrt)
    found, on = for_all(graph, scope, args, flags, size)
    return found[: len(outs)], on, inline(scope, inner.graph, inner.args)


def _refuse_taking(graph: Graph) -> None:
    for node in graph.walk():
        if is_dropped(node) and node.outputs:
            raise GradientError(
                f"`jacfwd` has to run this function once more for each direction, but `{node.op.name}` happens once",
                location=node.loc,
                remedy="take it out of the function and pass its result as an argument, or use `dsl.jacrev`",
            )


def _columns(a: Algebra, x: Value, start: DimLike, size: DimLike) -> Value:
    """Return some of the last axis of an array; all of it as it is."""
    *rest, last = x.shape
    if size == last:
        return x
    begin = (*(0 for _ in rest), start)
    return a.slice(x, start=begin, size=(*rest, size), step=(1,) * len(begin))


def _pushed(graph: Graph, outs: Sequence[int], wrt: Sequence[int]) -> Graph:
    """The graph from all arguments and tangents of those in `wrt` to the tangents of `outs`, then all results."""
    builder = Builder(graph.name)
    params = [builder.param(p.type) for p in graph.params]
    tangents = {k: builder.param(params[k].type) for k in wrt}
    wanted = [k in outs for k in range(len(graph.results))]
    given = [tangents.get(k) for k in range(len(params))]
    values, moved = push(graph, builder, params, given, wanted)
    a = Algebra(builder)
    found = [m if (m := moved[out]) is not None else a.zeros(values[out].tensor) for out in outs]
    return builder.finish([*found, *values])


@unnoted()
def _reverse(inner: Inner, outs: Sequence[int], wrt: Sequence[int]) -> tuple[Blocks, list[Value]]:
    """Go forward once, where sizes that the function finds out are known, and back from all units of each result."""
    scope = current_scope()
    a, blocks = Algebra(scope), {}
    active = [k in wrt for k in range(len(inner.args))]
    wanted = [k in outs for k in range(len(inner.graph.results))]
    reverse = Reverse(inner.graph, scope, inner.args, active, wanted)
    for out in outs:
        type = reverse.outputs[out].tensor
        graph, captured = _pulled(reverse, scope, out, wrt)
        units, size = basis(a, type)
        flags = [True] + [False] * len(captured)
        found, batched = for_all(graph, scope, [units, *captured], flags, size)
        for k, g, on in zip(wrt, found, batched):
            shape = inner.leaves[k].value.shape
            whole = g if on else a.to_shape(g, (size, *shape))
            blocks[out, k] = a.reshaped(whole, (*type.shape, *shape))
    return blocks, reverse.outputs


def _pulled(
    reverse: Reverse, scope: Builder, out: int, wrt: Sequence[int]
) -> tuple[Graph, list[Value]]:
    """The graph from a cotangent of result `out` to the cotangents of `wrt`, and what it reads of the scope."""
    region = Region(reverse.graph.name, scope)
    seed = region.param(reverse.outputs[out].type)
    seeds = [seed if k == out else None for k in range(len(reverse.outputs))]
    found = reverse.pull(region, seeds)
    a, args = Algebra(region), [reverse.values[param] for param in reverse.graph.params]
    gs = [combine(a, found[k]) if found[k] else a.zeros(args[k].tensor) for k in wrt]
    graph = region.graph([seed], gs)
    return graph, list(region.captured)


def _assembled(
    inner: Inner,
    outs: Sequence[int],
    chosen: Sequence[Any],
    blocks: Blocks,
    argnums: Argnums,
    has_aux: bool,
) -> Any:
    """A tree of results, whose leaves are trees like the arguments."""
    structure = inner.structure.children[0] if has_aux else inner.structure
    leaves = []
    for out in outs:
        trees = [
            unflatten(shape, [fresh(blocks[out, k]) for k in range(first, first + len(own))])
            for first, own, shape, _ in chosen
        ]
        leaves.append(trees[0] if isinstance(argnums, int) else tuple(trees))
    return unflatten(structure, leaves)
