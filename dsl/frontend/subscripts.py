"""`x[k]` and `x[k] = y` of arrays, lists, dicts and the user's objects.

Arrays from outside are captured where they are read. A list of numbers that the data indexes becomes a traced one, and stays one
once it is changed so; a traced key of a dict is refused.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsl.errors import NonConcreteError, ShapeError, UnsupportedError
from dsl.frontend.array_likes import as_arrays
from dsl.frontend.calls import BUILTINS, CALLED, call
from dsl.frontend.captures import adopt, from_outside
from dsl.frontend.choices import note_change, note_pick, note_reading
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.library import has_traced
from dsl.frontend.operators import augmented
from dsl.frontend.optional import TracedOptional, unwrap
from dsl.frontend.roles import stands_in
from dsl.frontend.scopes import Item, current_trace, here
from dsl.frontend.sequences import chosen_from
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, lift
from dsl.frontend.trees import Forward, forwarded
from dsl.frontend.user_code import own_method

__all__ = ["augment_item", "get_item", "set_item"]


def get_item(obj: Any, key: Any) -> Any:
    """`obj[key]`."""
    obj, key = forwarded(unwrap(obj)), unwrap(key)
    if isinstance(obj, Traced):
        return obj[as_arrays(_as_places(key))]
    note_reading(obj)
    if isinstance(obj, np.ndarray):
        return lift(obj)[as_arrays(_as_places(key))]
    _note_key(key)
    if (obj is np.mgrid or obj is np.ogrid) and has_traced(_bounds(key)):
        return _FUNCTIONS["_mgrid" if obj is np.mgrid else "_ogrid"](key)
    if obj is np.r_ or obj is np.c_:
        return _glued(obj, key)
    if own_method(key, "__index__") is not None and isinstance(obj, (list, tuple, str, range)):
        key = _as_place(key)
    if isinstance(key, Traced) and isinstance(obj, BoundedDeque):
        obj = list(obj)
    if isinstance(key, Traced) and isinstance(obj, (list, tuple, str, range)):
        numbers = chosen_from(obj, key, constant=_holds_numbers(obj))
        if numbers is not None:
            picked = numbers[key]
            note_pick(picked, obj)
            return picked
        key = key.__index__()
    if isinstance(key, Traced) and isinstance(obj, dict):
        _refuse_key(key)
    own = own_method(obj, "__getitem__")
    if own is None and stands_in(obj):
        _note_key(obj)
    value = call(own, obj, key) if own is not None else forwarded(obj[key])
    trace = current_trace()
    if trace is None:
        return value
    is_array, is_outside = isinstance(value, np.ndarray), id(obj) in trace.outside
    if isinstance(key, (int, str)):
        if isinstance(obj, _PLAIN) and (is_outside or is_array):
            return from_outside(obj, key, value)
        if isinstance(obj, Mapping) and is_outside and own is None:
            return from_outside(obj, Item(key), value)
    return lift(value) if is_array else value


def _as_place(key: Any) -> Any:
    """Return what an object of the user's says that its place is; anything else as it is."""
    own = own_method(key, "__index__")
    return key if own is None else call(own, key)


def _as_places(key: Any) -> Any:
    """Return an index of an array with places in the stead of objects."""
    return tuple(map(_as_place, key)) if type(key) is tuple else _as_place(key)


def _note_key(key: Any) -> None:
    """Note an object that is a key: what is under it depends on which one it is."""
    if (trace := current_trace()) is not None:
        trace.roles.note_native(key)


_PLAIN = (list, tuple, dict, str, bytes, range, deque)


def set_item(obj: Any, key: Any, value: Any) -> None:
    """`obj[key] = value`."""
    obj = forwarded(obj)
    note_change(obj)
    if isinstance(obj, TracedOptional):
        words = "does not support item assignment"
        return obj.change(lambda held: set_item(held, key, value), words)  # type: ignore[no-any-return]
    if isinstance(obj, np.ndarray) and current_trace() is not None:
        obj = lift(obj)
    if isinstance(obj, Traced):
        key, value = as_arrays(_as_places(key)), as_arrays(value)
    else:
        _note_key(key)
    if isinstance(key, Traced) and isinstance(obj, list):
        numbers = chosen_from(obj, key)
        if numbers is not None:
            obj[:] = [Forward(numbers)]
            obj = numbers
        else:
            key = key.__index__()
    if isinstance(key, Traced) and isinstance(obj, dict):
        _refuse_key(key)
    own = own_method(obj, "__setitem__")
    if own is not None:
        call(own, obj, key, value)
    else:
        obj[key] = value


