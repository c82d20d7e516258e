"""A function compiled for one description of its arguments: its graph, kernels and code at each stage, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dsl.errors import ConfigError, UnsupportedError
from dsl.frontend.sizes import Pattern
from dsl.frontend.tracing import TracedFunction
from dsl.ir.graph import Graph
from dsl.passes.lower_control import lower_control

__all__ = ["STAGES", "Lowered"]

GRAPHS = ("traced", "optimized", "lowered")
TEXTS = ("partitioned", "kernels", "llvm", "asm", "ptx")
STAGES = (*GRAPHS, "placed", *TEXTS)


@dataclass(repr=False)
class Lowered:
    """What `Compiled.lower` returns. `times` has the seconds that each phase of compiling took."""

    name: str
    traced: TracedFunction
    optimized: Graph
    reason: str
    times: dict[str, float]
    executable: Callable[[list[Any]], list[Any]]
    stages: dict[str, Graph] = field(default_factory=dict)
    pattern: Pattern | None = None  # the sizes that it takes, if more than those of one call
    confirmed: set[Any] = field(default_factory=set)  # errors that one for fewer sizes raised too

    def __repr__(self) -> str:
        types = ", ".join(str(param.type) for param in self.traced.graph.params)
        return f"<{self.name} lowered for ({types})>"

    def graph(self, stage: str = "optimized") -> Graph:
        """Return the graph at a stage."""
        if stage == "traced":
            return self.traced.graph
        if stage == "optimized":
            return self.optimized
        if stage == "lowered":
            return self.stages.setdefault(stage, lower_control(self.optimized))
        if stage == "placed":
            return self.stages.setdefault(stage, self._placed())
        if stage in TEXTS:
            raise UnsupportedError(
                f"the stage {stage!r} is not a graph",
                remedy=f"ask for its text: `.text({stage!r})`",
            )
        raise ConfigError(
            f"there is no stage {stage!r}", remedy=f"the stages are {', '.join(STAGES)}"
        )

    def text(self, stage: str = "optimized", *, locations: bool = True) -> str:
        """Return a stage as text: the IR of a graph, the plan of kernels, LLVM's IR as emitted, or machine code."""
        from dsl.ir.text import print_graph

        if stage not in TEXTS:
            return print_graph(self.graph(stage), locations=locations)
        if stage == "partitioned":
            from dsl.passes.partition import partition

            parts = partition(self.graph("placed")).parts
            return "\n".join(
                f"# on {device}\n{print_graph(part.graph, locations=locations)}"
                for device, part in parts.items()
            )
        if stage == "ptx":
            return str(self.device_program.ptx())
        device = getattr(self.executable, "program", None)
        if device is not None and stage in ("kernels", "llvm"):
            return str(device.text if stage == "llvm" else device.listing())
        native = self._native()
        if stage == "kernels":
            return f"program @{self.name}\n" + "".join(
                f"  {line}\n" for line in native.report.lines
            )
        if stage == "llvm":
            return str(native.text)
        from dsl.codegen.cpu.jit import assembly

        return assembly(native.text, native.level, flags=native.flags, link=native.link)

    @cached_property
    def device_program(self) -> Any:
        """The function as a program for GPUs, made on any machine."""
        from dsl.codegen.cuda.program import DeviceProgram

        made = getattr(self.executable, "program", None)
        return made if isinstance(made, DeviceProgram) else DeviceProgram(self.optimized)

    def _placed(self) -> Graph:
        """Return the graph on the devices of all ranks; control flow that spans devices is spelled with tokens."""
        from dsl.executor.ranks import asked_by, names_over
        from dsl.mpi.world import world
        from dsl.passes.lower_spanning import lower_spanning
        from dsl.passes.place import place
        from dsl.runtime.devices import cpus

        names = names_over(world().size, cpus(), asked_by(self.optimized))
        return place(lower_spanning(self.optimized), names)

    def _native(self) -> Any:
        native = getattr(self.executable, "native", None)
        if native is None and hasattr(self.executable, "program"):
            raise UnsupportedError(
                "this function runs on a GPU, so there is no machine code of the CPU",
                remedy="ask for its PTX: `.text('ptx')`",
            )
        if native is None:
            raise UnsupportedError(
                "the interpreter runs this function, so there is no machine code",
                remedy="set the option `backend` to 'native'",
            )
        return native

    def dot(self, stage: str = "lowered") -> str:
        """Return the graph of a stage in Graphviz's language."""
        from dsl.ir.draw import dot

        return dot(self.graph(stage))

    def show(self, stage: str = "optimized") -> Any:
        """Return a self-contained picture: shown as HTML in a notebook, `.html` holds the text, `.save(path)` writes it."""
        from dsl.ir.draw import Picture

        return Picture(self.graph(stage))

    def memory_report(self) -> str:
        """Say what memory a call takes beside its arguments, which arrays are copied, and which updates are in place."""
        report = self._native().report
        lines = [f"{self.name}: {len(report.slots)} arrays of workspace and results"]
        lines += [f"  {_bytes(size):>14}  {kind}: {note}" for kind, size, note in report.slots]
        lines.append(f"copies: {len(report.copies)}")
        lines += [f"  {_bytes(size):>14}  {why}{_at(loc)}" for why, size, loc in report.copies]
        lines.append(f"in place: {len(report.in_place)}")
        lines += [f"  {op}{_at(loc)}" for op, loc in report.in_place]
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """Return what is to be said of how a GPU runs the function."""
        program = getattr(self.executable, "program", None)
        return [] if program is None else [program.recorded()]

    def fallbacks(self) -> list[str]:
        """Return the ops that have no native form, or none for the GPU, and run in NumPy, each with its line."""
        native = getattr(self.executable, "native", None)
        program = getattr(self.executable, "program", None)
        if program is not None:
            return [f"{op}{_at(loc)}" for op, loc in program.lowering.fallbacks]
        return [] if native is None else [f"{op}{_at(loc)}" for op, loc in native.report.fallbacks]


def _bytes(size: Any) -> str:
    if size is None:
        return "data-dependent"
    return f"{size:,} B" if isinstance(size, int) else f"{size} B"


def _at(loc: Any) -> str:
    return "" if loc is None else f"  ({loc})"
