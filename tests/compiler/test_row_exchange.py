"""Plans of row exchanges, carried out on NumPy arrays and compared with slices."""

from __future__ import annotations

import numpy as np
import pytest

from gpuflow.compiler.row_exchange import Exchange, plan_exchange

ARBITRARY = -1  # a row that no reader may depend on
UNWRITTEN = -2


def shards_of(exchange: Exchange) -> list[np.ndarray]:
    """The shards of an array whose rows are their indices."""
    count, chunk = len(exchange.starts), exchange.chunk
    rows = np.full(count * chunk, ARBITRARY)
    rows[: exchange.size] = np.arange(exchange.size)
    return list(rows.reshape(count, chunk))


def run_rounds(exchange: Exchange) -> list[np.ndarray]:
    """The range of each device after all rounds."""
    shards = shards_of(exchange)
    results = [np.full(exchange.length, UNWRITTEN) for _ in exchange.starts]
    for step in exchange.rounds:
        for sender, receiver in step.pairs:
            first, position = step.firsts[sender], step.positions[receiver]
            assert 0 <= first <= exchange.chunk - step.count
            assert position is not None and -step.count < position < exchange.length
            sent = shards[sender][first : first + step.count]
            low, high = max(0, -position), min(step.count, exchange.length - position)
            results[receiver][position + low : position + high] = sent[low:high]
    return results


def in_bounds(exchange: Exchange, device: int) -> np.ndarray:
    """A mask of the rows of a device's range that the array has."""
    rows = exchange.starts[device] + np.arange(exchange.length)
    return (rows >= 0) & (rows < exchange.size)


def check(exchange: Exchange) -> None:
    """Rounds are partial bijections; together they write each range as a slice would."""
    for step in exchange.rounds:
        senders, receivers = zip(*step.pairs, strict=True)
        assert len({*senders}) == len(senders) and len({*receivers}) == len(receivers)
        assert step.is_local or all(s != r for s, r in step.pairs)
        assert {d for d, p in enumerate(step.positions) if p is not None} == {*receivers}
    for device, rows in enumerate(run_rounds(exchange)):
        valid = in_bounds(exchange, device)
        expected = exchange.starts[device] + np.arange(exchange.length)
        np.testing.assert_array_equal(rows[valid], expected[valid])


@pytest.mark.parametrize("seed", range(20))
def test_random_ranges_are_slices(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(50):
        devices, size = int(generator.integers(1, 9)), int(generator.integers(1, 40))
        length = int(generator.integers(1, 2 * size + 2))
        starts = generator.integers(-length, size + length, devices)
        check(plan_exchange(tuple(starts.tolist()), length, size))


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 33])
def test_affine_ranges_are_slices(devices: int, size: int) -> None:
    """Halos ask for ranges whose starts are affine: windows, slices, reversed rows."""
    for stride, offset, length in [(1, 0, 1), (2, -1, 4), (5, 3, 5), (-4, 12, 4), (0, 0, 7)]:
        starts = tuple(offset + stride * device for device in range(devices))
        check(plan_exchange(starts, length, size))


def test_no_row_is_sent_to_its_own_device() -> None:
    """The shards themselves are one local round, and their halos two rounds of one row."""
    assert [step.is_local for step in plan_exchange((0, 4, 8, 12), 4, 16).rounds] == [True]
    halos = plan_exchange((-1, 3, 7, 11), 6, 16)
    assert halos.sent == 2
    assert [(step.is_local, step.count) for step in halos.rounds] == [
        (True, 4),
        (False, 1),
        (False, 1),
    ]
    assert halos.fixed_positions == [1, 5, 0]


@pytest.mark.parametrize("seed", range(5))
def test_fixed_positions_do_not_overlap(seed: int) -> None:
    """Then rows are concatenated: a device without rows of a round has none in bounds there."""
    generator, fixed = np.random.default_rng(seed), 0
    for _ in range(200):
        devices, size = int(generator.integers(2, 6)), int(generator.integers(1, 24))
        stride, offset = int(generator.integers(-6, 7)), int(generator.integers(-4, 5))
        length = int(generator.integers(1, 9))
        starts = tuple(offset + stride * device for device in range(devices))
        exchange = plan_exchange(starts, length, size)
        positions = exchange.fixed_positions
        if positions is None:
            continue
        fixed += bool(positions)
        writers = np.zeros((devices, length), int)
        for position, step in zip(positions, exchange.rounds, strict=True):
            writers[:, max(0, position) : position + step.count] += 1
            for device, received_at in enumerate(step.positions):
                if received_at is None:
                    columns = slice(max(0, position), position + step.count)
                    assert not in_bounds(exchange, device)[columns].any()
        assert writers.max(initial=0) <= 1
    assert fixed
