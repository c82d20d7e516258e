"""Write notebooks/parallel.ipynb and run it: `python notebooks/make_parallel.py`. Without MPI the examples are skipped."""

from __future__ import annotations

from cells import write

CELLS = r"""
# One program on many ranks

`mpirun -n 4 python train.py` runs a script in four processes, the ranks. This notebook shows what they can do together: how a graph is cut
into parts that send each other values, and then [five examples](../docs/examples.md) of training and simulation, each run under `mpirun`
from here. `pip install "dsl[mpi]"` brings MPI; without it the examples are skipped, and the rest works.
---
import os
import re
import subprocess
import sys

import numpy as np

import dsl
from dsl.mpi.mpirun import find_mpirun


def run(name, ranks):
    # Return the lines that an example prints on so many ranks; none without MPI.
    print(f"mpirun -n {ranks} python examples/{name}.py")
    try:
        import mpi4py  # noqa: F401

        command = find_mpirun().command(ranks, [sys.executable, f"../examples/{name}.py"])
    except (ImportError, dsl.errors.ConfigError):
        print('skipped: there is no MPI; run `pip install "dsl[mpi]"`')
        return []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DSL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout.splitlines()


def numbers(lines):
    # Return steps and losses, out of lines such as "step 40: loss 0.6380".
    found = [re.match(r"step +(\d+): \w+ (\S+)", line) for line in lines]
    return [(int(m[1]), float(m[2])) for m in found if m]
===
## A loop over two devices

`with dsl.device(...)` says where operations run: `cpu:1` is a device of this process, `/rank:1/cpu:0` one of another. Here one half of a
loop's body is on each of two devices of this process; on two ranks it is cut in the same way.
---
@dsl.jit
def pipeline(x, n):
    total = np.zeros_like(x)
    for i in range(n):
        with dsl.device("cpu:0"):
            y = np.sin(x + i)
        with dsl.device("cpu:1"):
            total = total + np.sqrt(1 + y)
    return total


x = np.linspace(0, 1, 4)
with dsl.config.override(cpu_devices=2):
    print(pipeline(x, 3))
    print(pipeline.lower(x, 3).text(locations=False))
===
The structured loop is spelled with tokens, and cut where values cross: each `send` on one device has a `recv` of the same key on the
other. `cpu:0` counts the trips and sends the predicate of each; on `cpu:1` a loop variable that carries nothing, the driver, starts each
trip, in which a `recv` then waits for its value. Nothing holds `cpu:0` back, so it may be some trips ahead: that is a pipeline.
---
with dsl.config.override(cpu_devices=2):
    print(pipeline.lower(x, 3).text("partitioned", locations=False))
===
## Layers on ranks

`examples/pipeline.py` trains a network whose layers are on different ranks. All of them call the same function; micro-batches go
through the layers and back in a loop like the one above. The errors are those of one rank with the whole batch.
---
# Differs from machine to machine.
layers = run("pipeline", 2)
===
## Batches over ranks

With `parallel.DataParallel` each rank has a copy of the parameters and a share of each batch. Gradients are averaged while earlier layers
are still being differentiated.
---
# Differs from machine to machine.
classifier = run("data_parallel", 2)
===
## A server that does not wait

A parameter server and three workers, one of which is slow. A step takes the first two gradients; what comes too late is dropped, and
whoever sent it goes on with the parameters of now.
---
# Differs from machine to machine.
server = run("parameter_server", 4)
===
## Tables over ranks

Word vectors: each rank has some of the rows. Only rows that a batch names travel or change.
---
# Differs from machine to machine.
words = run("word_embedding", 2)
===
## A stencil over ranks, and its gradient

Strips of a plate, whose edges go to the neighbours in each sweep (`parallel.sendrecv`), inside a compiled loop. The gradient goes through
loop and messages, and finds what the plate was like at first.
---
# Differs from machine to machine.
plate = run("heat_halo", 2)
===
## What they learned
---
# Differs from machine to machine.
curves = {"pipeline": layers, "classifier": classifier, "words": words, "plate": plate}
curves = {name: numbers(lines) for name, lines in curves.items() if lines}
try:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 3))
    for axis, (name, points) in zip(axes, curves.items()):
        axis.semilogy(*zip(*points), "o-", ms=3)
        axis.set(title=name, xlabel="step")
    axes[0].set(ylabel="loss")
    figure.tight_layout()
    plt.show()
except ModuleNotFoundError:
    print('There is no matplotlib: run `pip install -e ".[bench]"`.')
===
[Many processes](../docs/parallel.md) has the collectives and what happens when a rank fails, [devices](../docs/devices.md) how graphs are
placed and cut, [launching](../docs/launching.md) how a run survives the death of a rank.
"""

if __name__ == "__main__":
    write("parallel", CELLS)
