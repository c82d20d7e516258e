"""Traced arrays: what a user's function sees in place of NumPy arrays, NumPy scalars and Python numbers.

A `Traced` is a handle: a `Storage` with the current contents and the views through which it is seen. Two names of one
array share a storage, so writes through one show through the other as in NumPy. Its `kind` says what NumPy object it
stands for: an array, a NumPy scalar (immutable), or a Python number (immutable, with NEP 50's weak dtype).
"""

from __future__ import annotations

import enum
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl.errors import (
    DslError,
    IndexTypeError,
    MissingAttributeError,
    NonConcreteError,
    NumberError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)
from dsl.frontend.order import argument_strides, memory_order
from dsl.frontend.scopes import Scope, Storage, current_scope, current_trace, here, may_alias
from dsl.frontend.strides import contiguous, is_contiguous, is_copied, reshaped, viewed
from dsl.frontend.trees import LEAVES
from dsl.frontend.views import Bitcast, Part, Raveled, Recast, Reshaped, Transposed, View
from dsl.ir.dims import Dim, DimLike, lower_bound
from dsl.ir.graph import Value
from dsl.ir.interpret import apply_node
from dsl.ir.types import BOOL, BY_NAME, DTYPES, I64, Shape, TensorType, size_of

__all__ = [
    "Kind", "Traced", "Whole", "as_dim", "as_shape", "cast", "concrete", "constant", "emit", "fresh", "is_number", "lift", "owned",
    "python_type", "read", "seen_whole", "shape_of", "supported_dtype", "wrap", "write",
]  # fmt: skip


class Kind(enum.Enum):
    """What a traced value stands for."""

    ARRAY = "array"
    SCALAR = "NumPy scalar"
    PYTHON = "Python number"


_PYTHON = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_UFUNCS: dict[str, Callable[..., Any]] = {}


_OF_MEMORY = {"tobytes", "tofile", "dump", "dumps", "data", "ctypes", "setflags"}
"""Attributes of arrays that are about their bytes, which there are none of while tracing."""


