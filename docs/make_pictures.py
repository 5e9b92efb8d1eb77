"""Write pictures/explain.png: the page of the README's training step, as Chromium shows it.

    python docs/make_pictures.py        # needs Chromium (Debian: apt install chromium) and Pillow
"""

from __future__ import annotations

import linecache
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

import gpuflow as gf

DOCS = Path(__file__).resolve().parent
OUTPUT = DOCS / "pictures" / "explain.png"
FILE = "train.py"  # what the page calls the README's example
STEP = "#step-2"  # what is marked
WIDTH, TALL, SHOWN = 1240, 4000, 720  # a window in which nothing scrolls, and how much is kept


def example() -> dict[str, Any]:
    """What the first example of the README defines."""
    code = re.search(r"```python\n(.*?)^```", (DOCS.parent / "README.md").read_text(), re.M | re.S)
    assert code is not None
    linecache.cache[FILE] = (len(code[1]), None, code[1].splitlines(keepends=True), FILE)
    names: dict[str, Any] = {}
    exec(compile(code[1], FILE, "exec"), names)
    return names


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("chromium must be installed; got none. Fix: apt install chromium", file=sys.stderr)
        return 1
    names = example()
    found = gf.explain(names["step"], names["params"], names["x"], names["y"], measure=True)
    with tempfile.TemporaryDirectory() as folder:
        page, picture = found.to_html(f"{folder}/page.html"), Path(folder, "page.png")
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={folder}/browser", f"--window-size={WIDTH},{TALL}",
             f"--screenshot={picture}", f"{page.as_uri()}{STEP}"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        image = Image.open(picture).convert("RGB").crop((0, 0, WIDTH, SHOWN))
    OUTPUT.parent.mkdir(exist_ok=True)
    image.quantize(128).save(OUTPUT, optimize=True)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
