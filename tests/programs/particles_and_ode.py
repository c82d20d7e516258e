"""N-body systems, molecular dynamics, ordinary differential equations and lattice physics."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Bodies:
    """Positions, velocities and masses of point particles."""

    pos: np.ndarray
    vel: np.ndarray
    mass: np.ndarray


@dataclass
class Oscillator:
    """Scalar parameters of a driven damped oscillator."""

    omega: float
    damping: float
    drive: float = 0.0


def nbody_forces_scalar(pos, mass, eps):
    """Pairwise gravitational accelerations by scalar loops using Newton's third law."""
    n = pos.shape[0]
    acc = np.zeros_like(pos)
    for i in range(n):
        for j in range(i + 1, n):
            dx = pos[j, 0] - pos[i, 0]
            dy = pos[j, 1] - pos[i, 1]
            dz = pos[j, 2] - pos[i, 2]
            r2 = dx * dx + dy * dy + dz * dz + eps * eps
            inv = 1.0 / (r2 * math.sqrt(r2))
            acc[i, 0] += mass[j] * dx * inv
            acc[i, 1] += mass[j] * dy * inv
            acc[i, 2] += mass[j] * dz * inv
            acc[j, 0] -= mass[i] * dx * inv
            acc[j, 1] -= mass[i] * dy * inv
            acc[j, 2] -= mass[i] * dz * inv
    return acc


def nbody_forces_broadcast(pos, mass, eps):
    """Pairwise gravitational accelerations by broadcasting."""
    d = pos[None, :, :] - pos[:, None, :]
    r2 = (d**2).sum(axis=-1) + eps**2
    inv = r2**-1.5
    np.fill_diagonal(inv, 0)
    return (d * (mass * inv)[:, :, np.newaxis]).sum(axis=1)


def nbody_leapfrog(bodies, dt, steps):
    """Kick-drift-kick leapfrog on a dataclass of arrays, mutated in place."""
    acc = nbody_forces_broadcast(bodies.pos, bodies.mass, 0.05)
    for _ in range(steps):
        bodies.vel += 0.5 * dt * acc
        bodies.pos += dt * bodies.vel
        acc = nbody_forces_broadcast(bodies.pos, bodies.mass, 0.05)
        bodies.vel += 0.5 * dt * acc


def nbody_energy(pos, vel, mass):
    """Kinetic and potential energy of a set of bodies."""
    kinetic = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    potential = 0.0
    for i in range(len(mass) - 1):
        r = np.sqrt(((pos[i + 1 :] - pos[i]) ** 2).sum(axis=1))
        potential -= np.sum(mass[i] * mass[i + 1 :] / r)
    return kinetic, potential, kinetic + potential


def nbody_sun_and_planets(x, v, m, dt, steps):
    """Symplectic Euler integration over row views, with the momentum offset first."""
    v[0] = -(m[1:, None] * v[1:]).sum(axis=0) / m[0]
    for _ in range(steps):
        for i in range(len(m)):
            xi, vi = x[i], v[i]
            for j in range(i):
                d = xi - x[j]
                mag = dt / (d @ d) ** 1.5
                vi -= d * m[j] * mag
                v[j] += d * m[i] * mag
        x += dt * v
    return x


def lennard_jones(pos, box, cutoff):
    """Lennard-Jones forces and energy with minimum image and a cutoff."""
    n = len(pos)
    force = np.zeros(pos.shape)
    energy = 0.0
    for i in range(n):
        for j in range(i + 1, n):
            d = pos[i] - pos[j]
            d -= box * np.round(d / box)
            r2 = np.dot(d, d)
            if r2 > cutoff * cutoff:
                continue
            s6 = 1.0 / r2**3
            f = 24 * (2 * s6 * s6 - s6) / r2
            force[i] += f * d
            force[j] -= f * d
            energy += 4 * (s6 * s6 - s6)
    return force, energy


def velocity_verlet_lj(pos, vel, box, dt, steps):
    """Velocity Verlet for Lennard-Jones atoms with all-pairs broadcasting."""
    upper = np.triu_indices(len(pos), k=1)

    def forces(p):
        d = p[upper[0]] - p[upper[1]]
        d = d - box * np.rint(d / box)
        r2 = np.maximum((d * d).sum(1), 0.5)
        s6 = r2**-3
        pair = (24 * (2 * s6**2 - s6) / r2)[:, None] * d
        f = np.zeros_like(p)
        np.add.at(f, upper[0], pair)
        np.subtract.at(f, upper[1], pair)
        return f, 4 * np.sum(s6**2 - s6)

    f, e = forces(pos)
    trace = [e]
    for _ in range(steps):
        vel = vel + 0.5 * dt * f
        pos = (pos + dt * vel) % box
        f, e = forces(pos)
        vel = vel + 0.5 * dt * f
        trace.append(e)
    return {"pos": pos, "vel": vel, "energy": np.array(trace)}


