"""Computational geometry in two and three dimensions."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Box:
    """Axis-aligned box from its corner arrays."""

    lo: np.ndarray
    hi: np.ndarray


def point_in_polygon(px, py, poly):
    """Even-odd test of one point against polygon vertices."""
    inside = False
    j = len(poly) - 1
    for i in range(len(poly)):
        xi, yi = poly[i]
        xj, yj = poly[j]
        if (yi > py) != (yj > py) and px < (xj - xi) * (py - yi) / (yj - yi) + xi:
            inside = not inside
        j = i
    return inside


def points_in_polygon(points, poly):
    """Even-odd test of many points, one edge at a time."""
    x, y = points[:, 0], points[:, 1]
    inside = np.zeros(len(points), dtype=bool)
    for (x1, y1), (x2, y2) in zip(poly, np.roll(poly, -1, axis=0)):
        if y1 == y2:
            continue
        crosses = (y1 > y) != (y2 > y)
        inside ^= crosses & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside


def convex_hull(points):
    """Andrew's monotone chain with a preallocated hull array."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    p = points[order]
    n = len(p)
    if n < 3:
        return p
    hull = np.empty((2 * n, 2))
    k = 0

    def cross(o, a, b):
        return (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0])

    for i in range(n):
        while k >= 2 and cross(hull[k - 2], hull[k - 1], p[i]) <= 0:
            k -= 1
        hull[k] = p[i]
        k += 1
    lower = k + 1
    for i in range(n - 2, -1, -1):
        while k >= lower and cross(hull[k - 2], hull[k - 1], p[i]) <= 0:
            k -= 1
        hull[k] = p[i]
        k += 1
    return hull[: k - 1]


def polygon_area_centroid(poly):
    """Signed area and centroid by the shoelace formula."""
    x, y = poly.T
    xn, yn = np.roll(x, -1), np.roll(y, -1)
    c = x * yn - xn * y
    area = c.sum() / 2
    if area == 0:
        raise ValueError("degenerate polygon")
    return area, np.array([np.sum((x + xn) * c), np.sum((y + yn) * c)]) / (6 * area)


def distance_matrix_loops(a, b):
    """Euclidean distances by three loops."""
    out = np.empty((a.shape[0], b.shape[0]))
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            s = 0.0
            for k in range(a.shape[1]):
                s += (a[i, k] - b[j, k]) ** 2
            out[i, j] = math.sqrt(s)
    return out


def distance_matrix_broadcast(a, b):
    """Euclidean distances by broadcasting."""
    return np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2))


def distance_matrix_gram(a, b):
    """Euclidean distances from inner products, clamped at zero."""
    sq = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(np.maximum(sq, 0))


def closest_pair(points):
    """Smallest distance between two points and their indices."""
    best = float("inf")
    pair = (-1, -1)
    for i in range(len(points) - 1):
        d = np.hypot(points[i + 1 :, 0] - points[i, 0], points[i + 1 :, 1] - points[i, 1])
        j = int(d.argmin())
        if d[j] < best:
            best = d[j]
            pair = (i, i + 1 + j)
    return best, pair


def rotation_2d(points, angle, centre):
    """Rotate points about a centre."""
    c, s = math.cos(angle), math.sin(angle)
    r = np.array([[c, -s], [s, c]])
    return (points - centre) @ r.T + centre


def euler_rotation(roll, pitch, yaw):
    """Rotation matrix from three angles."""
    cr, sr = np.cos(roll), np.sin(roll)
    cp, sp = np.cos(pitch), np.sin(pitch)
    cy, sy = np.cos(yaw), np.sin(yaw)
    rx = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    ry = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    rz = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return rz @ ry @ rx


def rodrigues(vectors, axis, angle):
    """Rotate vectors about an axis by Rodrigues' formula."""
    k = axis / np.linalg.norm(axis)
    c, s = np.cos(angle), np.sin(angle)
    return vectors * c + np.cross(k, vectors) * s + np.outer(vectors @ k, k) * (1 - c)


def quaternion_rotate(q, v):
    """Rotate a vector by a quaternion after normalising the quaternion in place."""
    q /= np.sqrt(np.sum(q * q))
    w, x, y, z = q
    u = np.array([x, y, z])
    return 2 * np.dot(u, v) * u + (w * w - np.dot(u, u)) * v + 2 * w * np.cross(u, v)


