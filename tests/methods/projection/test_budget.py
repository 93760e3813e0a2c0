"""Which directions stay when there is room for some of them only."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from classgrad.methods.projection.budget import Held, Shares, strongest
from oracles.models import normal

layers = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.lists(st.floats(0, 2), min_size=1, max_size=6), st.integers(1, 9)),
    min_size=1,
)


@given(layers=layers, room=st.floats(0, 1))
def test_what_stays_fits_is_no_weaker_than_what_goes_and_nothing_goes_in_vain(
    layers: dict[str, tuple[list[float], int]], room: float
) -> None:
    strengths = {name: torch.tensor(v, dtype=torch.float64) for name, (v, _) in layers.items()}
    sizes = {name: 8 * dimension for name, (_, dimension) in layers.items()}
    least = sum(sizes.values())
    full = sum(sizes[name] * len(values) for name, values in strengths.items())
    limit = least + room * (full - least)
    stay = strongest(strengths, sizes, limit / 1e6)
    taken = sum(sizes[name] * len(columns) for name, columns in stay.items())
    assert taken / 1e6 <= limit / 1e6
    gone = [
        (values[column].item(), name)
        for name, values in strengths.items()
        for column in range(len(values))
        if column not in stay[name]
    ]
    for name, columns in stay.items():
        kept = strengths[name][columns]
        assert len(columns) >= 1
        assert columns == sorted(columns)
        assert all(strength <= kept.max() for strength, own in gone if own == name)
        if len(columns) > 1:
            assert all(strength <= kept.min() for strength, _ in gone)
    if gone:
        last = max(strength for strength, _ in gone)
        sizes_of_last = [sizes[name] for strength, name in gone if strength == last]
        assert taken + max(sizes_of_last) > limit * (1 - 1e-12)


def test_a_budget_that_is_just_enough_drops_nothing() -> None:
    strengths = {"a": normal(7).abs(), "b": normal(3).abs()}
    sizes = {"a": 8 * 11, "b": 8 * 5}
    total = (7 * 11 + 3 * 5) * 8
    assert strongest(strengths, sizes, total / 1e6) == {"a": list(range(7)), "b": [0, 1, 2]}
    less = strongest(strengths, sizes, (total - 1) / 1e6)
    assert sum(map(len, less.values())) == 9


def entered() -> Shares:
    shares = Shares()
    shares.enter(0, 4, 0.9, torch.tensor([0.5, 0.25], dtype=torch.float64))
    shares.enter(1, None, 0.95, torch.tensor([0.125, 0.25, 0.5], dtype=torch.float64))
    return shares


def test_a_column_that_came_after_a_class_holds_nothing_of_it() -> None:
    shares = entered()
    assert shares.table.tolist() == [[0.5, 0.25, 0], [0.125, 0.25, 0.5]]
    assert shares.strengths().tolist() == [0.625, 0.5, 0.5]
    assert shares.held("fc") == [
        Held("fc", 0, 4, 0.9, 0.75),
        Held("fc", 1, None, 0.95, 0.875),
    ]


def test_shares_follow_the_columns_that_stay() -> None:
    shares = entered()
    shares.keep([0, 2])
    assert shares.strengths().tolist() == [0.625, 0.5]
    assert [held.share for held in shares.held("fc")] == [0.5, 0.625]
    assert [held.promised for held in shares.held("fc")] == [0.9, 0.95]


def test_rounding_does_not_make_a_share_larger_than_one() -> None:
    shares = Shares()
    shares.enter(0, 0, 1.0, torch.tensor([0.5, 0.5 + 1e-15], dtype=torch.float64))
    assert shares.held("fc")[0].share == 1


def test_a_state_gives_the_same_shares() -> None:
    shares = entered()
    again = Shares.from_state(shares.state_dict())
    assert again.held("fc") == shares.held("fc")
    assert torch.equal(again.table, shares.table)
    again.enter(2, 0, 0.9, torch.ones(3, dtype=torch.float64) / 4)
    assert len(shares.held("fc")) == 2
