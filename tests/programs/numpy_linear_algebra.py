"""Programs on np.linalg, einsum, np.fft, interpolation, cumulative operations and views."""

import numpy as np


def solve_refine(a, b, rounds):
    """Solve in float32 and refine the residual in float64."""
    a32 = a.astype(np.float32)
    x = np.linalg.solve(a32, b.astype(np.float32)).astype(np.float64)
    for _ in range(rounds):
        r = b - a @ x
        x += np.linalg.solve(a32, r.astype(np.float32))
    return x, np.linalg.norm(b - a @ x) < 1e-8


def inverse_or_pinv(a):
    """Inverse, or the pseudo-inverse when the matrix is singular."""
    try:
        return np.linalg.inv(a), True
    except np.linalg.LinAlgError:
        return np.linalg.pinv(a), False


def principal_components(x, k):
    """Projection to leading principal components with a sign convention."""
    c = x - x.mean(axis=0)
    w, v = np.linalg.eigh(c.T @ c / (len(x) - 1))
    order = np.argsort(w)[::-1][:k]
    v = v[:, order]
    signs = np.sign(v[np.abs(v).argmax(axis=0), np.arange(k)])
    v = v * signs
    return c @ v, w[order] / w.sum()


def low_rank(a, k):
    """Rank-k approximation by the SVD and its relative error."""
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    approx = (u[:, :k] * s[:k]) @ vt[:k]
    return approx, np.linalg.norm(a - approx) / np.linalg.norm(a)


def least_squares_qr(a, b):
    """Least squares through QR with a consistency check against lstsq."""
    q, r = np.linalg.qr(a)
    x = np.linalg.solve(r, q.T @ b)
    ref = np.linalg.lstsq(a, b, rcond=None)[0]
    assert np.allclose(x, ref)
    return x, float(np.sum((a @ x - b) ** 2))


def matrix_norms(a):
    """Several norms and the condition number of a matrix in a dict."""
    return {
        "fro": np.linalg.norm(a),
        "one": np.linalg.norm(a, 1),
        "inf": np.linalg.norm(a, np.inf),
        "two": np.linalg.norm(a, 2),
        "rows": np.linalg.norm(a, axis=1),
        "cond": np.linalg.cond(a),
        "rank": np.linalg.matrix_rank(a),
    }


def cramers_rule(a, b):
    """Solution by ratios of determinants."""
    d = np.linalg.det(a)
    if abs(d) < 1e-12:
        raise np.linalg.LinAlgError("Singular matrix")
    x = np.empty(len(b))
    for i in range(len(b)):
        m = a.copy()
        m[:, i] = b
        x[i] = np.linalg.det(m) / d
    return x


def mahalanobis(x, mean, cov):
    """Mahalanobis distances through a Cholesky factor."""
    low = np.linalg.cholesky(cov)
    z = np.linalg.solve(low, (x - mean).T)
    return np.sqrt(np.sum(z**2, axis=0))


def matrix_exponential(a, order):
    """Matrix exponential by scaling, a Taylor series and squaring."""
    norm = np.linalg.norm(a, 1)
    s = max(0, int(np.ceil(np.log2(norm))) + 1) if norm > 0 else 0
    m = a / 2**s
    term = np.eye(len(a))
    total = term.copy()
    for k in range(1, order + 1):
        term = term @ m / k
        total += term
    for _ in range(s):
        total = total @ total
    return total


def markov_stationary(p):
    """Stationary distribution from the left eigenproblem as a linear system."""
    if not np.allclose(p.sum(axis=1), 1):
        raise ValueError("rows must sum to one")
    n = p.shape[0]
    a = np.vstack([p.T - np.eye(n), np.ones(n)])
    b = np.zeros(n + 1)
    b[-1] = 1
    return np.linalg.lstsq(a, b, rcond=None)[0]


def einsum_products(a, b, v):
    """A tuple of einsum contractions."""
    return (
        np.einsum("ij,jk->ik", a, b),
        np.einsum("ij,j->i", a, v),
        np.einsum("ii", a @ a.T),
        np.einsum("i,j->ij", v, v),
        np.einsum("ij->ji", a),
        np.einsum("ij,ij->", a, a),
    )


