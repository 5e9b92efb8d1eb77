"""What a program gives to its device, in order: launches, and what Python does between them.

Launches that follow one another are recorded together where that is worth it; a call of a library,
a copy or a loop that Python drives ends what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.runtime.gpu_device import GpuDevice
from gpuflow.runtime.gpu_graphs import LEAST_LAUNCHES, Call, RecordedLaunches
from gpuflow.runtime.gpu_launch import Launch
from gpuflow.runtime.program_text import DriverText

# A variable that holds an address, or None and the address.
Argument = tuple[str | None, int]


@record
class _Given:
    """One call with its arguments."""

    run: Callable[..., Any]
    arguments: tuple[Argument, ...]
    lines: list[str]


class Work:
    """Collects the lines of a driver that give work to the device.

    Args:
        text: the driver's text.
        device: that it runs on.
        may_record: whether launches may be recorded.
    """

    def __init__(self, text: DriverText, device: GpuDevice, may_record: bool) -> None:
        self._text, self._device, self._may_record = text, device, may_record
        self._parts: list[str | _Given] = []

    def line(self, text: str) -> None:
        """A line of Python that cannot be recorded."""
        self._parts.append(text)

    def launch(
        self, stem: str, run: Callable[..., Any], arguments: Sequence[Argument], comment: str
    ) -> None:
        """A call with addresses that only launches kernels."""
        texts = [str(number) if name is None else name for name, number in arguments]
        if isinstance(run, Launch):
            lines = run.text(self._text.constant, texts)
        else:
            lines = [f"{self._text.constant(stem, run)}({', '.join(texts)})"]
        lines[-1] += f"  # {comment}"
        self._parts.append(_Given(run, tuple(arguments), lines))

    def lines(self, names: Mapping[str, Any]) -> list[str]:
        """All lines; ``names`` are globals of the driver besides the text's constants."""
        result: list[str] = []
        waiting: list[_Given] = []
        for part in [*self._parts, None]:
            if isinstance(part, _Given):
                waiting.append(part)
                continue
            result += self._launches(waiting, names)
            waiting = []
            if part is not None:
                result.append(part)
        return result

    def _launches(self, given: Sequence[_Given], names: Mapping[str, Any]) -> list[str]:
        """Lines for launches that follow one another."""
        lines = [line for one in given for line in one.lines]
        if not self._may_record or len(given) < LEAST_LAUNCHES:
            return lines
        used = list(
            dict.fromkeys(name for one in given for name, _ in one.arguments if name is not None)
        )
        calls = [
            Call(
                one.run,
                tuple(
                    [(None if n is None else used.index(n), at) for n, at in one.arguments]
                ),
            )
            for one in given
        ]
        parameters = ", ".join(used)
        plain = _function(parameters, lines, {**names, **self._text.namespace})
        device = self._device
        recorded = RecordedLaunches(device.api, device.compute, plain, calls)
        return [f"{self._text.constant('recorded', recorded)}({parameters})"]


def _function(
    parameters: str, lines: Sequence[str], namespace: dict[str, Any]
) -> Callable[..., None]:
    """A function with these lines."""
    body = "\n".join("    " + line for line in lines)
    exec(
        compile(f"def work({parameters}):\n{body}\n", "<gpuflow launches>", "exec"), namespace
    )
    return namespace["work"]
