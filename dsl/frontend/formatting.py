"""`"%.2f" % x`, `"{:.2f}".format(x)`, `format(x, spec)` and `", ".join(texts)` with traced values, as the parts of an f-string."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import NonConcreteError
from dsl.frontend.library import has_traced
from dsl.frontend.scopes import here
from dsl.frontend.text import TracedText, text_of, writes_itself
from dsl.frontend.traced import Traced

__all__ = ["STRING_METHODS", "has_text_values", "percent", "refuse"]

_FIELD = re.compile(r"%(?:\((?P<name>[^)]*)\))?(?P<flags>[-#0 +]*)(?P<width>\d*)(?:\.(?P<digits>\d+))?(?P<kind>[a-zA-Z%])")  # fmt: skip
_KINDS = {"d": "d", "i": "d", "u": "d", "x": "x", "X": "X", "o": "o"}
_FLOATS = set("eEfFgG")


def refuse() -> None:
    """Refuse a string that would need its values now."""
    raise NonConcreteError(
        "a string made of values that are known only when the compiled function runs",
        location=here(),
        remedy="use an f-string, in a `print`, an `assert` or a `raise`",
    )


def has_text_values(items: Any) -> bool:
    """Tell whether traced values, or texts with such in them, are among items."""
    if isinstance(items, (tuple, list)):
        return any(map(has_text_values, items))
    return isinstance(items, TracedText) or has_traced(items) or writes_itself(items)


def percent(template: str, values: Any) -> Any:
    """`template % values`."""
    queue = list(values) if isinstance(values, tuple) else [values]
    parts: list[Any] = []
    end = 0
    for field in _FIELD.finditer(template):
        parts.append(template[end : field.start()])
        end = field.end()
        if field["kind"] == "%":
            parts.append("%")
            continue
        if field["name"] is None and not queue:
            raise TypeError("not enough arguments for format string")
        value = values[field["name"]] if field["name"] is not None else queue.pop(0)
        parts.append(_percent_part(value, field))
    if "%" in template[end:]:
        refuse()
    if queue and not isinstance(values, dict):
        raise TypeError("not all arguments converted during string formatting")
    return TracedText.join((*parts, template[end:]))


def _percent_part(value: Any, field: re.Match[str]) -> Any:
    alone = field[0] if field["name"] is None else field[0].replace(f"({field['name']})", "", 1)
    kind, flags = field["kind"], field["flags"]
    if writes_itself(value):
        if kind not in "sra":
            return alone % (value,)
        value, kind, alone = text_of(value, kind != "s"), "s", f"{alone[:-1]}s"
    if not has_text_values(value):
        return alone % (value,)
    if kind in "sra":
        if field["width"] or field["digits"]:
            refuse()
        return text_of(value) if kind == "s" else (value, "", ord(kind))
    if kind not in _KINDS and kind not in _FLOATS:
        refuse()
    if kind in _KINDS and isinstance(value, Traced) and value.dtype.kind == "f":
        value = np.trunc(value).astype(np.int64)
    align = "<" if "-" in flags else ""
    sign = "+" if "+" in flags else " " if " " in flags else ""
    zero = "0" if "0" in flags and "-" not in flags else ""
    digits = f".{field['digits']}" if field["digits"] and kind in _FLOATS else ""
    if kind in _FLOATS and not digits:
        digits = ".6"
    other = "#" if "#" in flags else ""
    spec = f"{align}{sign}{other}{zero}{field['width']}{digits}{_KINDS.get(kind, kind)}"
    return (value, spec, -1)


def _format(template: str, *args: Any, **kwargs: Any) -> Any:
    """`template.format(*args, **kwargs)`."""
    formatter, count = string.Formatter(), 0
    parts: list[Any] = []
    for literal, name, spec, conversion in formatter.parse(template):
        parts.append(literal)
        if name is None:
            continue
        if name == "" or name[:1] in ".[":
            name, count = f"{count}{name}", count + 1
        value, _ = formatter.get_field(name, args, kwargs)
        plain = formatter.vformat(spec or "", args, kwargs)
        parts.append((value, plain, ord(conversion) if conversion else -1))
    return TracedText.join(tuple(parts))


def _join(separator: str, items: Any) -> Any:
    """`separator.join(items)`."""
    parts = [part for item in items for part in (separator, item)]
    return TracedText.join(tuple(parts[1:]))


STRING_METHODS: dict[str, Callable[..., Any]] = {"format": _format, "join": _join}
