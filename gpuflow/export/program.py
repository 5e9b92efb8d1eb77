"""The computation of an exported function: records of a program, constants, and conditions.

Tests: tests/test_export_files.py, tests/test_export_forgeries.py.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.cached import cached_property
from gpuflow.base.config import config
from gpuflow.base.errors import ExportError, check
from gpuflow.base.private_files import parse_json
from gpuflow.base.records import record
from gpuflow.control.jit import jit_p
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.dtype_names import dtype_of, name_of
from gpuflow.core.jaxpr import ClosedJaxpr, check_jaxpr
from gpuflow.export.dimensions import Sizes, symbols_of
from gpuflow.export.files import Container
from gpuflow.export.records import Reader
from gpuflow.export.schema import check_header, check_records, check_structure, expect
from gpuflow.export.shapes import is_symbolic_dim, solved, type_at, type_with
from gpuflow.export.size_inference import Sized, sizes_to_trace
from gpuflow.export.texts import SymbolicScope, parsed
from gpuflow.export.trees import structure_from
from gpuflow.runtime.array import from_numpy
from gpuflow.version import __version__

_MAX_RECORDS = 1 << 30  # bytes
# Settings that affect how the compiler and the ops interpret a program.
_SETTINGS = ("enable_x64", "default_matmul_precision", "excess_precision", "atomic_sums")


@record(eq=False)
class Program:
    """A program for the sizes that its symbols may have.

    Attributes:
        name: name of the function.
        in_avals, out_avals: types of the leaves, with symbolic sizes.
        in_tree, out_tree: their structures, as records: their classes are looked up when needed.
        records: ``{"programs", "consts"}``: the last program is the function's, which takes the
            constants first.
        arrays: the arrays of the records, with their types, and whether they were NumPy's.
        donated: positions of donated inputs.
        constraints: on the symbols.
        settings: the settings on which the meaning of the program depends.
        version: of gpuflow, which wrote it.
    """

    name: str
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    in_tree: Any
    out_tree: Any
    records: Any
    arrays: tuple[tuple[np.ndarray, ShapedArray, bool], ...]
    donated: tuple[int, ...]
    constraints: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    version: str = __version__
    _programs: dict[tuple[Any, ...], tuple[ClosedJaxpr, list[Any]]] = field(default_factory=dict)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The names of unknown sizes, in the order of the arguments."""
        sizes = [size for aval in self.in_avals for size in aval.shape if is_symbolic_dim(size)]
        return tuple(dict.fromkeys(s for size in sizes for s in sorted(symbols_of(size))))

    @cached_property
    def scope(self) -> SymbolicScope:
        """The conditions on them."""
        return SymbolicScope(self.constraints)

    @cached_property
    def _sized(self) -> Sized:
        return Sized(self.records, self.scope)

    @cached_property
    def _values(self) -> list[Any]:
        """The constants: Arrays, and NumPy's as they were."""
        return [x if is_host else from_numpy(x, aval) for x, aval, is_host in self.arrays]

    def sizes_of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Infer the values of the symbols from the shapes of arguments.

        Raises:
            ExportError: if they cannot be inferred, are below 1, or break a condition.
        """
        if not self.symbols:
            return {}
        sizes = solved(self.in_avals, shapes)
        self.check_sizes(sizes)
        return sizes

    def check_sizes(self, sizes: Sizes) -> None:
        """Raise ExportError for a size below 1, or one that breaks a condition."""
        got = ", ".join(f"{name} = {number}" for name, number in sizes.items())
        for name, number in sizes.items():
            self._check_condition(number >= 1, f"{name} >= 1", got)
        for one in self.scope.constraints:
            self._check_condition(one.holds(sizes), one.text, got)

    def _check_condition(self, holds: bool, condition: str, got: str) -> None:
        check(
            holds,
            lambda: (
                f"[export] sizes of arguments of {self.name} must satisfy {condition}; got {got}. "
                "Fix: "
                "other sizes, or export it for these."
            ),
            ExportError,
        )

    def at(self, sizes: Sizes) -> ClosedJaxpr:
        """The program for concrete sizes: ``(*constants, *arguments) -> results``.

        Raises:
            ExportError: if the records are not a program of this version of gpuflow.
        """
        return self._cached(sizes)[0]

    def consts_at(self, sizes: Sizes) -> list[Any]:
        """The constants, its leading arguments."""
        return self._cached(sizes)[1]

    def _cached(self, sizes: Sizes) -> tuple[ClosedJaxpr, list[Any]]:
        key = tuple(sizes[symbol] for symbol in self.symbols)
        if key not in self._programs:
            self._programs[key] = self.fresh(sizes)
        return self._programs[key]

    def fresh(self, sizes: Sizes) -> tuple[ClosedJaxpr, list[Any]]:
        """Build the program and its constants again, without compiled kernels."""
        with self.configured():
            try:
                records = self._sized.at(sizes)
                check_records(records)
                reader = Reader(records["programs"], self._values)
                program = reader.program(len(records["programs"]) - 1)
                consts = [reader.value(one) for one in records["consts"]]
                check_jaxpr(program.jaxpr)
                expected = [aval_of(const) for const in consts]
                expected += [type_at(aval, sizes) for aval in self.in_avals]
                results = [type_at(aval, sizes) for aval in self.out_avals]
            except Exception as error:  # of any rule: records may be forged, or of other ops
                raise ExportError(
                    f"[export] the program of {self.name} must be readable by gpuflow "
                    f"{__version__}; got a program of gpuflow {self.version}, with the error: "
                    f"{error}. Fix: export again with this version, or install that one."
                ) from error
        check(
            program.in_avals == expected,
            lambda: (
                f"[export] the program of {self.name} must take {expected}; got one that takes "
                f"{program.in_avals}. Fix: export again."
            ),
            ExportError,
        )
        check(
            program.out_avals == results,
            lambda: (
                f"[export] the program of {self.name} must give {results}; got one that gives "
                f"{program.out_avals}. Fix: export again."
            ),
            ExportError,
        )
        return program, consts

    def check(self) -> None:
        """Check that it is a program of this version, if sizes are symbolic for two of them.

        Raises:
            ExportError: if it is not.
        """
        if not self.symbols:
            self._cached({})
            return
        for sizes in sizes_to_trace(self.symbols, self.scope)[:2]:
            self.fresh(sizes)

    def bound(self, sizes: Sizes, leaves: Sequence[Any]) -> list[Any]:
        """The results under the current trace."""
        program, consts = self._cached(sizes)
        flags = (False,) * len(program.in_avals)
        return jit_p.bind(
            *consts, *leaves, jaxpr=program, name=self.name, donated=flags, inline=False
        )

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Apply the settings of the exporting process inside the block."""
        now = config.trace_context()
        with ExitStack() as stack:
            for name, value in self.settings.items():
                if getattr(now, name) != value:
                    stack.enter_context(config.override(name, value))
            yield


