"""Fill the tables of the documentation from results: python docs/fill_tables.py.

A page marks the place of a table with `<!-- table: FOLDER -->` and `<!-- end -->`; FOLDER holds the
folders of runs, relative to the root of the repository. The other markers are:

- `<!-- faults -->`, `<!-- fuzz -->`, `<!-- free -->`, `<!-- forecast -->`, `<!-- interop -->`,
  `<!-- guards -->`: the JSON files of these names in `results`
- `<!-- uncounted -->`: strong directions that do not count for ε, in `results/interop.json`
- `<!-- readings -->`: the directions in `results/free.json`
- `<!-- speed -->`, `<!-- saving -->`: what `make bench` measured
- `<!-- memory -->`: what `make memory` measured
- `<!-- peers -->`: what `make peers` measured
- `<!-- photos -->`: what `make photos` measured
- `<!-- trust -->`, `<!-- printed -->`, `<!-- remains -->`: what `make trust` measured
- `<!-- sentences -->`, `<!-- tuned-sentences -->`: what `make sentences` measured
- `<!-- runs: FOLDER -->`: as `table`, of runs that may not be there yet
- `<!-- features: FOLDER -->`: pretrained features that learn on, and those that stay as they are
- `<!-- task-confusion: FOLDER -->`: the picture of tasks that are taken for each other
- `<!-- masks -->`: how many units HAT's training switches
- `<!-- studies: FOLDER -->`: what `classgrad tune` tried of one setting, method by method
- `<!-- experiment: NAME -->`: the results of an experiment beside the paper's figures
- `<!-- paired: NAME -->`: what its lines lack to the best one, paired by seed
- `<!-- curve: NAME -->`: its average accuracy after each task
- `<!-- learnt: NAME -->`: its accuracy on each task when learnt, and at the end
- `<!-- directions: NAME -->`: the protected directions of each layer
- `<!-- claims: NAME -->`: what the paper says of its method, beside what the lines show

The last six read `results/paper` and `results/natural-order`.
"""

import json
import re
import runpy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from classgrad.cli.experiments import measured
from classgrad.experiments import spec as experiments
from classgrad.experiments.compare import compare
from classgrad.methods import METHODS
from classgrad.report.terminal import markdown
from classgrad.report.text import markdown_table, number
from classgrad.runs.record import RunRecord, mean_std

