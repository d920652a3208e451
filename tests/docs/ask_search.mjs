// The site's own search, without a browser: `node ask_search.mjs SITE QUESTION...` prints the places of each question's answers.
import { readFileSync, readdirSync } from "node:fs";

const [site, ...questions] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const index = JSON.parse(readFileSync(`${site}/search.json`, "utf8"));
let answered;
globalThis.self = { postMessage: (message) => answered(message) };
const ask = (type, data) => new Promise((resolve) => { answered = resolve; self.onmessage({ data: { type, data } }); });

(0, eval)(readFileSync(`${workers}/${readdirSync(workers).find((name) => name.startsWith("search."))}`, "utf8"));
await ask(0, index);
const found = [];
for (const input of questions) {
  const { data } = await ask(2, { input, filter: { input: [], aggregation: { input: [] } } });
  found.push(data.items.map(({ id }) => index.items[id].location));
}
console.log(JSON.stringify(found));
