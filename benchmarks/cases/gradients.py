"""Derivatives and batches: dsl's, JAX's and PyTorch's against derivatives written out by hand in NumPy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import dsl
from dsl.commands.bench.case import Case, Target, Way

if TYPE_CHECKING:
    import jax
    import jnp
    import torch


# --- A recurrent network: tanh(h @ w), many steps --------------------------------------------------


def steps(w, h, n):
    for _ in range(n):
        h = np.tanh(h @ w)
    return h.sum()


def steps_own(w, h, n):
    return dsl.grad(steps)(w, h, n)


def steps_by_hand(w, h, n):
    states = [h]
    for _ in range(n):
        states.append(np.tanh(states[-1] @ w))
    g, total = np.ones_like(h), np.zeros_like(w)
    for k in range(n, 0, -1):
        g = g * (1 - states[k] ** 2)
        total += states[k - 1].T @ g
        g = g @ w.T
    return total


def steps_jax(w, h, n):
    def loss(w):
        last, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, length=n)
        return last.sum()

    return jax.grad(loss)(w)


def steps_torch(w, h, n):
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        for _ in range(n):
            h = torch.tanh(h @ w)
        return torch.autograd.grad(h.sum(), w)[0]


def recurrent(rng, size, n):
    # A rotation, slightly damped: the states are not chaotic, where a rounding would change the gradient.
    w = (0.995 * np.linalg.qr(rng.standard_normal((size, size)))[0]).astype(np.float32)
    return w, rng.standard_normal((size, size), np.float32), n


# --- The loss of a perceptron --------------------------------------------------------------------


def mlp_loss(w1, b1, w2, b2, w3, b3, x, y):
    h = np.tanh(x @ w1 + b1)
    h = np.tanh(h @ w2 + b2)
    return ((h @ w3 + b3 - y) ** 2).mean()


def mlp_own(w1, b1, w2, b2, w3, b3, x, y):
    return dsl.grad(mlp_loss, argnums=(0, 1, 2, 3, 4, 5))(w1, b1, w2, b2, w3, b3, x, y)


def mlp_by_hand(w1, b1, w2, b2, w3, b3, x, y):
    h1 = np.tanh(x @ w1 + b1)
    h2 = np.tanh(h1 @ w2 + b2)
    g3 = (h2 @ w3 + b3 - y) * np.float32(2 / y.size)
    g2 = (g3 @ w3.T) * (1 - h2 * h2)
    g1 = (g2 @ w2.T) * (1 - h1 * h1)
    return x.T @ g1, g1.sum(0), h1.T @ g2, g2.sum(0), h2.T @ g3, g3.sum(0)


def mlp_jax(w1, b1, w2, b2, w3, b3, x, y):
    def loss(w1, b1, w2, b2, w3, b3):
        h = jnp.tanh(x @ w1 + b1)
        h = jnp.tanh(h @ w2 + b2)
        return ((h @ w3 + b3 - y) ** 2).mean()

    return jax.grad(loss, argnums=(0, 1, 2, 3, 4, 5))(w1, b1, w2, b2, w3, b3)


def mlp_torch(w1, b1, w2, b2, w3, b3, x, y):
    with torch.enable_grad():
        parameters = [p.detach().requires_grad_() for p in (w1, b1, w2, b2, w3, b3)]
        w1, b1, w2, b2, w3, b3 = parameters
        h = torch.tanh(torch.addmm(b1, x, w1))
        h = torch.tanh(torch.addmm(b2, h, w2))
        return torch.autograd.grad(((torch.addmm(b3, h, w3) - y) ** 2).mean(), parameters)


def layers(rng, batch, inputs, hidden, outputs):
    arrays = []
    for m, n in ((inputs, hidden), (hidden, hidden), (hidden, outputs)):
        arrays += [rng.standard_normal((m, n), np.float32) / np.float32(math.sqrt(m))]
        arrays += [rng.standard_normal(n, np.float32)]
    return (
        *arrays,
        rng.standard_normal((batch, inputs), np.float32),
        rng.standard_normal((batch, outputs), np.float32),
    )


# --- Logistic regression -------------------------------------------------------------------------


def logistic_loss(w, x, y):
    z = x @ w
    return (np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - z * y).mean()


def logistic_own(w, x, y):
    return dsl.grad(logistic_loss)(w, x, y)


def logistic_by_hand(w, x, y):
    return x.T @ ((1 / (1 + np.exp(-(x @ w))) - y) / np.float32(len(y)))


def logistic_jax(w, x, y):
    def loss(w):
        z = x @ w
        return (jnp.log1p(jnp.exp(-jnp.abs(z))) + jnp.maximum(z, 0) - z * y).mean()

    return jax.grad(loss)(w)


def logistic_torch(w, x, y):
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y)
        return torch.autograd.grad(loss, w)[0]


def observations(rng, n, features):
    x = rng.standard_normal((n, features), np.float32)
    return rng.standard_normal(features, np.float32), x, (rng.random(n) < 0.5).astype(np.float32)


# --- An elementwise function, its gradient and Hessian-vector product -----------------------------


def waves(x):
    return (np.tanh(x) * np.exp(-x * x) + np.sin(x)).sum()


def waves_own(x):
    return dsl.grad(waves)(x)


def waves_by_hand(x):
    t, e = np.tanh(x), np.exp(-x * x)
    return (1 - t * t) * e - 2 * x * t * e + np.cos(x)


def waves_jax(x):
    return jax.grad(lambda x: (jnp.tanh(x) * jnp.exp(-x * x) + jnp.sin(x)).sum())(x)


def waves_torch(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad((torch.tanh(x) * torch.exp(-x * x) + torch.sin(x)).sum(), x)[0]


def hvp_own(x, v):
    return dsl.jvp(dsl.grad(waves), (x,), (v,))[1]


def hvp_by_hand(x, v):
    t, e = np.tanh(x), np.exp(-x * x)
    d = 1 - t * t
    return v * (-2 * t * d * e - 4 * x * d * e - 2 * t * e + 4 * x * x * t * e - np.sin(x))


def hvp_jax(x, v):
    loss = lambda x: (jnp.tanh(x) * jnp.exp(-x * x) + jnp.sin(x)).sum()
    return jax.jvp(jax.grad(loss), (x,), (v,))[1]


def hvp_torch(x, v):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        loss = (torch.tanh(x) * torch.exp(-x * x) + torch.sin(x)).sum()
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(g, x, v)[0]


def vector(rng, n):
    return (rng.standard_normal(n, np.float32),)


def two_vectors(rng, n):
    return rng.standard_normal(n, np.float32), rng.standard_normal(n, np.float32)


# --- vmap of a small function: one step of a pendulum, and Newton's method ------------------------


def pendulum(state, length):
    angle, speed = state[0], state[1]
    speed = speed - 0.01 * 9.81 / length * np.sin(angle)
    return np.stack([angle + 0.01 * speed, speed])


def pendula_own(states, lengths):
    return dsl.vmap(pendulum)(states, lengths)


def pendula_by_hand(states, lengths):
    speed = states[:, 1] - 0.01 * 9.81 / lengths * np.sin(states[:, 0])
    return np.stack([states[:, 0] + 0.01 * speed, speed], axis=1)


def pendula_jax(states, lengths):
    def pendulum(state, length):
        angle, speed = state[0], state[1]
        speed = speed - 0.01 * 9.81 / length * jnp.sin(angle)
        return jnp.stack([angle + 0.01 * speed, speed])

    return jax.vmap(pendulum)(states, lengths)


def pendula_torch(states, lengths):
    speed = states[:, 1] - 0.01 * 9.81 / lengths * torch.sin(states[:, 0])
    return torch.stack([states[:, 0] + 0.01 * speed, speed], dim=1)


def swinging(rng, n):
    return rng.standard_normal((n, 2)), 0.5 + rng.random(n)


# --- Cases ---------------------------------------------------------------------------------------


def gradient(name, own, by_hand, inputs, size, tiny, jax_way, torch_way, *targets, **more):
    return Case(
        name=name, row="gradients", program=by_hand, own=own, inputs=inputs, size=size, tiny=tiny, jax=jax_way,
        torch=torch_way, targets=targets, **{"tolerance": 1e-4, "short": True, **more},
    )  # fmt: skip


CASES = [
    gradient("grad-scan-1000", steps_own, steps_by_hand, recurrent, (32, 1000), (3, 4),
             Way(steps_jax, static_argnames="n"), steps_torch, Target(2.0, "jax")),
    gradient("grad-mlp", mlp_own, mlp_by_hand, layers, (256, 128, 256, 10), (3, 4, 5, 2), mlp_jax, mlp_torch,
             Target(1.0, "jax", "torch")),
    gradient("grad-logistic", logistic_own, logistic_by_hand, observations, (20_000, 64), (7, 3), logistic_jax,
             logistic_torch, Target(1.0, "jax", "torch")),
    gradient("grad-elementwise-1M", waves_own, waves_by_hand, vector, (10**6,), (7,), waves_jax, waves_torch,
             Target(1.5, "jax")),
    gradient("hvp-elementwise-1M", hvp_own, hvp_by_hand, two_vectors, (10**6,), (7,), hvp_jax, hvp_torch,
             Target(1.0, "jax")),
    gradient("vmap-pendulum-100k", pendula_own, pendula_by_hand, swinging, (100_000,), (5,), pendula_jax, pendula_torch,
             Target(1.0, "jax")),
]  # fmt: skip
