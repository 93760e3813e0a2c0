"""The commands info and export: what a learner has learnt, and the learner as one file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.state import State, load_learner, print_warnings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from classgrad.learner.info import Info
    from classgrad.learner.learner import Learner
    from classgrad.learner.learnt import LearntTask
    from classgrad.learner.movement import Drift
    from classgrad.methods.projection.forecast import LayerForecast

app = typer.Typer()
WIDE = 70  # columns of text: room for every column of the table of tasks
ALIKE = {"images": "look alike", "sentences": "are the same"}


@app.command(epilog="Examples: classgrad info state | classgrad info state --json")
def info(
    state: State,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show the tasks of a learner, the free rank of its layers, its memory and its settings."""
    from rich.console import Console

    from classgrad.learner.info import read, read_begun

    learner_info = read_begun(state) or read(state)
    if as_json:
        print(json.dumps(asdict(learner_info), indent=1))
        return
    show_info(Console(markup=False, highlight=False), learner_info)


def show_info(console: "Console", learner_info: "Info") -> None:
    """Print tables of the tasks and of the ranks of layers, and lines on the rest."""
    from classgrad.learner.kinds import named_kind
    from classgrad.methods.projection.forecast import Capacity
    from classgrad.report.text import size

    def line(title: str, text: str) -> None:
        console.print(f"{title:<10} {text}", soft_wrap=True)

    kind = named_kind(learner_info.settings["network"])
    for warning in learner_info.warnings:
        console.print(f"{warning}; this is the previous one", soft_wrap=True)
    if learner_info.tasks:
        console.print(task_table(learner_info.tasks, kind.several, console.width), "")
    if learner_info.free_rank:
        console.print(rank_table(learner_info.free_rank), "")
        line("free rank", str(Capacity(learner_info.free_rank)))
    if learner_info.unfinished is not None:
        first = "" if learner_info.tasks else ", the first task"
        line(
            "unfinished",
            f"{learner_info.unfinished}{first}: repeat the command that was cut short to resume it",
        )
    for task in learner_info.tasks:
        if task.forgotten:
            stay = " (their directions stay protected)" if learner_info.free_rank else ""
            line("forgotten", f"of {task.name}: {', '.join(task.forgotten)}{stay}")
    for text in drift_lines(learner_info.drift):
        line("drift", text)
    memory = dict(learner_info.bytes)
    disk = f"on disk {size(memory.pop('disk'))}"
    parts = ", ".join(f"{name} {size(count)}" for name, count in memory.items())
    line("memory", f"{parts}; {disk}" if parts else disk)
    settings = dict(learner_info.settings)
    trained = ("method", "training") if settings["tune"] != "none" else ()
    for title in (*trained, "network_options"):
        values = dict(settings.pop(title))
        name = [values.pop("name")] if title == "method" else []
        pairs = [f"{key}={value}" for key, value in values.items()]
        line(title.partition("_")[2] or title, " ".join([*name, *pairs]) or "-")
    for task_name, text in other_settings(learner_info):
        line("but", f"{task_name} was learnt with {text}")
    network = settings["network"] or "your own"
    if "size" in settings:  # known once a task is learnt
        network += f", {kind.size_text(settings['size'])}"
    precision = f", {settings['precision']}" if settings["precision"] else ""
    line("network", f"{network}, tune {settings['tune']}, seed {settings['seed']}{precision}")


def other_settings(learner_info: "Info") -> list[tuple[str, str]]:
    """Return the tasks that were learnt with other settings than the last ones, and with which."""
    found = []
    for task in learner_info.tasks:
        pairs = []
        for part, then in task.settings.items():
            now = learner_info.settings[part]
            if isinstance(then, dict):
                pairs += [f"{key}={v}" for key, v in then.items() if now.get(key) != v]
            elif then != now:
                pairs.append(f"{part}={then}")
        if pairs:
            found.append((task.name, " ".join(pairs)))
    return found


def drift_lines(drifts: "Sequence[Drift]") -> list[str]:
    """Return how far the features of tasks have moved, in words; one line if it is the same."""
    texts = [str(drift) for drift in drifts]
    if len(set(texts)) == 1 and drifts[0].reason:
        return texts[:1]
    return [f"of {one.task}: {text}" for one, text in zip(drifts, texts, strict=True)]


