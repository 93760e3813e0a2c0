"""Records made on the spot, and pages taken apart."""

from html.parser import HTMLParser

from classgrad.runs.record import ClassResult, Layer, RunRecord, Seconds

EMPTY = {"meta", "br"}


def record(method="cgp", seed=1, accuracies=((90.0,), (88.0, 91.0)), **changes):
    """Return a run with an accuracy matrix; the other figures follow from it or are given."""
    names = changes.pop("tasks", [f"task {number}" for number in range(len(accuracies))])
    matrix = [[*row, *[None] * (len(names) - len(row))] for row in accuracies]
    last = [value for value in accuracies[-1] if value is not None] if accuracies else []
    usual = {
        "benchmark": "toys",
        "benchmark_options": {},
        "tasks": names,
        "method": {"name": method},
        "network": "mlp",
        "network_options": {},
        "recipe": "fast",
        "training": {"epochs": 2},
        "seed": seed,
        "accuracy_matrix": matrix,
        "average_accuracy": sum(last) / len(last) if last else None,
        "backward_transfer": -2.0 + seed if len(names) > 1 else None,
        "average_accuracy_task_free": 40.0 + seed,
        "classes": [
            ClassResult(
                task=name,
                classes=[f"{name}.a", f"{name}.b"],
                learnt=[90.0, 80.0],
                final=[90.0 - seed, 70.0],
                forgetting=[float(seed), 10.0],
            )
            for name in names
        ],
        "layers": [Layer(name="fc1", dimension=20, ranks=[4 + 5 * i for i in range(len(matrix))])]
        if matrix
        else [],
        "seconds": Seconds(train=10.0 * seed, memory=2.0, evaluate=1.0),
        "memory_bytes": 2000 * seed,
        "complete": True,
    }
    return RunRecord(**{**usual, **changes})


BEYOND = Layer(name="fc", dimension=9, ranks=[3], groups=[0, 0, 0], cosines=[1.0, 1.0, 1.5])
ODD = {
    "one task": record(accuracies=((50.0,),)),
    "nothing yet": record(accuracies=(), tasks=["a", "b"], classes=[], complete=False),
    "no tasks": record(accuracies=(), tasks=[], classes=[], backward_transfer=None),
    "only the end": record("multitask", accuracies=((None, None), (90.0, 91.0)), layers=[]),
    "nothing measured": record(accuracies=((None,), (None, None))),
    "no cost": record(seconds=Seconds(), memory_bytes=0),
    "cosines beyond one": record(layers=[BEYOND]),
    "mathematics": record("$x^{$"),
}


class Page(HTMLParser):
    """A page as a tree: each element has a name, attributes, children and text."""

    def __init__(self, text):
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]
        self.feed(text)
        assert self.open == [self.root], f"not closed: {[one.name for one in self.open]}"

    def handle_starttag(self, tag, attrs):
        one = Element(tag, dict(attrs))
        assert len(one.attributes) == len(attrs), f"an attribute twice: {attrs}"
        self.open[-1].children.append(one)
        if tag not in EMPTY:
            self.open.append(one)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop().name == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


class Element:
    """A part of a page."""

    def __init__(self, name, attributes):
        self.name, self.attributes, self.children = name, attributes, []

    def __getitem__(self, name):
        return self.attributes.get(name)

    @property
    def text(self):
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, name=None, **attributes):
        """Return all parts below with this name and these attributes, in the order of the page."""
        below = []
        for child in self.children:
            if isinstance(child, Element):
                wanted = all(
                    child[k.rstrip("_").replace("_", "-")] == v for k, v in attributes.items()
                )
                if name in (None, child.name) and wanted:
                    below.append(child)
                below += child.all(name, **attributes)
        return below

    def one(self, name=None, **attributes):
        (only,) = self.all(name, **attributes)
        return only

    def rows(self):
        """Return the lines of a table as lists of texts, without small print and badges.

        Cells that repeat others for narrow windows are left out.
        """
        lines = [[c for c in line.children if isinstance(c, Element)] for line in self.all("tr")]
        return [[_cell(c) for c in line if c["class"] != "rest"] for line in lines]


def _cell(cell):
    numbers = cell.all("span", class_="number")
    if numbers:
        return numbers[0].text
    return "".join(c if isinstance(c, str) else "" for c in cell.children).strip() or cell.text


def parsed(text):
    return Page(text).root
