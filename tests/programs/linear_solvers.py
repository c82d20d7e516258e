"""Direct and iterative linear solvers and factorisations written with loops."""

import math

import numpy as np


def forward_substitution(lower, b):
    """Solve a lower-triangular system by forward substitution."""
    n = lower.shape[0]
    x = np.zeros(n)
    for i in range(n):
        s = b[i]
        for j in range(i):
            s -= lower[i, j] * x[j]
        x[i] = s / lower[i, i]
    return x


def back_substitution(upper, b):
    """Solve an upper-triangular system with a dot product per row."""
    n = len(b)
    x = np.zeros_like(b)
    for i in range(n - 1, -1, -1):
        x[i] = (b[i] - upper[i, i + 1 :] @ x[i + 1 :]) / upper[i, i]
    return x


def lu_pivot(a):
    """LU factorisation with partial pivoting; returns packed LU, permutation and sign."""
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError("square matrix expected")
    lu = a.astype(np.float64)
    n = lu.shape[0]
    perm = np.arange(n)
    sign = 1
    for k in range(n):
        p = k + np.argmax(np.abs(lu[k:, k]))
        if lu[p, k] == 0:
            raise ValueError("singular matrix")
        if p != k:
            lu[[k, p]] = lu[[p, k]]
            perm[k], perm[p] = perm[p], perm[k]
            sign = -sign
        lu[k + 1 :, k] /= lu[k, k]
        lu[k + 1 :, k + 1 :] -= np.outer(lu[k + 1 :, k], lu[k, k + 1 :])
    return lu, perm, sign


def lu_solve(a, b):
    """Solve a dense system by LU with pivoting and two triangular sweeps."""
    lu, perm, _ = lu_pivot(a)
    n = len(b)
    y = np.empty(n)
    for i in range(n):
        y[i] = b[perm[i]] - np.dot(lu[i, :i], y[:i])
    for i in reversed(range(n)):
        y[i] = (y[i] - np.dot(lu[i, i + 1 :], y[i + 1 :])) / lu[i, i]
    return y


def lu_doolittle_scalar(a):
    """Doolittle LU without pivoting by triple loop, in place in the argument."""
    n = a.shape[0]
    for k in range(n - 1):
        for i in range(k + 1, n):
            a[i, k] /= a[k, k]
            for j in range(k + 1, n):
                a[i, j] -= a[i, k] * a[k, j]


def gauss_jordan_inverse(a):
    """Matrix inverse by Gauss-Jordan elimination on an augmented matrix."""
    n = a.shape[0]
    m = np.hstack([a.astype(float), np.eye(n)])
    for col in range(n):
        pivot = max(range(col, n), key=lambda r: abs(m[r, col]))
        if abs(m[pivot, col]) < 1e-12:
            return None
        m[[col, pivot]] = m[[pivot, col]]
        m[col] /= m[col, col]
        for r in range(n):
            if r != col:
                m[r] -= m[r, col] * m[col]
    return m[:, n:]


def determinant(a):
    """Determinant by Gaussian elimination, returning 0.0 early when singular."""
    m = a.astype(float).copy()
    n = len(m)
    det = 1.0
    for k in range(n):
        p = k
        for i in range(k + 1, n):
            if abs(m[i, k]) > abs(m[p, k]):
                p = i
        if m[p, k] == 0:
            return 0.0
        if p != k:
            m[[k, p], :] = m[[p, k], :]
            det = -det
        det *= m[k, k]
        for i in range(k + 1, n):
            m[i, k:] -= m[i, k] / m[k, k] * m[k, k:]
    return det


def cholesky_scalar(a):
    """Cholesky factor by scalar loops."""
    n = a.shape[0]
    low = np.zeros((n, n), dtype=a.dtype)
    for i in range(n):
        for j in range(i + 1):
            s = a[i, j]
            for k in range(j):
                s -= low[i, k] * low[j, k]
            if i == j:
                if s <= 0:
                    raise ValueError("matrix is not positive definite")
                low[i, j] = np.sqrt(s)
            else:
                low[i, j] = s / low[j, j]
    return low


