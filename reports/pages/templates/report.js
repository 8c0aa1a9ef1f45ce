// Shows the figures that the simulator computed for every setting of the controls; computes nothing but the layout.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { numbers, texts, ops, graphs, scenarios } = data;
  const BOUNDS = ["compute", "memory", "link"];
  const CONTROLS = ["batch", "prompt", "quant", "flash", "tp"];
  const TITLES = {
    scenario: "Scenario", batch: "Batch (sequences)", prompt: "Prompt (tokens)", quant: "Quantisation",
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

  function operators(phase = state.phase) {
    return setting().phases[phase].ops.map(([place, share], index) => {
      const { n, t, ridge, tensors } = ops[place];
      const number = (name) => (n[name] === undefined ? null : at(n[name]));
      return {
        index, ridge, tensors, share: at(share), number,
        text: (name) => (t[name] === undefined ? "" : text(t[name])),
        bound: BOUNDS[number("bound")],
      };
    });
  }

  // --- numbers as text -----------------------------------------------------------------------------------------------

  function scaled(value, steps, unit, digits) {
    if (value === null) return "-";
    const rounded = Number(value.toPrecision(digits));
    if (rounded === 0) return `0 ${unit}`.trim();
    const [scale, prefix] = steps.find(([size]) => Math.abs(rounded) >= size) ?? steps[steps.length - 1];
    const number = rounded / scale;
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(number)) + 1e-9));
    return `${number.toFixed(decimals)} ${prefix}${unit}`.trim();
  }
  const STEPS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const si = (value, unit = "", digits = 3) => scaled(value, STEPS, unit, digits);
  const seconds = (value, digits = 3) => (value === 0 ? "0 s" : scaled(value, TIMES, "", digits));
  const grouped = (value) => Math.round(value).toLocaleString("en-US");
  const plain = (value) => (value === null ? "-" : value >= 100 ? grouped(value) : String(Number(value.toPrecision(3))));
  const percent = (value) => `${(100 * value).toFixed(1)}%`;
  const count = (value) => (Number.isInteger(value) ? grouped(value) : String(Number(value.toPrecision(5))));

  // --- elements ------------------------------------------------------------------------------------------------------

  function add(parent, name, attributes = {}, content = null) {
    const space = name === "svg" || parent.namespaceURI.endsWith("svg") ? "http://www.w3.org/2000/svg" : null;
    const element = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (content !== null) element.textContent = content;
    parent.append(element);
    return element;
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

  function canvas(parent, title, height) {
    const width = Math.max(260, Math.round(parent.clientWidth || 420));
    const svg = add(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, width: "100%" });
    add(svg, "title", {}, title);
    return { svg, width };
  }

  function logTicks(low, high, most) {
    const found = [];
    const decades = Math.log10(high / low);
    const steps = decades > most ? [1] : decades > 2.2 ? [1, 3] : decades > 0.7 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 8];
    const skip = Math.max(1, Math.ceil(decades / most));
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      if (steps.length === 1 && power % skip) continue;
      for (const step of steps) {
        const value = step * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found;
  }

  const logScale = (low, high, from, to) => (value) =>
    from + ((to - from) * Math.log(value / low)) / Math.log(high / low);

  function rooflines() {
    const box = emptied("rooflines");
    // All boxes come first: their number determines their width.
    const shown = now().decodes ? ["prefill", "decode"] : ["prefill"];
    const boxes = shown.map(() => add(box, "div"));
    shown.forEach((phase, index) => roofline(boxes[index], phase));
  }

  function roofline(parent, phase) {
    const { bandwidth, peaks } = setting().roofs;
    const all = operators(phase).filter((op) => op.number("flops") > 0 && op.number("intensity") > 0);
    const highest = Math.max(...peaks.map(([, peak]) => peak));
    const lowX = Math.min(0.1, ...all.map((op) => op.number("intensity") / 2));
    const highX = Math.max((40 * highest) / bandwidth, ...all.map((op) => op.number("intensity") * 2));
    const highY = highest * 4;
    const lowY = Math.min(lowX * bandwidth, ...all.map((op) => op.number("attainable") / 2));
    const title = `${phase}: ${all.length} operators on the roofline of the hardware`;
    const height = 330;
    const { svg, width } = canvas(parent, title, height);
    const [left, right, top, bottom] = [52, width - 8, 22, height - 36];
    const x = logScale(lowX, highX, left, right);
    const y = logScale(lowY, highY, bottom, top);
    add(svg, "text", { x: left, y: 14, class: "title" }, `${phase}: ${seconds(figure(`${phase}.time.bound`))} at the bound`);
    for (const value of logTicks(lowX, highX, 7)) {
      add(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: bottom });
      add(svg, "text", { x: x(value), y: bottom + 14, "text-anchor": "middle", class: "faint" }, si(value, "", 1));
    }
    for (const value of logTicks(lowY, highY, 7)) {
      add(svg, "line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) });
      add(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end", class: "faint" }, si(value, "", 1));
    }
    add(svg, "text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "faint" },
      "x: arithmetic intensity (FLOP/B); y: attainable FLOP/s");
    const taken = [];
    const clamp = Math.max(lowX, lowY / bandwidth);
    add(svg, "line", { class: "roof", x1: x(clamp), y1: y(clamp * bandwidth), x2: x(highest / bandwidth), y2: y(highest) });
    for (const [, peak] of peaks) {
      add(svg, "line", { class: "roof", x1: x(peak / bandwidth), y1: y(peak), x2: right, y2: y(peak) });
    }
    const marks = [...all].sort((a, b) => b.share - a.share);
    for (const op of marks) {
      const [cx, cy, r] = [x(op.number("intensity")), y(op.number("attainable")), 3 + 15 * Math.sqrt(op.share)];
      const mark = add(svg, "circle", { class: `mark fill-${op.bound}`, cx, cy, r });
      add(mark, "title", {}, `${op.text("name")}: ${percent(op.share)} of ${phase}, ${op.bound}-bound`);
      mark.addEventListener("click", () => openCard(op, phase));
      taken.push({ x: cx - r, y: cy - r, w: 2 * r, h: 2 * r });
    }
    for (const [name, peak] of peaks) {
      const label = `${shortened(text(name))} ${si(peak, "FLOP/s")}`;
      const w = 6.1 * label.length;
      const spots = [-16, 3, -30, 17, -44].map((dy) => ({ x: right - w, y: y(peak) + dy, w, h: 13 }));
      const spot = spots.find((one) => one.y > top - 4 && !taken.some((other) => overlaps(one, other))) ?? spots[0];
      add(svg, "text", { x: right - 2, y: spot.y + 11, "text-anchor": "end", class: "halo" }, label);
      taken.push(spot);
    }
    const spots = [];
    for (const op of marks) {
      const [cx, cy] = [x(op.number("intensity")), y(op.number("attainable"))];
      const near = spots.find((spot) => Math.hypot(spot.cx - cx, spot.cy - cy) < 9);
      if (near) near.names.push(op.text("name"));
      else if (op.share > 0.004) spots.push({ cx, cy, share: op.share, names: [op.text("name")] });
    }
    for (const spot of spots.slice(0, 9)) named(svg, spot, taken, [left, right, top, bottom]);
  }

  const overlaps = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
  const shortened = (name) => (name.length > 22 ? `${name.slice(0, 21)}…` : name);

  function named(svg, { cx, cy, share, names }, taken, [left, right, top, bottom]) {
    const different = [...new Set(names)];
    const label = shortened(different[0]) + (different.length > 1 ? ` +${different.length - 1}` : "");
    const w = 6.1 * label.length + 2;
    const r = 4 + 15 * Math.sqrt(share);
    const tried = [];
    for (const away of [r, r + 14, r + 28, r + 42]) {
      tried.push([away, -6], [-w / 2, away], [-away - w, -6], [-w / 2, -away - 12], [away * 0.7, away * 0.7],
        [-away * 0.7 - w, away * 0.7], [-away * 0.7 - w, -away * 0.7 - 12], [away * 0.7, -away * 0.7 - 12]);
    }
    for (const [dx, dy] of tried) {
      const spot = { x: cx + dx, y: cy + dy, w, h: 12 };
      const inside = spot.x >= left && spot.x + w <= right && spot.y >= top && spot.y + 12 <= bottom;
      if (!inside || taken.some((other) => overlaps(spot, other))) continue;
      add(svg, "text", { x: spot.x + 1, y: spot.y + 10, class: "halo" }, label);
      taken.push(spot);
      return;
    }
  }

  const PARTS = [
    ["memory.weights", "weights", "memory"], ["memory.kv", "KV cache", "compute"],
    ["memory.state", "recurrent state", "other"], ["memory.activations", "activations", "link"],
    ["memory.runtime", "runtime", "other"],
  ];

  function memory() {
    const box = emptied("memory");
    const parts = PARTS.map(([name, label, look]) => ({ label, look, size: figure(name) })).filter(({ size }) => size > 0);
    const usable = figure("memory.usable");
    const total = figure("memory");
    const legend = add(box, "p", { class: "legend" });
    for (const { label, look, size } of parts) add(legend, "span", { class: `key ${look}` }, `${label} ${si(size, "B")}`);
    const { svg, width } = canvas(box, `memory: ${parts.map(({ label, size }) => `${label} ${si(size, "B")}`).join(", ")}; ` +
      `usable ${si(usable, "B")}`, 62);
    const wide = (width - 4) / (1.02 * Math.max(usable, total));
    let start = 2;
    for (const { look, size, label } of parts) {
      const bar = add(svg, "rect", { class: `fill-${look}`, x: start, y: 4, width: Math.max(0.5, size * wide), height: 30 });
      add(bar, "title", {}, `${label} ${si(size, "B")}`);
      start += size * wide;
    }
    const edge = 2 + usable * wide;
    add(svg, "rect", { class: "frame", x: 2, y: 4, width: usable * wide, height: 30 });
    add(svg, "line", { class: "roof", x1: edge, x2: edge, y1: 0, y2: 40 });
    const anchor = edge > width / 2 ? "end" : "start";
    add(svg, "text", { x: edge, y: 54, "text-anchor": anchor }, `usable ${si(usable, "B")}`);
  }

  function curves() {
    const box = emptied("curves");
    const decodes = now().decodes;
    const times = decodes ? [["ttft", "TTFT", "memory"], ["tpot", "TPOT", "compute"]] : [["ttft", "time", "memory"]];
    const rates = decodes ? [["tokens_per_s", "tokens/s", "link"]] : [["sequences_per_s", "sequences/s", "link"]];
    const axes = [["batch", "batch (sequences)"], ["prompt", "prompt (tokens)"]]
      .filter(([axis]) => now().values[CONTROLS.indexOf(axis)].length > 1);
    const boxes = axes.map(() => [add(box, "div"), add(box, "div")]);
    axes.forEach(([axis, over], index) => {
      curve(boxes[index][0], axis, over, times, seconds, "Times");
      curve(boxes[index][1], axis, over, rates, (value, digits = 3) => si(value, "", digits), rates[0][1]);
    });
  }

  function curve(parent, axis, over, series, shown, what) {
    const xs = now().values[CONTROLS.indexOf(axis)];
    const read = (name, index) => (axis === "batch" ? figure(name, index, undefined) : figure(name, undefined, index));
    const lines = series.map(([name, label, look]) => ({
      label, look,
      points: xs.map((value, index) => ({
        value, index, fits: read("fits", index) === 1, bound: read(`${name}.bound`, index),
        low: read(`${name}.low`, index), mid: read(`${name}.mid`, index), high: read(`${name}.high`, index),
      })).filter(({ bound }) => bound !== null && bound > 0),
    })).filter(({ points }) => points.length);
    const all = lines.flatMap(({ points }) => points.flatMap((p) => [p.bound, p.low, p.high].filter((v) => v !== null)));
    if (!all.length) return;
    const height = 240;
    const title = `${what} over ${axis}: ${lines.map(({ label, points }) => `${label} ` + points.map((p) =>
      `${shown(p.mid ?? p.bound)} at ${grouped(p.value)}`).join(", ")).join("; ")}`;
    const { svg, width } = canvas(parent, title, height);
    const [left, right, top, bottom] = [56, width - 26, 24, height - 38];
    const lowY = Math.min(...all) / 1.3;
    const highY = Math.max(...all) * 1.3;
    const x = logScale(xs[0], xs[xs.length - 1], left + 6, right);
    const y = logScale(lowY, highY, bottom, top);
    add(svg, "text", { x: left, y: 14, class: "title" }, `${what} over ${axis}`);
    let edge = right;
    for (const { label, look } of [...lines].reverse()) {
      add(svg, "text", { x: edge, y: 14, "text-anchor": "end" }, label);
      edge -= 6.9 * label.length + 16;
      add(svg, "circle", { class: `fill-${look}`, cx: edge + 6, cy: 10, r: 4 });
      edge -= 10;
    }
    for (const value of logTicks(lowY, highY, 6)) {
      add(svg, "line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) });
      add(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end", class: "faint" }, shown(value, 1));
    }
    let last = -100;
    for (const value of xs) {
      if (x(value) - last < 34) continue;
      last = x(value);
      add(svg, "text", { x: last, y: bottom + 14, "text-anchor": "middle", class: "faint" }, grouped(value));
    }
    add(svg, "text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "faint" }, over);
    const here = x(xs[state[axis]]);
    add(svg, "line", { class: "here", x1: here, x2: here, y1: top, y2: bottom });
    for (const { look, points, label } of lines) {
      const path = (name) => points.map((p) => `${x(p.value)},${y(p[name])}`);
      if (points[0].mid !== null) {
        const band = [...path("low"), ...path("high").reverse()];
        add(svg, "polygon", { class: `band fill-${look}`, points: band.join(" ") });
        add(svg, "polyline", { class: `line-${look}`, points: path("mid").join(" "), "stroke-width": 1.8 });
      }
      add(svg, "polyline", { class: `line-${look}`, points: path("bound").join(" "), "stroke-dasharray": "2 3" });
      for (const p of points) {
        const mark = add(svg, "circle", {
          class: p.fits ? `fill-${look}` : `hollow line-${look}`, cx: x(p.value), cy: y(p.mid ?? p.bound),
          r: p.index === state[axis] ? 5 : 3,
        });
        add(mark, "title", {}, `${label} ${shown(p.mid ?? p.bound)} at ${axis} ${grouped(p.value)}` +
          (p.fits ? "" : ", does not fit"));
      }
    }
  }

  // --- the network ---------------------------------------------------------------------------------------------------

  function graph() {
    const box = emptied("graph");
    const phase = setting().phases[state.phase];
    const all = operators();
    for (const section of graphs[phase.graph]) {
      const wide = Math.max(...section.rows.map((row) => row.length)) > 1;
      const part = add(box, "div", { class: wide ? "part wide" : "part" });
      add(part, "h3", {}, section.count === 1 ? section.name : `${section.name} × ${section.count}`);
      const flow = add(part, "div", { class: "flow" });
      const nodes = new Map();
      const overlay = add(flow, "svg", { "aria-hidden": "true" });
      for (const row of section.rows) {
        const line = add(flow, "div", { class: "row" });
        for (const index of row) nodes.set(index, node(line, all[index]));
      }
      flow.links = { overlay, nodes, edges: section.edges, rows: section.rows };
    }
    if (phase.left_out) {
      add(box, "p", { class: "note" }, `${phase.left_out} operators that take less time are not shown.`);
    }
    wires();
  }

  function node(line, op) {
    const time = op.number("time.mid") ?? op.number("time.bound");
    const button = add(line, "button", { type: "button", class: `node ${op.bound}`, "data-op": op.index });
    add(button, "b", {}, op.text("name"));
    const lines = [shapeOf(op), si(op.number("bytes"), "B"), `${seconds(time)}, ${percent(op.share)}`].filter(Boolean);
    for (const line of lines) add(button, "span", {}, line);
    button.setAttribute("aria-label",
      `${op.text("name")}: ${op.text("kind")}, ${op.bound}-bound, ${lines.join(", ")}; show details`);
    button.addEventListener("click", () => openCard(op, state.phase));
    return button;
  }

  function shapeOf(op) {
    const weight = op.tensors.find((tensor) => text(tensor[1]) === "weight" && tensor[3].length > 1) ?? op.tensors.at(-1);
    return weight ? weight[3].map((side) => String(Math.round(at(side)))).join(" × ") : "";
  }

  function wires() {
    for (const flow of document.querySelectorAll(".flow")) {
      const { overlay, nodes, edges, rows } = flow.links;
      const origin = flow.getBoundingClientRect();
      const boxes = new Map([...nodes].map(([index, button]) => [index, button.getBoundingClientRect()]));
      const rowOf = new Map(rows.flatMap((row, place) => row.map((index) => [index, place])));
      overlay.replaceChildren();
      for (const [from, to] of edges) {
        const [a, b] = [boxes.get(from), boxes.get(to)];
        const between = rows.slice(rowOf.get(from) + 1, rowOf.get(to)).flat().map((index) => boxes.get(index));
        const [ax, bx] = [a.x + a.width / 2 - origin.x, b.x + b.width / 2 - origin.x];
        const [y1, y2] = [a.bottom - origin.y, b.y - origin.y];
        const free = between.every((box) => Math.max(ax, bx) < box.x - origin.x || Math.min(ax, bx) > box.right - origin.x);
        const bend = Math.min(24, Math.max(6, (y2 - y1) / 2));
        let d = `M${ax},${y1}C${ax},${y1 + bend} ${bx},${y2 - bend} ${bx},${y2}`;
        if (between.length && !free) {
          // Route around the operators in between, on the right.
          const side = Math.max(a.right, b.right, ...between.map((box) => box.right)) - origin.x + 22;
          const [ar, br] = [a.right - origin.x, b.right - origin.x];
          const [am, bm] = [a.y + a.height / 2 - origin.y, b.y + b.height / 2 - origin.y];
          const x = Math.min(side, origin.width + 5);
          d = `M${ar},${am}C${x},${am} ${x},${am} ${x},${am + 20}L${x},${bm - 20}C${x},${bm} ${x},${bm} ${br},${bm}`;
        }
        add(overlay, "path", { d });
      }
    }
  }

  // --- an operator's card --------------------------------------------------------------------------------------------

  function openCard(op, phase) {
    const dialog = emptied("card");
    const head = add(dialog, "div", { class: "head" });
    add(head, "h2", { id: "card-title" }, `${op.text("name")} (${op.text("section")}, ${phase})`);
    add(head, "button", { type: "button", class: "plain" }, "Close").addEventListener("click", () => dialog.close());
    const list = add(dialog, "dl");
    for (const [title, value] of facts(op, phase)) {
      const entry = add(list, "div");
      add(entry, "dt", {}, title);
      add(entry, "dd", {}, value);
    }
    if (op.text("source")) add(dialog, "p", { class: "note" }, `The expected time is ${op.text("basis")} (${op.text("source")}).`);
    add(dialog, "h3", {}, "Formula");
    const lines = add(add(dialog, "pre", { tabindex: 0 }), "code");
    lines.textContent =
      `FLOP = ${op.text("formula")} = ${si(op.number("flops"), "", 5)}\n` +
      `bytes = sum over tensors, each moved once = ${si(op.number("bytes"), "", 5)}\n` +
      `bound = max(FLOP / peak, bytes / bandwidth, bytes sent / link) = ${seconds(op.number("time.bound"), 5)}`;
    add(dialog, "h3", {}, "Tensors");
    const rows = op.tensors.map(([name, role, symbols, sides, format, bytes]) => [
      text(name), text(role), text(symbols), sides.map((side) => count(at(side))).join(" × "), text(format),
      si(at(bytes), "B", 4),
    ]);
    simpleTable(dialog, "Tensors", ["tensor", "role", "shape", "values", "format", "bytes"], rows, 5);
    const key = `${op.text("section")}/${op.text("name")}`;
    const found = (now().steps[phase] ?? []).find(([name]) => text(name) === key);
    if (found) {
      const details = add(dialog, "details", { open: "" });
      add(details, "summary", {}, "Step by step, for the requested scenario");
      simpleTable(details, "Steps", ["step", "formula", "with numbers", "value"], found[1].map(
        ([name, formula, substituted, value, unit]) =>
          [text(name), text(formula), text(substituted), text(unit) === "s" ? seconds(value, 5) : `${si(value, text(unit), 5)}`],
      ), 3);
    }
    dialog.showModal();
  }

  function facts(op, phase) {
    const number = op.number;
    const mid = number("time.mid");
    return [
      ["kind", op.text("kind")], ["instances per pass", count(number("count"))],
      ["FLOP", si(number("flops"), "FLOP")], ["bytes", si(number("bytes"), "B")],
      ...(number("link_bytes") ? [["sent to other devices", si(number("link_bytes"), "B")]] : []),
      ["arithmetic", op.text("arithmetic")],
      ["intensity", `${plain(number("intensity"))} FLOP/B` + (op.ridge ? ` (ridge ${plain(op.ridge)})` : "")],
      ["attainable", si(number("attainable"), "FLOP/s")], ["bound by", op.bound],
      ["at the bound", seconds(number("time.bound"))],
      ...(mid === null ? [] : [
        ["expected", `${seconds(mid)} (${seconds(number("time.low"))} to ${seconds(number("time.high"))})`],
        ["fitted range", number("inside") ? "inside" : "outside"],
      ]),
      [`share of ${phase}`, percent(op.share)],
    ];
  }

  function simpleTable(parent, label, header, rows, left) {
    const box = add(parent, "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label });
    const whole = add(box, "table");
    const head = add(add(whole, "thead"), "tr");
    header.forEach((name, index) => add(head, "th", { scope: "col", class: index < left ? "" : "figure" }, name));
    const body = add(whole, "tbody");
    for (const row of rows) {
      const line = add(body, "tr");
      row.forEach((cell, index) => add(line, "td", { class: index < left ? "text" : "figure" }, cell));
    }
  }

  // --- the table of operators ----------------------------------------------------------------------------------------

  const COLUMNS = [
    ["name", "operator", (op) => op.text("name")], ["section", "section", (op) => op.text("section")],
    ["kind", "kind", (op) => op.text("kind")], ["count", "count", (op) => op.number("count"), count],
    ["flops", "FLOP", (op) => op.number("flops"), (value) => si(value)],
    ["bytes", "bytes", (op) => op.number("bytes"), (value) => si(value)],
    ["intensity", "FLOP/B", (op) => op.number("intensity"), plain],
    ["attainable", "attainable", (op) => op.number("attainable"), (value) => si(value, "FLOP/s")],
    ["bound", "bound", (op) => op.bound], ["time.bound", "at bound", (op) => op.number("time.bound"), seconds],
    ["time.mid", "expected", (op) => op.number("time.mid"), seconds], ["share", "share", (op) => op.share, percent],
  ];

  function table() {
    const columns = COLUMNS.filter(([key]) => key !== "time.mid" || now().expected);
    const whole = emptied("table");
    add(whole, "caption", { class: "unseen" }, `Operators of ${state.phase}`);
    const head = add(add(whole, "thead"), "tr");
    for (const [key, title, , shown] of columns) {
      const cell = add(head, "th", { scope: "col", class: shown ? "figure" : "" });
      cell.setAttribute("aria-sort", sorting.key !== key ? "none" : sorting.down ? "descending" : "ascending");
      const button = add(cell, "button", { type: "button", "data-sort": key }, title);
      button.addEventListener("click", () => {
        sorting.down = sorting.key === key ? !sorting.down : Boolean(shown);
        sorting.key = key;
        table();
        get("table").querySelector(`[data-sort="${key}"]`).focus();
      });
    }
    const query = get("filter").value.trim().toLowerCase();
    const bound = get("bound").value;
    const all = operators();
    const found = all.filter((op) => (!bound || op.bound === bound) &&
      [op.text("name"), op.text("kind"), op.text("section")].some((entry) => entry.toLowerCase().includes(query)));
    const read = (COLUMNS.find(([key]) => key === sorting.key) ?? [])[2];
    if (read) {
      const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
      found.sort((a, b) => (sorting.down ? -1 : 1) * order(read(a), read(b)) || a.index - b.index);
    }
    const body = add(whole, "tbody");
    for (const op of found) {
      const line = add(body, "tr");
      for (const [key, , value, shown] of columns) {
        const cell = add(line, "td", { class: shown ? "figure" : key === "bound" ? op.bound : "" });
        if (key === "name") {
          add(cell, "button", { type: "button" }, value(op)).addEventListener("click", () => openCard(op, state.phase));
        } else {
          cell.textContent = shown ? shown(value(op)) : value(op);
          if (shown) cell.setAttribute("data-value", value(op));
        }
      }
    }
    get("shown").textContent = `${found.length} of ${all.length} operators of ${state.phase}`;
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
      wires();
    }
  });
})();
