"""jax.experimental.array_serialization: arrays in JAX's layout on disk, by tensorstore."""

from __future__ import annotations

import asyncio
import json
import sys

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.as_jax.internals import tensorstore_impl
from gpuflow.as_jax.surfaces import module_of
from gpuflow.sharding import NamedSharding, SingleDeviceSharding

serialization = module_of("jax.experimental.array_serialization.serialization")

needs_tensorstore = pytest.mark.jax_libraries("tensorstore")


@pytest.fixture
def here():
    return SingleDeviceSharding(gf.devices()[0])


def over(count):
    """A sharding over ``count`` devices, which the tests' processes have."""
    if gf.device_count() < count:
        pytest.skip(f"needs {count} devices")
    return NamedSharding(gf.make_mesh((count,), ("x",)), gf.P("x"))


def written(tmp_path, arrays):
    specs = [serialization.get_tensorstore_spec(tmp_path / f"a{k}") for k in range(len(arrays))]
    manager, committed = serialization.GlobalAsyncCheckpointManager(), []
    manager.serialize(arrays, specs, on_commit_callback=lambda: committed.append(True))
    manager.wait_until_finished()
    assert committed == [True]
    return manager, [
        serialization.get_tensorstore_spec(tmp_path / f"a{k}") for k in range(len(arrays))
    ]


def test_specs_are_those_of_jax(tmp_path):
    path = tmp_path / "w"
    spec = serialization.get_tensorstore_spec(path)
    assert spec == {"driver": "zarr", "kvstore": {"driver": "file", "path": str(path)}}
    assert tensorstore_impl.get_tensorstore_spec("/a/b", process_idx=3) == {
        "driver": "zarr3",
        "kvstore": {
            "driver": "ocdbt",
            "base": {"driver": "file", "path": "/a/process_3"},
            "path": "b",
        },
    }
    spec = serialization.get_tensorstore_spec("gs://bucket/a/b/")
    assert spec["kvstore"] == {"driver": "gcs", "bucket": "bucket", "path": "a/b"}
    assert serialization.is_remote_storage(spec) and serialization.is_remote_storage("s3://a/b")
    assert not serialization.is_remote_storage(str(path))
    spec = tensorstore_impl.get_tensorstore_spec(path, arr=jnp.ones((2, 3)))
    assert spec["metadata"]["data_type"] == "float32" and spec["metadata"]["shape"] == (2, 3)
    with pytest.raises(ValueError, match="path of a checkpoint must be absolute; got b"):
        tensorstore_impl.get_tensorstore_spec("b")
    with pytest.raises(ValueError, match="must have a bucket and a name; got s3:"):
        serialization.get_tensorstore_spec("s3://bucket")
    with pytest.raises(ValueError, match=r"driver must be zarr or zarr3; got 'n5'"):
        tensorstore_impl.get_tensorstore_spec(path, arr=jnp.ones(2), driver="n5")


@needs_tensorstore
def test_arrays_come_back(tmp_path, here):
    arrays = [jnp.arange(6.0).reshape(2, 3), jnp.arange(5), jnp.ones((), jnp.bfloat16)]
    manager, specs = written(tmp_path, arrays)
    back = manager.deserialize([here] * 3, specs)
    for array, other in zip(arrays, back, strict=True):
        assert other.dtype == array.dtype and other.sharding == here
        np.testing.assert_array_equal(np.asarray(other), np.asarray(array))
    metadata = json.loads((tmp_path / "a0" / ".zarray").read_text())  # as JAX writes it
    assert metadata["chunks"] == [2, 3] and metadata["compressor"]["id"] == "zstd"


@needs_tensorstore
def test_other_shapes_dtypes_and_shardings(tmp_path):
    split = over(2)
    whole = NamedSharding(split.mesh, gf.P())
    x = gf.device_put(jnp.arange(12.0).reshape(4, 3), split)
    manager, specs = written(tmp_path, [x])
    (back,) = manager.deserialize([whole], specs)
    np.testing.assert_array_equal(back, x)
    (back,) = manager.deserialize([split], specs, [(6, 3)], [jnp.bfloat16])
    assert back.dtype == jnp.bfloat16 and back.sharding == split
    expected = np.zeros((6, 3))
    expected[:4] = np.arange(12).reshape(4, 3)  # what was not stored is 0
    np.testing.assert_array_equal(np.asarray(back, np.float32), expected)
    assert (tmp_path / "a0" / "1.0").exists()  # a chunk for each shard


@needs_tensorstore
def test_paths_and_lists(tmp_path, here):
    manager = serialization.GlobalAsyncCheckpointManager()
    manager.serialize_with_paths([jnp.arange(3)], [str(tmp_path / "x")])
    (back,) = manager.deserialize_with_paths([here], [str(tmp_path / "x")])
    assert back.tolist() == [0, 1, 2]
    specs = [tensorstore_impl.get_tensorstore_spec(tmp_path / "y")]
    serialization.run_serialization([jnp.ones(2)], specs)
    struct = gf.ShapeDtypeStruct((2,), jnp.int32, sharding=here)
    (back,) = serialization.run_deserialization([struct], specs)
    assert back.dtype == jnp.int32 and back.tolist() == [1, 1]
    assert serialization.TS_CONTEXT is tensorstore_impl._TS_CONTEXT


@needs_tensorstore
def test_errors_of_writes_come_when_one_waits(tmp_path):
    (tmp_path / "f").write_text("a file where a folder must be")
    manager = serialization.GlobalAsyncCheckpointManager()
    spec = serialization.get_tensorstore_spec(tmp_path / "f" / "x")
    with pytest.raises(ValueError, match="Error"):
        manager.serialize([jnp.ones(2)], [spec])
        manager.wait_until_finished()
    manager.check_for_errors()  # once


@needs_tensorstore
def test_reading_needs_a_sharding(tmp_path):
    spec = serialization.get_tensorstore_spec(tmp_path / "x")
    with pytest.raises(TypeError, match=r"\[async_deserialize\] the type must be a Sharding"):
        serialization.run_deserialization([3], [spec])


@needs_tensorstore
def test_a_read_that_fails_returns_its_bytes(tmp_path, here):
    """Others of the same limit wait for them."""
    spec = tensorstore_impl.get_tensorstore_spec(tmp_path / "x", ocdbt=False)
    serialization.run_serialization([jnp.arange(4, dtype=jnp.int32)], [spec])
    for chunk in tmp_path.glob("x/c/*"):
        chunk.write_bytes(b"not four integers")

    async def read_twice():
        limiter = tensorstore_impl._LimitInFlightBytes(16)
        for _ in range(2):
            with pytest.raises(ValueError, match="Error reading local file"):
                read = tensorstore_impl.async_deserialize(here, spec, byte_limiter=limiter)
                await asyncio.wait_for(read, 30)

    asyncio.run(read_twice())


def test_without_tensorstore(monkeypatch, tmp_path, here):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    spec = serialization.get_tensorstore_spec(tmp_path / "x")
    with pytest.raises(ImportError, match=r'pip install "\S+\[checkpoint\]"'):
        serialization.run_serialization([jnp.ones(2)], [spec])
