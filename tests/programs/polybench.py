"""PolyBench kernels with explicit loops."""

import numpy as np


def size(rng, low=5, high=9):
    return int(rng.integers(low, high))


def adi(tsteps, n, u):
    v = np.empty(u.shape, dtype=u.dtype)
    p = np.empty(u.shape, dtype=u.dtype)
    q = np.empty(u.shape, dtype=u.dtype)
    dx = 1.0 / n
    dy = 1.0 / n
    dt = 1.0 / tsteps
    b1, b2 = 2.0, 1.0
    mul1 = b1 * dt / (dx * dx)
    mul2 = b2 * dt / (dy * dy)
    a = -mul1 / 2.0
    b = 1.0 + mul2
    c = a
    d = -mul2 / 2.0
    e = 1.0 + mul2
    f = d
    for t in range(1, tsteps + 1):
        v[0, 1 : n - 1] = 1.0
        p[1 : n - 1, 0] = 0.0
        q[1 : n - 1, 0] = v[0, 1 : n - 1]
        for j in range(1, n - 1):
            p[1 : n - 1, j] = -c / (a * p[1 : n - 1, j - 1] + b)
            q[1 : n - 1, j] = (
                -d * u[j, 0 : n - 2]
                + (1.0 + 2.0 * d) * u[j, 1 : n - 1]
                - f * u[j, 2:n]
                - a * q[1 : n - 1, j - 1]
            ) / (a * p[1 : n - 1, j - 1] + b)
        v[n - 1, 1 : n - 1] = 1.0
        for j in range(n - 2, 0, -1):
            v[j, 1 : n - 1] = p[1 : n - 1, j] * v[j + 1, 1 : n - 1] + q[1 : n - 1, j]
        u[1 : n - 1, 0] = 1.0
        p[1 : n - 1, 0] = 0.0
        q[1 : n - 1, 0] = u[1 : n - 1, 0]
        for j in range(1, n - 1):
            p[1 : n - 1, j] = -f / (d * p[1 : n - 1, j - 1] + e)
            q[1 : n - 1, j] = (
                -a * v[0 : n - 2, j]
                + (1.0 + 2.0 * a) * v[1 : n - 1, j]
                - c * v[2:n, j]
                - d * q[1 : n - 1, j - 1]
            ) / (d * p[1 : n - 1, j - 1] + e)
        u[1 : n - 1, n - 1] = 1.0
        for j in range(n - 2, 0, -1):
            u[1 : n - 1, j] = p[1 : n - 1, j] * u[1 : n - 1, j + 1] + q[1 : n - 1, j]


def adi_args(rng):
    n = size(rng)
    return 3, n, rng.random((n, n))


def atax(A, x):
    m, n = A.shape
    y = np.zeros(n)
    for i in range(m):
        tmp = 0.0
        for j in range(n):
            tmp += A[i, j] * x[j]
        for j in range(n):
            y[j] += A[i, j] * tmp
    return y


def atax_args(rng):
    m, n = size(rng), size(rng)
    return rng.random((m, n)), rng.random(n)


def bicg(A, p, r):
    n, m = A.shape
    s = np.zeros(m, dtype=A.dtype)
    q = np.zeros(n, dtype=A.dtype)
    for i in range(n):
        for j in range(m):
            s[j] = s[j] + r[i] * A[i][j]
            q[i] = q[i] + A[i][j] * p[j]
    return s, q


def bicg_args(rng):
    n, m = size(rng), size(rng)
    return (
        rng.random((n, m)).astype(np.float32),
        rng.random(m).astype(np.float32),
        rng.random(n).astype(np.float32),
    )


def cholesky(A):
    A[0, 0] = np.sqrt(A[0, 0])
    for i in range(1, A.shape[0]):
        for j in range(i):
            A[i, j] -= np.dot(A[i, :j], A[j, :j])
            A[i, j] /= A[j, j]
        A[i, i] -= np.dot(A[i, :i], A[i, :i])
        A[i, i] = np.sqrt(A[i, i])


def spd(rng):
    n = size(rng)
    b = rng.random((n, n))
    return (b @ b.T + n * np.eye(n),)


