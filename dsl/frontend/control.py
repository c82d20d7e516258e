"""Control flow on traced values: trace the blocks of `if`, `while` and `for` as regions of `cond`, `while` and `scan`.

A branch is traced from the same state as its sibling; what they leave in the variables and arrays is joined. A loop's body
is traced again until what it carries is stable: the variables that it rebinds, the arrays that it writes, and their types.
Dtypes join as NumPy promotes them, Python numbers being weak; dims that differ become symbolic; ranks that differ are the
user's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import (
    AliasError,
    BranchError,
    ConversionError,
    DslError,
    LoopTypeError,
    NonConcreteError,
    UndefinedError,
)
from dsl.frontend.lists import TracedList, as_traced_list, item_layout
from dsl.frontend.loops import Span, as_counted, trip_value
from dsl.frontend.optional import TracedOptional
from dsl.frontend.scopes import (
    Scope,
    Storage,
    Trace,
    current_scope,
    current_trace,
    here,
    link,
    may_alias,
)
from dsl.frontend.state import Snapshot, State, Undefined, is_mutable, is_numeric, refill
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
from dsl.frontend.trees import Structure, flatten, unflatten
from dsl.ir.dims import Dim, Symbol, symbols_of
from dsl.ir.graph import Graph, Value
from dsl.ir.types import BOOL, I64, Shape, TensorType, scalar
from dsl.logs import log

__all__ = ["BranchRaise", "for_", "if_", "predicate", "while_"]

Block = Callable[..., Any]
_ATTEMPTS = 12
RESULT = "dsl__result"
_FLAGS = ("dsl__break", "dsl__continue", "dsl__done")


class BranchRaise(BaseException):
    """A `raise` met while tracing a region: the region always raises when it runs."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def the_trace() -> Trace:
    trace = current_trace()
    assert trace is not None
    return trace


# -- predicates and types ----------------------------------------------------------------------------------------


def predicate(test: Any) -> bool | Value:
    """Return a condition as a Python bool, or as a rank-0 bool value when it is traced."""
    if isinstance(test, Undefined):
        test.fail()
    if isinstance(test, TracedList):
        test = test.length() != 0
    if isinstance(test, TracedOptional):
        test = _optional_truth(test)
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
    """What a carried or joined leaf is."""

    dtype: np.dtype
    shape: Shape
    kind: Kind

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __str__(self) -> str:
        return str(self.type) if self.kind is not Kind.PYTHON else f"a Python number ({self.type})"


def info_of(leaf: Any) -> Info:
    """Describe a numeric leaf."""
    if isinstance(leaf, Traced):
        return Info(leaf.dtype, leaf.type.shape, leaf.kind)
    if isinstance(leaf, np.ndarray):
        return Info(supported_dtype(leaf.dtype), leaf.shape, Kind.ARRAY)
    if isinstance(leaf, np.generic):
        return Info(supported_dtype(leaf.dtype), (), Kind.SCALAR)
    return Info(default_dtype(leaf), (), Kind.PYTHON)


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
    return Info(_join_dtype(a, b), dims, _join_kind(a.kind, b.kind))


def _join_dtype(a: Info, b: Info) -> np.dtype:
    if a.dtype == b.dtype:
        return a.dtype
    if (a.kind is Kind.PYTHON) == (b.kind is Kind.PYTHON):
        return np.promote_types(a.dtype, b.dtype)
    weak, strong = (a, b) if a.kind is Kind.PYTHON else (b, a)
    return np.result_type(strong.dtype, _WEAK[weak.dtype.kind])


def _join_kind(a: Kind, b: Kind) -> Kind:
    if a is b:
        return a
    return Kind.ARRAY if Kind.ARRAY in (a, b) else Kind.SCALAR


def leaf_value(leaf: Any, info: Info) -> Value:
    """Return a leaf as a value of the current scope with the dtype of `info`."""
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        return current_scope().constant(np.asarray(leaf).astype(info.dtype))
    return cast(read(lift(leaf)), info.dtype)


def _visible(shape: Shape, scope: Scope) -> Shape:
    """Return a shape for use outside a region: sizes that only the region knows become fresh symbols."""
    return tuple(d if all(_known(s, scope) for s in symbols_of(d)) else Symbol("d") for d in shape)


def _known(symbol: Dim, scope: Scope | None) -> bool:
    while scope is not None:
        if scope.knows(symbol):
            return True
        scope = scope.parent
    return False


def zeros(info: Info, scope: Scope) -> Value:
    """Return a placeholder of the type of `info`, sizes that are not known here being 0."""
    shape = tuple(d if all(_known(s, scope) for s in symbols_of(d)) else 0 for d in info.shape)
    zero = scope.constant(np.zeros((), info.dtype))
    return scope.emit("full", zero, shape=shape) if shape else zero


# -- if ----------------------------------------------------------------------------------------------------------


@dataclass
class Branch:
    """One traced branch: what it left in the cells and in storages from outside."""

    scope: Scope
    after: Snapshot
    contents: dict[Storage, Value]
    raised: bool


def if_(
    test: Any,
    then: Block,
    otherwise: Block,
    get: Any,
    put: Any,
    names: tuple[str, ...],
    assigned: int,
) -> None:
    """Run an `if` statement."""
    chosen = predicate(test)
    if isinstance(chosen, bool):
        (then if chosen else otherwise)()
        return
    _refuse_try()
    state = State(get, put, names, assigned)
    before, branches = _trace_branches(state, then, otherwise)
    _join_branches(chosen, state, before, branches)


def _refuse_try() -> None:
    if the_trace().trying:
        raise ConversionError(
            "a `try` around control flow that depends on traced values cannot be converted",
            location=here(),
            remedy="move the `try` outside the decorated function, or test the condition instead of catching the error",
        )


def _trace_branches(state: State, then: Block, otherwise: Block) -> tuple[Snapshot, list[Branch]]:
    while True:
        before = state.snapshot()
        branches = [
            _trace_branch(state, before, then, "then"),
            _trace_branch(state, before, otherwise, "else"),
        ]
        if not state.adopt_attributes(*(b.scope for b in branches)) and not _grow_lists(
            state, before, [b.after for b in branches if not b.raised]
        ):
            return before, branches
        _discard(*(b.scope for b in branches))


def _grow_lists(
    state: State, before: Snapshot, afters: list[Snapshot], unrollable: bool = False
) -> bool:
    """Make traced lists of variables that hold lists of other lengths after a block than before; tell whether there were any."""
    objects = list(before.objects)
    for cell, item in enumerate(before.objects):
        if type(item) is list:
            ends = [a.objects_then[cell] for a in afters]
            grown = next((e for e in ends if isinstance(e, TracedList)), None)
            lengths = {len(item), *(len(e) for e in ends if type(e) is list)}
            if grown is None and (len(lengths) == 1 or unrollable):
                continue
            found = (
                grown.spec()
                if grown is not None
                else _list_spec([item, *(e for e in ends if type(e) is list)])
            )
            if found is not None:
                objects[cell] = as_traced_list(item, *found)
    if all(a is b for a, b in zip(objects, before.objects, strict=True)):
        return False
    state.put(objects)
    return True


