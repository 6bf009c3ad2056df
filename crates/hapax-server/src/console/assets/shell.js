// The frame around all pages: head, navigation with what needs a person, tasks and announcements.

import { badge, button, el, replaceChildren } from './dom.js';
import { number } from './format.js';
import { attentionPage } from './attention.js';
import { mayAct } from './session.js';
import { GROUPS } from './pages.js';

const LIVE = {
  live: ['good', 'Live'],
  waiting: ['warn', 'Connecting'],
  hidden: ['off', 'Paused'],
  off: ['off', 'Off'],
};

export class Shell {
  #links = new Map();
  #menu;
  #store = el('span', { class: 'store-state' });
  #overviewListeners = new Set();
  #current = null;
  #attention = 0;

  /** The last overview that the server gave, for pages that open later. */
  overview = null;

  constructor(session, live, { leave, readOverview }) {
    this.readOverview = readOverview;
    const liveState = el('span', { class: 'live-state' });
    live.listenToState((state) => replaceChildren(liveState, badge(...LIVE[state])));
    const menu = button('Menu', () => this.#toggleMenu(), { class: 'menu small', 'aria-expanded': 'false', 'aria-controls': 'nav' });
    this.nav = el('nav', { id: 'nav', 'aria-label': 'Pages' }, GROUPS.map((group) => this.#group(group)), footer(session));
    this.#menu = menu;
    this.main = el('main', { id: 'main', tabindex: '-1' });
    this.element = el('div', { class: 'shell' },
      el('header', { class: 'top' },
        menu,
        el('a', { class: 'brand', href: '#/overview' }, 'hapax'),
        this.#store, liveState,
        el('div', { class: 'who' },
          badge(mayAct() ? 'info' : 'off', mayAct() ? 'Operator' : 'Read-only'),
          el('span', { class: 'who-name' }, session.name && session.name !== '-' ? `${session.name}, ` : '', `tenant ${session.tenant}`),
          session.needs_token && button('Sign out', leave, { class: 'small' }))),
      this.nav, this.main,
      el('section', { id: 'tasks', 'aria-label': 'Tasks' }),
      el('div', { id: 'announcements', role: 'status', 'aria-live': 'polite' }));
  }

  #group({ title, pages }) {
    const item = (page) => {
      const count = el('span', { class: 'count', hidden: true });
      const link = el('a', { href: `#/${page.name}` }, el('span', null, page.title), count);
      this.#links.set(page.name, { link, count });
      return el('li', null, link);
    };
    return el('div', { class: 'nav-group' }, el('h2', null, title), el('ul', null, pages.map(item)));
  }

  /** Opens or closes the navigation of a narrow window. */
  #toggleMenu(open = this.#menu.getAttribute('aria-expanded') !== 'true') {
    this.#menu.setAttribute('aria-expanded', String(open));
    this.nav.classList.toggle('open', open);
  }

  showCurrent(page) {
    this.#current = page;
    this.#toggleMenu(false);
    for (const [name, { link }] of this.#links) {
      if (name === page.name) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    this.#showTitle();
  }

  #showTitle() {
    const count = this.#attention > 0 ? `(${this.#attention}) ` : '';
    document.title = `${count}${this.#current?.title ?? 'hapax'} · hapax`;
  }

  /** Calls `listener` with each overview, and at once if there is one. */
  listenToOverview(listener, signal) {
    this.#overviewListeners.add(listener);
    signal.addEventListener('abort', () => this.#overviewListeners.delete(listener));
    if (this.overview) listener(this.overview, null);
  }

  showOverview(overview) {
    this.overview = overview;
    const { store, attention } = overview;
    replaceChildren(this.#store, badge(store.ready ? 'good' : 'bad', `${store.name} ${store.ready ? 'ready' : 'not ready'}`));
    this.#attention = attention.length;
    this.#showCounts(attention);
    this.#showTitle();
    for (const listener of this.#overviewListeners) listener(overview, null);
  }

  showOverviewProblem(error) {
    replaceChildren(this.#store, badge('bad', error.status === 0 ? 'Server away' : 'Not known'));
    for (const listener of this.#overviewListeners) listener(this.overview, error);
  }

  #showCounts(attention) {
    const counts = new Map();
    for (const one of attention) {
      const page = attentionPage(one);
      counts.set(page, (counts.get(page) ?? 0) + (one.count ?? 1));
    }
    for (const [name, { count }] of this.#links) {
      const value = counts.get(name) ?? 0;
      count.hidden = value === 0;
      replaceChildren(count, number(value), el('span', { class: 'visually-hidden' }, ' need a person'));
    }
  }
}

function footer(session) {
  return el('div', { class: 'nav-foot' },
    el('a', { href: '/docs/' }, 'HTTP API'), el('a', { href: '/metrics' }, 'Metrics'), el('span', null, `hapax ${session.version ?? ''}`));
}
