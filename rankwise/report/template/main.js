// Title, sections, light and dark.

function setTitle() {
  byId('title').append(
    ...RUNS.flatMap((_, run) => [
      run ? make('span', { class: 'muted' }, 'and') : null,
      MANY ? runLabel(run) : RUNS[run].name,
    ]).filter(Boolean),
  );
  const datasets = DATA.datasets.map((dataset) => `${dataset.name} (${whole(dataset.images)} images)`);
  byId('subtitle').textContent = `Evaluated on ${datasets.join(' and ')}`;
  byId('footer').textContent =
    `Written by rankwise ${DATA.version} on ${DATA.created}. This page works offline and sends no data.`;
}

const THEMES = { light: ['☾', 'Switch to dark'], dark: ['☀', 'Switch to light'] };

function theme() {
  const button = byId('theme');
  const system = window.matchMedia('(prefers-color-scheme: dark)');
  const remember = (value) => {
    try {
      localStorage.setItem('rankwise-theme', value);
    } catch {
      /* a page opened from disk may have no storage */
    }
  };
  const remembered = () => {
    try {
      return localStorage.getItem('rankwise-theme');
    } catch {
      return null;
    }
  };
  const now = () => document.documentElement.dataset.theme || (system.matches ? 'dark' : 'light');
  const label = () => {
    button.textContent = THEMES[now()][0];
    button.setAttribute('aria-label', THEMES[now()][1]);
    button.title = THEMES[now()][1];
  };
  if (remembered() in THEMES) document.documentElement.dataset.theme = remembered();
  button.addEventListener('click', () => {
    document.documentElement.dataset.theme = now() === 'dark' ? 'light' : 'dark';
    remember(now());
    label();
  });
  system.addEventListener('change', label);
  label();
}

function navigation() {
  const sections = [...document.querySelectorAll('main > section:not([hidden])')];
  const names = { precision: 'Precision', reliability: 'Reliability', scores: 'Scores', errors: 'Errors', images: 'Images' };
  const links = new Map(
    sections.map((section) => [
      section,
      make('a', { href: `#${section.id}` }, names[section.id] || section.querySelector('h2').textContent),
    ]),
  );
  const nav = byId('nav');
  nav.append(...links.values());
  // The current section is the one that crosses a line in the upper part of the window.
  const watcher = new IntersectionObserver(
    (entries) => {
      const entry = entries.find((one) => one.isIntersecting);
      if (!entry) return;
      links.forEach((link, section) =>
        section === entry.target ? link.setAttribute('aria-current', 'true') : link.removeAttribute('aria-current'),
      );
      const link = links.get(entry.target);
      nav.scrollLeft = link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
    },
    { rootMargin: '-20% 0px -79% 0px' },
  );
  sections.forEach((section) => watcher.observe(section));
}

theme();
setTitle();
overview();
recipe();
training();
precisionRecall();
thresholds();
reliabilities();
scores();
errors();
sheet();
navigation();
window.addEventListener('scroll', () => tip.hide(), { passive: true });
