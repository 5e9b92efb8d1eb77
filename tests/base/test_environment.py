"""Environment variables: what they give, and the errors of values that cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuflow.base.config import Config, config, read_environment
from gpuflow.compiler.debugging import show


def test_values_are_read(monkeypatch):
    monkeypatch.setenv("GPUFLOW_NUM_THREADS", "3")
    monkeypatch.setenv("GPUFLOW_PREALLOCATE", "0.25")
    monkeypatch.setenv("GPUFLOW_CHECK", "off")
    monkeypatch.setenv("GPUFLOW_SIM_CHECK", "on")
    monkeypatch.setenv("GPUFLOW_CUDA_GRAPHS", "no")
    monkeypatch.setenv("GPUFLOW_KERNEL_VERSIONS", "numba=0.68.1 cuda-core=1.2")
    environment = read_environment()
    assert (environment.num_threads, environment.preallocate) == (3, 0.25)
    assert not environment.check and environment.sim_check and not environment.cuda_graphs
    assert environment.kernel_versions == (("numba", "0.68.1"), ("cuda-core", "1.2"))


@pytest.mark.parametrize("name", ["enable_x64", "atomic_sums"])
def test_settings_that_may_be_set_from_outside(monkeypatch, name):
    monkeypatch.setenv(f"GPUFLOW_{name.upper()}", "1")
    assert getattr(Config().trace_context(), name)
    monkeypatch.delenv(f"GPUFLOW_{name.upper()}")
    assert not getattr(Config().trace_context(), name)


@pytest.mark.parametrize(
    ("own", "xla", "wanted"),
    [
        ("", "", True),
        ("0", "", False),
        ("", "--xla_allow_excess_precision=false --xla_cpu_enable_fast_math=true", False),
        ("", "--xla_allow_excess_precision", True),
        ("1", "--xla_allow_excess_precision=false", True),
    ],
)
def test_roundings_may_be_left_out_unless_somebody_says_no(monkeypatch, own, xla, wanted):
    monkeypatch.setenv("XLA_FLAGS", xla)
    monkeypatch.delenv("GPUFLOW_EXCESS_PRECISION")
    if own:
        monkeypatch.setenv("GPUFLOW_EXCESS_PRECISION", own)
    assert Config().trace_context().excess_precision is wanted


def test_empty_values_are_the_defaults(monkeypatch):
    for name in ("NUM_THREADS", "CPU_DEVICES", "PREALLOCATE", "DEBUG", "CACHE_DIR", "DUMP"):
        monkeypatch.setenv(f"GPUFLOW_{name}", "")
    environment = read_environment()
    assert environment.num_threads >= 1 and environment.cpu_devices == 1
    assert (environment.preallocate, environment.debug, environment.dump) == (0.0, 0, "")
    assert environment.cache_folder.name == "gpuflow"


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({}, 0.0),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, 0.75),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0.0),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}, 0.4),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, 0.5),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "0", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, 0.0),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4", "GPUFLOW_PREALLOCATE": "0.1"}, 0.1),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4", "GPUFLOW_PREALLOCATE": "0"}, 0.0),
    ],
)
def test_what_is_taken_at_the_start_has_jaxs_names_too(monkeypatch, values, share):
    """Unlike JAX, nothing is taken where nothing is said."""
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GPUFLOW_PREALLOCATE", raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert read_environment().preallocate == share


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("GPUFLOW_NUM_THREADS", "0", "an integer of at least 1"),
        ("GPUFLOW_CPU_DEVICES", "many", "an integer of at least 1"),
        ("GPUFLOW_DEBUG", "-1", "an integer of at least 0"),
        ("GPUFLOW_CHECK", "maybe", "0 or 1"),
        ("GPUFLOW_SIM_CHECK", "thorough", "0 or 1"),
        ("GPUFLOW_CUDA_GRAPHS", "2", "0 or 1"),
        ("GPUFLOW_PREALLOCATE", "half", "a number from 0 to 1"),
        ("GPUFLOW_PREALLOCATE", "7", "a number from 0 to 1"),
        ("GPUFLOW_PREALLOCATE", "nan", "a number from 0 to 1"),
        ("GPUFLOW_KERNEL_VERSIONS", "numba", "packages with versions"),
        ("GPUFLOW_KERNEL_VERSIONS", "numba=", "packages with versions"),
        ("GPUFLOW_KERNEL_VERSIONS", "numba==0.68", "packages with versions"),
    ],
)
def test_a_value_that_cannot_be_read_names_the_variable(monkeypatch, name, value, wanted):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        read_environment()
    assert str(caught.value).startswith(f"[config] {name} must be {wanted}; got {value!r}. Fix: ")


def test_a_dump_folder_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, dump="/dev/null/x"))
    with pytest.raises(OSError, match=r"GPUFLOW_DUMP must be a folder .* got /dev/null/x"):
        show(1, "title", lambda: "text")