def cholesky_rows(a):
    """Cholesky factor with vector inner products, overwriting the lower triangle of a."""
    n = len(a)
    for j in range(n):
        a[j, j] = math.sqrt(a[j, j] - np.dot(a[j, :j], a[j, :j]))
        for i in range(j + 1, n):
            a[i, j] = (a[i, j] - np.dot(a[i, :j], a[j, :j])) / a[j, j]
        a[j, j + 1 :] = 0
    return a


def ldl_decompose(a):
    """Square-root-free Cholesky, A = L D L^T."""
    n = a.shape[0]
    low = np.eye(n)
    d = np.zeros(n)
    for j in range(n):
        d[j] = a[j, j] - (low[j, :j] ** 2 * d[:j]).sum()
        for i in range(j + 1, n):
            low[i, j] = (a[i, j] - (low[i, :j] * low[j, :j] * d[:j]).sum()) / d[j]
    return low, d


def qr_gram_schmidt(a):
    """QR by modified Gram-Schmidt."""
    m, n = a.shape
    assert m >= n, "more columns than rows"
    q = a.astype(float)
    r = np.zeros((n, n))
    for k in range(n):
        r[k, k] = np.linalg.norm(q[:, k])
        q[:, k] /= r[k, k]
        for j in range(k + 1, n):
            r[k, j] = q[:, k] @ q[:, j]
            q[:, j] -= r[k, j] * q[:, k]
    return q, r


def qr_householder(a):
    """Full QR by Householder reflections."""
    m, n = a.shape
    r = a.copy()
    q = np.eye(m)
    for k in range(min(m - 1, n)):
        x = r[k:, k]
        alpha = -np.copysign(np.sqrt(np.sum(x**2)), x[0])
        v = x.copy()
        v[0] -= alpha
        vnorm = np.sqrt(np.sum(v**2))
        if vnorm == 0:
            continue
        v /= vnorm
        r[k:, :] -= 2 * np.outer(v, v @ r[k:, :])
        q[:, k:] -= 2 * np.outer(q[:, k:] @ v, v)
    return q, np.triu(r)


def givens_hessenberg(h):
    """Reduce an upper Hessenberg matrix to triangular form by Givens rotations, in place."""
    n = h.shape[0]
    rotations = []
    for k in range(n - 1):
        a, b = h[k, k], h[k + 1, k]
        r = math.hypot(a, b)
        c, s = (1.0, 0.0) if r == 0 else (a / r, b / r)
        for j in range(k, n):
            t1, t2 = h[k, j], h[k + 1, j]
            h[k, j] = c * t1 + s * t2
            h[k + 1, j] = -s * t1 + c * t2
        rotations.append((c, s))
    return np.array(rotations)


def thomas(a, b, c, d):
    """Tridiagonal solve by the Thomas algorithm on copies of the bands."""
    n = len(d)
    cp = np.empty(n - 1)
    dp = np.empty(n)
    cp[0] = c[0] / b[0]
    dp[0] = d[0] / b[0]
    for i in range(1, n):
        w = b[i] - a[i - 1] * cp[i - 1]
        if i < n - 1:
            cp[i] = c[i] / w
        dp[i] = (d[i] - a[i - 1] * dp[i - 1]) / w
    x = np.empty(n)
    x[-1] = dp[-1]
    for i in range(n - 2, -1, -1):
        x[i] = dp[i] - cp[i] * x[i + 1]
    return x


def thomas_batched(a, b, c, d):
    """Thomas algorithm over the last axis of a batch, overwriting b and d."""
    n = d.shape[-1]
    for i in range(1, n):
        w = a[..., i] / b[..., i - 1]
        b[..., i] -= w * c[..., i - 1]
        d[..., i] -= w * d[..., i - 1]
    d[..., -1] /= b[..., -1]
    for i in range(n - 2, -1, -1):
        d[..., i] = (d[..., i] - c[..., i] * d[..., i + 1]) / b[..., i]
    return d


