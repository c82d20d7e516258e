"""`if` on traced values: trace both branches from the same state and join what they leave in variables and arrays.

A result whose structure the branches decide is an `Either`, which only the caller can use.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.errors import BranchError, DslError, IndexTypeError
from dsl.frontend.choices import named_items, note_choice, note_held, with_other_names
from dsl.frontend.holders import replace_changed
from dsl.frontend.leaves import (
    Block,
    BranchRaise,
    Info,
    are_equal,
    are_tuples,
    contents_of,
    describe,
    identical,
    info_of,
    is_traced_array,
    is_visible,
    join,
    link_when,
    parts_of,
    predicate,
    same_view,
    the_trace,
    unchecked_value,
    ways_out,
    zeros,
)
from dsl.frontend.objects import as_trees
from dsl.frontend.optional import TracedOptional
from dsl.frontend.regions import (
    discard,
    emit_raise,
    grow_lists,
    installed,
    refuse_try,
    region_of,
    with_types,
)
from dsl.frontend.scopes import (
    Alias,
    Scope,
    Storage,
    current_scope,
    may_alias,
)
from dsl.frontend.sharing import carry
from dsl.frontend.state import Snapshot, State, Undefined, is_numeric
from dsl.frontend.traced import (
    Kind,
    Traced,
)
from dsl.frontend.trees import Structure, flatten
from dsl.ir.dims import Dim, Symbol
from dsl.ir.graph import Value
from dsl.ir.types import BOOL, I64, Shape, TensorType

RESULT = "dsl__result"


_FLAGS = ("dsl__break", "dsl__continue", "dsl__done")


@dataclass
class Branch:
    """One traced branch: what it left in the cells and in storages from outside."""

    scope: Scope
    after: Snapshot
    contents: dict[Storage, Value]
    raised: bool
    left: list[Any]


def if_(
    test: Any,
    then: Block,
    otherwise: Block,
    get: Any,
    put: Any,
    names: tuple[str, ...],
    assigned: int,
    dead: tuple[str, ...] = (),
    lenient: bool = False,
) -> None:
    """Run an `if` statement; a `lenient` one lets variables have a value or not, which is asked where they are read.

    `dead` are names of variables that nothing reads afterwards.
    """
    chosen = predicate(test)
    if isinstance(chosen, bool):
        (then if chosen else otherwise)()
        return
    refuse_try()
    state = State(get, put, names, assigned)
    state, before, branches = _trace_branches(state, then, otherwise)
    _join_branches(chosen, state, before, branches, Joined(lenient=lenient, dead=dead))


def _trace_branches(
    state: State, then: Block, otherwise: Block
) -> tuple[State, Snapshot, list[Branch]]:
    """Trace both; containers that one changes and then drops, and other variables know, become cells of their own."""
    while True:
        before = state.snapshot()
        named = named_items(before.objects)
        branches = [
            _trace_branch(state, before, then, "then"),
            _trace_branch(state, before, otherwise, "else"),
        ]
        ends = [b.after for b in branches if not b.raised]
        if not (
            state.adopt_attributes(*(b.scope for b in branches))
            or as_trees(before, ends)
            or grow_lists(state, before, ends, named)
        ):
            left = {id(item): item for b in branches for item in b.left}
            if not left:
                return state, before, branches
            for item in left.values():
                state = state.with_cell("dsl__left", [item])
        discard(*(b.scope for b in branches))


def _trace_branch(state: State, before: Snapshot, block: Block, name: str) -> Branch:
    trace, raised = the_trace(), False
    with trace.region(name) as scope:
        try:
            block()
        except BranchRaise as signal:
            raised = True
            emit_raise(signal.error)
        except BaseException as error:
            if not _is_raised_there(error):
                scope.suspend()
                state.restore(before)
                raise
            raised = True
            emit_raise(error)
        after = with_types(state.snapshot())
        contents = scope.suspend()
    left = [] if raised else _left_changed(state, before, after)
    state.restore(before)
    state.put_back_others(scope)
    before.refuse_changes()
    return Branch(scope, after, contents, raised, left)


def _left_changed(state: State, before: Snapshot, after: Snapshot) -> list[Any]:
    """Return what variables do not hold any more, other variables do, and was changed: `last[0] = x; last = [y]`."""
    cells = [
        cell
        for cell, item in enumerate(before.objects)
        if before.holders[cell] is not None and after.objects[cell] is not item
    ]
    kept = {id(item) for item in after.objects}
    changed = [
        cell
        for cell in cells
        if id(before.objects[cell]) not in kept and _is_refilled(before, cell)
    ]
    names = {state.names[cell] for cell in cells}
    return [item for cell in changed if with_other_names([item := before.objects[cell]], names)]


def _is_refilled(before: Snapshot, cell: int) -> bool:
    leaves, structure = flatten(before.objects[cell])
    same = len(leaves) == len(before.leaves[cell]) and structure == before.structures[cell]
    return not same or any(a is not b for a, b in zip(leaves, before.leaves[cell], strict=True))


def _is_raised_there(error: BaseException) -> bool:
    """Tell whether an error is the program's where a branch is taken: `items.pop()` of an empty list, `x[2]` of two numbers."""
    if isinstance(error, DslError):
        # With sizes that are symbols it may be no error: those of the call are tried next.
        return isinstance(error, IndexTypeError) and not the_trace().trial
    return isinstance(error, (IndexError, KeyError))


