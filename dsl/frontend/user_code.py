"""Which functions, methods and classes are the user's own: those are converted, all others run as they are."""

from __future__ import annotations

import sys
import types
from typing import Any

from dsl.frontend.library import has_traced

__all__ = [
    "declared",
    "is_generated_method",
    "is_polynomial",
    "is_traced_code",
    "is_users",
    "own_method",
    "package_of",
]

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


def is_traced_code(fn: types.FunctionType, args: Any) -> bool:
    """Tell whether a function is converted when traced code calls it."""
    return is_users(fn) or (is_polynomial(fn) and has_traced(args))


def is_polynomial(fn: Any) -> bool:
    """Tell whether `fn` is one of NumPy's polynomials: plain Python over arrays, which traces as a user's functions do."""
    module = getattr(fn, "__module__", None) or ""
    return module.startswith(("numpy.polynomial.", "numpy.lib._polynomial_impl"))


def declared(cls: type, name: str) -> Any:
    """Return what a class, or one that it inherits from, has under a name, without asking descriptors."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def own_method(item: Any, name: str) -> types.FunctionType | None:
    """Return a method that the user wrote in Python for the class of an object."""
    found = getattr(type(item), name, None)
    return found if isinstance(found, types.FunctionType) and is_users(found) else None


def is_generated_method(fn: Any) -> bool:
    """Tell whether `dataclass` wrote a method; of `__repr__`, what is seen is a wrapper against recursion."""
    code = getattr(getattr(fn, "__wrapped__", fn), "__code__", None)
    return code is not None and code.co_filename == "<string>"