class Traced:
    """A traced array or number. Has ndarray's operators, methods and attributes."""

    __slots__ = ("__weakref__", "_type", "kind", "storage", "views")
    __array_priority__ = 1000.0

    def __init__(
        self,
        storage: Storage,
        views: tuple[View, ...] = (),
        kind: Kind = Kind.ARRAY,
        type: TensorType | None = None,
    ) -> None:
        self.storage, self.views, self.kind, self._type = storage, views, kind, type
        if views and storage.viewers is not None and (trace := current_trace()) is not None:
            storage.viewers.append((weakref.ref(self), trace.scopes[-1]))

    if TYPE_CHECKING:  # the operators are set below, from tables

        def __add__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __neg__(self) -> Any: ...
        def __ne__(self, other: object) -> Any: ...
        def __eq__(self, other: object) -> Any: ...

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def type(self) -> TensorType:
        """The dtype and shape, which never change."""
        if not self.views:
            return self.storage.value.tensor
        if self._type is None:
            self._type = read(self).tensor
        return self._type

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape; a dim known only at run time is a traced Python int."""
        return tuple(dim if isinstance(dim, int) else size_number(dim) for dim in self.type.shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        view = reshape(self, shape)
        if view.storage is not self.storage:
            raise AttributeError(
                "Incompatible shape for in-place modification. Use `.reshape()` to make a copy"
            )
        self.views, self._type = view.views, None

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> Any:
        total = size_of(self.type.shape)
        return total if isinstance(total, int) else size_number(total)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize

    @property
    def T(self) -> Traced:
        return transpose_view(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Traced:
        if self.ndim < 2:
            raise ShapeError("matrix transpose with ndim < 2 is undefined", location=here())
        return transpose_view(self, (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    @property
    def real(self) -> Traced:
        return self._part("real")

    @real.setter
    def real(self, value: Any) -> None:
        self._part("real")[...] = value

    @property
    def imag(self) -> Traced:
        if self.dtype.kind != "c":
            zeros: Traced = _FUNCTIONS["zeros_like"](self)
            return zeros if self.kind is Kind.ARRAY else fresh(read(zeros), self.kind)
        return self._part("imag")

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise TypeRuleError("array does not have imaginary part to set", location=here())
        self._part("imag")[...] = value

    def conj(self) -> Traced:
        return _FUNCTIONS["conj"](self) if self.dtype.kind == "c" else self

    conjugate = conj

    def _part(self, name: str) -> Traced:
        if self.dtype.kind != "c":
            return self
        return self._view(Part(name))

    def _view(self, view: View) -> Traced:
        if self.kind is not Kind.ARRAY:
            return fresh(view.get(current_scope(), read(self)), self.kind)
        return Traced(self.storage, (*self.views, view))

    @property
    def flat(self) -> Traced:
        if self.kind is not Kind.ARRAY:
            return self.reshape(-1)
        return Flat(self.storage, (*self.views, Raveled((size_of(self.type.shape),))))

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[:] = value

    @property
    def base(self) -> Traced | None:
        return Traced(self.storage) if self.views else None

    @property
    def flags(self) -> Any:
        layout = layout_of(self)
        if layout is None and strides_of(self) == (
            shape := self.type.shape,
            contiguous(shape, self.itemsize),
        ):
            layout = np.empty((2,) * self.ndim)
        if layout is None:
            raise UnsupportedError(
                "the flags of an array whose layout is known only at run time", location=here()
            )
        _refuse_order_of_arguments(self.storage, "flags")
        return layout.flags

    @property
    def strides(self) -> tuple[int, ...]:
        layout = layout_of(self)
        if layout is None:
            raise UnsupportedError(
                "the strides of an array whose size is known only at run time", location=here()
            )
        _refuse_order_of_arguments(self.storage, "strides")
        return layout.strides

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _UFUNCS["namespace"]() if "namespace" in _UFUNCS else np

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.kind is not Kind.ARRAY:
            from dsl.frontend.number_methods import ATTRIBUTES

            kinds, make = ATTRIBUTES.get(name, ("", None))
            if self.dtype.kind in kinds:
                return make(self)  # type: ignore[misc]
        known = (
            f"arrays have no attribute `{name}`"
            if not hasattr(np.ndarray, name)
            else f"`{name}` of a traced array is not supported"
        )
        remedy = "use a function of NumPy that is in the table of supported ones"
        if name in _OF_MEMORY:
            remedy = f"return the array, and use its `{name}` outside the compiled function"
        elif name in _FUNCTIONS:
            remedy = f"call `np.{name}`"
        raise MissingAttributeError(known, location=here(), remedy=remedy)

    def __repr__(self) -> str:
        return f"<traced {self.kind.value} {self.storage.value.type if not self.views else 'view of ' + str(self.storage.value.type)}>"

    # -- where Python needs a real number ------------------------------------------------------------------------

    def _refuse(self, what: str, remedy: str) -> Any:
        when = "when the compiled function runs"
        if self.storage.scope.is_graph:
            when, remedy = (
                "when a session runs the graph",
                "use `dsl.cond`, `dsl.while_loop` or `np.where`, or `session.run`",
            )
        error = NonConcreteError(
            f"{what} needs a number now, but this value ({self.type}) is known only {when}",
            location=here(),
            remedy=remedy,
        )
        if self.storage.origin is not None:
            error.argument = self.storage.scope.params[self.storage.origin].node.attrs["name"]
        raise error

    def __bool__(self) -> bool:
        known = concrete(self)
        if known is not None:
            return bool(known)
        return bool(
            self._refuse(
                "a Python condition in code that was not converted",
                "use `np.where`, or move the condition into a function whose source dsl can convert",
            )
        )

    def __index__(self) -> int:
        known = concrete(self)
        if known is not None and self.dtype.kind in "iu" and self.ndim == 0:
            return int(known)
        return int(
            self._refuse(
                "indexing a Python sequence, or a Python integer argument",
                "put the items into one array (`np.stack`) and index that, or make the argument static "
                "(`static_argnames`), or loop with `dsl.unroll(range(n))`",
            )
        )

    def _is_count(self) -> bool:
        """Whether Python takes it for how often a list or tuple is repeated."""
        return self.kind is not Kind.ARRAY and self.dtype.kind in "iu"

    def __int__(self) -> int:
        known = concrete(self)
        return (
            int(known)
            if known is not None
            else int(self._refuse("int()", "use `x.astype(int)` or keep the array"))
        )

    def __float__(self) -> float:
        known = concrete(self)
        if known is not None:
            return float(known)
        return float(
            self._refuse(
                "float(), or a function of `math`", "use the NumPy function, such as `np.sqrt`"
            )
        )

    def __complex__(self) -> complex:
        known = concrete(self)
        return (
            complex(known)
            if known is not None
            else complex(self._refuse("complex()", "use `x.astype(complex)`"))
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(
            self._refuse(
                "converting to a real NumPy array",
                "use `np.stack` or `np.array([...])` inside the decorated function, or a function that dsl supports",
            )
        )

    def __hash__(self) -> int:
        if self.storage.scope.is_graph:
            return id(self)
        return int(
            self._refuse(
                "a member of a set, or a dictionary key,",
                "use arrays: `np.unique`, or an array indexed by the value",
            )
        )

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeRuleError("len() of unsized object", location=here())
        size = self.type.shape[0]
        if isinstance(size, int):
            return size
        return int(self._refuse("len() in code that was not converted", "use `x.shape[0]`"))

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeRuleError("iteration over a 0-d array", location=here())
        return map(self.__getitem__, range(len(self)))  # each as it is when it is asked for

    def __contains__(self, item: Any) -> Any:
        return bool(_FUNCTIONS["any"](self == item))

    def __format__(self, spec: str) -> str:
        known = concrete(self)
        return format(known, spec) if known is not None else repr(self)

    # -- NumPy's protocols ---------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _UFUNCS["dispatch"](ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _UFUNCS["function"](func, args, kwargs)

    # -- reading and writing elements ----------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        return _UFUNCS["getitem"](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _UFUNCS["setitem"](self, key, value)

    def item(self, *index: Any) -> Any:
        place: Any = index[0] if len(index) == 1 else index
        if not index:
            chosen = self.reshape(())
        elif isinstance(place, tuple):
            chosen = self[place]
        else:
            chosen = self.reshape(-1)[place]
        return fresh(read(chosen), Kind.PYTHON)

    def fill(self, value: Any) -> None:
        self[...] = value

    def copy(self, order: str | None = "C") -> Traced:
        return lay_out(_brought_here(read(self)), axes_of_new(self, order or "C"), self.kind)

    def __copy__(self) -> Traced:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Traced:
        return self.copy("K")

    def astype(
        self,
        dtype: Any,
        order: str | None = "K",
        casting: str = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Traced:
        target = supported_dtype(dtype)
        if not np.can_cast(self.dtype, target, casting=casting):  # type: ignore[arg-type]
            raise TypeRuleError(
                f"Cannot cast array data from {self.dtype!r} to {target!r} according to the rule {casting!r}",
                location=here(),
            )
        axes = axes_of_new(self, order or "K")
        if not copy and target == self.dtype and (order in ("K", None) or lies(self, axes)):
            return self
        kind = Kind.ARRAY if self.kind is Kind.ARRAY else Kind.SCALAR
        if order not in ("K", None) or target == self.dtype:
            return lay_out(cast(read(self), target), axes, kind)
        made = fresh(cast(read(self), target), kind)
        made.storage.follows = True
        return made

    def view(self, dtype: Any = None, type: Any = None) -> Traced:
        target = self.dtype if dtype is None else supported_dtype(dtype)
        if target == self.dtype:
            return seen_whole(self)
        if target.itemsize == self.dtype.itemsize:
            return self._view(Bitcast(target))
        self._check_recast(target)
        return self._view(Recast(target))

    def _check_recast(self, target: np.dtype) -> None:
        """Raise NumPy's error unless the last axis can be read as numbers of another size."""
        layout, text = layout_of(self), ""
        if not self.ndim:
            text = "Changing the dtype of a 0d array is only supported if the itemsize is unchanged"
        elif layout is not None and layout.strides[-1] != self.itemsize and layout.size:
            text = "To change to a dtype of a different size, the last axis must be contiguous"
        elif isinstance(n := self.type.shape[-1], int) and n * self.itemsize % target.itemsize:
            text = (
                "When changing to a larger dtype, its size must be a divisor of the total size in bytes of the "
                "last axis of the array."
            )
        if text:
            raise ShapeError(text, location=here())

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Traced:
        return reshape(self, shape[0] if len(shape) == 1 else shape, order)

    def ravel(self, order: str = "C") -> Traced:
        return ravel(self, order)

    def flatten(self, order: str = "C") -> Traced:
        return ravel(self, order).copy()

    def transpose(self, *axes: Any) -> Traced:
        if not axes or axes == (None,):
            return self.T
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return transpose_view(self, tuple(int(a) % max(self.ndim, 1) for a in order))

    def sort(
        self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None
    ) -> None:
        self[...] = _FUNCTIONS["sort"](self, axis=axis)

    def partition(self, kth: Any, axis: int = -1, kind: Any = None, order: Any = None) -> None:
        self[...] = _FUNCTIONS["sort"](self, axis=axis)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return _FUNCTIONS["compress"](condition, self, axis, out)

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        _FUNCTIONS["put"](self, indices, values, mode)

    def tolist(self) -> Any:
        if self.ndim == 0:
            return fresh(read(self), Kind.PYTHON)
        return [row.tolist() for row in self]

    def to_device(self, device: Any, /, *, stream: Any = None) -> Traced:
        return self

    @property
    def device(self) -> str:
        return "cpu"


