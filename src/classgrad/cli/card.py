"""The command card: what a learner knows, from what, how well and with what, to sign or to file."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from classgrad.cli.state import State

app = typer.Typer()


@app.command(
    epilog="Examples: classgrad card state > card.md | classgrad card state --json > card.json | "
    "classgrad card state --check card.json"
)
def card(
    state: State,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of Markdown.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(help="A file of 'card --json': tell whether it is the card of this state."),
    ] = None,
) -> None:
    """Print the card of a learner: classes, images, settings, figures, and a digest of all."""
    from classgrad.learner import card as cards
    from classgrad.learner.info import read

    for warning in read(state).warnings:
        print(f"{warning}; this is the card of the previous one", file=sys.stderr)
    if check is not None:
        not_covered = cards.check(state, check)
        older = (
            f", but of an older form that does not cover {not_covered}: make a new one"
            if not_covered
            else ""
        )
        print(f"'{check}' is the card of '{state}'{older}")
        return
    made = cards.make(state)
    print(
        json.dumps(made, indent=1, ensure_ascii=False) if as_json else cards.markdown(made), end=""
    )
    if as_json:
        print()
