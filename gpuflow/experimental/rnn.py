"""LSTMs with the weights in one vector in cuDNN's order, as in JAX.

Each layer and direction has the weights W_ih f[4 hidden, inputs], W_hh f[4 hidden, hidden], b_ih
and b_hh f[4 hidden]. The gates i, f, g and o are along their first dimension. A bidirectional layer
has two sets of them, forward first. The vector contains W_ih and W_hh of all layers, then b_ih and
b_hh of all.

Tests: tests/experimental/test_rnn.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax, nn, random
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike

_Weights = dict[int, Array]
_KINDS = ("W_ih", "W_hh"), ("b_ih", "b_hh")


def _shapes(
    input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """The kind, the layer and the shape of all weights, in the order of the vector."""
    directions = 2 if bidirectional else 1
    rows = 4 * hidden_size
    for kinds in _KINDS:
        for layer in range(num_layers * directions):
            inputs = input_size if layer < directions else directions * hidden_size
            shapes = {"W_ih": (rows, inputs), "W_hh": (rows, hidden_size)}
            for kind in kinds:
                yield kind, layer, shapes.get(kind, (rows,))


def get_num_params_in_lstm(
    input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> int:
    """Return the number of weights of an LSTM.

    Args:
        input_size: size of the inputs of the first layer.
        hidden_size: size of the state of a layer.
        num_layers: number of stacked layers.
        bidirectional: whether each layer runs in both directions.

    Returns:
        The length of the vector of weights.

    Example:
        >>> from gpuflow.experimental import rnn
        >>> rnn.get_num_params_in_lstm(3, 2, 1, False)
        56
    """
    shapes = _shapes(input_size, hidden_size, num_layers, bidirectional)
    return sum(math.prod(shape) for _, _, shape in shapes)


def init_lstm_weight(
    rng: ArrayLike, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> Array:
    """Return random weights, uniform in [-k, k] with ``k = 1 / sqrt(hidden_size)``.

    Args:
        rng: a random key.
        input_size, hidden_size, num_layers, bidirectional: as in ``get_num_params_in_lstm``.

    Returns:
        f32[n], with n from ``get_num_params_in_lstm``.

    Example:
        >>> import gpuflow as gf
        >>> from gpuflow.experimental import rnn
        >>> rnn.init_lstm_weight(gf.random.key(0), 3, 2, 1, False).shape
        (56,)
    """
    count = get_num_params_in_lstm(input_size, hidden_size, num_layers, bidirectional)
    bound = math.sqrt(1.0 / hidden_size)
    return random.uniform(rng, (count,), jnp.float32, -bound, bound)


def unpack_lstm_weights(
    weights: ArrayLike, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> tuple[_Weights, _Weights, _Weights, _Weights]:
    """Return the weights of each layer and direction.

    Args:
        weights: f[n], with n from ``get_num_params_in_lstm``.
        input_size, hidden_size, num_layers, bidirectional: as in ``get_num_params_in_lstm``.

    Returns:
        W_ih, W_hh, b_ih and b_hh, by the index of the layer; with two directions layer ``k`` is 2k
        forward and 2k + 1 backward.

    Raises:
        ValueError: if the vector has another length.

    Example:
        >>> import gpuflow as gf
        >>> from gpuflow.experimental import rnn
        >>> weights = rnn.init_lstm_weight(gf.random.key(0), 3, 2, 1, False)
        >>> [w[0].shape for w in rnn.unpack_lstm_weights(weights, 3, 2, 1, False)]
        [(8, 3), (8, 2), (8,), (8,)]
    """
    weights = jnp.asarray(weights)
    count = get_num_params_in_lstm(input_size, hidden_size, num_layers, bidirectional)
    check(
        weights.shape == (count,),
        lambda: (
            f"[unpack_lstm_weights] weights must be a vector of {count}; got {aval_of(weights)}. "
            "Fix: rnn.init_lstm_weight with the same sizes."
        ),
        ValueError,
    )
    found: dict[str, _Weights] = {"W_ih": {}, "W_hh": {}, "b_ih": {}, "b_hh": {}}
    start = 0
    for kind, layer, shape in _shapes(input_size, hidden_size, num_layers, bidirectional):
        stop = start + math.prod(shape)
        found[kind][layer] = weights[start:stop].reshape(shape)
        start = stop
    return found["W_ih"], found["W_hh"], found["b_ih"], found["b_hh"]


def swap_lstm_gates(
    weights: ArrayLike, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> Array:
    """Return the weights with the gates g and o swapped.

    Args:
        weights: f[n], as in ``unpack_lstm_weights``.
        input_size, hidden_size, num_layers, bidirectional: as in ``get_num_params_in_lstm``.

    Returns:
        A vector like ``weights``.

    Raises:
        ValueError: if the vector has another length.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow.experimental import rnn
        >>> rnn.swap_lstm_gates(jnp.arange(16.0), 1, 1, 1, False)[:4].tolist()
        [0.0, 1.0, 3.0, 2.0]
    """
    sizes = (input_size, hidden_size, num_layers, bidirectional)
    found = dict(zip(("W_ih", "W_hh", "b_ih", "b_hh"), unpack_lstm_weights(weights, *sizes)))
    chunks = []
    for kind, layer, _ in _shapes(*sizes):
        i, f, g, o = jnp.split(found[kind][layer], 4)
        chunks.append(jnp.concatenate([i, f, o, g]).ravel())
    return jnp.concatenate(chunks)


def lstm(
    x: ArrayLike,
    h_0: ArrayLike,
    c_0: ArrayLike,
    weights: ArrayLike,
    seq_lengths: ArrayLike,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    precision: Any = None,
) -> tuple[Array, Array, Array]:
    """Compute the outputs and final states of an LSTM over a batch of sequences.

    It runs on every platform, and derivatives are those of its operations: it is a loop over time
    that is compiled with the rest of a program.

    Args:
        x: f[batch, time, input_size].
        h_0, c_0: f[directions * num_layers, batch, hidden_size], the initial states.
        weights: f[n], as in ``unpack_lstm_weights``.
        seq_lengths: i32[batch], length of each sequence in ``time``, at least 1.
        input_size, hidden_size, num_layers, bidirectional: as in ``get_num_params_in_lstm``.
        dropout: must be 0; cuDNN's dropout between layers has its own random state.
        precision: precision of the products, as in ``jnp.matmul``.

    Returns:
        The outputs f[batch, time, directions * hidden_size], which are 0 after the end of a
        sequence, and the final states, like ``h_0`` and ``c_0``.

    Raises:
        NotImplementedError: if ``dropout`` is not 0, or lengths have another dtype.
        ValueError: if the weights have another length.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow.experimental import rnn
        >>> weights = rnn.init_lstm_weight(gf.random.key(0), 3, 2, 1, False)
        >>> x, state = jnp.ones((4, 5, 3)), jnp.zeros((1, 4, 2))
        >>> lengths = jnp.full(4, 5, jnp.int32)
        >>> y, h, c = rnn.lstm(x, state, state, weights, lengths, 3, 2, 1, 0.0, False)
        >>> y.shape, h.shape
        ((4, 5, 2), (1, 4, 2))
    """
    unpacked = unpack_lstm_weights(weights, input_size, hidden_size, num_layers, bidirectional)
    return _run(x, h_0, c_0, unpacked, seq_lengths, num_layers, dropout, bidirectional, precision)


def lstm_ref(
    x: ArrayLike,
    h_0: ArrayLike,
    c_0: ArrayLike,
    W_ih: _Weights,
    W_hh: _Weights,
    b_ih: _Weights,
    b_hh: _Weights,
    seq_lengths: ArrayLike,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
) -> tuple[Array, Array, Array]:
    """Compute ``lstm`` with weights from ``unpack_lstm_weights``.

    Args:
        x, h_0, c_0, seq_lengths, num_layers, dropout, bidirectional: as in ``lstm``.
        W_ih, W_hh, b_ih, b_hh: weights by the index of the layer.
        input_size, hidden_size: redundant with the weights.

    Returns:
        As ``lstm``.

    Raises:
        NotImplementedError: as ``lstm``.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow.experimental import rnn
        >>> weights = rnn.init_lstm_weight(gf.random.key(0), 3, 2, 1, False)
        >>> unpacked = rnn.unpack_lstm_weights(weights, 3, 2, 1, False)
        >>> x, state = jnp.ones((4, 5, 3)), jnp.zeros((1, 4, 2))
        >>> lengths = jnp.full(4, 5, jnp.int32)
        >>> rnn.lstm_ref(x, state, state, *unpacked, lengths, 3, 2, 1, 0.0, False)[0].shape
        (4, 5, 2)
    """
    del input_size, hidden_size
    unpacked = (W_ih, W_hh, b_ih, b_hh)
    return _run(x, h_0, c_0, unpacked, seq_lengths, num_layers, dropout, bidirectional, None)


def _run(
    x: ArrayLike,
    h_0: ArrayLike,
    c_0: ArrayLike,
    unpacked: tuple[_Weights, ...],
    seq_lengths: ArrayLike,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    precision: Any,
) -> tuple[Array, Array, Array]:
    lengths = jnp.asarray(seq_lengths)
    check(
        lengths.dtype == dtypes.int32,
        lambda: f"[lstm] seq_lengths must be i32[batch]; got {aval_of(lengths)}. Fix: astype(int).",
        NotImplementedError,
    )
    check(
        dropout == 0.0,
        lambda: f"[lstm] dropout must be 0; got {dropout}. Fix: mask x between calls of a layer.",
        NotImplementedError,
    )
    h_0, c_0 = jnp.asarray(h_0), jnp.asarray(c_0)
    values = jnp.asarray(x).transpose(1, 0, 2)
    last: list[tuple[Array, Array]] = []
    directions = 2 if bidirectional else 1
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            # Backwards, a sequence begins at its own end; its padding stays after it.
            inputs = _reversed(values, lengths) if direction else values
            weights = tuple(by_layer[k] for by_layer in unpacked)
            state, found = _layer(inputs, (h_0[k], c_0[k]), weights, lengths, precision)
            last.append(state)
            outputs.append(_reversed(found, lengths) if direction else found)
        values = jnp.concatenate(outputs, axis=-1)
    h_n, c_n = (jnp.stack(states) for states in zip(*last, strict=True))
    return values.transpose(1, 0, 2), h_n, c_n


def _layer(
    inputs: Array,
    state: tuple[Array, Array],
    weights: tuple[Array, ...],
    lengths: Array,
    precision: Any,
) -> tuple[tuple[Array, Array], Array]:
    """One layer in one direction: its last state, and its outputs f[time, batch, hidden]."""
    w_ih, w_hh, b_ih, b_hh = weights
    # The terms independent of the state are one product for all times.
    gates = jnp.matmul(inputs, w_ih.T, precision=precision) + (b_ih + b_hh)

    def step(carry: tuple[Array, Array], now: Any) -> tuple[tuple[Array, Array], Array]:
        (h, c), (time, gate) = carry, now
        i, f, g, o = jnp.split(gate + jnp.matmul(h, w_hh.T, precision=precision), 4, axis=-1)
        new_c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        new_h = nn.sigmoid(o) * jnp.tanh(new_c)
        is_valid = (time < lengths)[:, None]
        new = (jnp.where(is_valid, new_h, h), jnp.where(is_valid, new_c, c))
        return new, jnp.where(is_valid, new_h, 0)

    times = jnp.arange(inputs.shape[0], dtype=jnp.int32)
    return lax.scan(step, state, (times, gates))


def _reversed(values: Array, lengths: Array) -> Array:
    """Reverse each sequence of f[time, batch, ...]; padding stays after it."""
    times = jnp.arange(values.shape[0])[:, None]
    positions = jnp.where(times < lengths, lengths - 1 - times, times)
    return jnp.take_along_axis(values, positions[:, :, None], axis=0)
