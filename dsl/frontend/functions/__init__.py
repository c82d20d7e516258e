"""The traced meanings of NumPy's functions, by subject."""

from dsl.frontend import runtime  # noqa: F401 - it fills the tables of what traced arrays do
from dsl.frontend.functions import (
    contract,
    creation,
    differences,
    edit,
    einsum,
    elementwise,
    fft,
    grids,
    histogram,
    index,
    join,
    linalg,
    moments,
    nan,
    nn,
    pad,
    quantiles,
    random,
    reduce,
    scipy,
    shape,
    sort,
    stats,
    windows,
)

__all__ = [
    "contract", "creation", "differences", "edit", "einsum", "elementwise", "fft", "grids", "histogram", "index",
    "join", "linalg", "moments", "nan", "nn", "pad", "quantiles", "random", "reduce", "scipy", "shape", "sort", "stats", "windows",
]  # fmt: skip
