"""Atomics on half-precision values: lane after lane in Python, since the host has no such arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.groups import Group
from dsl.codegen.cuda.emulator.operations import operation
from dsl.codegen.cuda.emulator.sites import Site

__all__ = ["updater"]

Array = np.ndarray[Any, Any]

_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "min": np.fmin, "max": np.fmax,
}  # fmt: skip


def updater(site: Site, name: str, ptx_type: str) -> Callable[..., Array]:
    """A function (group, address, operand) -> old values."""
    bits = "u4" if ptx_type.endswith("x2") else "u2"
    swap = site.updater("exch", bits)
    read = site.updater("or", bits)
    function = _FUNCTIONS[name]

    def run(group: Group, address: Array, operand: Array) -> Array:
        address, operand = group.spread(address), group.spread(operand)
        old = np.empty(group.n, bits)
        nothing = np.zeros(1, bits)
        for k in range(group.n):
            one = Group(group.chunk, group.lanes[k : k + 1], [])
            old[k] = read(one, address[k : k + 1], nothing)[0]
            new = _apply(function, ptx_type, old[k : k + 1], operand[k : k + 1])
            swap(one, address[k : k + 1], new)
        return old

    return run


def _apply(function: Callable[[Array, Array], Array], ptx_type: str, x: Array, y: Array) -> Array:
    half = [np.ascontiguousarray(v).view(np.uint16) for v in (x, y)]
    result: Array
    if ptx_type.startswith("bf16"):
        widen = operation("from_bf16")
        result = operation("to_bf16")(function(widen(half[0]), widen(half[1])))
    else:
        result = function(half[0].view(np.float16), half[1].view(np.float16)).view(np.uint16)
    return result.view(x.dtype)
