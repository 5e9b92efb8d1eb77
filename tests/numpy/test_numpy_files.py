"""jnp.load of files that are damaged, foreign, pickled, or not files."""

from __future__ import annotations

import io
import os
import pickle
import random
import threading
import zipfile

import numpy as np
import pytest

import gpuflow.numpy as jnp

SAID = r"\[load\] files must hold arrays of numbers in NumPy's format, complete; got "


class Ran:
    """An object whose unpickling runs code."""

    ran = False

    def __reduce__(self):
        return Ran.run, ()

    @staticmethod
    def run():
        Ran.ran = True
        return Ran()


def archive(tmp_path, **members):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in members.items():
            opened.writestr(name.replace("_", "."), content)
    return path


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def test_members_that_are_not_arrays(tmp_path):
    """It was an AttributeError: 'bytes' object has no attribute 'dtype'."""
    path = archive(tmp_path, x_npy=npy(np.arange(3)), notes_txt=b"mine", y_npy=b"", z_npy=b"junk")
    with jnp.load(path) as loaded:
        np.testing.assert_array_equal(loaded["x"], np.arange(3))
        for name, length in (("notes.txt", 4), ("y", 0), ("z", 4)):
            said = (
                rf"\[load\] members of .*got {name!r}, which is another file of {length} bytes\. "
            )
            with pytest.raises(ValueError, match=said + r"Fix: zipfile\.ZipFile\(file\)\.read"):
                loaded[name]
        with pytest.raises(ValueError, match=r"\[load\] members of an archive must be arrays"):
            dict(loaded)
        with pytest.raises(
            KeyError, match=r"\[load\] the name must be one of .*got 'w'. Fix: one of"
        ):
            loaded["w"]
        assert "w" not in loaded and loaded.get("w") is None


def test_pickles_are_refused_and_not_run(tmp_path):
    objects = np.array([Ran(), {"a": [1]}], object)
    (tmp_path / "plain.pickle").write_bytes(pickle.dumps(Ran()))
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    for name in ("plain.pickle", "objects.npy"):
        said = (
            SAID + r"a file with pickled objects, which run code .*\. Fix: np\.load\(file, allow_"
        )
        with pytest.raises(ValueError, match=said):
            jnp.load(tmp_path / name)
        with (
            open(tmp_path / name, "rb") as file,
            pytest.raises(ValueError, match="pickled objects"),
        ):
            jnp.load(file)
    path = archive(tmp_path, o_npy=npy(objects, allow_pickle=True), p_npy=pickle.dumps(Ran()))
    with jnp.load(path) as loaded:
        with pytest.raises(ValueError, match=SAID + "'o' of an archive with pickled objects"):
            loaded["o"]
        with pytest.raises(ValueError, match=r"got 'p', which is another file"):
            loaded["p"]
    assert not Ran.ran


def test_damaged_files(tmp_path):
    whole = npy(np.arange(100.0))
    path = tmp_path / "x.npy"
    rng = random.Random(0)
    for cut in (0, 1, 5, 9, 40, 127, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"\[load\] .*Fix: "):
            jnp.load(path)
    with np.errstate(all="ignore"):
        file = archive(tmp_path, x_npy=whole, y_npy=npy(np.ones(5, "f4")))
        content = file.read_bytes()
        for _ in range(100):
            for target, original in ((path, whole), (file, content)):
                flipped = bytearray(original)
                flipped[rng.randrange(min(len(flipped), 160))] ^= 1 << rng.randrange(8)
                if rng.random() < 0.5:
                    flipped[-rng.randrange(1, 120)] ^= 1 << rng.randrange(8)
                target.write_bytes(bytes(flipped))
                check_reading(target)


def check_reading(path):
    """An error in our form, or arrays."""
    try:
        loaded = jnp.load(path)
    except (ValueError, TypeError) as error:
        assert str(error).startswith("["), error
        assert "Fix: " in str(error)
        return
    if hasattr(loaded, "files"):
        for name in loaded:
            try:
                assert isinstance(loaded[name], np.ndarray)
            except ValueError as error:
                assert str(error).startswith("[load] ") and "Fix: " in str(error)
        loaded.close()
    else:
        np.asarray(loaded)


def test_a_shape_that_does_not_fit_in_memory(tmp_path):
    text = npy(np.arange(3.0)).replace(b"(3,), }" + b" " * 14, b"(3" + b"0" * 14 + b",), }")
    (tmp_path / "x.npy").write_bytes(text)
    with pytest.raises(ValueError, match=SAID):
        jnp.load(tmp_path / "x.npy")


@pytest.mark.parametrize("kind", ["FIFO", "folder", "character device"])
def test_what_is_not_a_file_is_not_waited_for(kind, tmp_path):
    path = tmp_path / "x.npy"
    {
        "FIFO": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "character device": lambda: path.symlink_to("/dev/zero"),
    }[kind]()
    errors = []

    def read():
        try:
            jnp.load(path)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits"
    assert errors[0].startswith(f"[load] the file must be a regular one; got a {kind} at ")
    assert "Fix: give the path" in errors[0]


def test_wrong_calls_keep_their_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        jnp.load(tmp_path / "none.npy")
    jnp.save(tmp_path / "x.npy", jnp.arange(3))
    with pytest.raises(TypeError, match="unexpected keyword"):
        jnp.load(tmp_path / "x.npy", other=1)
    np.testing.assert_array_equal(jnp.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(3))
    np.testing.assert_array_equal(jnp.load(str(tmp_path / "x.npy")), np.arange(3))
    with open(tmp_path / "x.npy", "rb") as file:
        np.testing.assert_array_equal(jnp.load(file), np.arange(3))
