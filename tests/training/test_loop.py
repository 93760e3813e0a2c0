import copy

import pytest
import torch
from torch import nn

from classgrad import methods, networks
from classgrad.errors import Diverged, UserError
from classgrad.tasks import Split, Task, batch_count, batches
from classgrad.training.config import Training
from classgrad.training.loop import (
    Curve,
    Loop,
    LossNotFinite,
    SampleNotFinite,
    epoch_batches,
    fit,
    prepare_fused,
    validation_loss,
)
from streams import blobs

STREAM = blobs(tasks=2)
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "warmup": 0}


def fresh():
    net = networks.build("mlp", STREAM.input_shape, width=16)
    net.add_task(3)
    return net


def test_plateau_stops_early_and_restores_the_best_weights():
    task = STREAM[0]
    # Validation labels that contradict training: its loss rises from the first epoch on.
    wrong = Split(task.valid.images, (task.valid.labels + 1) % 3)
    against = Task(0, "against", task.class_names, task.train, wrong)
    training = Training(
        epochs=40, learning_rate=0.5, schedule="plateau", lr_min=0.2, factor=2.0, patience=2
    )
    net, epochs = fresh(), []
    fit(
        net,
        methods.make("finetune"),
        [against],
        training,
        seed=1,
        observer=lambda at: epochs.append(at.epoch),
    )
    # Worse in epochs 2 and 3, rate 0.25; worse in 4 and 5, rate 0.125 < 0.2: the end.
    assert max(epochs) + 1 == 5
    best = fresh()
    once = Training(epochs=1, learning_rate=0.5, schedule="constant")
    fit(best, methods.make("finetune"), [against], once, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), best.parameters(), strict=True))


class Kept:
    """Keeps the state of the end of the loop."""

    state = None

    def after_step(self, state):
        assert self.state is None, "trained on after the end"

    def after_training(self, state):
        self.state = state()


def test_a_loop_that_plateau_has_ended_does_not_continue():
    kept, nets = Kept(), []
    training = Training(
        epochs=40, learning_rate=0.5, schedule="plateau", lr_min=0.2, factor=2.0, patience=1
    )
    for _ in range(2):
        nets.append(fresh())
        task = STREAM[0]
        wrong = Split(task.valid.images, (task.valid.labels + 1) % 3)
        against = Task(0, "against", task.class_names, task.train, wrong)
        method = methods.make("finetune")
        resumed = kept.state
        fit(nets[-1], method, [against], training, seed=1, checkpoints=kept, resumed=resumed)
    one, two = (list(net.parameters()) for net in nets)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_plateau_without_validation_data_is_refused():
    task = STREAM[0]
    empty = Split(task.valid.images[:0], task.valid.labels[:0])
    bare = Task(0, "bare", task.class_names, task.train, empty)
    with pytest.raises(UserError, match="needs validation data"):
        fit(fresh(), methods.make("finetune"), [bare], Training(schedule="plateau"), seed=1)


MONITORED = Training(
    epochs=40,
    batch_size=8,
    learning_rate=0.5,
    schedule="plateau",
    monitor="train",
    lr_min=0.2,
    factor=2.0,
    patience=1,
)


def test_the_rate_and_the_weights_can_follow_the_training_loss(monkeypatch):
    """Without validation data; of the mean losses of the epochs, the third is the lowest."""
    task, losses = STREAM[0], iter([3.0, 2.0, 1.0, 5.0, 1.5, 0.1])
    bare = Task(
        0,
        "bare",
        task.class_names,
        task.train,
        Split(*(part[:0] for part in vars(task.valid).values())),
    )
    per_epoch, step = batch_count(len(task.train), 8), Loop.step
    made: dict[int, float] = {}

    def pretending(self, *given):
        step(self, *given)
        if self.epoch not in made:
            made[self.epoch] = next(losses)
        # Batches differ; what counts is their mean.
        return made[self.epoch] + (0.5 if self.batch % 2 else -0.5)

    assert per_epoch % 2 == 0
    assert len(task.train) % 8 == 0
    monkeypatch.setattr(Loop, "step", pretending)
    net, rates = fresh(), []
    curve = fit(
        net,
        methods.make("finetune"),
        [bare],
        MONITORED,
        seed=1,
        observer=lambda at: rates.append(at.rate),
    )
    assert curve.train == pytest.approx([3.0, 2.0, 1.0, 5.0, 1.5])
    assert curve.valid == curve.valid_accuracy == []
    # Worse in the fourth epoch: rate 0.25; worse in the fifth: 0.125 < 0.2, the end.
    assert rates == [0.5] * 4 * per_epoch + [0.25] * per_epoch
    monkeypatch.undo()
    three = fresh()
    fit(three, methods.make("finetune"), [bare], MONITORED.replace(epochs=3, patience=9), seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), three.parameters(), strict=True))


