"""Names of a checkpoint's files, and which files of a folder a save may delete.

Each save draws a token of 64 random bits, which all of its files have in their names:

    arrays-<token>-<process>.safetensors    the arrays
    tree-<token>.json                       becomes tree.json
    tree-<token>-<process>.json             a process's list of its arrays, for process 0
    failed-<token>.json                     why a process failed, for the others
    saving-<token>-<check>                  the journal: files of this token may be deleted

A name alone does not make a file ours: a user may keep copies. Only files with a journal of their
token in the same folder are deleted, and never those that ``tree.json`` names. A save writes its
journal before its first file, and that of the checkpoint it replaces before ``tree.json``. So a
save that was killed at any point leaves a journal, and the next one deletes its files. A journal is
an empty file, so that it exists completely or not at all; ``check`` is a checksum of the token,
which no other name has by accident.

Tests: tests/checkpointing/test_ownership.py.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from gpuflow.base.private_files import open_regular

TREE = "tree.json"
ARRAYS = re.compile(r"arrays-([0-9a-f]{16})-(?:0|[1-9][0-9]{0,8})\.safetensors")
TOKEN = re.compile(r"[0-9a-f]{16}")
_TOKENED = re.compile(
    rf"{ARRAYS.pattern}|tree-([0-9a-f]{{16}})(?:-[0-9]{{1,9}})?\.(?:json|new)"
    r"|failed-([0-9a-f]{16})\.(?:json|new)"
)
_JOURNAL = re.compile(r"saving-([0-9a-f]{16})-[0-9a-f]{8}")
_MAX_PREFIX = 1000
# However it was indented since.
_BEGINNING = re.compile(rb'\s*\{\s*"format"\s*:\s*"gpuflow checkpoint ')


def arrays_name(token: str, process: int) -> str:
    """The name of a process's file of arrays."""
    return f"arrays-{token}-{process}.safetensors"


def journal_name(token: str) -> str:
    """The name of a token's journal."""
    return f"saving-{token}-{zlib.crc32(f'gpuflow save {token}'.encode()):08x}"


def write_journal(folder: Path, token: str) -> None:
    """Note in the folder that the files of a token may be deleted, unless ``tree.json`` names them.

    Raises:
        OSError: if it cannot be written.
    """
    with suppress(FileExistsError):  # of another process of this save
        (folder / journal_name(token)).touch(exist_ok=False)


def delete_leftovers(
    folder: Path, retained: Collection[str], only: Collection[str] | None = None
) -> bool:
    """Delete the files of tokens that have a journal, and the journals.

    Args:
        folder: of the checkpoint.
        retained: names of files that stay.
        only: the tokens; None means all.

    Returns:
        Whether anything was deleted. A file that cannot be deleted stays.
    """
    names = set(os.listdir(folder))
    tokens = {t: name for t, name in _journals(folder, names) if only is None or t in only}
    deleted, undeletable = False, set()
    for name in names.difference(retained):
        match = _TOKENED.fullmatch(name)
        token = next(filter(None, match.groups())) if match else ""
        if token in tokens and _is_regular(folder / name):
            if _delete(folder / name):
                deleted = True
            else:
                undeletable.add(token)
    for token, name in tokens.items():  # last: a later save deletes the remaining files
        if token not in undeletable:
            deleted |= _delete(folder / name)
    return deleted


def _journals(folder: Path, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Tokens, and the names of their journals."""
    for name in names:
        match = _JOURNAL.fullmatch(name)
        if match and name == journal_name(match[1]) and _is_empty_file(folder / name):
            yield match[1], name


def _is_regular(path: Path) -> bool:
    """Whether there is a regular file, and not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_empty_file(path: Path) -> bool:
    return _is_regular(path) and path.stat().st_size == 0


def _delete(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder's ``tree.json``, or the file that it links to, is of a save's form."""
    with suppress(OSError), open_regular(folder / TREE) as file:
        return _BEGINNING.match(file.read(_MAX_PREFIX)) is not None
    return False


def has_own_tree(folder: Path) -> bool:
    """Whether the folder's ``tree.json`` is a save's file, damaged or not, and no link to one."""
    return _is_regular(folder / TREE) and has_checkpoint(folder)


def has_foreign_tree(folder: Path) -> bool:
    """Whether the folder has something at ``tree.json`` that a save must not replace."""
    return os.path.lexists(folder / TREE) and not has_own_tree(folder)
