"""Native code of every elementwise op: compiled for each dtype combination of its samples, against the op's NumPy.

One module per op, one loop per dtype combination; operands are the samples and all combinations of special values.
Results are equal bit for bit, NaNs being one, but for what `TOLERANCES` names, in ulps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from test_op_sweep import bits, samples_of, special_values

from dsl.codegen import elementwise
from dsl.codegen.arrays import load_scalar, memory_type, store_scalar
from dsl.codegen.cpu import jit
from dsl.codegen.llvm import Function, Module, Value
from dsl.ir.registry import OPS, Op, Sample, Trait
from dsl.ir.types import BY_NAME, dtype_name

ELEMENTWISE = [op for op in OPS.values() if op.has(Trait.ELEMENTWISE)]

# Results that are rounded more than once, with the greatest distance in ulps.
FUNCTIONS = (
    "power float_power logaddexp logaddexp2 arctan2 cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos "
    "arctan sinh cosh tanh arcsinh arccosh arctanh erf erfc erfinv gamma lgamma digamma"
)
ULPS = {**dict.fromkeys(FUNCTIONS.split(), 4.0), "hypot": 1.0, "absolute": 1.0, "sign": 2.0}
ULPS.update({"multiply": 2.0, "square": 2.0, "sqrt": 2.0, "power": 40.0, "float_power": 40.0})
ULPS["digamma"] = 16.0  # SciPy is 10 ulps off for some negative arguments, where ours is within 1
COMPLEX_ONLY = {"absolute", "sign", "multiply", "square", "sqrt"}
every_op = pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


# -- compiling ---------------------------------------------------------------------------------------------------


def kernel(
    module: Module, name: str, op: Op, attrs: Any, inputs: Sequence[np.dtype], outputs: Sequence[np.dtype],
    **options: Any,
) -> None:  # fmt: skip
    """Add a loop over contiguous operands; the flag gets 1 if a check fails."""
    pointers = [("ptr noalias", f"a{k}") for k in range(len(inputs) + len(outputs))]
    fn = module.function(name, "void", [*pointers, ("ptr noalias", "flag"), ("i64", "n")])
    *arrays, flag, count = fn.params

    def check(wrong: Value, kind: str) -> None:
        assert kind == "negative_power"
        with fn.if_(wrong):
            fn.store(fn.as_value(1, "i64"), flag)

    with fn.loop(0, count) as i:
        places = [place(fn, dtype, array, i) for dtype, array in zip([*inputs, *outputs], arrays)]
        args = [load_scalar(fn, dtype, at) for dtype, at in zip(inputs, places)]
        found = elementwise.emit(fn, op.name, attrs, inputs, outputs, args, check, **options)
        assert len(found) == len(outputs)
        for dtype, value, at in zip(outputs, found, places[len(inputs) :]):
            store_scalar(fn, dtype, value, at)
    fn.ret()


def place(fn: Function, dtype: np.dtype, array: Value, i: Value) -> Value:
    index = fn.mul(i, 2) if dtype.kind == "c" else i
    return fn.gep(array, index, memory_type(dtype))


def run(
    code: jit.Code, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.dtype]
) -> Any:
    """Call a kernel on flat operands and return its results and whether a check failed."""
    size = inputs[0].size
    results = [np.zeros(size, dtype) for dtype in outputs]
    flag = np.zeros(1, np.int64)
    addresses = [ctypes.c_void_p(x.ctypes.data) for x in (*inputs, *results, flag)]
    ctypes.CFUNCTYPE(None)(code.address(name))(*addresses, ctypes.c_int64(size))
    return results, bool(flag[0])


# -- operands ----------------------------------------------------------------------------------------------------


def more_values(dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Return special values and, of each kind that has some, random ones over the whole range."""
    if dtype.kind == "b":
        return special_values(dtype)
    if dtype.kind in "iu":
        wide = rng.integers(0, 256, (9, dtype.itemsize), np.uint8).view(dtype)[:, 0]
        near = np.array([-1, -2, 3, 5, dtype.itemsize * 8, 31]).astype(dtype)
        return np.concatenate([special_values(dtype), near, wide])
    if dtype.kind == "c":
        return np.concatenate(
            [special_values(dtype), (rng.normal(size=12) * 3).astype(dtype).view(dtype)]
        )
    scale = 2.0 ** rng.integers(-30, 30, 12)
    return np.concatenate([special_values(dtype), (rng.normal(size=12) * scale).astype(dtype)])


