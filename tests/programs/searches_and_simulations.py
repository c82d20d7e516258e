"""Searches, codes, solvers and simulations of thirty lines and more."""

import math
from collections import deque

import numpy as np


def sud(rng, n):
    b = np.array([int(c) for c in "1000000004000030000020"[:16]], dtype=np.int8).reshape(4, 4)
    b[:] = 0
    b[0, 0] = 1 + rng.integers(4)
    b[2, 1] = 1 + rng.integers(4)
    return (b,)


def words(rng, n):
    return (rng.integers(0, 3, size=(n, 4)).astype(np.uint8),)


def grid(rng, n):
    return (rng.random((n, n + 1)),)


def sudoku4(board):
    cells = np.argwhere(board == 0)
    k = 0
    steps = 0
    while 0 <= k < len(cells):
        r, c = cells[k]
        steps += 1
        v = board[r, c] + 1
        board[r, c] = 0
        while v <= 4:
            br, bc = (r // 2 * 2, c // 2 * 2)
            if not (
                (board[r] == v).any()
                or (board[:, c] == v).any()
                or (board[br : br + 2, bc : bc + 2] == v).any()
            ):
                break
            v += 1
        else:
            k -= 1
            continue
        board[r, c] = v
        k += 1
    return (steps, k)


def trie_insert(ws):
    child = np.full((4 * ws.shape[0] + 1, 3), -1, dtype=np.int32)
    count = np.zeros(len(child), np.int16)
    used = 1
    for w in ws:
        node = 0
        for ch in w:
            if (nxt := child[node, ch]) < 0:
                child[node, ch] = nxt = used
                used += 1
            node = nxt
            count[node] += 1
    return (child[:used], count[:used], used)


class Heap:
    def __init__(self, cap):
        self.key = np.empty(cap)
        self.val = np.empty(cap, dtype=np.int64)
        self.n = 0

    def push(self, k, v):
        i = self.n
        self.n += 1
        while i > 0 and self.key[(i - 1) // 2] > k:
            p = (i - 1) // 2
            self.key[i] = self.key[p]
            self.val[i] = self.val[p]
            i = p
        self.key[i], self.val[i] = (k, v)

    def pop(self):
        top = (self.key[0], self.val[0])
        self.n -= 1
        k, v = (self.key[self.n], self.val[self.n])
        i = 0
        while (c := (2 * i + 1)) < self.n:
            if c + 1 < self.n and self.key[c + 1] < self.key[c]:
                c += 1
            if self.key[c] >= k:
                break
            self.key[i] = self.key[c]
            self.val[i] = self.val[c]
            i = c
        self.key[i] = k
        self.val[i] = v
        return top


def grid_dijkstra(cost):
    R, C = cost.shape
    dist = np.full((R, C), np.inf)
    done = np.zeros_like(dist, dtype=bool)
    h = Heap(4 * R * C + 1)
    dist[0, 0] = cost[0, 0]
    h.push(dist[0, 0], 0)
    while h.n > 0:
        d, at = h.pop()
        r, c = divmod(at, C)
        if done[r, c]:
            continue
        done[r, c] = True
        if r == R - 1 and c == C - 1:
            return (d, dist)
        for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            rr, cc = (r + dr, c + dc)
            if 0 <= rr < R and 0 <= cc < C and ((nd := (d + cost[rr, cc])) < dist[rr, cc]):
                dist[rr, cc] = nd
                h.push(nd, rr * C + cc)
    return (np.inf, dist)


def huffman_lengths(freq):
    n = len(freq)
    w = np.concatenate([freq, np.zeros(n - 1, freq.dtype)])
    parent = np.zeros(2 * n - 1, dtype=int)
    alive = np.zeros(2 * n - 1, bool)
    alive[:n] = True
    for k in range(n, 2 * n - 1):
        masked = np.where(alive, w, np.iinfo(w.dtype).max)
        i = int(np.argmin(masked))
        alive[i] = False
        masked[i] = np.iinfo(w.dtype).max
        j = int(np.argmin(masked))
        alive[j] = False
        w[k] = w[i] + w[j]
        alive[k] = True
        parent[i] = parent[j] = k
    depth = np.zeros(2 * n - 1, dtype=np.uint8)
    for k in reversed(range(2 * n - 2)):
        depth[k] = depth[parent[k]] + 1
    return (depth[:n], (depth[:n] * freq).sum())


def lz78(data):
    prefix = []
    sym = []
    d = np.zeros((len(data) + 1, 2), dtype=int)
    size = 1
    cur = 0
    for b in data:
        if d[cur, b]:
            cur = d[cur, b]
        else:
            d[cur, b] = size
            size += 1
            prefix.append(cur)
            sym.append(b)
            cur = 0
    if cur:
        prefix.append(cur)
        sym.append(255)
    return (np.array(prefix), np.array(sym))


def nmf(V, W, H, *, iters=5, eps=1e-09):
    W = W.copy()
    H = H.copy()
    for _ in range(iters):
        H *= W.T @ V / (W.T @ W @ H + eps)
        W *= V @ H.T / (W @ H @ H.T + eps)
    err = V - W @ H
    return (W, H, np.sqrt((err * err).sum()))


def crf(unary, trans):

    def lse(a, axis):
        m = a.max(axis=axis, keepdims=True)
        return np.squeeze(m, axis) + np.log(np.exp(a - m).sum(axis=axis))

    alpha = unary[0]
    for t in range(1, len(unary)):
        alpha = lse(alpha[:, None] + trans, 0) + unary[t]
    Z = lse(alpha, 0)
    score = unary[0]
    back = np.zeros(unary.shape, dtype=np.intp)
    for t in range(1, unary.shape[0]):
        m = score[:, None] + trans
        back[t] = m.argmax(axis=0)
        score = m.max(0) + unary[t]
    path = np.empty(len(unary), np.intp)
    path[-1] = score.argmax()
    for t in range(len(unary) - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    return (Z, path)


def kdtree_nearest(pts, q):
    n = len(pts)
    order = np.arange(n)
    stack = np.empty((2 * n + 2, 3), dtype=int)
    sp = 0
    stack[0] = (0, n, 0)
    sp = 1
    while sp:
        sp -= 1
        lo, hi, ax = stack[sp]
        if hi - lo <= 1:
            continue
        seg = order[lo:hi]
        order[lo:hi] = seg[np.argsort(pts[seg, ax], kind="stable")]
        mid = (lo + hi) // 2
        stack[sp] = (lo, mid, 1 - ax)
        stack[sp + 1] = (mid + 1, hi, 1 - ax)
        sp += 2
    best, who = (np.inf, -1)
    visited = 0
    stack[0] = (0, n, 0)
    sp = 1
    while sp:
        sp -= 1
        lo, hi, ax = stack[sp]
        if lo >= hi:
            continue
        mid = (lo + hi) // 2
        p = pts[order[mid]]
        visited += 1
        d = ((p - q) ** 2).sum()
        if d < best:
            best, who = (d, order[mid])
        delta = q[ax] - p[ax]
        near, far = ((lo, mid), (mid + 1, hi)) if delta < 0 else ((mid + 1, hi), (lo, mid))
        if delta * delta < best:
            stack[sp] = (*far, 1 - ax)
            sp += 1
        stack[sp] = (*near, 1 - ax)
        sp += 1
    return (best, who, visited)


class LB:
    c = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]])
    w = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
    opp = np.array([0, 3, 4, 1, 2, 7, 8, 5, 6])

    def __init__(self, f, solid, tau):
        self.f = f
        self.solid = solid
        self.tau = tau

    def moments(self):
        rho = self.f.sum(0)
        u = np.einsum("qd,qxy->dxy", self.c, self.f) / rho
        return (rho, u)

    def step(self):
        rho, u = self.moments()
        cu = np.einsum("qd,dxy->qxy", self.c, u)
        feq = self.w[:, None, None] * rho * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0))
        post = self.f - (self.f - feq) / self.tau
        post[:, self.solid] = self.f[self.opp][:, self.solid]
        for q, (cx, cy) in enumerate(self.c):
            self.f[q] = np.roll(np.roll(post[q], cx, axis=0), cy, axis=1)