def settings_now() -> dict[str, Any]:
    """The current settings, to be exported with a program."""
    return {name: getattr(config.trace_context(), name) for name in _SETTINGS}


# --- in files ------------------------------------------------------------------------------


def program_record(program: Program) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A program as JSON, and the sections that it refers to."""
    table, data, offset = [], [], 0
    for value, aval, is_host in program.arrays:
        taken = b"" if aval.dtype == dtypes.float0 else np.ascontiguousarray(value).tobytes()
        table.append([*_type_record(aval), is_host, offset, len(taken)])
        data.append(taken)
        offset += len(taken)
    content = {
        "name": program.name,
        "in": [_type_record(aval) for aval in program.in_avals],
        "out": [_type_record(aval) for aval in program.out_avals],
        "trees": [program.in_tree, program.out_tree],
        "arrays": table,
        "donated": list(program.donated),
        "constraints": list(program.constraints),
        "settings": program.settings,
    }
    records = zlib.compress(json.dumps(program.records, separators=(",", ":")).encode(), 6)
    return content, {"program": records, "arrays": b"".join(data)}


def _type_record(aval: ShapedArray) -> list[Any]:
    shape = [size if isinstance(size, int) else str(size) for size in aval.shape]
    return [name_of(aval.dtype), shape, aval.weak_type]


def program_from(container: Container) -> Program:
    """The program of a file.

    Raises:
        ExportError: if it is not a program of this version.
    """
    content = container.content
    try:
        check_header(content, container.sizes)
        scope = SymbolicScope(content["constraints"])

        def type_of(record: list[Any]) -> ShapedArray:
            dtype, shape, weak = record
            sizes = [size if isinstance(size, int) else parsed(size, scope) for size in shape]
            return type_with(sizes, dtype_of(dtype), weak)

        data = container.section("arrays")
        arrays = []
        for dtype, shape, weak, is_host, offset, length in content["arrays"]:
            aval = type_of([dtype, shape, weak])
            arrays.append((_array(data[offset : offset + length], aval), aval, is_host))
        records = parse_json(_decompressed(container.section("program")))
        in_tree, out_tree = content["trees"]
        for structure, side in ((in_tree, "in"), (out_tree, "out")):
            expect(check_structure(structure) == len(content[side]), "a structure", structure)
        settings = content["settings"].items()
        program = Program(
            name=content["name"],
            in_avals=tuple(map(type_of, content["in"])),
            out_avals=tuple(map(type_of, content["out"])),
            in_tree=in_tree,
            out_tree=out_tree,
            records=records,
            arrays=tuple(arrays),
            donated=tuple(content["donated"]),
            constraints=tuple(content["constraints"]),
            settings={name: value for name, value in settings if name in _SETTINGS},
            version=container.version,
        )
        program.check()
        return program
    except ExportError:
        raise
    except Exception as error:  # the content may be forged, or of another version
        raise ExportError(
            f"[export] an exported function must be readable by gpuflow {__version__}; got a file "
            f"of gpuflow {container.version}, with the error: {error}. Fix: export again."
        ) from error


def _decompressed(data: memoryview) -> bytes:
    """Decompress a section, up to a size limit."""
    stream = zlib.decompressobj()
    text = stream.decompress(data, _MAX_RECORDS)
    expect(stream.eof and not stream.unused_data, "the program's section", len(data))
    return text


def _array(data: memoryview, aval: ShapedArray) -> np.ndarray:
    dtype = storage_dtype(aval.dtype)
    if aval.dtype == dtypes.float0:
        return np.zeros(aval.shape, dtype)
    return np.frombuffer(data, dtype).reshape(aval.shape)


def trees_of(program: Program) -> tuple[Any, Any]:
    """The structures of arguments and results.

    Raises:
        ExportError: a class that this process has not registered.
    """
    return structure_from(program.in_tree), structure_from(program.out_tree)
