"""The gradients of programs of tests/programs beside JAX's, for those that JAX can run as they stand.

JAX runs them with `jax.numpy` in NumPy's place: compiled or, where Python decides about branches and loops, eagerly. It cannot
run those that write into arrays, which are most, nor those that index by lists or mix its arrays with NumPy's; of the others,
those that would take it seconds, one small compile for each op and shape, are left out too. All of these are compared with
central differences in test_autodiff_programs.py. The programs of which differences say nothing are here.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import importlib.util
import io
import math
import sys
import types
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_autodiff_programs import Scalar
from test_programs import FOLDER, arguments, rows

import dsl
import dsl.codegen.cpu.native
from dsl.frontend.trees import _parts, unflatten

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

# By module; the number says which sample, if it is not the first.
TAKEN = {
    "classics": "bisection",
    "descriptive_statistics": "median_absolute_deviation nan_summary report standardize-2 trimmed_mean welford_merge",
    "dynamic_programming": "hmm_forward max_subarray-2",
    "finance": "black_scholes_greeks implied_volatility internal_rate_of_return max_drawdown yield_to_maturity",
    "fractals_and_histograms": "burning_ship escape_time histogram_numpy histogram_searchsorted mandelbrot_where",
    "geometry": "boxes_overlap convex_hull-2 distance_matrix_gram euler_rotation haversine point_in_polygon "
    "polygon_area_centroid rotation_2d segment_intersection slerp",
    "image_processing": "gamma_correct",
    "linear_solvers": "conjugate_gradient",
    "neural_networks": "attention clip_gradients-2 decision_stump dropout gru im2col_conv layer_norm max_pool "
    "multi_head_attention value_iteration",
    "npbench": "arc_distance go_fast",
    "numerics": "monte_carlo_pi sobel-2",
    "numpy_linear_algebra": "batched_bilinear block_matrix broadcasting_mix cumulative_summary dominant_frequency fft_convolve "
    "interpolate_table kronecker_sum lagrange_polynomial low_rank matrix_exponential matrix_norms "
    "procrustes simpson_and_trapezoid sliding_blocks solve_refine spectral_derivative tensor_contract "
    "type_promotion",
    "particles_and_ode": "boids_step double_pendulum_energy ising_checkerboard ising_sweep lorenz_scalar-2 "
    "schrodinger_split_step seir_regions",
    "python_styles": "golden_section validate welford",
    "signal_filters": "cross_correlate_peak dct2 dft_matrix find_peaks power_spectrum savgol_smooth zero_crossings",
    "sorting_and_searching": "fisher_yates remove_duplicates-2 top_k",
    "sparse_matrices": "coo_matvec_bincount ell_matvec",
    "stencils": "advect_muscl gray_scott",
}


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly() -> Iterator[None]:
    """Leave out LLVM's optimisations, and let go of what JAX compiled in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dsl.codegen.cpu.native, "LEVEL", 0)
        yield
    jax.clear_caches()


# -- programs of JAX's arrays -------------------------------------------------------------------------------------

NAMES = {"atan2": "arctan2", "atan": "arctan", "asin": "arcsin", "acos": "arccos", "pow": "power", "fabs": "abs"}  # fmt: skip


