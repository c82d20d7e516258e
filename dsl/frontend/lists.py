"""Python lists whose length depends on traced values.

A list that a traced branch or loop makes longer or shorter becomes a `TracedList`: for each leaf of its items one array
with a leading axis for the items, whose size is symbolic. It has the methods of `list` that do not need a Python number.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dsl.errors import LoopTypeError, NonConcreteError, UnsupportedError
from dsl.frontend.accesses import together
from dsl.frontend.scopes import Storage, current_scope, current_trace, here
from dsl.frontend.sharing import Sharing, follow, note_doubled, put_in
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, cast, fresh, lift, read, size_number
from dsl.frontend.trees import Structure, flatten, unflatten
from dsl.ir.dims import symbols_of
from dsl.ir.remote import Remote
from dsl.ir.types import TensorType

__all__ = ["TracedList", "as_traced_list", "item_layout", "join_kinds"]

_NOTHING = slice(0)


class TracedList:
    """A list of alike items. `layout` is the structure of an item and the kinds of its leaves; `columns` their arrays."""

    def __init__(self, layout: tuple[Structure, tuple[Kind, ...]], columns: list[Any]) -> None:
        self.layout, self.columns = layout, columns

    # -- as a tree -------------------------------------------------------------------------------------------------

    def dsl_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (self.layout, *range(len(self.columns) - 1)), tuple(self.columns)

    @classmethod
    def dsl_unflatten(cls, keys: tuple[Any, ...], children: list[Any]) -> Any:
        """Put the list together; of real arrays, which the caller gets, a plain list; of what is not here, what stands for it."""
        for child in children:
            if isinstance(child, Remote):
                return child
        if children and isinstance(children[0], np.ndarray):
            return _plain_items(keys[0], children)
        return cls(keys[0], children)

    def dsl_refill(self, other: TracedList) -> None:
        self.layout, self.columns = other.layout, other.columns

    def spec(self) -> Any:
        """The layout and the types of the items' leaves."""
        return self.layout, [TensorType(c.dtype, c.type.shape[1:]) for c in self.columns]

    # -- as a list -------------------------------------------------------------------------------------------------

    def _item(self, leaves: list[Any]) -> Any:
        structure, kinds = self.layout
        made = [
            leaf if kind is Kind.ARRAY else fresh(read(leaf), kind)
            for leaf, kind in zip(leaves, kinds, strict=True)
        ]
        return unflatten(structure, made)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._also_in(self._part(key))
        for column in self._arrays():
            column.storage.viewers = column.storage.viewers or []
        with together():
            item = self._item([column[key] for column in self.columns])
        from dsl.frontend.choices import note_pick

        note_pick(item, self)
        return item

    def __setitem__(self, key: Any, item: Any) -> None:
        if isinstance(key, slice):
            return self._put(key, item)
        leaves = [lift(leaf) for leaf in self._leaves(item)]
        old, kinds = self._arrays(), self.layout[1]
        self.columns = [
            _widened(lift(column), leaf, kind)
            for column, leaf, kind in zip(self.columns, leaves, kinds, strict=True)
        ]
        with together():
            for column, leaf in zip(self.columns, leaves, strict=True):
                column[key] = leaf
        self._follow(old)
        self._note_item(item, old)

    def _put(self, key: slice, items: Any) -> None:
        """Put items in the place of a slice."""
        made, old = self._part(_NOTHING), self._arrays()
        made.extend(items)
        if key.step is not None and not (isinstance(key.step, int) and key.step == 1):
            self.columns = [fresh(read(column)) for column in self.columns]
            for column, rows in zip(self.columns, made.columns, strict=True):
                column[key] = rows
            for column, rows in zip(self._arrays(), made._arrays(), strict=True):
                follow(column.storage, rows.storage, Sharing.ITEM)
        else:
            before = self._part(slice(0 if key.start is None else key.start))
            after = self._part(_NOTHING if key.stop is None else slice(key.stop, None))
            self.columns = (before + made + after).columns
        self._follow(old)

    def _leaves(self, item: Any) -> list[Any]:
        leaves, structure = flatten(item)
        if structure != self.layout[0]:
            raise UnsupportedError(
                f"a list that grows in traced code holds items of one structure, {self.layout[0]}, not {structure}",
                location=here(), remedy="append items of the same kind",
            )  # fmt: skip
        for leaf, kind in zip(leaves, self.layout[1], strict=True):
            if kind is Kind.PYTHON:
                _refuse_narrow(leaf)
        self.take_kinds(map(_kind_of, leaves))
        return leaves

    def take_kinds(self, kinds: Iterable[Kind]) -> bool:
        """Make numbers NumPy's that are Python's, where others that are put in are NumPy's; tell whether there are such."""
        structure, own = self.layout
        joined = join_kinds(own, kinds)
        self.layout = structure, joined
        return joined != own

    def admit(self, other: TracedList) -> bool:
        """Have numbers of the kinds and dtypes that those of another list have too; tell whether that changes any."""
        if self.layout[0] != other.layout[0]:
            return False
        pairs = zip(self.columns, other.columns, strict=True)
        dtypes = [np.promote_types(mine.dtype, its.dtype) for mine, its in pairs]
        wider = any(c.dtype != dtype for c, dtype in zip(self.columns, dtypes, strict=True))
        if wider:
            pairs = zip(self.columns, dtypes, strict=True)
            self.columns = [fresh(cast(read(column), dtype)) for column, dtype in pairs]
        return self.take_kinds(other.layout[1]) or wider

    # -- what else stands for its items ------------------------------------------------------------------------------

    def _arrays(self) -> list[Traced]:
        """Return the columns whose items are arrays, which can be changed."""
        pairs = zip(self.columns, self.layout[1], strict=True)
        return [lift(column) for column, kind in pairs if kind is Kind.ARRAY]

    def _follow(self, old: list[Traced]) -> None:
        """Note that the columns hold what old ones did."""
        for before, column in zip(old, self._arrays(), strict=True):
            if column.storage is not before.storage:
                follow(column.storage, before.storage)

    def _note_item(self, item: Any, old: list[Traced]) -> None:
        """Note that an item was put in, which the program may know by other names."""
        from dsl.frontend.choices import note_item

        pairs = zip(flatten(item)[0], self.layout[1], strict=True)
        leaves = [leaf for leaf, kind in pairs if kind is Kind.ARRAY]
        for leaf, before, column in zip(leaves, old, self._arrays(), strict=True):
            if isinstance(leaf, Traced) and leaf.kind is Kind.ARRAY:
                put_in(column.storage, before.storage, leaf.storage)
        note_item(item)

    def note_items(self, items: list[Any], known: set[Storage]) -> None:
        """Note that the list, as it is, stands for a Python list of items, whose arrays in `known` have other names."""
        from dsl.frontend.choices import note_item

        storages = [
            {leaf.storage for leaf in flatten(item)[0] if isinstance(leaf, Traced)}
            for item in items
        ]
        counts = Counter(itertools.chain(*storages))
        for item, own in zip(items, storages, strict=True):
            if any(s in known or s.outside or counts[s] > 1 for s in own):
                self._note_item(item, self._arrays())
            note_item(item)

    def _also_in(self, made: TracedList) -> TracedList:
        """Note that another list has items of this one."""
        for column, mine in zip(made._arrays(), self._arrays(), strict=True):
            follow(column.storage, mine.storage, Sharing.ITEM)
        return made

    def _part(self, key: slice) -> TracedList:
        return TracedList(self.layout, [column[key].copy() for column in self.columns])

    # -- changes -----------------------------------------------------------------------------------------------------

    def append(self, item: Any) -> None:
        old = self._arrays()
        self.add_copy(item)
        self._follow(old)
        self._note_item(item, old)

    def add_copy(self, item: Any) -> None:
        """Append an item that nothing else will change."""
        leaves = [lift(leaf) for leaf in self._leaves(item)]
        self._add_rows([leaf.reshape((1, *leaf.shape)) for leaf in leaves])

    def _add_rows(self, rows: list[Traced]) -> None:
        self.columns = [_glue(column, row) for column, row in zip(self.columns, rows, strict=True)]

    def extend(self, items: Any) -> None:
        if isinstance(items, (TracedList, Traced)):
            return self._extend(items)
        for item in items:
            self.append(item)

    def _extend(self, items: TracedList | Traced) -> None:
        """Append all items of a list, or the rows of an array."""
        whole = TracedList(self.layout, [items]) if isinstance(items, Traced) else items
        if whole is self:
            note_doubled(self.layout[0])
        old = self._arrays()
        self._add_rows(whole.columns)
        self._follow(old)
        for column, before, rows in zip(self._arrays(), old, whole._arrays(), strict=True):
            put_in(column.storage, before.storage, rows.storage)

    def __iadd__(self, items: Any) -> TracedList:
        self.extend(items)
        return self

    def __add__(self, items: Any) -> Any:
        if not isinstance(items, (list, TracedList)):
            return NotImplemented
        made = self.copy()
        made.extend(items)
        return made

    def __radd__(self, items: Any) -> Any:
        if not isinstance(items, list):
            return NotImplemented
        made = self._part(_NOTHING)
        made.extend(items)
        made.extend(self)
        return made

    def __mul__(self, times: Any) -> Any:
        if isinstance(times, Traced):
            from dsl.frontend import sequences

            return sequences.repeated(self, times)
        if not isinstance(times, int):
            return NotImplemented
        made = self._part(_NOTHING)
        note_doubled(self.layout[0])
        for _ in range(times):
            made.extend(self)
        return made

    __rmul__ = __mul__

    def __contains__(self, item: Any) -> Any:
        return bool(self.has(item))

    def has(self, item: Any) -> Any:
        """`item in self`, as a traced bool."""
        return fresh(read(_FUNCTIONS["any"](self._equal_to(item))), Kind.PYTHON)

    def count(self, item: Any) -> Any:
        return fresh(read(_FUNCTIONS["sum"](self._equal_to(item))), Kind.PYTHON)

    def index(self, item: Any) -> Any:
        return self._place(
            item, f"{item if not isinstance(item, Traced) else 'item'} is not in list"
        )

    def remove(self, item: Any) -> None:
        self.pop(self._place(item, "list.remove(x): x not in list"))

    def _place(self, item: Any, missing: str) -> Any:
        """Where the first item equal to one is; without any, the program raises."""
        hits = self._equal_to(item)
        error = {"message": missing.replace("{", "{{").replace("}", "}}"), "error": "ValueError"}
        current_scope().node("assert", (read(_FUNCTIONS["any"](hits)),), error)
        # One more, so that the search has something to go over when the list is empty.
        ended = _FUNCTIONS["append"](hits, True)
        return fresh(read(_FUNCTIONS["argmax"](ended)), Kind.PYTHON)

    def _equal_to(self, item: Any) -> Any:
        from dsl.frontend import sequences

        return sequences.equal_to(self, item)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        from dsl.frontend import sequences

        made, old = self._part(_NOTHING), self._arrays()
        made.extend(sequences.ordered(self, key, reverse))
        self.columns = [fresh(read(column)) for column in made.columns]
        self._follow(old)

    def pop(self, index: Any = -1) -> Any:
        if self.columns[0].type.shape[0] == 0:
            raise IndexError("pop from empty list")
        leaves = [
            column[index].copy() if column.ndim > 1 else column[index] for column in self.columns
        ]
        item, old = self._item(leaves), self._arrays()
        taken = [
            leaf for leaf, kind in zip(leaves, self.layout[1], strict=True) if kind is Kind.ARRAY
        ]
        for leaf, before in zip(taken, old, strict=True):
            follow(leaf.storage, before.storage)
        if isinstance(index, int) and index == -1:
            self.columns = [column[:-1].copy() for column in self.columns]
        else:
            self.columns = [
                _glue(column[:index].copy(), column[index:][1:].copy()) for column in self.columns
            ]
        self._follow(old)
        from dsl.frontend.choices import note_pop

        note_pop(item, self)
        return item

    def __delitem__(self, key: Any) -> None:
        if not isinstance(key, slice):
            self.pop(key)
            return
        old = self._arrays()
        self.columns = [_FUNCTIONS["delete"](column, key, axis=0) for column in self.columns]
        self._follow(old)

    def insert(self, index: Any, item: Any) -> None:
        rows = [lift(leaf).reshape((1, *lift(leaf).shape)) for leaf in self._leaves(item)]
        old = self._arrays()
        self.columns = [
            _glue(_glue(column[:index].copy(), row), column[index:].copy())
            for column, row in zip(self.columns, rows, strict=True)
        ]
        self._follow(old)
        self._note_item(item, old)

    def clear(self) -> None:
        self.columns = [column[:0].copy() for column in self.columns]

    def copy(self) -> TracedList:
        made = TracedList(self.layout, [column.copy() for column in self.columns])
        return self._also_in(made)

    def reverse(self) -> None:
        old = self._arrays()
        self.columns = [column[::-1].copy() for column in self.columns]
        self._follow(old)

    def length(self) -> Any:
        dim = self.columns[0].type.shape[0]
        return dim if isinstance(dim, int) else size_number(dim)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self.columns[0].type.shape[0], int):
            raise NonConcreteError(
                "a list whose length the data decides cannot be made anything but a list or an array", location=here(),
                remedy="go over it by a `for` statement or a comprehension",
            )  # fmt: skip
        return iter([self[k] for k in range(len(self))])

    def array(self) -> Traced:
        """The items as one array, as `np.array(list)` gives them."""
        if len(self.columns) == 1:
            return self.columns[0].copy()  # type: ignore[no-any-return]
        return _FUNCTIONS["stack"](self.columns, axis=1)  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> Any:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def _plain_items(
    layout: tuple[Structure, tuple[Kind, ...]], columns: list[np.ndarray]
) -> list[Any]:
    """Return the items of a list whose leaves are in columns; at once if they are numbers, arrays or plain tuples of them."""
    structure, kinds = layout
    leaves = [
        column.tolist() if kind is Kind.PYTHON else list(column)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    marks = [object() for _ in leaves]
    one = unflatten(structure, list(marks))
    if one is marks[0]:
        return leaves[0]
    if type(one) is tuple and one == tuple(marks):
        return list(zip(*leaves))
    return [unflatten(structure, list(item)) for item in zip(*leaves)]


_PYTHONS = (bool, int, float, complex)
_WIDE = tuple(map(np.dtype, _PYTHONS))


def _kind_of(leaf: Any) -> Kind:
    """Return whose number a leaf is; NumPy's of other dtypes than Python's have go into a list of Python's as they are."""
    numpys = leaf.kind is Kind.SCALAR if isinstance(leaf, Traced) else isinstance(leaf, np.generic)
    return Kind.SCALAR if numpys and leaf.dtype in _WIDE else Kind.PYTHON


def join_kinds(kinds: Iterable[Kind], others: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return the kinds of numbers that are of either: NumPy's, unless all are Python's."""
    pairs = zip(kinds, others, strict=True)
    return tuple(b if a is Kind.PYTHON and b is Kind.SCALAR else a for a, b in pairs)


def _is_pythons(leaf: Any) -> bool:
    return leaf.kind is Kind.PYTHON if isinstance(leaf, Traced) else type(leaf) in _PYTHONS


def _refuse_narrow(leaf: Any) -> None:
    """Refuse NumPy's small integers in a list of Python's: they would not wrap any more."""
    is_numpys = isinstance(leaf, np.generic) or (
        isinstance(leaf, Traced) and leaf.kind is not Kind.PYTHON
    )
    if is_numpys and leaf.dtype.kind in "iu" and leaf.dtype != np.int64:
        name = leaf.dtype.name
        raise LoopTypeError(
            f"a list of Python's numbers, held as one array in traced code, gets a number of dtype {name}, which wraps where they do not",
            location=here(),
            remedy=f"make the list of such numbers (`[np.{name}(0)] * n`), or put `int(...)` of them into it",
        )


def _glue(column: Any, rows: Any) -> Any:
    """Put rows under a column; both take the dtype that NumPy joins them to."""
    a, b = lift(column), lift(rows)
    if a.type.shape[1:] != b.type.shape[1:]:
        raise LoopTypeError(
            f"a list that grows in traced code holds items of one shape, {a.type.shape[1:]}, not {b.type.shape[1:]}",
            location=here(), remedy="pad the items to one size, or loop with `dsl.unroll(range(n))`",
        )  # fmt: skip
    dtype = _common_dtype(a, b)
    scope = current_scope()
    return fresh(scope.emit("concatenate", cast(read(a), dtype), cast(read(b), dtype), axis=0))


def _common_dtype(a: Traced, b: Traced) -> np.dtype:
    if b.kind is not Kind.PYTHON:
        return np.promote_types(a.dtype, b.dtype)
    return np.result_type(a.dtype, {"b": False, "i": 0, "f": 0.0, "c": 0j}[b.dtype.kind])


def _widened(column: Traced, leaf: Traced, kind: Kind) -> Traced:
    """Return a column that has room for an item of another dtype; items that are arrays are exchanged, not changed."""
    dtype = _common_dtype(column, leaf)
    if dtype == column.dtype and kind is not Kind.ARRAY:
        return column
    return fresh(cast(read(column), dtype))


def item_layout(
    items: list[Any], infos: Any
) -> tuple[tuple[Structure, tuple[Kind, ...]], list[TensorType]] | None:
    """Return the common layout of a list's items and the types of their leaves, or None if they are not alike."""
    if not items:
        return None
    first, structure = flatten(items[0])
    described = [infos(leaf) for leaf in first]
    if any(d is None for d in described) or any(flatten(item)[1] != structure for item in items):
        return None
    types, kinds = [d.type for d in described], tuple(d.kind for d in described)
    if not all(knows_sizes(*t.shape) for t in types):
        return None
    for item in items[1:]:
        leaves = flatten(item)[0]
        more = [infos(leaf) for leaf in leaves]
        if any(m is None or m.shape != t.shape for m, t in zip(more, types, strict=True)):
            return None
        types = [
            TensorType(np.promote_types(t.dtype, m.dtype), t.shape)
            for m, t in zip(more, types, strict=True)
        ]
        kinds = join_kinds(kinds, map(_kind_of, leaves))
    return (structure, kinds), types


def knows_sizes(*dims: Any) -> bool:
    """Tell whether sizes are known outside all loops and branches, where a list may begin."""
    trace = current_trace()
    return trace is not None and all(map(trace.root.knows, symbols_of(*dims)))


def as_traced_list(
    items: list[Any], layout: tuple[Structure, tuple[Kind, ...]], types: list[TensorType]
) -> TracedList:
    """Return a Python list, perhaps empty, as a traced one."""
    scope = current_scope()
    made = TracedList(layout, [])
    rows = [made._leaves(item) for item in items]
    for column in zip(*rows, strict=True):
        if any(_is_pythons(leaf) for leaf in column):
            for leaf in column:
                _refuse_narrow(leaf)
    for k, type in enumerate(types):
        zero = scope.constant(np.zeros((), type.dtype))
        empty = fresh(scope.emit("full", zero, shape=(0, *type.shape)))
        made.columns.append(_column(empty, [row[k] for row in rows]))
    return made


def _column(empty: Traced, leaves: list[Any]) -> Any:
    """Return leaves as the rows of one array: a constant if all are Python's numbers, since lists may be long."""
    if leaves and all(type(leaf) in _PYTHONS for leaf in leaves):
        widest = max(leaves, key=lambda leaf: _PYTHONS.index(type(leaf)))
        dtype = _common_dtype(empty, lift(widest))
        return fresh(current_scope().constant(np.array(leaves, dtype)))
    for leaf in map(lift, leaves):
        empty = _glue(empty, leaf.reshape((1, *leaf.shape)))
    return empty
