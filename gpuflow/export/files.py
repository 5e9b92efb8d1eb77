"""The container of an exported function: a head, a JSON header, and sections of bytes.

    magic, 16 bytes | total length, 8 | SHA-256 of the following bytes, 32 | length of header, 8
    header: {"format", "gpuflow", "content", "sections": {name: [offset, length]}}
    sections

Numbers are little-endian.

Tests: tests/test_export_files.py, tests/test_export_forgeries.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gpuflow.base.errors import ExportError, check
from gpuflow.base.private_files import parse_json
from gpuflow.export.schema import check_fields, check_range, expect
from gpuflow.version import __version__

FORMAT = 1
_MAGIC = b"gpuflow export\n\0"
_HEAD = len(_MAGIC) + 8 + 32 + 8


def packed(content: dict[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """The bytes of a container.

    Raises:
        ExportError: if trees are nested more deeply than can be read.
    """
    ranges, offset = {}, 0
    for name, data in sections.items():
        ranges[name] = [offset, len(data)]
        offset += len(data)
    head = {"format": FORMAT, "gpuflow": __version__, "content": content, "sections": ranges}
    header = json.dumps(head, separators=(",", ":")).encode()
    try:
        parse_json(header)
    except ValueError as error:
        refused = _refused("must fit its format", str(error), "flatter trees of arguments")
        raise ExportError(refused) from None
    body = len(header).to_bytes(8, "little") + header + b"".join(sections.values())
    whole = len(_MAGIC) + 8 + 32 + len(body)
    return b"".join([_MAGIC, whole.to_bytes(8, "little"), hashlib.sha256(body).digest(), body])


class Container:
    """The content of a container.

    Attributes:
        content: the JSON that was packed.
        version: of gpuflow, which wrote it.

    Raises:
        ExportError: if the bytes are not a complete container of this format.
    """

    def __init__(self, blob: bytes) -> None:
        magic = bytes(blob[: len(_MAGIC)])
        check(
            magic == _MAGIC,
            lambda: _refused(
                "must be what Exported.serialize gave",
                f"{len(blob)} bytes that begin with "
                f"{magic!r}; jax.export's own files hold StableHLO, which is not read here",
                "export.deserialize(exported.serialize())",
            ),
            ExportError,
        )
        whole = int.from_bytes(blob[16:24], "little")
        check(
            len(blob) >= _HEAD and len(blob) == whole,
            lambda: _refused(
                "must be whole",
                f"{len(blob)} bytes of {whole}",
                "copy or write it again",
            ),
            ExportError,
        )
        digest, body = bytes(blob[24:56]), memoryview(blob)[56:]
        check(
            hashlib.sha256(body).digest() == digest,
            lambda: _refused(
                "must be as it was written",
                "other bytes, of which the checksum differs",
                "copy or write it again",
            ),
            ExportError,
        )
        length = int.from_bytes(body[:8], "little")
        try:
            head = parse_json(bytes(body[8 : 8 + length]))
            check_fields(head, {"format", "gpuflow", "content", "sections"}, "the header")
            self.version, found = str(head["gpuflow"])[:40], head["format"]
            self._sections, self.content = head["sections"], head["content"]
            self._data = body[8 + length :]
            expect(type(self._sections) is dict, "the sections", self._sections)
            for name, byte_range in self._sections.items():
                check_range(byte_range, len(self._data), f"the section {name[:40]!r}")
        except ValueError as error:
            refused = _refused("must have a header", str(error), "write it again")
            raise ExportError(refused) from None
        check(
            found == FORMAT,
            lambda: _refused(
                f"must be of format {FORMAT}, which gpuflow {__version__} reads",
                f"format {found!r}, written by gpuflow {self.version}",
                "export again with this version, or install that one",
            ),
            ExportError,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the sections."""
        return {name: length for name, (_, length) in self._sections.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def section(self, name: str) -> memoryview:
        """The bytes of a section."""
        offset, length = self._sections[name]
        return self._data[offset : offset + length]


def _refused(must: str, got: str, fix: str) -> str:
    return f"[export] an exported function {must}; got {got}. Fix: {fix}."