@dataclass
class Joined:
    """The joined leaves: the value of each branch, where the result goes, and which results have a flag of definedness.

    `halves` are those that one branch defines and that may be read under further conditions only; `dead` are the variables that
    nothing reads any more.
    """

    pairs: list[tuple[Any, Any, Info]] = field(default_factory=list)
    results: list[Traced] = field(default_factory=list)
    flagged: list[tuple[Traced, Traced, str]] = field(default_factory=list)
    halves: list[tuple[Traced, str]] = field(default_factory=list)
    lenient: bool = False
    dead: tuple[str, ...] = ()

    def add(self, a: Any, b: Any, info: Info, name: str = "", *, perhaps: bool = False) -> Traced:
        """Add a leaf; a side that is missing is not asked for, or with `perhaps` has no value."""
        placeholder = Traced.__new__(Traced)
        placeholder.kind, placeholder.views, placeholder._type = info.kind, (), None
        self.pairs.append((a, b, info))
        self.results.append(placeholder)
        self._add_flag(placeholder, a, b, name, perhaps)
        return placeholder

    def add_perhaps(self, leaf: Any, side: int, name: str) -> Traced:
        """Add a variable that only one branch defines; whether it has a value is known when the program runs."""
        pair: list[Any] = [_BOTTOM, _BOTTOM]
        pair[side] = leaf
        traced = self.add(pair[0], pair[1], info_of(leaf), name, perhaps=True)
        if not any(each is traced for each, *_ in self.flagged):
            flag = self.add(side == 0, side == 1, Info(BOOL, (), Kind.PYTHON))
            self.flagged.append((traced, flag, name))
        if not self.lenient:
            self.halves.append((traced, name))
        return traced

    def _add_flag(self, traced: Traced, a: Any, b: Any, name: str, perhaps: bool) -> None:
        """A variable that one branch leaves perhaps undefined stays so."""
        known = [
            leaf.storage.defined
            for leaf in (a, b)
            if isinstance(leaf, Traced) and leaf.storage.defined is not None
        ]
        if known:
            flags = [_flag_leaf(leaf, not perhaps) for leaf in (a, b)]
            self.flagged.append(
                (traced, self.add(flags[0], flags[1], Info(BOOL, (), Kind.PYTHON)), known[0][2])
            )
            half = any(isinstance(leaf, Traced) and leaf.storage.half for leaf in (a, b))
            if half and name == known[0][2]:  # another variable that got its value had one
                self.halves.append((traced, known[0][2]))


def _flag_leaf(leaf: Any, missing: bool) -> Any:
    if not isinstance(leaf, Traced) or leaf.storage.defined is None:
        return missing or leaf is not _BOTTOM
    value, scope, _ = leaf.storage.defined
    return Traced(Storage(value, scope), (), Kind.PYTHON)


_BOTTOM = object()


