"use strict";
// Draws the plan that stands in #data. Texts come from strangers' files: they are only ever given
// to textContent and fillText, never parsed as HTML.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const OP = 1, TYPES = 2, SOURCE = 3, ENGINE = 4, REGION = 5, VERDICTS = 6, WORK = 7, FROM = 8;
const text = (node, field) => data.texts[node[field]];
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function digits(number) {
  if (number >= 100) return Math.round(number).toLocaleString("en");
  return number.toPrecision(number >= 1 ? 3 : 2);
}

function seconds(time) {
  if (typeof time !== "number") return "";
  if (time >= 1) return `${digits(time)} s`;
  return time >= 1e-4 ? `${digits(time * 1e3)} ms` : `${digits(time * 1e6)} µs`;
}

// Not Math.max(...list), which overflows the stack for long lists.
const largest = (list, value) => list.reduce((most, item) => Math.max(most, value(item)), -Infinity);
const smallest = (list, value) => list.reduce((least, item) => Math.min(least, value(item)), Infinity);
const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const swatch = (colour) => { const made = element("span", {class: "swatch"}); made.style.background = colour; return made; };
const engineOf = new Map(data.engines.map((engine) => [engine.name, engine]));

// ---- The tree of groups and nodes, for one way of grouping -------------------------------------

// An item is an input, an output, a node or a group. Only those in unfolded groups are drawn.
let items, root, ofNode, mode;

function makeTree(name) {
  mode = name;
  const {groups, of} = data.groupings[name] || {groups: [], of: []};
  root = {kind: "root", children: [], parent: null, isOpen: true, count: 0};
  const made = groups.map(([label, kind]) => ({kind, label, children: [], isOpen: false, count: 0, engines: new Map(), uses: new Map()}));
  groups.forEach(([, , parent], at) => { made[at].parent = parent < 0 ? root : made[parent]; made[at].parent.children.push(made[at]); });
  const inputs = data.inputs.map(([label, types]) => ({kind: "input", label, types, parent: root}));
  ofNode = data.nodes.map((node, at) => {
    const parent = of.length && of[at] >= 0 ? made[of[at]] : root;
    return {kind: "node", at, node, label: text(node, OP), parent};
  });
  const outputs = data.outputs.map(([label, types, from]) => ({kind: "output", label, types, from, parent: root}));
  for (const item of [...inputs, ...ofNode, ...outputs]) item.parent.children.push(item);
  for (const item of ofNode) {
    for (let around = item.parent; around !== root; around = around.parent) {
      around.count++;
      const engine = item.node[ENGINE];
      around.engines.set(engine, (around.engines.get(engine) || 0) + 1);
      around.uses.set(item.label, (around.uses.get(item.label) || 0) + 1);
    }
  }
  items = {inputs, outputs, groups: made};
  openUpTo(150);
}

// Unfold groups from the outside in while few items are drawn; what repeats stays folded.
function openUpTo(most) {
  const isSmall = data.nodes.length <= 60;
  let drawn = root.children.length;
  const queue = root.children.filter((item) => item.children);
  for (let at = 0; at < queue.length; at++) {
    const group = queue[at];
    const isRepeated = group.kind === "row" || group.kind === "block";
    if ((isRepeated && !isSmall) || drawn + group.children.length > most) continue;
    group.isOpen = true;
    drawn += group.children.length;
    for (const item of group.children) if (item.children) queue.push(item);
  }
}

function shown(item) {
  let last = item;
  for (let around = item.parent; around; around = around.parent) if (!around.isOpen) last = around;
  return last;
}

// ---- Layout: layers from top to bottom, one group inside the other -----------------------------

const GAP_X = 18, GAP_Y = 34, PAD = 12, HEAD = 24, FAR = 8, SWEEPS = 6;
let edges = [], leaves = [], containers = [];

function sizeOf(item) {
  const [first, second] = lines(item);
  const wide = Math.max(first.length * 7.4, second.length * 6.2) + 22;
  item.w = Math.min(Math.max(wide, 84), 250);
  item.h = 40;
}

function lines(item) {
  if (item.children) return [`▸ ${item.label}`, many(item.count, "node")];
  if (item.kind !== "node") return [item.label || item.kind, item.types];
  return [item.label, data.engines[item.node[ENGINE]].name];
}

// Where values come from: pairs of items, each once, as drawn.
function drawnEdges() {
  const pairs = new Map();
  const add = (from, to) => {
    const [a, b] = [shown(from), shown(to)];
    if (a === b) return;
    if (!pairs.has(a)) pairs.set(a, new Set());
    pairs.get(a).add(b);
  };
  for (const item of ofNode) {
    for (const from of item.node[FROM]) add(from >= 0 ? ofNode[from] : items.inputs[-1 - from], item);
  }
  for (const item of items.outputs) {
    if (item.from !== null && item.from !== undefined) add(item.from >= 0 ? ofNode[item.from] : items.inputs[-1 - item.from], item);
  }
  return pairs;
}

function depthOf(item) { let depth = 0; for (let around = item.parent; around; around = around.parent) depth++; return depth; }

// Lift an edge to two children of the innermost group around both.
function lifted(a, b) {
  let from = a, to = b, over = depthOf(a) - depthOf(b);
  for (; over > 0; over--) from = from.parent;
  for (; over < 0; over++) to = to.parent;
  while (from.parent !== to.parent) { from = from.parent; to = to.parent; }
  return [from, to];
}

function layout() {
  edges = []; leaves = []; containers = [];
  const inside = new Map();
  for (const [a, targets] of drawnEdges()) {
    for (const b of targets) {
      const [from, to] = lifted(a, b);
      // Inside an unfolded group, an edge from outside is a stub until it is looked at.
      const edge = {a, b, from, to, route: [], isDeep: a !== from || b !== to, isTrunk: false};
      edges.push(edge);
      if (from === to) continue;
      if (!inside.has(from.parent)) inside.set(from.parent, []);
      inside.get(from.parent).push(edge);
    }
  }
  place(root, inside);
  settle(root, 0, 0);
  for (const item of [...leaves, ...containers]) { item.up = []; item.down = []; }
  for (const edge of edges) { edge.a.down.push(edge.b); edge.b.up.push(edge.a); }
}

