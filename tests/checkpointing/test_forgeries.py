"""A forged checkpoint is a CheckpointError, or a tree that works; nothing else, and no waiting."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import threading
import zlib
from collections import OrderedDict, deque
from contextlib import suppress

import numpy as np
import pytest
from forging import changed, drawn, forgeries

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing
from gpuflow.base import dtypes
from gpuflow.checkpointing import reading
from gpuflow.errors import CheckpointError

SEED = int(os.environ.get("FUZZ_SEED", "1"))
TREE = {
    "arrays": [jnp.ones((2, 3), jnp.bfloat16), np.arange(3.0), np.float32(2), gf.random.key(1)],
    "scalars": (True, -(2**70), 1.5, 1 - 2j, "text", b"\x00\xff"),
    "odd": OrderedDict(z=jnp.zeros((0, 3)), a=np.zeros(2, dtypes.float0), c=np.ones(2, complex)),
    "more": [None, deque([3.0], maxlen=4), {1: {0.5: jnp.float32(3)}}, [], {}],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    checkpointing.Manager(tmp_path, asynchronous=False).save(3, TREE, {"loss": 0.5})
    return tmp_path / "step_00000003"


def write_forged(folder, content):
    """With the checksum that a forger computes."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    document = {"format": reading.FORMAT, "crc32": zlib.crc32(text.encode()), "content": content}
    (folder / "tree.json").write_text(json.dumps(document))


class MixedKeys(Exception):
    """Keys of several types, which checkpoints may have, and other trees may not."""


def used(tree):
    """All of a tree: its structure, and its leaves with their types and bytes."""
    try:
        gf.tree.structure(tree)
    except ValueError as error:
        assert "[tree] the keys of a dict must be sortable" in str(error)
        raise MixedKeys from None
    leaves = [x.host() if isinstance(x, gf.Array) else x for x in gf.tree.leaves(tree)]
    return str(gf.tree.structure(tree)), [
        (str(x.dtype), x.shape, x.tobytes()) if hasattr(x, "dtype") else (type(x), repr(x))
        for x in leaves
    ]


def check_reading(folder, name, again):
    """Read a forged checkpoint; True if it is refused."""
    try:
        tree = checkpointing.restore(folder)
    except CheckpointError as error:
        text = str(error)
        assert text.startswith("[restore] ") and "Fix: " in text and str(folder) in text, name
        assert len(text) < 1000, name
        return True
    except ValueError as error:  # a class, which is no forgery
        assert str(error).startswith("[restore] without like= containers must"), (name, error)
        return False
    checkpointing.save(again, tree)
    same = checkpointing.restore(again)
    with suppress(MixedKeys):
        assert used(same) == used(tree), name
    return False


def test_forged_trees(folder, tmp_path):
    """``FORGERIES=1 pytest`` forges all of 12,000; by default one of 17 is, drawn by the seed."""
    content = reading.read_tree(folder)
    share = int(os.environ.get("FORGERIES", "17"))
    found = refused = 0
    for name, forged in forgeries(content, SEED, share):
        write_forged(folder, forged)
        found += 1
        refused += check_reading(folder, name, tmp_path / "again")
    assert found > 10_000 // share and 0.8 * found < refused < found


def test_several_forgeries_at_once(folder, tmp_path):
    """Drawn at random: one change may hide another."""
    content = reading.read_tree(folder)
    rng = random.Random(SEED)
    for _ in range(200):
        first, one = drawn(content, rng)
        second, both = drawn(one, rng)
        write_forged(folder, both)
        check_reading(folder, f"{first}; {second}", tmp_path / "again")


def test_forged_metrics(folder):
    content = reading.read_tree(folder)
    manager = checkpointing.Manager(folder.parent, best="loss")
    assert manager.metrics(3) == {"loss": 0.5} and manager.best_step() == 3
    for metrics in ("", "[]", "{", '{"loss": "low"}', '{"loss": []}', "[" * 200_000, "7", "null"):
        write_forged(folder, changed(content, ("metadata", "metrics"), "replaced", metrics))
        for read in (lambda: manager.metrics(3), manager.best_step):
            with pytest.raises(CheckpointError, match=r"got .*metric.* in .*tree\.json\. Fix: "):
                read()
    write_forged(folder, {**content, "metadata": {}})
    assert manager.metrics(3) == {} and manager.best_step() is None


def test_forged_headers_of_arrays(folder, tmp_path):
    (path,) = folder.glob("arrays-*")
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    found = refused = 0
    for name, forged in forgeries(header, SEED, 5):
        text = json.dumps(forged).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + rest)
        found += 1
        refused += check_reading(folder, name, tmp_path / "again")
    assert found > 200 and refused > 0.6 * found
    for length in (0, 1, 2**31, 2**63, 2**64 - 1):
        path.write_bytes(length.to_bytes(8, "little") + content[8:])
        assert check_reading(folder, f"{length} bytes of header", tmp_path / "again")


def test_nothing_can_be_too_deep(folder):
    """200,000 brackets ended in RecursionError."""
    (arrays,) = folder.glob("arrays-*")
    for text in (b"[" * 200_000, b'{"a":' * 200_000, b'{"content":' + b"[" * 200_000):
        (folder / "tree.json").write_bytes(text)
        with pytest.raises(CheckpointError, match=r"nested deeper than .* in .*tree\.json\. Fix: "):
            checkpointing.restore(folder)
    checkpointing.save(folder.parent / "c", np.ones(2))
    (arrays,) = (folder.parent / "c").glob("arrays-*")
    arrays.write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000)
    with pytest.raises(CheckpointError, match=r"nested deeper than .* in .*safetensors\. Fix: "):
        checkpointing.restore(folder.parent / "c")


