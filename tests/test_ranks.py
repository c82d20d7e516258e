"""Graphs over several processes: the tests of partitioning, placed functions, sessions, servers and tables under mpirun."""

from __future__ import annotations

import os

import mpirun
import pytest

pytestmark = pytest.mark.skipif(bool(mpirun.missing()), reason=mpirun.missing())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_on_ranks_do_what_the_graph_does(ranks: int) -> None:
    found = mpirun.run(
        "devices", ranks, os.environ.get("DSL_RANDOM_RANKS", "8"), str(ranks), deadline=240
    )
    found.check()
    assert found.out.count("tests") == ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_functions_over_ranks(ranks: int) -> None:
    mpirun.run("placed", ranks).check()


@pytest.mark.parametrize("ranks", [2, 4])
def test_sessions_over_ranks(ranks: int) -> None:
    mpirun.run("sessions", ranks).check()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_servers_and_tables(ranks: int) -> None:
    mpirun.run("servers", ranks, os.environ.get("DSL_BACKUP_STEPS", "100")).check()


@pytest.mark.parametrize("program", ["placed", "sessions", "servers"])
def test_ranks_reach_each_other_by_messages_too(program: str) -> None:
    args = {"servers": ["100"]}.get(program, [])
    mpirun.run(program, 2, *args, DSL_MPI_SHARED_MEMORY="off").check()


def test_parts_on_ranks_that_share_no_memory() -> None:
    found = mpirun.run("devices", 3, "4", "3", deadline=240, DSL_MPI_SHARED_MEMORY="off")
    found.check()
