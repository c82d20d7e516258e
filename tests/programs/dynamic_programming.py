"""Dynamic programming over integer and float arrays."""

import numpy as np


def lcs_length(a, b):
    """Length of the longest common subsequence of two integer arrays."""
    m, n = len(a), len(b)
    table = np.zeros((m + 1, n + 1), dtype=int)
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            if a[i - 1] == b[j - 1]:
                table[i, j] = table[i - 1, j - 1] + 1
            else:
                table[i, j] = max(table[i - 1, j], table[i, j - 1])
    return table[m, n]


def lcs_traceback(a, b):
    """One longest common subsequence recovered by walking back through the table."""
    m, n = a.size, b.size
    t = np.zeros((m + 1, n + 1), dtype=np.int32)
    for i in range(m):
        for j in range(n):
            t[i + 1, j + 1] = t[i, j] + 1 if a[i] == b[j] else max(t[i, j + 1], t[i + 1, j])
    out = np.empty(t[-1, -1], dtype=a.dtype)
    i, j, k = m, n, t[-1, -1]
    while k > 0:
        if a[i - 1] == b[j - 1]:
            k -= 1
            out[k] = a[i - 1]
            i -= 1
            j -= 1
        elif t[i - 1, j] >= t[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return out


def edit_distance(a, b):
    """Levenshtein distance between integer arrays with two rolling rows."""
    prev = np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        cur = np.empty_like(prev)
        cur[0] = i
        for j in range(1, len(b) + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            cur[j] = min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + cost)
        prev = cur
    return int(prev[-1])


def edit_distance_vectorised(a, b):
    """Levenshtein distance with each row's substitutions done by np.minimum."""
    n = len(b)
    offset = np.arange(n + 1)
    row = offset.copy()
    for i, x in enumerate(a):
        cand = np.empty(n + 1, dtype=row.dtype)
        cand[0] = i + 1
        cand[1:] = np.minimum(row[1:] + 1, row[:-1] + (b != x))
        row = np.minimum.accumulate(cand - offset) + offset
    return row[n]


def needleman_wunsch(a, b, match, mismatch, gap):
    """Global alignment score matrix."""
    score = np.zeros((len(a) + 1, len(b) + 1))
    score[:, 0] = gap * np.arange(len(a) + 1)
    score[0, :] = gap * np.arange(len(b) + 1)
    for i in range(1, score.shape[0]):
        for j in range(1, score.shape[1]):
            s = match if a[i - 1] == b[j - 1] else mismatch
            score[i, j] = max(score[i - 1, j - 1] + s, score[i - 1, j] + gap, score[i, j - 1] + gap)
    return score


def smith_waterman(a, b):
    """Best local alignment score and the cell where it ends."""
    h = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int64)
    best, where = 0, (0, 0)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            s = 2 if a[i - 1] == b[j - 1] else -1
            h[i, j] = max(0, h[i - 1, j - 1] + s, h[i - 1, j] - 1, h[i, j - 1] - 1)
            if h[i, j] > best:
                best, where = h[i, j], (i, j)
    return best, where


def knapsack_row(values, weights, capacity):
    """0/1 knapsack with one row updated from high capacity to low."""
    best = np.zeros(capacity + 1, dtype=values.dtype)
    for v, w in zip(values, weights):
        for c in range(capacity, w - 1, -1):
            best[c] = max(best[c], best[c - w] + v)
    return best[capacity]


def knapsack_slices(values, weights, capacity):
    """0/1 knapsack with a slice update per item and the chosen items recovered."""
    n = len(values)
    table = np.zeros((n + 1, capacity + 1))
    for i in range(n):
        w = weights[i]
        table[i + 1] = table[i]
        if w <= capacity:
            table[i + 1, w:] = np.maximum(table[i, w:], table[i, : capacity + 1 - w] + values[i])
    chosen = np.zeros(n, dtype=bool)
    c = capacity
    for i in range(n - 1, -1, -1):
        if table[i + 1, c] != table[i, c]:
            chosen[i] = True
            c -= weights[i]
    return table[n, capacity], chosen


