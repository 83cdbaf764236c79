// Output of runs as plain text, as it is when it is opened.

import { el } from "./view.js";
import { t } from "./words.js";

const SHOWN_BYTES = 262144;

/** Show the output in `container`; the same parameters as the viewer's. */
export function openLog(container, { runs, attempt, downloadHref }) {
  const text = el("pre", { class: "plain-log", tabindex: "0", "aria-label": t("Output") });
  const raw = downloadHref ? el("a", { href: downloadHref, download: "output.txt" }, t("Download")) : null;
  container.replaceChildren(text, ...[raw].filter(Boolean));
  let closed = false;
  (async () => {
    for (const run of runs.slice(0, 50)) {
      const asked = `/api/v1/runs/${run.id}/output?limit=${SHOWN_BYTES}${attempt === null ? "" : `&attempt=${attempt}`}`;
      const answer = await fetch(asked);
      if (closed || !answer.ok) continue;
      const said = await answer.text();
      const lines = runs.length > 1 ? said.replace(/^(?=.)/gm, `${run.agent?.name ?? ""} | `) : said;
      text.append(lines);
    }
    if (!closed && !text.textContent) text.textContent = t("No output.");
  })();
  return {
    close() {
      closed = true;
      container.replaceChildren();
    },
  };
}
