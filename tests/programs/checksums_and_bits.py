"""Checksums, hashes, pseudo-random generators and bit manipulation."""

import numpy as np


def crc_table(poly, bits):
    """Lookup table of a reflected CRC polynomial for inputs of a few bits."""
    table = np.zeros(1 << bits, dtype=np.uint32)
    for i in range(len(table)):
        c = i
        for _ in range(bits):
            c = (c >> 1) ^ poly if c & 1 else c >> 1
        table[i] = c
    return table


def crc32_table_vectorised():
    """Lookup table of CRC-32 for all bytes at once."""
    c = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        c = np.where(c & 1, (c >> 1) ^ np.uint32(0xEDB88320), c >> 1)
    return c


def crc32(data, table):
    """CRC-32 of a byte array with a given table, as a Python int."""
    crc = np.uint32(0xFFFFFFFF)
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> np.uint32(8))
    return int(crc ^ np.uint32(0xFFFFFFFF))


def crc32_python_ints(data, table):
    """CRC-32 with every byte turned into a Python int."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = int(table[(crc ^ int(byte)) & 0xFF]) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def crc16_bitwise(data):
    """CRC-16-CCITT bit by bit."""
    crc = 0xFFFF
    for b in data:
        crc ^= int(b) << 8
        for _ in range(8):
            if crc & 0x8000:
                crc = (crc << 1) ^ 0x1021
            else:
                crc <<= 1
            crc &= 0xFFFF
    return crc


def adler32(data):
    """Adler-32 by a loop."""
    a, b = 1, 0
    for x in data:
        a = (a + int(x)) % 65521
        b = (b + a) % 65521
    return (b << 16) | a


def adler32_cumsum(data):
    """Adler-32 with a cumulative sum of int64."""
    a = 1 + np.cumsum(data.astype(np.int64))
    return int(a.sum() % 65521) << 16 | int(a[-1] % 65521)


def fletcher16(data):
    """Fletcher-16 checksum."""
    s1 = s2 = 0
    for i in range(data.shape[0]):
        s1 = (s1 + int(data[i])) % 255
        s2 = (s2 + s1) % 255
    return s2 * 256 + s1


def fletcher32(words):
    """Fletcher-32 over uint16 words in uint32 NumPy scalars."""
    s1 = np.uint32(0xFFFF)
    s2 = np.uint32(0xFFFF)
    for w in words:
        s1 = s1 + w
        s2 = s2 + s1
        s1 = (s1 & np.uint32(0xFFFF)) + (s1 >> np.uint32(16))
        s2 = (s2 & np.uint32(0xFFFF)) + (s2 >> np.uint32(16))
    return s2 << np.uint32(16) | s1


def internet_checksum(words):
    """Ones' complement checksum with carries folded."""
    total = int(words.sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def fnv1a_32(data):
    """FNV-1a over bytes with a masked Python int."""
    h = 0x811C9DC5
    for b in data:
        h ^= int(b)
        h = (h * 0x01000193) & 0xFFFFFFFF
    return h


def fnv1a_lanes(columns):
    """FNV-1a of every row at once in wrapping uint64 arithmetic."""
    h = np.full(columns.shape[0], 0xCBF29CE484222325, dtype=np.uint64)
    prime = np.uint64(0x100000001B3)
    for j in range(columns.shape[1]):
        h ^= columns[:, j]
        h *= prime
    return h


def djb2_scalar_wrap(data):
    """djb2 hash in wrapping uint32 scalars with the overflow warning silenced."""
    h = np.uint32(5381)
    with np.errstate(over="ignore"):
        for b in data:
            h = h * np.uint32(33) + np.uint32(b)
    return h


def xorshift32(state, n):
    """Advance an array of xorshift32 generators in place, returning the last draws."""
    for _ in range(n):
        state ^= state << np.uint32(13)
        state ^= state >> np.uint32(17)
        state ^= state << np.uint32(5)
    return state / np.float64(2**32)


def xorshift64star(seed, n):
    """A stream of xorshift64* values from a uint64 seed array of one element."""
    x = seed.copy()
    out = np.empty(n, dtype=np.uint64)
    for i in range(n):
        x ^= x >> np.uint64(12)
        x ^= x << np.uint64(25)
        x ^= x >> np.uint64(27)
        out[i] = x[0]
    return out * np.uint64(0x2545F4914F6CDD1D)


def splitmix64(seeds):
    """SplitMix64 finaliser on an array."""
    z = seeds + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def lcg_stream(seed, n, a=1664525, c=1013904223):
    """Linear congruential stream from a Python int seed."""
    out = np.zeros(n, dtype=np.uint32)
    x = seed
    for i in range(n):
        x = (a * x + c) % 2**32
        out[i] = x
    return out


def murmur_mix(keys, seed):
    """MurmurHash3 style mixing of uint32 keys."""
    h = keys.astype(np.uint32) * np.uint32(0xCC9E2D51)
    h = (h << 15) | (h >> 17)
    h *= np.uint32(0x1B873593)
    h ^= np.uint32(seed)
    h ^= h >> 16
    h = h * np.uint32(0x85EBCA6B)
    h ^= h >> 13
    return h


def popcount_swar(x):
    """Population count of uint32 values by parallel bit sums."""
    x = x - ((x >> 1) & np.uint32(0x55555555))
    x = (x & np.uint32(0x33333333)) + ((x >> 2) & np.uint32(0x33333333))
    x = (x + (x >> 4)) & np.uint32(0x0F0F0F0F)
    return (x * np.uint32(0x01010101)) >> 24


def popcount_kernighan(values):
    """Population count by clearing low bits in a while loop."""
    out = np.zeros(len(values), dtype=np.int64)
    for i in range(len(values)):
        v = int(values[i])
        while v:
            v &= v - 1
            out[i] += 1
    return out


def hamming_distances(a, b):
    """Hamming distances between packed uint8 rows by np.unpackbits."""
    x = a[:, None, :] ^ b[None, :, :]
    return np.unpackbits(x, axis=-1).sum(axis=-1)


def gray_code(n):
    """Gray code sequence of n bits and its inverse permutation."""
    i = np.arange(1 << n)
    g = i ^ (i >> 1)
    inverse = np.empty_like(g)
    inverse[g] = i
    return g, inverse


def gray_decode(g):
    """Decode Gray codes by a prefix xor with doubling shifts."""
    b = g.copy()
    shift = 1
    while shift < 16:
        b ^= b >> shift
        shift <<= 1
    return b


def reverse_bits(x, nbits):
    """Reverse the low bits of every integer."""
    out = np.zeros_like(x)
    for _ in range(nbits):
        out = (out << 1) | (x & 1)
        x = x >> 1
    return out


def morton_encode(x, y):
    """Interleave two 16-bit coordinates into Morton codes."""

    def spread(v):
        v = v.astype(np.uint32)
        for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
            v = (v | (v << np.uint32(shift))) & np.uint32(mask)
        return v

    return spread(x) | (spread(y) << np.uint32(1))


def parity_bits(data):
    """Even parity bit of every byte."""
    p = data.copy()
    for s in [4, 2, 1]:
        p ^= p >> s
    return p & 1


def lfsr_sequence(taps, state, n):
    """Bits of a Fibonacci linear feedback shift register held in a bool array."""
    reg = state.copy()
    bits = np.zeros(n, dtype=bool)
    for i in range(n):
        bits[i] = reg[-1]
        fb = False
        for t in taps:
            fb ^= reg[t]
        reg[1:] = reg[:-1].copy()
        reg[0] = fb
    return bits, reg


def hamming74_decode(words):
    """Correct one bit error in each row of seven bits, in place; returns error positions."""
    check = np.array([[1, 0, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    syndrome = (words @ check.T) % 2
    pos = syndrome @ np.array([1, 2, 4])
    bad = np.flatnonzero(pos)
    words[bad, pos[bad] - 1] ^= 1
    return pos


def luhn_valid(digits):
    """Luhn check of a digit array."""
    total = 0
    for i, d in enumerate(digits[::-1]):
        d = int(d)
        if i % 2 == 1:
            d *= 2
            if d > 9:
                d -= 9
        total += d
    return total % 10 == 0


def xor_cipher(data, key):
    """Repeating-key xor written over the data."""
    n = len(key)
    for i in range(len(data)):
        data[i] ^= key[i % n]


def varint_encode(values, out):
    """LEB128 encoding into a preallocated byte array; returns the length."""
    pos = 0
    for v in values:
        v = int(v)
        while v >= 0x80:
            out[pos] = (v & 0x7F) | 0x80
            pos += 1
            v >>= 7
        out[pos] = v
        pos += 1
    return pos


def int8_wraparound(a, b):
    """Sums, products and shifts of int8 arrays, which wrap."""
    return a + b, a * b, a << 3, -a, abs(a)


def random_bytes(rng, n):
    """Random uint8 array."""
    return rng.integers(0, 256, n, dtype=np.uint8)


PROGRAMS = [
    (crc_table, lambda rng: (0xEDB88320, 4)),
    (crc_table, lambda rng: (0x82F63B78, 6)),
    (crc32_table_vectorised, lambda rng: ()),
    (crc32, lambda rng: (random_bytes(rng, 200), crc32_table_vectorised())),
    (crc32, lambda rng: (np.array([], dtype=np.uint8), crc32_table_vectorised())),
    (crc32, lambda rng: (random_bytes(rng, 50), crc32_table_vectorised()[:100])),
    (crc32_python_ints, lambda rng: (random_bytes(rng, 200), crc32_table_vectorised())),
    (crc16_bitwise, lambda rng: (random_bytes(rng, 50),)),
    (adler32, lambda rng: (random_bytes(rng, 300),)),
    (adler32_cumsum, lambda rng: (random_bytes(rng, 2000),)),
    (adler32_cumsum, lambda rng: (random_bytes(rng, 0),)),
    (fletcher16, lambda rng: (random_bytes(rng, 300),)),
    (fletcher32, lambda rng: (rng.integers(0, 2**16, 100, dtype=np.uint16),)),
    (internet_checksum, lambda rng: (rng.integers(0, 2**16, 500, dtype=np.uint16),)),
    (fnv1a_32, lambda rng: (random_bytes(rng, 200),)),
    (fnv1a_lanes, lambda rng: (random_bytes(rng, (40, 16)),)),
    (djb2_scalar_wrap, lambda rng: (random_bytes(rng, 60),)),
    (xorshift32, lambda rng: (rng.integers(1, 2**32, 50, dtype=np.uint32), 10)),
    (xorshift64star, lambda rng: (rng.integers(1, 2**63, 1, dtype=np.uint64), 30)),
    (splitmix64, lambda rng: (rng.integers(0, 2**63, 100, dtype=np.uint64),)),
    (lcg_stream, lambda rng: (12345, 100)),
    (murmur_mix, lambda rng: (rng.integers(0, 2**31, 100), 42)),
    (popcount_swar, lambda rng: (rng.integers(0, 2**32, 200, dtype=np.uint32),)),
    (popcount_kernighan, lambda rng: (rng.integers(0, 2**20, 30),)),
    (hamming_distances, lambda rng: (random_bytes(rng, (8, 6)), random_bytes(rng, (5, 6)))),
    (hamming_distances, lambda rng: (random_bytes(rng, (8, 6)), random_bytes(rng, (5, 4)))),
    (gray_code, lambda rng: (7,)),
    (gray_decode, lambda rng: (rng.integers(0, 2**15, 80),)),
    (gray_decode, lambda rng: (rng.integers(0, 2**16, 80, dtype=np.uint16),)),
    (reverse_bits, lambda rng: (rng.integers(0, 1024, 100), 10)),
    (
        morton_encode,
        lambda rng: (rng.integers(0, 2**16, 60), rng.integers(0, 2**16, 60)),
    ),
    (parity_bits, lambda rng: (random_bytes(rng, 100),)),
    (lfsr_sequence, lambda rng: ((0, 2, 3, 5), rng.random(16) < 0.5, 60)),
    (lfsr_sequence, lambda rng: ((0, 20), rng.random(16) < 0.5, 60)),
    (hamming74_decode, lambda rng: (rng.integers(0, 2, (12, 7)),)),
    (luhn_valid, lambda rng: (np.array([7, 9, 9, 2, 7, 3, 9, 8, 7, 1, 3]),)),
    (luhn_valid, lambda rng: (rng.integers(0, 10, 16, dtype=np.int8),)),
    (xor_cipher, lambda rng: (random_bytes(rng, 100), random_bytes(rng, 7))),
    (xor_cipher, lambda rng: (random_bytes(rng, 10), random_bytes(rng, 0))),
    (
        varint_encode,
        lambda rng: (rng.integers(0, 2**28, 20), np.zeros(100, dtype=np.uint8)),
    ),
    (varint_encode, lambda rng: (rng.integers(2**20, 2**28, 20), np.zeros(30, dtype=np.uint8))),
    (
        int8_wraparound,
        lambda rng: (
            rng.integers(-128, 128, 50, dtype=np.int8),
            rng.integers(-128, 128, 50, dtype=np.int8),
        ),
    ),
]
