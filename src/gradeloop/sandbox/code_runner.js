// Calls the functions of a suite's author inside a sandbox: by Node, which runs this file, or by QuickJS, which is given one call at a time.

const { stringify, parse } = JSON; // a call may change those that later ones find
const Inline = (async () => {}).constructor;
let ended = null;

function inlineFunction(code, parameters) {
  const text = code.trim().replace(/;+$/, "");
  try {
    return new Inline(...parameters, "require", `return (${text}\n)`);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  if (/\breturn\b/.test(code)) return new Inline(...parameters, "require", code);
  return new Inline(...parameters, "require", `return eval(${stringify(code)})`);
}

function pick(exported, { function: name, file, keeps }) {
  const own = [exported, exported?.default, exported?.default?.default];
  const candidates = name ? [exported?.[name], exported?.default?.[name], ...(keeps === null ? [] : own)] : own;
  const service = candidates.find((candidate) => typeof (candidate?.prototype ?? candidate)?.callApi === "function");
  if (service) {
    return (prompt, options, context) => (typeof service === "function" ? new service(options) : service).callApi(prompt, context);
  }
  const found = candidates.find((candidate) => typeof candidate === "function");
  if (!found) throw new Error(`${file} exports no function${name ? ` ${name}` : ""}`);
  return found;
}

function exportsOf(call, load) {
  const module = { exports: {} };
  const names = ["module", "exports", "require", "__filename", "__dirname"];
  new Function(...names, call.code)(module, module.exports, load, call.place, call.place.replace(/\/[^/]*$/, ""));
  return module.exports;
}

function plainJson(value, lenient) {
  if (typeof value === "function" || value === undefined) throw new TypeError(`it returned ${typeof value}`);
  const written = stringify(value, (_, item) => {
    if (typeof item === "number" && !Number.isFinite(item) && !lenient) throw new TypeError(`it returned ${item}, which is no number of JSON`);
    return item;
  });
  if (written === undefined) throw new TypeError(`it returned ${typeof value}`);
  return written;
}

function withoutTypes(call, load) {
  const strip = importable(load).stripTypeScriptTypes;
  if (!strip) throw new Error(`${call.file} is TypeScript, which needs Node 22.13 or newer; write it in JavaScript, or install that`);
  if (process.config.variables.node_use_amaro === false) {
    throw new Error(`${call.file} is TypeScript, which this Node was built without; write it in JavaScript, or install Node as nodejs.org builds it`);
  }
  return { ...call, code: strip(call.code, { mode: "transform" }) };
}

function importable(load) {
  try {
    return load("module");
  } catch {
    return {};
  }
}

async function valueOf(call, load, importFile) {
  let made;
  if (call.typed) call = withoutTypes(call, load);
  if (!call.file) made = inlineFunction(call.code, call.parameters);
  else if (importFile && call.module) made = pick(await importFile(call), call);
  else made = pick(exportsOf(call, load), call);
  if (call.loads) return "true";
  const lenient = [call.arguments[0], call.arguments[1]?.hookName].includes("afterEach"); // whose scores that are no numbers do not count
  let value = await (call.file ? made(...call.arguments) : made(...call.arguments, load));
  if (!value && call.keeps !== null) value = call.arguments[call.keeps];
  if (!call.file && typeof value === "function") value = await value(...call.arguments);
  return plainJson(value, lenient && call.keeps !== null);
}

function shown(error) {
  try {
    return String(error && error.name && error.message !== undefined ? `${error.name}: ${error.message}` : error).slice(0, 2000);
  } catch {
    return "an error that cannot be shown";
  }
}

function takeEnded() {
  return ended;
}

function begin(text) {
  const call = parse(text);
  const load = (name) => {
    throw new Error(`require(${stringify(name)}) needs Node, which this sandbox does not have`);
  };
  ended = null;
  valueOf(call, load, null).then(
    (value) => { ended = `{"value": ${value}}`; },
    (error) => { ended = stringify({ error: shown(error) }); },
  );
}

if (typeof console === "undefined") {
  const silent = () => {};
  globalThis.console = { log: silent, info: silent, debug: silent, warn: silent, error: silent };
}

if (typeof process !== "undefined" && typeof require === "function") {
  const fs = require("fs");
  const request = parse(fs.readFileSync("calls.json", "utf8"));
  fs.unlinkSync("calls.json");
  const write = fs.writeSync.bind(fs), pause = Atomics.wait;
  const exit = process.exit.bind(process);
  const report = (at, rest) => {
    const line = Buffer.from(`${request.mark} {"at": ${at}, ${rest}}\n`);
    for (let sent = 0; sent < line.length;) {
      try {
        sent += write(1, line, sent);
      } catch (error) {
        if (error.code !== "EAGAIN") throw error; // Node made the pipe non-blocking, and it is full until the worker has read on
        pause(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
      }
    }
  };
  const aside = (...parts) => process.stderr.write(`${parts.map(String).join(" ")}\n`);
  for (const name of ["log", "info", "debug", "warn", "error"]) console[name] = aside;
  process.stdout.write = process.stderr.write.bind(process.stderr);
  const { createRequire, Module } = require("module");
  process.env.NODE_PATH = request.paths.map((path) => `${path}/node_modules`).join(":");
  Module._initPaths();
  const beside = (call) => createRequire(call.place || `${request.paths[0] ?? process.cwd()}/`);
  let imported = 0;
  const importFile = async (call) => {
    try {
      if (call.place && (!call.typed || process.features.typescript)) return await import(require("url").pathToFileURL(call.place));
    } catch (error) {
      if (!(error instanceof SyntaxError) || /^\s*import\s/m.test(call.code)) throw error; // its package.json says CommonJS, or it has an enum
    }
    const name = `${process.cwd()}/module-${imported++}.mjs`;
    fs.writeFileSync(name, call.code);
    return import(name);
  };
  (async () => {
    for (const [at, call] of request.calls.entries()) {
      try {
        const value = await valueOf(call, beside(call), importFile);
        if (value.length > 1024 * 1024) throw new Error(`it returned ${value.length} characters, ${1024 * 1024} at most`);
        report(at, `"value": ${value}`);
      } catch (error) {
        report(at, `"error": ${stringify(shown(error))}`);
      }
    }
    exit(0);
  })();
}
