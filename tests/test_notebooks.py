"""The notebooks of docs/notebooks run, and print the outputs that are stored in them."""

import contextlib
import io
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.name}:{number}", "exec"), names)
        stored = [output for output in cell["outputs"] if output["output_type"] == "stream"]
        expected = "".join("".join(output["text"]) for output in stored)
        assert printed.getvalue() == expected, f"cell {number}"


def test_there_are_notebooks():
    assert NOTEBOOKS
