"""The loop behind `dsl.scan`, `dsl.map` and `dsl.fold`: a carry, and results that are stacked.

The stacked results lie in buffers that the loop carries. Their dtypes and shapes are those that the function returns, found
by tracing it before the loop: where a trip may not happen at all in a region that is thrown away, else as the first trip.
A carry whose dtype changes on the way (0, to which floats are added) may change the results' too; they get the dtype that
holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsl.errors import LoopTypeError
from dsl.frontend.leaves import Info, info_of, is_known, join
from dsl.frontend.regions import discard
from dsl.frontend.scopes import current_scope, current_trace
from dsl.frontend.state import is_numeric, set_attribute
from dsl.frontend.traced import _FUNCTIONS, Traced
from dsl.frontend.trees import Structure, flatten, map_leaves, unflatten
from dsl.ir.dims import symbols_of

__all__ = ["row", "scan_traced", "scan_values"]

Function = Callable[..., Any]  # of a carry and an item; returns a carry and a result

_ROUNDS = 4  # dtypes grow no longer than that: bool, integer, float, complex


def row(xs: Any, k: Any) -> Any:
    """Return item `k` of each array of a tree."""
    return map_leaves(lambda leaf: leaf[k], xs)


def _no_row(xs: Any) -> Any:
    """Return what stands for an item where there is none."""
    return map_leaves(_zero_item, xs)


def _zero_item(leaf: Any) -> Any:
    zeros = _FUNCTIONS["zeros"] if isinstance(leaf, Traced) else np.zeros
    return zeros(leaf.shape[1:], leaf.dtype)[()]


# -- outside traced code -------------------------------------------------------------------------------------------


def scan_values(f: Function, init: Any, xs: Any, count: int, reverse: bool) -> tuple[Any, Any]:
    """Scan over arrays of NumPy."""
    if not count:
        _, y = f(init, _no_row(xs))
        return init, map_leaves(lambda leaf: np.zeros((0, *np.shape(leaf)), _dtype([leaf])), y)
    carry, found = init, []
    for k in reversed(range(count)) if reverse else range(count):
        carry, y = f(carry, row(xs, k))
        found.append(flatten(y))
    if reverse:
        found.reverse()
    columns = zip(*(leaves for leaves, _ in found), strict=True)
    return carry, unflatten(found[0][1], [_stacked(column) for column in columns])


def _stacked(leaves: Sequence[Any]) -> np.ndarray:
    made = np.empty((len(leaves), *np.shape(leaves[0])), _dtype(leaves))
    for k, leaf in enumerate(leaves):
        made[k] = leaf
    return made


def _dtype(leaves: Sequence[Any]) -> np.dtype:
    """Return the dtype that holds all leaves; Python's numbers give way."""
    kinds = {
        type(x)(0) if type(x) in (bool, int, float, complex) else np.asarray(x).dtype
        for x in leaves
    }
    return np.result_type(*kinds)


# -- in traced code ------------------------------------------------------------------------------------------------


def scan_traced(
    f: Function, init: Any, xs: Any, count: Any, reverse: bool, loop: Callable[..., Any]
) -> tuple[Any, Any]:
    """Scan over traced arrays; `loop` is `fori_loop`."""
    trace = current_trace()
    assert trace is not None
    if isinstance(count, int) and count == 0:
        _, structure, infos = _looked_at(f, init, _no_row(xs))
        return init, unflatten(structure, [_buffer(0, info) for info in infos])
    if trace.is_graph and not isinstance(count, int):  # in functions, sizes of 0 are known
        fits, structure, infos = _looked_at(f, init, _no_row(xs))
        if fits:
            buffers = [_buffer(count, info) for info in infos]
            carry = _looped(f, init, xs, (0, count), reverse, buffers, loop)
            return carry, unflatten(structure, buffers)
    start = count - 1 if reverse else 0
    carry, y = f(init, row(xs, start))
    leaves, structure = flatten(y)
    buffers = [_buffer(count, info) for info in _widened(f, init, carry, leaves, row(xs, start))]
    for buffer, leaf in zip(buffers, leaves, strict=True):
        buffer[start] = leaf
    if not (isinstance(count, int) and count == 1):
        carry = _looped(f, carry, xs, (1, count), reverse, buffers, loop)
    return carry, unflatten(structure, buffers)


def _looped(
    f: Function, init: Any, xs: Any, span: tuple[int, Any], reverse: bool, buffers: list[Any],
    loop: Callable[..., Any],
) -> Any:  # fmt: skip
    first, count = span

    def body(i: Any, state: Any) -> Any:
        at = count - 1 - i if reverse else i
        carry, y = f(state, row(xs, at))
        for buffer, leaf in zip(buffers, flatten(y)[0], strict=True):
            buffer[at] = leaf
        return carry

    return loop(first, count, body, init)


def _buffer(count: Any, info: Info) -> Any:
    return _FUNCTIONS["zeros"]((count, *info.shape), info.dtype)


# -- what the function returns -------------------------------------------------------------------------------------


@contextmanager
def _thrown_away() -> Iterator[None]:
    """Trace something of which nothing is to remain."""
    trace = current_trace()
    assert trace is not None
    with trace.region("look") as scope:
        yield
        for obj, name, old in scope.attributes.values():
            set_attribute(obj, name, old)
        scope.suspend()
        discard(scope)


def _looked_at(f: Function, init: Any, item: Any) -> tuple[bool, Structure, list[Info]]:
    """Return whether the carry keeps its structure and results have sizes known here; their structure, and what they are."""
    outer = current_scope()
    with _thrown_away():
        carry, y = f(init, item)
        leaves, structure = flatten(y)
        infos = _joined(f, init, carry, leaves, item)
        fits = flatten(carry)[1] == flatten(init)[1] and _ranks(carry) == _ranks(init)
    dims = [d for info in infos for d in info.shape]
    return fits and all(is_known(s, outer) for d in dims for s in symbols_of(d)), structure, infos


def _widened(f: Function, init: Any, carry: Any, leaves: list[Any], item: Any) -> list[Info]:
    """Return what results are, given those of the first trip and the carry after it."""
    if _dtypes(init) == _dtypes(carry):
        return [info_of(leaf) for leaf in leaves]
    with _thrown_away():
        return _joined(f, init, carry, leaves, item)


def _joined(f: Function, before: Any, carry: Any, leaves: list[Any], item: Any) -> list[Info]:
    infos = [info_of(leaf) for leaf in leaves]
    for _ in range(_ROUNDS):
        if _dtypes(before) == _dtypes(carry):
            break
        before, (carry, y) = carry, f(carry, item)
        now = [info_of(leaf) for leaf in flatten(y)[0]]
        infos = [
            Info(join(a, b, "y", LoopTypeError, "several types").dtype, a.shape, a.kind)
            for a, b in zip(infos, now, strict=True)
        ]
    return infos


def _dtypes(tree: Any) -> list[Any]:
    return [info_of(leaf).dtype if is_numeric(leaf) else None for leaf in flatten(tree)[0]]


def _ranks(tree: Any) -> list[Any]:
    return [len(info_of(leaf).shape) if is_numeric(leaf) else None for leaf in flatten(tree)[0]]
