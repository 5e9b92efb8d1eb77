"""Functions with custom sharding rules.

If such a function is called outside of jit on arrays on a mesh, its rules determine how arguments
are sharded, and each device computes its shard. On one device, under jit and other transformations,
it is the function itself: programs shard its operations.

Tests: tests/parallel/test_custom_partitioning.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.api.programs import ShapeDtypeStruct, eval_shape
from gpuflow.base.errors import check
from gpuflow.core.aval import HasAval, aval_of
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec
from gpuflow.core.trace import Tracer
from gpuflow.experimental.sharding_rules import BATCHING as BATCHING
from gpuflow.experimental.sharding_rules import ArrayMapping as ArrayMapping
from gpuflow.experimental.sharding_rules import CompoundFactor as CompoundFactor
from gpuflow.experimental.sharding_rules import SdyShardingRule as SdyShardingRule
from gpuflow.experimental.sharding_rules import parse_rule
from gpuflow.parallel.mapping.shard_map_api import shard_map
from gpuflow.tree_util import tree_leaves, tree_map


class custom_partitioning:
    """Function with custom rules for sharded arrays.

    Args:
        fun: a function of whole arrays, or pytrees of them.
        static_argnums: indices of arguments that are not arrays.

    Example:
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow.experimental.custom_partitioning import custom_partitioning
        >>> @custom_partitioning
        ... def double(x):
        ...     return 2 * x
        >>> def partition(mesh, arguments, result):
        ...     return mesh, lambda x: 2 * x, result.sharding, (arguments[0].sharding,)
        >>> _ = double.def_partition(partition, sharding_rule="i -> i")
        >>> double(jnp.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, fun: Callable[..., Any], static_argnums: Sequence[int] = ()) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.static_argnums = tuple(static_argnums)
        self.partition: Callable[..., Any] | None = None
        self.infer_sharding_from_operands: Callable[..., Any] | None = None
        self.propagate_user_sharding: Callable[..., Any] | None = None
        self.sharding_rule: Any = None

    def def_partition(
        self,
        partition: Callable[..., Any],
        infer_sharding_from_operands: Callable[..., Any] | None = None,
        propagate_user_sharding: Callable[..., Any] | None = None,
        decode_shardings: bool = True,
        sharding_rule: Any = None,
        *,
        reduction_factors: tuple[str, ...] = (),
        need_replication_factors: tuple[str, ...] = (),
        permutation_factors: tuple[str, ...] = (),
        **factor_sizes: int,
    ) -> Callable[..., Any]:
        """Set the rules of sharding.

        Args:
            partition: ``(*static, mesh, arguments, result) -> (mesh, function, result shardings,
                argument shardings)``. Arguments and result are trees of ShapeDtypeStructs with
                shardings. The returned function computes one device's shard, and its collectives
                use axes of the mesh; the shardings are those of its results and arguments.
            infer_sharding_from_operands: ``(*static, mesh, arguments, result) -> shardings`` of the
                result; if it is omitted, ``sharding_rule`` determines them.
            propagate_user_sharding, decode_shardings: accepted; no effect.
            sharding_rule: a SdyShardingRule, such a rule as text ("...i, i j -> ...j"), or a
                function ``(*static, mesh, arguments, result)`` that returns one of them.
            reduction_factors, need_replication_factors, permutation_factors: factors of a text rule
                that results lack, or that must not be sharded.
            factor_sizes: sizes of factors that only occur in compound factors.

        Returns:
            ``partition``.

        Raises:
            ValueError: if a rule is invalid.

        Example:
            As for the class.
        """
        del decode_shardings
        kinds = {
            "reduction_factors": reduction_factors,
            "need_replication_factors": need_replication_factors,
            "permutation_factors": permutation_factors,
        }
        if isinstance(sharding_rule, str):
            sharding_rule = parse_rule(sharding_rule, **kinds, **factor_sizes)
        else:
            given = {name: value for name, value in (kinds | factor_sizes).items() if value}
            check(
                not given,
                lambda: (
                    "[custom_partitioning] factors must come with a rule as text; got "
                    f"{sorted(given)}. Fix: give them to SdyShardingRule."
                ),
                ValueError,
            )
        self.partition = partition
        self.infer_sharding_from_operands = infer_sharding_from_operands
        self.propagate_user_sharding = propagate_user_sharding
        self.sharding_rule = sharding_rule
        return partition

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(self.fun).bind(*args, **kwargs)
        bound.apply_defaults()
        named = sorted(name for name in bound.kwargs if name in kwargs)
        check(
            not named,
            lambda: (
                "[custom_partitioning] arguments must have positions; got keyword-only "
                f"{named}. Fix: make them positional."
            ),
        )
        arrays = [x for k, x in enumerate(bound.args) if k not in self.static_argnums]
        mesh = _mesh_of(tree_leaves(arrays))
        if mesh is None or self.partition is None:
            return self.fun(*bound.args)
        return self._partitioned(mesh, bound.args, arrays)

    def _partitioned(self, mesh: Mesh, args: Sequence[Any], arrays: Sequence[Any]) -> Any:
        static = [args[k] for k in self.static_argnums]

        def whole(*values: Any) -> Any:
            rest = iter(values)
            every = [x if k in self.static_argnums else next(rest) for k, x in enumerate(args)]
            return self.fun(*every)

        shapes = tuple(tree_map(functools.partial(_described, mesh), x) for x in arrays)
        result = eval_shape(whole, *arrays)
        result = tree_map(_with_sharding, result, self._result(static, mesh, shapes, result))
        assert self.partition is not None
        mesh, function, out, into = self.partition(*static, mesh, shapes, result)
        mapped = shard_map(
            function,
            mesh=mesh,
            in_specs=tuple(tree_map(_spec, into)),
            out_specs=tree_map(_spec, out),
            check_vma=False,
        )
        return mapped(*arrays)

    def _result(self, static: Sequence[Any], mesh: Mesh, shapes: Any, result: Any) -> Any:
        """The shardings of the result."""
        if self.infer_sharding_from_operands is not None:
            return self.infer_sharding_from_operands(*static, mesh, shapes, result)
        rule = self.sharding_rule
        if callable(rule):
            rule = rule(*static, mesh, shapes, result)
            rule = parse_rule(rule) if isinstance(rule, str) else rule
        if rule is None:
            return tree_map(lambda _: NamedSharding(mesh, PartitionSpec()), result)
        specs = iter(
            rule.result_specs(
                [tuple(x.sharding.spec) for x in tree_leaves(shapes)],
                [len(x.shape) for x in tree_leaves(shapes)],
                [len(x.shape) for x in tree_leaves(result)],
            )
        )
        return tree_map(lambda _: NamedSharding(mesh, PartitionSpec(*next(specs))), result)


def _mesh_of(leaves: Sequence[Any]) -> Mesh | None:
    """The mesh of several devices on which arrays lie; None: there is none, or they are traced."""
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    for leaf in leaves:
        sharding = leaf.sharding if isinstance(leaf, HasAval) else None
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


def _described(mesh: Mesh, x: Any) -> ShapeDtypeStruct:
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
        sharding = NamedSharding(mesh, PartitionSpec())
    return ShapeDtypeStruct(aval_of(x).shape, aval_of(x).dtype, sharding=sharding)


def _with_sharding(x: Any, sharding: NamedSharding) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _spec(sharding: NamedSharding) -> PartitionSpec:
    check(
        isinstance(sharding, NamedSharding),
        lambda: (
            f"[custom_partitioning] partition must give NamedShardings; got {sharding!r}. "
            "Fix: NamedSharding(mesh, P(...))."
        ),
    )
    return sharding.spec