def _join_branches(
    pred: Value, state: State, before: Snapshot, branches: list[Branch], joined: Joined
) -> None:
    then, other = branches
    cells = [
        _join_cell(state, cell, before, then, other, joined) for cell in range(len(before.objects))
    ]
    storages = list(dict.fromkeys([*then.contents, *other.contents]))
    parent = current_scope()
    aliased = _join_aliases(joined, branches)
    values = [_branch_values(branch, k, joined, storages) for k, branch in enumerate(branches)]
    results = _emit_cond(pred, parent, branches, values, joined, storages)
    for storage, value in zip(storages, results[len(joined.results) :], strict=True):
        storage.leave(value)
    exchange = object() if _are_apart(joined) else None
    for traced, value, (a, b, info) in zip(joined.results, results, joined.pairs, strict=False):
        traced.storage = Storage(value, parent)
        if info.kind is Kind.ARRAY:
            _note_aliases(traced.storage, (a, b), branches, pred, parent, exchange)
    for traced, leaf, outer, flag in aliased:
        traced.storage.outside |= outer.outside
        if flag is None:
            may_alias(traced.storage, outer)
        else:
            link_when(traced.storage, outer, leaf, flag.storage.value, parent)
    _note_shares(joined, parent)
    for traced, flag, name in joined.flagged:
        traced.storage.defined = (flag.storage.value, parent, name)
    for traced, name in joined.halves:
        traced.storage.half = _half_defined(name, Undefined(name), [traced], Structure(None)).fail
    ends = [b.after for b in branches if not b.raised]
    replaced = [
        place
        for cell, holder in enumerate(before.holders)
        if _unchanged(before, cell, branches)
        for place in replace_changed(holder, [end.holders[cell] for end in ends])
    ]
    objects = [
        installed(before, cell, structure, leaves, _unchanged(before, cell, branches))
        for cell, (structure, leaves) in enumerate(cells)
    ]
    state.commit(objects, before)
    _note_choices(state, before, branches, objects, joined.dead)
    for place in replaced:
        place.note()
    discard(then.scope, other.scope)


def _note_choices(
    state: State,
    before: Snapshot,
    branches: list[Branch],
    objects: list[Any],
    dead: tuple[str, ...],
) -> None:
    """Say which lists, dicts and objects stand for one or another of those that the branches leave in variables."""
    ends = [b.after.objects for b in branches if not b.raised]
    live = [k for k, name in enumerate(state.names) if name not in dead]
    new = [k for k, item in enumerate(objects) if item is not before.objects[k]]
    names = {*dead, *(state.names[k] for k in new)}
    for k in new:
        sources = [*(each[k] for each in ends), before.objects[k]]
        for each in ends:
            note_held(each[k], objects[k])
        twice = any(sum(each[j] is each[k] for j in live) > 1 for each in ends)
        note_choice(objects[k], sources, names, twice)


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
        missing = (a, b)[k].type is None and is_missing(pair[k][0], name)
        if missing and (name.startswith("dsl__") or _jumps(state, one.after)):
            return _join_absent(pair[1 - k], (a, b)[1 - k], k, joined)
    if a != b:
        optional = _join_optional(pair, (a, b), joined)
        if optional is not None:
            return _leaf(optional)
        if are_tuples(a, b) and _differ_by_none((a, pair[0]), (b, pair[1])):
            return _join_parts(name, (a, pair[0]), (b, pair[1]), joined)
        if name == RESULT:
            return _leaf(_join_results(pair, (a, b), joined))
        return _join_odd(name, pair, (a, b), joined)
    return a, [_join_leaf(name, x, y, joined) for x, y in zip(*pair, strict=True)]


def is_missing(leaf: Any, name: str | None = None) -> bool:
    """Tell whether a variable, that of the name if one is given and not another one that was assigned to it, has no value."""
    missing = isinstance(leaf, Undefined) and not isinstance(leaf, Either)
    return missing and name in (None, leaf.name)


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
        what = " or ".join(describe(known[k][0]) for k in alternatives)
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
                x is y or are_equal(x, y) for x, y in zip(fixed, statics, strict=True)
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


_Tree = tuple[Structure, list[Any]]


def _differ_by_none(one: _Tree, two: _Tree) -> bool:
    """Tell whether tuples have the same items, but for numbers and arrays of one that are None in the other."""
    (a, leaves), (b, others) = one, two
    if a == b:
        return True
    if are_tuples(a, b):
        return all(map(_differ_by_none, parts_of(*one), parts_of(*two)))
    values = [s.keys[0] if s.type is TracedOptional else s for s in (a, b)]
    optional = any(v.type is type(None) for v in values) or (a, b) != tuple(values)
    alike = values[0] == values[1] or any(v.type is type(None) for v in values)
    return optional and alike and all(map(is_numeric, (*leaves, *others)))


