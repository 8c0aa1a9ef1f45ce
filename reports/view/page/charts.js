// Charts of the page: figures that are saved as SVG or PNG, with the command and the Python that compute them.
"use strict";
const Charts = (() => {
  const { add } = Draw;

  // A figure with its SVG drawn by `draw(box)`, and buttons that save it and copy the `forms` that compute it.
  function chart(parent, name, page, forms, draw) {
    const figure = add(parent, "figure", { class: "chart" });
    const box = add(figure, "div");
    const tools = saves(figure, name, (kind) => savePicture(box.querySelector("svg"), name, kind));
    for (const form of ["command", "python"]) {
      const title = form === "python" ? "Python" : "Command";
      add(tools, "button", { type: "button", class: "action", "aria-label": `Copy ${name} as ${title}` }, title)
        .addEventListener("click", async () => page.copy((await forms())[form]));
    }
    return {
      box,
      draw: () => {
        draw(box);
        tools.hidden = !box.classList.contains("waiting") && !box.querySelector("svg");
        if (tools.hidden) add(box, "span", { class: "note" }, `${name.replaceAll("-", " ")}: no point to draw`);
      },
    };
  }

  function saves(parent, name, pick) {
    const tools = add(parent, "div", { class: "saves" });
    for (const kind of ["SVG", "PNG"]) {
      add(tools, "button", { type: "button", class: "action", "aria-label": `Save ${name} as ${kind}` }, kind)
        .addEventListener("click", () => pick(kind));
    }
    return tools;
  }

  const PAINTED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight",
    "paint-order", "text-anchor"];

  function savePicture(svg, name, kind) {
    const copy = svg.cloneNode(true);
    const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
    from.forEach((element, index) => {
      const style = getComputedStyle(element);
      for (const key of PAINTED) to[index].setAttribute(key, style.getPropertyValue(key));
      to[index].removeAttribute("class");
    });
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    for (const [key, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(key, value);
    const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const colour = getComputedStyle(document.body).backgroundColor;
    for (const [key, value] of Object.entries({ width: "100%", height: "100%", fill: colour })) paper.setAttribute(key, value);
    copy.prepend(paper);
    const drawn = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
    if (kind === "SVG") save(`${name}.svg`, drawn);
    else {
      const picture = new Image();
      picture.addEventListener("load", () => {
        const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
        canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
        URL.revokeObjectURL(picture.src);
        canvas.toBlob((blob) => save(`${name}.png`, blob));
      });
      picture.src = URL.createObjectURL(drawn);
    }
  }

  function save(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  return { chart, save, savePicture, saves };
})();
