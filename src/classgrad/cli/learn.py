"""The commands that change a learner: learn, forget."""

import json
import warnings
from contextlib import nullcontext, suppress
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.completion import complete_names
from classgrad.cli.logs import Log, LogFormat, Quiet, open_log
from classgrad.cli.options import (
    Device,
    SaveMinutes,
    SaveSteps,
    Weights,
    parse_settings,
    resumed_without_fresh,
)
from classgrad.cli.state import (
    LearnerOptions,
    Model,
    SkipBad,
    State,
    load_learner,
    load_or_create,
    one_of,
    print_warnings,
    refuse_other_kind,
)
from classgrad.errors import UserError

if TYPE_CHECKING:
    from classgrad.checkpoints import CheckpointManager
    from classgrad.learner.inputs import Labelled
    from classgrad.learner.learner import Learner

app = typer.Typer()


@app.command(
    epilog="Examples: classgrad learn state --task birds --images photos/birds | classgrad learn "
    "state --task fish --images photos/fish --set epochs=20 --device cuda | classgrad learn "
    "assistant --task banking --sentences banking.csv"
)
def learn(
    state: Annotated[
        Path, typer.Argument(help="Folder of the learner; the first call creates it.")
    ],
    task: Annotated[str, typer.Option(help="A name for the task.")],
    images: Annotated[
        Path | None, typer.Option(help="A folder with one folder of images per class.")
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(
            help="Or sentences: a .csv, .tsv or .jsonl with text and label, or a folder with a "
            ".txt for each class, with a sentence in each line."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="A network, by default efficientnet-lite0, or minilm for sentences; see "
            "'classgrad list'.",
            autocompletion=complete_names("networks"),
        ),
    ] = None,
    weights: Weights = None,
    model: Model = None,
    tune: Annotated[
        str | None,
        typer.Option(
            help="Layers that learn: none, last (blocks) or all; by default none of a pretrained "
            "network, which takes seconds, and all of any other."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="A method for layers that learn, by default cgp.",
            autocompletion=complete_names("methods"),
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting by name or alias. Settings of training can be changed by later calls, "
            "all others are fixed by the first. Can be repeated.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Width and height that images are scaled to, by default 32, or what a "
            "pretrained network needs; or bytes that are read of a sentence, by default 512.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Same seed, same result; by default 1.")
    ] = None,
    device: Device = "cpu",
    precision: Annotated[
        str | None,
        typer.Option(
            help="Mixed precision: bfloat16, or float16 on devices without it; by default that of "
            "the weights. Fixed by the first call."
        ),
    ] = None,
    skip_bad: SkipBad = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Restart a task that was cut short.")
    ] = False,
    no_prototypes: Annotated[
        bool,
        typer.Option(
            "--no-prototypes",
            help="Store no class means and statistics; cgp then works without base refining.",
        ),
    ] = False,
    same_classes: Annotated[
        str,
        typer.Option(
            help="A class with the name of an earlier task's class: refuse, merge or separate. "
            "For learners with class statistics."
        ),
    ] = "refuse",
    require: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="The balanced accuracy in per cent, among all classes so far, below which nothing "
            "is saved, and the exit code is 3.",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="A folder of images, or a file of sentences, without labels whose predictions are "
            "to stay: if more of them change than allowed, nothing is saved, and the exit code is "
            "3."
        ),
    ] = None,
    may_change: Annotated[
        float, typer.Option(min=0, max=100, help="How many of them may change, in per cent.")
    ] = 5.0,
    keep: Annotated[
        int | None,
        typer.Option(
            min=2, help="States to keep for 'classgrad undo', the newest included; at first 2."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is known of the task as JSON, nothing else.")
    ] = False,
    confusions: Annotated[
        bool, typer.Option("--confusions", help="Show which classes are confused most.")
    ] = False,
    quiet: Quiet = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print a line for every epoch, however short, and --confusions."
        ),
    ] = False,
    log_format: LogFormat = None,
    save_minutes: SaveMinutes = 5.0,
    save_steps: SaveSteps = None,
) -> None:
    """Learn a task from folders of images, or from sentences, without forgetting earlier tasks.

    If the command is cut short, repeat it to resume the task. More images of a task can be added by
    a later call, where classes are told apart by their statistics.
    """
    from classgrad.checkpoints import CheckpointManager
    from classgrad.cli.info import print_task
    from classgrad.learner.learner import LEARNING, LookAlikes, SingleImage
    from classgrad.learner.learnt import composed

    if not task.strip():
        raise UserError("--task is empty: give the task a name")
    task = composed(task)
    reads = one_of(images=images, sentences=sentences)
    source = images or sentences
    assert source is not None
    values = parse_settings(settings or [], weights)
    checkpoints = CheckpointManager(state / LEARNING, minutes=save_minutes, steps=save_steps)
    opened = open_log(log_format, quiet=quiet, verbose=verbose, as_json=as_json, highlight=False)
    with opened as log, resumed_without_fresh(fresh), checkpoints.handle_stop_signals():
        log.start("", str(state))
        options = LearnerOptions(
            reads,
            network,
            model,
            method,
            size,
            seed,
            precision,
            device,
            no_prototypes,
            tune,
            values,
        )
        learner = load_or_create(state, options)
        kept_before, learner.kept_states = learner.kept_states, keep or learner.kept_states
        print_warnings(log.console, learner)
        given = read_inputs(log, source, learner, skip_bad)
        known = {one.name: sum(one.samples) for one in learner.tasks}
        with warnings.catch_warnings():
            for warned in (SingleImage, LookAlikes):  # by read_inputs
                warnings.simplefilter("ignore", warned)
            learn_task(
                log,
                learner,
                task,
                given,
                state,
                checkpoints,
                fresh=fresh,
                skip_bad=skip_bad,  # of the reference
                same_classes=same_classes,
                require=require,
                reference=reference,
                may_change=may_change,
            )
        learnt = learner.tasks[learner.task_number(task)]
        if known.get(task) == sum(learnt.samples) and learner.kept_states != kept_before:
            learner.save(state, replace=True)  # nothing was learnt, so nothing was saved
        log.end(end="done", done=1.0, accuracy=learnt.accuracy, transfer=None)
    if as_json:
        print(json.dumps(asdict(learnt), indent=1))
        return
    print_task(log.console, learner, task, state, known.get(task), confusions or verbose)


