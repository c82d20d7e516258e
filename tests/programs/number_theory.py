"""Primes, modular arithmetic, sequences and combinatorial counting."""

import math

import numpy as np


def sieve(n):
    """Primes below n by slices of a boolean sieve."""
    is_prime = np.ones(n, dtype=bool)
    is_prime[:2] = False
    for i in range(2, int(n**0.5) + 1):
        if is_prime[i]:
            is_prime[i * i :: i] = False
    return np.flatnonzero(is_prime)


def sieve_loops(n):
    """Number of primes below n by an inner while loop."""
    composite = np.zeros(n, dtype=np.uint8)
    count = 0
    for i in range(2, n):
        if composite[i]:
            continue
        count += 1
        j = i * i
        while j < n:
            composite[j] = 1
            j += i
    return count


def smallest_factors(n):
    """Smallest prime factor of every number below n."""
    spf = np.arange(n)
    p = 2
    while p * p < n:
        if spf[p] == p:
            multiples = spf[p * p :: p]
            multiples[multiples == np.arange(p * p, n, p)] = p
        p += 1
    return spf


def factorize(n):
    """Prime factors with multiplicity as a list of ints."""
    if n < 1:
        raise ValueError("positive integer expected")
    factors = []
    d = 2
    while d * d <= n:
        while n % d == 0:
            factors.append(d)
            n //= d
        d += 1 if d == 2 else 2
    if n > 1:
        factors.append(n)
    return factors


def gcd_euclid(a, b):
    """Greatest common divisor."""
    while b:
        a, b = b, a % b
    return abs(a)


def gcd_array(a, b):
    """Elementwise greatest common divisor with a masked loop."""
    a, b = a.copy(), b.copy()
    while True:
        live = b != 0
        if not live.any():
            return a
        r = a[live] % b[live]
        a[live] = b[live]
        b[live] = r


def gcd_reduce(values):
    """Greatest common divisor of an array through math.gcd, with an early exit at one."""
    g = 0
    for v in values:
        g = math.gcd(g, int(v))
        if g == 1:
            break
    return g


def extended_gcd(a, b):
    """Bezout coefficients with the gcd."""
    x0, x1, y0, y1 = 1, 0, 0, 1
    while b != 0:
        q, a, b = a // b, b, a % b
        x0, x1 = x1, x0 - q * x1
        y0, y1 = y1, y0 - q * y1
    return a, x0, y0


def mod_pow(base, exponent, modulus):
    """Modular exponentiation by squaring."""
    result = 1
    base %= modulus
    while exponent > 0:
        if exponent & 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result


def mod_pow_array(bases, exponents, modulus):
    """Elementwise modular powers of int64 arrays."""
    result = np.ones_like(bases)
    b = bases % modulus
    e = exponents.copy()
    while (e > 0).any():
        odd = e % 2 == 1
        result = np.where(odd, result * b % modulus, result)
        b = b * b % modulus
        e //= 2
    return result


def mod_inverse(a, m):
    """Modular inverse, or ValueError when it does not exist."""
    g, x, _ = extended_gcd(a % m, m)
    if g != 1:
        raise ValueError(f"{a} has no inverse modulo {m}")
    return x % m


def chinese_remainder(residues, moduli):
    """Solution of simultaneous congruences."""
    total = 1
    for m in moduli:
        total *= int(m)
    x = 0
    for r, m in zip(residues, moduli):
        part = total // int(m)
        x += int(r) * part * mod_inverse(part, int(m))
    return x % total


