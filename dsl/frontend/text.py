"""Text with traced values in it: f-strings, `print`, and the messages of `assert` and `raise`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dsl.frontend.scopes import current_scope, current_trace
from dsl.frontend.traced import Kind, Traced, read

__all__ = ["TracedText", "print_", "to_text"]


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
            if isinstance(value, Traced):
                shown_by = (
                    f"!{chr(conversion)}"
                    if conversion in _CONVERSIONS and value.kind is not Kind.PYTHON
                    else ""
                )
                template += "{" + str(len(values)) + shown_by + (f":{spec}" if spec else "") + "}"
                values.append(value)
            elif isinstance(value, TracedText):
                template += _shift(value, len(values))
                values += value.values
            else:
                shown = _CONVERSIONS[conversion](value) if conversion in _CONVERSIONS else value
                template += _escape(format(shown, spec))
        return cls(template, values) if values else template.format()

    def __str__(self) -> str:
        return self.template


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
    return _escape(str(message)), []


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
        yield (item, "", -1) if isinstance(item, (Traced, TracedText)) else str(item)
