"""Functions that take a call's trees apart, hand the leaves to a built-in, and put its results together again.

They are written as source for one signature and one structure of arguments and results, and then compiled, so that a call
with a dict of parameters costs little more than one with plain arrays. What the function took from outside is looked
at first, and arrays among it are passed after the leaves; what it assigned outside is assigned afterwards. What they find
to be of another structure goes the long way.
"""

from __future__ import annotations

import collections
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dsl.frontend.lookups import ANY, contents_of, is_found_at, look_up
from dsl.frontend.roles import FUNCTION, Attributes, Closure, OfClass, Presence, Role, held_in
from dsl.frontend.scopes import Item
from dsl.frontend.signature import Same
from dsl.frontend.state import refill, setter_of
from dsl.frontend.tracing import TracedFunction
from dsl.frontend.trees import Structure
from dsl.ir.sameness import Exact

__all__ = ["unpacker"]

# Things in containers from outside that are looked at one by one: source for more would take long to compile.
_MOST_WATCHED = 200

# Names of the source that are not the user's begin with this.
_OWN = "_dsl_"
_NUMBERS = (int, float, complex, str, bytes)
_SPACE = {
    f"{_OWN}{name}": item
    for name, item in {
        "type": type, "len": len, "getattr": getattr, "hasattr": hasattr, "id": id, "look_up": look_up,
        "contents_of": contents_of, "refill": refill,
        "NotImplemented": NotImplemented,
        "missing": (KeyError, IndexError, AttributeError, ValueError),
    }.items()
}  # fmt: skip


