"""Functions of SciPy that are often called in NumPy code, on traced values: those of `special` and `linalg` that ops exist for.

A function is known by the subpackage it is in and its name, since SciPy is not imported here. Calls with options that
have no meaning below are refused, as are all other functions of SciPy on traced values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import NonConcreteError, UnsupportedError
from dsl.frontend.functions import nn, triangular
from dsl.frontend.functions.arguments import ask
from dsl.frontend.functions.creation import asarray_chkfinite
from dsl.frontend.functions.linalg import cholesky as np_cholesky
from dsl.frontend.library import NAMESPACES
from dsl.frontend.scopes import here
from dsl.frontend.traced import lift, read, wrap
from dsl.frontend.ufuncs import COMPOSED, resolve, special_function

__all__ = ["call_scipy"]

MEANINGS: dict[str, Callable[..., Any]] = {}
"""What functions of SciPy mean on traced values, by names such as "special.softmax"."""

REMEDIES = {
    "linalg.expm": "compute it outside and pass it in, or use `np.linalg.eigh` for a symmetric matrix",
    "stats.pdf": "write the formula of the density: `np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)` for the normal one",
    "stats.cdf": "write the formula, such as `scipy.special.ndtr(x)` for the normal distribution",
}


def call_scipy(fn: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of SciPy with traced arguments by its meaning; refuse it if it has none, or wants numbers."""
    name = f"{fn.__module__.split('.')[1]}.{fn.__name__}" if "." in fn.__module__ else fn.__name__
    meaning = MEANINGS.get(name)
    if meaning is not None:
        try:
            inspect.signature(meaning).bind(*args, **kwargs)
        except TypeError as error:
            raise _refused(name, f" with these arguments ({error})") from None
        return meaning(*args, **kwargs)
    try:
        return fn(*args, **kwargs)
    except NonConcreteError:
        raise _refused(name) from None


def _refused(name: str, how: str = "") -> UnsupportedError:
    short = name.split(".")[-1]
    found = [
        f"np.linalg.{short}" if n == "linalg" else f"dsl.{n}.{short}"
        for n in ("linalg", "nn")
        if short in NAMESPACES[n]
    ]
    advice = (
        f"use `{found[0]}`"
        if found
        else "write it with NumPy's functions, or call it outside of the compiled function"
    )
    return UnsupportedError(
        f"scipy.{name} is not supported on traced values{how}",
        location=here(),
        remedy=REMEDIES.get(name, advice),
    )


def _means(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        MEANINGS.update(dict.fromkeys(names, fn))
        return fn

    return register


# -- special ----------------------------------------------------------------------------------------------------------


@_means("special.logsumexp")
def _logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False) -> Any:
    return nn.logsumexp(a, axis=axis, b=b, keepdims=keepdims)


@_means("special.softmax")
def _softmax(x: Any, axis: Any = None) -> Any:
    return nn.softmax(x, axis=axis)


@_means("special.log_softmax")
def _log_softmax(x: Any, axis: Any = None) -> Any:
    return nn.log_softmax(x, axis=axis)


def _composed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the meaning of one of SciPy's ufuncs, of real operands that have the dtype of the loop SciPy would run."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        def apply(ufunc: np.ufunc, *numbers: Any) -> Any:
            dtype = resolve(ufunc, numbers)[0]
            if dtype.kind == "c":
                raise UnsupportedError(
                    f"scipy.special.{name} is not supported for complex numbers",
                    location=here(),
                    remedy="write it with NumPy's functions",
                )
            return wrap(read(fn(*(lift(x).astype(dtype) for x in numbers))))

        COMPOSED[name] = apply
        return fn

    return register


def _product(x: Any, y: Any) -> Any:
    """Return x * y without the sign of a zero that a zero x gives."""
    return x * y + np.where(x == 0, y.dtype.type(0), -y.dtype.type(0))


@_composed("xlogy")
def _xlogy(x: Any, y: Any) -> Any:
    # What 0 is multiplied by is made finite, not the product zero, so that the derivative by x is log(y) there.
    nothing = (x == 0) & ~np.isnan(y) & ~((y > 0) & np.isfinite(y))
    return _product(x, np.log(np.where(nothing, y.dtype.type(1), y)))


@_composed("xlog1py")
def _xlog1py(x: Any, y: Any) -> Any:
    nothing = (x == 0) & ~np.isnan(y) & ~((y > -1) & np.isfinite(y))
    return _product(x, np.log1p(np.where(nothing, y.dtype.type(0), y)))


@_composed("entr")
def _entr(x: Any) -> Any:
    one, zero, low = (x.dtype.type(v) for v in (1, 0, -np.inf))
    inside = -x * np.log(np.where(x > 0, x, one))
    return np.where((x > 0) | np.isnan(x), inside, np.where(x == 0, zero, low))


