"""Write notebooks/tour.ipynb and run it: `python notebooks/make_tour.py`."""

from __future__ import annotations

from cells import write

CELLS = """
# A tour of dsl

Decorate a plain NumPy function, and it becomes a typed dataflow graph, loops, branches and mutation included, and then machine code. This
notebook decorates, looks inside, loops, mutates, and makes mistakes on purpose. It needs nothing but dsl and Jupyter.
---
import numpy as np

import dsl
===
## Decorate

The function is ordinary NumPy. It is traced and compiled at its first call for each kind of arguments; later calls run the machine code.
---
@dsl.jit
def softmax(x):
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


softmax(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]))
---
plain = softmax.__wrapped__
x = np.random.default_rng(0).normal(size=(4, 5))
np.allclose(softmax(x), plain(x), rtol=1e-14)
===
Equal but for rounding: sums are taken in another order than NumPy's, and `exp` is within one unit of the last place.
===
## Look inside

`.lower(...)` compiles without running. Its text has one line per operation, with operands, attributes and types.
---
print(softmax.lower(x).text(locations=False))
===
`.show()` draws it. Hover over a node for its line of IR and the line of Python it comes from.
---
softmax.lower(x).show()
===
The plan of the machine code: one kernel, which sweeps each row four times while it is in the cache.
---
print(softmax.lower(x).text("kernels"))
===
`.explain()` says why the function was compiled, each time, and `.cache_info()` how often a compiled graph was found.
---
softmax(x.astype(np.float32))
print(softmax.explain())
softmax.cache_info()
===
## Control flow

`if`, `while` and `for` on traced values become nodes of the graph. This loop runs until the data says stop.
---
@dsl.jit
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


[collatz(n) for n in (1, 6, 7, 27)]
---
collatz.lower(27).show()
===
A `for` over a range is one loop in the graph, whatever the number of trips: it takes as long to compile for ten as for ten million.
---
@dsl.jit
def decay(x, trips):
    for i in range(trips):
        x = x * 0.5 + i
    return x


print(decay.lower(np.ones(3), 10**7).text(locations=False))
===
Beneath the structured form is a flat one, in which loops are frames and tokens move through `enter`, `switch`,
`next_iteration` and `exit`. Back edges are orange. The interpreter gives the same results for both.
---
decay.lower(np.ones(3), 10).show("lowered")
===
Early returns, `break`, `continue`, comprehensions and helper functions work too.
---
def is_prime(n):
    if n < 2:
        return False
    k = 2
    while k * k <= n:
        if n % k == 0:
            return False
        k += 1
    return True


@dsl.jit
def count_primes(limit):
    total = 0
    for n in range(limit):
        if not is_prime(n):
            continue
        total += 1
    return total


count_primes(100)
===
## Mutation

Writes have NumPy's meaning: through views, and into the arrays that the caller passed.
---
@dsl.jit
def relax(plate, tolerance):
    sweeps, change = 0, 1.0
    while change > tolerance:
        old = plate.copy()
        plate[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) / 4
        change = np.abs(plate - old).max()
        sweeps += 1
    return sweeps


plate = np.zeros((7, 7))
plate[0] = 100.0
print(relax(plate, 1e-2), "sweeps")
plate.round()
---
@dsl.jit
def sort_rows(table):
    for row in table:
        row.sort()
    table[0] *= 10


table = np.array([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]])
sort_rows(table)
table
===
When a call raises, the caller's arrays are as before the call.
---
@dsl.jit
def withdraw(account, amount):
    account -= amount
    assert account.min() >= 0, "overdrawn"


account = np.array([10.0, 20.0])
try:
    withdraw(account, 15.0)
except AssertionError as error:
    print("AssertionError:", error)
account
===
## Errors

A message says what happened, shows your line, and ends with the remedy. Each exception is also the one that a NumPy user expects.
---
def attempt(function, *args):
    try:
        return dsl.jit(function)(*args)
    except dsl.DslError as error:
        print(f"{type(error).__name__} (a {type(error).__bases__[1].__name__}): {error.message}")
        print("    " + error.location.source().strip())
        print("Fix:", error.remedy)
---
def one_branch_only(x):
    if x.sum() > 0:
        scale = 2.0
    return x * scale


attempt(one_branch_only, np.ones(3))
---
def python_needs_a_number(x):
    return ["low", "high"][int(x.sum() > 0)]


attempt(python_needs_a_number, np.ones(3))
---
def randomness(x):
    return x + np.random.default_rng(0).normal(size=3)


attempt(randomness, np.ones(3))
===
Random numbers come from explicit keys, so that a function of a key is a function.
---
@dsl.jit
def throw_darts(key, n):
    points = dsl.random.uniform(key, (n, 2))
    return 4 * ((points**2).sum(axis=1) < 1).mean()


throw_darts(dsl.random.key(1), 100_000)
===
Where to go from here: [one function at every stage](stages.ipynb), from Python to machine code, [native code](../docs/native-code.md),
[sharp bits](../docs/sharp-bits.md), [every error](../docs/errors.md), [supported functions](../docs/numpy-support.md),
[debugging](../docs/debugging.md), and, to change dsl itself, [add an op](../docs/add-an-op.md).
"""

if __name__ == "__main__":
    write("tour", CELLS)