// Give the children of a group places relative to it, and the group its size.
function place(group, inside) {
  for (const child of group.children) {
    if (child.children && child.isOpen) place(child, inside); else sizeOf(child);
  }
  const {w, h} = layered(group.children, inside.get(group) || []);
  const head = group === root ? 0 : HEAD;
  const label = group === root ? 0 : group.label.length * 7.4 + 80;
  const extra = Math.max(0, label - w) / 2;
  for (const child of group.children) { child.x += PAD + extra; child.y += PAD + head; }
  for (const edge of inside.get(group) || []) edge.route = edge.route.map(([x, y]) => [x + PAD + extra, y + PAD + head, group]);
  group.w = Math.max(w, label) + 2 * PAD;
  group.h = h + 2 * PAD + head;
}

const first = () => leaves.reduce((best, item) => (item.Y < best.Y || (item.Y === best.Y && item.X < best.X) ? item : best), leaves[0]);

function settle(group, x, y) {
  group.X = x; group.Y = y;
  for (const child of group.children) {
    if (child.children && child.isOpen) { containers.push(child); settle(child, x + child.x, y + child.y); }
    else { child.X = x + child.x; child.Y = y + child.y; leaves.push(child); }
  }
}

// Layers by longest path; order by the mean place of neighbours; places by least squares.
function layered(children, own) {
  const cells = children.map((item, at) => ({item, at, layer: 0, w: item.w, h: item.h, up: [], down: []}));
  const cellOf = new Map(children.map((item, at) => [item, cells[at]]));
  const pairs = new Map();
  for (const edge of own) {
    const key = cellOf.get(edge.from).at * children.length + cellOf.get(edge.to).at;
    if (!pairs.has(key)) pairs.set(key, []);
    pairs.get(key).push(edge);
  }
  const links = [...pairs.entries()].map(([key, list]) => ({from: cells[Math.floor(key / children.length)], to: cells[key % children.length], list, via: []}));
  assignLayers(cells, links);
  const layers = [];
  const put = (cell) => { (layers[cell.layer] = layers[cell.layer] || []).push(cell); };
  cells.forEach(put);
  for (const link of links) {
    link.isFar = link.to.layer - link.from.layer > FAR;
    link.list[0].isTrunk = true;
    if (link.isFar) { for (const edge of link.list) edge.isFar = true; continue; }
    let last = link.from;
    for (let layer = link.from.layer + 1; layer < link.to.layer; layer++) {
      const dummy = {layer, w: 6, h: 0, up: [last], down: [], isDummy: true};
      last.down.push(dummy); link.via.push(dummy); put(dummy); last = dummy;
    }
    last.down.push(link.to); link.to.up.push(last);
  }
  orderLayers(layers);
  const size = placeLayers(layers);
  for (const cell of cells) { cell.item.x = cell.x; cell.item.y = cell.y; }
  for (const link of links) {
    const route = link.via.map((dummy) => [dummy.x + dummy.w / 2, dummy.y + layers[dummy.layer].height / 2]);
    for (const edge of link.list) edge.route = route;
  }
  return size;
}

function assignLayers(cells, links) {
  const waits = new Map(cells.map((cell) => [cell, 0])), after = new Map(cells.map((cell) => [cell, []]));
  for (const {from, to} of links) { waits.set(to, waits.get(to) + 1); after.get(from).push(to); }
  const ready = cells.filter((cell) => !waits.get(cell));
  for (let at = 0; at < ready.length; at++) {
    for (const to of after.get(ready[at])) {
      to.layer = Math.max(to.layer, ready[at].layer + 1);
      waits.set(to, waits.get(to) - 1);
      if (!waits.get(to)) ready.push(to);
    }
  }
  // What follows from constants alone stands above its first user, not at the very top.
  const isFed = new Set(cells.filter((cell) => cell.item.kind === "input" || cell.item.children));
  for (const cell of ready) if (isFed.has(cell)) for (const to of after.get(cell)) isFed.add(to);
  if (!cells.some((cell) => cell.item.kind === "input")) for (const {to} of links) isFed.add(to);
  for (const cell of [...ready].reverse()) {
    const users = after.get(cell);
    if (!isFed.has(cell) && users.length) cell.layer = Math.max(cell.layer, smallest(users, (to) => to.layer) - 1);
  }
}

function orderLayers(layers) {
  layers.forEach((layer) => layer.forEach((cell, at) => { cell.order = at; }));
  const sweep = (layer, side) => {
    for (const cell of layer) {
      const near = cell[side];
      cell.wish = near.length ? near.reduce((sum, other) => sum + other.order, 0) / near.length : cell.order;
    }
    layer.sort((one, other) => one.wish - other.wish || one.order - other.order);
    layer.forEach((cell, at) => { cell.order = at; });
  };
  for (let round = 0; round < 3; round++) {
    for (let at = 1; at < layers.length; at++) sweep(layers[at], "up");
    for (let at = layers.length - 2; at >= 0; at--) sweep(layers[at], "down");
  }
}

function placeLayers(layers) {
  for (const layer of layers) {
    let x = 0;
    for (const cell of layer) { cell.x = x; x += cell.w + GAP_X; }
  }
  const move = (layer, sides) => {
    const wishes = layer.map((cell) => {
      const near = sides.flatMap((side) => cell[side]);
      if (!near.length) return cell.x;
      return near.reduce((sum, other) => sum + other.x + other.w / 2, 0) / near.length - cell.w / 2;
    });
    apart(layer, wishes);
  };
  for (let round = 0; round < SWEEPS; round++) {
    for (let at = 1; at < layers.length; at++) move(layers[at], ["up"]);
    for (let at = layers.length - 2; at >= 0; at--) move(layers[at], round === SWEEPS - 1 ? ["up", "down"] : ["down"]);
  }
  let left = Infinity, right = 0, y = 0;
  for (const layer of layers) {
    layer.height = largest(layer, (cell) => cell.h);
    for (const cell of layer) {
      left = Math.min(left, cell.x);
      cell.y = y + (layer.height - cell.h) / 2;
    }
    y += layer.height + GAP_Y;
  }
  for (const layer of layers) for (const cell of layer) { cell.x -= left; right = Math.max(right, cell.x + cell.w); }
  for (const layer of layers) for (const cell of layer) if (cell.isDummy) cell.y = cell.y - layer.height / 2;
  return {w: right, h: Math.max(0, y - GAP_Y)};
}

