"""The scheduling core of the token executor, in the language of words (`words_language`).

The rules are those of `dsl.ir.token_machine`; the tables and the state are described in `token_layout`. Delivering a token
never runs anything: it stores the token, counts, and puts units that have all they wait for on the ready stack. One
thread at a time works on a run. Functions that can fail note the first error in the run, and leave every token in
a place where `dsl_tokens_clear` finds it.
"""

from __future__ import annotations

from dsl.codegen.cpu.token_layout import (
    CONTROL,
    DATA,
    DEAD,
    FIRED,
    LIVE,
    PENDING,
    REFERENCES,
    Error,
    Frame,
    Instance,
    Iteration,
    Kind,
    Output,
    Plan,
    Reader,
    Run,
    Status,
    Unit,
)  # fmt: skip
from dsl.codegen.words_language import (
    Word,
    atomic_add,
    call_program,
    copy_words,
    external,
    rarely,
    records,
)  # fmt: skip

COARSE_CLOCK = 6
LOOK_EVERY = 256  # firings between two looks at the clock
KEEP_LOCK = 32  # firings during which Python's lock is kept: about as long as giving it up takes
THREAD_CONTEXT = 0
UNIT, OUTPUT, READER = 8 * Unit.SIZE, 8 * Output.SIZE, 8 * Reader.SIZE  # bytes of the records

# -- the whole of a run -----------------------------------------------------------------------------------------------


def dsl_tokens_begin(run: Word) -> Word:
    """Start the root iteration, and deliver the arguments and constants, whose words are in `FEEDS`."""
    plan = run[Run.PLAN]
    run[Run.ERROR] = 0
    run[Run.OPEN] = 0
    run[Run.FIRINGS] = 0
    root = new_instance(run, plan[Plan.FRAME], 0)
    run[Run.ROOT] = root
    if root == 0:
        return 0
    iteration = start(run, root)
    if iteration == 0:
        return 0
    for unit in records(plan[Plan.PRESETS], plan[Plan.PRESET_COUNT], UNIT):
        send_all(run, unit, run[Run.FEEDS], iteration)
    sources = plan[Plan.SOURCES]
    for k in range(plan[Plan.SOURCE_COUNT]):
        unit = sources[k]
        iteration[unit[Unit.STATE]] |= FIRED
        schedule(run, unit, iteration)
    return 0


def dsl_tokens_run(run: Word, budget: Word) -> Word:
    """Run what is ready until nothing is, something fails, or `budget` nanoseconds are over; return a `Status`.

    Called with Python's lock held; it is given up meanwhile, unless the run is short. With `TRACE` set, return before
    each unit is run, on the top of the ready stack.
    """
    context = run + 8 * Run.CONTEXT
    thread = external("dsl_thread")
    outer = thread[THREAD_CONTEXT]
    thread[THREAD_CONTEXT] = context  # for `dsl_poll`, which programs call now and then
    status = run_ready(run, context, budget)
    external("dsl_acquire!", context)
    thread[THREAD_CONTEXT] = outer
    return status


def run_ready(run: Word, context: Word, budget: Word) -> Word:
    until = external("dsl_clock", COARSE_CLOCK) + budget
    count = 0
    if rarely(run[Run.ERROR] != 0):
        return Status.FAILED
    while run[Run.READY_COUNT] > 0:
        if rarely(run[Run.TRACE] == 1):
            run[Run.TRACE] = 2
            return Status.TRACED
        run[Run.READY_COUNT] -= 1
        entry = run[Run.READY] + 16 * run[Run.READY_COUNT]
        unit = entry[0]
        iteration = entry[1]
        count += 1
        was_long = fire(run, unit, iteration)
        if rarely(run[Run.ERROR] != 0):
            run[Run.FIRINGS] += count
            return Status.FAILED
        if rarely(run[Run.TRACE] == 2):
            run[Run.TRACE] = 1
        if count == KEEP_LOCK:
            external("dsl_release!", context)
        if (was_long != 0 or count % LOOK_EVERY == 0) and is_time(run, until) != 0:
            run[Run.FIRINGS] += count
            return Status.LATER
    run[Run.FIRINGS] += count
    if run[Run.OPEN] > 0:
        return Status.WAITING
    check_finished(run, run[Run.ROOT][Instance.OLDEST], 1)
    if run[Run.ERROR] != 0:
        return Status.FAILED
    return Status.DONE


