// Overview: what needs a person, first; then the last hour of each edge, the store and the nodes.

import { attentionShown } from '../attention.js';
import { lineChart } from '../chart.js';
import { badge, code, definitions, el, none, replaceChildren } from '../dom.js';
import { duration, latency, rate, time } from '../format.js';
import { openPage } from '../page.js';
import { dataTable } from '../table.js';

const EDGES = { api: 'API', proxy: 'Proxy', layer: 'Layer', line: 'LINE', relay: 'Relay', sse: 'Event streams' };
const COUNTS = [
  ['requests', 'Requests'], ['first_runs', 'First runs'], ['replays', 'Replays'],
  ['waits', 'Waits'], ['refusals', 'Refusals'], ['errors', 'Errors'],
];
const PERCENTILES = [['p50_ms', 'p50'], ['p95_ms', 'p95'], ['p99_ms', 'p99']];
const MINUTE_MS = 60_000;
const NOW_MS = 10_000;
const SILENT_MS = 90_000;

export const overview = {
  name: 'overview',
  title: 'Overview',
  show(context) {
    const { shell, signal, live } = context;
    const first = el('div');
    const now = el('section', { 'aria-labelledby': 'now-title' });
    const rest = el('div');
    // The navigation reads the overview for its counts; this page shows the same answer instead of asking again.
    const page = openPage({
      context,
      title: 'Overview',
      isLive: false,
      load: async () => {
        if (page.content.childElementCount === 0) page.content.append(first, now, rest);
        showNow(now, live);
        if (shell.overview) await shell.readOverview();
      },
    });
    page.reload();
    live.listen(() => showNow(now, live), signal);
    const timer = setInterval(() => document.hidden || showNow(now, live), NOW_MS / 2);
    signal.addEventListener('abort', () => clearInterval(timer));
    shell.listenToOverview((answer, error) => show(first, rest, answer, error), signal);
  },
};

function show(first, rest, answer, error) {
  const problem = error && el('p', { class: 'problem', role: 'alert' }, error.message);
  replaceChildren(first, problem, answer && attention(answer));
  // A chart in which somebody reads must not be replaced under the hand.
  if (!answer || rest.querySelector('.plot:focus, .plot:hover')) return;
  replaceChildren(rest, edges(answer.minutes), store(answer.store), nodes(answer.nodes));
}

/** Rates of the last seconds, from the event stream. */
function showNow(place, live) {
  const since = Date.now() - NOW_MS;
  const entries = live.recent.filter((entry) => entry.at > since);
  const count = (entry, name) => (entry.counts?.[name] ?? 0) + (entry.sse?.counts?.[name] ?? 0);
  const perSecond = (name) => entries.reduce((sum, entry) => sum + count(entry, name), 0) / (NOW_MS / 1000);
  replaceChildren(place,
    el('h2', { id: 'now-title', class: 'visually-hidden' }, 'Right now'),
    el('dl', { class: 'figures' }, COUNTS.map(([name, label]) =>
      el('div', { class: name === 'errors' && perSecond(name) > 0 ? 'figure bad' : 'figure' }, el('dt', null, label), el('dd', null, rate(perSecond(name)))))));
}

function attention({ attention: list, counting: isCounting }) {
  const item = (one) => {
    const { tone, text, hash } = attentionShown(one);
    const sign = badge(tone, tone === 'bad' ? 'Act' : 'Look');
    return el('li', null, sign, hash ? el('a', { href: hash }, text) : el('span', null, text));
  };
  return el('section', { class: 'attention', 'aria-labelledby': 'attention-title' },
    el('h2', { id: 'attention-title' }, 'Needs a person'),
    list.length === 0
      ? el('p', { class: 'calm' }, badge('good', 'Nothing'), isCounting ? ' needs a person so far; unknown outcomes are being counted.' : ' needs a person.')
      : el('ul', null, list.map(item)));
}

function edges(minutes) {
  const names = [...new Set(minutes.flatMap((minute) => Object.keys(minute.edges)))];
  const known = Object.keys(EDGES);
  const place = (name) => (known.indexOf(name) + known.length + 1) % (known.length + 1);
  names.sort((one, other) => place(one) - place(other) || one.localeCompare(other));
  return el('section', { 'aria-labelledby': 'edges-title' },
    el('h2', { id: 'edges-title' }, 'The last hour'),
    names.length === 0
      ? el('p', { class: 'empty' }, 'No request within the last hour.')
      : names.map((name) => edge(name, wholeHour(minutes))));
}