def _list_spec(lists: list[list[Any]]) -> Any:
    return item_layout(
        [item for items in lists for item in items],
        lambda leaf: info_of(leaf) if is_numeric(leaf) else None,
    )


def _discard(*scopes: Scope) -> None:
    for scope in scopes:
        scope.closed = True


def _trace_branch(state: State, before: Snapshot, block: Block, name: str) -> Branch:
    trace, raised = the_trace(), False
    with trace.region(name) as scope:
        try:
            block()
        except BranchRaise as signal:
            raised = True
            emit_raise(signal.error)
        except BaseException:
            scope.suspend()
            state.restore(before)
            raise
        after = _typed(state.snapshot())
        contents = scope.suspend()
    state.restore(before)
    return Branch(scope, after, contents, raised)


def _typed(snapshot: Snapshot) -> Snapshot:
    """Let views find their types now: outside their region they cannot be read."""
    for leaves in snapshot.leaves:
        for leaf in leaves:
            if isinstance(leaf, Traced) and not leaf.storage.scope.closed:
                _ = leaf.type
    return snapshot


def emit_raise(error: BaseException) -> None:
    """Make the current region raise."""
    from dsl.ir.ops.state import known_error

    message = (
        str(error) if not isinstance(error, KeyError) else str(error.args[0] if error.args else "")
    )
    values = tuple(read(v) for v in getattr(error, "dsl_values", ()))
    template = message if values else message.replace("{", "{{").replace("}", "}}")
    b = current_scope()
    b.node(
        "assert",
        (b.constant(False), *values),
        {"message": template, "error": known_error(type(error))},
    )


@dataclass
class Joined:
    """The joined leaves: the value of each branch, where the result goes, and which results have a flag of definedness."""

    pairs: list[tuple[Any, Any, Info]] = field(default_factory=list)
    results: list[Traced] = field(default_factory=list)
    flagged: list[tuple[Traced, Traced, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, a: Any, b: Any, info: Info, name: str = "") -> Traced:
        placeholder = Traced.__new__(Traced)
        placeholder.kind, placeholder.views, placeholder._type = info.kind, (), None
        self.pairs.append((a, b, info))
        self.results.append(placeholder)
        self.names.append(name)
        self._add_flag(placeholder, a, b)
        return placeholder

    def _add_flag(self, traced: Traced, a: Any, b: Any) -> None:
        """A variable that one branch leaves perhaps undefined stays so."""
        known = [
            leaf.storage.defined
            for leaf in (a, b)
            if isinstance(leaf, Traced) and leaf.storage.defined is not None
        ]
        if known:
            flags = [_flag_leaf(leaf) for leaf in (a, b)]
            self.flagged.append(
                (traced, self.add(flags[0], flags[1], Info(BOOL, (), Kind.PYTHON)), known[0][2])
            )


def _flag_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Traced) or leaf.storage.defined is None:
        return True
    value, scope, _ = leaf.storage.defined
    return Traced(Storage(value, scope), (), Kind.PYTHON)


_BOTTOM = object()


def _join_branches(pred: Value, state: State, before: Snapshot, branches: list[Branch]) -> None:
    then, other = branches
    joined = Joined()
    cells = [
        _join_cell(state, cell, before, then, other, joined) for cell in range(len(before.objects))
    ]
    storages = list(dict.fromkeys([*then.contents, *other.contents]))
    parent = current_scope()
    values = [_branch_values(branch, k, joined, storages) for k, branch in enumerate(branches)]
    results = _emit_cond(pred, parent, branches, values, joined, storages)
    for storage, value in zip(storages, results[len(joined.results) :], strict=True):
        storage.set(value)
    for traced, value, (a, b, info), name in zip(
        joined.results, results, joined.pairs, joined.names, strict=False
    ):
        traced.storage = Storage(value, parent)
        if info.kind is Kind.ARRAY and name != RESULT:
            _note_aliases(traced.storage, (a, b), branches, pred, parent)
    for traced, flag, name in joined.flagged:
        traced.storage.defined = (flag.storage.value, parent, name)
    objects = [
        _install(before, cell, structure, leaves, _unchanged(before, cell, branches))
        for cell, (structure, leaves) in enumerate(cells)
    ]
    state.commit(objects, before)
    _discard(then.scope, other.scope)


def _install(
    snapshot: Snapshot, cell: int, structure: Structure, leaves: list[Any], same: bool = True
) -> Any:
    """Return the object of a cell with new leaves: the `same` container, if it can change, or a new one."""
    item = snapshot.objects[cell]
    if structure.type is not None and not (same and is_mutable(item)):
        kept = structure == snapshot.structures[cell] and all(
            x is y for x, y in zip(leaves, snapshot.leaves[cell], strict=True)
        )
        return item if kept and same else unflatten(structure, leaves)
    if structure.type is None:
        return leaves[0]
    if structure == snapshot.structures[cell] and all(
        x is y for x, y in zip(leaves, snapshot.leaves[cell], strict=True)
    ):
        return item
    if structure == snapshot.structures[cell]:
        refill(item, structure, leaves)
        return item
    return unflatten(structure, leaves)


def _unchanged(before: Snapshot, cell: int, branches: list[Branch]) -> bool:
    """Tell whether a variable holds the same object after both branches as before."""
    return all(b.raised or b.after.objects[cell] is before.objects[cell] for b in branches)


def _join_cell(
    state: State, cell: int, before: Snapshot, then: Branch, other: Branch, joined: Joined
) -> tuple[Structure, list[Any]]:
    name = state.names[cell]
    for one, two in ((then, other), (other, then)):
        if one.raised:
            leaves = two.after.leaves[cell]
            return two.after.structures[cell], [
                _join_bottom(leaf, one is then, joined, before, two) for leaf in leaves
            ]
    a, b = then.after.structures[cell], other.after.structures[cell]
    pair = then.after.leaves[cell], other.after.leaves[cell]
    for k, one in enumerate((then, other)):
        missing = _is_missing((pair[k] or [None])[0]) and (a, b)[k].type is None
        if missing and (name.startswith("dsl__") or _jumps(state, one.after)):
            return _join_absent(pair[1 - k], (a, b)[1 - k], k, joined)
    if a != b:
        optional = _join_optional(pair, (a, b), joined)
        if optional is not None:
            return _leaf(optional)
        if name == RESULT:
            return _leaf(_join_results(pair, (a, b), joined))
        return _leaf(_join_odd(name, pair, (a, b)))
    return a, [_join_leaf(name, x, y, joined) for x, y in zip(*pair, strict=True)]


def _absent_optional(structure: Structure, leaves: list[Any]) -> TracedOptional:
    """An optional without a value, whose value would have these leaves' types."""
    if structure.type is TracedOptional:
        structure, leaves = structure.keys[0], leaves[1:]
    scope = current_scope()
    blank = [
        Traced(Storage(zeros(info, scope), scope), (), info.kind) for info in map(info_of, leaves)
    ]
    return TracedOptional(structure, False, blank)


