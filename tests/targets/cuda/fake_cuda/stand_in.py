"""Runs the kernels of programs on the stand-in for CUDA: gpuflow's and CuPy's, by their PTX.

To be imported where ``elf_patch.install`` has run, which ``start.py`` does.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

import numpy as np

from gpuflow.targets import platforms
from gpuflow.targets.cuda.runtime.driver.on_cupy import CupyApi
from ptxsim.checks import Checks
from ptxsim.faults import PtxError
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory

COUNTS = (
    "refusals",
    "launches",
    "replays",
    "changes",
    "recordings",
    "pinned",
    "captures",
    "modules",
    "graphs",
)
_DESCRIBE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_char_p,
    ctypes.c_longlong,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.c_int,
)
_ILLEGAL_ADDRESS = 700
_CUPYS = Checks(races=False, uninitialized_shared=False)  # what CuPy's kernels do is its own

kernels: Kernels  # of this process, set by start.py


class Kernels:
    """Runs the kernels that gpuflow built, by their PTX, on the stand-in's memory.

    Args:
        fake: the stand-in.
        runs: whether kernels run, or nothing is done for a launch.

    Attributes:
        library: the stand-in's path.
        errors: what kernels did that a GPU forbids.
        unknown: why kernels of CuPy cannot be run here.
        names: of the kernels that were launched, in order.
        fails: kernels reach for memory that is nobody's.
    """

    def __init__(self, fake: ctypes.CDLL, runs: bool = True) -> None:
        platforms.GPU_SIGNS = (__file__,)  # a file that is there
        self._fake, self._runs, self.library = fake, runs, fake._name
        self._ptx: dict[bytes, str] = {}
        self._kernels: dict[int, object] = {}
        self._memories: dict[int, Mirror] = {}
        self.errors: list[BaseException] = []
        self.unknown: list[str] = []
        self.names: list[str] = []
        self.fails = False
        load = CupyApi.load

        @functools.wraps(load)
        def remembered(api, kernel):
            self._ptx[kernel.built.cubin] = kernel.built.ptx
            return load(api, kernel)

        CupyApi.load = remembered  # a cubin does not say of which PTX it was made
        self._kept = _DESCRIBE(self._describe), _LAUNCH(self._launch)
        if runs:
            fake.fake_set_callbacks(*self._kept)
        else:
            fake.fake_set_callbacks(self._kept[0], None)

    def counts(self) -> dict[str, int]:
        """What the stand-in counted."""
        found = (ctypes.c_longlong * len(COUNTS))()
        self._fake.fake_counts(found)
        return dict(zip(COUNTS, found, strict=True))

    def used(self, device: int = 0, most: bool = False) -> int:
        """Bytes that are allocated, or were at most."""
        self._fake.fake_used.restype = ctypes.c_size_t
        return self._fake.fake_used(device, int(most))

    def _describe(self, device, image, size, name, number, sizes, room, static_bytes) -> int:
        del device
        data = ctypes.string_at(image, size)
        ours = next((ptx for cubin, ptx in self._ptx.items() if cubin[:size] == data), None)
        text = data.decode(errors="replace")
        ptx = text if ours is None and ".version" in text else ours  # CuPy's kernels are PTX
        if ptx is None:
            return -1
        try:
            count = self._parameters(ptx, name.decode(), number, sizes, room, ours is not None)
            static_bytes[0] = self._kernels[number][0].program.shared_bytes if name else 0
            return count
        except PtxError as error:
            self.unknown.append(str(error))
            return -1

    def _parameters(self, ptx, name, number, sizes, room, is_ours) -> int:
        module = PtxModule(ptx)
        if not name:
            return 0
        self._kernels[number] = module.entry(name), Checks() if is_ours else _CUPYS
        parameters = module._loaded.module.functions[name].parameters
        assert len(parameters) <= room
        for k, parameter in enumerate(parameters):
            sizes[k] = parameter.size
        if is_ours and any(parameter.size > 8 for parameter in parameters):
            raise PtxError(f"{name}: gpuflow passes one word for each parameter")
        return len(parameters)

    def _launch(self, device, number, shape, words, count) -> int:
        kernel, checks = self._kernels[number]
        self.names.append(kernel.program.name)
        if self.fails:
            return _ILLEGAL_ADDRESS
        kept = np.array(words[:count], np.uint64)
        try:
            if device not in self._memories:
                self._memories[device] = Mirror(self._fake, device)
            memory = self._memories[device].now()
            kernel.launch(tuple(shape[0:3]), tuple(shape[3:6]), kept, memory, shape[6], checks)
        except BaseException as error:
            self.errors.append(error)
            if os.environ.get("FAKE_CUDA_LOG"):
                print(f"fake_cuda: {type(error).__name__}: {error}", file=sys.stderr)
            return _ILLEGAL_ADDRESS
        return 0


class Mirror:
    """The stand-in's device memory, as the interpreter wants it."""

    def __init__(self, fake: ctypes.CDLL, device: int) -> None:
        self._fake, self._device = fake, device
        self._memory = DeviceMemory()
        self._version, self._known = -1, {}
        fake.fake_version.restype = fake.fake_memory.restype = ctypes.c_longlong

    def now(self):
        """The memory as it is allocated now; another device's is not in it."""
        if self._fake.fake_version() == self._version:
            return self._memory
        rows, count = (ctypes.c_uint64 * (3 << 14))(), ctypes.c_int()
        self._version = self._fake.fake_memory(rows, 1 << 14, ctypes.byref(count))
        now = {}
        for k in range(count.value):
            start, size, device = rows[3 * k : 3 * k + 3]
            if device == self._device:
                now[start] = size
        for start, size in list(self._known.items()):
            if now.get(start) != size:
                self._memory.free(start)
                del self._known[start]
        for start, size in now.items():
            if start not in self._known:
                data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
                self._memory.adopt(data)
                self._known[start] = size
        return self._memory
