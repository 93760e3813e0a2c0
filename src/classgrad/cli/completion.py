"""What the shell can complete after an option: the names that `classgrad list` shows.

They are read from tables.json, so that a shell does not wait for torch.
"""

from collections.abc import Callable

from classgrad.cli import tables

Completion = list[tuple[str, str]]  # names, each with what it is


def complete_names(title: str) -> Callable[[str], Completion]:
    """Return what completes the name of an entry in a table.

    >>> complete_names("recipes")("f")
    [('fast', 'few epochs per task, with momentum and a cosine schedule')]
    """

    def complete(incomplete: str) -> Completion:
        return [
            (name.removesuffix("PATH"), summary)
            for name, summary in tables.all_tables()[title].items()
            if name.startswith(incomplete)
        ]

    return complete


def complete_list(title: str) -> Callable[[str], Completion]:
    """Return what completes the last of several names, which commas separate.

    >>> [name for name, _ in complete_list("methods")("gpm,ap")]
    ['gpm,apd', 'gpm,apd2']
    """

    def complete(incomplete: str) -> Completion:
        before, comma, last = incomplete.rpartition(",")
        found = complete_names(title)(last)
        given = before.split(",")
        return [(before + comma + name, text) for name, text in found if name not in given]

    return complete


def complete_entry(incomplete: str) -> Completion:
    """Complete the name of an entry in any table.

    >>> [name for name, _ in complete_entry("permuted")]
    ['permuted-digits', 'permuted-mnist']
    """
    found = [one for title in tables.all_tables() for one in complete_names(title)(incomplete)]
    return list(dict(found).items())
