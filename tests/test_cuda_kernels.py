"""Users' kernels on a GPU, by the emulator: they fuse into the kernels around them, mean what Python and numba's own CUDA
simulator say, raise what they raise on the CPU; what GPUs cannot do is done by the host.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen.cuda import toolkit
from dsl.codegen.cuda.device import Target
from dsl.codegen.cuda.ptxas import assemble
from dsl.codegen.user import retarget
from dsl.errors import GradientError
from dsl.ir.types import BFLOAT16

numba = pytest.importorskip("numba")

DEVICE = "cuda-emulator:0"
TARGETS = [Target(75, 63), Target(90, 78)]
SCALE = 1.5
TABLE = np.array([2, 3, 5, 7, 11])
TABLE.setflags(write=False)
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


@pytest.fixture(autouse=True)
def device(gpu_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda` runs the same on hardware."""
    monkeypatch.setattr(sys.modules[__name__], "DEVICE", gpu_name)


def program(f: Any, *args: Any) -> Any:
    return f.lower(*args).device_program


def on_device(fn: Callable[..., Any], *args: Any, kernels: int | None = None) -> Any:
    """Call a function on the device; nothing of it may run on the host."""
    f = dsl.jit(fn, device=DEVICE)
    lowered = f.lower(*args)
    assert lowered.fallbacks() == []
    if kernels is not None:
        assert len(program(f, *args).lowering.kernels) == kernels
    return f(*args)


def in_python(fn: Callable[..., Any], *args: Any) -> np.ndarray:
    """Call a plain function of numbers for each element."""
    rows = zip(*(np.ravel(x).tolist() for x in np.broadcast_arrays(*args)))
    return np.array([fn(*row) for row in rows])


# -- kernels ------------------------------------------------------------------------------------------------------------


@dsl.kernel
def softclip(x, limit):
    if x > limit:
        return limit + math.log1p(x - limit)
    return x


@dsl.kernel
def arithmetic(a, b):
    return a * b + a - b


@dsl.kernel
def escape(re, im):
    """How long a point stays near the origin: a loop that each thread leaves when it likes."""
    x = y = 0.0
    for k in range(30):
        x, y = x * x - y * y + re, 2 * x * y + im
        if x * x + y * y > 4:
            return k
    return 30


@dsl.kernel
def collatz(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@dsl.kernel
def square(x):
    return x * x


@numba.njit
def cube(x):
    return x * x * x


@dsl.kernel
def combined(x):
    return SCALE * square(x) + cube(x)


@dsl.kernel
def added(x):
    return square(x) + softclip(3 * x, 2.0)


@dsl.kernel
def root(x):
    if x < 0:
        raise ValueError("negative")
    return math.sqrt(x)


@dsl.kernel
def told(x):
    if x < 0:
        raise ValueError(x)
    return x


@dsl.kernel
def looked_up(k):
    return TABLE[k]


@dsl.kernel
def with_memory(x):
    parts = np.zeros(3)
    parts[0] = x
    return parts.sum()


@dsl.kernel
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)


@dsl.kernel
def transcendental(x):
    return math.exp(-x) + math.sin(x) * math.atan2(x, 2.0) + math.erf(x) + x**1.5


@dsl.kernel
def rounded(x, y):
    return x % y, x // y, np.fmod(x, y), float(round(y)), math.floor(y) + math.ceil(y)


@dsl.kernel
def polar(z):
    return abs(z), math.atan2(z.imag, z.real)


@dsl.kernel
def quotient(a, b):
    return (a * a - b) / (b + 3)


@dsl.kernel(out=lambda x, decay: x)
def smooth(x, decay, y):
    last = 0.0
    for i in range(x.shape[0]):
        if x[i] == 0.5:
            raise ValueError("a half")
        last = decay * last + (1 - decay) * x[i]
        y[i] = last


# -- fusion -------------------------------------------------------------------------------------------------------------


def test_a_kernel_between_ops_is_one_launch_without_calls() -> None:
    x = np.linspace(0, 3, 1000)
    found = on_device(lambda x: softclip(x * 2, 1.0) + 1, x, kernels=1)
    np.testing.assert_allclose(found, in_python(softclip.py_func, x * 2, 1.0) + 1, rtol=1e-13)


