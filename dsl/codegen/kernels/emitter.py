"""Emits one kernel, in the shape that follows from which of its axes are reduced."""

from __future__ import annotations

from dsl.codegen.kernels.maps import Maps
from dsl.codegen.kernels.panels import Panels
from dsl.codegen.kernels.pieces import pieces
from dsl.codegen.kernels.short_rows import ShortRows
from dsl.codegen.kernels.splits import Splits
from dsl.codegen.llvm import Value

__all__ = ["KernelEmitter"]


class KernelEmitter(Maps, Splits, ShortRows, Panels):
    """Emits one kernel. `stores` holds the memory of roots that others read; the other roots stay inside."""

    def emit(self) -> None:
        """Emit the kernel and, if it reads through index arrays, what happens when an index is wrong."""
        before, self.host.fn.lanes = self.host.fn.lanes, ()
        if self.inner or self.checks:
            self.emit_loops()
        else:
            for piece in pieces(self.kernel):
                KernelEmitter(self.host, piece, self.stores).emit_loops()
        self.host.fn.lanes = before

    def emit_loops(self) -> None:
        if self.checks:
            self.flag = self.host.fn.alloca(8)
            self.host.fn.store(Value("0", "i64"), self.flag)
        by_row = self.lane_axis is not None or len(self.kernel.variables) - 1 in self.inner
        if not self.inner or self.is_split() or (by_row and not self.keeps_rows()):
            self.group = self.new_group()
        if not self.inner:
            self.maps()
        elif self.is_split():
            self.split()
        elif self.has_short_rows():
            self.short_rows()
        elif by_row and not self.goes_by_columns():
            self.rows()
        else:
            self.panels()
        if self.flag is not None:
            wrong = self.host.fn.compare("ne", self.host.fn.load("i64", self.flag), 0)
            with self.host.fn.if_(wrong, unlikely=True):
                self.find_error()
