"""Variables: arrays that live from step to step, shared by functions, graphs and threads.

A variable has a value from the start, of a dtype and shape that stay. `np.asarray(v)` and `v.value` are its memory, without
a copy. Arithmetic with a variable reads it. `assign`, `assign_add`, `assign_sub` and the `scatter_*` write in place, each as
a whole: no other step sees a part of a write, and no write is lost.

In a function under `dsl.jit` reads and writes happen in program order, and the function as a whole has the variables that
it writes to itself while it runs. In a `dsl.Graph` the methods make nodes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ShapeError, TypeRuleError, UnsupportedError
from dsl.frontend.captures import capture
from dsl.frontend.library import has_traced
from dsl.frontend.scopes import current_trace, here
from dsl.frontend.traced import (
    Traced,
    concrete,
    lift,
    supported_dtype,
)
from dsl.ir.operators import BINARY
from dsl.runtime.claims import Claim, Claimable

__all__ = ["Variable"]

_HOW: dict[str, Callable[..., Any]] = {"add": np.add, "subtract": np.subtract}
_serial = itertools.count(1)


class Variable(Claimable):
    """An array with a name whose contents change.

    >>> import dsl
    >>> count = Variable(0, name="count")
    >>> @dsl.jit
    ... def step(x):
    ...     count.assign_add(1)
    ...     return x * count
    >>> step(3), step(3), int(count.value)
    (np.int64(3), np.int64(6), 2)
    """

    __slots__ = ("__weakref__", "_alone", "_array", "_shared", "name", "trainable")
    __array_priority__ = 2000.0

    def __init__(
        self,
        value: Any,
        name: str | None = None,
        *,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        _refuse_in_function()
        array = np.array(_first_value(value), dtype=dtype, order="C")
        self._array = array.astype(supported_dtype(array.dtype), copy=False)
        self.name, self.trainable = name or f"variable_{next(_serial)}", bool(trainable)
        self._shared, self._alone = Claim([self]), Claim((), [self])
        trace = current_trace()
        if trace is not None:
            trace.house(self)

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        """The dtype, which stays."""
        return self._array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, which stays."""
        return self._array.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size

    @property
    def value(self) -> Any:
        """The array itself: its memory, which later writes change; in traced code, its contents now."""
        return self.dsl_traced() if current_trace() is not None else self._array

    @property
    def memory(self) -> np.ndarray:
        """The array itself, in traced code too."""
        return self._array

    def read(self) -> Any:
        """Return the contents now, in memory of their own."""
        return self.dsl_traced().copy() if current_trace() is not None else self.snapshot()

    def numpy(self) -> np.ndarray:
        """Return a copy as a NumPy array."""
        return self.snapshot()

    def __repr__(self) -> str:
        return f"<dsl.Variable {self.name!r} {self.dtype}{list(self.shape)}>"

    def __format__(self, spec: str) -> str:
        return format(self._operand(), spec) if spec else repr(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if current_trace() is not None:
            self.dsl_traced().__array__()  # refuses
        return np.array(self._array, dtype=dtype, copy=copy)

    # -- writing ----------------------------------------------------------------------------------------------------

    def assign(self, value: Any) -> Any:
        """Replace the contents; `value` broadcasts to the variable's shape."""
        return self._write("set", value)

    def assign_add(self, value: Any) -> Any:
        """Add to the contents."""
        return self._write("add", value)

    def assign_sub(self, value: Any) -> Any:
        """Subtract from the contents."""
        return self._write("subtract", value)

    def scatter_update(self, indices: Any, updates: Any) -> Any:
        """Replace the rows at `indices`; of equal indices the last counts."""
        return self._write_rows("set", indices, updates)

    def scatter_add(self, indices: Any, updates: Any) -> Any:
        """Add to the rows at `indices`; equal indices add up."""
        return self._write_rows("add", indices, updates)

    def scatter_sub(self, indices: Any, updates: Any) -> Any:
        """Subtract from the rows at `indices`; equal indices add up."""
        return self._write_rows("subtract", indices, updates)

    def _write(self, how: str, value: Any) -> Any:
        trace, value = current_trace(), _settled(value)
        self._check(value, self.shape, "assign")
        if trace is None:
            with self._alone:
                self._put(how, value)
            return self
        if trace.is_graph:
            return trace.write_variable(self, how, value)
        target = self.dsl_traced()
        target[...] = value if how == "set" else _HOW[how](target, value)
        return target.copy()

    def _write_rows(self, how: str, indices: Any, updates: Any) -> Any:
        trace, indices, updates = current_trace(), self._rows(indices), _settled(updates)
        self._check(updates, (*indices.shape, *self.shape[1:]), "scatter")
        if trace is None:
            with self._alone:
                self._put_rows(how, indices, updates)
            return self
        if trace.is_graph:
            return trace.scatter_variable(self, how, indices, updates)
        target = self.dsl_traced()
        if how == "set":
            target[indices] = updates
        else:
            _HOW[how].at(target, indices, updates)  # type: ignore[attr-defined]
        return target.copy()

    def _rows(self, indices: Any) -> Any:
        """Return what says which rows, as an array of integers."""
        if not self.ndim:
            raise ShapeError(f"{self!r} has no rows", location=here(), remedy="use `assign`")
        found = _arrayed(_settled(indices))
        if not isinstance(found, Traced) and not found.size:
            return found.astype(np.int64)
        if found.dtype.kind not in "iu":
            raise TypeRuleError(
                f"scatter: indices must be integers, got {found.dtype}", location=here()
            )
        return found

    def _check(self, value: Any, shape: tuple[Any, ...], verb: str) -> None:
        """Refuse what NumPy's in-place operators refuse."""
        weak = type(value) in (bool, int, float, complex)
        operand = value if weak else _arrayed(value)
        given = np.result_type(self.dtype, value) if weak else operand.dtype
        if not np.can_cast(given, self.dtype, "same_kind"):
            name = type(value).__name__ if weak else given
            raise TypeRuleError(
                f"{verb}: a value of dtype {name} does not fit {self!r}",
                location=here(), remedy=f"convert it: `value.astype({str(self.dtype)!r})`",
            )  # fmt: skip
        _check_shape(self, shape, operand)

    # -- for steps --------------------------------------------------------------------------------------------------

    def snapshot(self) -> np.ndarray:
        """Return a copy of the contents."""
        with self._shared:
            return self._array.copy()

    def update(self, how: str, value: Any) -> np.ndarray:
        """Set, add or subtract, and return a copy of the contents afterwards."""
        with self._alone:
            self._put(how, value)
            return self._array.copy()

    def scatter(self, how: str, indices: Any, updates: Any) -> np.ndarray:
        """Set, add or subtract rows, and return a copy of the contents afterwards."""
        with self._alone:
            self._put_rows(how, indices, updates)
            return self._array.copy()

    def _put(self, how: str, value: Any) -> None:
        if how == "set":
            np.copyto(self._array, value, casting="same_kind")
        else:
            _HOW[how](self._array, value, out=self._array, casting="same_kind")

    def _put_rows(self, how: str, indices: Any, updates: Any) -> None:
        if how == "set":
            self._array[indices] = updates
        else:
            _HOW[how].at(self._array, indices, updates)  # type: ignore[attr-defined]

    def dsl_traced(self) -> Traced:
        """Return the contents as traced code sees them."""
        trace = current_trace()
        assert trace is not None
        if trace.is_graph:
            return trace.read_variable(self)  # type: ignore[no-any-return]
        trace.variables[id(self)] = self
        found = capture(self, "_array", self._array)
        trace.contents.setdefault(id(self), {})[found.storage.get()] = None
        return found

    def dsl_checkpoint_value(self) -> np.ndarray:
        """Return what a checkpoint saves."""
        return self.snapshot()

    def dsl_checkpoint_assign(self, array: np.ndarray) -> None:
        """Take what a checkpoint has."""
        self.update("set", array)

    # -- as an operand ------------------------------------------------------------------------------------------------

    def _operand(self) -> Any:
        return self.dsl_traced() if current_trace() is not None else self._array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Variable) for x in kwargs.get("out", ())):
            raise UnsupportedError(
                "`out=` cannot be a variable", location=here(), remedy="use `assign` and its kin"
            )
        return getattr(ufunc, method)(*map(_plain, inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*_plain_tree(args), **_plain_tree(kwargs))

    def __getitem__(self, key: Any) -> Any:
        return self._operand()[_plain(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        trace = current_trace()
        if trace is None:
            with self._alone:
                self._array[_plain(key)] = _plain(value)
        elif trace.is_graph:
            raise UnsupportedError(
                "assigning to an index of a variable in a graph", location=here(),
                remedy="use `scatter_update(indices, rows)`, or compute the whole value and `assign` it",
            )  # fmt: skip
        else:
            self.dsl_traced()[_plain(key)] = _plain(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"'Variable' object has no attribute {name!r}")
        return getattr(self._operand(), name)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Any:
        return iter(self._operand())

    def __bool__(self) -> bool:
        return bool(self._operand())

    def __float__(self) -> float:
        return float(self._operand())

    def __int__(self) -> int:
        return int(self._operand())

    def __index__(self) -> int:
        return self._operand().__index__()  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        return functools.partial(Variable, name=self.name, trainable=self.trainable), (
            self.numpy(),
        )


def _binary(name: str) -> Callable[..., Any]:
    def apply(self: Variable, other: Any) -> Any:
        return getattr(self._operand(), name)(_plain(other))

    apply.__name__ = name
    return apply


def _in_place(name: str) -> Callable[..., Any]:
    def apply(self: Variable, other: Any) -> Any:
        if (trace := current_trace()) is not None and trace.is_graph:
            raise UnsupportedError(
                "an augmented assignment to a variable in a graph", location=here(),
                remedy="use `assign`, `assign_add` or `assign_sub`, and run what they return",
            )  # fmt: skip
        if trace is None:
            operand = _settled(other)
            self._check(operand, self.shape, name.strip("_"))
            with self._alone:
                getattr(self._array, name)(operand)
        else:
            target = self.dsl_traced()
            result = getattr(target, name.replace("__i", "__", 1))(_plain(other))
            self._check(result, self.shape, name.strip("_"))
            target[...] = result
        return self

    apply.__name__ = name
    return apply


def _unary(name: str) -> Callable[..., Any]:
    def apply(self: Variable) -> Any:
        return getattr(self._operand(), name)()

    apply.__name__ = name
    return apply


for _name in BINARY:
    setattr(Variable, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(Variable, f"__r{_name}__", _binary(f"__r{_name}__"))
    setattr(Variable, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name in ("divmod", "rdivmod"):
    setattr(Variable, f"__{_name}__", _binary(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Variable, f"__{_name}__", _binary(f"__{_name}__"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Variable, f"__{_name}__", _unary(f"__{_name}__"))
Variable.__hash__ = lambda self: id(self)  # type: ignore[method-assign]


def _plain(x: Any) -> Any:
    """Return a variable as the array, or traced array, that it is now."""
    if isinstance(x, Variable):
        return x._operand()
    return tuple(map(_plain, x)) if isinstance(x, tuple) else x


def _settled(x: Any) -> Any:
    """Return what is written: of a variable the contents now, which no other thread changes."""
    return x.snapshot() if isinstance(x, Variable) and current_trace() is None else _plain(x)


def _arrayed(x: Any) -> Any:
    """Return something as an array, traced if a part of it is."""
    if isinstance(x, Traced):
        return x
    return np.asarray(x) if current_trace() is None or not has_traced(x) else lift(x)


def _plain_tree(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _plain_tree(item) for key, item in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(map(_plain_tree, x))
    return _plain(x)


def _first_value(value: Any) -> Any:
    if isinstance(value, Variable):
        return value.snapshot()
    if not isinstance(value, Traced):
        return value
    known = concrete(value)
    if known is None:
        raise UnsupportedError(
            "a variable starts with numbers, and this value is known only when the graph runs", location=here(),
            remedy="start it with an array, and `assign` the computed value",
        )  # fmt: skip
    return known


def _check_shape(variable: Variable, wanted: tuple[Any, ...], value: Any) -> None:
    """Refuse a value that does not broadcast to a shape, as far as sizes are known."""
    shape: Any = value.type.shape if isinstance(value, Traced) else np.shape(value)
    pairs = zip(reversed(shape), reversed(wanted))
    if len(shape) > len(wanted) or any(
        isinstance(n, int) and isinstance(size, int) and n not in (1, size) for n, size in pairs
    ):
        rows = "" if wanted == variable.shape else f" rows of shape {wanted} of"
        raise ShapeError(
            f"a value of shape {shape} cannot be assigned to{rows} {variable!r}", location=here()
        )


def _refuse_in_function() -> None:
    trace = current_trace()
    if trace is not None and not trace.is_graph:
        raise UnsupportedError(
            "a variable is made inside a compiled function, which would make it once, not at every call",
            location=here(),
            remedy="make it outside the function; the function can read and assign it",
        )
