"""Trees of parameters, gradients and slots: taken apart, matched leaf by leaf, checked.

A gradient leaf is an array, a `Rows`, or None for a parameter that has no gradient this time. What does not match raises with
the path of the leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsl.errors import DslError, GradientError, ShapeError, TypeRuleError
from dsl.frontend.leaves import is_array
from dsl.frontend.scopes import here
from dsl.frontend.traced import Traced, shape_of
from dsl.frontend.trees import Structure, flatten, leaves_with_paths, unflatten
from dsl.ir.types import dtype_name, is_complex, is_inexact
from dsl.optim.rows import Rows

__all__ = [
    "as_dtype", "check_distinct", "check_gradient", "check_parameter", "check_writable", "flatten_gradients", "is_zero",
    "map_gradients", "match", "with_paths",
]  # fmt: skip

_LEAF = Structure(None)
_NUMBERS = (Traced, np.ndarray, np.generic, int, float, complex)


def as_dtype(x: Any, dtype: np.dtype) -> Any:
    """Return a number as one that leaves the dtype of arrays as it is; Python's own do."""
    return x.astype(dtype) if isinstance(x, (Traced, np.ndarray, np.generic)) else x


def is_zero(x: Any) -> bool:
    """Tell whether a hyper-parameter is 0 whatever the data, so that its term can be left out."""
    return not isinstance(x, Traced) and x == 0


# -- trees ------------------------------------------------------------------------------------------------------------


