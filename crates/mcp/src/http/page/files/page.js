// The page: asks the server once a second while it is looked at, and shows the answers as text.
// Everything that came from code reaches the page through `textContent` or as a picture with a fixed type.

const TOKEN = "sandcell-token";
const SOON = 1000;
const LATER = 3000;
const RETRY_MOST = 15000;
const WHOLE_MOST = 4 << 20;

const LAYERS = {
  user_namespace: "its users are nobody on the host",
  mount_namespace: "it sees its own files only",
  pid_namespace: "it sees its own processes only",
  network_namespace: "it has no network of the host",
  ipc_namespace: "it shares no memory or queues with others",
  uts_namespace: "it has a host name of its own",
  cgroup_namespace: "it does not see the host's control groups",
  private_root: "its root is made for it, system files are read-only",
  private_proc: "/proc tells about itself only",
  empty_environment: "no variable of the server is in it",
  resource_limits: "hard limits on files, sizes and counts",
  capabilities: "it has no privileges, also not as root inside",
  no_new_privileges: "no program can get it privileges",
  landlock: "the kernel forbids it files beyond its own once more",
  hidden_agent: "code cannot touch what controls it",
  seccomp: "only listed system calls",
  memory_limit: "its processes have so much memory, and no more",
  cpu_limit: "it has its share of the processors",
  process_limit: "it has so many processes and threads, and no more",
};

const $ = (id) => document.getElementById(id);
const state = {
  token: sessionStorage.getItem(TOKEN),
  overview: null,
  shown: null,
  detail: null,
  wholes: new Map(),
  pictures: new Map(),
  timer: 0,
  round: 0,
  failures: 0,
  hurry: 0,
};

// Words and numbers.

