import pytest
from pydantic import Field

from classgrad import methods
from classgrad.errors import UserError
from classgrad.settings import Settings


class Some(Settings):
    aliases = {"eta": "similarity"}  # noqa: RUF012
    similarity: float = Field(default=0.7, ge=-1, le=1)
    count: int = Field(default=3, ge=1)


def test_word_and_letter_mean_the_same():
    assert Some(eta=0.5) == Some(similarity=0.5)
    assert Some(eta=0.5).replace(eta=0.6).similarity == 0.6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eta": 3}, "eta must be less than or equal to 1 (got 3)"),
        ({"similarity": -2}, "similarity must be greater than or equal to -1 (got -2)"),
        ({"count": "many"}, "count must be a valid integer"),
        ({"count": float("inf")}, "count must be a"),
        ({"similarity": float("nan")}, "similarity must be"),
        ({"eta": 0.1, "similarity": 0.1}, "are the same setting: give one of them"),
        ({"simlarity": 0.1}, "unknown setting 'simlarity': did you mean 'similarity'?"),
    ],
)
def test_wrong_values_are_refused_in_one_line(values, message):
    with pytest.raises(UserError) as caught:
        Some(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Some().count = 4


def test_what_is_wrong_with_one_of_several_values_is_said():
    with pytest.raises(UserError, match=r"^epsilon for 'fc1' must be less than or equal to 1"):
        methods.make("gpm", epsilon={"*": 0.9, "fc1": 2})
    with pytest.raises(UserError, match=r"^samples for '\*' must be greater than or equal to 1"):
        methods.make("gpm", samples={"*": 0})
