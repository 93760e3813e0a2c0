"""The page of a report in a real browser: opened as a file, with no network at all."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from classgrad.cli.report import experiment_lines
from classgrad.report.page import page
from classgrad.runs.record import RunRecord

RESULTS = Path(__file__).parents[2] / "results" / "permuted-digits"
PAPER = RESULTS.parent / "paper"
WIDTHS = [390, 768, 1200]  # of a phone, a tablet, a laptop
KINDS = {"curve", "matrix", "forgetting", "free-rank", "merged", "cost"}
HOSTILE = (
    "\"'></title></script><img src=x onerror=\"document.title='taken'\"><script>alert(1)</script>"
)

# Contrast of an element's text with what is behind it, as WCAG 2 defines it.
CONTRAST = """(element) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = element;
  const clear = (one) => getComputedStyle(one).backgroundColor === "rgba(0, 0, 0, 0)";
  while (clear(behind)) behind = behind.parentElement;
  const text = luminance(getComputedStyle(element).color);
  const back = luminance(getComputedStyle(behind).backgroundColor);
  return (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
}"""


def records(*methods):
    paths = [path for name in methods for path in sorted(RESULTS.glob(f"*-{name}-seed*"))]
    return [with_groups(RunRecord.load(path)) for path in paths]


def with_groups(record):
    """Return a record of CGP with classes that were merged, which the stored ones do not tell."""
    if record.method_name != "cgp":
        return record
    told = {"groups": [0, 1, 0, 1], "cosines": [1.0, 1.0, 0.8, 0.9]}
    return record.model_copy(
        update={"layers": [layer.model_copy(update=told) for layer in record.layers]}
    )


def written(folder, runs, **options):
    """Write a page; return its address."""
    file = folder / "report.html"
    file.write_text(page(runs, **options), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of four methods and three seeds."""
    runs = records("cgp", "gpm", "finetune", "multitask")
    return written(tmp_path_factory.mktemp("page"), runs)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """A page of the runs that repeat the paper: three benchmarks, many and few rows and tasks."""
    runs = [RunRecord.load(path) for path in sorted(PAPER.glob("*/record.json"))]
    folder = tmp_path_factory.mktemp("paper")
    return written(folder, runs, published=experiment_lines(runs))


def heading(tab, title):
    return tab.locator("#best-1 thead th").filter(has_text=title)


def rows(tab, table="best-1"):
    """Return the names of the rows, from top to bottom."""
    heads = tab.locator(f"#{table} tbody th")
    return heads.evaluate_all("all => all.map((head) => head.dataset.value)")


def visible_figures(tab):
    """Open the fold of more figures, and return all figures."""
    tab.locator("details.aside > summary").first.click()
    return tab.locator("figure.figure")


def sorted_rows(column, descending):
    """Return the names of the rows in the order of a figure, from the records themselves."""
    values = {}
    for record in records("cgp", "gpm", "finetune", "multitask"):
        values.setdefault(record.method_name, []).append(getattr(record, column))
    known = {name: sum(v) for name, v in values.items() if None not in v}
    ordered = sorted(known, key=known.get, reverse=descending)
    return ordered + [name for name in values if name not in known]  # what is unknown comes last


def test_every_figure_is_drawn(opened, report):
    tab = opened(report)
    figures = visible_figures(tab)
    assert {figure.get_attribute("data-kind") for figure in figures.all()} == KINDS
    for figure in figures.all():
        drawings = figure.locator("[data-marks]:visible")
        assert drawings.count() > 0
        for drawing in drawings.all():
            box = drawing.bounding_box()
            assert box["width"] > 50
            assert box["height"] > 20
            assert drawing.locator("[data-tip]").count() > 0


def test_columns_are_sorted_with_the_mouse(opened, report):
    tab = opened(report)
    assert heading(tab, "ACC %").get_attribute("aria-sort") == "descending"
    assert rows(tab) == sorted_rows("average_accuracy", descending=True)
    transfer = heading(tab, "BWT")
    for order in ("descending", "ascending", "descending"):
        transfer.get_by_role("button").click()
        assert transfer.get_attribute("aria-sort") == order
        assert rows(tab) == sorted_rows("backward_transfer", order == "descending")
        others = tab.locator("#best-1 thead th[aria-sort$=cending]")
        assert others.count() == 1


def test_columns_are_sorted_with_the_keyboard(opened, report):
    tab = opened(report)
    for _ in range(20):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.textContent") == "method":
            break
    tab.keyboard.press("Enter")
    assert heading(tab, "method").get_attribute("aria-sort") == "ascending"
    assert rows(tab) == ["cgp", "finetune", "gpm", "multitask"]
    tab.keyboard.press("Space")
    assert heading(tab, "method").get_attribute("aria-sort") == "descending"
    assert rows(tab) == ["multitask", "gpm", "finetune", "cgp"]


