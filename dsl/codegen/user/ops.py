"""The op of a user's kernel: its type rule, meaning and code.

The type rule asks numba, so a kernel that numba refuses for some dtypes is refused where it is called. The meaning runs
numba's own code; the native code is the same LLVM, linked into the program. A kernel whose code can raise is `CHECKED`,
and has a name of its own for that.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dsl.codegen.arrays import Scalar
from dsl.codegen.library.call import Call
from dsl.codegen.llvm import Function
from dsl.codegen.user.adapt import MADE_AT_RUN_TIME
from dsl.codegen.user.code import Argument, Code, Source
from dsl.codegen.user.emit import emit_element, lower_arrays
from dsl.codegen.user.fingerprint import location_of
from dsl.codegen.user.plainly import apply_elementwise, apply_to_arrays
from dsl.codegen.user.retarget import Portable, Unportable, retarget
from dsl.errors import DslError, TypeRuleError
from dsl.ir.dims import Dim
from dsl.ir.graph import Node
from dsl.ir.location import Location
from dsl.ir.ops.rules import ANY, Attrs, Inputs, operands
from dsl.ir.registry import OPS, Op, Trait, op
from dsl.ir.types import DTYPES, TensorType, broadcast_shapes, resolve_shape
from dsl.logs import log

__all__ = ["ArrayKernel", "ElementKernel"]

_lock = threading.Lock()


class ElementKernel:
    """A function of numbers, applied element by element."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        self.source, self.names = source, list(names)

    def several(self, inputs: Inputs) -> bool:
        """Tell whether it returns a tuple."""
        return self.code(x.dtype for x in inputs).several

    def code(self, dtypes: Iterable[np.dtype]) -> Code:
        """Return the code for operands of these dtypes."""
        return self.source.code(tuple(map(Argument, dtypes)))

    def op(self, inputs: Inputs) -> Op:
        """Return the record for operands of these types."""
        checked = bool(self.code(x.dtype for x in inputs).errors)
        traits = {Trait.PURE, Trait.ELEMENTWISE}
        signature = f"{', '.join(self.names)} -> *results"
        return _registered(
            self, signature, traits, checked, emit=self.emit, cost=self.cost, portable=self.portable
        )

    def type(self, inputs: Inputs, attrs: Attrs) -> tuple[TensorType, ...]:
        name = self.source.name
        found = operands(f"kernel {name}", inputs, **dict.fromkeys(self.names, ANY))
        shape = broadcast_shapes(*(x.shape for x in found))
        return tuple(TensorType(dtype, shape) for dtype in self.code(x.dtype for x in found).dtypes)

    def numpy(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with _noting(self.source, lambda: self.code(x.dtype for x in arrays)):
            return apply_elementwise(self.source, arrays)

    def emit(
        self, fn: Function, inputs: Sequence[np.dtype], outputs: Sequence[np.dtype],
        args: Sequence[Scalar], check: Callable[..., None],
    ) -> tuple[Scalar, ...]:  # fmt: skip
        return emit_element(self.code(inputs), fn, args, check)

    def cost(self, inputs: Sequence[np.dtype]) -> float:
        return self.code(inputs).cost

    def portable(self, inputs: Sequence[np.dtype]) -> bool:
        """Tell whether GPUs can run it."""
        found = retarget(self.code(inputs))
        if isinstance(found, Unportable):
            log("compile", "the kernel %s runs on the host: %s", self.source.name, found.reason)
        return isinstance(found, Portable)

    def raised(self, node: Node, number: int) -> Exception:
        return _error(self.source, self.code(x.dtype for x in node.data_inputs), number)


class ArrayKernel:
    """A function of arrays that fills others, whose types `out` tells from those of its operands."""

    def __init__(
        self, source: Source, names: Sequence[str], results: Sequence[str], out: types.FunctionType
    ) -> None:
        self.source, self.names, self.results, self.out = source, list(names), list(results), out

    def several(self, inputs: Inputs) -> bool:
        """Tell whether it has several results."""
        return len(self.results) > 1

    def code(self, inputs: Inputs, outputs: Sequence[TensorType]) -> Code:
        """Return the code for operands and results of these types."""
        given = (Argument(x.dtype, x.rank or None) for x in inputs)
        return self.source.code((*given, *(Argument(y.dtype, y.rank, True) for y in outputs)))

    def op(self, inputs: Inputs) -> Op:
        """Return the record for operands of these types."""
        checked = bool(self.code(inputs, self.result_types(inputs)).errors)
        signature = f"{', '.join(self.names)} -> {', '.join(self.results)}"
        return _registered(self, signature, {Trait.PURE}, checked, lower=self.lower)

    def type(self, inputs: Inputs, attrs: Attrs) -> tuple[TensorType, ...]:
        name = self.source.name
        found = operands(f"kernel {name}", inputs, **dict.fromkeys(self.names, ANY))
        results = self.result_types(found)
        self.code(found, results)
        return results

    def result_types(self, inputs: Inputs) -> tuple[TensorType, ...]:
        """Ask `out`."""
        found = self.out(*inputs)
        specs = found if isinstance(found, list) else [found]
        if len(specs) != len(self.results):
            raise TypeRuleError(
                f"kernel {self.source.name}: `out` describes {len(specs)} results, "
                f"the function fills {len(self.results)} ({', '.join(self.results)})",
                location=location_of(self.out),
                remedy="return a list with one type for each array that the function fills",
            )
        return tuple(map(self._type, specs))

    def _type(self, spec: Any) -> TensorType:
        shape, dtype = (spec.shape, spec.dtype) if isinstance(spec, TensorType) else _pair(spec)
        if (
            shape is None
            or dtype not in DTYPES
            or not all(isinstance(d, (int, Dim)) for d in shape)
        ):
            raise TypeRuleError(
                f"kernel {self.source.name}: `out` returned {spec!r}",
                location=location_of(self.out),
                remedy="return one of its arguments, or `(shape, dtype)`, or a list of such",
            )
        return TensorType(dtype, shape)

    def numpy(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        inputs = tuple(TensorType(x.dtype, x.shape) for x in arrays)
        results = self.result_types(inputs)
        outputs = tuple(np.empty(resolve_shape(y.shape, {}), y.dtype) for y in results)
        with _noting(self.source, lambda: self.code(inputs, results)):
            apply_to_arrays(self.source, arrays, outputs)
        return outputs

    def lower(self, call: Call) -> None:
        lower_arrays(self._code_of(call.node), call)

    def raised(self, node: Node, number: int) -> Exception:
        return _error(self.source, self._code_of(node), number)

    def _code_of(self, node: Node) -> Code:
        return self.code(
            tuple(x.tensor for x in node.data_inputs), [y.tensor for y in node.outputs]
        )


def _pair(spec: Any) -> tuple[Any, Any]:
    """Return a shape and a dtype, or None for what is neither."""
    try:
        shape, dtype = spec
        return tuple(shape), np.dtype(dtype)
    except (TypeError, ValueError):
        return None, None


def _registered(
    kernel: ElementKernel | ArrayKernel, signature: str, traits: set[Trait], checked: bool, **facets: Any
) -> Op:  # fmt: skip
    """Return the record of a kernel, made if it is new: kernels of one digest are one op."""
    source = kernel.source
    name = f"kernel_{source.name}_{source.digest[:12]}{'_checked' * checked}"
    if checked:
        traits, facets = traits | {Trait.CHECKED}, {**facets, "raised": kernel.raised}
    with _lock:
        if name not in OPS:
            doc = (source.fn.__doc__ or "A user's kernel.").strip().splitlines()[0]
            op(
                name,
                signature,
                doc=doc,
                type=kernel.type,
                numpy=kernel.numpy,
                traits=traits,
                **facets,
            )
        return OPS[name]


def _error(source: Source, code: Code, number: int) -> Exception:
    """Return what a kernel raised, with a note of where."""
    error, place = code.error(number)
    _note(source, error, place)
    return error


@contextlib.contextmanager
def _noting(source: Source, code: Callable[[], Code]) -> Iterator[None]:
    """Give what numba's own code raises the same note, as far as it is plain which line that was."""
    try:
        yield
    except DslError:
        raise
    except Exception as error:
        found = code()
        known = [found.error(k + 1) for k in range(len(found.errors))]
        places = {
            at
            for made, at in known
            if made.args in (error.args, MADE_AT_RUN_TIME) and type(made) is type(error)
        }
        _note(source, error, places.pop() if len(places) == 1 else None)
        raise


def _note(source: Source, error: Exception, place: Location | None) -> None:
    where = (place or location_of(source.fn)).excerpt()
    error.add_note(f"raised by the kernel {source.name}\n{where}")
