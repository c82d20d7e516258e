"""`python -m dsl demo`: what dsl does today, in a few seconds.

Compiles a function with a loop, prints its source, its graph and its kernels, runs it and compares it with NumPy; then
times beside NumPy's, a loop whose length depends on the data, and an error message.
"""

from __future__ import annotations

import inspect
import linecache
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.commands.progress import progress
from dsl.compile import Compiled
from dsl.config import config
from dsl.errors import DslError

__all__ = ["run"]

# The programs are text, compiled as a module of their own would be: dsl leaves the code of its own modules unconverted.
HEAT = """\
import numpy as np
import dsl

@dsl.jit
def heat(rod, steps):
    for step in range(steps):
        rod[1:-1] += 0.25 * (rod[2:] - 2 * rod[1:-1] + rod[:-2])
    return rod.mean()
"""

GELU = """\
@dsl.jit
def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
"""

PLATE = """\
@dsl.jit
def plate(u, steps):
    for step in range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
    return u.max()
"""

SQUARE_ROOT = """\
@dsl.jit
def square_root(c):
    x, steps = c, 0
    while abs(x * x - c) > 1e-14 * c:
        x = 0.5 * (x + c / x)
        steps += 1
    return x, steps
"""

UNLUCKY = """\
@dsl.jit
def unlucky(x):
    if x.sum() > 0:
        scale = 2.0
    return x * scale
"""


def run() -> int:
    """Show it all; return 0 if every result is NumPy's."""
    agreed = show_loop()
    show_speed()
    show_while()
    show_error()
    print("\nNext: README.md, docs/index.md, notebooks/tour.ipynb, and `python -m dsl help`.")
    return 0 if agreed else 1


def load(name: str, text: str) -> Compiled[..., Any]:
    """Run a program, with its source where tracebacks and dsl look for it, and return what it defines."""
    file = f"<demo {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    import dsl

    names: dict[str, Any] = {"__name__": "demo", "dsl": dsl, "np": np}
    exec(compile(text, file, "exec", dont_inherit=True), names)
    print(text)
    compiled: Compiled[..., Any] = names[name]
    return compiled


def show_loop() -> bool:
    heading("1. A NumPy function with a loop, which writes into its argument")
    compiled = load("heat", HEAT)
    rod = np.linspace(0.0, 1.0, 9) ** 2
    heading("2. Its dataflow graph: one loop, whatever the number of steps")
    lowered = compiled.lower(rod.copy(), 100)
    print(lowered.text(locations=False))
    if config.backend == "native":
        print(f"as machine code:\n\n{lowered.text('kernels')}")
    heading("3. Its result beside NumPy's")
    print(f"before:   rod = {short(rod)}")
    plain = inspect.unwrap(compiled)
    mine, numpys = rod.copy(), rod.copy()
    print(f"compiled: mean = {compiled(mine, 100):.12f}   rod = {short(mine)}")
    print(f"NumPy:    mean = {plain(numpys, 100):.12f}   rod = {short(numpys)}")
    return compare(compiled)


def compare(compiled: Compiled[..., Any]) -> bool:
    plain = inspect.unwrap(compiled)
    rng = np.random.default_rng(0)
    cases = [(rng.normal(size=rng.integers(3, 40)), int(rng.integers(0, 400))) for _ in range(40)]
    agreed = 0
    for rod, steps in progress(cases, "comparing"):
        mine, numpys = rod.copy(), rod.copy()
        means = compiled(mine, steps), plain(numpys, steps)
        agreed += np.array_equal(mine, numpys) and math.isclose(*means, rel_tol=1e-9, abs_tol=1e-14)
    print(f"{agreed} of {len(cases)} random rods agree with NumPy to the last bit,")
    print("and their means but for the order in which sums are taken.")
    return agreed == len(cases)


def show_speed() -> None:
    heading("4. Times beside NumPy's: loops over arrays are fused, and spread over the cores")
    rng = np.random.default_rng(0)
    x = rng.normal(size=1_000_000).astype(np.float32)
    u = rng.normal(size=(300, 300))
    race(load("gelu", GELU), "1,000,000 elements of float32", lambda: (x,))
    race(load("plate", PLATE), "300 x 300 of float64, 200 steps", lambda: (u.copy(), 200))


def race(compiled: Compiled[..., Any], what: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
    """Print the first time and the best of several, in turns with NumPy's."""
    plain = inspect.unwrap(compiled)
    first = seconds(compiled, arguments())
    times = [(seconds(compiled, arguments()), seconds(plain, arguments())) for _ in range(5)]
    mine, numpys = map(min, zip(*times))
    print(f"{what}: NumPy {1e3 * numpys:.2f} ms, compiled {1e3 * mine:.2f} ms,")
    print(
        f"{numpys / mine:.1f} times as fast. The first call, which compiles, took {1e3 * first:.0f} ms.\n"
    )


def seconds(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def show_while() -> None:
    heading("5. A loop whose length depends on the data")
    compiled = load("square_root", SQUARE_ROOT)
    for c in (2.0, 1e-6, 1e12):
        root, steps = compiled(c)
        print(
            f"square_root({c:g}) = {root:.12g} after {steps} steps; np.sqrt gives {np.sqrt(c):.12g}"
        )
    print(compiled.explain())


def show_error() -> None:
    heading("6. A mistake, and what dsl says")
    compiled = load("unlucky", UNLUCKY)
    try:
        compiled(np.ones(3))
    except DslError as error:
        print(f"{type(error).__name__}: {error}")


def heading(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


def short(array: np.ndarray) -> str:
    return np.array2string(array, precision=3, suppress_small=True, max_line_width=120)
