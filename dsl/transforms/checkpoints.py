"""`checkpoint`: compute again, going back, instead of keeping what was computed going forward."""

from __future__ import annotations

from typing import Any

from dsl.compile import Compiled
from dsl.frontend.scopes import current_scope
from dsl.transforms.inner import compiled, trace_inner

__all__ = ["checkpoint"]


def checkpoint(fn: Any = None, *, policy: str = "nothing") -> Any:
    """Return a function that means what `fn` does, and of which derivatives keep the arguments alone.

    Going back, the function runs again: time for memory. Inside it, loops are run in segments, so that a loop of n trips
    keeps about sqrt(n) of its states. The `policy` says what is kept besides the arguments: `"nothing"`, or `"states"`,
    with which loops keep the state before every trip, and only what is computed within a trip is computed again.

    >>> import dsl
    >>> @checkpoint
    ... def eighth_power(x):
    ...     for _ in range(3):
    ...         x = x * x
    ...     return x
    >>> dsl.grad(eighth_power)(1.0)
    8.0
    """
    if fn is None:
        return lambda function: checkpoint(function, policy=policy)
    if policy not in ("nothing", "states"):
        raise ValueError(f"checkpoint: the policy is 'nothing' or 'states', not {policy!r}")

    def run(*args: Any, **kwargs: Any) -> Any:
        inner = trace_inner(fn, args, kwargs)
        scope = current_scope()
        types = [value.type for value in inner.graph.results]
        attrs = {"whole": True} if policy == "states" else {}
        made = scope.node("checkpoint", inner.args, attrs, regions=[inner.graph], types=types)
        inner.put_back(made.outputs)
        return inner.tree(made.outputs)

    found: Compiled[Any, Any] = compiled(fn, (_with_policy, policy), run)
    return found


def _with_policy(fn: Any, policy: str) -> Any:
    return checkpoint(fn, policy=policy)
