"""Joins a traced function to its machine code: what a call passes, what comes back, and the shortest way between.

`make_executable` compiles the graph of a traced function and returns an `Executable`, which runs on the arrays of a call.
`Executable.direct` is the quick way: a built-in that takes the arguments of a call as they are and returns what the
user gets. It exists for functions whose arguments are all plain arrays and numbers, and whose results are arrays,
views, numbers or a tuple of them. With trees, or things from outside the function, a function of Python that is written
for them stands before it.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsl import events
from dsl.config import config
from dsl.frontend import scopes
from dsl.frontend.signature import Arguments, Leaf
from dsl.frontend.tracing import TracedFunction
from dsl.frontend.unpack import unpacker
from dsl.ir.graph import Graph

__all__ = ["Direct", "Executable", "count_hits", "make_executable", "outputs_of"]


@dataclass
class Executable:
    """A program in machine code, called with the list of arrays that the graph takes; outputs nobody asked for are None."""

    native: Any
    outputs: int
    needed: list[int]
    direct: Direct | None = None
    in_place: bool = True
    times: dict[str, float] = field(default_factory=dict)

    def __call__(self, arrays: list[Any]) -> list[Any]:
        found: list[Any] = [None] * self.outputs
        for k, array in zip(self.needed, self.native(arrays), strict=True):
            found[k] = array
        return found


def make_executable(
    traced: TracedFunction,
    graph: Graph,
    arguments: Arguments,
    *,
    exact_strides: bool = True,
    fastmath: bool = False,
) -> Executable:
    """Compile a traced function's optimised graph."""
    from dsl.codegen.cpu.native import compile_graph

    start = time.perf_counter()
    watch()
    needed = sorted(set(outputs_of(traced)))
    native = compile_graph(
        graph,
        list(_params(traced, graph, arguments, exact_strides)),
        results=needed,
        written=[(source, target) for source, target, _ in traced.written],
        fastmath=fastmath,
    )
    made = Executable(native, len(graph.results), needed)
    made.direct = _direct(traced, graph, arguments, native, needed)
    made.times = {**native.times, "native": time.perf_counter() - start}
    return made


# -- what goes in -----------------------------------------------------------------------------------------------------


def _params(
    traced: TracedFunction, graph: Graph, arguments: Arguments, exact: bool
) -> Iterator[Any]:
    from dsl.codegen.cpu.native import ParamKind

    for k in traced.inputs:
        yield _param(arguments.described[k], exact)
    for item in traced.captures:
        if item.number is not None:
            yield _param(item.number, exact)
        else:
            yield ParamKind("array", None if item.strides is None else "any")


def _param(leaf: Leaf, exact: bool) -> Any:
    from dsl.codegen.cpu.native import ParamKind
    from dsl.native.results import NUMBERS

    if leaf.kind == "python":
        return ParamKind(NUMBERS[np.dtype(leaf.dtype).name])
    if leaf.kind == "scalar":
        return ParamKind("scalar")
    return ParamKind("array", _layout(leaf.strides, leaf.dtype.itemsize, exact))


def _layout(strides: Any, itemsize: int, exact: bool) -> Any:
    if strides is None:
        return None
    return strides if exact and all(s % itemsize == 0 for s in strides) else "any"


# -- what comes out ---------------------------------------------------------------------------------------------------


def outputs_of(traced: TracedFunction) -> Iterator[int]:
    """The outputs that the caller gets to see, other than through the arrays it passed."""
    sources = traced.sources
    while sources:
        source = sources.pop()
        yield from (k for _, k in source.numbers)
        if source.numbers:
            yield source.copy
        if source.kind == "output":
            yield source.index
        elif source.kind == "either":
            chosen, sides = source.value
            sources.append(chosen)
            for _, more in sides.values():
                sources.extend(more)


