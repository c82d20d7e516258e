"""`dsl.nn`: works on NumPy arrays at once, and inside compiled functions as dataflow."""

from typing import Any

from dsl import compile as _compile
from dsl.frontend import functions as _functions
from dsl.frontend.library import NAMESPACES, public

_ = (_compile, _functions)  # the first runs, outside compiled functions, what NumPy does not have
__all__ = sorted(name for name in NAMESPACES["nn"] if not name.startswith("_"))
globals().update({name: public("nn", name) for name in __all__})


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'dsl.nn' has no attribute {name!r}")
