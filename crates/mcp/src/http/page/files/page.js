// The page: asks the server once a second while it is looked at, and shows the answers as text.

import * as approvals from "./approvals.js";
import * as detail from "./execution.js";
import * as history from "./history.js";
import { $, arrange, ask, bytes, clock, el, fail, hasToken, id, keepToken, list, narrow, pill, plain, Refused, say, sure, time } from "./lib.js";
import * as run from "./run.js";
import * as sandbox from "./sandbox.js";

const SOON = 1000;
const LATER = 3000;
const RETRY_MOST = 15000;

const state = { overview: null, timer: 0, round: 0, failures: 0, hurry: 0 };

// Asking the server.

const pulse = (is, text) => {
  if ($("pulse").dataset.state === is && $("pulse-text").textContent === text) return;
  $("pulse").dataset.state = is;
  $("pulse-text").textContent = text;
};

const refresh = async () => {
  clearTimeout(state.timer);
  if (document.hidden) return;
  state.round += 1;
  const round = state.round;
  try {
    const overview = await (await ask("overview")).json();
    if (round !== state.round) return;
    state.failures = 0;
    state.overview = overview;
    pulse("on", "live");
    showHouse();
    await Promise.all([history.follow(overview.history), detail.refresh()]);
  } catch (error) {
    if (round !== state.round) return;
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) return showDoor(error);
    state.failures += 1;
    pulse("lost", plain(error instanceof Refused ? error.message : "no connection"));
  }
  const busy = (state.overview?.running.length ?? 0) > 0 || state.hurry > Date.now();
  const wait = state.failures > 0 ? Math.min(RETRY_MOST, SOON * 2 ** state.failures) : busy ? SOON : LATER;
  if (round === state.round) state.timer = setTimeout(refresh, wait);
};

const soon = () => {
  state.hurry = Date.now() + 10000;
  refresh();
};

// The door.

const showDoor = (error) => {
  const tried = hasToken();
  keepToken(null);
  state.overview = null;
  document.title = "sandcell";
  closeDetail(false);
  history.reset();
  clearTimeout(state.timer);
  for (const open of document.querySelectorAll("dialog[open]")) open.close();
  pulse("off", "signed out");
  $("house").hidden = true;
  $("leave").hidden = true;
  $("who").textContent = "";
  $("door").hidden = false;
  $("door-error").textContent = error && tried ? plain(`${error.message}. ${error.remedy}`) : "";
  $("token").focus();
};

$("door-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(token)) {
    $("door-error").textContent = "This is not a token: it has spaces or letters that no token has.";
    return;
  }
  keepToken(token);
  refresh();
});

$("leave").addEventListener("click", () => {
  state.round += 1;
  for (const place of ["approvals", "sandboxes", "running", "history", "isolation", "run-where", "run-language"]) {
    $(place).replaceChildren();
    $(place).dataset.looks = "";
  }
  for (const field of ["filter", "filter-status", "run-code", "run-seconds"]) $(field).value = "";
  $("make-form").reset();
  showDoor(null);
});

// The lists.

const meter = (label, value, most, text) =>
  el("label", {}, el("span", { text: `${label} ${text}` }),
    el("meter", { min: 0, max: most, value: Math.min(value, most), high: most * 0.9, optimum: 0, "aria-label": `${label} ${text}` }));

const sandboxCard = (box) => {
  const use = box.usage;
  const limits = box.limits;
  const sessions = box.sessions.map((one) => `${one.language}, ${one.cells} ${one.cells === 1 ? "cell" : "cells"}${one.busy ? ", busy" : ""}`);
  const notes = [
    sessions.length ? `sessions: ${sessions.join("; ")}` : "no session",
    box.packages.length ? `packages: ${box.packages.join(", ")}` : "",
    box.network.length ? `network: ${box.network.join(", ")} (${bytes(box.network_bytes)})` : "no network",
    `made ${clock(box.created_at)}, ends ${clock(box.idle_expires_at)} if unused${box.ends_at ? `, ${clock(box.ends_at)} in any case` : ""}`,
  ].filter(Boolean);
  return el("li", { class: "card" },
    el("div", { class: "head" },
      el("bdi", { class: "grow", text: box.label ?? (box.is_default ? "default sandbox" : "sandbox") }),
      pill(box.state),
      el("button", { class: "danger small", type: "button", "data-focus": "close", "aria-label": `Close sandbox ${box.sandbox_id}`, text: "Close", click: () => closeSandbox(box) }),
      el("button", { class: "small", type: "button", "data-focus": "inside", "data-box": box.sandbox_id, "aria-label": `Look inside sandbox ${box.sandbox_id}`, text: "Look inside", click: () => openSandbox(box.sandbox_id) })),
    el("p", { class: "name soft", text: box.sandbox_id }),
    use
      ? el("div", { class: "meters" },
          meter("memory", use.memory_mb, limits.memory_mb, `${use.memory_mb} of ${limits.memory_mb} MB`),
          meter("disk", use.disk_mb, limits.disk_mb, `${use.disk_mb} of ${limits.disk_mb} MB`),
          meter("processes", use.processes, limits.processes, `${use.processes} of ${limits.processes}`))
      : el("p", { class: "soft", text: "what it uses cannot be read just now" }),
    el("p", { class: "soft", text: `${use ? `processor ${time(use.cpu_ms)} of ${limits.cpus} ${limits.cpus === 1 ? "core" : "cores"} · ` : ""}${box.isolation.level} by ${box.isolation.backend}` }),
    ...notes.map((note) => el("p", { class: "soft", text: note })),
    ...box.isolation.degraded.map((text) => el("p", { class: "note", text: `weaker than it could be: ${text}` })));
};

