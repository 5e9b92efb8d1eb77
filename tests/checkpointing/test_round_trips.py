"""What is restored is what was saved: containers, dtypes, scalars, and what does not fit."""

from __future__ import annotations

import doctest
import math
import pickle
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from safetensors import safe_open

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing
from gpuflow.base import dtypes
from gpuflow.checkpointing import files, leaves, manager, reading, restoring, saving

NARROW = [dtype.name for dtype in (*dtypes.NARROW_FLOATS, *dtypes.NARROW_INTEGERS)]
PLAIN = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
SHAPES = [(), (0,), (3, 0, 2), (5,), (2, 3, 4)]
Pair = namedtuple("Pair", ["first", "second"])
Other = namedtuple("Other", ["first", "second"])


@gf.tree_util.register_dataclass
@dataclass
class Layer:
    weights: object
    bias: object


def same(got, wanted):
    """Whether two leaves are of one type, dtype and shape, and of equal bytes."""
    assert type(got) is type(wanted)
    if isinstance(wanted, gf.Array):
        assert got.aval == wanted.aval
        got, wanted = got.host(), wanted.host()
    if isinstance(wanted, np.ndarray | np.generic):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        assert got.tobytes() == wanted.tobytes()
    else:
        assert repr(got) == repr(wanted)


def check_same(got, wanted):
    assert gf.tree.structure(got) == gf.tree.structure(wanted)
    for one, other in zip(gf.tree.leaves(got), gf.tree.leaves(wanted), strict=True):
        same(one, other)


def numbers(name, shape):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    raw = np.random.default_rng(5).integers(0, 2, size=(*shape, dtype.itemsize), dtype=np.uint8)
    if name not in ("bool", *NARROW):
        raw = np.random.default_rng(5).bytes(raw.size)
    return np.frombuffer(raw, dtype).reshape(shape) if math.prod(shape) else np.zeros(shape, dtype)


@pytest.mark.parametrize("name", [*PLAIN, *NARROW])
def test_dtypes_and_shapes(name, tmp_path):
    """Random bytes, nans with payloads included, as arrays of both kinds."""
    with gf.enable_x64(True):
        tree = {shape: numbers(name, shape) for shape in SHAPES}
        tree = [list(tree.values()), [jnp.asarray(x) for x in tree.values()]]
    checkpointing.save(tmp_path / "c", tree)
    check_same(checkpointing.restore(tmp_path / "c"), tree)
    check_same(checkpointing.restore(tmp_path / "c", like=tree), tree)


def test_the_names_of_records_cover_all_dtypes():
    assert {*PLAIN, *NARROW} <= leaves._NAMED | leaves._REENCODED


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_keys(implementation, tmp_path):
    key = gf.random.key(7, impl=implementation)
    tree = {"one": key, "more": gf.random.split(key, (2, 3)), "raw": gf.random.PRNGKey(3)}
    checkpointing.save(tmp_path / "c", tree)
    got = checkpointing.restore(tmp_path / "c")
    check_same(got, tree)
    assert gf.random.normal(got["one"]) == gf.random.normal(key)


def test_scalars_and_numpy_scalars(tmp_path):
    tree = [
        True, 0, -(2**100), 1.5, -0.0, math.nan, math.inf, 0.1 + 0.2, 1 - 2j, complex(0, math.inf),
        "text", "", b"\x00\xff", np.float32(2.5), np.int64(3), np.bool_(True),
        ml_dtypes.bfloat16(1.5), np.complex128(1j), np.zeros(3, dtypes.float0),
    ]  # fmt: skip
    checkpointing.save(tmp_path / "c", tree)
    check_same(checkpointing.restore(tmp_path / "c"), tree)
    check_same(checkpointing.restore(tmp_path / "c", like=tree), tree)


def test_containers(tmp_path):
    tree = {
        "none": None,
        "empty": [(), [], {}, OrderedDict(), deque()],
        "list": [1, [2, (3,)]],
        "dict": {2: "a", 10: "b", -1: "c"},
        "floats": {0.5: 1},
        "flags": {False: 1, True: 2},
        "ordered": OrderedDict(z=1, a=2),
        "deque": deque([1, 2], maxlen=4),
        "a.b['c']": 1,
    }
    checkpointing.save(tmp_path / "c", tree)
    got = checkpointing.restore(tmp_path / "c")
    check_same(got, tree)
    assert got["deque"].maxlen == 4 and list(got["ordered"]) == ["z", "a"]
    assert [type(key) for key in got["flags"]] == [bool, bool]
    checkpointing.save(tmp_path / "one", 5)
    assert checkpointing.restore(tmp_path / "one") == 5
    checkpointing.save(tmp_path / "none", None)
    assert checkpointing.restore(tmp_path / "none") is None


