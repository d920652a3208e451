"use strict";
(() => {
  const order = { failed: 0, error: 1, waiting: 2, none: 3, running: 3, passed: 4 };
  const keys = {
    id: (row) => row.cells[0].textContent.toLowerCase(),
    verdict: (row) => order[row.dataset.f.split(" ").find((each) => each in order)] ?? 5,
    score: (row) => Number(row.dataset.s ?? -1),
    worst: (row) => row.cells[3].textContent.trim().toLowerCase() || "\uffff",
    cost: (row) => Number(row.dataset.c ?? 0),
  };
  const state = { filter: "", search: "", sort: "", down: false, matrix: false };
  let rows = [], texts = new Map();

  const show = () => {
    const table = document.getElementById("table");
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    const fitting = new Set();
    for (const row of rows) {
      const fits = (!state.filter || row.dataset.f.split(" ").includes(state.filter)) && words.every((word) => texts.get(row).includes(word));
      if (row.hidden === fits) row.hidden = !fits;
      count += fits;
      if (fits) fitting.add(row.id.slice("case-".length));
    }
    for (const button of document.querySelectorAll("[data-filter]")) button.setAttribute("aria-pressed", String(button.dataset.filter === state.filter));
    document.getElementById("count").textContent = count === rows.length ? "" : `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
    const matrix = document.getElementById("matrix");
    if (matrix) {
      matrix.hidden = !state.matrix;
      for (const line of matrix.querySelectorAll("tbody tr")) line.hidden = !line.dataset.cases.split(" ").some((each) => fitting.has(each));
      table.hidden = state.matrix;
      document.getElementById("as-matrix").setAttribute("aria-pressed", String(state.matrix));
    }
  };

  const sort = () => {
    for (const head of document.querySelectorAll("[data-sort]")) {
      if (head.dataset.sort === state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    if (!state.sort) return;
    const made = rows.map((row) => [keys[state.sort](row), row]);
    const turn = state.down ? -1 : 1;
    made.sort(([a], [b]) => (a < b ? -turn : a > b ? turn : 0));
    rows = made.map(([, row]) => row);
    const body = document.getElementById("table").tBodies[0];
    const all = document.createDocumentFragment();
    all.append(...rows);
    body.append(all);
  };

  const wire = () => {
    const tools = document.getElementById("tools");
    if (!tools) return;
    tools.hidden = false;
    rows = [...document.getElementById("table").tBodies[0].rows];
    texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    for (const row of rows) {
      const name = row.dataset.p && row.querySelector(".name");
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
  };

  document.addEventListener("click", (event) => {
    const at = event.target;
    const filter = at.closest("[data-filter]"), head = at.closest("[data-sort]"), opened = at.closest("button.open");
    if (filter) { state.filter = filter.dataset.filter; show(); }
    else if (at.closest("#as-matrix")) { state.matrix = !state.matrix; show(); }
    else if (head) {
      state.down = state.sort === head.dataset.sort && !state.down;
      state.sort = head.dataset.sort;
      sort();
    } else if (opened) location.hash = opened.closest("tr").id;
  });
  document.addEventListener("input", (event) => {
    if (event.target.id === "search") { state.search = event.target.value; show(); }
  });
  document.addEventListener("part", wire); // a live page has new rows
  wire();

  // A case is unpacked when its row is opened.
  const dialog = document.getElementById("case");
  const unpacked = new Map();
  const unpack = async (pack) => {
    if (!unpacked.has(pack)) {
      const bytes = Uint8Array.from(atob(document.getElementById(`pack-${pack}`).textContent), (each) => each.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      unpacked.set(pack, JSON.parse(await new Response(stream).text()));
    }
    return unpacked.get(pack);
  };
  const shown = () => rows.filter((row) => !row.hidden && row.dataset.p);
  let current = null;
  const open = async (row) => {
    current = row;
    const [pack, place] = row.dataset.p.split(".").map(Number);
    const pages = await unpack(pack);
    if (current !== row) return;
    const body = document.getElementById("case-body");
    body.innerHTML = pages[place]; // rendered by our own templates, which escape every value
    const all = shown();
    document.getElementById("case-place").textContent = `${(all.indexOf(row) + 1).toLocaleString("en")} of ${all.length.toLocaleString("en")} shown`;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  const route = () => {
    const row = location.hash.startsWith("#case-") && document.getElementById(location.hash.slice(1));
    if (row && row.dataset.p) open(row);
    else if (dialog?.open) dialog.close();
  };
  const step = (by) => {
    const all = shown();
    const next = all[all.indexOf(current) + by];
    if (next) location.replace(`#${next.id}`);
  };
  if (dialog) {
    document.getElementById("case-previous").addEventListener("click", () => step(-1));
    document.getElementById("case-next").addEventListener("click", () => step(1));
    document.getElementById("case-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => {
      history.replaceState(null, "", location.pathname + location.search);
      current?.querySelector("button")?.focus();
      current = null;
    });
    addEventListener("hashchange", route);
    route();
  }
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "/" && !dialog?.open) { event.preventDefault(); document.getElementById("search")?.focus(); }
    if (dialog?.open && event.key === "j") step(1);
    if (dialog?.open && event.key === "k") step(-1);
  });
})();
