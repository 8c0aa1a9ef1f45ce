// Shows the figures that the simulator computed for every setting of the controls; computes nothing but the layout.
"use strict";
(() => {
  const { add, count, grouped, plain, seconds, si } = Draw;
  const data = JSON.parse(document.getElementById("data").textContent);
  const { numbers, texts, ops, graphs, scenarios } = data;
  const BOUNDS = ["compute", "memory", "link"];
  const CONTROLS = ["batch", "prompt", "quant", "flash", "tp"];
  const TITLES = {
    scenario: "Scenario", batch: "Batch (sequences)", prompt: "Prompt (tokens)", quant: "Quantization",
    flash: "FlashAttention", tp: "Tensor parallel (devices)",
  };
  const state = { scenario: 0, phase: "prefill" };
  const sorting = { key: null, down: true };

  // --- figures at the current setting -------------------------------------------------------------------------------------------------

  const now = () => scenarios[state.scenario];
  const valueOf = (control) => now().values[CONTROLS.indexOf(control)][state[control]];
  const text = (place) => texts[place];

  function setting() {
    const [, , , flashes, degrees] = now().values;
    return now().settings[(state.quant * flashes.length + state.flash) * degrees.length + state.tp];
  }

  function at(place, batch = state.batch, prompt = state.prompt) {
    const found = numbers[place];
    if (!Array.isArray(found)) return found;
    const prompts = now().values[1].length;
    return found[1 + [batch, prompt, batch * prompts + prompt][found[0]]];
  }

  function figure(name, batch, prompt) {
    const place = setting().figures[name];
    return place === undefined ? null : at(place, batch, prompt);
  }

  // The operators of a phase as documents of an analysis.
  function operators(phase = state.phase) {
    return setting().phases[phase].ops.map(([place, share], index) => {
      const { n, t, ridge, tensors } = ops[place];
      const number = (name) => (n[name] === undefined ? null : at(n[name]));
      const words = (name) => (t[name] === undefined ? "" : text(t[name]));
      const [low, mid, high] = ["low", "mid", "high"].map((reading) => number(`time.${reading}`));
      return {
        index, ridge, share: at(share), name: words("name"), section: words("section"), kind: words("kind"),
        arithmetic: words("arithmetic"), formula: words("formula"), basis: words("basis"), source: words("source"),
        count: number("count"), flops: number("flops"), bytes: number("bytes"), link_bytes: number("link_bytes"),
        intensity: number("intensity"), attainable_flops_per_s: number("attainable"), bound: BOUNDS[number("bound")],
        bound_time_s: number("time.bound"), in_fitted_range: number("inside"),
        ...(mid === null ? {} : { expected_time_s: { low, mid, high } }),
        tensors: tensors.map(([name, role, symbols, sides, format, bytes]) => ({
          name: text(name), role: text(role), symbols: text(symbols), shape: sides.map((side) => at(side)),
          format: text(format), bytes: at(bytes),
        })),
      };
    });
  }

  const get = (name) => document.getElementById(name);

  function emptied(name) {
    const element = get(name);
    element.replaceChildren();
    return element;
  }

  // --- controls ---------------------------------------------------------------------------------------------------------

  function controls() {
    const form = emptied("controls");
    if (scenarios.length > 1) choice(form, "scenario", scenarios.map((entry) => text(entry.label)));
    CONTROLS.forEach((control, index) => {
      const values = now().values[index];
      if (values.length < 2) return;
      if (index < 2) slider(form, control, values);
      else choice(form, control, values);
    });
    const box = add(form, "div", { class: "control" });
    add(box, "button", { type: "button", class: "plain", id: "reset" }, "Reset").addEventListener("click", reset);
  }

  function slider(form, control, values) {
    const box = add(form, "div", { class: "control" });
    const label = add(box, "label", { for: `control-${control}` }, `${TITLES[control]} `);
    const output = add(label, "output", { id: `out-${control}` });
    const input = add(box, "input", { id: `control-${control}`, type: "range", min: 0, max: values.length - 1, step: 1 });
    input.value = state[control];
    const update = () => {
      output.textContent = grouped(values[input.value]);
      input.setAttribute("aria-valuetext", `${values[input.value]}`);
    };
    input.addEventListener("input", () => {
      state[control] = Number(input.value);
      update();
      draw();
    });
    update();
  }

  function choice(form, control, values) {
    const box = add(form, "div", { class: "control" });
    add(box, "label", { for: `control-${control}` }, TITLES[control]);
    const select = add(box, "select", { id: `control-${control}` });
    values.forEach((value, index) => add(select, "option", { value: index }, `${value}`));
    select.value = state[control];
    select.addEventListener("change", () => {
      state[control] = Number(select.value);
      if (control === "scenario") reset();
      else draw();
    });
  }

  function reset() {
    CONTROLS.forEach((control, index) => { state[control] = now().requested[index]; });
    if (!now().decodes) state.phase = "prefill";
    const focused = document.activeElement?.id;
    controls();
    phases();
    if (focused) get(focused)?.focus();
    draw();
  }

  function phases() {
    const box = emptied("phases");
    for (const phase of now().decodes ? ["prefill", "decode"] : ["prefill"]) {
      const button = add(box, "button", { type: "button", class: "plain", id: `phase-${phase}` }, phase);
      button.setAttribute("aria-pressed", phase === state.phase);
      button.addEventListener("click", () => {
        state.phase = phase;
        for (const other of box.children) other.setAttribute("aria-pressed", other === button);
        graph();
        table();
      });
    }
  }

  // --- figures as cards ----------------------------------------------------------------------------------------------

  function ends(name, shown) {
    const [low, mid, high] = ["low", "mid", "high"].map((reading) => figure(`${name}.${reading}`));
    const bound = figure(`${name}.bound`);
    if (mid === null) return { main: shown(bound), more: "at the bound", value: bound };
    return { main: shown(mid), more: `${shown(low)} to ${shown(high)}; bound ${shown(bound)}`, value: mid };
  }

  function card(box, key, title, { main, more = "", value = null, bad = false }) {
    const entry = add(box, "div", { "data-key": key });
    if (bad) entry.className = "bad";
    if (value !== null) entry.setAttribute("data-value", value);
    add(entry, "dt", {}, title);
    add(entry, "dd", { class: "main" }, main);
    if (more) add(entry, "dd", { class: "more" }, more);
  }

  function cards() {
    const box = emptied("cards");
    const fits = figure("fits") === 1;
    const room = figure("headroom");
    card(box, "fits", "Memory", {
      main: fits ? "fits" : "does not fit", bad: !fits, value: figure("memory"),
      more: `${si(figure("memory"), "B")} of ${si(figure("memory.usable"), "B")}: ` +
        `${si(Math.abs(room), "B")} ${fits ? "free" : "over"}`,
    });
    const decodes = now().decodes;
    card(box, "ttft", decodes ? "TTFT" : "Batch latency", ends("ttft", seconds));
    if (decodes && figure("tpot.bound") !== null) card(box, "tpot", "TPOT", ends("tpot", seconds));
    if (decodes) {
      card(box, "total", "Total time", ends("total", seconds));
      card(box, "tokens_per_s", "Tokens/s", ends("tokens_per_s", plain));
    } else card(box, "sequences_per_s", "Sequences/s", ends("sequences_per_s", plain));
    for (const phase of decodes ? ["prefill", "decode"] : ["prefill"]) {
      card(box, phase, `${phase[0].toUpperCase()}${phase.slice(1)} bound by`, {
        main: BOUNDS[figure(`${phase}.bound`)], value: figure(`${phase}.time.bound`),
        more: `${si(figure(`${phase}.flops`), "FLOP")}, ${si(figure(`${phase}.bytes`), "B")}`,
      });
    }
    if (figure("energy.bound") !== null) card(box, "energy", "Energy per token", ends("energy", (x) => si(x, "J")));
    if (figure("cost.bound") !== null) {
      card(box, "cost", "Cost per million tokens", ends("cost", (x) => `${plain(x)} USD`));
    }
    if (figure("gpus") > 1) card(box, "gpus", "Devices", { main: count(figure("gpus")), value: figure("gpus") });
    get("status").textContent =
      `${fits ? "fits" : "does not fit"}, TTFT ${ends("ttft", seconds).main}` +
      (decodes ? `, TPOT ${ends("tpot", seconds).main}, ${ends("tokens_per_s", plain).main} tokens/s` : "");
  }

  // --- drawings ------------------------------------------------------------------------------------------------------

  function rooflines() {
    const box = emptied("rooflines");
    // All boxes come first: their number determines their width.
    const shown = now().decodes ? ["prefill", "decode"] : ["prefill"];
    const boxes = shown.map(() => add(box, "div"));
    const { bandwidth, peaks } = setting().roofs;
    const roofs = { bandwidth, peaks: peaks.map(([name, peak]) => [text(name), peak]) };
    shown.forEach((phase, index) => Draw.roofline(boxes[index], {
      phase, roofs, ops: operators(phase), time: figure(`${phase}.time.bound`), open: (op) => openCard(op, phase),
    }));
  }

  function memory() {
    const read = {
      weights: "memory.weights", kv_cache: "memory.kv", state: "memory.state", activation_peak: "memory.activations",
      runtime: "memory.runtime", budget: "memory.usable", total: "memory",
    };
    Draw.memory(emptied("memory"), Object.fromEntries(
      Object.entries(read).map(([name, key]) => [`${name}_bytes`, figure(key)]),
    ));
  }

  function curves() {
    const box = emptied("curves");
    const decodes = now().decodes;
    const times = decodes ? [["ttft", "TTFT", "memory"], ["tpot", "TPOT", "compute"]] : [["ttft", "time", "memory"]];
    const rates = decodes ? [["tokens_per_s", "tokens/s", "link"]] : [["sequences_per_s", "sequences/s", "link"]];
    const axes = [["batch", "batch (sequences)"], ["prompt", "prompt (tokens)"]]
      .filter(([axis]) => now().values[CONTROLS.indexOf(axis)].length > 1);
    const boxes = axes.map(() => [add(box, "div"), add(box, "div")]);
    const rate = (value, digits = 3) => si(value, "", digits);
    axes.forEach(([axis, over], index) => {
      const common = { axis, over, here: valueOf(axis) };
      Draw.curve(boxes[index][0], { ...common, lines: lines(axis, times), shown: seconds, what: "Times" });
      Draw.curve(boxes[index][1], { ...common, lines: lines(axis, rates), shown: rate, what: rates[0][1] });
    });
  }

  function lines(axis, series) {
    const read = (name, index) => (axis === "batch" ? figure(name, index, undefined) : figure(name, undefined, index));
    return series.map(([name, label, look]) => ({
      label, look,
      points: now().values[CONTROLS.indexOf(axis)].map((value, index) => ({
        value, fits: read("fits", index) === 1, bound: read(`${name}.bound`, index),
        low: read(`${name}.low`, index), mid: read(`${name}.mid`, index), high: read(`${name}.high`, index),
      })),
    }));
  }

  const networkView = { scale: 1, left: 0, top: 0 };

  function graph() {
    const phase = setting().phases[state.phase];
    Network.draw(get("graph"), {
      sections: graphs[phase.graph], ops: operators(), left: phase.left_out, view: networkView,
      open: (op) => openCard(op, state.phase),
    });
  }

  function openCard(op, phase) {
    const key = `${op.section}/${op.name}`;
    const found = (now().steps[phase] ?? []).find(([name]) => text(name) === key);
    const steps = (found?.[1] ?? []).map(([name, formula, substituted, value, unit]) =>
      [text(name), text(formula), text(substituted), value, text(unit)]);
    Draw.card(get("card"), { op, phase, steps, about: "Step by step, for the requested scenario" });
  }

  function table() {
    const query = get("filter").value.trim().toLowerCase();
    const found = operators();
    const shown = Draw.table(get("table"), {
      phase: state.phase, ops: found, query, bound: get("bound").value, sorting, open: (op) => openCard(op, state.phase),
    });
    get("shown").textContent = `${shown} of ${found.length} operators of ${state.phase}`;
  }

  // --- everything ----------------------------------------------------------------------------------------------------

  const DRAWN = ["cards", "rooflines", "memory", "curves", "graph", "table"];

  function draw() {
    const { error, command } = setting();
    const problem = get("problem");
    problem.hidden = error === undefined;
    if (error !== undefined) {
      problem.textContent = `This cannot run: ${text(error)}.`;
      for (const name of [...DRAWN, "command"]) emptied(name);
      get("shown").textContent = "";
      return;
    }
    get("command").textContent = text(command)
      .replace("{batch}", valueOf("batch")).replace("{prompt}", valueOf("prompt"));
    cards();
    rooflines();
    memory();
    curves();
    graph();
    table();
  }

  document.documentElement.classList.add("running");
  get("controls").addEventListener("submit", (event) => event.preventDefault());
  get("filter").addEventListener("input", table);
  get("bound").addEventListener("change", table);
  get("card").addEventListener("click", (event) => { if (event.target === get("card")) get("card").close(); });
  reset();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width && setting().error === undefined) {
      width = window.innerWidth;
      rooflines();
      memory();
      curves();
      Network.wires(get("graph"));
    }
  });
})();
