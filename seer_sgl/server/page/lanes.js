// Draws the history of the fleet on canvases: lanes of a few engines, a map of many, and series.
// Colours are CSS variables (page.css), so that light and dark come from one place.

const GUTTER = 42; // pixels on each side of a plot, for the labels of its axes
const FONT = '11px "DejaVu Sans", Verdana, system-ui, sans-serif';
const ROW = 15; // pixels of an engine in the map
const NAME = 46;
const FACTS = 240;

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    paper: of("paper"), ours: of("ours"), light: of("ours-light"), dark: of("ours-dark"), kv: of("kv"),
    ink: of("ink"), muted: of("muted"), plain: of("plain-light"), line: of("line"),
  };
}

// Returns the canvas's context with one unit per CSS pixel, cleared, and the size.
function begin(canvas) {
  const box = canvas.getBoundingClientRect();
  const style = getComputedStyle(canvas);
  const left = parseFloat(style.paddingLeft) || 0;
  const width = Math.max(1, box.width - left);
  const height = Math.max(1, box.height);
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  return { context, width, height };
}

// Returns where each cell begins, on whole pixels of the screen: no seam shows between cells.
function places(left, right, count) {
  const ratio = window.devicePixelRatio || 1;
  return (place) => Math.round((left + ((right - left) * place) / count) * ratio) / ratio;
}

function hatch(context, colour, ground) {
  const size = 7;
  const ratio = window.devicePixelRatio || 1;
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(size * ratio);
  const pen = tile.getContext("2d");
  pen.scale(tile.width / size, tile.height / size);
  if (ground) {
    pen.fillStyle = ground;
    pen.fillRect(0, 0, size, size);
  }
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(size / tile.width));
  return pattern;
}

// Calls draw(first, end, value) for each run of equal values.
function runs(values, draw) {
  let first = 0;
  for (let place = 1; place <= values.length; place++) {
    if (place === values.length || values[place] !== values[first]) {
      draw(first, place, values[first]);
      first = place;
    }
  }
}

// Marks a time without an answer: a ground, and a dotted line that needs no colour to be seen.
function absent(context, colour, left, top, width, height) {
  context.fillStyle = colour.plain;
  context.fillRect(left, top, width, height);
  context.strokeStyle = colour.muted;
  context.lineWidth = 1;
  context.setLineDash([1, 4]);
  context.beginPath();
  context.moveTo(left, top + height / 2);
  context.lineTo(left + width, top + height / 2);
  context.stroke();
  context.setLineDash([]);
}

// Returns the least round number that is not below `value`.
export function roundUp(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

function frame(context, colour, left, top, right, bottom) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(left + 0.5, top);
  context.lineTo(left + 0.5, bottom + 0.5);
  context.lineTo(right + 0.5, bottom + 0.5);
  context.stroke();
}

