"""Sorting, selection, searching and array set logic."""

import numpy as np


def bubble_sort(a):
    """Bubble sort in place with an early exit; returns the number of passes."""
    n = len(a)
    for i in range(n):
        swapped = False
        for j in range(n - 1 - i):
            if a[j] > a[j + 1]:
                a[j], a[j + 1] = a[j + 1], a[j]
                swapped = True
        if not swapped:
            return i + 1
    return n


def insertion_sort(a):
    """Insertion sort in place."""
    for i in range(1, len(a)):
        key = a[i]
        j = i - 1
        while j >= 0 and a[j] > key:
            a[j + 1] = a[j]
            j -= 1
        a[j + 1] = key


def binary_insertion_sort(a):
    """Insertion sort with searchsorted and a block shift by overlapping slices."""
    for i in range(1, a.size):
        key = a[i].copy()
        pos = np.searchsorted(a[:i], key, side="right")
        a[pos + 1 : i + 1] = a[pos:i]
        a[pos] = key
    return a


def selection_sort(values):
    """Selection sort of a copy with argmin."""
    a = values.copy()
    for i in range(len(a) - 1):
        m = i + int(a[i:].argmin())
        if m != i:
            a[i], a[m] = a[m], a[i]
    return a


def shell_sort(a):
    """Shell sort in place with halving gaps."""
    gap = len(a) // 2
    while gap > 0:
        for i in range(gap, len(a)):
            tmp = a[i]
            j = i
            while j >= gap and a[j - gap] > tmp:
                a[j] = a[j - gap]
                j -= gap
            a[j] = tmp
        gap //= 2


def sift_down(a, start, end):
    """Restore the max-heap property below start."""
    root = start
    while True:
        child = 2 * root + 1
        if child > end:
            return
        if child + 1 <= end and a[child] < a[child + 1]:
            child += 1
        if a[root] >= a[child]:
            return
        a[root], a[child] = a[child], a[root]
        root = child


