"""Random array programs whose numbers are exact: `write(rng)` yields source text and arguments.

Every array holds small whole numbers, also those of float dtypes, and every step keeps them small. So any order of
sums, any fusion and any vector width gives the same result, to the bit. Shapes are such that kernels take all their
forms: whole reductions, rows, columns, tiles of a transpose, merged axes, empty and single dims, and enough rows for
several sweeps in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["arguments", "load_text", "write"]

SHAPES = [
    (20, 5), (5, 20), (17, 1), (1, 18), (20,), (5,), (3, 17, 4), (16, 2, 3), (2, 33, 3), (40, 35), (70, 3), (3, 70), (),
    (1, 1), (0, 20), (20, 0), (130,), (2, 3, 4, 5),
]  # fmt: skip
DTYPES = ["f8", "f8", "f4", "i8", "i4", "i2", "b1", "c16"]


@dataclass
class Writer:
    """Writes one function, line by line; `known` are the variables with their shapes and dtypes."""

    rng: np.random.Generator
    lines: list[str] = field(default_factory=list)
    known: dict[str, tuple[tuple[int, ...], np.dtype]] = field(default_factory=dict)
    params: list[str] = field(default_factory=list)

    def pick(self, items: Any) -> Any:
        items = list(items)
        return items[int(self.rng.integers(len(items)))]

    def any(self, test: Callable[[tuple[int, ...], np.dtype], bool] = lambda s, d: True) -> str:
        """Return a variable, rather a late one."""
        found = [n for n, (s, d) in self.known.items() if test(s, d)]
        if not found:
            raise LookupError
        return str(found[-1 - min(int(self.rng.exponential(2.5)), len(found) - 1)])

    def array(self, least: int = 1) -> str:
        return self.any(lambda s, d: len(s) >= least)

    def define(self, text: str) -> None:
        """Add a line, after running it on zeros to learn its shape and dtype."""
        zeros = {n: np.ones(s, d) for n, (s, d) in self.known.items()}
        with np.errstate(all="ignore"):
            value = np.asarray(eval(text, {"np": np}, zeros))
        if value.size > 20_000 or value.ndim > 4:
            raise LookupError
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.known[name] = (value.shape, value.dtype)
        self.bound(name)

    def bound(self, name: str) -> None:
        """Keep numbers small where a step may have made them larger."""
        dtype = self.known[name][1]
        text = self.lines[-1]
        if dtype.kind in "iu" and dtype.itemsize < 8 and "sum" in text:
            return
        if dtype.kind == "c":
            self.lines[-1] = f"{name} = np.trunc(({text.partition(' = ')[2]}).real) % 5 + 1j"
        elif dtype.kind != "b" and any(c in text for c in ("*", "+", "-", "sum", "@", "prod")):
            self.lines[-1] = f"{name} = ({text.partition(' = ')[2]}) % 7"

    # -- steps -------------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        x = self.any(lambda s, d: d.kind != "c")
        kind = self.known[x][1].kind
        options = {
            "f": ["-{}", "np.abs({})", "np.sqrt({0} * {0})", "np.floor({} / 2)", "np.sign(np.tanh({}))", "{} > 1"],
            "i": ["-{}", "np.abs({})", "{} // 2", "{} ^ 3", "{} << 1", "{}.astype('f8')", "{} == 2"],
            "b": ["~{}", "{}.astype('i8')", "{}.astype('f4')"],
        }  # fmt: skip
        self.define(self.pick(options[kind]).format(x))

    def binary(self) -> None:
        x = self.any()
        shape = self.known[x][0]

        def fits(s: tuple[int, ...], d: np.dtype) -> bool:
            try:
                np.broadcast_shapes(s, shape)
            except ValueError:
                return False
            return True

        y = self.any(fits)
        kinds = {self.known[x][1].kind, self.known[y][1].kind}
        ops = [
            "{} + {}",
            "{} * {}",
            "{} - {}",
            "np.maximum({}, {})",
            "np.where({0} == {1}, {0}, {1})",
        ]
        if "c" in kinds:
            ops = ["{} + {}", "{} * {}", "{} - {}"]
        elif "b" in kinds:
            ops = ["{} * {}", "np.minimum({}, {})", "{} < {}", "np.where({0} > {1}, {1}, 2)"]
        if kinds <= {"b"}:
            ops = ["{} & {}", "{} | {}", "{} ^ {}"]
        self.define(self.pick(ops).format(x, y))

    def reduce(self) -> None:
        x = self.array()
        shape, dtype = self.known[x]
        count = int(self.rng.integers(1, len(shape) + 1))
        axes = tuple(sorted(int(a) for a in self.rng.choice(len(shape), count, replace=False)))
        names = ["sum", "sum", "max", "min", "any", "all"]
        if dtype.kind == "c":
            names = ["sum"]
        name = self.pick(names)
        if any(shape[a] == 0 for a in axes):
            name = "sum"
        axis = self.pick([axes, axes, axes[0], None]) if len(axes) > 1 else axes[0]
        keep = self.pick(["", ", keepdims=True"])
        self.define(f"{x}.{name}(axis={axis}{keep})")

    def view(self) -> None:
        x = self.array()
        shape, _ = self.known[x]
        axes = list(map(int, self.rng.permutation(len(shape))))
        spans = [self.pick([":", "::-1", "1:", ":-1", "::2", "::-2", ":0", "2:5"]) for _ in shape]
        size = int(np.prod(shape))
        options = [
            f"{x}.transpose({axes})",
            f"{x}[{', '.join(spans)}]",
            f"{x}[{', '.join(spans)}]",
            f"{x}[..., None]",
            f"{x}[None]",
            f"{x}.reshape(-1)",
            f"{x}.reshape(({size // 2}, 2))" if size % 2 == 0 and size else f"{x}.reshape(-1, 1)",
            f"{x}.reshape({tuple(reversed(shape))})",
            f"np.broadcast_to({x}, {(2, *shape)})",
            f"{x}.T",
        ]
        self.define(self.pick(options))

    def element(self) -> None:
        x = self.any(lambda s, d: len(s) > 0 and 0 not in s)
        shape, _ = self.known[x]
        self.define(f"{x}[{', '.join(str(int(self.rng.integers(-n, n))) for n in shape)}]")

    def join(self) -> None:
        x = self.array()
        shape, dtype = self.known[x]
        axis = int(self.rng.integers(len(shape)))
        other = self.any(
            lambda s, d: (
                d == dtype
                and len(s) == len(shape)
                and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
            )
        )
        kind = "constant_values=1" if dtype.kind != "b" else "mode='constant'"
        options = [
            f"np.concatenate([{x}, {other}], axis={axis})",
            f"np.pad({x}, [{', '.join(['(1, 0)', '(2, 1)', '(0, 0)', '(0, 3)'][: len(shape)])}], {kind})",
            f"np.roll({x}, 2, axis={axis})",
            f"np.stack([{x}, {x} * 1], axis={axis})",
        ]
        self.define(self.pick(options))

    def take(self) -> None:
        x = self.any(lambda s, d: len(s) > 0 and 0 not in s)
        shape, _ = self.known[x]
        axis = int(self.rng.integers(len(shape)))
        index = self.any(lambda s, d: d.kind in "iu" and 0 < int(np.prod(s)) < 200)
        before = ":, " * axis
        options = [f"{x}[{before}{index} % {shape[axis]}]"]
        if axis:
            options.append(f"{x}[{index} % {shape[0]}, {before[3:]}{index} % {shape[axis]}]")
        self.define(self.pick(options))

    def library(self) -> None:
        x = self.any(lambda s, d: len(s) > 0 and d.kind in "fi")
        shape, dtype = self.known[x]
        axis = int(self.rng.integers(len(shape)))
        options = [f"np.sort({x}, axis={axis})", f"np.cumsum({x}, axis={axis})"]
        if 0 not in shape:
            options.append(f"{x}.argmax(axis={axis})")
        if len(shape) == 2 and dtype.kind == "f":
            options += [f"{x} @ {x}.T", f"{x}.T @ {x}"]
        self.define(self.pick(options))

    def update(self) -> None:
        """Write into an array of the function's own, or into an argument."""
        x = self.array()
        shape, dtype = self.known[x]
        spans = ", ".join(
            self.pick([":", "::-1", "1:", ":-1", "::2", str(int(self.rng.integers(0, n)) if n else ":")]) for n in shape
        )  # fmt: skip
        if self.rng.integers(3):
            self.lines.append(f"w{len(self.lines)} = {x}.copy()")
            name = f"w{len(self.lines) - 1}"
            self.known[name] = (shape, dtype)
            x = name
        part = np.empty(shape, dtype)
        part = eval(f"part[{spans}]", {}, {"part": part})
        value = self.any(
            lambda s, d: np.can_cast(d, dtype, "same_kind") and _goes_into(s, np.shape(part))
        )
        if dtype.kind in "bc":
            self.lines.append(f"{x}[{spans}] = {value}")
        elif self.rng.integers(2):
            self.lines.append(f"{x}[{spans}] = {value} % 7")
        else:
            self.lines.append(f"{x}[{spans}] += {value}")
            self.lines.append(f"{x}[...] %= 7")

    def scatter(self) -> None:
        x = self.any(lambda s, d: len(s) > 0 and 0 not in s and d.kind in "fi")
        shape, dtype = self.known[x]
        index = self.any(lambda s, d: d.kind in "iu" and 0 < int(np.prod(s)) < 200)
        name = f"w{len(self.lines)}"
        self.lines.append(f"{name} = {x}.copy()")
        self.known[name] = (shape, dtype)
        write = self.pick(
            [
                f"{name}[{index} % {shape[0]}] = 2",
                f"np.add.at({name}, {index} % {shape[0]}, 1)",
                f"{name}[{name} > 1] = 1",
            ]
        )
        self.lines.append(write)
        self.lines.append(f"{name} %= 7")

    def loop(self) -> None:
        """Carry two arrays of one kind through some trips, in which they are rebuilt, written, swapped or joined."""
        x = self.any(lambda s, d: len(s) > 0 and 0 not in s and d.kind in "fi" and d.itemsize > 2)
        shape, dtype = self.known[x]
        w, u, k = (f"{c}{len(self.lines)}" for c in "wuk")
        self.lines += [f"{w} = {x}.copy()", f"{u} = {w} * 2 % 5"]
        self.known[w] = self.known[u] = (shape, dtype)
        y = self.any(
            lambda s, d: (
                _goes_into(s, shape) and d.kind in "fib" and np.can_cast(d, dtype, "same_kind")
            )
        )
        options = [
            f"{w} = ({w} + {u} * {y}) % 7",
            f"{w} = {w} - {w}.max(axis={len(shape) - 1}, keepdims=True)",
            f"{w} = ({w} - {u}.sum(axis=0).astype({w}.dtype)) % 7",
            f"{w}[1:] = {w}[:-1]",
            f"{w}[:] = {w}[::-1]",
            f"{w}[...] = ({w} + {y}) % 7",
            f"{w}[{k} % {shape[0]}] = {u}[-1]",
            f"{w}[..., {k} % {shape[-1]}] += {u}[..., 0] % 3",
            f"{w}, {u} = {u}.copy(), {w}.copy()",
            f"{u} = np.sort({w}, axis=0)",
            f"{u} = {w}[::-1].copy()",
            f"{u}[{k} % {shape[0]} :] = {w}[: {shape[0]} - {k} % {shape[0]}]",
            f"{w} = np.where({u} > 1, {w}, {y}).astype({w}.dtype)",
            f"{w} = np.roll({u}, {k}, axis=0)",
        ]
        tests = [
            f"{w}.sum() % 2 == 0",
            f"{k} > 1",
            f"{u}.max() > 3",
            f"({w} == {u}).all()",
        ]
        head = self.pick([f"for {k} in range({int(self.rng.integers(0, 5))}):", "while"])
        if head == "while":
            self.lines.append(f"{k} = 0")
            head = f"while {k} < {int(self.rng.integers(1, 5))}:"
            body = [f"    {k} += 1"]
        else:
            body = []
        for _ in range(int(self.rng.integers(1, 4))):
            if self.rng.integers(3):
                body.append(f"    {self.pick(options)}")
            else:
                body.append(f"    if {self.pick(tests)}:")
                body.append(f"        {self.pick(options)}")
                if self.rng.integers(2):
                    body += ["    else:", f"        {self.pick(options)}"]
        self.lines += [head, *body, f"{w} = {w} % 7"]

    def step(self) -> None:
        steps = [self.unary, self.binary, self.binary, self.binary, self.reduce, self.reduce, self.view, self.view,
                 self.join, self.take, self.library, self.update, self.scatter, self.element, self.loop, self.loop]  # fmt: skip
        lines, known = list(self.lines), dict(self.known)
        try:
            self.pick(steps)()
        except LookupError:  # nothing fits
            self.lines, self.known = lines, known


