"""What matters in the PTX of kernels: whole vectors, few barriers, no local memory, no division, few registers.

Counts are those of instructions in the text, not of those that run (`test_bench_cuda` has some of these). Sizes are static
powers of two unless a test says otherwise; arrays are of float32. `ptxas` assembles everything where it is installed.
"""

from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen.cuda import library, toolkit
from dsl.codegen.cuda.device import Target
from dsl.codegen.cuda.ptxas import assemble, occupancy

TARGETS = {75: Target(75, 63), 80: Target(80, 70), 90: Target(90, 78), 100: Target(100, 86)}
needs_ptxas = pytest.mark.skipif(toolkit.ptxas() is None, reason="there is no ptxas")


@dataclass(frozen=True)
class Ptx:
    """One kernel: its text, how often it has which instruction, and the bytes of its shared memory."""

    name: str
    text: str
    block: int

    @property
    def ops(self) -> Counter[str]:
        """Instructions by their full name, those that read params aside."""
        names = re.findall(r"^\t(?:@!?%p\d+ )?([a-z][\w.:]*)", self.text, re.MULTILINE)
        return Counter(name for name in names if not name.startswith("ld.param"))

    def count(self, pattern: str) -> int:
        """How many instructions have a name that matches from its start."""
        return sum(n for name, n in self.ops.items() if re.match(pattern, name))

    @property
    def accesses(self) -> dict[str, int]:
        """Loads and stores of global memory."""
        return {k: n for k, n in self.ops.items() if re.match(r"(ld|st)\.(global|const)|ld\.b", k)}

    @property
    def shared(self) -> int:
        return sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", self.text)))


def lowered(function: Callable[..., Any], *args: Any) -> Any:
    """The program of a function for a GPU; skips where an op has no kernel yet."""
    program = dsl.jit(function).lower(*args).device_program
    if program.lowering.fallbacks:
        names = [name for name, _ in program.lowering.fallbacks]
        pytest.skip(f"on the host so far: {', '.join(names)}")
    return program


def kernels(function: Callable[..., Any], *args: Any, target: Target = Target()) -> list[Ptx]:  # noqa: B008
    """The kernels of a function, in the order of their launches' emission."""
    program = lowered(function, *args)
    parts = re.split(r"(?=\.visible \.entry )", program.ptx(target))[1:]
    found = {re.search(r"\.entry (\w+)", part)[1]: part for part in parts}  # type: ignore[index]
    made = program.lowering.kernels
    assert found.keys() == made.keys()
    return [Ptx(name, found[name], geometry.block) for name, (geometry, _) in made.items()]


def kernel(function: Callable[..., Any], *args: Any, target: Target = Target()) -> Ptx:  # noqa: B008
    """The only kernel of a function."""
    (one,) = kernels(function, *args, target=target)
    return one


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """A new array: the same one given twice would be read once."""
    return np.ones(shape, dtype)


# --- Programs ------------------------------------------------------------------------------------


def polynomial(x, y):
    return ((x * 0.5 + y) * x - 0.25) * y + 1


def twice(x):
    return x + x


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense_bias(x, bias):
    return np.maximum(x + bias, 0)


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_down(x):
    e = np.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def layer_norm(x, gain, bias):
    centred = x - x.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * gain + bias


def layer_norm_down(x, gain, bias):
    centred = x - x.mean(axis=0)
    return centred / np.sqrt((centred * centred).mean(axis=0) + 1e-5) * gain + bias


def rms_norm(x, gain):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * gain


def residual_norm(x, y, gain):
    return rms_norm(x + y, gain)


def weighted(x, weight):
    return (x * (weight * weight + 1)).sum(axis=1)


def standardized(x):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)


def transposed(x):
    return x.T.copy()


def symmetric(x):
    return x + x.T


def sum_all(x):
    return x.sum()


def sum_rows(x):
    return x.sum(axis=1)


def sum_columns(x):
    return x.sum(axis=0)


def max_rows(x):
    return x.max(axis=1)


def running_sum(x):
    return np.cumsum(x)


