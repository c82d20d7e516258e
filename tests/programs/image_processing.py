"""Image filters, segmentation and geometric transforms on small arrays."""

import numpy as np


def sobel(image):
    """Sobel gradient magnitude and direction by slices."""
    p = np.pad(image.astype(float), 1, mode="edge")
    gx = (p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:]) - (p[:-2, :-2] + 2 * p[1:-1, :-2] + p[2:, :-2])
    gy = (p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:]) - (p[:-2, :-2] + 2 * p[:-2, 1:-1] + p[:-2, 2:])
    return np.hypot(gx, gy), np.arctan2(gy, gx)


def sobel_loops(image):
    """Sobel magnitude clipped to bytes with explicit loops over the kernel."""
    kx = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    ky = kx.T
    h, w = image.shape
    out = np.zeros((h, w), dtype=np.uint8)
    for y in range(1, h - 1):
        for x in range(1, w - 1):
            window = image[y - 1 : y + 2, x - 1 : x + 2].astype(int)
            gx = (window * kx).sum()
            gy = (window * ky).sum()
            out[y, x] = min(255, int((gx * gx + gy * gy) ** 0.5))
    return out


def otsu_threshold(image):
    """Otsu's threshold by a scan over grey levels, as a Python int."""
    hist = np.bincount(image.ravel(), minlength=256).astype(float)
    total = image.size
    sum_all = np.dot(np.arange(256), hist)
    w0 = sum0 = 0.0
    best, threshold = -1.0, 0
    for t in range(256):
        w0 += hist[t]
        if w0 == 0:
            continue
        w1 = total - w0
        if w1 == 0:
            break
        sum0 += t * hist[t]
        between = w0 * w1 * (sum0 / w0 - (sum_all - sum0) / w1) ** 2
        if between > best:
            best, threshold = between, t
    return threshold


def otsu_vectorised(image):
    """Otsu's threshold and binary image from cumulative sums."""
    p = np.bincount(image.ravel(), minlength=256) / image.size
    omega = np.cumsum(p)
    mu = np.cumsum(p * np.arange(256))
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = (mu[-1] * omega - mu) ** 2 / (omega * (1 - omega))
    t = np.nanargmax(np.where(np.isfinite(sigma), sigma, -1))
    return t, image > t


def flood_fill(image, row, col, colour):
    """Flood fill in place with an explicit stack array; returns the pixel count."""
    old = image[row, col]
    if old == colour:
        return 0
    h, w = image.shape
    stack = np.empty((4 * h * w + 1, 2), dtype=np.int64)
    stack[0] = row, col
    top = 1
    filled = 0
    while top:
        top -= 1
        r, c = stack[top]
        if image[r, c] != old:
            continue
        image[r, c] = colour
        filled += 1
        for dr, dc in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            rr, cc = r + dr, c + dc
            if 0 <= rr < h and 0 <= cc < w and image[rr, cc] == old:
                stack[top] = rr, cc
                top += 1
    return filled


def connected_components(mask):
    """Component labels by propagating minimum labels until nothing changes."""
    h, w = mask.shape
    big = h * w + 1
    labels = np.where(mask, np.arange(1, h * w + 1).reshape(h, w), big)
    while True:
        old = labels.copy()
        labels[1:] = np.minimum(labels[1:], labels[:-1])
        labels[:-1] = np.minimum(labels[:-1], labels[1:])
        labels[:, 1:] = np.minimum(labels[:, 1:], labels[:, :-1])
        labels[:, :-1] = np.minimum(labels[:, :-1], labels[:, 1:])
        labels[~mask] = big
        if np.array_equal(old, labels):
            break
    labels[~mask] = 0
    return labels


