"""The commands report and watch: runs compared on an HTML page, written once or kept up to date."""

import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.errors import Stopped, UserError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from classgrad.report.lines import ExperimentLine
    from classgrad.report.page.summary import Section
    from classgrad.runs.record import RunRecord


REPORT_EXAMPLES = (
    "Examples: classgrad report runs | classgrad report results/permuted-digits -o digits.html "
    "--against cgp | classgrad report runs/* --markdown table.md --csv table.csv --pictures images"
)


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or folders that contain such folders.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The page to write; by default report.html, or none if Markdown is printed.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the comparison as Markdown; - prints it."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the comparison as CSV.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also draw every figure into PNG and SVG files."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL", help="The row that others are compared with; by default the best."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
) -> None:
    """Compare runs on one HTML page that opens in any browser, also offline.

    It has means over seeds, the paper's figures, accuracy, forgetting, free rank and cost.
    """
    from classgrad.report.page import page_of
    from classgrad.report.page.summary import sections
    from classgrad.report.page.tables import comma_separated
    from classgrad.report.page.tables import markdown as as_markdown

    markdown_to_stdout = markdown == Path("-")
    if out is None and not markdown_to_stdout:
        out = Path("report.html")
    files = [
        *([out] if out else []),
        *([markdown] if markdown and not markdown_to_stdout else []),
        *([csv] if csv else []),
    ]
    for file in files:
        refuse_unwritable_file(file)
    if len({file.resolve() for file in files}) < len(files):
        raise UserError(f"'{shown(files[-1])}' is named twice: give each output its own file")
    if pictures:
        refuse_unwritable_folder(pictures)
    records = read_records(runs)
    compared = sections(records, against, experiment_lines(records))
    left_out = len(records) - sum(len(row.runs) for section in compared for row in section.rows)
    if left_out:
        why = "repeats of the same settings and seed"
        print(f"left out  {left_out} of {len(records)} records: {why}", file=sys.stderr)
    texts = {out: page_of(compared, title=title)} if out else {}
    if markdown:
        texts[markdown] = as_markdown(compared)
    if csv:
        texts[csv] = comma_separated(compared)
    if markdown_to_stdout:
        print(texts.pop(Path("-")), end="")
    for file, text in texts.items():
        write_text(file, text)
    stream = sys.stderr if markdown_to_stdout else sys.stdout
    if pictures:
        print(f"pictures  {pictures}: {draw_into(pictures, compared)} files", file=stream)
    if out:
        print(f"page      {out}", file=stream)


WATCH_EXAMPLES = (
    "Examples: classgrad watch runs | classgrad watch runs --open | "
    "classgrad watch runs/split-cifar100-* --port 9000"
)


def watch(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or folders that contain such folders.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="By default 8123 or the next free port; 0 takes any free port."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs in a browser, on this machine only; the page is updated while they run.

    Runs that start later appear, too: their folders need not exist yet. Stop with Ctrl-C.
    """
    import webbrowser

    from classgrad.checkpoints.manager import on_stop_signal
    from classgrad.report.server import WatchedRuns, open_server

    def stop_server(number: int, frame: object) -> None:
        raise Stopped(number)  # the server handles any Exception as one of a request

    watched = WatchedRuns(runs, experiment_lines)
    try:
        with on_stop_signal(stop_server), open_server(watched, port) as server:
            print(f"{server.address}  (Ctrl-C to stop)", flush=True)
            if open_page:
                webbrowser.open(server.address)
            server.serve_forever()
    except Stopped as stop:
        raise typer.Exit(128 + stop.number) from None


def experiment_lines(records: "Sequence[RunRecord]") -> "list[ExperimentLine]":
    """Return the lines of all experiments that runs on these benchmarks can be of.

    What identifies their runs is in lines.json, because the classes of methods need torch, which
    takes more than a second to import. `python tests/list_tables.py` writes it.
    """
    from classgrad.experiments import spec as experiments
    from classgrad.report.lines import Budget, ExperimentLine

    kinds = {(record.benchmark, record.recipe) for record in records}
    text = resources.files("classgrad.cli").joinpath("lines.json").read_text(encoding="utf-8")
    lines = []
    for name, entries in json.loads(text).items():
        of_kinds = [
            entry
            for entry in entries
            if (entry["identity"]["benchmark"], entry["identity"]["recipe"]) in kinds
        ]
        if not of_kinds:
            continue
        experiment = experiments.load(name)
        by_label = {line.label: line for line in experiment.lines}
        for entry in of_kinds:
            line = by_label[entry["label"]]
            published = line.paper
            lines.append(
                ExperimentLine(
                    identity=entry["identity"],
                    experiment=experiment.name,
                    label=line.label,
                    source=f"{experiment.title}, {line.label} ({experiment.source})",
                    tolerance=experiment.tolerance,
                    paper_budget=Budget(**entry["paper_budget"]),
                    accuracy=published.accuracy if published else None,
                    transfer=published.transfer_percent if published else None,
                )
            )
    return lines


def draw_into(folder: Path, compared: "list[Section]") -> int:
    """Draw every figure into a folder, with a progress bar; return the number of files."""
    from rich.console import Console

    from classgrad.report.page.pictures import draw
    from classgrad.report.text import bar

    try:
        with bar(Console(stderr=True), "pictures") as move:
            return len(draw(compared, folder, move))
    except OSError as error:
        raise UserError(f"'{shown(folder)}' cannot be written to: {shown(error)}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    from classgrad.files import write_atomic

    try:
        write_atomic(path, lambda part: part.write_text(text, encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise UserError(f"'{shown(path)}' cannot be written: {shown(error)}") from None


def read_records(paths: list[Path]) -> "list[RunRecord]":
    """Read the records in folders, each once; ignore pictures, pages and tables."""
    from classgrad.report.records import record_files
    from classgrad.runs.record import RunRecord

    files: dict[Path, Path] = {}  # by resolved path
    for path in paths:
        files_below = record_files([path])
        if path.is_dir() and not files_below:
            raise UserError(f"no runs in '{shown(path)}': give a folder that 'run' wrote to")
        files.update((file.resolve(), file) for file in files_below)
    if not files:
        raise UserError("only pictures, pages or tables are given: give folders of runs")
    return [RunRecord.load(file) for file in files.values()]


def refuse_unwritable_file(path: Path) -> None:
    """Refuse a path that no file can be written to, and the name of a run's record."""
    from classgrad.runs.record import FILE_NAME

    if path.is_dir():
        raise UserError(f"'{shown(path)}' is a folder: give the name of a file")
    if path.name == FILE_NAME:
        raise UserError(f"'{shown(path)}' is the file name of records: give another name")
    refuse_unwritable_folder(path.parent)
    if not path.parent.is_dir():
        raise UserError(f"'{shown(path.parent)}' is not a folder: make it, or give another")


def refuse_unwritable_folder(path: Path) -> None:
    """Refuse a folder that can be neither written to nor created."""
    folder = path if path.exists() else path.parent
    if not folder.is_dir():
        raise UserError(f"'{shown(folder)}' is not a folder: make it, or give another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"'{shown(folder)}' cannot be written to: give another folder")
