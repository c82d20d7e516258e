"""Small applications, written in the style of arrays; numba's are explicit loops over two cores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erf

from dsl.commands.bench.case import Case, Target, Way

if TYPE_CHECKING:
    import jax
    import jnp
    import torch
    from numba import prange


# --- n-body: one step of gravity -----------------------------------------------------------------


def nbody(position, velocity, mass):
    apart = position[None, :, :] - position[:, None, :]
    squared = (apart * apart).sum(axis=2) + 0.01
    pull = mass / (squared * np.sqrt(squared))
    velocity = velocity + 0.001 * (apart * pull[:, :, None]).sum(axis=1)
    return position + 0.001 * velocity, velocity


def nbody_numba(position, velocity, mass):
    new_position, new_velocity = np.empty_like(position), np.empty_like(velocity)
    for i in prange(len(mass)):
        ax, ay, az = 0.0, 0.0, 0.0
        for j in range(len(mass)):
            dx = position[j, 0] - position[i, 0]
            dy = position[j, 1] - position[i, 1]
            dz = position[j, 2] - position[i, 2]
            squared = dx * dx + dy * dy + dz * dz + 0.01
            pull = mass[j] / (squared * np.sqrt(squared))
            ax += dx * pull
            ay += dy * pull
            az += dz * pull
        new_velocity[i, 0] = velocity[i, 0] + 0.001 * ax
        new_velocity[i, 1] = velocity[i, 1] + 0.001 * ay
        new_velocity[i, 2] = velocity[i, 2] + 0.001 * az
        for k in range(3):
            new_position[i, k] = position[i, k] + 0.001 * new_velocity[i, k]
    return new_position, new_velocity


def nbody_torch(position, velocity, mass):
    apart = position[None, :, :] - position[:, None, :]
    squared = (apart * apart).sum(dim=2) + 0.01
    pull = mass / (squared * torch.sqrt(squared))
    velocity = velocity + 0.001 * (apart * pull[:, :, None]).sum(dim=1)
    return position + 0.001 * velocity, velocity


def bodies(rng, n):
    return rng.standard_normal((n, 3)), rng.standard_normal((n, 3)), rng.random(n)


# --- Mandelbrot ----------------------------------------------------------------------------------


def mandelbrot(c, steps):
    z, count = np.zeros_like(c), np.zeros(c.shape, np.int64)
    for _ in range(steps):
        inside = z.real * z.real + z.imag * z.imag <= 4.0
        z = np.where(inside, z * z + c, z)
        count += inside
    return count


def mandelbrot_numba(c, steps):
    count = np.zeros(c.shape, np.int64)
    for i in prange(c.shape[0]):
        for j in range(c.shape[1]):
            z, trips = 0j, 0
            while trips < steps and z.real * z.real + z.imag * z.imag <= 4.0:
                z = z * z + c[i, j]
                trips += 1
            count[i, j] = trips
    return count


def mandelbrot_jax(c, steps):
    def step(_, state):
        z, count = state
        inside = z.real * z.real + z.imag * z.imag <= 4.0
        return jnp.where(inside, z * z + c, z), count + inside

    start = jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int64)
    return jax.lax.fori_loop(0, steps, step, start)[1]


def mandelbrot_torch(c, steps):
    z, count = torch.zeros_like(c), torch.zeros(c.shape, dtype=torch.int64)
    for _ in range(steps):
        inside = z.real * z.real + z.imag * z.imag <= 4.0
        z = torch.where(inside, z * z + c, z)
        count += inside
    return count


def plane(rng, n, steps):
    return np.linspace(-2, 0.5, n)[None, :] + 1j * np.linspace(-1.25, 1.25, n)[:, None], steps


# --- Black-Scholes -------------------------------------------------------------------------------


def black_scholes(price, strike, years, rate, volatility):
    spread = volatility * np.sqrt(years)
    d1 = (np.log(price / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    likely1 = 0.5 * (1.0 + erf(d1 / math.sqrt(2.0)))
    likely2 = 0.5 * (1.0 + erf((d1 - spread) / math.sqrt(2.0)))
    discounted = strike * np.exp(-rate * years)
    call = price * likely1 - discounted * likely2
    return call, call - price + discounted


def black_scholes_numba(price, strike, years, rate, volatility):
    call, put = np.empty_like(price), np.empty_like(price)
    for i in prange(price.size):
        spread = volatility * math.sqrt(years[i])
        d1 = math.log(price[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]
        d1 /= spread
        likely1 = 0.5 * (1.0 + math.erf(d1 / math.sqrt(2.0)))
        likely2 = 0.5 * (1.0 + math.erf((d1 - spread) / math.sqrt(2.0)))
        discounted = strike[i] * math.exp(-rate * years[i])
        call[i] = price[i] * likely1 - discounted * likely2
        put[i] = call[i] - price[i] + discounted
    return call, put


def black_scholes_jax(price, strike, years, rate, volatility):
    spread = volatility * jnp.sqrt(years)
    d1 = (jnp.log(price / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    likely1 = 0.5 * (1.0 + jax.lax.erf(d1 / math.sqrt(2.0)))
    likely2 = 0.5 * (1.0 + jax.lax.erf((d1 - spread) / math.sqrt(2.0)))
    discounted = strike * jnp.exp(-rate * years)
    call = price * likely1 - discounted * likely2
    return call, call - price + discounted


def black_scholes_torch(price, strike, years, rate, volatility):
    spread = volatility * torch.sqrt(years)
    d1 = (torch.log(price / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    likely1 = 0.5 * (1.0 + torch.erf(d1 / math.sqrt(2.0)))
    likely2 = 0.5 * (1.0 + torch.erf((d1 - spread) / math.sqrt(2.0)))
    discounted = strike * torch.exp(-rate * years)
    call = price * likely1 - discounted * likely2
    return call, call - price + discounted


def options(rng, n):
    return 10 + 90 * rng.random(n), 10 + 90 * rng.random(n), 0.1 + 2 * rng.random(n), 0.02, 0.3


# --- One step of k-means -------------------------------------------------------------------------


def kmeans(points, centres):
    apart = points[:, None, :] - centres[None, :, :]
    label = (apart * apart).sum(axis=2).argmin(axis=1)
    total, count = np.zeros_like(centres), np.zeros(centres.shape[0])
    np.add.at(total, label, points)
    np.add.at(count, label, 1.0)
    return total / np.maximum(count, 1.0)[:, None], label


def kmeans_numba(points, centres):
    label = np.empty(points.shape[0], np.int64)
    for i in prange(points.shape[0]):
        least, place = np.inf, 0
        for k in range(centres.shape[0]):
            squared = 0.0
            for d in range(points.shape[1]):
                squared += (points[i, d] - centres[k, d]) ** 2
            if squared < least:
                least, place = squared, k
        label[i] = place
    total, count = np.zeros_like(centres), np.zeros(centres.shape[0])
    for i in range(points.shape[0]):
        for d in range(points.shape[1]):
            total[label[i], d] += points[i, d]
        count[label[i]] += 1.0
    return total / np.maximum(count, 1.0).reshape(-1, 1), label


def kmeans_jax(points, centres):
    apart = points[:, None, :] - centres[None, :, :]
    label = (apart * apart).sum(axis=2).argmin(axis=1)
    total = jnp.zeros_like(centres).at[label].add(points)
    count = jnp.zeros(centres.shape[0]).at[label].add(1.0)
    return total / jnp.maximum(count, 1.0)[:, None], label


def kmeans_torch(points, centres):
    label = torch.cdist(points, centres).argmin(dim=1)
    total = torch.zeros_like(centres).index_add_(0, label, points)
    count = torch.bincount(label, minlength=centres.shape[0])
    return total / torch.clamp(count, min=1)[:, None], label


def clusters(rng, n, dims, k):
    centres = 10 * rng.random((k, dims))
    return centres[rng.integers(0, k, n)] + rng.standard_normal((n, dims)), centres


# --- 2-d convolution by slices -------------------------------------------------------------------


def convolve(image, kernel):
    rows, columns = image.shape[0] - 4, image.shape[1] - 4
    out = np.zeros((rows, columns), image.dtype)
    for i in range(5):
        for j in range(5):
            out += kernel[i, j] * image[i : i + rows, j : j + columns]
    return out


def convolve_numba(image, kernel):
    rows, columns = image.shape[0] - 4, image.shape[1] - 4
    out = np.zeros((rows, columns), image.dtype)
    for r in prange(rows):
        for i in range(5):
            for j in range(5):
                weight = kernel[i, j]
                for c in range(columns):
                    out[r, c] += weight * image[r + i, c + j]
    return out


def convolve_torch(image, kernel):
    return torch.nn.functional.conv2d(image[None, None], kernel[None, None])[0, 0]


def picture(rng, n):
    return rng.random((n, n), np.float32), rng.random((5, 5), np.float32)


# --- A perceptron's forward pass -----------------------------------------------------------------


def mlp(x, w1, b1, w2, b2, w3, b3):
    h = np.maximum(x @ w1 + b1, 0)
    h = np.maximum(h @ w2 + b2, 0)
    return h @ w3 + b3


def mlp_numba(x, w1, b1, w2, b2, w3, b3):
    zero = np.float32(0)
    h = np.maximum(np.dot(x, w1) + b1, zero)
    h = np.maximum(np.dot(h, w2) + b2, zero)
    return np.dot(h, w3) + b3


def mlp_torch(x, w1, b1, w2, b2, w3, b3):
    h = torch.relu(torch.addmm(b1, x, w1))
    h = torch.relu(torch.addmm(b2, h, w2))
    return torch.addmm(b3, h, w3)


def layers(rng, batch, inputs, hidden, outputs):
    arrays = [rng.standard_normal((batch, inputs), np.float32)]
    for m, n in ((inputs, hidden), (hidden, hidden), (hidden, outputs)):
        arrays += [rng.standard_normal((m, n), np.float32) / np.float32(math.sqrt(m))]
        arrays += [rng.standard_normal(n, np.float32)]
    return tuple(arrays)


# --- Cases ---------------------------------------------------------------------------------------


def application(name, program, inputs, size, tiny, numba, torch_way, **more):
    return Case(
        name=name,
        row="applications",
        program=program,
        inputs=inputs,
        size=size,
        tiny=tiny,
        numba=numba,
        torch=torch_way,
        targets=(Target(1.0, "numpy", "numba", "jax", "torch"),),
        **{"jax": program, **more},
    )


CASES = [
    *(
        application(
            f"nbody-{n}",
            nbody,
            bodies,
            (n,),
            (5,),
            Way(nbody_numba, parallel=True),
            nbody_torch,
            short=n == 1000,
        )
        for n in (1000, 2000)
    ),
    application(
        "mandelbrot",
        mandelbrot,
        plane,
        (500, 100),
        (6, 4),
        Way(mandelbrot_numba, parallel=True),
        mandelbrot_torch,
        jax=Way(mandelbrot_jax, static_argnames="steps"),
        # At the set's edge a rounding decides after how many steps a point leaves.
        mismatches=0.002,
        short=True,
    ),
    application(
        "black-scholes-1M",
        black_scholes,
        options,
        (10**6,),
        (7,),
        Way(black_scholes_numba, parallel=True),
        black_scholes_torch,
        jax=black_scholes_jax,
        short=True,
    ),
    application(
        "kmeans",
        kmeans,
        clusters,
        (10**5, 8, 16),
        (12, 2, 3),
        Way(kmeans_numba, parallel=True),
        kmeans_torch,
        jax=kmeans_jax,
    ),
    application(
        "convolution-5x5",
        convolve,
        picture,
        (1024,),
        (8,),
        Way(convolve_numba, parallel=True),
        convolve_torch,
    ),
    application(
        "mlp",
        mlp,
        layers,
        (256, 784, 512, 10),
        (3, 5, 4, 2),
        mlp_numba,
        mlp_torch,
        tolerance=1e-4,
        short=True,
    ),
]