@pytest.mark.parametrize("kernel", [square, combined, collatz, looked_up, quotient])
def test_simple_kernels_are_inlined(kernel: Any) -> None:
    dtype = np.int64 if kernel in (collatz, looked_up) else np.float64
    args = [np.ones(100, dtype)] * len(kernel._definition.inputs)
    ptx = program(dsl.jit(lambda *xs: kernel(*xs) + 1, device=DEVICE), *args).ptx()
    assert not re.search(r"^\s*call|\.func\b|\.local\b", ptx, re.M)


def test_a_kernel_fuses_into_a_reduction() -> None:
    x = np.linspace(0, 3, 1000)
    found = on_device(lambda x: softclip(x, 1.0).sum(), x, kernels=1)
    np.testing.assert_allclose(found, in_python(softclip.py_func, x, 1.0).sum(), rtol=1e-13)


def test_loops_are_not_vectors() -> None:
    """Numba is told to leave vectors to whoever knows the target."""
    text = retarget.retarget(collatz._definition.source().code((_argument("i8"),)))
    assert isinstance(text, retarget.Portable)
    assert not re.search(r"<\d+ x ", text.text)


def _argument(dtype: str) -> Any:
    from dsl.codegen.user.code import Argument

    return Argument(np.dtype(dtype))


@pytest.mark.skipif(toolkit.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(
    "kernel", [softclip, escape, combined, root, looked_up, transcendental, rounded, told, polar]
)
def test_ptxas_takes_it(kernel: Any, target: Target) -> None:
    dtype = {"looked_up": np.int64, "polar": np.complex128}.get(kernel.__name__, np.float64)
    args = [np.ones(100, dtype)] * len(kernel._definition.inputs)
    f = dsl.jit(lambda *xs: kernel(*xs), device=DEVICE)
    assemble(program(f, *args).ptx(target), target.arch)


# -- what they mean -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTEGERS, "f4", "f8", "c8", "c16"])
def test_dtypes(dtype: str) -> None:
    a, b = (np.arange(1, 100) * k % 50 for k in (7, 11))
    a, b = a.astype(dtype), b.astype(dtype)
    found = on_device(lambda a, b: arithmetic(a, b), a, b, kernels=1)
    expected = dsl.jit(lambda a, b: arithmetic(a, b))(a, b)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_half_precisions(dtype: Any) -> None:
    x = np.linspace(0, 3, 100).astype(dtype)
    found = on_device(lambda x: softclip(x, 1.0), x)
    expected = in_python(softclip.py_func, x.astype(np.float32), 1.0)
    np.testing.assert_allclose(
        found.astype(np.float32), expected.astype(dtype).astype("f4"), rtol=0.01
    )


def test_bools() -> None:
    both = dsl.kernel(lambda a, b: a and not b)
    a, b = np.arange(8) % 2 == 0, np.arange(8) > 3
    np.testing.assert_array_equal(on_device(lambda a, b: both(a, b), a, b), a & ~b)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_numbers_and_several_results(dtype: str) -> None:
    z = (np.linspace(-2, 2, 50) + 1j * np.linspace(3, -1, 50)).astype(dtype)
    radius, angle = on_device(lambda z: polar(z), z, kernels=1)
    np.testing.assert_allclose(radius, np.abs(z), rtol=1e-6)
    np.testing.assert_allclose(angle, np.angle(z), rtol=1e-6)


def test_remainders_are_exact() -> None:
    x, y = np.array([1e18, -7.5, 7.5, 5e-324, 1e300]), np.array([3.0, 2.0, -2.0, 1.0, 7.1])
    found = on_device(lambda x, y: rounded(x, y), x, y)
    for one, expected in zip(found, zip(*map(rounded.py_func, x.tolist(), y.tolist()))):
        np.testing.assert_array_equal(one, np.array(expected, one.dtype))


def test_branches_and_loops() -> None:
    re, im = np.linspace(-2, 1, 200), np.linspace(-1, 1, 200)
    found = on_device(lambda re, im: escape(re, im), re, im, kernels=1)
    np.testing.assert_array_equal(found, in_python(escape.py_func, re, im))
    n = np.arange(1, 100)
    np.testing.assert_array_equal(on_device(lambda n: collatz(n), n), in_python(collatz.py_func, n))


def test_kernels_call_kernels_and_numbas_functions() -> None:
    x = np.linspace(-2, 2, 100)
    np.testing.assert_allclose(
        on_device(lambda x: combined(x) - 1, x, kernels=1), 1.5 * x**2 + x**3 - 1, atol=1e-14
    )


def test_constant_arrays_are_tables() -> None:
    k = np.arange(-5, 5)
    np.testing.assert_array_equal(on_device(lambda k: looked_up(k), k), TABLE[k])


def test_on_numbers_of_the_device_and_in_its_loops() -> None:
    def halved(x):
        s = x.sum()
        while s > 1.0:
            s = root(s) / 2
        return s * x

    x = np.arange(1.0, 5.0)
    found = on_device(halved, x)
    assert "while" in dsl.jit(halved, device=DEVICE).ir(x, stage="kernels")
    np.testing.assert_allclose(found, _halved(x))


def _halved(x: np.ndarray) -> np.ndarray:
    s = x.sum()
    while s > 1.0:
        s = math.sqrt(s) / 2
    return s * x


def test_two_kernels_that_call_the_same_function() -> None:
    """Each brings a module; what they share is linked once."""
    other = dsl.kernel(lambda x: math.exp(x) * 2)
    first = dsl.kernel(lambda x: math.exp(-x))
    x = np.linspace(0, 1, 50)
    found = on_device(lambda x: first(x) + other(x) + np.exp(x), x, kernels=1)
    np.testing.assert_allclose(found, np.exp(-x) + 3 * np.exp(x), rtol=1e-14)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (4, 5, 6)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 2.0)
    np.testing.assert_array_equal(on_device(lambda x: square(x) + 1, x), np.full(shape, 5.0))


