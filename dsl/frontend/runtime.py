"""What converted code calls: one `Runtime` per converted function, under the name `dsl__`.

Every call, subscript, attribute and global that converted code uses comes here and is decided in one place: on traced values
it becomes dataflow, on anything else plain Python runs. Arrays that come from outside the function are captured as inputs.
"""

from __future__ import annotations

import builtins
import cmath
import collections
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import (
    BranchError,
    ConversionError,
    NonConcreteError,
    SourceError,
    UnsupportedError,
)
from dsl.frontend import formatting, indexing, looping, loops, ufuncs
from dsl.frontend.accesses import noting
from dsl.frontend.branches import RESULT, if_, is_missing
from dsl.frontend.choices import note_change, note_pick, note_reading
from dsl.frontend.convert import MUTATORS, convert, is_converted
from dsl.frontend.deques import BoundedDeque, bounded
from dsl.frontend.iterators import Cursor, as_cursor, is_plain, rest_of, searched
from dsl.frontend.leaves import TRUTH, BranchRaise, predicate, the_trace
from dsl.frontend.library import CREATORS, has_traced, implementation, unsupported
from dsl.frontend.lists import TracedList
from dsl.frontend.objects import is_plain_class, is_plain_type, note_made, was_made_here
from dsl.frontend.optional import TracedOptional, unwrap
from dsl.frontend.regions import emit_raise, trying
from dsl.frontend.scopes import Capture, Storage, current_scope, current_trace, here
from dsl.frontend.searches import SEARCHES
from dsl.frontend.state import (
    Undefined,
    held_by,
    is_mutable,
    is_opaque,
    open_attribute,
    put_in_place,
    undefined_attribute,
)
from dsl.frontend.text import TEXTS, TracedText, print_, text_of, to_text
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    cast,
    concrete,
    constant,
    fresh,
    is_number,
    lift,
    read,
    size_number,
)
from dsl.frontend.trees import OBJECTS, Forward, forwarded
from dsl.frontend.views import Sliced
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.types import BOOL, I64, TensorType

__all__ = ["Runtime", "call", "converted"]

_NOT_CONVERTED = {
    "numpy",
    "dsl",
    "scipy",
    "ml_dtypes",
    "numba",
    "jax",
    "torch",
    "cupy",
    "_pytest",
    "pytest",
    *sys.stdlib_module_names,
}
_NOT_CONVERTED -= {"__main__", "this", "antigravity"}
_AUGMENTED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv, "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod, "Pow": operator.ipow, "LShift": operator.ilshift, "RShift": operator.irshift, "BitOr": operator.ior,
    "BitXor": operator.ixor, "BitAnd": operator.iand, "MatMult": operator.imatmul,
}  # fmt: skip
_BINARY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "Add": (operator.add, "add"), "Sub": (operator.sub, "sub"), "Mult": (operator.mul, "mul"),
    "Div": (operator.truediv, "truediv"), "FloorDiv": (operator.floordiv, "floordiv"), "Mod": (operator.mod, "mod"),
    "Pow": (operator.pow, "pow"), "LShift": (operator.lshift, "lshift"), "RShift": (operator.rshift, "rshift"),
    "BitOr": (operator.or_, "or"), "BitXor": (operator.xor, "xor"), "BitAnd": (operator.and_, "and"),
    "MatMult": (operator.matmul, "matmul"),
}  # fmt: skip
_UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "USub": (operator.neg, "__neg__"), "UAdd": (operator.pos, "__pos__"), "Invert": (operator.invert, "__invert__"),
}  # fmt: skip
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "Is": operator.is_, "IsNot": operator.is_not,
}  # fmt: skip


def sequences() -> Any:
    """The module of operations on lists whose length the data decides, which needs this one."""
    from dsl.frontend import sequences

    return sequences


def converted(fn: types.FunctionType) -> types.FunctionType:
    """Return `fn` converted, with a runtime of its own."""
    return fn if is_converted(fn) else convert(fn, Runtime(fn))