def delete_item(obj: Any, key: Any) -> None:
    """`del obj[key]`."""
    obj = forwarded(obj)
    _note_key(key)
    note_change(obj)
    own = own_method(obj, "__delitem__")
    if own is not None:
        call(own, obj, key)
    elif isinstance(obj, Traced):
        raise ShapeError(
            "cannot delete array elements",
            location=here(),
            remedy="call `np.delete`, which returns a new array",
        )
    else:
        del obj[key]


def augment_item(obj: Any, key: Any, op: str, value: Any) -> None:
    """`obj[key] op= value`."""
    old = get_item(obj, key)
    new = augmented(old, op, value)
    if new is not old or not _is_captured(obj, key, new):
        set_item(obj, key, new)


def _is_captured(obj: Any, key: Any, value: Any) -> bool:
    """Tell whether an array that was changed in place is that of a list or dict from outside, where it stays."""
    trace = current_trace()
    if trace is None or not isinstance(obj, (list, dict)) or isinstance(key, Traced):
        return False
    return trace.by_array.get(id(obj[key])) is value


def _holds_numbers(items: Any) -> bool:
    """Tell whether a list or tuple holds numbers alone, which stay as they are while the compiled function is used."""
    numbers = (int, float, complex, np.generic)
    return isinstance(items, (list, tuple)) and all(isinstance(item, numbers) for item in items)


def _refuse_key(key: Traced) -> None:
    raise NonConcreteError(
        "a traced value cannot be a dictionary key",
        location=here(),
        remedy="put the values into one array and index that, or make the argument static (`static_argnames`)",
    )


def _glued(obj: Any, key: Any) -> Any:
    """`np.r_[...]` and `np.c_[...]` of slices, numbers and arrays."""
    keys = as_arrays(key if isinstance(key, tuple) else (key,))
    if not has_traced([*keys, *_bounds(key)]):
        return adopt(obj[key])
    if any(isinstance(k, str) for k in keys):
        raise UnsupportedError("np.r_ with a string", location=here(), remedy="use np.concatenate")
    parts = [_glued_part(k) for k in keys]
    dtype = _FUNCTIONS["result_type"](
        *(k if _is_number(k) else p for k, p in zip(keys, parts, strict=True))
    )
    parts = [part.astype(dtype) for part in parts]
    if obj is np.r_:
        return _FUNCTIONS["concatenate"](parts)
    return _FUNCTIONS["concatenate"]([p[:, None] if p.ndim == 1 else p for p in parts], axis=-1)


def _is_number(k: Any) -> bool:
    return isinstance(k, (int, float, complex)) or (isinstance(k, Traced) and k.kind is Kind.PYTHON)


def _glued_part(k: Any) -> Any:
    if not isinstance(k, slice):
        return _FUNCTIONS["atleast_1d"](k)
    if isinstance(k.step, complex):
        return _FUNCTIONS["linspace"](k.start, k.stop, int(abs(k.step)))
    return _FUNCTIONS["arange"](k.start or 0, k.stop, k.step or 1)


def _bounds(key: Any) -> list[Any]:
    keys = key if isinstance(key, tuple) else (key,)
    return [b for k in keys if isinstance(k, slice) for b in (k.start, k.stop, k.step)]


def _picked(fn: operator.itemgetter[Any], obj: Any) -> Any:
    """Call an `operator.itemgetter`."""
    keys = fn.__reduce__()[1]
    found = tuple(get_item(obj, key) for key in keys)
    return found if len(keys) > 1 else found[0]


BUILTINS[operator.getitem] = get_item
CALLED[operator.itemgetter] = _picked
