"""``jaxlib.xla_client``: the class of devices, for annotations, and of errors, to catch."""

from gpuflow.base.errors import JaxRuntimeError as JaxRuntimeError
from gpuflow.runtime.device import Device as Device

XlaRuntimeError = JaxRuntimeError