def connected_components_scan(mask):
    """Two-pass component labelling with an equivalence array; returns labels and the count."""
    h, w = mask.shape
    labels = np.zeros((h, w), dtype=np.int32)
    parent = list(range(h * w + 1))
    count = 0
    for i in range(h):
        for j in range(w):
            if not mask[i, j]:
                continue
            up = labels[i - 1, j] if i > 0 else 0
            left = labels[i, j - 1] if j > 0 else 0
            if up == 0 and left == 0:
                count += 1
                labels[i, j] = count
            elif up and left:
                a, b = int(up), int(left)
                while parent[a] != a:
                    a = parent[a]
                while parent[b] != b:
                    b = parent[b]
                labels[i, j] = min(a, b)
                parent[max(a, b)] = min(a, b)
            else:
                labels[i, j] = max(up, left)
    roots = {}
    for i in range(h):
        for j in range(w):
            k = int(labels[i, j])
            if k:
                while parent[k] != k:
                    k = parent[k]
                labels[i, j] = roots.setdefault(k, len(roots) + 1)
    return labels, len(roots)


def bilinear_resize(image, new_h, new_w):
    """Bilinear resize by gathered corner arrays."""
    h, w = image.shape[:2]
    y = np.linspace(0, h - 1, new_h)
    x = np.linspace(0, w - 1, new_w)
    y0 = np.floor(y).astype(int)
    x0 = np.floor(x).astype(int)
    y1 = np.minimum(y0 + 1, h - 1)
    x1 = np.minimum(x0 + 1, w - 1)
    fy = (y - y0)[:, None]
    fx = (x - x0)[None, :]
    top = image[y0[:, None], x0] * (1 - fx) + image[y0[:, None], x1] * fx
    bottom = image[y1[:, None], x0] * (1 - fx) + image[y1[:, None], x1] * fx
    return top * (1 - fy) + bottom * fy


def bilinear_sample_loop(image, points):
    """Bilinear samples at fractional points, zero outside."""
    h, w = image.shape
    out = np.zeros(len(points), dtype=image.dtype)
    for i, (y, x) in enumerate(points):
        if y < 0 or x < 0 or y > h - 1 or x > w - 1:
            continue
        r, c = int(y), int(x)
        r2, c2 = min(r + 1, h - 1), min(c + 1, w - 1)
        dy, dx = y - r, x - c
        out[i] = (
            image[r, c] * (1 - dy) * (1 - dx)
            + image[r, c2] * (1 - dy) * dx
            + image[r2, c] * dy * (1 - dx)
            + image[r2, c2] * dy * dx
        )
    return out


def integral_image(image):
    """Summed-area table with a zero border."""
    s = np.zeros((image.shape[0] + 1, image.shape[1] + 1), dtype=np.int64)
    s[1:, 1:] = image.cumsum(axis=0).cumsum(axis=1)
    return s


def box_blur(image, radius):
    """Box mean through a summed-area table, clamped at the edges."""
    s = integral_image(image)
    h, w = image.shape
    rows = np.arange(h)
    cols = np.arange(w)
    r0, r1 = np.maximum(rows - radius, 0), np.minimum(rows + radius + 1, h)
    c0, c1 = np.maximum(cols - radius, 0), np.minimum(cols + radius + 1, w)
    area = np.outer(r1 - r0, c1 - c0)
    total = s[np.ix_(r1, c1)] - s[np.ix_(r0, c1)] - s[np.ix_(r1, c0)] + s[np.ix_(r0, c0)]
    return total / area


def gamma_correct(image, gamma):
    """Gamma correction of a byte image by a lookup table."""
    table = (np.power(np.arange(256) / 255.0, 1.0 / gamma) * 255 + 0.5).astype(np.uint8)
    return table[image]


def brightness_contrast(image, alpha, beta):
    """Scale and shift a byte image in place with saturation."""
    image[:] = np.clip(alpha * image.astype(np.int16) + beta, 0, 255)


def saturating_add(a, b):
    """Saturating sum of byte images by a widened intermediate."""
    total = a.astype(np.uint16) + b
    total[total > 255] = 255
    return total.astype(np.uint8)