def lbm_obstacle(f, solid, tau):
    s = LB(f.copy(), solid, tau)
    for _ in range(3):
        s.step()
    rho, u = s.moments()
    return (rho, u, s.f)


def stable_fluids(u, v, d):
    n = u.shape[0]
    ii, jj = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")

    def advect(q, dt=0.3):
        x = np.clip(ii - dt * u, 0.0, n - 1.001)
        y = np.clip(jj - dt * v, 0.0, n - 1.001)
        i0 = x.astype(int)
        j0 = y.astype(int)
        s = x - i0
        t = y - j0
        return (1 - s) * ((1 - t) * q[i0, j0] + t * q[i0, j0 + 1]) + s * (
            (1 - t) * q[i0 + 1, j0] + t * q[i0 + 1, j0 + 1]
        )

    def project(u, v):
        div = np.zeros_like(u)
        p = np.zeros_like(u)
        div[1:-1, 1:-1] = -0.5 * (u[2:, 1:-1] - u[:-2, 1:-1] + v[1:-1, 2:] - v[1:-1, :-2])
        for _ in range(4):
            p[1:-1, 1:-1] = (
                div[1:-1, 1:-1] + p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
            ) / 4
            p[0], p[-1], p[:, 0], p[:, -1] = (p[1], p[-2], p[:, 1], p[:, -2])
        u = u.copy()
        v = v.copy()
        u[1:-1, 1:-1] -= 0.5 * (p[2:, 1:-1] - p[:-2, 1:-1])
        v[1:-1, 1:-1] -= 0.5 * (p[1:-1, 2:] - p[1:-1, :-2])
        return (u, v)

    for _ in range(2):
        u, v = project(advect(u), advect(v))
        d = advect(d)
    return (u, v, d)


