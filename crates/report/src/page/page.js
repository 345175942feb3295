"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const races = data.races;

  // Everything from the report becomes text, never markup.
  const el = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child != null && child !== false) node.append(child);
    }
    return node;
  };
  const many = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

  // ---- theme -------------------------------------------------------------
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("deadheat-theme"); } catch { return null; } };
  const paintTheme = (wanted) => {
    const theme = wanted || remembered() || (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    return theme;
  };
  paintTheme();
  system.addEventListener("change", () => paintTheme());
  const turnTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("deadheat-theme", next); } catch { /* a file may not remember */ }
    paintTheme(next);
  };

  // ---- names ---------------------------------------------------------------
  const short = (file) => data.root && file.startsWith(data.root + "/") ? file.slice(data.root.length + 1) : file;
  const where = (frame, shorten) => {
    const [, file, line, place] = frame;
    if (file >= 0) return (shorten || short)(data.strings[file]) + (line == null ? "" : ":" + line);
    return place || "";
  };
  const functionName = (frame) => frame[0] >= 0 ? data.strings[frame[0]] : "??";
  const base = (file) => file.slice(file.lastIndexOf("/") + 1);
  const sideOf = (race, index) => {
    const access = race.accesses[index];
    if (!access.stack) return race.between[index];
    const frame = data.frames[access.stack[0]];
    return `${access.what.replace(/ of .*/, "")} ${functionName(frame)} ${where(frame, base)}`;
  };

  // ---- what is shown -----------------------------------------------------
  const state = { off: new Set(), words: [], suppressed: false, label: "", standing: "", current: null };
  const textOf = (race) => {
    const frames = race.accesses.flatMap((access) => (access.stack || []).concat(access.created || []));
    const names = frames.flatMap((number) => {
      const [fn, file, , place] = data.frames[number];
      return [fn < 0 ? "" : data.strings[fn], file < 0 ? "" : data.strings[file], place || ""];
    });
    return [
      "#" + race.id, race.title, race.fingerprint, race.explanation, race.place && race.place.what,
      ...(race.labels || []), ...race.between, race.mark && race.mark.state, race.mark && race.mark.reason,
      ...race.accesses.map((access) => access.thread || ""), ...new Set(names),
    ].filter(Boolean).join("\n").toLowerCase();
  };
  for (const race of races) race.text = null;
  const shown = (race) => {
    if (state.off.has(race.verdict)) return false;
    if (race.suppressed && !state.suppressed) return false;
    if (state.label && !(race.labels || []).includes(state.label)) return false;
    if (state.standing && race.standing !== state.standing) return false;
    if (state.words.length === 0) return true;
    race.text = race.text || textOf(race);
    return state.words.every((word) => race.text.includes(word));
  };

  // ---- header ------------------------------------------------------------
  const counted = races.filter((race) => !race.suppressed);
  const counts = el("div", { class: "counts", role: "group", "aria-label": "Races by verdict" });
  data.verdicts.forEach((verdict, index) => {
    const number = counted.filter((race) => race.verdict === index).length;
    if (number === 0 && !races.some((race) => race.verdict === index)) return;
    counts.append(el("button", {
      class: `count v${index}`, type: "button", "aria-pressed": "true", "data-verdict": index,
      title: `Show or hide: ${verdict.words} (key ${index + 1})`,
      onclick: () => toggleVerdict(index),
    }, el("span", { class: "dot" }), el("b", {}, number.toLocaleString("en")), ` ${verdict.words}`));
  });
  const toggleVerdict = (index) => {
    const button = counts.querySelector(`[data-verdict="${index}"]`);
    if (!button) return;
    state.off.has(index) ? state.off.delete(index) : state.off.add(index);
    button.setAttribute("aria-pressed", String(!state.off.has(index)));
    refresh();
  };

  const search = el("input", {
    type: "search", placeholder: "Search function, file, thread, label …", "aria-label": "Search races",
    oninput: () => {
      state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      refresh();
    },
  });
  const pick = (name, all, values, set) => values.length === 0 ? null : el("select", {
    "aria-label": name, onchange: (event) => { set(event.target.value); refresh(); },
  }, el("option", { value: "" }, all), values.map((value) => el("option", { value }, value)));
  const labels = [...new Set(races.flatMap((race) => race.labels || []))].sort();
  const standings = ["new", "worse", "known"].filter((one) => races.some((race) => race.standing === one));
  const hiddenRaces = races.length - counted.length;
  const tally = el("span", { class: "faint", role: "status" });
  const program = data.program.join(" ") || "a program";
  const facts = [
    data.run && `run ${data.run}`, data.started && data.started.replace("T", " ").replace("Z", " UTC"), data.tool,
    data.recordings.length > 0 && many(data.recordings.length, "recording"),
    data.exit.program != null && `program exited with ${data.exit.program}`,
  ].filter(Boolean).join(" · ");
  const header = el("header", { class: "page" },
    el("div", { class: "top" },
      el("div", {}, el("h1", {}, `Data races in ${program}`), el("div", { class: "faint" }, facts)),
      el("div", { class: "counts" },
        el("button", { type: "button", onclick: () => help.showModal(), class: "hint" }, "Keys ?"),
        el("button", { type: "button", onclick: turnTheme, "aria-label": "Light or dark" }, "◐"))),
    counts,
    el("div", { class: "tools" }, search,
      pick("Label", "any label", labels, (value) => { state.label = value; }),
      pick("Baseline", "baseline: any", standings, (value) => { state.standing = value; }),
      hiddenRaces > 0 && el("label", {}, el("input", {
        type: "checkbox", onchange: (event) => { state.suppressed = event.target.checked; refresh(); },
      }), ` ${hiddenRaces.toLocaleString("en")} suppressed`),
      tally));

  const help = el("dialog", { "aria-label": "Keys" }, el("h2", {}, "Keys"),
    el("dl", {}, [["j  ↓", "next race"], ["k  ↑", "previous race"], ["/", "search"],
      [`1 – ${data.verdicts.length}`, "show or hide a verdict"], ["t", "light or dark"],
      ["Esc", "clear the search, back to the list"], ["?", "this help"]]
      .flatMap(([keys, what]) => [el("dt", {}, keys), el("dd", {}, what)])),
    el("form", { method: "dialog" }, el("button", {}, "Close")));

  // ---- list --------------------------------------------------------------
  const list = el("ol");
  const none = el("p", { class: "empty", hidden: true },
    races.length === 0 ? "No data races were found." : "No race matches.");
  const nav = el("nav", { "aria-label": "Races" }, list, none);
  const rows = races.map((race) => {
    const notes = [race.mark && race.mark.state, race.standing && race.standing !== "known" && race.standing,
      race.suppressed && "suppressed"].filter(Boolean).join(" · ");
    const link = el("a", { href: `#race-${race.id}`, class: `v${race.verdict}` },
      el("div", { class: "name" }, el("span", {}, `#${race.id} `, el("b", {}, data.verdicts[race.verdict].words),
        race.consequence && race.consequence !== "output" ? `: ${race.consequence}` : ""),
        el("span", { class: "faint" }, notes ? `${notes} · ` : "", `${race.seen || 0}×`)),
      race.between.map((side, index) => el("div", { class: "side code" + (race.suppressed ? " off" : ""), title: side }, sideOf(race, index))));
    const row = el("li", {}, link);
    list.append(row);
    return row;
  });

  const visible = () => races.filter((_, index) => !rows[index].hidden);
  const refresh = () => {
    let number = 0;
    races.forEach((race, index) => {
      const show = shown(race);
      rows[index].hidden = !show;
      if (show) number += 1;
    });
    none.hidden = number > 0;
    tally.textContent = number === counted.length && !state.suppressed
      ? many(number, "race") : `${number.toLocaleString("en")} of ${many(races.length, "race")}`;
  };

  // ---- one race ----------------------------------------------------------
  const sourceOf = (frame, around) => {
    const [, file, line] = frame;
    const lines = file >= 0 && line != null && data.source[file];
    if (!lines || lines[line] == null) return null;
    const block = el("div", { class: "source code" });
    for (let number = line - around; number <= line + around; number += 1) {
      if (lines[number] == null) continue;
      block.append(el("div", number === line ? { class: "hit" } : {},
        el("span", { class: "no" }, number), lines[number] || " "));
    }
    return block;
  };
  const stackList = (numbers, more) => {
    const items = numbers.map((number, index) => {
      const frame = data.frames[number];
      const place = el("span", { class: "where", title: where(frame, String) }, where(frame), frame[4] ? " (inlined)" : "");
      const source = sourceOf(frame, index === 0 ? 4 : 1);
      const name = [el("span", { class: "code" }, functionName(frame)), " "];
      if (!source) return el("li", {}, name, place);
      return el("li", {}, el("details", { open: index === 0 }, el("summary", {}, name, place), source));
    });
    const listed = el("ol", { class: "stack" }, items);
    return more ? [listed, el("div", { class: "faint" }, `… and ${many(more, "more frame")}`)] : listed;
  };
  const accessCard = (access, index, race) => {
    const first = race.earlier == null ? "" : (race.earlier === index ? "first: " : "then: ");
    return el("section", { class: `card ${index === 0 ? "one" : "two"}` },
      el("header", {}, el("b", {}, first + access.what),
        access.thread ? ` by ${access.thread}` : "",
        el("div", { class: "faint any" }, [access.address && `at ${access.address}`,
          access.moment && `moment ${access.moment}`].filter(Boolean).join(" · ")),
        access.value && el("div", { class: "value code any" }, access.value)),
      el("div", { class: "body" },
        access.stack ? stackList(access.stack, access.more) : el("p", { class: "faint" }, "This side was not seen: the value changed while it was watched."),
        access.locks && el("p", { class: "any" }, "holding ", el("span", { class: "code" }, access.locks.join(", "))),
        access.created && el("details", {}, el("summary", { class: "faint" }, "where the thread was created"),
          stackList(access.created))));
  };

  // Without recorded events the two orders are drawn from the accesses alone.
  const ordersOf = (race) => {
    if (race.orders) return { orders: race.orders, drawn: false };
    if (race.accesses.some((access) => access.number == null)) return null;
    if (race.accesses[0].number === race.accesses[1].number) return null;
    const event = (index) => {
      const access = race.accesses[index];
      return [access.number, "access", access.what + (access.value ? `, ${access.value}` : ""), index];
    };
    const first = race.earlier || 0;
    const names = race.earlier == null ? ["one order", "the other order"] : ["recorded", "swapped"];
    return {
      drawn: true,
      orders: [{ name: names[0], events: [event(first), event(1 - first)] },
        { name: names[1], events: [event(1 - first), event(first)] }],
    };
  };
  const timeline = (order, threads, names) => {
    const grid = el("div", { class: "lanes", role: "list" });
    grid.style.gridTemplateColumns = `repeat(${threads.length}, minmax(120px, 1fr))`;
    threads.forEach((thread, column) => {
      const lane = el("div", { class: "lane", "aria-hidden": "true" });
      lane.style.gridColumn = column + 1;
      const name = el("div", { class: "lanename" }, names.get(thread) || `thread ${thread}`);
      name.style.gridColumn = column + 1;
      name.style.gridRow = 1;
      grid.append(lane, name);
    });
    let row = 2;
    let before = null;
    for (const [thread, kind, text, access] of order.events) {
      const column = threads.indexOf(thread) + 1;
      if (before !== null && before !== column) {
        const arrow = el("div", { class: `switch ${before < column ? "right" : "left"}`, role: "listitem",
          "aria-label": `switch to thread ${thread}` });
        arrow.style.gridColumn = `${Math.min(before, column)} / ${Math.max(before, column)}`;
        arrow.style.gridRow = row;
        grid.append(arrow);
        row += 1;
      }
      before = column;
      if (kind === "switch") continue;
      const racing = access >= 0 ? ` racing ${access === 0 ? "first" : "second"}` : "";
      const box = el("div", { class: `event ${kind}${racing} code`, role: "listitem", title: kind }, text);
      box.style.gridColumn = column;
      box.style.gridRow = row;
      grid.append(box);
      row += 1;
    }
    for (const lane of grid.querySelectorAll(".lane")) lane.style.gridRow = `2 / ${row + 1}`;
    return el("section", { class: "order" }, el("h4", {}, order.name), grid,
      order.more && el("p", { class: "faint" }, `… and ${many(order.more, "more event")}`),
      order.outcome && el("p", { class: "outcome" }, `⇒ ${order.outcome}`));
  };
  // What two texts do not share, between their common beginning and end.
  const differing = (text, other) => {
    const [a, b] = [Array.from(text), Array.from(other)];
    let start = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
    let end = 0;
    while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
    return [a.slice(0, start).join(""), el("b", {}, a.slice(start, a.length - end).join("")), a.slice(a.length - end).join("")];
  };
  const command = (text) => {
    const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}`, onclick: () => {
      const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); };
      if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => select(code));
      else select(code);
    } }, "copy");
    const code = el("code", {}, text);
    return el("div", { class: "command" }, code, button);
  };
  const select = (node) => getSelection().selectAllChildren(node);

  const article = el("article", { tabindex: "-1", "data-empty": true });
  const section = (name, ...content) => {
    const kept = content.flat().filter((part) => part != null && part !== false);
    return kept.length === 0 ? [] : [el("h3", {}, name), kept];
  };
  const draw = (race) => {
    const drawn = ordersOf(race);
    const names = new Map(race.accesses.filter((a) => a.number != null).map((a) => [a.number, a.thread]));
    const threads = drawn && [...new Set(drawn.orders.flatMap((order) => order.events.map(([thread]) => thread)))].sort((a, b) => a - b);
    const seen = `seen ${many(race.seen || 0, "time")}` +
      (race.recordings ? ` in ${race.recordings} of ${many(Math.max(race.recordings, data.recordings.length), "recording")}` : "");
    const badge = (text, extra) => el("span", { class: `badge ${extra || ""}` }, text);
    article.replaceChildren(...[
      el("button", { type: "button", class: "back", onclick: leave }, "‹ all races"),
      el("h2", { class: `v${race.verdict}` }, `#${race.id} `, race.title),
      el("div", {}, badge(data.verdicts[race.verdict].words, `v${race.verdict}`), badge(seen),
        race.states && badge(race.states), (race.labels || []).map((label) => badge(label)),
        race.standing && badge(`baseline: ${race.standing}`)),
      race.explanation && el("p", { class: "lead" }, race.explanation),
      race.place && el("p", { class: "any" }, "Memory: ", el("span", { class: "code" }, race.place.what),
        race.place.address ? ` at ${race.place.address}` : "",
        race.place.from && [" from ", el("span", { class: "code" }, functionName(data.frames[race.place.from[0]])), " ",
          el("span", { class: "where" }, where(data.frames[race.place.from[0]]))]),
      race.ordering && el("p", { class: "faint any" }, race.ordering),
      race.cause && el("p", { class: "faint any" }, `One cause of ${race.cause.races.map((id) => "#" + id).join(", ")}: ${race.cause.missing}.`),
      data.verdicts[race.verdict].name === "k-witness-harmless" && el("p", { class: "faint" },
        "No harm was seen in the executions tried; it is still undefined behaviour in C and C++."),
      section("The two accesses", el("div", { class: "pair" },
        (race.earlier === 1 ? [1, 0] : [0, 1]).map((index) => accessCard(race.accesses[index], index, race)))),
      drawn && section("The two orders",
        drawn.drawn && el("p", { class: "faint" }, "Drawn from the two accesses; what else the threads did was not recorded."),
        el("div", { class: "orders" }, drawn.orders.map((order) => timeline(order, threads, names)))),
      section("What differs", race.differences && el("table", { class: "diff" },
        el("thead", {}, el("tr", {}, ["", "recorded", "swapped"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, race.differences.map((one) => el("tr", {},
          el("th", { scope: "row" }, `${one.kind} ${one.what}`, one.at != null && el("div", { class: "where" },
            `${functionName(data.frames[one.at])} ${where(data.frames[one.at])}`)),
          el("td", { class: "code" }, differing(one.recorded, one.swapped)),
          el("td", { class: "code" }, differing(one.swapped, one.recorded))))))),
      section("Evidence", (race.tried || race.evidence) && el("ul", {}, race.tried && el("li", {}, race.tried),
        (race.evidence || []).map((one) => el("li", { class: "any" }, one.text, one.replay && command(one.replay))))),
      section("Replay", (race.replay || []).map(command)),
      section("History", race.history && el("ol", { class: "history" }, race.history.map(([run, verdict, times]) =>
        el("li", { class: `v${verdict}${run === data.run ? " now" : ""}` }, `run ${run}: ${data.verdicts[verdict].words}`,
          el("span", { class: "faint" }, ` ${times}× ${(data.dates[run] || "").slice(0, 10)}`))))),
      section("People", [race.mark && el("p", { class: "any" }, el("b", {}, race.mark.state), ` by ${race.mark.author} on ${race.mark.date.slice(0, 10)}: ${race.mark.reason}`),
        race.suppressed && el("p", { class: "any" }, `suppressed by ${race.suppressed.by}`, race.suppressed.reason ? `: ${race.suppressed.reason}` : "")]),
      section("Identity", el("code", {}, race.fingerprint)),
    ].flat(Infinity).filter(Boolean));
    article.removeAttribute("data-empty");
    article.scrollTop = 0;
  };

  const byId = new Map(races.map((race, index) => [String(race.id), index]));
  const follow = () => {
    const wanted = location.hash.match(/^#race-(\d+)$/);
    const index = wanted ? byId.get(wanted[1]) : undefined;
    document.body.classList.toggle("reading", index !== undefined);
    if (state.current !== null) rows[state.current].firstChild.removeAttribute("aria-current");
    state.current = index === undefined ? null : index;
    if (index === undefined) return;
    rows[index].firstChild.setAttribute("aria-current", "true");
    rows[index].scrollIntoView({ block: "nearest" });
    draw(races[index]);
    if (matchMedia("(max-width: 760px)").matches) scrollTo(0, 0);
  };
  const open = (race) => { location.hash = `#race-${race.id}`; };
  const leave = () => {
    const at = state.current;
    location.hash = "";
    if (at !== null) rows[at].scrollIntoView({ block: "center" });
  };
  const step = (by) => {
    const on = visible();
    if (on.length === 0) return;
    const at = state.current === null ? -1 : on.indexOf(races[state.current]);
    open(on[at < 0 ? 0 : Math.min(on.length - 1, Math.max(0, at + by))]);
  };
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape") {
      if (typing) { search.value = ""; state.words = []; search.blur(); refresh(); } else leave();
      return;
    }
    if (typing) return;
    const number = Number(event.key);
    if (event.key === "j" || event.key === "ArrowDown") step(1);
    else if (event.key === "k" || event.key === "ArrowUp") step(-1);
    else if (event.key === "/") search.focus();
    else if (event.key === "t") turnTheme();
    else if (event.key === "?") help.showModal();
    else if (number >= 1 && number <= data.verdicts.length) toggleVerdict(number - 1);
    else return;
    event.preventDefault();
  });

  // ---- page --------------------------------------------------------------
  const unchecked = data.notChecked.length > 0 ? data.notChecked : ["inputs and schedules other than those that were run"];
  const footer = el("footer", {}, el("details", {},
    el("summary", {}, `What was not checked (${unchecked.length})` + (data.unused.length > 0 ? ` · ${many(data.unused.length, "unused suppression")}` : "")),
    el("ul", {}, unchecked.map((text) => el("li", {}, text)), data.unused.map((text) => el("li", {}, `unused suppression: ${text}`)))));
  const lockCall = (call) => el("div", {}, `thread ${call.thread}: ${call.what}`,
    call.stack.slice(0, 8).map((number) => el("div", { class: "code" },
      `${functionName(data.frames[number])} ${where(data.frames[number])}`)));
  const lockFinding = (finding) => el("li", {}, el("b", {}, finding.kind), `: ${finding.text}`, finding.calls.map(lockCall));
  if (data.locks.length > 0) {
    footer.prepend(el("details", { class: "locks" },
      el("summary", {}, many(data.locks.length, "lock problem")),
      el("ul", {}, data.locks.map(lockFinding))));
  }
  if (data.failures.length > 0) {
    footer.prepend(el("details", { class: "locks", open: "" },
      el("summary", {}, many(data.failures.length, "failure") + " of the program"),
      el("ul", {}, data.failures.map((failure) => {
        const item = lockFinding(failure);
        if (failure.around) item.append(el("div", {}, failure.around));
        item.append(...failure.replay.map((command) => el("div", { class: "code" }, command)));
        return item;
      }))));
  }
  document.body.append(header, el("main", {}, nav, article), footer, help);
  refresh();
  if (location.hash) follow();
  else if (races.length > 0 && !matchMedia("(max-width: 760px)").matches) {
    const first = visible()[0];
    if (first) { history.replaceState(null, "", `#race-${first.id}`); follow(); }
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
