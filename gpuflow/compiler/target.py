"""The interface of a plan to the platform that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.core.blocks import Block

if TYPE_CHECKING:  # listing devices must not import the compiler
    from gpuflow.compiler.planning.plan import CallStep, Choice, KernelStep
    from gpuflow.compiler.schedules.schedule import KernelRewrites, Schedules
    from gpuflow.core.jaxpr import Eqn


@record
class Provider:
    """One implementation of the calls of a class of blocks on a target.

    Attributes:
        name: the name of the implementation, as in the table in docs/gpu.md.
        choose: ``(block, step, target) -> Choice``, the implementation, computed once when a plan
            is bound; or None if the provider does not support these operands.
        why_not: The reason why ``choose`` gives None; only for ``gpuflow.explain``.
        version: The version of the library that a target calls; also for ``gpuflow.explain``.
    """

    name: str
    choose: Callable[[Any, CallStep, Any], Choice | None]
    why_not: Callable[[Any, CallStep, Any], str] | None = None
    version: Callable[[Any], str] | None = None


# The providers of a target for each class of blocks; the first that supports a call is used.
Providers = Mapping[type[Block], tuple[Provider, ...]]


def chosen(providers: Providers, block: Block | None, step: CallStep, target: Any) -> Choice | None:
    """The choice of the first provider that supports a call; None: the call is its ``impl``."""
    for provider in providers.get(type(block), ()) if block is not None else ():
        choice = provider.choose(block, step, target)
        if choice is not None:
            return choice
    return None


def maker(providers: Providers, block: Block | None, step: CallStep, target: Any) -> str:
    """The provider of a call, and why those before it do not support it; "" without one."""
    reasons: list[str] = []
    for provider in providers.get(type(block), ()) if block is not None else ():
        if provider.choose(block, step, target) is not None:
            version = "" if provider.version is None else f" {provider.version(target)}"
            return "; ".join([provider.name + version, *reasons])
        if provider.why_not is not None:
            reasons.append(f"not {provider.name}: {provider.why_not(block, step, target)}")
    return ""


class Target(Protocol):
    """The platform that runs steps, as far as memory and launches of a plan depend on it.

    Attributes:
        on_gpu: the rules for GPUs apply (``on_gpu`` of lowering classes).
        atomic_sums: those of ``with_atomics`` apply too: sums may differ from run to run.
        excess_precision: kernels may leave out roundings, see ``excess_precision.py``.
        lane_loops: loops whose lanes are independent are statements of kernels.
        schedules: the rewrites of a kernel's calls, in the order in which they are tried.
        rewrites: the rewrites of a kernel when its text is generated.
    """

    on_gpu: bool
    atomic_sums: bool
    excess_precision: bool
    lane_loops: bool
    schedules: Schedules
    rewrites: KernelRewrites

    def choice_of(self, step: CallStep) -> Choice | None:
        """A provider's implementation of a call; None: its ``impl``."""
        ...

    def maker_of(self, step: CallStep) -> str:
        """The provider of a call, for ``gpuflow.explain``; "" if it is always the same."""
        ...

    def offers(self, call: Eqn) -> bool:
        """Whether there is an implementation of a call, before equations are replaced by it."""
        ...

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        ...


class PlainTarget:
    """Runs every kernel unmodified, and has no providers."""

    on_gpu = False
    atomic_sums = False
    excess_precision = False
    lane_loops = config.environment.lane_loops
    schedules: Schedules = ()
    rewrites: KernelRewrites = ()

    def choice_of(self, step: CallStep) -> Choice | None:
        """There are none."""
        return None

    def maker_of(self, step: CallStep) -> str:
        """There are no providers."""
        return ""

    def offers(self, call: Eqn) -> bool:
        """There are none."""
        return False

    def texts_of(self, step: KernelStep) -> list[str]:
        """None: nothing is printed."""
        return []


PLAIN_TARGET = PlainTarget()