// One engine: running requests solid, those that wait for KV hatched in the colour of KV on top, queued
// ones hatched above, KV in use as a line.
export function drawLane(canvas, lane, capacity, most) {
  const { context, width, height } = begin(canvas);
  const colour = colours();
  const [left, right, top, bottom] = [GUTTER, width - GUTTER, 6, height - 6];
  const x = places(left, right, lane.running.length);
  const y = (value) => bottom - (bottom - top) * Math.min(1, value / most);
  const joined = lane.running.findIndex((value) => value !== null);
  runs(lane.running.map((value) => value === null), (first, end, gone) => {
    if (gone && first >= joined) absent(context, colour, x(first), top, x(end) - x(first), bottom - top);
  });
  context.fillStyle = colour.ours;
  runs(lane.running, (first, end, value) => {
    if (value) context.fillRect(x(first), y(value), x(end) - x(first), bottom - y(value));
  });
  const counts = lane.running.map((value, place) => [value ?? 0, lane.kv_waiting[place] ?? 0, lane.queued[place] ?? 0]);
  for (const [part, fill] of [[1, hatch(context, colour.kv)], [2, hatch(context, colour.ours)]]) {
    context.fillStyle = fill;
    runs(counts.map(String), (first, end) => {
      const base = counts[first].slice(0, part).reduce((sum, value) => sum + value, 0);
      const top = base + counts[first][part];
      if (top > base) context.fillRect(x(first), y(top), x(end) - x(first), y(base) - y(top));
    });
  }
  context.strokeStyle = colour.paper; // keeps the line apart from the blue
  context.lineJoin = "round";
  for (const [pen, weight] of [[colour.paper, 4], [colour.kv, 1.8]]) {
    context.strokeStyle = pen;
    context.lineWidth = weight;
    context.beginPath();
    let drawn = false;
    lane.kv.forEach((tokens, place) => {
      if (tokens === null) {
        drawn = false;
        return;
      }
      const level = bottom - (bottom - top) * Math.min(1, tokens / capacity);
      if (drawn) context.lineTo(x(place), level);
      else context.moveTo(x(place), level);
      context.lineTo(x(place + 1), level);
      drawn = true;
    });
    context.stroke();
  }
  frame(context, colour.muted, left, top, right, bottom);
  context.fillStyle = colour.muted;
  context.textAlign = "right";
  for (const value of [0, most / 2, most]) context.fillText(String(value), left - 5, y(value));
  context.fillStyle = colour.kv;
  context.textAlign = "left";
  for (const share of [0, 50, 100]) {
    context.fillText(share === 100 ? "100 %" : String(share), right + 5, bottom - ((bottom - top) * share) / 100);
  }
}

// The labels of the time axis below lanes. `gutters`: pixels left and right of the plots.
export function drawAxis(canvas, seconds, gutters = [GUTTER, GUTTER]) {
  const { context, width } = begin(canvas);
  const colour = colours();
  const [left, right] = [gutters[0], width - gutters[1]];
  context.fillStyle = colour.muted;
  const minutes = Math.round(seconds / 60);
  for (let minute = minutes; minute >= 0; minute--) {
    context.textAlign = minute === 0 ? "right" : minute === minutes ? "left" : "center";
    const text = minute === 0 ? "now" : `${minute} min ago`;
    if (right - left < 420 && minute % 2 !== minutes % 2 && minute !== 0) continue;
    context.fillText(text, right - ((right - left) * minute * 60) / seconds, 10);
  }
}

// Many engines: one row per engine, from light (few) to dark (many running requests).
export function drawMap(canvas, rows, most) {
  canvas.style.height = `${rows.length * ROW + 2}px`;
  const { context, width } = begin(canvas);
  const colour = colours();
  const [left, right] = mapPlot(width);
  const queuedHatch = hatch(context, colour.paper);
  const waitingHatch = hatch(context, colour.kv);
  const gone = hatch(context, colour.muted, colour.plain);
  rows.forEach((row, number) => {
    const top = number * ROW + 1;
    const x = places(left, right, row.running.length);
    const joined = row.running.findIndex((value) => value !== null);
    const fill = (first, end) => context.fillRect(x(first), top, x(end) - x(first), ROW - 2);
    runs(row.running, (first, end, value) => {
      if (value === 0 || first < joined) return;
      if (value === null) {
        absent(context, colour, x(first), top, x(end) - x(first), ROW - 2);
        return;
      }
      context.fillStyle = between(colour, Math.log(Math.max(1, value)) / Math.log(Math.max(2, most)));
      fill(first, end);
    });
    for (const [values, marks] of [[row.queued, queuedHatch], [row.kv_waiting, waitingHatch]]) {
      context.fillStyle = marks;
      runs(values.map((value) => Boolean(value)), (first, end, some) => {
        if (some) fill(first, end);
      });
    }
    context.fillStyle = row.bad ? colour.kv : colour.ink;
    context.textAlign = "left";
    context.fillText(row.id, 0, top + ROW / 2, NAME - 6);
    mapFacts(context, colour, row, right + 10, top, gone, width);
  });
}

function mapPlot(width) {
  return [NAME, width - (width < 560 ? 118 : FACTS)];
}

