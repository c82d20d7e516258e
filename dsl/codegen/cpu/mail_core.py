"""Mailboxes in memory that the ranks of one machine share, in the language of words (`words_language`).

`dsl_mail_post`, `dsl_mail_take` and `dsl_mail_taken` are built-in functions of Python, called with the array of a `State` for
`self`; `mail_layout` describes all words. A small array travels inside its record. A large one is copied once: into a slot of
shared memory, where who receives it has it, without a copy; or, if there is none, out of the process of who sent it, and kept
there meanwhile.

One thread at a time posts, and one takes. A record is there for the other side when `WRITTEN` says so, and its room is free when
`READ` does, whichever processor either runs on.
"""

from __future__ import annotations

from dsl.codegen.cpu.mail_layout import LINE, Dtype, Head, Peer, Ring, Slot, State
from dsl.codegen.cpu.object_words import (
    CARRAY,
    CONTIGUOUS,
    DATA,
    DESCR,
    DIMS,
    FLAGS,
    HALF,
    MEMORY_HANDLER,
    OWNDATA,
    RANK,
    TYPE,
)  # fmt: skip
from dsl.codegen.words_language import (
    Word,
    acquire,
    call_at,
    copy_words,
    external,
    pause,
    publish,
    rarely,
    records,
    stream_lines,
)
from dsl.ir.shared_memory import DEAD, EAGER, LARGE, LOST, NOTHING, SHARED

LONG = 1 << 18  # bytes, copying which takes long enough to let other threads of Python run

# -- sending ----------------------------------------------------------------------------------------------------------


def dsl_mail_post(self: Word, args: Word, count: Word) -> Word:
    """post(peer, kind, numbers, array or None, dead): 0; -1 if there is no room; or, if the array must be kept, how many were so far.

    NotImplemented if the array is none of an exact dtype that lies in one piece.
    """
    state = self[DATA]
    array = args[3]
    dtype = 0
    if array != state[State.NONE]:
        dtype = known_dtype(state, array)
        if rarely(dtype == 0):
            return share(state[State.NOT_IMPLEMENTED])
    peer = state[State.PEERS] + number(args[0]) * (8 * Peer.SIZE)
    return external("PyLong_FromLongLong", write(state, peer, args, array, dtype))


def known_dtype(state: Word, array: Word) -> Word:
    """The `Dtype` of an array that can be sent as it is, or 0."""
    if array[TYPE] != state[State.ARRAY_TYPE] or array[FLAGS] & CONTIGUOUS != CONTIGUOUS:
        return 0
    for dtype in records(state[State.DTYPES], state[State.DTYPE_COUNT], 8 * Dtype.SIZE):
        if dtype[Dtype.DESCR] == array[DESCR]:
            return dtype
    return 0


def write(state: Word, peer: Word, args: Word, array: Word, dtype: Word) -> Word:
    numbers = args[2]
    count = external("PyTuple_Size", numbers)
    flags = number(args[4]) * DEAD | NOTHING
    rank = 0
    code = 0
    size = 0
    tail = 0
    if dtype != 0:
        flags = 0
        rank = array[RANK] & HALF
        code = (dtype - state[State.DTYPES]) // (8 * Dtype.SIZE)
        size = bytes_of(array[DIMS], rank, dtype)
        tail = (size + 7) // 8
        if size > EAGER:
            tail = 1
    length = 8 * (Head.WORDS + count + rank + tail)
    place = room_for(state, peer, length)
    if rarely(place == 0):
        return -1
    last = place + length - 8
    ticket = 0
    if size > EAGER:
        last[0] = new_slot(state, peer, size)
        flags = SHARED
        if last[0] != 0:
            fill(last[0], array[DATA], size)
            last[0] -= peer[Peer.OUT_HEAP]
        else:
            flags = LARGE
            last[0] = array[DATA]
            peer[Peer.SENT] += 1
            ticket = peer[Peer.SENT]
    elif tail > 0:
        external("memcpy", place + length - 8 * tail, array[DATA], size)
    place[0] = length
    about = flags << Head.FLAGS | code << Head.CODE | rank << Head.RANK | count << Head.COUNT
    place[1] = number(args[1]) | about
    place += 8 * Head.WORDS
    for k in range(count):
        place[k] = number(external("PyTuple_GetItem", numbers, k))
    copy_words(place + 8 * count, array_dims(array, rank), rank)
    publish(peer[Peer.OUT] + 8 * Ring.WRITTEN, peer[Peer.END])
    return ticket