def operands(op: Op, sample: Sample) -> list[np.ndarray]:
    """Return flat operands: the sample's, then all combinations of special and random ones."""
    rng = np.random.default_rng(5)
    values = [more_values(x.dtype, rng) for x in sample.inputs]
    if op.name == "power" and sample.inputs[1].dtype.kind == "i":
        values[1] = values[1][values[1] >= 0]
    grid = np.meshgrid(*values, indexing="ij")
    plain = np.broadcast_arrays(*sample.inputs)
    return [np.concatenate([p.reshape(-1), g.reshape(-1)]) for p, g in zip(plain, grid)]


def repeated(x: np.ndarray) -> np.ndarray:
    """Return a few hundred elements and some, so that vector loops run, and what comes after them."""
    return np.resize(x, max(x.size, 300) + x.size)


def outputs_of(op: Op, sample: Sample) -> tuple[list[np.ndarray], list[np.dtype]]:
    found = op.numpy(*operands(op, sample), **sample.attrs)
    arrays = [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]
    return arrays, [x.dtype for x in arrays]


# -- the sweep ---------------------------------------------------------------------------------------------------


def cases(op: Op) -> Iterator[tuple[str, Sample]]:
    for sample in samples_of(op):
        dtypes = [x.dtype for x in sample.inputs]
        if elementwise.supported(op.name, dtypes):
            names = [dtype_name(d) for d in [*dtypes, *sample.attrs.values()]]
            yield "_".join(names), sample


@every_op
def test_native_code_gives_what_numpy_gives(op: Op) -> None:
    module, chosen = Module(op.name), dict(cases(op))
    for name, sample in chosen.items():
        _, outputs = outputs_of(op, sample)
        kernel(module, name, op, sample.attrs, [x.dtype for x in sample.inputs], outputs)
    code = jit.load(module.text())
    for name, sample in chosen.items():
        expected, outputs = outputs_of(op, sample)
        inputs = operands(op, sample)
        got, failed = run(code, name, [repeated(x) for x in inputs], outputs)
        assert not failed
        for a, *accepted in zip(got, expected, *in_double(op, inputs, outputs)):
            assert (bits(op, a) == bits(op, repeated(a[: expected[0].size]))).all()
            a = a[: expected[0].size]
            ulps = tolerance(op, inputs[0].dtype)
            right = np.any([same(op, a, b, ulps) for b in accepted], axis=0)
            wrong = np.nonzero(~right)[0][:8]
            shown = [(*(x[k] for x in inputs), a[k], accepted[0][k]) for k in wrong]
            assert right.all(), f"{op.name} {name}: {(~right).sum()} of {a.size}, as {shown}"


def in_double(op: Op, inputs: list[np.ndarray], outputs: list[np.dtype]) -> list[list[np.ndarray]]:
    """Return what else is right: functions of complex64 rounded from complex128, which NumPy computes less well."""
    if inputs[0].dtype != np.complex64 or op.name not in ULPS:
        return []
    found = op.numpy(*(x.astype(np.complex128) for x in inputs))
    return [[found.astype(outputs[0])]]


def tolerance(op: Op, dtype: np.dtype) -> float:
    exact = op.name in COMPLEX_ONLY and dtype.kind != "c"
    return 0.0 if exact else ULPS.get(op.name, 0.0)