@pytest.mark.parametrize("monitor", ["valid", "train"])
def test_curves_have_what_was_trained_and_survive_a_resumption(monitor):
    """Cut short in the middle of the second epoch."""
    task, states = STREAM[0], []
    training = MONITORED.replace(monitor=monitor, epochs=3, patience=9, momentum=0.9)
    batches_seen, step = [], Loop.step

    class Keeping(Kept):
        def after_step(self, state):
            states.append(copy.deepcopy(state()))

    def noting(self, *given):
        batches_seen.append((len(given[1]), step(self, *given)))
        return batches_seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "step", noting)
        whole = fit(
            fresh(), methods.make("finetune"), [task], training, seed=1, checkpoints=Keeping()
        )
    per_epoch = len(batches_seen) // 3
    for number, mean in enumerate(whole.train):
        epoch = batches_seen[number * per_epoch : (number + 1) * per_epoch]
        total = sum(count for count, _ in epoch)
        assert total == len(task.train)
        assert mean == pytest.approx(sum(count * loss for count, loss in epoch) / total, rel=1e-9)
    assert len(whole.train) == 3
    assert len(whole.valid) == len(whole.valid_accuracy) == (3 if monitor == "valid" else 0)
    assert all(0 <= share <= 100 for share in whole.valid_accuracy)
    resumed = states[per_epoch + 1]
    unchanged = copy.deepcopy(resumed)  # training goes on in its tensors
    again = fit(fresh(), methods.make("finetune"), [task], training, seed=1, resumed=unchanged)
    assert again == whole
    del resumed["curve"], resumed["epoch_loss"]  # as a state of an earlier version
    older = fit(fresh(), methods.make("finetune"), [task], training, seed=1, resumed=resumed)
    assert older.train[0] is None
    assert older.train[2] == whole.train[2]


def test_a_curve_that_is_none_is_refused():
    with pytest.raises((TypeError, ValueError)):
        Curve.from_dict({"train": ["0.5 %"]})
    with pytest.raises(TypeError):
        Curve.from_dict({"loss": [0.5]})


def test_a_sample_that_is_no_number_stops_with_task_epoch_and_step():
    task = STREAM[0]
    images = task.train.images.float().div(255)
    images[7, 0, 3, 3] = torch.nan
    broken = Task(0, "broken", task.class_names, Split(images, task.train.labels), task.valid)
    with pytest.raises(SampleNotFinite, match=r"task 1 \('broken'\), epoch 1, step \d+") as caught:
        fit(fresh(), methods.make("finetune"), [broken], Training(batch_size=8), seed=1)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, Diverged)  # no learning rate helps


def test_a_loss_that_is_no_number_stops_with_task_epoch_and_step():
    training = Training(batch_size=8, learning_rate=1e30)
    with pytest.raises(LossNotFinite, match=r"the loss is (nan|inf) at task 1 \(.*\), epoch 1"):
        fit(fresh(), methods.make("finetune"), [STREAM[0]], training, seed=1)
    assert issubclass(LossNotFinite, Diverged)


def test_validation_loss_is_the_mean_over_all_samples():
    net = fresh()
    net.add_task(3)
    total = 0.0
    for task in STREAM:
        logits = net(task.valid.unit_images(slice(None)), task.id)
        loss = torch.nn.functional.cross_entropy(logits, task.valid.labels, reduction="sum")
        total += float(loss.detach())
    expected = total / sum(len(task.valid) for task in STREAM)
    assert validation_loss(net, list(STREAM), 5) == pytest.approx(expected, rel=1e-6)


