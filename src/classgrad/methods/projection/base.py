"""The base of the projection methods: a basis per layer, and projected steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from classgrad.core.collect import Batches, Collected, Forward, collect
from classgrad.core.layers import by_layer
from classgrad.core.projector import Projector
from classgrad.core.selection import share_of_whole
from classgrad.core.subspace import Representation, Subspace
from classgrad.distributed.collecting import processes
from classgrad.distributed.world import users_world
from classgrad.methods.base import Held, LayerRank, Method, Step, broadcast_state
from classgrad.networks.network import Network
from classgrad.tasks import Task, batches

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]

# As in the released code of GPM and CGP: with BatchNorm on batch statistics the inputs collected
# depend on the batch size.
COLLECT_BATCH = 64


def layer_values(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Resolve a setting for each site of a network: one value for all, or by name or pattern.

    Names can leave out `trunk.`, which site names have only where all tasks share a head; values
    for `heads` apply only then and may be given anyway.

    >>> layer_values({"conv*": 1, "fc1": 2, "heads*": 3}, ["trunk.conv1[0]", "trunk.fc1"])
    {'trunk.conv1[0]': 1, 'trunk.fc1': 2}
    """
    return by_layer(value, names, implied="trunk.", optional=("heads",))


class Projected(Method, ABC):
    """Keep updates out of one subspace per layer; subclasses decide what a task adds to it."""

    aliases: ClassVar[dict[str, str]] = {"epsilon": "energy"}
    on_cpu: ClassVar[bool] = True  # bases are in double precision, which not every device has
    attachable: ClassVar[bool] = True  # works in a user's own training loop
    task_dependent: ClassVar[bool] = False  # whether features depend on the task

    energy: Share | dict[str, Share] = Field(
        default=0.97,
        description="share of the energy to protect (ε); or shares by layer name, '*' for all",
    )
    energy_step: float = Field(
        default=0.003, ge=0, lt=1, description="growth of ε with every task, up to energy_limit"
    )
    energy_limit: Share = Field(
        default=0.999,
        description="largest ε that energy_step leads to: at 1 a layer could learn nothing more",
    )
    uncounted: int = Field(
        default=0,
        ge=0,
        description="strongest directions of the inputs that do not count for ε: 1 where one "
        "channel drowns the rest",
    )
    samples: Count | dict[str, Count] = Field(
        default=125,
        description="samples that represent a class (GPM: a task); or numbers by layer name",
    )
    gpm_compat: bool = Field(
        default=False,
        description="one direction fewer for a layer's first basis, as in released code",
    )

    if TYPE_CHECKING:  # aliases, see Settings
        epsilon: InitVar[Share | dict[str, Share]] = energy

    _subspaces: dict[str, Subspace] = PrivateAttr(default_factory=dict)
    _frozen: list[str] = PrivateAttr(default_factory=list)
    _learnt: int = PrivateAttr(default=0)
    _projector: Projector | None = PrivateAttr(default=None)

    @property
    def subspaces(self) -> dict[str, Subspace]:
        """Protected directions by site."""
        return self._subspaces

    @property
    def projector(self) -> Projector:
        """The projector of the model this method was attached to."""
        assert self._projector is not None, "attach the method to a model first"
        return self._projector

    def attach(self, model: nn.Module, *, freezes_rest: bool = False) -> None:
        """Protect this model from now on; for `freezes_rest` see `refuse_unprotectable`."""
        self._projector = Projector(model, self.processes.most_rows, freezes_rest=freezes_rest)
        self._subspaces = {
            name: Subspace.empty(site.dimension).stored(self.stored_type(name))
            for name, site in self._projector.sites.items()
        }
        self.by_layer(self.energy)
        self.by_layer(self.samples)

    def stored_type(self, site: str) -> torch.dtype:
        """Return the type in which a basis is stored between tasks: that of its weights.

        At least float32. What a float32 weight can move along a direction is rounded by as much.
        """
        return torch.promote_types(self.projector.sites[site].weight.dtype, torch.float32)

    def by_layer(self, value: Any) -> dict[str, Any]:
        """Resolve a setting for each site."""
        return layer_values(value, self.projector.sites)

    def thresholds(self) -> dict[str, float]:
        """Return ε of each site for the current task."""
        starts = self.by_layer(self.energy)
        return {name: self.threshold(start, self._learnt) for name, start in starts.items()}

    def threshold(self, start: float, task: int) -> float:
        """Return ε of a task, counted from 0: start + task * energy_step, limited."""
        return min(start + task * self.energy_step, max(start, self.energy_limit))

    def share_to_hold(self, site: str, c: Representation) -> float:
        """Return the share of inputs C to protect at a site, with `uncounted` directions apart."""
        return share_of_whole(c, self.thresholds()[site], self.uncounted)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Protect the part of the network that tasks share."""
        self.attach(net.protected())
        return net

    def begin_task(self, net: Network, task: Task) -> None:
        """Form gradients from projected rows where that is cheaper."""
        self.projector.install()

    def continue_task(self, net: Network, task: Task) -> None:
        """Form gradients from projected rows again."""
        self.projector.install()

    def before_backward(self, net: Network, step: Step) -> None:
        """Let the backward pass project where that is cheaper."""
        self.projector.begin_step(step.optimizer, fresh=step.fresh_optimizer, number=step.number)

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Remove the protected part of the gradients (Eq. project2)."""
        self.projector.before_step(step.optimizer, fresh=step.fresh_optimizer)

    def after_step(self, net: Network, step: Step) -> None:
        """Remove the protected part of the update, for optimisers that need it."""
        self.projector.after_step()

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Extend the subspaces by directions of this task's data."""
        self.projector.remove()
        dtype = next(net.parameters()).dtype
        state = generator.get_state()

        def shuffled() -> Batches:
            generator.set_state(state)
            for index in self.processes.take_turns(
                batches(len(task.train), COLLECT_BATCH, generator)
            ):
                images = task.train.unit_images(index, dtype)
                yield task.transform(images), task.train.labels[index]

        self.learn(net, lambda x: net(x, task.id), shuffled, range(task.classes))
        # Only the main process has the inputs that all processes have collected.
        self.broadcast_state(net)

    def learn(
        self,
        model: nn.Module,
        forward: Forward,
        data: Callable[[], Batches],
        classes: Iterable[int] | None,
    ) -> list[Held]:
        """Extend the subspaces by the layers' inputs of a finished task, and protect them.

        Returns the share of each class that was held before any direction was dropped.
        """
        sites, samples = self.projector.sites, self.by_layer(self.samples)
        if not sites:  # all is frozen
            self._learnt += 1
            return []
        gather = partial(
            collect,
            model,
            forward,
            data,
            sites,
            samples,
            classes=classes,
            processes=processes(),
        )
        before = self._subspaces
        # Ranks are decided in float64.
        self._subspaces = {name: s.exact() for name, s in before.items()}
        try:
            collected = self.grow(gather)
        except BaseException:
            self._subspaces = before
            raise
        held = self._held(collected)
        self.trim(collected)
        self._subspaces = {
            name: s.stored(self.stored_type(name)) for name, s in self._subspaces.items()
        }
        self._learnt += 1
        self.freeze(self.projector.non_matrix_parameters(collected.used))
        self.freeze(collected.bypassed)
        self.protect()
        return held

    def _held(self, collected: Collected) -> list[Held]:
        """Return what was noted of the classes that have energy, layer by layer."""
        promised = self.thresholds()
        return [
            Held(name, self._learnt, None if collected.pooled else label, promised[name], share)
            for name in self._subspaces
            for label, c in collected.classes.items()
            if (share := c.held.get(name)) is not None
        ]

    @property
    def removes_directions(self) -> bool:
        """Whether steps along protected directions are removed at once, and not scaled."""
        return True

    @property
    def frozen(self) -> list[str]:
        """Names of the parameters that later steps do not change."""
        return self._frozen

    def freeze(self, names: Iterable[str]) -> None:
        """Freeze more parameters, from the next call of `protect` on."""
        self._frozen = list(dict.fromkeys([*self._frozen, *names]))

    def protect(self) -> None:
        """Protect the current subspaces."""
        self.projector.protect(self._subspaces, self._frozen)

    @abstractmethod
    def grow(self, gather: Callable[..., Collected]) -> Collected:
        """Collect inputs by `gather`, extend the subspaces, and return what was collected."""

    def trim(self, collected: Collected) -> None:
        """Drop directions, while the inputs of the current task are known; by default none."""

    def add(self, site: str, new: Tensor) -> list[int]:
        """Protect new directions (d x n) at a site; return their column numbers in its basis."""
        before = self._subspaces[site]
        if self.gpm_compat and before.rank == 0:
            new = new[:, :-1]
        self._subspaces[site] = before.extended(new)
        return list(range(before.rank, self._subspaces[site].rank))

    def close(self) -> None:
        """Remove every hook."""
        if self._projector is not None:
            self._projector.remove()

    def gradient_projector(self) -> Projector | None:
        """Return the projector."""
        return self._projector

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected."""
        return [LayerRank(n, s.dimension, s.rank) for n, s in self._subspaces.items()]

    def state_dict(self) -> dict[str, Any]:
        """Return the bases and the number of tasks they protect."""
        return {
            "learnt": self._learnt,
            "bases": {name: s.columns for name, s in self._subspaces.items()},
            "frozen": list(self._frozen),
        }

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        self.attach(net.protected())
        self.load_memory(state)

    def share_memory(self, noted: dict[str, Any]) -> dict[str, Any]:
        """Take over the memory of the main process of a user's own distributed training.

        Returns what that process has noted about the task.
        """
        together = users_world()
        if together.size == 1:
            return noted
        state = broadcast_state(together, lambda: {"memory": self.state_dict(), "noted": noted})
        self.load_memory(state["memory"])
        return dict(state["noted"])

    def load_memory(self, state: dict[str, Any]) -> None:
        """Load a state for the model this method is attached to."""
        self._learnt = state["learnt"]
        self._subspaces = {name: Subspace(columns) for name, columns in state["bases"].items()}
        self._frozen = list(state["frozen"])
        self.protect()