def slerp(q0, q1, t):
    """Spherical interpolation of unit quaternions along the shorter arc."""
    dot = float(np.dot(q0, q1))
    if dot < 0:
        q1, dot = -q1, -dot
    if dot > 0.9995:
        out = q0 + t * (q1 - q0)
        return out / np.linalg.norm(out)
    theta = math.acos(dot)
    return (math.sin((1 - t) * theta) * q0 + math.sin(t * theta) * q1) / math.sin(theta)


def segment_intersection(p1, p2, p3, p4):
    """Intersection point of two segments, or None."""
    d1, d2 = p2 - p1, p4 - p3
    denom = d1[0] * d2[1] - d1[1] * d2[0]
    if denom == 0:
        return None
    t = ((p3[0] - p1[0]) * d2[1] - (p3[1] - p1[1]) * d2[0]) / denom
    u = ((p3[0] - p1[0]) * d1[1] - (p3[1] - p1[1]) * d1[0]) / denom
    if 0 <= t <= 1 and 0 <= u <= 1:
        return p1 + t * d1
    return None


def ray_triangles(origin, direction, triangles):
    """Nearest ray-triangle hit by Moeller-Trumbore over many triangles."""
    v0, v1, v2 = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    e1, e2 = v1 - v0, v2 - v0
    p = np.cross(direction, e2)
    det = np.einsum("ij,ij->i", e1, p)
    ok = np.abs(det) > 1e-12
    inv = np.where(ok, 1 / np.where(ok, det, 1), 0)
    s = origin - v0
    u = np.einsum("ij,ij->i", s, p) * inv
    q = np.cross(s, e1)
    v = (q @ direction) * inv
    t = np.einsum("ij,ij->i", e2, q) * inv
    hit = ok & (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0)
    if not hit.any():
        return -1, np.inf
    t = np.where(hit, t, np.inf)
    k = int(np.argmin(t))
    return k, t[k]


def ray_sphere_render(width, height, centre, radius):
    """Lambert-shaded sphere image by one ray per pixel in loops."""
    image = np.zeros((height, width))
    light = np.array([1.0, 1.0, -1.0]) / math.sqrt(3)
    for j in range(height):
        for i in range(width):
            x = 2 * (i + 0.5) / width - 1
            y = 1 - 2 * (j + 0.5) / height
            dx, dy = x - centre[0], y - centre[1]
            d2 = radius**2 - dx * dx - dy * dy
            if d2 < 0:
                continue
            n = np.array([dx, dy, -math.sqrt(d2)]) / radius
            image[j, i] = max(0.0, n @ light)
    return image


def boxes_overlap(a, b):
    """Intersection of two boxes as a new box, or None."""
    lo = np.maximum(a.lo, b.lo)
    hi = np.minimum(a.hi, b.hi)
    if (lo > hi).any():
        return None
    return Box(lo, hi)


def non_max_suppression(boxes, scores, threshold):
    """Indices of boxes kept by greedy non-maximum suppression."""
    order = np.argsort(-scores)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    keep = []
    while order.size > 0:
        i = order[0]
        keep.append(int(i))
        rest = order[1:]
        w = np.minimum(boxes[i, 2], boxes[rest, 2]) - np.maximum(boxes[i, 0], boxes[rest, 0])
        h = np.minimum(boxes[i, 3], boxes[rest, 3]) - np.maximum(boxes[i, 1], boxes[rest, 1])
        inter = np.maximum(w, 0) * np.maximum(h, 0)
        iou = inter / (areas[i] + areas[rest] - inter)
        order = rest[iou <= threshold]
    return keep


def haversine(lat1, lon1, lat2, lon2):
    """Great-circle distances in kilometres."""
    lat1, lon1, lat2, lon2 = (np.radians(v) for v in (lat1, lon1, lat2, lon2))
    a = (
        np.sin((lat2 - lat1) / 2) ** 2
        + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    )
    return 2 * 6371.0 * np.arcsin(np.sqrt(a))


def bezier_de_casteljau(control, ts):
    """Bezier curve points by de Casteljau's scheme."""
    out = np.empty((len(ts), control.shape[1]))
    for i, t in enumerate(ts):
        p = control.copy()
        n = len(p)
        while n > 1:
            p[: n - 1] = (1 - t) * p[: n - 1] + t * p[1:n]
            n -= 1
        out[i] = p[0]
    return out


