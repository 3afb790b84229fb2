// Tool calls that wait for a person's approval.

import { $, ask, el, fail, id, list, name, say } from "./lib.js";

// The buttons of a new question are disabled for this time, so that a double click cannot answer two questions.
const GUARD_MS = 700;

let hooks = { open: () => {}, soon: () => {} };

export const begin = (given) => { hooks = given; };

const key = (one) => `${one.execution_id} ${one.number}`;

const decide = async (one, decision) => {
  try {
    await ask(`executions/${id(one.execution_id)}/approvals/${one.number}`, { method: "POST", json: decision });
    say(decision.decision === "deny" ? "You refused the call." : "You allowed the call.");
  } catch (error) {
    fail(error);
  }
  hooks.soon();
};

const card = (one) => {
  const answer = (text, decision, style = "small") =>
    el("button", { class: style, type: "button", disabled: true, "data-focus": text, "aria-label": `${text}: ${one.tool}`, text, click: () => decide(one, decision) });
  const made = el("li", { class: "card" },
    el("div", { class: "head" },
      el("bdi", { class: "grow", text: name(one.tool) }),
      el("button", { class: "quiet small", type: "button", "data-focus": "code", text: "Show the code", click: () => hooks.open(one.execution_id) })),
    one.read_only ? el("p", { class: "soft", text: "its server describes it as read-only" }) : null,
    el("pre", { tabindex: 0, role: "region", "aria-label": `Arguments of ${one.tool}`, text: one.arguments }),
    el("div", { class: "buttons" },
      answer("Refuse", { decision: "deny" }, "danger small"),
      answer("Allow all in this run", { decision: "run" }),
      answer("Allow 10 calls", { decision: "once", calls: 10 }),
      answer("Allow once", { decision: "once" }, "primary small")));
  setTimeout(() => { for (const button of made.querySelectorAll("button")) button.disabled = false; }, GUARD_MS);
  return made;
};

export const show = (approvals) => {
  const before = new Set([...$("approvals").children].map((child) => child.dataset.key));
  list($("approvals"), approvals, key, (one) => one, card);
  $("approvals-part").hidden = approvals.length === 0;
  $("approvals-count").textContent = approvals.length || "";
  document.title = approvals.length ? `(${approvals.length}) sandcell` : "sandcell";
  const fresh = approvals.find((one) => !before.has(key(one)));
  if (fresh) say(`Code wants to call ${fresh.tool}. The call waits for your approval.`);
};
