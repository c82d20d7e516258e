"""The programs of tests/programs, differentiated natively: reverse and forward mode against central differences.

A program becomes a scalar function of its floats: all floats that it returns or leaves in its arguments, weighted and summed.
Floats are in double precision. Programs without floats among their arguments are left out. Where the function is not smooth
at the arguments, the modes are compared there, and with differences a little beside them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_programs import REFUSED, arguments, rows

import dsl
import dsl.codegen.cpu.native
from dsl.frontend.calls import call
from dsl.frontend.leaves import info_of
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import TracedOptional
from dsl.frontend.scopes import current_trace
from dsl.frontend.traced import Traced, fresh, read
from dsl.frontend.trees import _parts, flatten, forwarded, unflatten

STEPS = (1e-6, 1e-4, 1e-7, 1e-5)

# Why central differences are taken beside the arguments; at them, both modes agree.
JUMP = "it jumps here: a comparison with a bound, or a test for equality, decides"
STOPS = "it stops at a tolerance, which is met exactly here, or after another trip a step from here"
LIMITER = "the limiter has kinks where its slopes are equal"
MOVED = {
    "descriptive_statistics-median_absolute_deviation-2": JUMP,
    "descriptive_statistics-pearson-2": JUMP,
    "descriptive_statistics-standardize-1": JUMP,
    "descriptive_statistics-trimmed_mean-1": JUMP,
    "image_processing-rgb_to_hsv-2": JUMP,
    "linear_solvers-conjugate_gradient-1": STOPS,
    "linear_solvers-conjugate_gradient-2": JUMP,
    "linear_solvers-gauss_jordan_inverse-2": JUMP,
    "linear_solvers-gauss_seidel-1": STOPS,
    "linear_solvers-pagerank-1": STOPS,
    "neural_networks-dropout-2": JUMP,
    "numpy_linear_algebra-select_regions-1": JUMP,
    "signal_filters-fft_lowpass-1": JUMP,
    "signal_filters-iir_filter-2": JUMP,
    "sparse_matrices-dense_to_csr-1": JUMP,
    "stencils-advect_muscl-1": LIMITER,
    "stencils-advect_muscl-2": LIMITER,
}

# Why central differences say nothing anywhere; both modes agree, and with JAX's gradient where test_autodiff_jax.py has it.
INCOMPARABLE = {
    "searches_and_simulations-durand_kerner-1": "its result is rounded",
    "classics-bisection-1": "its result moves by comparisons alone",
    "finance-internal_rate_of_return-1": "its result moves by comparisons alone",
    "fractals_and_histograms-logistic_bifurcation-1": "it is chaotic: a step of any length leads elsewhere",
    "python_styles-complex_roots-1": "it rounds its result",
}

# Programs that compute in float32 and float16, of which differences are coarse.
COARSE = {"npbench-lenet-1": 1e-3, "python_styles-half_precision-1": 1e-3}

# `cholesky` takes its matrix for symmetric, of which NumPy reads one half: the same along directions that are symmetric.
SYMMETRIC = {"numpy_linear_algebra-mahalanobis-1"}

# Why there is nothing to check.
STATE = "the second mode goes on with the state that the first left in an object"
UNDEFINED = {
    "array_parsing-matrix_market-1": "the floats are indices, too",
    "classics-kalman_step-1": STATE,
    "classics-run-1": STATE,
    "classics-viterbi-1": "the logarithm of zero",
    "linear_solvers-qr_algorithm-1": "the shifted matrix becomes singular",
    "numpy_linear_algebra-markov_stationary-1": "it raises a step from here, where rows do not sum to one",
    "numpy_linear_algebra-newton_system-1": "it raises a step from here, where it does not converge",
    "python_styles-fit-1": STATE,
}

# Equal numbers, where minima and orders have kinks: the arguments are moved a little.
TIED = {
    "dynamic_programming-dijkstra_dense-1",
    "dynamic_programming-floyd_warshall-1",
    "dynamic_programming-floyd_warshall_broadcast-1",
    "dynamic_programming-needleman_wunsch-1",
    "geometry-tsp_two_opt-1",
}

# Programs that this cannot try: they change objects among their arguments, which a trace of several calls would share; they keep
# an empty list in an object that a loop carries; they have float32 and equal numbers in a comparison.
UNSUITED = {
    "objects_and_containers-record_each-1",
    "objects_and_containers-record_positive-1",
    "objects_and_containers-record_rows-1",
    "objects_and_containers-record_into_new_list-1",
    "objects_and_containers-bouncing_balls-1",
    "generators_and_text-vectorized-1",
}

# Numbers that decide how large arrays are, or how often loops run, while the program is traced.
FIXED_NUMBERS = {"image_processing-gaussian_blur-1"}


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly() -> Iterator[None]:
    """Leave out LLVM's optimisations, which take most of the time and are not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dsl.codegen.cpu.native, "LEVEL", 0)
        yield