def douglas_peucker(line, eps):
    """Mask of kept points by Douglas-Peucker with an explicit stack."""
    n = len(line)
    keep = np.zeros(n, dtype=bool)
    keep[0] = keep[-1] = True
    stack = [(0, n - 1)]
    while stack:
        a, b = stack.pop()
        if b - a < 2:
            continue
        d = line[b] - line[a]
        length = np.hypot(d[0], d[1])
        rel = line[a + 1 : b] - line[a]
        if length == 0:
            dist = np.hypot(rel[:, 0], rel[:, 1])
        else:
            dist = np.abs(d[0] * rel[:, 1] - d[1] * rel[:, 0]) / length
        k = int(dist.argmax())
        if dist[k] > eps:
            m = a + 1 + k
            keep[m] = True
            stack.append((a, m))
            stack.append((m, b))
    return keep


def triangle_mesh_normals(vertices, faces):
    """Area-weighted vertex normals and the total area of a mesh."""
    tri = vertices[faces]
    n = np.cross(tri[:, 1] - tri[:, 0], tri[:, 2] - tri[:, 0])
    area = 0.5 * np.linalg.norm(n, axis=1).sum()
    normals = np.zeros_like(vertices)
    for corner in range(3):
        np.add.at(normals, faces[:, corner], n)
    length = np.linalg.norm(normals, axis=1)
    nonzero = length > 0
    normals[nonzero] /= length[nonzero, None]
    return normals, area


def tsp_two_opt(dist, tour):
    """Improve a tour in place by 2-opt until no move helps; returns its length."""
    n = len(tour)
    improved = True
    while improved:
        improved = False
        for i in range(1, n - 2):
            for j in range(i + 1, n - 1):
                a, b, c, d = tour[i - 1], tour[i], tour[j], tour[j + 1]
                if dist[a, c] + dist[b, d] < dist[a, b] + dist[c, d] - 1e-12:
                    tour[i : j + 1] = tour[i : j + 1][::-1].copy()
                    improved = True
    return dist[tour[:-1], tour[1:]].sum()


def minimum_spanning_tree(dist):
    """Prim's algorithm on a dense matrix; returns edges and the total weight."""
    n = dist.shape[0]
    best = dist[0].copy()
    parent = np.zeros(n, dtype=int)
    in_tree = np.zeros(n, dtype=bool)
    in_tree[0] = True
    edges = []
    total = 0.0
    for _ in range(n - 1):
        v = int(np.argmin(np.where(in_tree, np.inf, best)))
        edges.append((int(parent[v]), v))
        total += best[v]
        in_tree[v] = True
        closer = (dist[v] < best) & ~in_tree
        best[closer] = dist[v, closer]
        parent[closer] = v
    return edges, total


def voronoi_labels(seeds, size):
    """Nearest-seed label image with the city-block metric."""
    labels = np.zeros((size, size), dtype=np.int16)
    best = np.full((size, size), np.iinfo(np.int64).max)
    y, x = np.mgrid[:size, :size]
    for k, (sy, sx) in enumerate(seeds):
        d = np.abs(y - sy) + np.abs(x - sx)
        closer = d < best
        labels[closer] = k
        np.minimum(best, d, out=best)
    return labels


def circle_polygon(n):
    """Regular polygon vertices."""
    t = np.linspace(0, 2 * np.pi, n, endpoint=False)
    return np.column_stack([np.cos(t), np.sin(t)])


def unit(rng, n):
    """Random unit vector."""
    v = rng.standard_normal(n)
    return v / np.linalg.norm(v)


def random_boxes(rng, n):
    """Random corner-form boxes."""
    lo = rng.random((n, 2))
    return np.hstack([lo, lo + 0.1 + 0.4 * rng.random((n, 2))])


