// Draws the documents of analyses as SVG and tables; computes nothing but the layout. Reports and the live page share it.
"use strict";
const Draw = (() => {
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

  // --- charts --------------------------------------------------------------------------------------------------------

  function canvas(parent, title, height) {
    // On pages with large text the drawing grows with it.
    const zoom = Math.max(1, parseFloat(getComputedStyle(document.documentElement).fontSize) / 16);
    const width = Math.max(260, Math.round((parent.clientWidth || 420) / zoom));
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

  // Round values from zero to `high`, about five of them.
  function evenTicks(high) {
    const unit = 10 ** Math.floor(Math.log10(high / 4));
    const step = [1, 2, 5, 10].find((one) => one * unit * 6 >= high) * unit;
    return Array.from({ length: Math.floor(high / step) + 1 }, (_, index) => index * step);
  }

  const logScale = (low, high, from, to) => (value) =>
    (high > low ? from + ((to - from) * Math.log(value / low)) / Math.log(high / low) : (from + to) / 2);

  // The operators of a phase on the roofs of the hardware: { phase, ops, roofs, time, open }. With `achieved` the rates at
  // expected times stand below the attainable ones.
  function roofline(parent, { phase, ops, roofs, time, height = 330, achieved = false, open }) {
    const { bandwidth, peaks } = roofs;
    const all = ops.filter((op) => op.flops > 0 && op.intensity > 0);
    const highest = Math.max(...peaks.map(([, peak]) => peak));
    const lowX = Math.min(0.1, ...all.map((op) => op.intensity / 2));
    const highX = Math.max((40 * highest) / bandwidth, ...all.map((op) => op.intensity * 2));
    const highY = highest * 4;
    const reached = (op) => (achieved ? op.flops / op.expected_time_s.mid : op.attainable_flops_per_s);
    const lowY = Math.min(lowX * bandwidth, ...all.map((op) => reached(op) / 2));
    const title = `${phase}: ${all.length} operators on the roofline of the hardware`;
    const { svg, width } = canvas(parent, title, height);
    const [left, right, top, bottom] = [52, width - 8, 22, height - 36];
    const x = logScale(lowX, highX, left, right);
    const y = logScale(lowY, highY, bottom, top);
    add(svg, "text", { x: left, y: 14, class: "title" }, `${phase}: ${seconds(time)} at the bound`);
    for (const value of logTicks(lowX, highX, 7)) {
      add(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: bottom });
      add(svg, "text", { x: x(value), y: bottom + 14, "text-anchor": "middle", class: "faint" }, si(value, "", 1));
    }
    for (const value of logTicks(lowY, highY, 7)) {
      add(svg, "line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) });
      add(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end", class: "faint" }, si(value, "", 1));
    }
    add(svg, "text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "faint" },
      `x: arithmetic intensity (FLOP/B); y: ${achieved ? "achieved and attainable" : "attainable"} FLOP/s`);
    const clamp = Math.max(lowX, lowY / bandwidth);
    // Labels keep clear of the roofs: the slope in pieces, then the peaks.
    const [from, to] = [{ x: x(clamp), y: y(clamp * bandwidth) }, { x: x(highest / bandwidth), y: y(highest) }];
    const taken = Array.from({ length: 40 }, (_, piece) => ({
      x: from.x + ((to.x - from.x) * piece) / 40, y: from.y + ((to.y - from.y) * (piece + 1)) / 40,
      w: (to.x - from.x) / 40, h: (from.y - to.y) / 40,
    }));
    for (const [, peak] of peaks) taken.push({ x: x(peak / bandwidth), y: y(peak) - 1, w: right - x(peak / bandwidth), h: 2 });
    add(svg, "line", { class: "roof", x1: x(clamp), y1: y(clamp * bandwidth), x2: x(highest / bandwidth), y2: y(highest) });
    for (const [, peak] of peaks) {
      add(svg, "line", { class: "roof", x1: x(peak / bandwidth), y1: y(peak), x2: right, y2: y(peak) });
    }
    const marks = [...all].sort((a, b) => b.share - a.share);
    for (const op of marks) {
      const [cx, cy, r] = [x(op.intensity), y(reached(op)), 3 + 15 * Math.sqrt(op.share)];
      if (achieved) {
        const top = y(op.attainable_flops_per_s);
        add(svg, "line", { class: "lead", x1: cx, y1: top, x2: cx, y2: cy });
        add(svg, "circle", { class: `hollow line-${op.bound}`, cx, cy: top, r: 3 });
      }
      const mark = add(svg, "circle", { class: `mark fill-${op.bound}`, cx, cy, r });
      const part = achieved ? `, ${percent(reached(op) / op.attainable_flops_per_s)} of what is attainable` : "";
      add(mark, "title", {}, `${op.name}: ${percent(op.share)} of ${phase}, ${op.bound}-bound${part}`);
      mark.addEventListener("click", () => open(op));
      taken.push({ x: cx - r, y: cy - r, w: 2 * r, h: 2 * r });
    }
    for (const [name, peak] of peaks) {
      const label = `${shortened(name)} ${si(peak, "FLOP/s")}`;
      const w = 6.1 * label.length;
      const spots = [-16, 3, -30, 17, -44].map((dy) => ({ x: right - w, y: y(peak) + dy, w, h: 13 }));
      const spot = spots.find((one) => one.y > top - 4 && !taken.some((other) => overlaps(one, other))) ?? spots[0];
      add(svg, "text", { x: right - 2, y: spot.y + 11, "text-anchor": "end", class: "halo" }, label);
      taken.push(spot);
    }
    const spots = [];
    for (const op of marks) {
      const [cx, cy] = [x(op.intensity), y(reached(op))];
      const near = spots.find((spot) => Math.hypot(spot.cx - cx, spot.cy - cy) < 9);
      if (near) near.names.push(op.name);
      else if (op.share > 0.004) spots.push({ cx, cy, share: op.share, names: [op.name] });
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
      tried.push([away, -6], [-w / 2, away], [-away - w, -6], [-w / 2, -away - 12], [-r, away], [r - w, away], [-r, -away - 12],
        [r - w, -away - 12], [away, away], [-away - w, away], [-away - w, -away - 12], [away, -away - 12]);
    }
    for (const [place, [dx, dy]] of tried.entries()) {
      const spot = { x: cx + dx, y: cy + dy, w, h: 12 };
      const inside = spot.x >= left && spot.x + w <= right && spot.y >= top && spot.y + 12 <= bottom;
      if (!inside || taken.some((other) => overlaps(spot, other))) continue;
      if (place >= 12) { // not beside its mark
        const end = { x: Math.min(Math.max(cx, spot.x), spot.x + w), y: dy < 0 ? spot.y + 12 : spot.y };
        add(svg, "line", { class: "lead", x1: cx, y1: cy, x2: end.x, y2: end.y });
      }
      add(svg, "text", { x: spot.x + 1, y: spot.y + 10, class: "halo" }, label);
      taken.push(spot);
      return;
    }
  }

  const PARTS = [
    ["weights", "weights", "memory"], ["kv_cache", "KV cache", "compute"], ["state", "recurrent state", "other"],
    ["activation_peak", "activations", "link"], ["runtime", "runtime", "other"],
  ];

  // The `memory` of an analysis: parts and budget of the fullest device.
  function memory(box, sizes) {
    const parts = PARTS.map(([name, label, look]) => ({ label, look, size: sizes[`${name}_bytes`] }))
      .filter(({ size }) => size > 0);
    const [usable, total] = [sizes.budget_bytes, sizes.total_bytes];
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

  // Lines over an axis, both logarithmic: { axis, over, lines: [{ label, look, points }], here, shown, what }. A point has
  // a value on the axis, whether it fits, and low, mid, high and bound; each of these may be missing.
  // With `linear` values are from zero on.
  function curve(parent, { axis, over, lines: given, here = null, shown, what, height = 240, linear = false }) {
    const lines = given.map((line) => ({ ...line, points: line.points.filter((p) => linear || (p.mid ?? p.bound) > 0) }))
      .filter(({ points }) => points.length);
    const xs = [...new Set(lines.flatMap(({ points }) => points.map(({ value }) => value)))].sort((a, b) => a - b);
    const all = lines.flatMap(({ points }) => points.flatMap((p) => [p.bound, p.low, p.mid, p.high].filter((v) => v > 0)));
    if (!all.length) return;
    const title = `${what} over ${axis}: ${lines.map(({ label, points }) => `${label} ` + points.map((p) =>
      `${shown(p.mid ?? p.bound)} at ${plain(p.value)}`).join(", ")).join("; ")}`;
    const { svg, width } = canvas(parent, title, height);
    const [left, right, top, bottom] = [56, width - 26, 24, height - 38];
    const lowY = Math.min(...all) / 1.3;
    const highY = Math.max(...all) * (linear ? 1.08 : 1.3);
    const x = logScale(xs[0], xs[xs.length - 1], left + 6, right);
    const y = linear ? (value) => bottom + ((top - bottom) * value) / highY : logScale(lowY, highY, bottom, top);
    let edge = right;
    for (const { label, look } of lines.filter((line) => line.label).reverse()) {
      add(svg, "text", { x: edge, y: 14, "text-anchor": "end" }, label);
      edge -= 6.9 * label.length + 16;
      add(svg, "circle", { class: `fill-${look}`, cx: edge + 6, cy: 10, r: 4 });
      edge -= 10;
    }
    const whole = `${what} over ${axis}`;
    add(svg, "text", { x: left, y: 14, class: "title" }, 7 * whole.length < edge - left ? whole : what);
    for (const value of linear ? evenTicks(highY) : logTicks(lowY, highY, 6)) {
      add(svg, "line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) });
      add(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end", class: "faint" }, shown(value, linear ? 2 : 1));
    }
    let last = -100;
    for (const value of xs.every(Number.isInteger) ? xs : logTicks(xs[0], xs[xs.length - 1], 5)) {
      const half = 3.1 * plain(value).length + 3;
      if (x(value) - half < last) continue;
      last = x(value) + half;
      add(svg, "text", { x: x(value), y: bottom + 14, "text-anchor": "middle", class: "faint" }, plain(value));
    }
    add(svg, "text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "faint" }, over);
    if (here !== null) add(svg, "line", { class: "here", x1: x(here), x2: x(here), y1: top, y2: bottom });
    for (const { look, points, label } of lines) {
      const path = (name) => points.map((p) => `${x(p.value)},${y(p[name])}`);
      if (points.every((p) => p.mid > 0 || linear)) {
        if (points.every((p) => p.low > 0 && p.high > 0)) {
          const band = [...path("low"), ...path("high").reverse()];
          add(svg, "polygon", { class: `band fill-${look}`, points: band.join(" ") });
        }
        add(svg, "polyline", { class: `line-${look}`, points: path("mid").join(" "), "stroke-width": 1.8 });
      }
      if (points.every((p) => p.bound > 0)) {
        add(svg, "polyline", { class: `line-${look}`, points: path("bound").join(" "), "stroke-dasharray": "2 3" });
      }
      for (const p of points) {
        const mark = add(svg, "circle", {
          class: p.fits ? `fill-${look}` : `hollow line-${look}`, cx: x(p.value), cy: y(p.mid ?? p.bound),
          r: p.value === here ? 5 : 3,
        });
        add(mark, "title", {}, `${label} ${shown(p.mid ?? p.bound)} at ${axis} ${plain(p.value)}` +
          (p.fits ? "" : ", does not fit"));
      }
    }
  }

  // --- an operator's card --------------------------------------------------------------------------------------------

  // The card of an operator: figures, formula, tensors, and the steps [name, formula, with numbers, value, unit].
  function card(dialog, { op, phase, steps = [], about = "Step by step", more = () => {} }) {
    dialog.replaceChildren();
    const head = add(dialog, "div", { class: "head" });
    add(head, "h2", { id: "card-title" }, `${op.name} (${op.section}, ${phase})`);
    add(head, "button", { type: "button", class: "plain" }, "Close").addEventListener("click", () => dialog.close());
    const list = add(dialog, "dl");
    for (const [title, value] of facts(op, phase)) {
      const entry = add(list, "div");
      add(entry, "dt", {}, title);
      add(entry, "dd", {}, value);
    }
    if (op.source) add(dialog, "p", { class: "note" }, `The expected time is ${op.basis} (${op.source}).`);
    add(dialog, "h3", {}, "Formula");
    const lines = add(add(dialog, "pre", { tabindex: 0 }), "code");
    lines.textContent =
      `FLOP = ${op.formula ? `${op.formula} = ` : ""}${si(op.flops, "", 5)}\n` +
      `bytes = sum over tensors, each moved once = ${si(op.bytes, "", 5)}\n` +
      `bound = max(FLOP / peak, bytes / bandwidth, bytes sent / link) = ${seconds(op.bound_time_s, 5)}`;
    add(dialog, "h3", {}, "Tensors");
    const symbolic = op.tensors.some(({ symbols }) => symbols);
    const header = ["tensor", "role", ...(symbolic ? ["shape", "values"] : ["shape"]), "format", "bytes"];
    const rows = op.tensors.map(({ name, role, symbols, shape, format, bytes }) => [
      name, role, ...(symbolic ? [symbols] : []), shape.map(count).join(" × "), format, si(bytes, "B", 4),
    ]);
    simpleTable(dialog, "Tensors", header, rows, header.length - 1);
    if (steps.length) {
      const details = add(dialog, "details", { open: "" });
      add(details, "summary", {}, about);
      simpleTable(details, "Steps", ["step", "formula", "with numbers", "value"], steps.map(
        ([name, formula, substituted, value, unit]) =>
          [name, formula, substituted, unit === "s" ? seconds(value, 5) : si(value, unit, 5)],
      ), 3);
    }
    more(dialog);
    if (!dialog.open) dialog.showModal();
  }

  function facts(op, phase) {
    const expected = op.expected_time_s;
    return [
      ["kind", op.kind], ["instances per pass", count(op.count)],
      ["FLOP", si(op.flops, "FLOP")], ["bytes", si(op.bytes, "B")],
      ...(op.link_bytes ? [["sent to other devices", si(op.link_bytes, "B")]] : []),
      ["arithmetic", op.arithmetic ?? "vector"],
      ["intensity", `${plain(op.intensity)} FLOP/B` + (op.ridge ? ` (ridge ${plain(op.ridge)})` : "")],
      ["attainable", si(op.attainable_flops_per_s, "FLOP/s")], ["bound by", op.bound],
      ["at the bound", seconds(op.bound_time_s)],
      ...(expected ? [
        ["expected", `${seconds(expected.mid)} (${seconds(expected.low)} to ${seconds(expected.high)})`],
        ["fitted range", op.in_fitted_range ? "inside" : "outside"],
      ] : []),
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
    ["name", "operator", (op) => op.name], ["section", "section", (op) => op.section],
    ["kind", "kind", (op) => op.kind], ["count", "count", (op) => op.count, count],
    ["flops", "FLOP", (op) => op.flops, (value) => si(value)],
    ["bytes", "bytes", (op) => op.bytes, (value) => si(value)],
    ["intensity", "FLOP/B", (op) => op.intensity, plain],
    ["attainable", "attainable", (op) => op.attainable_flops_per_s, (value) => si(value, "FLOP/s")],
    ["bound", "bound", (op) => op.bound], ["time.bound", "at bound", (op) => op.bound_time_s, seconds],
    ["time.mid", "expected", (op) => op.expected_time_s.mid, seconds], ["share", "share", (op) => op.share, percent],
  ];

  // The operators of a phase that match `query` and `bound`, in the order of `sorting`; returns how many.
  function table(whole, { phase, ops, query = "", bound = "", sorting, open }) {
    const again = () => table(whole, { phase, ops, query, bound, sorting, open });
    const columns = COLUMNS.filter(([key]) => key !== "time.mid" || ops.every((op) => op.expected_time_s));
    whole.replaceChildren();
    add(whole, "caption", { class: "unseen" }, `Operators of ${phase}`);
    const head = add(add(whole, "thead"), "tr");
    for (const [key, title, , shown] of columns) {
      const cell = add(head, "th", { scope: "col", class: shown ? "figure" : "" });
      cell.setAttribute("aria-sort", sorting.key !== key ? "none" : sorting.down ? "descending" : "ascending");
      const button = add(cell, "button", { type: "button", "data-sort": key }, title);
      button.addEventListener("click", () => {
        sorting.down = sorting.key === key ? !sorting.down : Boolean(shown);
        sorting.key = key;
        again();
        whole.querySelector(`[data-sort="${key}"]`).focus();
      });
    }
    const found = ops.filter((op) => (!bound || op.bound === bound) &&
      [op.name, op.kind, op.section].some((entry) => entry.toLowerCase().includes(query)));
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
          add(cell, "button", { type: "button" }, value(op)).addEventListener("click", () => open(op));
        } else {
          cell.textContent = shown ? shown(value(op)) : value(op);
          if (shown) cell.setAttribute("data-value", value(op));
        }
      }
    }
    return found.length;
  }

  return {
    add, canvas, card, count, curve, grouped, memory, percent, plain, roofline, seconds, si, simpleTable, table,
  };
})();
