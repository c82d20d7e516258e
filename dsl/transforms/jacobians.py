"""`jacfwd`, `jacrev`, `hessian`: whole Jacobians, all directions as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries
from dsl.autodiff.forward import push
from dsl.autodiff.reverse import Reverse
from dsl.compile import Compiled
from dsl.errors import GradientError
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import fresh
from dsl.frontend.trees import unflatten
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.dims import DimLike
from dsl.ir.graph import Graph, Value
from dsl.ir.types import TensorType, is_complex, is_inexact, size_of
from dsl.transforms.batches import for_all
from dsl.transforms.gradients import Argnums, chosen_leaves, tuple_of, with_chosen_contents
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
    return _jacobian(fn, argnums, has_aux, holomorphic, _forward, "jacfwd")


def jacrev(
    fn: Any, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Compiled[Any, Any]:
    """Return a function that computes the Jacobian of `fn` in reverse mode, best for many inputs and few outputs.

    >>> jacrev(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return _jacobian(fn, argnums, has_aux, holomorphic, _reverse, "jacrev")


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
    fn: Any, argnums: Argnums, has_aux: bool, holomorphic: bool, mode: Any, name: str
) -> Compiled[Any, Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        args = with_chosen_contents(args, argnums)
        inner = trace_inner(fn, args, kwargs)
        outs = _outs(inner, has_aux, holomorphic)
        chosen = [chosen_leaves(args, k) for k in tuple_of(argnums)]
        wrt = [k for first, leaves, _, _ in chosen for k in range(first, first + len(leaves))]
        _check(inner, wrt, holomorphic)
        blocks, values = mode(inner, outs, wrt)
        inner.put_back(values)
        result = inner.tree(values)
        found = _assembled(inner, outs, chosen, blocks, argnums, has_aux)
        return (found, result[1]) if has_aux else found

    return compiled(fn, (name, argnums, has_aux, holomorphic), run)


def _outs(inner: Inner, has_aux: bool, holomorphic: bool) -> list[int]:
    structure = inner.structure.children[0] if has_aux else inner.structure
    count = _count(structure)
    places = inner.places[:count]
    for k in places:
        if k is None or not is_inexact(inner.graph.results[k].dtype):
            what = "an object" if k is None else str(inner.graph.results[k].type)
            raise GradientError(f"the function returns {what}, which has no derivative", location=here(),
                                remedy="return floats; further results go into `has_aux`")  # fmt: skip
        if is_complex(inner.graph.results[k].dtype) and not holomorphic:
            raise GradientError(
                "the function returns complex numbers",
                location=here(),
                remedy="say holomorphic=True if it is",
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


def basis(a: Algebra, type: TensorType) -> tuple[Value, DimLike]:
    """Return all unit vectors of a shape, stacked along the first axis, and how many there are."""
    size = size_of(type.shape)
    rows = a.iota(size=size, dtype=np.dtype(np.int64))
    same = a.equal(a.reshaped(rows, (size, 1)), a.reshaped(rows, (1, size)))
    return a.reshaped(a.as_dtype(same, type.dtype), (size, *type.shape)), size


Blocks = dict[tuple[int, int], Value]


def _forward(inner: Inner, outs: Sequence[int], wrt: Sequence[int]) -> tuple[Blocks, list[Value]]:
    scope = current_scope()
    a, blocks, values = Algebra(scope), {}, []
    for k in wrt:
        graph = _pushed(inner, outs, k)
        type = inner.leaves[k].value.tensor
        units, size = basis(a, type)
        flags = [False] * len(inner.args) + [True]
        found, batched = for_all(graph, scope, [*inner.args, units], flags, size)
        values = found[len(outs) :]
        for out, g, on in zip(outs, found, batched):
            shape = inner.graph.results[out].shape
            whole = g if on else a.to_shape(g, (size, *shape))
            last = a.moved(whole, 0, len(shape))
            blocks[out, k] = a.reshaped(last, (*shape, *type.shape))
    return blocks, values


def _pushed(inner: Inner, outs: Sequence[int], k: int) -> Graph:
    """The graph from all arguments and a tangent of argument `k` to the tangents of `outs`, then all results."""
    builder = Builder(inner.graph.name)
    params = [builder.param(p.type) for p in inner.graph.params]
    tangent = builder.param(params[k].type)
    ts: list[Value | None] = [tangent if j == k else None for j in range(len(params))]
    values, moved = push(inner.graph, builder, params, ts)
    a = Algebra(builder)
    found = [m if (m := moved[out]) is not None else a.zeros(values[out].tensor) for out in outs]
    return builder.finish([*found, *values])


def _reverse(inner: Inner, outs: Sequence[int], wrt: Sequence[int]) -> tuple[Blocks, list[Value]]:
    scope = current_scope()
    a, blocks, values = Algebra(scope), {}, []
    for out in outs:
        graph = _pulled(inner, out, wrt)
        type = inner.graph.results[out].tensor
        units, size = basis(a, type)
        flags = [False] * len(inner.args) + [True]
        found, batched = for_all(graph, scope, [*inner.args, units], flags, size)
        values = found[len(wrt) :]
        for k, g, on in zip(wrt, found, batched):
            shape = inner.leaves[k].value.shape
            whole = g if on else a.to_shape(g, (size, *shape))
            blocks[out, k] = a.reshaped(whole, (*type.shape, *shape))
    return blocks, values


def _pulled(inner: Inner, out: int, wrt: Sequence[int]) -> Graph:
    """The graph from all arguments and a cotangent of result `out` to the cotangents of `wrt`, then all results."""
    builder = Builder(inner.graph.name)
    params = [builder.param(p.type) for p in inner.graph.params]
    seed = builder.param(inner.graph.results[out].type)
    count = len(inner.graph.results)
    reverse = Reverse(
        inner.graph,
        builder,
        params,
        [k in wrt for k in range(len(params))],
        [k == out for k in range(count)],
    )
    found = reverse.pull(builder, [seed if k == out else None for k in range(count)])
    a = Algebra(builder)
    gs = [combine(a, found[k]) if found[k] else a.zeros(params[k].tensor) for k in wrt]
    return builder.finish([*gs, *reverse.outputs])


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
