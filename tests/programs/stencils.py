"""Time-stepping stencils on regular grids in one, two and three dimensions."""

import numpy as np


def heat_1d_swap(u, alpha, steps):
    """Explicit 1-d heat equation with two buffers that are swapped each step."""
    un = np.zeros_like(u)
    un[0] = u[0]
    un[-1] = u[-1]
    for _ in range(steps):
        un[1:-1] = u[1:-1] + alpha * (u[2:] - 2 * u[1:-1] + u[:-2])
        u, un = un, u
    return u


def heat_1d_scalar(u0, alpha, steps):
    """Explicit 1-d heat equation written with an inner loop over cells."""
    u = u0.copy()
    n = len(u)
    for _ in range(steps):
        un = u.copy()
        for i in range(1, n - 1):
            u[i] = un[i] + alpha * (un[i + 1] - 2.0 * un[i] + un[i - 1])
    return u


def heat_2d_inplace(u, alpha, steps):
    """2-d heat equation updating the caller's array in place; returns None."""
    for _ in range(steps):
        un = u.copy()
        u[1:-1, 1:-1] += alpha * (
            un[2:, 1:-1] + un[:-2, 1:-1] + un[1:-1, 2:] + un[1:-1, :-2] - 4 * un[1:-1, 1:-1]
        )
        u[0, :] = u[1, :]
        u[-1, :] = u[-2, :]
        u[:, 0] = 0
        u[:, -1] = 1


def heat_2d_until_steady(u0, tol, max_steps):
    """Jacobi relaxation of Laplace's equation until the largest change is below tol."""
    u = np.array(u0, dtype=float)
    change = np.inf
    step = 0
    while change > tol and step < max_steps:
        new = u.copy()
        new[1:-1, 1:-1] = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
        change = np.max(np.abs(new - u))
        u = new
        step += 1
    return u, step, change


def heat_3d(u, kappa, dt, dx, steps):
    """3-d heat equation on a cube with fixed boundary values."""
    c = kappa * dt / dx**2
    if c > 1 / 6:
        raise ValueError("unstable time step")
    for _ in range(steps):
        lap = (
            u[2:, 1:-1, 1:-1]
            + u[:-2, 1:-1, 1:-1]
            + u[1:-1, 2:, 1:-1]
            + u[1:-1, :-2, 1:-1]
            + u[1:-1, 1:-1, 2:]
            + u[1:-1, 1:-1, :-2]
            - 6 * u[1:-1, 1:-1, 1:-1]
        )
        u = u.copy()
        u[1:-1, 1:-1, 1:-1] += c * lap
    return u


def wave_1d(u0, c, dt, dx, steps):
    """Second-order wave equation with leapfrog in time and a three-buffer rotation."""
    r2 = (c * dt / dx) ** 2
    prev = u0.copy()
    cur = u0.copy()
    cur[1:-1] = prev[1:-1] + 0.5 * r2 * (prev[2:] - 2 * prev[1:-1] + prev[:-2])
    nxt = np.zeros_like(u0)
    energy = np.empty(steps)
    for t in range(steps):
        nxt[1:-1] = 2 * cur[1:-1] - prev[1:-1] + r2 * (cur[2:] - 2 * cur[1:-1] + cur[:-2])
        nxt[0] = nxt[-1] = 0.0
        energy[t] = np.sum((nxt - cur) ** 2) / dt**2 + c**2 * np.sum(np.diff(nxt) ** 2) / dx**2
        prev, cur, nxt = cur, nxt, prev
    return cur, energy


def wave_2d_damped(u, v, c2, damping, dt, steps):
    """2-d damped wave equation with periodic boundaries by np.roll, updating u and v in place."""
    for _ in range(steps):
        lap = (
            np.roll(u, 1, axis=0)
            + np.roll(u, -1, axis=0)
            + np.roll(u, 1, axis=1)
            + np.roll(u, -1, axis=1)
            - 4 * u
        )
        v += dt * (c2 * lap - damping * v)
        u += dt * v
    return float(np.sum(u * u) + np.sum(v * v))


