"""Elementary functions as scalar LLVM IR that LLVM's loop vectoriser turns into straight vector code.

`call(fn, "exp", x)` emits a call of `@dsl.exp.f32` or `@dsl.exp.f64`, after the argument's type, and adds that
function to the module. It is always inlined. There are no branches or calls in it, and no tables but one in a register,
see `by_register`: selection is by `select`, 2**n is put together from bits. (sin, cos, tan and fmod call libm for
arguments that hardly occur, in a way that does not keep a loop from being vectorised: see `reals.Body.rarely`.) Where
`fn.lanes` tells how the loop around will be vectorised, as in kernels, the call is one of a routine instead, see
`dsl.codegen.library.elementary`; or a short function's instructions are put in its place, where `fn.spliced` asks for
that.

Code that computes one number at a time (`fn.singly`) calls libm for what is in `OF_LIBM`: last bits may be others.

Special values are NumPy's and SciPy's: NaN, infinities, signed zeros, subnormal numbers, overflow. The largest errors
found over the whole range, in units of the last place (`tests/test_math.py` with 1.5 million samples of each part of
it; `erfinv` and `digamma` in f64: 5000 in all), and the best time for an element in a loop over data in the L2 cache,
one thread with AVX-512 of a shared Emerald Rapids (tanh: with AVX2 of a Zen 3; exp and exp2 in f32: of a Zen 4):

| function | ulp, f32 | ulp, f64 | ns, f32 | ns, f64 |
| --- | --- | --- | --- | --- |
| exp | 1.74 | 0.93 | 0.14 | 0.70 |
| exp2 | 1.01 | 0.90 | 0.13 | 0.67 |
| expm1 | 1.13 | 1.16 | 0.41 | 0.96 |
| log | 0.87 | 0.84 | 0.41 | 1.00 |
| log2 | 1.11 | 0.99 | 0.44 | 1.09 |
| log10 | 0.96 | 0.90 | 0.46 | 1.12 |
| log1p | 0.99 | 0.86 | 0.55 | 1.47 |
| pow | 0.92 | 1.15 | 1.47 | 3.77 |
| logaddexp | 0.75 | 0.74 | 1.19 | 3.29 |
| logaddexp2 | 0.92 | 0.84 | 1.23 | 3.49 |
| sin | 0.56 | 1.04 | 0.81 | 1.36 |
| cos | 0.56 | 1.08 | 0.83 | 1.40 |
| tan | 1.18 | 1.24 | 1.07 | 1.74 |
| arcsin | 1.10 | 1.21 | 0.33 | 1.03 |
| arccos | 1.09 | 1.17 | 0.38 | 1.06 |
| arctan | 1.21 | 1.18 | 0.34 | 1.15 |
| arctan2 | 1.48 | 1.51 | 0.46 | 1.41 |
| sinh | 0.89 | 0.83 | 0.49 | 1.09 |
| cosh | 0.73 | 0.84 | 0.46 | 0.99 |
| tanh | 1.75 | 1.86 | 0.35 | 1.10 |
| arcsinh | 1.17 | 1.16 | 1.09 | 2.93 |
| arccosh | 1.24 | 1.18 | 1.09 | 2.86 |
| arctanh | 1.09 | 1.02 | 0.90 | 2.33 |
| erf | 1.07 | 1.15 | 0.53 | 2.44 |
| erfc | 1.02 | 1.08 | 1.28 | 3.92 |
| erfinv | 1.58 | 1.34 | 1.37 | 5.57 |
| gamma | 0.50 | 1.42 | 3.82 | 7.36 |
| lgamma | 0.51 | 1.68 | 6.22 | 9.11 |
| digamma | 0.50 | 1.70 | 5.49 | 5.35 |
| cbrt | 0.69 | 0.50 | 0.48 | 1.17 |
| hypot | 0.98 | 0.99 | 0.33 | 1.12 |
| fmod | 0.00 | 0.00 | 0.67 | 0.98 |

`tanh` of float32 in `1 + tanh(x)` and the like, see `dsl.codegen.beside_one`, errs by 1.6 units of 1's last place at most, with AVX-512.

Not everywhere, though: where `lgamma` and `digamma` of negative numbers cross zero, and where `logaddexp` and
`logaddexp2` do (as in NumPy), terms cancel, and the error is that of the terms: as much as 2 units of 4, or 1 of 1.

Without fused multiply-adds (`HAS_FMA`) the tests allow 3 units. Coefficients were found with `fit`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from dsl.codegen.llvm import Function, Value
from dsl.codegen.math import by_register
from dsl.codegen.math.digamma import digamma
from dsl.codegen.math.erfinv import erfinv
from dsl.codegen.math.error_function import erf, erfc
from dsl.codegen.math.exponential import exp, exp2, expm1
from dsl.codegen.math.gamma import gamma, lgamma
from dsl.codegen.math.hyperbolic import (
    arccosh,
    arcsinh,
    arctanh,
    cosh,
    sinh,
    tanh,
    tanh_beside_one,
)
from dsl.codegen.math.inverse_trigonometric import arccos, arcsin, arctan, arctan2
from dsl.codegen.math.logarithm import log, log1p, log2, log10
from dsl.codegen.math.power import pow
from dsl.codegen.math.reals import FORMATS, Body, Real
from dsl.codegen.math.remainder import fmod
from dsl.codegen.math.roots import cbrt, hypot
from dsl.codegen.math.sums import logaddexp, logaddexp2
from dsl.codegen.math.trigonometric import cos, sin, tan
from dsl.codegen.vector_unit import register_bytes

__all__ = ["FUNCTIONS", "call", "routine_name"]

HAS_FMA: bool | None = None
"""Whether to emit fused multiply-adds, which LLVM makes calls of libm for where the CPU has none; None asks the CPU."""

HAS_SCALING: bool | None = None
"""Whether to multiply by powers of two with LLVM's function for that, an instruction with AVX-512; None asks the CPU."""