def is_time(run: Word, until: Word) -> Word:
    """Whether Python should have a look: it has something to do, or the time is over."""
    if run[Run.HANDED_COUNT] > 0:
        return 1
    return external("dsl_clock", COARSE_CLOCK) > until


def fail(run: Word, error: Word, unit: Word, iteration: Word) -> Word:
    """Note the first error."""
    if run[Run.ERROR] == 0:
        run[Run.ERROR] = error
        run[Run.ERROR_UNIT] = unit
        run[Run.ERROR_ITERATION] = iteration
    return 0


def dsl_tokens_given(run: Word, unit: Word, iteration: Word, dead: Word) -> Word:
    """Go on after a unit that was handed out: its results are in its words, or they are dead."""
    run[Run.OPEN] -= 1
    drop_inputs(unit, iteration)
    if dead != 0:
        send_dead(run, unit, iteration, DEAD)
    else:
        send_results(run, unit, iteration)
    finish(run, iteration)
    return 0


# -- what units do ----------------------------------------------------------------------------------------------------


def fire(run: Word, unit: Word, iteration: Word) -> Word:
    """Run one unit; return 1 if that may have taken long."""
    kind = unit[Unit.KIND]
    was_long = 0
    dead = iteration[unit[Unit.STATE]] & DEAD
    if kind == Kind.ALWAYS_HANDED or (kind == Kind.HANDED and dead == 0):
        hand_out(run, unit, iteration)
        return 0
    if kind == Kind.MERGE:
        merge(run, unit, iteration)
    elif dead != 0:
        fire_dead(run, unit, iteration, kind)
    elif kind == Kind.PROGRAM:
        was_long = run_program(run, unit, iteration)
    else:
        fire_live(run, unit, iteration, kind)
    finish(run, iteration)
    return was_long


def fire_live(run: Word, unit: Word, iteration: Word, kind: Word) -> Word:
    token = iteration + 8 * unit[Unit.SLOTS]
    if kind == Kind.SWITCH:
        switch(run, unit, token, iteration)
    elif kind == Kind.PASS:
        move_on(run, unit, token, iteration)
    elif kind == Kind.NEXT:
        next_iteration(run, unit, token, iteration)
    elif kind == Kind.ENTER or kind == Kind.INVARIANT:
        enter(run, unit, token, iteration, 0)
    elif kind == Kind.EXIT:
        move_on(run, unit, token, iteration[Iteration.INSTANCE][Instance.PARENT])
    elif kind == Kind.CONSTANT:
        drop_inputs(unit, iteration)
        send_all(run, unit, run[Run.FEEDS] + 8 * unit[Unit.INDEX], iteration)
    return 0


def fire_dead(run: Word, unit: Word, iteration: Word, kind: Word) -> Word:
    """What a unit does when something that it waited for was dead."""
    drop_inputs(unit, iteration)
    if kind == Kind.ENTER or kind == Kind.INVARIANT:
        enter(run, unit, 0, iteration, DEAD)
    elif kind == Kind.EXIT:
        instance = iteration[Iteration.INSTANCE]
        if iteration[Iteration.NUMBER] == instance[Instance.NEWEST]:
            exits(instance)[instance[Instance.EXITS]] = unit
            instance[Instance.EXITS] += 1
    elif kind != Kind.NEXT:
        send_dead(run, unit, iteration, DEAD)
    return 0


