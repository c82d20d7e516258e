"""Python's built-in functions and classes on traced values.

Each takes what Python's takes, and is Python's own where nothing is traced. They are entered in the table that `call` looks at.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import types
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import UnsupportedError
from dsl.frontend import loops, sequences
from dsl.frontend.array_likes import as_array, kind_of_items
from dsl.frontend.calls import BUILTINS, call
from dsl.frontend.conditions import logic, truth
from dsl.frontend.iterators import Cursor, generated, searched
from dsl.frontend.leaves import the_trace
from dsl.frontend.library import has_traced
from dsl.frontend.lists import TracedList
from dsl.frontend.operators import binary
from dsl.frontend.running import reduced
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.text import TracedText, print_, text_of
from dsl.frontend.traced import (
    _FUNCTIONS,
    Kind,
    Traced,
    cast,
    concrete,
    fresh,
    lift,
    read,
    size_number,
)
from dsl.frontend.trees import forwarded
from dsl.frontend.user_code import own_method
from dsl.ir.types import I64

__all__ = ["length_of", "list_of", "sum_of", "to_float", "to_int", "type_of"]


def length_of(x: Any) -> Any:
    """`len(x)`."""
    if isinstance(x, Traced):
        if x.ndim == 0:
            raise TypeError("len() of unsized object")
        dim = x.type.shape[0]
        return dim if isinstance(dim, int) else size_number(dim)
    if isinstance(x, TracedList):
        return x.length()
    if isinstance(x, loops.Span):
        return x.trips()
    return len(x)


@functools.cache
def _one_element_is_a_number() -> bool:
    """Tell whether arrays of one element can be made Python's numbers, as before NumPy 2.4."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            float(np.zeros(1))
        except TypeError:
            return False
    return True


def _to_number(kind: type, dtype: np.dtype) -> Callable[..., Any]:
    def convert_(*args: Any, **kwargs: Any) -> Any:
        if not (args and isinstance(args[0], Traced)):
            return kind(*args, **kwargs)
        x = args[0]
        known = concrete(x)
        if known is not None:
            return kind(known)
        if x.ndim and not (set(x.type.shape) == {1} and _one_element_is_a_number()):
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        if x.kind is Kind.PYTHON and x.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"{kind.__name__}() argument must be a real number, not 'complex'")
        return fresh(cast(read(x.reshape(())), dtype), Kind.PYTHON)

    return convert_


to_int = _to_number(int, I64)
to_float = _to_number(float, np.dtype(float))
_to_complex = _to_number(complex, np.dtype(complex))


def _complex(*args: Any, **kwargs: Any) -> Any:
    if len(args) != 2 or not has_traced(args):
        return _to_complex(*args, **kwargs)
    parts = (read(lift(to_float(x))) for x in args)
    return fresh(current_scope().emit("complex", *parts), Kind.PYTHON)


def _bool(*args: Any) -> Any:
    return truth(args[0]) if args and isinstance(args[0], (Traced, TracedList)) else bool(*args)


def sum_of(items: Any, start: Any = 0) -> Any:
    """`sum(items, start)`."""
    if isinstance(items, loops.Span):
        total = fresh(read(_FUNCTIONS["sum"](items.dsl_traced())), Kind.PYTHON)
        return binary("Add", start, total)
    kind, items = kind_of_items(items), as_array(items)
    if isinstance(items, Traced) and items.ndim == 1:
        total = _FUNCTIONS["sum"](items, dtype=binary("Add", start, items[:0]).dtype)
        total = fresh(read(total), kind)
        return total if isinstance(start, int) and start == 0 else start + total
    if isinstance(items, TracedList) and len(items.columns) == 1 and sequences.is_open(items):
        return sequences.added(items, start)
    return reduced(functools.partial(binary, "Add"), items, start)


