"""What a program is made from, and what is made of that: the text of its module, and what its text does not say.

Importing the code generators takes 50 ms, so that is done when the text is wanted: by a compile, or by somebody who looks
at it. Code that is found on disk by its recipe runs without; an error or a fallback then asks for the text's other parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dsl.ir.graph import Graph, Node

if TYPE_CHECKING:
    from dsl.codegen.program import Program
    from dsl.codegen.report import ErrorSite, Report
    from dsl.events import Site

__all__ = ["Emission", "Emitted", "ParamKind"]


class ParamKind(NamedTuple):
    """What a param is given as: an array with strides (None for C order, bytes, or "any"), or a number."""

    kind: str  # array, or a number: int, float, complex, bool, scalar
    strides: Any = None


class Emitted(NamedTuple):
    """A module's text, the modules to link to it, how to compile it, and what the program tells about itself."""

    text: str
    link: tuple[str, ...]
    as_written: bool
    gathers: bool
    far: bool
    recurs: bool
    unrolled: bool
    steady: bool
    errors: list[ErrorSite]
    callbacks: list[Node]
    report: Report
    sites: list[Site]
    is_long: bool


class Emission:
    """A program, emitted when that is asked for; `checks` tells whether it compares indices with sizes, `timed` whether
    it measures its kernels for a profile.
    """

    def __init__(
        self, graph: Graph, params: Sequence[ParamKind], wanted: Sequence[int], written: Sequence[tuple[int, int]],
        *, fastmath: bool, checks: bool, timed: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.params, self.wanted, self.written = graph, params, wanted, written
        self.fastmath, self.checks, self.timed = fastmath, checks, timed

    def with_clocks(self) -> Emission:
        """Return the same program, measuring itself."""
        return Emission(
            self.graph, self.params, self.wanted, self.written,
            fastmath=self.fastmath, checks=self.checks, timed=True,
        )  # fmt: skip

    def recipe(self) -> list[str] | None:
        """Return all that the text follows from, as texts; None if something in the graph has none."""
        text = self.graph.text
        if 'opaque"' in text:  # an attribute that is any object, such as a user's kernel
            return None
        if self.timed:  # its sites are wanted, which only emitting tells
            return None
        rest = (self.params, self.wanted, self.written, self.fastmath, self.checks)
        return [text, *map(repr, rest)]

    @cached_property
    def emitted(self) -> Emitted:
        """The text and its other parts. The same each time: that is what code on disk is found by."""
        program = self._program(in_place=True)
        text = program.emit()
        if program.spoils:  # then the caller's arrays come last, when nothing can fail any more
            program = self._program(in_place=False)
            text = program.emit()
        module, link = program.module, tuple(program.module.links.values())
        sites = [] if program.timer is None else program.timer.sites
        told = program.errors, program.callbacks, program.report, sites
        as_written = module.as_written and not link
        near = module.gathers, module.far, program.touched.recurs
        ways = as_written, *near, module.unrolled, module.steady
        return Emitted(text, link, *ways, *told, is_long=module.is_long)

    def _program(self, in_place: bool) -> Program:
        from dsl.codegen.branchless import without_branches
        from dsl.codegen.complex_products import multiply_parts
        from dsl.codegen.frame import layout
        from dsl.codegen.joins import slice_parts
        from dsl.codegen.kept_elements import keep_elements
        from dsl.codegen.products import sum_thin_products
        from dsl.codegen.program import Program
        from dsl.codegen.read_back import read_back
        from dsl.codegen.reduced_rows import reduce_rows_first
        from dsl.codegen.region import is_expensive
        from dsl.codegen.unroll import unroll
        from dsl.codegen.window_products import sum_products_of_windows

        graph = sum_thin_products(sum_products_of_windows(slice_parts(unroll(self.graph))))
        graph = reduce_rows_first(multiply_parts(graph))
        graph = keep_elements(read_back(graph, is_expensive))
        graph = without_branches(graph, is_expensive)
        scalars = [param.kind != "array" for param in self.params]
        strides = [param.strides for param in self.params]
        frame = layout(graph, scalars, strides, list(self.wanted))
        program = Program(
            graph, frame, written=self.written, fastmath=self.fastmath, in_place=in_place,
            timed=self.timed,
        )  # fmt: skip
        program.checks = self.checks
        return program
