"""The shell commands that the documentation shows: of pages, and of the command line's help."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from classgrad import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
STARTS = re.compile(r"^\s*(?:classgrad |torchrun |python -m )")


def lines_of_pages() -> Iterator[tuple[str, str]]:
    """Yield page and command of every line of a block that is a command, without its comment."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for block in re.finditer(
            r"^( *)(```+)(\w*)\n(.*?)^\1\2 *$", page, re.DOTALL | re.MULTILINE
        ):
            if block[3] in ("", "sh", "bash", "console"):
                for line in block[4].replace("\\\n", " ").splitlines():
                    if STARTS.match(line):
                        yield path.relative_to(ROOT).as_posix(), without_comment(line)


def words_in_text() -> Iterator[tuple[str, str]]:
    """Yield page and command of every `classgrad ...` or `python -m ...` within a sentence."""
    for path in PAGES:
        page = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for found in re.findall(r"`((?:classgrad|python -m) [^`]*)`", page):
            yield path.relative_to(ROOT).as_posix(), " ".join(found.split())


def lines_of_help() -> Iterator[tuple[str, str]]:
    """Yield command and example of every example in the help of a command."""
    for name, command in commands(typer.main.get_command(cli.app)):
        text = (command.epilog or "").partition(": ")[2]
        for example in text.split(" | "):
            if example:
                yield f"{name} --help", example


def commands(group: Any, name: str = "classgrad") -> Iterator[tuple[str, Any]]:
    """Yield a group of commands, and all below it, with the words that call them."""
    yield name, group
    for word, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {word}")


def without_comment(line: str) -> str:
    """Return a line of a shell with single blanks and without the comment at its end."""
    return " ".join(re.sub(r"(?:^|\s)#.*$", "", line).split())
