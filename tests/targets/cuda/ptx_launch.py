"""Launch PTX on NumPy arrays: their own memory is what the kernel reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptxsim.checks import THOROUGH
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory

DEVICE = DeviceMemory()


def launch_ptx(
    ptx: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    memory: Sequence[np.ndarray] = (),
    **options: Any,
) -> int:
    """Run the only kernel of a text; gives the number of instructions that were issued.

    Args:
        ptx: the text.
        grid, block: extents in x, y and z.
        arguments: for every pointer an array, or a pair of one and the position that is pointed
            to; a number for every other parameter. The kernel must not store to arrays that are
            not writeable.
        memory: further arrays, which the kernel may reach through addresses in memory.
        options: as for ``PtxKernel.launch``; by default it looks for all that it can.
    """
    options.setdefault("checks", THOROUGH)
    module = PtxModule(ptx)
    (name,) = module.entries()
    arrays = [*memory, *(_pointed(given)[0] for given in arguments if _is_pointer(given))]
    adopted: dict[int, bool] = {}
    kept = {array.ctypes.data: array for array in arrays}
    for array in arrays:
        address = array.ctypes.data
        adopted[address] = adopted.get(address, False) or array.flags.writeable
    try:
        for address, writeable in adopted.items():
            DEVICE.adopt(kept[address], not writeable)
        words = [_word(given) for given in arguments]
        return module.entry(name).launch(grid, block, words, DEVICE, **options).instructions
    finally:
        for address in adopted:
            DEVICE.free(address)


def _is_pointer(given: Any) -> bool:
    return isinstance(given, tuple) or (isinstance(given, np.ndarray) and given.ndim > 0)


def _pointed(given: Any) -> tuple[np.ndarray, int]:
    return given if isinstance(given, tuple) else (given, 0)


def _word(given: Any) -> int:
    """The parameter word of an argument: an address, or a number's bits."""
    if _is_pointer(given):
        array, first = _pointed(given)
        return array.ctypes.data + first * array.itemsize
    bits = np.asarray(given)
    return int(bits.reshape(1).view(f"u{bits.itemsize}")[0])