def is_float(leaf: Any) -> bool:
    kinds = (float, complex, np.ndarray, np.generic)
    return isinstance(leaf, kinds) and np.asarray(leaf).dtype.kind in "fc"


def widened(leaf: Any) -> Any:
    if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype.kind not in "fc":
        return leaf
    return leaf.astype(np.complex128 if leaf.dtype.kind == "c" else np.float64)


def random_like(rng: np.random.Generator, leaf: Any) -> Any:
    made = rng.standard_normal(np.shape(leaf))
    if np.iscomplexobj(leaf):
        made = made + 1j * rng.standard_normal(np.shape(leaf))
    return made if isinstance(leaf, np.ndarray) else type(leaf)(made)


# -- the sum of all floats in a tree ------------------------------------------------------------------------------


class Weighted:
    """The sum of all floats in a tree, each with a weight of its own; where `finite`, of those that are finite.

    It looks at lists and optional values as the tracer has them, so it is not converted.
    """

    def __init__(self, finite: bool) -> None:
        self.finite = finite

    def dsl_inline(self, args: Any, kwargs: Any) -> Any:
        return self(*args)

    def __call__(self, tree: Any, path: str = "") -> Any:
        tree = forwarded(tree)
        if isinstance(tree, TracedOptional):
            present = np.where(tree.present, 1.0, 0.0)
            return self(unflatten(tree.structure, tree.leaves), path) * present
        if isinstance(tree, TracedList) and len(tree.columns) == 1:
            return self(tree.columns[0], path)
        if is_row(tree):
            tree = plainly_or_traced(np.array, tree)
        parts = _parts(tree)
        if parts is None and type(tree).__module__.startswith("programs"):
            parts = list(vars(tree)), list(vars(tree).values())
        if parts is None:
            return self.leaf(tree, path) if moves(tree) else 0.0
        total = 0.0
        for key, part in zip(*parts):
            total = total + self(part, f"{path}/{key}")
        return total

    def leaf(self, leaf: Any, path: str) -> Any:
        start = 1.0 + zlib.crc32(path.encode()) % 1000
        return plainly_or_traced(weighted, leaf, start, self.finite)


def weighted(leaf: Any, start: float, finite: bool) -> Any:
    if finite:
        leaf = np.where(np.isfinite(leaf), leaf, 0.0)
    weights = np.cos(start + 3.0 * np.arange(np.size(leaf))).reshape(np.shape(leaf))
    if np.iscomplexobj(leaf):
        return np.sum(np.real(leaf) * weights) - np.sum(np.imag(leaf) * weights * weights)
    return np.sum(leaf * weights)


def is_row(tree: Any) -> bool:
    """Whether this is a list of floats, which a traced loop makes as one array."""
    return (
        isinstance(tree, list)
        and bool(tree)
        and all(map(moves, tree))
        and len(set(map(np.shape, tree))) == 1
    )


def moves(leaf: Any) -> bool:
    return info_of(leaf).dtype.kind in "fc" if isinstance(leaf, Traced) else is_float(leaf)


# -- programs as scalar functions ---------------------------------------------------------------------------------


class Scalar:
    """A program as a scalar function of the floats among its arguments."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], key: str) -> None:
        self.function = function
        leaves, self.structure = flatten(args)
        self.leaves = [widened(leaf) for leaf in leaves]
        arrays = key in FIXED_NUMBERS
        self.places = [
            k for k, leaf in enumerate(self.leaves)
            if is_float(leaf) and not (arrays and isinstance(leaf, (float, complex)))
        ]  # fmt: skip
        self.floats = [self.leaves[k] for k in self.places]
        if key in TIED:
            rng = np.random.default_rng(1)
            self.floats = [x + 1e-3 * random_like(rng, x) for x in self.floats]
        self.others = [leaf for k, leaf in enumerate(self.leaves) if k not in self.places]
        self.finite = False

    def __call__(self, floats: Any, others: Any) -> Any:
        moving, fixed = iter(floats), iter(others)
        leaves = [next(moving if k in self.places else fixed) for k in range(len(self.leaves))]
        args = unflatten(self.structure, [copied(leaf) for leaf in leaves])
        return Weighted(self.finite)((plainly_or_traced(self.function, *args), args))

    def dsl_inline(self, args: Any, kwargs: Any) -> Any:
        return self(*args)

    def move(self, scale: float) -> None:
        """Go a little away from the arguments."""
        rng = np.random.default_rng(7)
        self.floats = [
            x + scale * (1 + np.max(np.abs(x), initial=0.0)) * random_like(rng, x)
            for x in self.floats
        ]

    def plainly(self, step: float = 0.0, direction: Any = None) -> Any:
        """The plain program's value at the arguments, or a step from them."""
        moved = [x + step * d for x, d in zip(self.floats, direction)] if step else self.floats
        with np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
            return self(moved, copy.deepcopy(self.others))

    def slope(self, step: float, direction: Any) -> Any:
        return (self.plainly(step, direction) - self.plainly(-step, direction)) / (2 * step)