def test_names_are_sorted_without_what_is_beside_them(opened, tmp_path):
    runs = records("cgp")
    longer = [r.model_copy(update={"method": {**r.method, "name": "cgp b"}}) for r in runs]
    tab = opened(written(tmp_path, [*runs, *longer], against="cgp"))
    tab.locator("details.all > summary").click()
    row = tab.locator("#comparison-1").get_by_role("rowheader", name="cgp reference fast")
    assert row.count() == 1
    tab.locator("#comparison-1 thead button").first.click()
    assert rows(tab, "comparison-1") == ["cgp", "cgp b"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_hovering_shows_a_value(opened, report, kind):
    tab = opened(report)
    visible_figures(tab)
    drawing = tab.locator(f"figure[data-kind={kind}] [data-marks]:visible").last
    mark = drawing.locator("[data-tip]").last  # nothing lies on top of it
    tip = tab.locator("#tip")
    assert not tip.is_visible()
    mark.hover(force=True)
    assert tip.get_attribute("role") == "tooltip"
    assert tip.inner_text().splitlines()[0] == mark.get_attribute("data-tip")
    assert any(sign.isdecimal() for sign in tip.inner_text())
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= tab.viewport_size["width"]
    tab.keyboard.press("Escape")
    assert not tip.is_visible()


def test_the_keyboard_shows_values_too(opened, report):
    tab = opened(report)
    tip = tab.locator("#tip")
    tab.mouse.move(400, 300)  # a pointer that rests does not take the tip away
    for _ in range(60):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.matches('figure [data-marks]')"):
            break
    values = tab.evaluate(
        "[...document.activeElement.querySelectorAll('[data-tip]')].map((one) => one.dataset.tip)"
    )
    assert tip.inner_text() == values[0]
    tab.evaluate("window.scrollBy(0, 30)")
    tab.wait_for_timeout(200)
    mark = tab.locator("[data-tip].at")
    assert tip.is_visible()
    assert abs(tip.bounding_box()["y"] - mark.bounding_box()["y"]) < 100
    for key in ("Alt", "Control", "Meta"):  # what the browser does with these is left to it
        tab.keyboard.press(f"{key}+ArrowRight")
        assert tip.inner_text() == values[0]
    for key, place in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("ArrowUp", 0)):
        tab.keyboard.press(key)
        assert tip.inner_text() == values[place]
        assert tip.is_visible()
    tab.keyboard.press("ArrowLeft")
    assert tip.inner_text() == values[0]
    tab.keyboard.press("Tab")
    assert tip.inner_text() != values[0] or not tip.is_visible()
    tab.keyboard.press("Escape")
    assert not tip.is_visible()


@pytest.mark.parametrize("width", [320, 860, 1280])
def test_no_window_is_too_narrow(opened, report, width):
    tab = opened(report, viewport={"width": width, "height": 700})
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
    tab.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width


# Texts of a page that others cover, that are cut at an edge, or that are too small to be read.
UNREADABLE = """(root) => {
  const wrong = [];
  const shown = (one) => one.checkVisibility({ contentVisibilityAuto: true });
  const boxes = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.textContent.trim() || !shown(parent)) continue;
    if (parent.closest("title, script, .unseen")) continue;
    const size = parseFloat(getComputedStyle(parent).fontSize);
    const range = document.createRange();
    range.selectNodeContents(node);
    const drawing = parent.closest("svg");
    const frame = drawing?.viewBox?.baseVal;
    const scale = frame?.width ? drawing.getBoundingClientRect().width / frame.width : 1;
    const text = node.textContent.trim().slice(0, 40);
    if (size * scale < 7.5) wrong.push(`small: ${text} ${size * scale}`);
    for (const box of range.getClientRects()) {
      if (box.width < 1) continue;
      if (box.left < -1 || box.right > innerWidth + 1) wrong.push(`outside: ${text}`);
      boxes.push({ box, text, parent });
    }
    for (let at = parent; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      const cut = style.overflowX !== "visible" && at.scrollWidth > at.clientWidth + 1;
      if (cut && !at.closest("svg")) wrong.push(`cut: ${text} in ${at.className}`);
    }
  }
  boxes.sort((a, b) => a.box.top - b.box.top);
  boxes.forEach(({ box, text }, index) => {
    for (const other of boxes.slice(index + 1)) {
      if (other.box.top >= box.bottom) break;
      const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
      const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
      const least = 0.45 * Math.min(box.height, other.box.height); // it is higher than letters
      if (wide > 1.5 && high > least) wrong.push(`over: ${text} and ${other.text}`);
    }
  });
  return [...new Set(wrong)];
}"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("runs", ["report", "paper"])
def test_every_text_can_be_read(opened, request, runs, width):
    tab = opened(request.getfixturevalue(runs), viewport={"width": width, "height": 800})
    assert tab.locator("body").evaluate(UNREADABLE) == []
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A page of all methods and three seeds: the most columns."""
    runs = [RunRecord.load(path) for path in sorted(RESULTS.glob("*-seed*"))]
    return written(tmp_path_factory.mktemp("digits"), runs)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("runs", ["digits", "paper"])
