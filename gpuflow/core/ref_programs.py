"""Programs that use refs: their values as inputs and outputs. See docs/design/0021-refs.md.

Tests: tests/control/test_refs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.core.jaxpr import Jaxpr
from gpuflow.core.refs import AbstractRef, Cell, Ref, read, write
from gpuflow.core.staging import StagingTrace
from gpuflow.core.trace import current_trace, eval_trace, made_at, thread_state, with_trace


@record(eq=False)
class RefUse:
    """Uses of refs in a recorded program.

    Attributes:
        closed: enclosing refs, with values that are the last constants of the program.
        written: indices, in ``(*closed, *arguments)``, of the refs with new values that are the
            last outputs of the program.
        takes: whether arguments are refs.
    """

    closed: tuple[Ref, ...]
    written: tuple[int, ...]
    takes: bool

    @property
    def outlives_traces(self) -> bool:
        """Whether the program may be cached: it closes over no ref of a traced function."""
        return all(ref._home is eval_trace for ref in self.closed)


def record_program(
    function: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    names: Sequence[str] = (),
    function_name: str = "the function",
) -> tuple[Jaxpr, list[Any], RefUse | None]:
    """``trace_to_jaxpr`` for functions that may use refs.

    Args:
        function: of flat arguments; returns a flat sequence of values.
        avals: of the arguments; for an AbstractRef the function gets a Ref.

    Returns:
        The jaxpr; the values of its constvars except those of enclosing refs, which are the last;
        and its uses of refs, None if there are none.
    """
    return with_trace(
        lambda: StagingTrace(thread_state.trace, function_name),
        lambda trace: _record(trace, function, avals, names),
    )


def _record(
    trace: StagingTrace,
    function: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    names: Sequence[str],
) -> tuple[Jaxpr, list[Any], RefUse | None]:
    cells: dict[Ref, Cell] = {}
    trace.ref_cells = cells
    inner = [aval.inner_aval if type(aval) is AbstractRef else aval for aval in avals]
    arguments = [
        trace.new_argument(aval, name) for aval, name in safe_zip(inner, names or [""] * len(inner))
    ]
    operands = [
        Ref(argument, trace, True) if type(aval) is AbstractRef else argument
        for argument, aval in safe_zip(arguments, avals)
    ]
    try:
        with current_trace(trace), made_at(None):
            outs = function(*operands)
            ref_arguments = [(k, ref) for k, ref in enumerate(operands) if type(ref) is Ref]
            if not cells and not ref_arguments:
                return *trace.finish(arguments, outs), None
            count = len(cells)
            changes = [(k, cell) for k, cell in enumerate(cells.values())]
            finals = [(k, c._value) for k, c in changes if c._value is not c.argument]
            finals += [
                (count + k, r._value) for k, r in ref_arguments if r._value is not arguments[k]
            ]
            inputs = [cell.argument for cell in cells.values()]
            jaxpr, consts = trace.finish([*inputs, *arguments], [*outs, *[v for _, v in finals]])
    finally:
        trace.finished = True
        trace.ref_cells = None  # which hold tracers
    use = RefUse(tuple(cells), tuple(k for k, _ in finals), bool(ref_arguments))
    return _with_leading_consts(jaxpr, count), consts, use


def _with_leading_consts(jaxpr: Jaxpr, count: int) -> Jaxpr:
    """The jaxpr whose first inputs are constvars."""
    return jaxpr.replace(
        constvars=(*jaxpr.constvars, *jaxpr.invars[:count]),
        invars=jaxpr.invars[count:],
        argument_names=jaxpr.argument_names[count:],
    )


def check_once(op: str, use: RefUse, leaves: Sequence[Any]) -> None:
    """Raise ValueError if a program would get a ref twice."""
    seen = set(use.closed)
    for leaf in leaves:
        if type(leaf) is not Ref:
            continue
        if leaf in seen:
            twice = "closed over as well" if leaf in use.closed else "passed twice"
            raise ValueError(
                f"[{op}] a ref must be passed once; got {leaf.aval}, which is {twice}. Fix: pass "
                "it as one argument, and use that."
            )
        seen.add(leaf)


def values_of_mapped(leaves: Sequence[Any], refs: Mapping[int, Ref]) -> list[Any]:
    """The leaves, with some refs replaced by their arrays.

    Raises:
        ValueError: if a ref is repeated.
    """
    check_once("vmap", RefUse((), (), True), leaves)
    return [read(x) if k in refs else x for k, x in enumerate(leaves)]


def put_back(
    use: RefUse, leaves: Sequence[Any], finals: Sequence[Any], results: Sequence[Any] | None = None
) -> None:
    """Write the last outputs of a program to its refs.

    Args:
        use: its uses of refs.
        leaves: its arguments.
        finals: the outputs.
        results: of a program that ran, its other outputs; other arrays belong to the refs alone.
    """
    refs = [*use.closed, *leaves]
    ids = [id(value) for value in (*finals, *(results or ()))]
    for k, value in safe_zip(use.written, finals):
        write(refs[k], value, results is None or ids.count(id(value)) > 1)
