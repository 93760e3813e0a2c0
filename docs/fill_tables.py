"""Fill the tables of the documentation from records: python docs/fill_tables.py.

A page marks the place with `<!-- table: FOLDER -->` and `<!-- end -->`; FOLDER holds the folders of
runs, relative to the root of the repository.
"""

import re
from pathlib import Path

from classgrad.records import RunRecord
from classgrad.report import markdown

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return a page with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        paths = sorted((ROOT / match[2]).glob("*/record.json"))
        if not paths:
            raise SystemExit(f"no records in {match[2]}")
        return match[1] + markdown([RunRecord.load(path) for path in paths]) + match[3]

    return TABLE.sub(table, page)


if __name__ == "__main__":
    for path in (ROOT / "docs").rglob("*.md"):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
