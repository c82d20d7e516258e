"""Escape-time fractals with masks and loops, and histograms of several kinds."""

import numpy as np


def mandelbrot_mask(re, im, max_iter):
    """Escape times on a grid with boolean mask assignment."""
    c = re[np.newaxis, :] + 1j * im[:, np.newaxis]
    z = np.zeros_like(c)
    counts = np.zeros(c.shape, dtype=int)
    alive = np.ones(c.shape, dtype=bool)
    for k in range(max_iter):
        z[alive] = z[alive] ** 2 + c[alive]
        escaped = alive & (np.abs(z) > 2)
        counts[escaped] = k
        alive &= ~escaped
        if not alive.any():
            break
    counts[alive] = max_iter
    return counts


def mandelbrot_where(c, max_iter):
    """Escape times with np.where and no indexing by masks."""
    z = np.zeros(c.shape, dtype=np.complex128)
    n = np.zeros(c.shape, dtype=np.int32)
    for _ in range(max_iter):
        inside = z.real**2 + z.imag**2 <= 4.0
        z = np.where(inside, z * z + c, z)
        n = n + inside
    return n


def escape_time(cx, cy, max_iter):
    """Escape time of one point with real arithmetic, while and break."""
    x = y = 0.0
    n = 0
    while n < max_iter:
        x2, y2 = x * x, y * y
        if x2 + y2 > 4.0:
            break
        y = 2.0 * x * y + cy
        x = x2 - y2 + cx
        n += 1
    return n


def mandelbrot_scalar(width, height, max_iter):
    """Escape-time image filled pixel by pixel through a helper."""
    image = np.zeros((height, width), dtype=np.uint8)
    for j in range(height):
        for i in range(width):
            image[j, i] = escape_time(-2 + 3 * i / width, -1 + 2 * j / height, max_iter)
    return image


def mandelbrot_complex_scalar(points, max_iter):
    """Escape times of complex points with Python abs on NumPy complex scalars."""
    out = np.full(len(points), -1)
    for i, c in enumerate(points):
        z = 0j
        for n in range(max_iter):
            if abs(z) > 2:
                out[i] = n
                break
            z = z * z + c
    return out


def julia(z, c, max_iter):
    """Julia set iteration counts, overwriting the starting points z."""
    counts = np.zeros(z.shape, dtype=np.uint16)
    for _ in range(max_iter):
        live = np.abs(z) < 2
        counts[live] += 1
        z[live] = z[live] * z[live] + c
    return counts


def newton_fractal(z, tol, max_iter):
    """Which cube root of unity Newton's iteration reaches from each start."""
    roots = np.array([1, -0.5 + 0.75**0.5 * 1j, -0.5 - 0.75**0.5 * 1j])
    basin = np.full(z.shape, -1, dtype=np.int8)
    for _ in range(max_iter):
        z = z - (z**3 - 1) / (3 * z**2)
        for r in range(3):
            basin[(np.abs(z - roots[r]) < tol) & (basin < 0)] = r
        if (basin >= 0).all():
            return basin, True
    return basin, False


def burning_ship(cx, cy, max_iter):
    """Burning Ship escape counts on coordinate grids made by meshgrid."""
    gx, gy = np.meshgrid(cx, cy)
    x = np.zeros_like(gx)
    y = np.zeros_like(gy)
    count = np.zeros(gx.shape, dtype=np.int64)
    for _ in range(max_iter):
        x, y = np.minimum(x * x - y * y + gx, 10.0), np.minimum(np.abs(2 * x * y) + gy, 10.0)
        count += x * x + y * y < 4
    return count


def buddhabrot(points, bins, max_iter):
    """Accumulate the orbits of escaping points into a 2-d histogram."""
    hist = np.zeros((bins, bins), dtype=np.int64)
    orbit = np.zeros(max_iter, dtype=np.complex128)
    for c in points:
        z = 0j
        length = 0
        for _ in range(max_iter):
            z = z * z + c
            orbit[length] = z
            length += 1
            if abs(z) > 2:
                break
        else:
            continue
        for z in orbit[:length]:
            i = int((z.real + 2) / 4 * bins)
            j = int((z.imag + 2) / 4 * bins)
            if 0 <= i < bins and 0 <= j < bins:
                hist[i, j] += 1
    return hist