PROGRAMS = [
    (point_in_polygon, lambda rng: (0.3, 0.2, circle_polygon(12))),
    (point_in_polygon, lambda rng: (3, 2, circle_polygon(12))),
    (points_in_polygon, lambda rng: (rng.random((50, 2)) * 3 - 1.5, circle_polygon(8))),
    (convex_hull, lambda rng: (rng.random((30, 2)),)),
    (convex_hull, lambda rng: (rng.random((2, 2)),)),
    (polygon_area_centroid, lambda rng: (circle_polygon(9) + 2,)),
    (polygon_area_centroid, lambda rng: (np.zeros((4, 2)),)),
    (polygon_area_centroid, lambda rng: (rng.random((4, 3)),)),
    (distance_matrix_loops, lambda rng: (rng.random((10, 3)), rng.random((9, 3)))),
    (distance_matrix_broadcast, lambda rng: (rng.random((20, 3)), rng.random((15, 3)))),
    (distance_matrix_broadcast, lambda rng: (rng.random((20, 3)), rng.random((15, 2)))),
    (distance_matrix_gram, lambda rng: (rng.random((20, 3)), rng.random((15, 3)))),
    (closest_pair, lambda rng: (rng.random((30, 2)),)),
    (rotation_2d, lambda rng: (rng.random((20, 2)), 0.7, np.array([0.5, 0.5]))),
    (rotation_2d, lambda rng: (rng.random((20, 2), np.float32), 0.7, (0.5, 0.5))),
    (euler_rotation, lambda rng: (0.1, -0.4, 1.2)),
    (rodrigues, lambda rng: (rng.random((10, 3)), np.array([1.0, 2.0, 0.5]), 0.8)),
    (quaternion_rotate, lambda rng: (rng.standard_normal(4), rng.random(3))),
    (quaternion_rotate, lambda rng: (rng.integers(1, 5, 4), rng.random(3))),
    (slerp, lambda rng: (unit(rng, 4), unit(rng, 4), 0.3)),
    (slerp, lambda rng: (np.array([1.0, 0, 0, 0]), np.array([1.0, 0, 0, 0]), 0.3)),
    (
        segment_intersection,
        lambda rng: tuple(np.array(p, float) for p in ((0, 0), (2, 2), (0, 2), (2, 0))),
    ),
    (
        segment_intersection,
        lambda rng: tuple(np.array(p) for p in ((0, 0), (2, 2), (1, 0), (3, 2))),
    ),
    (
        ray_triangles,
        lambda rng: (np.array([0.0, 0, -5]), np.array([0.0, 0, 1]), rng.random((20, 3, 3)) - 0.5),
    ),
    (
        ray_triangles,
        lambda rng: (np.array([9.0, 0, -5]), np.array([0.0, 0, 1]), rng.random((20, 3, 3)) - 0.5),
    ),
    (ray_sphere_render, lambda rng: (14, 10, (0.1, -0.1), 0.8)),
    (
        boxes_overlap,
        lambda rng: (Box(np.zeros(2), np.ones(2)), Box(np.full(2, 0.5), np.full(2, 2.0))),
    ),
    (
        boxes_overlap,
        lambda rng: (Box(np.zeros(2), np.ones(2)), Box(np.full(2, 1.5), np.full(2, 2.0))),
    ),
    (non_max_suppression, lambda rng: (random_boxes(rng, 15), rng.random(15), 0.3)),
    (
        haversine,
        lambda rng: (48.85, 2.35, rng.random(20) * 180 - 90, rng.random(20) * 360 - 180),
    ),
    (haversine, lambda rng: (48.85, 2.35, 51.5, -0.12)),
    (bezier_de_casteljau, lambda rng: (rng.random((5, 2)), np.linspace(0, 1, 20))),
    (
        douglas_peucker,
        lambda rng: (np.column_stack([np.arange(40), rng.random(40)]), 0.4),
    ),
    (triangle_mesh_normals, lambda rng: (rng.random((12, 3)), rng.integers(0, 12, (18, 3)))),
    (triangle_mesh_normals, lambda rng: (rng.random((12, 3)), rng.integers(0, 15, (18, 3)))),
    (
        tsp_two_opt,
        lambda rng: (
            distance_matrix_broadcast(*[circle_polygon(9)] * 2),
            np.concatenate([[0], 1 + rng.permutation(8), [0]]),
        ),
    ),
    (
        minimum_spanning_tree,
        lambda rng: (distance_matrix_broadcast(*[rng.random((14, 2))] * 2),),
    ),
    (voronoi_labels, lambda rng: (rng.integers(0, 20, (6, 2)), 20)),
]
