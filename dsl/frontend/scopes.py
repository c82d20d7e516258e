"""Traces and scopes: where the nodes of a function being traced go.

A `Trace` is one run of a user's function. It has a stack of `Scope`s: the function's own graph, and one for each region
(branch or loop body) being traced. A scope reads values of the scopes around it by capturing them as params.

The contents of an array live in a `Storage`: its current value, and the scope that made it. Writing replaces the value;
a scope remembers the contents that it replaced in storages from outside, so that they can be put back when it closes.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dsl.errors import AliasError, ConversionError, InternalError, LeakError
from dsl.frontend.bounds import Place, check, check_unused
from dsl.frontend.code_table import CodeTable
from dsl.frontend.roles import Roles
from dsl.frontend.stand_ins import StandIns
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, DimLike, lower_bound
from dsl.ir.facts import fits, may_raise
from dsl.ir.graph import Attrs, Graph, Node, Value
from dsl.ir.location import Location
from dsl.ir.registry import Op, Trait
from dsl.ir.types import Shape, TensorType

__all__ = [
    "Capture",
    "Scope",
    "Storage",
    "Trace",
    "calls_on",
    "current_scope",
    "current_trace",
    "device_of_calls",
    "here",
    "is_here",
    "is_own",
    "move",
    "tracing",
]

_NUMPY = Path(np.__file__).parent
_OWN = Path(sys.modules["dsl"].__file__ or "").parent
_LIBRARIES = tuple(f"{path}{os.sep}" for path in (_OWN, _NUMPY, _NUMPY.parent / "scipy"))
_LIBRARIES += ("<dsl ",)  # what dsl writes itself, such as the code that unpacks arguments
_STANDARD = str(Path(os.__file__).parent) + os.sep
_DEEPEST = 16


@dataclass(frozen=True)
class _Lines:
    """The places of a code object's instructions in its file, and those asked for, by the instruction's offset."""

    positions: list[Any]
    found: dict[int, Location] = field(default_factory=dict)


_lines: CodeTable[_Lines] = CodeTable()


class _Stack(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = _Stack()


def here() -> Location | None:
    """Return the user's line that is running: the innermost frame outside dsl, NumPy, SciPy and Python's library."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    lines = _lines.get(code) or _lines.put(code, _Lines(list(code.co_positions())))
    if frame.f_lasti not in lines.found:
        lines.found[frame.f_lasti] = _locate(frame, lines)
    return lines.found[frame.f_lasti]


@functools.cache
def is_own(file: str) -> bool:
    """Tell whether code is of dsl itself, or written by it."""
    return file.startswith((f"{_OWN}{os.sep}", "<dsl "))


@functools.cache
def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or (
        file.startswith(_STANDARD) and "site-packages" not in file
    )