def logistic_bifurcation(rates, skip, keep):
    """Attractor samples of the logistic map for an array of growth rates."""
    x = np.full(rates.shape, 0.5)
    for _ in range(skip):
        x = rates * x * (1 - x)
    out = np.empty((keep, rates.size))
    for k in range(keep):
        x = rates * x * (1 - x)
        out[k] = x
    return out


def chaos_game(vertices, choices, start):
    """Sierpinski points by the chaos game with given vertex choices."""
    pts = np.empty((len(choices), 2))
    p = np.array(start, dtype=float)
    for i, c in enumerate(choices):
        p = (p + vertices[c]) / 2
        pts[i] = p
    return pts


def koch_curve(p0, p1, depth):
    """Koch curve points by repeated refinement of a complex polyline."""
    pts = np.array([p0, p1], dtype=complex)
    w = np.exp(1j * np.pi / 3)
    for _ in range(depth):
        a = pts[:-1]
        d = np.diff(pts) / 3
        new = np.stack([a, a + d, a + d + d * w, a + 2 * d], axis=1).ravel()
        pts = np.append(new, pts[-1])
    return pts


def histogram_loop(x, lo, hi, nbins):
    """Histogram by a loop, counting values outside the range separately."""
    h = np.zeros(nbins, dtype=int)
    outside = 0
    scale = nbins / (hi - lo)
    for v in x:
        if v < lo or v > hi:
            outside += 1
            continue
        b = int((v - lo) * scale)
        if b == nbins:
            b -= 1
        h[b] += 1
    return h, outside


def histogram_unchecked(bins, n):
    """Count bin numbers without a bounds check."""
    h = np.zeros(n, dtype=np.int32)
    for i in range(len(bins)):
        h[bins[i]] += 1
    return h


def histogram_numpy(x, bins):
    """np.histogram normalised to a density with bin centres."""
    counts, edges = np.histogram(x, bins=bins)
    centres = (edges[1:] + edges[:-1]) / 2
    widths = np.diff(edges)
    return counts / (counts.sum() * widths), centres


def weighted_bincount(labels, weights, n):
    """Per-label weighted mean through two np.bincount calls."""
    total = np.bincount(labels, weights=weights, minlength=n)
    count = np.bincount(labels, minlength=n)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def histogram_add_at(x, y, n):
    """2-d histogram by np.add.at on unit-square coordinates."""
    h = np.zeros((n, n))
    ix = np.clip((x * n).astype(int), 0, n - 1)
    iy = np.clip((y * n).astype(int), 0, n - 1)
    np.add.at(h, (ix, iy), 1)
    return h


def histogram_fancy_increment(h, idx):
    """Fancy-index increment in which duplicates count only once, in place."""
    h[idx] += 1


def histogram_searchsorted(x, edges):
    """Histogram over uneven edges by searchsorted, including overflow bins."""
    where = np.searchsorted(edges, x, side="right")
    return np.bincount(where, minlength=len(edges) + 1)


def histogram_equalize(image):
    """Histogram equalisation of an 8-bit image by a lookup table."""
    hist = np.bincount(image.ravel(), minlength=256)
    cdf = hist.cumsum()
    first = cdf[np.nonzero(cdf)[0][0]]
    lut = np.round((cdf - first) / max(image.size - first, 1) * 255)
    return np.clip(lut, 0, 255).astype(np.uint8)[image]


def joint_entropy(a, b, levels):
    """Entropies and mutual information of two label images."""
    joint = np.zeros((levels, levels))
    for i, j in zip(a.flat, b.flat):
        joint[i, j] += 1
    joint /= joint.sum()

    def entropy(p):
        p = p[p > 0]
        return -np.sum(p * np.log2(p))

    ha, hb = entropy(joint.sum(1)), entropy(joint.sum(0))
    hab = entropy(joint.ravel())
    return {"ha": ha, "hb": hb, "mutual": ha + hb - hab}


def mode_of(values):
    """Most frequent value of small non-negative ints, smallest on ties, as a Python int."""
    counts = np.bincount(values)
    return int(np.argmax(counts))


