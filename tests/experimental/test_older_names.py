"""Modules that are there for programs written for JAX: formats, caches, older names."""

from __future__ import annotations

import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.experimental import compilation_cache, key_reuse, layout, multihost_utils, pjit


def test_older_names():
    assert pjit.pjit is gf.jit
    assert key_reuse.__doc__ and not multihost_utils.reached_preemption_sync_point(3)


def test_the_folder_of_programs_is_not_chosen_here():
    with pytest.warns(UserWarning, match="compilation_cache_dir"):
        compilation_cache.set_cache_dir("/somewhere")
    compilation_cache.reset_cache()


def test_formats_are_row_major():
    x = jnp.ones((2, 3))
    assert x.format == layout.Format(layout.Layout((0, 1)), x.sharding)
    assert gf.device_put(x, x.format).sharding == x.sharding
    assert gf.device_put(x, layout.Format()).shape == (2, 3)
    struct = gf.ShapeDtypeStruct((2, 3), jnp.float32, sharding=x.sharding)
    assert struct.format == x.format and not struct.is_ref
    assert gf.ShapeDtypeStruct((2,), jnp.float32).format == layout.Format(layout.Layout([0]))
    with pytest.raises(NotImplementedError, match=r"row-major.*got \(1, 0\)"):
        layout.Layout((1, 0))
    with pytest.raises(NotImplementedError, match="dense"):
        layout.Layout((0, 1), tiling=((8, 128),))


def test_constraints_of_layouts_are_checked_and_change_nothing():
    tree = {"a": jnp.ones((2, 3)), "b": jnp.zeros((4, 1))}
    rows = layout.Layout((0, 1))
    assert layout.with_layout_constraint(tree, rows) is tree
    assert layout.with_layout_constraint(tree, {"a": rows, "b": rows}) is tree

    def doubled(x):
        return layout.with_layout_constraint(2 * x, layout.Layout((0,))).sum()

    # As in JAX, the layout under vmap is the layout of one element.
    assert gf.vmap(gf.grad(doubled))(tree["a"]).tolist() == [[2.0] * 3] * 2
    with pytest.raises(ValueError, match=r"of its dimensions; got Layout.* 2 dimensions"):
        layout.with_layout_constraint(tree, layout.Layout((0,)))
    with pytest.raises(ValueError, match="got None for an array of 2"):
        layout.with_layout_constraint(tree, None)


def test_devices_name_their_platform():
    device = gf.devices()[0]
    client = device.client
    assert client.platform == device.platform and client.runtime_type == "gpuflow"
    assert client.devices() == gf.devices() and client.local_devices() == gf.local_devices()
    assert client.device_count() == gf.device_count() == len(client.devices())
    assert client.local_device_count() == gf.local_device_count()
    assert client.process_index() == 0
    (memory,) = device.addressable_memories()
    assert memory == device.default_memory()
    assert memory.kind == "device" and memory.device is device


def test_results_of_mapped_leaves_are_made_in_place():
    """A node that checks its leaves saw them with the mapped axis where it happened to be."""

    @gf.tree_util.register_pytree_node_class
    class Checked:
        def __init__(self, x):
            self.x = x

        def tree_flatten(self):
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            (x,) = children
            assert not hasattr(x, "shape") or x.shape[-1] == 4, x.shape
            return cls(x)

    x = jnp.arange(24.0).reshape(2, 3, 4)
    made = gf.vmap(lambda v: Checked(v.reshape(2, 4)), in_axes=1)(x)
    assert made.x.shape == (3, 2, 4)
    made = gf.vmap(lambda v: Checked(jnp.ones((5, 4))), out_axes=1)(x)
    assert made.x.shape == (5, 2, 4)
