"""A traced signature of a jitted function: its program, and the calling convention.

An Entry runs the program for plain Arrays. A Placement runs it for Arrays with shardings whose
shards are all in one memory.

Tests: tests/parallel/test_placed_calls.py, tests/control/test_jit_calls.py.
"""

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

    Attributes:
        jaxpr: the program, without constants.
        consts: captured values, the first operands.
        out_tree: structure of the results.
        donated: a flag for each operand.
        refs: the refs that the function reads and writes; None if there are none.
        asks: whether the program, or an option of ``jit``, requests shardings.
        build_seconds: the time spent compiling so far, in a list that the Executable updates.
        placed_keys: keys in Forms whose value is a Placement of this entry.
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    out_tree: tree.TreeDef
    donated: tuple[bool, ...]
    refs: RefUse | None = None
    asks: bool = False
    build_seconds: list[float] = field(default_factory=lambda: [0.0])
    _executable: Executable | None = None
    _build: Build | None = None
    _shardings: dict[Any, list[Any] | None] = field(default_factory=dict)
    placed_keys: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def hidden(self) -> int:
        """The number of leading operands that are not arguments."""
        return len(self.consts) + (0 if self.refs is None else len(self.refs.closed))

    def operands(self, name: str, leaves: Sequence[Any], runs: bool = False) -> list[Any]:
        """The operands of the program for the leaves of the arguments.

        Args:
            name: the op in error messages.
            leaves: the leaves of the dynamic arguments; they may be refs.
            runs: whether ``executable`` gets the operands. It may reuse the arrays of refs.
        """
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
        """Run a program without refs, and return the tree of results.

        Args:
            arrays: the data of each operand, in a list that the callee may modify.
            operands: the Arrays, of which donated ones are deleted.
        """
        return self.build(self.outputs(self.executable, arrays, operands))

    def outputs(
        self, executable: Executable, arrays: list[Any], operands: Sequence[Any]
    ) -> list[Array]:
        """The outputs of the program as a list of Arrays; see ``run``."""
        if in_use.several:
            device, data = on_common_device("jit", operands, arrays, self.counted(operands))
            if data is not arrays:
                # The caller's list must not keep donated arrays alive.
                arrays[:] = data
            del data
        else:
            device = operands[-1].device if operands else default_device()
        return executable.run(arrays, operands, device)

    def counted(self, operands: Sequence[Any]) -> list[Any]:
        """The operands that determine the device of the call: arguments that the program reads."""

        def read() -> list[int]:
            program = self.jaxpr.jaxpr
            atoms = [*program.outvars, *(atom for eqn in program.eqns for atom in eqn.inputs)]
            used = {id(atom) for atom in atoms}
            inputs = enumerate(program.invars)
            return [k for k, var in inputs if k >= len(self.consts) and id(var) in used]

        return [operands[k] for k in self.jaxpr.jaxpr.memo(("counted", len(self.consts)), read)]

    def results(self, leaves: Sequence[Any], outs: list[Any], ran: bool = False) -> list[Any]:
        """Return the results among the outputs of the program, and store the others in refs."""
        if self.refs is None:
            return outs
        count = self.out_tree.num_leaves
        outs, finals = outs[:count], outs[count:]
        put_back(self.refs, leaves, finals, outs if ran else None)
        return outs

    def shardings(self, operand_shardings: tuple[Sharding | None, ...]) -> list[Any] | None:
        """Propagate shardings from all operands to the outputs; None if no output has one."""
        if operand_shardings not in self._shardings:
            shardings = result_shardings(self.jaxpr.jaxpr, operand_shardings)
            self._shardings[operand_shardings] = shardings
        return self._shardings[operand_shardings]

    @property
    def build(self) -> Build:
        """A function from a list of leaves to the tree of results."""
        if self._build is None:
            self._build = builder(self.out_tree)
        return self._build

    @property
    def executable(self) -> Executable:
        """The compiled program, created at first use: a jit inside another is never compiled.

        The program may write into the arrays of refs that it updates. If it may fail, it must
        preserve the old values, so these arrays are not donated.
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
    """A traced signature for operands of certain shardings, all in one memory.

    Attributes:
        entry: the traced signature.
        executable: the compiled program of the entry.
        consts: captured values, the first operands.
        build: from the outputs to the tree of results, with their shardings.
    """

    entry: Entry
    executable: Executable
    consts: tuple[Any, ...]
    build: Build

    def run(self, operands: Sequence[Any]) -> tuple[Any] | None:
        """Run the program, and return a tuple whose only element is the tree of results.

        Args:
            operands: Arrays with and without shardings.

        Returns:
            None if an operand is deleted, or is committed to a device: the slow path must then
            check that all devices agree.
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
    """A Placement whose results have these shardings; None for a plain Array.

    The shardings must divide the shapes of the results.
    """
    constructors = {
        k: (ShardedArray, sharding, type_key(aval, sharding))
        for k, (aval, sharding) in enumerate(safe_zip(entry.jaxpr.out_avals, shardings))
        if sharding is not None and not isinstance(sharding, SingleDeviceSharding)
    }
    return Placement(entry, entry.executable, entry.consts, builder(entry.out_tree, constructors))