def test_batches_cover_every_sample_once_and_mix_tasks():
    rng = torch.Generator().manual_seed(0)
    result = epoch_batches(list(STREAM), 10, rng)
    assert {task.id for task, _ in result} == {0, 1}
    assert [task.id for task, _ in result] != sorted(task.id for task, _ in result)
    for task in STREAM:
        index = torch.cat([b for t, b in result if t.id == task.id])
        assert sorted(index.tolist()) == list(range(len(task.train)))


@pytest.mark.parametrize(
    ("count", "size"), [(1, 4), (4, 4), (5, 4), (9, 4), (10, 4), (3, 1), (0, 4)]
)
def test_no_batch_is_left_with_one_sample(count, size):
    result = [len(b) for b in batches(count, size)]
    assert sum(result) == count
    assert len(result) == batch_count(count, size)
    assert 1 not in result or size == 1 or count == 1


def test_momentum_starts_anew_in_every_task():
    """The optimiser is built per task, so the same task twice gives the same first step."""
    training = Training(epochs=1, batch_size=48, momentum=0.9, learning_rate=0.1)
    one, two = fresh(), fresh()
    for net in (one, two):
        fit(net, methods.make("finetune"), [STREAM[0]], training, seed=1)
    state = {k: v.clone() for k, v in one.state_dict().items()}
    fit(one, methods.make("finetune"), [STREAM[0]], training, seed=5)
    two.load_state_dict(state)
    fit(two, methods.make("finetune"), [STREAM[0]], training, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_fused_optimiser_takes_the_steps_of_the_plain_one(nesterov):
    """Also for gradients that lie otherwise in memory, and for those that come late."""
    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(5, 4, generator=rng), torch.randn(3, 2, 2, 2, generator=rng)]
    gradients = [[torch.randn(p.shape, generator=rng) for p in start] for _ in range(4)]
    ends = []
    for fused in (False, True):
        weights = [nn.Parameter(start[0].clone())]
        weights.append(nn.Parameter(start[1].clone(memory_format=torch.channels_last)))
        optimizer = Training(momentum=0.9, nesterov=nesterov).optimizer_for(weights)
        assert optimizer.defaults["fused"]
        if not fused:
            optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9, nesterov=nesterov)
        for number, both in enumerate(gradients):
            weights[0].grad = both[0].clone()
            weights[1].grad = both[1].clone() if number > 1 else None
            if fused:
                prepare_fused(optimizer)
            optimizer.step()
        ends.append(weights)
    for plain, fused in zip(*ends, strict=True):
        torch.testing.assert_close(plain, fused)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from within PyTorch
@pytest.mark.parametrize("schedule", ["constant", "plateau"])
def test_stored_statistics_are_those_of_the_training_data_without_dropout(schedule):
    net = networks.build("alexnet5", (3, 20, 20), norm="stored", affine="task")
    net.add_task(3)
    images = torch.rand(60, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(60) % 3
    part = Split(images, labels)
    task = Task(0, "colours", ("a", "b", "c"), part, Split(images[:12], labels[:12]))
    training = Training(epochs=2, batch_size=20, schedule=schedule)
    fit(net, methods.make("finetune"), [task], training, seed=1)
    seen = {}
    norms = [(name, layer) for name, layer in net.trunk.named_modules() if name.startswith("bn")]
    for name, layer in norms:  # all samples in one batch: each layer sees what it normalised
        layer.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0]}))
    with torch.no_grad():
        net.eval()(images, 0)
    for name, layer in norms:
        x = seen[name].transpose(0, 1).flatten(1)
        torch.testing.assert_close(layer.mean_0, x.mean(1), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(layer.variance_0, x.var(1, correction=0), rtol=1e-3, atol=1e-4)


def test_statistics_of_layers_that_are_not_in_training_stay():
    net = networks.build("mlp", (1, 4, 4), batch_norm=True, norm="stored")
    net.add_task(3)
    first, second = (layer for layer in net.modules() if hasattr(layer, "mean_0"))
    first.eval()
    x = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    net.recalibrate(0, [x[:30], x[30:]])
    assert first.mean_0.eq(0).all()
    assert first.variance_0.eq(1).all()
    assert second.mean_0.ne(0).any()
