"""Sharded arrays: written part by part, and restored to any sharding."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import NamedSharding, P, checkpointing
from gpuflow.base.config import config
from gpuflow.checkpointing import files
from gpuflow.runtime.device import devices, local_devices
from gpuflow.runtime.distributed import DistributedArray

X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(params=["cpu", "cuda_sim"])
def mesh(request, monkeypatch):
    """Eight devices that share a memory, or with a memory each."""
    many = replace(config.environment, cpu_devices=8, sim_devices=8)
    monkeypatch.setattr(config, "environment", many)
    devices.cache_clear()
    local_devices.cache_clear()
    yield gf.make_mesh((4, 2), ("x", "y"), devices=devices(request.param))
    monkeypatch.undo()
    devices.cache_clear()
    local_devices.cache_clear()


def pieces_of(folder):
    content = json.loads((folder / "tree.json").read_text())["content"]
    return [[piece["bounds"] for piece in leaf["pieces"]] for leaf in content["leaves"]]


@pytest.mark.parametrize(
    ("spec", "count"), [(("x", "y"), 8), (("x",), 4), ((None, "y"), 2), ((), 1), ((("x", "y"),), 8)]
)
def test_each_part_is_written_once(mesh, spec, count, tmp_path):
    x = gf.device_put(X, NamedSharding(mesh, P(*spec)))
    checkpointing.save(tmp_path / "c", {"x": x})
    (bounds,) = pieces_of(tmp_path / "c")
    assert len(bounds) == count
    covered = np.zeros(X.shape, int)
    for (a, b), (c, d) in bounds:
        covered[a:b, c:d] += 1
    assert (covered == 1).all()
    got = checkpointing.restore(tmp_path / "c")["x"]
    assert len(got.devices()) == 1
    np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("spec", [("x", "y"), (None, "y"), ("y", "x"), (), (("y", "x"), None)])
@pytest.mark.parametrize("saved", [("x", "y"), ("y",), ()])
def test_any_sharding_may_be_asked_for(mesh, saved, spec, tmp_path):
    """Through like, a struct, and sharding=; of keys and wide numbers too."""
    before, wanted = (NamedSharding(mesh, P(*s)) for s in (saved, spec))
    with gf.enable_x64(True):
        wide, zeros = (jnp.asarray(X.astype(np.complex128) * z) for z in (1 + 2j, 0))
    keys = gf.random.split(gf.random.key(1), (8, 4))
    checkpointing.save(tmp_path / "c", gf.device_put([X, wide, keys], before))
    struct = [gf.ShapeDtypeStruct(x.shape, x.dtype, sharding=wanted) for x in (X, wide, keys)]
    like = gf.device_put([X * 0, zeros, keys], wanted)
    for got in (
        checkpointing.restore(tmp_path / "c", like=struct),
        checkpointing.restore(tmp_path / "c", like=like),
        checkpointing.restore(tmp_path / "c", sharding=wanted),
        checkpointing.restore(tmp_path / "c", sharding=[wanted, wanted, wanted]),
    ):
        for one, other in zip(got, (X, wide, keys), strict=True):
            assert one.sharding == wanted and one.dtype == other.dtype
        np.testing.assert_array_equal(got[0], X)
        np.testing.assert_array_equal(got[1], wide)
        np.testing.assert_array_equal(got[2].host(), keys.host())


def test_a_device_and_a_spec(mesh, tmp_path):
    checkpointing.save(tmp_path / "c", {"x": jnp.asarray(X), "n": 3})
    device = mesh.devices.flat[5]
    got = checkpointing.restore(tmp_path / "c", sharding=device)
    assert got["x"].devices() == {device} and got["n"] == 3
    with gf.set_mesh(mesh):
        got = checkpointing.restore(tmp_path / "c", sharding={"x": P("x"), "n": None})
    assert got["x"].sharding == NamedSharding(mesh, P("x"))
    with pytest.raises(ValueError, match=r"\[restore\] the value must be a tree prefix"):
        checkpointing.restore(tmp_path / "c", sharding=[device])
    with pytest.raises(ValueError, match=r"\[restore\] the device must be a Device"):
        checkpointing.restore(tmp_path / "c", sharding="gpu")


def test_donated_parts_are_those_of_the_call(mesh, tmp_path, monkeypatch):
    sharding = NamedSharding(mesh, P("x", "y"))
    x = gf.device_put(X, sharding)
    assert (type(x) is DistributedArray) == (mesh.devices.flat[0].platform == "cuda_sim")
    write, inside = files.write_arrays, []

    def write_later(*arguments):
        while not inside:
            pass
        return write(*arguments)

    monkeypatch.setattr(files, "write_arrays", write_later)
    begun = checkpointing.save_async(tmp_path / "c", x)
    if type(x) is not DistributedArray:  # a program of a simulated GPU needs its toolchain
        gf.jit(lambda x: -x, donate_argnums=0)(x)
    else:
        x.delete()
    assert x.is_deleted()
    inside.append(True)
    begun.wait()
    np.testing.assert_array_equal(checkpointing.restore(tmp_path / "c"), X)
