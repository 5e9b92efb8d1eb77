"""Write the pictures of README.md and gallery.md into pictures/.

    python docs/make_pictures.py                 # all; needs matplotlib, Pillow and Chromium
    python docs/make_pictures.py gpt vae         # some

explain.png is the page of the README's training step, as Chromium (Debian: apt install chromium)
shows it. The others are of the programs in examples/, each of which runs as its file says.
"""

from __future__ import annotations

import importlib
import linecache
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import gpuflow as gf

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"
FILE = "train.py"  # what the page calls the README's example
STEP = "#step-2"  # what is marked
WIDTH, TALL, SHOWN = 900, 4000, 800  # a window in which nothing scrolls, and how much is kept
SIDE = 240  # pixels that a small image has at least


# --- the page of explain -----------------------------------------------------------------------


def readme_example() -> dict[str, Any]:
    """What the first example of the README defines."""
    code = re.search(r"```python\n(.*?)^```", (DOCS.parent / "README.md").read_text(), re.M | re.S)
    assert code is not None
    linecache.cache[FILE] = (len(code[1]), None, code[1].splitlines(keepends=True), FILE)
    names: dict[str, Any] = {}
    exec(compile(code[1], FILE, "exec"), names)
    return names


def explain() -> Image.Image:
    """The page, as a browser shows it.

    Raises:
        FileNotFoundError: there is no browser.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("chromium must be installed; got none. Fix: apt install chromium")
    names = readme_example()
    found = gf.explain(names["step"], names["params"], names["x"], names["y"], measure=True, top=3)
    with tempfile.TemporaryDirectory() as folder:
        page, picture = found.to_html(f"{folder}/page.html"), Path(folder, "page.png")
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/browser",
                f"--window-size={WIDTH},{TALL}",
                f"--screenshot={picture}",
                f"{page.as_uri()}{STEP}",
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        return Image.open(picture).convert("RGB").crop((0, 0, WIDTH, SHOWN))


# --- the programs ------------------------------------------------------------------------------


def as_image(brightness: Any, program: Any) -> Image.Image:
    """An array of brightness in the colors of the examples; small ones are enlarged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "picture.png")
        program.save_png(path, brightness)
        image = Image.open(path).convert("RGB")
    times = -(-SIDE // image.height)
    return image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)


def as_plot(draw: Callable[[Any], None], width: float = 4.8) -> Image.Image:
    """What a function draws on axes."""
    figure = Figure(figsize=(width, 2.7), dpi=100, layout="constrained")
    draw(figure.subplots())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "picture.png")
        figure.savefig(path)
        return Image.open(path).convert("RGB")


def mandelbrot(program: Any) -> Image.Image:
    """The set."""
    return as_image(program.picture(), program)


def lorenz_ensemble(program: Any) -> Image.Image:
    """How often lanes are where."""
    return as_image(program.picture(program.starts_of(1000, seed=1)), program)


def images(program: Any) -> Image.Image:
    """The truth, what is seen, what is found."""
    return as_image(program.picture(), program)


def vae(program: Any) -> Image.Image:
    """What the decoder makes of a grid."""
    return as_image(program.picture(program.train()[0]), program)


def gpt(program: Any) -> Image.Image:
    """The loss of all steps."""
    losses = program.train()[1]

    def draw(axes: Any) -> None:
        axes.semilogy(losses)
        axes.set(xlabel="step", ylabel="-log p of a letter")

    return as_plot(draw)


def cnn(program: Any) -> Image.Image:
    """Unseen images, and what they are said to be."""
    params, _ = program.train()
    shown = [np.asarray(x) for x in program.batch_of(gf.random.key(9))]
    found = np.argmax(program.logits_of(params, shown[0]), 1)[:8]

    def draw(axes: Any) -> None:
        axes.imshow(np.concatenate(shown[0][:8, ..., 0], 1), "inferno", vmin=-0.5, vmax=1.5)
        ticks = (np.arange(8) + 0.5) * program.SIDE
        axes.set_xticks(ticks, [program.KINDS[kind] for kind in found])
        axes.set_yticks([])

    return as_plot(draw, 8).crop((0, 60, 800, 210))