def matrix_chain(dims):
    """Cheapest matrix chain product and its split table."""
    n = len(dims) - 1
    cost = np.zeros((n, n))
    split = np.zeros((n, n), dtype=int)
    for length in range(2, n + 1):
        for i in range(n - length + 1):
            j = i + length - 1
            cost[i, j] = np.inf
            for k in range(i, j):
                q = cost[i, k] + cost[k + 1, j] + dims[i] * dims[k + 1] * dims[j + 1]
                if q < cost[i, j]:
                    cost[i, j] = q
                    split[i, j] = k
    return cost[0, n - 1], split


def floyd_warshall(dist, via):
    """All-pairs shortest paths and their pivots in place by three loops."""
    n = dist.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                if dist[i, k] + dist[k, j] < dist[i, j]:
                    dist[i, j] = dist[i, k] + dist[k, j]
                    via[i, j] = k


def floyd_warshall_broadcast(dist):
    """All-pairs shortest paths and predecessors with one broadcast per pivot."""
    d = dist.copy()
    n = len(d)
    via = np.full((n, n), -1)
    for k in range(n):
        alt = d[:, k, None] + d[None, k, :]
        better = alt < d
        d[better] = alt[better]
        via[better] = k
    return d, via


def bellman_ford(n, edges, weights, source):
    """Single-source shortest paths with negative edges; None on a negative cycle."""
    dist = np.full(n, np.inf)
    dist[source] = 0
    for _ in range(n - 1):
        changed = False
        for (u, v), w in zip(edges, weights):
            if dist[u] + w < dist[v]:
                dist[v] = dist[u] + w
                changed = True
        if not changed:
            return dist
    for (u, v), w in zip(edges, weights):
        if dist[u] + w < dist[v]:
            return None
    return dist


def dijkstra_dense(weights, source):
    """Dijkstra on a dense weight matrix with argmin over unvisited nodes."""
    n = weights.shape[0]
    dist = np.full(n, np.inf)
    parent = -np.ones(n, dtype=int)
    done = np.zeros(n, dtype=bool)
    dist[source] = 0.0
    for _ in range(n):
        u = int(np.argmin(np.where(done, np.inf, dist)))
        if not np.isfinite(dist[u]) or done[u]:
            break
        done[u] = True
        alt = dist[u] + weights[u]
        closer = (alt < dist) & ~done
        dist[closer] = alt[closer]
        parent[closer] = u
    return dist, parent


def viterbi(log_init, log_trans, log_emit, obs):
    """Most likely hidden path of an HMM and its log-probability."""
    n_states = log_init.shape[0]
    steps = len(obs)
    score = log_init + log_emit[:, obs[0]]
    back = np.zeros((steps, n_states), dtype=np.intp)
    for t in range(1, steps):
        cand = score[:, None] + log_trans
        back[t] = cand.argmax(axis=0)
        score = cand.max(axis=0) + log_emit[:, obs[t]]
    path = np.zeros(steps, dtype=np.intp)
    path[-1] = np.argmax(score)
    for t in range(steps - 2, -1, -1):
        path[t] = back[t + 1, path[t + 1]]
    return path, score.max()


def hmm_forward(pi, trans, emit, obs):
    """Scaled forward algorithm; returns the log-likelihood."""
    alpha = pi * emit[:, obs[0]]
    ll = 0.0
    for t in range(len(obs)):
        if t > 0:
            alpha = (alpha @ trans) * emit[:, obs[t]]
        s = alpha.sum()
        ll += np.log(s)
        alpha /= s
    return ll


def coin_change_count(coins, amount):
    """Number of ways to make an amount from coins."""
    ways = np.zeros(amount + 1, dtype=np.int64)
    ways[0] = 1
    for coin in coins:
        for a in range(coin, amount + 1):
            ways[a] += ways[a - coin]
    return int(ways[amount])


def coin_change_fewest(coins, amount):
    """Fewest coins to make an amount, or -1."""
    big = amount + 1
    best = np.full(amount + 1, big)
    best[0] = 0
    for a in range(1, amount + 1):
        for c in coins:
            if c <= a and best[a - c] + 1 < best[a]:
                best[a] = best[a - c] + 1
    return -1 if best[amount] == big else best[amount]


def lis_quadratic(x):
    """Longest increasing subsequence by the quadratic recurrence, with the values."""
    n = len(x)
    length = np.ones(n, dtype=int)
    prev = np.full(n, -1)
    for i in range(n):
        for j in range(i):
            if x[j] < x[i] and length[j] + 1 > length[i]:
                length[i] = length[j] + 1
                prev[i] = j
    k = np.argmax(length)
    seq = []
    while k != -1:
        seq.append(x[k])
        k = prev[k]
    return np.array(seq[::-1])


