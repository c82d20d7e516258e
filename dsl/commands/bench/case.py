"""What a benchmark case is: one NumPy program, its inputs, the same work written for the peers, and what is aimed at.

The files of cases (`benchmarks/cases/`) make `Case`s at import and import no peer: what they write for a peer names
`jnp`, `torch` or `prange` freely, and `dsl.commands.bench.peers` binds these names when the contender is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ROWS", "Case", "Function", "Target", "Way", "size_name"]

Function = Callable[..., Any]

ROWS = (
    "call overhead",
    "elementwise, f32",
    "elementwise, f64",
    "along an axis, f32 4096 x 1024",
    "whole-array reductions, 16 M",
    "moving data",
    "heat stencil",
    "scalar loops",
    "while loop, 10 M trips",
    "applications",
    "matmul",
    "gradients",
    "chain of 50 ops, 100 MB",
    "without a target",
)
"""The rows of the summary, in its order."""


class Way:
    """How a peer does the work of a case: a function, and options for the peer's compiler."""

    def __init__(self, function: Function, **options: Any) -> None:
        self.function, self.options = function, options


@dataclass(frozen=True)
class Target:
    """dsl takes at most 1 / `ratio` of the time of the fastest of `peers`."""

    ratio: float
    peers: tuple[str, ...]

    def __init__(self, ratio: float, *peers: str) -> None:
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "peers", peers)

    def __str__(self) -> str:
        return f"{self.ratio:g}x {'/'.join(self.peers)}"

    def measured(self, ratios: dict[str, float]) -> float | None:
        """Return the ratio to the fastest of the peers that ran, or None if none did."""
        return min((ratios[peer] for peer in self.peers if peer in ratios), default=None)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table.

    `program` is the function that `dsl.jit` compiles and NumPy runs as it stands; it leaves its arguments as they are,
    so that every contender can be called again and again on the same ones. `inputs` takes a random generator and the
    numbers in `size` (`tiny` in a quick run). With `own`, dsl compiles that instead, and `program` is the reference in
    NumPy: a derivative written out by hand. A peer's entry is a function or a `Way`; without one the peer is not in
    the race. Results agree if they differ by no more than `tolerance`, relative to the larger of the element and the
    array's greatest element; a fraction `mismatches` of the elements may do so.
    """

    name: str
    row: str
    program: Function
    inputs: Callable[..., tuple[Any, ...]]
    size: tuple[int, ...]
    tiny: tuple[int, ...]
    own: Function | None = None
    numba: Way | Function | None = None
    jax: Way | Function | None = None
    torch: Way | Function | None = None
    torch_compile: bool = False  # also through torch.compile, which takes seconds to compile
    static: tuple[str, ...] = ()  # arguments that dsl and JAX take as constants
    targets: tuple[Target, ...] = ()
    at_most: float = math.inf  # seconds
    tolerance: float | None = None  # by default 1e-5 for float32, 1e-9 for float64
    mismatches: float = 0.0
    short: bool = False  # part of the run without --full
    plain_is_slow: bool = False  # scalar loops: plain Python is not timed at full size
    throughput: bool = False  # show input bytes per second
    memory: bool = False  # measure the peak of memory, in a process of its own
    ways: dict[str, Way] = field(init=False)

    def __post_init__(self) -> None:
        given: dict[str, Way | Function | None] = {
            "numpy": self.program,
            "numba": self.numba,
            "jax": self.jax,
            "torch": self.torch,
            "torch.compile": self.torch if self.torch_compile else None,
        }
        ways = {name: as_way(way, self, name) for name, way in given.items() if way is not None}
        dsl = Way(self.own or self.program, static_argnames=self.static)
        object.__setattr__(self, "ways", ways | {"dsl": dsl})

    def make_inputs(self, *, quick: bool) -> tuple[Any, ...]:
        """Return the arguments: the same numbers in every process."""
        return self.inputs(np.random.default_rng(1), *(self.tiny if quick else self.size))


def as_way(way: Way | Function, case: Case, peer: str) -> Way:
    if isinstance(way, Way):
        return way
    return Way(way, static_argnames=case.static) if peer == "jax" else Way(way)


def size_name(size: int) -> str:
    """Return `16M` for 16,000,000.

    >>> size_name(16_000_000), size_name(1024)
    ('16M', '1024')
    """
    return f"{size // 10**6}M" if size % 10**6 == 0 else str(size)
