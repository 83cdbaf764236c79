// Brings output into the model: from a stream of events, or all at once for an attempt that is over.
//
// Takes in a little at a time, so that a page stays usable while megabytes arrive.

import { follow } from "../live.js";
import { RUN_FINAL } from "../view.js";
import { t } from "../words.js";

const SLICE_MS = 10;
const SLICE_BYTES = 32 * 1024;

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Does what it is given in order, for a few milliseconds at a time; `done()` is told after each while. */
class Slices {
  constructor(done) {
    this.done = done;
    this.waiting = [];
    this.next = 0;
    this.channel = new MessageChannel(); // timers would wait longer than the work takes
    this.channel.port1.onmessage = () => this.work();
  }

  add(step) {
    this.waiting.push(step);
    if (this.waiting.length === this.next + 1) this.channel.port2.postMessage(0);
  }

  work() {
    const end = performance.now() + SLICE_MS;
    while (this.next < this.waiting.length && performance.now() < end) {
      const step = this.waiting[this.next];
      this.next += 1;
      step();
    }
    if (this.next === this.waiting.length) {
      this.waiting = [];
      this.next = 0;
    } else this.channel.port2.postMessage(0);
    this.done();
  }

  close() {
    this.waiting = [];
    this.next = 0;
    this.channel.port1.close();
  }
}

/**
 * Fill `model` with the output of `runs`. `on.run(run)` is told of every change of one of them, `on.grown()` when the model
 * has more, `on.ended()` when nothing will follow. Answers {close()}.
 */
export function feed({ path, runs, attempt }, model, on) {
  const slices = new Slices(on.grown);
  const append = (content, stream, offset, run, number) => {
    for (let i = 0; i < content.length; i += SLICE_BYTES) {
      const part = content.subarray(i, i + SLICE_BYTES);
      slices.add(() => model.append(part, stream, offset + i, run, number));
    }
  };
  const source = attempt ? fetched(runs[0], attempt) : streamed();

  function fetched(run, number) {
    const stop = new AbortController();
    read(run.id, number, stop.signal).catch((error) => {
      if (stop.signal.aborted) return;
      slices.add(() => {
        model.fault(t("The output could not be loaded: %(why)s. Load the page again.", { why: error.message }));
        on.ended();
      });
    });
    return { close: () => stop.abort() };
  }

  async function read(run, number, signal) {
    const answer = await fetch(`/api/v1/runs/${encodeURIComponent(run)}/output?attempt=${number}`, { signal });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`.trim());
    const gaps = gapsOf(answer.headers.get("X-Output-Gaps"));
    const reader = answer.body.getReader();
    let offset = 0;
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      let rest = value;
      while (rest.length) {
        while (gaps.length && gaps[0][0] <= offset) offset += gaps.shift()[1]; // the model sees it by the offset
        const part = gaps.length ? rest.subarray(0, gaps[0][0] - offset) : rest;
        append(part, "all", offset, run, number);
        offset += part.length;
        rest = rest.subarray(part.length);
      }
    }
    slices.add(() => {
      for (const [from, length] of gaps) model.gap(run, from, length, number);
      model.end(run);
      on.ended();
    });
  }

  function streamed() {
    const known = new Set(runs.map((run) => run.id));
    const ended = new Set();
    const stream = follow(path, null, {
      output: (piece) => {
        if (known.has(piece.run_id)) {
          append(bytesOf(piece.data), piece.stream, piece.offset, piece.run_id, piece.attempt);
        }
      },
      run: (run) => known.has(run.id) && slices.add(() => changed(run)),
      reset: () => {}, // all comes again, and the model takes nothing twice
    }, { mark: false });

    function changed(run) {
      on.run(run);
      if (!RUN_FINAL.has(run.state)) {
        ended.delete(run.id);
        return;
      }
      for (const [from, length] of run.output_gaps ?? []) model.gap(run.id, from, length, run.attempt);
      model.end(run.id);
      ended.add(run.id);
      if (ended.size < known.size) return;
      stream.close();
      on.ended();
    }

    return stream;
  }

  return {
    close() {
      source.close();
      slices.close();
    },
  };
}

/** [[offset, length], ...] of a header `offset+length,...`. */
function gapsOf(header) {
  return (header ?? "").split(",").filter(Boolean).map((gap) => gap.split("+").map(Number));
}