def read_inputs(log: Log, source: Path, learner: "Learner", skip_bad: bool) -> "Labelled":
    """Read classes, and warn of what is skipped, single or in two classes."""
    from classgrad.learner.inputs import across_text
    from classgrad.tasks import Split

    console, kind = log.console, learner.kind
    with log.bar(kind.several) as move:
        given = kind.read_classes(
            source,
            skip_bad,
            lambda done, count: move(done / count, f"{done:,}/{count:,}"),
        )
    scenes = kind.scenes([Split(given.inputs, given.labels)], given.class_names)
    for what, reason in given.skipped:
        console.print(f"skipped {what}: {reason}", soft_wrap=True)
    counts = given.labels.bincount(minlength=len(given.class_names)).tolist()
    for name, count in zip(given.class_names, counts, strict=True):
        if count == 1 and learner.keeps_prototypes:
            # Without layers that learn, the means are all there is.
            layers = "last" if learner.network else "all"
            tune = f"--tune {layers} " if learner.tune == "none" else ""
            console.print(
                f"class '{name}' has a single {kind.one}, which its stored mean can reveal; give "
                f"more, or start a learner with {tune}--no-prototypes to store none",
                soft_wrap=True,
            )
    if len(counts) == 1:
        console.print(
            f"'{source}' holds a single class: there is nothing to tell it apart from in its task",
            soft_wrap=True,
        )
    count = len(given.labels)
    across = across_text(scenes, given.labels, given.class_names, given.files, count)
    for remark in (across, kind.remark(given.inputs)):
        if remark:
            console.print(remark, soft_wrap=True)
    return given