LEAVES.add(Traced)


def _method(name: str) -> Callable[..., Any]:
    def call(self: Traced, *args: Any, **kwargs: Any) -> Any:
        return _FUNCTIONS[name](self, *args, **kwargs)

    call.__name__ = name
    return call


for _name in [
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "choose",
    "clip",
    "cumprod",
    "cumsum",
    "diagonal",
    "dot",
    "max",
    "mean",
    "min",
    "nonzero",
    "prod",
    "repeat",
    "round",
    "searchsorted",
    "squeeze",
    "std",
    "sum",
    "swapaxes",
    "take",
    "trace",
    "var",
]:
    setattr(Traced, _name, _method(_name))


def _operator(ufunc: np.ufunc, reflected: bool) -> Callable[[Traced, Any], Any]:
    def apply(self: Traced, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        if ufunc is np.multiply and isinstance(other, (list, tuple)) and self._is_count():
            return other * self.__index__()
        if ufunc is np.power and not reflected and type(other) is int and _is_squared(self, other):
            return _UFUNCS["operator"](np.square, (self,))
        return _UFUNCS["operator"](ufunc, (other, self) if reflected else (self, other))

    return apply


def _is_squared(base: Traced, exponent: int) -> bool:
    """Tell whether NumPy squares instead of raising to a power, which matters for bools: they become int8, not int64."""
    return exponent == 2 and base.kind is Kind.ARRAY and base.dtype.kind == "b"


def _comparison(ufunc: np.ufunc) -> Callable[[Traced, Any], Any]:
    compare = _operator(ufunc, False)

    def apply(self: Traced, other: Any) -> Any:
        if self.kind is not Kind.ARRAY or not isinstance(other, (str, bytes, type(None))):
            return compare(self, other)
        if ufunc not in (np.equal, np.not_equal):
            return NotImplemented
        never = _UFUNCS["operator"](np.less, (self, self))  # no element is equal to such an object
        return never if ufunc is np.equal else _UFUNCS["operator"](np.logical_not, (never,))

    return apply


def _inplace(ufunc: np.ufunc) -> Callable[[Traced, Any], Any]:
    def apply(self: Traced, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        if self.kind is Kind.ARRAY:
            return _UFUNCS["inplace"](ufunc, self, other)
        return _UFUNCS["operator"](ufunc, (self, other))

    return apply


def _is_operand(other: Any) -> bool:
    plain = (int, float, complex, np.ndarray, np.generic, list, tuple, range)
    return isinstance(other, (Traced, *plain))


_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide, "mod": np.remainder,
    "pow": np.power, "lshift": np.left_shift, "rshift": np.right_shift, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "matmul": np.matmul, "divmod": np.divmod,
}  # fmt: skip
_COMPARE = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}

