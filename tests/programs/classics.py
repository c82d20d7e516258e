"""Textbook programs: games, quadrature, root finding, ODEs, filters, graphs."""

from dataclasses import dataclass, field

import numpy as np

KERNEL = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]])
OFFSETS = [(-1, 0), (1, 0), (0, -1), (0, 1)]
INF = float("inf")


def size(rng, low=5, high=9):
    return int(rng.integers(low, high))


def life(grid, steps=1):
    for _ in range(steps):
        neighbours = sum(
            np.roll(np.roll(grid, dy, 0), dx, 1)
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if (dy, dx) != (0, 0)
        )
        grid = ((neighbours == 3) | ((grid == 1) & (neighbours == 2))).astype(grid.dtype)
    return grid


def life_args(rng):
    return rng.integers(0, 2, (size(rng), size(rng)), dtype=np.uint8), size(rng, 2, 5)


def life_loops(grid):
    rows, cols = grid.shape
    new = grid.copy()
    for r in range(rows):
        for c in range(cols):
            total = 0
            for dr in (-1, 0, 1):
                for dc in (-1, 0, 1):
                    if dr == 0 and dc == 0:
                        continue
                    rr, cc = r + dr, c + dc
                    if 0 <= rr < rows and 0 <= cc < cols:
                        total += grid[rr, cc]
            if grid[r, c]:
                new[r, c] = 2 <= total <= 3
            else:
                new[r, c] = total == 3
    grid[...] = new
    return int(grid.sum())


def life_loops_args(rng):
    return (rng.integers(0, 2, (size(rng), size(rng))).astype(bool),)