/** All minutes of the last hour; the server leaves out those in which nothing happened. */
function wholeHour(minutes) {
  const known = new Map(minutes.map((minute) => [minute.at, minute]));
  const last = Math.max(Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS, ...known.keys());
  const at = (index) => last - (59 - index) * MINUTE_MS;
  return Array.from({ length: 60 }, (_, index) => known.get(at(index)) ?? { at: at(index), edges: {} });
}

/** How many seconds of a minute have passed: the last one is not over. */
function secondsOf(at) {
  return Math.min(60, Math.max(1, (Date.now() - at) / 1000));
}

function edge(name, minutes) {
  const counts = minutes.map(({ at, edges }) => {
    const values = COUNTS.map(([count]) => [count, (edges[name]?.[count] ?? 0) / secondsOf(at)]);
    return { at, ...Object.fromEntries(values) };
  });
  const times = minutes.map(({ at, edges }) => {
    const values = PERCENTILES.map(([percentile]) => [percentile, edges[name]?.[percentile] ?? null]);
    return { at, ...Object.fromEntries(values) };
  });
  const series = (pairs) => pairs.map(([name, label]) => ({ name, label }));
  const title = EDGES[name] ?? name;
  return el('article', { class: 'edge', 'data-edge': name },
    el('h3', null, title),
    el('div', { class: 'charts' },
      lineChart({ title: 'Per second', points: counts, series: series(COUNTS), format: rate, summary: 'requests' }),
      lineChart({ title: 'Latency', points: times, series: series(PERCENTILES), format: latency, summary: 'p95_ms' })));
}

const SEVERITIES = { refuse: ['bad', 'Refused'], warn: ['warn', 'Warning'] };

function store({ name, ready, reason, latency_ms: took, findings }) {
  const columns = [
    { head: 'Severity', cell: ({ severity }) => badge(...(SEVERITIES[severity] ?? ['warn', severity])) },
    { head: 'Check', cell: ({ check }) => code(check) },
    { head: 'Finding', cell: ({ text }) => text, isWide: true },
    { head: 'What to do', cell: ({ fix }) => fix ?? none(), isWide: true },
  ];
  return el('section', { 'aria-labelledby': 'store-title' },
    el('h2', { id: 'store-title' }, 'Store'),
    definitions([
      ['Store', name],
      ['State', ready ? badge('good', 'Ready') : [badge('bad', 'Not ready'), reason ? ` ${reason}` : '']],
      ['Latency', latency(took)],
    ]),
    dataTable({ caption: 'Findings of the doctor', columns, rows: findings ?? [], id: ({ check }) => check, empty: 'The doctor has no findings.' }));
}

function nodeState(node) {
  if (node.stopped) return badge('off', 'Stopped');
  return node.seen_ago_ms > SILENT_MS ? badge('bad', 'Silent') : badge('good', 'Up');
}

function nodes(rows) {
  const seen = (ago) => (ago === null || ago === undefined ? none() : `${duration(ago)} ago`);
  const columns = [
    { head: 'Node', cell: ({ node }) => code(node) },
    { head: 'Edge', cell: ({ edge }) => EDGES[edge] ?? edge },
    { head: 'State', cell: nodeState },
    { head: 'Seen', cell: ({ seen_ago_ms: ago }) => seen(ago) },
    { head: 'Started', cell: ({ started_at: at }) => time(at) },
    { head: 'Version', cell: ({ version }) => version },
    { head: 'Store latency', isNumber: true, cell: ({ store_latency_ms: ms }) => latency(ms) },
    { head: 'Target', cell: ({ target }) => (target ? [badge(target.up ? 'good' : 'bad', `${target.name} ${target.up ? 'up' : 'away'}`), target.last_error ? ` ${target.last_error}` : ''] : none()) },
  ];
  return el('section', { 'aria-labelledby': 'nodes-title' },
    el('h2', { id: 'nodes-title' }, 'Nodes'),
    dataTable({ caption: 'Processes on this store', columns, rows, id: ({ node }) => node, empty: 'No process has reported yet.' }));
}