def running_rows(x):
    return np.cumsum(x, axis=1)


def largest_places(x):
    return x.argmax(axis=1)


def sorted_rows(x):
    return np.sort(x, axis=1)


def counts(x):
    return np.bincount(x, minlength=64)


def histogram(x):
    return np.histogram(x, bins=64, range=(-4.0, 4.0))[0]


def gathered(x, index):
    return x[index]


def scatter_added(x, index, values):
    out = x.copy()
    np.add.at(out, index, values)
    return out


def blurred(x):
    around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    return 0.2 * (around + x[1:-1, 1:-1])


def padded(x):
    return np.pad(x, 16)


def product(x, w):
    return x @ w


def dense(x, w, bias):
    return np.maximum(x @ w + bias, 0)


def sine(x):
    return np.sin(x)


N = 1 << 16


def places() -> np.ndarray:
    return array(N, dtype=np.int64)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "elementwise": (polynomial, lambda: (array(N), array(N))),
    "elementwise f64": (
        polynomial,
        lambda: (array(N, dtype=np.float64), array(N, dtype=np.float64)),
    ),
    "elementwise f16": (
        polynomial,
        lambda: (array(N, dtype=np.float16), array(N, dtype=np.float16)),
    ),
    "sigmoid": (sigmoid, lambda: (array(N),)),
    "bias": (dense_bias, lambda: (array(256, 256), array(256))),
    "softmax": (softmax, lambda: (array(256, 1024),)),
    "softmax down": (softmax_down, lambda: (array(1024, 256),)),
    "layer norm": (layer_norm, lambda: (array(256, 1024), array(1024), array(1024))),
    "transpose": (transposed, lambda: (array(512, 512),)),
    "sum": (sum_all, lambda: (array(1 << 18),)),
    "sum of rows": (sum_rows, lambda: (array(64, 4096),)),
    "sum of columns": (sum_columns, lambda: (array(1024, 256),)),
    "max of rows": (max_rows, lambda: (array(64, 4096),)),
    "cumsum": (running_sum, lambda: (array(1 << 18),)),
    "cumsum of rows": (running_rows, lambda: (array(64, 4096),)),
    "argmax": (largest_places, lambda: (array(64, 4096),)),
    "sort": (sorted_rows, lambda: (array(64, 1024),)),
    "bincount": (counts, lambda: (places(),)),
    "histogram": (histogram, lambda: (array(N),)),
    "gather": (gathered, lambda: (array(N), places())),
    "scatter": (scatter_added, lambda: (array(N), places(), array(N))),
    "stencil": (blurred, lambda: (array(512, 512),)),
    "pad": (padded, lambda: (array(512, 512),)),
    "matmul": (product, lambda: (array(256, 256), array(256, 256))),
    "dense": (dense, lambda: (array(256, 256), array(256, 256), array(256))),
}

every_program = pytest.mark.parametrize("name", PROGRAMS)


def ptx_of(name: str) -> list[Ptx]:
    function, inputs = PROGRAMS[name]
    return kernels(function, *inputs())


# --- Every kernel --------------------------------------------------------------------------------


@every_program
def test_no_kernel_has_local_memory(name: str) -> None:
    for one in ptx_of(name):
        assert ".local" not in one.text, one.name
        assert one.count(r"(ld|st)\.local") == 0


@every_program
def test_nothing_is_divided_by_sizes_that_are_known(name: str) -> None:
    """A division of 64-bit integers is some hundred instructions."""
    for one in ptx_of(name):
        assert one.count(r"(div|rem)\.[us](64|32)") == 0, one.name


def test_a_size_that_is_not_known_is_divided_by_once_for_each_point() -> None:
    """Which also shows that the test above would notice."""
    any_size = dsl.jit(dense_bias)
    for n in (16, 32, 48):
        any_size(array(n, n + 1), array(n + 1))
    ptx = any_size.lower(array(90, 91), array(91)).device_program.ptx()
    assert len(re.findall(r"\t(?:div|rem)\.u64", ptx)) == 1


