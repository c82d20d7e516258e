"""Native forms of the ops that are not elementwise, views or plain reductions.

`LOWERINGS` maps an op's name to a function that emits it; `supported` tells whether a node has one. Before a module
with such code is loaded, `provide(text)` makes the routines and foreign functions that it names known to the linker.
The module `special` emits elementwise ops that SciPy computes.

These names are imported when they are first used: code that is found on disk needs the addresses of `foreign` alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsl.codegen.library.call import Call
    from dsl.codegen.library.routines import provide, routine_text
    from dsl.codegen.library.table import LOWERINGS, supported

__all__ = ["LOWERINGS", "Call", "provide", "routine_text", "supported"]

_HOMES = {
    "Call": "call", "LOWERINGS": "table", "provide": "routines", "routine_text": "routines", "supported": "table",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