def gauss_seidel(a, b, x, tol, max_iter):
    """Gauss-Seidel iteration updating x in place; returns the iteration count."""
    n = len(b)
    for it in range(max_iter):
        biggest = 0.0
        for i in range(n):
            old = x[i]
            sigma = 0.0
            for j in range(n):
                if j != i:
                    sigma += a[i, j] * x[j]
            x[i] = (b[i] - sigma) / a[i, i]
            biggest = max(biggest, abs(x[i] - old))
        if biggest < tol:
            return it + 1
    return -1


def jacobi(a, b, iterations):
    """Jacobi iteration with the diagonal split off."""
    d = np.diag(a)
    r = a - np.diagflat(d)
    x = np.zeros_like(b)
    for _ in range(iterations):
        x = (b - r @ x) / d
    return x


def sor(a, b, omega=1.25, tol=1e-8):
    """Successive over-relaxation with default relaxation and a while-else loop."""
    x = np.zeros(b.shape)
    it = 0
    while it < 100:
        old = x.copy()
        for i in range(b.size):
            s = b[i] - a[i, :i].dot(x[:i]) - a[i, i + 1 :].dot(old[i + 1 :])
            x[i] = (1 - omega) * old[i] + omega * s / a[i, i]
        it += 1
        if np.allclose(x, old, rtol=tol):
            break
    else:
        it = -1
    return x, it


def conjugate_gradient(a, b, tol):
    """Conjugate gradient with a while loop to convergence."""
    x = np.zeros_like(b)
    r = b - a @ x
    p = r.copy()
    rs = r @ r
    k = 0
    while np.sqrt(rs) > tol and k < 10 * len(b):
        ap = a @ p
        alpha = rs / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        rs_new = r @ r
        p = r + (rs_new / rs) * p
        rs = rs_new
        k += 1
    return x, k


def conjugate_gradient_operator(apply_a, b, max_iter):
    """Conjugate gradient for an operator given as a Python callable."""
    x = np.zeros_like(b)
    r = b.copy()
    p = r.copy()
    history = []
    for _ in range(max_iter):
        ap = apply_a(p)
        rr = np.dot(r, r)
        if rr < 1e-20:
            break
        alpha = rr / np.dot(p, ap)
        x = x + alpha * p
        r = r - alpha * ap
        p = r + np.dot(r, r) / rr * p
        history.append(rr)
    return x, history


def poisson_cg(b, max_iter):
    """Solve a 1-d Poisson problem with matrix-free conjugate gradient."""

    def laplacian(v):
        out = 2 * v
        out[1:] -= v[:-1]
        out[:-1] -= v[1:]
        return out

    x, history = conjugate_gradient_operator(laplacian, b, max_iter)
    return x, len(history)


def bicgstab(a, b, tol=1e-10, max_iter=40):
    """BiCGSTAB for a nonsymmetric system."""
    x = np.zeros(len(b))
    r = b - a.dot(x)
    r0 = r.copy()
    rho = alpha = omega = 1.0
    v = np.zeros_like(r)
    p = np.zeros_like(r)
    for i in range(max_iter):
        rho_new = r0 @ r
        beta = (rho_new / rho) * (alpha / omega)
        rho = rho_new
        p = r + beta * (p - omega * v)
        v = a @ p
        alpha = rho / (r0 @ v)
        s = r - alpha * v
        if np.linalg.norm(s) < tol:
            x += alpha * p
            break
        t = a @ s
        omega = (t @ s) / (t @ t)
        x += alpha * p + omega * s
        r = s - omega * t
        if np.linalg.norm(r) < tol:
            break
    return x, i


def power_iteration(a, steps):
    """Dominant eigenvalue and eigenvector by power iteration."""
    v = np.ones(a.shape[1]) / np.sqrt(a.shape[1])
    lam = 0.0
    for _ in range(steps):
        w = a @ v
        lam = v @ w
        v = w / np.linalg.norm(w)
    return lam, v


def pagerank(adj, damping, tol):
    """PageRank of an adjacency matrix with dangling nodes, to an L1 tolerance."""
    n = adj.shape[0]
    out = adj.sum(axis=1)
    dangling = out == 0
    m = np.where(dangling[:, None], 1.0 / n, adj / np.maximum(out, 1)[:, None])
    rank = np.full(n, 1.0 / n)
    for i in range(100):
        new = (1 - damping) / n + damping * (rank @ m)
        if np.abs(new - rank).sum() < tol:
            return new, i
        rank = new
    return rank, 100


