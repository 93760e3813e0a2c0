"""What `classgrad list` prints, and what identifies runs of experiments, from all classes.

    python tests/list_tables.py

writes it to tables.json and lines.json in src/classgrad/cli, so that commands do not need the
classes.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from classgrad import defaults
from classgrad.benchmarks import BENCHMARKS
from classgrad.benchmarks.folder import FolderOptions
from classgrad.cli import tables
from classgrad.experiments import spec as experiments
from classgrad.experiments.spec import Experiment, Line, Published
from classgrad.methods import METHODS
from classgrad.networks import NETWORKS
from classgrad.report.lines import Budget
from classgrad.runs import recipes
from classgrad.runs.plain import first_identity
from classgrad.settings import Settings
from classgrad.training.config import Training

FILE = Path(tables.__file__).with_name("tables.json")
LINES = FILE.with_name("lines.json")


def of_code() -> dict[str, Any]:
    """Return all tables by title, the settings of every entry, and the lines of experiments."""
    settings: dict[str, type[Settings]] = {
        "training": Training,
        **METHODS,
        **{name: benchmark.Options for name, benchmark in BENCHMARKS.items()},
        "folder": FolderOptions,
        **{name: network.Options for name, network in NETWORKS.items()},
    }
    return {
        "tables": {
            "methods": {name: method.summary for name, method in METHODS.items()},
            "benchmarks": {
                **{name: benchmark.summary for name, benchmark in BENCHMARKS.items()},
                "folder:PATH": "images of your own: PATH/task/class/image",
            },
            "networks": {name: network.summary for name, network in NETWORKS.items()},
            "recipes": {name: recipes.load(name).description for name in recipes.names()},
            "experiments": {name: experiments.load(name).title for name in experiments.names()},
        },
        "settings": {name: described(kind) for name, kind in settings.items()},
        "experiments": {name: lines(experiments.load(name)) for name in experiments.names()},
    }


def described(settings: type[Settings]) -> dict[str, dict[str, Any]]:
    """Return the description, default and alias of each setting, "" if it has no alias."""
    aliases = {name: alias for alias, name in settings.aliases.items()}
    return {
        name: {
            "description": field.description,
            "default": defaults.as_json(field.default),
            "alias": aliases.get(name, ""),
        }
        for name, field in settings.model_fields.items()
    }


def lines(experiment: Experiment) -> dict[str, str]:
    """Return what an experiment says of itself and of its lines."""
    says = {"title": experiment.title, "source": experiment.source}
    says |= {"benchmark": experiment.benchmark, "note": experiment.note.strip()}
    rows = {name: value for name, value in says.items() if value}
    for line in experiment.lines:
        parts = [f"method {line.method}", *values(line.values)]
        for recipe, others in line.recipes.items():
            parts.append(f"with recipe {recipe} {', '.join(values(others))}")
        rows[line.label] = ", ".join(parts) + published(line.paper)
    return rows


def values(given: dict[str, Any]) -> list[str]:
    """Return values as --set takes them."""
    return [f"{name}={tables.as_text(value)}" for name, value in given.items()]


def published(paper: Published | None) -> str:
    """Return the published figures of a line, if there are any."""
    if paper is None:
        return ""
    figures = [f"ACC {paper.accuracy:g}"]
    if paper.transfer_percent is not None:
        figures.append(f"BWT {paper.transfer_percent + 0.0:+g}")  # no -0
    if paper.capacity is not None:
        figures.append(f"capacity {paper.capacity:g} %")
    return f"; published: {', '.join(figures)}"


def lines_of_experiments() -> dict[str, list[dict[str, Any]]]:
    """Return what identifies the runs of each line of each experiment, and its paper's budget."""
    return {
        experiment.name: [
            {
                "label": line.label,
                "identity": first_identity(plan_of(experiment, line, recipe)),
                "paper_budget": asdict(Budget.of(plan_of(experiment, line, "paper"))),
            }
            for recipe in recipes.names()
            for line in experiment.distinct_lines(recipe)
        ]
        for experiment in experiments.load_many("all")
    }


def plan_of(experiment: Experiment, line: Line, recipe: str) -> dict[str, Any]:
    """Return all values of a line's run."""
    return defaults.as_json(line.plan(experiment.benchmark, recipe, seed=0).as_dict())


def text() -> str:
    """Return the contents of tables.json."""
    return json.dumps(of_code(), indent=1, ensure_ascii=False) + "\n"


def text_of_lines() -> str:
    """Return the contents of lines.json, a line of text for each line of an experiment."""
    parts = [
        f" {json.dumps(name)}: [\n  "
        + ",\n  ".join(json.dumps(line, ensure_ascii=False) for line in lines)
        + "\n ]"
        for name, lines in lines_of_experiments().items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    LINES.write_text(text_of_lines(), encoding="utf-8")