// The places nearest to the wishes, in order and without overlap: pool adjacent violators.
function apart(layer, wishes) {
  const pools = [];
  let offset = 0;
  layer.forEach((cell, at) => {
    cell.offset = offset;
    offset += cell.w + GAP_X;
    let pool = {sum: wishes[at] - cell.offset, count: 1};
    while (pools.length && pools[pools.length - 1].sum / pools[pools.length - 1].count > pool.sum / pool.count) {
      const last = pools.pop();
      pool = {sum: last.sum + pool.sum, count: last.count + pool.count};
    }
    pools.push(pool);
  });
  let at = 0;
  for (const {sum, count} of pools) for (let i = 0; i < count; i++, at++) layer[at].x = sum / count + layer[at].offset;
}

// ---- Drawing -----------------------------------------------------------------------------------

const canvas = get("canvas"), pen = canvas.getContext("2d"), tip = get("tip");
let view = {x: 0, y: 0, scale: 1}, size = {w: 1, h: 1}, selected = null, hovered = null, found = null, isDue = false;
let colour = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["page", "panel", "ink", "faint", "line", "edge", "group", "mark", "row", "focus"]) {
    colour[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

function resize() {
  const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
  size = {w: Math.max(1, box.width), h: Math.max(1, box.height)};
  canvas.width = Math.round(size.w * ratio);
  canvas.height = Math.round(size.h * ratio);
  redraw();
}

function redraw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => { isDue = false; draw(); });
}

function isSeen(x, y, w, h) {
  const {scale} = view, left = x * scale + view.x, top = y * scale + view.y;
  return left < size.w && top < size.h && left + w * scale > 0 && top + h * scale > 0;
}

function draw() {
  const ratio = devicePixelRatio || 1, {scale} = view;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, size.w, size.h);
  pen.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * view.x, ratio * view.y);
  for (const group of containers) if (isSeen(group.X, group.Y, group.w, group.h)) drawContainer(group);
  for (const edge of edges) drawEdge(edge);
  let count = 0;
  for (const item of leaves) if (isSeen(item.X, item.Y, item.w, item.h)) { drawBox(item); count++; }
  canvas.dataset.drawn = count;
}

function rounded(item, by, radius) {
  pen.beginPath();
  pen.roundRect(item.X - by, item.Y - by, item.w + 2 * by, item.h + 2 * by, radius);
}

function drawContainer(group) {
  rounded(group, 0, 8);
  pen.fillStyle = colour.row; pen.globalAlpha = 0.6; pen.fill(); pen.globalAlpha = 1;
  pen.lineWidth = 1.2; pen.strokeStyle = colour.group;
  pen.setLineDash(group.kind === "region" ? [] : [5, 4]); pen.stroke(); pen.setLineDash([]);
  stripe(group, group.X, group.Y, 5, group.h, true);
  mark(group);
  if (view.scale < 0.3) return;
  pen.fillStyle = colour.ink; pen.font = "600 12px system-ui, sans-serif"; pen.textAlign = "left"; pen.textBaseline = "middle";
  pen.fillText(clipped(`▾ ${group.label} · ${many(group.count, "node")}`, group.w - 20), group.X + 12, group.Y + 15);
}

// The engines of a group, each with its share.
function stripe(group, x, y, w, h, isTall) {
  let at = 0;
  for (const [engine, count] of group.engines) {
    const share = count / group.count;
    pen.fillStyle = data.engines[engine].colour;
    if (isTall) pen.fillRect(x, y + at * h, w, share * h); else pen.fillRect(x + at * w, y, share * w, h);
    at += share;
  }
}

function isDim(item) {
  return found && !(item.children ? item.hits : item.kind === "node" && found.has(item.at));
}

function mark(item) {
  if (item === selected) { rounded(item, 3, 9); pen.lineWidth = 3.5; pen.strokeStyle = colour.mark; pen.stroke(); }
  else if (item === hovered) { rounded(item, 2, 8); pen.lineWidth = 2; pen.strokeStyle = colour.ink; pen.stroke(); }
}

function drawBox(item) {
  const engine = item.kind === "node" ? data.engines[item.node[ENGINE]] : null;
  pen.globalAlpha = isDim(item) ? 0.25 : 1;
  if (item.children) {
    // Sheets behind it: there are more of these.
    if (item.kind === "row") for (const by of [6, 3]) {
      pen.beginPath(); pen.roundRect(item.X + by, item.Y + by, item.w, item.h, 7);
      pen.fillStyle = colour.page; pen.fill(); pen.strokeStyle = colour.group; pen.lineWidth = 1; pen.stroke();
    }
  }
  rounded(item, 0, item.kind === "node" || item.children ? 6 : 18);
  pen.fillStyle = engine ? engine.colour : colour.page; pen.fill();
  pen.lineWidth = 1; pen.strokeStyle = item.children ? colour.group : colour.edge; pen.stroke();
  if (item.children) stripe(item, item.X + 6, item.Y + item.h - 8, item.w - 12, 5, false);
  if (view.scale >= 0.3) {
    const [first, second] = lines(item), ink = engine ? engine.ink : colour.ink, up = item.children ? 3 : 0;
    pen.fillStyle = ink; pen.textAlign = "center"; pen.textBaseline = "middle";
    pen.font = "600 12px system-ui, sans-serif";
    pen.fillText(clipped(first, item.w - 14), item.X + item.w / 2, item.Y + 14 - up);
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(clipped(second, item.w - 14), item.X + item.w / 2, item.Y + 28 - up);
  }
  pen.globalAlpha = 1;
  mark(item);
}

