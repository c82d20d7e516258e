"""The way from a tree to named arrays and a description, and back.

In: a tree as `dsl.frontend.trees` knows them. Out: its arrays by name, and JSON that says how to put the tree together again:

    null                                            None
    {"type": "dict", "keys": [...], "items": [...]}     a container; others are list, tuple, OrderedDict and module:qualname
    {"array": "params/w"}                           an array; with "scalar": true, one of NumPy's numbers
    {"value": 3}                                    a number of Python or a string; also {"complex": [re, im]}, {"bytes": base64}

The name of an array is its path, with `/` between keys. A `/` in a key becomes `~1` and a `~` becomes `~0`, as in JSON pointers.
A leaf with `dsl_checkpoint_value()`, such as a variable, is saved as the array that it returns.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.checkpoints.format import is_storable
from dsl.errors import CheckpointError
from dsl.frontend.trees import Structure, flatten, unflatten

__all__ = ["Parts", "entries", "names", "plain_value", "put_together", "take_apart", "value_of"]

_BUILT_IN: dict[str, type] = {
    "dict": dict,
    "list": list,
    "tuple": tuple,
    "OrderedDict": OrderedDict,
}
_TYPE_NAMES: dict[type, str] = {kind: name for name, kind in _BUILT_IN.items()}
_PLAIN = (bool, int, float, str)
_ROOT = "."
_HOLDS = "a checkpoint holds arrays, numbers, strings, bytes and None"
_PASS_LIKE = "pass a tree of the same structure: dsl.restore(path, like=tree)"


@dataclass
class Parts:
    """What a tree is taken apart into; `problems` says what has no place in a checkpoint."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    description: Any = None
    problems: list[str] = field(default_factory=list)


# -- names ----------------------------------------------------------------------------------------


