"""Compiler's interface to a platform: properties that passes read, and library providers.

``targets/*/target.py`` implements ``Target``. The compiler imports no platform.

Tests: tests/compiler/test_symbolic_plans.py, tests/targets/cuda/test_cudnn_plans.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.core.blocks import Block

if TYPE_CHECKING:  # listing devices must not import the compiler
    from gpuflow.compiler.planning.plan import CallImplementation, CallStep, KernelStep
    from gpuflow.compiler.schedules.schedule import KernelRewrites, Schedules
    from gpuflow.core.jaxpr import Eqn


@record
class Provider:
    """One implementation of the calls of a class of blocks on a target.

    Attributes:
        name: the name of the implementation, as in the table in docs/gpu.md.
        choose: ``(block, step, target) -> CallImplementation``, computed once when a plan is bound;
            None if the provider does not support these operands.
        why_not: the reason why ``choose`` returns None, for ``gpuflow.explain`` only.
        version: the version of the library that a target calls, for ``gpuflow.explain`` only.
    """

    name: str
    choose: Callable[[Any, CallStep, Any], CallImplementation | None]
    why_not: Callable[[Any, CallStep, Any], str] | None = None
    version: Callable[[Any], str] | None = None


# The providers of a target for each class of blocks; the first that supports a call is used.
Providers = Mapping[type[Block], tuple[Provider, ...]]


def choose_implementation(
    providers: Providers, block: Block | None, step: CallStep, target: Any
) -> CallImplementation | None:
    """The implementation of the first provider that supports a call.

    None if there is none, or the call has no block: then the op's ``impl`` must run.
    """
    for provider in providers.get(type(block), ()) if block is not None else ():
        implementation = provider.choose(block, step, target)
        if implementation is not None:
            return implementation
    return None


def describe_provider(
    providers: Providers, block: Block | None, step: CallStep, target: Any
) -> str:
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
    """A platform, as far as the passes, memory and launches of a plan depend on it.

    Symbolic programs are cached by target, so a target must be hashable and must not change.

    Attributes:
        on_gpu: selects the passes for GPUs, and the rules ``on_gpu`` of lowering classes.
        atomic_sums: also apply the rules ``with_atomics``; sums may then differ from run to run.
        excess_precision: kernels may omit roundings, see ``lowering/excess_precision.py``.
        lane_loops: convert loops with independent lanes to statements of kernels.
        schedules: the rewrites of a kernel's calls, in the order in which they are tried.
        rewrites: the rewrites of a kernel when its text is generated.
    """

    on_gpu: bool
    atomic_sums: bool
    excess_precision: bool
    lane_loops: bool
    schedules: Schedules
    rewrites: KernelRewrites

    # Plans may be bound by several threads at the same time, which then call these methods.

    def implementation_of(self, step: CallStep) -> CallImplementation | None:
        """A provider's implementation of a call; None if its ``impl`` must run.

        ``step.implementation`` and ``step.workspace`` are not set yet.
        """
        ...

    def describe_provider(self, step: CallStep) -> str:
        """The provider of a call as text for ``gpuflow.explain``; "" if it is always the same."""
        ...

    def supports(self, call: Eqn) -> bool:
        """Whether a provider supports a call; asked before a pass replaces equations by it."""
        ...

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        ...


class PlainTarget:
    """Defaults of a target: kernels without schedules, no providers, no printed text."""

    on_gpu = False
    atomic_sums = False
    excess_precision = False
    lane_loops = config.environment.lane_loops
    schedules: Schedules = ()
    rewrites: KernelRewrites = ()

    def implementation_of(self, step: CallStep) -> CallImplementation | None:
        """There are none."""
        return None

    def describe_provider(self, step: CallStep) -> str:
        """There are no providers."""
        return ""

    def supports(self, call: Eqn) -> bool:
        """There are none."""
        return False

    def texts_of(self, step: KernelStep) -> list[str]:
        """None: nothing is printed."""
        return []


PLAIN_TARGET = PlainTarget()