@every_program
def test_no_kernel_calls_a_function(name: str) -> None:
    for one in ptx_of(name):
        assert one.count("call") == 0, one.name


@every_program
def test_addresses_are_those_of_global_memory(name: str) -> None:
    """A generic access makes the GPU find out what memory it is."""
    for one in ptx_of(name):
        assert one.count(r"(ld|st|atom|red)\.(v\d\.)?[bufs]\d") == 0, one.ops


def test_trigonometric_functions_alone_have_local_memory() -> None:
    """Libdevice reduces large arguments with a table of the bits of 2/pi, in local memory, behind a branch."""
    if toolkit.libdevice() is None:
        pytest.skip("there is no libdevice")
    one = kernel(sine, array(N))
    assert one.count(r"st\.local") > 0
    assert one.accesses["st.global.v4.b32"] == 1


@cache
def _usages(name: str, sm: int) -> tuple[tuple[int, Any], ...]:
    function, inputs = PROGRAMS[name]
    program = lowered(function, *inputs())
    told = assemble(program.ptx(TARGETS[sm]), f"sm_{sm}").kernels
    made = program.lowering.kernels
    return tuple((made[kernel][0].block, usage) for kernel, usage in told.items())


# Half of the warps hide the latency of memory well enough. A product keeps its sums in registers, which hide it too.
LEAST = {"matmul": 0.25, "dense": 0.25}


@needs_ptxas
@pytest.mark.parametrize("sm", TARGETS)
@every_program
def test_it_assembles_without_spills(name: str, sm: int) -> None:
    usages = _usages(name, sm)
    assert usages
    for block, usage in usages:
        assert (usage.stack, usage.spill_stores, usage.spill_loads) == (0, 0, 0)
        assert block < 32 or occupancy(usage.registers, usage.shared, block, sm) >= LEAST.get(
            name, 0.5
        )


SPILLS = pytest.mark.xfail(
    reason="128 registers are not quite enough: 24 bytes go to memory and back", strict=True
)


@needs_ptxas
@pytest.mark.parametrize(
    "sm", [75, 80, pytest.param(90, marks=SPILLS), pytest.param(100, marks=SPILLS)]
)
def test_the_large_tiles_of_a_product_do_not_spill(sm: int) -> None:
    program = lowered(product, array(2048, 2048), array(2048, 2048))
    (usage,) = assemble(program.ptx(TARGETS[sm]), f"sm_{sm}").kernels.values()
    assert (usage.spill_stores, usage.spill_loads) == (0, 0)


# --- Elementwise ---------------------------------------------------------------------------------

VECTORS = {
    "float16": ("v4.b32", 8),
    "float32": ("v4.b32", 4),
    "float64": ("v2.b64", 2),
    "int8": ("v2.b32", 8),
    "int32": ("v4.b32", 4),
    "int64": ("v2.b64", 2),
    "complex64": ("v4.b32", 2),
}


