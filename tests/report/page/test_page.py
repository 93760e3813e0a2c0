import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.cli.report import experiment_lines
from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.report.page import page
from classgrad.report.page.charts import luminance
from classgrad.runs.record import ClassResult, Curve, HeldEnergy, Layer, RunRecord
from pages import ODD, parsed, record

SEEDS = {1: ((90.0,), (80.0, 93.0)), 2: ((92.0,), (86.0, 95.0)), 3: ((91.0,), (88.0, 92.0))}
OTHERS = {2: ((80.0,), (70.0, 90.0)), 3: ((82.0,), (71.0, 81.0)), 4: ((1.0,), (2.0, 3.0))}


@pytest.fixture(scope="module")
def records():
    own = [record("cgp", seed, rows) for seed, rows in SEEDS.items()]
    return own + [record("gpm", seed, rows) for seed, rows in OTHERS.items()]


@pytest.fixture(scope="module")
def root(records):
    return parsed(page(records))


def text_of(values, signed=False):
    mean = f"{statistics.mean(values):{'+' if signed else ''}.1f}".replace("-", "−")
    return f"{mean} ± {statistics.stdev(values):.1f}"


def column(root, name, number=1):
    head, *lines = root.one("table", id=f"comparison-{number}").rows()
    place = head.index(name)
    return {line[0]: line[place] for line in lines}


def values_of(root, kind):
    (figure,) = root.all("figure", data_kind=kind)
    return figure.one("table", class_="values").rows()


def test_comparison_has_means_and_deviations(root, records):
    for name in ("cgp", "gpm"):
        runs = [r for r in records if r.method_name == name]
        assert column(root, "ACC %")[name] == text_of([r.average_accuracy for r in runs])
        assert column(root, "BWT")[name] == text_of([r.backward_transfer for r in runs], True)
        free = [r.average_accuracy_task_free for r in runs]
        assert column(root, "no task: confidence")[name] == text_of(free)
    assert column(root, "seeds") == {"cgp": "3", "gpm": "3"}
    learnt = [(rows[0][0] + rows[1][1]) / 2 for rows in SEEDS.values()]
    assert column(root, "when learnt")["cgp"] == text_of(learnt)
    assert column(root, "free rank") == {"cgp": "55 %", "gpm": "55 %"}
    assert column(root, "time") == {"cgp": "23.0 s", "gpm": "33.0 s"}
    assert column(root, "memory") == {"cgp": "4.0 kB", "gpm": "6.0 kB"}


def test_difference_is_over_the_seeds_that_both_have(root):
    both = [sum(OTHERS[s][-1]) / 2 - sum(SEEDS[s][-1]) / 2 for s in (2, 3)]
    assert column(root, "difference") == {"cgp": "–", "gpm": text_of(both, True)}


def test_another_reference_can_be_chosen(records):
    root = parsed(page(records, against="gpm"))
    both = [sum(SEEDS[s][-1]) / 2 - sum(OTHERS[s][-1]) / 2 for s in (2, 3)]
    assert column(root, "difference") == {"cgp": text_of(both, True), "gpm": "–"}
    with pytest.raises(UserError, match="unknown row to compare with 'gmp': did you mean 'gpm'"):
        page(records, against="gmp")


def test_values_of_the_curve_and_the_matrices_are_those_of_the_records(root):
    head, *lines = values_of(root, "curve")
    assert head == ["after task", "cgp", "gpm"]
    first = [rows[0][0] for rows in SEEDS.values()]
    last = [statistics.mean(rows[1]) for rows in SEEDS.values()]
    assert [line[1] for line in lines] == [text_of(first), text_of(last)]
    _, *lines = values_of(root, "matrix")
    assert lines[0] == ["cgp", "1", "91.0", "–"]
    old, new = (statistics.mean(rows[1][task] for rows in SEEDS.values()) for task in (0, 1))
    assert lines[1] == ["cgp", "2", f"{old:.1f}", f"{new:.1f}"]


