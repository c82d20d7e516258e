"""The words that the scheduling core reads and writes: tables made once per graph, and the state of one run.

Tables: a `Plan` points to everything else. Each static `Frame` (the graph itself is the first) has its `Unit`s, what is
scheduled as one: a compiled group of nodes, or one node of control flow. A unit's inputs are words of the iteration's
memory, laid out as `dsl.codegen.frame` lays out a program's params, its results after them; so programs run on that
memory as it is. `Output`s say where the words of each output are and who reads them.

A token is the words of a value: those of a rank-0 value are 2 with its bytes. Of an array they are its address, its
dims, and its *owner*: the block of `dsl_alloc` that holds it, or 0 if others see to the memory. The owner is where a
program's frame has the first stride, which programs do not read of contiguous arrays. A block in use counts the tokens
that own it, in a word of its header that serves the allocator only while nobody uses the block.

State: `Run` is a run of a plan, `Instance` a run of a frame, `Iteration` one iteration of it, with the state word of every
unit and its inputs. A state word counts what has not come: data in its lowest bits, controls above; and flags.
"""

from __future__ import annotations

REFERENCES = -5  # of a block, in words from its data; see `memory`

DATA = (1 << 20) - 1
CONTROL = 1 << 20
PENDING = (1 << 40) - 1
DEAD = 1 << 40  # something dead came
LIVE = 1 << 41  # of merges: something live came
FIRED = 1 << 42  # it is scheduled, or was
COUNT = DATA  # most inputs, or controls, that a unit can have


class Kind:
    """What a unit is."""

    PROGRAM, SWITCH, MERGE, PASS, ENTER, INVARIANT, NEXT, EXIT = range(8)
    HANDED, ALWAYS_HANDED, CONSTANT = range(8, 11)


class Plan:
    FRAME, FRAMES, PRESETS, PRESET_COUNT, SOURCES, SOURCE_COUNT, FETCHES, SIZE = range(8)


class Frame:
    """A static frame. `INVARIANTS`, `PARKED` and `EXITS` count what an instance has room for; `PARALLEL`, its iterations."""

    NUMBER, WORDS, INSTANCE_WORDS, ENTERS, UNITS, UNIT_COUNT, OWNERS, OWNER_COUNT = range(8)
    INVARIANTS, PARKED, TOKEN_WORDS, PARALLEL, SIZE = range(8, 13)


class Unit:
    """`STATE` and `SLOTS` are words from the start of an iteration; `FRAME` is the frame that an enter leads to."""

    KIND, STATE, INITIAL, SLOTS, PROGRAM, IS_LONG, CALLBACK, OWNERS, OWNER_COUNT = range(9)
    OUTPUTS, OUTPUT_COUNT, WAITERS, WAITER_COUNT, FRAME, INDEX, SIZE = range(9, 16)


class Output:
    """`SOURCE` is in words from the unit's slots; `OWNER` is the word of a token that owns, 0 of rank-0 values."""

    SOURCE, OWNER, READERS, READER_COUNT, FETCH, SIZE = range(6)


class Reader:
    """Who gets a token: for an input, `PLACE` is where in the iteration its words go. Who waits for a unit, too."""

    UNIT, STATE, IS_MERGE, PLACE, SIZE = range(5)


class Run:
    """A run. `CONTEXT` is the sixteen words that programs get as their context."""

    CONTEXT = 0
    (
        PLAN,
        ROOT,
        READY,
        READY_COUNT,
        READY_ROOM,
        HANDED,
        HANDED_COUNT,
        HANDED_ROOM,
        POOLS,
        FEEDS,
        FETCHED,
    ) = range(16, 27)
    ERROR, ERROR_UNIT, ERROR_ITERATION, ERROR_STATUS, TRACE, OPEN, FIRINGS, SIZE = range(27, 35)


class Instance:
    """A run of a frame; `PARENT` is the iteration that entered it. Then the invariants, parked tokens and dead exits."""

    FRAME, PARENT, ENTERING, NEWEST, ALIVE, OLDEST, YOUNGEST, SIBLING, PARKED, EXITS, SIZE = range(
        11
    )


class Iteration:
    """An iteration; then the state words and inputs of the units. `NEXT` is the following one, or the next free one."""

    INSTANCE, NUMBER, RUNNING, NEXT, CHILDREN, SIZE = range(6)


class Status:
    """What `dsl_tokens_run` returns."""

    DONE, WAITING, LATER, FAILED, TRACED = range(5)


class Error:
    """What went wrong."""

    NONE, TWO_TOKENS, TWO_LIVE, NEVER_COMES, NEVER_ENTERED, PROGRAM, MEMORY = range(7)
