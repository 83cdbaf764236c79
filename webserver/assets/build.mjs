// Makes the vendored browser files from this folder and its node_modules: node build.mjs TARGET
// Writes the files, the licence texts of everything in them, and manifest.json. Started by scripts/vendor.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const target = process.argv[2];
const COPIED = {
  "htmx.min.js": "htmx.org/dist/htmx.min.js",
  "pico.min.css": "@picocss/pico/css/pico.min.css",
  "uplot.min.css": "uplot/dist/uPlot.min.css",
};
const BUNDLED = ["codemirror.js", "uplot.js"];
// How the package says it, and how SPDX does.
const SPDX = { "BSD-0-Clause": "0BSD" };

const files = [];

const packageOf = (path) => path.split("/").slice(0, path.startsWith("@") ? 2 : 1).join("/");

function describe(file, source, packages) {
  const content = readFileSync(join(target, file));
  const sha256 = createHash("sha256").update(content).digest("hex");
  files.push({ file, source, packages: [...new Set(packages)].sort(), bytes: content.length, sha256 });
}

function copy(file, source) {
  copyFileSync(join("node_modules", source), join(target, file));
  describe(file, source, [packageOf(source)]);
}

async function bundle(entry) {
  const made = await build({
    entryPoints: [entry], outfile: join(target, entry), bundle: true, minify: true, format: "esm", target: "es2022",
    legalComments: "eof", metafile: true, logLevel: "warning",
  });
  const inputs = Object.keys(made.metafile.inputs).filter((path) => path.startsWith("node_modules/"));
  describe(entry, entry, inputs.map((path) => packageOf(path.slice("node_modules/".length))));
}

function sprite(file) {
  const symbols = readFileSync("icons.txt", "utf8").split("\n").filter(Boolean).map((name) => {
    const icon = readFileSync(`node_modules/lucide-static/icons/${name}.svg`, "utf8");
    const shapes = icon.match(/<svg[^>]*>([\s\S]*)<\/svg>/)[1].split("\n").map((line) => line.trim()).join("");
    return `<symbol id="i-${name}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2"` +
      ` stroke-linecap="round" stroke-linejoin="round">${shapes}</symbol>\n`;
  });
  writeFileSync(join(target, file), `<svg xmlns="http://www.w3.org/2000/svg">\n${symbols.join("")}</svg>\n`);
  describe(file, "icons.txt", ["lucide-static"]);
}

function licence(name) {
  const folder = join("node_modules", name);
  const stated = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const text = `licences/${name.replace(/^@/, "").replaceAll("/", "-")}.txt`;
  copyFileSync(join(folder, readdirSync(folder).find((file) => /^licen[cs]e/i.test(file))), join(target, text));
  return { name, version: stated.version, licence: SPDX[stated.license] ?? stated.license, text };
}

mkdirSync(join(target, "licences"), { recursive: true });
for (const [file, source] of Object.entries(COPIED)) copy(file, source);
for (const entry of BUNDLED) await bundle(entry);
sprite("icons.svg");
files.sort((a, b) => (a.file < b.file ? -1 : 1));
const packages = [...new Set(files.flatMap((entry) => entry.packages))].sort().map(licence);
writeFileSync(join(target, "manifest.json"), `${JSON.stringify({ files, packages }, null, 2)}\n`);