@_composed("rel_entr")
def _rel_entr(x: Any, y: Any) -> Any:
    one, zero, high = (x.dtype.type(v) for v in (1, 0, np.inf))
    both = (x > 0) & (y > 0)
    inside = x * np.log(np.where(both, x, one) / np.where(both, y, one))
    outside = np.where(np.isnan(x) | np.isnan(y), x + y, np.where((x == 0) & (y >= 0), zero, high))
    return np.where(both, inside, outside)


@_composed("logit")
def _logit(x: Any) -> Any:
    middle = (x >= 0.3) & (
        x <= 0.65
    )  # where the quotient is near 1, and its logarithm would lose digits
    s = np.where(middle, 2 * (x - 0.5), x.dtype.type(0))
    return np.where(middle, np.log1p(s) - np.log1p(-s), np.log(x / (1 - x)))


@_composed("log_expit")
def _log_expit(x: Any) -> Any:
    return -np.logaddexp(x.dtype.type(0), -x)


@_composed("ndtr")
def _ndtr(x: Any) -> Any:
    return 0.5 * special_function("erfc", -x * x.dtype.type(np.sqrt(0.5)))


# -- linalg -----------------------------------------------------------------------------------------------------------


def _matrix(x: Any, check_finite: bool = True) -> Any:
    return asarray_chkfinite(x) if check_finite else lift(x)


@_means("linalg.cholesky")
def _cholesky(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    return np_cholesky(_matrix(a, check_finite), upper=not lower)


@_means("linalg.cho_factor")
def _cho_factor(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    x = _matrix(a, check_finite)
    factor = np_cholesky(x, upper=not lower)
    # As LAPACK does, leave what is in the other triangle.
    rest = np.triu(x, 1) if lower else np.tril(x, -1)
    return factor + rest.astype(factor.dtype), lower


@_means("linalg.cho_solve")
def _cho_solve(
    c_and_lower: Any, b: Any, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    c, lower = c_and_lower
    factor, rhs = _matrix(c, check_finite), _matrix(b, check_finite)
    first, second = (0, 2) if lower else (2, 0)
    half = triangular.solve_triangular(factor, rhs, first, lower=lower)
    return triangular.solve_triangular(factor, half, second, lower=lower)


@_means("linalg.solve_triangular")
def _solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, check_finite: bool = True,
) -> Any:  # fmt: skip
    x, y = _matrix(a, check_finite), _matrix(b, check_finite)
    if not unit_diagonal:
        zero = np.diagonal(x, 0, -2, -1) == 0
        message = "singular matrix: resolution failed at diagonal {0}"
        ask(~np.any(zero), message, "LinAlgError", [np.argmax(zero)])
    return triangular.solve_triangular(x, y, trans, lower=lower, unit_diagonal=unit_diagonal)


@_means("linalg.lu_factor")
def _lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    return triangular.lu_factor(_matrix(a, check_finite))


@_means("linalg.lu_solve")
def _lu_solve(
    lu_and_piv: Any, b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    packed, pivots = lu_and_piv
    return triangular.lu_solve(
        (_matrix(packed, check_finite), pivots), _matrix(b, check_finite), trans
    )


@_means("linalg.lu")
def _lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, p_indices: bool = False
) -> Any:  # fmt: skip
    return triangular.lu(_matrix(a, check_finite), permute_l, p_indices=p_indices)


@_means("linalg.solve")
def _solve(
    a: Any, b: Any, *, overwrite_a: bool = False, overwrite_b: bool = False, check_finite: bool = True
) -> Any:  # fmt: skip
    return np.linalg.solve(_matrix(a, check_finite), _matrix(b, check_finite))


@_means("linalg.inv")
def _inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    return np.linalg.inv(_matrix(a, check_finite))


@_means("linalg.det")
def _det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    found: Any = np.linalg.det(_matrix(a, check_finite))
    return found.astype(np.result_type(found.dtype, np.float64))  # SciPy's is of double precision


@_means("linalg.norm")
def _norm(
    a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True
) -> Any:
    return np.linalg.norm(_matrix(a, check_finite), ord, axis, keepdims)


@_means("linalg.eigh")
def _eigh(
    a: Any, *, lower: bool = True, eigvals_only: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:  # fmt: skip
    values, vectors = np.linalg.eigh(_matrix(a, check_finite), "L" if lower else "U")
    return values if eigvals_only else (values, vectors)


@_means("linalg.eigvalsh")
def _eigvalsh(
    a: Any, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    return np.linalg.eigvalsh(_matrix(a, check_finite), "L" if lower else "U")
