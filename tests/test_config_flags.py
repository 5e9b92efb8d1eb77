"""Every setting by config.update, as an attribute and in a block; what each changes; errors."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import config

MATRIX = np.ones((3, 3), np.float32)


@pytest.fixture(autouse=True)
def _as_before():
    names = [
        "enable_x64",
        "debug_nans",
        "debug_infs",
        "disable_jit",
        "default_matmul_precision",
        "numpy_rank_promotion",
        "numpy_dtype_promotion",
        "log_compiles",
        "explain_cache_misses",
        "threefry_partitionable",
        "default_device",
        "no_tracing",
        "check_tracer_leaks",
        "random_seed_offset",
        "enable_custom_prng",
        "high_dynamic_range_gumbel",
    ]
    values = [config.read(name) for name in names]
    yield
    for name, value in zip(names, values, strict=True):
        config.update(name, value)


def test_by_call_attribute_and_block():
    assert config.jax_enable_x64 is False
    config.update("jax_enable_x64", True)
    assert config.enable_x64 and config.read("jax_enable_x64") and jnp.ones(1).dtype == np.float64
    config.jax_enable_x64 = False
    assert jnp.ones(1).dtype == np.float32
    with gpuflow.enable_x64(True):
        assert config.jax_enable_x64
        with gpuflow.enable_x64(False):
            assert not config.enable_x64
    assert not config.enable_x64


def test_a_block_is_of_one_thread_and_update_of_all():
    seen = []
    with gpuflow.log_compiles(), gpuflow.enable_x64():
        thread = threading.Thread(
            target=lambda: seen.append((config.log_compiles, config.enable_x64))
        )
        thread.start()
        thread.join()
    config.update("jax_log_compiles", True)
    thread = threading.Thread(target=lambda: seen.append(config.log_compiles))
    thread.start()
    thread.join()
    assert seen == [(False, False), True]


BLOCKS = {
    "enable_x64": (True, False),
    "numpy_dtype_promotion": ("strict", "standard"),
    "numpy_rank_promotion": ("raise", "allow"),
    "default_matmul_precision": ("highest", None),
    "threefry_partitionable": (False, True),
    "debug_nans": (True, False),
    "debug_infs": (True, False),
    "disable_jit": (True, False),
    "default_device": ("cpu", None),
    "atomic_sums": (True, False),
    "excess_precision": (True, False),
    "log_compiles": (True, False),
    "explain_cache_misses": (True, False),
    "no_tracing": (True, False),
    "check_tracer_leaks": (True, False),
}


@together(size=225)
@pytest.mark.parametrize("updated", BLOCKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_sets_its_own_setting_only(block, updated):
    """An update inside of a block holds there too, unless the block is of the same setting."""
    new, old = BLOCKS[updated]
    try:
        with config.override(block, BLOCKS[block][0]):
            config.update(updated, new)
            assert config.read(updated) == new
            config.update(updated, old)
            assert config.read(updated) == (new if block == updated else old)
        config.update(updated, new)
        assert config.read(updated) == new
    finally:
        config.update(updated, old)
    assert config.read(block) == BLOCKS[block][1]


def test_an_update_of_another_thread_reaches_into_a_block():
    with gpuflow.default_matmul_precision("highest"), gpuflow.enable_x64(True):
        thread = threading.Thread(target=lambda: config.update("numpy_rank_promotion", "raise"))
        thread.start()
        thread.join()
        assert config.numpy_rank_promotion == "raise" and config.enable_x64
        with pytest.raises(ValueError, match="one rank"):
            jnp.ones((3, 3)) + jnp.ones(3)


def test_a_mesh_that_is_set_inside_a_block_counts():
    mesh = gpuflow.make_mesh((1,), ("x",))
    with gpuflow.enable_x64(False):
        with gpuflow.set_mesh(mesh), gpuflow.numpy_rank_promotion("warn"):
            config.update("jax_debug_nans", True)
            assert gpuflow.sharding.get_abstract_mesh().axis_names == ("x",)
            with pytest.raises(FloatingPointError):
                jnp.log(jnp.float32(-1.0))
        assert gpuflow.sharding.get_abstract_mesh().empty


def test_the_number_of_cpu_devices_is_settled_by_their_first_use():
    assert config.jax_num_cpu_devices == len(gpuflow.devices("cpu"))
    config.update("jax_num_cpu_devices", config.num_cpu_devices)
    with pytest.raises(RuntimeError, match="num_cpu_devices must be set before devices are first"):
        config.update("jax_num_cpu_devices", 17)
    with pytest.raises(ValueError, match="num_cpu_devices must be an integer from 1 to 65536"):
        config.update("jax_num_cpu_devices", 0)


def test_debug_nans():
    config.update("jax_debug_nans", True)
    with pytest.raises(FloatingPointError):
        gpuflow.jit(jnp.log)(-1.0)


def test_disable_jit():
    config.update("jax_disable_jit", True)
    seen = []
    gpuflow.jit(lambda x: seen.append(float(x)))(2.0)
    assert seen == [2.0]


def test_default_matmul_precision():
    config.update("jax_default_matmul_precision", "highest")
    assert "HIGHEST" in str(gpuflow.make_jaxpr(lambda x: x @ x)(MATRIX))
    config.update("jax_default_matmul_precision", "BF16_BF16_F32")
    assert "BF16_BF16_F32" in str(gpuflow.make_jaxpr(lambda x: x @ x)(MATRIX))
    with pytest.raises(ValueError, match=r"precision must be one of .*got 'super'"):
        config.update("jax_default_matmul_precision", "super")


def test_rank_and_dtype_promotion():
    config.update("jax_numpy_rank_promotion", "raise")
    with pytest.raises(ValueError, match="one rank"):
        jnp.ones((3, 3)) + jnp.ones(3)
    config.update("jax_numpy_dtype_promotion", "strict")
    with pytest.raises(gpuflow.dtypes.TypePromotionError):
        jnp.ones(3) + jnp.arange(3)


def test_threefry_layouts():
    new = gpuflow.random.bits(gpuflow.random.key(0), (5,))
    config.update("jax_threefry_partitionable", False)
    old = gpuflow.random.bits(gpuflow.random.key(0), (5,))
    assert np.asarray(new).tolist() != np.asarray(old).tolist()


@pytest.mark.parametrize("device", ["cpu", gpuflow.devices("cpu")[0]])
def test_default_device(device):
    config.update("jax_default_device", device)
    assert jnp.ones(2).device == gpuflow.devices("cpu")[0]
    with gpuflow.default_device(device):
        assert gpuflow.jit(lambda: jnp.ones(2))().device.platform == "cpu"
    with pytest.raises(ValueError, match=r"default_device must be a Device.*got 'abacus'"):
        config.update("jax_default_device", "abacus")
    with pytest.raises(ValueError, match=r"default_device must be a Device.*got 7"):
        config.update("jax_default_device", 7)


def test_log_compiles(caplog):
    def triple(x):
        return 3 * x

    function = gpuflow.jit(triple)
    with caplog.at_level(logging.WARNING, "gpuflow"):
        with gpuflow.log_compiles():
            function(1.0)
            function(2.0)
        function(1)
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split(" for ")[0] for text in texts] == ["traced triple", "compiled triple"]
    assert {record.name for record in caplog.records} == {"gpuflow"}


def test_log_compiles_does_not_compile_again(caplog):
    function = gpuflow.jit(lambda x: 5 * x)
    function(1.0)
    with caplog.at_level(logging.WARNING, "gpuflow"), gpuflow.log_compiles():
        function(2.0)
    assert not caplog.records


def test_explain_cache_misses(caplog):
    function = gpuflow.jit(lambda x, n: n * x, static_argnums=1)
    with caplog.at_level(logging.WARNING, "gpuflow"), gpuflow.explain_cache_misses():
        function(1.0, 2)
        function(np.ones(3, np.float32), 2)
        function(1.0, 3)
        function({"a": 1.0}["a"], 2)
        with gpuflow.enable_x64():
            function(np.float32(1), 2)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4
    assert "it was never called" in texts[0]
    assert "other types" in texts[1]
    assert "other static arguments, 1=3 and before 1=2" in texts[2]
    assert "other settings" in texts[3]


def test_no_tracing():
    function = gpuflow.jit(lambda x: x + 1)
    function(1.0)
    with gpuflow.no_tracing():
        assert float(function(2.0)) == 3.0
        with pytest.raises(RuntimeError, match=r"must have been traced for these arguments"):
            function(np.ones(3, np.float32))


def test_platforms():
    before = config.environment
    config.update("jax_platforms", "cpu,cuda")
    assert config.jax_platforms == "cpu"
    config.environment = before


def test_unknown_names_and_values():
    with pytest.raises(AttributeError, match=r"got 'jax_enable_x46'. Fix: use 'enable_x64'"):
        config.update("jax_enable_x46", True)
    with pytest.raises(AttributeError, match=r"the setting must be one of"):
        config.fusion  # noqa: B018
    with pytest.raises(AttributeError, match=r"Fix: use 'debug_nans'"):
        config.jax_debug_nan = True
    with pytest.raises(ValueError, match=r"enable_x64 must be one of \(True, False\); got 'maybe'"):
        config.update("jax_enable_x64", "maybe")


def test_settings_that_mean_nothing_here_say_so():
    reason = "has no effect in gpuflow: gpuflow caches compiled kernels always, in the folder of"
    with pytest.warns(UserWarning, match=f"jax_compilation_cache_dir {reason} GPUFLOW_CACHE_DIR"):
        config.update("jax_compilation_cache_dir", "/tmp/x")
    assert config.jax_compilation_cache_dir == "/tmp/x"
    config.update("jax_compilation_cache_dir", None)  # JAX's default: nothing to warn of
    assert config.jax_compilation_cache_dir is None


# Settings of JAX 0.10.2 with their defaults.
JAX_SETTINGS = json.loads((Path(__file__).parent / "data" / "jax_settings.json").read_text())
OWN_DEFAULTS = (  # other defaults, or from the environment
    "jax_num_cpu_devices",
    "jax_platforms",
    "jax_platform_name",
    "jax_traceback_filtering",
)


@together(size=150)
@pytest.mark.parametrize("name", sorted(JAX_SETTINGS))
def test_every_setting_of_jax_takes_its_default(name):
    default = JAX_SETTINGS[name]
    assert name in config.values
    if name not in OWN_DEFAULTS:
        assert config.read(name) == default
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config.update(name, default)
        assert config.values[name] == default


@pytest.mark.parametrize(
    ("name", "value"), [("jax_no_execution", True), ("jax_explicit_x64_dtypes", "allow")]
)
def test_settings_that_would_change_results_are_refused(name, value):
    with pytest.raises(NotImplementedError, match=rf"{name} must be .* gpuflow: .* got {value!r}"):
        config.update(name, value)
    assert config.read(name) != value


def test_names_of_methods_are_close_names_too():
    with pytest.raises(AttributeError, match=r"Fix: use 'parse_flags_with_absl'"):
        config.parse_flags  # noqa: B018


def test_settings_of_random_numbers_do_as_in_jax():
    """The numbers are those of JAX 0.10.2."""
    gumbel = [2.564756, -1.023512, -0.04578244]
    plain = gpuflow.random.gumbel(gpuflow.random.key(3), (3,))
    config.update("jax_high_dynamic_range_gumbel", True)
    np.testing.assert_allclose(gpuflow.random.gumbel(gpuflow.random.key(3), (3,)), gumbel, 1e-6)
    assert not np.allclose(plain, gumbel)
    config.update("jax_random_seed_offset", 5)
    assert gpuflow.random.PRNGKey(0).tolist() == [0, 5]
    folded = gpuflow.jit(lambda seed: gpuflow.random.fold_in(gpuflow.random.key(seed), 2))(1)
    assert gpuflow.random.key_data(folded).tolist() == [549229066, 726512204]
    config.update("jax_enable_custom_prng", True)
    key = gpuflow.random.PRNGKey(3)
    assert key.shape == () and gpuflow.random.split(key).shape == (2,)
    raw = np.array([0, 3], np.uint32)
    assert gpuflow.random.split(raw).shape == (2,) and gpuflow.random.fold_in(raw, 1).shape == ()


FLAGS = """
import sys
import gpuflow
from gpuflow import config
def main(_):
    values = config.x64_enabled, config._read("jax_numpy_rank_promotion"), config.jax_debug_nans
    print(*values)
FLAGGED
"""
SET = ["--jax_enable_x64", "--jax_numpy_rank_promotion=raise", "--mine=3", "--", "--jax_debug_nans"]


@pytest.mark.jax_libraries("absl")
@pytest.mark.parametrize(
    "flagged",
    [
        "config.parse_flags_with_absl(); config.parse_flags_with_absl(); main(None)",
        "from absl import app, flags; flags.DEFINE_integer('mine', 1, ''); "
        "config.config_with_absl();"
        "app.run(lambda _: main(flags.FLAGS.mine))",
    ],
)
def test_settings_are_flags_of_absl(flagged):
    code = FLAGS.replace("FLAGGED", flagged)
    done = subprocess.run([sys.executable, "-c", code, *SET], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "raise", "False"], done.stderr


def test_flags_without_absl(monkeypatch):
    monkeypatch.setitem(sys.modules, "absl", None)
    with pytest.raises(ImportError, match=r"\[config\] settings as flags need absl.* pip install"):
        config.config_with_absl()