function clipped(words, width) {
  if (words.length * 5 < width || pen.measureText(words).width <= width) return words;
  let end = Math.min(words.length, Math.ceil(width / 4));
  while (end > 1 && pen.measureText(`${words.slice(0, end)}…`).width > width) end--;
  return `${words.slice(0, end)}…`;
}

function drawEdge(edge) {
  const {a, b} = edge, isOn = a === selected || b === selected || a === hovered || b === hovered;
  pen.strokeStyle = pen.fillStyle = isOn ? colour.mark : colour.edge;
  pen.lineWidth = isOn ? 2.2 : 1.1;
  pen.globalAlpha = found && !isOn ? 0.3 : 1;
  // A long way is only drawn at its ends, until one of them is looked at.
  if (isOn) curve(a, b, edge.route);
  else {
    if (edge.isFar || a !== edge.from) stub(a.X + a.w / 2, a.Y + a.h, 1);
    if (edge.isFar || b !== edge.to) stub(b.X + b.w / 2, b.Y, -1);
    if (!edge.isFar && (edge.isTrunk || !edge.isDeep)) curve(edge.from, edge.to, edge.route);
  }
  pen.globalAlpha = 1;
}

function stub(x, y, way) {
  if (view.scale < 0.3 || !isSeen(x - 20, y - 20, 40, 40)) return;
  pen.setLineDash([2, 3]); pen.beginPath();
  pen.moveTo(x + 8, y); pen.lineTo(x + 14, y + 12 * way);
  pen.stroke(); pen.setLineDash([]);
}

function curve(from, to, route) {
  const x = from.X + from.w / 2, y = from.Y + from.h, X = to.X + to.w / 2, Y = to.Y;
  if (!isSeen(Math.min(x, X) - 300, Math.min(y, Y), Math.abs(X - x) + 600, Math.abs(Y - y) + 1)) return;
  let lastX = x, lastY = y;
  pen.beginPath(); pen.moveTo(x, y);
  for (const [px, py] of [...route.map(([rx, ry, group]) => [rx + group.X, ry + group.Y]), [X, Y]]) {
    const middle = (lastY + py) / 2;
    pen.bezierCurveTo(lastX, middle, px, middle, px, py);
    lastX = px; lastY = py;
  }
  pen.stroke();
  if (view.scale > 0.3) { pen.beginPath(); pen.moveTo(X - 4, Y - 7); pen.lineTo(X, Y); pen.lineTo(X + 4, Y - 7); pen.fill(); }
}

// ---- Moving about ------------------------------------------------------------------------------

function fit() {
  const scale = Math.min((size.w - 24) / root.w, (size.h - 24) / root.h, 1.2);
  // A tall graph is shown from its top, in letters that can be read.
  const wide = Math.min(Math.max((size.w - 24) / root.w, 0.5), 1);
  view.scale = scale >= 0.45 ? scale : wide;
  const isTall = root.h * view.scale > size.h, isWide = root.w * view.scale > size.w;
  const top = first();
  view.x = isWide && top ? size.w / 2 - (top.X + top.w / 2) * view.scale : (size.w - root.w * view.scale) / 2;
  view.y = isTall ? 12 : (size.h - root.h * view.scale) / 2;
  redraw();
}

function whole() {
  view.scale = Math.min((size.w - 24) / root.w, (size.h - 24) / root.h, 1.2);
  view.x = (size.w - root.w * view.scale) / 2;
  view.y = (size.h - root.h * view.scale) / 2;
  redraw();
}

function zoom(factor, x = size.w / 2, y = size.h / 2) {
  const scale = Math.min(Math.max(view.scale * factor, 0.01), 4);
  view.x = x - (x - view.x) * scale / view.scale;
  view.y = y - (y - view.y) * scale / view.scale;
  view.scale = scale;
  redraw();
}