def neural_ode(program: Any) -> Image.Image:
    """A true path and the one that was learned."""
    params, _ = program.train()
    start = program.starts(gf.random.key(7))
    paths = program.true_paths(start), program.learned_paths(params, start)

    def draw(axes: Any) -> None:
        for path, style, label in zip(paths, ("o", "-"), ("true", "learned")):
            axes.plot(*np.asarray(path)[:, :2].T[:, 0], style, color="C0", label=label)
            axes.plot(*np.asarray(path)[:, :2].T[:, 1], style, color="C1")
        axes.set_aspect("equal")
        axes.legend()

    return as_plot(draw)


def gaussian_process(program: Any) -> Image.Image:
    """The function, its points, and two deviations around the means."""
    x, y = program.data()
    new = np.linspace(-4, 4, 200).astype(np.float32)
    means, deviations = map(np.asarray, program.predict(program.fit(x, y)[0], x, y, new))

    def draw(axes: Any) -> None:
        axes.fill_between(new, means - 2 * deviations, means + 2 * deviations, alpha=0.25)
        axes.plot(new, means, label="mean")
        axes.plot(new, program.truth(new), "k:", label="truth")
        axes.plot(x, y, "k.", label="points")
        axes.legend(fontsize="small")

    return as_plot(draw)


def graph_network(program: Any) -> Image.Image:
    """People by two of the outputs; stars are those whose group was told."""
    groups, senders, receivers = program.random_graph()
    places = np.asarray(program.logits_of(program.train()[0], senders, receivers))[:, :2]
    told = program.TOLD * program.GROUPS

    def draw(axes: Any) -> None:
        pairs = np.stack([places[senders], places[receivers]])
        axes.plot(pairs[..., 0], pairs[..., 1], color="0.85", linewidth=0.3)
        axes.scatter(*places[told:].T, c=groups[told:], cmap="viridis", zorder=2, s=15)
        axes.scatter(*places[:told].T, c=groups[:told], cmap="viridis", zorder=3, marker="*", s=90)
        axes.set(xlabel="output 0", ylabel="output 1")

    return as_plot(draw)


def mesh_transformer(program: Any) -> Image.Image:
    """Predicted computation and communication of one of 64 devices, for each way."""
    mesh = gf.sharding.AbstractMesh((8, 8), program.AXES)
    plans = {way: program.plan(way, mesh, program.LARGE) for way in program.WAYS}

    def draw(axes: Any) -> None:
        for row, found in enumerate(plans.values()):
            timeline = found.timeline
            exposed = timeline.exposed_seconds
            axes.barh(row - 0.2, timeline.computation, 0.35, color="tab:blue")
            axes.barh(row - 0.2, exposed, 0.35, timeline.computation, color="0.85")
            axes.barh(row + 0.2, timeline.communication, 0.35, color="tab:orange")
        axes.set_yticks(range(len(plans)), plans)
        axes.invert_yaxis()
        axes.set(xlabel="predicted seconds: computation and waiting; communication")

    return as_plot(draw, 6.4)


DRAWN: tuple[Callable[[Any], Image.Image], ...] = (
    mandelbrot,
    lorenz_ensemble,
    images,
    vae,
    gpt,
    cnn,
    neural_ode,
    gaussian_process,
    graph_network,
    mesh_transformer,
)


def main(names: Sequence[str]) -> None:
    """Draw the pictures that are named, or all."""
    matplotlib.use("agg")
    sys.path.insert(0, str(DOCS / "examples"))
    makers: dict[str, Callable[[], Image.Image]] = {"explain": explain}
    for draw in DRAWN:
        name = draw.__name__
        makers[name] = lambda draw=draw, name=name: draw(importlib.import_module(name))
    PICTURES.mkdir(exist_ok=True)
    for name in names or makers:
        path = PICTURES / f"{name}.png"
        makers[name]().quantize(128).save(path, optimize=True)
        print(f"{path.name}: {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
