"""ptxsim: an interpreter of PTX that runs kernels on NumPy memory and checks every access.

    memory = ptxsim.DeviceMemory()
    address = memory.allocate(array.nbytes)
    memory.copy_in(address, array)
    kernel = ptxsim.PtxModule(text).entry("name")
    kernel.launch((4,), (128,), [address, 1024], memory, checks=ptxsim.THOROUGH)
    memory.copy_out(address, array)

It needs no GPU and no CUDA; NumPy and ml_dtypes are all that it imports. README.md has the rest.
"""

from ptxsim.checks import THOROUGH as THOROUGH
from ptxsim.checks import Checks as Checks
from ptxsim.checks import Statistics as Statistics
from ptxsim.faults import PtxError as PtxError
from ptxsim.kernel import PtxKernel as PtxKernel
from ptxsim.kernel import PtxModule as PtxModule
from ptxsim.memory import DeviceMemory as DeviceMemory
from ptxsim.memory import DeviceMemoryError as DeviceMemoryError