def _is_missing(leaf: Any) -> bool:
    return isinstance(leaf, Undefined) and not isinstance(leaf, Either)


def _jumps(state: State, after: Snapshot) -> bool:
    """Tell whether a branch leaves by `break`, `continue` or `return`, so that what it does not define is not read."""
    flags = zip(state.names, after.leaves, strict=True)
    return any(
        name.startswith(_FLAGS) and leaves[:1] == [True]
        for name, leaves in flags
        if leaves and isinstance(leaves[0], bool)
    )


def _join_absent(
    leaves: list[Any], structure: Structure, k: int, joined: Joined
) -> tuple[Structure, list[Any]]:
    """Join with a branch that has no value and after which none is needed."""
    made = [
        _absent_either(leaf, k, joined)
        if isinstance(leaf, Either)
        else leaf
        if not is_numeric(leaf)
        else joined.add(_BOTTOM, leaf, info_of(leaf))
        if k == 0
        else joined.add(leaf, _BOTTOM, info_of(leaf))
        for leaf in leaves
    ]
    return structure, made


_FLAG = Info(BOOL, (), Kind.PYTHON)


class Either(Undefined):
    """A result whose structure depends on traced conditions: decided when it is delivered to the caller, of no use before.

    `alternatives` maps numbers of structures, the same all through a trace, to the leaves; `chosen` is the number.
    """

    __slots__ = ("alternatives", "chosen")

    def __init__(self, chosen: Any, alternatives: dict[int, list[Any]]) -> None:
        known = the_trace().structures
        what = " or ".join(_describe(known[k][0]) for k in alternatives)
        super().__init__(
            "result",
            f"is {what}, depending on a traced condition",
            "return one kind of object, or use it only in the caller",
        )
        self.chosen, self.alternatives = chosen, alternatives

    @classmethod
    def of(cls, leaves: list[Any], structure: Structure) -> Either:
        """Return any tree as a result with one alternative."""
        if structure.type is None and isinstance(leaves[0], Either):
            return leaves[0]
        fixed = [None if is_numeric(leaf) else leaf for leaf in leaves]
        known = the_trace().structures
        for k, (own, statics) in enumerate(known):
            if own == structure and all(
                x is y or _equal(x, y) for x, y in zip(fixed, statics, strict=True)
            ):
                return cls(k, {k: leaves})
        known.append((structure, fixed))
        return cls(len(known) - 1, {len(known) - 1: leaves})


def _join_optional(
    pair: tuple[list[Any], list[Any]], structures: tuple[Structure, Structure], joined: Joined
) -> TracedOptional | None:
    """Join None with a value, or with an optional one."""
    for k in (0, 1):
        value, leaves = structures[1 - k], pair[1 - k]
        if any(isinstance(leaf, Undefined) for leaf in (*leaves, *pair[k])) or not all(
            map(is_numeric, leaves)
        ):
            continue
        if structures[k].type is type(None):
            if value.type is TracedOptional:
                flag = (
                    joined.add(False, leaves[0], _FLAG)
                    if k == 0
                    else joined.add(leaves[0], False, _FLAG)
                )
                return TracedOptional(
                    value.keys[0], flag, _join_absent(leaves[1:], value, k, joined)[1]
                )
            flag = joined.add(k == 1, k == 0, _FLAG)
            return TracedOptional(value, flag, _join_absent(leaves, value, k, joined)[1])
        if structures[k].type is TracedOptional and structures[k].keys[0] == value:
            own = pair[k]
            flag = joined.add(own[0], True, _FLAG) if k == 0 else joined.add(True, own[0], _FLAG)
            ordered = (own[1:], leaves) if k == 0 else (leaves, own[1:])
            return TracedOptional(
                value, flag, [_join_leaf("", x, y, joined) for x, y in zip(*ordered, strict=True)]
            )
    return None


def _join_results(
    pair: tuple[list[Any], list[Any]], structures: tuple[Structure, Structure], joined: Joined
) -> Either:
    one, two = (Either.of(leaves, s) for leaves, s in zip(pair, structures, strict=True))
    chosen = joined.add(one.chosen, two.chosen, Info(I64, (), Kind.PYTHON))
    return Either(
        chosen,
        {
            k: _join_alternative(k, one, two, joined)
            for k in {**one.alternatives, **two.alternatives}
        },
    )


def _join_alternative(k: int, one: Either, two: Either, joined: Joined) -> list[Any]:
    if k in one.alternatives and k in two.alternatives:
        pairs = zip(one.alternatives[k], two.alternatives[k], strict=True)
        return [_join_leaf("dsl__result", x, y, joined) for x, y in pairs]
    side = 1 if k in one.alternatives else 0
    structure = the_trace().structures[k][0]
    return _join_absent((one if side else two).alternatives[k], structure, side, joined)[1]


def _absent_either(leaf: Either, k: int, joined: Joined) -> Either:
    (chosen,) = _join_absent([leaf.chosen], Structure(None), k, joined)[1]
    structures = the_trace().structures
    return Either(
        chosen,
        {
            j: _join_absent(own, structures[j][0], k, joined)[1]
            for j, own in leaf.alternatives.items()
        },
    )


def _leaf(item: Any) -> tuple[Structure, list[Any]]:
    leaves, structure = flatten(item)
    return structure, leaves


def _join_bottom(
    leaf: Any, bottom_first: bool, joined: Joined, before: Snapshot, live: Branch
) -> Any:
    """Join with a branch that raised: the other branch's leaf is the result."""
    outside = not isinstance(leaf, Traced) or not live.scope.encloses(leaf.storage.scope)
    if not is_numeric(leaf) or (
        outside and (not isinstance(leaf, Traced) or leaf.storage not in live.contents)
    ):
        return leaf
    if isinstance(leaf, Traced) and leaf.storage in live.contents:
        return leaf
    info = info_of(leaf)
    return joined.add(_BOTTOM, leaf, info) if bottom_first else joined.add(leaf, _BOTTOM, info)


def _join_odd(
    name: str, pair: tuple[list[Any], list[Any]], structures: tuple[Structure, Structure]
) -> Any:
    """Join cells of different structure: one may be undefined."""
    sides = [
        leaves[0] if s.type is None else None for leaves, s in zip(pair, structures, strict=True)
    ]
    for k in (0, 1):
        if isinstance(sides[k], Undefined):
            return _half_defined(name, pair[1 - k], structures[1 - k])
    return Undefined(
        name,
        f"is {_describe(structures[0])} after one branch of an `if` and {_describe(structures[1])} after the other",
        f"give `{name}` the same structure in both branches",
        error=BranchError,
    )


def _describe(structure: Structure) -> str:
    if structure.type is None:
        return "a number, an array or another object"
    return "None" if structure.type is type(None) else f"a {structure.type.__name__} ({structure})"


def _half_defined(name: str, leaves: list[Any], structure: Structure) -> Undefined:
    single = leaves[0] if structure.type is None and is_numeric(leaves[0]) else None
    return Undefined(
        name,
        "is defined in one branch of an `if` only",
        f"give `{name}` a value before the `if`, or in both branches",
        defined=None if single is None else info_of(single),
    )