def _quantified(plain: Callable[[Any], bool], all_of: bool) -> Callable[[Any], Any]:
    """Make `any` or `all`."""

    def apply(items: Any) -> Any:
        source, items = items, as_array(searched(items))
        if isinstance(items, Traced) and items.ndim == 1:
            _end_somewhere(source, plain)
            return truth(_FUNCTIONS[plain.__name__](items))
        left = iter(items)
        for item in left:
            chosen = truth(item)
            if not isinstance(chosen, bool):
                rest = list(left)
                _end_somewhere(source, plain)
                return _rest(chosen, rest)
            if chosen is not all_of:
                return chosen
        return all_of

    def _rest(chosen: Any, items: list[Any]) -> Any:
        if sequences.are_many(len(items)):
            return call(plain, _FUNCTIONS["array"]([chosen, *(truth(item) for item in items)]))
        return logic(chosen, tuple(functools.partial(truth, item) for item in items), all_of)

    return apply


def _end_somewhere(source: Any, plain: Any) -> None:
    """Note that nobody knows how far a search went; refuse one that asks the user's functions for more items than Python does."""
    if not isinstance(source, Cursor):
        return
    if not source.total:
        raise UnsupportedError(
            f"`{plain.__name__}` ends where the data says, and this iterator computes its items one by one",
            location=here(), remedy=f"write the generator in the call: `{plain.__name__}(f(v) for v in x)`",
        )  # fmt: skip
    source.finish(lost=True)


