"""The demo: its data, its NumPy twin, a short run, and the accuracy that it promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpuflow.cli import demo, demo_model
from gpuflow.cli.main import main
from gpuflow.cli.problems import CommandError
from gpuflow.timing import Timing


def test_split_is_seeded_and_complete():
    digits = demo.load_digits(3)
    assert digits.train_images.shape == (1438, 64) and digits.test_images.shape == (359, 64)
    assert digits.train_images.dtype == np.float32 and digits.train_labels.dtype == np.int32
    assert digits.train_images.min() == 0 and digits.train_images.max() == 1
    again, other = demo.load_digits(3), demo.load_digits(4)
    assert np.array_equal(digits.test_labels, again.test_labels)
    assert not np.array_equal(digits.test_labels, other.test_labels)


def test_an_epoch_shows_every_image_once():
    digits = demo.load_digits(0)
    source = demo.batches(digits, 0)
    labels = np.concatenate([next(source)[1] for _ in range(12)])
    assert np.array_equal(np.sort(labels), np.sort(digits.train_labels))


def small_state() -> demo_model.State:
    generator = np.random.default_rng(0)
    sizes = (5, 7, 10)
    params = [
        {"w": generator.standard_normal((m, n)), "b": generator.standard_normal(n)}
        for m, n in itertools.pairwise(sizes)
    ]
    zeros = [{name: np.zeros_like(value) for name, value in layer.items()} for layer in params]
    left = {"mean_left": np.float32(1), "square_left": np.float32(1)}
    return {"params": params, "mean": zeros, "square": zeros, **left}


def test_numpy_gradients_against_differences():
    """After one step from zero moments, mean is a tenth of the gradient."""
    state = small_state()
    generator = np.random.default_rng(1)
    images, labels = generator.random((6, 5)), generator.integers(0, 10, 6)
    after, _ = demo_model.numpy_train_step(state, images, labels)
    # float64; central differences of step 1e-6 are good to about 1e-9 here.
    step = 1e-6
    for index, layer in enumerate(state["params"]):
        for name, value in layer.items():
            place = tuple(generator.integers(0, size) for size in value.shape)
            before = value[place]
            losses = []
            for moved in (before + step, before - step):
                value[place] = moved
                losses.append(demo_model.numpy_train_step(state, images, labels)[1])
            value[place] = before
            slope = (losses[0] - losses[1]) / (2 * step)
            gradient = after["mean"][index][name][place] / 0.1
            assert gradient == pytest.approx(slope, abs=1e-7)


def test_numpy_is_timed_with_one_thread_too(monkeypatch):
    """Threads that compete for cores made NumPy 80 times slower than it is with one of them."""
    seen = []

    def timed(step, *args):
        pools = threadpoolctl.threadpool_info()
        seen.append(max(pool["num_threads"] for pool in pools if pool["user_api"] == "blas"))
        return Timing(1.0 / len(seen), 0.0, 5)

    threadpoolctl = pytest.importorskip("threadpoolctl")
    monkeypatch.setattr(demo, "time_steps", timed)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        assert demo.time_numpy({}, None, None).median == 0.5
        assert seen == [2, 1]
        seen.clear()
        monkeypatch.setattr(demo, "time_steps", lambda *args: Timing(1.0 + len(seen), 0.0, 5))
        assert demo.time_numpy({}, None, None).median == 1.0


def test_short_run_prints_the_table(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "loss.png"
    assert main(["demo", "--steps", "20", "--no-progress", "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "step 20/20  loss" in text and "test accuracy" in text
    for row in ("platform, device", "kernels built", "loaded from the cache", "build seconds"):
        assert row in text
    for kind in ("jit", "eager", "NumPy"):
        assert f"steps per second, {kind}" in text
    assert "python -m gpuflow.as_jax" in text  # what to do next
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/loss.png", "the folder of nowhere/loss.png must exist and be writable"),
        ("loss.foo", "the file must be one of .*png.*; got loss.foo. Fix: --plot loss.png"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_training(path, message):
    pytest.importorskip("matplotlib")
    with pytest.raises(CommandError, match=message):
        demo.check_plot_path(path)


def test_unknown_device_is_one_line(capsys):
    assert main(["demo", "--platform", "cuda", "--steps", "1"]) in (0, 2)
    captured = capsys.readouterr()
    if captured.err:
        assert captured.err.startswith("gpuflow demo: the platform cuda must have a device")
        assert captured.err.count("\n") == 1


def test_full_training_reaches_the_goal(capsys):
    assert main(["demo", "--no-progress"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "test accuracy" in x)
    assert float(line.split()[2].removesuffix("%")) >= 97
