"""Random bits are integers."""

from __future__ import annotations

from dsl.ir.derivative import constant, derive

for _name in ("random_bits", "fold_in"):
    derive(_name, constant("integers"))
