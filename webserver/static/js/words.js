// What scripts say, in the page's language. The page carries the catalogue; English is the source and needs none.

const catalogue = JSON.parse(document.getElementById("words")?.textContent || "{}");
export const language = document.documentElement.lang || "en";

function fill(text, values) {
  return text.replace(/%\((\w+)\)s/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** `text` in the page's language; `%(name)s` in it stands for `values.name`. */
export function t(text, values = {}) {
  return fill(catalogue[text] ?? text, values);
}

/** As `t`, by the number `n`, which is also a value: `one` for one, `many` for any other number. */
export function tn(one, many, n, values = {}) {
  const said = catalogue[many] ?? (n === 1 ? one : many);
  return fill(said, { n: number(n), ...values });
}

const numbers = new Intl.NumberFormat(language);

/** A number with its thousands apart. */
export function number(n) {
  return numbers.format(n);
}
