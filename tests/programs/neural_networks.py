"""Small neural networks and machine-learning training loops."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Layer:
    """Weights, bias and their gradients for a dense layer."""

    w: np.ndarray
    b: np.ndarray
    dw: np.ndarray
    db: np.ndarray


def relu(x):
    """Rectified linear unit."""
    return np.maximum(x, 0)


def sigmoid(x):
    """Logistic function."""
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    """Numerically stable softmax."""
    shifted = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(shifted)
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax_loss(logits, labels):
    """Mean cross-entropy and its gradient."""
    n = len(labels)
    z = logits - logits.max(axis=1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    loss = -logp[np.arange(n), labels].mean()
    grad = np.exp(logp)
    grad[np.arange(n), labels] -= 1
    return loss, grad / n


def mlp_forward(x, weights, biases):
    """Forward pass through a list of layers with relu between them."""
    h = x
    last = len(weights) - 1
    for i, (w, b) in enumerate(zip(weights, biases)):
        h = h @ w + b
        if i < last:
            h = relu(h)
    return softmax(h)


def mlp_train(x, y, params, lr, epochs):
    """Backprop training of a two-layer network, mutating the dict's arrays; returns losses."""
    w1, b1, w2, b2 = params["w1"], params["b1"], params["w2"], params["b2"]
    losses = []
    for _ in range(epochs):
        a1 = x @ w1 + b1
        h = np.tanh(a1)
        out = h @ w2 + b2
        err = out - y
        losses.append(float(np.mean(err**2)))
        d_out = 2 * err / err.size
        d_h = (d_out @ w2.T) * (1 - h**2)
        w2 -= lr * (h.T @ d_out)
        b2 -= lr * d_out.sum(axis=0)
        w1 -= lr * (x.T @ d_h)
        b1 -= lr * d_h.sum(axis=0)
    return losses


def xor_train(w1, w2, lr, steps):
    """Train a sigmoid network on XOR one example at a time, in place."""
    data = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]
    for s in range(steps):
        a, b, target = data[s % 4]
        x = np.array([a, b, 1.0])
        h = sigmoid(w1 @ x)
        hb = np.append(h, 1.0)
        o = sigmoid(np.dot(w2, hb))
        delta = (o - target) * o * (1 - o)
        dh = delta * w2[:-1] * h * (1 - h)
        w2 -= lr * delta * hb
        w1 -= lr * np.outer(dh, x)


def dense_backward(layer, x, upstream):
    """Accumulate gradients of a dense layer into its dataclass; returns the input gradient."""
    layer.dw += x.T @ upstream
    layer.db += upstream.sum(0)
    return upstream @ layer.w.T


def sgd_momentum(params, grads, velocity, lr, mu):
    """Momentum update of lists of arrays in place."""
    for p, g, v in zip(params, grads, velocity):
        v *= mu
        v -= lr * g
        p += v


