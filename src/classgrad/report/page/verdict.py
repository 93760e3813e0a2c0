"""What the runs on a benchmark say, in sentences: who wins, is a paper repeated, at what cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from classgrad.report.page.summary import Row, Section, differences
from classgrad.report.text import duration, size
from classgrad.runs.intervals import interval
from classgrad.runs.record import mean_std

GROWN = 105  # capacity, per cent
FEW = 5  # lines whose order is written out


@dataclass(frozen=True)
class Fact:
    """A figure of the best line, and what it means."""

    title: str
    value: str
    note: str


def headline(section: Section) -> str:
    """Return one sentence: which method wins, by how much, and over how many seeds."""
    if not section.competing:
        return _without_a_winner(section)
    best, second = section.competing[0], _second(section)
    accuracy = _accuracy(best)
    if second is None:
        return f"{best.label} reaches {accuracy}{_over(best)}."
    each = differences(best, second)
    ahead = mean_std(each)
    if ahead is None:
        return f"{best.label} is first with {accuracy}, but has no seed in common with the others."
    if round(ahead.mean, 1) <= 0:
        return f"{best.label} and {second.label} are level at {accuracy}{_chance(each)}."
    points = f"{ahead.mean:.1f} {'point' if round(ahead.mean, 1) == 1 else 'points'}"
    within = interval(each)
    verb = "wins" if within and within.low > 0 else "is first"
    sentence = f"{best.label} {verb} with {accuracy}, {points} ahead of {second.label}"
    return f"{sentence}{_chance(each)}{_other_budget(best, second)}."


def _second(section: Section) -> Row | None:
    """Return the line that the winner is compared with: of another method if there is one."""
    best, *rest = section.competing
    others = [row for row in rest if row.method != best.method]
    return next(iter(others or rest), None)


def winner(section: Section) -> str:
    """Return the best line and its accuracy, for a list of benchmarks."""
    row = next(iter(section.competing), None)
    return f"{row.label}, {_accuracy(row)}" if row else ""


def _without_a_winner(section: Section) -> str:
    first = section.rows[0]
    if not first.complete:
        return "No run has finished yet: figures are of the tasks learnt so far."
    if first.accuracy is None:
        return f"{first.label} has finished, and has no accuracy."
    return f"{first.label} reaches {_accuracy(first)}{_over(first)}."


def _over(row: Row) -> str:
    return " with one seed" if len(row.seeds) == 1 else f" over {len(row.seeds)} seeds"


def _chance(each: Sequence[float]) -> str:
    if len(each) == 1:
        return ", with one seed each"
    won = sum(difference > 0 for difference in each)
    return f", on {won} of {len(each)} seeds"


def _how_sure(section: Section) -> str:
    """Return the interval of the winner's lead, and whether seeds are too few to tell."""
    second = _second(section) if section.competing else None
    if second is None:
        return ""
    lead = interval(differences(section.competing[0], second))
    if lead is None or round(lead.mean, 1) <= 0:
        return ""
    sentence = f"The lead lies between {lead.ends.replace(' to ', ' and ')} points at 95 %"
    return f"{sentence}." if lead.low > 0 else f"{sentence}: too close to tell."


def _other_budget(best: Row, second: Row) -> str:
    one, two = best.budget.length, second.budget.length
    return f", but with {one} against {two}" if one != two else ""


def _accuracy(row: Row) -> str:
    """Return ACC with its unit, not to be broken between lines."""
    return f"{row.accuracy.text()} %".replace(" ", "\u00a0") if row.accuracy else "–"


def remarks(section: Section) -> list[str]:
    """Return more sentences: the lead, bounds, growth, the paper's order, and the budget."""
    sentences = [_how_sure(section), _bounds(section), _growth(section)]
    sentences += [*_paper_order(section), _budget(section)]
    return [sentence for sentence in sentences if sentence]


def _bounds(section: Section) -> str:
    if not section.competing:
        return ""
    parts = [
        f"{row.label} ({row.bound}) {_accuracy(row)}"
        for row in section.best
        if row.bound and row.accuracy
    ]
    return f"For comparison: {', '.join(parts)}." if parts else ""


def _growth(section: Section) -> str:
    """Say so if the winner's network has grown, and which is the best of those that have not."""
    sizes = [(row, row.of("capacity")) for row in section.competing]
    if not sizes or not sizes[0][1] or sizes[0][1].mean < GROWN:
        return ""
    best = next((row for row, capacity in sizes if not capacity or capacity.mean < GROWN), None)
    sentence = f"{sizes[0][0].label} stores {sizes[0][1].mean:.0f} % of the network's parameters"
    if best is None:
        return f"{sentence}."
    others = f"of those that stay below {GROWN} %, {best.label} is first"
    return f"{sentence}; {others}: {_accuracy(best)}."