def _join_parts(name: str, one: _Tree, two: _Tree, joined: Joined) -> _Tree:
    """Join tuples that differ by None, item by item."""
    (a, leaves), (b, others) = one, two
    if a == b:
        return a, [_join_leaf(name, x, y, joined) for x, y in zip(leaves, others, strict=True)]
    optional = _join_optional((leaves, others), (a, b), joined)
    if optional is not None:
        return _leaf(optional)
    pairs = zip(parts_of(*one), parts_of(*two), strict=True)
    made = [_join_parts(name, mine, its, joined) for mine, its in pairs]
    structure = Structure(a.type, a.keys, tuple(part for part, _ in made))
    return structure, [leaf for _, leaves in made for leaf in leaves]


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
    name: str,
    pair: tuple[list[Any], list[Any]],
    structures: tuple[Structure, Structure],
    joined: Joined,
) -> tuple[Structure, list[Any]]:
    """Join cells of different structure: one may be undefined."""
    sides = [
        leaves[0] if s.type is None else None for leaves, s in zip(pair, structures, strict=True)
    ]
    for k in (0, 1):
        missing, leaves, given = sides[k], pair[1 - k], structures[1 - k]
        if not isinstance(missing, Undefined):
            continue
        if _is_plainly(missing) and leaves and all(map(_can_be_missing, leaves)):
            return given, [joined.add_perhaps(leaf, 1 - k, name) for leaf in leaves]
        return _leaf(_half_defined(name, missing, leaves, given))
    different = Undefined(
        name,
        f"is {describe(structures[0])} after one branch of an `if` and {describe(structures[1])} after the other",
        f"give `{name}` the same structure in both branches",
        error=BranchError,
    )
    return _leaf(different)


def _is_plainly(missing: Undefined) -> bool:
    """Tell whether a variable just has no value yet."""
    return is_missing(missing) and not missing.reason


def _can_be_missing(leaf: Any) -> bool:
    """Tell whether a leaf can have a value or not: a part of an array, if it were one, would make writes to that array ambiguous."""
    if not is_traced_array(leaf):
        return is_numeric(leaf)
    return not leaf.views and not leaf.storage.ambiguous


def _half_defined(
    name: str, missing: Undefined, leaves: list[Any], structure: Structure
) -> Undefined:
    if missing.error is BranchError:
        return missing  # branches before this one disagreed, which is the reason that helps
    single = leaves[0] if structure.type is None and is_numeric(leaves[0]) else None
    return Undefined(
        name,
        "is defined in one branch of an `if` only",
        f"give `{name}` a value before the `if`, or in both branches",
        defined=None if single is None else info_of(single),
    )


def _join_leaf(name: str, a: Any, b: Any, joined: Joined) -> Any:
    if a is b or same_view(a, b):
        return a
    if isinstance(a, Undefined) or isinstance(b, Undefined):
        if name == RESULT and (isinstance(a, Either) or isinstance(b, Either)):
            return _join_results(([a], [b]), (Structure(None), Structure(None)), joined)
        if isinstance(a, Undefined) and isinstance(b, Undefined):
            return a if a.reason else b
        missing, given = (a, b) if isinstance(a, Undefined) else (b, a)
        if (joined.lenient and is_numeric(given)) or (
            _is_plainly(missing) and _can_be_missing(given)
        ):
            return joined.add_perhaps(given, 0 if given is a else 1, name)
        return _half_defined(name, missing, [given], Structure(None))
    if is_numeric(a) and is_numeric(b):
        if type(a) is type(b) and not isinstance(a, (Traced, np.ndarray)) and identical(a, b):
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
    if type(a) is type(b) and are_equal(a, b):
        return a
    if name == RESULT:
        return _join_results(([a], [b]), (Structure(None), Structure(None)), joined)
    return Undefined(
        name,
        f"is {a!r} after one branch of an `if` and {b!r} after the other, and the condition is traced",
        "use numbers or arrays, which can be chosen at run time",
        error=BranchError,
    )


def _branch_values(
    branch: Branch, side: int, joined: Joined, storages: list[Storage]
) -> list[Value]:
    with the_trace().resumed(branch.scope, branch.contents):
        values = [
            zeros(info, branch.scope)
            if pair[side] is _BOTTOM
            else unchecked_value(pair[side], info)
            for *pair, info in joined.pairs
        ]
        return values + [contents_of(storage) for storage in storages]


