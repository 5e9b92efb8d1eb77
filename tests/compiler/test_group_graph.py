"""The graph of groups against a search of all paths."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuflow.compiler.fusion.group_graph import GroupGraph


def reaches(edges, start, goal):
    """Whether a path of two edges or more leads from start to goal."""
    stack, seen = [b for a, b in edges if a == start and b != goal], set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [b for a, b in edges if a == node]
    return goal in seen


pairs = st.tuples(st.integers(0, 14), st.integers(0, 14))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(pairs, max_size=40), st.lists(pairs, max_size=40))
def test_merges_keep_the_graph_acyclic_and_ordered(edges, merges):
    graph = GroupGraph(15)
    edges = {(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]}
    for source, target in edges:
        graph.add_edge(source, target)
    name = list(range(15))
    for a, b in merges:
        a, b = sorted((name[a], name[b]))
        if a == b:
            continue
        allowed = not reaches(edges, a, b) and not reaches(edges, b, a)
        assert graph.can_merge(a, b) == allowed
        if allowed:
            graph.merge(a, b)
            name = [a if node == b else node for node in name]
            edges = {(name[s], name[t]) for s, t in edges} - {(a, a)}
        order = list(graph.order())
        assert sorted(order) == sorted(set(name))
        assert all(order.index(s) < order.index(t) for s, t in edges)