def sudoku_valid(board):
    for i in range(9):
        row_seen = np.zeros(10, dtype=bool)
        col_seen = np.zeros(10, dtype=bool)
        box_seen = np.zeros(10, dtype=bool)
        for j in range(9):
            r, c = 3 * (i // 3) + j // 3, 3 * (i % 3) + j % 3
            for seen, v in (
                (row_seen, board[i, j]),
                (col_seen, board[j, i]),
                (box_seen, board[r, c]),
            ):
                if v and seen[v]:
                    return False
                seen[v] = True
    return True


def sudoku_args(rng):
    i, j = np.indices((9, 9))
    board = ((i * 3 + i // 3 + j) % 9 + 1).astype(np.int8)
    if rng.random() < 0.5:
        board[4, 4] = board[4, 5]
    return (board,)


def matrix_power(a, n):
    if n < 0:
        raise ValueError("n must not be negative")
    result = np.eye(len(a), dtype=a.dtype)
    base = a
    while n:
        if n & 1:
            result = result @ base
        base = base @ base
        n >>= 1
    return result


def matrix_power_args(rng):
    n = size(rng, 2, 5)
    return rng.integers(0, 5, (n, n)), int(rng.integers(-1, 8))


def simpson(f, a, b, n=100):
    if n % 2:
        n += 1
    h = (b - a) / n
    s = f(a) + f(b)
    for i in range(1, n, 2):
        s += 4 * f(a + i * h)
    for i in range(2, n - 1, 2):
        s += 2 * f(a + i * h)
    return s * h / 3


def integrate_all(coefficients, n):
    poly = lambda x: coefficients[0] + coefficients[1] * x + coefficients[2] * np.exp(-x * x)

    def trapezoid(f, a, b):
        x = np.linspace(a, b, n + 1)
        y = f(x)
        return (b - a) / (2 * n) * (y[0] + 2 * y[1:-1].sum() + y[-1])

    return {"simpson": simpson(poly, 0.0, 2.0, n=n), "trapezoid": trapezoid(poly, 0.0, 2.0)}


def integrate_args(rng):
    return rng.random(3), size(rng, 10, 20)


def bisection(a, b, c, tol=1e-10, maxiter=100):
    def f(x):
        return x**3 + a * x - b

    lo, hi = -c, c
    if f(lo) * f(hi) > 0:
        raise ValueError("no sign change")
    for k in range(maxiter):
        mid = 0.5 * (lo + hi)
        if f(mid) == 0 or (hi - lo) / 2 < tol:
            return mid, k
        if np.sign(f(mid)) == np.sign(f(lo)):
            lo = mid
        else:
            hi = mid
    else:
        raise RuntimeError("not converged")


def bisection_args(rng):
    return rng.random(), rng.random() * 10, float(rng.integers(1, 5))


def secant(coef, x0, x1, eps=1e-12):
    def horner(x):
        acc = 0.0
        for c in coef[::-1]:
            acc = acc * x + c
        return acc

    history = []
    for _ in range(20):
        f0, f1 = horner(x0), horner(x1)
        if abs(f1 - f0) < eps:
            break
        x0, x1 = x1, x1 - f1 * (x1 - x0) / (f1 - f0)
        history.append(x1)
    return x1, history


def secant_args(rng):
    return np.array([-2.0 - rng.random(), 0.5, 1.0]), 1.0, 2.0


def lorenz(state, sigma=10.0, rho=28.0, beta=8 / 3):
    x, y, z = state
    return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


def rk4(state, dt, n, **params):
    out = np.empty((n + 1, *state.shape), state.dtype)
    out[0] = state
    for i in range(n):
        k1 = lorenz(state, **params)
        k2 = lorenz(state + 0.5 * dt * k1, **params)
        k3 = lorenz(state + 0.5 * dt * k2, **params)
        k4 = lorenz(state + dt * k3, **params)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        out[i + 1] = state
    return out


def rk4_args(rng):
    return rng.random(3), 0.01, size(rng)


C_RK = (0.0, 1 / 4, 3 / 8, 12 / 13, 1.0, 1 / 2)
A_RK = [
    [],
    [1 / 4],
    [3 / 32, 9 / 32],
    [1932 / 2197, -7200 / 2197, 7296 / 2197],
    [439 / 216, -8.0, 3680 / 513, -845 / 4104],
    [-8 / 27, 2.0, -3544 / 2565, 1859 / 4104, -11 / 40],
]
B5 = np.array([16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55])
B4 = np.array([25 / 216, 0, 1408 / 2565, 2197 / 4104, -1 / 5, 0])


def rk45(y, t, t_end, tol=1e-6, h=0.1):
    f = lambda t, y: np.array([y[1], -np.sin(y[0]) - 0.1 * y[1] + 0.0 * t])
    accepted = rejected = 0
    while t < t_end:
        h = min(h, t_end - t)
        k = []
        for c, row in zip(C_RK, A_RK):
            yi = y.copy()
            for a, kj in zip(row, k):
                yi = yi + h * a * kj
            k.append(f(t + c * h, yi))
        ks = np.array(k)
        err = np.abs(h * ((B5 - B4) @ ks)).max()
        if err <= tol:
            t += h
            y = y + h * (B5 @ ks)
            accepted += 1
        else:
            rejected += 1
        factor = 0.9 * (tol / max(err, 1e-16)) ** 0.2
        h *= min(5.0, max(0.2, factor))
    return y, accepted, rejected


def rk45_args(rng):
    return rng.random(2) * 2, 0.0, 1.0 + float(rng.random())


class Kalman:
    def __init__(self, dt, q, r):
        self.F = np.array([[1, dt], [0, 1]])
        self.H = np.array([[1.0, 0.0]])
        self.Q = q * np.eye(2)
        self.R = np.array([[r]])
        self.x = np.zeros(2)
        self.P = np.eye(2)
        self.count = 0

    def predict(self):
        self.x = self.F @ self.x
        self.P = self.F @ self.P @ self.F.T + self.Q

    def update(self, z):
        y = z - self.H @ self.x
        S = self.H @ self.P @ self.H.T + self.R
        K = self.P @ self.H.T @ np.linalg.inv(S)
        self.x = self.x + K @ y
        self.P = (np.eye(2) - K @ self.H) @ self.P
        self.count += 1

    def run(self, zs):
        out = np.zeros((len(zs), 2))
        for i, z in enumerate(zs):
            self.predict()
            self.update(z)
            out[i] = self.x
        return out


def kalman_args(rng):
    return Kalman(0.1, 1e-3, float(rng.random()) + 0.1), rng.normal(size=size(rng))


def kalman_step(state, z):
    state.predict()
    state.update(z)
    return state.x


def kalman_step_args(rng):
    k, zs = kalman_args(rng)
    return k, float(zs[0])


@dataclass
class Particle:
    pos: np.ndarray
    vel: np.ndarray
    mass: float = 1.0
    log: list = field(default_factory=list)


def box_step(p, dt=0.1, lo=0.0, hi=1.0):
    p.pos += p.vel * dt
    for axis in range(p.pos.shape[1]):
        below = p.pos[:, axis] < lo
        above = p.pos[:, axis] > hi
        p.vel[below | above, axis] *= -1
        p.pos[:, axis] = np.clip(p.pos[:, axis], lo, hi)
    energy = 0.5 * p.mass * np.sum(p.vel**2)
    p.log.append(energy)
    return energy


def box_args(rng):
    n = size(rng)
    return Particle(rng.random((n, 2)), rng.normal(size=(n, 2)) * 4), 0.1


def pagerank(adj, d=0.85, eps=1e-8):
    n = len(adj)
    out = adj.sum(axis=1)
    m = np.where(out[:, None] > 0, adj / np.maximum(out, 1)[:, None], 1 / n).T
    r = np.full(n, 1 / n)
    it = 0
    while True:
        new = d * m @ r + (1 - d) / n
        it += 1
        if np.linalg.norm(new - r, 1) < eps:
            break
        r = new
    return new, it


def pagerank_args(rng):
    n = size(rng)
    return (rng.integers(0, 2, (n, n)),)


def kmeans(x, centers, iters=10):
    k = centers.shape[0]
    centers = centers.copy()
    labels = None
    for _ in range(iters):
        d = ((x[:, None, :] - centers[None, :, :]) ** 2).sum(axis=-1)
        new_labels = d.argmin(axis=1)
        if labels is not None and np.array_equal(labels, new_labels):
            break
        labels = new_labels
        for j in range(k):
            members = x[labels == j]
            if len(members) > 0:
                centers[j] = members.mean(axis=0)
    return centers, labels


def kmeans_args(rng):
    n, k = size(rng, 20, 30), size(rng, 2, 4)
    x = rng.normal(size=(n, 2))
    return x, x[:k].copy()


def pca(x, k=2):
    xc = x - x.mean(axis=0, keepdims=True)
    cov = xc.T @ xc / (x.shape[0] - 1)
    w, v = np.linalg.eigh(cov)
    order = np.argsort(w)[::-1][:k]
    comp = v[:, order]
    sign = np.sign(comp[np.abs(comp).argmax(axis=0), np.arange(k)])
    comp *= sign
    return xc @ comp, w[order] / w.sum()


def pca_args(rng):
    return (rng.random((size(rng, 10, 20), size(rng))),)


def perceptron(X, y, epochs=5, lr=0.1):
    w = np.zeros(X.shape[1] + 1)
    errors_ = []
    for _ in range(epochs):
        errors = 0
        for xi, target in zip(X, y):
            pred = 1 if xi @ w[1:] + w[0] >= 0 else -1
            update = lr * (target - pred)
            w[1:] += update * xi
            w[0] += update
            errors += int(update != 0.0)
        errors_.append(errors)
        if errors == 0:
            break
    return w, errors_


def perceptron_args(rng):
    n = size(rng, 10, 20)
    X = rng.normal(size=(n, 2))
    return X, np.where(X @ np.array([1.0, -2.0]) > 0.3, 1, -1)


def viterbi(obs, pi, A, B):
    n, t = len(pi), len(obs)
    delta = np.zeros((t, n))
    psi = np.zeros((t, n), dtype=int)
    with np.errstate(divide="ignore"):
        la, lb, lp = np.log(A), np.log(B), np.log(pi)
    delta[0] = lp + lb[:, obs[0]]
    for i in range(1, t):
        for j in range(n):
            cand = delta[i - 1] + la[:, j]
            psi[i, j] = np.argmax(cand)
            delta[i, j] = cand[psi[i, j]] + lb[j, obs[i]]
    path = np.zeros(t, dtype=int)
    path[-1] = delta[-1].argmax()
    for i in range(t - 2, -1, -1):
        path[i] = psi[i + 1, path[i + 1]]
    return path, delta[-1].max()


def viterbi_args(rng):
    n, m, t = size(rng, 2, 4), 3, size(rng)
    norm = lambda a: a / a.sum(-1, keepdims=True)
    a = rng.random((n, n))
    a[0, 1] = 0
    return rng.integers(0, m, t), norm(rng.random(n)), norm(a), norm(rng.random((n, m)))


def hmm_forward(obs, pi, A, B):
    alpha = pi * B[:, obs[0]]
    loglik = 0.0
    for o in obs[1:]:
        c = alpha.sum()
        alpha /= c
        loglik += np.log(c)
        alpha = (alpha @ A) * B[:, o]
    return loglik + np.log(np.sum(alpha))


def tic_tac_toe_winner(board):
    lines = [board[i, :] for i in range(3)] + [board[:, j] for j in range(3)]
    lines += [np.diag(board), np.diag(board[:, ::-1])]
    for line in lines:
        if line[0] != 0 and np.all(line == line[0]):
            return line[0]
    if not (board == 0).any():
        return 0
    return None


def tic_args(rng):
    return (rng.integers(-1, 2, (3, 3)).astype(np.int8),)


def nim_solver(limit, moves):
    win = np.zeros(limit + 1, dtype=bool)
    best = np.full(limit + 1, -1, dtype=np.int16)
    for n in range(1, limit + 1):
        for m in moves:
            if m <= n and not win[n - m]:
                win[n] = True
                best[n] = m
                break
        else:
            best[n] = 0
    return win, best


def nim_args(rng):
    return size(rng, 10, 20), np.sort(rng.choice(np.arange(1, 7), 3, replace=False))


PROGRAMS = [
    (life, life_args),
    (life_loops, life_loops_args),
    (sudoku_valid, sudoku_args),
    (matrix_power, matrix_power_args),
    (integrate_all, integrate_args),
    (bisection, bisection_args),
    (secant, secant_args),
    (rk4, rk4_args),
    (rk45, rk45_args),
    (Kalman.run, kalman_args),
    (kalman_step, kalman_step_args),
    (box_step, box_args),
    (pagerank, pagerank_args),
    (kmeans, kmeans_args),
    (pca, pca_args),
    (perceptron, perceptron_args),
    (viterbi, viterbi_args),
    (hmm_forward, viterbi_args),
    (tic_tac_toe_winner, tic_args),
    (nim_solver, nim_args),
]
