"""Parsing and coding of flat byte and integer arrays with small state machines."""

import numpy as np


def run_length_encode(x, values, counts):
    """Run-length encode into preallocated arrays; returns the number of runs."""
    n = len(x)
    if n == 0:
        return 0
    runs = 0
    values[0] = x[0]
    counts[0] = 1
    for i in range(1, n):
        if x[i] == values[runs]:
            counts[runs] += 1
        else:
            runs += 1
            values[runs] = x[i]
            counts[runs] = 1
    return runs + 1


def run_length_decode(values, counts, out):
    """Run-length decode into a preallocated array; returns the length written."""
    pos = 0
    for v, c in zip(values, counts):
        out[pos : pos + c] = v
        pos += c
    return pos


def run_lengths_by_diff(x):
    """Run values, starts and lengths without a loop."""
    change = np.flatnonzero(x[1:] != x[:-1]) + 1
    starts = np.concatenate(([0], change))
    lengths = np.diff(np.append(starts, len(x)))
    return x[starts], starts, lengths


def parse_integers(text, out):
    """Parse signed decimal integers from ASCII bytes into out; returns how many."""
    count = 0
    value = 0
    sign = 1
    in_number = False
    for ch in text:
        if ord("0") <= ch <= ord("9"):
            value = value * 10 + int(ch) - 48
            in_number = True
        else:
            if in_number:
                out[count] = sign * value
                count += 1
            value = 0
            in_number = False
            sign = -1 if ch == 45 else 1
    if in_number:
        out[count] = sign * value
        count += 1
    return count


def parse_floats(text, out):
    """Parse unsigned decimal fractions separated by spaces; returns the count."""
    count = 0
    i = 0
    n = len(text)
    while i < n:
        while i < n and text[i] == 32:
            i += 1
        if i >= n:
            break
        value = 0.0
        while i < n and 48 <= text[i] <= 57:
            value = value * 10 + (text[i] - 48)
            i += 1
        if i < n and text[i] == 46:
            i += 1
            scale = 0.1
            while i < n and 48 <= text[i] <= 57:
                value += (text[i] - 48) * scale
                scale /= 10
                i += 1
        elif i < n and text[i] != 32:
            raise ValueError("unexpected character")
        out[count] = value
        count += 1
    return count


def parse_integers_vectorised(text):
    """Sums of digit groups valued by place through cumulative group labels."""
    digit = (text >= 48) & (text <= 57)
    starts = digit & ~np.concatenate([[False], digit[:-1]])
    group = np.cumsum(starts)[digit]
    vals = (text[digit] - 48).astype(np.int64)
    total = np.zeros(starts.sum(), dtype=np.int64)
    for g, v in zip(group, vals):
        total[g - 1] = total[g - 1] * 10 + v
    return total


def tokenize(text):
    """Token kinds and spans: 0 word, 1 number, 2 punctuation."""
    kinds, spans = [], []
    i = 0
    while i < len(text):
        c = text[i]
        if c == 32:
            i += 1
            continue
        start = i
        if 97 <= c <= 122:
            kind = 0
            while i < len(text) and 97 <= text[i] <= 122:
                i += 1
        elif 48 <= c <= 57:
            kind = 1
            while i < len(text) and 48 <= text[i] <= 57:
                i += 1
        else:
            kind = 2
            i += 1
        kinds.append(kind)
        spans.append((start, i))
    return np.array(kinds), np.array(spans)


def match_brackets(codes):
    """Partner of every bracket with a stack array; None when unbalanced."""
    match = np.full(len(codes), -1)
    stack = np.zeros(len(codes), dtype=int)
    top = 0
    for i, c in enumerate(codes):
        if c > 0:
            stack[top] = i
            top += 1
        elif c < 0:
            if top == 0:
                return None
            top -= 1
            j = stack[top]
            if codes[j] != -c:
                return None
            match[i], match[j] = j, i
    return match if top == 0 else None


def bracket_depths(text):
    """Depth at each byte and the deepest level."""
    step = np.where(text == ord("("), 1, 0) - np.where(text == ord(")"), 1, 0)
    depth = np.cumsum(step)
    return depth, depth.max(), bool((depth >= 0).all() and depth[-1] == 0)