def test_without_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dsl's own functions are used, as in the rest of the program."""
    monkeypatch.setattr(toolkit, "libdevice", lambda: None)
    f = dsl.jit(lambda x: transcendental(x) + 1, device=DEVICE)
    x = np.linspace(0.1, 3, 50)
    assert "@__nv_" not in "".join(program(f, x).link)
    np.testing.assert_allclose(f(x), in_python(transcendental.py_func, x) + 1, rtol=1e-14)


# -- the third referee ----------------------------------------------------------------------------------------------------

_SIMULATED = """
import json, math, sys
import numpy as np
from numba import cuda

given = json.load(sys.stdin)
scope = {"math": math, "np": np}
for name, text in given["functions"]:
    exec(text, scope)
    scope[name] = cuda.jit(device=True)(scope[name])
function = scope[name]
names = [f"x{k}" for k in range(len(given["args"]))]
reads = ", ".join(f"{n}[i]" for n in names)
exec(f'''
def run({", ".join(names)}, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = function({reads})
''', {"cuda": cuda, "function": function}, scope)
args = [np.array(x, d) for x, d in given["args"]]
out = np.empty(len(args[0]), given["dtype"])
cuda.jit(scope["run"])[-(-len(out) // 32), 32](*args, out)
json.dump(out.tolist(), sys.stdout)
"""


def simulated(kernels: list[Any], dtype: Any, *args: np.ndarray) -> np.ndarray:
    """Call the last of some functions, which may call the ones before, in numba's CUDA simulator."""
    import inspect

    texts = [textwrap.dedent(inspect.getsource(k.py_func)).partition("def ") for k in kernels]
    functions = [(k.__name__, f"def {text[2]}") for k, text in zip(kernels, texts)]
    given = {
        "functions": functions,
        "args": [(x.tolist(), x.dtype.str) for x in args],
        "dtype": np.dtype(dtype).str,
    }
    done = subprocess.run(
        [sys.executable, "-c", _SIMULATED],
        input=json.dumps(given),
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if re.search("No module named 'numba.cuda'|cannot import name 'cuda'", done.stderr):
        pytest.skip("numba has no CUDA here")
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout), dtype)


