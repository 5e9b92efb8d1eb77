"""mypy and pyright take what is right, and refuse what is wrong.

``right/`` holds scripts of users, which run as well. Lines of ``wrong.py`` that end in ``# wrong``
must be refused, and no others. The pages of the docs are checked too; their functions have no
annotations. Both checkers are in the dev extra.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpuflow as gf

pytestmark = pytest.mark.skipif(
    gf.default_backend() != "cpu", reason="checked once: types know no platform"
)
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPTS = sorted((HERE / "right").glob("*.py"))
MYPY_LINE = re.compile(r"^(.+?):(\d+): error: (.*)$")
LEAST_SCRIPTS, LEAST_WRONG = 20, 40
MYPY = """\
[mypy]
strict = true
follow_imports = silent
mypy_path = {root}
cache_dir = {folder}/.mypy

[mypy-cupy.*,jax.*,jaxlib.*,matplotlib.*,numba.*,scipy.*,sklearn.*]
follow_imports = skip
ignore_missing_imports = true

[mypy-pages.*]
allow_redefinition = true
disallow_untyped_defs = false
disallow_incomplete_defs = false
disallow_untyped_calls = false
disallow_untyped_decorators = false
warn_return_any = false
"""

# A line of a file, and what is wrong there.
Complaint = tuple[str, int, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts and the code of the pages, as a user would have them beside an installation."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(HERE / "right", folder / "right")
    shutil.copy(HERE / "wrong.py", folder / "wrong.py")
    (folder / "pages").mkdir()
    (folder / "pages" / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("test_docs", ROOT / "tests" / "test_docs.py")
    docs = importlib.util.module_from_spec(spec)
    sys.modules["test_docs"] = docs  # for the dataclass in it
    spec.loader.exec_module(docs)
    pages = [page for page in docs.PAGES if isinstance(page, str)]  # others need libraries
    for page in pages:
        blocks = docs.blocks_of((ROOT / page).read_text(encoding="utf-8"))
        text = "\n".join(block.code for block in blocks)
        (folder / "pages" / f"{Path(page).stem.lower()}.py").write_text(text)
    return folder


# --- the checkers --------------------------------------------------------------------------------


def mypy_complaints(folder: Path) -> list[Complaint]:
    api = pytest.importorskip("mypy.api", reason="mypy is in the dev extra")
    settings = folder / "mypy.ini"
    settings.write_text(MYPY.format(root=ROOT, folder=folder))
    paths = [str(folder / name) for name in ("right", "pages", "wrong.py")]
    out, err, status = api.run(["--config-file", str(settings), "--no-error-summary", *paths])
    assert status in (0, 1), out + err
    lines = [MYPY_LINE.match(line) for line in out.splitlines() if ": note: " not in line]
    assert all(lines), out
    return [(line[1], int(line[2]), line[3]) for line in lines]


def pyright_complaints(folder: Path) -> list[Complaint]:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is in the dev extra")
    command = [sys.executable, "-m", "pyright"]
    if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("pyright cannot load its program")
    settings = folder / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": ["right", "pages", "wrong.py"],
                "strict": ["right", "wrong.py"],
                "typeCheckingMode": "basic",
                "extraPaths": [str(ROOT)],
                "reportMissingModuleSource": "none",
            }
        )
    )
    run = subprocess.run(
        [*command, "--project", str(settings), "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert found["summary"]["filesAnalyzed"] > len(SCRIPTS)
    return [
        (item["file"], item["range"]["start"]["line"] + 1, item["message"])
        for item in found["generalDiagnostics"]
    ]


# --- what is right, and what is not --------------------------------------------------------------


def check(complaints: list[Complaint]) -> None:
    """Each wrong line is complained of, and nothing else."""
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("  # wrong")}
    assert len(wrong) >= LEAST_WRONG
    others = [one for one in complaints if not one[0].endswith("wrong.py")]
    assert [one for one in others if not is_meant(one)] == []
    seen = {number for file, number, _ in complaints if file.endswith("wrong.py")}
    assert [lines[number - 1] for number in sorted(wrong - seen)] == []
    assert [lines[number - 1] for number in sorted(seen - wrong)] == []


def is_meant(complaint: Complaint) -> bool:
    """Whether it is of a line of a page that shows an error, or of Numba, which has no types."""
    file, number, _ = complaint
    code = Path(file).read_text(encoding="utf-8")
    tried = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Try)]
    shows_error = any(node.lineno < number <= node.body[-1].end_lineno for node in tried)
    return shows_error or "numba." in code.splitlines()[number - 1]


def test_there_are_scripts():
    assert len(SCRIPTS) >= LEAST_SCRIPTS


def test_mypy(folder):
    check(mypy_complaints(folder))


def test_pyright(folder):
    check(pyright_complaints(folder))


def test_right_scripts_run():
    """All in one process; what type checkers take, programs do."""
    code = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, SCRIPTS)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stderr[-3000:]