def _paper_order(section: Section) -> list[str]:
    """Say whether lines are in the order that a paper has them in."""
    published = [
        (row.papers[0].line.accuracy or 0.0, row)
        for row in section.rows
        if row.complete and row.accuracy and row.papers and row.method not in ("multitask", "stl")
    ]
    published.sort(key=lambda pair: -pair[0])
    sentences = []
    pairs = [(a, b) for a, b in combinations(published, 2) if a[0] != b[0]]
    swapped = [(a, b) for a, b in pairs if _mean(a[1]) < _mean(b[1])]
    order = [f"{row.label} ({value:.1f})" for value, row in published]
    if not pairs:
        pass
    elif not swapped:
        lines = f": {', '.join(order)}" if len(order) <= FEW else f" of all {len(order)} lines"
        sentences.append(f"The paper's order is repeated{lines}.")
    elif len(order) <= FEW:
        here = sorted((row for _, row in published), key=_mean, reverse=True)
        names = ", ".join(f"{row.label} ({_mean(row):.1f})" for row in here)
        sentences.append(
            f"The paper's order is not repeated: it has {', '.join(order)}; here it is {names}."
        )
    else:
        one, two = max(swapped, key=lambda pair: pair[0][0] - pair[1][0])
        sentences.append(
            f"The paper's order is repeated in {len(pairs) - len(swapped)} of {len(pairs)} pairs "
            f"of lines. The clearest exception: there {one[1].label} ({one[0]:.1f}) is before "
            f"{two[1].label} ({two[0]:.1f}), here they have {_mean(one[1]):.1f} and "
            f"{_mean(two[1]):.1f}."
        )
    return [*sentences, *_not_run(section, published)]


def _mean(row: Row) -> float:
    return row.accuracy.mean if row.accuracy else 0.0


def _not_run(section: Section, published: Sequence[tuple[float, Row]]) -> list[str]:
    """Say so if the line that is first in a paper's table has no run here."""
    if not published:
        return []
    tables = [row.papers[0].line.experiment for _, row in published]
    table = max(dict.fromkeys(tables), key=tables.count)
    lines = [
        line
        for line in section.lines
        if line.experiment == table and line.method not in ("multitask", "stl")
    ]
    best = max(lines, key=lambda line: line.accuracy or 0.0)
    if (best.accuracy or 0.0) <= published[0][0]:
        return []
    return [f"The paper's first, {best.label} ({best.accuracy:.1f}), has not been run here."]


def _budget(section: Section) -> str:
    """Say how many published figures are repeated, and how the budget differs from the paper's."""
    rows = [row for row in section.rows if row.complete and row.papers]
    if not rows:
        budgets = dict.fromkeys(row.budget.text for row in section.rows)
        return (
            f"Each task has {next(iter(budgets))}."
            if len(budgets) == 1 and "" not in budgets
            else ""
        )
    known = [row.papers[0].accuracy_repeated for row in rows]
    tolerance = rows[0].papers[0].line.tolerance
    met, open_ = sum(map(bool, known)), known.count(None)
    if len(known) == 1:
        how = "met" if met else "open, partly within tolerance" if open_ else "not met"
        sentence = f"The paper's accuracy is {how} (± {tolerance:g})"
    else:
        few = f"{met} of" if met else "None of"
        verb = "are" if met > 1 else "is"
        sentence = f"{few} the paper's {len(known)} accuracies {verb} met (± {tolerance:g})"
        sentence += f", {open_} open" if open_ else ""
    others = list(dict.fromkeys(row.papers[0].other_budget for row in rows))
    if others == [""]:
        return f"{sentence}, with the paper's budget."
    return f"{sentence}, with {'; '.join(other for other in others if other)}."


def facts(section: Section) -> tuple[str, list[Fact]]:
    """Return a line, the best, and its figures: accuracy, task unknown, capacity left, cost."""
    row = next(iter(section.competing), section.rows[0])
    transfer = row.transfer
    keeps = f"backward transfer {transfer.text(signed=True)} points" if transfer else ""
    return row.label, [
        Fact("Task known", _accuracy(row), keeps),
        _task_free(section, row),
        _capacity(row),
        _cost(section, row),
    ]


def _task_free(section: Section, row: Row) -> Fact:
    title, free = "Task unknown", row.task_free
    if free is None:
        return Fact(title, "–", "not measured, or not comparable over tasks")
    note = f"by {free.way}"
    if section.classes > 1:
        chance = 100 / section.classes
        note += f", chance {chance:.2g} %"
    if free.revealed:
        note += "; too high: batches of one task"
    return Fact(title, f"{free.accuracy.text()} %", note)


def _capacity(row: Row) -> Fact:
    capacity, free = row.of("capacity"), row.free_rank
    grown = f"it stores {capacity.mean:.0f} % of the network" if capacity else ""
    if free is None:
        if capacity and capacity.mean >= GROWN:
            return Fact("Capacity", f"{capacity.mean:.0f} %", "of the network's parameters stored")
        return Fact("Capacity left", "–", "it protects no directions, so none are counted")
    layers = len(row.counted[0].layers)
    fullest = f"the fullest of {layers} layers" if layers > 1 else "the only layer"
    note = f"of {free.layer}'s directions are free, {fullest}"
    if capacity and capacity.mean >= GROWN:
        note += f"; {grown}"
    return Fact("Capacity left", f"{free.share:.0f} %", note)


def _cost(section: Section, row: Row) -> Fact:
    other = next((r for r in section.rows if r.method == "finetune" and r.complete), None)
    if other is None or other is row:
        return Fact("Cost", _spent(row), "time of a run, and memory kept between tasks")
    return Fact("Cost", _spent(row), f"finetune: {_spent(other)}")


def _spent(row: Row) -> str:
    parts = duration(row.seconds), size(round(row.memory))
    return ", ".join(part.replace(" ", "\u00a0") for part in parts)