def task_table(tasks: "Sequence[LearntTask]", several: str = "images", width: int = 80) -> "Table":
    """Return a table with a row for each task, of `several` images or sentences.

    In less than 70 columns of text it leaves out how many of them intervals are told from.
    """
    from classgrad.report.terminal import plain_table

    table = plain_table()
    table.add_column("task", overflow="fold", min_width=5)
    table.add_column("classes", justify="right", no_wrap=True)
    table.add_column(several, justify="right", no_wrap=True)
    table.add_column("accuracy\n%", justify="right", no_wrap=True)
    # Two lines where space is short.
    table.add_column("95 %\ninterval", justify="right", min_width=len("interval"))
    if width >= WIDE:
        table.add_column("from", justify="right", no_wrap=True)
    table.add_column("learnt", justify="right", no_wrap=True)
    for task in tasks:
        interval = task.interval
        cells = [
            task.name,
            str(len(task.class_names) - len(task.forgotten)),
            f"{sum(task.samples):,}",
            "-" if task.accuracy is None else f"{task.accuracy:.1f}",
            "-" if interval is None else f"{interval['low']:.1f} to {interval['high']:.1f}",
        ]
        if width >= WIDE:
            cells.append("-" if interval is None else f"{interval['samples']:,}")
        table.add_row(*cells, task.when[:10])
    return table


