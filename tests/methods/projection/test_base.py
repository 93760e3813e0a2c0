"""What projection methods share beside their subspaces."""

import pytest

from classgrad.errors import UserError
from classgrad.methods.projection.base import layer_values


def test_values_by_layer_go_without_the_trunk_and_those_of_heads_can_wait() -> None:
    names = ["trunk.conv1[0]", "trunk.conv1[1]", "trunk.fc1", "heads.0"]
    values = layer_values({"conv*": 1, "*": 2, "fc1": 3, "heads*": 4}, names)
    assert list(values.values()) == [1, 1, 3, 2]  # the first pattern, in the order given
    values = layer_values({"conv*": 1, "heads*": 4, "trunk.*": 2}, names)
    assert list(values.values()) == [1, 1, 2, 4]
    assert layer_values({"fc1": 3, "heads*": 4}, ["fc1"]) == {"fc1": 3}  # no head is shared
    with pytest.raises(UserError, match="'fc2' matches no layer"):
        layer_values({"fc2": 1, "*": 2}, names)
    with pytest.raises(UserError, match=r"'fc\*' matches no layer"):
        layer_values({"*": 2, "fc*": 1}, names)
