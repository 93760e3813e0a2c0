"""Which class resembles which."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from classgrad.methods.projection.groups import Groups


def unit(*entries: float) -> Tensor:
    return torch.nn.functional.normalize(torch.tensor(entries, dtype=torch.float64), dim=0)


def entered(*prototypes: Tensor, similarity: float) -> Groups:
    groups = Groups()
    for prototype in prototypes:
        group, cosine = groups.find(prototype, similarity)
        groups.join(group, prototype, cosine)
    return groups


def test_a_class_joins_the_group_of_the_most_similar_earlier_class() -> None:
    groups = entered(unit(1, 0, 0), unit(0, 1, 0), unit(0.1, 1, 0), similarity=0.9)
    assert groups.group_of == [0, 1, 1]
    assert groups.find(unit(1, 0.2, 0), 0.9)[0] == 0
    assert len(groups) == 2


def test_the_cosine_must_exceed_the_threshold_and_keeps_its_sign() -> None:
    angle = unit(math.cos(1.0), math.sin(1.0))
    assert entered(unit(1, 0), angle, similarity=math.cos(1.0) - 1e-6).group_of == [0, 0]
    assert entered(unit(1, 0), angle, similarity=math.cos(1.0) + 1e-6).group_of == [0, 1]
    assert entered(unit(1, 0), unit(-1, 0), similarity=0.5).group_of == [0, 1]


def test_the_cosine_that_decided_is_kept_and_a_founder_has_one() -> None:
    groups = entered(unit(1, 0), unit(0, 1), unit(1, 0.5), similarity=0.8)
    assert groups.cosines == pytest.approx([1, 1, float(unit(1, 0.5)[0])], abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 500))
def test_at_one_even_equal_prototypes_stay_apart(seed: int, size: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    prototype = unit(*torch.randn(size, generator=rng).tolist())
    assert entered(prototype, prototype, prototype, similarity=1).group_of == [0, 1, 2]


def test_columns_of_a_group_are_kept_once_and_in_order() -> None:
    groups = entered(unit(1, 0), similarity=0.5)
    groups.gain(0, [4, 1])
    groups.gain(0, [1, 2])
    assert groups.columns == [[1, 2, 4]]


def test_a_state_gives_the_same_groups() -> None:
    groups = entered(unit(1, 0, 2), unit(0, 1, 0), unit(1, 0, 2.1), similarity=0.9)
    groups.gain(1, [0, 3])
    again = Groups.from_state(groups.state_dict())
    assert again.group_of == groups.group_of
    assert again.columns == groups.columns
    assert again.cosines == groups.cosines
    assert torch.equal(torch.stack(again.prototypes), torch.stack(groups.prototypes))
    again.gain(0, [7])
    again.join(0, unit(1, 1, 1), 1.0)
    assert groups.columns == [[], [0, 3]]
    assert len(groups.prototypes) == 3