let moving = 0;
function centre(item) {
  const scale = Math.max(view.scale, 0.7);
  const goal = {scale, x: size.w / 2 - (item.X + item.w / 2) * scale, y: size.h / 2 - (item.Y + Math.min(item.h / 2, 100)) * scale};
  const start = {...view}, begun = performance.now(), turn = ++moving;
  if (isStill.matches) { view = goal; redraw(); return; }
  const step = (now) => {
    if (turn !== moving) return;
    const t = Math.min(1, (now - begun) / 220), ease = t * (2 - t);
    for (const key of ["x", "y", "scale"]) view[key] = start[key] + (goal[key] - start[key]) * ease;
    draw();
    if (t < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function isInView(item) {
  const x = item.X * view.scale + view.x, y = item.Y * view.scale + view.y;
  return x > 0 && y > 0 && x + item.w * view.scale < size.w && y + 40 * view.scale < size.h;
}

function itemAt(x, y) {
  const px = (x - view.x) / view.scale, py = (y - view.y) / view.scale;
  const holds = (item, h) => px >= item.X && px <= item.X + item.w && py >= item.Y && py <= item.Y + h;
  for (const item of leaves) if (holds(item, item.h)) return item;
  let inner = null;
  for (const item of containers) if (holds(item, HEAD + 6)) inner = item;
  return inner;
}

function relayout(anchor) {
  // What was clicked stays where it is.
  const before = anchor && {x: anchor.X * view.scale + view.x, y: anchor.Y * view.scale + view.y};
  layout();
  if (before && anchor.X !== undefined) { view.x = before.x - anchor.X * view.scale; view.y = before.y - anchor.Y * view.scale; }
  countHits();
  redraw();
}

function toggle(group) {
  group.isOpen = !group.isOpen;
  if (selected && shown(selected) !== selected) selected = group;
  relayout(group);
  say(`${group.label} is ${group.isOpen ? "unfolded" : "folded"}`);
}

function reveal(item) {
  let isFolded = false;
  for (let around = item.parent; around !== root; around = around.parent) if (!around.isOpen) { around.isOpen = true; isFolded = true; }
  if (isFolded) relayout();
}

function select(item, isCentred) {
  selected = item;
  if (item) {
    reveal(item);
    if (isCentred || !isInView(item)) centre(item);
  }
  showDetails();
  for (const button of get("list").querySelectorAll("button")) {
    button.setAttribute("aria-current", String(Boolean(item && item.kind === "node" && Number(button.dataset.at) === item.at)));
  }
  canvas.setAttribute("aria-label", item ? `Graph of the plan. Selected: ${lines(item).join(", ")}` : "Graph of the plan");
  redraw();
}

const say = (sentence) => { get("count").textContent = sentence; };

// Pointers: one pans, two zoom.
const pointers = new Map();
let hasMoved = false;
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
  hasMoved = false; moving++;
  canvas.classList.add("held");
});
canvas.addEventListener("pointermove", (event) => {
  const last = pointers.get(event.pointerId);
  if (!last) { hover(event.offsetX, event.offsetY); return; }
  const dx = event.offsetX - last[0], dy = event.offsetY - last[1];
  if (pointers.size === 2) {
    const [other] = [...pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const span = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
    zoom(span([event.offsetX, event.offsetY]) / span(last), other[0], other[1]);
    hasMoved = true;
  } else if (hasMoved || Math.hypot(dx, dy) > 3) {
    hasMoved = true; tip.hidden = true;
    view.x += dx; view.y += dy;
    redraw();
  } else return;
  pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
  const wasOne = pointers.size === 1;
  pointers.delete(event.pointerId);
  canvas.classList.remove("held");
  if (name === "pointercancel" || hasMoved || !wasOne) return;
  const item = itemAt(event.offsetX, event.offsetY);
  if (item && item.children && (item === selected || item.isOpen)) toggle(item);
  selectQuietly(item);
});
function selectQuietly(item) { const {x, y, scale} = view; select(item, false); moving++; view = {x, y, scale}; redraw(); }
canvas.addEventListener("dblclick", (event) => { const item = itemAt(event.offsetX, event.offsetY); if (item && item.children && !item.isOpen) toggle(item); });
canvas.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; redraw(); });
canvas.addEventListener("wheel", (event) => {
  // Scrolling past the graph scrolls the page.
  if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY);
}, {passive: false});

function hover(x, y) {
  const item = itemAt(x, y);
  if (item !== hovered) { hovered = item; redraw(); canvas.classList.toggle("over", Boolean(item)); }
  if (!item) { tip.hidden = true; return; }
  tip.replaceChildren(...tipLines(item));
  tip.hidden = false;
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = `${Math.max(0, Math.min(x + 16, size.w - w - 4))}px`;
  tip.style.top = `${y + 20 + h > size.h ? Math.max(0, y - h - 12) : y + 20}px`;
}

function tipLines(item) {
  if (item.children) {
    const engines = [...item.engines].map(([engine, count]) => `${data.engines[engine].name} ${count}`).join(", ");
    return [element("b", {}, item.label), element("div", {}, `${many(item.count, "node")}: ${engines}`), element("div", {}, groupTime(item)), element("div", {class: "hint"}, mostUsed(item))];
  }
  if (item.kind !== "node") return [element("b", {}, `${item.kind} ${item.label}`), element("div", {}, item.types)];
  const {node} = item;
  const region = data.regions[node[REGION]];
  const engine = data.engines[node[ENGINE]].name;
  const time = typeof region.median === "number" ? ` takes ${seconds(region.median)}` : "";
  const mine = data.verdicts[node[VERDICTS]].find(([backend]) => backend === engine);
  const error = mine && mine[4] !== null ? `error ${formatted(mine[4])} of the tolerance` : "";
  return [
    element("b", {}, `${node[0]}: ${item.label}`),
    element("div", {class: "hint"}, text(node, SOURCE)),
    element("div", {}, text(node, TYPES)),
    element("div", {}, `runs on ${engine}; ${region.name} (${many(region.nodes, "node")})${time}${error && `; ${error}`}`),
    ...refusals(node).slice(0, 4).map(([backend, , , , , reason]) => element("div", {class: "reason"}, `not on ${backend}: ${reason}`)),
  ];
}

const formatted = (number) => (typeof number === "number" ? number.toPrecision(2) : String(number ?? ""));
const refusals = (node) => data.verdicts[node[VERDICTS]].filter((verdict) => verdict[5]);
function mostUsed(group) {
  const uses = [...group.uses].sort((one, other) => other[1] - one[1]);
  return uses.slice(0, 5).map(([op, count]) => `${count} ${op}`).join(", ") + (uses.length > 5 ? ", …" : "");
}
function groupTime(group) {
  const region = group.kind === "region" && data.regions.find((one) => one.name === group.label);
  return region && typeof region.median === "number" ? `takes ${seconds(region.median)}` : "";
}

canvas.addEventListener("keydown", (event) => {
  const steps = {ArrowDown: "down", ArrowUp: "up"};
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (steps[event.key]) walk(steps[event.key]);
  else if (event.key === "ArrowLeft" || event.key === "ArrowRight") aside(event.key === "ArrowLeft" ? -1 : 1);
  else if (event.key === "Enter" || event.key === " ") { if (selected && selected.children) toggle(selected); }
  else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") whole();
  else if (event.key === "Home") select(first(), true);
  else if (event.key === "Escape") select(null);
  else return;
  event.preventDefault();
});

function walk(side) {
  if (!selected) { select(first(), true); return; }
  let near = selected[side] || [];
  if (selected.isOpen) near = side === "down" ? selected.children : [];
  if (near.length) select(near[0]); else if (selected.parent !== root) select(selected.parent); else say("There is no edge that way");
}

function aside(step) {
  if (!selected) { select(first(), true); return; }
  const row = leaves.filter((item) => item.parent === selected.parent && Math.abs(item.Y - selected.Y) < 20).sort((one, other) => one.X - other.X);
  const next = row[row.indexOf(selected) + step];
  if (next) select(next); else say("There is nothing beside it");
}

