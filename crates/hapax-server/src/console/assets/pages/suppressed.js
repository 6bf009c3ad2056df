// Suppressed: duplicates that did no harm, newest first, live.

import { call } from '../api.js';
import { badge, button, code, el, field, none, replaceChildren, select } from '../dom.js';
import { counted, duration, time } from '../format.js';
import { openPage } from '../page.js';
import { dataTable, pagedTable } from '../table.js';

const KINDS = {
  replayed: ['good', 'Replayed'],
  waited: ['info', 'Waited'],
  refused: ['warn', 'Refused'],
  out_of_order: ['off', 'Out of order'],
};
const PAGE = 50;
// What has arrived since the page was opened; older ones are on the pages by cursor.
const LIVE_ROWS = 200;

const COLUMNS = [
  { head: 'When', cell: ({ at }) => time(at) },
  { head: 'Operation', cell: ({ operation }) => (operation ? code(operation) : none()), isWide: true },
  { head: 'What was done', cell: ({ kind }) => badge(...(KINDS[kind] ?? ['off', kind])) },
  { head: 'After the first', isNumber: true, cell: ({ after_first_ms: ms }) => (ms === null ? none() : duration(ms)) },
  { head: 'Caller', cell: ({ caller }) => (caller ? code(caller) : none()) },
  { head: 'Key (hash)', cell: ({ key_hash: hash }) => code(hash) },
  { head: 'Node', cell: ({ node }) => code(node) },
];

export const suppressed = {
  name: 'suppressed',
  title: 'Suppressed',
  show(context) {
    const { live, signal } = context;
    let isPaused = false;
    let arrived = 0;
    let rows = [];
    const kind = select([['', 'All'], ...Object.entries(KINDS).map(([name, [, text]]) => [name, text])], '', { name: 'kind' });
    const operation = el('input', { type: 'search', name: 'operation', 'data-search': '', placeholder: 'POST /orders' });
    const pause = button('Pause the feed', () => togglePause(), { 'aria-pressed': 'false' });
    const feed = el('p', { class: 'feed-state', role: 'log', 'aria-live': 'polite' });
    const matches = (row) => (!kind.value || row.kind === kind.value) && (!operation.value.trim() || row.operation === operation.value.trim());
    const id = ({ at, node, key_hash: hash, kind }) => `${at} ${node} ${hash} ${kind}`;
    const table = pagedTable({
      load: async (after) => {
        const answer = await call('GET', '/v1/operator/suppressed', { signal, query: { kind: kind.value, operation: operation.value.trim(), after, limit: PAGE } });
        return { rows: answer.items, next: answer.next };
      },
      table: (items) => {
        rows = items;
        return shown();
      },
    });
    const shown = () => dataTable({
      caption: 'Duplicates that did no harm, newest first', columns: COLUMNS, rows, id,
      empty: 'No duplicate was suppressed within the last hours, as far as this filter goes.',
    });
    const page = openPage({
      context,
      title: 'Suppressed',
      intro: 'Duplicates that did no harm: each was answered without running its effect again.',
      filters: [field('What was done', kind), field('Operation', operation), pause],
      isLive: false,
      load: async () => {
        if (!table.isConnected) replaceChildren(page.content, feed, table);
        await table.reload();
      },
    });
    function togglePause() {
      isPaused = !isPaused;
      pause.setAttribute('aria-pressed', String(isPaused));
      pause.textContent = isPaused ? 'Go on' : 'Pause the feed';
      showFeed();
      if (!isPaused) page.reload();
    }
    function showFeed() {
      const text = `${counted(arrived, 'duplicate')} suppressed since this page was opened.`;
      replaceChildren(feed, isPaused ? `The feed is paused. ${text}` : text);
    }
    // The server samples: a busy node sends at most some of each interval, and counts the rest.
    live.listen((entry) => {
      if (entry.at + entry.ms < openedAt) return;
      const { replays = 0, waits = 0, refusals = 0 } = entry.counts ?? {};
      arrived += Math.max(replays + waits + refusals, entry.suppressed?.length ?? 0);
      showFeed();
      if (isPaused || !table.isFirstPage() || page.content.contains(document.activeElement)) return;
      const known = new Set(rows.map(id));
      const fresh = (entry.suppressed ?? []).map((one) => ({ ...one, node: entry.node, edge: entry.edge })).filter((one) => matches(one) && !known.has(id(one)));
      if (fresh.length === 0) return;
      rows = [...fresh, ...rows].sort((one, other) => other.at - one.at).slice(0, LIVE_ROWS);
      replaceChildren(table.firstElementChild, shown());
    }, signal);
    const openedAt = Date.now();
    kind.addEventListener('change', () => table.restart());
    operation.addEventListener('change', () => table.restart());
    showFeed();
    page.reload();
  },
};
