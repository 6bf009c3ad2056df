// Unknown outcomes: commands whose owner is gone, and what to do about them.

import { call, path } from '../api.js';
import { badge, button, code, el, field, none, replaceChildren, secret, select } from '../dom.js';
import { confirmAction } from '../dialog.js';
import { counted, duration, number } from '../format.js';
import { announce, announceChange, openPage } from '../page.js';
import { mayAct } from '../session.js';
import { dataTable, pagedTable } from '../table.js';
import { followTask } from '../tasks.js';

const PAGE = 50;
const COUNTED = 1000;
export const STATES = {
  unknown: ['bad', 'Unknown'],
  failed: ['warn', 'Failed'],
  pending: ['info', 'Pending'],
  completed: ['good', 'Completed'],
};
const AGES = [['', 'Any age'], ['60000', '1 minute'], ['3600000', '1 hour'], ['86400000', '1 day']];

/** The inputs for the answer that callers will get, and what they say. */
function answerFields() {
  const status = el('input', { type: 'number', name: 'status', min: '200', max: '599', value: '200', required: true });
  const type = el('input', { name: 'content-type', value: 'application/json', spellcheck: 'false' });
  const body = el('textarea', { name: 'body', rows: '4', spellcheck: 'false' });
  return {
    elements: [field('Status', status), field('Content-Type', type), field('Body', body, 'Every caller gets this answer from now on, byte by byte.')],
    read: () => ({
      status: Number(status.value),
      ...(type.value.trim() && body.value ? { headers: { 'content-type': type.value.trim() } } : {}),
      ...(body.value ? { body: body.value } : {}),
    }),
  };
}

