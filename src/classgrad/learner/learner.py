"""A learner: your network, your images, new classes whenever they come, predictions in between."""

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
from classgrad.benchmarks.transforms import Normalise
from classgrad.checkpoints import CheckpointManager, Loaded, Lock, Store
from classgrad.checkpoints.errors import understood
from classgrad.checkpoints.manager import FOLDER
from classgrad.data.pictures import as_pictures
from classgrad.errors import UserError, unknown
from classgrad.learner.drift import Reference, take
from classgrad.learner.forecast import LayerForecast, forecast_all
from classgrad.learner.inputs import Data, Images, as_split, divided
from classgrad.learner.learnt import LearntTask
from classgrad.methods import METHODS
from classgrad.methods.base import Method
from classgrad.methods.projection.cgp import CGP
from classgrad.networks.adapted import adapted
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import ClassPrototypes, inputs
from classgrad.prediction.calibration import KINDS, Prediction, calibrated, predictions
from classgrad.seeds import generator
from classgrad.tasks import Split, Task, Transform, digest, unchanged
from classgrad.training.config import Training
from classgrad.training.loop import Observer
from classgrad.training.session import Session

KIND = "learner"  # of its states
LEARNING = "learning"  # folder of a task that is not finished, below that of the state
# Batch statistics would make a prediction depend on its batch.
STORED = {"norm": "stored", "affine": "task"}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# For tasks of a few hundred images.
DEFAULT_TRAINING = Training(
    epochs=30, batch_size=32, learning_rate=0.01, momentum=0.9, nesterov=True
)
# Halfway between black and white, and a usual deviation of photographs.
MEAN, DEVIATION = 0.5, 0.25


class SingleImage(UserWarning):
    """Warns of a class with one image."""


