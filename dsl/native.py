"""Joins a traced function to its machine code: what a call passes, what comes back, and the shortest way between.

`make_executable` compiles the graph of a traced function and returns an `Executable`, which runs on the arrays of a call.
`Executable.direct` is the quick way: a built-in that takes the arguments of a call as they are and returns what the
user gets, or NotImplemented for arguments of another kind. It exists for functions whose arguments are all plain
arrays and numbers and whose results are arrays, numbers or a tuple of them.
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
from dsl.frontend.signature import Arguments
from dsl.frontend.traced import Kind
from dsl.frontend.tracing import Source, TracedFunction, look_up
from dsl.frontend.unpack import unpacker
from dsl.ir.graph import Graph

__all__ = ["Direct", "Executable", "count_hits", "make_executable", "outputs_of"]

_NUMBERS = {"int64": "int", "float64": "float", "complex128": "complex", "bool": "bool"}


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
        leaf = arguments.described[k]
        if leaf.kind == "python":
            yield ParamKind(_NUMBERS[np.dtype(leaf.dtype).name])
        elif leaf.kind == "scalar":
            yield ParamKind("scalar")
        else:
            yield ParamKind("array", _layout(leaf.strides, leaf.dtype.itemsize, exact))
    for item in traced.captures:
        strides = None if item.array.flags.c_contiguous else "any"
        yield ParamKind("array", strides)


def _layout(strides: Any, itemsize: int, exact: bool) -> Any:
    if strides is None:
        return None
    return strides if exact and all(s % itemsize == 0 for s in strides) else "any"


# -- what comes out ---------------------------------------------------------------------------------------------------


def outputs_of(traced: TracedFunction) -> Iterator[int]:
    """The outputs that the caller gets to see, other than through the arrays it passed."""
    sources = [*traced.result[1]]
    for _, _, more in traced.containers:
        sources.extend(more)
    for *_, more in traced.attributes:
        sources.extend(more)
    while sources:
        source = sources.pop()
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

    With `arguments`, the call has trees, and `answer` says where the leaves of its result come from (see `unpacker`).
    """

    native: Any
    params: list[Any]
    results: list[Any]
    is_tuple: bool
    traced: TracedFunction
    arguments: Arguments | None = None
    answer: Any = None

    def make(
        self,
        declined: Callable[..., Any],
        retry: Callable[..., Any] | None,
        signature: inspect.Signature,
        timed: bool = False,
    ) -> tuple[Any, Any] | None:
        """Return what to call, and the built-in behind it, which counts; None if that cannot be.

        One that is `timed` has clocks in its program, and runs whatever else keeps built-ins from running.
        """
        from dsl.codegen.cpu import entry

        native, traced = self.native.timed() if timed else self.native, self.traced
        spec = native.spec
        outside = bool(traced.guards or traced.captures or self.arguments is not None)
        made = entry.make_entry(
            native.address,
            entry.EntrySpec(
                params=self.params, results=self.results, result="tuple" if self.is_tuple else "single",
                release_gil=spec.release_gil, on_error=spec.on_error, callback=spec.callback, keep=spec.keep,
                declined=None if outside else declined, retry=None if outside else retry, always=timed,
            ),
        )  # fmt: skip
        if self.arguments is not None:
            leaves = _looking(traced, made) if traced.guards or traced.captures else made
            names = list(self.arguments.bound)
            call = unpacker(
                signature, names, self.arguments, traced.inputs, self.answer, declined, leaves
            )
            return None if call is None else (staticmethod(call), made)
        return (staticmethod(_guarded(traced, made, declined)) if outside else made), made


