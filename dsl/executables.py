"""What runs the optimised graph of a function: machine code, tokens if it waits or names devices, a GPU, or the interpreter.

In: a traced function, its optimised graph and the arguments of a call. Out: something that takes the arrays of a call and returns
those of the results; `run` gives it a call's arrays and delivers what it returns, or raises without this library's frames.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import DeviceError, NanError, UnsupportedError
from dsl.frontend.signature import Arguments, is_on_device
from dsl.frontend.tracing import TracedFunction
from dsl.ir.build import resources_of
from dsl.ir.devices import DeviceName
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph, Node
from dsl.ir.interpret import interpret
from dsl.ir.nans import find_nan, has_nan
from dsl.ir.ops.comm import RESOURCE
from dsl.lowered import Lowered
from dsl.native import make_executable

__all__ = ["Run", "executable", "run", "touched"]

Run = Callable[[list[Any]], list[Any]]


def executable(
    traced: TracedFunction, graph: Graph, arguments: Arguments, options: Mapping[str, Any], *, exact_strides: bool
) -> Run:  # fmt: skip
    """Return what runs the graph. `exact_strides`: arguments lie in memory as those of this call do."""
    asked = options.get("device")
    device = _device(asked, arguments)
    if device is not None:
        return _on_gpu(traced, graph, arguments, device)
    if any(map(_needs_tokens, graph.walk())):
        return _by_tokens(traced, graph)
    default = options.get("default_device", config.device)
    if default is not None and asked is None:
        device = _device(default, arguments)
        if device is not None:
            return _on_gpu(traced, graph, arguments, device)
    if config.backend == "interpreter":
        return functools.partial(interpret, graph)
    fastmath = bool(options.get("fastmath"))
    return make_executable(traced, graph, arguments, exact_strides=exact_strides, fastmath=fastmath)


def _device(asked: str | None, arguments: Arguments) -> DeviceName | None:
    """Return the GPU on which a call runs: the one asked for, or that of its arguments; None for the CPU."""
    names = {
        leaf.value.item
        for leaf in arguments.described
        if leaf.kind == "array" and leaf.value is not None
    }
    if asked is not None:
        wanted = DeviceName.parse(asked)
        others = {name for name in names if wanted.conflict(DeviceName.parse(name))}
        if others:
            raise DeviceError(
                f"the function runs on {asked}, and an argument is on {', '.join(sorted(others))}",
                remedy="bring it to the host first, or leave `device` out",
            )
        for name in names:
            wanted = wanted.merge(DeviceName.parse(name))
        return wanted if wanted.kind not in (None, "cpu") else None
    if len(names) > 1:
        raise DeviceError(
            f"the arguments are on several devices: {', '.join(sorted(names))}",
            remedy="bring them to one device, or to the host",
        )
    return DeviceName.parse(names.pop()) if names else None


def _on_gpu(traced: TracedFunction, graph: Graph, arguments: Arguments, device: DeviceName) -> Run:
    """Return what runs a function on a GPU."""
    from dsl.codegen.cuda.devices import gpu
    from dsl.codegen.cuda.executable import DeviceExecutable
    from dsl.native import outputs_of

    on_host = [arguments.described[k].kind != "array" for k in traced.inputs]
    on_host += [c.number is not None for c in traced.captures]
    written = [(source, target) for source, target, _ in traced.written]
    needed = sorted(set(outputs_of(traced)))
    return DeviceExecutable(graph, gpu(device), on_host, written, needed)


def _needs_tokens(node: Node) -> bool:
    acts = node.op.act is not None or node.op.begin is not None
    return acts or "device" in node.attrs


def _by_tokens(traced: TracedFunction, graph: Graph) -> Run:
    """Return what runs a function token by token. It reads variables as they are when it starts."""
    for variable, written in traced.variables:
        if written:
            raise UnsupportedError(
                f"the function writes {variable!r} and also waits for a queue or names devices: others would have to wait for it",
                remedy="do the two in functions of their own, or use a `dsl.Graph` and a `dsl.Session`",
            )
    from dsl.executor.placed import make_runner
    from dsl.runtime.devices import cpus

    traced.claim = None
    step, environment = make_runner(graph, cpus()), Environment(traced.resources)
    first = len(traced.inputs)
    held = {id(variable) for variable, _ in traced.variables}
    copied = [first + k for k, c in enumerate(traced.captures) if id(c.holder) in held]
    sources = [traced.captures[k - first].holder for k in copied]

    def execute(arrays: list[Any]) -> list[Any]:
        given = list(arrays)
        for k, variable in zip(copied, sources):
            given[k] = variable.snapshot()
        return step(given, environment)

    runner = getattr(step, "__self__", None)
    execute.over_ranks = getattr(runner, "over_ranks", False)  # type: ignore[attr-defined]
    return execute


# --- A call --------------------------------------------------------------------------------------


def run(entry: Lowered, arguments: Arguments) -> Any:
    """Run what was compiled on a call's arguments and return what the user gets."""
    try:
        if config.debug_nans:
            return entry.traced.run(_Watched(entry), arguments)
        return entry.traced.run(entry.executable, arguments)
    except Exception as error:
        if config.traceback_filtering == "on":
            raise error.with_traceback(None) from error.__cause__
        raise


class _Watched:
    """Runs a graph and, if a result has a NaN, runs it again op by op to say which line made it."""

    def __init__(self, entry: Lowered) -> None:
        self.entry = entry
        self.in_place = getattr(entry.executable, "in_place", False)

    def __call__(self, arrays: list[Any]) -> list[Any]:
        before = [_on_host(array, copy=True) for array in arrays]
        outputs = self.entry.executable(arrays)
        written = [arrays[source] for source, _, _ in self.entry.traced.written]
        if any(has_nan(_on_host(array)) for array in (*outputs, *written)):
            self._report(before)
        return outputs

    def _report(self, arrays: list[Any]) -> None:
        if any(map(has_nan, arrays)):
            return  # NaNs that come in may go out
        if RESOURCE in touched(self.entry.optimized):
            raise NanError(
                f"`{self.entry.name}` made a NaN; which op did is not known, since other ranks would have to run it again too",
                remedy="look for it on one rank, or outside of collectives",
            )
        node = find_nan(self.entry.optimized, arrays)
        if node is not None:
            raise NanError(
                f"`{node.op.name}` made the first NaN of `{self.entry.name}`", location=node.loc,
                remedy="keep its operands inside its domain: `np.where(ok, x, safe)` before it, or `dsl.cond`",
            )  # fmt: skip


def _on_host(array: Any, copy: bool | None = None) -> np.ndarray:
    """Return an array of a GPU, or of the host, as NumPy's."""
    if not is_on_device(array):
        return np.array(array, copy=copy)
    from dsl.codegen.cuda.devices import gpu
    from dsl.codegen.cuda.frame import on_host
    from dsl.frontend.signature import device_name

    return on_host(gpu(DeviceName.parse(device_name(array))), array)


def touched(graph: Graph) -> set[str]:
    """Return what a graph touches."""
    effects = graph.effects
    return {r for node in effects for r in resources_of(node.op, node.regions, node.attrs)}
