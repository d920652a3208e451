"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const named = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  named();
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; named(); });

  // The target of a link is revealed, even inside folded details.
  const reveal = (target) => {
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    for (const hit of document.querySelectorAll("mark.hit")) hit.classList.remove("hit");
    const mark = target.closest("mark");
    if (mark) mark.classList.add("hit");
    (mark || target).scrollIntoView({ block: "center" });
  };
  document.addEventListener("reveal", (event) => reveal(event.detail));
  const follow = () => {
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch { /* no address of ours */ }
    const target = name && !name.startsWith("case-") && document.getElementById(name);
    if (target) reveal(target);
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    const target = link && document.getElementById(decodeURIComponent(link.getAttribute("href").slice(1)));
    if (!target || !target.closest("dialog")) return;
    event.preventDefault(); // inside a case, the address remains that of the case
    reveal(target);
    target.closest("[tabindex]")?.focus({ preventScroll: true });
  });
  // `j` and `k` go through the drafts and messages of a run, where there is no table.
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (document.getElementById("table") || (event.key !== "j" && event.key !== "k")) return;
    const top = (each) => each.getBoundingClientRect().top;
    const all = [...document.querySelectorAll(".message[id], .card[id]")];
    const next = event.key === "j" ? all.find((each) => top(each) > 80) : all.filter((each) => top(each) < 40).at(-1);
    next?.scrollIntoView({ block: "start" });
  });
  // `n` and `p` go to the next and the previous failure, where a page of its own leads to them; where there is a table, its script does.
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "n" || event.key === "p") document.querySelector(`.failure-steps a[aria-keyshortcuts="${event.key}"]`)?.click();
  });
  addEventListener("hashchange", follow);
  follow();
  // Details cannot be unfolded on paper.
  addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("main details")) each.open = true; });
})();
