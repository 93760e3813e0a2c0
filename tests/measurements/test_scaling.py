"""The scaling study: a page with the figures of its file, and the command that makes both."""

import json
import re
from collections import Counter

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from benchmarks import estimates, pages, scaling, traffic, wide
from benchmarks.charts import CHARTS
from benchmarks.devices import model
from benchmarks.estimates import paper
from benchmarks.models import EDGE, MODELS
from benchmarks.pages import fill_tables
from benchmarks.rows import readable
from classgrad.core.layers import sites

FOUND = pages.all_results()
PAGE = pages.PAGE.read_text()


def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """The tables of a page by name: cells by heading."""
    result = {}
    for name, text in re.findall(r"<!-- scaling: (\S+) -->\n(.*?)<!-- end -->", page, re.DOTALL):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n")]
        headings, _, *rows = lines[:-1]
        assert len(set(headings)) == len(headings)
        result[name] = [dict(zip(headings, row, strict=True)) for row in rows]
    return result


def test_every_number_of_the_tables_is_that_of_the_file():
    times = {
        "step without, ms": lambda row: row["bare_seconds"] * 1000,
        "with projection, ms": lambda row: row["step_seconds"] * 1000,
        "ratio": lambda row: row["step_seconds"] / row["bare_seconds"],
    }
    bases = {
        "rank": lambda row: row["rank"],
        "basis kept, MB": lambda row: row["basis_bytes"] / 1e6,
        "used in steps, MB": lambda row: row["side_bytes"] / 1e6,
        "adding a class, ms": lambda row: row["add_seconds"] * 1000,
    }
    layers = {
        "layer": lambda row: row["layer"],
        "how many": lambda row: row["count"],
        "o": lambda row: row["outputs"],
        "d": lambda row: row["dimension"],
        "rows per image": lambda row: row["positions"],
        "forward and backward of each, GFlop": lambda row: row["training_flops"] / 1e9,
        "projection by rows, %": lambda row: row["by_rows_share"] * 100,
        "on the gradient, %": lambda row: row["on_gradient_share"] * 100,
    }
    machine = {
        "processor": lambda result: result["machine"]["cpu"],
        "cores": lambda result: result["machine"]["cores"],
        "threads": lambda result: result["machine"]["threads"],
        "load before": lambda result: result["machine"]["load"],
        "torch": lambda result: result["versions"]["torch"],
        "measured": lambda result: result["date"],
    }
    update = {
        "processes": lambda row: row["ranks"],
        "samples of a class": lambda row: row["samples"],
        "base update, s": lambda row: row["update_seconds"],
        "given to sums, MB": lambda row: row["update_sums_bytes"] / 1e6,
        "handed on, MB": lambda row: row["update_handed_bytes"] / 1e6,
        "counts, kB": lambda row: row["update_counts_bytes"] / 1e3,
        "on the wire per process, MB": lambda row: row["update_wire_bytes"] / 1e6,
    }
    counts = FOUND["paper"]
    expected = {
        "machine": ([FOUND], machine),
        "wide-machine": ([FOUND["wide"]], machine),
        "wide": (
            FOUND["wide"]["layers"],
            {
                "layer": lambda row: row["layer"],
                "d": lambda row: row["dimension"],
                "rows": lambda row: row["rows"],
                "kept, MB": lambda row: row["representation_bytes"] / 1e6,
                "products, s": lambda row: row["product_seconds"],
                "stored": lambda row: row["stored"],
                "added": lambda row: row["rank"],
                "choosing them, s": lambda row: row["seconds"],
                "by all eigenvectors": lambda row: row["exact_rank"],
                "by all, s": lambda row: row["exact_seconds"],
            },
        ),
        "models-machine": ([FOUND["wide"]["models"]], machine),
        "models": (
            FOUND["wide"]["models"]["rows"],
            {
                "model": lambda row: row["model"],
                "weight matrices": lambda row: row["layers"],
                "weights, MB": lambda row: row["weight_bytes"] / 1e6,
                "images": lambda row: row["images"],
                "forward pass, s": lambda row: row["forward_seconds"],
                "end of the task, s": lambda row: row["seconds"],
                "directions protected, %": lambda row: 100 * row["rank"] / row["dimensions"],
                "bases kept, MB": lambda row: row["basis_bytes"] / 1e6,
                "peak, MB": lambda row: row["peak_bytes"] / 1e6,
            },
        ),
        "traffic-machine": ([FOUND["traffic"]], machine),
        "traffic": (
            FOUND["traffic"]["ranks"],
            {
                "processes": lambda row: row["ranks"],
                "step, ms": lambda row: row["step_seconds"] * 1000,
                "images per second": lambda row: 64 / row["step_seconds"],
                "each by itself": lambda row: row["apart_images_per_second"],
                "given to sums, MB": lambda row: row["step_bytes"] / 1e6,
                "of it gradients, MB": lambda row: row["gradient_bytes"] / 1e6,
                "on the wire per process, MB": lambda row: row["step_wire_bytes"] / 1e6,
            },
        ),
        "traffic-updates": (FOUND["traffic"]["ranks"], update),
        "traffic-samples": (FOUND["traffic"]["samples"], update),
        "devices": (
            model()["steps"],
            {
                "network": lambda row: row["network"],
                "devices": lambda row: row["devices"],
                "forward and backward, ms": lambda row: row["compute_seconds"] * 1000,
                "projection, ms": lambda row: row["projection_seconds"] * 1000,
                "BatchNorm sums, ms": lambda row: row["norm_seconds"] * 1000,
                "gradient sums, ms": lambda row: row["gradient_seconds"] * 1000,
                "sent by each, MB": lambda row: row["wire_bytes"] / 1e6,
                "images per second, hidden": lambda row: row["best_images_per_second"],
                "not hidden": lambda row: row["worst_images_per_second"],
                "share of N times one, hidden, %": lambda row: row["best_efficiency"] * 100,
                "share, not hidden, %": lambda row: row["worst_efficiency"] * 100,
            },
        ),
        "devices-updates": (
            model()["updates"],
            {
                "network": lambda row: row["network"],
                "devices": lambda row: row["devices"],
                "sent by each, MB": lambda row: row["wire_bytes"] / 1e6,
                "sums, s": lambda row: row["sum_seconds"],
                "products of inputs, s": lambda row: row["product_seconds"],
                "the rest, s": lambda row: row["basis_seconds"],
            },
        ),
        "classes": (
            FOUND["classes"],
            {
                "classes": lambda row: row["classes"],
                **bases,
                **times,
                "protecting again, ms": lambda row: row["protect_seconds"] * 1000,
            },
        ),
        "reference": (
            FOUND["classes"],
            {
                "classes": lambda row: row["classes"],
                "ours, GFlop": lambda row: row["projection_flops"] / 1e9,
                "group by group, GFlop": lambda row: row["reference_flops"] / 1e9,
                "ratio": lambda row: row["reference_flops"] / row["projection_flops"],
                "group by group, measured, ms": lambda row: (
                    row["reference_seconds"] and row["reference_seconds"] * 1000
                ),
            },
        ),
        "widths": (
            FOUND["widths"],
            {
                "width d": lambda row: row["width"],
                "weights, MB": lambda row: row["weight_bytes"] / 1e6,
                **bases,
                **times,
                "of 2 d rows, ms": lambda row: row["gram_seconds"] and row["gram_seconds"] * 1000,
            },
        ),
        "batches": (
            FOUND["batches"],
            {
                "batch": lambda row: row["batch"],
                **times,
                "images per second without": lambda row: row["batch"] / row["bare_seconds"],
                "with": lambda row: row["batch"] / row["step_seconds"],
            },
        ),
        "vit": (counts["layers"]["vit_b16"], layers),
        "resnet": (counts["layers"]["resnet50"], layers),
        "clusters": (
            counts["cluster"],
            {
                "ranks": lambda row: row["ranks"],
                "images per rank": lambda row: row["images"],
                "ViT-B/16, one rate, %": lambda row: row["vit_b16_share"] * 100,
                "ViT-B/16, TF32, %": lambda row: row["vit_b16_share"] * 200,
                "ViT-B/16, float32, %": lambda row: row["vit_b16_share"] * 1600,
                "ResNet-50, one rate, %": lambda row: row["resnet50_share"] * 100,
                "ResNet-50, TF32, %": lambda row: row["resnet50_share"] * 200,
                "ResNet-50, float32, %": lambda row: row["resnet50_share"] * 1600,
            },
        ),
        "memory": (
            counts["memory"],
            {
                "network": lambda row: row["network"],
                "weights, MB": lambda row: row["weight_bytes"] / 1e6,
                "bases half full, MB": lambda row: row["basis_half_bytes"] / 1e6,
                "bases full, MB": lambda row: row["basis_full_bytes"] / 1e6,
                "used in steps at most, MB": lambda row: row["side_bytes"] / 1e6,
                "Grams to sum, MB": lambda row: row["gram_bytes"] / 1e6,
                "bases of one class, TFlop": lambda row: row["class_flops"] / 1e12,
            },
        ),
    }
    result = tables(PAGE)
    assert result.keys() == expected.keys()
    for name, (rows, columns) in expected.items():
        assert [line.keys() for line in result[name]] == [columns.keys()] * len(rows), name
        for line, row in zip(result[name], rows, strict=True):
            for heading, value_of in columns.items():
                assert line[heading] == written(value_of(row)), (name, heading)


