"""Recursive filters, smoothing, transforms by hand and np.fft based filtering."""

import math

import numpy as np


def biquad(x, b, a):
    """Direct-form I biquad filter."""
    y = np.zeros_like(x)
    x1 = x2 = y1 = y2 = 0.0
    for n in range(len(x)):
        y[n] = b[0] * x[n] + b[1] * x1 + b[2] * x2 - a[1] * y1 - a[2] * y2
        x2, x1 = x1, x[n]
        y2, y1 = y1, y[n]
    return y


def biquad_cascade(x, sections):
    """Cascade of transposed direct-form II biquads over a (n, 6) coefficient array."""
    y = x.copy()
    for b0, b1, b2, _, a1, a2 in sections:
        z1 = z2 = 0.0
        for n in range(y.size):
            v = y[n]
            out = b0 * v + z1
            z1 = b1 * v - a1 * out + z2
            z2 = b2 * v - a2 * out
            y[n] = out
    return y


def iir_filter(b, a, x):
    """General IIR filter with dot products of reversed history."""
    if a[0] != 1:
        b = b / a[0]
        a = a / a[0]
    y = np.zeros(len(x))
    for n in range(len(x)):
        k = min(n + 1, len(b))
        y[n] = np.dot(b[:k], x[n - k + 1 : n + 1][::-1])
        k = min(n, len(a) - 1)
        if k > 0:
            y[n] -= np.dot(a[1 : k + 1], y[n - k : n][::-1])
    return y


def exponential_smoothing(x, alpha):
    """Simple exponential smoothing."""
    s = np.empty_like(x)
    s[0] = x[0]
    for t in range(1, len(x)):
        s[t] = alpha * x[t] + (1 - alpha) * s[t - 1]
    return s


def holt_winters(x, season, alpha, beta, gamma, horizon):
    """Additive Holt-Winters forecast."""
    level = x[:season].mean()
    trend = (x[season : 2 * season].mean() - level) / season
    seasonal = x[:season] - level
    for t in range(len(x)):
        last = level
        k = t % season
        level = alpha * (x[t] - seasonal[k]) + (1 - alpha) * (level + trend)
        trend = beta * (level - last) + (1 - beta) * trend
        seasonal[k] = gamma * (x[t] - level) + (1 - gamma) * seasonal[k]
    return np.array(
        [level + (h + 1) * trend + seasonal[(len(x) + h) % season] for h in range(horizon)]
    )


def kalman_1d(z, q, r):
    """Scalar Kalman filter of a random walk; returns estimates and variances."""
    xhat = np.zeros(z.shape)
    p = np.zeros(z.shape)
    xhat[0] = z[0]
    p[0] = 1.0
    for k in range(1, len(z)):
        p_minus = p[k - 1] + q
        gain = p_minus / (p_minus + r)
        xhat[k] = xhat[k - 1] + gain * (z[k] - xhat[k - 1])
        p[k] = (1 - gain) * p_minus
    return xhat, p


def kalman_constant_velocity(z, dt, q, r):
    """Two-state Kalman filter in matrix form that skips missing measurements."""
    f = np.array([[1.0, dt], [0.0, 1.0]])
    h = np.array([[1.0, 0.0]])
    x = np.zeros((2, 1))
    p = np.eye(2) * 100
    out = np.empty((z.size, 2))
    for k, zk in enumerate(z):
        x = f @ x
        p = f @ p @ f.T + q * np.eye(2)
        if not np.isnan(zk):
            s = (h @ p @ h.T)[0, 0] + r
            gain = p @ h.T / s
            x = x + gain * (zk - (h @ x)[0, 0])
            p = (np.eye(2) - gain @ h) @ p
        out[k] = x.ravel()
    return out


def median_filter(x, width):
    """Running median with edge padding."""
    if width % 2 == 0:
        raise ValueError("width must be odd")
    half = width // 2
    padded = np.pad(x, half, mode="edge")
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = np.median(padded[i : i + width])
    return out


def median_filter_windows(x, width):
    """Running median of full windows through sliding_window_view."""
    return np.median(np.lib.stride_tricks.sliding_window_view(x, width), axis=-1)


def moving_average(x, w):
    """Moving average by differences of a cumulative sum."""
    c = np.cumsum(np.insert(x, 0, 0))
    return (c[w:] - c[:-w]) / w


def moving_average_window(x, w):
    """Trailing moving average with a running total and a short start."""
    out = np.zeros(len(x))
    total = 0.0
    for i in range(len(x)):
        total += x[i]
        if i >= w:
            total -= x[i - w]
        out[i] = total / min(i + 1, w)
    return out