def learn_task(
    log: Log,
    learner: "Learner",
    task: str,
    given: "Labelled",
    folder: Path,
    checkpoints: "CheckpointManager",
    *,
    fresh: bool,
    **options: Any,
) -> None:
    """Learn or resume a task with a progress bar, and save the learner."""
    from classgrad.training.loop import Progress

    with log.bar(task) if log.has_bars else nullcontext() as move:

        def observer(at: Progress) -> None:
            assert move is not None
            training = f"epoch {at.epoch + 1} loss {at.loss:.3f}"
            features = f"{at.step:,}/{at.steps:,}"  # no loss: nothing is trained
            move(at.step / at.steps, features if isnan(at.loss) else training)

        try:
            learner.learn(
                task,
                (given.inputs, given.labels),
                classes=given.class_names,
                checkpoint_dir=folder,
                fresh=fresh,
                checkpoints=checkpoints,
                observer=observer if move else None,
                **options,
            )
        except UserError:
            with suppress(OSError):
                folder.rmdir()  # only if this call made it: rmdir fails unless it is empty
            raise


@app.command(
    epilog="Examples: classgrad forget state --task birds --class wren | classgrad forget state "
    "--task birds --class wren --images photos/birds/wren"
)
def forget(
    state: State,
    task: Annotated[str, typer.Option(help="The task of the class.")],
    name: Annotated[str, typer.Option("--class", help="The class to forget.")],
    images: Annotated[
        Path | None,
        typer.Option(
            help="A folder with all images of the class, to remove them from the covariance that "
            "all classes share, too."
        ),
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(help="Or a file with all sentences of the class; others may be in it."),
    ] = None,
    model: Model = None,
) -> None:
    """Stop predicting a class, and remove what is stored of it.

    Earlier states are removed, too, so this cannot be undone.
    """
    from rich.console import Console

    from classgrad.learner.learner import TracesStay

    console = Console(markup=False, highlight=False)
    learner = load_learner(state, model)
    print_warnings(console, learner)
    remove_leftovers(learner, state)
    given = images or sentences
    if given is not None:
        reads = one_of(images=images, sentences=sentences)
        refuse_other_kind(f"'{state}'", type(learner.kind), reads)
    before = learner.classifier.statistics.removed if learner.classifier else 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracesStay)
        learner.forget_class(task, name, given)
    # Of few images all are kept as features, and can be removed without being given.
    share_stays = learner.classifier is not None and learner.classifier.statistics.removed > before
    learner.save(state, keep=1)  # earlier states contain the class
    console.print(
        f"class '{name}' of task '{task}' is no longer predicted; removed: "
        f"{' and '.join(removed_parts(learner, not share_stays and not caught))}",
        soft_wrap=True,
    )
    for warned in caught:
        console.print(str(warned.message), soft_wrap=True)
    several = learner.kind.several
    if share_stays:
        console.print(
            "its share of the covariance that all classes have in common stays: give its "
            f"{several} with --{several} to remove that, too",
            soft_wrap=True,
        )
    if learner.movement is not None and learner.movement.products:
        console.print(
            "its share of the products of layers' inputs, which drift is told from, stays: they "
            f"are of the {several} of all classes together",
            soft_wrap=True,
        )
    if learner.session is not None:
        console.print(
            "no direction is freed: classes learnt later may rely on those of this class, and "
            f"their {several} are not stored",
            soft_wrap=True,
        )


def removed_parts(learner: "Learner", whole: bool) -> list[str]:
    """Return what was removed of a class, `whole` or not, in words."""
    parts = []
    if learner.classifier is not None:
        parts.append("its mean, its count and the features kept of it")
    if learner.classifier is not None and whole:
        parts.append("its share of the covariance that all classes have in common")
    if learner.session is not None:
        prototypes = " and its prototypes" if learner.keeps_prototypes else ""
        parts.append(f"its row of the classifier{prototypes}")
    return parts


def remove_leftovers(learner: "Learner", folder: Path) -> None:
    """Remove checkpoints left by a process killed at the end of a task: they contain all classes.

    Those of a task that was cut short contain them, too, but are needed: refuse to forget.
    """
    from classgrad.checkpoints import CheckpointManager, Lock
    from classgrad.learner.learner import LEARNING, unfinished_state

    checkpoints = CheckpointManager(folder / LEARNING)
    with Lock(folder):
        unfinished = unfinished_state(checkpoints, len(learner.tasks))
        if unfinished:
            raise UserError(
                f"task '{unfinished['task']}' was cut short, and its saved state contains the "
                "class: finish that task first, or start another one with --fresh"
            )
        checkpoints.clear()
