"""Types that are equal but for the names of symbols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsl.ir.dims import Dim, DimLike, substitute, symbols_of
from dsl.ir.types import TensorType, ValueType

__all__ = ["Sizes", "apply_sizes", "bind", "symbols_in", "types_text"]

Sizes = dict[Dim, DimLike]


def bind(
    general: Sequence[ValueType], special: Sequence[ValueType], fixed: Iterable[Dim] = ()
) -> Sizes | None:
    """Return the sizes of the symbols in `general` that make it `special`, or None when none do.

    Symbols in `fixed` stand for themselves. A dim such as `n + 1` is not solved for `n`: where nothing else says
    what `n` is, it fits anything.
    """
    if len(general) != len(special):
        return None
    sizes: Sizes = {symbol: symbol for symbol in fixed}
    for a, b in zip(general, special):
        if not _same_kind(a, b):
            return None
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            _bind_symbols(a, b, sizes)
    fitting = all(a == b or _fits(a, b, sizes) for a, b in zip(general, special))
    return sizes if fitting else None


def _same_kind(a: ValueType, b: ValueType) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype == b.dtype and a.rank == b.rank
    return a == b


def _bind_symbols(general: TensorType, special: TensorType, sizes: Sizes) -> None:
    for dim, size in zip(general.shape, special.shape):
        if isinstance(dim, Dim) and symbols_of(dim) == [dim]:
            sizes.setdefault(dim, size)


def _fits(general: ValueType, special: ValueType, sizes: Sizes) -> bool:
    if not isinstance(general, TensorType) or not isinstance(special, TensorType):
        return True
    return all(_dim_fits(a, b, sizes) for a, b in zip(general.shape, special.shape))


def _dim_fits(general: DimLike, special: DimLike, sizes: Sizes) -> bool:
    unknown = any(symbol not in sizes for symbol in symbols_of(general))
    return unknown or substitute(general, sizes) == special


def apply_sizes(types: Iterable[ValueType], sizes: Sizes) -> list[ValueType]:
    """Replace symbols in types."""
    return [_apply(type, sizes) for type in types]


def _apply(type: ValueType, sizes: Sizes) -> ValueType:
    if not isinstance(type, TensorType) or type.is_static():
        return type
    return type.with_shape(substitute(dim, sizes) for dim in type.shape)


def symbols_in(types: Iterable[ValueType]) -> set[Dim]:
    """Return the symbols in types."""
    found: set[Dim] = set()
    for type in types:
        if isinstance(type, TensorType) and not type.is_static():
            found.update(symbols_of(*type.shape))
    return found


def types_text(types: Sequence[ValueType]) -> str:
    """Return types as messages list them."""
    return ", ".join(map(str, types)) or "nothing"
