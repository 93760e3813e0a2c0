"""The learner: your network, your data, new classes as they come, predictions at any time."""

import copy
import hashlib
import math
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classgrad import __version__, defaults, devices, methods, networks
from classgrad.checkpoints import CheckpointManager, Loaded, Lock, Store
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import KEPT as KEPT_STATES
from classgrad.errors import RequirementNotMet, UserError, shown
from classgrad.errors import unknown as unknown_name
from classgrad.files import free_bytes
from classgrad.learner import probe
from classgrad.learner.drift import Reference, take_reference
from classgrad.learner.inputs import (
    Data,
    GivenTask,
    Images,
    InputKind,
    OwnTrunk,
    across_text,
    as_split,
    count_scenes,
    in_two_classes,
    no_data,
    split_off_validation,
)
from classgrad.learner.kinds import NETWORK, kind_of
from classgrad.learner.learnt import LearntTask, composed, forecast_of, numbered_classes
from classgrad.learner.movement import Drift, Movement, Recorded, drifts_in
from classgrad.learner.usage import Usage, changes, reads
from classgrad.methods.base import Method, checked_method, nbytes
from classgrad.methods.projection.base import Projected
from classgrad.methods.projection.cgp import CGP
from classgrad.methods.projection.forecast import Capacity, LayerForecast
from classgrad.methods.saved_state import restore_method
from classgrad.networks.adapted import adapted, with_fixed_norms
from classgrad.networks.network import Network
from classgrad.networks.weights import with_digest
from classgrad.prediction.accuracy import BATCH, ClassPrototypes, inputs
from classgrad.prediction.balanced import Balanced, balanced_accuracy
from classgrad.prediction.calibration import (
    SCORES,
    Guess,
    Prediction,
    calibrate,
    predictions,
    rank_guesses,
    with_unreadable,
)
from classgrad.prediction.classifier import KEPT, Figures, StatisticsClassifier, sample_digests
from classgrad.seeds import generator
from classgrad.tasks import Split, Task, Transform, digest, unchanged
from classgrad.training.config import Training
from classgrad.training.log import TrainingLog, note
from classgrad.training.loop import Observer, Progress
from classgrad.training.session import Session, refuse_other_layers

KIND = "learner"  # marks the states of learners
PRECISIONS = ("bfloat16", "float16")  # lower than that of the weights
LEARNING = "learning"  # folder of an unfinished task, inside that of the learner
STATISTICS = "statistics"  # a way to predict, besides those of `SCORES`
TUNE = ("none", "last", "all")
# On disk at the end of a task: the new state, and two checkpoints of the task with weights and
# momenta; and what a state grows by.
COPIES, MARGIN = 5, 10_000_000
# Embeddings of larger batches may differ in their last digits, by the size of the batch. Those of
# images that are to be removed from statistics have to be the same as when they were added.
SMALL_BATCH = 8
KEYED = "keyed:"  # before digests of data that only those who have the state can compute
PRIORS = ("equal", "counts")
SAME_CLASSES = ("separate", "merge", "refuse")
# Batch statistics would make a prediction depend on its batch.
STORED = {"norm": "stored", "affine": "task"}
# For tasks of a few hundred images.
DEFAULT_TRAINING = Training(
    epochs=30, batch_size=32, learning_rate=0.01, momentum=0.9, nesterov=True
)
MAY_CHANGE = 5.0  # per cent of the predictions for reference images


class SingleImage(UserWarning):
    """A class has only one sample, which its prototypes could reveal."""


class LookAlikes(UserWarning):
    """Images of different classes look alike, so some may be in the wrong class."""


class TracesStay(UserWarning):
    """The images of a forgotten class have left something in the covariance of all classes."""


@dataclass(frozen=True)
class Counted:
    """Images that were added to the statistics, and scenes that were not known, by class."""

    samples: list[int]
    scenes: list[int]
    recorded: Recorded  # to tell later how far features moved


