// The history: searched and paged on the server, fifty rows at a time.

import { $, ask, clock, el, list, oneLine, pill, say, time, words } from "./lib.js";

const ROWS = 50;
const PAUSE = 250;

/** The page that is shown. `before` has where each page begins: the last execution of the page before it. */
export const history = { records: [], total: 0, more: false, complete: true, before: [null], seen: "", asked: 0, timer: 0 };

let hooks = { shown: () => null, running: () => [], open: () => {} };

export const begin = (given) => { hooks = given; };

export const reset = () => Object.assign(history, { records: [], total: 0, more: false, complete: true, before: [null], seen: "", asked: history.asked + 1 });

const row = (record) => {
  const waits = record.began === false;
  const status = record.status ?? (waits ? "waiting" : "running");
  const under = record.error ? el("span", { class: "under bad", text: oneLine(record.error) })
    : record.stdout_preview ? el("span", { class: "under", text: oneLine(record.stdout_preview) }) : null;
  const when = record.timestamp ? `${clock(record.timestamp)} · ${time(record.duration_ms)}` : time(record.duration_ms);
  return el("li", {},
    el("button", { class: "row", type: "button", "data-focus": "row", "data-id": record.execution_id, "aria-current": record.execution_id === hooks.shown() ? "true" : null, click: () => hooks.open(record.execution_id) },
      pill(status), el("span", { class: "code", text: oneLine(record.code_preview) || "(no code)" }), el("span", { class: "time", text: when }), under));
};

export const rows = () => [...document.querySelectorAll(".row")];

export const show = () => {
  const records = history.records;
  // The answer about what runs may be older than the history, and records are of executions that ended.
  const ended = new Set(records.map((record) => record.execution_id));
  const running = hooks.running().filter((one) => !ended.has(one.execution_id));
  const current = (record) => record.execution_id === hooks.shown();
  list($("running"), running, (one) => one.execution_id, (one) => [one, current(one)], row);
  list($("history"), records, (one) => one.execution_id, (one) => [one, current(one)], row);
  $("running-empty").hidden = running.length > 0;
  $("running-count").textContent = running.length || "";
  const pages = history.before.length - 1;
  const searched = $("filter").value.trim() !== "" || $("filter-status").value !== "";
  $("history-empty").hidden = records.length > 0;
  $("history-empty").textContent = searched ? "Nothing here has all of these words." : "Nothing ran yet.";
  const from = pages * ROWS + 1;
  $("history-count").textContent = pages > 0 || history.more ? `${from}–${from + records.length - 1} of ${history.total}` : history.total || "";
  $("history-part").hidden = history.complete;
  $("pager").hidden = pages === 0 && !history.more;
  $("newer").disabled = pages === 0;
  $("older").disabled = !history.more;
};

/** Asks for the page that is to be shown. An answer that is no longer wanted is dropped. */
export const load = async () => {
  history.asked += 1;
  const asked = history.asked;
  const query = new URLSearchParams({ limit: ROWS });
  const text = $("filter").value.trim();
  if (text) query.set("text", text);
  if ($("filter-status").value) query.set("status", $("filter-status").value);
  const before = history.before.at(-1);
  if (before) query.set("before", before);
  const page = await (await ask(`executions?${query}`)).json();
  if (asked !== history.asked) return;
  $("history-error").textContent = "";
  Object.assign(history, { records: page.records, total: page.total, more: page.more, complete: page.complete });
  show();
};

/** The newest page follows what ends; an older one stays as it is while it is read. */
export const follow = async (newest) => {
  const seen = JSON.stringify([newest.total, newest.session_start, newest.records[0]?.execution_id]);
  if (seen === history.seen) return show();
  const first = history.seen === "";
  if (history.before.length > 1 && !first) return show();
  try {
    await load();
  } catch (error) {
    // Words that cannot be searched for are no reason to call the connection lost.
    if (error.status !== 400) throw error;
    $("history-error").textContent = words(error);
  }
  history.seen = seen;
};

const attempt = async (work) => {
  if ($("house").hidden) return;
  try {
    await work();
  } catch (error) {
    $("history-error").textContent = words(error);
  }
};

const search = () => {
  clearTimeout(history.timer);
  history.timer = setTimeout(() => attempt(async () => {
    history.before = [null];
    await load();
    say(`${history.total} found.`);
  }), PAUSE);
};

export const clear = () => {
  $("filter").value = "";
  search();
};

const turn = (change) => () => attempt(async () => {
  change();
  await load();
  // The button that was pressed may be off now.
  if (!document.activeElement || document.activeElement.disabled || document.activeElement === document.body) rows().find((one) => one.closest("#history"))?.focus();
  say(`Page ${history.before.length}.`);
});

$("filter").addEventListener("input", search);
$("filter-status").addEventListener("change", search);
$("older").addEventListener("click", turn(() => history.before.push(history.records.at(-1)?.execution_id ?? null)));
$("newer").addEventListener("click", turn(() => { if (history.before.length > 1) history.before.pop(); }));