def lorenz_rk4(state, sigma, rho, beta, dt, steps):
    """Lorenz system by classical Runge-Kutta, storing the trajectory."""

    def deriv(s):
        x, y, z = s
        return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])

    traj = np.empty((steps + 1, 3))
    traj[0] = state
    for i in range(steps):
        s = traj[i]
        k1 = deriv(s)
        k2 = deriv(s + dt / 2 * k1)
        k3 = deriv(s + dt / 2 * k2)
        k4 = deriv(s + dt * k3)
        traj[i + 1] = s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return traj


def lorenz_scalar(x, y, z, dt, steps):
    """Lorenz system by forward Euler with plain scalars; returns a tuple of floats."""
    for _ in range(steps):
        dx = 10.0 * (y - x)
        dy = x * (28.0 - z) - y
        dz = x * y - 8.0 / 3.0 * z
        x, y, z = x + dt * dx, y + dt * dy, z + dt * dz
    return x, y, z


def adaptive_heun(y0, t_end, tol):
    """Adaptive Heun-Euler integration of the van der Pol oscillator."""

    def f(y):
        return np.array([y[1], 2.0 * (1 - y[0] ** 2) * y[1] - y[0]])

    t, h = 0.0, 0.05
    y = np.asarray(y0, dtype=float)
    accepted = rejected = 0
    while t < t_end:
        if t + h > t_end:
            h = t_end - t
        k1 = f(y)
        k2 = f(y + h * k1)
        err = np.max(np.abs(h * (k2 - k1) / 2))
        if err <= tol:
            t += h
            y = y + h * (k1 + k2) / 2
            accepted += 1
        else:
            rejected += 1
        factor = 0.9 * math.sqrt(tol / err) if err > 0 else 2.0
        h *= min(2.0, max(0.3, factor))
        if accepted + rejected > 120:
            raise RuntimeError("too many steps")
    return y, accepted, rejected


def oscillator_trace(osc, x, v, dt, steps):
    """Driven damped oscillator with dataclass parameters, semi-implicit Euler."""
    out = np.zeros((steps, 2))
    for n in range(steps):
        a = -(osc.omega**2) * x - 2 * osc.damping * v + osc.drive * math.cos(n * dt)
        v += dt * a
        x += dt * v
        out[n] = x, v
    return out


def double_pendulum_energy(theta1, theta2, w1, w2):
    """Energy of arrays of double pendulums with unit rods and masses."""
    v1 = w1**2
    v2 = w1**2 + w2**2 + 2 * w1 * w2 * np.cos(theta1 - theta2)
    height = -2 * np.cos(theta1) - np.cos(theta2)
    return 0.5 * (v1 + v2) + 9.81 * height


def sir_model(s, i, r, beta, gamma, days):
    """SIR epidemic by daily Euler steps; returns curves and the peak day."""
    n = s + i + r
    curve = np.zeros((days, 3))
    peak_day, peak = 0, i
    for day in range(days):
        new_inf = beta * s * i / n
        new_rec = gamma * i
        s -= new_inf
        i += new_inf - new_rec
        r += new_rec
        curve[day] = [s, i, r]
        if i > peak:
            peak, peak_day = i, day
    return curve, peak_day, peak


def seir_regions(state, beta, mixing, dt, steps):
    """Multi-region SEIR model on a dict of arrays, replacing entries of the dict."""
    for _ in range(steps):
        total = sum(state[k] for k in ("S", "E", "I", "R"))
        lam = beta * (mixing @ (state["I"] / total))
        se = dt * lam * state["S"]
        ei = dt * 0.2 * state["E"]
        ir = dt * 0.1 * state["I"]
        state["S"] = state["S"] - se
        state["E"] = state["E"] + se - ei
        state["I"] = state["I"] + ei - ir
        state["R"] = state["R"] + ir
    return state


