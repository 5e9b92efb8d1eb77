"""What a plan asks of the platform that will run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.planning.plan import CallStep, KernelStep
from gpuflow.kir.nodes import Kernel

Allocate = Callable[[int], int]


class Target(Protocol):
    """How one platform runs steps, as far as memory and launches of a plan depend on it.

    Attributes:
        on_gpu: programs are made by the rules for GPUs (``on_gpu`` of lowering classes).
        atomic_sums: so are those of ``with_atomics``: sums may differ from run to run.
        excess_precision: kernels may leave out roundings, see ``excess_precision.py``.
    """

    on_gpu: bool
    atomic_sums: bool
    excess_precision: bool

    def launches(self, call: KernelCall, allocate: Allocate) -> tuple[KernelCall, ...]:
        """The calls that do the work of one; ``allocate`` gives a buffer of so many bytes."""
        ...

    def is_plain(self, kernel: Kernel) -> bool:
        """Whether every call of a kernel is its own launch."""
        ...

    def workspace_bytes(self, step: CallStep) -> int:
        """Memory that a library call needs besides its operands and outputs."""
        ...

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        ...


class PlainTarget:
    """Runs every kernel as it is, and nothing needs memory besides."""

    on_gpu = False
    atomic_sums = False
    excess_precision = False

    def launches(self, call: KernelCall, allocate: Allocate) -> tuple[KernelCall, ...]:
        """The call itself."""
        return (call,)

    def is_plain(self, kernel: Kernel) -> bool:
        """Always."""
        return True

    def workspace_bytes(self, step: CallStep) -> int:
        """None."""
        return 0

    def texts_of(self, step: KernelStep) -> list[str]:
        """None: nothing is printed."""
        return []


PLAIN_TARGET = PlainTarget()
