"""The pip command of an extra works where gpuflow came from a clone."""

import json

import pytest

from gpuflow.base import installation


class Distribution:
    def __init__(self, url):
        self.url = url

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.url is None else json.dumps({"url": self.url, "dir_info": {}})


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a space in its name, from which the package was installed elsewhere."""
    folder = tmp_path / "my clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.setattr(installation, "PACKAGE_FOLDER", str(tmp_path / "site-packages" / "gpuflow"))
    return folder


def install_from(monkeypatch, url):
    monkeypatch.setattr(installation.metadata, "distribution", lambda name: Distribution(url))


def test_in_a_clone(clone, monkeypatch):
    monkeypatch.setattr(installation, "PACKAGE_FOLDER", str(clone / "gpuflow") + "/")
    assert installation.pip_install("demo") == f'pip install "{clone}[demo]"'
    monkeypatch.chdir(clone)
    assert installation.pip_install("demo") == 'pip install ".[demo]"'


def test_installed_from_a_clone(clone, monkeypatch):
    install_from(monkeypatch, clone.as_uri())
    assert installation.pip_install("cuda13") == f'pip install "{clone}[cuda13]"'
    (clone / "pyproject.toml").unlink()
    assert installation.pip_install("cuda13") == 'pip install "gpuflow[cuda13]"'


@pytest.mark.parametrize("url", [None, "https://example.org/gpuflow.whl", "file:///nowhere"])
def test_installed_from_elsewhere(clone, monkeypatch, url):
    install_from(monkeypatch, url)
    assert installation.pip_install("mpi") == 'pip install "gpuflow[mpi]"'
    error = installation.metadata.PackageNotFoundError()

    def missing(name):
        raise error

    monkeypatch.setattr(installation.metadata, "distribution", missing)
    assert installation.pip_install("mpi") == 'pip install "gpuflow[mpi]"'
