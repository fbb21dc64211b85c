// The Vercel AI SDK with its OpenAI-compatible provider against a gateway, as its documentation shows it; prints one JSON object.
// node vercel_client.mjs <base url> <key>
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.CLIENTS, "package.json"));
const { generateObject, generateText, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");
const [baseURL, apiKey] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "tenora", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider.chatModel("tiny-chat");

const whole = await generateText({ model, prompt: "hi" });
const stream = streamText({ model, prompt: "hi" });
let streamed = "";
for await (const part of stream.textStream) streamed += part;
const inputSchema = z.object({ city: z.string() });
const get_weather = tool({ description: "The weather.", inputSchema, execute: async ({ city }) => `sunny in ${city}` });
const walked = await generateText({
  model, prompt: "get_weather please", tools: { get_weather }, stopWhen: stepCountIs(2),
});
const shaped = await generateObject({ model, prompt: "Where?", schema: inputSchema });
const completed = await generateText({ model: provider.completionModel("tiny-chat"), prompt: "hi" });
const refused = await generateText({ model: provider.chatModel("no-such-bot"), prompt: "hi", maxRetries: 0 }).catch((error) => error);
console.log(JSON.stringify({
  text: whole.text,
  streamed,
  usage: (await stream.usage).inputTokens,
  calls: walked.steps.flatMap((step) => step.toolResults.map((each) => each.output)),
  then: walked.text,
  shaped: shaped.object,
  completed: completed.text,
  refused: [refused.statusCode, refused.isRetryable],
}));
