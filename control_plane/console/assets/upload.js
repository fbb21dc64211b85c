// Uploads the folder of an adapter: checked and hashed here, announced through the console, sent straight to the bucket.
// Its Idempotency-Key is made of the files, as `tenora upload` makes it, so the same folder goes on in any browser.

const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";
const PARALLEL = 3;
const ATTEMPTS_MAX = 4;
const ROUNDS_MAX = 20;
const HASHED_BYTES_MAX = 2 ** 31;

/** @typedef {{path: string, sha256: string, size_bytes: number}} Declared */
/** @typedef {{file: File, offset_bytes: number, size_bytes: number, url: string, headers: Record<string, string>}} Part */

const section = /** @type {HTMLElement} */ (document.getElementById("upload"));
const log = /** @type {HTMLElement} */ (section.querySelector("output"));
const bar = /** @type {HTMLProgressElement} */ (section.querySelector("progress"));
const nameField = /** @type {HTMLInputElement} */ (section.querySelector("[name=adapter]"));
const pause = /** @type {HTMLButtonElement} */ (section.querySelector("button[data-pause]"));
const root = section.dataset.root ?? "";
let stopped = new AbortController();

/** A failure that says what to do. */
class Refused extends Error {}

function say(/** @type {string} */ text) {
  log.textContent = text;
}

/** POST to the API as the person who is signed in. */
async function call(/** @type {string} */ path, /** @type {unknown} */ body = undefined, key = "") {
  const headers = { "content-type": "application/json", ...(key ? { "idempotency-key": key } : {}) };
  const answer = await fetch(`${root}/do${path}`, { method: "POST", headers, body: body === undefined ? "" : JSON.stringify(body), signal: stopped.signal });
  if (answer.redirected) throw new Refused("Your session has ended. Sign in, and choose the same folder to go on.");
  const found = answer.headers.get("content-type")?.includes("json") ? await answer.json() : {};
  if (!answer.ok) throw Object.assign(new Refused(found.detail ?? `The console answered ${answer.status}. Reload the page.`), { status: answer.status, code: found.code });
  return { found, replayed: answer.headers.has("idempotent-replayed") };
}

async function sha256(/** @type {ArrayBuffer} */ bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The two files of an adapter among those chosen. The others stay here. */
async function checked(/** @type {File[]} */ files) {
  const config = files.find((file) => file.name === CONFIG);
  const weights = files.find((file) => file.name === WEIGHTS);
  if (!config) throw new Refused(`${CONFIG} is not in this folder. Choose the folder that PEFT's save_pretrained wrote.`);
  if (!weights) {
    const other = files.find((file) => /\.(bin|pt|pth|pkl)$/.test(file.name));
    throw new Refused(`${WEIGHTS} is not in this folder.${other ? ` ${other.name} is a pickle, which can run code: save with safe_serialization=True.` : ""}`);
  }
  if (!weights.size || weights.size > HASHED_BYTES_MAX) throw new Refused(`${WEIGHTS} has ${weights.size} bytes. Larger ones than 2 GB go with: tenora upload`);
  let settings;
  try {
    settings = JSON.parse(await config.text());
  } catch {
    throw new Refused(`${CONFIG} is not JSON.`);
  }
  const rankMax = Number(section.dataset.rankMax);
  if (rankMax && settings.r > rankMax) throw new Refused(`${CONFIG}: r is ${settings.r}; your plan allows ${rankMax}. Train with LoraConfig(r=${rankMax}).`);
  return { files: [config, weights], baseModel: settings.base_model_name_or_path };
}

/** The revision of exactly these files: open, ready or validating, else a new one. */
async function announce(/** @type {string} */ name, /** @type {string} */ adapterId, /** @type {Declared[]} */ files) {
  let key = `upload-${await sha256(new TextEncoder().encode(JSON.stringify({ adapter: adapterId, files })).buffer)}`;
  for (let round = 0; round < ROUNDS_MAX; round++) {
    const { found, replayed } = await call(`/api/v1/adapters/${name}/revisions`, { files }, key);
    const givenUp = found.status === "uploading" && !found.uploads.length;
    if (!replayed || !(givenUp || found.status === "rejected")) return found;
    key = `upload-${await sha256(new TextEncoder().encode(JSON.stringify({ after: found.id })).buffer)}`;
  }
  throw new Refused("These files were rejected again and again. See the last report.");
}

/** PUT one part, again where that can help. */
function put(/** @type {Part} */ part, /** @type {(bytes: number) => void} */ sent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let counted = 0;
    request.open("PUT", part.url);
    for (const [name, value] of Object.entries(part.headers)) if (!/^(host|content-length)$/i.test(name)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => { sent(event.loaded - counted); counted = event.loaded; };
    request.onload = () => (request.status < 300 ? resolve(undefined) : fail(request.status < 500));
    request.onerror = () => fail(false);
    request.onabort = () => fail(true);
    const fail = (/** @type {boolean} */ final) => { sent(-counted); reject(Object.assign(new Error("not sent"), { final })); };
    stopped.signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(part.file.slice(part.offset_bytes, part.offset_bytes + part.size_bytes));
  });
}

