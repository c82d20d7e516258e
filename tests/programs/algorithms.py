"""Dynamic programming, graphs, heaps, parsing and bit twiddling on arrays."""

import numpy as np

CRC_TABLE = np.array(
    [
        (lambda c: [c := (c >> 1) ^ (0xEDB88320 if c & 1 else 0) for _ in range(8)][-1])(i)
        for i in range(256)
    ],
    dtype=np.uint32,
)
ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


def size(rng, low=5, high=9):
    return int(rng.integers(low, high))


def levenshtein(a, b):
    m, n = len(a), len(b)
    if m == 0:
        return n
    if n == 0:
        return m
    prev = np.arange(n + 1)
    cur = np.empty_like(prev)
    for i in range(1, m + 1):
        cur[0] = i
        for j in range(1, n + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            cur[j] = min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + cost)
        prev, cur = cur, prev
    return prev[n]


def levenshtein_args(rng):
    return (
        rng.integers(97, 101, size(rng, 0, 9)).astype(np.uint8),
        rng.integers(97, 101, size(rng)).astype(np.uint8),
    )


def knapsack(values, weights, capacity):
    n = len(values)
    best = np.zeros((n + 1, capacity + 1), dtype=np.int64)
    for i in range(1, n + 1):
        w, v = weights[i - 1], values[i - 1]
        for c in range(capacity + 1):
            best[i, c] = best[i - 1, c]
            if w <= c and best[i - 1, c - w] + v > best[i, c]:
                best[i, c] = best[i - 1, c - w] + v
    taken = np.zeros(n, dtype=bool)
    c = capacity
    for i in range(n, 0, -1):
        if best[i, c] != best[i - 1, c]:
            taken[i - 1] = True
            c -= weights[i - 1]
    return best[n, capacity], taken


def knapsack_args(rng):
    n = size(rng, 3, 6)
    return rng.integers(1, 20, n), rng.integers(1, 6, n), size(rng, 8, 12)


def knapsack_1d(values, weights, capacity):
    best = np.zeros(capacity + 1, dtype=values.dtype)
    for w, v in zip(weights, values):
        best[w:] = np.maximum(best[w:], best[: capacity + 1 - w] + v)
    return best


def sieve(n):
    is_prime = np.ones(n + 1, dtype=bool)
    is_prime[:2] = False
    for i in range(2, int(n**0.5) + 1):
        if is_prime[i]:
            is_prime[i * i :: i] = False
    return np.flatnonzero(is_prime)


def sieve_args(rng):
    return (size(rng, 20, 60),)


def prefix_sums(a, inclusive=True, out=None):
    if out is None:
        out = np.empty_like(a)
    running = a.dtype.type(0)
    for i in range(a.size):
        if inclusive:
            running += a[i]
            out[i] = running
        else:
            out[i] = running
            running += a[i]
    return out


def prefix_args(rng):
    return rng.integers(0, 100, size(rng)).astype(np.int32), bool(rng.integers(2))


def prefix_driver(a):
    buf = np.zeros(a.shape, a.dtype)
    first = prefix_sums(a, out=buf)
    second = prefix_sums(a, inclusive=False)
    first[0] = 7
    return buf, second


def find(parent, i):
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


def union_find(n, edges):
    parent = np.arange(n)
    rank = np.zeros(n, dtype=np.int8)
    components = n
    for u, v in edges:
        ru, rv = find(parent, u), find(parent, v)
        if ru == rv:
            continue
        if rank[ru] < rank[rv]:
            ru, rv = rv, ru
        parent[rv] = ru
        if rank[ru] == rank[rv]:
            rank[ru] += 1
        components -= 1
    return components, parent


def edges_args(rng):
    n = size(rng)
    return n, rng.integers(0, n, (size(rng), 2))


def bfs(indptr, indices, source):
    n = len(indptr) - 1
    dist = np.full(n, -1)
    queue = np.empty(n, dtype=np.intp)
    head, tail = 0, 1
    queue[0] = source
    dist[source] = 0
    while head < tail:
        u = queue[head]
        head += 1
        for v in indices[indptr[u] : indptr[u + 1]]:
            if dist[v] < 0:
                dist[v] = dist[u] + 1
                queue[tail] = v
                tail += 1
    return dist, queue[:tail]


def csr_args(rng):
    n = size(rng)
    counts = rng.integers(0, 4, n)
    indptr = np.concatenate(([0], np.cumsum(counts)))
    return indptr, rng.integers(0, n, indptr[-1]), int(rng.integers(n))


def dfs_order(adj, start=0):
    n = adj.shape[0]
    visited = np.zeros(n, bool)
    stack = np.zeros(n * n, dtype=np.int64)
    top = 0
    stack[top] = start
    order = []
    while top >= 0:
        u = stack[top]
        top -= 1
        if visited[u]:
            continue
        visited[u] = True
        order.append(u)
        for v in range(n - 1, -1, -1):
            if adj[u, v] and not visited[v]:
                top += 1
                stack[top] = v
    return np.array(order)


