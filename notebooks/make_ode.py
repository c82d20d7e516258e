"""Write notebooks/ode.ipynb and run it: `python notebooks/make_ode.py`."""

from __future__ import annotations

from cells import write

CELLS = r"""
# Fit the parameters of an ODE through an adaptive solver

Foxes eat rabbits (the equations of Lotka and Volterra). From noisy counts at a few moments we want the four rates. The solver chooses
its steps by itself: it takes as many as the data needs, and rejects steps that were too long. Gradients go through all of that, because
`dsl.grad` differentiates `while` loops and branches as they stand.
---
import time

import numpy as np

import dsl


def change(state, rates):
    rabbits, foxes = state[0], state[1]
    return np.stack(
        [
            rates[0] * rabbits - rates[1] * rabbits * foxes,
            rates[2] * rabbits * foxes - rates[3] * foxes,
        ]
    )


def advance(state, rates, start, end, tolerance):
    # Bogacki and Shampine's method of order 3, with an estimate of its error of order 2.
    t, step = start, 0.05
    while t < end:
        step = min(step, end - t)
        k1 = change(state, rates)
        k2 = change(state + 0.5 * step * k1, rates)
        k3 = change(state + 0.75 * step * k2, rates)
        new = state + step * (2 * k1 + 3 * k2 + 4 * k3) / 9
        k4 = change(new, rates)
        error = np.abs(step * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)).max() + 1e-12
        if error <= tolerance:
            t, state = t + step, new
        step = step * min(3.0, max(0.3, 0.9 * (tolerance / error) ** (1 / 3)))
    return state


def solve(rates, first, moments):
    states = np.zeros((moments.shape[0], 2))
    state, now = first, 0.0
    for k in range(moments.shape[0]):
        state = advance(state, rates, now, moments[k], 1e-6)
        now = moments[k]
        states[k] = state
    return states


truth = np.array([1.1, 0.4, 0.1, 0.4])
first = np.array([10.0, 5.0])
moments = np.linspace(0.5, 20.0, 40)
clean = dsl.jit(solve)(truth, first, moments)
counts = clean * (1 + 0.05 * np.random.default_rng(3).standard_normal(clean.shape))
print(clean[:3].round(3))
===
## The gradient, checked

The loss compares logarithms, so that small and large counts weigh alike. Its gradient with respect to the rates, beside finite
differences, and its second derivatives:
---
def loss(rates):
    return ((np.log(solve(rates, first, moments)) - np.log(counts)) ** 2).mean()


guess = np.array([0.9, 0.3, 0.13, 0.55])
gradient = dsl.grad(loss)(guess)
compiled = dsl.jit(loss)
differences = [(compiled(guess + d) - compiled(guess - d)) / 2e-5 for d in 1e-5 * np.eye(4)]
print("gradient   ", gradient.round(4))
print("differences", np.round(differences, 4))
print(
    "second derivatives symmetric:",
    np.allclose(curved := dsl.hessian(loss)(truth), curved.T, rtol=1e-4),
)
===
The time of a gradient, beside that of the loss alone and of plain NumPy:
---
# Differs from machine to machine.
def best(function, repeat=5):
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        function(guess)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


print(
    f"loss {best(compiled):.2f} ms, with gradient {best(dsl.value_and_grad(loss)):.2f} ms, plain NumPy {best(loss, 1):.0f} ms"
)
===
## The fit

Adam on the logarithms of the rates, which keeps them positive: one compiled function for loss, gradient and update.
---
optimizer = dsl.optim.Adam(0.02)
logs = {"rates": np.log(guess)}
state = optimizer.init(logs)
step = optimizer.minimize(lambda logs: loss(np.exp(logs["rates"])), in_place=True)
losses = [step(logs, state) for _ in range(400)]
fitted = np.exp(logs["rates"])
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
print("fitted", fitted.round(2), "truth", truth)
===
The curvature of the loss says how sure the rates are: the standard errors that it gives.
---
noise = losses[-1]
spread = np.sqrt(np.diag(np.linalg.inv(dsl.hessian(loss)(fitted) * counts.size / (2 * noise))))
for name, value, error, true in zip(("births", "bites", "growth", "deaths"), fitted, spread, truth):
    print(f"{name}: {value:.2f} +- {error:.2f}, truth {true}")
===
## Pictures
---
# Differs from machine to machine.
try:
    import matplotlib.pyplot as plt

    fine = np.linspace(0.05, 20.0, 400)
    curve, before = dsl.jit(solve)(fitted, first, fine), dsl.jit(solve)(guess, first, fine)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
    for k, (name, colour) in enumerate((("rabbits", "tab:blue"), ("foxes", "tab:red"))):
        left.plot(moments, counts[:, k], "o", ms=3, color=colour)
        left.plot(fine, curve[:, k], color=colour, label=name)
        left.plot(fine, before[:, k], ":", lw=1, color=colour)
    left.set(xlabel="time", ylabel="count", title="counts, fit, and first guess (dotted)")
    left.legend()
    right.semilogy(losses)
    right.set(xlabel="step", title="loss")
    plt.show()
except ModuleNotFoundError:
    print('There is no matplotlib: run `pip install -e ".[bench]"`.')
===
[Derivatives](../docs/autodiff.md) tells what is kept of such a loop and what that costs.
"""

if __name__ == "__main__":
    write("ode", CELLS)
