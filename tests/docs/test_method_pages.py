"""The page of every method says what the code does: all settings, with the defaults it has."""

import json
import re
from pathlib import Path

import pytest

from classgrad.methods import METHODS

pytestmark = pytest.mark.docs

PAGES = Path(__file__).parents[2] / "docs" / "methods"
SECTIONS = ["## Equations", "## Settings", "## What it stores", "## Run it"]


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def table(name: str) -> dict[str, str]:
    """Settings of a page: name -> its cell for the default."""
    text = page(name).split("## Settings")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    if not rows:
        return {}
    column = [cell.strip() for cell in rows[0]].index("default")
    return {re.findall(r"`(\w+)`", row[0])[0]: row[column].strip(" `") for row in rows[1:]}


def written(cell: str) -> object:
    """The value at the start of a cell."""
    word = re.split(r"[ :,(]", cell.replace("`", "").strip())[0]
    try:
        return json.loads(word)
    except ValueError:
        return word


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_is_on_the_page_with_its_default(name):
    defaults = {field: info.default for field, info in METHODS[name].model_fields.items()}
    result = table(name)
    assert result.keys() == defaults.keys()
    for field, cell in result.items():
        assert written(cell) == defaults[field], field


@pytest.mark.parametrize("name", METHODS)
def test_every_page_has_what_a_reader_looks_for(name):
    text = page(name)
    places = [text.index(section) for section in SECTIONS]
    assert places == sorted(places)
    assert f"--method {name}" in text.split("## Run it")[1]
    assert f"({name}.md)" in page("README")