REFEREED = {
    "softclip": ([softclip], [np.linspace(0, 3, 64), np.ones(64)]),
    "escape": ([escape], [np.linspace(-2, 1, 64), np.linspace(-1, 1, 64)]),
    "added": ([square, softclip, added], [np.linspace(0, 2, 64)]),
    "collatz": ([collatz], [np.arange(1, 65)]),
    "transcendental": ([transcendental], [np.linspace(0.1, 4, 64)]),
    "quotient": ([quotient], [np.linspace(-2, 2, 64), np.linspace(0, 9, 64)]),
    "arithmetic": ([arithmetic], [np.arange(64), np.arange(64)[::-1].copy()]),
}


@pytest.mark.parametrize("name", REFEREED)
def test_numbas_simulator_agrees(name: str) -> None:
    kernels, args = REFEREED[name]
    found = on_device(lambda *xs: kernels[-1](*xs), *args)
    np.testing.assert_allclose(found, simulated(kernels, found.dtype, *args), rtol=1e-13)


# -- errors ---------------------------------------------------------------------------------------------------------------


def test_an_exception_comes_out_with_the_line_that_raised_it() -> None:
    f = dsl.jit(lambda x: root(x) + 1, device=DEVICE)
    with pytest.raises(ValueError, match=r"^negative") as info:
        f(np.array([4.0, -1.0]))
    assert 'raise ValueError("negative")' in info.value.__notes__[0]
    assert "root(x) + 1" in info.value.__notes__[1]
    np.testing.assert_array_equal(f(np.array([4.0, 9.0])), [3.0, 4.0])


def test_a_message_made_at_run_time_comes_out_whole() -> None:
    f = dsl.jit(lambda x: told(x), device=DEVICE)
    assert f.lower(np.ones(3)).fallbacks() == []
    with pytest.raises(ValueError, match=r"^-2.0"):
        f(np.array([1.0, -2.0]))


def test_an_index_out_of_bounds_in_a_kernel() -> None:
    with pytest.raises(IndexError):
        dsl.jit(lambda k: looked_up(k), device=DEVICE)(np.array([0, 5]))


def test_an_exception_in_a_reduction_and_on_a_number() -> None:
    for fn in (lambda x: root(x).sum(), lambda x: root(x.sum()) * x):
        with pytest.raises(ValueError, match="negative"):
            dsl.jit(fn, device=DEVICE)(np.array([1.0, -3.0]))


def test_the_first_of_two_errors_is_raised() -> None:
    """The host meets the second one, in what the first one left behind."""
    f = dsl.jit(lambda x: smooth(root(x) + 0.5, 0.5), device=DEVICE)
    with pytest.raises(ValueError, match="negative"):
        f(np.array([4.0, -1.0]))


# -- what the host does ---------------------------------------------------------------------------------------------------


def test_a_kernel_of_arrays_runs_on_the_host_and_says_so() -> None:
    f = dsl.jit(lambda x: smooth(x * 2, 0.5).max(), device=DEVICE)
    x = np.arange(4.0)
    np.testing.assert_array_equal(f(x), 4.25)
    (line,) = f.lower(x).fallbacks()
    assert "kernel_smooth_" in line
    assert "test_cuda_kernels.py" in line
    assert "on the host: kernel_smooth_" in f.ir(x, stage="kernels")


@pytest.mark.parametrize(
    ("kernel", "reason"), [(with_memory, "NRT_MemInfo"), (factorial, "it calls itself")]
)
def test_what_gpus_cannot_do_runs_on_the_host(kernel: Any, reason: str) -> None:
    f = dsl.jit(lambda x: kernel(x) + 1, device=DEVICE)
    x = np.arange(1, 6) if kernel is factorial else np.arange(5.0)
    np.testing.assert_array_equal(f(x), in_python(kernel.py_func, x) + 1)
    (line,) = f.lower(x).fallbacks()
    assert f"kernel_{kernel.__name__}_" in line
    found = retarget.retarget(kernel._definition.source().code((_argument(x.dtype.str),)))
    assert isinstance(found, retarget.Unportable)
    assert reason in found.reason


