// Asks every two seconds whether a record has changed; if so, replaces the content.
(() => {
  const SECONDS = 2;
  const content = () => document.getElementById("content");
  const status = document.getElementById("watch");

  // The reader's changes (open details, sorting, focus, scrolling) are restoreReaderState in new content by keys,
  // not by positions: rows change their order, and figures are added.
  const STOPS = "a[href], button, summary, [tabindex]";
  const sorted = (table) => table.querySelector("th[aria-sort=ascending], th[aria-sort=descending]");

  // Texts with numbers of lines or runs in them change: their details have a key instead.
  function nameOf(one) {
    const key = one.matches("summary") ? one.parentElement.dataset.key : undefined;
    return key ?? (one.matches("summary, button, a") ? one.firstChild.textContent.trim() : "");
  }

  function keyOf(one) {
    const named = one.querySelector("summary") ?? one;
    return [
      one.closest("[data-stream]")?.dataset.stream,
      one.closest("figure")?.querySelector("h3").textContent,
      one.closest("section")?.id === "runs",
      one.closest(".panel")?.querySelector("h4")?.firstChild.textContent,
      one.closest("table")?.id.split("-")[0], // without the number of the benchmark
      one.closest("tr")?.querySelector("th")?.dataset.value,
      one.localName,
      nameOf(named),
    ].join("\n");
  }

  function readerState() {
    const main = content();
    const open = new Map([...main.querySelectorAll("details")].map((one) => [keyOf(one), one.open]));
    const orders = new Map();
    for (const table of main.querySelectorAll("table.sortable")) {
      const head = sorted(table);
      if (head) orders.set(keyOf(table), [head.textContent, head.getAttribute("aria-sort")]);
    }
    const stop = document.activeElement;
    const focus = main.contains(stop) ? keyOf(stop) : null;
    return { open, orders, focus, x: window.scrollX, y: window.scrollY };
  }

  function restoreReaderState({ open, orders, focus, x, y }) {
    const main = content();
    for (const one of main.querySelectorAll("details")) one.open = open.get(keyOf(one)) ?? one.open;
    for (const table of main.querySelectorAll("table.sortable")) {
      const [title, order] = orders.get(keyOf(table)) ?? [];
      const head = [...table.querySelectorAll("th")].find((one) => one.textContent === title);
      // A click reverses the order: two are enough.
      for (let clicks = 0; head && clicks < 2 && head.getAttribute("aria-sort") !== order; clicks++)
        head.querySelector("button").click();
    }
    const stop = focus && [...main.querySelectorAll(STOPS)].find((one) => keyOf(one) === focus);
    stop?.focus({ preventScroll: true });
    window.scrollTo(x, y);
  }

  async function text(address) {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.text();
  }

  async function look() {
    try {
      if ((await text("/version")) !== content().dataset.version) {
        const fresh = new DOMParser().parseFromString(await text("/"), "text/html");
        const before = readerState();
        goTo(null); // the mark is about to be removed
        content().replaceWith(document.adoptNode(fresh.getElementById("content")));
        document.title = fresh.title;
        prepare();
        restoreReaderState(before);
      }
      status.textContent = "";
    } catch {
      status.textContent = "classgrad watch has ended: this page is no longer updated.";
    }
    setTimeout(look, SECONDS * 1000);
  }
  setTimeout(look, SECONDS * 1000);
})();
