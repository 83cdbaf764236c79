// Rows of agents, as templates/agent_rows.html makes them: filled from an agent as the API tells it.

import { el, setBadge, setText, setTimeWords } from "./view.js";
import { t } from "./words.js";

const CHIPS_MOST = 4;
const FULL = 90;
const find = (row, name) => row.querySelector(`[data-f="${name}"]`);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** The share in percent, between 0 and 100; null if one of the two is no number. */
export function percent(part, whole) {
  if (!isNumber(part) || !isNumber(whole) || whole <= 0) return null;
  return Math.min(100, Math.max(0, (100 * part) / whole));
}

function setMeter(row, name, share, said) {
  const meter = find(row, name);
  const rect = meter.querySelector("rect");
  rect.setAttribute("width", String(share ?? 0));
  rect.setAttribute("class", share !== null && share >= FULL ? "full" : "part");
  setText(meter.lastElementChild, said);
}

/** The labels as chips, the first few of them. */
function chips(labels) {
  const all = Object.entries(labels).map(([name, value]) => `${name}=${value}`);
  const made = all.slice(0, CHIPS_MOST).map((text) => el("span", { class: "chip clip", title: text }, text));
  const rest = all.slice(CHIPS_MOST);
  if (rest.length) made.push(el("span", { class: "chip", title: rest.join(" ") }, `+${rest.length}`));
  return made;
}

/** Show `agent` in `row`. */
export function fillAgent(row, agent) {
  row.dataset.id = agent.id;
  row.dataset.state = agent.state;
  setBadge(find(row, "state"), agent.state);
  const name = find(row, "name");
  name.href = `/agents/${encodeURIComponent(agent.id)}`;
  setText(name, agent.name);
  name.title = row.dataset.name = name.textContent;
  const hostname = find(row, "hostname");
  setText(hostname, agent.hostname === agent.name ? "" : t("host %(name)s", { name: agent.hostname }));
  hostname.title = hostname.textContent;
  find(row, "labels").replaceChildren(...chips(agent.labels));
  const silent = agent.state === "offline";
  const facts = agent.facts;
  const said = (share) => (share === null ? "–" : `${Math.round(share)}%`);
  const cpu = silent ? null : percent(facts.cpu_percent, 100);
  const memory = silent ? null : percent(facts.memory_used, facts.memory_total);
  setMeter(row, "slots", percent(agent.held, agent.slots) ?? 0, `${agent.held}/${agent.slots}`);
  setMeter(row, "cpu", cpu, said(cpu));
  setMeter(row, "memory", memory, said(memory));
  if (agent.last_seen_at) setTimeWords(find(row, "seen"), t("seen %(time)s"), agent.last_seen_at);
  else setText(find(row, "seen"), t("never seen"));
  const version = find(row, "version");
  setText(version, facts.version ? `muster ${facts.version}` : "");
  version.title = version.textContent;
}

/** A new row for `agent`. */
export function newRow(agent) {
  const row = document.getElementById("agent-row").content.firstElementChild.cloneNode(true);
  fillAgent(row, agent);
  return row;
}