def gaussian_blur(image, sigma):
    """Separable Gaussian blur with reflected padding."""
    radius = int(3 * sigma + 0.5)
    x = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (x / sigma) ** 2)
    kernel /= kernel.sum()
    p = np.pad(image, radius, mode="reflect")
    h, w = image.shape
    tmp = sum(k * p[i : i + h, :] for i, k in enumerate(kernel))
    return sum(k * tmp[:, i : i + w] for i, k in enumerate(kernel))


def bilateral_filter(image, radius, sigma_s, sigma_r):
    """Bilateral filter by shifting a padded image."""
    h, w = image.shape
    p = np.pad(image, radius, mode="symmetric")
    num = np.zeros((h, w))
    den = np.zeros((h, w))
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            q = p[radius + dy : radius + dy + h, radius + dx : radius + dx + w]
            weight = np.exp(
                -(dy**2 + dx**2) / (2 * sigma_s**2) - (q - image) ** 2 / (2 * sigma_r**2)
            )
            num += weight * q
            den += weight
    return num / den


def median_3x3(image):
    """3x3 median of interior pixels from a stack of shifted views."""
    h, w = image.shape
    stack = np.stack([image[i : h - 2 + i, j : w - 2 + j] for i in range(3) for j in range(3)])
    out = image.copy()
    out[1:-1, 1:-1] = np.median(stack, axis=0)
    return out


def erode(mask, iterations):
    """Binary erosion with a cross structuring element."""
    m = mask.copy()
    for _ in range(iterations):
        inner = m[1:-1, 1:-1] & m[:-2, 1:-1] & m[2:, 1:-1] & m[1:-1, :-2] & m[1:-1, 2:]
        m[:] = False
        m[1:-1, 1:-1] = inner
    return m


def distance_transform(mask):
    """City-block distance to the nearest background pixel by two passes."""
    h, w = mask.shape
    d = np.where(mask, h + w, 0)
    for i in range(h):
        for j in range(w):
            if i > 0:
                d[i, j] = min(d[i, j], d[i - 1, j] + 1)
            if j > 0:
                d[i, j] = min(d[i, j], d[i, j - 1] + 1)
    for i in range(h - 1, -1, -1):
        for j in range(w - 1, -1, -1):
            if i < h - 1:
                d[i, j] = min(d[i, j], d[i + 1, j] + 1)
            if j < w - 1:
                d[i, j] = min(d[i, j], d[i, j + 1] + 1)
    return d


def rgb_to_hsv(rgb):
    """Hue, saturation and value of float RGB pixels with masks per dominant channel."""
    mx = rgb.max(axis=-1)
    mn = rgb.min(axis=-1)
    diff = mx - mn
    h = np.zeros_like(mx)
    nz = diff > 0
    r, g, b = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    is_r = nz & (mx == r)
    is_g = nz & (mx == g) & ~is_r
    is_b = nz & ~is_r & ~is_g
    h[is_r] = ((g - b)[is_r] / diff[is_r]) % 6
    h[is_g] = (b - r)[is_g] / diff[is_g] + 2
    h[is_b] = (r - g)[is_b] / diff[is_b] + 4
    s = np.where(mx > 0, diff / np.where(mx > 0, mx, 1), 0)
    return np.stack([h / 6, s, mx], axis=-1)


