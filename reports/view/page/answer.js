// The answer of the page: its heading, the figures of every set-up on common axes, and the notes.
"use strict";
const Answer = (() => {
  const { add, plain, seconds, si } = Draw;
  const get = (name) => document.getElementById(name);

  function emptied(name) {
    get(name).replaceChildren();
    return get(name);
  }

  // A sentence whose options are not broken at their hyphens; `as` it is, without a capital and a full stop.
  function sentence(element, text, as = false) {
    element.replaceChildren();
    const [first] = text.split(" ");
    const name = /^(tp|pp|ep|dp|sp)$/.test(first) ? first.toUpperCase() : /^[a-z][a-z,]*$/.test(first) ? `${first[0].toUpperCase()}${first.slice(1)}` : first;
    const whole = as ? text : text && `${name}${text.slice(first.length)}${/[.?]$/.test(text) ? "" : "."}`;
    for (const part of whole.split(/(?<![^\s'(])(--?[a-z][\w-]*)/)) {
      if (part.startsWith("-")) add(element, "span", { class: "option" }, part);
      else element.append(part);
    }
  }

  function heading(analysis) {
    const { devices, decode_devices: more } = analysis.parallelism;
    const title = `${analysis.model} on ${devices + more > 1 ? `${devices + more} × ` : ""}${analysis.hardware}`;
    get("title").textContent = title;
    if (!document.body.classList.contains("recorded")) document.title = `${title} · roofline`;
    const { scenario, generation } = analysis;
    const kv = scenario.kv ? `, KV cache ${scenario.kv}` : "";
    const basis = generation.basis ? `, ${BASES[generation.basis] ?? generation.basis}` : "";
    get("about").textContent =
      `${scenario.engine}${basis}; weights ${scenario.weights}, activations ${scenario.activations}${kv}`;
  }

  const BASES = {
    calibrated: "calibrated on this hardware", version: "calibrated with another version", family: "calibrated on its family",
    engine: "calibrated with another engine", pooled: "calibrated on other hardware", unmeasured: "this format was not measured",
    bound: "not calibrated",
  };

  const rate = (value) => (value >= 1000 ? si(value) : plain(value));
  const usd = (value) => `$${value >= 100 ? value.toFixed(0) : value.toPrecision(3)}`;

  // The ends of an interval; a unit that both have is written once.
  function interval({ low, high }, text) {
    const [from, to] = [text(low), text(high)];
    const [number, unit] = from.split(" ");
    return `${unit && to.endsWith(` ${unit}`) ? number : from} – ${to}`;
  }

  // The figures of an answer: [key, title, expected interval or null, bound, text].
  function figures({ generation, cost, energy }) {
    const encoder = generation.tokens_per_s === null;
    const name = encoder ? "sequences_per_s" : "tokens_per_s";
    const paid = encoder ? "usd_per_million_processed_tokens" : "usd_per_million_tokens";
    // Where a spec has no energy figures, that of all devices at TDP.
    const per = encoder ? "prefill_j_per_prompt_token" : "j_per_token";
    const tdp = energy[per] === null && energy[`tdp_${per}`] !== null;
    const spent = tdp ? `tdp_${per}` : per;
    return [
      ["ttft", encoder ? "Latency" : "TTFT", generation.expected_ttft_s, generation.ttft_s, seconds],
      ...(encoder ? [] : [["tpot", "TPOT", generation.expected_tpot_s, generation.tpot_s, seconds]]),
      ...(encoder ? [] : [["total", "Total", generation.expected_time_s, generation.total_s, seconds]]),
      [name, encoder ? "Sequences/s" : "Tokens/s", generation[`expected_${name}`], generation[name], rate],
      ["cost", encoder ? "$/M prompt tokens" : "$/M tokens", cost?.[`expected_${paid}`], cost?.[paid], usd],
      [tdp ? "energy_tdp" : "energy", `J/${encoder ? "prompt token" : "token"}${tdp ? " (TDP)" : ""}`, energy[`expected_${spent}`],
        energy[spent], (value) => (value < 0.1 ? si(1000 * value, "mJ") : si(value, "J"))],
    ];
  }

  // The verdict's first line, and what stands behind it; the best change comes later, and `apply(changes, name)` sets it.
  function verdict(found, apply, turn) {
    const box = emptied("verdict");
    if (found.unanswered !== undefined) {
      get("way").hidden = true;
      return void sentence(add(box, "p", { class: "none" }), found.unanswered);
    }
    const [head, ...lines] = found.lines;
    add(box, "p", { class: found.fits && head.startsWith("Yes") ? "yes" : "no" }, head);
    ways(found, apply);
    if (!found.fits) return;
    const list = add(box, "dl");
    for (const line of lines) {
      const [name, ...text] = line.split(": ");
      if (["Chosen", "Speed"].includes(name)) continue;
      const row = add(list, "div", { "data-line": name });
      add(row, "dt", {}, name);
      sentence(add(row, "dd", { class: name === "Run it" ? "code" : "" }), text.join(": "), true);
      if (name === "Run it") add(row, "button", { type: "button", class: "action" }, "Files and benchmark").addEventListener("click", () => turn({ tab: "run" }));
    }
    const row = add(list, "div", { "data-line": "Better" });
    row.parentNode.insertBefore(row, list.querySelector("[data-line=Cost]"));
    add(row, "dt", {}, "Better");
    add(row, "dd", { class: "waits" }, "…");
  }

  function better(found, apply) {
    const row = get("verdict").querySelector("[data-line=Better]");
    const text = row.querySelector("dd");
    text.className = "";
    sentence(text, found.set ? found.text : "no change of formats, speculation or layout that was tried", true);
    if (!found.set) return;
    add(row, "button", { type: "button", class: "plain" }, "Apply").addEventListener("click", () => apply(found.set, found.text.split(",")[0]));
  }

  // The changes that make a set-up fit, each a button.
  function ways(found, apply) {
    const box = emptied("way");
    box.hidden = !found.ways.length;
    if (box.hidden) return;
    add(box, "span", {}, "It fits with");
    for (const { text, tokens_per_s: speed, set } of found.ways) {
      const button = add(box, "button", { type: "button", class: "plain" }, text);
      add(button, "small", {}, `${rate(speed)} tokens/s`);
      button.addEventListener("click", () => apply(set, text));
    }
  }

  // The figures under the load that was asked for, of all set-ups whose verdicts are given; the one at `active` is marked.
  function load(verdicts, active) {
    const who = verdicts.map((found) => (found?.sessions ? `${found.sessions}, their turns` : found?.users ? `${plain(found.users)} users, each with a request in flight`
      : found?.rate ? `${plain(found.rate)} requests/s arrive` : ""));
    const box = emptied("load");
    get("load").hidden = get("batched").hidden = !who.some(Boolean);
    if (get("load").hidden) return;
    const several = verdicts.length > 1;
    box.classList.toggle("several", several);
    const grows = !several && verdicts[0].stable === false;
    const why = grows ? `: ${verdicts[0].lines.find((line) => line.startsWith("Speed: ")).slice("Speed: ".length)}` : "";
    add(box, "p", { class: "caption" }, several ? "Under load" : who[0] + why);
    if (grows) return;
    const most = (read) => Math.max(...verdicts.map((found) => read(served(found)) ?? 0));
    const scales = { ttft: most(({ ttft_s: ttft }) => ttft?.p95?.high ?? ttft?.p50?.high), tpot: most(({ tpot_s: tpot }) => tpot?.p50?.high),
      user: most((found) => found.decode_tokens_per_s_per_user?.high) };
    verdicts.forEach((found, index) => {
      const row = add(box, "dl", several && index === active ? { class: "active" } : {});
      if (several) named(row, index, who[index] || "one user");
      const { ttft_s: ttft, tpot_s: tpot, decode_tokens_per_s_per_user: user, ...rates } = served(found);
      for (const [key, title, expected, scale] of [
        ["ttft", "TTFT, median", ttft?.p50, scales.ttft], ["ttft95", "TTFT, p95", ttft?.p95, scales.ttft],
        ["tpot", "TPOT, median", tpot?.p50, scales.tpot],
      ]) cell(row, { key, title, expected, text: seconds, most: scale });
      cell(row, { key: "user", title: "Tokens/s a user", expected: user, text: rate, most: scales.user });
      cell(row, { key: "all", title: "Tokens/s of all", bound: rates.output_tokens_per_s, text: rate });
      cell(row, { key: "cost", title: "$/M tokens", bound: rates.usd_per_million_tokens, text: usd });
    });
  }

  // A verdict with figures: of a steady state, or of one user, whose requests have no percentiles.
  function served(found) {
    if (found?.stable) return found;
    const alone = found?.fits && found.users === null && found.rate === null;
    return alone ? { ...found, ttft_s: { p50: found.ttft_s }, tpot_s: { p50: found.tpot_s } } : {};
  }

  function named(row, index, text) {
    const name = add(row, "div", { class: "label" });
    add(name, "dt", {}, "ABCDEFGH"[index]);
    add(name, "dd", {}, text);
  }

  // The rows of the analyses, the one at `active` marked; `label(index)` names a set-up.
  function rows(analyses, active, label) {
    const box = emptied("answer");
    const found = analyses.map((analysis) => (analysis ? figures(analysis) : []));
    const several = analyses.length > 1;
    box.classList.toggle("several", several);
    const most = {};
    for (const [key, , expected, bound] of found.flat()) {
      most[key] = Math.max(most[key] ?? 0, expected?.high ?? 0, bound ?? 0);
    }
    analyses.forEach((analysis, index) => {
      const row = add(box, "dl", several && index === active ? { class: "active" } : {});
      if (several) named(row, index, analysis ? label(index) : "cannot run");
      if (!analysis) return;
      fitsCell(row, analysis.memory);
      for (const [key, title, expected, bound, text] of found[index]) {
        const base = index ? found[0].find(([other]) => other === key) : null;
        cell(row, { key, title, expected, bound, text, most: most[key], analysed: true, base: base && (base[2]?.mid ?? base[3]) });
      }
    });
    const [first] = analyses;
    if (first) get("status").textContent = `${get("title").textContent}: ` + figures(analyses[active] ?? first)
      .map(([, title, expected, bound, text]) => `${title} ${(expected?.mid ?? bound) ? text(expected?.mid ?? bound) : "none"}`).join(", ");
  }

  function fitsCell(row, memory) {
    const box = add(row, "div", { "data-key": "fits", "data-value": memory.total_bytes, class: memory.fits ? "" : "bad" });
    add(box, "dt", {}, "Memory");
    add(box, "dd", { class: "main" }, memory.fits ? "fits" : "too large");
    const text = interval({ low: memory.total_bytes, high: memory.budget_bytes }, (value) => si(value, "B")).replace(" – ", " of ");
    bar(box, { from: 0, to: memory.total_bytes, most: Math.max(memory.budget_bytes, memory.total_bytes), mark: memory.budget_bytes });
    add(box, "dd", { class: "more" }, text);
    add(box, "dd", { class: "more" }, `${si(Math.abs(memory.headroom_bytes), "B")} ${memory.fits ? "free" : "over"}`);
  }

  // Why a figure is missing.
  const MISSING = { cost: "no price given", energy: "no power known" };

  // A figure of an analysis, with its bound, or one under load (`analysed` false).
  function cell(row, { key, title, expected, bound, text, most, base, analysed = false }) {
    const value = expected?.mid ?? bound;
    const missing = value === null || value === undefined;
    const box = add(row, "div", { "data-key": key, ...(missing ? {} : { "data-value": value }) });
    add(box, "dt", {}, title);
    add(box, "dd", { class: "main" }, missing ? "–" : text(value));
    if (!missing && base) add(box, "dd", { class: "against" }, `${(value / base).toFixed(2)}× A`);
    if (missing) {
      bar(box, {});
      add(box, "dd", { class: "more" }, analysed || key === "cost" ? MISSING[key] ?? "unknown" : "\u00a0");
      if (analysed) add(box, "dd", { class: "more" }, "\u00a0");
      return;
    }
    bar(box, expected ? { from: expected.low, to: expected.high, at: expected.mid, mark: bound, most } : analysed ? { mark: bound, most } : {});
    add(box, "dd", { class: "more" }, expected ? interval(expected, text) : analysed ? "at the bound" : "\u00a0");
    if (analysed) add(box, "dd", { class: "more" }, expected ? `bound ${text(bound)}` : "\u00a0");
  }

  // The interval from zero on, with the expected value as a dot and the bound as a line.
  function bar(parent, { from, to, at, mark, most = 0 }) {
    const svg = add(parent, "svg", { class: "bar", viewBox: "0 0 120 12", preserveAspectRatio: "none", "aria-hidden": "true" });
    add(svg, "rect", { class: "track", x: 0, y: 5, width: 120, height: 2 });
    if (!most) return;
    const x = (value) => 2 + (116 * value) / (1.04 * most);
    if (to !== undefined) add(svg, "rect", { class: "range", x: x(from), y: 3, width: Math.max(1, x(to) - x(from)), height: 6 });
    if (mark) add(svg, "rect", { class: "mark-bound", x: x(mark) - 0.75, y: 0, width: 1.5, height: 12 });
    if (at) add(svg, "rect", { class: "mid", x: x(at) - 1.25, y: 1, width: 2.5, height: 10 });
  }

  function notes({ notes: found, unsupported }, taken) {
    const list = emptied("note-list");
    for (const text of taken) sentence(add(list, "li"), text);
    for (const text of unsupported) sentence(add(list, "li"), `The engine does not run ${text}: times are as if it did`);
    for (const text of found) sentence(add(list, "li"), text);
    get("notes").hidden = !list.children.length;
  }

  return { BASES, better, emptied, heading, load, notes, rows, sentence, verdict };
})();
