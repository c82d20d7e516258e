"""The words of mailboxes: the rings that ranks of one machine share, records in them, and what one rank knows of them.

Between each two ranks there is a ring for each direction. Who sends alone writes its first line, who receives its second. The
counters only grow, so a ring is empty when both bytes are the same, and full when they are a ring's data apart.
A record lies in one piece; where the end of the data has no room for it, a record of length 0 says that it is at the start.

| word of a record | |
| --- | --- |
| 0 | its bytes, a multiple of 8 |
| 1 | from the lowest byte: kind, flags, code of the dtype, rank of the array; count of numbers, 4 bytes |
| then | the numbers, the dims, and the array: its bytes, or where a large one is |

Behind the rings each direction has a heap, for large arrays. Who sends copies an array into a slot of it, and who receives has an
array of that memory, and marks the slot when nobody needs it any more. Slots are taken one after the other, round and round. An
array for which there is no slot stays where it is, and who receives copies it out of the process of who sends.
"""

from __future__ import annotations

__all__ = ["LINE", "Dtype", "Head", "Peer", "Ring", "Slot", "State"]

LINE = 64  # bytes that processors pass to one another


class Ring:
    """Words of a ring."""

    WRITTEN = 0  # bytes of records, ever; by who sends
    READ = 8  # likewise; by who receives
    TAKEN = 9  # large arrays, ever
    CLOSED = 10  # 1 if nothing will be taken any more
    DATA = 16


class Head:
    """Where the fields of a record's second word begin: bits."""

    FLAGS, CODE, RANK, COUNT = 8, 16, 24, 32
    WORDS = 2


class Peer:
    """Words about another rank, or this one: the rings to and from it."""

    OUT, IN, PID, NAME, SENT, SEEN, END, OUT_HEAP, IN_HEAP, FIRST, LAST, SIZE = range(12)
    # NAME: its number in the world; SENT: large arrays, ever; SEEN: what READ of OUT was when last looked at; END: see `room_for`;
    # FIRST, LAST: bytes of slots that were given back, and that were taken, ever


class Slot:
    """Words of a slot before its memory, which is a line behind its start."""

    USED, BYTES, PID = range(3)  # USED: 1 until who received it gives it back; PID: of that process


class Dtype:
    """Words about a dtype: NumPy's object, bytes of an element."""

    DESCR, ITEMSIZE, SIZE = range(3)


class State:
    """Words of one rank; the peers and dtypes are where the addresses say."""

    PEERS, PEER_COUNT, NEXT, ROOM, HEAP, DTYPES, DTYPE_COUNT = range(7)
    NONE, NOT_IMPLEMENTED, ARRAY_TYPE, NEW_ARRAY, SET_BASE, HANDLER, RELEASE, VECTOR = range(7, 15)
    # NEXT: the peer to look at first; ROOM, HEAP: bytes of data in a ring, of a heap; RELEASE: the address of `dsl_mail_release`;
    # VECTOR: where process_vm_readv is told what goes where
    SIZE = VECTOR + 4
