// What all pages share: heading, filters, refresh, reveal, and how problems are shown.

import { el, button, replaceChildren, badge } from './dom.js';
import { confirmAction, isDialogOpen } from './dialog.js';
import { throttled } from './live.js';
import { mayReveal } from './session.js';
import { time } from './format.js';

const REFRESH_MS = 5000;

/**
 * Opens a page in `root`. `load(reveal, note)` fetches and renders: it gives the content, or nothing if it has
 * updated what is there. `reveals` says what is hidden ("keys"), if anything. `filters` are elements for the tool bar.
 */
export function openPage({ context, title, intro, load, reveals, filters = [], isLive = true, canRefresh = () => true }) {
  const { root, live, signal } = context;
  let isRevealed = false;
  let revealNote = '';
  let loading = null;
  let isAskedAgain = false;
  const content = el('div', { class: 'content' });
  const problem = el('p', { class: 'problem', role: 'alert', hidden: true });
  const asOf = el('span', { class: 'as-of' });
  const refresh = button('Refresh', () => reload(), { class: 'small', 'data-refresh': '' });
  const reveal = button('Reveal…', () => (isRevealed ? hide() : askToReveal()), { class: 'small', hidden: true, 'data-reveal': '' });
  const revealed = el('p', { class: 'notice', role: 'status', hidden: true });

  function setRevealed(value, note) {
    isRevealed = value;
    revealNote = note;
    reveal.textContent = value ? `Hide ${reveals}` : `Reveal ${reveals}…`;
    revealed.hidden = !value;
    // Each answer that reveals is a line in the audit log, so revealed pages are read only when a person asks.
    replaceChildren(revealed, value && badge('warn', 'Revealed'), ` The ${reveals} on this page are shown until you leave it. It does not refresh by itself.`);
  }
  function hide() {
    setRevealed(false, '');
    return reload();
  }
  async function askToReveal() {
    const result = await confirmAction({
      title: `Reveal ${reveals}`,
      what: `Show the ${reveals} on this page.`,
      consequences: ['They may identify a person.', 'Who revealed them, when and why is written to the audit log.'],
      confirm: 'Reveal',
      run: async (note) => note,
    });
    if (!result) return;
    setRevealed(true, result.value);
    await reload();
  }

  async function reload() {
    // What is being loaded may be older than the question.
    if (loading) {
      isAskedAgain = true;
      return loading;
    }
    loading = (async () => {
      root.setAttribute('aria-busy', 'true');
      try {
        const made = await load(isRevealed, revealNote);
        if (signal.aborted) return;
        if (made) replaceChildren(content, made);
        problem.hidden = true;
        replaceChildren(asOf, 'as of ', time(Date.now()));
      } catch (error) {
        if (signal.aborted) return;
        if (isRevealed && error.status === 403) setRevealed(false, '');
        problem.textContent = error.message;
        problem.hidden = false;
      } finally {
        root.removeAttribute('aria-busy');
        loading = null;
      }
      if (isAskedAgain && !signal.aborted) {
        isAskedAgain = false;
        await reload();
      }
    })();
    return loading;
  }

  if (reveals && mayReveal()) {
    setRevealed(false, '');
    reveal.hidden = false;
  }
  const heading = el('h1', { tabindex: '-1' }, title);
  replaceChildren(root,
    el('div', { class: 'page-head' }, heading, el('div', { class: 'page-tools' }, asOf, reveal, refresh)),
    intro && el('p', { class: 'intro' }, intro),
    filters.length > 0 && el('div', { class: 'filters', role: 'search' }, filters),
    revealed, problem, content);

  // Somebody who works in the page must not lose the row under the hand.
  const isInUse = () => isRevealed || isDialogOpen() || content.contains(document.activeElement) || content.querySelector('.details') || !canRefresh();
  const refreshQuietly = throttled(REFRESH_MS, () => isInUse() || reload(), signal);
  if (isLive) live.listen(refreshQuietly, signal);
  window.addEventListener('hapax:changed', () => reload(), { signal });
  document.addEventListener('visibilitychange', () => !document.hidden && isLive && refreshQuietly(), { signal });
  return { reload, content, heading, isRevealed: () => isRevealed };
}

/** Tells the page and the navigation that an action has changed something. */
export function announceChange() {
  window.dispatchEvent(new Event('hapax:changed'));
}

/** A short confirmation of what was done, read out by screen readers too. */
export function announce(text) {
  const place = document.getElementById('announcements');
  const line = el('p', null, badge('good', 'Done'), ' ', text);
  place?.replaceChildren(line);
  setTimeout(() => line.remove(), 8000);
}
