"""LSTMs of jax.experimental.rnn, compared with a loop in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.experimental import rnn

BATCH, TIME, INPUTS, HIDDEN, LAYERS = 3, 4, 2, 3, 2
LENGTHS = np.array([4, 1, 3], np.int32)


def arguments(bidirectional):
    rng = np.random.default_rng(0)
    directions = 2 if bidirectional else 1
    count = rnn.get_num_params_in_lstm(INPUTS, HIDDEN, LAYERS, bidirectional)
    shapes = [(BATCH, TIME, INPUTS), *[(directions * LAYERS, BATCH, HIDDEN)] * 2, (count,)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(x, h_0, c_0, weights, bidirectional):
    """One sequence and one step at a time, in float64."""
    parts = [
        {k: np.asarray(w, np.float64) for k, w in part.items()}
        for part in rnn.unpack_lstm_weights(weights, INPUTS, HIDDEN, LAYERS, bidirectional)
    ]
    directions = 2 if bidirectional else 1
    outputs = np.zeros((BATCH, TIME, directions * HIDDEN))
    h_n, c_n = np.zeros(h_0.shape), np.zeros(c_0.shape)
    for row, length in enumerate(LENGTHS):
        values = x[row, :length].astype(np.float64)
        for layer in range(LAYERS):
            found = np.zeros((length, directions * HIDDEN))
            for direction in range(directions):
                k = layer * directions + direction
                w_ih, w_hh, b_ih, b_hh = (part[k] for part in parts)
                h, c = h_0[k, row].astype(np.float64), c_0[k, row].astype(np.float64)
                for time in range(length)[:: -1 if direction else 1]:
                    i, f, g, o = np.split(w_ih @ values[time] + b_ih + w_hh @ h + b_hh, 4)
                    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                    h = sigmoid(o) * np.tanh(c)
                    found[time, direction * HIDDEN : (direction + 1) * HIDDEN] = h
                h_n[k, row], c_n[k, row] = h, c
            values = found
        outputs[row, :length] = values
    return outputs, h_n, c_n


@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequences_of_several_lengths(bidirectional):
    x, h_0, c_0, weights = arguments(bidirectional)
    sizes = (INPUTS, HIDDEN, LAYERS)
    found = rnn.lstm(x, h_0, c_0, weights, LENGTHS, *sizes, 0.0, bidirectional)
    for got, wanted in zip(found, by_hand(x, h_0, c_0, weights, bidirectional), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    parts = rnn.unpack_lstm_weights(weights, *sizes, bidirectional)
    again = rnn.lstm_ref(x, h_0, c_0, *parts, LENGTHS, *sizes, 0.0, bidirectional)
    for got, wanted in zip(again, found, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_gradients():
    x, h_0, c_0, weights = arguments(True)

    def loss(weights):
        y, h, _ = rnn.lstm(x, h_0, c_0, weights, LENGTHS, INPUTS, HIDDEN, LAYERS, 0.0, True)
        return (y * y).sum() + h.sum()

    slope = np.asarray(gf.grad(loss)(weights), np.float64)

    def plain(weights):
        y, h, _ = by_hand(x, h_0, c_0, weights, True)
        return (y * y).sum() + h.sum()

    with gf.enable_x64(True):
        for k in range(0, weights.size, 97):
            step = np.zeros(weights.size)
            step[k] = 1e-6
            wanted = (plain(weights + step) - plain(weights - step)) / 2e-6
            assert slope[k] == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_weights():
    weights = rnn.init_lstm_weight(gf.random.key(0), INPUTS, HIDDEN, LAYERS, True)
    assert weights.dtype == jnp.float32 and float(jnp.abs(weights).max()) <= HIDDEN**-0.5
    swapped = rnn.swap_lstm_gates(weights, INPUTS, HIDDEN, LAYERS, True)
    first, second = (
        rnn.unpack_lstm_weights(w, INPUTS, HIDDEN, LAYERS, True) for w in (weights, swapped)
    )
    order = np.r_[0 : 2 * HIDDEN, 3 * HIDDEN : 4 * HIDDEN, 2 * HIDDEN : 3 * HIDDEN]
    for part, other in zip(first, second, strict=True):
        for k, w in part.items():
            np.testing.assert_array_equal(w[order], other[k])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"dropout": 0.5}, NotImplementedError, "dropout must be 0"),
        ({"seq_lengths": np.ones(BATCH)}, NotImplementedError, r"must be i32\[batch\]"),
        ({"weights": np.ones(3, np.float32)}, ValueError, "must be a vector of"),
    ],
)
def test_wrong_arguments(changes, error, words):
    x, h_0, c_0, weights = arguments(False)
    given = dict(
        x=x,
        h_0=h_0,
        c_0=c_0,
        weights=weights,
        seq_lengths=LENGTHS,
        input_size=INPUTS,
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        dropout=0.0,
        bidirectional=False,
    )
    with pytest.raises(error, match=words):
        rnn.lstm(**given | changes)
