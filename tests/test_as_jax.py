"""gpuflow.as_jax: ``import jax`` gives gpuflow; unmodified optax and flax train as they do on JAX.

Each test that installs the alias does so in a process of its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.as_jax.internals import (
    api_util,
    batching,
    core,
    linear_util,
    partial_eval,
    tree_util,
)
from gpuflow.as_jax.surfaces import module_of
from gpuflow.as_jax.versions import JAX_VERSION

hijax, pallas = module_of("jax.experimental.hijax"), module_of("jax.experimental.pallas")
extend_core = module_of("jax.extend.core")

DATA = Path(__file__).parent / "data"
STORED = json.loads((DATA / "library_losses.json").read_text())


def run(*arguments, check=True):
    """``python arguments`` in a process of its own."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def run_code(code, check=True):
    return run("-c", code, check=check)


INSTALL = "import gpuflow, gpuflow.as_jax; gpuflow.as_jax.install()\n"


# --- the alias -----------------------------------------------------------------------------


def test_modules_are_gpuflows_own():
    run_code(
        INSTALL
        + """
import jax
import jax.numpy as jnp
import jax.scipy.special, jax.numpy.linalg, jax.example_libraries.stax
from jax import grad, lax, random, tree_util
from jax.nn import initializers, relu
from jax.scipy.special import logsumexp
import gpuflow as gf, gpuflow.numpy, gpuflow.scipy.special
assert jax.numpy is jnp is gf.numpy
assert jax.numpy.linalg is gf.numpy.linalg
assert jax.scipy.special is gf.scipy.special and logsumexp is gf.scipy.special.logsumexp
assert jax.example_libraries.stax is gf.example_libraries.stax
assert grad is gf.grad and lax is gf.lax and random is gf.random and tree_util is gf.tree_util
assert initializers is gf.nn.initializers and relu is gf.nn.relu
assert jax.Array is gf.Array and jax.config is gf.config and jax.jit is gf.jit
assert gf.numpy.__name__ == "gpuflow.numpy" and gf.numpy.__spec__.name == "gpuflow.numpy"
assert "jit" in dir(jax) and "numpy" in dir(jax)
assert float(jax.jit(jax.grad(lambda x: jnp.sin(x)))(0.0)) == 1.0
"""
    )


ASKED = """
import jax
print(jax.numpy.ones(1).dtype, jax.config.jax_debug_nans, len(jax.devices()), jax.default_backend(),
      jax.config.jax_default_matmul_precision, jax.config.jax_numpy_rank_promotion)
"""
VARIABLES = {
    "JAX_ENABLE_X64": "1",
    "JAX_DEBUG_NANS": "true",
    "JAX_NUM_CPU_DEVICES": "3",
    "JAX_PLATFORMS": "cpu,cuda",
    "JAX_DEFAULT_MATMUL_PRECISION": "high",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_COMPILATION_CACHE_DIR": "/x",
    "JAX_ANYTHING": "1",
}