def dfs_filled(adj, start=0):
    n = adj.shape[0]
    visited = np.zeros(n, bool)
    stack = np.zeros(n * n, dtype=np.int64)
    order = -np.ones(n, dtype=int)
    top = count = 0
    stack[top] = start
    while top >= 0:
        u = stack[top]
        top -= 1
        if visited[u]:
            continue
        visited[u] = True
        order[count] = u
        count += 1
        for v in range(n - 1, -1, -1):
            if adj[u, v] and not visited[v]:
                top += 1
                stack[top] = v
    return order[:count]


def adj_args(rng):
    n = size(rng)
    return (rng.random((n, n)) < 0.35,)


def heap_push(heap, n, x):
    i = n
    heap[i] = x
    while i > 0:
        p = (i - 1) // 2
        if heap[p] <= heap[i]:
            break
        heap[p], heap[i] = heap[i], heap[p]
        i = p
    return n + 1


def heap_pop(heap, n):
    top = heap[0]
    n -= 1
    heap[0] = heap[n]
    i = 0
    while True:
        l, r, m = 2 * i + 1, 2 * i + 2, i
        if l < n and heap[l] < heap[m]:
            m = l
        if r < n and heap[r] < heap[m]:
            m = r
        if m == i:
            return top, n
        heap[i], heap[m] = heap[m], heap[i]
        i = m


def heapsort(a):
    heap = np.empty_like(a)
    n = 0
    for x in a:
        n = heap_push(heap, n, x)
    for i in range(len(a)):
        a[i], n = heap_pop(heap, n)


def heap_args(rng):
    return (rng.random(size(rng)),)


def dijkstra(w, src):
    n = w.shape[0]
    dist = np.full(n, np.inf)
    prev = np.full(n, -1)
    done = np.zeros(n, dtype=bool)
    dist[src] = 0
    for _ in range(n):
        u = -1
        for i in range(n):
            if not done[i] and (u == -1 or dist[i] < dist[u]):
                u = i
        if dist[u] == np.inf:
            break
        done[u] = True
        for v in np.nonzero(np.isfinite(w[u]))[0]:
            alt = dist[u] + w[u, v]
            if alt < dist[v]:
                dist[v] = alt
                prev[v] = u
    return dist, prev


def dijkstra_args(rng):
    n = size(rng)
    w = rng.random((n, n))
    w[w > 0.5] = np.inf
    return w, int(rng.integers(n))


def topological_sort(adj):
    n = len(adj)
    indeg = adj.sum(axis=0)
    order = np.empty(n, dtype=np.int64)
    k = 0
    remaining = np.ones(n, dtype=bool)
    while k < n:
        ready = np.flatnonzero(remaining & (indeg == 0))
        if ready.size == 0:
            raise ValueError("graph has a cycle")
        u = ready[0]
        order[k] = u
        k += 1
        remaining[u] = False
        indeg -= adj[u]
    return order


def topo_args(rng):
    n = size(rng)
    adj = np.triu(rng.integers(0, 2, (n, n)), 1)
    if rng.random() < 0.4:
        adj[n - 1, 0] = adj[0, n - 1] = 1
    p = rng.permutation(n)
    return (adj[np.ix_(p, p)],)


def rle(a):
    n = len(a)
    values = np.zeros(n, a.dtype)
    counts = np.zeros(n, np.int32)
    k = -1
    for i, x in enumerate(a):
        if i == 0 or x != values[k]:
            k += 1
            values[k] = x
        counts[k] += 1
    return values[: k + 1], counts[: k + 1]


def rle_numpy(x):
    where = np.flatnonzero(np.diff(x)) + 1
    starts = np.r_[0, where]
    lengths = np.diff(np.append(starts, x.size))
    return starts, lengths, x[starts]


def rle_args(rng):
    return (rng.integers(0, 3, size(rng, 8, 16)).astype(np.uint8),)


def parse_csv(buf):
    values = np.zeros(len(buf))
    count = 0
    sign, mantissa, scale, seen_dot, seen_digit = 1.0, 0.0, 1.0, False, False
    for ch in buf:
        if 48 <= ch <= 57:
            mantissa = mantissa * 10 + (ch - 48)
            seen_digit = True
            if seen_dot:
                scale *= 10
        elif ch == 45:
            sign = -1.0
        elif ch == 46:
            seen_dot = True
        elif ch == 44 or ch == 10:
            if seen_digit:
                values[count] = sign * mantissa / scale
            else:
                values[count] = np.nan
            count += 1
            sign, mantissa, scale, seen_dot, seen_digit = 1.0, 0.0, 1.0, False, False
        else:
            raise ValueError("unexpected byte")
    return values[:count]


def parse_args(rng):
    text = ",".join(f"{v:.2f}" for v in rng.normal(size=size(rng)) * 100) + ",,7\n"
    if rng.random() < 0.3:
        text = text[:5] + "x" + text[5:]
    return (np.frombuffer(text.encode(), dtype=np.uint8).copy(),)


def varint_decode(buf):
    out = np.zeros(buf.size, np.uint64)
    n = 0
    shift = np.uint64(0)
    acc = np.uint64(0)
    for byte in buf:
        acc |= np.uint64(byte & 0x7F) << shift
        if byte & 0x80:
            shift += np.uint64(7)
        else:
            out[n] = acc
            n += 1
            acc = np.uint64(0)
            shift = np.uint64(0)
    return out[:n]