class Runtime:
    """The helpers that a converted function calls."""

    if_ = staticmethod(if_)
    short_if = staticmethod(functools.partial(if_, lenient=True))
    while_ = staticmethod(looping.while_)
    trying = staticmethod(trying)

    def __init__(self, fn: types.FunctionType) -> None:
        self.globals = fn.__globals__
        self.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        self.name = fn.__name__

    # -- names, attributes, subscripts -----------------------------------------------------------------------------

    def load(self, name: str, value: Any) -> Any:
        """Read a global or a variable of an enclosing function."""
        holder: Any = self.cells.get(name)
        if holder is None:
            if name not in self.globals:
                return value
            holder = self.globals
        return _from_outside(holder, name, value)

    def attr(self, obj: Any, name: str) -> Any:
        """Read an attribute."""
        note_reading(obj)
        found = getattr(type(obj), name, None)
        kept = isinstance(found, functools.cached_property)
        getter = getattr(found, "func" if kept else "fget", None)
        if (
            isinstance(getter, types.FunctionType)
            and _is_users(getter)
            and current_trace() is not None
            and not (kept and name in vars(obj))
        ):
            made = call(getter, obj)
            if (
                kept and len(the_trace().scopes) == 1
            ):  # what a branch computes is not there after it
                self.setattr(obj, name, made)
            return made
        value = forwarded(_attribute(forwarded(obj), name))
        trace = current_trace()
        if trace is None or isinstance(obj, Traced):
            return value
        note_reading(obj)
        if id(obj) in trace.outside or isinstance(value, np.ndarray):
            return _from_outside(obj, name, value)
        return value

    def attr_to_change(self, obj: Any, name: str) -> Any:
        """Read an attribute in order to change the list or dict that it holds; regions remember what was in it."""
        trace = current_trace()
        held = getattr(obj, name, None)
        if trace is not None and is_opaque(held) and len(trace.scopes) > 1:
            _refuse_opaque(obj, name, held)
        is_tree = hasattr(obj, "__dataclass_fields__") or was_made_here(obj)
        mine = is_mutable(held) and not is_tree and not OBJECTS[0].is_made(held)
        if trace is not None and mine and (len(trace.scopes) > 1 or id(obj) in trace.outside):
            open_attribute(trace.scopes[-1], obj, name)
        return self.attr(obj, name)

    def method(self, obj: Any, name: str) -> Any:
        """What is called: a method, perhaps that of a `deque`, for which a list may stand, or what a property returns."""
        held = forwarded(obj)
        (note_change if name in MUTATORS else note_reading)(held)
        if isinstance(held, TracedOptional) and held.structure.type is not None:
            return functools.partial(_call_inside, held, name)
        if name in _OF_DEQUES and isinstance(held, (list, TracedList)):
            return functools.partial(_OF_DEQUES[name], held)
        if isinstance(getattr(type(obj), name, None), (property, functools.cached_property)):
            return self.attr(obj, name)
        return getattr(obj, name)

    def borrow(self, name: str, read: Callable[[], Any]) -> None:
        """Remember a variable of a function around, which `nonlocal` lets this one assign in branches and loops of others."""
        cell = (read.__closure__ or ())[0]
        trace = current_trace()
        if trace is None:
            return
        if any(cell is own for own in self.cells.values()):
            raise ConversionError(
                f"`nonlocal {name}`: writing a variable outside of the compiled function",
                location=here(), remedy="return the value instead",
            )  # fmt: skip
        trace.borrowed[id(cell)] = (cell, name)
        if len(trace.scopes) > 1:
            key = (id(cell), "cell_contents")
            trace.scopes[-1].attributes.setdefault(key, (cell, key[1], held_by(cell, key[1])))

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        """Assign an attribute; regions remember the old value."""
        trace = current_trace()
        note_change(obj)
        if isinstance(obj, TracedOptional):
            words = f"has no attribute '{name}'"
            return obj.change(lambda held: self.setattr(held, name, value), words, "AttributeError")  # type: ignore[no-any-return]
        if (
            trace is not None
            and not hasattr(obj, "__dataclass_fields__")
            and not isinstance(obj, Traced)
            and not was_made_here(obj)
        ):
            old = held_by(obj, name)
            scope = trace.scopes[-1]
            scope.attributes.setdefault((id(obj), name), (obj, name, old))
        setattr(obj, name, value)

    def aug_setattr(self, obj: Any, name: str, op: str, value: Any) -> None:
        """`obj.name op= value`."""
        self.setattr(obj, name, self.aug(self.attr(obj, name), op, value))

    def getitem(self, obj: Any, key: Any) -> Any:
        """`obj[key]`."""
        obj, key = forwarded(unwrap(obj)), unwrap(key)
        if isinstance(obj, Traced):
            return obj[_as_arrays(key)]
        note_reading(obj)
        if isinstance(obj, np.ndarray):
            return lift(obj)[_as_arrays(key)]
        if (obj is np.mgrid or obj is np.ogrid) and has_traced(_bounds(key)):
            return _FUNCTIONS["_mgrid" if obj is np.mgrid else "_ogrid"](key)
        if obj is np.r_ or obj is np.c_:
            return _glued(obj, key)
        if isinstance(key, Traced) and isinstance(obj, BoundedDeque):
            obj = list(obj)
        if isinstance(key, Traced) and isinstance(obj, (list, tuple, str, range)):
            numbers = _chosen_from(obj, key, constant=_holds_numbers(obj))
            if numbers is not None:
                picked = numbers[key]
                note_pick(picked, obj)
                return picked
            key = key.__index__()
        if isinstance(key, Traced) and isinstance(obj, dict):
            _refuse_key(key)
        own = _own(obj, "__getitem__")
        value = call(own, obj, key) if own is not None else forwarded(obj[key])
        trace = current_trace()
        if trace is not None and id(obj) in trace.outside and isinstance(key, (int, str)):
            return _from_outside(obj, key, value)
        if isinstance(value, np.ndarray) and trace is not None:
            return _from_outside(obj, key, value) if isinstance(key, (int, str)) else lift(value)
        return value

    def setitem(self, obj: Any, key: Any, value: Any) -> None:
        """`obj[key] = value`."""
        obj = forwarded(obj)
        note_change(obj)
        if isinstance(obj, TracedOptional):
            words = "does not support item assignment"
            return obj.change(lambda held: self.setitem(held, key, value), words)  # type: ignore[no-any-return]
        if isinstance(obj, np.ndarray) and current_trace() is not None:
            obj = lift(obj)
        if isinstance(obj, Traced):
            key, value = _as_arrays(key), _as_arrays(value)
        if isinstance(key, Traced) and isinstance(obj, list):
            numbers = _chosen_from(obj, key)
            if numbers is not None:
                obj[:] = [Forward(numbers)]
                obj = numbers
            else:
                key = key.__index__()
        if isinstance(key, Traced) and isinstance(obj, dict):
            _refuse_key(key)
        own = _own(obj, "__setitem__")
        if own is not None:
            call(own, obj, key, value)
        else:
            obj[key] = value

    def aug_setitem(self, obj: Any, key: Any, op: str, value: Any) -> None:
        """`obj[key] op= value`."""
        old = self.getitem(obj, key)
        new = self.aug(old, op, value)
        if new is not old or not _is_captured(obj, key, new):
            self.setitem(obj, key, new)

    def aug(self, target: Any, op: str, value: Any) -> Any:
        """`target op= value`, returning what the target becomes."""
        target, value = forwarded(target), forwarded(value)
        note_change(target)
        own = _own(target, f"__i{_BINARY[op][1]}__")
        if own is not None:
            return call(own, target, value)
        if type(target) is list and op == "Add" and sequences().is_open(value):
            sequences().extended(target, value)
            return forwarded(target)
        if hasattr(type(target), f"__i{_BINARY[op][1]}__"):
            return _AUGMENTED[op](target, value)
        return self.binary(op, target, value)

    def binary(self, op: str, left: Any, right: Any) -> Any:
        """`left op right`."""
        return _binary(op, left, right)

    def unary(self, op: str, operand: Any) -> Any:
        """`-x`, `+x` and `~x`."""
        plain, name = _UNARY[op]
        own = _own(operand, name)
        return plain(operand) if own is None else call(own, operand)

    def slice(self, start: Any, stop: Any, step: Any) -> Any:
        return slice(start, stop, step)

    def unpack(self, value: Any, count: int) -> Any:
        """Check the length of what a tuple target takes apart."""
        value = _unpacked(value)
        if isinstance(value, Traced):
            if value.ndim == 0:
                raise TypeError("cannot unpack non-iterable value of rank 0")
            value = _of_length(value, count)
            return [value[k] for k in range(count)]
        return sequences().of_length(value, count) if isinstance(value, TracedList) else value

    def unpack_around(self, value: Any, before: int, after: int) -> Any:
        """The items for `a, *b, c = value`; of a list whose length the data decides, the middle is such a list."""
        value = _unpacked(value)
        if isinstance(value, TracedList):
            return sequences().split_around(value, before, after)
        items = list(value)
        least, end = before + after, len(items) - after
        if len(items) < least:
            raise ValueError(
                f"not enough values to unpack (expected at least {least}, got {len(items)})"
            )
        return [*items[:before], items[before:end], *items[end:]]

    def generator(self, items: Any) -> Any:
        """A generator expression, for whose items there may be a list."""
        return as_cursor(items)

    @staticmethod
    def undefined(name: str) -> Undefined:
        """A variable that has no value yet."""
        return Undefined(name)

    @staticmethod
    def peek(read: Callable[[], Any]) -> Any:
        """Read a variable that may have no value."""
        try:
            return read()
        except NameError as error:
            return Undefined(getattr(error, "name", None) or "variable")

    # -- logic -----------------------------------------------------------------------------------------------------

    def and_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a and b and …`: plain Python unless a condition is traced."""
        return _logic(first, rest, True)

    def or_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a or b or …`."""
        return _logic(first, rest, False)

    def all_of(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a and b` where only its truth matters."""
        return _logic(_truth(first), tuple(_truth_of(r) for r in rest), True)

    def any_of(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a or b` where only its truth matters."""
        return _logic(_truth(first), tuple(_truth_of(r) for r in rest), False)

    def not_(self, value: Any) -> Any:
        """`not a`."""
        return _negated(value)

    def changing(self, part: Any, names: tuple[str, ...], reads: tuple[Any, ...]) -> Any:
        """A part of an expression that is evaluated or not, and may change what these variables hold."""
        pairs = zip(names, reads, strict=True)
        setattr(part, _HELD, {n: functools.partial(self.peek, read) for n, read in pairs})
        return part

    def if_exp(self, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """`a if test else b`."""
        return conditional(test, then, otherwise)

    def compare(self, left: Any, *steps: tuple[str, Callable[[], Any]]) -> Any:
        """Chained comparisons and `in`."""
        name, right = steps[0]
        value = right()
        result = _compare(name, left, value)
        if len(steps) == 1:
            return result
        rest = _holding(lambda: self.compare(value, *steps[1:]), *(part for _, part in steps[1:]))
        return _logic(result, (rest,), True)

    def compare_two(self, name: str, left: Any, right: Any) -> Any:
        """`left == right` and its like."""
        return _compare(name, left, right)

    def test(self, value: Any) -> bool:
        """The condition of a comprehension, which Python needs now."""
        return bool(value)

    def iterate(self, items: Any) -> Any:
        """What a comprehension loops over."""
        return _watched(items)

    def collected(self, items: Any, make: Callable[[Any], Any]) -> Any:
        """A list comprehension or a generator; over items whose number the data decides, a loop that fills a list."""
        items = _watched(items)
        left = items.rest() if isinstance(items, Cursor) else items
        return sequences().collected(items, make) if sequences().is_open(left) else make(items)

    def chosen(
        self, items: Any, make: Callable[[Any], Any], pick: Callable[[Any], Any], held: Callable[[], Any],
        ask: Callable[[Any], Any] | None,
    ) -> Any:  # fmt: skip
        """A list comprehension or a generator with conditions; if the data decides them, a loop that fills a list."""
        items = sequences().again(_watched(items))
        if current_trace() is None or sequences().are_decided(items, held(), ask):
            return self.collected(items, make)
        return pick(items)

    def picked(self, items: Any, pick: Callable[[Any], Any]) -> Any:
        """A comprehension that assigns variables, or is there for what it changes: always a loop."""
        return pick(_watched(items))

    # -- statements ------------------------------------------------------------------------------------------------

    def for_(self, iterable: Any, *args: Any) -> None:
        note_reading(forwarded(iterable))
        looping.for_(_watched(iterable), *args)

    def assert_(self, test: Callable[[], Any], message: Callable[[], Any] | None) -> None:
        """`assert test, message`."""
        chosen = predicate(test())
        if isinstance(chosen, bool):
            if not chosen:
                self.raise_(AssertionError(*([message()] if message else [])), None)
            return
        text, values = to_text(message()) if message else ("", [])
        current_scope().node(
            "assert",
            (chosen, *(read(v) for v in values)),
            {"message": text, "error": "AssertionError"},
        )

    def raise_(self, error: Any, cause: Any) -> None:
        """`raise error`: in a region, the region raises when it runs."""
        made = error() if isinstance(error, type) else error
        if cause is not None:
            made.__cause__ = cause
        trace = current_trace()
        if trace is None or len(trace.scopes) == 1:
            if any(isinstance(a, TracedText) or has_traced(a) for a in getattr(made, "args", ())):
                emit_raise(_with_values(made))
                raise BranchRaise(made, emitted=True)
            raise made
        raise BranchRaise(_with_values(made))

    def returned(self, value: Any) -> Any:
        """A value that a function returns: here a variable that may have no value is read."""
        if isinstance(value, Traced) and value.storage.defined is not None:
            return fresh(read(value), value.kind)
        return self.used(value)

    def listed(self, *parts: Any) -> Any:
        """`[a, *b]`: the parts are lists."""
        made: list[Any] = []
        for part in parts:
            call(forwarded(made).extend, rest_of(part))
        return forwarded(made)

    def used(self, value: Any) -> Any:
        """A variable that is assigned to another one, or put into a tuple, a list or a dict: it must have a value."""
        if is_missing(value) and value.name != RESULT:
            value.fail()
        if isinstance(value, Traced) and value.storage.defined is not None:
            current_scope().check_defined(value.storage)
        note_reading(forwarded(value))
        return value

    def fstring(self, *parts: Any) -> Any:
        """An f-string; one with traced values is formatted when the program runs."""
        return TracedText.join(parts)

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as traced code calls it."""
        result = call(fn, *args, **kwargs)
        if fn is itertools.tee:
            return tuple(map(as_cursor, result))
        return as_cursor(result) if is_plain(result) else result


def _refuse_opaque(obj: Any, name: str, held: Any) -> None:
    """Refuse to change a set, or its like, of an object from outside in a branch or loop, which would not be undone."""
    if not was_made_here(obj):
        raise BranchError(
            f"the {type(held).__name__} `{name}` changes in a branch or loop that the data decides",
            location=here(),
            remedy="use a list, a dict with all its keys, or an array of flags",
        )


def _attribute(obj: Any, name: str) -> Any:
    """Read an attribute; of one that branches left without a value, say why."""
    missing = undefined_attribute(obj, name)
    if missing.reason and not hasattr(obj, name):
        missing.fail()
    return getattr(obj, name)


def _binary(op: str, left: Any, right: Any) -> Any:
    """`left op right`; an operator that the user wrote in Python is converted as other functions are."""
    plain, name = _BINARY[op]
    left, right = forwarded(left), forwarded(right)
    if op == "Mod" and isinstance(left, str) and formatting.has_text_values(_values_of(right)):
        return formatting.percent(left, right)
    for item, other, method in ((left, right, f"__{name}__"), (right, left, f"__r{name}__")):
        own = _own(item, method)
        if own is not None:
            result = call(own, item, unwrap(other))
            if result is not NotImplemented:
                return result
    if op == "Mult" and type(left) is list and isinstance(right, Traced):
        return sequences().repeated(left, right)
    if isinstance(left, loops.Span) or isinstance(right, loops.Span):
        left, right = _as_arrays(left), _as_arrays(right)
    return plain(left, right)


def _call_inside(held: TracedOptional, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method, which may change its object, of what may be None."""
    words = f"has no attribute '{name}'"
    return held.change(
        lambda value: call(getattr(value, name), *args, **kwargs), words, "AttributeError"
    )


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


def _chosen_from(items: Any, key: Traced, *, constant: bool = False) -> TracedList | None:
    """Return a list or tuple of numbers as a traced list, for an index that the data decides; None if Python can take it.

    One from outside the function must be `constant`: it is not to be changed.
    """
    outside = id(items) in the_trace().outside and not constant
    inside = isinstance(items, (list, tuple)) and not outside
    given = key.dtype.kind not in "iu" or key.ndim or sequences().is_given(key)
    return sequences().of_numbers(items) if inside and not given else None


def _of_length(value: Traced, count: int) -> Traced:
    """Return an array as one of `count` rows; if it is of another length, raise what Python raises on unpacking it."""
    many = f"too many values to unpack (expected {count})"
    few = f"not enough values to unpack (expected {count}, got {{}})"
    length, *rest = value.type.shape
    if isinstance(length, int):
        if length != count:
            raise ValueError(many if length > count else few.format(length))
        return value
    scope = current_scope()
    size, wanted = scope.size(length), scope.constant(count, I64)
    for test, message in (("less_equal", many), ("greater_equal", few)):
        values = (scope.emit(test, size, wanted), *([size] if message is few else []))
        scope.node("assert", values, {"message": message, "error": "ValueError"})
    zeros, ones = (0,) * value.ndim, (1,) * value.ndim
    return Traced(value.storage, (*value.views, Sliced(zeros, (count, *rest), ones)))


def _glued(obj: Any, key: Any) -> Any:
    """`np.r_[...]` and `np.c_[...]` of slices, numbers and arrays."""
    keys = key if isinstance(key, tuple) else (key,)
    if not has_traced([*keys, *_bounds(key)]):
        return _adopt(obj[key])
    if any(isinstance(k, str) for k in keys):
        raise UnsupportedError("np.r_ with a string", location=here(), remedy="use np.concatenate")
    parts = [_glued_part(k) for k in keys]
    dtype = _FUNCTIONS["result_type"](
        *(k if _is_number(k) else p for k, p in zip(keys, parts, strict=True))
    )
    parts = [part.astype(dtype) for part in parts]
    return _FUNCTIONS["concatenate"](parts) if obj is np.r_ else _FUNCTIONS["column_stack"](parts)


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


def _watched(items: Any) -> Any:
    """Take the items of a list or tuple from outside as what they are: captured arrays and guarded objects."""
    trace, items = current_trace(), forwarded(items)
    if trace is None or id(items) not in trace.outside or not isinstance(items, (list, tuple)):
        return items
    return [_from_outside(items, k, item) for k, item in enumerate(items)]


def _with_values(error: BaseException) -> BaseException:
    """Move traced values out of an error's message, so that it can be formatted at run time."""
    if len(error.args) > 1 and has_traced(error.args):
        raise NonConcreteError(
            "an exception with traced values among its arguments",
            location=here(),
            remedy="give the exception one message, an f-string",
        )
    if error.args and (isinstance(error.args[0], TracedText) or has_traced(error.args[0])):
        template, values = to_text(error.args[0])
        made = type(error)(template)
        made.dsl_values = values  # type: ignore[attr-defined]
        return made
    return error


def _values_of(items: Any) -> Any:
    return list(items.values()) if isinstance(items, dict) else items


def _refuse_key(key: Traced) -> None:
    raise NonConcreteError(
        "a traced value cannot be a dictionary key",
        location=here(),
        remedy="put the values into one array and index that, or make the argument static (`static_argnames`)",
    )


def _from_outside(holder: Any, key: Any, value: Any) -> Any:
    """Take a value that lives outside the trace: arrays become inputs, others are guarded."""
    trace = current_trace()
    if trace is None or isinstance(value, (Traced, types.ModuleType)):
        return value
    if isinstance(value, np.ndarray):
        return capture(holder, key, value)
    if isinstance(holder, types.ModuleType):
        return value
    guard = (id(holder), key)
    if guard not in trace.guards:
        trace.guards[guard] = (holder, key, value)
    trace.outside.setdefault(id(value), value)
    return value


def capture(holder: Any, key: Any, array: np.ndarray) -> Traced:
    """Return the handle of an array from outside, a hidden input of the function."""
    trace = current_trace()
    assert trace is not None
    if id(array) in trace.by_array:
        found: Traced = trace.by_array[id(array)]
        if (id(holder), key) not in trace.captures and found.storage.origin is not None:
            trace.shared.append((holder, key, found.storage.origin))
        return found
    from dsl.frontend.traced import supported_dtype

    type = TensorType(supported_dtype(array.dtype), array.shape)
    name = key if isinstance(key, str) and key.isidentifier() else "captured"
    value = trace.root.param(type, name)
    storage = Storage(value, trace.root, origin=len(trace.root.params) - 1)
    if not array.flags.c_contiguous:
        storage.strides = array.strides
    traced = Traced(storage)
    trace.captures[id(holder), key] = Capture(holder, key, array, storage, name)
    trace.by_array[id(array)] = traced
    trace.keep.append(array)
    return traced


def conditional(test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Evaluate one of two thunks, by a `cond` when the test is traced."""
    chosen = predicate(test)
    if isinstance(chosen, bool):
        return then() if chosen else otherwise()
    box: list[Any] = [Undefined("dsl__value")]
    held = _held_by(then, otherwise)
    put_held = put_in_place(lambda: [read() for read in held.values()], tuple(held))

    def put(values: list[Any]) -> None:
        box[0] = values[0]
        put_held(values[1:])

    def run(thunk: Callable[[], Any]) -> Callable[[], None]:
        def keep() -> None:
            box[0] = thunk()

        return keep

    if_(
        fresh(chosen, Kind.PYTHON),
        run(then),
        run(otherwise),
        lambda: [*box, *(read() for read in held.values())],
        put,
        ("dsl__value", *held),
        1,
    )
    if isinstance(box[0], Undefined):
        box[0].fail()
    return box[0]


def _held_by(*thunks: Any) -> dict[str, Callable[[], Any]]:
    """Return the variables whose containers parts of an expression may change, and how to read them."""
    return {name: read for thunk in thunks for name, read in getattr(thunk, _HELD, {}).items()}


def _holding(thunk: Any, *parts: Any) -> Any:
    """Return a function that stands for parts of an expression, with what they may change."""
    if held := _held_by(*parts):
        setattr(thunk, _HELD, held)
    return thunk


_HELD = "dsl_held"


def _logic(first: Any, rest: tuple[Callable[[], Any], ...], all_of: bool) -> Any:
    value = first
    for k, thunk in enumerate(rest):
        chosen = predicate(value)
        if isinstance(chosen, bool):
            if chosen is not all_of:
                return value
            value = thunk()
            continue
        return _traced_logic(value, fresh(chosen, Kind.PYTHON), thunk, rest[k + 1 :], all_of)
    return value


def _truth(value: Any) -> Any:
    chosen = predicate(value)
    return chosen if isinstance(chosen, bool) else fresh(chosen, Kind.PYTHON)


def _truth_of(thunk: Callable[[], Any]) -> Callable[[], Any]:
    return _holding(lambda: _truth(thunk()), thunk)  # type: ignore[no-any-return]


def _traced_logic(
    value: Any,
    chosen: Traced,
    thunk: Callable[[], Any],
    rest: tuple[Callable[[], Any], ...],
    all_of: bool,
) -> Any:
    """Short-circuit: the second operand is evaluated only where Python would."""

    def more() -> Any:
        return _logic(thunk(), rest, all_of)

    _holding(more, thunk, *rest)
    if all_of:
        return conditional(chosen, more, lambda: value)
    return conditional(chosen, lambda: value, more)


def _negated(value: Any) -> Any:
    chosen = predicate(value)
    if isinstance(chosen, bool):
        return not chosen
    return fresh(current_scope().emit("logical_not", chosen), Kind.PYTHON)


def _compare(name: str, left: Any, right: Any) -> Any:
    left, right = forwarded(left), forwarded(right)
    if isinstance(left, Traced) or isinstance(right, Traced):
        decided = _compare_sizes(name, left, right)
        if decided is not None:
            return decided
    if name in ("Eq", "NotEq") and type(left) is type(right) and isinstance(left, (tuple, list)):
        same = _equal_items(left, right) if has_traced([left, right]) else None
        if same is not None:
            return same if name == "Eq" else _negated(same)
    ordered = name in ("Lt", "LtE", "Gt", "GtE")
    alike = type(left) is type(right) and isinstance(left, (tuple, list))
    if ordered and alike and has_traced([left, right]):
        return _compare_in_order(name, left, right)
    if name in ("Is", "IsNot") and isinstance(left, TracedOptional) and right is None:
        return left.is_none() if name == "Is" else lift(left.present)
    if name in _METHODS_OF and (isinstance(left, TracedList) or isinstance(right, TracedList)):
        return sequences().compared(name, left, right)
    if name in _METHODS_OF:
        return _compare_objects(name, left, right)
    if name in _COMPARED:
        return _COMPARED[name](left, right)
    found = _contains(right, left)
    return _truth(found) if name == "In" else _negated(found)


_METHODS_OF = {
    "Eq": ("__eq__", "__eq__"), "NotEq": ("__ne__", "__ne__"), "Lt": ("__lt__", "__gt__"), "LtE": ("__le__", "__ge__"),
    "Gt": ("__gt__", "__lt__"), "GtE": ("__ge__", "__le__"),
}  # fmt: skip


def _compare_objects(name: str, left: Any, right: Any) -> Any:
    """Compare by the methods that the user wrote, if there are any, the way Python asks for them."""
    for item, other, method in zip((left, right), (right, left), _METHODS_OF[name], strict=True):
        own = _own_comparison(item, method)
        result = NotImplemented if own is None else call(own, item, unwrap(other))
        if result is not NotImplemented:
            return result
    if name == "NotEq" and _own(left, "__eq__") is not None:
        return _negated(_compare_objects("Eq", left, right))
    if type(left) is type(right) and _compares_fields(left, name):
        names = [f.name for f in dataclasses.fields(left) if f.compare]
        sides = [tuple(getattr(x, name) for name in names) for x in (left, right)]
        return _compare(name, *sides)
    return _COMPARED[name](left, right)


def _own_comparison(item: Any, method: str) -> types.FunctionType | None:
    """Return a comparison that the user wrote, or one that `functools.total_ordering` made of it."""
    found = getattr(type(item), method, None)
    if not isinstance(found, types.FunctionType) or found.__code__.co_filename == "<string>":
        return None
    return converted(found) if found.__module__ == "functools" else _own(item, method)


def _compares_fields(item: Any, name: str) -> bool:
    """Tell whether `dataclass` wrote the comparison of an object with traced fields."""
    params = getattr(type(item), "__dataclass_params__", None)
    wanted = params is not None and (params.eq if name in ("Eq", "NotEq") else params.order)
    return bool(wanted) and has_traced(list(vars(item).values()))


def _compare_sizes(name: str, left: Any, right: Any) -> bool | None:
    """Decide a comparison of sizes of which the smallest or the difference is known, else return None."""
    if name not in ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"):
        return None
    one, other = _size_of(left), _size_of(right)
    if one is None or other is None:
        return None
    above, below = lower_bound(one - other), lower_bound(other - one)
    if above is not None and (above > 0 or above == below == 0):
        return bool(_COMPARED[name](above, 0))
    if below is not None and below > 0:
        return bool(_COMPARED[name](-below, 0))
    if above == 0 and name in ("GtE", "Lt"):
        return name == "GtE"
    if below == 0 and name in ("LtE", "Gt"):
        return name == "LtE"
    return None


def _size_of(x: Any) -> DimLike | None:
    if isinstance(x, int) and not isinstance(x, bool):
        return x
    if not isinstance(x, Traced) or x.kind is not Kind.PYTHON or x.dtype != I64:
        return None
    return current_scope().known_dim(read(x))


def _compare_in_order(name: str, left: Any, right: Any) -> Any:
    """Compare two tuples or lists by their first items that differ."""
    if not left or not right:
        return _COMPARED[name](len(left), len(right))
    return conditional(
        _compare("NotEq", left[0], right[0]),
        lambda: _compare(name, left[0], right[0]),
        lambda: _compare_in_order(name, left[1:], right[1:]),
    )


def _equal_items(left: Any, right: Any) -> Any:
    """Compare two tuples or lists with traced numbers in them; None if there is anything else in them."""
    if len(left) != len(right):
        return False
    tests = [_compare("Eq", a, b) for a, b in zip(left, right, strict=True)]
    if any(isinstance(test, Traced) and test.ndim for test in tests):
        return None
    open_tests = [test for test in tests if isinstance(test, Traced)]
    if not all(test for test in tests if not isinstance(test, Traced)):
        return False
    if not open_tests:
        return True
    return functools.reduce(operator.and_, open_tests)


def _contains(items: Any, item: Any) -> Any:
    items = searched(items)
    if isinstance(items, BoundedDeque):
        items = list(items)
    own = _own(items, "__contains__")
    if own is not None:
        return _truth(call(own, items, item))
    if isinstance(items, range) and isinstance(item, Traced) and items:
        low, high = sorted((items[0], items[-1]))
        inside = _compare("GtE", item, low) & _compare("LtE", item, high)
        return inside & _compare("Eq", (item - low) % abs(items.step), 0)
    if isinstance(items, loops.Span) and isinstance(items.step, int) and is_number(item):
        return items.has(item)
    if isinstance(items, Traced):
        return fresh(read(_FUNCTIONS["any"](items == item)), Kind.PYTHON)
    if isinstance(items, TracedList):
        return items.has(item)
    if isinstance(item, Traced) and isinstance(items, (list, tuple, set, frozenset, range)):
        hits = [item == other for other in items if not isinstance(other, str)]
        return functools.reduce(operator.or_, hits) if hits else False
    if isinstance(items, (list, tuple)) and has_traced(items):
        return functools.reduce(
            operator.or_, [other == item for other in items], constant(False, kind=Kind.PYTHON)
        )
    return item in items


# -- calls -----------------------------------------------------------------------------------------------------------


def call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `fn` from traced code: NumPy's functions by their traced meaning, the user's functions converted."""
    if current_trace() is None:
        return fn(*args, **kwargs)
    if isinstance(fn, Undefined):
        fn.fail()
    fn, args = _forwarded_method(fn), tuple(map(forwarded, args))
    for argument in args:
        note_reading(argument)
        if is_missing(argument):
            argument.fail()
    try:
        special = _BUILTINS.get(fn)
    except TypeError:
        special = None
    if special is not None and args:
        own = _own(args[0], _ASKS.get(fn, ""))
        if own is not None:
            return call(own, *args, **kwargs)
    if special is not None:
        return _call_builtin(fn, special, args, kwargs)
    if isinstance(fn, np.ufunc):
        return _call_ufunc(fn, _as_arrays(args), kwargs)
    if isinstance(getattr(fn, "__self__", None), np.ufunc):
        return _call_ufunc_method(fn, _as_arrays(args), kwargs)
    if any(isinstance(a, TracedOptional) for a in args) and not isinstance(fn, types.FunctionType):
        args = tuple(map(unwrap, args))
    meaning = implementation(fn)
    if (
        args
        and isinstance(args[0], TracedList)
        and fn in _LIST_FUNCTIONS
        and len(args[0].columns) == 1
    ):
        return _LIST_FUNCTIONS[fn](args[0].array(), *args[1:], **kwargs)
    if meaning is not None:
        args = _as_arrays(args)
        kwargs = {name: _as_arrays(value) for name, value in kwargs.items()}
    if meaning is not None:
        if fn in CREATORS or has_traced(args) or has_traced(kwargs) or _has_array(args):
            return _call_library(meaning, fn in _READERS, args, kwargs)
        return _adopt(fn(*args, **kwargs))
    if _is_polynomial(getattr(fn, "__wrapped__", None)):
        fn = fn.__wrapped__
    if isinstance(fn, types.FunctionType):
        return _call_function(fn, args, kwargs)
    if isinstance(fn, types.MethodType) and not isinstance(fn.__self__, Traced):
        return call(fn.__func__, fn.__self__, *args, **kwargs)
    if isinstance(fn, type):
        return _construct(fn, args, kwargs)
    return _call_object(fn, args, kwargs)


def _call_builtin(fn: Any, special: Any, args: Any, kwargs: Any) -> Any:
    """Call a builtin by its traced meaning; iterators give it their items, and what stands for an iterator becomes one."""
    if special is not _isinstance:
        args = tuple(_watched(unwrap(a)) for a in args)
    if fn in _TAKES and len(set(map(id, args))) == len(args):
        args = tuple(rest_of(a, lost=_TAKES[fn]) for a in args)
    result = special(*args, **kwargs)
    return as_cursor(result) if fn in _ITERATORS else result


def _unpacked(value: Any) -> Any:
    """Return what a tuple target takes apart; of items whose number the data decides, a list."""
    value = forwarded(unwrap(value))
    left = value.rest() if isinstance(value, Cursor) else None
    return sequences().collected(rest_of(value), list) if sequences().is_open(left) else value


_ITERATORS = {
    builtins.iter, builtins.zip, builtins.enumerate, builtins.reversed, builtins.map, builtins.filter, np.ndindex,
    np.ndenumerate, np.nditer,
}  # fmt: skip
"""What makes iterators."""

# Builtins that go through items, and whether it is open how far, or when.
_TAKES: dict[Any, bool] = {
    builtins.list: False, builtins.sum: False, builtins.min: False, builtins.max: False, builtins.sorted: False,
    np.fromiter: False, math.prod: False, math.fsum: False, builtins.any: True, builtins.all: True, builtins.zip: True,
    builtins.enumerate: True, builtins.map: True, builtins.filter: True,
}  # fmt: skip

_READERS = {np.take, np.take_along_axis}
"""Functions that read where the user says."""


def _call_library(fn: Any, reads: bool, args: Any, kwargs: Any) -> Any:
    """Call a function of NumPy; what it reads on its own account is in bounds, so that nobody has to check what it does not use."""
    with noting(reads):
        return fn(*args, **kwargs)


_ASKS = {
    builtins.abs: "__abs__", builtins.len: "__len__", builtins.float: "__float__", builtins.int: "__int__",
    builtins.round: "__round__", builtins.bool: "__bool__", builtins.complex: "__complex__", builtins.reversed: "__reversed__",
}  # fmt: skip
"""Builtins, and the methods by which they ask an object of the user's."""


def _forwarded_method(fn: Any) -> Any:
    """Return the method of a traced list for that of the Python list which it was."""
    owner = getattr(fn, "__self__", None)
    held = forwarded(owner)
    return fn if held is owner else getattr(held, fn.__name__)


def _stacked(array: Traced, axis: int = 0) -> Traced:
    return _FUNCTIONS["moveaxis"](array, 0, axis)  # type: ignore[no-any-return]


def _joined(array: Traced, axis: int = 0) -> Traced:
    """`np.concatenate` of the items of a list."""
    moved = _FUNCTIONS["moveaxis"](array, 0, axis)
    shape = moved.shape
    merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return moved.reshape(merged)  # type: ignore[no-any-return]


_LIST_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.stack: _stacked,
    np.vstack: lambda a: a if a.ndim > 1 else a.reshape(-1, 1),
    np.concatenate: _joined,
}


def _has_array(args: Any) -> bool:
    return any(isinstance(a, np.ndarray) for a in args)


def _adopt(result: Any) -> Any:
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
        return {key: _adopt(item) for key, item in result.items()}
    return type(result)(map(_adopt, result))


def _call_ufunc(fn: np.ufunc, args: Any, kwargs: Any) -> Any:
    if _has_array(args) and not has_traced(args) and current_trace() is not None:
        args = tuple(lift(a) if isinstance(a, np.ndarray) else a for a in args)
    special = _scipy_ufunc(fn)
    if special is not None and (has_traced(args) or has_traced(kwargs)):
        return special(*args, **kwargs)
    return _adopt(fn(*args, **kwargs))


def _call_ufunc_method(fn: Any, args: Any, kwargs: Any) -> Any:
    """`np.maximum.reduce(...)` and its like, for which NumPy looks for arrays in its arguments and not in lists of them."""
    if fn.__name__ != "at":  # a tuple of indices is not an array
        args = tuple(_FUNCTIONS["array"](a) if _lists_traced(a) else a for a in args)
    return _adopt(fn(*args, **kwargs))


def _lists_traced(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and has_traced(item)


def _scipy_ufunc(fn: np.ufunc) -> Callable[..., Any] | None:
    name = {"gammaln": "lgamma", "psi": "digamma", "expit": "_expit"}.get(fn.__name__, fn.__name__)
    if name not in ("erf", "erfc", "lgamma", "digamma", "erfinv", "gamma", "_expit") or hasattr(
        np, fn.__name__
    ):
        return None

    def apply(x: Any) -> Any:
        from dsl.frontend.traced import emit

        traced = lift(x)
        operand = traced if traced.dtype.kind == "f" else traced.astype(float)
        return 1 / (1 + np.exp(-operand)) if name == "_expit" else emit(name, operand)

    return apply


def _call_function(fn: types.FunctionType, args: Any, kwargs: Any) -> Any:
    trace = current_trace()
    if trace is not None and trace.trial and _is_users(fn):
        with trace.calling(fn):
            return _run_function(fn, args, kwargs)
    return _run_function(fn, args, kwargs)


def _run_function(fn: types.FunctionType, args: Any, kwargs: Any) -> Any:
    if is_converted(fn) or not _is_traced_code(fn, (*args, *kwargs.values())):
        _refuse_random(fn)
        if (
            not is_converted(fn)
            and (getattr(fn, "__module__", "") or "").split(".")[0] == "numpy"
            and has_traced(args)
        ):
            try:
                return fn(*args, **kwargs)
            except NonConcreteError:
                raise unsupported(fn) from None
        result = fn(*args, **kwargs)
        return result if is_converted(fn) or _is_own(fn) else _adopt(result)
    inner = getattr(fn, "__wrapped__", None)
    if (
        inner is not None
        and isinstance(inner, types.FunctionType)
        and fn.__code__.co_filename == __file__
    ):
        fn = inner
    return converted(fn)(*args, **kwargs)


def _own(item: Any, name: str) -> types.FunctionType | None:
    """Return a method that the user wrote in Python for the class of an object."""
    found = getattr(type(item), name, None)
    return found if isinstance(found, types.FunctionType) and _is_users(found) else None


def _own_truth(test: Any) -> Callable[[], Any] | None:
    for name in ("__bool__", "__len__"):
        own = _own(test, name)
        if own is not None:
            return functools.partial(call, own, test)
        if hasattr(type(test), name):
            return None
    return None


TRUTH[0] = _own_truth


def _own_text(value: Any, by_repr: bool) -> Callable[[], Any] | None:
    if current_trace() is None or isinstance(value, (Traced, TracedText)):
        return None
    for name in ("__repr__",) if by_repr else ("__str__", "__repr__"):
        found = getattr(type(value), name)
        if name == "__repr__" and _has_traced_fields(value) and _is_generated(found):
            return lambda: _fields_text(value)
        own = _own(value, name)
        if own is not None and not _is_generated(own):
            return functools.partial(call, own, value)
        if found is not object.__str__:
            return None
    return None


def _is_generated(fn: Any) -> bool:
    """Tell whether `dataclass` wrote a method; of `__repr__`, what is seen is a wrapper against recursion."""
    code = getattr(getattr(fn, "__wrapped__", fn), "__code__", None)
    return code is not None and code.co_filename == "<string>"


def _fields_text(value: Any) -> Any:
    fields = [f.name for f in dataclasses.fields(value) if f.repr]
    parts = [p for n in fields for p in (", ", f"{n}=", (getattr(value, n), "", ord("r")))]
    return TracedText.join((f"{type(value).__qualname__}(", *parts[1:], ")"))


TEXTS[0] = _own_text


def _is_own(fn: types.FunctionType) -> bool:
    return (getattr(fn, "__module__", None) or "").split(".")[0] == "dsl"


def _is_users(fn: Any) -> bool:
    root = (getattr(fn, "__module__", None) or "").split(".")[0]
    return root not in _NOT_CONVERTED


def _is_polynomial(fn: Any) -> bool:
    """Tell whether `fn` is one of NumPy's polynomials: plain Python over arrays, which traces as a user's functions do."""
    module = getattr(fn, "__module__", None) or ""
    return module.startswith(("numpy.polynomial.", "numpy.lib._polynomial_impl"))


def _refuse_random(fn: Any) -> None:
    module = getattr(fn, "__module__", None) or ""
    if module.startswith(("numpy.random", "random")) and current_trace() is not None:
        name = getattr(fn, "__name__", "this function")
        raise UnsupportedError(
            f"{module}.{name} inside a compiled function would give the same numbers at every call",
            location=here(),
            remedy="use `dsl.random` with an explicit key, or draw the numbers outside and pass them in",
        )


def _construct(cls: type, args: Any, kwargs: Any) -> Any:
    """Make an instance; a Python `__init__` of the user's is converted."""
    if cls is np.ndarray and current_trace() is not None:
        return _FUNCTIONS["empty"](
            *args[:2], **{k: v for k, v in kwargs.items() if k in ("shape", "dtype")}
        )
    if cls is collections.deque and current_trace() is not None and len(args) < 2 and not kwargs:
        return _as_list(args)
    if cls is collections.deque and current_trace() is not None:
        return _bounded(*args, **kwargs)
    if cls is np.errstate and "raise" in kwargs.values():
        raise UnsupportedError(
            "np.errstate(...='raise') has no effect on compiled code",
            location=here(),
            remedy="test for the bad values (`if np.any(b == 0): raise ...`)",
        )
    if issubclass(cls, np.generic) and has_traced(args):
        return lift(args[0]).astype(cls) if args else cls()
    if current_trace() is not None and _is_plain_dataclass(cls):
        return _construct_dataclass(cls, args, kwargs)
    init: Any = getattr(cls, "__init__")  # noqa: B009
    new: Any = cls.__new__
    is_open = is_plain_type(cls) and new is object.__new__ and not _is_dataclass(cls)
    if is_open and init is object.__init__ and _is_users(cls) and is_plain_class(cls):
        made = cls(*args, **kwargs)
        note_made(made)
        return made
    if not is_open or not isinstance(init, types.FunctionType) or not _is_traced_code(init, args):
        return cls(*args, **kwargs)
    try:
        made = converted(init)
    except SourceError:
        return cls(*args, **kwargs)
    obj: Any = object.__new__(cls)
    if is_plain_class(cls):
        note_made(obj)
    made(obj, *args, **kwargs)
    return obj


def _is_dataclass(cls: type) -> bool:
    return hasattr(cls, "__dataclass_fields__")


def _is_traced_code(fn: types.FunctionType, args: Any) -> bool:
    return _is_users(fn) or (_is_polynomial(fn) and has_traced(args))


def _bounded(iterable: Any = (), maxlen: Any = None) -> Any:
    """`deque(iterable, maxlen)`."""
    if maxlen is None:
        return _as_list((iterable,))
    return bounded(_list(_watched(unwrap(rest_of(iterable)))), operator.index(maxlen))


def _as_list(args: Any) -> Any:
    """Make the list that stands for a `deque` in traced code; a traced list stays one."""
    trace = current_trace()
    assert trace is not None
    made = _list(*(_watched(unwrap(a)) for a in args))
    trace.deques[id(made)] = made
    return made


_OF_DEQUES: dict[str, Callable[..., Any]] = {
    "popleft": lambda items: items.pop(0),
    "appendleft": lambda items, item: items.insert(0, item),
    "extendleft": lambda items, more: [items.insert(0, item) for item in more] and None,
    "rotate": lambda items, steps=1: _rotate(items, steps),
}


def _rotate(items: Any, steps: Any) -> None:
    if isinstance(items, TracedList):
        items.columns = [_FUNCTIONS["roll"](column, steps, axis=0) for column in items.columns]
    elif items:
        at = -operator.index(steps) % len(items)
        items[:] = items[at:] + items[:at]


def _sort_list(items: list[Any], **how: Any) -> None:
    items[:] = _sorted(items, **how)


def _as_traced_list(items: list[Any]) -> TracedList:
    """Return a list of numbers, or of tuples of them, among which a number is looked for when the program runs."""
    made = sequences().alike(items)
    if made is None:
        raise NonConcreteError(
            "looking for an item in a list of unlike items, of which some are known only when the compiled function runs",
            location=here(),
            remedy="loop over the list and compare",
        )
    return made  # type: ignore[no-any-return]


def _at_place(name: str) -> Callable[..., Any]:
    """A method of lists that takes a place, which the data may decide: the list becomes a traced one."""

    def change(items: list[Any], *args: Any) -> Any:
        traced = bool(args) and isinstance(args[0], Traced)
        numbers = _chosen_from(items, args[0]) if traced else None
        if numbers is None:
            return getattr(items, name)(*args)
        items[:] = [Forward(numbers)]
        return getattr(numbers, name)(*args)

    return change


# Methods of Python's lists that compare items, which may be traced, or take a place.
_OF_LISTS: dict[str, Callable[..., Any]] = {
    "sort": _sort_list,
    "count": lambda items, item: _as_traced_list(items).count(item),
    "index": lambda items, item: _as_traced_list(items).index(item),
    "insert": _at_place("insert"),
    "pop": _at_place("pop"),
}


def _is_plain_dataclass(cls: Any) -> bool:
    """Tell whether a class has the `__init__` that `dataclass` wrote, and keeps its fields in a dict."""
    params = cls.__dict__.get("__dataclass_params__")
    return params is not None and params.init and cls.__dictoffset__ != 0 and type(cls) is type


def _construct_dataclass(cls: Any, args: Any, kwargs: Any) -> Any:
    """Make a dataclass; its default factories and its `__post_init__` are called as traced code calls functions."""
    given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
    made = {
        f.name: call(f.default_factory)
        for f in dataclasses.fields(cls)
        if f.init and f.default_factory is not dataclasses.MISSING and f.name not in given
    }
    obj = object.__new__(cls)
    finish = getattr(cls, "__post_init__", None)
    if finish is not None:
        # `__init__` looks the method up on the instance, where this one hides that of the class.
        vars(obj)["__post_init__"] = lambda *rest: call(finish, obj, *rest)
    cls.__init__(obj, *args, **kwargs, **made)
    vars(obj).pop("__post_init__", None)
    return obj


def _call_object(fn: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(fn, functools.partial):
        return call(fn.func, *fn.args, *args, **{**fn.keywords, **kwargs})
    inner = getattr(type(fn), "dsl_inline", None)
    if inner is not None:
        return inner(fn, args, kwargs)
    method = getattr(type(fn), "__call__", None)  # noqa: B004
    if isinstance(method, types.FunctionType) and (_is_users(method) or _is_polynomial(method)):
        return call(method, fn, *args, **kwargs)
    if isinstance(fn, np.vectorize) and (has_traced(args) or has_traced(kwargs)):
        from dsl.frontend import folds

        return folds.vectorized(fn, args, kwargs)
    owner = getattr(fn, "__self__", None)
    if type(owner) is list and fn.__name__ == "extend":
        args = tuple(map(rest_of, args))
    if type(owner) is list and fn.__name__ == "extend" and sequences().is_open(*args):
        return sequences().extended(owner, *args)
    if type(owner) is list and fn.__name__ in _OF_LISTS and has_traced([owner, args]):
        return _OF_LISTS[fn.__name__](owner, *args, **kwargs)
    if isinstance(owner, str) and fn.__name__ == "join" and len(args) == 1:
        args = (list(args[0]),)
    if isinstance(owner, str) and formatting.has_text_values((*args, *kwargs.values())):
        method = formatting.STRING_METHODS.get(fn.__name__)
        return formatting.refuse() if method is None else method(owner, *args, **kwargs)
    if type(owner).__module__.startswith("numpy.random") or (
        getattr(fn, "__module__", None) or ""
    ).startswith("numpy.random"):
        _refuse_random(
            types.SimpleNamespace(__module__="numpy.random", __name__=getattr(fn, "__name__", ""))
        )
    if isinstance(owner, Traced):
        reads = fn.__name__ in ("take", "item", "__getitem__")
        return _adopt(_call_library(fn, reads, args, kwargs))
    return _adopt(fn(*args, **kwargs))


# -- Python's builtins on traced values --------------------------------------------------------------------------------


def _len(x: Any) -> Any:
    if isinstance(x, Traced):
        if x.ndim == 0:
            raise TypeError("len() of unsized object")
        dim = x.type.shape[0]
        return dim if isinstance(dim, int) else size_number(dim)
    if isinstance(x, TracedList):
        return x.length()
    if isinstance(x, loops.Span):
        return x.trips()
    return len(x)


def _to_number(kind: type, dtype: np.dtype) -> Callable[..., Any]:
    def convert_(*args: Any, **kwargs: Any) -> Any:
        if not (args and isinstance(args[0], Traced)):
            return kind(*args, **kwargs)
        x = args[0]
        known = concrete(x)
        if known is not None:
            return kind(known)
        if any(d != 1 for d in x.type.shape):
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        if x.kind is Kind.PYTHON and x.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"{kind.__name__}() argument must be a real number, not 'complex'")
        return fresh(cast(read(x.reshape(())), dtype), Kind.PYTHON)

    return convert_


def _complex(*args: Any, **kwargs: Any) -> Any:
    if len(args) != 2 or not has_traced(args):
        return _to_number(complex, np.dtype(complex))(*args, **kwargs)
    real, imag = (_to_number(float, np.dtype(float))(x) for x in args)
    return fresh(
        current_scope().emit(
            "complex",
            *(read(lift(float(x) if not isinstance(x, Traced) else x)) for x in (real, imag)),
        ),
        Kind.PYTHON,
    )


def _bool(*args: Any) -> Any:
    if not (args and isinstance(args[0], Traced)):
        return bool(*args)
    chosen = predicate(args[0])
    return chosen if isinstance(chosen, bool) else fresh(chosen, Kind.PYTHON)


def _less(a: Any, b: Any) -> Any:
    return _compare("Lt", a, b)


def _more(a: Any, b: Any) -> Any:
    return _compare("Gt", a, b)


def _as_array(items: Any) -> Any:
    """Return a traced list of numbers as an array."""
    if isinstance(items, TracedList) and len(items.columns) == 1 and items.columns[0].ndim == 1:
        return items.array()
    return items


def _as_arrays(item: Any) -> Any:
    """Return traced lists and ranges, also in tuples and lists, as the arrays that NumPy makes of them."""
    item = forwarded(item)
    if isinstance(item, BoundedDeque):
        item = list(item)
    if isinstance(item, TracedList):
        return item.array()
    if isinstance(item, loops.Span):
        return item.dsl_traced()
    if type(item) in (tuple, list) and any(map(_holds_list, item)):
        return type(item)(map(_as_arrays, item))
    return item


def _holds_list(item: Any) -> bool:
    item = forwarded(item)
    return isinstance(item, (TracedList, loops.Span, BoundedDeque)) or (
        type(item) in (tuple, list) and any(map(_holds_list, item))
    )


def _extreme(
    plain: Callable[..., Any], pick: Callable[[Any, Any], Any], name: str
) -> Callable[..., Any]:
    def choose(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        if len(args) == 1 and _is_ordered_by_items(args[0], key):
            first = functools.partial(sequences().first, args[0], key, name == "max")
            if "default" not in kwargs:
                return first()
            return conditional(_len(args[0]) == 0, lambda: kwargs["default"], first)
        kind = _kind_of_items(args[0]) if args else Kind.SCALAR
        args = tuple(map(_as_array, args))
        if "default" in kwargs and isinstance(args[0], Traced) and key is None:
            default = kwargs.pop("default")
            return conditional(
                _len(args[0]) == 0, lambda: default, lambda: _extreme_element(name, args[0], kind)
            )
        items = (
            list(args[0])
            if len(args) == 1 and (key is not None or not isinstance(args[0], Traced))
            else args
        )
        if key is not None:
            return _extreme_by_key(items, key, pick, plain)
        if len(args) == 1 and isinstance(args[0], Traced):
            return _extreme_element(name, args[0], kind)
        if _are_decided(list(items)):
            return plain(*args, **kwargs)
        if all(map(_is_python_int, items)):
            values = (read(lift(item)) for item in items)
            best = functools.reduce(lambda a, b: current_scope().emit(f"{name}imum", a, b), values)
            return fresh(best, Kind.PYTHON)
        # Python keeps the first of equal items: max takes a later item only if it is larger.
        return functools.reduce(lambda a, b: conditional(pick(b, a), lambda: b, lambda: a), items)

    return choose


def _extreme_element(name: str, items: Traced, kind: Kind) -> Any:
    """`max(items)` of an array: Python's comparisons pass over a NaN, unless it comes first."""
    if items.ndim != 1:
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
        )
    length, empty = _len(items), f"{name}() arg is an empty sequence"
    if isinstance(length, int) and length == 0:
        raise ValueError(empty)
    if not isinstance(length, int):
        error = {"message": empty, "error": "ValueError"}
        current_scope().node("assert", (read(length > 0),), error)
    found = _FUNCTIONS[name](items)
    if items.dtype.kind == "f":
        first, rest = items[0], _FUNCTIONS[f"nan{name}"](items)
        found = np.where(np.isnan(first), first, rest)
    return fresh(read(lift(found)), kind)


def _kind_of_items(items: Any) -> Kind:
    """Return the kind of the numbers in a list, or of the elements of an array."""
    return items.layout[1][0] if isinstance(items, TracedList) else Kind.SCALAR


def _is_ordered_by_items(items: Any, key: Any) -> bool:
    """Tell whether the extreme of a traced list is found by its items, not by those of an array."""
    return isinstance(items, TracedList) and (key is not None or _as_array(items) is items)


def _is_python_int(x: Any) -> bool:
    if isinstance(x, Traced):
        return x.kind is Kind.PYTHON and x.dtype == I64
    return type(x) is int and -(2**63) <= x < 2**63


def _extreme_by_key(
    items: Any, key: Any, pick: Callable[[Any, Any], Any], plain: Callable[..., Any]
) -> Any:
    """`max(items, key=f)` where the keys may be traced."""
    pairs = [(call(key, item), item) for item in items]
    if not pairs or not has_traced([k for k, _ in pairs]):
        return (
            plain(range(len(pairs)), key=lambda j: pairs[j][0])
            if not pairs
            else pairs[plain(range(len(pairs)), key=lambda j: pairs[j][0])][1]
        )
    best = functools.reduce(lambda a, b: conditional(pick(b[0], a[0]), lambda: b, lambda: a), pairs)
    return best[1]


def _abs(x: Any) -> Any:
    return abs(x)


def _sum(items: Any, start: Any = 0) -> Any:
    if isinstance(items, loops.Span):
        total = fresh(read(_FUNCTIONS["sum"](items.dsl_traced())), Kind.PYTHON)
        return _binary("Add", start, total)
    kind, items = _kind_of_items(items), _as_array(items)
    if isinstance(items, Traced) and items.ndim == 1:
        total = _FUNCTIONS["sum"](items, dtype=_binary("Add", start, items[:0]).dtype)
        total = fresh(read(total), kind)
        return total if isinstance(start, int) and start == 0 else start + total
    return functools.reduce(functools.partial(_binary, "Add"), items, start)


def _any(items: Any) -> Any:
    items = _as_array(items)
    if isinstance(items, Traced) and items.ndim == 1:
        return _bool(_FUNCTIONS["any"](items))
    items = list(items)
    return _logic(_truth(items[0]), _thunks(items[1:]), False) if has_traced(items) else any(items)


def _all(items: Any) -> Any:
    items = _as_array(items)
    if isinstance(items, Traced) and items.ndim == 1:
        return _bool(_FUNCTIONS["all"](items))
    items = list(items)
    return _logic(_truth(items[0]), _thunks(items[1:]), True) if has_traced(items) else all(items)


def _thunks(items: list[Any]) -> tuple[Callable[[], Any], ...]:
    return tuple(functools.partial(_truth, item) for item in items)


def _pow(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return base**exponent
    if not has_traced((base, exponent, modulus)):
        return pow(base, exponent, modulus)
    raise UnsupportedError(
        "pow() with three traced arguments", location=here(), remedy="write the loop of squarings"
    )


def _map(fn: Any, *items: Any) -> Any:
    rows = loops.zip_(*items)
    if sequences().is_open(rows):
        return sequences().collected(rows, lambda each: [call(fn, *row) for row in each])
    return [call(fn, *row) for row in zip(*items, strict=False)]


def _next(items: Any, *default: Any) -> Any:
    return items.advance(*default) if isinstance(items, Cursor) else next(items, *default)


def _iter(items: Any, *sentinel: Any) -> Any:
    own = _own(items, "__iter__")
    if own is not None and not sentinel:
        return call(own, items)
    if sentinel or not isinstance(items, (list, tuple, range, Traced, TracedList, loops.Counted)):
        return iter(items, *sentinel)
    return items


def _filter(fn: Any, items: Any) -> Any:
    items = sequences().again(items)
    if not sequences().are_decided(items, [fn], None):
        return sequences().filtered(items, fn)
    return [x for x in items if (call(fn, x) if fn is not None else x)]


def _sorted(items: Any, *, key: Any = None, reverse: bool = False) -> Any:
    if isinstance(items, Traced) and key is None:
        ordered = _FUNCTIONS["sort"](items)
        return list(ordered[::-1] if reverse else ordered)
    if isinstance(items, TracedList):
        return sequences().ordered(items, key, reverse)
    items = list(items)
    pairs = [(item if key is None else call(key, item), item) for item in items]
    if _are_decided([k for k, _ in pairs]):
        order = sorted(range(len(pairs)), key=lambda j: pairs[j][0], reverse=reverse)
        return [pairs[j][1] for j in order]
    return [item for _, item in _sorted_pairs(pairs, reverse)]


def _are_decided(keys: list[Any]) -> bool:
    """Tell whether Python can compare all keys now."""
    return not any(has_traced(k) or OBJECTS[0].is_made(k) or _has_traced_fields(k) for k in keys)


def _has_traced_fields(item: Any) -> bool:
    return hasattr(type(item), "__dataclass_fields__") and has_traced(list(vars(item).values()))


def _sorted_pairs(pairs: list[Any], reverse: bool) -> list[Any]:
    """Sort pairs of a traced key and an item: neighbours change places, so that equal ones stay in order."""
    if len(pairs) > _MOST_SORTED:
        raise NonConcreteError(
            f"sorting {len(pairs)} Python objects by keys that are known only when the compiled function runs",
            location=here(),
            remedy="put the items into one array and use `np.sort` or `np.argsort`",
        )
    pairs = list(pairs)
    for end in range(len(pairs) - 1, 0, -1):
        for j in range(end):
            pairs[j], pairs[j + 1] = _in_order(pairs[j], pairs[j + 1], reverse)
    return pairs


_MOST_SORTED = 16


def _in_order(a: Any, b: Any, reverse: bool) -> Any:
    wrong = _compare("Lt", *((a[0], b[0]) if reverse else (b[0], a[0])))
    return conditional(wrong, lambda: (b, a), lambda: (a, b))


def _format(x: Any, spec: str = "") -> Any:
    return TracedText.join(((x, spec, -1),))


def _list(*args: Any) -> Any:
    if args and isinstance(args[0], TracedList):
        return args[0].copy()
    return (
        sequences().collected(*args, list) if args and sequences().is_open(*args) else list(*args)
    )


def _isinstance(x: Any, kinds: Any) -> bool:
    if not isinstance(x, Traced):
        return isinstance(x, kinds)
    if x.kind is Kind.PYTHON:
        sample: Any = {"b": False, "i": 0, "f": 0.0, "c": 0j}[x.dtype.kind]
    else:
        sample = np.empty(1, x.dtype)[0] if x.kind is Kind.SCALAR else np.empty(0, x.dtype)
    return isinstance(sample, kinds) or isinstance(x, kinds)


def _type(x: Any, *rest: Any) -> Any:
    if rest or not isinstance(x, Traced):
        return type(x, *rest)
    if x.kind is Kind.PYTHON:
        return {"b": bool, "i": int, "f": float, "c": complex}[x.dtype.kind]
    return x.dtype.type if x.kind is Kind.SCALAR else np.ndarray


def _round(x: Any, digits: Any = None) -> Any:
    return round(x) if digits is None else round(x, digits)


def _str(*args: Any, **kwargs: Any) -> Any:
    return text_of(args[0]) if len(args) == 1 and not kwargs else str(*args, **kwargs)


def _poly1d(c_or_r: Any, r: bool = False, variable: str | None = None) -> Any:
    """Make a polynomial; traced coefficients keep their leading zeros, since how many there are is not known."""
    if not has_traced(c_or_r) or isinstance(c_or_r, np.poly1d):
        return np.poly1d(c_or_r, r, variable)
    made: Any = object.__new__(np.poly1d)
    vars(made)["coeffs"] = np.atleast_1d(call(np.poly, c_or_r) if r else lift(c_or_r))
    made._variable = "x" if variable is None else variable
    return made


def _warn(*args: Any, **kwargs: Any) -> None:
    """Warn while tracing, unless the data decides: whether a branch is taken is not known yet."""
    if current_scope().parent is None:
        warnings.warn(*args, **kwargs)


def _divmod(a: Any, b: Any) -> Any:
    return (a // b, a % b) if has_traced((a, b)) else divmod(a, b)


_BUILTINS: dict[Any, Callable[..., Any]] = {
    builtins.len: _len, builtins.range: loops.range_, builtins.enumerate: loops.enumerate_, builtins.zip: loops.zip_,
    builtins.reversed: loops.reversed_, builtins.int: _to_number(int, I64), builtins.float: _to_number(float, np.dtype(float)),
    builtins.complex: lambda *args, **kwargs: _complex(*args, **kwargs), builtins.bool: _bool, builtins.print: print_,
    builtins.min: _extreme(min, _less, "min"), builtins.max: _extreme(max, _more, "max"), builtins.sum: _sum,
    builtins.abs: _abs, builtins.any: _any, builtins.all: _all, builtins.pow: _pow, builtins.map: _map, builtins.filter: _filter,
    builtins.next: _next, builtins.iter: _iter, itertools.count: loops.count_, itertools.cycle: loops.cycle_,
    builtins.sorted: _sorted, builtins.isinstance: _isinstance, builtins.type: _type, builtins.round: _round,
    builtins.list: _list, builtins.format: _format, warnings.warn: _warn,
    np.poly1d: _poly1d,
    builtins.divmod: _divmod, builtins.str: _str, builtins.repr: lambda x: text_of(x, by_repr=True),
    np.ndindex: lambda *s: loops.NdIndex(tuple(s[0]) if len(s) == 1 and isinstance(s[0], tuple) else s),
    np.ndenumerate: lambda x: _ndenumerate(x),
}  # fmt: skip


def _ndenumerate(x: Any) -> Any:
    traced = lift(x)
    indices = loops.NdIndex(traced.shape)
    return loops.Zipped([indices, loops.Rows(traced.reshape(-1))])


_DOMAINS: dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda x: ~(x < 0), "log": lambda x: ~(x <= 0), "log2": lambda x: ~(x <= 0), "log10": lambda x: ~(x <= 0),
    "log1p": lambda x: ~(x <= -1), "asin": lambda x: ~(np.absolute(x) > 1), "acos": lambda x: ~(np.absolute(x) > 1),
    "acosh": lambda x: ~(x < 1), "atanh": lambda x: ~(np.absolute(x) >= 1), "isqrt": lambda x: x >= 0,
}  # fmt: skip


def _check_domain(name: str, x: Any) -> None:
    """Where `math` raises and NumPy gives NaN, the program raises."""
    if name in _DOMAINS and isinstance(x, Traced):
        inside = read(_DOMAINS[name](fresh(read(x), Kind.SCALAR)))
        current_scope().node(
            "assert", (inside,), {"message": "math domain error", "error": "ValueError"}
        )


def _as_float(x: Any) -> Any:
    """Return an operand of a function of `math`, which computes with doubles, whatever the dtype."""
    return _BUILTINS[float](x)


def _as_index(x: Any) -> Any:
    """Return an operand that `math` takes as a Python integer."""
    if isinstance(x, Traced) and x.dtype.kind not in "biu":
        raise TypeError(f"'{_type(x).__name__}' object cannot be interpreted as an integer")
    return _BUILTINS[int](x)


def _as_number(x: Any) -> Any:
    """Return an operand that `math` rounds: a Python integer or float."""
    whole = isinstance(x, Traced) and x.dtype.kind in "biu"
    return _as_index(x) if whole else _as_float(x)


def _math(name: str, ufunc: Callable[..., Any], *takes: Callable[[Any], Any]) -> None:
    """Let a function of `math` be traced as one of what `takes` makes of each operand, the last of all that follow."""
    plain = getattr(math, name)

    def apply(*args: Any) -> Any:
        if not has_traced(args):
            return plain(*args)
        kinds = itertools.chain(takes, itertools.repeat(takes[-1] if takes else _as_float))
        numbers = [as_kind(x) for as_kind, x in zip(kinds, args)]
        _check_domain(name, numbers[0])
        return fresh(read(lift(ufunc(*numbers))), Kind.PYTHON)

    _BUILTINS[plain] = apply


for _name in [
    "sqrt",
    "exp",
    "expm1",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "fabs",
    "copysign",
    "degrees",
    "radians",
    "isnan",
    "isinf",
    "isfinite",
    "cbrt",
    "exp2",
]:
    if hasattr(math, _name):
        _math(_name, getattr(np, _name))
for _name, _target in {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power, "fmod": np.fmod,
}.items():  # fmt: skip
    _math(_name, _target)
for _name, _target in {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}.items():
    _math(_name, lambda x, f=_target: lift(f(x)).astype(np.int64), _as_number)
_math("log", lambda x, base=None: np.log(x) if base is None else np.log(x) / np.log(base))
_math("erf", lambda x: _scipy_ufunc(types.SimpleNamespace(__name__="erf"))(x))  # type: ignore[arg-type,misc]
_math("erfc", lambda x: _scipy_ufunc(types.SimpleNamespace(__name__="erfc"))(x))  # type: ignore[arg-type,misc]
_math("lgamma", lambda x: _scipy_ufunc(types.SimpleNamespace(__name__="lgamma"))(x))  # type: ignore[arg-type,misc]
_math("gcd", lambda *numbers: functools.reduce(np.gcd, numbers), _as_index)
_math("lcm", lambda *numbers: functools.reduce(np.lcm, numbers), _as_index)
_math("hypot", lambda *sides: functools.reduce(np.hypot, sides, 0.0))
_math("ldexp", np.ldexp, _as_float, _as_index)
_math("nextafter", np.nextafter)


def _isqrt(n: Any) -> Any:
    """The root of an integer: that of the nearest double may be one too large or too small."""
    root = np.floor(np.sqrt(n)).astype(np.int64)
    root = root - (root > n // np.maximum(root, 1))
    return root + (root + 1 <= n // (root + 1))


def _isclose(a: Any, b: Any, *, rel_tol: float = 1e-09, abs_tol: float = 0.0) -> Any:
    if not has_traced((a, b, rel_tol, abs_tol)):
        return math.isclose(a, b, rel_tol=rel_tol, abs_tol=abs_tol)
    a, b = lift(_as_float(a)), lift(_as_float(b))
    largest = np.maximum(np.absolute(a), np.absolute(b))
    near = np.absolute(a - b) <= np.maximum(rel_tol * largest, abs_tol)
    return fresh(read((a == b) | (near & np.isfinite(largest))), Kind.PYTHON)


def _dist(p: Any, q: Any) -> Any:
    if not has_traced((p, q)):
        return math.dist(p, q)
    apart = _FUNCTIONS["asarray"](p, float) - _FUNCTIONS["asarray"](q, float)
    return fresh(read(np.sqrt(_FUNCTIONS["sum"](apart * apart))), Kind.PYTHON)


def _prod(items: Any, *, start: Any = 1) -> Any:
    return functools.reduce(functools.partial(_binary, "Mult"), items, start)


def _fsum(items: Any) -> Any:
    items = _as_array(items)
    if not (isinstance(items, Traced) or has_traced(items := list(items))):
        return math.fsum(items)
    return fresh(cast(read(lift(_sum(items, 0.0))), np.dtype(float)), Kind.PYTHON)


def _cmath(name: str, ufunc: Callable[..., Any]) -> None:
    plain = getattr(cmath, name)

    def apply(*args: Any) -> Any:
        if not has_traced(args):
            return plain(*args)
        result = ufunc(*(lift(x).astype(np.complex128) for x in args))
        return fresh(read(lift(result)), Kind.PYTHON)

    _BUILTINS[plain] = apply


for _name in ("sqrt", "exp", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh"):
    _cmath(_name, getattr(np, _name))
for _name in ("isnan", "isinf", "isfinite"):
    _cmath(_name, getattr(np, _name))
_cmath("log", lambda x, base=None: np.log(x) if base is None else np.log(x) / np.log(base))
_cmath("phase", lambda x: _FUNCTIONS["angle"](x))


def _fromiter(items: Any, dtype: Any, count: int = -1, **kwargs: Any) -> Any:
    if isinstance(items, TracedList) and count < 0:
        return items.array().astype(dtype)
    taken = list(items if count < 0 else itertools.islice(items, count))
    return _FUNCTIONS["array"](taken, dtype=dtype)


def _nditer(x: Any, *args: Any, **kwargs: Any) -> Any:
    """`np.nditer(x)`: the elements one after the other, of one array that is only read."""
    if not isinstance(x, Traced) or args or kwargs:
        return np.nditer(x, *args, **kwargs)
    return loops.Rows(x.reshape(-1))


_BUILTINS.update({np.fromiter: _fromiter, np.nditer: _nditer, **SEARCHES})
_BUILTINS.update({math.isclose: _isclose, math.dist: _dist, math.prod: _prod, math.fsum: _fsum})
_math("isqrt", _isqrt, _as_index)
_ = (BOOL, Storage, indexing, ufuncs)
