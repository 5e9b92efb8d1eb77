"""``jaxlib.xla_client``: the class of devices, for annotations."""

from gpuflow.runtime.device import Device as Device