def run_program(run: Word, unit: Word, iteration: Word) -> Word:
    context = run + 8 * Run.CONTEXT
    frame = iteration + 8 * unit[Unit.SLOTS]
    is_long = unit[Unit.IS_LONG]
    if is_long != 0:
        external("dsl_release!", context)
    context[11] = unit[Unit.CALLBACK]
    status = call_program(unit[Unit.PROGRAM], frame, context)
    if rarely(status != 0):
        fail(run, Error.PROGRAM, unit, iteration)
        run[Run.ERROR_STATUS] = status
        drop_results(unit, frame)
        return 1
    drop_inputs(unit, iteration)
    send_results(run, unit, iteration)
    return is_long


def switch(run: Word, unit: Word, token: Word, iteration: Word) -> Word:
    no = unit[Unit.OUTPUTS]
    yes = no + OUTPUT
    pred = token[unit[Unit.INDEX]] & 255
    if pred != 0:
        send_dead_output(run, no, iteration)
        send_moving(run, yes, token, iteration)
    else:
        send_moving(run, no, token, iteration)
        send_dead_output(run, yes, iteration)
    tell(run, unit, iteration, 0)
    return 0


def merge(run: Word, unit: Word, iteration: Word) -> Word:
    if (iteration[unit[Unit.STATE]] & LIVE) != 0:
        move_on(run, unit, iteration + 8 * unit[Unit.SLOTS], iteration)
    else:
        send_dead(run, unit, iteration, DEAD)
    return 0


def move_on(run: Word, unit: Word, token: Word, iteration: Word) -> Word:
    """Send the token of a unit with one output."""
    send_moving(run, unit[Unit.OUTPUTS], token, iteration)
    tell(run, unit, iteration, 0)
    return 0


def hand_out(run: Word, unit: Word, iteration: Word) -> Word:
    """Leave a unit to Python."""
    count = run[Run.HANDED_COUNT]
    if rarely(count == run[Run.HANDED_ROOM]) and grow(run, Run.HANDED) == 0:
        return 0
    entry = run[Run.HANDED] + 16 * count
    entry[0] = unit
    entry[1] = iteration
    run[Run.HANDED_COUNT] = count + 1
    run[Run.OPEN] += 1
    return 0


# -- frames and iterations --------------------------------------------------------------------------------------------


def enter(run: Word, unit: Word, token: Word, iteration: Word, dead: Word) -> Word:
    """Deliver to iteration 0 of the frame that this iteration enters; an invariant, to every iteration so far."""
    instance = entered(run, unit[Unit.FRAME], iteration)
    if rarely(instance == 0):
        return 0
    instance[Instance.ENTERING] -= 1
    if unit[Unit.KIND] == Kind.INVARIANT:
        keep(run, unit, token, instance, dead)
    elif dead != 0:
        send_dead(run, unit, instance[Instance.OLDEST], DEAD)
    else:
        move_on(run, unit, token, instance[Instance.OLDEST])
    if instance[Instance.ENTERING] == 0:
        settle(run, instance)
    return 0


def entered(run: Word, frame: Word, iteration: Word) -> Word:
    """Find the instance of a frame that an iteration enters, or begin it."""
    instance = iteration[Iteration.CHILDREN]
    while instance != 0:
        if instance[Instance.FRAME] == frame:
            return instance
        instance = instance[Instance.SIBLING]
    instance = new_instance(run, frame, iteration)
    if rarely(instance == 0):
        return 0
    instance[Instance.SIBLING] = iteration[Iteration.CHILDREN]
    iteration[Iteration.CHILDREN] = instance
    if start(run, instance) == 0:
        return 0
    return instance


def keep(run: Word, unit: Word, token: Word, instance: Word, dead: Word) -> Word:
    """Store an invariant with the instance and deliver it to the iterations that have begun."""
    kept = stored(instance, unit[Unit.INDEX])
    kept[0] = unit
    kept[1] = dead
    if dead == 0:
        take(unit[Unit.OUTPUTS], token, kept + 16)
    iteration = instance[Instance.OLDEST]
    while iteration != 0:
        deliver_kept(run, kept, iteration)
        iteration = iteration[Iteration.NEXT]
    return 0


