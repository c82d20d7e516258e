"""`custom_vjp` and `custom_jvp`: functions whose derivative the user writes.

The rules are traced together with the function, so that they are graphs like everything else: they can be differentiated
and batched in turn.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dsl.autodiff.flow import carries
from dsl.compile import named
from dsl.errors import GradientError
from dsl.frontend.calls import call
from dsl.frontend.leaves import info_of
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import fresh, lift, read
from dsl.frontend.trees import arranged, flatten, unflatten
from dsl.ir.algebra import Algebra
from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Value
from dsl.ir.ops.rules import differ
from dsl.ir.types import TensorType, ValueType, is_inexact
from dsl.transforms.inner import Inner, Stand, is_number, trace_inner, unwrapped, with_contents

__all__ = ["custom_jvp", "custom_vjp"]

Function = Callable[..., Any]


_DEPTH = 2
"""How often a function may come up in its own rule with its rule; deeper down it is differentiated like any other."""


class _Custom:
    """A function with a rule; called outside a trace, the function itself."""

    def __init__(self, fn: Any, nondiff_argnums: Sequence[int] = ()) -> None:
        self.fn = unwrapped(fn)
        self.nondiff_argnums = _checked_numbers(nondiff_argnums)
        self.depth = 0
        functools.update_wrapper(self, self.fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (
            self.fn(*args, **kwargs) if current_trace() is None else self.dsl_inline(args, kwargs)
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        if named(self.fn.__module__, self.fn.__qualname__) is self:
            return self.fn.__qualname__  # found under its name again
        return _made_again, (type(self), self.fn, self.nondiff_argnums, self.rules())

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace the function with its rules; arguments by keyword, and defaults, are given to all of them by position."""
        try:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
        except (TypeError, ValueError):  # which the call says better, or nobody knows
            return self.inlined(args, kwargs)
        named_alone = bound.kwargs
        bound.apply_defaults()
        return self.inlined(bound.args, named_alone)

    def inlined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def dsl_wraps(self) -> tuple[Any, ...]:
        """What is outside of a trace if this is."""
        return (self.fn, *self.rules())

    def rules(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def define(self, *rules: Any) -> None:
        raise NotImplementedError

    def parted(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the arguments that have no derivative, and the others."""
        if self.nondiff_argnums and max(self.nondiff_argnums) >= len(args):
            raise GradientError(
                f"`{self.fn.__name__}` has nondiff_argnums={self.nondiff_argnums}, but it was called with {len(args)} "
                f"positional argument{'s' * (len(args) != 1)}",
                location=here(),
                remedy="count arguments from 0 and pass these by position",
            )
        others = tuple(arg for k, arg in enumerate(args) if k not in self.nondiff_argnums)
        return tuple(args[k] for k in self.nondiff_argnums), others

    def given(self, fn: Any, fixed: tuple[Any, ...]) -> Any:
        """Return a function like `fn` of the other arguments alone."""
        if not fixed:
            return fn
        places = dict(zip(self.nondiff_argnums, fixed, strict=True))

        def run(*others: Any, **kwargs: Any) -> Any:
            left = iter(others)
            count = len(places) + len(others)
            args = [places[k] if k in places else next(left) for k in range(count)]
            return call(fn, *args, **kwargs)

        return run

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def _refuse_missing(self, rule: object, define: str) -> None:
        if rule is None:
            raise GradientError(
                f"`{self.fn.__name__}` has no derivative rule yet", location=here(),
                remedy=f"give it one: `{self.fn.__name__}.{define}(…)`",
            )  # fmt: skip


def _made_again(
    kind: type[_Custom], fn: Any, nondiff_argnums: tuple[int, ...], rules: tuple[Any, ...]
) -> _Custom:
    made = kind(fn, nondiff_argnums)
    made.define(*rules)
    return made


class custom_vjp(_Custom):
    """Give a function a reverse-mode derivative of your own: `f.defvjp(forward, backward)`.

    `forward(*args)` returns the result of the function and residuals, any tree. `backward(residuals, cotangent)` returns a
    tuple with the cotangent of each argument; None stands for zero. Arguments that `nondiff_argnums` names, such as functions,
    come first in `backward(*those, residuals, cotangent)`, and have no cotangent.

    >>> import dsl, numpy as np
    >>> @custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, ()), lambda residuals, g: (np.minimum(g, 1.0),))
    >>> dsl.grad(lambda x: 5.0 * clipped(x))(2.0)
    1.0
    """

    forward: Function | None = None
    backward: Function | None = None

    def defvjp(self, forward: Function, backward: Function) -> None:
        """Say how the derivative is computed."""
        self.forward, self.backward = forward, backward

    def rules(self) -> tuple[Any, ...]:
        return self.forward, self.backward

    def define(self, *rules: Any) -> None:
        self.forward, self.backward = rules

    def inlined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._refuse_missing(self.forward, "defvjp")
        args = with_contents(args)
        if self.depth >= _DEPTH:
            return call(self.fn, *args, **kwargs)
        fixed, args = self.parted(args)
        primal = trace_inner(self.given(self.fn, fixed), args, kwargs)
        with self.deeper():
            rule = self.given(self.forward, fixed)
            forward = trace_inner(rule, args, kwargs, taken=_arranged_by(primal, 1))
            self._check_forward(primal, forward)
            backward = self._backward(forward, fixed, args)
        return _emit("custom_vjp", primal, forward, backward)

    def _check_forward(self, primal: Inner, forward: Inner) -> None:
        children = forward.structure.children
        if (
            forward.structure.type is not tuple
            or len(children) != 2
            or children[0] != primal.structure
        ):
            raise GradientError(
                f"the forward rule of `{self.fn.__name__}` must return (result, residuals) with a result like the function's, "
                f"{primal.structure}; it returns {forward.structure}",
                location=here(), remedy="return a pair of both",
            )  # fmt: skip
        for own, other in zip(primal.graph.results, forward.graph.results):
            _check_type(f"the forward rule of `{self.fn.__name__}` returns", other, own.type)

    def _backward(self, forward: Inner, fixed: tuple[Any, ...], args: tuple[Any, ...]) -> Inner:
        """Trace the backward rule on what stands for residuals and cotangents."""
        result, residuals = forward.tree_of_types()
        leaves, structure = flatten(result)
        cotangent = unflatten(structure, [x if isinstance(x, Stand) else None for x in leaves])

        def run(residuals: Any, cotangent: Any) -> list[Any]:
            found = call(self.backward, *fixed, residuals, cotangent)
            return _cotangents(self.fn.__name__, found, args)

        return trace_inner(run, (residuals, cotangent), {})


class custom_jvp(_Custom):
    """Give a function a derivative of your own, for both modes: `f.defjvp(rule)`.

    `rule(primals, tangents)` takes two tuples and returns the result of the function and its tangent, which is linear in the
    tangents of the arguments. Arguments that `nondiff_argnums` names, such as functions, come first in
    `rule(*those, primals, tangents)`, and are in neither tuple.

    >>> import dsl, numpy as np
    >>> @custom_jvp
    ... def softplus(x):
    ...     return np.log1p(np.exp(x))
    >>> rule = softplus.defjvp(lambda p, t: (softplus(*p), t[0] / (1 + np.exp(-p[0]))))
    >>> dsl.grad(softplus)(0.0)
    0.5
    """

    rule: Function | None = None

    def defjvp(self, rule: Function) -> Function:
        """Say how the derivative is computed."""
        self.rule = rule
        return rule

    def rules(self) -> tuple[Any, ...]:
        return (self.rule,)

    def define(self, *rules: Any) -> None:
        (self.rule,) = rules

    def inlined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._refuse_missing(self.rule, "defjvp")
        if kwargs:
            raise GradientError(
                f"`{self.fn.__name__}` has a rule of its own and takes no arguments by keyword alone: {', '.join(kwargs)}",
                location=here(), remedy="have it take them by position",
            )  # fmt: skip
        args = with_contents(args)
        if self.depth >= _DEPTH:
            return call(self.fn, *args)
        fixed, args = self.parted(args)
        primal = trace_inner(self.given(self.fn, fixed), args, {})
        moving = [Stand(leaf.type, leaf.kind) for leaf in primal.leaves if carries(leaf.value)]

        def run(primals: tuple[Any, ...], moving: list[Any]) -> Any:
            leaves, structure = flatten(primals)
            left = iter(moving)
            made = [next(left) if _moves(leaf) else 0 for leaf in leaves]
            return call(self.rule, *fixed, primals, unflatten(structure, made))

        with self.deeper():
            rule = trace_inner(run, (args, moving), {}, taken=_arranged_by(primal, 2))
        self._check_rule(primal, rule)
        return _emit("custom_jvp", primal, rule)

    def _check_rule(self, primal: Inner, rule: Inner) -> None:
        children = rule.structure.children
        alike = all(child == primal.structure for child in children)
        if rule.structure.type is not tuple or len(children) != 2 or not alike:
            raise GradientError(
                f"the rule of `{self.fn.__name__}` must return (result, tangent), both like the function's result, "
                f"{primal.structure}; it returns {rule.structure}",
                location=here(), remedy="return a pair of both",
            )  # fmt: skip
        for own, other in zip((*primal.graph.results, *primal.graph.results), rule.graph.results):
            _check_type(f"the rule of `{self.fn.__name__}` returns", other, own.type)


def _arranged_by(primal: Inner, count: int) -> Callable[[Any], Any]:
    """Return what puts the first parts of a rule's result, which are like the function's, into its order of dicts."""
    return lambda result: (
        tuple(arranged(x, primal.structure) if k < count else x for k, x in enumerate(result))
        if type(result) is tuple
        else result
    )


def _checked_numbers(nondiff_argnums: Any) -> tuple[int, ...]:
    numbers = nondiff_argnums if isinstance(nondiff_argnums, (tuple, list)) else (nondiff_argnums,)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise GradientError(
            f"nondiff_argnums: expected numbers of positional arguments, got {nondiff_argnums!r}",
            location=here(),
            remedy="count arguments from 0",
        )
    return tuple(sorted(numbers))


def _moves(leaf: Any) -> bool:
    return is_number(leaf) and is_inexact(info_of(leaf).dtype)


def _check_type(what: str, value: Value, type: ValueType) -> None:
    assert isinstance(type, TensorType)
    if (
        value.dtype != type.dtype
        or len(value.shape) != len(type.shape)
        or any(map(differ, value.shape, type.shape))
    ):
        raise GradientError(
            f"{what} {value.type} where {type} is expected",
            location=here(),
            remedy="return the same shape and dtype",
        )


def _cotangents(name: str, found: Any, args: tuple[Any, ...]) -> list[Any]:
    """Check what a backward rule returned; give the cotangents of the arguments that have any, in a row."""
    if not isinstance(found, tuple) or len(found) != len(args):
        got = (
            f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
        )
        raise GradientError(
            f"the backward rule of `{name}` must return a tuple of {len(args)}, one for each argument; it returned {got}",
            location=here(), remedy="return a tuple, with None for arguments that have no gradient",
        )  # fmt: skip
    row: list[Any] = []
    for number, (arg, g) in enumerate(zip(args, found, strict=True)):
        leaves, structure = flatten(arg)
        given, got_structure = (
            ([None] * len(leaves), structure) if g is None else flatten(arranged(g, structure))
        )
        if got_structure != structure:
            raise GradientError(
                f"the backward rule of `{name}` returned {got_structure} for argument {number}, which is {structure}",
                location=here(), remedy="return a tree like the argument",
            )  # fmt: skip
        row += [
            _cotangent(name, number, leaf, x)
            for leaf, x in zip(leaves, given, strict=True)
            if _moves(leaf)
        ]
    return row


def _cotangent(name: str, number: int, leaf: Any, g: Any) -> Any:
    info = info_of(leaf)
    scope = current_scope()
    if g is None:
        return fresh(Algebra(scope).zeros(info.type))
    value = read(lift(g))
    what = f"the backward rule of `{name}` returned for argument {number}:"
    if value.dtype != info.dtype and not value.shape:
        value = Algebra(scope).as_dtype(value, info.dtype)
    _check_type(what, value, info.type)
    return fresh(value)


def _emit(op: str, primal: Inner, *rules: Inner) -> Any:
    """Add the node: its operands are the arguments, then all that the function and the rules capture."""
    scope = current_scope()
    count = len(primal.leaves)
    captured = list(dict.fromkeys(v for inner in (primal, *rules) for v in inner.captured))
    given = tuple(k for k, leaf in enumerate(primal.leaves) if carries(leaf.value))
    regions = [_widened(primal, captured, count)]
    if op == "custom_vjp":
        regions += [_widened(rules[0], captured, count), _trailing(rules[1], captured)]
    else:
        regions.append(_widened(rules[0], captured, count))
    types = [value.type for value in primal.graph.results]
    made = scope.node(
        op, [*(leaf.value for leaf in primal.leaves), *captured], {"operands": count, "given": given},
        regions=regions, types=types,
    )  # fmt: skip
    return primal.tree(made.outputs)


def _widened(inner: Inner, captured: Sequence[Value], count: int) -> Graph:
    """Give a graph all captured values as params after the first `count`; its other params come last."""
    params = inner.graph.params
    own = dict(zip(inner.captured, params[len(inner.leaves) :], strict=True))
    inside = [own[value] if value in own else _param(value) for value in captured]
    order = (*params[:count], *inside, *params[count : len(inner.leaves)])
    return Graph(inner.graph.name, order, inner.graph.results, inner.graph.effects)


def _trailing(inner: Inner, captured: Sequence[Value]) -> Graph:
    params = inner.graph.params
    own = dict(zip(inner.captured, params[len(inner.leaves) :], strict=True))
    inside = [own[value] if value in own else _param(value) for value in captured]
    return Graph(
        inner.graph.name,
        (*inside, *params[: len(inner.leaves)]),
        inner.graph.results,
        inner.graph.effects,
    )


def _param(value: Value) -> Value:
    return Builder().param(value.type)