def varint_args(rng):
    out = []
    for v in rng.integers(0, 2**20, size(rng)):
        v = int(v)
        while v > 127:
            out.append(v & 127 | 128)
            v >>= 7
        out.append(v)
    return (np.array(out, np.uint8),)


def base64_encode(data):
    n = data.size
    pad = -n % 3
    padded = np.concatenate([data, np.zeros(pad, np.uint8)])
    triples = padded.reshape(-1, 3).astype(np.uint32)
    words = (triples[:, 0] << 16) | (triples[:, 1] << 8) | triples[:, 2]
    out = np.empty((len(words), 4), np.uint8)
    for k in range(4):
        out[:, k] = ALPHABET[(words >> (18 - 6 * k)) & 63]
    out = out.ravel()
    if pad:
        out[-pad:] = ord("=")
    return out


def bytes_args(rng):
    return (rng.integers(0, 256, size(rng, 4, 12)).astype(np.uint8),)


def bit_reverse(n_bits, x):
    result = np.zeros_like(x)
    for _ in range(n_bits):
        result = (result << 1) | (x & 1)
        x = x >> 1
    return result


def bit_reverse_args(rng):
    return 8, rng.integers(0, 256, size(rng)).astype(np.uint8)


def popcount(x):
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * np.uint32(0x01010101)) >> 24


def popcount_kernighan(xs):
    out = np.zeros(xs.shape, dtype=np.uint8)
    for i in range(xs.size):
        x = xs[i]
        while x:
            x &= x - 1
            out[i] += 1
    return out


def u32_args(rng):
    return (rng.integers(0, 2**32, size(rng), dtype=np.uint32),)


def lfsr(state, n, taps=(16, 14, 13, 11)):
    out = np.empty(n, dtype=np.uint16)
    for i in range(n):
        bit = 0
        for t in taps:
            bit ^= state >> (16 - t)
        bit &= 1
        state = (state >> 1) | (bit << 15)
        out[i] = state
    return out


def lfsr_args(rng):
    return int(rng.integers(1, 65536)), size(rng)


def fnv1a(data):
    h = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for b in data:
            h ^= b
            h *= np.uint32(16777619)
    return h


def murmur_mix(h):
    h = h.copy()
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def crc32(data):
    crc = np.uint32(0xFFFFFFFF)
    for b in data:
        crc = CRC_TABLE[(crc ^ b) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def adler32(data):
    a, b = 1, 0
    for d in data:
        a = (a + d) % 65521
        b = (b + a) % 65521
    return (b << 16) | a


def adler_int(data):
    a, b = 1, 0
    for d in data:
        a = (a + int(d)) % 65521
        b = (b + a) % 65521
    return (b << 16) | a


def xorshift(seed, n):
    x = np.uint32(seed)
    out = np.zeros(n, np.float64)
    for i in range(n):
        x ^= x << np.uint32(13)
        x ^= x >> np.uint32(17)
        x ^= x << np.uint32(5)
        out[i] = x / 2**32
    return out


def xorshift_args(rng):
    return int(rng.integers(1, 2**31)), size(rng)


def flood_fill(img, start, colour):
    old = img[start]
    if old == colour:
        return 0
    h, w = img.shape
    stack = np.empty((4 * h * w, 2), dtype=np.int32)
    stack[0] = start
    top = 1
    filled = 0
    while top > 0:
        top -= 1
        y, x = stack[top]
        if not (0 <= y < h and 0 <= x < w) or img[y, x] != old:
            continue
        img[y, x] = colour
        filled += 1
        for dy, dx in MOVES:
            stack[top] = y + dy, x + dx
            top += 1
    return filled


def flood_args(rng):
    h, w = size(rng), size(rng)
    return rng.integers(0, 2, (h, w)), (int(rng.integers(h)), int(rng.integers(w))), 7


PROGRAMS = [
    (levenshtein, levenshtein_args),
    (knapsack, knapsack_args),
    (knapsack_1d, knapsack_args),
    (sieve, sieve_args),
    (prefix_sums, prefix_args),
    (prefix_driver, lambda rng: prefix_args(rng)[:1]),
    (union_find, edges_args),
    (bfs, csr_args),
    (dfs_order, adj_args),
    (dfs_filled, adj_args),
    (heapsort, heap_args),
    (dijkstra, dijkstra_args),
    (topological_sort, topo_args),
    (rle, rle_args),
    (rle_numpy, rle_args),
    (parse_csv, parse_args),
    (varint_decode, varint_args),
    (base64_encode, bytes_args),
    (bit_reverse, bit_reverse_args),
    (popcount, u32_args),
    (popcount_kernighan, u32_args),
    (lfsr, lfsr_args),
    (fnv1a, bytes_args),
    (murmur_mix, u32_args),
    (crc32, bytes_args),
    (adler32, bytes_args),
    (adler_int, bytes_args),
    (xorshift, xorshift_args),
    (flood_fill, flood_args),
]