def lis_patience(x):
    """Length of the longest increasing subsequence with np.searchsorted on the tails."""
    tails = np.empty(len(x), dtype=x.dtype)
    size = 0
    for v in x:
        pos = np.searchsorted(tails[:size], v)
        tails[pos] = v
        if pos == size:
            size += 1
    return size


def max_subarray(x):
    """Kadane's maximum subarray sum with its bounds."""
    best = cur = x[0]
    start = 0
    bounds = (0, 1)
    for i in range(1, len(x)):
        if cur < 0:
            cur = x[i]
            start = i
        else:
            cur += x[i]
        if cur > best:
            best = cur
            bounds = (start, i + 1)
    return best, bounds


def dtw(a, b):
    """Dynamic time warping distance."""
    n, m = len(a), len(b)
    d = np.full((n + 1, m + 1), np.inf)
    d[0, 0] = 0
    for i in range(n):
        for j in range(m):
            step = min(d[i, j], d[i, j + 1], d[i + 1, j])
            d[i + 1, j + 1] = abs(a[i] - b[j]) + step
    return d[n, m]


def seam_carve(energy):
    """Column index per row of the cheapest vertical seam."""
    rows, cols = energy.shape
    cost = energy.copy()
    for i in range(1, rows):
        up = cost[i - 1]
        best = up.copy()
        best[1:] = np.minimum(best[1:], up[:-1])
        best[:-1] = np.minimum(best[:-1], up[1:])
        cost[i] += best
    seam = np.empty(rows, dtype=int)
    seam[-1] = cost[-1].argmin()
    for i in range(rows - 2, -1, -1):
        j = seam[i + 1]
        lo, hi = max(j - 1, 0), min(j + 2, cols)
        seam[i] = lo + np.argmin(cost[i, lo:hi])
    return seam, cost[-1].min()


def grid_paths(blocked):
    """Number of monotone lattice paths around blocked cells."""
    n, m = blocked.shape
    if blocked[0, 0] or blocked[-1, -1]:
        return 0
    paths = np.zeros((n, m), dtype=np.int64)
    paths[0, 0] = 1
    for i in range(n):
        for j in range(m):
            if blocked[i, j]:
                paths[i, j] = 0
                continue
            if i > 0:
                paths[i, j] += paths[i - 1, j]
            if j > 0:
                paths[i, j] += paths[i, j - 1]
    return paths[-1, -1]


def nussinov(seq, min_loop):
    """Maximum base pairs in an RNA sequence coded 0..3, pairing codes that sum to three."""
    n = len(seq)
    table = np.zeros((n, n), np.int32)
    for i in range(n - 2, -1, -1):
        for j in range(i + 1, n):
            best = table[i, j - 1]
            if j - i > min_loop and seq[i] + seq[j] == 3:
                best = max(best, table[i + 1, j - 1] + 1)
            for k in range(i + min_loop, j):
                best = max(best, table[i, k] + table[k + 1, j])
            table[i, j] = best
    return table


def rod_cutting(prices, n):
    """Best revenue of cutting a rod and the piece lengths as a list."""
    r = np.zeros(n + 1)
    s = np.zeros(n + 1, dtype=int)
    for j in range(1, n + 1):
        options = prices[:j] + r[j - 1 :: -1][:j]
        s[j] = np.argmax(options) + 1
        r[j] = options.max()
    pieces = []
    while n > 0:
        pieces.append(int(s[n]))
        n -= s[n]
    return r[-1], pieces


def distance_matrix(rng, n):
    """Random directed weights with missing edges and a zero diagonal."""
    d = rng.integers(1, 20, (n, n)).astype(float)
    d[rng.random((n, n)) < 0.4] = np.inf
    np.fill_diagonal(d, 0)
    return d


def stochastic(rng, *shape):
    """Random rows that sum to one."""
    p = rng.random(shape) + 0.05
    return p / p.sum(axis=-1, keepdims=True)


