"""Dynamic topological order of a DAG whose nodes merge, to keep fused groups acyclic.

Invariant: ranks increase along every edge. So a search for paths between two nodes visits only the
nodes that are ranked between them, and a merge only reorders those. Source: Pearce and Kelly 2006,
"A dynamic topological sort algorithm for directed acyclic graphs".

Tests: tests/compiler/test_group_graph.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class GroupGraph:
    """A DAG of nodes 0 to count - 1. Edges lead from smaller to larger nodes before merges.

    All edges must be added before the first merge. A node that was merged into another one must not
    be used afterwards.
    """

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
        return self._descendants_before(*self._by_rank(a, b)) is not None

    def merge(self, keep: int, drop: int) -> None:
        """Merge ``drop`` into ``keep``, two different nodes for which ``can_merge`` holds."""
        first, last = self._by_rank(keep, drop)
        after, before = self._descendants_before(first, last), self._ancestors_after(first, last)
        assert after is not None
        # Predecessors of the last move before the merged node, successors of the first after it.
        rank_of = self._rank_of
        reordered = [*sorted(before, key=rank_of), keep, drop, *sorted(after, key=rank_of)]
        ranks = sorted(self._rank[node] for node in reordered)
        for node, rank in zip(reordered, ranks, strict=True):
            self._rank[node] = rank
        for edges, reverse_edges in (
            (self._successors, self._predecessors),
            (self._predecessors, self._successors),
        ):
            for other in edges.pop(drop):
                reverse_edges[other].discard(drop)
                if other != keep:
                    reverse_edges[other].add(keep)
                    edges[keep].add(other)

    def order(self) -> Iterator[int]:
        """Nodes in topological order; among ready nodes the smallest comes first."""
        in_degree = {node: len(sources) for node, sources in self._predecessors.items()}
        ready = [node for node, degree in in_degree.items() if degree == 0]
        heapq.heapify(ready)
        while ready:
            node = heapq.heappop(ready)
            yield node
            for target in self._successors[node]:
                in_degree[target] -= 1
                if in_degree[target] == 0:
                    heapq.heappush(ready, target)

    def _rank_of(self, node: int) -> int:
        return self._rank[node]

    def _by_rank(self, a: int, b: int) -> tuple[int, int]:
        return (a, b) if self._rank[a] < self._rank[b] else (b, a)

    def _descendants_before(self, first: int, last: int) -> set[int] | None:
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

    def _ancestors_after(self, first: int, last: int) -> set[int]:
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