# -- the quick way ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Direct:
    """A way to run a whole call by a built-in: what `make` needs to know besides who takes what it declines.

    With `arguments`, the built-in takes the leaves of a call, which an `unpacker` finds. It returns the `whole` of what
    the user gets, one object or a tuple of them, or a tuple of all leaves that the caller gets.
    """

    native: Any
    params: list[Any]
    results: list[Any]
    hidden: int
    traced: TracedFunction
    whole: bool
    arguments: Arguments | None = None

    def make(
        self,
        declined: Callable[..., Any],
        retry: Callable[..., Any] | None,
        signature: inspect.Signature,
        function: Any,
        timed: bool = False,
    ) -> tuple[Any, Any] | None:
        """Return what to call for a function that the program serves, and the built-in behind it, which counts; None if that cannot be.

        One that is `timed` has clocks in its program, and runs whatever else keeps built-ins from running.
        """
        from dsl.codegen.cpu import entry

        native = self.native.timed() if timed else self.native
        spec, plain = native.spec, self.arguments is None
        if plain and any(
            p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()
        ):
            return None
        single = self.whole and self.traced.result[0].type is not tuple
        made = entry.make_entry(
            native.address,
            entry.EntrySpec(
                params=self.params, results=self.results, hidden=self.hidden, result="single" if single else "tuple",
                release_gil=spec.release_gil, on_error=spec.on_error, callback=spec.callback, keep=spec.keep,
                declined=declined if plain else None, retry=retry if plain or retry is None else _decline, always=timed,
                signature=signature if plain else None,
            ),
        )  # fmt: skip
        if self.arguments is None:
            return made, made
        call = unpacker(
            signature, self.arguments, self.traced, self.whole, declined, made, function
        )
        return None if call is None else (staticmethod(call), made)


def _decline(*leaves: Any) -> Any:
    """Have who passed the leaves go the long way."""
    return NotImplemented


def _direct(
    traced: TracedFunction, graph: Graph, arguments: Arguments, native: Any, needed: list[int]
) -> Direct | None:
    """Return how a built-in can do the whole call, if it is simple enough."""
    from dsl.native.results import is_whole, records

    whole = is_whole(traced)
    alone = not traced.guards and not traced.captures and not traced.shared and not traced.roles
    inside = whole and alone
    plain = _arguments(traced, arguments, native) if inside else None
    params, at = plain or (list(native.spec.params), range(len(native.spec.params)))
    found = records(traced, graph, needed, params, at)
    if found is None:
        return None
    # Without the arrays: they must not live as long as the function.
    kinds = replace(
        arguments, bound=dict.fromkeys(arguments.bound), leaves=[], function=None, found=None
    )
    return Direct(native, params, *found, traced, whole, None if plain else kinds)


def _arguments(
    traced: TracedFunction, arguments: Arguments, native: Any
) -> tuple[list[Any], list[int]] | None:
    """What each argument of a call is, and which of them the params of the graph are; None if one is not a single leaf."""
    from dsl.codegen.cpu import entry

    found: list[Any] = []
    at: dict[int, int] = {}  # the argument of each leaf
    static = {name for name, _ in arguments.key[2]}
    aliases = arguments.key[3] or range(len(arguments.leaves))
    for name, value in arguments.bound.items():
        if name in static or value is None:
            found.append(entry.StaticParam(value))
            continue
        k = len(at)
        if k == len(arguments.leaves) or arguments.leaves[k] is not value:
            return None
        at[k] = len(found)
        if aliases[k] != k:
            found.append(entry.SameParam(at[aliases[k]]))
        elif k in traced.inputs:
            found.append(native.spec.params[traced.inputs.index(k)])
        else:
            found.append(entry.StaticParam(value))
    return (found, [at[k] for k in traced.inputs]) if len(at) == len(arguments.leaves) else None


def count_hits(made: Any) -> int:
    """Return how many calls a built-in has taken."""
    from dsl.codegen.cpu import entry

    return entry.hits(made)


# -- when not to --------------------------------------------------------------------------------------------------------


_SLOW = ("disable_jit", "debug_nans")
"""Options that calls must ask about: with them, no built-in takes a call as it is."""


@functools.cache
def watch() -> None:
    """Keep built-ins from running while something is traced or profiled, or compiling is switched off."""
    from dsl.codegen.cpu import entry

    state = {"tracing": 0, "off": 0}

    def update() -> None:
        entry.SLOW.value = state["tracing"] + state["off"] + (events.LOG is not None)

    def on_trace(change: int) -> None:
        state["tracing"] = max(0, state["tracing"] + change)
        update()

    def on_config() -> None:
        state["off"] = int(
            any(getattr(config, name) or config.is_overridden(name) for name in _SLOW)
        )
        update()

    scopes.LISTENERS.append(on_trace)
    events.LISTENERS.append(update)
    for name in _SLOW:
        config.watch(name, on_config)
    on_config()
