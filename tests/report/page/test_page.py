import re
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.cli.report import published_lines
from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.report.page import page
from classgrad.report.page.charts import luminance
from classgrad.runs.record import ClassResult, Layer, RunRecord
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
    assert column(root, "seeds") == {"cgp": "1–3", "gpm": "2–4"}
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
    assert values_of(root, "room")[1:] == [
        ["fc1", "cgp", "80.0", "55.0"],
        ["fc1", "gpm", "80.0", "55.0"],
    ]
    assert values_of(root, "cost")[1] == ["cgp", "20.0 s", "2.0 s", "1.0 s", "23.0 s", "4.0 kB"]


def test_every_figure_is_drawn_described_and_has_its_values(root):
    kinds = [figure["data-kind"] for figure in root.all("figure", class_="figure")]
    assert kinds == ["curve", "matrix", "forgetting", "room", "cost"]
    for figure in root.all("figure"):
        drawn = figure.all("svg", role="img")
        assert drawn
        assert all(svg["aria-label"] for svg in drawn)
        (values,) = figure.one("details").all("table")
        assert len(values.rows()) > 1
        told = [mark for svg in drawn for mark in svg.all() if mark["data-tip"]]
        assert told
        assert all(mark.one("title").text == mark["data-tip"] for mark in told)


def test_what_is_said_on_hover_is_in_the_records(root):
    def tips(kind):
        figure = root.one("figure", data_kind=kind)
        return {one["data-tip"] for one in figure.all() if one["data-tip"]}

    assert f"cgp, after task 0: {text_of([90, 92, 91])} %" in tips("curve")
    assert f"after task 1, on task 0: {text_of([80, 86, 88])} %" in tips("matrix")
    assert "task 0.a (task 0): +2.0 ± 1.0 points lost" in tips("forgetting")
    assert "gpm, fc1, after task 1: 55.0 ± 0.0 % free, 9 of 20 in use" in tips("room")
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
    tips = [one["data-tip"] for one in figure.all("circle")]
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


def published(seed, accuracy, label="CGP", **changes):
    experiment = experiments.load("cifar100")
    plan = experiment.plans("fast", [seed])[label][0].as_dict()
    return record(**{"accuracies": ((accuracy,),), **plan, "method": "x"}).model_copy(
        update={**plan, "backward_transfer": -0.5, "task_free_batches": "mixed", **changes}
    )


def test_accuracy_without_the_task_says_if_batches_revealed_it():
    older = published(1, 60.0, task_free_batches="one task")
    root = parsed(page([older, published(1, 60.0, "GPM, own rate")]))
    said = [small.text for small in root.one("table", class_="sortable").all("small")]
    assert said == ["batches of one task"]  # by confidence, of one row
    assert "BatchNorm saw the task" in root.text


def test_the_papers_figures_are_beside_those_that_repeat_them():
    near, far = published(1, 74.0), published(1, 60.0, "GPM, own rate")
    root = parsed(page([near, far], published=published_lines()))
    printed = column(root, "paper ACC")
    assert sorted(printed.values()) == ["72.2", "74.3"]
    small = {one.text: one["class"] for one in root.all("small")}
    assert small["≈ −0.3"] is None
    assert small["≠ −12.2"] == "differs"
    assert "CIFAR-100" in root.one("section", id="benchmark-1").text
    changed = near.model_copy(update={"training": {**near.training, "epochs": 1}})
    assert "paper ACC" not in page([changed], published=published_lines())
    other = near.model_copy(update={"recipe": "mine.toml"})
    assert "paper ACC" not in page([other], published=published_lines())


def test_a_run_that_did_not_end_is_not_compared_with_the_paper():
    root = parsed(page([published(1, 60.0, complete=False)], published=published_lines()))
    assert column(root, "paper ACC") == {"cgp": "74.3"}
    assert root.one("table", class_="sortable").all("small") == []


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
    assert column(parsed(page([one, two])), "seeds") == {"cgp": "1, 2"}


def test_a_run_that_is_given_twice_counts_once(records):
    assert page([*records, records[0]]) == page(records)


def test_benchmarks_and_their_options_have_a_section_each(records):
    other = record(benchmark="others", benchmark_options={"tasks": 5})
    more = record(benchmark="others", benchmark_options={"tasks": None})
    root = parsed(page([*records, other, more]))
    titles = [one.text for one in root.one(id="content").all("h2")]
    assert titles == ["toys", "others, tasks=5", "others, tasks=none", "Runs"]
    assert [t["id"] for t in root.all("table", class_="sortable")] == [
        f"comparison-{n}" for n in (1, 2, 3)
    ]
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
    for kind in ("curve", "matrix", "forgetting", "room", "merged", "cost"):
        assert EVIL in root.one("figure", data_kind=kind).one("table").text
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
        "--set similarity=0.8"
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


def test_many_methods_have_a_frame_each_and_the_page_stays_small():
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
    assert len(parsed(text).one("figure", data_kind="curve").all("svg")) == 12


def grey_lines(count):
    figure = parsed(page([record(f"m{n}") for n in range(count)])).one("figure", data_kind="curve")
    return {len(svg.all("path", class_="other")) for svg in figure.all("svg")}, figure.text


def test_behind_a_line_are_all_others_or_some_of_them():
    counts, text = grey_lines(31)
    assert counts == {30}
    assert "Grey: the other methods." in text
    counts, text = grey_lines(40)
    assert counts == {30}
    assert "Grey: some of the other methods." in text


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
        pairs += [(f"s{i}", "paper") for i in range(7)]
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
        "seconds": {"train": draw(number), "memory": draw(number), "evaluate": draw(number)},
        "complete": draw(st.booleans()),
    }
    return RunRecord.model_validate(base)


@settings(max_examples=60, deadline=None)
@given(st.lists(runs(), min_size=1, max_size=6))
def test_any_records_have_a_page(several):
    root = parsed(page(several))
    count = len({one.benchmark for one in several})
    assert len(root.all("table", class_="sortable")) == count
    ids = [one["id"] for one in root.all() if one["id"]]
    assert len(ids) == len(set(ids))