_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class _Source:
    """The text of one function, and the objects that it refers to."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.objects: dict[str, Any] = {}
        self.count = 0
        self.roles: dict[int, str] = {}  # the variables of objects that play roles
        self.head = _head(signature, self)
        self.slow = f"return {_OWN}slow({_passed_on(signature)})"

    def held(self, item: Any) -> str:
        name = f"{_OWN}o{len(self.objects)}"
        self.objects[name] = item
        return name

    def object(self, item: Any) -> str:
        """Return an expression for an object, or for what plays a role."""
        return self.roles[item.number] if type(item) is Role else self.held(item)

    def key(self, item: Any) -> str:
        return repr(item) if type(item) in (int, str) else self.held(item)

    def require(self, condition: str) -> None:
        """Go the long way unless a condition holds."""
        self.lines.append(f"if not ({condition}): {self.slow}")

    def same(self, name: str, item: Any, *, equal: bool) -> None:
        """Go the long way unless a variable is an object or, if `equal` is as good, the same type and bits."""
        held = self.held(item)
        kind = self.held(type(item))
        plain = type(item) in (int, str, bytes) or (type(item) is float and item == item != 0)
        alike = self.held(item if plain else Exact(item))
        more = f" or {_OWN}type({name}) is {kind} and {alike} == {name}" if equal else ""
        self.require(f"{name} is {held}{more}")

    def outside(self, holder: Any, key: Any) -> str:
        """Return an expression for what is outside the function: see `look_up`."""
        if key is Attributes:
            return f"{self.object(holder)}.__dict__"
        if type(holder) is Presence:
            return f"{_OWN}hasattr({self.object(held_in(holder))}, {self.key(key)})"
        if type(holder) is Role:
            return self.inside(holder, key)
        if isinstance(holder, types.CellType):
            return f"{self.held(holder)}.cell_contents"
        if type(holder) is dict:
            return f"{self.held(holder.get)}({self.key(key)})"
        if type(holder) in (list, tuple) and type(key) is int:
            return f"{self.held(holder)}[{key}]"
        if isinstance(key, Item) or not isinstance(key, str) or isinstance(holder, dict):
            return f"{_OWN}look_up({self.held(holder)}, {self.key(key)})"
        return f"{_OWN}getattr({self.held(holder)}, {self.key(key)}, None)"

    def inside(self, holder: Role, key: Any) -> str:
        """Return an expression for what is in an object that plays a role."""
        name = self.object(holder)
        if holder.kind is types.CellType:
            return f"{name}.cell_contents"
        in_order = holder.kind in (list, tuple, collections.deque) and not isinstance(key, str)
        if in_order:
            return f"{name}[{self.key(key)}]"
        if holder.kind is dict and not isinstance(key, Item):
            return f"{name}.get({self.key(key)})"
        if isinstance(key, Item) or not isinstance(key, str):
            return f"{_OWN}look_up({name}, {self.key(key)})"
        return f"{_OWN}getattr({name}, {self.key(key)}, None)"

    def act(self, traced: TracedFunction, function: Any) -> None:
        """Write how the objects are found that play the roles, and that no one plays two."""
        for role in traced.roles:
            if role.key is FUNCTION:
                self.roles[role.number] = self.held(function)
                continue
            if type(role.key) is Closure:
                self.roles[role.number] = self.held(function.__closure__[role.key.number])
                continue
            if role.holder is None:
                self.roles[role.number] = self.leaves[role.key]
                continue
            self.roles[role.number] = name = self.variable(self.outside(role.holder, role.key))
            self.require(f"{_OWN}type({name}) is {self.held(role.kind)}")
        for numbers in traced.apart:
            names = [self.roles[k] for k in numbers]
            self.require(self.all_apart(names))
        for leaf, role in traced.again:
            self.require(f"{self.leaves[leaf]} is {self.object(role)}")

    @staticmethod
    def all_apart(names: list[str]) -> str:
        """Return a condition: no two variables are one object."""
        if len(names) == 2:
            return f"{names[0]} is not {names[1]}"
        return f"{_OWN}len({{{', '.join(f'{_OWN}id({name})' for name in names)}}}) == {len(names)}"

    def guard(self, holder: Any, key: Any, expected: Any, contents: Any) -> None:
        """Go the long way unless a place outside holds what it held: see `TracedFunction.guard_failure`."""
        if type(expected) is Role:
            name = self.object(expected)
            if not is_found_at(expected, holder, key):
                self.require(f"{self.outside(holder, key)} is {name}")
        elif type(expected) in _NUMBERS or isinstance(expected, (tuple, np.generic)):
            name = self.variable(self.outside(holder, key))
            self.same(name, expected, equal=True)
        else:
            name = self.held(expected)
            self.require(f"{self.outside(holder, key)} is {name}")
        if contents is not None:
            self.watch(name, contents)

    def watch(self, name: str, contents: tuple[Any, Any]) -> None:
        """Go the long way unless a container from outside holds what it held: see `contents_of`."""
        kind, items = contents
        if not isinstance(items, list):
            self.require(f"{_OWN}contents_of({name}) == {self.held(contents)}")
            return
        keys = self.held([key for key, _ in items])
        same = (
            f"[*{name}] == {keys}"
            if issubclass(kind, dict)
            else f"{_OWN}len({name}) == {len(items)}"
        )
        self.require(f"{_OWN}type({name}) is {self.held(kind)} and {same}")
        for key, item in items:
            if item is ANY:
                continue
            part = self.variable(f"{name}[{self.key(key)}]")
            if isinstance(item, Same) and type(item.item) in _NUMBERS:
                self.same(part, item.item, equal=True)
            elif isinstance(item, Same):
                self.require(f"{part} is {self.object(item.item)}")
            elif isinstance(item[0], np.dtype):
                array = f"{_OWN}type({part}) is {self.held(np.ndarray)}"
                self.require(
                    f"{array} and {part}.dtype == {self.held(item[0])} and {part}.shape == {item[1]}"
                )
            else:
                self.watch(part, item)

    def variable(self, value: str) -> str:
        """Write an assignment to a new variable."""
        name = f"{_OWN}v{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {value}")
        return name

    def take(self, structure: Structure, name: str) -> None:
        """Write how a tree in a variable is taken apart."""
        kind = structure.type
        if kind is None:
            self.leaves.append(name)
            return
        if kind is type(None):
            return self.require(f"{name} is None")
        self.require(f"{_OWN}type({name}) is {self.held(kind)}")
        is_container = issubclass(kind, (tuple, list, dict))
        if issubclass(kind, dict) and len(structure.keys) > 1:  # whose order the function may see
            self.require(f"[*{name}] == {self.held(list(structure.keys))}")
        elif is_container:
            self.require(f"{_OWN}len({name}) == {len(structure.children)}")
        for key, child in zip(structure.keys, structure.children, strict=True):
            at = f"[{self.key(key)}]" if is_container else f".{key}"
            self.take(child, self.variable(f"{name}{at}"))

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
            pairs = zip(map(self.key, structure.keys), parts, strict=True)
            return "{" + ", ".join(f"{k}: {p}" for k, p in pairs) + "}"
        if hasattr(kind, "dsl_unflatten"):
            made = self.held(functools.partial(kind.dsl_unflatten, structure.keys))
            return f"{made}([{', '.join(parts)}])"
        made = self.held(_maker(kind, structure.keys))
        return f"{made}({', '.join(parts)})"


def _head(signature: inspect.Signature, code: _Source) -> str:
    """Return the parameters as a function's definition lists them."""
    parts: list[str] = []
    before: Any = None
    for p in signature.parameters.values():
        if before is p.POSITIONAL_ONLY and p.kind is not before:
            parts.append("/")
        if p.kind is p.KEYWORD_ONLY and before not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            parts.append("*")
        stars = _STARS.get(p.kind, "")
        default = "" if p.default is p.empty else f"={code.held(p.default)}"
        parts.append(f"{stars}{p.name}{default}")
        before = p.kind
    return ", ".join([*parts, "/"] if before is inspect.Parameter.POSITIONAL_ONLY else parts)


