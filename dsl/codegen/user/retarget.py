"""Makes the text of a kernel fit for a GPU: LLVM IR that numba wrote for this CPU in, LLVM IR for any target out.

A function of numbers is almost free of the machine that it was compiled for: what remains is the head of the module, the
names of libm, and the remainder of floats, which is an instruction that C's library implements. Those are replaced. Every
function is inlined into the kernels that call it, so recursion is refused, as is what GPUs do not have: numba's memory,
C's functions, instructions of a CPU. LLVM ends the process on an intrinsic that it cannot select; so those that may stay are
listed.

A message that an exception makes at run time wants memory. On a GPU there is none, which is an error too: it is noticed,
and the interpreter raises the exception with its message.
"""

from __future__ import annotations

import functools
import graphlib
import re
from typing import NamedTuple

from dsl.codegen.user.adapt import declared_once
from dsl.codegen.user.code import Code

__all__ = ["Portable", "Unportable", "retarget"]


class Portable(NamedTuple):
    """The text of a kernel for any target, and the functions of `dsl.codegen.math` that it calls."""

    text: str
    functions: tuple[str, ...]


class Unportable(NamedTuple):
    """Says what a kernel does that GPUs cannot do."""

    reason: str


_INTRINSICS = frozenset(
    (
        "abs", "assume", "bitreverse", "bswap", "ceil", "copysign", "ctlz", "ctpop", "cttz", "expect", "fabs", "floor",
        "fma", "fmuladd", "fptosi.sat", "fptoui.sat", "fshl", "fshr", "is.fpclass", "lifetime.end", "lifetime.start",
        "maximum", "maxnum", "memcpy", "memmove", "memset", "minimum", "minnum", "nearbyint", "rint", "round",
        "roundeven", "scmp", "smax", "smin", "sqrt", "trunc", "ucmp", "umax", "umin", "experimental.noalias.scope.decl",
        *(f"{sign}{op}.sat" for sign in "su" for op in ("add", "sub")),
        *(f"{sign}{op}.with.overflow" for sign in "su" for op in ("add", "sub", "mul")),
        *(f"vector.reduce.{op}" for op in ("add", "mul", "fadd", "fmul", "and", "or", "xor")),
        *(f"vector.reduce.{op}" for op in ("smax", "smin", "umax", "umin")),
    )
)  # fmt: skip
"""Those that LLVM selects for NVPTX, by name without types."""

_SAME = {
    f"{name}{suffix}": f"llvm.{name}.{type}"
    for name in ("sqrt", "fabs", "floor", "ceil", "trunc", "rint", "round", "copysign")
    for suffix, type in (("", "f64"), ("f", "f32"))
}
"""Functions of libm that are instructions of GPUs."""

_NO_MEMORY = {
    "NRT_Allocate": "define linkonce_odr ptr @NRT_Allocate(i64 %0) {\n  ret ptr null\n}\n",
    "NRT_Free": "define linkonce_odr void @NRT_Free(ptr %0) {\n  ret void\n}\n",
}
"""What exceptions with messages call; arrays and lists call other functions."""

_OF_CPUS = re.compile(
    r"\b(asm|vscale|x86_fp80|fp128|invoke|fence|atomicrmw|cmpxchg|thread_local)\b"
)
_BY_ADDRESS = re.compile(r"\bcall [^@\n]*?%[\w.$]+\(")
_DECLARED = re.compile(r"^declare [^@\n]*@([\w.$]+).*\n", re.M)
_DEFINED = re.compile(r"^define [^@\n]*@([\w.$]+)[^\n]*$(.*?)^}$", re.M | re.S)
_TYPES = re.compile(r"(\.(p\d+|[iv]\d+\w*|f\d+|nxv\w+))+$")


@functools.lru_cache(maxsize=256)
def retarget(code: Code) -> Portable | Unportable:
    """Return the text of a kernel for any target, or why there is none."""
    text = code.text
    for name in _DECLARED.findall(text):
        if not _is_known(name, code):
            return Unportable(f"it calls `{name}`")
    if found := _OF_CPUS.search(re.sub(r'c?"[^"\n]*"', "", text)):
        return Unportable(f"it needs `{found[1]}` of the CPU")
    if _BY_ADDRESS.search(text):
        return Unportable("it calls functions by their address")
    if _recurs(text):
        return Unportable("it calls itself")
    text, functions = _without_remainders(_renamed(text))
    if " frem " in text:
        return Unportable("it takes remainders of vectors")
    return Portable(_inlined(_plain(text)), tuple(dict.fromkeys((*code.functions, *functions))))


def _is_known(name: str, code: Code) -> bool:
    if name.startswith("llvm."):
        return _TYPES.sub("", name.removeprefix("llvm.")) in _INTRINSICS
    own = name.removeprefix("dsl.user.") in code.functions
    return own or name in _SAME or name in _NO_MEMORY


def _recurs(text: str) -> bool:
    calls = {m[1]: set(re.findall(r"@([\w.$]+)\(", m[2])) for m in _DEFINED.finditer(text)}
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError:
        return True
    return False


def _renamed(text: str) -> str:
    """Let what is an instruction be one, and let there be no memory."""
    for name, definition in _NO_MEMORY.items():
        text = re.sub(rf"^declare [^@\n]*@{name}\(.*\n", definition, text, flags=re.M)
    for name in set(_DECLARED.findall(text)) & set(_SAME):
        text = re.sub(rf"@{name}\(", f"@{_SAME[name]}(", text)
    return declared_once(text)


def _without_remainders(text: str) -> tuple[str, list[str]]:
    """Replace the instruction `frem`, which is inexact on GPUs, by calls of `fmod`."""
    used: list[str] = []
    for kind, type in (("double", "f64"), ("float", "f32")):
        call = rf"call {kind} @dsl.user.fmod.{type}({kind} \1, {kind} \2)"
        text, count = re.subn(rf"\bfrem (?:\w+ )*?{kind} ([^,\n]+), ([^,\s]+)", call, text)
        if count:
            used.append(f"fmod.{type}")
            if not re.search(rf"^declare [^@\n]*@dsl\.user\.fmod\.{type}\(", text, re.M):
                text += f"declare {kind} @dsl.user.fmod.{type}({kind}, {kind})\n"
    return text, used


def _plain(text: str) -> str:
    """Drop what names a machine."""
    text = re.sub(r"^target .*\n", "", text, flags=re.M)
    return re.sub(r' "(?:target-|tune-|probe-|stack-)[\w-]+"="[^"]*"', "", text)


def _inlined(text: str) -> str:
    """Let every function be inlined, whatever numba says of it."""
    text = re.sub(r"^(attributes #\d+ = .*?) ?\b(?:noinline|optnone)\b", r"\1", text, flags=re.M)
    return re.sub(r"^(define (?!.*\balwaysinline\b).*) \{$", r"\1 alwaysinline {", text, flags=re.M)
