"""Write notebooks/graphs.ipynb and run it: `python notebooks/make_graphs.py`."""

from __future__ import annotations

from cells import write

CELLS = r"""
# Graphs and sessions: the classic programs

Before functions were compiled, people built a graph and ran parts of it in a session. The programs of the TensorFlow papers and of the
lectures that followed are written that way. They run here nearly word for word: `tf.` becomes `np.` or `dsl.`, and there is nothing to
initialise, because a variable starts with a value.
---
import threading
import time

import numpy as np

import dsl
===
## One layer in a loop of steps

The first program of the white paper: a rectified linear layer, fed with a new input at each step. `x` has a size that is not known when
the graph is built.
---
rng = np.random.default_rng(0)

graph = dsl.Graph()
with graph:
    b = dsl.Variable(np.zeros((100, 1)))  # 100-d vector, init to zeroes
    W = dsl.Variable(rng.uniform(-1, 1, (100, 784)))  # 784x100 matrix w/ rnd vals
    x = dsl.placeholder(np.float64, (784, None), name="x")  # Placeholder for input
    relu = dsl.nn.relu(np.matmul(W, x) + b)  # Relu(Wx+b)
    C = relu.sum()  # Cost computed as a function of Relu

with dsl.Session(graph) as s:
    for step in range(3):
        input = rng.random((784, step + 1))
        print(step, round(s.run(C, feed_dict={x: input}), 3))
    print(s.explain())
===
A step that waits for nothing, as this one, is a single native program. Any tensor can be fetched, and any can be fed: then what lies
before it is not computed.
---
with dsl.Session(graph) as s:
    print(s.run(C, {relu: np.ones((100, 5))}))
print(graph.ir(C))
===
## Linear regression

Placeholders, variables, a loss and an optimiser. `minimize` adds the nodes of the gradient and of the update to the graph.
---
x_data = rng.random(100).astype(np.float32)
y_data = x_data * 0.1 + 0.3

with dsl.Graph() as graph:
    x = dsl.placeholder(np.float32, (None,), name="x")
    y_ = dsl.placeholder(np.float32, (None,), name="y_")
    W = dsl.Variable(rng.uniform(-1.0, 1.0, 1).astype(np.float32), name="W")
    b = dsl.Variable(np.zeros(1, np.float32), name="b")
    y = W * x + b
    loss = np.mean(np.square(y - y_))
    train = dsl.optim.SGD(0.5).minimize(loss)

with dsl.Session(graph) as sess:
    for step in range(201):
        sess.run(train, feed_dict={x: x_data, y_: y_data})
        if step % 50 == 0:
            print(step, sess.run(W).round(4), sess.run(b).round(4))
===
The variables are also NumPy arrays: `np.asarray(W)` is the memory that the step writes.
---
memory = np.asarray(W)
with dsl.Session(graph) as sess:
    sess.run(train, {x: x_data, y_: y_data + 1})
print(memory.round(4), np.shares_memory(memory, W.value))
===
## A recurrent network

The loop is a part of the graph: `dsl.scan` goes over the first axis of its input, whose length is known only when a step is fed. The
gradient goes back through it.
---
hidden = 16
with dsl.Graph() as graph:
    inputs = dsl.placeholder(np.float64, (None, None, 1), name="inputs")  # time, batch, features
    targets = dsl.placeholder(np.float64, (None,), name="targets")
    Wx = dsl.Variable(rng.normal(size=(1, hidden)) * 0.5, name="Wx")
    Wh = dsl.Variable(np.eye(hidden) * 0.9, name="Wh")
    Wo = dsl.Variable(rng.normal(size=hidden) * 0.3, name="Wo")

    def cell(h, x):
        h = np.tanh(x @ Wx + h @ Wh)
        return h, h

    start = np.tanh(inputs[0] @ Wx) * 0.0
    last, _ = dsl.scan(cell, start, inputs)
    loss = np.mean((last @ Wo - targets) ** 2)
    train = dsl.optim.Adam(0.01).minimize(loss)

data = rng.uniform(-1, 1, (10, 64, 1))
feeds = {inputs: data, targets: data.mean(axis=(0, 2))}
with dsl.Session(graph) as session:
    before = session.run(loss, feeds)
    for _ in range(300):
        session.run(train, feeds)
    print(f"loss fell to less than a twentieth: {session.run(loss, feeds) < before / 20}")
    shorter = {inputs: data[:4, :8], targets: data[:4, :8].mean(axis=(0, 2))}
    print("other lengths need no new step:", session.run(loss, shorter) < before, session.misses)
===
## A training loop that is fed by a queue

A producer makes examples in a thread of its own, with a graph and a session of its own, and puts them into a queue that shuffles. The
trainer takes batches out of it. When the producer is done it closes the queue, and the trainer stops when the queue is empty.

Here the examples are points of two spirals, and the network has to tell to which one a point belongs.
---
queue = dsl.RandomShuffleQueue(2000, 500, [np.float64, np.float64], [(2,), ()], seed=1)

with dsl.Graph("producing") as producing:
    angle = dsl.placeholder(np.float64, (), name="angle")
    side = dsl.placeholder(np.float64, (), name="side")
    noise = dsl.placeholder(np.float64, (2,), name="noise")
    radius = side * (0.2 + angle / 6)
    point = radius * np.stack([np.cos(angle), np.sin(angle)]) + noise
    enqueue = queue.enqueue((point, side))
    close = queue.close()

with dsl.Graph("training") as training:
    points, sides = queue.dequeue_many(64)
    W1 = dsl.Variable(rng.normal(size=(2, 32)), name="W1")
    b1 = dsl.Variable(rng.normal(size=32), name="b1")
    W2 = dsl.Variable(rng.normal(size=(32, 32)) / 6, name="W2")
    b2 = dsl.Variable(np.zeros(32), name="b2")
    W3 = dsl.Variable(rng.normal(size=32) / 6, name="W3")

    def network(points):
        return np.tanh(np.tanh(points @ W1 + b1) @ W2 + b2) @ W3

    loss = np.mean(np.log(1 + np.exp(-sides * network(points))))
    train = dsl.optim.Adam(0.01).minimize(loss)
    anywhere = dsl.placeholder(np.float64, (None, 2), name="anywhere")
    answer = network(anywhere)


def produce(count):
    random = np.random.default_rng(0)
    with dsl.Session(producing) as session:
        put = session.make_callable(enqueue, [angle, side, noise])
        for _ in range(count):
            put(random.uniform(0, 9), random.choice([-1.0, 1.0]), 0.04 * random.normal(size=2))
        session.run(close)


producer = threading.Thread(target=produce, args=(64 * 600,))
producer.start()
losses = []
with dsl.Session(training, timeout=60) as session:
    try:
        while True:
            losses.append(session.run([loss, train])[0])
    except dsl.errors.OutOfRangeError:
        print(len(losses), "steps, then the queue was closed and empty")
    producer.join()
    print("the loss fell below 0.1:", np.mean(losses[-20:]) < 0.1)
    print(session.explain())
    line = np.linspace(-2, 2, 80)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    picture = session.run(answer, {anywhere: grid}).reshape(80, 80)
===
The step that dequeues is run token by token: it waits for its batch without holding a thread, and all that it does afterwards is one
native program.
---
# Differs from machine to machine.
try:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    left.semilogy(losses, lw=0.8)
    left.set(xlabel="step", title="loss")
    extent, colours = (-2, 2, -2, 2), "coolwarm"
    right.imshow(np.sign(picture), extent=extent, origin="lower", cmap=colours, alpha=0.5)
    turn = np.linspace(0, 9, 200)
    for sign, colour in ((1, "tab:red"), (-1, "tab:blue")):
        radius = sign * (0.2 + turn / 6)
        right.plot(radius * np.cos(turn), radius * np.sin(turn), color=colour)
    right.set(title="which spiral, everywhere", xlim=(-2, 2), ylim=(-2, 2))
    plt.show()
except ModuleNotFoundError:
    print('There is no matplotlib: run `pip install -e ".[bench]"`.')
===
## Many threads, one graph

Steps may run at once. They meet in variables and queues alone, and no update is lost.
---
with dsl.Graph() as graph:
    count = dsl.Variable(0, name="count")
    bump = count.assign_add(1)

with dsl.Session(graph) as session:
    step = session.make_callable(bump)
    threads = [threading.Thread(target=lambda: [step() for _ in range(2000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(count.value)
===
What a step costs:
---
# Differs from machine to machine.
with dsl.Session(graph) as session:
    step = session.make_callable(bump)
    begin = time.perf_counter()
    for _ in range(20_000):
        step()
    print(f"{20_000 / (time.perf_counter() - begin):,.0f} steps a second, from one thread")
===
## The profiler's picture

`with dsl.profile() as picture:` records what ran: each step, the programs and kernels in it with your lines, waits for queues, one row for
each thread. A step that takes its batches from a queue, with a thread that fills it:
---
# Differs from machine to machine.
with dsl.Graph() as graph:
    queue = dsl.FIFOQueue(8, np.float64, (64, 64), name="batches")
    weights = dsl.Variable(np.eye(64), name="weights")
    batch = queue.dequeue()
    loss = np.mean((np.tanh(batch @ weights) - batch) ** 2)
    train = dsl.optim.SGD(0.1).minimize(loss)


def fill():
    with queue:
        for _ in range(40):
            queue.enqueue(rng.normal(size=(64, 64)))


producer = threading.Thread(target=fill, name="producer")
with dsl.Session(graph, timeout=30) as session:
    step = session.make_callable([loss, train])
    producer.start()
    step()
    with dsl.profile() as picture:
        for _ in range(6):
            step()
    for _ in range(33):
        step()
producer.join()
picture
===
[Graphs and sessions](../docs/graphs.md) has the rest: partial runs, order of effects, graphs written by hand, what is refused.
"""

if __name__ == "__main__":
    write("graphs", CELLS)