def test_the_table_of_all_figures_fits_the_window(opened, request, runs, width):
    tab = opened(request.getfixturevalue(runs), viewport={"width": width, "height": 800})
    for fold in tab.locator("details.all > summary").all():
        fold.click()
    columns = set(tab.locator("#comparison-1 thead th").all_inner_texts())
    own = {"digits": {"incremental", "capacity"}, "paper": {"no task: confidence", "paper BWT"}}
    assert {"difference", "seeds", *own[runs]} <= columns or width < 1200
    assert tab.locator("body").evaluate(UNREADABLE) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [10, 20])
def test_long_names_of_tasks_leave_room_for_numbers(opened, tmp_path, count, width):
    tasks = [f"household electrical devices {task}" for task in range(count)]
    runs = [
        record.model_copy(
            update={
                "tasks": tasks,
                "accuracy_matrix": [[100.0] * (task + 1) for task in range(count)],
            }
        )
        for record in records("gpm", "ewc")
    ]
    tab = opened(written(tmp_path, runs), viewport={"width": width, "height": 800})
    assert tab.locator("figure[data-kind=matrix]").evaluate(UNREADABLE) == []
    narrow = tab.locator(".heat td[data-tip]").evaluate_all(
        "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    )
    assert narrow == 0


@pytest.mark.parametrize(
    ("style", "kind"),
    [
        (".best tbody th { white-space: nowrap; overflow: hidden; width: 3rem }", "cut"),
        (".facts b { margin-top: -20px }", "over"),
        ("svg.large text { font-size: 5px !important }", "small"),
        (".remarks { margin-left: 400px; width: 900px }", "outside"),
    ],
)
def test_what_cannot_be_read_is_noticed(opened, paper, style, kind):
    tab = opened(paper, viewport={"width": 1200, "height": 800})
    tab.evaluate(
        """(style) => {
          const sheet = new CSSStyleSheet();
          sheet.replaceSync(style);
          document.adoptedStyleSheets = [sheet];
        }""",
        style,
    )
    wrong = tab.locator("body").evaluate(UNREADABLE)
    assert {one.partition(":")[0] for one in wrong} >= {kind}


def test_the_page_of_the_papers_runs_is_short(opened, paper):
    tab = opened(paper, viewport={"width": 1200, "height": 800})
    assert tab.evaluate("document.documentElement.scrollHeight") < 6000


@pytest.mark.parametrize("width", WIDTHS)
def test_the_answer_is_on_the_first_screen_of_a_benchmark(opened, paper, width):
    tab = opened(paper, viewport={"width": width, "height": 844})
    for section in tab.locator("section[data-stream]").all():
        top = section.bounding_box()["y"]
        for part in (".verdict", ".facts", ".best tbody tr"):
            box = section.locator(part).first.bounding_box()
            assert box["y"] - top < 844
        assert section.locator(".facts dt").all_inner_texts()[1:2] == ["Task unknown"]


def test_on_a_phone_a_row_has_name_accuracy_and_transfer_and_folds_the_rest(opened, paper):
    tab = opened(paper, viewport={"width": 390, "height": 844})
    row = tab.locator("#best-1 tbody tr").nth(1)
    cells = [cell for cell in row.locator("th, td:not(.rest)").all() if cell.is_visible()]
    tops = [cell.bounding_box()["y"] for cell in cells]
    assert len(cells) == 3
    assert max(tops) - min(tops) < 10
    columns = [
        tab.locator(f"#best-1 tbody tr td:nth-child({n})").evaluate_all(
            "all => all.map((cell) => Math.round(cell.getBoundingClientRect().right))"
        )
        for n in (2, 3)
    ]
    assert all(len(set(edges)) == 1 for edges in columns)  # so that figures can be compared
    rest = row.locator("details")
    assert not rest.get_by_text("memory").is_visible()
    rest.locator("summary").click()
    assert rest.get_by_text("memory").is_visible()
    assert rest.get_by_text("fast, 12 epochs, all data").is_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_has_a_name_for_screen_readers_and_a_place_for_the_keyboard(
    opened, paper, width
):
    tab = opened(paper, viewport={"width": width, "height": 800})
    drawings = tab.locator("[data-marks]").evaluate_all(
        "all => all.map((one) => [one.ariaLabel, one.tabIndex])"
    )
    assert len(drawings) > 20
    assert all(name and re.search(r"\d", name) and stop == 0 for name, stop in drawings)
    silent = "svg:not([data-marks], [aria-hidden] *, [aria-hidden], [role=img] *)"
    assert tab.locator(silent).count() == 0
    assert all(tab.locator("summary").evaluate_all("all => all.map((one) => one.textContent)"))
    headings = tab.locator("h1, h2, h3, h4").evaluate_all("all => all.map((one) => one.localName)")
    levels = [int(name[1]) for name in headings]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_lines_of_the_curve_are_named_at_their_ends(opened, paper):
    tab = opened(paper, viewport={"width": 1200, "height": 800})
    curve = tab.locator("section#benchmark-1 figure[data-kind=curve]")
    names = curve.locator("svg.large text.name").all_text_contents()
    assert any("GPM" in name for name in names)
    boxes = curve.locator("svg.large text.name").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).map((b) => [b.top, b.bottom])"
    )
    boxes.sort()
    assert all(one[1] <= two[0] + 2 for one, two in pairwise(boxes))
    width = tab.locator("main").evaluate("one => one.clientWidth")
    assert curve.locator("svg.large").bounding_box()["width"] > 0.85 * width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(opened, report, scheme):
    tab = opened(report, color_scheme=scheme)
    kinds = "body, h1, h2, h3, h4, p, caption, summary, th, th button, td, td small, .badge, footer"
    kinds += ", .facts b, .facts span, .heat td[data-tip]"
    contrasts = tab.locator(kinds).evaluate_all(f"all => all.map({CONTRAST})")
    assert len(contrasts) > 50
    assert min(contrasts) >= 4.5
    # The measure itself: black on white, and a scheme that is really the other one.
    tab.evaluate("document.body.style.cssText = 'color: black; background: white'")
    assert tab.locator("body").evaluate(CONTRAST) == pytest.approx(21)


