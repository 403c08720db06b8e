// The live page: asks the server for its state once per second and shows it. Texts from the server
// reach the page as textContent only: clients choose the names of groups.

import { drawAxis, drawKey, drawLane, drawMap, drawSeries, mapGutters, roundUp } from "./lanes.js";

const PERIOD_MS = 1000;
const TIMEOUT_MS = 8000;
const LONGEST_PAUSE_MS = 5000;
const MOST_LANES = 6; // more engines are drawn as a map
const RATE_CELLS = 10; // tokens count when their chunk returns: a mean over this many seconds
const TOKEN_KEY = "seer-sgl-token";

const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const percent = (share) => `${Math.round(100 * share)} %`;

let history = null; // {boot, end, lanes, tokens, unfinished}
let newest = null;
let failures = 0;
let timer = 0;
let asking = false;

function text(id, value) {
  byId(id).textContent = value;
}

function node(name, className, value) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (value !== undefined) made.textContent = value;
  return made;
}

function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

function plural(count, noun) {
  return `${whole.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// --- history -------------------------------------------------------------------------------------

// Returns the last `count` cells before `end`: new ones from `first` on, older ones unchanged.
function merged(old, oldEnd, fresh, first, end, count, empty) {
  const cells = [];
  for (let cell = end - count; cell < end; cell++) {
    if (cell >= first) cells.push(fresh[cell - first] ?? empty);
    else cells.push(old?.[cell - (oldEnd - count)] ?? empty);
  }
  return cells;
}

function remember(data) {
  const { first, end, cells, engines, tokens, unfinished } = data.lanes;
  const before = history?.boot === data.boot ? history : null;
  const merge = (old, fresh, empty) => merged(old, before?.end, fresh, first, end, cells, empty);
  const lanes = {};
  for (const [id, fresh] of Object.entries(engines)) {
    const old = before?.lanes[id];
    lanes[id] = {
      running: merge(old?.running, fresh.running, null),
      queued: merge(old?.queued, fresh.queued, null),
      kv_waiting: merge(old?.kv_waiting, fresh.kv_waiting, null),
      kv: merge(old?.kv, fresh.kv, null),
    };
  }
  history = {
    boot: data.boot,
    end,
    lanes,
    cell_s: data.lanes.cell_s,
    tokens: merge(before?.tokens, tokens, 0),
    unfinished: merge(before?.unfinished, unfinished, 0),
  };
}

// Returns the part of a series that is drawn: whole minutes since the start, until it is full.
function recent(values) {
  const minutes = Math.ceil(Math.max(1, history.end) / (60 / history.cell_s));
  return values.slice(-minutes * 60 / history.cell_s);
}

function shownSeconds() {
  return recent(history.tokens).length * history.cell_s;
}

function recentLane(id) {
  const { running, queued, kv_waiting, kv } = history.lanes[id];
  return { running: recent(running), queued: recent(queued), kv_waiting: recent(kv_waiting), kv: recent(kv) };
}

function rates(tokens) {
  return tokens.map((_, place) => {
    const part = tokens.slice(Math.max(0, place - RATE_CELLS + 1), place + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

// --- what is shown -------------------------------------------------------------------------------

function showHead(data) {
  const serving = data.engines.filter((engine) => engine.state === "serving").length;
  const all = data.engines.length + data.hidden_engines;
  const engines = serving === all ? plural(all, "engine") : `${serving} of ${plural(all, "engine")}`;
  const rate = data.rate === null ? null : whole.format(data.rate);
  let finding = `${engines} ready, no request is running`;
  if (data.paused) finding = `Paused: ${plural(data.requests.pending, "request")} waiting`;
  else if (rate !== null) finding = `${engines} ${serving === 1 ? "generates" : "generate"} ${rate} tokens per second`;
  else if (data.requests.running) finding = `${plural(data.requests.running, "request")} running on ${engines}`;
  text("finding", finding);
  document.title = rate === null ? "seer-sgl" : `${rate} tok/s · seer-sgl`;
  text("details", `seer-sgl rollout server, up for ${seconds(data.uptime_s)}, ${short.format(data.tokens)} tokens so far`);
}

function showTiles(data) {
  const { requests } = data;
  text("rate", data.rate === null ? "–" : whole.format(data.rate));
  text("rate-note", "mean of 10 s");
  text("running", whole.format(requests.running));
  text("running-note", `${whole.format(requests.pending)} waiting, ${short.format(requests.ended)} ended`);
  text("oldest", requests.running + requests.pending ? seconds(data.oldest_s) : "–");
  text("oldest-note", data.tail_s ? `in the tail for ${seconds(data.tail_s)}` : "no rollout in its tail");
  text("accept", data.accept_length === null ? "–" : data.accept_length.toFixed(2));
  let accepted = data.drafts ? "tokens per verification" : "no engine drafts";
  if (data.accepted_share !== null) accepted = `${percent(data.accepted_share)} of drafts accepted`;
  text("accept-note", accepted);
  text("moves", short.format(data.migrations));
  text("moves-note", data.pooled ? `${short.format(data.fetched_tokens)} tokens fetched` : "no KV pool");
  const versions = [...new Set(data.engines.map((engine) => engine.weight_version))];
  byId("weights").className = "text";
  text("weights", versions.length > 1 ? `${versions.length} versions` : versions[0] ?? "–");
  const bad = data.engines.filter((engine) => engine.state !== "serving");
  const names = bad.slice(0, 3).map((engine) => `${engine.id} ${engine.state}`).join(", ");
  text("weights-note", bad.length ? names + (bad.length > 3 ? ", …" : "") : "all engines serve");
}

function facts(engine) {
  const known = [`${whole.format(engine.running)} running`, `${whole.format(engine.queued)} queued`];
  return engine.kv_waiting ? [...known, `${whole.format(engine.kv_waiting)} wait for KV`] : known;
}

function laneOf(engine) {
  const lane = node("div", "lane");
  const head = node("div", "lane-head");
  head.append(node("div", "lane-name"), node("div", "state"), node("div", "lane-facts"));
  const canvas = node("canvas");
  canvas.setAttribute("role", "img");
  lane.append(head, canvas);
  lane.dataset.engine = engine.id;
  return lane;
}

function showLanes(data) {
  const box = byId("lanes");
  const wanted = data.engines.map((engine) => engine.id).join("\n");
  if (box.dataset.shown !== wanted || box.dataset.kind !== "lanes") {
    box.replaceChildren(...data.engines.map(laneOf));
    box.dataset.shown = wanted;
    box.dataset.kind = "lanes";
    box.parentElement.classList.remove("map");
  }
  let most = 0;
  for (const lane of Object.keys(history.lanes).map(recentLane)) {
    lane.running.forEach((value, place) => {
      most = Math.max(most, (value ?? 0) + (lane.queued[place] ?? 0) + (lane.kv_waiting[place] ?? 0));
    });
  }
  most = roundUp(most);
  data.engines.forEach((engine, place) => {
    const lane = box.children[place];
    const bad = engine.state !== "serving";
    lane.querySelector(".lane-name").textContent = engine.id;
    lane.querySelector(".state").textContent = bad ? `⚠ ${engine.state}` : "";
    lane.querySelector(".state").title = engine.why;
    const kv = `KV ${percent(engine.kv_used / engine.kv_capacity)}`;
    const spans = facts(engine).map((fact) => node("span", "", fact));
    lane.querySelector(".lane-facts").replaceChildren(...spans, node("span", "kv", kv));
    const canvas = lane.querySelector("canvas");
    canvas.setAttribute("aria-label", `${engine.id}: ${facts(engine).join(", ")}, ${kv}, ${engine.state}`);
    drawLane(canvas, recentLane(engine.id), engine.kv_capacity, most);
  });
  drawAxis(byId("axis"), shownSeconds());
  text("legend-running", "running requests");
}

function showMap(data) {
  const box = byId("lanes");
  if (box.dataset.kind !== "map") {
    const canvas = node("canvas");
    canvas.setAttribute("role", "img");
    box.replaceChildren(canvas);
    box.dataset.kind = "map";
    box.parentElement.classList.add("map");
  }
  const rows = data.engines.map((engine) => ({
    ...recentLane(engine.id),
    id: engine.id,
    state: engine.state,
    bad: engine.state !== "serving",
    used: engine.kv_used / engine.kv_capacity,
    facts: facts(engine).filter((_, place) => place !== 1 || engine.queued).join(", "),
  }));
  const most = Math.max(2, ...rows.map((row) => Math.max(...row.running)));
  const canvas = box.firstElementChild;
  const bad = rows.filter((row) => row.bad).map((row) => `${row.id} ${row.state}`);
  const running = whole.format(data.engines.reduce((sum, engine) => sum + engine.running, 0));
  canvas.setAttribute("aria-label", `${rows.length} engines, ${running} requests running. ${bad.join(", ")}`);
  drawMap(canvas, rows, most);
  text("legend-running", `running requests, 1 to ${whole.format(most)}`);
  drawAxis(byId("axis"), shownSeconds(), mapGutters(canvas));
}

function rowsOf(id, items, columns, nothing) {
  const rows = items.map((item) => {
    const row = node("tr");
    row.append(...columns.map((column) => column(item)));
    return row;
  });
  if (!rows.length) {
    const row = node("tr");
    const cell = node("td", "empty", nothing);
    cell.colSpan = columns.length;
    row.append(cell);
    rows.push(row);
  }
  byId(id).replaceChildren(...rows);
}

function named(value) {
  const cell = node("td");
  cell.title = value;
  cell.append(node("bdi", "", value));
  return cell;
}

const number = (value) => node("td", "number", value);

function share(done, all) {
  const cell = node("td");
  const box = node("div", "share");
  const bar = node("div", "share-bar");
  const filled = node("div");
  filled.style.width = `${all ? (100 * done) / all : 0}%`;
  bar.append(filled);
  box.append(bar, node("span", "", `${whole.format(done)} of ${whole.format(all)}`));
  cell.append(box);
  return cell;
}

function showTables(data) {
  rowsOf("tail-rows", data.tail, [
    (each) => named(`${each.group} #${each.index}`),
    (each) => number(`${whole.format(each.tokens)}`),
    (each) => node("td", "", each.engine ?? "waiting"),
    (each) => number(seconds(each.age_s)),
  ], "No request is running.");
  rowsOf("group-rows", data.groups, [
    (each) => named(each.group),
    (each) => share(each.finished, each.requests),
    (each) => number(whole.format(each.tokens)),
  ], "No group is in progress.");
  const more = data.groups_in_progress - data.groups.length;
  text("groups-title", more > 0 ? `Groups in progress: the first ${data.groups.length} of ${whole.format(data.groups_in_progress)}` : "Groups in progress");
  byId("rollouts-section").hidden = !data.rollouts.length;
  rowsOf("rollout-rows", data.rollouts, [
    (each) => named(each.name),
    (each) => share(each.finished, each.requests),
    (each) => number(each.tail_s ? seconds(each.tail_s) : "not reached"),
  ], "");
  if (byId("engine-details").open) {
    rowsOf("engine-rows", data.engines, [
      (each) => named(each.id),
      (each) => node("td", each.state === "serving" ? "" : "bad", each.why ? `${each.state}: ${each.why}` : each.state),
      (each) => number(whole.format(each.running)),
      (each) => number(whole.format(each.queued)),
      (each) => number(whole.format(each.kv_waiting)),
      (each) => number(percent(each.kv_used / each.kv_capacity)),
      (each) => number(whole.format(each.tokens)),
      (each) => named(each.weight_version),
    ], "No engine.");
  }
}