def rgb_to_gray(image):
    """Luma of a byte RGB image, rounded."""
    return np.round(image @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


def floyd_steinberg(image):
    """Floyd-Steinberg dithering of a float image in place."""
    h, w = image.shape
    for y in range(h):
        for x in range(w):
            old = image[y, x]
            new = 1.0 if old >= 0.5 else 0.0
            image[y, x] = new
            err = old - new
            if x + 1 < w:
                image[y, x + 1] += err * 7 / 16
            if y + 1 < h:
                if x > 0:
                    image[y + 1, x - 1] += err * 3 / 16
                image[y + 1, x] += err * 5 / 16
                if x + 1 < w:
                    image[y + 1, x + 1] += err * 1 / 16


def hough_lines(edges, n_theta):
    """Hough accumulator for lines and its strongest cell."""
    theta = np.linspace(0, np.pi, n_theta, endpoint=False)
    cos_t, sin_t = np.cos(theta), np.sin(theta)
    diag = int(np.ceil(np.hypot(*edges.shape)))
    acc = np.zeros((2 * diag + 1, n_theta), dtype=int)
    ys, xs = np.nonzero(edges)
    for x, y in zip(xs, ys):
        rho = np.rint(x * cos_t + y * sin_t).astype(int) + diag
        acc[rho, np.arange(n_theta)] += 1
    best = np.unravel_index(acc.argmax(), acc.shape)
    return acc, (best[0] - diag, theta[best[1]])


def rotate_nearest(image, angle):
    """Rotate about the centre with nearest sampling and zero fill."""
    h, w = image.shape
    cy, cx = (h - 1) / 2, (w - 1) / 2
    yy, xx = np.mgrid[0:h, 0:w]
    c, s = np.cos(angle), np.sin(angle)
    sy = np.rint(c * (yy - cy) + s * (xx - cx) + cy).astype(int)
    sx = np.rint(-s * (yy - cy) + c * (xx - cx) + cx).astype(int)
    ok = (sy >= 0) & (sy < h) & (sx >= 0) & (sx < w)
    out = np.zeros_like(image)
    out[ok] = image[sy[ok], sx[ok]]
    return out


def template_match(image, template):
    """Best normalised sum of squared differences and its position."""
    th, tw = template.shape
    best = np.inf
    where = None
    for i in range(image.shape[0] - th + 1):
        for j in range(image.shape[1] - tw + 1):
            score = np.sum((image[i : i + th, j : j + tw] - template) ** 2)
            if score < best:
                best, where = score, (i, j)
    return best, where


def draw_line(canvas, x0, y0, x1, y1, value):
    """Bresenham line drawn into a canvas."""
    dx, dy = abs(x1 - x0), -abs(y1 - y0)
    sx = 1 if x0 < x1 else -1
    sy = 1 if y0 < y1 else -1
    err = dx + dy
    while True:
        canvas[y0, x0] = value
        if x0 == x1 and y0 == y1:
            break
        e2 = 2 * err
        if e2 >= dy:
            err += dy
            x0 += sx
        if e2 <= dx:
            err += dx
            y0 += sy


def alpha_blend(dst, src, alpha, top, left):
    """Blend a patch into a region of an image in place; a bad position raises."""
    h, w = src.shape[:2]
    region = dst[top : top + h, left : left + w]
    region *= 1 - alpha
    region += alpha * src


def psnr(a, b):
    """Peak signal-to-noise ratio of byte images, infinite when equal."""
    if a.shape != b.shape:
        raise ValueError(f"shape mismatch: {a.shape} vs {b.shape}")
    mse = np.mean((a.astype(float) - b.astype(float)) ** 2)
    if mse == 0:
        return float("inf")
    return 10 * np.log10(255**2 / mse)


def gray(rng, h, w):
    """Random byte image."""
    return rng.integers(0, 256, (h, w), dtype=np.uint8)


PROGRAMS = [
    (sobel, lambda rng: (gray(rng, 20, 24),)),
    (sobel, lambda rng: (rng.random((16, 16), np.float32),)),
    (sobel_loops, lambda rng: (gray(rng, 12, 12),)),
    (otsu_threshold, lambda rng: (gray(rng, 20, 20),)),
    (otsu_threshold, lambda rng: (np.full((4, 4), 7, dtype=np.uint8),)),
    (otsu_vectorised, lambda rng: (gray(rng, 20, 20) // 2 + 40,)),
    (flood_fill, lambda rng: ((rng.random((12, 12)) < 0.3).astype(int), 5, 5, 9)),
    (flood_fill, lambda rng: (np.eye(8, dtype=np.uint8), 2, 5, 3)),
    (flood_fill, lambda rng: (np.zeros((5, 5), dtype=np.uint8), 2, 2, 0)),
    (flood_fill, lambda rng: (np.zeros((5, 5), dtype=np.uint8), 7, 2, 1)),
    (connected_components, lambda rng: (rng.random((14, 14)) < 0.55,)),
    (connected_components_scan, lambda rng: (rng.random((10, 12)) < 0.55,)),
    (bilinear_resize, lambda rng: (rng.random((12, 10)), 20, 17)),
    (bilinear_resize, lambda rng: (gray(rng, 12, 10), 7, 5)),
    (bilinear_sample_loop, lambda rng: (rng.random((10, 12)), rng.random((30, 2)) * 14 - 1)),
    (integral_image, lambda rng: (gray(rng, 15, 18),)),
    (box_blur, lambda rng: (gray(rng, 15, 18), 2)),
    (gamma_correct, lambda rng: (gray(rng, 16, 16), 2.2)),
    (gamma_correct, lambda rng: (rng.random((4, 4)), 2.2)),
    (brightness_contrast, lambda rng: (gray(rng, 16, 16), 1.5, -30)),
    (saturating_add, lambda rng: (gray(rng, 16, 16), gray(rng, 16, 16))),
    (saturating_add, lambda rng: (gray(rng, 16, 16), gray(rng, 16, 15))),
    (gaussian_blur, lambda rng: (rng.random((16, 18)), 1.2)),
    (bilateral_filter, lambda rng: (rng.random((14, 12)), 2, 1.5, 0.2)),
    (median_3x3, lambda rng: (rng.random((12, 14)),)),
    (median_3x3, lambda rng: (gray(rng, 12, 14),)),
    (erode, lambda rng: (rng.random((16, 16)) < 0.9, 2)),
    (distance_transform, lambda rng: (rng.random((12, 13)) < 0.8,)),
    (rgb_to_hsv, lambda rng: (rng.random((8, 9, 3)),)),
    (rgb_to_hsv, lambda rng: (np.round(rng.random((8, 9, 3)) * 2) / 2,)),
    (rgb_to_gray, lambda rng: (rng.integers(0, 256, (8, 9, 3), dtype=np.uint8),)),
    (rgb_to_gray, lambda rng: (rng.integers(0, 256, (8, 9, 4), dtype=np.uint8),)),
    (floyd_steinberg, lambda rng: (rng.random((12, 14)),)),
    (hough_lines, lambda rng: (np.eye(16, dtype=bool) | (rng.random((16, 16)) < 0.05), 24)),
    (rotate_nearest, lambda rng: (gray(rng, 15, 15), 0.5)),
    (template_match, lambda rng: (rng.random((12, 12)), rng.random((4, 3)))),
    (template_match, lambda rng: (rng.random((3, 3)), rng.random((4, 3)))),
    (draw_line, lambda rng: (np.zeros((12, 16), dtype=np.uint8), 1, 2, 14, 9, 255)),
    (draw_line, lambda rng: (np.zeros((12, 16)), 3, 11, 12, -1, 1.5)),
    (draw_line, lambda rng: (np.zeros((6, 6)), 0, 0, 9, 4, 1)),
    (alpha_blend, lambda rng: (rng.random((10, 10, 3)), rng.random((4, 5, 3)), 0.4, 3, 2)),
    (alpha_blend, lambda rng: (rng.random((10, 10, 3)), rng.random((4, 5, 3)), 0.4, 8, 2)),
    (psnr, lambda rng: (gray(rng, 8, 8), gray(rng, 8, 8))),
    (psnr, lambda rng: (np.zeros((8, 8), np.uint8), np.zeros((8, 8), np.uint8))),
    (psnr, lambda rng: (gray(rng, 8, 8), gray(rng, 8, 7))),
]
