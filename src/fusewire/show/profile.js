"use strict";
// Draws the profile that stands in #data. Names come from strangers' files: they are only ever given
// to textContent and fillText, never parsed as HTML.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const LANE = 0, DEPTH = 1, START = 2, SECONDS = 3, KIND = 4, NAME = 5, BACKEND = 6, DEVICE = 7, DETAILS = 8;
const text = (event, field) => data.texts[event[field]];
const ROW = 20, HEAD = 18, TOP = 24, LEFT = 8;
const canvas = get("canvas"), tip = get("tip"), pen = canvas.getContext("2d");

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function digits(number) {
  if (number >= 100) return Math.round(number).toLocaleString("en");
  return number.toPrecision(number >= 1 ? 3 : 2);
}

function seconds(time) {
  if (time >= 1) return `${digits(time)} s`;
  return time >= 1e-4 ? `${digits(time * 1e3)} ms` : `${digits(time * 1e6)} µs`;
}

// ---- Where things are ---------------------------------------------------------------------------

const tops = [];
let height = TOP;
for (const [, depth] of data.lanes) { tops.push(height + HEAD); height += HEAD + ROW * Math.max(depth, 1) + 8; }
const total = Math.max(data.seconds, 1e-9);
// The first second that is shown, and the seconds of a pixel.
const view = {from: 0, scale: 1};
let width = 800, marked = null, selected = null, inks = {};
const left = (event) => LEFT + (event[START] - view.from) / view.scale;
const top = (event) => tops[event[LANE]] + ROW * event[DEPTH];

function colourOf(event) {
  const kind = text(event, KIND), backend = text(event, BACKEND);
  const own = kind === "region" || kind === "kernel" ? data.colours[backend] : data.colours[kind];
  return own || ["#888888", "#000000"];
}

function fit() { view.from = 0; view.scale = total / Math.max(width - 2 * LEFT, 1); draw(); }

function limit() {
  view.scale = Math.min(Math.max(view.scale, 1e-9), total / Math.max(width - 2 * LEFT, 1));
  view.from = Math.min(Math.max(view.from, 0), Math.max(total - (width - 2 * LEFT) * view.scale, 0));
}

function zoom(factor, x = width / 2) {
  const at = view.from + (x - LEFT) * view.scale;
  view.scale /= factor;
  limit();
  view.from = at - (x - LEFT) * view.scale;
  limit();
  draw();
}

// ---- Drawing ------------------------------------------------------------------------------------