def rasterize(tris, size):
    z = np.full((size, size), np.inf)
    ids = np.full((size, size), -1, dtype=np.int16)
    for k, (a, b, c) in enumerate(tris):
        area = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
        if abs(area) < 1e-12:
            continue
        x0, y0 = np.floor(np.minimum(np.minimum(a, b), c)[:2]).astype(int)
        x1, y1 = np.ceil(np.maximum(np.maximum(a, b), c)[:2]).astype(int)
        for y in range(max(y0, 0), min(y1 + 1, size)):
            for x in range(max(x0, 0), min(x1 + 1, size)):
                w0 = ((b[0] - x) * (c[1] - y) - (b[1] - y) * (c[0] - x)) / area
                w1 = ((c[0] - x) * (a[1] - y) - (c[1] - y) * (a[0] - x)) / area
                w2 = 1 - w0 - w1
                if w0 >= 0 and w1 >= 0 and (w2 >= 0):
                    depth = w0 * a[2] + w1 * b[2] + w2 * c[2]
                    if depth < z[y, x]:
                        z[y, x] = depth
                        ids[y, x] = k
    return (z, ids)


def durand_kerner(c):
    c = c / c[0]
    n = len(c) - 1
    z = (0.4 + 0.9j) ** np.arange(n)
    for it in range(60):
        p = np.polyval(c, z)
        diff = z[:, None] - z
        np.fill_diagonal(diff, 1)
        step = p / diff.prod(axis=1)
        z -= step
        if np.abs(step).max() < 1e-13:
            break
    return (np.sort_complex(np.round(z, 6)), it < 60)


def bigmul(a, b, base=10000):
    out = np.zeros(len(a) + len(b), dtype=np.int64)
    for i, ai in enumerate(a):
        carry = 0
        for j, bj in enumerate(b):
            carry, out[i + j] = divmod(out[i + j] + ai * bj + carry, base)
        out[i + len(b)] += carry
    n = len(out)
    while n > 1 and out[n - 1] == 0:
        n -= 1
    return out[:n]


def civil_from_days(days):
    z = days + 719468
    era = np.floor_divide(z, 146097)
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    y = yoe + era * 400
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    d = doy - (153 * mp + 2) // 5 + 1
    m = mp + np.where(mp < 10, 3, -9)
    y = y + (m <= 2)
    wd = (days + 3) % 7
    return np.stack([y, m, d, wd], axis=-1)


def bdf2_robertson(y0, n, h=0.01):
    k1, k2, k3 = (0.04, 30.0, 10.0)

    def f(y):
        return np.array(
            [
                -k1 * y[0] + k3 * y[1] * y[2],
                k1 * y[0] - k3 * y[1] * y[2] - k2 * y[1] ** 2,
                k2 * y[1] ** 2,
            ]
        )

    def jac(y):
        return np.array(
            [
                [-k1, k3 * y[2], k3 * y[1]],
                [k1, -k3 * y[2] - 2 * k2 * y[1], -k3 * y[1]],
                [0, 2 * k2 * y[1], 0],
            ]
        )

    def newton(rhs, gamma, y):
        for _ in range(12):
            r = y - gamma * h * f(y) - rhs
            dy = np.linalg.solve(np.eye(3) - gamma * h * jac(y), -r)
            y = y + dy
            if np.linalg.norm(dy) < 1e-13:
                break
        return y

    prev = y0
    cur = newton(y0, 1.0, y0)
    for _ in range(n):
        prev, cur = (cur, newton((4 * cur - prev) / 3, 2 / 3, cur))
    return cur