def deliver_kept(run: Word, kept: Word, iteration: Word) -> Word:
    unit = kept[0]
    if kept[1] != 0:
        send_dead(run, unit, iteration, DEAD)
    else:
        output = unit[Unit.OUTPUTS]
        owner = output[Output.OWNER]
        if owner != 0:
            owner = kept[2 + owner]
            retain(owner, 1)
        send(run, output, kept + 16, owner, iteration)
        tell(run, unit, iteration, 0)
    return 0


def next_iteration(run: Word, unit: Word, token: Word, iteration: Word) -> Word:
    instance = iteration[Iteration.INSTANCE]
    target = iteration[Iteration.NEXT]
    if target == 0:
        if instance[Instance.ALIVE] >= instance[Instance.FRAME][Frame.PARALLEL]:
            parked = stored(instance, unit[Unit.INDEX])
            parked[0] = unit
            take(unit[Unit.OUTPUTS], token, parked + 16)
            instance[Instance.PARKED] += 1
            return 0
        target = start(run, instance)
        if rarely(target == 0):
            return 0
    move_on(run, unit, token, target)
    return 0


def unpark(run: Word, instance: Word) -> Word:
    """Start the iteration that tokens were parked for, and deliver them."""
    iteration = start(run, instance)
    if rarely(iteration == 0):
        return 0
    instance[Instance.PARKED] = 0
    frame = instance[Instance.FRAME]
    first = frame[Frame.INVARIANTS]
    for k in range(first, first + frame[Frame.PARKED]):
        parked = stored(instance, k)
        unit = parked[0]
        if unit != 0:
            parked[0] = 0
            move_on(run, unit, parked + 16, iteration)
    return 0


def start(run: Word, instance: Word) -> Word:
    """Begin the next iteration of an instance; 0 if there is no memory."""
    frame = instance[Instance.FRAME]
    iteration = new_iteration(run, frame)
    if rarely(iteration == 0):
        return 0
    instance[Instance.NEWEST] += 1
    instance[Instance.EXITS] = 0
    iteration[Iteration.INSTANCE] = instance
    iteration[Iteration.NUMBER] = instance[Instance.NEWEST]
    if instance[Instance.ALIVE] == 0:
        instance[Instance.OLDEST] = iteration
    else:
        instance[Instance.YOUNGEST][Iteration.NEXT] = iteration
    instance[Instance.YOUNGEST] = iteration
    instance[Instance.ALIVE] += 1
    for k in range(frame[Frame.INVARIANTS]):
        kept = stored(instance, k)
        if kept[0] != 0:
            deliver_kept(run, kept, iteration)
    return iteration


def finish(run: Word, iteration: Word) -> Word:
    """Count a unit that is over, and look whether that was the last thing its iteration waited for.

    After an error nothing is over: the iteration may hold tokens that are still to be released.
    """
    if rarely(run[Run.ERROR] != 0):
        return 0
    iteration[Iteration.RUNNING] -= 1
    if iteration[Iteration.RUNNING] == 0 and iteration[Iteration.CHILDREN] == 0:
        instance = iteration[Iteration.INSTANCE]
        if instance[Instance.OLDEST] == iteration:
            settle(run, instance)
    return 0


def settle(run: Word, instance: Word) -> Word:
    """Retire the iterations that are done, oldest first, the instance with the last of them, and so on outwards."""
    while instance[Instance.PARENT] != 0:
        oldest = instance[Instance.OLDEST]
        while oldest != 0:
            if oldest[Iteration.RUNNING] != 0 or oldest[Iteration.CHILDREN] != 0:
                return 0
            if oldest[Iteration.NUMBER] == 0 and instance[Instance.ENTERING] > 0:
                return 0
            if check_finished(run, oldest, 0) == 0:
                return 0
            instance[Instance.OLDEST] = oldest[Iteration.NEXT]
            instance[Instance.ALIVE] -= 1
            free_iteration(run, instance[Instance.FRAME], oldest)
            if instance[Instance.PARKED] > 0:
                unpark(run, instance)
                if rarely(run[Run.ERROR] != 0):
                    return 0
            oldest = instance[Instance.OLDEST]
        parent = instance[Instance.PARENT]
        for k in range(instance[Instance.EXITS]):
            send_dead(run, exits(instance)[k], parent, DEAD)
        unlink(parent, instance)
        drop_stored(instance)
        free_instance(run, instance)
        instance = parent[Iteration.INSTANCE]
        if instance[Instance.OLDEST] != parent:
            return 0
    return 0