def laplacian_periodic(z):
    """Five-point periodic Laplacian on a padded copy."""
    p = np.pad(z, 1, mode="wrap")
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * z


def gray_scott(u, v, du, dv, f, k, steps):
    """Gray-Scott reaction-diffusion with periodic boundaries."""
    for _ in range(steps):
        uvv = u * v * v
        u = u + du * laplacian_periodic(u) - uvv + f * (1 - u)
        v = v + dv * laplacian_periodic(v) + uvv - (f + k) * v
    return u, v


def gray_scott_views(grid_u, grid_v, params, steps):
    """Gray-Scott on ghost-celled arrays through interior views, in place."""
    u = grid_u[1:-1, 1:-1]
    v = grid_v[1:-1, 1:-1]
    for _ in range(steps):
        for g in (grid_u, grid_v):
            g[0, :] = g[-2, :]
            g[-1, :] = g[1, :]
            g[:, 0] = g[:, -2]
            g[:, -1] = g[:, 1]
        lu = grid_u[:-2, 1:-1] + grid_u[1:-1, :-2] - 4 * u + grid_u[1:-1, 2:] + grid_u[2:, 1:-1]
        lv = grid_v[:-2, 1:-1] + grid_v[1:-1, :-2] - 4 * v + grid_v[1:-1, 2:] + grid_v[2:, 1:-1]
        uvv = u * v**2
        u += params["Du"] * lu - uvv + params["F"] * (1 - u)
        v += params["Dv"] * lv + uvv - (params["F"] + params["k"]) * v


def life_slices(world, generations):
    """Conway's Game of Life with dead borders, neighbour counts by slices."""
    z = world.copy()
    for _ in range(generations):
        n = (
            z[:-2, :-2]
            + z[:-2, 1:-1]
            + z[:-2, 2:]
            + z[1:-1, :-2]
            + z[1:-1, 2:]
            + z[2:, :-2]
            + z[2:, 1:-1]
            + z[2:, 2:]
        )
        birth = (n == 3) & (z[1:-1, 1:-1] == 0)
        survive = ((n == 2) | (n == 3)) & (z[1:-1, 1:-1] == 1)
        z[...] = 0
        z[1:-1, 1:-1][birth | survive] = 1
    return z


def life_scalar(world):
    """One Game of Life generation on a torus with loops and modular indices."""
    rows, cols = world.shape
    new = np.zeros_like(world)
    for i in range(rows):
        for j in range(cols):
            n = 0
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    if di == 0 and dj == 0:
                        continue
                    n += world[(i + di) % rows, (j + dj) % cols]
            if world[i, j]:
                new[i, j] = 1 if 2 <= n <= 3 else 0
            elif n == 3:
                new[i, j] = 1
    return new, int(new.sum())


def burgers_upwind(u, nu, dt, dx, steps):
    """Viscous Burgers equation with upwind advection and periodic ends."""
    n = u.shape[0]
    for _ in range(steps):
        un = u.copy()
        for i in range(n):
            left = un[i - 1]
            right = un[i + 1] if i < n - 1 else un[0]
            if un[i] >= 0:
                adv = un[i] * (un[i] - left) / dx
            else:
                adv = un[i] * (right - un[i]) / dx
            u[i] = un[i] - dt * adv + nu * dt / dx**2 * (right - 2 * un[i] + left)
    return u.max()


def burgers_godunov(u0, dt, dx, steps):
    """Inviscid Burgers equation with the Godunov flux."""
    u = u0.copy()
    for _ in range(steps):
        ul = u[:-1]
        ur = u[1:]
        s = 0.5 * (ul + ur)
        shock = np.where(s > 0, 0.5 * ul**2, 0.5 * ur**2)
        rare = np.where(ul > 0, 0.5 * ul**2, np.where(ur < 0, 0.5 * ur**2, 0.0))
        flux = np.where(ul > ur, shock, rare)
        u[1:-1] -= dt / dx * (flux[1:] - flux[:-1])
        u[0] = u[1]
        u[-1] = u[-2]
    return u