def test_environment_variables_of_jax_count_under_the_alias(tmp_path, monkeypatch):
    script = tmp_path / "asked.py"
    script.write_text(ASKED)
    monkeypatch.delenv("GPUFLOW_PLATFORM", raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    done = run("-m", "gpuflow.as_jax", str(script))
    assert done.stdout.split() == ["float64", "True", "3", "cpu", "high", "raise"]
    told = [line for line in done.stderr.splitlines() if "UserWarning" in line]
    assert len(told) == 1
    assert "JAX_ANYTHING, JAX_COMPILATION_CACHE_DIR of the environment have no effect" in told[0]


def test_gpuflows_own_variables_win_over_jaxs(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    monkeypatch.setenv("GPUFLOW_ENABLE_X64", "0")
    monkeypatch.setenv("GPUFLOW_CPU_DEVICES", "2")
    code = "import jax; assert not jax.config.jax_enable_x64 and len(jax.devices('cpu')) == 2"
    run_code(INSTALL + code)


def test_environment_variables_of_jax_mean_nothing_without_the_alias(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    run_code("import gpuflow; assert not gpuflow.config.enable_x64")


def test_an_environment_variable_of_jax_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("JAX_DEBUG_NANS", "maybe")
    done = run_code(INSTALL, check=False)
    assert "[config] JAX_DEBUG_NANS must be 0 or 1; got 'maybe'." in done.stderr


def test_submodules_are_there_after_import_jax_alone():
    run_code(
        INSTALL
        + """
import jax
for name in ("numpy", "lax", "nn", "random", "tree", "tree_util", "scipy", "sharding", "dtypes",
             "typing", "stages", "profiler", "errors", "debug", "core", "image", "experimental"):
    assert getattr(jax, name) is not None, name
assert jax.core.Tracer is not None and jax.version.__version__ == jax.__version__
"""
    )


def test_versions_are_those_that_libraries_ask_for():
    run_code(
        INSTALL
        + f"""
import importlib.metadata as metadata
import jax, jaxlib
assert jax.__version__ == jaxlib.__version__ == {JAX_VERSION!r}
assert ".".join(map(str, jax.__version_info__)) == {JAX_VERSION!r}
assert metadata.version("jax") == metadata.version("jaxlib") == {JAX_VERSION!r}
assert metadata.metadata("jax")["Name"] == "jax"
assert metadata.version("numpy") and metadata.requires("jax") in (None, [])
assert {{"jax", "jaxlib", "numpy"}} <= {{d.name for d in metadata.distributions()}}
"""
    )


def test_names_that_do_not_exist():
    run_code(
        INSTALL
        + """
import jax
for statement, error in (
    ("import jax.nonsense", ModuleNotFoundError),
    ("import jax.numpy.nonsense", ModuleNotFoundError),
    ("import jaxlib.mlir", ModuleNotFoundError),
    ("import jaxx", ModuleNotFoundError),
    ("from jax import nonsense", ImportError),
    ("jax.nonsense", AttributeError),
):
    try:
        exec(statement)
    except error:
        continue
    raise AssertionError(statement)
assert not hasattr(jax, "__nonsense__")
"""
    )


def test_an_imported_jax_is_refused():
    done = run_code(
        "import sys, types\nsys.modules['jax'] = types.ModuleType('jax')\n" + INSTALL, check=False
    )
    assert done.returncode != 0
    assert "[as_jax] install() must come before JAX is imported; got a process" in done.stderr
    assert "Fix: call gpuflow.as_jax.install() first" in done.stderr


def test_it_can_be_taken_back():
    run_code(
        INSTALL
        + """
import sys, jax, jax.numpy
gpuflow.as_jax.install()  # once more changes nothing
before = len(sys.meta_path)
gpuflow.as_jax.uninstall()
assert len(sys.meta_path) == before - 2
assert not [name for name in sys.modules if name.partition(".")[0] == "jax"]
gpuflow.as_jax.install()
import jax.numpy
assert jax.numpy is gpuflow.numpy
"""
    )


SCRIPT = """
import sys
import helper_beside
import jax
print(__name__, sys.argv[1:], helper_beside.VALUE, jax.numpy.arange(3).sum())
"""


def test_a_script_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper_beside.py").write_text("VALUE = 7\n")
    done = run("-m", "gpuflow.as_jax", tmp_path / "script.py", "--steps", "3")
    assert done.stdout == "__main__ ['--steps', '3'] 7 3\n"


def test_a_module_runs_too(tmp_path):
    code = "import jax, sys; print(__name__, sys.argv[1:], jax.__name__)"
    (tmp_path / "a_module_of_mine.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "gpuflow.as_jax", "-m", "a_module_of_mine", "x"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == "__main__ ['x'] jax\n"


def test_the_status_of_a_script_is_passed_on(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import sys; sys.exit(5)")
    assert run("-m", "gpuflow.as_jax", path, check=False).returncode == 5
    path.write_text("raise ValueError('mine')")
    done = run("-m", "gpuflow.as_jax", path, check=False)
    assert done.returncode == 1 and "ValueError: mine" in done.stderr


def test_wrong_command_lines(tmp_path):
    done = run("-m", "gpuflow.as_jax", check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage: python -m gpuflow.as_jax")
    done = run("-m", "gpuflow.as_jax", tmp_path / "none.py", check=False)
    assert done.returncode == 2 and "[as_jax] the script must exist; got" in done.stderr


# --- what stands for JAX's inside ----------------------------------------------------------


def test_shaped_arrays_are_gpuflows():
    aval = core.ShapedArray((2, 3), np.float32, weak_type=True)
    assert isinstance(aval, core.ShapedArray) and isinstance(aval, core.AbstractValue)
    assert aval is core.ShapedArray([2, 3], "float32", True, sharding=None)
    assert not isinstance(np.zeros(2), core.ShapedArray)
    space = aval.memory_space
    assert (
        core.ShapedArray((2, 3), np.float32, True, sharding=aval.sharding, memory_space=space)
        is aval
    )
    split = gf.NamedSharding(gf.make_mesh((1,), ("x",)), gf.P("x"))
    with pytest.raises(NotImplementedError, match="a type must not name mesh axes"):
        core.ShapedArray((2,), np.float32, sharding=split)
    with pytest.raises(NotImplementedError, match=r"memory_space must be MemorySpace.Device.*Host"):
        core.ShapedArray((2,), np.float32, memory_space=type(space).Host)


def test_trace_states_tell_transformations_apart():
    outside = extend_core.get_opaque_trace_state(convention="flax")
    assert outside == extend_core.get_opaque_trace_state() and core.trace_state_clean()
    seen = []
    gf.make_jaxpr(lambda x: seen.append((core.get_opaque_trace_state(), core.trace_state_clean())))(
        1.0
    )
    ((inside, clean),) = seen
    assert inside != outside and not clean


def test_partial_evaluation_separates_known_from_unknown():
    def f(tree):
        a, b = tree["a"], tree["b"]
        return {"known": jnp.sin(a) + 1, "unknown": jnp.cos(a) * b, "given": b}

    leaves, in_tree = gf.tree.flatten(({"a": jnp.asarray(0.5), "b": 2.0},))
    wrapped = linear_util.wrap_init(f, debug_info=api_util.debug_info("test", f, in_tree, {}))
    flat, out_tree = api_util.flatten_fun_nokwargs(wrapped, in_tree)
    aval = core.ShapedArray((3,), np.float32)
    values = [partial_eval.PartialVal.known(leaves[0]), partial_eval.PartialVal.unknown(aval)]
    jaxpr, outs, consts = partial_eval.trace_to_jaxpr_nounits(flat, values)
    places = gf.tree.unflatten(out_tree(), range(3))
    given, known, unknown = (outs[places[name]] for name in ("given", "known", "unknown"))
    assert known.is_known() and not given.is_known() and not unknown.is_known()
    np.testing.assert_allclose(known[1], np.sin(0.5) + 1, rtol=1e-6)
    assert unknown[0] is given[0] is aval
    b = jnp.arange(3.0)
    results = core.eval_jaxpr(jaxpr, consts, b)
    np.testing.assert_allclose(results[1], np.cos(0.5) * np.arange(3.0), rtol=1e-6)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["mul"]


def test_partial_evaluation_of_jitted_parts_and_forced_outputs():
    inner = gf.jit(lambda a, b: (a * 2, b + a))
    flat = linear_util.wrap_init(lambda a, b, scale: [x * scale for x in inner(a, b)], {"scale": 3})
    aval = core.ShapedArray((), np.float32)
    values = [partial_eval.PartialVal.known(1.0), partial_eval.PartialVal.unknown(aval)]
    _, outs, _ = partial_eval.trace_to_jaxpr_nounits(flat, values)
    assert [out.is_known() for out in outs] == [True, False] and float(outs[0][1]) == 6.0
    jaxpr, outs, _ = partial_eval.trace_to_jaxpr_nounits(flat, values, instantiate=True)
    assert [out.is_known() for out in outs] == [False, False] and len(jaxpr.outvars) == 2


def test_functions_of_keywords_are_flattened():
    leaves, in_tree = gf.tree.flatten(((1.0,), {"b": 2.0}))
    wrapped = linear_util.wrap_init(lambda a, b: (a, {"sum": a + b}))
    flat, out_tree = api_util.flatten_fun(wrapped, in_tree)
    outs = flat.call_wrapped(*leaves)
    assert gf.tree.unflatten(out_tree(), outs) == (1.0, {"sum": 3.0})


def test_what_is_absent_says_so():
    with pytest.raises(NotImplementedError, match=r"\[jax.experimental.pallas.pallas_call\]"):
        pallas.pallas_call(lambda x: x)
    with pytest.raises(NotImplementedError, match=r"gpuflow\.kernel\.block or gpuflow\.raw_kernel"):
        pallas.tpu.roll(1, 2)
    attention = pallas.ops.tpu.splash_attention
    with pytest.raises(NotImplementedError, match=r"splash_attention_mask\.CausalMask"):
        attention.splash_attention_mask.CausalMask((2, 2))
    assert (pallas.cdiv(7, 2), pallas.next_power_of_2(5), pallas.next_power_of_2(8)) == (4, 8, 8)


def test_a_missing_name_says_who_asked_and_whether_it_is_private():
    code = """
import importlib.util, gpuflow.as_jax
gpuflow.as_jax.install()
import jax, jax._src
assert importlib.util.find_spec("jax.what") is None
assert not any(hasattr(module, "foo") for module in (jax, jax._src, jax._src.core))
assert jax._src.tree_util.tree_map is jax.tree.map
for line in (
    "import jax.lib.xla_bridge", "from jax._src.core import foo", "jax._src.foo",
    "import jaxlib.foo", "from jax import foo", "import jax.experimental.foo",
    "from jax._src import foo",
):
    try:
        exec(line, {"__name__": "some_library.inner", "jax": jax})
    except Exception as error:
        print(type(error).__name__, error)
"""
    lines = run_code(code).stdout.splitlines()
    private = ", a name private to JAX, which may change with any version of it"
    asked = ", from some_library.inner of some_library. Fix:"
    for line, kind, name, said in zip(
        lines,
        (
            "ModuleNotFoundError",
            "ImportError",
            "AttributeError",
            "ModuleNotFoundError",
            "ImportError",
            "ModuleNotFoundError",
            "ImportError",
        ),
        (
            "jax.lib.xla_bridge",
            "jax._src.core.foo",
            "jax._src.foo",
            "jaxlib.foo",
            "jax.foo",
            "jax.experimental.foo",
            "jax._src.foo",
        ),
        (private, private, private, private, "", "", private),
        strict=True,
    ):
        begin = f"{kind} [as_jax] a name must be one that gpuflow has; got {name}{said}{asked}"
        assert line.startswith(begin), line


def test_a_missing_name_comes_with_close_ones_and_the_page_that_lists_others():
    code = """
import gpuflow.as_jax
gpuflow.as_jax.install()
import jax, jax.core, jax.experimental.jet, jax.numpy as jnp
from gpuflow.base.other_names import note
for name in ("jax.core.ShapedAray", "jax.core.what", "jax.experimental.jet.jett",
             "jnp.ones(1).aval.what", "jax.jit(jnp.sin).what"):
    try:
        eval(name)
    except AttributeError as error:
        print(error, note(error))
assert not hasattr(jax.core, "what")
"""
    lines = run_code(code).stdout.splitlines()
    page = "docs/differences.md#names-that-libraries-use"
    assert lines[0].endswith("from __main__. Fix: jax.core.ShapedArray. None")
    assert lines[1].endswith(f"Fix: another name; {page} lists those that gpuflow lacks. None")
    assert lines[2].endswith("Fix: jax.experimental.jet.jet. None")
    for line, kind in zip(lines[3:], ("ShapedArray", "JitFunction"), strict=True):
        assert f"'{kind}' object has no attribute 'what' Fix: one of dir(x). If what is" in line
        assert line.endswith("of JAX 0.10.2, report which library needs it to the gpuflow project.")


REMOVED = (
    "jax.tree_map(abs, -1)",
    "jnp.clip(3.0, a_min=1)",
    "jnp.clip(3.0, a_max=1)",
    "jax.sharding.PositionalSharding(jax.devices())",
    "jax.tree_leaves((1, 2))",
    "jax.dlpack.to_dlpack(jnp.ones(3))",
    "jax.device_put_replicated(1, jax.devices())",
    "jax.sharding.use_mesh(jax.make_mesh((1,), ('i',))).__enter__()",
)


def test_names_that_jax_has_removed_warn_once_under_the_alias(tmp_path):
    """A program that used them would not run on JAX again, and nothing told so."""
    code = """
import sys, warnings
import gpuflow as jax, gpuflow.numpy as jnp, gpuflow.dlpack
def run():
    jax.clear_caches()  # clip looks at its keywords when it is traced
    for line in LINES:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            eval(compile(line, __file__, "eval"))
        print(line, "|", *[f"{w.category.__name__} {w.filename} {w.message}" for w in seen])
run()
import gpuflow.as_jax
gpuflow.as_jax.install()
import jax
run()
run()
gpuflow.as_jax.uninstall()
run()
""".replace("LINES", repr(REMOVED))
    (tmp_path / "script.py").write_text(code)
    lines = run(str(tmp_path / "script.py")).stdout.splitlines()
    silent = [f"{line} | " for line in REMOVED]
    count = len(REMOVED)
    first, warned = lines[:count], lines[count : 2 * count]
    assert [line.strip() for line in first] == [line.strip() for line in silent]
    assert "got jnp.clip(a_min=, a_max=), which JAX has removed" in warned[1]
    assert warned[2].strip() == silent[2].strip()  # the same name
    for line in (*warned[:2], *warned[3:]):
        assert f"| UserWarning {tmp_path}/script.py [as_jax] names must exist in JAX 0.10.2" in line
        assert "which JAX has removed and gpuflow keeps. Fix: " in line
    assert [line.strip() for line in lines[2 * count :]] == [line.strip() for line in silent * 2]


def test_the_table_of_missing_names_is_up_to_date():
    done = run("docs/make_refused.py", "--check", check=False)
    assert done.returncode == 0, done.stderr or "names have changed: python docs/make_refused.py"


def test_types_with_their_own_way_to_be_mapped_are_refused_where_they_are_mapped():
    @gf.tree_util.register_dataclass
    @dataclasses.dataclass
    class Own:
        x: gf.Array

    batching.register_vmappable(Own, int, int, None, None, None)
    own = Own(jnp.arange(3.0))
    assert batching.is_vmappable(own) and not batching.is_vmappable(3)
    assert gf.vmap(lambda o, y: o.x * y, (None, 0))(own, jnp.ones(2)).shape == (2, 3)
    with pytest.raises(NotImplementedError, match="got axis 0 in in_axes for a Own"):
        gf.vmap(lambda o: o.x)(own)


def test_nodes_are_taken_apart_as_jax_does():
    for node in ({"b": 2, "a": 1}, [1, 2], (1, 2)):
        entry = tree_util._registry[type(node)]
        children, aux = entry.to_iter(node)
        assert tuple(children) == (1, 2) and entry.from_iter(aux, children) == node
        hash(aux)
    with pytest.raises(KeyError):
        tree_util._registry[int]


def test_numbers_and_names_of_arguments():
    sig = inspect.signature(lambda a, b, *, c=1: None)
    infer = api_util.infer_argnums_and_argnames
    assert infer(sig, None, None) == ((), ())
    assert infer(sig, 1, None) == ((1,), ("b",))
    assert infer(sig, None, "a") == ((0,), ("a",))
    assert infer(sig, None, ("b", "c")) == ((1,), ("b", "c"))
    assert infer(sig, (0, 1), ("c",)) == ((0, 1), ("c",))


# --- libraries -----------------------------------------------------------------------------


def results(program):
    done = run("-m", "gpuflow.as_jax", DATA / program)
    return json.loads(done.stdout)


def check_losses(found, stored):
    assert list(found) == list(stored)
    for name, losses in stored.items():
        # The same float32 arithmetic in another order; training lets it grow a little.
        np.testing.assert_allclose(found[name], losses, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.jax_libraries("optax", "absl")
def test_optax_trains_as_on_jax():
    """Twenty-one optimizers with schedules, clipping, masks and losses, forty steps each."""
    check_losses(results("optax_training.py")["losses"], STORED["optax"]["losses"])


@pytest.mark.jax_libraries("flax", "optax", "absl", "msgpack", "yaml")
def test_flax_trains_as_on_jax():
    """A CNN, a transformer, recurrent networks, lifted scan, vmap and remat, normalizations."""
    trained = results("flax_training.py")
    stored = STORED["flax"]
    check_losses(trained["losses"], stored["losses"])
    assert trained["shapes"] == stored["shapes"]
    assert trained["table"] == stored["table"]


@pytest.mark.jax_libraries("flax", "optax", "absl", "msgpack", "yaml", "treescope")
def test_flax_nnx_trains_as_on_jax():
    """A CNN with metrics, lifted scan, vmap and remat, attention with a GRU, variables as refs."""
    trained = results("nnx_training.py")
    stored = STORED["nnx"]
    check_losses(trained["losses"], stored["losses"])
    assert trained["shapes"] == stored["shapes"]


def test_names_of_hijax_are_there_and_refuse():
    primitive = hijax.HiPrimitive("mine")
    with pytest.raises(NotImplementedError, match=r"\[mine\] values must be arrays or refs"):
        primitive.bind(1.0)
    with pytest.raises(NotImplementedError, match=r"\[jax.experimental.hijax.AvalQDD\] values"):
        hijax.AvalQDD(1, 2)
    run_code(
        INSTALL
        + """
from jax.experimental import hijax
from jax._src.state.types import AbstractRef
from jax._src.tree_util import _registry
import jax
assert isinstance(jax.typeof(jax.new_ref(1.0)), AbstractRef) and hijax.AbstractRef is AbstractRef
assert dict in _registry and int not in _registry
"""
    )


@pytest.mark.jax_libraries("chex", "absl", "toolz")
def test_chex_asserts_as_on_jax():
    """Assertions of shapes, types, trees and values, inside jit too; dataclasses and fakes."""
    answers = results("chex_asserts.py")
    assert len(answers["refused"]) == 9
    assert answers["values"] == [True, True, True] and answers["traces"]
    assert answers["dataclass"] == [4.0, 8.0, 4.0] and answers["fake_pmap"] == [1, 2, 3]


def test_flags_of_xla_count_until_devices_are_used():
    """chex.set_n_cpu_devices sets them after the import, and asks the bridge whether it may."""
    run_code(
        INSTALL
        + """
import os
import jax
assert jax._src.xla_bridge._backends == {}
assert not jax._src.xla_bridge.backends_are_initialized()
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
os.environ.pop("GPUFLOW_CPU_DEVICES", None)
assert jax.local_device_count("cpu") == 3
assert "cpu" in jax._src.xla_bridge._backends
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=5"
assert jax.local_device_count("cpu") == 3
"""
    )


def test_names_of_inner_modules_of_nn_and_lib():
    run_code(
        INSTALL
        + """
import jax
import jax._src.lib.xla_client
from jax._src.lib import xla_client
from jax._src.nn.functions import glu
from jax._src.nn.initializers import glorot_uniform
from jaxlib.xla_client import XlaRuntimeError
assert xla_client.XlaRuntimeError is XlaRuntimeError is jax.errors.JaxRuntimeError
assert jax._src.lib.xla_client is xla_client
assert glu is jax.nn.glu and glorot_uniform is jax.nn.initializers.glorot_uniform
"""
    )
