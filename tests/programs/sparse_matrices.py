"""Sparse matrix kernels in CSR, COO, ELL and related formats, and graph traversal."""

from dataclasses import dataclass

import numpy as np


@dataclass
class CSR:
    """Compressed sparse rows."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple


def csr_matvec_scalar(data, indices, indptr, x):
    """CSR matrix-vector product with two loops."""
    n = len(indptr) - 1
    y = np.zeros(n, dtype=np.result_type(data, x))
    for i in range(n):
        acc = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            acc += data[k] * x[indices[k]]
        y[i] = acc
    return y


def csr_matvec_slices(data, indices, indptr, x):
    """CSR matrix-vector product with a dot product of slices per row."""
    n = indptr.size - 1
    y = np.empty(n, dtype=data.dtype)
    for i in range(n):
        y[i] = np.dot(data[indptr[i] : indptr[i + 1]], x[indices[indptr[i] : indptr[i + 1]]])
    return y


def csr_matvec_dataclass(a, x, y, alpha, beta):
    """y = alpha A x + beta y on a dataclass matrix, in place."""
    rows, cols = a.shape
    if x.shape != (cols,) or y.shape != (rows,):
        raise ValueError("dimension mismatch")
    for i in range(rows):
        lo, hi = a.indptr[i], a.indptr[i + 1]
        y[i] = beta * y[i] + alpha * (a.data[lo:hi] * x[a.indices[lo:hi]]).sum()


def csr_transpose_matvec(data, indices, indptr, x, ncols):
    """Product of the transposed CSR matrix with a vector, by scatter."""
    y = np.zeros(ncols)
    for i in range(len(x)):
        for k in range(indptr[i], indptr[i + 1]):
            y[indices[k]] += data[k] * x[i]
    return y


def csr_matmat(data, indices, indptr, b):
    """CSR times dense matrix, one row combination at a time."""
    out = np.zeros((len(indptr) - 1, b.shape[1]))
    for i in range(out.shape[0]):
        row = out[i]
        for k in range(indptr[i], indptr[i + 1]):
            row += data[k] * b[indices[k]]
    return out


def csr_reduceat(data, indices, indptr, x):
    """CSR matrix-vector product by np.add.reduceat over rows that are not empty."""
    products = data * x[indices]
    out = np.zeros(len(indptr) - 1)
    nonempty = indptr[:-1] < indptr[1:]
    out[nonempty] = np.add.reduceat(products, indptr[:-1][nonempty])
    return out


def coo_matvec(rows, cols, vals, x, n):
    """COO matrix-vector product by np.add.at."""
    y = np.zeros(n, dtype=vals.dtype)
    np.add.at(y, rows, vals * x[cols])
    return y


def coo_matvec_bincount(rows, cols, vals, x, n):
    """COO matrix-vector product by weighted np.bincount."""
    return np.bincount(rows, weights=vals * x[cols], minlength=n)


def coo_to_csr(rows, cols, vals, n):
    """Convert COO to CSR by counting; returns a tuple of arrays."""
    indptr = np.zeros(n + 1, dtype=np.int64)
    for r in rows:
        indptr[r + 1] += 1
    indptr = np.cumsum(indptr)
    fill = indptr[:-1].copy()
    indices = np.empty_like(cols)
    data = np.empty_like(vals)
    for r, c, v in zip(rows, cols, vals):
        k = fill[r]
        indices[k] = c
        data[k] = v
        fill[r] += 1
    return data, indices, indptr


def ell_matvec(values, columns, x):
    """ELL matrix-vector product, where a column of -1 is padding."""
    y = np.zeros(values.shape[0], dtype=values.dtype)
    for k in range(values.shape[1]):
        c = columns[:, k]
        y += np.where(c >= 0, values[:, k] * x[c], 0)
    return y


def dia_matvec(diags, offsets, x):
    """Diagonal-format matrix-vector product."""
    n = len(x)
    y = np.zeros(n)
    for d, off in zip(diags, offsets):
        if off >= 0:
            y[: n - off] += d[: n - off] * x[off:]
        else:
            y[-off:] += d[-off:] * x[: n + off]
    return y


def dense_to_csr(a):
    """Compress a dense matrix by row-wise np.nonzero."""
    indptr = [0]
    cols, vals = [], []
    for row in a:
        nz = np.nonzero(row)[0]
        cols.append(nz)
        vals.append(row[nz])
        indptr.append(indptr[-1] + len(nz))
    return np.concatenate(vals), np.concatenate(cols), np.array(indptr)


def csr_to_dense(data, indices, indptr, shape):
    """Expand a CSR matrix with fancy assignment."""
    out = np.zeros(shape, dtype=data.dtype)
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
    out[rows, indices] = data
    return out


def csr_scale_rows(a):
    """Normalise each nonempty CSR row to unit sum in place; returns how many were scaled."""
    scaled = 0
    for lo, hi in zip(a.indptr[:-1], a.indptr[1:]):
        if lo == hi:
            continue
        row = a.data[lo:hi]
        row /= row.sum()
        scaled += 1
    return scaled


def csr_lower_solve(data, indices, indptr, b):
    """Forward solve of a sparse lower-triangular system whose rows end on the diagonal."""
    x = b.copy()
    for i in range(b.shape[0]):
        last = indptr[i + 1] - 1
        if last < indptr[i] or indices[last] != i:
            raise ValueError("missing diagonal")
        for k in range(indptr[i], last):
            x[i] -= data[k] * x[indices[k]]
        x[i] /= data[last]
    return x


def csr_jacobi(a, b, iterations):
    """Jacobi sweeps on a CSR dataclass, with the diagonal found by search."""
    n = a.shape[0]
    x = np.zeros(n)
    for _ in range(iterations):
        new = np.empty(n)
        for i in range(n):
            s = b[i]
            diag = 1.0
            for k in range(a.indptr[i], a.indptr[i + 1]):
                j = a.indices[k]
                if j == i:
                    diag = a.data[k]
                else:
                    s -= a.data[k] * x[j]
            new[i] = s / diag
        x = new
    return x


def breadth_first_levels(indices, indptr, source):
    """Breadth-first levels on an adjacency in CSR with an array queue."""
    n = len(indptr) - 1
    level = np.full(n, -1)
    queue = np.empty(n, dtype=int)
    queue[0] = source
    level[source] = 0
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        for v in indices[indptr[u] : indptr[u + 1]]:
            if level[v] < 0:
                level[v] = level[u] + 1
                queue[tail] = v
                tail += 1
    return level, queue[:tail]


def topological_order(edges, n):
    """Kahn's topological order, or ValueError on a cycle."""
    indegree = np.zeros(n, dtype=int)
    for _, v in edges:
        indegree[v] += 1
    order = [i for i in range(n) if indegree[i] == 0]
    for u in order:
        for a, v in edges:
            if a == u:
                indegree[v] -= 1
                if indegree[v] == 0:
                    order.append(int(v))
    if len(order) < n:
        raise ValueError("graph has a cycle")
    return np.array(order)