def _locate(frame: Any, lines: _Lines) -> Location:
    line, last, column, end = lines.positions[frame.f_lasti // 2]
    single = line is not None and line == last
    return Location(
        frame.f_code.co_filename,
        line or frame.f_lineno,
        _function_at(frame),
        column if single else None,
        end if single else None,
    )


def _function_at(frame: Any) -> str:
    """Return the name of the user's function that a frame is in: conversion makes functions of branches and operands."""
    file, own, at = frame.f_code.co_filename, str(frame.f_code.co_name), frame
    while at is not None:
        parts = str(at.f_code.co_qualname).split(".")
        names = [part for part in parts if not part.startswith(("dsl__", "<locals>", "<lambda>"))]
        if names and at.f_code.co_filename == file:
            return names[-1]
        at = at.f_back
    return own


@dataclass(frozen=True)
class Item:
    """The key of what a mapping other than a dict holds: `look_up` asks for `holder[key]`."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(eq=False)
class Capture:
    """An array or number from outside the function: where it is read from at each call, and its handle in the trace.

    It does not hold the array, which another may take the place of. Of a number, `number` tells the kind. When the trace is over,
    there is no handle any more: with it, all that the trace has seen would stay as long as the compiled function.
    """

    holder: Any
    key: Any
    storage: Storage | None
    type: TensorType
    name: str
    nbytes: int
    strides: tuple[int, ...] | None = None  # of an array that is not contiguous
    number: Any = None


_LONGEST_CHAIN = 8
_MOST_CHAINS = 100


class Storage:
    """The contents of a traced array. `origin` is the index of the input that it came from, or None."""

    __slots__ = (
        "__weakref__",
        "aliases",
        "ambiguous",
        "defined",
        "follows",
        "half",
        "loc",
        "origin",
        "outside",
        "reader",
        "scope",
        "shares",
        "shown",
        "stale",
        "strides",
        "value",
        "version",
        "viewers",
        "written",
    )

    def __init__(
        self, value: Value, scope: Scope, origin: int | None = None, loc: Location | None = None
    ) -> None:
        self.value, self.scope, self.origin = value, scope, origin
        self.version = 0
        self.written = False
        # Whether it may be the memory of an array that the caller sees.
        self.outside = origin is not None
        # Those of an argument that is not contiguous; symbols where they are not known.
        self.strides: Shape | None = None
        # Whether NumPy lays it out as the arrays that it is computed from.
        self.follows = False
        # The storage, and views of it, whose memory this copy is in NumPy if the sizes allow it.
        self.shown: tuple[weakref.ref[Storage], tuple[Any, ...]] | None = None
        self.ambiguous: list[weakref.ref[Storage]] = []
        self.aliases: list[Alias] = []
        # Those that stand for the same arrays, as items of a list or in variables.
        self.shares: list[Any] = []
        # Refuses to read it, as another that stands for the same arrays was changed.
        self.stale: Callable[[], Any] | None = None
        # Told when it is read, by a loop in which other names may stand for the same array.
        self.reader: Callable[[], Any] | None = None
        # Parts that were taken of it as items of a list, each with the scope that took it.
        self.viewers: list[tuple[Any, Scope]] | None = None
        self.defined: tuple[Value, Scope, str] | None = None
        # Refuses to read a variable of one branch where no further condition is asked.
        self.half: Callable[[], Any] | None = None
        self.loc = loc or here()

    def get(self) -> Value:
        """Return the contents as a value of the current scope."""
        if self.scope.is_graph and current_trace() is None:
            raise LeakError(
                "a tensor of a graph is used outside of `with graph:`", location=here(),
                remedy="write it inside, or use the array that `session.run` returns for the tensor",
            )  # fmt: skip
        if self.defined is not None:
            current_scope().check_defined(self)
        if self.stale is not None:
            self.stale()
        if self.reader is not None:
            self.reader()
        return self.contents()

    def contents(self) -> Value:
        """Return the contents without asking whether the variable that holds them has a value."""
        return current_scope().local(self.value, self.scope, self.loc)

    def set(self, value: Value) -> None:
        """Replace the contents."""
        if self.aliases or self.ambiguous:
            self._refuse_ambiguous()
        if self.shares:
            _refuse_shared(self, ())
        self._replace(value)
        if self.aliases:
            self._spread(value, None, [self], _Chains(), None)

    def leave(self, value: Value) -> None:
        """Replace the contents by what a block leaves, which has told its writes to arrays that may be the same memory itself."""
        self._replace(value)

    def _replace(self, value: Value) -> None:
        scope = current_scope()
        if self.scope is not scope:
            scope.local(self.value, self.scope, self.loc)
            scope.replaced.setdefault(self, (self.value, self.scope))
        self.put(value, scope)
        self.written = True

    def _spread(
        self, value: Value, same: Value | None, path: list[Storage], chains: _Chains, last: Alias | None
    ) -> None:  # fmt: skip
        """Write new contents also to arrays that are the same memory when a predicate holds, along chains of such arrays."""
        scope = current_scope()
        for edge in self.aliases:
            other = edge.other_than(self)
            if any(other is s for s in path) or not edge.follows(last, scope):
                continue
            chains.follow(len(path))
            if other.shares:
                _refuse_shared(other, path)
            link_holds = scope.local(edge.when, edge.scope)
            both = link_holds if same is None else scope.emit("logical_and", same, link_holds)
            other._replace(_contents_if(both, value, other.contents()))
            other._spread(value, both, [*path, other], chains, edge)

    def put(self, value: Value, scope: Scope) -> None:
        """Set the contents without any bookkeeping."""
        self.value, self.scope = value, scope
        self.version += 1

    def _refuse_ambiguous(self) -> None:
        if self._is_ambiguous():
            gc.collect()  # what no variable holds any more may be in a cycle
        for storage in self._ambiguous_with(_Chains(), (), None):
            text = "this write goes to an array that may or may not share memory with another one"
            if self.shown is not None or storage.shown is not None:
                raise AliasError(
                    f"{text}, depending on sizes or strides that are known only at run time",
                    location=here(),
                    remedy=f"copy what `reshape` returns: `y = x.reshape(...).copy()` (the other was made at {storage.loc})",
                )
            raise AliasError(
                f"{text}, depending on a branch",
                location=here(),
                remedy=f"copy the array in the branch: `y = x.copy()` (the branch's result was made at {storage.loc})",
            )

    def _is_ambiguous(self) -> bool:
        return any(True for _ in self._ambiguous_with(_Chains(), (), None))

    def _ambiguous_with(
        self, chains: _Chains, seen: tuple[Storage, ...], last: Alias | None
    ) -> Iterator[Storage]:
        """Yield the storages that may be the memory of this one, or of one that is the same memory when a predicate holds."""
        for edge in self.aliases:
            other = edge.other_than(self)
            if edge.follows(last, current_scope()) and not any(other is s for s in seen):
                chains.follow(len(seen))
                yield from other._ambiguous_with(chains, (*seen, self), edge)
        for ref in self.ambiguous:
            if (storage := ref()) is not None and not any(storage is s for s in seen):
                yield storage


def _contents_if(same: Value, new: Value, old: Value) -> Value:
    from dsl.frontend.regions import contents_if

    return contents_if(same, new, old)


def _refuse_shared(storage: Storage, path: Iterable[Storage]) -> None:
    from dsl.frontend.sharing import refuse_shared

    refuse_shared(storage, path)


class _Chains:
    """Counts the ways from one array to others that may be the same memory: with every swap in a loop there are more."""

    def __init__(self) -> None:
        self.count = 0

    def follow(self, length: int) -> None:
        """Go one step along a chain of so many arrays; refuse if there are too many."""
        self.count += 1
        if length > _LONGEST_CHAIN or self.count > _MOST_CHAINS:
            raise AliasError(
                "too many arrays may be the same memory as the one that is written here",
                location=here(),
                remedy="copy the array before the branches or loops that choose it",
            )


@dataclass(eq=False)
class Alias:
    """Two storages that are the same memory when a predicate holds.

    Links of one `exchange` are between arrays, and names that stand for one of them each: no two hold for one array or name.
    """

    one: Storage
    two: Storage
    when: Value
    scope: Scope
    exchange: object = None

    def other_than(self, storage: Storage) -> Storage:
        return self.two if self.one is storage else self.one

    def follows(self, last: Alias | None, scope: Scope) -> bool:
        """Tell whether a chain of links that hold may go on with this one, after another, as a scope sees it."""
        both = last is not None and self.exchange is not None and self.exchange is last.exchange
        return not both and self.scope.encloses(scope)


def link(one: Storage, other: Storage, when: Value, scope: Scope, exchange: object = None) -> None:
    """Record that two storages are the same memory when `when` is true; writes to either reach the other."""
    edge = Alias(one, other, when, scope, exchange)
    one.aliases.append(edge)
    other.aliases.append(edge)


def may_alias(one: Storage, other: Storage) -> None:
    """Record that two storages may stand for the same memory; writes to either are refused while both are reachable."""
    one.ambiguous.append(weakref.ref(other))
    other.ambiguous.append(weakref.ref(one))


def _is_natural(dim: DimLike) -> bool:
    bound = lower_bound(dim)
    return bound is not None and bound >= 0


class Scope(Builder):
    """The graph of a function or region being traced."""

    is_graph = (
        False  # whether its values outlive the trace, as tensors of a graph that a user builds
    )

    def __init__(self, name: str, parent: Scope | None = None) -> None:
        super().__init__(name)
        self.parent = parent
        self.captured: dict[Value, Value] = {}
        self._outer: dict[Value, Value] = {}
        self.replaced: weakref.WeakKeyDictionary[Storage, tuple[Value, Scope]] = (
            weakref.WeakKeyDictionary()
        )
        self.attributes: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.opened: dict[
            int, tuple[Any, Any, Any]
        ] = {}  # containers to change, and what was in them
        self.closed = False
        self.ranges: dict[Value, Any] = {}  # what is known of params that are integers
        self.naturals: dict[Dim, None] = {}  # what arrays have for sizes, and so is not negative
        self._checked: set[Any] = set()
        # Where the user's code reads or writes at places that the data tells, and ops that may raise.
        self.noted: list[Place | Node] = []

    def node(self, op: Op | str, inputs: Iterable[Value], attrs: Attrs, **options: Any) -> Node:
        made = super().node(op, inputs, _placed(op, attrs), **options)
        if made.op.has(Trait.CHECKED):
            _refuse_catching(made)
        if made.op.has(Trait.PURE) and not made.regions:
            self._note(made)
        self._note_sizes(made)
        return made

    def _note_sizes(self, node: Node) -> None:
        """Remember that sizes such as n - 4 are not negative, which the op makes sure of."""
        for type in node.types:
            for dim in type.shape if isinstance(type, TensorType) else ():
                if isinstance(dim, Dim) and not _is_natural(dim):
                    self.naturals[dim] = None

    def is_natural(self, dim: DimLike) -> bool:
        """Tell whether a size is surely not negative: by itself, or because it is at least that of an array."""
        if _is_natural(dim) or any(_is_natural(dim - known) for known in self.naturals):
            return True
        return self.parent is not None and self.parent.is_natural(dim)

    def _note(self, node: Node) -> None:
        """Remember an op that may raise, of its data or of sizes that do not fit, in case that nothing uses its result."""
        trace = current_trace()
        if trace is None or trace.muted or node.op.has(Trait.INDEXED):
            return
        if may_raise(node) or not fits(node):
            self.noted.append(node)

    def finish(self, results: Iterable[Value], back: Mapping[Node, Value] | None = None) -> Graph:
        """Return the graph; places that it does not need to look at are checked all the same, and ops that may raise run."""
        results = tuple(results)
        graph = super().finish(results, back)
        if not self.noted:
            return graph
        trace, noted = current_trace(), list(dict.fromkeys(self.noted))
        self.noted.clear()
        if trace is None or trace.is_graph or self._is_all(graph):
            return super().finish(results, back) if check_unused(self, noted, graph) else graph
        trace.checks.update((check(self, item), item) for item in noted)
        return super().finish(results, back)

    def _is_all(self, graph: Graph) -> bool:
        """Tell whether what a graph of this scope computes is used, whatever follows."""
        return self.parent is None and not any(node.regions for node in graph.nodes)

    def encloses(self, other: Scope | None) -> bool:
        while other is not None and other is not self:
            other = other.parent
        return other is self

    def local(self, value: Value, owner: Scope, loc: Location | None = None) -> Value:
        """Return a value of this or an enclosing scope as a value of this scope."""
        if owner is self:
            return value
        if self.parent is None or owner.closed:
            raise LeakError(
                f"a traced value of type {value.type} is used outside the trace, branch or loop that made it",
                location=here(),
                remedy=f"return it instead of storing it elsewhere; it was made at {loc or value.node.loc}",
            )
        outer = self.parent.local(value, owner, loc)
        if outer.node.op.name == "const" and outer.node.attrs["value"].array.size <= 64:
            return self.node(outer.node.op, (), outer.node.attrs, loc=outer.node.loc).output
        if outer not in self.captured:
            self.captured[outer] = self.param(outer.type, _name_of(outer))
            self._outer[self.captured[outer]] = outer
        return self.captured[outer]

    def _known_dim(self, value: Value, depth: int) -> DimLike | None:
        outer = self.captured_from(value)
        if outer is not None and self.parent is not None:
            return self.parent.known_dim(outer, depth)
        return super()._known_dim(value, depth)

    def captured_from(self, value: Value) -> Value | None:
        """Return the value of the enclosing scope that a param stands for, if it does."""
        return self._outer.get(value)

    def outer_size(self, symbol: Dim) -> Value:
        if self.parent is None:
            return super().outer_size(symbol)
        return self.local(self.parent.size(symbol), self.parent)

    def is_unchecked(self, key: Any) -> bool:
        """Tell whether neither this scope nor one around it has checked something, and remember that it has."""
        scope: Scope | None = self
        while scope is not None:
            if key in scope._checked:
                return False
            scope = scope.parent
        self._checked.add(key)
        return True

    def check_defined(self, storage: Storage) -> None:
        """Make the program raise if a variable is read that no path has set."""
        assert storage.defined is not None
        flag, owner, name = storage.defined
        if storage.half is not None and owner is self:
            storage.half()
        if not self.is_unchecked((storage, storage.version)):
            return
        message = f"cannot access local variable '{name}' where it is not associated with a value"
        pred = self.local(flag, owner)
        self.node("assert", (pred,), {"message": message, "error": "UnboundLocalError"})

    def suspend(self) -> dict[Storage, Value]:
        """Put replaced contents back and return the new ones."""
        found = {}
        for storage, (value, owner) in list(self.replaced.items()):
            found[storage] = storage.value
            storage.put(value, owner)
        return found


def _placed(op: Op | str, attrs: Attrs) -> Attrs:
    """Add where the `with` blocks around say that a node runs. Constants are wherever they are read."""
    trace = current_trace()
    if trace is None or not (trace.devices or trace.groups) or op == "const":
        return attrs
    placed = dict(attrs)
    if trace.devices:
        placed.setdefault("device", trace.devices[-1])
    if trace.groups:
        placed.setdefault("colocate", trace.groups[-1])
    return placed


def _name_of(value: Value) -> str:
    return str(value.node.attrs.get("name", "")) if value.node.op.name == "param" else ""


_RAISES = {"gather": "IndexError", "scatter": "IndexError", "dynamic_slice": "IndexError"}
_CATCHES = {
    "IndexError": {"IndexError", "LookupError"}, "LinAlgError": {"LinAlgError", "ValueError"},
    "ValueError": {"ValueError"}, "ZeroDivisionError": {"ZeroDivisionError", "ArithmeticError"},
}  # fmt: skip


def _refuse_catching(node: Node) -> None:
    """Refuse an op that may raise when the program runs inside a `try` that would catch it while tracing only."""
    trace = current_trace()
    if trace is None or not trace.trying:
        return
    error = str(node.attrs.get("error") or _RAISES.get(node.op.name, "LinAlgError"))
    names = _CATCHES.get(error, {error}) | {"Exception", "BaseException"}
    if any(names & set(caught) for caught in trace.trying):
        raise ConversionError(
            f"`{node.op.name}` may raise {error} when the compiled function runs, which this `try` cannot catch",
            location=node.loc,
            remedy="move the `try` outside the decorated function, or test the condition first",
        )


def is_here(item: Any) -> bool:
    """Tell whether the innermost region of those that know an iterator, which has a `dsl_scope`, is the current one."""
    trace = current_trace()
    if trace is None:
        return True
    while item.dsl_scope is not None and not item.dsl_scope.encloses(trace.scopes[-1]):
        item.dsl_scope = item.dsl_scope.parent
    return item.dsl_scope in (None, trace.scopes[-1])


def move(item: Any, name: str, place: Any) -> None:
    """Change how far an iterator is; regions that know it from outside remember where it was."""
    if not is_here(item):
        held = (item, name, getattr(item, name))
        current_scope().attributes.setdefault((id(item), name), held)
    setattr(item, name, place)


class Trace:
    """One run of a user's function on traced arguments. `devices` and `groups` are those of `with` blocks, outermost first."""

    is_graph = False  # whether it is a graph that the user builds and goes on building

    def __init__(self, name: str, root: Scope | None = None) -> None:
        self.root = root or Scope(name)
        self.variables: dict[int, Any] = {}
        self.contents: dict[int, dict[Value, None]] = {}  # what variables have held, by their ids
        self.resources: dict[str, Any] = {}  # queues and other things that nodes refer to by name
        self.places: dict[str, str] = {}  # where those are that have a device
        self._names: dict[int, str] = {}
        self.devices: list[str] = []
        self.groups: list[str] = []
        self.scopes = [self.root]
        self.captures: dict[tuple[int, Any], Capture] = {}
        self.loose: Container[
            Any
        ] = ()  # the places of numbers outside that change from call to call
        self.by_array: dict[int, Any] = {}
        self.lying: dict[
            int, tuple[Any, Any, np.ndarray]
        ] = {}  # arrays in containers outside, and where
        self.guards: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}
        self.hints: dict[Any, Any] = {}
        self.concrete: dict[Value, Any] = {}
        self.numbers: set[Value] = (
            set()
        )  # arguments that are Python's, for which a function can be compiled
        self.keep: list[Any] = []
        self.trying: list[tuple[str, ...]] = []
        self.outside: dict[int, Any] = {}
        # Containers of functions that were there before, and what they held when they were first seen; the codes of these functions.
        self.earlier: set[Any] = set()
        self.originals: dict[int, tuple[Any, Any]] = {}
        self.touched: dict[int, Location | None] = {}  # where these were changed last
        self.shared: list[tuple[Any, Any, int]] = []
        self.roles = Roles()  # of objects from outside
        self.stand_ins = StandIns()  # for containers from outside
        self.records: dict[
            int, Any
        ] = {}  # optimisers and their states from outside, with inputs for fields
        self.structures: list[tuple[Any, list[Any]]] = []
        self.made: dict[
            int, tuple[Any, Scope]
        ] = {}  # instances of user's classes, and the scopes that made them
        self.trees: dict[int, Any] = {}  # those of them that are trees everywhere
        self.borrowed: dict[int, tuple[Any, str]] = {}  # cells of variables that `nonlocal` names
        self.finishing = False
        self.undefined: dict[
            tuple[int, str], tuple[Any, Any]
        ] = {}  # attributes that branches disagreed about
        self.inherited: dict[
            tuple[int, str], Any
        ] = {}  # objects that had assigned attributes from their classes
        self.has_assigned_class = False
        self.deques: dict[int, Any] = {}  # lists that stand for a `deque`
        # Containers that the data chose, those it chose from with what it made of them, and those of which such a one was changed.
        self.chosen: dict[int, Any] = {}
        self.chosen_from: dict[int, tuple[Any, list[Any]]] = {}
        self.stale: dict[int, Any] = {}
        self.held: dict[int, tuple[Any, Any]] = {}  # containers that traced lists have copies of
        # Containers that were taken out of traced lists, with these, and the structures of items that a list has twice.
        self.popped: dict[int, tuple[Any, Any]] = {}
        self.doubled: list[Any] = []
        self.outdated: list[Storage] = []  # those that must not be read any more
        self.noting = True  # whether the code that runs is the user's
        # Whether Python goes over many items, too, of which it makes a list, and loops that fill lists are unrolled however long their
        # bodies are; and the most items of which a loop has made a list in Python's place.
        self.unrolls, self.looped = False, 0
        self.muted = False  # whether ops that may raise need not be kept
        # Of places, in case that nothing else looks at them, and of ops that may raise.
        self.checks: dict[Node, Place | Node | None] = {}
        self.trial = False  # for sizes that are symbols; if it fails, those of the call are taken
        self.cautious = False  # whether to take no sizes for equal: what a call did that proves it wrong stays done
        self.equated: set[tuple[Dim, DimLike]] = set()  # sizes that were taken for others
        self._calls: dict[
            Any, list[int]
        ] = {}  # numbers of scopes around calls of a function, of a trial

    def is_known(self, item: Any) -> bool:
        """Tell whether tracing has met an object outside, or has made it."""
        number = id(item)
        known = number in self.outside or number in self.made or number in self.roles.made
        return known or self.roles.of(item) is not None

    def adopt(self, resource: Any) -> str:
        """Return the name under which nodes refer to a variable or queue."""
        if id(resource) not in self._names:
            name, number = resource.name, 1
            while name in self.resources:
                name, number = f"{resource.name}_{number}", number + 1
            self._names[id(resource)] = name
            self.resources[name] = resource
        return self._names[id(resource)]

    def house(self, resource: Any) -> None:
        """Note that a variable or queue is made here, and where: on the device that is asked for."""
        name = self.adopt(resource)
        if self.devices:
            self.places[name] = self.devices[-1]

    def read_variable(self, variable: Any) -> Any:
        """Return the handle of a variable's contents, in a graph that a user builds."""
        raise InternalError("only graphs have nodes that read variables")

    def write_variable(self, variable: Any, how: str, value: Any) -> Any:
        """Make the node that writes a variable."""
        raise InternalError("only graphs have nodes that write variables")

    def scatter_variable(self, variable: Any, how: str, indices: Any, updates: Any) -> Any:
        """Make the node that writes rows of a variable."""
        raise InternalError("only graphs have nodes that write variables")

    def whole(self, call: Callable[[], Any]) -> Any:
        """Make what a compiled function does part of this trace; its effects come with its results."""
        return call()

    def as_it_is(self, array: np.ndarray) -> Any:
        """Return the handle of an array from outside that calls do not look for, or None if it is an input."""
        return None

    def embedded(self, array: np.ndarray) -> Any:
        """Return the handle of an array that code uses as a constant, or None to put its numbers into the graph."""
        place = self.lying.get(id(array))
        return None if place is None else FROM_OUTSIDE[0](*place)

    @contextmanager
    def calling(self, fn: Any) -> Iterator[None]:
        """Raise RecursionError, in a trial, for a function inside itself that each time stands in one more undecided block.

        With the sizes of the call the recursion may end, so this needs no patience. Python's limit is some sixty levels away,
        through which sizes that are made from sizes become long: a multigrid cycle took 12 s to get there.
        """
        depths = self._calls.setdefault(fn.__code__, [])
        if not depths or len(self.scopes) > depths[-1]:
            depths.append(len(self.scopes))
            try:
                if len(depths) > _DEEPEST:
                    raise RecursionError
                yield
            finally:
                depths.pop()
        else:
            yield

    @contextmanager
    def resumed(self, scope: Scope, contents: dict[Storage, Value]) -> Iterator[Scope]:
        """Go on in a suspended scope, with its contents of storages from outside."""
        for storage, value in contents.items():
            storage.put(value, scope)
        self.scopes.append(scope)
        try:
            yield scope
        finally:
            self.scopes.pop()
            scope.suspend()

    @contextmanager
    def region(self, name: str) -> Iterator[Scope]:
        """Trace into a new scope inside the current one."""
        scope = Scope(name, self.scopes[-1])
        self.scopes.append(scope)
        depth = len(self.scopes)
        try:
            with undone_on_error(scope):
                yield scope
        finally:
            del self.scopes[depth - 1 :]