def test_values_of_forgetting_room_and_cost_are_those_of_the_records(root):
    assert values_of(root, "forgetting")[1] == ["task 0", "task 0.a", "+2.0 ± 1.0", "+3.0 ± 1.0"]
    assert values_of(root, "forgetting")[2] == ["task 0", "task 0.b", "+10.0 ± 0.0", "+10.0 ± 0.0"]
    assert values_of(root, "free-rank")[1:] == [
        ["fc1", "cgp", "80.0", "55.0"],
        ["fc1", "gpm", "80.0", "55.0"],
    ]
    assert values_of(root, "cost")[1] == ["cgp", "20.0 s", "2.0 s", "1.0 s", "23.0 s", "4.0 kB"]


def test_every_figure_is_drawn_described_and_has_its_values(root):
    kinds = [figure["data-kind"] for figure in root.all("figure", class_="figure")]
    assert kinds == ["curve", "matrix", "forgetting", "free-rank", "cost"]
    for figure in root.all("figure"):
        drawn = figure.all(data_marks="")
        assert drawn
        assert all(one["aria-label"] for one in drawn)
        (values,) = figure.one("details", class_="of-values").all("table")
        assert len(values.rows()) > 1
        told = [mark for one in drawn for mark in one.all() if mark["data-tip"]]
        assert told
        for mark in told:
            # Without scripts a drawing tells by titles, and a cell of a matrix by its number.
            if mark.name == "td":
                assert mark.text.isdecimal()
            else:
                assert mark.one("title").text == mark["data-tip"]


def test_what_is_said_on_hover_is_in_the_records(root):
    def tips(kind):
        figure = root.one("figure", data_kind=kind)
        return {one["data-tip"] for one in figure.all() if one["data-tip"]}

    assert f"cgp, after task 0: {text_of([90, 92, 91])} %" in tips("curve")
    assert f"after task 1, on task 0: {text_of([80, 86, 88])} %" in tips("matrix")
    assert "task 0.a (task 0): +2.0 ± 1.0 points lost" in tips("forgetting")
    assert "gpm, fc1, after task 1: 55.0 ± 0.0 % free, 9 of 20 in use" in tips("free-rank")
    assert "gpm, training: 30.0 s" in tips("cost")


def test_merged_classes_are_named_with_their_similarity():
    groups = Layer(
        name="fc1", dimension=9, ranks=[3], groups=[0, 1, 0, 0], cosines=[1, 1, 0.75, 0.9]
    )
    root = parsed(page([record(layers=[groups])]))
    assert values_of(root, "merged")[1:] == [
        ["fc1", "task 0.a", "task 1.a 0.75, task 1.b 0.90"],
        ["fc1", "task 0.b", "none"],
    ]
    figure = root.one("figure", data_kind="merged")
    tips = [one["data-tip"] for one in figure.all("path", class_="dot")]
    assert tips[0] == "task 1.a joined the group of task 0.a: cosine 0.75"
    assert "4 classes in 2 groups" in figure.text


def test_a_class_that_several_tasks_have_is_named_with_its_task():
    same = [
        ClassResult(task=task, classes=["0"], learnt=[1.0], final=[1.0], forgetting=[0.0])
        for task in ("first", "second")
    ]
    layer = Layer(name="fc1", dimension=9, ranks=[3], groups=[0, 0], cosines=[1.0, 0.8])
    root = parsed(page([record(classes=same, layers=[layer])]))
    assert values_of(root, "merged")[1] == ["fc1", "0 (first)", "0 (second) 0.80"]


