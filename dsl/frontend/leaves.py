"""The leaves of a variable's value: what they are in the graph, and what two of them join to.

Dtypes join as NumPy promotes them, Python numbers being weak; dims that differ become symbolic; ranks that differ are the
user's error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.errors import (
    DslError,
)
from dsl.frontend.known_integers import Span, join_spans, span_of
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import TracedOptional
from dsl.frontend.scopes import (
    Alias,
    Scope,
    Storage,
    Trace,
    current_scope,
    current_trace,
    here,
    link,
    may_alias,
)
from dsl.frontend.state import Undefined
from dsl.frontend.traced import (
    Kind,
    Traced,
    cast,
    concrete,
    default_dtype,
    fresh,
    lift,
    read,
    supported_dtype,
)
from dsl.frontend.trees import Structure, forwarded, unflatten
from dsl.ir.dims import Dim, DimLike, Symbol, symbols_of
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, Shape, TensorType

Block = Callable[..., Any]


class BranchRaise(BaseException):
    """A `raise` met while tracing a region: the region always raises when it runs.

    `emitted` says that the graph raises it already, with a message made of values of the run.
    """

    def __init__(self, error: BaseException, emitted: bool = False) -> None:
        self.error, self.emitted = error, emitted


def the_trace() -> Trace:
    trace = current_trace()
    assert trace is not None
    return trace


TRUTH: list[Callable[[Any], Callable[[], Any] | None]] = [lambda test: None]
"""Finds how the user's class tells whether an object is true; set by `own_methods`."""


def predicate(test: Any) -> bool | Value:
    """Return a condition as a Python bool, or as a rank-0 bool value when it is traced."""
    if isinstance(test, Undefined):
        test.fail()
    test = forwarded(test)
    if isinstance(test, TracedList):
        test = test.length() != 0
    if isinstance(test, TracedOptional):
        test = _optional_truth(test)
    if not isinstance(test, Traced):
        own = TRUTH[0](test)
        if own is None:
            return bool(test)
        test = own()
    if not isinstance(test, Traced):
        return bool(test)
    known = concrete(test)
    if known is not None:
        return bool(known)
    value = read(test)
    b = current_scope()
    if value.shape:
        if any(d != 1 for d in value.shape):
            raise _ambiguous()
        value = b.emit("reshape", value, shape=())
    return value if value.dtype == BOOL else b.emit("not_equal", value, b.constant(0, value.dtype))


def _optional_truth(test: TracedOptional) -> Any:
    present = predicate(test.present)
    value = unflatten(test.structure, test.leaves)
    own = predicate(value) if not isinstance(value, tuple) else bool(value)
    b = current_scope()
    sides = [b.constant(x) if isinstance(x, bool) else x for x in (present, own)]
    return fresh(b.emit("logical_and", *sides), Kind.PYTHON)


def _ambiguous() -> ValueError:
    error = ValueError(
        "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
    )
    location = here()
    if location is not None:
        error.add_note(location.excerpt())
    return error


@dataclass(frozen=True)
class Info:
    """What a carried or joined leaf is; of Python integers that are known, the least and the greatest."""

    dtype: np.dtype
    shape: Shape
    kind: Kind
    span: Span | None = field(default=None, compare=False)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __str__(self) -> str:
        return str(self.type) if self.kind is not Kind.PYTHON else f"a Python number ({self.type})"


def info_of(leaf: Any) -> Info:
    """Describe a numeric leaf."""
    if isinstance(leaf, Traced):
        whole = leaf.kind is Kind.PYTHON and leaf.dtype.kind in "iu" and not leaf.views
        span = span_of(leaf.storage.value) if whole else None
        return Info(leaf.dtype, leaf.type.shape, leaf.kind, span)
    if isinstance(leaf, np.ndarray):
        return Info(supported_dtype(leaf.dtype), leaf.shape, Kind.ARRAY)
    if isinstance(leaf, np.generic):
        return Info(supported_dtype(leaf.dtype), (), Kind.SCALAR)
    return Info(default_dtype(leaf), (), Kind.PYTHON, (leaf, leaf) if type(leaf) is int else None)


_WEAK = {"b": False, "i": 0, "f": 0.0, "c": 0j}


def join(a: Info, b: Info, name: str, error: type[DslError], what: str) -> Info:
    """Return what both leaves can be converted to; `what` says where they meet, for the message."""
    if len(a.shape) != len(b.shape):
        raise error(
            f"the variable `{name}` has {what}: {a} and {b} differ in rank",
            location=here(),
            remedy=f"give `{name}` the same number of dimensions everywhere",
        )
    dims = tuple(x if x == y else Symbol("d") for x, y in zip(a.shape, b.shape, strict=True))
    dtype, kind = _join_dtype(a, b), _join_kind(a.kind, b.kind)
    if dtype is None:
        raise error(
            f"the variable `{name}` has {what}: no dtype of integers has all values of {a} and of {b}",
            location=here(),
            remedy=f"give `{name}` numbers of one dtype everywhere",
        )
    return Info(dtype, dims, kind, join_spans(a.span, b.span) if kind is Kind.PYTHON else None)


def _join_dtype(a: Info, b: Info) -> np.dtype | None:
    """Return the dtype of both. A Python integer that is known and not in the range of the other's dtype keeps its value."""
    if a.dtype == b.dtype:
        return a.dtype
    if (a.kind is Kind.PYTHON) == (b.kind is Kind.PYTHON):
        return np.promote_types(a.dtype, b.dtype)
    weak, strong = (a, b) if a.kind is Kind.PYTHON else (b, a)
    dtype = np.result_type(strong.dtype, _WEAK[weak.dtype.kind])
    if weak.span is None or dtype.kind not in "iu" or _is_within(weak.span, dtype):
        return dtype
    wide = np.promote_types(strong.dtype, weak.dtype)
    return wide if wide.kind in "iu" else None


