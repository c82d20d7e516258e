"""What traced code finds outside of the function: arrays become hidden inputs, other objects are guarded.

A value comes in with its holder and its key there. An array goes out as a traced one, the same for each place that holds it; of
anything else the trace remembers what it was, so that the compiled function is used only while it is still so. A number that has
changed since an earlier trace is an input from then on (`Trace.loose`). Arrays that plain Python makes while a function is traced
are constants.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsl.errors import LeakError
from dsl.frontend.leaves import the_trace
from dsl.frontend.lists import TracedList
from dsl.frontend.roles import is_record, is_watched
from dsl.frontend.scopes import FROM_OUTSIDE, Capture, Storage, Trace, current_trace
from dsl.frontend.signature import describe, is_number
from dsl.frontend.traced import Kind, Traced, constant, native_dtype, supported_dtype
from dsl.frontend.trees import forwarded
from dsl.frontend.user_code import is_users
from dsl.ir.location import Location
from dsl.ir.types import TensorType

__all__ = [
    "adopt",
    "arrays_of",
    "capture",
    "fill",
    "from_outside",
    "is_numeric",
    "put_originals_back",
    "refuse_leaks",
    "watched",
]


def capture(holder: Any, key: Any, array: np.ndarray) -> Traced:
    """Return the handle of an array from outside, a hidden input of the function."""
    trace = the_trace()
    if id(array) in trace.by_array:
        found: Traced = trace.by_array[id(array)]
        if (id(holder), key) not in trace.captures and found.storage.origin is not None:
            trace.shared.append((holder, key, found.storage.origin))
        return found
    held: Traced | None = trace.as_it_is(array)
    if held is not None:
        return held
    type = TensorType(supported_dtype(array.dtype), array.shape)
    name = key if isinstance(key, str) and key.isidentifier() else "captured"
    value = trace.root.param(type, name)
    storage = Storage(value, trace.root, origin=len(trace.root.params) - 1)
    storage.strides = strides = None if array.flags.c_contiguous else array.strides
    traced = Traced(storage)
    trace.captures[id(holder), key] = Capture(
        holder, key, storage, type, name, array.nbytes, strides
    )
    trace.by_array[id(array)] = traced
    trace.keep.append(array)
    return traced


def _capture_number(holder: Any, key: Any, value: Any) -> Traced | None:
    """Return the handle of a number from outside that changes from call to call; None if it cannot be an input."""
    if not is_number(value):
        return None
    trace, leaf = the_trace(), describe(value)
    kind = Kind.PYTHON if leaf.kind == "python" else Kind.SCALAR
    place = id(holder), key
    if place not in trace.captures:
        name = key if isinstance(key, str) and key.isidentifier() else "captured"
        param = trace.root.param(TensorType(leaf.dtype, ()), name)
        storage = Storage(param, trace.root, origin=len(trace.root.params) - 1)
        trace.captures[place] = Capture(
            holder, key, storage, param.tensor, name, leaf.dtype.itemsize, number=leaf
        )
    found = trace.captures[place].storage
    assert found is not None
    return Traced(found, (), kind)


def from_outside(
    holder: Any, key: Any, value: Any, *, earlier: bool = False, as_is: bool = False
) -> Any:
    """Take a value that lives outside the trace: arrays become inputs, others are guarded.

    `earlier` says that it was surely there before the trace began; so was what it holds. Of what the caller has `as_is`, and not as
    it is returned, numbers are not inputs.
    """
    trace = current_trace()
    if trace is None or isinstance(value, (Traced, types.ModuleType)):
        return value
    holder, value = trace.stand_ins.original(holder), trace.stand_ins.original(value)
    if isinstance(value, np.ndarray):
        return capture(holder, key, value)
    if isinstance(holder, types.ModuleType) and not is_users(holder):
        return value
    guard = (id(holder), key)
    place = trace.roles.place(holder, key)
    is_loose = place in trace.loose and not as_is and not is_watched(holder)
    if is_loose and (number := _capture_number(holder, key, value)) is not None:
        return number
    is_new = id(value) not in trace.outside and not as_is
    if guard not in trace.guards:
        trace.guards[guard] = (holder, key, value)
    if id(value) not in trace.outside:
        trace.outside[id(value)] = value
        _note_arrays(trace, value)
    trace.roles.add(holder, key, value)
    if earlier or id(holder) in trace.originals:
        _note_earlier(trace, value)
    if is_record(value) and not as_is:
        return _record(trace, value)
    if not is_new and id(value) not in trace.stand_ins.copies:
        return value
    return _standing(trace, value, place)


def _record(trace: Trace, record: Any) -> Any:
    """Return an optimiser or its state from outside with inputs for arrays: dsl's own code, which reads them, is not traced."""
    if id(record) not in trace.records:
        made = object.__new__(type(record))
        for each in dataclasses.fields(record):
            field = _rebuilt(record, each.name, getattr(record, each.name))
            object.__setattr__(made, each.name, field)
        trace.records[id(record)] = made
        trace.roles.made[id(made)] = made
    return trace.records[id(record)]


