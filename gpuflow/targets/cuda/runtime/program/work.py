"""Work of a program on its device, in order: launches, and Python functions between them.

Consecutive launches are recorded together if that pays off; a library call, a copy or a loop driven
by Python ends a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.runtime.program_text import DriverText
from gpuflow.targets.cuda.runtime.driver.graphs import LEAST_LAUNCHES, Call, Place, RecordedLaunches
from gpuflow.targets.cuda.runtime.driver.launch import Launch
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# A variable that holds an address, or None and the address.
Argument = tuple[str | None, int]


@record
class _PrintedLaunch:
    """One call with its arguments, and which of them it writes, or writes without reading."""

    run: Callable[..., Any]
    arguments: tuple[Argument, ...]
    lines: list[str]
    writes: frozenset[str]
    fills: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The variables among the arguments."""
        return [name for name, _ in self.arguments if name is not None]


class Work:
    """Collects the lines of a driver that give work to the device.

    Args:
        text: the driver's text.
        device: that it runs on.
        may_record: whether launches may be recorded.
    """

    def __init__(self, text: DriverText, device: GpuDevice, may_record: bool) -> None:
        self._text, self._device, self._may_record = text, device, may_record
        self._parts: list[str | _PrintedLaunch] = []

    def line(self, text: str) -> None:
        """A line of Python that cannot be recorded."""
        self._parts.append(text)

    def launch(
        self, stem: str, run: Callable[..., Any], arguments: Sequence[Argument], comment: str,
        writes: Collection[str] = (), fills: Collection[str] = (),
    ) -> None:  # fmt: skip
        """A call with addresses that only launches kernels.

        Args:
            stem: of the name that the text gives it.
            run: the function to call.
            arguments: with which.
            comment: for readers of the text.
            writes: variables with addresses of its outputs.
            fills: those of them that it writes completely, and does not read before.
        """
        texts = [str(number) if name is None else name for name, number in arguments]
        if isinstance(run, Launch):
            lines = run.text(self._text.constant, texts)
        else:
            lines = [f"{self._text.constant(stem, run)}({', '.join(texts)})"]
        lines[-1] += f"  # {comment}"
        self._parts.append(
            _PrintedLaunch(run, tuple(arguments), lines, frozenset(writes), frozenset(fills))
        )

    def lines(self, names: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
        """All lines.

        Args:
            names: globals of the driver besides the text's constants.
            counts: sizes in bytes of the arrays at the variables with addresses.
        """
        result: list[str] = []
        waiting: list[_PrintedLaunch] = []
        for part in [*self._parts, None]:
            if isinstance(part, _PrintedLaunch):
                waiting.append(part)
                continue
            result += self._launches(waiting, names, counts)
            waiting = []
            if part is not None:
                result.append(part)
        return result

    def _launches(
        self, launches: Sequence[_PrintedLaunch], names: Mapping[str, Any],
        counts: Mapping[str, int],
    ) -> list[str]:  # fmt: skip
        """Lines for launches that follow one another."""
        lines = [line for launch in launches for line in launch.lines]
        if not self._may_record or len(launches) < LEAST_LAUNCHES:
            return lines
        used = list(dict.fromkeys(name for launch in launches for name in launch.names))
        calls = [
            Call(
                launch.run,
                tuple(
                    [(None if n is None else used.index(n), at) for n, at in launch.arguments]
                ),
            )
            for launch in launches
        ]
        parameters = ", ".join(used)
        plain = _function(parameters, lines, {**names, **self._text.namespace})
        places = [_place(name, launches, counts[name]) for name in used]
        recorded = RecordedLaunches(self._device, plain, calls, places)
        return [f"{self._text.constant('recorded', recorded)}({parameters})"]


def _place(name: str, launches: Sequence[_PrintedLaunch], count: int) -> Place:
    """The use of the memory of a variable by launches."""
    first = next(launch for launch in launches if name in launch.names)
    is_read = not any(name in launch.writes for launch in launches)
    return Place(count, is_read, name in first.fills)


def _function(
    parameters: str, lines: Sequence[str], namespace: dict[str, Any]
) -> Callable[..., None]:
    """A function with these lines."""
    body = "\n".join("    " + line for line in lines)
    exec(
        compile(f"def work({parameters}):\n{body}\n", "<gpuflow launches>", "exec"), namespace
    )
    return namespace["work"]