ROOT = Path(__file__).parent.parent
RECIPE = "fast"  # of the runs that repeat the paper
NOT_RUN = "Not run yet.\n"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
PAPER = re.compile(
    r"(<!-- (experiment|paired|curve|learnt|directions|claims): (\S+) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)
LEARNT = re.compile(
    r"(<!-- (features|task-confusion|runs): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)
STUDIES = re.compile(r"(<!-- studies: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURES = re.compile(
    r"(<!-- (faults|fuzz|interop|uncounted|guards|speed|saving|memory|peers|photos|masks|free"
    r"|readings|forecast|trust|printed|remains|sentences|tuned-sentences) -->\n)"
    r".*?(<!-- end -->)",
    re.DOTALL,
)


def filled(page: str) -> str:
    """Return a page with every marked table filled from the results."""

    def table(match: re.Match[str]) -> str:
        paths = sorted((ROOT / match[2]).glob("*/record.json"))
        if not paths:
            raise SystemExit(f"no records in {match[2]}")
        return match[1] + markdown([RunRecord.load(path) for path in paths]) + match[3]

    def figures(match: re.Match[str]) -> str:
        make, place = {
            "faults": (faults, "results/faults.json"),
            "fuzz": (fuzz, "results/fuzz.json"),
            "interop": (interop, "results/interop.json"),
            "uncounted": (uncounted, "results/interop.json"),
            "guards": (guards, "results/guards.json"),
            "sentences": (sentences, "results/sentences.json"),
            "tuned-sentences": (tuned_sentences, "results/sentences.json"),
            "speed": (speed, "benchmarks/results.json"),
            "saving": (saving, "benchmarks/results.json"),
            "memory": (memory, "benchmarks/memory.json"),
            "photos": (photos, "results/photos.json"),
            "trust": (trust, "results/trust.json"),
            "printed": (printed, "results/trust.json"),
            "remains": (remains, "results/trust.json"),
            "masks": (masks, "results/masks.json"),
            "peers": (peers, "benchmarks/peers.json"),
            "free": (free, "results/free.json"),
            "readings": (readings, "results/free.json"),
            "forecast": (forecast, "results/forecast.json"),
        }[match[2]]
        return match[1] + make(json.loads((ROOT / place).read_text(encoding="utf-8"))) + match[3]

    def paper(match: re.Match[str]) -> str:
        make = {
            "experiment": beside_the_paper,
            "paired": behind_the_best,
            "curve": curve,
            "learnt": learnt,
            "directions": directions,
            "claims": claims,
        }[match[2]]
        return match[1] + make(experiments.load(match[3])) + match[4]

    def learnt_on(match: re.Match[str]) -> str:
        paths = sorted((ROOT / match[3]).glob("*/record.json"))
        make = {"features": features, "task-confusion": task_confusion, "runs": runs}[match[2]]
        return match[1] + make([RunRecord.load(path) for path in paths]) + match[4]

    page = LEARNT.sub(learnt_on, page)
    page = STUDIES.sub(lambda match: match[1] + studies(ROOT / match[2]) + match[3], page)
    return PAPER.sub(paper, FIGURES.sub(figures, TABLE.sub(table, page)))


def paper_records() -> list[RunRecord]:
    """Return the records of the runs that repeat the paper."""
    folders = (ROOT / "results" / name for name in ("paper", "natural-order"))
    paths = [path for folder in folders for path in sorted(folder.glob("*/record.json"))]
    return [RunRecord.load(path) for path in paths]


REPEATED = {None: "-", "repeated": "yes", "not repeated": "**no**", "open": "open"}


def beside_the_paper(experiment: experiments.Experiment) -> str:
    """Return measured and published figures of an experiment, and the lines without a record."""
    heads = ["", "ACC %", "BWT", "paper ACC %", "paper BWT", "difference", "repeated"]
    heads += ["minutes", "kept, MB"]
    records = paper_records()
    found = experiment.records(records, RECIPE)
    compared = compare(experiment, records, RECIPE)
    sized = any(row.capacity.published for row in compared)
    rows = [heads + ["size %", "paper size %"] * sized]
    for row in (row for row in compared if row.seeds):
        ended = [record for record in found[row.label] if record.complete]
        taken = [record.seconds.total / 60 for record in ended]
        sizes = row.capacity.mean, row.capacity.published
        rows.append(
            [
                row.label,
                measured(row.accuracy),
                measured(row.transfer, signed=True),
                number(row.accuracy.published),
                number(row.transfer.published, signed=True),
                number(row.accuracy.difference, signed=True),
                REPEATED[row.verdict],
                f"{sum(taken) / len(taken):.0f}" if taken else "-",
                f"{statistics.fmean(record.memory_bytes for record in ended) / 1e6:.1f}",
                *([f"{size:.0f}" if size else "-" for size in sizes] * sized),
            ]
        )
    return markdown_table(rows) + not_run([row.label for row in compared if not row.seeds])


def behind_the_best(experiment: experiments.Experiment) -> str:
    """Return what each line of several seeds lacks to the best one, paired by seed."""
    rows = [row for row in compare(experiment, paper_records(), RECIPE) if len(row.seeds) > 1]
    ones = [row for row in rows if not METHODS[row.method].joint]
    if not ones:
        return "No line has several seeds yet.\n"
    best = max(ones, key=lambda row: row.accuracy.mean or 0)
    heads = ["", "seeds", f"ACC less that of {best.label}, with its 95 % interval"]
    lines = []
    for row in rows:
        ahead = row.ahead_of(best)
        if row is not best and ahead:
            lines.append([row.label, str(ahead.count), ahead.text()])
    return markdown_table([heads, *lines])


# Lines of the experiment `components`; base refining and contrast in the reading of the recipe.
GPM, PLAIN, BR, BR_CON = "GPM", "CGP", "CGP + BR, released", "CGP + BR + Con, released"
LEAST = 10  # classes


def claims(experiment: experiments.Experiment) -> str:
    """Return what the paper says beside what its lines show, as means over their seeds."""
    rows = {row.label: row for row in compare(experiment, paper_records(), RECIPE)}
    found = experiment.records(paper_records(), RECIPE)

    def accuracy(label: str) -> tuple[str, str]:
        row = rows[label].accuracy
        return number(row.published), measured(row)

    def transfer(label: str) -> tuple[str, str]:
        row = rows[label].transfer
        return number(row.published, signed=True), measured(row, signed=True)

    def mean(label: str, of: Callable[[RunRecord], float | None]) -> tuple[str, str]:
        values = [of(record) for record in found[label] if record.complete]
        known = [value for value in values if value is not None]
        return "", number(statistics.fmean(known)) if known else "-"

    def task_free(label: str) -> tuple[str, str]:
        return mean(label, lambda record: record.average_accuracy_task_free)

    def megabytes(label: str) -> tuple[str, str]:
        return mean(label, lambda record: record.memory_bytes / 1e6)

    def forgotten(label: str) -> tuple[str, str]:
        return mean(label, least_kept)

    lines = [
        ("projection preserves what was learnt: BWT", ("finetune", GPM, BR_CON), transfer),
        ("CGP is better than GPM: ACC", (GPM, BR, BR_CON), accuracy),
        ("base refining helps: ACC", (PLAIN, BR), accuracy),
        ("the contrastive loss helps: ACC", (BR, BR_CON), accuracy),
        ("the task is not needed: ACC without it, by confidence", (GPM, BR_CON), task_free),
        ("capacity stays 100 %: MB kept beside the network", (GPM, PLAIN, BR), megabytes),
        (
            f"bases of whole tasks let some classes forget: change of the {LEAST} classes that "
            "lose most",
            (GPM, PLAIN, BR),
            forgotten,
        ),
    ]
    table = [["the paper says", "paper", "here"]]
    for what, labels, of in lines:
        figures = {label.removesuffix(", released"): of(label) for label in labels}
        published, here = (
            "; ".join(f"{label}: {one[place]}" for label, one in figures.items() if one[place])
            for place in (0, 1)
        )
        table.append([what, published or "-", here])
    return markdown_table(table)


def least_kept(record: RunRecord) -> float | None:
    """Return the mean change of accuracy of the classes that lose most after they were learnt."""
    changes = [
        now - then
        for task in record.classes[:-1]
        for then, now in zip(task.learnt, task.final, strict=True)
        if then is not None and now is not None
    ]
    return statistics.fmean(sorted(changes)[:LEAST]) if changes else None


def not_run(labels: list[str]) -> str:
    """Return a sentence that names the lines without a record, if there are any."""
    return f"\nNot run: {'; '.join(labels)}.\n" if labels else ""


def finished(experiment: experiments.Experiment) -> dict[str, RunRecord]:
    """Return the record of each line's first complete seed; joint methods are left out."""
    found = experiment.records(paper_records(), RECIPE)
    ended = {label: [r for r in rs if r.complete] for label, rs in found.items()}
    first = {label: min(rs, key=lambda r: r.seed) for label, rs in ended.items() if rs}
    return {label: r for label, r in first.items() if r.accuracy_matrix[0][0]}


def curve(experiment: experiments.Experiment) -> str:
    """Return the average accuracy after each task."""
    records = finished(experiment)
    count = max(len(record.tasks) for record in records.values())
    rows = [["after task", *(str(task + 1) for task in range(count))]]
    for label, record in records.items():
        means = [
            sum(value for value in row if value is not None) / (task + 1)
            for task, row in enumerate(record.accuracy_matrix)
        ]
        rows.append([label, *(f"{mean:.1f}" for mean in means), *[""] * (count - len(means))])
    return markdown_table(rows)


def learnt(experiment: experiments.Experiment) -> str:
    """Return the mean accuracy on later tasks right after each was learnt, and at the end."""
    rows = [["", "first task", "later tasks, when learnt", "later tasks, at the end"]]
    for label, record in finished(experiment).items():
        then, now = when_learnt(record), [value or 0.0 for value in record.accuracy_matrix[-1]]
        figures = (then[0], statistics.mean(then[1:]), statistics.mean(now[1:]))
        rows.append([label, *(number(value) for value in figures)])
    return markdown_table(rows)


def when_learnt(record: RunRecord) -> list[float]:
    """Return the accuracy on each task right after it was learnt."""
    return [row[task] or 0.0 for task, row in enumerate(record.accuracy_matrix)]


def directions(experiment: experiments.Experiment) -> str:
    """Return the rank of each layer's basis, its dimension, and the accuracy on the tasks."""
    ended = finished(experiment)
    records = {label: record for label, record in ended.items() if record.layers}
    first = next(iter(records.values()))
    sizes = [f"{layer.name}, of {layer.dimension:,}" for layer in first.layers]
    rows = [["", *sizes, "later tasks, when learnt", "ACC %", "BWT"]]
    for label, record in records.items():
        ranks = [f"{layer.ranks[-1]:,}" for layer in record.layers]
        accuracies = (statistics.mean(when_learnt(record)[1:]), record.average_accuracy)
        transfer = number(record.backward_transfer, signed=True)
        rows.append([label, *ranks, *(number(value) for value in accuracies), transfer])
    return markdown_table(rows) + not_run(
        [x.label for x in experiment.lines if x.label not in ended]
    )


def faults(found: dict[str, Any]) -> str:
    """Return a table of where runs of each method were killed, and how many ended differently."""
    methods = found["methods"]
    places = list(next(iter(methods.values()))["kills"])
    rows = [["method", *places, "ended differently"]]
    rows += [[name, *one["kills"].values(), one["wrong"]] for name, one in methods.items()]
    sums = [sum(one["kills"][place] for one in methods.values()) for place in places]
    rows.append(["all", *sums, sum(one["wrong"] for one in methods.values())])
    return markdown_table(rows)


def fuzz(found: dict[str, Any]) -> str:
    """Return a table of how many damaged files of each kind were read, and how many refused."""
    rows = [["file", "inputs", "read", "refused in one line"]]
    for name, one in found["targets"].items():
        counts = [one["read"] + one["refused"], one["read"], one["refused"]]
        rows.append([name, *(f"{count:,}" for count in counts)])
    return markdown_table(rows)


def interop(found: dict[str, Any]) -> str:
    """Return a table of what guarded models of other packages keep and learn."""
    runs = ("unguarded", "near", "exact")
    rows = [["model", "old logits move: unguarded", "ε = 0.99", "ε = 1", "share of the bound"]]
    rows[0] += ["new task, in steps: unguarded", "ε = 0.99", "ε = 1"]
    for name, one in found["models"].items():
        rows.append([name, *(f"{one[f'{run} leak']:.2g}" for run in runs)])
        rows[-1].append(f"{one['share of the bound']:.2f}")
        for run in runs:
            learnt, steps = one[f"{run} accuracy"], one[f"{run} steps"]
            rows[-1].append(f"{100 * learnt:.0f} % in {steps:.0f}")
    return markdown_table(rows)


def uncounted(found: dict[str, Any]) -> str:
    """Return a table of what is kept where strong directions do not count for ε."""
    rows: list[list[Any]] = [["model", "strongest channel", "`uncounted`", "protected directions"]]
    rows[0] += ["old logits move", "new task"]
    for name, model in found["uncounted"].items():
        for count, one in model.items():
            learnt = f"{100 * one['accuracy']:.0f} % in {one['steps']} steps"
            strongest = f"{100 * one['strongest channel']:.0f} %"
            rows.append([name, strongest, count, one["rank"], f"{one['leak']:.2g}", learnt])
    return markdown_table(rows)


def guards(found: dict[str, Any]) -> str:
    """Return a table for each model and number of tasks: what contenders keep, and their cost."""
    heads = ["", "settings, learning rate", "new tasks %", "target reached", "steps per task"]
    heads += ["old tasks %, when learnt", "at the end", "outputs of layers move"]
    heads += ["update along protected", "time of a step", "peak MB", "numbers kept"]
    tables: dict[tuple[str, int], list[list[str]]] = {}
    for row in found["rows"]:
        outcomes = row["outcomes"]
        old = {
            key: [100 * statistics.mean(one[key][:-1]) for one in outcomes]
            for key in ("when_learnt", "at_end")
        }
        new = statistics.mean(statistics.mean(one["when_learnt"][1:]) for one in outcomes)
        reached = [value for one in outcomes for value in one["reached"]]
        steps = statistics.mean(count for one in outcomes for count in one["steps"])
        inside = [one["inside"] for one in outcomes if one["inside"] is not None]
        settings = [f"{name} {value:g}" for name, value in row["settings"].items()]
        ended = f"{statistics.mean(old['at_end']):.1f} ({min(old['at_end']):.1f} to "
        tables.setdefault((row["model"], row["tasks"]), [heads]).append(
            [
                row["contender"] + (f" ({row['note']})" if row["note"] else ""),
                ", ".join([*settings, f"{row['rate']:g}"]),
                f"{100 * new:.1f}",
                f"{sum(reached)} of {len(reached)}",
                f"{steps:.0f}",
                f"{statistics.mean(old['when_learnt']):.1f}",
                ended + f"{max(old['at_end']):.1f})",
                f"{statistics.mean(one['moved'] for one in outcomes):.3f}",
                f"{max(inside):.2g}" if inside else "-",
                f"{row['time per step']:.2f}",
                f"{row['peak']['step'] / 1e6:.2f}",
                f"{statistics.mean(one['kept'] for one in outcomes):,.0f}",
            ]
        )
    text = "\n".join(
        f"**{model}, {count} tasks**\n\n{markdown_table(rows)}"
        for (model, count), rows in tables.items()
    )
    planned = [(model, count) for model in ("transformer", "CNN") for count in (2, 5)]
    return text + not_run(
        [f"{model}, {n} tasks" for model, n in planned if (model, n) not in tables]
    )


def speed(found: dict[str, Any], other: str = "reference") -> str:
    """Return a table of everything `make bench` measured."""
    rows = [["what", "ours", other, "ratio", "required", "reached"]]
    for row in (row for part in found["measurements"].values() for row in part):
        beside = quantity(row["reference"]) if row["reference"] else "-"
        ratio = f"{float(format(row['figure'], '.3g')):,g}" if row["reference"] else "-"
        reached = {True: "yes", False: "**no**", None: "-"}[row["reached"]]
        rows.append(
            [row["what"], quantity(row["ours"]), beside, ratio, row["required"] or "-", reached]
        )
    return markdown_table(rows)


def peers(found: dict[str, Any]) -> str:
    """Return a table of everything `make peers` measured."""
    return speed(found, other="peer")


def quantity(found: dict[str, Any]) -> str:
    """Return a number in a unit that keeps it easy to read."""
    value, unit = found["value"], found["unit"]
    scale = {"s": [(1, "s"), (1e-3, "ms"), (1e-6, "µs")], "flop/s": [(1e9, "GFlop/s")]}
    scales = scale.get(unit, [(1, unit)])
    factor, name = next((one for one in scales if value >= one[0]), scales[-1])
    return f"{value / factor:.3g} {name}"


def saving(found: dict[str, Any]) -> str:
    """Return a table of the cost of saving."""
    rows = [["what", "seconds", "compared with", "share", "required"]]
    for row in found["measurements"]["saving"]:
        values = [row["ours"]["value"], row["reference"]["value"], row["figure"]]
        rows.append([row["what"], *(f"{value:.2g}" for value in values), row["required"]])
    return markdown_table(rows)


def memory(found: dict[str, Any]) -> str:
    """Return a table of the memory of every method, in MB, the smallest peak first."""
    rows = [["method", "peak", "kept between tasks", "weights", "required", "reached"]]
    peaks = {name: (one["peak"] - one["before"]) / 1e6 for name, one in found["methods"].items()}
    for name, peak in sorted(peaks.items(), key=lambda pair: pair[1]):
        one, limit = found["methods"][name], found["limits"].get(name)
        kept, weights = (f"{one[key] / 1e6:.0f}" for key in ("kept", "parameters"))
        required = f"<= {limit}" if limit else "-"
        reached = "-" if limit is None else "yes" if peak <= limit else "**no**"
        rows.append([name, f"{peak:.0f}", kept, weights, required, reached])
    return markdown_table(rows)


def sentences(found: dict[str, Any]) -> str:
    """Return a table of what a learner makes of sentences, beside the goals."""
    goals = found["goals"]
    rows = [["CLINC150 in ten tasks, task unknown", "", "goal", "reached"]]

    def row(
        what: str, value: float, form: str, bound: float | None = None, below: bool = False
    ) -> None:
        goal, reached = "-", "-"
        if bound is not None:
            goal = f"{'<=' if below else '>='} {form.format(bound)}"
            reached = "yes" if (value <= bound if below else value >= bound) else "**no**"
        rows.append([what, form.format(value), goal, reached])

    for part, title in (("frozen", "frozen"), ("tuned", "last two blocks tuned under CGP")):
        if part not in found:
            rows.append([title, "not measured", "-", "-"])
            continue
        one = found[part]["figures"]
        row(f"{title}: accuracy", one["accuracy"], "{:.1f} %", goals[part])
        if part == "frozen":
            row("the tasks in reverse: accuracy", one["reversed"], "{:.1f} %", goals[part])
            row(
                "most that the order of tasks changes a probability by",
                one["order changes probabilities by"],
                "{:.0e}",
                goals["order"],
                below=True,
            )
            row("nearest class mean instead, by cosine", one["nearest mean"], "{:.1f} %")
        row(
            f"{title}: area under the curve, intents against none",
            one["no intent"] / 100,
            "{:.3f}",
            goals["no intent"] / 100,
        )
        row(
            "intents called none of these, with `--unknown 0.05`",
            one["refused at 0.05"],
            "{:.1f} %",
        )
        row("sentences of no intent called none of these", one["found at 0.05"], "{:.1f} %")
        minutes = goals["minutes"][part]
        row(f"{title}: minutes of one core", one["of a core"] / 60, "{:.1f}", minutes, below=True)
        row(
            f"the same by the clock, load {found[part]['machine']['load']:.0f}",
            one["seconds"] / 60,
            "{:.1f}",
        )
        if "milliseconds" in one:
            took = one["milliseconds"]
            row(
                "one sentence, milliseconds of one core",
                took["median of a core"],
                "{:.1f}",
                goals["milliseconds"],
                below=True,
            )
            row("the same by the clock", took["median"], "{:.1f}")
    return markdown_table(rows)


def tuned_sentences(found: dict[str, Any]) -> str:
    """Return a table of ways to tune the last blocks, task after task."""
    heads = ["", "settings, learning rate", "no task %", "task known %", "first task, no task %"]
    heads += ["no intent: area", "features of the first task move", "minutes of one core"]
    rows = [heads]
    names = [name for name in found if name not in ("goals", "frozen", "tuned")]
    for name in names:
        one = found[name]["figures"]
        settings = [f"{key} {value:g}" for key, value in one["settings"].items()]
        rows.append(
            [
                name,
                ", ".join([*settings, f"{one['rate']:g}"]) if one["rate"] else "-",
                f"{one['test']:.1f}",
                f"{one['with_task']:.1f}",
                f"{one['first']:.1f}",
                f"{one['no_intent'] / 100:.3f}",
                f"{one['moved']:.1f} %",
                f"{one['of_a_core'] / 60:.1f}",
            ]
        )
    planned = ["frozen blocks", "no guard", "EWC", "PEFT's OSF", "PEFT's LoRA", "guard, CGP"]
    planned += ["guard, GPM", "all tasks at once"]
    return markdown_table(rows) + not_run([name for name in planned if name not in names])


def runs(records: list[RunRecord]) -> str:
    """Return a table of runs, if there are any."""
    return markdown(records) if records else NOT_RUN


def features(records: list[RunRecord]) -> str:
    """Return a table of pretrained features that learn on, beside those that stay as they are."""
    heads = ["", "photos of each class", "pixels", "learning rate", "seeds", "with the task %"]
    heads += ["BWT", "without, by statistics %", "more than as they are"]
    if not records:
        return NOT_RUN
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in records:
        options = record.network_options
        data = record.benchmark_options["train_per_class"], options["size"]
        fixed = not options["trainable"]
        kind = (0, "features as they are") if fixed else (1, record.method_name)
        rate = None if fixed else record.training["learning_rate"]
        groups.setdefault((data, kind, rate), []).append(record)
    still = {
        (data, record.seed): record.average_accuracy_task_free_statistics or 0.0
        for (data, kind, _), group in groups.items()
        for record in group
        if not kind[0]
    }
    rows = [heads]
    ordered = sorted(groups, key=lambda one: (one[0][0] or 10**9, one[0][1], one[1], one[2] or 0.0))
    for data, kind, rate in ordered:
        group = groups[data, kind, rate]
        figures = [
            mean_std(getattr(one, name) for one in group)
            for name in ("average_accuracy", "average_accuracy_task_free_statistics")
        ]
        transfer = mean_std(one.backward_transfer for one in group)
        gains = mean_std(
            (one.average_accuracy_task_free_statistics or 0.0) - still[data, one.seed]
            for one in group
            if kind[0] and (data, one.seed) in still
        )
        rows.append(
            [
                kind[1],
                str(data[0] or "all"),
                str(data[1]),
                "-" if rate is None else f"{rate:g}",
                ", ".join(str(one.seed) for one in sorted(group, key=lambda one: one.seed)),
                figures[0].text() if figures[0] else "-",
                transfer.text(signed=True) if transfer else "-",
                figures[1].text() if figures[1] else "-",
                gains.text(signed=True) if gains else "-",
            ]
        )
    return markdown_table(rows)


def task_confusion(records: list[RunRecord]) -> str:
    """Return the picture of the tasks that are taken for each other, if a record has them."""
    if not any(record.task_confusion for record in records):
        return ""
    script = runpy.run_path(str(ROOT / "docs" / "figures" / "make_confusion.py"))
    found = script["recorded"]()
    before, after = (script["right_task"](found, way) for way in ("confidence", "statistics"))
    return (
        "![Two matrices of tasks: by confidence answers scatter over all tasks, by statistics "
        f"most are on the diagonal](figures/{script['FILE']})\n\n"
        f"*The test photos of each task (row) by the task of their answer, in per cent. By "
        f"confidence {before:.0f} % of the answers are of the right task, by statistics "
        f"{after:.0f} %. Drawn by [make_confusion.py](figures/make_confusion.py).*\n"
    )


def photos(found: dict[str, Any]) -> str:
    """Return a table of what a learner makes of photos without the task, beside the goals."""
    twelve, forty, hundred, speed = (
        found[part]["figures"] for part in ("twelve", "forty", "hundred", "speed")
    )
    rows = [["photos of CIFAR-100, task unknown", "", "goal", "reached"]]

    def row(
        what: str, value: float, form: str, bound: float | None = None, below: bool = False
    ) -> None:
        goal, reached = "-", "-"
        if bound is not None:
            goal = f"{'<=' if below else '>='} {form.format(bound)}"
            reached = "yes" if (value <= bound if below else value >= bound) else "**no**"
        rows.append([what, form.format(value), goal, reached])

    row("12 classes in 3 tasks, 54 photos each: accuracy", twelve["accuracy"], "{:.1f} %", 80)
    row("the same, as `learn` printed it", twelve["accuracy_printed"], "{:.1f} %")
    row("seconds for the three `learn`", twelve["seconds"], "{:.0f}", 60, below=True)
    row(
        "known photos called none of these, with `--unknown 0.05`",
        twelve["known_refused"],
        "{:.1f} %",
        5,
        below=True,
    )
    row(
        "photos of the 88 other classes called none of these", twelve["unknown_refused"], "{:.1f} %"
    )
    row("area under the curve, known against the 88", twelve["area_under_curve"], "{:.3f}", 0.85)
    row(
        "the same, against near ones: classes of the same superclass", twelve["area_near"], "{:.3f}"
    )
    row("the same, against far ones", twelve["area_far"], "{:.3f}")
    row(
        "of the 88, taken for known where 95 % of the known are",
        twelve["unknown_accepted_at_95"],
        "{:.1f} %",
    )
    row("80 classes in 40 tasks, 54 photos each: accuracy", forty["accuracy"], "{:.1f} %", 55)
    row("milliseconds to predict one photo after them", forty["milliseconds_per_photo"], "{:.0f}")
    row("the same after one task", forty["milliseconds_after_one_task"], "{:.0f}")
    row("size of the state", forty["state_megabytes"], "{:.0f} MB", 30, below=True)
    row("a photo of 12 megapixels, milliseconds", speed["large_milliseconds"], "{:.0f}", 60, True)
    row("1,000 of them, per second", speed["large_per_second"], "{:.0f}", 40)
    row("1,000 thumbnails, per second", speed["thumbnail_per_second"], "{:.0f}", 60)
    row("100 classes in 10 tasks, all photos: accuracy", hundred["accuracy"], "{:.1f} %", 66.5)
    row("the same features, nearest class mean", hundred["nearest_mean"], "{:.1f} %")
    row("the same, Deep_SLDA", hundred["deep_slda"], "{:.1f} %")
    row(
        "the same, Deep_SLDA with the classes in reverse", hundred["deep_slda_reversed"], "{:.1f} %"
    )
    row("the same, RanPAC with 4,000 random features", hundred["ranpac"], "{:.1f} %")
    if "lifted" in hundred:
        what = "the same, a ridge on 4,000 random features of square roots, chosen from sums"
        row(what, hundred["lifted"], "{:.1f} %")
    row(
        "largest change of our scores in reverse",
        hundred["order_changes_scores_by"],
        "{:.0e}",
        1e-9,
        below=True,
    )
    blocks = found.get("blocks", {}).get("figures", {})
    for name, values in blocks.items():
        how = "layers as they are" if name == "none" else f"last blocks learn, {name}"
        what = f"12 classes in 3 tasks, training photos that were not learnt: {how}"
        row(what, statistics.fmean(values), "{:.1f} %")
    return markdown_table(rows)


def trust(found: dict[str, Any]) -> str:
    """Return a table of what is promised of answers, files and memory, beside the goals."""
    threads, exported, files = (found[part]["figures"] for part in ("threads", "exported", "files"))
    rows = [["", "measured", "goal", "reached"]]

    def count(what: str, value: int, of: int, goal: int = 0) -> None:
        reached = "yes" if value == goal else "**no**"
        rows.append([what, f"{value} of {of}", str(goal), reached])

    def figure(what: str, value: str) -> None:
        rows.append([what, value, "-", "-"])

    for name, network in (
        ("default", "the default network"),
        ("own layers", "a network with norms of each task"),
    ):
        one = threads[name]
        for key, how in (("with_task", "task given"), ("without_task", "task unknown")):
            what = f"three threads, {network}, {how}: other answers than one thread has"
            count(what, one[key]["differing"], one[key]["answers"])
        learning = one["while_learning"]
        what = f"a frozen copy, {network}, while the learner learns: other answers than before"
        count(what, learning["differing"], learning["answers"])
    for suffix, one in exported.items():
        count(f"exported as `{suffix}`: photos with another class", one["differing"], one["photos"])
        figure("the same: largest change of a probability", f"{one['probabilities_differ_by']:.0e}")
    for megapixels, one in files["large"].items():
        figure(
            f"a JPEG of {megapixels} megapixels ({one['file_megabytes']:.0f} MB): processor time",
            f"{one['processor_milliseconds']:.0f} ms",
        )
        figure(
            "the same: peak of memory, on top of the learner's", f"{one['peak_megabytes']:.1f} MB"
        )
    batch = files["batch"]
    sound = batch["files"] - batch["damaged"]
    what = f"{batch['files']} files, {batch['damaged']} damaged: rows with an answer"
    count(what, batch["answers"], batch["rows"], sound)
    count("the same: rows that say why there is none", batch["reasons"], batch["rows"], 1)
    count("the same: other answers than without the damaged file", batch["differing"], sound)
    return markdown_table(rows)


def printed(found: dict[str, Any]) -> str:
    """Return a table of printed accuracies beside those on test photos, for each draw."""
    heads = ["photos", "printed", "interval", "of images", "test photos", "inside the interval"]
    rows = [[*heads, "weakest class: printed", "test photos"]]
    for key, what in (("sizes", "500, 500, 5 and 5"), ("scenes", "3 scenes of 5 shots")):
        for draw in found["printed"]["figures"][key]:
            said, accuracy = draw["printed"], draw["accuracy"]
            inside = "yes" if said and said["low"] <= accuracy <= said["high"] else "**no**"
            cells = ["-", "-", "-"]
            if said:
                interval = f"{said['low']:.0f} to {said['high']:.0f}"
                cells = [f"{said['accuracy']:.1f} %", interval, str(said["samples"])]
            recalls, weakest = draw["printed_recalls"], ["-", "-"]
            if recalls:
                name = min(recalls, key=recalls.get)
                weakest = [f"{share[name]:.0f} %" for share in (recalls, draw["recalls"])]
            rows.append([what, *cells, f"{accuracy:.1f} %", inside if said else "-", *weakest])
    return markdown_table(rows)


def remains(found: dict[str, Any]) -> str:
    """Return a table of what attacks find of a class: learnt, forgotten, and with its images."""
    sizes = found["forgetting"]["figures"]
    heads = ["attack", "chance", *(f"{one['classes']} x {one['photos']}" for one in sizes)]
    rows = [heads]
    for attack, what, chance in (
        ("nearest", "of 100 photos, the member is nearest to the class mean", "1 %"),
        ("mean", "a member is nearer to the class mean than another photo", "0.50"),
        ("kept", "a member is more like an embedding that is kept", "0.50"),
        ("covariance", "a member is closer to what the shared covariance spans", "0.50"),
        ("covariance_of_pairs", "the same of the difference of two members", "0.50"),
        ("digests", "the digest of a member is in the state", "0 %"),
        ("digests_of_others", "the digest of another photo is in the state", "0 %"),
        ("task_digest", "of 10 photos, the one that completes a task is found", "10 %"),
        ("said_to_stay", "`forget` says that something of its photos stays", "0 %"),
    ):
        cells = []
        for one in sizes:
            states = ("before", "forgotten", "forgotten with images")
            values = [one[key].get(attack) for key in states]  # older records lack some
            shown = [
                f"{100 * x:.0f}" if "%" in chance else f"{x:.2f}" for x in values if x is not None
            ]
            cells.append(", ".join(shown) + " %" * ("%" in chance) if shown else "-")
        rows.append([what, chance, *cells])
    return markdown_table(rows)


def masks(found: dict[str, Any]) -> str:
    """Return how many units a task of HAT uses, and how many training has switched."""
    layers = found["rates"][0]["layers"]
    rows = [
        ["`embedding_rate`", *(f"{one['name']}, of {one['units']:,}" for one in layers), "ACC %"]
    ]
    rows.append(["untrained", *(f"{one['untrained']:,}" for one in layers), ""])
    for rate in found["rates"]:
        used = [f"{one['used']:,} ({one['switched']:,})" for one in rate["layers"]]
        rows.append([f"{rate['embedding_rate']:g}", *used, f"{rate['accuracy']:.1f}"])
    return markdown_table(rows)


def studies(folder: Path) -> str:
    """Return a table of studies of one setting: a row for each method, the choice in bold."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    (setting,) = {name for study in found for name in study["grid"]}
    values = sorted({value for study in found for value in study["grid"][setting]})
    rows = [["", *(f"{value:g}" for value in values)]]
    for study in found:
        means = {point["values"][setting]: point["accuracy_mean"] for point in study["points"]}
        figures = {
            value: "" if means.get(value) is None else f"{means[value]:.1f}" for value in values
        }
        figures[study["choice"][setting]] = f"**{figures[study['choice'][setting]]}**"
        rows.append([study["method"], *figures.values()])
    return markdown_table(rows)


def free(found: dict[str, Any]) -> str:
    """Return a table of the share of new inputs' energy outside the bases after one task."""
    names = [layer["name"] for layer in found["lines"][0]["layers"]]
    rows = [["", *names]]
    for line in found["lines"]:
        shares = [f"{100 * x['next']:.1f} ({100 * x['own']:.1f})" for x in line["layers"]]
        rows.append([line["label"], *shares])
    return markdown_table(rows)


def forecast(found: dict[str, Any]) -> str:
    """Return a table of the factors that forecasts of free rank are off by, and their ranges."""
    heads = ["tasks known", "cases", "straight line", "forecast", "range"]
    tuning = ["cases (tuning)", "straight line", "forecast"]
    rows = [[*heads, *tuning]]
    errors = found["errors"]
    for stage, (low, high) in found["ranges"].items():
        line, ours = errors["linear"][stage], errors["forecast"][stage]
        other, ours_other = errors["linear, tuning"][stage], errors["forecast, tuning"][stage]
        rows.append(
            [
                *(stage, str(ours["cases"]), f"{line['factor']:.2f}", f"{ours['factor']:.2f}"),
                *(f"{low:.2f} to {high:.2f}", str(other["cases"])),
                *(f"{other['factor']:.2f}", f"{ours_other['factor']:.2f}"),
            ]
        )
    return markdown_table(rows)


def readings(found: dict[str, Any]) -> str:
    """Return a table of the directions after one task, the energy left free, and the groups."""
    names = [f"{layer['name']}, of {layer['dimension']:,}" for layer in found["lines"][0]["layers"]]
    rows = [["", *names]]
    for line in found["lines"]:
        cells = []
        for layer in line["layers"]:
            several = "+".join(map(str, layer.get("ranks", [])))
            groups = layer.get("groups")
            more = f", {groups} groups" if groups and groups > 1 else ""
            cells.append(f"{several or layer['rank']} ({100 * layer['next']:.1f}{more})")
        rows.append([line["label"], *cells])
    return markdown_table(rows)


if __name__ == "__main__":
    for path in (ROOT / "docs").rglob("*.md"):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
