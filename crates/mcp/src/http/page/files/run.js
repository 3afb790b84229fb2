// Running code, and making sandboxes.

import { $, ask, el, name, say, words } from "./lib.js";

const FRESH = "fresh";

let hooks = { open: () => {}, soon: () => {} };
let sandboxes = [];

export const begin = (given) => { hooks = given; };

const options = (select, wanted) => {
  const looks = JSON.stringify(wanted);
  if (select.dataset.looks === looks) return;
  const chosen = select.value;
  select.dataset.looks = looks;
  select.replaceChildren(...wanted.map(([value, text]) => el("option", { value, text })));
  if (wanted.some(([value]) => value === chosen)) select.value = chosen;
};

const called = (box) => (box.label ? `${name(box.label).slice(0, 40)} (${box.sandbox_id.slice(0, 8)}…)` : `${box.sandbox_id.slice(0, 12)}…`);

/** What there is to choose from. */
export const update = (overview) => {
  sandboxes = overview.sandboxes;
  const first = $("run-language").options.length === 0;
  options($("run-language"), overview.languages.map((one) => [one.name, one.session ? one.name : `${one.name} (no variables stay)`]));
  if (first) $("run-language").value = overview.default_language;
  options($("run-where"), [["", "default sandbox"], [FRESH, "fresh sandbox, once"], ...sandboxes.filter((box) => !box.is_default).map((box) => [box.sandbox_id, called(box)])]);
  $("make-packages-part").hidden = !overview.has_packages;
  $("make-network-part").hidden = !overview.has_network;
  $("make-image-part").hidden = !overview.has_images;
};

/** Puts code there to be changed and run. */
export const edit = (code, language, sandbox) => {
  $("run-code").value = code;
  $("run-language").value = language;
  const box = sandboxes.find((one) => one.sandbox_id === sandbox);
  $("run-where").value = box ? (box.is_default ? "" : box.sandbox_id) : FRESH;
  $("run-code").focus();
};

const run = async () => {
  const code = $("run-code").value;
  $("run-error").textContent = "";
  if (!code.trim()) {
    $("run-error").textContent = "There is no code to run.";
    $("run-code").focus();
    return;
  }
  const json = { code, language: $("run-language").value };
  const where = $("run-where").value;
  if (where && where !== FRESH) json.sandbox_id = where;
  if ($("run-seconds").value) json.timeout_s = Number($("run-seconds").value);
  try {
    const started = await (await ask(where === FRESH ? "runs" : "executions", { method: "POST", json })).json();
    say("It runs.");
    hooks.open(started.execution_id);
    hooks.soon();
  } catch (error) {
    $("run-error").textContent = words(error);
  }
};

$("run").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});

$("run-code").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  run();
});

const make = async () => {
  $("make-error").textContent = "";
  const json = {};
  const label = $("make-label").value.trim();
  if (label) json.label = label;
  for (const field of ["memory_mb", "cpus", "disk_mb", "lifetime_s"]) if ($(`make-${field}`).value) json[field] = Number($(`make-${field}`).value);
  for (const field of ["packages", "network"]) {
    const texts = $(`make-${field}`).value.split(/[\s,]+/).filter(Boolean);
    if (texts.length) json[field] = texts;
  }
  const image = $("make-image").value.trim();
  if (image) json.image = image;
  $("make-yes").disabled = true;
  try {
    const made = await (await ask("sandboxes", { method: "POST", json })).json();
    $("make").close();
    $("make-form").reset();
    say(`Made ${made.sandboxes.length === 1 ? "a sandbox" : `${made.sandboxes.length} sandboxes`}.`);
  } catch (error) {
    $("make-error").textContent = words(error);
  } finally {
    $("make-yes").disabled = false;
  }
  hooks.soon();
};

$("make-open").addEventListener("click", () => {
  $("make-error").textContent = "";
  $("make").showModal();
});
$("make-no").addEventListener("click", () => $("make").close());
$("make-form").addEventListener("submit", (event) => {
  event.preventDefault();
  make();
});