def baum_welch(A, B, obs):
    T, N = (len(obs), A.shape[0])
    pi = np.full(N, 1 / N)
    alpha = np.zeros((T, N))
    beta = np.ones((T, N))
    scale = np.zeros(T)
    alpha[0] = pi * B[:, obs[0]]
    scale[0] = alpha[0].sum()
    alpha[0] /= scale[0]
    for t in range(1, T):
        alpha[t] = alpha[t - 1] @ A * B[:, obs[t]]
        scale[t] = alpha[t].sum()
        alpha[t] /= scale[t]
    for t in reversed(range(T - 1)):
        beta[t] = A @ (B[:, obs[t + 1]] * beta[t + 1]) / scale[t + 1]
    gamma = alpha * beta
    xi = np.zeros((N, N))
    for t in range(T - 1):
        xi += alpha[t][:, None] * A * (B[:, obs[t + 1]] * beta[t + 1]) / scale[t + 1]
    A2 = xi / xi.sum(1, keepdims=True)
    B2 = np.zeros_like(B)
    np.add.at(B2.T, obs, gamma)
    B2 /= gamma.sum(0)[:, None]
    return (A2, B2, np.log(scale).sum())


def bwt_mtf(s):
    n = len(s)
    rot = s[(np.arange(n)[:, None] + np.arange(n)) % n]
    order = np.lexsort(rot.T[::-1])
    last = rot[order, -1]
    table = np.arange(256, dtype=np.uint8)
    out = np.empty_like(last)
    for i, b in enumerate(last):
        p = int(np.flatnonzero(table == b)[0])
        out[i] = p
        table[1 : p + 1] = table[:p]
        table[0] = b
    return (out, np.nonzero(order == 0)[0][0])


def overlap_add(x, h, block=8):
    L = block
    N = 1 << (L + len(h) - 2).bit_length()
    H = np.fft.rfft(h, N)
    y = np.zeros(len(x) + len(h) - 1)
    for s in range(0, len(x), L):
        seg = x[s : s + L]
        out = np.fft.irfft(np.fft.rfft(seg, N) * H, N)
        e = min(s + N, len(y))
        y[s:e] += out[: e - s]
    return y


def burg(x, order):
    f = x[1:].copy()
    b = x[:-1].copy()
    a = np.array([1.0])
    E = (x**2).mean()
    for m in range(order):
        k = -2 * (f @ b) / (f @ f + b @ b)
        a = np.append(a, 0) + k * np.append(a, 0)[::-1]
        E = E * (1 - k * k)
        f, b = ((f + k * b)[1:], (b + k * f)[:-1])
    return (a, E)


