"""The commands that change a learner: learn, forget."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.state import (
    Model,
    SkipBad,
    State,
    Wanted,
    made_or_opened,
    opened,
    tell_warnings,
)
from classgrad.cli.words import Device, SaveMinutes, SaveSteps, parse_settings
from classgrad.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.checkpoints import CheckpointManager
    from classgrad.data.pictures import Pictures
    from classgrad.learner.learner import Learner

app = typer.Typer()


@app.command(
    epilog="Examples: classgrad learn state --task birds --images photos/birds | classgrad learn "
    "state --task fish --images photos/fish --set epochs=20 --device cuda"
)
def learn(
    state: Annotated[Path, typer.Argument(help="Folder of the learner; the first call makes it.")],
    task: Annotated[str, typer.Option(help="A name for what is learnt.")],
    images: Annotated[Path, typer.Option(help="A folder with a folder of images for each class.")],
    network: Annotated[
        str | None, typer.Option(help="A network, by default alexnet5; see 'classgrad list'.")
    ] = None,
    model: Model = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A method, by default cgp.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting by word or letter. Those of training hold until they are changed, all "
            "others for good. Can be repeated.",
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Edge that images are scaled to, by default 32.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Same seed, same result; by default 1.")
    ] = None,
    device: Device = "cpu",
    precision: Annotated[
        str | None,
        typer.Option(
            help="What the network multiplies in: bfloat16, or float16 on devices without it; by "
            "default that of the weights. Holds for good."
        ),
    ] = None,
    skip_bad: SkipBad = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a task again that was cut short.")
    ] = False,
    no_prototypes: Annotated[
        bool,
        typer.Option(
            "--no-prototypes", help="Keep no means of classes; cgp then does without base refining."
        ),
    ] = False,
    save_minutes: SaveMinutes = 5.0,
    save_steps: SaveSteps = None,
) -> None:
    """Learn classes from folders of images, and keep what was learnt before.

    A task that was cut short goes on where it was when the command is repeated.
    """
    from rich.console import Console

    from classgrad.checkpoints import CheckpointManager
    from classgrad.cli.info import tell_learnt
    from classgrad.learner.learner import LEARNING, SingleImage

    if not task.strip():
        raise UserError("--task is empty: give the task a name")
    values = parse_settings(settings or [])
    console = Console(markup=False, highlight=False)
    checkpoints = CheckpointManager(state / LEARNING, minutes=save_minutes, steps=save_steps)
    with checkpoints.handle_stop_signals():
        wanted = Wanted(
            network, model, method, size, seed, precision, device, no_prototypes, values
        )
        learner = made_or_opened(state, wanted)
        tell_warnings(console, learner)
        pictures = read_images(console, images, learner, skip_bad)
        before = len(learner.tasks)
        with warnings.catch_warnings(action="ignore", category=SingleImage):  # told already
            learn_task(console, learner, task, pictures, state, checkpoints, fresh)
    tell_learnt(console, learner, task, state, new=len(learner.tasks) > before)


def read_images(console: "Console", images: Path, learner: "Learner", skip_bad: bool) -> "Pictures":
    """Read the folders of classes, and tell what is odd about them."""
    from classgrad.data.pictures import read_class_folders
    from classgrad.report.bar import bar

    with bar(console, "images") as move:
        pictures = read_class_folders(
            images,
            learner.size,
            skip_bad,
            progress=lambda done, count: move(done / count, f"{done:,}/{count:,}"),
        )
    for file, reason in pictures.skipped:
        console.print(f"left out '{file}': {reason}", soft_wrap=True)
    counts = pictures.labels.bincount(minlength=len(pictures.class_names)).tolist()
    for name, count in zip(pictures.class_names, counts, strict=True):
        if count == 1 and learner.keeps_prototypes:
            console.print(
                f"class '{name}' has one image, and prototypes of one image can show it; a learner "
                "begun with --no-prototypes keeps none",
                soft_wrap=True,
            )
    if len(counts) == 1:
        console.print(
            f"'{images}' holds one class: as its task has no other, every image is taken for it "
            "unless another task is given",
            soft_wrap=True,
        )
    return pictures


def learn_task(
    console: "Console",
    learner: "Learner",
    task: str,
    pictures: "Pictures",
    folder: Path,
    checkpoints: "CheckpointManager",
    fresh: bool,
) -> None:
    """Learn a task, or go on with it, and save the learner; show how far it is."""
    from classgrad.learner.learner import unfinished_state
    from classgrad.report.bar import bar
    from classgrad.training.loop import Progress

    kept = None if fresh else unfinished_state(checkpoints, len(learner.tasks))
    if kept and kept.get("task") == task:
        console.print(f"going on with task '{task}', which was cut short", soft_wrap=True)
    with bar(console, task) as move:

        def observer(at: Progress) -> None:
            move(at.step / at.steps, f"epoch {at.epoch + 1} loss {at.loss:.3f}")

        try:
            learner.learn(
                task,
                (pictures.images, pictures.labels),
                classes=pictures.class_names,
                checkpoint_dir=folder,
                fresh=fresh,
                checkpoints=checkpoints,
                observer=observer,
            )
        except UserError:
            with suppress(OSError):
                folder.rmdir()  # one that was just made, and is empty
            raise


@app.command(epilog="Example: classgrad forget state --task birds --class wren")
def forget(
    state: State,
    task: Annotated[str, typer.Option(help="The task of the class.")],
    name: Annotated[str, typer.Option("--class", help="The class to predict no longer.")],
    model: Model = None,
) -> None:
    """Predict a class no longer, and remove what is kept of it alone."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    learner = opened(state, model)
    tell_warnings(console, learner)
    drop_leftovers(learner, state)
    learner.forget_class(task, name)
    for _ in range(2):  # the last two states are kept, and neither may hold the class
        learner.save(state)
    prototypes = " and its prototypes" if learner.keeps_prototypes else ""
    console.print(
        f"class '{name}' of task '{task}' is predicted no longer; removed: its row of the "
        f"classifier{prototypes}",
        soft_wrap=True,
    )
    console.print(
        "no direction is freed: classes learnt later may need those that came with it, and their "
        "images are gone",
        soft_wrap=True,
    )


def drop_leftovers(learner: "Learner", folder: Path) -> None:
    """Remove what a process that was killed at the end of a task has left, as it holds all classes.

    A task that was cut short holds them, too, and is refused.
    """
    from classgrad.checkpoints import CheckpointManager, Lock
    from classgrad.learner.learner import LEARNING, unfinished_state

    checkpoints = CheckpointManager(folder / LEARNING)
    with Lock(folder):
        kept = unfinished_state(checkpoints, len(learner.tasks))
        if kept:
            raise UserError(
                f"task '{kept['task']}' was cut short and holds what is to be forgotten: finish it "
                "first, or start another one with --fresh"
            )
        checkpoints.clear()
