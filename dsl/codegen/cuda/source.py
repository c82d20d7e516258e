"""One kernel under construction: its function, and the params that its code turned out to need.

A `Source` answers what evaluators and emitters ask (`dsl.codegen.evaluate.Host`): arrays are pointers, symbolic sizes and
strides whole numbers, rank-0 values numbers that the host knows or places on the device. Each becomes a param when it is
first asked for; `arguments` says what to pass for each, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dsl.codegen.arrays import Array, Scalar, load_scalar, memory_type
from dsl.codegen.evaluate import literal
from dsl.codegen.expressions import Expression
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.codegen.memory import contiguous_strides
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike

__all__ = ["FLAG", "Argument", "Layouts", "Source", "new_module"]


class Argument(NamedTuple):
    """What a launch passes for a param: `what` is a value or a dim; a part of a complex number, or an axis, is `which`."""

    kind: str  # array, cell, stride, dim, number, flag
    what: Any = None
    which: int = 0


FLAG = Argument("flag")


class Layouts(NamedTuple):
    """What is known of values before a program runs: which rank-0 ones are on the host, which arrays have any strides."""

    on_host: Callable[[ir.Value], bool]
    strided: Callable[[ir.Value], bool]


def new_module(name: str) -> Module:
    """Return a module for device code."""
    from dsl.codegen.cuda.toolkit import libdevice

    module = Module(name)
    module.libdevice = libdevice() is not None
    module.device = True
    return module


class Source:
    """A kernel under construction."""

    checks = True
    apart = False

    def __init__(self, module: Module, name: str, layouts: Layouts) -> None:
        self.module, self.name, self.layouts = module, name, layouts
        self.fn: Function = module.function(name, "ptx_kernel void", [])
        self.arguments: list[Argument] = []
        self.written: set[ir.Value] = set()
        self.barriers = 0  # emitted so far
        self.known: dict[ir.Value, Scalar] = {}  # rank-0 values that the kernel itself has computed
        self._params: dict[Argument, Value] = {}
        self._names: dict[ir.Value, ir.Value] = {}

    def _param(self, type: str, argument: Argument) -> Value:
        found = self._params.get(argument)
        if found is None:
            found = self.fn.add_param(type, f"p{len(self.arguments)}")
            self._params[argument] = found
            self.arguments.append(argument)
        return found

    # -- what evaluators ask -----------------------------------------------------------------------------------------

    def function_of(self, node: ir.Node) -> str:
        """Return the name by which `elementwise` has what computes a node."""
        return node.op.name

    def register(self, value: ir.Value) -> Scalar:
        """Return a rank-0 value: a number from the host, or loaded from where it is on the device."""
        if value in self.known:
            return self.known[value]
        if value.node.op.name == "const":
            return literal(value.node.attrs["value"].array, value.dtype)
        if not self.layouts.on_host(value):
            return load_scalar(self.fn, value.dtype, self.cell(value))
        type = memory_type(value.dtype)
        if value.dtype.kind == "c":
            real, imag = (self._param(type, Argument("number", value, k)) for k in (0, 1))
            return real, imag
        found = self._param(type, Argument("number", value))
        return self.fn.convert("trunc", found, "i1") if value.dtype.kind == "b" else found

    def cell(self, value: ir.Value) -> Value:
        """Return where a rank-0 value is on the device."""
        return self._param(self._pointer(value), Argument("cell", value))

    def array(self, value: ir.Value) -> Array:
        """Return an array in the device's memory."""
        fn, dims = self.fn, tuple(self.dim(d) for d in value.shape)
        strided = self.layouts.strided(value)
        memory = Argument("array", self.named(value))
        pointer = self._param(self._pointer(value, 0 if strided else 16), memory)
        if not strided:
            return Array(value.dtype, pointer, dims, contiguous_strides(fn, value.shape, self.dim))
        strides = tuple(
            self._param("i64", Argument("stride", value, k)) for k in range(len(value.shape))
        )
        return Array(value.dtype, pointer, dims, strides)

    def alias(self, value: ir.Value, memory: ir.Value) -> None:
        """Let one value be in the memory of another, in another shape."""
        self._names[value] = memory

    def named(self, value: ir.Value) -> ir.Value:
        """Return the value in whose memory another is."""
        return self._names.get(value, value)

    def place(self, value: ir.Value) -> Array:
        """Return where a value of any rank goes."""
        self.written.add(value)
        if value.shape:
            return self.array(value)
        return Array(value.dtype, self.cell(value), (), ())

    def _pointer(self, value: ir.Value, align: int = 0) -> str:
        alignment = f" align {align or value.dtype.itemsize // (1 + (value.dtype.kind == 'c'))}"
        return "ptr noalias" + ("" if value in self.written else " readonly") + alignment

    def dim(self, dim: DimLike) -> Operand:
        """Return a size: a number, or a param for one that only a run knows."""
        if isinstance(dim, int):
            return dim
        found = self._param("i64", Argument("dim", dim))
        found.dim = dim
        return found

    def flag(self) -> Value:
        """Return where to note that something is wrong."""
        return self._param("ptr align 8", FLAG)

    def set_register(self, value: ir.Value, scalar: Scalar) -> None:
        raise AssertionError("a kernel on a GPU sets no registers")

    def borrow(self, size: DimLike, note: str) -> tuple[Value, Callable[[], None]]:
        raise AssertionError("a kernel on a GPU takes no workspace of the host's program")

    def lacks_memory(self) -> None:
        raise AssertionError("a kernel on a GPU asks for no memory")

    def is_new(self, value: ir.Value, read: Iterable[ir.Value]) -> bool:
        return False

    def fail_expression(self, fn: Function, bad: Value, e: Expression, number: Value) -> None:
        raise AssertionError("a kernel on a GPU cannot stop the program")

    # -- what kernels use --------------------------------------------------------------------------------------------

    def special(self, name: str) -> Value:
        """Return a special register, `tid.x` say, as an i32."""
        return self.fn.call("i32", f"llvm.nvvm.read.ptx.sreg.{name}")

    def index(self, name: str) -> Value:
        """Return a special register as an i64."""
        return self.fn.convert("zext nneg", self.special(name), "i64")

    def barrier(self) -> None:
        """Wait for all threads of the block."""
        self.barriers += 1
        self.fn.emit("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
        self.module.declare(
            "llvm.nvvm.barrier.cta.sync.aligned.all",
            "void",
            ["i32"],
            "convergent nocallback nounwind",
        )

    def shared(self, size: int, align: int = 16) -> Value:
        """Reserve memory that the threads of a block share, and return its address."""
        return self.module.shared(size, align)

    def finish(self, block: int, *, roomy: bool = False) -> None:
        """End the kernel; blocks of other sizes are refused. A roomy one gets all registers that a block can have.

        Otherwise ptxas may put some into memory so that a multiprocessor takes one more block.
        """
        self.fn.ret()
        least = ' "nvvm.minctasm"="1"' if roomy else ""
        self.fn.note(f'nounwind "nvvm.reqntid"="{block}"{least}')
