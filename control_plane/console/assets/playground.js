// Runs the playground's form as one stream: each line is a pane as it stands.

const form = /** @type {HTMLFormElement} */ (document.getElementById("playground"));
const stop = /** @type {HTMLButtonElement} */ (form.querySelector("[data-stop]"));
let running = new AbortController();

/** The panes whose model is named, in order: the server numbers only those. */
function shownPanes() {
  return [...form.querySelectorAll("input[name^=model]")]
    .map((input, place) => ({ name: /** @type {HTMLInputElement} */ (input).value.trim(), place }))
    .filter((each) => each.name)
    .map((each) => ({ text: form.querySelector(`[data-pane="${each.place}"]`), facts: form.querySelector(`[data-facts="${each.place}"]`) }));
}

function show(/** @type {any} */ pane, /** @type {{text: Element | null, facts: Element | null}} */ at) {
  if (at.text) at.text.textContent = pane.text;
  if (!at.facts || pane.whole_ms === null) return;
  const facts = pane.error
    ? `${pane.error} ${pane.code}`
    : `first ${Math.round(pane.first_ms ?? 0)} ms · ${pane.tokens_per_s?.toFixed(1) ?? "–"} tok/s · in ${pane.usage.prompt_tokens ?? 0} (${pane.usage.prompt_tokens_details?.cached_tokens ?? 0} cached) out ${pane.usage.completion_tokens ?? 0}`;
  at.facts.textContent = `${facts} · `;
  const link = document.createElement("a");
  link.href = `${form.action.replace(/playground$/, "requests/")}${pane.request_id}`;
  link.textContent = "request";
  at.facts.append(link);
}

async function run() {
  running = new AbortController();
  const panes = shownPanes();
  for (const at of panes) { if (at.text) at.text.textContent = ""; if (at.facts) at.facts.textContent = "…"; }
  stop.hidden = false;
  try {
    const fields = new URLSearchParams(/** @type {any} */ (new FormData(form)));
    const answer = await fetch(form.action, { method: "POST", body: fields, headers: { accept: "application/x-ndjson" }, signal: running.signal });
    if (!answer.ok || !answer.body) throw new Error(`The console answered ${answer.status}.`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) { const pane = JSON.parse(line); show(pane, panes[pane.pane]); }
    }
  } catch (error) {
    const text = running.signal.aborted ? "stopped" : String(/** @type {Error} */ (error).message);
    for (const at of panes) if (at.facts?.textContent === "…") at.facts.textContent = text;
  } finally {
    stop.hidden = true;
  }
}

/** The call of the first model as curl, with what is typed. */
function showCall() {
  const typed = new FormData(form);
  const messages = ["system", "user"].filter((role) => typed.get(role)).map((role) => ({ role, content: typed.get(role) }));
  const numbers = ["max_tokens", "temperature", "top_p", "seed"].filter((name) => typed.get(name)).map((name) => [name, Number(typed.get(name))]);
  const call = { model: typed.get("model0"), messages, ...Object.fromEntries(numbers) };
  const at = document.querySelector("[data-call]");
  if (at) at.textContent = JSON.stringify(call).replaceAll("'", "'\\''");
}

form.addEventListener("input", showCall);
form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
form.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
stop.addEventListener("click", () => running.abort());
