// The images: filters, order and pages.

const PAGE = 12;

const ITEMS = DATA.datasets.flatMap((dataset, d) =>
  dataset.sheet.map((image, index) => ({
    dataset: d,
    index,
    image,
    runs: RUNS.map((_, run) => run).filter((run) => RUNS[run].dataset === d),
    results: new Map(),
    disagreements: new Set(),
  })),
);

// Evaluates all images at the selected thresholds.
function evaluateItems() {
  for (const item of ITEMS) {
    item.results = new Map(item.runs.map((run) => [run, evaluateImage(run, item.index)]));
    const results = [...item.results.values()];
    item.disagreements = new Set(
      item.image.objects
        .map((_, i) => i)
        .filter((i) => new Set(results.map((one) => one.objects[i].state === CORRECT)).size > 1),
    );
    item.errors = results.reduce((sum, one) => sum + one.errors, 0);
    item.f1 = results.reduce((sum, one) => sum + one.f1, 0) / results.length;
    item.confidence = Math.max(...results.map((one) => one.confidence));
    item.gap = Math.max(...results.map((one) => one.errors)) - Math.min(...results.map((one) => one.errors));
  }
}

const ORDERS = {
  errors: ['most errors', (a, b) => b.errors - a.errors || a.f1 - b.f1],
  f1: ['lowest F1', (a, b) => a.f1 - b.f1 || b.errors - a.errors],
  confidence: ['most confident error', (a, b) => b.confidence - a.confidence],
  ...(MANY
    ? { gap: ['largest difference', (a, b) => b.gap - a.gap || b.disagreements.size - a.disagreements.size || b.errors - a.errors] }
    : {}),
  fewest: ['fewest errors', (a, b) => a.errors - b.errors || b.f1 - a.f1],
  name: ['name', (a, b) => a.image.name.localeCompare(b.image.name, 'en', { numeric: true })],
};

const view = { type: 'all', label: '', order: 'errors', page: 0, list: [] };

// The type and class of the boxes to highlight.
const filterOf = () => ({
  type: TYPES.includes(view.type) ? TYPES.indexOf(view.type) : null,
  label: view.label || null,
});

function fits(item) {
  const names = DATA.datasets[item.dataset].classes;
  const { type, label } = filterOf();
  const named = (row) => label === null || names[row.label] === label;
  return [...item.results.values()].some((result) => {
    if (view.type === 'none') return result.errors === 0 && (label === null || result.objects.some(named));
    const missed = result.objects.filter((object) => object.state === MISSED && named(object));
    if (type === MISSED) return missed.length > 0;
    if (type !== null) return result.kept.some((detection) => detection.type === type && named(detection));
    if (view.type === 'any')
      return missed.length > 0 || result.kept.some((detection) => ERRORS.includes(detection.type) && named(detection));
    return label === null || result.objects.some(named) || result.kept.some(named);
  });
}

function tally(result) {
  const parts = ERRORS.filter((type) => result.counts[type]).map((type) =>
    make('span', { class: 'chip', title: TYPES[type] }, typeSwatch(type), ` ${result.counts[type]}`),
  );
  return make(
    'span',
    { class: 'chips' },
    make('span', { class: 'chip', title: 'correct' }, typeSwatch(CORRECT), ` ${result.counts[CORRECT]}`),
    parts,
  );
}

function panel(item, run, named) {
  const result = item.results.get(run);
  const drawn = picture(item, run, filterOf(), named);
  const fewest = Math.min(...[...item.results.values()].map((one) => one.errors));
  const better = item.gap > 0 && result.errors === fewest;
  const head =
    item.runs.length > 1
      ? make(
          'p',
          { class: 'panel-name' },
          runLabel(run),
          better ? make('span', { class: 'delta good', title: 'fewest errors in this image' }, '▲ better') : null,
        )
      : null;
  return { node: make('div', { class: 'panel' }, head, drawn.node, tally(result)), drawn };
}