def shallow_water_1d(state, g, dt, dx, steps):
    """1-d shallow water by Lax-Friedrichs on a dict of height and momentum."""
    h = state["h"].copy()
    hu = state["hu"].copy()
    for _ in range(steps):
        f1 = hu
        f2 = hu**2 / h + 0.5 * g * h**2
        hn = h.copy()
        hun = hu.copy()
        hn[1:-1] = 0.5 * (h[2:] + h[:-2]) - dt / (2 * dx) * (f1[2:] - f1[:-2])
        hun[1:-1] = 0.5 * (hu[2:] + hu[:-2]) - dt / (2 * dx) * (f2[2:] - f2[:-2])
        hn[0], hn[-1] = hn[1], hn[-2]
        hun[0], hun[-1] = -hun[1], -hun[-2]
        h, hu = hn, hun
    return {"h": h, "hu": hu, "mass": h.sum() * dx}


def shallow_water_2d(h, u, v, g, depth, dt, dx, steps):
    """Linear 2-d shallow water on a staggered grid, mutating h, u and v."""
    for _ in range(steps):
        u[1:-1, :] -= dt * g * (h[1:, :] - h[:-1, :]) / dx
        v[:, 1:-1] -= dt * g * (h[:, 1:] - h[:, :-1]) / dx
        h -= dt * depth * ((u[1:, :] - u[:-1, :]) + (v[:, 1:] - v[:, :-1])) / dx


def advect_upwind(q, c, nt):
    """First-order upwind advection whose direction depends on the sign of c."""
    out = np.empty((nt + 1, q.size))
    out[0] = q
    for n in range(nt):
        if c > 0:
            out[n + 1, 1:] = out[n, 1:] - c * (out[n, 1:] - out[n, :-1])
            out[n + 1, 0] = out[n, 0]
        else:
            out[n + 1, :-1] = out[n, :-1] - c * (out[n, 1:] - out[n, :-1])
            out[n + 1, -1] = out[n, -1]
    return out


def minmod(a, b):
    """Minmod slope limiter."""
    return np.where(a * b > 0, np.where(np.abs(a) < np.abs(b), a, b), 0)


def advect_muscl(q, cfl, steps):
    """Second-order MUSCL advection with the minmod limiter and periodic boundaries."""
    for _ in range(steps):
        dq = minmod(q - np.roll(q, 1), np.roll(q, -1) - q)
        face = q + 0.5 * (1 - cfl) * dq
        q = q - cfl * (face - np.roll(face, 1))
    return q


def lax_wendroff_2d(q, cx, cy, steps):
    """Dimension-split Lax-Wendroff advection, sweeping a transposed view for the second axis."""

    def sweep(a, c):
        new = a.copy()
        new[1:-1] = (
            a[1:-1] - 0.5 * c * (a[2:] - a[:-2]) + 0.5 * c * c * (a[2:] - 2 * a[1:-1] + a[:-2])
        )
        return new

    for _ in range(steps):
        q = sweep(q, cx)
        q = sweep(q.T, cy).T
    return q


def poisson_red_black(p, b, sweeps, omega):
    """Red-black successive over-relaxation for the Poisson equation, in place."""
    ny, nx = p.shape
    for _ in range(sweeps):
        for colour in range(2):
            for i in range(1, ny - 1):
                start = 1 + (i + colour) % 2
                for j in range(start, nx - 1, 2):
                    r = (
                        p[i - 1, j]
                        + p[i + 1, j]
                        + p[i, j - 1]
                        + p[i, j + 1]
                        - 4 * p[i, j]
                        - b[i, j]
                    )
                    p[i, j] += omega * r / 4
    return p