// ---- What is selected --------------------------------------------------------------------------

function jump(item) {
  return element("button", {class: "link", onclick: () => select(item, true)}, item.kind === "node" ? `${item.node[0]} ${item.label}` : `${item.kind} ${item.label}`);
}

function facts(pairs) {
  const list = element("dl", {});
  for (const [name, ...shownAs] of pairs) if (shownAs.some((part) => part !== "" && part !== null)) list.append(element("dt", {}, name), element("dd", {}, ...shownAs));
  return list;
}

function showDetails() {
  const box = get("details");
  if (!selected) { box.replaceChildren(); return; }
  if (selected.children) { box.replaceChildren(...groupDetails(selected)); return; }
  if (selected.kind !== "node") {
    box.replaceChildren(element("h3", {}, `${selected.kind} ${selected.label}`), facts([["type", selected.types]]));
    return;
  }
  box.replaceChildren(...nodeDetails(selected));
}

function groupDetails(group) {
  const engines = [...group.engines].map(([engine, count]) => `${data.engines[engine].name}: ${count}`).join(", ");
  return [
    element("h3", {}, group.label),
    facts([["nodes", String(group.count)], ["run on", engines], ["ops", mostUsed(group)], ["time", groupTime(group)]]),
    element("button", {onclick: () => toggle(group)}, group.isOpen ? "Fold" : "Unfold"),
  ];
}

let users = null;
function nodeDetails(item) {
  const {node} = item, region = data.regions[node[REGION]], engine = data.engines[node[ENGINE]];
  if (!users) {
    users = data.nodes.map(() => []);
    data.nodes.forEach((other, at) => other[FROM].forEach((from) => { if (from >= 0) users[from].push(at); }));
  }
  const time = typeof region.median === "number" ? `, ${seconds(region.median)} (${seconds(region.low)} to ${seconds(region.high)})` : "";
  const few = (list, make) => [...list.slice(0, 24).map(make), list.length > 24 ? `and ${list.length - 24} more` : ""];
  const rows = data.verdicts[node[VERDICTS]].map(([backend, said, status, took, error, reason]) => [
    backend, said, status, seconds(took), formatted(error), reason]);
  return [
    element("h3", {}, `Node ${node[0]}: ${item.label}`),
    facts([
      ["from", text(node, SOURCE)], ["types", text(node, TYPES)], ["works on", text(node, WORK)],
      ["runs on", swatch(engine.colour), engine.name],
      ["region", `${region.name}: ${many(region.nodes, "node")}${time}`],
      ["uses", ...few(node[FROM], (from) => jump(from >= 0 ? ofNode[from] : items.inputs[-1 - from]))],
      ["used by", ...few(users[item.at], (at) => jump(ofNode[at]))],
    ]),
    rows.length ? table(["engine", "claim", "verdict", "#whole model", "#error", "reason"], rows, "What each engine says about it") : "",
  ];
}

// Columns that begin with # are numbers.
function table(allHeads, allRows, caption) {
  // A column without anything in it is left out.
  const isUsed = allHeads.map((_, at) => allRows.some((row) => (row[at] instanceof Node ? row[at].hasChildNodes() : row[at])));
  const used = (row) => Object.assign(row.filter((_, at) => isUsed[at]), {isChosen: row.isChosen});
  const [heads, rows] = [used(allHeads), allRows.map(used)];
  const kind = heads.map((head) => (head.startsWith("#") ? "number" : head === "reason" ? "wide" : null));
  const cells = (tag, row) => row.map((cell, at) => (cell instanceof Element && cell.tagName === "TD" ? cell : element(tag, {class: kind[at], scope: tag === "th" ? "col" : null}, cell ?? "")));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {class: row.isChosen ? "chosen" : null}, ...cells("td", row))));
  const head = element("thead", {}, element("tr", {}, ...cells("th", heads.map((name) => name.replace("#", "")))));
  return element("div", {class: "scroll"}, element("table", {}, element("caption", {}, caption), head, body));
}

// ---- Search and the list of nodes --------------------------------------------------------------

const PAGE = 100;
let matches = [], listed = 0, haystacks = null;

function search(words) {
  haystacks = haystacks || data.nodes.map((node) => [
    node[0], text(node, OP), text(node, TYPES), text(node, SOURCE), data.engines[node[ENGINE]].name, data.regions[node[REGION]].name,
    ...refusals(node).map((verdict) => `${verdict[0]} ${verdict[5]}`)].join("\n").toLowerCase());
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  matches = [];
  haystacks.forEach((hay, at) => { if (wanted.every((word) => hay.includes(word))) matches.push(at); });
  // The node with that place or op comes first.
  const rank = (at) => (data.nodes[at][0] === words.trim() ? 0 : text(data.nodes[at], OP).toLowerCase() === words.trim().toLowerCase() ? 1 : 2);
  if (wanted.length) matches.sort((one, other) => rank(one) - rank(other) || one - other);
  found = wanted.length ? new Set(matches) : null;
  say(wanted.length ? `${many(matches.length, "node")} of ${data.nodes.length.toLocaleString("en")} found` : many(data.nodes.length, "node"));
  listed = 0;
  get("list").replaceChildren();
  list();
  countHits();
  redraw();
}

function countHits() {
  for (const group of items.groups) group.hits = 0;
  if (found) for (const at of found) for (let around = ofNode[at].parent; around !== root; around = around.parent) around.hits++;
}

function list() {
  const rows = matches.slice(listed, listed + PAGE).map((at) => {
    const node = data.nodes[at], engine = data.engines[node[ENGINE]], said = refusals(node);
    const about = `${engine.name} · ${text(node, SOURCE) || text(node, TYPES)}`;
    const why = said.length ? `not on ${said.map((verdict) => verdict[0]).join(", ")}` : "";
    return element("li", {}, element("button", {"data-at": at, onclick: () => select(ofNode[at], true)},
      swatch(engine.colour), `${node[0]} ${text(node, OP)}`, element("small", {}, about), why && element("small", {}, why)));
  });
  get("list").append(...rows);
  listed += rows.length;
  get("more").hidden = listed >= matches.length;
}

