"""Environment variables: what they give, and the errors of values that cannot be read."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gpuflow
from gpuflow.base.config import Config, collective_timeout, config, read_environment
from gpuflow.base.variables import VARIABLES, unknown_variables
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
        ("GPUFLOW_NUM_THREADS", "0", "an integer from 1 to 4096"),
        ("GPUFLOW_NUM_THREADS", "1000000", "an integer from 1 to 4096"),
        ("GPUFLOW_NUM_THREADS", "9" * 5000, "an integer from 1 to 4096"),
        ("GPUFLOW_NUM_THREADS", "²", "an integer from 1 to 4096"),
        ("GPUFLOW_CPU_DEVICES", "many", "an integer from 1 to 65536"),
        ("GPUFLOW_CPU_DEVICES", "1000000000", "an integer from 1 to 65536"),
        ("GPUFLOW_SIM_DEVICES", "1000000000", "an integer from 1 to 65536"),
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


@pytest.mark.parametrize("text", ["nan", "0", "-1", "inf", "1e300", "soon", "9" * 5000])
def test_a_timeout_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv("GPUFLOW_COLLECTIVE_TIMEOUT", text)
    with pytest.raises(ValueError, match=r"GPUFLOW_COLLECTIVE_TIMEOUT must be a number of seconds"):
        collective_timeout()


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


FIRST_ARRAY = """
import gpuflow
import gpuflow.numpy as jnp
print("imported")
for _ in range(2):
    try:
        jnp.ones(2)
    except ValueError as error:
        print(error)
"""


def test_bad_values_are_refused_by_the_first_array():
    """All at once, and each time: the import goes through, so that doctor can report them."""
    done = run("-c", FIRST_ARRAY, GPUFLOW_NUM_THREADS="1000000", GPUFLOW_ENABLE_X64="perhaps")
    lines = done.stdout.splitlines()
    assert lines[0] == "imported" and lines[1:3] == lines[3:] and not done.stderr
    assert "GPUFLOW_NUM_THREADS must be" in lines[1] and "GPUFLOW_ENABLE_X64 must be" in lines[2]


def test_doctor_reports_bad_values_and_unknown_names():
    done = run("-m", "gpuflow", "doctor", GPUFLOW_CPU_DEVICES="1000000000", GPUFLOW_NUM_THREAD="2")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "WRONG: [config] GPUFLOW_CPU_DEVICES must be an integer from 1" in done.stdout
    assert "GPUFLOW_NUM_THREAD, which has no effect" in done.stdout and "numpy" in done.stdout


def test_other_commands_end_with_the_messages():
    done = run("-m", "gpuflow", "smi", GPUFLOW_CPU_DEVICES="no")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("[config] GPUFLOW_CPU_DEVICES must be an integer from 1")


def test_names_that_are_not_known():
    assert not unknown_variables(["GPUFLOW_DEBUG", "HOME", "XGPUFLOW_A"])
    (message,) = unknown_variables(["GPUFLOW_PLATFROM"])
    assert "got GPUFLOW_PLATFROM" in message and "Fix: GPUFLOW_PLATFORM" in message
    (message,) = unknown_variables(["GPUFLOW_QQQQ"])
    assert "Fix: a name of docs/env_vars.md." in message
    done = run("-c", "import gpuflow", GPUFLOW_CACHEDIR="/tmp")
    assert "UserWarning: [config] variables that begin with GPUFLOW_" in done.stderr
    assert "GPUFLOW_CACHE_DIR" in done.stderr and done.returncode == 0


def test_every_variable_of_the_package_is_in_the_table():
    """A name in a message or in code that the table does not have would be refused."""
    folder = Path(gpuflow.__file__).parent
    named = {
        name
        for path in folder.rglob("*.py")
        for name in re.findall(r"\bGPUFLOW_[A-Z0-9_]*[A-Z0-9]\b", path.read_text("utf-8"))
    }
    assert named == set(VARIABLES)


def test_the_examples_are_values():
    for variable in VARIABLES.values():
        variable.kind.parse(variable.kind.example)


def test_the_page_is_up_to_date():
    path = Path(__file__).parents[2] / "docs" / "make_env_vars.py"
    spec = importlib.util.spec_from_file_location("make_env_vars", path)
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    text = make.OUTPUT.read_text(encoding="utf-8")
    assert make.page(text) == text, "variables changed. Fix: python docs/make_env_vars.py"


def test_a_dump_folder_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, dump="/dev/null/x"))
    with pytest.raises(OSError, match=r"GPUFLOW_DUMP must be a folder .* got /dev/null/x"):
        show(1, "title", lambda: "text")


def test_a_dump_overwrites_nothing(monkeypatch, tmp_path):
    """Neither a user's file, nor an earlier run's, nor what another process writes meanwhile."""
    (tmp_path / "0000_title.txt").write_text("notes")
    (tmp_path / "0003_more.txt").write_text("an earlier run")
    (tmp_path / "readme").write_text("notes")
    monkeypatch.setattr(config, "environment", replace(config.environment, dump=str(tmp_path)))
    show(1, "title", lambda: "first")
    (tmp_path / "0005_title.txt").write_text("another process")
    show(1, "title", lambda: "second")
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {
        "0000_title.txt": "notes",
        "0003_more.txt": "an earlier run",
        "readme": "notes",
        "0004_title.txt": "first",
        "0005_title.txt": "another process",
        "0006_title.txt": "second",
    }
