"""Set values in the text of a recipe: one line changes or is added, all else stays as it is.

The result is parsed and compared with the values it should have, so an edit is right or refused.
"""

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from classgrad.errors import UserError, shown

Keys = tuple[str, ...]  # of the tables that a value is in, and its own

TUNED = "tuned: "


def set_values(
    text: str, benchmark: str, method: str, values: Mapping[Keys, Any], file: str
) -> str:
    """Return the text of a recipe with other values for one method on one benchmark.

    `values` are by their keys in the table of the method. The comment of each line that changes
    names the file where the values come from.
    """
    table = ("benchmarks", benchmark.partition(":")[0], "methods", method)
    for keys, value in values.items():
        text = set_value(text, (*table, *keys), value, f"{TUNED}{file}")
    return text


def set_value(text: str, keys: Keys, value: Any, comment: str) -> str:
    """Return TOML text with one value changed or added, and a comment on its line.

    >>> print(set_value("[a]\\nb = { c = 1 }  # why\\n", ("a", "b", "c"), 2, "new"), end="")
    [a]
    b = { c = 2 }  # why; new
    """
    name = f"{'.'.join(keys)} = {shown(json.dumps(value))}"
    try:
        expected = tomllib.loads(text)
        table = expected
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = copy.deepcopy(value)
        lines = text.removesuffix("\n").split("\n")
        _edit(lines, keys, toml(value), comment)
        edited = "\n".join(lines) + "\n"
        if tomllib.loads(edited) != expected:
            raise ValueError("the result would have other values")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{name} cannot be put into the recipe: {shown(error)}; write it there by hand"
        ) from None
    return edited


def toml(value: Any) -> str:
    """Return a value as TOML, on one line.

    >>> toml({"fc*": [1, 2.5], "on": True})
    '{ "fc*" = [1, 2.5], on = true }'
    """
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if value is None:
        raise ValueError("TOML has no null")
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Statement:
    """A header, or a key with its value, on the lines from `start` to before `end`."""

    start: int
    end: int
    keys: Keys  # of the table, or of the value
    is_header: bool


def statements(lines: Sequence[str]) -> Iterator[Statement]:
    """Yield the statements of TOML lines; each is the fewest lines that can be parsed alone."""
    table: Keys = ()
    start = 0
    while start < len(lines):
        for end in range(start + 1, len(lines) + 1):
            try:
                content = tomllib.loads("\n".join(lines[start:end]))
                break
            except tomllib.TOMLDecodeError:
                continue
        else:
            raise ValueError(f"line {start + 1} is not TOML")
        if content:
            line = lines[start].strip()
            if is_header := line.startswith("["):
                table = _chain(content)
            keys = table if is_header else (*table, *_chain(tomllib.loads(f"{_key(line)} = 0")))
            yield Statement(start, end, keys, is_header)
        start = end


def _edit(lines: list[str], keys: Keys, value: str, comment: str) -> None:
    """Change the line that has a value, or add a line for it."""
    existing = list(statements(lines))
    for one in existing:
        if not one.is_header and one.keys == keys[: len(one.keys)]:
            if one.end > one.start + 1:
                raise ValueError(f"the value on line {one.start + 1} takes several lines")
            line, old_comment = _without_comment(lines[one.start])
            pair = _with_value(line, keys[len(one.keys) :], value)
            lines[one.start] = f"{pair}  # {_joined(old_comment, comment)}"
            return
    headers = [one.keys for one in existing if one.is_header]
    of_method = [n for n in range(len(keys) - 1, 2, -1) if keys[:n] in headers]
    if of_method:
        place, new = _end_of(existing, keys[: of_method[0]]), []
        rest = keys[of_method[0] :]
    else:
        of_benchmark = [header for header in headers if header[:2] == keys[:2]]
        place = _end_of(existing, of_benchmark[-1]) if of_benchmark else len(lines)
        new = ["", f"[{'.'.join(map(_quoted, keys[:3]))}]"]
        rest = keys[3:]
    lines[place:place] = [*new, f"{_pair(rest, value)}  # {comment}"]


def _end_of(existing: Sequence[Statement], table: Keys) -> int:
    """Return the number of the line after the last statement of a table."""
    at = max(n for n, one in enumerate(existing) if one.is_header and one.keys == table)
    while at + 1 < len(existing) and not existing[at + 1].is_header:
        at += 1
    return existing[at].end


def _with_value(pair: str, rest: Keys, value: str) -> str:
    """Return KEY = VALUE with another value, or with another value inside its inline table."""
    if not rest:
        return f"{_key(pair)} = {value}"
    inner = pair[len(_key_part(pair)) + 1 :].strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise ValueError(f"{_key(pair)} is not a table")
    pairs = [part.strip() for part in _split(inner[1:-1]) if part.strip()]
    for number, one in enumerate(pairs):
        keys = _chain(tomllib.loads(f"{_key(one)} = 0"))
        if keys == rest[: len(keys)]:
            pairs[number] = _with_value(one, rest[len(keys) :], value)
            break
    else:
        pairs.append(_pair(rest, value))
    return f"{_key(pair)} = {{ {', '.join(pairs)} }}"


def _pair(keys: Keys, value: str) -> str:
    """Return KEY = VALUE, the value in an inline table for each further key."""
    for key in reversed(keys[1:]):
        value = f"{{ {_quoted(key)} = {value} }}"
    return f"{_quoted(keys[0])} = {value}"


def _quoted(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _chain(table: Any) -> Keys:
    """Return the keys of tables that have one key each, from the outermost."""
    keys = []
    while isinstance(table, dict) and len(table) == 1:
        ((key, table),) = table.items()
        keys.append(key)
    return tuple(keys)


def _key(pair: str) -> str:
    return _key_part(pair).strip()


def _key_part(pair: str) -> str:
    """Return what is before the = of KEY = VALUE."""
    return pair[: next(at for at, character, _ in _outside_strings(pair) if character == "=")]


def _split(text: str) -> list[str]:
    """Split the inside of an inline table at its commas."""
    cuts = [at for at, character, depth in _outside_strings(text) if character == "," and not depth]
    ends = [*cuts, len(text)]
    return [text[start:end] for start, end in zip([0, *(at + 1 for at in cuts)], ends, strict=True)]


def _without_comment(line: str) -> tuple[str, str]:
    """Return a line and its comment, "" if it has none."""
    for at, character, _ in _outside_strings(line):
        if character == "#":
            return line[:at].rstrip(), line[at + 1 :].strip()
    return line.rstrip(), ""


def _joined(old: str, new: str) -> str:
    """Return two comments as one; what an earlier choice said is replaced.

    >>> _joined("released code; tuned: a.json", "tuned: b.json")
    'released code; tuned: b.json'
    """
    kept = [part for part in old.split("; ") if part and not part.startswith(TUNED)]
    return "; ".join([*kept, new])


def _outside_strings(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield the characters outside of strings, with their positions and depths in brackets."""
    if '"""' in text or "'''" in text:
        raise ValueError("it has a string in triple quotes")
    quote, depth, at = "", 0, 0
    while at < len(text):
        character = text[at]
        if quote:
            at += character == "\\" and quote == '"'
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
            yield at, character, depth
        at += 1
