"""The programs of docs/examples do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
from gpuflow.base.tables import scaled

pytestmark = pytest.mark.simulated_gpu
MANY_STEPS = pytest.mark.not_simulated(
    "hundreds of steps; the sweep has their ops, the fuzz whole programs"
)

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.not_simulated("plans and virtual devices of the CPU")
def test_a_transformer_is_split_in_four_ways():
    """Virtual devices with separate memories: all ways have the losses of one device."""
    losses = {}
    for devices, separate in ((1, "0"), (8, "1")):
        environment = {"GPUFLOW_CPU_DEVICES": str(devices), "GPUFLOW_SEPARATE_MEMORIES": separate}
        done = subprocess.run(
            [sys.executable, EXAMPLES / "mesh_transformer.py"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        rows = [row.split(" [") for row in done.stdout.splitlines()]
        losses[devices] = {way: np.fromstring(text[:-1], sep=",") for way, text in rows}
    expected = losses[1]["data parallel"]
    assert len(losses[8]) == 4 and expected[0] > 5.8 and expected[-1] < 5.1
    for values in losses[8].values():
        np.testing.assert_allclose(values, expected, rtol=2e-6)


@pytest.mark.not_simulated("plans are made for CPUs and CUDA")
def test_plans_of_a_large_transformer():
    """The figures of docs/planning_a_mesh.md."""
    example = load("mesh_transformer")
    mesh = gf.sharding.AbstractMesh((8, 8), example.AXES)
    plans = {way: example.plan(way, mesh, example.LARGE) for way in example.WAYS}
    page = (EXAMPLES.parent / "planning_a_mesh.md").read_text()
    for way, found in plans.items():
        row = next(
            row for row in page.splitlines() if row.startswith(f"| {way} | ") and "GB" in row
        )
        cells = [cell.strip() for cell in row.split("|")[2:5]]
        sizes = found.argument_bytes, found.peak_bytes, found.bytes_sent()
        for cell, size in zip(cells, sizes, strict=True):
            assert cell.startswith(scaled(size, "B")), way
    fsdp, whole = plans["FSDP"], plans["data parallel"]
    assert fsdp.peak_bytes < 0.16 * whole.peak_bytes
    assert not any(c.is_unrequested for found in plans.values() for c in found.collectives)


@pytest.fixture(scope="module")
def spectral_radius():
    return load("spectral_radius")


@pytest.mark.not_simulated("3,000 steps; another test takes 20")
def test_the_spectral_radius_is_learned(spectral_radius):
    """All 3,000 steps; the best constant would leave 0.40."""
    losses = spectral_radius.train()
    assert losses[0] > 3.0
    assert np.mean(losses[-100:]) < 0.15
    # Single batches scatter; the last thousand all stay below the target.
    assert max(losses[-1000:]) < 0.45


def test_radii_are_those_of_numpy(spectral_radius):
    matrices, radii = spectral_radius.batch(gf.random.PRNGKey(5))
    assert matrices.shape == (64, 2, 2) and radii.shape == (64,)
    expected = np.abs(np.linalg.eigvals(np.asarray(matrices, np.complex128))).max(-1)
    np.testing.assert_allclose(radii, expected, rtol=1e-5)


def test_the_example_runs_from_the_command_line():
    run = subprocess.run(
        [sys.executable, EXAMPLES / "spectral_radius.py", "20"],
        capture_output=True,
        text=True,
        check=True,
        cwd=EXAMPLES.parents[1],
    )
    assert run.stdout.startswith("steps    0 to   20: loss ")


@pytest.mark.jax_libraries("optax", "chex")
def test_mixed_precision_with_optax():
    """Two rings are told apart in float16, and a scale that was too large fell at once."""
    code = (
        "import mixed_precision as m; losses, counted, right, state = m.train(); "
        "print(losses[-1], counted.index(True), counted.count(False), right, "
        "float(state['scale'].loss_scale), state['average'][0]['w'].dtype)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=EXAMPLES
    )
    loss, first, overflows, right, scale, dtype = run.stdout.split()
    assert float(loss) < 0.2 and float(right) > 0.95
    assert 0 < int(first) <= int(overflows) < 20
    assert 2.0**8 < float(scale) < 2.0**24 and dtype == "float32"


# --- loops of lanes ----------------------------------------------------------------------------

# What each prints, as numbers in order, with what is known and a tolerance: of Monte Carlo some
# four standard errors; of the area what 1,000 steps cannot tell from the set, and half a pixel of
# its border.
PRINTED = {
    "mandelbrot": [(1.5066, 0.01)],
    "lorenz_ensemble": [(0.9056, 0.012), (0, 0.004)],
    "option_pricing": [
        (5.620, 0.1),
        (0.025, 0.005),
        (5.620, 1e-3),
        (5.82, 0.1),
        (0.026, 0.005),
        (0.581, 0.01),
        (0.581, 1e-3),
    ],
    "epidemic": [(0.5, 0.035), (0.5, 0), (0.797, 0.01), (0.797, 0), (25, 12)],
    "particle_filter": [(-164.54, 0.4), (0.25, 0.15), (-164.54, 0.01), (32, 0), (0, 0.03)],
    "hmc": [(0.95, 0.03), (0, 0.03), (1, 0.03), (1, 0.03), (0.8, 0.02), (0.8, 0)],
    "nuts": [(25, 3), (0, 0.03), (1, 0.03), (1, 0.03), (0.8, 0.02), (0.8, 0)],
}
PICTURES = {"mandelbrot": (480, 480), "lorenz_ensemble": (400, 400)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MANY_STEPS) if name == "nuts" else name for name in PRINTED]
)
def test_what_lanes_compute_is_known(name, monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))  # where their pictures are
    monkeypatch.chdir(tmp_path)
    load(name).main()
    text = re.sub(r", known to be [\d.]+", "", capsys.readouterr().out)
    numbers = [float(x) for x in re.findall(r"(?<!\w)-?\d+\.?\d*", text)]
    assert len(numbers) == len(PRINTED[name]), numbers
    for number, (known, tolerance) in zip(numbers, PRINTED[name], strict=True):
        assert abs(number - known) <= tolerance + 1e-9, numbers
    for picture in tmp_path.iterdir():
        width, height = np.frombuffer(picture.read_bytes()[16:24], ">u4")
        assert (width, height) == PICTURES[name]
    assert len(list(tmp_path.iterdir())) == (name in PICTURES)


def turned_at(momenta, first, last, turns):
    """The leaf at which a tree of leaves first..last - 1 has turned; None: it has not."""
    if last - first == 1:
        return None
    middle = (first + last) // 2
    found = turned_at(momenta, first, middle, turns)
    found = turned_at(momenta, middle, last, turns) if found is None else found
    whole = momenta[first], momenta[last - 1], momenta[first:last].sum(0)
    return last - 1 if found is None and turns(*whole) else found


@pytest.mark.parametrize("sign", [1, -1])
def test_trees_that_turn_are_those_of_the_recursion(sign):
    """By the momenta that stand around an ellipse, each tree of leaves is asked, from the left."""
    nuts = load("nuts")
    key, leaves, stops = gf.random.key(1), 32, []

    def turns(first, last, total):
        middle = total - (first + last) / 2
        return first @ middle <= 0 or last @ middle <= 0

    for k in range(20):
        rng = np.random.default_rng(k)
        place = (rng.standard_normal(10) * nuts.DEVIATIONS).astype(np.float32)
        momentum = (rng.standard_normal(10) ** 3).astype(np.float32)
        length = np.float32(sign * rng.choice([0.004, 0.05, 0.1, 0.18]))
        start = nuts.Point(place, momentum, nuts.force_at(place))
        point, momenta = start, []
        for _ in range(leaves):
            point = nuts.leapfrog(point, length)
            momenta.append(np.asarray(point.momentum, np.float64))
        want = turned_at(np.array(momenta), 0, leaves, turns)
        tree = gf.jit(nuts.subtree)(start, leaves, length, nuts.log_weight(start), key)
        assert bool(tree.goes_on) == (want is None)
        assert int(tree.leaves) == (leaves if want is None else want + 1)
        stops.append(int(tree.leaves))
    assert len(set(stops)) > 2  # some late, some early, some never


def test_pictures_are_read_back(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pictures = load("pictures")
    values = np.random.default_rng(0).uniform(size=(5, 7))
    values[0, :2] = 0, 1
    pictures.save_png(tmp_path / "picture.png", values)
    pixels = np.asarray(image.open(tmp_path / "picture.png"))
    assert pixels.shape == (5, 7, 3) and pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels[0, :2], [[0, 0, 12], [252, 250, 200]])
    order = np.argsort(values.ravel())
    assert np.all(np.diff(pixels.sum(-1).ravel()[order].astype(int)) >= 0)


@pytest.mark.skipif(find_spec("ray") is None, reason="needs pip install --group test_ray")
def test_ray_starts_the_processes(tmp_path):
    """Two, in a cluster of this machine, which is gone afterwards; Ray leaves files at home."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    run = subprocess.run(
        [sys.executable, EXAMPLES / "on_ray.py", "2"],
        capture_output=True,
        text=True,
        env={
            **variables,
            "HOME": str(tmp_path),
            "PYTHONPATH": str(EXAMPLES.parents[1]),
            # Ray gives up after half a minute on a busy machine.
            "RAY_raylet_start_wait_time_s": "300",
            "RAY_agent_register_timeout_ms": "300000",
        },
    )
    assert run.returncode == 0, run.stderr
    found = re.search(r"2 processes, loss (\S+) -> (\S+)\nthe same in all: True", run.stdout)
    assert found and float(found[2]) < 0.5 * float(found[1]), run.stdout


