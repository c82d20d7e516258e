"""What converted code calls: one `Runtime` per converted function, under the name `dsl__`.

Every call, subscript, attribute and global that converted code uses comes here and is decided in one place: on traced values
it becomes dataflow, on anything else plain Python runs. Other modules say how, by subject. With this one, all those are imported
that fill the tables of what traced code calls.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

from dsl.errors import ConversionError
from dsl.frontend import (  # noqa: F401 - some only fill tables
    attributes,
    builtin_functions,
    comparisons,
    indexing,
    list_methods,
    looping,
    math_functions,
    operators,
    own_methods,
    raising,
    running,
    searches,
    sequences,
    sorting,
    subscripts,
    targets,
    ufuncs,
)
from dsl.frontend.branches import RESULT, if_, is_missing
from dsl.frontend.calls import RUNTIME, call
from dsl.frontend.captures import from_outside
from dsl.frontend.choices import note_reading
from dsl.frontend.conditions import HELD, conditional, logic, negated, truth, truth_of
from dsl.frontend.iterators import Cursor, as_cursor, generated, is_plain, rest_of
from dsl.frontend.own_items import iterable
from dsl.frontend.regions import handling, trying
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.state import Undefined, held_by
from dsl.frontend.text import TracedText
from dsl.frontend.traced import Traced, fresh, read
from dsl.frontend.trees import forwarded

__all__ = ["Runtime"]


class Runtime:
    """The helpers that a converted function calls."""

    attr = staticmethod(attributes.read_attribute)
    attr_to_change = staticmethod(attributes.attribute_to_change)
    method = staticmethod(attributes.find_method)
    setattr = staticmethod(attributes.set_attribute)
    delattr = staticmethod(attributes.delete_attribute)
    aug_setattr = staticmethod(attributes.augment_attribute)

    getitem = staticmethod(subscripts.get_item)
    setitem = staticmethod(subscripts.set_item)
    aug_setitem = staticmethod(subscripts.augment_item)
    delitem = staticmethod(subscripts.delete_item)
    slice = staticmethod(slice)
    unpack = staticmethod(targets.unpack)
    unpack_around = staticmethod(targets.unpack_around)

    aug = staticmethod(operators.augmented)
    binary = staticmethod(operators.binary)
    unary = staticmethod(operators.unary)
    compare = staticmethod(comparisons.compare_all)
    compare_two = staticmethod(comparisons.compare_two)
    not_ = staticmethod(negated)
    if_exp = staticmethod(conditional)

    entered = staticmethod(own_methods.entered)
    generator = staticmethod(generated)
    iterate = staticmethod(iterable)
    test = staticmethod(bool)

    if_ = staticmethod(if_)
    short_if = staticmethod(functools.partial(if_, lenient=True))
    while_ = staticmethod(looping.while_)
    handling = staticmethod(handling)
    trying = staticmethod(trying)
    assert_ = staticmethod(raising.assert_true)
    raise_ = staticmethod(raising.raise_error)

    def __init__(self, fn: types.FunctionType) -> None:
        self.globals = fn.__globals__
        self.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        self.name, self.code = fn.__name__, fn.__code__

    # -- variables ------------------------------------------------------------------------------------------------

    def load(self, name: str, value: Any) -> Any:
        """Read a global or a variable of an enclosing function."""
        holder: Any = self.cells.get(name)
        if holder is None:
            if name not in self.globals:
                return value
            return from_outside(self.globals, name, value, earlier=True)
        trace = current_trace()
        earlier = trace is not None and self.code in trace.earlier
        return from_outside(holder, name, value, earlier=earlier)

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
        return logic(first, rest, True)

    def or_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a or b or …`."""
        return logic(first, rest, False)

    def all_of(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a and b` where only its truth matters."""
        return logic(truth(first), tuple(truth_of(r) for r in rest), True)

    def any_of(self, first: Any, *rest: Callable[[], Any]) -> Any:
        """`a or b` where only its truth matters."""
        return logic(truth(first), tuple(truth_of(r) for r in rest), False)

    def changing(self, part: Any, names: tuple[str, ...], reads: tuple[Any, ...]) -> Any:
        """A part of an expression that is evaluated or not, and may change what these variables hold."""
        pairs = zip(names, reads, strict=True)
        setattr(part, HELD, {n: functools.partial(self.peek, read) for n, read in pairs})
        return part

    def collected(
        self, items: Any, make: Callable[[Any], Any], read: Callable[[], list[Any]] | None,
        pick: Callable[[Any], Any] | None = None,
    ) -> Any:  # fmt: skip
        """A list comprehension or a generator; over many items, or as many as the data decides, a loop that fills a list.

        `read` tells what items are made of; without, it is a generator of which perhaps only some are wanted.
        """
        items = iterable(items)
        left = items.rest() if isinstance(items, Cursor) else items
        if sequences.is_open(left):
            return sequences.collected(items, make)
        return sequences.each_of_many(items, left, make, read, pick)

    def chosen(
        self, items: Any, make: Callable[[Any], Any], read: Callable[[], list[Any]] | None, pick: Callable[[Any], Any],
        held: Callable[[], list[Any]], ask: Callable[[Any], Any] | None,
    ) -> Any:  # fmt: skip
        """A list comprehension or a generator with conditions, or over several things; if the data decides them, a loop."""
        items = sequences.again(iterable(items))
        if current_trace() is None or sequences.are_decided(items, held(), ask):
            return sequences.chosen_of_many(items, make, read, pick, ask)
        return pick(items)

    def picked(self, items: Any, pick: Callable[[Any], Any]) -> Any:
        """A comprehension that assigns variables, or is there for what it changes: always a loop."""
        return pick(iterable(items))

    def quantified(
        self, fn: Any, items: Any, make: Callable[[Any], Any] | None, search: Callable[[Any], Any],
        held: Callable[[], list[Any]], pure: bool, whole: bool,
    ) -> Any:  # fmt: skip
        """`any` or `all` of a generator, which asks for no more items than Python does, unless nobody can tell (`whole`)."""
        items = iterable(items)
        if make is None:  # it assigns a variable, in this function
            return search(items)
        if fn not in (any, all) or (whole and not isinstance(items, Cursor)):
            return call(fn, as_cursor(self.collected(items, make, held)))
        return sequences.quantified(fn, items, make, search, held, pure)

    @staticmethod
    def quantified_map(fn: Any, mapping: Any, *args: Any) -> Any:
        """`any(map(f, x))`, which calls no more often than Python does."""
        if fn not in (any, all) or mapping is not map or current_trace() is None:
            return call(fn, call(mapping, *args))
        return sequences.quantified_map(fn, *args)

    # -- statements ------------------------------------------------------------------------------------------------

    def for_(self, items: Any, *args: Any) -> None:
        note_reading(forwarded(items))
        looping.for_(iterable(items), *args)

    def returned(self, value: Any) -> Any:
        """A value that a function returns: here a variable that may have no value is read."""
        if isinstance(value, Traced) and value.storage.defined is not None:
            return fresh(read(value), value.kind)
        return self.used(value)

    def listed(self, *parts: Any) -> Any:
        """`[a, *b]`: the parts are lists."""
        made: list[Any] = []
        for part in parts:
            call(forwarded(made).extend, rest_of(iterable(part)))
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
        if (trace := current_trace()) is not None:
            trace.roles.note_native(
                *(part[0] if isinstance(part, tuple) else part for part in parts)
            )
        return TracedText.join(parts)

    @staticmethod
    def matched(subject: Any) -> Any:
        """What Python matches with a pattern, for which it looks into objects by itself."""
        if (trace := current_trace()) is not None:
            trace.roles.note_native(subject)
        return subject

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as traced code calls it."""
        result = call(fn, *args, **kwargs)
        if fn is itertools.tee:
            return tuple(map(as_cursor, result))
        return as_cursor(result) if is_plain(result) else result


RUNTIME.append(Runtime)
