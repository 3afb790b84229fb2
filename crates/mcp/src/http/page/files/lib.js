// What all parts of the page use: words and numbers, elements, and asking the server.
// Everything that came from code reaches the page through `textContent` or as a picture with a fixed type.

const TOKEN = "sandcell-token";
const PICTURES = ["image/png", "image/jpeg", "image/gif"];

export const $ = (id) => document.getElementById(id);

// Words and numbers.

const code = (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** Marks that turn the direction of text around can make code look like other code: they are shown as what they are. */
export const plain = (text) => String(text ?? "").replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g, code);

export const oneLine = (text) => plain(text).replace(/\s+/g, " ").trim();

/** A name, in which control characters are shown as what they are. */
export const name = (text) => plain(text).replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, code);

export const bytes = (count) => {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  for (; count >= 1024 && unit < 3; unit += 1) count /= 1024;
  return `${count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
};

export const time = (ms) => {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.floor((ms % 3600000) / 60000)} min`;
};

export const clock = (stamp) => {
  const at = new Date(stamp);
  if (Number.isNaN(at.getTime())) return plain(stamp);
  const today = new Date().toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
};

// Elements. Children are elements or text; there is no other way in.

export const el = (tag, given = {}, ...children) => {
  const made = document.createElement(tag);
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

export const pill = (word) => el("span", { class: "status", "data-is": word, text: word });

export const button = (text, click, given = {}) => el("button", { class: "quiet small", type: "button", text, click, ...given });

export const fact = (title, value, className) =>
  value === null || value === undefined || value === "" ? null : el("div", {}, el("dt", { text: title }), el("dd", { class: className, text: value }));

/** Puts a list's items in order, and keeps those that did not change: focus and selection stay where they are. */
export const list = (parent, items, key, look, make) => {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstChild;
  for (const item of items) {
    const named = key(item);
    const looks = JSON.stringify(look(item));
    let node = old.get(named);
    old.delete(named);
    if (!node || node.dataset.looks !== looks) {
      const fresh = make(item);
      fresh.dataset.key = named;
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
    else {
      // What is moved loses the focus.
      const focused = node.contains(document.activeElement) ? document.activeElement : null;
      parent.insertBefore(node, place);
      focused?.focus();
    }
  }
  for (const gone of old.values()) gone.remove();
};

/** Tells a screen reader. */
export const say = (text) => { $("said").textContent = plain(text); };

export const narrow = matchMedia("(max-width: 58rem)");

/** On a narrow screen what is shown covers the rest, which the keyboard must not reach then. */
export const arrange = () => {
  const covered = narrow.matches && !($("detail").hidden && $("inside").hidden);
  for (const under of ["top", "lists"]) $(under).inert = covered;
  $("detail-empty").hidden = !($("detail").hidden && $("inside").hidden);
};
narrow.addEventListener("change", arrange);

// Asking the server.

let token = sessionStorage.getItem(TOKEN);

export const keepToken = (text) => {
  token = text;
  if (text === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, text);
};

export const hasToken = () => token !== null;

export class Refused extends Error {
  constructor(status, said) {
    super(said?.message ?? `the server answered ${status}`);
    this.status = status;
    this.remedy = said?.remedy ?? "";
  }
}

export const ask = async (path, { method = "GET", json = null, body = null } = {}) => {
  const headers = { "sandcell-page": "1" };
  if (token) headers.authorization = `Bearer ${token}`;
  if (json) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(json);
  } else if (body) headers["content-type"] = "application/octet-stream";
  const answer = await fetch(`api/${path}`, { method, headers, body, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Refused(answer.status, said?.error?.data);
};

export const words = (error) => plain(error instanceof Refused ? `${error.message}. ${error.remedy}` : "The server could not be asked.");

export const fail = (error) => {
  say(words(error));
  $("pulse").dataset.state = "lost";
  $("pulse-text").textContent = plain(error.message);
};

export const id = (text) => encodeURIComponent(text);

/** The type is one of the server's own words for pictures, else bytes that no browser opens. */
export const address = (content, kind) =>
  URL.createObjectURL(new Blob([content].flat(), { type: PICTURES.includes(kind) ? kind : "application/octet-stream" }));

export const isPicture = (kind) => PICTURES.includes(kind);

/** Hands bytes to the reader's disk. */
export const save = (content, called) => {
  const url = address(content, null);
  const link = el("a", { href: url });
  link.download = plain(called).replace(/[\\/:*?"<>|\u0000-\u001f\u007f]/g, "_").slice(-100) || "file";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
};

export const sure = (title, text, yes) =>
  new Promise((resolve) => {
    $("ask-title").textContent = plain(title);
    $("ask-text").textContent = plain(text);
    $("ask-yes").textContent = yes;
    $("ask").returnValue = "no";
    $("ask").addEventListener("close", () => resolve($("ask").returnValue === "yes"), { once: true });
    $("ask").showModal();
  });
