// The operators of a phase as a graph in a frame of fixed height, to move and to zoom. Reports and the live page share it.
"use strict";
const Network = (() => {
  const { add, percent, seconds, si } = Draw;
  const [LEAST, MOST, STEP] = [0.1, 4, 1.25];

  // --- the graph -----------------------------------------------------------------------------------------------------

  // The sections of a phase; their rows and edges are indices into `ops`. `view` keeps scale and place between drawings.
  function draw(box, { sections, ops, left = 0, open, view }) {
    box.replaceChildren();
    const tools = add(box, "div", { class: "zoom" });
    const frame = add(box, "div", { class: "pane", tabindex: 0, role: "region", "aria-label": "Network: arrow keys move, + and − zoom" });
    const sheet = add(frame, "div", { class: "sheet" });
    for (const section of sections) {
      const wide = Math.max(...section.rows.map((row) => row.length)) > 1;
      const part = add(sheet, "div", { class: wide ? "part wide" : "part" });
      add(part, "h3", {}, section.count === 1 ? section.name : `${section.name} × ${section.count}`);
      const flow = add(part, "div", { class: "flow" });
      const nodes = new Map();
      const overlay = add(flow, "svg", { "aria-hidden": "true" });
      for (const row of section.rows) {
        const line = add(flow, "div", { class: "row" });
        for (const index of row) nodes.set(index, node(line, ops[index], open));
      }
      flow.links = { overlay, nodes, edges: section.edges, rows: section.rows };
    }
    const hidden = left ? ` ${left} operators that take less time are not shown.` : "";
    add(box, "p", { class: "note" }, "In a box: shape of the weight or the output, bytes moved, expected time of one, and share " +
      `of the phase's bound time of all.${hidden}`);
    wires(box);
    move(frame, sheet, tools, view);
  }

  function node(line, op, open) {
    const time = op.expected_time_s?.mid ?? op.bound_time_s;
    const button = add(line, "button", { type: "button", class: `node ${op.bound}`, "data-op": op.index });
    add(button, "b", {}, op.name);
    const lines = [shapeOf(op), si(op.bytes, "B"), `${seconds(time)}, ${percent(op.share)}`].filter(Boolean);
    for (const line of lines) add(button, "span", {}, line);
    button.setAttribute("aria-label",
      `${op.name}: ${op.kind}, ${op.bound}-bound, ${lines.join(", ")}; show details`);
    button.addEventListener("click", () => open(op));
    return button;
  }

  function shapeOf(op) {
    const weight = op.tensors.find(({ role, shape }) => role === "weight" && shape.length > 1) ?? op.tensors.at(-1);
    return weight ? weight.shape.map((side) => String(Math.round(side))).join(" × ") : "";
  }

  // The box of an element in the units of the unscaled sheet, from the corner of `flow`.
  function within(flow) {
    const origin = flow.getBoundingClientRect();
    const scale = origin.width / flow.offsetWidth || 1;
    return (element) => {
      const box = element.getBoundingClientRect();
      const [x, y, w, h] = [box.x - origin.x, box.y - origin.y, box.width, box.height].map((length) => length / scale);
      return { x, y, w, h, right: x + w, bottom: y + h, centre: x + w / 2, middle: y + h / 2 };
    };
  }

  function wires(box) {
    for (const flow of box.querySelectorAll(".flow")) {
      const { overlay, nodes, edges, rows } = flow.links;
      const place = within(flow);
      const boxes = new Map([...nodes].map(([index, button]) => [index, place(button)]));
      const rowOf = new Map(rows.flatMap((row, at) => row.map((index) => [index, at])));
      overlay.replaceChildren();
      for (const [from, to] of edges) {
        const [a, b] = [boxes.get(from), boxes.get(to)];
        const between = rows.slice(rowOf.get(from) + 1, rowOf.get(to)).flat().map((index) => boxes.get(index));
        const free = between.every((one) => Math.max(a.centre, b.centre) < one.x || Math.min(a.centre, b.centre) > one.right);
        const bend = Math.min(24, Math.max(6, (b.y - a.bottom) / 2));
        let d = `M${a.centre},${a.bottom}C${a.centre},${a.bottom + bend} ${b.centre},${b.y - bend} ${b.centre},${b.y}`;
        if (between.length && !free) {
          // Route around the operators in between, on the right.
          const x = Math.min(Math.max(a.right, b.right, ...between.map(({ right }) => right)) + 22, flow.offsetWidth + 5);
          d = `M${a.right},${a.middle}C${x},${a.middle} ${x},${a.middle} ${x},${a.middle + 20}` +
            `L${x},${b.middle - 20}C${x},${b.middle} ${x},${b.middle} ${b.right},${b.middle}`;
        }
        add(overlay, "path", { d });
      }
    }
  }

  // The whole graph as an SVG in the document, which has its styles until it is removed.
  function picture(box, title) {
    const sheet = box.querySelector(".sheet");
    const place = within(sheet);
    const svg = add(box, "svg", { class: "unseen", viewBox: `0 0 ${sheet.offsetWidth} ${sheet.offsetHeight}`, role: "img" });
    add(svg, "title", {}, title);
    const text = (element, look) => {
      const { x, bottom } = place(element);
      add(svg, "text", { x, y: bottom - 4, class: look }, element.textContent);
    };
    const outline = (element, look) => {
      const { x, y, w, h } = place(element);
      add(svg, "rect", { x, y, width: w, height: h, rx: 5, class: look });
    };
    for (const part of sheet.querySelectorAll(".part")) {
      outline(part, "outline");
      text(part.querySelector("h3"), "title");
    }
    for (const path of sheet.querySelectorAll(".flow path")) {
      const { x, y } = place(path.closest(".flow"));
      add(svg, "path", { d: path.getAttribute("d"), class: "wire", transform: `translate(${x},${y})` });
    }
    for (const button of sheet.querySelectorAll(".node")) {
      outline(button, `outline ${button.className}`);
      text(button.querySelector("b"), "title");
      for (const line of button.querySelectorAll("span")) text(line, "faint");
    }
    return svg;
  }

  // --- moving and zooming --------------------------------------------------------------------------------------------

  // Moves are scrolls of the frame, so that keys, fingers and the focus move it as they do anywhere.
  function move(frame, sheet, tools, view) {
    const margin = (scale) => Math.max(0, (frame.clientWidth - sheet.offsetWidth * scale) / 2);

    function show() {
      sheet.style.transform = `translateX(${margin(view.scale)}px) scale(${view.scale})`;
      const text = `${Math.round(100 * view.scale)}%`;
      reset.textContent = text;
      reset.setAttribute("aria-label", `Zoom is ${text}: back to 100%`);
    }
    // Zooms so that what is at (x, y) of the frame stays there.
    function zoom(to, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
      const scale = Math.min(MOST, Math.max(LEAST, to));
      const ratio = scale / view.scale;
      const left = (frame.scrollLeft + x - margin(view.scale)) * ratio + margin(scale) - x;
      const top = (frame.scrollTop + y) * ratio - y;
      view.scale = scale;
      show();
      frame.scrollTo({ left, top, behavior: "instant" });
    }
    const whole = () => zoom(Math.min(1, frame.clientWidth / sheet.offsetWidth, frame.clientHeight / sheet.offsetHeight));
    const acts = { "−": () => zoom(view.scale / STEP), "100%": () => zoom(1), "+": () => zoom(view.scale * STEP), "Whole graph": whole };
    const group = add(tools, "div", { class: "segments", role: "group", "aria-label": "Zoom" });
    const [less, reset, more] = Object.entries(acts).map(([text, act]) => {
      const button = add(group, "button", { type: "button", class: "plain" }, text);
      button.addEventListener("click", act);
      return button;
    });
    less.setAttribute("aria-label", "Zoom out");
    more.setAttribute("aria-label", "Zoom in");
    add(tools, "span", { class: "note" }, "Drag or scroll to move, Ctrl and wheel or pinch to zoom; keys: arrows, +, −, 0.");
    byKeys(frame, acts);
    byPointer(frame, view, zoom);
    show();
    frame.scrollTo({ left: view.left, top: view.top, behavior: "instant" });
    frame.addEventListener("scroll", () => Object.assign(view, { left: frame.scrollLeft, top: frame.scrollTop }));
  }

  function byKeys(frame, acts) {
    const keys = { "+": "+", "=": "+", "-": "−", "−": "−", 0: "100%" };
    frame.addEventListener("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[keys[event.key]]();
    });
  }

  function byPointer(frame, view, zoom) {
    const inside = (x, y) => {
      const { left, top } = frame.getBoundingClientRect();
      return [x - left - frame.clientLeft, y - top - frame.clientTop];
    };
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
      zoom(view.scale * Math.exp((-lines * event.deltaY) / 400), ...inside(event.clientX, event.clientY));
    }, { passive: false });

    let grip = null; // where the mouse took hold of the sheet
    frame.addEventListener("pointerdown", ({ pointerType, button, clientX, clientY }) => {
      if (pointerType === "mouse" && button === 0) grip = { x: clientX + frame.scrollLeft, y: clientY + frame.scrollTop, clientX, clientY };
    });
    frame.addEventListener("pointermove", (event) => {
      if (!grip) return;
      if (!(event.buttons & 1)) grip = null;
      else if (grip.moved || Math.hypot(event.clientX - grip.clientX, event.clientY - grip.clientY) > 4) {
        if (!grip.moved) frame.setPointerCapture(event.pointerId);
        grip.moved = true;
        frame.classList.add("held");
        frame.scrollTo({ left: grip.x - event.clientX, top: grip.y - event.clientY, behavior: "instant" });
      }
    });
    frame.addEventListener("pointerup", () => frame.classList.remove("held"));
    frame.addEventListener("click", (event) => { // the end of a move selects nothing
      if (grip?.moved) event.stopPropagation();
      grip = null;
    }, { capture: true });

    let pinch = null; // distance of two fingers, and the scale when they came down
    const apart = ([one, other]) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    frame.addEventListener("touchstart", ({ touches }) => {
      pinch = touches.length === 2 ? { apart: apart(touches), scale: view.scale } : null;
    }, { passive: true });
    frame.addEventListener("touchmove", (event) => {
      if (!pinch || event.touches.length !== 2) return;
      event.preventDefault();
      const [one, other] = event.touches;
      const at = inside((one.clientX + other.clientX) / 2, (one.clientY + other.clientY) / 2);
      zoom((pinch.scale * apart(event.touches)) / pinch.apart, ...at);
    }, { passive: false });
  }

  return { draw, picture, wires };
})();