function readInks() {
  const style = getComputedStyle(document.documentElement);
  inks = Object.fromEntries(["page", "ink", "faint", "line", "mark"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function step() {
  const least = 90 * view.scale, ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * ten).find((size) => size >= least);
}

function draw() {
  const sharp = devicePixelRatio || 1;
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const size = step(), until = view.from + width * view.scale;
  pen.strokeStyle = inks.line; pen.fillStyle = inks.faint; pen.lineWidth = 1;
  for (let at = Math.ceil(view.from / size) * size; at <= until; at += size) {
    const x = LEFT + (at - view.from) / view.scale;
    pen.beginPath(); pen.moveTo(x, 14); pen.lineTo(x, height); pen.stroke();
    pen.fillText(at === 0 ? "0" : seconds(at), x + 3, 8);
  }
  data.lanes.forEach(([name], at) => { pen.fillStyle = inks.ink; pen.fillText(name, LEFT, tops[at] - HEAD / 2); });
  // Of events that fall into the same pixel, one is drawn.
  const drawn = new Map();
  let count = 0;
  for (const event of data.events) {
    if (event[START] > until) break;
    const x = left(event), w = Math.max(event[SECONDS] / view.scale, 1), y = top(event);
    if (x + w < 0) continue;
    if (w <= 1.5) { if (drawn.get(y) === Math.round(x)) continue; drawn.set(y, Math.round(x)); }
    count++;
    drawEvent(event, x, y, w);
  }
  canvas.drawn = count;
}

function drawEvent(event, x, y, w) {
  const [colour, ink] = colourOf(event), from = Math.max(x, -2), shown = Math.min(x + w, width + 2) - from;
  pen.globalAlpha = marked && !marked(event) ? 0.25 : 1;
  pen.fillStyle = colour;
  pen.fillRect(from, y, shown, ROW - 2);
  if (event === selected) { pen.strokeStyle = inks.mark; pen.lineWidth = 2; pen.strokeRect(from + 1, y + 1, Math.max(shown - 2, 1), ROW - 4); }
  if (shown > 24) {
    pen.save();
    pen.beginPath(); pen.rect(from, y, shown - 3, ROW); pen.clip();
    pen.fillStyle = ink;
    pen.fillText(text(event, NAME), Math.max(from, 0) + 4, y + ROW / 2 - 1);
    pen.restore();
  }
  pen.globalAlpha = 1;
}

// ---- Pointing, keys -----------------------------------------------------------------------------

function at(x, y) {
  let found = null;
  for (const event of data.events) {
    const begin = left(event);
    if (begin > x + 2) break;
    if (y >= top(event) && y < top(event) + ROW - 2 && x <= begin + Math.max(event[SECONDS] / view.scale, 2)) found = event;
  }
  return found;
}

function about(event) {
  const where = [text(event, BACKEND), text(event, DEVICE)].filter((part) => part).join(" on ");
  const lines = [`${text(event, KIND)}: ${seconds(event[SECONDS])}, from ${seconds(event[START])}`, where, ...text(event, DETAILS).split("\n")];
  return [text(event, NAME), lines.filter((line) => line)];
}

function show(event, x, y) {
  tip.hidden = !event;
  if (!event) return;
  const [name, lines] = about(event);
  tip.replaceChildren(element("b", {}, name), ...lines.map((line) => element("div", {}, line)));
  tip.style.left = `${Math.min(x + 12, Math.max(width - tip.offsetWidth - 8, 0))}px`;
  tip.style.top = `${y + 16}px`;
}

function choose(event) {
  selected = event;
  const [name, lines] = event ? about(event) : ["", []];
  get("details").replaceChildren(...(event ? [element("b", {}, name), ...lines.map((line) => element("div", {}, line))] : []));
  draw();
}

let held = null;
const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
canvas.addEventListener("pointerdown", (event) => { held = {x: event.clientX, from: view.from, isMoved: false}; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = place(event);
  if (!held) { show(at(x, y), x, y); return; }
  if (Math.abs(event.clientX - held.x) > 3) held.isMoved = true;
  view.from = held.from - (event.clientX - held.x) * view.scale;
  limit(); draw();
});
canvas.addEventListener("pointerup", (event) => { if (held && !held.isMoved) choose(at(...place(event))); held = null; });
canvas.addEventListener("pointerleave", () => show(null));
canvas.addEventListener("wheel", (event) => {
  if (document.activeElement !== canvas && !event.ctrlKey) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), place(event)[0]);
}, {passive: false});
canvas.addEventListener("keydown", (event) => {
  const pan = (part) => { view.from += part * width * view.scale; limit(); draw(); };
  const does = {ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), "0": fit}[event.key];
  if (does) { event.preventDefault(); does(); }
});
get("in").addEventListener("click", () => zoom(1.5));
get("out").addEventListener("click", () => zoom(1 / 1.5));
get("fit").addEventListener("click", fit);
get("search").addEventListener("input", () => {
  const words = get("search").value.toLowerCase().split(/\s+/).filter((word) => word);
  const says = (event) => [NAME, KIND, BACKEND].map((field) => text(event, field).toLowerCase()).join(" ");
  marked = words.length ? (event) => words.every((word) => says(event).includes(word)) : null;
  get("count").textContent = marked ? `${data.events.filter(marked).length.toLocaleString("en")} found` : "";
  draw();
});

// ---- Start --------------------------------------------------------------------------------------

function showTotals() {
  const heads = [["kind"], ["name"], ["backend"], ["count", 1], ["total", 1], ["median", 1], ["of calls", 1]];
  const head = element("tr", {}, ...heads.map(([name, isNumber]) => element("th", isNumber ? {class: "number", scope: "col"} : {scope: "col"}, name)));
  const rows = [...data.rows].sort((one, other) => other.total - one.total).slice(0, 500).map((row) => {
    const share = row.share === null ? "" : `${(100 * row.share).toFixed(1)}%`;
    const cells = [row.kind, row.name, row.backend, row.count.toLocaleString("en"), seconds(row.total), seconds(row.median), share];
    return element("tr", {}, ...cells.map((cell, number) => element("td", {class: number > 2 ? "number" : number === 1 ? "wide" : ""}, cell)));
  });
  get("totals").append(element("div", {class: "scroll"}, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
}

function resize() {
  width = canvas.clientWidth;
  const sharp = devicePixelRatio || 1;
  canvas.width = Math.round(width * sharp); canvas.height = Math.round(height * sharp);
  limit(); draw();
}

get("name").textContent = data.name;
const hidden = data.hidden ? `; ${data.hidden.toLocaleString("en")} shorter ones are left out` : "";
get("summary").textContent = `${data.events.length.toLocaleString("en")} events in ${seconds(data.seconds)}${hidden}`;
const used = new Set(data.events.map((event) => { const kind = text(event, KIND); return kind === "region" || kind === "kernel" ? text(event, BACKEND) : kind; }));
for (const [name, [colour]] of Object.entries(data.colours)) {
  if (!used.has(name)) continue;
  const box = element("i", {});
  box.style.background = colour;
  get("legend").append(element("li", {}, box, name));
}
showTotals();
canvas.style.height = `${height}px`;
canvas.style.minHeight = "0";
readInks();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readInks(); draw(); });
width = canvas.clientWidth;
fit();
new ResizeObserver(resize).observe(canvas);
resize();
// For the tests: the page is ready, and where an event is drawn.
canvas.whereIs = (number) => { const box = canvas.getBoundingClientRect(), event = data.events[number]; return [box.left + left(event) + Math.max(event[SECONDS] / view.scale, 1) / 2, box.top + top(event) + ROW / 2]; };
document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
