"""Which packages are the user's own, by the modules that functions and classes name."""

from __future__ import annotations

import sys
import types
from typing import Any

__all__ = ["is_users", "package_of"]

# Packages whose functions run as they are.
_NOT_CONVERTED = {
    "numpy",
    "dsl",
    "scipy",
    "ml_dtypes",
    "numba",
    "jax",
    "torch",
    "cupy",
    "_pytest",
    "pytest",
    *sys.stdlib_module_names,
}
_NOT_CONVERTED -= {"__main__", "this", "antigravity"}


def is_users(fn: Any) -> bool:
    """Tell whether a function, a class or a module is the user's, by the package that it is in."""
    return package_of(fn) not in _NOT_CONVERTED


def package_of(fn: Any) -> str:
    """Return the name of the package that a function, a class or a module is in."""
    named = fn.__name__ if isinstance(fn, types.ModuleType) else getattr(fn, "__module__", None)
    return (named or "").split(".")[0]