def test_losses_are_drawn_task_by_task():
    def trained(method, seed, first):
        curves = [Curve(epochs=14, train=[first / n for n in range(1, 15)], valid=[2.0, 1.5])]
        return record(method, seed, curves=[*curves, Curve(epochs=1, train=[0.5])])

    runs = [trained("cgp", 1, 2.0), trained("cgp", 2, 4.0), trained("gpm", 1, 50.0), record("ewc")]
    root = parsed(page(runs))
    figure = root.one("figure", data_kind="loss")
    assert figure in root.one("details", class_="aside").all("figure")
    head, *lines = figure.one("table", class_="values").rows()
    assert head == ["method", "task", "epochs", "at first", "in the end", "validation"]
    assert lines[0] == ["cgp", "task 0", "14", "3.000", "0.214", "1.500"]  # mean of two seeds
    assert lines[1] == ["cgp", "task 1", "1", "0.500", "0.500", "–"]
    assert {line[0] for line in lines} == {"cgp", "gpm"}
    drawn = figure.all("svg", role="img")
    assert [one["aria-label"].split(".")[0] for one in drawn] == [
        "Training loss, cgp",
        "Training loss, gpm",
    ]
    tips = [one["data-tip"] for one in drawn[0].all() if one["data-tip"]]
    assert tips[0] == "cgp, task 0, epoch 3: 1.000"  # of up to six points of a task
    assert tips[4:] == ["cgp, task 0, epoch 14: 0.214", "cgp, task 1, epoch 1: 0.500"]
    (line,) = [one["d"] for one in drawn[0].all("path") if one["class"] == "line s0"]
    assert line.count("M") == 2  # with a gap between tasks
    assert "go on above it" not in figure.text
    diverged = [*runs, trained("owm", 1, 900.0)]
    assert "go on above it" in parsed(page(diverged)).one("figure", data_kind="loss").text


def test_the_energy_held_is_drawn_of_unseen_images():
    held = HeldEnergy(
        layer="fc1",
        learnt_train=[1.0, 1.0, 1.0, 1.0],
        learnt_test=[0.1, 0.1, 0.1, 0.1],
        final_train=[0.99, 0.98, 0.97, None],
        final_test=[0.95, 0.85, 0.75, None],
    )
    other = held.model_copy(update={"final_test": [0.85, 0.75, 0.65, None]})
    root = parsed(page([record(held=[held]), record(seed=2, held=[other])]))
    figure = root.one("figure", data_kind="held")
    assert figure in root.one("details", class_="aside").all("figure")
    assert figure.one("table", class_="values").rows() == [
        ["class", "fc1"],
        ["mean, training images", "98.0"],
        ["mean, unseen images", "80.0"],
        ["task 0.a", "90.0"],
        ["task 0.b", "80.0"],
        ["task 1.a", "70.0"],
    ]
    (drawn,) = figure.all("svg", role="img")
    tips = [one["data-tip"] for one in drawn.all() if one["data-tip"]]
    assert tips[2] == "task 1.a: 70.0 % of unseen images, 97.0 % of training images"
    assert "least: task 1.a, 70.0" in figure.all("h4")[0].text.replace("\u00a0", " ")


def test_before_the_end_the_energy_held_is_that_of_when_classes_were_learnt():
    held = HeldEnergy(layer="fc1", learnt_train=[0.9, 0.8])
    figure = parsed(page([record(held=[held])])).one("figure", data_kind="held")
    rows = figure.one("table", class_="values").rows()
    assert rows[1:3] == [["mean, training images", "85.0"], ["mean, unseen images", "–"]]
    assert "the energy of training images" in figure.text


def test_deep_networks_fold_the_energy_held_of_most_layers():
    held = [HeldEnergy(layer=f"l{n}", final_test=[0.9, 0.8]) for n in range(8)]
    figure = parsed(page([record(held=held)])).one("figure", data_kind="held")
    assert len(figure.one("details", class_="more").all("svg", role="img")) == 2


def published(seed, accuracy, label="CGP", **changes):
    experiment = experiments.load("cifar100")
    plan = experiment.plans("fast", [seed])[label][0].as_dict()
    return record(**{"accuracies": ((accuracy,),), **plan, "method": "x"}).model_copy(
        update={**plan, "backward_transfer": -0.5, "task_free_batches": "mixed", **changes}
    )


