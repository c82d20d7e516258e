"""Constant arrays as text, and back.

An array of up to 64 elements is spelled out, `[[1, 2], [3, 4]]`, and a rank-0 one is its number. Larger arrays, and
those that hold a NaN other than the default one, are `base64"..."` of their little-endian bytes. The text does not
say dtype and shape: whoever reads it knows the type. Every array comes back with the same bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsl.ir.graph import Literal
from dsl.ir.types import TensorType, dtype_name, is_complex, is_integer

__all__ = ["decode", "encode", "number_text"]

LONGEST_LIST = 64
_F64 = np.dtype(np.float64)


def encode(array: np.ndarray) -> str:
    """Return the text of an array."""
    if array.size > LONGEST_LIST:
        return _raw(array)
    if array.dtype == _F64 and not array.ndim and (number := array.item()) == number:
        return repr(number)  # the most frequent ones, and exact
    texts = [number_text(x) for x in array.ravel()]
    if array.dtype.kind not in "biu" and not _exact(texts, array):
        return _raw(array)
    return "[]" if array.size == 0 else _nested(iter(texts), array.shape)


def _raw(array: np.ndarray) -> str:
    return f'base64"{base64.b64encode(array.tobytes()).decode()}"'


def _exact(texts: list[str], array: np.ndarray) -> bool:
    read = complex if is_complex(array.dtype) else float
    with np.errstate(all="ignore"):
        found = np.array([read(text) for text in texts]).astype(array.dtype)
    return found.tobytes() == array.tobytes()


def _nested(texts: Iterator[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return next(texts)
    return f"[{', '.join(_nested(texts, shape[1:]) for _ in range(shape[0]))}]"


def number_text(x: Any) -> str:
    """Return the text of a NumPy scalar; a NaN is `nan` whatever its bits."""
    if x.dtype.kind == "b":
        return "true" if x else "false"
    if is_integer(x.dtype):
        return str(int(x))
    if is_complex(x.dtype):
        real, imag = _float(x.real), _float(x.imag)
        return f"({real}{'' if imag.startswith('-') else '+'}{imag}j)"
    return _float(x)


def _float(x: Any) -> str:
    """The shortest text that reads back as `x` in its own precision."""
    short = str(x)
    return (
        short + ".0"
        if short.lstrip("-").isdigit()
        else short
        if _same(short, x)
        else repr(float(x))
    )


def _same(text: str, x: Any) -> bool:
    with np.errstate(all="ignore"):  # signalling NaNs
        return bool(np.array(float(text)).astype(x.dtype) == x)


def decode(raw: Any, type: TensorType) -> Literal:
    """Make a literal of `type` from bytes, a number or nested lists; raise ValueError when they do not fit it."""
    if not type.is_static():
        raise ValueError(f"a constant has a known shape, not {type}")
    shape = tuple(int(dim) for dim in type.shape)  # type: ignore[arg-type]
    if isinstance(raw, bytes):
        return Literal(_from_bytes(raw, type.dtype, shape))
    for number in _leaves(raw):
        _check_kind(number, type.dtype)
    return Literal(_from_lists(raw, type.dtype, shape))


def _from_bytes(raw: bytes, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape, dtype=object))
    if len(raw) != size * dtype.itemsize:
        raise ValueError(f"expected {size * dtype.itemsize} bytes, got {len(raw)}")
    return np.frombuffer(raw, dtype).reshape(shape)


def _from_lists(raw: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if raw == [] and 0 in shape:
        return np.zeros(shape, dtype)
    with np.errstate(all="ignore"):
        try:
            array = np.array(raw, _exact_dtype(dtype)).astype(dtype)
        except OverflowError:
            raise ValueError(f"a number does not fit {dtype_name(dtype)}") from None
    if array.shape != shape:
        raise ValueError(f"expected an array of shape {shape}, got {array.shape}")
    return array


def _exact_dtype(dtype: np.dtype) -> np.dtype:
    """The widest dtype of the kind for floats, so that text is rounded as `encode` expects; ints are range-checked."""
    if dtype.kind in "biu":
        return dtype
    return np.dtype(np.complex128 if is_complex(dtype) else np.float64)


def _leaves(raw: Any) -> Iterator[Any]:
    if isinstance(raw, list):
        for item in raw:
            yield from _leaves(item)
    else:
        yield raw


_ALLOWED = {"b": (bool,), "i": (int,), "u": (int,), "c": (int, float, complex)}


def _check_kind(number: Any, dtype: np.dtype) -> None:
    allowed = _ALLOWED.get(dtype.kind, (int, float))
    if not isinstance(number, allowed) or (isinstance(number, bool) and dtype.kind != "b"):
        raise ValueError(f"{number!r} is not a constant of {dtype_name(dtype)}")
