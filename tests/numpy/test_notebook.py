"""What notebooks show of arrays and tracers."""

import re
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.numpy import notebook
from gpuflow.sharding import NamedSharding, PartitionSpec


def shown(x):
    """The page, which must be well-formed, and its text."""
    html = x._repr_html_()
    return html, "".join(ElementTree.fromstring(html).itertext())


def heights(html):
    return [float(h) for h in re.findall(r'height="([\d.]+)"/>', html)]


def test_small_arrays_show_their_values():
    html, text = shown(jnp.arange(6.0).reshape(2, 3))
    assert "f32[2,3]" in text and "cpu:0" in text and "[[0. 1. 2.]\n [3. 4. 5.]]" in text
    assert "svg" not in html and "weak" not in text
    assert "weak type" in shown(jnp.asarray(1.0))[1] and "f32[0]" in shown(jnp.zeros(0))[1]
    assert "key<fry>[]" in shown(gf.random.key(7))[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "complex64"])
def test_large_arrays_show_how_values_are_spread(dtype):
    host = np.repeat(np.arange(40), np.arange(40) + 10).astype("f")
    html, text = shown(jnp.asarray(host, dtype))
    counts = np.histogram(host, 40, (0, 39))[0]
    np.testing.assert_allclose(heights(html), counts * 48 / counts.max(), atol=0.06)  # 1 digit
    assert f"0 to 39, mean {host.mean():.4g}" in text
    assert ("of magnitudes" in text) is (dtype == "complex64") and "<details>" in html


def test_what_is_not_finite_or_has_no_spread():
    x = jnp.ones(1000).at[:3].set(jnp.asarray([jnp.nan, jnp.inf, -jnp.inf]))
    html, text = shown(x)
    assert "1 to 1, mean 1, 3 not finite" in text and sum(h > 0 for h in heights(html)) == 1
    assert "no finite values, 300 not finite" in shown(jnp.full(300, jnp.nan))[1]
    assert "True: 25.0%" in shown(jnp.arange(400) % 4 == 0)[1]
    with gf.enable_x64(True):
        ends = np.full(300, 1.7e308)
        ends[:150] *= -1
        assert heights(shown(jnp.asarray(ends))[0]).count(48.0) == 2


def test_larger_ones_are_sampled_and_take_no_longer_than_repr():
    x = jnp.zeros((3000, 3000)).at[::2].set(1.0).block_until_ready()
    assert "of a sample of 65,218 of 9,000,000" in shown(x)[1]

    def seconds(f):
        # Of the processor: others may take it meanwhile.
        begin = time.process_time()
        f()
        return time.process_time() - begin

    # A histogram of all elements takes 100 times as long as repr, which shows a few.
    assert min(seconds(x._repr_html_) for _ in range(5)) < 0.05 + min(
        seconds(lambda: repr(x)) for _ in range(5)
    )


def test_tracers_tell_where_they_come_from():
    pages = []

    @gf.jit
    def f(x):
        pages.append(shown(x))
        pages.append(shown(jnp.sin(x)))
        return x

    f(jnp.ones(3))
    assert "StagedTracer f32[3] the argument x of f" in pages[0][1]
    assert "test_notebook.py" in pages[1][1] and "&lt;locals&gt;" not in pages[0][1]
    gf.vmap(lambda x: pages.append(shown(x)))(jnp.ones((4, 2)))
    assert "f32[2]" in pages[2][1]


def test_what_is_shown_is_escaped(monkeypatch):
    monkeypatch.setattr(type(gf.devices()[0]), "__str__", lambda self: "<script>&")
    html, text = shown(jnp.ones(2))
    assert "<script>" not in html and "<script>&" in text


def test_deleted_arrays_are_left_to_repr():
    x = jnp.ones(2)
    x.delete()
    assert x._repr_html_() is None


def test_shardings_are_told():
    devices = gf.devices()
    if len(devices) > 1:
        mesh = gf.make_mesh((len(devices),), ("x",))
        x = gf.device_put(jnp.ones(len(devices)), NamedSharding(mesh, PartitionSpec("x")))
        assert "sharded as P('x',)" in shown(x)[1]
    assert "sharded" not in shown(jnp.ones(2))[1]


def test_a_sample_is_regular():
    assert notebook._distribution(np.arange(1 << 17) % 2 == 0) == (
        "<p>True: 100.0% of a sample of 65,536 of 131,072</p>"
    )
