"use strict";
// Tooltips and sorting. Without scripts the page says the same: titles, and tables of values.
document.documentElement.classList.add("js");

const tip = document.getElementById("tip");
document.querySelectorAll("[data-tip] > title").forEach((title) => title.remove());

let shown = null; // the mark that the tip is of

function show(event) {
  shown = event.target.closest("[data-tip]");
  tip.hidden = !shown;
  if (!shown) return;
  // Marks that lie on each other are all told, a few at most.
  const under = document.elementsFromPoint(event.clientX, event.clientY);
  const others = under.map((part) => part.closest("[data-tip]")).filter(Boolean);
  const marks = [...new Set([shown, ...others])].slice(0, 6);
  tip.textContent = marks.map((mark) => mark.dataset.tip).join("\n");
  place();
}

function place() {
  if (!shown) return;
  const at = shown.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const middle = at.left + at.width / 2 - own.width / 2;
  const most = document.documentElement.clientWidth - own.width - 6;
  const above = at.top - own.height - 8;
  tip.style.left = Math.max(6, Math.min(middle, most)) + "px";
  tip.style.top = (above < 6 ? at.bottom + 8 : above) + "px";
}

document.addEventListener("pointerover", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", place, { passive: true, capture: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tip.hidden = true;
});

function valueOf(row, column) {
  const cell = row.cells[column];
  return column === 0 ? cell.textContent : parseFloat(cell.dataset.value);
}

function compare(a, b, sign) {
  if (typeof a === "string") return sign * a.localeCompare(b);
  // What was not measured goes last, whichever the order.
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

document.querySelectorAll("table.sortable").forEach((table) => {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => sort(table, column));
  });
});
