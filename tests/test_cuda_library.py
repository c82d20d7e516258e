"""The library of the CUDA back end on the emulated GPU: each op against its NumPy function.

Graphs of one op run on the registry's samples, special values and empty arrays, on sizes that reach every kernel of the
op, with sizes that only the run knows, and on operands with any strides. The PTX has no local memory, as many barriers as
the algorithms need, and whole sectors of memory where an access could have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_op_sweep import (
    check_equal,
    in_other_sizes,
    one_node,
    outcome,
    samples_of,
    spread,
    tensor_types,
    types_of,
    with_specials,
)

import dsl
from dsl.codegen.cuda import toolkit
from dsl.codegen.cuda.device import Told
from dsl.codegen.cuda.emulated import EmulatedGpu
from dsl.codegen.cuda.frame import Context, Frame, Placed
from dsl.codegen.cuda.lower import Lowering
from dsl.codegen.cuda.ops import LOWERINGS
from dsl.codegen.cuda.program import DeviceProgram
from dsl.codegen.cuda.ptxas import assemble
from dsl.codegen.unroll import unroll
from dsl.errors import DslError
from dsl.ir.build import Builder
from dsl.ir.dims import Dim, Symbol
from dsl.ir.interpret import interpret
from dsl.ir.registry import OPS, Op, Sample
from dsl.ir.types import BY_NAME, TensorType

pytest.importorskip("llvmlite")

Arrays = Sequence[np.ndarray]
# Floats are added and multiplied in another order: in ulps of the largest result.
TOLERANCE = {"matmul": 64.0, "cumsum": 64.0, "cumprod": 64.0}
GPU = EmulatedGpu()
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


# -- one op --------------------------------------------------------------------------------------------------------


def program(name: str, types: Sequence[TensorType], attrs: Any) -> DeviceProgram:
    made = DeviceProgram(one_node(OPS[name], tuple(types), attrs))
    assert not made.lowering.fallbacks
    assert ".local" not in made.ptx()
    return made


def check(
    name: str, inputs: Arrays, types: Sequence[TensorType] | None = None, **attrs: Any
) -> None:
    """Compare what the device computes with what NumPy does, errors included."""
    made = program(name, types or tensor_types(tuple(inputs)), attrs)
    expected = outcome(lambda: OPS[name].numpy(*inputs, **attrs))
    compare(OPS[name], outcome(lambda: made(GPU, inputs)), expected)


def compare(op: Op, got: Any, expected: Any) -> None:
    if isinstance(got, tuple) or isinstance(expected, tuple):
        assert got == expected
        return
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if op.name not in TOLERANCE or b.dtype.kind in "biu":
            check_equal(op, [a], [b], 0.0)
            continue
        eps = float(ml_dtypes.finfo(b.dtype).eps) * TOLERANCE[op.name]
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        np.testing.assert_allclose(a, b, rtol=eps, atol=eps * largest)


def check_symbolic(name: str, inputs: Arrays, **attrs: Any) -> None:
    """Check with sizes that only the run knows."""
    known: dict[int, Dim] = {}

    def dim(n: int) -> Any:
        return known.setdefault(n, Symbol(f"n{n}", 2)) if n >= 2 else n

    types = [TensorType(x.dtype, tuple(map(dim, x.shape))) for x in inputs]
    try:
        types_of(OPS[name], tuple(types), attrs)
    except DslError:  # two unknown sizes that need not agree
        return
    check(name, inputs, types, **attrs)


def draw(dtype: str, *shape: int) -> np.ndarray:
    """Return random numbers, some of them equal."""
    kind = BY_NAME[dtype]
    if kind.kind in "biu":
        return RNG.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)
    found = np.round(RNG.normal(size=shape), 1)
    if kind.kind == "c":
        found = found + 1j * np.round(RNG.normal(size=shape), 1)
    return np.asarray(found).astype(kind)


def with_nans(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "fc":
        x.reshape(-1)[3::17] = np.nan
        x.reshape(-1)[5::13] *= -0.0
    if x.dtype.kind == "c":
        x.reshape(-1)[7::19] = complex(1, np.nan)
    return x


# -- samples -------------------------------------------------------------------------------------------------------


def cases(op: Op) -> Iterator[tuple[Arrays, Sample]]:
    rng = np.random.default_rng(11)
    for sample in samples_of(op):
        yield sample.inputs, sample
        yield from in_other_sizes(op, sample)
        if op.name not in ("matmul", "random_bits", "fold_in"):
            yield with_specials(op, sample, rng), sample


@pytest.mark.parametrize("name", sorted(LOWERINGS))
def test_samples(name: str) -> None:
    for inputs, sample in spread([*cases(OPS[name])], 14):
        check(name, [np.array(x, order="C") for x in inputs], **sample.attrs)


@pytest.mark.parametrize("name", sorted(LOWERINGS))
def test_samples_with_sizes_of_the_run(name: str) -> None:
    for sample in spread(samples_of(OPS[name]), 4):
        check_symbolic(name, sample.inputs, **sample.attrs)


# -- lines ---------------------------------------------------------------------------------------------------------

LINES = [
    ((1,), 0), ((5, 33), 1), ((3, 1024), 1), ((2, 2500), 1), ((2, 4100), 1), ((33, 5), 0), ((700, 7), 0), ((2, 300, 3), 1),
    ((20001,), 0), ((2, 20000), 1), ((4, 0), 0), ((0, 4), 0), ((4, 0), 1),
]  # fmt: skip


@pytest.mark.parametrize("name", ["cumsum", "cummax", "argmax", "argmin"])
def test_lines_of_every_length(name: str) -> None:
    for shape, axis in LINES:
        x = draw("f32", *shape)
        check(name, [x], axis=axis)
        check(name, [with_nans(x)], axis=axis)
        check_symbolic(name, [x], axis=axis)


@pytest.mark.parametrize("dtype", ["bool", "i8", "u16", "i64", "f64", "c64", "bf16"])
def test_lines_of_other_dtypes(dtype: str) -> None:
    for shape, axis in (((3, 1024), 1), ((20000,), 0), ((300, 7), 0)):
        for name in ("cummin", "argmin") if dtype == "bf16" else ("cumsum", "cummin", "argmin"):
            check(
                name,
                [with_nans(draw(dtype, *shape)) if name != "cumsum" else draw(dtype, *shape)],
                axis=axis,
            )


def test_products_of_complex_numbers_do_not_start_from_one() -> None:
    x = np.exp(1j * RNG.normal(size=2000)).astype(np.complex64)
    check("cumprod", [x], axis=0)
    x[0] = complex(np.inf, 0)  # (1 + 0j) * x would be NaN
    check("cumprod", [x[:1]], axis=0)


def test_half_precisions_are_summed_in_float32() -> None:
    x = np.full(5000, 1.001, np.float16)
    (got,) = program("cumsum", tensor_types((x,)), {"axis": 0})(GPU, [x])
    exact = np.cumsum(x.astype(np.float64))
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=1e-3)


def test_extremum_of_nothing() -> None:
    for shape in ((0,), (3, 0)):
        x = np.zeros(shape, np.float32)
        check("argmax", [x], axis=len(shape) - 1)
        n = Symbol("n")
        types = [TensorType(x.dtype, (*shape[:-1], n))]
        check("argmin", [x], types, axis=len(shape) - 1)


# -- order ---------------------------------------------------------------------------------------------------------

SORTED = [
    ((1,), 0), ((0,), 0), ((37, 100), 1), ((100, 37), 0), ((2, 300, 5), 1), ((1024,), 0), ((1025,), 0), ((3, 2500), 1),
    ((2100, 3), 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more"), [("sort", {"descending": False}), ("sort", {"descending": True}), ("argsort", {})])  # fmt: skip
def test_sorts_of_every_length(name: str, more: Any) -> None:
    for shape, axis in SORTED:
        x = with_nans(draw("f32", *shape))
        check(name, [x], axis=axis, stable=True, **more)
    x = with_nans(draw("f32", 2, 1030, 3))
    check_symbolic(name, [x], axis=1, stable=True, **more)


@pytest.mark.parametrize("dtype", ["bool", "i8", "u64", "f16", "bf16", "c64"])
def test_sorts_of_other_dtypes(dtype: str) -> None:
    for shape in ((5, 40), (1100,)):
        x = with_nans(draw(dtype, *shape))
        check("sort", [x], axis=len(shape) - 1, stable=True, descending=False)
        check("argsort", [x], axis=len(shape) - 1, stable=True)


def test_elements_by_their_places() -> None:
    for shape, axis in [*SORTED, ((0, 3), 0)]:
        n = shape[axis]
        places = np.array([n // 2, 0, n - 1, n // 3, n + 7, -1])
        for dtype in ("f32", "i64", "c64"):
            check("nth_element", [with_nans(draw(dtype, *shape)), places], axis=axis)
    check_symbolic("nth_element", [with_nans(draw("f32", 2, 1030, 3)), places], axis=1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches(side: str) -> None:
    for n in (0, 1, 7, 1000):
        a = np.sort(draw("f32", n))
        check("searchsorted", [a, with_nans(draw("f32", 40, 20))], side=side)
        check("searchsorted", [a, np.array(0.3, np.float32)], side=side)
        check_symbolic("searchsorted", [a, draw("f32", 40)], side=side)


def test_nonzero() -> None:
    for shape in ((1,), (5000,), (70, 90), (3, 4, 500), (0, 3)):
        x = draw("f32", *shape) * draw("bool", *shape)
        check("nonzero", [x])
        check("nonzero", [np.zeros(shape, bool)])
        check_symbolic("nonzero", [x])


@pytest.mark.parametrize("dtype", ["f32", "i64", "c64"])
def test_unique(dtype: str) -> None:
    for n in (1, 2, 1000, 1500):
        check("unique", [with_nans(draw(dtype, n))])
    check_symbolic("unique", [with_nans(draw(dtype, 1100))])


def test_what_depends_on_data_goes_on_to_other_ops() -> None:
    builder = Builder()
    (i,) = builder.node(
        OPS["nonzero"], [builder.param(TensorType(np.dtype(bool), (3000,)))], {}
    ).outputs
    (total,) = builder.node(OPS["cumsum"], [i], {"axis": 0}).outputs
    made = DeviceProgram(builder.finish([i, total]))
    x = draw("bool", 3000)
    got = made(GPU, [x])
    np.testing.assert_array_equal(got[0], np.nonzero(x)[0])
    np.testing.assert_array_equal(got[1], np.cumsum(np.nonzero(x)[0]))


def test_random_bits() -> None:
    keys = RNG.integers(0, 2**32, (3, 2), dtype=np.uint32)
    for dtype in ("u8", "u32", "u64"):
        check("random_bits", [keys[0]], shape=(40, 33), dtype=BY_NAME[dtype])
        check("random_bits", [keys], shape=(257,), dtype=BY_NAME[dtype])
        check("random_bits", [keys[0]], shape=(), dtype=BY_NAME[dtype])
    check("fold_in", [keys[:, None], np.arange(-2, 300)])


# -- products ------------------------------------------------------------------------------------------------------

PRODUCTS = [
    ((64, 64), (64, 64)), ((70, 33), (33, 65)), ((20, 33), (33, 130)), ((3, 1, 20, 17), (2, 17, 40)), ((200, 300), (300,)),
    ((300,), (300, 200)), ((3, 200, 30), (30,)), ((30,), (3, 30, 20)), ((20, 600), (600, 20)), ((64, 1000), (1000, 70)),
    ((9, 20000), (20000, 9)), ((20000,), (20000,)), ((200, 4), (4, 200)), ((50, 4, 5), (50, 5, 6)), ((5, 0), (0, 7)),
    ((50, 0), (0, 70)), ((0, 50), (50, 70)), ((2, 0, 5, 6), (6, 7)), ((0,), (0,)),
]  # fmt: skip


def test_products_of_every_shape() -> None:
    for left, right in PRODUCTS:
        check("matmul", [draw("f32", *left), draw("f32", *right)])


def test_products_with_sizes_of_the_run() -> None:
    for left, right in (((70, 33), (33, 65)), ((3, 20, 17), (17, 40)), ((200, 300), (300,)), ((300,), (300,))):  # fmt: skip
        check_symbolic("matmul", [draw("f32", *left), draw("f32", *right)])
    m, k, n = (Symbol(s) for s in "mkn")
    types = [TensorType(BY_NAME["f32"], (m, k)), TensorType(BY_NAME["f32"], (k, n))]
    check("matmul", [draw("f32", 5, 0), draw("f32", 0, 7)], types)


def test_products_of_sizes_that_do_not_fit() -> None:
    types = [TensorType(BY_NAME["f32"], (Symbol("m"), Symbol("k"))) for _ in range(2)]
    check("matmul", [draw("f32", 5, 6), draw("f32", 7, 8)], types)


@pytest.mark.parametrize("dtype", ["bool", "i8", "u16", "i32", "u64", "f16", "bf16", "f64", "c64", "c128"])  # fmt: skip
def test_products_of_other_dtypes(dtype: str) -> None:
    for left, right in (((33, 40), (40, 34)), ((7, 40), (40, 6)), ((40, 33), (33,))):
        check("matmul", [draw(dtype, *left), draw(dtype, *right)])


def test_large_tiles() -> None:
    check("matmul", [draw("f32", 1288, 12), draw("f32", 12, 1290)])


@pytest.mark.parametrize("dtype", ["f32", "c64"])
def test_factors_with_other_axes_are_not_copied(dtype: str) -> None:
    for left, right, x_axes, y_axes in (
        ((40, 50), (40, 60), (1, 0), (0, 1)), ((40, 50), (60, 50), (0, 1), (1, 0)), ((50, 40), (60, 50), (1, 0), (1, 0)),
        ((40, 50), (40,), (1, 0), (0,)), ((50,), (60, 50), (0,), (1, 0)), ((40, 3, 50), (40, 60, 3), (1, 2, 0), (2, 0, 1)),
    ):  # fmt: skip
        x, y = draw(dtype, *left), draw(dtype, *right)
        builder = Builder()
        params = [builder.param(t) for t in tensor_types((x, y))]
        pairs = zip(params, (x_axes, y_axes), strict=True)
        turned = [
            builder.node(OPS["transpose"], [p], {"axes": axes}).outputs[0] for p, axes in pairs
        ]
        graph = builder.finish(builder.node(OPS["matmul"], turned, {}).outputs)
        made = DeviceProgram(graph)
        assert len(made.lowering.kernels) == 1
        compare(OPS["matmul"], made(GPU, [x, y]), interpret(graph, [x, y]))


# -- any strides ---------------------------------------------------------------------------------------------------


def check_strided(name: str, inputs: Arrays, **attrs: Any) -> None:
    """Check operands that are parts of other arrays, as they are."""
    made = program(name, tensor_types(tuple(inputs)), attrs)
    given = [not x.ndim for x in inputs]
    made.lowering = Lowering(unroll(made.graph), given, [bool(x.ndim) for x in inputs])
    made._ptx.clear()
    made.__dict__.pop("text", None)
    frame = Frame(Context(GPU, {}, ""), {}, {})
    placed = [place_as_it_is(frame, x) for x in inputs]
    compare(OPS[name], made(GPU, placed), outcome(lambda: OPS[name].numpy(*inputs, **attrs)))


def place_as_it_is(frame: Frame, x: np.ndarray) -> Placed:
    whole = x if x.base is None else x.base
    assert isinstance(whole, np.ndarray)
    offset = x.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    strides = tuple(s // x.itemsize for s in x.strides)
    return Placed(frame.upload(whole).buffer, x.shape, offset, strides)


def test_operands_with_any_strides() -> None:
    x = draw("f32", 60, 140)[::2, ::3].T
    for axis in (0, 1):
        for name in ("cumsum", "argmax"):
            check_strided(name, [x], axis=axis)
        check_strided("sort", [x], axis=axis, stable=True, descending=False)
        check_strided("argsort", [x], axis=axis, stable=True)
    check_strided("nonzero", [x])
    check_strided("unique", [draw("f32", 90)[::2]])
    check_strided("searchsorted", [np.sort(draw("f32", 100))[::2], x], side="left")
    for y in (draw("f32", 40, 60)[5:35, ::2], draw("f32", 60)[::2]):
        check_strided("matmul", [x, y])
    keys = RNG.integers(0, 2**32, (6, 4), dtype=np.uint32)[::2, ::2]
    check_strided("random_bits", [keys], shape=(5, 3), dtype=BY_NAME["u32"])
    check_strided("fold_in", [keys, np.arange(6)[::2]])


# -- kernels -------------------------------------------------------------------------------------------------------

KERNELS = [
    ("matmul", [("f32", 256, 256), ("f32", 256, 256)], {}),
    ("matmul", [("c128", 100, 99), ("c128", 99, 101)], {}),
    ("matmul", [("f32", 2048, 2048), ("f32", 2048, 2048)], {}),
    ("cumsum", [("f32", 100000)], {"axis": 0}),
    ("argmax", [("f64", 100000)], {"axis": 0}),
    ("argsort", [("c128", 100000)], {"axis": 0, "stable": True}),
    ("nonzero", [("f32", 100, 100)], {}),
]


@pytest.mark.parametrize(("name", "operands", "attrs"), KERNELS)
def test_kernels_assemble_without_spills(name: str, operands: Any, attrs: Any) -> None:
    types = [TensorType(BY_NAME[dtype], tuple(shape)) for dtype, *shape in operands]
    ptx = program(name, types, attrs).ptx()
    assert not re.search(r"\t(ld|st)\.[bfsuv]\d", ptx), "an access that may be to any memory"
    if toolkit.ptxas() is None:
        return
    for usage in assemble(ptx, "sm_75").kernels.values():
        assert usage.stack == usage.spill_stores == usage.spill_loads == 0
        assert usage.shared <= 48 << 10


def counters(name: str, *inputs: np.ndarray, **attrs: Any) -> list[Any]:
    """Return what each launch of a program did."""
    made, GPU.launches = program(name, tensor_types(inputs), attrs), []
    try:
        made(GPU, inputs)
        return [found for _, found in GPU.launches]
    finally:
        GPU.launches = None


def test_accesses_are_whole_sectors() -> None:
    f32 = draw("f32", 128, 128)
    for found in (
        *counters("matmul", f32, f32),
        *counters("matmul", draw("f16", 128, 128), draw("f16", 128, 128)),
        *counters("cumsum", draw("f32", 4, 4096), axis=1),
        *counters("cumsum", draw("f32", 64, 512), axis=0),
        *counters("cumsum", draw("f32", 20000), axis=0),
        *counters("argmax", draw("f32", 4, 4096), axis=1),
        *counters("argmax", draw("f32", 64, 512), axis=0),
        *counters("sort", draw("f32", 8, 1024), axis=1, stable=True, descending=False),
        *counters("sort", draw("f32", 64, 64), axis=0, stable=True, descending=False),
    ):
        assert found.load_sectors == found.load_sectors_ideal
        assert found.store_sectors == found.store_sectors_ideal


def test_barriers() -> None:
    (product,) = counters("matmul", draw("f32", 64, 128), draw("f32", 128, 64))
    assert product.barriers == 1 + 128 // 16  # one for each slice, and one before
    (scan,) = counters("cumsum", draw("f32", 1, 4096), axis=1)
    assert scan.barriers == 4096 // 1024  # one for each tile
    (short,) = counters("cumsum", draw("f32", 5, 1024), axis=1)
    assert short.barriers == 0  # a warp for each row
    (network,) = counters("sort", draw("f32", 1024), axis=0, stable=True, descending=False)
    assert network.barriers == 15  # steps between warps: 1 + 2 + 3 + 4 + 5
    (extremum,) = counters("argmax", draw("f32", 1, 4096), axis=1)
    assert extremum.barriers == 1


# -- products by a library of the device -----------------------------------------------------------------------------


class WithLibrary(EmulatedGpu):
    """An emulated GPU that has something like cuBLAS."""

    products = 0

    def multiply(self, a: Told, b: Told, target: Told) -> None:
        self.products += 1
        found = np.matmul(self._seen(a), self._seen(b))
        self.memory.write(target.buffer.pointer + target.offset, np.ascontiguousarray(found))

    def _seen(self, told: Told) -> np.ndarray:
        size = told.dtype.itemsize
        flat = self.memory.read(told.buffer.pointer, told.dtype, told.buffer.nbytes // size)
        return np.lib.stride_tricks.as_strided(
            flat[told.offset // size :], told.shape, told.strides
        )


@pytest.mark.parametrize("turned", ["neither", "first", "second", "both"])
def test_a_device_with_a_library_multiplies_large_matrices_by_it(turned: str) -> None:
    device, rng = WithLibrary(11), np.random.default_rng(2)
    x, y = rng.normal(size=(130, 128)), rng.normal(size=(128, 140))
    a = np.ascontiguousarray(x.T) if turned in ("first", "both") else x
    b = np.ascontiguousarray(y.T) if turned in ("second", "both") else y

    def product(a, b):
        left = a.T if turned in ("first", "both") else a
        right = b.T if turned in ("second", "both") else b
        return left @ right + 1.0

    found = DeviceProgram(dsl.jit(product).lower(a, b).optimized)(device, [a, b])
    np.testing.assert_allclose(found[0], x @ y + 1.0, rtol=1e-12)
    assert device.products == 1
    small = DeviceProgram(dsl.jit(product).lower(a[:20, :20], b[:20, :20]).optimized)
    np.testing.assert_allclose(
        small(device, [a[:20, :20], b[:20, :20]])[0], product(a[:20, :20], b[:20, :20])
    )
    assert device.products == 1
