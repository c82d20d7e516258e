"""Makes numba's module fit to be linked to programs: text of LLVM IR in, text of LLVM IR out.

Names that numba makes after this process become ours, so that the same function is the same text everywhere. Exceptions,
which numba pickles into constants, become numbers from 1. Calls of libm become calls of `dsl.codegen.math`, which are
inlined and vectorised. What Python would need is dropped, and what would need Python is refused.
"""

from __future__ import annotations

import base64
import functools
import graphlib
import pickle
import re
import sys
from typing import NamedTuple

from dsl.codegen import math
from dsl.codegen.cpu import elf
from dsl.codegen.llvm import Module

__all__ = ["MADE_AT_RUN_TIME", "Adapted", "UnfitError", "adapt", "declared_once", "math_module"]


class UnfitError(Exception):
    """Says what a kernel does that compiled programs cannot do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


MADE_AT_RUN_TIME = ("(a message that is made at run time)",)
"""The arguments of an exception whose own are not known before."""

_LABEL = r'("[^"\n]+"|[\w.$-]+)'
_NAME = "@" + _LABEL
_LIBM = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "pow": "pow", "cbrt": "cbrt", "hypot": "hypot", "fmod": "fmod", "erf": "erf", "erfc": "erfc", "tgamma": "gamma",
    "lgamma": "lgamma",
}  # fmt: skip
_RUNTIME = re.compile(r"NRT_\w+")  # memory


class Adapted(NamedTuple):
    """A module that programs can link to, and what it needs."""

    text: str
    errors: tuple[str, ...]  # pickled (class, arguments, where), in base64
    functions: tuple[str, ...]  # of `dsl.codegen.math`, as `exp.f64`
    externals: tuple[str, ...]  # of numba's run-time library
    cost: float  # of a call, roughly, in nanoseconds


def adapt(text: str, main: str, symbol: str, *, inline: bool) -> Adapted:
    """Return numba's module with its function `main` as `symbol`; raise UnfitError if that cannot be."""
    text = _without_python(text)
    declared = [name.strip('"') for name in re.findall(rf"^declare [^@\n]*{_NAME}", text, re.M)]
    functions = {name: found for name in declared if (found := _function(name)) is not None}
    externals = [name for name in declared if name not in functions and not _is_known(name)]
    _check(text, externals)
    text, errors = _numbered_errors(text)
    text = declared_once(_renamed(text, main, symbol, functions))
    text = re.sub(r"^define (?!internal |linkonce_odr )", "define linkonce_odr ", text, flags=re.M)
    if inline:
        head = rf"^(define .*@{re.escape(symbol)}\(.*) \{{$"
        text = re.sub(head, r"\1 alwaysinline {", text, flags=re.M)
    used = tuple(dict.fromkeys(functions.values()))
    return Adapted(text, errors, used, tuple(externals), _cost(text))


def _cost(text: str) -> float:
    """Guess how long a call takes: by its instructions, many times over if there is a loop."""
    instructions, loops = 0, False
    for body in re.findall(r"^define .*?^}", text, re.M | re.S):
        blocks: dict[str, set[str]] = {}
        for line in body.splitlines():
            if label := re.match(_LABEL + ":", line):
                after = blocks.setdefault(label[1], set())
            elif line.startswith("  "):
                instructions += 1
                after.update(re.findall(f"label %{_LABEL}", line))
        try:
            graphlib.TopologicalSorter(blocks).prepare()
        except graphlib.CycleError:
            loops = True
    return 0.25 * instructions * (100 if loops else 1)


def _function(name: str) -> str | None:
    """Return the function of `dsl.codegen.math` that replaces one of libm or LLVM, as `exp.f64`."""
    if found := re.fullmatch(r"llvm\.(\w+)\.(f32|f64)", name):
        return f"{_LIBM[found[1]]}.{found[2]}" if found[1] in _LIBM else None
    if name in _LIBM:
        return f"{_LIBM[name]}.f64"
    stem = name.removesuffix("f")
    return f"{_LIBM[stem]}.f32" if stem != name and stem in _LIBM else None


def _is_known(name: str) -> bool:
    """Tell whether the linker finds a name by itself."""
    if name.startswith("llvm."):
        return True
    return not _RUNTIME.fullmatch(name) and (
        not elf.runs_here() or elf.process_address(name) is not None
    )


