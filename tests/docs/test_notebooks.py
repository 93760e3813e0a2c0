"""Every notebook runs from its first cell to its last, and is stored without outputs."""

import json
import os
import re
from pathlib import Path

import pytest

from forked import Forked

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted(ROOT.glob("notebooks/*.ipynb"))}


def cells(path, kind):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def ran(name, folder):
    """Run the code of a notebook in a process of its own; return what it prints."""
    code = "\n\n".join("".join(cell["source"]) for cell in cells(NOTEBOOKS[name], "code"))
    script = folder / f"{name}.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = Forked(["-W", "error", str(script)], folder, environment)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), err
    return out


def test_there_are_the_two():
    assert list(NOTEBOOKS) == ["own_loop", "photos_over_the_years"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_has_no_outputs_and_its_links_lead_somewhere(name):
    path = NOTEBOOKS[name]
    for cell in cells(path, "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    for cell in cells(path, "markdown"):
        for link in re.findall(r"\]\(([^)#]+)\)", "".join(cell["source"])):
            assert (path.parent / link).exists(), link


def test_with_projection_the_own_loop_keeps_what_it_has_learnt(tmp_path):
    out = ran("own_loop", tmp_path)
    lost = {}
    for title, part in zip(("without", "with"), out.split("with projection\n"), strict=True):
        lines = [line for line in part.splitlines() if re.match(r" +\d+\.\d", line)]
        rows = [list(map(float, line.split())) for line in lines]
        assert [len(row) for row in rows] == [1, 2, 3, 4, 5]
        lost[title] = max(rows[n][n] - row[n] for row in rows for n in range(len(row)))
    assert lost["without"] > lost["with"] + 5
    assert re.search(r"^layer 1: \d+ of 64 directions in use$", out, re.MULTILINE)


def test_the_learner_tells_photos_of_all_years_apart(tmp_path):
    out = ran("photos_over_the_years", tmp_path)
    for name in ("lime", "tomato", "banana", "plum"):
        assert f"{name}: {name}, {name}, {name}\n" in out
    assert "spring, learnt 20" in out
