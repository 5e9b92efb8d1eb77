"""ragged_all_to_all against a loop over senders and slices, however the axis lies."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

RANDOM = np.random.default_rng(0)


def case(size, per_device=1, sent=7, length=9, width=3, seed=0):
    """Slices of random sizes, which do not overlap where they arrive."""
    random = np.random.default_rng(seed)
    count = size * per_device
    starts = random.integers(0, sent - 3, (size, count))
    sizes = random.integers(0, 3, (size, count))
    targets = np.zeros((size, count), int)
    received = np.zeros((size, count), int)
    for receiver in range(size):
        room = random.integers(0, 2)
        for sender in range(size):
            for k in range(per_device):
                slot = receiver * per_device + k
                sizes[sender, slot] = min(sizes[sender, slot], max(length - room, 0))
                targets[sender, slot] = room
                received[receiver, sender * per_device + k] = sizes[sender, slot]
                room += sizes[sender, slot] + random.integers(0, 2)
    rows = random.normal(size=(size, sent, width)).astype(np.float32)
    output = random.normal(size=(size, length, width)).astype(np.float32)
    numbers = [x.astype(np.int32) for x in (starts, sizes, targets, received)]
    return rows, output, *numbers


def expected(rows, output, starts, sizes, targets, received, groups=None):
    del received
    results = output.copy()
    members = groups or [range(len(rows))]
    for group in members:
        per_device = starts.shape[1] // len(group)
        for sender in group:
            for slot in range(starts.shape[1]):
                receiver = group[slot // per_device]
                start, size, to = (int(x[sender, slot]) for x in (starts, sizes, targets))
                results[receiver, to : to + size] = rows[sender, start : start + size]
    return results


def exchange(*operands):
    return lax.ragged_all_to_all(*operands, axis_name="i")


def test_the_example_of_jax():
    operands = (
        np.array([[1, 2, 2], [3, 4, 0]]),
        np.zeros((2, 4), int),
        np.array([[0, 1], [0, 1]]),
        np.array([[1, 2], [1, 1]]),
        np.array([[0, 0], [1, 2]]),
        np.array([[1, 1], [2, 1]]),
    )
    out = gf.vmap(exchange, axis_name="i")(*operands)
    np.testing.assert_array_equal(out, [[1, 3, 0, 0], [2, 2, 4, 0]])


@pytest.mark.parametrize("wrap", [gf.jit, lambda f: f])
@pytest.mark.parametrize(("size", "per_device"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_under_vmap(size, per_device, wrap):
    operands = case(size, per_device, length=40, seed=size)
    out = wrap(gf.vmap(exchange, axis_name="i"))(*operands)
    np.testing.assert_array_equal(out, expected(*operands))


def test_groups_and_several_names():
    groups = [[0, 2], [3, 1]]
    rows, output, *_ = case(4, seed=5)
    numbers = [np.zeros((4, 2), np.int32) for _ in range(4)]
    for group in groups:
        inner = case(2, seed=group[0])
        for mine, theirs in zip(numbers, inner[2:], strict=True):
            mine[group] = theirs
    grouped = lambda *a: lax.ragged_all_to_all(*a, axis_name="i", axis_index_groups=groups)  # noqa: E731
    out = gf.vmap(grouped, axis_name="i")(rows, output, *numbers)
    np.testing.assert_array_equal(out, expected(rows, output, *numbers, groups=groups))
    operands = case(4, seed=6)
    pairs = [x.reshape(2, 2, *x.shape[1:]) for x in operands]
    both = lambda *a: lax.ragged_all_to_all(*a, axis_name=("i", "j"))  # noqa: E731
    out = gf.vmap(gf.vmap(both, axis_name="j"), axis_name="i")(*pairs)
    np.testing.assert_array_equal(out.reshape(4, 9, 3), expected(*operands))


def test_another_vmap_inside():
    operands = case(3, seed=7)
    rows = np.stack([operands[0], -operands[0]], 1)
    inner = gf.vmap(exchange, in_axes=(0, *[None] * 5))
    out = gf.vmap(inner, axis_name="i")(rows, *operands[1:])
    np.testing.assert_array_equal(out[:, 0], expected(*operands))
    np.testing.assert_array_equal(out[:, 1], expected(-operands[0], *operands[1:]))


def test_derivatives_are_those_of_the_loop():
    rows, output, *numbers = case(3, 2, length=20, seed=8)
    mapped = gf.vmap(exchange, axis_name="i")
    cotangent = RANDOM.normal(size=output.shape).astype(np.float32)
    _, pullback = gf.vjp(lambda a, b: mapped(a, b, *numbers), rows, output)
    to_rows, to_output = pullback(jnp.asarray(cotangent))
    # The loop is linear: its transpose, element by element.
    marks = np.arange(1, rows.size + 1).reshape(rows.shape)
    sources = expected(marks, np.zeros(output.shape, int), *numbers)
    want = np.zeros(rows.size)
    np.add.at(want, sources[sources > 0] - 1, cotangent[sources > 0])
    np.testing.assert_allclose(to_rows, want.reshape(rows.shape), rtol=1e-6)
    np.testing.assert_allclose(to_output, np.where(sources > 0, 0, cotangent), rtol=1e-6)
    tangents = gf.jvp(lambda a, b: mapped(a, b, *numbers), (rows, output), (rows, output))[1]
    np.testing.assert_array_equal(tangents, expected(rows, output, *numbers))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"send_sizes": np.zeros((2, 2), np.float32)}, ValueError, "send_sizes must be integers"),
        ({"recv_sizes": np.zeros((2, 3), int)}, ValueError, "vectors of one length, at leas"),
        ({"output": np.zeros((2, 4), np.int32)}, TypeError, "output must have rows like those of"),
        ({"output": np.zeros((2, 4, 2), np.float32)}, TypeError, "must have rows like those of"),
        (
            {
                name: np.zeros((2, 3), int)
                for name in ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
            },
            ValueError,
            "the number of slices must be a multiple of the size of the axis; got 3 slices",
        ),
    ],
)
def test_errors(changed, error, text):
    names = ("operand", "output", "input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    operands = dict(zip(names, case(2, width=3), strict=True))
    operands["operand"] = operands["operand"][..., 0]
    operands["output"] = operands["output"][..., 0]
    with pytest.raises(error, match=text):
        gf.vmap(exchange, axis_name="i")(*(operands | changed).values())


def test_outside_of_an_axis():
    with pytest.raises(NameError):
        exchange(*[x[0] for x in case(1)])
