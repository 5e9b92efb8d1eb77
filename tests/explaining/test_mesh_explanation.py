"""``explain`` over a mesh: fields, texts and errors; and real runs that send what it says."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.explaining.mesh_explanation import MeshExplanation
from gpuflow.sharding import AbstractMesh, NamedSharding

MESH = AbstractMesh((4, 2), ("data", "model"))
HERE = Path(__file__).resolve().parent


def struct(*shape, spec=None):
    return gf.ShapeDtypeStruct(shape, jnp.float32, sharding=spec)


def mlp(params, x):
    return ((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2).sum()


PARAMS = {
    "up": struct(64, 128, spec=P(None, "model")),
    "down": struct(128, 64, spec=P("model", None)),
}
X = struct(32, 64, spec=P("data"))


def test_collectives_say_what_why_and_where():
    found = gf.explain(mlp, PARAMS, X, mesh=MESH)
    rows, total = found.collectives
    assert (rows.operation, rows.axes, rows.group_size) == ("all_reduce", ("model",), 2)
    assert (rows.shape, rows.dtype, rows.bytes_in, rows.times) == ((8, 64), np.float32, 2048, 1)
    assert rows.bytes_sent == 2048 and found.bytes_sent("model") == 2048
    assert rows.cause == "sum of terms of dot_general" and rows.line.function == "mlp"
    assert rows.communication.groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert total.axes == ("data",) and total.cause == "sum of terms of reduce_sum"
    assert found.bytes_sent("data") == 6 and found.bytes_sent() == 2054
    assert rows.seconds == found.topology.seconds(rows.communication) and rows.link == "nvlink"


def test_links_follow_from_the_nodes_of_the_topology():
    for node, links in ((8, ["nvlink", "nvlink"]), (2, ["nvlink", "nic"]), (1, ["nic", "nic"])):
        found = gf.explain(mlp, PARAMS, X, mesh=MESH, topology=gf.Topology(node=node))
        assert [c.link for c in found.collectives] == links


def test_memory_is_that_of_a_device():
    found = gf.explain(mlp, PARAMS, X, mesh=MESH)
    assert found.argument_bytes == 2 * 64 * 64 * 4 + 8 * 64 * 4
    by_name = {a.name: a for a in found.arrays_at_peak}
    assert by_name["params['up']"].aval.shape == (64, 64) and by_name["x"].kind == "argument"
    assert sum(a.nbytes for a in found.arrays_at_peak) == found.peak_bytes
    assert found.peak_bytes == found.argument_bytes + max(found.memory)


def test_a_collective_of_a_loop_counts_each_iteration():
    def f(w, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    found = gf.explain(f, struct(5, 64, 64, spec=P(None, "data")), X, mesh=MESH)
    inside = [c for c in found.collectives if c.times == 5]
    assert inside and found.bytes_sent() == sum(c.total_sent for c in found.collectives)


def test_collectives_of_the_program_have_no_cause():
    def f(x):
        local = gf.shard_map(
            lambda x: lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 3)]),
            mesh=MESH,
            in_specs=P("data"),
            out_specs=P("data"),
        )
        return local(x)

    (found,) = gf.explain(f, X, mesh=MESH).collectives
    assert (found.operation, found.cause, found.bytes_sent) == ("permute", "", 8 * 64 * 4)
    assert found.line.function == "<lambda>"


def test_gathers_that_no_sharding_asks_for():
    def f(x):
        return jnp.linalg.qr(x)[1]

    with pytest.warns(gf.errors.UnpartitionedWarning, match="not partitioned"):
        found = gf.explain(f, struct(4096, 128, spec=P("data")), mesh=MESH)
    unrequested = [c for c in found.collectives if c.is_unrequested]
    assert [c.operation for c in unrequested] == ["all_gather"]
    assert unrequested[0].cause.endswith("is not partitioned")
    assert "gathers that no sharding asks for" in str(found)
    assert found.flops > 1.1 * found.needed_flops
    assert found.redundant[0].line.function == "f"
    assert "lines that several devices compute" in str(found)


def test_operations_that_are_split_are_not_redundant():
    rows = struct(64, 64, spec=P(("data", "model")))
    found = gf.explain(lambda x, w: x @ w, rows, struct(64, 64), mesh=MESH)
    assert found.flops == found.needed_flops == 2 * 64**3 / 8 and found.redundant == ()


def test_shardings_of_results_are_followed_and_requested():
    def f(x):
        return x * 2

    assert gf.explain(f, X, mesh=MESH).collectives == ()
    whole = gf.explain(gf.jit(f, out_shardings=P()), X, mesh=MESH)
    assert [(c.operation, c.cause) for c in whole.collectives] == [
        ("all_gather", "sharding of a result")
    ]


def test_donated_arguments_hold_results():
    def f(x):
        return x * 2

    x = struct(4096, 64, spec=P("data"))
    kept = gf.explain(f, x, mesh=MESH).peak_bytes
    donated = gf.explain(gf.jit(f, donate_argnums=0), x, mesh=MESH).peak_bytes
    assert kept == 2 * donated == 2 * 1024 * 64 * 4


def test_a_mesh_of_the_arguments_is_found():
    for sharding in (NamedSharding(MESH, P("data")),):
        found = gf.explain(lambda x: x.sum(), struct(32, 64, spec=sharding))
        assert isinstance(found, MeshExplanation) and found.mesh.shape == MESH.shape


def test_plans_for_gpus_need_none():
    found = gf.explain(mlp, PARAMS, X, mesh=MESH, platform="cuda")
    assert found.bytes_sent("model") == 2048
    text = gf.explain(mlp, PARAMS, X, mesh=MESH, platform="cuda", stage="jaxpr").text
    assert "psum" in text and "dot_general" in text


def test_differences_between_plans():
    first = gf.explain(mlp, PARAMS, X, mesh=MESH)
    rows = {"up": struct(64, 128, spec=P("model")), "down": struct(128, 64)}
    table = str(first.diff(gf.explain(mlp, rows, X, mesh=MESH)))
    assert "all_reduce over model" in table and "memory at the peak" in table
    assert first.diff(gf.explain(mlp, PARAMS, X, mesh=MESH)).rows == ()


def test_texts_and_pages(tmp_path):
    found = gf.explain(mlp, PARAMS, X, mesh=MESH)
    text = str(found)
    for part in ("data=4 x model=2", "predicted", "all_reduce", "sum of terms", "at the peak"):
        assert part in text
    assert "measure=True" not in text
    page = found.to_html(tmp_path / "mlp.html").read_text()
    assert '<svg class="timeline"' in page and "all_reduce" in page
    assert '<svg class="timeline"' in found._repr_html_()
    assert found.text.startswith("mlp: ")


def test_a_mesh_of_one_device_sends_nothing():
    found = gf.explain(mlp, PARAMS, X, mesh=AbstractMesh((1, 1), ("data", "model")))
    assert found.collectives == () and found.bytes_sent() == 0
    assert found.exposed_seconds == 0 and "no communication" in str(found)


def test_arguments_over_meshes_of_other_sizes_keep_their_axes():
    small = AbstractMesh((2, 1), ("model", "data"))
    x = struct(32, 64, spec=NamedSharding(small, P("data")))
    sent = gf.explain(mlp, PARAMS, x, mesh=MESH).bytes_sent()
    assert sent == gf.explain(mlp, PARAMS, X, mesh=MESH).bytes_sent() > 0


def gathered(x):
    return lax.with_sharding_constraint(x * 2, P())


def test_meshes_that_functions_name_are_the_planned_one():
    mesh = gf.sharding.Mesh(np.array(gf.devices()[:1]).reshape(1, 1), ("data", "model"))

    def entered(x):
        with mesh:
            return gathered(x)

    def named(x):
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P()))

    def inner(x):
        return gf.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P()))(x)

    def mapped(x):
        specs = {"in_specs": P("data"), "out_specs": P()}
        return gf.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, **specs)(x)

    expected = [c.operation for c in gf.explain(gathered, X, mesh=MESH).collectives]
    assert expected == ["all_gather"]
    for function in (entered, named, inner):
        found = gf.explain(function, X, mesh=MESH)
        assert [c.operation for c in found.collectives] == expected
    assert [c.operation for c in gf.explain(mapped, X, mesh=MESH).collectives] == ["all_reduce"]
    assert gf.get_mesh().empty


def test_captured_arrays_may_have_shardings():
    constant = jnp.arange(32.0)

    def f(x):
        return (lax.with_sharding_constraint(constant, P("data"))[:, None] * x).sum()

    found = gf.explain(f, X, mesh=MESH)
    assert [c.cause for c in found.collectives] == ["sum of terms of reduce_sum"]


def test_the_workspace_of_loops_is_part_of_the_peak():
    def f(ws, x):
        return (lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0] ** 2).sum()

    ws = struct(4, 64, 64, spec=P(None, "model"))
    found = gf.explain(gf.grad(f), ws, X, mesh=MESH)
    assert sum(a.nbytes for a in found.arrays_at_peak) == found.peak_bytes


def test_programs_are_compiled_for_shapes_on_abstract_meshes():
    x = struct(32, 64, spec=NamedSharding(MESH, P("data")))
    assert gf.jit(lambda x: x + 1).lower(x).compile().memory_analysis() is not None


def test_rich_prints_the_tables():
    rich = pytest.importorskip("rich.console")
    console = rich.Console(record=True, width=160, file=io.StringIO())
    console.print(gf.explain(mlp, PARAMS, X, mesh=MESH))
    text = console.export_text()
    for part in ("predicted", "all_reduce", "of memory at the peak"):
        assert part in text


def test_pmap_is_refused():
    with pytest.raises(NotImplementedError, match="pmap maps over the devices that exist"):
        gf.explain(lambda x: gf.pmap(lambda x: x * 2)(x), X, mesh=MESH)


def test_only_plans_over_meshes_are_compared():
    found = gf.explain(mlp, PARAMS, X, mesh=MESH)
    with pytest.raises(TypeError, match="other must be a plan over a mesh; got Explanation"):
        found.diff(gf.explain(lambda x: x, jnp.ones(3)))


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"mesh": "data"}, TypeError, "mesh must be a Mesh or an AbstractMesh; got 'data'"),
        ({"mesh": AbstractMesh((), ())}, ValueError, "mesh must have axes"),
        ({"mesh": MESH, "topology": 8}, TypeError, "topology must be a Topology; got 8"),
        ({"mesh": MESH, "measure": True}, ValueError, "Fix: leave out measure"),
        ({"mesh": MESH, "stage": "driver"}, ValueError, "stage over a mesh must be one of"),
        ({"mesh": MESH, "stage": "plans"}, ValueError, "got 'plans'"),
        ({"mesh": MESH, "platform": "tpu"}, ValueError, "platform must be one of"),
        (
            {"mesh": AbstractMesh((8,), ("x",))},
            ValueError,
            r"spec must hold axes of the mesh, each once; got P\('model', None\)",
        ),
    ],
)
def test_bad_arguments(options, error, words):
    with pytest.raises(error, match=words):
        gf.explain(mlp, PARAMS, X, **options)


def test_a_topology_needs_a_mesh():
    with pytest.raises(ValueError, match="a topology needs a mesh"):
        gf.explain(lambda x: x, jnp.ones(3), topology=gf.Topology())


def test_shardings_must_divide():
    with pytest.raises(
        ValueError, match=r"the argument x must fit the mesh; .*dimension 0 must be divisible by 4"
    ):
        gf.explain(lambda x: x, struct(30, 64, spec=P("data")), mesh=MESH)


def test_unknown_axes_are_named():
    found = gf.explain(mlp, PARAMS, X, mesh=MESH)
    with pytest.raises(ValueError, match=r"the axis must be one of .*got 'batch'"):
        found.bytes_sent("batch")


def run(program, *arguments, devices=8, separate="1"):
    environment = {
        **os.environ,
        "GPUFLOW_CPU_DEVICES": str(devices),
        "GPUFLOW_SEPARATE_MEMORIES": separate,
        "GPUFLOW_PLATFORM": "cpu",
    }
    command = [sys.executable, str(HERE / program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_runs_send_what_plans_say():
    """All programs of perf/mesh_programs.py on 8 virtual devices with memories of their own."""
    lines = run("mesh_runs_program.py").splitlines()
    assert lines[-1] == "all agree" and len(lines) > 60


def test_meshes_of_virtual_devices():
    assert run("virtual_mesh_program.py", separate="0").splitlines()[-1] == "ok"