class Learner:
    """Learn tasks one after another, and predict the classes of images, or of sentences.

    The trunk is any module from inputs to (n, embedding), or `network` names one that comes with
    classgrad, by default a pretrained one, for pictures of `size` x `size`, by default 32 or what a
    pretrained network needs. Pictures are scaled to [0, 1] and normalised to roughly zero mean and
    unit deviation, or as a pretrained network needs it; other inputs go to the trunk unchanged. A
    trunk of your own may need another `mean` and `deviation`: one value, or one for each channel.
    With network "minilm" images are sentences, of each of which `size` bytes are read.

    `tune` says which layers learn: "none", "last" (blocks) or "all", by default none of a
    pretrained network and all of any other. With none, a learner keeps class statistics and
    nothing else; `method` and `training` are for layers that learn. Where the features of an image
    depend neither on its task nor on its batch and a projection method protects them, classes of
    all tasks are told apart by class statistics as well, with `priors` "equal", or "counts" of
    their samples. `kept_features` of each class are kept to calibrate probabilities.

    With `precision`, bfloat16 or float16, the trunk computes its products in it; weights and bases
    keep their own precision. `device` is cpu, cuda or mps; a saved learner can be loaded on any.

    >>> from classgrad import GPM, Learner
    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    >>> learner = Learner(nn.Linear(4, 8), GPM())
    >>> learnt = learner.learn("sign", (x, (x[:, 0] > 0).long()), classes=["minus", "plus"])
    >>> learner.predict(torch.tensor([5.0, 0, 0, 0]))[0].name
    'plus'
    """

    def __init__(
        self,
        trunk: nn.Module | None = None,
        method: Method | str | None = None,
        *,
        network: str | None = None,
        network_options: Mapping[str, Any] | None = None,
        embedding: int | None = None,
        mean: float | Sequence[float] | None = None,
        deviation: float | Sequence[float] | None = None,
        size: int | None = None,
        training: Training | None = None,
        tune: str | None = None,
        valid_fraction: float = 0.1,
        prototypes: bool = True,
        priors: str = "equal",
        kept_features: int = KEPT,
        kept_states: int = KEPT_STATES,
        seed: int = 1,
        device: torch.device | str = "cpu",
        precision: str | None = None,
    ) -> None:
        for what, value, choices in [
            ("precision", precision, PRECISIONS),
            ("value of tune", tune, TUNE),
            ("kind of priors", priors, PRIORS),
        ]:
            if value is not None and value not in choices:
                raise unknown_name(what, value, choices)
        if trunk is not None and network is not None:
            raise UserError("give either a trunk of your own or the name of a network")
        if trunk is None and network is None:
            network = NETWORK["images"]
        self.network, self.network_options = network, dict(network_options or {})
        self.weights: Path | None = None  # file of the first weights, if it was given
        self.tune = tune or "all"
        given = {"mean": mean, "deviation": deviation}
        own = {name: value for name, value in given.items() if value is not None}
        if own and network is not None:
            raise UserError(
                f"network '{network}' has a mean and a deviation of its own: leave them out, or "
                "give a trunk of your own"
            )
        self.network_options |= defaults.as_json(own)
        self._own_trunk()  # refuses what is wrong
        if network is not None:
            self.tune = self._resolve_tune(tune)
            kind = networks.kind(network)
            fixed = {name: value for name, value in STORED.items() if kind.Options.accepts(name)}
            self.network_options, self.weights = with_digest(
                kind.Options, {**fixed, **self.network_options}
            )
            if size is not None and kind.Options.accepts("size"):
                self.network_options.setdefault("size", size)
            # Refuses unknown options.
            size = size or getattr(kind.Options(**self.network_options), "size", None)
        elif tune == "last":
            raise UserError("which blocks of your own trunk are the last is not known: tune all")
        if self.tune == "none":
            refuse_useless(method, training, prototypes)
        inputs_kind = kind_of(network)
        self.kind = inputs_kind(size or inputs_kind.usual_size)
        self.method = as_method("cgp" if method is None else method, inputs_kind.method_settings)
        self.kind.refuse_method(self.method)
        if not self.method.rehearsal_free:
            raise UserError(
                f"{self.method.name} keeps samples or needs all tasks in advance: give a learner "
                "a method that does not, such as cgp"
            )
        if not prototypes and isinstance(self.method, CGP) and self.method.similarity < 1:
            raise UserError(
                "base refining keeps the mean input of every class, even of the first layer: give "
                "cgp similarity=1 to learn without prototypes"
            )
        convert = with_fixed_norms if self.tune == "none" else adapted
        self.trunk = None if trunk is None else convert(trunk)
        self.embedding = embedding
        self.training = training or self.kind.training or DEFAULT_TRAINING
        self.valid_fraction, self.keeps_prototypes, self.seed = valid_fraction, prototypes, seed
        self.priors, self.kept_features = priors, kept_features
        if kept_states < KEPT_STATES:
            raise UserError(f"at least {KEPT_STATES} states are kept, so that one can be undone")
        self.kept_states = kept_states  # on disk, the newest included
        self.secret = b""  # key of the digests of images, from the first task on
        self.device, self.precision = devices.resolve_device(device), precision
        self.defaults = defaults.newest_version()  # version it was made with
        self.input_shape: tuple[int, ...] = ()  # of one input, known from the first task on
        self.tasks: list[LearntTask] = []
        # From the first task on: the network; what trains it, unless tune is "none"; statistics of
        # all classes, if their features can be compared.
        self._net: Network | None = None
        self.session: Session | None = None
        self.classifier: StatisticsClassifier | None = None
        self.movement: Movement | None = None  # of features that are trained and have statistics
        self.stores: dict[Path, Store] = {}  # where this learner was loaded from or saved
        self.warnings: tuple[str, ...] = ()  # damaged checkpoints that loading skipped
        self.usage = Usage()

    def _resolve_tune(self, tune: str | None) -> str:
        """Return which layers of a network of the table learn, and set its option for that."""
        assert self.network is not None
        kind, options = networks.kind(self.network), self.network_options
        if not kind.Options.accepts("trainable"):
            if tune not in (None, "all"):
                raise UserError(
                    f"tune={tune} is for pretrained networks: network '{self.network}' has to "
                    "learn all its layers"
                )
            return "all"
        blocks = {"none": 0, "last": kind.last_blocks, "all": kind.blocks()}
        if tune is not None:
            options.setdefault("trainable", blocks[tune])
        elif options.get("trainable", 0) > 0:
            tune = "last"
        if tune == "none" and options["trainable"]:
            raise UserError(f"tune=none contradicts trainable={options['trainable']}")
        return tune or "none"

    @property
    def size(self) -> int:
        """Width and height that pictures are scaled to, or bytes that are read of a sentence."""
        return self.kind.size

    @property
    def net(self) -> Network:
        """The network with the heads of all tasks, if it has heads."""
        if self._net is None:
            raise UserError("nothing was learnt yet: call learn first")
        return self._net

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to predict; the first is the default."""
        heads = () if self.tune == "none" else ("confidence",)
        prototypes = ("prototypes",) if heads and self.keeps_prototypes else ()
        return (*([STATISTICS] if self.classifier else []), *heads, *prototypes)

    @property
    def prototypes(self) -> list[Tensor]:
        """Class means of each task, of unit length; empty if they are not kept."""
        return self.session.prototypes.prototypes if self.session else []

    @property
    def transform(self) -> Transform:
        """The function from images in [0, 1] to inputs of the network."""
        if len(self.input_shape) != 3 or self.input_shape[0] not in (1, 3):
            return unchanged
        own, trunk = self._own_trunk(), networks.NETWORKS.get(self.network or "")
        if trunk is not None and trunk.normalisation is not None:
            mean, deviation = trunk.normalisation
            own = OwnTrunk(mean=(mean,), deviation=(deviation,))
        return own.normalise(self.input_shape)

    def _own_trunk(self) -> OwnTrunk:
        """Return what the trunk takes, if it is the user's own."""
        if self.network is not None:
            return OwnTrunk()
        given = self.network_options.items()
        return OwnTrunk(**{name: value for name, value in given if OwnTrunk.accepts(name)})

    # Learning.

    @changes
    def learn(
        self,
        name: str,
        train: Data,
        *,
        valid: Data | None = None,
        classes: Sequence[str] | None = None,
        skip_bad: bool = False,
        same_classes: str = "separate",
        checkpoint_dir: Path | str | None = None,
        fresh: bool = False,
        checkpoints: CheckpointManager | None = None,
        observer: Observer | None = None,
        require: float | None = None,
        reference: Images | None = None,
        may_change: float = MAY_CHANGE,
    ) -> LearntTask:
        """Learn a task; its data are not needed afterwards.

        Without `valid` a share of every class is set aside for validation, if anything is trained.
        With `checkpoint_dir` the learner is saved in that folder at the end, and every few minutes
        during training: after a crash the same call resumes from there, or returns at once if the
        task was finished; `fresh` starts the task again instead. If learning fails, the learner is
        as it was before.

        A learner with class statistics takes more images for a task it knows; those that it knows
        are not counted again. A class that has the name of an earlier task's class is a "separate"
        one with `same_classes`, or the same one ("merge"), or refused ("refuse"). Unless classes
        are separate, the same image in two classes is refused. Images that look alike, such as
        shots taken in a row, count as one in all figures; in two classes they are warned about.

        If the balanced accuracy in per cent (`required_accuracy`) is below `require` after that,
        or if more than `may_change` per cent of the predictions for the images of `reference`
        change, `RequirementNotMet` is raised, and nothing is learnt or saved.

        While it learns, a learner neither predicts nor is saved; a copy that `frozen` returned
        before does. The logger `classgrad` of Python's `logging` has a line for the task, and for
        epochs if it takes long.
        """
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        if same_classes not in SAME_CLASSES:
            raise unknown_name("value of same_classes", same_classes, SAME_CLASSES)
        self._refuse_other_precision()
        if folder is not None:
            checkpoints = checkpoints or CheckpointManager(folder / LEARNING)
        begun = None if fresh else checkpoints
        self._make_secret(begun)
        task = self._task(name, train, valid, classes, skip_bad, begun)
        known = task.id < len(self.tasks)
        if known and self.classifier is None:
            return self.tasks[task.id]
        if same_classes != "separate":
            self._refuse_doubles(task, same_classes)
        if self.keeps_prototypes and not known:
            warn_about_single_images(task, self.tune, self.kind)
        if task.across:
            warnings.warn(task.across, LookAlikes, stacklevel=3)
        before = self.state_dict()
        if reference is not None and not isinstance(reference, Tensor):
            given = list(reference) if isinstance(reference, list | tuple) else [reference]
            reference, _ = self.kind.read_all(given, skip_bad)
        answers = self._answers(reference) if reference is not None and self.tasks else []
        samples = list(self.tasks[task.id].samples) if known else []
        log = TrainingLog()
        observer = log.watch(task.name, observer)
        try:
            with Lock(folder) if folder is not None else nullcontext():
                if folder is not None:
                    self._refuse_stale(folder)
                if fresh and checkpoints is not None and not known:
                    checkpoints.clear()
                if known:
                    learnt = self._add_samples(task, same_classes, observer)
                elif self.tune == "none":
                    self._refuse_unfinished(checkpoints)
                    learnt = self._learn_statistics(task, same_classes, folder, observer)
                else:
                    learnt = self._learn(task, same_classes, folder, checkpoints, observer)
                if known and learnt.samples == samples:  # there was nothing new
                    return learnt
                try:
                    self._refuse_inaccurate(learnt, require)
                    self._refuse_changes(reference, answers, may_change)
                except RequirementNotMet:
                    if checkpoints is not None and not known:
                        checkpoints.clear()
                    raise
                if folder is not None and checkpoints is not None:
                    self._store(folder).save(self._saved_state(), self.kept_states)
                    if not known:  # they may be of another task, which was cut short
                        checkpoints.clear()
        except BaseException:
            self.load_state_dict(before)
            raise
        log.accuracy = learnt.accuracy
        log.end_task(task.id, task.name)
        return learnt

    def _refuse_other_precision(self) -> None:
        """Refuse training in another precision than that of the first task.

        The network, once loaded with it, would compute other features than those it has learnt.
        """
        if self._net is not None and self._autocast_type() != self._net.precision:
            raise UserError(
                f"precision '{self.training.precision}' differs from that of the first task, which "
                "holds for all: leave it out, or start another learner"
            )

    def _refuse_unfinished(self, checkpoints: CheckpointManager | None) -> None:
        """Refuse to replace a learner whose layers were learning their first task."""
        saved = unfinished_state(checkpoints, len(self.tasks)) if checkpoints else None
        if saved:
            raise UserError(
                f"task '{saved['task']}' was cut short with layers that learn, and now none does: "
                "give the same again, or start the task afresh",
                hint="fresh",
            )

    def _refuse_inaccurate(self, learnt: LearntTask, require: float | None) -> None:
        """Refuse a task after which the learner is less accurate than required."""
        if require is None:
            return
        accuracy = learnt.required_accuracy()
        if accuracy is None:
            raise RequirementNotMet(
                f"the accuracy of task '{learnt.name}' is unknown, as its classes have too few "
                f"{self.kind.several} that do not look alike, but {require:g} % is required: "
                f"nothing was saved; give more {self.kind.several}"
            )
        if accuracy < require:
            recalls = sorted(learnt.recalls.items(), key=lambda item: item[1])
            weakest = ", ".join(f"{name} {recall:.0f} %" for name, recall in recalls[:3])
            raise RequirementNotMet(
                f"the balanced accuracy is {accuracy:.1f} %, but {require:g} % is required: "
                f"nothing was saved; recognised least often: {weakest}"
            )

    def _refuse_changes(
        self, reference: Images | None, before: Sequence[tuple[str, str]], may_change: float
    ) -> None:
        """Refuse a task that changes too many of the predictions there were before."""
        if reference is None or not before:
            return
        pairs = list(zip(before, self._answers(reference), strict=True))
        changed = [(old, new) for old, new in pairs if old != new]
        share = 100 * len(changed) / len(pairs)
        if share > may_change:
            (old, _), (new, _) = changed[0]
            raise RequirementNotMet(
                f"{len(changed)} of {len(pairs)} predictions for the reference {self.kind.several} "
                f"change ({share:.1f} %, allowed are {may_change:g}), one from '{old}' to '{new}': "
                "nothing was saved"
            )

    def _answers(self, images: Images) -> list[tuple[str, str]]:
        """Return the predicted class and its task for each image; none if all are forgotten."""
        return [(one.name, one.task) for one in self._predict(images) if one.ranking]

    def _task(
        self,
        name: str,
        train: Data,
        valid: Data | None,
        classes: Sequence[str] | None,
        skip_bad: bool,
        begun: CheckpointManager | None,
    ) -> GivenTask:
        """Return the task that the arguments of `learn` describe; a known name has its number."""
        name, known = composed(name), [task.name for task in self.tasks]
        number = known.index(name) if name in known else len(known)
        split, names, files = as_split(train, classes, self.kind, skip_bad)
        if len(set(names)) < len(names):
            raise UserError(f"task '{name}' has two classes of the same name: rename one")
        if not len(split):
            raise no_data(self.kind)
        shape = tuple(split.images.shape[1:])
        if self.tasks and shape != self.input_shape:
            raise UserError(
                f"{self.kind.several} of task '{name}' have shape {shape}, those of earlier tasks "
                f"{self.input_shape}: give all the same"
            )
        # Without validation data: nothing is trained, so each sample can be used for both.
        validation = Split(split.images[:0], split.labels[:0])
        if valid is not None:
            validation = as_split(valid, names, self.kind, skip_bad)[0]
            if len(validation) and tuple(validation.images.shape[1:]) != shape:
                raise UserError(
                    f"validation {self.kind.several} of task '{name}' have shape "
                    f"{tuple(validation.images.shape[1:])}, those for training {shape}: give all "
                    "the same"
                )
        alike = self.kind.scenes([split, validation], names)
        labels = torch.cat([split.labels.cpu(), validation.labels.cpu()])
        across = across_text(alike, labels, names, files, len(split))
        scenes = alike.numbers
        if valid is None and self.tune != "none":
            chosen = self._chosen_for_validation(name, number, split, scenes, begun)
            split, validation = part_of(split, ~chosen), part_of(split, chosen)
            scenes = torch.cat([scenes[~chosen], scenes[chosen]])
        self._refuse_normalisation(shape)
        self.input_shape = shape
        if (
            self.classifier is None
            and name in known
            and self.tasks[number].data != self._digest(split, validation)
        ):
            data = "other data" if self.tasks[number].data else "data with a forgotten class"
            raise UserError(
                f"task '{name}' was learnt before, from {data}: give the new one another name"
            )
        split, validation = split.to(self.device), validation.to(self.device)
        return GivenTask(
            number,
            name,
            names,
            split,
            validation,
            self.transform,
            scenes=scenes,
            across=across,
        )

    def _refuse_normalisation(self, shape: Sequence[int]) -> None:
        """Refuse a mean or a deviation that does not fit the inputs."""
        own = self._own_trunk()
        if len(shape) == 3 and shape[0] in (1, 3):
            own.normalise(shape)
        elif own.given():
            raise UserError(
                f"inputs of shape {tuple(shape)} are no pictures of 1 or 3 channels and stay as "
                "they are: leave out mean and deviation"
            )

    def _chosen_for_validation(
        self, name: str, number: int, split: Split, scenes: Tensor, begun: CheckpointManager | None
    ) -> Tensor:
        """Return which images of a task are for validation.

        What an earlier version has learnt or begun is split as it was then.
        """
        labels, share = split.labels.cpu(), self.valid_fraction

        def chosen(scenes: Tensor | None) -> Tensor:
            return split_off_validation(
                labels, share, generator(self.seed, "valid", number), scenes
            )

        now, then = chosen(scenes), chosen(None)
        if torch.equal(now, then):
            return now
        data = ""
        if number < len(self.tasks):
            data = self.tasks[number].data
        elif begun is not None:
            unfinished = unfinished_state(begun, len(self.tasks)) or {}
            data = str(unfinished.get("data")) if unfinished.get("task") == name else ""
            data = keyed(data, self.secret)
        same = data and data == self._digest(part_of(split, ~then), part_of(split, then))
        return then if same else now

    def _make_secret(self, begun: CheckpointManager | None) -> None:
        """Make the key of digests, unless there is one in the state or in an unfinished task.

        It is random: one made from images would tell who has all but one of them which is the last.
        """
        if self.secret and self.tasks:
            return
        unfinished = begun and unfinished_state(begun, len(self.tasks))
        self.secret = secret_of(unfinished or {}) or self.secret or secrets.token_bytes(32)
        for task in self.tasks:  # earlier versions kept digests without a key
            task.data = keyed(task.data, self.secret)

    def _digest(self, train: Split, valid: Split) -> str:
        """Return a digest of the data of a task, by which they are recognised."""
        return keyed(digest([train, valid]), self.secret)

    def _refuse_full_disk(self, folder: Path | None) -> None:
        """Refuse to learn what could not be saved."""
        if folder is None:
            return
        copies = 1 if self.tune == "none" else COPIES
        needed, free = copies * nbytes(self.state_dict()) + MARGIN, free_bytes(folder)
        if free < needed:
            raise UserError(
                f"'{folder}' has {free / 1e6:,.0f} MB left, but this task needs about "
                f"{needed / 1e6:,.0f} MB: make room, or give another folder"
            )

    def _learn_statistics(
        self, task: GivenTask, same_classes: str, folder: Path | None, observer: Observer | None
    ) -> LearntTask:
        """Learn a task by the statistics of its classes alone."""
        started = time.perf_counter()
        if self._net is None:
            self._net = self._build()
        self._refuse_full_disk(folder)
        if self.classifier is None:
            self.classifier = self._new_classifier()
        numbers = self._class_numbers(task.class_names, same_classes)
        counted = self._count_samples(task, numbers, observer)
        seconds = time.perf_counter() - started
        self.tasks.append(self._summary(task, counted.samples, counted.scenes, numbers, seconds))
        return self.tasks[-1]

    def _new_classifier(self) -> StatisticsClassifier:
        return StatisticsClassifier(self.net.embedding, priors=self.priors, kept=self.kept_features)

    def _known_classes(self) -> list[tuple[int, str, str]]:
        """Return number, name and task of each class that is predicted."""
        return [
            (number, name, task.name)
            for task in self.tasks
            for number, name in zip(task.numbers, task.class_names, strict=True)
            if name not in task.forgotten
        ]

    def _class_numbers(self, names: Sequence[str], same_classes: str) -> list[int]:
        """Return the numbers of classes with these names, which are new, or merged with known."""
        assert self.classifier is not None
        known = {name: number for number, name, _ in self._known_classes()}
        numbers = []
        for name in names:
            merged = same_classes == "merge" and name in known
            numbers += [known[name]] if merged else self.classifier.add_classes(1)
        return numbers

    def _refuse_doubles(self, task: Task, same_classes: str) -> None:
        """Refuse names of classes of earlier tasks, and images that are in two classes."""
        own = [name for _, name, of_task in self._known_classes() if of_task == task.name]
        for _, name, of_task in self._known_classes() if same_classes == "refuse" else []:
            if name in task.class_names and name not in own:
                raise UserError(
                    f"class '{name}' was learnt in task '{of_task}': give its new "
                    f"{self.kind.several} to that task, rename it, or merge classes of the same "
                    "name",
                    hint="same_classes",
                )
        names = {number: name for number, name, _ in self._known_classes()}
        earlier = self.classifier.known_samples() if self.classifier else {}
        owners: dict[int, str] = {}
        for split in (task.train, task.valid):
            keys = sample_digests(split.images, self.secret).tolist()
            for row, (key, label) in enumerate(zip(keys, split.labels.tolist(), strict=True)):
                name = task.class_names[label]
                others = [names[number] for number in earlier.get(key, ()) if number in names]
                for other in [owners.setdefault(key, name), *others]:
                    if other != name:
                        raise in_two_classes(self.kind.called(split.images[row]), other, name)

    def _add_samples(
        self, task: GivenTask, same_classes: str, observer: Observer | None
    ) -> LearntTask:
        """Add images to a task that was learnt before, by their statistics; nothing is trained."""
        learnt = self.tasks[task.id]
        gone = [name for name in task.class_names if name in learnt.forgotten]
        if gone:
            raise UserError(f"class '{gone[0]}' of task '{learnt.name}' is forgotten: rename it")
        new = [name for name in task.class_names if name not in learnt.class_names]
        if new and self.session is not None:
            raise UserError(
                f"class '{new[0]}' is not one of task '{learnt.name}', which was trained without "
                "it: learn it in a task of its own"
            )
        learnt.numbers += self._class_numbers(new, same_classes)
        learnt.class_names += new
        # Earlier versions did not know which images look alike.
        learnt.scenes = (learnt.scenes or list(learnt.samples)) + [0] * len(new)
        learnt.samples += [0] * len(new)
        places = [learnt.class_names.index(name) for name in task.class_names]
        numbers = [learnt.numbers[place] for place in places]
        counted = self._count_samples(task, numbers, observer)
        if self.movement is not None and counted.recorded.images:
            self.movement.add_images(task.id, counted.recorded)
        for place, samples, scenes in zip(places, counted.samples, counted.scenes, strict=True):
            learnt.samples[place] += samples
            learnt.scenes[place] += scenes
        if any(counted.samples):
            learnt.when = now()
            self._measure(learnt)
        return learnt

    @torch.no_grad()
    def _count_samples(
        self, task: GivenTask, numbers: Sequence[int], observer: Observer | None
    ) -> Counted:
        """Add the images of a task to the statistics; return how many of them were new."""
        assert self.classifier is not None
        labels = torch.cat([task.train.labels, task.valid.labels]).cpu()
        classes = torch.tensor(numbers)[labels]
        images = [task.train.images, task.valid.images]
        digests = torch.cat([sample_digests(part, self.secret) for part in images])
        draws = torch.cat([sample_digests(part, self._draw_key()) for part in images])
        new, known = self._new_samples(classes, digests)
        scenes, trained = task.scenes, task.trained_scenes
        if not len(task.valid) and self.session is None:
            trained = trained[:0]
        # Those of new scenes of which no image is known.
        known = known[torch.isin(scenes[known], scenes[new])]
        in_new = new[~torch.isin(scenes[new], scenes[known])]
        features, recorded = self._features(task, new, observer)
        again, _ = self._features(task, known, None, record=False)
        index = torch.cat([new, known])
        self.classifier.add(
            torch.cat([features, again]),
            classes[index],
            digests[index],
            draws[index],
            ~torch.isin(scenes[index], trained),
            scenes[index],
            torch.arange(len(index)) >= len(new),
        )
        return Counted(
            torch.bincount(labels[new], minlength=task.classes).tolist(),
            count_scenes(labels[in_new], scenes[in_new], task.classes),
            recorded,
        )

    def _draw_key(self) -> bytes:
        return str(self.seed).encode()

    def _new_samples(self, classes: Tensor, digests: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of images that are not in the statistics, and of others, each once."""
        assert self.classifier is not None
        before, given = self.classifier.known_samples(), set[tuple[int, int]]()
        new: list[int] = []
        known: list[int] = []
        for index, (number, key) in enumerate(zip(classes.tolist(), digests.tolist(), strict=True)):
            if (number, key) not in given:
                (known if number in before.get(key, ()) else new).append(index)
            given.add((number, key))
        return torch.tensor(new, dtype=torch.int64), torch.tensor(known, dtype=torch.int64)

    def _features(
        self, task: Task, index: Tensor, observer: Observer | None, *, record: bool = True
    ) -> tuple[Tensor, Recorded]:
        """Return the embeddings of images of a task; an index counts those of validation last.

        Returned with them is what is recorded, to tell later how far features moved.
        """
        net, dtype = self.net.eval(), next(self.net.parameters()).dtype
        parts: list[Tensor] = []
        done = 0
        movement = self.movement if record else None
        recording = movement.recording() if movement else nullcontext(Recorded())
        # What is recorded must be of no image twice, and is quicker of many at once.
        size, embed = (BATCH, net.embed) if movement else (SMALL_BATCH, self._small_batch)
        with recording as recorded:
            for split, first in [(task.train, 0), (task.valid, len(task.train))]:
                of_split = index[(index >= first) & (index < first + len(split))] - first
                features = torch.zeros(len(of_split), net.embedding)
                parts.append(features)
                for places in net.same_length(split.images[of_split], size):
                    batch = of_split[places]
                    x = task.transform(split.unit_images(batch, dtype))
                    features[places] = embed(x, task.id).cpu().float()
                    recorded.add(features[places])
                    done += len(batch)
                    if observer is not None:
                        observer(Progress(task.id, 0, done, len(index), math.nan, 0.0))
        return torch.cat(parts), recorded

    def _small_batch(self, x: Tensor, task: int) -> Tensor:
        """Return the embeddings of up to `SMALL_BATCH` inputs, as of a full batch."""
        full = torch.cat([x, x[:1].expand(SMALL_BATCH - len(x), *x.shape[1:])])
        return self.net.embed(full, task)[: len(x)]

    def _learn(
        self,
        task: GivenTask,
        same_classes: str,
        folder: Path | None,
        checkpoints: CheckpointManager | None,
        observer: Observer | None,
    ) -> LearntTask:
        """Learn a task, from the start or from where it was cut short; return its summary."""
        started = time.perf_counter()
        about = {"task": task.name, "data": self._digest(task.train, task.valid)}
        saved = unfinished_state(checkpoints, len(self.tasks)) if checkpoints else None
        if saved:
            self._refuse_other_task(saved, about)
            note(f"resuming task '{shown(task.name)}', which was cut short")
            with raising_bad_checkpoint(f"the saved state of task '{task.name}'"):
                self._restore_settings(saved)
        session = self._session(task.classes)
        session.training = self.training
        before = self._before_training(task)
        session.add_task(task.classes)
        self._refuse_full_disk(folder)
        if saved:
            with raising_bad_checkpoint(f"the saved state of task '{task.name}'"):
                loop = {"method": saved["memory"], "unfinished": saved["unfinished"]}
                session.load_state_dict({**loop, "tasks": len(session.net.heads)}, ())
        session.learn_task(
            task,
            observer=observer,
            checkpoints=checkpoints,
            full_state=partial(self._unfinished_state, about),
        )
        if self.keeps_prototypes:
            session.prototypes.add_task(session.net, task)
        numbers = []
        if not self.tasks and self._is_comparable():
            self.classifier = self._new_classifier()
            self.movement = self._new_movement()
        if self.classifier is not None:
            numbers = self._class_numbers(task.class_names, same_classes)
            counted = self._count_samples(task, numbers, None)
            if self.movement is not None:
                self._end_movement(task, before, counted.recorded)
        labels = task.train.labels.cpu()
        samples = torch.bincount(labels, minlength=task.classes).tolist()
        scenes = count_scenes(labels, task.trained_scenes, task.classes)
        seconds = time.perf_counter() - started
        self.tasks.append(self._summary(task, samples, scenes, numbers, seconds))
        return self.tasks[-1]

    def _new_movement(self) -> Movement:
        reason = "" if self.net.precision is None else "features are computed in lower precision"
        return Movement(self.net.trunk, self.input_shape, reason)

    @torch.no_grad()
    def _before_training(self, task: Task) -> tuple[dict[str, Tensor], Tensor] | None:
        """Return the tensors of the trunk and features of a task's images before it is learnt."""
        if self.movement is None:
            return None
        return self.movement.tensors(), self._training_features(task)

    def _training_features(self, task: Task) -> Tensor:
        """Return the embeddings of a task's training images."""
        batches = inputs(self.net.eval(), task.train, task.transform)
        return torch.cat([self.net.embed(x, 0).cpu() for _, x in batches])

    @torch.no_grad()
    def _end_movement(
        self, task: Task, before: tuple[dict[str, Tensor], Tensor] | None, recorded: Recorded
    ) -> None:
        """Note what a task did to the layers that old classes use."""
        assert self.movement is not None
        if before is None:
            self.movement.add_task(recorded)
            return
        tensors, then = before
        moved = float((self._training_features(task) - then).norm() / then.norm().clamp(min=1e-12))
        self.movement.add_task(recorded, tensors, moved)

    def _is_comparable(self) -> bool:
        """Tell whether features of images of different tasks can be compared, and are protected."""
        if not isinstance(self.method, Projected) or self.method.task_dependent:
            return False
        return self.keeps_prototypes and not (self.net.task_dependent or self.net.batch_dependent)

    def _session(self, classes: int, *, restored: bool = False) -> Session:
        """Return the session; start it if this is the first task, which has `classes` classes.

        `restored` means that a saved state is loaded next.
        """
        if self.session is None:
            net = self._build(restored=restored)
            self.session = Session(
                net,
                self.method,
                self.training,
                seed=self.seed,
                classes=classes,
                precision=net.precision,
            )
            self._net = self.session.net
        return self.session

    def _build(self, *, restored: bool = False) -> Network:
        """Return a new network, without heads."""
        if self.network is not None:
            options = dict(self.network_options)
            if self.weights is not None:
                options["weights"] = self.weights
            net = networks.build(
                self.network, self.input_shape, self.seed, restored=restored, **options
            )
        else:
            assert self.trunk is not None
            net = networks.build_own(
                self.trunk, self.input_shape, self.seed, embedding=self.embedding
            )
        net.precision = self._autocast_type()
        return net.to(self.device)

    def _autocast_type(self) -> torch.dtype | None:
        """Return what the trunk computes its products in; None if that is its own precision."""
        name = self.precision or self.training.precision
        return devices.PRECISIONS[devices.resolve_precision(name, self.device)]

    @torch.no_grad()
    def _summary(
        self,
        task: GivenTask,
        samples: list[int],
        scenes: list[int],
        numbers: list[int],
        seconds: float,
    ) -> LearntTask:
        """Return what is known about a task that was just learnt."""
        valid, sharpness, accuracy, interval = task.measured(), {}, None, None
        recalls: dict[str, float] = {}
        for way in [way for way in self.ways if way != STATISTICS]:
            scores = self._scores(way, task, valid)
            sharpness[way] = calibrate(scores, valid.labels)
            if way == "confidence" and len(valid):
                correct = scores.argmax(1) == valid.labels
                figures = balanced_accuracy(valid.labels.cpu(), correct.cpu())
                accuracy, interval = figures.accuracy, interval_of(figures)
                recalls = {task.class_names[n]: share for n, share in figures.recalls.items()}
        learnt = LearntTask(
            name=task.name,
            class_names=list(task.class_names),
            samples=samples,
            sharpness=sharpness,
            accuracy=accuracy,
            ranks={layer.name: layer.rank for layer in self.method.layer_ranks()},
            when=now(),
            seconds=round(seconds, 1),
            data=self._digest(task.train, task.valid),
            numbers=numbers,
            interval=interval,
            recalls=recalls,
            scenes=scenes,
            settings=self._task_settings(),
            version=__version__,
        )
        if self.classifier is not None:
            self._measure(learnt)
        return learnt

    def _task_settings(self) -> dict[str, Any]:
        """Return the settings that a task is learnt with; later ones may have others."""
        names = ("tune",) if self.tune == "none" else ("tune", "method", "training")
        return {name: value for name, value in self.settings().items() if name in names}

    def _measure(self, learnt: LearntTask) -> None:
        """Note how the classes of a task are told apart, from each other and from all others."""
        assert self.classifier is not None
        known = {number for task in [*self.tasks, learnt] for number in task.known_numbers()}
        alone = self.classifier.figures(learnt.known_numbers())
        among_all = self.classifier.figures(sorted(known))
        learnt.accuracy = alone.accuracy if alone else None
        learnt.interval = interval_of(alone) if alone else None
        if among_all is None:
            learnt.task_free, learnt.recalls = None, {}
            return
        figures = asdict(among_all)
        recalls = figures.pop("recalls")
        names = zip(learnt.numbers, learnt.class_names, strict=True)
        learnt.task_free = figures
        learnt.recalls = {name: recalls[number] for number, name in names if number in recalls}

    def _scores(self, way: str, task: Task, split: Split) -> Tensor:
        """Return the scores of images of a task (n, classes)."""
        if not len(split):
            return torch.zeros(0, task.classes)
        means = self.prototypes[task.id] if way == "prototypes" else None
        net = self.net.eval()
        batches = inputs(net, split, task.transform)
        return torch.cat([SCORES[way](net, x, task.id, means) for _, x in batches])

    # Predicting.

    @reads
    def predict(
        self,
        images: Images,
        task: str | None = None,
        *,
        by: str | None = None,
        unknown: float = 0.0,
        batch_size: int = 1,
        report_bad: bool = False,
    ) -> list[Prediction]:
        """Predict the class of each image, among all tasks if `task` is not given.

        Images are paths, a folder, bytes, open files, Pillow images, or a tensor. `by` is
        "statistics", "confidence" or "prototypes", by default the first that the learner has
        (`default_way`). By statistics, `unknown` is the share of images of known classes that may
        be refused as none of these: such predictions are not `known`. A larger batch size is
        faster, but the last digits of probabilities may then depend on the batch. Threads may
        predict at the same time. A picture that cannot be read is an error, unless `report_bad`:
        then its prediction has no class, and says why in `error`.
        """
        if not report_bad or isinstance(images, Tensor):
            return self._predict(images, task, by=by, unknown=unknown, batch_size=batch_size)
        self.net  # noqa: B018  # raises if nothing was learnt
        given = list(images) if isinstance(images, list | tuple) else [images]
        read, _, bad = self.kind.attempt(given)
        predicted: list[Prediction] = []
        if len(read):
            predicted = self._predict(read, task, by=by, unknown=unknown, batch_size=batch_size)
        return with_unreadable(predicted, bad)

    @torch.no_grad()
    def _predict(
        self,
        images: Images,
        task: str | None = None,
        *,
        by: str | None = None,
        unknown: float = 0.0,
        batch_size: int = 1,
    ) -> list[Prediction]:
        net = self.net.eval()
        by = by or self.default_way(task)
        if by not in self.ways:
            if by not in (STATISTICS, *SCORES):
                raise unknown_name("way to predict", by, self.ways)
            raise UserError(f"this learner has no {by}: predict by {' or '.join(self.ways)}")
        numbers = range(len(self.tasks)) if task is None else [self.task_number(task)]
        predicted: list[Prediction] = []
        for x in self.inputs(images).split(batch_size):
            if by == STATISTICS:
                predicted += self._predict_by_statistics(x, numbers, unknown)
            else:
                means = self.prototypes if by == "prototypes" else None
                predicted += predictions(net, self.tasks, means, x, numbers, by)
        return predicted

    def default_way(self, task: str | None = None) -> str:
        """Return the way to predict when none is given.

        Without statistics, the confidence of heads is best for one task, and prototypes for all.
        """
        if self.classifier is None and task is None and "prototypes" in self.ways:
            return "prototypes"
        return self.ways[0]

    def _predict_by_statistics(
        self, x: Tensor, numbers: Sequence[int], unknown: float
    ) -> list[Prediction]:
        """Return the prediction for each input, over the classes of these tasks."""
        assert self.classifier is not None
        tasks = [self.tasks[number] for number in numbers]
        known = {number for task in tasks for number in task.known_numbers()}
        classes = {n: names for n, names in numbered_classes(tasks).items() if n in known}
        if not classes:
            return [Prediction(())] * len(x)
        rows, p_values = self.classifier.probabilities(self.net.embed(x, 0), list(classes))
        return [
            replace(
                rank_guesses(
                    [
                        Guess(name, task, probability)
                        for (name, task), probability in zip(classes.values(), row, strict=True)
                    ]
                ),
                p_value=p_value,
                known=p_value > unknown,
            )
            for row, p_value in zip(rows.tolist(), p_values.tolist(), strict=True)
        ]

    def task_outputs(self, x: Tensor, number: int) -> Tensor:
        """Return the logits of a task's head, or products with the means of its classes."""
        if self.session is not None:
            return self.net(x, number)
        assert self.classifier is not None
        means = self.classifier.statistics.means()[self.tasks[number].numbers]
        return self.net.embed(x, number).cpu().double() @ means.T

    def inputs(self, images: Images) -> Tensor:
        """Return inputs of the network for images as `predict` takes them."""
        self.net  # noqa: B018  # raises if nothing was learnt
        images = self.kind.read(images)
        if tuple(images.shape) == self.input_shape:
            images = images[None]
        if tuple(images.shape[1:]) != self.input_shape:
            raise UserError(
                f"{self.kind.several} of shape {tuple(images.shape)} cannot be used: give one "
                f"or several of shape {self.input_shape}"
            )
        split = Split(images, torch.zeros(len(images), dtype=torch.int64)).to(self.device)
        dtype = next(self.net.parameters()).dtype
        return self.transform(split.unit_images(slice(None), dtype))

    @reads
    def reference(self, images: Images, task: str) -> Reference:
        """Record the current outputs for images of a task, for `leakage` later.

        The reference holds the images; `save` does not include it, so keep it yourself.
        """
        return take_reference(self, images, task)

    def drift(self) -> list[Drift]:
        """Return how far the features of each task can have moved since it was learnt.

        No image of these tasks is needed. With tune="none" nothing has moved. Where layers learn
        under projection, `bound` holds for the images that were learnt, and `estimate` is what to
        expect; see `Drift`.
        """
        movement = None if self.movement is None else self.movement.state_dict()
        return drifts_in(self.tasks, self.tune, movement)

    def task_number(self, task: str) -> int:
        """Return the number of a task, counted from 0; refuse a name that was not learnt."""
        names = [learnt.name for learnt in self.tasks]
        if composed(task) not in names:
            raise unknown_name("task", task, names)
        return names.index(composed(task))

    def forecast(self) -> list[LayerForecast]:
        """Return the rank in use of each layer, and for how many more classes the rest will do."""
        return list(self.capacity().layers)

    def capacity(self) -> Capacity:
        """Return how many more classes like the last fit, and which layer will be full next."""
        dimensions = {layer.name: layer.dimension for layer in self.method.layer_ranks()}
        return forecast_of(dimensions, self.tasks, self.method)

    @changes
    @torch.no_grad()
    def forget_class(self, task: str, name: str, images: Images | None = None) -> dict[str, int]:
        """Stop predicting a class; return the directions this frees in each layer, always 0.

        The class's row of the head, its prototypes and its statistics are removed. Of images that
        are not kept as features, their share of the covariance that all classes have in common
        stays, unless all `images` of the class are given again; if even then something stays of
        them, `TracesStay` is warned.
        Its directions stay protected: later classes may share them, and the data to find out are
        gone. On disk, earlier states still have the class: `save` with keep=1 removes them.
        """
        number, name = self.task_number(task), composed(name)
        learnt = self.tasks[number]
        remaining = [known for known in learnt.class_names if known not in learnt.forgotten]
        if name not in remaining:
            raise unknown_name(f"class of task '{task}'", name, remaining)
        owners, traces = [number], False  # tasks that have the class: several, if it was merged
        if self.classifier is not None:
            merged = learnt.numbers[learnt.class_names.index(name)]
            samples = () if images is None else self._all_samples(merged, images)
            traces = not self.classifier.forget(merged, *samples) and images is not None
            owners = [n for n, one in enumerate(self.tasks) if merged in one.known_numbers()]
        elif images is not None:
            raise UserError(
                f"this learner has no class statistics to remove {self.kind.several} from"
            )
        for owner in owners:
            label = self.tasks[owner].class_names.index(name)
            self.tasks[owner].forgotten.append(name)
            self.tasks[owner].data = ""  # a digest of its images, too
            if self.session is not None:
                self.net.head_parameters(owner)[0][label] = 0
                if self.keeps_prototypes:
                    self.prototypes[owner][label] = 0
                earlier = sum(len(before.class_names) for before in self.tasks[:owner])
                self.method.forget_class(earlier + label)
        if traces:  # the last thing to do, because a warning can be made an error
            warnings.warn(
                f"traces of the images of class '{name}' stay in the covariance that all classes "
                "have in common: their embeddings are no longer exactly those that were learnt",
                TracesStay,
                stacklevel=3,
            )
        return {layer.name: 0 for layer in self.method.layer_ranks()}

    def _all_samples(self, number: int, images: Images) -> tuple[Tensor, Tensor]:
        """Return embeddings and draws of all images of a class; refuse others, or fewer of them."""
        assert self.classifier is not None
        batch = self.kind.read(images)
        expected = self.classifier.digests[self.classifier.classes == number]
        given = sample_digests(batch, self.secret)
        chosen = [int((given == key).nonzero()[0]) for key in expected.tolist() if key in given]
        if len(chosen) < len(expected):
            raise UserError(
                f"{len(expected) - len(chosen)} of the {len(expected)} {self.kind.several} of the "
                "class are not among those given: give all, or none to keep its share of the "
                "covariance"
            )
        batch = batch[torch.tensor(chosen)]
        net = self.net.eval()
        features = torch.zeros(len(batch), net.embedding)
        for places in net.same_length(batch, SMALL_BATCH):
            features[places] = self._small_batch(self.inputs(batch[places]), 0).cpu().float()
        return features, sample_digests(batch, self._draw_key())

    # Saving and loading, as docs/state.md describes.

    @reads
    def save(self, folder: Path | str, *, keep: int | None = None, replace: bool = False) -> None:
        """Save everything in a folder, where so many states are kept, by default `kept_states`.

        With keep=1 no earlier state stays, such as one with a class that was forgotten since. With
        `replace`, this one takes the place of the newest, which cannot be returned to.
        """
        with Lock(folder):
            self._refuse_stale(Path(folder))
            self.net  # noqa: B018  # raises if nothing was learnt
            self._make_secret(None)  # a state of an earlier version may have none
            store, state = self._store(Path(folder)), self._saved_state()
            store.save(state, keep or self.kept_states, replace=replace)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        trunk: nn.Module | None = None,
        method: Method | None = None,
        *,
        device: torch.device | str = "cpu",
        check_trunk: bool = True,
    ) -> "Learner":
        """Return the learner saved in a folder, on any device.

        A trunk of your own has to be given again, and so does a method of your own. A trunk whose
        code has changed since is refused, unless `check_trunk` is False.
        """
        folder = Path(folder)
        store = Store(folder / FOLDER)
        loaded = read_state(folder, store)
        with raising_bad_checkpoint(f"the state in '{folder}'"):
            learner = cls._of_state(loaded.state, trunk, method, device)
            if check_trunk and loaded.state.get("probe") is not None:
                precise = learner.net.precision is None
                probe.refuse_other(learner._probe(), loaded.state["probe"], precise)
        learner.stores[folder.resolve()] = store
        learner.warnings = loaded.warnings
        return learner

    @reads
    def frozen(self) -> "Learner":
        """Return a copy that predicts as this learner does now, whatever this one learns later."""
        learner = self._of_state(self.state_dict(), self.trunk, self.method, self.device)
        # Copied, so that what this learner saves later is a change to the copy.
        learner.stores = {folder: copy.copy(store) for folder, store in self.stores.items()}
        learner.usage = Usage(frozen=True)
        return learner

    def changed(self) -> bool:
        """Tell whether the learner on disk is no longer the one that was loaded or saved there."""
        return any(store.is_stale() for store in self.stores.values())

    @classmethod
    def _of_state(
        cls,
        state: Mapping[str, Any],
        trunk: nn.Module | None,
        method: Method | None,
        device: torch.device | str,
    ) -> "Learner":
        """Return the learner that a saved state is of."""
        if state["network"] is None and trunk is None:
            raise UserError("this learner has a trunk of your own: give it again", hint="model")
        version = defaults.check_version(state.get("defaults", 1))
        options = {**defaults.of(KIND, version), **state}
        tune = options["tune"]
        training = defaults.restore("training", Training, state["training"], version)
        learner = cls(
            trunk if state["network"] is None else None,
            None if tune == "none" else restore_method(state["method"], method, version),
            network=state["network"],
            network_options=restore_network_options(state, version),
            embedding=state["embedding"],
            size=options["size"],
            training=None if tune == "none" else training,
            tune=tune,
            valid_fraction=options["valid_fraction"],
            prototypes=options["keeps_prototypes"],
            priors=options["priors"],
            kept_features=options["kept_features"],
            kept_states=options["kept_states"],
            seed=options["seed"],
            device=device,
            precision=options["precision"],
        )
        learner.defaults = version
        learner.load_state_dict(state)
        return learner

    def settings(self) -> dict[str, Any]:
        """Return the settings as saved states have them."""
        return {
            "network": self.network,
            "network_options": dict(self.network_options),
            "method": {"name": self.method.name, **self.method.model_dump()},
            "training": self.training.model_dump(),
            "tune": self.tune,
            "seed": self.seed,
            "precision": self.precision,
            "defaults": self.defaults,
        }

    def _probe(self) -> Tensor | None:
        return probe.measure(self.net, self.input_shape, self.transform, len(self.tasks))

    def _saved_state(self) -> dict[str, Any]:
        """Return what is saved on disk: everything, and a probe of the trunk's code."""
        return {**self.state_dict(), "probe": self._probe()}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything there is of a learner between two tasks."""
        session, net = self.session, self._net
        return {
            "kind": KIND,
            **self.settings(),
            "embedding": None if net is None else net.embedding,
            "size": self.size,
            "input_shape": list(self.input_shape),
            "valid_fraction": self.valid_fraction,
            "keeps_prototypes": self.keeps_prototypes,
            "priors": self.priors,
            "kept_features": self.kept_features,
            "kept_states": self.kept_states,
            "secret": self.secret.hex(),
            "classifier": None if self.classifier is None else self.classifier.state_dict(),
            "movement": None if self.movement is None else self.movement.state_dict(),
            "tasks": [asdict(task) for task in self.tasks],
            "prototypes": [means.cpu().clone() for means in self.prototypes],
            "net": None
            if net is None
            else {n: v.cpu().clone() for n, v in net.state_dict().items()},
            "memory": copy.deepcopy(session.state_dict()["method"] if session else {}),
            # For `info`, which has no network to ask.
            "dimensions": {r.name: r.dimension for r in (self.method.layer_ranks() if net else [])},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the learner must have been made with the settings of that state."""
        self.tasks = [LearntTask(**task) for task in state["tasks"]]
        self.input_shape = tuple(state["input_shape"])
        self._refuse_mismatch(state)
        self.method = self.method.replace()
        self.session = self._net = self.classifier = self.movement = None
        self.secret = secret_of(state)
        for task in self.tasks:
            if task.forgotten:  # earlier versions kept the digest of all its images
                task.data = ""
            elif self.secret:
                task.data = keyed(task.data, self.secret)
        if state["net"] is None:
            return
        self.embedding = state["embedding"]
        if self.tune == "none":
            self._net = self._build(restored=True)
            refuse_other_layers(self._net, state["net"])
            self._net.load_state_dict(state["net"])
        else:
            self._restore_session(state)
        if state.get("classifier") is not None:
            self.classifier = self._new_classifier()
            self.classifier.load_state_dict(state["classifier"])
        if state.get("movement") is not None:
            self.movement = self._new_movement()
            self.movement.load_state_dict(state["movement"], len(self.tasks))
        self._refuse_other_classes()

    def _restore_session(self, state: Mapping[str, Any]) -> None:
        """Restore what trains the network, and its weights, from a saved state."""
        classes = [len(task.class_names) for task in self.tasks]
        session = self._session(classes[0], restored=True)
        parts = {"tasks": len(classes), "net": state["net"], "unfinished": None}
        session.load_state_dict({**parts, "method": state["memory"]}, classes)
        session.prototypes = ClassPrototypes()
        for task, means in zip(self.tasks, state["prototypes"], strict=self.keeps_prototypes):
            session.prototypes.add(task.class_names, means.to(self.device))
        layers = {layer.name for layer in self.method.layer_ranks()}
        if any(task.ranks.keys() != layers for task in self.tasks):
            raise ValueError("tasks and method have different layers")

    def _unfinished_state(self, about: dict[str, str], loop: dict[str, Any]) -> dict[str, Any]:
        """Return all that is needed to resume an unfinished task, given the state of the loop."""
        return {
            **about,
            **self.settings(),
            "secret": self.secret.hex(),
            "tasks": len(self.tasks),
            "forgotten": [list(task.forgotten) for task in self.tasks],
            "memory": self.session.state_dict(loop)["method"] if self.session else {},
            "unfinished": loop,
        }

    def _refuse_other_task(self, saved: Mapping[str, Any], about: dict[str, str]) -> None:
        """Refuse to resume another task, or one that was started with other settings."""
        current = self._identity({**about, **self._unfinished_state({}, {})})
        earlier = self._identity(saved)
        differing = [name for name, value in current.items() if earlier.get(name) != value]
        if differing:
            raise UserError(
                f"task '{saved.get('task')}' was cut short with another {differing[0]}: give the "
                "same again, or start the task afresh",
                hint="fresh",
            )

    def _identity(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what identifies an unfinished task: its data, and settings that were given."""
        version = defaults.check_version(state.get("defaults", 1))
        names = ("task", "data", "network", "seed", "precision", "tasks", "forgotten")
        settings = dict(state["method"])
        method = settings.pop("name")
        network, options = state["network"], dict(state["network_options"])
        if network in networks.NETWORKS:
            kind = networks.NETWORKS[network].Options
            options = defaults.non_default(f"network {network}", kind, options, version)
        given = defaults.non_default(f"method {method}", type(self.method), settings, version)
        return {
            **{name: state.get(name) for name in names},
            "data": keyed(str(state.get("data")), self.secret),
            "method": {"name": method, **given},
            "training": defaults.non_default("training", Training, state["training"], version),
            "network_options": options,
        }

    def _restore_settings(self, saved: Mapping[str, Any]) -> None:
        """Restore the settings that an unfinished task was started with, or its older defaults."""
        version = defaults.check_version(saved.get("defaults", 1))
        self.training = defaults.restore("training", Training, saved["training"], version)
        if self.session is None:
            settings = {n: v for n, v in saved["method"].items() if n != "name"}
            kind, key = type(self.method), f"method {self.method.name}"
            self.method = defaults.restore(key, kind, settings, version)
            self.network_options = restore_network_options(saved, version)
            self.defaults = version

    def _refuse_mismatch(self, state: Mapping[str, Any]) -> None:
        """Refuse a state whose parts do not match."""
        if any(type(size) is not int or size < 1 for size in self.input_shape):
            raise ValueError("the shape of inputs is invalid")
        ways = set() if self.tune == "none" else {"confidence"}
        if ways and self.keeps_prototypes:
            ways.add("prototypes")
        if any(task.sharpness.keys() != ways for task in self.tasks):
            raise ValueError("tasks are calibrated for other ways to predict")
        counts = [len(task.class_names) for task in self.tasks] if ways else []
        if self.keeps_prototypes and [len(means) for means in state["prototypes"]] != counts:
            raise ValueError("prototypes and tasks have different classes")

    def _refuse_other_classes(self) -> None:
        """Refuse statistics of other classes than those of the tasks."""
        numbers = sorted({number for task in self.tasks for number in task.numbers})
        if numbers != list(range(len(self.classifier or []))):
            raise ValueError("class statistics and tasks have different classes")
        if self.tune == "none" and self.classifier is None and self.tasks:
            raise ValueError("class statistics are missing")

    def _store(self, folder: Path) -> Store:
        """Return the store of a folder, which tracks what this learner loaded and saved there."""
        return self.stores.setdefault(folder.resolve(), Store(folder / FOLDER))

    def _refuse_stale(self, folder: Path) -> None:
        """Refuse to save over what this learner has not seen."""
        if self._store(folder).is_stale():
            raise UserError(
                f"'{folder}' holds another learner, or one that has learnt more since this one was "
                "loaded: load it from there, or give another folder"
            )


def as_method(method: Method | str, settings: Mapping[str, Any]) -> Method:
    """Return a new method with the settings of one, or the one of a name, with these if it can."""
    if not isinstance(method, str):
        return checked_method(method).replace()
    kind = methods.kind(method)
    return kind(**{name: value for name, value in settings.items() if kind.accepts(name)})


def refuse_useless(
    method: Method | str | None, training: Training | None, prototypes: bool
) -> None:
    """Refuse settings of training, where nothing is trained."""
    for what, value in [("method", method), ("training", training)]:
        if value is not None:
            raise UserError(
                f"with tune=none no layer learns, so the {what} would have no effect: leave it "
                "out, or tune the last blocks",
                hint="tune",
            )
    if not prototypes:
        raise UserError(
            "with tune=none class statistics, which have the mean of each class, are all that is "
            "learnt: tune the last blocks to learn without them",
            hint="tune",
        )


def secret_of(state: Mapping[str, Any]) -> bytes:
    """Return the key of digests in a saved state; of some earlier states there is none."""
    return bytes.fromhex(state.get("secret", ""))


def keyed(data: str, key: bytes) -> str:
    """Return a digest of data with a key, given one without, as earlier versions stored it.

    >>> keyed(keyed("0123", b"key"), b"other") == keyed("0123", b"key")
    True
    """
    if not data or data.startswith(KEYED):
        return data
    return KEYED + hashlib.blake2b(data.encode(), key=key, digest_size=16).hexdigest()


def part_of(split: Split, chosen: Tensor) -> Split:
    """Return some images of a split."""
    chosen = chosen.to(split.labels.device)
    return Split(split.images[chosen], split.labels[chosen])


def now() -> str:
    """Return the date and time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def interval_of(figures: Balanced | Figures) -> dict[str, float | int]:
    """Return the interval of a balanced accuracy, as saved states have it."""
    return {"samples": figures.samples, "low": figures.low, "high": figures.high}


def warn_about_single_images(task: Task, tune: str, kind: InputKind) -> None:
    """Warn about classes with one training sample, which is then what their prototypes show."""
    counts = torch.bincount(task.train.labels.cpu(), minlength=task.classes).tolist()
    single = [name for name, count in zip(task.class_names, counts, strict=True) if count == 1]
    if single:
        warnings.warn(
            f"class '{single[0]}' of task '{task.name}' has one training {kind.one}, and a stored "
            f"mean of one {kind.one} can reveal it: give more, or "
            # Without layers that learn, the means are all there is.
            + ("let layers learn and " if tune == "none" else "")
            + "leave prototypes out (prototypes=False)",
            SingleImage,
            stacklevel=4,
        )


def read_state(folder: Path, store: Store) -> Loaded:
    """Return the state of a learner from the store of a folder."""
    loaded = store.load()
    if loaded is None:
        raise UserError(f"'{folder}' holds no learner: give the folder it was saved in")
    if loaded.state.get("kind") != KIND:
        raise UserError(f"'{folder}' holds the state of a run, not a learner")
    return loaded


def unfinished_state(checkpoints: CheckpointManager, learnt: int) -> dict[str, Any] | None:
    """Return the state of a task that was cut short after `learnt` others, if there is one.

    A process killed right at the end of a task leaves a state of that task, which does not count.
    """
    loaded = checkpoints.load()
    return None if loaded is None or loaded.state.get("tasks", learnt) < learnt else loaded.state


def restore_network_options(state: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the options of a state's network; those not given have the defaults of its version."""
    name, options = state["network"], state["network_options"]
    if name is None or name not in networks.NETWORKS:
        return dict(options)
    kind = networks.NETWORKS[name].Options
    restored = defaults.restore(f"network {name}", kind, options, version).model_dump()
    current, given = kind().model_dump(), kind.migrate(options)
    if "tune" not in state and kind.accepts("trainable"):
        given.setdefault("trainable", 0)  # before there was a choice, heads alone learnt
    older = {option: value for option, value in restored.items() if value != current[option]}
    return {**given, **{option: value for option, value in older.items() if option not in given}}
