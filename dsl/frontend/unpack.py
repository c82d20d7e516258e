"""Functions that take a call's trees apart, hand the leaves to a built-in, and put its results together again.

They are written as source for one structure of arguments and results and then compiled, so that a call with a dict of
parameters costs little more than one with plain arrays. What they find to be of another structure goes the long way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dsl.frontend.signature import Same
from dsl.frontend.trees import Structure

__all__ = ["unpacker"]

_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Source:
    """The text of one function, and the objects that it refers to."""

    def __init__(self) -> None:
        self.checks: list[str] = []
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.objects: dict[str, Any] = {}

    def held(self, item: Any) -> str:
        name = f"o{len(self.objects)}"
        self.objects[name] = item
        return name

    def take(self, structure: Structure, name: str) -> None:
        """Write how a tree in a variable is taken apart."""
        kind = structure.type
        if kind is None:
            self.leaves.append(name)
            return
        if kind is type(None):
            self.lines.append(f"if {name} is not None: return slow(*args)")
            return
        self.lines.append(f"if type({name}) is not {self.held(kind)}: return slow(*args)")
        if not issubclass(kind, (tuple, list, dict)):
            return self._fields(structure, name)
        self.lines.append(f"if len({name}) != {len(structure.children)}: return slow(*args)")
        for k, (key, child) in enumerate(zip(structure.keys, structure.children, strict=True)):
            part = f"{name}_{k}"
            at = repr(key) if isinstance(key, (int, str)) else self.held(key)
            self.lines.append(f"{part} = {name}[{at}]")
            self.take(child, part)

    def _fields(self, structure: Structure, name: str) -> None:
        for k, (key, child) in enumerate(zip(structure.keys, structure.children, strict=True)):
            self.lines.append(f"{name}_{k} = {name}.{key}")
            self.take(child, f"{name}_{k}")

    def put(self, structure: Structure, leaves: list[str]) -> str:
        """Return an expression for a tree of leaves, which it takes from the front of the list."""
        kind = structure.type
        if kind is None:
            return leaves.pop(0)
        if kind is type(None):
            return "None"
        parts = [self.put(child, leaves) for child in structure.children]
        if kind is tuple:
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(parts)}]"
        if kind is dict:
            keys = [repr(k) if isinstance(k, (int, str)) else self.held(k) for k in structure.keys]
            return "{" + ", ".join(f"{k}: {p}" for k, p in zip(keys, parts, strict=True)) + "}"
        made = self.held(_maker(kind, structure.keys))
        return f"{made}({', '.join(parts)})"


def _maker(kind: Any, keys: Sequence[str]) -> Callable[..., Any]:
    if issubclass(kind, tuple):
        return kind  # type: ignore[no-any-return]
    new, put = object.__new__, object.__setattr__

    def make(*parts: Any) -> Any:
        made = new(kind)
        for key, part in zip(keys, parts, strict=True):
            put(made, key, part)
        return made

    return make


def can_unpack(structure: Structure) -> bool:
    """Tell whether all containers are plain ones."""
    kind = structure.type
    plain = kind is None or kind in (type(None), tuple, list, dict) or _is_record(kind)
    return plain and all(map(can_unpack, structure.children))


def _is_record(kind: Any) -> bool:
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named or (hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "dsl_flatten"))


def unpacker(
    signature: inspect.Signature, names: Sequence[str], arguments: Any, inputs: Sequence[int],
    result: tuple[Structure, Sequence[Any]], slow: Callable[..., Any], made: Callable[..., Any],
) -> Callable[..., Any] | None:  # fmt: skip
    """Return a function of the signature that calls `made` with the leaves at `inputs`; None if it cannot be written.

    `result` is the structure of what the user gets, and for each leaf its number among `made`'s results or, as a list of
    one, an object.
    """
    code = _Source()
    static = dict(arguments.key[2])
    structure: Structure = arguments.structure
    children = dict(zip(structure.keys, structure.children, strict=True))
    lines = _bound(code, signature, names)
    if lines is None or not all(map(can_unpack, (*children.values(), result[0]))):
        return None
    for name in names:
        variable = f"v{names.index(name)}"
        if name in static:
            held = code.held(static[name][1])
            code.lines.append(
                f"if {variable} is not {held} and {variable} != {held}: return slow(*args)"
            )
        else:
            code.take(children[name], variable)
    for k, (leaf, described) in enumerate(zip(code.leaves, arguments.described, strict=True)):
        if k not in inputs:
            value = described.value
            held = code.held(value.item if isinstance(value, Same) else value)
            code.lines.append(f"if {leaf} is not {held}: return slow(*args)")
    given = ", ".join(code.leaves[k] for k in inputs)
    found = [code.held(s[0]) if isinstance(s, list) else f"r[{s}]" for s in result[1]]
    answer = code.put(result[0], found)
    body = [
        *lines, "try:", *(f"    {line}" for line in code.lines or ["pass"]),
        "except (KeyError, AttributeError): return slow(*args)", f"r = made({given})",
        "if r is NotImplemented: return slow(*args)", f"return {answer}",
    ]  # fmt: skip
    text = "def call(*args, **kwargs):\n" + "".join(f"    {line}\n" for line in body)
    space = {**code.objects, "slow": slow, "made": made}
    exec(compile(text, "<dsl unpacking>", "exec"), space)
    return space["call"]  # type: ignore[no-any-return]


def _bound(code: _Source, signature: inspect.Signature, names: Sequence[str]) -> list[str] | None:
    """Write how positional arguments become variables; keywords go the long way."""
    parameters = signature.parameters
    fixed = [name for name in names if parameters[name].kind in _PLAIN]
    rest = [name for name in names if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL]
    others = [n for n in names if n not in fixed and n not in rest]
    if any(parameters[n].kind is not inspect.Parameter.VAR_KEYWORD for n in others):
        return None
    lines = ["if kwargs: return slow(*args, **kwargs)"]
    needed = sum(parameters[name].default is inspect.Parameter.empty for name in fixed)
    lines.append(
        f"n = len(args)\n    if n < {needed}{'' if rest else f' or n > {len(fixed)}'}: return slow(*args)"
    )
    for k, name in enumerate(fixed):
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            lines.append(f"v{names.index(name)} = args[{k}]")
        else:
            lines.append(f"v{names.index(name)} = args[{k}] if n > {k} else {code.held(default)}")
    lines += [f"v{names.index(name)} = args[{len(fixed)}:]" for name in rest]
    lines += [f"v{names.index(name)} = {{}}" for name in others]
    return lines
