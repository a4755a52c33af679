// Lets a reader explore the figures: values under a cursor, zoom along x, series on and off.
// The drawing is the data: points are read from the paths, the scales from data-axes. Without this script
// the page is whole. Keys in a figure: arrows move the cursor, + and - zoom, Escape shows everything.
"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg";
const STRIDE = 0.01; // of the width, an arrow key's step
const MIN_DRAG = 4; // in the drawing's units; less is a click
const MAX_ZOOM = 1000;
const REACH = 12; // how far a lone point may lie from the cursor

// Named as in reports/quantities.py, where they are the same.
const digits = v => v === 0 ? "0" : Math.abs(v) >= 99.95 ? Math.round(v).toLocaleString("en") : v.toPrecision(3);
const unit = v => Math.abs(v) >= 1 - 1e-9 ? [1, "s"] : Math.abs(v) >= 1e-3 - 1e-12 ? [1e3, "ms"] : [1e6, "µs"];
const FORMATS = {
  format_number: digits,
  format_count: v => Math.round(v).toLocaleString("en"),
  format_time: v => { const [scale, name] = unit(v); return `${digits(v * scale)} ${name}`; },
  format_run_time: v => `${v.toFixed(2)} s`,
  format_percent: v => `${digits(100 * v)} %`,
  format_nines: v => `p${+(100 - 100 / v).toFixed(3)}`,
};
const short = v => String(+v.toPrecision(5));
const TICKS = {
  format_time: v => { const [scale, name] = unit(v); return `${short(v * scale)} ${name}`; },
  format_percent: v => `${short(100 * v)} %`,
  format_nines: FORMATS.format_nines,
};

const make = (name, attributes, parent) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return parent.appendChild(element);
};

class Scale { // from values to the drawing's units and back; the range shown is `low` to `high`
  constructor({low, high, is_log, format}, start, end) {
    Object.assign(this, {is_log, format, start, end});
    this.whole = [this.bend(low), this.bend(high)];
    [this.low, this.high] = this.whole;
  }
  bend(v) { return this.is_log ? Math.log10(v) : v; }
  value(at) {
    const bent = this.low + (at - this.start) / (this.end - this.start) * (this.high - this.low);
    return this.is_log ? 10 ** bent : bent;
  }
  place(v) { return this.start + (this.bend(v) - this.low) / (this.high - this.low) * (this.end - this.start); }
  get stretch() { return (this.whole[1] - this.whole[0]) / (this.high - this.low); }
  // Where a point of the unzoomed drawing lies now: stretch * x + shift.
  get shift() {
    const share = (this.low - this.whole[0]) / (this.whole[1] - this.whole[0]);
    return this.start - this.stretch * (this.start + share * (this.end - this.start));
  }
  get ticks() {
    const [low, high] = [this.value(this.start), this.value(this.end)];
    const found = [];
    if (this.is_log) {
      const steps = this.format === "format_nines" ? [1, 2, 4] : [1, 2, 5];
      for (let k = Math.floor(this.low); k <= this.high; k++)
        found.push(...steps.map(m => m * 10 ** k).filter(v => v >= low && v <= high));
      if (found.length > 1) return found.length > 8 ? found.filter(v => Math.log10(v) % 1 === 0) : found;
    }
    const rough = (high - low) / 6, size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(m => m * size).find(s => s >= rough);
    return Array.from({length: 12}, (_, i) => (Math.ceil(low / step) + i) * step).filter(v => v <= high);
  }
}

