// The live page: its state is in the address, its figures are the documents of the server; computes nothing but the layout.
"use strict";
(() => {
  const { add, plain, seconds, si } = Draw;
  const { LETTERS } = Panels;
  const { BASES, emptied, sentence } = Answer;
  const get = (name) => document.getElementById(name);
  // What is shown of the set-ups, at first.
  const BEGIN = { active: 0, tab: "overview", phase: "prefill", metric: "total", form: "command", rates: "attainable" };
  const PAGE = Object.keys(BEGIN);
  const state = { setups: [{}], ...BEGIN };
  // The answers of a report, which has no server: its set-ups stay as they are.
  const recorded = JSON.parse(get("recorded")?.textContent ?? "null");
  const FILE = "this page is a file, whose set-ups stay as they are: change them with roofline view";
  let showFields = () => {};
  let options = {}; // of a load, by name
  let undoable = 0;
  let hosted = false; // for a team, not for this computer alone

  // --- the address ---------------------------------------------------------------------------------------------------

  function address() {
    return state.setups.map((setup, index) => {
      const parts = new URLSearchParams(setup);
      if (!index) for (const name of PAGE) if (state[name] !== BEGIN[name]) parts.set(`page.${name}`, state[name]);
      return parts.toString();
    }).join(";");
  }

  function readAddress() {
    const setups = location.hash.slice(1).split(";").slice(0, LETTERS.length).map((text) => Object.fromEntries(new URLSearchParams(text)));
    Object.assign(state, BEGIN, { setups });
    for (const name of PAGE) {
      const value = setups[0][`page.${name}`];
      if (value !== undefined) state[name] = name === "active" ? Number(value) : value;
      delete setups[0][`page.${name}`];
    }
    if (!setups[state.active]) state.active = 0;
    if (!Object.hasOwn(Panels.VIEWS, state.tab)) state.tab = BEGIN.tab;
  }

  // Records a change of a set-up so that it can be undone; one that is `live` is recorded by the next one that is not.
  function changed(live = false) {
    const hash = `#${address()}`;
    if (!live && hash !== location.hash) {
      history.pushState({ undoable: (undoable += 1) }, "", hash);
      get("undo").disabled = false;
    }
    refresh();
  }

  // What is shown of the set-ups is part of the address, and no step of its own.
  function looked() {
    if (!recorded) history.replaceState(history.state, "", `#${address()}`);
    refresh();
  }

  const active = () => state.setups[state.active];

  // Targets and loads are those of all set-ups, and stand in the first.
  const COMMON = /^(goal|asked|run|load|advice)\./;

  const common = (setup) => Object.fromEntries(Object.entries(setup).filter(([name]) => COMMON.test(name)));

  function set(name, value, live = false) {
    if (recorded) return fixed();
    const index = COMMON.test(name) ? 0 : state.active;
    const setup = { ...state.setups[index] };
    if (name === "model") for (const own of ["spec", "file"]) delete setup[`model.${own}`];
    if (name === "hw") for (const key of Object.keys(setup)) if (key.startsWith("hw.")) delete setup[key];
    if (value === null || value.trim() === "") delete setup[name];
    else setup[name] = value.trim();
    state.setups[index] = setup;
    changed(live);
  }

  function fixed() {
    say(`${FILE[0].toUpperCase()}${FILE.slice(1)}.`, "Copy the command", () => copy(reproduced));
    refresh();
  }

  function apply(changes, name) {
    if (recorded) return fixed();
    for (const key of Object.keys(changes)) {
      if (key === "hw") for (const other of Object.keys(active())) if (other.startsWith("hw.")) delete active()[other];
      if (changes[key] === null) delete active()[key];
      else active()[key] = changes[key];
    }
    changed();
    say(`Applied ${name}.`, "Undo", () => history.back());
  }

  // --- asking the server ---------------------------------------------------------------------------------------------

  const known = new Map();

  const post = (name, question) => sent(`ask/${name}`, JSON.stringify(question));
  let head = 0; // bytes of a checkpoint that the server takes

  const BUSY = [429, 503]; // of a server that many ask

  async function sent(path, body, tries = 4) {
    if (recorded) throw new Error(FILE);
    let response;
    try {
      response = await fetch(path, { method: "POST", body });
    } catch {
      gone(true);
      throw new Error("the server has ended");
    }
    gone(false);
    const wait = Number(response.headers.get("retry-after") ?? 9);
    if (BUSY.includes(response.status) && wait <= 5 && tries > 1) {
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
      return sent(path, body, tries - 1);
    }
    const found = await response.json().catch(() => ({ error: `the server refused this (${response.status})` }));
    if (!response.ok) throw new Error(found.error);
    return found;
  }

  // The answer to a question, asked once for each set of set-ups.
  function ask(name, question) {
    const key = JSON.stringify([name, question]);
    if (!known.has(key)) {
      const promise = post(name, question);
      promise.catch(() => known.delete(key));
      known.set(key, promise);
      if (known.size > 100 && !recorded) known.delete(known.keys().next().value);
    }
    return known.get(key);
  }

  function gone(is) {
    const box = get("gone");
    if (box.hidden === !is) return;
    box.hidden = !is;
    document.body.classList.toggle("stopped", is);
    if (is) box.textContent = "The server has ended, and the figures below no longer follow. Run roofline view again; this set-up: " +
      (reproduced || "the part of the address after #");
  }

  async function alive() {
    if (document.hidden) return;
    try {
      await fetch("view.css", { method: "HEAD" });
      if (!get("gone").hidden) { gone(false); refresh(); }
    } catch { gone(true); }
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  let reproduced = "";
  let busy = false;
  let built = false; // the fields
  let again = false;

  // Draws the present state; while an answer is awaited, later changes wait and only the last of them is drawn.
  async function refresh() {
    document.body.dataset.state = address();
    showFields({ ...active(), ...common(state.setups[0]) }, null);
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      await draw().catch((error) => problem(error.message));
    }
    busy = false;
    document.body.dataset.state = address(); // the drawing may have set names right
    if (built) document.body.dataset.drawn = address();
  }

  async function draw() {
    const setups = state.setups.map((setup) => ({ ...setup }));
    const answers = await Promise.allSettled(setups.map(answerTo));
    const failed = answers.findIndex(({ status }) => status === "rejected");
    problem(failed < 0 ? "" : `${setups.length > 1 ? `${LETTERS[failed]}: ` : ""}${answers[failed].reason.message}`);
    setupChips();
    tabs();
    const own = answers[state.active].value;
    document.body.classList.toggle("empty", !own && !get("source").textContent);
    if (!own) {
      if (document.body.classList.contains("empty")) get("title").textContent = label(state.active) || "roofline";
      return;
    }
    showFields({ ...active(), ...common(setups[0]) }, own);
    Answer.heading(own.analysis);
    Answer.rows(answers.map(({ value }) => value?.analysis), state.active, label);
    Draw.memory(emptied("memory"), own.analysis.memory);
    Answer.notes(own.analysis, own.taken);
    const asks = setups.map((setup) => ({ setups: [{ ...setup, ...common(setups[0]) }] }));
    const asked = asks[state.active];
    const verdicts = await Promise.all(asks.map((one, index) => (answers[index].value ? ask("verdict", one) : null)));
    Answer.verdict(verdicts[state.active], apply, turn);
    Answer.load(verdicts, state.active);
    await new Promise((resolve) => setTimeout(resolve)); // the totals may be painted, and a further change come in
    const drawable = built || state.tab !== "load"; // whose fields are options of the server
    if (!again && drawable && !answers.some(({ value }) => !value)) await panel(own, setups);
    if (!again && get("verdict").querySelector("[data-line=Better]")) Answer.better(await ask("better", asked), apply);
  }

  async function answerTo(setup) {
    const missing = [["model", "a model"], ["hw", "a device"]].filter(([name]) => !setup[name]).map(([, title]) => title);
    if (missing.length) throw new Error(`choose ${missing.join(" and ")}, or drop a file of one on the page`);
    return ask("answer", { setups: [setup] });
  }

  function problem(text) {
    sentence(get("problem"), text);
    document.body.classList.toggle("wrong", Boolean(text));
  }

  // --- set-ups, tabs and panels --------------------------------------------------------------------------------------

  // Model and hardware of the first set-up; what differs from it in the others.
  function label(index) {
    const [first, setup] = [state.setups[0], state.setups[index]];
    if (!index) return [setup.model, setup.hw].filter(Boolean).join(" · ");
    const names = [...new Set([...Object.keys(first), ...Object.keys(setup)])].filter((name) => first[name] !== setup[name]);
    return names.filter((name) => !/\.(spec|file)$/.test(name) && !COMMON.test(name))
      .map((name) => (name === "model" || name === "hw" ? setup[name] : `${name.replace(/^(hw|deploy)\.(\w+\.)*/, "")} ${setup[name] ?? "default"}`))
      .join(" · ") || "the same as A";
  }

  function setupChips() {
    const box = emptied("setups");
    state.setups.forEach((setup, index) => {
      const chip = add(box, "span", { class: index === state.active ? "chip active" : "chip" });
      const button = add(chip, "button", {
        type: "button", "aria-pressed": index === state.active, "data-setup": index, "aria-label": `${LETTERS[index]}: ${label(index)}`,
      });
      add(button, "b", {}, LETTERS[index]);
      add(button, "span", {}, label(index));
      button.addEventListener("click", () => turn({ active: index }));
      if (state.setups.length > 1) {
        add(chip, "button", { type: "button", class: "remove", "aria-label": `Remove ${LETTERS[index]}` }, "×")
          .addEventListener("click", () => {
            state.setups.splice(index, 1);
            state.active = Math.min(state.active, state.setups.length - 1);
            changed();
          });
      }
    });
    if (state.setups.length < LETTERS.length) {
      add(box, "button", { type: "button", class: "add", id: "add" }, "+ Compare").addEventListener("click", addSetup);
    }
  }

  function addSetup() {
    state.setups.push({ ...active() });
    state.active = state.setups.length - 1;
    state.tab = "compare";
    changed();
  }

  function turn(changes) {
    const focused = document.activeElement?.textContent;
    Object.assign(state, changes);
    looked();
    for (const button of document.querySelectorAll("#panel .segments button")) if (button.textContent === focused) button.focus();
  }

  // The views; a report has those of its answers.
  const VIEWS = Object.fromEntries(Object.entries(Panels.VIEWS).filter(([name]) => !recorded || recorded.views.includes(name)));

  function tabs() {
    const box = get("tabs");
    if (!box.children.length) {
      for (const [name, title] of Object.entries(VIEWS)) {
        add(box, "button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel" }, title)
          .addEventListener("click", () => turn({ tab: name }));
      }
      box.addEventListener("keydown", (event) => {
        const names = Object.keys(VIEWS);
        const step = { ArrowRight: 1, ArrowLeft: names.length - 1 }[event.key];
        if (!step) return;
        turn({ tab: names[(names.indexOf(state.tab) + step) % names.length] });
        get(`tab-${state.tab}`).focus();
      });
    }
    for (const tab of box.children) {
      const chosen = tab.id === `tab-${state.tab}`;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen) box.scrollLeft = Math.max(0, tab.offsetLeft - box.offsetLeft + tab.offsetWidth - box.clientWidth);
    }
    get("panel").setAttribute("aria-labelledby", `tab-${state.tab}`);
  }

  async function panel(answer, setups) {
    if (!Object.hasOwn(answer.analysis.phases, state.phase)) state.phase = "prefill";
    const setup = { ...setups[state.active], ...common(setups[0]) };
    const questions = { compare: setups, load: setups };
    const own = (name) => ({ setups: questions[name] ?? [setup] });
    const page = {
      answer, setup, setups, options, phase: state.phase, metric: state.metric, rates: state.rates, set, turn, apply, addSetup,
      ask: (name) => ask(name, own(name)),
      operators: (phase) => answer.analysis.phases[phase].ops.map((op, index) => ({ ...op, index })),
      openCard: (op, phase) => openCard(op, phase, setup), copy,
    };
    const box = get("panel");
    const fresh = add(box, "div", { class: "view" });
    add(fresh, "h2", { class: "unseen" }, Panels.VIEWS[state.tab]);
    for (const old of [...box.children].slice(0, -1)) old.remove();
    const drawn = Panels.draw[state.tab](fresh, page);
    await drawn?.catch?.((error) => { // the fields of the view stay, so that what is wrong can be set right
      for (const one of [...fresh.children]) if (!one.matches("h2, .head")) one.remove();
      sentence(add(fresh, "p", { class: "failed" }), error.message);
    });
    box.style.minHeight = `${Math.min(900, Math.max(parseFloat(box.style.minHeight) || 0, fresh.offsetHeight))}px`;
    const asked = { compare: setups.length > 1 && "compare", advice: "advice", load: "load", run: "run" }[state.tab];
    const source = asked ? await page.ask(asked).catch(() => answer) : answer;
    origin(source);
  }

  function origin({ command, python }) {
    const box = emptied("origin-kinds");
    const forms = { command: ["As a command", command], ...(python ? { python: ["As Python", python] } : {}) };
    if (!Object.hasOwn(forms, state.form)) state.form = "command";
    for (const [name, [title]] of Object.entries(forms)) {
      add(box, "button", { type: "button", class: "plain", "aria-pressed": name === state.form }, title)
        .addEventListener("click", () => { state.form = name; looked(); get("origin-kinds").querySelector("[aria-pressed=true]")?.focus(); });
    }
    add(box, "button", { type: "button", class: "action" }, "Copy").addEventListener("click", () => copy(forms[state.form][1]));
    const source = emptied("source");
    for (const part of forms[state.form][1].split(/( --?[a-z][\w-]*)/)) {
      if (part.startsWith(" -")) source.append(" ", Object.assign(document.createElement("span"), { className: "option", textContent: part.slice(1) }));
      else source.append(part);
    }
    reproduced = command;
  }

  async function openCard(op, phase, setup) {
    const { explanation, command } = await ask("explain", { setups: [setup], phase, place: op.index });
    const steps = explanation.lines.filter(({ formula }) => !formula.startsWith("["))
      .map(({ name, formula, substituted, value, unit }) => [name, formula, substituted, value, unit]);
    Draw.card(get("card"), {
      op: { ...op, basis: BASES[op.basis] ?? op.basis }, phase, steps,
      more: (dialog) => kernelOf(dialog, explanation.kernel, command),
    });
  }

  function kernelOf(dialog, kernel, command) {
    if (kernel?.constants.length) {
      add(dialog, "h3", {}, `Kernel: ${kernel.op} in ${kernel.format}, ${kernel.measurements.toLocaleString("en-US")} measurements`);
      Draw.simpleTable(dialog, "Fitted constants", ["constant", "value", "meaning"], kernel.constants.map(({ name, value, unit, meaning }) =>
        [name, unit === "s" ? seconds(value) : unit ? si(value, unit) : plain(value), meaning]), 3);
    }
    add(add(dialog, "pre", { tabindex: 0, "aria-label": "As a command" }), "code", {}, command);
  }

  // --- files, links and messages -------------------------------------------------------------------------------------

  let quiet = 0;

  function say(text, action = "", run = () => {}) {
    const box = emptied("said");
    add(box, "span", {}, text);
    if (action) add(box, "button", { type: "button", class: "action" }, action).addEventListener("click", () => { box.hidden = true; run(); });
    box.hidden = false;
    clearTimeout(quiet);
    quiet = setTimeout(() => { box.hidden = true; }, 8000);
  }

  async function copy(text, told = `Copied: ${text.length > 200 ? `${text.slice(0, 200)} …` : text}`) {
    await navigator.clipboard.writeText(text).then(() => say(told), () => say("The browser does not allow copying."));
  }

  async function read(file) {
    if (!file) return;
    try {
      if (file.name.toLowerCase().endsWith(".gguf")) return await checkpoint(file);
      if (file.size > 4 << 20) return say(`${file.name} is too large for a spec.`);
      const { option, name, text } = await post("dropped", { name: file.name, text: await file.text() });
      state.setups[state.active] = { ...active(), [option]: name, [`${option}.spec`]: text };
      if (option === "model") delete active()["model.file"];
      changed();
      say(`${option === "model" ? "Model" : "Hardware"}: ${name}.`, "Undo", () => history.back());
    } catch (error) { refused(error); }
  }

  const refused = (error) => {
    say("");
    sentence(get("said").firstChild, error.message);
  };

  // The server needs only the header of a checkpoint, and its size.
  async function checkpoint(file) {
    const name = encodeURIComponent(file.name);
    const found = await sent(`checkpoint?name=${name}&size=${file.size}`, file.slice(0, head));
    const { "model.spec": _, ...setup } = active();
    state.setups[state.active] = { ...setup, ...found };
    changed();
    say(`Model: ${found.model}.`, "Undo", () => history.back());
  }

  async function exported(kind) {
    get("export").open = false;
    try {
      if (kind === "specs") {
        const { files } = await ask("answer", { setups: [active()] });
        if (!files.length) say("This set-up has no spec of its own.");
        for (const { name, text } of files) Charts.save(name, new Blob([text]));
        return;
      }
      say("Writing …");
      const { name, text } = await post(kind, { setups: state.setups });
      Charts.save(name, new Blob([text]));
      say(`Saved ${name}.`);
    } catch (error) { refused(error); }
  }

  const REACH = {
    false: "opens on this computer, while this server runs", true: "opens for everyone who reaches this server",
  };

  function shared(how) {
    get("share").open = false;
    if (how === "link") copy(location.href, `Copied the link, which ${REACH[hosted]}.`);
    else if (how === "command") copy(reproduced);
    else exported("html");
  }

  const THEMES = { auto: ["◐ Auto", "as the system"], light: ["○ Light", "light"], dark: ["● Dark", "dark"] };

  function theme(name) {
    const [text, about] = THEMES[name];
    document.documentElement.dataset.theme = name;
    get("theme").textContent = text;
    get("theme").setAttribute("aria-label", `Theme: ${about}`);
    try { localStorage.setItem("roofline-theme", name); } catch { /* storage may be off */ }
  }

  function wire() {
    get("undo").addEventListener("click", () => history.back());
    get("skip").addEventListener("click", () => document.querySelector("main").focus());
    get("theme").addEventListener("click", () => {
      const names = Object.keys(THEMES);
      theme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
    });
    for (const button of document.querySelectorAll("[data-export]")) {
      button.addEventListener("click", () => exported(button.dataset.export));
    }
    for (const button of document.querySelectorAll("[data-share]")) {
      button.addEventListener("click", () => shared(button.dataset.share));
    }
    for (const menu of document.querySelectorAll(".menu")) {
      document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
      menu.addEventListener("keydown", (event) => {
        if (event.key !== "Escape" || !menu.open) return;
        menu.open = false;
        menu.querySelector("summary").focus();
      });
    }
    get("card").addEventListener("click", (event) => { if (event.target === get("card")) get("card").close(); });
    get("file").addEventListener("change", () => { read(get("file").files[0]); get("file").value = ""; });
    window.addEventListener("popstate", (event) => {
      if (recorded) return; // of a link within the report
      undoable = event.state?.undoable ?? 0;
      get("undo").disabled = !undoable;
      readAddress();
      refresh();
    });
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      refresh();
    });
    for (const name of ["dragover", "dragleave", "drop"]) {
      window.addEventListener(name, (event) => {
        event.preventDefault();
        get("drop").hidden = name !== "dragover";
        if (name === "drop") read(event.dataTransfer.files[0]);
      });
    }
    if (!recorded) setInterval(alive, 3000);
  }

  async function begin() {
    let stored = null;
    try { stored = localStorage.getItem("roofline-theme"); } catch { /* storage may be off */ }
    theme(stored in THEMES ? stored : "auto");
    if (window.innerWidth < 900) get("drawer").open = false;
    if (!recorded) readAddress();
    undoable = history.state?.undoable ?? 0;
    get("undo").disabled = !undoable;
    wire();
    if (recorded) return replay();
    const drawn = location.hash ? refresh() : null; // the list of models takes longer than an answer
    const found = await fetch("catalogue").then((response) => response.json());
    options = found.load;
    ({ shared: hosted, head } = found);
    if (!location.hash && found.opening) state.setups = [found.opening];
    get("reach").textContent = REACH[hosted];
    showFields = Fields.build(get("fields"), found, set, () => get("file").click());
    built = true;
    await drawn;
    await refresh();
  }

  // Draws a report.
  function replay() {
    document.documentElement.classList.add("running");
    state.setups = recorded.setups;
    options = recorded.load;
    for (const [name, question, found] of recorded.answers) {
      const answer = found.error === undefined ? Promise.resolve(found) : Promise.reject(new Error(found.error));
      answer.catch(() => {}); // is told where it is asked for
      known.set(JSON.stringify([name, question]), answer);
    }
    built = true;
    return refresh();
  }

  begin();
})();
