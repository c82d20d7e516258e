"""The tags of large arrays and the memory that waits for them, without MPI."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from dsl.mpi.large import Incoming, Outgoing

F8 = np.dtype(np.float64)


@dataclass
class Line:
    """MPI, as far as receives go: for each tag, those posted, in order."""

    posted: dict[tuple[int, int], list[np.ndarray]] = field(default_factory=dict)
    cancelled: int = 0

    def receive(self, memory: np.ndarray, source: int, tag: int) -> Line:
        self.posted.setdefault((source, tag), []).append(memory.reshape(-1).view(np.uint8))
        return self

    def deliver(self, source: int, tag: int, array: np.ndarray) -> None:
        self.posted[source, tag].pop(0)[:] = array.view(np.uint8)

    def Cancel(self) -> None:
        self.cancelled += 1

    def Wait(self) -> None:
        return


def test_a_size_has_one_tag_for_a_rank() -> None:
    out = Outgoing()
    assert out.tag(1, 800) == out.tag(1, 800) != out.tag(1, 808)
    assert out.tag(2, 808) == out.tag(1, 800)  # tags of two ranks never meet


def test_more_sizes_than_tags_go_round_behind_the_others() -> None:
    out = Outgoing()
    own = {out.tag(1, size) for size in range(1_000)}
    rest = [out.tag(1, 10_000 + k % 7) for k in range(40_000)]
    assert len(own) == 1_000
    assert not own & set(rest)
    assert max(rest) <= 32_767
    assert all(one != two for one, two in itertools.pairwise(rest))


def test_the_third_array_of_a_size_is_expected() -> None:
    line = Line()
    into = Incoming(line.receive)
    for number in range(5):
        ahead = len(line.posted.get((0, 2), []))
        assert ahead == (number >= 2)
        sent = np.full(100, float(number))
        if ahead:
            line.deliver(0, 2, sent)  # before it is announced
        _, array = into.take(0, 2, (10, 10), F8)
        if not ahead:
            line.deliver(0, 2, sent)
        np.testing.assert_array_equal(array, sent.reshape(10, 10))
        into.expect()


def test_arrays_announced_at_once_keep_their_order() -> None:
    line = Line()
    into = Incoming(line.receive)
    for _ in range(2):
        into.take(0, 2, (4,), F8)
    into.expect()
    arrays = [into.take(0, 2, (4,), F8)[1] for _ in range(3)]
    for number in range(5):
        line.deliver(0, 2, np.full(4, float(number)))
    assert [array[0] for array in arrays] == [2.0, 3.0, 4.0]


def test_memory_that_waits_is_limited_and_given_up() -> None:
    line = Line()
    into = Incoming(line.receive)
    for source in range(8):
        for _ in range(2):
            into.take(source, 2, (1 << 20,), F8)
        into.expect()
    waiting = sum(len(posted) for posted in line.posted.values()) - 16
    assert waiting == 4  # of 8 MB each
    into.close()
    assert line.cancelled == 4
