"""When one Python object is as good as another for code that was made for its value.

In: objects, of which those that can change are as good as themselves alone. Out: `identity`, which two of them share if
their types and bits are the same throughout. To ask `==` is not enough: 1, 1.0 and True are equal, so are 0.0 and -0.0,
and so are tuples of them; NaN is not equal to itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

__all__ = ["Exact", "identity"]


def identity(item: Any) -> Hashable:
    """Return what tells an object from all others that code made for it would not serve."""
    kind = type(item)
    if isinstance(item, np.generic):
        return kind, item.dtype, item.tobytes()
    if isinstance(item, float):
        return kind, float.__repr__(item)
    if isinstance(item, complex):
        return kind, complex.__repr__(item)
    if isinstance(item, tuple):
        return kind, tuple(map(identity, item))
    if isinstance(item, frozenset):
        return kind, frozenset(map(identity, item))
    return kind, item if isinstance(item, Hashable) else id(item)


class Exact:
    """Equals any object that is as good as the one it holds, and another `Exact` of such."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __eq__(self, other: object) -> bool:
        found = other.item if isinstance(other, Exact) else other
        return found is self.item or identity(found) == identity(self.item)

    def __hash__(self) -> int:
        return hash(identity(self.item))

    def __repr__(self) -> str:
        return repr(self.item)
