"""Random nests of explicit loops over elements: `write(seed)` returns a function's text.

Every function takes arrays a, b, c of n elements, p and q of 2 n + 8, a matrix m of (5, n) and w of (n, 6), and an integer k with
0 <= k <= 3, and writes to some of them. Which dtype each has, `dtypes(seed)` tells. An index may be out of bounds: the function
then raises IndexError.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["arguments", "dtypes", "write"]

NAMES = "abcpqmw"
FLOATS, INTS = ("float64", "float32"), ("int64", "int32", "uint8")


def dtypes(seed: int) -> dict[str, str]:
    """Return the dtype of each array: mostly one or two in a program."""
    rng = random.Random(f"dtypes {seed}")
    some = rng.choices([*FLOATS, *INTS, "bool"], weights=[5, 3, 3, 2, 2, 1], k=2)
    return {name: rng.choice([*some, rng.choice([*FLOATS, *INTS, "bool"])]) for name in NAMES}


def arguments(seed: int, n: int) -> list[Any]:
    """Return arguments for arrays of n elements."""
    rng = np.random.default_rng([seed, n])
    shapes = {"p": (2 * n + 8,), "q": (2 * n + 8,), "m": (5, n), "w": (n, 6)}
    arrays = [_array(rng, dtype, shapes.get(name, (n,))) for name, dtype in dtypes(seed).items()]
    return [*arrays, int(rng.integers(0, 4))]


def _array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in FLOATS:
        return rng.integers(-40, 40, shape).astype(dtype) / 8
    return rng.integers(0 if dtype == "uint8" else -50, 100, shape).astype(dtype)


@dataclass
class Loop:
    """A loop variable: at least `low`, and below n - `below`, or below `most` if that is given."""

    name: str
    low: int
    below: int
    most: int | None = None


def write(seed: int) -> str:
    return _Writer(random.Random(seed), dtypes(seed)).write()


@dataclass
class _Writer:
    rng: random.Random
    dtypes: dict[str, str]
    lines: list[str] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    numbers: int = 0
    written: list[str] = field(default_factory=list)
    calm: bool = False  # whether places are mostly simple, so that trips are often apart
    sure: bool = (
        False  # whether they surely are in the arrays, too, so that branches often become choices
    )

    def write(self) -> str:
        rng = self.rng
        self.lines = ["import numpy as np", "", "", f"def program({', '.join(NAMES)}, k):"]
        self.line("n = len(a)")
        self.line("s, f, top, low = np.int64(0), np.float64(0.5), np.int64(-9), np.float64(9.0)")
        self.line("odd, last = np.int64(0), 0")
        for _ in range(rng.choice([1, 1, 2])):
            self.written = rng.sample(NAMES, rng.choice([1, 1, 2, 3]))
            if self.chance(5):
                name = rng.choice(self.written)
                start = rng.choice([f"{name}.copy()", f"np.zeros_like({name})"])
                self.line(f"{name} = {start}")
            self.calm = rng.random() < 0.7
            self.nest(rng.choice([1, 1, 2, 2, 3]), 1)
        self.line(f"return {', '.join(NAMES)}, s, f, top, low, odd, last")
        return "\n".join(self.lines) + "\n"

    def line(self, text: str, level: int = 1) -> None:
        self.lines.append("    " * level + text)

    def chance(self, one_in: float) -> bool:
        return self.rng.random() * one_in < 1

    def pick(self, *options: Callable[[], str]) -> str:
        return self.rng.choice(options)()

    # -- loops -----------------------------------------------------------------------------------------------------

    def nest(self, depth: int, level: int) -> None:
        loop, text = self.loop(inner=depth == 1)
        self.line(f"for {loop.name} in {text}:", level)
        self.loops.append(loop)
        if depth > 1 and self.chance(3):
            self.write_one(level + 1)
        if depth > 1:
            self.nest(depth - 1, level + 1)
        else:
            self.body(level + 1)
            self.numbers = 0
        if depth > 1 and self.chance(4):
            self.write_one(level + 1)
        self.loops.pop()

    def loop(self, inner: bool) -> tuple[Loop, str]:
        name = "ijhg"[len(self.loops)]
        outer = [loop.name for loop in self.loops]
        if not inner:
            most = self.rng.choice([1, 2, 3, 4, 5])
            options = [(Loop(name, 0, 0, most), f"range({most})")] * 3
            options += [(Loop(name, 1, 0, 4), "range(1, 4)"), (Loop(name, 0, 0, 3), "range(k)")]
            options += [
                (Loop(name, 0, 0), "range(min(n, 5))"),
                (Loop(name, 0, 0, 5), "range(4, -1, -1)"),
            ]
            return self.rng.choice(options)
        if self.calm and self.chance(1.5):
            return self.rng.choice(
                [
                    (Loop(name, 0, 0), "range(n)"), (Loop(name, 1, 0), "range(1, n)"), (Loop(name, 0, 1), "range(n - 1)"),
                    (Loop(name, 1, 1), "range(1, n - 1)"), (Loop(name, 0, 0), "range(k, n)"), (Loop(name, 1, 0), "range(k + 1, n)"),
                    (Loop(name, 2, 1), "range(2, n - 1)"), (Loop(name, 4, 0), "range(4, n)"),
                ]
                + [(Loop(name, 1, 0), f"range({other} + 1, n)") for other in outer] * 2
            )  # fmt: skip
        low, below = self.rng.choice([0, 0, 0, 1, 1, 2, 3]), self.rng.choice([0, 0, 1, 2])
        end = f"n - {below}" if below else "n"
        options = [
            (Loop(name, 0, below), f"range({end})"), (Loop(name, low, below), f"range({low}, {end})"),
            (Loop(name, low, below), f"range({low}, {end})"), (Loop(name, 0, below), f"range(k, {end})"),
            (Loop(name, 1, 0), "range(k + 1, n)"), (Loop(name, 0, 0), "range(0, n, 2)"),
            (Loop(name, 0, 0), "range(n - 1, -1, -1)"), (Loop(name, 0, 0), "range(n // 2)"),
            (Loop(name, 0, 0, 20), "range(20)"), (Loop(name, 0, 0), "range(min(n, 20))"),
            (Loop(name, 0, 0), "range(len(p) - n - 8)"), (Loop(name, 0, 0), "range(m.shape[1])"),
        ]  # fmt: skip
        for other in outer:
            options.append((Loop(name, 1, below), f"range({other} + 1, {end})"))
            options.append((Loop(name, 0, 0, 5), f"range({other})"))
        return self.rng.choice(options)

    # -- places ----------------------------------------------------------------------------------------------------

    def index(self, size: str, *, moves: bool = False) -> str:
        """An index along an axis of n, 2 n + 8, or a few elements."""
        if size == "p":
            return self.index_of_many(moves)
        if size.isdigit():
            return self.index_of_few(int(size))
        loop = self.loops[-1]
        if self.sure:
            text = (
                loop.name if moves or not self.chance(5) else self.rng.choice(["0", "3", "n // 2"])
            )
        elif self.calm and self.chance(1.1):
            steady = ["0", "k", *(other.name for other in self.loops[:-1])]
            text = (
                loop.name
                if moves or not self.chance(4)
                else self.rng.choice([self.near(loop), *steady])
            )
        elif moves or self.chance(1.4):
            text = self.near(loop)
        else:
            text = self.rng.choice(
                ["0", "k", "-1", "n - 1", "n // 2", "2", "-2", "k - 1", "-k - 1", loop.name]
                + [f"{loop.name} // 2", f"n - 1 - {loop.name}", f"{loop.name} * 2 % n", f"(k + {loop.name}) % n"]
                + [other.name for other in self.loops] + [f"{other.name} + 1" for other in self.loops]
                + [f"{loop.name} - {other.name}" for other in self.loops[:-1]]
            )  # fmt: skip
        return text

    def near(self, loop: Loop) -> str:
        """An index near a loop's, in bounds if that is simple to tell."""
        if self.chance(2):
            return loop.name
        c = (
            self.rng.randint(-loop.low, loop.below)
            if not self.chance(12)
            else self.rng.randint(-2, 2)
        )
        return f"{loop.name} + {c}" if c > 0 else f"{loop.name} - {-c}" if c else loop.name

    def index_of_many(self, moves: bool) -> str:
        loop = self.loops[-1]
        name = loop.name
        if self.sure:
            return name if moves or not self.chance(5) else self.rng.choice(["0", "2", "n + 1"])
        if self.calm and self.chance(1.1):
            steady = ["0", "k", *(other.name for other in self.loops[:-1])]
            return (
                name
                if moves or not self.chance(3)
                else self.rng.choice([f"{name} + {self.rng.randint(1, 8)}", f"{name} + k", *steady])
            )
        texts = [
            name,
            name,
            f"{name} + {self.rng.randint(1, 8)}",
            f"{name} + k",
            f"{name} + n",
            f"{name} * 2",
            f"{name} * 2 + 1",
        ]
        texts += [
            f"n + 3 - {name}",
            f"{name} + {self.loops[0].name}",
            f"-{name} - 1",
            f"{name} + k + 1",
        ]
        if not moves:
            texts += [
                "0",
                "k",
                "n",
                "n + k",
                "-1",
                "2 * n + 7",
                f"{name} // 2",
                f"{name} - 3",
                f"n + {self.loops[0].name}",
                "4",
                "n // 2",
            ]
        return self.rng.choice(texts)

    def index_of_few(self, size: int) -> str:
        if self.sure:
            return str(self.rng.randint(0, size - 1))
        if self.calm and self.chance(1.1):
            inside = [
                loop.name for loop in self.loops if loop.most is not None and loop.most <= size
            ]
            return self.rng.choice(
                [str(self.rng.randint(0, size - 1)), *inside, *inside, "k", "k + 1"]
            )
        texts = [
            str(self.rng.randint(0, size - 1)),
            str(self.rng.randint(-2, size - 1)),
            "k",
            "k + 1",
            "-k - 1",
        ]
        texts += [f"{loop.name} % {size}" for loop in self.loops]
        for loop in self.loops:
            if loop.most is not None and loop.most <= size:
                texts += [loop.name] * 3 + [f"({loop.name} + 1) % {size}"]
            if loop.most is not None and loop.most < size:
                texts += [f"{loop.name} + 1"] * 2
        return self.rng.choice(texts)

    def place(self, name: str, *, moves: bool = False) -> str:
        if name in "pq":
            return f"{name}[{self.index('p', moves=moves)}]"
        if name == "m":
            return f"m[{self.index('5')}, {self.index('n', moves=moves)}]"
        if name == "w":
            return f"w[{self.index('n', moves=moves)}, {self.index('6')}]"
        return f"{name}[{self.index('n', moves=moves)}]"

    # -- statements ------------------------------------------------------------------------------------------------

    def body(self, level: int) -> None:
        self.sure = self.calm and self.chance(2)
        if self.sure:
            for name in self.written:
                self.choose(level, name)
        else:
            self.statements(level)
        self.sure = False

    def choose(self, level: int, name: str) -> None:
        """Write to one place, as one test or two say, or leave it as it is."""
        self.line(f"if {self.test(1)}:", level)
        inner = self.chance(3)
        if inner:
            self.line(f"if {self.test(0)}:", level + 1)
        self.write_one(level + 1 + inner, name)
        if self.chance(3):
            self.line(f"elif {self.test(0)}:", level)
            self.write_one(level + 1, name)
        if self.chance(2):
            self.line("else:", level)
            self.write_one(level + 1, name)

    def statements(self, level: int) -> None:
        for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
            if self.calm and self.chance(1.3):
                self.pick(lambda: self.name_one(level), lambda: self.add_up(level))
                continue
            self.pick(
                lambda: self.write_one(level), lambda: self.write_one(level), lambda: self.write_one(level),
                lambda: self.add_up(level), lambda: self.name_one(level), lambda: self.branch(level),
            )  # fmt: skip
        for name in self.written if self.calm else [self.rng.choice(self.written)]:
            self.write_one(level, name)

    def write_one(self, level: int, name: str = "") -> str:
        name = name or self.rng.choice(self.written)
        target = self.place(name, moves=self.sure or not self.chance(6))
        dtype = self.dtypes[name]
        if dtype == "bool":
            self.line(f"{target} = {self.test(1)}", level)
        elif self.chance(4):
            op = self.rng.choice(["+", "-", "*"] + ["^", "|", "&"] * (dtype in INTS))
            self.line(f"{target} {op}= {self.typed(dtype)}", level)
        else:
            self.line(f"{target} = {self.typed(dtype, 2)}", level)
        return ""

    def name_one(self, level: int) -> str:
        self.line(f"x{self.numbers + 1} = {self.real(1)}", level)
        self.numbers += 1
        return ""

    def branch(self, level: int) -> str:
        self.line(f"if {self.test(1)}:", level)
        self.write_one(level + 1)
        if self.chance(2):
            self.line("else:", level)
            self.write_one(level + 1)
        return ""

    def add_up(self, level: int) -> str:
        whole = self.whole(1)
        self.line(
            self.rng.choice([
                f"s += {whole}", f"s ^= {whole}", f"top = np.maximum(top, {whole})", f"low = np.minimum(low, {self.real(1)})",
                f"f += {self.real(0)}", f"odd += np.int64({self.test(0)})", f"last = {self.loops[-1].name}", f"s = s - {whole}",
                f"top = max(top, np.int64({whole}))", f"s |= {whole}",
            ]),
            level,
        )  # fmt: skip
        return ""

    # -- numbers ---------------------------------------------------------------------------------------------------

    def read(self, kinds: tuple[str, ...]) -> str | None:
        names = [name for name in NAMES if self.dtypes[name] in kinds]
        own = [name for name in names if name in self.written]
        if not names:
            return None
        return self.place(self.rng.choice(names + own))

    def real(self, depth: int) -> str:
        leaves: list[Callable[[], str]] = [lambda: self.read(FLOATS) or "np.float64(0.5)"] * 4
        leaves += [lambda: self.rng.choice(["0.5", "np.float32(1.5)", "-0.25"])]
        leaves += [lambda: f"np.float64({self.rng.choice(self.loops[:-1] or self.loops).name})"]
        if self.numbers and len(self.loops) and self.chance(2):
            leaves += [lambda: f"x{self.rng.randint(1, self.numbers)}"] * 3
        if depth == 0:
            return self.pick(*leaves)
        return self.pick(
            *leaves,
            lambda: f"({self.real(depth - 1)} {self.rng.choice('+-*')} {self.real(depth - 1)})",
            lambda: f"({self.real(depth - 1)} {self.rng.choice('+-*')} {self.real(depth - 1)})",
            lambda: f"({self.real(depth - 1)} / {self.real(0)})",
            lambda: f"abs({self.real(depth - 1)})",
            lambda: f"-({self.real(depth - 1)})",
            lambda: f"np.sqrt(abs({self.real(depth - 1)}))",
            lambda: (
                f"np.{self.rng.choice(['floor', 'ceil', 'rint', 'trunc'])}({self.real(depth - 1)})"
            ),
            lambda: (
                f"np.{self.rng.choice(['maximum', 'minimum', 'copysign'])}({self.real(0)}, {self.real(0)})"
            ),
            lambda: f"np.where({self.test(0)}, {self.real(0)}, {self.real(0)})",
            lambda: (
                f"(np.float64({self.real(0)}) if {self.test(0)} else np.float64({self.real(0)}))"
            ),
            lambda: f"np.float64({self.whole(depth - 1)})",
            lambda: self.function() if self.chance(3) else self.real(0),
        )

    def function(self) -> str:
        name = self.rng.choice(["tanh", "sin", "exp", "arctan"])
        return f"np.{name}({self.real(0)})"

    def whole(self, depth: int) -> str:
        leaves: list[Callable[[], str]] = [lambda: self.read(INTS) or "np.int64(7)"] * 4
        leaves += [lambda: f"np.int64({self.rng.choice(self.loops).name})"]
        leaves += [lambda: f"np.int64({self.read(('bool',)) or '1'})", lambda: "np.int64(k)"]
        if depth == 0:
            return self.pick(*leaves)
        return self.pick(
            *leaves,
            lambda: (
                f"({self.whole(depth - 1)} {self.rng.choice('+-*&|^')} {self.whole(depth - 1)})"
            ),
            lambda: f"({self.whole(depth - 1)} {self.rng.choice('+-*&|^')} {self.whole(0)})",
            lambda: (
                f"({self.whole(depth - 1)} {self.rng.choice(['//', '%'])} {self.rng.choice(['2', '3', '7'])})"
                if not self.calm
                else self.whole(0)
            ),
            lambda: (
                f"({self.whole(depth - 1)} {self.rng.choice(['<<', '>>'])} {self.rng.choice(['1', '2', '3'])})"
            ),
            lambda: (
                f"np.{self.rng.choice(['maximum', 'minimum'])}({self.whole(0)}, {self.whole(0)})"
            ),
            lambda: f"np.where({self.test(0)}, {self.whole(0)}, {self.whole(0)})",
            lambda: f"(np.int64({self.whole(0)}) if {self.test(0)} else np.int64(3))",
            lambda: f"abs({self.whole(0)})",
        )

    def quotient(self, depth: int) -> str:
        return f"({self.whole(depth)} {self.rng.choice(['//', '%'])} {self.rng.choice(['2', '3', '7'])})"

    def test(self, depth: int) -> str:
        compare = self.rng.choice(["<", ">", "<=", ">=", "==", "!="])
        leaves: list[Callable[[], str]] = [
            lambda: f"({self.real(0)} {compare} {self.real(0)})",
            lambda: f"({self.whole(0)} {compare} {self.whole(0)})",
            lambda: f"({self.read(('bool',)) or 'np.bool_(True)'})",
            lambda: (
                f"({self.loops[-1].name} {compare} {self.rng.choice(['k', 'n // 2', '5', self.loops[0].name])})"
            ),
        ]
        if depth == 0:
            return self.pick(*leaves)
        return self.pick(
            *leaves,
            lambda: (
                f"({self.test(0)} {self.rng.choice(['&', '|', '^', '==', '!='])} {self.test(0)})"
            ),
            lambda: f"(not {self.test(0)})",
            lambda: f"({self.test(0)} {self.rng.choice(['and', 'or'])} {self.test(0)})",
        )

    def typed(self, dtype: str, depth: int = 1) -> str:
        """A number that NumPy writes into an array of a dtype without a word: one of its own, not Python's."""
        if dtype in FLOATS:
            return self.real(depth)
        return (
            f"np.{dtype}({self.whole(depth)})"
            if self.chance(2)
            else f"np.int64({self.whole(depth)}).astype(np.{dtype})"
        )
