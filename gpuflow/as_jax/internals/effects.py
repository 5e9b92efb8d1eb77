"""Effects of external primitives: classes whose instances libraries put into sets.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Set

from gpuflow.core import effects as core_effects


class Effect(core_effects.Effect):
    """A user-defined effect: its class is its name."""

    def __init__(self) -> None:
        super().__init__(type(self).__name__)


Effects = Set[Effect]
no_effects: Effects = frozenset()


class EffectTypeSet:
    """Kinds of effects, as JAX lists those that loops, checkpoints and lowerings take.

    gpuflow asks each effect itself: nothing reads these.
    """

    def __init__(self) -> None:
        self._types: set[type] = set()

    def add_type(self, effect_type: type) -> None:
        """Add a class of effects."""
        self._types.add(effect_type)

    def contains(self, effect: object) -> bool:
        """Whether an effect is of one of the classes."""
        return isinstance(effect, tuple(self._types))

    def filter_in(self, effects: Effects) -> Effects:
        """Those that are of one of the classes."""
        return {effect for effect in effects if self.contains(effect)}

    def filter_not_in(self, effects: Effects) -> Effects:
        """Those that are of none."""
        return {effect for effect in effects if not self.contains(effect)}


control_flow_allowed_effects = EffectTypeSet()
custom_derivatives_allowed_effects = EffectTypeSet()
lowerable_effects = EffectTypeSet()
ordered_effects = EffectTypeSet()
remat_allowed_effects = EffectTypeSet()
