"""A damaged checkpoint is an error that names the file, never another tree."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import gpuflow.numpy as jnp
from gpuflow import checkpointing
from gpuflow.checkpointing import files, reading
from gpuflow.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    tree = {"a": np.arange(50.0), "b": [jnp.ones((3, 4), jnp.bfloat16), 2.5, "text"], "c": {}}
    checkpointing.save(tmp_path / "c", tree)
    return tmp_path / "c"


def everything(folder):
    tree = checkpointing.restore(folder)
    return [tree["a"].tobytes(), tree["b"][0].tobytes(), tree["b"][1:], list(tree)]


def test_every_flipped_byte_is_found_or_means_nothing(folder, tmp_path):
    """White space of JSON means nothing, nor does the header's own note."""
    wanted, copy, rng = everything(folder), tmp_path / "copy", np.random.default_rng(0)
    found = 0
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for place in rng.choice(len(content), 150, replace=len(content) < 150):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            changed = bytearray(content)
            changed[place] ^= 1 << rng.integers(8)
            (copy / file.name).write_bytes(changed)
            try:
                assert everything(copy) == wanted, (file.name, place)
            except CheckpointError as error:
                assert "Fix: " in str(error)
                found += 1
    assert found > 150


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_damage_is_found_anywhere_in_a_large_array(tmp_path, share):
    """All other arrays of this file are smaller than a page."""
    wanted = np.random.default_rng(0).integers(0, 256, 300_001, np.uint8)
    checkpointing.save(tmp_path, wanted)
    np.testing.assert_array_equal(checkpointing.restore(tmp_path), wanted)
    (arrays,) = tmp_path.glob("arrays-*")
    content = bytearray(arrays.read_bytes())
    content[len(content) - wanted.size + int(share * (wanted.size - 1))] ^= 4
    arrays.write_bytes(content)
    with pytest.raises(CheckpointError, match="Fix: restore an earlier checkpoint"):
        checkpointing.restore(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_files_that_end_early(folder, share):
    for file in folder.iterdir():
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        with pytest.raises(CheckpointError, match=rf"in {file}.*Fix: restore an earlier"):
            checkpointing.restore(folder)
        file.write_bytes(content)


def test_what_is_missing(folder):
    (arrays,) = folder.glob("arrays-*")
    arrays.unlink()
    with pytest.raises(CheckpointError, match=rf"got no {arrays.name} in"):
        checkpointing.restore(folder)
    (folder / "tree.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"\[restore\] a checkpoint is a folder with a tr"):
        checkpointing.restore(folder)
    with pytest.raises(FileNotFoundError, match=r"\[restore\] .*Fix: give the path"):
        checkpointing.restore(folder / "none")


def test_another_format(folder):
    document = json.loads((folder / "tree.json").read_text())
    (folder / "tree.json").write_text(json.dumps({**document, "format": "gpuflow checkpoint 9"}))
    with pytest.raises(CheckpointError, match="format must be 'gpuflow checkpoint 1'; got 'gpuf"):
        checkpointing.restore(folder)


def test_files_of_other_folders_are_not_opened(folder):
    content = reading.read_tree(folder)
    files.write_tree(folder, "0", {**content, "files": ["../c/" + content["files"][0]]})
    with pytest.raises(CheckpointError, match=r"got the file '\.\./c/arrays-.*, which is not one"):
        checkpointing.restore(folder)


def test_who_reads_while_another_saves_gets_one_of_both(folder, monkeypatch):
    read, times = reading.read_tree, []

    def read_and_save(path):
        content = read(path)
        times.append(1)
        if len(times) == 1:
            checkpointing.save(folder, {"new": 1})
        return content

    monkeypatch.setattr(reading, "read_tree", read_and_save)
    assert checkpointing.restore(folder) == {"new": 1}
    assert len(times) == 2
