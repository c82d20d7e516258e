"""Run a user's function on traced arguments and record what it does: a graph, and how results and effects reach the caller."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
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
from dsl.frontend.garbage import aside
from dsl.frontend.iterators import Cursor
from dsl.frontend.leaves import BranchRaise
from dsl.frontend.lookups import (
    acting,
    changed_in,
    contents_acted,
    contents_but_inputs,
    contents_of,
    is_found_at,
    is_same,
    kind_of,
    look_up,
    place_of,
)
from dsl.frontend.order import argument_strides, memory_order
from dsl.frontend.packages import package_of
from dsl.frontend.roles import FUNCTION, OfClass, Role, is_watched, places_in
from dsl.frontend.scopes import (
    Capture,
    Storage,
    Trace,
    current_scope,
    tracing,
    undone_on_error,
)
from dsl.frontend.signature import (
    Arguments,
    Leaf,
    describe,
    is_number,
    signature_of,
)
from dsl.frontend.sizes import Pattern
from dsl.frontend.standing_in import for_others
from dsl.frontend.state import Undefined, held_by, is_numeric, put_back, refill, setter_of
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
    guards: list[
        tuple[Any, Any, Any, Any]
    ]  # holder, key, value, contents of a container; roles in the place of objects
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
    )  # where arrays are found again that the graph takes: holder, key, param
    roles: list[Role] = field(default_factory=list)  # in the order in which their objects are found
    again: list[tuple[int, Role]] = field(
        default_factory=list
    )  # arguments that are another's object
    pinned: bool = False  # whether it is for the very objects that it was traced with
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
        """Say what outside the function keeps it from being used for a call, or None; `arguments` get the objects in question."""
        objects = self.cast(arguments)
        failure = objects if isinstance(objects, str) else self._failure(arguments, objects)
        if failure is None:
            arguments.found = self, objects
        return failure

    def cast(self, arguments: Arguments) -> list[Any] | str:
        """Return the objects that play the roles in a call, or say why none can."""
        objects: list[Any] = []
        for role in self.roles:
            if role.key is FUNCTION:
                item = arguments.function
            elif role.holder is None:
                item = arguments.leaves[role.key]
            else:
                item = look_up(acting(role.holder, objects), role.key)
            if type(item) is not role.kind:
                return f"{role!r} is now {kind_of(item)}"
            objects.append(item)
        for numbers in self.apart:
            if len({id(objects[k]) for k in numbers}) < len(numbers):
                return "objects that were two are now one"
        if any(arguments.leaves[leaf] is not objects[role.number] for leaf, role in self.again):
            return "arguments that were one object are now two"
        return objects

    @functools.cached_property
    def apart(self) -> list[list[int]]:
        """The numbers of roles that are played by different objects."""
        return places_in(self.roles)

    def _failure(self, arguments: Arguments, objects: list[Any]) -> str | None:
        for holder, key, expected, contents in self.guards:
            wanted = acting(expected, objects)
            found = (
                wanted
                if is_found_at(expected, holder, key)
                else look_up(acting(holder, objects), key)
            )
            if found is not wanted and not is_same(found, wanted):
                return f"`{key}` changed from {wanted!r} to {found!r}"
            if contents is not None and contents_acted(contents, objects) != contents_of(found):
                return f"the contents of `{key}` changed"
        return self._failure_of_arrays(arguments, objects)

    def _failure_of_arrays(self, arguments: Arguments, objects: list[Any]) -> str | None:
        arrays = [arguments.leaves[k] for k in self.inputs]
        given = {id(array): k for k, array in enumerate(arrays)}
        for item in self.captures:
            found = look_up(acting(item.holder, objects), item.key)
            arrays.append(found)
            if item.number is not None:
                if not is_number(found) or describe(found) != item.number:
                    return f"`{item.key}` is now {kind_of(found)}"
                continue
            if (
                not isinstance(found, np.ndarray)
                or found.dtype != item.type.dtype
                or found.shape != item.type.shape
            ):
                return f"the captured array `{item.key}` is now {kind_of(found)}"
            if (None if found.flags.c_contiguous else found.strides) != item.strides:
                return f"the captured array `{item.key}` has other strides"
            if id(found) in given:
                other = "an argument" if given[id(found)] < len(self.inputs) else "another one"
                return f"the captured array `{item.key}` is also {other}"
            given[id(found)] = len(arrays) - 1
        for holder, key, param in self.shared:
            if look_up(acting(holder, objects), key) is not arrays[param]:
                other = "passed as an argument" if param < len(self.inputs) else "found elsewhere"
                return f"`{key}` is no longer the array that is {other}"
        return None

    def changed_numbers(self, arguments: Arguments) -> dict[Any, Any]:
        """Return the places outside whose numbers have changed since the trace, and their keys."""
        objects = self.cast(arguments)
        changed: dict[Any, Any] = {}
        for holder, key, expected, contents in () if isinstance(objects, str) else self.guards:
            if contents is not None:
                found = look_up(acting(holder, objects), key)
                inside = dict(changed_in(found, contents, place_of(holder, key), str(key)))
                changed.update(inside if len(inside) <= _MOST_INSIDE else {})
            if is_number(expected) and not is_watched(held := acting(holder, objects)):
                found = look_up(held, key)
                if type(found) is type(expected) and not is_same(found, expected):
                    changed[place_of(holder, key)] = key
        return changed

    # -- running -----------------------------------------------------------------------------------------------------

    def arrays(self, arguments: Arguments) -> list[Any]:
        """Return what the graph reads in a call: arguments, and arrays and numbers from outside as they are now."""
        given, objects = [arguments.leaves[k] for k in self.inputs], self.objects(arguments)
        return given + [look_up(acting(c.holder, objects), c.key) for c in self.captures]

    def objects(self, arguments: Arguments) -> list[Any]:
        """Return the objects that play the roles in a call that the function was found to take."""
        traced, objects = arguments.found or (None, ())
        if traced is not self:
            objects = self.cast(arguments)
        if isinstance(objects, str):
            raise InternalError(f"a call was not looked at before it ran: {objects}")
        return list(objects)

    def run(self, execute: Callable[[list[Any]], list[Any]], arguments: Arguments) -> Any:
        """Run the graph on a call's arguments and deliver its results and side effects."""
        if self.claim is None:
            return self._run(execute, arguments)
        with self.claim:
            return self._run(execute, arguments)

    def _run(self, execute: Callable[[list[Any]], list[Any]], arguments: Arguments) -> Any:
        arrays, objects = self.arrays(arguments), self.objects(arguments)
        self._check_written(arrays)
        if not getattr(execute, "over_ranks", False):
            _check_here(arrays)
        outputs = execute(arrays)
        if not getattr(execute, "in_place", False):
            outputs = _apart(outputs, arrays)
            for source, target, _ in self.written:
                if not isinstance(outputs[target], Remote):
                    arrays[source][...] = outputs[target]
        deliver = _Delivery(arrays, outputs, self.graph, objects)
        for k, structure, sources in self.containers:
            refill(
                arguments.bound[list(arguments.bound)[k]], structure, [deliver(s) for s in sources]
            )
        for whose, name, in_place, structure, sources in self.attributes:
            obj, leaves = acting(whose, objects), [deliver(s) for s in sources]
            if in_place:
                refill(getattr(obj, name), structure, leaves)
            else:
                setter_of(type(obj))(obj, name, unflatten(structure, leaves))
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