@pytest.mark.parametrize("dtype", VECTORS)
def test_a_thread_reads_and_writes_whole_vectors(dtype: str) -> None:
    vector, points = VECTORS[dtype]
    program = lowered(twice, array(N, dtype=dtype))
    one = kernel(twice, array(N, dtype=dtype))
    assert one.accesses == {f"ld.global.nc.{vector}": 1, f"st.global.{vector}": 1}
    (geometry, _) = program.lowering.kernels[one.name]
    assert geometry.grid == (N // (256 * points), 1)
    assert (one.block, one.shared, one.count("bar"), one.count("bra")) == (256, 0, 0, 0)


def test_fused_arithmetic_reads_each_operand_once() -> None:
    one = kernel(polynomial, array(N), array(N))
    assert one.accesses == {"ld.global.nc.v4.b32": 2, "st.global.v4.b32": 1}
    # As NumPy rounds: no fused multiply and add. Three products and three sums of four points.
    assert one.count(r"fma|mad\.rn") == 0
    assert (one.count(r"mul\.rn\.f32"), one.count(r"(add|sub)\.rn\.f32")) == (12, 12)


def test_a_size_that_is_no_multiple_has_vectors_and_a_tail() -> None:
    one = kernel(polynomial, array(N + 3), array(N + 3))
    assert one.accesses["ld.global.nc.v4.b32"] == 2
    assert one.accesses["st.global.v4.b32"] == 1
    assert one.accesses["st.global.b32"] == 1


def test_a_bias_along_the_rows_leaves_vectors_whole() -> None:
    one = kernel(dense_bias, array(256, 256), array(256))
    assert one.accesses == {"ld.global.nc.v4.b32": 2, "st.global.v4.b32": 1}


def test_the_inner_part_of_a_pad_is_copied_by_vectors() -> None:
    inner = kernels(padded, array(512, 512))[-1]
    assert inner.accesses == {"ld.global.nc.v4.b32": 1, "st.global.v4.b32": 1}


def test_a_stencil_loads_each_neighbour_and_multiplies_where_it_would_divide() -> None:
    one = kernel(blurred, array(512, 512))
    assert one.accesses == {"ld.global.nc.b32": 5, "st.global.b32": 1}
    assert one.count(r"mul\.(hi|wide)") >= 1
    assert one.count("bar") == 0


# --- Tiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "loads"), [(transposed, 4), (symmetric, 8)])
def test_a_transpose_goes_through_a_tile_with_one_barrier(function: Any, loads: int) -> None:
    one = kernel(function, array(512, 512))
    assert one.accesses == {"ld.global.nc.b32": loads, "st.global.b32": 4}
    assert (one.count("st.shared"), one.count("ld.shared"), one.count("bar")) == (4, 4, 1)
    assert one.shared == 32 * 33 * 4  # a column more, so that no two lanes meet in a bank


# --- Rows ----------------------------------------------------------------------------------------


def test_softmax_keeps_its_row_in_registers() -> None:
    one = kernel(softmax, array(256, 1024))
    assert one.accesses == {"ld.global.nc.v4.b32": 4, "st.global.v4.b32": 4}
    assert one.count("ex2") == 16  # once for each point: not again for the division
    # Two reductions over 64 threads: five shuffles in each warp, one between two warps, one barrier.
    assert (one.count(r"shfl\.sync\.bfly"), one.count("bar")) == (12, 2)
    assert (one.block, one.shared) == (128, 32)


def test_softmax_down_reads_once_and_unites_in_shared_memory() -> None:
    one = kernel(softmax_down, array(1024, 256))
    assert one.accesses == {"ld.global.nc.b32": 8, "st.global.b32": 8}  # for eight rows of a thread
    assert (one.count("shfl"), one.count("bar")) == (4, 2)


def test_moments_keep_their_row_in_registers() -> None:
    one = kernel(standardized, array(256, 1024))
    assert one.accesses == {"ld.global.nc.v4.b32": 4, "st.global.v4.b32": 4}
    assert (one.count(r"shfl\.sync\.bfly"), one.count("bar")) == (12, 2)


def test_layer_norm_keeps_its_row_in_registers() -> None:
    one = kernel(layer_norm, array(256, 1024), array(1024), array(1024))
    assert one.accesses == {"ld.global.nc.v4.b32": 12, "st.global.v4.b32": 4}


def test_layer_norm_is_one_kernel_with_two_barriers() -> None:
    one = kernel(layer_norm, array(256, 1024), array(1024), array(1024))
    assert set(one.accesses) == {"ld.global.nc.v4.b32", "st.global.v4.b32"}
    assert (one.count(r"shfl\.sync\.bfly"), one.count("bar")) == (12, 2)


def test_layer_norm_of_many_rows_reads_its_gain_and_bias_before_the_rows() -> None:
    one = kernel(layer_norm, array(4096, 1024), array(1024), array(1024))
    before, rows = one.text.split("bar.sync", 1)
    assert (before.count("ld.global"), before.count("st.shared.v4")) == (2, 2)
    assert rows.count("ld.global.nc.v4.b32") == rows.count("st.global.v4.b32") == 4
    assert rows.count("ld.shared.v4") == 8  # gain and bias of sixteen points
    # One barrier for what is held, two in each trip; the trips are a loop.
    assert (one.count(r"shfl\.sync\.bfly"), one.count("bar")) == (12, 3)
    assert (one.block, one.shared) == (1024, 2 * 4096 + 2 * 128)


def test_one_reduction_of_many_rows_has_a_barrier_before_the_next_trip() -> None:
    one = kernel(rms_norm, array(4096, 1024), array(1024))
    assert one.count("bar") == 3
    assert kernel(rms_norm, array(4096, 64), array(64)).count("bar") == 1  # teams within a warp


def test_arithmetic_on_what_rows_share_is_done_once() -> None:
    one = kernel(weighted, array(4096, 256), array(256))
    before, rows = one.text.split("bar.sync", 1)
    assert (before.count("mul.rn.f32"), before.count("add.rn.f32")) == (4, 4)
    assert rows.count("mul.rn.f32") == 8  # of eight points with their weights
    assert (rows.count("ld.global.nc.v4.b32"), rows.count("ld.shared.v4.b32")) == (2, 2)


def test_a_row_that_is_too_long_is_held_in_part() -> None:
    one = kernel(layer_norm, array(4096, 8192), array(8192), array(8192))
    _, rows = one.text.split("bar.sync", 1)
    # Four steps of a thread: the row, half of the gain and of the bias from memory, the other half held.
    assert (rows.count("ld.global.nc.v4.b32"), rows.count("ld.shared.v4.b32")) == (4 + 4, 4)
    assert one.shared <= 33 << 10


# What rows share, and rows that do; threads have 64 registers in the largest blocks, and float64 takes two.
ROWS = [
    (layer_norm, "float32", (4096, 1024), (1024,), (1024,)),
    (layer_norm, "float32", (16384, 1024), (1024,), (1024,)),
    (layer_norm, "float32", (4096, 8192), (8192,), (8192,)),
    (layer_norm, "float64", (4096, 1000), (1000,), (1000,)),
    (layer_norm, "float16", (4096, 4096), (4096,), (4096,)),
    (layer_norm_down, "float32", (4096, 4096), (4096, 1), (4096, 1)),
    (layer_norm_down, "float64", (1000, 4096), (1000, 1), (1000, 1)),
    (residual_norm, "float32", (4096, 1024), (4096, 1024), (1024,)),
    (weighted, "float32", (16384, 64), (64,)),
]


@needs_ptxas
@pytest.mark.parametrize("sm", TARGETS)
@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case[0].__name__} {case[1]} {case[2]}")
def test_rows_that_share_something_assemble_without_spills(case: Any, sm: int) -> None:
    function, dtype, *shapes = case
    program = lowered(function, *(array(*shape, dtype=dtype) for shape in shapes))
    ((name, usage),) = assemble(program.ptx(TARGETS[sm]), f"sm_{sm}").kernels.items()
    assert (usage.stack, usage.spill_stores, usage.spill_loads) == (0, 0, 0)
    block = program.lowering.kernels[name][0].block
    least = 0.25 if dtype == "float64" and function is layer_norm else 0.5
    assert occupancy(usage.registers, usage.shared, block, sm) >= least


