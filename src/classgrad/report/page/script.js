"use strict";
// Tooltips of marks, and sorting. Without scripts, titles and tables of values show the same.
document.documentElement.classList.add("js");

const tip = document.getElementById("tip");
let at = null; // the mark that was reached by keyboard

let shown = null; // the mark that has the tooltip
let pointer = { x: 0, y: 0 }; // where it was last
let keys = false; // whether the last input was a key

function show(marks) {
  shown = marks[0] ?? null;
  tip.hidden = !shown;
  tip.textContent = marks.map((mark) => mark.dataset.tip).join("\n");
  place();
}

function place() {
  if (!shown) return;
  const box = shown.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const middle = box.left + box.width / 2 - own.width / 2;
  const most = document.documentElement.clientWidth - own.width - 6;
  const above = box.top - own.height - 8;
  tip.style.left = Math.max(6, Math.min(middle, most)) + "px";
  tip.style.top = (above < 6 ? box.bottom + 8 : above) + "px";
}

function pointed(event) {
  const rests = event.type === "pointerover" && event.clientX === pointer.x && event.clientY === pointer.y;
  pointer = { x: event.clientX, y: event.clientY };
  if (rests && keys) return; // a key has scrolled the page, and so moved a mark under the pointer
  keys = false;
  const mark = event.target.closest("[data-tip]");
  if (!mark) return show(at ? [at] : []);
  // Marks that overlap are all shown, up to six.
  const under = document.elementsFromPoint(event.clientX, event.clientY);
  const others = under.map((part) => part.closest("[data-tip]")).filter(Boolean);
  show([...new Set([mark, ...others])].slice(0, 6));
}

function goTo(mark) {
  at?.classList.remove("at");
  at = mark;
  at?.classList.add("at");
  show(at ? [at] : []);
}

document.addEventListener("pointerover", pointed);
document.addEventListener("pointerdown", pointed);
document.addEventListener("scroll", place, { passive: true, capture: true });

// Each drawing is one tab stop; the arrow keys move from value to value in it.
document.addEventListener("focusin", ({ target }) => {
  goTo(target.matches("[data-marks]:focus-visible") ? target.querySelector("[data-tip]") : null);
});
document.addEventListener("focusout", () => goTo(null));
document.addEventListener("keydown", (event) => {
  keys = true;
  if (event.key === "Escape") goTo(null);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!at || !step || event.altKey || event.ctrlKey || event.metaKey) return; // shortcuts of the browser
  event.preventDefault();
  const marks = [...at.closest("[data-marks]").querySelectorAll("[data-tip]")];
  goTo(marks[marks.indexOf(at) + step] ?? at);
});

function valueOf(row, column) {
  const { value } = row.cells[column].dataset;
  return column === 0 ? value : parseFloat(value);
}

function compare(a, b, sign) {
  if (typeof a === "string") return sign * a.localeCompare(b);
  // Missing values come last in either order.
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (a - b);
}

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const order = heads[column].getAttribute("aria-sort");
  const first = column === 0 ? "ascending" : "descending";
  const other = column === 0 ? "descending" : "ascending";
  const next = order === first ? other : first;
  heads.forEach((head, place) => head.setAttribute("aria-sort", place === column ? next : "none"));
  const sign = next === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(valueOf(a, column), valueOf(b, column), sign));
  table.tBodies[0].append(...rows);
}

// Called again after the content has been replaced.
function prepare() {
  document.querySelectorAll("[data-tip] > title").forEach((title) => title.remove());
  document.querySelectorAll("[data-marks]:has([data-tip])").forEach((drawing) => (drawing.tabIndex = 0));
  document.querySelectorAll("table.sortable").forEach((table) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sort(table, column));
    });
  });
}

prepare();
