"""Values a user gives: checked when constructed, refused in one line, by name or by alias."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from classgrad.errors import UserError, shown, unknown

# From the value of a removed setting to the settings that now mean the same, often none. It raises
# a UserError for a value that is no longer supported.
Migration = Callable[[Any], dict[str, Any]]


class Settings(BaseModel):
    """A group of keyword values, each validated and then stored unmodified.

    `aliases` maps a paper's symbol to its field, so that `eta=0.8` and `similarity=0.8` mean the
    same. `renamed` does so for former names of fields, and `removed` migrates the values of
    settings that no longer exist, so that older files stay readable. Of the fields in one part of
    `exclusive` at most one can be given; it takes the place of one that only a recipe gives.

    Type checkers take the arguments of a class from its fields, by pydantic's dataclass_transform.
    An alias is declared to them as one more argument, which is not an attribute:

        if TYPE_CHECKING:  # aliases, see Settings
            eta: InitVar[float] = similarity
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: ClassVar[str] = "setting"
    aliases: ClassVar[dict[str, str]] = {}
    renamed: ClassVar[dict[str, str]] = {}
    removed: ClassVar[dict[str, Migration]] = {}
    exclusive: ClassVar[tuple[tuple[str, ...], ...]] = ()

    if TYPE_CHECKING:

        def __init__(self) -> None:
            """Take no arguments, as there is no field yet; subclasses take their fields."""

    else:

        def __init__(self, /, **values: Any) -> None:
            named = self.by_name(values)
            self.refuse_exclusive(named)
            try:
                super().__init__(**named)
            except ValidationError as error:
                raise UserError(self._one_line(error, values)) from None

    @classmethod
    def field_of(cls, name: str) -> str:
        """Return the field for a name, an alias or a former name."""
        return cls.renamed.get(name, cls.aliases.get(name, name))

    @classmethod
    def accepts(cls, name: str) -> bool:
        """Tell whether `name` stands for a field, or did before the field was removed."""
        return cls.field_of(name) in cls.model_fields or name in cls.removed

    @classmethod
    def names(cls) -> list[str]:
        """List every name a value can be given by, without former names."""
        return [*cls.model_fields, *cls.aliases]

    @classmethod
    def by_name(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by field name; refuse unknown names, and two names for one field."""
        named: dict[str, Any] = {}
        for name, value in values.items():
            if name in cls.removed:
                named |= cls.removed[name](value)
                continue
            if not cls.accepts(name):
                raise unknown(cls.kind, name, cls.names())
            field = cls.field_of(name)
            if field in named:
                raise UserError(f"'{name}' and '{field}' are the same {cls.kind}: give one of them")
            named[field] = value
        return named

    @classmethod
    def migrate(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values that an earlier version wrote, by current names."""
        current: dict[str, Any] = {}
        for name, value in values.items():
            current |= cls.removed[name](value) if name in cls.removed else {name: value}
        return {cls.field_of(name): value for name, value in current.items()}

    @classmethod
    def excluded_by(cls, name: str) -> set[str]:
        """Return the fields that cannot be given with this one."""
        return {n for part in cls.exclusive if name in part for n in part if n != name}

    @classmethod
    def refuse_exclusive(cls, named: Mapping[str, Any]) -> None:
        """Refuse values, by field name, of which one excludes another; None does not."""
        given = [name for name, value in named.items() if value is not None]
        for name in given:
            other = cls.excluded_by(name).intersection(given)
            if other:
                raise UserError(f"'{name}' and '{min(other)}' exclude each other: give one of them")

    @classmethod
    def combined(cls, values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by field name with the given ones in the place of those they replace."""
        replaced = {n for n, v in given.items() if v is not None for n in cls.excluded_by(n)}
        return {**{n: v for n, v in values.items() if n not in replaced}, **given}

    def given(self) -> dict[str, Any]:
        """Return the values that were given explicitly, without defaults."""
        return self.model_dump(exclude_unset=True)

    def replace(self, **values: Any) -> Self:
        """Return a copy with some values changed, validated like a new one."""
        return type(self)(**self.combined(self.given(), self.by_name(values)))

    @classmethod
    def _one_line(cls, error: ValidationError, given: dict[str, Any]) -> str:
        first, *others = error.errors()
        if isinstance(first["input"], dict):
            # The first error says that it is not a single value; a later one, which entry is wrong.
            first = next((other for other in others if len(other["loc"]) > 2), first)
        field = str(first["loc"][0]) if first["loc"] else ""
        names = {cls.field_of(name): name for name in given}
        message = first["msg"].removeprefix("Value error, ")
        message = message.replace("Input should be", "must be")
        if not field:
            return message
        label = names.get(field, field)
        if len(first["loc"]) > 2:
            label += f" for '{shown(first['loc'][-1])}'"
        return f"{label} {message} (got {shown(repr(first['input']))})"
