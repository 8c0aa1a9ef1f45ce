// The fields of a set-up: comboboxes, sliders, steppers and texts, made from the catalogue of the server.
"use strict";
const Fields = (() => {
  const { add } = Draw;
  let numbered = 0;

  // A text field with a list of choices [value, description]; `pick(value)` is called with a choice, or with other text.
  function combobox(parent, { label, choices, pick, placeholder = "", clears = false }) {
    const id = `field-${(numbered += 1)}`;
    const box = add(parent, "div", { class: "combo" });
    add(box, "label", { for: id }, label);
    const input = add(box, "input", {
      id, type: "text", role: "combobox", "aria-expanded": "false", "aria-controls": `${id}-list`,
      "aria-autocomplete": "list", placeholder, spellcheck: "false",
    });
    const list = add(box, "ul", { id: `${id}-list`, role: "listbox", "aria-label": label, hidden: "" });
    let shown = [];
    let at = -1;
    let before = "";

    function open(query) {
      const words = query.toLowerCase().split(/\s+/).filter(Boolean);
      shown = choices.filter((choice) => words.every((word) => choice.join(" ").toLowerCase().includes(word)));
      list.replaceChildren();
      shown.forEach(([value, about], index) => {
        const entry = add(list, "li", { role: "option", id: `${id}-${index}`, "aria-selected": "false" });
        add(entry, "b", {}, value);
        if (about) add(entry, "span", {}, about);
        entry.addEventListener("pointerdown", (event) => { event.preventDefault(); choose(value); });
      });
      if (!shown.length) add(list, "li", { class: "none" }, "no match");
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
      mark(query ? Math.min(0, shown.length - 1) : shown.findIndex(([value]) => value === before));
    }
    function mark(index) {
      list.children[at]?.setAttribute("aria-selected", "false");
      at = index;
      const entry = at < 0 ? null : list.children[at];
      entry?.setAttribute("aria-selected", "true");
      entry?.scrollIntoView({ block: "nearest" });
      if (entry) input.setAttribute("aria-activedescendant", entry.id);
      else input.removeAttribute("aria-activedescendant");
    }
    function close() {
      list.hidden = true;
      at = -1;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
    }
    function choose(value) {
      close();
      const changed = value !== before;
      before = input.value = clears ? "" : value;
      if (changed) pick(value);
    }
    input.addEventListener("focus", () => input.select());
    input.addEventListener("click", () => {
      if (!list.hidden) return;
      input.select();
      open("");
    });
    input.addEventListener("input", () => open(input.value));
    input.addEventListener("blur", () => { if (!list.hidden || input.value !== before) choose(input.value.trim()); });
    input.addEventListener("keydown", (event) => {
      const { key } = event;
      if (key === "ArrowDown" || key === "ArrowUp") {
        event.preventDefault();
        if (list.hidden) open("");
        else if (shown.length) mark((at + (key === "ArrowDown" ? 1 : -1) + shown.length) % shown.length);
      } else if (key === "Enter") {
        event.preventDefault();
        choose(at >= 0 ? shown[at][0] : input.value.trim());
      } else if (key === "Escape" && !list.hidden) {
        input.value = before;
        close();
      }
    });
    return {
      box, input,
      show(value, standard) {
        before = value;
        if (document.activeElement !== input || list.hidden) input.value = value;
        if (standard !== undefined) input.placeholder = standard;
      },
    };
  }

  const readCount = (text) => {
    const found = /^(\d+(?:\.\d+)?)\s*([kKmM]?)$/.exec(text.trim());
    return found ? Number(found[1]) * { "": 1, k: 1000, K: 1024, m: 1e6, M: 1 << 20 }[found[2]] : null;
  };

  function slider(parent, { name, title, unit, stops: values, usual }, set) {
    const box = add(parent, "div", { class: "slider" });
    add(box, "label", { for: `text-${name}` }, title);
    const text = add(box, "input", { id: `text-${name}`, type: "text", inputmode: "numeric", "aria-describedby": `unit-${name}` });
    add(box, "span", { class: "unit", id: `unit-${name}` }, unit);
    const range = add(box, "input", { type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": `${title}, ${unit}` });
    range.addEventListener("input", () => {
      text.value = values[range.value];
      range.setAttribute("aria-valuetext", text.value);
      set(name, text.value, true);
    });
    range.addEventListener("change", () => set(name, text.value));
    text.addEventListener("input", () => { if (readCount(text.value)) set(name, text.value, true); });
    text.addEventListener("change", () => set(name, text.value));
    return (setup) => {
      const value = setup[name] ?? usual;
      if (document.activeElement !== text) text.value = value;
      const number = readCount(value) ?? values[0];
      const nearest = values.reduce((best, one, index) =>
        (Math.abs(Math.log(one / number)) < Math.abs(Math.log(values[best] / number)) ? index : best), 0);
      if (document.activeElement !== range) range.value = nearest;
      range.setAttribute("aria-valuetext", value);
    };
  }

  function stepper(parent, { name, title, usual, help }, set) {
    const box = add(parent, "div", { class: "stepper" });
    add(box, "label", { for: `text-${name}` }, title);
    const less = add(box, "button", { type: "button", "aria-label": `Halve ${name}` }, "−");
    const text = add(box, "input", { id: `text-${name}`, type: "text", inputmode: "numeric", title: help });
    const more = add(box, "button", { type: "button", "aria-label": `Double ${name}` }, "+");
    const value = () => readCount(text.value) ?? 1;
    const put = (number) => set(name, String(Math.max(1, Math.floor(number))));
    less.addEventListener("click", () => put(value() / 2));
    more.addEventListener("click", () => put(value() * 2));
    text.addEventListener("change", () => set(name, text.value));
    text.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault();
      put(event.key === "ArrowUp" ? value() * 2 : value() / 2);
    });
    return (setup) => { text.value = setup[name] ?? (readCount(usual) ? usual : "auto"); };
  }

  function plainText(parent, { name, title, help = "", kind = "", usual = "" }, set) {
    const box = add(parent, "div", { class: "text" });
    add(box, "label", { for: `text-${name}` }, title);
    const input = kind === "switch" ? add(box, "select", { id: `text-${name}` }) : add(box, "input", { id: `text-${name}`, type: "text" });
    if (kind === "switch") {
      for (const [value, shown] of [["", "default"], ["true", "on"], ["false", "off"]]) add(input, "option", { value }, shown);
    }
    input.title = help;
    if (kind !== "switch") input.placeholder = usual;
    input.addEventListener("change", () => set(name, input.value));
    return (setup) => { input.value = setup[name] ?? ""; };
  }

  function group(form, title) {
    const box = add(form, "fieldset");
    add(box, "legend", {}, title);
    return box;
  }

  function folded(parent, title) {
    const box = add(parent, "details", { class: "fold" });
    add(box, "summary", {}, title);
    return box;
  }

  // Several names, each a chip that is removed.
  function chips(box, { name: option, title, choices, example }, set) {
    const list = add(box, "ul", { class: "chips" });
    let chosen = [];
    const put = (names) => set(option, names.join("+"));
    combobox(box, {
      label: `Add a ${title.toLowerCase().replace(/s$/, "")}`, choices, clears: true, placeholder: `${example}, …`,
      pick: (name) => { if (name && !chosen.includes(name)) put([...chosen, name]); },
    });
    return (setup) => {
      chosen = (setup[option] ?? "").split("+").filter(Boolean);
      list.replaceChildren();
      for (const name of chosen) {
        const chip = add(list, "li", {}, name);
        add(chip, "button", { type: "button", "aria-label": `Remove ${name}` }, "×")
          .addEventListener("click", () => put(chosen.filter((other) => other !== name)));
      }
    };
  }

  // The fields in `form`; `set(name, text, live)` changes the set-up. Returns a function that shows a set-up.
  function build(form, { options, load }, set, openFile) {
    const updates = [];
    const placed = new Set();
    const combo = (parent, { name, title, help, choices, usual }) => {
      const field = combobox(parent, { label: title, choices, pick: (value) => set(name, value) });
      field.input.id = `text-${name}`;
      field.input.title = help;
      field.box.querySelector("label").htmlFor = `text-${name}`;
      updates.push((setup, answer) => field.show(setup[name] ?? "", answer ? answer.analysis.scenario[name] ?? usual : undefined));
    };
    // The field of an option, by what its values are.
    const field = (parent, option) => {
      placed.add(option.name);
      if (option.stops.length) updates.push(slider(parent, option, set));
      else if (option.often && option.kind === "integer") updates.push(stepper(parent, option, set));
      else if (option.often && option.kind === "list") updates.push(chips(parent, option, set));
      else if (option.choices.length) combo(parent, option);
      else updates.push(plainText(parent, option, set));
    };
    // Those options of a group that are often turned and have no field yet.
    const often = (name) => options.filter((option) => option.often && option.group === name && !placed.has(option.name));
    const named = (name) => options.find((option) => option.name === name);
    const spec = (parent, name) => {
      const note = add(parent, "p", { class: "own", hidden: "" });
      add(note, "span", {}, "with a spec of its own ");
      add(note, "button", { type: "button", class: "action" }, "remove").addEventListener("click", () => set(`${name}.spec`, ""));
      updates.push((setup) => { note.hidden = !setup[`${name}.spec`]; });
    };

    const model = group(form, "Model");
    field(model, named("model"));
    spec(model, "model");
    add(model, "button", { type: "button", class: "action" }, "Open a config.json, GGUF or spec").addEventListener("click", openFile);

    const device = group(form, "Hardware");
    field(device, named("hw"));
    spec(device, "hw");
    const edits = add(folded(device, "Edit its figures"), "div", { class: "pairs" });
    let keys = "";
    let shownEdits = [];
    updates.push((setup, answer) => {
      const found = answer?.hardware ?? [];
      if (answer && found.map(({ key }) => key).join() !== keys) {
        keys = found.map(({ key }) => key).join();
        edits.replaceChildren();
        shownEdits = found.map(({ key, title }) => plainText(edits, { name: key, title }, set));
      }
      shownEdits.forEach((show) => show(setup));
      for (const { key, text } of found) document.getElementById(`text-${key}`).placeholder = text;
    });
    const degrees = add(device, "div", { class: "steppers" });
    for (const option of often("Parallelism")) field(degrees, option);
    for (const name of new Set(options.map((option) => option.group))) {
      const found = often(name);
      if (!found.length) continue;
      let parent = group(form, found.length > 1 ? name : found[0].title);
      if (found.length > 1 && found.every(({ choices }) => choices.length)) parent = add(parent, "div", { class: "pairs" });
      for (const option of found) field(parent, option);
    }

    const asked = add(group(form, "Load and targets"), "div", { class: "pairs" });
    const load_of = (name, option, title, usual) => updates.push(plainText(asked, { ...load[option], name, title, usual }, set));
    load_of("asked.users", "concurrency", "Users, if more than the batch", "the batch");
    load_of("asked.rate", "rate", "Requests/s", "none");
    load_of("load.hits", "prefix_hits", "Prefix hits", load.prefix_hits.usual);
    load_of("asked.sessions", "sessions", "Sessions", "none");
    load_of("deploy.pools", "disaggregation", "Prefill : decode", "together");
    const ofSessions = (name, title) => combo(asked, { ...load[name], name: `load.${name}`, title });
    ofSessions("profile", "Profile of sessions");
    load_of("load.tiers", "tiers", "Cache tiers", "none");
    for (const name of ["ttft", "tpot"]) load_of(`goal.${name}`, name, `${load[name].title} below`, "none");

    const rest = add(folded(form, "More options"), "div", { class: "pairs" });
    for (const option of options) if (!placed.has(option.name)) field(rest, option);
    form.addEventListener("submit", (event) => event.preventDefault());
    return (setup, answer) => updates.forEach((show) => show(setup, answer));
  }

  return { build, plainText };
})();
