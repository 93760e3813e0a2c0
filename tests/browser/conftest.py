"""A real browser without a network, for the tests of pages; where there is none they skip."""

import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: as root, in a container, Chromium has none. The rest keeps it from calling home.
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium(own: str) -> str | None:
    """Return the browser to use: the one that was named, one on the path, or Playwright's own."""
    named = os.environ.get("CLASSGRAD_CHROMIUM")
    if named:
        return named
    installed = [own] if Path(own).exists() else []
    return next((path for path in [*map(shutil.which, NAMES), *installed] if path), None)


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests of a process."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with api.sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("no Chromium: install it, or name it in CLASSGRAD_CHROMIUM")
        browser = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Open an address in a new tab; whatever goes wrong in it, or is asked of others, fails.

    The options are those of a browser context; `at` is the beginning of all addresses it may ask.
    """
    contexts, wrong = [], []

    def open_page(address, at="file://", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        context.set_offline(at == "file://")

        def judge(route):
            if route.request.url.startswith(at):
                route.continue_()
            else:
                wrong.append(f"asked for {route.request.url}")
                route.abort()

        context.route("**/*", judge)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        page.on("dialog", lambda dialog: (wrong.append("a dialog"), dialog.dismiss()))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