def _pow(base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return base**exponent
    if not has_traced((base, exponent, modulus)):
        return pow(base, exponent, modulus)
    from dsl.frontend.modular import modular_power

    for number in (base, exponent, modulus):
        if isinstance(number, Traced) and (number.ndim or number.dtype.kind not in "biu"):
            raise TypeError("pow() 3rd argument not allowed unless all arguments are integers")
    return modular_power(*map(to_int, (base, exponent, modulus)))


def _divmod(a: Any, b: Any) -> Any:
    return (a // b, a % b) if has_traced((a, b)) else divmod(a, b)


def _map(fn: Any, *items: Any) -> Any:
    def make(rows: Any) -> Any:
        return itertools.starmap(functools.partial(call, fn), rows)

    rows = loops.zip_(*items)
    if sequences.is_open(rows):
        made = sequences.collected(rows, make)
    else:
        made = sequences.each_of_many(rows, rows, make, lambda: [fn])
    return generated(made, total=not isinstance(fn, types.FunctionType))


def _next(items: Any, *default: Any) -> Any:
    return items.advance(*default) if isinstance(items, Cursor) else next(items, *default)


def _iter(items: Any, *sentinel: Any) -> Any:
    own = own_method(items, "__iter__")
    if own is not None and not sentinel:
        return call(own, items)
    if sentinel or not isinstance(items, (list, tuple, range, Traced, TracedList, loops.Counted)):
        return iter(items, *sentinel)
    return items


def _filter(fn: Any, items: Any) -> Any:
    items = sequences.again(items)
    if not sequences.are_decided(items, [fn], None):
        return sequences.filtered(items, fn)
    return [x for x in items if (call(fn, x) if fn is not None else x)]


def list_of(*args: Any) -> Any:
    """`list(items)`; the list of items whose number the data decides is traced."""
    if len(args) != 1:
        return list(*args)
    (items,) = args
    return items.copy() if isinstance(items, TracedList) else sequences.listed(items)


def _isinstance(x: Any, kinds: Any) -> bool:
    x = forwarded(x)
    if isinstance(x, TracedList):
        return issubclass(type_of(x), kinds)
    if not isinstance(x, Traced):
        return isinstance(x, kinds)
    if x.kind is Kind.PYTHON:
        sample: Any = {"b": False, "i": 0, "f": 0.0, "c": 0j}[x.dtype.kind]
    else:
        sample = np.empty(1, x.dtype)[0] if x.kind is Kind.SCALAR else np.empty(0, x.dtype)
    return isinstance(sample, kinds) or isinstance(x, kinds)


def type_of(x: Any, *rest: Any) -> Any:
    """`type(x)`: of a traced value or list, that of what it stands for."""
    if isinstance(x, TracedList) and not rest:
        return deque if id(x) in the_trace().deques else list
    if rest or not isinstance(x, Traced):
        return type(x, *rest)
    if x.kind is Kind.PYTHON:
        return {"b": bool, "i": int, "f": float, "c": complex}[x.dtype.kind]
    return x.dtype.type if x.kind is Kind.SCALAR else np.ndarray


def _str(*args: Any, **kwargs: Any) -> Any:
    return text_of(args[0]) if len(args) == 1 and not kwargs else str(*args, **kwargs)


def _format(x: Any, spec: str = "") -> Any:
    return TracedText.join(((x, spec, -1),))


def _warn(*args: Any, **kwargs: Any) -> None:
    """Warn while tracing, unless the data decides: whether a branch is taken is not known yet."""
    if current_scope().parent is None:
        warnings.warn(*args, **kwargs)


def _poly1d(c_or_r: Any, r: bool = False, variable: str | None = None) -> Any:
    """Make a polynomial; traced coefficients keep their leading zeros, since how many there are is not known."""
    if not has_traced(c_or_r) or isinstance(c_or_r, np.poly1d):
        return np.poly1d(c_or_r, r, variable)
    made: Any = object.__new__(np.poly1d)
    vars(made)["coeffs"] = np.atleast_1d(call(np.poly, c_or_r) if r else lift(c_or_r))
    made._variable = "x" if variable is None else variable
    return made


def _ndindex(*shape: Any) -> Any:
    return loops.NdIndex(
        tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    )


def _ndenumerate(x: Any) -> Any:
    traced = lift(x)
    indices = loops.NdIndex(traced.shape)
    return loops.Zipped([indices, loops.Rows(traced.reshape(-1))])


def _fromiter(items: Any, dtype: Any, count: int = -1, **kwargs: Any) -> Any:
    if isinstance(items, TracedList):
        return (items if count < 0 else items[:count]).array().astype(dtype)
    taken = list(items if count < 0 else itertools.islice(items, count))
    return _FUNCTIONS["array"](taken, dtype=dtype)


def _nditer(x: Any, *args: Any, **kwargs: Any) -> Any:
    """`np.nditer(x)`: the elements one after the other, of one array that is only read, in the order of memory or of axes."""
    if not has_traced(x):
        return np.nditer(x, *args, **kwargs)
    order = kwargs.pop("order", "K")
    if not isinstance(x, Traced) or args or kwargs:
        raise UnsupportedError(
            "np.nditer of several arrays, or with flags, is not supported on traced values",
            location=here(),
            remedy="loop with `np.ndenumerate(x)` or `np.ndindex(x.shape)`, and write `x[index]`",
        )
    if order not in ("C", "F") and not x.flags.c_contiguous:
        raise UnsupportedError(
            "np.nditer goes through an array that is not in C order as it lies in memory",
            location=here(),
            remedy="say `np.nditer(x, order='C')`, or loop over `x.flat`",
        )
    return loops.Rows((x.T if order == "F" else x).reshape(-1))


def _evaluated(run: Callable[..., Any]) -> Callable[..., Any]:
    """`eval` and `exec`: without names that are given to them, they would see those of dsl instead of the user's."""

    def apply(source: Any, /, globals: Any = None, locals: Any = None) -> Any:
        if globals is not None:
            return run(source, globals, locals)
        raise UnsupportedError(
            f"`{run.__name__}` does not see the variables of a compiled function",
            location=here(),
            remedy="write the expression itself, or call it outside of the compiled function",
        )

    return apply


BUILTINS.update({
    builtins.eval: _evaluated(eval), builtins.exec: _evaluated(exec),
    builtins.len: length_of, builtins.range: loops.range_, builtins.enumerate: loops.enumerate_, builtins.zip: loops.zip_,
    builtins.reversed: loops.reversed_, builtins.int: to_int, builtins.float: to_float, builtins.complex: _complex,
    builtins.bool: _bool, builtins.print: print_, builtins.sum: sum_of, builtins.abs: abs, builtins.any: _quantified(any, False),
    builtins.all: _quantified(all, True), builtins.pow: _pow, builtins.map: _map, builtins.filter: _filter, builtins.next: _next,
    builtins.iter: _iter, itertools.count: loops.count_, itertools.cycle: loops.cycle_, builtins.isinstance: _isinstance,
    builtins.type: type_of, builtins.round: round, builtins.list: list_of, builtins.format: _format, warnings.warn: _warn,
    builtins.divmod: _divmod, builtins.str: _str, builtins.repr: functools.partial(text_of, by_repr=True), np.poly1d: _poly1d,
    np.ndindex: _ndindex, np.ndenumerate: _ndenumerate, np.fromiter: _fromiter, np.nditer: _nditer,
})  # fmt: skip
