"use strict";
(() => {
  const order = { failed: 0, error: 1, unsure: 2, waiting: 3, running: 4, none: 5, passed: 6 }; // as the page lists them
  const keys = {
    id: (row) => row.cells[0].textContent.toLowerCase(),
    verdict: (row) => order[row.dataset.f.split(" ").find((each) => each in order)] ?? 7,
    score: (row) => Number(row.dataset.s ?? -1),
    worst: (row) => row.cells[3].textContent.trim().toLowerCase() || "\uffff",
    cost: (row) => Number(row.dataset.c ?? 0),
  };
  // A column of a comparison is sorted by its case's verdict, then by its score.
  const placed = (at) => (line) => {
    const found = line.querySelector(`[data-g="${at}"]`);
    return found ? keys.verdict(found) + Number(found.dataset.s ?? 0) / 2 : 9;
  };
  const labelled = (at) => (row) => row.cells[5 + at]?.textContent.trim().toLowerCase() ?? "";
  const key = (name) => keys[name] || (name.startsWith("column") ? placed(Number(name.slice("column".length))) : labelled(Number(name.slice("label".length))));
  const state = { filter: "", criterion: "", label: "", search: "", sort: "", column: "", down: false };
  // A row is a case: a line of the table, or one of the cases that a comparison has beside each other on a line.
  let rows = [], lines = [], fitting = new Set(), texts = new Map(), byId = new Map(), current = null, cited = "";
  const id_of = (row) => row.dataset.id ?? row.querySelector(".name")?.textContent ?? "";

  // The address holds what is shown: `#case-ID&f=failed&k=step&q=words&sort=score&down=1`. A part that cannot be read is left out.
  const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const SHORT = { f: "filter", k: "criterion", l: "label", q: "search", c: "column", sort: "sort" };
  const address = (row) => {
    const parts = row ? [`case-${encodeURIComponent(id_of(row))}`] : [];
    for (const [short, name] of Object.entries(SHORT)) if (state[name]) parts.push(`${short}=${encodeURIComponent(state[name])}`);
    if (state.down) parts.push("down=1");
    return parts.length ? `#${parts.join("&")}` : "";
  };
  const keep = () => history.replaceState(null, "", location.pathname + location.search + address(current));
  const read = () => {
    const parts = location.hash.slice(1).split("&");
    if (!parts.some((part) => part.includes("="))) return false;
    const before = address(null);
    for (const name of Object.values(SHORT)) state[name] = "";
    state.down = false;
    for (const part of parts) {
      const [short, value] = [part.slice(0, part.indexOf("=")), decoded(part.slice(part.indexOf("=") + 1))];
      if (Object.hasOwn(SHORT, short)) state[SHORT[short]] = value;
      else if (short === "down") state.down = true;
    }
    return address(null) !== before;
  };
  const target = () => {
    const first = location.hash.slice(1).split("&")[0];
    if (!first.startsWith("case-")) return null;
    const name = decoded(first.slice("case-".length));
    return byId.get(name) || rows.find((row) => row.id === `case-${name}`) || null;
  };

  // The browser lays out the 50 rows of a part when they come near; until then the part's height is estimated by its rows.
  const measure = () => {
    for (const body of document.getElementById("table").tBodies) {
      const count = [...body.rows].filter((row) => !row.hidden).length;
      body.hidden = !count;
      body.style.setProperty("--rows", count);
    }
  };

  const show = () => {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = state.criterion ? [...document.querySelectorAll("[data-criterion]")].find((each) => each.dataset.name === state.criterion) : null;
    const kept = new Set();
    fitting = new Set();
    for (const row of rows) {
      const fits = (!state.column || row.dataset.g === state.column) && (!state.filter || row.dataset.f.split(" ").includes(state.filter))
        && (!wanted || (row.dataset.k ?? "").split(" ").includes(wanted.dataset.criterion))
        && (!state.label || [...row.querySelectorAll("[data-l]")].some((cell) => cell.dataset.l === state.label))
        && words.every((word) => texts.get(row).includes(word));
      if (fits) fitting.add(row) && kept.add(row.closest("tr"));
    }
    for (const line of lines) if (line.hidden === kept.has(line)) line.hidden = !line.hidden;
    measure();
    for (const button of document.querySelectorAll("[data-filter]")) button.setAttribute("aria-pressed", String(button.dataset.filter === state.filter && (button.dataset.column ?? "") === state.column));
    for (const button of document.querySelectorAll("[data-criterion]")) button.setAttribute("aria-pressed", String(button === wanted));
    for (const button of document.querySelectorAll("[data-label]")) button.setAttribute("aria-pressed", String(button.dataset.label === state.label));
    const empty = document.getElementById("empty");
    if (empty) empty.hidden = kept.size > 0;
    document.getElementById("count").textContent = kept.size === lines.length ? "" : `${kept.size.toLocaleString("en")} of ${lines.length.toLocaleString("en")} shown`;
  };

  const cases_of = (all) => all.flatMap((line) => (line.dataset.f === undefined ? [...line.querySelectorAll("[data-f]")] : [line]));
  const sort = () => {
    for (const head of document.querySelectorAll("[data-sort]")) {
      if (head.dataset.sort === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    if (!state.sort) return;
    const made = lines.map((line) => [key(state.sort)(line), line]);
    const turn = state.down ? -1 : 1;
    made.sort(([a], [b]) => (a < b ? -turn : a > b ? turn : 0));
    lines = made.map(([, line]) => line);
    // Rows that are moved within the document are styled one by one: they are put in order outside of it.
    const table = document.getElementById("table"), bodies = [...table.tBodies], focused = document.activeElement;
    const sizes = bodies.map((body) => body.rows.length), left = [...lines];
    for (const body of bodies) body.remove();
    bodies.forEach((body, at) => body.append(...left.splice(0, sizes[at])));
    table.append(...bodies);
    rows = cases_of(lines);
    measure();
    if (focused !== document.activeElement) focused.focus?.({ preventScroll: true });
  };

  const wire = () => {
    const tools = document.getElementById("tools");
    if (!tools) return;
    tools.hidden = false;
    const table = document.getElementById("table");
    table.style.setProperty("--columns", table.rows[0].cells.length - 1);
    lines = [...table.tBodies].flatMap((body) => [...body.rows]);
    rows = cases_of(lines);
    texts = new Map(rows.map((row) => [row, `${row.textContent} ${id_of(row)}`.toLowerCase()]));
    byId = new Map(rows.map((row) => [id_of(row), row]));
    for (const row of rows) {
      const name = row.dataset.p && row.querySelector("span.name");
      if (!name) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "open name";
      button.textContent = name.textContent;
      name.replaceWith(button);
    }
    for (const head of document.querySelectorAll("[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
    }
    document.getElementById("search").value = state.search;
    sort();
    show();
    if (!document.getElementById("rows")) learn(); // else once all rows are there
    estimate();
  };

  // Outputs and variables are unpacked when the page stands, and found from then on.
  const inflated = async (text) => {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
    return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text());
  };
  const learn = async () => {
    const packed = document.getElementById("found");
    if (!packed) return;
    const known = texts, more = await inflated(packed.textContent);
    for (const row of rows) if (known.has(row)) known.set(row, `${known.get(row)} ${more[row.id.slice("case-".length)] ?? ""}`);
    if (state.search && known === texts) show();
  };

  // How long a running batch still takes, from what ended while this page watched.
  const seen = [];
  const estimate = () => {
    const place = document.getElementById("eta");
    if (!place) return;
    const done = Number(place.dataset.done), total = Number(place.dataset.total);
    if (!seen.length || seen.at(-1)[1] !== done) seen.push([performance.now(), done]);
    const [[from, first], [to, last]] = [seen[0], seen.at(-1)];
    if (last - first < 5 || to - from < 3000) return;
    const left = Math.round(((total - last) * (to - from)) / (last - first) / 1000);
    place.textContent = `about ${left >= 120 ? `${Math.round(left / 60)} min` : `${left} s`} left`;
  };

  document.addEventListener("click", (event) => {
    const at = event.target;
    const filter = at.closest("[data-filter]"), head = at.closest("[data-sort]"), opened = at.closest("button.open");
    const criterion = at.closest("[data-criterion]"), label = at.closest("[data-label]");
    if (filter) { state.filter = filter.dataset.filter; state.column = filter.dataset.column ?? ""; if (!state.filter) state.criterion = state.label = ""; show(); keep(); }
    else if (criterion) {
      state.criterion = state.criterion === criterion.dataset.name ? "" : criterion.dataset.name;
      show();
      keep();
    } else if (label) { state.label = state.label === label.dataset.label ? "" : label.dataset.label; show(); keep(); }
    else if (at.closest("#clear")) {
      state.filter = state.criterion = state.label = state.search = state.column = "";
      document.getElementById("search").value = "";
      show();
      keep();
    } else if (head) {
      state.down = state.sort === head.dataset.sort && !state.down;
      state.sort = head.dataset.sort;
      sort();
      keep();
    } else if (at.closest("a[data-at]")) cited = at.closest("a[data-at]").dataset.at;
    else if (opened) location.hash = address(opened.closest("tr"));
  });
  document.addEventListener("input", (event) => {
    if (event.target.id === "search") { state.search = event.target.value; show(); keep(); }
  });
  read();
  wire();

  // The rows of a long table beyond the first are packed: they are put in at once, and can be filtered and opened from then on.
  const fill = async () => {
    const script = document.getElementById("rows");
    if (!script) return false;
    document.getElementById("table").insertAdjacentHTML("beforeend", await inflated(script.textContent)); // our own templates
    script.remove();
    wire();
    if (dialog && !current) route();
    return true;
  };

  // A case is unpacked when its row is opened.
  const dialog = document.getElementById("case");
  const unpacked = new Map();
  const unpack = async (pack) => {
    if (!unpacked.has(pack)) {
      unpacked.set(pack, await inflated(document.getElementById(`pack-${pack}`).textContent));
    }
    return unpacked.get(pack);
  };
  const shown = () => rows.filter((row) => fitting.has(row) && row.dataset.p);
  const open = async (row) => {
    current = row;
    const [pack, place] = row.dataset.p.split(".").map(Number);
    const pages = await unpack(pack);
    if (current !== row) return;
    const body = document.getElementById("case-body");
    body.innerHTML = pages[place]; // rendered by our own templates, which escape every value
    tellPlace(row, shown());
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    const source = cited && document.getElementById(cited);
    cited = "";
    if (source) document.dispatchEvent(new CustomEvent("reveal", { detail: source })); // the words that a citation of a row is of
  };
  // An address that is put into an open page filters it, too.
  const follow = () => {
    if (!read() || !document.getElementById("tools")) return;
    document.getElementById("search").value = state.search;
    sort();
    show();
  };
  const route = () => {
    follow();
    const row = target();
    if (row && row.dataset.p) open(row);
    else if (dialog?.open) dialog.close();
  };
  const step = (by) => {
    const all = shown();
    const next = all[all.indexOf(current) + by];
    if (next) location.replace(address(next));
  };
  // A failure is a case that failed, or has no verdict for an error; of those that the filters show, in the order of the table.
  const FAILURES = ["failed", "error", "regressed", "lost"];
  const fails = (row) => row.dataset.f.split(" ").some((flag) => FAILURES.includes(flag));
  const failing = (from, by, all) => {
    const at = all.indexOf(from), found = all.filter(fails);
    return by > 0 ? found.find((row) => all.indexOf(row) > at) ?? (at < 0 || !fails(from) ? found[0] : undefined) : found.findLast((row) => all.indexOf(row) < at);
  };
  const stepFailure = (by) => {
    const next = failing(current, by, shown());
    if (next) location.replace(address(next));
  };
  const tellPlace = (row, all) => {
    const found = all.filter(fails), at = found.indexOf(row), number = (value) => value.toLocaleString("en");
    const failures = at < 0 ? found.length && `${number(found.length)} failure${found.length === 1 ? "" : "s"}` : `failure ${number(at + 1)} of ${number(found.length)}`;
    document.getElementById("case-place").textContent = [`${number(all.indexOf(row) + 1)} of ${number(all.length)} shown`, failures].filter(Boolean).join(", ");
    for (const [name, by] of [["failure-previous", -1], ["failure-next", 1]]) {
      const button = document.getElementById(name);
      button.hidden = !found.length;
      button.disabled = !failing(row, by, all);
    }
  };
  if (dialog) {
    document.getElementById("case-previous").addEventListener("click", () => step(-1));
    document.getElementById("case-next").addEventListener("click", () => step(1));
    document.getElementById("failure-previous").addEventListener("click", () => stepFailure(-1));
    document.getElementById("failure-next").addEventListener("click", () => stepFailure(1));
    document.getElementById("case-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => {
      current?.querySelector("button, a")?.focus();
      current = null;
      keep();
    });
    addEventListener("hashchange", route);
    route();
  }
  // The address of a case on a file, `#case-ID`, leads to the case's own page where the page is live.
  const lead = () => {
    const first = location.hash.slice(1).split("&")[0];
    const link = first.startsWith("case-") && byId.get(decoded(first.slice("case-".length)))?.querySelector("a.name[href^='/batches/']");
    if (link) location.replace(link.href);
  };
  if (!dialog) {
    addEventListener("hashchange", () => { follow(); lead(); });
    lead();
  }
  fill().then((more) => { if (more && !dialog) lead(); });
  document.addEventListener("part", async (event) => { // a live page has new rows
    wire();
    if (await fill()) scrollTo(event.detail);
  });
  // `j` and `k` go through the rows, `n` and `p` through those that failed, and Enter opens the one that has the focus.
  const move = (by) => {
    const all = rows.filter((row) => fitting.has(row));
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by];
    next?.querySelector("button.name, a.name, summary")?.focus();
  };
  const moveFailure = (by) => {
    const all = rows.filter((row) => fitting.has(row));
    failing(all.find((row) => row.contains(document.activeElement)) ?? null, by, all)?.querySelector("button.name, a.name")?.focus();
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "/" && !dialog?.open) { event.preventDefault(); document.getElementById("search")?.focus(); }
    if (event.key === "j" || event.key === "k") (dialog?.open ? step : move)(event.key === "j" ? 1 : -1);
    if (event.key === "n" || event.key === "p") (dialog?.open ? stepFailure : moveFailure)(event.key === "n" ? 1 : -1);
  });
})();