def brute_delaunay(p):
    n = len(p)
    tri = np.zeros((n * n * n // 6 + 1, 3), dtype=np.int32)
    m = 0
    for i in range(n - 2):
        for j in range(i + 1, n - 1):
            for k in range(j + 1, n):
                ax, ay = p[i]
                bx, by = p[j]
                cx, cy = p[k]
                d = 2 * (ax * (by - cy) + bx * (cy - ay) + cx * (ay - by))
                if d == 0:
                    continue
                ux = (
                    (ax * ax + ay * ay) * (by - cy)
                    + (bx * bx + by * by) * (cy - ay)
                    + (cx * cx + cy * cy) * (ay - by)
                ) / d
                uy = (
                    (ax * ax + ay * ay) * (cx - bx)
                    + (bx * bx + by * by) * (ax - cx)
                    + (cx * cx + cy * cy) * (bx - ax)
                ) / d
                r2 = (ax - ux) ** 2 + (ay - uy) ** 2
                for q in range(n):
                    if q in (i, j, k):
                        continue
                    if (p[q, 0] - ux) ** 2 + (p[q, 1] - uy) ** 2 < r2:
                        break
                else:
                    tri[m] = (i, j, k)
                    m += 1
    return tri[:m]


def fornberg(x, f, m=2):
    n = len(x)
    c = np.zeros((n, m + 1))
    c1 = 1.0
    c4 = x[0] - 0.3
    c[0, 0] = 1.0
    for i in range(1, n):
        mn = min(i, m)
        c2 = 1.0
        c5 = c4
        c4 = x[i] - 0.3
        for j in range(i):
            c3 = x[i] - x[j]
            c2 *= c3
            if j == i - 1:
                for k in range(mn, 0, -1):
                    c[i, k] = c1 * (k * c[i - 1, k - 1] - c5 * c[i - 1, k]) / c2
                c[i, 0] = -c1 * c5 * c[i - 1, 0] / c2
            for k in range(mn, 0, -1):
                c[j, k] = (c4 * c[j, k] - k * c[j, k - 1]) / c3
            c[j, 0] = c4 * c[j, 0] / c3
        c1 = c2
    return c.T @ f


def jpeg_like(img):
    h, w = img.shape
    H, W = ((h + 3) // 4 * 4, (w + 3) // 4 * 4)
    p = np.pad(img.astype(np.float64), ((0, H - h), (0, W - w)), mode="edge") - 128
    k = np.arange(4)
    C = np.cos(np.pi * (2 * k[None] + 1) * k[:, None] / 8) * np.where(
        k[:, None] == 0, 0.5, np.sqrt(0.5)
    )
    b = p.reshape(H // 4, 4, W // 4, 4).transpose(0, 2, 1, 3)
    q = np.rint(C @ b @ C.T / 10).astype(np.int16)
    r = C.T @ (q * 10.0) @ C
    out = np.clip(np.rint(r + 128), 0, 255).astype(np.uint8)
    return (out.transpose(0, 2, 1, 3).reshape(H, W)[:h, :w], np.count_nonzero(q))


def distance_bfs(walls):
    h, w = walls.shape
    d = np.full((h, w), -1, np.int32)
    q = deque([(0, 0)])
    d[0, 0] = 0
    while q:
        r, c = q.popleft()
        for dr, dc in [(0, 1), (1, 0), (0, -1), (-1, 0)]:
            rr, cc = (r + dr, c + dc)
            if 0 <= rr < h and 0 <= cc < w and (not walls[rr, cc]) and (d[rr, cc] < 0):
                d[rr, cc] = d[r, c] + 1
                q.append((rr, cc))
    return d


def nelder_mead(s, iters):
    f = lambda p: (1 - p[0]) ** 2 + 10 * (p[1] - p[0] ** 2) ** 2
    s = s.copy()
    v = np.array([f(p) for p in s])
    for _ in range(iters):
        o = np.argsort(v)
        s = s[o]
        v = v[o]
        c = s[:-1].mean(0)
        r = c + (c - s[-1])
        fr = f(r)
        if v[0] <= fr < v[-2]:
            s[-1], v[-1] = (r, fr)
        elif fr < v[0]:
            e = c + 2 * (c - s[-1])
            fe = f(e)
            s[-1], v[-1] = (e, fe) if fe < fr else (r, fr)
        else:
            k = c + 0.5 * (s[-1] - c)
            fk = f(k)
            if fk < v[-1]:
                s[-1], v[-1] = (k, fk)
            else:
                s[1:] = s[0] + 0.5 * (s[1:] - s[0])
                v[1:] = [f(p) for p in s[1:]]
    return (s[0], v.min())


def anneal_tsp(p):
    n = len(p)
    tour = np.arange(n)
    state = np.uint32(12345)
    T = 1.0
    D = np.sqrt(((p[:, None] - p) ** 2).sum(-1))
    length = lambda t: D[t, np.roll(t, -1)].sum()
    cur = length(tour)
    for _ in range(60):
        state = state * np.uint32(1664525) + np.uint32(1013904223)
        i = int(state >> np.uint32(8)) % n
        state = state * np.uint32(1664525) + np.uint32(1013904223)
        j = int(state >> np.uint32(8)) % n
        if i > j:
            i, j = (j, i)
        new = tour.copy()
        new[i : j + 1] = new[i : j + 1][::-1]
        l = length(new)
        u = float(state) / 2**32
        if l < cur or u < math.exp((cur - l) / T):
            tour, cur = (new, l)
        T *= 0.95
    return (tour, cur)


def arithmetic_coder(s):
    low, high = (0, (1 << 16) - 1)
    bits = []
    pending = 0
    cum = np.concatenate([[0], np.cumsum(np.bincount(s, minlength=5) + 1)])
    total = cum[-1]
    for c in s:
        span = high - low + 1
        high = low + span * cum[c + 1] // total - 1
        low = low + span * cum[c] // total
        while True:
            if high < 1 << 15:
                bits.append(0)
                for _ in range(pending):
                    bits.append(1)
                pending = 0
            elif low >= 1 << 15:
                bits.append(1)
                for _ in range(pending):
                    bits.append(0)
                pending = 0
                low -= 1 << 15
                high -= 1 << 15
            elif low >= 1 << 14 and high < 3 * (1 << 14):
                pending += 1
                low -= 1 << 14
                high -= 1 << 14
            else:
                break
            low = 2 * low
            high = 2 * high + 1
    return (np.array(bits, dtype=np.uint8), low, high, pending)


def connected_regions(g):
    lab = np.zeros_like(g)
    cur = 0
    for i, j in np.ndindex(g.shape):
        if lab[i, j]:
            continue
        cur += 1
        stack = [(i, j)]
        lab[i, j] = cur
        while stack:
            r, c = stack.pop()
            for rr, cc in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
                if (
                    0 <= rr < g.shape[0]
                    and 0 <= cc < g.shape[1]
                    and (not lab[rr, cc])
                    and (g[rr, cc] == g[r, c])
                ):
                    lab[rr, cc] = cur
                    stack.append((rr, cc))
    return (lab, cur, np.bincount(lab.ravel())[1:])


PROGRAMS = [
    (sudoku4, lambda rng: sud(rng, 6)),
    (trie_insert, lambda rng: words(rng, 6)),
    (grid_dijkstra, lambda rng: grid(rng, 6)),
    (huffman_lengths, lambda rng: (rng.integers(1, 50, size=6),)),
    (lz78, lambda rng: (rng.integers(0, 2, size=3 * 6).astype(np.uint8),)),
    (nmf, lambda rng: (rng.random((6, 6 + 2)), rng.random((6, 2)), rng.random((2, 6 + 2)))),
    (crf, lambda rng: (rng.standard_normal((6, 3)), rng.standard_normal((3, 3)))),
    (kdtree_nearest, lambda rng: (rng.random((6, 2)), rng.random(2))),
    (
        lbm_obstacle,
        lambda rng: (1 + 0.1 * rng.random((9, 6, 6 + 1)), rng.random((6, 6 + 1)) > 0.8, 0.8),
    ),
    (
        stable_fluids,
        lambda rng: (rng.standard_normal((6, 6)), rng.standard_normal((6, 6)), rng.random((6, 6))),
    ),
    (rasterize, lambda rng: (rng.random((6, 3, 3)) * 8, 12)),
    (durand_kerner, lambda rng: (rng.standard_normal(6) + 0.0,)),
    (bigmul, lambda rng: (rng.integers(0, 10**4, size=6), rng.integers(0, 10**4, size=6 + 1))),
    (civil_from_days, lambda rng: (rng.integers(-800000, 800000, size=6),)),
    (bdf2_robertson, lambda rng: (rng.random(3) + 0.1, 6)),
    (
        baum_welch,
        lambda rng: (
            rng.dirichlet(np.ones(3), 3),
            rng.dirichlet(np.ones(4), 3),
            rng.integers(0, 4, size=6 + 3),
        ),
    ),
    (bwt_mtf, lambda rng: (rng.integers(97, 101, size=6).astype(np.uint8),)),
    (overlap_add, lambda rng: (rng.standard_normal(7 * 6), rng.standard_normal(5))),
    (burg, lambda rng: (rng.standard_normal(6 * 6), 3)),
    (brute_delaunay, lambda rng: (rng.random((6, 2)),)),
    (
        fornberg,
        lambda rng: (
            rng.standard_normal((6,)),
            rng.standard_normal((6,)),
        ),
    ),
    (jpeg_like, lambda rng: (rng.integers(0, 256, (6, 6)).astype(np.uint8),)),
    (distance_bfs, lambda rng: (rng.integers(0, 2, (6, 6)).astype(bool),)),
    (nelder_mead, lambda rng: (rng.standard_normal((3, 2)), 4 * 6)),
    (anneal_tsp, lambda rng: (rng.random((6, 2)),)),
    (arithmetic_coder, lambda rng: (rng.integers(0, 5, 6).astype(np.uint8),)),
    (connected_regions, lambda rng: (rng.integers(0, 3, (6, 6)),)),
]
