"""`gpuflow demo`: train a small network on handwritten digits, and report its speed.

`gpuflow.cli.demo_model` holds the model and its training step, written as a user would.

Tests: tests/cli/test_demo.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpuflow as gf
from gpuflow.base.records import record
from gpuflow.cli import demo_model
from gpuflow.cli.problems import CommandError, require
from gpuflow.timing import Timing, timeit

BATCH_SIZE = 128
LAYER_SIZES = (64, 256, 256, 10)
TEST_FRACTION = 0.2
GOAL = 0.97
# float32 sums in another order: the loss of the two programs may differ in the last digits.
LOSS_TOLERANCE = 1e-4
COMPARED_STEPS = 5
NUMPY = "NumPy (faster of one and all BLAS threads)"
NEXT = """Next:
  gpuflow doctor                         check this machine: threads, cache, GPU packages
  python -m gpuflow.as_jax train.py      run your own JAX program
  docs/quickstart.md                     the ten-minute introduction
"""


@record
class Digits:
    """Images as f32[n, 64] in [0, 1] and labels as i32[n]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def add_parser(commands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = commands.add_parser("demo", help="train a network on handwritten digits")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=positive, default=40, help="default: 40")
    length.add_argument("--steps", type=positive, help="training steps, instead of epochs")
    parser.add_argument(
        "--platform",
        choices=("cpu", "cuda", "cuda_sim"),
        help="platform to run on (default: a GPU if there is one, else the CPU)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of split, weights and batches")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the loss (needs matplotlib)")
    parser.add_argument("--no-progress", action="store_true", help="print lines, no bar")
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value


def run(options: argparse.Namespace) -> int:
    """Trains, evaluates, times; returns 1 where full training misses the goal or NumPy's loss."""
    require("rich", "demo")
    if options.plot:
        require("matplotlib", "plot")
        check_plot_path(options.plot)
    digits = load_digits(options.seed)
    device = find_device(options.platform)
    with gf.default_device(device):
        return train_and_report(options, digits, device)


def train_and_report(options: argparse.Namespace, digits: Digits, device: Any) -> int:
    """Train and report, after `run` has prepared data and device; returns the exit status."""
    initial = demo_model.initial_state(gf.random.PRNGKey(options.seed), LAYER_SIZES)
    # The jitted step donates its state: NumPy's initial state has to be copied first.
    numpy_initial = demo_model.to_numpy(initial)
    step = gf.jit(demo_model.train_step, donate_argnums=0)

    state, losses = train(step, initial, digits, options)
    accuracy = demo_model.accuracy(state["params"], digits.test_images, digits.test_labels)
    print(
        f"test accuracy {accuracy:.2%} after {len(losses)} steps ({len(digits.test_labels)} test "
        "images)"
    )
    if options.plot:
        plot_losses(losses, options.plot)
        print(f"loss drawn in {options.plot}")

    # Counted before the timings below, which need kernels of their own.
    stats = gf.cache_stats()
    images, labels = digits.train_images[:BATCH_SIZE], digits.train_labels[:BATCH_SIZE]
    difference = loss_difference(step, numpy_initial, images, labels)
    timings = {
        "jit": time_steps(step, numpy_initial, images, labels),
        "eager": time_steps(demo_model.train_step, numpy_initial, images, labels),
        NUMPY: time_numpy(numpy_initial, images, labels),
    }
    print_table(device, stats, timings, difference)
    print(NEXT)

    complete = options.steps is None and options.epochs >= 40
    if complete and accuracy < GOAL:
        print(f"gpuflow demo: accuracy is below {GOAL:.0%}", file=sys.stderr)
        return 1
    if difference > LOSS_TOLERANCE:
        print(f"gpuflow demo: loss differs from NumPy's by {difference:.1e}", file=sys.stderr)
        return 1
    return 0


def load_digits(seed: int) -> Digits:
    """scikit-learn's bundled digits (1797 images of 8 x 8), split at random by `seed`."""
    images, labels = require("sklearn.datasets", "demo").load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int32)
    count = int(len(labels) * TEST_FRACTION)
    return Digits(images[count:], labels[count:], images[:count], labels[:count])


def find_device(platform: str | None) -> Any:
    """The first device of `platform`, or of the default one.

    Raises:
        CommandError: there is none.
    """
    try:
        return gf.devices(platform)[0]
    except (RuntimeError, ValueError, ImportError, IndexError) as error:
        asked = f"the platform {platform}" if platform else "the default platform"
        raise CommandError(f"{asked} must have a device; got: {error}") from error


