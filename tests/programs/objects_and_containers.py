"""Classes, lists, dicts and queues that loops and branches on data change."""

import functools
from collections import deque
from dataclasses import dataclass, field

import numpy as np


class Recorder:
    def __init__(self):
        self.items, self.by_name, self.rows, self.count = [], {}, [[], []], 0

    def add(self, value):
        self.items.append(value)
        self.count += 1

    def put(self, name, value):
        self.by_name[name] = value


def record_positive(recorder, x):
    for i in range(len(x)):
        if x[i] > 0:
            recorder.add(x[i])
    return recorder.count


def record_each(recorder, x):
    for i in range(3):
        recorder.add(x[i])
    return len(recorder.items)


def record_by_name(recorder, x):
    if x[0] > 0:
        recorder.put("first", x * 2)
    else:
        recorder.put("first", x * 3)
    recorder.put("sum", x.sum())
    return recorder.by_name["first"][0]


def record_rows(recorder, x):
    recorder.rows[0].append(x[0])
    for value in x:
        if value > 0:
            recorder.rows[1].append(value)
    return x.sum()


def record_into_new_list(recorder, x):
    kept = recorder.items
    recorder.add(x[0])
    recorder.items = []
    recorder.add(x[1])
    return kept


def window_of_last(x):
    recorder = Recorder()
    for i in range(len(x)):
        if x[i] > 0:
            recorder.add(x[i])
            if len(recorder.items) > 2:
                recorder.items.pop(0)
    return recorder.items, recorder.count


def fill_positive(items, x):
    for i in range(len(x)):
        if x[i] > 0:
            items.append(x[i])


def filled_by_function(x):
    found = []
    fill_positive(found, x)
    return found


def filled_by_other_name(x):
    one = other = []
    for i in range(len(x)):
        if x[i] > 0:
            one.append(x[i])
    return other


def filled_by_closure(x):
    found = []

    def add(value):
        if value > 0:
            found.append(value)

    for i in range(len(x)):
        add(x[i])
    return found


def signs_in_dict(x):
    parts = {"plus": [], "minus": []}
    plus = parts["plus"]
    for i in range(len(x)):
        if x[i] > 0:
            plus.append(x[i])
        else:
            parts["minus"].append(x[i])
    return parts


def signs_in_rows(x):
    rows = [[], []]
    for value in x:
        rows[0 if len(rows) == 1 else 1].append(value)
        if value > 0:
            rows[0].append(value)
    return rows


def permutations(a):
    n, found = len(a), []

    def go(k, arr):
        if k == n:
            found.append(arr.copy())
            return
        for i in range(k, n):
            arr[[k, i]] = arr[[i, k]]
            go(k + 1, arr)
            arr[[k, i]] = arr[[i, k]]

    go(0, a.copy())
    return np.array(found)


class Stack:
    def __init__(self):
        self._items = []

    def push(self, value):
        self._items.append(value)

    def pop(self):
        return self._items.pop()

    def empty(self):
        return not self._items


def reverse_polish(tokens, values):
    stack = Stack()
    for i in range(len(tokens)):
        if tokens[i] == 0:
            stack.push(values[i])
        elif tokens[i] == 1:
            stack.push(stack.pop() + stack.pop())
        else:
            stack.push(stack.pop() * stack.pop())
    return stack.pop()


def depth_first(adj):
    stack, seen, order = Stack(), np.zeros(len(adj), bool), []
    stack.push(0)
    while not stack.empty():
        u = stack.pop()
        if seen[u]:
            continue
        seen[u] = True
        order.append(u)
        for v in range(len(adj)):
            if adj[u, v] and not seen[v]:
                stack.push(v)
    return order


def balanced(codes):
    stack = []
    for c in codes:
        if c == 40 or c == 91:
            stack.append(c)
        else:
            if not stack:
                return False
            top = stack.pop()
            if (c == 41 and top != 40) or (c == 93 and top != 91):
                return False
    return not stack


def bracket_args(rng):
    text = ["([])()", "([)]", "(((", "())"][int(rng.integers(4))]
    return (np.frombuffer(text.encode(), np.uint8).copy(),)


