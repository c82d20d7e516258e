"""Text with traced values in it: f-strings, `print`, and the messages of `assert` and `raise`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from dsl.errors import UnsupportedError
from dsl.frontend.library import has_traced
from dsl.frontend.lists import TracedList
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import Kind, Traced, read
from dsl.frontend.trees import forwarded

__all__ = ["TracedText", "print_", "text_of", "to_text", "writes_itself"]


_CONVERSIONS: dict[int, Callable[[Any], str]] = {114: repr, 115: str, 97: ascii}


class TracedText:
    """A string whose traced parts are known when the program runs: a `str.format` template and its values."""

    def __init__(self, template: str, values: list[Traced]) -> None:
        self.template, self.values = template, values

    @classmethod
    def join(cls, parts: tuple[Any, ...]) -> Any:
        """Make the text of an f-string: plain when nothing in it is traced."""
        template = ""
        values: list[Traced] = []
        for part in parts:
            value, spec, conversion = part if isinstance(part, tuple) else (part, "", -1)
            value = forwarded(value)
            own = FORMATS[0](value, spec) if conversion not in _CONVERSIONS else None
            if own is not None:
                value, spec = own(), ""
            elif isinstance(value, TracedList):
                value, conversion = _text_of_list(value), -1
            elif isinstance(value, (tuple, list, dict)) and has_traced(value) and not spec:
                value, conversion = text_of(value), -1
            elif not spec and has_text(value):
                value, conversion = text_of(value, conversion == ord("r")), -1
            if isinstance(value, Traced):
                shown_by, own_spec = _written(value, conversion)
                text = spec if isinstance(spec, TracedText) else cls(_escape(spec or own_spec), [])
                after = _shift(text, len(values) + 1)  # what a format takes comes after the value
                template += "{" + str(len(values)) + shown_by + (f":{after}" if after else "") + "}"
                values += [value, *text.values]
            elif isinstance(spec, TracedText):
                _refuse_spec()
            elif isinstance(value, TracedText):
                template += _shift(value, len(values))
                values += value.values
            else:
                shown = _CONVERSIONS[conversion](value) if conversion in _CONVERSIONS else value
                template += _escape(format(shown, spec))
        return cls(template, values) if values else template.format()

    def __str__(self) -> str:
        return self.template

    def __add__(self, other: Any) -> Any:
        return (
            TracedText.join((self, other))
            if isinstance(other, (str, TracedText))
            else NotImplemented
        )

    def __radd__(self, other: Any) -> Any:
        return TracedText.join((other, self)) if isinstance(other, str) else NotImplemented


def _written(value: Traced, conversion: int) -> tuple[str, str]:
    """Return the conversion, and the format if no other is given, by which a template writes a value."""
    if conversion not in _CONVERSIONS or value.kind is Kind.PYTHON:
        return "", ""
    if value.kind is Kind.ARRAY and value.ndim == 0 and conversion != ord("s"):
        return "", "array"
    return f"!{chr(conversion)}", ""


_LONG = {np.dtype(np.float64), np.dtype(np.complex128)}


def _as_text(value: Traced) -> int:
    """Return the conversion of `str(value)`: NumPy formats short floats as Python's, but writes them with fewer digits."""
    is_short = value.dtype.kind in "fc" and value.dtype not in _LONG
    return ord("s") if is_short else -1


def _refuse_spec() -> NoReturn:
    raise UnsupportedError(
        "the format of a value that is known now depends on one that is known only when the compiled function runs",
        location=here(), remedy="format it by a width that is known, or pass the value in as an argument",
    )  # fmt: skip


TEXTS: list[Callable[[Any, bool], Callable[[], Any] | None]] = [lambda value, by_repr: None]
"""Finds how the user's class writes an object; set by `own_methods`."""

FORMATS: list[Callable[[Any, Any], Callable[[], Any] | None]] = [lambda value, spec: None]
"""Finds how the user's class formats an object; set by `own_methods`."""


def has_text(value: Any) -> bool:
    """Tell whether an object is written by a method of the user's, or by one that `dataclass` made of traced fields."""
    return TEXTS[0](value, False) is not None


def writes_itself(value: Any) -> bool:
    """Tell whether the user's class says how an object is written or formatted."""
    return has_text(value) or FORMATS[0](value, "") is not None


def text_of(value: Any, by_repr: bool = False) -> Any:
    """`str(value)`, or `repr(value)`: a `TracedText` where traced values are in it."""
    value = forwarded(value)
    if isinstance(value, TracedList):
        return _text_of_list(value)
    own = TEXTS[0](value, by_repr)
    if own is not None:
        return own()
    if isinstance(value, Traced):
        return TracedText.join(((value, "", ord("r") if by_repr else _as_text(value)),))
    if isinstance(value, TracedText):
        return value
    if not has_traced(value):
        return repr(value) if by_repr else str(value)
    if isinstance(value, dict):
        pairs = [p for k, v in value.items() for p in (", ", f"{k!r}: ", text_of(v, True))]
        return TracedText.join(("{", *pairs[1:], "}"))
    left, right = "[]" if isinstance(value, list) else "()"
    comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
    items = [part for item in value for part in (", ", text_of(item, True))]
    return TracedText.join((left, *items[1:], comma, right))


def _text_of_list(items: TracedList) -> TracedText:
    """The text of a list whose length the data decides, if its items are numbers."""
    structure, kinds = items.layout
    if structure.type is not None or items.columns[0].ndim > 1:
        raise UnsupportedError(
            "a list whose length the data decides is written as text only if its items are numbers",
            location=here(), remedy="write `np.array(...)` of it, or its items one by one",
        )  # fmt: skip
    shown = "numbers" if kinds[0] is Kind.PYTHON else "scalars"
    return TracedText(f"{{0:{shown}}}", [items.columns[0]])


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _shift(text: TracedText, by: int) -> str:
    """Renumber the fields of a template."""
    import string

    parts = []
    for literal, name, spec, conversion in string.Formatter().parse(text.template):
        parts.append(_escape(literal))
        if name is not None:
            shown_by = f"!{conversion}" if conversion else ""
            parts.append("{" + str(int(name) + by) + shown_by + (f":{spec}" if spec else "") + "}")
    return "".join(parts)


def to_text(message: Any) -> tuple[str, list[Traced]]:
    """Return a message as a template and its values."""
    if isinstance(message, TracedText):
        return message.template, message.values
    if isinstance(message, Traced):
        return "{}", [message]
    text = text_of(message)
    return (text.template, text.values) if isinstance(text, TracedText) else (_escape(text), [])


def print_(
    *items: Any,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = False,
) -> None:
    """`print`: inside a trace, an effect of the program."""
    if current_trace() is None or file not in (None, sys.stdout):
        print(*items, sep=sep, end=end, file=file, flush=flush)
        return
    text = TracedText.join(tuple(_joined(items, " " if sep is None else sep)))
    template, values = to_text(text)
    end = "\n" if end is None else end
    current_scope().node("print", [read(v) for v in values], {"template": template, "end": end})


def _joined(items: tuple[Any, ...], sep: str) -> Any:
    for k, item in enumerate(items):
        if k:
            yield sep
        yield item if isinstance(item, TracedText) else text_of(item)
