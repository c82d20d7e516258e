"""How a program meets its caller: the words of its frame, the fields of its context, its status.

The frame is an array of 64-bit words. A param that is an array of rank r takes 1 + 2r words: address, dims, strides in
bytes; a scalar takes two, holding its bytes. A result that is an array of rank r takes 1 + r words, which the program
fills: the address of a block that passes to the caller, and the dims; a result of rank 0 takes two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsl.ir.graph import Graph

__all__ = ["CONTEXT", "STATUS", "Frame", "Place"]


class STATUS:
    """What a program returns."""

    OK = 0
    ERROR = 1  # the context says which
    MEMORY = 2
    PYTHON = -1  # a Python exception is set


class CONTEXT:
    """Offsets of the context's fields, in bytes."""

    CODE = 0
    PAYLOAD = 8


@dataclass(frozen=True)
class Place:
    """Where a param or result starts, and what it is."""

    kind: str  # array or scalar
    word: int
    strides: Any = None  # of an array param: None for C order, a tuple of bytes, or "any"


@dataclass(frozen=True)
class Frame:
    """The layout for one program; `results` pairs a place with the number of the graph's result."""

    params: tuple[Place, ...]
    results: tuple[tuple[Place, int], ...]
    words: int


def layout(graph: Graph, scalars: list[bool], strides: list[Any], results: list[int]) -> Frame:
    """Lay out a frame; `scalars` tells which rank-0 params come as values rather than as arrays."""
    params, word = [], 0
    for param, as_scalar, step in zip(graph.params, scalars, strides, strict=True):
        rank = len(param.shape)
        params.append(Place("scalar" if as_scalar else "array", word, step))
        word += 2 if as_scalar else 1 + 2 * rank
    places = []
    for index in results:
        rank = len(graph.results[index].shape)
        places.append((Place("array" if rank else "scalar", word), index))
        word += 1 + rank if rank else 2
    return Frame(tuple(params), tuple(places), word)