def test_light_and_dark_differ(opened, report):
    backs = [
        opened(report, color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    ]
    assert backs[0] != backs[1]


def test_it_can_be_read_without_scripts(opened, report):
    tab = opened(report, java_script_enabled=False)
    assert rows(tab) == sorted_rows("average_accuracy", descending=True)
    assert tab.locator("figure.figure [data-marks]:visible").count() > 5
    values = tab.locator("figure.figure details").first
    values.locator("summary").click()
    assert values.locator("table").is_visible()


def test_tables_and_figures_are_printed(opened, report):
    tab = opened(report)
    tab.emulate_media(media="print")
    for table in ("#best-1", "#comparison-1"):
        assert all(row.is_visible() for row in tab.locator(f"{table} tbody tr").all())
    for kind in ("curve", "matrix", "forgetting", "free-rank"):
        drawn = tab.locator(f"figure[data-kind={kind}] [data-marks]:visible")
        assert drawn.count() > 0


def test_names_are_never_markup(opened, tmp_path):
    changed = [
        record.model_copy(
            update={
                "benchmark": HOSTILE,
                "network": HOSTILE,
                "recipe": HOSTILE,
                "tasks": [HOSTILE + str(number) for number in range(len(record.tasks))],
                "method": {**record.method, "name": record.method_name + HOSTILE, HOSTILE: HOSTILE},
                "layers": [
                    layer.model_copy(update={"name": HOSTILE + layer.name})
                    for layer in record.layers
                ],
                "classes": [
                    part.model_copy(
                        update={"task": HOSTILE, "classes": [HOSTILE + c for c in part.classes]}
                    )
                    for part in record.classes
                ],
                "data_notes": [HOSTILE],
                "versions": {HOSTILE: HOSTILE},
            }
        )
        for record in records("cgp", "gpm")
    ]
    tab = opened(written(tmp_path, changed, title=HOSTILE))
    for mark in tab.locator("[data-tip]").all()[:40]:
        mark.dispatch_event("pointerover")
    assert tab.title() == HOSTILE
    assert tab.locator("img").count() == 0
    assert tab.locator("script").count() == 1
    assert HOSTILE in tab.locator("h1").inner_text()
