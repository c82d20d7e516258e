"""`dsl.kernel`: functions that numba compiles and that programs contain as if they were ops.

A kernel of numbers is an elementwise op: it is applied to each element of operands broadcast together, and fused into
the loops around it. A kernel of arrays is an op that reads its operands and fills its results. Each is an op of the
registry, `kernel_<name>_<digest>`, where the digest stands for the bytecode and for what it reads from outside.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from dsl.codegen.cpu.cache import digest
from dsl.codegen.user.code import Source, numba_module
from dsl.codegen.user.fingerprint import Fingerprint, fingerprint, location_of
from dsl.codegen.user.ops import ArrayKernel, ElementKernel
from dsl.codegen.user.plainly import constant
from dsl.compile import Compiled
from dsl.config import config
from dsl.errors import DslError, UnsupportedError
from dsl.frontend.runtime import Runtime
from dsl.frontend.scopes import current_scope
from dsl.frontend.traced import Traced, cast, lift, wrap
from dsl.frontend.ufuncs import broadcast_values, operand, operand_type
from dsl.ir.graph import Value
from dsl.ir.types import BY_NAME, I64, TensorType, is_inexact, resolve_shape

__all__ = ["Kernel", "kernel"]


@overload
def kernel(fn: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    fn: None = None, /, *, out: Callable[..., Any] | None = None, boundscheck: bool | None = None
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(fn: Any = None, /, *, out: Any = None, boundscheck: bool | None = None) -> Any:
    """Compile a function with numba into one that compiled programs contain.

    Without `out` the function takes numbers and returns a number, or a tuple of numbers; it is applied to each element
    of its operands, as a ufunc is, and fused into the loops of the program. With `out` it takes arrays, then one more
    for each result, which it fills. `out` is a function of the operands' types, which have `.shape` and `.dtype`; it
    returns one of them, or `(shape, dtype)`, or a list of such for several results. `boundscheck` tells whether indices
    are checked, as the option `bounds_checks` says by default.

    >>> import math
    >>> @kernel
    ... def softclip(x, limit):
    ...     return limit + math.log1p(x - limit) if x > limit else x
    >>> softclip(np.array([0.5, 1.0]), 1.0)
    array([0.5, 1. ])
    """
    if fn is None:
        return functools.partial(kernel, out=out, boundscheck=boundscheck)
    return Kernel(_Definition(fn, out, boundscheck))


class Kernel(Compiled[Any, Any]):
    """A user's kernel: called on arrays it runs at once, in a compiled function it becomes part of that.

    >>> clipped = kernel(lambda x: 1.0 if x > 1.0 else x)
    >>> isinstance(clipped, Kernel), clipped(np.array([0.5, 2.0]))
    (True, array([0.5, 1. ]))
    """

    def __new__(cls, definition: _Definition) -> Kernel:
        """Each kernel has a class of its own: `Compiled` puts the built-in that takes its calls there."""
        return super().__new__(type("Kernel", (cls,), {"__module__": __name__}))

    def __init__(self, definition: _Definition) -> None:
        super().__init__(definition, dynamic=True)
        functools.update_wrapper(self, definition.fn)
        self.__signature__ = definition.__signature__
        self.py_func = definition.fn
        self._definition = definition

    def __repr__(self) -> str:
        return f"<dsl.kernel {self.py_func.__qualname__}>"

    @property
    def _numba_type_(self) -> Any:
        """What numba takes a kernel for that another kernel calls: a function of its own."""
        return numba_module().types.Dispatcher(self._definition.source().dispatcher)


class _Definition:
    """What a kernel is made of, and what a call of it means in a trace."""

    __slots__ = ("__signature__", "_sources", "boundscheck", "fn", "inputs", "out", "outputs")

    def __init__(self, fn: Any, out: Any, boundscheck: bool | None) -> None:
        if not isinstance(fn, types.FunctionType):
            raise UnsupportedError(f"kernel takes a Python function, got {fn!r}")
        names = _parameters(fn)
        count = len(names) if out is None else _count_operands(fn, names, out)
        self.fn, self.out, self.boundscheck = fn, out, boundscheck
        self.inputs, self.outputs = names[:count], names[count:]
        whole = inspect.signature(fn)
        self.__signature__ = whole.replace(parameters=[whole.parameters[n] for n in self.inputs])
        self._sources: dict[str, Source] = {}

    @property
    def __name__(self) -> str:
        return self.fn.__name__

    def source(self, mark: Fingerprint | None = None) -> Source:
        """Return the function as it is now, with what it reads from outside."""
        check = config.bounds_checks == "on" if self.boundscheck is None else self.boundscheck
        key = digest((mark or self._mark()).digest, str(check))
        if key not in self._sources:
            self._sources[key] = Source(self.fn, key, boundscheck=check)
        return self._sources[key]

    def _mark(self) -> Fingerprint:
        return fingerprint(self.fn) if self.out is None else fingerprint(self.fn, self.out)

    def _kernel(self, source: Source) -> ElementKernel | ArrayKernel:
        if self.out is None:
            return ElementKernel(source, self.inputs)
        return ArrayKernel(source, self.inputs, self.outputs, self.out)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        return list(bound.arguments.values())

    def dsl_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a call: one node."""
        given = [x if _is_operand(x) else lift(x) for x in self._bound(args, kwargs)]
        values = [operand(x, dtype) for x, dtype in zip(given, _dtypes(given))]
        if self.out is None:
            values = broadcast_values(values)
        mark = self._mark()
        _guard(mark)
        kernel, inputs = self._kernel(self.source(mark)), tuple(v.tensor for v in values)
        outputs: Sequence[Value] = current_scope().node(kernel.op(inputs), values, {}).outputs
        if isinstance(kernel, ElementKernel):
            outputs = [cast(v, _rounded(v.dtype, _precision(given))) for v in outputs]
        results = tuple(map(wrap, outputs))
        return results if kernel.several(inputs) else results[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as plain Python, for `DSL_DISABLE_JIT`."""
        given = [x if _is_operand(x) else np.asarray(x) for x in self._bound(args, kwargs)]
        arrays = [np.asarray(x, dtype) for x, dtype in zip(given, _dtypes(given))]
        inputs = tuple(TensorType(x.dtype, x.shape) for x in arrays)
        kernel = self._kernel(self.source())
        if isinstance(kernel, ElementKernel):
            outputs, several = self._each(np.broadcast_arrays(*arrays), kernel, inputs)
            outputs = [y.astype(_rounded(y.dtype, _precision(given))) for y in outputs]
        else:
            types, several = kernel.result_types(inputs), kernel.several(inputs)
            outputs = [np.empty(resolve_shape(t.shape, {}), t.dtype) for t in types]
            self.fn(*(constant(x) if x.ndim else x.item() for x in arrays), *outputs)
        results = tuple(y if y.ndim else y[()] for y in outputs)
        return results if several else results[0]

    def _each(
        self, arrays: Sequence[np.ndarray], kernel: ElementKernel, inputs: tuple[TensorType, ...]
    ) -> tuple[list[np.ndarray], bool]:
        """Call the function for each element; results have numba's dtypes or, if it refuses, NumPy's."""
        rows = [self.fn(*numbers) for numbers in zip(*(x.ravel().tolist() for x in arrays))]
        try:
            dtypes: list[Any] = [t.dtype for t in kernel.type(inputs, {})]
            several = kernel.several(inputs)
        except DslError:
            several = bool(rows) and isinstance(rows[0], tuple)
            dtypes = [None] * (len(rows[0]) if several else 1)
        columns = [[row[k] if several else row for row in rows] for k in range(len(dtypes))]
        found = [np.array(c, d).reshape(arrays[0].shape) for c, d in zip(columns, dtypes)]
        return found, several


def _guard(mark: Fingerprint) -> None:
    """Let the function being traced notice when what a kernel reads from outside changes."""
    for fn, name, value in mark.reads:
        if not isinstance(value, np.ndarray):  # those that a kernel reads are constant
            Runtime(fn).load(name, value)


def _parameters(fn: types.FunctionType) -> list[str]:
    found = list(inspect.signature(fn).parameters.values())
    if not found or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in found):
        raise UnsupportedError(
            f"the kernel {fn.__name__} must take a fixed number of arguments, at least one",
            location=location_of(fn),
            remedy="name each argument",
        )
    return [p.name for p in found]


def _count_operands(fn: types.FunctionType, names: list[str], out: Any) -> int:
    """Return how many of a function's arguments are operands: those that `out` has."""
    if not isinstance(out, types.FunctionType):
        raise UnsupportedError(
            f"kernel: `out` must be a function of the operands' types, got {out!r}",
            location=location_of(fn),
            remedy="write `out=lambda x: x`, or `out=lambda x: (x.shape, x.dtype)`",
        )
    count = len(_parameters(out))
    if count >= len(names):
        raise UnsupportedError(
            f"kernel: {fn.__name__} takes {', '.join(names)}, but `out` takes {count}: nothing is left for results",
            location=location_of(fn),
            remedy="let the function take the operands, then an array for each result; `out` takes the operands",
        )
    return count


# -- dtypes ---------------------------------------------------------------------------------------------------------------

_HALF = (BY_NAME["f16"], BY_NAME["bf16"])
_REAL = {BY_NAME["c64"]: BY_NAME["f32"], BY_NAME["c128"]: BY_NAME["f64"]}
_SMALL = (*_HALF, BY_NAME["f32"], BY_NAME["c64"])


def _is_operand(x: Any) -> bool:
    return isinstance(x, (Traced, bool, int, float, complex, np.ndarray, np.generic))


def _dtypes(given: Sequence[Any]) -> list[np.dtype]:
    """Return the dtypes in which a kernel gets its operands.

    Arrays keep theirs, but half precisions, which numba does not have, become float32. A Python float or complex number
    is as precise as the arrays are; a Python int takes the dtype of the integer arrays, else int64: it may be a count.
    """
    kinds = [operand_type(x) for x in given]
    strong = [kind for kind in kinds if isinstance(kind, np.dtype)]
    inexact = [kind for kind in strong if is_inexact(kind)]
    small = bool(inexact) and all(kind in _SMALL for kind in inexact)
    weak = {int: _integer(strong), float: BY_NAME["f32" if small else "f64"]}
    weak[complex] = BY_NAME["c64" if small else "c128"]
    return [BY_NAME["f32"] if kind in _HALF else weak.get(kind, kind) for kind in kinds]


def _precision(given: Sequence[Any]) -> np.dtype | None:
    """Return the real dtype of the most precise floating operand that is not a Python number."""
    kinds = [kind for x in given if isinstance(kind := operand_type(x), np.dtype)]
    found = [_REAL.get(kind, kind) for kind in kinds if is_inexact(kind)]
    return np.result_type(*found) if found else None


def _rounded(dtype: np.dtype, precision: np.dtype | None) -> np.dtype:
    """Return the dtype of a result: literals in a kernel, which are float64 to numba, do not make it more precise."""
    if precision is None or not is_inexact(dtype):
        return dtype
    if dtype.kind == "c":
        return BY_NAME["c64"] if precision.itemsize <= 4 else dtype
    return precision if precision.itemsize < dtype.itemsize else dtype


def _integer(strong: Sequence[np.dtype]) -> np.dtype:
    found = [kind for kind in strong if kind.kind in "iu"]
    common = np.result_type(*found) if found else I64
    return common if common.kind in "iu" else I64
