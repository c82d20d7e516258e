"""Trace a function into a graph of its own, inside the trace under way; and make functions that do so when called.

The function works on copies of its arguments: what it writes into them stays inside. What it writes into arrays from
around it is written there, as when it is called.
"""

from __future__ import annotations

import functools
import inspect
import string
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dsl.autodiff.region import inline
from dsl.compile import BoundCompiled, Compiled
from dsl.errors import UnsupportedError
from dsl.frontend.bounds import settle
from dsl.frontend.calls import call
from dsl.frontend.leaves import BranchRaise, info_of
from dsl.frontend.regions import discard, emit_raise, region_of
from dsl.frontend.scopes import Scope, Storage, Trace, current_scope, current_trace, here
from dsl.frontend.state import (
    Undefined,
    change_contents,
    held_by,
    is_numeric,
    open_attribute,
    put_back,
    set_attribute,
)
from dsl.frontend.traced import Kind, Traced, fresh, lift, read
from dsl.frontend.trees import Structure, flatten, leaves_with_paths, unflatten
from dsl.ir.graph import Graph, Value
from dsl.ir.types import ValueType
from dsl.passes.thread_state import hoist_reads
from dsl.variables import Variable

__all__ = [
    "Inner",
    "Leaf",
    "Stand",
    "Transform",
    "compiled",
    "trace_inner",
    "unwrapped",
    "with_contents",
]


def unwrapped(fn: Any) -> Any:
    """Return the function inside a compiled one."""
    return fn._fn if isinstance(fn, (Compiled, BoundCompiled)) else fn