def miller_rabin(n):
    """Primality of a Python int by fixed Miller-Rabin witnesses."""
    if n < 2:
        return False
    for p in (2, 3, 5, 7, 11, 13):
        if n % p == 0:
            return n == p
    d, s = n - 1, 0
    while d % 2 == 0:
        d //= 2
        s += 1
    for a in (2, 3, 5, 7, 11, 13):
        x = pow(a, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(s - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def collatz_length(n):
    """Number of Collatz steps to one."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def collatz_table(limit):
    """Collatz lengths below limit, reusing shorter results."""
    lengths = np.zeros(limit, dtype=np.int32)
    for start in range(2, limit):
        n, steps = start, 0
        while n >= start:
            n = n >> 1 if n & 1 == 0 else 3 * n + 1
            steps += 1
        lengths[start] = steps + lengths[n]
    return lengths, int(lengths.argmax())


def collatz_array(n, max_steps):
    """Collatz stopping times of an array with masks."""
    n = n.copy()
    steps = np.zeros(n.shape, dtype=int)
    for _ in range(max_steps):
        live = n > 1
        if not np.any(live):
            break
        n = np.where(live, np.where(n % 2 == 0, n // 2, 3 * n + 1), n)
        steps += live
    return steps


def totients(n):
    """Euler's totient of every number up to n."""
    phi = np.arange(n + 1)
    for p in range(2, n + 1):
        if phi[p] == p:
            phi[p::p] -= phi[p::p] // p
    return phi


def divisor_sums(n):
    """Sum of proper divisors below n and the perfect numbers found."""
    s = np.zeros(n, dtype=np.int64)
    for d in range(1, n // 2 + 1):
        s[2 * d :: d] += d
    perfect = [int(k) for k in range(2, n) if s[k] == k]
    return s, perfect


def mobius(n):
    """Moebius function up to n."""
    mu = np.ones(n + 1, dtype=np.int8)
    for p in sieve(n + 1):
        mu[p::p] *= -1
        mu[p * p :: p * p] = 0
    mu[0] = 0
    return mu


def fibonacci_matrix(n):
    """Fibonacci number by powers of an integer matrix."""
    result = np.eye(2, dtype=np.int64)
    m = np.array([[1, 1], [1, 0]], dtype=np.int64)
    while n:
        if n % 2:
            result = result @ m
        m = m @ m
        n //= 2
    return result[0, 1]


def fibonacci_recursive(n):
    """Fibonacci number by plain recursion."""
    if n < 2:
        return n
    return fibonacci_recursive(n - 1) + fibonacci_recursive(n - 2)


def pascal_mod(rows, modulus):
    """Pascal's triangle modulo a number."""
    t = np.zeros((rows, rows), dtype=np.int64)
    t[:, 0] = 1
    for i in range(1, rows):
        t[i, 1 : i + 1] = (t[i - 1, :i] + t[i - 1, 1 : i + 1]) % modulus
    return t


def partitions(n):
    """Partition numbers up to n by Euler's pentagonal recurrence."""
    p = np.zeros(n + 1, dtype=np.int64)
    p[0] = 1
    for i in range(1, n + 1):
        k = 1
        while True:
            g = k * (3 * k - 1) // 2
            if g > i:
                break
            sign = 1 if k % 2 else -1
            p[i] += sign * p[i - g]
            h = g + k
            if h <= i:
                p[i] += sign * p[i - h]
            k += 1
    return p


def big_factorial(n, digits):
    """Factorial as decimal digits in an array, least significant first; returns the length."""
    digits[0] = 1
    length = 1
    for k in range(2, n + 1):
        carry = 0
        for i in range(length):
            carry, digits[i] = divmod(int(digits[i]) * k + carry, 10)
        while carry:
            digits[length] = carry % 10
            carry //= 10
            length += 1
    return length


def josephus(n, k):
    """Order of elimination in the Josephus problem."""
    alive = np.arange(1, n + 1)
    order = np.empty(n, dtype=int)
    pos = 0
    for i in range(n):
        pos = (pos + k - 1) % len(alive)
        order[i] = alive[pos]
        alive = np.delete(alive, pos)
    return order


def n_queens(n):
    """Number of solutions to n queens by backtracking with occupancy arrays."""
    cols = np.zeros(n, dtype=bool)
    d1 = np.zeros(2 * n - 1, dtype=bool)
    d2 = np.zeros(2 * n - 1, dtype=bool)

    def place(row):
        if row == n:
            return 1
        total = 0
        for c in range(n):
            if cols[c] or d1[row + c] or d2[row - c + n - 1]:
                continue
            cols[c] = d1[row + c] = d2[row - c + n - 1] = True
            total += place(row + 1)
            cols[c] = d1[row + c] = d2[row - c + n - 1] = False
        return total

    return place(0)


def magic_square(n):
    """Odd magic square by the siamese method."""
    if n % 2 == 0:
        raise ValueError("odd order expected")
    m = np.zeros((n, n), dtype=int)
    i, j = 0, n // 2
    for v in range(1, n * n + 1):
        m[i, j] = v
        ni, nj = (i - 1) % n, (j + 1) % n
        if m[ni, nj]:
            i = (i + 1) % n
        else:
            i, j = ni, nj
    return m


def digits_of(n, base):
    """Digits of a non-negative integer, most significant first."""
    out = []
    while n:
        n, d = divmod(n, base)
        out.append(d)
    return np.array(out[::-1] or [0])


def isqrt_newton(values):
    """Integer square roots by Newton's iteration on each value."""
    out = np.zeros_like(values)
    for i, v in enumerate(values):
        v = int(v)
        x = v
        y = (x + 1) // 2
        while y < x:
            x = y
            y = (x + v // x) // 2
        out[i] = x
    return out


def continued_fraction(x, terms):
    """Continued fraction terms and convergents of a float."""
    a = []
    h0, h1, k0, k1 = 0, 1, 1, 0
    for _ in range(terms):
        n = math.floor(x)
        a.append(n)
        h0, h1 = h1, n * h1 + h0
        k0, k1 = k1, n * k1 + k0
        frac = x - n
        if frac < 1e-9:
            break
        x = 1 / frac
    return a, (h1, k1)


def integer_division_table(a, b):
    """Floor division, remainder and divmod of every pair, signs included."""
    q = a[:, None] // b[None, :]
    r = a[:, None] % b[None, :]
    assert np.all(q * b + r == a[:, None])
    return q, r, np.fmod(a[:, None], b[None, :])


PROGRAMS = [
    (sieve, lambda rng: (500,)),
    (sieve_loops, lambda rng: (250,)),
    (smallest_factors, lambda rng: (300,)),
    (factorize, lambda rng: (360360,)),
    (factorize, lambda rng: (0,)),
    (gcd_euclid, lambda rng: (123456, 7890)),
    (gcd_euclid, lambda rng: (np.int64(-48), np.int64(36))),
    (gcd_array, lambda rng: (rng.integers(1, 1000, 60), rng.integers(0, 1000, 60))),
    (gcd_reduce, lambda rng: (rng.integers(1, 50, 20) * 6,)),
    (extended_gcd, lambda rng: (240, 46)),
    (mod_pow, lambda rng: (7, 560, 561)),
    (mod_pow, lambda rng: (3, 10**18, 10**9 + 7)),
    (mod_pow_array, lambda rng: (rng.integers(1, 999, 40), rng.integers(0, 999, 40), 10007)),
    (mod_inverse, lambda rng: (17, 3120)),
    (mod_inverse, lambda rng: (6, 9)),
    (chinese_remainder, lambda rng: (np.array([2, 3, 2]), np.array([3, 5, 7]))),
    (miller_rabin, lambda rng: (1000003,)),
    (miller_rabin, lambda rng: (561 * 1009,)),
    (collatz_length, lambda rng: (27,)),
    (collatz_length, lambda rng: (np.int64(97),)),
    (collatz_table, lambda rng: (100,)),
    (collatz_array, lambda rng: (np.arange(1, 60), 120)),
    (totients, lambda rng: (100,)),
    (divisor_sums, lambda rng: (200,)),
    (mobius, lambda rng: (120,)),
    (fibonacci_matrix, lambda rng: (80,)),
    (fibonacci_recursive, lambda rng: (12,)),
    (pascal_mod, lambda rng: (24, 7)),
    (partitions, lambda rng: (60,)),
    (big_factorial, lambda rng: (22, np.zeros(40, dtype=int))),
    (big_factorial, lambda rng: (22, np.zeros(20, dtype=np.uint8))),
    (josephus, lambda rng: (41, 3)),
    (n_queens, lambda rng: (5,)),
    (magic_square, lambda rng: (7,)),
    (magic_square, lambda rng: (4,)),
    (digits_of, lambda rng: (987654321, 16)),
    (digits_of, lambda rng: (0, 2)),
    (isqrt_newton, lambda rng: (rng.integers(0, 10**9, 20),)),
    (continued_fraction, lambda rng: (math.pi, 8)),
    (
        integer_division_table,
        lambda rng: (np.arange(-9, 10), np.array([-4, -3, -1, 1, 2, 5])),
    ),
]