for _name, _ufunc in _BINARY.items():
    setattr(Traced, f"__{_name}__", _operator(_ufunc, False))
    setattr(Traced, f"__r{_name}__", _operator(_ufunc, True))
    if _name != "divmod":
        setattr(Traced, f"__i{_name}__", _inplace(_ufunc))
for _name, _ufunc in _COMPARE.items():
    setattr(Traced, f"__{_name}__", _comparison(_ufunc))
for _name, _ufunc in _UNARY.items():
    setattr(Traced, f"__{_name}__", lambda self, ufunc=_ufunc: _UFUNCS["operator"](ufunc, (self,)))


def _round(self: Traced, digits: int | None = None) -> Any:
    if self.kind is Kind.PYTHON and digits is not None:
        from dsl.frontend.number_methods import rounded

        return rounded(self, digits)
    nearest = _FUNCTIONS["round"](self, digits or 0)
    return (
        fresh(cast(read(nearest), I64), Kind.PYTHON)
        if digits is None and self.kind is not Kind.ARRAY
        else nearest
    )


def _conjugate(self: Traced) -> Any:
    made = _FUNCTIONS["conjugate"](self)
    return fresh(read(made), Kind.PYTHON) if self.kind is Kind.PYTHON else made


Traced.conjugate = _conjugate
Traced.__round__ = _round  # type: ignore[attr-defined]


class Whole(Traced):
    """`x[:]` and its like: all of another array, of which NumPy makes a new object."""

    __slots__ = ()


def seen_whole(traced: Traced) -> Traced:
    """Return a view of all of an array."""
    return (
        Whole(traced.storage, traced.views)
        if traced.kind is Kind.ARRAY
        else Traced(traced.storage, traced.views, traced.kind)
    )