def test_accuracy_without_the_task_says_if_batches_revealed_it():
    older = published(1, 60.0, task_free_batches="one task")
    root = parsed(page([older, published(1, 60.0, "GPM, own rate")]))
    remarks = root.one("table", id="comparison-1").all("small", class_="remark")
    said = [small.text for small in remarks if "task" in small.text]
    assert said == ["batches of one task"] * 2  # by confidence, of one row, and where it folds out
    assert "BatchNorm saw the task" in root.text
    assert "too high: batches of one task" in root.one("dl", class_="facts").text


def test_the_papers_figures_are_beside_those_that_repeat_them():
    near, far = published(1, 74.0), published(1, 60.0, "GPM, own rate")
    root = parsed(page([near, far], published=experiment_lines([near, far])))
    printed = column(root, "paper ACC")
    assert printed == {"CGP": "74.3", "GPM, own rate": "72.2"}
    small = {one.text: one["class"] for one in root.all("small")}
    assert small["≈ −0.3"] == small["−12.2"] == "other"  # another budget: no sign that it is wrong
    assert small["12 of up to 200 epochs"] == "remark"
    assert "CIFAR-100" in root.one("section", id="benchmark-1").text
    changed = near.model_copy(update={"training": {**near.training, "epochs": 1}})
    assert "paper ACC" not in page([changed], published=experiment_lines([near, far]))
    other = near.model_copy(update={"recipe": "mine.toml"})
    assert "paper ACC" not in page([other], published=experiment_lines([near, far]))


def test_with_the_papers_budget_a_figure_that_is_missed_stands_out():
    plan = experiments.load("cifar100").plans("paper", [1])["EWC"][0].as_dict()
    for accuracy, text, kind in ((69.0, "≈ +0.2", None), (60.0, "≠ −8.8", "differs")):
        run = published(1, accuracy).model_copy(update=plan)
        (row,) = parsed(page([run], published=experiment_lines([run]))).all("tr")[1:2]
        small = {one.text: one["class"] for one in row.all("small")}
        assert small[text] == kind
        assert "epochs" not in " ".join(small).replace("up to 200 epochs, all data", "")


def test_a_run_that_did_not_end_is_not_compared_with_the_paper():
    short = published(1, 60.0, complete=False)
    root = parsed(page([short], published=experiment_lines([short])))
    assert column(root, "paper ACC") == {"CGP": "74.3"}
    assert "epochs" not in root.one("table", id="best-1").one("td", data_value="74.26").text


def test_runs_that_did_not_end_are_labelled_and_do_not_count(records):
    short = record("cgp", 9, ((5.0,),), tasks=["task 0", "task 1"], complete=False)
    alone = record("ewc", 1, ((99.0,),), tasks=["task 0", "task 1"], complete=False)
    root = parsed(page([short, alone, *records]))
    assert column(root, "ACC %")["cgp"] == text_of([sum(r[-1]) / 2 for r in SEEDS.values()])
    assert column(root, "difference")["ewc"] == "–"
    table = root.one("table", id="comparison-1")
    assert "+ 1 incomplete" in table.text
    last = table.all("tr")[-1]
    assert last.text.startswith("ewc incomplete: 1 of 2 tasks")
    badges = [one.text for one in root.one(id="runs").all("span", class_="badge")]
    assert badges == ["incomplete: 1 of 2 tasks"] * 2


def test_the_order_of_keys_within_a_setting_tells_no_runs_apart():
    options = {"a": {"x": 1, "y": 2}}
    swapped = {"a": {"y": 2, "x": 1}}
    one = record(seed=1, training=options, benchmark_options=options)
    two = record(seed=2, training=swapped, benchmark_options=swapped)
    assert column(parsed(page([one, two])), "seeds") == {"cgp": "2"}


def test_a_run_that_is_given_twice_counts_once(records):
    assert page([*records, records[0]]) == page(records)


