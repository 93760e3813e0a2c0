"use strict";
// Tooltips and sorting. Without scripts the page says the same: titles, and tables of values.
document.documentElement.classList.add("js");

const tip = document.getElementById("tip");
document.querySelectorAll("[data-tip] > title").forEach((title) => title.remove());

function show(event) {
  const mark = event.target.closest("[data-tip]");
  if (!mark) return hide();
  // Marks that lie on each other are all told, a few at most.
  const under = document.elementsFromPoint(event.clientX, event.clientY);
  const marks = new Set([mark, ...under.map((part) => part.closest("[data-tip]")).filter(Boolean)]);
  tip.textContent = [...marks].slice(0, 6).map((one) => one.dataset.tip).join("\n");
  tip.hidden = false;
  const at = mark.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const x = at.left + at.width / 2 - own.width / 2;
  const above = at.top - own.height - 8;
  tip.style.left = Math.max(6, Math.min(x, document.documentElement.clientWidth - own.width - 6)) + "px";
  tip.style.top = (above < 6 ? at.bottom + 8 : above) + "px";
}

function hide() {
  tip.hidden = true;
}

document.addEventListener("pointerover", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", hide, { passive: true, capture: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
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