def _is_within(span: Span, dtype: np.dtype) -> bool:
    limits = np.iinfo(dtype)
    return int(limits.min) <= span[0] and span[1] <= int(limits.max)


def _join_kind(a: Kind, b: Kind) -> Kind:
    if a is b:
        return a
    return Kind.ARRAY if Kind.ARRAY in (a, b) else Kind.SCALAR


def leaf_value(leaf: Any, info: Info) -> Value:
    """Return a leaf as a value of the current scope with the dtype of `info`."""
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        return current_scope().constant(np.asarray(leaf).astype(info.dtype))
    return cast(read(lift(leaf)), info.dtype)


def visible_shape(shape: Shape, scope: Scope, met: dict[Any, Dim] | None = None) -> Shape:
    """Return a shape for use outside a region: sizes that only the region knows become fresh symbols, the same ones for shapes
    that share `met`.
    """
    met = {} if met is None else met
    return tuple(d if is_visible(d, scope) else met.setdefault(d, Symbol("d")) for d in shape)


def is_visible(dim: DimLike, scope: Scope | None) -> bool:
    """Tell whether a scope knows all that a size is made of."""
    return all(is_known(symbol, scope) for symbol in symbols_of(dim))


def is_known(symbol: Dim, scope: Scope | None) -> bool:
    while scope is not None:
        if scope.knows(symbol):
            return True
        scope = scope.parent
    return False


def zeros(info: Info, scope: Scope) -> Value:
    """Return a placeholder of the type of `info`, sizes that are not known here being 0."""
    shape = tuple(d if is_visible(d, scope) else 0 for d in info.shape)
    zero = scope.constant(np.zeros((), info.dtype))
    return scope.emit("full", zero, shape=shape) if shape else zero


def describe(structure: Structure) -> str:
    if structure.type is None:
        return "a number, an array or another object"
    if structure.type is TracedList:
        return "a list as long as the data decides"
    return "None" if structure.type is type(None) else f"a {structure.type.__name__} ({structure})"


def identical(a: Any, b: Any) -> bool:
    return bool(np.asarray(a).tobytes() == np.asarray(b).tobytes())


def same_view(a: Any, b: Any) -> bool:
    if not (isinstance(a, Traced) and isinstance(b, Traced)):
        return False
    return (
        a.kind is Kind.ARRAY and a.kind is b.kind and a.storage is b.storage and a.views == b.views
    )


def is_traced_array(leaf: Any) -> bool:
    return isinstance(leaf, Traced) and leaf.kind is Kind.ARRAY


def link_when(
    storage: Storage, other: Storage, leaf: Traced, when: Value, scope: Scope, exchange: object = None
) -> None:  # fmt: skip
    """Record that an array is another one when `when` is true; it came of `leaf`, which may have been a part of it."""
    if leaf.views or other.value.type != storage.value.type:
        may_alias(storage, other)
    else:
        link(storage, other, when, scope, exchange)


Ways = list[tuple[Storage, list[Alias] | None]]
"""Storages, and the links that lead to them; None where whether they are the same memory cannot be told."""


def ways_out(leaf: Any, scope: Scope) -> Ways:
    """Return the storages outside of a region that an array made in it may be."""
    if not is_traced_array(leaf) or not scope.encloses(leaf.storage.scope):
        return []
    found: Ways = []
    pending: Ways = [(leaf.storage, [])]
    seen: list[Storage] = []
    while pending:
        storage, path = pending.pop()
        seen.append(storage)
        for other, further in _next_to(storage, path, scope):
            if not scope.encloses(other.scope):
                found.append((other, further))
            elif not any(other is each for each in seen):
                pending.append((other, further))
    return found


def _next_to(storage: Storage, path: list[Alias] | None, scope: Scope) -> Ways:
    """Return the storages that may be the same memory as one."""
    edges = [edge for edge in storage.aliases if edge.scope.encloses(scope)]
    made: Ways = [
        (edge.other_than(storage), None if path is None else [*path, edge]) for edge in edges
    ]
    return made + [(other, None) for ref in storage.ambiguous if (other := ref()) is not None]


def unchecked_value(leaf: Any, info: Info) -> Value:
    """Read a leaf without asking whether it is defined: carrying is not using."""
    if isinstance(leaf, Traced) and leaf.storage.defined is not None:
        defined, leaf.storage.defined = leaf.storage.defined, None
        try:
            return leaf_value(leaf, info)
        finally:
            leaf.storage.defined = defined
    return leaf_value(leaf, info)


def contents_of(storage: Storage) -> Value:
    """Read a storage without asking whether its variable is defined."""
    return storage.contents()


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or (isinstance(leaf, Traced) and leaf.kind is Kind.ARRAY)


def are_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False


def count_leaves(structure: Structure) -> int:
    return 1 if structure.type is None else sum(map(count_leaves, structure.children))


def are_tuples(a: Structure, b: Structure) -> bool:
    """Tell whether structures are of tuples of one kind, of as many items."""
    alike = (a.type, a.keys) == (b.type, b.keys)
    return alike and isinstance(a.type, type) and issubclass(a.type, tuple)


def parts_of(structure: Structure, leaves: list[Any]) -> list[tuple[Structure, list[Any]]]:
    """Return the structures of the items of a tuple, and their leaves."""
    rest = list(leaves)
    return [(s, [rest.pop(0) for _ in range(count_leaves(s))]) for s in structure.children]