def copied(leaf: Any) -> Any:
    """Return an array that the program may write into."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return fresh(read(leaf), leaf.kind) if isinstance(leaf, Traced) else leaf


def plainly_or_traced(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args) if current_trace() is None else call(function, *args)


def both_modes(scalar: Scalar) -> Any:
    """Return a compiled function from floats and a direction to the value, the gradient and the slope."""
    numbers = tuple(range(len(scalar.floats)))

    def run(floats, direction, others):
        def function(*given):
            return scalar(given, others)

        value, slopes = dsl.value_and_grad(function, argnums=numbers)(*floats)
        return value, slopes, dsl.jvp(function, tuple(floats), tuple(direction))[1]

    return dsl.jit(run)


def along(slopes: Any, direction: Any) -> tuple[float, float]:
    """The gradient times a direction, and how large the terms of that sum are."""
    products = [np.real(np.asarray(g) * d) for g, d in zip(slopes, direction, strict=True)]
    return sum(float(np.sum(p)) for p in products), sum(float(np.sum(np.abs(p))) for p in products)


def programs() -> list[Any]:
    found = []
    for row in rows():
        function, make = row.values
        if row.id in UNSUITED:
            continue
        if any(map(is_float, flatten(arguments(function, make))[0])):
            found.append(pytest.param(function, make, row.id, id=row.id))
    return found


def direction_of(scalar: Scalar, seed: int, symmetric: bool) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = [random_like(rng, x) for x in scalar.floats]
    return [d + d.T if symmetric and np.ndim(d) == 2 and len(d) == len(d.T) else d for d in found]


def check_modes(scalar: Scalar, run: Any, direction: Any) -> tuple[float, float]:
    """Compare the modes with each other; return the slope and how large the terms of it are."""
    floats = tuple(copy.deepcopy(scalar.floats))
    with contextlib.redirect_stdout(io.StringIO()):
        value, slopes, forward = run(floats, tuple(direction), copy.deepcopy(scalar.others))
    np.testing.assert_allclose(value, scalar.plainly(), rtol=1e-9, atol=1e-12)
    for mine, given in zip(floats, scalar.floats):
        np.testing.assert_array_equal(mine, given, err_msg="the caller's arrays")
    reverse, size = along(slopes, direction)
    np.testing.assert_allclose(reverse, forward, rtol=1e-7, atol=1e-9 * size)
    return reverse, size


@pytest.mark.parametrize(("function", "make", "key"), programs())
def test_gradient_of_program(function: Any, make: Any, key: str) -> None:
    scalar = Scalar(function, arguments(function, make), key)
    try:
        expected = scalar.plainly()
    except Exception as error:
        pytest.skip(f"the program raises {type(error).__name__}")
    if key in UNDEFINED or function.__name__ in REFUSED:
        pytest.skip(UNDEFINED.get(key, "the program is refused"))
    scalar.finite = not np.isfinite(expected)
    run = both_modes(scalar)
    if key in MOVED or key in INCOMPARABLE:
        check_modes(scalar, run, direction_of(scalar, 0, key in SYMMETRIC))
        scalar.move(0.03)
    if key not in INCOMPARABLE:
        check_differences(scalar, run, key)


def check_differences(scalar: Scalar, run: Any, key: str) -> None:
    found, tolerance = [], COARSE.get(key, 1e-5)
    for seed in range(2):  # a second direction, where differences are unreliable along the first
        direction = direction_of(scalar, seed, key in SYMMETRIC)
        reverse, size = check_modes(scalar, run, direction)
        for step in STEPS:
            found.append((reverse, scalar.slope(step, direction)))
            if abs(reverse - found[-1][1]) <= tolerance * abs(reverse) + 1e-8 * (1 + size):
                return
    pytest.fail(f"reverse mode and central differences, two directions with steps {STEPS}: {found}")