def fill(slot: Word, source: Word, size: Word) -> Word:
    """Copy an array into a slot, past the caches: what of it another processor has would be fetched only to be overwritten."""
    target = slot + LINE
    if size < LONG:
        stream_lines(target, source, size // LINE)
    else:
        thread = external("PyEval_SaveThread")
        stream_lines(target, source, size // LINE)
        external("PyEval_RestoreThread!", thread)
    whole = size // LINE * LINE
    external("memcpy", target + whole, source + whole, size - whole)
    return 0


def new_slot(state: Word, peer: Word, size: Word) -> Word:
    """A slot with room for so many bytes in the heap to a peer, or 0."""
    heap = state[State.HEAP]
    base = peer[Peer.OUT_HEAP]
    need = (size + 2 * LINE - 1) // LINE * LINE
    while peer[Peer.FIRST] < peer[Peer.LAST]:
        oldest = base + peer[Peer.FIRST] % heap
        if acquire(oldest + 8 * Slot.USED) != 0:
            break
        peer[Peer.FIRST] += oldest[Slot.BYTES]
    slot = base + peer[Peer.LAST] % heap
    skipped = 0
    if slot + need > base + heap:
        skipped = base + heap - slot
    if peer[Peer.LAST] + skipped + need - peer[Peer.FIRST] > heap:
        return 0
    if skipped > 0:
        slot[Slot.USED] = 0
        slot[Slot.BYTES] = skipped
        slot = base
    peer[Peer.LAST] += skipped + need
    slot[Slot.USED] = 1
    slot[Slot.BYTES] = need
    return slot


def array_dims(array: Word, rank: Word) -> Word:
    if rank == 0:
        return 0
    return array[DIMS]


def bytes_of(dims: Word, rank: Word, dtype: Word) -> Word:
    size = dtype[Dtype.ITEMSIZE]
    for k in range(rank):
        size *= dims[k]
    return size


def room_for(state: Word, peer: Word, length: Word) -> Word:
    """Where in the ring to a peer a record of so many bytes can be written, or 0; `END` says what `WRITTEN` is then."""
    ring = peer[Peer.OUT]
    room = state[State.ROOM]
    written = ring[Ring.WRITTEN]
    place = written % room
    skipped = 0
    if place + length > room:
        skipped = room - place
    end = written + skipped + length
    if end - peer[Peer.SEEN] > room:
        peer[Peer.SEEN] = acquire(ring + 8 * Ring.READ)
        if end - peer[Peer.SEEN] > room:
            return 0
    peer[Peer.END] = end
    data = ring + 8 * Ring.DATA
    if skipped == 0:
        return data + place
    data[place // 8] = 0
    return data


def dsl_mail_taken(self: Word, args: Word, count: Word) -> Word:
    """taken(peer): how many arrays the peer has, of those that were kept for it; -1 if it takes no more."""
    state = self[DATA]
    peer = state[State.PEERS] + number(args[0]) * (8 * Peer.SIZE)
    ring = peer[Peer.OUT]
    found = acquire(ring + 8 * Ring.TAKEN)
    if acquire(ring + 8 * Ring.CLOSED) != 0:
        found = -1
    return external("PyLong_FromLongLong", found)


# -- receiving --------------------------------------------------------------------------------------------------------


def dsl_mail_take(self: Word, args: Word, count: Word) -> Word:
    """take(looks): the next record as (rank, kind, flags, numbers, array or None), or None if none comes while so often looked."""
    state = self[DATA]
    peer = waiting(state)
    if peer == 0:
        looks = number(args[0])
        if looks > 0:
            peer = watch(state, looks)
        if peer == 0:
            return share(state[State.NONE])
    return receive(state, peer)


def watch(state: Word, looks: Word) -> Word:
    """Look so often for a record, while other threads of Python may run."""
    peer = 0
    thread = external("PyEval_SaveThread")
    while looks > 0 and peer == 0:
        pause()
        peer = waiting(state)
        looks -= 1
    external("PyEval_RestoreThread!", thread)
    return peer


def waiting(state: Word) -> Word:
    """A peer from which there is a record, each in its turn, or 0."""
    count = state[State.PEER_COUNT]
    index = state[State.NEXT]
    for _ in range(count):
        peer = state[State.PEERS] + index * (8 * Peer.SIZE)
        index += 1
        if index == count:
            index = 0
        ring = peer[Peer.IN]
        if acquire(ring + 8 * Ring.WRITTEN) != ring[Ring.READ]:
            state[State.NEXT] = index
            return peer
    return 0


def receive(state: Word, peer: Word) -> Word:
    """The record from a peer as a tuple; 0, with an exception set and the record left there, if it cannot be made."""
    ring = peer[Peer.IN]
    data = ring + 8 * Ring.DATA
    record = data + ring[Ring.READ] % state[State.ROOM]
    if record[0] == 0:
        skipped = state[State.ROOM] - (record - data)
        publish(ring + 8 * Ring.READ, ring[Ring.READ] + skipped)
        record = data
    head = record[1]
    flags = head >> Head.FLAGS & 255
    count = head >> Head.COUNT
    array = state[State.NONE]
    if flags & NOTHING != 0:
        share(array)
    else:
        last = record[record[0] // 8 - 1]
        array = new_array(state, peer, head, record + 8 * (Head.WORDS + count), last)
        if rarely(array == 0):
            return 0
        if flags & LARGE != 0 and fetch(state, peer, array, last) == 0:
            external("Py_DecRef!", array)
            array = share(state[State.NONE])
            flags = flags | LOST
    found = external("PyTuple_New", 5)
    numbers = tuple_of(record + 8 * Head.WORDS, count)
    if rarely(found == 0 or numbers == 0):
        return 0
    put(found, 0, external("PyLong_FromLongLong", peer[Peer.NAME]))
    put(found, 1, external("PyLong_FromLongLong", head & 255))
    put(found, 2, external("PyLong_FromLongLong", flags))
    put(found, 3, numbers)
    put(found, 4, array)
    if flags & LARGE != 0:
        publish(ring + 8 * Ring.TAKEN, ring[Ring.TAKEN] + 1)
    publish(ring + 8 * Ring.READ, ring[Ring.READ] + record[0])
    return found


def new_array(state: Word, peer: Word, head: Word, dims: Word, last: Word) -> Word:
    """The array of a record; one that is in the other process has memory, and no contents yet."""
    flags = head >> Head.FLAGS & 255
    rank = head >> Head.RANK & 255
    dtype = state[State.DTYPES] + (head >> Head.CODE & 255) * (8 * Dtype.SIZE)
    size = bytes_of(dims, rank, dtype)
    if flags & SHARED != 0:
        return slot_array(state, dtype, rank, dims, peer[Peer.IN_HEAP] + last)
    if flags & LARGE != 0 and state[State.HANDLER] != 0:
        return own_array(state, dtype, rank, dims, size)
    made = array_at(state, dtype, rank, dims, 0)
    if made != 0 and size > 0 and flags & LARGE == 0:
        external("memcpy", made[DATA], dims + 8 * rank, size)
    return made


def array_at(state: Word, dtype: Word, rank: Word, dims: Word, data: Word) -> Word:
    """An array over some memory, or over NumPy's if that is 0."""
    descr = share(dtype[Dtype.DESCR])
    flags = 0
    if data != 0:
        flags = CARRAY
    return call_at(
        state[State.NEW_ARRAY], state[State.ARRAY_TYPE], descr, rank, dims, 0, data, flags, 0
    )


def own_array(state: Word, dtype: Word, rank: Word, dims: Word, size: Word) -> Word:
    """An array with a block of memory that was used before, if there is one: fresh memory costs as much as the copy."""
    block = external("dsl_alloc", size)
    if rarely(block == 0):
        return external("PyErr_NoMemory")
    made = array_at(state, dtype, rank, dims, block)
    if rarely(made == 0):
        external("dsl_free!", block)
        return 0
    made[MEMORY_HANDLER] = share(state[State.HANDLER])
    made[FLAGS] |= OWNDATA
    return made


def slot_array(state: Word, dtype: Word, rank: Word, dims: Word, slot: Word) -> Word:
    """An array over the memory of a slot, which it gives back when nobody has it any more."""
    keeper = external("PyCapsule_New", slot, 0, state[State.RELEASE])
    if rarely(keeper == 0):
        return 0
    slot[Slot.PID] = external("getpid") & HALF
    made = array_at(state, dtype, rank, dims, slot + LINE)
    if rarely(made == 0):
        external("Py_DecRef!", keeper)
        return 0
    call_at(state[State.SET_BASE], made, keeper)
    return made


def dsl_mail_release(keeper: Word) -> Word:
    """Give a slot back, unless this process is a child that has a copy of the array."""
    slot = external("PyCapsule_GetPointer", keeper, 0)
    if slot[Slot.PID] == external("getpid") & HALF:
        publish(slot + 8 * Slot.USED, 0)
    return 0


def fetch(state: Word, peer: Word, array: Word, address: Word) -> Word:
    """Copy a large array out of the memory of who sent it; 1, or 0 if that is gone."""
    size = bytes_of(array[DIMS], array[RANK] & HALF, known_dtype(state, array))
    if size < LONG:
        return read(state, peer, array[DATA], address, size)
    thread = external("PyEval_SaveThread")
    done = read(state, peer, array[DATA], address, size)
    external("PyEval_RestoreThread!", thread)
    return done


def read(state: Word, peer: Word, target: Word, address: Word, size: Word) -> Word:
    vector = state + 8 * State.VECTOR
    while size > 0:
        vector[0] = target
        vector[1] = size
        vector[2] = address
        vector[3] = size
        done = external("process_vm_readv", peer[Peer.PID], vector, 1, vector + 16, 1, 0)
        if rarely(done <= 0):
            return 0
        target += done
        address += done
        size -= done
    return 1


def tuple_of(words: Word, count: Word) -> Word:
    found = external("PyTuple_New", count)
    if rarely(found == 0):
        return 0
    for k in range(count):
        put(found, k, external("PyLong_FromLongLong", words[k]))
    return found


# -- Python's objects -------------------------------------------------------------------------------------------------


def number(object: Word) -> Word:
    return external("PyLong_AsLongLong", object)


def share(object: Word) -> Word:
    external("Py_IncRef!", object)
    return object


def put(items: Word, index: Word, object: Word) -> Word:
    return external("PyTuple_SetItem", items, index, object)
