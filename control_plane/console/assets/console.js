// Helps that pages work without: copy buttons, live parts, charts that keys read out, shortcuts, the curl of what is typed.

const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("tenora", { createHTML: (/** @type {string} */ text) => text });
const status = document.createElement("p");
let paused = false;
let waitsForKey = false;

/** @template {Element} T @returns {T[]} */
function all(/** @type {string} */ selector, /** @type {ParentNode} */ root = document) {
  return /** @type {T[]} */ (/** @type {unknown} */ ([...root.querySelectorAll(selector)]));
}

/** Parse a page of the console. It is never written into this one as text. */
function parsed(/** @type {string} */ text) {
  return new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
}

/** Say it to people who do not see the page. */
function say(/** @type {string} */ text) {
  status.textContent = text;
}

/** A button that copies a text. */
function copyButton(/** @type {string} */ look, /** @type {string} */ label, /** @type {() => string} */ text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = look;
  button.textContent = "Copy";
  button.ariaLabel = label;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    say("Copied");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

/** Give blocks of code, and ids outside of tables, a button that copies them. */
function addCopyButtons(/** @type {ParentNode} */ root) {
  for (const block of all("pre[data-copy]", root)) {
    const frame = document.createElement("div");
    frame.className = "code";
    block.replaceWith(frame);
    frame.append(block, copyButton("copy", "Copy code", () => block.textContent?.trim() ?? ""));
  }
  for (const id of all(":is(h1, dd, p:not(.muted)) > .id", root)) {
    id.after(copyButton("copy-id", `Copy ${id.textContent}`, () => id.textContent ?? ""));
  }
}

/** Read live parts again: each is replaced by itself from a new page, while the tab is seen and nothing in it is used. */
function keepLive(/** @type {HTMLElement} */ part, readAt = new Date()) {
  const seconds = Number(part.dataset.refresh);
  if (!seconds) return;
  setTimeout(async () => {
    const isUsed = part.contains(document.activeElement) || part.querySelector(":popover-open");
    if (paused || document.hidden || isUsed) return keepLive(part, readAt);
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      const found = answer.ok ? parsed(await answer.text()).getElementById(part.id) : null;
      if (!found) throw new Error("not there");
      const fresh = document.importNode(found, true);
      part.replaceWith(fresh);
      addCopyButtons(fresh);
      if (fresh.dataset.said && fresh.dataset.said !== part.dataset.said) say(fresh.dataset.said);
      keepLive(fresh);
    } catch {
      if (!part.querySelector(".stale")) {
        const note = document.createElement("p");
        note.className = "stale";
        note.textContent = `As of ${readAt.toLocaleTimeString()}. Live updates are interrupted; trying again.`;
        part.prepend(note);
        say(note.textContent);
      }
      keepLive(part, readAt);
    }
  }, seconds * 1000);
}

/** Read a chart's columns out, as the pointer or the arrow keys choose them. */
function readOut(/** @type {SVGElement} */ chart) {
  const columns = all("g", chart);
  const out = chart.parentElement?.querySelector("output");
  let at = -1;
  const read = (/** @type {number} */ place) => {
    columns[at]?.classList.remove("read");
    at = Math.max(0, Math.min(columns.length - 1, place));
    columns[at]?.classList.add("read");
    if (out) out.textContent = columns[at]?.querySelector("title")?.textContent ?? "";
  };
  chart.addEventListener("keydown", (event) => {
    const places = new Map([["ArrowLeft", at - 1], ["ArrowRight", at + 1], ["Home", 0], ["End", columns.length - 1]]);
    const place = places.get(event.key);
    if (place === undefined) return;
    event.preventDefault();
    read(place);
  });
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    read(Math.floor(((event.clientX - box.left) / box.width) * columns.length));
  });
}

/** The JSON body that a form sends, as the server makes it of the fields' names. */
function bodyOf(/** @type {HTMLFormElement} */ form) {
  /** @type {Record<string, any>} */
  const body = {};
  for (const [name, given] of new FormData(form)) {
    if (name.startsWith("_") || typeof given !== "string" || !given.trim()) continue;
    const [path = "", kind] = name.split(":");
    const parts = path.split(".");
    const last = parts.pop() ?? "";
    let at = body;
    for (const part of parts) at = at[part] ??= {};
    if (kind === "list") (at[last] ??= []).push(given);
    else at[last] = kind === "int" ? Number(given) : kind === "bool" ? given === "true" : kind === "lines" ? given.split(/[\n,]/) : given;
  }
  return body;
}

/** Move to the link of the next or previous row. */
function step(/** @type {number} */ by) {
  const links = all("main tbody tr").map((row) => row.querySelector("a")).filter((link) => link !== null);
  const at = links.findIndex((link) => link.closest("tr")?.contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}

function onShortcut(/** @type {KeyboardEvent} */ event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
  if (waitsForKey) {
    waitsForKey = false;
    /** @type {HTMLAnchorElement | null} */ (document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`))?.click();
  } else if (event.key === "/") {
    event.preventDefault();
    /** @type {HTMLInputElement | null} */ (document.querySelector(".search input"))?.focus();
  } else if (event.key === "g") {
    waitsForKey = true;
    setTimeout(() => { waitsForKey = false; }, 1500);
  } else if (event.key === "j" || event.key === "k") {
    step(event.key === "j" ? 1 : -1);
  } else if (event.key === "?") {
    document.getElementById("shortcuts")?.showPopover();
  }
}

status.className = "hidden";
status.role = "status";
document.body.append(status);
addCopyButtons(document);
for (const part of /** @type {HTMLElement[]} */ (all("[data-refresh]"))) keepLive(part);
for (const chart of /** @type {SVGElement[]} */ (all(".chart"))) readOut(chart);
for (const form of /** @type {HTMLFormElement[]} */ (all("form.call"))) {
  const body = form.querySelector("[data-body]");
  const show = () => { if (body) body.textContent = JSON.stringify(bodyOf(form)).replaceAll("'", "'\\''"); };
  form.addEventListener("input", show);
  form.addEventListener("submit", () => { for (const button of form.querySelectorAll("button")) button.disabled = true; });
  show();
}
for (const button of /** @type {HTMLButtonElement[]} */ (all("button[data-live]"))) {
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.ariaPressed = String(!paused);
    button.textContent = paused ? "Live updates paused" : "● Live";
  });
}
/** @type {HTMLElement | null | undefined} */ (document.querySelector("[popover] .problem")?.closest("[popover]"))?.showPopover();
for (const menu of /** @type {HTMLDetailsElement[]} */ (all("details.menu"))) {
  document.addEventListener("click", (event) => { if (!menu.contains(/** @type {Node} */ (event.target))) menu.open = false; });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary")?.focus();
  });
}
if (document.body.hasAttribute("data-shortcuts")) document.addEventListener("keydown", onShortcut);
addEventListener("pageshow", () => { for (const button of all("form.call button")) /** @type {HTMLButtonElement} */ (button).disabled = false; });
