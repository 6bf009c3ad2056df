// The one dialog before every action: it says what will be done and takes a note for the audit log.

import { el, field, button, uniqueId } from './dom.js';
import { bytes } from './format.js';

const NOTE_BYTES = 500;

/**
 * Asks once, then runs the action. Gives what `run` gave, or null if the person cancelled.
 *
 * `what` is one sentence that says exactly what happens; `consequences` are further sentences; `fields` are
 * inputs of the action. An action that fails leaves the dialog open with the reason.
 */
export function confirmAction({ title, what, consequences = [], fields = [], confirm, isDangerous = false, run }) {
  const opener = document.activeElement;
  return new Promise((resolve) => {
    let result = null;
    let isRunning = false;
    const titleId = uniqueId('dialog');
    const note = el('input', { name: 'note', maxlength: String(NOTE_BYTES), autocomplete: 'off' });
    const problem = el('p', { class: 'problem', role: 'alert', hidden: true });
    const cancel = button('Cancel', () => dialog.close());
    const submit = el('button', { type: 'submit', class: isDangerous ? 'danger' : 'primary', 'data-confirm': '' }, confirm);

    const showProblem = (text) => {
      problem.textContent = text;
      problem.hidden = false;
    };
    const send = async (event) => {
      event.preventDefault();
      if (isRunning) return;
      if (bytes(note.value) > NOTE_BYTES) return showProblem(`The note is too long: at most ${NOTE_BYTES} bytes.`);
      isRunning = submit.disabled = cancel.disabled = true;
      problem.hidden = true;
      try {
        result = { value: await run(note.value.trim()) };
        dialog.close();
      } catch (error) {
        showProblem(error.message);
      } finally {
        isRunning = submit.disabled = cancel.disabled = false;
      }
    };

    const form = el('form', { onsubmit: send },
      el('h2', { id: titleId }, title),
      el('p', { class: 'what' }, what),
      consequences.length > 0 && el('ul', null, consequences.map((text) => el('li', null, text))),
      fields,
      field('Note', note, 'Why; it goes into the audit log with your name.'),
      problem,
      el('div', { class: 'buttons' }, cancel, submit));
    const dialog = el('dialog', { 'aria-labelledby': titleId, class: isDangerous ? 'dangerous' : null }, form);
    // The outcome of a request that is under way must not get lost.
    dialog.addEventListener('cancel', (event) => isRunning && event.preventDefault());
    dialog.addEventListener('close', () => {
      dialog.remove();
      if (opener?.isConnected) opener.focus();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    form.querySelector('input').focus();
  });
}

export function isDialogOpen() {
  return document.querySelector('dialog[open]') !== null;
}
