// One execution: its code, what came of it, and what can be done with it.

import { $, address, arrange, ask, button, bytes, clock, el, fact, fail, id, isPicture, name, pill, plain, Refused, save, say, sure, time } from "./lib.js";

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

export const execution = { shown: null, detail: null, wholes: new Map(), pictures: new Map() };

let hooks = { records: () => [], changed: () => {}, soon: () => {}, open: () => {}, edit: () => {} };

export const begin = (given) => { hooks = given; };

export const layerItem = (layer) =>
  el("li", {}, pill(layer.state),
    el("span", {}, el("strong", { text: layer.name.replaceAll("_", " ") }),
      LAYERS[layer.name] ? `: ${LAYERS[layer.name]}` : "",
      layer.reason ? el("span", { class: "soft", text: ` — ${layer.reason}` }) : null,
      layer.remedy ? el("span", { class: "soft", text: ` (${layer.remedy})` }) : null));

export const forget = () => {
  execution.detail = null;
  execution.wholes.clear();
  for (const url of execution.pictures.values()) URL.revokeObjectURL(url);
  execution.pictures.clear();
  $("detail").dataset.looks = "";
};

export const show = (chosen) => {
  if (execution.shown !== chosen) forget();
  execution.shown = chosen;
};

export const close = () => {
  const was = execution.shown;
  execution.shown = null;
  forget();
  $("detail").hidden = true;
  $("detail").replaceChildren();
  arrange();
  return was;
};

export const refresh = async () => {
  const shown = execution.shown;
  if (!shown) return;
  const before = execution.detail?.live?.about.status;
  if (execution.detail && before !== "running") return;
  try {
    const detail = await (await ask(`executions/${id(shown)}`)).json();
    if (execution.shown !== shown) return;
    execution.detail = detail;
    if (before === "running" && detail.live?.about.status !== "running") say(`The execution ended: ${detail.live?.about.status}.`);
  } catch (error) {
    if (!(error instanceof Refused) || error.status === 401) throw error;
    if (execution.shown !== shown) return;
    const record = hooks.records().find((one) => one.execution_id === shown);
    execution.detail = { lost: error, record };
  }
  draw();
};

const part = (title, text, { bad = false, more = null, copy = false } = {}) => {
  if (!text) return null;
  const tools = [];
  if (more) tools.push(button("Show all", more, { "aria-label": `Show all of ${title}` }));
  if (copy) tools.push(button("Copy", () => navigator.clipboard?.writeText(text).then(() => say("Copied."), fail), { "aria-label": `Copy ${title}` }));
  return el("section", { "aria-label": title },
    el("div", { class: "part-head" }, el("h3", { text: title }), ...tools),
    el("pre", { class: bad ? "bad" : "", tabindex: 0, role: "region", "aria-label": title, text, "data-part": title }));
};

/** Reads a text to its end, in parts. */
const read = async (shown, part) => {
  let text = "";
  for (let offset = 0; text.length < WHOLE_MOST; ) {
    const piece = await (await ask(`executions/${id(shown)}/${part}/${offset}`)).json();
    text += piece.text;
    if (piece.eof || piece.next_offset <= offset) break;
    offset = piece.next_offset;
  }
  return text;
};

const whole = (part) => async () => {
  const shown = execution.shown;
  try {
    const text = await read(shown, part);
    if (execution.shown !== shown) return;
    execution.wholes.set(part, text);
    draw();
  } catch (error) {
    fail(error);
  }
};

const edit = async () => {
  const { shown, detail } = execution;
  try {
    const about = detail.live?.about ?? detail.kept;
    const text = detail.live ? (detail.code.eof ? detail.code.text : await read(shown, "code")) : detail.kept.code;
    hooks.edit(text, about.language, about.sandbox_id);
  } catch (error) {
    fail(error);
  }
};

const again = async () => {
  const shown = execution.shown;
  if (!shown) return;
  try {
    const started = await (await ask(`executions/${id(shown)}/rerun`, { method: "POST" })).json();
    say(started.note ?? "It runs again.");
    hooks.open(started.execution_id);
    hooks.soon();
  } catch (error) {
    fail(error);
  }
};

const cancel = async () => {
  const shown = execution.shown;
  if (!shown || !(await sure("Cancel this execution?", "Its code is interrupted, and ended if it does not stop. Variables of the session stay where they can.", "Cancel it"))) return;
  try {
    await ask(`executions/${id(shown)}/cancel`, { method: "POST" });
    say("Cancelled.");
  } catch (error) {
    fail(error);
  }
  hooks.soon();
};

const head = (title, status, { running = false, runs = false } = {}) =>
  el("div", { class: "head" }, el("h2", { text: title }), pill(status),
    running ? button("Cancel", cancel, { class: "danger small", id: "cancel", "data-focus": "cancel", "aria-keyshortcuts": "c" }) : null,
    runs ? button("Run again", again, { id: "again", "data-focus": "again", "aria-keyshortcuts": "a" }) : null,
    runs ? button("Edit", edit, { id: "edit", "data-focus": "edit", "aria-label": "Edit the code and run it" }) : null,
    button("Back", () => hooks.changed(close()), { "data-focus": "back", "aria-keyshortcuts": "Escape" }));

