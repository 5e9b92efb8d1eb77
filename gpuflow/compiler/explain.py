"""``explain``: text of a plan with its steps, their equations, and why fusion separated them.

A buffer is stored at each boundary between a step and its readers. Fusion itself gives the reason:
its rules are applied once more to the equations of both steps.

docs/performance.md explains the text to users.

Tests: tests/compiler/test_explain.py, tests/explaining/test_explanation.py.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuflow.base.records import record
from gpuflow.base.tables import scaled
from gpuflow.base.util import short_path
from gpuflow.compiler.fusion.legality import space_of
from gpuflow.compiler.fusion.space import NotOneKernelError
from gpuflow.compiler.lanes.convert import rejection_reason
from gpuflow.compiler.lowering.excess_precision import all_rounded
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    flops_of,
    nbytes,
    reads_of,
    traffic_bytes,
    writes_of,
)
from gpuflow.core.jaxpr import Eqn, Var, format_eqns

SourcesOf = Callable[[KernelStep], Sequence[Path]]
ProviderText = Callable[[CallStep], str]

_MAX_LISTED = 12  # names in one list; more are counted
# For each kind of step its name in the singular and the plural.
_KINDS = {
    "kernel": ("kernel", "kernels"),
    "library": ("library call", "library calls"),
    "host": ("host call", "host calls"),
    "copy": ("copy", "copies"),
    "program": ("loop or branch", "loops or branches"),
}


def explain_plan(
    plan: Plan, name: str, sources_of: SourcesOf, describe_provider: ProviderText
) -> str:
    """The plan of a program as text.

    Args:
        plan: the plan.
        name: name of the program.
        sources_of: returns the files with the generated source of a kernel step.
        describe_provider: returns the provider of a library call, as ``Target.describe_provider``.
    """
    view = PlanView(plan, sources_of, describe_provider)
    steps = [view.step(index) for index in range(len(plan.steps))]
    return "\n\n".join([headline(plan, name), *steps])


def headline(plan: Plan, name: str) -> str:
    """Number of steps of each kind in a program, and their total costs."""
    counts = Counter(step.kind for step in plan.steps)
    counted = [
        f"{counts[kind]} {names[counts[kind] != 1]}"
        for kind, names in _KINDS.items()
        if counts[kind]
    ]
    flops = sum(flops_of(step) for step in plan.steps)
    bytes_moved = sum(traffic_bytes(plan, step) for step in plan.steps)
    return (
        f"{name}: {', '.join(counted) or 'nothing to compute'}; {scaled(flops, 'FLOP')}, "
        f"{scaled(bytes_moved, 'B')} moved, {scaled(plan.arena_bytes, 'B')} of temporaries"
    )


@record
class Boundary:
    """The reason why outputs of a step are stored in memory.

    Attributes:
        names: names of the arrays.
        readers: indices of the steps that read them; empty if they are not stored for a reader.
        reason: why the steps are separate, or the purpose of the arrays.
    """

    names: tuple[str, ...]
    readers: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        steps = f"{_numbered(self.readers)}: " if self.readers else ""
        return f"{_listed(self.names)} for {steps}{self.reason}"


class PlanView:
    """A plan with indexes for its text.

    Attributes:
        eqn_texts: the text of each equation, by position.
        name_of: the name of a variable in these texts.
        position_of: the position of each equation.
        unscheduled: results of equations that no step computes, which only change how an array is
            read, such as broadcasts; each with its equation.
        results: outputs of the plan that are not unmodified inputs.
        variables: the variable of each buffer, by id; new ones for buffers that planning added.
        readers: for each buffer the indices of the steps that read it, in order.
    """

    def __init__(self, plan: Plan, sources_of: SourcesOf, describe_provider: ProviderText) -> None:
        self.plan, self.sources_of, self.describe_provider = plan, sources_of, describe_provider
        self.eqn_texts, self.name_of = format_eqns(plan.jaxpr)
        self.position_of = {eqn: k for k, eqn in enumerate(plan.jaxpr.eqns)}
        scheduled = {eqn for step in plan.steps for eqn in eqns_of(step)}
        self.unscheduled = {
            out: eqn for eqn in plan.jaxpr.eqns if eqn not in scheduled for out in eqn.outputs
        }
        self.results = {out for out in plan.outputs if not plan.is_input(out)}
        added = {buffer: Var(aval) for buffer, aval in plan.added_avals.items()}
        self.variables = {**dict(enumerate(plan.variables)), **added}
        self.readers: dict[int, list[int]] = {}
        for index, step in enumerate(plan.steps):
            for buffer in dict.fromkeys(reads_of(step)):
                self.readers.setdefault(buffer, []).append(index)

    def step(self, index: int) -> str:
        """The paragraph of step ``index``."""
        step = self.plan.steps[index]
        paragraph = [f"{index + 1}. {self.title(step)}"]
        for label, buffers in (("reads", reads_of(step)), ("writes", writes_of(step))):
            listed = _listed([self._typed(buffer) for buffer in dict.fromkeys(buffers)])
            paragraph += _wrapped(f"   {label:<8}", listed or "nothing")
        costs = (scaled(flops_of(step), "FLOP"), scaled(traffic_bytes(self.plan, step), "B"))
        paragraph.append(f"   costs   {', '.join(costs)}")
        if isinstance(step, KernelStep):
            sources = dict.fromkeys(map(short_path, self.sources_of(step)))
            paragraph += [f"   source  {path}" for path in sources]
        paragraph += [textwrap.indent(eqn_text, " " * 6) for eqn_text in self.equations(step)]
        provider_text = self.describe_provider(step) if isinstance(step, CallStep) else ""
        if provider_text:
            paragraph += _wrapped("   made by ", provider_text)
        for boundary in self.boundaries(index):
            paragraph += _wrapped("   stores  ", str(boundary))
        if isinstance(step, ProgramStep):
            reason = rejection_reason(step.eqn, all_rounded)
            if reason is not None:
                paragraph += _wrapped("   loop    ", f"not one kernel: {reason}")
            for k, inner in enumerate(step.programs):
                name = f"program {k + 1}"
                text = explain_plan(inner.plan, name, self.sources_of, self.describe_provider)
                paragraph += ["", textwrap.indent(text, " " * 6)]
        return "\n".join(paragraph)

    def equations(self, step: Step) -> list[str]:
        """The equations of a step, and those that define its views.

        Those of equal kernels are listed once.
        """
        if not isinstance(step, KernelStep) or len(step.calls) == 1:
            return self._listed_with_views(eqns_of(step))
        eqns = self.plan.jaxpr.eqns
        first = [eqns[position] for position in self._group(step, lambda eqn: True)]
        again = f"and the same for {len(step.calls) - 1} more"
        return [*self._listed_with_views(first), again]

    def _listed_with_views(self, eqns: Sequence[Eqn]) -> list[str]:
        """Equations in order, after those that no step computes and whose results they read."""
        positions = {self.position_of[eqn] for eqn in eqns}
        waiting = list(eqns)
        while waiting:
            for atom in waiting.pop().inputs:
                producer = self.unscheduled.get(atom) if isinstance(atom, Var) else None
                if producer is not None and self.position_of[producer] not in positions:
                    positions.add(self.position_of[producer])
                    waiting.append(producer)
        return [self.eqn_texts[position] for position in sorted(positions)]

    def title(self, step: Step) -> str:
        """The kind of a step, and its name."""
        if not isinstance(step, KernelStep):
            return f"{_KINDS[step.kind][0]}: {step.name}"
        kernel = step.kernel
        again = f", for {len(step.calls)} sets of arrays" if len(step.calls) > 1 else ""
        return f"{kernel.kind} kernel {kernel.name}{again}"

    def _typed(self, buffer: int) -> str:
        var = self.variables[buffer]
        return f"{self.name_of(var)}:{var.aval} ({scaled(nbytes(var.aval), 'B')})"

    def boundaries(self, index: int) -> list[Boundary]:
        """The reason why each output buffer of a step is stored, grouped by reason."""
        step = self.plan.steps[index]
        names: dict[tuple[tuple[int, ...], str], list[str]] = {}  # by (readers, reason)
        for buffer in dict.fromkeys(writes_of(step)):
            readers_by_reason: dict[str, list[int]] = {}
            for reader in self.readers.get(buffer, ()):
                if reader > index:
                    reason = self._separation_reason(buffer, index, reader)
                    readers_by_reason.setdefault(reason, []).append(reader)
            keys = [(tuple(readers), reason) for reason, readers in readers_by_reason.items()]
            if buffer in self.results:
                keys.insert(0, ((), "output"))
            if isinstance(step, ProgramStep) and buffer == step.workspace:
                keys.append(((), "temporaries of its programs"))
            for key in keys or [((), "no reader: the step always writes it")]:
                names.setdefault(key, []).append(self.name_of(self.variables[buffer]))
        return [Boundary(tuple(arrays), *key) for key, arrays in names.items()]

    def _separation_reason(self, buffer: int, index: int, reader: int) -> str:
        """The reason why a step and a reader of its buffer are not one kernel."""
        first, second = self.plan.steps[index], self.plan.steps[reader]
        for step in (second, first):
            if isinstance(step, CallStep):
                return f"{step.name} is a {_KINDS[step.kind][0]}"
            if isinstance(step, ProgramStep):
                return f"{step.name} runs other programs"
            if isinstance(step, CopyStep):
                return "a result or an update needs a copy"
        assert isinstance(second, KernelStep)
        assert isinstance(first, KernelStep)
        var = self.variables[buffer]
        first_group = self._group(first, lambda eqn: var in eqn.outputs)
        second_group = self._group(second, lambda eqn: self._reads(eqn, var))
        try:
            space_of(self.plan.program, sorted({*first_group, *second_group}))
        except NotOneKernelError as reason:
            return f"as one kernel, {reason}"
        between = self._between(index, reader)
        if between is not None:
            return f"step {between + 1} runs between them"
        return "each was fused with other operations first"

    def _group(self, step: KernelStep, matches: Callable[[Eqn], bool]) -> tuple[int, ...]:
        """The group of a step that has a matching equation; segmented steps have several groups."""
        position = self.position_of[next(filter(matches, step.eqns), step.eqns[0])]
        positions = {self.position_of[eqn] for eqn in step.eqns}
        groups = (group for group in self.plan.groups if positions.issuperset(group))
        return next(group for group in groups if position in group)

    def _reads(self, eqn: Eqn, var: Var) -> bool:
        storage = self.plan.program.storage
        return any(isinstance(atom, Var) and storage(atom).buffer is var for atom in eqn.inputs)

    def _between(self, first: int, last: int) -> int | None:
        """A step on a path of data from the first step to the last; None if there is none."""
        written = {*writes_of(self.plan.steps[first])}
        needed = {*reads_of(self.plan.steps[last])}  # by the last step, transitively
        for index in range(last - 1, first, -1):
            step = self.plan.steps[index]
            if needed.intersection(writes_of(step)):
                needed.update(reads_of(step))
                if written.intersection(reads_of(step)):
                    return index
        return None


def eqns_of(step: Step) -> Sequence[Eqn]:
    """The equations that a step computes; none of a copy."""
    if isinstance(step, KernelStep):
        return step.eqns
    return (step.eqn,) if isinstance(step, CallStep | ProgramStep) else ()


def _listed(texts: Sequence[str]) -> str:
    """Join texts by commas; only the first of many."""
    if len(texts) <= _MAX_LISTED:
        return ", ".join(texts)
    return f"{', '.join(texts[:_MAX_LISTED])} and {len(texts) - _MAX_LISTED} more"


def _numbered(steps: Sequence[int]) -> str:
    listed = ", ".join(str(index + 1) for index in steps)
    return f"step{'s' if len(steps) > 1 else ''} {listed}"


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        100,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
