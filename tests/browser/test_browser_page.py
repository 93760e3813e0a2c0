"""The page of a report in a real browser: opened as a file, with no network at all."""

from pathlib import Path

import pytest

from classgrad.report.page import page
from classgrad.runs.record import RunRecord

RESULTS = Path(__file__).parents[2] / "results" / "permuted-digits"
KINDS = {"curve", "matrix", "forgetting", "room", "merged", "cost"}
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


def heading(tab, title):
    return tab.locator("#comparison-1 thead th").filter(has_text=title)


def rows(tab):
    """Return the names of the rows, from top to bottom."""
    heads = tab.locator("#comparison-1 tbody th")
    return heads.evaluate_all("all => all.map((head) => head.firstChild.textContent.trim())")


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
    figures = tab.locator("figure.figure")
    assert {figure.get_attribute("data-kind") for figure in figures.all()} == KINDS
    for figure in figures.all():
        drawings = figure.locator(".panel svg")
        assert drawings.count() > 0
        for drawing in drawings.all():
            box = drawing.bounding_box()
            assert box["width"] > 50
            assert box["height"] > 20
        sizes = figure.locator(".panel svg [data-tip]").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect()).map(b => b.width * b.height)"
        )
        assert max(sizes) > 1


def test_columns_are_sorted_with_the_mouse(opened, report):
    tab = opened(report)
    assert heading(tab, "ACC %").first.get_attribute("aria-sort") == "descending"
    assert rows(tab) == sorted_rows("average_accuracy", descending=True)
    transfer = heading(tab, "BWT")
    for order in ("descending", "ascending", "descending"):
        transfer.get_by_role("button").click()
        assert transfer.get_attribute("aria-sort") == order
        assert rows(tab) == sorted_rows("backward_transfer", order == "descending")
        others = tab.locator("#comparison-1 thead th[aria-sort$=cending]")
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
    assert tab.get_by_role("rowheader", name="cgp reference", exact=True).count() == 1
    heading(tab, "method").get_by_role("button").click()
    assert rows(tab) == ["cgp", "cgp b"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_hovering_shows_a_value(opened, report, kind):
    tab = opened(report)
    mark = tab.locator(f"figure[data-kind={kind}] [data-tip]").last  # nothing lies on top of it
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
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.matches('figure svg')"):
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


@pytest.mark.parametrize("width", [320, 700, 860, 1280])
def test_no_window_is_too_narrow(opened, report, width):
    tab = opened(report, viewport={"width": width, "height": 700})
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width
    for details in tab.locator("summary").all():
        details.click()
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(opened, report, scheme):
    tab = opened(report, color_scheme=scheme)
    kinds = "body, h1, h2, h3, h4, p, caption, summary, th, th button, td, td small, .badge, footer"
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
    assert tab.locator("figure.figure svg").first.is_visible()
    values = tab.locator("figure.figure details").first
    values.locator("summary").click()
    assert values.locator("table").is_visible()


def test_tables_and_figures_are_printed(opened, report):
    tab = opened(report)
    tab.emulate_media(media="print")
    assert tab.locator("#comparison-1").is_visible()
    assert all(row.is_visible() for row in tab.locator("#comparison-1 tbody tr").all())
    assert all(one.is_visible() for one in tab.locator("figure.figure .panel svg").all())


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
