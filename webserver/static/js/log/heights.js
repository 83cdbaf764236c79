// Heights of rows, and where each begins: a sum tree, so that half a million rows of different height cost nothing. Pure.

export class Heights {
  constructor() {
    this.clear();
  }

  clear() {
    this.own = [];
    this.tree = [0]; // tree[i]: the sum of own[i - lowest bit of i] .. own[i - 1]
  }

  get length() {
    return this.own.length;
  }

  get total() {
    return this.top(this.own.length);
  }

  append(height) {
    this.own.push(height);
    const i = this.own.length;
    let sum = height;
    for (let j = i - 1, end = i - (i & -i); j > end; j -= j & -j) sum += this.tree[j];
    this.tree.push(sum);
  }

  set(index, height) {
    const change = height - this.own[index];
    if (!change) return;
    this.own[index] = height;
    for (let i = index + 1; i < this.tree.length; i += i & -i) this.tree[i] += change;
  }

  /** Where row `index` begins. */
  top(index) {
    let sum = 0;
    for (let i = index; i > 0; i -= i & -i) sum += this.tree[i];
    return sum;
  }

  /** The row that is at `y`. */
  at(y) {
    let index = 0;
    let step = 1;
    while (step * 2 <= this.own.length) step *= 2;
    for (let left = y; step; step >>= 1) {
      if (index + step <= this.own.length && this.tree[index + step] <= left) {
        index += step;
        left -= this.tree[index];
      }
    }
    return Math.max(0, Math.min(index, this.own.length - 1));
  }
}

/** The same for rows of one height. */
export class EvenHeights {
  constructor(each) {
    this.each = each;
    this.length = 0;
  }

  get total() {
    return this.length * this.each;
  }

  clear() {
    this.length = 0;
  }

  append() {
    this.length += 1;
  }

  set() {}

  top(index) {
    return index * this.each;
  }

  at(y) {
    return Math.max(0, Math.min(Math.floor(y / this.each), this.length - 1));
  }
}