def _rebuilt(holder: Any, key: Any, value: Any) -> Any:
    """Return what a record from outside holds, with new containers of inputs."""
    held = from_outside(holder, key, value)
    if type(held) is dict:
        return {name: _rebuilt(value, name, item) for name, item in held.items()}
    if type(held) in (list, tuple):
        return type(held)(_rebuilt(value, k, item) for k, item in enumerate(held))
    return held


def _standing(trace: Trace, value: Any, place: Any) -> Any:
    """Return what stands for something from outside that tracing sees for the first time."""
    seen = trace.outside.keys() - {id(value)} if trace.stand_ins.around else ()
    stands = trace.stand_ins.of(value, place, _number_in, seen)
    for number, (_, made) in trace.stand_ins.copies.items() if stands is not value else ():
        trace.outside.setdefault(id(made), made)
        trace.outside.setdefault(number, trace.stand_ins.copies[number][0])
    return stands


def _number_in(held: Any, key: Any, value: Any) -> Any:
    """Return the handle of a number in a container from outside, or what it is if it cannot be an input."""
    number = _capture_number(held, key, value)
    return value if number is None else number


def fill(held: Any, holder: Any, key: Any) -> None:
    """Put handles of numbers that change into a container that the function is about to change, in the attribute of an object."""
    trace = the_trace()
    if len(trace.scopes) == 1 and id(held) not in trace.outside:
        trace.stand_ins.fill(held, trace.roles.place(holder, key), _number_in)


def _note_arrays(trace: Trace, held: Any, depth: int = 4) -> None:
    """Remember where arrays in a container outside lie: what Python takes out of it by itself is an input, too."""
    if not depth or not isinstance(held, (list, tuple, dict, collections.deque)):
        return
    for key, item in held.items() if isinstance(held, dict) else enumerate(held):
        if is_numeric(item):
            trace.lying.setdefault(id(item), (held, key, item))
        else:
            _note_arrays(trace, item, depth - 1)


def arrays_of(held: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict from outside with the arrays in it captured, and the objects in it guarded."""
    return {
        key: from_outside(held, key, item) if is_numeric(item) or _may_change(item) else item
        for key, item in held.items()
    }


def _may_change(item: Any) -> bool:
    return not (is_number(item) or isinstance(item, (np.ndarray, str)))


def is_numeric(item: Any) -> bool:
    """Tell whether an object is an array that can be an input."""
    return isinstance(item, np.ndarray) and native_dtype(item.dtype) is not None


def _note_earlier(trace: Trace, value: Any) -> None:
    if isinstance(value, types.FunctionType):
        trace.earlier.add(value.__code__)
    elif isinstance(value, _CONTAINERS) and id(value) not in trace.originals:
        trace.originals[id(value)] = (value, copy.copy(value))


_CONTAINERS = (list, dict, set, collections.deque)
FROM_OUTSIDE.append(from_outside)


def refuse_leaks(trace: Trace) -> None:
    """Refuse a trace that has put traced values into containers from outside, and take them out again."""
    for leaked, where in put_originals_back(trace):
        raise LeakError(
            f"a traced value of type {leaked.type} was put into a container from outside of the function",
            location=where,
            remedy="return the value from the function instead of storing it in a global, or in a list or dict outside of it",
        )


def put_originals_back(trace: Trace) -> list[tuple[Traced, Location | None]]:
    """Make containers from outside that hold traced values hold what they did; return such values, and where they were put in."""
    leaked = []
    for number, (held, original) in trace.originals.items():
        found = next(_traced_in(held, 4), None)
        if found is not None:
            leaked.append((found, trace.touched.get(number, found.storage.loc)))
            held.clear()
            held.update(original) if isinstance(original, (dict, set)) else held.extend(original)
    return leaked


def _traced_in(item: Any, depth: int) -> Iterator[Traced]:
    item = forwarded(item)
    if isinstance(item, Traced):
        yield item
    elif isinstance(item, TracedList):
        yield from item.columns
    elif depth and isinstance(item, (*_CONTAINERS, tuple)):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _traced_in(part, depth - 1)


def watched(items: Any) -> Any:
    """Take the items of a list, tuple or deque from outside as what they are: captured arrays and guarded objects."""
    trace, items = current_trace(), forwarded(items)
    in_order = isinstance(items, (list, tuple, collections.deque))
    if trace is None or not in_order or id(items) not in trace.outside:
        return items
    return [from_outside(items, k, item) for k, item in enumerate(items)]


def adopt(result: Any) -> Any:
    """Make an array that plain Python returned a traced constant, also inside a new list, tuple or dict."""
    trace = current_trace()
    if trace is None:
        return result
    if isinstance(result, np.ndarray) and result.dtype.kind in "biufc":
        return constant(result)
    if type(result) in (list, tuple, dict) and id(result) not in trace.outside:
        items = result.values() if isinstance(result, dict) else result
        if any(isinstance(item, (np.ndarray, list, tuple, dict)) for item in items):
            return _adopt_items(result)
    return result


def _adopt_items(result: Any) -> Any:
    if isinstance(result, dict):
        return {key: adopt(item) for key, item in result.items()}
    return type(result)(map(adopt, result))