def batches(digits: Digits, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless batches; every epoch in a new order, its last batch smaller than the others."""
    generator = np.random.default_rng(seed + 1)
    count = len(digits.train_labels)
    while True:
        order = generator.permutation(count)
        for start in range(0, count, BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            yield digits.train_images[chosen], digits.train_labels[chosen]


def train(
    step: Callable[..., Any], state: Any, digits: Digits, options: argparse.Namespace
) -> tuple[Any, list[float]]:
    """Runs the training loop; returns the last state and the loss of every step."""
    per_epoch = -(-len(digits.train_labels) // BATCH_SIZE)
    total = options.steps or options.epochs * per_epoch
    source = batches(digits, options.seed)
    losses = []
    plain = options.no_progress or not sys.stdout.isatty()
    with plain_progress(total) if plain else bar_progress(total) as report:
        for number in range(1, total + 1):
            images, labels = next(source)
            state, loss = step(state, images, labels)
            # Not read here: the loop runs ahead of the device, and waits once per epoch.
            losses.append(loss)
            if number % per_epoch == 0 or number == total:
                report(number, float(loss))
    return state, [float(loss) for loss in losses]


@contextlib.contextmanager
def bar_progress(total: int) -> Iterator[Callable[[int, float], None]]:
    """A rich progress bar on the terminal."""
    progress = require("rich.progress", "demo")
    columns = (
        progress.TextColumn("training"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("loss {task.fields[loss]:.4f}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task("training", total=total, loss=float("nan"))
        yield lambda number, loss: bar.update(task, completed=number, loss=loss)


@contextlib.contextmanager
def plain_progress(total: int) -> Iterator[Callable[[int, float], None]]:
    """At most some ten lines, for logs."""
    printed = 0

    def report(number: int, loss: float) -> None:
        nonlocal printed
        if number == total or number - printed >= total / 10:
            printed = number
            print(f"step {number}/{total}  loss {loss:.4f}", flush=True)

    yield report


def time_steps(step: Callable[..., Any], numpy_state: Any, images: Any, labels: Any) -> Timing:
    """Times training steps, each from the state that the one before returned."""
    state = numpy_state
    if step is not demo_model.numpy_train_step:
        state = demo_model.from_numpy(numpy_state)
        images, labels = gf.device_put((images, labels))

    def call() -> Any:
        nonlocal state
        state, loss = step(state, images, labels)
        return state, loss

    return timeit(call, seconds=1.0)


def time_numpy(numpy_state: Any, images: Any, labels: Any) -> Timing:
    """The faster of NumPy's steps with one BLAS thread and with as many as it chooses.

    Products as small as these are slower with more threads, above all on busy cores.
    """
    threads = require("threadpoolctl", "demo")
    by_default = time_steps(demo_model.numpy_train_step, numpy_state, images, labels)
    with threads.threadpool_limits(1, user_api="blas"):
        by_one = time_steps(demo_model.numpy_train_step, numpy_state, images, labels)
    return min(by_default, by_one, key=lambda timing: timing.median)


def loss_difference(
    step: Callable[..., Any], numpy_state: Any, images: np.ndarray, labels: np.ndarray
) -> float:
    """Largest difference of the losses of a few steps, between `step` and plain NumPy.

    GPUs make products of float32 for it, where training takes their default.
    """
    state = demo_model.from_numpy(numpy_state)
    worst = 0.0
    for _ in range(COMPARED_STEPS):
        with gf.default_matmul_precision("highest"):
            state, loss = step(state, images, labels)
        numpy_state, numpy_loss = demo_model.numpy_train_step(numpy_state, images, labels)
        worst = max(worst, abs(float(loss) - float(numpy_loss)))
    return worst


def print_table(device: Any, stats: Any, timings: dict[str, Timing], difference: float) -> None:
    """The summary: platform, kernels, build time, and steps per second, with NumPy's."""
    table = require("rich.table", "demo").Table(title="gpuflow demo", show_header=False)
    table.add_row("platform, device", f"{device.platform}, {device}")
    table.add_row("kernels built", str(stats.built))
    table.add_row("kernels loaded from the cache", str(stats.loaded))
    table.add_row("build seconds", f"{stats.build_seconds:.2f}")
    for name, timing in timings.items():
        table.add_row(f"steps per second, {name}", f"{1 / timing.median:,.0f}")
    table.add_row(f"loss of {COMPARED_STEPS} steps against NumPy", f"difference {difference:.1e}")
    require("rich.console", "demo").Console().print(table)


def check_plot_path(path: str) -> None:
    """Refuses, before anything is trained, a file that could not be written afterwards.

    Raises:
        CommandError: no such folder, or a kind of file that matplotlib does not draw.
    """
    folder = Path(path).resolve().parent
    if not os.access(folder, os.W_OK):
        raise CommandError(
            f"the folder of {path} must exist and be writable; got {folder}. Fix: --plot loss.png"
        )
    known = require("matplotlib.figure", "plot").Figure().canvas.get_supported_filetypes()
    if Path(path).suffix.lower()[1:] not in known:
        raise CommandError(
            f"the file must be one of {', '.join(sorted(known))}; got {path}. Fix: --plot loss.png"
        )


def plot_losses(losses: list[float], path: str) -> None:
    """Draws the loss of every step into an image file."""
    figure = require("matplotlib.figure", "plot").Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.semilogy(range(1, len(losses) + 1), losses, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy of the batch")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
