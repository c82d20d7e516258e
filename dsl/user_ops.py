"""`dsl.op`: a primitive of the user's own, from what it means on NumPy arrays, the types of its results, and its derivative.

In a trace a call is one node. Compiled programs call the function for that node alone, or run its `lowering`, a `dsl.kernel`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import TypeRuleError, UnsupportedError
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import lift, read, wrap
from dsl.ir.registry import Op, Trait, no_samples
from dsl.ir.types import TensorType
from dsl.transforms.rules import custom_vjp
from dsl.user_kernels import Kernel

__all__ = ["Primitive", "op"]

_numbers = itertools.count(1)


def op(
    fn: Callable[..., Any] | None = None, /, *, out: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None, lowering: Kernel | None = None,
) -> Any:  # fmt: skip
    """Make a primitive of a function of NumPy arrays, which is called as it is and never traced.

    `out` is a function of the operands' types, which have `.shape` and `.dtype`; it returns one of them, or `(shape, dtype)`, or a
    list of such for several results. By default the result is like the first operand. `vjp(g, y, *operands)` returns the
    cotangent of each operand from that of the result, and y, the result; it is traced. Keyword arguments are options: numbers,
    strings and tuples, which `out` and `vjp` do not see. `lowering`, a `dsl.kernel`, is what compiled programs run instead.

    >>> import dsl
    >>> @op(vjp=lambda g, y, x: (g * 2 * x,))
    ... def squared(x):
    ...     return np.square(x)
    >>> float(dsl.grad(lambda x: squared(x).sum())(np.array([3.0]))[0])
    6.0
    """
    if fn is None:
        return functools.partial(op, out=out, vjp=vjp, lowering=lowering)
    made = Primitive(fn, out, lowering)
    return made if vjp is None else _with_rule(made, vjp)


class Primitive:
    """A user's op: on arrays its function, in a trace one node.

    >>> doubled = op(lambda x: 2 * x)
    >>> isinstance(doubled, Primitive), doubled(np.array([1.0]))
    (True, array([2.]))
    """

    def __init__(
        self, fn: Callable[..., Any], out: Callable[..., Any] | None, lowering: Kernel | None
    ) -> None:
        if not callable(fn):
            raise UnsupportedError(f"dsl.op takes a function of NumPy arrays, got {fn!r}")
        self.fn, self.out, self.lowering = fn, out or _like_the_first, lowering
        functools.update_wrapper(self, fn)
        self.name = getattr(fn, "__name__", "op").strip("<>")
        self.record = self._record()

    def _record(self) -> Op:
        doc = (getattr(self.fn, "__doc__", None) or "An op of the user's.").strip().splitlines()[0]
        name = f"user_{self.name}_{next(_numbers)}"  # not in the registry, which is dsl's own
        traits = frozenset({Trait.PURE})
        return Op(name, "*operands -> *results", doc, self._types, self._apply, traits, no_samples)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_trace() is not None:
            return self.dsl_inline(args, kwargs)
        return self.fn(*args, **kwargs)

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a call: one node."""
        if self.lowering is not None:
            return self.lowering(*args, **kwargs)
        values = [read(lift(x)) for x in args]
        outputs = current_scope().node(self.record, values, dict(kwargs)).outputs
        results = tuple(map(wrap, outputs))
        return results[0] if len(results) == 1 else results

    def _types(self, inputs: tuple[TensorType, ...], attrs: Any) -> tuple[TensorType, ...]:
        found = self.out(*inputs)
        specs = found if isinstance(found, list) else [found]
        return tuple(self._type(spec) for spec in specs)

    def _type(self, spec: Any) -> TensorType:
        if isinstance(spec, TensorType):
            return spec
        try:
            shape, dtype = spec
            return TensorType(np.dtype(dtype), tuple(shape))
        except (TypeError, ValueError):
            raise TypeRuleError(
                f"{self.name}: `out` returned {spec!r}",
                location=here(),
                remedy="return one of its arguments, or `(shape, dtype)`, or a list of such",
            ) from None

    def _apply(self, *arrays: np.ndarray, **attrs: Any) -> Any:
        inputs = tuple(TensorType(x.dtype, x.shape) for x in arrays)
        found = self.fn(*(x.copy() for x in arrays), **attrs)
        results = found if isinstance(found, tuple) else (found,)
        made = [np.asarray(y) for y in results]
        wanted = self._types(inputs, attrs)
        for got, want in zip(made, wanted):
            if (got.dtype, got.shape) != (want.dtype, want.shape):
                raise TypeRuleError(
                    f"{self.name} returned {TensorType(got.dtype, got.shape)}, and its `out` says {want}"
                )
        if len(made) != len(wanted):
            raise TypeRuleError(
                f"{self.name} returned {len(made)} results, and its `out` describes {len(wanted)}"
            )
        return made[0] if len(made) == 1 else tuple(made)


def _like_the_first(first: TensorType, *others: TensorType) -> TensorType:
    return first


def _with_rule(made: Primitive, vjp: Callable[..., Any]) -> Any:
    def run(*args: Any) -> Any:
        return made(*args)

    def forward(*args: Any) -> Any:
        y = made(*args)
        return y, (y, args)

    def backward(kept: Any, g: Any) -> Any:
        y, args = kept
        return vjp(g, y, *args)

    functools.update_wrapper(run, made.fn)
    found = custom_vjp(run)
    found.defvjp(forward, backward)
    return found