/** Marks that turn the direction of text around can make code look like other code: they are shown as what they are. */
const plain = (text) =>
  String(text ?? "").replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g, (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

const oneLine = (text) => plain(text).replace(/\s+/g, " ").trim();

const bytes = (count) => {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  for (; count >= 1024 && unit < 3; unit += 1) count /= 1024;
  return `${count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
};

const time = (ms) => {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.floor((ms % 3600000) / 60000)} min`;
};

const clock = (stamp) => {
  const at = new Date(stamp);
  if (Number.isNaN(at.getTime())) return plain(stamp);
  const today = new Date().toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
};

// Elements. Children are elements or text; there is no other way in.

const el = (name, given = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") made.textContent = plain(value);
    else if (key === "click") made.addEventListener("click", value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};

const pill = (word) => el("span", { class: "status", "data-is": word, text: word });

/** Puts a list's items in order, and keeps those that did not change: focus and selection stay where they are. */
const list = (parent, items, key, look, make) => {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    const looks = JSON.stringify(look(item));
    let node = old.get(name);
    old.delete(name);
    if (!node || node.dataset.looks !== looks) {
      const fresh = make(item);
      fresh.dataset.key = name;
      fresh.dataset.looks = looks;
      if (node) {
        const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
        if (place === node) place = node.nextSibling;
        node.replaceWith(fresh);
        if (focused) fresh.querySelector(`[data-focus="${focused}"]`)?.focus();
      }
      node = fresh;
    }
    if (node === place) place = node.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const gone of old.values()) gone.remove();
};

const say = (text) => { $("said").textContent = plain(text); };

// Asking the server.

class Refused extends Error {
  constructor(status, said) {
    super(said?.message ?? `the server answered ${status}`);
    this.status = status;
    this.remedy = said?.remedy ?? "";
  }
}

const ask = async (path, method = "GET") => {
  const headers = { "sandcell-page": "1" };
  if (state.token) headers.authorization = `Bearer ${state.token}`;
  const answer = await fetch(`api/${path}`, { method, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Refused(answer.status, said?.error?.data);
};

const id = (text) => encodeURIComponent(text);

const pulse = (is, text) => {
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
    await refreshDetail();
  } catch (error) {
    if (round !== state.round) return;
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) return showDoor(error);
    state.failures += 1;
    pulse("lost", error instanceof Refused ? error.message : "no connection");
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
  const tried = state.token !== null;
  sessionStorage.removeItem(TOKEN);
  state.token = null;
  state.overview = null;
  closeDetail(false);
  clearTimeout(state.timer);
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
  state.token = token;
  sessionStorage.setItem(TOKEN, token);
  refresh();
});

$("leave").addEventListener("click", () => {
  state.round += 1;
  for (const name of ["sandboxes", "running", "history", "isolation"]) $(name).replaceChildren();
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
      el("button", { class: "danger small", type: "button", "data-focus": "close", "aria-label": `Close sandbox ${box.sandbox_id}`, text: "Close", click: () => closeSandbox(box) })),
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

const row = (record) => {
  const waits = record.began === false;
  const status = record.status ?? (waits ? "waiting" : "running");
  const under = record.error ? el("span", { class: "under bad", text: oneLine(record.error) })
    : record.stdout_preview ? el("span", { class: "under", text: oneLine(record.stdout_preview) }) : null;
  const when = record.timestamp ? `${clock(record.timestamp)} · ${time(record.duration_ms)}` : time(record.duration_ms);
  return el("li", {},
    el("button", { class: "row", type: "button", "data-focus": "row", "data-id": record.execution_id, "aria-current": record.execution_id === state.shown ? "true" : null, click: () => open(record.execution_id) },
      pill(status), el("span", { class: "code", text: oneLine(record.code_preview) || "(no code)" }), el("span", { class: "time", text: when }), under));
};

const matches = (record, words) => {
  const text = [record.execution_id, record.sandbox_id, record.language, record.status, record.code_preview, record.stdout_preview, record.error].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
};

const showHistory = () => {
  const { history, running } = state.overview;
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const runs = new Set(running.map((one) => one.execution_id));
  const records = history.records.filter((record) => !runs.has(record.execution_id) && matches(record, words));
  const current = (record) => record.execution_id === state.shown;
  list($("running"), running, (one) => one.execution_id, (one) => [one, current(one)], row);
  list($("history"), records, (one) => one.execution_id, (one) => [one, current(one)], row);
  $("running-empty").hidden = running.length > 0;
  $("running-count").textContent = running.length || "";
  $("history-empty").hidden = records.length > 0;
  $("history-empty").textContent = words.length ? "Nothing here has all of these words." : "Nothing ran yet.";
  $("history-count").textContent = history.total > history.records.length ? `newest ${history.records.length} of ${history.total}` : history.total || "";
};

const layerItem = (layer) =>
  el("li", {}, pill(layer.state),
    el("span", {}, el("strong", { text: layer.name.replaceAll("_", " ") }),
      LAYERS[layer.name] ? `: ${LAYERS[layer.name]}` : "",
      layer.reason ? el("span", { class: "soft", text: ` — ${layer.reason}` }) : null,
      layer.remedy ? el("span", { class: "soft", text: ` (${layer.remedy})` }) : null));

const backendPart = (backend) =>
  el("details", { class: "card" },
    el("summary", {}, el("strong", { text: backend.name }), ` gives level ${plain(backend.isolation.level)}, ${backend.isolation.layers.length} layers`),
    el("ul", { class: "layers" }, ...backend.layers.map(layerItem)),
    ...backend.isolation.degraded.map((text) => el("p", { class: "note", text: `weaker than it could be: ${text}` })));

const showHouse = () => {
  const it = state.overview;
  $("door").hidden = true;
  $("house").hidden = false;
  $("leave").hidden = state.token === null;
  $("who").textContent = plain(`${it.who} · ${it.version}`);
  list($("sandboxes"), it.sandboxes, (box) => box.sandbox_id, (box) => ({ ...box, age_s: 0 }), sandboxCard);
  $("sandboxes-empty").hidden = it.sandboxes.length > 0;
  $("sandboxes-count").textContent = `${it.sandboxes.length} of ${it.sandboxes_most}`;
  list($("isolation"), it.backends, (backend) => backend.name, (backend) => backend, backendPart);
  showHistory();
};

// One execution.

const forget = () => {
  state.detail = null;
  state.wholes.clear();
  for (const url of state.pictures.values()) URL.revokeObjectURL(url);
  state.pictures.clear();
  $("detail").dataset.looks = "";
};

const open = (execution) => {
  if (state.shown !== execution) forget();
  state.shown = execution;
  showHistory();
  refreshDetail().then(() => $("detail").focus({ preventScroll: false }), fail);
};

const closeDetail = (back = true) => {
  const was = state.shown;
  state.shown = null;
  forget();
  $("detail").hidden = true;
  $("detail").replaceChildren();
  $("detail-empty").hidden = false;
  if (back && state.overview) {
    showHistory();
    if (was) rows().find((one) => one.dataset.id === was)?.focus();
  }
};

const refreshDetail = async () => {
  const shown = state.shown;
  if (!shown) return;
  const before = state.detail?.live?.about.status;
  if (state.detail && before !== "running") return;
  try {
    const detail = await (await ask(`executions/${id(shown)}`)).json();
    if (state.shown !== shown) return;
    state.detail = detail;
    if (before === "running" && detail.live?.about.status !== "running") say(`The execution ended: ${detail.live?.about.status}.`);
  } catch (error) {
    if (!(error instanceof Refused) || error.status === 401) throw error;
    if (state.shown !== shown) return;
    const record = state.overview.history.records.find((one) => one.execution_id === shown);
    state.detail = { lost: error, record };
  }
  showDetail();
};

const part = (title, text, { bad = false, more = null, copy = false } = {}) => {
  if (!text) return null;
  const tools = [];
  if (more) tools.push(el("button", { class: "quiet small", type: "button", text: "Show all", click: more }));
  if (copy) tools.push(el("button", { class: "quiet small", type: "button", text: "Copy", click: () => navigator.clipboard?.writeText(text).then(() => say("Copied."), fail) }));
  return el("section", { "aria-label": title },
    el("div", { class: "part-head" }, el("h3", { text: title }), ...tools),
    el("pre", { class: bad ? "bad" : "", tabindex: 0, text, "data-part": title }));
};

/** Reads a text to its end, in parts. */
const whole = (name) => async () => {
  const shown = state.shown;
  let text = "";
  try {
    for (let offset = 0; text.length < WHOLE_MOST; ) {
      const piece = await (await ask(`executions/${id(shown)}/${name}/${offset}`)).json();
      text += piece.text;
      if (piece.eof || piece.next_offset <= offset) break;
      offset = piece.next_offset;
    }
    if (state.shown !== shown) return;
    state.wholes.set(name, text);
    showDetail();
  } catch (error) {
    fail(error);
  }
};

const fact = (name, value, className) =>
  value === null || value === undefined || value === "" ? null : el("div", {}, el("dt", { text: name }), el("dd", { class: className, text: value }));

const detailHead = (title, status, running) =>
  el("div", { class: "head" }, el("h2", { text: title }), pill(status),
    running ? el("button", { class: "danger small", type: "button", id: "cancel", "data-focus": "cancel", "aria-keyshortcuts": "c", text: "Cancel", click: cancel }) : null,
    el("button", { class: "quiet small", type: "button", "data-focus": "back", "aria-keyshortcuts": "Escape", text: "Back", click: () => closeDetail() }));

const picture = (execution, file) => {
  const image = el("img", { alt: plain(file.name) });
  const address = `executions/${id(execution)}/files/${file.number}`;
  const known = state.pictures.get(address);
  if (known) image.src = known;
  else {
    load(address, file.picture).then((url) => {
      state.pictures.set(address, url);
      image.src = url;
    }, fail);
  }
  return el("figure", {}, image, el("figcaption", {}, el("bdi", { text: `${file.name}, ${bytes(file.size)}` })));
};

const gallery = (execution, pictures) =>
  pictures.length ? el("section", { "aria-label": "Pictures" }, el("h3", { text: "Pictures" }), el("div", { class: "pictures" }, ...pictures.map((file) => picture(execution, file)))) : null;

/** The type is one of the server's own words for pictures, else bytes that no browser opens. */
const load = async (address, kind) => {
  const known = ["image/png", "image/jpeg", "image/gif"].includes(kind) ? kind : "application/octet-stream";
  const content = await (await ask(address)).arrayBuffer();
  return URL.createObjectURL(new Blob([content], { type: known }));
};

const save = (execution, file) => async () => {
  try {
    const url = await load(`executions/${id(execution)}/files/${file.number}`, null);
    const link = el("a", { href: url });
    link.download = plain(file.name).replace(/[\\/:*?"<>|\x00-\x1f]/g, "_").slice(-100) || "file";
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  } catch (error) {
    fail(error);
  }
};

const liveDetail = ({ live, code }) => {
  const about = live.about;
  const text = (name) => state.wholes.get(name);
  const stream = (name, shown, title, bad = false) =>
    part(title, text(name) ?? shown.text, { bad, copy: true, more: shown.truncated && text(name) === undefined ? whole(name) : null });
  const pictures = live.files.filter((file) => file.picture);
  const others = live.files.filter((file) => !file.picture);
  return [
    detailHead(`${about.language} execution`, about.status, about.status === "running"),
    el("p", { class: "name soft", text: about.execution_id }),
    ...live.notices.map((note) => el("p", { class: "note", text: note })),
    about.cause ? el("div", { class: "cause" }, el("p", {}, el("strong", { text: about.cause.code.replaceAll("_", " ") }), plain(`: ${about.cause.message}`)), el("p", { class: "soft", text: about.cause.remedy })) : null,
    el("dl", { class: "facts" },
      fact("started", clock(live.started_at)), fact("ran", time(about.duration_ms)), fact("processor", about.status === "running" ? null : time(about.cpu_ms)),
      fact("peak memory", about.peak_memory_mb ? `${about.peak_memory_mb} MB` : null), fact("exit code", about.exit_code),
      fact("sandbox", about.sandbox_id, "name"), fact("isolation", `${about.isolation.level} by ${about.isolation.backend}`)),
    part("Code", text("code") ?? code.text, { copy: true, more: !code.eof && text("code") === undefined ? whole("code") : null }),
    stream("stdout", live.stdout, "Output"),
    stream("stderr", live.stderr, "Errors and warnings"),
    part("Value", text("result") ?? live.result, { copy: true, more: live.result_cut && text("result") === undefined ? whole("result") : null }),
    part("Table", live.result_note),
    part("Traceback", live.error, { bad: true, copy: true }),
    part("Hint of the session", live.hint),
    gallery(about.execution_id, pictures),
    others.length ? el("section", { "aria-label": "Files" }, el("h3", { text: "Files" }), el("ul", { class: "files" }, ...others.map((file) => el("li", {}, el("bdi", { text: file.name }), el("span", { class: "soft", text: bytes(file.size) }), el("button", { class: "quiet small", type: "button", "aria-label": `Save ${plain(file.name)}`, text: "Save", click: save(about.execution_id, file) }))))) : null,
    ...live.missing_outputs.map((note) => el("p", { class: "note", text: note })),
    el("details", {}, el("summary", { class: "soft", text: `${about.isolation.layers.length} layers of isolation` }),
      el("ul", { class: "layers" }, ...about.isolation.layers.map((name) => layerItem({ name, state: "active" })))),
    ...about.isolation.degraded.map((note) => el("p", { class: "note", text: `weaker than it could be: ${note}` })),
  ];
};

const keptDetail = ({ kept, files }) => [
  detailHead(`${kept.language} execution`, kept.status, false),
  el("p", { class: "name soft", text: kept.execution_id }),
  el("p", { class: "note", text: "From the history that lasts: files other than pictures are not in it, and long output is cut." }),
  el("dl", { class: "facts" },
    fact("started", clock(kept.timestamp)), fact("ran", time(kept.duration_ms)), fact("processor", time(kept.cpu_ms)),
    fact("peak memory", kept.peak_memory_bytes ? bytes(kept.peak_memory_bytes) : null), fact("exit code", kept.exit_code), fact("cause", kept.cause),
    fact("sandbox", kept.sandbox_id, "name")),
  part("Code", kept.code, { copy: true }),
  part("Output", kept.stdout, { copy: true }),
  part("Errors and warnings", kept.stderr, { copy: true }),
  part("Value", kept.result, { copy: true }),
  part("Traceback", kept.traceback ?? kept.error, { bad: true, copy: true }),
  gallery(kept.execution_id, files.filter((file) => file.picture)),
];

const lostDetail = ({ lost, record }) => [
  detailHead("Execution", record?.status ?? "gone", false),
  el("p", { class: "note", text: `${lost.message}. ${lost.remedy}` }),
  part("Code, its beginning", record?.code_preview),
  part("Output, its beginning", record?.stdout_preview),
  part("Error", record?.error, { bad: true }),
];

const showDetail = () => {
  const detail = state.detail;
  if (!detail) return;
  const looks = JSON.stringify([detail, [...state.wholes.keys()]]);
  const place = $("detail");
  $("detail-empty").hidden = true;
  place.hidden = false;
  if (place.dataset.looks === looks) return;
  place.dataset.looks = looks;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  const scrolls = new Map([...place.querySelectorAll("pre")].map((pre) => [pre.dataset.part, [pre.scrollTop, pre.scrollHeight - pre.scrollTop - pre.clientHeight < 8]]));
  const parts = detail.live ? liveDetail(detail) : detail.kept ? keptDetail(detail) : lostDetail(detail);
  place.replaceChildren(...parts.filter(Boolean));
  for (const pre of place.querySelectorAll("pre")) {
    // What is still being printed is followed, until its reader scrolls back.
    const follows = detail.live?.about.status === "running" && pre.dataset.part === "Output";
    const [top, atEnd] = scrolls.get(pre.dataset.part) ?? [0, follows];
    pre.scrollTop = atEnd && (top > 0 || follows) ? pre.scrollHeight : top;
  }
  if (focused) place.querySelector(`[data-focus="${focused}"]`)?.focus();
};

// Ending things.

const fail = (error) => {
  const text = error instanceof Refused ? `${error.message}. ${error.remedy}` : "The server could not be asked.";
  say(text);
  pulse("lost", plain(error.message));
};

const sure = (title, text, yes) =>
  new Promise((resolve) => {
    $("ask-title").textContent = plain(title);
    $("ask-text").textContent = plain(text);
    $("ask-yes").textContent = yes;
    $("ask").returnValue = "no";
    $("ask").addEventListener("close", () => resolve($("ask").returnValue === "yes"), { once: true });
    $("ask").showModal();
  });

const cancel = async () => {
  const shown = state.shown;
  if (!shown || !(await sure("Cancel this execution?", "Its code is interrupted, and ended if it does not stop. Variables of the session stay where they can.", "Cancel it"))) return;
  try {
    await ask(`executions/${id(shown)}/cancel`, "POST");
    say("Cancelled.");
  } catch (error) {
    fail(error);
  }
  soon();
};

const closeSandbox = async (box) => {
  if (!(await sure("Close this sandbox?", `${box.label ?? box.sandbox_id}: its programs are killed, its variables and files are gone.`, "Close it"))) return;
  try {
    await ask(`sandboxes/${id(box.sandbox_id)}/close`, "POST");
    say("Closed.");
  } catch (error) {
    fail(error);
  }
  soon();
};

// Keys.

const rows = () => [...document.querySelectorAll(".row")];

const step = (by) => {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement);
  const from = at >= 0 ? at : all.findIndex((one) => one.dataset.id === state.shown);
  const next = from < 0 ? 0 : Math.min(all.length - 1, Math.max(0, from + by));
  all[next].focus();
  if (state.shown && !matchMedia("(max-width: 58rem)").matches) {
    const chosen = all[next].dataset.id;
    if (chosen !== state.shown) forget();
    state.shown = chosen;
    showHistory();
    refreshDetail().catch(fail);
  }
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input");
  if (event.key === "Escape") {
    if (typing && $("filter").value) {
      $("filter").value = "";
      if (state.overview) showHistory();
    } else if (typing) event.target.blur();
    else closeDetail();
    return;
  }
  if (typing || $("house").hidden) return;
  const keys = { j: () => step(1), k: () => step(-1), "/": () => $("filter").focus(), c: () => $("cancel")?.click(), "?": () => $("keys").showModal() };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

$("keys-open").addEventListener("click", () => $("keys").showModal());
$("filter").addEventListener("input", () => { if (state.overview) showHistory(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && !$("house").hidden) refresh(); });

refresh();