def flatten_gradients(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, each `Rows` being one, and its structure."""
    leaves, structure = flatten(tree)
    found: list[Any] = []
    return found, _collapsed(structure, iter(leaves), found)


def _collapsed(structure: Structure, leaves: Iterator[Any], found: list[Any]) -> Structure:
    if structure.type is None or structure.type is Rows:
        found.append(unflatten(structure, leaves))
        return _LEAF
    children = tuple(_collapsed(child, leaves, found) for child in structure.children)
    return dataclasses.replace(structure, children=children)


def map_gradients(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `fn` to the array of every gradient; rows that are named twice are summed before."""
    leaves, structure = flatten_gradients(tree)
    return unflatten(structure, [_mapped(fn, leaf) for leaf in leaves])


def _mapped(fn: Callable[[Any], Any], leaf: Any) -> Any:
    if not isinstance(leaf, Rows):
        return fn(leaf)
    rows = leaf.summed()
    return dataclasses.replace(rows, values=fn(rows.values))


def with_paths(params: Any) -> tuple[list[tuple[str, Any]], Structure]:
    """Return the leaves of the parameters with their paths, and the structure."""
    return list(leaves_with_paths(params, "params")), flatten(params)[1]


def match(structure: Structure, tree: Any, name: str, remedy: str) -> list[Any]:
    """Return the leaf of `tree` for each leaf of the parameters; entries of dicts may be in another order."""
    leaves, given = flatten_gradients(tree)
    return _matched(structure, given, iter(leaves), name, remedy)


def _matched(
    own: Structure, given: Structure, leaves: Iterator[Any], path: str, remedy: str
) -> list[Any]:
    if own.type is None and given.type in (None, type(None)):
        return [next(leaves) if given.type is None else None]
    if own.type is not given.type:
        raise _mismatch(f"{path} is {_kind(given)}, where the parameters have {_kind(own)}", remedy)
    paths = {key: path + _step(own, key) for key in (*own.keys, *given.keys)}
    for keys, others, text in (
        (own.keys, given.keys, "{} is missing: the parameters have it"),
        (given.keys, own.keys, "{} belongs to no parameter"),
    ):
        lost = [key for key in keys if key not in others]
        if lost:
            raise _mismatch(text.format(paths[lost[0]]), remedy)
    children = dict(zip(own.keys, own.children))
    found = {
        key: _matched(children[key], child, leaves, paths[key], remedy)
        for key, child in zip(given.keys, given.children)
    }
    return [leaf for key in own.keys for leaf in found[key]]


def _mismatch(message: str, remedy: str) -> DslError:
    return GradientError(f"the trees do not match: {message}", location=here(), remedy=remedy)


def _kind(structure: Structure) -> str:
    if structure.type is None:
        return "an array"
    return "None" if structure.type is type(None) else f"a {structure.type.__name__}"


def _step(structure: Structure, key: Any) -> str:
    return f".{key}" if dataclasses.is_dataclass(structure.type) else f"[{key!r}]"


# -- leaves -----------------------------------------------------------------------------------------------------------


def check_parameter(path: str, leaf: Any) -> None:
    """Refuse what cannot be trained."""
    if not isinstance(leaf, _NUMBERS):
        raise GradientError(
            f"{path} is {leaf!r}: parameters are arrays of floats",
            location=here(), remedy="keep other things outside the tree of parameters",
        )  # fmt: skip
    dtype = _dtype(leaf)
    if not is_inexact(dtype):
        raise GradientError(
            f"{path} is {dtype_name(dtype)}: integers have no gradient", location=here(),
            remedy="make it floats (`.astype(np.float64)`), or keep it outside the tree of parameters",
        )  # fmt: skip
    if is_complex(dtype):
        raise GradientError(
            f"{path} is {dtype_name(dtype)}: optimisers take real parameters", location=here(),
            remedy="keep the real and the imaginary part as two parameters",
        )  # fmt: skip


def check_distinct(leaves: list[tuple[str, Any]]) -> None:
    """Refuse an array that occurs twice: the two would be trained apart, or written twice."""
    seen: dict[int, str] = {}
    for path, leaf in leaves:
        if isinstance(leaf, np.ndarray) and seen.setdefault(id(leaf), path) != path:
            raise GradientError(
                f"{path} is the same array as {seen[id(leaf)]}", location=here(),
                remedy="keep a shared array at one place in the tree and use it twice in the function",
            )  # fmt: skip


def check_writable(path: str, leaf: Any) -> None:
    """Refuse what cannot be written in place."""
    if not is_array(leaf):
        raise TypeRuleError(
            f"{path} is a number, which cannot be written in place", location=here(),
            remedy="make it an array of no dimensions, `np.array(0.0)`, or use the form that returns new parameters",
        )  # fmt: skip


def check_gradient(path: str, p: Any, g: Any) -> None:
    """Refuse a gradient of another shape or kind than its parameter. `path` is the gradient's."""
    if isinstance(g, Rows):
        _check_rows(path, p, g)
    elif g is not None:
        _check_real(path, g)
        _check_shape(path, shape_of(p), shape_of(g))


def _check_rows(path: str, p: Any, g: Rows) -> None:
    _check_real(f"{path}.values", g.values)
    if len(shape_of(g.indices)) != 1 or _dtype(g.indices).kind not in "iu":
        raise TypeRuleError(
            f"{path}.indices must be integers in one dimension, got {_text(g.indices)}", location=here(),
            remedy="flatten them: `indices.reshape(-1)`",
        )  # fmt: skip
    count, *rest = (*shape_of(p), 0) if not shape_of(p) else shape_of(p)
    _check_shape(path, shape_of(p), (g.shape[0] if isinstance(g.shape[0], int) else count, *rest))
    _check_shape(f"{path}.values", (*shape_of(g.indices), *rest), shape_of(g.values))


def _check_real(path: str, g: Any) -> None:
    if not isinstance(g, _NUMBERS) or not is_inexact(_dtype(g)) or is_complex(_dtype(g)):
        raise GradientError(
            f"{path} must be an array of floats, got {_text(g)}", location=here(),
            remedy="pass what `dsl.grad` returns, or None for a parameter without gradient",
        )  # fmt: skip


def _check_shape(path: str, expected: Any, got: Any) -> None:
    fits = len(expected) == len(got) and all(
        m == n for m, n in zip(expected, got) if isinstance(m, int) and isinstance(n, int)
    )
    if not fits:
        raise ShapeError(
            f"{path} must have shape {_shown(expected)}, that of its parameter, got {_shown(got)}", location=here(),
            remedy="pass what `dsl.grad` returns for these parameters",
        )  # fmt: skip


def _dtype(leaf: Any) -> np.dtype:
    return leaf.dtype if isinstance(leaf, (Traced, np.ndarray)) else np.asarray(leaf).dtype


def _text(leaf: Any) -> str:
    if not isinstance(leaf, _NUMBERS):
        return repr(leaf)
    return f"{dtype_name(_dtype(leaf))}[{', '.join(map(str, shape_of(leaf)))}]"


def _shown(shape: Any) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
