"""A JIT-compiling array language for Python on a typed dataflow IR: decorate plain NumPy functions.

Everything but the options and the exceptions is imported when it is first used, so that `import dsl` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from dsl import errors
from dsl.config import config
from dsl.errors import DslError
from dsl.logs import show_help_if_asked

if TYPE_CHECKING:
    from dsl import checkpoints, cuda, fft, ir, linalg, nn, numpy, optim, parallel, random, summary
    from dsl.checkpoints import CheckpointManager, restore, save
    from dsl.compile import Compiled, jit
    from dsl.frontend.loops import unroll
    from dsl.frontend.verbs import cond, fold, fori_loop, map, scan, switch, while_loop
    from dsl.partition import dynamic_partition, dynamic_stitch
    from dsl.pipelines import input_pipeline
    from dsl.profiler import profile
    from dsl.session import (
        Graph,
        Operation,
        Session,
        colocate_with,
        control_dependencies,
        device,
        group,
        placeholder,
    )
    from dsl.session.queues import FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue
    from dsl.tools import cache_stats, num_threads
    from dsl.transforms.batches import vmap
    from dsl.transforms.check import check_grads
    from dsl.transforms.checkpoints import checkpoint
    from dsl.transforms.gradients import grad, jvp, stop_gradient, value_and_grad, vjp
    from dsl.transforms.jacobians import hessian, jacfwd, jacrev
    from dsl.transforms.rules import custom_jvp, custom_vjp
    from dsl.transforms.scoped import gradients
    from dsl.user_kernels import Kernel, kernel
    from dsl.user_ops import Primitive, op
    from dsl.variables import Variable

__version__ = "0.1.0"
__all__ = [
    "CheckpointManager", "Compiled", "DslError", "FIFOQueue", "Graph", "Kernel", "Operation", "PaddingFIFOQueue",
    "Primitive", "PriorityQueue", "RandomShuffleQueue", "Session", "Variable", "cache_stats", "check_grads", "checkpoint",
    "checkpoints", "colocate_with", "cond", "config", "control_dependencies", "cuda", "custom_jvp", "custom_vjp",
    "device", "dynamic_partition", "dynamic_stitch", "errors", "fft", "fold", "fori_loop", "grad", "gradients", "group",
    "hessian", "input_pipeline", "ir", "jacfwd", "jacrev", "jit", "jvp", "kernel", "linalg", "map", "nn", "num_threads",
    "numpy", "op", "optim", "parallel", "placeholder", "profile", "random", "restore", "save", "scan", "stop_gradient",
    "summary", "switch", "unroll", "value_and_grad", "vjp", "vmap", "while_loop",
]  # fmt: skip

_VERBS = ("cond", "fold", "fori_loop", "map", "scan", "switch", "while_loop")
_QUEUES = ("FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "RandomShuffleQueue")
_SESSION = (
    "Graph",
    "Operation",
    "Session",
    "colocate_with",
    "control_dependencies",
    "device",
    "group",
    "placeholder",
)
_LAZY = {
    "Compiled": "dsl.compile", "Kernel": "dsl.user_kernels", "jit": "dsl.compile", "kernel": "dsl.user_kernels",
    "Primitive": "dsl.user_ops", "op": "dsl.user_ops",
    "cache_stats": "dsl.tools", "num_threads": "dsl.tools", "unroll": "dsl.frontend.loops",
    **dict.fromkeys(_VERBS, "dsl.frontend.verbs"),
    **dict.fromkeys(("grad", "jvp", "stop_gradient", "value_and_grad", "vjp"), "dsl.transforms.gradients"),
    **dict.fromkeys(("hessian", "jacfwd", "jacrev"), "dsl.transforms.jacobians"),
    **dict.fromkeys(("custom_jvp", "custom_vjp"), "dsl.transforms.rules"),
    **dict.fromkeys(("dynamic_partition", "dynamic_stitch"), "dsl.partition"),
    **dict.fromkeys(("CheckpointManager", "restore", "save"), "dsl.checkpoints"),
    **dict.fromkeys(_QUEUES, "dsl.session.queues"),
    "input_pipeline": "dsl.pipelines",
    "profile": "dsl.profiler",
    "Variable": "dsl.variables",
    **dict.fromkeys(_SESSION, "dsl.session"),
    "gradients": "dsl.transforms.scoped", "check_grads": "dsl.transforms.check",
    "checkpoint": "dsl.transforms.checkpoints", "vmap": "dsl.transforms.batches",
}  # fmt: skip
_MODULES = (
    "checkpoints",
    "cuda",
    "fft",
    "ir",
    "linalg",
    "nn",
    "numpy",
    "optim",
    "parallel",
    "random",
    "summary",
)

show_help_if_asked()


def _follow_trace() -> None:
    """Profile the process, or stop doing so, as the option `trace` says."""
    if config.trace is not None or "dsl.profiler.automatic" in sys.modules:
        importlib.import_module("dsl.profiler.automatic").follow()


config.watch("trace", _follow_trace)
if os.environ.get("DSL_TRACE"):
    _follow_trace()
if os.environ.get("DSL_LAUNCH_DIR"):
    importlib.import_module("dsl.mpi.launched").begin()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dsl.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'dsl' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
