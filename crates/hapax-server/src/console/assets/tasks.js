// Progress of bulk actions, which the server carries out.

import { call, path } from './api.js';
import { announceChange } from './page.js';
import { badge, button, el, replaceChildren } from './dom.js';
import { number } from './format.js';

const POLL_MS = 700;
const GONE_AFTER_MS = 20_000;

const STATES = { running: ['info', 'Running'], done: ['good', 'Done'], stopped: ['warn', 'Stopped'], failed: ['bad', 'Failed'] };

export function taskState(task) {
  const [tone, text] = STATES[task.state] ?? ['off', task.state];
  return badge(tone, text);
}

/** What a task does, in words. */
export function taskTitle({ action, subject }) {
  const verb = action.charAt(0).toUpperCase() + action.slice(1);
  const of = subject.queue ?? subject.operation;
  const which = [
    subject.state && `that are ${subject.state}`,
    subject.reason && `with the reason “${subject.reason}”`,
    subject.topic && `of the topic ${subject.topic}`,
  ].filter(Boolean);
  return [verb, subject.kind.replaceAll('-', ' '), of && `of ${of}`, ...which].filter(Boolean).join(' ');
}

export function taskCounts({ done, failed, total }) {
  const all = total === null || total === undefined ? '' : ` of ${number(total)}`;
  return `${number(done)}${all} done${failed ? `, ${number(failed)} failed` : ''}`;
}

/** Shows a task beneath the page until it has ended; asks the server only meanwhile. */
export function followTask(first) {
  const tray = document.getElementById('tasks');
  const card = el('div', { class: 'task', 'data-task': first.id });
  tray.append(card);
  const show = (task) => {
    const progress = el('progress', { 'aria-label': 'Progress', max: task.total ?? undefined });
    if (task.total !== null && task.total !== undefined) progress.value = task.done + task.failed;
    const isRunning = task.state === 'running';
    replaceChildren(card,
      el('div', { class: 'task-head' }, el('strong', null, taskTitle(task)), taskState(task)),
      isRunning && progress,
      el('p', { role: 'status' }, taskCounts(task), task.error && `. ${task.error}`),
      isRunning
        ? button('Stop', () => stop(), { class: 'small', 'data-focus': `stop-${task.id}` })
        : button('Close', () => card.remove(), { class: 'small', 'data-focus': `close-${task.id}` }));
  };
  const stop = () => call('DELETE', path('v1', 'operator', 'tasks', first.id)).then(show, fail);
  const fail = (error) => replaceChildren(card,
    el('strong', null, taskTitle(first)),
    el('p', { role: 'status' }, error.status === 404 ? 'It runs on another node, whose console shows it.' : error.message),
    button('Close', () => card.remove(), { class: 'small' }));
  const poll = async () => {
    try {
      const task = await call('GET', path('v1', 'operator', 'tasks', first.id));
      if (!card.isConnected) return;
      show(task);
      if (task.state === 'running') return setTimeout(poll, POLL_MS);
      announceChange();
      if (task.state === 'done') setTimeout(() => card.remove(), GONE_AFTER_MS);
    } catch (error) {
      fail(error);
    }
  };
  show(first);
  poll();
}