def jacobi_eigenvalues(a, sweeps):
    """Eigenvalues of a symmetric matrix by cyclic Jacobi rotations."""
    s = a.copy()
    n = s.shape[0]
    for _ in range(sweeps):
        off = np.sum(s**2) - np.sum(np.diag(s) ** 2)
        if off < 1e-18:
            break
        for p in range(n - 1):
            for q in range(p + 1, n):
                if abs(s[p, q]) < 1e-15:
                    continue
                theta = (s[q, q] - s[p, p]) / (2 * s[p, q])
                t = np.sign(theta) / (abs(theta) + np.sqrt(theta**2 + 1)) if theta != 0 else 1.0
                c = 1 / np.sqrt(t**2 + 1)
                sn = t * c
                rot = np.eye(n)
                rot[p, p] = rot[q, q] = c
                rot[p, q] = sn
                rot[q, p] = -sn
                s = rot.T @ s @ rot
    return np.sort(np.diag(s))


def qr_algorithm(a, iterations):
    """Eigenvalues of a symmetric matrix by the shifted QR algorithm with np.linalg.qr."""
    ak = a.copy()
    n = len(ak)
    eye = np.eye(n)
    for _ in range(iterations):
        mu = ak[-1, -1]
        q, r = np.linalg.qr(ak - mu * eye)
        ak = r @ q + mu * eye
    return np.sort(ak.diagonal())


def lanczos(a, v0, m):
    """Lanczos tridiagonalisation; returns the diagonal and off-diagonal bands."""
    alpha = np.zeros(m)
    beta = np.zeros(m - 1)
    v = v0 / np.linalg.norm(v0)
    v_prev = np.zeros_like(v)
    b = 0.0
    for j in range(m):
        w = a @ v - b * v_prev
        alpha[j] = w @ v
        w -= alpha[j] * v
        if j < m - 1:
            b = np.linalg.norm(w)
            beta[j] = b
            v_prev, v = v, w / b
    return alpha, beta


def matmul_triple_loop(a, b):
    """Matrix product by three loops."""
    n, k = a.shape
    k2, m = b.shape
    if k != k2:
        raise ValueError(f"shapes {a.shape} and {b.shape} not aligned")
    c = np.zeros((n, m), dtype=np.result_type(a, b))
    for i in range(n):
        for j in range(m):
            acc = 0
            for t in range(k):
                acc += a[i, t] * b[t, j]
            c[i, j] = acc
    return c


def matmul_blocked(a, b, block):
    """Blocked matrix product accumulated with slices that may be ragged at the edges."""
    n = a.shape[0]
    c = np.zeros((n, b.shape[1]), dtype=a.dtype)
    for i in range(0, n, block):
        for j in range(0, b.shape[1], block):
            for k in range(0, a.shape[1], block):
                c[i : i + block, j : j + block] += (
                    a[i : i + block, k : k + block] @ b[k : k + block, j : j + block]
                )
    return c


def spd(rng, n, dtype=np.float64):
    """Random symmetric positive definite matrix."""
    a = rng.standard_normal((n, n))
    return (a @ a.T + n * np.eye(n)).astype(dtype)


def dominant(rng, n):
    """Random strictly diagonally dominant matrix."""
    return rng.random((n, n)) + n * np.eye(n)


