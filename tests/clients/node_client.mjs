// OpenAI's SDK for Node against a gateway, as its documentation shows it; prints one JSON object.
// node node_client.mjs <base url> <key> <case>, with the SDK in the NODE_PATH that its caller resolves.
import { createRequire } from "node:module";
import path from "node:path";

const { OpenAI } = createRequire(path.join(process.env.CLIENTS, "package.json"))("openai");
const [baseURL, apiKey, which] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });
const model = "tiny-chat";
const messages = [{ role: "user", content: "hi" }];
const parameters = {
  type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false,
};

async function answers() {
  const whole = await client.chat.completions.create({ model, messages });
  const stream = await client.chat.completions.create({
    model, messages, stream: true, stream_options: { include_usage: true },
  });
  let streamed = "";
  let usage = null;
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const called = await client.chat.completions.create({
    model, messages, tool_choice: "required", tools: [{ type: "function", function: { name: "get_weather", parameters } }],
  });
  const schema = { name: "place", schema: parameters, strict: true };
  const shaped = await client.chat.completions.parse({
    model, messages, response_format: { type: "json_schema", json_schema: schema },
  });
  const models = [];
  for await (const each of client.models.list()) models.push(each.id);
  const refused = await client.chat.completions.create({ model: "no-such-bot", messages }).catch((error) => error);
  return {
    text: whole.choices[0].message.content,
    streamed,
    usage: [usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens],
    call: called.choices[0].message.tool_calls[0].function,
    shaped: shaped.choices[0].message.parsed,
    models,
    refused: [refused.constructor.name, refused.status, refused.code, Boolean(refused.requestID)],
  };
}

// A stream has the only place of the tenant, until the other client was told to come back.
async function retries() {
  const held = await client.chat.completions.create({ model, messages, stream: true });
  await held[Symbol.asyncIterator]().next();
  const attempts = [];
  const patient = new OpenAI({
    baseURL, apiKey, maxRetries: 4,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      const count = Number(new Headers(init.headers).get("x-stainless-retry-count"));
      attempts.push([response.status, count, response.headers.get("retry-after-ms")]);
      held.controller.abort();
      return response;
    },
  });
  const answer = await patient.chat.completions.create({ model, messages, max_tokens: 3 });
  return { attempts, text: answer.choices[0].message.content };
}

async function breaks() {
  let streamed = "";
  try {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of stream) streamed += chunk.choices[0]?.delta?.content ?? "";
  } catch (error) {
    return { streamed, failed: [error.constructor.name, error.code, error.type] };
  }
  return { streamed, failed: null };
}

console.log(JSON.stringify(await { answers, retries, breaks }[which]()));
