"""Run a user's function on traced arguments and record what it does: a graph, and how results and effects reach the caller."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.errors import AliasError, DslError, InternalError, NonConcreteError, UnsupportedError
from dsl.frontend import runtime  # noqa: F401 - it fills the tables of what traced code calls
from dsl.frontend.bounds import settle
from dsl.frontend.branches import Either
from dsl.frontend.calls import call
from dsl.frontend.captures import put_originals_back, refuse_leaks
from dsl.frontend.convert import refuse_generator
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.iterators import Cursor
from dsl.frontend.leaves import BranchRaise
from dsl.frontend.order import argument_strides, memory_order
from dsl.frontend.scopes import (
    Capture,
    Item,
    Storage,
    Trace,
    current_scope,
    tracing,
    undone_on_error,
)
from dsl.frontend.signature import (
    Arguments,
    Leaf,
    Same,
    describe,
    is_number,
    signature_of,
)
from dsl.frontend.sizes import Pattern
from dsl.frontend.state import Undefined, is_numeric, put_back, refill, setter_of
from dsl.frontend.strides import unknown
from dsl.frontend.text import TracedText
from dsl.frontend.traced import Kind, Traced, Whole, lift, read
from dsl.frontend.trees import Structure, flatten, forwarded, unflatten
from dsl.frontend.views import (
    DynamicSliced,
    Picked,
    Reshaped,
    Stepped,
    Transposed,
    View,
    placed,
    positions_in,
    resolve,
    run_size,
    symbols_in,
)
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.graph import Graph, Value
from dsl.ir.location import Location, definition_of
from dsl.ir.registry import Trait
from dsl.ir.remote import Remote
from dsl.ir.sameness import identity
from dsl.ir.types import Shape, TensorType, bind_shape

__all__ = ["Traced", "TracedFunction", "trace_call"]


@dataclass(frozen=True)
class Source:
    """Where a leaf of the results comes from: an output or an input of the graph, seen through views, or a static object."""

    kind: str  # "output", "input" or "static"
    index: int = -1
    views: tuple[View, ...] = ()
    as_kind: Kind = Kind.ARRAY
    value: Any = None
    numbers: tuple[
        tuple[Any, int], ...
    ] = ()  # what the views need of the run, and the outputs that tell it
    copy: int = -1  # the output that has the same elements, where views need something of the run


@dataclass
class TracedFunction:
    """A function traced for one description of its arguments."""

    graph: Graph
    inputs: list[int]  # argument leaf of each param that is not captured
    captures: list[Capture]
    guards: list[tuple[Any, Any, Any, Any]]  # holder, key, value, contents of a container
    result: tuple[Structure, list[Source]]
    written: list[
        tuple[int, int, Location | None]
    ]  # (input, output, where): copied back into the caller's array after a successful run
    containers: list[tuple[int, Structure, list[Source]]]  # argument containers to refill
    attributes: list[
        tuple[Any, str, bool, Structure, list[Source]]
    ]  # those assigned, and those whose list or dict is changed in place
    shared: list[tuple[Any, Any, int]] = field(
        default_factory=list
    )  # captured arrays that are arguments too
    variables: list[tuple[Any, bool]] = field(
        default_factory=list
    )  # that the function touches, and whether it writes them
    resources: dict[str, Any] = field(default_factory=dict)  # queues, by the names that nodes use
    claim: Any = None  # a context manager, in which the function has its variables to itself
    equated: bool = (
        False  # whether sizes were taken for equal that may differ; the graph raises then
    )

    @property
    def sources(self) -> list[Source]:
        """Where the leaves come from that the caller gets: those of the result, then of containers, then of attributes."""
        more = (*(s for *_, s in self.containers), *(s for *_, s in self.attributes))
        return [*self.result[1], *(source for sources in more for source in sources)]

    def guard_failure(self, arguments: Arguments) -> str | None:
        """Say what outside the function has changed since it was traced, or None."""
        given = {id(arguments.leaves[k]): k for k in self.inputs}
        for holder, key, leaf in self.shared:
            if look_up(holder, key) is not arguments.leaves[leaf]:
                return f"`{key}` is no longer the array that is passed as an argument"
        for holder, key, expected, contents in self.guards:
            found = look_up(holder, key)
            if found is not expected and not _same(found, expected):
                return f"`{key}` changed from {expected!r} to {found!r}"
            if contents is not None and contents_of(found) != contents:
                return f"the contents of `{key}` changed"
        for item in self.captures:
            found = look_up(item.holder, item.key)
            if item.number is not None:
                if not is_number(found) or describe(found) != item.number:
                    return f"`{item.key}` is now {_kind_of(found)}"
                continue
            type = item.storage.scope.params[item.storage.origin or 0].tensor
            if (
                not isinstance(found, np.ndarray)
                or found.dtype != type.dtype
                or found.shape != type.shape
            ):
                return f"the captured array `{item.key}` is now {_kind_of(found)}"
            if id(found) in given:
                return f"the captured array `{item.key}` is also an argument"
        return None

    def changed_numbers(self) -> dict[tuple[int, Any], Any]:
        """Return where variables and attributes outside are whose numbers have changed since the trace, and what holds them."""
        changed = {}
        for holder, key, expected, _ in self.guards:
            if is_number(expected) and not _is_watched(holder):
                found = look_up(holder, key)
                if type(found) is type(expected) and not _same(found, expected):
                    changed[id(holder), key] = holder
        return changed

    # -- running -----------------------------------------------------------------------------------------------------

    def arrays(self, arguments: Arguments) -> list[Any]:
        """Return what the graph reads in a call: arguments, and arrays and numbers from outside as they are now."""
        given = [arguments.leaves[k] for k in self.inputs]
        return given + [look_up(c.holder, c.key) for c in self.captures]

    def run(self, execute: Callable[[list[Any]], list[Any]], arguments: Arguments) -> Any:
        """Run the graph on a call's arguments and deliver its results and side effects."""
        if self.claim is None:
            return self._run(execute, arguments)
        with self.claim:
            return self._run(execute, arguments)

    def _run(self, execute: Callable[[list[Any]], list[Any]], arguments: Arguments) -> Any:
        arrays = self.arrays(arguments)
        self._check_written(arrays)
        if not getattr(execute, "over_ranks", False):
            _check_here(arrays)
        outputs = execute(arrays)
        if not getattr(execute, "in_place", False):
            outputs = _apart(outputs, arrays)
            for source, target, _ in self.written:
                if not isinstance(outputs[target], Remote):
                    arrays[source][...] = outputs[target]
        deliver = _Delivery(arrays, outputs, self.graph)
        for k, structure, sources in self.containers:
            refill(
                arguments.bound[list(arguments.bound)[k]], structure, [deliver(s) for s in sources]
            )
        for obj, name, in_place, structure, sources in self.attributes:
            leaves = [deliver(s) for s in sources]
            if in_place:
                refill(getattr(obj, name), structure, leaves)
            else:
                setter_of(obj)(obj, name, unflatten(structure, leaves))
        structure, sources = self.result
        return unflatten(structure, [deliver(s) for s in sources])

    def _check_written(self, arrays: list[Any]) -> None:
        for source, _, location in self.written:
            target = arrays[source]
            if not isinstance(target, np.ndarray):
                continue  # on a device
            if not target.flags.writeable:
                error = ValueError("assignment destination is read-only")
                if location is not None:
                    error.add_note(location.excerpt())
                raise error
            if not _has_elements_apart(target):
                raise AliasError(
                    f"an argument is written whose elements may share memory: shape {target.shape}, strides {target.strides}",
                    location=location,
                    remedy="pass a copy of it, or write the array that it is a view of",
                )
            for k, other in enumerate(arrays):
                if (
                    k != source
                    and isinstance(other, np.ndarray)
                    and other is not target
                    and np.may_share_memory(target, other)
                    and np.shares_memory(target, other)
                ):
                    raise AliasError(
                        "two arguments overlap in memory and one of them is written",
                        location=location,
                        remedy="pass a copy of one of them, or write the result into an array of its own",
                    )