function card(item, number) {
  const open = () => openViewer(number);
  const panels = item.runs.map((run) => panel(item, run, false).node);
  panels.forEach((node) => node.querySelector('.picture').addEventListener('click', open));
  return make(
    'article',
    { class: `item${item.runs.length > 1 ? ' several' : ''}` },
    make('h3', {}, make('button', { type: 'button', class: 'link', on: { click: open } }, item.image.name)),
    make('div', { class: 'panels' }, panels),
    item.disagreements.size
      ? make(
          'p',
          { class: 'muted small' },
          make('span', { class: 'differs' }, '≠ '),
          `${item.disagreements.size} object${item.disagreements.size > 1 ? 's' : ''} not detected by all runs`,
        )
      : null,
  );
}

function sheet() {
  const section = byId('images');
  const container = make('div', { class: MANY ? 'cards pairs' : 'cards' });
  const status = make('p', { class: 'muted', role: 'status' });
  const pages = make('span', {});
  const step = (by) => () => {
    view.page += by;
    render();
    section.scrollIntoView();
  };
  const [back, next] = [
    ['‹ Previous', -1],
    ['Next ›', 1],
  ].map(([text, by]) => make('button', { type: 'button', on: { click: step(by) } }, text));

  function render() {
    const last = Math.max(0, Math.ceil(view.list.length / PAGE) - 1);
    view.page = Math.min(last, Math.max(0, view.page));
    const first = view.page * PAGE;
    container.replaceChildren(...view.list.slice(first, first + PAGE).map((item, i) => card(item, first + i)));
    status.textContent = view.list.length
      ? `${whole(view.list.length)} of ${whole(ITEMS.length)} images`
      : 'No image matches the filters.';
    pages.textContent = `${view.page + 1} / ${last + 1}`;
    back.disabled = view.page === 0;
    next.disabled = view.page === last;
  }

  function refilter() {
    evaluateItems();
    view.list = ITEMS.filter(fits).sort(ORDERS[view.order][1]);
    render();
    refreshViewer();
  }
  const change = (key) => (value) => {
    view[key] = value;
    view.page = 0;
    refilter();
  };

  const total = DATA.datasets.reduce((sum, dataset) => sum + dataset.images, 0);
  section.append(
    make(
      'p',
      { class: 'muted' },
      ITEMS.length < total ? `The ${whole(ITEMS.length)} images with the most errors, of ${whole(total)}. ` : '',
      'Point at a box to see its values; click an image to enlarge it. Dashed boxes are annotated objects.',
    ),
  );
  if (!ITEMS.length) return;
  const classes = [...new Set(DATA.datasets.flatMap((dataset) => dataset.classes))].map((name) => [name, name]);
  const kinds = [
    ['all', 'all images'],
    ['any', 'with errors'],
    ...ERRORS.map((type) => [TYPES[type], TYPES[type]]),
    ['none', 'without errors'],
  ];
  const toggles = [
    ['objects', 'objects'],
    ['correct', 'correct boxes'],
    ['errors', 'errors'],
  ];
  section.append(
    make(
      'div',
      { class: 'toolbar' },
      select('Error', kinds, change('type')).node,
      select('Class', [['', 'all'], ...classes], change('label')).node,
      select(
        'Order',
        Object.entries(ORDERS).map(([key, [name]]) => [key, name]),
        change('order'),
      ).node,
      make(
        'fieldset',
        {},
        make('legend', { class: 'hidden' }, 'Boxes to show'),
        toggles.map(([key, text]) =>
          checkbox(text, true, (on) => {
            shownBoxes[key] = on;
            refilter();
          }),
        ),
      ),
    ),
    make(
      'div',
      { class: 'controls' },
      RUNS.map((_, run) => thresholdControl(run)),
    ),
    make(
      'p',
      { class: 'key' },
      [CORRECT, ...ERRORS].map((type) =>
        make(
          'span',
          { title: DATA.types[type].definition },
          typeSwatch(type),
          ` ${TYPES[type]}`,
        ),
      ),
      MANY ? make('span', {}, make('span', { class: 'differs' }, '≠'), ' not detected by all runs') : null,
    ),
    status,
    container,
    make('div', { class: 'pager' }, back, pages, next),
  );
  onThresholdChange(refilter);
  refilter();
}