PROGRAMS = [
    (forward_substitution, lambda rng: (np.tril(dominant(rng, 20)), rng.random(20))),
    (forward_substitution, lambda rng: (np.tril(dominant(rng, 9)), rng.random(5))),
    (back_substitution, lambda rng: (np.triu(dominant(rng, 24)), rng.random(24))),
    (
        back_substitution,
        lambda rng: (np.triu(dominant(rng, 12)).astype(np.float32), rng.random(12, np.float32)),
    ),
    (lu_pivot, lambda rng: (rng.standard_normal((12, 12)),)),
    (lu_pivot, lambda rng: (rng.integers(-5, 6, (6, 6)) + 20 * np.eye(6, dtype=int),)),
    (lu_pivot, lambda rng: (np.zeros((4, 4)),)),
    (lu_pivot, lambda rng: (rng.random((4, 5)),)),
    (lu_solve, lambda rng: (rng.standard_normal((12, 12)), rng.random(12))),
    (lu_doolittle_scalar, lambda rng: (dominant(rng, 10),)),
    (gauss_jordan_inverse, lambda rng: (rng.standard_normal((7, 7)),)),
    (gauss_jordan_inverse, lambda rng: (np.ones((3, 3)),)),
    (determinant, lambda rng: (rng.standard_normal((8, 8)),)),
    (determinant, lambda rng: (np.zeros((3, 3), dtype=int),)),
    (cholesky_scalar, lambda rng: (spd(rng, 10),)),
    (cholesky_scalar, lambda rng: (spd(rng, 8, np.float32),)),
    (cholesky_scalar, lambda rng: (-np.eye(3),)),
    (cholesky_rows, lambda rng: (spd(rng, 12),)),
    (cholesky_rows, lambda rng: (-np.eye(4),)),
    (ldl_decompose, lambda rng: (spd(rng, 9),)),
    (qr_gram_schmidt, lambda rng: (rng.standard_normal((12, 7)),)),
    (qr_gram_schmidt, lambda rng: (rng.standard_normal((3, 7)),)),
    (qr_householder, lambda rng: (rng.standard_normal((9, 6)),)),
    (givens_hessenberg, lambda rng: (np.triu(rng.standard_normal((9, 9)), -1),)),
    (
        thomas,
        lambda rng: (rng.random(59), 4 + rng.random(60), rng.random(59), rng.standard_normal(60)),
    ),
    (
        thomas,
        lambda rng: (rng.random(3), 4 + rng.random(60), rng.random(59), rng.standard_normal(60)),
    ),
    (
        thomas_batched,
        lambda rng: (
            rng.random((3, 20)),
            4 + rng.random((3, 20)),
            rng.random((3, 20)),
            rng.standard_normal((3, 20)),
        ),
    ),
    (gauss_seidel, lambda rng: (dominant(rng, 10), rng.random(10), np.zeros(10), 1e-8, 30)),
    (gauss_seidel, lambda rng: (dominant(rng, 6), rng.random(6), np.zeros(6), 1e-30, 3)),
    (jacobi, lambda rng: (dominant(rng, 16), rng.random(16), 25)),
    (sor, lambda rng: (dominant(rng, 12), rng.random(12))),
    (conjugate_gradient, lambda rng: (spd(rng, 20), rng.random(20), 1e-10)),
    (conjugate_gradient, lambda rng: (spd(rng, 20), np.zeros(20), 1e-10)),
    (conjugate_gradient, lambda rng: (spd(rng, 20), rng.random(19), 1e-10)),
    (poisson_cg, lambda rng: (rng.standard_normal(30), 40)),
    (bicgstab, lambda rng: (dominant(rng, 15), rng.random(15))),
    (power_iteration, lambda rng: (spd(rng, 12), 20)),
    (pagerank, lambda rng: ((rng.random((12, 12)) < 0.2).astype(float), 0.85, 1e-8)),
    (jacobi_eigenvalues, lambda rng: (spd(rng, 5), 8)),
    (qr_algorithm, lambda rng: (spd(rng, 6), 20)),
    (lanczos, lambda rng: (spd(rng, 16), rng.standard_normal(16), 8)),
    (matmul_triple_loop, lambda rng: (rng.random((8, 9)), rng.random((9, 7)))),
    (matmul_triple_loop, lambda rng: (rng.integers(-9, 9, (5, 6)), rng.integers(-9, 9, (6, 4)))),
    (matmul_triple_loop, lambda rng: (rng.random((8, 9)), rng.random((8, 7)))),
    (matmul_blocked, lambda rng: (rng.random((10, 13)), rng.random((13, 9)), 4)),
    (matmul_blocked, lambda rng: (rng.integers(0, 9, (6, 6)), rng.integers(0, 9, (6, 6)), 3)),
]