def _passed_on(signature: inspect.Signature) -> str:
    """Return the arguments of a call with the same arguments."""
    params = signature.parameters.values()
    kept = (p.name if p.kind is not p.KEYWORD_ONLY else f"{p.name}={p.name}" for p in params)
    return ", ".join(
        f"{_STARS.get(p.kind, '')}{text}" for p, text in zip(params, kept, strict=True)
    )


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
    return _is_plain(structure.type) and all(map(can_unpack, structure.children))


def can_put(structure: Structure) -> bool:
    """Tell whether all containers are plain ones, or stand for such: lists and optional values that the data decided."""
    known = _is_plain(structure.type) or hasattr(structure.type, "dsl_unflatten")
    return known and all(map(can_put, structure.children))


def _is_plain(kind: Any) -> bool:
    return kind is None or kind in (type(None), tuple, list, dict) or _is_record(kind)


def _is_record(kind: Any) -> bool:
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named or (hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "dsl_flatten"))


def unpacker(
    signature: inspect.Signature, arguments: Any, traced: TracedFunction, whole: bool,
    slow: Callable[..., Any], made: Callable[..., Any], function: Any,
) -> Callable[..., Any] | None:  # fmt: skip
    """Return a function of the signature that calls `made` with the leaves that the graph takes; None if it cannot be written.

    `made` returns the `whole` of what the user gets, or a tuple of all leaves that the caller gets (`TracedFunction.sources`).
    """
    names, structure = list(signature.parameters), traced.result[0]
    children = dict(zip(arguments.structure.keys, arguments.structure.children, strict=True))
    assigned = [structure for *_, in_place, structure, _ in traced.attributes if not in_place]
    put = (*assigned, *([] if whole else [structure]))
    if not all(map(can_unpack, children.values())) or not all(map(can_put, put)):
        return None
    watched = sum(_items(contents) for *_, contents in traced.guards if contents is not None)
    if watched > _MOST_WATCHED or any(name.startswith(_OWN) for name in names):
        return None
    code = _Source(signature)
    _take_arguments(code, names, children, arguments, traced.inputs)
    code.act(traced, function)
    for guard in traced.guards:
        code.guard(*guard)
    given = [code.leaves[k] for k in traced.inputs] + _captured(code, traced)
    claim = "" if traced.claim is None else f"with {code.held(traced.claim)}: "
    leaves = [
        code.object(source.value) if type(source.value) is Role else f"{_OWN}r[{k}]"
        for k, source in enumerate(traced.sources)
    ]
    answer = f"{_OWN}r" if whole else code.put(structure, leaves)
    effects = _effects(code, names, traced, leaves)
    body = [
        "try:", *(f"    {line}" for line in code.lines), f"    {_OWN}given = ({', '.join([*given, ''])})",
        f"except {_OWN}missing: {code.slow}", f"{claim}{_OWN}r = {_OWN}made(*{_OWN}given)",
        f"if {_OWN}r is {_OWN}NotImplemented: {code.slow}", *effects, f"return {answer}",
    ]  # fmt: skip
    text = f"def call({code.head}):\n" + "".join(f"    {line}\n" for line in body)
    space = {**_SPACE, **code.objects, f"{_OWN}slow": slow, f"{_OWN}made": made}
    exec(compile(text, "<dsl unpacking>", "exec"), space)
    call: Any = space["call"]
    call.__name__ = call.__qualname__ = traced.graph.name  # for the words of a TypeError
    return call  # type: ignore[no-any-return]