def cavity_pressure(p, u, v, rho, dt, dx, dy, nit):
    """Pressure Poisson iterations of the lid-driven cavity problem."""
    b = np.zeros_like(p)
    b[1:-1, 1:-1] = rho * (
        1
        / dt
        * ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx) + (v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy))
        - ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx)) ** 2
        - 2 * ((u[2:, 1:-1] - u[0:-2, 1:-1]) / (2 * dy) * (v[1:-1, 2:] - v[1:-1, 0:-2]) / (2 * dx))
        - ((v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy)) ** 2
    )
    pn = np.empty_like(p)
    for _ in range(nit):
        pn[:] = p
        p[1:-1, 1:-1] = (
            (pn[1:-1, 2:] + pn[1:-1, 0:-2]) * dy**2 + (pn[2:, 1:-1] + pn[0:-2, 1:-1]) * dx**2
        ) / (2 * (dx**2 + dy**2)) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, 1:-1]
        p[:, -1] = p[:, -2]
        p[0, :] = p[1, :]
        p[:, 0] = p[:, 1]
        p[-1, :] = 0
    return p, b


def rule_automaton(first_row, rule, rows):
    """Elementary cellular automaton of a given rule number, one row per generation."""
    table = np.array([(rule >> k) & 1 for k in range(8)], dtype=np.uint8)
    grid = np.zeros((rows, len(first_row)), dtype=np.uint8)
    grid[0] = first_row
    for r in range(1, rows):
        prev = grid[r - 1]
        code = 4 * np.roll(prev, 1) + 2 * prev + np.roll(prev, -1)
        grid[r] = table[code]
    return grid


def sandpile_topple(grid, max_sweeps):
    """Topple an abelian sandpile in place; returns the number of topplings."""
    n, m = grid.shape
    total = 0
    for _ in range(max_sweeps):
        unstable = np.argwhere(grid >= 4)
        if len(unstable) == 0:
            break
        for i, j in unstable:
            k = grid[i, j] // 4
            grid[i, j] -= 4 * k
            total += int(k)
            if i > 0:
                grid[i - 1, j] += k
            if i < n - 1:
                grid[i + 1, j] += k
            if j > 0:
                grid[i, j - 1] += k
            if j < m - 1:
                grid[i, j + 1] += k
    return total


def bump(n, dtype=np.float64):
    """Smooth bump on [0, 1]."""
    x = np.linspace(0, 1, n)
    return np.exp(-100 * (x - 0.4) ** 2).astype(dtype)


def smooth_and_look(u, w, n):
    """What the updates leave as it is stays, whatever takes the old arrays' memory."""
    total = 0.0
    for i in range(n):
        old = u.copy()
        u[1:-1] = (old[2:] + old[:-2]) * 0.5
        roots = np.sqrt(old + 1.0)
        total += (roots * np.arange(roots.size)).sum() + np.cumsum(roots)[::-1][3] + i
        w[2:-2] = (w[4:] + w[:-4] + roots[2:-2]) * 0.25
    return total


def relax_and_move_edges(plate, n, rounds):
    for _ in range(rounds):
        for _ in range(n):
            plate[1:-1, 1:-1] = (
                plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
            ) / 4
        plate[0] += 1.0
        plate[:, -1] *= 0.5
    return plate.sum()


