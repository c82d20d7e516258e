"""What has no op of its own is a loop over elements: `reduce`, `accumulate` and `at` of any ufunc, and `np.vectorize`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dsl.errors import TypeRuleError, UnsupportedError
from dsl.frontend import verbs
from dsl.frontend.calls import call
from dsl.frontend.scopes import here
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, fresh, lift, normalise_axis, read

__all__ = ["accumulate", "change_at", "reduce", "vectorized"]


def _loop_dtype(ufunc: np.ufunc, dtype: np.dtype, wanted: Any) -> np.dtype:
    """Return the dtype that a reduction computes in."""
    signature = (None if wanted is None else np.dtype(wanted),) * 3
    try:
        return ufunc.resolve_dtypes((None, dtype, None), signature=signature, reduction=True)[0]
    except TypeError as error:
        raise TypeRuleError(str(error), location=here()) from None


def _rows(ufunc: np.ufunc, x: Any, axis: int, dtype: Any) -> Traced:
    """Return the operands of a reduction along the leading axis."""
    if ufunc.nin != 2 or ufunc.nout != 1 or ufunc.signature is not None:
        raise UnsupportedError(f"np.{ufunc.__name__} has no reductions", location=here())
    traced = lift(x)
    kind = _loop_dtype(ufunc, traced.dtype, dtype)
    return _FUNCTIONS["moveaxis"](traced.astype(kind), axis, 0)  # type: ignore[no-any-return]


def reduce(
    ufunc: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """`ufunc.reduce`, one element after the other."""
    if where is not True:
        raise UnsupportedError(f"np.{ufunc.__name__}.reduce with where=", location=here())
    traced = lift(x)
    axes = range(traced.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    numbers = sorted({normalise_axis(a, traced.ndim) for a in axes}, reverse=True)
    if len(numbers) > 1 and not _reorderable(ufunc):
        raise ValueError(
            f"reduction operation '{ufunc.__name__}' is not reorderable, so at most one axis may be specified"
        )
    result = traced
    for number in numbers:
        result = _reduce_one(ufunc, _rows(ufunc, result, number, dtype), initial)
        initial = None
    if keepdims:
        result = _FUNCTIONS["expand_dims"](result, tuple(sorted(numbers)))
    if out is None:
        return result
    target = lift(out[0] if isinstance(out, tuple) else out)
    target[...] = result
    return target


def _reorderable(ufunc: np.ufunc) -> bool:
    return ufunc.identity is not None or ufunc in (np.fmax, np.fmin, np.lcm)


def _reduce_one(ufunc: np.ufunc, rows: Traced, initial: Any) -> Traced:
    start = ufunc.identity if initial is None else initial
    if start is None:
        if isinstance(rows.type.shape[0], int) and rows.type.shape[0] == 0:
            raise ValueError(
                f"zero-size array to reduction operation {ufunc.__name__} which has no identity"
            )
        first, rows = rows[0], rows[1:]
    else:
        first = _FUNCTIONS["full"](rows.shape[1:], start, dtype=rows.dtype)
    first = lift(first).astype(rows.dtype)
    total = verbs.fold(lambda carry, row: lift(ufunc(carry, row)).astype(rows.dtype), rows, first)
    return fresh(read(lift(total)), Kind.ARRAY if lift(total).ndim else Kind.SCALAR)


def accumulate(ufunc: np.ufunc, x: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
    """`ufunc.accumulate`, one element after the other."""
    traced = lift(x)
    axis = normalise_axis(axis, traced.ndim)
    rows = _rows(ufunc, traced, axis, dtype)
    if isinstance(rows.type.shape[0], int) and rows.type.shape[0] == 0:
        return _FUNCTIONS["moveaxis"](rows, 0, axis)

    def step(carry: Any, row: Any) -> Any:
        total = lift(ufunc(carry, row)).astype(rows.dtype)
        return total, total

    first = lift(rows[0])
    _, rest = verbs.scan(step, first, rows[1:])
    every = _FUNCTIONS["concatenate"]([rows[:1], rest])
    result = _FUNCTIONS["moveaxis"](every, 0, axis)
    if out is None:
        return result
    target = lift(out[0] if isinstance(out, tuple) else out)
    target[...] = result
    return target


def change_at(ufunc: np.ufunc, target: Traced, indices: Any, values: Any) -> None:
    """`ufunc.at`: one place after the other, so that places named twice change twice."""
    parts = indices if isinstance(indices, tuple) else (indices,)
    arrays = [lift(part) for part in parts if not isinstance(part, slice)]
    if len(arrays) < len(parts) or any(a.dtype.kind not in "iu" for a in arrays):
        raise UnsupportedError(
            f"np.{ufunc.__name__}.at with slices or masks", location=here(), remedy="use a loop"
        )
    arrays = list(_FUNCTIONS["broadcast_arrays"](*arrays))
    inner = target.shape[len(arrays) :]
    flat = [a.reshape(-1) for a in arrays]
    operands = [*flat]
    if values is not None:
        wide = _FUNCTIONS["broadcast_to"](lift(values), (*arrays[0].shape, *inner))
        operands.append(wide.reshape((-1, *inner)))

    def step(contents: Any, row: Any) -> Any:
        places = tuple(row[: len(flat)])
        old = contents[places]
        new = ufunc(old, row[-1]) if values is not None else ufunc(old)
        contents[places] = lift(new).astype(target.dtype)
        return contents

    target[...] = verbs.fold(step, tuple(operands), target.copy())


def vectorized(made: np.vectorize, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function of an `np.vectorize` on each element of its arguments, broadcast; results have one dtype."""
    if made.signature is not None or made.excluded or kwargs:
        raise UnsupportedError(
            "np.vectorize with a signature, excluded or named arguments",
            location=here(),
            remedy="use `dsl.vmap`, or a function of the other arguments alone",
        )
    arrays = [lift(a) for a in args]
    wide = _FUNCTIONS["broadcast_arrays"](*arrays)
    shape = wide[0].shape
    if all(isinstance(d, int) for d in shape) and math.prod(shape) == 0 and not made.otypes:
        raise ValueError("cannot call `vectorize` on size 0 inputs unless `otypes` is set")
    rows = tuple(a.reshape(-1) for a in wide)
    found = verbs.map(lambda row: call(made.pyfunc, *row), rows)
    several = isinstance(found, tuple)
    parts = [lift(part).reshape(shape) for part in (found if several else (found,))]
    if made.otypes:
        parts = [part.astype(kind) for part, kind in zip(parts, made.otypes, strict=True)]
    return tuple(parts) if several else parts[0]