def _join_leaf(name: str, a: Any, b: Any, joined: Joined) -> Any:
    if a is b or _same_view(a, b):
        return a
    if isinstance(a, Undefined) or isinstance(b, Undefined):
        if name == RESULT and (isinstance(a, Either) or isinstance(b, Either)):
            return _join_results(([a], [b]), (Structure(None), Structure(None)), joined)
        if isinstance(a, Undefined) and isinstance(b, Undefined):
            return a if a.reason else b
        return _half_defined(name, [b if isinstance(a, Undefined) else a], Structure(None))
    if is_numeric(a) and is_numeric(b):
        if type(a) is type(b) and not isinstance(a, (Traced, np.ndarray)) and _identical(a, b):
            return a
        try:
            info = join(
                info_of(a),
                info_of(b),
                name,
                BranchError,
                "different types in the branches of an `if`",
            )
        except BranchError as error:
            reason = error.message.removeprefix(f"the variable `{name}` ")
            return Undefined(name, reason, error.remedy, error=BranchError)
        return joined.add(a, b, info, name)
    if type(a) is type(b) and _equal(a, b):
        return a
    if name == RESULT:
        return _join_results(([a], [b]), (Structure(None), Structure(None)), joined)
    return Undefined(
        name,
        f"is {a!r} after one branch of an `if` and {b!r} after the other, and the condition is traced",
        "use numbers or arrays, which can be chosen at run time",
        error=BranchError,
    )


def _identical(a: Any, b: Any) -> bool:
    return bool(np.asarray(a).tobytes() == np.asarray(b).tobytes())


def _same_view(a: Any, b: Any) -> bool:
    if not (isinstance(a, Traced) and isinstance(b, Traced)):
        return False
    return (
        a.kind is Kind.ARRAY and a.kind is b.kind and a.storage is b.storage and a.views == b.views
    )


def _branch_values(
    branch: Branch, side: int, joined: Joined, storages: list[Storage]
) -> list[Value]:
    with the_trace().resumed(branch.scope, branch.contents):
        values = [
            zeros(info, branch.scope) if pair[side] is _BOTTOM else _uncheck(pair[side], info)
            for *pair, info in joined.pairs
        ]
        return values + [_contents(storage) for storage in storages]


def _emit_cond(
    pred: Value,
    parent: Scope,
    branches: list[Branch],
    values: list[list[Value]],
    joined: Joined,
    storages: list[Storage],
) -> tuple[Value, ...]:
    if not values[0] and not any(b.scope._last_effect for b in branches):
        return ()
    types = [
        TensorType(info.dtype, _join_shape(pair, parent))
        for (*_, info), *pair in zip(joined.pairs, *values, strict=False)
    ]
    types += [s.value.tensor for s in storages]
    captures = list(dict.fromkeys(outer for b in branches for outer in b.scope.captured))
    regions = [region_of(b.scope, captures, v) for b, v in zip(branches, values, strict=True)]
    return parent.node("cond", (pred, *captures), {}, regions=regions, types=types).outputs


def _join_shape(pair: list[Value], parent: Scope) -> Shape:
    a, b = (v.shape for v in pair)
    same = tuple(x if x == y else Symbol("d") for x, y in zip(a, b, strict=True))
    return _visible(same, parent)


def region_of(
    scope: Scope, captures: Sequence[Value], results: Sequence[Value], leading: Sequence[Value] = ()
) -> Graph:
    """Finish a scope as a region whose params are `leading`, then one for each capture."""
    params = [
        scope.captured[outer] if outer in scope.captured else scope.param(outer.type, "")
        for outer in captures
    ]
    graph = scope.finish(results)
    return Graph(scope.name, (*leading, *params), graph.results, graph.effects)


def _note_aliases(
    storage: Storage, leaves: tuple[Any, Any], branches: list[Branch], pred: Value, parent: Scope
) -> None:
    """The joined array is, by the predicate, an array from outside that one branch or the other named."""
    if _BOTTOM in leaves:
        return
    for k, (leaf, branch) in enumerate(zip(leaves, branches, strict=True)):
        if not _is_traced_array(leaf):
            continue
        if branch.scope.encloses(leaf.storage.scope):
            _note_inner_aliases(storage, leaf.storage, branch.scope)
            continue
        when = pred if k == 0 else parent.emit("logical_not", pred)
        _link(storage, leaf, when, parent)


def _note_inner_aliases(storage: Storage, inner: Storage, scope: Scope) -> None:
    """An array made in a region that may be one from outside: later writes to what it became are refused."""
    for edge in inner.aliases:
        other = edge.other_than(inner)
        if other is not None and not scope.encloses(other.scope):
            may_alias(storage, other)


def _is_traced_array(leaf: Any) -> bool:
    return isinstance(leaf, Traced) and leaf.kind is Kind.ARRAY


def _link(storage: Storage, leaf: Traced, when: Value, scope: Scope) -> None:
    if leaf.views or leaf.storage.value.type != storage.value.type:
        may_alias(storage, leaf.storage)
    else:
        link(storage, leaf.storage, when, scope)


# -- loops -------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What a loop carries, as known so far: rebound leaves by (cell, leaf), and storages that the body writes."""

    rebound: dict[tuple[int, int], Info] = field(default_factory=dict)
    structures: dict[int, Structure] = field(default_factory=dict)
    maybe: dict[int, str] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    lost: dict[int, Undefined] = field(default_factory=dict)

    def key(self) -> Any:
        infos = tuple(
            (k, i.dtype, i.kind, len(i.shape), tuple(isinstance(d, Dim) for d in i.shape))
            for k, i in self.rebound.items()
        )
        return infos, tuple(self.maybe), len(self.storages), tuple(self.lost)


@dataclass
class Pass:
    """One traced region of a loop: its scope and the params of what is carried."""

    scope: Scope
    trip: Value | None
    params: list[Value]
    leaves: dict[tuple[int, int], Traced]
    flags: dict[int, Value]
    installed: list[list[Any]]
    objects: list[Any]


Moves = dict[tuple[int, int], tuple[int, int]]


