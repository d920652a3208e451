// Mastra's rubric scorer on runs that are there already: node mastra_rubric.mjs MODULES URL RUNS AT_ONCE
// The last line that it prints is JSON: seconds of the gradings, seconds of CPU of them alone, and how many failed.

import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, url, runs, atOnce] = process.argv.slice(2);
const entry = join(modules, "@mastra", "evals", "dist", "scorers", "prebuilt", "index.js");
const { createRubricScorer } = await import(pathToFileURL(entry));

const scorer = createRubricScorer({
  model: { id: "openai/gpt-5-mini", url: `${url}/v1`, apiKey: "sk-mock" },
  criteria: [{ description: "It says which run it is." }],
});

const message = (id, role, text) => ({ id, role, createdAt: new Date(), content: { format: 2, content: text, parts: [{ type: "text", text }] } });

const run = (at) => ({
  input: {
    inputMessages: [message(`q${at}`, "user", "Which run are you?")],
    rememberedMessages: [],
    systemMessages: [],
    taggedSystemMessages: {},
  },
  output: [message(`a${at}`, "assistant", `I am run number ${at}. `.repeat(80))],
});

let next = 0;
let failed = 0;

async function lane() {
  while (next < Number(runs)) {
    const at = next++;
    try {
      const { score } = await scorer.run(run(at));
      failed += score === 1 ? 0 : 1;
    } catch {
      failed += 1;
    }
  }
}

const began = performance.now();
const before = process.cpuUsage();
await Promise.all(Array.from({ length: Number(atOnce) }, lane));
const used = process.cpuUsage(before);
console.log(JSON.stringify({ wall: (performance.now() - began) / 1000, cpu: (used.user + used.system) / 1e6, failed }));
process.exit(0);
