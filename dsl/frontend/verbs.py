"""Control-flow verbs: `cond`, `while_loop`, `fori_loop`, `scan`, `map`, `fold`, `switch`.

They take functions and trees of values, and work inside compiled functions and outside, where they run in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError
from dsl.frontend import looping
from dsl.frontend.calls import call
from dsl.frontend.conditions import conditional
from dsl.frontend.loops import Span
from dsl.frontend.scans import scan_traced, scan_values
from dsl.frontend.scopes import current_trace, here
from dsl.frontend.traced import Traced
from dsl.frontend.trees import flatten

__all__ = ["cond", "fold", "fori_loop", "map", "scan", "switch", "while_loop"]

Function = Callable[..., Any]


def cond(pred: Any, true_fn: Function, false_fn: Function, *operands: Any) -> Any:
    """Return `true_fn(*operands)` if `pred` is true, else `false_fn(*operands)`; only one of them runs.

    >>> cond(True, lambda x: x + 1, lambda x: x, 1)
    2
    """
    return conditional(
        pred, lambda: _apply(true_fn, *operands), lambda: _apply(false_fn, *operands)
    )


def _apply(fn: Function, *args: Any) -> Any:
    return call(fn, *args) if current_trace() is not None else fn(*args)


def switch(index: Any, branches: list[Function], *operands: Any) -> Any:
    """Return `branches[index](*operands)`; an index out of range is clamped to it.

    >>> switch(1, [lambda x: x, lambda x: -x], 3)
    -3
    """
    if not branches:
        raise ShapeError(
            "switch needs a branch", location=here(), remedy="pass a list of functions"
        )
    first, *rest = branches
    if not rest:
        return _apply(first, *operands)
    return conditional(
        index <= 0, lambda: _apply(first, *operands), lambda: switch(index - 1, rest, *operands)
    )


class _Box:
    """The state of a verb's loop, as the one variable of its body."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> list[Any]:
        return [self.value]

    def put(self, values: list[Any]) -> None:
        (self.value,) = values

    def state(self) -> tuple[Any, Any, tuple[str, ...], int]:
        return self.get, self.put, ("carry",), 1


def while_loop(cond_fn: Function, body_fn: Function, init: Any) -> Any:
    """Apply `body_fn` to the carry as long as `cond_fn` of it is true; return the last carry.

    Functions of several arguments get the parts of a carry that is a tuple or list of so many.

    >>> while_loop(lambda i, total: i < 5, lambda i, total: (i + 1, total + i), (0, 0))
    (5, 10)
    """
    if isinstance(init, (tuple, list)) and _takes(cond_fn, len(init)):
        test, step, kind = cond_fn, body_fn, type(init)
        return while_loop(
            lambda carry: call(test, *carry), lambda carry: kind(call(step, *carry)), init
        )
    box = _Box(init)
    if current_trace() is None:
        while cond_fn(box.value):
            box.value = body_fn(box.value)
        return box.value

    def body() -> None:
        box.value = call(body_fn, box.value)

    looping.while_(lambda: call(cond_fn, box.value), body, *box.state(), ())
    return box.value


def _takes(fn: Function, count: int) -> bool:
    """Tell whether a function takes `count` arguments, more than one, by position."""
    try:
        inspect.signature(fn).bind(*range(count))
        inspect.signature(fn).bind(None)
    except TypeError as error:
        return count > 1 and "missing" in str(error)
    except ValueError:
        return False
    return False


def fori_loop(lower: Any, upper: Any, body_fn: Function, init: Any) -> Any:
    """Return the carry after `carry = body_fn(i, carry)` for each `i` in `range(lower, upper)`.

    >>> fori_loop(0, 4, lambda i, c: c + i, 0)
    6
    """
    box = _Box(init)
    if current_trace() is None:
        for i in range(lower, upper):
            box.value = body_fn(i, box.value)
        return box.value

    def body(i: Any) -> None:
        box.value = call(body_fn, i, box.value)

    looping.for_(Span(lower, upper, 1), body, None, *box.state(), (), ())
    return box.value


def scan(
    f: Function, init: Any, xs: Any = None, length: Any = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Loop over the leading axis: `carry, y = f(carry, x)`; return the last carry and the stacked `y`s.

    >>> scan(lambda total, x: (total + x, total), 0, np.array([1, 2, 3]))
    (np.int64(6), array([0, 1, 3]))
    """
    count = _length(xs, length)
    if current_trace() is None:
        return scan_values(f, init, xs, count, reverse)
    return scan_traced(lambda c, x: call(f, c, x), init, xs, count, reverse, fori_loop)


def _length(xs: Any, length: Any) -> Any:
    leaves, _ = flatten(xs)
    if not leaves:
        if length is None:
            raise ShapeError("scan needs `xs` or `length`", location=here(), remedy="pass length=n")
        return length
    shapes = [_shape(leaf) for leaf in leaves]
    if () in shapes:
        raise ShapeError(
            "`xs` holds a number, which has no leading axis to loop over",
            location=here(),
            remedy="pass arrays; what all trips share belongs into `init` or into the function",
        )
    sizes = [shape[0] for shape in shapes]
    given = [*sizes, length] if isinstance(length, (int, np.integer)) else sizes
    known = {int(size) for size in given if isinstance(size, (int, np.integer))}
    if len(known) > 1:
        what = "the leading axes of `xs`" + " and `length`" * (len(given) > len(sizes))
        raise ShapeError(
            f"{what} differ: {', '.join(str(size) for size in given)}",
            location=here(),
            remedy="give them one length",
        )
    return sizes[0]


def _shape(leaf: Any) -> tuple[Any, ...]:
    return leaf.shape if isinstance(leaf, Traced) else np.shape(leaf)


def map(f: Function, xs: Any) -> Any:
    """Apply `f` to each item along the leading axis and stack the results.

    >>> map(lambda x: x.sum(), np.ones((2, 3)))
    array([3., 3.])
    """
    return scan(lambda carry, x: (carry, _apply(f, x)), (), xs)[1]


def fold(f: Function, xs: Any, init: Any) -> Any:
    """Return the carry after `carry = f(carry, x)` for each item along the leading axis.

    >>> float(fold(lambda total, x: 10 * total + x, np.array([1.0, 2.0, 3.0]), 0.0))
    123.0
    """
    return scan(lambda carry, x: (_apply(f, carry, x), ()), init, xs)[0]