def adam(theta, grads, lr=0.01, b1=0.9, b2=0.999, eps=1e-8):
    """Adam over a sequence of gradients; returns the moments and leaves theta updated."""
    m = np.zeros_like(theta)
    v = np.zeros_like(theta)
    for t, g in enumerate(grads, start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        mhat = m / (1 - b1**t)
        vhat = v / (1 - b2**t)
        theta -= lr * mhat / (np.sqrt(vhat) + eps)
    return m, v


def layer_norm(x, gamma, beta, eps=1e-5):
    """Layer normalisation over the last axis."""
    mu = x.mean(-1, keepdims=True)
    var = x.var(-1, keepdims=True)
    return gamma * (x - mu) / np.sqrt(var + eps) + beta


def batch_norm_train(x, gamma, beta, running, momentum):
    """Batch normalisation that updates running statistics in a dict."""
    mean = x.mean(axis=0)
    var = ((x - mean) ** 2).mean(axis=0)
    running["mean"][...] = momentum * running["mean"] + (1 - momentum) * mean
    running["var"][...] = momentum * running["var"] + (1 - momentum) * var
    return gamma * (x - mean) / np.sqrt(var + 1e-5) + beta


def rnn_forward(xs, h, wx, wh, b):
    """Vanilla recurrent network over time; returns all hidden states."""
    hs = np.zeros((xs.shape[0], h.shape[0]), dtype=h.dtype)
    for t in range(xs.shape[0]):
        h = np.tanh(xs[t] @ wx + h @ wh + b)
        hs[t] = h
    return hs


def lstm(xs, h, c, w, b):
    """LSTM over time with fused gates split by slices."""
    n = h.shape[-1]
    outs = []
    for x in xs:
        z = np.concatenate([x, h]) @ w + b
        i = sigmoid(z[:n])
        f = sigmoid(z[n : 2 * n])
        o = sigmoid(z[2 * n : 3 * n])
        g = np.tanh(z[3 * n :])
        c = f * c + i * g
        h = o * np.tanh(c)
        outs.append(h)
    return np.stack(outs), (h, c)


def gru(xs, h, params):
    """Batched GRU over time from a dict of weights."""
    for t in range(len(xs)):
        x = xs[t]
        r = sigmoid(x @ params["wr"] + h @ params["ur"])
        z = sigmoid(x @ params["wz"] + h @ params["uz"])
        n = np.tanh(x @ params["wn"] + r * (h @ params["un"]))
        h = (1 - z) * n + z * h
    return h


def attention(q, k, v, causal):
    """Scaled dot-product attention for one head, optionally causal."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    if causal:
        n, m = scores.shape
        scores = np.where(np.tri(n, m, dtype=bool), scores, -np.inf)
    p = softmax(scores)
    return p @ v, p


def multi_head_attention(x, wq, wk, wv, wo, heads):
    """Multi-head self-attention by reshape, transpose and einsum."""
    t, d = x.shape
    if d % heads != 0:
        raise ValueError(f"width {d} is not divisible by {heads} heads")
    hd = d // heads

    def split(m):
        return (x @ m).reshape(t, heads, hd).transpose(1, 0, 2)

    q, k, v = split(wq), split(wk), split(wv)
    s = np.einsum("htd,hsd->hts", q, k) / hd**0.5
    o = np.einsum("hts,hsd->htd", softmax(s), v)
    return o.transpose(1, 0, 2).reshape(t, d) @ wo


def conv2d_slices(image, kernel):
    """Valid 2-d correlation accumulated over kernel taps by slices."""
    kh, kw = kernel.shape
    oh, ow = image.shape[0] - kh + 1, image.shape[1] - kw + 1
    out = np.zeros((oh, ow), dtype=image.dtype)
    for i in range(kh):
        for j in range(kw):
            out += kernel[i, j] * image[i : i + oh, j : j + ow]
    return out


def conv2d_channels(x, w, b, stride):
    """Multi-channel strided convolution with a window product per output pixel."""
    cout, cin, kh, kw = w.shape
    assert x.shape[0] == cin, "channel mismatch"
    oh = (x.shape[1] - kh) // stride + 1
    ow = (x.shape[2] - kw) // stride + 1
    out = np.empty((cout, oh, ow))
    for i in range(oh):
        for j in range(ow):
            patch = x[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
            out[:, i, j] = np.tensordot(w, patch, axes=3) + b
    return out


def im2col_conv(x, w):
    """Convolution by gathering patches with fancy indices and one matrix product."""
    k = w.shape[-1]
    n = x.shape[0] - k + 1
    idx = np.arange(n)[:, None] + np.arange(k)
    patches = x[idx[:, None, :, None], idx[None, :, None, :]]
    return patches.reshape(n * n, k * k) @ w.reshape(-1, k * k).T


def max_pool(x, size):
    """Non-overlapping max pooling by reshape with the argmax mask."""
    c, h, w = x.shape
    blocks = x.reshape(c, h // size, size, w // size, size)
    out = blocks.max(axis=(2, 4))
    mask = blocks == out[:, :, None, :, None]
    return out, mask.reshape(x.shape)


def dropout(x, keep, uniform):
    """Inverted dropout with given uniforms, or the input itself when keep is 1."""
    if keep >= 1:
        return x
    mask = uniform < keep
    return x * mask / keep


def embedding_update(table, tokens, grads, lr):
    """Scatter token gradients into an embedding table in place."""
    np.add.at(table, tokens, -lr * grads)
    return table[tokens].mean(axis=0)


def kmeans(points, centres, max_iter):
    """Lloyd's algorithm until labels stop changing; empty clusters keep their centre."""
    centres = centres.copy()
    labels = None
    for it in range(max_iter):
        d2 = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        new = d2.argmin(axis=1)
        if labels is not None and np.array_equal(new, labels):
            break
        labels = new
        for k in range(len(centres)):
            members = points[labels == k]
            if len(members):
                centres[k] = members.mean(axis=0)
    return centres, labels, it


def kmeans_scalar_assign(points, centres, labels):
    """Assign points to their nearest centres with loops, in place; returns the inertia."""
    inertia = 0.0
    for i in range(points.shape[0]):
        best = float("inf")
        for k in range(centres.shape[0]):
            d = 0.0
            for j in range(points.shape[1]):
                diff = points[i, j] - centres[k, j]
                d += diff * diff
            if d < best:
                best = d
                labels[i] = k
        inertia += best
    return inertia


def logistic_regression(x, y, lr, reg, steps):
    """Gradient descent for regularised logistic regression."""
    w = np.zeros(x.shape[1])
    b = 0.0
    for _ in range(steps):
        p = sigmoid(x @ w + b)
        g = p - y
        w -= lr * (x.T @ g / len(y) + reg * w)
        b -= lr * g.mean()
    accuracy = np.mean((x @ w + b > 0) == y)
    return w, b, accuracy


def perceptron(x, y, epochs):
    """Perceptron with early exit on a clean pass; returns weights and whether it converged."""
    w = np.zeros(x.shape[1] + 1)
    for _ in range(epochs):
        mistakes = 0
        for xi, yi in zip(x, y):
            if yi * (xi @ w[1:] + w[0]) <= 0:
                w[1:] += yi * xi
                w[0] += yi
                mistakes += 1
        if mistakes == 0:
            return w, True
    return w, False


def naive_bayes(x, y, classes, query):
    """Gaussian naive Bayes fit and prediction."""
    log_post = np.empty((len(query), classes))
    for c in range(classes):
        xc = x[y == c]
        mu, var = xc.mean(0), xc.var(0) + 1e-6
        ll = -0.5 * (np.log(2 * np.pi * var) + (query - mu) ** 2 / var)
        log_post[:, c] = ll.sum(1) + np.log(len(xc) / len(x))
    return log_post.argmax(1)


def knn_predict(train, labels, query, k):
    """k-nearest-neighbour vote by argpartition-free argsort."""
    d = np.sqrt(((query[:, None] - train[None]) ** 2).sum(-1))
    nearest = np.argsort(d, axis=1, kind="stable")[:, :k]
    return np.array([np.bincount(row).argmax() for row in labels[nearest]])


def gmm_em(x, means, variances, weights, iterations):
    """EM for a 1-d Gaussian mixture; returns parameters and log-likelihoods."""
    lls = np.zeros(iterations)
    for it in range(iterations):
        d = (x[:, None] - means) ** 2
        dens = weights * np.exp(-0.5 * d / variances) / np.sqrt(2 * np.pi * variances)
        total = dens.sum(axis=1)
        lls[it] = np.log(total).sum()
        resp = dens / total[:, None]
        nk = resp.sum(axis=0)
        means = (resp * x[:, None]).sum(axis=0) / nk
        variances = (resp * (x[:, None] - means) ** 2).sum(axis=0) / nk
        weights = nk / len(x)
    return {"means": means, "vars": variances, "weights": weights, "ll": lls}


def decision_stump(x, y):
    """Best feature, threshold and polarity for labels in {-1, 1}."""
    best_err, best = 1.0, None
    n, d = x.shape
    for j in range(d):
        for thr in np.sort(x[:, j]):
            pred = np.where(x[:, j] <= thr, -1, 1)
            err = np.sum(pred != y) / n
            for polarity, e in ((1, err), (-1, 1 - err)):
                if e < best_err:
                    best_err, best = e, (j, thr, polarity)
    return best_err, best


def q_learning(table, transitions, alpha, gamma):
    """Tabular Q-learning over recorded (state, action, reward, next) rows, in place."""
    for s, a, r, s2 in transitions:
        target = r + gamma * table[s2].max() if s2 >= 0 else r
        table[s, a] += alpha * (target - table[s, a])


def value_iteration(p, r, gamma, tol):
    """Value iteration for transition tensor p[a, s, s'] and rewards r[s, a]."""
    v = np.zeros(r.shape[0])
    delta = tol + 1
    sweeps = 0
    while delta > tol:
        q = r + gamma * np.einsum("ast,t->sa", p, v)
        new = q.max(axis=1)
        delta = np.abs(new - v).max()
        v = new
        sweeps += 1
    return v, q.argmax(axis=1), sweeps


def hopfield_recall(patterns, probe, sweeps):
    """Hopfield network recall by asynchronous sign updates until stable."""
    n = patterns.shape[1]
    w = patterns.T @ patterns / n
    np.fill_diagonal(w, 0)
    s = probe.copy()
    for _ in range(sweeps):
        changed = False
        for i in range(n):
            new = 1 if w[i] @ s >= 0 else -1
            if new != s[i]:
                s[i] = new
                changed = True
        if not changed:
            break
    return s


def clip_gradients(grads, limit):
    """Scale gradients in place to a global norm; prints when clipping happened."""
    total = np.sqrt(sum(np.sum(g**2) for g in grads))
    if total > limit:
        print("clipping gradient norm to", limit)
        for g in grads:
            g *= limit / total
    return float(total)


def mlp_params(rng, i, h, o, dtype=np.float64):
    """Two-layer network parameters."""
    return {
        "w1": rng.standard_normal((i, h)).astype(dtype) * dtype(0.5),
        "b1": np.zeros(h, dtype),
        "w2": rng.standard_normal((h, o)).astype(dtype) * dtype(0.5),
        "b2": np.zeros(o, dtype),
    }


def normals(rng, *shapes):
    """Tuple of normal arrays."""
    return tuple(rng.standard_normal(s) for s in shapes)


PROGRAMS = [
    (softmax, lambda rng: normals(rng, (8, 10))),
    (softmax, lambda rng: (rng.standard_normal((4, 5, 6), np.float32), 1)),
    (softmax, lambda rng: (rng.integers(0, 5, (3, 4)), 0)),
    (softmax, lambda rng: (np.zeros((3, 0)),)),
    (log_softmax_loss, lambda rng: (rng.standard_normal((12, 5)), rng.integers(0, 5, 12))),
    (log_softmax_loss, lambda rng: (rng.standard_normal((12, 5)), rng.integers(0, 9, 12))),
    (
        mlp_forward,
        lambda rng: (
            rng.random((10, 6)),
            list(normals(rng, (6, 8), (8, 8), (8, 3))),
            list(normals(rng, 8, 8, 3)),
        ),
    ),
    (
        mlp_forward,
        lambda rng: (
            rng.random((10, 6)),
            list(normals(rng, (6, 8), (7, 3))),
            list(normals(rng, 8, 3)),
        ),
    ),
    (
        mlp_train,
        lambda rng: (rng.random((16, 4)), rng.random((16, 2)), mlp_params(rng, 4, 8, 2), 0.1, 12),
    ),
    (
        mlp_train,
        lambda rng: (
            rng.random((16, 4), np.float32),
            rng.random((16, 2), np.float32),
            mlp_params(rng, 4, 8, 2, np.float32),
            0.1,
            8,
        ),
    ),
    (xor_train, lambda rng: (*normals(rng, (4, 3), 5), 0.5, 40)),
    (
        dense_backward,
        lambda rng: (
            Layer(*normals(rng, (5, 3), 3), np.zeros((5, 3)), np.zeros(3)),
            rng.random((8, 5)),
            rng.random((8, 3)),
        ),
    ),
    (
        sgd_momentum,
        lambda rng: (
            list(normals(rng, (4, 4), 4)),
            list(normals(rng, (4, 4), 4)),
            [np.zeros((4, 4)), np.zeros(4)],
            0.1,
            0.9,
        ),
    ),
    (adam, lambda rng: normals(rng, 20, (10, 20))),
    (adam, lambda rng: (rng.random(20, np.float32), rng.random((5, 20), np.float32), 0.1)),
    (layer_norm, lambda rng: normals(rng, (6, 10), 10, 10)),
    (layer_norm, lambda rng: normals(rng, (6, 10), 9, 10)),
    (layer_norm, lambda rng: (rng.random((6, 10), np.float32), np.float32(1), np.float32(0))),
    (
        batch_norm_train,
        lambda rng: (
            rng.random((16, 5)),
            np.ones(5),
            np.zeros(5),
            {"mean": np.zeros(5), "var": np.ones(5)},
            0.9,
        ),
    ),
    (rnn_forward, lambda rng: normals(rng, (12, 4), 6, (4, 6), (6, 6), 6)),
    (lstm, lambda rng: normals(rng, (10, 4), 5, 5, (9, 20), 20)),
    (
        gru,
        lambda rng: (
            rng.standard_normal((8, 3, 4)),
            np.zeros((3, 5)),
            {
                k: rng.standard_normal((4 if k[0] == "w" else 5, 5))
                for k in ("wr", "ur", "wz", "uz", "wn", "un")
            },
        ),
    ),
    (attention, lambda rng: (*normals(rng, (8, 6), (8, 6), (8, 4)), True)),
    (attention, lambda rng: (*normals(rng, (8, 6), (10, 6), (10, 4)), False)),
    (
        multi_head_attention,
        lambda rng: (*normals(rng, (7, 12), (12, 12), (12, 12), (12, 12), (12, 12)), 3),
    ),
    (
        multi_head_attention,
        lambda rng: (*normals(rng, (7, 12), (12, 12), (12, 12), (12, 12), (12, 12)), 5),
    ),
    (conv2d_slices, lambda rng: normals(rng, (20, 18), (3, 5))),
    (
        conv2d_slices,
        lambda rng: (rng.random((12, 12), np.float32), rng.random((3, 3), np.float32)),
    ),
    (conv2d_slices, lambda rng: (rng.integers(0, 9, (8, 8)), rng.random((3, 3)))),
    (conv2d_channels, lambda rng: (*normals(rng, (3, 12, 12), (4, 3, 3, 3), 4), 2)),
    (conv2d_channels, lambda rng: (*normals(rng, (2, 12, 12), (4, 3, 3, 3), 4), 2)),
    (im2col_conv, lambda rng: normals(rng, (12, 12), (4, 3, 3))),
    (max_pool, lambda rng: (rng.random((2, 8, 12)), 2)),
    (max_pool, lambda rng: (rng.random((2, 9, 12)), 2)),
    (dropout, lambda rng: (rng.random((6, 8)), 0.7, rng.random((6, 8)))),
    (dropout, lambda rng: (rng.random((6, 8)), 1.0, rng.random((6, 8)))),
    (
        embedding_update,
        lambda rng: (
            rng.random((10, 4)),
            rng.integers(0, 10, 16),
            rng.standard_normal((16, 4)),
            0.1,
        ),
    ),
    (kmeans, lambda rng: (rng.random((60, 2)), rng.random((4, 2)), 12)),
    (
        kmeans_scalar_assign,
        lambda rng: (rng.random((30, 2)), rng.random((4, 2)), np.zeros(30, dtype=int)),
    ),
    (
        logistic_regression,
        lambda rng: (rng.standard_normal((40, 3)), rng.integers(0, 2, 40), 0.5, 0.01, 20),
    ),
    (
        perceptron,
        lambda rng: (
            np.concatenate([rng.random((10, 2)) + 1, rng.random((10, 2)) - 2]),
            np.repeat([1, -1], 10),
            10,
        ),
    ),
    (perceptron, lambda rng: (rng.random((10, 2)), rng.choice([-1, 1], 10), 3)),
    (
        naive_bayes,
        lambda rng: (rng.random((60, 3)), rng.integers(0, 3, 60), 3, rng.random((10, 3))),
    ),
    (
        knn_predict,
        lambda rng: (rng.random((40, 2)), rng.integers(0, 3, 40), rng.random((8, 2)), 5),
    ),
    (
        gmm_em,
        lambda rng: (
            np.concatenate([rng.standard_normal(30), rng.standard_normal(30) + 4]),
            np.array([-1.0, 3.0]),
            np.ones(2),
            np.full(2, 0.5),
            10,
        ),
    ),
    (decision_stump, lambda rng: (rng.random((15, 3)), rng.choice([-1, 1], 15))),
    (q_learning, lambda rng: (rng.random((6, 3)), rng.integers(0, 3, (50, 4)), 0.1, 0.9)),
    (q_learning, lambda rng: (rng.random((6, 3)), rng.integers(-1, 3, (50, 4)), 0.1, 0.9)),
    (
        value_iteration,
        lambda rng: (softmax(rng.random((2, 6, 6)) * 3), rng.random((6, 2)), 0.8, 1e-4),
    ),
    (
        hopfield_recall,
        lambda rng: (rng.choice([-1, 1], (3, 30)), rng.choice([-1, 1], 30), 5),
    ),
    (clip_gradients, lambda rng: (list(normals(rng, (4, 4), 6)), 1.0)),
    (clip_gradients, lambda rng: (list(normals(rng, (4, 4), 6)), 100.0)),
]
