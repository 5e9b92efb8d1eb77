"""Executables: compile a program for a device at first use, and run it on Arrays.

This is where donation is enforced: a program may overwrite a donated operand only if nothing else
refers to its memory (``holders``).

Tests: tests/runtime/test_holders.py, tests/control/test_jit.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.base.progress import building
from gpuflow.base.recording import span
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.trace import Tracer, raise_leaked_tracer
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device, default_device, in_use, target_of
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.eager import checks, on_common_device
from gpuflow.runtime.replay import check_results

if TYPE_CHECKING:
    from gpuflow.compiler import explain, explain_stages, pipeline
    from gpuflow.compiler.planning import plan as plans
else:
    explain = LazyModule("gpuflow.compiler.explain")
    explain_stages = LazyModule("gpuflow.compiler.explain_stages")
    pipeline = LazyModule("gpuflow.compiler.pipeline")
    plans = LazyModule("gpuflow.compiler.planning.plan")


class Compiled:
    """A program compiled for one driver.

    Attributes:
        plan: the plan of the program.
        target: the compilation target.
        program: the runnable plan.
        constants: data of the plan's additional inputs, which follow the operands.
        overwritten: indices of donated inputs that the plan overwrites.
        forwarded: indices of inputs that are outputs without a change.
    """

    def __init__(
        self,
        jaxpr: ClosedJaxpr,
        donated: tuple[int, ...],
        driver: Driver,
        others: Iterable[Compiled],
    ) -> None:
        self.target = driver.target
        with building(len(jaxpr.jaxpr.eqns)):
            self._build(jaxpr, donated, driver, others)
        self.constants = [driver.from_host(as_numpy(v, aval_of(v))) for v in self._values]
        self.overwritten = [k for k in donated if k in self.plan.overwritten]
        outputs = [out for out in self.plan.outputs if isinstance(out, int)]
        self.forwarded = [out for out in outputs if self.plan.is_input(out)]

    def _build(
        self,
        jaxpr: ClosedJaxpr,
        donated: tuple[int, ...],
        driver: Driver,
        others: Iterable[Compiled],
    ) -> None:
        compiled_for_target = next((other for other in others if other.target is self.target), None)
        if compiled_for_target is not None:  # devices of a platform share the plan
            self.plan, self._values = compiled_for_target.plan, compiled_for_target._values
        else:
            with span("builds", "compile a program", equations=len(jaxpr.jaxpr.eqns)):
                self.plan, self._values = pipeline.compile_plan(
                    jaxpr, donated, target=driver.target
                )
        self.program = driver.program(self.plan, jaxpr.out_avals)


class Executable:
    """A program that runs on Arrays, compiled for each driver at first use.

    Args:
        jaxpr: the program.
        donated: for each operand whether it is donated.

    Attributes:
        donated: indices of donated operands. They are deleted after each call.
        build_seconds: a list of one float, to which compile times are added.
    """

    def __init__(self, jaxpr: ClosedJaxpr, donated: tuple[bool, ...]) -> None:
        self.jaxpr, self.in_avals = jaxpr, tuple(jaxpr.in_avals)
        settings = config.trace_context()  # part of jit's key: fixed for this program
        self._is_checked = settings.debug_nans or settings.debug_infs
        # A checked program may have to run again, so it must not overwrite its operands.
        self.donated = tuple(k for k, flag in enumerate(donated) if flag and not self._is_checked)
        self._compiled: dict[Driver, Compiled] = {}
        self.build_seconds = [0.0]

    def compiled(self, device: Device | None = None) -> Compiled:
        """The program compiled for a device; None is the default device."""
        driver = (device or default_device()).driver
        compiled = self._compiled.get(driver)
        if compiled is None:
            others = list(self._compiled.values())
            start = perf_counter()
            compiled = Compiled(self.jaxpr, self.donated, driver, others)
            self.build_seconds[0] += perf_counter() - start
            self._compiled[driver] = compiled
        return compiled

    @property
    def is_compiled(self) -> bool:
        """Whether the program was compiled for any driver."""
        return bool(self._compiled)

    def __call__(self, operands: Sequence[Any], counted: Sequence[Any] | None = None) -> list[Any]:
        """Run the program on values.

        Args:
            operands: Arrays or other values, which are copied to the device.
            counted: the operands that determine the device; None means all.
        """
        used = [value for value in operands if type(value) is Array]
        device = used[-1].device if used else default_device()
        driver, arrays = device.driver, []
        for value, aval in zip(operands, self.in_avals, strict=True):
            if type(value) is Array:
                arrays.append(value.data)
            else:
                if isinstance(value, Tracer):
                    raise_leaked_tracer(value, "jit")
                arrays.append(driver.from_host(as_numpy(value, aval)))
        if in_use.several:
            device, arrays = on_common_device("jit", operands, arrays, counted)
            driver = device.driver
        for k in self.compiled(device).forwarded:
            if type(operands[k]) is not Array:
                arrays[k] = driver.copy(arrays[k])
        return self.run(arrays, operands, device)

    def run(self, arrays: list[Any], operands: Sequence[Any], device: Device) -> list[Array]:
        """Run the program on existing data.

        Args:
            arrays: the data of each operand. The callee modifies the list.
            operands: the operands, of which donated ones are deleted.
            device: the device of operands and outputs.
        """
        compiled = self._compiled.get(device.driver) or self.compiled(device)
        if self.donated:
            self._check_donated(operands)
            for k in compiled.overwritten:
                if type(operands[k]) is not Array or device.driver.is_shared(arrays, k):
                    arrays[k] = device.driver.copy(arrays[k])
        arrays += compiled.constants
        try:
            results = compiled.program.run(arrays, device)
        except BaseException:
            self._delete_donated(operands)  # the failed program may have overwritten them
            raise
        if self.donated:
            self._delete_donated(operands)
        if self._is_checked and (settings := checks()) is not None:
            again = functools.partial(Executable, donated=())
            check_results(self.jaxpr, operands, results, settings, again)
        return results

    def _delete_donated(self, operands: Sequence[Any]) -> None:
        for k in self.donated:
            if type(operands[k]) is Array:
                operands[k].delete()

    def _check_donated(self, operands: Sequence[Any]) -> None:
        if len({id(value) for value in operands}) == len(operands):
            return
        for k in self.donated:
            same = [n for n, value in enumerate(operands) if value is operands[k]]
            check(
                len(same) == 1 or type(operands[k]) is not Array,
                lambda same=same: (
                    "[jit] a donated array must be passed once; got one array as arguments "
                    f"{same}. Fix: pass a copy, or do not donate it."
                ),
                ValueError,
            )

    def explain(self, name: str, stage: str = "plan", platform: str | None = None) -> str:
        """Describe the program at one of its stages; see ``gpuflow.explain``."""
        stages = explain_stages.STAGES
        check(
            stage in stages,
            lambda: (
                f"[explain] stage must be one of {stages}; got {stage!r}. "
                "Fix: leave it out to see the plan."
            ),
            ValueError,
        )
        if platform is None:
            compiled = self.compiled()
            if stage == "plan":
                sources_of, describe_provider = (
                    compiled.program.sources_of,
                    compiled.target.describe_provider,
                )
                return explain.explain_plan(compiled.plan, name, sources_of, describe_provider)
            if stage == "driver":
                return compiled.program.driver_text()
            return explain_stages.explain_stage(stage, self.jaxpr, compiled.plan, compiled.target)
        check(
            stage not in ("plan", "driver"),
            lambda: (
                f"[explain] stage {stage!r} needs a device, its kernels are built; got "
                f"platform={platform!r}. Fix: leave the platform out, or ask for another stage."
            ),
            ValueError,
        )
        target = target_of(platform)
        plan, _ = pipeline.compile_plan(self.jaxpr, self.donated, target=target)
        return explain_stages.explain_stage(stage, self.jaxpr, plan, target)

    def cost_analysis(self) -> dict[str, float]:
        """FLOPs and bytes of one call, from the plan."""
        plan = self.compiled().plan
        return {
            "flops": float(sum(plans.flops_of(step) for step in plan.steps)),
            "bytes accessed": float(sum(plans.traffic_bytes(plan, step) for step in plan.steps)),
        }


def executable_of(jaxpr: ClosedJaxpr, donated: tuple[bool, ...]) -> Executable:
    """The executable of a program, cached with it."""
    return jaxpr.jaxpr.memo(("executable", donated), lambda: Executable(jaxpr, donated))