const backendPart = (backend) =>
  el("details", { class: "card" },
    el("summary", {}, el("strong", { text: backend.name }), ` gives level ${plain(backend.isolation.level)}, ${backend.isolation.layers.length} layers`),
    el("ul", { class: "layers", role: "list" }, ...backend.layers.map(detail.layerItem)),
    ...backend.isolation.degraded.map((text) => el("p", { class: "note", text: `weaker than it could be: ${text}` })));

const showHouse = () => {
  const it = state.overview;
  $("door").hidden = true;
  $("house").hidden = false;
  $("leave").hidden = !hasToken();
  $("who").textContent = plain(`${it.who} · ${it.version}`);
  sandbox.sample(it.sandboxes);
  sandbox.inside.part = Math.min(4 << 20, it.file_bytes);
  list($("sandboxes"), it.sandboxes, (box) => box.sandbox_id, (box) => ({ ...box, age_s: 0, idle_expires_in_s: 0, ends_in_s: 0, memory_growth: 0 }), sandboxCard);
  $("sandboxes-empty").hidden = it.sandboxes.length > 0;
  $("sandboxes-count").textContent = `${it.sandboxes.length} of ${it.sandboxes_most}`;
  list($("isolation"), it.backends, (backend) => backend.name, (backend) => backend, backendPart);
  approvals.show(it.approvals);
  run.update(it);
  sandbox.update(it.sandboxes);
  history.show();
};

// What is chosen.

const open = (execution) => {
  sandbox.inside.shown && sandbox.close();
  detail.show(execution);
  history.show();
  detail.refresh().then(() => $("detail").focus({ preventScroll: false }), fail);
};

const openSandbox = (chosen) => {
  const box = state.overview?.sandboxes.find((one) => one.sandbox_id === chosen);
  if (!box) return;
  detail.close();
  sandbox.inside.shown && sandbox.close();
  history.show();
  sandbox.open(box);
};

/** Closes what is shown, and goes back to where it was opened. */
const closeDetail = (back = true) => {
  const box = sandbox.inside.shown && sandbox.close();
  const execution = detail.close();
  if (back) goBack(box ?? execution);
};

const goBack = (was) => {
  if (!state.overview) return;
  history.show();
  const from = [...history.rows(), ...document.querySelectorAll("[data-box]")];
  if (was) (from.find((one) => (one.dataset.id ?? one.dataset.box) === was) ?? $("run-code")).focus();
};

history.begin({ shown: () => detail.execution.shown, running: () => state.overview?.running ?? [], open });
detail.begin({ records: () => history.history.records, changed: goBack, soon, open, edit: (...code) => { closeDetail(false); run.edit(...code); } });
sandbox.begin({ changed: goBack });
approvals.begin({ open, soon });
run.begin({ open, soon });

const closeSandbox = async (box) => {
  if (!(await sure("Close this sandbox?", `${box.label ?? box.sandbox_id}: its programs are killed, its variables and files are gone.`, "Close it"))) return;
  try {
    await ask(`sandboxes/${id(box.sandbox_id)}/close`, { method: "POST" });
    say("Closed.");
  } catch (error) {
    fail(error);
  }
  soon();
};

// Keys.

const step = (by) => {
  const all = history.rows();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement);
  const from = at >= 0 ? at : all.findIndex((one) => one.dataset.id === detail.execution.shown);
  const next = from < 0 ? 0 : Math.min(all.length - 1, Math.max(0, from + by));
  all[next].focus();
  if (detail.execution.shown && !narrow.matches) {
    detail.show(all[next].dataset.id);
    history.show();
    detail.refresh().catch(fail);
  }
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input, textarea, select");
  if (event.key === "Escape") {
    if (event.target === $("filter") && $("filter").value) history.clear();
    else if (typing) event.target.blur();
    else closeDetail();
    return;
  }
  if (typing || $("house").hidden) return;
  const keys = {
    j: () => step(1),
    k: () => step(-1),
    "/": () => $("filter").focus(),
    r: () => $("run-code").focus(),
    a: () => $("again")?.click(),
    c: () => $("cancel")?.click(),
    "?": () => $("keys").showModal(),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

$("keys-open").addEventListener("click", () => $("keys").showModal());
document.addEventListener("visibilitychange", () => { if (!document.hidden && !$("house").hidden) refresh(); });

arrange();
refresh();