def _has_elements_apart(array: np.ndarray) -> bool:
    """Tell whether each step along an axis goes past all that the shorter steps reach, as in every slice of an array.

    Entries ask the same before they take an array to write.
    """
    reach = array.itemsize
    steps = sorted((abs(s), d) for s, d in zip(array.strides, array.shape, strict=True) if d != 1)
    for step, dim in steps if array.size else ():
        if step < reach:
            return False
        reach += (dim - 1) * step
    return True


def _check_here(arrays: list[Any]) -> None:
    for array in arrays:
        if isinstance(array, Remote):
            array.refuse()


def _apart(outputs: list[Any], inputs: list[Any]) -> list[Any]:
    """Copy outputs that are memory of an input, of a constant or of another output: each is an array of its own."""
    seen = {id(_owner(array)) for array in inputs}
    for k, array in enumerate(outputs):
        if isinstance(array, Remote):
            continue
        if id(_owner(array)) in seen or not array.flags.writeable:
            outputs[k] = array.copy()
        seen.add(id(_owner(outputs[k])))
    return outputs


def _owner(array: Any) -> Any:
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return array


_KINDS = {Kind.SCALAR: "scalar", Kind.PYTHON: "python"}


class _Delivery:
    """Turns sources into the objects that the caller gets; one output gives one array, however often it is asked for."""

    def __init__(self, inputs: list[Any], outputs: list[Any], graph: Graph) -> None:
        self.inputs, self.outputs, self.graph = inputs, outputs, graph

    @functools.cached_property
    def sizes(self) -> dict[Dim, int]:
        """The sizes of the symbols in the shapes of the inputs."""
        found: dict[Dim, int] = {}
        for param, array in zip(self.graph.params, self.inputs, strict=True):
            bind_shape(param.tensor.shape, np.shape(array), found)
        return found

    def __call__(self, source: Source) -> Any:
        if source.kind == "static":
            return source.value
        if source.kind == "either":
            chosen, sides = source.value
            side = self(chosen)
            if isinstance(side, Remote):
                return side
            structure, sources = sides[side]
            return unflatten(structure, [self(s) for s in sources])
        array = (self.inputs if source.kind == "input" else self.outputs)[source.index]
        if source.numbers and not isinstance(array, np.ndarray):
            return self(Source("output", source.copy))
        if isinstance(array, Remote):
            return self.elsewhere(array, source)
        told = {key: int(self.outputs[k]) for key, k in source.numbers}
        for view in source.views:
            array = self.seen(array, placed(view, told) if told else view)
        if source.as_kind is Kind.PYTHON:
            return array.item()
        return array[()] if source.as_kind is Kind.SCALAR else array

    def elsewhere(self, remote: Remote, source: Source) -> Remote:
        """Return what stands for a result that is on another rank, as the caller there gets it."""
        kind = _KINDS.get(source.as_kind, "array")
        if not isinstance(remote.type, TensorType) or not remote.type.is_static():
            return remote.seen_as(None, kind)
        standin: Any = remote.like()
        for view in source.views:
            view = resolve(view, self.sizes) if symbols_in(view) else view
            found: Any = view.of(standin)
            if found is None and isinstance(view, Reshaped):
                found = Remote(remote.device, TensorType(remote.dtype, view.shape)).like()
            standin = found
        return remote.seen_as(standin, kind)

    def seen(self, array: Any, view: View) -> Any:
        """Return the view of an array; a reshape that NumPy makes a copy of is one."""
        if hasattr(array, "dsl_device"):
            return array.like(self.seen(array.get(), view))
        if symbols_in(view):
            view = resolve(view, self.sizes)
        found = view.of(array)
        if found is None and isinstance(view, Reshaped):
            return array.flatten().reshape(view.shape)
        return found


