"""How `make docs` makes a site of these pages: what MkDocs cannot do by its settings in mkdocs.yml.

Pages of the repository outside docs/ become pages of the site, other files that a page links to are
copied into it, formulas become MathML, which browsers show without a script, and every public name
has its place in the reference.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import classgrad

ROOT = Path(__file__).parents[1]
# Pages outside docs/ -> their place in the site. README.md says what classgrad is: it comes first.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "results/README.md": "records.md",
}
SOURCES = {place: source for source, place in PAGES.items()}
BLOCK = re.compile(r"^( *)(```+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
# Commands that do not become MathML -> others that do, and look the same.
NOT_CONVERTED = {r"\arg": r"\mathrm{arg}", r"\Big\{": r"\lbrace ", r"\Big\}": r"\rbrace "}
MODULES = ("benchmarks", "core", "methods", "metrics", "networks", "recipes")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference, those outside docs/, and the files that pages link to."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    for place, text in reference():
        files.append(File.generated(config, place, content=text))
    for file in [*files.documentation_pages()]:
        for link in links(file.content_string):
            target = target_of(link, file.src_uri)
            place = place_of(target)
            if files.get_file_from_path(place) is not None or not (ROOT / target).exists():
                continue  # what does not exist is found to be missing when the page is made
            path = ROOT / target
            if path.is_dir():
                files.append(File.generated(config, place, content=listing(path)))
            elif not target.startswith("docs/"):
                files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where things are in the site, and show formulas."""

    def moved(found: re.Match[str]) -> str:
        link = found[1]
        if re.match(r"\w+:", link):
            return link
        place = place_of(target_of(link, page.file.src_uri))
        return relpath(place, dirname(page.file.src_uri) or ".")

    def prose(text: str) -> str:
        text = re.sub(r"\$([^$\n]+)\$", lambda found: formula(found[1], "inline"), text)
        return LINK.sub(moved, text)

    def block(text: str) -> str:
        found = re.match(r" *```math\n(.*?)\n *```", text, re.DOTALL)
        return formula(found[1], "block") if found else text

    return outside_blocks(markdown, prose, block)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Load nothing from elsewhere."""
    return with_own_script(output, dirname(page.file.dest_uri))


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Load nothing from elsewhere in the page that says that there is no such page."""
    return with_own_script(output_content, "") if template_name == "404.html" else output_content


def with_own_script(html: str, folder: str) -> str:
    """Put the script that searches from disk in the place of one that is loaded from elsewhere."""
    own = relpath("search_from_disk.js", folder or ".")
    html, count = re.subn(
        r'<script src="https://unpkg.com/iframe-worker/[^"]*">', f'<script src="{own}">', html
    )
    if count != 1:
        raise PluginError("the theme's script for searching from disk is not where it was")
    return html


def formula(latex: str, display: str) -> str:
    """Return a formula as MathML."""
    known = latex
    for command, other in NOT_CONVERTED.items():
        known = known.replace(command, other)
    made = convert(known, display=display)
    # Browsers would stretch a norm's bars below the line, as they do not know which opens it.
    made = made.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')
    if "\\" in made:
        raise PluginError(f"a formula has a command that does not become MathML: {latex}")
    return f'<div class="formula">{made}</div>' if display == "block" else made


def links(markdown: str) -> Iterator[str]:
    """Yield the links of a page to files, without what comes after `#`."""
    found: list[str] = []

    def prose(text: str) -> str:
        found.extend(LINK.findall(text))
        return text

    outside_blocks(markdown, prose, lambda text: text)
    return (link for link in found if not re.match(r"\w+:", link))


def outside_blocks(markdown: str, prose: Callable[[str], str], block: Callable[[str], str]) -> str:
    """Return a page with its prose changed by one function, and its blocks of code by another."""
    parts, end = [], 0
    for found in BLOCK.finditer(markdown):
        parts += [prose(markdown[end : found.start()]), block(found[0])]
        end = found.end()
    return "".join([*parts, prose(markdown[end:])])


def target_of(link: str, place: str) -> str:
    """Return the path in the repository that a link of a page of the site names."""
    source = SOURCES.get(place, f"docs/{place}")
    return normpath(f"{dirname(source)}/{link}".lstrip("/"))


def place_of(target: str) -> str:
    """Return where a path of the repository is in the site."""
    if f"{target}/README.md" in PAGES:
        return PAGES[f"{target}/README.md"]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    folder = (ROOT / target).is_dir()
    return PAGES.get(target, f"files/{target}{'/index.md' if folder else ''}")


def listing(folder: Path) -> str:
    """Return a page with the names of what is in a folder of the repository."""
    names = sorted(f"{path.name}{'/' if path.is_dir() else ''}" for path in folder.iterdir())
    title = folder.relative_to(ROOT).as_posix()
    return "\n".join(
        [f"# {title}", "", "A folder of the repository:", "", *(f"- `{name}`" for name in names)]
    )


def reference() -> Iterator[tuple[str, str]]:
    """Yield a page for all names of classgrad, and one for those of each of its public modules."""
    elsewhere = {"__version__": "the version, as text"}
    for page in MODULES:
        module = getattr(classgrad, page)
        text = f"# classgrad.{page}\n\n{documented(module, page)}\n"
        yield f"reference/{page}.md", text + "".join(entries(module, public(module)))
        elsewhere[page] = f"[a module]({page}.md)"
        for name in public(module):
            if name in classgrad.__all__:
                value = getattr(module, name)
                elsewhere[name] = f"[in {page}]({page}.md#{value.__module__}.{value.__qualname__})"
    names = [name for name in classgrad.__all__ if name not in elsewhere]
    text = "# classgrad\n\nWhat `import classgrad` has.\n" + "".join(entries(classgrad, names))
    text += "\n## Also\n\n| name | |\n|---|---|\n"
    text += "".join(f"| `classgrad.{name}` | {where} |\n" for name, where in elsewhere.items())
    yield "reference/classgrad.md", text


def public(module: Any) -> list[str]:
    """Return the names that a module exports; without a list of them, those it defines."""
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return list(getattr(module, "__all__", defined))


def entries(module: Any, names: list[str]) -> Iterator[str]:
    """Yield the entry of each public name, which must have a docstring unless it is a constant."""
    for name in names:
        value = getattr(module, name)
        if isinstance(value, type) or inspect.isroutine(value):
            documented(value, f"{module.__name__}.{name}")
            path = f"{value.__module__}.{value.__qualname__}"
        elif inspect.ismodule(value):
            path = value.__name__
        else:
            path = f"{module.__name__}.{name}"
        yield f"\n::: {path}\n"


def documented(value: Any, name: str) -> str:
    """Return what a public name says of itself."""
    text = value.__doc__
    if not text:
        raise PluginError(f"{name} is public and has no docstring: write what it is")
    return inspect.cleandoc(text)


class Shown(griffe.Extension):
    """What the reference shows: no attributes without a word on them; examples as code."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Leave out what a class sets in its methods and does not document."""
        for name, member in list(cls.members.items()):
            inner = member.is_attribute and member.labels == {"instance-attribute"}
            if inner and member.value is not None and member.docstring is None:
                del cls.members[name]

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put examples into blocks of code: lines from `>>>` to the next empty line."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^>>> .*?(?=\n\n|\Z)",
                r"```pycon\n\g<0>\n```",
                obj.docstring.value,
                flags=re.M | re.S,
            )