class Transform:
    """A function of traced arguments, as something to compile under the name and signature of the user's."""

    dsl_traced = True  # also where compiling is switched off: there is no other way to run it

    def __init__(
        self, run: Callable[..., Any], fn: Any, again: tuple[Any, ...], as_called: bool = False
    ) -> None:
        functools.update_wrapper(self, unwrapped(fn), updated=())
        self.run, self.fn, self.again = run, fn, again
        if as_called or isinstance(fn, np.ufunc):  # defaults that the call leaves out stay out
            self.__signature__ = inspect.signature(lambda *args, **kwargs: None)

    def dsl_inline(self, args: Any, kwargs: Any) -> Any:
        """Called while tracing."""
        return self.run(*args, **kwargs)

    def dsl_wraps(self) -> tuple[Any, ...]:
        """What is outside of a trace if this is."""
        return (self.fn,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _made_again, (self.fn, *self.again)


def _made_again(fn: Any, make: Callable[..., Any], *options: Any) -> Any:
    return unwrapped(make(fn, *options))


def compiled(
    fn: Any,
    again: tuple[Any, ...],
    run: Callable[..., Any],
    as_called: bool = False,
    key: Any = None,
) -> Compiled[Any, Any]:
    """Return `run` compiled in place of `fn`; asked again for the same function and key, the same object.

    `again` is what to call on `fn` to have that again, when it was pickled, with what other arguments; it is the key too if
    it hashes. `run` gets the arguments with defaults filled in or, if it wants them `as_called`, just those given.
    """
    if not callable(fn):
        raise UnsupportedError(f"expected a function, got {fn!r}", location=here())
    static = fn._static if isinstance(fn, (Compiled, BoundCompiled)) else ()
    found: Compiled[Any, Any] = kept(
        fn,
        (key or again, static),
        lambda: Compiled(
            Transform(run, fn, again, as_called and not static), static_argnames=static
        ),
    )
    return found


def kept(fn: Any, key: Any, make: Callable[[], Any]) -> Any:
    """Return what was made for a function and key before, or make it."""
    inner = unwrapped(fn)
    if isinstance(inner, types.MethodType):
        return _kept_of_method(inner, key, make)
    if not isinstance(inner, (types.FunctionType, Transform)):
        return make()
    made = inner.__dict__.setdefault("__dsl_transforms__", {})
    try:
        if key not in made:
            made[key] = make()
        return made[key]
    except TypeError:  # a key that does not hash
        return make()


def _kept_of_method(method: types.MethodType, key: Any, make: Callable[[], Any]) -> Any:
    """Return what was made for a method of an object, another one at each look; that of the latest objects is kept."""
    if current_trace() is not None or not isinstance(method.__func__, types.FunctionType):
        return make()
    made = method.__func__.__dict__.setdefault("__dsl_methods__", {})
    place = id(method.__self__), key
    try:
        found = made.pop(place, None)
    except TypeError:  # a key that does not hash
        return make()
    made[place] = found = make() if found is None else found
    while len(made) > _MOST_METHODS:
        made.pop(next(iter(made)), None)
    return found


_MOST_METHODS = 16  # derivatives of methods, each of which keeps its object


@dataclass(frozen=True)
class Leaf:
    """One argument: its value in the current scope if it has one, what it is, and its path for messages."""

    given: Value | None
    type: ValueType
    kind: Kind
    path: str

    @property
    def value(self) -> Value:
        assert self.given is not None
        return self.given


@dataclass
class Inner:
    """A function traced into a graph. Its params are the numeric `leaves` of the arguments, then captured values."""

    graph: Graph
    leaves: list[Leaf]
    captured: list[Value]
    structure: Structure
    results: list[
        Any
    ]  # a kind for each result of the graph, in the places of the tree; other objects as they are
    places: list[int | None]  # the result of the graph at each leaf of the tree
    written: list[tuple[Storage, int]] = field(default_factory=list)
    attributes: list[tuple[Any, str, Any, Structure, list[int | None], list[Any]]] = field(
        default_factory=list
    )
    opened: dict[int, Any] = field(
        default_factory=dict
    )  # lists and dicts of attributes, changed in place

    @property
    def args(self) -> list[Value]:
        return [*(leaf.value for leaf in self.leaves), *self.captured]

    def put_back(self, outputs: Sequence[Value]) -> None:
        """Write what the function wrote into arrays from around it, and assigned to attributes of objects."""
        for storage, k in self.written:
            storage.set(outputs[k])
        for obj, name, old, structure, places, kinds in self.attributes:
            tree = _put_together(structure, places, kinds, outputs)
            if id(old) in self.opened:
                open_attribute(current_scope(), obj, name)
                change_contents(old, tree)
                continue
            current_scope().attributes.setdefault((id(obj), name), (obj, name, old))
            set_attribute(obj, name, tree)

    def tree(self, outputs: Sequence[Value]) -> Any:
        """Return the function's result, of values of the current scope."""
        return _put_together(self.structure, self.places, self.results, outputs)

    def tree_of_types(self) -> Any:
        """Return the function's result with what is in the graph described."""
        made = [
            other if place is None else Stand(self.graph.results[place].type, other)
            for place, other in zip(self.places, self.results, strict=True)
        ]
        return unflatten(self.structure, made)


def _put_together(
    structure: Structure,
    places: Sequence[int | None],
    kinds: Sequence[Any],
    outputs: Sequence[Value],
) -> Any:
    made = [
        other if place is None else _handle(outputs[place], other)
        for place, other in zip(places, kinds, strict=True)
    ]
    return unflatten(structure, made)


def _handle(value: Value, kind: Kind) -> Traced:
    """Return a handle of a kind; numbers of which a batch was made are an array."""
    return fresh(value, Kind.ARRAY if value.shape else kind)


def numeric_leaves(tree: Any, name: str = "") -> list[tuple[int, Any, str]]:
    """Return the leaves of a tree that have values in a graph, with their places and paths."""
    return [
        (k, leaf, path)
        for k, (path, leaf) in enumerate(leaves_with_paths(tree, name))
        if is_number(leaf)
    ]


class Stand:
    """An argument of which only the type is known; a leaf of trees, so no dataclass."""

    def __init__(self, type: ValueType, kind: Kind = Kind.ARRAY) -> None:
        self.type, self.kind = type, kind


def is_number(leaf: Any) -> bool:
    return isinstance(leaf, Stand) or (is_numeric(leaf) and not isinstance(leaf, bool))


def trace_inner(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    stands: Callable[[int, Leaf], Stand] | None = None,
    taken: Callable[[Any], Any] = lambda result: result,
) -> Inner:
    """Trace `fn` on arguments of the current trace; `stands` may say that its params are something else, `taken` what of its result counts.

    Arguments that are `Stand`s have no value: the graph is for others to call.
    """
    trace = current_trace()
    assert trace is not None
    tree = (args, kwargs)
    all_leaves, structure = flatten(tree)
    found = numeric_leaves(tree)
    leaves = [_leaf(leaf, path) for _, leaf, path in found]
    with trace.region(getattr(fn, "__name__", "inner")) as scope:
        handles = list(all_leaves)
        leading = []
        for number, ((k, _, _), leaf) in enumerate(zip(found, leaves, strict=True)):
            seen = Stand(leaf.type, leaf.kind) if stands is None else stands(number, leaf)
            param = scope.param(seen.type)
            leading.append(param)
            if type(all_leaves[k]) is int and seen.type == leaf.type:
                continue  # known while tracing, where code may need it: a length, an index, the end of a recursion
            storage = Storage(param, scope)
            storage.outside = True  # a function that calls this one may go on to read it
            handles[k] = Traced(storage, (), seen.kind)
        inner_args, inner_kwargs = unflatten(structure, handles)
        raised: BaseException | None = None
        try:
            result = taken(call(fn, *inner_args, **inner_kwargs))
        except BranchRaise as signal:
            raised, result = signal.error, tuple(getattr(signal.error, "dsl_values", ()))
        made = _finish(trace, scope, leading, leaves, result)
    if raised is not None:
        _raise_outside(raised, made, stands is not None)
    return _reading_outside(made) if trace.is_graph else made


def _raise_outside(error: BaseException, inner: Inner, of_items: bool) -> NoReturn:
    """Raise what a function always raises where it is called, with the values that its message shows."""
    values = inner.tree_of_types()
    if not values:
        raise error from None
    trace = current_trace()
    assert trace is not None
    if of_items or trace.is_graph:  # which of them, or what it is, is not known
        parts = string.Formatter().parse(str(error))
        text = "".join(part + ("" if value is None else "…") for part, value, *_ in parts)
        raise type(error)(text) from None
    error.dsl_values = inner.tree(inline(current_scope(), inner.graph, inner.args))  # type: ignore[attr-defined]
    outermost = len(trace.scopes) == 1
    if outermost:
        emit_raise(error)
    raise BranchRaise(error, emitted=outermost)


def _reading_outside(inner: Inner) -> Inner:
    """Capture the contents of the variables that a function of a graph only reads: derivatives go on to the reads."""
    (inner.graph,), variables = hoist_reads("function", (inner.graph,))
    trace = current_trace()
    assert trace is not None
    inner.captured += [read(trace.resources[name].dsl_traced()) for name in variables]
    return inner


def with_contents(tree: Any) -> Any:
    """Return a tree with what variables in it hold in their place."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [x.read() if isinstance(x, Variable) else x for x in leaves])


def _leaf(leaf: Any, path: str) -> Leaf:
    if isinstance(leaf, Stand):
        return Leaf(None, leaf.type, leaf.kind, _pretty(path))
    traced = lift(leaf)
    value = read(traced)
    return Leaf(value, value.type, traced.kind, _pretty(path))


def _finish(
    trace: Trace, scope: Scope, leading: list[Value], leaves: list[Leaf], result: Any
) -> Inner:
    values: list[Value] = []
    structure, places, kinds = _take_apart(result, values)
    held = [(item, held_by(*item[:2])) for item in scope.attributes.values()]
    # An attribute without a value is that of an object which was made inside, and is no more.
    changed = [(item, tree) for item, tree in held if not isinstance(tree, Undefined)]
    attributes = [(*item, *_take_apart(tree, values)) for item, tree in changed]
    for attribute in scope.attributes.values():
        put_back(scope, *attribute)
    replaced = scope.suspend()
    written = [(storage, len(values) + k) for k, storage in enumerate(replaced)]
    captured = list(scope.captured)
    graph = region_of(scope, captured, [*values, *replaced.values()], leading)
    graph = settle(graph, trace.checks)
    discard(scope)
    opened = {key: held for key, (held, _, _) in scope.opened.items()}
    return Inner(graph, leaves, captured, structure, kinds, places, written, attributes, opened)


def _take_apart(tree: Any, values: list[Value]) -> tuple[Structure, list[int | None], list[Any]]:
    """Append the values in a tree; return its structure, and the place among them and the kind of each leaf."""
    tree_leaves, structure = flatten(tree)
    places: list[int | None] = []
    kinds: list[Any] = []
    for leaf in tree_leaves:
        if not is_number(leaf) and not isinstance(leaf, (bool, np.bool_)):
            places.append(None)
            kinds.append(leaf)
            continue
        places.append(len(values))
        kinds.append(info_of(leaf).kind)
        values.append(read(lift(leaf)))
    return structure, places, kinds


def _pretty(path: str) -> str:
    """Turn `[0][1]['w']` into `argument 1['w']`, and `[1]['x']` into `argument x`."""
    head, _, rest = path.removeprefix("[").partition("]")
    first, _, rest = rest.removeprefix("[").partition("]")
    return f"argument {first if head == '0' else first.strip(chr(39))}{rest}"
