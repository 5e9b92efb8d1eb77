"""The site in a headless browser: pages load, the search finds them, no text is cut."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers", "ruff", "selenium")
PROGRAMS = ("chromium", "chromedriver")
pytestmark = [
    pytest.mark.skipif(
        not all(map(find_spec, NEEDED)), reason='needs pip install ".[docs]" --group test_site'
    ),
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)), reason="needs Debian's chromium and chromium-driver"
    ),
]
# What a user types, and the page that must come first.
SEARCHES = {
    "out of memory": "faq.html",
    "first call slow": "faq.html",
    "debug nan": "faq.html",
    "cross_entropy": "from_pytorch.html",
    "pytorch": "from_pytorch.html",
    "save a checkpoint": "checkpoints.html",
    "profiling": "profiling.html",
    "environment variables": "env_vars.html",
    "custom kernel": "kernels.html",
    "value_and_grad": "reference/gpuflow/derivatives.html",
    "NamedSharding": "reference/gpuflow/devices_and_sharding.html",
    "softmax": "reference/gpuflow.nn/index.html",
}
# Texts that leave the window or the box that hides the rest of them, but for boxes that scroll.
CUT = """
const width = document.documentElement.clientWidth, found = [];
if (document.documentElement.scrollWidth > width)
  found.push(`the page is ${document.documentElement.scrollWidth} wide`);
const texts = document.querySelectorAll(
  ".md-content *, .md-tabs__link, .md-header__title *, .md-footer *, .md-sidebar .md-nav__link *");
for (const element of texts) {
  const has_text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const box = element.getBoundingClientRect();
  if (!has_text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
    continue;
  let holder = element, scrolls = false, hides = false;
  for (; holder && holder !== document.body; holder = holder.parentElement) {
    const style = getComputedStyle(holder), inner = holder.getBoundingClientRect();
    if (["auto", "scroll"].includes(style.overflowX)) { scrolls = true; break; }
    if (["hidden", "clip"].includes(style.overflowX) && style.position !== "absolute")
      hides ||= holder.scrollWidth > holder.clientWidth + 1 || box.right > inner.right + 1;
  }
  if (!scrolls && (hides || box.right > width + 1 || box.left < -1))
    found.push(element.textContent.trim().slice(0, 60));
}
return found;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        yield driver


def set_width(browser, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def first_found(browser, site: str, phrase: str) -> str:
    """The page that the search lists first. It opens with the phrase of the address."""
    waiting = pytest.importorskip("selenium.webdriver.support.ui")
    browser.get(f"{site}/index.html?q={phrase.replace(' ', '+')}")
    links = waiting.WebDriverWait(browser, 30).until(
        lambda b: b.find_elements("css selector", "a.md-search-result__link")
    )
    return re.split("[?#]", links[0].get_attribute("href"))[0].removeprefix(f"{site}/")


def test_search_finds_the_page_first(site, browser):
    set_width(browser, 1280)
    found = {phrase: first_found(browser, site.as_uri(), phrase) for phrase in SEARCHES}
    assert found == SEARCHES


@pytest.mark.parametrize("style", ["", "overflow: hidden; width: 100px"])
def test_cut_text_is_seen(browser, style):
    set_width(browser, 400)
    for text, expected in (("short", []), ("x" * 200, ["x" * 60])):
        html = f'<!doctype html><body style="{style}"><p class="md-content"><b>{text}</b>'
        browser.get(f"data:text/html,{html}")
        assert browser.execute_script(CUT)[-1:] == expected


def test_no_text_is_cut(site, browser):
    """At the width of a laptop and of a telephone; the page for errors needs a server."""
    pages = [page for page in sorted(site.rglob("*.html")) if "design" not in page.parts]
    pages.remove(site / "404.html")
    assert len(pages) > 130
    cut = {}
    for width in (1280, 400):
        set_width(browser, width)
        for page in pages:
            browser.get(page.as_uri())
            assert browser.find_element("tag name", "h1").text, page
            if found := browser.execute_script(CUT):
                cut[str(page.relative_to(site)), width] = found[:3]
    assert not cut
    assert not [entry["message"] for entry in browser.get_log("browser")]