async function putAgain(/** @type {Part} */ part, /** @type {(bytes: number) => void} */ sent) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await put(part, sent);
    } catch (error) {
      if (/** @type {any} */ (error).final || attempt === ATTEMPTS_MAX) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** attempt));
    }
  }
}

async function send(/** @type {any[]} */ uploads, /** @type {File[]} */ files) {
  const parts = uploads.flatMap((upload) => (upload.parts.length ? upload.parts : [upload]).map((/** @type {any} */ each) => ({
    file: files.find((file) => file.name === upload.path), offset_bytes: each.offset_bytes ?? 0, size_bytes: each.size_bytes, url: each.url, headers: each.headers,
  })));
  const total = parts.reduce((sum, part) => sum + part.size_bytes, 0);
  let done = 0;
  bar.hidden = false;
  bar.max = total;
  const sent = (/** @type {number} */ bytes) => {
    done += bytes;
    bar.value = done;
    say(`Sending ${(done / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`);
  };
  const waiting = [...parts];
  const worker = async () => { for (let part = waiting.shift(); part; part = waiting.shift()) await putAgain(part, sent); };
  await Promise.all(Array.from({ length: PARALLEL }, worker));
}

async function upload(/** @type {File[]} */ chosen) {
  stopped = new AbortController();
  pause.hidden = false;
  try {
    const { files, baseModel } = await checked(chosen);
    const name = nameField.value.trim();
    if (!/^[a-z0-9][a-z0-9-]{0,62}$/.test(name)) throw new Refused("Give the adapter a name first: lower-case letters, digits and '-'.");
    say("Hashing");
    /** @type {Declared[]} */
    const declared = [];
    for (const file of files) declared.push({ path: file.name, sha256: await sha256(await file.arrayBuffer()), size_bytes: file.size });
    const adapter = await adapterNamed(name, baseModel);
    const revision = await announce(name, adapter.id, declared);
    const where = `/api/v1/adapters/${name}/revisions/${revision.id}`;
    if (revision.status === "uploading") {
      await send(revision.uploads, files);
      await call(`${where}/complete`);
    }
    location.assign(`${root}/adapters/${name}/revisions/${revision.id}`);
  } catch (error) {
    const known = error instanceof Refused;
    say(known ? error.message : `Stopped at ${bar.max ? Math.round((100 * bar.value) / bar.max) : 0} %. Choose the same folder to go on, here or elsewhere.`);
    log.classList.toggle("problem", known);
  } finally {
    pause.hidden = true;
  }
}

/** The adapter of this name, made where the newest 200 do not have it. */
async function adapterNamed(/** @type {string} */ name, /** @type {string} */ baseModel) {
  const answer = await fetch(`${root}/raw/api/v1/adapters?limit=200`, { signal: stopped.signal });
  const listed = answer.ok && !answer.redirected ? (await answer.json()).data : [];
  const found = listed.find((/** @type {any} */ each) => each.name === name);
  if (found) return found;
  try {
    return (await call("/api/v1/adapters", { name, base_model: baseModel })).found;
  } catch (error) {
    if (/** @type {any} */ (error).code !== "adapter_exists") throw error;
    return (await fetch(`${root}/raw/api/v1/adapters/${name}`, { signal: stopped.signal })).json();
  }
}

/** All files of what was dropped, also those in folders, 10,000 at most. */
async function filesOf(/** @type {DataTransfer} */ dropped) {
  /** @type {File[]} */
  const found = [];
  const entries = [...dropped.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  while (entries.length && found.length < 10_000) {
    const entry = /** @type {any} */ (entries.pop());
    if (entry.isFile) found.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
    else entries.push(...(await new Promise((resolve, reject) => entry.createReader().readEntries(resolve, reject))));
  }
  return found;
}

for (const input of /** @type {NodeListOf<HTMLInputElement>} */ (section.querySelectorAll("input[type=file]"))) {
  input.addEventListener("change", () => upload([...(input.files ?? [])]));
}
section.addEventListener("dragover", (event) => event.preventDefault());
section.addEventListener("drop", async (event) => {
  event.preventDefault();
  if (event.dataTransfer) await upload(await filesOf(event.dataTransfer));
});
pause.addEventListener("click", () => stopped.abort());
/** @type {HTMLElement} */ (section.querySelector("[data-scripted]")).hidden = false;