def names(structure: Structure, path: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the names of the leaves of a structure, left to right."""
    if structure.type is None:
        yield _name(path)
    for key, child in zip(structure.keys, structure.children, strict=True):
        yield from names(child, (*path, key))


def _name(path: tuple[Any, ...]) -> str:
    if not path:
        return _ROOT
    name = "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in path)
    return name if name != "__metadata__" else "~2metadata"  # the one name that safetensors keeps


# -- from a tree ----------------------------------------------------------------------------------


def take_apart(tree: Any, *, copy: bool = False) -> Parts:
    """Return the arrays of a tree by name, and its description; `copy` makes them independent of the tree's."""
    leaves, structure = flatten(tree)
    parts = Parts()
    named = list(zip(names(structure), leaves, strict=True))
    parts.problems += _repeated(name for name, _ in named)
    described = iter([_describe_leaf(name, leaf, parts, copy) for name, leaf in named])
    parts.description = _describe(structure, described, parts)
    if parts.problems:
        lines = "".join(f"\n  {line}" for line in parts.problems)
        raise CheckpointError(
            f"this tree cannot be saved:{lines}", remedy=f"{_HOLDS}; leave out the rest"
        )
    return parts


def _repeated(found: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in found:
        counts[name] = counts.get(name, 0) + 1
    return [f"{name}: the name of {n} entries" for name, n in counts.items() if n > 1]


def _describe(structure: Structure, leaves: Iterator[Any], parts: Parts) -> Any:
    kind = structure.type
    if kind is None:
        return next(leaves)
    if kind is type(None):
        return None
    items = [_describe(child, leaves, parts) for child in structure.children]
    if issubclass(kind, (list, tuple)):
        return {"type": _type_name(kind), "items": items}
    keys = [_describe_key(key, parts) for key in structure.keys]
    return {"type": _type_name(kind), "keys": keys, "items": items}


def _type_name(kind: type) -> str:
    if issubclass(kind, dict) and kind is not OrderedDict:
        kind = dict
    return _TYPE_NAMES.get(kind) or f"{kind.__module__}:{kind.__qualname__}"


def _describe_key(key: Any, parts: Parts) -> Any:
    if key is None or type(key) in _PLAIN:
        return key
    if type(key) is tuple:
        return {"tuple": [_describe_key(part, parts) for part in key]}
    described = _describe_value(key)
    if described is None:
        parts.problems.append(f"the key {key!r}: of type {type(key).__name__}")
    return described


def _describe_leaf(name: str, leaf: Any, parts: Parts, copy: bool) -> Any:
    described = _describe_value(leaf)
    if described is not None:
        return described
    array = _array(leaf)
    if array is None or not is_storable(array.dtype):
        parts.problems.append(f"{name}: {_kind(leaf)}")
        return None
    parts.arrays[name] = np.array(array, order="C") if copy else array
    return {"array": name, "scalar": True} if isinstance(leaf, np.generic) else {"array": name}


def _describe_value(leaf: Any) -> Any:
    """Return the description of a plain value of Python, or None if it is none."""
    if type(leaf) in _PLAIN:
        return {"value": leaf}
    if type(leaf) is complex:
        return {"complex": [leaf.real, leaf.imag]}
    if type(leaf) is bytes:
        return {"bytes": base64.b64encode(leaf).decode()}
    return None


def _array(leaf: Any) -> np.ndarray | None:
    """Return the array that a leaf is or holds, or None; arrays that hold more than their data have no place."""
    leaf = value_of(leaf)
    if not hasattr(leaf, "__array__") or isinstance(leaf, (type, np.ma.MaskedArray)):
        return None
    return np.asarray(leaf)


def value_of(leaf: Any) -> Any:
    """Return the array of a variable, or the leaf itself."""
    return leaf.dsl_checkpoint_value() if hasattr(leaf, "dsl_checkpoint_value") else leaf


def _kind(leaf: Any) -> str:
    dtype = f" of dtype {leaf.dtype}" if isinstance(leaf, (np.ndarray, np.generic)) else ""
    return f"of type {type(leaf).__name__}{dtype}"


# -- to a tree ------------------------------------------------------------------------------------


def entries(description: Any) -> dict[str, Any]:
    """Return the descriptions of the leaves by name, without need of the types of containers."""
    leaves: list[Any] = []
    structure = _structure(description, leaves, _anonymous)
    return dict(zip(names(structure), leaves, strict=True))


def put_together(description: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the tree as it was saved."""
    leaves: list[Any] = []
    structure = _structure(description, leaves, _find_type)
    return unflatten(structure, [plain_value(leaf, arrays) for leaf in leaves])


def plain_value(described: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Return what a description of a leaf stands for."""
    match described:
        case {"array": name, "scalar": True}:
            return arrays[name][()]
        case {"array": name}:
            return arrays[name]
        case {"complex": [real, imag]}:
            return complex(real, imag)
        case {"bytes": text}:
            return base64.b64decode(text)
    return described["value"]


def _structure(
    described: Any, leaves: list[Any], find_type: Callable[[str, tuple[Any, ...]], type]
) -> Structure:
    if described is None:
        return Structure(type(None))
    if "type" not in described:
        leaves.append(described)
        return Structure(None)
    children = tuple(_structure(item, leaves, find_type) for item in described["items"])
    keys = tuple(_key(key) for key in described.get("keys", ())) or tuple(range(len(children)))
    return Structure(find_type(described["type"], keys), keys, children)


def _key(described: Any) -> Any:
    if not isinstance(described, dict):
        return described
    if "tuple" in described:
        return tuple(_key(part) for part in described["tuple"])
    return plain_value(described, {})


def _anonymous(name: str, keys: tuple[Any, ...]) -> type:
    return object


def _find_type(name: str, keys: tuple[Any, ...]) -> type:
    """Return the type of a container; its module is imported, but nothing of it is called."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"the tree has a {name}: {error}", remedy=_PASS_LIKE) from error
    _check_fields(name, found, keys)
    kind: type = found
    return kind


def _check_fields(name: str, found: Any, keys: tuple[Any, ...]) -> None:
    """Refuse a type whose fields are not those that were saved."""
    if isinstance(found, type) and hasattr(found, "dsl_unflatten"):
        return
    now = _fields(found)
    if set(now) != set(keys):
        message = f"the tree has a {name} with {_listed(keys)}; now it has {_listed(now)}"
        raise CheckpointError(message, remedy=_PASS_LIKE)


def _fields(found: Any) -> tuple[Any, ...]:
    """Return the keys of a dataclass or named tuple, as trees have them; nothing for other objects."""
    if not isinstance(found, type):
        return ()
    if dataclasses.is_dataclass(found):
        return tuple(item.name for item in dataclasses.fields(found))
    return tuple(range(len(getattr(found, "_fields", ()))))


def _listed(keys: tuple[Any, ...]) -> str:
    return f"the fields {', '.join(map(str, keys))}" if keys else "no fields"
