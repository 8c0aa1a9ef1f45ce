// The fields of a set-up: comboboxes, sliders, steppers and texts, made from the catalogue of the server.
"use strict";
const Fields = (() => {
  const { add } = Draw;
  const SLIDERS = {
    batch: ["Batch", "sequences", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]],
    prompt: ["Prompt", "tokens", [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144]],
    generate: ["Generate", "tokens", [1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]],
  };
  const DEFAULTS = { batch: "1", prompt: "512", generate: "128", tp: "1", pp: "1", ep: "1", dp: "1", sp: "1", nodes: "auto" };
  const DEGREES = ["tp", "pp", "ep", "dp", "sp", "nodes"];
  const FORMATS = { quant: "Scheme", weights: "Weights", activations: "Activations", kv: "KV cache" };
  const PLACED = ["model", "hw", "engine", "with", ...Object.keys(SLIDERS), ...DEGREES, ...Object.keys(FORMATS)];
  // The options that are seldom turned: title, and what holds without a value.
  const REST = {
    context: ["Context", "prefix + prompt"], prefix: ["Cached prefix", "0"], images: ["Images", "0"], image_size: ["Image size", "the model's"],
    quantization: ["vLLM quantization", "none"], dtype: ["dtype", "auto"], flash: ["FlashAttention"], fuse: ["Fusions", "none"],
    enable_expert_parallel: ["Expert parallel"], dp_attention: ["DP attention"], micro_batches: ["Micro-batches", "1"],
    expert_skew: ["Expert skew", "0"], offload: ["Offload", "none"], host: ["Host", "pcie-server"],
    memory_reading: ["Memory reading", "engine"], gpu_memory_utilization: ["Memory fraction", "the engine's"],
    max_model_len: ["Max model length", "the model's"], max_num_seqs: ["Max sequences", "the engine's"],
    price: ["Price (USD/h)", "its spec's"], convention: ["Convention", "physical"],
  };
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

  function slider(parent, name, set) {
    const [title, unit, values] = SLIDERS[name];
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
      const value = setup[name] ?? DEFAULTS[name];
      if (document.activeElement !== text) text.value = value;
      const number = readCount(value) ?? values[0];
      const nearest = values.reduce((best, one, index) =>
        (Math.abs(Math.log(one / number)) < Math.abs(Math.log(values[best] / number)) ? index : best), 0);
      if (document.activeElement !== range) range.value = nearest;
      range.setAttribute("aria-valuetext", value);
    };
  }

  function stepper(parent, name, help, set) {
    const box = add(parent, "div", { class: "stepper" });
    add(box, "label", { for: `text-${name}` }, name === "nodes" ? "Nodes" : name.toUpperCase());
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
    return (setup) => { text.value = setup[name] ?? DEFAULTS[name]; };
  }

  function plainText(parent, { name, label, help = "", set, kind = "", standard = "" }) {
    const box = add(parent, "div", { class: "text" });
    add(box, "label", { for: `text-${name}` }, label);
    const input = kind === "switch" ? add(box, "select", { id: `text-${name}` }) : add(box, "input", { id: `text-${name}`, type: "text" });
    if (kind === "switch") {
      for (const [value, shown] of [["", "default"], ["true", "on"], ["false", "off"]]) add(input, "option", { value }, shown);
    }
    input.title = help;
    if (kind !== "switch") input.placeholder = standard;
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

  function techniques(form, catalogue, set) {
    const box = group(form, "Techniques");
    const chips = add(box, "ul", { class: "chips" });
    let chosen = [];
    const put = (names) => set("with", names.join("+"));
    combobox(box, {
      label: "Add a technique", choices: catalogue.choices.with, clears: true, placeholder: "eagle-3, fp8-kv, …",
      pick: (name) => { if (name && !chosen.includes(name)) put([...chosen, name]); },
    });
    return (setup) => {
      chosen = (setup.with ?? "").split("+").filter(Boolean);
      chips.replaceChildren();
      for (const name of chosen) {
        const chip = add(chips, "li", {}, name);
        add(chip, "button", { type: "button", "aria-label": `Remove ${name}` }, "×")
          .addEventListener("click", () => put(chosen.filter((other) => other !== name)));
      }
    };
  }

  // The fields in `form`; `set(name, text, live)` changes the set-up. Returns a function that shows a set-up.
  function build(form, catalogue, set, openFile) {
    const { choices, help, kinds } = catalogue;
    const updates = [];
    const combo = (parent, name, label, standard = () => "") => {
      const field = combobox(parent, { label, choices: choices[name] ?? [], pick: (value) => set(name, value) });
      field.input.id = `text-${name}`;
      field.box.querySelector("label").htmlFor = `text-${name}`;
      updates.push((setup, answer) => field.show(setup[name] ?? "", answer ? standard(answer.analysis) : ""));
      return field;
    };
    const spec = (parent, name) => {
      const note = add(parent, "p", { class: "own", hidden: "" });
      add(note, "span", {}, "with a spec of its own ");
      add(note, "button", { type: "button", class: "action" }, "remove").addEventListener("click", () => set(`${name}.spec`, ""));
      updates.push((setup) => { note.hidden = !setup[`${name}.spec`]; });
    };

    const model = group(form, "Model");
    combo(model, "model", "Model");
    spec(model, "model");
    add(model, "button", { type: "button", class: "action" }, "Open a config.json, GGUF or spec").addEventListener("click", openFile);

    const device = group(form, "Hardware");
    combo(device, "hw", "Device");
    spec(device, "hw");
    const edits = add(folded(device, "Edit its figures"), "div", { class: "pairs" });
    let keys = "";
    let shownEdits = [];
    updates.push((setup, answer) => {
      const found = answer?.hardware ?? [];
      if (answer && found.map(({ key }) => key).join() !== keys) {
        keys = found.map(({ key }) => key).join();
        edits.replaceChildren();
        shownEdits = found.map(({ key, title }) => plainText(edits, { name: key, label: title, set }));
      }
      shownEdits.forEach((show) => show(setup));
      for (const { key, text } of found) document.getElementById(`text-${key}`).placeholder = text;
    });
    const degrees = add(device, "div", { class: "steppers" });
    for (const name of DEGREES) updates.push(stepper(degrees, name, help[name], set));

    const work = group(form, "Workload");
    for (const name of Object.keys(SLIDERS)) updates.push(slider(work, name, set));

    const formats = group(form, "Formats");
    const pairs = add(formats, "div", { class: "pairs" });
    for (const [name, label] of Object.entries(FORMATS)) {
      combo(pairs, name, label, (analysis) => (name === "quant" ? "as released" : analysis.scenario[name] ?? ""));
    }

    combo(group(form, "Engine"), "engine", "Engine, with a version as in vllm@0.11", (analysis) => analysis.scenario.engine);
    updates.push(techniques(form, catalogue, set));

    const rest = add(folded(form, "More options"), "div", { class: "pairs" });
    for (const name of Object.keys(kinds).filter((one) => !PLACED.includes(one))) {
      const [label, standard] = REST[name] ?? [name.replaceAll("_", " ")];
      if (choices[name]) combo(rest, name, label, () => standard).input.title = help[name];
      else updates.push(plainText(rest, { name, label, help: help[name], set, kind: kinds[name], standard }));
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    return (setup, answer) => updates.forEach((show) => show(setup, answer));
  }

  return { build, plainText };
})();
