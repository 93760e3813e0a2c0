"""The tables of docs/scaling.md, filled from the measured results.

The page marks a table with `<!-- scaling: NAME -->` and `<!-- end -->`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.devices import model
from benchmarks.rows import readable
from classgrad.errors import UserError, unknown
from classgrad.report.text import markdown_table

RESULTS = Path(__file__).parent / "scaling.json"
TRAFFIC = Path(__file__).parent / "traffic.json"
WIDE = Path(__file__).parent / "wide.json"
PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
TABLE = re.compile(r"(<!-- scaling: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A column: its heading, the key of its values, their scale, and the key of a divisor."""

    heading: str
    key: str
    scale: float = 1
    over: str | None = None

    def cell(self, row: dict[str, Any]) -> str:
        """Return the text for a row, or a dash if the value is missing."""
        value = row[self.key]
        if value is None:
            return "-"
        if isinstance(value, str):
            return value
        return readable(self.scale * value / (row[self.over] if self.over else 1))


def steps(unit: str = "ms", scale: float = 1e3) -> list[Column]:
    """Return the columns about steps."""
    return [
        Column(f"step without, {unit}", "bare_seconds", scale),
        Column(f"with projection, {unit}", "step_seconds", scale),
        Column("ratio", "step_seconds", over="bare_seconds"),
    ]


BASIS = [
    Column("basis kept, MB", "basis_bytes", 1e-6),
    Column("used in steps, MB", "side_bytes", 1e-6),
]
LAYERS = [
    Column("layer", "layer"),
    Column("how many", "count"),
    Column("o", "outputs"),
    Column("d", "dimension"),
    Column("rows per image", "positions"),
    Column("forward and backward of each, GFlop", "training_flops", 1e-9),
    Column("projection by rows, %", "by_rows_share", 100),
    Column("on the gradient, %", "on_gradient_share", 100),
]
MACHINE = [
    Column("processor", "cpu"),
    Column("cores", "cores"),
    Column("threads", "threads"),
    Column("load before", "load"),
    Column("torch", "torch"),
    Column("measured", "date"),
]
UPDATES = [
    Column("processes", "ranks"),
    Column("samples of a class", "samples"),
    Column("base update, s", "update_seconds"),
    Column("given to sums, MB", "update_sums_bytes", 1e-6),
    Column("handed on, MB", "update_handed_bytes", 1e-6),
    Column("counts, kB", "update_counts_bytes", 1e-3),
    Column("on the wire per process, MB", "update_wire_bytes", 1e-6),
]
STEPS = [
    Column("network", "network"),
    Column("devices", "devices"),
    Column("forward and backward, ms", "compute_seconds", 1e3),
    Column("projection, ms", "projection_seconds", 1e3),
    Column("BatchNorm sums, ms", "norm_seconds", 1e3),
    Column("gradient sums, ms", "gradient_seconds", 1e3),
    Column("sent by each, MB", "wire_bytes", 1e-6),
    Column("images per second, hidden", "best_images_per_second"),
    Column("not hidden", "worst_images_per_second"),
    Column("share of N times one, hidden, %", "best_efficiency", 100),
    Column("share, not hidden, %", "worst_efficiency", 100),
]
# For each table the path of its rows in the results, as nested keys, and its columns.
TABLES: dict[str, tuple[str, list[Column]]] = {
    "machine": ("machine", MACHINE),
    "classes": (
        "classes",
        [
            Column("classes", "classes"),
            Column("rank", "rank"),
            *BASIS,
            *steps(),
            Column("adding a class, ms", "add_seconds", 1e3),
            Column("protecting again, ms", "protect_seconds", 1e3),
        ],
    ),
    "reference": (
        "classes",
        [
            Column("classes", "classes"),
            Column("ours, GFlop", "projection_flops", 1e-9),
            Column("group by group, GFlop", "reference_flops", 1e-9),
            Column("ratio", "reference_flops", over="projection_flops"),
            Column("group by group, measured, ms", "reference_seconds", 1e3),
        ],
    ),
    "widths": (
        "widths",
        [
            Column("width d", "width"),
            Column("rank", "rank"),
            Column("weights, MB", "weight_bytes", 1e-6),
            *BASIS,
            *steps(),
            Column("adding a class, ms", "add_seconds", 1e3),
            Column("of 2 d rows, ms", "gram_seconds", 1e3),
        ],
    ),
    "batches": (
        "batches",
        [
            Column("batch", "batch"),
            *steps(),
            Column("images per second without", "bare_images_per_second"),
            Column("with", "step_images_per_second"),
        ],
    ),
    "vit": ("paper.layers.vit_b16", LAYERS),
    "resnet": ("paper.layers.resnet50", LAYERS),
    "clusters": (
        "paper.cluster",
        [
            Column("ranks", "ranks"),
            Column("images per rank", "images"),
            Column("ViT-B/16, one rate, %", "vit_b16_share", 100),
            Column("ViT-B/16, TF32, %", "vit_b16_tf32_share", 100),
            Column("ViT-B/16, float32, %", "vit_b16_float32_share", 100),
            Column("ResNet-50, one rate, %", "resnet50_share", 100),
            Column("ResNet-50, TF32, %", "resnet50_tf32_share", 100),
            Column("ResNet-50, float32, %", "resnet50_float32_share", 100),
        ],
    ),
    "memory": (
        "paper.memory",
        [
            Column("network", "network"),
            Column("weights, MB", "weight_bytes", 1e-6),
            Column("bases half full, MB", "basis_half_bytes", 1e-6),
            Column("bases full, MB", "basis_full_bytes", 1e-6),
            Column("used in steps at most, MB", "side_bytes", 1e-6),
            Column("Grams to sum, MB", "gram_bytes", 1e-6),
            Column("bases of one class, TFlop", "class_flops", 1e-12),
        ],
    ),
    "wide-machine": ("wide.machine", MACHINE),
    "wide": (
        "wide.layers",
        [
            Column("layer", "layer"),
            Column("d", "dimension"),
            Column("rows", "rows"),
            Column("kept, MB", "representation_bytes", 1e-6),
            Column("products, s", "product_seconds"),
            Column("stored", "stored"),
            Column("added", "rank"),
            Column("choosing them, s", "seconds"),
            Column("by all eigenvectors", "exact_rank"),
            Column("by all, s", "exact_seconds"),
        ],
    ),
    "models-machine": ("wide.models.machine", MACHINE),
    "models": (
        "wide.models.rows",
        [
            Column("model", "model"),
            Column("weight matrices", "layers"),
            Column("weights, MB", "weight_bytes", 1e-6),
            Column("images", "images"),
            Column("forward pass, s", "forward_seconds"),
            Column("end of the task, s", "seconds"),
            Column("directions protected, %", "rank", 100, over="dimensions"),
            Column("bases kept, MB", "basis_bytes", 1e-6),
            Column("peak, MB", "peak_bytes", 1e-6),
        ],
    ),
    "traffic-machine": ("traffic.machine", MACHINE),
    "traffic": (
        "traffic.ranks",
        [
            Column("processes", "ranks"),
            Column("step, ms", "step_seconds", 1e3),
            Column("images per second", "images_per_second"),
            Column("each by itself", "apart_images_per_second"),
            Column("given to sums, MB", "step_bytes", 1e-6),
            Column("of it gradients, MB", "gradient_bytes", 1e-6),
            Column("on the wire per process, MB", "step_wire_bytes", 1e-6),
        ],
    ),
    "traffic-updates": ("traffic.ranks", UPDATES),
    "traffic-samples": ("traffic.samples", UPDATES),
    "devices": ("model.steps", STEPS),
    "devices-updates": (
        "model.updates",
        [
            Column("network", "network"),
            Column("devices", "devices"),
            Column("sent by each, MB", "wire_bytes", 1e-6),
            Column("sums, s", "sum_seconds"),
            Column("products of inputs, s", "product_seconds"),
            Column("the rest, s", "basis_seconds"),
        ],
    ),
}