def test_a_sum_of_rows() -> None:
    one = kernel(sum_rows, array(64, 4096))
    assert one.accesses == {"ld.global.nc.v4.b32": 4, "st.global.b32": 1}
    assert (one.count("shfl"), one.count("bar")) == (8, 1)  # 5 in a warp, 3 between eight


def test_a_team_within_a_warp_needs_no_barrier() -> None:
    one = kernel(sum_rows, array(4096, 64))
    assert one.accesses == {"ld.global.nc.v4.b32": 1, "st.global.b32": 1}
    assert (one.count("shfl"), one.count("bar"), one.shared) == (4, 0, 0)  # 16 threads


def test_a_sum_of_columns_is_coalesced_and_cut_into_chunks() -> None:
    first, second = kernels(sum_columns, array(1024, 256))
    assert first.accesses == {"ld.global.nc.b32": 1, "st.global.b32": 1}
    assert (first.count("shfl"), first.count("bar")) == (0, 1)
    assert (second.count("bar"), second.name) == (0, "unite_1")


def test_the_sum_of_everything_is_cut_into_chunks() -> None:
    first, second = kernels(sum_all, array(1 << 18))
    assert first.accesses == {"ld.global.nc.v4.b32": 1, "st.global.b32": 1}
    assert (first.count("shfl"), first.count("bar")) == (8, 1)
    assert second.name == "unite_1"


