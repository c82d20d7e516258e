"""Mailboxes in memory that ranks share, here of ranks that are threads, or the same thread."""

from __future__ import annotations

import collections
import ctypes
import gc
import mmap
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from dsl.codegen.cpu import runtime
from dsl.errors import PeerError
from dsl.ir.shared_memory import DEAD, EAGER, NOTHING
from dsl.ir.types import BFLOAT16, DTYPES
from dsl.mpi import messages
from dsl.mpi.messages import Inbox
from dsl.mpi.near import Near, Neighbours

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "process_vm_readv"), reason="only Linux lets processes read one another"
)  # fmt: skip


class Other(np.ndarray):
    pass


def mails(count: int, pids: list[int] | None = None) -> list[Any]:
    from dsl.codegen.cpu import mail

    memory = memoryview(mmap.mmap(-1, mail.mail_bytes(count)))
    pids = pids or [os.getpid()] * count
    return [mail.mail(memory, own, range(10, 10 + count), pids) for own in range(count)]


def nears(count: int) -> list[Near]:
    return [Near(Neighbours(mail, range(10, 10 + count))) for mail in mails(count)]


def received(rank: Near) -> list[tuple[int, messages.Record]]:
    inbox: Inbox = collections.deque()
    rank.receive(inbox, 1)
    return list(inbox)


def test_records_come_in_order_with_their_numbers() -> None:
    a, b = mails(2)
    for k in range(5):
        assert a.post(1, 40 + k, tuple(range(-k, 0)), None, k % 2 == 0) == 0
    for k in range(5):
        flags = NOTHING | DEAD * (k % 2 == 0)
        assert b.take(0) == (10, 40 + k, flags, tuple(range(-k, 0)), None)
    assert b.take(10) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_all_dtypes_arrive_as_they_were(dtype: np.dtype) -> None:
    a, b = mails(2)
    for shape in ((), (0,), (3,), (2, 0, 3), (2, 3, 5), (9_000, 4), (1, 500_000)):
        sent = (np.arange(np.prod(shape)) % 97).astype(dtype).reshape(shape)
        a.post(1, 1, (7,), sent, False)
        *_, found = b.take(0)
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert found.tobytes() == sent.tobytes()
        assert found.flags.writeable
        assert found.flags.aligned


def test_what_arrives_is_nobody_elses() -> None:
    a, b = mails(2)
    for size in (10, EAGER):
        sent = np.zeros(size)
        a.post(1, 1, (), sent, False)
        sent[:] = 1
        *_, found = b.take(0)
        assert not found.any()
        found[:] = 2
        assert (sent == 1).all()


@pytest.mark.parametrize(
    "array",
    [np.zeros((4, 3)).T, np.zeros(8)[::2], np.zeros(3, "l").view("q"), np.zeros(3, ">f8"), np.zeros(2).view(Other)],
)  # fmt: skip
def test_arrays_that_lie_or_are_described_otherwise_are_not_taken_as_they_are(array: Any) -> None:
    a, _ = mails(2)
    assert a.post(1, 1, (), array, False) is NotImplemented


def test_memory_of_large_arrays_is_used_again_when_nobody_has_them() -> None:
    a, b = mails(2)
    sent = np.arange(100_000.0)
    places = set()
    for _ in range(200):
        assert a.post(1, 1, (), sent, False) == 0  # a copy: nothing is to be kept
        *_, found = b.take(0)
        places.add(found.ctypes.data)
        del found
    assert len(places) < 20


def test_an_array_without_room_is_kept_until_it_was_taken() -> None:
    a, b = mails(2)
    sent, held = np.arange(100_000.0), []
    while (ticket := a.post(1, 1, (), sent, False)) == 0:
        *_, found = b.take(0)
        held.append(found)
    assert (ticket, a.taken(1)) == (1, 0)
    *_, last = b.take(0)
    assert a.taken(1) == 1
    assert all((found == sent).all() for found in [*held, last])
    assert last.base is None
    del found
    held.clear()
    assert a.post(1, 1, (), sent, False) == 0
    b.close()
    assert a.taken(1) == -1


def test_an_array_larger_than_all_shared_memory_arrives() -> None:
    a, b = mails(2)
    sent = np.arange(3_000_000.0)
    assert a.post(1, 1, (), sent, False) == 1
    *_, found = b.take(0)
    np.testing.assert_array_equal(found, sent)


