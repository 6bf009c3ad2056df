// Numbers, durations and times for people.

import { el, none } from './dom.js';

const whole = new Intl.NumberFormat('en');
const tenths = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat('en', { maximumFractionDigits: 2 });
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });
const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });

export function number(value) {
  return value === null || value === undefined ? none() : whole.format(value);
}

/** `1 row`, `1,204 rows`. */
export function counted(value, one, many = `${one}s`) {
  return `${whole.format(value)} ${value === 1 ? one : many}`;
}

/** A rate per second. */
export function rate(value) {
  if (value === null || value === undefined) return '–';
  if (value > 0 && value < 0.01) return '<0.01/s';
  return `${(value < 10 ? hundredths : value < 100 ? tenths : whole).format(value)}/s`;
}

/** A latency, which may be below one millisecond. */
export function latency(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms > 0 && ms < 0.1) return '<0.1 ms';
  return ms < 10 ? `${tenths.format(ms)} ms` : duration(ms);
}

const UNITS = [['d', 86_400_000], ['h', 3_600_000], ['min', 60_000], ['s', 1000]];

/** A duration in at most two units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1000) return `${whole.format(Math.round(ms))} ms`;
  if (ms < 10_000) return `${tenths.format(ms / 1000)} s`;
  const first = UNITS.findIndex(([, size]) => ms >= size);
  const [unit, size] = UNITS[first];
  const rest = UNITS[first + 1];
  const small = rest ? Math.floor((ms % size) / rest[1]) : 0;
  return `${whole.format(Math.floor(ms / size))} ${unit}${small ? ` ${small} ${rest[0]}` : ''}`;
}

/** Milliseconds since 1970 of a number or of a text in RFC 3339. */
export function millis(value) {
  return typeof value === 'number' ? value : Date.parse(value);
}

function ago(at) {
  const passed = Date.now() - at;
  // Clocks of two machines differ a little; a time just ahead is now.
  if (Math.abs(passed) < 2000) return 'just now';
  if (passed < 0) return passed > -5000 ? 'just now' : `in ${roughly(-passed)}`;
  return `${roughly(passed)} ago`;
}

function roughly(ms) {
  const [unit, size] = UNITS.find(([, size]) => ms >= size) ?? UNITS[UNITS.length - 1];
  return `${whole.format(Math.max(1, Math.floor(ms / size)))} ${unit}`;
}

/** A point in time: how long ago, with the exact time as its title. */
export function time(value) {
  if (value === null || value === undefined) return none();
  const at = millis(value);
  if (!Number.isFinite(at)) return String(value);
  const date = new Date(at);
  return el('time', { datetime: date.toISOString(), title: absolute.format(date), 'data-at': at }, ago(at));
}

export function clockTime(at) {
  return clock.format(new Date(at));
}

export function bytes(text) {
  return new TextEncoder().encode(text).length;
}

/** A part of a whole, in percent. */
export function share(part, all) {
  return all ? `${tenths.format((100 * part) / all)} %` : '–';
}

/** Keeps relative times right without asking the server. */
export function updateTimes() {
  for (const shown of document.querySelectorAll('time[data-at]')) {
    const text = ago(Number(shown.dataset.at));
    if (shown.textContent !== text) shown.textContent = text;
  }
}
