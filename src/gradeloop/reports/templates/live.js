"use strict";
(() => {
  const QUICK = 1000, SLOW = 4000, RESTING = 15000, PATIENCE = 12000;
  const CALM_AFTER = 30; // looks without a change
  const token = document.querySelector("meta[name='gradeloop-token']").content;
  const main = document.getElementById("main");
  const about = () => main.querySelector("#live");
  let tag = about()?.dataset.tag || null, calm = 0, failed = 0, timer = 0, looking = false, composing = false, pending = null;

  const line = document.createElement("p"), spoken = document.createElement("p"), wait = document.createElement("p");
  line.id = "live-line";
  wait.id = "live-wait";
  document.querySelector("header.bar").after(wait);
  spoken.className = "sr";
  spoken.setAttribute("role", "status");
  spoken.setAttribute("aria-live", "polite");
  document.querySelector("header.bar").insertBefore(line, document.getElementById("theme"));
  line.after(spoken);
  // A run changes every second; a screen reader announces only a new status or a problem.
  const tell = (words, mood = "", aloud = words) => {
    if (line.textContent !== words) line.textContent = words;
    if (spoken.textContent !== aloud) spoken.textContent = aloud;
    line.dataset.mood = mood;
  };

  // An update never discards what a person is typing.
  const fields = (form) => [...form.elements].filter((each) => each.name && each.type !== "hidden" && each.tagName !== "BUTTON" && each.tagName !== "OUTPUT");
  const touched = (each) => (each.type === "radio" || each.type === "checkbox" ? each.checked !== each.defaultChecked : each.value !== each.defaultValue);
  const busy = (form) => form.contains(document.activeElement) || form.dataset.sending === "yes" || fields(form).some(touched) || Boolean(form.querySelector(".said")?.textContent);
  const written = () => [...main.querySelectorAll("form[id][data-to]")].filter((form) => fields(form).some(touched));

  // The path to an element: the nearest ancestor with an id, then child indexes.
  const way = (element) => {
    const steps = [];
    let at = element;
    for (; at !== main && !at.id; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
    return [at.id, steps];
  };
  const arrived = ([id, steps], before) => {
    let at = document.getElementById(id);
    for (const step of steps) at = at?.children[step];
    return at && at.tagName === before.tagName ? at : null;
  };

  const disturbs = (fresh) => composing || written().some((form) => !fresh.querySelector(`form[id="${CSS.escape(form.id)}"]`));
  const release = () => { if (pending && !disturbs(pending)) adopt(pending, true); };
  const adopt = (fresh, soon) => {
    if (!soon && disturbs(fresh)) {
      pending = fresh;
      tell("The page has changed; it updates when you finish typing.");
      const now = document.createElement("button");
      now.type = "button";
      now.textContent = "Update now";
      now.addEventListener("click", () => { if (pending) adopt(pending, true); });
      line.append(now);
      return;
    }
    pending = null;
    const focused = document.activeElement, inside = main.contains(focused) && focused !== main;
    const range = inside && "selectionStart" in focused ? [focused.selectionStart, focused.selectionEnd] : null;
    const folded = new Map([...main.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    const scrolled = new Map([...main.querySelectorAll("[tabindex='0'][aria-label]")].filter((each) => each.scrollTop || each.scrollLeft).map((each) => [each.getAttribute("aria-label"), [each.scrollTop, each.scrollLeft]]));
    const [left, top] = [scrollX, scrollY];
    for (const each of fresh.querySelectorAll("details[id]")) if (folded.has(each.id)) each.open = folded.get(each.id);
    const steps = inside ? way(focused) : null;
    for (const form of main.querySelectorAll("form[id]")) {
      if (busy(form)) fresh.querySelector(`form[id="${CSS.escape(form.id)}"]`)?.replaceWith(form);
    }
    main.replaceChildren(...fresh.childNodes);
    document.dispatchEvent(new CustomEvent("part", { detail: { left, top, behavior: "instant" } }));
    for (const [label, [y, x]] of scrolled) main.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.scrollTo(x, y);
    if (inside) {
      const target = focused.isConnected ? focused : arrived(steps, focused) || main;
      target.focus({ preventScroll: true });
      if (range && range[0] !== null && target.tagName === focused.tagName) try { target.setSelectionRange(...range); } catch { /* a field without a cursor */ }
    }
    scrollTo({ left, top, behavior: "instant" });
    const word = about()?.dataset.word;
    tell(`${word ? `${word}; ` : ""}updated at ${new Date().toLocaleTimeString()}`, "", word ? `Now: ${word}` : "");
  };

  const parsed = (text) => document.adoptNode(new DOMParser().parseFromString(text, "text/html").querySelector("main"));

  const look = async () => {
    if (looking) return;
    looking = true;
    clearTimeout(timer);
    const giving = new AbortController(), limit = setTimeout(() => giving.abort(), PATIENCE);
    try {
      const answer = await fetch(`${location.pathname}?part=1${location.search.replace("?", "&")}`, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store", signal: giving.signal });
      wait.textContent = decodeURIComponent(answer.headers.get("Gradeloop-Wait") || "");
      if (answer.status === 304) {
        calm += 1;
        if (failed) tell("Connected again.");
        release();
      } else if (answer.ok) {
        const text = await answer.text(), first = tag === null;
        tag = answer.headers.get("ETag");
        calm = 0;
        const fresh = parsed(text);
        if (!first || fresh.innerHTML !== main.innerHTML) adopt(fresh, false);
      } else {
        tell((await answer.json()).error, "bad");
        failed += 1;
        return;
      }
      failed = 0;
    } catch {
      failed += 1;
      tell("gradeloop dev does not respond; this page may be out of date.", "bad");
    } finally {
      clearTimeout(limit);
      looking = false;
      again();
    }
  };
  const again = () => {
    clearTimeout(timer);
    const resting = document.hidden || about()?.dataset.open === "no";
    const pause = resting ? RESTING : failed ? Math.min(QUICK * 2 ** failed, RESTING) : calm > CALM_AFTER ? SLOW : QUICK;
    timer = setTimeout(look, pause);
  };

  // Forms are sent to the server as JSON; its answer is shown beside the button.
  const valued = (each) => {
    if (each.dataset.kind === "number") return Number(each.value);
    return each.dataset.kind === "boolean" ? each.value === "true" : each.value;
  };
  const put = (body, name, value) => {
    const [outer, inner] = name.split(".");
    if (inner) (body[outer] ||= {})[inner] = value;
    else body[outer] = value;
  };
  const body_of = (form, button, denies) => {
    const body = {};
    for (const each of form.elements) {
      if (!each.name || each.tagName === "BUTTON" || each.tagName === "OUTPUT" || (each.type === "radio" && !each.checked)) continue;
      if ((each.dataset.only && !denies) || (each.value.trim() === "" && each.type !== "hidden")) continue;
      put(body, each.name, valued(each));
    }
    if (button?.name) put(body, button.name, valued(button));
    return body;
  };
  const say = (form, words, mood) => {
    const place = form.querySelector(".said");
    place.textContent = words;
    place.dataset.mood = mood;
  };
  const send = async (form, button) => {
    const to = button?.dataset.to || form.dataset.to;
    form.dataset.sending = "yes";
    for (const each of form.querySelectorAll("button")) each.disabled = true;
    say(form, "…", "");
    try {
      const answer = await fetch(to, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Gradeloop-Token": token },
        body: JSON.stringify(body_of(form, button, Boolean(button?.dataset.to))),
      });
      const reply = await answer.json();
      if (answer.ok) {
        form.reset();
        say(form, "", "");
        tell(reply.by ? `Sent as ${reply.by}.` : "Sent.");
      } else {
        say(form, reply.error, "bad");
      }
    } catch {
      say(form, "gradeloop dev does not respond; send this again when it does.", "bad");
    } finally {
      form.dataset.sending = "no";
      for (const each of form.querySelectorAll("button")) each.disabled = false;
    }
    calm = 0;
    release();
    look();
  };
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-to]")) return;
    event.preventDefault();
    send(form, event.submitter);
  });

  // Enter in a field would press the first of several buttons; a person has to choose.
  document.addEventListener("keydown", (event) => {
    const form = event.key === "Enter" && event.target.matches("form[data-to] input") && event.target.form;
    if (form && form.querySelectorAll("button").length > 1) event.preventDefault();
  });

  // `a` goes to Approve and `r` to the gap of the card that has the focus, else of the first that can be seen or lies below, else of the last; Enter is the decision.
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || (event.key !== "a" && event.key !== "r")) return;
    const forms = [...main.querySelectorAll("form.asked")];
    const form = event.target.closest?.("form.asked") || forms.find((each) => each.getBoundingClientRect().bottom > 60) || forms.at(-1);
    const place = form?.querySelector(`[data-key="${event.key}"]`);
    if (place) { event.preventDefault(); place.focus(); }
  });

  document.addEventListener("compositionstart", () => { composing = true; });
  document.addEventListener("compositionend", () => { composing = false; release(); });
  document.addEventListener("focusout", () => setTimeout(release));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  addEventListener("beforeunload", (event) => { if (written().length) event.preventDefault(); });
  again();
})();