PROGRAMS = [
    (heat_1d_swap, lambda rng: (rng.random(60), 0.25, 10)),
    (heat_1d_swap, lambda rng: (rng.random(60).astype(np.float32), 0.25, 7)),
    (heat_1d_swap, lambda rng: (rng.integers(0, 100, 30), 0.25, 3)),
    (heat_1d_scalar, lambda rng: (rng.random(40), 0.2, 6)),
    (heat_1d_scalar, lambda rng: (rng.random(40).astype(np.float32), np.float32(0.2), 6)),
    (heat_2d_inplace, lambda rng: (rng.random((16, 20)), 0.2, 8)),
    (heat_2d_inplace, lambda rng: (rng.random((16, 20)).astype(np.float32), 0.2, 8)),
    (heat_2d_inplace, lambda rng: (rng.random(16), 0.2, 8)),
    (heat_2d_until_steady, lambda rng: (rng.random((12, 12)), 1e-3, 200)),
    (heat_2d_until_steady, lambda rng: (rng.integers(0, 9, (8, 10)), 0.5, 50)),
    (heat_3d, lambda rng: (rng.random((8, 9, 10)), 1.0, 0.001, 0.1, 5)),
    (heat_3d, lambda rng: (rng.random((8, 9, 10)), 1.0, 0.1, 0.1, 5)),
    (wave_1d, lambda rng: (bump(80), 1.0, 0.01, 0.02, 20)),
    (wave_2d_damped, lambda rng: (rng.random((12, 14)), np.zeros((12, 14)), 0.5, 0.1, 0.1, 10)),
    (
        gray_scott,
        lambda rng: (rng.random((14, 14)), rng.random((14, 14)), 0.1, 0.05, 0.04, 0.06, 6),
    ),
    (
        gray_scott_views,
        lambda rng: (
            rng.random((14, 16)),
            rng.random((14, 16)) * 0.5,
            {"Du": 0.16, "Dv": 0.08, "F": 0.035, "k": 0.065},
            6,
        ),
    ),
    (life_slices, lambda rng: (rng.integers(0, 2, (20, 20)), 6)),
    (life_slices, lambda rng: (rng.integers(0, 2, (20, 20), dtype=np.uint8), 6)),
    (life_scalar, lambda rng: (rng.integers(0, 2, (8, 9)),)),
    (burgers_upwind, lambda rng: (rng.standard_normal(40), 0.01, 0.001, 0.05, 8)),
    (burgers_godunov, lambda rng: (rng.standard_normal(50), 0.001, 0.02, 10)),
    (
        shallow_water_1d,
        lambda rng: ({"h": 1 + bump(60), "hu": np.zeros(60)}, 9.81, 0.001, 0.02, 15),
    ),
    (
        shallow_water_2d,
        lambda rng: (
            rng.random((12, 10)),
            np.zeros((13, 10)),
            np.zeros((12, 11)),
            9.81,
            1.0,
            0.01,
            0.2,
            10,
        ),
    ),
    (advect_upwind, lambda rng: (bump(50), 0.5, 20)),
    (advect_upwind, lambda rng: (bump(50), -0.5, 20)),
    (advect_muscl, lambda rng: (bump(64), 0.4, 12)),
    (advect_muscl, lambda rng: (bump(64, np.float32), 0.4, 12)),
    (lax_wendroff_2d, lambda rng: (rng.random((12, 18)), 0.3, -0.2, 6)),
    (poisson_red_black, lambda rng: (np.zeros((9, 10)), rng.standard_normal((9, 10)), 3, 1.5)),
    (
        cavity_pressure,
        lambda rng: (
            np.zeros((14, 14)),
            rng.random((14, 14)),
            rng.random((14, 14)),
            1.0,
            0.01,
            0.1,
            0.1,
            8,
        ),
    ),
    (rule_automaton, lambda rng: ((np.arange(41) == 20).astype(np.uint8), 30, 20)),
    (rule_automaton, lambda rng: (rng.integers(0, 2, 33), 110, 12)),
    (sandpile_topple, lambda rng: (rng.integers(0, 7, (6, 6)), 30)),
    *(
        (smooth_and_look, lambda rng, n=n: (rng.random(60), rng.random(60), n))
        for n in (0, 1, 2, 5)
    ),
    *((relax_and_move_edges, lambda rng, n=n: (rng.random((9, 11)), n, 3)) for n in (0, 1, 2, 3)),
]
