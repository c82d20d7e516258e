"""What a kernel means on NumPy arrays: numba's own code called from a loop that numba compiled too."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.codegen.user.code import Argument, Source, numba_module

__all__ = ["apply_elementwise", "apply_to_arrays", "constant"]


def apply_elementwise(source: Source, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Call a kernel for each element of arrays broadcast together."""
    code = source.code(tuple(Argument(x.dtype) for x in arrays))
    wide = np.broadcast_arrays(*arrays)
    outputs = [np.empty(wide[0].shape, dtype) for dtype in code.dtypes]
    loop = _loop(source, len(arrays), len(outputs), code.several)
    loop(*(np.ascontiguousarray(x).ravel() for x in wide), *(y.reshape(-1) for y in outputs))
    return tuple(outputs)


def apply_to_arrays(
    source: Source, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Call a kernel that fills arrays."""
    given = [constant(x) if x.ndim else x[()] for x in arrays]
    _call(source, len(arrays) + len(outputs))(*given, *outputs)


def constant(array: np.ndarray) -> np.ndarray:
    """Return an array in C order that cannot be written."""
    found = np.ascontiguousarray(array).view()
    found.setflags(write=False)
    return found


@functools.lru_cache(maxsize=256)
def _loop(source: Source, inputs: int, outputs: int, several: bool) -> Any:
    xs, ys = _names("x", inputs), _names("y", outputs)
    left = ", ".join(f"{y}[i]" for y in ys) + ("," if several and outputs == 1 else "")
    right = ", ".join(f"{x}[i]" for x in xs)
    body = f"for i in range(y0.size):\n        {left} = kernel({right})"
    return _compiled(source, [*xs, *ys], body)


@functools.lru_cache(maxsize=256)
def _call(source: Source, count: int) -> Any:
    names = _names("x", count)
    return _compiled(source, names, f"kernel({', '.join(names)})")


def _names(stem: str, count: int) -> list[str]:
    return [f"{stem}{k}" for k in range(count)]


def _compiled(source: Source, params: Sequence[str], body: str) -> Any:
    """Return a function of numba's that calls the kernel."""
    scope: dict[str, Any] = {"kernel": source.dispatcher}
    exec(f"def run({', '.join(params)}):\n    {body}\n", scope)
    return numba_module().njit(error_model="numpy")(scope["run"])