def written(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else readable(value)


def test_the_page_is_what_the_script_would_make_of_it():
    assert fill_tables(PAGE, FOUND) == PAGE


def test_counts_in_the_file_are_those_of_the_code():
    assert FOUND["paper"] == json.loads(json.dumps(paper()))


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_is_on_the_page_and_of_the_same_run(name):
    assert f"](figures/scaling-{name}.svg)" in PAGE
    drawing = (pages.PAGE.parent / "figures" / f"scaling-{name}.svg").read_text()
    assert FOUND["date"] in drawing


def test_no_measured_time_is_in_the_prose():
    prose = re.sub(r"<!-- scaling.*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    assert not re.search(r"\d (ms|s|seconds|MB|GB|GFlop|TFlop)\b", prose)


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Call the command line in another folder, with measurements that take no time."""
    for name in scaling.STUDIES:
        monkeypatch.setitem(scaling.STUDIES, name, lambda bench, name=name: FOUND[name])
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "scaling.json")
    monkeypatch.setattr(pages, "PAGE", tmp_path / "scaling.md")
    (tmp_path / "scaling.md").write_text("<!-- scaling: batches -->\nold\n<!-- end -->\n")
    threads = torch.get_num_threads()
    yield lambda *words: CliRunner().invoke(scaling.app, words)
    torch.set_num_threads(threads)


def test_a_study_writes_its_file_its_figures_and_its_page(study, tmp_path):
    ended = study("--threads", "1")
    assert ended.exit_code == 0, ended.output
    result = json.loads((tmp_path / "scaling.json").read_text())
    assert result["machine"]["threads"] == 1
    assert result["command"].startswith("python -m benchmarks.scaling")
    assert result["widths"] == FOUND["widths"]
    assert len(list((tmp_path / "figures").glob("scaling-*.svg"))) == len(CHARTS)
    assert tables((tmp_path / "scaling.md").read_text()) == {"batches": tables(PAGE)["batches"]}


def test_drawing_anew_measures_nothing(study, tmp_path, monkeypatch):
    with pytest.raises(scaling.UserError, match=r"scaling\.json does not exist: measure first"):
        pages.all_results()
    assert study("--threads", "1").exit_code == 0
    before = (tmp_path / "scaling.json").read_text()
    drawn = {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    monkeypatch.setattr(scaling, "STUDIES", {})
    assert study("--redraw").exit_code == 0
    assert (tmp_path / "scaling.json").read_text() == before
    assert {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()} == drawn


def test_a_page_with_an_unknown_table_is_refused():
    with pytest.raises(scaling.UserError, match="unknown table 'batch': did you mean 'batches'"):
        fill_tables("<!-- scaling: batch -->\n<!-- end -->", FOUND)


def test_one_process_sends_nothing_and_has_its_times(monkeypatch, capsys):
    monkeypatch.setattr(traffic, "PER_CLASS", 13)
    traffic.worker("lenet5", 2, 32)
    result = json.loads(capsys.readouterr().out)
    assert (result["ranks"], result["samples"], result["step_bytes"]) == (1, 2, 0)
    assert result["step_seconds"] > 0
    assert result["images_per_second"] == pytest.approx(32 / result["step_seconds"])
    assert result["update_seconds"] > 0
    assert [result[f"update_{kind}_bytes"] for kind in ("sums", "handed", "counts")] == [0, 0, 0]


def test_the_study_of_traffic_writes_its_file_and_fills_the_page(tmp_path, monkeypatch):
    def measure_together(ranks, network, samples):
        return {"ranks": ranks, "network": network, "samples": samples}

    done = []
    monkeypatch.setattr(traffic, "TRAFFIC", tmp_path / "traffic.json")
    monkeypatch.setattr(traffic, "fill", lambda: done.append("page"))
    monkeypatch.setattr(traffic, "measure_together", measure_together)
    monkeypatch.setattr(traffic, "measure_apart", lambda count, network: 100 * count)
    ended = CliRunner().invoke(traffic.app, ["--network", "lenet5"])
    assert ended.exit_code == 0, ended.output
    result = json.loads((tmp_path / "traffic.json").read_text())
    assert [(row["ranks"], row["apart_images_per_second"]) for row in result["ranks"]] == [
        (1, 100),
        (2, 200),
        (3, 300),
        (4, 400),
    ]
    assert [(row["ranks"], row["samples"]) for row in result["samples"]] == [
        (2, 20),
        (2, 60),
        (2, 125),
    ]
    assert result["command"].startswith("python -m benchmarks.traffic")
    assert done == ["page"]


@pytest.fixture
def wide_study(tmp_path, monkeypatch):
    """Call the command line of wide layers in another folder, with small layers and no model."""
    layers = [wide.Layer("few rows", 128, 1, 50), wide.Layer("many", 128, 2, 60)]
    monkeypatch.setattr("classgrad.core.subspace.WIDE", 100)
    monkeypatch.setattr(wide, "LAYERS", layers)
    monkeypatch.setattr(wide, "WIDE", tmp_path / "wide.json")
    monkeypatch.setattr(wide, "in_new_process", lambda name: {"model": name})

    def call(*words):
        done = []
        monkeypatch.setattr(wide, "fill", lambda: done.append("page"))
        monkeypatch.setattr(wide.torch, "set_num_threads", done.append)
        ended = CliRunner().invoke(wide.app, words)
        assert ended.exit_code == 0, ended.output
        assert done == [1, "page"]
        return json.loads((tmp_path / "wide.json").read_text())

    return call


def test_the_study_of_wide_layers_writes_its_file_and_fills_the_page(wide_study):
    result = wide_study()
    few, many = result["layers"]
    assert (few["rows"], few["representation_bytes"]) == (125, 8 * 125 * 128)
    assert (many["rows"], many["representation_bytes"]) == (250, 8 * 128 * 128)
    for row in (few, many):
        assert row["rank"] > 0
        assert abs(row["rank"] - row["exact_rank"]) <= 1
        assert min(row["seconds"], row["exact_seconds"], row["product_seconds"]) > 0
    assert [row["model"] for row in result["models"]["rows"]] == list(MODELS)


def test_one_part_of_the_study_leaves_the_other_as_it_was(wide_study):
    before = wide_study("--note", "first")
    after = wide_study("--only", "models", "--note", "second")
    assert after["models"]["note"] == "second"
    assert "machine" in after["models"]
    assert {**after, "models": None} == {**before, "models": None}
    again = wide_study("--only", "layers", "--note", "third")
    assert (again["note"], again["models"]) == ("third", after["models"])
    ended = CliRunner().invoke(wide.app, ["--only", "layer"])
    assert str(ended.exception).startswith("unknown part 'layer': did you mean 'layers'")


def test_a_model_is_measured_when_its_first_task_ends(monkeypatch):
    def small():
        return nn.Sequential(nn.Conv2d(3, 4, 4, 8, bias=False), nn.Flatten(), nn.Linear(64, 5))

    monkeypatch.setattr(wide, "MODELS", {"small": small})
    monkeypatch.setattr(wide, "EDGE", 32)
    row = wide.measure_model("small", images=12)
    assert (row["model"], row["layers"], row["images"]) == ("small", 2, 12)
    assert row["weight_bytes"] == 4 * (4 * 48 + 64 * 5 + 5)
    assert row["dimensions"] == 48 + 64
    # The Linear layer has no more rows than images.
    assert 2 <= row["rank"] <= 48 + 12
    assert 4 * 48 <= row["basis_bytes"] <= 4 * (48 * 48 + 64 * 12)
    assert min(row["seconds"], row["forward_seconds"]) > 0
    assert row["peak_bytes"] >= 0


@pytest.mark.parametrize(
    ("name", "counted"), [("ResNet-50", estimates.resnet50()), ("ViT-B/16", estimates.vit_b16())]
)
def test_models_have_the_layers_that_are_counted_on_paper(name, counted):
    with torch.device("meta"):  # without memory
        model = MODELS[name]()
        x = torch.zeros(2, 3, EDGE, EDGE)
        assert model(x).shape == (2, counted.layers[-1].outputs)
    shapes = Counter(tuple(site.matrix(site.weight).shape) for site in sites(model).values())
    expected: Counter[tuple[int, ...]] = Counter()
    for layer in counted.layers:
        expected[layer.outputs, layer.dimension] += layer.count
    assert shapes == expected