const picture = (shown, file) => {
  const image = el("img", { alt: name(file.name) });
  const place = `executions/${id(shown)}/files/${file.number}`;
  const known = execution.pictures.get(place);
  if (known) image.src = known;
  else {
    const load = async () => {
      const url = address(await (await ask(place)).arrayBuffer(), file.picture);
      if (execution.shown !== shown) return URL.revokeObjectURL(url);
      execution.pictures.set(place, url);
      image.src = url;
    };
    load().catch(fail);
  }
  return el("figure", {}, image, el("figcaption", {}, el("bdi", { text: `${name(file.name)}, ${bytes(file.size)}` })));
};

const gallery = (shown, pictures) =>
  pictures.length ? el("section", { "aria-label": "Pictures" }, el("h3", { text: "Pictures" }), el("div", { class: "pictures" }, ...pictures.map((file) => picture(shown, file)))) : null;

const keep = (shown, file) => async () => {
  try {
    save(await (await ask(`executions/${id(shown)}/files/${file.number}`)).arrayBuffer(), file.name);
  } catch (error) {
    fail(error);
  }
};

/** The calls of tools by the code, a line each. */
const toolCalls = (counts) =>
  (counts ?? []).map((one) => {
    const ends = [["ok", one.ok], ["failed", one.failed], ["refused", one.refused]].filter(([, count]) => count > 0);
    return `${one.tool}: ${ends.map(([end, count]) => `${count} ${end}`).join(", ")}`;
  }).join("\n");

const liveDetail = ({ live, code }) => {
  const about = live.about;
  const running = about.status === "running";
  const text = (part) => execution.wholes.get(part);
  const stream = (which, shown, title, bad = false) =>
    part(title, text(which) ?? shown.text, { bad, copy: true, more: shown.truncated && text(which) === undefined ? whole(which) : null });
  const pictures = live.files.filter((file) => isPicture(file.picture));
  const others = live.files.filter((file) => !isPicture(file.picture));
  return [
    head(`${about.language} execution`, about.status, { running, runs: !running }),
    el("p", { class: "name soft", text: about.execution_id }),
    ...live.notices.map((note) => el("p", { class: "note", text: note })),
    about.cause ? el("div", { class: "cause" }, el("p", {}, el("strong", { text: about.cause.code.replaceAll("_", " ") }), plain(`: ${about.cause.message}`)), el("p", { class: "soft", text: about.cause.remedy })) : null,
    el("dl", { class: "facts" },
      fact("started", clock(live.started_at)), fact("ran", time(about.duration_ms)), fact("processor", running ? null : time(about.cpu_ms)),
      fact("peak memory", about.peak_memory_mb ? `${about.peak_memory_mb} MB` : null), fact("exit code", about.exit_code),
      fact("sandbox", about.sandbox_id, "name"), fact("isolation", `${about.isolation.level} by ${about.isolation.backend}`)),
    part("Code", text("code") ?? code.text, { copy: true, more: !code.eof && text("code") === undefined ? whole("code") : null }),
    stream("stdout", live.stdout, "Output"),
    stream("stderr", live.stderr, "Errors and warnings"),
    part("Value", text("result") ?? live.result, { copy: true, more: live.result_cut && text("result") === undefined ? whole("result") : null }),
    part("Table", live.result_note),
    part("Tool calls", toolCalls(about.tool_calls)),
    part("Traceback", live.error, { bad: true, copy: true }),
    part("Hint of the session", live.hint),
    gallery(about.execution_id, pictures),
    others.length ? el("section", { "aria-label": "Files" }, el("h3", { text: "Files" }), el("ul", { class: "files", role: "list" }, ...others.map((file) => el("li", {}, el("bdi", { text: name(file.name) }), el("span", { class: "soft", text: bytes(file.size) }), button("Save", keep(about.execution_id, file), { "aria-label": `Save ${name(file.name)}` }))))) : null,
    ...live.missing_outputs.map((note) => el("p", { class: "note", text: note })),
    el("details", {}, el("summary", { class: "soft", text: `${about.isolation.layers.length} layers of isolation` }),
      el("ul", { class: "layers", role: "list" }, ...about.isolation.layers.map((layer) => layerItem({ name: layer, state: "active" })))),
    ...about.isolation.degraded.map((note) => el("p", { class: "note", text: `weaker than it could be: ${note}` })),
  ];
};

const keptDetail = ({ kept, files }) => [
  head(`${kept.language} execution`, kept.status, { runs: true }),
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
  part("Tool calls", toolCalls(kept.tool_calls)),
  part("Traceback", kept.traceback ?? kept.error, { bad: true, copy: true }),
  gallery(kept.execution_id, files.filter((file) => isPicture(file.picture))),
];

const lostDetail = ({ lost, record }) => [
  head("Execution", record?.status ?? "gone"),
  el("p", { class: "note", text: `${lost.message}. ${lost.remedy}` }),
  part("Code, its beginning", record?.code_preview),
  part("Output, its beginning", record?.stdout_preview),
  part("Error", record?.error, { bad: true }),
];

const draw = () => {
  const detail = execution.detail;
  if (!detail) return;
  const looks = JSON.stringify([detail, [...execution.wholes.keys()]]);
  const place = $("detail");
  place.hidden = false;
  arrange();
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
