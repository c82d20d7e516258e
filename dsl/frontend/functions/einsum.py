"""Einstein summation: `np.einsum` as diagonals, sums, transposes and matrix products.

Subscripts become one tuple of labels per operand; the dims of an ellipsis get labels of their own, counted from the
right. Operands are then contracted in pairs along a path from opt_einsum; NumPy's `optimize=` may give another. A size
that is known only at run time is taken for 32 when paths are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dsl.errors import ShapeError, TypeRuleError
from dsl.frontend.functions.arguments import agree
from dsl.frontend.functions.values import (
    common_dtype,
    insert_axis,
    multiply_matrices,
    of_dtype,
    reshape_value,
    sum_axes,
    transpose_value,
)
from dsl.frontend.library import implements
from dsl.frontend.scopes import Scope, current_scope, here
from dsl.frontend.traced import Traced, lift, read, supported_dtype, transpose_view, wrap
from dsl.frontend.ufuncs import _store
from dsl.frontend.views import Reshaped, Sliced
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.graph import Value
from dsl.ir.ops.rules import differ, shape_text
from dsl.ir.types import I64, size_of

__all__ = ["diagonal_view"]

Labels = tuple[str, ...]
Sizes = dict[str, DimLike]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TYPICAL_SIZE = 32


class Term(NamedTuple):
    """An operand with a label for each axis."""

    labels: Labels
    value: Value


@implements("einsum")
def einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
) -> Any:
    """Sum of products of elements with the same subscripts."""
    text, arrays = _subscripts(operands)
    labels, result = _parse(text, [x.ndim for x in arrays])
    kind = _result_dtype(arrays, dtype, casting)
    diagonals = [_without_repeats(of_dtype(x, kind), own) for x, own in zip(arrays, labels)]
    sizes = _sizes(diagonals)
    if len(diagonals) == 1 and set(diagonals[0][1]) == set(result):
        array, own = diagonals[0]
        found = transpose_view(array, tuple(own.index(label) for label in result))
        return _store(found if found.ndim else wrap(read(found)), out, True, casting)
    terms = [_narrow(Term(own, read(array)), sizes) for array, own in diagonals]
    return _store(wrap(_contract(terms, result, sizes, optimize)), out, True, casting)


def _result_dtype(arrays: Sequence[Traced], dtype: Any, casting: str) -> np.dtype:
    found = common_dtype(*arrays) if dtype is None else supported_dtype(dtype)
    for x in arrays:
        if not np.can_cast(x.dtype, found, casting=casting):  # type: ignore[arg-type]
            raise TypeRuleError(
                f"Iterator operand 0 dtype could not be cast from {x.dtype!r} to {found!r} "
                f"according to the rule {casting!r}",
                location=here(),
            )
    return found


# -- subscripts --------------------------------------------------------------------------------------------------


def _fail(message: str) -> ShapeError:
    return ShapeError(message, location=here())


def _subscripts(operands: tuple[Any, ...]) -> tuple[str, list[Traced]]:
    """Return the subscripts as text and the operands; both of NumPy's forms are taken."""
    if not operands:
        raise _fail(
            "must specify the einstein sum subscripts string and at least one operand, or at least one operand and "
            "its corresponding subscripts list"
        )
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), [lift(x) for x in operands[1:]]
    pairs = len(operands) // 2
    text = ",".join(_list_text(operands[2 * k + 1]) for k in range(pairs))
    if len(operands) % 2:
        text += "->" + _list_text(operands[-1])
    return text, [lift(operands[2 * k]) for k in range(pairs)]


def _list_text(labels: Iterable[Any]) -> str:
    try:
        return "".join("..." if label is Ellipsis else _LETTERS[int(label)] for label in labels)
    except IndexError:
        raise _fail("subscript is not within the valid range [0, 52)") from None