class Loop:
    """A `while` or `for` statement being traced."""

    def __init__(
        self, state: State, body: Block, test: Block | None, counted: Any, items: tuple[str, ...]
    ) -> None:
        self.state, self.body, self.test, self.counted, self.items = (
            state,
            body,
            test,
            counted,
            items,
        )
        self.trips: Value | None = None
        self.static_trips: int | None = None
        if counted is not None:
            count = counted.trips()
            self.static_trips = count if isinstance(count, int) else None
            self.trips = trip_value(count)
        self.before = state.snapshot()
        self.plan = self._first_plan()

    # -- what is carried -----------------------------------------------------------------------------------------

    def _first_plan(self) -> Plan:
        plan = Plan()
        for cell, leaves in enumerate(self.before.leaves):
            for k, leaf in enumerate(leaves):
                if self.state.is_assigned(cell) and is_numeric(leaf) and not _is_array(leaf):
                    plan.rebound[cell, k] = info_of(leaf)
        for name, cell_leaves in zip(self.state.names, self.before.leaves, strict=True):
            if name in self.items:
                for leaf in cell_leaves:
                    if (
                        isinstance(leaf, Traced)
                        and leaf.kind is Kind.ARRAY
                        and leaf.storage not in plan.storages
                    ):
                        plan.storages.append(leaf.storage)
        self._use_hint(plan)
        return plan

    def _hint_key(self) -> Any:
        return id(self.body.__code__), tuple(str(s) for s in self.before.structures)

    def _use_hint(self, plan: Plan) -> None:
        """Start from what an earlier trace of the same loop found."""
        hint = the_trace().hints.get(self._hint_key())
        if hint is None:
            return
        for (cell, k), info in hint.items():
            leaves = self.before.leaves[cell]
            if k < len(leaves) and is_numeric(leaves[k]):
                own = plan.rebound.get((cell, k), info_of(leaves[k]))
                if len(own.shape) == len(info.shape) and own.shape == info.shape:
                    plan.rebound[cell, k] = join(own, info, "", LoopTypeError, "")

    # -- tracing -------------------------------------------------------------------------------------------------

    def trace(self) -> None:
        """Trace until the plan is stable, then build the loop; raises with the state as before if that fails."""
        trace = the_trace()
        try:
            for _ in range(_ATTEMPTS):
                found = self._attempt(trace)
                if found is not None:
                    trace.hints[self._hint_key()] = dict(self.plan.rebound)
                    return self._build(*found)
        except BaseException:
            self.state.restore(self.before)
            raise
        raise LoopTypeError(
            "the types of this loop's variables do not settle",
            location=here(),
            remedy="keep each variable's shape the same in every trip",
        )

    def _attempt(
        self, trace: Trace
    ) -> tuple[Pass | None, Value | None, Pass, Snapshot, dict[Storage, Value]] | None:
        test, chosen = self._trace_test(trace) if self.test is not None else (None, None)
        with trace.region("body") as scope:
            try:
                run = self._enter(scope)
                self._run_body(run)
                after = _typed(self.state.snapshot())
            finally:
                replaced = [s for s in scope.replaced if s not in self.plan.storages]
                contents = scope.suspend()
        self.state.restore(self.before)
        if (
            self.state.adopt_attributes(scope)
            or _grow_lists(self.state, self.before, [after], self._unrollable())
            or self._allow_none(after)
        ):
            self.before = self.state.snapshot()
            self.plan = self._first_plan()
            return None
        if self._widen(run, after, contents, replaced, trace):
            _discard(scope, *([test.scope] if test else []))
            return None
        return test, chosen, run, after, contents

    def _unrollable(self) -> bool:
        return self.static_trips is not None and self.static_trips <= config.unroll_limit

    def _allow_none(self, after: Snapshot) -> bool:
        """Make optionals of variables that are None on one side of a trip and have a value on the other."""
        objects = list(self.before.objects)
        for cell, structure in enumerate(self.before.structures):
            end = after.structures[cell]
            if structure == end or not self.state.is_assigned(cell):
                continue
            if structure.type is type(None) and all(map(is_numeric, after.leaves[cell])):
                objects[cell] = _absent_optional(end, after.leaves[cell])
            elif (end.type is type(None) and all(map(is_numeric, self.before.leaves[cell]))) or (
                end.type is TracedOptional and end.keys[0] == structure
            ):
                objects[cell] = TracedOptional(structure, True, self.before.leaves[cell])
        if all(a is b for a, b in zip(objects, self.before.objects, strict=True)):
            return False
        self.state.put(objects)
        return True

    def _trace_test(self, trace: Trace) -> tuple[Pass, Value]:
        with trace.region("cond") as scope:
            try:
                run = self._enter(scope)
                chosen = self._evaluate_test(run)
                written = [s for s in scope.replaced if s not in self.plan.storages]
            finally:
                scope.suspend()
        self.state.restore(self.before)
        if written:
            raise ConversionError(
                "the condition of this loop writes into an array",
                location=here(),
                remedy="write in the loop's body",
            )
        return run, chosen

    def _evaluate_test(self, run: Pass) -> Value:
        assert self.test is not None
        b = current_scope()
        if run.trip is not None:
            assert self.trips is not None
            assert b.parent is not None
            more = b.emit("less", run.trip, b.local(self.trips, b.parent))
            rest = predicate(self.test())
            return (
                b.emit("logical_and", more, rest)
                if isinstance(rest, Value)
                else more
                if rest
                else b.constant(False)
            )
        chosen = predicate(self.test())
        if isinstance(chosen, bool):
            if self.static_test_is_final(chosen):
                raise _StaticTest(chosen)
            return b.constant(chosen)
        return chosen

    def static_test_is_final(self, chosen: bool) -> bool:
        """A condition that Python decides even with traced variables: Python runs the loop."""
        return True

    def _enter(self, scope: Scope) -> Pass:
        """Give a region params for all that is carried, and install them in the cells and storages."""
        scope.loc = here()
        counting = self.counted is not None
        trip = scope.param(scalar(I64), "trip") if counting else None
        leaves, flags, params = {}, {}, []
        for (cell, k), info in self.plan.rebound.items():
            name = self.state.names[cell]
            param = scope.param(info.type, name if not name.startswith("dsl__") else "")
            params.append(param)
            leaves[cell, k] = Traced(Storage(param, scope), (), info.kind)
        for cell, name in self.plan.maybe.items():
            flags[cell] = scope.param(scalar(BOOL), f"{name}_defined")
            params.append(flags[cell])
            for (own, _), traced in leaves.items():
                if own == cell and not name.startswith("dsl__"):
                    traced.storage.defined = (flags[cell], scope, name)
        for storage in self.plan.storages:
            params.append(self._carry(storage, scope))
        installed, objects = self._install(leaves)
        return Pass(scope, trip, params, leaves, flags, installed, objects)

    def _carry(self, storage: Storage, scope: Scope) -> Value:
        param = scope.param(storage.value.tensor, self._name_of(storage))
        scope.replaced[storage] = (storage.value, storage.scope)
        storage.put(param, scope)
        return param

    def _name_of(self, storage: Storage) -> str:
        for name, leaves in zip(self.state.names, self.before.leaves, strict=True):
            if any(
                isinstance(leaf, Traced) and leaf.storage is storage for leaf in leaves
            ) and not name.startswith("dsl__"):
                return name
        return ""

    def _install(self, leaves: dict[tuple[int, int], Traced]) -> tuple[list[list[Any]], list[Any]]:
        objects, installed = [], []
        for cell, own in enumerate(self.before.leaves):
            structure = self.plan.structures.get(cell, self.before.structures[cell])
            count = len(own) if cell not in self.plan.structures else _count(structure)
            new = [leaves.get((cell, k), own[k] if k < len(own) else None) for k in range(count)]
            if cell in self.plan.structures:
                new = [leaves.get((cell, k), self.plan_static(cell, k)) for k in range(count)]
            installed.append(new)
            objects.append(self._object(cell, structure, new))
        self.state.put(objects)
        return installed, objects

    def plan_static(self, cell: int, k: int) -> Any:
        return self._statics.get((cell, k)) if hasattr(self, "_statics") else None

    def _object(self, cell: int, structure: Structure, leaves: list[Any]) -> Any:
        if structure != self.before.structures[cell]:
            return unflatten(structure, leaves)
        return _install(self.before, cell, structure, leaves)

    def _run_body(self, run: Pass) -> None:
        try:
            if self.counted is None:
                self.body()
            else:
                assert run.trip is not None
                self.body(self.counted.item(fresh(run.trip, Kind.PYTHON)))
        except BranchRaise as signal:
            emit_raise(signal.error)

    # -- comparing what a trip began and ended with ----------------------------------------------------------------

    def _widen(
        self,
        run: Pass,
        after: Snapshot,
        contents: dict[Storage, Value],
        replaced: list[Storage],
        trace: Trace,
    ) -> bool:
        """Extend the plan by what the trip showed; tell whether it changed."""
        old = self.plan.key()
        self._as_optionals(after)
        with trace.resumed(run.scope, contents):
            for cell in range(len(after.objects)):
                self._widen_cell(cell, run, after)
        own = {leaf.storage for leaf in run.leaves.values()}
        self.plan.storages += [
            s for s in replaced if s not in own and not run.scope.encloses(s.scope)
        ]
        return self.plan.key() != old  # type: ignore[no-any-return]

    def _as_optionals(self, after: Snapshot) -> None:
        """A variable that is optional when a trip starts is so when it ends."""
        for cell, structure in enumerate(self.before.structures):
            end = after.structures[cell]
            if structure.type is not TracedOptional or end.type is TracedOptional:
                continue
            if end.type is type(None):
                after.leaves[cell] = [False, *self.before.leaves[cell][1:]]
                after.structures[cell] = structure
            elif end == structure.keys[0]:
                after.leaves[cell] = [True, *after.leaves[cell]]
                after.structures[cell] = structure

    def _widen_cell(self, cell: int, run: Pass, after: Snapshot) -> None:
        name = self.state.names[cell]
        if cell in self.plan.lost:
            return
        start, end = run.installed[cell], after.leaves[cell]
        structure = self.plan.structures.get(cell, self.before.structures[cell])
        if len(start) == 1 and isinstance(start[0], Undefined) and structure.type is None:
            return self._widen_undefined(cell, name, after)
        if after.structures[cell] != structure:
            if cell in self.plan.maybe:
                self._lose(cell, name, "changes its structure from trip to trip")
                return
            raise LoopTypeError(
                f"the variable `{name}` is {_describe(structure)} when the loop starts and "
                f"{_describe(after.structures[cell])} after a trip",
                location=here(),
                remedy=f"give `{name}` its final structure before the loop, or loop with `dsl.unroll(range(n))`",
            )
        for k, (s, e) in enumerate(zip(start, end, strict=True)):
            self._widen_leaf(cell, k, name, s, e)

    def _lose(self, cell: int, name: str, reason: str) -> None:
        self.plan.lost[cell] = Undefined(
            name,
            reason + ", so it has no one value after the loop",
            f"give `{name}` a value before the loop",
        )
        self.plan.maybe.pop(cell, None)
        self.plan.structures.pop(cell, None)
        for key in [key for key in self.plan.rebound if key[0] == cell]:
            del self.plan.rebound[key]

    def _widen_undefined(self, cell: int, name: str, after: Snapshot) -> None:
        """A variable without a value before the loop: carry it if the body gives it one."""
        structure, leaves = after.structures[cell], after.leaves[cell]
        if structure.type is None and isinstance(leaves[0], Undefined):
            if leaves[0].defined is None:
                return
            infos: list[Any] = [leaves[0].defined]
        else:
            infos = [info_of(leaf) if is_numeric(leaf) else leaf for leaf in leaves]
        if not hasattr(self, "_statics"):
            self._statics: dict[tuple[int, int], Any] = {}
        self.plan.structures[cell], self.plan.maybe[cell] = structure, name
        for k, info in enumerate(infos):
            if isinstance(info, Info):
                shape = _visible(info.shape, the_trace().scopes[-2])
                self.plan.rebound[cell, k] = Info(info.dtype, shape, info.kind)
            else:
                self._statics[cell, k] = info

    def _widen_leaf(self, cell: int, k: int, name: str, start: Any, end: Any) -> None:
        if isinstance(end, Undefined):
            if not isinstance(start, Undefined) and is_numeric(start):
                end.fail()
            return
        if end is start or _same_view(end, start):
            return
        if not is_numeric(end) or not (is_numeric(start) or (cell, k) in self.plan.rebound):
            if type(end) is type(start) and _equal(end, start):
                return
            if cell in self.plan.maybe:
                return self._lose(cell, name, "changes from trip to trip")
            raise LoopTypeError(
                f"the variable `{name}` changes from {start!r} to {end!r} in a loop that is traced",
                location=here(),
                remedy="carry numbers or arrays, or loop with `dsl.unroll(range(n))`",
            )
        old = self.plan.rebound.get((cell, k)) or info_of(start)
        try:
            new = join(
                old,
                info_of(end),
                name,
                LoopTypeError,
                "one type when a trip of the loop starts and another when it ends",
            )
        except LoopTypeError:
            if cell in self.plan.maybe:
                return self._lose(cell, name, "changes its rank from trip to trip")
            raise
        shape = tuple(
            o if isinstance(o, Dim) and symbols_of(o) == [o] and not _known(o, self._outer()) else n
            for o, n in zip(old.shape, new.shape, strict=True)
        )
        self.plan.rebound[cell, k] = Info(new.dtype, shape, new.kind)

    def _outer(self) -> Scope | None:
        return the_trace().scopes[-1].parent

    # -- building --------------------------------------------------------------------------------------------------

    def _build(
        self,
        test: Pass | None,
        chosen: Value | None,
        run: Pass,
        after: Snapshot,
        contents: dict[Storage, Value],
    ) -> None:
        trace, parent = the_trace(), current_scope()
        with trace.resumed(run.scope, contents):
            results = self._results(run, after)
        moves = self._moves(run, after)
        self._refuse_parting(run, after, contents, moves)
        never = self._never_runs(parent) if self._arrays(run) else None
        inits = self._inits(parent)
        outputs = self._emit(parent, test, chosen, run, results, inits, moves)
        self._finish(parent, run, after, outputs, moves, never)
        _discard(run.scope, *([test.scope] if test else []))

    def _results(self, run: Pass, after: Snapshot) -> list[Value]:
        b = current_scope()
        values = []
        for (cell, k), info in self.plan.rebound.items():
            leaf = after.leaves[cell][k]
            if isinstance(leaf, Undefined):
                leaf = run.leaves[cell, k]
            values.append(_uncheck(leaf, info))
        for cell in self.plan.maybe:
            values.append(self._flag(cell, after, b))
        return values + [_contents(storage) for storage in self.plan.storages]

    def _flag(self, cell: int, after: Snapshot, b: Scope) -> Value:
        leaves = [leaf for leaf in after.leaves[cell] if isinstance(leaf, Traced)]
        for leaf in leaves:
            if leaf.storage.defined is not None:
                flag, owner, _ = leaf.storage.defined
                return b.local(flag, owner)
        return b.constant(True)

    def _inits(self, parent: Scope) -> list[Value]:
        values = []
        for (cell, k), info in self.plan.rebound.items():
            leaves = self.before.leaves[cell]
            if cell in self.plan.structures:
                values.append(zeros(info, parent))
            else:
                values.append(_uncheck(leaves[k], info))
        values += [parent.constant(False) for _ in self.plan.maybe]
        return values + [_contents(storage) for storage in self.plan.storages]

    # -- arrays that the loop's variables stand for by turns -----------------------------------------------------

    def _moves(self, run: Pass, after: Snapshot) -> Moves | None:
        """Return how rebound arrays change places, if they only do that: each variable, and whose array it has next."""
        arrays = self._arrays(run)
        owner = {leaf.storage: key for key, leaf in arrays.items()}
        moved = {}
        for key in arrays:
            end = after.leaves[key[0]][key[1]]
            if (
                isinstance(end, Traced)
                and not end.views
                and end.storage in owner
                and self._start(key) is not None
            ):
                moved[key] = owner[end.storage]
        turns = any(k != m for k, m in moved.items()) or any(
            arrays[k].storage.written for k in moved
        )
        return moved if turns and set(moved) == set(moved.values()) else None

    def _arrays(self, run: Pass) -> dict[tuple[int, int], Traced]:
        return {key: leaf for key, leaf in run.leaves.items() if leaf.kind is Kind.ARRAY}

    def _start(self, key: tuple[int, int]) -> Traced | None:
        """Return the traced array that a variable had before the loop."""
        if key[0] in self.plan.structures:
            return None
        leaf = self.before.leaves[key[0]][key[1]]
        return leaf if _is_traced_array(leaf) and not leaf.views else None

    def _refuse_parting(
        self, run: Pass, after: Snapshot, contents: dict[Storage, Value], moves: Moves | None
    ) -> None:
        """Refuse loops in which it depends on the trip which array a write goes to."""
        arrays = self._arrays(run)
        written = any(leaf.storage.written for leaf in arrays.values())
        own = {leaf.storage for leaf in arrays.values()}
        for key, leaf in arrays.items():
            if moves and key in moves:
                continue
            end, start = (
                after.leaves[key[0]][key[1]],
                self.before.leaves[key[0]][key[1]] if key[0] not in self.plan.structures else None,
            )
            foreign = isinstance(end, Traced) and (
                end.storage in own or not run.scope.encloses(end.storage.scope)
            )
            outside = isinstance(start, Traced) and start.storage.origin is not None
            shared = isinstance(start, Traced) and _is_changed(contents.get(start.storage))
            if (written and foreign) or (leaf.storage.written and outside) or shared:
                raise AliasError(
                    f"the variable `{self.state.names[key[0]]}` is rebound in this loop and its array is also written in "
                    "place, so that which array is written depends on the trip",
                    location=here(),
                    remedy="copy the array before the loop, or assign its elements (`x[...] = y`) instead of rebinding it",
                )

    def _never_runs(self, parent: Scope) -> Value | None:
        """Return a predicate that the loop makes no trip, or None if it surely makes one."""
        if self.static_trips is not None:
            return None
        if self.trips is not None:
            return parent.emit("equal", self.trips, parent.constant(0, I64))
        assert self.test is not None
        first = predicate(self.test())
        return (
            None
            if first is True
            else parent.constant(True)
            if first is False
            else parent.emit("logical_not", first)
        )

    def _note_aliases(
        self, run: Pass, after: Snapshot, leaves: dict[tuple[int, int], Traced], moves: Moves | None, never: Value | None, parent: Scope
    ) -> None:  # fmt: skip
        """Say which arrays from before the loop its variables may stand for after it."""
        for key in self._arrays(run):
            if moves and key in moves:
                continue
            start, end = self._start(key), after.leaves[key[0]][key[1]]
            if start is not None and never is not None:
                _link(leaves[key].storage, start, never, parent)
            if _is_traced_array(end) and not run.scope.encloses(end.storage.scope):
                ran = parent.constant(True) if never is None else parent.emit("logical_not", never)
                _link(leaves[key].storage, end, ran, parent)

    def _emit(
        self, parent: Scope, test: Pass | None, chosen: Value | None, run: Pass, results: list[Value], inits: list[Value],
        swap: Moves | None,
    ) -> list[Value]:  # fmt: skip
        body_params, results, inits = list(run.params), list(results), list(inits)
        test_params = list(test.params) if test else []
        if swap:
            slots = {key: run.scope.param(scalar(I64), "slot") for key in swap}
            body_params += slots.values()
            results += [slots[swap[key]] for key in swap]
            inits += [parent.constant(j, I64) for j in range(len(swap))]
            test_params += [test.scope.param(scalar(I64), "slot") for _ in swap] if test else []
        captures = list(
            dict.fromkeys([*run.scope.captured, *(test.scope.captured if test else ())])
        )
        types = [
            TensorType(p.dtype, self._result_shape(p, i, parent))
            for p, i in zip(body_params, inits, strict=True)
        ]
        if test is None:
            assert run.trip is not None
            assert self.trips is not None
            region = region_of(run.scope, captures, results, [run.trip, *body_params])
            inputs = [self.trips, *inits, *captures]
            return list(
                parent.node(
                    "scan", inputs, {"carried": len(inits)}, regions=[region], types=types
                ).outputs
            )
        assert chosen is not None
        if run.trip is not None:
            assert test.trip is not None
            body_params, test_params = [run.trip, *body_params], [test.trip, *test_params]
            results = [run.scope.emit("add", run.trip, run.scope.constant(1, I64)), *results]
            inits, types = [parent.constant(0, I64), *inits], [scalar(I64), *types]
        regions = [
            region_of(test.scope, captures, [chosen], test_params),
            region_of(run.scope, captures, results, body_params),
        ]
        node = parent.node(
            "while", [*inits, *captures], {"carried": len(inits)}, regions=regions, types=types
        )
        return list(node.outputs[1:] if run.trip is not None else node.outputs)

    def _result_shape(self, param: Value, init: Value, parent: Scope) -> Shape:
        return _visible(param.shape, parent)

    def _finish(
        self, parent: Scope, run: Pass, after: Snapshot, outputs: list[Value], moves: Moves | None, never: Value | None
    ) -> None:  # fmt: skip
        """Put the loop's results into the cells and storages."""
        values = iter(outputs)
        leaves = {
            key: Traced(Storage(next(values), parent), (), info.kind)
            for key, info in self.plan.rebound.items()
        }
        for cell, name in self.plan.maybe.items():
            flag = next(values)
            certain = name.startswith("dsl__") or (
                bool(self.static_trips) and self._always(run, after, cell)
            )
            for key, traced in leaves.items():
                if key[0] == cell and not certain:
                    traced.storage.defined = (flag, parent, name)
        for storage in self.plan.storages:
            storage.set(next(values))
        self._note_aliases(run, after, leaves, moves, never, parent)
        if moves:
            self._unswap(dict(zip(moves, values, strict=True)), leaves, parent)
        cells = range(len(self.before.objects))
        self.state.commit([self._final(cell, leaves, run, after) for cell in cells], self.before)

    def _final(
        self, cell: int, leaves: dict[tuple[int, int], Traced], run: Pass, after: Snapshot
    ) -> Any:
        """Return what a cell holds after the loop."""
        if cell in self.plan.lost:
            return self.plan.lost[cell]
        structure = self.plan.structures.get(cell)
        if structure is not None:
            new = [
                leaves.get((cell, k), self.plan_static(cell, k)) for k in range(_count(structure))
            ]
            return unflatten(structure, new)
        own = self.before.leaves[cell]
        new = [leaves.get((cell, k), leaf) for k, leaf in enumerate(own)]
        same = after.objects[cell] is run.objects[cell]
        return _install(self.before, cell, self.before.structures[cell], new, same)

    def _always(self, run: Pass, after: Snapshot, cell: int) -> bool:
        return all(
            not isinstance(e, Undefined)
            and (not isinstance(e, Traced) or e.storage.defined is None)
            for e in after.leaves[cell]
        )

    def _unswap(self, slots: dict[Any, Value], leaves: dict[Any, Traced], parent: Scope) -> None:
        """Give the arrays from before the loop what ended in their memory, and link them with their new names."""
        places = []
        for j, key in enumerate(slots):
            start = self._start(key)
            assert start is not None
            places.append(
                (
                    start.storage,
                    [
                        parent.emit("equal", slot, parent.constant(j, I64))
                        for slot in slots.values()
                    ],
                )
            )
        for storage, held in places:
            value = storage.get()
            for name, here_now in zip(slots, held, strict=True):
                value = parent.emit("where", here_now, leaves[name].storage.value, value)
            storage.set(value)
        for storage, held in places:
            for name, here_now in zip(slots, held, strict=True):
                link(leaves[name].storage, storage, here_now, parent)