def utf8_valid(data):
    """Whether bytes are valid UTF-8, rejecting overlong forms and surrogates."""
    i = 0
    n = data.size
    while i < n:
        b = data[i]
        if b < 0x80:
            i += 1
            continue
        if 0xC2 <= b <= 0xDF:
            need = 1
        elif 0xE0 <= b <= 0xEF:
            need = 2
        elif 0xF0 <= b <= 0xF4:
            need = 3
        else:
            return False
        if i + need >= n:
            return False
        for k in range(1, need + 1):
            if data[i + k] & 0xC0 != 0x80:
                return False
        second = data[i + 1]
        if b == 0xE0 and second < 0xA0 or b == 0xED and second > 0x9F:
            return False
        if b == 0xF0 and second < 0x90 or b == 0xF4 and second > 0x8F:
            return False
        i += need + 1
    return True


def utf8_decode(data, out):
    """Decode valid UTF-8 into code points; returns the count."""
    n = 0
    i = 0
    while i < len(data):
        b = int(data[i])
        if b < 0x80:
            length, cp = 1, b
        elif b < 0xE0:
            length, cp = 2, b & 0x1F
        elif b < 0xF0:
            length, cp = 3, b & 0x0F
        else:
            length, cp = 4, b & 0x07
        for k in range(1, length):
            cp = (cp << 6) | (int(data[i + k]) & 0x3F)
        out[n] = cp
        n += 1
        i += length
    return n


def matrix_market(flat):
    """Dense matrix from a flat [rows, cols, nnz, (i, j, v)...] array with 1-based indices."""
    rows, cols, nnz = (int(v) for v in flat[:3])
    body = flat[3:]
    if len(body) != 3 * nnz:
        raise ValueError(f"expected {nnz} entries")
    out = np.zeros((rows, cols))
    for i, j, v in body.reshape(nnz, 3):
        out[int(i) - 1, int(j) - 1] += v
    return out


def parse_records(stream):
    """Tag-length-value records summed per tag into a dict."""
    totals = {"sum": 0, "product": 1, "skipped": 0}
    pos = 0
    while pos < len(stream):
        tag, length = stream[pos], stream[pos + 1]
        payload = stream[pos + 2 : pos + 2 + length]
        if tag == 1:
            totals["sum"] += int(payload.sum())
        elif tag == 2:
            totals["product"] *= int(payload.prod())
        else:
            totals["skipped"] += 1
        pos += 2 + length
    return totals


def rpn_evaluate(tokens, stack):
    """Evaluate reverse Polish tokens, negative codes being operators, on a given stack."""
    top = 0
    for t in tokens:
        if t >= 0:
            stack[top] = t
            top += 1
            continue
        top -= 1
        a, b = stack[top - 1], stack[top]
        if t == -1:
            stack[top - 1] = a + b
        elif t == -2:
            stack[top - 1] = a - b
        elif t == -3:
            stack[top - 1] = a * b
        else:
            raise ValueError(f"unknown operator {t}")
    return stack[0]


def base64_encode(data, alphabet):
    """Base64 of bytes whose count is a multiple of three."""
    assert data.size % 3 == 0
    a, b, c = data.reshape(-1, 3).T.astype(np.uint32)
    word = (a << 16) | (b << 8) | c
    idx = (word[:, None] >> np.array([18, 12, 6, 0], dtype=np.uint32)) & 63
    return alphabet[idx].ravel()


def caesar(text, shift):
    """Shift lower-case letters in place, leaving other bytes."""
    letters = (text >= 97) & (text <= 122)
    text[letters] = (text[letters] - 97 + shift) % 26 + 97


def count_words(text):
    """Words, lines and bytes of an ASCII array."""
    words = lines = 0
    inside = False
    for c in text:
        if c == 10:
            lines += 1
        if c in (9, 10, 32):
            inside = False
        elif not inside:
            inside = True
            words += 1
    return words, lines, len(text)