def rank_table(layers: "Sequence[LayerForecast]") -> "Table":
    """Return a table with a row for each layer: directions in use, of how many, classes left."""
    from classgrad.report.terminal import plain_table

    table = plain_table()
    table.add_column("layer", overflow="fold")
    for heading in ("in use", "of", "classes\nleft", "9 of 10\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in layers:
        left = "-" if layer.classes_left is None else f"{layer.classes_left:,}"
        between = "-" if not layer.classes_left else f"{layer.fewest:,} to {layer.most:,}"
        table.add_row(layer.name, f"{layer.rank:,}", f"{layer.dimension:,}", left, between)
    return table


def print_task(
    console: "Console",
    learner: "Learner",
    task: str,
    folder: Path,
    before: int | None,
    verbose: bool = False,
) -> None:
    """Print the result of learning a task in a few lines.

    `before` is the number of images or sentences it had before, if it was known.
    """
    several = learner.kind.several
    learnt = learner.tasks[learner.task_number(task)]
    count = sum(learnt.samples)
    added = f"{count:,}" if before is None else f"{count:,}, {count - before:,} of them new"
    title = f"{task}, learnt before from the same {several}" if before == count else task
    capacity = learner.capacity()
    lines = [
        ("task", title),
        ("classes", ", ".join(learnt.class_names)),
        (several, added),
        *accuracy_lines(learner, learnt, several),
        *([("free rank", str(capacity))] if capacity.layers else []),
        ("saved", str(folder)),
    ]
    for name, text in lines:
        console.print(f"{name:<10} {text}", soft_wrap=True)
    if verbose and learner.classifier is not None:
        print_confusions(console, learner)


def accuracy_lines(
    learner: "Learner", learnt: "LearntTask", several: str = "images"
) -> list[tuple[str, str]]:
    """Return how often classes are told apart: those of the task, and all classes so far."""
    figures, alone, weakest = learnt.task_free, learnt.accuracy, weakest_lines(learnt, several)
    known = len(learnt.class_names) - len(learnt.forgotten)
    if alone is None:
        alike = f"all {several} of a class {ALIKE[several]}" if one_scene(learnt) else ""
        text = f"no validation data: {alike or f'classes have too few {several}'}"
    elif figures is None:
        text = f"{alone:.1f} %{interval_text(learnt, several)} on validation data, balanced"
    else:
        text = f"{alone:.1f} % among the classes of this task"
    if alone is not None and known == 1:
        text = "nothing to tell apart: the task has one class"
    if figures is None:
        return [
            ("accuracy", text),
            *(weakest if alone is not None else []),
            *alike_lines(learnt, several),
        ]
    classes = len({number for task in learner.tasks for number in task.known_numbers()})
    among_all = (
        f"{figures['accuracy']:.1f} % among all {classes} classes so far "
        f"({figures['low']:.1f} to {figures['high']:.1f}), balanced, from {figures['samples']} "
        f"{several} left out one at a time; probabilities are off by "
        f"{figures['calibration_error']:.0f} points on average"
    )
    return [("accuracy", text), ("task-free", among_all), *weakest, *alike_lines(learnt, several)]


def interval_text(learnt: "LearntTask", several: str) -> str:
    """Return the interval of a task's accuracy in words, if it is known."""
    if learnt.interval is None:
        return ""
    low, high, samples = (learnt.interval[name] for name in ("low", "high", "samples"))
    return f" ({low:.1f} to {high:.1f}, from {samples} {several})"


def weakest_lines(
    learnt: "LearntTask", several: str = "images", most: int = 3
) -> list[tuple[str, str]]:
    """Return which classes of a task are recognised least often, and which were not measured."""
    lines = []
    known = [name for name in learnt.class_names if name not in learnt.forgotten]
    recalls = {name: learnt.recalls[name] for name in known if name in learnt.recalls}
    weakest = sorted(recalls.items(), key=lambda item: item[1])[:most]
    if len(recalls) > 1 and weakest[0][1] < 100:
        lines.append(("weakest", ", ".join(f"{name} {share:.0f} %" for name, share in weakest)))
    unmeasured = [name for name in known if name not in recalls]
    alike = [name for name in unmeasured if name in one_scene(learnt)]
    few = [name for name in unmeasured if name not in alike]
    for names, reason in (
        (alike, f"all {several} {ALIKE[several]}"),
        (few, f"too few {several}"),
    ):
        if names:
            lines.append(("unmeasured", f"{', '.join(names)}: {reason}"))
    return lines


def one_scene(learnt: "LearntTask") -> list[str]:
    """Return the classes of several images that all look alike, or of the same sentence."""
    classes = zip(learnt.class_names, learnt.samples, learnt.scenes or learnt.samples, strict=True)
    return [name for name, images, scenes in classes if images > 1 and scenes == 1]


def alike_lines(learnt: "LearntTask", several: str) -> list[tuple[str, str]]:
    """Return how many images look alike, and so count as one."""
    images, scenes = sum(learnt.samples), sum(learnt.scenes or learnt.samples)
    if scenes == images:
        return []
    what = "scene" if scenes == 1 else "scenes"
    if several == "sentences":
        return [("alike", f"{images:,} sentences, {scenes:,} of them different: each counts once")]
    return [
        ("alike", f"{images:,} images show {scenes:,} {what}, each of which counts as one image")
    ]


def print_confusions(console: "Console", learner: "Learner", most: int = 10) -> None:
    """Print the classes that are mistaken for others most often."""
    from classgrad.learner.learnt import numbered_classes

    assert learner.classifier is not None
    names = numbered_classes(learner.tasks)
    for true, answer, share in learner.classifier.confusions()[:most]:
        console.print(
            f"confused   {share:.0%} of {names[true][0]} with {names[answer][0]}", soft_wrap=True
        )


EXPORT_EXAMPLES = (
    "Examples: classgrad export state -o all.pt2 | classgrad export state -o all.onnx | "
    "classgrad export state --task birds -o birds.pt2 --model mine:trunk --force"
)


def export(
    state: Annotated[Path, typer.Argument(help="Folder of the learner.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write: NAME.pt2 or NAME.onnx.")
    ],
    task: Annotated[
        str | None, typer.Option(help="The task whose classes it predicts, by default all.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="Function or class that makes the trunk, if it is your own."
        ),
    ] = None,
    floats: Annotated[
        bool, typer.Option("--floats", help="Take floats from 0 to 1 instead of uint8.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a learner to one file that predicts as it does, without classgrad.

    PyTorch runs NAME.pt2 and onnxruntime NAME.onnx, which the extra onnx is needed for. It takes
    pictures of uint8, or the numbers of a sentence's tokens, and returns the probabilities of
    classes and, by class statistics, the p-value that tells what is none of these.
    """
    from rich.console import Console

    from classgrad.learner.export import export as write
    from classgrad.learner.export import refuse_place

    refuse_place(out, force)
    learner = load_learner(state, model)
    print_warnings(Console(stderr=True), learner)
    write(learner, out, task, floats=floats, force=force)
    print(out)