def _captured(code: _Source, traced: TracedFunction) -> list[str]:
    """Write where the arrays and numbers from outside are; arrays that were different ones must be so, and one still that one."""
    found = [code.variable(code.outside(c.holder, c.key)) for c in traced.captures]
    arrays = [v for v, c in zip(found, traced.captures, strict=True) if c.number is None]
    if len(arrays) > 1:
        code.require(code.all_apart(arrays))
    for name, item in zip(found, traced.captures, strict=True):
        if item.strides is not None:
            code.require(f"{name}.strides == {item.strides}")
    given = [code.leaves[k] for k in traced.inputs] + found
    for holder, key, param in traced.shared:
        code.require(f"{code.outside(holder, key)} is {given[param]}")
    return found


def _items(contents: Any) -> int:
    """Return how many things a container from outside holds, and those in it."""
    if not isinstance(contents, tuple) or not isinstance(contents[1], list):
        return 1
    return sum(_items(item) for _, item in contents[1])


def _take_arguments(
    code: _Source, names: Sequence[str], children: dict[str, Structure], arguments: Any, inputs: Sequence[int]
) -> None:  # fmt: skip
    """Write how arguments become leaves, and what those must be that the graph does not take."""
    static, aliases = dict(arguments.key[2]), arguments.key[3]
    for name in names:
        if name in static:
            code.same(name, static[name].item, equal=True)
        else:
            code.take(children[name], name)
    for k, (leaf, described) in enumerate(zip(code.leaves, arguments.described, strict=True)):
        if described.kind == "static":
            value = described.value
            if isinstance(value, OfClass):
                code.require(f"{_OWN}type({leaf}) is {code.held(value.kind)}")
                continue
            item = value.item if isinstance(value, Same) else value
            code.same(leaf, item, equal=isinstance(item, (int, float, complex, str, bytes)))
        elif k not in inputs:
            code.require(f"{leaf} is {code.leaves[aliases[k]]}")


def _effects(
    code: _Source, names: Sequence[str], traced: TracedFunction, leaves: list[str]
) -> Iterator[str]:
    """Write how containers that were passed, and attributes, get what the function put there; see `TracedFunction.run`."""

    def refilled(item: str, structure: Structure, count: int) -> str:
        parts = [leaves.pop(0) for _ in range(count)]
        return f"{_OWN}refill({item}, {code.held(structure)}, [{', '.join(parts)}])"

    for k, structure, sources in traced.containers:
        yield refilled(names[k], structure, len(sources))
    for obj, name, in_place, structure, sources in traced.attributes:
        whose = code.object(obj)
        if in_place:
            item = f"{_OWN}getattr({whose}, {name!r})"
            yield refilled(item, structure, len(sources))
        else:
            put = code.put(structure, leaves)
            kind = obj.kind if type(obj) is Role else type(obj)
            yield f"{code.held(setter_of(kind))}({whose}, {name!r}, {put})"