def savgol_smooth(x):
    """Five-point quadratic Savitzky-Golay smoothing by np.convolve."""
    kernel = np.array([-3, 12, 17, 12, -3]) / 35
    return np.convolve(x, kernel, mode="valid")


def fir_direct(x, h):
    """Full linear convolution by an outer loop over taps."""
    y = np.zeros(len(x) + len(h) - 1)
    for k, tap in enumerate(h):
        y[k : k + len(x)] += tap * x
    return y


def bit_reverse_indices(n):
    """Bit-reversal permutation of a power of two."""
    bits = n.bit_length() - 1
    rev = np.zeros(n, dtype=int)
    for i in range(n):
        r = 0
        v = i
        for _ in range(bits):
            r = (r << 1) | (v & 1)
            v >>= 1
        rev[i] = r
    return rev


def fft_radix2(x):
    """Iterative radix-2 FFT with bit reversal and scalar butterflies."""
    n = len(x)
    if n & (n - 1):
        raise ValueError("length must be a power of two")
    a = x[bit_reverse_indices(n)].astype(complex)
    size = 2
    while size <= n:
        half = size // 2
        w_step = np.exp(-2j * np.pi / size)
        for start in range(0, n, size):
            w = 1.0 + 0j
            for k in range(half):
                t = w * a[start + k + half]
                u = a[start + k]
                a[start + k] = u + t
                a[start + k + half] = u - t
                w *= w_step
        size *= 2
    return a


def fft_radix2_vector(x):
    """Radix-2 FFT with whole stages of butterflies as slices of a reshaped array."""
    n = x.shape[0]
    a = x[bit_reverse_indices(n)].astype(np.complex128)
    half = 1
    while half < n:
        w = np.exp(-1j * np.pi * np.arange(half) / half)
        blocks = a.reshape(-1, 2 * half)
        odd = blocks[:, half:] * w
        even = blocks[:, :half].copy()
        blocks[:, :half] = even + odd
        blocks[:, half:] = even - odd
        half *= 2
    return a


