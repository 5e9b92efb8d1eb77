"""A traced signature of a jitted function: its program, and the calling convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.base.tree_text import Build, builder
from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import result_shardings
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.ref_programs import RefUse, check_once, put_back
from gpuflow.core.refs import Ref, lend, values_of
from gpuflow.core.sharding import Sharding, SingleDeviceSharding
from gpuflow.ops.elementwise.convert import copy
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import default_device, in_use
from gpuflow.runtime.eager import on_common_device
from gpuflow.runtime.execute import Executable, executable_of
from gpuflow.runtime.sharded import ShardedArray, type_key, whole_of


@record(frozen=False)
class Entry:
    """A traced signature: the program, its hidden operands, and the options.

    The program is ``(*consts, *closed-over refs, *arguments) -> (*results, *new values of refs)``.
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    out_tree: tree.TreeDef
    donated: tuple[bool, ...]
    refs: RefUse | None = None
    # Whether the program, or the options of its function, ask for shardings.
    asks: bool = False
    # The seconds that compiling the program took, so far.
    build_seconds: list[float] = field(default_factory=lambda: [0.0])
    _executable: Executable | None = None
    _build: Build | None = None
    _shardings: dict[Any, list[Any] | None] = field(default_factory=dict)
    # The keys of a Form whose value is a Placement of this entry.
    placed_keys: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def hidden(self) -> int:
        """The number of leading operands that are not arguments."""
        return len(self.consts) + (0 if self.refs is None else len(self.refs.closed))

    def operands(self, name: str, leaves: Sequence[Any], runs: bool = False) -> list[Any]:
        """The operands of the program for arguments; ``runs``: for ``executable``."""
        use = self.refs
        if use is None:
            return [*self.consts, *leaves]
        check_once(name, use, leaves)
        inputs = [*use.closed, *leaves]
        if not runs:
            return [*self.consts, *values_of(inputs)]
        lent = [lend(x) if type(x) is Ref else (x, False) for x in inputs]
        values = [value for value, _ in lent]
        donated = self.executable.donated
        for k in use.written:
            if lent[k][1] and len(self.consts) + k in donated:
                values[k] = copy(values[k])  # an earlier reader of the ref may hold its array
        return [*self.consts, *values]

    def run(self, arrays: list[Any], operands: Sequence[Any]) -> Any:
        """The results of a program without refs, for Arrays and their data, which is forgotten."""
        return self.build(self.outputs(self.executable, arrays, operands))

    def outputs(
        self, executable: Executable, arrays: list[Any], operands: Sequence[Any]
    ) -> list[Array]:
        """The outputs of the program as a list of Arrays; see ``run``."""
        if in_use.several:
            device, data = on_common_device("jit", operands, arrays, self.counted(operands))
            if data is not arrays:
                # The caller's list would hold what is donated.
                arrays[:] = data
            del data
        else:
            device = operands[-1].device if operands else default_device()
        return executable.run(arrays, operands, device)

    def counted(self, operands: Sequence[Any]) -> list[Any]:
        """The operands that determine where the program runs: the arguments that it reads."""

        def read() -> list[int]:
            program = self.jaxpr.jaxpr
            atoms = [*program.outvars, *(atom for eqn in program.eqns for atom in eqn.inputs)]
            used = {id(atom) for atom in atoms}
            inputs = enumerate(program.invars)
            return [k for k, var in inputs if k >= len(self.consts) and id(var) in used]

        return [operands[k] for k in self.jaxpr.jaxpr.memo(("counted", len(self.consts)), read)]

    def results(self, leaves: Sequence[Any], outs: list[Any], ran: bool = False) -> list[Any]:
        """Return the results from the outputs of the program; other outputs go into refs."""
        if self.refs is None:
            return outs
        count = self.out_tree.num_leaves
        outs, finals = outs[:count], outs[count:]
        put_back(self.refs, leaves, finals, outs if ran else None)
        return outs

    def shardings(self, operand_shardings: tuple[Sharding | None, ...]) -> list[Any] | None:
        """The shardings of the outputs for those of all operands; None if they are plain."""
        if operand_shardings not in self._shardings:
            shardings = result_shardings(self.jaxpr.jaxpr, operand_shardings)
            self._shardings[operand_shardings] = shardings
        return self._shardings[operand_shardings]

    @property
    def build(self) -> Build:
        """Makes the tree of results from a list of its leaves."""
        if self._build is None:
            self._build = builder(self.out_tree)
        return self._build

    @property
    def executable(self) -> Executable:
        """The compiled program, made at first use: a jit inside another is never compiled.

        It may reuse the memory of the arrays in refs that it writes, unless it may fail: then
        their old values must be preserved.
        """
        if self._executable is None:
            settings, donated = config.trace_context(), list(self.donated)
            may_fail = self.jaxpr.effects or settings.debug_nans or settings.debug_infs
            if self.refs is not None and not may_fail:
                for k in self.refs.written:
                    donated[len(self.consts) + k] = True
            self._executable = executable_of(self.jaxpr, tuple(donated))
            self._executable.build_seconds = self.build_seconds
        return self._executable


@record(eq=False)
class Placement:
    """A traced signature whose operands have certain shardings, all in one memory.

    Attributes:
        entry: the signature.
        executable: its program.
        consts: those of the entry.
        build: makes the tree of results, with their shardings, from the outputs.
    """

    entry: Entry
    executable: Executable
    consts: tuple[Any, ...]
    build: Build

    def run(self, operands: Sequence[Any]) -> tuple[Any] | None:
        """The results in a tuple.

        Args:
            operands: Arrays with and without shardings.

        Returns:
            None: one was deleted, or was put on devices that have to be compared.
        """
        entry, executable = self.entry, self.executable
        if in_use.several and any(type(x) is Array and x.device.is_committed for x in operands):
            return None
        try:
            arrays = [(x.whole if type(x) is ShardedArray else x)._data for x in operands]
        except AttributeError:
            return None
        if in_use.several or executable.donated:
            operands = [*map(whole_of, operands)]
        return (self.build(entry.outputs(executable, arrays, operands)),)


def placement(entry: Entry, shardings: Sequence[Sharding | None]) -> Placement:
    """A Placement whose results have these shardings, which divide them; None for plain ones."""
    made = {
        k: (ShardedArray, sharding, type_key(aval, sharding))
        for k, (aval, sharding) in enumerate(safe_zip(entry.jaxpr.out_avals, shardings))
        if sharding is not None and not isinstance(sharding, SingleDeviceSharding)
    }
    return Placement(entry, entry.executable, entry.consts, builder(entry.out_tree, made))