def heap_sort(a):
    """Heap sort in place through a helper that mutates its argument."""
    n = len(a)
    for start in range(n // 2 - 1, -1, -1):
        sift_down(a, start, n - 1)
    for end in range(n - 1, 0, -1):
        a[0], a[end] = a[end], a[0]
        sift_down(a, 0, end - 1)
    return a


def merge_sort_bottom_up(values):
    """Bottom-up merge sort with two buffers."""
    src = values.copy()
    dst = np.empty_like(src)
    n = src.size
    width = 1
    while width < n:
        for lo in range(0, n, 2 * width):
            mid = min(lo + width, n)
            hi = min(lo + 2 * width, n)
            i, j = lo, mid
            for k in range(lo, hi):
                if i < mid and (j >= hi or src[i] <= src[j]):
                    dst[k] = src[i]
                    i += 1
                else:
                    dst[k] = src[j]
                    j += 1
        src, dst = dst, src
        width *= 2
    return src


def quick_sort_stack(a):
    """Quicksort in place with an explicit stack array and Hoare-like partition."""
    stack = np.zeros((64, 2), dtype=int)
    stack[0] = 0, len(a) - 1
    top = 1
    while top > 0:
        top -= 1
        lo, hi = stack[top]
        if lo >= hi:
            continue
        pivot = a[(lo + hi) // 2]
        i, j = lo, hi
        while i <= j:
            while a[i] < pivot:
                i += 1
            while a[j] > pivot:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i += 1
                j -= 1
        stack[top] = lo, j
        stack[top + 1] = i, hi
        top += 2


def counting_sort(a, upper):
    """Counting sort of small non-negative integers by loops."""
    counts = np.zeros(upper, dtype=int)
    for v in a:
        counts[v] += 1
    out = np.empty_like(a)
    k = 0
    for v in range(upper):
        for _ in range(counts[v]):
            out[k] = v
            k += 1
    return out


def counting_sort_repeat(a):
    """Counting sort by bincount and repeat."""
    if a.size and a.min() < 0:
        raise ValueError("negative value")
    return np.repeat(np.arange(a.max() + 1), np.bincount(a)).astype(a.dtype)


def radix_sort(a, base_bits):
    """Least-significant-digit radix sort of unsigned integers."""
    out = a.copy()
    mask = (1 << base_bits) - 1
    shift = 0
    biggest = int(a.max())
    while biggest >> shift > 0:
        digit = (out >> shift) & mask
        count = np.bincount(digit, minlength=mask + 1)
        start = np.cumsum(count) - count
        nxt = np.empty_like(out)
        for v, d in zip(out, digit):
            nxt[start[d]] = v
            start[d] += 1
        out = nxt
        shift += base_bits
    return out


def quickselect(values, k):
    """The k-th smallest value by Lomuto partitioning of a copy."""
    a = values.copy()
    if not 0 <= k < len(a):
        raise IndexError("k out of range")
    lo, hi = 0, len(a) - 1
    while True:
        pivot = a[hi]
        store = lo
        for i in range(lo, hi):
            if a[i] < pivot:
                a[i], a[store] = a[store], a[i]
                store += 1
        a[store], a[hi] = a[hi], a[store]
        if store == k:
            return a[k]
        if store < k:
            lo = store + 1
        else:
            hi = store - 1


def binary_search(a, target):
    """Index of target in a sorted array, or -1."""
    lo, hi = 0, len(a) - 1
    while lo <= hi:
        mid = (lo + hi) // 2
        if a[mid] == target:
            return mid
        if a[mid] < target:
            lo = mid + 1
        else:
            hi = mid - 1
    return -1


def lower_bounds(a, queries):
    """Lower-bound index of every query by loop, checked against searchsorted."""
    out = np.empty(len(queries), dtype=np.int64)
    for q in range(len(queries)):
        lo, hi = 0, len(a)
        while lo < hi:
            mid = (lo + hi) >> 1
            if a[mid] < queries[q]:
                lo = mid + 1
            else:
                hi = mid
        out[q] = lo
    assert (out == np.searchsorted(a, queries)).all()
    return out


def two_sum_sorted(a, target):
    """Indices of two entries of a sorted array that add to target, or None."""
    i, j = 0, len(a) - 1
    while i < j:
        s = a[i] + a[j]
        if s == target:
            return i, j
        elif s < target:
            i += 1
        else:
            j -= 1
    return None


def three_way_partition(a, pivot):
    """Dutch national flag partition in place; returns the bounds of the middle."""
    lt, i, gt = 0, 0, len(a)
    while i < gt:
        if a[i] < pivot:
            a[lt], a[i] = a[i], a[lt]
            lt += 1
            i += 1
        elif a[i] > pivot:
            gt -= 1
            a[i], a[gt] = a[gt], a[i]
        else:
            i += 1
    return lt, gt


def merge_sorted(a, b):
    """Merge of two sorted arrays with leftover slices."""
    out = np.empty(len(a) + len(b), dtype=np.promote_types(a.dtype, b.dtype))
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            out[i + j] = a[i]
            i += 1
        else:
            out[i + j] = b[j]
            j += 1
    out[i + j :] = a[i:] if i < len(a) else b[j:]
    return out


def remove_duplicates(a):
    """Compact a sorted array in place and return the number of distinct values."""
    if len(a) == 0:
        return 0
    w = 1
    for r in range(1, len(a)):
        if a[r] != a[r - 1]:
            a[w] = a[r]
            w += 1
    return w


def sorted_intersection(a, b):
    """Common values of two integer arrays by sorting and shifted comparison."""
    merged = np.sort(np.concatenate([a[first_flags(a)], b[first_flags(b)]]))
    return merged[:-1][merged[1:] == merged[:-1]]


def first_flags(a):
    """True where a value occurs for the first time."""
    flags = np.zeros(len(a), dtype=bool)
    for i in range(len(a)):
        flags[i] = not (a[:i] == a[i]).any()
    return flags


def rank_with_ties(x):
    """Average ranks with ties sharing their mean rank."""
    order = np.argsort(x, kind="stable")
    ranks = np.empty(len(x))
    i = 0
    while i < len(x):
        j = i
        while j + 1 < len(x) and x[order[j + 1]] == x[order[i]]:
            j += 1
        ranks[order[i : j + 1]] = (i + j) / 2 + 1
        i = j + 1
    return ranks


def top_k(scores, labels, k):
    """The k best scores with their labels, highest first."""
    order = np.argsort(scores)[::-1][:k]
    return scores[order], labels[order]


def lexicographic_rows(rows):
    """Sort rows of a matrix by first column and then by the others."""
    order = np.lexsort(rows.T[::-1])
    return rows[order], order


def sort_pairs_by_key(keys, values):
    """Sort two arrays together in place by key."""
    order = keys.argsort(kind="mergesort")
    keys[:] = keys[order]
    values[:] = values[order]


def inversions(a):
    """Number of inversions by comparing each element with its followers."""
    total = 0
    for i in range(len(a) - 1):
        total += np.count_nonzero(a[i + 1 :] < a[i])
    return total


def inverse_permutation(p):
    """Inverse of a permutation by scatter; ValueError when p is not one."""
    inv = np.full(len(p), -1)
    for i, v in enumerate(p):
        if inv[v] != -1:
            raise ValueError("not a permutation")
        inv[v] = i
    return inv


def next_permutation(a):
    """Advance an array to its next permutation in place; False at the last one."""
    i = len(a) - 2
    while i >= 0 and a[i] >= a[i + 1]:
        i -= 1
    if i < 0:
        a[:] = a[::-1].copy()
        return False
    j = len(a) - 1
    while a[j] <= a[i]:
        j -= 1
    a[i], a[j] = a[j], a[i]
    a[i + 1 :] = a[i + 1 :][::-1].copy()
    return True


def rotate_left(a, k):
    """Rotate an array in place by three reversals on views."""

    def reverse(v):
        n = len(v)
        for i in range(n // 2):
            v[i], v[n - 1 - i] = v[n - 1 - i], v[i]

    k %= len(a)
    reverse(a[:k])
    reverse(a[k:])
    reverse(a)
    return a


def fisher_yates(a, draws):
    """Shuffle in place with given uniform draws."""
    for i in range(len(a) - 1, 0, -1):
        j = int(draws[i] * (i + 1))
        a[i], a[j] = a[j], a[i]


def sliding_window_max(x, k):
    """Sliding maximum with a monotone queue in an index array."""
    n = len(x)
    q = np.zeros(n, dtype=int)
    head, tail = 0, 0
    out = np.empty(n - k + 1, dtype=x.dtype)
    for i in range(n):
        while tail > head and x[q[tail - 1]] <= x[i]:
            tail -= 1
        q[tail] = i
        tail += 1
        if q[head] <= i - k:
            head += 1
        if i >= k - 1:
            out[i - k + 1] = x[q[head]]
    return out


def next_greater(a):
    """Next greater element of each position with a stack, -1 if none."""
    out = np.full_like(a, -1)
    stack = []
    for i, v in enumerate(a):
        while stack and a[stack[-1]] < v:
            out[stack.pop()] = v
        stack.append(i)
    return out


def trapped_water(height):
    """Water trapped between bars from running maxima on both sides."""
    left = np.maximum.accumulate(height)
    right = np.maximum.accumulate(height[::-1])[::-1]
    return int(np.sum(np.minimum(left, right) - height))


def hash_table_insert(keys, table, max_probe):
    """Linear-probing inserts of positive keys into a zeroed table; returns collisions."""
    size = len(table)
    collisions = 0
    for key in keys:
        slot = int(key) * 2654435761 % size
        for _ in range(max_probe):
            if table[slot] == 0 or table[slot] == key:
                table[slot] = key
                break
            slot = (slot + 1) % size
            collisions += 1
        else:
            raise RuntimeError("table full")
    return collisions


PROGRAMS = [
    (bubble_sort, lambda rng: (rng.integers(0, 100, 35),)),
    (bubble_sort, lambda rng: (np.arange(20),)),
    (insertion_sort, lambda rng: (rng.random(40),)),
    (insertion_sort, lambda rng: (rng.random((6, 2)),)),
    (insertion_sort, lambda rng: (rng.integers(0, 100, 60)[::2],)),
    (binary_insertion_sort, lambda rng: (rng.random(40),)),
    (selection_sort, lambda rng: (rng.random(40, np.float32),)),
    (selection_sort, lambda rng: (np.array([3]),)),
    (shell_sort, lambda rng: (rng.integers(-50, 50, 60),)),
    (heap_sort, lambda rng: (rng.random(40),)),
    (heap_sort, lambda rng: (rng.integers(0, 9, 40, dtype=np.int16),)),
    (merge_sort_bottom_up, lambda rng: (rng.random(60),)),
    (quick_sort_stack, lambda rng: (rng.integers(0, 50, 60),)),
    (counting_sort, lambda rng: (rng.integers(0, 12, 100), 12)),
    (counting_sort, lambda rng: (rng.integers(0, 12, 100), 8)),
    (counting_sort_repeat, lambda rng: (rng.integers(0, 20, 100, dtype=np.uint8),)),
    (counting_sort_repeat, lambda rng: (rng.integers(-5, 20, 100),)),
    (counting_sort_repeat, lambda rng: (np.array([], dtype=int),)),
    (radix_sort, lambda rng: (rng.integers(0, 4096, 60), 4)),
    (radix_sort, lambda rng: (rng.integers(0, 4096, 60, dtype=np.uint32), 6)),
    (quickselect, lambda rng: (rng.random(60), 20)),
    (quickselect, lambda rng: (rng.random(60), 60)),
    (binary_search, lambda rng: (np.arange(0, 400, 3), 123)),
    (binary_search, lambda rng: (np.arange(0, 400, 3), 124)),
    (lower_bounds, lambda rng: (np.sort(rng.random(64)), rng.random(20))),
    (lower_bounds, lambda rng: (rng.random(64), rng.random(20))),
    (two_sum_sorted, lambda rng: (np.arange(1, 60, 3), 59)),
    (two_sum_sorted, lambda rng: (np.arange(0, 60, 2), 59)),
    (three_way_partition, lambda rng: (rng.integers(0, 5, 60), 2)),
    (merge_sorted, lambda rng: (np.sort(rng.random(30)), np.sort(rng.random(25)))),
    (merge_sorted, lambda rng: (np.sort(rng.integers(0, 9, 10)), np.sort(rng.random(8)))),
    (remove_duplicates, lambda rng: (np.sort(rng.integers(0, 20, 50)),)),
    (remove_duplicates, lambda rng: (np.array([]),)),
    (sorted_intersection, lambda rng: (rng.integers(0, 30, 25), rng.integers(0, 30, 25))),
    (rank_with_ties, lambda rng: (rng.integers(0, 10, 40),)),
    (top_k, lambda rng: (rng.random(50), np.arange(50) * 10, 6)),
    (lexicographic_rows, lambda rng: (rng.integers(0, 4, (20, 3)),)),
    (sort_pairs_by_key, lambda rng: (rng.integers(0, 9, 30), rng.random(30))),
    (sort_pairs_by_key, lambda rng: (rng.integers(0, 9, 30), rng.random(20))),
    (inversions, lambda rng: (rng.permutation(60),)),
    (inverse_permutation, lambda rng: (rng.permutation(60),)),
    (inverse_permutation, lambda rng: (rng.integers(0, 20, 20),)),
    (next_permutation, lambda rng: (np.array([1, 3, 5, 4, 2]),)),
    (next_permutation, lambda rng: (np.array([5, 4, 3, 2, 1]),)),
    (rotate_left, lambda rng: (np.arange(30), 11)),
    (rotate_left, lambda rng: (np.array([]), 1)),
    (fisher_yates, lambda rng: (np.arange(60), rng.random(60))),
    (sliding_window_max, lambda rng: (rng.random(80), 7)),
    (sliding_window_max, lambda rng: (rng.random(5), 7)),
    (next_greater, lambda rng: (rng.integers(0, 50, 60),)),
    (trapped_water, lambda rng: (rng.integers(0, 10, 50),)),
    (hash_table_insert, lambda rng: (rng.integers(1, 999, 40), np.zeros(64, dtype=int), 64)),
    (hash_table_insert, lambda rng: (np.arange(1, 40), np.zeros(32, dtype=int), 32)),
]
