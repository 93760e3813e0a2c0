"""A learner: your network, your images, new classes whenever they come, predictions in between."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classgrad import devices, networks
from classgrad.benchmarks.transforms import Normalise
from classgrad.checkpoints import Keeper, Lock
from classgrad.checkpoints.store import Store
from classgrad.data.pictures import as_pictures
from classgrad.errors import UserError, unknown
from classgrad.learner import state
from classgrad.learner.drift import Reference, take
from classgrad.learner.forecast import LayerForecast, forecast_all
from classgrad.learner.inputs import Data
from classgrad.learner.learnt import LearntTask
from classgrad.learner.teaching import task_from, teach, warn_of_single_images
from classgrad.methods.base import Method
from classgrad.methods.projection.cgp import CGP
from classgrad.networks.adapted import adapted, width_of
from classgrad.networks.network import Network
from classgrad.prediction.calibration import KINDS, Prediction, predictions
from classgrad.tasks import Split, Transform, unchanged
from classgrad.training.config import Training
from classgrad.training.loop import Observer

LEARNING = "learning"  # folder of a task that is not finished, below that of the state
# Batch statistics would make a prediction depend on its batch.
STORED = {"norm": "stored", "affine": "task"}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# For tasks of a few hundred images.
USUAL = Training.model_validate(
    {"epochs": 30, "batch_size": 32, "learning_rate": 0.01, "momentum": 0.9, "nesterov": True}
)
# Halfway between black and white, and a usual spread of photographs.
MEAN, DEVIATION = 0.5, 0.25


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
        network_options: dict[str, Any] | None = None,
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
        self.method = CGP.model_validate({}) if method is None else method.replace()
        if not self.method.open_ended:
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
        self.training = training or USUAL
        self.valid_fraction, self.keeps_prototypes, self.seed = valid_fraction, prototypes, seed
        self.device, self.precision = devices.chosen(device), precision
        self.input_shape: tuple[int, ...] = ()  # of one input, known from the first task on
        self.tasks: list[LearntTask] = []
        self.prototypes: list[Tensor] = []
        self.unfinished: dict[str, Any] | None = None
        self._net: Network | None = None
        self.stores: dict[Path, Store] = {}  # where this learner was loaded from or saved
        self.warnings: tuple[str, ...] = ()  # what was odd when it was loaded
        self.learning: dict[str, str] = {}  # name and digest of the task at hand

    @property
    def net(self) -> Network:
        """The network with the heads of all tasks."""
        if self._net is None:
            raise UserError("nothing was learnt yet: call learn first")
        return self._net

    @property
    def transform(self) -> Transform:
        """From images in [0, 1] to what the network sees."""
        pictures = len(self.input_shape) == 3 and self.input_shape[0] in (1, 3)
        channels = self.input_shape[0] if pictures else 0
        return Normalise([MEAN] * channels, [DEVIATION] * channels) if pictures else unchanged

    def learn(
        self,
        name: str,
        train: Data,
        *,
        valid: Data | None = None,
        classes: Sequence[str] | None = None,
        skip_bad: bool = False,
        keep_in: Path | str | None = None,
        fresh: bool = False,
        keeper: Keeper | None = None,
        observer: Observer | None = None,
    ) -> LearntTask:
        """Learn a task; its data are not needed afterwards.

        Without `valid` a share of every class is kept apart for validation. With `keep_in` the
        learner is saved in that folder at the end and, now and then, on the way: the same call
        after a crash goes on from there, or returns at once if all was done; `fresh` starts a task
        again instead. A task that fails leaves the learner as it was before.
        """
        task = task_from(self, name, train, valid, classes, skip_bad)
        if task.id < len(self.tasks):
            return self.tasks[task.id]
        if self.keeps_prototypes:
            warn_of_single_images(task)
        if keep_in is not None:
            keeper = keeper or Keeper(Path(keep_in) / LEARNING)
        before = state.taken(self)
        try:
            with Lock(keep_in) if keep_in is not None else nullcontext():
                if keep_in is not None:
                    state.refuse_overtaken(self, Path(keep_in))
                if fresh and keeper is not None:
                    keeper.clear()
                learnt = teach(self, task, keeper, observer)
                if keep_in is not None and keeper is not None:
                    state.save_locked(self, Path(keep_in))
                    keeper.clear()
        except BaseException:
            state.put_back(self, before)
            raise
        return learnt

    def add_task(self, classes: int) -> None:
        """Give the network what the next task owns; the first task makes the network."""
        if self._net is not None:
            self._net.add_task(classes)
            return
        if self.network is not None:
            net = networks.build(self.network, self.input_shape, self.seed, **self.network_options)
        else:
            assert self.trunk is not None
            trunk = copy.deepcopy(self.trunk)  # the first stays as it was given
            net = Network(
                trunk, self.embedding or width_of(trunk, self.input_shape), seed=self.seed
            )
        net.to(self.device).add_task(classes)
        self._net = self.method.wrap(net, (), self.seed)
        self._net.precision = PRECISIONS[self.precision] if self.precision else None

    def taken(self, unfinished: dict[str, Any]) -> dict[str, Any]:
        """Return all that is needed to go on in the middle of a task."""
        return {
            **self.learning,
            **state.circumstances(self),
            "memory": self.method.state_dict(),
            "unfinished": unfinished,
        }

    @torch.no_grad()
    def predict(
        self,
        images: Any,
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
        asked = range(len(self.tasks)) if task is None else [self.number(task)]
        self.net.eval()
        return [
            prediction
            for x in self._inputs(images).split(batch_size)
            for prediction in predictions(self, x, asked, by)
        ]

    def _inputs(self, images: Any) -> Tensor:
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

    def reference(self, images: Any, task: str) -> Reference:
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
        return forecast_all({room.name: room.dimension for room in self.method.room()}, self.tasks)

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
        return {room.name: 0 for room in self.method.room()}

    def save(self, folder: Path | str) -> None:
        """Save everything in a folder; what was saved there before by this learner is replaced."""
        with Lock(folder):
            state.refuse_overtaken(self, Path(folder))
            state.save_locked(self, Path(folder))

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
        return state.load(cls, Path(folder), trunk, method, device)