export const unknown = {
  name: 'unknown',
  title: 'Unknown outcomes',
  show(context) {
    const { signal, go } = context;
    const state = select([['unknown', 'Unknown'], ['failed', 'Failed'], ['pending', 'Pending']], 'unknown', { name: 'state' });
    const operation = el('input', { type: 'search', name: 'operation', 'data-search': '', placeholder: 'POST /orders' });
    const age = select(AGES, '', { name: 'age' });
    const bulk = el('div', { class: 'bulk' });
    let asked = { reveal: false, note: '', after: null };
    // A row whose key is hidden is named by the key's hash, which the server finds on this page.
    const one = (row) => path('v1', 'operator', 'commands', row.operation, row.key ?? row.key_hash);
    const which = (row) => (row.key === null ? { by: 'hash', state: row.state, after: asked.after } : { scope: row.scope });

    async function settle(row) {
      const answer = answerFields();
      const result = await confirmAction({
        title: 'Settle with an answer',
        what: `Settle attempt ${row.attempt} of ${row.operation} with the answer below.`,
        consequences: ['Its effect is not run. Callers who repeat the request get this answer.'],
        fields: answer.elements,
        confirm: 'Settle',
        run: (note) => call('PUT', one(row), { query: which(row), body: answer.read(), note }),
      });
      if (result) finish('The command was settled.');
    }
    async function release(row) {
      const result = await confirmAction({
        title: 'Release for a retry',
        what: `Release ${row.operation}: forget attempt ${row.attempt}.`,
        consequences: ['The next request with its key runs the effect. If the lost attempt had run it, it runs twice.'],
        confirm: 'Release',
        isDangerous: true,
        run: (note) => call('DELETE', one(row), { query: which(row), note }),
      });
      if (result) finish('The command was released.');
    }
    /** How many commands match, in words: they are counted up to one large page. */
    async function countMatching({ state: wanted, operation: of, older_than_ms: age = 0 }) {
      try {
        const query = { state: wanted, operation: of, limit: COUNTED, reveal: false };
        const { commands, next } = await call('GET', '/v1/operator/commands', { signal, query });
        const found = commands.filter((row) => row.begun_ms_ago >= age).length;
        return `${next ? 'at least ' : ''}${counted(found, 'command')}`;
      } catch {
        // The action itself will say what is wrong, if it still is.
        return 'all commands';
      }
    }
    function finish(text) {
      announce(text);
      announceChange();
    }
    async function decide(action) {
      const answer = action === 'settle' ? answerFields() : null;
      const where = {
        state: state.value,
        ...(operation.value.trim() && { operation: operation.value.trim() }),
        ...(age.value && { older_than_ms: Number(age.value) }),
      };
      const verb = action === 'settle' ? 'Settle' : 'Release';
      const matching = await countMatching(where);
      if (signal.aborted) return;
      const result = await confirmAction({
        title: `${verb} all that match`,
        what: `${verb} ${sentence(where, matching)}${action === 'settle' ? ' with the answer below' : ''}.`,
        consequences: [
          action === 'settle' ? 'Their effects are not run. All their callers get this one answer.' : 'Requests that come again run their effects. Where a lost attempt had run its effect, it runs twice.',
          'The server does it one by one; you see its progress and can stop it. Also those are done that come to match meanwhile.',
        ],
        fields: answer?.elements,
        confirm: `${verb} all`,
        isDangerous: true,
        run: (note) => call('POST', '/v1/operator/commands/decide', { body: { where, action, ...answer?.read() }, note }),
      });
      if (result) followTask(result.value);
    }

    const columns = [
      { head: 'Operation', cell: (row) => code(row.operation), isWide: true },
      { head: 'Key', isWide: true, cell: (row) => [secret(row.key, row.masked), ' ', row.key === null && code(row.key_hash)] },
      { head: 'State', cell: (row) => badge(...(STATES[row.state] ?? ['off', row.state])) },
      { head: 'Age', isNumber: true, cell: (row) => duration(row.begun_ms_ago) },
      { head: 'Attempt', isNumber: true, cell: (row) => number(row.attempt) },
      { head: 'Owner', cell: (row) => (row.label ? code(row.label) : none()) },
      { head: 'Caller', cell: (row) => (row.scope ? code(row.scope) : none()) },
      { head: 'Kept for', isNumber: true, cell: (row) => duration(row.expires_in_ms) },
    ];
    const actions = {
      head: 'Actions',
      isAction: true,
      cell: (row) => {
        const focus = (name) => ({ class: 'small', 'data-focus': `${name}-${row.key_hash}` });
        return [
          row.key !== null && button('Its life', () => go('#/key', { kind: 'command', scope: row.operation, key: row.key, caller: row.scope }), focus('life')),
          mayAct() && row.state !== 'pending' && button('Settle…', () => settle(row), focus('settle')),
          mayAct() && row.state !== 'pending' && button('Release…', () => release(row), focus('release')),
        ];
      },
    };
    const table = pagedTable({
      load: async (after) => {
        asked.after = after;
        const query = { state: state.value, operation: operation.value.trim(), after, limit: PAGE, reveal: asked.reveal };
        const answer = await call('GET', '/v1/operator/commands', { signal, query, note: asked.note });
        const isOld = (row) => row.begun_ms_ago >= Number(age.value || 0);
        return { rows: answer.commands.filter(isOld), next: answer.next };
      },
      table: (rows) => {
        showBulk(rows);
        const hasActions = rows.some((row) => row.key !== null || (mayAct() && row.state !== 'pending'));
        return dataTable({
          caption: 'Commands, by operation', columns: hasActions ? [...columns, actions] : columns, rows,
          id: (row) => row.key_hash, empty: `No command is ${state.value}. Nothing to decide.`,
        });
      },
    });
    function showBulk(rows) {
      const can = mayAct() && rows.length > 0 && state.value !== 'pending';
      replaceChildren(bulk, can && button('Release all that match…', () => decide('release'), { 'data-focus': 'release-all' }),
        can && button('Settle all that match…', () => decide('settle'), { 'data-focus': 'settle-all' }));
    }
    const page = openPage({
      context,
      title: 'Unknown outcomes',
      intro: 'Commands that began and whose owner is gone: nobody can tell whether the effect happened. Find out, then settle with the answer or release for a retry.',
      reveals: 'keys',
      filters: [field('State', state), field('Operation', operation), field('Older than', age)],
      canRefresh: () => table.isFirstPage(),
      load: async (reveal, note) => {
        asked = { ...asked, reveal, note };
        if (!table.isConnected) replaceChildren(page.content, bulk, table);
        await table.reload();
      },
    });
    for (const input of [state, operation, age]) input.addEventListener('change', () => table.restart());
    page.reload();
  },
};

/** The filter in words, for the dialog. */
function sentence({ state, operation, older_than_ms: age }, matching) {
  const of = operation ? ` of ${operation}` : '';
  const old = age ? ` that began more than ${duration(age)} ago` : '';
  const which = state === 'failed' ? 'that failed' : 'with an unknown outcome';
  return `${matching}${of} ${which}${old ? `, and${old}` : ''}`;
}