def find_pattern(text, pattern):
    """All positions of a pattern by Knuth-Morris-Pratt."""
    m = len(pattern)
    fail = np.zeros(m, dtype=int)
    k = 0
    for i in range(1, m):
        while k > 0 and pattern[k] != pattern[i]:
            k = fail[k - 1]
        if pattern[k] == pattern[i]:
            k += 1
        fail[i] = k
    hits = []
    k = 0
    for i in range(len(text)):
        while k > 0 and pattern[k] != text[i]:
            k = fail[k - 1]
        if pattern[k] == text[i]:
            k += 1
        if k == m:
            hits.append(i - m + 1)
            k = fail[k - 1]
    return np.array(hits, dtype=np.int64)


def find_pattern_naive(text, pattern):
    """First position of a pattern by for-else over offsets, or -1."""
    for i in range(len(text) - len(pattern) + 1):
        for j in range(len(pattern)):
            if text[i + j] != pattern[j]:
                break
        else:
            return i
    return -1


def lz77_decode(tokens, out):
    """Expand (distance, length, literal) rows, whose copies may overlap; returns the length."""
    n = 0
    for distance, length, literal in tokens:
        for _ in range(length):
            out[n] = out[n - distance]
            n += 1
        out[n] = literal
        n += 1
    return n


def delta_zigzag(x):
    """Zigzag-coded differences and their exact inverse."""
    d = np.diff(x, prepend=0)
    coded = (d << 1) ^ (d >> 63)
    back = np.cumsum((coded >> 1) ^ -(coded & 1))
    return coded, back


def brainfuck(program, tape, max_steps):
    """Run a byte-coded Brainfuck program on a tape; returns the output bytes as a list."""
    output = []
    ptr = pc = steps = 0
    while pc < len(program) and steps < max_steps:
        op = program[pc]
        if op == ord(">"):
            ptr += 1
        elif op == ord("<"):
            ptr -= 1
        elif op == ord("+"):
            tape[ptr] += 1
        elif op == ord("-"):
            tape[ptr] -= 1
        elif op == ord("."):
            output.append(int(tape[ptr]))
        elif op == ord("[") and tape[ptr] == 0 or op == ord("]") and tape[ptr] != 0:
            step = 1 if op == ord("[") else -1
            depth = step
            while depth != 0:
                pc += step
                if program[pc] == ord("["):
                    depth += 1
                elif program[pc] == ord("]"):
                    depth -= 1
        pc += 1
        steps += 1
    return output


def stack_machine(code, memory):
    """Small register machine over an int array of (op, a, b) triples; None on halt by op 0."""
    pc = 0
    for _ in range(300):
        op, a, b = code[3 * pc : 3 * pc + 3]
        pc += 1
        if op == 0:
            return
        if op == 1:
            memory[a] += memory[b]
        elif op == 2:
            memory[a] -= memory[b]
        elif op == 3:
            memory[a] = b
        elif op == 4 and memory[a] > 0:
            pc = b


def text_bytes(s):
    """Writable uint8 array of a string."""
    return np.frombuffer(s.encode(), dtype=np.uint8).copy()


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