class Flat(Traced):
    """`x.flat`: all elements in a row, whatever the layout; what is read of it is a copy."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if found.kind is not Kind.ARRAY else found.copy()

    def __setitem__(self, key: Any, value: Any) -> None:
        new = lift(value)
        if not new.ndim:
            return super().__setitem__(key, value)
        # As many values as there are places: too few are repeated, too many left out.
        places = _FUNCTIONS["arange"](self.size)[key]
        values = _FUNCTIONS["resize"](new, places.shape)
        return super().__setitem__(places, values)


# -- values and handles ------------------------------------------------------------------------------------------


def read(traced: Traced) -> Value:
    """Return what the handle sees now, as a value of the current scope."""
    value = traced.storage.get()
    if traced.views:
        scope = current_scope()
        for view in traced.views:
            value = view.get(scope, value)
    return value


def write(traced: Traced, value: Value) -> None:
    """Replace what the handle sees; `value` has its dtype and shape."""
    base = traced.storage.get()
    traced.storage.set(_put(current_scope(), base, traced.views, value))


def _put(scope: Scope, base: Value, views: tuple[View, ...], value: Value) -> Value:
    if not views:
        return value
    inner = _put(scope, views[0].get(scope, base), views[1:], value)
    return views[0].put(scope, base, inner)


def fresh(value: Value, kind: Kind = Kind.ARRAY) -> Traced:
    """Return a new handle with memory of its own; of a number, an array has no such handle."""
    if kind is not Kind.ARRAY and value.shape:
        raise TypeRuleError(
            "only 0-dimensional arrays can be converted to Python scalars", location=here()
        )
    scope = current_scope()
    return Traced(Storage(value, scope, loc=scope.loc), (), kind)


def _brought_here(value: Value) -> Value:
    """Return a value on the device that `with dsl.device` names, if one does: a copy is where it is made."""
    trace = current_trace()
    device = trace.devices[-1] if trace is not None and trace.devices else None
    if device is None or value.node.attrs.get("device") == device:
        return value
    return current_scope().emit("cast", value, dtype=value.dtype)


def wrap(value: Value) -> Traced:
    """Return the result of a NumPy function: a NumPy scalar for rank 0, else an array."""
    return fresh(value, Kind.ARRAY if value.shape else Kind.SCALAR)


def owned(traced: Traced) -> tuple[Value, Scope]:
    """Return what the handle sees with the scope that it belongs to."""
    return read(traced), current_scope()


def emit(op: str, *operands: Traced, **attrs: Any) -> Traced:
    """Apply a primitive to handles of the right dtypes and return the result as NumPy would."""
    values = [read(operand) for operand in operands]
    return wrap(current_scope().emit(op, *values, **attrs))


def emit_many(op: str, *operands: Traced, **attrs: Any) -> tuple[Traced, ...]:
    """Apply a primitive with several outputs."""
    values = [read(operand) for operand in operands]
    return tuple(wrap(value) for value in current_scope().node(op, values, attrs).outputs)


def constant(array: Any, dtype: Any = None, kind: Kind = Kind.ARRAY) -> Traced:
    """Return a traced constant."""
    data = np.asarray(array, dtype=dtype)
    supported_dtype(data.dtype)
    return fresh(current_scope().constant(data), kind)


def is_number(x: Any) -> bool:
    """Tell whether `x` is something that becomes a traced value: an array or number, traced or not."""
    return isinstance(x, (Traced, np.ndarray, np.generic, bool, int, float, complex))


def lift(x: Any, dtype: np.dtype | None = None) -> Traced:
    """Return `x` as a handle: arrays are captured, numbers become constants, nested lists are stacked."""
    if isinstance(x, Traced):
        return x
    if isinstance(x, np.ndarray):
        trace = current_trace()
        if trace is not None and id(x) in trace.by_array:
            found: Traced = trace.by_array[id(x)]
            return found
        embedded = trace.embedded(x) if trace is not None else None
        return constant(x) if embedded is None else embedded
    if isinstance(x, np.generic):
        return constant(x, kind=Kind.SCALAR)
    if isinstance(x, (bool, int, float, complex)):
        return constant(x, dtype or default_dtype(x), Kind.PYTHON)
    if isinstance(x, (list, tuple)):
        return _FUNCTIONS["array"](x)  # type: ignore[no-any-return]
    if isinstance(x, range):
        return constant(np.array(x))
    if hasattr(type(x), "dsl_traced"):
        return x.dsl_traced()  # type: ignore[no-any-return]
    raise UnsupportedError(
        f"a {type(x).__name__} cannot be used as an array in traced code",
        location=here(),
        remedy="pass NumPy arrays, numbers, or nested lists of them",
    )


def default_dtype(x: Any) -> np.dtype:
    """Return the dtype that a Python number has when nothing else decides."""
    if isinstance(x, bool):
        return BOOL
    if isinstance(x, int):
        if not -(2**63) <= x < 2**64:
            raise NumberError(
                f"the Python integer {x} does not fit into 64 bits, which traced Python integers have",
                location=here(),
                remedy="use floats, or compute with it outside the compiled function",
            )
        return I64 if x < 2**63 else BY_NAME["u64"]
    return BY_NAME["f64" if isinstance(x, float) else "c128"]


def python_type(traced: Traced) -> type:
    """Return the Python type that a traced Python number stands for."""
    return _PYTHON[traced.dtype.kind]


def cast(value: Value, dtype: np.dtype) -> Value:
    """Return `value` with another dtype."""
    if value.dtype == dtype:
        return value
    scope = current_scope()
    if value.dtype.kind == "c" and dtype.kind != "c" and dtype != BOOL:
        value = scope.emit("real", value)
        return cast(value, dtype)
    if value.node.op.name == "const" and value.node.attrs["value"].array.size <= 64:
        with np.errstate(all="ignore"):
            return scope.constant(value.node.attrs["value"].array.astype(dtype))
    return scope.emit("cast", value, dtype=dtype)


def supported_dtype(dtype: Any) -> np.dtype:
    """Return `dtype` as one of the dtypes that dsl has."""
    native = native_dtype(np.dtype(dtype))
    if native is None:
        raise UnsupportedError(
            f"arrays of dtype {np.dtype(dtype)} cannot be traced",
            location=here(),
            remedy=f"use one of {', '.join(map(str, DTYPES))}",
        )
    return native


def native_dtype(dtype: np.dtype) -> np.dtype | None:
    """Return the dtype that dsl has for NumPy's, if it has one."""
    native = dtype.newbyteorder("=") if dtype.byteorder in "<>" else dtype
    if native not in DTYPES and native.kind in "iu":
        native = np.dtype(f"{native.kind}{native.itemsize}")
    return native if native in DTYPES else None