class Panel { // one pair of axes
  constructor(figure, group, {box: [left, top, width, height], x, y, series}) {
    Object.assign(this, {group, box: {left, top, width, height}});
    this.x = new Scale(x, left, left + width);
    this.y = new Scale(y, top + height, top);
    this.series = series.map(s => new Series(figure, s));
    this.ticks = [...group.querySelector('[id*="matplotlib.axis_"]').children].filter(g => /xtick/.test(g.id));
    this.fresh = [];
    // Words that have no place on the axis would say something wrong beside a part of it.
    this.fixed = [...group.children].filter(g => /text_|marginal/.test(g.id) && !g.querySelector("[clip-path]"));
    this.movable = [...group.querySelectorAll("[clip-path]")].filter(e => !e.closest('[id*="tick_"]'));
    for (const element of this.movable) { // what moves moves under a clip that stays
      const clip = document.createElementNS(SVG, "g");
      clip.setAttribute("clip-path", element.getAttribute("clip-path"));
      element.removeAttribute("clip-path");
      element.replaceWith(clip);
      clip.append(element);
    }
    this.cursor = make("line", {class: "cursor", y1: top, y2: top + height, visibility: "hidden"}, group);
    for (const s of this.series) s.dot = make("circle", {r: 3, fill: s.colour, visibility: "hidden"}, group);
  }
  zoom(low, high) {
    [this.x.low, this.x.high] = [low, high];
    const {stretch, shift} = this.x, is_whole = stretch === 1;
    for (const element of this.movable) {
      const uses = [...element.querySelectorAll("use")], text = element.querySelector("text");
      if (text) {
        text.dataset.own ??= text.getAttribute("transform") ?? "";
        const x = +text.getAttribute("x");
        text.setAttribute("transform", `translate(${stretch * x + shift - x} 0) ${text.dataset.own}`);
      } else if (uses.length) for (const use of uses) { // a marker moves and keeps its shape
        use.dataset.x ??= use.getAttribute("x");
        use.setAttribute("x", stretch * use.dataset.x + shift);
      } else {
        element.dataset.own ??= element.getAttribute("transform") ?? "";
        element.setAttribute("transform", `matrix(${stretch} 0 0 1 ${shift} 0) ${element.dataset.own}`);
        element.setAttribute("vector-effect", "non-scaling-stroke");
      }
    }
    for (const element of [...this.ticks, ...this.fixed]) element.style.display = is_whole ? "" : "none";
    this.fresh.forEach(tick => tick.remove());
    this.fresh = is_whole ? [] : this.x.ticks.map(v => this.tick(v));
  }
  tick(v) {
    const pattern = this.ticks.find(g => g.querySelector("text")) ?? this.ticks[0];
    const tick = pattern.cloneNode(true);
    const from = +pattern.querySelector("use").getAttribute("x");
    tick.style.display = "";
    tick.setAttribute("transform", `translate(${this.x.place(v) - from} 0)`);
    for (const element of [tick, ...tick.querySelectorAll("*")]) {
      element.removeAttribute("id");
      element.removeAttribute("clip-path");
    }
    const text = tick.querySelector("text");
    if (text) text.textContent = (TICKS[this.x.format] ?? short)(v);
    pattern.parentNode.append(tick);
    return tick;
  }
  point(at, height) { // returns what each series holds there, by name
    const is_inside = at >= this.box.left && at <= this.box.left + this.box.width;
    this.cursor.setAttribute("visibility", is_inside ? "visible" : "hidden");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, at);
    return this.series.map(s => {
      const found = is_inside && s.is_shown ? s.find(at, height, this.x) : null;
      s.dot.setAttribute("visibility", found ? "visible" : "hidden");
      if (!found) return [s, ""];
      s.dot.setAttribute("cx", found.x);
      s.dot.setAttribute("cy", found.y);
      return [s, FORMATS[this.y.format](this.y.value(found.y)), found];
    });
  }
}

class Series { // a line that is read at the cursor, or points of which the nearest is
  constructor(figure, {ids, kind, label, colour}) {
    Object.assign(this, {label, colour, is_shown: true, is_line: kind === "line", points: []});
    this.elements = ids.map(id => document.getElementById(`${figure}-${id}`)).filter(Boolean);
    if (this.is_line) {
      const drawn = this.elements[0].querySelector("path").getAttribute("d");
      this.points = [...drawn.matchAll(/[ML] (\S+) (\S+)/g)].map(([, x, y]) => [+x, +y]);
    } else if (kind === "points") {
      const uses = this.elements.flatMap(e => [...e.querySelectorAll("use")]);
      this.points = uses.map(use => [+use.getAttribute("x"), +use.getAttribute("y")]);
    }
  }
  find(at, height, {stretch, shift}) {
    const was = (at - shift) / stretch, points = this.points;
    if (!points.length) return null;
    if (this.is_line) {
      let low = 0, high = points.length - 1;
      if (was < points[0][0] || was > points[high][0]) return null;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (points[middle][0] <= was) low = middle; else high = middle;
      }
      const [[x0, y0], [x1, y1]] = [points[low], points[high]];
      const y = x1 > x0 ? y0 + (y1 - y0) * (was - x0) / (x1 - x0) : y1;
      return {x: at, y};
    }
    let best = null, least = height === null ? Infinity : REACH ** 2;
    for (const [x, y] of points) {
      const far = (stretch * x + shift - at) ** 2 + (height === null ? 0 : (y - height) ** 2);
      if (far < least) [best, least] = [{x: stretch * x + shift, y}, far];
    }
    return best;
  }
  show(is_shown) {
    this.is_shown = is_shown;
    for (const element of this.elements) element.style.display = is_shown ? "" : "none";
  }
}

