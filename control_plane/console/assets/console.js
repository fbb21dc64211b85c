// Helps that pages work without: copy buttons, live parts, shortcuts, and the curl of what is typed.

const policy = globalThis.trustedTypes?.createPolicy("tenora", { createHTML: (text) => text });

/** Parse a page of the console. It is never written into this one as text. */
function parsed(/** @type {string} */ text) {
  const html = /** @type {string} */ (/** @type {unknown} */ (policy ? policy.createHTML(text) : text));
  return new DOMParser().parseFromString(html, "text/html");
}

/** Give each block of code a button that copies it. */
function addCopyButtons(/** @type {ParentNode} */ root) {
  for (const block of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("pre[data-copy]"))) {
    if (block.querySelector("button.copy")) continue;
    const text = block.textContent ?? "";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const shown = block.cloneNode(true);
      /** @type {HTMLElement} */ (shown).querySelector("button")?.remove();
      await navigator.clipboard.writeText(shown.textContent ?? text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }
}

/** Read live parts again: each is replaced by itself from a new page, while the tab is seen and no field in it is used. */
function keepLive(/** @type {HTMLElement} */ part) {
  const seconds = Number(part.dataset.refresh);
  if (!seconds) return;
  setTimeout(async () => {
    if (document.hidden || part.contains(document.activeElement)) return keepLive(part);
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      const found = answer.ok ? parsed(await answer.text()).getElementById(part.id) : null;
      if (!found) return keepLive(part);
      const fresh = /** @type {HTMLElement} */ (document.importNode(found, true));
      part.replaceWith(fresh);
      addCopyButtons(fresh);
      keepLive(fresh);
    } catch {
      keepLive(part);
    }
  }, seconds * 1000);
}

/** The JSON body that a form sends, as the server makes it of the fields' names. */
function bodyOf(/** @type {HTMLFormElement} */ form) {
  /** @type {Record<string, any>} */
  const body = {};
  for (const [name, given] of new FormData(form)) {
    if (name.startsWith("_") || typeof given !== "string" || !given.trim()) continue;
    const [path, kind] = name.split(":");
    const parts = path.split(".");
    const last = parts.pop() ?? "";
    let at = body;
    for (const part of parts) at = at[part] ??= {};
    if (kind === "list") (at[last] ??= []).push(given);
    else at[last] = kind === "int" ? Number(given) : kind === "bool" ? given === "true" : kind === "lines" ? given.split(/[\n,]/) : given;
  }
  return body;
}

for (const form of /** @type {NodeListOf<HTMLFormElement>} */ (document.querySelectorAll("form.call"))) {
  const body = form.querySelector("[data-body]");
  if (body) form.addEventListener("input", () => { body.textContent = JSON.stringify(bodyOf(form)); });
  form.addEventListener("submit", () => { for (const button of form.querySelectorAll("button")) button.disabled = true; });
}

let waitsForKey = false;
document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
  if (waitsForKey) {
    waitsForKey = false;
    /** @type {HTMLAnchorElement | null} */ (document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`))?.click();
  } else if (event.key === "g") {
    waitsForKey = true;
    setTimeout(() => { waitsForKey = false; }, 1500);
  }
});

addCopyButtons(document);
for (const part of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-refresh]"))) keepLive(part);
