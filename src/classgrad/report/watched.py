"""Runs that are looked at again and again: their page, made anew only when a record changed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from classgrad.checkpoints.lock import in_use
from classgrad.errors import UserError
from classgrad.report.found import record_files
from classgrad.report.grouping import label
from classgrad.report.page import page
from classgrad.report.page.html import Live, document
from classgrad.report.page.markup import Markup, element
from classgrad.report.page.summary import refuse_huge
from classgrad.runs.record import RunRecord


class Watched:
    """What is in some folders now; a folder may come later, and a record may be damaged."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.runs = list(runs)
        self.lock = Lock()  # two tabs that ask at once get the page made once
        self.made = "", ""

    def files(self) -> list[Path]:
        """Return the records there are now."""
        return [file for file in record_files(self.runs) if file.is_file()]

    def version(self) -> str:
        """Return what changes when a record comes, goes or changes, and when its run ends."""
        seen = hashlib.sha256()
        for file in self.files():
            try:
                state = file.stat()
            except OSError:  # it has gone since it was found
                continue
            known = str(file), state.st_mtime_ns, state.st_size, in_use(file.parent)
            seen.update(repr(known).encode())
        return seen.hexdigest()[:16]

    def page(self) -> str:
        """Return the page of the records as they are now."""
        with self.lock:
            version = self.version()
            if self.made[0] != version:
                self.made = version, self.make(version)
            return self.made[1]

    def make(self, version: str) -> str:
        """Make the page of what can be read, with a note on what cannot."""
        records, cut, notes = [], [], []
        for file in self.files():
            try:
                record = RunRecord.load(file)
                refuse_huge(record)
                records.append(record)
                cut.append(not in_use(file.parent))
            except UserError as error:
                notes.append(f"Left out: {error}")
        live = Live(version, _list([*_unfinished(records, cut), *notes]))
        begun = [record for record in records if record.accuracy_matrix]
        if begun:
            return page(begun, live=live)
        title = "No run has finished a task yet"
        return document(title, "This page shows the first one when it has.", [], live)


def _unfinished(records: Sequence[RunRecord], cut: Sequence[bool]) -> list[str]:
    return [
        f"{label(record, records)} on {record.benchmark}, seed {record.seed}: "
        f"{len(record.accuracy_matrix)} of {len(record.tasks)} tasks learnt"
        + (", cut short: the command that began it goes on with it" if short else "")
        for record, short in zip(records, cut, strict=True)
        if not record.complete
    ]


def _list(lines: Sequence[str]) -> Markup:
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_="news") if items else Markup()
