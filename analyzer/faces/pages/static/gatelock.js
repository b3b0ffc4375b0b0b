"use strict";
// The zone of the viewer: the server shows times in it. The first page of all is loaded once more.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const wanted = `gatelock-zone=${encodeURIComponent(zone)}`;
  if (document.cookie.split("; ").includes(wanted)) return;
  document.cookie = `${wanted}; path=/; max-age=31536000; samesite=lax`;
  if (zone !== "UTC" && document.querySelector("#live") && document.cookie.includes(wanted)) location.reload();
})();

const COLOURS = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d", "#94a3b8"];
const drawn = new WeakMap();

// What a script has drawn is kept when a page refreshes itself: only the data beside it changes.
Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !(old.classList && old.classList.contains("drawn"));

function stacked(series) {
  const below = [];
  return series.map(([, values]) => values.map((value, place) => (below[place] = (below[place] || 0) + value)));
}

function draw(figure) {
  const text = figure.dataset.chart;
  const known = drawn.get(figure);
  if (known && known.text === text && known.width === figure.clientWidth) return;
  const { times, series } = JSON.parse(text);
  const isStacked = figure.getAttribute("aria-label").startsWith("Stacked");
  // The highest layer first: each lower one is painted over it.
  const values = (isStacked ? stacked(series) : series.map((one) => one[1])).reverse();
  const names = series.map((one) => one[0]).reverse();
  const colour = (place) => COLOURS[(series.length - 1 - place) % COLOURS.length];
  const style = getComputedStyle(document.body);
  const axis = { stroke: style.getPropertyValue("--soft"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
  const isLong = times[times.length - 1] - times[0] > 86400;
  const shown = isLong ? { month: "2-digit", day: "2-digit", hour: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  const clock = new Intl.DateTimeFormat(undefined, { ...shown, hourCycle: "h23" });
  const options = {
    width: figure.clientWidth || 600,
    height: 240,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_plot, _least, most) => [0, Math.max(1, most * 1.05)] } },
    axes: [{ ...axis, values: (_plot, at) => at.map((one) => clock.format(one * 1000)) }, { ...axis, size: 70 }],
    series: [{}, ...values.map((_, place) => ({
      label: names[place], stroke: colour(place), width: isStacked ? 1 : 2, points: { show: false },
      ...(isStacked ? { fill: colour(place) + "cc" } : {}),
    }))],
  };
  if (known && known.width === figure.clientWidth && known.names === names.join("\n")) {
    known.plot.setData([times, ...values]);
    known.text = text;
    return;
  }
  if (known) known.plot.destroy();
  const target = figure.querySelector(".drawn");
  target.replaceChildren();
  const plot = new uPlot(options, [times, ...values], target);
  target.append(legend(names, colour));
  drawn.set(figure, { text, names: names.join("\n"), width: figure.clientWidth, plot });
}

function legend(names, colour) {
  const list = document.createElement("ul");
  list.className = "legend";
  names.forEach((name, place) => {
    const entry = document.createElement("li");
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    mark.setAttribute("viewBox", "0 0 10 10");
    const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ width: 10, height: 10, rx: 2, fill: colour(place) })) box.setAttribute(key, value);
    mark.append(box);
    entry.append(mark, name);
    list.prepend(entry);
  });
  return list;
}

function drawAll() {
  document.querySelectorAll(".chart").forEach(draw);
}

document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSettle", drawAll);
addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
