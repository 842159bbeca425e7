// Finds and sorts the columns of an explanation, or of a label's: its table, and the cards of its curves in the same order.
// It stores nothing and sends no request. Without it the page shows everything, the strongest columns first.
"use strict";
document.querySelectorAll("[data-columns]").forEach((tools) => {
  const part = tools.closest(".panel") ?? document;
  const rows = [...part.querySelectorAll("tr[data-name]")];
  const cards = [...part.querySelectorAll("figure[data-name]")];
  const terms = [...part.querySelectorAll("details[data-name]")];
  const [field, order] = ["input", "select"].map((tag) => tools.querySelector(tag));
  const shown = tools.querySelector("output");
  const folded = rows.length ? rows[0].closest("details") : null;

  const find = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hit = (each) => words.every((word) => each.dataset.name.toLowerCase().includes(word));
    for (const each of [...rows, ...cards, ...terms]) each.hidden = !hit(each);
    const [found, drawn] = [rows, cards].map((all) => all.filter((each) => !each.hidden).length);
    shown.textContent = words.length ? `${found} of ${rows.length} columns, ${drawn} drawn` : "";
    if (words.length && folded) folded.open = true;
  };

  // The largest first; a column without a number comes last.
  const sort = () => {
    const key = order.value;
    const value = (row) => (row.dataset[key] === "" ? -Infinity : Number(row.dataset[key]));
    const byName = (a, b) => a.dataset.name.localeCompare(b.dataset.name, "en");
    rows.sort((a, b) => (key === "name" ? byName(a, b) : value(b) - value(a) || byName(a, b)));
    const position = new Map(rows.map((row, index) => [row.dataset.name, index]));
    cards.sort((a, b) => position.get(a.dataset.name) - position.get(b.dataset.name));
    for (const all of [rows, cards]) {
      if (all.length) all[0].parentNode.append(...all);
    }
  };

  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    field.value = "";
    find();
  });
  order.addEventListener("change", sort);
  tools.hidden = false;
});
