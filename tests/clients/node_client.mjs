// OpenAI's SDK for Node against a gateway, as its documentation shows it; prints one JSON object.
// node node_client.mjs <base url> <key>, with the SDK in the NODE_PATH that its caller resolves.
import { createRequire } from "node:module";
import path from "node:path";

const { OpenAI } = createRequire(path.join(process.env.CLIENTS, "package.json"))("openai");
const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });
const model = "tiny-chat";
const messages = [{ role: "user", content: "hi" }];

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
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const called = await client.chat.completions.create({
  model, messages, tool_choice: "required", tools: [{ type: "function", function: { name: "get_weather", parameters } }],
});
const models = [];
for await (const each of client.models.list()) models.push(each.id);
const refused = await client.chat.completions.create({ model: "no-such-bot", messages }).catch((error) => error);
console.log(JSON.stringify({
  text: whole.choices[0].message.content,
  streamed,
  usage: [usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens],
  call: called.choices[0].message.tool_calls[0].function,
  models,
  refused: [refused.constructor.name, refused.status, refused.code, Boolean(refused.requestID)],
}));
