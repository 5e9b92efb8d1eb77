"""Dynamic topological order of a DAG whose nodes merge, to keep fused groups acyclic.

Invariant: ranks increase along every edge. So a search for paths between two nodes visits only the
nodes that are ranked between them, and a merge only reorders those. Source: Pearce and Kelly 2006,
"A dynamic topological sort algorithm for directed acyclic graphs".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class GroupGraph:
    """A DAG of nodes 0 to count - 1. Edges lead from smaller to larger nodes before merges."""

    def __init__(self, count: int) -> None:
        self._successors: dict[int, set[int]] = {node: set() for node in range(count)}
        self._predecessors: dict[int, set[int]] = {node: set() for node in range(count)}
        self._rank = list(range(count))

    def add_edge(self, source: int, target: int) -> None:
        """Add an edge; ``source`` must be smaller than ``target``, and nothing merged yet."""
        self._successors[source].add(target)
        self._predecessors[target].add(source)

    def can_merge(self, a: int, b: int) -> bool:
        """Whether merging two nodes leaves the graph acyclic: no path passes through a third."""
        return self._after(*self._sorted(a, b)) is not None

    def merge(self, keep: int, drop: int) -> None:
        """Merge ``drop`` into ``keep``; ``can_merge`` must hold."""
        first, last = self._sorted(keep, drop)
        after, before = self._after(first, last), self._before(first, last)
        assert after is not None
        # Predecessors of the last move before the merged node, successors of the first after it.
        rank_of = self._rank_of
        reordered = [*sorted(before, key=rank_of), keep, drop, *sorted(after, key=rank_of)]
        ranks = sorted(self._rank[node] for node in reordered)
        for node, rank in zip(reordered, ranks, strict=True):
            self._rank[node] = rank
        for edges, back in (
            (self._successors, self._predecessors),
            (self._predecessors, self._successors),
        ):
            for other in edges.pop(drop):
                back[other].discard(drop)
                if other != keep:
                    back[other].add(keep)
                    edges[keep].add(other)

    def order(self) -> Iterator[int]:
        """Nodes in topological order; among ready nodes the smallest comes first."""
        waiting = {node: len(sources) for node, sources in self._predecessors.items()}
        ready = [node for node, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        while ready:
            node = heapq.heappop(ready)
            yield node
            for target in self._successors[node]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    heapq.heappush(ready, target)

    def _rank_of(self, node: int) -> int:
        return self._rank[node]

    def _sorted(self, a: int, b: int) -> tuple[int, int]:
        return (a, b) if self._rank[a] < self._rank[b] else (b, a)

    def _after(self, first: int, last: int) -> set[int] | None:
        """Nodes after ``first`` ranked below ``last``; None if one of them leads to ``last``."""
        limit = self._rank[last]
        seen: set[int] = set()
        stack = [node for node in self._successors[first] if self._rank[node] < limit]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for target in self._successors[node]:
                if target == last:
                    return None
                if self._rank[target] < limit:
                    stack.append(target)
        return seen

    def _before(self, first: int, last: int) -> set[int]:
        """Nodes that lead to ``last`` ranked above ``first``."""
        limit = self._rank[first]
        seen: set[int] = set()
        stack = [node for node in self._predecessors[last] if self._rank[node] > limit]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [n for n in self._predecessors[node] if self._rank[n] > limit]
        return seen