export function mapGutters(canvas) {
  const [left, right] = mapPlot(canvas.getBoundingClientRect().width);
  return [left, canvas.getBoundingClientRect().width - right];
}

function mapFacts(context, colour, row, left, top, gone, width) {
  const middle = top + ROW / 2;
  if (row.bad) {
    context.fillStyle = gone;
    context.fillRect(left, top + 1, 40, ROW - 4);
    context.fillStyle = colour.kv;
    context.fillText(row.state, left + 46, middle);
    return;
  }
  context.fillStyle = colour.plain;
  context.fillRect(left, top + 2, 40, ROW - 6);
  context.fillStyle = colour.kv;
  context.fillRect(left, top + 2, 40 * Math.min(1, row.used), ROW - 6);
  context.fillStyle = colour.muted;
  const percent = `${Math.round(100 * row.used)} %`;
  context.fillText(width < 560 ? percent : `${percent}, ${row.facts}`, left + 46, middle);
}

// Returns the colour of a share between light, full and dark, as in report/style.py.
function between(colour, share) {
  const stops = [colour.light, colour.ours, colour.dark].map(parts);
  const place = Math.max(0, Math.min(1, share)) * 2;
  const [low, high] = place < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
  const rest = place < 1 ? place : place - 1;
  return `rgb(${low.map((value, n) => Math.round(value + (high[n] - value) * rest)).join(" ")})`;
}

function parts(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// One series over time as an area.
export function drawSeries(canvas, values, seconds, kind) {
  const { context, width, height } = begin(canvas);
  const colour = colours();
  const [left, right, top, bottom] = [GUTTER + 6, width - 4, 6, height - 22];
  const most = roundUp(Math.max(0, ...values));
  const x = (place) => left + ((right - left) * place) / values.length;
  const y = (value) => bottom - ((bottom - top) * value) / most;
  context.fillStyle = kind === "ours" ? colour.light : colour.plain;
  context.strokeStyle = kind === "ours" ? colour.ours : colour.muted;
  context.lineWidth = 1.8;
  context.beginPath();
  values.forEach((value, place) => {
    if (place === 0) context.moveTo(x(0), y(value));
    context.lineTo(x(place), y(value));
    context.lineTo(x(place + 1), y(value));
  });
  context.stroke();
  context.lineTo(right, bottom);
  context.lineTo(left, bottom);
  context.globalCompositeOperation = "destination-over";
  context.fill();
  context.globalCompositeOperation = "source-over";
  frame(context, colour.muted, left, top, right, bottom);
  context.fillStyle = colour.muted;
  context.textAlign = "right";
  const format = new Intl.NumberFormat("en");
  for (const value of [0, most / 2, most]) context.fillText(format.format(value), left - 5, y(value));
  const minutes = Math.round(seconds / 60);
  context.textAlign = "left";
  context.fillText(`${minutes} min ago`, left, bottom + 13);
  context.textAlign = "right";
  context.fillText("now", right, bottom + 13);
}

// The small pictures of the legend.
export function drawKey(canvas, map) {
  const { context, width, height } = begin(canvas);
  const colour = colours();
  const kind = canvas.dataset.key;
  const many = map && kind === "running";
  for (let place = 0; many && place < width; place++) {
    context.fillStyle = between(colour, place / width);
    context.fillRect(place, 0, 1.3, height);
  }
  if (many) return;
  if (kind === "gone") {
    absent(context, colour, 0, 0, width, height);
    return;
  }
  context.fillStyle = kind === "kv" ? colour.kv : colour.ours;
  if (kind === "kv-waiting") context.fillStyle = hatch(context, ...(map ? [colour.kv, colour.ours] : [colour.kv]));
  if (kind === "queued") context.fillStyle = hatch(context, ...(map ? [colour.paper, colour.ours] : [colour.ours]));
  if (kind === "kv" && !map) context.fillRect(0, height / 2 - 1, width, 2);
  else context.fillRect(0, 0, width, height);
}
