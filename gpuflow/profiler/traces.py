"""Start, stop and write traces.

Tests: tests/test_profiler.py.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn

from gpuflow.base.errors import check
from gpuflow.base.recording import Event, Recording, clock, state
from gpuflow.base.records import record
from gpuflow.core.trace import Evaluator, eval_trace
from gpuflow.runtime.device import in_use
from gpuflow.runtime.memory import arenas

# Rows from top to bottom.
ROWS = (
    "host",
    "eager ops",
    "builds",
    "kernels",
    "libraries",
    "loops",
    "copies",
    "collectives",
    "host functions",
)
_ROWS_PER_THREAD = 10
_SAMPLE_SECONDS = 0.01  # between samples of memory


@record(frozen=False)
class ProfileOptions:
    """Options of a recording; options of JAX's profiler without an equivalent are ignored.

    Attributes:
        host_tracer_level: 0 omits eager ops and annotations.
        device_tracer_level: 0 omits the steps of compiled programs.
    """

    host_tracer_level: int = 2
    device_tracer_level: int = 1
    python_tracer_level: int = 0
    advanced_configuration: dict[str, Any] = field(default_factory=dict)
    duration_ms: int = 0
    enable_hlo_proto: bool = True
    include_dataset_ops: bool = True
    raise_error_on_start_failure: bool = False
    repository_path: str = ""
    session_id: str = ""
    start_timestamp_ns: int = 0


@record
class _Session:
    """A trace that is being recorded.

    Attributes:
        ended: set when it ends, for the thread that samples memory.
        sampler: that thread, or None.
    """

    folder: Path
    with_perfetto: bool
    options: ProfileOptions
    ended: threading.Event
    sampler: threading.Thread | None


@record(frozen=False)
class _Current:
    session: _Session | None = None
    last: Path | None = None


_current = _Current()


def start_trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> None:
    """Start to record a trace; ``stop_trace`` writes the file.

    Args:
        log_dir: a folder; the trace is written to ``plugins/profile/<time>`` in it.
        create_perfetto_link: not supported; open the file at https://ui.perfetto.dev.
        create_perfetto_trace: whether to write the trace as ``perfetto_trace.json.gz`` too.
        profiler_options: options of the recording.

    Raises:
        RuntimeError: if a trace is already being recorded.
        NotImplementedError: if ``create_perfetto_link`` is set.
        ValueError: if ``log_dir`` is empty, or names a file.
    """
    check(
        os.fspath(log_dir) != "" and not Path(log_dir).is_file(),
        lambda: (
            f"[start_trace] log_dir must be the path of a folder; got {os.fspath(log_dir)!r}"
            f"{', a file' if log_dir else ''}. Fix: start_trace('traces')."
        ),
        ValueError,
    )
    check(
        not create_perfetto_link,
        lambda: (
            "[start_trace] create_perfetto_link must be False, for gpuflow serves no files; got "
            "True. Fix: create_perfetto_trace=True, and open that file at https://ui.perfetto.dev."
        ),
        NotImplementedError,
    )
    check(
        _current.session is None,
        lambda: (
            "[start_trace] one trace can be taken at a time; got a second start. Fix: call "
            "stop_trace() first."
        ),
        RuntimeError,
    )
    options = profiler_options or ProfileOptions()
    recording, ended, sampler = Recording(), threading.Event(), None
    if options.device_tracer_level:
        sampler = threading.Thread(target=_sample, args=(recording, ended), daemon=True)
        sampler.start()
    _current.session = _Session(Path(log_dir), create_perfetto_trace, options, ended, sampler)
    state.recording = recording
    if options.device_tracer_level:
        arenas.renew()
    if options.host_tracer_level:
        eval_trace.wrap(_recorded)


def stop_trace() -> None:
    """Write the events since ``start_trace`` to a file.

    Raises:
        RuntimeError: if no trace is being recorded.
    """
    session, recording = _current.session, state.recording
    if session is None or recording is None:
        raise RuntimeError(
            "[stop_trace] a trace must be under way; got none. Fix: call start_trace(folder) first."
        )
    _current.session = state.recording = None
    eval_trace.unwrap(_recorded)
    arenas.renew()
    session.ended.set()
    if session.sampler is not None:
        session.sampler.join()
    _current.last = _write(session, recording)


def last_trace() -> Path | None:
    """The file that this process wrote last, or None."""
    return _current.last


def _sample(recording: Recording, ended: threading.Event) -> None:
    """Note the memory in use until the trace ends, and once more then."""
    going = True
    while going:
        going = not ended.wait(_SAMPLE_SECONDS)
        used = sum(driver.memory_stats()["bytes_in_use"] for driver in list(in_use.drivers))
        recording.memory.append((clock(), used))


@contextmanager
def trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> Iterator[None]:
    """Record a trace of the block; arguments and errors as for ``start_trace``."""
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


def _recorded(evaluate: Evaluator) -> Evaluator:
    """An evaluator that also records each eager op; programs record their steps themselves."""

    def process(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        recording = state.recording
        if recording is None or primitive.execute is not None:
            return evaluate(primitive, operands, params)
        start = clock()
        result = evaluate(primitive, operands, params)
        first = result[0] if primitive.multiple_results and result else result
        output = str(getattr(first, "aval", ""))
        recording.add("eager ops", primitive.name, start, {"output": output})
        return result

    return process


# --- the file ------------------------------------------------------------------------------


def _write(session: _Session, recording: Recording) -> Path:
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(recording.wall_start))
    run = session.folder / "plugins" / "profile" / stamp
    for number in range(1, 1000):  # several traces in a second
        try:
            run.mkdir(parents=True)
            break
        except FileExistsError:
            run = run.with_name(f"{stamp}_{number}")
    text = json.dumps(chrome_trace(recording)).encode()
    names = [f"{socket.gethostname()}.trace.json.gz"]
    if session.with_perfetto:
        names.append("perfetto_trace.json.gz")
    for name in names:
        (run / name).write_bytes(gzip.compress(text))
    return run / names[0]


def chrome_trace(recording: Recording) -> dict[str, Any]:
    """A recording in the Chrome trace event format.

    Source: Google, "Trace Event Format" (complete events "X", metadata "M", counters "C"; times in
    us).
    """
    events = list(recording.events)  # other threads may still be adding some
    threads = list(dict.fromkeys(event.thread for event in events))
    number = {
        (thread, row): _ROWS_PER_THREAD * index + tid
        for index, thread in enumerate(threads)
        for tid, row in enumerate(ROWS)
    }
    process = os.getpid()
    shown = [_complete(event, recording, process, number) for event in events]
    used = sorted({(number[event.thread, event.row], event.row) for event in events})
    heads = [_metadata(process, 0, "process_name", {"name": "gpuflow"})]
    for tid, row in used:
        thread = tid // _ROWS_PER_THREAD
        name = row if thread == 0 else f"{row} (thread {thread})"
        heads.append(_metadata(process, tid, "thread_name", {"name": name}))
        heads.append(_metadata(process, tid, "thread_sort_index", {"sort_index": tid}))
    return {
        "displayTimeUnit": "ns",
        "metadata": {"wall_start_seconds": recording.wall_start},
        "traceEvents": [*heads, *shown, *_memory_events(recording, process)],
    }


def _memory_events(recording: Recording, process: int) -> list[dict[str, Any]]:
    """Counters, which viewers draw as a curve."""
    return [
        {
            "ph": "C",
            "pid": process,
            "tid": 0,
            "name": "memory",
            "ts": (moment - recording.start) / 1e3,
            "args": {"bytes": used},
        }
        for moment, used in list(recording.memory)
    ]


def _metadata(process: int, row: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": row, "name": name, "args": args}


def _complete(
    event: Event, recording: Recording, process: int, number: dict[tuple[int, str], int]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": process,
        "tid": number[event.thread, event.row],
        "name": event.name,
        "ts": (event.start - recording.start) / 1e3,
        "dur": event.duration / 1e3,
        "args": {key: _plain(value) for key, value in event.details.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_plain, value))
    return value if isinstance(value, (bool, int, float, str)) else str(value)


# --- JAX's profiler server --------------------------------------------------


def start_server(port: int, requires_backend: bool = True) -> NoReturn:
    """Not there: gpuflow's profiler writes files, without a server.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"[start_server] traces must be taken by the program itself; got port {port}. Fix: with "
        "gpuflow.profiler.trace(folder)."
    )


def stop_server() -> NoReturn:
    """Not there, as ``start_server``.

    Raises:
        ValueError: always: there is no server.
    """
    raise ValueError(
        "[stop_server] a server must be running; got none. Fix: take a trace with "
        "gpuflow.profiler.trace(folder)."
    )


def register_subprocess(pid: int, port: int) -> Callable[[], None]:
    """Not there, as ``start_server``.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"[register_subprocess] a process must take its own trace; got process {pid} at port "
        f"{port}. Fix: with gpuflow.profiler.trace(folder) in that process."
    )
