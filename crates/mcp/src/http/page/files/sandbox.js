// The inside of one sandbox: what it uses over time, its variables, its files, and its executions as a notebook.

import { $, address, arrange, ask, button, bytes, clock, el, fail, id, isPicture, list, name, pill, plain, say, save, words } from "./lib.js";

const SAMPLES_MOST = 300;
const PREVIEW_BYTES = 64 << 10;
const PICTURE_MOST = 10 << 20;
const DOWNLOAD_MOST = 512 << 20;
const PART_MOST = 4 << 20;
const VARIABLES_MOST = 300;
const HOME = "/home/user";

/** The sandbox that is shown, with the folder and file that are looked at. */
export const inside = { shown: null, path: HOME, cells: -1, round: 0, preview: null, part: PART_MOST };

/** What sandboxes used, oldest first. Only while the page is looked at; bounded for each, and gone with the sandbox. */
const samples = new Map();

let hooks = { changed: () => {} };

export const begin = (given) => { hooks = given; };

// Memory and processor over time.

export const sample = (sandboxes) => {
  const at = performance.now();
  const alive = new Set(sandboxes.map((box) => box.sandbox_id));
  for (const gone of [...samples.keys()].filter((key) => !alive.has(key))) samples.delete(gone);
  for (const box of sandboxes) {
    if (!box.usage) continue;
    const own = samples.get(box.sandbox_id) ?? [];
    const last = own.at(-1);
    const passed = last ? at - last.at : 0;
    if (last && passed < 250) continue;
    own.push({ at, memory: box.usage.memory_mb, cpu_ms: box.usage.cpu_ms, cores: last ? Math.max(0, (box.usage.cpu_ms - last.cpu_ms) / passed) : 0 });
    if (own.length > SAMPLES_MOST) own.shift();
    samples.set(box.sandbox_id, own);
  }
};

