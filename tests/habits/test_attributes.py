"""Objects have the public attributes of JAX's, by kind; each one that is missing has a reason.

The names of JAX's are in data/attributes.json, the reasons in data/attributes_missing.txt.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from object_kinds import objects  # noqa: E402

import gpuflow as gf  # noqa: E402
import gpuflow.custom_batching  # noqa: E402
import gpuflow.export  # noqa: E402
from gpuflow import numpy as jnp  # noqa: E402
from gpuflow.core.aval import ManualAxisType, ShapedArray  # noqa: E402

DATA = HERE.parent / "data"
STORED = json.loads((DATA / "attributes.json").read_text())


def reasons() -> list[tuple[str, list[str], str]]:
    """Kinds, names and reasons."""
    lines = (DATA / "attributes_missing.txt").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return [(kinds, names.split(), reason) for kinds, names, reason in rows]


def missing() -> dict[str, set[str]]:
    """The attributes of JAX's that each kind of object lacks."""
    own = objects(gf)
    found = {}
    for kind, names in STORED.items():
        listed = set(dir(own[kind]))
        found[kind] = {
            name for name in names.split() if name not in listed and not hasattr(own[kind], name)
        }
    return found


def test_attributes_that_are_missing_have_a_reason():
    unexplained = {}
    for kind, names in missing().items():
        known = [listed for kinds, listed, _ in reasons() if re.fullmatch(kinds, kind)]
        rest = sorted(names - {name for listed in known for name in listed})
        if rest:
            unexplained[kind] = rest
    assert unexplained == {}


def test_reasons_are_about_attributes_that_are_missing():
    found = missing()
    for kinds, names, reason in reasons():
        assert reason
        lacking = [found[kind] for kind in found if re.fullmatch(kinds, kind)]
        assert lacking, kinds
        for name in names:
            assert any(name in own for own in lacking), f"{kinds} has {name} now"


def test_avals():
    weak = ShapedArray((2,), np.dtype("float32"), True)
    strong = ShapedArray((2,), np.dtype("float32"))
    assert weak.strip_weak_type() is weak.normalize() is weak.update_weak_type(False) is strong
    assert strong.update_weak_type(True) is weak and weak.update_weak_type(True) is weak
    assert strong.at_least_vspace() is strong and weak.at_least_vspace() is weak
    assert ShapedArray((2,), np.dtype("int32")).at_least_vspace().dtype == gf.dtypes.float0
    assert strong.lo_ty() == [strong] and not strong.is_high and not strong.has_qdd
    assert strong.lower_val(1) == [1] and strong.raise_val(1) == 1


def test_avals_of_cotangents():
    mat = ManualAxisType(frozenset("i"), frozenset("j"), frozenset("k"))
    aval = ShapedArray((2,), np.dtype("float32"))
    cotangent = aval.update_manual_axis_type(mat).to_ct_aval()
    assert cotangent.manual_axis_type == ManualAxisType(*map(frozenset, "ikj"))
    assert cotangent.to_ct_aval().manual_axis_type == mat
    assert aval.to_ct_aval() is aval.update_manual_axis_type(aval.mat) is aval


def test_tracers():
    def f(x):
        assert x.full_lower() is x.get_referent() is x
        assert x.to_concrete_value() is None and x.dimension_as_value is None
        return x

    gf.jit(f)(1.0)
    gf.vmap(f)(jnp.ones(2))
    seen = []
    gf.vmap(lambda x: seen.append(x) or x, in_axes=1)(jnp.ones((2, 3)))
    assert seen[0].batch_dim == 1 and seen[0].val.shape == (2, 3)


def test_jaxprs():
    closed = gf.make_jaxpr(lambda x: x + 2.0)(jnp.ones(3))
    assert closed.invars == closed.jaxpr.invars and closed.outvars == closed.jaxpr.outvars
    assert closed.constvars == () and closed.pretty_print() == closed.jaxpr.pretty_print()
    assert closed.pretty_print() == str(closed)
    other = gf.make_jaxpr(lambda x: x * 2.0)(jnp.ones(3))
    same = closed.map_jaxpr(lambda jaxpr: other.jaxpr)
    assert same.jaxpr is other.jaxpr is closed.replace(jaxpr=other.jaxpr).jaxpr
    assert closed.replace(consts=[1]).consts == (1,) and closed.replace().jaxpr is closed.jaxpr
    first, second = (program.eqns[0].invars[1] for program in (closed, other))
    assert first.hash == second.hash != hash(first)


def test_arrays_structs_and_refs():
    x = jnp.ones((2, 3))
    assert x.platform() == gf.devices()[0].platform
    struct = gf.ShapeDtypeStruct.like(x)
    assert (struct.shape, struct.dtype) == ((2, 3), np.float32) and not struct.weak_type
    ref = gf.new_ref(x)
    assert ref.format == x.format and ref.unsafe_buffer_pointer() > 0


def test_formats_of_compiled_programs():
    x = jnp.ones((2, 3))
    compiled = gf.jit(lambda x, *, y: (x + y, x)).lower(x, y=1.0).compile()
    (first,), rest = compiled.input_formats
    assert first == x.format and rest["y"].layout.major_to_minor == ()
    assert compiled.output_formats == (x.format, x.format)
    np.testing.assert_array_equal(compiled.call(x, y=1.0)[0], 2)


def test_meshes():
    devices = np.array(gf.devices()[:1])
    mesh = gf.sharding.Mesh(devices, ("i",))
    assert mesh.local_mesh == mesh and not mesh.is_scalar
    assert gf.sharding.Mesh(devices[0], ()).is_scalar


class OfProcess:
    """A device of this process or of another one."""

    def __init__(self, number, is_local):
        self.id, self.is_local, self.process_index = number, is_local, 1 - is_local


def test_the_part_of_a_mesh_in_one_process():
    devices = np.array([[OfProcess(2 * i + k, i == 0) for k in range(2)] for i in range(2)])
    mesh = gf.sharding.Mesh(devices, ("i", "k"))
    assert mesh.local_mesh.devices.tolist() == [devices[0].tolist()]
    mixed = np.array([[devices[0, 0], devices[1, 0]], [devices[1, 1], devices[0, 1]]])
    with pytest.raises(ValueError, match=r"\[Mesh\] local_mesh needs the devices of a process"):
        _ = gf.sharding.Mesh(mixed, ("i", "k")).local_mesh
