// A small line chart. Lines differ in dashes as well as colours; the legend is the read-out of the minute under the
// pointer or, by arrow keys, under the cursor; a sentence sums it up.

import { el, svg } from './dom.js';
import { clockTime } from './format.js';

const WIDTH = 600;
const HEIGHT = 120;

/**
 * `points` are `{ at, NAME: value | null }`, `series` are `{ name, label }` in the order of their drawing,
 * `format` writes a value, `summary` is the name of the series that the sentence is about.
 */
export function lineChart({ title, points, series, format, summary }) {
  const highest = Math.max(0, ...points.flatMap((point) => series.map(({ name }) => point[name] ?? 0)));
  const top = roundUp(highest);
  const last = points.length - 1;
  const x = (index) => (last > 0 ? (index / last) * WIDTH : WIDTH);
  const y = (value) => HEIGHT - (value / top) * HEIGHT;

  const path = (kind, index, d) => svg('path', { class: `${kind} series-${index + 1}`, d, 'vector-effect': 'non-scaling-stroke' });
  const lines = series.map(({ name }, index) => path('line', index, linePath(points, name, x, y)));
  // A value without neighbours is no line: a dot, drawn as a line without length so that it stays round.
  const dots = series.map(({ name }, index) => path('dot', index, dotPath(points, name, x, y)));
  const grid = [0, 0.5].map((part) =>
    svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: part * HEIGHT, y2: part * HEIGHT, 'vector-effect': 'non-scaling-stroke' }));
  const cursor = svg('line', { class: 'cursor', y1: 0, y2: HEIGHT, 'vector-effect': 'non-scaling-stroke', visibility: 'hidden' });
  const drawing = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, grid, lines, dots, cursor);

  const values = series.map(() => el('dd'));
  const when = el('span', { class: 'chart-time' });
  const legend = el('dl', { class: 'legend' }, series.map(({ label }, index) =>
    el('div', null, el('dt', null, swatch(index), label), values[index])));
  const plot = el('div', {
    class: 'plot', tabindex: '0', role: 'slider', 'aria-label': `${title}, minute`,
    'aria-valuemin': '0', 'aria-valuemax': String(Math.max(last, 0)),
  }, drawing);

  let shown = last;
  const show = (index, isMarked) => {
    shown = Math.min(Math.max(index, 0), last);
    const point = points[shown];
    if (!point) return;
    cursor.setAttribute('x1', x(shown));
    cursor.setAttribute('x2', x(shown));
    cursor.setAttribute('visibility', isMarked ? 'visible' : 'hidden');
    when.textContent = isMarked ? clockTime(point.at) : `now, ${clockTime(point.at)}`;
    const texts = series.map(({ name }) => (point[name] === null || point[name] === undefined ? '–' : format(point[name])));
    texts.forEach((text, position) => { values[position].textContent = text; });
    plot.setAttribute('aria-valuenow', String(shown));
    plot.setAttribute('aria-valuetext',
      `${clockTime(point.at)}: ${series.map(({ label }, position) => `${label} ${texts[position]}`).join(', ')}`);
  };
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
  plot.addEventListener('keydown', (event) => {
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(shown + step, true);
  });
  plot.addEventListener('pointermove', (event) => {
    const { left, width } = plot.getBoundingClientRect();
    show(Math.round(((event.clientX - left) / width) * last), true);
  });
  plot.addEventListener('pointerleave', () => show(last, document.activeElement === plot));
  plot.addEventListener('focus', () => show(shown, true));
  plot.addEventListener('blur', () => show(last, false));
  show(last, false);

  return el('figure', { class: 'chart' },
    el('figcaption', null, el('strong', null, title), when),
    el('div', { class: 'plot-frame' }, el('span', { class: 'axis-top', 'aria-hidden': 'true' }, format(top)), plot),
    el('div', { class: 'axis-times', 'aria-hidden': 'true' },
      [0, 0.5, 1].map((part) => el('span', null, points.length ? clockTime(points[Math.round(part * last)].at) : ''))),
    legend,
    el('p', { class: 'chart-summary' }, sentence(points, series.find(({ name }) => name === summary) ?? series[0], format)));
}

/** The path of a series; a minute without a value interrupts it. */
function linePath(points, name, x, y) {
  let isDrawing = false;
  return points.map((point, index) => {
    const value = point[name];
    if (value === null || value === undefined) {
      isDrawing = false;
      return '';
    }
    const step = `${isDrawing ? 'L' : 'M'}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    isDrawing = true;
    return step;
  }).join('');
}

/** The values of a series that have no neighbours. */
function dotPath(points, name, x, y) {
  const has = (index) => (points[index]?.[name] ?? null) !== null;
  return points.map((point, index) =>
    (has(index) && !has(index - 1) && !has(index + 1) ? `M${x(index).toFixed(1)} ${y(point[name]).toFixed(1)}h0` : '')).join('');
}

function sentence(points, { name, label }, format) {
  const known = points.filter((point) => (point[name] ?? null) !== null);
  if (known.length === 0) return `${label}: nothing within the last hour.`;
  const peak = known.reduce((best, point) => (point[name] > best[name] ? point : best));
  const average = known.reduce((sum, point) => sum + point[name], 0) / known.length;
  return `${label}: at most ${format(peak[name])} (${clockTime(peak.at)}), on average ${format(average)}.`;
}

function swatch(index) {
  return svg('svg', { class: 'swatch', viewBox: '0 0 24 6', 'aria-hidden': 'true' },
    svg('line', { class: `line series-${index + 1}`, x1: 0, x2: 24, y1: 3, y2: 3 }));
}

/** The next of 1, 2, 5 times a power of ten, so that the axis has a round end. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
