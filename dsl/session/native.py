"""Steps that are one native program: variables are read and written in place, and the step has those that it writes to
itself while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsl import events
from dsl.compile import optimize
from dsl.config import config
from dsl.errors import DslError, TypeRuleError
from dsl.ir.environment import Environment
from dsl.ir.facts import is_flat
from dsl.ir.graph import Graph, Node
from dsl.ir.interpret import interpret
from dsl.ir.types import TensorType
from dsl.logs import log
from dsl.passes.raise_control import raise_control
from dsl.passes.thread_state import Threaded, thread_state
from dsl.runtime.claims import Claim

if TYPE_CHECKING:
    from dsl.codegen.cpu.native import Native

__all__ = ["NativeStep", "Step", "make_native", "waits_for_nothing", "walk"]


class Step(Protocol):
    """Runs on the arrays of the feeds and returns those of the fetches."""

    graph: Graph
    stage: str

    def run(self, feeds: Sequence[np.ndarray], environment: Environment) -> list[Any]:
        """Run once."""


_VARIABLES = ("read_variable", "update_variable", "scatter_variable")


def waits_for_nothing(node: Node) -> bool:
    """Tell whether a node, its regions apart, can be part of a native program."""
    acts = node.op.act is not None or node.op.begin is not None
    return (not acts or node.op.name in _VARIABLES) and "device" not in node.attrs


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and those of its regions."""
    yield node
    for region in node.regions:
        yield from region.walk()


def make_native(
    graph: Graph, bound: Sequence[np.ndarray], resources: Mapping[str, Any]
) -> NativeStep | None:
    """Compile a graph to one program, or return None if it cannot be one."""
    if not all(map(waits_for_nothing, graph.walk())):
        return None
    try:
        structured = raise_control(graph) if is_flat(graph) else graph
        threaded = thread_state(structured)
    except DslError as error:
        log("compile", "%s: run token by token: %s", graph.name, error)
        return None
    return NativeStep(threaded, bound, resources)


class NativeStep:
    """One native program."""

    stage = "native"

    def __init__(
        self, threaded: Threaded, bound: Sequence[np.ndarray], resources: Mapping[str, Any]
    ) -> None:
        self.bound = tuple(bound)
        find = Environment(resources).find
        self.variables = [find(name) for name in threaded.variables]
        self.written = [find(name) for name in threaded.written]
        _check_variables(threaded, self.variables)
        self.graph = optimize(threaded.graph)
        self.claim = Claim(self.variables, self.written) if self.variables else None
        self.arrays = [v.memory for v in self.variables]  # in place: the memory stays
        self.count = len(threaded.graph.results) - len(threaded.written)
        self.is_compiled = config.backend != "interpreter"
        self.execute: Any = self._compiled() if self.is_compiled else self._interpreted
        self.direct = self._claimed()  # of the feeds' arrays; returns the fetches' as a tuple

    def _pairs(self) -> list[tuple[int, int]]:
        """Which param each of the last results is written to."""
        first = len(self.graph.params) - len(self.variables)
        places = {id(v): first + k for k, v in enumerate(self.variables)}
        return [(places[id(v)], self.count + k) for k, v in enumerate(self.written)]

    def _compiled(self) -> Native:
        from dsl.codegen.cpu.native import ParamKind, compile_graph

        kinds = [ParamKind("array", None) for _ in self.graph.params]
        native = compile_graph(
            self.graph, kinds, results=list(range(self.count)), written=self._pairs()
        )
        return native

    def _interpreted(self, arrays: Sequence[Any]) -> list[Any]:
        found = [np.array(array) for array in interpret(self.graph, arrays)]
        for target, source in self._pairs():
            arrays[target][...] = found[source]
        return found[: self.count]

    def run(self, feeds: Sequence[np.ndarray], environment: Environment) -> list[Any]:
        """Run the program, alone with the variables that it writes; it ends when the environment says so."""
        if not self.is_compiled:
            return list(self.direct(*feeds))
        from dsl.codegen.cpu.watch import Watched

        with Watched(environment.checker()):
            return list(self.direct(*feeds))

    def _call(self) -> Callable[..., Any]:
        """Return what runs the program on the feeds' arrays, the shortest way."""
        execute, rest = self.execute, (*self.bound, *self.arrays)
        run = getattr(execute, "run", None)
        if run is None:
            return lambda *feeds: tuple(execute([*feeds, *rest]))

        def call(*feeds: Any) -> Any:
            found = (run if events.LOG is None else execute.timed().run)(*feeds, *rest)
            if found is not NotImplemented:
                return found
            # One array is fed twice, or is that of a variable.
            return tuple(execute([*(feed.copy() for feed in feeds), *rest]))

        return call

    def _claimed(self) -> Callable[..., Any]:
        call, claim = self._call(), self.claim
        if claim is None:
            return call

        def claimed(*feeds: Any) -> Any:
            with claim:
                return call(*feeds)

        return claimed


def _check_variables(threaded: Threaded, variables: Sequence[Any]) -> None:
    """Refuse variables that are not what a graph written by hand says."""
    params = threaded.graph.params[len(threaded.graph.params) - len(variables) :]
    for param, variable in zip(params, variables, strict=True):
        held = TensorType(variable.dtype, variable.shape)
        if held != param.type:
            raise TypeRuleError(
                f"the graph takes the variable {variable.name!r} for {param.type}, and it is {held}"
            )