def look_up(holder: Any, key: Any) -> Any:
    """Read a captured object again."""
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:
            return None
    kinds = (list, tuple, str, bytes, range, collections.deque)
    in_order = isinstance(holder, kinds) and not isinstance(key, str)
    if in_order or isinstance(key, Item) or isinstance(holder, dict):
        try:
            return holder[key.key if isinstance(key, Item) else key]
        except (KeyError, IndexError):
            return None
    return getattr(holder, key, None)


def contents_of(found: Any, depth: int = 4) -> Any:
    """Describe what is in a container from outside, as far as a trace may depend on it; None for other objects."""
    if isinstance(found, (list, dict, collections.deque)) and depth:
        items = found.items() if isinstance(found, dict) else enumerate(found)
        return type(found), [(key, _item(item, depth - 1)) for key, item in items]
    if isinstance(found, set):
        return type(found), frozenset((type(item), item) for item in found)
    return (bytearray, bytes(found)) if isinstance(found, bytearray) else None


def _item(item: Any, depth: int) -> Any:
    if isinstance(item, np.ndarray):
        return item.dtype, item.shape  # arrays are inputs
    return contents_of(item, depth) or Same(item)


def _is_watched(holder: Any) -> bool:
    """Tell whether an object is a container that is compared as a whole, other than a module's variables."""
    return isinstance(holder, (list, tuple, collections.deque)) or (
        isinstance(holder, dict) and "__builtins__" not in holder
    )