get("more").addEventListener("click", list);
let waiting = 0;
get("search").addEventListener("input", (event) => { clearTimeout(waiting); waiting = setTimeout(() => search(event.target.value), 60); });
get("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { search(event.target.value); if (matches.length) select(ofNode[matches[0]], true); }
  if (event.key === "Escape") { event.target.value = ""; search(""); }
});
get("list").addEventListener("keydown", (event) => {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const row = document.activeElement.closest("li"), next = row && (event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling);
  if (next) { next.firstElementChild.focus(); event.preventDefault(); }
});

// ---- The other parts ---------------------------------------------------------------------------

function showRace() {
  const box = get("race");
  if (!data.race.length) { box.append(element("p", {}, "Nothing was compared: the engine was named, or level 0 was asked for.")); return; }
  const timed = data.race.filter((row) => row.seconds).sort((one, other) => one.seconds - other.seconds);
  const rest = data.race.filter((row) => !row.seconds);
  const most = largest(timed, (row) => row.high || row.seconds), least = smallest(timed, (row) => row.low || row.seconds);
  const isLog = most > 12 * least;
  const across = (time) => (isLog ? 2 + 96 * Math.log(time / (least * 0.9)) / Math.log(most / (least * 0.9)) : 98 * time / most);
  const rows = [...timed, ...rest].map((row) => {
    const plot = element("td", {class: "plot"});
    if (row.seconds) plot.append(interval(row, across, isLog, engineOf.get(row.engines[0])));
    const span = row.low && row.high ? `${seconds(row.low)} to ${seconds(row.high)}` : "";
    const ratio = row.seconds ? `${(row.seconds / timed[0].seconds).toFixed(2)}×` : "";
    const reduced = row.is_reduced ? `computes in less than the model's dtypes; expected error ${formatted(row.expected_error)}` : "";
    const why = [row.reason || row.elsewhere_why, reduced].filter(Boolean).join("; ");
    const made = [row.is_chosen ? `${row.name} (chosen)` : row.name, plot, seconds(row.seconds), span, ratio,
      element("td", {class: row.status === "right" ? "good" : row.status === "wrong" ? "bad" : null}, row.status + (row.cache === "hit" ? ", recorded" : "")),
      formatted(row.error), why];
    made.isChosen = row.is_chosen;
    return made;
  });
  const scale = isLog ? "on a logarithmic scale" : "from zero";
  box.append(table(["candidate", `time, ${scale}`, "#median", "#95% interval", "#ratio", "verdict", "#error", "reason"], rows,
    "Every candidate that was tried. Bars end at the median; the line is its 95% interval. An error is divided by the tolerance."));
}

function interval(row, across, isLog, engine) {
  const start = isLog ? 0 : 0, end = across(row.seconds);
  const drawing = shape("svg", {height: 18, role: "img", "aria-label": `${row.name}: ${seconds(row.seconds)}`});
  drawing.append(shape("rect", {x: `${start}%`, y: 3, width: `${end}%`, height: 12, rx: 2, fill: engine ? engine.colour : "#888888", stroke: "currentColor", "stroke-width": 0.6}));
  if (row.low && row.high) {
    const [low, high] = [across(row.low), across(row.high)];
    drawing.append(shape("line", {class: "interval", x1: `${low}%`, x2: `${high}%`, y1: 9, y2: 9}));
    for (const at of [low, high]) drawing.append(shape("line", {class: "interval", x1: `${at}%`, x2: `${at}%`, y1: 4, y2: 14}));
  }
  return drawing;
}

function showChanges() {
  const box = get("changes");
  if (!data.changes.length) { box.append(element("p", {}, "No other candidate was timed, so that nothing is known to change it.")); return; }
  const rows = data.changes.map((change) => {
    const by = change.change === null ? "nothing is left" : `${change.change >= 0 ? "+" : "−"}${Math.round(Math.abs(change.change) * 100)}%`;
    const span = change.low === null ? "" : `${Math.round(change.low * 100)}% to ${Math.round(change.high * 100)}%`;
    return [`without ${change.without}`, by, span, seconds(change.seconds), change.candidate || "nothing that may be right", [change.is_within_noise && "within the noise", !change.is_judged && "not judged yet"].filter(Boolean).join(", ")];
  });
  box.append(table(["", "#change", "#interval", "#median", "would run", ""], rows, "The next best candidate, from the recorded costs of those that were tried. One that was not judged yet would be, before it is chosen."));
  const used = new Set(data.changes.map((change) => change.without));
  const unused = [...new Set(data.race.filter((row) => row.seconds).flatMap((row) => row.engines))].filter((name) => !used.has(name));
  if (unused.length) box.append(element("p", {class: "hint"}, `Not in the plan, so that it is the same without them: ${unused.join(", ")}.`));
}