def _emit_cond(
    pred: Value,
    parent: Scope,
    branches: list[Branch],
    values: list[list[Value]],
    joined: Joined,
    storages: list[Storage],
) -> tuple[Value, ...]:
    if not values[0] and not any(b.scope._last_effect or b.scope.noted for b in branches):
        return ()
    met: dict[Any, Dim] = {}
    types = [
        TensorType(info.dtype, _join_shape(pair, parent, met))
        for (*_, info), *pair in zip(joined.pairs, *values, strict=False)
    ]
    types += [s.value.tensor for s in storages]
    captures = list(dict.fromkeys(outer for b in branches for outer in b.scope.captured))
    regions = [region_of(b.scope, captures, v) for b, v in zip(branches, values, strict=True)]
    return parent.node("cond", (pred, *captures), {}, regions=regions, types=types).outputs


def _join_shape(pair: list[Value], parent: Scope, met: dict[Any, Dim]) -> Shape:
    """Return the shape after an `if`. What has one size after either branch has one size after both: `met` knows those that met."""
    a, b = (v.shape for v in pair)
    return tuple(
        x if x == y and is_visible(x, parent) else met.setdefault((x, y), Symbol("d"))
        for x, y in zip(a, b, strict=True)
    )


def _are_apart(joined: Joined) -> bool:
    """Tell whether no branch leaves the same array in two variables that are joined."""
    for leaves in zip(*((a, b) for a, b, _ in joined.pairs)):
        arrays = [leaf.storage for leaf in leaves if is_traced_array(leaf)]
        if len(set(arrays)) < len(arrays):
            return False
    return True


def _note_aliases(
    storage: Storage, leaves: tuple[Any, Any], branches: list[Branch], pred: Value, parent: Scope, exchange: object
) -> None:  # fmt: skip
    """The joined array is, by the predicate, an array from outside that one branch or the other named."""
    for k, (leaf, branch) in enumerate(zip(leaves, branches, strict=True)):
        if not is_traced_array(leaf):
            continue
        if branch.scope.encloses(leaf.storage.scope):
            continue  # see `_join_aliases`
        storage.outside |= leaf.storage.outside
        when = pred if k == 0 else parent.emit("logical_not", pred)
        link_when(storage, leaf.storage, leaf, when, parent, exchange)


def _note_shares(joined: Joined, parent: Scope) -> None:
    """The joined arrays stand for items of lists where those of a branch do."""
    pairs = [
        (leaf.storage, traced.storage)
        for traced, (a, b, info) in zip(joined.results, joined.pairs, strict=True)
        if info.kind is Kind.ARRAY
        for leaf in (a, b)
        if is_traced_array(leaf)
    ]
    carry(pairs, parent, {})


def _join_aliases(
    joined: Joined, branches: list[Branch]
) -> list[tuple[Traced, Traced, Storage, Traced | None]]:
    """Let branches tell whether arrays that they made are arrays from outside.

    Returns joined arrays, what they were in the branch, the arrays from outside, and flags that are true where they are the
    same, None where that cannot be told.
    """
    found: list[tuple[Traced, Traced, Storage, Traced | None]] = []
    arrays = [
        (traced, pair)
        for traced, (*pair, info) in zip(joined.results, joined.pairs, strict=True)
        if info.kind is Kind.ARRAY
    ]
    for traced, pair in arrays:
        for k, (leaf, branch) in enumerate(zip(pair, branches, strict=True)):
            for outer, path in ways_out(leaf, branch.scope):
                flags: list[Any] = [False, False]
                if path is not None:
                    flags[k] = _holds(path, branch)
                flag = None if path is None else joined.add(flags[0], flags[1], _FLAG)
                found.append((traced, leaf, outer, flag))
    return found


def _holds(path: list[Alias], branch: Branch) -> Traced:
    """Return whether all links of a path hold, in the branch."""
    with the_trace().resumed(branch.scope, branch.contents):
        links = [branch.scope.local(edge.when, edge.scope) for edge in path]
        both = functools.reduce(lambda a, b: branch.scope.emit("logical_and", a, b), links)
        return Traced(Storage(both, branch.scope), (), Kind.PYTHON)