def test_benchmarks_and_their_options_have_a_section_each(records):
    other = record(benchmark="others", benchmark_options={"tasks": 5})
    more = record(benchmark="others", benchmark_options={"tasks": None})
    root = parsed(page([*records, other, more]))
    titles = [one.children[0].strip() for one in root.one(id="content").all("h2")]
    assert titles == ["toys", "others, tasks=5", "others, tasks=none", "Runs"]
    ids = [t["id"] for t in root.all("table") if t["id"]]
    assert ids == [f"{name}-{n}" for n in (1, 2, 3) for name in ("best", "comparison")]
    links = [one["href"] for one in root.one("nav").all("a")]
    assert links == [f"#{one['id']}" for one in root.all("section")[:3]]


EVIL = '<script>alert("1")</script>&amp;\'`</style></title>'


def test_whatever_records_say_is_text_and_not_markup():
    layer = Layer(name=EVIL, dimension=3, ranks=[1, 2], groups=[0, 0], cosines=[1, 0.9])
    result = ClassResult(
        task=EVIL, classes=[EVIL, "b"], learnt=[1, 1], final=[1, 1], forgetting=[0, 3]
    )
    plain = record(tasks=["0", "1"], classes=[], layers=[])
    evil = record(
        EVIL,
        tasks=[EVIL, "b"],
        classes=[result],
        layers=[layer],
        benchmark=EVIL,
        data_notes=[EVIL],
        training={EVIL: EVIL},
        versions={EVIL: EVIL},
    )
    text = page([evil, evil.model_copy(update={"seed": 2})], title=EVIL)
    root, usual = parsed(text), parsed(page([plain]))
    assert len(root.all("script")) == len(usual.all("script")) == 1
    assert "<script>alert" not in text
    assert root.one("h1").text == EVIL
    assert root.one("head").one("title").text == EVIL
    for kind in ("curve", "matrix", "forgetting", "free-rank", "merged", "cost"):
        assert EVIL in root.one("figure", data_kind=kind).one("table", class_="values").text
    assert EVIL in root.one(id="runs").text


