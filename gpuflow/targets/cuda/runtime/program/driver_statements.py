"""The statements of a driver that enqueue work, in order; consecutive launches are grouped.

A group of launches becomes one ``RecordedLaunches`` if it is long enough. A statement that cannot
be recorded, such as a library call, a copy, or a loop driven by Python, ends a group.

Tests: tests/targets/cuda/test_gpu_graphs.py, tests/targets/cuda/test_cuda_driver.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gpuflow.base.records import record
from gpuflow.runtime.program_text import DriverText
from gpuflow.targets.cuda.runtime.driver.graphs import (
    LEAST_LAUNCHES,
    BufferAccess,
    CallArgument,
    RecordableCall,
    RecordedLaunches,
)
from gpuflow.targets.cuda.runtime.driver.launch import BoundLaunch
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice


class AddressArgument(NamedTuple):
    """An address as an argument of a launch.

    Attributes:
        variable: variable of the driver that holds the address; None: it is fixed.
        fixed: the fixed address; 0 if there is a variable.
    """

    variable: str | None
    fixed: int


@record
class _PrintedLaunch:
    """A launch that may be recorded.

    Attributes:
        run: the function to call.
        arguments: arguments of ``run``.
        statements: statements of the driver that do the same as a call of ``run``.
        writes: variables with addresses of arrays that it writes.
        fills: those of ``writes`` that it writes completely and does not read.
    """

    run: Callable[..., Any]
    arguments: tuple[AddressArgument, ...]
    statements: list[str]
    writes: frozenset[str]
    fills: frozenset[str]

    @property
    def variables(self) -> list[str]:
        """The variables among the arguments."""
        return [variable for variable, _ in self.arguments if variable is not None]


class DriverStatements:
    """Collects the statements of a driver that enqueue work on the device.

    Args:
        text: the text of the driver.
        device: the device that runs the work.
        may_record: whether launches may be recorded.
    """

    def __init__(self, text: DriverText, device: GpuDevice, may_record: bool) -> None:
        self._text, self._device, self._may_record = text, device, may_record
        self._items: list[str | _PrintedLaunch] = []

    def statement(self, text: str) -> None:
        """Add a statement that cannot be recorded."""
        self._items.append(text)

    def launch(
        self,
        stem: str,
        run: Callable[..., Any],
        arguments: Sequence[AddressArgument],
        comment: str,
        writes: Collection[str] = (),
        fills: Collection[str] = (),
    ) -> None:
        """Add a call that only launches kernels and may be recorded.

        Args:
            stem: start of its name in the text.
            run: a ``BoundLaunch``, or a function of addresses and optionally a stream.
            arguments: its arguments, which are addresses.
            comment: comment in the text, after the last statement.
            writes: variables with addresses of its outputs.
            fills: those of ``writes`` that it writes completely, without reading them before.
        """
        texts = [str(fixed) if variable is None else variable for variable, fixed in arguments]
        if isinstance(run, BoundLaunch):
            statements = run.text(self._text.constant, texts)
        else:
            statements = [f"{self._text.constant(stem, run)}({', '.join(texts)})"]
        statements[-1] += f"  # {comment}"
        self._items.append(
            _PrintedLaunch(run, tuple(arguments), statements, frozenset(writes), frozenset(fills))
        )

    def statements(self, names: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
        """All statements, with consecutive launches recorded if that pays off.

        Args:
            names: globals of the driver, in addition to constants of its text.
            counts: size in bytes of the array at each variable with an address.
        """
        result: list[str] = []
        group: list[_PrintedLaunch] = []
        for item in [*self._items, None]:  # None ends the last group
            if isinstance(item, _PrintedLaunch):
                group.append(item)
                continue
            result += self._launches(group, names, counts)
            group = []
            if item is not None:
                result.append(item)
        return result

    def _launches(
        self,
        launches: Sequence[_PrintedLaunch],
        names: Mapping[str, Any],
        counts: Mapping[str, int],
    ) -> list[str]:
        """The statements of a group of launches, or one call that records and replays it."""
        statements = [statement for launch in launches for statement in launch.statements]
        if not self._may_record or len(launches) < LEAST_LAUNCHES:
            return statements
        variables = list(dict.fromkeys(name for launch in launches for name in launch.variables))
        index_of = {variable: index for index, variable in enumerate(variables)}
        calls = [
            RecordableCall(
                launch.run,
                tuple(
                    [
                        CallArgument(None if variable is None else index_of[variable], fixed)
                        for variable, fixed in launch.arguments
                    ]
                ),
            )
            for launch in launches
        ]
        parameters = ", ".join(variables)
        run_all = _function(parameters, statements, {**names, **self._text.namespace})
        accesses = [_buffer_access(name, launches, counts[name]) for name in variables]
        recorded = RecordedLaunches(self._device, run_all, calls, accesses)
        return [f"{self._text.constant('recorded', recorded)}({parameters})"]


def _buffer_access(variable: str, launches: Sequence[_PrintedLaunch], count: int) -> BufferAccess:
    """The use of the array of ``count`` bytes whose address is in a variable, by launches."""
    first = next(launch for launch in launches if variable in launch.variables)
    is_only_read = not any(variable in launch.writes for launch in launches)
    return BufferAccess(count, is_only_read, variable in first.fills)


def _function(
    parameters: str, statements: Sequence[str], namespace: dict[str, Any]
) -> Callable[..., None]:
    """A function with these statements; ``parameters`` is the text of its parameter list."""
    body = "\n".join("    " + statement for statement in statements)
    exec(compile(f"def work({parameters}):\n{body}\n", "<gpuflow launches>", "exec"), namespace)
    return namespace["work"]