def fdtd_1d(ez, hy, eps, steps, source):
    """1-d FDTD with a soft source and simple absorbing ends, in place."""
    n = ez.size
    left = [0.0, 0.0]
    for t in range(steps):
        for k in range(n - 1):
            hy[k] = hy[k] + 0.5 * (ez[k + 1] - ez[k])
        for k in range(1, n):
            ez[k] = ez[k] + 0.5 / eps[k] * (hy[k] - hy[k - 1])
        ez[n // 4] += source[t]
        ez[0] = left[0]
        left[0], left[1] = left[1], ez[1]
    return ez, hy


def fdtd_1d_slices(fields, steps):
    """1-d FDTD with slices on a dict of fields, recording a probe."""
    ez, hy = fields["ez"], fields["hy"]
    probe = np.zeros(steps)
    for t in range(steps):
        hy[:-1] += np.diff(ez)
        ez[1:] += (hy[1:] - hy[:-1]) * fields["courant"] ** 2
        ez[0] = np.exp(-((t - 10.0) ** 2) / 20.0)
        probe[t] = ez[len(ez) // 2]
    return probe


def ising_sweep(spins, beta, uniform):
    """Metropolis sweeps of the Ising model with given uniforms; returns energy and accepts."""
    n = spins.shape[0]
    accepted = 0
    for t in range(uniform.shape[0]):
        for i in range(n):
            for j in range(n):
                nb = (
                    spins[(i + 1) % n, j]
                    + spins[i - 1, j]
                    + spins[i, (j + 1) % n]
                    + spins[i, j - 1]
                )
                de = 2 * spins[i, j] * nb
                if de <= 0 or uniform[t, i, j] < np.exp(-beta * de):
                    spins[i, j] *= -1
                    accepted += 1
    energy = -np.sum(spins * (np.roll(spins, 1, 0) + np.roll(spins, 1, 1)))
    return energy, accepted


def ising_checkerboard(spins, beta, uniform):
    """Checkerboard Metropolis updates with masks, in place; returns the magnetisation."""
    ii, jj = np.indices(spins.shape)
    for half in range(uniform.shape[0]):
        mask = (ii + jj) % 2 == half % 2
        nb = (
            np.roll(spins, 1, axis=0)
            + np.roll(spins, -1, axis=0)
            + np.roll(spins, 1, axis=1)
            + np.roll(spins, -1, axis=1)
        )
        flip = mask & (uniform[half] < np.exp(-2.0 * beta * spins * nb))
        spins[flip] = -spins[flip]
    return spins.mean()


def projectile(v0, angle_deg, drag, dt):
    """Range and flight time of a projectile with quadratic drag."""
    angle = math.radians(angle_deg)
    x, y = 0.0, 0.0
    vx, vy = v0 * math.cos(angle), v0 * math.sin(angle)
    t = 0.0
    while True:
        speed = math.hypot(vx, vy)
        vx -= drag * speed * vx * dt
        vy -= (9.81 + drag * speed * vy) * dt
        x += vx * dt
        y += vy * dt
        t += dt
        if y < 0:
            break
    return x, t


def kuramoto(theta, omega, coupling, dt, steps):
    """Kuramoto oscillators; returns phases and the complex order parameter history."""
    order = np.zeros(steps, dtype=complex)
    for k in range(steps):
        z = np.mean(np.exp(1j * theta))
        order[k] = z
        theta = theta + dt * (omega + coupling * np.abs(z) * np.sin(np.angle(z) - theta))
    return np.mod(theta, 2 * np.pi), order


def schrodinger_split_step(psi, potential, k2, dt, steps):
    """Split-step Fourier evolution of a wave packet."""
    half_v = np.exp(-0.5j * dt * potential)
    kinetic = np.exp(-0.5j * dt * k2)
    for _ in range(steps):
        psi = half_v * psi
        psi = np.fft.ifft(kinetic * np.fft.fft(psi))
        psi *= half_v
    return psi, np.sum(np.abs(psi) ** 2)


def random_walkers(positions, steps, walls):
    """Move walkers by given steps and reflect them between walls, in place."""
    lo, hi = walls
    for step in steps:
        positions += step
        below = positions < lo
        positions[below] = 2 * lo - positions[below]
        above = positions > hi
        positions[above] = 2 * hi - positions[above]


def boids_step(pos, vel, radius):
    """One step of flocking with separation, alignment and cohesion."""
    d = pos[:, None] - pos[None]
    dist = np.sqrt((d**2).sum(-1))
    near = (dist < radius) & (dist > 0)
    count = near.sum(1)
    safe = np.where(count == 0, 1, count)[:, None]
    cohesion = np.where(count[:, None] > 0, (near @ pos) / safe - pos, 0)
    align = np.where(count[:, None] > 0, (near @ vel) / safe - vel, 0)
    separation = (d * near[:, :, None]).sum(1)
    vel = vel + 0.01 * cohesion + 0.1 * align + 0.05 * separation
    speed = np.linalg.norm(vel, axis=1, keepdims=True)
    vel = np.where(speed > 1, vel / speed, vel)
    return pos + vel, vel


def packet(n):
    """Potential, squared wave numbers and a Gaussian packet."""
    x = np.linspace(-5, 5, n, endpoint=False)
    k = 2 * np.pi * np.fft.fftfreq(n, d=x[1] - x[0])
    psi = np.exp(-(x**2) + 2j * x)
    return psi, 0.5 * x**2, k**2


PROGRAMS = [
    (nbody_forces_scalar, lambda rng: (rng.random((10, 3)), rng.random(10), 0.1)),
    (
        nbody_forces_scalar,
        lambda rng: (rng.random((8, 3), np.float32), rng.random(8, np.float32), 0.1),
    ),
    (nbody_forces_scalar, lambda rng: (rng.random((6, 2)), rng.random(6), 0.1)),
    (nbody_forces_broadcast, lambda rng: (rng.random((20, 3)), rng.random(20), 0.1)),
    (
        nbody_forces_broadcast,
        lambda rng: (rng.random((20, 3), np.float32), rng.random(20, np.float32), 0.1),
    ),
    (
        nbody_leapfrog,
        lambda rng: (
            Bodies(rng.random((8, 3)), rng.standard_normal((8, 3)), rng.random(8)),
            0.01,
            10,
        ),
    ),
    (nbody_energy, lambda rng: (rng.random((9, 3)), rng.random((9, 3)), rng.random(9))),
    (
        nbody_sun_and_planets,
        lambda rng: (rng.random((5, 3)) * 10, rng.random((5, 3)), rng.random(5) + 0.1, 0.01, 8),
    ),
    (lennard_jones, lambda rng: (rng.random((14, 3)) * 4, 4.0, 1.8)),
    (
        velocity_verlet_lj,
        lambda rng: (rng.random((12, 3)) * 5, rng.standard_normal((12, 3)), 5.0, 0.001, 8),
    ),
    (lorenz_rk4, lambda rng: (np.array([1.0, 1.0, 1.0]), 10.0, 28.0, 8 / 3, 0.01, 40)),
    (lorenz_scalar, lambda rng: (1.0, 0.5, 20.0, 0.005, 300)),
    (lorenz_scalar, lambda rng: (np.float32(1), np.float32(0.5), np.float32(20), 0.005, 50)),
    (adaptive_heun, lambda rng: ([2.0, 0.0], 2.0, 1e-3)),
    (adaptive_heun, lambda rng: ([2.0, 0.0], 100.0, 1e-5)),
    (oscillator_trace, lambda rng: (Oscillator(2.0, 0.1, 0.5), 1.0, 0.0, 0.02, 100)),
    (
        double_pendulum_energy,
        lambda rng: (rng.random(50), rng.random(50), rng.random(50), rng.random((4, 50))),
    ),
    (sir_model, lambda rng: (990.0, 10.0, 0.0, 0.35, 0.1, 60)),
    (
        seir_regions,
        lambda rng: (
            {"S": rng.random(6) * 100, "E": np.zeros(6), "I": np.ones(6), "R": np.zeros(6)},
            0.5,
            rng.random((6, 6)),
            0.1,
            12,
        ),
    ),
    (
        fdtd_1d,
        lambda rng: (
            np.zeros(40),
            np.zeros(40),
            1 + 3 * (np.arange(40) > 20),
            12,
            rng.standard_normal(12),
        ),
    ),
    (
        fdtd_1d,
        lambda rng: (np.zeros(20), np.zeros(20), np.ones(20), 8, rng.standard_normal(5)),
    ),
    (
        fdtd_1d_slices,
        lambda rng: ({"ez": np.zeros(100), "hy": np.zeros(100), "courant": 0.9}, 40),
    ),
    (ising_sweep, lambda rng: (rng.choice([-1, 1], (8, 8)), 0.44, rng.random((3, 8, 8)))),
    (
        ising_sweep,
        lambda rng: (rng.choice([-1, 1], (6, 6)).astype(np.int8), 0.3, rng.random((2, 6, 6))),
    ),
    (
        ising_checkerboard,
        lambda rng: (rng.choice([-1, 1], (12, 12)), 0.44, rng.random((8, 12, 12))),
    ),
    (projectile, lambda rng: (30.0, 45, 0.01, 0.01)),
    (kuramoto, lambda rng: (rng.random(30) * 6, rng.standard_normal(30), 1.5, 0.05, 20)),
    (schrodinger_split_step, lambda rng: (*packet(64), 0.02, 10)),
    (random_walkers, lambda rng: (rng.random(40), rng.standard_normal((10, 40)) * 0.2, (0, 1))),
    (boids_step, lambda rng: (rng.random((25, 2)) * 4, rng.standard_normal((25, 2)), 1.0)),
]