class Learner:
    """Learns tasks one after another, and tells the classes of images.

    The trunk is any module from inputs to (n, embedding), or `network` names one that comes with
    classgrad, for pictures of `size` x `size`. Pictures are read in [0, 1] and normalised to zero
    mean and unit deviation, roughly; other inputs go to the trunk as they are. With a `precision`
    the trunk computes its products in it; weights and bases stay as exact as they are. `device` is
    where it computes, cpu, cuda or mps; what it says and saves does not tell where that was.

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
        size: int = 32,
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
            raise UserError("give a trunk of your own or the name of a network, one of both")
        self.method = CGP() if method is None else method.replace()
        if not self.method.rehearsal_free:
            raise UserError(
                f"{self.method.name} keeps samples or needs all tasks in advance: a learner takes "
                "methods that do not, such as cgp"
            )
        if not prototypes and isinstance(self.method, CGP) and self.method.similarity < 1:
            raise UserError(
                "base refining keeps means of the inputs of every class, the first layer's too: "
                "without prototypes give cgp similarity=1"
            )
        self.network, self.network_options = network, dict(network_options or {})
        if network is not None:
            self.network_options = {**STORED, **self.network_options}
            networks.options(network, **self.network_options)  # refuses what is not there
        self.trunk = None if trunk is None else adapted(trunk)
        self.embedding, self.size = embedding, size
        self.training = training or DEFAULT_TRAINING
        self.valid_fraction, self.keeps_prototypes, self.seed = valid_fraction, prototypes, seed
        self.device, self.precision = devices.resolve_device(device), precision
        self.defaults = defaults.newest()  # version of those that it was made with
        self.input_shape: tuple[int, ...] = ()  # of one input, known from the first task on
        self.tasks: list[LearntTask] = []
        self.session: Session | None = None  # from the first task on
        self.stores: dict[Path, Store] = {}  # where this learner was loaded from or saved
        self.warnings: tuple[str, ...] = ()  # what was odd when it was loaded

    @property
    def net(self) -> Network:
        """The network with the heads of all tasks."""
        if self.session is None:
            raise UserError("nothing was learnt yet: call learn first")
        return self.session.net

    @property
    def prototypes(self) -> list[Tensor]:
        """Unit means of the classes of each task, if they are kept."""
        return self.session.prototypes.prototypes if self.session else []

    @property
    def transform(self) -> Transform:
        """From images in [0, 1] to what the network sees."""
        pictures = len(self.input_shape) == 3 and self.input_shape[0] in (1, 3)
        channels = self.input_shape[0] if pictures else 0
        return Normalise([MEAN] * channels, [DEVIATION] * channels) if pictures else unchanged

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
        the learner is saved in that folder at the end and, now and then, on the way: the same call
        after a crash resumes from there, or returns at once if all was done; `fresh` starts a task
        again instead. A task that fails leaves the learner as it was before.
        """
        folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        task = self._task(name, train, valid, classes, skip_bad)
        if task.id < len(self.tasks):
            return self.tasks[task.id]
        if self.keeps_prototypes:
            warn_of_single_images(task)
        if folder is not None:
            checkpoints = checkpoints or CheckpointManager(folder / LEARNING)
        before = self.state_dict()
        try:
            with Lock(folder) if folder is not None else nullcontext():
                if folder is not None:
                    self._refuse_overtaken(folder)
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
        """Return the task a user describes; one learnt by that name before has its number."""
        known = [task.name for task in self.tasks]
        number = known.index(name) if name in known else len(known)
        split, names = as_split(train, classes, self.size, skip_bad)
        if len(set(names)) < len(names):
            raise UserError(f"task '{name}' has two classes of one name: give each its own")
        if valid is None:
            rng = generator(self.seed, "valid", number)
            split, apart = divided(split, self.valid_fraction, rng)
        else:
            apart, _ = as_split(valid, names, self.size, skip_bad)
        shape = tuple(split.images.shape[1:])
        if self.tasks and shape != self.input_shape:
            raise UserError(
                f"images of task '{name}' have shape {shape}, those before {self.input_shape}: "
                "give all the same"
            )
        self.input_shape = shape
        if name in known and self.tasks[number].data != digest([split, apart]):
            raise UserError(
                f"task '{name}' was learnt before, from other data: give the new one another name"
            )
        return Task(
            number, name, names, split.to(self.device), apart.to(self.device), self.transform
        )

    def _learn(
        self, task: Task, checkpoints: CheckpointManager | None, observer: Observer | None
    ) -> LearntTask:
        """Train on a task, from the start or where it was cut short; return what is known of it."""
        began = time.perf_counter()
        about = {"task": task.name, "data": digest([task.train, task.valid])}
        saved = unfinished_state(checkpoints, len(self.tasks)) if checkpoints else None
        if saved:
            self._refuse_other_task(saved, about)
            with understood(f"what is kept of task '{task.name}'"):
                self._take_settings(saved)
        session = self._session(task.classes)
        session.training = self.training
        session.add_task(task.classes)
        if saved:
            with understood(f"what is kept of task '{task.name}'"):
                loop = {"method": saved["memory"], "unfinished": saved["unfinished"]}
                session.load_state_dict({**loop, "tasks": len(session.net.heads)}, ())
        session.learn_task(
            task,
            observer=observer,
            checkpoints=checkpoints,
            whole_state=partial(self._unfinished, about),
        )
        self.tasks.append(self._measured(session, task, time.perf_counter() - began))
        return self.tasks[-1]

    def _session(self, classes: int) -> Session:
        """Return the session; the first task, with so many classes, begins it."""
        if self.session is None:
            if self.network is not None:
                net = networks.build(
                    self.network, self.input_shape, self.seed, **self.network_options
                )
            else:
                assert self.trunk is not None
                net = networks.build_own(
                    self.trunk, self.input_shape, self.seed, embedding=self.embedding
                )
            net.to(self.device)
            self.session = Session(net, self.method, self.training, seed=self.seed, classes=classes)
            precision = PRECISIONS[self.precision] if self.precision else None
            self.session.net.precision = precision
        return self.session

    @torch.no_grad()
    def _measured(self, session: Session, task: Task, seconds: float) -> LearntTask:
        """Return what is worth knowing of a task that was just learnt; keep its prototypes."""
        if self.keeps_prototypes:
            session.prototypes.learn(session.net, task)
        sharpness, accuracy = {}, None
        for kind in KINDS if self.keeps_prototypes else ["confidence"]:
            scores = self._valid_scores(kind, task)
            sharpness[kind] = calibrated(scores, task.valid.labels)
            if kind == "confidence" and len(task.valid):
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

    def _valid_scores(self, kind: str, task: Task) -> Tensor:
        """Return the scores of all validation images of a task, none if it has none."""
        if not len(task.valid):
            return torch.zeros(0, task.classes)
        known = self.prototypes[task.id] if kind == "prototypes" else None
        net = self.net.eval()
        batches = inputs(net, task.valid, task.transform)
        return torch.cat([KINDS[kind](net, x, task.id, known) for _, x in batches])

    # Answering.

    @torch.no_grad()
    def predict(
        self,
        images: Images,
        task: str | None = None,
        *,
        by: str = "confidence",
        batch_size: int = 1,
    ) -> list[Prediction]:
        """Tell the class of each image; without its task that of the surest task is told.

        Images are paths, a folder, Pillow's, or a tensor of one or several. With a larger batch
        size predictions are faster, and may differ in their last digits with what comes together.
        """
        if by not in KINDS:
            raise unknown("way to predict", by, KINDS)
        if by == "prototypes" and not self.keeps_prototypes:
            raise UserError("this learner keeps no prototypes: predict by confidence")
        numbers = range(len(self.tasks)) if task is None else [self.number(task)]
        self.net.eval()
        known = self.prototypes if by == "prototypes" else None
        return [
            prediction
            for x in self.inputs(images).split(batch_size)
            for prediction in predictions(self.net, self.tasks, known, x, numbers, by)
        ]

    def inputs(self, images: Images) -> Tensor:
        """Return what the network sees of images that a user gives."""
        self.net  # noqa: B018  # says so if nothing was learnt
        if not isinstance(images, Tensor):
            images = as_pictures(images, self.size)
        if tuple(images.shape) == self.input_shape:
            images = images[None]
        if tuple(images.shape[1:]) != self.input_shape:
            raise UserError(
                f"images of shape {tuple(images.shape)} are not of {self.input_shape}, one or "
                "several"
            )
        split = Split(images, torch.zeros(len(images), dtype=torch.int64)).to(self.device)
        dtype = next(self.net.parameters()).dtype
        return self.transform(split.unit_images(slice(None), dtype))

    def reference(self, images: Images, task: str) -> Reference:
        """Take down what is said to images of a task now, for `leakage` later.

        It holds the images, and is yours to keep: it is no part of what `save` saves.
        """
        return take(self, images, task)

    def number(self, task: str) -> int:
        """Return the number of a task, 0 the first."""
        names = [learnt.name for learnt in self.tasks]
        if task not in names:
            raise unknown("task", task, names)
        return names.index(task)

    def room(self) -> list[LayerForecast]:
        """Return how much of each layer is in use, and for how many classes the rest will do."""
        return forecast_all(
            {layer.name: layer.dimension for layer in self.method.layer_ranks()}, self.tasks
        )

    @torch.no_grad()
    def forget_class(self, task: str, name: str) -> dict[str, int]:
        """Predict a class no longer; return the directions this frees in each layer: none.

        The class's row of the head and its prototypes are set to zero. Directions stay protected:
        later classes may need those that came with it, and their data are gone.
        """
        number = self.number(task)
        learnt = self.tasks[number]
        left = [one for one in learnt.class_names if one not in learnt.forgotten]
        if name not in left:
            raise unknown(f"class of task '{task}'", name, left)
        place = learnt.class_names.index(name)
        self.net.head_parameters(number)[0][place] = 0
        if self.keeps_prototypes:
            self.prototypes[number][place] = 0
        earlier = sum(len(before.class_names) for before in self.tasks[:number])
        self.method.forget_class(earlier + place)
        learnt.forgotten.append(name)
        return {layer.name: 0 for layer in self.method.layer_ranks()}

    # On disk, as docs/state.md describes.

    def save(self, folder: Path | str) -> None:
        """Save everything in a folder; what was saved there before by this learner is replaced."""
        with Lock(folder):
            self._refuse_overtaken(Path(folder))
            self.net  # noqa: B018  # says so if nothing was learnt
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
        """Return the learner saved in a folder; a trunk of your own has to be given again.

        So has a method of your own. It may be another device than the one it was saved on.
        """
        folder = Path(folder)
        store = Store(folder / FOLDER)
        loaded = read_state(folder, store)
        state = loaded.state
        with understood(f"what is kept in '{folder}'"):
            if state["network"] is None and trunk is None:
                raise UserError("this learner has a trunk of your own: give it again", hint="model")
            version = defaults.check(state.get("defaults", 1))
            options = {**defaults.of(KIND, version), **state}
            learner = cls(
                trunk if state["network"] is None else None,
                restored_method(state["method"], method, version),
                network=state["network"],
                network_options=restored_network(state, version),
                embedding=state["embedding"],
                size=options["size"],
                training=defaults.restored("training", Training, state["training"], version),
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
        """Return what was set, as states have it."""
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
        """Return everything of a learner between two tasks, as copies."""
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
            # Known to the method already, but only with a network.
            "dimensions": {r.name: r.dimension for r in (self.method.layer_ranks() if net else [])},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring a learner with the settings of a state to that state."""
        self.tasks = [LearntTask(**task) for task in state["tasks"]]
        self.input_shape = tuple(state["input_shape"])
        self._refuse_parts(state)
        self.method = self.method.replace()
        self.session = None
        if state["net"] is None:
            return
        self.embedding = state["embedding"]
        classes = [len(task.class_names) for task in self.tasks]
        session = self._session(classes[0])
        parts = {"tasks": len(classes), "net": state["net"], "unfinished": None}
        session.load_state_dict({**parts, "method": state["memory"]}, classes)
        session.prototypes = ClassPrototypes()
        for task, means in zip(self.tasks, state["prototypes"], strict=self.keeps_prototypes):
            session.prototypes.enter(task.class_names, means.to(self.device))
        layers = {layer.name for layer in self.method.layer_ranks()}
        if any(task.ranks.keys() != layers for task in self.tasks):
            raise ValueError("the layers of tasks are not those of the method")

    def _unfinished(self, about: dict[str, str], loop: dict[str, Any]) -> dict[str, Any]:
        """Return all that is needed to resume in the middle of a task."""
        return {
            **about,
            **self.settings(),
            "tasks": len(self.tasks),
            "forgotten": [list(task.forgotten) for task in self.tasks],
            "memory": self.session.state_dict(loop)["method"] if self.session else {},
            "unfinished": loop,
        }

    def _refuse_other_task(self, saved: Mapping[str, Any], about: dict[str, str]) -> None:
        """Refuse to resume a task that is not this one, or was begun with other settings."""
        here = self._known_by({**about, **self._unfinished({}, {})})
        there = self._known_by(saved)
        other = [name for name, value in here.items() if there.get(name) != value]
        if other:
            raise UserError(
                f"task '{saved.get('task')}' was cut short with another {other[0]}: give the same "
                "again, or start the task afresh",
                hint="fresh",
            )

    def _known_by(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an unfinished task is known by: settings that were given, and data."""
        version = defaults.check(state.get("defaults", 1))
        names = ("task", "data", "network", "seed", "precision", "tasks", "forgotten")
        settings = dict(state["method"])
        method = settings.pop("name")
        network, options = state["network"], dict(state["network_options"])
        if network in networks.NETWORKS:
            kind = networks.NETWORKS[network].Options
            options = defaults.given(f"network {network}", kind, options, version)
        given = defaults.given(f"method {method}", type(self.method), settings, version)
        return {
            **{name: state.get(name) for name in names},
            "method": {"name": method, **given},
            "training": defaults.given("training", Training, state["training"], version),
            "network_options": options,
        }

    def _take_settings(self, saved: Mapping[str, Any]) -> None:
        """Have the values that an unfinished task was begun with, which may be older defaults."""
        version = defaults.check(saved.get("defaults", 1))
        self.training = defaults.restored("training", Training, saved["training"], version)
        if self.session is None:
            settings = {n: v for n, v in saved["method"].items() if n != "name"}
            kind, key = type(self.method), f"method {self.method.name}"
            self.method = defaults.restored(key, kind, settings, version)
            self.network_options = restored_network(saved, version)
            self.defaults = version

    def _refuse_parts(self, state: Mapping[str, Any]) -> None:
        """Refuse a state whose parts are not of the same tasks."""
        if any(type(size) is not int or size < 1 for size in self.input_shape):
            raise ValueError("the shape of inputs is none")
        kinds = KINDS if self.keeps_prototypes else ["confidence"]
        if any(task.sharpness.keys() != set(kinds) for task in self.tasks):
            raise ValueError("tasks are calibrated for other ways to predict")
        counts = [len(task.class_names) for task in self.tasks]
        if self.keeps_prototypes and [len(means) for means in state["prototypes"]] != counts:
            raise ValueError("prototypes are not those of the tasks")

    def _store(self, folder: Path) -> Store:
        """Return the store of a folder: it knows what this learner has loaded and saved there."""
        return self.stores.setdefault(folder.resolve(), Store(folder / FOLDER))

    def _refuse_overtaken(self, folder: Path) -> None:
        """Refuse to save over what this learner has not seen."""
        if self._store(folder).overtaken():
            raise UserError(
                f"'{folder}' holds a learner that this one did not come from, or that has learnt "
                "more since: load it from there, or give another folder"
            )


def warn_of_single_images(task: Task) -> None:
    """Warn of classes whose prototypes, means over a class, are those of one image."""
    counts = torch.bincount(task.train.labels.cpu(), minlength=task.classes).tolist()
    alone = [name for name, count in zip(task.class_names, counts, strict=True) if count == 1]
    if alone:
        warnings.warn(
            f"class '{alone[0]}' of task '{task.name}' has one image to learn from, and prototypes "
            "of one image can show it: give more, or leave prototypes out (prototypes=False)",
            SingleImage,
            stacklevel=3,
        )


def read_state(folder: Path, store: Store) -> Loaded:
    """Return what the store of a folder holds of a learner."""
    loaded = store.load()
    if loaded is None:
        raise UserError(f"'{folder}' holds no learner: give the folder it was saved in")
    if loaded.state.get("kind") != KIND:
        raise UserError(f"'{folder}' holds the state of a run, not a learner")
    return loaded


def unfinished_state(checkpoints: CheckpointManager, learnt: int) -> dict[str, Any] | None:
    """Return what is kept of a task that was cut short after so many others were learnt.

    A process that was killed right at the end of a task has left the state of its middle.
    """
    loaded = checkpoints.load()
    return None if loaded is None or loaded.state.get("tasks", learnt) < learnt else loaded.state


def restored_method(values: Mapping[str, Any], own: Method | None, version: int) -> Method:
    """Return the method of a state with the settings it was saved with; your own is given."""
    settings = dict(values)
    name = settings.pop("name")
    if own is not None:
        if own.name != name:
            raise UserError(f"this learner learns by {name}, not by {own.name}")
        return own
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return defaults.restored(f"method {name}", METHODS[name], settings, version)


def restored_network(state: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the options of a state's network, with those that were not given as they were then."""
    name, options = state["network"], state["network_options"]
    if name is None or name not in networks.NETWORKS:
        return dict(options)
    kind = networks.NETWORKS[name].Options
    restored = defaults.restored(f"network {name}", kind, options, version).model_dump()
    usual, given = kind().model_dump(), kind.brought_up_to_date(options)
    older = {option: value for option, value in restored.items() if value != usual[option]}
    return {**given, **{option: value for option, value in older.items() if option not in given}}