def _goes_into(shape: tuple[int, ...], part: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, part) == part
    except ValueError:
        return False


def write(rng: np.random.Generator, steps: int = 14) -> tuple[str, list[tuple[Any, str]]]:
    """Return a function's text and, for each argument, its shape and dtype."""
    writer = Writer(rng)
    kinds = [
        (tuple(SHAPES[int(rng.integers(len(SHAPES)))]), DTYPES[int(rng.integers(len(DTYPES)))])
        for _ in range(int(rng.integers(1, 4)))
    ]
    kinds.append((writer.pick([(7,), (3, 4), (20,), ()]), "i8"))
    for k, (shape, dtype) in enumerate(kinds):
        writer.params.append(f"a{k}")
        writer.known[f"a{k}"] = (shape, np.dtype(dtype))
    while len(writer.lines) < steps:
        writer.step()
    names = list(writer.known)
    results = sorted({names[-1], *(str(n) for n in rng.choice(names, min(3, len(names)), False))})
    body = "\n".join(f"    {line}" for line in writer.lines)
    text = f"import numpy as np\n\n\ndef program({', '.join(writer.params)}):\n{body}\n    return ({', '.join(results)},)\n"
    return text, kinds


def arguments(
    rng: np.random.Generator, kinds: list[tuple[Any, str]], layout: str = "C"
) -> list[np.ndarray]:
    """Return arrays of small whole numbers in a layout: C, F, strided or reversed."""
    made = []
    for shape, dtype in kinds:
        values = np.asarray(rng.integers(0, 5, shape)).astype(dtype)
        if layout == "F":
            values = np.array(values, order="F")
        elif layout == "strided":
            wide = np.zeros([2 * n for n in shape], dtype)[
                (..., *[slice(None, None, 2)] * len(shape))
            ]
            wide[...] = values
            values = wide
        elif layout == "reversed":
            values = np.asarray(np.flip(np.array(np.flip(values))))
        made.append(values)
    return made


def load_text(text: str, name: str) -> Any:
    """Return the function `program` of a module with this text."""
    import linecache

    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "random_kernel"}
    exec(compile(text, name, "exec", dont_inherit=True), module)
    return module["program"]
