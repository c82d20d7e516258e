"""Summaries for TensorBoard, and graphs for TensorFlow and Netron, without any of them installed."""

from dsl.summary.graphdef import graph_def, graph_text
from dsl.summary.histograms import Histogram
from dsl.summary.reader import read
from dsl.summary.writer import FileWriter

__all__ = ["FileWriter", "Histogram", "graph_def", "graph_text", "read"]
