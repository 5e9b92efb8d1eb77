"""What a plan asks of the platform that will run it."""

from __future__ import annotations

from typing import Any, Protocol

from gpuflow.compiler.planning.plan import CallStep, KernelStep
from gpuflow.compiler.schedules.schedule import KernelRewrites, Schedules


class Target(Protocol):
    """How one platform runs steps, as far as memory and launches of a plan depend on it.

    Attributes:
        on_gpu: programs are made by the rules for GPUs (``on_gpu`` of lowering classes).
        atomic_sums: so are those of ``with_atomics``: sums may differ from run to run.
        excess_precision: kernels may leave out roundings, see ``excess_precision.py``.
        schedules: what may rewrite a kernel's calls, in the order in which they are tried.
        rewrites: what is done to a kernel when its text is made.
    """

    on_gpu: bool
    atomic_sums: bool
    excess_precision: bool
    schedules: Schedules
    rewrites: KernelRewrites

    def choice_of(self, step: CallStep) -> Any:
        """What the platform's library wants to do for a call; None: there was nothing to ask."""
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
    schedules: Schedules = ()
    rewrites: KernelRewrites = ()

    def choice_of(self, step: CallStep) -> Any:
        """Nothing is asked."""
        return None

    def workspace_bytes(self, step: CallStep) -> int:
        """None."""
        return 0

    def texts_of(self, step: KernelStep) -> list[str]:
        """None: nothing is printed."""
        return []


PLAIN_TARGET = PlainTarget()