def same(op: Op, a: np.ndarray, b: np.ndarray, ulps: float) -> np.ndarray:
    """Whether elements are equal to the bit, or near where results are rounded."""
    equal = bits(op, a) == bits(op, b)
    equal = equal.all(axis=0) if a.dtype.kind == "c" else equal
    return np.asarray(equal | (distance(a, b) <= ulps) if ulps else equal)


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return distances in units in the last place of the larger part; NaN, zeros and infinities are far from others."""
    if a.dtype.kind == "c":
        size = np.maximum(abs(b.real), abs(b.imag))
        parts = [(a.real, b.real), (a.imag, b.imag)]
    else:
        size, parts = abs(b), [(a, b)]
    unit = np.spacing(np.where(np.isfinite(size), size, 1).astype(size.dtype)).astype(np.float64)
    far = [apart(x.astype(np.float64), y.astype(np.float64)) for x, y in parts]
    return np.asarray(np.max([gap / unit for gap in far], axis=0))


def apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    alike = (x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))
    comparable = np.isfinite(x) & np.isfinite(y) & ~((x == 0) & (y == 0))
    return np.where(alike, 0.0, np.where(comparable, abs(x - y), np.inf))


# -- single points -----------------------------------------------------------------------------------------------


def compiled(
    op: str, inputs: Sequence[np.dtype], outputs: Sequence[np.dtype], **options: Any
) -> jit.Code:
    module = Module(op)
    kernel(module, "k", OPS[op], {}, inputs, outputs, **options)
    return jit.load(module.text())


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("name", ["i8", "u8", "i32", "u32", "i64", "u64"])
def test_integers_divide_exactly(name: str, scalar: bool) -> None:
    dtype, rng = BY_NAME[name], np.random.default_rng(1)
    width = 8 * dtype.itemsize
    random = rng.integers(0, 1 << 64, (2, 20_000), np.uint64, endpoint=False)
    x, y = (random >> rng.integers(64 - width, 64, random.shape).astype(np.uint64)).astype(dtype)
    products = (x // np.maximum(y, 1)) * y + rng.integers(-2, 3, x.shape).astype(dtype)
    near = np.concatenate([x, -x, products, special_values(dtype), dtype.type(0) - y])
    by = np.resize(np.concatenate([y, y, y, special_values(dtype)[::-1], x]), near.shape)
    code = compiled("divmod", [dtype] * 2, [dtype] * 2, scalar=scalar)
    (quotient, remainder), _ = run(code, "k", [near, by], [dtype] * 2)
    expected = np.divmod(near, by)
    np.testing.assert_array_equal(quotient, expected[0])
    np.testing.assert_array_equal(remainder, expected[1])


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_remainders_of_quotients_of_any_size(name: str) -> None:
    dtype, rng = BY_NAME[name], np.random.default_rng(1)
    random = rng.integers(0, 256, (2, 20_000, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    x = np.concatenate([random[0], random[0], np.float64(random[1] * 3).astype(dtype)])
    y = np.concatenate([random[1], dtype.type(1.5) * random[0], random[1]])
    for op in ("fmod", "remainder", "floor_divide"):
        (got,), _ = run(compiled(op, [dtype] * 2, [dtype]), "k", [x, y], [dtype])
        expected = OPS[op].numpy(x, y)
        np.testing.assert_array_equal(bits(OPS[op], got), bits(OPS[op], expected))


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_half_precisions_round_once(source: str, target: str) -> None:
    wide, half = BY_NAME[source], BY_NAME[target]
    every = np.arange(1 << 16, dtype=np.uint16).view(half).astype(wide)
    middle = (every[:-1] + every[1:]) / 2
    around = [np.nextafter(middle, wide.type(side)) for side in (-np.inf, np.inf)]
    x = np.concatenate([every, middle, *around])
    module = Module("cast")
    kernel(module, "k", OPS["cast"], {"dtype": half}, [wide], [half])
    (got,), _ = run(jit.load(module.text()), "k", [x], [half])
    np.testing.assert_array_equal(bits(OPS["cast"], got), bits(OPS["cast"], x.astype(half)))


def test_negative_powers_of_integers_fail_the_check() -> None:
    dtype = BY_NAME["i32"]
    code = compiled("power", [dtype] * 2, [dtype])
    for exponent, wrong in ((3, False), (-1, True)):
        inputs = [np.full(5, 2, dtype), np.full(5, exponent, dtype)]
        assert run(code, "k", inputs, [dtype])[1] is wrong


@pytest.mark.parametrize("exponent", [0, 1, 2, 5, 31, 1000])
def test_powers_of_integers_with_a_constant_exponent(exponent: int) -> None:
    dtype, module = BY_NAME["i64"], Module("power")
    fn = module.function("k", "i64", [("i64", "x")])
    args = (fn.params[0], fn.as_value(exponent, "i64"))
    (found,) = elementwise.emit(fn, "power", {}, [dtype] * 2, [dtype], args, lambda *_: None)
    assert isinstance(found, Value)
    fn.ret(found)
    code = jit.load(module.text())
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("k"))
    assert call(-7) == int(np.int64(-7) ** np.int64(exponent))


EXPONENTS = [0, 1, 2, 3, -1, -2, 7, 50, 0.5, 1 + 1j]


def test_powers_of_complex_numbers() -> None:
    dtype = BY_NAME["c128"]
    code = compiled("power", [dtype] * 2, [dtype])
    base = more_values(dtype, np.random.default_rng(2))
    for exponent in EXPONENTS:
        inputs = [base, np.full(base.shape, exponent, dtype)]
        (got,), _ = run(code, "k", inputs, [dtype])
        assert same(OPS["power"], got, np.power(*inputs), 20.0).all()


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_of_complex_numbers_with_a_constant_exponent(exponent: complex) -> None:
    dtype, module, number = BY_NAME["c128"], Module("power"), complex(exponent)
    params = [("ptr", "x"), ("ptr", "y"), ("ptr", "flag"), ("i64", "n")]
    fn = module.function("k", "void", params)
    x, y, _, count = fn.params
    power = (fn.constant(number.real, "double"), fn.constant(number.imag, "double"))
    with fn.loop(0, count) as i:
        args = [load_scalar(fn, dtype, place(fn, dtype, x, i)), power]
        (found,) = elementwise.emit(fn, "power", {}, [dtype] * 2, [dtype], args, lambda *_: None)
        store_scalar(fn, dtype, found, place(fn, dtype, y, i))
    fn.ret()
    base = more_values(dtype, np.random.default_rng(2))
    (got,), _ = run(jit.load(module.text()), "k", [base], [dtype])
    assert same(OPS["power"], got, np.power(base, number), 20.0).all()


def test_fast_math_is_off_unless_the_module_asks() -> None:
    for fast in (False, True):
        module = Module("add")
        module.fastmath = fast  # type: ignore[attr-defined]
        kernel(module, "k", OPS["add"], {}, [BY_NAME["f32"]] * 2, [BY_NAME["f32"]])
        assert ("fadd float" in module.text()) is not fast


def test_what_is_expensive() -> None:
    f64, c128, i64 = BY_NAME["f64"], BY_NAME["c128"], BY_NAME["i64"]
    for op, dtypes in (
        ("divide", [f64] * 2),
        ("exp", [f64]),
        ("absolute", [c128]),
        ("remainder", [i64] * 2),
    ):
        assert elementwise.expensive(op, dtypes)
    for op, dtypes in (
        ("add", [f64] * 2),
        ("absolute", [f64]),
        ("multiply", [c128] * 2),
        ("cast", [f64]),
    ):
        assert not elementwise.expensive(op, dtypes)


# -- reductions --------------------------------------------------------------------------------------------------

REDUCTIONS = ["sum", "prod", "max", "min", "any", "all", "reduce_and", "reduce_or", "reduce_xor"]


def reduction(module: Module, name: str, op: str, dtype: np.dtype) -> None:
    """Add a loop that combines elements in memory, so that one function serves all representations."""
    params = [("ptr noalias", "x"), ("ptr noalias", "y"), ("ptr noalias", "flag"), ("i64", "n")]
    fn = module.function(name, "void", params)
    x, y, _, count = fn.params
    start = elementwise.identity(fn, op, dtype)
    assert (start is None) is (op in ("max", "min"))
    store_scalar(fn, dtype, load_scalar(fn, dtype, x) if start is None else start, y)
    with fn.loop(0 if start is not None else 1, count) as i:
        a, b = load_scalar(fn, dtype, y), load_scalar(fn, dtype, place(fn, dtype, x, i))
        store_scalar(fn, dtype, elementwise.combine(fn, op, dtype, a, b, reassociate=False), y)
    fn.ret()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    op, module = OPS[name], Module(name)
    arrays = {x.dtype: operands(op, sample)[0] for sample in samples_of(op) for x in sample.inputs}
    for dtype in arrays:
        reduction(module, dtype_name(dtype), name, dtype)
    code = jit.load(module.text())
    for dtype, x in arrays.items():
        for part in (x[:6], x, x[~np.isnan(x)]):
            (got,), _ = run(code, dtype_name(dtype), [part], [dtype])
            expected = reduce(partial(step, name), part)
            np.testing.assert_array_equal(bits(op, got[:1]), bits(op, np.asarray(expected)[None]))


def step(name: str, x: Any, y: Any) -> Any:
    """Combine two scalars as the reduction does; NumPy's loops over complex numbers fuse products with sums."""
    if name == "prod" and x.dtype.kind == "c":
        return x.dtype.type(
            complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)
        )
    return OPS[name].numpy(np.array([x, y]), axes=(0,))[()]


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_reductions_of_floats_use_vectors(op: str, name: str) -> None:
    dtype, module = BY_NAME[name], Module(op)
    type = memory_type(dtype)
    fn = module.function("k", type, [("ptr", "x"), ("i64", "n")])
    total = fn.variable(type, fn.load(type, fn.params[0]))
    with fn.loop(0, fn.params[1]) as i:
        item = load_scalar(fn, dtype, place(fn, dtype, fn.params[0], i))
        found = elementwise.combine(fn, op, dtype, total.get(), item, reassociate=True)
        assert isinstance(found, Value)
        total.set(found)
    fn.ret(total.get())
    assert "vector.body" in jit.optimized_text(module.text())
