"""The tests of partitioning over ranks: each device of theirs is on a rank, and every rank runs its parts.

Then graphs made at random, on random devices: all ranks together give one rank's results.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent.parent))

import placed_graphs
import test_partition
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_graphs import graphs

from dsl.errors import PeerError
from dsl.executor.ranks import exchange
from dsl.ir.devices import DeviceName
from dsl.ir.environment import Environment
from dsl.ir.graph import Graph
from dsl.ir.parts import Partition
from dsl.ir.token_machine import run_tokens
from dsl.mpi.rendezvous import Edges, RankRendezvous
from dsl.mpi.world import world
from dsl.passes.lower_control import lower_control
from dsl.runtime.devices import Cpu
from dsl.runtime.parts import run_parts

RANK, SIZE = world().rank, world().size
NAMES = [f"/rank:{k % SIZE}/cpu:{k // SIZE}" for k in range(3)]
steps = 0


def run_over_ranks(
    found: Partition, args: Sequence[Any], *, seed: int = 0, timeout: float = 30, **options: Any
) -> list[Any]:
    """Run a step on all ranks and return its results on each of them."""
    global steps
    steps += 1
    own = {d: p for d, p in found.parts.items() if DeviceName.parse(d).rank == RANK}
    keys = placed_graphs.transfers(found)
    resources = options.pop("resources", None)
    orders = random.Random(seed)

    def run_one(graph: Graph, given: Sequence[Any], environment: Environment) -> list[Any]:
        order = random.Random(orders.random())
        return run_tokens(graph, given, environment=environment, order=order, **options)

    meeting = RankRendezvous(exchange(), 7, steps, Edges(keys)) if SIZE > 1 else None
    arrays = [np.asarray(arg) for arg in args]
    problem: Any = None
    mine: Any = {}
    try:
        mine = run_parts(
            Partition(own, ()) if meeting else found, arrays, placed_graphs.CPUS, run_one,
            Environment(resources, timeout=timeout), rendezvous=meeting,
        )  # fmt: skip
    except Exception as error:
        problem = error
        if meeting is not None and not isinstance(error, PeerError):
            exchange().tell(meeting, error)
    if meeting is None:
        if problem is not None:
            raise problem
        return list(mine)
    meeting.close()
    everyone = MPI.COMM_WORLD.allgather((mine, None if problem is None else repr(problem)))
    failures = [text for _, text in everyone if text is not None]
    if failures:
        raise problem or PeerError(failures[0])
    together = {device: values for part, _ in everyone for device, values in part.items()}
    return found.gather(arrays, together)


def adapt() -> None:
    """Put the tests' devices on ranks."""
    placed_graphs.DEVICES[:] = NAMES
    placed_graphs.CPUS.clear()
    placed_graphs.CPUS.update((name, Cpu(k // SIZE, rank=k % SIZE)) for k, name in enumerate(NAMES))
    placed_graphs.run = test_partition.run = run_over_ranks


# Those that compare texts in which devices are named, or that look into one process, stay where they are.
TESTS = (
    "test_a_value_goes_to_a_device_once",
    "test_small_constants_are_made_where_they_are_read_and_big_ones_are_sent", "test_sizes_cross",
    "test_a_structured_node_runs_whole_where_it_is", "test_a_branch_on_each_device",
    "test_a_switch_runs_where_its_data_is", "test_a_loop_in_a_branch_not_taken_spans_devices",
    "test_loops_in_both_branches_on_different_devices", "test_the_predicate_on_a_third_device",

    "test_a_device_that_only_reads_invariants_is_driven", "test_a_variable_on_each_device",
    "test_swapped_variables_on_two_devices",
    "test_one_enter_and_one_next_iteration_for_variables_on_two_devices",
    "test_invariants_that_come_late", "test_only_the_inner_loop_touches_another_device",
    "test_an_inner_loop_on_another_device", "test_nested_loops_on_random_devices",
)  # fmt: skip


def check_random(count: int, start: int) -> None:
    """Check graphs made at random, on devices chosen at random; all ranks make and choose alike."""

    @seed(start)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(graphs(), st.integers(0, 1 << 30))
    def check(drawn: tuple[Graph, list[Any]], number: int) -> None:
        structured, args = drawn
        flat, arrays = lower_control(structured), [np.asarray(arg) for arg in args]
        wanted = test_partition.outcome(lambda: run_tokens(flat, arrays))[1]
        rng = random.Random(number)
        assigned = placed_graphs.with_devices(flat, lambda node: rng.choice(NAMES))
        found = placed_graphs.cut(assigned)
        got = test_partition.outcome(lambda: run_over_ranks(found, arrays, seed=number))[1]
        assert got == wanted, (got, wanted)

    check()


if __name__ == "__main__":
    adapt()
    for name in TESTS:
        getattr(test_partition, name)()
    check_random(int(sys.argv[1]), int(sys.argv[2]))
    print(f"rank {RANK} of {SIZE}: {len(TESTS)} tests, {steps} steps")
