"""Jitted methods, partial functions, callable objects and static arguments take the short way."""

import collections
import copy
import functools
import pickle
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import tree_util
from gpuflow.base.garbage import collect_garbage

X = jnp.arange(3.0)
Calls = collections.Counter()


class Static:
    """Each object is a static argument, equal only to itself."""

    def __init__(self, scale):
        self.scale = scale

    @functools.partial(gf.jit, static_argnums=0)
    def scaled(self, x):
        Calls["scaled"] += 1
        return x * self.scale

    @functools.partial(gf.jit, static_argnames=("self", "times"))
    def repeated(self, x, *, times=1):
        return x * self.scale * times


class Derived(Static):
    def scaled(self, x):
        return super().scaled(x) + 1


class Slotted:
    """No object has a dictionary, nor weak references."""

    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    @functools.partial(gf.jit, static_argnums=0)
    def scaled(self, x):
        return x * self.scale


@dataclass(frozen=True)
class ByValue:
    """Equal objects share a program."""

    scale: float

    @functools.partial(gf.jit, static_argnums=0)
    def scaled(self, x):
        Calls["by value"] += 1
        return x * self.scale


@dataclass
class Unhashable:
    scale: float

    @functools.partial(gf.jit, static_argnums=0)
    def scaled(self, x):
        return x * self.scale

    @gf.jit
    def as_array(self, x):
        return x


@tree_util.register_pytree_node_class
class Module:
    """A tree, whose parameters are traced; its ``unflatten`` looks at them."""

    def __init__(self, weight, name="m"):
        self.weight, self.name, self.rank = weight, name, len(weight.shape)

    def tree_flatten(self):
        Calls["flatten"] += 1
        return (self.weight,), self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(*children, name)

    @gf.jit
    def apply(self, x):
        Calls["apply " + self.name] += 1
        return self.weight * x

    @gf.jit
    def grown(self, x):
        return Module(self.weight + x, self.name)

    @classmethod
    @functools.partial(gf.jit, static_argnums=0)
    def of_class(cls, x):
        return x + 1

    @staticmethod
    @gf.jit
    def of_none(x):
        return x + 2


def is_short(function, call):
    """Whether a call needs no look-up of a signature: it never asks for one."""

    def refuse(*_):
        raise AssertionError("the call took the long way")

    call()
    function._find = refuse
    try:
        call()
    except AssertionError:
        return False
    finally:
        del function._find
    return True


def test_calls_with_static_values_are_short():
    one, plain = Static(2.0), gf.jit(lambda n, x, *, k: x * n + k, static_argnames=("n", "k"))
    assert is_short(Static.scaled, lambda: one.scaled(X))
    assert is_short(Static.repeated, lambda: one.repeated(X, times=3))
    assert is_short(Static.scaled, lambda: one.scaled(2.0))
    assert is_short(plain, lambda: plain(2, X, k=1))
    assert is_short(plain, lambda: plain(x=X, n=2, k=1))
    slotted = Slotted(3.0)
    assert is_short(Slotted.scaled, lambda: slotted.scaled(X))
    for _ in range(3):
        np.testing.assert_array_equal(plain(2, X, k=1), 2 * np.arange(3) + 1)
        np.testing.assert_array_equal(plain(3, X, k=1), 3 * np.arange(3) + 1)
        np.testing.assert_array_equal(one.repeated(X, times=3), 6 * np.arange(3))
        np.testing.assert_array_equal(one.repeated(X), 2 * np.arange(3))


def test_static_values_of_other_types_differ_on_the_short_way():
    f = gf.jit(lambda x, n: (x + n, type(n) is bool), static_argnums=1)
    for _ in range(3):
        assert f(X, 1)[0].dtype == np.float32 and not f(X, 1)[1]
        assert f(X, True)[1] and not f(X, 1.0)[1]
    assert f._cache_size() == 3


def test_each_object_has_its_programs():
    before = Calls["scaled"]
    one, two, three = Static(2.0), Static(3.0), Derived(4.0)
    for _ in range(3):
        assert [float(value.scaled(X)[1]) for value in (one, two, three)] == [2, 3, 5]
    assert Calls["scaled"] == before + 3
    before = Calls["by value"]
    for _ in range(3):
        assert float(ByValue(2.5).scaled(X)[2]) == 5
    assert Calls["by value"] == before + 1


def test_a_static_object_without_a_hash_is_refused_whenever_it_is_passed():
    f = gf.jit(lambda n, x: x, static_argnums=0)
    f(1, X)
    f(1, X)
    for call in (lambda: f([1], X), lambda: Unhashable(1.0).scaled(X)):
        with pytest.raises(ValueError, match=r"static arguments of .* must be hashable"):
            call()
    with pytest.raises(TypeError, match="got the dataclass Unhashable as self"):
        Unhashable(1.0).as_array(X)


