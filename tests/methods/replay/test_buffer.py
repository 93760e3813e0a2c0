"""Memories of samples: what is kept, with what probability, and what a batch from them weighs."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.methods.replay.buffer import EqualShares, ReplayMemory, Reservoir, balanced_order
from classgrad.tasks import Split


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(start, count, classes=3):
    """Samples whose one pixel is their number."""
    number = torch.arange(start, start + count)
    return Split(number.double()[:, None], number % classes)


def held(reservoir):
    """Place -> (task, number) of every sample."""
    return {
        int(place): (task, int(image))
        for task, part in reservoir.parts.items()
        for place, image in zip(reservoir.places[task], part.images, strict=True)
    }


def filled(sizes):
    memory = ReplayMemory(sum(sizes.values()))
    start = 0
    for task, size in sizes.items():
        memory.parts[task] = numbered(start, size)
        start += size
    return memory


# --- reservoir ---


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=8),
    st.integers(0, 100),
)
@settings(deadline=None, max_examples=60)
def test_a_batch_is_inserted_as_its_samples_would_be_one_by_one(capacity, groups, seed):
    reservoir, generator = Reservoir(capacity), rng(seed)
    places, count = {}, 0
    for task, size in groups:
        drawn = reservoir.draw_places(size, generator)
        for i, place in enumerate(drawn.tolist()):
            assert place == count + i if count + i < capacity else 0 <= place <= count + i
            if place < capacity:
                places[place] = (task, count + i)
        reservoir.insert(task, numbered(count, size), drawn)
        count += size
        assert held(reservoir) == places
        assert len(reservoir) == min(capacity, count)
        assert reservoir.seen == count


def test_every_sample_of_a_stream_has_the_same_chance_to_be_kept():
    length, capacity, runs = 30, 5, 1000
    kept = torch.zeros(length)
    generator = rng(3)
    for _ in range(runs):
        reservoir = Reservoir(capacity)
        for task, start in enumerate(range(0, length, 10)):
            places = reservoir.draw_places(10, generator)
            reservoir.insert(task, numbered(start, 10), places)
        kept[[number for _, number in held(reservoir).values()]] += 1
    share = capacity / length
    spread = runs * share * (1 - share) * length / (length - 1)  # a run keeps exactly `capacity`
    square = float(((kept - runs * share) ** 2 / spread).sum())
    assert 10 < square < 58  # chi-square of 29 degrees: 0.1 % and 99.9 %


def test_the_last_place_can_be_drawn_and_none_beyond():
    reservoir = Reservoir(1)
    reservoir.seen = 3
    drawn = torch.stack([reservoir.draw_places(1, rng(seed)) for seed in range(200)])
    assert set(drawn.flatten().tolist()) == {0, 1, 2, 3}


def test_images_of_different_shape_and_type_live_side_by_side():
    reservoir = Reservoir(6)
    grey = Split(torch.zeros(6, 1, 4, 4, dtype=torch.uint8), torch.zeros(6, dtype=torch.int64))
    colour = Split(torch.rand(2, 3, 8, 8, generator=rng()), torch.ones(2, dtype=torch.int64))
    reservoir.insert(0, grey, torch.arange(6))
    reservoir.insert(1, colour, torch.tensor([1, 4]))
    assert reservoir.parts[0].images.shape == (4, 1, 4, 4)
    assert reservoir.parts[0].images.dtype == torch.uint8
    assert torch.equal(reservoir.parts[1].images, colour.images)


def test_a_task_pushed_out_altogether_is_gone():
    reservoir = Reservoir(2)
    reservoir.insert(0, numbered(0, 2), torch.tensor([0, 1]))
    reservoir.insert(1, numbered(2, 3), torch.tensor([1, 0, 1]))
    assert held(reservoir) == {0: (1, 3), 1: (1, 4)}
    assert reservoir.tasks() == [1]


def test_a_state_of_the_reservoir_continues_alike_and_later_samples_do_not_change_it():
    reservoir = Reservoir(4)
    reservoir.insert(0, numbered(0, 9), reservoir.draw_places(9, rng()))
    state, before = reservoir.state_dict(), held(reservoir)
    again = Reservoir(4)
    again.load_state_dict(state)
    for one in (reservoir, again):
        one.insert(1, numbered(9, 9), one.draw_places(9, rng(5)))
    assert held(reservoir) == held(again) != before
    unchanged = Reservoir(4)
    unchanged.load_state_dict(state)
    assert held(unchanged) == before


# --- equal shares ---


@given(st.integers(4, 40), st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_shares_are_equal_balanced_and_within_the_capacity(capacity, sizes, seed):
    memory, generator = EqualShares(capacity), rng(seed)
    for task, size in enumerate(sizes):
        before = dict(memory.parts)
        memory.add(task, numbered(100 * task, size), generator)
        share = capacity // (task + 1)
        assert len(memory) <= capacity
        for t, part in memory.parts.items():
            numbers = part.images.flatten().long()
            assert len(numbers) == min(share, sizes[t]) == len(numbers.unique())
            assert torch.equal(part.labels, numbers % 3)
            assert ((numbers >= 100 * t) & (numbers < 100 * t + sizes[t])).all()
            available = torch.bincount(torch.arange(100 * t, 100 * t + sizes[t]) % 3, minlength=3)
            assert_balanced(torch.bincount(part.labels, minlength=3), available)
            if t in before:
                assert set(numbers.tolist()) <= set(before[t].images.flatten().long().tolist())


def assert_balanced(counts, available):
    """No class has two fewer than another one unless all of it is there."""
    short = counts < counts.max() - 1
    assert torch.equal(counts[short], available[short])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=25), st.integers(0, 50))
@settings(deadline=None, max_examples=60)
def test_every_beginning_of_a_balanced_order_is_balanced(labels, seed):
    labels = torch.tensor(labels)
    order = balanced_order(labels, rng(seed))
    assert order.sort().values.tolist() == list(range(len(labels)))
    for end in range(1, len(labels) + 1):
        counts = torch.bincount(labels[order[:end]], minlength=4)
        available = torch.bincount(labels, minlength=4)
        present = available > 0
        assert_balanced(counts[present], available[present])


def test_which_samples_are_kept_is_random():
    result = Counter()
    for seed in range(600):
        memory = EqualShares(4)
        memory.add(0, numbered(0, 6, classes=2), rng(seed))
        memory.add(1, numbered(6, 6, classes=2), rng(seed + 1000))
        result.update(memory.parts[0].images.flatten().long().tolist())
    assert all(abs(result[number] - 200) < 50 for number in range(6))  # σ is 11.5


def test_cut_samples_take_no_memory():
    memory = EqualShares(8)
    memory.add(0, numbered(0, 20), rng())
    memory.add(1, numbered(20, 20), rng())
    for part in memory.parts.values():
        assert part.images.untyped_storage().nbytes() == part.images.nbytes == 4 * 8


# --- batches from a memory ---


@pytest.mark.parametrize(
    ("count", "per_task", "chosen"),
    [(5, 8, 1), (8, 8, 1), (16, 8, 2), (23, 8, 2), (24, 8, 3), (90, 8, 4), (5, 1, 4), (3, 1, 3)],
)
def test_the_expected_loss_of_a_batch_is_the_mean_over_the_memory(count, per_task, chosen):
    sizes = {0: 40, 2: 11, 3: 25, 7: 4}
    memory, generator = filled(sizes), rng(1)
    losses = {task: part.images.flatten() ** 2 for task, part in memory.parts.items()}
    everything = torch.cat(list(losses.values())).mean()
    weights, seen = {}, Counter()
    rows = {task: torch.zeros(size) for task, size in sizes.items()}
    runs = 1500
    for _ in range(runs):
        parts = memory.draw(count, generator, per_task=per_task)
        subset = tuple(part.task for part in parts)
        seen[subset] += 1
        assert weights.setdefault(subset, [p.weight for p in parts]) == [p.weight for p in parts]
        for part in parts:
            assert len(part.index) == min(max(count // chosen, per_task), sizes[part.task])
            rows[part.task][part.index] += 1  # rows drawn twice would count once
    subsets = list(itertools.combinations(sizes, chosen))
    assert set(seen) == set(subsets)  # all of them, in about equal numbers:
    assert (
        max(abs(n - runs / len(subsets)) for n in seen.values()) < 5 * (runs / len(subsets)) ** 0.5
    )
    expected = sum(
        weight * float(losses[task].mean()) / len(subsets)
        for subset in subsets
        for task, weight in zip(subset, weights[subset], strict=True)
    )
    assert expected == pytest.approx(float(everything), rel=1e-12)
    for task, size in sizes.items():
        each = runs * chosen / 4 * min(max(count // chosen, per_task), size) / size
        assert (rows[task] - each).abs().max() < 5 * each**0.5 + 1e-9
        assert rows[task].sum() == pytest.approx(each * size, rel=0.15)


def test_tasks_are_left_out_by_number_and_by_size():
    memory = filled({0: 1, 1: 6, 2: 3})
    assert [p.task for p in memory.draw(64, rng())] == [0, 1, 2]
    assert [p.task for p in memory.draw(64, rng(), without=1)] == [0, 2]
    pairs = memory.draw(64, rng(), least=2)
    assert [p.task for p in pairs] == [1, 2]
    assert [p.weight for p in pairs] == pytest.approx([6 / 9, 3 / 9])
    assert memory.draw(64, rng(), without=1, least=4) == []
    assert ReplayMemory(3).draw(5, rng()) == []


def test_where_tasks_have_fewer_samples_than_a_pass_should_have_more_of_them_are_chosen():
    parts = filled(dict.fromkeys(range(6), 20)).draw(64, rng(), per_task=32)
    assert [len(part.index) for part in parts] == [20, 20, 20]
    assert [part.weight for part in parts] == pytest.approx([1 / 3] * 3)


def test_a_batch_has_as_many_of_a_task_as_it_needs_at_least():
    [part] = filled({0: 6}).draw(1, rng(), least=2)
    assert len(part.index) == 2
