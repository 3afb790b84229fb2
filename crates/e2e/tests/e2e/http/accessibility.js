// What somebody who does not see well, or uses no mouse, would stumble over. A list of faults; empty is good.
(() => {
  const faults = [];
  const where = (node) => `${node.tagName.toLowerCase()}${node.id ? `#${node.id}` : ""}.${node.className} "${(node.textContent ?? "").trim().slice(0, 40)}"`;
  const shown = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !node.closest("[inert]") && !node.closest(".said");
  const inFront = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;

  // Contrast of texts with what is behind them.
  const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const colour = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const { rgb, alpha } = colour(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return rgb;
      if (alpha > 0) faults.push(`half transparent background: ${where(at)}`);
    }
    return [255, 255, 255];
  };
  const contrast = (node, text) => {
    const [a, b] = [light(colour(text).rgb), light(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const walker = document.createTreeWalker(inFront, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !shown(node) || node.closest("option, noscript, canvas")) continue;
    const ratio = contrast(node, getComputedStyle(node).color);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${where(node)}`);
  }
  for (const node of inFront.querySelectorAll("input, textarea, select")) {
    if (!shown(node)) continue;
    for (const part of ["color", "border-top-color"]) {
      if (part === "border-top-color" && getComputedStyle(node).borderTopStyle === "none") continue;
      const ratio = contrast(part === "color" ? node : node.parentElement, getComputedStyle(node).getPropertyValue(part));
      if (ratio < (part === "color" ? 4.5 : 3)) faults.push(`contrast of ${part} ${ratio.toFixed(2)}: ${where(node)}`);
    }
    const ratio = node.placeholder ? contrast(node, getComputedStyle(node, "::placeholder").color) : 21;
    if (ratio < 4.5) faults.push(`contrast of placeholder ${ratio.toFixed(2)}: ${where(node)}`);
  }

  // What can be pressed is large enough for a finger.
  for (const node of inFront.querySelectorAll("button, select, input:not([type=file])")) {
    if (!shown(node)) continue;
    const { width, height } = node.getBoundingClientRect();
    if (width < 24 || height < 24) faults.push(`too small, ${width}x${height}: ${where(node)}`);
  }

  // Structure.
  if (!document.documentElement.lang) faults.push("no language");
  for (const [what, count] of [["main", 1], ["h1", 1], ["[role=status]", null], ["[role=alert]", null]]) {
    const found = document.querySelectorAll(what).length;
    if (count === null ? found === 0 : found !== count) faults.push(`${found} of ${what}`);
  }
  // What is covered on a narrow screen has the first heading.
  let level = document.querySelector("[inert] h1") ? 1 : 0;
  for (const heading of inFront.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    if (!shown(heading)) continue;
    const own = Number(heading.tagName[1]);
    if (own > level + 1 && inFront === document.body) faults.push(`h${own} after h${level}: ${where(heading)}`);
    level = own;
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const twice of ids.filter((id, at) => ids.indexOf(id) !== at)) faults.push(`id twice: ${twice}`);
  for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby], [for]")) {
    for (const name of ["aria-labelledby", "aria-describedby", "for"]) {
      for (const id of (node.getAttribute(name) ?? "").split(/\s+/).filter(Boolean)) if (!document.getElementById(id)) faults.push(`${name} of nothing: ${id}`);
    }
  }
  // What scrolls can be scrolled by keyboard.
  for (const node of inFront.querySelectorAll("*")) {
    if (!shown(node) || node.matches("textarea, dialog, article")) continue;
    const style = getComputedStyle(node);
    const scrolls = (/auto|scroll/.test(style.overflowY) && node.scrollHeight > node.clientHeight + 1) || (/auto|scroll/.test(style.overflowX) && node.scrollWidth > node.clientWidth + 1);
    if (scrolls && node.tabIndex < 0 && !node.querySelector("button, a, input")) faults.push(`scrolls without a keyboard: ${where(node)}`);
  }
  return faults;
})()
