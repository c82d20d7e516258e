"""Machine code for memory that ranks of one machine share: who imports this can provide it to them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from dsl.config import config

if TYPE_CHECKING:
    from dsl.ir.shared_memory import Code

__all__ = ["native_code"]


def native_code() -> Code | None:
    """Return the code; None if there is to be none, or on a system that does not let processes read one another."""
    if config.backend == "interpreter" or not hasattr(ctypes.CDLL(None), "process_vm_readv"):
        return None
    from dsl.codegen.cpu import shared_memory

    return shared_memory