def size_number(dim: DimLike) -> Traced:
    """Return a size that is known only at run time as a traced Python int."""
    return fresh(current_scope().size(dim), Kind.PYTHON)


def as_dim(x: Any) -> DimLike:
    """Return a number, traced or not, as a dim of a shape."""
    if isinstance(x, Traced):
        known = concrete(x)
        if known is not None and x.dtype.kind in "iu":
            return int(known)
        if x.dtype.kind not in "iu" or x.ndim:
            raise TypeRuleError(
                f"a {x.dtype} value cannot be interpreted as an integer size", location=here()
            )
        return current_scope().as_dim(cast(read(x), I64))
    if isinstance(x, Dim):
        return x
    if isinstance(x, (bool, float, complex, np.floating)):
        raise TypeRuleError(
            f"'{type(x).__name__}' object cannot be interpreted as an integer", location=here()
        )
    return int(x)


def as_shape(shape: Any) -> Shape:
    """Return a shape argument (a number or a sequence of numbers, traced or not) as a shape."""
    if isinstance(shape, Traced) and shape.ndim == 1:
        shape = list(shape)
    items = tuple(shape) if isinstance(shape, (tuple, list, np.ndarray)) else (shape,)
    dims = tuple(map(as_dim, items))
    if any(isinstance(dim, int) and dim < 0 for dim in dims):
        raise ShapeError("negative dimensions are not allowed", location=here())
    return dims


def shape_of(x: Any) -> Shape:
    """Return the shape of an operand, with symbolic dims as dims."""
    return x.type.shape if isinstance(x, Traced) else tuple(np.shape(x))


def concrete(traced: Traced) -> Any:
    """Return the NumPy value of a handle that depends on constants alone and is small, else None."""
    trace = current_trace()
    if trace is None or traced.storage.defined is not None:
        return None
    value = read(traced)
    if not value.tensor.is_static() or size_of(value.shape) > 4096:  # type: ignore[operator]
        return None
    return _evaluate(value, trace.concrete, [200])


def _evaluate(value: Value, known: dict[Value, Any], budget: list[int]) -> Any:
    """Evaluate by depth-first search over at most `budget` nodes; None if a param or an effect is in the way."""
    if value in known:
        return known[value]
    node = value.node
    budget[0] -= 1
    if (
        node.op.name == "param"
        or node.regions
        or budget[0] < 0
        or not value.tensor.is_static()
        or not node.op.traits
    ):
        return None
    if size_of(value.shape) > 100_000:  # type: ignore[operator]
        return None
    inputs = [_evaluate(v, known, budget) for v in node.inputs]
    if any(x is None for x in inputs):
        if budget[0] >= 0:
            known[value] = None
        return None
    try:
        known.update(zip(node.outputs, apply_node(node, inputs), strict=True))
    except (DslError, ValueError, IndexError, ZeroDivisionError):
        return None
    return known.get(value)


# -- shape views ---------------------------------------------------------------------------------------------------


def layout_of(traced: Traced) -> np.ndarray | None:
    """Return a NumPy array of the handle's shape and strides whose elements must not be touched, or None if unknown."""
    type = traced.storage.value.tensor
    strides = traced.storage.strides or contiguous(type.shape, type.dtype.itemsize)
    if not type.is_static() or not all(isinstance(stride, int) for stride in strides):
        return None
    blank: Any = np.empty(1, type.dtype)
    layout: Any = np.lib.stride_tricks.as_strided(blank, type.shape, strides)  # type: ignore[arg-type]
    for view in traced.views:
        layout = view.of(layout)
        if layout is None:
            return None
    return layout  # type: ignore[no-any-return]


