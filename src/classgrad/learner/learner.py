"""The learner: your network, your images, new classes as they come, predictions at any time."""

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classgrad import defaults, devices, networks
from classgrad.benchmarks.base import Normalise
from classgrad.checkpoints import CheckpointManager, Loaded, Lock, Store
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.manager import FOLDER
from classgrad.data.pictures import as_pictures
from classgrad.errors import UserError, unknown
from classgrad.learner.drift import Reference, take_reference
from classgrad.learner.inputs import Data, Images, as_split, split_off_validation
from classgrad.learner.learnt import LearntTask, forecast_of
from classgrad.methods.base import Method
from classgrad.methods.projection.cgp import CGP
from classgrad.methods.projection.forecast import Capacity, LayerForecast
from classgrad.methods.saved_state import restore_method
from classgrad.networks.adapted import adapted
from classgrad.networks.network import Network
from classgrad.networks.weights import with_digest
from classgrad.prediction.accuracy import ClassPrototypes, inputs
from classgrad.prediction.calibration import SCORES, Prediction, calibrate, predictions
from classgrad.seeds import generator
from classgrad.tasks import Split, Task, Transform, digest, unchanged
from classgrad.training.config import Training
from classgrad.training.loop import Observer
from classgrad.training.session import Session

KIND = "learner"  # marks the states of learners
PRECISIONS = ("bfloat16", "float16")  # lower than that of the weights
LEARNING = "learning"  # folder of an unfinished task, inside that of the learner
# Batch statistics would make a prediction depend on its batch.
STORED = {"norm": "stored", "affine": "task"}
# For tasks of a few hundred images.
DEFAULT_TRAINING = Training(
    epochs=30, batch_size=32, learning_rate=0.01, momentum=0.9, nesterov=True
)
SIZE = 32
# Midway between black and white, and a typical standard deviation of photographs.
MEAN, DEVIATION = 0.5, 0.25


class SingleImage(UserWarning):
    """A class has only one image, which its prototypes could reveal."""


