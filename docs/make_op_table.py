"""Write docs/ops.md and docs/numpy-support.md from the registries: `python docs/make_op_table.py`.

In: the op records of `dsl.ir`, the code that `dsl.codegen` emits for their samples, and the public functions of
`dsl.numpy` and its siblings. Out: two pages of tables. A test fails when the pages are not what this script writes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dsl
import dsl.ir.ops  # registers the ops
from dsl.codegen.cuda import library
from dsl.codegen.cuda.lower import Lowering
from dsl.codegen.frame import layout
from dsl.codegen.program import Program
from dsl.codegen.unroll import unroll
from dsl.compile import optimize
from dsl.ir.build import Builder
from dsl.ir.derivative import derivative_of
from dsl.ir.graph import Graph
from dsl.ir.registry import OPS, Op, Sample, Trait
from dsl.ir.types import TensorType

DOCS = Path(__file__).parent
NAMESPACES = ("numpy", "linalg", "fft", "random", "nn")
GENERATED = "<!-- Written by `python docs/make_op_table.py`; do not edit. -->"


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


# --- Ops -----------------------------------------------------------------------------------------


def ops_page() -> str:
    """Return the page about the ops, by the file that defines them."""
    lines = ["# Ops", "", GENERATED, "", _OPS_INTRODUCTION, "", *_trait_lines(), ""]
    lines += [_NATIVE_INTRODUCTION, "", *(f"- {k}: {text}." for k, text in NATIVE.items()), ""]
    lines += [_CUDA_INTRODUCTION, "", *(f"- {k}: {text}." for k, text in CUDA.items()), ""]
    lines += [_GRADIENT_INTRODUCTION, ""]
    header = ("op", "signature", "does", "CUDA", "native", "gradient", "traits")
    for subject, ops in _by_subject().items():
        rows = [_row(op) for op in ops]
        lines += [f"## dsl/ir/ops/{subject}.py", "", *table(header, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(op: Op) -> tuple[str, ...]:
    name, signature = f"`{op.name}`", f"`{op.signature}`"
    return name, signature, op.doc, cuda(op), native(op), gradient(op), _traits(op)


_OPS_INTRODUCTION = f"""The primitives of the IR: {len(OPS)} ops, which the public functions are made of. An op is one record in
`dsl/ir/ops/`; [Add an op](add-an-op.md) shows how to write one. Signatures name the inputs and outputs, `*xs` stands for any
number. Traits are what passes may assume:"""


def _trait_lines() -> list[str]:
    return [f"- `{trait.name}`: {trait.value}." for trait in Trait]


def _traits(op: Op) -> str:
    return " ".join(f"`{trait.name}`" for trait in Trait if op.has(trait))


def _by_subject() -> dict[str, list[Op]]:
    """Sort the ops by the module of `dsl.ir.ops` whose records they are."""
    found: dict[str, list[Op]] = {}
    for op in sorted(OPS.values(), key=lambda op: op.name):
        if op.emit or op.lower:
            continue  # a user's kernel
        found.setdefault(_subject(op), []).append(op)
    return dict(sorted(found.items()))


def _subject(op: Op) -> str:
    """The file of a record: that of its type rule or, where that is shared, of its meaning or samples."""
    for facet in (op.type, op.numpy, op.samples):
        module = getattr(getattr(facet, "func", facet), "__module__", "") or ""
        if module.startswith("dsl.ir.ops.") and not module.endswith((".rules", ".samples")):
            return module.rpartition(".")[2]
    raise AssertionError(f"no facet of {op.name} tells its file")


# --- Native code ---------------------------------------------------------------------------------

NATIVE = {
    "kernel": "loops or scalar code of the program, fused with what is around it",
    "library": "a compiled routine, or one of NumPy's, SciPy's, BLAS's or LAPACK's, called without a return to Python",
    "control": "branches and loops of the program",
    "MPI": "the program calls Python, which calls MPI",
    "NumPy": "the program calls Python, and the interpreter runs this op alone; `.explain()` lists such ops",
}
_NATIVE_INTRODUCTION = """The column `native` says what becomes of an op in [machine code](native-code.md). It is found by emitting
code for the samples of the op, which show every dtype that it takes. `seldom` is for corner cases, such as a sum over no axes.
An op of the flat spelling has no entry: the structured spelling is what is compiled."""

# These have no samples, since they are nothing alone.
_WITHOUT_SAMPLES = {
    "param": "kernel", "const": "kernel", "identity": "kernel", "dim_size": "kernel",
    "cond": "control", "while": "control", "scan": "control", "stop_gradient": "kernel",
    **dict.fromkeys(
        ("recording_while", "recording_scan", "checkpoint", "custom_vjp", "custom_jvp"), "spelled out first"
    ),
    "assert": "kernel; NumPy words a message with numbers in it", "keep": "kernel", "print": "NumPy",
}  # fmt: skip


def native(op: Op) -> str:
    """Return how an op is compiled and, where that depends on the dtypes or sizes, for which it is so."""
    if op.has(Trait.FLAT):
        return ""
    if op.act is not None or op.begin is not None:
        return "token executor"
    if op.has(Trait.COLLECTIVE):
        return "MPI"
    return _told(op, _emitted, list(NATIVE)) or _WITHOUT_SAMPLES[op.name]


def _told(op: Op, ask: Callable[[Op, Sample], str], kinds: list[str]) -> str:
    """Ask of every sample and return the first kind that is found, and for which dtypes it is another; or nothing."""
    found: dict[str, set[str]] = {}
    for sample in op.samples(np.random.default_rng(0)):
        dtypes = " ".join(dict.fromkeys(x.dtype.name for x in sample.inputs))
        found.setdefault(ask(op, sample), set()).add(dtypes)
    if not found:
        return ""
    first, *others = sorted(found, key=kinds.index)
    return "; ".join([first, *(_exception(k, found[k], found[first]) for k in others)])


def _exception(kind: str, dtypes: set[str], usual: set[str]) -> str:
    return f"seldom {kind}" if dtypes <= usual else f"{kind} for {', '.join(sorted(dtypes))}"


def _emitted(op: Op, sample: Sample) -> str:
    """Emit a program of this one op, without compiling it, and return what it consists of."""
    graph = _graph(op, sample)
    everything = list(range(len(graph.results)))
    count = len(graph.params)
    frame = layout(graph, [False] * count, [None] * count, everything)
    program = Program(graph, frame)
    program.emit()
    if program.report.fallbacks:
        return "NumPy"
    return "library" if any("[library]" in line for line in program.report.lines) else "kernel"


def _graph(op: Op, sample: Sample) -> Graph:
    """Return a graph of this one op."""
    builder = Builder(op.name)
    params = [builder.param(TensorType(x.dtype, x.shape)) for x in sample.inputs]
    return optimize(builder.finish(builder.node(op.name, params, sample.attrs).outputs))


# --- CUDA ----------------------------------------------------------------------------------------

CUDA = {
    "kernel": "code of a kernel, fused with what is around it",
    "library": "kernels of its own, from `dsl/codegen/cuda/ops/`",
    "control": "branches and loops that the host decides, around kernels",
    "host": "the operands are copied to the host, where the interpreter runs this op alone, and the results back",
}
_CUDA_INTRODUCTION = (
    """The column `CUDA` says what becomes of an op on [a GPU](cuda.md), found in the same way."""
)
_CUDA_WITHOUT_SAMPLES = {
    "MPI": "host", "NumPy": "host", "kernel; NumPy words a message with numbers in it": "kernel",
}  # fmt: skip


def cuda(op: Op) -> str:
    """Return how an op is compiled for a GPU, with its exceptions as in `native`."""
    if op.has(Trait.FLAT) or op.act is not None or op.begin is not None:
        return ""
    if op.has(Trait.COLLECTIVE):
        return "host"
    told = _told(op, _lowered, list(CUDA))
    if told:
        return told
    known = _WITHOUT_SAMPLES[op.name]
    return _CUDA_WITHOUT_SAMPLES.get(known, known)


def _lowered(op: Op, sample: Sample) -> str:
    """Lower a program of this one op, without compiling it, and return what it consists of."""
    graph = unroll(_graph(op, sample))
    lowering = Lowering(graph, [False] * len(graph.params), [False] * len(graph.params))
    if lowering.fallbacks:
        return "host"
    return "library" if any(map(library.supported, graph.nodes)) else "kernel"


# --- Derivatives ---------------------------------------------------------------------------------

_GRADIENT_INTRODUCTION = """The column `gradient` says `yes` for ops that can be [differentiated](autodiff.md), forward and backward
and to any order, and for the others why there is no derivative: zero where the op is constant or its results are not
floats."""
_BY_REGION = (
    "cond",
    "while",
    "scan",
    "recording_while",
    "recording_scan",
    "checkpoint",
    "custom_vjp",
    "custom_jvp",
)


def gradient(op: Op) -> str:
    """Return whether an op has a derivative, or why not."""
    if op.name in _BY_REGION:
        return "yes"
    rule = derivative_of(op.name)
    return "yes" if rule.vjp is not None else rule.reason


# --- Public functions ----------------------------------------------------------------------------


def support_page() -> str:
    """Return the page about the public functions, by namespace."""
    listed = {name: _functions(name) for name in NAMESPACES}
    count = sum(map(len, listed.values()))
    lines = [
        "# Supported functions",
        "",
        GENERATED,
        "",
        _SUPPORT_INTRODUCTION.format(count=count),
        "",
    ]
    lines += table(
        ("namespace", "functions"),
        [(f"[`dsl.{n}`](#dsl{n})", str(len(f))) for n, f in listed.items()],
    )
    for namespace, functions in listed.items():
        rows = [(f"`{name}{_signature(name, f)}`", _summary(f)) for name, f in functions]
        lines += ["", f"## dsl.{namespace}", "", *table(("function", "does"), rows)]
    return "\n".join(lines) + "\n"


_SUPPORT_INTRODUCTION = """{count} functions. They work on NumPy arrays at once and inside compiled functions as dataflow. Inside compiled
functions `np.name(...)` and `dsl.numpy.name(...)` are the same, likewise `np.linalg` and `np.fft`. A NumPy function that is not
listed is refused inside compiled functions, with the name of the nearest that is. All are compiled to [machine code](native-code.md);
the [ops](ops.md) that they are made of say how, and which can be differentiated. Functions of `np.polynomial`, `np.roots`, `np.poly`
and `np.polydiv`, which are plain Python, are traced as a function of your own is."""


def _functions(namespace: str) -> list[tuple[str, Callable[..., Any]]]:
    module = importlib.import_module(f"dsl.{namespace}")
    return [
        (name, getattr(module, name))
        for name in sorted(module.__all__)
        if callable(getattr(module, name))
    ]


def _signature(name: str, f: Callable[..., Any]) -> str:
    if isinstance(found := getattr(np, name, None), np.ufunc):
        inputs = ", ".join([f"x{k + 1}" for k in range(found.nin)] if found.nin > 1 else ["x"])
        return f"({inputs}, /, out=None, *, where=True, dtype=None)"
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    plain = [p.replace(annotation=p.empty, default=_default(p)) for p in parameters]
    return str(inspect.Signature(plain))


class _Shown:
    """A default value as it should be read."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(p: inspect.Parameter) -> Any:
    if p.default is p.empty:
        return p.empty
    if isinstance(p.default, (bool, int, float, str, tuple, type(None))):
        return p.default
    return _Shown(getattr(p.default, "__name__", "..."))


def _summary(f: Callable[..., Any]) -> str:
    return (inspect.getdoc(f) or "").partition("\n")[0]


# --- Tables --------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]


PAGES: dict[str, Callable[[], str]] = {"ops.md": ops_page, "numpy-support.md": support_page}

if __name__ == "__main__":
    main()
    print(f"wrote {', '.join(PAGES)} for dsl {dsl.__version__}")