function showTotals(data) {
  const facts = [
    `${plural(data.retractions, "preemption")} inside engines`,
    `${short.format(data.recomputed_tokens)} tokens recomputed`,
    `${plural(data.errors, "chunk")} lost and sent again or given up`,
    `${plural(data.requests.failed, "request")} given up`,
    `${plural(data.passthrough, "request")} passed through`,
    `${plural(data.open_groups, "open group")}`,
    `${plural(data.sessions, "session")}`,
  ];
  if (data.hidden_engines) facts.push(`${plural(data.hidden_engines, "more engine")} not shown`);
  text("totals", facts.join(" · "));
}

function showCharts() {
  const minutes = plural(Math.round(shownSeconds() / 60), "minute").replace(/^1 /, "");
  text("engines-title", `Requests on each engine, last ${minutes}`);
  const perSecond = recent(rates(history.tokens));
  drawSeries(byId("rate-chart"), perSecond, shownSeconds(), "ours");
  byId("rate-chart").setAttribute("aria-label", `Now ${whole.format(perSecond.at(-1))} tokens per second`);
  drawSeries(byId("unfinished-chart"), recent(history.unfinished), shownSeconds(), "plain");
  byId("unfinished-chart").setAttribute("aria-label", `Now ${plural(history.unfinished.at(-1), "unfinished request")}`);
  const map = byId("lanes").dataset.kind === "map";
  document.querySelectorAll(".key").forEach((canvas) => drawKey(canvas, map));
  text("legend-kv", map ? "KV cache in use now, right of each row" : "KV cache in use");
}

