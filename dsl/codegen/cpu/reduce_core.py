"""Reductions over ranks that meet on a board, in the language of words (`words_language`).

`dsl_board_reduce` is a built-in function of Python, called with the array of a `State` for `self`. The rules of a board are
those of `dsl.mpi.board`: who comes writes its piece, what for, and then its number. NumPy's own loops combine the pieces, from the first
rank to the last, so all ranks have the same bits, and those of NumPy.
"""

from __future__ import annotations

from dsl.codegen.cpu.mail_layout import LINE
from dsl.codegen.cpu.object_words import CONTIGUOUS, DATA, DESCR, DIMS, FLAGS, HALF, RANK, TYPE
from dsl.codegen.words_language import (
    Word,
    acquire,
    call_at,
    external,
    pause,
    publish,
    rarely,
    records,
    stream_lines,
)

PAST = 16 << 10  # bytes from which on a copy goes past the caches
LONG = 32 << 10  # bytes that take long enough to let other threads of Python run


class Plan:
    """What is known about arrays of a dtype and shape: how they are reduced, and what the board says about that."""

    (
        HOW,
        DESCR,
        RANK,
        BYTES,
        COUNT,
        ITEMSIZE,
        FIRST,
        SECOND,
        LOOP,
        LOOP_DATA,
        DIVIDE,
        DIVIDE_DATA,
        DIVISOR,
        DIMS,
    ) = range(14)
    # FIRST, SECOND: the digest; DIVIDE: the loop that makes means of sums, or 0; DIVISOR: the address of the number of ranks
    MOST_DIMS = 6
    SIZE = DIMS + MOST_DIMS


class State:
    """Words of one rank. MARKS and PIECES are addresses of addresses: of all ranks at even times, then at odd ones."""

    MARKS, PIECES, OWN, RANKS, NUMBER, LAST, LOOKS, PLANS, PLAN_COUNT = range(9)
    NONE, NOT_IMPLEMENTED, ARRAY_TYPE, NEW_ARRAY, ARGS, LENGTH, STRIDES = 9, 10, 11, 12, 13, 16, 17
    # NUMBER: how often this rank has come; LAST: the plan that was used last; from ARGS on: what NumPy's loops are called with
    SIZE = 20


def dsl_board_reduce(self: Word, args: Word, count: Word) -> Word:
    """reduce(x, how): see `dsl.ir.shared_memory`."""
    state = self[DATA]
    x = args[0]
    plan = plan_of(state, x, args[1])
    if rarely(plan == 0):
        return share(state[State.NOT_IMPLEMENTED])
    descr = share(plan[Plan.DESCR])
    rank = plan[Plan.RANK]
    out = call_at(state[State.NEW_ARRAY], state[State.ARRAY_TYPE], descr, rank, x[DIMS], 0, 0, 0, 0)
    if rarely(out == 0):
        return 0
    there = 0
    if plan[Plan.BYTES] < LONG:
        there = meet_and_reduce(state, plan, x[DATA], out[DATA])
    else:
        thread = external("PyEval_SaveThread")
        there = meet_and_reduce(state, plan, x[DATA], out[DATA])
        external("PyEval_RestoreThread!", thread)
    if rarely(there == 0):
        external("Py_DecRef!", out)
        return share(state[State.NONE])
    return out


def plan_of(state: Word, x: Word, how: Word) -> Word:
    """The plan for an array, or 0."""
    if x[TYPE] != state[State.ARRAY_TYPE] or x[FLAGS] & CONTIGUOUS != CONTIGUOUS:
        return 0
    for plan in records(state[State.PLANS], state[State.PLAN_COUNT], 8 * Plan.SIZE):
        if plan[Plan.HOW] == how and plan[Plan.DESCR] == x[DESCR] and is_shape(plan, x) != 0:
            return plan
    return 0


def is_shape(plan: Word, x: Word) -> Word:
    if plan[Plan.RANK] != x[RANK] & HALF:
        return 0
    dims = x[DIMS]
    for k in range(plan[Plan.RANK]):
        if plan[Plan.DIMS + k] != dims[k]:
            return 0
    return 1


def meet_and_reduce(state: Word, plan: Word, x: Word, out: Word) -> Word:
    """Come to the board with an array; 1 if the others do, for the same, and the reduction is in `out`, else 0."""
    number = state[State.NUMBER] + 1
    state[State.NUMBER] = number
    state[State.LAST] = plan
    ranks = state[State.RANKS]
    odd = (number & 1) * ranks
    marks = state[State.MARKS] + 8 * odd
    pieces = state[State.PIECES] + 8 * odd
    own = state[State.OWN]
    bring(pieces[own], x, plan[Plan.BYTES])
    mark = marks[own]
    mark[1] = plan[Plan.FIRST]
    mark[2] = plan[Plan.SECOND]
    publish(mark, number)
    for rank in range(ranks):
        if wait_for(marks[rank], number, state[State.LOOKS]) == 0:
            return 0
        mark = marks[rank]
        if mark[1] != plan[Plan.FIRST] or mark[2] != plan[Plan.SECOND]:
            return 0
    args = state + 8 * State.ARGS
    args[0] = piece_of(0, own, pieces, x)
    for rank in range(1, ranks):
        args[1] = piece_of(rank, own, pieces, x)
        args[2] = out
        combine(state, plan[Plan.LOOP], plan[Plan.LOOP_DATA], plan, plan[Plan.ITEMSIZE])
        args[0] = out
    if plan[Plan.DIVIDE] != 0:
        args[1] = plan[Plan.DIVISOR]
        args[2] = out
        combine(state, plan[Plan.DIVIDE], plan[Plan.DIVIDE_DATA], plan, 0)
    return 1


def dsl_board_bring(piece: Word, x: Word, size: Word) -> Word:
    """Put down a piece of an array where other ranks read it."""
    return bring(piece, x, size)


def bring(piece: Word, x: Word, size: Word) -> Word:
    whole = 0
    if size >= PAST:
        stream_lines(piece, x, size // LINE)
        whole = size // LINE * LINE
    return external("memcpy", piece + whole, x + whole, size - whole)


def wait_for(mark: Word, number: Word, looks: Word) -> Word:
    """Look for a rank; 1 if it is here."""
    for _ in range(looks):
        if acquire(mark) == number:
            return 1
        pause()
    return 0


def piece_of(rank: Word, own: Word, pieces: Word, x: Word) -> Word:
    """What a rank brought; of this one the array itself, which is nearer."""
    if rank == own:
        return x
    return pieces[rank]


def combine(state: Word, loop: Word, data: Word, plan: Word, stride: Word) -> Word:
    """Call a loop of NumPy's; the stride is that of the second operand."""
    size = plan[Plan.ITEMSIZE]
    state[State.LENGTH] = plan[Plan.COUNT]
    strides = state + 8 * State.STRIDES
    strides[0] = size
    strides[1] = stride
    strides[2] = size
    return call_at(loop, state + 8 * State.ARGS, state + 8 * State.LENGTH, strides, data)


def share(object: Word) -> Word:
    external("Py_IncRef!", object)
    return object
