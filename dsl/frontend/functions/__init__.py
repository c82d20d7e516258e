"""The traced meanings of NumPy's functions, by subject."""

from dsl.frontend.functions import creation, elementwise

__all__ = ["creation", "elementwise"]
