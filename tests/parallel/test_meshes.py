"""Meshes, specs, shardings and contexts against stored JAX results."""

from __future__ import annotations

import builtins
import json
import threading
from pathlib import Path

import pytest
from mesh_space import described, space_of
from together import together
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.mesh import as_grid

STORED = json.loads((Path(__file__).parents[1] / "data" / "mesh_values.json").read_text())


@together(size=25)
@pytest.mark.parametrize("line", STORED)
def test_as_in_jax(line):
    expected, space = STORED[line], space_of(gf, jnp, lax)
    if isinstance(expected, dict) and "error" in expected:
        with pytest.raises(getattr(builtins, expected["error"])):
            eval(line, space)
        return
    result = described(eval(line, space), gf)
    if isinstance(expected, dict):
        # Stored with 7 digits; sums of up to 32 float32 terms in another order.
        values = pytest.approx(expected["values"], rel=2e-6)
        assert result == {**expected, "values": values}
    else:
        assert result == expected


def test_threads_enter_one_mesh_independently(eight_devices):
    """The settings around the block of a thread are those of that thread."""
    del eight_devices
    mesh, found = gf.sharding.Mesh(gf.devices()[:1], ("x",)), {}
    entered, left = threading.Barrier(2), threading.Barrier(2)

    def run(name, wide):
        with gf.enable_x64(wide):
            with mesh:
                entered.wait(10)
                if wide:
                    left.wait(10)  # leave in the order of entering, which is no stack
                found[name] = gf.get_mesh() == mesh
            if not wide:
                left.wait(10)
            found[name] = found[name] and gf.config.jax_enable_x64 == wide

    threads = [threading.Thread(target=run, args=pair) for pair in (("a", True), ("b", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {"a": True, "b": True}


def test_updates_to_no_axes():
    abstract, mesh = gf.sharding.AbstractMesh((2,), ("x",)), one_device_mesh("x")
    assert abstract.update((), (), ()) == gf.sharding.AbstractMesh((), ())
    assert abstract.update() == abstract and mesh.update() == mesh
    assert mesh.update(mesh.devices.reshape(()), (), ()).is_scalar
    for call in (lambda: abstract.update(()), lambda: mesh.update(axis_names=())):
        with pytest.raises(ValueError, match=r"axis_names must name each axis"):
            call()


def test_rows_of_devices_have_one_length():
    a, b, c, d, e = "abcde"  # any hashable objects
    for rows in ([[a, b], [c, d, e]], [[a, b], [c]], [[a], b], [a, [b]], [[], [a]]):
        with pytest.raises(ValueError, match=r"\[Mesh\] devices must have .*; got .* Fix: "):
            gf.sharding.Mesh(rows, ("x", "y"))
    assert as_grid([[a, b], (c, d)]).tolist() == [[a, b], [c, d]]
    assert as_grid([[], []]).shape == (2, 0) and as_grid(a).shape == ()


def test_local_mesh_without_axes():
    mesh = gf.sharding.Mesh(gf.devices()[0], ())
    assert mesh.is_scalar and mesh.local_mesh == mesh
    assert one_device_mesh("x").local_mesh == one_device_mesh("x")


def one_device_mesh(name):
    return gf.sharding.Mesh(gf.devices()[:1], (name,))
