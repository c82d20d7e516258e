"""The language: typed dataflow graphs, their ops, their text, their rules and their meaning.

`dsl.ir.interpret` and `dsl.ir.verify` are the functions; other names of the modules they live in are imported with
`from dsl.ir.interpret import ...`.
"""

from dsl.ir.build import Builder
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.interpret import interpret
from dsl.ir.text import parse
from dsl.ir.text import print_graph as print
from dsl.ir.types import TensorType
from dsl.ir.verify import verify

__all__ = [
    "Builder", "Graph", "Node", "TensorType", "Value", "interpret", "parse", "print", "verify",
]  # fmt: skip