def _looking(traced: TracedFunction, made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the leaves that adds what the function took from outside."""
    captures, guards, claim = traced.captures, traced.guards, traced.claim

    def call(*leaves: Any) -> Any:
        for holder, key, expected, contents in guards:
            if look_up(holder, key) is not expected or contents is not None:
                return NotImplemented
        outside = [look_up(c.holder, c.key) for c in captures]
        if claim is None:
            return made(*leaves, *outside)
        with claim:
            return made(*leaves, *outside)

    return call


def _direct(
    traced: TracedFunction, graph: Graph, arguments: Arguments, native: Any, needed: list[int]
) -> Direct | None:
    """Return how a built-in can do the whole call, if it is simple enough."""
    if traced.containers or traced.attributes or traced.shared:
        return None
    params = _direct_params(traced, arguments, native)
    results = _direct_results(traced, arguments, graph, needed)
    if params is None or results is None:
        same_twice = bool(arguments.key[3])
        return None if same_twice else _of_trees(traced, graph, arguments, native, needed)
    leaves, structure = results
    return Direct(native, params, leaves, structure is not None, traced)


def _of_trees(
    traced: TracedFunction, graph: Graph, arguments: Arguments, native: Any, needed: list[int]
) -> Direct | None:
    """Return how a built-in of the leaves can do a call that has trees."""
    structure, sources = traced.result
    leaves: dict[int, Any] = {}
    answer: list[Any] = []
    for source in sources:
        if source.kind == "static":
            answer.append([source.value])
            continue
        leaf = _leaf(source, graph)
        if leaf is None or leaves.setdefault(source.index, leaf) != leaf:
            return None
        answer.append(needed.index(source.index))
    if sorted(leaves) != needed:
        return None
    found = [leaves[k] for k in needed]
    params = list(native.spec.params)
    # Without the arrays: they must not live as long as the function.
    kinds = replace(arguments, bound=dict.fromkeys(arguments.bound), leaves=[])
    return Direct(native, params, found, True, traced, kinds, (structure, answer))


def _guarded(
    traced: TracedFunction, made: Callable[..., Any], declined: Callable[..., Any]
) -> Callable[..., Any]:
    """Look at what the function took from outside before each call."""
    captures, guards, claim = traced.captures, traced.guards, traced.claim

    def call(*args: Any, **kwargs: Any) -> Any:
        for holder, key, expected, contents in guards:
            if look_up(holder, key) is not expected or contents is not None:
                return declined(*args, **kwargs)
        outside = [look_up(c.holder, c.key) for c in captures]
        if claim is None:
            found = made(*args, *outside, **kwargs)
        else:
            with claim:
                found = made(*args, *outside, **kwargs)
        return declined(*args, **kwargs) if found is NotImplemented else found

    return call


def _direct_params(traced: TracedFunction, arguments: Arguments, native: Any) -> list[Any] | None:
    """The params of a call in the order of its arguments, or None if an argument is not a single leaf."""
    from dsl.codegen.cpu import entry

    places = {leaf: k for k, leaf in enumerate(traced.inputs)}
    found: list[Any] = []
    at: dict[int, int] = {}  # the argument of each leaf
    leaves = iter(enumerate(arguments.leaves))
    static = {name for name, _ in arguments.key[2]}
    aliases = arguments.key[3] or range(len(arguments.leaves))
    for name, value in arguments.bound.items():
        if name in static:
            found.append(entry.StaticParam(value))
            continue
        k, leaf = next(leaves, (-1, None))
        if leaf is not value or k < 0:
            return None
        at[k] = len(found)
        if aliases[k] != k:
            found.append(entry.SameParam(at[aliases[k]]))
        elif k in places:
            found.append(native.spec.params[places[k]])
        else:
            found.append(entry.StaticParam(value))
    if next(leaves, None) is not None:
        return None
    return found + list(native.spec.params[len(traced.inputs) :])


def _direct_results(
    traced: TracedFunction, arguments: Arguments, graph: Graph, needed: list[int]
) -> tuple[list[Any], Any] | None:
    """The results of the entry, which come in the order of the frame, and whether they are a tuple."""
    structure, sources = traced.result
    if len(sources) != len(needed) or [s.index for s in sources] != needed:
        return None
    leaves = [_leaf(source, graph) for source in sources]
    if any(leaf is None for leaf in leaves):
        return None
    if structure.type is None and len(leaves) == 1:
        return leaves, None
    plain = structure.type is tuple and all(child.type is None for child in structure.children)
    return (leaves, "tuple") if plain and leaves else None


def _leaf(source: Source, graph: Graph) -> Any:
    from dsl.codegen.cpu import entry

    if source.kind != "output" or source.views:
        return None
    type = graph.results[source.index].tensor
    if source.as_kind is Kind.ARRAY:
        return entry.ArrayResult(type.dtype, type.rank)
    if source.as_kind is Kind.SCALAR:
        return entry.ScalarResult(type.dtype)
    name = _NUMBERS.get(type.dtype.name)
    return entry.NumberResult(name) if name is not None else None  # type: ignore[arg-type]


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
