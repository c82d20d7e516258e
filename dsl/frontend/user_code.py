"""Which functions, methods and classes are the user's own: those are converted, all others run as they are."""

from __future__ import annotations

import types
from typing import Any

from dsl.frontend.library import has_traced
from dsl.frontend.packages import is_users, package_of

__all__ = [
    "declared",
    "is_generated_method",
    "is_polynomial",
    "is_traced_code",
    "is_users",
    "own_method",
    "own_method_of",
    "owner_of",
    "package_of",
]


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


def owner_of(obj: Any, name: str) -> Any:
    """Return the class from which an object or a class has an attribute, or the object itself if it has one of its own, or a slot."""
    if name in getattr(obj, "__dict__", ()):
        return obj
    bases = obj.__mro__ if isinstance(obj, type) else type(obj).__mro__
    found = next((base for base in bases if name in vars(base)), obj)
    is_data = found is not obj and hasattr(type(vars(found)[name]), "__set__")
    return obj if is_data else found


def own_method(item: Any, name: str) -> types.FunctionType | None:
    """Return a method that the user wrote in Python for the class of an object."""
    return own_method_of(type(item), name)


def own_method_of(kind: type, name: str) -> types.FunctionType | None:
    """Return a method of a class that the user wrote in Python."""
    found = getattr(kind, name, None)
    return found if isinstance(found, types.FunctionType) and is_users(found) else None


def is_generated_method(fn: Any) -> bool:
    """Tell whether `dataclass` wrote a method; of `__repr__`, what is seen is a wrapper against recursion."""
    code = getattr(getattr(fn, "__wrapped__", fn), "__code__", None)
    return code is not None and code.co_filename == "<string>"