def _check(text: str, externals: list[str]) -> None:
    """Refuse what needs Python, or something that is not there."""
    if re.search(r"@_?Py\w+|NumbaEnv", text):
        raise UnfitError(
            "uses Python objects, which compiled programs do not have",
            "do not print, and leave linear algebra to the program",
        )
    for name in externals:
        if not _RUNTIME.fullmatch(name):
            raise UnfitError(
                f"calls `{name}`, which compiled programs do not have",
                "write it with arithmetic, the functions of `math`, and loops",
            )


def _without_python(text: str) -> str:
    """Drop what only Python calls: how to make the message of an exception from numbers."""
    text = re.sub(
        r'^@"?(?:_ZN08NumbaEnv.* = common|\.const\.missing Env).*\n', "", text, flags=re.M
    )
    text = re.sub(r"^define [^\n]*@__excinfo_unwrap.*?^}\n", "", text, flags=re.M | re.S)
    text = re.sub(r"@__excinfo_unwrap[\w.]+", "null", text)
    for name in re.findall(r"^(?:declare [^@\n]*)?@(Py\w+)", text, re.M):
        if len(re.findall(rf"@{name}\b", text)) == 1:
            text = re.sub(rf"^.*@{name}\b.*\n", "", text, flags=re.M)
    return text


def _numbered_errors(text: str) -> tuple[str, tuple[str, ...]]:
    """Replace the exceptions of a module, which are pickled in constants, by numbers from 1."""
    pattern = r'^@\.const\.pickledata\.([0-9a-f]{40}) = .*? c"(.*?)"(?:, align \d+)?\n'
    pickled = dict(re.findall(pattern, text, re.M))
    numbers = {name: k + 1 for k, name in enumerate(pickled)}
    text = re.sub(r"^@\.const\.pickle(?:data|buf)\..*\n", "", text, flags=re.M)
    text = re.sub(
        r"@\.const\.pickle(?:data|buf)\.([0-9a-f]{40})(?:\.\d+)*",
        lambda m: f"inttoptr (i64 {numbers[m[1]]} to ptr)",
        text,
    )
    return text, tuple(map(_encoded, pickled.values()))


def _encoded(constant: str) -> str:
    """Return an exception in LLVM's spelling as one in base64, if it can be made again."""
    escapes = rb"\\([0-9A-Fa-f]{2})"
    data = re.sub(escapes, lambda m: bytes([int(m[1], 16)]), constant.encode("latin-1"))
    kind, args, place = pickle.loads(data)
    home = sys.modules.get(kind.__module__)
    if getattr(home, kind.__qualname__, None) is not kind:
        raise UnfitError(
            f"raises {kind.__qualname__}, a class that other processes cannot find",
            "raise a built-in exception",
        )
    if any(type(arg).__module__.startswith("llvmlite") for arg in args or ()):
        args = MADE_AT_RUN_TIME
    return base64.b64encode(pickle.dumps((kind, args, place))).decode()


def _renamed(text: str, main: str, symbol: str, functions: dict[str, str]) -> str:
    names = {name: f"dsl.user.{found}" for name, found in functions.items()}
    defined = [name.strip('"') for name in re.findall(rf"^define [^@\n]*{_NAME}", text, re.M)]
    others = (name for name in defined if name != main and not name.startswith("NRT_"))
    names |= {name: f"{symbol}.{k}" for k, name in enumerate(others)} | {main: symbol}

    def replace(match: re.Match[str]) -> str:
        found = names.get(match[1].strip('"'))
        return match[0] if found is None else f"@{found}"

    return re.sub(_NAME, replace, text)


def declared_once(text: str) -> str:
    """Drop what is declared again: `exp` and `llvm.exp.f64` may have become the same."""
    seen: set[str] = set()

    def keep(match: re.Match[str]) -> str:
        again = match[1] in seen
        seen.add(match[1])
        return "" if again else match[0]

    return re.sub(rf"^declare [^@\n]*{_NAME}.*\n", keep, text, flags=re.M)


@functools.cache
def math_module(function: str, *, device: bool = False, libdevice: bool = False) -> str:
    """Return a module that defines `dsl.user.<function>` for kernels to call, such as `exp.f64`."""
    name, _, precision = function.partition(".")
    kind = "float" if precision == "f32" else "double"
    count = 2 if name in ("pow", "arctan2", "hypot", "fmod") else 1
    module = Module(function)
    module.device, module.libdevice = device, libdevice
    attributes = "alwaysinline nounwind willreturn memory(none)"
    params = [(kind, label) for label in "xy"[:count]]
    fn = module.function(f"dsl.user.{function}", kind, params, attributes=attributes)
    fn.ret(math.call(fn, name, *fn.params))
    return module.text().replace(
        f"define {kind} @dsl.user.", f"define linkonce_odr {kind} @dsl.user."
    )