def _parse(text: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Return the labels of each operand and of the result."""
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        how = "more" if len(parts) < len(ranks) else "fewer"
        raise _fail(
            f"{how} operands provided to einstein sum function than specified in the subscripts string"
        )
    labels = [_operand_labels(part, rank, k) for k, (part, rank) in enumerate(zip(parts, ranks))]
    width = max((sum(map(str.isdigit, own)) for own in labels), default=0)
    hidden = tuple(str(k) for k in reversed(range(width)))
    return labels, _explicit(right, labels, hidden) if arrow else hidden + _implicit(labels)


def _check_letters(text: str, where: str) -> None:
    for letter in text.replace("...", "", 1):
        if letter == ".":
            raise _fail(
                "einstein sum subscripts string contains a '.' that is not part of an ellipsis ('...') "
                f"in {where}"
            )
        if letter not in _LETTERS:
            raise _fail(
                f"invalid subscript '{letter}' in einstein sum subscripts string, subscripts must be letters"
            )


def _operand_labels(part: str, rank: int, index: int) -> Labels:
    _check_letters(part, f"operand {index}")
    head, dots, tail = part.partition("...")
    extra = rank - len(head) - len(tail)
    if extra < 0:
        raise _fail(
            f"einstein sum subscripts string contains too many subscripts for operand {index}"
        )
    if extra and not dots:
        raise _fail(
            "operand has more dimensions than subscripts given in einstein sum, but no '...' ellipsis "
            "provided to broadcast the extra dimensions."
        )
    return (*head, *(str(k) for k in reversed(range(extra))), *tail)


def _implicit(labels: list[Labels]) -> Labels:
    every = [label for own in labels for label in own if label in _LETTERS]
    return tuple(sorted(label for label in set(every) if every.count(label) == 1))


def _explicit(text: str, labels: list[Labels], hidden: Labels) -> Labels:
    _check_letters(text, "the output")
    known = {label for own in labels for label in own}
    for letter in text.replace(".", ""):
        if text.count(letter) > 1:
            raise _fail(
                f"einstein sum subscripts string includes output subscript '{letter}' multiple times"
            )
        if letter not in known:
            raise _fail(
                f"einstein sum subscripts string included output subscript '{letter}' which never appeared in an input"
            )
    head, dots, tail = text.partition("...")
    if hidden and not dots:
        raise _fail(
            "output has more dimensions than subscripts given in einstein sum, but no '...' ellipsis "
            "provided to broadcast the extra dimensions."
        )
    return (*head, *(hidden if dots else ()), *tail)


# -- one operand -------------------------------------------------------------------------------------------------


def _without_repeats(x: Traced, labels: Labels) -> tuple[Traced, Labels]:
    """Take diagonals until each label stands once; a label keeps its first place."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = _collapse(x, first, second, label)
            labels = (*labels[:second], *labels[second + 1 :])
    return x, labels


def _collapse(x: Traced, first: int, second: int, label: str) -> Traced:
    m, n = x.type.shape[first], x.type.shape[second]
    if differ(m, n):
        raise _fail(
            f"dimensions in single operand for collapsing index '{label}' don't match ({m} != {n})"
        )
    agree(m, n, f"dimensions in single operand for collapsing index '{label}' don't match")
    diagonal = diagonal_view(x, first, second)
    rank = diagonal.ndim
    return transpose_view(diagonal, (*range(first), rank - 1, *range(first, rank - 1)))


@dataclass(frozen=True)
class MainDiagonal:
    """The main diagonal of the last two axes, of a size that is known only at run time."""

    def get(self, b: Scope, base: Value) -> Value:
        rank, places = len(base.shape), b.emit("iota", size=base.shape[-2], dtype=I64)
        value = b.emit("gather", base, places, places, axes=(rank - 2, rank - 1))
        return b.emit("transpose", value, axes=(*range(1, rank - 1), 0))

    def put(self, b: Scope, base: Value, value: Value) -> Value:
        rank, places = len(base.shape), b.emit("iota", size=base.shape[-2], dtype=I64)
        rows = b.emit("transpose", value, axes=(rank - 2, *range(rank - 2)))
        axes = (rank - 2, rank - 1)
        return b.emit("scatter", base, rows, places, places, axes=axes, mode="update")

    def of(self, array: np.ndarray) -> np.ndarray | None:
        return np.einsum("...ii->...i", array)  # type: ignore[no-any-return]


def diagonal_view(x: Traced, axis1: int, axis2: int) -> Traced:
    """Return a view of the main diagonal of two axes of one size, as the last axis."""
    rest = [k for k in range(x.ndim) if k not in (axis1, axis2)]
    last = transpose_view(x, (*rest, axis1, axis2))
    *batch, n, m = last.type.shape
    if not isinstance(m, int):
        return last._view(MainDiagonal())
    size = (*batch, m)
    start, step = (0,) * len(size), (1,) * len(batch) + (m + 1,)
    views = (*last.views, Reshaped((*batch, n * m)), Sliced(start, size, step))
    return Traced(last.storage, views)


def _sizes(operands: Sequence[tuple[Traced, Labels]]) -> Sizes:
    """Return the size of every label; a size of 1 gives way to another."""
    sizes: Sizes = {}
    for array, labels in operands:
        for label, dim in zip(labels, array.type.shape):
            known = sizes.setdefault(label, dim)
            if known == 1 or (dim != 1 and isinstance(dim, int)):
                sizes[label] = dim
            if differ(known, dim) and 1 not in (known, dim):
                raise _mismatch(operands)
            if min(lower_bound(known) or 0, lower_bound(dim) or 0) > 1:
                agree(known, dim, _mismatch(operands).message)
    return sizes


def _mismatch(operands: Sequence[tuple[Traced, Labels]]) -> ShapeError:
    shapes = [shape_text(array.type.shape) for array, _ in operands]
    return _fail(
        "operands could not be broadcast together with remapped shapes [original->remapped]: "
        + " ".join(f"{shape}->{''.join(labels)}" for shape, (_, labels) in zip(shapes, operands))
    )


def _narrow(term: Term, sizes: Sizes) -> Term:
    """Drop the axes of size 1 that are broadcast to another size."""
    kept = [(label, dim) for label, dim in zip(*_parts(term)) if dim == sizes[label] or dim != 1]
    return Term(
        tuple(label for label, _ in kept), reshape_value(term.value, tuple(dim for _, dim in kept))
    )


def _parts(term: Term) -> tuple[Labels, tuple[DimLike, ...]]:
    return term.labels, term.value.shape


def _sum_out(term: Term, keep: Iterable[str]) -> Term:
    wanted = set(keep)
    gone = [k for k, label in enumerate(term.labels) if label not in wanted]
    labels = tuple(label for label in term.labels if label in wanted)
    return Term(labels, sum_axes(term.value, gone))


# -- several operands --------------------------------------------------------------------------------------------


def _contract(terms: list[Term], result: Labels, sizes: Sizes, optimize: Any) -> Value:
    for step in _path(terms, result, sizes, optimize):
        chosen = [terms[k] for k in step]
        terms = [term for k, term in enumerate(terms) if k not in step]
        terms.append(_contract_some(chosen, {*result, *_labels_of(terms)}))
    (last,) = terms
    last = _sum_out(last, result)
    return transpose_value(last.value, (last.labels.index(label) for label in result))


def _labels_of(terms: Iterable[Term]) -> set[str]:
    return {label for term in terms for label in term.labels}


def _contract_some(terms: list[Term], keep: set[str]) -> Term:
    first, *others = terms
    for k, other in enumerate(others):
        first = _contract_pair(first, other, keep | _labels_of(others[k + 1 :]))
    return _sum_out(first, keep)


def _contract_pair(x: Term, y: Term, keep: set[str]) -> Term:
    """Multiply two operands and sum over the labels that nothing else needs."""
    x, y = _sum_out(x, keep | set(y.labels)), _sum_out(y, keep | set(x.labels))
    shared = [label for label in x.labels if label in y.labels]
    batch = tuple(label for label in shared if label in keep)
    inner = tuple(label for label in shared if label not in keep)
    rows = tuple(label for label in x.labels if label not in shared)
    columns = tuple(label for label in y.labels if label not in shared)
    labels = batch + rows + columns
    if not inner:
        return Term(labels, _product(x, y, labels))
    left, right = _grouped(x, batch, rows, inner), _grouped(y, batch, inner, columns)
    product = multiply_matrices(left, right)
    dims = {**dict(zip(*_parts(y))), **dict(zip(*_parts(x)))}
    return Term(labels, reshape_value(product, tuple(dims[label] for label in labels)))


def _product(x: Term, y: Term, labels: Labels) -> Value:
    left, right = (_spread(term, labels) for term in (x, y))
    return current_scope().emit("multiply", left, right)


def _spread(term: Term, labels: Labels) -> Value:
    """Return a term with an axis for every label, of size 1 where it has none."""
    value = transpose_value(
        term.value, (term.labels.index(label) for label in labels if label in term.labels)
    )
    for k, label in enumerate(labels):
        if label not in term.labels:
            value = insert_axis(value, k)
    return value


def _grouped(term: Term, *groups: Labels) -> Value:
    """Return a term as an array of rank 3 (rank 2 without batch): each group of labels is one axis."""
    dims = dict(zip(*_parts(term)))
    value = transpose_value(
        term.value, (term.labels.index(label) for group in groups for label in group)
    )
    wanted = groups if groups[0] else groups[1:]
    return reshape_value(
        value, tuple(size_of(tuple(dims[label] for label in group)) for group in wanted)
    )


def _path(terms: list[Term], result: Labels, sizes: Sizes, optimize: Any) -> list[tuple[int, ...]]:
    """Return which operands to contract at each step; a step's result goes to the end of the list."""
    if len(terms) < 3:
        return [tuple(range(len(terms)))] if len(terms) == 2 else []
    if isinstance(optimize, (list, tuple)) and optimize and optimize[0] == "einsum_path":
        return [tuple(step) for step in optimize[1:]]
    return _find_path(terms, result, sizes, optimize if isinstance(optimize, str) else "auto")


def _find_path(terms: list[Term], result: Labels, sizes: Sizes, how: str) -> list[tuple[int, ...]]:
    import opt_einsum

    symbols = {label: opt_einsum.get_symbol(k) for k, label in enumerate(sizes)}
    text = ",".join("".join(symbols[label] for label in term.labels) for term in terms)
    equation = f"{text}->{''.join(symbols[label] for label in result)}"
    shapes = [tuple(_guess(sizes[label]) for label in term.labels) for term in terms]
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=how)
    return [tuple(step) for step in path]


def _guess(dim: DimLike) -> int:
    return dim if isinstance(dim, int) else _TYPICAL_SIZE