class Figure {
  constructor(element) {
    this.element = element;
    this.svg = element.querySelector("svg");
    const name = element.id.replace(/^figure-/, "");
    const described = JSON.parse(element.dataset.axes);
    const groups = this.svg.querySelectorAll('[id*="-axes_"]');
    this.panels = described.map((axes, i) => new Panel(name, groups[i], axes));
    const {x} = described[0];
    this.link = x.format === "format_run_time" ? `${x.low} ${x.high}` : name;
    this.build();
    this.listen();
  }
  get main() { return this.panels[0]; }
  build() {
    this.head = document.createElement("div");
    this.head.className = "readout";
    this.values = new Map();
    const labels = [...new Set(this.panels.flatMap(p => p.series.map(s => s.label)))];
    for (const label of labels) {
      const members = this.panels.flatMap(p => p.series.filter(s => s.label === label));
      const entry = this.head.appendChild(document.createElement(labels.length > 1 ? "button" : "span"));
      entry.className = "series";
      entry.style.setProperty("--swatch", members[0].colour);
      entry.append(`${label} `);
      this.values.set(label, entry.appendChild(document.createElement("output")));
      if (labels.length < 2) continue;
      entry.setAttribute("aria-pressed", "true");
      entry.addEventListener("click", () => {
        const is_shown = entry.getAttribute("aria-pressed") !== "true";
        entry.setAttribute("aria-pressed", is_shown);
        members.forEach(s => s.show(is_shown));
      });
    }
    this.where = this.head.appendChild(document.createElement("span"));
    this.where.setAttribute("role", "status");
    this.reset = this.head.appendChild(document.createElement("button"));
    this.reset.textContent = "show all";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => this.each(f => f.zoom(...f.main.x.whole)));
    this.svg.before(this.head);
    this.svg.tabIndex = 0;
    this.element.classList.add("live");
  }
  each(act) { figures.filter(f => f.link === this.link).forEach(act); }
  zoom(low, high) {
    const [first, last] = this.main.x.whole;
    [low, high] = [Math.max(low, first), Math.min(high, last)];
    if ((last - first) / (high - low) > MAX_ZOOM) return;
    for (const panel of this.panels) panel.zoom(low, high);
    this.reset.hidden = this.main.x.stretch === 1;
    this.point(null);
  }
  point(at, height = null) {
    this.at = at;
    const told = new Map([...this.values.keys()].map(label => [label, []]));
    let where = at;
    for (const panel of this.panels) for (const [s, text, found] of panel.point(at ?? -1, height)) {
      if (text) told.get(s.label).push(text);
      if (found && !s.is_line) where = found.x;
    }
    for (const [label, texts] of told) this.values.get(label).textContent = texts.join(" · ");
    const {x} = this.main;
    this.where.textContent = at === null ? "" : FORMATS[x.format](x.value(where));
  }
  locate(event) {
    const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    return [x, y];
  }
  clamp(at) { return Math.min(Math.max(at, this.main.x.start), this.main.x.end); }
  listen() {
    const {svg} = this;
    svg.addEventListener("pointerdown", event => {
      const [x, y] = this.locate(event);
      if (event.button !== 0 || x < this.main.x.start || x > this.main.x.end) return;
      event.preventDefault();
      svg.setPointerCapture(event.pointerId);
      svg.focus({preventScroll: true, focusVisible: false});
      this.from = x;
      this.band = this.panels.map(p =>
        make("rect", {class: "band", x, y: p.box.top, width: 0, height: p.box.height}, p.group));
    });
    svg.addEventListener("pointermove", event => {
      const [x, y] = this.locate(event);
      const at = this.clamp(x);
      if (this.band) for (const band of this.band) {
        band.setAttribute("x", Math.min(at, this.from));
        band.setAttribute("width", Math.abs(at - this.from));
      }
      this.each(f => f.point(at === x ? at : null, f === this ? y : null));
    });
    const end = event => {
      if (!this.band) return;
      this.band.forEach(band => band.remove());
      this.band = null;
      const at = this.clamp(this.locate(event)[0]), {x} = this.main;
      if (event.type === "pointercancel" || Math.abs(at - this.from) < MIN_DRAG) return;
      const [low, high] = [at, this.from].map(v => x.bend(x.value(v))).sort((a, b) => a - b);
      this.each(f => f.zoom(low, high));
    };
    svg.addEventListener("pointerup", end);
    svg.addEventListener("pointercancel", end);
    svg.addEventListener("pointerleave", () => this.each(f => f.point(null)));
    svg.addEventListener("dblclick", () => this.reset.click());
    svg.addEventListener("keydown", event => {
      const {start, end, low, high, whole} = this.main.x;
      const at = this.at ?? (start + end) / 2;
      const move = to => this.each(f => f.point(this.clamp(to)));
      const scale = factor => {
        const centre = low + (at - start) / (end - start) * (high - low);
        this.each(f => f.zoom(centre - factor * (centre - low), centre + factor * (high - centre)));
        move(at);
      };
      const act = {
        ArrowLeft: () => move(at - STRIDE * (end - start)), ArrowRight: () => move(at + STRIDE * (end - start)),
        "+": () => scale(1 / 2), "=": () => scale(1 / 2), "-": () => scale(2), Escape: () => this.reset.click(),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }
}

const figures = [...document.querySelectorAll("figure[data-axes]")].map(element => new Figure(element));
})();
