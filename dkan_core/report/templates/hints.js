// Figures by keyboard: the arrow keys go from value to value of the one that has the focus, and what is pointed at is
// said below it. It stores nothing and sends no request. Without it the table of values says the same.
"use strict";
(() => {
  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  const pointsOf = (svg) =>
    [...svg.querySelectorAll(".hint")].map((hint) => {
      const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(hint.getAttribute(name)));
      return { hint, x: x + width / 2, y: y + height / 2, text: hint.textContent };
    });

  const follow = (svg) => {
    if (!svg.querySelector(".hint")) return;
    const told = document.createElement("output");
    told.className = "told";
    told.setAttribute("aria-live", "polite");
    svg.after(told);
    svg.setAttribute("tabindex", "0");
    // Found when they are needed: a page may have a thousand figures.
    let points = [];
    let chosen = null;

    const choose = (point) => {
      if (chosen) chosen.hint.classList.remove("chosen");
      chosen = point;
      if (chosen) chosen.hint.classList.add("chosen");
      told.textContent = chosen ? chosen.text.split("\n").join(", ") : "";
    };

    // The nearest one that way; what lies aside counts twice, so that rows and columns of a map are kept.
    const next = ([right, down]) => {
      let [best, least] = [chosen, Infinity];
      for (const point of points) {
        const ahead = right * (point.x - chosen.x) + down * (point.y - chosen.y);
        const aside = Math.abs(down * (point.x - chosen.x)) + Math.abs(right * (point.y - chosen.y));
        if (ahead > 0.01 && aside <= 2 * ahead && ahead + 2 * aside < least) [best, least] = [point, ahead + 2 * aside];
      }
      return best;
    };

    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") choose(null);
      else if (event.key === "Home") choose(points[0]);
      else if (event.key === "End") choose(points.at(-1));
      else if (event.key in STEPS) choose(chosen ? next(STEPS[event.key]) : points[0]);
      else return;
      event.preventDefault();
    });
    svg.addEventListener("focus", () => {
      points = pointsOf(svg);
    });
    svg.addEventListener("blur", () => choose(null));
  };

  document.querySelectorAll("figure.card svg").forEach(follow);
})();