def test_keys_of_several_types(tmp_path):
    for tree in ({1: 2, "a": 3}, {None: 1, "a": 2}, {"b": {"x": 1, 2: 3}}):
        checkpointing.save(tmp_path / "c", tree)
        assert checkpointing.restore(tmp_path / "c") == tree


def test_classes_come_from_like(tmp_path):
    tree = {
        "pair": Pair(jnp.ones(2), 3),
        "layer": Layer(np.ones(2), None),
        "default": defaultdict(list, a=1),
        "keys": {(1, "x"): 2.0},
    }
    like = {
        "pair": Pair(jnp.zeros(2), 0),
        "layer": Layer(np.zeros(2), None),
        "default": defaultdict(list, a=0),
        "keys": {(1, "x"): 0.0},
    }
    checkpointing.save(tmp_path / "c", tree)
    check_same(checkpointing.restore(tmp_path / "c", like=like), tree)
    for name, said in [
        ("pair", r"a Pair with \.first, \.second at \['pair'\]"),
        ("layer", r"a Layer with \.weights, \.bias at \['layer'\]"),
        ("keys", r"a dict with \[\(1, 'x'\)\] at \['keys'\]"),
    ]:
        checkpointing.save(tmp_path / name, {name: tree[name]})
        with pytest.raises(ValueError, match=rf"\[restore\] without like=.*got {said}\. Fix: "):
            checkpointing.restore(tmp_path / name)


def test_like_says_which_kind_of_array(tmp_path):
    x = np.arange(3, dtype=np.float32)
    checkpointing.save(tmp_path / "c", [x, jnp.asarray(x), jnp.float32(2)])
    struct = gf.ShapeDtypeStruct((3,), jnp.float32)
    got = checkpointing.restore(tmp_path / "c", like=[struct, x, np.float32(0)])
    check_same(got, [jnp.asarray(x), x, np.float32(2)])


@pytest.mark.parametrize(
    ("saved", "like", "said"),
    [
        (
            {"a": 1},
            {"b": 1},
            r"at the top, a dict with \['a'\] in the checkpoint and a dict with \['b'\] in like "
            r"\(only there: \['a'\]; only in like: \['b'\]\)",
        ),
        (
            {"a": [1, 2]},
            {"a": (1, 2)},
            r"at \['a'\], a list of 2 in the checkpoint and a tuple of 2 in like",
        ),
        ({"a": [1, 2]}, {"a": [1]}, r"at \['a'\], a list of 2 .* and a list of 1 in like"),
        ([{"a": 1}], [3], r"at \[0\], a dict with \['a'\] in the checkpoint and a leaf in like"),
        ([None], [3], r"at \[0\], None in the checkpoint and a leaf in like"),
        (Pair(1, 2), Other(1, 2), r"at the top, a Pair with .* and a Other with"),
        (Layer(1, {"x": 2}), Layer(1, {"y": 2}), r"at \.bias, a dict with \['x'\] in the"),
        (
            {"w": np.zeros((2, 3))},
            {"w": np.zeros((3, 2))},
            r"float64\[2,3\] in the checkpoint and float64\[3,2\] in like at \['w'\]",
        ),
        (
            [np.zeros(2, np.float16)],
            [np.zeros(2, np.float32)],
            r"float16\[2\] in the checkpoint and float32\[2\] in like at \[0\]",
        ),
        ([1], [1.0], r"a Python int in the checkpoint and a Python float in like at \[0\]"),
        ([1], [np.zeros(())], r"a Python int in the checkpoint and float64\[\] in like at \[0\]"),
        (np.zeros(()), 1, r"float64\[\] in the checkpoint and a Python int in like at the top"),
    ],
)
def test_what_does_not_fit_names_the_path_and_both_sides(saved, like, said, tmp_path):
    checkpointing.save(tmp_path / "c", saved)
    with pytest.raises(ValueError, match=rf"\[restore\] .* got,? {said}.*Fix: "):
        checkpointing.restore(tmp_path / "c", like=like)


def test_leaves_that_cannot_be_saved(tmp_path):
    for leaf, said in [
        (object(), r"a builtins\.object at \['x'\]\. Fix: leave it out"),
        (np.array(["a"]), r"<U1 at \['x'\]\. Fix: "),
        (np.array([None]), r"object at \['x'\]"),
        (np.array(3, "M8[s]"), r"datetime64\[s\] at \['x'\]"),
        (gf.new_ref(jnp.ones(2)), r"Ref at \['x'\]\. Fix: "),
    ]:
        with pytest.raises(TypeError, match=rf"\[save\] .*got {'.*' + said}"):
            checkpointing.save(tmp_path / "c", {"x": leaf})
    with pytest.raises(TypeError, match=r"the traced f32\[2\] at the top\. Fix: save outside"):
        gf.jit(lambda x: checkpointing.save(tmp_path / "c", x))(jnp.ones(2))
    deleted = jnp.ones(2)
    deleted.delete()
    with pytest.raises(gf.errors.DeletedArrayError):
        checkpointing.save(tmp_path / "c", deleted)
    assert not (tmp_path / "c").exists()


