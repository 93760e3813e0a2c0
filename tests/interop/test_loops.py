"""Loops of other packages take guarded steps: transformers' Trainer, and accelerate's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from classgrad.guard.attach import Guard, attach
from classgrad.integrations.trainer import GuardCallback
from classgrad.methods import GPM
from interop.architectures import ARCHITECTURES, Batch, task
from interop.guarded import OLD, logits, seeded

pytestmark = pytest.mark.interop

VIT = ARCHITECTURES["ViT"]
TASKS = [task(VIT.reads, number, OLD) for number in (0, 1)]


@pytest.fixture(autouse=True)
def own_generator() -> Iterator[None]:
    """Loaders and trainers draw from PyTorch's global generator."""
    with seeded(1):
        yield


def vit() -> nn.Module:
    with seeded(0):
        return VIT.make()


def samples(batch: Batch) -> list[dict[str, Tensor]]:
    return [{name: value[i] for name, value in batch.items()} for i in range(len(batch["labels"]))]


def drift(model: nn.Module, before: Tensor) -> float:
    return float((logits(model, TASKS[0]) - before).norm() / before.norm())


def train_with_trainer(
    model: nn.Module, batch: Batch, folder: Path, callbacks: list[Any], save: str = "no"
) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=10,
        learning_rate=1e-3,
        per_device_train_batch_size=OLD,
        use_cpu=True,
        report_to=[],
        save_strategy=save,
        save_steps=10,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    data = samples(batch)
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks).train()


@pytest.mark.parametrize("guarded", [True, False])
def test_trainer(guarded: bool, tmp_path: Path) -> None:
    model = vit()
    callbacks = [GuardCallback(attach(model, GPM(epsilon=1.0)))] if guarded else []
    train_with_trainer(model, TASKS[0], tmp_path, callbacks)
    before = logits(model, TASKS[0])
    train_with_trainer(model, TASKS[1], tmp_path, callbacks, save="steps")
    assert (drift(model, before) < 1e-5) == guarded
    if guarded:
        assert len(callbacks[0].guard.layer_ranks()) == 14
        assert {one.rank for one in callbacks[0].guard.layer_ranks()} != {0}
        last = vit()
        last.load_state_dict(type(model).from_pretrained(tmp_path / "checkpoint-10").state_dict())
        loaded = attach(last, tmp_path / "checkpoint-10" / "guard.safetensors")
        assert loaded.method.frozen == callbacks[0].guard.method.frozen


@pytest.mark.parametrize("order", ["attached first", "prepared first", "step", "unguarded"])
def test_accelerate(order: str) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = vit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard: Guard | None = None
    if order == "attached first":
        guard = attach(model, GPM(epsilon=1.0), optimizer)
    loader = torch.utils.data.DataLoader(samples(TASKS[1]), batch_size=3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if order == "prepared first":
        guard = attach(model, GPM(epsilon=1.0), optimizer)
    if order == "step":
        guard = attach(model, GPM(epsilon=1.0))
    if guard:
        guard.end_task([TASKS[0]])
    before = logits(model, TASKS[0])
    model.train()
    for _ in range(5):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                if order == "step" and guard:
                    with guard.step(optimizer):
                        accelerator.backward(loss)
                        optimizer.step()
                else:
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                optimizer.zero_grad()
    assert (drift(model, before) < 1e-5) == (order != "unguarded")
