import csv
import io

from classgrad.report.page.summary import sections
from classgrad.report.page.tables import cells, columns, comma_separated, markdown
from pages import record


def test_names_cannot_break_out_of_a_markdown_or_csv_table():
    odd = record("a|b\n| c", benchmark="x,\ny")
    text = markdown(sections([odd, record("gpm")]))
    assert "| a\\|b \\| c |" in text
    (line,) = csv.DictReader(io.StringIO(comma_separated(sections([odd]))))
    assert (line["benchmark"], line["method"]) == ("x,\ny", "a|b\n| c")


def test_a_column_is_there_only_where_there_is_something_in_it():
    usual = ["ACC %", "BWT", "when learnt", "no task: confidence", "free rank", "seeds"]
    usual += ["time", "memory"]
    grown = record("pgn", capacity=250.0)
    for records, more in (
        ([record()], set()),
        ([record(average_accuracy_task_free_prototypes=50.0)], {"no task: prototypes"}),
        ([record(), record("gpm")], {"difference"}),
        ([record(), grown], {"difference", "capacity"}),
        ([record(average_incremental_accuracy=50.0)], {"incremental"}),
        ([record(lowest_accuracy=50.0), record("gpm")], {"lowest", "difference"}),
    ):
        (section,) = sections(records)
        assert set(columns(section)) == {*usual, *more}


def test_a_limit_of_memory_is_beside_what_is_kept():
    limited = record().model_copy(update={"method": {"name": "er", "memory_mb": 2.5}})
    (section,) = sections([limited, record("gpm", seed=2)])
    remarks = {row.method: cells(section, row)["memory"].remark for row in section.rows}
    assert remarks == {"er": "limit 2.5 MB", "gpm": ""}


def test_sizes_in_a_csv_table_are_means_over_seeds():
    """Networks of growing methods differ between seeds."""
    sizes = {"memory_bytes": (100, 300), "network_bytes": (564_000, 573_000)}
    runs = [
        record("rcl", seed=seed, **{name: pair[seed - 1] for name, pair in sizes.items()})
        for seed in (1, 2)
    ]
    (line,) = csv.DictReader(io.StringIO(comma_separated(sections(runs))))
    assert {name: float(line[name]) for name in sizes} == {
        "memory_bytes": 200.0,
        "network_bytes": 568_500.0,
    }
    older = record("rcl", seed=2, network_bytes=0)  # it does not tell
    (line,) = csv.DictReader(io.StringIO(comma_separated(sections([runs[0], older]))))
    assert line["network_bytes"] == ""