def batched_bilinear(x, w, y):
    """Batched bilinear form by einsum and by matmul, checked equal."""
    e = np.einsum("bi,ij,bj->b", x, w, y)
    m = (x[:, None, :] @ w @ y[:, :, None])[:, 0, 0]
    assert np.allclose(e, m)
    return e


def tensor_contract(t, m):
    """Mode products of a 3-d tensor with a matrix along each axis."""
    a = np.tensordot(m, t, axes=(1, 0))
    b = np.moveaxis(np.tensordot(t, m, axes=(1, 1)), -1, 1)
    c = t @ m.T
    return a, b, c


def kronecker_sum(a, b):
    """Kronecker sum and its trace."""
    k = np.kron(a, np.eye(len(b))) + np.kron(np.eye(len(a)), b)
    return k, np.trace(k)


def block_matrix(a, b):
    """Assemble and take apart a block matrix with np.block and np.split."""
    m = np.block([[a, np.zeros((len(a), len(b)))], [np.ones((len(b), len(a))), b]])
    top, bottom = np.split(m, [len(a)])
    return m, top.sum(axis=0), bottom.max(axis=1)


def fft_convolve(x, h):
    """Linear convolution by zero-padded real FFT, agreeing with np.convolve."""
    n = len(x) + len(h) - 1
    size = 1
    while size < n:
        size *= 2
    y = np.fft.irfft(np.fft.rfft(x, size) * np.fft.rfft(h, size), size)[:n]
    assert np.allclose(y, np.convolve(x, h))
    return y