def correlation(M, float_n, data):
    mean = np.mean(data, axis=0)
    stddev = np.std(data, axis=0)
    stddev[stddev <= 0.1] = 1.0
    data -= mean
    data /= np.sqrt(float_n) * stddev
    corr = np.eye(M, dtype=data.dtype)
    for i in range(M - 1):
        corr[i + 1 : M, i] = corr[i, i + 1 : M] = data[:, i] @ data[:, i + 1 : M]
    return corr


def correlation_args(rng):
    n, m = size(rng, 8, 12), size(rng)
    return m, float(n), rng.random((n, m))


def covariance(M, float_n, data):
    mean = np.mean(data, axis=0)
    data -= mean
    cov = np.zeros((M, M), dtype=data.dtype)
    for i in range(M):
        cov[i:M, i] = cov[i, i:M] = data[:, i] @ data[:, i:M] / (float_n - 1.0)
    return cov


def deriche(alpha, imgIn):
    k = (
        (1.0 - np.exp(-alpha))
        * (1.0 - np.exp(-alpha))
        / (1.0 + alpha * np.exp(-alpha) - np.exp(2.0 * alpha))
    )
    a1 = a5 = k
    a2 = a6 = k * np.exp(-alpha) * (alpha - 1.0)
    a3 = a7 = k * np.exp(-alpha) * (alpha + 1.0)
    a4 = a8 = -k * np.exp(-2.0 * alpha)
    b1 = 2.0 ** (-alpha)
    b2 = -np.exp(-2.0 * alpha)
    c1 = c2 = 1

    y1 = np.empty_like(imgIn)
    y1[:, 0] = a1 * imgIn[:, 0]
    y1[:, 1] = a1 * imgIn[:, 1] + a2 * imgIn[:, 0] + b1 * y1[:, 0]
    for j in range(2, imgIn.shape[1]):
        y1[:, j] = a1 * imgIn[:, j] + a2 * imgIn[:, j - 1] + b1 * y1[:, j - 1] + b2 * y1[:, j - 2]

    y2 = np.empty_like(imgIn)
    y2[:, -1] = 0.0
    y2[:, -2] = a3 * imgIn[:, -1]
    for j in range(imgIn.shape[1] - 3, -1, -1):
        y2[:, j] = (
            a3 * imgIn[:, j + 1] + a4 * imgIn[:, j + 2] + b1 * y2[:, j + 1] + b2 * y2[:, j + 2]
        )
    imgOut = c1 * (y1 + y2)
    y1[0, :] = a5 * imgOut[0, :]
    y1[1, :] = a5 * imgOut[1, :] + a6 * imgOut[0, :] + b1 * y1[0, :]
    for i in range(2, imgIn.shape[0]):
        y1[i, :] = a5 * imgOut[i, :] + a6 * imgOut[i - 1, :] + b1 * y1[i - 1, :] + b2 * y1[i - 2, :]
    y2[-1, :] = 0.0
    y2[-2, :] = a7 * imgOut[-1, :]
    for i in range(imgIn.shape[0] - 3, -1, -1):
        y2[i, :] = (
            a7 * imgOut[i + 1, :] + a8 * imgOut[i + 2, :] + b1 * y2[i + 1, :] + b2 * y2[i + 2, :]
        )
    imgOut[:] = c2 * (y1 + y2)
    return imgOut


def deriche_args(rng):
    return 0.25, rng.random((size(rng), size(rng)))


def doitgen(NR, NQ, NP, A, C4):
    for r in range(NR):
        for q in range(NQ):
            tmp = A[r, q, :] @ C4
            A[r, q, :] = tmp
    A[:] = np.reshape(np.reshape(A, (NR, NQ, 1, NP)) @ C4, (NR, NQ, NP))


def doitgen_args(rng):
    nr, nq, np_ = size(rng, 3, 5), size(rng, 3, 5), size(rng, 3, 6)
    return nr, nq, np_, rng.random((nr, nq, np_)), rng.random((np_, np_))


def durbin(r):
    y = np.empty_like(r)
    alpha = -r[0]
    beta = 1.0
    y[0] = -r[0]
    for k in range(1, r.shape[0]):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return y


def durbin_args(rng):
    return (rng.random(size(rng)),)