def breadth_first_grid(grid):
    h, w = grid.shape
    dist = np.full((h, w), -1)
    queue = deque()
    queue.append((0, 0))
    dist[0, 0] = 0
    while queue:
        r, c = queue.popleft()
        for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            rr, cc = r + dr, c + dc
            if 0 <= rr < h and 0 <= cc < w and not grid[rr, cc] and dist[rr, cc] < 0:
                dist[rr, cc] = dist[r, c] + 1
                queue.append((rr, cc))
    return dist


def sliding_maximum(x, k):
    queue, out = deque(), []
    for i in range(len(x)):
        while queue and x[queue[-1]] <= x[i]:
            queue.pop()
        queue.append(i)
        if queue[0] <= i - k:
            queue.popleft()
        if i >= k - 1:
            out.append(x[queue[0]])
    return np.array(out)


def both_ends(x):
    queue = deque()
    for v in x:
        if v > 0:
            queue.appendleft(v)
        else:
            queue.append(v)
    return list(queue), len(queue)


class Dual:
    def __init__(self, x, d=0.0):
        self.x, self.d = x, d

    def __add__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.x + other.x, self.d + other.d)

    def __mul__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.x * other.x, self.x * other.d + self.d * other.x)

    __radd__, __rmul__ = __add__, __mul__

    def __gt__(self, other):
        return self.x > (other.x if isinstance(other, Dual) else other)

    def relu(self):
        if self.x > 0:
            return self
        return Dual(0.0, 0.0)


def dual_numbers(a):
    x, k = Dual(a[0], 1.0), 0
    while x.x < 50 and k < 40:
        x = x * x + a[1] if x > 1 else x + 1.5 * x + abs(a[2]) + 0.1
        k += 1
    return x.x, x.d, k, (x * -1.0).relu()


def largest_dual(a):
    best = None
    for i in range(len(a)):
        candidate = Dual(a[i], i)
        if best is None or candidate > best:
            best = candidate
    return best.x, best.d


class Quaternion:
    def __init__(self, w, v):
        self.w, self.v = w, np.asarray(v)

    def __mul__(self, o):
        return Quaternion(
            self.w * o.w - self.v @ o.v, self.w * o.v + o.w * self.v + np.cross(self.v, o.v)
        )


def quaternion_turns(axis):
    q = Quaternion(1.0, np.zeros(3))
    turn = Quaternion(np.cos(0.1), np.sin(0.1) * axis / np.linalg.norm(axis))
    for _ in range(50):
        q = q * turn
    return q


class Ball:
    def __init__(self, p, v):
        self.p, self.v, self.bounces = p, v, []

    def step(self, dt):
        self.v = self.v - 9.8 * dt
        self.p = self.p + self.v * dt
        if self.p < 0:
            self.p = -self.p
            self.v = -self.v * 0.9
            self.bounces.append(self.v)


def bouncing_balls(heights):
    balls = [Ball(abs(h) + 1, 0.0) for h in heights]
    for _ in range(100):
        for ball in balls:
            ball.step(0.02)
    return [ball.p for ball in balls], [len(ball.bounces) for ball in balls]


class Rational:
    def __init__(self, n, d):
        g = np.gcd(n, d)
        self.n, self.d = n // g, d // g

    def __add__(self, o):
        return Rational(self.n * o.d + o.n * self.d, self.d * o.d)

    def __eq__(self, o):
        return self.n == o.n and self.d == o.d

    __hash__ = None


def harmonic_number(n):
    total = Rational(0, 1)
    for k in range(1, n + 1):
        total = total + Rational(1, k)
    return total.n, total.d, total == Rational(total.n * 2, total.d * 2)


class SearchTree:
    def __init__(self, n):
        self.key, self.n = np.zeros(n), 0
        self.left, self.right = np.full(n, -1), np.full(n, -1)

    def insert(self, k):
        self.key[self.n] = k
        if self.n > 0:
            i = 0
            while True:
                if k < self.key[i]:
                    if self.left[i] < 0:
                        self.left[i] = self.n
                        break
                    i = self.left[i]
                else:
                    if self.right[i] < 0:
                        self.right[i] = self.n
                        break
                    i = self.right[i]
        self.n += 1

    def in_order(self):
        out, stack, i = [], [], 0
        while stack or i >= 0:
            while i >= 0:
                stack.append(i)
                i = self.left[i]
            i = stack.pop()
            out.append(self.key[i])
            i = self.right[i]
        return out