def test_an_array_of_a_process_that_is_gone_is_an_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    a, b = mails(2, [gone.pid, os.getpid()])
    a.post(1, 1, (), np.zeros(3_000_000), False)
    receiver = Near(Neighbours(b, (10, 11)))
    with pytest.raises(PeerError, match="rank 10 has ended"):
        received(receiver)


def test_a_child_process_does_not_give_memory_back() -> None:
    a, b = mails(2)
    a.post(1, 1, (), np.arange(10_000.0), False)
    *_, found = b.take(0)
    child = os.fork()
    if child == 0:
        del found
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(500):  # all of the heap, if the slot were free
        if a.post(1, 1, (), np.zeros(10_000), False):
            break
        b.take(0)
    np.testing.assert_array_equal(found, np.arange(10_000.0))


def test_what_a_full_mailbox_has_no_room_for_waits_in_order() -> None:
    a, b = nears(2)
    small, large = np.arange(50.0), np.arange(40_000.0)
    sent = []
    for k in range(2_000):
        array = large if k % 500 == 3 else small
        sent.append(a.send(11, 5, [k], array.copy(), False))
    assert a.held
    assert any(parcel is not None and not a.is_free(parcel) for parcel in sent)
    found: list[Any] = []
    while len(found) < 2_000:
        found += received(b)
        a.flush()
    for k, (source, record) in enumerate(found):
        assert (source, record.numbers) == (10, (k,))
        np.testing.assert_array_equal(record.array, large if k % 500 == 3 else small)
    assert all(parcel is None or a.is_free(parcel) for parcel in sent)
    assert a.tidy()
    assert not a.held


def test_a_small_array_that_waits_may_be_written() -> None:
    a, b = nears(2)
    array = np.zeros(100)
    count = 0
    while not a.held:
        a.send(11, 5, (), array, False)
        count += 1
    array[:] = 1
    found: list[Any] = []
    while len(found) < count:
        found += received(b)
        a.flush()
    assert not any(record.array.any() for _, record in found)


def test_odd_arrays_are_sent_as_plain_ones() -> None:
    a, b = nears(2)
    sent = [
        np.arange(12).reshape(3, 4).T,
        np.zeros(3, "q"),
        np.float32(3) * np.ones(2)[::-1],
        np.ones((), BFLOAT16),
    ]
    for array in sent:
        a.send(11, 5, (), array, False)
    for array, (_, record) in zip(sent, received(b), strict=True):
        np.testing.assert_array_equal(record.array, array)
        assert (record.array.dtype, record.array.shape) == (array.dtype, array.shape)


def test_who_closes_holds_up_nobody() -> None:
    a, b = nears(2)
    large = np.zeros(3_000_000)
    a.send(11, 5, (), large, False)
    b.close(0.0)
    a.close(60.0)  # returns at once


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_send_to_all_at_once_get_everything(ranks: int) -> None:
    rounds = 400
    sums: list[dict[int, list[float]]] = [{} for _ in range(ranks)]

    def work(own: int, here: Near) -> None:
        rng, open_ = np.random.default_rng(own), rounds * (ranks - 1)
        for k in range(rounds):
            for other in range(ranks):
                if other != own:
                    size = int(rng.integers(1, 30_000)) if k % 10 == 0 else 5
                    here.send(10 + other, 1, (k,), np.full(size, 1.0 / size), False)
            open_ -= take(own, here)
        while open_:
            here.flush()
            open_ -= take(own, here)
        while not here.tidy():
            here.flush()

    def take(own: int, here: Near) -> int:
        found = received(here)
        for source, record in found:
            before = sums[own].setdefault(source, [])
            assert record.numbers[0] == len(before), "out of order"
            before.append(record.array.sum())
        return len(found)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(nears(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own, by_source in enumerate(sums):
        assert sorted(by_source) == [10 + other for other in range(ranks) if other != own]
        for values in by_source.values():
            np.testing.assert_allclose(values, 1.0)


def test_nothing_is_left_of_what_was_received() -> None:
    a, b = mails(2)
    small, large = np.zeros(10), np.zeros(3_000_000)
    before = runtime.word("in_use").value
    for array in (small, large) * 5:
        a.post(1, 1, (1 << 40,), array, False)
        b.take(0)
    assert runtime.word("in_use").value == before
    counts = [sys.getrefcount(array.dtype) for array in (small, large)]
    for array in (small, large) * 50:
        a.post(1, 1, (1 << 40,), array, False)
        b.take(0)
    assert [sys.getrefcount(array.dtype) for array in (small, large)] == counts