def math_of_jax() -> types.SimpleNamespace:
    """The module `math` with functions that take JAX's arrays."""
    found = {name: getattr(math, name) for name in dir(math)}
    special = jax.scipy.special
    found |= {name: getattr(jnp, NAMES.get(name, name)) for name in found if hasattr(jnp, NAMES.get(name, name))}  # fmt: skip
    found |= {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
    return types.SimpleNamespace(**found | {"erf": special.erf, "erfc": special.erfc})


def module_in_jax(stem: str) -> Any:
    """A copy of a module of programs in which `np` is JAX's."""
    name = f"programs_{stem}_in_jax"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{stem}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.np = jnp
        module.math = math_of_jax()
    return sys.modules[name]


@contextlib.contextmanager
def passing_floats(module: Any) -> Iterator[None]:
    """Let `float(x)` be x where JAX traces it, of which Python would make a constant."""
    module.float = lambda x=0.0: x if isinstance(x, jax.core.Tracer) else builtins.float(x)
    yield
    del module.float


def moves(leaf: Any) -> bool:
    kinds = (float, complex, np.ndarray, np.generic, jax.Array)
    return isinstance(leaf, kinds) and jnp.result_type(leaf).kind in "fc"


def total(tree: Any, finite: bool, path: str = "") -> Any:
    """The same sum of all floats in a tree as `Weighted`'s."""
    if isinstance(tree, list) and tree and all(map(moves, tree)) and len(set(map(np.shape, tree))) == 1:  # fmt: skip
        tree = jnp.stack([jnp.asarray(item) for item in tree])
    parts = None if isinstance(tree, jax.Array) else _parts(tree)
    if parts is None:
        return weighted(jnp.asarray(tree), path, finite) if moves(tree) else 0.0
    return sum(total(part, finite, f"{path}/{key}") for key, part in zip(*parts))


def weighted(leaf: Any, path: str, finite: bool) -> Any:
    if finite:
        leaf = jnp.where(jnp.isfinite(leaf), leaf, 0.0)
    start = 1.0 + zlib.crc32(path.encode()) % 1000
    weights = np.cos(start + 3.0 * np.arange(leaf.size)).reshape(leaf.shape)
    if jnp.iscomplexobj(leaf):
        return jnp.sum(jnp.real(leaf) * weights) - jnp.sum(jnp.imag(leaf) * weights * weights)
    return jnp.sum(leaf * weights)


def gradient_of_jax(scalar: Scalar, stem: str) -> tuple[Any, Any]:
    module = module_in_jax(stem)
    function = getattr(module, scalar.function.__name__)

    def run(floats):
        moving, fixed = iter(floats), iter(copy.deepcopy(scalar.others))
        places = range(len(scalar.leaves))
        args = unflatten(
            scalar.structure, [next(moving if k in scalar.places else fixed) for k in places]
        )
        return total((function(*args), args), scalar.finite)

    floats, both = [jnp.asarray(x) for x in scalar.floats], jax.value_and_grad(run)
    try:
        return jax.jit(both)(floats)
    except (TypeError, IndexError):  # JAX's errors about values that it does not know while tracing
        pass
    try:
        return both(floats)
    except jax.errors.ConcretizationTypeError:
        with passing_floats(module):
            return both(floats)


def gradient_of_dsl(scalar: Scalar) -> tuple[Any, Any]:
    numbers = tuple(range(len(scalar.floats)))

    def run(floats, others):
        return dsl.value_and_grad(lambda *given: scalar(given, others), argnums=numbers)(*floats)

    return dsl.jit(run)(tuple(copy.deepcopy(scalar.floats)), copy.deepcopy(scalar.others))


def programs() -> list[Any]:
    known = {row.id: row.values for row in rows()}
    names = [f"{stem}-{name}" for stem, listed in TAKEN.items() for name in listed.split()]
    keys = [name if name[-2] == "-" else f"{name}-1" for name in names]
    return [pytest.param(*known[key], key, id=key) for key in keys]


@pytest.mark.parametrize(("function", "make", "key"), programs())
def test_gradient_as_jax_has_it(function: Any, make: Any, key: str) -> None:
    scalar = Scalar(function, arguments(function, make), key)
    scalar.finite = not np.isfinite(scalar.plainly())
    with contextlib.redirect_stdout(io.StringIO()):
        value, slopes = gradient_of_dsl(scalar)
        expected, theirs = gradient_of_jax(scalar, key.split("-")[0])
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)
    for mine, other in zip(slopes, theirs, strict=True):
        largest = np.max(np.abs(other), initial=0.0)
        np.testing.assert_allclose(mine, other, rtol=1e-7, atol=1e-9 * largest)
