"""Imports point one way: errors, config, logs, events <- ir <- the middle <- native, lowered, executor <- executables <- compile
<- public API.

The imports of every module below `dsl/` are read with `ast`, those inside functions and under TYPE_CHECKING
included. Each breach is reported with its file, its line and the rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "dsl"

BASE = {"errors", "config", "logs", "events"}
MIDDLE = {"frontend", "autodiff", "passes", "codegen", "runtime", "mpi"}
LAYERS = (
    dict.fromkeys(BASE, 0)
    | {"ir": 1}
    | dict.fromkeys(MIDDLE, 2)
    | {"native": 3, "lowered": 3, "executor": 3, "executables": 4, "compile": 5}
)
PUBLIC = 6
LAYER_NAMES = [
    "errors, config, logs, events",
    "ir",
    "{" + ", ".join(sorted(MIDDLE)) + "}",
    "native, lowered, executor",
    "executables",
    "compile",
]
ORDER = " <- ".join([*LAYER_NAMES, "public API"])

HOMES = {
    "llvmlite": ("codegen",),
    "mpi4py": ("mpi",),
    "cupy": ("codegen.cuda", "runtime"),
}
HEAVY = {"scipy", "opt_einsum", "numba", "jax", "torch", "matplotlib", *HOMES}


class Import(NamedTuple):
    line: int
    module: str
    inside_function: bool


# --- Reading imports -----------------------------------------------------------------------------


def imports(tree: ast.AST, package: str) -> Iterator[Import]:
    """Yield every import below `tree`; `package` is what relative imports start from."""
    yield from _imports(tree, package, inside_function=False)


def _imports(tree: ast.AST, package: str, inside_function: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        for module in _modules(node, package):
            yield Import(node.lineno, module, inside_function)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(node, package, inside_function or function)


def _modules(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            source = _absolute(module or "", level, package)
            # `from dsl import errors` names a module, `from dsl.errors import DslError` a thing in one.
            return [f"dsl.{a.name}" for a in names] if source == "dsl" else [source]
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            return [module]
    return []


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    parents = package.split(".")
    return ".".join([*parents[: len(parents) - level + 1], *([module] if module else [])])


# --- Judging them --------------------------------------------------------------------------------


def layer(module: str) -> int:
    """Return the height of a module of dsl; the package itself and unlisted modules are public."""
    return LAYERS.get(part(module), PUBLIC)


def part(module: str) -> str:
    """Return the name just below `dsl`: `ir` for `dsl.ir.graph`, nothing for `dsl` itself."""
    return module.partition(".")[2].partition(".")[0]


def broken_rule(importer: str, found: Import) -> str | None:
    """Return the rule that an import breaks, or None."""
    if found.module.partition(".")[0] == "dsl":
        return _broken_order(importer, found.module)
    return _broken_third_party(importer, found)


def _broken_order(importer: str, imported: str) -> str | None:
    if part(importer) == part(imported) or layer(imported) < layer(importer):
        return None
    if layer(imported) > layer(importer):
        return f"imports point one way: {ORDER}"
    if layer(importer) == LAYERS["frontend"]:
        return "siblings never import one another; what they share is a Protocol in ir"
    return None


def _broken_third_party(importer: str, found: Import) -> str | None:
    top = found.module.partition(".")[0]
    homes = HOMES.get(top, ())
    if homes and not any(f"{importer}.".startswith(f"dsl.{home}.") for home in homes):
        return f"{top} appears only in {' and '.join(homes)}"
    if top in HEAVY and not found.inside_function:
        return f"{top} is slow to import: import it inside the function that needs it"
    return None


def breaches(path: Path, root: Path, text: str) -> list[str]:
    """Return one line for each import of a file that breaks a rule."""
    names = ["dsl", *path.relative_to(root).with_suffix("").parts]
    package = ".".join(names[:-1])
    importer = package if names[-1] == "__init__" else ".".join(names)
    shown = path.relative_to(root.parent)
    return [
        f"{shown}:{found.line}: imports {found.module}, but {rule}"
        for found in imports(ast.parse(text, str(path)), package)
        if (rule := broken_rule(importer, found))
    ]


# --- Tests ---------------------------------------------------------------------------------------


def test_no_module_breaks_an_import_rule() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [line for f in files for line in breaches(f, PACKAGE, f.read_text(encoding="utf-8"))]
    assert files
    assert not found, "\n".join(["import rules are broken:", *found])


@pytest.mark.parametrize(
    ("file", "source", "rule"),
    [
        ("ir/graph.py", "from dsl.frontend import tracer", "imports point one way"),
        ("ir/graph.py", "from dsl import compile", "imports point one way"),
        ("ir/graph.py", "import dsl", "imports point one way"),
        ("ir/ops/control.py", "from ...passes import cse", "imports point one way"),
        ("errors.py", "import dsl.ir.types", "imports point one way"),
        ("config.py", "def f():\n    from dsl.ir import types", "imports point one way"),
        ("compile.py", "from dsl.numpy import sin", "imports point one way"),
        ("passes/cse.py", "import dsl.codegen.cpu", "siblings never import one another"),
        ("passes/cse.py", "from ..runtime import queue", "siblings never import one another"),
        ("passes/cse.py", "if TYPE_CHECKING:\n    import dsl.autodiff", "siblings never"),
        ("passes/cse.py", "import_module('dsl.autodiff')", "siblings never"),
        ("passes/fuse.py", "def f():\n    import llvmlite", "llvmlite appears only in codegen"),
        ("runtime/x.py", "def f():\n    import mpi4py.MPI", "mpi4py appears only in mpi"),
        ("codegen/cpu/x.py", "def f():\n    import cupy", "cupy appears only in codegen.cuda"),
        ("codegen/cuda.py", "import cupy", "cupy is slow to import"),
        ("linalg.py", "from scipy import linalg", "scipy is slow to import"),
        ("nn.py", "if TYPE_CHECKING:\n    import torch", "torch is slow to import"),
        ("nn.py", "class A:\n    import scipy.special", "scipy is slow to import"),
    ],
)
def test_a_breach_is_named_with_file_line_and_rule(file: str, source: str, rule: str) -> None:
    line = source.count("\n") + 1
    (message,) = breaches(PACKAGE / file, PACKAGE, source)
    assert message.startswith(f"dsl/{file}:{line}: imports ")
    assert rule in message


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("config.py", "from dsl.errors import ConfigError"),
        ("ir/graph.py", "from dsl import config, errors\nfrom dsl.ir.types import TensorType"),
        ("ir/ops/__init__.py", "from . import control\nfrom ..types import TensorType"),
        ("frontend/tracer.py", "from dsl.frontend.trees import flatten\nfrom dsl.ir import graph"),
        ("compile.py", "from dsl.frontend import tracer\nfrom dsl.passes.cse import cse"),
        ("__init__.py", "from dsl.compile import jit\nfrom dsl import linalg, numpy"),
        ("linalg.py", "import numpy as np\nimport ml_dtypes\nfrom dsl.numpy import matmul"),
        ("nn.py", "def f():\n    import scipy.special"),
        ("codegen/cuda/launch.py", "def f():\n    import cupy\n    import llvmlite"),
        ("runtime/devices.py", "def f():\n    import cupy"),
        ("mpi/transport.py", "def f():\n    from mpi4py import MPI"),
    ],
)
def test_imports_that_keep_the_rules_pass(file: str, source: str) -> None:
    assert breaches(PACKAGE / file, PACKAGE, source) == []
