// Creates elements, formats numbers, and shows the tooltip. Text from the data is only inserted as text nodes.

const SVG = 'http://www.w3.org/2000/svg';

const make = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'on') for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === 'style') for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const byId = (id) => document.getElementById(id);

const DASH = '–';
const fixed = (value, digits = 1) =>
  value === null || value === undefined ? DASH : value.toFixed(digits).replace('-', '−');
const percent = (value, digits = 1) =>
  value === null || value === undefined ? DASH : `${(100 * value).toFixed(digits)} %`;
const whole = (value) => (value === null || value === undefined ? DASH : value.toLocaleString('en'));

// Three significant digits without trailing zeros: 0.00213, 41.2, 1,250.
function short(value) {
  if (value === null || value === undefined) return DASH;
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString('en');
  return size < 1e-4 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

const signed = (value, digits = 1) => (value < 0 ? '−' : '+') + Math.abs(value).toFixed(digits);

// The difference from the first run. Arrow and color show better or worse, the sign shows more or less.
function change(value, digits = 1, higherIsBetter = true) {
  if (value === null || !Number.isFinite(value)) return null;
  if (Math.abs(value) < 0.5 * 10 ** -digits) return make('span', { class: 'delta' }, '=');
  const good = value > 0 === higherIsBetter;
  const words = [make('span', { 'aria-hidden': 'true' }, good ? '▲' : '▼'), signed(value, digits)];
  return make(
    'span',
    { class: `delta ${good ? 'good' : 'bad'}`, title: good ? 'better than the first run' : 'worse than the first run' },
    words,
  );
}

const swatch = (color, dash) =>
  draw(
    'svg',
    { class: 'swatch', viewBox: '0 0 22 8', 'aria-hidden': 'true' },
    draw('line', { x1: 1, x2: 21, y1: 4, y2: 4, 'stroke-dasharray': dash, style: { '--c': color } }),
  );

const tip = {
  element: byId('tip'),
  // x and y: position of the pointer in the window; lines: arrays of nodes or strings.
  show(x, y, lines) {
    this.element.replaceChildren(...lines.map((line) => make('div', {}, ...[line].flat())));
    this.element.classList.add('shown');
    const box = this.element.getBoundingClientRect();
    const left = x + 14 + box.width > window.innerWidth - 6 ? x - 14 - box.width : x + 14;
    const top = y + 14 + box.height > window.innerHeight - 6 ? y - 14 - box.height : y + 14;
    this.element.style.left = `${Math.min(Math.max(6, left), Math.max(6, window.innerWidth - box.width - 6))}px`;
    this.element.style.top = `${Math.max(6, top)}px`;
  },
  hide() {
    this.element.classList.remove('shown');
  },
};

// Follows the pointer over an element. On a touch screen, the tooltip stays until the next tap elsewhere.
function follow(element, point, leave) {
  element.addEventListener('pointermove', point);
  element.addEventListener('pointerdown', point);
  element.addEventListener('pointerleave', (event) => {
    if (event.pointerType !== 'touch') leave();
  });
  document.addEventListener(
    'pointerdown',
    (event) => {
      if (event.pointerType === 'touch' && !element.contains(event.target)) leave();
    },
    { capture: true },
  );
}

function select(label, options, onChange) {
  const field = make(
    'select',
    { 'aria-label': label, on: { change: () => onChange(field.value) } },
    options.map(([value, text]) => make('option', { value }, text)),
  );
  return { node: make('label', { class: 'field' }, make('span', {}, label), field), field };
}

function checkbox(label, checked, onChange) {
  const box = make('input', { type: 'checkbox', checked, on: { change: () => onChange(box.checked) } });
  return make('label', { class: 'check' }, box, label);
}

// A table in its own container, so that a wide table scrolls, but the page does not.
function table(caption, head, rows, options = {}) {
  const cells = (row) =>
    row.map((cell, column) =>
      make(
        column === 0 ? 'th' : 'td',
        { scope: column === 0 ? 'row' : null, class: column === 0 ? null : 'number' },
        cell,
      ),
    );
  return make(
    'div',
    { class: `scroll ${options.class || ''}`, tabindex: '0', role: 'region', 'aria-label': caption },
    make(
      'table',
      {},
      make('caption', { class: options.caption ? null : 'hidden' }, caption),
      make(
        'thead',
        {},
        make(
          'tr',
          {},
          head.map((name, column) => make('th', { scope: 'col', class: column ? 'number' : null }, name)),
        ),
      ),
      make(
        'tbody',
        {},
        rows.map((row) => make('tr', { class: row.class }, cells(row))),
      ),
    ),
  );
}
