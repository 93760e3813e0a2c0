"""What the tutorial shows is part of an example that runs, and every page is found."""

import re
from pathlib import Path
from textwrap import dedent, indent

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        *("tutorial", "state", "which-method", "guarantee", "glossary"),
        *("commands", "make", "own-models", "own-method", "reproduce", "results", "reliability"),
    )
]


def test_every_block_of_python_is_part_of_an_example():
    examples = [path.read_text() for path in ROOT.glob("examples/*.py")]
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    assert len(blocks) > 4
    for block in blocks:
        assert block == dedent(block)
        assert any(indent(block, "    ") in example for example in examples), block


def test_every_example_of_a_learner_is_in_the_tutorial():
    for path in ROOT.glob("examples/*.py"):
        if "Learner" in path.read_text():
            assert f"(../examples/{path.name})" in TUTORIAL


def test_links_of_the_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results" / "README.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link, heading in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]*))?\)", text):
            if link.startswith("http"):
                continue
            target = page.parent / link if link else page
            assert target.exists(), (page.name, link)
            if heading:
                assert heading in headings(target.read_text()), (page.name, link, heading)


def headings(text):
    """Names of a page's headings in links, as GitHub makes them."""
    result = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in result}


def test_the_readme_names_the_pages():
    readme = (ROOT / "README.md").read_text()
    for page in PAGES:
        assert f"(docs/{page.name})" in readme
