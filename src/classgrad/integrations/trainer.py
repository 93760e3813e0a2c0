"""A guard in the loop of Hugging Face's `transformers.Trainer`.

A trainer calls any object that has methods of these names, so transformers is not imported here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from classgrad.guard.attach import Guard


class GuardCallback:
    """Guards every step of a trainer, and protects its training data when it ends.

    `Trainer(model, args, train_dataset=data, callbacks=[GuardCallback(attach(model, CGP()))])`
    learns one task; give the same guard to the trainer of the next. The guard is saved beside
    every checkpoint of the trainer. Without `ends_task`, call `guard.end_task` yourself.
    """

    def __init__(self, guard: Guard, *, ends_task: bool = True) -> None:
        self.guard, self.ends_task = guard, ends_task

    def on_train_begin(self, *_args: Any, optimizer: Any, **_rest: Any) -> None:
        """Guard the steps of the optimiser that the trainer has made."""
        self.guard.watch(optimizer)

    def on_save(self, args: Any, state: Any, _control: Any, **_rest: Any) -> None:
        """Save the guard in the folder of the checkpoint."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.guard.save(folder / "guard.safetensors")

    def on_train_end(self, *_args: Any, train_dataloader: Any, **_rest: Any) -> None:
        """Protect the task just learnt."""
        if self.ends_task:
            self.guard.end_task(train_dataloader)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Do nothing at the other events of a trainer."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_args, **_rest: None
