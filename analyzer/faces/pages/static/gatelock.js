"use strict";
// The zone of the viewer: the server shows times in it. The first page of all is loaded once more.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const wanted = `gatelock-zone=${encodeURIComponent(zone)}`;
  if (document.cookie.split("; ").includes(wanted)) return;
  document.cookie = `${wanted}; path=/; max-age=31536000; samesite=lax`;
  if (zone !== "UTC" && document.querySelector("#live") && document.cookie.includes(wanted)) location.reload();
})();

// Red, amber and green have meanings, so no series has them.
const COLOURS = {
  light: ["#1f5fe0", "#0b8fa8", "#7a4fd6", "#c0469a", "#4d7c99", "#9a7b4f", "#5a5fae", "#2f7f86"],
  dark: ["#6f9bff", "#3fb9d1", "#a98bf0", "#e07fc0", "#86aac2", "#c6a877", "#9499e0", "#6cc0c4"],
};
const OTHERS = { light: "#c3cad6", dark: "#46536a" };
const drawn = new WeakMap();
const isDark = matchMedia("(prefers-color-scheme: dark)");
const scheme = () => (isDark.matches ? "dark" : "light");
const colourOf = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

// What a script has drawn, and a form that is open, are kept when a page refreshes itself.
Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) =>
  !(old.classList && (old.classList.contains("drawn") || (old.classList.contains("act") && old.open)));

function layerColour(place, isStacked, layer) {
  const [name, , role] = layer;
  if (role === "refused" || role === "limit") return colourOf("--bad");
  if (role === "usual") return colourOf("--soft");
  if (role === "forecast") return COLOURS[scheme()][0];
  if (name === "all others" && isStacked) return OTHERS[scheme()];
  return COLOURS[scheme()][place % COLOURS[scheme()].length];
}

function stacked(series) {
  const below = [];
  return series.map((layer) => layer[1].map((value, place) => (below[place] = (below[place] || 0) + (value || 0))));
}

function hatched(colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 6;
  const context = canvas.getContext("2d");
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  for (const shift of [-6, 0, 6]) {
    context.moveTo(shift, 6);
    context.lineTo(shift + 6, 0);
  }
  context.stroke();
  return context.createPattern(canvas, "repeat");
}

// A value in the unit of its chart: the server has chosen the unit.
function amount(value, divisor, symbol) {
  const scaled = value / divisor;
  const digits = Math.abs(scaled) >= 100 || Number.isInteger(scaled) ? 0 : Math.abs(scaled) >= 10 ? 1 : 2;
  const text = scaled.toLocaleString("en-US", { maximumFractionDigits: digits });
  return symbol ? `${text}${symbol.length === 1 && /[kMGT]/.test(symbol) ? "" : " "}${symbol}` : text;
}

function clockOf(zone, lengthS) {
  const shown = lengthS > 86400 * 2 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit" };
  const short = new Intl.DateTimeFormat("en-GB", { ...shown, hourCycle: "h23", timeZone: zone });
  const whole = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "short", timeZone: zone });
  return { short: (at) => short.format(at * 1000), whole: (at) => whole.format(at * 1000) };
}

function optionsOf(chart, figure, values, labels, colours, show) {
  const clock = clockOf(figure.dataset.zone, chart.times[chart.times.length - 1] - chart.times[0]);
  const steps = (/min|h$/.test(chart.symbol) ? [1, 2, 5, 10, 15, 30, 60, 120, 300, 600] : [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000])
    .filter((one) => one >= 1 || chart.divisor > 1).map((one) => one * chart.divisor);
  const axis = { stroke: colourOf("--soft"), font: "11px system-ui, sans-serif", grid: { stroke: colourOf("--line"), width: 1 }, ticks: { show: false } };
  const least = chart.limit ? chart.limit[0] : 0;
  const dashes = { usual: [4, 3], forecast: [2, 4], limit: [6, 4] };
  const last = values.length;
  const filled = (place) => (chart.series[last - 1 - place][2] === "refused" ? () => hatched(colours[place]) : colours[place] + (scheme() === "dark" ? "b0" : "d0"));
  return {
    width: figure.clientWidth || 600,
    height: 200,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    scales: { y: { range: (_plot, _least, most) => [0, Math.max(1, most * 1.08, least * 1.08)] } },
    axes: [
      { ...axis, space: 70, size: 26, values: (_plot, at) => at.map(clock.short) },
      { ...axis, size: 62, space: 36, incrs: steps, values: (_plot, at) => at.map((one) => (one ? show(one) : "0")) },
    ],
    bands: chart.stacked ? values.slice(1).map((_, place) => ({ series: [place + 1, place + 2], fill: filled(place) })) : [],
    series: [{}, ...values.map((_, place) => {
      const role = chart.series[last - 1 - place][2];
      return {
        label: labels[place], stroke: colours[place], width: chart.stacked ? 1 : role === "usual" ? 1.25 : 2, points: { show: false }, dash: dashes[role],
        ...(chart.stacked && place === last - 1 ? { fill: filled(place) } : {}),
        ...(!chart.stacked && place === last - 1 && !role ? { fill: colours[place] + "1c" } : {}),
      };
    })],
    hooks: { draw: [(plot) => limitLine(plot, chart)], setCursor: [(plot) => showValues(plot, chart, figure, show, clock)] },
  };
}

