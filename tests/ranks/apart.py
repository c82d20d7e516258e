"""Another program of this folder, on ranks that share no memory, as those of several machines: `python apart.py collectives`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from dsl.mpi import board

board.make_boards = lambda comm, count: [None] * count
del sys.argv[0]
sys.argv[0] = str(Path(__file__).with_name(f"{sys.argv[0]}.py"))
runpy.run_path(sys.argv[0], run_name="__main__")