def test_on_numbers_too() -> None:
    def f(x):
        s = x.sum()
        while s > 1.0:
            s = with_memory(s) / 2
        return s * x

    x = np.arange(4.0)
    np.testing.assert_array_equal(dsl.jit(f, device=DEVICE)(x), 0.75 * x)


# -- gradients --------------------------------------------------------------------------------------------------------------


@dsl.custom_vjp
def clipped(x):
    return softclip(x, 1.0)


@dsl.kernel
def slope(x):
    return 1 / x if x > 1 else 1.0


clipped.defvjp(lambda x: (softclip(x, 1.0), x), lambda x, g: (g * slope(x),))


def test_a_rule_of_kernels_is_differentiated_on_the_device() -> None:
    x = np.linspace(0, 3, 40)
    found = on_device(dsl.grad(lambda x: (clipped(x) ** 2).sum()), x)
    expected = 2 * in_python(softclip.py_func, x, 1.0) * in_python(slope.py_func, x)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_without_a_rule_there_is_no_gradient() -> None:
    with pytest.raises(GradientError, match="no derivative rule"):
        dsl.jit(dsl.grad(lambda x: square(x).sum()), device=DEVICE)(np.ones(3))


# -- intrinsics -------------------------------------------------------------------------------------------------------------

_DOUBLES = {"is.fpclass": "double %x, i32 3", "fptosi.sat": "double %x", "fptoui.sat": "double %x"}


def _call(name: str) -> str:
    """A function that calls an intrinsic with the types that numba uses."""
    result, args, types = "double", "double %x", "f64"
    if name in ("fma", "fmuladd"):
        args = "double %x, double %y, double %x"
    elif name in ("copysign", "maximum", "maxnum", "minimum", "minnum"):
        args = "double %x, double %y"
    elif name in _DOUBLES:
        result, args = ("i1" if name == "is.fpclass" else "i64"), _DOUBLES[name]
        types = "f64" if name == "is.fpclass" else "i64.f64"
    elif name in ("bitreverse", "bswap", "ctpop"):
        result, args, types = "i64", "i64 %n", "i64"
    elif name in ("abs", "ctlz", "cttz"):
        result, args, types = "i64", "i64 %n, i1 false", "i64"
    elif name in ("fshl", "fshr"):
        result, args, types = "i64", "i64 %n, i64 %m, i64 %n", "i64"
    elif name in ("scmp", "ucmp"):
        result, args, types = "i8", "i64 %n, i64 %m", "i8.i64"
    elif name in ("smax", "smin", "umax", "umin") or name.endswith(".sat"):
        result, args, types = "i64", "i64 %n, i64 %m", "i64"
    elif name.endswith(".with.overflow"):
        result, args, types = "{i64, i1}", "i64 %n, i64 %m", "i64"
    elif name.startswith("vector.reduce.f"):
        args, types = "double %x, <4 x double> %v", "v4f64"
    elif name.startswith("vector.reduce."):
        result, args, types = "i64", "<4 x i64> %w", "v4i64"
    params = re.sub(r" (%\w+|\w+)(?=,|$)", "", args)
    return (
        f"declare {result} @llvm.{name}.{types}({params})\n"
        f"define {result} @{name.replace('.', '_')}(double %x, double %y, i64 %n, i64 %m, <4 x double> %v, <4 x i64> %w) {{\n"
        f"  %r = call {result} @llvm.{name}.{types}({args})\n  ret {result} %r\n}}\n"
    )


def test_llvm_selects_the_intrinsics_that_kernels_may_have(tmp_path: Path) -> None:
    """In a process of its own: LLVM ends it otherwise."""
    of_memory = ("assume", "expect", "experimental", "lifetime", "mem")
    names = sorted(n for n in retarget._INTRINSICS if not n.startswith(of_memory))
    assert len(names) > 50
    path = tmp_path / "calls.ll"
    path.write_text("".join(map(_call, names)))
    code = f"""
from dsl.codegen.cuda.compile import compile_ptx
from dsl.codegen.cuda.device import Target
print(compile_ptx(open({str(path)!r}).read(), Target(75, 63)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(f" {name.replace('.', '_')}(" in done.stdout for name in names)
    assert "call" not in re.sub(r"//.*", "", done.stdout)
