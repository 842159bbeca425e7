// The threshold explorer: what alerting at a threshold finds, misses and costs, from counts that the page holds.
// It stores nothing and sends no request. Without it the page shows the table of thresholds alone.
"use strict";
(() => {
  const count = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const figure = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
  const share = (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)}%` : "–");

  const explore = (box) => {
    const data = JSON.parse(box.dataset.counts);
    const input = (name) => box.querySelector(`[data-input="${name}"]`);
    const show = (name, text) => {
      box.querySelector(`[data-show="${name}"]`).textContent = text;
    };
    const slider = input("threshold");
    const [miss, alarm, prevalence] = ["miss", "alarm", "prevalence"].map(input);
    const last = data.thresholds.length - 1;
    const observed = data.positives / (data.positives + data.negatives);
    // What is no number, or cannot be one, counts as it was at first.
    const number = (field, least, most, otherwise) => {
      const value = field.value === "" ? NaN : Number(field.value);
      return value >= least && value <= most ? value : otherwise;
    };

    // Of 1,000 rows, of which as many are positive as the reader says.
    const rates = (index) => {
      const given = prevalence.value === prevalence.defaultValue ? NaN : number(prevalence, 0, 100, NaN) / 100;
      const positive = 1000 * (Number.isNaN(given) ? observed : given);
      const negative = 1000 - positive;
      const found = (positive * data.true[index]) / data.positives;
      const alarms = (negative * data.false[index]) / data.negatives;
      const missed = positive - found;
      const cost = missed * number(miss, 0, Infinity, 1) + alarms * number(alarm, 0, Infinity, 1);
      return { found, missed, alarms, left: negative - alarms, positive, cost };
    };
    const cheapest = () => {
      let best = 0;
      for (let index = 1; index <= last; index += 1) {
        if (rates(index).cost < rates(best).cost) best = index;
      }
      return best;
    };

    const update = () => {
      // To the right the threshold rises.
      const index = last - Number(slider.value);
      const threshold = data.thresholds[index];
      const text = threshold === null ? "above every score" : String(Number(threshold.toPrecision(4)));
      show("threshold", text);
      slider.setAttribute("aria-valuetext", text);
      show("found", count(data.true[index]));
      show("missed", count(data.positives - data.true[index]));
      show("alarms", count(data.false[index]));
      show("left", count(data.negatives - data.false[index]));
      const of = rates(index);
      for (const name of ["found", "missed", "alarms", "left"]) show(`${name}-rate`, figure(of[name]));
      const alerts = of.found + of.alarms;
      show("alerts", figure(alerts));
      show("precision", share(of.found / alerts));
      show("recall", share(data.true[index] / data.positives));
      show("false-rate", share(data.false[index] / data.negatives));
      show("f1", share((2 * of.found) / (alerts + of.positive)));
      show("cost", figure(of.cost));
      const best = cheapest();
      const lowest = data.thresholds[best];
      const where = lowest === null ? "no alert at all" : `threshold ${Number(lowest.toPrecision(4))}`;
      show("cheapest", `${figure(rates(best).cost)} at ${where}`);
    };

    const go = (index) => {
      slider.value = String(last - index);
      update();
    };
    slider.max = String(last);
    box.querySelector('[data-go="cheapest"]').addEventListener("click", () => go(cheapest()));
    const operating = box.querySelector('[data-go="operating"]');
    if (operating) operating.addEventListener("click", () => go(data.operating));
    box.addEventListener("input", update);
    box.hidden = false;
    go(data.operating === null ? cheapest() : data.operating);
  };

  document.querySelectorAll("[data-counts]").forEach(explore);
})();
