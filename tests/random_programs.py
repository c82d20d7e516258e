"""Random Python functions as a NumPy user writes them: `programs()` yields source text and arguments.

Every function takes the same arguments: arrays x (float64), y (float32), u (int64), v (int32) and b (bool) of one size,
a matrix m (float64), numbers k (int) and t (float), and a bool flag. It may write to the arrays. Each variable is
defined before it is used and keeps its dtype and shape; loops end; indices are in range; numbers stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

__all__ = ["HEADER", "Writer", "arguments", "programs"]

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]

ROWS, SIZE = 3, 4
DEPTH = 3

HEADER = """import numpy as np


def blend(a, w):
    return np.tanh(a) * w


def bump(a, i, w):
    a[i] += w


def largest(a):
    best = a[0]
    for i in range(1, len(a)):
        if a[i] > best:
            best = a[i]
    return best


def first_above(a, w):
    for i in range(len(a)):
        if a[i] > w:
            return i
    return -1


"""

# Variables by dtype. The first one of each row is an argument, the others are local.
ARRAYS = {
    "f64": ["x", "p", "q"], "f32": ["y", "g"], "i64": ["u", "h"], "i32": ["v", "o"], "bool": ["b", "z"],
}  # fmt: skip
MATRICES = ["m", "a"]
FLOATS, INTS, BOOLS = ["t", "s", "r"], ["k", "c", "d"], ["flag", "ok"]

_SIGNATURE = "def program(x, y, u, v, b, m, k, t, flag):"


@dataclass
class Writer:
    """Writes one function; `choose` picks one of several, the plainest being first."""

    choose: Choose
    lines: list[str] = field(default_factory=list)
    indices: list[str] = field(default_factory=list)  # loop variables that are in range
    counters: int = 0
    returns: str = ""

    def write(self) -> str:
        self.lines = [_SIGNATURE]
        self.prologue()
        self.returns = self.result()
        self.block(1, DEPTH, 6)
        self.line(1, f"return {self.returns}")
        return HEADER + "\n".join(self.lines) + "\n"

    # -- choices -------------------------------------------------------------------------------------------------

    def line(self, level: int, text: str) -> None:
        self.lines.append("    " * level + text)

    def pick(self, *options: Callable[[], T]) -> T:
        chosen: T = self.choose(options)()
        return chosen

    def chance(self, one_in: int) -> bool:
        return bool(self.choose([False] * (one_in - 1) + [True]))

    def number(self, low: int, high: int) -> int:
        return int(self.choose(range(low, high + 1)))

    def dtype(self) -> str:
        return str(self.choose(["f64", "f64", "f32", "i64", "i32", "bool"]))

    # -- beginning and end ---------------------------------------------------------------------------------------

    def prologue(self) -> None:
        starts = {
            "p": ["x.copy()", f"np.zeros({SIZE})", "x", "np.zeros_like(x)", "m[1]", "x * 0.5"],
            "q": [f"np.linspace(-1.0, 1.0, {SIZE})", "np.ones_like(x)", "p", "m[0].copy()", "x[::-1]"],
            "g": ["y.copy()", f"np.full({SIZE}, 0.5, dtype=np.float32)", "y", "x.astype(np.float32)"],
            "h": [f"np.arange({SIZE})", "u.copy()", "u", "v.astype(np.int64)"],
            "o": ["v.copy()", f"np.zeros({SIZE}, dtype=np.int32)", "v"],
            "z": ["b.copy()", "x > 0", f"np.zeros({SIZE}, dtype=bool)", "~b"],
            "a": ["m.copy()", f"np.zeros(({ROWS}, {SIZE}))", "m", "m * 0.5"],
            "s": ["0.0", "t", "x.sum()", "float(x[0])"],
            "r": ["1.0", "x.max()", "0.25"],
            "c": ["0", "k", "2", "int(u[0])"],
            "d": ["1", "k + 1", "len(x)"],
            "ok": ["False", "flag", "bool(b[0])", "k > 1"],
        }  # fmt: skip
        for name, texts in starts.items():
            self.line(1, f"{name} = {self.choose(texts)}")

    def result(self) -> str:
        names = [self.choose(list(group)) for group in (*ARRAYS.values(), MATRICES)]
        names += [self.choose(["s", "r"]), self.choose(["c", "d"]), "ok"]
        count = self.choose([len(names), 3, 1])
        first = self.number(0, len(names) - count)
        return ", ".join(names[first : first + count])

    # -- numbers -------------------------------------------------------------------------------------------------

    def index(self) -> str:
        """An index in range of every vector."""
        options = [str(self.number(-SIZE, SIZE - 1)), f"{self.choose(INTS)} % {SIZE}"]
        return str(self.choose([*self.indices, *self.indices, *options]))

    def row(self) -> str:
        return str(
            self.choose([str(self.number(-ROWS, ROWS - 1)), f"{self.choose(INTS)} % {ROWS}"])
        )

    def real(self, depth: int = 1) -> str:
        """A float64 or Python number of moderate size."""
        leaves = [
            lambda: str(self.choose([0.5, -1.0, 2.0, 0.25])),
            lambda: f"{self.choose(ARRAYS['f64'])}[{self.index()}]",
            lambda: f"{self.choose(MATRICES)}[{self.row()}, {self.index()}]",
            lambda: f"min(max({self.choose(FLOATS)}, -2.0), 2.0)",
            lambda: f"np.tanh({self.choose(FLOATS)})",
        ]
        if depth == 0:
            return self.pick(*leaves)
        return self.pick(
            *leaves,
            lambda: f"{self.choose(ARRAYS['f64'])}.{self.choose(['sum', 'max', 'min', 'mean'])}()",
            lambda: f"np.sum({self.vector('f64', 1)} * {self.vector('f64', 0)})",
            lambda: f"({self.real(0)} + {self.real(0)})",
            lambda: f"({self.real(0)} * {self.real(0)})",
            lambda: f"abs({self.real(0)})",
            lambda: f"({self.real(0)} if {self.test(1)} else {self.real(0)})",
            lambda: f"largest({self.choose(ARRAYS['f64'])})",
            lambda: f"{self.choose(ARRAYS['f64'])} @ {self.choose(ARRAYS['f64'])}",
        )

    def whole(self, depth: int = 1) -> str:
        """A Python integer."""
        leaves = [
            lambda: str(self.number(0, 3)),
            lambda: str(self.choose([*INTS, *self.indices])),
            lambda: f"int({self.choose(ARRAYS['i64'])}[{self.index()}])",
            lambda: f"int({self.choose(ARRAYS['i32'])}[{self.index()}])",
        ]
        if depth == 0:
            return self.pick(*leaves)
        return self.pick(
            *leaves,
            lambda: f"({self.whole(0)} {self.choose(['+', '-', '*', '&', '^'])} {self.whole(0)})",
            lambda: f"({self.whole(0)} // {self.choose([2, 3, -2])})",
            lambda: f"({self.whole(0)} if {self.test(1)} else {self.whole(0)})",
            lambda: f"int(np.sum({self.choose(ARRAYS['bool'])}))",
            lambda: f"int(np.argmax({self.choose(ARRAYS['f64'])}))",
            lambda: f"first_above({self.choose(ARRAYS['f64'])}, 0.5)",
            lambda: f"max({self.whole(0)}, {self.whole(0)})",
        )

    def test(self, depth: int = 2) -> str:
        """What an `if` may ask."""
        leaves = [
            lambda: str(self.choose(BOOLS)),
            lambda: f"{self.whole(0)} {self.choose(['<', '>', '==', '!='])} {self.whole(0)}",
            lambda: f"{self.real(0)} {self.choose(['<', '>='])} {self.real(0)}",
            lambda: f"{self.choose(ARRAYS['bool'])}[{self.index()}]",
        ]
        if depth <= 1:
            return self.pick(*leaves)
        return self.pick(
            *leaves,
            lambda: f"{self.test(1)} and {self.test(1)}",
            lambda: f"{self.test(1)} or {self.test(1)}",
            lambda: f"not ({self.test(1)})",
            lambda: f"0 < {self.choose(INTS)} < 3",
            lambda: f"{self.choose(ARRAYS['f64'])}.sum() > {self.real(0)}",
            lambda: f"np.any({self.choose(ARRAYS['bool'])})",
            lambda: f"({self.choose(ARRAYS['i32'])} > 1).all()",
        )

    # -- arrays --------------------------------------------------------------------------------------------------

    def weak(self, dtype: str) -> str:
        """A Python number that leaves the dtype of an array alone."""
        if dtype == "bool":
            return str(self.choose(["True", "False", f"bool({self.test(1)})"]))
        if dtype.startswith("i"):
            return str(self.choose(["2", "-1", f"({self.whole(0)}) % 5"]))
        return str(self.choose(["0.5", "-1.0", "2", f"float({self.real(0)})"]))

    def vector(self, dtype: str, depth: int = 2) -> str:
        """An array of moderate numbers."""
        name = str(self.choose(ARRAYS[dtype]))
        if depth == 0:
            return name
        kind = "real" if dtype.startswith("f") else "whole" if dtype.startswith("i") else "mask"
        found: str = getattr(self, f"_{kind}_vector")(name, dtype, depth - 1)
        return found

    def _real_vector(self, name: str, dtype: str, depth: int) -> str:
        inner = lambda: self.vector(dtype, depth)
        own: list[Callable[[], str]] = []
        if dtype == "f64":
            own = [
                lambda: f"{self.choose(MATRICES)}[{self.row()}]",
                lambda: f"{self.choose(MATRICES)}.sum(axis=0)",
                lambda: f"({inner()} * {self.real(0)})",
                lambda: f"({inner()} + {self.choose(ARRAYS['i64'])})",
                lambda: f"({inner()} - {self.choose(ARRAYS['f32'])})",
                lambda: f"np.cumsum({inner()})",
            ]
        return self.pick(
            lambda: name,
            lambda: f"({inner()} {self.choose('+-*')} {inner()})",
            lambda: f"({inner()} {self.choose('+-*')} {self.weak(dtype)})",
            lambda: f"np.{self.choose(['sin', 'cos', 'tanh', 'abs', 'negative'])}({inner()})",
            lambda: f"np.{self.choose(['minimum', 'maximum'])}({inner()}, {inner()})",
            lambda: (
                f"np.where({self.vector('bool', min(depth, 1))}, {inner()}, {self.weak(dtype)})"
            ),
            lambda: f"({inner()} / (1.0 + np.abs({inner()})))",
            lambda: f"{name}[::-1]",
            lambda: f"blend({inner()}, {self.weak(dtype)})",
            *own,
        )

    def _whole_vector(self, name: str, dtype: str, depth: int) -> str:
        inner = lambda: self.vector(dtype, depth)
        return self.pick(
            lambda: name,
            lambda: f"({inner()} {self.choose('+-*&|^')} {inner()})",
            lambda: f"({inner()} {self.choose('+-*')} {self.weak(dtype)})",
            lambda: f"({inner()} // {self.choose([2, 3])})",
            lambda: f"np.{self.choose(['minimum', 'maximum'])}({inner()}, {inner()})",
            lambda: (
                f"np.where({self.vector('bool', min(depth, 1))}, {inner()}, {self.weak(dtype)})"
            ),
            lambda: f"{name}[::-1]",
            lambda: f"np.roll({name}, 1)",
        )

    def _mask_vector(self, name: str, dtype: str, depth: int) -> str:
        inner = lambda: self.vector("bool", depth)
        return self.pick(
            lambda: name,
            lambda: f"({self.vector('f64', depth)} > {self.real(0)})",
            lambda: f"({self.vector('f32', 0)} <= {self.weak('f32')})",
            lambda: f"({self.vector('i64', depth)} % 2 == 0)",
            lambda: f"({self.vector('i32', 0)} != {self.weak('i32')})",
            lambda: f"({inner()} {self.choose('&|^')} {inner()})",
            lambda: f"~{inner()}",
        )

    def bounded(self, dtype: str, depth: int = 2) -> str:
        """An array of small numbers, whatever the variables are."""
        inner = self.vector(dtype, depth)
        if dtype == "bool":
            return inner
        if dtype.startswith("i"):
            return f"{inner} % {self.choose([7, 11])}"
        return str(self.choose(["np.tanh({})", "np.clip({}, -2.0, 2.0)", "np.sin({})"])).format(
            inner
        )

    def update(self, dtype: str) -> str:
        """`op= value` that leaves the numbers small."""
        if dtype == "bool":
            return f"{self.choose('&|^')}= {self.vector('bool', 1)}"
        if dtype.startswith("i"):
            return f"{self.choose('+-')}= {self.bounded(dtype, 1)}"
        if self.chance(3):
            return f"*= np.cos({self.vector(dtype, 1)})"
        return f"{self.choose('+-')}= {self.bounded(dtype, 1)}"

    def element(self, dtype: str) -> str:
        """A number to write into an array."""
        if dtype == "f64":
            return f"np.tanh({self.real()})"
        if dtype == "i64" and self.chance(2):
            return f"{self.whole()} % 9"
        return self.weak(dtype)

    # -- statements ------------------------------------------------------------------------------------------------

    def block(self, level: int, depth: int, most: int) -> None:
        for _ in range(self.number(1, most)):
            self.statement(level, depth)

    def statement(self, level: int, depth: int) -> None:
        simple = [
            self.assign, self.augment, self.slice_assign, self.set_element, self.set_masked,
            self.set_through_view, self.set_float, self.set_whole, self.set_flag, self.swap, self.call,
        ]  # fmt: skip
        nested = [self.branch, self.count, self.loop] * 3 if depth else []
        self.choose(simple + nested)(level, depth)

    def assign(self, level: int, depth: int) -> None:
        dtype = self.dtype()
        self.line(level, f"{self.choose(ARRAYS[dtype])} = {self.bounded(dtype)}")

    def augment(self, level: int, depth: int) -> None:
        dtype = self.dtype()
        self.line(level, f"{self.choose(ARRAYS[dtype])} {self.update(dtype)}")

    def span(self) -> str:
        low = self.number(0, SIZE - 1)
        fixed = f"{low}:{self.number(low, SIZE)}"
        moving = [f":{self.choose(INTS)} % {SIZE}", f"{self.choose(INTS)} % {SIZE}:", "::2", "::-1"]
        return str(self.choose([fixed, f"{low}:", f":-{low + 1}", *moving]))

    def slice_assign(self, level: int, depth: int) -> None:
        dtype, span = self.dtype(), self.span()
        name, other = self.choose(ARRAYS[dtype]), self.choose(ARRAYS[dtype])
        value = self.choose([self.weak(dtype), f"{other}[{span}]"])
        ops = ["=", "&=", "|="] if dtype == "bool" else ["=", "=", "+=", "-="]
        if dtype != "bool" and value.endswith("]"):
            value = f"{value} % 5" if dtype.startswith("i") else f"np.sin({value})"
        self.line(level, f"{name}[{span}] {self.choose(ops)} {value}")

    def set_element(self, level: int, depth: int) -> None:
        if self.chance(4):
            target, dtype = f"{self.choose(MATRICES)}[{self.row()}, {self.index()}]", "f64"
        else:
            dtype = self.dtype()
            target = f"{self.choose(ARRAYS[dtype])}[{self.index()}]"
        ops = ["="] if dtype == "bool" else ["=", "+=", "-="]
        self.line(level, f"{target} {self.choose(ops)} {self.element(dtype)}")

    def set_masked(self, level: int, depth: int) -> None:
        dtype = self.dtype()
        name, other = self.choose(ARRAYS[dtype]), self.choose(ARRAYS[dtype])
        mask = self.pick(lambda: self.vector("bool", 0), lambda: self.vector("bool", 1))
        value = self.choose([self.weak(dtype), f"{other}[{mask}]"])
        ops = ["="] if dtype == "bool" or value.endswith("]") else ["=", "+=", "-="]
        self.line(level, f"{name}[{mask}] {self.choose(ops)} {value}")

    def set_through_view(self, level: int, depth: int) -> None:
        base = self.choose(MATRICES)
        source = self.choose(
            [f"{base}[{self.row()}]", f"{base}[1:]", f"{base}.T", f"{base}[:, ::-1]"]
        )
        self.line(level, f"view = {source}")
        if source.endswith("]") and ":" not in source:
            writes = [f"view[{self.index()}] = {self.element('f64')}", f"view {self.update('f64')}",
                      "view[1:3] *= 0.5", f"view[:] = {self.bounded('f64', 1)}"]  # fmt: skip
        else:
            writes = [f"view[0, 1] = {self.element('f64')}", "view *= 0.5", "view[1] += 0.25",
                      "view[:, 1] -= 0.5", "view[view > 0.5] = 0.0"]  # fmt: skip
        self.line(level, str(self.choose(writes)))

    def set_float(self, level: int, depth: int) -> None:
        name = self.choose(["s", "r"])
        texts = ["{} += {}", "{} = {}", "{} -= {}"]
        self.line(level, str(self.choose(texts)).format(name, f"np.tanh({self.real()})"))

    def set_whole(self, level: int, depth: int) -> None:
        name = self.choose(["c", "d"])
        text = self.choose(
            [f"{name} += 1", f"{name} = {self.whole()} % 7", f"{name} -= {self.whole(0)} % 3"]
        )
        self.line(level, str(text))

    def set_flag(self, level: int, depth: int) -> None:
        self.line(level, f"ok = bool({self.test()})")

    def swap(self, level: int, depth: int) -> None:
        pairs = [("c", "d"), ("s", "r"), ("p", "q"), ("h", "u"), ("y", "g"), ("m", "a")]
        first, second = self.choose(pairs)
        self.line(level, f"{first}, {second} = {second}, {first}")

    def call(self, level: int, depth: int) -> None:
        dtype = self.choose(["f64", "f32", "i64"])
        name = self.choose(ARRAYS[dtype])
        self.line(level, f"bump({name}, {self.index()}, {self.weak(dtype)})")

    # -- control flow ----------------------------------------------------------------------------------------------

    def branch(self, level: int, depth: int) -> None:
        self.line(level, f"if {self.test()}:")
        self.block(level + 1, depth - 1, 2)
        if self.chance(3):
            self.line(level, f"elif {self.test()}:")
            self.block(level + 1, depth - 1, 2)
        if self.chance(2):
            self.line(level, "else:")
            self.block(level + 1, depth - 1, 2)

    def leave(self, level: int, in_loop: bool) -> None:
        """Jump away now and then."""
        if in_loop and self.chance(3):
            self.line(level, f"if {self.test()}:")
            if self.chance(2):
                self.set_whole(level + 1, 0)
            self.line(level + 1, self.choose(["break", "continue"]))
        elif self.chance(8):
            self.line(level, f"if {self.test()}:")
            self.line(level + 1, f"return {self.returns}")

    def inside(self, level: int, depth: int) -> None:
        self.block(level, depth - 1, 2)
        self.leave(level, True)
        self.block(level, depth - 1, 2)

    def count(self, level: int, depth: int) -> None:
        name = f"i{len(self.indices)}"
        ranges = ["3", "k", f"{SIZE}", "1, k", "k - 1, -1, -1", f"0, {SIZE}, 2", "len(x)", "c % 4"]
        over = [f"{name} in range({text})" for text in ranges]
        over += [f"{name}, w in enumerate({self.choose(ARRAYS['f64'])})"]
        self.line(level, f"for {self.choose(over)}:")
        self.indices.append(name)
        self.inside(level + 1, depth)
        self.indices.pop()
        if self.chance(8):
            self.line(level, "else:")
            self.block(level + 1, depth - 1, 1)

    def loop(self, level: int, depth: int) -> None:
        name = f"n{self.counters}"
        self.counters += 1
        self.line(level, f"{name} = 0")
        if self.chance(4):
            self.line(level, "while True:")
            self.line(level + 1, f"if {name} >= {self.number(1, 3)}:")
            self.line(level + 2, "break")
        else:
            limit = self.choose(["3", "k", "len(u)"])
            data = self.choose(["", "", f" and {self.test(1)}", f" and not ({self.test(1)})"])
            self.line(level, f"while {name} < {limit}{data}:")
        self.line(level + 1, f"{name} += 1")
        self.inside(level + 1, depth)


def arguments(seed: int) -> tuple[Any, ...]:
    """Return arguments for a program, new ones each time."""
    rng = np.random.default_rng(seed)
    return (
        rng.uniform(-2, 2, SIZE).round(2),
        rng.uniform(-2, 2, SIZE).round(2).astype(np.float32),
        rng.integers(0, 7, SIZE),
        rng.integers(0, 5, SIZE).astype(np.int32),
        rng.integers(0, 2, SIZE).astype(bool),
        rng.uniform(-2, 2, (ROWS, SIZE)).round(2),
        int(rng.integers(0, 5)),
        float(rng.uniform(-1, 1).__round__(2)),
        bool(rng.integers(0, 2)),
    )


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, int]:
    """Draw the source of a module with a function `program`, and a seed for its arguments."""
    text = Writer(lambda options: draw(st.sampled_from(options))).write()
    return text, draw(st.integers(0, 99))