const span = (ms) => (ms < 90000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60000)} min`);

/** Draws one line. The text beside it says the same for those who do not see it. */
const chart = (canvas, points, most) => {
  const scale = Math.min(3, devicePixelRatio || 1);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width || !height) return;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const draw = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  draw.scale(scale, scale);
  draw.strokeStyle = style.getPropertyValue("--edge");
  draw.lineWidth = 1;
  draw.strokeRect(0.5, 0.5, width - 1, height - 1);
  if (points.length === 0) return;
  const [first, last] = [points[0].at, points.at(-1).at];
  const x = (at) => (last > first ? 2 + ((at - first) / (last - first)) * (width - 4) : width - 2);
  const y = (value) => height - 3 - Math.min(1, value / Math.max(most, 1e-9)) * (height - 6);
  draw.strokeStyle = style.getPropertyValue("--calm");
  draw.lineWidth = 2;
  draw.beginPath();
  points.forEach((point, number) => (number === 0 ? draw.moveTo(x(point.at), y(point.value)) : draw.lineTo(x(point.at), y(point.value))));
  if (points.length === 1) draw.lineTo(2, y(points[0].value));
  draw.stroke();
};

const round = (value) => (value < 10 ? value.toFixed(1) : Math.round(value));

const showUse = (box) => {
  const own = samples.get(box.sandbox_id) ?? [];
  const lines = [
    ["memory", own.map((one) => ({ at: one.at, value: one.memory })), box.limits.memory_mb, "MB"],
    ["processor", own.slice(1).map((one) => ({ at: one.at, value: one.cores * 100 })), box.limits.cpus * 100, "% of a core"],
  ];
  for (const [what, points, most, unit] of lines) {
    const values = points.map((point) => point.value);
    const text = values.length === 0 ? `${what}: not measured yet`
      : `${what}: now ${round(values.at(-1))} ${unit}, at most ${round(Math.max(...values))}, limit ${round(most)}, over ${span(points.at(-1).at - points[0].at)}`;
    const canvas = $(`use-${what}`);
    canvas.setAttribute("aria-label", text);
    $(`use-${what}-text`).textContent = text;
    chart(canvas, points, most);
  }
};

// Variables.

const variableTable = (session) => {
  const variables = session.variables ?? [];
  const cut = variables.slice(0, VARIABLES_MOST);
  const about = session.variables ? `${session.language}: ${variables.length} ${variables.length === 1 ? "variable" : "variables"}`
    : `${session.language}: ${session.busy ? "not read while it is busy" : "has none that can be listed"}`;
  return [
    el("p", { class: "soft", text: about }),
    cut.length === 0 ? null
      : el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `Table of ${session.language} variables` },
          el("table", { "aria-label": `Variables of ${session.language}` },
            el("thead", {}, el("tr", {}, ...["Name", "Type", "Shape", "Size", "Value"].map((title) => el("th", { scope: "col", text: title })))),
            el("tbody", {}, ...cut.map((one) => el("tr", {},
              el("th", { scope: "row", text: name(one.name) }), el("td", { text: name(one.type) }), el("td", { text: name(one.shape) }),
              el("td", { text: one.bytes ? bytes(one.bytes) : "" }), el("td", {}, el("code", { text: name(one.preview) }))))))),
    variables.length > cut.length ? el("p", { class: "soft", text: `and ${variables.length - cut.length} more` }) : null,
  ];
};

const loadVariables = async () => {
  const shown = inside.shown;
  const box = await (await ask(`sandboxes/${id(shown)}`)).json();
  if (inside.shown !== shown || !box) return;
  const looks = JSON.stringify(box.sessions);
  const place = $("variables");
  if (place.dataset.looks === looks) return;
  place.dataset.looks = looks;
  const tables = box.sessions.flatMap(variableTable).filter(Boolean);
  place.replaceChildren(...(tables.length ? tables : [el("p", { class: "soft", text: "No session runs in it." })]));
};

// Files.

const join = (folder, entry) => (folder === "/" ? `/${entry}` : `${folder}/${entry}`);

const crumbs = () => {
  const parts = inside.path.split("/").filter(Boolean);
  const steps = [["/", "/"], ...parts.map((part, number) => [part, `/${parts.slice(0, number + 1).join("/")}`])];
  return steps.map(([text, path], number) => {
    const last = number === steps.length - 1;
    return el("li", {}, button(name(text), () => attempt(() => enter(path)), { "aria-current": last ? "page" : null, "aria-label": number === 0 ? "The root folder" : null }));
  });
};

const entryItem = (entry) => {
  const path = join(inside.path, entry.name);
  const called = name(entry.name);
  const folder = entry.type === "folder";
  const about = folder ? "folder" : entry.type === "link" ? `link to ${name(entry.target)}` : entry.type === "file" ? bytes(entry.size) : "neither file nor folder";
  return el("li", {},
    el("button", { class: "entry", type: "button", "data-focus": "entry", "data-name": entry.name, "aria-label": `${folder ? "Open folder" : "Show"} ${called}`, click: () => attempt(() => (folder ? enter(path) : look(path))) },
      el("bdi", { text: folder ? `${called}/` : called })),
    el("span", { class: "soft", text: about }),
    el("span", { class: "soft when", text: clock(entry.modified) }),
    folder ? null : button("Download", () => attempt(() => download(path)), { "data-focus": "download", "aria-label": `Download ${called}` }));
};

const loadFiles = async () => {
  const { shown, path } = inside;
  const listing = await (await ask(`sandboxes/${id(shown)}/files?path=${id(path)}`)).json();
  if (inside.shown !== shown || inside.path !== path) return;
  $("crumbs").replaceChildren(...crumbs());
  list($("entries"), listing.files, (entry) => entry.name, (entry) => [path, entry], entryItem);
  $("entries-empty").hidden = listing.files.length > 0;
  $("entries-more").hidden = !listing.more;
  $("entries-more").textContent = `and ${listing.more} more, which are not shown`;
};

const enter = async (path) => {
  const before = inside.path;
  inside.path = path;
  try {
    await loadFiles();
  } catch (error) {
    inside.path = before;
    throw error;
  }
  hidePreview();
  say(`Folder ${path}, ${$("entries").children.length} entries.`);
  ($("entries").querySelector("button") ?? $("crumbs").querySelector("[aria-current]"))?.focus();
};

const hidePreview = () => {
  if (inside.preview) URL.revokeObjectURL(inside.preview);
  inside.preview = null;
  $("preview")?.replaceChildren();
};

const content = async (path, offset, limit) => {
  const limited = limit === null ? "" : `&limit=${limit}`;
  const answer = await ask(`sandboxes/${id(inside.shown)}/content?path=${id(path)}&offset=${offset}${limited}`);
  return { bytes: await answer.arrayBuffer(), total: Number(answer.headers.get("sandcell-size")), kind: answer.headers.get("content-type") };
};

const look = async (path) => {
  const shown = inside.shown;
  let first = await content(path, 0, PREVIEW_BYTES);
  const picture = isPicture(first.kind) && first.total <= PICTURE_MOST;
  if (picture && first.bytes.byteLength < first.total) first = await content(path, 0, null);
  if (inside.shown !== shown) return;
  hidePreview();
  const called = name(path.split("/").at(-1));
  const text = new TextDecoder().decode(first.bytes);
  const parts = [el("div", { class: "part-head" }, el("h4", {}, el("bdi", { text: `${called}, ${bytes(first.total)}` })),
    button("Download", () => attempt(() => download(path)), { "aria-label": `Download ${called}` }),
    button("Hide", () => { hidePreview(); $("entries").querySelector("button")?.focus(); }, { "aria-label": "Hide the preview" }))];
  if (picture) {
    inside.preview = address(first.bytes, first.kind);
    parts.push(el("div", { class: "pictures" }, el("img", { src: inside.preview, alt: called })));
  } else if (text.includes("\0")) parts.push(el("p", { class: "soft", text: "Not text: download it to see what it is." }));
  else if (first.total === 0) parts.push(el("p", { class: "soft", text: "It is empty." }));
  else {
    parts.push(el("pre", { tabindex: 0, role: "region", "aria-label": `Content of ${called}`, text }));
    if (first.total > first.bytes.byteLength) parts.push(el("p", { class: "soft", text: `The first ${bytes(first.bytes.byteLength)}; download it for the rest.` }));
  }
  $("preview").replaceChildren(...parts);
  $("preview").focus();
  say(`${called} is shown.`);
};

const download = async (path) => {
  const parts = [];
  let got = 0;
  for (;;) {
    const part = await content(path, got, null);
    if (part.total > DOWNLOAD_MOST) throw new Error(`The file has ${bytes(part.total)}; this page saves at most ${bytes(DOWNLOAD_MOST)}.`);
    parts.push(part.bytes);
    got += part.bytes.byteLength;
    if (part.bytes.byteLength === 0 || got >= part.total) break;
    say(`${bytes(got)} of ${bytes(part.total)}`);
  }
  save(parts, path.split("/").at(-1));
  say("Downloaded.");
};

const upload = async (files) => {
  const { shown, path: folder } = inside;
  for (const file of files) {
    const path = id(join(folder, file.name));
    let sent = 0;
    do {
      const part = file.slice(sent, sent + inside.part);
      await ask(`sandboxes/${id(shown)}/content?path=${path}&append=${sent > 0}`, { method: "PUT", body: part });
      sent += part.size;
      $("upload-state").textContent = `${name(file.name)}: ${bytes(sent)} of ${bytes(file.size)}`;
    } while (sent < file.size);
  }
  if (inside.shown !== shown) return;
  say(files.length === 1 ? "Uploaded." : `${files.length} files uploaded.`);
  await loadFiles();
};

// The notebook.

const notebook = async () => {
  const shown = inside.shown;
  save(await (await ask(`sandboxes/${id(shown)}/notebook`)).arrayBuffer(), `${shown}.ipynb`);
  say("The notebook was downloaded.");
};

// The whole.

const attempt = async (work) => {
  try {
    await work();
    if ($("inside-error")) $("inside-error").textContent = "";
  } catch (error) {
    const text = error.remedy === undefined ? plain(error.message) : words(error);
    if ($("inside-error")) $("inside-error").textContent = text;
    else fail(error);
  }
};

const figure = (what) =>
  el("figure", { class: "use" }, el("canvas", { id: `use-${what}`, role: "img" }), el("figcaption", { id: `use-${what}-text`, class: "soft", "aria-hidden": "true" }));

const build = (box) => {
  const files = el("input", { id: "upload", type: "file", multiple: true });
  files.addEventListener("change", () => attempt(async () => {
    await upload([...files.files]);
    files.value = "";
  }));
  $("inside").replaceChildren(
    el("div", { class: "head" },
      el("h2", {}, el("bdi", { text: box.label ?? (box.is_default ? "default sandbox" : "sandbox") })),
      el("span", { id: "inside-state" }),
      button("Notebook", () => attempt(notebook), { id: "notebook", "aria-label": "Download its executions as a notebook" }),
      button("Back", () => hooks.changed(close()), { id: "inside-back", "aria-keyshortcuts": "Escape" })),
    el("p", { class: "name soft", text: box.sandbox_id }),
    el("p", { id: "inside-error", class: "bad", role: "alert" }),
    el("section", { "aria-labelledby": "use-title" }, el("h3", { id: "use-title", text: "Use over time" }), el("div", { class: "uses" }, figure("memory"), figure("processor"))),
    el("section", { "aria-labelledby": "variables-title" },
      el("div", { class: "part-head" }, el("h3", { id: "variables-title", text: "Variables" }), button("Look again", () => attempt(loadVariables), { "aria-label": "Look at the variables again" })),
      el("div", { id: "variables" })),
    el("section", { "aria-labelledby": "files-title" },
      el("div", { class: "part-head" }, el("h3", { id: "files-title", text: "Files" }), button("Look again", () => attempt(loadFiles), { "aria-label": "Look at the files again" })),
      el("nav", { "aria-label": "Folder" }, el("ol", { id: "crumbs", class: "crumbs", role: "list" })),
      el("ul", { id: "entries", class: "files", role: "list", "aria-label": "Files of this folder" }),
      el("p", { id: "entries-empty", class: "soft", text: "Nothing is here.", hidden: true }),
      el("p", { id: "entries-more", class: "soft", hidden: true }),
      el("label", { class: "upload" }, "Upload to this folder ", files),
      el("p", { id: "upload-state", class: "soft", role: "status" }),
      el("div", { id: "preview", class: "preview", tabindex: -1, role: "group", "aria-label": "Preview" })));
};

export const open = async (box) => {
  inside.shown = box.sandbox_id;
  inside.path = HOME;
  inside.cells = box.sessions.reduce((sum, one) => sum + one.cells, 0);
  inside.state = "";
  inside.preview = null;
  build(box);
  $("inside").hidden = false;
  arrange();
  update([box]);
  $("inside").focus();
  await attempt(async () => { await Promise.all([loadVariables(), loadFiles()]); });
};

export const close = () => {
  const was = inside.shown;
  hidePreview();
  inside.shown = null;
  $("inside").hidden = true;
  $("inside").replaceChildren();
  arrange();
  return was;
};

/** Follows what the server says of it. */
export const update = (sandboxes) => {
  if (!inside.shown) return;
  const box = sandboxes.find((one) => one.sandbox_id === inside.shown);
  const state = box?.state ?? "gone";
  if (state !== inside.state) {
    inside.state = state;
    $("inside-state").replaceChildren(pill(state));
    if (!box) {
      $("inside-error").textContent = "This sandbox has ended: its files and variables are gone. Its notebook can still be had.";
      return;
    }
  }
  if (!box) return;
  showUse(box);
  const cells = box.sessions.reduce((sum, one) => sum + one.cells, 0);
  const busy = box.sessions.some((one) => one.busy);
  if (cells !== inside.cells && !busy) {
    inside.cells = cells;
    attempt(async () => { await Promise.all([loadVariables(), loadFiles()]); });
  }
};