def test_methods_of_trees_are_short_and_see_new_values():
    one = Module(X + 1)
    assert is_short(Module.apply, lambda: one.apply(X))
    assert is_short(Module.grown, lambda: one.grown(X))
    before = Calls["apply m"]
    for k in range(3):
        np.testing.assert_array_equal(Module(X + k).apply(X), np.arange(3) * (np.arange(3) + k))
    assert Calls["apply m"] == before
    assert one.grown(X).weight.tolist() == [1, 3, 5] and one.grown(X).rank == 1
    named = Module(X, "named")
    assert named.apply(X).tolist() == [0, 1, 4] and Calls["apply named"] == 1
    assert named.apply(X).tolist() == [0, 1, 4] and Calls["apply named"] == 1
    assert named.grown(1.0).name == "named" and one.grown(1.0).name == "m"


def test_results_may_be_nodes_that_look_at_their_children():
    """Their structure was worked out with objects that are no arrays, which ``rank`` refused."""
    result = gf.jit(lambda x: {"b": Module(x), "a": [Module(x + 1, "n")]})(X)
    assert list(result) == ["a", "b"] and result["a"][0].name == "n"
    assert result["a"][0].weight.tolist() == [1, 2, 3]


def test_class_and_static_methods():
    one = Module(X)
    for owner in (Module, one):
        assert owner.of_class(X).tolist() == [1, 2, 3]
        assert owner.of_none(X).tolist() == [2, 3, 4]


def test_bound_methods_are_those_of_python():
    one, two = Static(2.0), Static(2.0)
    assert one.scaled == one.scaled and hash(one.scaled) == hash(one.scaled)
    assert one.scaled != two.scaled and one.scaled != one.repeated
    assert one.scaled.__self__ is one and one.scaled.__func__ is Static.scaled
    assert one.scaled.__name__ == "scaled" and Static.scaled(one, X).tolist() == [0, 2, 4]
    restored = pickle.loads(pickle.dumps(one.scaled))
    assert restored.__self__.scale == 2.0 and restored(X).tolist() == [0, 2, 4]
    copied = copy.deepcopy(one).scaled
    assert copied.__self__ is not one and copied(X).tolist() == [0, 2, 4]
    assert copy.copy(one.scaled)(X).tolist() == [0, 2, 4]


def test_bound_methods_under_transformations():
    one, module = Static(2.0), Module(X + 1)
    rows = jnp.ones((2, 3))
    assert gf.vmap(one.scaled)(rows).tolist() == [[2, 2, 2]] * 2
    assert gf.grad(lambda x: one.scaled(x).sum())(X).tolist() == [2, 2, 2]
    assert gf.grad(lambda x: module.apply(x).sum())(X).tolist() == [1, 2, 3]
    gradient = gf.grad(lambda m: m.apply(X).sum())(module)
    assert type(gradient) is Module and gradient.weight.tolist() == [0, 1, 2]
    assert gf.vmap(module.apply)(rows).tolist() == [[1, 2, 3]] * 2
    assert gf.jit(module.apply)(X).tolist() == [0, 2, 6]


def test_objects_die_with_their_last_reference():
    """A method of a tree keeps its program, not the object nor its arrays."""
    one = Module(X + 1)
    for _ in range(3):
        one.apply(X)
    gone = weakref.ref(one), weakref.ref(one.weight)
    del one
    collect_garbage()
    assert [ref() for ref in gone] == [None, None]


def test_static_objects_are_forgotten_with_their_programs():
    f = gf.jit(lambda n, x: x * n.scale, static_argnums=0)
    one = Static(2.0)
    for _ in range(3):
        f(one, X)
    gone = weakref.ref(one)
    del one
    f.clear_cache()
    collect_garbage()
    assert gone() is None


def test_partial_functions_and_callable_objects_are_short():
    class Call:
        def __call__(self, x, y):
            return x + y

    inner, outer = gf.jit(functools.partial(jnp.add, X)), gf.jit(lambda x, y: x - y)
    call, method = gf.jit(Call()), gf.jit(Static(2.0).scaled)
    assert is_short(inner, lambda: inner(X)) and is_short(method, lambda: method(X))
    assert is_short(outer, lambda: functools.partial(outer, X)(X))
    assert is_short(outer, lambda: functools.partial(outer, y=X)(X))
    assert is_short(call, lambda: call(X, X))
    assert functools.partial(outer, y=X)(X + 1).tolist() == [1, 1, 1]


def test_errors_of_a_class_are_raised_where_it_is_used():
    @tree_util.register_pytree_node_class
    class Fragile:
        is_broken = False

        def tree_flatten(self):
            if self.is_broken:
                raise self.error
            return (X,), None

        @classmethod
        def tree_unflatten(cls, _data, _children):
            return cls()

    f, one = gf.jit(lambda one, x: x + 1), Fragile()
    f(one, X)
    f(one, X)
    one.is_broken = True
    for kind in (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        one.error = kind("broken")
        with pytest.raises(kind, match="broken"):
            f(one, X)