def fft_recursive(x):
    """Recursive radix-2 FFT."""
    n = len(x)
    if n <= 1:
        return x.astype(complex)
    even = fft_recursive(x[::2])
    odd = fft_recursive(x[1::2])
    t = np.exp(-2j * np.pi * np.arange(n // 2) / n) * odd
    return np.concatenate([even + t, even - t])


def dft_naive(x):
    """Discrete Fourier transform by a double loop."""
    n = len(x)
    out = np.zeros(n, dtype=complex)
    for k in range(n):
        s = 0j
        for t in range(n):
            angle = 2 * math.pi * k * t / n
            s += x[t] * complex(math.cos(angle), -math.sin(angle))
        out[k] = s
    return out


def dft_matrix(x):
    """Discrete Fourier transform as a matrix product."""
    n = np.arange(len(x))
    return np.exp(-2j * np.pi * np.outer(n, n) / len(x)) @ x


def goertzel(x, freq, rate):
    """Signal power at one frequency."""
    k = int(0.5 + len(x) * freq / rate)
    coeff = 2 * math.cos(2 * math.pi * k / len(x))
    s1 = s2 = 0.0
    for v in x:
        s1, s2 = v + coeff * s1 - s2, s1
    return s1 * s1 + s2 * s2 - coeff * s1 * s2


def walsh_hadamard(a):
    """Fast Walsh-Hadamard transform in place by scalar butterflies."""
    h = 1
    n = len(a)
    while h < n:
        for i in range(0, n, h * 2):
            for j in range(i, i + h):
                x, y = a[j], a[j + h]
                a[j], a[j + h] = x + y, x - y
        h *= 2


def walsh_hadamard_reshape(a):
    """Walsh-Hadamard transform along the last axis with reshapes."""
    out = a.copy()
    n = a.shape[-1]
    h = 1
    while h < n:
        v = out.reshape(*a.shape[:-1], n // (2 * h), 2, h)
        s = v[..., 0, :] + v[..., 1, :]
        d = v[..., 0, :] - v[..., 1, :]
        v[..., 0, :] = s
        v[..., 1, :] = d
        h *= 2
    return out


def dct2(x):
    """Orthonormal DCT-II by an explicit cosine matrix."""
    n = len(x)
    k = np.arange(n)[:, None]
    c = np.cos(np.pi * k * (2 * np.arange(n) + 1) / (2 * n))
    scale = np.where(k[:, 0] == 0, np.sqrt(1 / n), np.sqrt(2 / n))
    return scale * (c @ x)


def haar_wavelet(x, levels):
    """Haar wavelet decomposition into a list of details and an approximation."""
    details = []
    a = x
    for _ in range(levels):
        if len(a) % 2:
            raise ValueError("odd length")
        details.append((a[0::2] - a[1::2]) / math.sqrt(2))
        a = (a[0::2] + a[1::2]) / math.sqrt(2)
    return a, details


def haar_inplace(a):
    """Full Haar transform written over the argument through a scratch copy."""
    n = a.size
    while n > 1:
        tmp = a[:n].copy()
        half = n // 2
        a[:half] = (tmp[::2] + tmp[1::2]) / 2
        a[half:n] = (tmp[::2] - tmp[1::2]) / 2
        n = half
    return a


def fft_lowpass(x, rate, cutoff):
    """Zero the spectrum above a cutoff with rfft and irfft."""
    spectrum = np.fft.rfft(x)
    freqs = np.fft.rfftfreq(len(x), d=1 / rate)
    spectrum[freqs > cutoff] = 0
    return np.fft.irfft(spectrum, n=len(x))


def power_spectrum(x, window):
    """Averaged periodogram over half-overlapping Hann windows."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    hop = window // 2
    total = np.zeros(window // 2 + 1)
    count = 0
    for start in range(0, len(x) - window + 1, hop):
        seg = x[start : start + window] * hann
        total += np.abs(np.fft.rfft(seg)) ** 2
        count += 1
    return total / count if count else total


def autocorrelation(x, max_lag):
    """Normalised autocorrelation up to a lag."""
    x = x - x.mean()
    var = np.dot(x, x)
    return np.array([np.dot(x[: len(x) - k], x[k:]) / var for k in range(max_lag + 1)])


def cross_correlate_peak(a, b):
    """Lag of the largest cross-correlation."""
    c = np.correlate(a, b, mode="full")
    return int(c.argmax()) - (len(b) - 1), c.max()


def resample_interp(t, x, t_new):
    """Linear resampling by np.interp after sorting the samples."""
    order = np.argsort(t)
    return np.interp(t_new, t[order], x[order], left=0.0, right=np.nan)


def zero_crossings(x):
    """Interpolated positions of the sign changes of a signal."""
    idx = np.where(np.diff(np.signbit(x)))[0]
    return idx + x[idx] / (x[idx] - x[idx + 1])


def find_peaks(x, threshold, min_distance):
    """Indices of local maxima above a threshold, greedily at least min_distance apart."""
    peaks = []
    i = 1
    while i < len(x) - 1:
        if x[i] > threshold and x[i - 1] < x[i] >= x[i + 1]:
            peaks.append(i)
            i += min_distance
        else:
            i += 1
    return np.array(peaks, dtype=int)


def schmitt_trigger(x, low, high):
    """Hysteresis threshold of a signal to booleans."""
    out = np.zeros(x.shape, dtype=bool)
    on = False
    for i, v in enumerate(x):
        if not on and v > high:
            on = True
        elif on and v < low:
            on = False
        out[i] = on
    return out


def lms_filter(x, d, mu, taps):
    """Least-mean-squares adaptive filter; returns weights and the error signal."""
    w = np.zeros(taps)
    err = np.zeros(len(x))
    for n in range(taps, len(x)):
        u = x[n - taps : n][::-1]
        err[n] = d[n] - w @ u
        w += 2 * mu * err[n] * u
    return w, err


def envelope_follower(x, attack, release):
    """Peak envelope with separate attack and release, in float32 if the input is."""
    env = np.zeros_like(x)
    level = x.dtype.type(0)
    for i in range(x.shape[0]):
        mag = abs(x[i])
        coef = attack if mag > level else release
        level = coef * level + (1 - coef) * mag
        env[i] = level
    return env


def noisy_sine(rng, n):
    """Sine with noise."""
    return np.sin(np.arange(n) * 0.3) + 0.2 * rng.standard_normal(n)


BUTTER = (np.array([0.2, 0.4, 0.2]), np.array([1.0, -0.4, 0.2]))

PROGRAMS = [
    (biquad, lambda rng: (noisy_sine(rng, 150), *BUTTER)),
    (biquad, lambda rng: (noisy_sine(rng, 100).astype(np.float32), *BUTTER)),
    (biquad, lambda rng: (noisy_sine(rng, 100), [0.2, 0.4, 0.2], [1.0, -0.4])),
    (
        biquad_cascade,
        lambda rng: (noisy_sine(rng, 80), np.tile([0.2, 0.4, 0.2, 1.0, -0.4, 0.2], (3, 1))),
    ),
    (
        iir_filter,
        lambda rng: (np.array([1.0, 0.5]), np.array([2.0, -0.6, 0.1]), noisy_sine(rng, 60)),
    ),
    (iir_filter, lambda rng: (*BUTTER, noisy_sine(rng, 60))),
    (exponential_smoothing, lambda rng: (noisy_sine(rng, 150), 0.3)),
    (exponential_smoothing, lambda rng: (rng.integers(0, 50, 40), 0.3)),
    (exponential_smoothing, lambda rng: (np.array([]), 0.3)),
    (holt_winters, lambda rng: (noisy_sine(rng, 60), 12, 0.3, 0.1, 0.2, 6)),
    (kalman_1d, lambda rng: (noisy_sine(rng, 120), 1e-3, 0.1)),
    (
        kalman_constant_velocity,
        lambda rng: (np.where(rng.random(30) < 0.2, np.nan, rng.random(30)), 0.1, 1e-3, 0.5),
    ),
    (median_filter, lambda rng: (noisy_sine(rng, 60), 5)),
    (median_filter, lambda rng: (rng.integers(0, 256, 40, dtype=np.uint8), 3)),
    (median_filter, lambda rng: (noisy_sine(rng, 60), 4)),
    (median_filter_windows, lambda rng: (noisy_sine(rng, 80), 7)),
    (moving_average, lambda rng: (noisy_sine(rng, 200), 8)),
    (moving_average, lambda rng: (rng.integers(0, 9, 200), 8)),
    (moving_average_window, lambda rng: (noisy_sine(rng, 120), 10)),
    (savgol_smooth, lambda rng: (noisy_sine(rng, 120),)),
    (fir_direct, lambda rng: (noisy_sine(rng, 100), rng.random(9))),
    (fft_radix2, lambda rng: (rng.standard_normal(64),)),
    (fft_radix2, lambda rng: (rng.standard_normal(60),)),
    (fft_radix2_vector, lambda rng: (rng.standard_normal(128),)),
    (
        fft_radix2_vector,
        lambda rng: ((rng.random(32) + 1j * rng.random(32)).astype(np.complex64),),
    ),
    (fft_recursive, lambda rng: (rng.standard_normal(32),)),
    (dft_naive, lambda rng: (rng.standard_normal(24),)),
    (dft_matrix, lambda rng: (rng.standard_normal(40),)),
    (goertzel, lambda rng: (noisy_sine(rng, 200), 10.0, 200.0)),
    (walsh_hadamard, lambda rng: (rng.standard_normal(64),)),
    (walsh_hadamard, lambda rng: (rng.integers(-5, 6, 32),)),
    (walsh_hadamard, lambda rng: (rng.standard_normal(24),)),
    (walsh_hadamard_reshape, lambda rng: (rng.standard_normal((3, 32)),)),
    (dct2, lambda rng: (rng.standard_normal(40),)),
    (haar_wavelet, lambda rng: (rng.standard_normal(64), 4)),
    (haar_wavelet, lambda rng: (rng.standard_normal(60), 4)),
    (haar_inplace, lambda rng: (rng.standard_normal(64),)),
    (haar_inplace, lambda rng: (rng.integers(0, 100, 16),)),
    (fft_lowpass, lambda rng: (noisy_sine(rng, 200), 100.0, 8.0)),
    (power_spectrum, lambda rng: (noisy_sine(rng, 300), 64)),
    (power_spectrum, lambda rng: (noisy_sine(rng, 30), 64)),
    (autocorrelation, lambda rng: (noisy_sine(rng, 150), 20)),
    (cross_correlate_peak, lambda rng: (noisy_sine(rng, 60), noisy_sine(rng, 40))),
    (resample_interp, lambda rng: (rng.random(40), rng.random(40), np.linspace(-0.2, 1.2, 30))),
    (zero_crossings, lambda rng: (noisy_sine(rng, 120),)),
    (find_peaks, lambda rng: (noisy_sine(rng, 150), 0.3, 5)),
    (find_peaks, lambda rng: (np.zeros(20), 0.3, 5)),
    (schmitt_trigger, lambda rng: (noisy_sine(rng, 150), -0.4, 0.5)),
    (lms_filter, lambda rng: (noisy_sine(rng, 90), noisy_sine(rng, 90), 0.01, 6)),
    (envelope_follower, lambda rng: (noisy_sine(rng, 100), 0.5, 0.95)),
    (envelope_follower, lambda rng: (noisy_sine(rng, 100).astype(np.float32), 0.5, 0.95)),
]