def test_wide_types_stay_without_x64(tmp_path):
    """Also through a sharding, and to a device."""
    x = np.arange(4, dtype=np.float64) / 3
    with gf.enable_x64(True):
        checkpointing.save(tmp_path / "c", jnp.asarray(x))
    sharding = gf.NamedSharding(gf.make_mesh((1,), ("x",)), gf.P("x"))
    for place in (None, gf.devices()[0], sharding):
        got = checkpointing.restore(tmp_path / "c", sharding=place)
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, x)


def test_other_programs_read_the_files(tmp_path):
    tree = {"layer": [{"w": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)}], "n": 3}
    checkpointing.save(tmp_path / "c", tree)
    (file,) = (tmp_path / "c").glob("*.safetensors")
    with safe_open(file, framework="np") as opened:
        (name,) = opened.keys()
        assert name == "['layer'][0]['w']"
        np.testing.assert_array_equal(opened.get_tensor(name), tree["layer"][0]["w"])


def test_the_library_reads_all_dtypes(tmp_path):
    """And finds the names of dtypes, shapes and bytes that it would write itself."""
    arrays = {
        f"{name} {shape}": numbers(name, shape) for name in leaves.FILE_DTYPES for shape in SHAPES
    }
    (tmp_path / "c").mkdir()
    file, _ = files.write_arrays(tmp_path / "c", "0" * 16, 0, arrays)
    ours = safetensors.deserialize((tmp_path / "c" / file).read_bytes())
    theirs = safetensors.deserialize(safetensors.numpy.save(arrays))
    assert len(ours) == len(arrays) and dict(ours) == dict(theirs)
    with safe_open(tmp_path / "c" / file, framework="np") as opened:
        assert opened.metadata() == {"format": reading.FORMAT}


def test_views_and_other_byte_orders(tmp_path):
    x = np.arange(12, dtype=">i4").reshape(3, 4)
    tree = [x.T, x[::2], x[:, 1]]
    checkpointing.save(tmp_path / "c", tree)
    for got, wanted in zip(checkpointing.restore(tmp_path / "c"), tree, strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype.isnative and got.flags.writeable


@pytest.mark.parametrize("module", [saving, restoring, manager], ids=lambda m: m.__name__)
def test_examples_of_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


# --- NumPy's own files, and pickle ---------------------------------------------------------


def test_pickle_keeps_dtypes():
    for name in (*PLAIN, *NARROW):
        with gf.enable_x64(True):
            x = jnp.asarray(numbers(name, (2, 3)))
        same(pickle.loads(pickle.dumps(x)), x)
    key = gf.random.key(3)
    same(pickle.loads(pickle.dumps(key)), key)


def test_numpys_files_keep_bfloat16(tmp_path):
    x = jnp.asarray(numbers("bfloat16", (2, 3)))
    jnp.save(tmp_path / "one.npy", x)
    same(jnp.load(tmp_path / "one.npy"), x)
    jnp.savez(tmp_path / "more.npz", x, y=x, z=np.arange(3, dtype="i4"))
    np.savez(tmp_path / "theirs.npz", x, y=x, z=np.arange(3, dtype="i4"))
    for name in ("more.npz", "theirs.npz"):
        with jnp.load(tmp_path / name) as arrays:
            assert list(arrays) == arrays.files and sorted(arrays) == ["arr_0", "y", "z"]
            same(arrays["y"], x.host())
            same(arrays["arr_0"], x.host())
            same(dict(arrays)["z"], np.arange(3, dtype="i4"))


@pytest.mark.parametrize("name", NARROW)
def test_numpys_files_say_what_they_cannot_keep(name, tmp_path):
    x = jnp.asarray(numbers(name, (2, 3)))
    said = rf"got {name}\. Fix: gpuflow\.checkpointing\.save, or x\.view\(jnp\.uint8\)"
    with pytest.warns(UserWarning, match=rf"\[save\] .*{said}"):
        jnp.save(tmp_path / "one.npy", x)
    with pytest.warns(UserWarning, match=rf"\[savez\] .*{said}"):
        jnp.savez(tmp_path / "more.npz", x=x)
