"use strict";
(() => {
  const night = matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot")];
  const block = document.getElementById("figures");
  const given = block ? JSON.parse(block.textContent) : { figures: {}, night: {} };
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false, typesetMath: false };

  const colored = (value) => {
    if (typeof value === "string") return given.night[value] ?? value;
    if (Array.isArray(value)) return value.map(colored);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, colored(inner)]));
  };

  const copied = (figure, dark) => (dark ? colored(figure) : structuredClone(figure));

  const narrowed = (layout) => {
    const axis = layout.xaxis;
    if (axis.nticks) axis.nticks = 5;
    const names = axis.ticktext ?? axis.tickvals ?? [];
    const step = Math.ceil(names.length / 7);
    const keep = names.map((name, i) => i % step === 0 || String(name).startsWith("▲"));
    for (const part of ["tickvals", "ticktext"]) if (axis[part]) axis[part] = axis[part].filter((_, i) => keep[i]);
  };

  const draw = (plot, dark, width) => {
    const { data, layout } = copied(given.figures[plot.dataset.figure], dark);
    const room = width || plot.clientWidth;
    if (room < 760) for (const trace of data) if (trace.textposition === "inside") delete trace.text;
    if (room < 520) narrowed(layout);
    if (width) layout.width = width;
    return window.Plotly.react(plot, data, layout, config);
  };

  const inflated = async () => {
    const text = atob(document.getElementById("library").textContent);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };

  const pause = () => new Promise((resolve) => setTimeout(resolve));

  const start = async () => {
    if (!plots.length) return;
    const script = document.createElement("script");
    script.textContent = await inflated();
    document.head.append(script);
    for (const plot of plots) {
      await draw(plot, night.matches);
      await pause();
    }
    night.addEventListener("change", () => plots.forEach((plot) => draw(plot, night.matches)));
    addEventListener("beforeprint", () => plots.forEach((plot) => draw(plot, false, 680)));
    addEventListener("afterprint", () => plots.forEach((plot) => draw(plot, night.matches)));
  };

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of opened) fold.open = false;
  });

  const copy = document.getElementById("copy");
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById("ticket").textContent);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy for the ticket"), 2000);
    });
  }

  start().then(
    () => document.documentElement.classList.add("drawn"),
    (error) => {
      for (const plot of plots) {
        if (plot.childElementCount) continue;
        plot.textContent = `The picture could not be drawn (${error.message}).`;
        plot.style.height = "auto";
      }
    },
  );
})();