def complex_grid(rng, n):
    """Complex grid around the origin, slightly shifted."""
    x = np.linspace(-1.6, 1.4, n) + 0.01 * rng.random()
    return x[None, :] + 1j * x[:, None]


PROGRAMS = [
    (mandelbrot_mask, lambda rng: (np.linspace(-2, 1, 30), np.linspace(-1, 1, 20), 20)),
    (mandelbrot_mask, lambda rng: (np.linspace(1, 3, 8), np.linspace(1, 2, 6), 20)),
    (mandelbrot_where, lambda rng: (complex_grid(rng, 16), 15)),
    (mandelbrot_where, lambda rng: (complex_grid(rng, 16).astype(np.complex64), 10)),
    (mandelbrot_scalar, lambda rng: (11, 8, 10)),
    (escape_time, lambda rng: (-0.75, 0.1, 200)),
    (escape_time, lambda rng: (np.float64(0.3), np.float64(0.6), 200)),
    (mandelbrot_complex_scalar, lambda rng: (complex_grid(rng, 8).ravel(), 20)),
    (julia, lambda rng: (complex_grid(rng, 20), -0.8 + 0.156j, 15)),
    (newton_fractal, lambda rng: (complex_grid(rng, 12), 1e-4, 25)),
    (newton_fractal, lambda rng: (complex_grid(rng, 12), 1e-4, 3)),
    (burning_ship, lambda rng: (np.linspace(-2, 1.5, 20), np.linspace(-2, 1, 18), 12)),
    (buddhabrot, lambda rng: (complex_grid(rng, 8).ravel(), 10, 16)),
    (logistic_bifurcation, lambda rng: (np.linspace(2.5, 4, 40), 50, 10)),
    (
        chaos_game,
        lambda rng: (
            np.array([[0, 0], [1, 0], [0.5, 0.9]]),
            rng.integers(0, 3, 150),
            (0.1, 0.1),
        ),
    ),
    (
        chaos_game,
        lambda rng: (np.array([[0, 0], [1, 0], [0.5, 0.9]]), rng.integers(2, 5, 50), (0, 0)),
    ),
    (koch_curve, lambda rng: (0, 1, 4)),
    (histogram_loop, lambda rng: (rng.standard_normal(400), -2.0, 2.0, 16)),
    (histogram_loop, lambda rng: (rng.integers(0, 11, 200), 0, 10, 5)),
    (histogram_unchecked, lambda rng: (rng.integers(0, 20, 300), 20)),
    (histogram_unchecked, lambda rng: (rng.integers(-20, 20, 100), 20)),
    (histogram_unchecked, lambda rng: (rng.integers(0, 20, 300), 10)),
    (histogram_unchecked, lambda rng: (rng.integers(0, 20, 300, dtype=np.uint8), 20)),
    (histogram_unchecked, lambda rng: (rng.random(10), 10)),
    (histogram_numpy, lambda rng: (rng.standard_normal(500), 12)),
    (histogram_numpy, lambda rng: (rng.random(500, np.float32), np.array([0.0, 0.1, 0.5, 1.0]))),
    (weighted_bincount, lambda rng: (rng.integers(0, 6, 100), rng.random(100), 8)),
    (weighted_bincount, lambda rng: (rng.integers(-6, 6, 100), rng.random(100), 8)),
    (histogram_add_at, lambda rng: (rng.random(300), rng.random(300), 8)),
    (histogram_fancy_increment, lambda rng: (np.zeros(10, dtype=int), rng.integers(0, 10, 30))),
    (histogram_fancy_increment, lambda rng: (np.zeros(10), rng.integers(0, 14, 50))),
    (histogram_searchsorted, lambda rng: (rng.standard_normal(300), np.array([-1, -0.2, 0, 1.5]))),
    (histogram_equalize, lambda rng: (rng.integers(40, 120, (24, 24), dtype=np.uint8),)),
    (joint_entropy, lambda rng: (rng.integers(0, 4, (12, 12)), rng.integers(0, 4, (12, 12)), 4)),
    (mode_of, lambda rng: (rng.integers(0, 9, 60),)),
    (mode_of, lambda rng: (np.array([], dtype=int),)),
]
