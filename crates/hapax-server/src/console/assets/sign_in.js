// The sign-in page: a token of this server for a session cookie.

import { badge, el, field } from './dom.js';
import { signIn } from './session.js';

/** Shows the form; `refusal` says why somebody ended up here, if there is something to say. */
export function showSignIn(app, onSignedIn, refusal) {
  document.title = 'Sign in · hapax';
  const token = el('input', { type: 'password', name: 'token', required: true, autocomplete: 'current-password', spellcheck: 'false' });
  const problem = el('p', { class: 'problem', role: 'alert', hidden: !refusal }, refusal);
  const submit = el('button', { type: 'submit', class: 'primary' }, 'Sign in');
  const readiness = el('p', { class: 'readiness' });
  const send = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    problem.hidden = true;
    try {
      await signIn(token.value.trim());
      onSignedIn();
    } catch (error) {
      problem.textContent = error.status === 401 ? 'This server does not know that token.' : error.message;
      problem.hidden = false;
      submit.disabled = false;
      token.select();
    }
  };
  app.replaceChildren(el('main', { class: 'sign-in', id: 'main' },
    el('h1', null, 'hapax'),
    el('p', { class: 'intro' }, 'What was suppressed, what is unknown, what is stuck.'),
    readiness,
    el('form', { onsubmit: send },
      field('Token', token, 'A token of this server with the scope read or admin. The session ends after 12 hours.'),
      problem, submit)));
  token.focus();
  showReadiness(readiness);
}

/** People who cannot sign in may still see whether the server works, as the probes do. */
async function showReadiness(place) {
  try {
    const answer = await fetch('/readyz', { cache: 'no-store' });
    const { ready, reason } = await answer.json();
    place.replaceChildren(ready ? badge('good', 'Ready') : badge('bad', 'Not ready'), reason ? ` ${reason}` : '');
  } catch {
    place.replaceChildren(badge('bad', 'The server does not answer'));
  }
}