def test_the_maximum_with_nan_is_one_instruction_where_there_is_one() -> None:
    old = kernel(max_rows, array(64, 4096))
    assert old.count(r"max\.f32") == old.count(r"setp\.nan\.f32") > 0
    new = kernel(max_rows, array(64, 4096), target=Target(80, 70))
    assert new.count(r"max\.NaN\.f32") > 0
    assert new.count(r"setp\.nan") == 0


# --- Places that the data name -------------------------------------------------------------------


def test_a_gather_reads_an_index_and_an_element() -> None:
    one = kernel(gathered, array(N), places())
    assert one.count(r"ld\.global\.nc\.b64") == 1
    assert one.count(r"ld\.global\.nc\.b32") == 1
    # The element, and the flag that tells of an index out of bounds.
    assert (one.accesses["st.global.b32"], one.accesses["st.global.b64"]) == (1, 1)


def test_a_scatter_adds_by_one_atomic_instruction() -> None:
    one = kernel(scatter_added, array(N), places(), array(N))
    assert one.count(r"(atom|red)\.\S*global\S*\.add\.f32") == 1
    assert one.count(r"(atom|red)") == 1
    assert one.count("bar") == 0


@pytest.mark.parametrize("name", ["bincount", "histogram"])
def test_counts_are_made_by_atomics(name: str) -> None:
    atomics = [one.count(r"(atom|red)\.\S*add") for one in ptx_of(name)]
    assert sum(atomics) >= 1


# --- Kernels of their own ------------------------------------------------------------------------


def test_a_running_sum_reads_and_writes_vectors() -> None:
    made = ptx_of("cumsum")
    assert any(one.count(r"ld\.global\S*\.v[24]") for one in made)
    assert any(one.count(r"st\.global\S*\.v[24]") for one in made)
    assert all(one.count("bar") <= 4 for one in made)


def test_a_product_goes_through_shared_memory_with_fused_arithmetic() -> None:
    one = max(ptx_of("matmul"), key=lambda one: one.count("fma"))
    assert one.count(r"fma\.rn\.f32") >= 64
    assert one.shared > 0 or one.count(r"ld\.shared") > 0
    assert one.count(r"ld\.global\S*\.v4") >= 1
    # Of each number that is read from shared memory several products are made.
    assert one.count(r"ld\.shared") * 2 <= one.count("fma")


def test_bias_and_activation_of_a_dense_layer_are_few_kernels() -> None:
    assert len(ptx_of("dense")) <= 2


def test_an_argmax_reads_vectors() -> None:
    assert ptx_of("argmax")[0].count(r"ld\.global\S*\.v[24]") >= 1


def test_an_argmax_unites_by_shuffles() -> None:
    assert ptx_of("argmax")[0].count("shfl") >= 5


# --- The table of ops ----------------------------------------------------------------------------


def test_the_table_of_ops_says_what_has_kernels() -> None:
    """What the samples show is what `library` says; where a dtype is on the host, the table names it."""
    script = Path(__file__).parent.parent / "docs" / "make_op_table.py"
    cuda = runpy.run_path(str(script))["cuda"]
    from dsl.ir.registry import OPS

    assert {cuda(OPS[name]) for name in ("add", "exp", "sum", "gather", "transpose")} == {"kernel"}
    told = {name: cuda(OPS[name]) for name in library.LOWERINGS}
    assert {name for name, how in told.items() if not how.startswith("library")} == set()
    assert cuda(OPS["svd"]) == "host"
    assert cuda(OPS["while"]) == "control"
    assert cuda(OPS["switch"]) == ""
