"""The statements of a driver that enqueue work, in order; consecutive launches are grouped.

A group of launches becomes one ``RecordedLaunches`` if it is long enough. A statement that cannot
be recorded, such as a library call, a copy, or a loop driven by Python, ends a group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.runtime.program_text import DriverText
from gpuflow.targets.cuda.runtime.driver.graphs import (
    LEAST_LAUNCHES,
    BufferUse,
    Call,
    RecordedLaunches,
)
from gpuflow.targets.cuda.runtime.driver.launch import BoundLaunch
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# An address as an argument: (variable that holds it, 0), or (None, fixed address).
Argument = tuple[str | None, int]


@record
class _PrintedLaunch:
    """A launch that may be recorded.

    Attributes:
        run: the function to call.
        arguments: its arguments.
        statements: the statements that do the same.
        writes: variables with addresses of arrays that it writes.
        fills: those of ``writes`` that it writes completely and does not read.
    """

    run: Callable[..., Any]
    arguments: tuple[Argument, ...]
    statements: list[str]
    writes: frozenset[str]
    fills: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The variables among the arguments."""
        return [name for name, _ in self.arguments if name is not None]


class Work:
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
        arguments: Sequence[Argument],
        comment: str,
        writes: Collection[str] = (),
        fills: Collection[str] = (),
    ) -> None:
        """Add a call that only launches kernels and may be recorded.

        Args:
            stem: start of its name in the text.
            run: a ``BoundLaunch``, or a function of addresses and optionally a stream.
            arguments: its arguments, which are addresses.
            comment: comment in the text.
            writes: variables with addresses of its outputs.
            fills: those of ``writes`` that it writes completely, without reading them before.
        """
        texts = [str(number) if name is None else name for name, number in arguments]
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
        waiting: list[_PrintedLaunch] = []
        for item in [*self._items, None]:
            if isinstance(item, _PrintedLaunch):
                waiting.append(item)
                continue
            result += self._launches(waiting, names, counts)
            waiting = []
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
        used = list(dict.fromkeys(name for launch in launches for name in launch.names))
        calls = [
            Call(
                launch.run,
                tuple([(None if n is None else used.index(n), at) for n, at in launch.arguments]),
            )
            for launch in launches
        ]
        parameters = ", ".join(used)
        plain = _function(parameters, statements, {**names, **self._text.namespace})
        buffers = [_buffer_use(name, launches, counts[name]) for name in used]
        recorded = RecordedLaunches(self._device, plain, calls, buffers)
        return [f"{self._text.constant('recorded', recorded)}({parameters})"]


def _buffer_use(name: str, launches: Sequence[_PrintedLaunch], count: int) -> BufferUse:
    """The use of the array at a variable by consecutive launches."""
    first = next(launch for launch in launches if name in launch.names)
    is_read = not any(name in launch.writes for launch in launches)
    return BufferUse(count, is_read, name in first.fills)


def _function(
    parameters: str, statements: Sequence[str], namespace: dict[str, Any]
) -> Callable[..., None]:
    """A function with these statements."""
    body = "\n".join("    " + statement for statement in statements)
    exec(compile(f"def work({parameters}):\n{body}\n", "<gpuflow launches>", "exec"), namespace)
    return namespace["work"]