def test_shapes_must_be_those_of_the_bytes(folder):
    """2**40 elements were allocated before anything was compared."""
    content = reading.read_tree(folder)
    for k, leaf in enumerate(content["leaves"]):
        if "pieces" in leaf and leaf["shape"]:
            huge = [2**20, *leaf["shape"]]
            bounds = [[0, n] for n in huge]
            forged = changed(content, ("leaves", k, "shape"), "replaced", huge)
            forged["leaves"][k]["pieces"][0]["bounds"] = bounds
            write_forged(folder, forged)
            with pytest.raises(CheckpointError, match=r"got \(.* for .*, of \(.*safetensors\. Fix"):
                checkpointing.restore(folder)


def test_pieces_that_are_not_all_of_an_array(folder):
    content = reading.read_tree(folder)
    k = next(k for k, leaf in enumerate(content["leaves"]) if leaf.get("shape") == [2, 3])
    for pieces in (
        [],
        [[[0, 1], [0, 3]]],
        [[[0, 2], [0, 3]]] * 2,
        [[[0, 1], [0, 3]]] * 2,
        [[[0, 1], [0, 3]], [[1, 2], [0, 2]]],
    ):
        forged = changed(content, ("leaves", k, "pieces"), "replaced", [])
        (piece,) = content["leaves"][k]["pieces"]
        forged["leaves"][k]["pieces"] = [{**piece, "bounds": bounds} for bounds in pieces]
        write_forged(folder, forged)
        with pytest.raises(CheckpointError, match="got pieces that are not all of the leaf at"):
            checkpointing.restore(folder)


# --- no regular files ----------------------------------------------------------------------


def within(seconds, call):
    """The error of a call that must not wait."""
    errors = []

    def run():
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits"
    return errors[0]


def make(kind, path, tmp_path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        os.chdir(tmp_path)  # names of sockets are short
        socket.socket(socket.AF_UNIX).bind(str(path.relative_to(tmp_path)))
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to("/dev/" + kind)


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "loop", "zero", "null"])
@pytest.mark.parametrize("which", ["tree", "arrays"])
def test_only_regular_files_are_read(kind, which, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = folder.glob(f"{which}*")
    path.unlink()
    make(kind, path, tmp_path)
    error = within(10, lambda: checkpointing.restore(folder))
    assert isinstance(error, CheckpointError) and isinstance(error, OSError) and error.errno
    said = {"fifo": "a FIFO", "folder": "a folder", "zero": "a character device"}.get(kind, "")
    text = str(error)
    assert text.startswith("[restore] files of a checkpoint must be regular files that can be read")
    assert said in text and f"at {path}. Fix: " in text
    if which == "tree":
        assert checkpointing.Manager(folder.parent).steps() == []


def test_a_fifo_in_place_of_a_folder(tmp_path):
    os.mkfifo(tmp_path / "c")
    assert isinstance(within(10, lambda: checkpointing.restore(tmp_path / "c")), FileNotFoundError)
    error = within(10, lambda: checkpointing.save(tmp_path / "c", 1))
    assert isinstance(error, NotADirectoryError)


def test_links_to_files_are_read(folder):
    for path in list(folder.iterdir()):
        shutil.move(path, folder.parent / path.name)
        path.symlink_to(folder.parent / path.name)
    assert used(checkpointing.restore(folder)) == used(TREE)


# --- trees that cannot be saved ------------------------------------------------------------


def nested(levels, make=lambda x: [x]):
    tree = 1.5
    for _ in range(levels):
        tree = make(tree)
    return tree


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"a": x}, lambda x: (x, 1)])
def test_deep_trees(make, tmp_path):
    checkpointing.save(tmp_path / "c", nested(100, make))
    assert checkpointing.restore(tmp_path / "c") == nested(100, make)
    assert checkpointing.restore(tmp_path / "c", like=nested(100, make)) == nested(100, make)
    said = r"\[save\] containers must be nested at most 100 levels deep; got .*\.\.\. Fix: a list"
    for levels in (101, 5000):
        for save in (checkpointing.save, checkpointing.save_async):
            with pytest.raises(ValueError, match=said):
                save(tmp_path / "d", nested(levels, make))
    with pytest.raises(ValueError, match=r"\[restore\] containers must be nested"):
        checkpointing.restore(tmp_path / "c", like=nested(101, make))
    assert not (tmp_path / "d").exists()


def test_cyclic_trees(tmp_path):
    one, other = [1], {"a": 2}
    one.append(one)
    other["b"] = [other]
    for tree in (one, other):
        with pytest.raises(ValueError, match=r"or one that contains itself, at .* Fix: "):
            checkpointing.save(tmp_path / "c", tree)


def test_integers_of_any_length(tmp_path):
    """Python refuses to write more than 4,300 digits in decimal."""
    tree = [10**4000, 10**6000, -(10**6000), 1 << 10_000, (1 << 9_999) - 1]
    checkpointing.save(tmp_path / "c", tree)
    assert checkpointing.restore(tmp_path / "c") == tree


def test_metrics_must_be_numbers(tmp_path):
    manager = checkpointing.Manager(tmp_path)
    for metrics in ({"loss": "low"}, {"loss": None}, {"loss": 1j}, {1: 2.0}, {"loss": [1.0]}):
        with pytest.raises(TypeError, match=r"\[save\] metrics must be numbers by name; got .*Fix"):
            manager.save(1, 1, metrics)
    assert manager.steps() == []