def _same(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected) or not isinstance(
        found, (int, float, complex, str, bytes, tuple, np.generic)
    ):
        return False
    return identity(found) == identity(expected)


def _kind_of(found: Any) -> str:
    return (
        f"{found.dtype}{list(found.shape)}"
        if isinstance(found, np.ndarray)
        else f"a {type(found).__name__}"
    )


def trace_call(
    fn: Callable[..., Any], arguments: Arguments, name: str, pattern: Pattern | None = None, *,
    cautious: bool = False, loose: Container[tuple[int, Any]] = (),
) -> TracedFunction:  # fmt: skip
    """Trace `fn` on arguments of the described kinds: of their sizes and strides or, with a pattern, of all that it takes.

    Lists of many items are made by loops of the program. If the function needs Python's own lists, it is traced again with those.
    One that is `cautious` takes no sizes for equal that may differ. Numbers outside at the places of `loose` are inputs.
    """
    refuse_generator(fn)
    trace = Trace(name)
    trace.cautious, trace.loose = cautious, loose
    try:
        return _trace_once(trace, fn, arguments, name, pattern)
    except Exception as error:
        if not 0 < trace.looped <= _MOST_UNROLLED:
            raise
        looped = error
    again = Trace(name)
    again.unrolls, again.cautious, again.loose = True, cautious, loose
    try:
        return _trace_once(again, fn, arguments, name, pattern)
    except DslError:
        raise looped from None


# Items of which Python makes a list after all: thousands take seconds to trace, and minutes to compile.
_MOST_UNROLLED = 2048


def _trace_once(
    trace: Trace, fn: Callable[..., Any], arguments: Arguments, name: str, pattern: Pattern | None
) -> TracedFunction:
    trace.trial = pattern is not None
    with tracing(trace):
        handles, inputs = _make_inputs(trace, arguments, pattern)
        tree = unflatten(arguments.structure, handles)
        bound = {**arguments.bound, **tree}
        before = {key: flatten(value) for key, value in tree.items()}
        args, kwargs = _spread(fn, bound)
        trace.earlier.add(getattr(fn, "__code__", None))
        trace.outside.setdefault(id(fn), fn)
        try:
            with undone_on_error(trace.root):
                result = call(fn, *args, **kwargs)
        except BranchRaise as signal:
            if not signal.emitted:
                put_originals_back(trace)
                raise signal.error from None
            result = None
        except RecursionError:
            raise NonConcreteError(
                f"`{trace.root.name}` calls itself without end while it is traced: whether it stops depends on traced values",
                location=definition_of(fn),
                remedy="make the argument that ends the recursion static (`static_argnames`), or write a loop",
            ) from None
        except BaseException:
            put_originals_back(trace)
            raise
        definition = definition_of(fn)
        try:
            return _finish(trace, arguments, inputs, result, tree, before, definition)
        except DslError as error:
            error.location = error.location or definition
            raise


def _make_inputs(
    trace: Trace, arguments: Arguments, pattern: Pattern | None
) -> tuple[list[Any], list[int]]:
    handles: list[Any] = []
    inputs: list[int] = []
    aliases = arguments.key[3]
    pattern = pattern or Pattern.fixed(arguments.sizes)
    shapes = arguments.shapes(pattern.dims)
    for k, (leaf, described, path) in enumerate(
        zip(arguments.leaves, arguments.described, arguments.paths, strict=True)
    ):
        if described.kind == "static":
            trace.outside[id(leaf)] = leaf
            handles.append(leaf)
        elif aliases and aliases[k] != k:
            handles.append(handles[aliases[k]])
        else:
            handles.append(
                _make_input(trace, leaf, described, path, shapes[k], known=pattern.strides)
            )
            inputs.append(k)
    for name, value in arguments.bound.items():
        if value is not None and not is_numeric(value):
            trace.outside.setdefault(id(value), value)
            _ = name
    return handles, inputs


