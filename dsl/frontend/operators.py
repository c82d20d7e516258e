"""Python's operators, also in place, on traced values, on lists, and on objects with operators that the user wrote."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dsl.frontend import formatting, loops, sequences
from dsl.frontend.array_likes import as_arrays
from dsl.frontend.calls import call
from dsl.frontend.choices import note_change
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import unwrap
from dsl.frontend.own_items import iterable
from dsl.frontend.roles import stands_in
from dsl.frontend.scopes import current_trace
from dsl.frontend.traced import Kind, Traced
from dsl.frontend.trees import Forward, forwarded
from dsl.frontend.user_code import own_method

__all__ = ["augmented", "binary", "unary"]

_BINARY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "Add": (operator.add, "add"), "Sub": (operator.sub, "sub"), "Mult": (operator.mul, "mul"),
    "Div": (operator.truediv, "truediv"), "FloorDiv": (operator.floordiv, "floordiv"), "Mod": (operator.mod, "mod"),
    "Pow": (operator.pow, "pow"), "LShift": (operator.lshift, "lshift"), "RShift": (operator.rshift, "rshift"),
    "BitOr": (operator.or_, "or"), "BitXor": (operator.xor, "xor"), "BitAnd": (operator.and_, "and"),
    "MatMult": (operator.matmul, "matmul"),
}  # fmt: skip
_AUGMENTED: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv, "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod, "Pow": operator.ipow, "LShift": operator.ilshift, "RShift": operator.irshift, "BitOr": operator.ior,
    "BitXor": operator.ixor, "BitAnd": operator.iand, "MatMult": operator.imatmul,
}  # fmt: skip
_UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "USub": (operator.neg, "__neg__"), "UAdd": (operator.pos, "__pos__"), "Invert": (operator.invert, "__invert__"),
}  # fmt: skip


def binary(op: str, left: Any, right: Any) -> Any:
    """`left op right`; an operator that the user wrote in Python is converted as other functions are."""
    plain, name = _BINARY[op]
    left, right = forwarded(left), forwarded(right)
    if op == "Mod" and isinstance(left, str) and formatting.has_text_values(_values_of(right)):
        return formatting.percent(left, right)
    for item, other, method in ((left, right, f"__{name}__"), (right, left, f"__r{name}__")):
        own = own_method(item, method)
        if own is not None:
            result = call(own, item, unwrap(other))
            if result is not NotImplemented:
                return result
    if op == "Mult" and _repeats(left, right):
        return sequences.repeated(left, right)
    if op == "Mult" and _repeats(right, left):
        return sequences.repeated(right, left)
    if isinstance(left, loops.Span) or isinstance(right, loops.Span):
        left, right = as_arrays(left), as_arrays(right)
    _note_native(left, right)
    return plain(left, right)


def _note_native(*operands: Any) -> None:
    """Note objects of which an operator is asked that is not traced."""
    trace = current_trace()
    if trace is not None and any(isinstance(x, str) or stands_in(x) for x in operands):
        trace.roles.note_native(*operands)


def _repeats(items: Any, times: Any) -> bool:
    """Tell whether a product is a list or tuple so many times: with an array it is one of arrays."""
    is_number = isinstance(times, Traced) and times.kind is not Kind.ARRAY
    return is_number and isinstance(items, (list, tuple, TracedList))


def _values_of(items: Any) -> Any:
    return list(items.values()) if isinstance(items, dict) else items


def unary(op: str, operand: Any) -> Any:
    """`-x`, `+x` and `~x`."""
    plain, name = _UNARY[op]
    own = own_method(operand, name)
    _note_native(*([operand] if own is None else []))
    return plain(operand) if own is None else call(own, operand)


def augmented(target: Any, op: str, value: Any) -> Any:
    """`target op= value`, returning what the target becomes."""
    target, value = forwarded(target), forwarded(value)
    note_change(target)
    own = own_method(target, f"__i{_BINARY[op][1]}__")
    if own is not None:
        return call(own, target, value)
    if isinstance(target, Traced):
        value = as_arrays(value)
    if type(target) is list and op == "Add":
        value = iterable(value)
    if type(target) is list and op == "Add" and sequences.is_open(value):
        sequences.extended(target, value)
        return forwarded(target)
    if type(target) is list and op == "Mult" and isinstance(value, Traced):
        made = binary(op, target, value)
        if _repeats(target, value):
            target[:] = [Forward(made)] if isinstance(made, TracedList) else made
        return made if isinstance(made, (Traced, TracedList)) else target
    if hasattr(type(target), f"__i{_BINARY[op][1]}__"):
        return _AUGMENTED[op](target, value)
    return binary(op, target, value)