def _refuse_order_of_arguments(storage: Storage, what: str) -> None:
    """Refuse to tell how a new array lies in memory that may lie as an argument does, not in C's order."""
    if not _lies_in_c_order(storage):
        raise UnsupportedError(
            f"the {what} of a new array whose axes lie in memory as those of an argument do",
            location=here(), remedy=f"use `np.ascontiguousarray`, and its {what}",
        )  # fmt: skip


def _lies_in_c_order(storage: Storage) -> bool:
    """Tell whether an array, if it is a new one, surely lies in memory in C order."""
    trace = current_trace()
    if trace is None or not storage.follows:
        return True
    arguments = argument_strides(trace)
    known = all(isinstance(far, int) for strides in arguments.values() for far in strides)
    value = storage.contents()
    return known and memory_order(value, arguments) == tuple(range(len(value.shape)))


def strides_of(traced: Traced) -> tuple[Shape, Shape] | None:
    """Return the shape and strides of a handle, written with the sizes that are known only at run time, or None."""
    type = traced.storage.value.tensor
    found: tuple[Shape, Shape] | None
    found = (type.shape, traced.storage.strides or contiguous(type.shape, type.dtype.itemsize))
    for view in traced.views:
        found = viewed(*found, view) if found is not None else None
    return found


def reshape(traced: Traced, shape: Any, order: str = "C") -> Traced:
    """NumPy's reshape: a view where NumPy makes one, else a copy.

    Where that depends on sizes that are not known here, it is a copy, and writes that would show the difference are
    refused.
    """
    if order == "K":
        raise ValueError("order 'K' is not permitted for reshaping")
    if order == "F" or _axes_for(traced, order) != tuple(range(traced.ndim)):
        reverse = transpose_view(traced, tuple(reversed(range(traced.ndim))))
        dims = complete_shape(traced.type.shape, shape)
        flipped = reshape(reverse, tuple(reversed(dims)))
        return transpose_view(flipped, tuple(reversed(range(len(dims)))))
    dims = complete_shape(traced.type.shape, shape)
    if dims == traced.type.shape:
        return seen_whole(traced)
    view = Reshaped(dims)
    in_place = _reshapes_in_place(traced, view) if traced.kind is Kind.ARRAY else False
    return _shown(traced, view, in_place)


def ravel(traced: Traced, order: str = "C") -> Traced:
    """NumPy's ravel: a view of an array that is one run of memory, else a copy."""
    axes = _axes_for(traced, order)
    if axes != tuple(range(traced.ndim)):
        return ravel(transpose_view(traced, axes))
    if traced.kind is not Kind.ARRAY:
        return reshape(traced, -1)
    layout, found = layout_of(traced), strides_of(traced)
    if layout is not None:
        in_place: bool | None = bool(layout.flags.c_contiguous)
    else:
        in_place = None if found is None else is_contiguous(*found, traced.itemsize)
    return _shown(traced, Raveled((size_of(traced.type.shape),)), in_place)


def axes_of_new(traced: Traced, order: str) -> tuple[int, ...]:
    """Return the axes, the outermost first, of an array that NumPy makes like another in an order; C where memory is not known."""
    unknown = order.upper() in ("A", "K") and _axes_in_memory(traced) is None
    return _axes_for(traced, "C" if unknown else order.upper())


def lay_out(value: Value, axes: tuple[int, ...], kind: Kind = Kind.ARRAY) -> Traced:
    """Return a new array whose axes lie in memory as told, the outermost first."""
    rank = range(len(value.shape))
    if axes == tuple(rank):
        return fresh(value, kind)
    turned = fresh(current_scope().emit("transpose", value, axes=axes))
    return transpose_view(turned, tuple(map(axes.index, rank)))


def _axes_for(traced: Traced, order: str) -> tuple[int, ...]:
    """Return the axes in the order in which NumPy goes through an array, the outermost first."""
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    axes = tuple(range(traced.ndim))
    if order == "C" or len(axes) < 2:
        return axes
    if order == "F":
        return axes[::-1]
    found = _axes_in_memory(traced)
    if found is None:
        raise UnsupportedError(
            f"the order {order!r} is that of the array's memory, which is not known while the function is traced",
            location=here(), remedy="say `order='C'` or `order='F'`",
        )  # fmt: skip
    if order == "K":
        return found
    return axes[::-1] if lies(traced, axes[::-1]) and not lies(traced, axes) else axes


def _axes_in_memory(traced: Traced) -> tuple[int, ...] | None:
    """Return the axes as they lie in memory, or None if that is not known."""
    trace, axes = current_trace(), tuple(range(traced.ndim))
    if trace is not None and traced.storage.follows:
        value = traced.storage.contents()
        order = memory_order(value, argument_strides(trace))
        if not traced.views:
            return order
        if order != tuple(range(len(value.shape))):
            return None
    layout = layout_of(traced)
    if layout is not None:
        far = [abs(stride) for stride in layout.strides]
        return tuple(sorted(axes, key=lambda axis: -far[axis]))
    return next((order for order in itertools.permutations(axes) if lies(traced, order)), None)


