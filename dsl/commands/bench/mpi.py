"""`mpirun -n 2 python -m dsl bench mpi`: what moves between ranks, beside mpi4py's own buffer calls in the same run.

Every rank runs this; rank 0 prints and writes. Times are the best of many short rounds, taken in turns: a busy machine lets
some of them through.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dsl.errors import ConfigError

__all__ = ["run_mpi"]

SIZES = (8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)


def run_mpi(target: Path | None) -> int:
    """Measure everything, print a table on rank 0, and return the exit code."""
    import dsl.parallel  # noqa: F401  # which says how ranks reach each other
    from dsl.mpi.world import world

    here = world()
    if here.size < 2:
        raise ConfigError(
            "this benchmark runs on several ranks",
            remedy="mpirun -n 2 python -m dsl bench mpi",
        )
    rows: list[dict[str, Any]] = []
    for measure in (_messages, _allreduces, _null_steps, _loops, _tables):
        rows += measure()
    if here.rank == 0:
        print(_table(rows))
        if target is not None:
            target.write_text(json.dumps({"ranks": here.size, "rows": rows}, indent=1) + "\n")
        sys.stdout.flush()
    here.control.Barrier()
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'what':<34}{'dsl':>14}{'mpi4py':>14}{'ratio':>8}  asked"]
    for row in rows:
        raw = "" if row.get("raw") is None else f"{row['raw']:.4g}"
        ratio = "" if row.get("raw") is None else f"{row['ours'] / row['raw']:.2f}"
        unit = row["unit"]
        lines.append(
            f"{row['what']:<34}{row['ours']:>10.4g} {unit:<3}{raw:>14}{ratio:>8}  {row['asked']}"
        )
    return "\n".join(lines)


def _best(*ways: Callable[[], None], rounds: int = 40) -> list[float]:
    """Time ways in turns; each is called once before."""
    from dsl.mpi.world import world

    for way in ways:
        way()
    found = [float("inf")] * len(ways)
    for _ in range(rounds):
        for k, way in enumerate(ways):
            world().control.Barrier()
            start = time.perf_counter()
            way()
            found[k] = min(found[k], time.perf_counter() - start)
    return found


# -- messages and collectives ----------------------------------------------------------------------------------------


def _messages() -> list[dict[str, Any]]:
    """A token there and back, over the transport that Send and Recv use, and by Send and Recv of mpi4py."""
    from dsl.mpi.shared import transport
    from dsl.mpi.world import world

    here, move = world(), transport()
    comm = here.control
    arrived: list[Any] = []
    move.handle(60, lambda source, record: arrived.append(record.array))

    def wait() -> None:
        while not arrived:
            move.poll()
        arrived.clear()

    rows = []
    for size in SIZES:
        # What arrives goes to memory of its own, as a token does: an array that goes there and back stays in the cache.
        array, target = np.zeros(max(1, size // 8)), np.zeros(max(1, size // 8))
        trips = max(1, min(30, (1 << 20) // size))

        def raw(array: np.ndarray = array, target: np.ndarray = target, trips: int = trips) -> None:
            for _ in range(trips):
                if here.rank == 0:
                    comm.Send(array, 1)
                    comm.Recv(target, 1)
                elif here.rank == 1:
                    comm.Recv(target, 0)
                    comm.Send(array, 0)

        def ours(array: np.ndarray = array, trips: int = trips) -> None:
            for _ in range(trips):
                if here.rank == 0:
                    move.send(1, 60, (1,), array)
                    move.flush()
                    wait()
                elif here.rank == 1:
                    wait()
                    move.send(0, 60, (1,), array)
                    move.flush()
            move.drain(1.0)

        plain, tokens = (1e6 * t / (2 * trips) for t in _best(raw, ours))
        asked = "1.15x" if size >= 64 << 10 else "+10 µs"
        rows.append(
            {
                "what": f"message of {size} bytes",
                "ours": tokens,
                "raw": plain,
                "unit": "µs",
                "asked": asked,
            }
        )
    return rows


def _allreduces() -> list[dict[str, Any]]:
    from dsl import parallel
    from dsl.mpi.world import world

    rows = []
    for size in (1 << 10, 64 << 10, 1 << 20, 8 << 20):
        array, target = np.ones(size // 8), np.empty(size // 8)

        count = max(2, min(20, (1 << 20) // size))

        def raw(array: np.ndarray = array, target: np.ndarray = target, count: int = count) -> None:
            for _ in range(count):
                world().control.Allreduce(array, target)

        def ours(array: np.ndarray = array, count: int = count) -> None:
            for _ in range(count):
                parallel.allreduce(array)

        plain, collective = (1e6 * t / count for t in _best(raw, ours))
        rows.append(
            {
                "what": f"allreduce of {size} bytes",
                "ours": collective,
                "raw": plain,
                "unit": "µs",
                "asked": "1.1x",
            }
        )
    return rows


# -- steps and loops -------------------------------------------------------------------------------------------------


def _null_steps() -> list[dict[str, Any]]:
    """A step of a session with a part on every rank that does next to nothing."""
    import dsl
    from dsl.mpi.world import world
    from dsl.session.remote import serve

    here = world()
    graph = dsl.Graph("null_steps")
    with graph:
        x = dsl.placeholder(np.float64, (), name="x")
        parts = []
        for rank in range(1, here.size):
            with dsl.device(f"/rank:{rank}/cpu:0"):
                parts.append(dsl.Variable(0.0, name=f"v{rank}").assign(x))
        step = dsl.group(*parts)
    if here.rank:
        serve(graph)
        return []
    count = 50
    with dsl.Session(graph) as session:
        call = session.make_callable(step, [x])
        for _ in range(20):
            call(1.0)
        best = 0.0
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(count):
                call(1.0)
            best = max(best, count / (time.perf_counter() - start))
    what = f"null step over {here.size} ranks"
    return [{"what": what, "ours": best, "raw": None, "unit": "/s", "asked": "2,000/s on 4"}]


def _loops() -> list[dict[str, Any]]:
    """A loop whose predicate is on rank 0 and that rank 1 takes part in."""
    import dsl

    def body(i: Any, j: Any) -> tuple[Any, Any]:
        with dsl.device("/rank:0/cpu:0"):
            i = i + 1
        with dsl.device("/rank:1/cpu:0"):
            return i, j + 1

    @dsl.jit
    def empty(n: Any) -> Any:
        # By a verb: dsl does not convert code of its own package.
        return dsl.while_loop(lambda i, j: i < n, body, (0, 0))

    trips = 1_000
    (seconds,) = _best(lambda: empty(np.int64(trips)) and None, rounds=20)
    return [
        {
            "what": "while over ranks 0 and 1",
            "ours": trips / seconds,
            "raw": None,
            "unit": "/s",
            "asked": "20,000/s",
        }
    ]


def _tables() -> list[dict[str, Any]]:
    """A step of a table of embeddings: its time must not depend on the rows."""
    from dsl.mpi.world import world
    from dsl.optim import Adagrad
    from dsl.parallel import ShardedEmbedding

    rows = []
    for count in (10**4, 10**5, 10**6, 10**7):
        table = ShardedEmbedding(count, 8, optimizer=Adagrad(0.1))
        ids = np.random.default_rng(world().rank).integers(0, count, 256)

        def step(table: Any = table, ids: np.ndarray = ids) -> None:
            for _ in range(5):
                table.update(ids, table.lookup(ids))

        (seconds,) = _best(step, rounds=4)
        rows.append(
            {
                "what": f"embedding step, {count} rows",
                "ours": 1e6 * seconds / 5,
                "raw": None,
                "unit": "µs",
                "asked": "flat",
            }
        )
    return rows
