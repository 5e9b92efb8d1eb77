"""Tracebacks show the user's frames: this package's own are left out where they are shown.

Calls have no additional frames or handlers: exceptions are as they were raised. The printers of
tracebacks (Python itself, IPython, pytest) are asked to leave frames out. See
docs/design/0041-tracebacks.md.

Tests: tests/base/test_tracebacks.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.other_names import note
from gpuflow.base.util import PACKAGE_FOLDER

_OWN = (PACKAGE_FOLDER, "<gpuflow ")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (os.path.join(_STANDARD, "site-packages"), os.path.join(_STANDARD, "dist-packages"))
_NOTE = "Frames of gpuflow are left out: GPUFLOW_TRACEBACK_FILTERING=off shows them.\n"

excluded: list[str] = []  # files of libraries whose frames are left out as well
_marked: set[str] = {""}  # names of modules; with "": there are more to come at once


def exclude(path: str) -> None:
    """Leave out the frames of a file, or of all files below a folder, as well."""
    excluded.append(path)


def is_own(name: str) -> bool:
    """Whether a file is of this package, or was excluded."""
    return name.startswith((*_OWN, *excluded))


def filtered_traceback(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without own frames, and without those of Python's library that they called.

    A traceback without frames of this package, or with nothing else, is returned unchanged. The
    frames that remain are new objects for the same frames: the old traceback still has all of it.
    """
    user_entries: list[TracebackType] = []
    below_own, hides = True, False  # what is above the first frame of a user started the program
    entry = trace
    while entry is not None:
        name = entry.tb_frame.f_code.co_filename
        if is_own(name):
            below_own = hides = True
        elif not (below_own and _is_of_python(name)):
            below_own = False
            user_entries.append(entry)
        entry = entry.tb_next
    if not hides or not user_entries:
        return trace
    filtered = None
    for entry in reversed(user_entries):
        filtered = TracebackType(filtered, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return filtered


def _is_of_python(name: str) -> bool:
    if name.startswith("<frozen "):
        return True
    return name.startswith(_STANDARD) and not name.startswith(_INSTALLED)


@contextmanager
def without_own_frames(error: BaseException) -> Iterator[bool]:
    """Inside the block an exception, and its causes, have their users' frames as tracebacks.

    It also has a note, if there is information that Python did not give. The block receives whether
    anything was left out.
    """
    whole = [(one, one.__traceback__) for one in _chain(error)]
    more, notes = note(error), getattr(error, "__notes__", None)
    if more is not None:
        error.__notes__ = [*(notes or ()), more]
    shown = [filtered_traceback(trace) for _, trace in whole]
    for (one, _), filtered in zip(whole, shown, strict=True):
        one.__traceback__ = filtered
    try:
        yield any(filtered is not trace for (_, trace), filtered in zip(whole, shown, strict=True))
    finally:
        for one, trace in whole:
            one.__traceback__ = trace
        if notes is not None:
            error.__notes__ = notes
        elif more is not None:
            del error.__notes__


def _chain(error: BaseException) -> list[BaseException]:
    """An exception with its causes, contexts and the members of groups."""
    seen: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen[id(one)] = one
            members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            waiting += [one.__cause__, one.__context__, *members]
    return list(seen.values())


def is_hidden(*_: Any) -> bool:
    """Return whether pytest hides a frame of this package, by the mark in its module."""
    mark_modules()  # it asks from the outermost frame on: those below may be of later modules
    return config.switches().traceback_filtering != "off"


def mark_modules() -> None:
    """Mark this package's modules for pytest, those that were imported meanwhile as well."""
    for name in () if "" in _marked else list(sys.modules):
        if name.startswith("gpuflow") and name not in _marked:
            _marked.add(name)
            module = sys.modules[name]
            if (getattr(module, "__file__", None) or "").startswith(PACKAGE_FOLDER):
                vars(module)["__tracebackhide__"] = is_hidden


def install() -> None:
    """Let Python, IPython and pytest leave own frames out."""
    sys.excepthook = _excepthook(sys.excepthook)
    threading.excepthook = _thread_hook(threading.excepthook)
    _marked.discard("")
    mark_modules()
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if hasattr(ipython, "get_ipython") else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((Exception,), _show_in_ipython)


def _leaves_out() -> bool:
    return config.switches().traceback_filtering not in ("off", "tracebackhide")


def _write_note(hides: bool) -> None:
    if hides and config.switches().traceback_filtering != "quiet_remove_frames":
        sys.stderr.write(_NOTE)


def _excepthook(before: Any) -> Any:
    def excepthook(kind: Any, error: BaseException, trace: TracebackType | None) -> None:
        if not _leaves_out():
            before(kind, error, trace)
            return
        with without_own_frames(error) as hides:
            _write_note(hides)
            before(kind, error, error.__traceback__)

    return excepthook


def _thread_hook(before: Any) -> Any:
    def excepthook(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if error is None or not _leaves_out():
            before(args)
            return
        with without_own_frames(error) as hides:
            _write_note(hides)
            fields = (args.exc_type, error, error.__traceback__, args.thread)
            before(threading.ExceptHookArgs(fields))

    return excepthook


def _show_in_ipython(
    shell: Any, kind: Any, error: BaseException, trace: Any, tb_offset: int | None = None
) -> None:
    if is_hidden():
        with without_own_frames(error) as hides:
            shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)
            _write_note(hides and _leaves_out())
    else:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
