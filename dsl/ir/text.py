"""The text form of graphs: `parse(print_graph(graph)) == graph`. docs/reading-the-ir.md explains the grammar."""

from dsl.ir.parser import parse
from dsl.ir.printer import print_graph

__all__ = ["parse", "print_graph"]
