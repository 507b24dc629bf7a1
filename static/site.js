/* What the pages do beyond what HTML does by itself: they hear what changes, tell the time, obey the keyboard. Every
   page is complete without this file. */
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const main = $("#main");

  /* --- what the browser knows and the server cannot ------------------------------------------------------------ */

  if (!document.cookie.includes("dtq_zone=")) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (zone) document.cookie = `dtq_zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  }

  /* --- time ------------------------------------------------------------------------------------------------------ */

  let ahead = 0; // how much the clock of Redis is ahead of this one, in seconds
  const now = () => Date.now() / 1000 + ahead;
  const timeZone = document.documentElement.dataset.zone;
  const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone });
  const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone });
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

  function ago(seconds) {
    const distance = Math.abs(seconds);
    if (distance < 1) return "now";
    const [unit, size] = units.find(([, size]) => distance >= size);
    const said = `${Math.floor(distance / size)}\u00a0${unit}`;
    return seconds > 0 ? `${said} ago` : `in ${said}`;
  }

  const duration = (seconds) => spelled(seconds).replaceAll(" ", "\u00a0");
  function spelled(seconds) {
    if (seconds < 0.9995) return `${Math.round(Math.max(0, seconds) * 1000)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    for (let at = 0; at < 3; at++) {
      const [unit, size] = units[at], [next, nextSize] = units[at + 1];
      if (whole >= size) {
        const rest = Math.floor((whole % size) / nextSize);
        return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${next}` : ""}`;
      }
    }
    return `${whole} s`;
  }

  function put(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function tick() {
    if (document.hidden) return;
    const at = now();
    for (const element of $$("[data-at]")) put(element, ago(at - element.dataset.at));
    for (const element of $$("[data-since]")) put(element, duration(at - element.dataset.since));
    live.look();
  }

  /* --- live ------------------------------------------------------------------------------------------------------ */

  const live = {
    box: $("#live"),
    source: $("#source"), // the element that holds the socket
    heard: 0, // when something last came, by this clock
    open: false,
    asking: false,
    away: false,
    paused: false,
    held: new Set(), // what waits until the pointer is gone

    say(state, text) {
      this.box.dataset.state = state;
      put($("span", this.box), text);
    },
    look() {
      if (!this.source) return; // nothing here changes
      const silent = (Date.now() - this.heard) / 1000;
      if (this.paused) return this.say("still", "paused");
      if (this.away && silent < 12) return this.say("stale", "Redis is away");
      if (this.heard && silent < 12) {
        if (this.open) return this.say("live", "live");
        return this.say("late", this.asking ? "every 5 s" : "catching up");
      }
      if (this.heard) return this.say("stale", `stale since ${clock.format(this.heard)}`);
      if (performance.now() > 5000) this.say("stale", "not live");
      else this.say("late", "catching up");
    },
    shown() {
      const rows = $$("tr[id^='t-'], tr[id^='d-']", main).map((row) => row.id.slice(2)).slice(0, 60).join(" ");
      return JSON.stringify({ path: location.pathname + location.search, rows });
    },
    socket: () => live.source?._htmx?.ws?.connection?.socket,
    tell() {
      const socket = this.socket();
      if (socket?.readyState === WebSocket.OPEN) socket.send(this.shown());
    },
    hear(frame) {
      this.away = Boolean(frame.away);
      this.heard = Date.now();
      if (frame.at) ahead = frame.at - Date.now() / 1000;
      this.look();
    },
    async ask() { // where no socket gets through
      if (this.open || this.paused || document.hidden) return;
      try {
        const answer = await fetch("/live", {
          method: "POST", body: this.shown(), headers: { "Content-Type": "application/json" },
        });
        if (!answer.ok) return;
        const frame = await answer.json();
        this.asking = true;
        this.hear(frame);
        if (frame.content) {
          await htmx.swap({ sourceElement: this.source, target: this.source, swap: "none", text: frame.content });
        }
      } catch { /* the server is away: the dot will say so */ }
    },
  };

  if (live.source) {
    document.addEventListener("htmx:ws:before:connection", (event) => { if (live.paused) event.preventDefault(); });
    document.addEventListener("htmx:ws:after:connection", () => { live.open = true; live.asking = false; live.tell(); });
    document.addEventListener("htmx:ws:close", () => { live.open = false; live.look(); });
    document.addEventListener("htmx:ws:error", (event) => event.preventDefault());
    document.addEventListener("htmx:ws:before:message:incoming", (event) => {
      if (live.paused) { event.preventDefault(); return; }
      event.detail.waitUntil(event.detail.message.json().then((frame) => live.hear(frame), () => {}));
    });
    setInterval(() => { if (!live.open && performance.now() > 4000) live.ask(); }, 5000);
  }

  /* Nothing moves under the pointer: a part that may move waits as long as the pointer, the focus or a selection is in
     it, and comes whole when they are gone. Numbers that changed light up for a moment. */
  const cells = "b, td.n, .count, .now";
  const busy = (part) => part.matches(":hover") || part.contains(document.activeElement) || $("input:checked", part);

  document.addEventListener("htmx:before:swap", (event) => {
    const { tasks } = event.detail;
    for (let at = tasks.length - 1; at >= 0; at--) {
      const target = tasks[at].target instanceof Element ? tasks[at].target : null;
      if (tasks[at].type !== "partial" || !target) continue;
      if (target.hasAttribute("data-hold") && target.firstElementChild && busy(target)) {
        tasks.splice(at, 1);
        live.held.add(target);
        continue;
      }
      for (const cell of $$(cells, target)) if (!$("time, [data-since]", cell)) cell._was = cell.textContent;
    }
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.target === main || event.detail.ctx.target?.id === "main") { arrived(); return; }
    for (const cell of $$(cells, main)) {
      if (cell._was !== undefined && cell._was !== cell.textContent && /^[\d,]+$/.test(cell.textContent.trim())) {
        cell.classList.add("changed");
        setTimeout(() => cell.classList.remove("changed"), 700);
      }
      delete cell._was;
    }
  });
  document.addEventListener("pointerover", () => {
    for (const part of live.held) {
      if (!part.isConnected || !busy(part)) {
        live.held.delete(part);
        live.tell();
      }
    }
  }, { passive: true });

  /* --- copy, fold, dialog --------------------------------------------------------------------------------------- */

  function arrived() { // what a page needs once it is there
    for (const button of $$("[data-copy]")) button.hidden = false;
    for (const element of $$("[data-script]")) element.hidden = false;
    live.tell();
    selection();
  }

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      await navigator.clipboard?.writeText($(copy.dataset.copy).textContent);
      const said = copy.innerHTML;
      copy.textContent = "Copied";
      setTimeout(() => { copy.innerHTML = said; }, 1200);
    }
    if (event.target.closest("[data-close]")) { event.preventDefault(); $("#dialog").close(); }
    for (const menu of $$("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button, input, label, summary") && !getSelection().toString()) {
      if (event.ctrlKey || event.metaKey) open(row.dataset.href); else location.href = row.dataset.href;
    }
  });
  document.addEventListener("htmx:after:swap", (event) => {
    const dialog = $("#dialog");
    if (event.detail.ctx.target === dialog && dialog.firstElementChild && !dialog.open) dialog.showModal();
  });

  /* --- choosing rows -------------------------------------------------------------------------------------------- */

  let last = null;
  function selection() {
    const form = $("#bulk");
    if (!form) return;
    const boxes = $$("input[name='id']", main), chosen = boxes.filter((box) => box.checked);
    const whole = $("#choose-all");
    if (whole) {
      whole.checked = chosen.length > 0 && chosen.length === boxes.length;
      whole.indeterminate = chosen.length > 0 && chosen.length < boxes.length;
    }
    const told = $("#chosen", form); // not there where nothing can be done: no rows, or a viewer who may only look
    if (told) put(told, chosen.length ? `${chosen.length} selected` : "None selected");
    for (const button of $$("button[data-needs-rows]", form)) button.disabled = !chosen.length;
    form.classList.add("scripted");
    form.classList.toggle("active", chosen.length > 0);
  }
  document.addEventListener("click", (event) => {
    const box = event.target.closest("input[name='id']");
    if (!box) return;
    const boxes = $$("input[name='id']", main);
    if (event.shiftKey && last && boxes.includes(last)) {
      const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
      for (const between of boxes.slice(from, to + 1)) between.checked = box.checked;
    }
    last = box;
    selection();
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "choose-all") {
      for (const box of $$("input[name='id']", main)) box.checked = event.target.checked;
      selection();
    }
  });

  /* --- crosshair ------------------------------------------------------------------------------------------------- */

  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  document.body.append(tip);
  document.addEventListener("pointermove", (event) => {
    const chart = event.target.closest?.("svg[data-series]");
    tip.hidden = !chart;
    if (!chart) return;
    const box = chart.getBoundingClientRect();
    const series = chart.dataset.series.split(";").map((text) => {
      const colon = text.indexOf(":");
      return [text.slice(0, colon), text.slice(colon + 1).split(",")];
    });
    const count = series[0][1].length;
    const at = Math.min(count - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * count)));
    const unit = chart.dataset.unit;
    tip.replaceChildren(...[
      minute.format((+chart.dataset.first + at) * 60000),
      ...series.map(([name, values]) => `${name} ${values[at] === "" ? "unknown" : unit === "s" ? duration(+values[at]) : values[at]}`),
    ].map((text) => Object.assign(document.createElement("p"), { textContent: text })));
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.max(8, box.top - tip.offsetHeight - 6)}px`;
  }, { passive: true });

  /* --- keyboard -------------------------------------------------------------------------------------------------- */

  const places = { o: "/", q: "/queues", t: "/tasks", f: "/failures", d: "/dead", w: "/workers", m: "/messages", e: "/events", a: "/audit", s: "/settings" };
  let going = 0, at = -1;
  const rows = () => $$("tbody tr[data-href]", main);
  function step(by) {
    const all = rows();
    if (!all.length) return;
    at = Math.min(all.length - 1, Math.max(0, all.findIndex((row) => row.classList.contains("at")) + (by || 0)));
    for (const row of all) row.classList.toggle("at", row === all[at]);
    $("a", all[at])?.focus();
    all[at].scrollIntoView({ block: "nearest" });
  }
  const keys = {
    "/": () => ($("#q") || $("#find")).focus(),
    "?": () => $("#keys").showModal(),
    j: () => step(1),
    k: () => step(-1),
    x: () => $("tr.at input[name='id']")?.click(),
    p: () => {
      live.paused = !live.paused;
      live.look();
      if (!live.paused) live.tell();
    },
    "[": () => $("a[rel='prev']", main)?.click(),
    "]": () => $("a[rel='next']", main)?.click(),
    g: () => { going = Date.now(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      for (const menu of $$("details.menu[open]")) menu.open = false;
      document.activeElement?.blur?.();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type='checkbox']), textarea, select, dialog")) return;
    if (Date.now() - going < 1200 && places[event.key]) { location.href = places[event.key]; return; }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  /* --- begin ----------------------------------------------------------------------------------------------------- */

  const fade = () => setTimeout(() => { for (const toast of $$(".toast.done")) toast.remove(); }, 6000);
  new MutationObserver(fade).observe($("#toasts"), { childList: true });
  fade();
  setInterval(tick, 1000);
  arrived();
})();