function show() {
  if (newest === null) return;
  showHead(newest);
  showTiles(newest);
  const few = newest.engines.length <= MOST_LANES;
  (few ? showLanes : showMap)(newest);
  showCharts();
  showTables(newest);
  showTotals(newest);
}

// --- asking the server ---------------------------------------------------------------------------

// `old`: the figures on the page are not of now.
function status(value, kind, old = false) {
  const chip = byId("status");
  if (chip.textContent !== value) chip.textContent = value;
  chip.className = `chip ${kind}`;
  document.documentElement.classList.toggle("old", old);
}

function storedToken() {
  try {
    return sessionStorage.getItem(TOKEN_KEY);
  } catch {
    return null;
  }
}

function storeToken(value) {
  try {
    if (value === null) sessionStorage.removeItem(TOKEN_KEY);
    else sessionStorage.setItem(TOKEN_KEY, value);
  } catch {
    // The browser keeps nothing for this page: the token lasts until a reload.
  }
}

let token = storedToken();

async function ask() {
  const query = history === null ? "" : `?boot=${history.boot}&since=${history.end - 1}`;
  const answer = await fetch(`live${query}`, {
    headers: token === null ? {} : { Authorization: `Bearer ${token}` },
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (answer.status === 401) return null;
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

async function refresh() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  let pause = PERIOD_MS;
  try {
    const data = await ask();
    if (data === null) {
      byId("token-wrong").hidden = token === null;
      token = null;
      storeToken(null);
      byId("token-form").hidden = false;
      status("token needed", "bad", true);
      return;
    }
    failures = 0;
    remember(data);
    newest = data;
    byId("main").hidden = false;
    byId("token-form").hidden = true;
    if (data.paused) status("paused", "bad");
    else status("live", "good");
    show();
  } catch (error) {
    failures += 1;
    pause = Math.min(LONGEST_PAUSE_MS, PERIOD_MS * failures);
    status("no answer, trying again", "bad", true);
    console.warn(error);
  } finally {
    asking = false;
  }
  timer = setTimeout(refresh, pause);
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  storeToken(token);
  refresh();
});
document.addEventListener("visibilitychange", refresh);
window.addEventListener("resize", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
byId("engine-details").addEventListener("toggle", show);
refresh();