def fft_bandpass_2d(image, low, high):
    """Radial band-pass of an image in the 2-d Fourier domain."""
    f = np.fft.fftshift(np.fft.fft2(image))
    h, w = image.shape
    yy, xx = np.ogrid[:h, :w]
    r = np.sqrt((yy - h // 2) ** 2 + (xx - w // 2) ** 2)
    f[(r < low) | (r > high)] = 0
    return np.fft.ifft2(np.fft.ifftshift(f)).real


def spectral_derivative(u, length):
    """Derivative of a periodic function by FFT."""
    n = u.size
    k = 2 * np.pi * np.fft.fftfreq(n, d=length / n)
    return np.real(np.fft.ifft(1j * k * np.fft.fft(u)))


def dominant_frequency(x, rate):
    """Strongest nonzero frequency and its amplitude."""
    spec = np.abs(np.fft.rfft(x - np.mean(x)))
    k = int(np.argmax(spec))
    return k * rate / len(x), 2 * spec[k] / len(x)


def interpolate_table(xs, table_x, table_y):
    """Piecewise-linear lookup with clamped ends and its slopes."""
    y = np.interp(xs, table_x, table_y)
    i = np.clip(np.searchsorted(table_x, xs) - 1, 0, len(table_x) - 2)
    slope = (table_y[i + 1] - table_y[i]) / (table_x[i + 1] - table_x[i])
    return y, slope


def cubic_spline(x, y, xq):
    """Natural cubic spline evaluated at query points."""
    n = len(x)
    h = np.diff(x)
    a = np.zeros((n, n))
    rhs = np.zeros(n)
    a[0, 0] = a[-1, -1] = 1
    for i in range(1, n - 1):
        a[i, i - 1 : i + 2] = h[i - 1], 2 * (h[i - 1] + h[i]), h[i]
        rhs[i] = 3 * ((y[i + 1] - y[i]) / h[i] - (y[i] - y[i - 1]) / h[i - 1])
    c = np.linalg.solve(a, rhs)
    k = np.clip(np.searchsorted(x, xq, side="right") - 1, 0, n - 2)
    b = np.diff(y)[k] / h[k] - h[k] * (2 * c[k] + c[k + 1]) / 3
    d = (c[k + 1] - c[k]) / (3 * h[k])
    t = xq - x[k]
    return y[k] + t * (b + t * (c[k] + t * d))


def lagrange_polynomial(x, y, t):
    """Lagrange interpolation through nodes at every t."""
    total = np.zeros_like(t)
    for i in range(len(x)):
        term = np.full_like(t, y[i])
        for j in range(len(x)):
            if i != j:
                term *= (t - x[j]) / (x[i] - x[j])
        total += term
    return total


def simpson_and_trapezoid(f_values, h):
    """Simpson and trapezoid integrals of samples; the count must be odd."""
    n = len(f_values)
    assert n % 2 == 1, "odd number of samples expected"
    trap = h * (f_values.sum() - 0.5 * (f_values[0] + f_values[-1]))
    simp = (
        h
        / 3
        * (f_values[0] + 4 * f_values[1:-1:2].sum() + 2 * f_values[2:-1:2].sum() + f_values[-1])
    )
    return simp, trap


def romberg(levels):
    """Romberg integration of exp(-x^2) on [0, 1] through a lambda."""
    f = lambda x: np.exp(-(x**2))  # noqa: E731
    r = np.zeros((levels, levels))
    h = 1.0
    r[0, 0] = 0.5 * (f(0.0) + f(1.0))
    for i in range(1, levels):
        h /= 2
        mids = np.arange(1, 2**i, 2) * h
        r[i, 0] = 0.5 * r[i - 1, 0] + h * f(mids).sum()
        for j in range(1, i + 1):
            r[i, j] = r[i, j - 1] + (r[i, j - 1] - r[i - 1, j - 1]) / (4**j - 1)
    return r


def newton_system(x0, tol, max_iter):
    """Newton's method for a two-equation system with an analytic Jacobian."""
    x = np.array(x0, dtype=float)
    for k in range(max_iter):
        f = np.array([x[0] ** 2 + x[1] ** 2 - 4, x[0] * x[1] - 1])
        if np.linalg.norm(f) < tol:
            return x, k
        jac = np.array([[2 * x[0], 2 * x[1]], [x[1], x[0]]])
        x -= np.linalg.solve(jac, f)
    raise RuntimeError("no convergence")


def gradient_descent_rosenbrock(start, lr, steps):
    """Gradient descent with backtracking on the Rosenbrock function."""

    def f(p):
        return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2

    def grad(p):
        g = np.empty(2)
        g[0] = -2 * (1 - p[0]) - 400 * p[0] * (p[1] - p[0] ** 2)
        g[1] = 200 * (p[1] - p[0] ** 2)
        return g

    p = start.copy()
    evals = 0
    for _ in range(steps):
        g = grad(p)
        step = lr
        while f(p - step * g) > f(p) - 0.5 * step * (g @ g):
            step *= 0.5
            evals += 1
            if step < 1e-12:
                return p, evals
        p = p - step * g
    return p, evals


def cumulative_summary(x):
    """Cumulative sum, product, extrema and differences along the last axis."""
    return (
        np.cumsum(x, axis=-1),
        np.cumprod(x, axis=-1),
        np.maximum.accumulate(x, axis=-1),
        np.minimum.accumulate(x, axis=-1),
        np.diff(x, n=2, axis=-1),
    )


def segment_sums(x, starts):
    """Segment sums by reduceat and by cumulative differences."""
    a = np.add.reduceat(x, starts)
    c = np.concatenate([[0], np.cumsum(x)])
    b = c[np.append(starts[1:], len(x))] - c[starts]
    return a, b


def views_alias(a):
    """Write through transposed, strided and reshaped views of the argument."""
    t = a.T
    t[0] += 10
    a[::2, ::-1][0] = -1
    flat = a.reshape(-1)
    flat[3::5] *= 2
    d = np.einsum("ii->i", a[: min(a.shape), : min(a.shape)])
    d[:] = 0
    return t, flat.base is a


def overlapping_writes(a):
    """Slice assignments whose source overlaps the target."""
    a[1:] = a[:-1]
    a[:-2] += a[2:]
    a[::-1] = a
    return a


def broadcasting_mix(a, b, c):
    """Broadcast a matrix, a column and a scalar with mixed dtypes."""
    out = a * b[:, None] + c
    out = np.where(out > out.mean(), out, -out)
    return out.astype(np.result_type(a, b)), out.sum(axis=(0, 1), keepdims=True)


def type_promotion(i8, u8, f32):
    """Arithmetic that promotes small dtypes against Python scalars."""
    return i8 + u8, u8 + 1, i8 * 2.5, f32 * 2, f32 + i8, u8 / u8.dtype.type(2), i8 // 3, -f32


def select_regions(x):
    """Piecewise values by np.select, np.piecewise-like masks and np.clip."""
    y = np.select([x < -1, x < 0, x < 1], [x**2, -x, np.sqrt(np.abs(x))], default=np.nan)
    z = x.copy()
    z[(x > -0.5) & (x < 0.5)] = 0
    z[z < -1] = -1
    return y, z, np.clip(x, -0.3, None)


def index_gymnastics(a, rows, cols):
    """Fancy, boolean, newaxis, ellipsis and take-along-axis reads of a matrix."""
    picked = a[rows[:, None], cols]
    order = np.argsort(a, axis=1)
    return (
        picked,
        a[rows, cols],
        a[..., -1],
        a[a > a.mean()],
        np.take_along_axis(a, order, axis=1)[:, :2],
        a[:, np.newaxis, ::-2].shape,
        np.take(a, cols, axis=1),
    )


def sliding_blocks(a, size):
    """Means of non-overlapping square blocks by reshape; sizes that do not divide raise."""
    h, w = a.shape
    return a.reshape(h // size, size, w // size, size).mean(axis=(1, 3))


def hilbert_condition(n):
    """Hilbert matrix, its determinant's logarithm and sign."""
    i = np.arange(1, n + 1)
    h = 1 / (i[:, None] + i - 1)
    sign, logdet = np.linalg.slogdet(h)
    return h, sign, logdet


def outer_tables(n):
    """Multiplication, power and comparison tables by ufunc outer."""
    i = np.arange(1, n + 1)
    return np.multiply.outer(i, i), np.power.outer(i, np.arange(4)), np.less.outer(i, i)


def procrustes(a, b):
    """Orthogonal matrix and scale that best map one point set to another."""
    u, s, vt = np.linalg.svd(a.T @ b)
    r = u @ vt
    scale = s.sum() / np.sum(a**2)
    return scale * a @ r


def well(rng, n):
    """Random well-conditioned matrix."""
    return rng.standard_normal((n, n)) + n * np.eye(n)


PROGRAMS = [
    (solve_refine, lambda rng: (well(rng, 12), rng.random(12), 3)),
    (solve_refine, lambda rng: (np.zeros((3, 3)), rng.random(3), 3)),
    (inverse_or_pinv, lambda rng: (well(rng, 6),)),
    (inverse_or_pinv, lambda rng: (np.zeros((3, 3)),)),
    (inverse_or_pinv, lambda rng: (np.zeros((3, 4)),)),
    (principal_components, lambda rng: (rng.standard_normal((40, 5)) * np.arange(1, 6), 2)),
    (low_rank, lambda rng: (rng.random((10, 8)), 3)),
    (least_squares_qr, lambda rng: (rng.random((20, 4)), rng.random(20))),
    (matrix_norms, lambda rng: (rng.random((6, 6)),)),
    (cramers_rule, lambda rng: (well(rng, 4), rng.random(4))),
    (cramers_rule, lambda rng: (np.ones((3, 3)), rng.random(3))),
    (
        mahalanobis,
        lambda rng: (rng.random((20, 3)), np.zeros(3), np.eye(3) + 0.1 * np.ones((3, 3))),
    ),
    (mahalanobis, lambda rng: (rng.random((20, 3)), np.zeros(3), -np.eye(3))),
    (matrix_exponential, lambda rng: (rng.standard_normal((5, 5)), 12)),
    (matrix_exponential, lambda rng: (np.zeros((2, 2)), 5)),
    (
        markov_stationary,
        lambda rng: (np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]]),),
    ),
    (markov_stationary, lambda rng: (rng.random((4, 4)),)),
    (einsum_products, lambda rng: (rng.random((5, 6)), rng.random((6, 4)), rng.random(6))),
    (einsum_products, lambda rng: (rng.random((5, 6)), rng.random((5, 4)), rng.random(6))),
    (batched_bilinear, lambda rng: (rng.random((8, 4)), rng.random((4, 5)), rng.random((8, 5)))),
    (tensor_contract, lambda rng: (rng.random((4, 4, 4)), rng.random((3, 4)))),
    (kronecker_sum, lambda rng: (rng.random((3, 3)), rng.random((4, 4)))),
    (block_matrix, lambda rng: (rng.random((3, 3)), rng.random((4, 4)))),
    (fft_convolve, lambda rng: (rng.random(50), rng.random(13))),
    (fft_bandpass_2d, lambda rng: (rng.random((16, 18)), 2, 6)),
    (spectral_derivative, lambda rng: (np.sin(2 * np.pi * np.arange(32) / 32), 1.0)),
    (dominant_frequency, lambda rng: (np.sin(np.arange(128) * 0.6) + rng.random(128), 100)),
    (
        interpolate_table,
        lambda rng: (rng.random(30) * 12 - 1, np.arange(11.0), rng.random(11)),
    ),
    (
        cubic_spline,
        lambda rng: (np.arange(10.0), rng.random(10), np.linspace(-0.5, 9.5, 40)),
    ),
    (lagrange_polynomial, lambda rng: (np.arange(6.0), rng.random(6), np.linspace(0, 5, 20))),
    (simpson_and_trapezoid, lambda rng: (rng.random(41), 0.025)),
    (simpson_and_trapezoid, lambda rng: (rng.random(40), 0.025)),
    (romberg, lambda rng: (6,)),
    (newton_system, lambda rng: ((2.0, 0.3), 1e-10, 20)),
    (newton_system, lambda rng: ((1.0, 1.0), 1e-10, 20)),
    (newton_system, lambda rng: ((2.0, 0.3), 0.0, 3)),
    (gradient_descent_rosenbrock, lambda rng: (np.array([-1.2, 1.0]), 1.0, 25)),
    (cumulative_summary, lambda rng: (rng.random((4, 8)),)),
    (cumulative_summary, lambda rng: (rng.integers(-3, 4, (4, 8), dtype=np.int8),)),
    (segment_sums, lambda rng: (rng.random(40), np.array([0, 5, 13, 30]))),
    (segment_sums, lambda rng: (rng.random(40), np.array([0, 5, 13, 50]))),
    (views_alias, lambda rng: (np.arange(24.0).reshape(4, 6),)),
    (views_alias, lambda rng: (np.arange(24).reshape(6, 4),)),
    (overlapping_writes, lambda rng: (np.arange(12),)),
    (broadcasting_mix, lambda rng: (rng.random((4, 5)), rng.integers(0, 5, 4), 2)),
    (broadcasting_mix, lambda rng: (rng.integers(0, 9, (4, 5)), rng.integers(0, 5, 4), 0.5)),
    (broadcasting_mix, lambda rng: (rng.random((4, 5)), rng.integers(0, 5, 5), 2)),
    (
        type_promotion,
        lambda rng: (
            rng.integers(-9, 9, 10, dtype=np.int8),
            rng.integers(0, 255, 10, dtype=np.uint8),
            rng.random(10, np.float32),
        ),
    ),
    (select_regions, lambda rng: (np.linspace(-2, 2, 41),)),
    (
        index_gymnastics,
        lambda rng: (rng.random((6, 7)), np.array([0, 2, -1]), np.array([1, -1, 3])),
    ),
    (
        index_gymnastics,
        lambda rng: (rng.random((6, 7)), np.array([0, 2, -1]), np.array([1, -1])),
    ),
    (sliding_blocks, lambda rng: (rng.random((8, 12)), 4)),
    (sliding_blocks, lambda rng: (rng.random((8, 11)), 4)),
    (hilbert_condition, lambda rng: (6,)),
    (outer_tables, lambda rng: (9,)),
    (procrustes, lambda rng: (rng.standard_normal((12, 3)), rng.standard_normal((12, 3)))),
]