def union_find_components(edges, n):
    """Connected component labels by union-find with path halving."""
    parent = np.arange(n)

    def find(i):
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for u, v in edges:
        ru, rv = find(u), find(v)
        if ru != rv:
            parent[max(ru, rv)] = min(ru, rv)
    return np.array([find(i) for i in range(n)])


def triangle_count(adj):
    """Triangles in an undirected graph from the trace of the cubed adjacency."""
    assert (adj == adj.T).all()
    return int(np.trace(adj @ adj @ adj)) // 6


def compress(dense):
    """CSR arrays of a dense matrix."""
    rows, cols = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(dense.shape[0] + 1))
    return dense[rows, cols], cols, indptr


def sparse(rng, n, m, dtype=np.float64):
    """Random dense matrix with about a fifth of its entries set."""
    return np.where(rng.random((n, m)) < 0.2, rng.standard_normal((n, m)), 0).astype(dtype)


def matrix(dense):
    """CSR dataclass of a dense matrix."""
    return CSR(*compress(dense), dense.shape)


PROGRAMS = [
    (csr_matvec_scalar, lambda rng: (*compress(sparse(rng, 25, 20)), rng.random(20))),
    (
        csr_matvec_scalar,
        lambda rng: (*compress(sparse(rng, 15, 20, np.float32)), rng.random(20, np.float32)),
    ),
    (csr_matvec_scalar, lambda rng: (*compress(sparse(rng, 25, 20)), rng.random(10))),
    (csr_matvec_slices, lambda rng: (*compress(sparse(rng, 40, 30)), rng.random(30))),
    (csr_matvec_slices, lambda rng: (*compress(sparse(rng, 40, 30)), rng.random(12))),
    (
        csr_matvec_dataclass,
        lambda rng: (matrix(sparse(rng, 20, 16)), rng.random(16), rng.random(20), 2.0, 0.5),
    ),
    (
        csr_matvec_dataclass,
        lambda rng: (matrix(sparse(rng, 20, 16)), rng.random(20), rng.random(20), 2.0, 0.5),
    ),
    (csr_transpose_matvec, lambda rng: (*compress(sparse(rng, 20, 25)), rng.random(20), 25)),
    (csr_matmat, lambda rng: (*compress(sparse(rng, 20, 16)), rng.random((16, 5)))),
    (csr_reduceat, lambda rng: (*compress(sparse(rng, 30, 30)), rng.random(30))),
    (
        coo_matvec,
        lambda rng: (
            rng.integers(0, 20, 80),
            rng.integers(0, 15, 80),
            rng.random(80),
            rng.random(15),
            20,
        ),
    ),
    (
        coo_matvec,
        lambda rng: (
            rng.integers(0, 25, 80),
            rng.integers(0, 15, 80),
            rng.random(80),
            rng.random(15),
            20,
        ),
    ),
    (
        coo_matvec_bincount,
        lambda rng: (
            rng.integers(0, 20, 80),
            rng.integers(0, 15, 80),
            rng.random(80),
            rng.random(15),
            20,
        ),
    ),
    (
        coo_to_csr,
        lambda rng: (rng.integers(0, 12, 60), rng.integers(0, 9, 60), rng.random(60), 12),
    ),
    (
        ell_matvec,
        lambda rng: (rng.random((20, 4)), rng.integers(-1, 20, (20, 4)), rng.random(20)),
    ),
    (
        dia_matvec,
        lambda rng: (rng.random((4, 25)), np.array([0, 1, -1, -5]), rng.random(25)),
    ),
    (dia_matvec, lambda rng: (rng.random((3, 25)), (0, 2, -3), rng.random(25))),
    (dense_to_csr, lambda rng: (sparse(rng, 12, 14),)),
    (csr_to_dense, lambda rng: (*compress(sparse(rng, 12, 14)), (12, 14))),
    (csr_to_dense, lambda rng: (*compress(sparse(rng, 12, 14)), (12, 5))),
    (csr_scale_rows, lambda rng: (matrix(np.abs(sparse(rng, 15, 15))),)),
    (
        csr_lower_solve,
        lambda rng: (*compress(np.tril(sparse(rng, 20, 20), -1) + 2 * np.eye(20)), rng.random(20)),
    ),
    (csr_lower_solve, lambda rng: (*compress(np.tril(sparse(rng, 20, 20), -1)), rng.random(20))),
    (csr_jacobi, lambda rng: (matrix(sparse(rng, 14, 14) + 8 * np.eye(14)), rng.random(14), 6)),
    (
        breadth_first_levels,
        lambda rng: (*compress((rng.random((25, 25)) < 0.1).astype(int))[1:], 3),
    ),
    (topological_order, lambda rng: (np.array([[0, 2], [1, 2], [2, 3], [1, 4], [4, 3]]), 6)),
    (topological_order, lambda rng: (np.array([[0, 1], [1, 2], [2, 0]]), 3)),
    (union_find_components, lambda rng: (rng.integers(0, 30, (22, 2)), 30)),
    (triangle_count, lambda rng: (np.ones((6, 6), dtype=int) - np.eye(6, dtype=int),)),
    (triangle_count, lambda rng: (rng.integers(0, 2, (6, 6)),)),
]
