"""Results that are on another rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import DeviceError
from dsl.ir.operators import BINARY
from dsl.ir.types import TensorType, ValueType

__all__ = ["Remote"]


class Remote:
    """What a call returns on ranks that a result is not on: where it is, and what. It is no array.

    A function over ranks takes it for an argument, if no part on this rank reads that. For this, `kind` tells whether the result
    is an array, a scalar of NumPy or a Python number there, and `strides` how it lies in memory, if not in one piece.
    """

    kind = "array"
    strides: tuple[int, ...] | None = None

    def __init__(self, device: str, type: ValueType) -> None:
        self.device, self.type = device, type

    def __repr__(self) -> str:
        return f"<{self.type} on {self.device}>"

    def __format__(self, spec: str) -> str:
        return self.refuse() if spec else repr(self)

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise, since there is no array here."""
        raise DeviceError(
            f"this result ({self.type}) is on {self.device}, not here",
            remedy="have it here: compute it under `dsl.device` of this rank, or have all ranks `dsl.parallel.broadcast` it from there",
        )

    def seen_as(self, view: np.ndarray | None, kind: str) -> Remote:
        """Return what stands for the result as a caller gets it: as a number, or a view that lies as this one does."""
        made = Remote(self.device, self.type)
        made.kind = kind
        if view is not None:
            made.type = TensorType(self.dtype, view.shape)
            made.strides = None if view.flags.c_contiguous else view.strides
        return made

    def like(self) -> np.ndarray:
        """Return an array that has the shape and the strides of the result, and no elements that may be read."""
        array = np.empty(self.shape if 0 in self.shape else (1,), self.dtype)
        steps = np.cumprod((self.dtype.itemsize, *self.shape[:0:-1]), dtype=np.int64)[::-1]
        return np.lib.stride_tricks.as_strided(
            array, self.shape, steps[-self.ndim :] if self.ndim else ()
        )

    @property
    def dtype(self) -> np.dtype:
        """The dtype, which all ranks know."""
        assert isinstance(self.type, TensorType)
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, if other ranks than that of the result know it."""
        if not isinstance(self.type, TensorType) or not self.type.is_static():
            self.refuse()
        return self.type.shape  # type: ignore[union-attr,return-value]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        assert isinstance(self.type, TensorType)
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """The number of elements, if it is known here."""
        return int(np.prod(self.shape, dtype=np.int64))

    __array__ = __float__ = __int__ = __index__ = __complex__ = __bool__ = __len__ = refuse
    __getitem__ = __setitem__ = __iter__ = __contains__ = refuse
    __neg__ = __pos__ = __abs__ = __invert__ = __round__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = refuse
    __eq__ = __ne__ = refuse
    __hash__ = object.__hash__


for _name in (*BINARY, "divmod"):
    for _form in (_name, f"r{_name}", f"i{_name}"):
        setattr(Remote, f"__{_form}__", Remote.refuse)
for _name in dir(np.ndarray):
    if not _name.startswith("_") and _name not in ("device", *vars(Remote)):
        _is_method = callable(getattr(np.ndarray, _name))
        setattr(Remote, _name, Remote.refuse if _is_method else property(Remote.refuse))
