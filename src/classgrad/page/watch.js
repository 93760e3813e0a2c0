// Asks every two seconds whether a record has changed; if so, puts the new content in its place.
(() => {
  const SECONDS = 2;
  const content = () => document.getElementById("content");
  const status = document.getElementById("watch");

  // What a reader did to the content, found again in new content by the order of things.
  const STOPS = "a[href], button, summary, [tabindex]";
  const sorted = (table) => table.querySelector("th[aria-sort=ascending], th[aria-sort=descending]");

  function taken() {
    const main = content();
    const open = [...main.querySelectorAll("details")].map((one) => one.open);
    const orders = new Map();
    for (const table of main.querySelectorAll("table.sortable")) {
      const head = sorted(table);
      if (head) orders.set(table.id, [head.textContent, head.getAttribute("aria-sort")]);
    }
    const focus = [...main.querySelectorAll(STOPS)].indexOf(document.activeElement);
    return { open, orders, focus, x: window.scrollX, y: window.scrollY };
  }

  function restored({ open, orders, focus, x, y }) {
    const main = content();
    main.querySelectorAll("details").forEach((one, at) => { one.open = open[at] ?? one.open; });
    for (const [id, [title, order]] of orders) {
      const heads = [...(document.getElementById(id)?.querySelectorAll("th") ?? [])];
      const head = heads.find((one) => one.textContent === title);
      // A click turns the order round: two are enough.
      for (let clicks = 0; head && clicks < 2 && head.getAttribute("aria-sort") !== order; clicks++)
        head.querySelector("button").click();
    }
    if (focus >= 0) main.querySelectorAll(STOPS)[focus]?.focus({ preventScroll: true });
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
        const before = taken();
        goTo(null); // the mark goes
        content().replaceWith(document.adoptNode(fresh.getElementById("content")));
        prepare();
        restored(before);
      }
      status.textContent = "";
    } catch {
      status.textContent = "classgrad watch has ended: what you see is no longer renewed.";
    }
    setTimeout(look, SECONDS * 1000);
  }
  setTimeout(look, SECONDS * 1000);
})();