def _is_changed(value: Value | None) -> bool:
    return value is not None and value.node.op.name != "param"


class _StaticTest(Exception):
    """The condition of a `while` does not depend on anything traced."""

    def __init__(self, value: bool) -> None:
        self.value = value


def _uncheck(leaf: Any, info: Info) -> Value:
    """Read a leaf without asking whether it is defined: carrying is not using."""
    if isinstance(leaf, Traced) and leaf.storage.defined is not None:
        defined, leaf.storage.defined = leaf.storage.defined, None
        try:
            return leaf_value(leaf, info)
        finally:
            leaf.storage.defined = defined
    return leaf_value(leaf, info)


def _contents(storage: Storage) -> Value:
    """Read a storage without asking whether its variable is defined."""
    defined, storage.defined = storage.defined, None
    try:
        return storage.get()
    finally:
        storage.defined = defined


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or (isinstance(leaf, Traced) and leaf.kind is Kind.ARRAY)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False


def _count(structure: Structure) -> int:
    return 1 if structure.type is None else sum(map(_count, structure.children))


_RETRY = (NonConcreteError, LoopTypeError, BranchError, UndefinedError, AliasError)


def while_(
    test: Block,
    body: Block,
    get: Any,
    put: Any,
    names: tuple[str, ...],
    assigned: int,
    items: tuple[str, ...],
) -> None:
    """Run a `while` statement."""
    limit = config.unroll_limit
    trips = 0
    failed: DslError | None = None
    while True:
        chosen = predicate(test())
        if chosen is False:
            return
        if failed is None:
            loop = Loop(State(get, put, names, assigned), body, test, None, items)
            try:
                if not _is_plain(loop, chosen):
                    _refuse_try()
                    return loop.trace()
            except _StaticTest:
                pass
            except _RETRY as error:
                if chosen is not True:
                    raise
                failed = error
        if isinstance(chosen, Value):
            raise failed or DslError("a loop condition became traced", location=here())
        trips += 1
        if trips > max(limit, _PLAIN_LIMIT if failed is None else 0):
            raise failed or LoopTypeError(
                "this loop runs in Python and does not end",
                location=here(),
                remedy="carry its state in arrays",
            )
        body()