def _make_input(
    trace: Trace, leaf: Any, described: Leaf, path: str, shape: Shape, *, known: bool
) -> Traced:
    value = trace.root.param(TensorType(described.dtype, shape), path)
    storage = Storage(value, trace.root, origin=len(trace.root.params) - 1)
    storage.strides = described.strides if known or described.strides is None else unknown(shape)
    kind = {"array": Kind.ARRAY, "scalar": Kind.SCALAR, "python": Kind.PYTHON}[described.kind]
    traced = Traced(storage, (), kind)
    if described.kind == "python":
        trace.numbers.add(value)
    if described.kind == "array":
        trace.by_array[id(leaf)] = traced
        trace.keep.append(leaf)
    return traced


def _spread(fn: Callable[..., Any], bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Turn bound arguments into positional and keyword ones again."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in signature_of(fn).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.extend(bound[name])
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(bound[name])
        elif parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = bound[name]
        else:
            args.append(bound[name])
    return args, kwargs


class _Outputs:
    """Collects the outputs of a graph while results are described."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.values: list[Value] = []
        self.places: dict[Any, int] = {}

    def add(self, value: Value, owner: Any = None) -> int:
        key = (owner, value) if owner is not None else value
        if key not in self.places:
            self.places[key] = len(self.values)
            self.values.append(value)
        return self.places[key]

    def source(self, leaf: Any) -> Source:
        """Describe one leaf of a result."""
        if isinstance(leaf, Either):
            return self.either(leaf)
        if isinstance(leaf, Undefined):
            leaf.fail()
        if isinstance(leaf, TracedText):
            raise UnsupportedError(
                "a string with traced values in it cannot be returned",
                remedy="return the values and format them in the caller",
            )
        if not isinstance(leaf, Traced):
            array = leaf if isinstance(leaf, np.ndarray) else None
            if array is not None and id(array) in self.trace.by_array:
                return self.source(self.trace.by_array[id(array)])
            if array is not None:
                return self.source(lift(array))
            return Source("static", value=leaf)
        current_scope().local(leaf.storage.value, leaf.storage.scope, leaf.storage.loc)
        if leaf.kind is not Kind.ARRAY:
            return Source("output", self.add(read(leaf)), as_kind=leaf.kind)
        storage, views = _memory(leaf)
        if not all(map(self.is_seen, views)):
            copy = self.add(read(leaf), object())
            if storage.origin is None:
                return Source("output", copy)
            return Source("input", storage.origin, views, numbers=self.numbers(views), copy=copy)
        if storage.origin is not None:
            same = (Transposed(tuple(range(leaf.ndim))),) if isinstance(leaf, Whole) else ()
            return Source("input", storage.origin, views or same)
        value, turned = self.laid_out(storage)
        return Source("output", self.add(value, id(storage)), (*turned, *views))

    def laid_out(self, storage: Storage) -> tuple[Value, tuple[View, ...]]:
        """Return an array in the order of its axes that NumPy would have in memory, and the view that shows it as it is."""
        value = storage.get()
        axes = tuple(range(len(value.shape)))
        elementwise = storage.follows and value.node.op.has(Trait.ELEMENTWISE)
        order = memory_order(value, argument_strides(self.trace)) if elementwise else axes
        if order == axes:
            return value, ()
        back = Transposed(tuple(map(order.index, axes)))
        return current_scope().emit("transpose", value, axes=order), (back,)

    def is_seen(self, view: View) -> bool:
        """Tell whether the view of an array can be made when the results are delivered."""
        if isinstance(view, Picked):
            return all(value.node.op.name == "const" for value, _ in view.indices)
        if isinstance(view, (DynamicSliced, Stepped)):
            return False
        return self.symbols >= set(symbols_in(view))

    def numbers(self, views: tuple[View, ...]) -> tuple[tuple[Any, int], ...]:
        """Return what views need of the run, positions and sizes, and the outputs that tell it."""
        b = current_scope()
        values = {key: b.local(key, owner) for view in views for key, owner in positions_in(view)}
        dims = [*(d for view in views for d in symbols_in(view)), *map(run_size, views)]
        sizes = {dim: b.size(dim) for dim in symbols_of(*dims)}
        return tuple((key, self.add(value)) for key, value in (*values.items(), *sizes.items()))

    @functools.cached_property
    def symbols(self) -> set[Dim]:
        """The symbols in the shapes of the arguments."""
        return {s for p in self.trace.root.params for s in p.tensor.shape if isinstance(s, Dim)}

    def either(self, leaf: Either) -> Source:
        """Describe a result of which the run decides the structure."""
        sides = {
            k: (self.trace.structures[k][0], [self.source(x) for x in leaves])
            for k, leaves in leaf.alternatives.items()
        }
        return Source("either", value=(self.source(leaf.chosen), sides))


def _memory(traced: Traced) -> tuple[Storage, tuple[View, ...]]:
    """Return the storage that a result shows, and through which views; a copy that may be a view shows the original."""
    storage, views = traced.storage, traced.views
    while (shown := storage.shown) is not None and (base := shown[0]()) is not None:
        storage, views = base, (*shown[1], *views)
    return storage, views


def _finish(
    trace: Trace,
    arguments: Arguments,
    inputs: list[int],
    result: Any,
    tree: dict[str, Any],
    before: dict[str, Any],
    definition: Location | None,
) -> TracedFunction:
    _refuse_stand_ins(trace, result)
    outputs = _Outputs(trace)
    trace.finishing = True
    trace.root.loc = trace.root.loc or definition
    leaves, structure = flatten(result)
    sources = [outputs.source(leaf) for leaf in leaves]
    containers = _changed_containers(arguments, tree, before, outputs)
    attributes = _changed_attributes(trace, outputs)
    refuse_leaks(trace)
    written = []
    for index, storage in _input_storages(trace):
        if storage.value is not trace.root.params[index]:
            where = storage.value.node.loc
            written.append((index, outputs.add(storage.get(), ("written", index)), where))
    graph = settle(trace.root.finish(outputs.values), trace.checks)
    if len(trace.scopes) != 1:
        raise InternalError("a region was left open while tracing", location=None)
    captures = sorted(trace.captures.values(), key=lambda c: c.storage.origin or 0)
    guards = [(*guard, contents_of(guard[2])) for guard in trace.guards.values()]
    made = TracedFunction(
        graph,
        inputs,
        captures,
        guards,
        (structure, sources),
        written,
        containers,
        attributes,
    )
    made.resources, made.equated = trace.resources, bool(trace.equated)
    origins = {index for index, _, _ in written}
    places = {id(c.holder): c.storage.origin for c in captures}
    made.variables = [
        (item, places.get(number) in origins) for number, item in trace.variables.items()
    ]
    made.shared = [
        (holder, key, inputs[param]) for holder, key, param in trace.shared if param < len(inputs)
    ]
    return made


def _refuse_stand_ins(trace: Trace, result: Any) -> None:
    """In traced code a list stands for a `deque`, and an object of ours for an iterator, which the caller would get."""
    if id(result) in trace.deques or isinstance(result, BoundedDeque):
        raise UnsupportedError("a deque cannot be returned", remedy="return `list(...)` of it")
    if isinstance(result, Cursor):
        raise UnsupportedError("an iterator cannot be returned", remedy="return `list(...)` of it")
    if isinstance(result, (tuple, list, dict)):
        for item in result.values() if isinstance(result, dict) else result:
            _refuse_stand_ins(trace, item)


def _input_storages(trace: Trace) -> list[tuple[int, Storage]]:
    found = {
        t.storage.origin: t.storage for t in trace.by_array.values() if t.storage.origin is not None
    }
    return sorted(found.items())


def _changed_containers(
    arguments: Arguments, tree: dict[str, Any], before: dict[str, Any], outputs: _Outputs
) -> list[Any]:
    changed = []
    for name, value in tree.items():
        leaves, structure = flatten(value)
        old_leaves, old_structure = before[name]
        if structure.type is None or structure.type is type(None):
            continue
        if structure != old_structure or any(
            a is not b for a, b in zip(leaves, old_leaves, strict=True)
        ):
            sources = [outputs.source(leaf) for leaf in leaves]
            changed.append((list(arguments.bound).index(name), structure, sources))
    return changed


def _changed_attributes(trace: Trace, outputs: _Outputs) -> list[Any]:
    changed = []
    for obj, name, old in trace.root.attributes.values():
        if id(obj) in trace.outside:
            held = getattr(obj, name)
            in_place = id(old) in trace.root.opened and any(
                held is each for each in (old, forwarded(old))
            )
            leaves, structure = flatten(held)
            sources = [outputs.source(leaf) for leaf in leaves]
            changed.append((obj, name, in_place, structure, sources))
            put_back(trace.root, obj, name, old)
    return changed


_ = DslError
