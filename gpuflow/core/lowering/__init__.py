"""The lowering classes: the ways in which an op may reach a kernel.

``Primitive.lower`` is an instance of one of these. The compiler calls their methods and reads their
attributes; it dispatches neither on the op nor on the class. Bodies emit KernelIR through a
``Builder``. See docs/design/0047-lowering-classes.md.
"""

from gpuflow.core.lowering.base import AsyncCall as AsyncCall
from gpuflow.core.lowering.base import Context as Context
from gpuflow.core.lowering.base import Element as Element
from gpuflow.core.lowering.base import Iteration as Iteration
from gpuflow.core.lowering.base import Lowering as Lowering
from gpuflow.core.lowering.base import has_complex as has_complex
from gpuflow.core.lowering.forms import BranchForm as BranchForm
from gpuflow.core.lowering.forms import Form as Form
from gpuflow.core.lowering.forms import LaneForm as LaneForm
from gpuflow.core.lowering.forms import ProgramForm as ProgramForm
from gpuflow.core.lowering.forms import ScanForm as ScanForm
from gpuflow.core.lowering.forms import WhileForm as WhileForm
from gpuflow.core.lowering.fused import Elementwise as Elementwise
from gpuflow.core.lowering.fused import Fused as Fused
from gpuflow.core.lowering.fused import Indexed as Indexed
from gpuflow.core.lowering.fused import Laned as Laned
from gpuflow.core.lowering.fused import Layout as Layout
from gpuflow.core.lowering.fused import Update as Update
from gpuflow.core.lowering.reductions import Folded as Folded
from gpuflow.core.lowering.reductions import Reduction as Reduction
from gpuflow.core.lowering.reductions import TupleReduction as TupleReduction
from gpuflow.core.lowering.steps import Barrier as Barrier
from gpuflow.core.lowering.steps import Branch as Branch
from gpuflow.core.lowering.steps import Distributed as Distributed
from gpuflow.core.lowering.steps import HostCall as HostCall
from gpuflow.core.lowering.steps import Inline as Inline
from gpuflow.core.lowering.steps import Library as Library
from gpuflow.core.lowering.steps import Loop as Loop
from gpuflow.core.lowering.steps import OnHost as OnHost
from gpuflow.core.lowering.steps import Unwritten as Unwritten
from gpuflow.core.lowering.steps import block_of as block_of
