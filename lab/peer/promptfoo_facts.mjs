// What the published package says of its configurations, as JSON: `node promptfoo_facts.mjs PACKAGE`. The schemas are read where it exports
// them; defaults of thresholds and names of variables stand in its text alone.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const folder = join(process.argv[2], "dist", "src");
const schemas = await import(join(folder, "index.js"));

/** The keys of an object's schema, or the words of an enumeration; of a union and an intersection all of them. */
function words(schema) {
  const definition = schema?.def ?? schema?._def ?? {};
  if (schema?.shape) return Object.keys(schema.shape);
  if (definition.type === "enum") return Object.values(definition.entries);
  const inner = [definition.options, definition.left, definition.right, definition.innerType, definition.in, definition.element, definition.getter?.()];
  return inner.flat().filter(Boolean).flatMap(words);
}

const text = readFileSync(join(folder, "index.js"), "utf8");
const test = schemas.AtomicTestCaseSchema;
const providers = schemas.ProvidersSchema.def.options.at(-1).element.def.options.filter((one) => one.shape);

/** The default of the threshold in the function that decides a type: a number, or a constant with one. */
function threshold(handler) {
  const start = text.search(new RegExp(`(function|const) ${handler}\\b`));
  const body = text.slice(start, text.indexOf("\n}", start));
  const found = body.match(/assertion\.threshold \?\? ([\w.]+)/);
  if (!found) return null;
  const constant = text.match(new RegExp(`const ${found[1]} = ([\\d.]+);`));
  return Number(constant ? constant[1] : found[1]);
}

const handlers = text.slice(text.indexOf("const ASSERTION_HANDLERS = {")).split("\n};")[0];
const thresholds = {};
for (const [, quoted, bare, handler] of handlers.matchAll(/^\t(?:"([^"]+)"|(\w+)): (handle\w+)/gm)) thresholds[quoted ?? bare] = threshold(handler);

const cells = text.slice(text.indexOf("function assertionFromString"), text.indexOf("function testCaseFromCsvRow"));
const listed = cells.match(/else if \(((?:type === "[^"]+"(?: \|\| )?)+)\) \{\s*const defaultThreshold/)[1];
const similar = Number(text.match(/const DEFAULT_SEMANTIC_SIMILARITY_THRESHOLD = ([\d.]+)/)[1]);
const other = Number(cells.match(/DEFAULT_SEMANTIC_SIMILARITY_THRESHOLD : ([\d.]+)/)[1]);
const names = [...listed.matchAll(/"([^"]+)"/g)].map((found) => found[1]);

const variables = new Set();
for (const file of readdirSync(folder).filter((name) => name.endsWith(".js"))) {
  for (const found of readFileSync(join(folder, file), "utf8").matchAll(/getEnv\w+\("(PROMPTFOO_\w+)"/g)) variables.add(found[1]);
}

console.log(JSON.stringify({
  types: words(schemas.BaseAssertionTypesSchema),
  special: words(schemas.SpecialAssertionTypesSchema),
  keys: {
    configuration: words(schemas.UnifiedConfigSchema),
    evaluateOptions: words(schemas.EvaluateOptionsSchema),
    test: words(test),
    options: words(test.shape.options),
    assertion: words(schemas.AssertionSchema),
    "assert-set": words(schemas.AssertionSetSchema),
    scenario: words(schemas.ScenarioSchema),
    provider: providers.flatMap((one) => Object.keys(one.shape)),
  },
  thresholds,
  cells: Object.fromEntries(names.map((name) => [name, name === "similar" ? similar : other])),
  environment: [...variables].sort(),
}));
