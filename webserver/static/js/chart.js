// Small charts of what an agent measured: one line over the last hour, its values also as text. Colours are the page's.

import uPlot from "../vendor/uplot.js";
import { setText } from "./view.js";
import { language, t } from "./words.js";

const HEIGHT = 110;
const SPAN_S = 3600;
const GAPS_AFTER = 3; // intervals without a point
const moments = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit" });

/** A colour of the style sheet as it is now, light or dark: a variable itself holds both. */
function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** [seconds, values] of the points, with nothing where the agent was not heard. */
function columns(points, column, interval) {
  const xs = [];
  const ys = [];
  for (const point of points) {
    const x = point[0] / 1000;
    if (xs.length && x - xs.at(-1) > GAPS_AFTER * interval) {
      xs.push(xs.at(-1) + interval);
      ys.push(null);
    }
    xs.push(x);
    ys.push(point[column]);
  }
  return [xs, ys];
}

/**
 * A chart in `figure`, which templates/agent.html made. `column`: which of a point's values; `say(value)` its words;
 * `most(largest)` the upper end of the scale; `steps` between marks (else round numbers). Answers {show(points, interval)}.
 */
export function chart(figure, { column, say, most, steps }) {
  const plot = figure.querySelector(".plot");
  const nothing = plot.querySelector("[data-f=nothing]");
  const now = figure.querySelector("[data-f=now]");
  let drawn = null;
  let data = [[], []];
  let summary = "";

  function scale() {
    const largest = Math.max(0, ...data[1].filter((y) => y !== null));
    return [0, most(largest) || 1];
  }

  function options() {
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}` };
    return {
      width: plot.clientWidth, height: HEIGHT, legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true, range: () => [Date.now() / 1000 - SPAN_S, Date.now() / 1000] }, y: { range: scale } },
      series: [{}, { stroke: colour("--busy-bar"), fill: colour("--busy-ground"), width: 1.5, points: { show: data[1].length < 3 } }],
      axes: [
        { ...axis, size: 22, space: 70, values: (_, ticks) => ticks.map((tick) => moments.format(tick * 1000)) },
        { ...axis, size: 58, space: 30, values: (_, ticks) => ticks.map(say), ...(steps && { incrs: steps }) },
      ],
      hooks: { setCursor: [(chart) => point(chart.cursor.idx)] },
    };
  }

  function point(index) {
    const value = index === null || index === undefined ? null : data[1][index];
    const at = value === null || value === undefined ? null : moments.format(data[0][index] * 1000);
    setText(now, at === null ? last() : t("%(value)s at %(time)s", { value: say(value), time: at }));
  }

  function last() {
    const value = data[1].findLast((y) => y !== null);
    return value === undefined ? "" : say(value);
  }

  function draw() {
    drawn?.destroy();
    drawn = null;
    nothing.hidden = data[1].some((y) => y !== null);
    if (!nothing.hidden || !plot.clientWidth) return;
    drawn = new uPlot(options(), data, plot);
    const canvas = drawn.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", summary);
  }

  function show(points, interval) {
    data = columns(points, column, interval);
    const known = data[1].filter((y) => y !== null);
    const [least, largest] = [Math.min(...known), Math.max(...known)].map(say);
    const range = known.length && least !== largest ? t("%(least)s to %(most)s", { least, most: largest }) : "";
    setText(now, last());
    setText(figure, range, "[data-f=range]");
    summary = [figure.dataset.word, last(), range].filter(Boolean).join(", ");
    if (!drawn || nothing.hidden === false || !known.length) return draw();
    drawn.setData(data);
    drawn.root.querySelector("canvas").setAttribute("aria-label", summary);
  }

  new ResizeObserver(() => {
    if (!drawn) draw();
    else if (drawn.width !== plot.clientWidth) drawn.setSize({ width: plot.clientWidth, height: HEIGHT });
  }).observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return { show };
}
