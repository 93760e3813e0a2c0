"""The site of the docs: it is made without a warning, opens offline, and has every public name."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import classgrad
from classgrad import methods

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
# What a browser loads of its own accord -> the attribute that says from where.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class Reader(HTMLParser):
    """Collects what a page loads, where it leads, and the places in it that have a name."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.links, self.names = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.names.add(values.get("id"))
        if tag in LOADED and values.get(LOADED[tag]):
            self.loaded.append(values[LOADED[tag]])
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(values["href"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])


def make_docs(place, *words):
    """Do what `make docs` does, in a folder with settings of MkDocs."""
    if find_spec("material") is None or find_spec("mkdocstrings") is None:
        pytest.skip("MkDocs is not installed: make docs")
    (command,) = re.findall(r"\$\(BIN\)/mkdocs (.*)", (ROOT / "Makefile").read_text())
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *command.split(), *words],
        cwd=place,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    made = make_docs(ROOT, "--site-dir", str(folder))
    assert made.returncode == 0, made.stderr
    return folder


def test_a_broken_link_stops_it(tmp_path):
    ours = (ROOT / "mkdocs.yml").read_text()
    kept = re.findall(r"^(?:strict:.*|validation:(?:\n  .*)+)$", ours, re.M)
    assert len(kept) == 2
    (tmp_path / "mkdocs.yml").write_text("\n".join(["site_name: small", *kept]))
    page = tmp_path / "docs" / "index.md"
    page.parent.mkdir()
    for link, code in (("index.md", 0), ("nowhere.md", 1)):
        page.write_text(f"[a link]({link})")
        made = make_docs(tmp_path)
        assert made.returncode == code, made.stderr
        assert ("nowhere.md" in made.stderr) == bool(code)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Reader(path) for path in site.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert len(pages) > 60
    for path, page in pages.items():
        assert page.loaded
        for address in page.loaded:
            assert not urlsplit(address).netloc, (path, address)
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert "url(http" not in text.replace('"', ""), path
        assert "@import" not in text, path


def test_every_link_leads_to_a_file_and_a_place_in_it(pages):
    for path, page in pages.items():
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path, address)
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].names, (path, address)


def test_every_public_name_is_in_the_reference(site, pages):
    names = set().union(*(pages[path].names for path in (site / "reference").iterdir()))
    public = [getattr(classgrad, name) for name in classgrad.__all__]
    public += [getattr(methods, name) for name in methods.__all__]
    described = {f"{x.__module__}.{x.__qualname__}" for x in public if hasattr(x, "__qualname__")}
    assert len(described) > 40
    assert described <= names
    page = (site / "reference" / "classgrad.html").read_text()
    for name in classgrad.__all__:
        assert f"classgrad.{name}" in page or name in page, name


def test_every_page_is_found_by_searching(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in [*(ROOT / "docs").rglob("*.md")]:
        place = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert place.replace("README.html", "index.html") in found, place


def test_formulas_are_shown_without_a_script(site):
    page = (site / "methods" / "gem.html").read_text()
    assert page.count("<math ") == (ROOT / "docs" / "methods" / "gem.md").read_text().count(
        "```math"
    )
    assert "language-math" not in page
