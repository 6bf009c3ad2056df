// Find a key: its whole life, and the stored answer.

import { call, path } from '../api.js';
import { badge, button, code, definitions, el, field, none, select } from '../dom.js';
import { counted, duration, number, time } from '../format.js';
import { openPage } from '../page.js';
import { STATES } from './unknown.js';

const KINDS = [['command', 'Command'], ['inbox', 'Inbox message'], ['lock', 'Lock']];
const SCOPES = { command: 'Operation', inbox: 'Consumer', lock: 'Operation' };
const KEY_STATES = { ...STATES, settled: ['good', 'Settled'] };

export const key = {
  name: 'key',
  title: 'Find a key',
  show(context) {
    const given = context.values ?? {};
    const kind = select(KINDS, given.kind ?? 'command', { name: 'kind' });
    const scope = el('input', { name: 'scope', value: given.scope ?? '', required: true, spellcheck: 'false', autocomplete: 'off' });
    const name = el('input', { type: 'search', name: 'key', value: given.key ?? '', required: true, spellcheck: 'false', autocomplete: 'off', 'data-search': '' });
    const caller = el('input', { name: 'caller', value: given.caller ?? '', spellcheck: 'false', autocomplete: 'off' });
    const scopeField = field('Operation', scope);
    const callerField = field('Caller (hash, if several)', caller);
    let wanted = given.key ? read() : null;

    function read() {
      const isLock = kind.value === 'lock';
      return { kind: kind.value, scope: isLock ? '-' : scope.value.trim(), key: name.value, caller: isLock ? '' : caller.value.trim() };
    }
    function showFields() {
      const isLock = kind.value === 'lock';
      scopeField.hidden = callerField.hidden = isLock;
      scope.required = !isLock;
      scopeField.querySelector('label').textContent = SCOPES[kind.value];
    }
    const form = el('form', {
      class: 'filters', onsubmit: (event) => {
        event.preventDefault();
        wanted = read();
        page.reload();
      },
    }, field('Kind', kind), scopeField, field('Key', name), callerField, el('button', { type: 'submit', class: 'primary' }, 'Find'));
    kind.addEventListener('change', showFields);
    showFields();
    const page = openPage({
      context,
      title: 'Find a key',
      intro: 'What happened to one key, and the answer that its callers get.',
      reveals: 'answer',
      filters: [form],
      isLive: false,
      load: async (reveal, note) => {
        if (!wanted) return el('p', { class: 'empty' }, 'Enter an operation and a key as the client sends it. The key is not put into the address.');
        try {
          const found = await call('GET', path('v1', 'operator', 'keys', wanted.kind, wanted.scope, wanted.key), { signal: context.signal, query: { caller: wanted.caller, reveal }, note });
          return shown(found);
        } catch (error) {
          if (error.status !== 404) throw error;
          return el('p', { class: 'empty' }, badge('off', 'Not found'), ' No such key is stored: it was never used, or its time is over.');
        }
      },
    });
    page.reload();
    if (!given.key) name.focus();
  },
};

function shown(found) {
  return [
    definitions([
      ['State', badge(...(KEY_STATES[found.state] ?? ['off', found.state]))],
      ['Attempt', number(found.attempt)],
      ['Fence', found.fence === null ? none() : String(found.fence)],
      ['Owner', found.owner ? code(found.owner) : none()],
      ['Lease left', found.lease_left_ms === null || found.lease_left_ms === undefined ? none() : duration(found.lease_left_ms)],
      ['Key (hash)', code(found.key_hash)],
      ['Kept for', found.expires_in_ms === null || found.expires_in_ms === undefined ? none() : duration(found.expires_in_ms)],
    ]),
    el('section', { 'aria-labelledby': 'life-title' }, el('h2', { id: 'life-title' }, 'Its life'), life(found, found.seen)),
    el('section', { 'aria-labelledby': 'answer-title' }, el('h2', { id: 'answer-title' }, 'Stored answer'), answer(found)),
  ];
}

function life(found, { since, claimed, renewed, settled, replayed, waited, refused }) {
  const times = (count, text) => count > 0 && el('li', null, el('strong', null, text), ` ${counted(count, 'time')}`);
  const step = (at, text, more) => at !== null && at !== undefined && el('li', null, el('strong', null, text), ' ', time(at), more && ` ${more}`);
  return [
    el('ol', { class: 'timeline' },
      step(found.claimed_at, 'Claimed', `attempt ${found.attempt}${found.owner ? ` by ${found.owner}` : ''}`),
      times(renewed, 'Renewed'),
      step(found.settled_at, 'Settled'),
      times(replayed, 'Replayed'), times(waited, 'Waited for'), times(refused, 'Refused'),
      found.expires_in_ms > 0 && el('li', null, el('strong', null, 'Expires'), ' ', time(Date.now() + found.expires_in_ms))),
    el('p', { class: 'hint' }, 'Counts are what nodes have reported since ', time(since), `: claimed ${number(claimed)}, settled ${number(settled)}. A busy node reports only some keys.`),
  ];
}

function answer({ kind, response, masked, state }) {
  if (!response) {
    const isHidden = masked && state === 'settled' && kind === 'command';
    return isHidden ? el('p', null, el('span', { class: 'hidden-value' }, 'hidden')) : el('p', { class: 'empty' }, 'None is stored.');
  }
  const headers = Object.entries(response.headers ?? {}).map(([name, value]) => `${name}: ${[value].flat().join(', ')}`);
  const body = response.body ?? response.body_base64;
  return [
    definitions([['Status', String(response.status)]]),
    headers.length > 0 && el('pre', { tabindex: '0', 'aria-label': 'Headers' }, headers.join('\n')),
    body === null || body === undefined
      ? el('p', null, masked ? el('span', { class: 'hidden-value' }, 'hidden') : 'No body.')
      : el('pre', { tabindex: '0', 'aria-label': 'Body' }, typeof body === 'string' ? body : JSON.stringify(body, null, 2)),
  ];
}