PROGRAMS = [
    (lcs_length, lambda rng: (rng.integers(0, 4, 20), rng.integers(0, 4, 22))),
    (lcs_length, lambda rng: (rng.integers(0, 4, 8), np.array([], dtype=int))),
    (lcs_traceback, lambda rng: (rng.integers(0, 4, 16), rng.integers(0, 4, 20))),
    (
        lcs_traceback,
        lambda rng: (rng.integers(0, 4, 12, dtype=np.int8), rng.integers(0, 4, 12, dtype=np.int8)),
    ),
    (edit_distance, lambda rng: (rng.integers(0, 4, 18), rng.integers(0, 4, 20))),
    (
        edit_distance,
        lambda rng: (np.frombuffer(b"kitten", np.uint8), np.frombuffer(b"sitting", np.uint8)),
    ),
    (edit_distance_vectorised, lambda rng: (rng.integers(0, 4, 30), rng.integers(0, 4, 40))),
    (
        needleman_wunsch,
        lambda rng: (rng.integers(0, 4, 14), rng.integers(0, 4, 16), 1.0, -1.0, -0.5),
    ),
    (smith_waterman, lambda rng: (rng.integers(0, 4, 16), rng.integers(0, 4, 18))),
    (knapsack_row, lambda rng: (rng.integers(1, 50, 10), rng.integers(1, 15, 10), 40)),
    (knapsack_row, lambda rng: (rng.random(10), rng.integers(1, 15, 10), 40)),
    (knapsack_slices, lambda rng: (rng.random(12), rng.integers(1, 60, 12), 50)),
    (matrix_chain, lambda rng: (rng.integers(2, 30, 10),)),
    (floyd_warshall, lambda rng: (distance_matrix(rng, 9), np.full((9, 9), -1))),
    (floyd_warshall, lambda rng: (distance_matrix(rng, 8)[:, :6], np.full((8, 8), -1))),
    (floyd_warshall_broadcast, lambda rng: (distance_matrix(rng, 16),)),
    (
        bellman_ford,
        lambda rng: (8, rng.integers(0, 8, (24, 2)), rng.integers(0, 9, 24).astype(float), 0),
    ),
    (bellman_ford, lambda rng: (3, np.array([[0, 1], [1, 2], [2, 0]]), np.array([1.0, -3, 1]), 0)),
    (dijkstra_dense, lambda rng: (distance_matrix(rng, 15), 2)),
    (dijkstra_dense, lambda rng: (np.full((4, 4), np.inf), 0)),
    (
        viterbi,
        lambda rng: (
            np.log(stochastic(rng, 4)),
            np.log(stochastic(rng, 4, 4)),
            np.log(stochastic(rng, 4, 5)),
            rng.integers(0, 5, 25),
        ),
    ),
    (
        viterbi,
        lambda rng: (
            np.log(stochastic(rng, 4)),
            np.log(stochastic(rng, 3, 3)),
            np.log(stochastic(rng, 4, 5)),
            rng.integers(0, 5, 25),
        ),
    ),
    (
        hmm_forward,
        lambda rng: (
            stochastic(rng, 3),
            stochastic(rng, 3, 3),
            stochastic(rng, 3, 4),
            rng.integers(0, 4, 30),
        ),
    ),
    (coin_change_count, lambda rng: (np.array([1, 2, 5, 10]), 60)),
    (coin_change_count, lambda rng: ((1, 5, 10, 25), 90)),
    (coin_change_fewest, lambda rng: (np.array([4, 7, 9]), 60)),
    (coin_change_fewest, lambda rng: (np.array([4, 6]), 33)),
    (lis_quadratic, lambda rng: (rng.integers(0, 100, 30),)),
    (lis_quadratic, lambda rng: (rng.random(25, np.float32),)),
    (lis_patience, lambda rng: (rng.permutation(60),)),
    (max_subarray, lambda rng: (rng.integers(-10, 9, 80),)),
    (max_subarray, lambda rng: (rng.standard_normal(80),)),
    (max_subarray, lambda rng: (np.array([]),)),
    (dtw, lambda rng: (rng.standard_normal(18), rng.standard_normal(20))),
    (seam_carve, lambda rng: (rng.random((16, 20)),)),
    (grid_paths, lambda rng: (rng.random((10, 10)) < 0.1,)),
    (grid_paths, lambda rng: (np.ones((3, 3), dtype=bool),)),
    (nussinov, lambda rng: (rng.integers(0, 4, 13), 2)),
    (rod_cutting, lambda rng: (np.sort(rng.random(12)) * 10, 12)),
]