@contextmanager
def undone_on_error(scope: Scope) -> Iterator[None]:
    """Put attributes that code assigned in a scope back when it raises."""
    from dsl.frontend.state import put_back

    try:
        yield
    except BaseException:
        for attribute in scope.attributes.values():
            put_back(scope, *attribute)
        raise


_calls_on: ContextVar[str | None] = ContextVar("calls_on", default=None)


@contextmanager
def calls_on(device: str | None) -> Iterator[None]:
    """Let functions that are called in the block, and say nothing themselves, run on a device."""
    token = _calls_on.set(device)
    for listener in LISTENERS:
        listener(1)
    try:
        yield
    finally:
        _calls_on.reset(token)
        for listener in LISTENERS:
            listener(-1)


def device_of_calls() -> str | None:
    """Return the device of the innermost `calls_on`."""
    return _calls_on.get()


FROM_OUTSIDE: list[Callable[[Any, Any, Any], Any]] = []
"""Takes what lies outside of the function; see `captures.from_outside`."""

LISTENERS: list[Callable[[int], None]] = []
"""Told 1 when a trace, or a block of `calls_on`, begins and -1 when it ends."""


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the current one, and close it at the end."""
    begin(trace)
    try:
        yield trace
    finally:
        end()
        trace.root.closed = True


def begin(trace: Trace) -> None:
    """Make `trace` the current one of this thread until `end`."""
    _stack.traces.append(trace)
    for listener in LISTENERS:
        listener(1)


def end() -> None:
    """Go back to the trace before the current one."""
    for listener in LISTENERS:
        listener(-1)
    _stack.traces.pop()


def current_trace() -> Trace | None:
    """Return the trace under way, or None."""
    return _stack.traces[-1] if _stack.traces else None


def is_building() -> bool:
    """Tell whether a user is building a graph."""
    trace = current_trace()
    return trace is not None and trace.is_graph


def current_scope() -> Scope:
    """Return the innermost scope, its location set to the user's line."""
    if not _stack.traces:
        raise LeakError(
            "a traced value is used after its function was traced",
            location=here(),
            remedy="return the value from the function instead of storing it in a global, a list or an attribute",
        )
    trace = _stack.traces[-1]
    scope = trace.scopes[-1]
    if not trace.finishing:  # the function has returned: its last line stays
        scope.loc = here()
    return scope