def rows_of(results: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    rows: Any = results
    *parents, last = path.split(".")
    for key in parents:
        rows = rows[key]
    if last == "machine":
        return [{**rows["machine"], "date": rows["date"], "torch": rows["versions"]["torch"]}]
    return list(rows[last])


def table(results: dict[str, Any], name: str) -> str:
    """Return a table for the page."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    path, columns = TABLES[name]
    lines = [[column.heading for column in columns]]
    lines += [[column.cell(row) for column in columns] for row in rows_of(results, path)]
    return markdown_table(lines)


def fill_tables(page: str, results: dict[str, Any]) -> str:
    """Return the page with every marked table filled."""
    return TABLE.sub(lambda match: match[1] + table(results, match[2]) + match[3], page)


def load_results(path: Path) -> dict[str, Any]:
    """Return the results of an earlier measurement."""
    if not path.exists():
        raise UserError(f"{path} does not exist: measure first")
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def all_results() -> dict[str, Any]:
    """Return all results that the page shows."""
    files = {"traffic": TRAFFIC, "wide": WIDE}
    measured = {name: load_results(path) for name, path in files.items()}
    return {**load_results(RESULTS), **measured, "model": model()}


def fill() -> None:
    """Fill the tables of the page."""
    page = fill_tables(PAGE.read_text(encoding="utf-8"), all_results())
    PAGE.write_text(page, encoding="utf-8")