class Learner:
    """Learn tasks one after another, and predict the classes of images.

    The trunk is any module from inputs to (n, embedding), or `network` names one that comes with
    classgrad, for pictures of `size` x `size`, by default 32 or what a pretrained network needs.
    Pictures are scaled to [0, 1] and normalised to roughly zero mean and unit deviation, or as a
    pretrained network needs it; other inputs go to the trunk unchanged. With `precision`,
    bfloat16 or float16, the trunk computes its products in it; weights and bases keep their own
    precision. `device` is cpu, cuda or mps; a saved learner can be loaded on any.

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
        method: Method | None = None,
        *,
        network: str | None = None,
        network_options: Mapping[str, Any] | None = None,
        embedding: int | None = None,
        size: int | None = None,
        training: Training | None = None,
        valid_fraction: float = 0.1,
        prototypes: bool = True,
        seed: int = 1,
        device: torch.device | str = "cpu",
        precision: str | None = None,
    ) -> None:
        if precision not in (None, *PRECISIONS):
            raise unknown("precision", str(precision), PRECISIONS)
        if (trunk is None) == (network is None):
            raise UserError("give either a trunk of your own or the name of a network")
        self.method = CGP() if method is None else method.replace()
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
        self.network, self.network_options = network, dict(network_options or {})
        self.weights: Path | None = None  # file of the first weights, if it was given
        if network is not None:
            kind = networks.kind(network)
            fixed = {name: value for name, value in STORED.items() if kind.Options.accepts(name)}
            self.network_options, self.weights = with_digest(
                kind.Options, {**fixed, **self.network_options}
            )
            if size is not None and kind.Options.accepts("size"):
                self.network_options.setdefault("size", size)
            # Refuses unknown options.
            size = size or getattr(kind.Options(**self.network_options), "size", None)
        self.trunk = None if trunk is None else adapted(trunk)
        self.embedding, self.size = embedding, size or SIZE
        self.training = training or DEFAULT_TRAINING
        self.valid_fraction, self.keeps_prototypes, self.seed = valid_fraction, prototypes, seed
        self.device, self.precision = devices.resolve_device(device), precision
        self.defaults = defaults.newest_version()  # version it was made with
        self.input_shape: tuple[int, ...] = ()  # of one input, known from the first task on
        self.tasks: list[LearntTask] = []
        self.session: Session | None = None  # from the first task on
        self.stores: dict[Path, Store] = {}  # where this learner was loaded from or saved
        self.warnings: tuple[str, ...] = ()  # damaged checkpoints that loading skipped

    @property
    def net(self) -> Network:
        """The network with the heads of all tasks."""
        if self.session is None:
            raise UserError("nothing was learnt yet: call learn first")
        return self.session.net

    @property
    def prototypes(self) -> list[Tensor]:
        """Class means of each task, of unit length; empty if they are not kept."""
        return self.session.prototypes.prototypes if self.session else []

    @property
    def transform(self) -> Transform:
        """The function from images in [0, 1] to inputs of the network."""
        pictures = len(self.input_shape) == 3 and self.input_shape[0] in (1, 3)
        channels = self.input_shape[0] if pictures else 0
        if not pictures:
            return unchanged
        trunk = networks.NETWORKS.get(self.network or "")
        mean, deviation = (trunk and trunk.normalisation) or (MEAN, DEVIATION)
        return Normalise([mean] * channels, [deviation] * channels)

    # Learning.

    def learn(
        self,
        name: str,
        train: Data,
        *,
        valid: Data | None = None,
        classes: Sequence[str] | None = None,
        skip_bad: bool = False,
        checkpoint_dir: Path | str | None = None,
        fresh: bool = False,
        checkpoints: CheckpointManager | None = None,
        observer: Observer | None = None,
    ) -> LearntTask:
        """Learn a task; its data are not needed afterwards.

        Without `valid` a share of every class is set aside for validation. With `checkpoint_dir`
        the learner is saved in that folder at the end, and every few minutes during training: after
        a crash the same call resumes from there, or returns at once if the task was finished;
        `fresh` starts the task again instead. If learning fails, the learner is as it was before.
        """
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        task = self._task(name, train, valid, classes, skip_bad)
        if task.id < len(self.tasks):
            return self.tasks[task.id]
        if self.keeps_prototypes:
            warn_about_single_images(task)
        if folder is not None:
            checkpoints = checkpoints or CheckpointManager(folder / LEARNING)
        before = self.state_dict()
        try:
            with Lock(folder) if folder is not None else nullcontext():
                if folder is not None:
                    self._refuse_stale(folder)
                if fresh and checkpoints is not None:
                    checkpoints.clear()
                learnt = self._learn(task, checkpoints, observer)
                if folder is not None and checkpoints is not None:
                    self._store(folder).save(self.state_dict())
                    checkpoints.clear()
        except BaseException:
            self.load_state_dict(before)
            raise
        return learnt

    def _task(
        self,
        name: str,
        train: Data,
        valid: Data | None,
        classes: Sequence[str] | None,
        skip_bad: bool,
    ) -> Task:
        """Return the task that the arguments of `learn` describe; a known name has its number."""
        known = [task.name for task in self.tasks]
        number = known.index(name) if name in known else len(known)
        split, names = as_split(train, classes, self.size, skip_bad)
        if len(set(names)) < len(names):
            raise UserError(f"task '{name}' has two classes of the same name: rename one")
        if valid is None:
            rng = generator(self.seed, "valid", number)
            split, validation = split_off_validation(split, self.valid_fraction, rng)
        else:
            validation, _ = as_split(valid, names, self.size, skip_bad)
        shape = tuple(split.images.shape[1:])
        if self.tasks and shape != self.input_shape:
            raise UserError(
                f"images of task '{name}' have shape {shape}, those of earlier tasks "
                f"{self.input_shape}: give all the same"
            )
        self.input_shape = shape
        if name in known and self.tasks[number].data != digest([split, validation]):
            raise UserError(
                f"task '{name}' was learnt before, from other data: give the new one another name"
            )
        return Task(
            number, name, names, split.to(self.device), validation.to(self.device), self.transform
        )

    def _learn(
        self, task: Task, checkpoints: CheckpointManager | None, observer: Observer | None
    ) -> LearntTask:
        """Learn a task, from the start or from where it was cut short; return its summary."""
        started = time.perf_counter()
        about = {"task": task.name, "data": digest([task.train, task.valid])}
        saved = unfinished_state(checkpoints, len(self.tasks)) if checkpoints else None
        if saved:
            self._refuse_other_task(saved, about)
            with raising_bad_checkpoint(f"the saved state of task '{task.name}'"):
                self._restore_settings(saved)
        session = self._session(task.classes)
        session.training = self.training
        session.add_task(task.classes)
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
        self.tasks.append(self._summary(session, task, time.perf_counter() - started))
        return self.tasks[-1]

    def _session(self, classes: int, *, restored: bool = False) -> Session:
        """Return the session; start it if this is the first task, which has `classes` classes.

        `restored` means that a saved state is loaded next.
        """
        if self.session is None:
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
            net.to(self.device)
            precision = devices.resolve_precision(
                self.precision or self.training.precision, self.device
            )
            self.session = Session(
                net,
                self.method,
                self.training,
                seed=self.seed,
                classes=classes,
                precision=devices.PRECISIONS[precision],
            )
        return self.session

    @torch.no_grad()
    def _summary(self, session: Session, task: Task, seconds: float) -> LearntTask:
        """Return what is known about a task that was just learnt; keep its prototypes."""
        if self.keeps_prototypes:
            session.prototypes.add_task(session.net, task)
        sharpness, accuracy = {}, None
        for way in SCORES if self.keeps_prototypes else ["confidence"]:
            scores = self._valid_scores(way, task)
            sharpness[way] = calibrate(scores, task.valid.labels)
            if way == "confidence" and len(task.valid):
                correct = scores.argmax(1) == task.valid.labels
                accuracy = 100 * float(correct.cpu().double().mean())
        return LearntTask(
            name=task.name,
            class_names=list(task.class_names),
            samples=torch.bincount(task.train.labels.cpu(), minlength=task.classes).tolist(),
            sharpness=sharpness,
            accuracy=accuracy,
            ranks={layer.name: layer.rank for layer in self.method.layer_ranks()},
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 1),
            data=digest([task.train, task.valid]),
        )

    def _valid_scores(self, way: str, task: Task) -> Tensor:
        """Return the scores of all validation images of a task (n, classes)."""
        if not len(task.valid):
            return torch.zeros(0, task.classes)
        means = self.prototypes[task.id] if way == "prototypes" else None
        net = self.net.eval()
        batches = inputs(net, task.valid, task.transform)
        return torch.cat([SCORES[way](net, x, task.id, means) for _, x in batches])

    # Predicting.

    @torch.no_grad()
    def predict(
        self,
        images: Images,
        task: str | None = None,
        *,
        by: str = "confidence",
        batch_size: int = 1,
    ) -> list[Prediction]:
        """Predict the class of each image, among all tasks if `task` is not given.

        Images are paths, a folder, Pillow images, or a tensor of one or several. `by` is
        "confidence" or "prototypes". A larger batch size is faster, but the last digits of
        probabilities may then depend on the batch.
        """
        if by not in SCORES:
            raise unknown("way to predict", by, SCORES)
        if by == "prototypes" and not self.keeps_prototypes:
            raise UserError("this learner has no prototypes: predict by confidence")
        numbers = range(len(self.tasks)) if task is None else [self.task_number(task)]
        self.net.eval()
        means = self.prototypes if by == "prototypes" else None
        return [
            prediction
            for x in self.inputs(images).split(batch_size)
            for prediction in predictions(self.net, self.tasks, means, x, numbers, by)
        ]

    def inputs(self, images: Images) -> Tensor:
        """Return inputs of the network for images as `predict` takes them."""
        self.net  # noqa: B018  # raises if nothing was learnt
        if not isinstance(images, Tensor):
            images = as_pictures(images, self.size)
        if tuple(images.shape) == self.input_shape:
            images = images[None]
        if tuple(images.shape[1:]) != self.input_shape:
            raise UserError(
                f"images of shape {tuple(images.shape)} cannot be used: give one or several of "
                f"shape {self.input_shape}"
            )
        split = Split(images, torch.zeros(len(images), dtype=torch.int64)).to(self.device)
        dtype = next(self.net.parameters()).dtype
        return self.transform(split.unit_images(slice(None), dtype))

    def reference(self, images: Images, task: str) -> Reference:
        """Record the current outputs for images of a task, for `leakage` later.

        The reference holds the images; `save` does not include it, so keep it yourself.
        """
        return take_reference(self, images, task)

    def task_number(self, task: str) -> int:
        """Return the number of a task, counted from 0; refuse a name that was not learnt."""
        names = [learnt.name for learnt in self.tasks]
        if task not in names:
            raise unknown("task", task, names)
        return names.index(task)

    def forecast(self) -> list[LayerForecast]:
        """Return the rank in use of each layer, and for how many more classes the rest will do."""
        return list(self.capacity().layers)

    def capacity(self) -> Capacity:
        """Return how many more classes like the last fit, and which layer will be full next."""
        dimensions = {layer.name: layer.dimension for layer in self.method.layer_ranks()}
        return forecast_of(dimensions, self.tasks, self.method)

    @torch.no_grad()
    def forget_class(self, task: str, name: str) -> dict[str, int]:
        """Stop predicting a class; return the directions this frees in each layer, always 0.

        The class's row of the head and its prototypes are set to zero. Its directions stay
        protected: later classes may share them, and the data to find out are gone.
        """
        number = self.task_number(task)
        learnt = self.tasks[number]
        remaining = [known for known in learnt.class_names if known not in learnt.forgotten]
        if name not in remaining:
            raise unknown(f"class of task '{task}'", name, remaining)
        label = learnt.class_names.index(name)
        self.net.head_parameters(number)[0][label] = 0
        if self.keeps_prototypes:
            self.prototypes[number][label] = 0
        earlier = sum(len(before.class_names) for before in self.tasks[:number])
        self.method.forget_class(earlier + label)
        learnt.forgotten.append(name)
        return {layer.name: 0 for layer in self.method.layer_ranks()}

    # Saving and loading, as docs/state.md describes.

    def save(self, folder: Path | str) -> None:
        """Save everything in a folder; replace what this learner saved there before."""
        with Lock(folder):
            self._refuse_stale(Path(folder))
            self.net  # noqa: B018  # raises if nothing was learnt
            self._store(Path(folder)).save(self.state_dict())

    @classmethod
    def load(
        cls,
        folder: Path | str,
        trunk: nn.Module | None = None,
        method: Method | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> "Learner":
        """Return the learner saved in a folder, on any device.

        A trunk of your own has to be given again, and so does a method of your own.
        """
        folder = Path(folder)
        store = Store(folder / FOLDER)
        loaded = read_state(folder, store)
        state = loaded.state
        with raising_bad_checkpoint(f"the state in '{folder}'"):
            if state["network"] is None and trunk is None:
                raise UserError("this learner has a trunk of your own: give it again", hint="model")
            version = defaults.check_version(state.get("defaults", 1))
            options = {**defaults.of(KIND, version), **state}
            learner = cls(
                trunk if state["network"] is None else None,
                restore_method(state["method"], method, version),
                network=state["network"],
                network_options=restore_network_options(state, version),
                embedding=state["embedding"],
                size=options["size"],
                training=defaults.restore("training", Training, state["training"], version),
                valid_fraction=options["valid_fraction"],
                prototypes=options["keeps_prototypes"],
                seed=options["seed"],
                device=device,
                precision=options["precision"],
            )
            learner.defaults = version
            learner.stores[folder.resolve()] = store
            learner.warnings = loaded.warnings
            learner.load_state_dict(state)
        return learner

    def settings(self) -> dict[str, Any]:
        """Return the settings as saved states have them."""
        return {
            "network": self.network,
            "network_options": dict(self.network_options),
            "method": {"name": self.method.name, **self.method.model_dump()},
            "training": self.training.model_dump(),
            "seed": self.seed,
            "precision": self.precision,
            "defaults": self.defaults,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything there is of a learner between two tasks."""
        session = self.session
        net = None if session is None else session.net
        return {
            "kind": KIND,
            **self.settings(),
            "embedding": None if net is None else net.embedding,
            "size": self.size,
            "input_shape": list(self.input_shape),
            "valid_fraction": self.valid_fraction,
            "keeps_prototypes": self.keeps_prototypes,
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
        self.session = None
        if state["net"] is None:
            return
        self.embedding = state["embedding"]
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
        ways = SCORES if self.keeps_prototypes else ["confidence"]
        if any(task.sharpness.keys() != set(ways) for task in self.tasks):
            raise ValueError("tasks are calibrated for other ways to predict")
        counts = [len(task.class_names) for task in self.tasks]
        if self.keeps_prototypes and [len(means) for means in state["prototypes"]] != counts:
            raise ValueError("prototypes and tasks have different classes")

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


def warn_about_single_images(task: Task) -> None:
    """Warn about classes with one training image, which is then what their prototypes show."""
    counts = torch.bincount(task.train.labels.cpu(), minlength=task.classes).tolist()
    single = [name for name, count in zip(task.class_names, counts, strict=True) if count == 1]
    if single:
        warnings.warn(
            f"class '{single[0]}' of task '{task.name}' has one training image, and prototypes of "
            "one image can reveal it: give more, or leave prototypes out (prototypes=False)",
            SingleImage,
            stacklevel=3,
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
    older = {option: value for option, value in restored.items() if value != current[option]}
    return {**given, **{option: value for option, value in older.items() if option not in given}}
