"""Which inputs of which samples are kept for a class."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from classgrad.core.collect import Alone, Batch, Batches, ClassInputs, Collected, collect
from classgrad.core.layers import Site, sites
from classgrad.errors import UserError
from oracles.bases import energy, projector
from oracles.models import built, in_turn, normal


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def gathered(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], samples: Any = 1000, **values: Any
) -> Collected:
    result = sites(model)
    limits = samples if isinstance(samples, Mapping) else dict.fromkeys(result, samples)
    return collect(model, model, lambda: batches, result, limits, **values)


def split(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def same_span(vectors: Tensor, rows: Tensor) -> bool:
    """Tell whether columns span what the rows do."""
    u, s, _ = np.linalg.svd(rows.detach().numpy().T, full_matrices=False)
    return np.abs(projector(vectors.numpy()) - projector(u[:, s > 1e-9])).max() < 1e-9


def test_every_class_has_the_inputs_of_its_samples_at_every_layer() -> None:
    model = built(two_layers)
    x, y = normal(12, 5), in_turn(12, 3)
    result = gathered(model, split(x, y, 5))
    hidden = model[1](model[0](x))
    assert list(result.classes) == [0, 1, 2]
    for label, inputs in result.classes.items():
        for name, rows in (("0", x[y == label]), ("2", hidden[y == label])):
            kept = inputs.representations[name]
            assert (kept.count, inputs.counts[name], inputs.count) == (4, 4, 4)
            assert kept.energy() == pytest.approx(energy(rows.detach().numpy().T), rel=1e-12)
            assert same_span(kept.spectrum()[1], rows)


def test_each_layer_has_a_limit_of_its_own_and_takes_the_first_samples() -> None:
    model = built(two_layers)
    x, y = normal(20, 5), in_turn(20, 2)
    result = gathered(model, split(x, y, 3), {"0": 2, "2": 7})
    for label, inputs in result.classes.items():
        assert inputs.counts == {"0": 7, "2": 7}  # means are of the larger number everywhere
        assert torch.allclose(inputs.mean("0"), x[y == label][:7].mean(0), atol=1e-12)
        assert same_span(inputs.representations["0"].spectrum()[1], x[y == label][:2])
        mean = model[1](model[0](x[y == label][:7])).mean(0)
        expected = mean / mean.norm()
        assert torch.allclose(inputs.prototype("2"), expected, atol=1e-12)


def test_prototypes_are_unit_means_of_raw_inputs_and_not_of_patches() -> None:
    model = built(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(16, 2))
    )
    x, y = normal(9, 4, 3, 3), in_turn(9, 2)
    result = gathered(model, split(x, y, 4))
    for label, inputs in result.classes.items():
        images = x[y == label]
        for group in range(2):
            mean = images[:, 2 * group : 2 * group + 2].flatten(1).mean(0)
            prototype = inputs.prototype(f"0[{group}]")
            assert torch.allclose(prototype, mean / mean.norm(), atol=1e-12)
            assert inputs.representations[f"0[{group}]"].count == 4 * len(images)


def test_the_prototype_of_zeros_is_zero() -> None:
    result = gathered(built(two_layers), [(torch.zeros(4, 5, dtype=torch.float64), in_turn(4, 1))])
    assert torch.equal(result.classes[0].prototype("0"), torch.zeros(5, dtype=torch.float64))


def test_with_correct_only_just_the_samples_classified_right_count() -> None:
    model = built(two_layers)
    x = normal(40, 5)
    y = in_turn(40, 3)
    right = model(x).argmax(1) == y
    result = gathered(model, split(x, y, 7), correct_only=True)
    for label, inputs in result.classes.items():
        chosen = x[(y == label) & right] if right[y == label].any() else x[y == label]
        assert inputs.counts["0"] == len(chosen)
        mean = chosen.mean(0)
        assert torch.allclose(inputs.prototype("0"), mean / mean.norm(), atol=1e-12)
    assert 0 < int(right.sum()) < 40


def constant(label: int) -> nn.Module:
    """Return a model that always answers `label`."""
    model = built(lambda: nn.Sequential(nn.Linear(5, 3)))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(nn.functional.one_hot(torch.tensor(label), 3))
    return model


def test_a_class_with_no_sample_classified_right_is_taken_as_it_is() -> None:
    x, y = normal(20, 5), in_turn(20, 2)
    result = gathered(constant(1), split(x, y, 6), 4, correct_only=True, classes=[0, 1])
    assert [inputs.count for inputs in result.classes.values()] == [4, 4]
    for label, inputs in result.classes.items():
        assert same_span(inputs.representations["0"].spectrum()[1], x[y == label][:4])


class Counting(list):
    """A list of batches that counts how many were asked for."""

    given = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in super().__iter__():
            self.given += 1
            yield batch


def test_collecting_stops_when_every_class_has_enough() -> None:
    x, y = normal(60, 5), in_turn(60, 2)
    batches = Counting(split(x, y, 6))
    gathered(built(two_layers), batches, {"0": 2, "2": 8}, classes=range(2))
    assert batches.given == 3  # 3 of each class in a batch, 8 wanted
    pooled = Counting(split(x, y, 6))
    gathered(built(two_layers), pooled, 10, pool=True)
    assert pooled.given == 2
    unknown = Counting(split(x, y, 6))
    gathered(built(two_layers), unknown, 2)
    assert unknown.given == 10  # without a list of classes a new one may come at any time


def test_pooling_counts_all_samples_as_one_class() -> None:
    x, y = normal(12, 5), in_turn(12, 3)
    result = gathered(
        built(two_layers), split(x, y, 5), {"0": 3, "2": 11}, pool=True, classes=[0, 1, 2]
    )
    assert list(result.classes) == [0]
    parts = result.classes[0].representations
    assert {name: part.count for name, part in parts.items()} == {"0": 3, "2": 11}
    assert same_span(result.classes[0].representations["0"].spectrum()[1], x[:3])


def test_labels_outside_the_classes_are_left_out() -> None:
    x, y = normal(12, 5), in_turn(12, 3)
    result = gathered(built(two_layers), split(x, y, 5), {"0": 9, "2": 9}, classes=[0, 2])
    assert list(result.classes) == [0, 2]


def test_prototypes_of_images_of_two_sizes_are_refused_and_pooling_takes_them() -> None:
    model = built(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    data = [(normal(4, 1, 6, 6), in_turn(4, 2)), (normal(4, 1, 8, 8), in_turn(4, 2))]
    assert gathered(model, data, {"0": 8}, pool=True).classes[0].representations["0"].count == 208
    with pytest.raises(UserError, match="layer '0' saw inputs of 36 and of 64 numbers"):
        gathered(model, data, {"0": 8})


def test_a_layer_called_twice_gives_the_rows_of_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x).relu())

    model = built(Twice)
    x = normal(2, 5)
    inputs = gathered(model, [(x, in_turn(2, 1))]).classes[0]
    both = torch.cat([x, model.layer(x).relu()])
    assert (inputs.count, inputs.representations["layer"].count) == (2, 4)
    assert same_span(inputs.representations["layer"].spectrum()[1], both)
    assert inputs.prototype("layer").shape == (10,)


def test_inputs_of_a_sequence_give_a_row_for_every_position() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(5, 2), nn.Flatten(), nn.Linear(8, 2)))
    inputs = gathered(model, [(normal(3, 4, 5), in_turn(3, 1))]).classes[0]
    assert inputs.representations["0"].count == 12
    assert inputs.representations["2"].count == 3


def test_layers_that_took_no_part_are_neither_kept_nor_used() -> None:
    model = built(
        lambda: nn.ModuleDict({"body": nn.Linear(5, 4), "a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
    )
    batches = [(normal(6, 5), in_turn(6, 2))]
    result = sites(model)
    inputs = collect(
        model,
        lambda x: model["a"](model["body"](x)),
        lambda: batches,
        result,
        dict.fromkeys(result, 9),
    )
    assert set(inputs.classes[0].representations) == {"body", "a"}
    assert inputs.used == {model["body"], model["a"]}


@pytest.mark.parametrize("kind", [list, range, iter])
def test_a_class_without_a_sample_is_refused(kind: Callable[[Any], Iterable[int]]) -> None:
    classes = range(3) if kind is range else kind([0, 1, 2])
    with pytest.raises(UserError, match="class 2 "):
        gathered(built(two_layers), [(normal(6, 5), in_turn(6, 2))], classes=classes)


def test_no_sample_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="no sample"):
        gathered(built(two_layers), [])


class Windows(nn.Module):
    """Looks at every window of a sample (n, windows, d) by itself."""

    def __init__(self, width: int, answers: int, samples_first: bool) -> None:
        super().__init__()
        self.look, self.samples_first = nn.Linear(width, answers), samples_first

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.shape[:2] if self.samples_first else (x.shape[1], x.shape[0])
        windows = (x if self.samples_first else x.transpose(0, 1)).flatten(0, 1)
        seen = self.look(windows).unflatten(0, (first, second))
        return seen.mean(1 if self.samples_first else 0)


def test_inputs_whose_first_dimension_is_not_the_batch_are_refused_by_name() -> None:
    model = built(lambda: Windows(5, 2, samples_first=False))
    with pytest.raises(UserError, match=r"layer 'look'.*\(12, 5\).*batch"):
        gathered(model, [(normal(4, 3, 5), in_turn(4, 2))])


@pytest.mark.parametrize(
    ("wrapped", "unwrap"),
    [
        (lambda x: x, lambda x: x),
        (lambda x: {"x": x}, lambda inputs: inputs["x"]),
        (lambda x: (x, None), lambda inputs: inputs[0]),
    ],
)
def test_windows_of_a_sample_belong_to_it(
    wrapped: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]
) -> None:
    model = built(lambda: Windows(5, 2, samples_first=True))
    x, y = normal(6, 3, 5), in_turn(6, 2)
    found = sites(model)
    result = collect(
        model,
        lambda inputs: model(unwrap(inputs)),
        lambda: [(wrapped(x[:4]), y[:4]), (wrapped(x[4:]), y[4:])],
        found,
        {"look": 2},
    )
    for label, inputs in result.classes.items():
        rows = x[y == label][:2].flatten(0, 1)  # of the first two samples, in whole
        kept = inputs.representations["look"]
        assert kept.count == 6
        assert kept.energy() == pytest.approx(energy(rows.numpy().T), rel=1e-12)
        assert torch.allclose(inputs.mean("look"), x[y == label][:2].flatten(1).mean(0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_refused_by_name(value: float) -> None:
    x = normal(8, 5)
    x[3, 1] = value
    with pytest.raises(UserError, match="'0'"):
        gathered(built(two_layers), [(x, in_turn(8, 2))])


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize(
    "labels",
    [in_turn(8, 2).reshape(8, 1), nn.functional.one_hot(in_turn(8, 2), 3), in_turn(8, 2) + 0.5],
    ids=["a column", "one-hot", "fractions"],
)
def test_labels_that_are_not_one_whole_number_a_sample_are_refused(
    labels: Tensor, pool: bool
) -> None:
    with pytest.raises(UserError, match="label"):
        gathered(built(two_layers), [(normal(8, 5), labels)], pool=pool)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_model_runs_in_evaluation_mode_and_is_left_in_its_own(
    training: bool, fails: bool
) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Linear(5, 2)))
    model.train(training)
    modes = []

    def forward(x: Tensor) -> Tensor:
        modes.append((model[1].training, torch.is_grad_enabled()))
        if fails:
            raise ArithmeticError
        return model(x)

    def run() -> None:
        result = sites(model)
        batches: Batches = [(normal(4, 5), in_turn(4, 2))]
        collect(model, forward, lambda: batches, result, dict.fromkeys(result, 3))

    if fails:
        with pytest.raises(ArithmeticError):
            run()
    else:
        run()
    # The second run is to see whether weights are used without calls of their layers.
    assert modes == ([(False, False)] if fails else [(False, False), (False, True)])
    assert [m.training for m in model.modules()] == [training] * 4
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_a_layer_kept_in_evaluation_mode_stays_there() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Linear(5, 2)))
    model[1].eval()
    gathered(model, [(normal(4, 5), in_turn(4, 2))])
    assert [m.training for m in model.modules()] == [True, True, False, True]


def test_inputs_that_wait_longer_make_the_same_representations(monkeypatch) -> None:
    model = built(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3)))
    batches = split(normal(30, 2, 6, 6), in_turn(30, 3), 4)
    late = gathered(model, batches, {"0": 3, "2": 8})
    monkeypatch.setattr("classgrad.core.collect.MAX_PENDING", 0)
    soon = gathered(model, batches, {"0": 3, "2": 8})
    for label, inputs in late.classes.items():
        others = soon.classes[label]
        assert inputs.counts == others.counts == {"0": 8, "2": 8}
        for name, kept in inputs.representations.items():
            other = others.representations[name]
            assert kept.count == other.count == {"0": 48, "2": 8}[name]
            assert torch.allclose(kept.energies(), other.energies(), rtol=1e-12)
            assert torch.allclose(inputs.prototype(name), others.prototype(name), rtol=1e-12)


class Second(Alone):
    """The second of two processes; the first sees as many samples of every class."""

    def __init__(self) -> None:
        self.merged: list[ClassInputs] = []

    def in_step(self, batches: Batches) -> Iterator[Batch | None]:
        yield from batches
        yield None  # the first has a batch more, without a sample that counts

    def counts(
        self,
        own: Mapping[int, int],
        classes: Collection[int] | None,
        labels: set[int],
        expected: Collection[int] | None,
    ) -> dict[int, tuple[int, int]]:
        assert classes is not None
        if not own:
            labels.add(2)
        return {value: (own.get(value, 0), 2 * own.get(value, 0)) for value in classes}

    def in_any(self, values: Sequence[bool]) -> list[bool]:
        return [True for _ in values]

    def merge(self, classes: Sequence[ClassInputs], sites: Mapping[str, Site]) -> None:
        self.merged = list(classes)


def test_samples_that_another_process_has_count_before_those_of_this_one() -> None:
    model, second = (
        built(lambda: nn.ModuleDict({"a": two_layers(), "b": nn.Linear(5, 2)})),
        Second(),
    )
    x, y = normal(8, 5), in_turn(8, 2)
    sites_of_a = {name: site for name, site in sites(model).items() if name.startswith("a")}
    limits = dict.fromkeys(sites_of_a, 5)  # 2 of the other process, 2 of this, then 1 of the other
    result = collect(
        model,
        model["a"],
        lambda: split(x, y, 4),
        sites_of_a,
        limits,
        classes=[0, 1, 2],
        processes=second,
    )
    assert list(result.classes) == [0, 1, 2]
    assert second.merged == list(result.classes.values())
    for label in (0, 1):
        inputs = result.classes[label]
        assert (inputs.count, inputs.counts["a.0"]) == (5, 2)
        assert same_span(inputs.representations["a.0"].spectrum()[1], x[y == label][:2])
    assert result.classes[2].count == 0
    assert model["b"] in result.used