_MOST_INSIDE = 32  # numbers in one container that become inputs


class _Delivery:
    """Turns sources into the objects that the caller gets; one output gives one array, however often it is asked for."""

    def __init__(
        self, inputs: list[Any], outputs: list[Any], graph: Graph, objects: Sequence[Any]
    ) -> None:
        self.inputs, self.outputs, self.graph, self.objects = inputs, outputs, graph, objects

    @functools.cached_property
    def sizes(self) -> dict[Dim, int]:
        """The sizes of the symbols in the shapes of the inputs."""
        found: dict[Dim, int] = {}
        for param, array in zip(self.graph.params, self.inputs, strict=True):
            bind_shape(param.tensor.shape, np.shape(array), found)
        return found

    def __call__(self, source: Source) -> Any:
        if source.kind == "static":
            return acting(source.value, self.objects)
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


def trace_call(
    fn: Callable[..., Any], arguments: Arguments, name: str, pattern: Pattern | None = None, *,
    cautious: bool = False, loose: Collection[Any] = (),
) -> TracedFunction:  # fmt: skip
    """Trace `fn` on arguments of the described kinds: of their sizes and strides or, with a pattern, of all that it takes.

    Lists of many items are made by loops of the program. If the function needs Python's own lists, it is traced again with those.
    One that is `cautious` takes no sizes for equal that may differ. Numbers outside at the places of `loose` are inputs.
    """
    refuse_generator(fn)
    trace = Trace(name)
    trace.cautious, trace.loose = cautious, loose
    trace.stand_ins.watch_for(loose)
    try:
        with aside():
            return _trace_once(trace, fn, arguments, name, pattern)
    except Exception as error:
        if not 0 < trace.looped <= _MOST_UNROLLED:
            raise
        looped = error
    again = Trace(name)
    again.unrolls, again.cautious, again.loose = True, cautious, loose
    again.stand_ins.watch_for(loose)
    try:
        with aside():
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
        arguments.function = fn
        trace.roles.add_function(fn)
        handles, inputs = _make_inputs(trace, arguments, pattern)
        tree = unflatten(arguments.structure, handles)
        bound = {**arguments.bound, **tree}
        before = {key: flatten(value) for key, value in tree.items()}
        args, kwargs = _spread(fn, bound)
        trace.earlier.add(getattr(fn, "__code__", None))
        if not isinstance(fn, types.FunctionType) or package_of(fn) == "dsl":
            trace.outside[id(fn)] = fn  # and what it holds
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
            with undone_on_error(trace.root):
                return _finish(trace, arguments, inputs, result, tree, before, definition)
        except BaseException as error:
            put_originals_back(trace)
            if isinstance(error, DslError):
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
            if isinstance(described.value, OfClass):
                trace.roles.add_argument(leaf, k)
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
    trace.stand_ins.refuse_changes(trace.roles.pinned)
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
    captures = sorted(trace.captures.values(), key=_origin)
    guards = [
        (holder, key, value, contents_but_inputs(value, contents_of(value), trace))
        for holder, key, value in trace.guards.values()
    ]
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
    places = {id(c.holder): _origin(c) for c in captures}
    made.captures = [replace(c, storage=None) for c in captures]
    made.variables = [
        (item, places.get(number) in origins) for number, item in trace.variables.items()
    ]
    made.shared = trace.shared
    return for_others(made, trace, arguments)


def _origin(item: Capture) -> int:
    """Return the number of the param that a captured array or number is."""
    assert item.storage is not None
    return item.storage.origin or 0


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
    changed: list[Any] = []
    filled: set[int] = set()
    mine = [each for each in trace.root.attributes.values() if id(each[0]) in trace.outside]
    for obj, name, old in mine:
        held = held_by(obj, name)
        in_place = id(old) in trace.root.opened and any(
            held is each for each in (old, forwarded(old))
        )
        if in_place and id(old) in filled:  # two objects hold it
            continue
        filled.update([id(old)] if in_place else ())
        leaves, structure = flatten(held)
        sources = [outputs.source(leaf) for leaf in leaves]
        changed.append((obj, name, in_place, structure, sources))
    for obj, name, old in mine:
        put_back(trace.root, obj, name, old)
    return changed


_ = DslError