def tree_sort(a):
    tree = SearchTree(len(a))
    for v in a:
        tree.insert(v)
    return tree.in_order()


class Link:
    def __init__(self, value, rest=None):
        self.value, self.rest = value, rest


def linked_list(a):
    head = None
    for k in range(3):
        head = Link(a[k], head)
    total = 0
    while head is not None:
        total = total * 2 + head.value
        head = head.rest
    return total


@functools.total_ordering
class Money:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return bool(self.v == o.v)

    __hash__ = None

    def __lt__(self, o):
        if o.v > 1:
            return True
        return self.v < o.v

    def __iadd__(self, o):
        if o.v > 0:
            self.v = self.v + o.v
        return self

    def __neg__(self):
        if self.v > 0:
            return Money(-self.v)
        return self

    def __abs__(self):
        if self.v > 0:
            return Money(self.v)
        return Money(-self.v)

    def __bool__(self):
        return bool(self.v > 0)

    def __len__(self):
        return 2

    def __float__(self):
        return float(self.v)

    def __setitem__(self, i, v):
        if v > 0:
            self.v = v

    def __contains__(self, x):
        if x > 0:
            return True
        return x == self.v

    def __repr__(self):
        return f"Money({self.v:.2f})"


def operators_with_conditions(a, b):
    p, q = Money(a), Money(b)
    order = p >= q, p <= q, p > q, p != q, p == q
    p += q
    p[0] = b
    print(p, f"{q!r} {q}", [1, 2])
    return order, p.v, (-q).v, abs(q).v, float(q), len(p), 1 if p else 2, a in q


@dataclass(order=True)
class Version:
    major: float
    minor: float = 2.0


def ordered_dataclasses(a, b):
    p, q = Version(a), Version(b)
    print(p, f"{q}")
    return (
        p < q,
        p == q,
        p != q,
        max(p, q).major,
        sorted([p, q])[0].major,
        (a, b) < (b, a),
        min((a, 1), (b, 2)),
    )


@dataclass
class State:
    w: np.ndarray = field(default_factory=lambda: np.zeros(3))
    log: list = field(default_factory=list)

    def __post_init__(self):
        if self.w.sum() > 0:
            self.w = -self.w


def dataclass_defaults(a, b):
    s, t = State(), State(np.array([a, b]))
    s.w[0] += a
    s.log.append(b)
    t.w = t.w + 1
    return s, t.w


def two(rng):
    return np.float64(rng.normal()), np.float64(rng.normal())


def recorded(rng):
    return Recorder(), rng.normal(size=5)


def vector(rng):
    return (rng.normal(size=6),)


PROGRAMS = [
    *((f, recorded) for f in (record_positive, record_each, record_by_name, record_rows, record_into_new_list)),
    *((f, vector) for f in (window_of_last, filled_by_function, filled_by_other_name, filled_by_closure, signs_in_dict)),
    *((f, vector) for f in (signs_in_rows, both_ends, dual_numbers, largest_dual, bouncing_balls, tree_sort, linked_list)),
    (permutations, lambda rng: (rng.random(3),)),
    (reverse_polish, lambda rng: (np.array([0, 0, 1, 0, 2]), rng.random(5))),
    (depth_first, lambda rng: (rng.random((6, 6)) < 0.4,)),
    (balanced, bracket_args),
    (breadth_first_grid, lambda rng: (rng.random((5, 5)) < 0.3,)),
    (sliding_maximum, lambda rng: (rng.normal(size=int(rng.integers(8, 12))), 3)),
    (quaternion_turns, lambda rng: (rng.normal(size=3),)),
    (harmonic_number, lambda rng: (9,)),
    (operators_with_conditions, two),
    (ordered_dataclasses, two),
    (dataclass_defaults, two),
]  # fmt: skip