def unlink(parent: Word, instance: Word) -> Word:
    """Take an instance from the children of its parent."""
    before = parent[Iteration.CHILDREN]
    if before == instance:
        parent[Iteration.CHILDREN] = instance[Instance.SIBLING]
        return 0
    while before[Instance.SIBLING] != instance:
        before = before[Instance.SIBLING]
    before[Instance.SIBLING] = instance[Instance.SIBLING]
    return 0


def check_finished(run: Word, iteration: Word, is_root: Word) -> Word:
    """Make the state words of an iteration as they began; return 0, with the error noted, if a unit still waits."""
    frame = iteration[Iteration.INSTANCE][Instance.FRAME]
    units = frame[Frame.UNITS]
    for k in range(frame[Frame.UNIT_COUNT]):
        unit = units[k]
        state = iteration[unit[Unit.STATE]]
        if rarely(state != unit[Unit.INITIAL] and (state & FIRED) == 0):
            fail(run, Error.NEVER_COMES, unit, iteration)
            return 0
        iteration[unit[Unit.STATE]] = unit[Unit.INITIAL]
    if is_root != 0 and iteration[Iteration.CHILDREN] != 0:
        fail(run, Error.NEVER_ENTERED, 0, iteration[Iteration.CHILDREN])
        return 0
    return 1


def stored(instance: Word, index: Word) -> Word:
    """Where an instance keeps an invariant, or a parked token: the unit (0: not there), whether it is dead, the words."""
    return instance + 8 * Instance.SIZE + 8 * index * instance[Instance.FRAME][Frame.TOKEN_WORDS]


def exits(instance: Word) -> Word:
    """The list of dead exits of an instance."""
    frame = instance[Instance.FRAME]
    return stored(instance, frame[Frame.INVARIANTS] + frame[Frame.PARKED])


# -- sending ----------------------------------------------------------------------------------------------------------


def send(run: Word, output: Word, token: Word, owner: Word, iteration: Word) -> Word:
    """Deliver a token to the readers of an output; takes over one reference to the owner."""
    count = output[Output.READER_COUNT]
    fetch = output[Output.FETCH]
    if owner != 0:
        wanted = count + (fetch != 0)
        if wanted == 0:
            release(owner)
        elif wanted > 1:
            retain(owner, wanted - 1)
    words = output[Output.OWNER]
    readers = output[Output.READERS]
    if words == 0:
        first = token[0]
        second = token[1]
        for reader in records(readers, count, READER):
            place = iteration + 8 * reader[Reader.PLACE]
            if arrive(run, reader, iteration) != 0:
                place[0] = first
                place[1] = second
    else:
        for reader in records(readers, count, READER):
            place = iteration + 8 * reader[Reader.PLACE]
            if arrive(run, reader, iteration) != 0:
                copy_words(place, token, words)
                place[words] = owner
            else:
                release(owner)
    if fetch != 0:
        fetched = run[Run.FETCHED] + 8 * fetch
        if rarely(fetched[0] == LIVE and words != 0):
            release(fetched[1 + words])
        fetched[0] = LIVE
        if words == 0:
            words = 2
        else:
            fetched[1 + words] = owner
        copy_words(fetched + 8, token, words)
    return 0


