"""Arrays stay where they are put, and results are where their operands are."""

import os
import subprocess
import sys

import gpuflow as gf

PROGRAM = """
import gpuflow as gf, gpuflow.numpy as jnp, numpy as np
devices = gf.devices()
assert len(devices) == 3
x = gf.device_put(np.arange(4.0), devices[2])
assert x.device == devices[2] and (x + 1).device == devices[2]
assert gf.jit(lambda v: v * 2)(x).device == devices[2]
assert gf.device_put(x, devices[1]).device == devices[1]
with gf.default_device(devices[1]):
    assert jnp.ones(3).device == devices[1]
    assert gf.jit(lambda v: v * 2)(np.ones(3)).device == devices[1]
assert jnp.ones(3).device == devices[0]
"""


def test_placement_on_virtual_devices():
    # device_put once left every array on the default device.
    environment = dict(os.environ, GPUFLOW_CPU_DEVICES="3")
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=environment)


def test_one_device_by_default():
    assert gf.device_count() == len(gf.devices()) >= 1
