"""The command tune: settings chosen on held-out training images."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.logs import LogFormat, Quiet, Verbose, open_log
from classgrad.cli.options import (
    Benchmark,
    DataDir,
    Device,
    Methods,
    NetworkName,
    Recipe,
    SaveMinutes,
    parse_grid,
    parse_seeds,
    parse_settings,
    values_by_method,
)
from classgrad.cli.reproduce import (
    DryRun,
    Jobs,
    Threads,
    execute_jobs,
    pool_options,
    report_failures,
)
from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from rich.table import Table

    from classgrad.experiments.tune import Outcome, Study

EXAMPLES = (
    "Examples: classgrad tune split-digits --method gpm --over energy=0.9,0.95,0.98 --jobs 2 | "
    "classgrad tune split-digits --method cgp,gpm --over learning_rate=0.02,0.05,0.1 "
    "--set epochs=3 --set train_per_class=50 | "
    "classgrad tune split-cifar100 --method ewc --over strength=100,1000,10000 --set epochs=3 "
    "--write my-recipe.toml"
)


def tune(
    benchmark: Benchmark,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="A setting with the values to try. Can be repeated: all combinations are tried.",
        ),
    ],
    method: Methods = "cgp",
    seeds: Annotated[
        str,
        typer.Option(help="Seeds for every point, separated by commas; from 100 on."),
    ] = "101,102,103",
    held_out: Annotated[
        float,
        typer.Option(
            help="Share of each class's training images to judge by, instead of the test images."
        ),
    ] = 0.2,
    by: Annotated[
        str | None,
        typer.Option(
            help="Choose by the accuracy without the task: by statistics, confidence or "
            "prototypes; by default by that with the task."
        ),
    ] = None,
    recipe: Recipe = "fast",
    network: NetworkName = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of all trials, by name or alias. Can be repeated.",
        ),
    ] = None,
    out: Annotated[
        str, typer.Option(help="Folder for the choices and the trials.")
    ] = "results/tuning",
    jobs: Jobs = None,
    threads: Threads = None,
    save_minutes: SaveMinutes = 5.0,
    data_dir: DataDir = None,
    device: Device = "cpu",
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE.toml",
            help="Also write the chosen values into this recipe file; all else in it stays.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = None,
    dry_run: DryRun = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the choices as JSON and nothing else.")
    ] = False,
) -> None:
    """Choose settings by the accuracy on held-out training images; no test image is used.

    Of all combinations, the one with the highest mean accuracy over seeds is chosen. Finished
    trials are not repeated, and trials that were cut short are resumed.
    """
    from classgrad.experiments import tune as tuning
    from classgrad.experiments.remote import Results

    if "://" in out:
        raise UserError(f"--out takes a folder for tune (got '{shown(out)}')")
    grids = values_by_method(method, parse_grid(over))
    fixed = values_by_method(method, parse_settings(settings or []))
    numbers = parse_seeds(seeds, "--seeds")
    studies = [
        tuning.Study(benchmark, name, grid, numbers, held_out, recipe, network, fixed[name], by)
        for name, grid in grids.items()
    ]
    for study in studies:
        study.check()
    if write is not None:
        check_writable(write, studies)
    options = pool_options(jobs, threads, data_dir, save_minutes, device, None)
    folder, runs = Path(out), Path(out, "runs")
    all_jobs = [job for study in studies for job in study.jobs(runs)]
    opened = open_log(log_format, quiet=quiet, verbose=verbose, as_json=as_json, several=True)
    with opened as log:
        statuses = execute_jobs(log, all_jobs, Results(runs), options, None, dry_run)
        if dry_run:
            return
        command = shlex.join(["classgrad", *sys.argv[1:]])
        contents = []
        for study in studies:
            result = tuning.outcome(study, runs, statuses)
            if result is None:
                continue
            path = tuning.save(result, folder, command)
            contents.append(json.loads(path.read_text(encoding="utf-8")))
            shared = ", ".join(map(str, study.seeds))
            title = f"{study.benchmark}, {study.method}: on held-out images, mean of seeds {shared}"
            log.console.print(title, soft_wrap=True)
            log.console.print(outcome_table(result))
            for line in result.edges():
                log.console.print(line, soft_wrap=True)
            log.console.print(f"choice    {path}", soft_wrap=True)
            if write is not None and result.choice is not None:
                write_choice(write, result, path)
                log.console.print(f"recipe    {write}", soft_wrap=True)
        if contents:
            log.console.print(f"rule      {studies[0].rule}", soft_wrap=True)
        if as_json:
            print(json.dumps(contents[0] if len(studies) == 1 and contents else contents, indent=1))
        report_failures(log, [status for status in statuses if not status.diverged])
        without = [content["method"] for content in contents if content["choice"] is None]
        if without:
            raise UserError(f"every trial of {without[0]} diverged: try other values")


def outcome_table(outcome: "Outcome") -> "Table":
    """Return the points of a grid with their figures on held-out images, the choice marked."""
    from classgrad.cli.experiments import plain_table
    from classgrad.experiments.tune import point_text

    table = plain_table()
    table.add_column("settings", overflow="fold")
    judged = f"by {outcome.study.by} %" if outcome.study.by else "ACC %"
    for heading in (judged, "BWT", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for number, point in enumerate(outcome.points):
        accuracy, transfer = point.accuracy, point.transfer
        table.add_row(
            point_text(point.values),
            accuracy.text(digits=2) if accuracy else "diverged",
            transfer.text(signed=True, digits=2) if transfer else "-",
            "chosen" if number == outcome.chosen else "",
        )
    return table


def check_writable(path: Path, studies: "list[Study]") -> None:
    """Refuse, before anything is run, a recipe file that choices could not be written into."""
    from classgrad.experiments.tune import with_choice

    text = read_recipe(path)
    for study in studies:
        for point in study.points():
            with_choice(text, study, point, "file")


def write_choice(path: Path, outcome: "Outcome", file: Path) -> None:
    """Write the chosen values of a study into a recipe file, with the name of the study's file."""
    from classgrad.experiments.tune import with_choice
    from classgrad.files import write_atomic

    assert outcome.choice is not None
    text = with_choice(read_recipe(path), outcome.study, outcome.choice, file.as_posix())
    write_atomic(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_recipe(path: Path) -> str:
    """Return the text of a recipe file; refuse what is none."""
    from classgrad.runs import recipes

    if path.suffix != ".toml":
        raise UserError(f"--write takes a recipe file that ends in .toml (got '{shown(path)}')")
    recipes.load(str(path.absolute()))  # not by name: fast.toml is that file
    return path.read_text(encoding="utf-8")