def fdtd_2d(TMAX, ex, ey, hz, _fict_):
    for t in range(TMAX):
        ey[0, :] = _fict_[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def fdtd_args(rng):
    t, n, m = size(rng), size(rng), size(rng)
    return t, rng.random((n, m)), rng.random((n, m)), rng.random((n, m)), rng.random(t)


def floyd_warshall(path):
    for k in range(path.shape[0]):
        path[:] = np.minimum(path[:], np.add.outer(path[:, k], path[k, :]))


def floyd_args(rng):
    n = size(rng)
    return (rng.integers(1, 20, (n, n)).astype(np.int32),)


def gemver(alpha, beta, A, u1, v1, u2, v2, w, x, y, z):
    A += np.outer(u1, v1) + np.outer(u2, v2)
    x += beta * y @ A + z
    w += alpha * A @ x


def gemver_args(rng):
    n = size(rng)
    return (1.5, 1.2, rng.random((n, n)), *[rng.random(n) for _ in range(8)])


def gesummv(alpha, beta, A, B, x):
    n = len(x)
    y = np.zeros(n)
    for i in range(n):
        tmp = y[i] = 0.0
        for j in range(n):
            tmp = A[i, j] * x[j] + tmp
            y[i] = B[i, j] * x[j] + y[i]
        y[i] = alpha * tmp + beta * y[i]
    return y


def gesummv_args(rng):
    n = size(rng)
    return 1.5, 1.2, rng.random((n, n)), rng.random((n, n)), rng.random(n)


def gramschmidt(A):
    Q = np.zeros_like(A)
    R = np.zeros((A.shape[1], A.shape[1]), dtype=A.dtype)
    for k in range(A.shape[1]):
        nrm = np.dot(A[:, k], A[:, k])
        R[k, k] = np.sqrt(nrm)
        Q[:, k] = A[:, k] / R[k, k]
        for j in range(k + 1, A.shape[1]):
            R[k, j] = np.dot(Q[:, k], A[:, j])
            A[:, j] -= Q[:, k] * R[k, j]
    return Q, R


def gramschmidt_args(rng):
    return (rng.random((size(rng, 8, 10), size(rng))),)


def heat_3d(TSTEPS, A, B):
    for t in range(1, TSTEPS):
        for S, D in ((A, B), (B, A)):
            D[1:-1, 1:-1, 1:-1] = (
                0.125 * (S[2:, 1:-1, 1:-1] - 2.0 * S[1:-1, 1:-1, 1:-1] + S[:-2, 1:-1, 1:-1])
                + 0.125 * (S[1:-1, 2:, 1:-1] - 2.0 * S[1:-1, 1:-1, 1:-1] + S[1:-1, :-2, 1:-1])
                + 0.125 * (S[1:-1, 1:-1, 2:] - 2.0 * S[1:-1, 1:-1, 1:-1] + S[1:-1, 1:-1, :-2])
                + S[1:-1, 1:-1, 1:-1]
            )


def heat_args(rng):
    n = size(rng)
    return size(rng, 2, 6), rng.random((n, n, n)), rng.random((n, n, n))


def jacobi_1d(TSTEPS, A, B):
    for t in range(1, TSTEPS):
        B[1:-1] = 0.33333 * (A[:-2] + A[1:-1] + A[2:])
        A[1:-1] = 0.33333 * (B[:-2] + B[1:-1] + B[2:])


def jacobi_1d_args(rng):
    n = size(rng)
    return size(rng), rng.random(n), rng.random(n)


def jacobi_2d_scalar(TSTEPS, A, B):
    N = A.shape[0]
    for t in range(TSTEPS):
        for i in range(1, N - 1):
            for j in range(1, N - 1):
                B[i, j] = 0.2 * (A[i, j] + A[i, j - 1] + A[i, 1 + j] + A[1 + i, j] + A[i - 1, j])
        A, B = B, A
    return A


def jacobi_2d_args(rng):
    n = size(rng)
    return size(rng, 2, 5), rng.random((n, n)), rng.random((n, n))


PROGRAMS = [
    (adi, adi_args),
    (atax, atax_args),
    (bicg, bicg_args),
    (cholesky, spd),
    (correlation, correlation_args),
    (covariance, correlation_args),
    (deriche, deriche_args),
    (doitgen, doitgen_args),
    (durbin, durbin_args),
    (fdtd_2d, fdtd_args),
    (floyd_warshall, floyd_args),
    (gemver, gemver_args),
    (gesummv, gesummv_args),
    (gramschmidt, gramschmidt_args),
    (heat_3d, heat_args),
    (jacobi_1d, jacobi_1d_args),
    (jacobi_2d_scalar, jacobi_2d_args),
]
