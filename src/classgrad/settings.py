"""Values a user gives: checked when constructed, refused in one line, by word or by letter."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from classgrad.errors import UserError, shown, unknown


class Settings(BaseModel):
    """A group of keyword values, each validated and then stored unmodified.

    `letters` maps a paper's symbol to the field that carries it, so that `eta=0.8` and
    `similarity=0.8` mean the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: ClassVar[str] = "setting"
    letters: ClassVar[dict[str, str]] = {}

    def __init__(self, /, **values: Any) -> None:
        named = self.by_word(values)
        try:
            super().__init__(**named)
        except ValidationError as error:
            raise UserError(self._one_line(error, values)) from None

    @classmethod
    def accepts(cls, name: str) -> bool:
        """Tell whether `name` is a field or the letter of one."""
        return name in cls.model_fields or name in cls.letters

    @classmethod
    def names(cls) -> list[str]:
        """List every name a value can be given by."""
        return [*cls.model_fields, *cls.letters]

    @classmethod
    def by_word(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return `values` keyed by field name; unknown names and double ones are refused."""
        named: dict[str, Any] = {}
        for name, value in values.items():
            if not cls.accepts(name):
                raise unknown(cls.kind, name, cls.names())
            word = cls.letters.get(name, name)
            if word in named:
                raise UserError(f"'{name}' and '{word}' are the same {cls.kind}: give one of them")
            named[word] = value
        return named

    def replace(self, **values: Any) -> Self:
        """Return a copy with some values changed, validated like a new one."""
        return type(self)(**{**self.model_dump(), **self.by_word(values)})

    @classmethod
    def _one_line(cls, error: ValidationError, given: dict[str, Any]) -> str:
        first, *others = error.errors()
        if isinstance(first["input"], dict):
            # Refused first for not being one value; what is wrong with one of several comes after.
            first = next((other for other in others if len(other["loc"]) > 2), first)
        field = str(first["loc"][0]) if first["loc"] else ""
        names = {word: letter for letter, word in cls.letters.items() if letter in given}
        message = first["msg"].removeprefix("Value error, ")
        message = message.replace("Input should be", "must be")
        if not field:
            return message
        label = names.get(field, field)
        if len(first["loc"]) > 2:
            label += f" for '{shown(first['loc'][-1])}'"
        return f"{label} {message} (got {shown(repr(first['input']))})"