def arrive(run: Word, reader: Word, iteration: Word) -> Word:
    """Count a live token, and schedule what waited for it; return 0 if it has no place to go."""
    state = iteration[reader[Reader.STATE]]
    if rarely((state & DATA) == 0):
        fail(run, Error.TWO_TOKENS, reader[Reader.UNIT], iteration)
        return 0
    if reader[Reader.IS_MERGE] != 0:
        if rarely((state & LIVE) != 0):
            fail(run, Error.TWO_LIVE, reader[Reader.UNIT], iteration)
            return 0
        state = (state - 1) | LIVE
        iteration[reader[Reader.STATE]] = state
        schedule_merge(run, reader, iteration, state)
        return 1
    state -= 1
    iteration[reader[Reader.STATE]] = state
    if (state & PENDING) == 0:
        iteration[reader[Reader.STATE]] = state | FIRED
        schedule(run, reader[Reader.UNIT], iteration)
    return 1


def arrive_dead(run: Word, reader: Word, iteration: Word) -> Word:
    """Count a dead token, and schedule what waited for it."""
    state = iteration[reader[Reader.STATE]]
    if rarely((state & DATA) == 0):
        fail(run, Error.TWO_TOKENS, reader[Reader.UNIT], iteration)
        return 0
    state = (state - 1) | DEAD
    iteration[reader[Reader.STATE]] = state
    if reader[Reader.IS_MERGE] != 0:
        schedule_merge(run, reader, iteration, state)
    elif (state & PENDING) == 0:
        iteration[reader[Reader.STATE]] = state | FIRED
        schedule(run, reader[Reader.UNIT], iteration)
    return 0


def tell(run: Word, unit: Word, iteration: Word, dead: Word) -> Word:
    """Tell the units that wait for this one that it is over; `dead` is 0 or the flag."""
    for reader in records(unit[Unit.WAITERS], unit[Unit.WAITER_COUNT], READER):
        state = iteration[reader[Reader.STATE]] - CONTROL
        if reader[Reader.IS_MERGE] != 0:
            iteration[reader[Reader.STATE]] = state
            schedule_merge(run, reader, iteration, state)
        else:
            state = state | dead
            iteration[reader[Reader.STATE]] = state
            if (state & PENDING) == 0:
                iteration[reader[Reader.STATE]] = state | FIRED
                schedule(run, reader[Reader.UNIT], iteration)
    return 0


def schedule_merge(run: Word, reader: Word, iteration: Word, state: Word) -> Word:
    """Schedule a merge if its controls and a live input have come, or all inputs."""
    waits = state & (FIRED + PENDING - DATA)
    if waits == 0 and ((state & LIVE) != 0 or (state & DATA) == 0):
        iteration[reader[Reader.STATE]] = state | FIRED
        schedule(run, reader[Reader.UNIT], iteration)
    return 0


def schedule(run: Word, unit: Word, iteration: Word) -> Word:
    count = run[Run.READY_COUNT]
    if rarely(count == run[Run.READY_ROOM]) and grow(run, Run.READY) == 0:
        return 0
    entry = run[Run.READY] + 16 * count
    entry[0] = unit
    entry[1] = iteration
    run[Run.READY_COUNT] = count + 1
    iteration[Iteration.RUNNING] += 1
    return 0


def send_moving(run: Word, output: Word, token: Word, iteration: Word) -> Word:
    """Send a token on from the place that holds it, which holds none afterwards."""
    owner = output[Output.OWNER]
    if owner != 0:
        place = token + 8 * owner
        owner = place[0]
        place[0] = 0
    send(run, output, token, owner, iteration)
    return 0


def send_results(run: Word, unit: Word, iteration: Word) -> Word:
    """Send what a program left in its frame: the blocks of arrays are new, and go over to the tokens."""
    frame = iteration + 8 * unit[Unit.SLOTS]
    for output in records(unit[Unit.OUTPUTS], unit[Unit.OUTPUT_COUNT], OUTPUT):
        token = frame + 8 * output[Output.SOURCE]
        block = 0
        if output[Output.OWNER] != 0:
            block = token[0]
            block[REFERENCES] = 1
        send(run, output, token, block, iteration)
        if block != 0:
            token[0] = 0
    tell(run, unit, iteration, 0)
    return 0