function limitLine(plot, chart) {
  if (!chart.limit) return;
  const { ctx, bbox } = plot;
  const y = plot.valToPos(chart.limit[0], "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colourOf("--bad");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.textAlign = "left";
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillText(chart.limit[1], bbox.left + 6 * devicePixelRatio, y - 5 * devicePixelRatio);
  ctx.restore();
}

function showValues(plot, chart, figure, show, clock) {
  const place = plot.cursor.idx;
  const time = figure.querySelector(".legend .at");
  if (time) time.textContent = place === null || place === undefined ? "" : clock.whole(chart.times[place]);
  figure.querySelectorAll(".legend .value").forEach((field, number) => {
    const value = place === null || place === undefined ? null : chart.series[number][1][place];
    field.textContent = value === null || value === undefined ? "" : show(value);
  });
}

function draw(figure) {
  const text = figure.dataset.chart;
  const known = drawn.get(figure);
  if (known && known.text === text && known.width === figure.clientWidth) return;
  const chart = JSON.parse(text);
  // The highest layer first: the space between it and the next is filled.
  const values = (chart.stacked ? stacked(chart.series) : chart.series.map((one) => one[1])).reverse();
  const colours = chart.series.map((one, place) => layerColour(place, chart.stacked, one)).reverse();
  const labels = chart.series.map((one) => one[0]).reverse();
  const shape = JSON.stringify([labels, chart.limit, chart.divisor, chart.symbol]);
  const show = (value) => amount(value, chart.divisor, chart.symbol);
  if (known && known.width === figure.clientWidth && known.shape === shape) {
    Object.assign(known.chart, chart);
    known.plot.setData([chart.times, ...values]);
    known.text = text;
    return;
  }
  if (known) known.plot.destroy();
  const target = figure.querySelector(".drawn");
  target.replaceChildren();
  const plot = new uPlot(optionsOf(chart, figure, values, labels, colours, show), [chart.times, ...values], target);
  target.append(legend(chart, [...colours].reverse()));
  drawn.set(figure, { text, shape, chart, width: figure.clientWidth, plot });
}

function legend(chart, colours) {
  const list = document.createElement("ul");
  list.className = "legend";
  chart.series.forEach(([name, , role], place) => {
    const entry = document.createElement("li");
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    mark.setAttribute("viewBox", "0 0 10 10");
    const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const isLine = role === "usual" || role === "forecast";
    for (const [key, value] of Object.entries({ y: isLine ? 4 : 0, width: 10, height: isLine ? 2 : 10, rx: isLine ? 0 : 2, fill: colours[place] })) box.setAttribute(key, value);
    mark.append(box);
    const label = document.createElement("span");
    label.className = "name";
    label.textContent = label.title = name;
    const value = document.createElement("span");
    value.className = "value";
    entry.append(mark, label, value);
    list.append(entry);
  });
  const time = document.createElement("li");
  time.className = "at";
  list.append(time);
  return list;
}

function drawAll() {
  document.querySelectorAll(".chart").forEach(draw);
}

document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSettle", drawAll);
addEventListener("resize", drawAll);
isDark.addEventListener("change", () => location.reload());

document.addEventListener("click", (event) => {
  const button = event.target.closest(".menu");
  if (button) {
    const isOpen = document.querySelector("header").classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  }
  document.querySelectorAll("details.act[open]").forEach((one) => {
    if (!one.contains(event.target)) one.open = false;
  });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll("details.act[open]").forEach((one) => (one.open = false));
});