function showTimeline() {
  const box = get("timeline"), {timeline} = data;
  if (timeline) {
    const names = [...new Set(timeline.spans.map((span) => span.backend))];
    const height = 24 * names.length + 26, longest = largest(names, (name) => name.length) * 7 + 16;
    const inner = shape("svg", {height, role: "img", "aria-label": `A run of ${seconds(timeline.seconds)}; the table below has the time of each region`});
    const lane = (name) => 24 * names.indexOf(name);
    const holder = shape("svg", {x: longest, y: 0, height, width: `calc(100% - ${longest + 60}px)`});
    holder.style.width = `calc(100% - ${longest + 60}px)`;
    for (const name of names) inner.append(shape("text", {x: 0, y: lane(name) + 16}, name));
    for (let tick = 0; tick <= 4; tick++) {
      holder.append(shape("line", {class: "axis", x1: `${25 * tick}%`, x2: `${25 * tick}%`, y1: 0, y2: height - 20}));
      holder.append(shape("text", {x: `${25 * tick}%`, y: height - 6, "text-anchor": tick ? "middle" : "start"}, tick ? seconds(timeline.seconds * tick / 4) : "0"));
    }
    for (const span of timeline.spans) {
      const engine = engineOf.get(span.backend);
      const bar = shape("rect", {class: "span", x: `${100 * span.start / timeline.seconds}%`, width: `${Math.max(0.1, 100 * span.seconds / timeline.seconds)}%`, y: lane(span.backend) + 3, height: 18, fill: engine ? engine.colour : "#888888"});
      bar.append(shape("title", {}, `${span.region}: ${seconds(span.seconds)}`));
      bar.addEventListener("click", () => selectRegion(span.region));
      holder.append(bar);
    }
    inner.append(holder);
    box.append(element("p", {class: "hint"}, `A run of ${seconds(timeline.seconds)}${timeline.runs > 1 ? `, the median of ${timeline.runs}` : ""}. Each region was waited for; its time includes taking over its inputs.`), inner);
  } else box.append(element("p", {}, "No run was timed: give arguments to program.explain(...)."));
  const total = timeline ? timeline.seconds : 0;
  const rows = data.regions.map((region, at) => ({region, at})).sort((one, other) => (other.region.median || 0) - (one.region.median || 0)).slice(0, 50).map(({region}) => {
    const engine = data.engines[region.engine];
    const open = element("button", {class: "link", onclick: () => selectRegion(region.name)}, region.name);
    const name = element("td", {}, engine ? swatch(engine.colour) : "", engine ? engine.name : "");
    const span = timeline && timeline.runs > 1 && typeof region.low === "number" ? `${seconds(region.low)} to ${seconds(region.high)}` : "";
    return [open, name, String(region.nodes), seconds(region.median), span, total && region.median ? `${Math.round(100 * region.median / total)}%` : "", seconds(region.compile), region.outcome, region.reason];
  });
  box.append(table(["region", "engine", "#nodes", "#median", "#all runs", "#share", "#compile", "outcome", "reason"], rows, `Regions, the longest first${data.regions.length > 50 ? `: 50 of ${data.regions.length}` : ""}`));
}

function selectRegion(name) {
  const at = data.regions.findIndex((region) => region.name === name);
  const node = ofNode.find((item) => item.node[REGION] === at);
  if (!node) return;
  let item = node;
  for (let around = node.parent; around !== root; around = around.parent) if (around.kind === "region" && around.label === name) item = around;
  select(item, true);
  get("graph").scrollIntoView();
  canvas.focus({preventScroll: true});
}

function showRefusals() {
  const counts = new Map();
  for (const node of data.nodes) for (const [backend, said, , , , reason] of refusals(node)) {
    const key = JSON.stringify([backend, said, reason]);
    counts.set(key, (counts.get(key) || 0) + 1);
  }
  const box = get("refusals");
  if (!counts.size) { box.append(element("p", {}, "Every engine that was asked takes every node.")); return; }
  const rows = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 200).map(([key, count]) => {
    const [backend, said, reason] = JSON.parse(key);
    const open = element("button", {class: "link", onclick: () => { get("search").value = `${backend} ${reason}`; search(get("search").value); get("graph").scrollIntoView(); get("search").focus({preventScroll: true}); }}, many(count, "node"));
    return [backend, open, said, reason];
  });
  box.append(table(["engine", "refuses", "claim", "reason"], rows, "Select a number to find the nodes."));
}

function showNotes() {
  const box = get("notes");
  const notes = [...data.notes];
  if (data.crossings) notes.push(`${many(data.crossings, "tensor")} handed over between engines in a run.`);
  if (data.guards) notes.push(`${many(data.guards, "check")} of indices and lengths before engines see them.`);
  if (!notes.length) { box.remove(); return; }
  box.append(element("ul", {}, ...notes.map((note) => element("li", {}, note))));
}

// ---- Start -------------------------------------------------------------------------------------

get("name").textContent = data.name;
get("summary").textContent = `Runs on ${data.summary}${data.timeline ? `, ${seconds(data.timeline.seconds)} a run` : ""}`;
for (const engine of data.engines) {
  if (engine.nodes) get("legend").append(element("li", {}, swatch(engine.colour), `${engine.name} (${many(engine.nodes, "node")})`));
}
showRace(); showChanges(); showTimeline(); showRefusals(); showNotes();
for (const section of document.querySelectorAll("main section")) {
  get("parts").append(element("a", {href: `#${section.id}`}, section.querySelector("h2").textContent));
}

const isSplit = data.regions.length > 1;
if (!isSplit) get("mode").querySelector("[value=region]").remove();
get("mode").value = isSplit ? "region" : "block";
function regroup(name) {
  selected = hovered = null;
  makeTree(name);
  layout();
  search(get("search").value);
  showDetails();
  fit();
}
get("mode").addEventListener("change", (event) => regroup(event.target.value));
get("expand").addEventListener("click", () => { for (const group of items.groups) group.isOpen = true; relayout(); fit(); });
get("collapse").addEventListener("click", () => { for (const group of items.groups) group.isOpen = false; if (selected) selected = shown(selected); relayout(); fit(); showDetails(); });
get("in").addEventListener("click", () => zoom(1.25));
get("out").addEventListener("click", () => zoom(0.8));
get("fit").addEventListener("click", whole);
get("theme").addEventListener("change", (event) => {
  if (event.target.value) document.documentElement.dataset.theme = event.target.value; else delete document.documentElement.dataset.theme;
  readColours(); redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
new ResizeObserver(resize).observe(canvas);
readColours();
resize();
regroup(get("mode").value);
// For the tests: the page is ready, and where an item is drawn.
document.documentElement.dataset.ready = String(Math.round(performance.now()));
canvas.whereIs = (at) => { const item = shown(ofNode[at]), box = canvas.getBoundingClientRect(); return [box.left + (item.X + item.w / 2) * view.scale + view.x, box.top + (item.Y + 12) * view.scale + view.y, item.at === at]; };
canvas.counts = () => ({leaves: leaves.length, containers: containers.length, edges: edges.length});
})();
