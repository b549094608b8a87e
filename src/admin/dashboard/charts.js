// Line charts of the last five minutes, as SVG: one point a second, the newest at the right.

/** Points kept: five minutes of seconds. */
export const POINTS = 300;

/** A chart in `parent`; `series` are names, `unit` writes a value. `push(values)` adds one second. */
export function chart(parent, title, series, unit) {
  const box = document.createElement("div");
  box.className = "chart";
  box.innerHTML = `<h2></h2><svg viewBox="0 0 ${POINTS - 1} 100" preserveAspectRatio="none" role="img"></svg><ul></ul>`;
  box.querySelector("h2").textContent = title;
  parent.append(box);
  const svg = box.querySelector("svg"), legend = box.querySelector("ul");
  const lines = new Map();
  const line = (name) => {
    const colour = `var(--s${lines.size % 6})`;
    const polyline = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    polyline.style.stroke = colour;
    // beside the colour, so that it is not the only difference
    if (lines.size) polyline.style.strokeDasharray = `${6 / lines.size} ${1 + lines.size}`;
    svg.append(polyline);
    const item = document.createElement("li");
    item.style.setProperty("--c", colour);
    legend.append(item);
    lines.set(name, { polyline, item, values: [] });
    return lines.get(name);
  };
  series.forEach(line);
  return {
    /** Values by name; a name not seen before becomes a series, a missing one has no point. */
    push(values) {
      for (const name of Object.keys(values)) if (!lines.has(name)) line(name);
      let top = 0;
      for (const [name, of] of lines) {
        of.values.push(values[name] ?? null);
        if (of.values.length > POINTS) of.values.shift();
        top = Math.max(top, ...of.values);
      }
      const said = [];
      for (const [name, of] of lines) {
        const start = POINTS - of.values.length;
        // a second without a value breaks no line: the neighbours are joined
        const points = of.values.map((v, i) => (v === null ? "" : `${start + i},${98 - (v / (top || 1)) * 92}`));
        of.polyline.setAttribute("points", points.join(" "));
        const now = of.values.findLast((v) => v !== null);
        of.item.textContent = `${name} ${unit(now)}`;
        said.push(of.item.textContent);
      }
      svg.setAttribute("aria-label", `${title}: ${said.join(", ")}; highest ${unit(top)}`);
    },
  };
}
