// The views of the page: each draws documents of the server into a box.
"use strict";
const Panels = (() => {
  const { add, plain, seconds, si } = Draw;
  const { chart, savePicture, saves } = Charts;
  const LETTERS = "ABCDEFGH";
  const LOOKS = ["memory", "compute", "link", "other"];
  const HEIGHT = 300;
  const rate = (value, digits = 3) => si(value, "", digits);
  const times = (gain) => `${gain.mid.toFixed(2)}×`;

  // --- overview ------------------------------------------------------------------------------------------------------

  async function overview(box, page) {
    const { analysis, roofs } = page.answer;
    const head = add(box, "div", { class: "segments rates", role: "group", "aria-label": "Rates of the rooflines" });
    for (const [rates, title] of [["attainable", "Attainable"], ["achieved", "Achieved beside attainable"]]) {
      add(head, "button", { type: "button", class: "plain", "aria-pressed": rates === page.rates }, title)
        .addEventListener("click", () => page.turn({ rates }));
    }
    const grid = add(box, "div", { class: "charts" });
    const phases = Object.keys(analysis.phases);
    const timed = phases.every((phase) => analysis.phases[phase].ops.every((op) => op.expected_time_s));
    const achieved = timed && page.rates === "achieved";
    const drawn = phases.map((phase) => chart(grid, `${phase}-roofline`, page, () => page.answer, (inner) => Draw.roofline(inner, {
      phase, roofs, ops: page.operators(phase), time: analysis.phases[phase].bound_time_s, height: HEIGHT, achieved,
      open: (op) => page.openCard(op, phase),
    })));
    const lines = ["batch", "prompt"].flatMap((axis) => ["times", "rate"].map((what) => [axis, what]));
    let curves = null;
    const swept = async (axis) => (await page.ask("curves"))[axis];
    const later = lines.map(([axis, what]) => chart(grid, `${what}-over-${axis}`, page, () => swept(axis), (inner) => {
      if (curves) curve(inner, axis, what, curves[axis]);
      else inner.classList.add("waiting");
    }));
    [...drawn, ...later].forEach((one) => one.draw());
    const legend = add(box, "p", { class: "legend" });
    for (const bound of ["compute", "memory"]) add(legend, "span", { class: `key ${bound}` }, `${bound}-bound operators`);
    legend.append(achieved ? "Filled: the rate that is expected, below its ring, which is attainable. " : "", "Area of a circle: share of the phase's bound time. Curves: expected, with the 80% interval; dotted at the bound; " +
      "hollow where memory is exceeded.");
    curves = await page.ask("curves");
    for (const one of later) {
      one.box.classList.remove("waiting");
      one.draw();
    }
  }

  function curve(box, axis, what, { values, fits, figures, here }) {
    const over = axis === "batch" ? "batch (sequences)" : "prompt (tokens)";
    const rates = Object.keys(figures).filter((name) => name.endsWith("_per_s"));
    const series = what === "rate" ? [[rates[0], "", "link"]] : figures.tpot
      ? [["ttft", "TTFT", "memory"], ["tpot", "TPOT", "compute"]] : [["ttft", "time", "memory"]];
    const lines = series.map(([name, label, look]) => ({
      label, look,
      points: values.map((value, index) => ({
        value, fits: fits[index],
        ...Object.fromEntries(Object.entries(figures[name]).map(([reading, list]) => [reading, list[index]])),
      })),
    }));
    const title = what === "rate" ? (rates[0] === "tokens_per_s" ? "Tokens/s" : "Sequences/s") : "Latency";
    Draw.curve(box, { axis, over, lines, here, shown: what === "rate" ? rate : seconds, what: title, height: HEIGHT });
  }

  // --- network and operators -----------------------------------------------------------------------------------------

  function phaseButtons(parent, page) {
    const group = add(parent, "div", { class: "segments", role: "group", "aria-label": "Phase" });
    for (const phase of Object.keys(page.answer.analysis.phases)) {
      const button = add(group, "button", { type: "button", class: "plain", "aria-pressed": phase === page.phase }, phase);
      button.addEventListener("click", () => page.turn({ phase }));
    }
    return group;
  }

  const networkView = { scale: 1, left: 0, top: 0 };

  function network(box, page) {
    const head = add(box, "div", { class: "head" });
    phaseButtons(head, page);
    const legend = add(head, "p", { class: "legend" });
    for (const bound of ["compute", "memory", "link"]) add(legend, "span", { class: `key ${bound}` }, `${bound}-bound`);
    const { places, sections } = page.answer.graphs[page.phase];
    const ops = page.operators(page.phase);
    const graph = add(box, "div");
    Network.draw(graph, {
      sections, ops: places.map((place) => ops[place]), left: ops.length - places.length, view: networkView,
      open: (op) => page.openCard(op, page.phase),
    });
    const name = `${page.phase}-network`;
    saves(box, name, (kind) => {
      const svg = Network.picture(graph, name);
      savePicture(svg, name, kind);
      svg.remove();
    });
  }

  const sorting = { key: null, down: true };
  const filter = { query: "", bound: "" };

  function operators(box, page) {
    const head = add(box, "div", { class: "head" });
    phaseButtons(head, page);
    const query = add(head, "input", { type: "search", "aria-label": "Filter operators", placeholder: "name, kind or section" });
    query.value = filter.query;
    const bound = add(head, "select", { "aria-label": "Bound by" });
    for (const [value, shown] of [["", "any bound"], ["compute", "compute"], ["memory", "memory"], ["link", "link"]]) {
      add(bound, "option", { value }, shown);
    }
    bound.value = filter.bound;
    const counted = add(head, "span", { class: "note", role: "status" });
    const table = add(add(box, "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Operators" }), "table");
    const ops = page.operators(page.phase);
    const draw = () => {
      Object.assign(filter, { query: query.value, bound: bound.value });
      const found = Draw.table(table, {
        phase: page.phase, ops, query: query.value.trim().toLowerCase(), bound: bound.value, sorting,
        open: (op) => page.openCard(op, page.phase),
      });
      counted.textContent = `${found} of ${ops.length}`;
    };
    query.addEventListener("input", draw);
    bound.addEventListener("change", draw);
    draw();
    add(box, "p", { class: "note" }, "FLOP, bytes and times are those of one instance; the share is of all, in bound time.");
  }

  // --- comparison ----------------------------------------------------------------------------------------------------

  async function compare(box, page) {
    const head = add(box, "div", { class: "head" });
    if (page.setups.length < 2) {
      add(head, "p", {}, "Add a second set-up and change it; this view shows which operators make the difference.");
      add(head, "button", { type: "button", class: "plain" }, "Add a set-up").addEventListener("click", page.addSetup);
      return;
    }
    const choice = add(head, "div", { class: "segments", role: "group", "aria-label": "Metric" });
    for (const [metric, shown] of [["ttft", "TTFT"], ["tpot", "TPOT"], ["total", "Total"]]) {
      add(choice, "button", { type: "button", class: "plain", "aria-pressed": metric === page.metric }, shown)
        .addEventListener("click", () => page.turn({ metric }));
    }
    const body = add(box, "div", { class: "charts wide" });
    const { comparison } = await page.ask("compare");
    // All boxes come first: their number determines their width.
    const charts = comparison.waterfalls.filter(({ metric }) => metric === page.metric).map((fall) => {
      const title = `${LETTERS[fall.from]} to ${LETTERS[fall.to]}`;
      return chart(body, `from-${title.replaceAll(" ", "-")}`, page, () => page.ask("compare"), (inner) => waterfall(inner, fall, title));
    });
    charts.forEach((one) => one.draw());
    const scope = page.metric === "tpot" ? " of the mean decode step" : "";
    const legend = add(box, "p", { class: "legend" }, `Expected times${scope}, operator by operator, the largest changes first. `);
    for (const [look, text] of [["memory", "less time"], ["compute", "more time"]]) add(legend, "span", { class: `key ${look}` }, text);
  }

  function waterfall(box, fall, title) {
    const unit = "expected_s" in fall.totals ? "expected_s" : "bound_s";
    const total = fall.totals[unit];
    if (!total || total.before === null) return void add(box, "p", {}, "There is no such time.");
    const parts = fall.parts.map((part) => ({ name: part.name, change: part[unit].change })).filter(({ change }) => change);
    const steps = [];
    let level = total.before;
    for (const { name, change } of parts) {
      steps.push({ name, from: level, to: level + change });
      level += change;
    }
    const rows = [{ name: title.split(" ")[0], from: 0, to: total.before, whole: true }, ...steps,
      { name: title.split(" ")[2], from: 0, to: total.after, whole: true }];
    const shift = total.before ? (100 * total.change) / total.before : 0;
    const height = 26 * rows.length + 34;
    const sign = total.change > 0 ? "+" : "−";
    const text = `${title}: ${seconds(total.before)} to ${seconds(total.after)} (${sign}${Math.abs(shift).toFixed(1)}%)`;
    const { svg, width } = Draw.canvas(box, text, height);
    add(svg, "text", { x: 2, y: 14, class: "title" }, text);
    const left = Math.min(190, width * 0.38);
    const right = width - 86;
    const least = Math.min(...steps.flatMap(({ from, to }) => [from, to]), total.before, total.after);
    const most = Math.max(...steps.flatMap(({ from, to }) => [from, to]), total.before, total.after);
    // The axis begins at zero unless all change happens far from it.
    const base = least > 0.8 * most ? least - (most - least) : 0;
    const x = (value) => left + ((right - left) * Math.max(0, value - base)) / ((most - base) || 1);
    rows.forEach(({ name, from, to, whole }, index) => {
      const y = 28 + 26 * index;
      const look = whole ? "fill-total" : to < from ? "fill-memory" : "fill-compute";
      const start = Math.min(x(from), x(to));
      const bar = add(svg, "rect", { class: look, x: start, y, width: Math.max(1.5, Math.abs(x(to) - x(from))), height: 16, rx: 2 });
      add(bar, "title", {}, `${name}: ${seconds(Math.abs(to - from))}`);
      const fitting = Math.floor(left / 6.3);
      const short = name.length > fitting ? `${name.slice(0, fitting - 1)}…` : name;
      add(svg, "text", { x: left - 8, y: y + 12, "text-anchor": "end" }, short);
      const change = whole ? seconds(to) : `${to > from ? "+" : "−"}${seconds(Math.abs(to - from))}`;
      add(svg, "text", { x: Math.max(x(from), x(to)) + 6, y: y + 12, class: "number" }, change);
      if (index) add(svg, "line", { class: "grid", x1: x(from && !whole ? from : to), x2: x(from && !whole ? from : to), y1: y - 10, y2: y });
    });
    if (base > 0) add(svg, "text", { x: left, y: height - 2, class: "faint" }, `the axis begins at ${seconds(base)}`);
  }

  // --- advice --------------------------------------------------------------------------------------------------------

  const OBJECTIVES = {
    total: "total time", ttft: "TTFT", tpot: "TPOT", throughput: "throughput", memory: "memory", cost: "cost", energy: "energy",
    goodput: "goodput under load",
  };
  const QUALITIES = {
    lossless: "the output unchanged", calibrated: "calibrated formats too", lossy: "lossy changes too", retrain: "retraining too",
  };
  const PRICES = {
    lossless: "lossless", engineering: "lossless, requires engineering", calibration: "not lossless, requires calibration data",
    lossy: "not lossless", retraining: "not lossless, requires training",
  };

  function choices(parent, label, values, chosen, pick) {
    const box = add(parent, "label", { class: "choice" }, `${label} `);
    const select = add(box, "select");
    for (const [value, title] of Object.entries(values)) add(select, "option", { value }, title);
    select.value = chosen;
    select.addEventListener("change", () => pick(select.value));
  }

  function entry(head, page, name, { label, size, placeholder }) {
    const input = add(add(head, "label", { class: "choice" }, `${label} `), "input", { type: "text", size, placeholder });
    input.value = page.setup[name] ?? "";
    input.addEventListener("change", () => page.set(name, input.value));
  }

  async function advice(box, page) {
    const head = add(box, "div", { class: "head" });
    choices(head, "Improve", OBJECTIVES, page.setup["advice.objective"] ?? "total", (value) => page.set("advice.objective", value));
    choices(head, "Allow", QUALITIES, page.setup["advice.quality"] ?? "calibrated", (value) => page.set("advice.quality", value));
    const told = add(box, "div", { class: "told" });
    const body = add(box, "div", { class: "advice waiting" });
    const { advice: found, changes, plan, summary } = await page.ask("advice");
    body.classList.remove("waiting");
    for (const text of summary) add(told, "p", {}, text);
    const group = (title) => {
      const part = add(body, "section", { "aria-label": title });
      add(part, "h2", {}, title);
      return part;
    };
    if (found.findings.length) {
      const list = add(group("What limits it"), "ul", { class: "plain-list sentences" });
      for (const { text } of found.findings) add(list, "li", {}, text);
    }
    const steps = found.plan.steps;
    if (steps.length) {
      const part = group(`Plan: ${found.plan.times_better ? `${times(found.plan.times_better)} in all` : "it fits then"}`);
      const list = add(part, "ol", { class: "moves" });
      steps.forEach((step, index) => move(list, step, page, plan[index], index ? `Apply 1 to ${index + 1}` : "Apply"));
      if (steps.length > 1) {
        add(part, "button", { type: "button", class: "plain" }, "Apply the whole plan")
          .addEventListener("click", () => page.apply(plan.at(-1), "the plan"));
      }
    }
    for (const [title, entries] of [
      ["Single changes", found.recommendations], ["Other engines", found.other_engines], ["Other hardware", found.other_hardware],
    ]) {
      if (!entries.length) continue;
      const list = add(group(title), "ul", { class: "moves" });
      for (const entry of entries) move(list, entry, page, changes[entry.move], "Apply");
    }
    if (found.cautions.length) {
      const list = add(group("Trade-offs"), "ul", { class: "plain-list sentences" });
      for (const { text } of found.cautions) add(list, "li", {}, text);
    }
    const useless = found.no_benefit.filter(({ reason }) => reason);
    if (useless.length) {
      const more = add(add(body, "section", { "aria-label": "Without benefit" }), "details", { class: "fold" });
      add(more, "summary", {}, `Without benefit here (${useless.length})`);
      const list = add(more, "ul", { class: "plain-list" });
      for (const { move: name, reason } of useless) add(list, "li", {}, `${name}: ${reason}`);
    }
  }

  function move(list, entry, page, change, label) {
    const item = add(list, "li");
    const gain = add(item, "div", { class: "gain" });
    add(gain, "b", {}, entry.times_better ? times(entry.times_better) : "fits");
    if (entry.times_better) add(gain, "span", {}, `${entry.times_better.low.toFixed(2)} – ${entry.times_better.high.toFixed(2)}`);
    const about = add(item, "div");
    add(about, "b", {}, entry.move.replace(/^(hw|engine)=/, ""));
    add(about, "span", {}, `${entry.title} · ${PRICES[entry.price] ?? entry.price}`);
    if (entry.helps?.[0]) add(about, "span", {}, `helps ${entry.helps[0].text}`);
    const details = [
      ...(entry.reasons ?? []).map(({ text }) => `why: ${text}`), entry.assumes && `assumes ${entry.assumes}`,
      ...(entry.cautions ?? []).map((text) => `caveat: ${text}`),
      ...(entry.published ?? []).map(({ effect, source }) => `published: ${effect} (${source})`),
    ].filter(Boolean);
    if (details.length) {
      const more = add(about, "details", { class: "fold" });
      add(more, "summary", {}, "Why, conditions, published gains");
      for (const text of details) add(more, "span", {}, text);
    }
    add(item, "button", { type: "button", class: "plain", "aria-label": `${label}: ${entry.move}` }, label)
      .addEventListener("click", () => page.apply(change, entry.move));
  }

  // --- serving under load --------------------------------------------------------------------------------------------

  async function load(box, page) {
    const head = add(box, "div", { class: "head" });
    const by = page.setup["load.by"] ?? ["rate", "sessions"].find((kind) => page.setup[`asked.${kind}`]) ?? "concurrency";
    const { concurrency, rate: arriving, sessions } = page.options;
    const kinds = { concurrency: concurrency.title, rate: arriving.title, ...(sessions ? { sessions: "sessions of many turns" } : {}) };
    choices(head, "Load", kinds, by, (value) => page.set("load.by", value));
    if (by === "sessions") return ofSessions(box, head, page);
    const over = by === "rate" ? arriving.title : concurrency.title;
    entry(head, page, `load.${by}`, { label: "Values", size: 9, placeholder: by === "rate" ? "to saturation" : concurrency.example });
    const grid = add(box, "div", { class: "charts" });
    let documents = [];
    const charts = [
      ["TTFT", "ttft", (point) => point.ttft_s, seconds], ["TPOT", "tpot", (point) => point.tpot_s, seconds],
      ["Output tokens/s per device", "throughput", (point) => ({ mean: { mid: point.output_tokens_per_s_per_device } }), rate, true],
    ];
    const targeted = ["ttft", "tpot"].some((name) => page.setup[`goal.${name}`]);
    if (targeted) {
      charts.push(["Goodput (requests/s)", "goodput", (point) => ({ mean: { mid: point.goodput_requests_per_s } }), rate, true]);
    } else add(head, "span", { class: "note" }, "With a target, goodput is drawn as well.");
    const lines = (read) => documents.flatMap((one, index) => {
      const name = documents.length > 1 ? LETTERS[index] : "";
      const points = one.points.filter(({ stable }) => stable);
      const look = LOOKS[index % LOOKS.length];
      const made = (label, statistic) => ({
        label, look, points: points.map((point) => ({ value: point[by], fits: true, ...(read(point)[statistic] ?? {}) })),
      });
      const tail = points.length && read(points[0]).p95 && documents.length === 1;
      return tail ? [made("mean", "mean"), { ...made("p95", "p95"), look: "compute" }] : [made(name, "mean")];
    });
    const forms = () => page.ask("load");
    const drawn = charts.map(([what, name, read, shown, linear]) => chart(grid, `${name}-under-load`, page, forms, (inner) => {
      Draw.curve(inner, { axis: over, over, lines: lines(read), shown, what, height: HEIGHT, linear });
    }));
    drawn.push(chart(grid, "frontier", page, forms, (inner) => {
      const found = documents.map((one, index) => ({
        label: documents.length > 1 ? LETTERS[index] : "", look: LOOKS[index % LOOKS.length],
        points: one.points.filter(({ stable }) => stable).map((point) => ({
          value: point.output_tokens_per_s_per_user, mid: point.output_tokens_per_s_per_device, fits: true,
        })).filter(({ value }) => value > 0),
      }));
      const users = "tokens/s per user";
      Draw.curve(inner, { axis: users, over: users, lines: found, shown: rate, what: "Frontier: tokens/s per device", height: HEIGHT });
    }));
    const table = add(box, "div");
    drawn.forEach(({ box: inner }) => inner.classList.add("waiting"));
    documents = (await page.ask("load")).serving;
    drawn.forEach((one) => { one.box.classList.remove("waiting"); one.draw(); });
    documents.forEach((one, index) => {
      const header = [by === "rate" ? "requests/s" : "in flight", "TTFT mean", "TTFT p95", "TPOT mean", "TPOT p95", "tokens/s/device", "tokens/s/user", "USD/Mtok"];
      const time = (value) => (value === null ? "unbounded" : seconds(value));
      const rows = one.points.map((point) => [
        plain(point[by]), time(point.ttft_s.mean.mid), time(point.ttft_s.p95.mid), time(point.tpot_s.mean.mid),
        time(point.tpot_s.p95.mid), rate(point.output_tokens_per_s_per_device), rate(point.output_tokens_per_s_per_user),
        rate(point.usd_per_million_tokens),
      ]);
      if (documents.length > 1) add(table, "h2", {}, `${LETTERS[index]}: ${one.model} on ${one.devices} × ${one.hardware}`);
      Draw.simpleTable(table, `Load of ${LETTERS[index]}`, header, rows, 0);
    });
  }

  // --- sessions ------------------------------------------------------------------------------------------------------

  const SHAPE = [
    ["sessions", "Sessions", 9], ["turns", "Turns", 9], ["first", "First tokens", 9], ["new", "New a turn", 9],
    ["gap", "Think time", 12], ["shared", "Shared", 6], ["tiers", "Tiers", 20], ["pool", "Pool", 7],
  ];
  const TIERS = ["memory", "compute", "collective", "total"];
  const part = (value) => `${(100 * value).toFixed(0)}%`;

  async function ofSessions(box, head, page) {
    const { options, setup } = page;
    const named = Object.fromEntries(options.profile.choices.map(([name]) => [name, name]));
    choices(head, "Profile", named, setup["load.profile"] ?? "chat", (value) => page.set("load.profile", value));
    for (const [name, label, size] of SHAPE) {
      const usual = name === "sessions" ? setup["asked.sessions"] ?? options[name].example : name === "tiers" ? options[name].example : "as the profile";
      entry(head, page, `load.${name}`, { label, size, placeholder: usual });
    }
    const told = add(box, "div", { class: "told" });
    const grid = add(box, "div", { class: "charts" });
    const table = add(box, "div");
    let documents = [];
    const several = () => documents.length > 1;
    const line = (label, look, points, read) => ({
      label, look, points: points.map((point) => ({ value: point.sessions, fits: true, mid: read(point) })),
    });
    const each = (read) => documents.map((one, index) => line(several() ? LETTERS[index] : "", LOOKS[index % LOOKS.length], one.points, read));
    // Of one set-up the tiers are added up, the pool first; of several the sums are compared.
    const hits = () => {
      if (several()) return each((point) => point.hit);
      const [{ points }] = documents;
      const tiers = Object.keys(points[0].hits);
      const sums = tiers.map((name, at) => line(at ? `and ${name}` : name, TIERS[at % 3], points, (point) =>
        tiers.slice(0, at + 1).reduce((sum, tier) => sum + point.hits[tier], 0)));
      return [...sums, line("endless", "total", points, (point) => point.endless)];
    };
    const forms = () => page.ask("load");
    const drawn = [
      ["Hit rate", "hits", hits, part],
      ["Tokens/s per device, prompts and outputs", "tokens", () => documents.map((one, index) =>
        line(several() ? LETTERS[index] : "", LOOKS[index % LOOKS.length], one.points, (point) =>
          (point.input_tokens_per_second + point.output_tokens_per_second) / one.devices)), rate],
      ["TTFT of turns", "ttft", () => each((point) => point.ttft_s.mean.mid), seconds],
      ["TPOT of turns", "tpot", () => each((point) => point.tpot_s.mean.mid), seconds],
    ].map(([what, name, lines, shown]) => chart(grid, `${name}-of-sessions`, page, forms, (inner) => {
      Draw.curve(inner, { axis: "sessions", over: "sessions", lines: lines(), shown, what, height: HEIGHT, linear: name !== "ttft" });
    }));
    drawn.forEach(({ box: inner }) => inner.classList.add("waiting"));
    documents = (await page.ask("load")).sessions;
    drawn.forEach((one) => { one.box.classList.remove("waiting"); one.draw(); });
    documents.forEach((one, index) => {
      const { workload, cache, points } = one;
      const [whose, means] = [several() ? `${LETTERS[index]}: ` : "", workload.means];
      add(told, "p", {}, `${whose}${plain(means.turns)} turns a session on average, ${plain(means.first)} tokens at first, `
        + `${plain(means.new)} new and ${plain(means.output)} of output a turn; a pool of ${rate(cache.pool_tokens)} tokens${
        cache.snapshot_tokens ? `, a snapshot of states or windows as much as ${plain(Math.round(cache.snapshot_tokens))}` : ""}.`);
      const thrashing = points.find(({ thrashes }) => thrashes);
      if (thrashing) add(told, "p", {}, `${whose}From ${thrashing.sessions} sessions on the cache thrashes: turns compute again what was evicted.`);
      const tiers = Object.keys(points[0].hits);
      const header = [
        "sessions", "hit rate", "range", ...tiers.map((name) => `in ${name}`), "TTFT mean", "TTFT p95", "TPOT mean", "turns/s", "computed again",
        "met", "USD/session",
      ];
      const time = (value) => (value === null ? "-" : seconds(value));
      const rows = points.map((point) => [
        plain(point.sessions), part(point.hit), `${part(point.hit_low)} – ${part(point.hit_high)}`, ...tiers.map((name) => part(point.hits[name])),
        time(point.ttft_s.mean.mid), time(point.ttft_s.p95.mid), time(point.tpot_s.mean.mid), rate(point.turns_per_second),
        rate(point.recomputed), point.met === null ? "-" : part(point.met), point.usd ? rate(point.usd.session) : "-",
      ]);
      if (several()) add(table, "h2", {}, `${LETTERS[index]}: ${one.model} on ${one.devices} × ${one.hardware}`);
      Draw.simpleTable(table, `Sessions of ${LETTERS[index]}`, header, rows, 0);
    });
  }

  // --- starting it ---------------------------------------------------------------------------------------------------

  const SERVERS = {
    "": "as predicted", vllm: "vLLM", sglang: "SGLang", "tensorrt-llm": "TensorRT-LLM", "llama.cpp": "llama.cpp", mlx: "MLX", ollama: "Ollama",
  };
  const TARGETS = { shell: "Shell", compose: "Docker Compose", kubernetes: "Kubernetes" };
  const APART = { dynamo: "Dynamo", "llm-d": "llm-d" }; // of prefill and decode apart

  async function run(box, page) {
    const head = add(box, "div", { class: "head" });
    choices(head, "Engine", SERVERS, page.setup["run.engine"] ?? "", (value) => page.set("run.engine", value));
    const targets = page.setup["deploy.pools"] ? APART : TARGETS;
    choices(head, "As", targets, page.setup["run.as"] ?? Object.keys(targets)[0], (value) => page.set("run.as", value));
    const body = add(box, "div", { class: "launch" });
    const found = await page.ask("run");
    if (found.serve) code(body, "Start it", found.serve, page); // else a manifest has the servers of both
    code(body, "Measure what was predicted", found.benchmark, page);
    const list = add(body, "ul", { class: "plain-list" });
    for (const text of [...found.memory, ...found.notes]) add(list, "li", {}, text);
    for (const { name, text } of found.files) {
      const more = add(body, "details", { class: "fold" });
      if (name !== "prediction.json") more.open = true;
      add(more, "summary", {}, name);
      code(more, "", text, page, name);
    }
  }

  // A command or a file with a button that copies it, and one that saves the file.
  function code(parent, title, text, page, name = "") {
    if (title) add(parent, "h2", {}, title);
    add(add(parent, "pre", { tabindex: 0, role: "region", "aria-label": title || name }), "code", {}, text);
    const tools = add(parent, "div", { class: "saves" });
    add(tools, "button", { type: "button", class: "action", "aria-label": `Copy ${title || name}` }, "Copy").addEventListener("click", () => page.copy(text));
    if (!name) return;
    add(tools, "button", { type: "button", class: "action", "aria-label": `Save ${name}` }, "Save")
      .addEventListener("click", () => Charts.save(name, new Blob([text])));
  }

  return {
    LETTERS,
    VIEWS: {
      overview: "Overview", network: "Network", operators: "Operators", compare: "Compare", advice: "Advice", load: "Load", run: "Run it",
    },
    draw: { overview, network, operators, compare, advice, load, run },
  };
})();