# --- what is learned ---------------------------------------------------------------------------


@pytest.fixture
def example(monkeypatch):
    """Gives programs by name; some have modules beside them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return load


@MANY_STEPS
def test_a_gpt_recites_and_its_cache_changes_nothing(example):
    gpt = example("gpt")
    params, losses = gpt.train(120)
    assert losses[0] > 3.0 and losses[-1] < 0.25
    start = gpt.TEXT.index("What")
    expected = gpt.TOKENS[start : start + gpt.WINDOW]
    tokens, logits = gpt.recite(params, expected[:8])
    np.testing.assert_array_equal(tokens, expected)
    # Sums of 128 products of size 1 in another order.
    np.testing.assert_allclose(logits, gf.jit(gpt.logits_of)(params, tokens), atol=1e-3)


@MANY_STEPS
def test_a_cnn_tells_shapes_apart(example):
    """A third would be right by chance."""
    cnn = example("cnn")
    params, losses = cnn.train(120)
    assert losses[0] > 0.9
    unseen = [cnn.batch_of(gf.random.key(seed)) for seed in (5, 6)]
    assert np.mean([cnn.share_right(params, *batch) for batch in unseen]) > 0.85


@MANY_STEPS
def test_a_vae_finds_two_coordinates(example):
    vae = example("vae")
    params, losses = vae.train(200)
    # Black images would cost as much as the first.
    assert losses[-1] < 0.1 * losses[0]
    assert vae.explained(params) > 0.9
    picture = vae.picture(params, 3)
    assert picture.shape == (36, 36) and picture.min() >= 0 and picture.max() <= 1


@MANY_STEPS
def test_a_network_learns_a_law_of_motion(example):
    """A network that knows nothing is 1 away."""
    neural_ode = example("neural_ode")
    params, losses = neural_ode.train(150)
    assert losses[0] > 1.0 and losses[-1] < 0.01
    assert neural_ode.error(params) < 0.25


@MANY_STEPS
def test_a_gaussian_process_finds_its_noise(example):
    process = example("gaussian_process")
    x, y = process.data()
    params, values = process.fit(x, y)
    assert values[-1] < values[0] - 20
    assert 0.07 < np.exp(params["log_noise"]) < 0.13
    new = np.array([-2.0, -1.0, 0.6, 2.0, 6.0], np.float32)
    means, deviations = map(np.asarray, process.predict(params, x, y, new))
    assert np.all(np.abs(process.truth(new) - means)[:4] < 3 * deviations[:4])
    # Surer among points than in the gap, and in the gap than far out.
    assert max(deviations[[0, 1, 3]]) < deviations[2] < deviations[4]
    factor = np.asarray(process.factor_of(params, x), np.float64)
    covariance = factor @ factor.T
    log_determinant = np.linalg.slogdet(2 * np.pi * covariance)[1]
    exact = 0.5 * (y @ np.linalg.solve(covariance, y) + log_determinant)
    # Of sums of 30 terms in float32.
    assert abs(process.negative_evidence(params, x, y) - exact) < 1e-2


@MANY_STEPS
def test_a_graph_network_finds_groups(example):
    """A third would be right by chance."""
    network = example("graph_network")
    params, losses = network.train(100)
    assert losses[0] > 0.9 and losses[-1] < 0.1
    assert network.share_right(params) > 0.9


def test_an_image_is_sharpened(example):
    images = example("images")
    truth = images.scene()
    seen = images.observed(truth)
    assert images.decibels(images.sharpened(seen), truth) > images.decibels(seen, truth) + 5
    picture = images.picture()
    assert picture.shape == (images.SIDE, 3 * images.SIDE)
    assert picture.min() >= 0 and picture.max() <= 1
    response = np.exp(-0.5 * (images.BLUR * 2 * np.pi * np.fft.fftfreq(images.SIDE)) ** 2)
    expected = np.fft.ifft2(np.fft.fft2(truth) * response[:, None] * response).real
    # Rounding of float32 in an FFT of 9,216 numbers.
    np.testing.assert_allclose(images.blurred(truth), expected, atol=1e-5)