_PLAIN_LIMIT = 100_000


def _is_plain(loop: Loop, chosen: bool | Value) -> bool:
    """Tell whether a loop computes with Python values alone, so that plain Python should run it."""
    if chosen is not True:
        return False
    touched = [leaf for leaves in loop.before.leaves for leaf in leaves]
    return not any(isinstance(leaf, (Traced, np.ndarray)) for leaf in touched)


def for_(
    iterable: Any, body: Block, guard: Block | None, get: Any, put: Any, names: tuple[str, ...], assigned: int,
    items: tuple[str, ...], targets: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a `for` statement."""
    if isinstance(iterable, Undefined):
        iterable.fail()
    counted = as_counted(iterable)
    state = State(get, put, names, assigned)
    if counted is not None:
        trips = counted.trips()
        if isinstance(trips, int) and trips == 0:
            return
        if not _plain_for(counted, trips, state):
            try:
                _refuse_try()
                return Loop(state, body, guard, counted, items).trace()
            except _RETRY as error:
                _refuse_unrolling(trips, error)
                log("unroll", "%s: unrolled %s times because %s", here(), trips, error.message)
    _python_for(iterable, body, guard, get, put, names, assigned)


def _plain_for(counted: Any, trips: Any, state: State) -> bool:
    """Tell whether a loop over a range touches Python values alone."""
    if not isinstance(counted, Span) or not isinstance(trips, int) or trips > 1000:
        return False
    leaves = [leaf for own in state.snapshot().leaves for leaf in own]
    return not any(isinstance(leaf, (Traced, np.ndarray)) for leaf in leaves) and False


def _refuse_unrolling(trips: Any, error: DslError) -> None:
    limit = config.unroll_limit
    if not isinstance(trips, int) or trips > limit:
        if isinstance(trips, int):
            error.remedy += f"; a loop of {trips} trips is longer than the limit for unrolling (DSL_UNROLL_LIMIT={limit})"
        raise error


def _python_for(
    iterable: Any,
    body: Block,
    guard: Block | None,
    get: Any,
    put: Any,
    names: tuple[str, ...],
    assigned: int,
) -> None:
    """Loop in Python; once a traced `break` may have happened, the rest of the trips are conditional."""
    for item in iterable:
        go_on = True if guard is None else predicate(guard())
        if go_on is False:
            return
        if go_on is True:
            body(item)
        else:
            assert guard is not None
            if_(guard(), lambda item=item: body(item), lambda: None, get, put, names, assigned)


@contextmanager
def trying(*caught: str) -> Iterator[None]:
    """Mark code inside a `try` that catches exceptions of these names."""
    trace = the_trace()
    trace.trying.append(caught)
    try:
        yield
    finally:
        trace.trying.pop()