PROGRAMS = [
    (
        run_length_encode,
        lambda rng: (rng.integers(0, 2, 80), np.zeros(80, int), np.zeros(80, int)),
    ),
    (run_length_encode, lambda rng: (rng.integers(0, 2, 80), np.zeros(9, int), np.zeros(9, int))),
    (run_length_encode, lambda rng: (np.array([], int), np.zeros(9, int), np.zeros(9, int))),
    (
        run_length_decode,
        lambda rng: (rng.integers(0, 9, 12), rng.integers(1, 6, 12), np.full(80, -1)),
    ),
    (run_lengths_by_diff, lambda rng: (rng.integers(0, 2, 80),)),
    (run_lengths_by_diff, lambda rng: (rng.random(30) < 0.5,)),
    (parse_integers, lambda rng: (text_bytes("12, -7 and 1999; x=-40 5"), np.zeros(10, int))),
    (parse_integers, lambda rng: (text_bytes("1 2 3 4 5 6"), np.zeros(4, int))),
    (parse_floats, lambda rng: (text_bytes(" 3.25 10 0.125  7. 99.5"), np.zeros(8))),
    (parse_floats, lambda rng: (text_bytes("3.25 1x0"), np.zeros(8))),
    (parse_integers_vectorised, lambda rng: (text_bytes("a12b 345--6,78"),)),
    (tokenize, lambda rng: (text_bytes("foo12 + (bar*3) == 42;"),)),
    (match_brackets, lambda rng: (np.array([1, 2, 0, -2, 3, -3, -1, 0, 1, -1]),)),
    (match_brackets, lambda rng: (np.array([1, 2, -1, -2]),)),
    (match_brackets, lambda rng: (np.array([1, 1, -1]),)),
    (bracket_depths, lambda rng: (text_bytes("f(a(b)(c(d)))+g()"),)),
    (utf8_valid, lambda rng: (text_bytes("naïve café — 日本語 🎉 ok"),)),
    (utf8_valid, lambda rng: (np.array([0x61, 0xC0, 0x80], dtype=np.uint8),)),
    (utf8_valid, lambda rng: (np.array([0xED, 0xA0, 0x80, 0x61], dtype=np.uint8),)),
    (utf8_decode, lambda rng: (text_bytes("héllo 日本 🎉"), np.zeros(20, dtype=np.uint32))),
    (
        matrix_market,
        lambda rng: (np.array([3, 4, 3, 1, 1, 2.5, 3, 4, -1.0, 1, 1, 0.5]),),
    ),
    (matrix_market, lambda rng: (np.array([3, 4, 3, 1, 1, 2.5]),)),
    (matrix_market, lambda rng: (np.array([3, 4, 1, 5, 1, 2.5]),)),
    (parse_records, lambda rng: (np.array([1, 3, 10, 20, 30, 2, 2, 6, 7, 9, 1, 5, 1, 0]),)),
    (parse_records, lambda rng: (np.array([1, 1, 5, 2]),)),
    (rpn_evaluate, lambda rng: (np.array([3, 4, -1, 5, -3, 2, -2]), np.zeros(8, dtype=int))),
    (rpn_evaluate, lambda rng: (np.array([3, 4, -9]), np.zeros(8))),
    (
        base64_encode,
        lambda rng: (rng.integers(0, 256, 30, dtype=np.uint8), text_bytes(LETTERS)),
    ),
    (
        base64_encode,
        lambda rng: (rng.integers(0, 256, 31, dtype=np.uint8), text_bytes(LETTERS)),
    ),
    (caesar, lambda rng: (text_bytes("attack at dawn, xyz"), 13)),
    (count_words, lambda rng: (text_bytes("the quick\nbrown  fox\n\tjumps\n"),)),
    (find_pattern, lambda rng: (rng.integers(0, 2, 100), np.array([0, 1, 0]))),
    (find_pattern, lambda rng: (text_bytes("abracadabra"), text_bytes("abra"))),
    (find_pattern_naive, lambda rng: (rng.integers(0, 3, 100), np.array([0, 1, 2, 0]))),
    (find_pattern_naive, lambda rng: (rng.integers(0, 3, 40), np.array([7]))),
    (
        lz77_decode,
        lambda rng: (
            np.array([[0, 0, 97], [0, 0, 98], [2, 7, 99], [1, 5, 100]]),
            np.zeros(40, dtype=np.uint8),
        ),
    ),
    (
        lz77_decode,
        lambda rng: (np.array([[0, 0, 97], [1, 20, 98]]), np.zeros(10, dtype=np.uint8)),
    ),
    (delta_zigzag, lambda rng: (rng.integers(-1000, 1000, 50),)),
    (
        brainfuck,
        lambda rng: (text_bytes("++++[>+++<-]>.[-]<."), np.zeros(8, dtype=np.uint8), 500),
    ),
    (brainfuck, lambda rng: (text_bytes(">>>>+"), np.zeros(3, dtype=np.uint8), 500)),
    (
        stack_machine,
        lambda rng: (
            np.array([3, 0, 0, 3, 1, 9, 3, 2, 1, 1, 0, 1, 2, 1, 2, 4, 1, 3, 0, 0, 0]),
            np.zeros(4, dtype=int),
        ),
    ),
    (stack_machine, lambda rng: (np.array([3, 9, 0]), np.zeros(4, dtype=int))),
]