def lies(traced: Traced, order: tuple[int, ...]) -> bool:
    """Tell whether the axes of an array surely lie in memory in an order, without gaps."""
    trace = current_trace()
    if trace is not None and traced.storage.follows and not traced.views:
        return memory_order(read(traced), argument_strides(trace)) == order
    found = strides_of(traced)
    if found is None:
        return False
    shape, strides = found
    wanted = contiguous(tuple(shape[k] for k in order), traced.itemsize)
    return all(strides[k] == far or shape[k] == 1 for k, far in zip(order, wanted))


def _shown(traced: Traced, view: View, in_place: bool | None) -> Traced:
    """Return a view of an array or a copy; None, where NumPy makes one or the other, gives a copy that is not written."""
    if in_place:
        return Traced(traced.storage, (*traced.views, view))
    copied = fresh(view.get(current_scope(), read(traced)))
    if in_place is None:
        may_alias(traced.storage, copied.storage)
        copied.storage.shown = (weakref.ref(traced.storage), (*traced.views, view))
    return copied


def _reshapes_in_place(traced: Traced, view: Reshaped) -> bool | None:
    """Tell whether NumPy's reshape is a view, or None where that depends on what is known only at run time."""
    layout = layout_of(traced)
    if layout is not None and all(isinstance(d, int) for d in view.shape):
        return bool(layout.flags.c_contiguous) if layout.size == 0 else view.of(layout) is not None
    found = strides_of(traced)
    if found is None:
        return None
    if reshaped(*found, view.shape) is not None:
        return True
    return False if is_copied(*found, view.shape) else None


def complete_shape(old: Shape, shape: Any) -> Shape:
    """Return a new shape for `old` with a -1 filled in, or raise NumPy's error."""
    items = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    dims = [as_dim(item) for item in items]
    total = size_of(old)
    unknown = [k for k, dim in enumerate(dims) if dim == -1]
    if len(unknown) > 1:
        raise ShapeError("can only specify one unknown dimension", location=here())
    if unknown:
        rest = size_of(tuple(dim for dim in dims if dim != -1))
        if rest == 0 or (isinstance(total, int) and isinstance(rest, int) and total % rest):
            raise _cannot_reshape(total, dims)
        if (lower_bound(rest) or 0) < 1:
            _require_some(rest, total, dims)
        dims[unknown[0]] = total // rest
    elif (
        isinstance(total, int)
        and isinstance(size_of(tuple(dims)), int)
        and size_of(tuple(dims)) != total
    ):
        raise _cannot_reshape(total, dims)
    return tuple(dims)


def _require_some(rest: DimLike, total: DimLike, dims: list[DimLike]) -> None:
    """Raise NumPy's error when the program runs if an axis of unknown size is beside one without elements."""
    scope = current_scope()
    flag = scope.emit("not_equal", scope.size(rest), scope.constant(0, I64))
    text = _shape_to_be(dims, lambda dim: "{}")
    message = f"cannot reshape array of size {{}} into shape ({text})"
    sizes = [scope.size(dim) for dim in (total, *dims) if dim != -1]
    scope.node("assert", (flag, *sizes), {"message": message, "error": "ValueError"})


def _cannot_reshape(total: DimLike, dims: list[DimLike]) -> ShapeError:
    text = _shape_to_be(dims, str)
    return ShapeError(f"cannot reshape array of size {total} into shape ({text})", location=here())


def _shape_to_be(dims: list[DimLike], show: Callable[[DimLike], str]) -> str:
    """Return a shape in NumPy's words: an unknown size is not shown if it is the first, and `newaxis` elsewhere."""
    shown = dims[1:] if dims[:1] == [-1] else dims
    text = ",".join("newaxis" if dim == -1 else show(dim) for dim in shown)
    return text + ("," if len(dims) == 1 else "")


def transpose_view(traced: Traced, axes: tuple[int, ...]) -> Traced:
    """Return the handle with permuted axes."""
    if sorted(axes) != list(range(traced.ndim)):
        raise ShapeError("axes don't match array", location=here())
    if axes == tuple(range(traced.ndim)):
        return seen_whole(traced)
    return traced._view(Transposed(axes))


def normalise_axis(axis: Any, rank: int) -> int:
    """Return an axis as a non-negative int, or raise NumPy's AxisError."""
    position = int(axis)
    if not -rank <= position < rank:
        error = np.exceptions.AxisError(position, rank)
        location = here()
        if location is not None:
            error.add_note(location.excerpt())
        raise error
    return position % rank if rank else 0


__all__ += [
    "axes_of_new",
    "complete_shape",
    "emit_many",
    "lay_out",
    "layout_of",
    "normalise_axis",
    "ravel",
    "reshape",
    "size_number",
    "transpose_view",
]
_ = IndexTypeError
