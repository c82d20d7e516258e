"""A JIT-compiling array language for Python on a typed dataflow IR: decorate plain NumPy functions."""

from dsl import errors, ir
from dsl.config import config
from dsl.errors import DslError
from dsl.logs import show_help_if_asked

show_help_if_asked()

from dsl import fft, linalg, nn, numpy, random  # noqa: E402
from dsl.compile import Compiled, jit  # noqa: E402
from dsl.frontend.loops import unroll  # noqa: E402
from dsl.frontend.verbs import cond, fold, fori_loop, map, scan, switch, while_loop  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "Compiled", "DslError", "cond", "config", "errors", "fft", "fold", "fori_loop", "ir", "jit", "linalg", "map", "nn", "numpy",
    "random", "scan", "switch", "unroll", "while_loop",
]  # fmt: skip
