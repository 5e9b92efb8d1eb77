"""Environment variables: what they give, and the errors of values that cannot be read."""

from __future__ import annotations

import pytest

from gpuflow.base.config import read_environment


def test_values_are_read(monkeypatch):
    monkeypatch.setenv("GPUFLOW_NUM_THREADS", "3")
    monkeypatch.setenv("GPUFLOW_PREALLOCATE", "0.25")
    monkeypatch.setenv("GPUFLOW_CHECK", "off")
    monkeypatch.setenv("GPUFLOW_CUDA_GRAPHS", "no")
    environment = read_environment()
    assert (environment.num_threads, environment.preallocate) == (3, 0.25)
    assert not environment.check and not environment.cuda_graphs


def test_empty_values_are_the_defaults(monkeypatch):
    for name in ("NUM_THREADS", "CPU_DEVICES", "PREALLOCATE", "DEBUG", "CACHE_DIR", "DUMP"):
        monkeypatch.setenv(f"GPUFLOW_{name}", "")
    environment = read_environment()
    assert environment.num_threads >= 1 and environment.cpu_devices == 1
    assert (environment.preallocate, environment.debug, environment.dump) == (0.0, 0, "")
    assert environment.cache_folder.name == "gpuflow"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("GPUFLOW_NUM_THREADS", "0", "an integer of at least 1"),
        ("GPUFLOW_CPU_DEVICES", "many", "an integer of at least 1"),
        ("GPUFLOW_DEBUG", "-1", "an integer of at least 0"),
        ("GPUFLOW_CHECK", "maybe", "0 or 1"),
        ("GPUFLOW_CUDA_GRAPHS", "2", "0 or 1"),
        ("GPUFLOW_PREALLOCATE", "half", "a number from 0 to 1"),
        ("GPUFLOW_PREALLOCATE", "7", "a number from 0 to 1"),
        ("GPUFLOW_PREALLOCATE", "nan", "a number from 0 to 1"),
    ],
)
def test_a_value_that_cannot_be_read_names_the_variable(monkeypatch, name, value, wanted):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        read_environment()
    assert str(caught.value).startswith(f"[config] {name} must be {wanted}; got {value!r}. Fix: ")