def send_all(run: Word, unit: Word, base: Word, iteration: Word) -> Word:
    """Send tokens that nobody owns: arguments and constants."""
    for output in records(unit[Unit.OUTPUTS], unit[Unit.OUTPUT_COUNT], OUTPUT):
        send(run, output, base + 8 * output[Output.SOURCE], 0, iteration)
    tell(run, unit, iteration, 0)
    return 0


def send_dead(run: Word, unit: Word, iteration: Word, dead: Word) -> Word:
    """Send dead tokens to all that read a unit, and word to those that wait for it."""
    for output in records(unit[Unit.OUTPUTS], unit[Unit.OUTPUT_COUNT], OUTPUT):
        send_dead_output(run, output, iteration)
    tell(run, unit, iteration, dead)
    return 0


def send_dead_output(run: Word, output: Word, iteration: Word) -> Word:
    for reader in records(output[Output.READERS], output[Output.READER_COUNT], READER):
        arrive_dead(run, reader, iteration)
    fetch = output[Output.FETCH]
    if fetch != 0:
        fetched = run[Run.FETCHED] + 8 * fetch
        fetched[0] = DEAD
    return 0


# -- owning -----------------------------------------------------------------------------------------------------------


def retain(block: Word, count: Word) -> Word:
    if block != 0:
        atomic_add(block + 8 * REFERENCES, count)
    return 0


def release(block: Word) -> Word:
    """Give up a reference to a block, and the block with the last."""
    if block == 0:
        return 0
    if block[REFERENCES] == 1 or atomic_add(block + 8 * REFERENCES, -1) == 1:
        external("dsl_free!", block)
    return 0


def take(output: Word, token: Word, place: Word) -> Word:
    """Move a token to another place."""
    owner = output[Output.OWNER]
    if owner == 0:
        copy_words(place, token, 2)
    else:
        copy_words(place, token, owner + 1)
        token[owner] = 0
    return 0


def drop_inputs(unit: Word, iteration: Word) -> Word:
    """Release what the inputs of a unit own."""
    owners = unit[Unit.OWNERS]
    for k in range(unit[Unit.OWNER_COUNT]):
        place = iteration + 8 * owners[k]
        owner = place[0]
        if owner != 0:
            place[0] = 0
            release(owner)
    return 0


def drop_results(unit: Word, frame: Word) -> Word:
    """Free the blocks that a program that failed left as results."""
    for output in records(unit[Unit.OUTPUTS], unit[Unit.OUTPUT_COUNT], OUTPUT):
        if output[Output.OWNER] != 0:
            token = frame + 8 * output[Output.SOURCE]
            external("dsl_free!", token[0])
            token[0] = 0
    return 0


def drop_stored(instance: Word) -> Word:
    """Release the invariants and parked tokens of an instance."""
    frame = instance[Instance.FRAME]
    for k in range(frame[Frame.INVARIANTS] + frame[Frame.PARKED]):
        kept = stored(instance, k)
        unit = kept[0]
        if unit != 0:
            owner = unit[Unit.OUTPUTS][Output.OWNER]
            if owner != 0 and kept[1] == 0:
                release(kept[2 + owner])
            kept[0] = 0
            kept[1] = 0
    return 0


def dsl_tokens_clear(run: Word) -> Word:
    """End a run: release every token that is left but those fetched, and make ready for the next run."""
    run[Run.READY_COUNT] = 0
    run[Run.HANDED_COUNT] = 0
    if run[Run.ROOT] != 0:
        clear_instance(run, run[Run.ROOT])
        run[Run.ROOT] = 0
    return 0


def clear_instance(run: Word, instance: Word) -> Word:
    frame = instance[Instance.FRAME]
    iteration = instance[Instance.OLDEST]
    while iteration != 0:
        following = iteration[Iteration.NEXT]
        child = iteration[Iteration.CHILDREN]
        while child != 0:
            sibling = child[Instance.SIBLING]
            clear_instance(run, child)
            child = sibling
        clear_iteration(frame, iteration)
        free_iteration(run, frame, iteration)
        iteration = following
    drop_stored(instance)
    free_instance(run, instance)
    return 0


