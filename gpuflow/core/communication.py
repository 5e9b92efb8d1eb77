"""``Communication``: the messages of a collective, for the plan of a program over several memories.

Tests: tests/core/test_communication.py, tests/explaining/test_mesh_explanation.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import Across, Groups, Pairs, product_axis


@record
class Communication:
    """One call of a collective, of all ranks.

    Attributes:
        method: the method of ``Communicator``: "all_reduce", "all_gather", "reduce_scatter",
            "all_to_all", "permute" or "broadcast".
        axes: the user's names of the axes.
        groups: ranks in independent groups, all of one size, which communicate at the same time.
        nbytes: bytes of the operand of one rank.
        pairs: (source, target) positions in a group, of "permute"; (root, root) of "broadcast".
        phase: "begin" or "end" of an asynchronous call, or "whole". The bytes are those of "begin".
    """

    method: str
    axes: tuple[Any, ...]
    groups: Groups
    nbytes: int
    pairs: tuple[tuple[int, int], ...] = field(default=())
    phase: str = "whole"

    @property
    def group_size(self) -> int:
        """The number of ranks in a group."""
        return len(self.groups[0])

    def sent_by_rank(self) -> dict[int, int]:
        """Bytes that each rank sends, with ring algorithms; rounded down."""
        size = self.group_size
        if self.phase == "end":
            multiples = [0.0] * size
        elif self.method == "permute":
            senders = Counter(source for source, target in self.pairs if source != target)
            multiples = [float(senders[position]) for position in range(size)]
        else:
            multiples = [float(_SENT[self.method](size))] * size
        sent = [int(self.nbytes * multiple) for multiple in multiples]
        return {r: n for group in self.groups for r, n in zip(group, sent, strict=True)}

    @property
    def sent(self) -> int:
        """Bytes that the rank that sends most sends."""
        return max(replace(self, groups=self.groups[:1]).sent_by_rank().values())


# From the number of ranks in a ring to what each sends, as a multiple of its operand.
_SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1 if n > 1 else 0,
}


def communicates(method: str, phase: str = "whole") -> Callable[..., Communication | None]:
    """The rule ``Placement.communication`` of a collective.

    Args:
        method, phase: see ``Communication``.
    """

    def rule(avals: Sequence[ShapedArray], params: dict[str, Any]) -> Communication | None:
        names = params.get("axes", params.get("axis_name", ()))
        if not names or not all(isinstance(name, Across) for name in names):
            return None  # devices that share a memory
        axis = names[0] if len(names) == 1 else product_axis(method, tuple(names))
        if axis.groups is None:
            return None  # one process of a group that has no mesh
        groups: Groups = axis.groups
        if params.get("axis_index_groups") is not None:
            parts = params["axis_index_groups"]
            groups = tuple(tuple(g[index] for index in part) for g in groups for part in parts)
        users_names = axis.name if len(names) > 1 else (axis.name,)
        pairs: Pairs = params.get("perm", ())
        return Communication(method, users_names, groups, avals[0].nbytes, tuple(pairs), phase)

    return rule