def test_nothing_is_fetched_and_nothing_else_may_run(records):
    text = page(records)
    assert not re.findall(r"https?://|url\(|@import|\ssrc=|\son\w+=|\sstyle=", text)
    assert set(re.findall(r'href="(.)', text)) <= {"#"}
    policy = parsed(text).one("meta", http_equiv="Content-Security-Policy")["content"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_page_is_the_same_every_time_and_its_ids_differ(records):
    text = page(records)
    assert text == page(records)
    ids = [one["id"] for one in parsed(text).all() if one["id"]]
    assert len(ids) == len(set(ids))
    assert {"content", "tip", "comparison-1"} <= set(ids)


def test_headings_can_be_sorted_by_keyboard(root):
    heads = root.one("table", id="comparison-1").one("thead").all("th")
    assert all(head.one("button")["type"] == "button" for head in heads)
    sorts = {head.text: head["aria-sort"] for head in heads}
    assert sorts.pop("ACC %") == "descending"
    assert set(sorts.values()) == {"none"}


def test_every_run_says_where_it_was_computed():
    def device(**changes):
        runs = parsed(page([record(**changes)])).one(id="runs")
        return [
            part.one("dd").text
            for part in runs.one("dl").all("div")
            if part.one("dt").text == "device"
        ]

    assert device() == ["cpu"]
    assert device(device="cuda", processes=4) == ["cuda, 4 processes"]


def test_every_run_has_its_command_if_there_is_one():
    plan = experiments.load("eta").plans("fast", [7])["η = 0.8"][0].as_dict()
    known = record().model_copy(update=plan)
    commands = [one.text for one in parsed(page([known])).one(id="runs").all("code")]
    assert commands[0] == (
        "classgrad run split-cifar100 --method cgp --network alexnet5 --recipe fast --seed 7 "
        "--set similarity=0.8 --set class_order=shuffled"
    )
    assert "classgrad run" not in parsed(page([record()])).one(id="runs").text
    older = {name: value for name, value in known.method.items() if name != "severity"}
    before = known.model_copy(update={"method": older})  # from before there was such a setting
    assert parsed(page([before])).one(id="runs").all("code")[0].text == commands[0]


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_runs_have_a_page(odd):
    root = parsed(page([odd]))
    assert root.one("figure", data_kind="cost")
    parsed(page([odd, record("gpm")]))


def test_no_runs_and_impossible_figures_are_refused():
    with pytest.raises(UserError, match="no runs to compare"):
        page([])
    with pytest.raises(UserError, match="a figure of 1e\\+300, which is impossible"):
        page([record(average_accuracy=1e300)])


def test_many_methods_are_in_one_frame_and_the_page_stays_small():
    names = [f"classes {i}" for i in range(10)]
    runs = []
    for number in range(12):
        rows = [[50.0 + i + j + number for j in range(i + 1)] for i in range(10)]
        classes = [
            ClassResult(
                task=name,
                classes=[f"{name}, class {i}" for i in range(10)],
                learnt=[90.0] * 10,
                final=[80.0] * 10,
                forgetting=[float(i - number) for i in range(10)],
            )
            for name in names
        ]
        layers = [
            Layer(
                name=f"layer {i}",
                dimension=99,
                ranks=list(range(10)),
                groups=[k // 2 for k in range(100)],
                cosines=[0.8] * 100,
            )
            for i in range(5)
        ]
        more = {"tasks": names, "classes": classes, "layers": layers}
        runs += [record(f"method{number}", seed, rows, **more) for seed in (1, 2, 3)]
    text = page(runs)
    assert len(text.encode()) < 2_000_000
    curve = parsed(text).one("figure", data_kind="curve")
    for size in ("large", "middle", "narrow"):
        assert len(curve.all("svg", class_=size)) == 1


def grey_lines(count):
    figure = parsed(page([record(f"m{n}") for n in range(count)])).one("figure", data_kind="curve")
    drawn = figure.all("svg", role="img")
    return {len(svg.all("path", class_="other")) for svg in drawn}, figure.text


def test_behind_the_best_lines_are_all_others_or_some_of_them():
    counts, text = grey_lines(10)
    assert counts == {0}
    assert "Grey" not in text
    counts, text = grey_lines(38)
    assert counts == {30}
    assert "Grey: other lines." in text
    counts, text = grey_lines(39)
    assert counts == {30}
    assert "Grey: some of the other lines." in text


def test_of_many_rows_the_best_of_each_method_are_at_once_and_all_fold_out():
    named = [record(f"m{n}", average_accuracy=90.0 - n) for n in range(11)]
    worse = [
        record("m0", average_accuracy=89.5, training={"epochs": 2, "rate": 1}),
        record("m0", average_accuracy=89.4, training={"epochs": 2, "rate": 2}),
    ]
    root = parsed(page([*named[1:], *worse, record("multitask", average_accuracy=99.0)]))
    best = [line[0] for line in root.one("table", id="best-1").rows()[1:]]
    assert best == ["multitask", "m0 rate=1", *(f"m{n}" for n in range(1, 8))]
    fold = root.one("details", class_="all")
    assert "All figures of 13 lines" in fold.text
    assert len(fold.one("table", id="comparison-1").rows()) == 14
    few = parsed(page(named[:10]))
    assert len(few.one("table", id="best-1").rows()) == 11


def test_every_row_of_the_best_lines_has_its_budget_and_the_colour_of_its_line():
    runs = [record("cgp", average_accuracy=80.0), record("finetune", average_accuracy=60.0)]
    root = parsed(page(runs))
    table = root.one("table", id="best-1")
    assert [one.text for one in table.all("small", class_="budget")] == ["fast, 2 epochs"] * 2
    colours = [svg.all("path")[0]["class"] for svg in table.all("svg", class_="swatch")]
    assert colours == ["line s0", "line bound"]
    drawn = root.one("figure", data_kind="curve").one("svg", class_="large")
    assert {path["class"] for path in drawn.all("path")} >= set(colours)
    (winner,) = table.all("tr", class_="winner")
    assert winner.all("th")[0].children[1].strip() == "cgp"


def test_what_a_narrow_window_has_no_column_for_folds_out_of_its_row():
    table = parsed(page([record(), record("gpm")])).one("table", id="best-1")
    places = {head.text: head["class"] for head in table.one("thead").all("th")}
    narrow = [name for name, place in places.items() if place == "p1"]
    assert narrow == ["method", "ACC %", "BWT"]
    for rest in table.all("td", class_="rest"):
        names = [one.text for one in rest.all("dt")]
        assert names == ["budget", *(name for name in places if name not in narrow)]


def test_a_matrix_has_the_names_of_its_tasks_and_all_its_numbers():
    names = [f"task_{n} of_many" for n in range(20)]
    rows = [[50.0 + i + j for j in range(i + 1)] for i in range(20)]
    root = parsed(page([record(tasks=names, accuracies=rows, classes=[])]))
    (table,) = [t for t in root.all("table") if (t["class"] or "").startswith("heat")]
    heads = [th.one("span").text for th in table.one("tbody").all("th")]
    assert heads == [f"task {n} of many" for n in range(20)]
    cells = [td.text for td in table.one("tbody").all("td") if td.text]
    assert cells == [f"{value:.0f}" for row in rows for value in row]


def test_what_is_learnt_at_once_has_no_matrix_and_a_level_line():
    joint = record("multitask", accuracies=((None, None), (90.0, 91.0)), classes=[], layers=[])
    root = parsed(page([joint, record()]))
    heads = [h4.text for h4 in root.one("figure", data_kind="matrix").all("h4")]
    assert heads == ["cgp"]
    assert "Level: all tasks at once." in root.one("figure", data_kind="curve").text
    alone = parsed(page([joint]))
    assert [f["data-kind"] for f in alone.all("figure")] == ["curve", "cost"]


def test_the_matrices_of_the_best_the_second_and_the_one_that_forgets_most_are_at_once():
    transfers = {"a": -1.0, "b": -2.0, "c": -30.0, "d": -3.0}
    runs = [
        record(name, average_accuracy=90.0 - n, backward_transfer=transfers[name])
        for n, name in enumerate(transfers)
    ]
    figure = parsed(page(runs)).one("figure", data_kind="matrix")
    assert [h4.text for h4 in figure.all("h4")] == ["a", "c", "b", "d"]
    assert [h4.text for h4 in figure.one("details", class_="more").all("h4")] == ["d"]


@pytest.mark.parametrize(("count", "folded"), [(2, False), (6, False), (7, True)])
def test_the_layers_of_a_deep_network_fold(count, folded):
    layers = [Layer(name=f"l{n}", dimension=9, ranks=[1, 2]) for n in range(count)]
    root = parsed(page([record(layers=layers)]))
    aside = [figure["data-kind"] for figure in root.one("details", class_="aside").all("figure")]
    assert aside == [*["free-rank"] * folded, "cost"]
    assert len(root.one("figure", data_kind="free-rank").all("svg", role="img")) == count


def test_lines_far_below_the_best_leave_the_frame():
    def run_of(name, *accuracies):
        return record(name, accuracies=[[value] * (n + 1) for n, value in enumerate(accuracies)])

    near = parsed(page([run_of("cgp", 97.0, 95.0), run_of("finetune", 97.0, 92.0)]))
    assert "leave the frame" not in near.one("figure", data_kind="curve").text
    far = parsed(page([run_of("cgp", 97.0, 96.0), run_of("finetune", 97.0, 30.0)]))
    figure = far.one("figure", data_kind="curve")
    assert "Lines that leave the frame go on below it." in figure.text
    assert "30.0 ↓ finetune" in figure.one("svg", class_="large").text


def test_classes_that_nothing_happened_to_are_named_and_not_drawn():
    still = [ClassResult(task="t", classes=["a"], learnt=[9.0], final=[9.0], forgetting=[0.0])]
    figure = parsed(page([record(), record("hat", classes=still)])).one(
        "figure", data_kind="forgetting"
    )
    assert "Nothing changed with hat." in figure.text
    assert len(figure.all("svg", role="img")) == 1


def test_text_has_contrast_in_light_and_in_dark():
    from importlib import resources

    style = (
        resources.files("classgrad.report.page").joinpath("style.css").read_text(encoding="utf-8")
    )
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(themes) == 3
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#\w+)", theme))
        colours = {
            k: v if len(v) == 7 else "#" + "".join(2 * c for c in v[1:]) for k, v in colours.items()
        }
        pairs = [(ink, "paper") for ink in ("ink", "soft", "link", "warn")]
        pairs += [(f"s{i}", "paper") for i in range(10)]
        pairs += [("warn", "warn-back"), ("ink", "quiet-back"), ("paper", "ink"), ("soft", "panel")]
        for ink, back in pairs:
            one, two = luminance(colours[ink]), luminance(colours[back])
            assert (max(one, two) + 0.05) / (min(one, two) + 0.05) >= 4.5, (ink, back)


text = st.text(max_size=8)
number = st.floats(-200, 200)
maybe = st.none() | number


@st.composite
def runs(draw):
    tasks = draw(st.lists(text, max_size=4))
    rows = draw(st.lists(st.lists(maybe, max_size=5), max_size=len(tasks)))
    layers = []
    for _ in range(draw(st.integers(0, 2))):
        groups = draw(st.lists(st.integers(0, 3), max_size=5))
        layers.append(
            Layer(
                name=draw(text),
                dimension=draw(st.integers(1, 50)),
                ranks=draw(st.lists(st.integers(0, 60), min_size=1, max_size=5)),
                groups=groups,
                cosines=draw(st.lists(number, min_size=len(groups), max_size=len(groups))),
            )
        )
    classes = st.builds(
        ClassResult,
        task=text,
        classes=st.lists(text, max_size=3),
        learnt=st.lists(maybe, max_size=3),
        final=st.lists(maybe, max_size=3),
        forgetting=st.lists(maybe, max_size=3),
    )
    shares = st.lists(maybe, max_size=3)
    held = st.builds(
        HeldEnergy,
        layer=text,
        learnt_train=shares,
        learnt_test=shares,
        final_train=shares,
        final_test=shares,
    )
    curves = st.builds(Curve, epochs=st.integers(0, 9), train=st.lists(maybe, max_size=9))
    base = record(tasks=["0"], accuracies=((1.0,),)).model_dump()
    base |= {
        "benchmark": draw(st.sampled_from(["toys", "others"])),
        "tasks": tasks,
        "method": {"name": draw(st.sampled_from(["cgp", "gpm", ""])), "x": draw(st.booleans())},
        "seed": draw(st.integers(-1, 3)),
        "accuracy_matrix": rows,
        "average_accuracy": draw(maybe),
        "backward_transfer": draw(maybe),
        "average_accuracy_task_free": draw(maybe),
        "capacity": draw(maybe),
        "classes": draw(st.lists(classes, max_size=3)),
        "layers": layers,
        "curves": draw(st.lists(curves, max_size=3)),
        "held": draw(st.lists(held, max_size=2)),
        "seconds": {"train": draw(number), "memory": draw(number), "evaluate": draw(number)},
        "complete": draw(st.booleans()),
    }
    return RunRecord.model_validate(base)


@settings(max_examples=60, deadline=None)
@given(st.lists(runs(), min_size=1, max_size=6))
def test_any_records_have_a_page(several):
    root = parsed(page(several))
    count = len({one.benchmark for one in several})
    assert len([table for table in root.all("table") if table["id"]]) == 2 * count
    ids = [one["id"] for one in root.all() if one["id"]]
    assert len(ids) == len(set(ids))
