"""Results that are on another rank."""

from __future__ import annotations

from typing import Any

from dsl.errors import DeviceError
from dsl.ir.types import ValueType

__all__ = ["Remote"]


class Remote:
    """What a call returns on ranks that a result is not on: where it is, and what. It is no array."""

    def __init__(self, device: str, type: ValueType) -> None:
        self.device, self.type = device, type

    def __repr__(self) -> str:
        return f"<{self.type} on {self.device}>"

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise, since there is no array here."""
        raise DeviceError(
            f"this result ({self.type}) is on {self.device}, not here",
            remedy="have it here: compute it under `dsl.device` of this rank, or have all ranks `dsl.parallel.broadcast` it from there",
        )

    __array__ = __float__ = __int__ = __bool__ = __len__ = __getitem__ = __iter__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = refuse