_PURE = "nounwind willreturn memory(none)"
_SHORT = 30  # instructions
_NAME = re.compile(r"%\w+")

FUNCTIONS: dict[str, Callable[..., Real]] = {
    function.__name__: function
    for function in (
        exp, exp2, expm1, log, log2, log10, log1p, pow, logaddexp, logaddexp2,
        sin, cos, tan, arcsin, arccos, arctan, arctan2,
        sinh, cosh, tanh, arcsinh, arccosh, arctanh,
        erf, erfc, erfinv, gamma, lgamma, digamma, cbrt, hypot, fmod,
    )
}  # fmt: skip
"""What there is, under NumPy's names (`gamma`, `lgamma` … after `dsl`'s ops), each as the function that emits it."""

BESIDE_ONE: dict[str, str] = {"tanh": "tanh_beside_one"}
"""Functions with results between -1 and 1, and what is in their place where sums with constants of at least 1 alone read them."""

_EMITTERS = {**FUNCTIONS, "tanh_beside_one": tanh_beside_one}


LIBDEVICE = {
    **{
        n: n
        for n in (
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "pow",
            "sin",
            "cos",
            "tan",
            "sinh",
        )
    },
    **{n: n for n in ("cosh", "tanh", "erf", "erfc", "cbrt", "hypot", "fmod")},
    **{f"arc{n}": f"a{n}" for n in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
}
"""Those that NVIDIA's library has as good, with its names; its gamma functions and `erfinv` are less exact than ours."""


OF_LIBM = frozenset(("exp", "exp2", "log", "log2", "pow", "sin", "cos"))
"""Those of float64 that libm has as exact, below 1 ulp, and sooner for one number whose result is waited for: by tables and branches."""


def call(fn: Function, name: str, *args: Value) -> Value:
    """Emit a call of one of `FUNCTIONS`, all arguments float or all double, which is also the result's type.

    Code for a GPU calls NVIDIA's functions where they are to be had.
    """
    if fn.module.libdevice and name in LIBDEVICE:
        own = f"__nv_{LIBDEVICE[name]}{'f' if args[0].type == 'float' else ''}"
        return fn.call(args[0].type, own, *args)
    if fn.singly and args[0].type == "double" and name in OF_LIBM:
        return _call_libm(fn, name, *args)
    if fn.lanes is None:
        return inline(fn, name, *args)
    if fn.spliced is not None and is_short(name, args[0].type):
        fn.spliced.append(name)
        return splice(fn, name, *args)
    return _call_routine(fn, name, *args)


def is_short(name: str, type: str) -> bool:
    """Tell whether a function is so short that a call, around which registers must be saved, takes as long again."""
    return 0 < len(define(name, type).steps) <= _SHORT


def splice(fn: Function, name: str, *args: Value) -> Value:
    """Emit a function's instructions in the place of a call."""
    definition = define(name, args[0].type)
    for external, (result, params, attributes) in definition.declarations.items():
        fn.module.declare(external, result, params, attributes)
    names = {f"%{label}": fn.use(arg).text for label, arg in zip("xyz", args)}
    for made, text in definition.steps:
        last = fn.define(definition.result, _NAME.sub(lambda found: names[found[0]], text))
        names[made] = last.text
    return last


def arity(name: str) -> int:
    """Return how many arguments one of `FUNCTIONS` takes."""
    return _EMITTERS[name].__code__.co_argcount


def _call_routine(fn: Function, name: str, *args: Value) -> Value:
    """Emit a call of the library's routine; the attribute tells LLVM's vectoriser which ones there are for vectors."""
    type, many = args[0].type, "v" * len(args)
    symbol = routine_name(name, type, 1)
    variants = []
    for lanes in fn.lanes or ():
        wide, kind = routine_name(name, type, lanes), f"<{lanes} x {type}>"
        fn.module.declare(wide, kind, [kind] * len(args), _PURE)
        fn.module.keep(wide)
        variants.append(f"_ZGV_LLVM_N{lanes}{many}_{symbol}({wide})")
    fn.module.declare(symbol, type, [type] * len(args), _PURE)
    listing = ", ".join(f"{type} {fn.use(arg).text}" for arg in args)
    suffix = f' "vector-function-abi-variant"="{",".join(variants)}"' if variants else ""
    return fn.define(type, f"call {type} @{symbol}({listing}){suffix}")


def _call_libm(fn: Function, name: str, *args: Value) -> Value:
    """Emit a call of libm's function, which LLVM takes for any other: it would fold calls of those that it knows."""
    fn.module.declare(name, "double", ["double"] * len(args), _PURE)
    listing = ", ".join(f"double {fn.use(arg).text}" for arg in args)
    return fn.define("double", f"call double @{name}({listing}) nobuiltin")


def routine_name(name: str, type: str, lanes: int) -> str:
    return f"dsl_math_{name}_x{lanes}_{FORMATS[type].name}"


def inline(fn: Function, name: str, *args: Value, part: str = "") -> Value:
    """Emit a call of a function, or of a part of it, that becomes part of this one."""
    definition = define(name, args[0].type, part, device=fn.module.device)
    for external, (result, params, attributes) in definition.declarations.items():
        fn.module.declare(external, result, params, attributes)
    for symbol, text in definition.texts.items():
        fn.module.include(symbol, text)
    return fn.call(definition.result, definition.symbol, *args)


@dataclass(frozen=True)
class Definition:
    """The text of a function and of those that it calls, and the declarations that they need.

    A function that calls libm's for arguments that hardly occur has two parts: `near`, which is right for the others,
    and `far`, which tells them apart.
    """

    symbol: str
    result: str
    texts: dict[str, str]
    declarations: dict[str, tuple[str, list[str], str]]
    has_parts: bool
    steps: list[tuple[str, str]]
    """Of a function that is one block and calls none but those of `by_register`: what each instruction makes, and its text."""

    @property
    def by_register(self) -> bool:
        """Whether it is best written by vectors, with the instructions that `by_register` has."""
        return bool(self.steps) and any(text in by_register.DEFINITIONS for text in self.texts)


def define(name: str, type: str, part: str = "", *, device: bool = False) -> Definition:
    """Return the definition of one of `FUNCTIONS` for float or double; for a GPU, every one of which multiplies and adds at once."""
    has_fma = device or cpu_has_fma()
    has_scaling = register_bytes() == 64 if HAS_SCALING is None else HAS_SCALING
    has_scaling = has_scaling and has_fma and not device
    return _definition(name, type, part, has_fma, has_scaling)


@functools.cache
def _definition(name: str, type: str, part: str, has_fma: bool, has_scaling: bool) -> Definition:
    format = FORMATS[type]
    symbol = f"dsl.{name}.{format.name}" + (f".{part}" if part else "")
    body = Body.start(
        symbol, format, arity(name), has_fma=has_fma, has_scaling=has_scaling, part=part
    )
    result = _EMITTERS[name](*(Real(body, param) for param in body.fn.params)).value
    if part == "far":
        assert body.far is not None
        result = body.far.value
    body.fn.ret(result)
    texts = {**body.includes, symbol: body.fn.text()}
    parts = body.far is not None
    others = set(body.includes) - set(by_register.DEFINITIONS)
    steps = [] if parts or others else _steps(texts[symbol])
    return Definition(symbol, result.type, texts, body.declarations, parts, steps)


def _steps(text: str) -> list[tuple[str, str]]:
    lines = [line.strip().split(" = ", 1) for line in text.splitlines() if line.startswith("  %")]
    return [(made, instruction) for made, instruction in lines]


def cpu_has_fma() -> bool:
    """Tell whether code for the CPU may multiply and add at once."""
    return _cpu_has_fma() if HAS_FMA is None else HAS_FMA


@functools.cache
def _cpu_has_fma() -> bool:
    """Ask the kernel, or else LLVM, which takes 40 ms to load."""
    if os.uname().machine in ("arm64", "aarch64"):
        return True
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            return b" fma " in file.read(1 << 14)
    except OSError:
        import llvmlite.binding as llvm

        return bool(llvm.get_host_cpu_features().get("fma"))