def clear_iteration(frame: Word, iteration: Word) -> Word:
    owners = frame[Frame.OWNERS]
    for k in range(frame[Frame.OWNER_COUNT]):
        place = iteration + 8 * owners[k]
        release(place[0])
        place[0] = 0
    units = frame[Frame.UNITS]
    for k in range(frame[Frame.UNIT_COUNT]):
        unit = units[k]
        iteration[unit[Unit.STATE]] = unit[Unit.INITIAL]
    return 0


# -- memory of the scheduler ------------------------------------------------------------------------------------------
# It comes from the system's malloc, so that the allocator's counts are those of arrays. Each run keeps what it had for
# the next: a list of free iterations and one of free instances per frame, in `POOLS`.


def new_iteration(run: Word, frame: Word) -> Word:
    pool = run[Run.POOLS] + 16 * frame[Frame.NUMBER]
    iteration = pool[0]
    if iteration != 0:
        pool[0] = iteration[Iteration.NEXT]
        iteration[Iteration.NEXT] = 0
        return iteration
    iteration = external("calloc", frame[Frame.WORDS], 8)
    if rarely(iteration == 0):
        return fail(run, Error.MEMORY, 0, 0)
    units = frame[Frame.UNITS]
    for k in range(frame[Frame.UNIT_COUNT]):
        unit = units[k]
        iteration[unit[Unit.STATE]] = unit[Unit.INITIAL]
    return iteration


def free_iteration(run: Word, frame: Word, iteration: Word) -> Word:
    pool = run[Run.POOLS] + 16 * frame[Frame.NUMBER]
    iteration[Iteration.RUNNING] = 0
    iteration[Iteration.CHILDREN] = 0
    iteration[Iteration.NEXT] = pool[0]
    pool[0] = iteration
    return 0


def new_instance(run: Word, frame: Word, parent: Word) -> Word:
    pool = run[Run.POOLS] + 16 * frame[Frame.NUMBER]
    instance = pool[1]
    if instance != 0:
        pool[1] = instance[Instance.SIBLING]
    else:
        instance = external("calloc", frame[Frame.INSTANCE_WORDS], 8)
        if rarely(instance == 0):
            return fail(run, Error.MEMORY, 0, 0)
    instance[Instance.FRAME] = frame
    instance[Instance.PARENT] = parent
    instance[Instance.ENTERING] = frame[Frame.ENTERS]
    instance[Instance.NEWEST] = -1
    instance[Instance.ALIVE] = 0
    instance[Instance.OLDEST] = 0
    instance[Instance.SIBLING] = 0
    instance[Instance.PARKED] = 0
    instance[Instance.EXITS] = 0
    return instance


def free_instance(run: Word, instance: Word) -> Word:
    pool = run[Run.POOLS] + 16 * instance[Instance.FRAME][Frame.NUMBER]
    instance[Instance.SIBLING] = pool[1]
    pool[1] = instance
    return 0


def grow(run: Word, list: Word) -> Word:
    """Double the room of a list of pairs, whose address, count and room are words of the run; 0 if it cannot be."""
    room = 2 * run[list + 2] + 64
    larger = external("realloc", run[list], 16 * room)
    if rarely(larger == 0):
        return fail(run, Error.MEMORY, 0, 0)
    run[list] = larger
    run[list + 2] = room
    return 1


def dsl_tokens_end(run: Word) -> Word:
    """Give the scheduler's memory back; the run must be clear."""
    for k in range(run[Run.PLAN][Plan.FRAMES]):
        pool = run[Run.POOLS] + 16 * k
        while pool[0] != 0:
            iteration = pool[0]
            pool[0] = iteration[Iteration.NEXT]
            external("free!", iteration)
        while pool[1] != 0:
            instance = pool[1]
            pool[1] = instance[Instance.SIBLING]
            external("free!", instance)
    external("free!", run[Run.READY])
    external("free!", run[Run.HANDED])
    run[Run.READY] = 0
    run[Run.HANDED] = 0
    return 0


def dsl_tokens_release(block: Word) -> Word:
    """Give up a token's reference to its block."""
    return release(block)
